//! Which tokens were used: the audit has the first use of each.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::lock;

/// How many are remembered.
const MAX_TOKENS: usize = 4096;

/// The tokens that were used. One may seem new again after very many others.
#[derive(Debug, Default)]
pub(crate) struct FirstUses(Mutex<HashSet<String>>);

impl FirstUses {
    /// Whether this is the first use of a token.
    pub fn is_first(&self, token: &str) -> bool {
        let mut used = lock(&self.0);
        if used.contains(token) {
            return false;
        }
        if used.len() == MAX_TOKENS {
            used.clear();
        }
        used.insert(token.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_new_once_and_as_many_are_remembered_as_may_be() {
        let uses = FirstUses::default();
        assert!(uses.is_first("a") && !uses.is_first("a") && uses.is_first("b"));
        for number in 0..MAX_TOKENS {
            assert!(uses.is_first(&number.to_string()));
        }
        assert!(uses.0.lock().unwrap().len() <= MAX_TOKENS);
    }
}
