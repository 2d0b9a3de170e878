//! The search automaton of all secrets, with what a stream needs to know about its states.

use std::collections::BTreeSet;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::noncontiguous::NFA;
use sandbox_protocol::limits::MIN_SECRET_BYTES;

/// What stands in the place of a secret. It is shorter than any of them.
pub const MASK: &str = "***";

const _: () = assert!(MASK.len() < MIN_SECRET_BYTES);

/// The bytes to replace: each secret; where it is not UTF-8, also the text that a log has in its
/// place; each of its lines that has at least [`MIN_SECRET_BYTES`] without the white space around
/// it; and each of these in lower case, as names of hosts are normalised.
pub struct Patterns {
    automaton: NFA,
    start: StateID,
    nodes: Vec<Node>,
}

/// What is known in a state of the automaton. A state is the longest end of the bytes so far with
/// which a pattern begins.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Node {
    /// Its length.
    pub depth: u32,
    /// The length of the longest pattern that ends here; 0 if none does.
    pub found: u32,
    /// The length of the longest suffix that is more than half of a pattern; 0 without one.
    pub most: u32,
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Patterns").finish_non_exhaustive()
    }
}

impl Patterns {
    /// The patterns of these secrets.
    ///
    /// # Panics
    ///
    /// If they are longer together than the bounds of the protocol allow by far.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut patterns = BTreeSet::new();
        for secret in secrets {
            let whole =
                [secret].into_iter().chain(secret.split(|byte| matches!(byte, b'\n' | b'\r')));
            for part in whole.map(|part| if part == secret { part } else { part.trim_ascii() }) {
                let lossy = String::from_utf8_lossy(part).into_owned().into_bytes();
                patterns.extend([part.to_ascii_lowercase(), part.to_vec(), lossy]);
            }
        }
        patterns.retain(|pattern| pattern.len() >= MIN_SECRET_BYTES);
        let automaton = NFA::new(&patterns).expect("bounded far below four billion states");
        let start = automaton.start_state(Anchored::No).expect("it supports such a search");
        let mut patterns = Self { automaton, start, nodes: Vec::new() }.with_depths(&patterns);
        patterns.nodes.shrink_to_fit();
        patterns
    }

    /// Fills in the nodes: linear in the patterns' bytes.
    fn with_depths(mut self, patterns: &BTreeSet<Vec<u8>>) -> Self {
        // Every node with the state of its longest proper end, which is a state too.
        let mut edges = Vec::new();
        let mut shortest: Vec<u32> = Vec::new();
        for pattern in patterns {
            let (mut state, mut rest) = (self.start, self.start);
            let length = u32::try_from(pattern.len()).unwrap_or(u32::MAX);
            for (depth, &byte) in (1_u32..).zip(pattern) {
                state = self.step(state, byte);
                if depth > 1 {
                    rest = self.step(rest, byte);
                }
                let at = state.as_usize();
                let size = self.nodes.len().max(at + 1);
                self.nodes.resize(size, Node::default());
                shortest.resize(size, u32::MAX);
                shortest[at] = shortest[at].min(length);
                let node = &mut self.nodes[at];
                if node.depth == 0 {
                    node.depth = depth;
                    edges.push((depth, state, rest));
                }
                if depth == length {
                    node.found = length;
                }
            }
        }
        edges.sort_unstable_by_key(|(depth, ..)| *depth);
        for (depth, state, rest) in edges {
            let rest = self.node(rest);
            let at = state.as_usize();
            let is_most = depth as usize >= MIN_SECRET_BYTES && depth > shortest[at] / 2;
            let node = &mut self.nodes[at];
            node.found = node.found.max(rest.found);
            node.most = if is_most { depth } else { rest.most };
        }
        self
    }

    pub(crate) const fn start(&self) -> StateID {
        self.start
    }

    pub(crate) fn step(&self, state: StateID, byte: u8) -> StateID {
        self.automaton.next_state(Anchored::No, state, byte)
    }

    pub(crate) fn node(&self, state: StateID) -> Node {
        self.nodes.get(state.as_usize()).copied().unwrap_or_default()
    }
}
