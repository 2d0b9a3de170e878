//! What a program may ask of a host that gets a secret: one request, of one reading, that a rule allows.

use super::*;

#[test]
fn request_that_two_readers_take_for_different_ones_is_not_sent() {
    let injected = Injected::new();
    let here = injected.target();
    let after = |fields: &str, body: &str| {
        format!("POST /first HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n{fields}\r\n{body}")
    };
    let hidden = format!("GET /hidden HTTP/1.1\r\nHost: {here}\r\n\r\n");
    let length = hidden.len();
    let chunked = format!("{length:x}\r\n{hidden}\r\n0\r\n\r\n");
    let corpus = [
        (
            "a length and chunks",
            after(
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                &format!("0\r\n\r\n{hidden}"),
            ),
        ),
        (
            "chunks and a length",
            after(&format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), &chunked),
        ),
        (
            "two lengths",
            after(&format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), &hidden),
        ),
        ("two lengths in one", after(&format!("Content-Length: 0, {length}\r\n"), &hidden)),
        ("a length with a sign", after(&format!("Content-Length: +{length}\r\n"), &hidden)),
        ("a length in hexadecimal", after("Content-Length: 0x5\r\n", &hidden)),
        (
            "chunked twice",
            after("Transfer-Encoding: chunked, chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "chunked and something",
            after("Transfer-Encoding: chunked, identity\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "chunked in disguise",
            after("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a space before the colon",
            after("Transfer-Encoding : chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a tab behind the colon",
            after(
                "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n",
                &format!("0\r\n\r\n{hidden}"),
            ),
        ),
        (
            "a vertical tab",
            after("Transfer-Encoding:\u{b}chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a folded line",
            after("Transfer-Encoding:\r\n chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a folded first line",
            after(" Transfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a lone line feed",
            after("A: b\nTransfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a lone carriage return",
            after("A: b\rTransfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        ("a zero byte", after("A: b\0c\r\n", "")),
        (
            "a field without a colon",
            after("Transfer-Encoding chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        ),
        (
            "a size with more",
            after(
                "Transfer-Encoding: chunked\r\n",
                &format!("{length:x};a=\n{hidden}\r\n0\r\n\r\n"),
            ),
        ),
        (
            "a size too large",
            after(
                "Transfer-Encoding: chunked\r\n",
                &format!("1{:016x}\r\n{hidden}\r\n0\r\n\r\n", length),
            ),
        ),
        (
            "a size with a sign",
            after("Transfer-Encoding: chunked\r\n", &format!("-1\r\n{hidden}\r\n0\r\n\r\n")),
        ),
        (
            "a chunk that ends early",
            after("Transfer-Encoding: chunked\r\n", &format!("3\r\nabcdef\r\n0\r\n\r\n{hidden}")),
        ),
        (
            "fields behind the body",
            after(
                "Transfer-Encoding: chunked\r\n",
                "0\r\nHost: other.example\r\nAuthorization: x\r\n\r\n",
            ),
        ),
        (
            "a space in the target",
            format!("GET /first HTTP/1.1 HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n"),
        ),
        (
            "an odd version",
            format!("GET /first HTTP/1.9\r\nHost: {here}\r\nConnection: close\r\n\r\n"),
        ),
        ("version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        (
            "a body of a GET",
            format!(
                "GET /first HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{hidden}"
            ),
        ),
        (
            "upgrade to version 2",
            request(
                "GET",
                "/first",
                &[
                    "Upgrade: h2c",
                    "HTTP2-Settings: AAMAAABkAAQAAP__",
                    "Connection: Upgrade, HTTP2-Settings",
                ],
            ),
        ),
        (
            "a head without end",
            format!("GET /first HTTP/1.1\r\nHost: {here}\r\n{}", "X: y\r\n".repeat(20_000)),
        ),
        (
            "a field without end",
            format!("GET /first HTTP/1.1\r\nHost: {here}\r\nX: {}\r\n\r\n", "y".repeat(60_000)),
        ),
    ];
    // The last two are longer than a word of a command line should be.
    let (short, long) = corpus.split_at(corpus.len() - 2);
    let answers = injected.ask(&injected.bearer(), short);
    let script = format!(
        "echo '== long'\n\
         {{ printf 'GET /first HTTP/1.1\\r\\nHost: {here}\\r\\n'; yes 'X: y' | head -n 20000; }} | timeout 30 \
         openssl s_client -quiet -proxy 127.0.0.1:3128 -connect $target -servername ${{target%:*}} 2>/dev/null | od -An -v -tx1\n"
    );
    let endless = Answers::read(&injected.shell(&injected.bearer(), &script));
    assert!(
        endless.status("long") == 0 || endless.status("long") >= 400,
        "{}",
        endless.text("long")
    );
    assert!(long.iter().all(|(_, it)| it.len() > 50_000));
    for (name, _) in short {
        assert!(!answers.leaks(name), "{name}: {}", answers.text(name));
    }
    for head in injected.server.requests() {
        let (head, body) = head.split_once("\r\n\r\n").unwrap();
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap();
        let fields: Vec<_> =
            lines.map(|it| it.split_once(": ").unwrap_or_else(|| panic!("{head:?}"))).collect();
        // One reading of it, and that is the one that was judged.
        assert!(first.ends_with(" HTTP/1.1") && first.split(' ').count() == 3, "{head:?}");
        assert!(!first.contains("hidden"), "{head:?}");
        assert!(!head.replace("\r\n", "").contains(['\r', '\n', '\0']), "{head:?}");
        let count =
            |name: &str| fields.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name)).count();
        assert!(count("content-length") + count("transfer-encoding") <= 1, "{head:?}");
        assert_eq!((count("host"), count("authorization")), (1, 1), "{head:?}");
        assert!(fields.iter().all(|(name, _)| !name.contains([' ', '\t'])), "{head:?}");
        assert_eq!(count("upgrade"), 0, "{head:?}");
        assert!(!body.contains("|trailers|"), "no field comes behind a body: {body:?}");
    }
}

#[test]
fn compressed_answer_is_refused_and_an_upgrade_needs_a_rule() {
    let injected = Injected::new();
    let target = injected.target();
    let upgrade = |path: &str| {
        let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13";
        let extensions = "Sec-WebSocket-Extensions: permessage-deflate";
        format!(
            "GET {path} HTTP/1.1\r\nHost: {HERE}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n{extensions}\r\n\r\n"
        )
    };
    let requests = [
        ("gzip", request("GET", "/gzip", &["Accept-Encoding: gzip"])),
        ("gzip in chunks", get("/gzip/chunked")),
        ("upgrade that was not asked for", get("/upgrade")),
        ("upgrade", upgrade("/upgrade")),
    ];
    let answers = injected.ask(&injected.bearer(), &requests);
    for (name, _) in &requests {
        assert!(!answers.leaks(name), "{name}: {}", answers.text(name));
    }
    for name in ["gzip", "gzip in chunks", "upgrade that was not asked for"] {
        assert_eq!(answers.status(name), 502, "{name}: {}", answers.text(name));
    }
    // A sandbox that may use the host without conditions has a WebSocket, in which the secret is replaced too.
    assert_eq!(answers.status("upgrade"), 101, "{}", answers.text("upgrade"));
    assert!(answers.text("upgrade").contains("***|"), "{}", answers.text("upgrade"));

    // With rules for requests a WebSocket has a rule of its own.
    let with = |rule: &str| {
        let rule = ["--allow".to_owned(), format!("{rule} https://{target}/*")];
        let flags = [&injected.bearer()[..], &rule[..]].concat();
        injected.ask(&flags, &[("upgrade", upgrade("/upgrade"))])
    };
    assert_eq!(with("GET").status("upgrade"), 403);
    let answers = with("GET,WEBSOCKET");
    assert_eq!(answers.status("upgrade"), 101, "{}", answers.text("upgrade"));
    assert!(!answers.leaks("upgrade"), "{}", answers.text("upgrade"));
    for head in injected.server.requests() {
        let named = |field: &str| {
            let lines = head.lines().map(str::to_lowercase);
            lines.filter(|line| line.starts_with(field)).collect::<Vec<_>>()
        };
        let encodings = named("accept-encoding:");
        assert!(encodings.iter().all(|line| line.ends_with("identity")), "{head}");
        // What compresses messages would hide what they have.
        assert_eq!(named("sec-websocket-extensions:"), Vec::<String>::new(), "{head}");
    }
}

#[test]
fn methods_and_paths_are_those_of_the_rules() {
    let injected = Injected::new();
    let target = injected.target();
    let rules = [
        "--allow".to_owned(),
        format!("GET https://{target}/repos/*"),
        "--allow".to_owned(),
        format!("POST,PUT https://{target}/repos/mine/issues"),
    ];
    let allowed = [
        ("GET", "/repos/a"),
        ("GET", "/repos/a/b?c=d"),
        ("GET", "/repos/"),
        ("POST", "/repos/mine/issues"),
        ("PUT", "/repos/mine/issues"),
    ];
    let refused = [
        ("DELETE", "/repos/a"),
        ("POST", "/repos/a"),
        ("get", "/repos/a"),
        ("GET", "/"),
        ("GET", "/repos"),
        ("GET", "/REPOS/a"),
        ("GET", "/other"),
        ("GET", "//repos/a"),
        ("GET", "/x/../repos/a"),
        ("GET", "/repos/../secret"),
        ("GET", "/repos/%2e%2e/secret"),
        ("GET", "/repos/.%2E/secret"),
        ("GET", "/repos/..%2fsecret"),
        ("GET", "/repos/..%5csecret"),
        ("GET", "/repos/..\\secret"),
        ("GET", "/repos/a/..;/..;/secret"),
        ("GET", "/repos%2fa"),
        ("GET", "/%72epos/../secret"),
        ("GET", "/repos/%252e%252e/secret"),
        ("GET", "/repos/./../secret"),
        ("GET", "/repos/%00"),
        ("GET", "/secret?/repos/a"),
        ("GET", "/secret#/repos/a"),
        ("OPTIONS", "*"),
        ("GET", "repos/a"),
        ("POST", "/repos/mine/issues/1"),
        ("POST", "/repos/mine/issues/../../secret"),
        ("TRACE", "/repos/a"),
        ("CONNECT", "/repos/a"),
    ];
    let named = |(method, path): &(&str, &str)| format!("{method} {path}").replace('\'', "");
    let all: Vec<_> =
        allowed.iter().chain(&refused).map(|it| (named(it), request(it.0, it.1, &[]))).collect();
    let requests: Vec<_> = all.iter().map(|(name, request)| (&**name, request.clone())).collect();
    let answers = injected.ask(&rules, &requests);
    let mut sent = injected.server.requests().into_iter();
    for case in &allowed {
        let name = named(case);
        assert_eq!(answers.status(&name), 200, "{name}: {}", answers.text(&name));
        let line = sent.next().unwrap_or_default();
        assert!(line.starts_with(&format!("{name} HTTP/1.1\r\n")), "{name}: {line}");
        assert!(!line.to_lowercase().contains("authorization"), "nothing is injected here: {line}");
    }
    for case in &refused {
        let name = named(case);
        let status = answers.status(&name);
        // A double escape is one of the path's own characters for every reader that decodes once.
        if case.1.contains("%25") && status == 200 {
            assert!(sent.next().unwrap().starts_with("GET /repos/%252e%252e/secret HTTP/1.1\r\n"));
            continue;
        }
        assert!((400..500).contains(&status), "{name}: {status} {}", answers.text(&name));
    }
    assert_eq!(sent.next(), None, "nothing else was sent");
    let reason = answers.text("DELETE /repos/a");
    assert!(reason.contains("--allow") && reason.contains("DELETE"), "{reason}");
}
