//! Headers that are lists, and tokens among the subprotocols of WebSockets, where pages have to put theirs.

use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sandbox_api::attach::BEARER_SUBPROTOCOL;

/// The items of a header that is a list.
pub(crate) fn items(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

/// The value of a header that is there once.
pub(crate) fn only(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Takes out of the subprotocols what follows this prefix: pages can send it with a WebSocket in no other way. It is not
/// sent on.
pub(crate) fn take_subprotocol(headers: &mut HeaderMap, prefix: &str) -> Option<String> {
    let mut taken = None;
    retain_subprotocols(headers, |item| {
        let found = item.strip_prefix(prefix);
        taken = found.map(str::to_owned).or(taken.take());
        found.is_none()
    });
    taken
}

/// Takes the token of a page for that of the request.
pub(crate) fn take_bearer(headers: &mut HeaderMap) {
    let Some(token) = take_subprotocol(headers, BEARER_SUBPROTOCOL) else { return };
    if let Some(token) = bearer(&token) {
        headers.entry(AUTHORIZATION).or_insert(token);
    }
}

/// The header of a token, if it can be one.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Takes the tokens that are ours out of the subprotocols of a request that goes to a guest.
pub(crate) fn drop_bearer(headers: &mut HeaderMap, is_ours: impl Fn(&str) -> bool) {
    retain_subprotocols(headers, |item| {
        !item.strip_prefix(BEARER_SUBPROTOCOL).is_some_and(&is_ours)
    });
}

/// Drops the other subprotocols.
fn retain_subprotocols(headers: &mut HeaderMap, mut is_kept: impl FnMut(&str) -> bool) {
    let all: Vec<&str> = items(headers, SEC_WEBSOCKET_PROTOCOL).collect();
    let kept: Vec<&str> = all.iter().copied().filter(|item| is_kept(item)).collect();
    if kept.len() == all.len() {
        return;
    }
    let kept = HeaderValue::from_str(&kept.join(", ")).ok().filter(|it| !it.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(kept) = kept {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_a_page_becomes_that_of_the_request_and_is_not_sent_on() {
        let taken = |protocols: &[&'static str], authorization: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            for value in protocols {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value));
            }
            if let Some(value) = authorization {
                headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            }
            take_bearer(&mut headers);
            let text = |name| headers.get(name).map(|it: &HeaderValue| it.to_str().unwrap());
            (
                text(SEC_WEBSOCKET_PROTOCOL).map(str::to_owned),
                text(AUTHORIZATION).map(str::to_owned),
            )
        };
        let some = |text: &str| Some(text.to_owned());
        let expected = (some("a, b"), some("Bearer t.x"));
        assert_eq!(taken(&["a, bearer.t.x,b"], None), expected);
        assert_eq!(taken(&["a", "bearer.t.x", "b"], None), expected);
        // That of the header counts.
        assert_eq!(taken(&["a, b, bearer.t"], Some("Bearer t.x")), expected);
        assert_eq!(taken(&["a,  b"], None), (some("a,  b"), None));
        assert_eq!(taken(&[], None), (None, None));
    }
}
