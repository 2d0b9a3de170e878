//! What a service does beside requests, each when something is due: nothing ticks.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use sandbox_api::service::{RequestSecrets, ShutdownReport, Time};
use sandbox_api::{ErrorKind, Failure};
use sandbox_store::{RecoveredExecution, StoredEvent};
use tokio::sync::watch;

use crate::error::ServiceError;
use crate::feed::Feed;
use crate::live::{Live, Phase, Waiting, Waits, span};
use crate::records::stored_events;
use crate::runner::Cancel;
use crate::service::{Core, Service};

/// How long events are collected before they are stored: readers have them already.
const EVENTS_PAUSE: Duration = Duration::from_millis(100);
/// The bytes of events that are stored together; those of one execution are never divided.
const EVENTS_BATCH: usize = 1 << 20;
/// How long cancelled executions have to end at a shutdown.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sleep, in case the clock is set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Starts the tasks. They end with the service.
pub(crate) fn start(core: &Arc<Core>) {
    tokio::spawn(store_events(Arc::downgrade(core)));
    tokio::spawn(remove_expired(Arc::downgrade(core)));
    tokio::spawn(crate::kept::end_unused(Arc::downgrade(core)));
}

/// Stores events in batches.
async fn store_events(core: Weak<Core>) {
    loop {
        let Some(due) = core.upgrade().map(|core| core.events_due.clone()) else { return };
        due.notified().await;
        tokio::time::sleep(EVENTS_PAUSE).await;
        let Some(strong) = core.upgrade() else { return };
        let mut batch = EventBatch::default();
        for live in strong.all_live() {
            batch.add(live);
            if batch.bytes > EVENTS_BATCH {
                batch.store(&strong).await;
            }
        }
        batch.store(&strong).await;
    }
}

/// Events that are stored with one flush.
#[derive(Default)]
struct EventBatch {
    events: Vec<(String, Vec<StoredEvent>)>,
    /// Of each execution, the last of its events.
    last: Vec<(Arc<Live>, u64)>,
    bytes: usize,
}

impl EventBatch {
    fn add(&mut self, live: Arc<Live>) {
        let events = live.feed.unsaved();
        let Some(last) = events.last().map(|event| event.seq) else { return };
        let events = stored_events(&events);
        self.bytes += events.iter().map(|event| event.json.len()).sum::<usize>();
        self.events.push((live.id.clone(), events));
        self.last.push((live, last));
    }

    async fn store(&mut self, core: &Core) {
        let Self { events, last, .. } = std::mem::take(self);
        if events.is_empty() {
            return;
        }
        match core.records.append_events(events).await {
            Ok(()) => last.iter().for_each(|(live, last)| live.feed.mark_saved(*last)),
            // They stay in memory, within its bound, and go with the result at the latest.
            Err(error) => tracing::warn!(%error, "events were not stored"),
        }
    }
}

/// Removes results and files that are older than their retention, or more than is kept.
async fn remove_expired(core: Weak<Core>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        let next = match strong.remove_due().await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, "results were not removed");
                Some(Duration::from_secs(60))
            }
        };
        let sleep = next.unwrap_or(LONGEST_SLEEP).clamp(Duration::from_secs(1), LONGEST_SLEEP);
        let ended = strong.ended.clone();
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = ended.notified() => {
                // Several that end together are looked at once.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

impl Core {
    /// Removes what is due. When the next is.
    async fn remove_due(self: &Arc<Self>) -> Result<Option<Duration>, ServiceError> {
        loop {
            let before = Time::now().before(self.config.retention);
            let max_bytes = self.config.max_stored.as_u64();
            let expired = self.records.expire(before, max_bytes).await?;
            if expired.is_empty() {
                break;
            }
            let mut removed = Vec::new();
            for id in expired {
                let (core, of) = (self.clone(), id.clone());
                let files = crate::blocking(move || {
                    core.files.remove(&of).map_err(|error| ServiceError::Files(Arc::new(error)))
                });
                match files.await {
                    Ok(()) => removed.push(id),
                    Err(error) => tracing::warn!(id, %error, "files were not removed"),
                }
            }
            if removed.is_empty() {
                break;
            }
            self.records.forget(removed).await?;
        }
        let oldest = self.records.oldest_end().await?;
        Ok(oldest.map(|ended| ended.after(self.config.retention).since(Time::now())))
    }

    /// Continues where the last service on this store ended.
    pub async fn recover(self: &Arc<Self>) -> Result<(), ServiceError> {
        let recovered = self.records.recover().await?;
        // What waits may begin as soon as something else has ended, and needs its sandbox.
        self.kept.restore(&self.records, &self.config).await?;
        for running in recovered.running {
            tracing::warn!(id = running.summary.id, "it ran when the server was stopped");
            let (engine, limits) = (running.engine, running.limits);
            let live = self.live_of(running);
            let message = "the server was stopped while it ran";
            let failure = Failure::new(ErrorKind::Killed, message, None);
            self.end_unseen(&live, engine, limits, failure).await;
        }
        for queued in recovered.queued {
            let has_secrets = queued.has_secrets;
            let live = self.live_of(queued);
            if has_secrets {
                let message =
                    "the server was stopped before it ran, and its secrets are stored nowhere";
                let hint = Some("submit it again".to_owned());
                let failure = Failure::new(ErrorKind::Internal, message, hint);
                self.end_not_run(&live, failure).await;
                continue;
            }
            let work = Waits::Queued { request: None, secrets: RequestSecrets::default() };
            self.restore(Waiting { live, work });
        }
        self.remove_unknown_files().await
    }

    fn live_of(&self, recovered: RecoveredExecution) -> Arc<Live> {
        let RecoveredExecution { summary, subject, last_event, .. } = recovered;
        let waited = Time::now().since(summary.created_at);
        let phase = match summary.started_at {
            Some(since) => Phase::Running(since),
            None => Phase::Queued,
        };
        Arc::new(Live {
            span: span(&summary.id, &subject),
            id: summary.id,
            subject,
            kind: summary.kind,
            created_at: summary.created_at,
            accepted: Instant::now().checked_sub(waited).unwrap_or_else(Instant::now),
            metadata: summary.metadata,
            sandbox: summary.sandbox,
            generation: summary.generation,
            used: OnceLock::new(),
            feed: Feed::new(last_event, self.config.max_event_bytes.as_u64()),
            cancel: watch::Sender::new(Cancel::No),
            phase: watch::Sender::new(phase),
        })
    }

    /// Removes directories that no execution and no sandbox has.
    async fn remove_unknown_files(self: &Arc<Self>) -> Result<(), ServiceError> {
        let core = self.clone();
        let failed = |error| ServiceError::Files(Arc::new(error));
        let ids = crate::blocking(move || core.files.ids().map_err(failed)).await?;
        let known = self.records.known(ids.clone()).await?;
        let known: HashSet<String> = known.into_iter().chain(self.kept.ids()).collect();
        let core = self.clone();
        crate::blocking(move || {
            for id in ids.iter().filter(|id| !known.contains(*id)) {
                tracing::info!(id, "removing the files of nothing");
                if let Err(error) = core.files.remove(id) {
                    tracing::warn!(id, %error, "files were not removed");
                }
            }
            Ok(())
        })
        .await
    }
}

impl Service {
    /// Ends the service: nothing more is accepted, what runs may end until the deadline and is
    /// cancelled then, and what waits is run by the next service on this store.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let core = &self.core;
        core.is_accepting.store(false, Ordering::Release);
        _ = tokio::time::timeout(deadline, core.accepts.write()).await;
        // What was just about to run is no longer in the queue.
        let (running, queued) = core.running_and_queued();
        let mut report = ShutdownReport { queued, ..ShutdownReport::default() };
        _ = tokio::time::timeout(deadline, all_ended(&running)).await;
        let has_ended = |live: &Arc<Live>| matches!(&*live.phase.borrow(), Phase::Ended(_));
        let (finished, cancelled): (Vec<_>, Vec<_>) = running.into_iter().partition(has_ended);
        cancelled.iter().for_each(|live| live.cancel());
        if tokio::time::timeout(CANCEL_TIMEOUT, all_ended(&cancelled)).await.is_err() {
            cancelled.iter().for_each(|live| live.cancel());
            _ = tokio::time::timeout(CANCEL_TIMEOUT, all_ended(&cancelled)).await;
        }
        report.finished = finished.iter().map(|live| live.id.clone()).collect();
        report.cancelled = cancelled.iter().map(|live| live.id.clone()).collect();
        report.left = core.close_kept().await;
        report
    }
}

async fn all_ended(all: &[Arc<Live>]) {
    for live in all {
        let mut phase = live.phase.subscribe();
        _ = phase.wait_for(|phase| matches!(phase, Phase::Ended(_))).await;
    }
}
