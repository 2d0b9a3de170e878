//! The console, and the sessions of browsers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::request::{Builder, Parts};
use axum::http::{HeaderMap, Method, Request};
use axum::response::Response;
use axum::routing::any;
use futures_util::future::{BoxFuture, FutureExt as _};
use sandbox_api::ByteSize;
use sandbox_api::service::{Subject, Time};
use sandbox_http::{
    Admit, Admitted, Authenticate, Caller, Http, HttpConfig, Mount, MountAccess, Peer, Refusal,
    Shutdown, Unauthenticated,
};
use sandbox_service::Target;
use serde_json::{Value, json};

use super::nodes::two_nodes;
use super::ports::{echo, has_header, seen};
use super::{Answer, Api, Tokens, World, api};

/// Where a developer's console is.
const HOST: &str = "127.0.0.1:8470";
const ORIGIN: &str = "http://127.0.0.1:8470";

/// A request without credentials.
fn plain(method: Method, path: &str) -> Builder {
    let peer = Peer::Tcp(([127, 0, 0, 1], 7).into());
    Request::builder().method(method).uri(path).header("host", HOST).extension(peer)
}

/// What a browser has of a session: its cookie, and what its page keeps.
#[derive(Clone)]
struct Signed {
    cookie: String,
    proof: String,
}

impl Signed {
    fn of(answer: &Answer) -> Self {
        let proof = answer.json()["proof"].as_str().unwrap().to_owned();
        Self { cookie: cookie(answer), proof }
    }

    fn with_cookie(&self, cookie: impl Into<String>) -> Self {
        Self { cookie: cookie.into(), ..self.clone() }
    }
}

/// A request of the console, as browsers send it, with this session.
fn of_page(method: Method, path: &str, Signed { cookie, proof }: &Signed) -> Builder {
    plain(method, path)
        .header("sec-fetch-site", "same-origin")
        .header("cookie", format!("theme=dark; {cookie}"))
        .header("session-proof", proof)
}

fn empty(request: Builder) -> Request<Body> {
    request.body(Body::empty()).unwrap()
}

fn sign_in(with: &Value) -> Request<Body> {
    let request = plain(Method::POST, "/v1/session").header("origin", ORIGIN);
    let request = request.header("content-type", "application/json");
    request.body(with.to_string().into()).unwrap()
}

/// The cookie that an answer sets, without its attributes.
fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

impl Api {
    /// A session with this token.
    async fn session(&self, token: &str) -> Signed {
        let answer = self.send(sign_in(&json!({ "token": token }))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Signed::of(&answer)
    }

    async fn status(&self, request: Builder) -> u16 {
        self.send(empty(request)).await.status.as_u16()
    }

    /// With an authenticator of its own.
    async fn with_auth(config: HttpConfig, auth: Arc<dyn Authenticate>) -> Self {
        let (world, shutdown) = (World::new().await, Shutdown::default());
        let (service, mounts) = (world.service.clone(), Vec::new());
        let http = Http::new(config, service, auth, mounts, shutdown.clone());
        Self { router: http.router(), world, shutdown }
    }
}

#[tokio::test]
async fn console_is_a_page_that_no_other_can_frame_or_script() {
    let api = api().await;
    let page = api.send(empty(plain(Method::GET, "/"))).await;
    assert_eq!((page.status.as_u16(), page.header("cache-control")), (200, "no-store"));
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    for part in ["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe-eval") && !policy.contains("http"), "{policy}");
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(page.header(name), value);
    }
    for missing in ["/assets/none.js", "/assets/index.html", "/assets/..%2findex.html"] {
        assert_eq!(api.send(empty(plain(Method::GET, missing))).await.problem().status, 404);
    }
    let docs = api.send(empty(plain(Method::GET, "/docs"))).await;
    let leads = (docs.status.as_u16(), docs.header("location"));
    // With the console, and without.
    assert!(leads == (308, "/#/reference") || leads == (302, "/v1/openapi.json"), "{leads:?}");
    assert_eq!(api.status(plain(Method::GET, "/").header("host", "evil.example")).await, 400);
    let elsewhere = Request::get("/").header("host", "evil.example");
    assert_eq!(api.status(elsewhere).await, 421);
}

#[tokio::test]
async fn token_becomes_a_session_that_scripts_cannot_read() {
    let api = api().await;
    let answer = api.send(sign_in(&json!({ "token": "alice" }))).await;
    let mut signed = answer.json();
    assert_eq!(signed["subject"], "alice");
    assert_eq!(signed["scopes"], json!(["executions:read", "executions:write", "sandboxes"]));
    let ends: Time = signed["expires_at"].as_str().unwrap().parse().unwrap();
    let lasts = ends.since(Time::now()).as_secs();
    assert!((43_000..=43_200).contains(&lasts), "{lasts}");
    let set = answer.header("set-cookie");
    assert!(set.contains("; Path=/; HttpOnly; SameSite=Strict; Max-Age=43"), "{set}");
    assert!(!set.contains("alice") && !set.contains("Domain"), "{set}");
    let session = Signed::of(&answer);
    let found = api.send(empty(of_page(Method::GET, "/v1/session", &session))).await;
    // The proof is said once.
    signed["proof"] = Value::Null;
    assert_eq!((found.status.as_u16(), found.json()), (200, signed));
    let post = of_page(Method::POST, "/v1/executions", &session).header("origin", ORIGIN);
    let post = post.header("content-type", "application/json");
    let run = api.send(post.body(r#"{"script":"return 1"}"#.into()).unwrap()).await;
    assert_eq!(run.status, 202);
    let other = session.with_cookie("a=b");
    assert_eq!(api.status(of_page(Method::GET, "/v1/session", &other)).await, 401);

    let gone = api.send(empty(of_page(Method::DELETE, "/v1/session", &session))).await;
    assert_eq!(gone.status, 204);
    let set = gone.header("set-cookie");
    assert!(set.starts_with("sandboxctl_session_8470=;") && set.contains("Max-Age=0"), "{set}");
}

#[tokio::test]
async fn session_counts_for_pages_of_this_server_alone() {
    let api = api().await;
    let session = api.session("alice").await;
    let Signed { cookie, proof } = &session;
    let usage = || {
        let request = plain(Method::GET, "/v1/usage").header("cookie", cookie);
        request.header("session-proof", proof)
    };
    assert_eq!(api.status(usage()).await, 401);
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(api.status(usage().header("sec-fetch-site", site)).await, 401, "{site}");
    }
    assert_eq!(api.status(usage().header("origin", ORIGIN)).await, 200);
    // A page at another port of the same host gets its cookies sent, and is another origin.
    for origin in ["http://127.0.0.1:3000", "https://evil.example", "null"] {
        let own = usage().header("sec-fetch-site", "same-site").header("origin", origin);
        assert_eq!(api.status(own).await, 403, "{origin}");
    }
    // Any other credential counts in its place, valid or not.
    for (token, status, subject) in [("bob", 200, Some("bob")), ("forged", 401, None)] {
        let both = of_page(Method::GET, "/v1/session", &session);
        let both = api.send(empty(both.header("authorization", format!("Bearer {token}")))).await;
        assert_eq!((both.status.as_u16(), both.json()["subject"].as_str()), (status, subject));
    }
    // An invented one takes nothing away.
    let beside = session.with_cookie(format!("sandboxctl_session_8470=junk; {cookie}"));
    assert_eq!(api.status(of_page(Method::GET, "/v1/usage", &beside)).await, 200);
    for odd in [format!("{cookie}x"), "sandboxctl_session_8470=".into()] {
        let odd = session.with_cookie(odd);
        assert_eq!(api.status(of_page(Method::GET, "/v1/usage", &odd)).await, 401);
    }
}

#[tokio::test]
async fn cookie_without_the_proof_of_its_session_is_no_session() {
    let api = api().await;
    let (own, planted) = (api.session("alice").await, api.session("bob").await);
    let status = async |proof: &str| {
        let session = Signed { proof: proof.to_owned(), ..own.clone() };
        api.status(of_page(Method::GET, "/v1/usage", &session)).await
    };
    // Who got the cookie of a browser has nothing: a server at another port of its host, to which it is sent.
    let upper = own.proof.to_uppercase();
    for proof in ["", "x", &own.proof[1..], &planted.proof, &upper] {
        assert_eq!(status(proof).await, 401, "{proof}");
    }
    assert_eq!(status(&own.proof).await, 200);
    let bare = plain(Method::GET, "/v1/usage").header("origin", ORIGIN);
    assert_eq!(api.status(bare.header("cookie", &own.cookie)).await, 401);
    // Nor does a cookie that such a server sets change the caller's subject, or sign it out, wherever it stands.
    for (cookies, subject) in [
        (format!("{}; {}", planted.cookie, own.cookie), Some("alice")),
        (format!("{}; {}", own.cookie, planted.cookie), Some("alice")),
        (planted.cookie.clone(), None),
    ] {
        let request = of_page(Method::GET, "/v1/session", &own.with_cookie(cookies));
        let found = api.send(empty(request)).await;
        assert_eq!(found.json()["subject"].as_str(), subject);
    }
    // A WebSocket has it among its subprotocols.
    for (protocols, status) in [
        (format!("sandboxctl.process.1, session-proof.{}", own.proof), 200),
        (format!("session-proof.{}", planted.proof), 401),
    ] {
        let socket = plain(Method::GET, "/v1/usage").header("origin", ORIGIN);
        let socket = socket.header("cookie", &own.cookie);
        let socket = socket.header("sec-websocket-protocol", protocols);
        assert_eq!(api.status(socket).await, status);
    }
}

#[tokio::test]
async fn sign_in_is_for_own_pages_and_replaces_what_was_there() {
    let api = api().await;
    let with = |origin: Option<&str>, host: &'static str| {
        let mut request = sign_in(&json!({ "token": "alice" }));
        let headers = request.headers_mut();
        headers.insert("host", host.parse().unwrap());
        headers.remove("origin");
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().unwrap());
        }
        request
    };
    let refused = api.send(with(None, HOST)).await;
    assert!(refused.problem().status == 403 && !refused.headers.contains_key("set-cookie"));
    assert_eq!(api.send(with(Some("https://evil.example"), HOST)).await.problem().status, 403);
    // Where others may listen, over TLS alone.
    let open = api.send(with(Some("http://api.example.org"), "api.example.org")).await;
    assert!(open.problem().hint.unwrap().contains("--tls-cert"));
    let secure = api.send(with(Some("https://api.example.org"), "api.example.org")).await;
    let set = secure.header("set-cookie");
    assert!(set.starts_with("__Host-sandboxctl_session=") && set.ends_with("; Secure"), "{set}");

    // A planted session is not used.
    let planted = api.session("bob").await;
    let mut request = sign_in(&json!({ "token": "alice" }));
    request.headers_mut().insert("cookie", planted.cookie.parse().unwrap());
    let own = Signed::of(&api.send(request).await);
    assert!(own.cookie != planted.cookie && own.proof != planted.proof);
    let found = api.send(empty(of_page(Method::GET, "/v1/session", &own))).await;
    assert_eq!(found.json()["subject"], "alice");

    for (with, status) in [
        (json!({ "token": "forged" }), 401),
        (json!({ "token": "forged\n\u{e9}" }), 401),
        (json!({ "token": "flood" }), 429),
        (json!({ "token": "broken" }), 503),
        (json!({ "token": "x".repeat(4000) }), 422),
        (json!({ "token": "alice", "code": "x" }), 422),
        (json!({}), 422),
        (json!({ "code": "alice" }), 401),
    ] {
        let answer = api.send(sign_in(&with)).await;
        assert_eq!(answer.problem().status, status, "{with}");
        assert!(!answer.headers.contains_key("set-cookie"), "{with}");
    }
}

#[tokio::test]
async fn code_of_a_link_signs_in_once() {
    let (world, shutdown) = (World::new().await, Shutdown::default());
    let (service, config) = (world.service.clone(), HttpConfig::default());
    let http = Http::new(config, service, Arc::new(Tokens), Vec::new(), shutdown.clone());
    let code = http.sign_in_code("alice");
    let api = Api { router: http.router(), world, shutdown };
    let answer = api.send(sign_in(&json!({ "code": code }))).await;
    assert_eq!(answer.json()["subject"], "alice");
    let own = of_page(Method::GET, "/v1/usage", &Signed::of(&answer));
    assert_eq!(api.status(own).await, 200);
    assert_eq!(api.send(sign_in(&json!({ "code": code }))).await.problem().status, 401);
}

/// Knows one token, until it is revoked.
#[derive(Default)]
struct Revocable(AtomicBool);

impl Authenticate for Revocable {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Caller, Unauthenticated>> {
        match self.0.load(Ordering::SeqCst) {
            true => async { Err(Unauthenticated::Invalid { reason: "revoked".into() }) }.boxed(),
            false => Tokens.authenticate(headers, peer),
        }
    }

    fn expiry<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Option<Time>> {
        async { Some(Time::now().after(std::time::Duration::from_secs(60))) }.boxed()
    }
}

#[tokio::test]
async fn session_ends_with_its_token() {
    let auth = Arc::<Revocable>::default();
    let api = Api::with_auth(HttpConfig::default(), auth.clone()).await;
    let answer = api.send(sign_in(&json!({ "token": "alice" }))).await;
    let ends: Time = answer.json()["expires_at"].as_str().unwrap().parse().unwrap();
    assert!(ends.since(Time::now()).as_secs() <= 60);
    let session = Signed::of(&answer);
    assert_eq!(api.status(of_page(Method::GET, "/v1/usage", &session)).await, 200);
    auth.0.store(true, Ordering::SeqCst);
    assert_eq!(api.status(of_page(Method::GET, "/v1/usage", &session)).await, 401);
}

#[tokio::test]
async fn where_no_token_is_needed_there_is_no_session() {
    let config = HttpConfig { has_auth: false, ..HttpConfig::default() };
    let api = Api::with_auth(config, Arc::new(Tokens)).await;
    let answer = api.send(sign_in(&json!({ "token": "alice" }))).await;
    let signed = answer.json();
    assert_eq!((answer.status.as_u16(), &signed["expires_at"]), (200, &Value::Null));
    assert_eq!(signed["proof"], Value::Null);
    assert!(!answer.headers.contains_key("set-cookie"));
    let known = plain(Method::GET, "/v1/session").header("authorization", "Bearer alice");
    assert_eq!(api.send(empty(known)).await.json()["expires_at"], Value::Null);
}

#[tokio::test]
async fn session_does_not_reach_a_guest() {
    let api = api().await;
    let session = api.session("alice").await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/");
    let answer = api.ask(empty(of_page(Method::GET, &path, &session))).await;
    let seen = seen(&answer);
    assert!(!has_header(&seen, "cookie") && !has_header(&seen, "authorization"), "{seen:#}");
    assert!(!has_header(&seen, "session-proof"), "{seen:#}");
}

/// What is mounted answers with the cookies and the credential that it gets.
async fn show(headers: HeaderMap) -> String {
    format!("{:?} {:?}", headers.get("cookie"), headers.get("authorization"))
}

fn shown() -> Router {
    Router::new().route("/mcp", any(show)).route("/own/a", any(show))
}

/// Lets everybody in.
struct Open;

impl Admit for Open {
    fn route<'a>(&'a self, _: &'a str, _: &'a mut Parts) -> BoxFuture<'a, bool> {
        async { false }.boxed()
    }

    fn admit<'a>(&'a self, _: &'a mut Parts, _: Peer) -> BoxFuture<'a, Result<Admitted, Response>> {
        let caller = Some(Caller { subject: Subject::new("alice").unwrap(), scopes: Vec::new() });
        async { Ok(Admitted { caller, is_public: false, target: Target::Here }) }.boxed()
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        axum::response::IntoResponse::into_response(refusal)
    }
}

#[tokio::test]
async fn session_does_not_reach_what_is_mounted_nor_another_node() {
    let (world, shutdown) = (World::new().await, Shutdown::default());
    let (access, max_request) = (MountAccess::Own(Arc::new(Open)), ByteSize::b(1 << 20));
    let mount = Mount { path: "/own", service: shown(), access, max_request };
    let (service, config) = (world.service.clone(), HttpConfig::default());
    let http = Http::new(config, service, Arc::new(Tokens), vec![mount], shutdown.clone());
    let api = Api { router: http.router(), world, shutdown };
    let session = api.session("alice").await;
    let got = api.ask(empty(of_page(Method::GET, "/own/a", &session))).await;
    assert_eq!(String::from_utf8_lossy(&got.body), "Some(\"theme=dark\") None");

    // It is opened at the node that it came to; what is sent on names the caller as ever.
    let (gateway, _owner, _map) = two_nodes(shown()).await;
    let session = gateway.api.session("alice").await;
    let got = gateway.api.ask(empty(of_page(Method::GET, "/mcp", &session))).await;
    assert_eq!(String::from_utf8_lossy(&got.body), "Some(\"theme=dark\") None");
    assert_eq!(gateway.api.ask(empty(plain(Method::GET, "/mcp"))).await.status, 401);
}

#[tokio::test]
async fn administrator_sees_what_all_subjects_do() {
    let api = api().await;
    let (alices, mine) = (api.run("return 1").await, api.session("admin").await);
    let get = async |path: &str| api.send(empty(of_page(Method::GET, path, &mine))).await;
    let listed = get("/v1/executions?subject=*").await.json();
    assert_eq!(listed["executions"][0]["id"], *alices);
    assert_eq!(listed["executions"][0]["subject"], "alice");
    for (query, count) in [("subject=bob", 0), ("subject=alice", 1), ("", 0)] {
        let listed = get(&format!("/v1/executions?{query}")).await.json();
        assert_eq!(listed["executions"].as_array().unwrap().len(), count, "{query}");
    }
    assert_eq!(get("/v1/executions?subject=").await.problem().status, 422);
    let refused = api.get("/v1/executions?subject=alice").await;
    assert_eq!(refused.problem().status, 403);
    assert!(refused.header("www-authenticate").contains("scope=\"admin\""));
    let own = api.get("/v1/executions").await.json();
    assert_eq!(own["executions"][0].get("subject"), None);

    let status = get("/v1/service").await.json();
    let of_alice = &status["subjects"][0];
    assert_eq!((&of_alice["subject"], &of_alice["executions_today"]), (&json!("alice"), &json!(1)));
    assert_eq!((&status["nodes"], &status["more_subjects"]), (&json!([]), &json!(false)));
    assert_eq!(api.get("/v1/service").await.problem().status, 403);
}

#[tokio::test]
async fn lists_are_filtered_by_image_and_time() {
    let api = api().await;
    let command = json!({ "image": "debian:13", "command": { "program": "true" } });
    let id = api.post("/v1/executions?wait=60", &command).await.json()["id"].clone();
    api.run("return 1").await;
    let count = async |query: &str| {
        let listed = api.get(&format!("/v1/executions?{query}")).await.json();
        listed["executions"].as_array().unwrap().len()
    };
    let listed = api.get("/v1/executions?image=debian:13").await.json();
    assert_eq!((&listed["executions"][0]["id"], count("image=debian:13").await), (&id, 1));
    assert_eq!(listed["executions"][0]["image"], "debian:13");
    for (query, expected) in [
        ("image=debian:12", 0),
        ("since=2020-01-01T00:00:00Z", 2),
        ("until=2020-01-01T00:00:00Z", 0),
        ("since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z", 0),
    ] {
        assert_eq!(count(query).await, expected, "{query}");
    }
    assert_eq!(api.get("/v1/executions?since=yesterday").await.problem().status, 422);
}

#[tokio::test]
async fn script_is_checked_and_not_run() {
    let api = api().await;
    let check = async |script: &str| {
        api.post("/v1/check", &json!({ "script": script })).await.json()["problems"].clone()
    };
    assert_eq!(check("return 1").await, json!([]));
    let expected = json!([{ "line": 2, "message": "it is wrong", "severity": "error" }]);
    assert_eq!(check("return 1\nwrong").await, expected);
    assert_eq!(api.world.launcher.launches.load(Ordering::SeqCst), 0);
}
