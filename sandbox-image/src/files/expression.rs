//! The regular expression that `grep` looks for in lines.
//!
//! A match takes time in proportion to the length of the line and to the states of the expression:
//! minutes for the longest line and the largest expression, while nothing could stop it. Lines for which
//! that may take long are matched here, byte by byte, by all states at once.

use std::cell::OnceCell;

use regex::bytes::{Regex, RegexBuilder};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::syntax;

use super::error::FileError;
use super::pattern::{MAX_COMPILED_BYTES, MAX_NESTING, cause};
use super::watch::Watch;

/// The most states, times bytes of a line, that are matched at once: at most 0.3 s.
const AT_ONCE: usize = 32 << 20;
/// How many states are visited before the watch is checked again: about 1 ms.
const BETWEEN_CHECKS: u64 = 64 << 10;

/// A line up to this length is matched at once by the largest expression: a state of it takes more than
/// 16 bytes.
const SHORT_LINE: usize = AT_ONCE / (MAX_COMPILED_BYTES / 16);

/// A compiled regular expression.
pub(super) struct Expression {
    regex: Regex,
    ignore_case: bool,
    /// Its states, for lines that are not short.
    nfa: OnceCell<Result<NFA, FileError>>,
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(pattern: &str, ignore_case: bool) -> Result<Self, String> {
        let regex = RegexBuilder::new(pattern)
            .case_insensitive(ignore_case)
            .nest_limit(MAX_NESTING)
            .size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|error| cause(&error))?;
        Ok(Self { regex, ignore_case, nfa: OnceCell::new() })
    }

    fn nfa(&self) -> Result<&NFA, FileError> {
        let pattern = self.regex.as_str();
        let build = || {
            // The same options as above.
            let syntax = syntax::Config::new()
                .case_insensitive(self.ignore_case)
                .nest_limit(MAX_NESTING)
                .utf8(false);
            let config = thompson::Config::new()
                .utf8(false)
                .which_captures(WhichCaptures::None)
                .nfa_size_limit(Some(MAX_COMPILED_BYTES));
            let built = thompson::Compiler::new().syntax(syntax).configure(config).build(pattern);
            built.map_err(|error| FileError::invalid(error.to_string(), pattern.as_bytes()))
        };
        self.nfa.get_or_init(build).as_ref().map_err(FileError::clone)
    }

    /// Whether there is a match in a line.
    ///
    /// # Errors
    ///
    /// The reasons that stop the operation.
    pub fn is_match(&self, line: &[u8], watch: &Watch) -> Result<bool, FileError> {
        watch.check()?;
        let is_short = line.len() <= SHORT_LINE;
        match is_short || line.len().saturating_mul(self.nfa()?.states().len()) <= AT_ONCE {
            true => Ok(self.regex.is_match(line)),
            false => self.is_match_watched(line, watch),
        }
    }

    /// The same, slower, and stopped within a moment.
    fn is_match_watched(&self, line: &[u8], watch: &Watch) -> Result<bool, FileError> {
        let nfa = self.nfa()?;
        let states = nfa.states();
        // At which byte each state was last visited.
        let mut visited = vec![usize::MAX; states.len()];
        let (mut open, mut next) = (Vec::new(), Vec::new());
        let mut visits: u64 = 0;
        for at in 0..=line.len() {
            open.append(&mut next);
            // A match may begin anywhere.
            open.push(nfa.start_anchored());
            while let Some(id) = open.pop() {
                visits += 1;
                if visits.is_multiple_of(BETWEEN_CHECKS) {
                    watch.check()?;
                }
                if std::mem::replace(&mut visited[id], at) == at {
                    continue;
                }
                match &states[id] {
                    State::ByteRange { trans } if trans.matches(line, at) => next.push(trans.next),
                    State::ByteRange { .. } | State::Fail => {}
                    State::Sparse(transitions) => next.extend(transitions.matches(line, at)),
                    State::Dense(transitions) => next.extend(transitions.matches(line, at)),
                    State::Look { look, next } => {
                        if nfa.look_matcher().matches(*look, line, at) {
                            open.push(*next);
                        }
                    }
                    State::Union { alternates } => open.extend_from_slice(alternates),
                    State::BinaryUnion { alt1, alt2 } => open.extend([*alt1, *alt2]),
                    State::Capture { next, .. } => open.push(*next),
                    State::Match { .. } => return Ok(true),
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use sandbox_protocol::ErrorKind;

    fn watch(limit: Duration) -> Watch {
        Watch::new(Arc::default(), limit)
    }

    #[track_caller]
    fn check(pattern: &str, ignore_case: bool, line: &[u8]) {
        let expression = Expression::new(pattern, ignore_case).unwrap();
        let watched = expression.is_match_watched(line, &watch(Duration::from_secs(60)));
        assert_eq!(watched.unwrap(), expression.regex.is_match(line), "{pattern} {line:?}");
    }

    #[test]
    fn ordinary_expressions_compile_and_match_the_same_either_way() {
        let lines: [&[u8]; 9] = [
            b"",
            b"fn main() { foo::bar(1, 2) }",
            b"2026-11-27T07:45:14Z ERROR 192.168.0.1 https://example.com/a?b=c a@b.org",
            "Grüße aus Köln, the naïve café 日本語".as_bytes(),
            b"\xff\xfe foo \x80bar",
            b"deadbeefdeadbeefdeadbeefdeadbeef foo",
            b"  let x = \"y\";\r",
            b"TODO: fixme",
            "é foo bar".as_bytes(),
        ];
        for pattern in [
            "",
            "TODO|FIXME",
            "foo$",
            r"^\s*(pub\s+)?fn\s+\w+\s*\(",
            r"\w+\s+\p{L}{3,20}",
            r"\bfoo\b",
            r"\Bo",
            r"(?-u)\bbar\b",
            r"(?-u)\xff",
            r"[\w.+-]+@[\w-]+\.[\w.-]+",
            r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}",
            r"(\d{1,3}\.){3}\d{1,3}",
            r"https?://[^\s/$.?#].[^\s]*",
            "[0-9a-f]{32}",
            ".{0,200}foo.{0,200}",
            r"(\w+\s+){5}\w+",
            r"^$",
            r"(?:)",
            r"a{0}b",
            r"\p{Han}{3}",
            r"^(?:[^\x80-\xff])*$",
        ] {
            for line in lines {
                check(pattern, false, line);
                check(pattern, true, line);
            }
        }
    }

    #[test]
    fn match_of_a_long_line_by_a_large_expression_is_stopped() {
        // Each `a` may be the first of thousands that are to follow.
        let expression = Expression::new("(?-u)[ab]*a[ab]{12000}c", false).unwrap();
        let line = b"ab".repeat(100_000);
        let error = expression.is_match(&line, &watch(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
    }

    proptest! {
        #[test]
        fn every_expression_matches_the_same_either_way(
            pattern in r"(\^|\\b|\\B|\(\?-u:\\b\))?([ab.é]|\[ab\]|\\w|\(a\|b\*\))([*+?]|\{1,3\})?[abé]?(\||\$)?b?",
            line in "[abé .]{0,12}",
        ) {
            check(&pattern, false, line.as_bytes());
        }
    }
}
