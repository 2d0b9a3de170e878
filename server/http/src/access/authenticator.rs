//! How requests are authenticated: API tokens of the store, JSON Web Tokens, and users of a socket.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::service::Time;
use sandbox_auth::{Caller, Failures, JwtKeys, StoredToken, Token, local_caller};
use sandbox_store::{Store, TokenRecord};

use super::{Authenticate, Peer, Unauthenticated};

/// The most bytes of an `Authorization` header: a JSON Web Token and its scheme.
const MAX_HEADER_BYTES: usize = sandbox_auth::MAX_JWT_BYTES + 16;

/// Checks credentials. It is told the clock by the system and nothing by the network.
pub struct Authenticator {
    store: Store,
    keys: RwLock<Option<JwtKeys>>,
    own_uid: u32,
    /// Whether everybody is the server's own user.
    is_open: bool,
    failures: Mutex<Failures>,
}

impl Authenticator {
    /// With the tokens of this store, and of an issuer if there are keys. The user of this id is
    /// known by a UNIX socket.
    #[must_use]
    pub fn new(store: Store, keys: Option<JwtKeys>, own_uid: u32) -> Self {
        let (keys, failures) = (RwLock::new(keys), Mutex::default());
        Self { store, keys, own_uid, is_open: false, failures }
    }

    /// Without authentication: everybody is the server's own user.
    #[must_use]
    pub fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// Replaces the keys of the issuer.
    pub fn set_keys(&self, keys: Option<JwtKeys>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever shows something is judged by that, over a socket too.
    async fn check(&self, headers: &HeaderMap, peer: Peer) -> Result<Caller, Unauthenticated> {
        let Some(credentials) = credentials(headers)? else {
            let own = match peer {
                _ if self.is_open => local_caller(self.own_uid, self.own_uid),
                Peer::Unix { uid } => local_caller(uid, self.own_uid),
                Peer::Tcp(_) => None,
            };
            return own.ok_or(Unauthenticated::Missing);
        };
        let address = match peer {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix { .. } => None,
        };
        let wait = address.and_then(|address| self.failures().wait(address, Instant::now()));
        if let Some(retry_after) = wait {
            return Err(Unauthenticated::TooMany { retry_after });
        }
        let checked = match Token::parse(credentials) {
            Some(token) => self.check_token(token).await,
            None => self.check_jwt(credentials),
        };
        self.count(address, &checked);
        checked
    }

    fn count(&self, address: Option<IpAddr>, checked: &Result<Caller, Unauthenticated>) {
        let Some(address) = address else { return };
        match checked {
            Ok(_) => self.failures().clear(address),
            Err(Unauthenticated::Invalid { .. }) => self.failures().add(address, Instant::now()),
            Err(_) => {}
        }
    }

    async fn check_token(&self, token: Token) -> Result<Caller, Unauthenticated> {
        let store = self.store.clone();
        let check = move || {
            let stored = store.token(token.id()).map_err(|error| unavailable(&error))?;
            let stored = stored.map(stored_token);
            let now = Time::now();
            let caller = token.check(stored.as_ref(), now).map_err(|refusal| invalid(&refusal))?;
            // When it was last used is for its owner to know; that this fails is no reason to refuse.
            if let Err(error) = store.use_token(token.id(), now) {
                tracing::warn!(error = &error as &dyn std::error::Error, "a use is not recorded");
            }
            Ok(caller)
        };
        let checked = tokio::task::spawn_blocking(check).await;
        checked.unwrap_or_else(|error| Err(unavailable(&error)))
    }

    fn check_jwt(&self, token: &str) -> Result<Caller, Unauthenticated> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        match keys {
            Some(keys) => keys.check(token).map_err(|refusal| invalid(&refusal)),
            None => Err(Unauthenticated::Invalid { reason: "it is no API token".to_owned() }),
        }
    }
}

impl Authenticate for Authenticator {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Caller, Unauthenticated>> {
        self.check(headers, peer).boxed()
    }
}

/// What the caller shows, if it shows something.
fn credentials(headers: &HeaderMap) -> Result<Option<&str>, Unauthenticated> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refuse = |reason: &str| Err(Unauthenticated::Invalid { reason: reason.to_owned() });
    if values.next().is_some() {
        return refuse("there are two");
    }
    if value.len() > MAX_HEADER_BYTES {
        return refuse("it is too long");
    }
    match value.to_str().ok().and_then(|text| text.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => refuse("it is not of the scheme Bearer"),
    }
}

fn stored_token(record: TokenRecord) -> StoredToken {
    let TokenRecord { hash, subject, scopes, expires_at, revoked_at, .. } = record;
    // A scope of a later version is none of this one's.
    let scopes = scopes.iter().filter_map(|name| name.parse().ok()).collect();
    StoredToken { hash, subject, scopes, expires_at, revoked_at }
}

fn invalid(refusal: &dyn std::error::Error) -> Unauthenticated {
    Unauthenticated::Invalid { reason: refusal.to_string() }
}

fn unavailable(error: &dyn std::error::Error) -> Unauthenticated {
    Unauthenticated::Unavailable { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use sandbox_api::service::Subject;
    use sandbox_auth::Scope;

    const PEER: &str = "192.0.2.1:7";

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(address.parse().unwrap())
    }

    /// An authenticator, a valid token of it, and its directory.
    fn authenticator() -> (Authenticator, String, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("data")).unwrap();
        let new = Token::generate();
        store
            .create_token(TokenRecord {
                id: new.id.clone(),
                hash: new.hash,
                subject: Subject::new("alice").unwrap(),
                scopes: vec!["executions:read".to_owned(), "of:later".to_owned()],
                created_at: Time::now(),
                expires_at: None,
                revoked_at: None,
                last_used_at: None,
            })
            .unwrap();
        (Authenticator::new(store, None, 1000), new.token.expose(), dir)
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let value = |text: &&str| (AUTHORIZATION, HeaderValue::from_str(text).unwrap());
        let mut headers = HeaderMap::new();
        values.iter().map(value).for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    #[tokio::test]
    async fn token_of_the_store_is_known_and_its_use_recorded() {
        let (auth, token, _dir) = authenticator();
        let caller = auth.check(&headers(&[&format!("bearer {token}")]), tcp(PEER)).await.unwrap();
        assert_eq!(caller.subject.as_str(), "alice");
        assert_eq!(caller.scopes, [Scope::ExecutionsRead]);
        let id = Token::parse(&token).unwrap().id().to_owned();
        assert!(auth.store.token(&id).unwrap().unwrap().last_used_at.is_some());
        auth.store.revoke_token(&id, Time::now()).unwrap();
        let error = auth.check(&headers(&[&format!("Bearer {token}")]), tcp(PEER)).await;
        let reason = "the token was revoked".to_owned();
        assert_eq!(error, Err(Unauthenticated::Invalid { reason }));
    }

    #[tokio::test]
    async fn only_the_servers_user_needs_no_token_over_a_socket() {
        let (auth, token, _dir) = authenticator();
        let none = headers(&[]);
        let own = auth.check(&none, Peer::Unix { uid: 1000 }).await.unwrap();
        assert!(own.may(Scope::Admin));
        for peer in [Peer::Unix { uid: 0 }, tcp("127.0.0.1:7")] {
            assert_eq!(auth.check(&none, peer).await, Err(Unauthenticated::Missing), "{peer}");
        }
        let shown = headers(&[&format!("Bearer {token}")]);
        let caller = auth.check(&shown, Peer::Unix { uid: 1000 }).await.unwrap();
        assert_eq!(caller.subject.as_str(), "alice");
        let auth = auth.open();
        assert_eq!(auth.check(&none, tcp("127.0.0.1:7")).await.unwrap(), own);
    }

    #[tokio::test]
    async fn address_that_fails_often_waits_and_others_do_not() {
        let (auth, token, _dir) = authenticator();
        let wrong = headers(&["Bearer forged"]);
        let odd = [
            headers(&["Basic YTpi"]),
            headers(&[""]),
            headers(&["Bearer a", "Bearer b"]),
            headers(&[&format!("Bearer {}", "x".repeat(MAX_HEADER_BYTES))]),
        ];
        for headers in odd {
            let error = auth.check(&headers, tcp("192.0.2.3:7")).await;
            assert!(matches!(error, Err(Unauthenticated::Invalid { .. })), "{error:?}");
        }
        let mut tries = 0;
        while !matches!(auth.check(&wrong, tcp(PEER)).await, Err(Unauthenticated::TooMany { .. })) {
            tries += 1;
            assert!(tries < 100);
        }
        let right = headers(&[&format!("Bearer {token}")]);
        assert!(matches!(
            auth.check(&right, tcp(PEER)).await,
            Err(Unauthenticated::TooMany { .. })
        ));
        assert!(auth.check(&right, tcp("192.0.2.2:7")).await.is_ok());
    }
}
