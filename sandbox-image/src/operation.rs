//! File operations of the controller: accepted by the thread that reads requests, done by one of
//! [`threads`](crate::threads), which answers each exactly once.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_protocol::limits::{LIST_PAGE, LIST_PAGE_BYTES};
use sandbox_protocol::message::{
    Entry, EntryDetails, Exists, ExistsReply, ImageContent, List, ListReply, Operation, Page, Read,
    ReadLink, ReadReply, Stat, View, ViewContent, ViewReply, Write, WriteReply,
};
use sandbox_protocol::operation::OperationReply;
use sandbox_protocol::{FromAgent, WireError, WireString};

use crate::files::{Absent, FileError, Files, LastLink, Reading, Viewed, Watch};
use crate::outbox::Outbox;
use crate::stop::{StopFlag, StopReason};
use crate::stream::{Stream, Streams};
use crate::threads::ThreadJob;

/// The operations in progress.
pub struct Operations {
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
    pub fn new(outbox: Arc<Outbox>, streams: Arc<Streams>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), outbox, streams })
    }

    /// Accepts the operation `id`, and returns the work that performs and answers it. Its timeout is
    /// `time`, which does not count waiting for the controller.
    ///
    /// # Errors
    ///
    /// `invalid_request` if its stream is already open, `busy` if the session ends.
    pub fn accept(
        self: &Arc<Self>,
        id: u64,
        operation: Operation,
        stream: Option<u32>,
        files: Files,
        time: Duration,
    ) -> Result<ThreadJob, WireError> {
        let mut state = self.state.lock().unwrap();
        if state.closing {
            return Err(WireError::busy("the session ends"));
        }
        let open = |(number, way)| self.streams.open(number, way, None);
        let stream = stream.zip(operation.stream()).map(open).transpose()?;
        let stop = Arc::new(StopFlag::default());
        let running = Running { stop: stop.clone(), stream: stream.clone() };
        state.running.insert(id, running);
        let operations = self.clone();
        Ok(Box::new(move || {
            let (watch, outbox) = (&Watch::new(stop, time), &operations.outbox);
            let task = Task { id, files: &files, watch, outbox, stream, replaced: Cell::default() };
            operations.answer(&task, task.perform(operation));
            if let Some(replaced) = task.replaced.take() {
                // To free its space takes as long as all the rest.
                operations.streams.hand_over();
                drop(replaced);
            }
        }))
    }

    /// Ends the operation with this id early; returns whether there was one.
    pub fn cancel(&self, id: u64) -> bool {
        let state = self.state.lock().unwrap();
        state.running.get(&id).map(Running::cancel).is_some()
    }

    /// Ends all operations early, refuses new ones, and calls `then` when all are answered.
    pub fn end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap();
        state.closing = true;
        state.running.values().for_each(Running::cancel);
        if state.running.is_empty() {
            drop(state);
            then();
        } else {
            state.last.push(Box::new(then));
        }
    }

    fn answer(&self, task: &Task<'_>, result: Result<OperationReply, FileError>) {
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

    fn perform(&self, operation: Operation) -> Result<OperationReply, FileError> {
        if !self.files.follows {
            return self.perform_once(operation);
        }
        let named: Vec<_> = match &operation {
            // As the pattern may say itself where it begins.
            Operation::Glob(glob) => vec![glob.split().0],
            operation => {
                let (path, to) = operation.paths();
                std::iter::once(path).chain(to).map(|it| it.as_bytes().to_vec()).collect()
            }
        };
        let mut reply = match operation {
            // It consumes its content, and repeats what comes before; a copy may be there in part.
            operation @ (Operation::Write(_) | Operation::Copy(_)) => self.perform_once(operation),
            operation => self.files.repeated(|| self.perform_once(operation.clone())),
        }?;
        // The paths that were asked for, not those that links led to.
        let named = named.iter().filter_map(|written| self.files.meant(written));
        reply.set_paths(&mut named.map(|path| WireString::from(&path)));
        Ok(reply)
    }

    fn perform_once(&self, operation: Operation) -> Result<OperationReply, FileError> {
        Ok(match operation {
            Operation::Read(request) => self.read(&request)?.into(),
            Operation::View(request) => self.view(&request)?.into(),
            Operation::Write(request) => self.write(request)?.into(),
            Operation::Edit(request) => self.files.edit(&request, self.watch)?.into(),
            Operation::List(request) => self.list(&request)?.into(),
            Operation::Glob(request) => self.files.glob(&request, self.watch)?.into(),
            Operation::Grep(request) => self.files.grep(&request, self.watch)?.into(),
            Operation::Mkdir(request) => self.files.mkdir(&request)?.into(),
            Operation::Touch(request) => self.files.touch(&request)?.into(),
            Operation::Remove(request) => self.files.remove_entry(&request, self.watch)?.into(),
            Operation::Exists(Exists { path }) => {
                let (path, kind) = self.files.exists(path.as_bytes())?;
                ExistsReply { path: (&path).into(), exists: kind.is_some(), kind }.into()
            }
            Operation::Stat(Stat { path, follow }) => {
                let last = if follow { LastLink::Follow } else { LastLink::Keep };
                self.files.stat_at(path.as_bytes(), last)?.into()
            }
            Operation::Rename(request) => self.files.rename_entry(&request, self.watch)?.into(),
            Operation::Copy(request) => self.files.copy(&request, self.watch)?.into(),
            Operation::Chmod(request) => self.files.chmod(&request, self.watch)?.into(),
            Operation::Symlink(request) => self.files.symlink(&request)?.into(),
            Operation::ReadLink(ReadLink { path }) => self.files.read_link(path.as_bytes())?.into(),
            Operation::SetMetadata(request) => self.files.set_metadata(&request)?.into(),
        })
    }

    fn read(&self, request: &Read) -> Result<ReadReply, FileError> {
        let Read { path, offset, limit } = request;
        let mut reading = self.files.read(path.as_bytes(), *offset, *limit)?;
        let (path, size) = ((&reading.path).into(), reading.size);
        let first = reading.next(self.watch)?;
        Ok(ReadReply { path, bytes: self.send(first, reading)?, size })
    }

    fn view(&self, request: &View) -> Result<ViewReply, FileError> {
        let (path, content) = match self.files.view(request, self.watch)? {
            Viewed::Text(path, window) => ((&path).into(), ViewContent::Text(window)),
            Viewed::Image(mime_type, first, reading) => {
                let path = (&reading.path).into();
                let mime_type = mime_type.to_owned();
                let image = ImageContent { mime_type, bytes: self.send(first, reading)? };
                (path, ViewContent::Image(image))
            }
        };
        Ok(ViewReply { path, content })
    }

    fn write(&self, request: Write) -> Result<WriteReply, FileError> {
        let done = match self.stream().receive_all_now() {
            Some(content) => self
                .files
                .repeated(|| self.files.write_all(request.clone(), &content, self.watch))?,
            None => {
                let begin = || self.files.write(request.clone(), Absent::Accept);
                let mut writing = self.files.repeated(begin)?;
                while let Some(piece) = self.stream().receive(self.outbox, self.watch)? {
                    self.watch.check()?;
                    writing.put(&piece)?;
                }
                writing.commit(self.watch).map_err(|error| self.files.settled(error))?
            }
        };
        self.replaced.set(done.replaced);
        let path = (&done.path).into();
        Ok(WriteReply { path, bytes_written: done.bytes, created: done.created })
    }

    fn list(&self, request: &List) -> Result<ListReply, FileError> {
        let mut page = Vec::new();
        let mut bytes = 0;
        let reply = self.files.list_entries(request, self.watch, |entry| {
            bytes += entry.name.encoded_len();
            bytes += entry.details.as_ref().map_or(0, EntryDetails::encoded_len);
            page.push(entry);
            if page.len() == LIST_PAGE || bytes >= LIST_PAGE_BYTES {
                self.send_page(&mut page);
                bytes = 0;
            }
            Ok(())
        })?;
        if !page.is_empty() {
            self.send_page(&mut page);
        }
        Ok(reply)
    }

    fn send_page(&self, page: &mut Vec<Entry>) {
        let page = Page { request: self.id, entries: std::mem::take(page) };
        self.watch.wait(|| self.outbox.notify(&FromAgent::Page(page)));
    }
}
