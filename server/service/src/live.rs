//! Executions that have not ended, as they are in memory.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sandbox_api::service::{
    ExecutionKind, ExecutionRequest, ExecutionState, ExecutionSummary, RequestSecrets, Subject,
    Time,
};
use sandbox_api::{CancelCause, ErrorKind, Failure, Workload};
use sandbox_controller::CancelHandle;
use sandbox_store::{StoredExecution, UsedGeneration};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Span;

use crate::error::ServiceError;
use crate::feed::Feed;
use crate::launcher::Guest;
use crate::plan::PlannedIo;
use crate::room::StorageReservation;
use crate::trace::ExecutionTrace;

/// The most bytes of a request that the document of its execution has.
const MAX_KEPT_REQUEST: usize = 16 << 10;

/// An execution that waits or runs, or has ended and is not stored.
#[derive(Debug)]
pub(crate) struct Live {
    pub id: String,
    pub subject: Subject,
    /// The digest of its request, if it is in memory alone.
    pub in_memory: Option<String>,
    pub kind: ExecutionKind,
    pub created_at: Time,
    /// When it was accepted, for how long it waits.
    pub accepted: Instant,
    pub metadata: Map<String, Value>,
    /// The session that holds it, in a cluster: everything that is stored of it names that.
    pub session: Option<i64>,
    /// It waited in the queue of a cluster: a caller of another node may wait for its end.
    pub was_shared: bool,
    /// The kept sandbox that it runs in.
    pub sandbox: Option<String>,
    /// The generation of it that was asked for.
    pub generation: Option<u64>,
    /// The one that it runs in, once it does.
    pub used: OnceLock<UsedGeneration>,
    /// What its document says that was asked for, once that is taken up.
    pub request: OnceLock<Map<String, Value>>,
    pub feed: Feed,
    /// What all lines about it are in: its request, if this service accepted it.
    pub span: Span,
    /// Its spans, for OpenTelemetry.
    pub trace: ExecutionTrace,
    pub cancel: CancelHandle,
    pub phase: watch::Sender<Phase>,
}

/// How far it is.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// It waits.
    Queued,
    /// It runs, since then.
    Running(Time),
    /// It has ended, and its end is as durable as it becomes.
    Ended(Arc<StoredExecution>),
    /// What becomes of it is not this service's any more: the store has it.
    Lost,
}

impl Phase {
    const fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Lost)
    }
}

/// The span of an execution, in that of the request which is handled now.
pub(crate) fn span(id: &str, subject: &Subject) -> Span {
    tracing::info_span!("execution", execution = id, subject = subject.as_str())
}

impl Live {
    /// Its state, without a result.
    pub fn summary(&self) -> ExecutionSummary {
        let (status, started_at, ended_at) = match &*self.phase.borrow() {
            Phase::Queued | Phase::Lost => (ExecutionState::Queued, None, None),
            Phase::Running(since) => (ExecutionState::Running, Some(*since), None),
            Phase::Ended(ended) => return ended.summary.clone(),
        };
        ExecutionSummary {
            id: self.id.clone(),
            kind: self.kind,
            status,
            created_at: self.created_at,
            started_at,
            ended_at,
            metadata: self.metadata.clone(),
            sandbox: self.sandbox.clone(),
            generation: self.used.get().map(|used| used.generation).or(self.generation),
            restarted: self.used.get().map(|used| used.is_restart),
            image: None,
            subject: None,
        }
    }

    /// Keeps its request for its document, if that is stored, and the request is small and had no secrets.
    pub fn keep_request(&self, request: &ExecutionRequest, secrets: &RequestSecrets) {
        let stdin = request.command.iter().filter_map(|command| command.stdin.as_ref());
        let contents = request.inputs.values().chain(&request.script).chain(stdin);
        // What is certainly too large is not written out for it.
        let is_large = contents.map(|it| it.0.len()).sum::<usize>() > MAX_KEPT_REQUEST;
        if self.in_memory.is_some() || !secrets.is_empty() || is_large {
            return;
        }
        let json = serde_json::to_string(request).ok().filter(|it| it.len() <= MAX_KEPT_REQUEST);
        if let Some(request) = json.and_then(|json| serde_json::from_str(&json).ok()) {
            _ = self.request.set(request);
        }
    }

    /// Its state; with its result document, if it has ended.
    pub fn view(&self) -> StoredExecution {
        if let Phase::Ended(ended) = &*self.phase.borrow() {
            return (**ended).clone();
        }
        StoredExecution { summary: self.summary(), document: None, has_files: false }
    }

    /// Whether it has ended, and its end is as durable as it becomes.
    pub fn has_ended(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Ended(_))
    }

    /// Whether it is not this service's any more.
    pub fn is_lost(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Lost)
    }

    /// It is not this service's any more, unless it has ended. Who waits for it goes on in the store.
    pub fn lose(&self) {
        self.phase.send_if_modified(|phase| {
            let is_lost = !matches!(phase, Phase::Ended(_));
            if is_lost {
                *phase = Phase::Lost;
            }
            is_lost
        });
        self.feed.lose();
    }

    /// Waits until it has ended or is lost.
    pub async fn ended(&self) {
        _ = self.phase.subscribe().wait_for(Phase::is_over).await;
    }
}

/// Cancels executions and waits for their ends, each time this long: those that have not ended then are
/// killed.
pub(crate) async fn cancel_all(all: &[Arc<Live>], cause: CancelCause, patience: Duration) {
    for _ in 0..2 {
        all.iter().for_each(|live| live.cancel.cancel(cause));
        if tokio::time::timeout(patience, all_ended(all)).await.is_ok() {
            return;
        }
    }
}

/// Waits for the ends of executions.
pub(crate) async fn all_ended(all: &[Arc<Live>]) {
    for live in all {
        live.ended().await;
    }
}

/// What an execution that waits needs to run.
pub(crate) struct PendingExecution {
    pub live: Arc<Live>,
    pub work: PendingWork,
    /// For its request, until its end.
    pub room: StorageReservation,
}

/// How far what runs is.
pub(crate) enum PendingWork {
    /// It waits: that it runs is to be stored before it does.
    Queued {
        /// The request, without its secrets; `None` if it is large, and so only in the store.
        request: Option<Box<ExecutionRequest>>,
        /// They are in no store.
        secrets: RequestSecrets,
    },
    /// It was accepted as running.
    Started(Box<StartedLaunch>),
}

/// A sandbox that is being started for an execution, and what is to run in it.
pub(crate) struct StartedLaunch {
    pub workload: Workload,
    pub io: PlannedIo,
    pub launching: Launching,
}

/// The start of a sandbox. Dropping it ends the sandbox.
pub(crate) struct Launching(pub JoinHandle<Result<Arc<dyn Guest>, StartFailure>>);

impl Drop for Launching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why an execution did not run.
pub(crate) enum StartFailure {
    Cancelled,
    Failed(Failure),
}

impl From<ServiceError> for StartFailure {
    fn from(error: ServiceError) -> Self {
        match error.kind() {
            ErrorKind::Cancelled => Self::Cancelled,
            _ => Self::Failed(error.failure()),
        }
    }
}
