//! Sandboxes that are started ahead with a process in them, each for one creation.
//!
//! Such a sandbox is what its creator would get, but for its record: it has an id, a container and an io dir of its
//! own, and its process has said that it is ready. Nothing of a caller is in it: input, secrets and arguments come
//! when it is claimed. A creation whose spec is exactly that of the preparation takes one. Any other that names
//! the preparation starts its own, and so does each later generation: with the same process.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sandbox_api::service::KeptSpec;
use sandbox_api::{
    ErrorKind, ExecutionEvent, Failure, ProcessState, ReadFrom, ReadMode, Recorded, SandboxSpec,
    generation_id,
};
use sandbox_dirfd::random_hex;

use super::lifecycle::CLOSE_TIMEOUT;
use super::prepared::{Group, WaitingSandbox};
use crate::core::Core;
use crate::error::ServiceError;
use crate::launcher::{Guest, GuestProcess};
use crate::lock;
use crate::plan::{plan_kept, plan_process};
use crate::preparation::{Preparation, Ready};

/// How long a process may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a sandbox waits for its creation, before another one replaces it.
const MAX_AGE: Duration = Duration::from_secs(1800);
/// The wait after a failure; it doubles with each further one.
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// How often those that wait are looked at, and a port of one that is not ready.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_AT_PORT: Duration = Duration::from_millis(20);

impl Core {
    /// Keeps sandboxes of each preparation ready, until the service ends.
    pub fn start_prepared(self: &Arc<Self>) {
        for group in self.prepared.groups() {
            crate::spawn(fill(Arc::downgrade(self), group.clone()));
        }
    }

    /// Starts the process that a sandbox is to have, if it is to have one, and waits until it is ready.
    pub async fn prepare(
        &self,
        guest: &dyn Guest,
        kept: &KeptSpec,
        spec: &SandboxSpec,
    ) -> Result<(), ServiceError> {
        let group = kept.prepared.as_deref().and_then(|name| self.prepared.group(name));
        // What is not prepared any more starts without it.
        let Some(group) = group else { return Ok(()) };
        let Preparation { name, ready, command, .. } = &group.preparation;
        if command.is_empty() {
            return Ok(());
        }
        let command = plan_process(group.preparation.process(), spec, &kept.env, &self.config)?;
        let process = guest.start_process(command).await?;
        let is_ready = async {
            match ready {
                Ready::Text(text) => prints(&*process, text.as_bytes()).await,
                Ready::Port(port) => listens(guest, &*process, *port).await,
                Ready::Started => true,
            }
        };
        let why = match tokio::time::timeout(READY_TIMEOUT, is_ready).await {
            Ok(true) => return Ok(()),
            Ok(false) => "it ended before".to_owned(),
            Err(_) => format!("it was not within {READY_TIMEOUT:?}"),
        };
        let message = format!("the process of '{name}' is not ready: {why}");
        Err(ServiceError::not_started(Failure::new(ErrorKind::Engine, message, None), false))
    }

    async fn start_waiting(&self, group: &Group) -> Result<(), ServiceError> {
        let id = random_hex::<12>();
        let guest = self.start_one(group, &id).await?;
        {
            let mut waiting = lock(&group.waiting);
            if !waiting.is_closed {
                waiting.sandboxes.push_back(WaitingSandbox { id, guest, since: Instant::now() });
                return Ok(());
            }
        }
        self.discard(&id, &*guest).await;
        Ok(())
    }

    async fn start_one(&self, group: &Group, id: &str) -> Result<Arc<dyn Guest>, ServiceError> {
        let kept = group.preparation.spec();
        let spec = plan_kept(kept.clone(), &self.config)?;
        let spec = spec.kept_io_dir(self.files.path(id)).title("sandbox");
        let spec = spec.lifetime(self.config.kept.max_ttl + MAX_AGE).id(generation_id(id, 1));
        let guest = self.launcher.launch(self.injected(None, spec.clone()).into()).await?;
        let prepared = self.prepare(&*guest, &kept, &spec).await;
        if let Err(error) = prepared {
            self.discard(id, &*guest).await;
            return Err(error);
        }
        Ok(guest)
    }

    /// Removes one with its files.
    async fn discard(&self, id: &str, guest: &dyn Guest) {
        let closed = tokio::time::timeout(CLOSE_TIMEOUT, guest.close()).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!(id, error, "a prepared sandbox was not removed");
        }
        if let Err(error) = self.remove_files(id).await {
            tracing::warn!(id, %error, "files of a prepared sandbox were not removed");
        }
    }

    /// Removes all that wait, and starts no more.
    pub async fn close_prepared(&self) {
        let close = |group: &Arc<Group>| {
            let mut waiting = lock(&group.waiting);
            waiting.is_closed = true;
            std::mem::take(&mut waiting.sandboxes)
        };
        let all: Vec<WaitingSandbox> = self.prepared.groups().iter().flat_map(close).collect();
        join_all(all.iter().map(|it| self.discard(&it.id, &*it.guest))).await;
    }
}

/// Keeps sandboxes of a preparation ready.
async fn fill(core: Weak<Core>, group: Arc<Group>) {
    let mut retry = RETRY;
    loop {
        let Some(strong) = core.upgrade() else { return };
        let (unusable, is_missing) = {
            let mut waiting = lock(&group.waiting);
            if waiting.is_closed {
                return;
            }
            let is_usable =
                |it: &WaitingSandbox| !it.guest.has_ended() && it.since.elapsed() < MAX_AGE;
            let all = std::mem::take(&mut waiting.sandboxes);
            let (usable, unusable): (VecDeque<_>, VecDeque<_>) =
                all.into_iter().partition(is_usable);
            waiting.sandboxes = usable;
            (unusable, waiting.sandboxes.len() < usize::from(group.preparation.count))
        };
        for it in unusable {
            strong.discard(&it.id, &*it.guest).await;
        }
        if !is_missing {
            drop(strong);
            _ = tokio::time::timeout(LOOK, group.taken.notified()).await;
            continue;
        }
        match strong.start_waiting(&group).await {
            Ok(()) => retry = RETRY,
            Err(error) => {
                let name = &group.preparation.name;
                tracing::warn!(name, %error, "a sandbox cannot be prepared");
                drop(strong);
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(MAX_RETRY);
            }
        }
    }
}

/// Waits until a process has printed this; false if it ends before.
async fn prints(process: &dyn GuestProcess, text: &[u8]) -> bool {
    let Ok(mut events) = process.attach(ReadFrom::After(0), ReadMode::Wait) else { return false };
    let mut printed = Vec::new();
    while let Some(event) = events.next().await {
        let Recorded::Event(ExecutionEvent::Output { data, .. }) = &event.event else { continue };
        printed.extend_from_slice(data);
        if printed.windows(text.len()).any(|it| it == text) {
            return true;
        }
        // It may be in two pieces.
        printed.drain(..printed.len().saturating_sub(text.len()));
    }
    false
}

/// Waits until something in a sandbox listens on this port; false if its process ends before.
async fn listens(guest: &dyn Guest, process: &dyn GuestProcess, port: u16) -> bool {
    while process.view().state != ProcessState::Ended {
        let listed = guest.listening_ports().await;
        if listed.is_ok_and(|listed| listed.ports.iter().any(|it| it.port == port)) {
            return true;
        }
        tokio::time::sleep(LOOK_AT_PORT).await;
    }
    false
}
