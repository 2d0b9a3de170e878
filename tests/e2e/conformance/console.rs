//! The console of a service, as a browser uses it: its page, its session, and what it asks for.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::service::{Service, serve};
use crate::e2b::{Answer, Client};
use crate::engine::engine;
use crate::fixture::{Fixture, eventually};

/// What a browser has of a session: its cookie, and what its page keeps.
struct Signed {
    cookie: String,
    proof: String,
}

impl Signed {
    #[track_caller]
    fn of(head: &str, body: &Value) -> Self {
        let proof = body["proof"].as_str().unwrap_or_else(|| panic!("{body}"));
        Self { cookie: cookie(head), proof: proof.to_owned() }
    }

    /// The headers of a request that a page of this origin sends.
    fn of_page(&self, origin: &str) -> String {
        let Self { cookie, proof } = self;
        format!(
            "origin: {origin}\r\nsec-fetch-site: same-origin\r\ncookie: {cookie}\r\n\
             session-proof: {proof}\r\n"
        )
    }
}

/// The cookie that a head sets.
#[track_caller]
fn cookie(head: &str) -> String {
    let set = head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    let set = set.unwrap_or_else(|| panic!("{head}"));
    assert!(set.contains("; HttpOnly; SameSite=Strict;"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

#[track_caller]
fn token(place: &Fixture, subject: &str, scope: &str) -> String {
    let create =
        ["token", "create", "--data-dir", "service", "--subject", subject, "--scope", scope];
    place.sandboxctl(create).assert_code(0).stdout.trim_end().to_owned()
}

#[track_caller]
fn sign_in(service: &Service<'_>, token: &str) -> Signed {
    let body = json!({ "token": token }).to_string();
    let origin = format!("origin: {}\r\n", service.url);
    let (status, head, body) = service.exchange("POST", "/v1/session", &origin, &body);
    assert_eq!(status, 200, "{body}");
    Signed::of(&head, &serde_json::from_str(&body).unwrap())
}

#[test]
fn browser_is_signed_in_until_its_token_is_revoked() {
    let place = Fixture::new();
    let token = token(&place, "ci", "executions:read");
    let start = || Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let service = start();
    let (status, head, _) = service.exchange("GET", "/", "", "");
    assert_eq!(status, 200);
    for header in
        ["content-security-policy: default-src 'none'; script-src 'self'", "x-frame-options: DENY"]
    {
        assert!(head.contains(header), "{head}");
    }
    let signed = sign_in(&service, &token);
    let Signed { cookie, proof } = &signed;
    let get =
        |service: &Service<'_>, headers: &str| service.http("GET", "/v1/usage", headers, "").0;
    assert_eq!(get(&service, &signed.of_page(&service.url)), 200);
    // Other sites, and a page at another port of the same host.
    let with = |rest: &str| format!("cookie: {cookie}\r\n{rest}\r\n");
    // A server there, which the browser sends the cookie, and which sends it as if it were a page of the console.
    assert_eq!(get(&service, &with("sec-fetch-site: same-origin")), 401);
    assert_eq!(get(&service, &with("sec-fetch-site: cross-site")), 401);
    assert_eq!(
        get(&service, &with("sec-fetch-site: same-site\r\norigin: http://127.0.0.1:1")),
        403
    );
    let log = service.stop();
    assert!(!log.contains(&token) && !log.contains(cookie.split('=').nth(1).unwrap()), "{log}");
    assert!(!log.contains(proof), "{log}");
    // The service that comes after it has the same key; a cookie is named by its port.
    let service = start();
    let (_, port) = service.url.rsplit_once(':').unwrap();
    let (_, sealed) = cookie.split_once('=').unwrap();
    let cookie = format!("sandboxctl_session_{port}={sealed}");
    let signed = Signed { cookie, proof: proof.clone() };
    assert_eq!(get(&service, &signed.of_page(&service.url)), 200);
    place.sandboxctl(["token", "revoke", "--data-dir", "service", &token]).assert_code(0);
    assert_eq!(get(&service, &signed.of_page(&service.url)), 401);
    service.stop();
}

#[test]
fn administrator_sees_the_service_and_the_executions_of_all() {
    let place = Fixture::new();
    let [admin, ci] = ["admin", "executions:write"].map(|scope| token(&place, scope, scope));
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let as_ci = format!("authorization: Bearer {ci}\r\n");
    let submit = |script: &str| {
        let body = json!({ "script": script }).to_string();
        let (status, body) = service.http("POST", "/v1/executions?wait=60", &as_ci, &body);
        assert_eq!(status, 200, "{body}");
    };
    submit("return 1");
    let signed = sign_in(&service, &admin);
    let get = |path: &str| -> Value {
        let (status, body) = service.http("GET", path, &signed.of_page(&service.url), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let listed = get("/v1/executions?subject=*&since=2020-01-01T00:00:00Z");
    assert_eq!(listed["executions"][0]["subject"], "executions:write");
    let none = get("/v1/executions?subject=*&image=debian:13");
    assert_eq!(none["executions"], json!([]));
    let status = get("/v1/service");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["subjects"][0]["executions_today"], 1);
    let body = json!({ "script": "return 1\nlocal = 2" }).to_string();
    let (status, body) = service.http("POST", "/v1/check", &as_ci, &body);
    let checked: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &checked["problems"][0]["line"]), (200, &json!(2)), "{body}");
    service.stop();
}

/// `serve --dev`, and what it prints up to the link.
pub(super) struct Dev<'a> {
    place: &'a Fixture,
    child: Child,
    pub(super) printed: String,
}

/// A failed test leaves no service behind.
impl Drop for Dev<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl<'a> Dev<'a> {
    /// On a port of its own, with more flags.
    pub(super) fn start(place: &'a Fixture, more: &[String]) -> Self {
        let mut command = place.command(["serve", "--dev", "--listen", "127.0.0.1:0"]);
        let log = std::fs::File::create(place.path("dev.log")).unwrap();
        let command = command.args(more).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut dev = Self { place, child, printed: String::new() };
        while !dev.printed.contains("#/sign-in?code=") {
            assert_ne!(lines.read_line(&mut dev.printed).unwrap(), 0, "{}", place.read("dev.log"));
        }
        thread::spawn(move || _ = lines.read_to_end(&mut Vec::new()));
        dev
    }

    /// What it prints after this, up to a space.
    #[track_caller]
    pub(super) fn after(&self, name: &str) -> &str {
        let (_, rest) = self.printed.split_once(name).unwrap_or_else(|| panic!("{}", self.printed));
        rest.split_whitespace().next().unwrap()
    }

    /// Any client that asks it with this token.
    #[track_caller]
    pub(super) fn client(&self, token: &str) -> Client {
        let address = self.after("listening on http://").parse().unwrap();
        Client { address, key: token.to_owned() }
    }

    /// Ends it: nothing is left.
    pub(super) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.place.read("dev.log"));
        let place = self.place;
        eventually("nothing to be left", || {
            (place.containers().is_empty() && engine().remains(place).is_empty()).then_some(())
        });
    }
}

#[test]
fn link_of_a_development_server_signs_in_once() {
    let place = Fixture::new();
    let dev = Dev::start(&place, &[]);
    let link = dev.printed.split_whitespace().find(|word| word.contains("code=")).unwrap();
    let (origin, code) = link.split_once("/#/sign-in?code=").unwrap();
    let client = dev.client("");
    assert_eq!(origin, format!("http://{}", client.address));
    let (origin, code) = (origin.to_owned(), json!({ "code": code }).to_string());
    let sign_in = || {
        let headers = [("origin", &*origin), ("content-type", "application/json")];
        client.ask("POST", "/v1/session", &headers, code.as_bytes())
    };
    let signed: Answer = sign_in();
    assert_eq!((signed.status, &signed.json()["subject"]), (200, &json!("local")));
    assert_eq!(sign_in().status, 401);
    let Signed { cookie, proof } = Signed::of(&signed.head, &signed.json());
    let own = |method: &str| {
        let page = [("origin", &*origin), ("sec-fetch-site", "same-origin")];
        let session = [("cookie", &*cookie), ("session-proof", &*proof)];
        client.ask(method, "/v1/session", &[page, session].concat(), b"")
    };
    assert_eq!(own("GET").json()["subject"], "local");
    let out = own("DELETE");
    assert!(out.status == 204 && out.head.contains("Max-Age=0"), "{}", out.head);
    dev.stop();
}
