//! HTTP, as far as a proxy must parse it: the head of a request, the end of its body, the head of
//! the response.
//!
//! A plain request (`GET http://host/path`) is sent on a separate connection and asks the server to
//! close it; the response asks the client to do the same. So every request is decided separately,
//! and nothing after its body is ever sent to its host. Pure: no I/O.

/// Longest head, and most header lines in it.
pub const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 100;

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The host as it was written, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What to do once the connection is established.
    pub then: OnConnect,
    /// How many of the received bytes are the head.
    pub length: usize,
}

/// What to do once the connection is established.
#[derive(Debug, PartialEq, Eq)]
pub enum OnConnect {
    /// `CONNECT`: the connection is handed to the client.
    Tunnel,
    /// One request, with this rewritten head, and its body.
    Forward {
        /// The head.
        head: Vec<u8>,
        /// Where the body ends.
        body: Body,
    },
}

/// A head that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bad {
    /// The status.
    pub status: u16,
    /// The reason, for people.
    pub why: &'static str,
}

const fn bad<T>(why: &'static str) -> Result<T, Bad> {
    Err(Bad { status: 400, why })
}

/// Parses a request's head; `None` if it is incomplete.
pub fn read_request(bytes: &[u8]) -> Result<Option<ConnectRequest>, Bad> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(&bytes[..bytes.len().min(MAX_HEAD)]) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Bad { status: 431, why: "the request's head is too long" });
        }
        Err(_) => return bad("this is not an HTTP request"),
    };
    let (Some(method), Some(uri)) = (request.method, request.path) else {
        return bad("this is not an HTTP request");
    };
    if method == "CONNECT" {
        let Some((host, Some(port))) = split_authority(uri) else {
            return bad("CONNECT takes HOST:PORT");
        };
        return Ok(Some(ConnectRequest {
            host: host.to_owned(),
            port,
            then: OnConnect::Tunnel,
            length,
        }));
    }
    let scheme = uri.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let Some(rest) = scheme.map(|_| &uri[7..]) else {
        return bad("this is a proxy: it takes http:// URLs, and CONNECT for everything else");
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let Some((host, port)) = split_authority(authority) else {
        return bad("the URL has no proper host");
    };
    let port = port.unwrap_or(80);
    if path.contains('#') {
        return bad("the URL has a fragment");
    }
    let headers = &*request.headers;
    let version = request.version.unwrap_or(0);
    check_host(headers, host, port, version)?;
    let body = Body::of_request(headers)?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut head =
        format!("{method} {slash}{path} HTTP/1.{version}\r\nHost: {authority}\r\n").into_bytes();
    copy_headers(headers, &["host"], &mut head);
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Some(ConnectRequest {
        host: host.to_owned(),
        port,
        then: OnConnect::Forward { head, body },
        length,
    }))
}

/// `HOST` or `HOST:PORT`; brackets around an IPv6 address are removed. No user info.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_plain = !host.is_empty()
        && host.len() <= sandbox_protocol::limits::MAX_HOST_BYTES
        && !host.contains(['@', '[', ']', '\\', '/', '?', '#']);
    let port = match port {
        None | Some("") => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse().ok().filter(|&port| port != 0)?)
        }
        Some(_) => return None,
    };
    is_plain.then_some((host, port))
}

/// Servers use the `Host` header, so it must match the URL.
fn check_host(
    headers: &[httparse::Header<'_>],
    host: &str,
    port: u16,
    version: u8,
) -> Result<(), Bad> {
    let mut named = values(headers, "host");
    match (named.next(), named.next()) {
        (None, _) if version == 0 => Ok(()),
        (None, _) => bad("the request has no Host header"),
        (Some(_), Some(_)) => bad("the request has two Host headers"),
        (Some(value), None) => {
            let same = std::str::from_utf8(value).ok().and_then(split_authority).is_some_and(
                |(name, named)| {
                    let bare =
                        |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
                    bare(name) == bare(host) && named.unwrap_or(80) == port
                },
            );
            if same { Ok(()) } else { bad("the Host header names another host than the URL") }
        }
    }
}

/// The trimmed values of the headers with this name.
fn values<'a>(
    headers: &'a [httparse::Header<'a>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value.trim_ascii())
}

/// Hop-by-hop headers (RFC 9110, 7.6.1), except those that frame a body.
const HOP: &[&str] = &[
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "upgrade",
];

/// Copies the headers except hop-by-hop ones, those that `Connection` names, and these.
fn copy_headers(headers: &[httparse::Header<'_>], without: &[&str], head: &mut Vec<u8>) {
    let named: Vec<&[u8]> = values(headers, "connection")
        .flat_map(|value| value.split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    // Listing a header that frames the body would make the next hop see another body.
    let framing = |name: &str| {
        name.eq_ignore_ascii_case("content-length")
            || name.eq_ignore_ascii_case("transfer-encoding")
    };
    for header in headers {
        let name = header.name;
        let is_hop = HOP.iter().chain(without).any(|hop| name.eq_ignore_ascii_case(hop))
            || (!framing(name)
                && named.iter().any(|hop| name.as_bytes().eq_ignore_ascii_case(hop)));
        if !is_hop {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(header.value);
            head.extend_from_slice(b"\r\n");
        }
    }
}

/// How much of a request's body is still missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// This many bytes.
    Length(u64),
    /// A chunked body.
    Chunked(Chunks),
}

/// The state of the chunk parser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunks {
    /// In a line with a chunk size.
    Size(Vec<u8>),
    /// In a chunk with this many bytes left, and the line end after it.
    Data(u64),
    /// In the trailer: bytes of the current line, and of all lines.
    Trailer {
        /// Bytes of this line without its line end.
        line: usize,
        /// Bytes of all lines.
        all: usize,
    },
    /// After the end.
    Done,
}

/// Longest line with a chunk size, including extensions.
const MAX_SIZE_LINE: usize = 256;

impl Body {
    fn of_request(headers: &[httparse::Header<'_>]) -> Result<Self, Bad> {
        let mut lengths = values(headers, "content-length");
        let mut codings = values(headers, "transfer-encoding");
        match (lengths.next(), codings.next(), lengths.next().is_some() || codings.next().is_some())
        {
            (_, _, true) => bad("the request says twice how long its body is"),
            (Some(_), Some(_), _) => {
                bad("the request has a Content-Length and a Transfer-Encoding")
            }
            (None, None, _) => Ok(Self::Length(0)),
            (None, Some(coding), _) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(Self::Chunked(Chunks::Size(Vec::new())))
            }
            (None, Some(_), _) => {
                Err(Bad { status: 501, why: "this Transfer-Encoding is not known here" })
            }
            (Some(length), None, _) => {
                let text = std::str::from_utf8(length).unwrap_or_default();
                let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                match text.parse() {
                    Ok(length) if is_digits => Ok(Self::Length(length)),
                    _ => bad("the Content-Length is not a number"),
                }
            }
        }
    }

    /// How many of these bytes belong to the body.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        match self {
            Self::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                Ok(count)
            }
            Self::Chunked(chunks) => chunks.take(bytes),
        }
    }
}

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        let mut at = 0;
        while at < bytes.len() && *self != Self::Done {
            match self {
                Self::Size(line) => {
                    let byte = bytes[at];
                    at += 1;
                    line.push(byte);
                    if line.len() > MAX_SIZE_LINE {
                        return bad("a chunk's size is too long");
                    }
                    if byte == b'\n' {
                        *self = match chunk_size(line) {
                            Some(0) => Self::Trailer { line: 0, all: 0 },
                            // Including the line end after it.
                            Some(size) => Self::Data(size + 2),
                            None => return bad("a chunk without its size"),
                        };
                    }
                }
                Self::Data(left) => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    // The last two bytes must be a line end; otherwise it is not a chunked body.
                    let ends = [b'\r', b'\n'];
                    for (index, &byte) in bytes[at..at + count].iter().enumerate().rev().take(2) {
                        match *left - index as u64 {
                            rest @ (1 | 2) if byte != ends[2 - rest as usize] => {
                                return bad("a chunk without its end");
                            }
                            _ => {}
                        }
                    }
                    at += count;
                    *left -= count as u64;
                    if *left == 0 {
                        *self = Self::Size(Vec::new());
                    }
                }
                Self::Trailer { line, all } => {
                    let byte = bytes[at];
                    at += 1;
                    *all += 1;
                    if *all > MAX_HEAD {
                        return bad("the trailer is too long");
                    }
                    match byte {
                        b'\n' if *line == 0 => *self = Self::Done,
                        b'\n' => *line = 0,
                        b'\r' => {}
                        _ => *line += 1,
                    }
                }
                Self::Done => {}
            }
        }
        Ok(at)
    }
}

/// The size in a chunk's first line. httparse's own parser treats an empty line as zero, and
/// accepts forms on which servers disagree.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line.strip_suffix(b"\r\n")?).ok()?;
    let digits = line.split(';').next()?;
    let is_size =
        (1..=15).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_size.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// The head of a response, as the client gets it.
#[derive(Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The head.
    pub head: Vec<u8>,
    /// How many of the received bytes it used.
    pub length: usize,
    /// Another head follows (1xx).
    pub is_interim: bool,
}

/// Parses the head of a response; `None` if it is incomplete. Anything that is not a valid head is
/// passed on unchanged.
pub fn read_response_head(bytes: &[u8]) -> Result<Option<ResponseHead>, ()> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(&bytes[..bytes.len().min(MAX_HEAD)]) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        _ => return Err(()),
    };
    let (Some(code), Some(version)) = (response.code, response.version) else { return Err(()) };
    let reason = response.reason.unwrap_or_default();
    let mut head = format!("HTTP/1.{version} {code:03} {reason}\r\n").into_bytes();
    let is_interim = (100..200).contains(&code);
    copy_headers(response.headers, &[], &mut head);
    if !is_interim {
        head.extend_from_slice(b"Connection: close\r\n");
    }
    head.extend_from_slice(b"\r\n");
    Ok(Some(ResponseHead { head, length, is_interim }))
}

/// The response to `CONNECT` once the connection is established.
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A response of the proxy itself.
pub fn answer(status: u16, text: &str) -> Vec<u8> {
    let phrase = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    };
    let length = text.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    );
    answer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Body {
        /// Whether it is complete.
        const fn is_done(&self) -> bool {
            matches!(self, Self::Length(0) | Self::Chunked(Chunks::Done))
        }
    }

    fn request(text: &str) -> Result<Option<ConnectRequest>, Bad> {
        read_request(text.as_bytes())
    }

    fn forwarded(text: &str) -> (String, u16, String, Body) {
        match request(text).unwrap().unwrap() {
            ConnectRequest { host, port, then: OnConnect::Forward { head, body }, .. } => {
                (host, port, String::from_utf8(head).unwrap(), body)
            }
            request => panic!("{request:?}"),
        }
    }

    #[test]
    fn connect_names_a_host_and_a_port() {
        for (authority, host, port) in [
            ("ok.example:443", "ok.example", 443),
            ("OK.example.:22", "OK.example.", 22),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:8080", "::1", 8080),
            ("[::1%lo]:8080", "::1%lo", 8080),
            ("0x7f.1:80", "0x7f.1", 80),
        ] {
            let request = request(&format!("CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\nmore"));
            let request = request.unwrap().unwrap();
            assert_eq!(
                (request.host.as_str(), request.port, request.then),
                (host, port, OnConnect::Tunnel)
            );
            assert_eq!(request.length, authority.len() + 30, "{authority}");
        }
        for authority in [
            "ok.ex/mple:443", "ok.example", ":443", "ok.example:", "ok.example:0",
            "ok.example:65536", "ok.example:+80", "ok.example:80:80", "::1:80", "[::1]", "[::1:80",
            "u@ok.example:80", "[]:80", "http://ok.example:80", "/",
        ] {
            let text = format!("CONNECT {authority} HTTP/1.1\r\n\r\n");
            assert!(request(&text).is_err(), "{authority}");
        }
        let long = "a".repeat(256);
        assert!(request(&format!("CONNECT {long}:80 HTTP/1.1\r\n\r\n")).is_err());
    }

    #[test]
    fn a_plain_request_goes_out_to_its_host_alone() {
        let (host, port, head, body) = forwarded(
            "GET http://Ok.example/a?b=c HTTP/1.1\r\nHost: ok.EXAMPLE\r\nAccept: */*\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\n\
             Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\n\r\n",
        );
        assert_eq!((host.as_str(), port, body), ("Ok.example", 80, Body::Length(0)));
        assert_eq!(
            head,
            "GET /a?b=c HTTP/1.1\r\nHost: Ok.example\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        for (uri, line, port) in [
            ("http://ok.example", "GET / ", 80),
            ("HTTP://ok.example?q", "GET /?q ", 80),
            ("http://ok.example:/", "GET / ", 80),
            ("http://ok.example:8080//x", "GET //x ", 8080),
        ] {
            let host = if port == 80 { "ok.example" } else { "ok.example:8080" };
            let (_, found, head, _) =
                forwarded(&format!("GET {uri} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert!(head.starts_with(line), "{uri}: {head}");
            assert_eq!(found, port);
        }
        let (host, .., head, _) = forwarded("GET http://[::1]:8080/ HTTP/1.0\r\n\r\n");
        assert_eq!(host, "::1");
        assert!(head.starts_with("GET / HTTP/1.0\r\nHost: [::1]:8080\r\n"), "{head}");
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        let get = |uri: &str, headers: &str| {
            request(&format!("POST {uri} HTTP/1.1\r\n{headers}\r\n")).unwrap_err()
        };
        let ok = "Host: ok.example\r\n";
        for (uri, headers, words) in [
            ("/", ok, "a proxy"),
            ("https://ok.example/", ok, "a proxy"),
            ("ftp://ok.example/", ok, "a proxy"),
            ("http:/ok.example/", ok, "a proxy"),
            ("http://", ok, "no proper host"),
            ("http:///x", ok, "no proper host"),
            ("http://ok.example@evil/", ok, "no proper host"),
            ("http://ok.example\\@evil/", ok, "no proper host"),
            ("http://ok.example:x/", ok, "no proper host"),
            ("http://ok.example/#x", ok, "fragment"),
            ("http://ok.example/", "", "no Host"),
            ("http://ok.example/", "Host: evil.example\r\n", "another host"),
            ("http://ok.example/", "Host: ok.example:81\r\n", "another host"),
            ("http://ok.example/", "Host: ok.example.evil\r\n", "another host"),
            ("http://ok.example/", "Host: \r\n", "another host"),
            ("http://ok.example/", "Host: ok.example\r\nhost: evil\r\n", "two Host"),
            (
                "http://ok.example/",
                "Host: ok.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                "and a",
            ),
            (
                "http://ok.example/",
                "Host: ok.example\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
                "twice",
            ),
            (
                "http://ok.example/",
                "Host: ok.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                "twice",
            ),
            (
                "http://ok.example/",
                "Host: ok.example\r\nTransfer-Encoding: gzip, chunked\r\n",
                "not known",
            ),
            (
                "http://ok.example/",
                "Host: ok.example\r\nTransfer-Encoding: xchunked\r\n",
                "not known",
            ),
            ("http://ok.example/", "Host: ok.example\r\nContent-Length: +1\r\n", "not a number"),
            ("http://ok.example/", "Host: ok.example\r\nContent-Length: \r\n", "not a number"),
            ("http://ok.example/", "Host: ok.example\r\nContent-Length: 1, 1\r\n", "not a number"),
            (
                "http://ok.example/",
                "Host: ok.example\r\nContent-Length: 99999999999999999999\r\n",
                "not a number",
            ),
            ("http://ok.example/", "Host : ok.example\r\n", "not an HTTP"),
            ("http://ok.example/", " Host: ok.example\r\n", "not an HTTP"),
            ("http://ok.exa\u{1}mple/", ok, "not an HTTP"),
        ] {
            let bad = get(uri, headers);
            assert!(bad.why.contains(words), "{uri} {headers:?}: {}", bad.why);
        }
        assert!(request("GET http://ok.example/ HTTP/2.0\r\n\r\n").is_err());
        assert!(request("\x16\x03\x01garbage\r\n\r\n").is_err());
        let long = format!("GET http://ok.example/ HTTP/1.1\r\nX: {}", "x".repeat(MAX_HEAD));
        assert_eq!(request(&long).unwrap_err().status, 431);
        let many = format!("GET http://ok.example/ HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
        assert_eq!(request(&many).unwrap_err().status, 431);
    }

    #[test]
    fn framing_that_connection_names_stays() {
        let (.., head, body) = forwarded(
            "POST http://ok.example/ HTTP/1.1\r\nHost: ok.example\r\nContent-Length: 5\r\n\
             Connection: content-length\r\n\r\n",
        );
        assert_eq!(body, Body::Length(5));
        assert!(head.contains("Content-Length: 5\r\n"), "{head}");
    }

    #[test]
    fn a_body_ends_where_its_framing_says() {
        let mut body = Body::Length(5);
        assert_eq!(body.take(b"abc"), Ok(3));
        assert!(!body.is_done());
        assert_eq!(body.take(b"deGET http://evil/"), Ok(2));
        assert!(body.is_done());
        let text = b"4;x=y\r\nWiki\r\n6\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nX: y\r\n\r\n";
        for piece in 1..=text.len() {
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            for piece in text.chunks(piece) {
                assert_eq!(body.take(piece), Ok(piece.len()));
            }
            assert!(body.is_done(), "{piece}");
            assert_eq!(body.take(b"GET http://evil/"), Ok(0));
        }
        let mut body = Body::Chunked(Chunks::Size(Vec::new()));
        assert_eq!(body.take(b"0\r\n\r\nGET "), Ok(5));
        for bad in [
            "x\r\n", "\r\n", "-1\r\n", "1\r\nabc", "1\r\na\nb", "1\r\na\rb",
            "fffffffffffffffff\r\n",
        ] {
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            assert!(body.take(bad.as_bytes()).is_err(), "{bad:?}");
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            assert!(bad.bytes().any(|byte| body.take(&[byte]).is_err()), "{bad:?} in pieces");
        }
        for endless in ["1".repeat(300), format!("0\r\n{}", "X: y\r\n".repeat(5000))] {
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            assert!(body.take(endless.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_response_announces_the_end_of_the_connection() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\
                    Keep-Alive: timeout=5\r\n\r\nhi";
        let answer = read_response_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!(
            answer.head,
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(&text[answer.length..], "hi");
        assert!(!answer.is_interim);
        let interim = read_response_head(b"HTTP/1.1 100 Continue\r\n\r\nHTTP").unwrap().unwrap();
        assert_eq!(interim.head, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert!(interim.is_interim);
        let zeros = read_response_head(b"HTTP/1.1 007 x\r\n\r\n").unwrap().unwrap();
        assert!(zeros.head.starts_with(b"HTTP/1.1 007 x\r\n"), "a status has three digits");
        assert_eq!(read_response_head(b"HTTP/1.1 200 OK\r\nA: "), Ok(None));
        assert_eq!(read_response_head(b"SSH-2.0\r\n"), Err(()));
        assert_eq!(read_response_head(&[b'H'; MAX_HEAD]), Err(()));
    }

    #[test]
    fn a_response_of_the_proxy_is_complete() {
        let text = String::from_utf8(answer(403, "no: ü")).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"));
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    }

    proptest! {
        #[test]
        fn garbage_is_not_a_request_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            _ = read_request(&bytes);
            _ = read_response_head(&bytes);
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            if let Ok(count) = body.take(&bytes) {
                prop_assert!(count == bytes.len() || body.is_done());
            }
        }

        #[test]
        fn cuts_in_a_chunked_body_make_no_difference(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cut in 1_usize..20,
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\n");
            let mut body = Body::Chunked(Chunks::Size(Vec::new()));
            for piece in text.chunks(cut) {
                prop_assert!(!body.is_done());
                prop_assert_eq!(body.take(piece), Ok(piece.len()));
            }
            prop_assert!(body.is_done());
        }
    }
}
