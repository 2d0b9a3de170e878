//! The audit: one JSON line for each operation, appended to a file.
//!
//! A thread of its own writes, so that a file that is slow, stuck or full never holds up what is
//! audited. Between the two is a queue with bounds; what does not fit in it is lost, and so is
//! what cannot be written. Losses are counted, told in the file as soon as it takes a line again,
//! and told at the end by [`AuditReport`].
//!
//! One write call a line, with `O_APPEND`: several processes may share a file.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sandbox_api::{millis, time};
use sandbox_dirfd::Identity;
use sandbox_protocol::Base64;
use sandbox_protocol::path::{MAX_PATH_BYTES, to_wire};
use serde::{Serialize, Serializer};
use tokio::sync::Notify;

use crate::error::Error;

/// Lines that wait to be written.
const MAX_LINES: usize = 16_384;
/// Bytes of lines that wait to be written: a path can be all control characters.
const MAX_BYTES: usize = 8 << 20;
/// How long an end waits for a file that takes nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a writer that waits for its file looks whether it still should.
const LOOK: Duration = Duration::from_millis(100);

/// Who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// Whoever uses the library.
    Caller,
    /// What runs in the sandbox.
    Script,
}

/// What is worth a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    /// The run's id, or the sandbox's for what is no part of a run.
    pub execution: &'a str,
    pub operation: &'a str,
    pub by: By,
    /// The guest path, normalised; or as it was given where that cannot be done.
    pub path: Option<&'a [u8]>,
    /// Of a rename: the new path.
    pub to: Option<&'a [u8]>,
    /// Of a command: its program, as it was given. Never its arguments or its environment, which
    /// may hold secrets.
    pub program: Option<&'a [u8]>,
    /// `ok`, an error's kind, or a run's status.
    pub outcome: &'a str,
    pub bytes: Option<u64>,
    pub duration: Option<Duration>,
    /// Of a connection.
    pub connection: Option<Connection<'a>>,
}

/// A connection of what runs in the sandbox.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Connection<'a> {
    /// `host:port`.
    pub target: &'a str,
    /// What was dialled.
    pub address: Option<IpAddr>,
    /// Why it ended, where that was not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

/// The outcome of what went well.
pub(crate) const OK: &str = "ok";

/// The outcome of an operation: `ok`, or the error's kind.
pub(crate) fn outcome<T>(result: &Result<T, Error>) -> &'static str {
    result.as_ref().map_or_else(|error| error.kind().as_str(), |_| OK)
}

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    execution: &'a str,
    operation: &'a str,
    by: By,
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_b64: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program_b64: Option<Base64>,
    outcome: &'a str,
    bytes: Option<u64>,
    #[serde(serialize_with = "as_millis")]
    duration_ms: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<Connection<'a>>,
}

/// A line that stands for others.
#[derive(Serialize)]
struct Lost {
    time: String,
    event: &'static str,
    count: u64,
}

fn as_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(millis).serialize(serializer)
}

impl<'a> Event<'a> {
    /// The caller's, without a path, that went well.
    pub const fn new(execution: &'a str, operation: &'a str) -> Self {
        Self {
            execution,
            operation,
            by: By::Caller,
            path: None,
            to: None,
            program: None,
            outcome: OK,
            bytes: None,
            duration: None,
            connection: None,
        }
    }

    fn line(&self) -> Vec<u8> {
        let names = [self.path, self.to, self.program];
        let [(path, path_b64), (to, to_b64), (program, program_b64)] = names.map(|name| {
            let Some(name) = name else { return (None, None) };
            let (text, bytes) = to_wire(&name[..name.len().min(MAX_PATH_BYTES)]);
            (Some(text), bytes)
        });
        encode(&Line {
            time: time::now(),
            execution: self.execution,
            operation: self.operation,
            by: self.by,
            path,
            path_b64,
            to,
            to_b64,
            program,
            program_b64,
            outcome: self.outcome,
            bytes: self.bytes,
            duration_ms: self.duration,
            connection: self.connection,
        })
    }
}

/// The line's bytes, with its newline. JSON escapes the control characters of ASCII; the others
/// steer terminals too, or turn text around.
fn encode(line: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_string(line).unwrap_or_default();
    let mut text = String::with_capacity(json.len() + 1);
    for char in json.chars() {
        if steers(char) {
            // All of them have four digits.
            _ = write!(text, "\\u{:04x}", u32::from(char));
        } else {
            text.push(char);
        }
    }
    text.push('\n');
    text.into_bytes()
}

fn steers(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// What became of an audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// Where it is.
    pub file: PathBuf,
    /// Lines that were written, without those that tell of losses.
    pub written: u64,
    /// Lines that were not.
    pub lost: u64,
    /// What was wrong with the file first, if anything was.
    pub failure: Option<String>,
}

/// The audit of a controller, or none. Dropped: what waits is written, for as long as an end
/// waits.
#[derive(Debug)]
pub(crate) struct Audit(Option<Arc<Queue>>);

impl Drop for Audit {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.lock().ending = Some(Instant::now());
            queue.added.notify_one();
        }
    }
}

impl Audit {
    /// No audit.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Opens the file, or makes it, for its owner alone. No file is waited for: a FIFO must have
    /// its reader.
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
                Some(Errno::NXIO) => refuse("it is a FIFO that nobody reads, or a socket".into()),
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

    /// Whether the file lies below this directory of the host, by any name that leads there: what
    /// can write there could change it.
    pub fn lies_in(&self, directory: Identity) -> Option<&Path> {
        let path = &self.0.as_ref()?.path;
        let parent = path.parent()?;
        // As it is written, and what it leads to where that is a link.
        let places = [parent.canonicalize(), path.canonicalize()];
        let is_in_it = places.iter().flatten().any(|place| {
            place.ancestors().any(|above| {
                above
                    .metadata()
                    .is_ok_and(|found| Identity { dev: found.dev(), ino: found.ino() } == directory)
            })
        });
        is_in_it.then_some(path)
    }

    /// Records an event. It never waits.
    pub fn record(&self, event: &Event<'_>) {
        if let Some(queue) = &self.0 {
            queue.add(event.line());
        }
    }

    /// Waits until all is written that waits, but not for a file that takes nothing, and tells
    /// what became of it all.
    pub async fn flush(&self) -> Option<AuditReport> {
        let queue = self.0.as_ref()?;
        queue.lock().retry = true;
        queue.added.notify_one();
        let idle = async {
            loop {
                let notified = queue.is_idle.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if queue.lock().is_idle() {
                    return;
                }
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, idle).await.is_ok();
        let mut state = queue.lock();
        if !in_time {
            state.failure.get_or_insert_with(|| "it takes nothing".to_owned());
        }
        Some(AuditReport {
            file: queue.path.clone(),
            written: state.written,
            lost: state.lost + state.lines.len() as u64 + u64::from(state.is_writing),
            failure: state.failure.clone(),
        })
    }
}

/// Between those who record and the one who writes.
#[derive(Debug)]
struct Queue {
    path: PathBuf,
    state: Mutex<State>,
    /// There is something to do for the writer.
    added: Condvar,
    /// There is nothing more to do for it.
    is_idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of the lines.
    bytes: usize,
    /// One that was taken from the lines is being written.
    is_writing: bool,
    written: u64,
    lost: u64,
    /// Of the lost: those that the file does not tell of yet.
    untold: u64,
    /// The file did not take the last line.
    is_failing: bool,
    /// Tell of losses though the file did not take the last line.
    retry: bool,
    failure: Option<String>,
    /// No more will come, since then.
    ending: Option<Instant>,
}

impl State {
    /// Whether there are losses to tell of. A file that fails is left alone until there is a line
    /// to write.
    fn has_to_tell(&self) -> bool {
        self.untold > 0 && (!self.is_failing || self.retry)
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_writing && !self.has_to_tell()
    }

    fn lose_one(&mut self) {
        self.lost += 1;
        self.untold += 1;
    }

    fn fail(&mut self, error: &io::Error) {
        self.failure.get_or_insert_with(|| error.to_string());
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: Vec<u8>) {
        let mut state = self.lock();
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

/// The thread that writes.
struct Writer {
    queue: Arc<Queue>,
    file: File,
    /// The file took half a line, and no more.
    is_torn: bool,
}

impl Writer {
    fn work(mut self) {
        let queue = self.queue.clone();
        let mut state = queue.lock();
        loop {
            if state.is_idle() {
                queue.is_idle.notify_waiters();
                if state.ending.is_some() {
                    return;
                }
                state = queue.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            // Losses come first: they are older than most of what waits.
            if state.untold > 0 {
                let count = state.untold;
                state.retry = false;
                drop(state);
                let line = encode(&Lost { time: time::now(), event: "lost", count });
                let result = self.write(line);
                state = queue.lock();
                state.is_failing = result.is_err();
                match result {
                    // More may have been lost since.
                    Ok(()) => state.untold -= count,
                    Err(error) => state.fail(&error),
                }
            }
            let Some(line) = state.lines.pop_front() else { continue };
            state.bytes -= line.len();
            if state.is_failing && state.untold > 0 {
                // It did not take the few bytes above.
                state.lose_one();
                continue;
            }
            state.is_writing = true;
            drop(state);
            let result = self.write(line);
            state = queue.lock();
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

    /// Writes a line whole. What a file that was full has of a line gets a line of its own.
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

    /// Waits until the file takes more; not for ever, once no more will come.
    fn wait(&self) -> io::Result<()> {
        loop {
            let ending = self.queue.lock().ending;
            if ending.is_some_and(|since| since.elapsed() >= PATIENCE) {
                return Err(io::Error::other("it takes nothing"));
            }
            let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
            let look = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
            match rustix::event::poll(&mut fds, Some(&look)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;

    use proptest::prelude::*;
    use rustix::fs::{CWD, FileType, Mode};
    use serde::Deserialize;
    use serde_json::Value;

    fn read(file: &Path) -> Vec<Value> {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn write<'a>(path: &'a [u8]) -> Event<'a> {
        Event { path: Some(path), bytes: Some(5), ..Event::new("1f", "write") }
    }

    fn fifo(folder: &Path) -> PathBuf {
        let path = folder.join("fifo");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    fn reader(fifo: &Path) -> File {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        File::options().read(true).custom_flags(flags).open(fifo).unwrap()
    }

    fn refused(file: &Path) -> String {
        let error = Audit::open(file).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[tokio::test]
    async fn each_event_is_a_line_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.log");
        let audit = Audit::open(&file).unwrap();
        audit.record(&write(b"/io/a"));
        audit.record(&Event {
            by: By::Script,
            outcome: "protected",
            to: Some(b"/io/.bashrc"),
            duration: Some(Duration::from_micros(2500)),
            ..Event { path: Some(b"/io/a\xff"), ..Event::new("1f-2", "rename") }
        });
        let report = audit.flush().await.unwrap();
        assert_eq!((report.written, report.lost, report.failure), (2, 0, None));
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        let lines = read(&file);
        for line in &lines {
            let time = line["time"].as_str().unwrap();
            assert!(humantime::parse_rfc3339(time).is_ok(), "{time}");
        }
        let timeless = |line: &Value| {
            let mut line = line.clone();
            line.as_object_mut().unwrap().remove("time");
            line
        };
        assert_eq!(
            timeless(&lines[0]),
            serde_json::json!({
                "execution": "1f", "operation": "write", "by": "caller", "path": "/io/a",
                "outcome": "ok", "bytes": 5, "duration_ms": null,
            })
        );
        assert_eq!(
            timeless(&lines[1]),
            serde_json::json!({
                "execution": "1f-2", "operation": "rename", "by": "script",
                "path": "/io/a\u{fffd}", "path_b64": "L2lvL2H/", "to": "/io/.bashrc",
                "outcome": "protected", "bytes": null, "duration_ms": 2,
            })
        );
    }

    #[test]
    fn a_path_is_bounded_and_steers_no_terminal() {
        let path = "\x1b\n\u{9b}\u{202e}\x7f".repeat(2000);
        let line = write(path.as_bytes()).line();
        assert!(line.len() < 7 * MAX_PATH_BYTES, "{}", line.len());
        let (newline, text) = line.split_last().unwrap();
        assert_eq!(*newline, b'\n');
        assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte)), "only what is visible");
        let line: Value = serde_json::from_slice(text).unwrap();
        assert!(path.starts_with(line["path"].as_str().unwrap().trim_end_matches('\u{fffd}')));
        // What is no control character stays as it is.
        assert!(String::from_utf8(write("/io/Zoë ☃".as_bytes()).line()).unwrap().contains("Zoë ☃"));
    }

    proptest! {
        #[test]
        fn any_path_is_told_in_one_line(
            path in proptest::collection::vec(any::<u8>(), 0..6000),
            to in ".{0,6000}",
        ) {
            let line = Event { to: Some(to.as_bytes()), ..write(&path) }.line();
            prop_assert!(line.len() <= 64 << 10);
            let (newline, text) = line.split_last().unwrap();
            prop_assert_eq!(*newline, b'\n');
            let text = str::from_utf8(text).unwrap();
            prop_assert!(!text.contains(char::is_control));
            let line: Value = serde_json::from_str(text).unwrap();
            let exact = match line.get("path_b64") {
                Some(bytes) => Base64::deserialize(bytes).unwrap().0,
                None => line["path"].as_str().unwrap().as_bytes().to_vec(),
            };
            prop_assert_eq!(exact, &path[..path.len().min(MAX_PATH_BYTES)]);
        }
    }

    #[tokio::test]
    async fn several_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.log");
        fs::write(&file, "{\"old\":true}\n").unwrap();
        let path = vec![b'x'; 4000];
        let audits: Vec<_> = (0..4).map(|_| Audit::open(&file).unwrap()).collect();
        std::thread::scope(|scope| {
            for audit in &audits {
                scope.spawn(|| (0..500).for_each(|_| audit.record(&write(&path))));
            }
        });
        let mut written = 0;
        for audit in &audits {
            let report = audit.flush().await.unwrap();
            assert_eq!(report.failure, None);
            assert_eq!(report.written + report.lost, 500);
            written += report.written;
        }
        let lines = read(&file);
        assert_eq!(lines[0], serde_json::json!({"old": true}));
        let events = lines.iter().filter(|line| line["operation"] == "write").count() as u64;
        assert_eq!(events, written);
    }

    #[tokio::test]
    async fn a_reader_that_reads_nothing_holds_up_nothing_and_losses_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(folder.path());
        let mut reader = reader(&fifo);
        let audit = Audit::open(&fifo).unwrap();
        let count = 2 * MAX_LINES as u64;
        for _ in 0..count {
            audit.record(&write(b"/io/a"));
        }
        let report = audit.flush().await.unwrap();
        assert_eq!(report.failure.as_deref(), Some("it takes nothing"));
        assert_eq!(report.written + report.lost, count);
        assert!(report.lost > count / 2, "{report:?}");

        // It reads at last.
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            let mut lost = 0;
            let mut events = 0;
            while events + lost < count {
                let mut piece = [0; 4096];
                let length = match reader.read(&mut piece) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
                        rustix::event::poll(&mut fds, None).unwrap();
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                assert_ne!(length, 0, "the writer is gone: {events} and {lost} of {count}");
                text.push_str(str::from_utf8(&piece[..length]).unwrap());
                while let Some((line, rest)) = text.split_once('\n') {
                    let line: Value = serde_json::from_str(line).unwrap();
                    match line["event"].as_str() {
                        Some("lost") => lost += line["count"].as_u64().unwrap(),
                        _ => events += 1,
                    }
                    text = rest.to_owned();
                }
            }
            (events, lost)
        });
        let (events, lost) = tokio::task::spawn_blocking(|| read.join().unwrap()).await.unwrap();
        let report = audit.flush().await.unwrap();
        assert_eq!((report.written, report.lost), (events, lost));
    }

    #[tokio::test]
    async fn an_audit_that_is_dropped_leaves_no_thread_behind() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(folder.path());
        let _reader = reader(&fifo);
        let audit = Audit::open(&fifo).unwrap();
        let queue = Arc::downgrade(audit.0.as_ref().unwrap());
        for _ in 0..2000 {
            audit.record(&write(b"/io/a"));
        }
        drop(audit);
        let deadline = Instant::now() + Duration::from_secs(20);
        while queue.upgrade().is_some() {
            assert!(Instant::now() < deadline, "the writer goes on");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told() {
        let audit = Audit::open(Path::new("/dev/full")).unwrap();
        for _ in 0..3 {
            audit.record(&write(b"/io/a"));
        }
        let report = audit.flush().await.unwrap();
        assert_eq!((report.written, report.lost), (0, 3));
        assert!(report.failure.unwrap().contains("No space left"));
    }

    #[tokio::test]
    async fn what_was_cut_by_a_full_disk_gets_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(folder.path());
        let mut end = reader(&fifo);
        let queue = Arc::new(Queue {
            path: fifo.clone(),
            state: Mutex::default(),
            added: Condvar::new(),
            is_idle: Notify::new(),
        });
        let file = File::options()
            .append(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&fifo)
            .unwrap();
        let mut writer = Writer { queue: queue.clone(), file, is_torn: false };
        queue.lock().ending = Instant::now().checked_sub(2 * PATIENCE);
        // More than a pipe holds, and nobody waits for it.
        let long = [&vec![b'x'; 4 << 20][..], b"\n"].concat();
        writer.write(long).unwrap_err();
        let mut text = vec![0; 8 << 20];
        let mut length = end.read(&mut text).unwrap();
        writer.write(b"{}\n".to_vec()).unwrap();
        while let Ok(more) = end.read(&mut text[length..]) {
            length += more;
        }
        let text = str::from_utf8(&text[..length]).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].bytes().all(|byte| byte == b'x'));
        assert_eq!(lines[1], "{}");
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(refused(folder.path()).contains("Is a directory"));
        assert!(refused(&folder.path().join("a/b")).contains("No such file"));
        assert!(refused(&fifo(folder.path())).contains("a FIFO that nobody reads"));
        let socket = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(refused(&socket).contains("or a socket"));
    }

    #[test]
    fn a_file_in_a_directory_is_found_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("io/sub")).unwrap();
        fs::write(at("outside"), "").unwrap();
        std::os::unix::fs::symlink(at("io/sub"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("outside"), at("io/planted")).unwrap();
        let io = fs::metadata(at("io")).unwrap();
        let io = Identity { dev: io.dev(), ino: io.ino() };
        for (file, inside) in [
            ("outside", false),
            ("iox", false),
            ("io/a", true),
            ("io/sub/a", true),
            ("link/a", true),
            ("io/planted", true),
            ("io/../b", false),
        ] {
            let audit = Audit::open(&at(file)).unwrap();
            assert_eq!(audit.lies_in(io).is_some(), inside, "{file}");
        }
        assert_eq!(Audit::off().lies_in(io), None);
    }
}
