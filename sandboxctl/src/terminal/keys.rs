//! The keys that leave a terminal, as `--detach-keys` writes them.

use std::str::FromStr;

/// A sequence of keys that is not passed on: it leaves the program. Empty for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = |name: &str| {
            let control = |name: &str| match *name.as_bytes() {
                [letter @ (b'a'..=b'z' | b'@' | b'['..=b'_')] => Some(letter & 0x1f),
                _ => None,
            };
            match (name.strip_prefix("ctrl-"), name.as_bytes()) {
                (Some(name), _) => control(name),
                (None, &[key @ b'!'..=b'~']) => Some(key),
                _ => None,
            }
            .ok_or_else(|| {
                format!("'{name}' is not a key: a character, or ctrl- and one of a to z, @, [, \\, ], ^ and _")
            })
        };
        match text {
            "" => Ok(Self(Vec::new())),
            text => text.split(',').map(key).collect::<Result<_, _>>().map(Self),
        }
    }
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub struct Typed {
    /// What is passed on.
    pub keys: Vec<u8>,
    /// Whether the keys that leave followed it. The rest is dropped.
    pub leaves: bool,
}

/// Finds the keys that leave in what is typed.
#[derive(Debug)]
pub struct KeyMatcher {
    keys: DetachKeys,
    /// The beginning of them, which is held back.
    held: Vec<u8>,
}

impl KeyMatcher {
    pub const fn new(keys: DetachKeys) -> Self {
        Self { keys, held: Vec::new() }
    }

    /// The next input.
    pub fn take(&mut self, input: &[u8]) -> Typed {
        let DetachKeys(wanted) = &self.keys;
        let mut keys = Vec::with_capacity(input.len());
        for &key in input {
            self.held.push(key);
            while !wanted.starts_with(&self.held) {
                keys.push(self.held.remove(0));
            }
            if !self.held.is_empty() && self.held.len() == wanted.len() {
                self.held.clear();
                return Typed { keys, leaves: true };
            }
        }
        Typed { keys, leaves: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_docker_writes_them() {
        assert_eq!("ctrl-p,ctrl-q".parse(), Ok(DetachKeys(vec![0x10, 0x11])));
        assert_eq!(
            "ctrl-@,ctrl-[,ctrl-_,a,~".parse(),
            Ok(DetachKeys(vec![0, 0x1b, 0x1f, b'a', b'~']))
        );
        assert_eq!("".parse(), Ok(DetachKeys(Vec::new())));
        for wrong in ["ctrl-", "ctrl-P", "ctrl-pq", "ab", "ctrl-p,", "\u{e9}", "ctrl-1", " "] {
            let refused = wrong.parse::<DetachKeys>().unwrap_err();
            assert!(refused.contains("is not a key"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn keys_that_leave_are_found_in_any_pieces_and_others_are_passed_on() {
        let typed = |keys: &[u8], leaves| Typed { keys: keys.to_vec(), leaves };
        let matcher = |keys: &str| KeyMatcher::new(keys.parse().unwrap());
        let mut default = matcher("ctrl-p,ctrl-q");
        assert_eq!(default.take(b"ls\r"), typed(b"ls\r", false));
        assert_eq!(default.take(b"a\x10"), typed(b"a", false), "it is held back");
        assert_eq!(default.take(b"b"), typed(b"\x10b", false));
        assert_eq!(default.take(b"\x10\x10"), typed(b"\x10", false));
        assert_eq!(default.take(b"\x11rest"), typed(b"", true));
        let mut again = matcher("a,a,b");
        assert_eq!(again.take(b"aaab"), typed(b"a", true));
        assert_eq!(matcher("").take(b"\x10\x11"), typed(b"\x10\x11", false));
        assert_eq!(matcher("x").take(b"yx"), typed(b"y", true));
    }
}
