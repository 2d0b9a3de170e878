//! Content of files: ranges, conditions, and headers that let no browser run it.

use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, IF_MATCH,
    IF_NONE_MATCH, IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use sandbox_api::files::WriteMode;
use sandbox_api::{ProblemKind, encode_percent};

use crate::refusal::{Refusal, Result};
use crate::response::set;

/// Which part of a file an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// All of it.
    Whole,
    /// The bytes from the first to the last, both included.
    Range(u64, u64),
    /// None: the range is past its end.
    None,
}

/// What the conditions of a request say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Answer it.
    Holds,
    /// The client has it already.
    NotModified,
    /// The client wants another one.
    Failed,
}

/// Checks `If-Match` and `If-None-Match` against the file's own ETag.
pub(super) fn condition(headers: &HeaderMap, etag: &str) -> Condition {
    // A weak tag is as good as a strong one for what is only to be skipped.
    let has = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter().peekable();
        let is_there = values.peek().is_some();
        let texts = values.filter_map(|value| value.to_str().ok());
        let matches = texts.flat_map(|text| text.split(',')).any(|tag| {
            let tag = tag.trim();
            let weak = tag.strip_prefix("W/").filter(|_| *name == IF_NONE_MATCH);
            tag == "*" || weak.unwrap_or(tag) == etag
        });
        is_there.then_some(matches)
    };
    match (has(&IF_MATCH), has(&IF_NONE_MATCH)) {
        (Some(false), _) => Condition::Failed,
        (_, Some(true)) => Condition::NotModified,
        _ => Condition::Holds,
    }
}

/// Refuses an `If-Match` that names ETags: a file of a sandbox has none.
pub(super) fn refuse_etags(headers: &HeaderMap) -> Result<()> {
    match headers.get_all(IF_MATCH).iter().all(|value| value == "*") {
        true => Ok(()),
        false => Err(Refusal::new(
            ProblemKind::PreconditionFailed,
            "a file of a sandbox has no ETag that If-Match could name",
        )),
    }
}

/// How a file of a sandbox is to be written, by the conditions of a request.
pub(super) fn write_mode(headers: &HeaderMap) -> Result<WriteMode> {
    if headers.contains_key(CONTENT_RANGE) {
        let detail = "a file is written whole: Content-Range is not supported";
        return Err(Refusal::new(ProblemKind::Malformed, detail));
    }
    if headers.contains_key(IF_MATCH) {
        let detail = "a file of a sandbox has no ETag: the only condition is If-None-Match: *";
        return Err(Refusal::new(ProblemKind::PreconditionFailed, detail));
    }
    let is_new = headers.get_all(IF_NONE_MATCH).iter().any(|value| value == "*");
    Ok(if is_new { WriteMode::CreateNew } else { WriteMode::Overwrite })
}

/// The part that a request is for.
pub(super) fn part(method: &Method, headers: &HeaderMap, etag: &str, bytes: u64) -> ContentRange {
    let if_range = headers.get(IF_RANGE).and_then(|value| value.to_str().ok());
    // A date is never newer than a digest.
    match if_range.is_some_and(|tag| tag != etag) {
        true => ContentRange::Whole,
        false => content_range(method, headers, bytes),
    }
}

/// The part of so many bytes that the `Range` of a request is for. What is no single range is for all of them, and so
/// is every method but GET (RFC 9110, section 14.2).
#[must_use]
pub fn content_range(method: &Method, headers: &HeaderMap, bytes: u64) -> ContentRange {
    let range = headers.get(RANGE).filter(|_| *method == Method::GET);
    let range = range.and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let range = range.and_then(|range| range.trim().split_once('-'));
    let Some((first, last)) = range else { return ContentRange::Whole };
    let number = |text: &str| -> Option<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Larger ones are past the end of any file.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        // The last so many bytes.
        (None, Some(0)) if first.is_empty() => ContentRange::None,
        (None, Some(_)) if first.is_empty() && bytes == 0 => ContentRange::None,
        (None, Some(count)) if first.is_empty() => {
            ContentRange::Range(bytes.saturating_sub(count), bytes - 1)
        }
        (Some(first), Some(last)) if last < first => ContentRange::Whole,
        (Some(first), _) if first >= bytes => match last.is_empty() || number(last).is_some() {
            true => ContentRange::None,
            false => ContentRange::Whole,
        },
        (Some(first), Some(last)) => ContentRange::Range(first, last.min(bytes - 1)),
        (Some(first), None) if last.is_empty() => ContentRange::Range(first, bytes - 1),
        _ => ContentRange::Whole,
    }
}

/// Adds the headers of every response with content of a sandbox: it is a file to save, for any
/// content.
pub(super) fn as_attachment(headers: &mut HeaderMap, path: &[u8]) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let mime = mime_guess::from_path(&*String::from_utf8_lossy(name)).first_raw();
    let mime = mime.unwrap_or("application/octet-stream");
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(mime));
    set(headers, CONTENT_DISPOSITION, &disposition(name));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"),
    );
}

/// RFC 6266: the name in ASCII, and in UTF-8 where it differs.
fn disposition(name: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_. ()+,=@".contains(byte);
    let plain: String =
        name.iter().map(|byte| if is_plain(byte) { char::from(*byte) } else { '_' }).collect();
    let mut text = format!("attachment; filename=\"{plain}\"");
    if plain.as_bytes() != name {
        let name = String::from_utf8_lossy(name);
        text.push_str("; filename*=UTF-8''");
        text.push_str(&encode_percent(name.as_bytes(), b"-_."));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let pairs =
            pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn range_is_one_part_of_the_file() {
        for (range, bytes, expected) in [
            ("bytes=0-9", 100, ContentRange::Range(0, 9)),
            ("bytes=0-0", 1, ContentRange::Range(0, 0)),
            ("bytes=90-", 100, ContentRange::Range(90, 99)),
            ("bytes=90-1000", 100, ContentRange::Range(90, 99)),
            ("bytes=-10", 100, ContentRange::Range(90, 99)),
            ("bytes=-1000", 100, ContentRange::Range(0, 99)),
            ("bytes=100-", 100, ContentRange::None),
            ("bytes=100-200", 100, ContentRange::None),
            ("bytes=99999999999999999999-", 100, ContentRange::None),
            ("bytes=-0", 100, ContentRange::None),
            ("bytes=0-", 0, ContentRange::None),
            ("bytes=-1", 0, ContentRange::None),
            ("bytes=9-0", 100, ContentRange::Whole),
            ("bytes=0-1,3-4", 100, ContentRange::Whole),
            ("bytes=a-b", 100, ContentRange::Whole),
            ("bytes=1-b", 100, ContentRange::Whole),
            ("bytes=-", 100, ContentRange::Whole),
            ("bytes=", 100, ContentRange::Whole),
            ("bytes=+1-2", 100, ContentRange::Whole),
            ("bytes=1-+2", 100, ContentRange::Whole),
            ("lines=0-9", 100, ContentRange::Whole),
        ] {
            assert_eq!(
                part(&Method::GET, &with(&[(RANGE, range)]), "\"a\"", bytes),
                expected,
                "{range} of {bytes}"
            );
        }
        assert_eq!(part(&Method::GET, &HeaderMap::new(), "\"a\"", 100), ContentRange::Whole);
    }

    #[test]
    fn range_is_ignored_by_every_method_but_get() {
        for range in ["bytes=0-9", "bytes=100-"] {
            let headers = with(&[(RANGE, range)]);
            assert_eq!(content_range(&Method::HEAD, &headers, 100), ContentRange::Whole);
        }
    }

    #[test]
    fn range_of_another_content_is_the_whole_file() {
        let headers = |tag| with(&[(RANGE, "bytes=0-9"), (IF_RANGE, tag)]);
        let of = |tag| part(&Method::GET, &headers(tag), "\"a\"", 100);
        assert_eq!(of("\"a\""), ContentRange::Range(0, 9));
        assert_eq!(of("\"b\""), ContentRange::Whole);
        // Only a strong validator may be continued.
        assert_eq!(of("W/\"a\""), ContentRange::Whole);
        assert_eq!(of("Wed, 21 Oct 2026 07:28:00 GMT"), ContentRange::Whole);
    }

    #[test]
    fn conditions_compare_the_digest() {
        let of = |name: HeaderName, value| condition(&with(&[(name, value)]), "\"a\"");
        assert_eq!(condition(&HeaderMap::new(), "\"a\""), Condition::Holds);
        assert_eq!(of(IF_NONE_MATCH, "\"b\", W/\"a\""), Condition::NotModified);
        assert_eq!(of(IF_NONE_MATCH, "*"), Condition::NotModified);
        assert_eq!(of(IF_NONE_MATCH, "\"b\""), Condition::Holds);
        assert_eq!(of(IF_MATCH, "\"a\""), Condition::Holds);
        assert_eq!(of(IF_MATCH, "\"b\""), Condition::Failed);
        assert_eq!(of(IF_MATCH, "W/\"a\""), Condition::Failed);
        let both = with(&[(IF_MATCH, "\"b\""), (IF_NONE_MATCH, "\"a\"")]);
        assert_eq!(condition(&both, "\"a\""), Condition::Failed);
    }

    #[test]
    fn write_of_a_file_without_an_etag_has_one_condition() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            write_mode(&with(pairs)).map_err(|refusal| refusal.problem().status)
        };
        assert_eq!(of(&[]), Ok(WriteMode::Overwrite));
        assert_eq!(of(&[(IF_NONE_MATCH, "*")]), Ok(WriteMode::CreateNew));
        assert_eq!(of(&[(IF_NONE_MATCH, "\"a\"")]), Ok(WriteMode::Overwrite));
        assert_eq!(of(&[(IF_MATCH, "\"a\"")]), Err(412));
        assert_eq!(of(&[(IF_MATCH, "*")]), Err(412));
        assert_eq!(of(&[(CONTENT_RANGE, "bytes 3-3/16")]), Err(400));
        assert!(refuse_etags(&with(&[(IF_MATCH, "*")])).is_ok());
        assert!(refuse_etags(&with(&[(IF_MATCH, "\"a\"")])).is_err());
    }

    #[test]
    fn name_of_an_attachment_breaks_no_header() {
        assert_eq!(disposition(b"a b.txt"), "attachment; filename=\"a b.txt\"");
        assert_eq!(
            disposition("ä\"\r\n.csv".as_bytes()),
            "attachment; filename=\"_____.csv\"; filename*=UTF-8''%C3%A4%22%0D%0A.csv",
        );
        let mut headers = HeaderMap::new();
        as_attachment(&mut headers, b"dir/page.html");
        assert_eq!(headers[CONTENT_DISPOSITION], "attachment; filename=\"page.html\"");
        assert_eq!(headers[CONTENT_TYPE], "text/html");
        as_attachment(&mut headers, b"\xff");
        assert_eq!(headers[CONTENT_TYPE], "application/octet-stream");
    }
}
