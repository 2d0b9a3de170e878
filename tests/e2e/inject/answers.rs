//! A host that repeats a secret in its answer, in all the ways in which a server can.

use super::*;

#[test]
fn answer_that_repeats_a_secret_is_redacted() {
    let injected = Injected::new();
    let paths = [
        "/echo",
        "/echo/json",
        "/echo/base64",
        "/echo/percent",
        "/echo/chunks/1",
        "/echo/chunks/3",
        "/echo/chunks/7",
        "/echo/chunks/20",
        "/echo/extension",
        "/echo/trailer",
        "/echo/pieces",
        "/echo/close",
        "/echo/header",
        "/echo/reason",
        "/echo/early",
        "/error",
        "/broken",
        "/garbage",
        "/redirect?to=https://other.example/",
        "/redirect/with?to=https://other.example/",
    ];
    let mut requests: Vec<_> = paths.iter().map(|path| (*path, get(path))).collect();
    requests.push(("TRACE", request("TRACE", "/echo", &[])));
    requests.push(("HEAD", request("HEAD", "/echo/header", &[])));
    requests.push(("own", request("GET", "/echo", &["Authorization: Bearer of-a-program"])));
    requests.push(("twice", request("GET", "/echo", &["authorization: 1", "AUTHORIZATION: 2"])));
    requests.push(("hop", request("GET", "/echo", &["Connection: authorization"])));
    requests.push(("1.0", format!("GET /echo HTTP/1.0\r\nHost: {HERE}\r\n\r\n")));
    requests.push(("body", format!(
        "POST /echo HTTP/1.1\r\nHost: {HERE}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    )));
    // No part of a page is read in pieces that are too short to be found in it.
    let ranges: Vec<_> = (0..30).step_by(5).map(|at| format!("bytes={at}-{}", at + 9)).collect();
    for range in &ranges {
        requests.push((range, request("GET", "/echo/range", &[&format!("Range: {range}")])));
    }
    let answers = injected.ask(&injected.bearer(), &requests);
    for (name, _) in &requests {
        assert!(!answers.leaks(name), "{name}: {}", answers.text(name));
    }
    for name in ["/echo", "/echo/json", "/echo/chunks/1", "/echo/pieces", "own", "body"] {
        assert_eq!(answers.status(name), 200, "{name}: {}", answers.text(name));
        // As many as it has, in whatever pieces they come.
        let stars = answers.text(name).matches('*').count();
        assert!(stars + 3 >= SECRET.len(), "{name}: {}", answers.text(name));
    }
    assert!(answers.text("body").ends_with("hello"), "{}", answers.text("body"));
    // A length that is announced is the one that comes.
    for name in paths.iter().chain(&["HEAD", "own"]) {
        let text = answers.text(name);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
        });
        if let (Some(length), false) = (length, *name == "HEAD" || *name == "/broken") {
            assert_eq!(body.len(), length, "{name}: {text}");
        }
    }
    // Each time it was there, once, and nothing that a program sent in its place.
    let sent = injected.server.requests();
    assert!(sent.len() + 3 >= requests.len(), "{} of {}", sent.len(), requests.len());
    for head in &sent {
        assert_eq!(head.matches(SECRET).count(), 1, "{head}");
        assert_eq!(head.to_lowercase().matches("\r\nauthorization:").count(), 1, "{head}");
        assert!(!head.contains("of-a-program") && !head.starts_with("TRACE"), "{head}");
    }
}

#[test]
fn query_and_basic_credentials_are_set_and_redacted_as_a_header_is() {
    let injected = Injected::new();
    let target = injected.target();
    let paths =
        ["/echo", "/echo?key=guess&a=1", "/echo?%6bey=guess", "/echo/json?key", "/redirect?to=x"];
    let requests: Vec<_> = paths.iter().map(|path| (*path, get(path))).collect();
    let query = ["--inject".to_owned(), format!("{target}: ?key=env:TOKEN")];
    let answers = injected.ask(&query, &requests);
    for path in paths {
        assert!(!answers.leaks(path), "{path}: {}", answers.text(path));
        assert_ne!(answers.status(path), 0, "{path}");
    }
    let encoded = SECRET.replace('/', "%2F").replace('+', "%2B").replace('=', "%3D");
    let sent = injected.server.requests();
    assert_eq!(sent.len(), paths.len());
    for head in &sent {
        let line = head.lines().next().unwrap();
        assert!(line.contains(&format!("key={encoded}")), "{line}");
        assert!(!line.contains("guess"), "{line}");
    }
    assert!(sent[1].contains("a=1"), "{}", sent[1]);

    let basic = ["--inject".to_owned(), format!("{target}: basic me:env:TOKEN")];
    let answers = injected.ask(&basic, &[("basic", get("/echo")), ("base64", get("/echo/base64"))]);
    assert!(!answers.leaks("basic") && !answers.leaks("base64"));
    let expected = format!("Basic {}\r\n", STANDARD.encode(format!("me:{SECRET}")));
    assert!(injected.server.requests().last().unwrap().contains(&expected));
}
