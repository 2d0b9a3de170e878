//! Connections between a client that trusts the sandbox's authority, and a server with a certificate of
//! another one. Both speak bytes, so that nothing but the crate under test shapes a message.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::*;
use sandbox_api::{InjectRule, SecretValue};

const HOST: &str = "api.example";
const SECRET: &str = "s3cr3t/Value+1";
/// Nothing of a test takes so long: time stands still while something happens.
const TIMEOUT: Duration = Duration::from_secs(60);

struct World {
    interceptor: Interceptor,
    /// What the client asks for, what it trusts, and what it offers.
    name: &'static str,
    alpn: &'static [u8],
    server: Authority,
    /// The name in the server's certificate.
    certified: &'static str,
    target: Target,
    seen: Mutex<Vec<Exchange>>,
}

/// What a server does: waits for a text, and sends these pieces.
type Turn<'a> = (&'a str, &'a [&'a [u8]]);

/// How a connection went.
struct Talk {
    result: Result<(), Failure>,
    /// What the client and the server got.
    client: String,
    server: String,
}

fn injections(rules: &[&str]) -> Vec<Injection> {
    let with =
        |rule: &&str| rule.parse::<InjectRule>().unwrap().with(SecretValue::new(SECRET)).unwrap();
    rules.iter().map(with).collect()
}

fn trusting(certificate: &CertificateDer<'static>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    roots
}

impl World {
    fn new(rules: &[&str], inject: &[&str]) -> Self {
        let list = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let server = Authority::new([".example".to_owned(), "example".to_owned()]).unwrap();
        let roots = trusting(&server.certificate);
        let interceptor = Interceptor::with_roots(&list, &injections(inject), roots).unwrap();
        let target = Target { host: HOST.parse().unwrap(), port: 443 };
        Self {
            interceptor,
            name: HOST,
            alpn: ALPN,
            server,
            certified: HOST,
            target,
            seen: Mutex::default(),
        }
    }

    fn injecting() -> Self {
        Self::new(&[], &["api.example: Authorization: Bearer env:TOKEN"])
    }

    /// Sends this, while the server takes these turns.
    async fn talk(&self, request: &[u8], turns: &[Turn<'_>]) -> Talk {
        self.dialogue(&[("", &[request])], turns).await
    }

    async fn dialogue(&self, asks: &[Turn<'_>], answers: &[Turn<'_>]) -> Talk {
        let (near, far) = duplex(16 << 10);
        let (ours, theirs) = duplex(16 << 10);
        let record = |exchange: &Exchange| self.seen.lock().unwrap().push(exchange.clone());
        let served = self.interceptor.serve(far, ours, &self.target, &record);
        let client = async {
            let mut config = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(trusting(&self.interceptor.authority.certificate))
                .with_no_client_auth();
            config.alpn_protocols = vec![self.alpn.to_vec()];
            let name = ServerName::try_from(self.name).unwrap();
            match TlsConnector::from(Arc::new(config)).connect(name, near).await {
                Ok(stream) => take_turns(stream, asks).await,
                Err(_) => String::new(),
            }
        };
        let server = async {
            let config = self.server.server(self.certified).unwrap();
            match TlsAcceptor::from(config).accept(theirs).await {
                Ok(stream) => take_turns(stream, answers).await,
                Err(_) => String::new(),
            }
        };
        let all = async { tokio::join!(served, client, server) };
        let (result, client, server) = timeout(TIMEOUT, all).await.expect("it ends");
        Talk { result, client, server }
    }

    fn seen(&self) -> Vec<(String, String, u16)> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|it| (it.method.clone(), it.path.clone(), it.status)).collect()
    }
}

/// Everything that was received, until the other side ends.
async fn take_turns(mut stream: impl AsyncRead + AsyncWrite + Unpin, turns: &[Turn<'_>]) -> String {
    let (mut received, mut at) = (Vec::new(), 0);
    let mut buffer = [0; 4096];
    for (until, pieces) in turns {
        let found = loop {
            let text = String::from_utf8_lossy(&received[at..]).into_owned();
            if let Some(found) = text.find(until) {
                break Some(found + until.len());
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break None,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
            }
        };
        let Some(found) = found else { break };
        at += found;
        for piece in *pieces {
            if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            // Each is a piece of its own for who reads.
            sleep(Duration::from_millis(10)).await;
        }
    }
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        received.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&received).into_owned()
}

fn get(headers: &str) -> Vec<u8> {
    format!("GET /a?b=c HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n{headers}\r\n").into()
}

const OK: Turn<'static> = ("\r\n\r\n", &[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]);

#[tokio::test(start_paused = true)]
async fn secret_replaces_whatever_header_the_program_sends() {
    let world = World::injecting();
    let headers = "authorization: a\r\nAuthorization: b\r\nConnection: Authorization, X-Hop\r\nX-Hop: 1\r\n\
                   Accept-Encoding: gzip\r\nRange: bytes=0-3\r\nTE: trailers\r\nX-Kept: sandboxctl-injected-TOKEN\r\n";
    let talk = world.talk(&get(headers), &[OK]).await;
    let sent = talk.server.to_lowercase();
    assert!(sent.starts_with("get /a?b=c http/1.1\r\n"), "{sent}");
    assert!(talk.server.contains(&format!("Bearer {SECRET}\r\n")), "{sent}");
    assert_eq!(sent.matches("authorization:").count(), 1, "{sent}");
    assert!(
        sent.contains("accept-encoding: identity\r\n") && sent.contains("host: api.example\r\n")
    );
    // A placeholder elsewhere stays one.
    assert!(sent.contains("x-kept: sandboxctl-injected-token\r\n"), "{sent}");
    for gone in ["x-hop", "range", "te:", "gzip", "connection"] {
        assert!(!sent.contains(gone), "{gone}: {sent}");
    }
    assert!(talk.client.starts_with("HTTP/1.1 200 OK\r\n") && talk.client.ends_with("ok"));
    assert_eq!(world.seen(), [("GET".to_owned(), "/a".to_owned(), 200)]);

    let world = World::new(&[], &["api.example: X-Api-Key: env:KEY"]);
    let talk = world.talk(&get("X_Api_Key: mine\r\nx-api-key: mine\r\n"), &[OK]).await;
    assert!(!talk.server.contains("mine") && talk.server.contains(SECRET), "{}", talk.server);
}

#[tokio::test(start_paused = true)]
async fn secret_is_a_parameter_or_a_password() {
    let world = World::new(&[], &["api.example: ?key=env:KEY", "api.example: basic me:env:KEY"]);
    let request = b"GET /a?key=mine&b=%20c&%6bey=mine HTTP/1.1\r\nHost: api.example:443\r\nConnection: close\r\n\r\n";
    let talk = world.talk(request, &[OK]).await;
    let pair = "Basic bWU6czNjcjN0L1ZhbHVlKzE=";
    assert!(
        talk.server.starts_with("GET /a?b=%20c&key=s3cr3t%2FValue%2B1 HTTP/1.1\r\n"),
        "{}",
        talk.server
    );
    assert!(talk.server.contains(pair), "{}", talk.server);
    let request = b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n";
    let talk = world.talk(request, &[OK]).await;
    assert!(
        talk.server.starts_with("GET /?key=s3cr3t%2FValue%2B1 HTTP/1.1\r\n"),
        "{}",
        talk.server
    );
    // No query in what is recorded.
    assert_eq!(world.seen()[0].1, "/a");
}

#[tokio::test(start_paused = true)]
async fn secret_of_a_host_is_sent_to_no_other() {
    let rules = ["* https://other.example", "* https://api.example:8443"];
    let mut world = World::new(&rules, &["api.example: Authorization: env:TOKEN"]);
    for (name, port, header) in
        [("other.example", 443, "other.example"), (HOST, 8443, "api.example:8443")]
    {
        (world.name, world.certified) = (name, name);
        world.target = Target { host: name.parse().unwrap(), port };
        assert!(world.interceptor.terminates(&world.target));
        let request = format!("GET / HTTP/1.1\r\nHost: {header}\r\nConnection: close\r\n\r\n");
        let talk = world.talk(request.as_bytes(), &[OK]).await;
        assert!(talk.client.ends_with("ok") && !talk.server.contains(SECRET), "{}", talk.server);
    }
    let plain = Target { host: HOST.parse().unwrap(), port: 80 };
    assert!(!world.interceptor.terminates(&plain));
}

#[tokio::test(start_paused = true)]
async fn echo_is_redacted_in_head_and_body_and_keeps_its_length() {
    let world = World::injecting();
    let stars = "*".repeat(SECRET.len());
    let body = format!("you sent {SECRET} and s3cr3t%2fvalue%2b1 and Bearer {SECRET}!");
    let head = format!(
        "HTTP/1.1 302 {SECRET}\r\nLocation: https://evil.example/?{SECRET}\r\nX-{}: 1\r\nX-Echo: Bearer {SECRET}\r\n\
         Alt-Svc: h3\r\nContent-Length: {}\r\n\r\n",
        SECRET.replace(['/', '+'], "-"),
        body.len()
    );
    let (first, second) = body.split_at(14);
    let (second, third) = second.split_at(3);
    let pieces = [head.as_bytes(), first.as_bytes(), second.as_bytes(), third.as_bytes()];
    let talk = world.talk(&get(""), &[("\r\n\r\n", &pieces)]).await;
    let got = talk.client;
    assert!(!got.to_lowercase().contains("s3cr3t/"), "{got}");
    assert!(got.starts_with("HTTP/1.1 302 Found\r\n"), "{got}");
    assert!(got.contains(&format!("location: https://evil.example/?{stars}\r\n")), "{got}");
    assert!(
        got.contains(&format!("x-echo: Bearer {stars}\r\n")) && !got.contains("alt-svc"),
        "{got}"
    );
    assert!(got.contains(&format!("content-length: {}\r\n", body.len())), "{got}");
    let (_, got) = got.split_once("\r\n\r\n").unwrap();
    let other = "*".repeat("s3cr3t%2fvalue%2b1".len());
    assert_eq!(got, format!("you sent {stars} and {other} and Bearer {stars}!"));
}

#[tokio::test(start_paused = true)]
async fn echo_is_redacted_across_chunks_and_trailers_are_dropped() {
    let world = World::injecting();
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Echo\r\n\r\n";
    let mut pieces: Vec<Vec<u8>> = vec![head.to_vec()];
    let chunk = |text: &str| format!("{:x};x=y\r\n{text}\r\n", text.len()).into_bytes();
    // One byte a chunk, and a pause that is longer than what is held back waits.
    pieces.extend(format!("a{SECRET}b").chars().map(|char| chunk(&char.to_string())));
    pieces.push(format!("0\r\nX-Echo: {SECRET}\r\n\r\n").into_bytes());
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    let talk = world.talk(&get("TE: trailers\r\n"), &[("\r\n\r\n", &pieces)]).await;
    let data: String =
        talk.client.split_once("\r\n\r\n").unwrap().1.split("\r\n").skip(1).step_by(2).collect();
    assert_eq!(data, format!("a{}b", "*".repeat(SECRET.len())), "{}", talk.client);
    assert!(!talk.client.to_lowercase().contains("x-echo"), "{}", talk.client);

    // A part is text as any other.
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsays s3cr";
    let talk = world.talk(&get(""), &[("\r\n\r\n", &[answer])]).await;
    assert!(talk.client.ends_with("says s3cr"), "{}", talk.client);
}

#[tokio::test(start_paused = true)]
async fn host_that_repeats_a_guess_says_nothing_about_it() {
    let world = World::injecting();
    let (right, wrong) = (&SECRET[..SECRET.len() - 1], "s3cr3t/Value-");
    for [before, after] in [["", ""], ["x", "y"], ["&#x", ";"]] {
        let mut all = Vec::new();
        for guess in [right, wrong] {
            let text = format!("{before}{guess}{after}");
            let head = format!("HTTP/1.1 200 OK\r\nX-Echo: {text}\r\nContent-Length: 100\r\n\r\n");
            let rest = "z".repeat(100 - text.len());
            let began = Instant::now();
            // In pieces, with more than a pause between them.
            let (first, second) = text.as_bytes().split_at(text.len() / 2);
            let mut pieces = vec![head.as_bytes(), first];
            pieces.extend([&b""[..]; 40]);
            pieces.push(second);
            pieces.extend([&b""[..]; 40]);
            pieces.push(rest.as_bytes());
            let path = format!("/{text}").replace('#', "");
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n");
            let talk = world.talk(request.as_bytes(), &[("\r\n\r\n", &pieces)]).await;
            assert!(talk.client.contains(&text) && talk.client.ends_with(&rest), "{}", talk.client);
            let recorded = world.seen().pop().unwrap().1;
            assert_eq!(recorded, path);
            all.push((talk.client.replace(guess, "GUESS"), began.elapsed()));
        }
        assert_eq!(all[0], all[1]);
    }
    // Its own path, whole.
    let request =
        format!("GET /{SECRET} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n");
    world.talk(request.as_bytes(), &[OK]).await;
    assert_eq!(world.seen().pop().unwrap().1, format!("/{}", "*".repeat(SECRET.len())));
}

#[tokio::test(start_paused = true)]
async fn end_of_what_has_come_is_held_back_whatever_it_is() {
    let world = World::injecting();
    for (text, shown) in
        [("nothing at all".to_owned(), "nothing at all"), (SECRET.to_owned(), &"*".repeat(14))]
    {
        let (near, far) = duplex(16 << 10);
        let (ours, theirs) = duplex(16 << 10);
        let served = world.interceptor.serve(far, ours, &world.target, &|_| ());
        let server = async {
            let config = world.server.server(HOST).unwrap();
            let mut stream = TlsAcceptor::from(config).accept(theirs).await.unwrap();
            stream.read_u8().await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{text}");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            std::future::pending::<()>().await;
        };
        let client = async {
            let mut stream = world.connect(near).await;
            stream.write_all(&get("")).await.unwrap();
            stream.flush().await.unwrap();
            head(&mut stream).await;
            let began = Instant::now();
            let mut body = vec![0; text.len()];
            stream.read_exact(&mut body).await.unwrap();
            (String::from_utf8(body).unwrap(), began.elapsed())
        };
        let (body, waited) = tokio::select! {
            _ = served => unreachable!(),
            () = server => unreachable!(),
            got = client => got,
        };
        assert_eq!(body, shown);
        let pause = redact::PAUSE;
        assert!(waited >= pause && waited < pause * 2, "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn secret_that_is_completed_after_a_pause_is_replaced_from_there() {
    let world = World::injecting();
    let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n<s3cr3";
    let mut pieces = vec![head];
    pieces.extend([&b""[..]; 40]);
    pieces.push(b"t/Value+1> bye");
    let talk = world.talk(&get(""), &[("\r\n\r\n", &pieces)]).await;
    assert!(talk.client.ends_with("<s3cr3*********> bye"), "{}", talk.client);
}

#[tokio::test(start_paused = true)]
async fn request_that_is_too_long_with_its_secret_is_refused() {
    let world = World::new(&[], &["api.example: ?key-with-a-name=env:KEY"]);
    let line = |length: usize, headers: &str| {
        let path = "x".repeat(length);
        format!("GET /{path} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n{headers}\r\n")
    };
    for (length, headers, status) in [
        (65_500, "", 414),
        (66_000, "", 414),
        (40_000, "X: 1", 200),
        (40_000, &*"y".repeat(30_000), 431),
    ] {
        let headers = if headers.is_empty() { String::new() } else { format!("X: {headers}\r\n") };
        let talk = world.talk(line(length, &headers).as_bytes(), &[OK]).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(talk.client.starts_with(&expected), "{length}: {:.200}", talk.client);
        assert_eq!(talk.server.is_empty(), status != 200);
    }
    let world = World::injecting();
    let long = |length: usize| format!("X: {}\r\n", "x".repeat(length));
    for (length, status) in [(60_000, 200), (66_000, 431), (120_000, 431)] {
        let talk = world.talk(&get(&long(length)), &[OK]).await;
        assert!(talk.client.starts_with(&format!("HTTP/1.1 {status} ")), "{:.200}", talk.client);
    }
    let answer = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", long(66_000));
    let talk = world.talk(&get(""), &[("\r\n\r\n", &[answer.as_bytes()])]).await;
    assert!(talk.client.starts_with("HTTP/1.1 502 "), "{:.200}", talk.client);
}

#[tokio::test(start_paused = true)]
async fn headers_in_which_servers_find_another_path_are_not_sent() {
    let world = World::new(&["GET https://api.example/*"], &[]);
    let headers =
        "X-Original-URL: /admin\r\nX_Rewrite_Url: /admin\r\nX-Rewrite-URL: /admin\r\nX-Kept: 1\r\n";
    let talk = world.talk(&get(headers), &[OK]).await;
    assert!(!talk.server.contains("admin") && talk.server.contains("x-kept: 1"), "{}", talk.server);
}

#[tokio::test(start_paused = true)]
async fn compressed_answer_is_refused() {
    let world = World::injecting();
    for coding in [
        "Content-Encoding: gzip",
        "Content-Encoding: identity, br",
        "Transfer-Encoding: gzip, chunked",
        "Content-Type: text/plain; charset=UTF-16LE",
        "Content-Type: text/plain;charset=\"utf-7\"",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{coding}\r\nConnection: close\r\n\r\n");
        let talk = world.talk(&get(""), &[("\r\n\r\n", &[answer.as_bytes()])]).await;
        assert!(talk.client.starts_with("HTTP/1.1 502 "), "{coding}: {}", talk.client);
    }
    let answer: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok";
    let talk = world.talk(&get(""), &[("\r\n\r\n", &[answer])]).await;
    assert!(talk.client.ends_with("ok"), "{}", talk.client);
    // Without a secret there is nothing to look for.
    let world = World::new(&["* https://api.example"], &[]);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok";
    let talk = world.talk(&get("Accept-Encoding: gzip\r\n"), &[("\r\n\r\n", &[answer])]).await;
    assert!(talk.client.ends_with("ok") && talk.server.contains("gzip"), "{}", talk.client);
}

#[tokio::test(start_paused = true)]
async fn malformed_and_smuggled_requests_reach_no_server() {
    let world = World::injecting();
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nHost: api.example\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example:8443\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example@evil.example\r\n\r\n", 400),
        ("GET https://evil.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        ("GET https://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nHost: api.example\r\n\r\n", 505),
        ("GET /\r\n\r\n", 400),
        ("CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: api.example\r\n\r\n", 405),
        ("trace / HTTP/1.1\r\nHost: api.example\r\n\r\n", 405),
        ("TRACK / HTTP/1.1\r\nHost: api.example\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: api.example\r\n X: folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : api.example\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nA\0: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nA: b\0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nA: b\rc: d\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            400,
        ),
        ("POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: +1\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1, 1\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: xchunked\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        (
            "POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\
             Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            400,
        ),
    ] {
        // The end of the request is the end of the connection, for those that keep it.
        let closing = request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
        for request in [request, &closing] {
            let all: &[u8] = request.as_bytes();
            let is_closed = request.contains("Connection: close");
            if !is_closed && status != 400 {
                continue;
            }
            let asks: &[Turn<'_>] = &[("", &[all]), ("HTTP/1.1 ", &[])];
            let talk = timeout(TIMEOUT, world.closing_dialogue(asks)).await.expect(request);
            assert!(
                talk.client.get(8..12) == Some(&*format!(" {status}")),
                "{request:?}: {}",
                talk.client
            );
            assert_eq!(talk.server, "", "{request:?}");
            assert!(!talk.client.contains(SECRET));
        }
    }
    let many = (0..200).map(|number| format!("X-{number}: 1\r\n")).collect::<String>();
    // Up to as much more may be in its buffer before hyper looks at the limit.
    let long = format!("X: {}\r\n", "x".repeat(2 * MAX_HEAD));
    for headers in [many, long] {
        let talk = world.closing_dialogue(&[("", &[&get(&headers)]), ("HTTP/1.1 ", &[])]).await;
        assert!(talk.client.starts_with("HTTP/1.1 431 "), "{}", talk.client);
        assert_eq!(talk.server, "");
    }
}

/// The head of a message.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n") {
        got.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(got).unwrap()
}

impl World {
    async fn connect(&self, near: DuplexStream) -> TlsStream<DuplexStream> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusting(&self.interceptor.authority.certificate))
            .with_no_client_auth();
        let name = ServerName::try_from(self.name).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, near).await.unwrap()
    }

    /// A client that goes when it has its answer.
    async fn closing_dialogue(&self, asks: &[Turn<'_>]) -> Talk {
        let (near, far) = duplex(256 << 10);
        let (ours, theirs) = duplex(16 << 10);
        let record = |exchange: &Exchange| self.seen.lock().unwrap().push(exchange.clone());
        let served = self.interceptor.serve(far, ours, &self.target, &record);
        let client = async {
            let mut stream = self.connect(near).await;
            for piece in asks[0].1 {
                _ = stream.write_all(piece).await;
                _ = stream.flush().await;
            }
            let mut received = Vec::new();
            let mut buffer = [0; 4096];
            while !received.windows(4).any(|it| it == b"\r\n\r\n") {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                }
            }
            _ = stream.shutdown().await;
            String::from_utf8_lossy(&received).into_owned()
        };
        let server = async {
            let config = self.server.server(self.certified).unwrap();
            match TlsAcceptor::from(config).accept(theirs).await {
                Ok(stream) => take_turns(stream, &[]).await,
                Err(_) => String::new(),
            }
        };
        let (result, client, server) = tokio::join!(served, client, server);
        Talk { result, client, server }
    }
}

#[tokio::test(start_paused = true)]
async fn request_with_two_lengths_is_sent_with_one_and_is_the_last() {
    let world = World::injecting();
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n";
    for lengths in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let request = format!(
            "POST /a HTTP/1.1\r\nHost: api.example\r\n{lengths}\r\n3\r\nabc\r\n0\r\n\r\n{smuggled}"
        );
        let talk = world.talk(request.as_bytes(), &[("0\r\n\r\n", OK.1)]).await;
        let sent = talk.server.to_lowercase();
        assert!(!sent.contains("content-length") && !sent.contains("smuggled"), "{sent}");
        assert!(sent.ends_with("3\r\nabc\r\n0\r\n\r\n"), "{sent}");
        assert_eq!(talk.client.matches("HTTP/1.1 ").count(), 1, "{}", talk.client);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_connection_are_answered_in_their_order() {
    let world = World::injecting();
    let one =
        |path: &str, last: &str| format!("GET /{path} HTTP/1.1\r\nHost: api.example\r\n{last}\r\n");
    let all = [one("1", ""), one("2", ""), one("3", "Connection: close\r\n")].concat();
    let answers: [&[&[u8]]; 3] = [
        &[b"HTTP/1.1 204 No Content\r\n\r\n"],
        &[b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"],
        &[b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"end"],
    ];
    let turns: Vec<Turn<'_>> = ["GET /1", "GET /2", "GET /3"].into_iter().zip(answers).collect();
    let talk = world.talk(all.as_bytes(), &turns).await;
    let statuses: Vec<_> = talk
        .client
        .match_indices("HTTP/1.1 ")
        .map(|(at, _)| &talk.client[at + 9..at + 12])
        .collect();
    assert_eq!(statuses, ["204", "304", "200"], "{}", talk.client);
    assert!(talk.client.ends_with("end"));
    // Another host in a later request is refused, and the connection goes on.
    let all = format!(
        "GET /1 HTTP/1.1\r\nHost: evil.example\r\n\r\n{}",
        one("2", "Connection: close\r\n")
    );
    let talk = world.talk(all.as_bytes(), &[OK]).await;
    assert!(
        talk.client.starts_with("HTTP/1.1 400 ") && talk.client.ends_with("ok"),
        "{}",
        talk.client
    );
    assert!(!talk.server.contains("GET /1"), "{}", talk.server);
}

#[tokio::test(start_paused = true)]
async fn answer_to_head_and_expected_body_are_passed_on() {
    let world = World::injecting();
    let request = b"HEAD / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n";
    let answer: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n";
    let talk = world.talk(request, &[("\r\n\r\n", &[answer])]).await;
    assert!(
        talk.client.contains("content-length: 1234\r\n") && talk.client.ends_with("\r\n\r\n"),
        "{}",
        talk.client
    );

    let head = "POST / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let asks: [Turn<'_>; 2] = [("", &[head.as_bytes()]), ("100 Continue\r\n\r\n", &[b"body"])];
    let talk = world.dialogue(&asks, &[("body", OK.1)]).await;
    assert!(talk.client.ends_with("ok"), "{}", talk.client);
    assert!(!talk.server.to_lowercase().contains("expect"), "{}", talk.server);
}

#[tokio::test(start_paused = true)]
async fn large_bodies_are_streamed_in_both_directions() {
    let world = World::injecting();
    let size = 1 << 20;
    let mut body = vec![b'x'; size];
    body[size - 3..].copy_from_slice(b"end");
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    );
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
    let talk = world
        .dialogue(&[("", &[head.as_bytes(), &body])], &[("end", &[answer.as_bytes(), &body])])
        .await;
    let body = String::from_utf8(body).unwrap();
    assert!(talk.client.ends_with(&body) && talk.server.ends_with(&body));
}

#[tokio::test(start_paused = true)]
async fn only_the_host_is_served_and_only_its_certificate_is_accepted() {
    let mut world = World::injecting();
    world.name = "www.example";
    let talk = world.talk(&get(""), &[OK]).await;
    assert!(matches!(talk.result, Err(Failure::Name)) && talk.server.is_empty());
    let mut world = World::injecting();
    world.alpn = b"h2";
    let talk = world.talk(&get(""), &[OK]).await;
    assert!(matches!(talk.result, Err(Failure::Client(_))) && talk.server.is_empty());

    let mut world = World::injecting();
    world.certified = "www.example";
    let talk = world.talk(&get(""), &[OK]).await;
    assert!(
        talk.client.starts_with("HTTP/1.1 502 ") && talk.client.contains("certificate"),
        "{}",
        talk.client
    );
    assert_eq!(talk.server, "");
    let mut world = World::injecting();
    // One of an authority that this machine does not know.
    world.server = Authority::new([HOST.to_owned()]).unwrap();
    let talk = world.talk(&get(""), &[OK]).await;
    assert!(talk.client.starts_with("HTTP/1.1 502 ") && talk.server.is_empty(), "{}", talk.client);
    assert_eq!(world.seen()[0].2, 502);
    let seen = world.seen.lock().unwrap();
    let refused = seen[0].refused.as_deref().unwrap_or_default();
    assert!(
        seen[0].is_unreached && refused.starts_with("cannot speak TLS with api.example:443: "),
        "{refused}"
    );
    let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    let words = in_words(&io::Error::new(io::ErrorKind::InvalidData, unknown));
    assert!(words.starts_with("no known authority signed its certificate"), "{words}");
}

#[tokio::test(start_paused = true)]
async fn program_that_speaks_no_tls_differs_from_one_that_trusts_no_certificate() {
    let world = World::injecting();
    let (mut near, far) = duplex(16 << 10);
    let (ours, _theirs) = duplex(16 << 10);
    near.write_all(&get("")).await.unwrap();
    let served = timeout(TIMEOUT, world.interceptor.serve(far, ours, &world.target, &|_| ()));
    let failure = served.await.expect("it ends").unwrap_err();
    assert!(matches!(failure, Failure::NoTls), "{failure}");
    assert_eq!(failure.to_string(), "the program spoke no TLS: use https://");
}

#[tokio::test(start_paused = true)]
async fn request_that_no_rule_allows_is_refused_with_the_rule() {
    let rules = ["GET https://api.example/repos/*", "WEBSOCKET https://api.example/live"];
    let world = World::new(&rules, &["api.example: Authorization: env:TOKEN"]);
    let send = async |line: &str| {
        let request = format!(
            "{line} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\nX-Kept: 1\r\n\r\n"
        );
        world.talk(request.as_bytes(), &[OK]).await
    };
    let talk = send("GET /repos/a?b").await;
    assert!(talk.client.ends_with("ok"), "{}", talk.server);
    let talk = send("POST /repos/a?b").await;
    assert!(talk.client.starts_with("HTTP/1.1 403 "), "{}", talk.client);
    assert!(talk.client.contains("--allow 'POST https://api.example/repos/a'"), "{}", talk.client);
    assert_eq!(talk.server, "");
    let talk = send("GET /repos/../admin").await;
    assert!(
        talk.client.contains("may read as another") && talk.server.is_empty(),
        "{}",
        talk.client
    );
    let seen = world.seen.lock().unwrap();
    let rules: Vec<_> = seen.iter().map(|it| it.rule.clone()).collect();
    assert_eq!(rules, [None, Some("POST https://api.example/repos/a".to_owned()), None]);
}

#[tokio::test(start_paused = true)]
async fn websocket_is_passed_on_where_a_rule_allows_it_and_its_messages_are_redacted() {
    let upgrade = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: api.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
             Sec-WebSocket-Key: x\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        )
    };
    let world = World::new(
        &["GET https://api.example/*", "WEBSOCKET https://api.example/live"],
        &["api.example: Authorization: Bearer env:TOKEN"],
    );
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: s3cr3t/Value+1\r\n\r\n";
    let live = upgrade("/live");
    let (near, far) = duplex(16 << 10);
    let (ours, theirs) = duplex(16 << 10);
    let record = |exchange: &Exchange| world.seen.lock().unwrap().push(exchange.clone());
    let served = world.interceptor.serve(far, ours, &world.target, &record);
    let client = async {
        let mut stream = world.connect(near).await;
        stream.write_all(live.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let head = head(&mut stream).await;
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
        socket.send(Message::text("hello")).await.unwrap();
        let mut got = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            got.push(message);
        }
        (head, got)
    };
    let server = async {
        let config = world.server.server(HOST).unwrap();
        let mut stream = TlsAcceptor::from(config).accept(theirs).await.unwrap();
        let head = head(&mut stream).await;
        stream.write_all(switching.as_bytes()).await.unwrap();
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
        // One message in two frames.
        let (first, second) = SECRET.split_at(5);
        let frames = [
            Frame::message(first, OpCode::Data(Data::Text), false),
            Frame::message(second, OpCode::Data(Data::Continue), true),
        ];
        for frame in frames {
            socket.send(Message::Frame(frame)).await.unwrap();
        }
        socket.send(Message::binary(format!("\0{SECRET}"))).await.unwrap();
        socket.send(Message::Ping(SECRET.into())).await.unwrap();
        socket.send(Message::text(first)).await.unwrap();
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
        head
    };
    let all = async { tokio::join!(served, client, server) };
    let (result, (client, got), server) = timeout(TIMEOUT, all).await.expect("it ends");
    assert!(result.is_ok());
    assert!(client.starts_with("HTTP/1.1 101 ") && !client.contains(SECRET), "{client}");
    assert!(server.contains(SECRET), "{server}");
    let stars = "*".repeat(SECRET.len());
    let expected = [
        Message::text(&*stars),
        Message::binary(format!("\0{stars}")),
        Message::Ping(stars.clone().into()),
        Message::text(&SECRET[..5]),
        Message::Close(None),
    ];
    assert_eq!(got, expected);
    assert!(!server.to_lowercase().contains("deflate"), "{server}");
    assert_eq!(world.seen(), [("WEBSOCKET".to_owned(), "/live".to_owned(), 101)]);

    // A rule for GET is none for it.
    let talk = world.closing_dialogue(&[("", &[upgrade("/other").as_bytes()])]).await;
    assert!(talk.client.starts_with("HTTP/1.1 403 "), "{}", talk.client);
    assert!(talk.server.is_empty());
    // Another protocol is not asked for, and not accepted.
    let world = World::injecting();
    let h2c = get("Upgrade: h2c\r\n");
    let answer: &[u8] =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let talk = world.talk(&h2c, &[("\r\n\r\n", &[answer])]).await;
    assert!(
        !talk.server.contains("h2c") && talk.client.starts_with("HTTP/1.1 502 "),
        "{}",
        talk.client
    );
}

#[test]
fn certificate_of_the_authority_is_pem_and_good_for_its_hosts_alone() {
    let world = World::new(&["GET https://*.wild.example/"], &["api.example: A: env:T"]);
    let pem = world.interceptor.certificate();
    assert!(
        pem.starts_with("-----BEGIN CERTIFICATE-----\n")
            && pem.ends_with("-----END CERTIFICATE-----\n")
    );
    assert!(pem.lines().all(|line| line.len() <= 64));
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
        trusting(&world.interceptor.authority.certificate).into(),
        provider(),
    )
    .build()
    .unwrap();
    let accepts = |host: &str| {
        let certificate = world.interceptor.authority.leaf(host).unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        use rustls::client::danger::ServerCertVerifier as _;
        let now = rustls::pki_types::UnixTime::now();
        verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
    };
    for (host, expected) in [
        ("api.example", true),
        ("a.wild.example", true),
        ("other.example", false),
        ("example", false),
    ] {
        assert_eq!(accepts(host), expected, "{host}");
    }
}

#[test]
fn a_sandbox_without_such_hosts_needs_no_certificates() {
    let none = Path::new("/no/such/file");
    let list = ["example.org".parse().unwrap()].into_iter().collect();
    assert!(Interceptor::new(&list, &[], Some(none)).unwrap().is_none());
    let error =
        Interceptor::new(&list, &injections(&["a.example: A: env:T"]), Some(none)).err().unwrap();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}
