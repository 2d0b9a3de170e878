//! Sessions of browsers: a caller's token, sealed so that only the service can read or change it, and codes that
//! are exchanged for a token once.

use std::fmt;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use sandbox_api::service::Time;
use sandbox_dirfd::random_hex;
use sha2::{Digest as _, Sha256};

use crate::token::is_equal;

/// The longest token of a session: browsers keep cookies of up to 4 KiB.
pub const MAX_SESSION_TOKEN_BYTES: usize = 2900;
/// The form of a session. It is sealed too, so that a session of another form cannot be opened as one of this.
const FORM: &[u8] = b"sandboxctl session 2";
/// A sealed session begins with the time of its end and the digest of its proof; the token follows.
const EXPIRY_LEN: usize = size_of::<i64>();
const PROOF_LEN: usize = 32;

/// Seals the sessions of a service. Every node of a cluster has the same.
pub struct SessionKey(RandomizedNonceKey);

/// A session that was opened.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    /// The token of its caller, which is still to be checked.
    pub token: String,
    /// When it ends.
    pub expires_at: Time,
    proof: [u8; PROOF_LEN],
}

impl Session {
    /// A new one, and its proof. Only who has both, the sealed session and its proof, has the session.
    #[must_use]
    pub fn new(token: String, expires_at: Time) -> (Self, String) {
        let proof = random_hex::<16>();
        (Self { token, expires_at, proof: Sha256::digest(&proof).into() }, proof)
    }

    /// Whether this is its proof.
    #[must_use]
    pub fn is_proven_by(&self, proof: &str) -> bool {
        is_equal(&self.proof, &Sha256::digest(proof))
    }
}

/// The token is not shown.
impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Session")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl SessionKey {
    /// With these bytes, which nothing else is sealed with.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(RandomizedNonceKey::new(&AES_256_GCM_SIV, key).expect("its keys have 32 bytes"))
    }

    /// A session as text for a cookie.
    #[must_use]
    pub fn seal(&self, session: &Session) -> String {
        let mut text = session.expires_at.unix_millis().to_be_bytes().to_vec();
        text.extend_from_slice(&session.proof);
        text.extend_from_slice(session.token.as_bytes());
        let sealed = self.0.seal_in_place_append_tag(Aad::from(FORM), &mut text);
        let nonce = sealed.expect("a short text can be sealed");
        BASE64.encode([nonce.as_ref().as_slice(), &text].concat())
    }

    /// The session of a text that this key has sealed, until it ends.
    #[must_use]
    pub fn open(&self, sealed: &str, now: Time) -> Option<Session> {
        let mut sealed = BASE64.decode(sealed).ok()?;
        let (nonce, text) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let text = self.0.open_in_place(nonce, Aad::from(FORM), text).ok()?;
        let (expiry, text) = text.split_first_chunk::<EXPIRY_LEN>()?;
        let (proof, token) = text.split_first_chunk::<PROOF_LEN>()?;
        let expires_at = Time::from_unix_millis(i64::from_be_bytes(*expiry));
        let token = std::str::from_utf8(token).ok()?.to_owned();
        (expires_at > now).then_some(Session { token, expires_at, proof: *proof })
    }
}

/// How long a code is good.
pub const SIGN_IN_CODE_VALIDITY: Duration = Duration::from_secs(600);
/// The most codes at one time; the oldest goes.
const MAX_CODES: usize = 16;

/// Codes that stand for a token until they are used. Digests of them are kept.
#[derive(Default)]
pub struct SignInCodes(Vec<SignInCode>);

struct SignInCode {
    hash: [u8; 32],
    token: String,
    until: Instant,
}

impl SignInCodes {
    /// A new code for this token.
    pub fn issue(&mut self, token: &str, now: Instant) -> String {
        let code = random_hex::<16>();
        if self.0.len() == MAX_CODES {
            self.0.remove(0);
        }
        let (hash, until) = (Sha256::digest(&code).into(), now + SIGN_IN_CODE_VALIDITY);
        self.0.push(SignInCode { hash, token: token.to_owned(), until });
        code
    }

    /// The token of a code, which is good no more.
    pub fn redeem(&mut self, code: &str, now: Instant) -> Option<String> {
        self.0.retain(|code| code.until > now);
        let hash = Sha256::digest(code);
        // In constant time: all are compared, each as a whole.
        let found = |found, (at, it): (usize, &SignInCode)| match is_equal(&it.hash, &hash) {
            true => Some(at),
            false => found,
        };
        let at = self.0.iter().enumerate().fold(None, found)?;
        Some(self.0.remove(at).token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_unix_millis(1_000_000);

    fn key() -> SessionKey {
        SessionKey::new(&[7; 32])
    }

    fn session() -> Session {
        let (token, expires_at) = ("sbx_a_b".to_owned(), NOW.after(Duration::from_secs(1)));
        Session { token, expires_at, proof: Sha256::digest("proof").into() }
    }

    #[test]
    fn session_is_proven_by_its_own_proof_alone() {
        let (one, proof) = Session::new("t".to_owned(), NOW.after(Duration::from_secs(1)));
        let (_, other) = Session::new("t".to_owned(), one.expires_at);
        let opened = key().open(&key().seal(&one), NOW).unwrap();
        assert!(opened == one && opened.is_proven_by(&proof));
        for wrong in ["", &other, &proof[1..], &proof.to_uppercase()] {
            assert!(!opened.is_proven_by(wrong) || wrong == proof, "{wrong}");
        }
        let shown = String::from_utf8_lossy(&BASE64.decode(key().seal(&one)).unwrap()).into_owned();
        assert!(!shown.contains(&proof) && !format!("{one:?}").contains(&proof));
    }

    #[test]
    fn session_is_opened_with_its_key_until_it_ends() {
        let sealed = key().seal(&session());
        assert_eq!(key().open(&sealed, NOW), Some(session()));
        assert_eq!(key().open(&sealed, session().expires_at), None);
        assert_eq!(SessionKey::new(&[8; 32]).open(&sealed, NOW), None);
        // The same session is another text each time, which shows nothing of it.
        assert_ne!(key().seal(&session()), sealed);
        let shown = String::from_utf8_lossy(&BASE64.decode(&sealed).unwrap()).into_owned();
        assert!(!shown.contains("sbx") && !format!("{:?}", session()).contains("sbx"));
    }

    #[test]
    fn session_that_was_changed_is_none() {
        let sealed = BASE64.decode(key().seal(&session())).unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key().open(&BASE64.encode(changed), NOW), None, "{at}");
        }
        for length in 0..sealed.len() {
            assert_eq!(key().open(&BASE64.encode(&sealed[..length]), NOW), None, "{length}");
        }
        assert_eq!(key().open("no base64!", NOW), None);
    }

    #[test]
    fn longest_session_fits_into_a_cookie() {
        let token = "x".repeat(MAX_SESSION_TOKEN_BYTES);
        assert!(key().seal(&Session { token, ..session() }).len() < 4096 - 64);
    }

    #[test]
    fn code_is_good_once_and_for_a_while() {
        let (mut codes, now) = (SignInCodes::default(), Instant::now());
        let [one, other] = ["a", "b"].map(|token| codes.issue(token, now));
        assert_eq!(codes.redeem("", now), None);
        assert_eq!(codes.redeem(&one[1..], now), None);
        assert_eq!(codes.redeem(&one, now).as_deref(), Some("a"));
        assert_eq!(codes.redeem(&one, now), None);
        assert_eq!(codes.redeem(&other, now + SIGN_IN_CODE_VALIDITY), None);
        let first = codes.issue("c", now);
        (0..MAX_CODES).for_each(|_| _ = codes.issue("d", now));
        assert_eq!((codes.redeem(&first, now), codes.0.len()), (None, MAX_CODES));
    }
}
