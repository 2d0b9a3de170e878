//! File operations of the controller: accepted by the thread that reads requests, done by one of
//! [`threads`](crate::threads), which answers each exactly once.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_protocol::limits::{LIST_PAGE, LIST_PAGE_BYTES};
use sandbox_protocol::message::{
    Call, Copy, CopyReply, Edit, EditReply, Entry, Exists, ExistsReply, Glob, GlobReply, Grep,
    GrepReply, ImageContent, List, ListReply, Mkdir, MkdirReply, Page, Read, ReadReply, Remove,
    RemoveReply, Rename, RenameReply, Stat, StatReply, View, ViewContent, ViewReply, Write,
    WriteReply,
};
use sandbox_protocol::{ErrorKind, FromAgent, WireError, WireString};
use serde::Serialize;

use crate::files::{
    Absent, Existing, FileError, Files, GlobOptions, GrepOptions, ListOptions, ListedEntry,
    Overwrite, Parents, Range, Reading, RemoveScope, Viewed, Watch, WriteOptions,
};
use crate::outbox::Outbox;
use crate::stop::{StopFlag, StopReason};
use crate::stream::{Stream, Streams, Way};
use crate::threads::Work;

/// A request that is performed on files.
pub trait FileOperation: Call<Reply: Serialize> + Send + 'static {
    /// The stream that it opens.
    fn stream(&self) -> Option<(u32, Way)> {
        None
    }

    /// Performs it.
    fn perform(&self, task: &Task<'_>) -> Result<Self::Reply, FileError>;
}

macro_rules! operations {
    ($($request:ident $method:ident $(($way:ident))?,)+) => {
        $(impl FileOperation for $request {
            $(fn stream(&self) -> Option<(u32, Way)> {
                Some((self.stream, Way::$way))
            })?

            fn perform(&self, task: &Task<'_>) -> Result<Self::Reply, FileError> {
                task.$method(self)
            }
        })+
    };
}

operations! {
    Read read (Out),
    View view (Out),
    Write write (In),
    Edit edit,
    List list,
    Glob glob,
    Grep grep,
    Mkdir mkdir,
    Remove remove,
    Exists exists,
    Stat stat,
    Rename rename,
    Copy copy,
}

/// The operations in progress.
#[derive(Clone)]
pub struct Operations {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    outbox: Arc<Outbox>,
    streams: Arc<Streams>,
}

#[derive(Default)]
struct State {
    running: HashMap<u64, Running>,
    /// Called when no operation is in progress any more.
    last: Vec<Box<dyn FnOnce() + Send>>,
    closing: bool,
}

struct Running {
    stop: Arc<StopFlag>,
    stream: Option<Arc<Stream>>,
}

impl Running {
    fn cancel(&self) {
        self.stop.stop(StopReason::Cancelled);
        if let Some(stream) = &self.stream {
            stream.wake();
        }
    }
}

impl Operations {
    /// Starts without operations.
    #[must_use]
    pub fn new(outbox: Arc<Outbox>, streams: Arc<Streams>) -> Self {
        let shared = Shared { state: Mutex::default(), outbox, streams };
        Self { shared: Arc::new(shared) }
    }

    /// Accepts the operation `id`, and returns the work that performs and answers it. Its timeout is
    /// `time`, which does not count waiting for the controller.
    ///
    /// # Errors
    ///
    /// `invalid_request` if its stream is already open, `busy` if the session ends.
    pub fn accept(
        &self,
        id: u64,
        operation: impl FileOperation,
        files: Files,
        time: Duration,
    ) -> Result<Work, WireError> {
        let mut state = self.shared.state.lock().unwrap();
        if state.closing {
            return Err(WireError::new(ErrorKind::Busy, "the session ends"));
        }
        let open = |(number, way)| self.shared.streams.open(number, way, None);
        let stream = operation.stream().map(open).transpose()?;
        let stop = Arc::new(StopFlag::default());
        let running = Running { stop: stop.clone(), stream: stream.clone() };
        state.running.insert(id, running);
        let shared = self.shared.clone();
        Ok(Box::new(move || {
            let (watch, outbox) = (&Watch::new(stop, time), &shared.outbox);
            let task = Task { id, files: &files, watch, outbox, stream, replaced: Cell::default() };
            shared.answer(&task, operation.perform(&task));
            if let Some(replaced) = task.replaced.take() {
                // To free its space takes as long as all the rest.
                shared.streams.hand_over();
                drop(replaced);
            }
        }))
    }

    /// Ends the operation with this id early; returns whether there was one.
    pub fn cancel(&self, id: u64) -> bool {
        let state = self.shared.state.lock().unwrap();
        state.running.get(&id).map(Running::cancel).is_some()
    }

    /// Ends all operations early, refuses new ones, and calls `then` when all are answered.
    pub fn end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock().unwrap();
        state.closing = true;
        state.running.values().for_each(Running::cancel);
        if state.running.is_empty() {
            drop(state);
            then();
        } else {
            state.last.push(Box::new(then));
        }
    }
}

impl Shared {
    fn answer<T: Serialize>(&self, task: &Task<'_>, result: Result<T, FileError>) {
        let result = result.map_err(|error| WireError::new(error.kind, error.to_string()));
        if let Some(stream) = &task.stream {
            self.streams.close(stream);
        }
        let mut last = Vec::new();
        self.outbox.answer(task.id, result, || {
            let mut state = self.state.lock().unwrap();
            state.running.remove(&task.id);
            if state.running.is_empty() {
                last = std::mem::take(&mut state.last);
            }
        });
        last.into_iter().for_each(|last| last());
    }
}

/// An operation in progress.
pub struct Task<'a> {
    id: u64,
    files: &'a Files,
    watch: &'a Watch,
    outbox: &'a Outbox,
    stream: Option<Arc<Stream>>,
    /// A file that is closed with the task, after its answer.
    replaced: Cell<Option<OwnedFd>>,
}

impl Task<'_> {
    fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("opened with the request")
    }

    /// Sends a piece and the rest of its file, and returns the size of both.
    fn send(&self, mut piece: Vec<u8>, mut reading: Reading) -> Result<u64, FileError> {
        let mut bytes = 0;
        loop {
            bytes += piece.len() as u64;
            let is_last = reading.left() == 0;
            self.stream().send(self.outbox, piece, is_last, self.watch)?;
            if is_last {
                return Ok(bytes);
            }
            piece = reading.next(self.watch)?;
        }
    }

    fn read(&self, request: &Read) -> Result<ReadReply, FileError> {
        let range = Range { offset: request.offset, limit: request.limit };
        let mut reading = self.files.read(request.path.as_bytes(), range)?;
        let (path, size) = ((&reading.path).into(), reading.size);
        let first = reading.next(self.watch)?;
        Ok(ReadReply { path, bytes: self.send(first, reading)?, size })
    }

    fn view(&self, request: &View) -> Result<ViewReply, FileError> {
        let View { path, offset, limit, .. } = request;
        let path = path.as_bytes();
        match self.files.view(path, *offset, *limit, self.watch)? {
            Viewed::Text(path, window) => {
                let path = (&path).into();
                Ok(ViewReply { path, content: ViewContent::Text(window) })
            }
            Viewed::Image(mime_type, first, reading) => {
                let path = (&reading.path).into();
                let mime_type = mime_type.to_owned();
                let image = ImageContent { mime_type, bytes: self.send(first, reading)? };
                Ok(ViewReply { path, content: ViewContent::Image(image) })
            }
        }
    }

    fn write(&self, request: &Write) -> Result<WriteReply, FileError> {
        let options = WriteOptions {
            mode: request.mode,
            absent: Absent::Accept,
            parents: parents(request.parents),
            overwrite: if request.atomic { Overwrite::Atomic } else { Overwrite::InPlace },
        };
        let path = request.path.as_bytes();
        let done = match self.stream().receive_all_now() {
            Some(content) => self.files.write_all(path, options, &content, self.watch)?,
            None => {
                let mut writing = self.files.write(path, options)?;
                while let Some(piece) = self.stream().receive(self.outbox, self.watch)? {
                    self.watch.check()?;
                    writing.put(&piece)?;
                }
                writing.commit(self.watch)?
            }
        };
        self.replaced.set(done.replaced);
        let path = (&done.path).into();
        Ok(WriteReply { path, bytes_written: done.bytes, created: done.created })
    }

    fn edit(&self, request: &Edit) -> Result<EditReply, FileError> {
        let Edit { path, old, new, count } = request;
        let path = self.files.edit(path.as_bytes(), old, new, *count, self.watch)?;
        Ok(EditReply { path: (&path).into(), replacements: *count })
    }

    fn list(&self, request: &List) -> Result<ListReply, FileError> {
        let options = ListOptions { depth: request.max_depth, limit: request.limit };
        let path = request.path.as_bytes();
        let mut page = Vec::new();
        let mut bytes = 0;
        let end = self.files.list_entries(path, options, self.watch, |listed| {
            let ListedEntry { path, kind, size, modified } = listed;
            let name = WireString::from(path);
            bytes += name.encoded_len();
            page.push(Entry { name, kind, size, modified });
            if page.len() == LIST_PAGE || bytes >= LIST_PAGE_BYTES {
                self.turn(&mut page);
                bytes = 0;
            }
            Ok(())
        })?;
        if !page.is_empty() {
            self.turn(&mut page);
        }
        Ok(ListReply { path: (&end.path).into(), entries: end.entries, cut: end.cut })
    }

    fn turn(&self, page: &mut Vec<Entry>) {
        let page = Page { request: self.id, entries: std::mem::take(page) };
        self.watch.wait(|| self.outbox.notify(&FromAgent::Page(page)));
    }

    fn glob(&self, request: &Glob) -> Result<GlobReply, FileError> {
        let Glob { path, pattern, globs, prefix, hidden, limit } = request;
        let prefix = prefix.as_bytes();
        let options = GlobOptions { pattern, globs, prefix, hidden: *hidden, limit: *limit };
        let found = self.files.glob(path.as_bytes(), options, self.watch)?;
        let names = found.found.into_iter().map(WireString::from).collect();
        Ok(GlobReply { path: (&found.path).into(), names, cut: found.cut })
    }

    fn grep(&self, request: &Grep) -> Result<GrepReply, FileError> {
        let options = GrepOptions {
            pattern: &request.pattern,
            globs: &request.globs,
            context: request.context,
            ignore_case: request.ignore_case,
            hidden: request.hidden,
            limit: request.limit,
        };
        let found = self.files.grep(request.path.as_bytes(), options, self.watch)?;
        let path = (&found.path).into();
        Ok(GrepReply { path, lines: found.found, files: found.files, cut: found.cut })
    }

    fn mkdir(&self, request: &Mkdir) -> Result<MkdirReply, FileError> {
        let (path, created) =
            self.files.mkdir(request.path.as_bytes(), parents(request.parents))?;
        Ok(MkdirReply { path: (&path).into(), created })
    }

    fn remove(&self, request: &Remove) -> Result<RemoveReply, FileError> {
        let path = request.path.as_bytes();
        let scope = if request.recursive { RemoveScope::Tree } else { RemoveScope::Entry };
        let absent = if request.force { Absent::Accept } else { Absent::Refuse };
        let removed = self.files.remove_entry(path, scope, absent, self.watch)?;
        let path = (&removed.path).into();
        let entries = removed.entries;
        Ok(RemoveReply { path, removed: entries > 0, entries })
    }

    fn exists(&self, request: &Exists) -> Result<ExistsReply, FileError> {
        let (path, kind) = self.files.exists(request.path.as_bytes())?;
        Ok(ExistsReply { path: (&path).into(), kind })
    }

    fn stat(&self, request: &Stat) -> Result<StatReply, FileError> {
        let facts = self.files.stat(request.path.as_bytes())?;
        Ok(StatReply {
            path: (&facts.path).into(),
            kind: facts.kind,
            size: facts.size,
            permissions: facts.permissions,
            uid: facts.uid,
            gid: facts.gid,
            modified: facts.modified,
            accessed: facts.accessed,
            created: facts.created,
        })
    }

    fn rename(&self, request: &Rename) -> Result<RenameReply, FileError> {
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let existing = if request.overwrite { Existing::Replace } else { Existing::Refuse };
        let (from, to) = self.files.rename_entry(from, to, existing, self.watch)?;
        Ok(RenameReply { from: (&from).into(), to: (&to).into() })
    }

    fn copy(&self, request: &Copy) -> Result<CopyReply, FileError> {
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let scope = if request.recursive { RemoveScope::Tree } else { RemoveScope::Entry };
        let existing = if request.overwrite { Existing::Replace } else { Existing::Refuse };
        let copied = self.files.copy(from, to, scope, existing, self.watch)?;
        let (from, to) = ((&copied.from).into(), (&copied.to).into());
        Ok(CopyReply { from, to, entries: copied.entries, bytes: copied.bytes })
    }
}

const fn parents(make: bool) -> Parents {
    if make { Parents::Make } else { Parents::Require }
}
