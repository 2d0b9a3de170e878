//! API tokens: `sbx_ID_SECRET`. Only a digest of the secret is stored.

use std::fmt;

use sandbox_api::service::{Subject, Time};
use sandbox_dirfd::{is_random_hex, random_hex};
use sha2::{Digest, Sha256};

use crate::caller::{Caller, Scope};

/// How every token begins, so that scanners for leaked secrets find them.
pub const TOKEN_PREFIX: &str = "sbx_";
/// The prefix of the other spelling of the same token, for clients that take only prefix and hexadecimal digits.
const HEX_PREFIX: &str = "e2b_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// A token as its holder sends it. Its `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// What is stored of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// The digest of its secret.
    pub hash: [u8; 32],
    /// Who calls with it.
    pub subject: Subject,
    /// What it is for.
    pub scopes: Vec<Scope>,
    /// When it stops to be valid.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// None of this id is stored.
    #[error("the token is unknown")]
    Unknown,
    /// Its secret is another one.
    #[error("the token's secret is wrong")]
    WrongSecret,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// It was revoked.
    #[error("the token was revoked")]
    Revoked,
}

impl Token {
    /// Makes a token.
    #[must_use]
    pub fn generate() -> Self {
        Self { id: random_hex::<ID_BYTES>(), secret: random_hex::<SECRET_BYTES>() }
    }

    /// Reads a token; `None` if the text has not the form of one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = match text.strip_prefix(HEX_PREFIX) {
            Some(digits) => digits.split_at_checked(2 * ID_BYTES)?,
            None => text.strip_prefix(TOKEN_PREFIX)?.split_once('_')?,
        };
        let is_token = is_random_hex::<ID_BYTES>(id) && is_random_hex::<SECRET_BYTES>(secret);
        is_token.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// Its id, which is not a secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The token as text, for its holder.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{TOKEN_PREFIX}{}_{}", self.id, self.secret)
    }

    /// The same token as E2B's keys are spelt, which its older clients insist on: `e2b_` and hexadecimal digits.
    #[must_use]
    pub fn expose_as_e2b(&self) -> String {
        format!("{HEX_PREFIX}{}{}", self.id, self.secret)
    }

    /// The digest of its secret, to store.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.secret).into()
    }

    /// Checks it against what is stored under its id.
    ///
    /// # Errors
    ///
    /// [`TokenRefusal`].
    pub fn check(&self, stored: Option<&StoredToken>, now: Time) -> Result<Caller, TokenRefusal> {
        let stored = stored.ok_or(TokenRefusal::Unknown)?;
        // The secret first: only the holder learns that a token is expired or revoked.
        if !is_equal(&self.hash(), &stored.hash) {
            return Err(TokenRefusal::WrongSecret);
        }
        if stored.revoked_at.is_some() {
            return Err(TokenRefusal::Revoked);
        }
        if stored.expires_at.is_some_and(|expires| expires <= now) {
            return Err(TokenRefusal::Expired);
        }
        Ok(Caller { subject: stored.subject.clone(), scopes: stored.scopes.clone() })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{TOKEN_PREFIX}{}_***", self.id)
    }
}

/// Whether they are the same, in a time that depends on their lengths alone. Those that are compared here are
/// digests of random secrets, so that little would be learnt in any case.
#[must_use]
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let bytes = one.iter().zip(other);
    one.len() == other.len() && bytes.fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(new: &Token) -> StoredToken {
        StoredToken {
            hash: new.hash(),
            subject: Subject::new("ci").unwrap(),
            scopes: vec![Scope::ExecutionsRead],
            expires_at: Some(Time::from_unix_millis(1_000)),
            revoked_at: None,
        }
    }

    #[test]
    fn token_is_valid_until_it_expires_or_is_revoked() {
        let new = Token::generate();
        let token = Token::parse(&new.expose()).unwrap();
        assert_eq!(token, new);
        let stored = stored(&new);
        let at = Time::from_unix_millis;
        let caller = token.check(Some(&stored), at(999)).unwrap();
        assert!(caller.may(Scope::ExecutionsRead) && !caller.may(Scope::ExecutionsWrite));
        assert_eq!(token.check(Some(&stored), at(1_000)), Err(TokenRefusal::Expired));
        let revoked = StoredToken { revoked_at: Some(at(1)), ..stored.clone() };
        assert_eq!(token.check(Some(&revoked), at(2)), Err(TokenRefusal::Revoked));
        assert_eq!(token.check(None, at(2)), Err(TokenRefusal::Unknown));
        // Another secret under the same id, also of a revoked token.
        let other = Token { secret: Token::generate().secret, ..token };
        assert_eq!(other.check(Some(&stored), at(2)), Err(TokenRefusal::WrongSecret));
        assert_eq!(other.check(Some(&revoked), at(2)), Err(TokenRefusal::WrongSecret));
    }

    #[test]
    fn malformed_token_is_rejected() {
        let whole = Token::generate().expose();
        let upper = whole.to_uppercase();
        let long = format!("{whole}0");
        for text in
            ["", "sbx_", "sbx__", "x", &whole[1..], &upper, &long, &whole[..whole.len() - 1]]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn both_spellings_are_the_same_token() {
        let token = Token::generate();
        let other = token.expose_as_e2b();
        assert!(other.strip_prefix("e2b_").unwrap().bytes().all(|it| it.is_ascii_hexdigit()));
        assert_eq!(Token::parse(&other), Some(token.clone()));
        for text in
            ["e2b_", "e2b_é", &other[..20], &other[..other.len() - 1], &other.to_uppercase()]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
        assert!(!format!("{token:?}").contains(&token.secret));
    }

    #[test]
    fn debug_shows_no_secret() {
        let new = Token::generate();
        let text = format!("{new:?}");
        assert!(!text.contains(&new.secret) && text.contains(&new.id), "{text}");
    }
}
