//! The library, as a program that embeds it has it: no command line between.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;

use sandbox_api::operation::OperationRequest;
use sandbox_api::{ExecutionEvent, LogEntry, OutputStream, SandboxSpec};
use sandbox_controller::{
    AgentSource, Config, ConfinementPolicy, Controller, DiskReserve, DockerEndpoint,
    EmbeddedConfig, EngineChoice, EngineConfig, Error, Execution, RootlessLimits, Sandbox,
};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::engine::{Engine, engine};
use crate::engines::{Feature, has};
use crate::fixture::Fixture;

/// A controller, and the runtime that it lives in.
pub struct Library {
    controller: Option<Controller>,
    runtime: Runtime,
}

impl Library {
    pub fn new(place: &Fixture) -> Self {
        Self::with_agent(place, AgentSource::Embedded)
    }

    /// With another program in the agent's place.
    pub fn with_agent(place: &Fixture, agent: AgentSource) -> Self {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(2);
        Self::in_runtime(place, agent, runtime)
    }

    /// With so much that sandboxes leave free.
    pub fn with_disk_reserve(place: &Fixture, disk_reserve: DiskReserve) -> Self {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(2);
        let change = |config| Config { disk_reserve, ..config };
        Self::configured(place, runtime, change)
    }

    /// In a single thread: while a future is polled, nothing else of the library goes on.
    fn in_one_thread(place: &Fixture) -> Self {
        Self::in_runtime(place, AgentSource::Embedded, Builder::new_current_thread())
    }

    fn in_runtime(place: &Fixture, agent: AgentSource, runtime: Builder) -> Self {
        let change = |config| Config { agent, ..config };
        Self::configured(place, runtime, change)
    }

    fn configured(
        place: &Fixture,
        mut runtime: Builder,
        change: impl FnOnce(Config) -> Config,
    ) -> Self {
        let runtime = runtime.enable_all().build().unwrap();
        let mut config = Config { engine: engine_config(place), ..Config::new(state_dir(place)) };
        if !has(Feature::ClosedDescriptors) {
            config.confinement = ConfinementPolicy::BestEffort;
        }
        let controller = runtime.block_on(Controller::connect(change(config))).unwrap();
        Self { controller: Some(controller), runtime }
    }

    pub fn launch(&self, spec: SandboxSpec) -> Sandbox {
        self.try_launch(spec).unwrap()
    }

    pub fn try_launch(&self, spec: SandboxSpec) -> Result<Sandbox, Error> {
        self.wait(self.controller.as_ref().unwrap().launch(spec))
    }

    /// The controller.
    pub fn controller(&self) -> &Controller {
        self.controller.as_ref().unwrap()
    }

    /// Waits for what is asked of a sandbox.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// What tests read of an execution: the others of its events are skipped.
pub trait NextEvent {
    async fn next_log(&mut self) -> Option<LogEntry>;
    async fn next_output(&mut self) -> Option<(OutputStream, Vec<u8>)>;
}

impl NextEvent for Execution {
    async fn next_log(&mut self) -> Option<LogEntry> {
        loop {
            if let ExecutionEvent::Log(entry) = self.next().await? {
                return Some(entry);
            }
        }
    }

    async fn next_output(&mut self) -> Option<(OutputStream, Vec<u8>)> {
        loop {
            if let ExecutionEvent::Output { stream, data } = self.next().await? {
                return Some((stream, data.into()));
            }
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // Also where a test has failed: what its sandboxes left is removed now.
        self.runtime.block_on(self.controller.take().unwrap().close());
    }
}

fn state_dir(place: &Fixture) -> PathBuf {
    place.state().join("sandboxctl")
}

/// What the environment of `sandboxctl` says in a place.
fn engine_config(place: &Fixture) -> EngineConfig {
    let variable = |name| std::env::var(name).ok();
    EngineConfig {
        kind: match engine() {
            Engine::Docker => EngineChoice::Docker,
            Engine::Embedded => EngineChoice::Embedded,
        },
        docker: DockerEndpoint {
            env_host: variable("DOCKER_HOST"),
            sockets: vec!["/var/run/docker.sock".into()],
            ..DockerEndpoint::default()
        },
        runtime: variable("SANDBOXCTL_ENGINE_RUNTIME"),
        embedded: EmbeddedConfig {
            data_dir: place.data(),
            rootless_limits: RootlessLimits::BestEffort,
        },
        ..EngineConfig::default()
    }
}

/// A sandbox on the io dir of a place of its own.
pub struct Guest {
    // Dropped in this order.
    pub sandbox: Sandbox,
    pub library: Library,
    pub place: Fixture,
}

impl Guest {
    pub fn new() -> Self {
        Self::with(|spec| spec)
    }

    pub fn with(spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        Self::in_place(Fixture::new(), spec)
    }

    /// Of a program that has a single thread.
    pub fn in_one_thread(spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        let place = Fixture::new();
        let library = Library::in_one_thread(&place);
        Self::in_library(place, library, spec)
    }

    /// In a place that has something already.
    pub fn in_place(place: Fixture, spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        let library = Library::new(&place);
        Self::in_library(place, library, spec)
    }

    pub fn in_library(
        place: Fixture,
        library: Library,
        spec: impl FnOnce(SandboxSpec) -> SandboxSpec,
    ) -> Self {
        let io_dir = place.path("sandbox-files");
        let sandbox = library.launch(spec(SandboxSpec::new().io_dir(io_dir)));
        Self { sandbox, library, place }
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.library.wait(future)
    }

    /// Performs an operation, as data, and gives its envelope.
    pub fn perform(&self, operation: &Value) -> Value {
        let envelope = match OperationRequest::from_json(&operation.to_string()) {
            Ok(operation) => self.wait(self.sandbox.perform(operation)),
            Err(error) => panic!("{operation}: {error}"),
        };
        let envelope = serde_json::to_value(envelope).unwrap();
        // What holds for each.
        assert!(envelope["metadata"]["duration_ms"].is_u64(), "{envelope:#}");
        let (failed, data) = (envelope["success"] == false, &envelope["data"]);
        assert_eq!(failed, data.is_null(), "{envelope:#}");
        assert_eq!(failed, envelope["error"].is_object(), "{envelope:#}");
        envelope
    }

    /// The data of an operation that succeeds.
    #[track_caller]
    pub fn data(&self, operation: Value) -> Value {
        let mut envelope = self.perform(&operation);
        assert_eq!(envelope["success"], true, "{operation}: {envelope:#}");
        envelope["data"].take()
    }

    /// The kind of an operation's error.
    #[track_caller]
    pub fn kind(&self, operation: Value) -> String {
        let envelope = self.perform(&operation);
        assert_eq!(envelope["success"], false, "{operation}: {envelope:#}");
        envelope["error"]["kind"].as_str().unwrap().to_owned()
    }
}

/// The kind of an error.
#[track_caller]
pub fn kind_of<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    result.unwrap_err().kind().as_str()
}

/// Polls a future so often, and drops it. It must not be done by then.
pub async fn give_up_after<T>(polls: usize, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => panic!("it was done before its poll {polls}"),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }
    })
    .await;
}

/// Polls futures together, each so often, and drops them all at once, done or not.
pub async fn give_up_all_after<T>(
    polls: usize,
    futures: impl IntoIterator<Item = impl Future<Output = T>>,
) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut left = polls;
    poll_fn(|context| {
        for slot in &mut futures {
            if slot.as_mut().is_some_and(|future| future.as_mut().poll(context).is_ready()) {
                *slot = None;
            }
        }
        left -= 1;
        if left == 0 || futures.iter().all(Option::is_none) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
