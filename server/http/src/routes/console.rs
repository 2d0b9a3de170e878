//! The console: a page for people, over the same API, with its assets.

use std::io::Read as _;
use std::sync::LazyLock;

use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    LOCATION, VARY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::read::GzDecoder;
use sandbox_api::ProblemKind;

use super::content::{Condition, condition};
use crate::lists::items;
use crate::refusal::{Refusal, Result};
use crate::response::set;

/// What was built, if it was: names and compressed contents.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console.rs"));
/// Their contents, inflated once and shared: requests for them need no credentials, and nothing else
/// bounds how often they come.
static PLAIN: LazyLock<Vec<Bytes>> =
    LazyLock::new(|| FILES.iter().map(|(_, gzip)| inflated(gzip)).collect());
const INDEX: &str = "index.html";
const ASSETS: &str = "/assets/";
/// The page of a program without the console.
const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>sandboxctl</title>\
    <meta name=\"viewport\" content=\"width=device-width\"><h1>sandboxctl</h1>\
    <p>This program was built without the console. In the sources, <code>scripts/console</code> builds it; then build \
    the program again.</p><p>The HTTP API is here all the same: <a href=\"/v1/openapi.json\">its OpenAPI \
    document</a>.</p></html>\n";

/// Nothing of other origins and no script but ours; styles that the terminal and the editor make.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
     font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const CROSS_ORIGIN_OPENER_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-opener-policy");
/// Another content has another name.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

pub(super) async fn page(headers: HeaderMap) -> Response {
    let mut response = match find(INDEX) {
        Some(at) => embedded(at, &headers),
        None => NOT_BUILT.into_response(),
    };
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    guarded(response)
}

pub(super) async fn asset(uri: Uri, headers: HeaderMap) -> Result<Response> {
    let none = || Refusal::new(ProblemKind::NotFound, "there is no such asset");
    let name = uri.path().strip_prefix(ASSETS).filter(|name| *name != INDEX).ok_or_else(none)?;
    let at = find(name).ok_or_else(none)?;
    let mut response = match condition(&headers, &format!("\"{name}\"")) {
        Condition::NotModified => StatusCode::NOT_MODIFIED.into_response(),
        _ => embedded(at, &headers),
    };
    let kept = response.headers_mut();
    kept.insert(CACHE_CONTROL, IMMUTABLE);
    // It is weak because both encodings have the same one.
    set(kept, ETAG, &format!("W/\"{name}\""));
    Ok(guarded(response))
}

/// Where the reference of the API is: without the console there is the document alone, for as long as that is so.
pub(super) async fn docs() -> Response {
    let (status, place) = match find(INDEX) {
        Some(_) => (StatusCode::PERMANENT_REDIRECT, "/#/reference"),
        None => (StatusCode::FOUND, "/v1/openapi.json"),
    };
    (status, [(LOCATION, HeaderValue::from_static(place))]).into_response()
}

fn find(name: &str) -> Option<usize> {
    FILES.iter().position(|(it, _)| *it == name)
}

fn inflated(gzip: &[u8]) -> Bytes {
    let mut content = Vec::new();
    let read = GzDecoder::new(gzip).read_to_end(&mut content);
    read.expect("the build has compressed it");
    content.into()
}

fn embedded(at: usize, headers: &HeaderMap) -> Response {
    let (name, gzip) = FILES[at];
    file(name, gzip, || PLAIN[at].clone(), headers)
}

/// A file, compressed for those who take that.
fn file(
    name: &str,
    gzip: &'static [u8],
    plain: impl FnOnce() -> Bytes,
    headers: &HeaderMap,
) -> Response {
    let mut response = match takes_gzip(headers) {
        true => ([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))], gzip).into_response(),
        false => plain().into_response(),
    };
    let kind = mime_guess::from_path(name).first_raw().unwrap_or("application/octet-stream");
    let charset = if kind.starts_with("text/") { "; charset=utf-8" } else { "" };
    set(response.headers_mut(), CONTENT_TYPE, &format!("{kind}{charset}"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    items(headers, ACCEPT_ENCODING).any(|item| {
        let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|it| it.parse::<f32>().ok());
        coding.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// With what keeps other pages out of this one.
fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(CROSS_ORIGIN_OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_compressed_for_those_who_take_that() {
        let takes = |value: &'static str| {
            takes_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        for value in ["gzip", "br, GZIP;q=0.5", "deflate,gzip;q=1"] {
            assert!(takes(value), "{value}");
        }
        for value in ["", "br", "gzip;q=0", "gzip; q=0.0", "x-gzip"] {
            assert!(!takes(value), "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn file_is_the_same_in_both_encodings_and_has_a_type() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"let a").unwrap();
        let gzip: &'static [u8] = encoder.finish().unwrap().leak();
        let mut headers = HeaderMap::new();
        let content = inflated(gzip);
        let plain = file("a-1.js", gzip, || content.clone(), &headers);
        assert_eq!(plain.headers()[CONTENT_TYPE], "text/javascript; charset=utf-8");
        assert!(!plain.headers().contains_key(CONTENT_ENCODING));
        let length = |response: &Response| {
            hyper::body::Body::size_hint(response.body()).exact().unwrap() as usize
        };
        assert_eq!(length(&plain), b"let a".len());
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let compressed = file("a-1.woff2", gzip, || unreachable!(), &headers);
        assert_eq!(compressed.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(compressed.headers()[CONTENT_TYPE], "font/woff2");
        assert_eq!(length(&compressed), gzip.len());
    }

    #[test]
    fn content_is_inflated_once_for_all() {
        assert_eq!(PLAIN.len(), FILES.len());
        for (at, (name, gzip)) in FILES.iter().enumerate() {
            assert_eq!(PLAIN[at], inflated(gzip), "{name}");
            assert_eq!(PLAIN[at].as_ptr(), PLAIN[at].clone().as_ptr(), "{name}");
        }
    }
}
