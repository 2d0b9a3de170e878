//! Ids of requests, and the trace that a request belongs to.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sandbox_dirfd::is_random_hex;

/// The header with the id, in requests and answers.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The most bytes of an id that a caller chose.
const MAX_ID_BYTES: usize = 64;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of a request: its caller's own, or a random one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(String);

impl RequestId {
    /// The id that the caller chose, if it is one that logs and headers can have.
    pub fn of(headers: &HeaderMap) -> Self {
        let chosen = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.:".contains(char);
        let chosen =
            chosen.filter(|id| (1..=MAX_ID_BYTES).contains(&id.len()) && id.chars().all(is_plain));
        Self(chosen.map_or_else(sandbox_dirfd::random_hex::<16>, str::to_owned))
    }

    /// For the answer.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }

    /// Runs the future as part of this request.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The request that is being handled, as its problem has it (`instance`).
#[must_use]
pub fn instance() -> Option<String> {
    current().map(|id| format!("urn:sandboxctl:request:{id}"))
}

/// The id of the request that is being handled.
pub(crate) fn current() -> Option<RequestId> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The trace and the span of W3C's `traceparent`.
pub(crate) fn trace(headers: &HeaderMap) -> Option<(&str, &str)> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    // A later version may have more parts.
    let fits = is_random_hex::<1>(version)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_random_hex::<16>(trace)
        && is_random_hex::<8>(span)
        && is_random_hex::<1>(flags)
        && !is_zero(trace)
        && !is_zero(span);
    fits.then_some((trace, span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_the_caller_is_kept_if_it_is_plain() {
        let of = |text: &'static str| {
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_static(text))]);
            RequestId::of(&headers).to_string()
        };
        assert_eq!(of("step-7_a.b:c"), "step-7_a.b:c");
        for odd in ["", "a b", "a\"b", "a/b"] {
            assert_eq!(of(odd).len(), 32, "{odd}");
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }

    #[test]
    fn traceparent_is_read_as_w3c_says() {
        let of = |text: &str| {
            let value = HeaderValue::from_str(text).unwrap();
            let headers = HeaderMap::from_iter([(TRACEPARENT, value)]);
            trace(&headers).map(|(trace, span)| (trace.to_owned(), span.to_owned()))
        };
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let expected = Some((trace.to_owned(), span.to_owned()));
        assert_eq!(of(&format!("00-{trace}-{span}-01")), expected);
        assert_eq!(of(&format!("01-{trace}-{span}-01-more")), expected);
        for wrong in [
            "00".to_owned(),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "0".repeat(32)),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
    }
}
