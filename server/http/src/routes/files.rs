//! The files that an execution left.

use std::io::{Seek as _, SeekFrom};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use sandbox_api::ProblemKind;
use sandbox_service::{ArchiveFormat, OpenFile};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::content::{Condition, ContentRange, as_attachment, condition, part};
use super::params::{ArchiveParams, Format};
use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{FilePath, Id, Params};
use crate::response::{json_response, set};

/// What is read of a file at a time.
const CHUNK: usize = 256 << 10;

pub(super) async fn list(State(app): State<App>, caller: Caller, Id(id): Id) -> Result<Response> {
    let files = app.service.files(&caller.subject, &id).await?;
    Ok(json_response(StatusCode::OK, &files))
}

pub(super) async fn changes(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response> {
    let changes = app.service.changes(&caller.subject, &id).await?;
    Ok(json_response(StatusCode::OK, &changes))
}

pub(super) async fn archive(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(params): Params<ArchiveParams>,
) -> Result<Response> {
    let (format, mime, suffix) = match params.format {
        Format::TarGz => (ArchiveFormat::TarGzip, "application/gzip", "tar.gz"),
        Format::TarZst => (ArchiveFormat::TarZstd, "application/zstd", "tar.zst"),
    };
    let stream = app.service.archive(&caller.subject, &id, format).await?;
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    as_attachment(headers, format!("{id}.{suffix}").as_bytes());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(mime));
    Ok(response)
}

pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    FilePath(path): FilePath,
    method: Method,
    headers: HeaderMap,
) -> Result<Response> {
    let file = app.service.open_file(&caller.subject, &id, &path).await?;
    // A strong one.
    let etag = format!("\"{}\"", file.version);
    let mut response = match condition(&headers, &etag) {
        Condition::Failed => {
            return Err(Refusal::new(
                ProblemKind::PreconditionFailed,
                "the file has another content",
            ));
        }
        Condition::NotModified => StatusCode::NOT_MODIFIED.into_response(),
        Condition::Holds => {
            let part = part(&method, &headers, &etag, file.bytes);
            content(file, part, &path)?
        }
    };
    let headers = response.headers_mut();
    set(headers, ETAG, &etag);
    // It never changes, and is its owner's alone.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    Ok(response)
}

/// The file, or a part of it.
fn content(mut file: OpenFile, part: ContentRange, path: &[u8]) -> Result<Response> {
    let all = file.bytes;
    let (status, first, length) = match part {
        ContentRange::Whole => (StatusCode::OK, 0, all),
        ContentRange::Range(first, last) => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        ContentRange::None => {
            let detail = format!("the file has {all} bytes");
            let refusal = Refusal::new(ProblemKind::RangeNotSatisfiable, detail);
            return Err(refusal.header(CONTENT_RANGE, format!("bytes */{all}")));
        }
    };
    file.file
        .seek(SeekFrom::Start(first))
        .map_err(|_| Refusal::internal("cannot seek in a file"))?;
    // Never more than was announced, though the file were to grow.
    let reader = tokio::fs::File::from_std(file.file).take(length);
    let body = Body::from_stream(ReaderStream::with_capacity(reader, CHUNK));
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    as_attachment(headers, path);
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let ContentRange::Range(first, last) = part {
        set(headers, CONTENT_RANGE, &format!("bytes {first}-{last}/{all}"));
    }
    Ok(response)
}
