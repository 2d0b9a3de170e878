//! Sandboxes that are started ahead: ready for the next launch with their key.

use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use sandbox_api::{SandboxSpec, StartKind};
use sandbox_engine::EngineError;
use tokio::time::{Instant, timeout_at};

use super::started::Ready;
use super::{IO_DIR, Mounts, Opened, launch_with, made_for};
use crate::error::Error;
use crate::failpoint::{Point, failpoint};
use crate::io_dir::{IoDir, links_of};
use crate::mounts::MountGuard;
use crate::sandbox::context::Shared;
use crate::sandbox::plan::Plan;
use crate::sandbox::prepared::PreparedSandbox;
use crate::step::Step;
use crate::{Sandbox, audit};
use sandbox_session::SessionEnd;

/// The age from which a pooled sandbox is pinged before it is handed over.
const PING_AFTER: Duration = Duration::from_secs(30);

/// An unclaimed sandbox: its agent is confined and has proven its mounts, and has no limits, rules
/// or hosts yet.
pub(crate) struct PooledSandbox {
    ready: Ready,
    shared: Arc<Shared>,
    /// Since when it exists.
    pub since: Instant,
    /// The longest lifetime of the sandbox after a claim.
    pub lifetime: Duration,
}

/// Opens the io dir that a caller named, creating it if it is missing; `None` if none is named.
pub(crate) async fn make_io_dir(
    shared: &Shared,
    spec: &SandboxSpec,
) -> Result<Option<IoDir>, Error> {
    let Some(dir) = &spec.io_dir else { return Ok(None) };
    MountGuard::new(&shared.mount_watch, &shared.folders).check_path(IO_DIR, dir)?;
    let owner = made_for(shared, spec).await?;
    IoDir::make(dir, links_of(spec), &shared.instance.made_dir(), owner).map(Some)
}

impl PooledSandbox {
    /// Starts one that waits for at most `max_age`, and then lives for at most the spec's lifetime.
    pub async fn launch(
        shared: Arc<Shared>,
        mut sandbox: PreparedSandbox,
        max_age: Duration,
    ) -> Result<Self, Error> {
        let since = Instant::now();
        let lifetime = sandbox.spec.lifetime;
        // What its label says about the end of its life.
        sandbox.spec.lifetime = lifetime.saturating_add(max_age);
        let launch = |mounts| Self::try_launch(&shared, sandbox.clone(), mounts);
        let ready = launch_with(&shared, &sandbox.spec, launch).await;
        failpoint(Point::Pooled).await;
        Ok(Self { ready: ready?, shared, since, lifetime })
    }

    async fn try_launch(
        shared: &Arc<Shared>,
        sandbox: PreparedSandbox,
        mounts: Mounts,
    ) -> Result<Ready, Error> {
        let since = Instant::now();
        let id = sandbox_dirfd::random_hex::<8>();
        let ready = async {
            let opened = Opened::new(shared.clone(), sandbox, mounts).await?;
            opened.create(id.clone()).await?.start().await?.greet().await
        };
        let ready = ready.await;
        shared.audit.ended(&id, "park", audit::outcome(&ready), since.elapsed());
        ready
    }

    /// Completes when its agent is gone.
    pub fn ended(&self) -> impl Future<Output = SessionEnd> + Send + use<> {
        self.ready.ended()
    }

    /// Turns it into the sandbox of `spec`, whose container and agent would be equal, and whose
    /// plan is `plan`. The launch `began` before, and stops waiting at `deadline`.
    pub async fn claim(
        mut self,
        spec: SandboxSpec,
        plan: Plan,
        began: StdInstant,
        deadline: Instant,
    ) -> Result<Sandbox, Error> {
        self.ready.assign(spec, plan);
        let (id, since, shared) = (self.ready.id().to_owned(), self.since, self.shared);
        let ready = self.ready;
        let claim = async move {
            ready.check_mounts()?;
            if since.elapsed() >= PING_AFTER {
                ready.ping().await?;
            }
            ready.configure(StartKind::Warm, began).await
        };
        let claimed = timeout_at(deadline, claim).await.unwrap_or_else(|_| {
            let source = EngineError::TimedOut { after: began.elapsed() };
            Err(Error::Engine { step: Step::Configure, source })
        });
        shared.audit.ended(&id, "launch", audit::outcome(&claimed), began.elapsed());
        claimed
    }
}
