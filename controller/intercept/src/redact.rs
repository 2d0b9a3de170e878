//! Secrets in what a host answers: found in the forms in which servers repeat a request, and replaced by as
//! many stars, so that lengths, ranges and frames stay what they are.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::HeaderMap;
use hyper::body::{Frame, Incoming};
use hyper::header::HeaderValue;
use sandbox_api::Injection;
use sandbox_api::injection::Place;
use sandbox_redact::{Patterns, Stream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// How long the beginning of a secret is held back while a host sends nothing more.
const PAUSE: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 16 << 10;
/// What libraries leave of a text when they escape it for a URL, beside letters and digits: RFC 3986,
/// JavaScript's two, Python's, and that of forms.
const URL_SETS: [&[u8]; 5] = [b"-._~", b"-._~!'()*", b"-._~!'()*;,/?:@&=+$#", b"-._~/", b"-._*"];
/// How JSON (plain, PHP's, Go's, .NET's) and HTML (two) escape a text, in this order.
const ESCAPES: [&[(&str, &str)]; 6] = [
    &[("\\", "\\\\"), ("\"", "\\\"")],
    &[("\\", "\\\\"), ("\"", "\\\""), ("/", "\\/")],
    &[("\\", "\\\\"), ("\"", "\\\""), ("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")],
    &[
        ("\\", "\\\\"),
        ("\"", "\\u0022"),
        ("&", "\\u0026"),
        ("'", "\\u0027"),
        ("+", "\\u002B"),
        ("<", "\\u003C"),
        (">", "\\u003E"),
        ("`", "\\u0060"),
    ],
    &[("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&#39;")],
    &[("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&#34;"), ("'", "&#x27;")],
];

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// What is looked for in answers.
pub fn patterns(injections: &[Injection]) -> Arc<Patterns> {
    let mut all = Vec::new();
    for injection in injections {
        let secret = injection.value.as_bytes();
        forms(secret, &mut all);
        if let Place::Basic { user } = &injection.rule.place {
            let pair = [user.as_bytes(), b":", secret].concat();
            base64(&pair, &mut all);
        }
    }
    Arc::new(Patterns::new(all.iter().map(String::as_bytes)))
}

/// The forms of a secret, which is one line of ASCII.
fn forms(secret: &[u8], all: &mut Vec<String>) {
    let text = String::from_utf8_lossy(secret).into_owned();
    // Servers write the digits of an escape in either case, whatever that of the letters beside it.
    let digits: [fn(&u8) -> String; 2] =
        [|byte| format!("%{byte:02X}"), |byte| format!("%{byte:02x}")];
    for (kept, digits) in URL_SETS.into_iter().flat_map(|kept| digits.map(|it| (kept, it))) {
        let escaped = |byte: &u8| match byte.is_ascii_alphanumeric() || kept.contains(byte) {
            true => (*byte as char).to_string(),
            false => digits(byte),
        };
        let escaped: String = secret.iter().map(escaped).collect();
        // Patterns are looked for in lower case too.
        all.extend([escaped.replace("%20", "+"), escaped]);
    }
    for escapes in ESCAPES {
        let escape = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        all.push(escapes.iter().fold(text.clone(), escape));
    }
    base64(secret, all);
    all.push(secret.iter().map(|byte| format!("{byte:02X}")).collect());
    all.extend([text.to_ascii_uppercase(), text]);
}

/// The characters of base64 that the bytes alone decide, wherever they begin.
fn base64(bytes: &[u8], all: &mut Vec<String>) {
    for shift in 0..3 {
        let shifted = [&[0; 2][..shift.min(2)], bytes].concat();
        let (first, end) = ((shift * 8).div_ceil(6), shifted.len() * 8 / 6);
        for encoded in [STANDARD_NO_PAD.encode(&shifted), URL_SAFE_NO_PAD.encode(&shifted)] {
            all.push(encoded[first..end].to_owned());
        }
    }
}

/// A header whose name is secret is dropped.
pub fn headers(headers: &mut HeaderMap, patterns: &Patterns) {
    let mut cleaned = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter() {
        if patterns.same_length(name.as_str().as_bytes()).is_some() {
            continue;
        }
        let value = match patterns.same_length(value.as_bytes()) {
            Some(replaced) => HeaderValue::from_bytes(&replaced).ok(),
            None => Some(value.clone()),
        };
        if let Some(value) = value {
            cleaned.append(name.clone(), value);
        }
    }
    *headers = cleaned;
}

/// The secrets in one direction of a connection.
struct Redactor {
    stream: Stream,
    patterns: Arc<Patterns>,
}

impl Redactor {
    fn new(patterns: Arc<Patterns>) -> Self {
        Self { stream: Stream::of_same_length(), patterns }
    }

    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(bytes.len());
        self.stream.push(&self.patterns, bytes, &mut output);
        output
    }

    fn flush(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        self.stream.flush(&self.patterns, &mut output);
        output
    }

    /// What comes next; `None` if nothing does for so long that what is held back is passed on.
    async fn next<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        match self.stream.is_holding() {
            true => timeout(PAUSE, next).await.ok(),
            false => Some(next.await),
        }
    }
}

/// A body without secrets and without trailers.
pub fn body(body: Incoming, patterns: Arc<Patterns>) -> Body {
    let state = Some((body, Redactor::new(patterns)));
    let pieces = stream::try_unfold(state, |state| async move {
        let Some((mut body, mut redactor)) = state else { return Ok(None) };
        loop {
            let piece = match redactor.next(body.frame()).await {
                None => redactor.flush(),
                Some(None) => return Ok(Some((Frame::data(redactor.flush().into()), None))),
                Some(Some(frame)) => match frame?.into_data() {
                    Ok(data) => redactor.push(&data),
                    Err(_trailers) => continue,
                },
            };
            if !piece.is_empty() {
                return Ok(Some((Frame::data(Bytes::from(piece)), Some((body, redactor)))));
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Copies what a host sends, until it ends.
pub async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    patterns: Arc<Patterns>,
) -> std::io::Result<()> {
    let mut redactor = Redactor::new(patterns);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let piece = match redactor.next(from.read(&mut buffer)).await.transpose()? {
            None => redactor.flush(),
            Some(0) => break,
            Some(count) => redactor.push(&buffer[..count]),
        };
        to.write_all(&piece).await?;
        to.flush().await?;
    }
    to.write_all(&redactor.flush()).await?;
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injection(rule: &str, value: &str) -> Injection {
        let rule: sandbox_api::InjectRule = rule.parse().unwrap();
        rule.with(sandbox_api::SecretValue::new(value)).unwrap()
    }

    #[test]
    fn a_secret_is_found_in_the_forms_in_which_servers_repeat_it() {
        let secret = "p/+w \"<1>&~'x==";
        let found = patterns(&[injection("a.example: basic me:env:A", secret)]);
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("me:{secret}"));
        for text in [
            secret.to_owned(),
            secret.to_ascii_lowercase(),
            secret.to_ascii_uppercase(),
            "p%2F%2Bw%20%22%3C1%3E%26~%27x%3D%3D".to_owned(),
            "p%2f%2bw%20%22%3c1%3e%26~%27x%3d%3d".to_owned(),
            "p/%2Bw%20%22%3C1%3E%26~%27x%3D%3D".to_owned(),
            "p%2F%2Bw+%22%3C1%3E%26%7E%27x%3D%3D".to_owned(),
            "p/+w \\\"<1>&~'x==".to_owned(),
            "p\\/+w \\\"<1>&~'x==".to_owned(),
            "p/+w \\\"\\u003c1\\u003e\\u0026~'x==".to_owned(),
            "p/+w &quot;&lt;1&gt;&amp;~&#39;x==".to_owned(),
            "702f2b7720223c313e267e27783d3d".to_owned(),
        ] {
            let replaced = found.same_length(format!("<{text}>").as_bytes()).expect(&text);
            assert_eq!(replaced.len(), text.len() + 2);
            assert_eq!(replaced, format!("<{}>", "*".repeat(text.len())).as_bytes(), "{text}");
        }
        // All but the padding, which says nothing.
        let replaced = found.same_length(encoded.as_bytes()).unwrap();
        assert!(replaced.iter().filter(|&&byte| byte != b'*').count() <= 3, "{encoded}");
        for before in ["", "a", "ab"] {
            let encoded = STANDARD_NO_PAD.encode(format!("{before}{secret}yz"));
            let replaced = found.same_length(encoded.as_bytes()).unwrap();
            let shown = replaced.iter().filter(|&&byte| byte != b'*').count();
            assert!(shown <= encoded.len() - secret.len() * 8 / 6 + 2, "{before}");
        }
        assert_eq!(found.same_length(b"nothing of it"), None);
        // Letters of one case beside digits of the other.
        let mixed = patterns(&[injection("a.example: A: env:A", "aB/+Cd")]);
        for text in ["aB%2f%2bCd", "aB%2F%2BCd", "aB/\\u002BCd"] {
            let replaced = mixed.same_length(text.as_bytes()).expect(text);
            assert_eq!(replaced, "*".repeat(text.len()).as_bytes(), "{text}");
        }
    }
}
