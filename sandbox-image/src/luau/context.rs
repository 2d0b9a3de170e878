//! The environment of a script, and the state shared by the functions in its VM.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::MAX_MESSAGE_BYTES;
use sandbox_protocol::message::{IoErrors, Limits, LogLevel, Secret};

use crate::calls::HostCalls;
use crate::exec::Programs;
use crate::files::handle::Handle;
use crate::files::{FileError, Files};
use crate::log::LogSink;
use crate::stop::{StopFlag, StopReason};

/// The environment of a script.
pub struct RunContext {
    /// The files; `None` if io is off.
    pub files: Option<Arc<Files>>,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// Receives `print` and `warn`.
    pub log: Arc<LogSink>,
    /// Stops the run.
    pub stop: Arc<StopFlag>,
    /// The limits of the script.
    pub limits: Limits,
    /// The commands of the image, in a sandbox that supports them.
    pub programs: Option<Arc<Programs>>,
    /// The seed of `math.random`.
    pub seed: Option<u32>,
    /// What `os.time` gives, in seconds since 1970.
    pub now: Option<u64>,
    /// What it reads as `secrets`.
    pub secrets: Vec<Secret>,
    /// The host, which it calls.
    pub calls: Arc<HostCalls>,
    /// Whether it was given tools of the host.
    pub has_tools: bool,
}

/// How many errors of broken rules and limits are remembered per run. A script that catches more
/// than these, at different places, and then raises one of the first again, is not supported.
const REMEMBERED_RULES: usize = 64;

/// The state shared by the functions in a VM.
pub(super) struct Host {
    context: RunContext,
    pub open_handles: Cell<u64>,
    /// The first error that closing a forgotten handle gave, unless the script knew it.
    pub lost_write: RefCell<Option<FileError>>,
    /// Whether a test case runs, and the reason that it gave for being skipped.
    pub test_case: RefCell<TestProgress>,
    /// The metatable that marks a table as a JSON array, as an identity.
    pub array_mark: Cell<usize>,
    /// The exact strings that were raised for broken rules and limits, by which an uncaught error
    /// is recognized.
    raised_rules: RefCell<Vec<(ErrorKind, Box<[u8]>)>>,
}

/// The test case that runs.
#[derive(Default)]
pub(super) enum TestProgress {
    /// None runs.
    #[default]
    Idle,
    /// One runs.
    Running,
    /// It has asked to be skipped, for this reason.
    Skipping(Vec<u8>),
}

impl Deref for Host {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.context
    }
}

impl Host {
    pub fn new(context: RunContext) -> Self {
        Self {
            context,
            open_handles: Cell::new(0),
            lost_write: RefCell::default(),
            test_case: RefCell::default(),
            array_mark: Cell::new(0),
            raised_rules: RefCell::default(),
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.reason() != StopReason::None
    }

    /// Remembers the string of such an error. Limits are dropped last: they decide the status.
    pub fn remember_rule(&self, kind: ErrorKind, raised: &[u8]) {
        let mut all = self.raised_rules.borrow_mut();
        if all.iter().any(|(_, known)| **known == *raised) {
            return;
        }
        if all.len() == REMEMBERED_RULES {
            let oldest = all.iter().position(|(kind, _)| !kind.is_limit());
            all.remove(oldest.unwrap_or(0));
        }
        all.push((kind, raised.into()));
    }

    /// The kind of an error that was raised for a remembered rule or limit. Strings are values, so
    /// equal ones are the same.
    pub fn remembered_rule(&self, error: &[u8]) -> Option<ErrorKind> {
        let all = self.raised_rules.borrow();
        let kind_of = |text: &[u8]| all.iter().find(|(_, raised)| **raised == *text);
        texts_of(error).find_map(kind_of).map(|(kind, _)| *kind)
    }

    /// Closes a handle that no script can reach any more. Data that cannot be written is lost: the
    /// log reports it, and it is remembered for the end of the script.
    pub fn forget(&self, handle: &Mutex<Handle>) {
        let mut handle = handle.lock().unwrap();
        if handle.is_open() {
            self.open_handles.set(self.open_handles.get() - 1);
            let is_known = handle.has_failed();
            if let Err(error) = handle.close() {
                self.log.log(LogLevel::Warn, error.to_string().as_bytes());
                if !is_known {
                    self.lost_write.borrow_mut().get_or_insert(error);
                }
            }
        }
    }
}

/// What an error may have been raised as: its text, and what follows each position at its front.
/// `error` and `coroutine.wrap` add one when they pass an error on.
pub(super) fn texts_of(error: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(error), |text| split_position(text).map(|(_, rest)| rest))
}

/// Removes `script:3: ` from the front of a message, or `script:3` from that of a traceback.
pub(super) fn split_position(message: &[u8]) -> Option<(u32, &[u8])> {
    let rest = message.strip_prefix(b"script:")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let line = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let rest = &rest[digits..];
    Some((line, rest.strip_prefix(b": ").unwrap_or(rest)))
}

/// The prefix of an error's text that can be shown, taken before it is copied: the script chose its
/// length, up to its memory limit. A character split here is beyond what is shown.
pub(super) fn shown(text: &[u8]) -> &[u8] {
    &text[..text.len().min(MAX_MESSAGE_BYTES + 4)]
}
