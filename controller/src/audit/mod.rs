//! The audit: one JSON line for each operation, appended to a file.
//!
//! A separate thread writes, so that a slow, stuck or full file never delays the audited operation.
//! Between the two is a bounded queue; lines that do not fit, or that cannot be written, are lost.
//! Losses are counted, recorded in the file as soon as it accepts a line again, and reported at the
//! end by [`AuditReport`].
//!
//! Each line is one write call with `O_APPEND`: several processes may share a file.

mod event;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sandbox_api::time;
use tokio::sync::Notify;

pub use self::event::AccessRecord;
pub(crate) use self::event::{By, Connection, Event, OK, REQUESTED, RequestRecord, outcome};
use self::event::{Lost, encode};
use crate::error::Error;

/// The maximum number of queued lines.
const MAX_LINES: usize = 16_384;
/// The maximum number of bytes of queued lines: a path can consist of control characters, which are
/// escaped.
const MAX_BYTES: usize = 8 << 20;
/// How long closing waits for a file that accepts no data.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a writer that waits for its file checks whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The final state of an audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// Its file.
    pub file: PathBuf,
    /// The number of written lines, without those that record losses.
    pub written: u64,
    /// The number of lost lines.
    pub lost: u64,
    /// The first problem with the file, if there was any.
    pub failure: Option<String>,
}

/// The audit of a controller, or none. When it is dropped, queued lines are still written, within
/// the timeout of closing.
#[derive(Debug)]
pub(crate) struct Audit(Option<Arc<Queue>>);

impl Drop for Audit {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            crate::lock(&queue.state).closing_since = Some(Instant::now());
            queue.added.notify_one();
        }
    }
}

impl Audit {
    /// No audit.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Opens the file, or creates it with access for its owner only. It never blocks: a FIFO must
    /// have a reader.
    pub fn open(file: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::Audit { path: file.to_owned(), reason };
        let path = std::path::absolute(file).map_err(|error| refuse(error.to_string()))?;
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags.bits().cast_signed())
            .open(&path)
            .map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NXIO) => refuse("it is a FIFO without a reader, or a socket".into()),
                _ => refuse(error.to_string()),
            })?;
        let kind = opened.metadata().map_err(|error| refuse(error.to_string()))?.file_type();
        if !(kind.is_file() || kind.is_fifo() || kind.is_char_device()) {
            return Err(refuse("it is neither a file, a FIFO nor a character device".into()));
        }
        let queue = Arc::new(Queue {
            path,
            state: Mutex::default(),
            added: Condvar::new(),
            is_idle: Notify::new(),
        });
        let writer = Writer { queue: queue.clone(), file: opened, is_torn: false };
        std::thread::Builder::new()
            .name("sandboxctl-audit".to_owned())
            .spawn(move || writer.work())
            .map_err(|error| refuse(error.to_string()))?;
        Ok(Self(Some(queue)))
    }

    /// The path of its file.
    pub fn file(&self) -> Option<&Path> {
        Some(&self.0.as_ref()?.path)
    }

    /// Records an event. It never blocks.
    pub fn record(&self, event: &Event<'_>) {
        if let Some(queue) = &self.0 {
            queue.add(event.line());
        }
    }

    /// Records how something that the caller asked for has ended, and how long it took.
    pub fn ended(&self, run_id: &str, operation: &str, outcome: &str, took: Duration) {
        self.record(&Event { outcome, duration: Some(took), ..Event::new(run_id, operation) });
    }

    /// Waits until all queued lines are written, with a timeout for a file that accepts no data,
    /// and reports the result.
    pub async fn flush(&self) -> Option<AuditReport> {
        let queue = self.0.as_ref()?;
        crate::lock(&queue.state).retry = true;
        queue.added.notify_one();
        let idle = async {
            loop {
                let notified = queue.is_idle.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if crate::lock(&queue.state).is_idle() {
                    return;
                }
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(FLUSH_TIMEOUT, idle).await.is_ok();
        let mut state = crate::lock(&queue.state);
        if !in_time {
            state.failure.get_or_insert_with(|| "it accepts no data".to_owned());
        }
        Some(AuditReport {
            file: queue.path.clone(),
            written: state.written,
            lost: state.lost + state.lines.len() as u64 + u64::from(state.is_writing),
            failure: state.failure.clone(),
        })
    }
}

/// The queue between the recorders and the writer.
#[derive(Debug)]
struct Queue {
    path: PathBuf,
    state: Mutex<State>,
    /// There is work for the writer.
    added: Condvar,
    /// There is no more work for the writer.
    is_idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// The size of the queued lines.
    bytes: usize,
    /// Whether a line that was taken from the queue is being written.
    is_writing: bool,
    written: u64,
    lost: u64,
    /// Lost lines that are not recorded in the file yet.
    unrecorded_losses: u64,
    /// Whether the last write failed.
    is_failing: bool,
    /// Whether to record losses although the last write failed.
    retry: bool,
    failure: Option<String>,
    /// When closing began, after which there are no new lines.
    closing_since: Option<Instant>,
}

impl State {
    /// Whether there are losses to record. A file that fails is not written to until there is a
    /// line to write.
    fn has_losses_to_record(&self) -> bool {
        self.unrecorded_losses > 0 && (!self.is_failing || self.retry)
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_writing && !self.has_losses_to_record()
    }

    fn lose_one(&mut self) {
        self.lost += 1;
        self.unrecorded_losses += 1;
    }

    fn fail(&mut self, error: &io::Error) {
        self.failure.get_or_insert_with(|| error.to_string());
    }
}

impl Queue {
    fn add(&self, line: Vec<u8>) {
        let mut state = crate::lock(&self.state);
        if state.lines.len() >= MAX_LINES || state.bytes + line.len() > MAX_BYTES {
            state.lose_one();
        } else {
            state.bytes += line.len();
            state.lines.push_back(line);
        }
        drop(state);
        self.added.notify_one();
    }
}

/// The writer thread.
struct Writer {
    queue: Arc<Queue>,
    file: File,
    /// Whether the file ends with an incomplete line.
    is_torn: bool,
}

impl Writer {
    fn work(mut self) {
        let queue = self.queue.clone();
        let mut state = crate::lock(&queue.state);
        loop {
            if state.is_idle() {
                queue.is_idle.notify_waiters();
                if state.closing_since.is_some() {
                    return;
                }
                state = queue.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            // Losses come first: they are older than most of the queue.
            if state.unrecorded_losses > 0 {
                let count = state.unrecorded_losses;
                state.retry = false;
                drop(state);
                let line = encode(&Lost { time: time::now(), event: "lost", count });
                let result = self.write(line);
                state = crate::lock(&queue.state);
                state.is_failing = result.is_err();
                match result {
                    // More may have been lost meanwhile.
                    Ok(()) => state.unrecorded_losses -= count,
                    Err(error) => state.fail(&error),
                }
            }
            let Some(line) = state.lines.pop_front() else { continue };
            state.bytes -= line.len();
            if state.is_failing && state.unrecorded_losses > 0 {
                // The file did not even accept the few bytes above.
                state.lose_one();
                continue;
            }
            state.is_writing = true;
            drop(state);
            let result = self.write(line);
            state = crate::lock(&queue.state);
            state.is_writing = false;
            state.is_failing = result.is_err();
            match result {
                Ok(()) => state.written += 1,
                Err(error) => {
                    state.fail(&error);
                    state.lose_one();
                }
            }
        }
    }

    /// Writes a whole line. If the file was full and has part of an earlier line, that part is
    /// ended with a newline first.
    fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if self.is_torn {
            line.insert(0, b'\n');
        }
        let mut left = line.as_slice();
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left = &left[count..];
                    self.is_torn = !left.is_empty();
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    Some(Errno::AGAIN) => self.wait()?,
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Waits until the file accepts more data; with a timeout while closing.
    fn wait(&self) -> io::Result<()> {
        loop {
            let closing_since = crate::lock(&self.queue.state).closing_since;
            if closing_since.is_some_and(|since| since.elapsed() >= FLUSH_TIMEOUT) {
                return Err(io::Error::other("it accepts no data"));
            }
            let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()) };
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
