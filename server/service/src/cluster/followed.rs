//! Executions that wait, or are at another node, and that a caller of this node waits for.

use std::collections::HashMap;
use std::sync::Mutex;

use sandbox_store::Progress;
use tokio::sync::{Notify, watch};

use crate::lock;

/// How far they are.
#[derive(Default)]
pub(super) struct Followed {
    by_id: Mutex<HashMap<String, watch::Sender<Progress>>>,
    /// A caller waits, or one of them changed.
    pub due: Notify,
}

impl Followed {
    /// Says when an execution is further. What it was before is seen as new.
    pub fn subscribe(&self, id: &str) -> watch::Receiver<Progress> {
        let mut by_id = lock(&self.by_id);
        let progress = by_id.entry(id.to_owned()).or_default().subscribe();
        drop(by_id);
        self.due.notify_one();
        progress
    }

    /// An execution changed.
    pub fn touch(&self, id: &str) {
        if let Some(progress) = lock(&self.by_id).get(id) {
            progress.send_modify(|_| {});
            self.due.notify_one();
        }
    }

    /// The ids of those for which a caller waits still.
    pub fn ids(&self) -> Vec<String> {
        let mut by_id = lock(&self.by_id);
        by_id.retain(|_, progress| progress.receiver_count() > 0);
        by_id.keys().cloned().collect()
    }

    /// How far those are that were asked for. What is not found was forgotten, and so it has ended.
    pub fn learn(&self, asked: &[String], found: &HashMap<String, Progress>) {
        let gone = Progress { has_ended: true, ..Progress::default() };
        let by_id = lock(&self.by_id);
        for id in asked {
            let now = found.get(id).copied().unwrap_or(gone);
            if let Some(progress) = by_id.get(id) {
                progress.send_if_modified(|before| std::mem::replace(before, now) != now);
            }
        }
    }
}
