//! Who sends a request, and which sandbox it is for.
//!
//! A request for a sandbox is known by the headers that E2B's SDKs send, by its host, by its token, or by its
//! signature; all else is for the control API, with a token of the API in `X-API-KEY`.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::service::{Subject, Time};
use sandbox_api::{ByteSize, PORT_TOKEN};
use sandbox_auth::is_equal;
use sandbox_http::{
    Admit, Admitted, Authenticate, ByHost, Caller, Mount, MountAccess, NewSandbox, Peer, Refusal,
    Scope, Unauthenticated, with_path,
};
use sandbox_service::{PreviewHost, Target};
use tokio::sync::Semaphore;

use crate::answers::{not_found, with_cors};
use crate::app::App;
use crate::control::name_of_key;
use crate::error::Error;
use crate::plane::{
    Decided, ENVD_PORT, FILES, PATH, Plane, SANDBOX_ID, SANDBOX_PORT, TRAFFIC_TOKEN, path_below,
    sandbox_in,
};
use crate::router::routers;
use crate::tokens::{SignatureRefusal, SignedFile, envd_token, has, traffic_token};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// How many requests that name no sandbox are looked for at a time: such need no credentials.
const MAX_SEARCHES: usize = 8;

/// E2B's protocol over a service.
#[derive(Clone)]
pub struct E2b {
    app: App,
    auth: Arc<dyn Authenticate>,
    searches: Arc<Semaphore>,
    /// Whether it has hosts: of two mounts one has them.
    has_hosts: bool,
}

impl E2b {
    /// E2B's protocol for those whom this knows. On a runtime, and once for a service: sandboxes end with their
    /// time, until the front end is to stop.
    #[must_use]
    pub fn new(app: App, auth: Arc<dyn Authenticate>) -> Self {
        tokio::spawn(app.clone().end_in_time());
        let searches = Arc::new(Semaphore::new(MAX_SEARCHES));
        Self { app, auth, searches, has_hosts: true }
    }

    /// Where a server has it. Bodies are bounded by what reads them.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let mount = |path, service, own| {
            let (access, max_request) = (MountAccess::Own(own), ByteSize::b(u64::MAX));
            Mount { path, service, access, max_request }
        };
        let own = routers(self.app.clone()).into_iter().map(|(path, service)| {
            mount(path, service, Arc::new(Self { has_hosts: path == PATH, ..self.clone() }) as _)
        });
        let elsewhere = ELSEWHERE.into_iter().map(|path| {
            let none = any(async || StatusCode::NOT_FOUND);
            let below = format!("{path}/{{*rest}}");
            let service = Router::new().route(path, none.clone()).route(&below, none);
            mount(path, service, Arc::new(Elsewhere) as _)
        });
        own.chain(elsewhere).collect()
    }

    async fn admitted(&self, head: &mut Parts, peer: Peer) -> Result<Admitted, Response> {
        if head.uri.path() == FILES {
            // Beside the API a signature is all that counts.
            for name in [SANDBOX_ID, SANDBOX_PORT, ACCESS_TOKEN, AUTHORIZATION] {
                head.headers.remove(name);
            }
        }
        let is_own =
            head.extensions.get::<ByHost>().is_some() && head.headers.contains_key(SANDBOX_ID);
        let plane = Plane::of(path_below(&head.uri), &head.headers);
        // What runs at a host of its own answers for itself.
        let is_own = is_own && matches!(plane, Plane::Sandbox { port, .. } if port != ENVD_PORT);
        // A page that runs elsewhere may use it, with a token.
        if is_preflight(head) && !is_own {
            return Err(StatusCode::NO_CONTENT.into_response());
        }
        let admitted = match plane {
            Plane::Control => self.admit_control(head, peer).await.map_err(Error::into_response),
            Plane::Sandbox { id, port } => self.admit_sandbox(head, id, port, is_own).await,
        };
        head.headers.remove(API_KEY);
        let (admitted, decided) = admitted?;
        decided.put(&mut head.headers);
        Ok(admitted)
    }

    /// A caller of the control API. It needs a token, wherever the request comes from.
    async fn admit_control(
        &self,
        head: &mut Parts,
        peer: Peer,
    ) -> Result<(Admitted, Decided), Error> {
        let key = head.headers.get(API_KEY).and_then(|key| key.to_str().ok());
        if let Some(Ok(key)) = key.map(|key| HeaderValue::try_from(format!("Bearer {key}"))) {
            head.headers.insert(AUTHORIZATION, key);
        }
        let caller = match head.headers.contains_key(AUTHORIZATION) {
            true => self.auth.authenticate(&head.headers, peer).await,
            false => Err(Unauthenticated::Missing),
        };
        let caller = caller.map_err(refused_caller)?;
        if !caller.may(Scope::Sandboxes) {
            let message = format!("the API key lacks the scope '{}'", Scope::Sandboxes);
            return Err(Error::new(StatusCode::FORBIDDEN, message));
        }
        head.headers.remove(AUTHORIZATION);
        let path = path_below(&head.uri);
        let target = sandbox_in(path).map_or(Target::Here, Target::Sandbox);
        if head.method == Method::POST && matches!(path, "/sandboxes" | "/v2/sandboxes") {
            let name = name_of_key(&head.headers)?;
            head.extensions.insert(NewSandbox { name });
        }
        Ok((Admitted { caller: Some(caller), is_public: false, target }, Decided::Control))
    }

    /// A request for a sandbox, with its token or signature where that is needed. The traffic token is checked
    /// where the sandbox is: whether it is needed is known there.
    async fn admit_sandbox(
        &self,
        head: &mut Parts,
        id: Option<String>,
        port: u16,
        is_own: bool,
    ) -> Result<(Admitted, Decided), Response> {
        let response = |error: Error| error.into_response();
        let service = self.app.service();
        let (id, subject) = match id {
            Some(id) => {
                let subject =
                    service.subject_of(&id).await.map_err(|error| response(error.into()))?;
                let subject = subject.ok_or_else(|| not_found(&id))?;
                (id, subject)
            }
            None => self.find_by_credentials(head).await.map_err(response)?,
        };
        let (envd, traffic) = (envd_token(service, &id), traffic_token(service, &id));
        let is_public = if port != ENVD_PORT {
            // A caller that may do everything in a sandbox may reach its ports, as SDKs without another token do.
            if has(&head.headers, &ACCESS_TOKEN, &envd)
                && let Ok(traffic) = HeaderValue::from_str(&traffic)
            {
                head.headers.insert(TRAFFIC_TOKEN, traffic);
            }
            !has(&head.headers, &TRAFFIC_TOKEN, &traffic)
        } else if is_health(head) {
            true
        } else {
            check_envd(head, &envd).map_err(response)?;
            if !head.headers.contains_key(ACCESS_TOKEN) {
                // A signature is for the user that it names: another one's home has another file of this path.
                head.headers.remove(AUTHORIZATION);
            }
            false
        };
        head.headers.remove(ACCESS_TOKEN);
        let caller = Some(Caller { subject, scopes: vec![Scope::Sandboxes] });
        let target = Target::Sandbox(id.clone());
        Ok((Admitted { caller, is_public, target }, Decided::Sandbox { id, port, is_own }))
    }

    /// The sandbox whose token or signature a request has. All are tried: there are as many as the server keeps
    /// at one time, and one costs two digests.
    async fn find_by_credentials(&self, head: &Parts) -> Result<(String, Subject), Error> {
        let service = self.app.service();
        let file = SignedFile::of_query(head.uri.query().unwrap_or_default());
        let given = head.headers.get(ACCESS_TOKEN).and_then(|token| token.to_str().ok());
        if given.is_none() && !file.is_signed() {
            let message = "the request names no sandbox: it has neither the header E2b-Sandbox-Id nor a \
                           token or signature";
            return Err(Error::new(StatusCode::UNAUTHORIZED, message));
        }
        let _one_of_few = self.searches.acquire().await;
        let now = Time::now();
        for (id, subject) in service.sandbox_owners().await? {
            let token = envd_token(service, &id);
            match given {
                Some(given) if is_equal(given.as_bytes(), token.as_bytes()) => {
                    return Ok((id, subject));
                }
                Some(_) => {}
                None => match file.check(operation(&head.method), &token, now) {
                    Err(SignatureRefusal::Invalid) => {}
                    // What is over is said where every other one is checked too.
                    _ => return Ok((id, subject)),
                },
            }
        }
        Err(unauthorized(match given {
            Some(_) => "invalid access token".to_owned(),
            None => SignatureRefusal::Invalid.to_string(),
        }))
    }
}

/// The paths of E2B's API without that of the mount, as a client asks for them whose URL lacks it.
const ELSEWHERE: [&str; 3] = ["/sandboxes", "/v2/sandboxes", "/templates"];

/// Answers there, in words that an SDK shows.
struct Elsewhere;

impl Admit for Elsewhere {
    fn route<'a>(&'a self, _: &'a str, _: &'a mut Parts) -> BoxFuture<'a, bool> {
        std::future::ready(false).boxed()
    }

    fn admit<'a>(&'a self, _: &'a mut Parts, _: Peer) -> BoxFuture<'a, Result<Admitted, Response>> {
        let message = format!(
            "E2B's API is at {PATH} of this server: E2B_API_URL and E2B_SANDBOX_URL end with it"
        );
        let refused = Error::new(StatusCode::NOT_FOUND, message).into_response();
        std::future::ready(Err(with_cors(refused))).boxed()
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        refused(refusal)
    }
}

fn is_preflight(head: &Parts) -> bool {
    head.method == Method::OPTIONS && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Whether it is the question whether a sandbox runs, which needs no token.
fn is_health(head: &Parts) -> bool {
    head.method == Method::GET && path_below(&head.uri) == "/health"
}

/// What a signature is for.
fn operation(method: &Method) -> &'static str {
    if matches!(*method, Method::GET | Method::HEAD) { "read" } else { "write" }
}

/// A token decides alone; a file may be signed in its place.
fn check_envd(head: &Parts, token: &str) -> Result<(), Error> {
    let is_file = path_below(&head.uri) == "/files";
    match head.headers.get(ACCESS_TOKEN) {
        Some(_) if has(&head.headers, &ACCESS_TOKEN, token) => Ok(()),
        Some(_) => Err(unauthorized("invalid access token".to_owned())),
        None if is_file => {
            let file = SignedFile::of_query(head.uri.query().unwrap_or_default());
            let checked = file.check(operation(&head.method), token, Time::now());
            checked.map_err(|refusal| unauthorized(refusal.to_string()))
        }
        None => Err(unauthorized("the request has no access token".to_owned())),
    }
}

/// A refusal of the server around it, as E2B's API says it.
fn refused(refusal: Refusal) -> Response {
    let problem = refusal.problem().clone();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let whole = refusal.into_response();
    let mut response = Error::new(status, problem.detail).into_response();
    if let Some(time) = whole.headers().get(RETRY_AFTER) {
        response.headers_mut().remove("should-retry");
        response.headers_mut().insert(RETRY_AFTER, time.clone());
    }
    response.extensions_mut().insert(problem.kind);
    response
}

fn unauthorized(message: String) -> Error {
    Error::new(StatusCode::UNAUTHORIZED, message)
}

fn refused_caller(error: Unauthenticated) -> Error {
    match error {
        Unauthenticated::Missing => unauthorized(
            "the request has no API key: `sandboxctl token create` makes one for E2B_API_KEY"
                .to_owned(),
        ),
        Unauthenticated::Invalid { reason } => {
            tracing::debug!(reason, "an API key is not valid");
            unauthorized("the API key is not valid".to_owned())
        }
        Unauthenticated::TooMany { retry_after } => {
            let message = "too many failed attempts from this address";
            Error::new(StatusCode::TOO_MANY_REQUESTS, message).retry_after(Some(retry_after))
        }
        Unauthenticated::Unavailable { reason } => {
            tracing::error!(reason, "API keys cannot be checked");
            let message = "API keys cannot be checked now";
            let soon = Some(std::time::Duration::from_secs(1));
            Error::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(soon)
        }
    }
}

impl Admit for E2b {
    fn route<'a>(&'a self, host: &'a str, head: &'a mut Parts) -> BoxFuture<'a, bool> {
        async move {
            let domain = self.app.settings().domain.as_deref();
            let label = domain.and_then(|domain| host.strip_suffix(domain)?.strip_suffix('.'));
            let whole = head.uri.path_and_query().map_or("/", |it| it.as_str());
            let uri = with_path(&head.uri, &format!("{PATH}{whole}"));
            let (true, Some(label), Some(uri)) = (self.has_hosts, label, uri) else { return false };
            if label == "api" {
                head.headers.remove(SANDBOX_ID);
                head.headers.remove(SANDBOX_PORT);
                head.uri = uri;
                return true;
            }
            // One with a token of a preview is that.
            let Some(PreviewHost { port, sandbox: id, token: None }) = PreviewHost::parse(label)
            else {
                return false;
            };
            if head.headers.contains_key(PORT_TOKEN) {
                return false;
            }
            // Other sandboxes have previews; what is not there is answered as E2B does.
            let service = self.app.service();
            if let Ok(Some(subject)) = service.subject_of(&id).await
                && self.app.find(&subject, &id).await.is_err()
            {
                return false;
            }
            let Ok(value) = HeaderValue::from_str(&id) else { return false };
            head.headers.insert(SANDBOX_ID, value);
            head.headers.insert(SANDBOX_PORT, port.into());
            head.uri = uri;
            true
        }
        .boxed()
    }

    fn admit<'a>(
        &'a self,
        head: &'a mut Parts,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Admitted, Response>> {
        async move { self.admitted(head, peer).await.map_err(with_cors) }.boxed()
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        with_cors(refused(refusal))
    }
}
