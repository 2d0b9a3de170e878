//! Who is let in: API tokens of the store, tokens of an issuer, and the user of a socket.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sandbox_api::service::Time;
use sandbox_auth::{
    Failures, JwtConfig, JwtKeys, KeyFileError, Scope, StoredToken, Token, local_caller,
};
use sandbox_http::{Authenticate, Caller, Peer, Unauthenticated as Refused};
use sandbox_store::{Store, StoreError, TokenRecord};

use crate::lock;

/// Who is asked for credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every caller except the own user on a UNIX socket.
    Others,
    /// No caller.
    NoCaller,
}

/// What callers are checked against.
pub struct Access {
    policy: Policy,
    own_uid: u32,
    store: Store,
    jwt: Option<JwtConfig>,
    keys: RwLock<Option<JwtKeys>>,
    failures: Mutex<Failures>,
}

impl Access {
    /// Reads the keys of the issuer, if there is one.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`].
    pub fn new(policy: Policy, store: Store, jwt: Option<JwtConfig>) -> Result<Self, KeyFileError> {
        let keys = RwLock::new(jwt.as_ref().map(JwtKeys::read).transpose()?);
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self { policy, own_uid, store, jwt, keys, failures: Mutex::default() })
    }

    /// Reads the keys again; without them, the old ones stay.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`].
    pub fn reload(&self) -> Result<(), KeyFileError> {
        let keys = self.jwt.as_ref().map(JwtKeys::read).transpose()?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Whether there is a way to authenticate by a token now.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn knows_tokens(&self) -> Result<bool, StoreError> {
        if self.jwt.is_some() {
            return Ok(true);
        }
        let now = Time::now();
        let is_valid = |token: &TokenRecord| {
            token.revoked_at.is_none() && token.expires_at.is_none_or(|expires| expires > now)
        };
        Ok(self.store.tokens()?.iter().any(is_valid))
    }

    /// The caller with this token.
    async fn check(&self, token: &str, peer: Peer) -> Result<Caller, Refused> {
        let checked = match Token::parse(token) {
            Some(token) => self.check_token(token).await,
            None => self.check_jwt(token),
        };
        match checked {
            // A valid token is accepted from any address: other clients of that address, as behind a
            // proxy, may fail.
            Ok(caller) => {
                if let Peer::Tcp(address) = peer {
                    lock(&self.failures).clear(address.ip());
                }
                Ok(caller)
            }
            Err(Refused::Invalid { reason }) => Err(self.refuse(peer, reason)),
            Err(other) => Err(other),
        }
    }

    async fn check_token(&self, token: Token) -> Result<Caller, Refused> {
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || {
            let now = Time::now();
            let stored = store.token(token.id())?.map(stored);
            let caller = token.check(stored.as_ref(), now);
            // The time of last use is information for its owner: a full disk is no reason to refuse
            // a reader.
            if caller.is_ok()
                && let Err(error) = store.use_token(token.id(), now)
            {
                tracing::warn!(%error, "the use of a token was not recorded");
            }
            Ok::<_, StoreError>(caller)
        });
        let unavailable = |reason: String| Refused::Unavailable { reason };
        let found = found.await.map_err(|_| unavailable("the check panicked".to_owned()))?;
        let caller = found.map_err(|error| unavailable(error.to_string()))?;
        caller.map_err(invalid)
    }

    fn check_jwt(&self, token: &str) -> Result<Caller, Refused> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        keys.ok_or_else(|| invalid("unknown token"))?.check(token).map_err(invalid)
    }
}

impl Authenticate for Access {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Caller, Refused>> {
        async move {
            if self.policy == Policy::NoCaller {
                // Every caller is the own user then.
                return local_caller(self.own_uid, self.own_uid).ok_or(Refused::Missing);
            }
            match bearer(headers)? {
                Some(token) => self.check(token, peer).await,
                None => match peer {
                    Peer::Unix { uid } => local_caller(uid, self.own_uid),
                    Peer::Tcp(_) => None,
                }
                .ok_or(Refused::Missing),
            }
        }
        .boxed()
    }

    fn refuse(&self, peer: Peer, reason: String) -> Refused {
        let Peer::Tcp(address) = peer else { return Refused::Invalid { reason } };
        let (mut failures, now) = (lock(&self.failures), Instant::now());
        if let Some(retry_after) = failures.wait(address.ip(), now) {
            return Refused::TooMany { retry_after };
        }
        failures.add(address.ip(), now);
        Refused::Invalid { reason }
    }

    fn expiry<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<Time>> {
        async move {
            let Some(token) = Token::parse(token) else {
                let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
                return keys?.expiry(token);
            };
            let store = self.store.clone();
            let stored = tokio::task::spawn_blocking(move || store.token(token.id())).await;
            stored.ok()?.ok()??.expires_at
        }
        .boxed()
    }

    fn is_credential(&self, word: &str) -> bool {
        self.check_jwt(word).is_ok()
    }
}

fn invalid(reason: impl ToString) -> Refused {
    Refused::Invalid { reason: reason.to_string() }
}

/// The token of a request. Two tokens count as none: choosing one would be a guess.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(invalid("there is more than one Authorization"));
    }
    let value = value.to_str().map_err(|_| invalid("Authorization is not ASCII"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(Some(token.trim())),
        false => Err(invalid("Authorization is of another scheme than Bearer")),
    }
}

fn stored(record: TokenRecord) -> StoredToken {
    let TokenRecord { hash, subject, scopes, expires_at, revoked_at, .. } = record;
    // A scope that this version does not know gives nothing.
    let scopes = scopes.iter().filter_map(|name| Scope::from_word(name)).collect();
    StoredToken { hash, subject, scopes, expires_at, revoked_at }
}

#[cfg(test)]
mod tests {
    use sandbox_store::Durability;

    use std::net::SocketAddr;

    use hyper::header::HeaderValue;
    use sandbox_api::service::Subject;
    use sandbox_auth::LOCAL_SUBJECT;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn tcp() -> Peer {
        Peer::Tcp(SocketAddr::from(([192, 0, 2, 1], 1234)))
    }

    fn record(new: &Token) -> TokenRecord {
        TokenRecord {
            id: new.id().to_owned(),
            hash: new.hash(),
            subject: Subject::new("ci").unwrap(),
            scopes: vec!["executions:write".to_owned(), "of-a-later-version".to_owned()],
            created_at: Time::now(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
        }
    }

    #[tokio::test]
    async fn callers_are_known_by_a_token_or_as_the_user_of_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("data"), Durability::Disk).unwrap();
        let access = Access::new(Policy::Others, store.clone(), None).unwrap();
        assert!(!access.knows_tokens().unwrap());
        let new = Token::generate();
        store.create_token(record(&new)).unwrap();
        assert!(access.knows_tokens().unwrap());

        let bearer = headers(&[&format!("bearer {}", new.expose())]);
        let caller = access.authenticate(&bearer, tcp()).await.unwrap();
        assert_eq!(
            (caller.subject.as_str(), &*caller.scopes),
            ("ci", &[Scope::ExecutionsWrite][..])
        );
        let own = Peer::Unix { uid: rustix::process::geteuid().as_raw() };
        let caller = access.authenticate(&headers(&[]), own).await.unwrap();
        assert_eq!(caller.subject.as_str(), LOCAL_SUBJECT);
        let other = Peer::Unix { uid: u32::MAX - 1 };
        for (headers, peer) in [(headers(&[]), tcp()), (headers(&[]), other)] {
            let refused = access.authenticate(&headers, peer).await.unwrap_err();
            assert_eq!(refused, Refused::Missing);
        }
        store.revoke_token(new.id(), Time::now()).unwrap();
        assert!(access.authenticate(&bearer, tcp()).await.is_err());
    }

    #[tokio::test]
    async fn address_that_fails_too_often_waits() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("data"), Durability::Disk).unwrap();
        let new = Token::generate();
        store.create_token(record(&new)).unwrap();
        let access = Access::new(Policy::Others, store, None).unwrap();
        let forged = headers(&["Bearer forged"]);
        let mut refusals = Vec::new();
        for _ in 0..30 {
            refusals.push(access.authenticate(&forged, tcp()).await.unwrap_err());
        }
        assert!(matches!(refusals[0], Refused::Invalid { .. }), "{refusals:?}");
        assert!(matches!(refusals[29], Refused::TooMany { .. }), "{refusals:?}");
        // Others there may have valid tokens.
        let valid = headers(&[&format!("Bearer {}", new.expose())]);
        assert_eq!(access.authenticate(&valid, tcp()).await.unwrap().subject.as_str(), "ci");
        // What is no credential, such as a wrong code, counts as well.
        let peer = Peer::Tcp(SocketAddr::from(([192, 0, 2, 3], 1)));
        let refusals: Vec<_> = (0..30).map(|_| access.refuse(peer, String::new())).collect();
        assert!(matches!(refusals[0], Refused::Invalid { .. }), "{refusals:?}");
        assert!(matches!(refusals[29], Refused::TooMany { .. }), "{refusals:?}");
        for odd in [&["Basic eA=="][..], &["Bearer a", "Bearer b"], &["Bearer"]] {
            let peer = Peer::Tcp(SocketAddr::from(([192, 0, 2, 2], 1)));
            let refused = access.authenticate(&headers(odd), peer).await.unwrap_err();
            assert!(matches!(refused, Refused::Invalid { .. }), "{odd:?} {refused:?}");
        }
    }
}
