//! Scripts and their results.

mod files;
mod fs;
mod language;
mod limits;
mod secrets;
mod test;
mod tools;
mod types;
mod values;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_protocol::message::{
    Access, CallEnd, CallFile, CallResult, HostCall, IoErrors, Limits, LogLevel, RunEnd,
    ScriptError, Secret,
};
use sandbox_protocol::{ErrorKind, FromAgent};
use serde_json::{Map, Value, json};

use crate::calls::HostCalls;
use crate::files::tests::setup::{LIMITS, Setup};
use crate::log::LogSink;
use crate::luau::RunContext;
use crate::outbox::{Outbox, Recorder};
use crate::stop::{StopFlag, StopReason};

/// Answers calls; `None` leaves one without an answer.
type Host = fn(&HostCall) -> Option<(CallEnd, Vec<CallFile>)>;

/// A sandbox for scripts.
struct Sandbox {
    directory: Option<tempfile::TempDir>,
    /// What is at `/in/d`.
    input: Option<tempfile::TempDir>,
    /// Whether the process's directory in procfs is at `/proc`.
    has_proc: bool,
    io_errors: IoErrors,
    limits: Limits,
    args: Map<String, Value>,
    secrets: Vec<Secret>,
    protected: Vec<&'static str>,
    stop: Arc<StopFlag>,
    recorder: Recorder,
    seed: Option<u32>,
    now: Option<u64>,
    /// Whether it was given tools.
    has_tools: bool,
    /// What the host answers.
    host: Host,
}

impl Sandbox {
    fn new() -> Self {
        Self {
            directory: Some(tempfile::tempdir().unwrap()),
            input: None,
            has_proc: false,
            io_errors: IoErrors::Raise,
            limits: LIMITS,
            args: Map::new(),
            secrets: Vec::new(),
            protected: Vec::new(),
            stop: Arc::default(),
            recorder: Recorder::default(),
            seed: None,
            now: None,
            has_tools: false,
            host: |_| None,
        }
    }

    fn without_files() -> Self {
        Self { directory: None, ..Self::new() }
    }

    fn path(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    fn run(&self, source: &str) -> Result<Value, ScriptError> {
        let limits = self.limits.clone();
        let files = self.directory.as_ref().map(|directory| {
            let protected = self.protected.clone();
            let proc = format!("/proc/{}", std::process::id());
            let mut setup = Setup::io(directory.path());
            if self.has_proc {
                setup.mounts.push(("/proc", Access::Write, Path::new(&proc)));
            }
            setup.mounts.extend(self.input.iter().map(|it| ("/in/d", Access::Read, it.path())));
            Setup { limits: limits.clone(), protected, ..setup }.open().0
        });
        let outbox = Arc::new(Outbox::new(self.recorder.clone()));
        let context = RunContext {
            files,
            io_errors: self.io_errors,
            log: Arc::new(LogSink::new(outbox.clone(), 1, &limits)),
            stop: Arc::clone(&self.stop),
            limits,
            programs: None,
            seed: self.seed,
            now: self.now,
            secrets: self.secrets.clone(),
            calls: Arc::new(HostCalls::new(outbox, 1)),
            has_tools: self.has_tools,
        };
        let (calls, is_over) = (context.calls.clone(), AtomicBool::new(false));
        let before = self.calls().len();
        let end = std::thread::scope(|scope| {
            scope.spawn(|| self.answer_calls(&calls, before, &is_over));
            let end = super::run(source, &self.args, context);
            is_over.store(true, Ordering::Relaxed);
            end
        });
        match end {
            RunEnd::Returned(json) => Ok(serde_json::from_str(json.get()).unwrap()),
            RunEnd::Failed(error) => Err(error),
        }
    }

    /// Answers as the controller does.
    fn answer_calls(&self, calls: &HostCalls, mut seen: usize, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            for asked in self.calls().split_off(seen) {
                seen += 1;
                if let Some((end, files)) = (self.host)(&asked) {
                    let HostCall { request, call, .. } = asked;
                    assert!(calls.take(CallResult { request, call, end, files }));
                }
            }
            std::thread::yield_now();
        }
    }

    /// What the script has called.
    fn calls(&self) -> Vec<HostCall> {
        let lines = self.recorder.lines();
        let calls = lines.iter().filter_map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Call(call) => Some(call),
            _ => None,
        });
        calls.collect()
    }

    /// Runs a script that must return.
    #[track_caller]
    fn value(&self, source: &str) -> Value {
        self.run(source).unwrap_or_else(|error| panic!("{error:?}\n{source}"))
    }

    /// Runs a script that must not return.
    #[track_caller]
    fn error(&self, source: &str) -> ScriptError {
        self.run(source).expect_err(source)
    }

    /// The log entries.
    fn logs(&self) -> Vec<(LogLevel, String)> {
        let lines = self.recorder.lines();
        let logs = lines.iter().filter_map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Log(log) => Some((log.level, log.text)),
            _ => None,
        });
        logs.collect()
    }

    /// The test cases.
    fn cases(&self) -> Vec<sandbox_protocol::message::TestCase> {
        let lines = self.recorder.lines();
        let cases = lines.iter().filter_map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Case(end) => Some(end.case),
            _ => None,
        });
        cases.collect()
    }

    /// Sets the stop flag from outside as soon as the script prints, and runs it.
    fn stopped(&self, source: &str, reason: StopReason) -> ScriptError {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while self.logs().is_empty() {
                    std::thread::yield_now();
                }
                self.stop.stop(reason);
            });
            self.error(source)
        })
    }
}

#[track_caller]
fn value(source: &str) -> Value {
    Sandbox::new().value(source)
}

#[track_caller]
fn error(source: &str) -> ScriptError {
    Sandbox::new().error(source)
}
