//! Properties of the proxy that hold for any input of commands: the body of the fuzz target
//! `requests`.

use super::http::{self, Body, ConnectRequest, MAX_HEAD, OnConnect};
use super::socks;

/// The first bytes of a client. The first byte determines how the rest is split.
pub fn requests(data: &[u8]) {
    let Some((&cut, said)) = data.split_first() else { return };
    if said.first() == Some(&socks::VERSION) {
        greeted(said);
    } else if let Some((request, rest)) = asked(said)
        && let OnConnect::Forward { head, body } = request.then
    {
        forwarded(&request.host, request.port, &head, &body);
        cuts_make_no_difference(&body, rest, usize::from(cut) + 1);
    }
    answered(said);
}

/// The request, and the bytes after it.
fn asked(said: &[u8]) -> Option<(ConnectRequest, &[u8])> {
    let request = http::read_request(said).ok().flatten()?;
    assert!(request.length <= said.len().min(MAX_HEAD));
    let (head, rest) = said.split_at(request.length);
    assert!(head.ends_with(b"\n"), "it ends with a line");
    // It is recognized as soon as it is complete, and not before; the bytes after it have no
    // influence.
    for end in 0..head.len() {
        assert_eq!(http::read_request(&head[..end]), Ok(None), "{end} bytes are enough");
    }
    assert_eq!(http::read_request(head).as_ref(), Ok(&Some(request)));
    let request = http::read_request(said).ok().flatten()?;
    assert!(!request.host.is_empty() && request.port != 0);
    assert!(
        !request.host.contains(['/', '@', '[', ']', '\\', ' ', '\r', '\n', '\0']),
        "{}",
        request.host
    );
    Some((request, rest))
}

/// The output is one request, to that host, and a server finds the same end of its body as we do.
fn forwarded(host: &str, port: u16, head: &[u8], body: &Body) {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        other => panic!("what goes out is no request: {other:?}"),
    };
    assert_eq!(length, head.len(), "and nothing follows it");
    let path = request.path.expect("it has one");
    assert!(path.starts_with('/') && !path.contains('#'), "{path}");
    let all = |name: &str| -> Vec<&str> {
        let named = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
        named.map(|it| std::str::from_utf8(it.value).expect("it is text").trim()).collect()
    };
    let &[written] = &all("host")[..] else { panic!("not one Host") };
    let bare = written.strip_prefix('[').unwrap_or(written);
    assert!(bare.starts_with(host), "{written} {host}");
    let named = written.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    assert!(named.unwrap_or(80) == port || host.contains(':'), "{written} {port}");
    assert_eq!(all("connection"), ["close"]);
    for hop in ["proxy-connection", "proxy-authorization", "keep-alive", "te", "upgrade"] {
        assert!(all(hop).is_empty(), "{hop}");
    }
    match (body, &all("content-length")[..], &all("transfer-encoding")[..]) {
        (Body::Length(0), [], []) => {}
        (Body::Length(length), [said], []) => assert_eq!(said.parse(), Ok(*length)),
        (Body::Chunked(_), [], [coding]) => assert!(coding.eq_ignore_ascii_case("chunked")),
        (body, lengths, codings) => panic!("{body:?} {lengths:?} {codings:?}"),
    }
}

/// A body ends at one position, however it is split into pieces.
fn cuts_make_no_difference(body: &Body, rest: &[u8], size: usize) {
    let read = |size: usize| {
        let mut body = body.clone();
        let mut taken = 0;
        for piece in rest.chunks(size) {
            match body.take(piece) {
                Ok(count) => {
                    assert!(count <= piece.len());
                    taken += count;
                    if count < piece.len() {
                        // The body has ended: no further bytes belong to it.
                        assert_eq!(body.take(b"more"), Ok(0));
                        return Ok(taken);
                    }
                }
                Err(bad) => return Err(bad),
            }
        }
        Ok(taken)
    };
    assert_eq!(read(size), read(usize::MAX), "pieces of {size}");
}

/// The head of a response that is passed on is valid, and says that the connection is closed.
fn answered(said: &[u8]) {
    let Ok(Some(answer)) = http::read_response_head(said) else { return };
    assert!(answer.length <= said.len().min(MAX_HEAD));
    let again = http::read_response_head(&answer.head).expect("it is one").expect("it is whole");
    assert_eq!((again.length, again.is_interim), (answer.head.len(), answer.is_interim));
    assert_eq!(again.head, answer.head, "what was written is written the same again");
}

fn greeted(said: &[u8]) {
    let Some((length, _)) = socks::read_greeting(said) else { return };
    assert!((2..=257).contains(&length));
    assert!((0..length).all(|end| socks::read_greeting(&said[..end]).is_none()));
    let said = &said[length..];
    let Ok(Some(request)) = socks::read_request(said) else { return };
    assert!((0..request.length).all(|end| socks::read_request(&said[..end]) == Ok(None)));
    assert!(request.port != 0 && !request.host.is_empty());
    assert!(request.host.len() <= sandbox_protocol::limits::MAX_HOST_BYTES);
}
