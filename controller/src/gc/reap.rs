//! Second line of defence against leaks: finding and removing what dead controllers left.
//!
//! Every container has labels that say which controller made it (`instance`), on which boot of
//! which machine and for which user (`host`), and when its longest possible life ends
//! (`expires`). What carries this host's label and an instance whose [lock](crate::gc::state_dir) is free
//! is left over; so is what is long past its end. No lock file means unknown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandbox_api::EngineKind;
use sandbox_engine::{ContainerSummary, Engine, seconds, unix_seconds};
use serde::Serialize;

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

/// How often a controller that goes on living looks.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// What is known of a sandbox's container and its controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Its controller lives.
    Running,
    /// Its controller is dead, or its longest life is over: to be removed.
    Leftover,
    /// Whether its controller lives cannot be told: another user's, or of another machine.
    Unknown,
}

/// A sandbox's container, as `ps` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxSummary {
    /// The sandbox's id.
    pub id: String,
    /// Which engine has its container.
    pub engine: EngineKind,
    /// The engine's id of it.
    pub container: String,
    /// The controller that made it.
    pub instance: String,
    /// What is known of it.
    pub state: SandboxState,
    /// When it was made, in seconds since 1970.
    #[serde(serialize_with = "unix_seconds")]
    pub created: SystemTime,
    /// When its longest possible life ends, in seconds since 1970.
    #[serde(serialize_with = "unix_seconds")]
    pub expires: SystemTime,
}

/// How `gc` works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcOptions {
    /// Whether anything is removed.
    pub mode: GcMode,
    /// What is removed.
    pub force: Force,
}

/// Whether anything is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GcMode {
    /// Only say what would be.
    DryRun,
    /// Remove.
    #[default]
    Remove,
}

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Force {
    /// Leftovers.
    #[default]
    No,
    /// Leftovers and what is unknown.
    Yes,
}

/// What `gc` did, or would do.
#[derive(Debug, PartialEq, Eq, Default, Serialize)]
pub struct GcReport {
    /// What was removed, or would be.
    pub removed: Vec<SandboxSummary>,
    /// What was left alone.
    pub kept: Vec<SandboxSummary>,
    /// What could not be removed, and why.
    pub failed: Vec<GcFailure>,
}

/// A leftover that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GcFailure {
    /// Which.
    pub sandbox: SandboxSummary,
    /// Why.
    pub reason: String,
}

/// Looks after what is left of sandboxes, on every engine that they may be on.
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
    /// Reaches the engine that the configuration names; where it names none, every engine that
    /// is there. It removes nothing by itself.
    ///
    /// # Errors
    ///
    /// [`Error`] where an engine that is named, or whose socket is there, does not answer.
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        let state = StateDir::open(&config.state_dir, &boot_id()?)?;
        Ok(Self {
            engines: sandbox_engine::reach(&config.engine, &config.agent, &config.state_dir)
                .await?,
            state,
        })
    }

    /// The containers of sandboxes that the engines have, oldest first.
    ///
    /// # Errors
    ///
    /// [`Error`] where an engine fails.
    pub async fn ps(&self) -> Result<Vec<SandboxSummary>, Error> {
        let mut found = Vec::new();
        for engine in &self.engines {
            found.extend(survey(&self.state, &**engine).await?);
        }
        found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(found)
    }

    /// Removes what dead controllers left.
    ///
    /// # Errors
    ///
    /// [`Error`] where an engine cannot list; the others are looked after before. What cannot be
    /// removed is in the report.
    pub async fn gc(&self, options: GcOptions) -> Result<GcReport, Error> {
        let mut whole = GcReport::default();
        let mut failure = None;
        for engine in &self.engines {
            match gc(&self.state, &**engine, options).await {
                Ok(GcReport { removed, kept, failed }) => {
                    whole.removed.extend(removed);
                    whole.kept.extend(kept);
                    whole.failed.extend(failed);
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(whole), Err)
    }
}

/// The name of a sandbox's container.
pub(crate) fn container_name(sandbox: &str) -> String {
    format!("sandboxctl-{sandbox}")
}

/// The labels of a sandbox's container.
pub(crate) fn labels(
    instance: &Instance,
    sandbox: &str,
    expires: SystemTime,
) -> Vec<(String, String)> {
    [
        (LABEL_SANDBOX, sandbox.to_owned()),
        (LABEL_INSTANCE, instance.id().to_owned()),
        (LABEL_HOST, instance.state().host().to_owned()),
        (LABEL_EXPIRES, seconds(expires).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// What to call a sandbox's container. It says nothing of whose it is.
pub(crate) fn label_of_name(name: String) -> (String, String) {
    (LABEL_NAME.to_owned(), name)
}

/// All sandboxes' containers that an engine has, oldest first.
async fn survey(state: &StateDir, engine: &dyn Engine) -> Result<Vec<SandboxSummary>, Error> {
    let listed = step(Step::List, engine.list(LABEL_INSTANCE)).await?;
    let labels: Vec<Labels> = listed.into_iter().filter_map(Labels::read).collect();
    let here = SystemTime::now();
    // The engine's clock is a round trip, and only matters where something may have expired.
    let now = if labels.iter().any(|labels| labels.is_expired(here)) {
        step(Step::List, engine.clock()).await?
    } else {
        here
    };
    let mut found: Vec<SandboxSummary> = labels
        .into_iter()
        .map(|labels| {
            let lock = state.lock_of(&labels.instance);
            let state = decide(&labels, state.host(), lock, now);
            let Labels { sandbox: id, container, instance, created, expires, .. } = labels;
            let engine = engine.info().kind;
            SandboxSummary { id, engine, container, instance, state, created, expires }
        })
        .collect();
    found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    Ok(found)
}

/// Removes what is left over on an engine, and with [`Force::Yes`] what is unknown.
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
        engine.tidy().await;
    }
    Ok(report)
}

/// Removes what dead controllers left on an engine, at once and from then on regularly. What fails
/// is tried again the next time, and is no failure of this controller's.
pub(crate) async fn sweep(state: StateDir, engine: Arc<dyn Engine>, first: impl Send) {
    let mut first = Some(first);
    let mut times = tokio::time::interval(SWEEP_EVERY);
    times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        match gc(&state, &*engine, GcOptions::default()).await {
            Ok(report) if report.removed.is_empty() && report.failed.is_empty() => {}
            Ok(GcReport { removed, failed, .. }) => {
                tracing::info!(removed = removed.len(), failed = failed.len(), "swept leftovers");
            }
            Err(error) => tracing::debug!(error = error.full_message(), "cannot sweep"),
        }
        drop(first.take());
    }
}

/// A container's labels, read.
#[derive(Debug, Clone)]
struct Labels {
    sandbox: String,
    container: String,
    instance: String,
    host: String,
    created: SystemTime,
    expires: SystemTime,
}

impl Labels {
    /// `None` where they are not what a controller writes: then it is not ours to judge. Labels
    /// alone prove nothing: whoever makes an image gives them to every container of it. A name
    /// comes from whoever makes the container.
    fn read(listed: ContainerSummary) -> Option<Self> {
        let mut labels: HashMap<String, String> = listed.labels.into_iter().collect();
        let expires: u64 = labels.get(LABEL_EXPIRES)?.parse().ok()?;
        if listed.name != container_name(labels.get(LABEL_SANDBOX)?) {
            return None;
        }
        Some(Self {
            sandbox: labels.remove(LABEL_SANDBOX)?,
            instance: labels.remove(LABEL_INSTANCE)?,
            host: labels.remove(LABEL_HOST)?,
            container: listed.id,
            created: listed.created,
            expires: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expires))?,
        })
    }

    fn is_expired(&self, now: SystemTime) -> bool {
        now.duration_since(self.expires).is_ok_and(|past| past > GRACE)
    }
}

/// What becomes of a container. `now` is by the engine's clock.
fn decide(labels: &Labels, host: &str, lock: Lock, now: SystemTime) -> SandboxState {
    if labels.is_expired(now) {
        return SandboxState::Leftover;
    }
    if labels.host != host {
        return SandboxState::Unknown;
    }
    match lock {
        Lock::Held => SandboxState::Running,
        Lock::Free => SandboxState::Leftover,
        Lock::Missing => SandboxState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(host: &str, expires: u64) -> Labels {
        Labels {
            sandbox: "s".into(),
            container: "c".into(),
            instance: "i".into(),
            host: host.into(),
            created: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(expires),
        }
    }

    #[test]
    fn only_what_is_surely_dead_is_left_over() {
        use SandboxState::{Leftover, Running, Unknown};
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        for (host, lock, expires, expected) in [
            ("me", Lock::Held, 10_001, Running),
            ("me", Lock::Free, 10_001, Leftover),
            ("me", Lock::Missing, 10_001, Unknown),
            ("other", Lock::Held, 10_001, Unknown),
            ("other", Lock::Free, 10_001, Unknown),
            ("other", Lock::Missing, 10_001, Unknown),
            // Past its end, but not long.
            ("me", Lock::Held, 9_400, Running),
            ("other", Lock::Missing, 9_400, Unknown),
            // Long past its end: whoever made it.
            ("me", Lock::Held, 9_399, Leftover),
            ("other", Lock::Missing, 9_399, Leftover),
        ] {
            let state = decide(&labels(host, expires), "me", lock, now);
            assert_eq!(state, expected, "{host} {lock:?} {expires}");
        }
    }

    #[test]
    fn labels_that_no_controller_wrote_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), "boot").unwrap();
        let me = Instance::register(state, "").unwrap();
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let good = ContainerSummary {
            id: "c".into(),
            name: "sandboxctl-s".into(),
            labels: super::labels(&me, "s", expires),
            running: true,
            created: SystemTime::UNIX_EPOCH,
        };
        let read = Labels::read(good.clone()).unwrap();
        assert_eq!(
            (read.sandbox.as_str(), read.instance, read.expires),
            ("s", me.id().to_owned(), expires)
        );
        for (index, value) in [(3, "soon"), (3, "-1"), (3, "99999999999999999999")] {
            let mut bad = good.clone();
            bad.labels[index].1 = value.into();
            assert!(Labels::read(bad).is_none(), "{value}");
        }
        // An image's labels are every container's that is made from it.
        assert!(
            Labels::read(ContainerSummary { name: "database".into(), ..good.clone() }).is_none()
        );
        for index in 0..4 {
            let mut bad = good.clone();
            bad.labels.remove(index);
            assert!(Labels::read(bad).is_none());
        }
    }
}
