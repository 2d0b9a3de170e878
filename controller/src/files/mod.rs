//! File operations on a sandbox: the methods, and operations given as data.
//!
//! The agent performs them, under the same path rules, policies and limits as scripts. This module
//! has the controller's part: encodings, streams, deadlines, and checks of the answers, which may
//! come from a hostile agent.
//!
//! Any number of operations may be awaited at once on one [`Sandbox`]; 16 are in progress at a
//! time. Dropping the future of an operation cancels it; if it was only waiting for the answer, the
//! operation may have completed.

mod call;
mod perform;
mod search;
mod transfer;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox_api::files::{
    CopyData, CopyOptions, EditData, Entry, ExistsData, ImageView, ListData, ListOptions,
    MkdirData, MkdirOptions, ReadData, ReadOptions, RemoveData, RemoveOptions, RenameData,
    RenameOptions, StatData, TextView, ViewData, ViewOptions, WriteData, WriteOptions,
};
use sandbox_api::{Encoding, EncodingError};
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_VIEW_BYTES};
use sandbox_protocol::media::image_type;
use sandbox_protocol::message::{Cut, Page, ViewContent};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};
use sandbox_protocol::{Base64, ErrorKind, WireError, WireString, message};
use sandbox_session::NotificationHandler;

use self::call::OperationCall;
pub use self::transfer::{FileReader, FileWriter};
use self::transfer::{Reading, Writing};
use crate::error::Error;
use crate::sandbox::Sandbox;

/// Every method takes a path in the syntax of scripts: relative to the working directory, `~/…`, or
/// absolute under a mount. A path is bytes without NUL.
///
/// Every method fails with [`Error::Operation`] if the operation is refused or fails in the
/// sandbox, which changes nothing unless documented otherwise; and with [`Error::Ended`] if the
/// sandbox has ended.
impl Sandbox {
    /// Reads a file, or a range of it, as text in an encoding.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `too_large` above `filesystem.max_file_size`, `encoding` if
    /// the content does not fit the encoding.
    pub async fn read(
        &self,
        path: impl AsRef<[u8]>,
        options: ReadOptions,
    ) -> Result<ReadData, Error> {
        let encoding = options.encoding.unwrap_or(self.inner().default_encoding);
        let mut reading = self.reading(path.as_ref(), options.offset, options.limit).await?;
        let read = async {
            let content = reading.rest().await?;
            let (path, path_b64) = WireString::from(&reading.path()?).into_parts();
            let mime_type = mime_type(&content).to_owned();
            let bytes = content.len() as u64;
            let content = encoding.decode(content).map_err(|error| refused(&path, &error))?;
            Ok(ReadData { path, path_b64, content, encoding, bytes, mime_type })
        };
        let read = read.await;
        reading.end(read)
    }

    /// Reads a file, or a range of it: `limit` bytes from `offset`, or up to the end.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), except `encoding`.
    pub async fn read_bytes(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Vec<u8>, Error> {
        let mut reading = self.reading(path.as_ref(), offset, limit).await?;
        let content = reading.rest().await;
        reading.end(content)
    }

    /// Reads a file in chunks, with bounded memory for a file of any size.
    ///
    /// # Errors
    ///
    /// Those of [`read_bytes`](Self::read_bytes). Later failures are errors of the reader.
    pub async fn reader(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<FileReader, Error> {
        self.reading(path.as_ref(), offset, limit).await.map(FileReader::new)
    }

    /// Returns a range of a file for people and models: lines of UTF-8 text, or an image.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` for a range past the end, `encoding` if the
    /// content is neither text nor an image.
    pub async fn view(
        &self,
        path: impl AsRef<[u8]>,
        options: ViewOptions,
    ) -> Result<ViewData, Error> {
        let mut call = self.begin("view", path.as_ref());
        let result = call.view(options).await;
        call.end(result)
    }

    /// Writes a file: all of `content`, or nothing on any error.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `too_large`, `write_limit`, `too_many_files`, `disk_full`,
    /// `already_exists`.
    pub async fn write(
        &self,
        path: impl AsRef<[u8]>,
        content: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<WriteData, Error> {
        let content = content.as_ref();
        let mut writing = self.writing(path.as_ref(), options, Some(content)).await?;
        let written = writing.commit_rest(content).await;
        writing.end(written)
    }

    /// Writes text in an encoding; `None` is the sandbox's
    /// [default](sandbox_api::SandboxSpec::default_encoding). Every front end that accepts text
    /// calls this, so that text that cannot be encoded is a failed write, with its audit line.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); `encoding` if the text cannot be encoded.
    pub async fn write_text(
        &self,
        path: impl AsRef<[u8]>,
        text: &str,
        encoding: Option<Encoding>,
        options: WriteOptions,
    ) -> Result<WriteData, Error> {
        let path = path.as_ref();
        let content = match encoding.unwrap_or(self.inner().default_encoding) {
            Encoding::Utf8 => Ok(Cow::Borrowed(text.as_bytes())),
            encoding => encoding.encode(text).map(Cow::Owned),
        };
        match content {
            Ok(content) => self.write(path, content, options).await,
            Err(error) => {
                let error = refused(&String::from_utf8_lossy(path), &error);
                self.begin("write", path).end(Err(error))
            }
        }
    }

    /// Writes a file in chunks, with bounded memory for a file of any size. Nothing changes before
    /// [`FileWriter::finish`].
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), some of which only the writer returns.
    pub async fn writer(
        &self,
        path: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<FileWriter, Error> {
        self.writing(path.as_ref(), options, None).await.map(FileWriter::new)
    }

    /// Replaces text in a UTF-8 file if it occurs exactly `count` times.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` for another number of occurrences. The file
    /// is then unchanged.
    pub async fn edit(
        &self,
        path: impl AsRef<[u8]>,
        old: &str,
        new: &str,
        count: NonZeroU64,
    ) -> Result<EditData, Error> {
        let (old, new, count) = (old.to_owned(), new.to_owned(), count.get());
        self.begin("edit", path.as_ref())
            .run(async |call| {
                let request = message::Edit { path: call.wire(), old, new, count };
                let reply = call.ask(request).await?;
                let (path, path_b64) = call.checked(&reply.path)?;
                Ok(EditData { path, path_b64, replacements: reply.replacements })
            })
            .await
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// The errors of every operation. Exceeding a limit is not an error: `truncated` reports it, and `note`
    /// where.
    pub async fn list(
        &self,
        path: impl AsRef<[u8]>,
        options: ListOptions,
    ) -> Result<ListData, Error> {
        self.begin("list", path.as_ref()).run(async |call| call.list(options).await).await
    }

    /// Creates a directory; an existing one is not an error.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `already_exists` if something else is at the path.
    pub async fn mkdir(
        &self,
        path: impl AsRef<[u8]>,
        options: MkdirOptions,
    ) -> Result<MkdirData, Error> {
        self.begin("mkdir", path.as_ref())
            .run(async |call| {
                let request = message::Mkdir { path: call.wire(), parents: options.parents };
                let reply = call.ask(request).await?;
                let (path, path_b64) = call.checked(&reply.path)?;
                Ok(MkdirData { path, path_b64, created: reply.created })
            })
            .await
    }

    /// Removes a file, a symbolic link (not its target) or an empty directory; with `recursive` a
    /// directory with its contents.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `not_empty` for a directory without `recursive`. An error
    /// partway through a directory leaves the entries that were not yet removed.
    pub async fn remove(
        &self,
        path: impl AsRef<[u8]>,
        options: RemoveOptions,
    ) -> Result<RemoveData, Error> {
        let RemoveOptions { recursive, force } = options;
        self.begin("remove", path.as_ref())
            .run(async |call| {
                let request = message::Remove { path: call.wire(), recursive, force };
                let reply = call.ask(request).await?;
                let (path, path_b64) = call.checked(&reply.path)?;
                Ok(RemoveData { path, path_b64, removed: reply.removed, entries: reply.entries })
            })
            .await
    }

    /// Tests whether a path exists, and what it is.
    ///
    /// # Errors
    ///
    /// The errors of every operation; also if the test is impossible, because of a link on the way
    /// or a path outside the mounts.
    pub async fn exists(&self, path: impl AsRef<[u8]>) -> Result<ExistsData, Error> {
        self.begin("exists", path.as_ref())
            .run(async |call| {
                let reply = call.ask(message::Exists { path: call.wire() }).await?;
                let (path, path_b64) = call.checked(&reply.path)?;
                Ok(ExistsData { path, path_b64, exists: reply.kind.is_some(), kind: reply.kind })
            })
            .await
    }

    /// Returns the metadata of a path. It does not follow a link.
    ///
    /// # Errors
    ///
    /// The errors of every operation.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<StatData, Error> {
        self.begin("stat", path.as_ref())
            .run(async |call| {
                let reply = call.ask(message::Stat { path: call.wire() }).await?;
                let (path, path_b64) = call.checked(&reply.path)?;
                let (owner, group) = self.inner().owner_names(reply.uid, reply.gid).await;
                Ok(StatData {
                    path,
                    path_b64,
                    kind: reply.kind,
                    size: reply.size,
                    permissions: message::permissions_text(reply.permissions),
                    mode: format!("{:04o}", reply.permissions & 0o7777),
                    uid: reply.uid,
                    gid: reply.gid,
                    owner,
                    group,
                    modified: reply.modified,
                    accessed: reply.accessed,
                    created: reply.created,
                })
            })
            .await
    }

    /// Moves or renames within one mount. It does not follow a link.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `already_exists` without `overwrite`. An error partway through a
    /// directory on an overlay, which is moved entry by entry, leaves a part at the old path.
    pub async fn rename(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        options: RenameOptions,
    ) -> Result<RenameData, Error> {
        let wire_to = WireString::new(&to);
        self.begin("rename", from.as_ref())
            .to(to.as_ref())
            .run(async |call| {
                let request = message::Rename {
                    from: call.wire(),
                    to: wire_to,
                    overwrite: options.overwrite,
                };
                let reply = call.ask(request).await?;
                let (from, from_b64) = call.checked(&reply.from)?;
                let (to, to_b64) = call.checked_to(&reply.to)?;
                Ok(RenameData { from, from_b64, to, to_b64 })
            })
            .await
    }

    /// Copies a file with its permissions, or a directory with `recursive`. Missing parents are
    /// created. A link is an error, before anything is copied; a later error leaves what has been
    /// copied, where each file is whole.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `already_exists` without `overwrite`, `is_directory` without
    /// `recursive`, `write_limit`, `too_many_files`, `too_large`, `disk_full`.
    pub async fn copy(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        options: CopyOptions,
    ) -> Result<CopyData, Error> {
        let CopyOptions { recursive, overwrite } = options;
        let wire_to = WireString::new(&to);
        self.begin("copy", from.as_ref())
            .to(to.as_ref())
            .run(async |call| {
                let request =
                    message::Copy { from: call.wire(), to: wire_to, recursive, overwrite };
                let reply = call.ask(request).await?;
                let (from, from_b64) = call.checked(&reply.from)?;
                let (to, to_b64) = call.checked_to(&reply.to)?;
                let message::CopyReply { entries, bytes, .. } = reply;
                Ok(CopyData { from, from_b64, to, to_b64, entries, bytes })
            })
            .await
    }

    fn begin(&self, operation: &'static str, path: &[u8]) -> OperationCall {
        OperationCall::new(self.inner().clone(), operation, path)
    }

    async fn reading(
        &self,
        path: &[u8],
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Reading, Error> {
        Reading::start(self.begin("read", path), offset, limit).await
    }

    async fn writing(
        &self,
        path: &[u8],
        options: WriteOptions,
        content: Option<&[u8]>,
    ) -> Result<Writing, Error> {
        Writing::start(self.begin("write", path), options, content).await
    }
}

impl OperationCall {
    async fn view(&mut self, options: ViewOptions) -> Result<ViewData, Error> {
        let inner = self.inner().clone();
        let path = self.wire();
        let ViewOptions { offset, limit } = options;
        let request = |stream| message::View { path, offset, limit, stream };
        let most = inner.limits.max_file_size.as_u64();
        let (reply, mut incoming) = self.within(inner.session().receive(most, request)).await?;
        let reply = self.answer_to(reply);
        let mut content = Vec::new();
        while let Some(piece) = self.in_time(content.len() as u64, incoming.next()).await? {
            content.extend_from_slice(&piece);
        }
        let reply = reply.answer().await?;
        let (path, path_b64) = self.checked(&reply.path)?;
        let view = match reply.content {
            ViewContent::Text(window) => {
                if !content.is_empty() {
                    return Err(self.breach("bytes of a text on the stream of an image"));
                }
                if window.text.len() > MAX_VIEW_BYTES {
                    return Err(self.breach("a text that is longer than a view"));
                }
                ViewData::Text(TextView {
                    path,
                    path_b64,
                    text: window.text,
                    first_line: window.first_line,
                    output_lines: window.output_lines,
                    total_lines: window.total_lines,
                    truncated: window.truncated_by.is_some(),
                    truncated_by: window.truncated_by,
                    footer: window.footer,
                })
            }
            ViewContent::Image(image) => {
                let bytes = content.len() as u64;
                if image.bytes != bytes || image_type(&content) != Some(&*image.mime_type) {
                    return Err(self.breach("an image that is another one"));
                }
                let mime_type = image.mime_type;
                let content = Base64(content);
                ViewData::Image(ImageView { path, path_b64, content, mime_type, bytes })
            }
        };
        Ok(view)
    }

    async fn list(&self, options: ListOptions) -> Result<ListData, Error> {
        let inner = self.inner();
        let path = self.wire();
        let max_depth = if options.recursive { options.max_depth } else { Some(1) };
        let limits = inner.limits.for_agent();
        let most = options.limit.unwrap_or(limits.list_entries).min(limits.list_entries);
        let pages = Arc::new(Pages { most, listed: Mutex::default() });
        let request = message::List { path, max_depth, limit: options.limit };
        let reply = self.ask_with(request, Some(pages.clone())).await?;
        let (path, path_b64) = self.checked(&reply.path)?;
        let top = self.resolved().ok_or_else(|| self.breach("a list of no path"))?;
        let listed = std::mem::take(&mut *pages.lock());
        if reply.entries != listed.len() as u64 {
            return Err(self.breach("a list of another length"));
        }
        let mut entries = Vec::with_capacity(listed.len());
        for entry in listed {
            let path = self.below(&top, entry.name.as_bytes())?;
            let (name, name_b64) = WireString::new(path.name()).into_parts();
            let (path, path_b64) = WireString::from(&path).into_parts();
            let message::Entry { kind, size, modified, .. } = entry;
            entries.push(Entry { name, name_b64, path, path_b64, kind, size, modified });
        }
        let note = self.note(reply.cut, options.limit);
        Ok(ListData { path, path_b64, entries, truncated: note.is_some(), note })
    }
}

impl OperationCall {
    /// What a result leaves out, if it is a part.
    fn note(&self, cut: Option<Cut>, limit: Option<u64>) -> Option<String> {
        cut.map(|cut| cut.text(limit, &self.inner().limits.for_agent()))
    }

    /// The path of an entry that the agent found below `top`. It leaves out those that no operation
    /// accepts.
    fn below(&self, top: &GuestPath, below: &[u8]) -> Result<GuestPath, Error> {
        match GuestPath::new([top.as_bytes(), below].join(&b'/')) {
            Ok(path) if !below.is_empty() && path.strip_prefix(top) == Some(below) => Ok(path),
            _ => Err(self.breach("an entry outside of its list")),
        }
    }
}

/// Collects the entries of a list as they arrive.
struct Pages {
    most: u64,
    listed: Mutex<Vec<message::Entry>>,
}

impl Pages {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<message::Entry>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NotificationHandler for Pages {
    fn page(&self, page: Page) -> Result<(), String> {
        if page.entries.is_empty() {
            return Err("a page of nothing".to_owned());
        }
        let mut listed = self.lock();
        if (listed.len() + page.entries.len()) as u64 > self.most {
            return Err("more entries than were asked for".to_owned());
        }
        if page.entries.iter().any(|entry| entry.name.as_bytes().len() > MAX_PATH_BYTES) {
            return Err("an entry with a name that is too long".to_owned());
        }
        listed.extend(page.entries);
        Ok(())
    }
}

/// The MIME type of the content, by its bytes.
fn mime_type(content: &[u8]) -> &'static str {
    image_type(content).unwrap_or_else(|| match std::str::from_utf8(content) {
        Ok(_) => "text/plain",
        Err(_) => "application/octet-stream",
    })
}

/// The error for content that does not fit its encoding.
fn refused(path: &str, error: &EncodingError) -> Error {
    let message = format!("{path}: {error}");
    Error::Operation { source: WireError::new(ErrorKind::Encoding, message) }
}

const _: () = assert!(INITIAL_CREDIT <= 1 << 20, "what a reader that stands still holds");
