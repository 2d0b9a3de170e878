//! The hosts that were reached and refused while a script or a command ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many hosts of each kind are kept.
const MAX_HOSTS: usize = 100;
/// How many characters of a host, a reason and other texts are kept that a guest may have written.
pub const MAX_TEXT: usize = 255;

/// The connections while a script or a command ran, those of others in the same sandbox included:
/// each host, port and reason once, in order, at most 100 of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The hosts that were connected to.
    pub contacted: Vec<ContactedHost>,
    /// The hosts that were refused.
    pub refused: Vec<RefusedHost>,
    /// There are more than are listed.
    pub truncated: bool,
    /// Why hosts could not be reached that are allowed. A note of the result has it.
    #[serde(skip)]
    pub unreached: Vec<String>,
}

/// A host that was connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContactedHost {
    /// Its name or address, normalised; IPv6 in brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A host that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedHost {
    /// Its name or address, normalised; as the guest wrote it, where it is neither.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Why, in a few words.
    pub reason: String,
    /// The rules to add to the allow list; empty if none would help.
    pub allow: Vec<String>,
}

impl Network {
    /// Adds a host that was connected to.
    pub fn add_contacted(&mut self, mut host: ContactedHost) {
        cut(&mut host.host);
        if self.contacted.contains(&host) {
            return;
        }
        match self.contacted.len() {
            MAX_HOSTS => self.truncated = true,
            _ => self.contacted.push(host),
        }
    }

    /// Adds a host that was refused.
    pub fn add_refused(&mut self, mut host: RefusedHost) {
        cut(&mut host.host);
        cut(&mut host.reason);
        let is_same = |it: &RefusedHost| {
            it.host == host.host && it.port == host.port && it.reason == host.reason
        };
        if self.refused.iter().any(is_same) {
            return;
        }
        match self.refused.len() {
            MAX_HOSTS => self.truncated = true,
            _ => self.refused.push(host),
        }
    }

    /// Adds why a host could not be reached that is allowed.
    pub fn add_unreached(&mut self, mut reason: String) {
        cut(&mut reason);
        if self.unreached.len() < MAX_HOSTS && !self.unreached.contains(&reason) {
            self.unreached.push(reason);
        }
    }
}

/// Cuts a text that a guest may have written.
pub fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str, port: u16) -> RefusedHost {
        RefusedHost { host: host.into(), port, reason: "é".repeat(1000), allow: Vec::new() }
    }

    #[test]
    fn hosts_are_listed_once_and_their_number_and_lengths_are_bounded() {
        let mut network = Network::default();
        for port in [1, 1, 2] {
            network.add_refused(refused("a", port));
            network.add_contacted(ContactedHost { host: "a".into(), port });
        }
        let ports: Vec<_> = network.refused.iter().map(|it| it.port).collect();
        assert_eq!((ports, network.contacted.len()), (vec![1, 2], 2));
        assert_eq!(network.refused[0].reason.chars().count(), MAX_TEXT);
        let long = "b".repeat(1000);
        for _ in 0..2 {
            network.add_refused(refused(&long, 1));
        }
        assert_eq!((network.refused.len(), network.refused[2].host.len()), (3, MAX_TEXT));
        assert!(!network.truncated);
        for port in 0..1000 {
            network.add_refused(refused("c", port));
        }
        assert_eq!((network.refused.len(), network.truncated), (MAX_HOSTS, true));
        for reason in 0..1000 {
            network.add_unreached(format!("{}{}", reason % 500, "d".repeat(1000)));
        }
        assert_eq!(network.unreached.len(), MAX_HOSTS);
        assert_eq!(network.unreached[0].len(), MAX_TEXT);
    }
}
