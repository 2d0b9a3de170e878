//! A runner without containers: the first word of a script says what it does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::operation::{Operation, OperationRequest, Read, Write};
use sandbox_api::service::ExecutionKind;
use sandbox_api::{
    Captured, Command, CommandLine, Confinement, EngineKind, Envelope, ErrorKind, ExecutionEvent,
    ExecutionResult, Failure, FilesTouched, Limits, LogEntry, Outcome, OutputStream,
    ResultBody, SandboxSpec, StartKind, Timing, UnixSockets, Usage, Workload,
};
use sandbox_controller::CancelHandle;
use sandbox_controller::files::{FileReader, FileWriter};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};

use crate::runner::{Failed, Machine, Runner, Sink};

/// What the tests see and control.
pub struct FakeRunner {
    pub launches: AtomicUsize,
    /// What is to be started ahead.
    pub prewarmed: Mutex<Vec<SandboxSpec>>,
    pub runs: AtomicUsize,
    pub closed: Arc<AtomicUsize>,
    /// Sandboxes that nobody has any more.
    pub dropped: AtomicUsize,
    /// How many launches fail because the engine does not answer.
    pub failing: AtomicUsize,
    /// Launches that have begun.
    pub begun: AtomicUsize,
    /// Whether each launch needs a permit.
    pub holds_launches: AtomicBool,
    /// Those permits.
    pub may_launch: Semaphore,
    /// A permit lets one `wait` end.
    pub go_on: Arc<Semaphore>,
    /// Files cannot be kept while it is set.
    pub loses_files: AtomicBool,
    /// The specs that sandboxes were started from.
    pub launched: Mutex<Vec<SandboxSpec>>,
    /// All sandboxes end when it is set.
    pub all_ended: Arc<AtomicBool>,
}

impl Default for FakeRunner {
    fn default() -> Self {
        Self {
            launches: AtomicUsize::new(0),
            prewarmed: Mutex::default(),
            runs: AtomicUsize::new(0),
            closed: Arc::default(),
            dropped: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            holds_launches: AtomicBool::new(false),
            may_launch: Semaphore::new(0),
            go_on: Arc::new(Semaphore::new(0)),
            loses_files: AtomicBool::new(false),
            launched: Mutex::default(),
            all_ended: Arc::default(),
        }
    }
}

struct FakeMachine {
    runner: Arc<FakeRunner>,
    is_closed: watch::Sender<bool>,
}

impl FakeMachine {
    /// What is in it fails when it is closed.
    async fn closed(&self) -> Failed {
        _ = self.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
        Failed::new(ErrorKind::AgentLost, "the agent is gone")
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        self.runner.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// The result of what ended like this.
fn result(kind: ExecutionKind, outcome: Outcome) -> ExecutionResult {
    ExecutionResult {
        id: "in the sandbox".to_owned(),
        outcome,
        files_touched: FilesTouched::default(),
        engine: EngineKind::Embedded,
        engine_notice: None,
        io_dir: Some("/srv/io".into()),
        network: None,
        changes: None,
        limits: Limits::default(),
        usage: Usage {
            wall_ms: 1,
            cpu_ms: Some(7),
            peak_memory_bytes: None,
            written_bytes: Some(3),
        },
        notes: Vec::new(),
        timing: Some(Timing::new(Some((StartKind::Cold, Duration::from_millis(8))), 1)),
        confinement: Confinement {
            no_new_privileges: true,
            undumpable: true,
            landlock_abi: None,
            seccomp: true,
            unix_sockets: UnixSockets::None,
            missing: Vec::new(),
        },
        body: match kind {
            ExecutionKind::Script => ResultBody::Script {
                logs: Vec::new(),
                logs_truncated: false,
                tests: Vec::new(),
                answered: true,
            },
            ExecutionKind::Command => ResultBody::Command {
                exit_code: Some(0),
                signal: None,
                stdout: Captured::default(),
                stderr: Captured::default(),
            },
        },
    }
}

/// A runner is shared with its sandboxes.
pub struct Shared(pub Arc<FakeRunner>);

impl Runner for Shared {
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Machine>, Failed>> {
        async {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            if self.0.holds_launches.load(Ordering::SeqCst) {
                self.0.may_launch.acquire().await.unwrap().forget();
            }
            let failing = &self.0.failing;
            let fails = |left: usize| left.checked_sub(1);
            if failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
                let failed = Failed::new(ErrorKind::Engine, "cannot connect to the engine");
                return Err(Failed { is_transient: true, ..failed });
            }
            self.0.launches.fetch_add(1, Ordering::SeqCst);
            self.0.launched.lock().unwrap().push(spec);
            self.0.all_ended.store(false, Ordering::SeqCst);
            let machine =
                FakeMachine { runner: self.0.clone(), is_closed: watch::Sender::new(false) };
            Ok(Arc::new(machine) as Arc<dyn Machine>)
        }
        .boxed()
    }

    fn prewarm(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), Failed>> {
        self.0.prewarmed.lock().unwrap().push(spec);
        async { Ok(()) }.boxed()
    }

    fn engine(&self) -> EngineKind {
        EngineKind::Embedded
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            match self.0.failing.load(Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("cannot connect to the engine".to_owned()),
            }
        }
        .boxed()
    }

    fn pool(&self) -> Option<Result<(), String>> {
        let is_empty = self.0.launches.load(Ordering::SeqCst) == 0;
        Some(if is_empty { Err("no sandbox is ready yet".to_owned()) } else { Ok(()) })
    }
}

impl Machine for FakeMachine {
    fn run<'a>(
        &'a self,
        workload: Workload,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> BoxFuture<'a, Result<ExecutionResult, Failed>> {
        async move {
            self.runner.runs.fetch_add(1, Ordering::SeqCst);
            let kind = workload.kind();
            let source = match workload {
                Workload::Script(script) => script.source,
                Workload::Command(Command { what: CommandLine::Shell(line), .. }) => line,
                Workload::Command(other) => panic!("it is no line: {other:?}"),
            };
            let source = String::from_utf8(source).unwrap();
            let mut outcome = Outcome::Ok { result: RawValue::NULL.to_owned() };
            let mut words = source.split_whitespace();
            let verb = words.next().unwrap();
            sink(ExecutionEvent::Started);
            if matches!(verb, "log" | "log-and-wait") {
                for word in words {
                    sink(match kind {
                        ExecutionKind::Script => ExecutionEvent::Log(LogEntry::from_line(word)),
                        ExecutionKind::Command => {
                            let data = word.to_owned().into();
                            ExecutionEvent::Output { stream: OutputStream::Stdout, data }
                        }
                    });
                }
            }
            match verb {
                "return" | "log" => {}
                "wait" | "log-and-wait" => {
                    tokio::select! {
                        permit = self.runner.go_on.acquire() => permit.unwrap().forget(),
                        () = cancel.cancelled() => {
                            outcome = Outcome::Cancelled { cause: cancel.cause().unwrap() };
                        }
                        failed = self.closed() => return Err(failed),
                    }
                }
                "until-closed" => return Err(self.closed().await),
                "panic" => panic!("as it was told"),
                "fail" => return Err(Failed::new(ErrorKind::AgentLost, "the agent is gone")),
                other => panic!("nobody knows what '{other}' is"),
            }
            Ok(result(kind, outcome))
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), Failed> {
        if self.runner.loses_files.load(Ordering::SeqCst) {
            return Err(Failed::new(ErrorKind::Internal, "another file system"));
        }
        std::fs::create_dir(to).unwrap();
        std::fs::write(to.join("out.txt"), "made").unwrap();
        Ok(())
    }

    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope> {
        async move {
            if let Operation::Exists(_) = request.operation {
                let failed = self.closed().await;
                return Envelope::failed(Duration::ZERO, *failed.failure);
            }
            let failure = Failure::new(ErrorKind::NotFound, request.operation.name(), None);
            Envelope::failed(Duration::ZERO, failure)
        }
        .boxed()
    }

    fn reader(&self, _: Read) -> BoxFuture<'_, Result<FileReader, Failed>> {
        async { Err(Failed::new(ErrorKind::NotFound, "no file")) }.boxed()
    }

    fn writer(&self, _: Write) -> BoxFuture<'_, Result<FileWriter, Failed>> {
        async { Err(Failed::new(ErrorKind::NotFound, "no file")) }.boxed()
    }

    fn has_ended(&self) -> bool {
        self.runner.all_ended.load(Ordering::SeqCst)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            self.runner.closed.fetch_add(1, Ordering::SeqCst);
            self.is_closed.send_replace(true);
            Ok(())
        }
        .boxed()
    }
}
