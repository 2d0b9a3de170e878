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
mod search;
mod transfer;
mod watch;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use sandbox_api::files::{
    Entry, EntryDetails, ImageView, ListData, ReadData, StatData, TextView, ViewData,
};
use sandbox_api::operation::{Envelope, OperationOutput, OperationRequest};
use sandbox_api::{Encoding, EncodingError, Failure};
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_VIEW_BYTES};
use sandbox_protocol::media::image_type;
use sandbox_protocol::message::{Cut, Page, ViewContent};
use sandbox_protocol::operation::{
    DirectOperation, FileOperation, List, Operation, OperationStats, Read, Stat, View, Write,
    WriteReply, permissions_text,
};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};
use sandbox_protocol::{Base64, ErrorKind, WireError, WireString, message};
use sandbox_session::NotificationHandler;
use serde::Serialize;
use tokio::time::Instant;

use self::call::OperationCall;
pub use self::transfer::{FileReader, FileWriter};
use self::transfer::{Reading, Writing};
pub use self::watch::FileWatch;
use crate::error::Error;
use crate::sandbox::Sandbox;

/// Every method takes a path in the syntax of scripts: relative to the working directory, `~/…`, or
/// absolute under a mount; in a sandbox whose [files](sandbox_api::SandboxSpec::files) are all of its
/// container, under any directory. A path is bytes without NUL.
///
/// Every method fails with [`Error::Operation`] if the operation is refused or fails in the
/// sandbox, which changes nothing unless documented otherwise; and with [`Error::Ended`] if the
/// sandbox has ended.
impl Sandbox {
    /// Performs an operation whose reply is its result: `edit`, `mkdir`, `touch`, `remove`, `exists`,
    /// `rename`, `copy`, `chmod`, `symlink`, `read_link` or `set_metadata`.
    ///
    /// They change nothing on an error, but for what an error partway
    /// through a directory leaves: a removal the entries that were not yet removed, a copy whole files,
    /// `chmod` a part, and on an overlay, where a directory is moved entry by entry, a rename a part at the
    /// old path. None follows a link, but in a sandbox whose [files](sandbox_api::SandboxSpec::files) are
    /// all of its container: there links are followed inside it.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` for an edit whose text occurs another number of
    /// times, `already_exists` for what is in the way, `not_empty` and `is_directory` for a directory
    /// without `recursive`, `write_limit`, `too_many_files`, `too_large`, `disk_full`.
    pub async fn call<O: DirectOperation>(&self, operation: O) -> Result<O::Reply, Error> {
        self.begin(&operation).run(async |call| call.call(operation, None).await).await
    }

    /// Performs an operation given as data. The envelope has the result or the error.
    pub async fn perform(&self, request: impl Into<OperationRequest>) -> Envelope {
        let started = Instant::now();
        let request = request.into();
        let (part, bytes) = (request.part_hint(), request.bytes_hint());
        let result = self.output(request).await;
        let took = started.elapsed();
        match result {
            Ok(output) => output.envelope(took),
            Err(error) => Envelope::failed(took, Failure::from(&error).with_hints(part, bytes)),
        }
    }

    /// Performs an operation given as data, and returns its result as data.
    ///
    /// # Errors
    ///
    /// Those of the operation's own method.
    pub async fn output(
        &self,
        request: impl Into<OperationRequest>,
    ) -> Result<OperationOutput, Error> {
        let OperationRequest { operation, content, encoding } = request.into();
        match operation {
            Operation::Read(read) => output(&self.read(read, encoding).await?),
            Operation::View(view) => output(&self.view(view).await?),
            Operation::Write(write) => {
                output(&self.write_text(write, &content.unwrap_or_default(), encoding).await?)
            }
            Operation::Edit(edit) => output(&self.call(edit).await?),
            Operation::List(list) => output(&self.list(list).await?),
            Operation::Glob(glob) => output(&self.glob(glob).await?),
            Operation::Grep(grep) => output(&self.grep(grep).await?),
            Operation::Mkdir(mkdir) => output(&self.call(mkdir).await?),
            Operation::Touch(touch) => output(&self.call(touch).await?),
            Operation::Remove(remove) => output(&self.call(remove).await?),
            Operation::Exists(exists) => output(&self.call(exists).await?),
            Operation::Stat(stat) => output(&self.stat(stat).await?),
            Operation::Rename(rename) => output(&self.call(rename).await?),
            Operation::Copy(copy) => output(&self.call(copy).await?),
            Operation::Chmod(chmod) => output(&self.call(chmod).await?),
            Operation::Symlink(symlink) => output(&self.call(symlink).await?),
            Operation::ReadLink(read_link) => output(&self.call(read_link).await?),
            Operation::SetMetadata(metadata) => output(&self.call(metadata).await?),
        }
    }

    /// Reads a file, or a range of it, as text in an encoding; `None` is the sandbox's
    /// [default](sandbox_api::SandboxSpec::default_encoding).
    ///
    /// # Errors
    ///
    /// The errors of every operation; `too_large` above `filesystem.max_file_size`, `encoding` if
    /// the content does not fit the encoding.
    pub async fn read(&self, read: Read, encoding: Option<Encoding>) -> Result<ReadData, Error> {
        let encoding = encoding.unwrap_or(self.inner().default_encoding);
        let mut reading = Reading::start(self.inner().clone(), read).await?;
        let read = async {
            let content = reading.rest().await?;
            let path = WireString::from(&reading.path()?);
            let mime_type = mime_type(&content).to_owned();
            let bytes = content.len() as u64;
            let content = encoding.decode(content).map_err(|error| refused(&path, &error))?;
            Ok(ReadData { path, content, encoding, bytes, mime_type })
        };
        let read = read.await;
        reading.end(read)
    }

    /// Reads a file, or a range of it.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), except `encoding`.
    pub async fn read_bytes(&self, read: Read) -> Result<Vec<u8>, Error> {
        let mut reading = Reading::start(self.inner().clone(), read).await?;
        let content = reading.rest().await;
        reading.end(content)
    }

    /// Reads a file in chunks, with bounded memory for a file of any size.
    ///
    /// # Errors
    ///
    /// Those of [`read_bytes`](Self::read_bytes). Later failures are errors of the reader.
    pub async fn reader(&self, read: Read) -> Result<FileReader, Error> {
        Reading::start(self.inner().clone(), read).await.map(Reading::into_reader)
    }

    /// Returns a range of a file for people and models: lines of UTF-8 text, or an image.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` for a range past the end, `encoding` if the
    /// content is neither text nor an image.
    pub async fn view(&self, view: View) -> Result<ViewData, Error> {
        self.begin(&view).run(async |call| call.view(view).await).await
    }

    /// Writes a file: all of `content`, or nothing on any error.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `too_large`, `write_limit`, `too_many_files`, `disk_full`,
    /// `already_exists`.
    pub async fn write(
        &self,
        write: Write,
        content: impl AsRef<[u8]>,
    ) -> Result<WriteReply, Error> {
        let content = content.as_ref();
        let mut writing = Writing::start(self.inner().clone(), write, Some(content)).await?;
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
        write: Write,
        text: &str,
        encoding: Option<Encoding>,
    ) -> Result<WriteReply, Error> {
        let content = match encoding.unwrap_or(self.inner().default_encoding) {
            Encoding::Utf8 => Ok(Cow::Borrowed(text.as_bytes())),
            encoding => encoding.encode(text).map(Cow::Owned),
        };
        match content {
            Ok(content) => self.write(write, content).await,
            Err(error) => self.begin(&write).end(Err(refused(&write.path, &error))),
        }
    }

    /// Writes a file in chunks, with bounded memory for a file of any size. Nothing changes before
    /// [`FileWriter::finish`].
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), some of which only the writer returns.
    pub async fn writer(&self, write: Write) -> Result<FileWriter, Error> {
        Writing::start(self.inner().clone(), write, None).await.map(FileWriter::new)
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// The errors of every operation. Exceeding a limit is not an error: `truncated` reports it, and `note`
    /// where.
    pub async fn list(&self, list: List) -> Result<ListData, Error> {
        self.begin(&list).run(async |call| call.list(list).await).await
    }

    /// Returns the metadata of a path. It follows a link at its end only if the request says so.
    ///
    /// # Errors
    ///
    /// The errors of every operation.
    pub async fn stat(&self, stat: Stat) -> Result<StatData, Error> {
        self.begin(&stat)
            .run(async |call| {
                let reply = call.call(stat, None).await?;
                let names = (reply.owner, reply.group);
                let (owner, group) = self.inner().owner_names(reply.uid, reply.gid, names).await;
                Ok(StatData {
                    path: reply.path,
                    kind: reply.kind,
                    size: reply.size,
                    permissions: permissions_text(reply.permissions),
                    mode: mode_text(reply.permissions),
                    uid: reply.uid,
                    gid: reply.gid,
                    owner,
                    group,
                    modified: reply.modified,
                    accessed: reply.accessed,
                    created: reply.created,
                    target: reply.target,
                    metadata: reply.metadata,
                })
            })
            .await
    }

    fn begin<O: FileOperation>(&self, operation: &O) -> OperationCall {
        OperationCall::new(self.inner().clone(), O::NAME, operation.paths())
    }
}

impl OperationCall {
    async fn view(&mut self, view: View) -> Result<ViewData, Error> {
        let inner = self.inner().clone();
        let most = inner.limits.max_file_size.as_u64();
        let (reply, mut incoming) = self.send(inner.session.receive(most, view)).await?;
        let reply = self.pending_reply(reply);
        let mut content = Vec::new();
        while let Some(piece) = self.with_timeout(content.len() as u64, incoming.next()).await? {
            content.extend_from_slice(&piece);
        }
        let reply = self.verified(reply.wait().await?)?;
        let path = reply.path;
        let view = match reply.content {
            ViewContent::Text(window) => {
                if !content.is_empty() {
                    return Err(self.breach("unexpected stream data for a text view"));
                }
                if window.text.len() > MAX_VIEW_BYTES {
                    return Err(self.breach("a text that is longer than a view"));
                }
                ViewData::Text(TextView {
                    path,
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
                    return Err(self.breach("image type mismatch"));
                }
                let mime_type = image.mime_type;
                ViewData::Image(ImageView { path, content: Base64(content), mime_type, bytes })
            }
        };
        Ok(view)
    }

    async fn list(&self, list: List) -> Result<ListData, Error> {
        let limits = self.inner().limits.for_agent();
        let limit = list.limit;
        let most = limit.unwrap_or(limits.list_entries).min(limits.list_entries);
        let pages = Arc::new(Pages { most, listed: Mutex::default() });
        let reply = self.call(list, Some(pages.clone())).await?;
        let top = self.resolved()?;
        let listed = std::mem::take(&mut *crate::lock(&pages.listed));
        if reply.entries != listed.len() as u64 {
            return Err(self.breach("the reply's length does not match the data"));
        }
        let mut entries = Vec::with_capacity(listed.len());
        for message::Entry { name, kind, size, modified, details } in listed {
            let path = self.below(&top, name.as_bytes())?;
            let (name, path) = (WireString::new(path.name()), WireString::from(&path));
            let details = match details {
                Some(details) => Some(self.details(details).await),
                None => None,
            };
            entries.push(Entry { name, path, kind, size, modified, details });
        }
        let note = self.note(reply.cut, limit);
        Ok(ListData { path: reply.path, entries, truncated: note.is_some(), note })
    }

    async fn details(&self, details: message::EntryDetails) -> EntryDetails {
        let message::EntryDetails { permissions, uid, gid, owner, group, target, metadata } =
            details;
        let (owner, group) = self.inner().owner_names(uid, gid, (owner, group)).await;
        let (permissions, mode) = (permissions_text(permissions), mode_text(permissions));
        EntryDetails { permissions, mode, uid, gid, owner, group, target, metadata }
    }

    /// What a result leaves out, if it is a part.
    fn note(&self, cut: Option<Cut>, limit: Option<u64>) -> Option<String> {
        cut.map(|cut| cut.text(limit, &self.inner().limits.for_agent()))
    }

    /// The path of an entry that the agent found below `top`. It leaves out those that no operation
    /// accepts.
    fn below(&self, top: &GuestPath, below: &[u8]) -> Result<GuestPath, Error> {
        match GuestPath::new([top.as_bytes(), below].join(&b'/')) {
            Ok(path) if !below.is_empty() && path.strip_prefix(top) == Some(below) => Ok(path),
            _ => Err(self.breach("a list entry is outside the directory")),
        }
    }
}

/// Collects the entries of a list as they arrive.
struct Pages {
    most: u64,
    listed: Mutex<Vec<message::Entry>>,
}

impl NotificationHandler for Pages {
    fn page(&self, page: Page) -> Result<(), String> {
        if page.entries.is_empty() {
            return Err("empty page".to_owned());
        }
        let mut listed = crate::lock(&self.listed);
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

fn output(result: &(impl OperationStats + Serialize)) -> Result<OperationOutput, Error> {
    OperationOutput::new(result).map_err(|source| Error::Operation { source })
}

/// Permissions in octal: `0755`.
fn mode_text(permissions: u32) -> String {
    format!("{:04o}", permissions & 0o7777)
}

/// The MIME type of the content, by its bytes.
fn mime_type(content: &[u8]) -> &'static str {
    image_type(content).unwrap_or_else(|| match std::str::from_utf8(content) {
        Ok(_) => "text/plain",
        Err(_) => "application/octet-stream",
    })
}

/// The error for content that does not fit its encoding.
fn refused(path: &WireString, error: &EncodingError) -> Error {
    let message = format!("{path}: {error}");
    Error::Operation { source: WireError::new(ErrorKind::Encoding, message) }
}

const _: () = assert!(INITIAL_CREDIT <= 1 << 20, "what a reader that stands still holds");
