//! The second line of defence against leaks: finds and removes leftovers of crashed controllers.
//!
//! Every container has labels with the controller that created it (`instance`), the boot of the
//! machine and the user (`host`), and the end of its maximum lifetime (`expires`). A container with
//! this host's label and an instance whose [lock](crate::gc::state_dir) is free is a leftover; so
//! is one that is long past its expiry. A missing lock file means unknown.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandbox_api::{
    EngineKind, Force, GcFailure, GcMode, GcOptions, GcReport, RootFs, SandboxSpec, SandboxState,
    SandboxSummary, generation_of,
};
use sandbox_engine::{ContainerSummary, Engine, sandbox_of, seconds};

use crate::config::Config;
use crate::engine_call::step;
use crate::error::Error;
use crate::gc::state_dir::{GRACE, Instance, Lock, StateDir, boot_id};
use crate::step::Step;

const LABEL_SANDBOX: &str = "sandboxctl.sandbox";
const LABEL_INSTANCE: &str = "sandboxctl.instance";
const LABEL_HOST: &str = "sandboxctl.host";
const LABEL_EXPIRES: &str = "sandboxctl.expires";
const LABEL_NAME: &str = "sandboxctl.name";
const LABEL_TITLE: &str = "sandboxctl.title";
const LABEL_ROOTFS: &str = "sandboxctl.rootfs";
const LABEL_IO_DIR: &str = "sandboxctl.io_dir";

/// The interval at which a running controller sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Finds and removes leftovers of sandboxes, on every engine where there may be some.
pub struct Reaper {
    engines: Vec<Arc<dyn Engine>>,
    state: StateDir,
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engines: Vec<_> = self.engines.iter().map(|engine| engine.info()).collect();
        formatter.debug_struct("Reaper").field("engines", &engines).finish_non_exhaustive()
    }
}

impl Reaper {
    /// Connects to the engine that the configuration names, or if it names none, to every available
    /// engine. This alone removes nothing.
    ///
    /// # Errors
    ///
    /// [`Error`] if an engine that is named, or whose socket exists, does not respond.
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        let state = StateDir::open(&config.state_dir, &config.scratch_dir, &boot_id()?)?;
        Ok(Self {
            engines: sandbox_engine::connect_available(
                &config.engine, &config.agent, &config.state_dir, config.disk_reserve,
            )
            .await?,
            state,
        })
    }

    /// Lists the containers of sandboxes on all engines, oldest first.
    ///
    /// # Errors
    ///
    /// [`Error`] if an engine fails.
    pub async fn ps(&self) -> Result<Vec<SandboxSummary>, Error> {
        let mut found = Vec::new();
        for engine in &self.engines {
            found.extend(survey(&self.state, &**engine).await?);
        }
        found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(found)
    }

    /// Removes leftovers of crashed controllers.
    ///
    /// # Errors
    ///
    /// [`Error`] if an engine cannot list its containers, after the other engines are done. A
    /// container that cannot be removed is in the report.
    pub async fn gc(&self, options: GcOptions) -> Result<GcReport, Error> {
        let mut whole = GcReport::default();
        let mut failure = None;
        let stages = self.state.stages.leftovers();
        for engine in &self.engines {
            match gc(&self.state, &**engine, options).await {
                Ok(report) => {
                    whole.removed.extend(report.removed);
                    whole.kept.extend(report.kept);
                    whole.failed.extend(report.failed);
                    whole.archives_removed.extend(report.archives_removed);
                }
                Err(error) => failure = Some(error),
            }
            if engine.info().kind == EngineKind::Embedded {
                match step(Step::List, engine.program_images()).await {
                    Ok(archives) => whole.archives_kept.extend(archives),
                    Err(error) => failure = Some(error),
                }
            }
        }
        match sandbox_engine::detach_stores(options.stores, options.mode) {
            Ok(stores) => {
                whole.stores_removed.extend(stores.iter().map(|path| path.display().to_string()));
            }
            Err(source) => {
                failure = Some(Error::State { path: sandbox_engine::store_directory(), source });
            }
        }
        let mut left = self.state.stages.leftovers();
        if options.mode == GcMode::DryRun {
            // Those without an obstacle would be removed.
            left.retain(|stage| stage.advice().is_some());
        }
        whole.commit_conflicts = self.state.stages.conflicts().take();
        for stage in stages {
            match stage {
                stage if left.iter().any(|it| it.path == stage.path) => {
                    whole.stages_kept.push(stage);
                }
                stage if stage.is_interrupted => whole.commits_completed.push(stage),
                stage => whole.stages_removed.push(stage),
            }
        }
        // A dry run removed none of them.
        whole.archives_kept.retain(|archive| !whole.archives_removed.contains(archive));
        failure.map_or(Ok(whole), Err)
    }
}

/// The labels of a sandbox's container. Those from its name on describe it in listings, and do not identify
/// its owner. An absent property is an empty label: a container without the label inherits its image's.
pub(crate) fn labels(
    instance: &Instance,
    sandbox: &str,
    expires: SystemTime,
    spec: &SandboxSpec,
    io_dir: Option<&Path>,
) -> Vec<(String, String)> {
    let path = |path: &Path| path.display().to_string();
    let image = match &spec.root {
        RootFs::Image { reference, .. } => Some(reference.clone()),
        RootFs::Directory(root) | RootFs::Archive(root) => Some(path(root)),
        RootFs::Builtin => None,
    };
    [
        (LABEL_SANDBOX, Some(sandbox.to_owned())),
        (LABEL_INSTANCE, Some(instance.id.clone())),
        (LABEL_HOST, Some(instance.state.host.clone())),
        (LABEL_EXPIRES, Some(seconds(expires).to_string())),
        (LABEL_NAME, spec.container_name.clone()),
        (LABEL_TITLE, spec.title.clone()),
        (LABEL_ROOTFS, image),
        (LABEL_IO_DIR, io_dir.map(path)),
    ]
    .map(|(name, value)| (name.to_owned(), value.unwrap_or_default()))
    .into()
}

/// Lists the containers of all sandboxes on an engine, oldest first.
async fn survey(state: &StateDir, engine: &dyn Engine) -> Result<Vec<SandboxSummary>, Error> {
    let listed = step(Step::List, engine.list(LABEL_INSTANCE)).await?;
    let kind = engine.info().kind;
    let known: Vec<_> = listed.into_iter().filter_map(|it| read(it, kind)).collect();
    let here = SystemTime::now();
    // The engine's clock costs a round trip, and only matters if something may have expired.
    let now = if known.iter().any(|(sandbox, _)| is_expired(sandbox.expires, here)) {
        step(Step::List, engine.clock()).await?
    } else {
        here
    };
    let judged = known.into_iter().map(|(sandbox, host)| {
        let lock = state.lock_of(&sandbox.instance);
        let state = decide(sandbox.expires, &host, &state.host, lock, now);
        SandboxSummary { state, ..sandbox }
    });
    let mut found: Vec<SandboxSummary> = judged.collect();
    found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    Ok(found)
}

/// Removes leftovers on an engine, and with [`Force::Yes`] also containers of unknown state.
pub(crate) async fn gc(
    state: &StateDir,
    engine: &dyn Engine,
    options: GcOptions,
) -> Result<GcReport, Error> {
    let mut report = GcReport::default();
    for sandbox in survey(state, engine).await? {
        let is_ours = match (sandbox.state, options.force) {
            (SandboxState::Leftover, _) | (SandboxState::Unknown, Force::Yes) => true,
            (SandboxState::Running, _) | (SandboxState::Unknown, Force::No) => false,
        };
        if !is_ours {
            report.kept.push(sandbox);
            continue;
        }
        if options.mode == GcMode::Remove {
            let removal = engine.remove(&sandbox.container);
            if let Err(error) = step(Step::Remove, removal).await {
                let reason = error.full_message();
                report.failed.push(GcFailure { sandbox, reason });
                continue;
            }
        }
        report.removed.push(sandbox);
    }
    if options.mode == GcMode::Remove {
        let failed = report.failed.iter().map(|failure| &failure.sandbox);
        let busy: HashSet<&str> =
            report.kept.iter().chain(failed).map(|sandbox| sandbox.instance.as_str()).collect();
        let here = &engine.info().endpoint;
        state.tidy(|instance, endpoint| endpoint == here && !busy.contains(instance));
    }
    report.archives_removed = step(Step::RemoveImage, engine.tidy(options.mode)).await?;
    Ok(report)
}

/// Removes leftovers of crashed controllers on an engine, at once and then regularly. A failure is
/// retried the next time, and is not an error of this controller.
pub(crate) async fn sweep(state: StateDir, engine: Arc<dyn Engine>, first: impl Send) {
    let mut first = Some(first);
    let mut times = tokio::time::interval(SWEEP_EVERY);
    times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        match gc(&state, &*engine, GcOptions::default()).await {
            Ok(GcReport { removed, failed, archives_removed, .. }) => {
                let (removed, failed) = (removed.len(), failed.len());
                let archives = archives_removed.len();
                if removed + failed + archives > 0 {
                    tracing::info!(removed, failed, archives, "swept leftovers");
                }
            }
            Err(error) => tracing::debug!(error = error.full_message(), "cannot sweep"),
        }
        drop(first.take());
    }
}

/// Reads the labels of a container: its sandbox, whose state is not known yet, and the label of its host.
/// `None` if they are not in the format that a controller writes: then the container is not sandboxctl's to
/// judge. The engine lists none that has the label from its image.
fn read(listed: ContainerSummary, engine: EngineKind) -> Option<(SandboxSummary, String)> {
    let mut labels: HashMap<String, String> = listed.labels.into_iter().collect();
    let expires: u64 = labels.get(LABEL_EXPIRES)?.parse().ok()?;
    let sandbox = labels.remove(LABEL_SANDBOX)?;
    if sandbox_of(&listed.name) != Some(&*sandbox) {
        return None;
    }
    let (id, generation) = match generation_of(&sandbox) {
        Some((id, generation)) => (id.to_owned(), Some(generation)),
        None => (sandbox, None),
    };
    let (instance, host) = (labels.remove(LABEL_INSTANCE)?, labels.remove(LABEL_HOST)?);
    let [name, title, image, io_dir] = [LABEL_NAME, LABEL_TITLE, LABEL_ROOTFS, LABEL_IO_DIR]
        .map(|it| labels.remove(it).filter(|value| !value.is_empty()));
    let summary = SandboxSummary {
        id,
        generation,
        engine,
        container: listed.id,
        instance,
        state: SandboxState::Unknown,
        created: listed.created,
        expires: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expires))?,
        name,
        title,
        image,
        io_dir,
    };
    Some((summary, host))
}

fn is_expired(expires: SystemTime, now: SystemTime) -> bool {
    now.duration_since(expires).is_ok_and(|past| past > GRACE)
}

/// Decides the state of a container of this `host`, where `ours` is this one. `now` is the engine's time.
fn decide(
    expires: SystemTime,
    host: &str,
    ours: &str,
    lock: Lock,
    now: SystemTime,
) -> SandboxState {
    if is_expired(expires, now) {
        return SandboxState::Leftover;
    }
    if host != ours {
        return SandboxState::Unknown;
    }
    match lock {
        Lock::Held => SandboxState::Running,
        Lock::Free => SandboxState::Leftover,
        Lock::Missing => SandboxState::Unknown,
    }
}

#[cfg(test)]
mod tests;
