//! Removal of a sandbox's resources: on request, or when its last owner is dropped.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use sandbox_api::RootFs;
use sandbox_engine::{Container, ContainerSpec, EngineError};
use tokio::sync::{oneshot, watch};

use crate::audit;
use crate::egress::Egress;
use crate::engine_call::step;
use crate::error::Error;
use crate::io_dir::IoDir;
use crate::io_dir::inputs::OpenInput;
use crate::sandbox::context::Shared;
use crate::step::Step;

/// How long the engine may take to report how a container exited whose agent left a request
/// unanswered.
pub(super) const EVIDENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Owns the resources of a sandbox that must be removed, and what must be kept until then.
pub(crate) struct RemovalGuard {
    shared: Arc<Shared>,
    /// The sandbox's id.
    id: String,
    /// The container's name: its id is unknown before it is created.
    name: String,
    /// The connections of its commands, if it may have any.
    pub(super) egress: Option<Arc<Egress>>,
    /// Held while the container is being created.
    creating: Arc<tokio::sync::Mutex<()>>,
    removal: Arc<watch::Sender<Removal>>,
}

/// The state of the removal.
#[derive(Debug)]
enum Removal {
    Pending(HeldResources),
    InProgress,
    /// It failed.
    Left,
    Gone,
}

/// Which attempt at a removal to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Only the first: for a caller that cannot learn the result and so does not retry.
    First,
    /// Also another one, if the last one failed.
    Any,
}

/// Resources of the host that the container uses.
#[derive(Debug)]
pub(super) struct HeldResources {
    pub io_dir: Option<Arc<IoDir>>,
    pub inputs: Vec<OpenInput>,
}

impl Drop for HeldResources {
    fn drop(&mut self) {
        if let Some(io_dir) = &self.io_dir {
            io_dir.release();
        }
    }
}

impl RemovalGuard {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: String,
        name: String,
        kept: HeldResources,
        egress: Option<Arc<Egress>>,
    ) -> Self {
        let removal = Arc::new(watch::Sender::new(Removal::Pending(kept)));
        Self { shared, id, name, egress, creating: Arc::default(), removal }
    }

    /// Creates the container, in a separate task: if the caller is dropped during the launch, there
    /// is a container to remove, not one that appears after its removal.
    pub(super) async fn create(&self, spec: ContainerSpec) -> Result<Arc<dyn Container>, Error> {
        let creating = self.creating.clone().lock_owned().await;
        let shared = self.shared.clone();
        let task = crate::spawn(async move {
            let create = || step(Step::Create, shared.engine.create(&spec));
            let result = match create().await {
                // The image was removed since it was last seen.
                Err(Error::Engine { source: EngineError::ImageMissing, .. }) => {
                    match shared.prepare(&RootFs::Builtin, &mut |_| {}).await {
                        Ok(_) => create().await,
                        Err(error) => Err(error),
                    }
                }
                result => result,
            };
            if let Err(Error::Engine { source: EngineError::TimedOut { .. }, .. }) = &result {
                // The engine may still create it.
                shared.cleanup.leave_for_the_next_command();
            }
            drop(creating);
            result.map(Arc::from)
        });
        task.await.unwrap_or_else(|error| {
            Err(Error::StartFailed {
                detail: format!("creating the container was cancelled: {error}"),
            })
        })
    }

    /// Removes the container in the background, which [`Controller::close`] waits for; the returned
    /// receiver reports the result. `None` if the removal is in progress or done.
    ///
    /// [`Controller::close`]: crate::Controller::close
    pub(super) fn remove(&self, attempt: Attempt) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let mut kept = None;
        let begins = self.removal.send_if_modified(|removal| {
            match std::mem::replace(removal, Removal::InProgress) {
                Removal::Pending(removal) => kept = Some(removal),
                Removal::Left if attempt == Attempt::Any => {}
                other => {
                    *removal = other;
                    return false;
                }
            }
            true
        });
        if !begins {
            return None;
        }
        let removal = self.removal.clone();
        let (shared, id, name) = (self.shared.clone(), self.id.clone(), self.name.clone());
        let (creating, egress) = (self.creating.clone(), self.egress.clone());
        let work = async move {
            let started = Instant::now();
            drop(creating.lock().await);
            let result = step(Step::Remove, shared.engine.remove(&name)).await;
            if let Some(egress) = egress {
                // Their audit lines precede the line of the sandbox's end.
                egress.settle(EVIDENCE_TIMEOUT).await;
            }
            shared.audit.ended(&id, "close", audit::outcome(&result), started.elapsed());
            // Not earlier: the container had it mounted. A fresh io dir may be a large tree.
            _ = tokio::task::spawn_blocking(move || drop(kept)).await;
            removal.send_replace(if result.is_ok() { Removal::Gone } else { Removal::Left });
            result
        };
        Some(self.shared.cleanup.spawn(work))
    }

    /// Makes the engine remove the container without waiting for it, even if this process ends.
    /// Returns whether it accepted; otherwise nothing has happened.
    pub(super) async fn hand_over(&self) -> bool {
        let started = Instant::now();
        // The audit lines of its connections must precede its end.
        if self.egress.is_some() {
            return false;
        }
        let mounted = match &*self.removal.borrow() {
            Removal::Pending(kept) => kept.io_dir.as_ref().and_then(|io_dir| io_dir.own_mount()),
            _ => return false,
        };
        drop(self.creating.lock().await);
        let engine = &self.shared.engine;
        let asked = async { Ok(engine.begin_removal(&self.name, mounted.as_deref()).await) };
        if !matches!(step(Step::Remove, asked).await, Ok(true)) {
            return false;
        }
        // If the helper has closed its own by then, the release unmounts it, on a thread for that.
        drop(mounted);
        let mut kept = None;
        self.removal.send_if_modified(|removal| {
            let is_pending = matches!(removal, Removal::Pending(_));
            if is_pending {
                kept = Some(std::mem::replace(removal, Removal::Gone));
            }
            is_pending
        });
        // If the engine fails, the next sweep removes it.
        self.shared.cleanup.hand_over();
        self.shared.audit.ended(&self.id, "close", audit::REQUESTED, started.elapsed());
        // Only the agent still runs in the sandbox.
        _ = tokio::task::spawn_blocking(move || drop(kept)).await;
        true
    }

    /// Waits for a removal in progress, and returns whether everything was removed.
    pub(super) async fn are_gone(&self) -> bool {
        let mut removal = self.removal.subscribe();
        let settled = removal.wait_for(|removal| !matches!(removal, Removal::InProgress)).await;
        settled.is_ok_and(|removal| matches!(*removal, Removal::Gone))
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        self.remove(Attempt::First);
    }
}
