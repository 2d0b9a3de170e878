//! `/files`: a file is downloaded, and files are uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, ready};

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest as _, Multipart, Query, Request};
use axum::http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, IF_RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use sandbox_api::operation::{EntryKind, Read, SetMetadata, Write};
use sandbox_api::{ErrorKind, ProblemKind};
use sandbox_http::{ContentRange, content_range, media_type};
use sandbox_service::ServiceError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::gzip::{gunzipped, gzipped};
use super::paths::{User, is_kernels, name_of};
use crate::body::IDLE;
use crate::error::Error;

/// The permissions of a file that is created.
const PERMISSIONS: u32 = 0o644;
/// The most files of an upload.
const MAX_FILES: usize = 4096;
/// How much of a form is read before what is in it is taken, and how much there may be with nothing in it.
const STEP: usize = 64 << 10;
/// The namespace of E2B's metadata.
const NAMESPACE: &str = "e2b";
/// What a header of metadata begins with.
const METADATA_HEADER: &str = "x-metadata-";
/// The longest key of metadata, and the most of it.
const MAX_KEY_BYTES: usize = 246;
const MAX_METADATA_BYTES: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    path: Option<String>,
    username: Option<String>,
}

impl Call {
    /// The path that is meant, by the user of the query or else of the header.
    fn file_path(&self, user: Option<&str>, written: &str) -> Result<String, Error> {
        let user = match user.filter(|user| !user.is_empty()) {
            Some(name) => {
                let unknown = |message| Error::new(StatusCode::UNAUTHORIZED, message);
                User::named(Some(name)).map_err(unknown)?
            }
            None => self.user.clone(),
        };
        user.resolve(written).map_err(Error::invalid)
    }
}

pub(super) async fn read(
    asked: Result<Query<Asked>, QueryRejection>,
    call: Call,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let Query(asked) = asked?;
    let path = call.file_path(asked.username.as_deref(), &asked.path.unwrap_or_default())?;
    let refused = |error| refused(&path, error);
    let found = match call.stat_followed(&path).await {
        Err(error) if is_kernels(&path, &error) => {
            return Ok(downloaded(&path, call.read_kernels(&path).await?));
        }
        found => found.map_err(refused)?,
    };
    match found.kind() {
        EntryKind::File => {}
        EntryKind::Directory => {
            return Err(Error::invalid(format!("path '{path}' is a directory")));
        }
        EntryKind::Symlink | EntryKind::Other => {
            return Err(Error::invalid(format!("path '{path}' is not a regular file")));
        }
    }
    // With a condition it has all: nothing says that it is still the same file.
    let part = match headers.contains_key(IF_RANGE) {
        true => ContentRange::Whole,
        false => content_range(&method, &headers, found.size),
    };
    let (is_part, offset, length) = match part {
        ContentRange::Whole => (false, 0, found.size),
        ContentRange::Range(first, last) => (true, first, last - first + 1),
        ContentRange::None => {
            let error = Error::new(StatusCode::RANGE_NOT_SATISFIABLE, "the file is shorter");
            let mut response = error.into_response();
            set(response.headers_mut(), CONTENT_RANGE, &format!("bytes */{}", found.size));
            return Ok(response);
        }
    };
    let is_gzipped = !is_part && length > 0 && wants_gzip(&headers);
    let body = match length {
        0 => Body::empty(),
        _ => {
            let read = Read { offset, limit: Some(length), ..Read::new(&*path) };
            let content = call.service().read_file(&call.subject, &call.sandbox, read).await;
            let content = content.map_err(refused)?.value;
            // A content that breaks off is cut off: it has no end that could be taken for its own.
            match is_gzipped {
                true => Body::from_stream(gzipped(content)),
                false => Body::from_stream(content),
            }
        }
    };
    let mut response = downloaded(&path, body);
    let of = response.headers_mut();
    of.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    of.insert(VARY, HeaderValue::from_static("accept-encoding"));
    match is_gzipped {
        true => _ = of.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        false => _ = of.insert(CONTENT_LENGTH, length.into()),
    }
    if is_part {
        let last = offset + length - 1;
        set(of, CONTENT_RANGE, &format!("bytes {offset}-{last}/{}", found.size));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// A whole content, as the answer to who downloads it.
fn downloaded(path: &str, content: impl Into<Body>) -> Response {
    let mut response = content.into().into_response();
    let media_type = mime_guess::from_path(path).first_or_octet_stream();
    let of = response.headers_mut();
    set(of, CONTENT_TYPE, media_type.as_ref());
    // What a guest has written is no page of this server.
    of.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    of.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    of.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub(super) async fn write(
    asked: Result<Query<Asked>, QueryRejection>,
    call: Call,
    request: Request,
) -> Result<Json<Vec<Value>>, Error> {
    let Query(asked) = asked?;
    let headers = request.headers();
    let metadata = metadata_of(headers)?;
    let encoding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_gzipped = match encoding.to_ascii_lowercase().as_slice() {
        b"" | b"identity" => false,
        b"gzip" => true,
        _ => return Err(Error::invalid("an upload is sent as it is or with gzip")),
    };
    let media_type = media_type(headers);
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse().ok()).filter(|_| !is_gzipped);
    let upload = Upload { call, user: asked.username, metadata, written: BTreeSet::new() };
    let (parts, body) = request.into_parts();
    let body = match is_gzipped {
        true => Body::from_stream(gunzipped(body.into_data_stream())),
        false => body,
    };
    match media_type.as_deref() {
        Some("application/octet-stream") => {
            let path = asked.path.ok_or_else(|| Error::invalid("path is missing"))?;
            upload.one(&path, body.into_data_stream(), length).await
        }
        Some("multipart/form-data") => {
            let untaken = Arc::<AtomicUsize>::default();
            let body = Body::from_stream(in_steps(body.into_data_stream(), untaken.clone()));
            let multipart = Multipart::from_request(Request::from_parts(parts, body), &()).await;
            let multipart = multipart.map_err(|error| Error::invalid(error.body_text()))?;
            upload.parts(asked.path, multipart, &untaken).await
        }
        _ => Err(Error::invalid("an upload is multipart/form-data or application/octet-stream")),
    }
}

/// A form in steps: its parser reads for as long as there is more, so after each step there is nothing for a moment.
/// It breaks off if the parser can take nothing of it.
fn in_steps<E: Into<axum::BoxError>>(
    mut form: impl Stream<Item = Result<Bytes, E>> + Unpin,
    untaken: Arc<AtomicUsize>,
) -> impl Stream<Item = Result<Bytes, io::Error>> {
    let mut step = 0;
    stream::poll_fn(move |context| {
        if step >= STEP {
            step = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if untaken.load(Ordering::Relaxed) > STEP {
            let why = "there are more than 64 KiB before, between or at the beginning of its parts";
            return Poll::Ready(Some(Err(io::Error::other(why))));
        }
        let piece = ready!(form.poll_next_unpin(context));
        if let Some(Ok(piece)) = &piece {
            step += piece.len();
            untaken.fetch_add(piece.len(), Ordering::Relaxed);
        }
        Poll::Ready(piece.map(|piece| piece.map_err(io::Error::other)))
    })
}

/// Files that are being uploaded.
struct Upload {
    call: Call,
    user: Option<String>,
    metadata: BTreeMap<String, String>,
    written: BTreeSet<String>,
}

impl Upload {
    async fn one<E: Display>(
        mut self,
        path: &str,
        content: impl Stream<Item = Result<Bytes, E>>,
        length: Option<u64>,
    ) -> Result<Json<Vec<Value>>, Error> {
        Ok(Json(vec![self.file(path, content, length).await?]))
    }

    async fn parts(
        mut self,
        path: Option<String>,
        mut multipart: Multipart,
        untaken: &AtomicUsize,
    ) -> Result<Json<Vec<Value>>, Error> {
        let mut files = Vec::new();
        while let Some(part) = in_time(multipart.next_field()).await? {
            untaken.store(0, Ordering::Relaxed);
            let is_file = part.name() == Some("file");
            let file_name = part.file_name().map(str::to_owned);
            let mut content = part.inspect(|_| untaken.store(0, Ordering::Relaxed));
            if !is_file {
                while in_time(content.try_next()).await?.is_some() {}
                continue;
            }
            if files.len() == MAX_FILES {
                return Err(Error::invalid(format!("an upload has at most {MAX_FILES} files")));
            }
            // A part's file name is its whole path.
            let name = path.clone().or(file_name);
            let name = name.ok_or_else(|| Error::invalid("a part has no file name"))?;
            files.push(self.file(&name, content, None).await?);
        }
        match files.is_empty() {
            true => Err(Error::invalid("an upload has a part named `file`")),
            false => Ok(Json(files)),
        }
    }

    /// Writes a file; returns its entry of the answer.
    async fn file<E: Display>(
        &mut self,
        written: &str,
        content: impl Stream<Item = Result<Bytes, E>>,
        length: Option<u64>,
    ) -> Result<Value, Error> {
        let path = self.call.file_path(self.user.as_deref(), written)?;
        if !self.written.insert(path.clone()) {
            return Err(Error::invalid(format!("path '{path}' is uploaded twice")));
        }
        let (service, subject, sandbox) =
            (self.call.service(), &self.call.subject, &self.call.sandbox);
        let refused = |error| refused(&path, error);
        // In place: who has it open or watches it sees that it is written.
        let write = Write { atomic: false, permissions: Some(PERMISSIONS), ..Write::new(&*path) };
        let writer = service.write_file(subject, sandbox, write, length).await;
        let mut writer = writer.map_err(refused)?;
        let mut content = std::pin::pin!(content);
        while let Some(piece) = in_time(content.try_next()).await? {
            writer = writer.write(&piece).await.map_err(refused)?;
        }
        self.call.watchers.uploading(&sandbox.id, &path);
        let created = writer.finish().await.map_err(refused)?.value.created;
        self.store_metadata(&path, created).await.map_err(refused)?;
        let mut entry = json!({ "path": path, "name": name_of(&path), "type": "file" });
        if !self.metadata.is_empty() {
            entry["metadata"] = json!(self.metadata);
        }
        Ok(entry)
    }

    /// Replaces all metadata of the file.
    async fn store_metadata(&self, path: &str, created: bool) -> Result<(), ServiceError> {
        if created && self.metadata.is_empty() {
            return Ok(());
        }
        let set = SetMetadata {
            namespace: NAMESPACE.to_owned(),
            ..SetMetadata::new(path, self.metadata.clone())
        };
        match self.call.perform::<Value>(set).await {
            // A file system without metadata has none to clear.
            Err(_) if self.metadata.is_empty() => Ok(()),
            done => done.map(drop),
        }
    }
}

/// What an upload sends next.
async fn in_time<T, E: Display>(next: impl Future<Output = Result<T, E>>) -> Result<T, Error> {
    let late = |_| Error::new(StatusCode::REQUEST_TIMEOUT, "the upload has stopped");
    let next = tokio::time::timeout(IDLE, next).await.map_err(late)?;
    next.map_err(|error| Error::invalid(format!("the upload cannot be read: {error}")))
}

/// Why a file was not read or written.
fn refused(path: &str, error: ServiceError) -> Error {
    if error.problem().kind == ProblemKind::QuotaExceeded {
        return Error::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string());
    }
    let (status, message) = match error.kind() {
        ErrorKind::NotFound if error.problem().kind != ProblemKind::Gone => {
            (StatusCode::NOT_FOUND, format!("path '{path}' does not exist"))
        }
        ErrorKind::IsDirectory => {
            (StatusCode::BAD_REQUEST, format!("path '{path}' is a directory"))
        }
        ErrorKind::DiskFull | ErrorKind::WriteLimit | ErrorKind::TooManyFiles => {
            (StatusCode::INSUFFICIENT_STORAGE, error.to_string())
        }
        ErrorKind::NotADirectory
        | ErrorKind::InvalidPath
        | ErrorKind::InvalidRequest
        | ErrorKind::PathEscape
        | ErrorKind::SpecialFile
        | ErrorKind::Symlink => (StatusCode::BAD_REQUEST, error.to_string()),
        _ => return error.into(),
    };
    Error::new(status, message)
}

fn set(headers: &mut HeaderMap, name: axum::http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Whether a client asks for gzip and for nothing else, as E2B's do who want it.
fn wants_gzip(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(ACCEPT_ENCODING).iter();
    let first = encodings.next().map(HeaderValue::as_bytes).unwrap_or_default();
    first.trim_ascii().eq_ignore_ascii_case(b"gzip") && encodings.next().is_none()
}

/// The metadata of an upload.
fn metadata_of(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Error> {
    let mut metadata = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER) else { continue };
        let value = value.as_bytes();
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let message = format!("a key of metadata has 1 to {MAX_KEY_BYTES} bytes");
            return Err(Error::invalid(message));
        }
        let text = std::str::from_utf8(value).ok();
        let text = text.filter(|text| text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        let not_plain = || Error::invalid(format!("metadata {key:?} is not printable ASCII"));
        let text = text.ok_or_else(not_plain)?;
        bytes += key.len() + text.len();
        metadata.insert(key.to_owned(), text.to_owned());
    }
    match bytes > MAX_METADATA_BYTES {
        true => Err(Error::invalid(format!("metadata has at most {MAX_METADATA_BYTES} bytes"))),
        false => Ok(metadata),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_form_is_read_in_steps_and_no_further_than_something_in_it_is_taken() {
        let endless =
            || stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from(vec![b'a'; 10_000])));
        let untaken = Arc::<AtomicUsize>::default();
        let mut form = std::pin::pin!(in_steps(endless(), untaken.clone()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..3 {
            let mut step = 0;
            while let Poll::Ready(Some(Ok(piece))) = form.as_mut().poll_next(&mut context) {
                step += piece.len();
            }
            assert!((STEP..STEP + 10_000).contains(&step), "{step}");
            untaken.store(0, Ordering::Relaxed);
        }
        // A part whose head does not end, and what is before the first one.
        for start in ["--b\r\nContent-Disposition: form-data; name=", ""] {
            let read = Arc::<AtomicUsize>::default();
            let counted = read.clone();
            let body = endless().inspect(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
            let body = stream::iter([Ok(Bytes::from(start))]).chain(body);
            let body = Body::from_stream(in_steps(body, Arc::default()));
            let form = Request::post("/").header(CONTENT_TYPE, "multipart/form-data; boundary=b");
            let mut form = Multipart::from_request(form.body(body).unwrap(), &()).await.unwrap();
            assert!(form.next_field().await.is_err());
            assert!(read.load(Ordering::Relaxed) < 20);
        }
    }

    #[test]
    fn metadata_is_what_headers_say() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            metadata_of(&headers).map(|metadata| metadata.into_iter().collect::<Vec<_>>())
        };
        let author = vec![("author".to_owned(), "mish".to_owned())];
        assert_eq!(of(&[("accept", "x"), ("x-metadata-author", "mish")]).unwrap(), author);
        assert!(of(&[("x-metadata-", "x")]).is_err());
        let mut headers = HeaderMap::new();
        headers.insert("x-metadata-a", HeaderValue::from_bytes(b"\xc3\xa4").unwrap());
        assert!(metadata_of(&headers).is_err());
        headers.insert("x-metadata-a", HeaderValue::from_str(&"x".repeat(5000)).unwrap());
        assert!(metadata_of(&headers).is_err());
    }

    #[test]
    fn only_who_asks_for_gzip_alone_gets_it() {
        let of = |value: &'static str| {
            wants_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(of("gzip") && of(" GZIP "));
        assert!(!of("gzip, deflate, br") && !of("identity") && !wants_gzip(&HeaderMap::new()));
    }
}
