//! The background work of a service, each when something is due: there is no polling.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox_store::StoredEvent;

use crate::core::Core;
use crate::error::ServiceError;
use crate::live::Live;
use crate::records::stored_events;

/// How long events are collected before they are stored: readers have them already.
const EVENTS_PAUSE: Duration = Duration::from_millis(100);
/// The bytes of events that are stored together; those of one execution are never divided.
const EVENTS_BATCH: usize = 1 << 20;
/// The longest sleep, in case the clock is set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Starts the tasks. They end with the service.
pub(crate) fn start(core: &Arc<Core>) {
    crate::spawn(store_events(Arc::downgrade(core)));
    crate::spawn(remove_expired(Arc::downgrade(core)));
    crate::spawn(crate::sandboxes::lifecycle::end_unused(Arc::downgrade(core)));
    if core.node.is_some() {
        crate::spawn(remove_unknown(Arc::downgrade(core)));
    }
}

/// Removes the files of executions that other nodes have forgotten.
async fn remove_unknown(core: Weak<Core>) {
    loop {
        tokio::time::sleep(LONGEST_SLEEP).await;
        let Some(core) = core.upgrade() else { return };
        if let Err(error) = core.remove_unknown_files().await {
            tracing::warn!(%error, "unknown files were not looked for");
        }
    }
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
        match core.records.call(move |store| store.append_events(events)).await {
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
        let next = strong.remove_due().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "results were not removed");
            Some(Duration::from_secs(60))
        });
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
            let before = self.records.now().before(self.config.retention);
            let max_bytes = self.config.max_stored.as_u64();
            let expired = self.records.call(move |store| store.expire(before, max_bytes)).await?;
            if expired.is_empty() {
                break;
            }
            let mut removed = Vec::new();
            for id in expired {
                match self.remove_files(&id).await {
                    Ok(()) => removed.push(id),
                    Err(error) => tracing::warn!(id, %error, "files were not removed"),
                }
            }
            if removed.is_empty() {
                break;
            }
            self.records.call(move |store| store.forget(removed)).await?;
        }
        let oldest = self.records.call(|store| store.oldest_end()).await?;
        Ok(oldest.map(|ended| ended.after(self.config.retention).since(self.records.now())))
    }
}
