//! Who calls a service, and what they may do: API tokens, JSON Web Tokens, users of a socket, and sessions of browsers.
//!
//! Nothing here talks to a network or a database: credentials and stored tokens come in, a
//! [`Caller`] or the reason of a refusal goes out. No error and no reason has a part of a token.

#![forbid(unsafe_code)]

mod caller;
mod failures;
mod jwt;
mod key_file;
mod peer;
mod session;
mod token;

pub use caller::{Caller, Scope};
pub use failures::{Failures, network};
pub use jwt::{JwtConfig, JwtKeys, JwtRefusal, MAX_JWT_BYTES};
pub use key_file::{KeyFileError, MAX_KEY_FILE_BYTES, MIN_SECRET_BYTES, read_private};
pub use peer::{FORWARDED, ForwardKey, ForwardRefusal, ForwardVerifier, Receiver};
pub use session::{
    MAX_SESSION_TOKEN_BYTES, SIGN_IN_CODE_VALIDITY, Session, SessionKey, SignInCodes,
};
pub use token::{StoredToken, TOKEN_PREFIX, Token, TokenRefusal, is_equal};

/// The caller at the other end of a socket: the server's own user has every scope, others have
/// none.
#[must_use]
pub fn local_caller(peer_uid: u32, own_uid: u32) -> Option<Caller> {
    let subject = sandbox_api::service::Subject::new(LOCAL_SUBJECT).ok()?;
    (peer_uid == own_uid).then(|| Caller { subject, scopes: Scope::ALL.to_vec() })
}

/// The subject of the server's own user, and of every caller without authentication.
pub const LOCAL_SUBJECT: &str = "local";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_user_is_local() {
        let caller = local_caller(1000, 1000).unwrap();
        assert!(caller.may(Scope::Admin) && caller.subject.as_str() == LOCAL_SUBJECT);
        assert_eq!(local_caller(0, 1000), None);
        assert_eq!(local_caller(1001, 1000), None);
    }
}
