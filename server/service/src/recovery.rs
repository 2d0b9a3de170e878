//! What a service finds on its store when it starts: what waits is queued again, and what ran is killed,
//! with a document of what is stored of it, which says what may be missing.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sandbox_api::service::{FileKind, FileList, RequestSecrets};
use sandbox_api::{
    Captured, DEFAULT_COLLECTED_BYTES, DocumentBody, EngineKind, ErrorKind, ExecutionDocument,
    ExecutionEvent, Failure, FileOp, Limits, OutputCapture, OutputEncoding, Recorded, Status,
    TestCase, TouchedFile, TouchedSource,
};
use sandbox_controller::CancelHandle;
use sandbox_store::RecoveredExecution;
use tokio::sync::watch;

use crate::core::{Core, HeldSlot};
use crate::error::ServiceError;
use crate::feed::Feed;
use crate::live::{Live, PendingExecution, PendingWork, Phase, span};
use crate::trace::ExecutionTrace;
use crate::work::not_begun;

/// How many events are read at one time.
const PIECE: usize = 256;
/// How long the start of a service waits until what ran and does not run any more has ended. A store
/// that takes no result, on a full disk, takes one when something was deleted.
const ENDS_WAIT: Duration = Duration::from_secs(5);
/// The last entry of a log that is not whole.
const CUT_OFF: &str = "[log cut off: the server was stopped]";

/// What an execution has said before.
struct Said {
    logs: Vec<Cow<'static, str>>,
    tests: Vec<TestCase>,
    output: OutputCapture,
}

impl Said {
    fn nothing() -> Self {
        let output = OutputCapture::new(DEFAULT_COLLECTED_BYTES);
        Self { logs: Vec::new(), tests: Vec::new(), output }
    }

    fn push(&mut self, event: ExecutionEvent) {
        self.output.push(&event);
        match event {
            ExecutionEvent::Log(entry) => self.logs.push(Cow::Owned(entry.line().into_owned())),
            ExecutionEvent::Test(case) => self.tests.push(case),
            _ => {}
        }
    }
}

impl Core {
    /// Continues where the last service on this store, or this data directory of a cluster, ended.
    pub async fn recover(self: &Arc<Self>) -> Result<(), ServiceError> {
        // What waits may begin as soon as something else has ended, and needs its sandbox.
        self.kept.restore(&self.records, &self.config).await?;
        match &self.node {
            // What waits stays in the queue; what ran is ended by any node.
            Some(_) => self.end_orphans().await?,
            None => self.recover_all().await?,
        }
        self.remove_unknown_files().await
    }

    /// Queues what waits, and ends what ran.
    async fn recover_all(self: &Arc<Self>) -> Result<(), ServiceError> {
        let recovered = self.records.call(|store| store.recover()).await?;
        let (mut killed, mut not_run) = (Vec::new(), Vec::new());
        for running in recovered.running {
            tracing::warn!(id = running.summary.id, "it ran when the server was stopped");
            let (engine, limits) = (running.engine, running.limits);
            let live = self.live_of(running, None);
            self.state().live.insert(live.id.clone(), live.clone());
            killed.push((live, engine, limits));
        }
        for queued in recovered.queued {
            let (has_secrets, bytes) = (queued.has_secrets, queued.request_bytes);
            let live = self.live_of(queued, None);
            if has_secrets {
                self.state().live.insert(live.id.clone(), live.clone());
                not_run.push(live);
                continue;
            }
            let work = PendingWork::Queued { request: None, secrets: RequestSecrets::default() };
            let mut room = self.pending.room(&live.subject);
            room.restore(bytes);
            self.restore(PendingExecution { live, work, room });
        }
        let core = self.clone();
        let ending = crate::spawn(async move {
            for (live, engine, limits) in killed {
                let message = "the server was stopped while it ran";
                core.end_killed(&live, engine, limits, message).await;
            }
            for live in not_run {
                let message =
                    "the server was stopped before it ran, and its secrets are stored nowhere";
                let failure = not_begun(ErrorKind::Internal, message);
                core.end_not_run(&live, failure, HeldSlot::No).await;
            }
        });
        _ = tokio::time::timeout(ENDS_WAIT, ending).await;
        Ok(())
    }

    /// An execution as it is stored; in a cluster `session` holds it.
    pub fn live_of(&self, recovered: RecoveredExecution, session: Option<i64>) -> Arc<Live> {
        let RecoveredExecution { summary, subject, last_event, trace_parent, .. } = recovered;
        let waited = self.records.now().since(summary.created_at);
        let max_event_bytes = self.config.max_event_bytes.as_u64();
        let phase = match summary.started_at {
            Some(since) => Phase::Running(since),
            None => Phase::Queued,
        };
        Arc::new(Live {
            span: span(&summary.id, &subject),
            trace: ExecutionTrace::taken_over(
                &summary.id, &subject, summary.kind, summary.created_at, trace_parent,
            ),
            id: summary.id,
            subject,
            in_memory: None,
            kind: summary.kind,
            created_at: summary.created_at,
            accepted: Instant::now().checked_sub(waited).unwrap_or_else(Instant::now),
            metadata: summary.metadata,
            session,
            was_shared: self.node.is_some(),
            sandbox: summary.sandbox,
            generation: summary.generation,
            used: OnceLock::new(),
            request: OnceLock::new(),
            feed: match phase {
                Phase::Running(_) => Feed::after_crash(last_event, max_event_bytes),
                // Its only event is that it is queued, which was stored when it was accepted.
                _ => Feed::new(last_event, max_event_bytes),
            }
            .by_clock(self.records.store()),
            cancel: CancelHandle::new(),
            phase: watch::Sender::new(phase),
        })
    }

    /// Removes directories that no execution and no sandbox has. In a cluster only those that would have expired: its
    /// database may have been restored, or be another one.
    pub async fn remove_unknown_files(self: &Arc<Self>) -> Result<(), ServiceError> {
        let core = self.clone();
        let failed = |error| ServiceError::files(error);
        let ids = crate::blocking(move || core.files.ids().map_err(failed)).await?;
        let asked = ids.clone();
        let known = self.records.call(move |store| store.known(&asked)).await?;
        let here = self.kept.ids().into_iter().chain(self.prepared.ids());
        let known: HashSet<String> = known.into_iter().chain(here).collect();
        let core = self.clone();
        crate::blocking(move || {
            let is_due = |id: &&String| {
                !known.contains(*id)
                    && (core.node.is_none() || core.files.age(id) >= Some(core.config.retention))
            };
            for id in ids.iter().filter(is_due) {
                tracing::info!(id, "removing orphaned files");
                if let Err(error) = core.files.remove(id) {
                    tracing::warn!(id, %error, "files were not removed");
                }
            }
            Ok(())
        })
        .await
    }

    /// The document of an execution that ran when its service was killed, and whether its files are
    /// kept. Its last events are lost, and its files are stored only if it had ended. Its usage is
    /// unknown, because it was not measured to its end.
    pub(crate) async fn killed_document(
        self: &Arc<Self>,
        live: &Live,
        engine: Option<EngineKind>,
        limits: Option<Limits>,
        message: &str,
    ) -> (ExecutionDocument<'static>, bool) {
        let failure = Failure::new(ErrorKind::Killed, message, None);
        let mut document = ExecutionDocument::ended(live.kind, &live.id, Status::Killed, failure);
        let said = self.said(live).await.unwrap_or_else(|error| {
            tracing::error!(id = live.id, %error, "stored events cannot be read");
            Said::nothing()
        });
        match &mut document.body {
            DocumentBody::Script(body) => {
                body.logs = said.logs;
                body.logs.push(Cow::Borrowed(CUT_OFF));
                body.logs_truncated = true;
                body.tests = Cow::Owned(said.tests);
            }
            DocumentBody::Command(body) => {
                let text = |output: &Captured| {
                    let (text, encoding) = OutputEncoding::encode(&output.bytes, true);
                    (Cow::Owned(text.into_owned()), encoding)
                };
                (body.stdout, body.stdout_encoding) = text(&said.output.stdout);
                (body.stderr, body.stderr_encoding) = text(&said.output.stderr);
                (body.stdout_truncated, body.stderr_truncated) = (true, true);
            }
        }
        let execution = &mut document.common;
        (execution.engine, execution.limits) = (engine, limits);
        let (core, id) = (self.clone(), live.id.clone());
        let files = crate::blocking(move || core.files.kept(&id)).await;
        let files = files.unwrap_or_else(|error| {
            tracing::error!(id = live.id, %error, "files cannot be listed");
            None
        });
        let keeps_files = files.is_some();
        execution.files_touched_truncated = true;
        if let Some(FileList { files, truncated }) = files {
            let files = files.into_iter().filter(|file| file.kind != FileKind::Directory);
            let touched = files.map(|file| TouchedFile {
                name: file.path,
                op: FileOp::Write,
                bytes: file.bytes,
            });
            execution.files_touched = touched.collect();
            execution.files_touched_source = TouchedSource::Scan;
            execution.files_touched_truncated = truncated;
        }
        (document, keeps_files)
    }

    async fn said(&self, live: &Live) -> Result<Said, ServiceError> {
        let (mut said, mut last) = (Said::nothing(), 0);
        loop {
            let events = self.records.events(&live.subject, &live.id, last, PIECE).await?;
            let Some(event) = events.last() else { return Ok(said) };
            last = event.seq;
            for record in events {
                if let Recorded::Event(event) = record.event {
                    said.push(event);
                }
            }
        }
    }
}
