//! Second line of defence against leaks: finding and removing what dead controllers left.

//!
//! Every container has labels that say which controller made it (`instance`), on which boot of
//! which machine and for which user (`host`), and when its longest possible life ends
//! (`expires`). Every controller holds a lock on a file of its own in the state folder: the kernel
//! lets go of it however the controller ends. What carries this host's label and an instance whose
//! lock is free is left over; so is what is long past its end. No lock file means unknown.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;

use crate::engine::{Engine, Listed};
use crate::error::{Error, Step, step};
use crate::image::{seconds, unix_seconds};

const LABEL_SANDBOX: &str = "sandboxctl.sandbox";
const LABEL_INSTANCE: &str = "sandboxctl.instance";
const LABEL_HOST: &str = "sandboxctl.host";
const LABEL_EXPIRES: &str = "sandboxctl.expires";
/// How long past its longest possible life a container is left alone: its controller may be
/// removing it.
const GRACE: Duration = Duration::from_secs(600);
const LOCK_SUFFIX: &str = "lock";
const SPOOL_SUFFIX: &str = "spool";

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
    /// The engine's id of its container.
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
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

/// This controller, as others see it: a locked file in the state folder.
#[derive(Debug)]
pub(crate) struct Instance {
    id: String,
    host: String,
    folder: PathBuf,
    /// Where its containers are.
    endpoint: String,
    /// Holds the lock.
    _lock: fs::File,
}

impl Instance {
    /// Makes the state folder where it is missing, and registers a new instance.
    pub fn register(state_dir: &Path, boot_id: &str, endpoint: &str) -> Result<Self, Error> {
        let folder = state_dir.join("instances");
        private_folder(state_dir)
            .and_then(|()| private_folder(&folder))
            .map_err(|source| Error::State { path: state_dir.to_owned(), source })?;
        let id = crate::random_hex::<8>();
        let path = folder.join(&id).with_extension(LOCK_SUFFIX);
        // Locked before it has its name: nobody ever sees it free.
        let lock = (|| {
            let part = path.with_extension("part");
            let mut lock = fs::File::create_new(&part)?;
            lock.write_all(endpoint.as_bytes())?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            fs::rename(&part, &path)?;
            Ok(lock)
        })()
        .map_err(|source| Error::State { path, source })?;
        let uid = rustix::process::geteuid().as_raw();
        let host = format!("{boot_id}:{uid}");
        Ok(Self { id, host, folder, endpoint: endpoint.to_owned(), _lock: lock })
    }

    /// Where this instance spools what sandboxes are to read.
    pub fn spool_dir(&self) -> PathBuf {
        self.folder.join(&self.id).with_extension(SPOOL_SUFFIX)
    }

    /// The labels of a sandbox's container.
    pub fn labels(&self, sandbox: &str, expires: SystemTime) -> Vec<(String, String)> {
        [
            (LABEL_SANDBOX, sandbox.to_owned()),
            (LABEL_INSTANCE, self.id.clone()),
            (LABEL_HOST, self.host.clone()),
            (LABEL_EXPIRES, seconds(expires).to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Forgets the instance: nothing of it is left anywhere.
    pub fn unregister(&self) {
        remove_instance(&self.folder, &self.id);
    }

    fn lock_of(&self, instance: &str) -> Lock {
        // A label is anybody's word: only what can be one of our names is looked up.
        if instance.is_empty() || !instance.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Lock::Missing;
        }
        if instance == self.id {
            return Lock::Held;
        }
        try_lock(&self.folder.join(instance).with_extension(LOCK_SUFFIX))
    }

    /// All sandboxes' containers that the engine has.
    pub async fn survey(&self, engine: &dyn Engine) -> Result<Vec<SandboxSummary>, Error> {
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
                let lock = self.lock_of(&labels.instance);
                let state = decide(&labels, &self.host, lock, now);
                let Labels { sandbox: id, container, instance, created, expires, .. } = labels;
                SandboxSummary { id, container, instance, state, created, expires }
            })
            .collect();
        found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(found)
    }

    /// Removes what is left over, and with [`Force::Yes`] what is unknown.
    pub async fn gc(&self, engine: &dyn Engine, options: GcOptions) -> Result<GcReport, Error> {
        let mut report = GcReport::default();
        let survey = self.survey(engine).await?;
        for sandbox in survey {
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
            self.forget_dead_instances(&report);
        }
        Ok(report)
    }

    /// Removes the files of dead instances that have no containers here any more; not those of
    /// another engine's. A young one keeps its lock file for a while: the engine may still be
    /// making a container for a controller that died while it asked.
    fn forget_dead_instances(&self, report: &GcReport) {
        let failed = report.failed.iter().map(|failure| &failure.sandbox);
        let busy: HashSet<&str> =
            report.kept.iter().chain(failed).map(|sandbox| sandbox.instance.as_str()).collect();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let Some(id) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            if path.extension().is_none_or(|extension| extension != LOCK_SUFFIX)
                || busy.contains(id)
                || self.lock_of(id) != Lock::Free
                || fs::read_to_string(&path).ok().as_ref() != Some(&self.endpoint)
            {
                continue;
            }
            let modified = path.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|made| made.elapsed().ok());
            if age.is_some_and(|age| age > GRACE) {
                remove_instance(&self.folder, id);
            } else {
                remove_spool(&self.folder, id);
            }
        }
    }
}

fn remove_instance(folder: &Path, id: &str) {
    remove_spool(folder, id);
    _ = fs::remove_file(folder.join(id).with_extension(LOCK_SUFFIX));
}

/// What was given as input may be secret, and large.
fn remove_spool(folder: &Path, id: &str) {
    _ = fs::remove_dir_all(folder.join(id).with_extension(SPOOL_SUFFIX));
}

/// Makes a folder that is ours alone, or finds it so.
fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is not a directory"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to somebody else"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("others can write to it"));
    }
    Ok(())
}

/// What the lock of an instance says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// The instance lives.
    Held,
    /// It is dead.
    Free,
    /// It was never one of this state folder, or it is gone altogether.
    Missing,
}

fn try_lock(path: &Path) -> Lock {
    match fs::File::open(path) {
        Ok(file) => match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Lock::Free,
            Err(Errno::WOULDBLOCK) => Lock::Held,
            Err(_) => Lock::Missing,
        },
        Err(_) => Lock::Missing,
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
    /// `None` where they are not what a controller writes: then it is not ours to judge.
    fn read(listed: Listed) -> Option<Self> {
        let mut labels: HashMap<String, String> = listed.labels.into_iter().collect();
        let expires: u64 = labels.get(LABEL_EXPIRES)?.parse().ok()?;
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
    fn a_lock_is_held_for_as_long_as_its_instance_lives() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let me = Instance::register(&state, "boot", "unix:///x").unwrap();
        let other = Instance::register(&state, "boot", "unix:///x").unwrap();
        assert_eq!(me.lock_of(&other.id), Lock::Held);
        assert_eq!(me.lock_of(&me.id), Lock::Held);
        let id = other.id.clone();
        drop(other);
        assert_eq!(me.lock_of(&id), Lock::Free);
        remove_instance(&me.folder, &id);
        assert_eq!(me.lock_of(&id), Lock::Missing);
        for id in ["", "../../etc/passwd", "zz"] {
            assert_eq!(me.lock_of(id), Lock::Missing, "{id}");
        }
        me.unregister();
        assert_eq!(fs::read_dir(&me.folder).unwrap().count(), 0);
    }

    #[test]
    fn a_state_folder_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Instance::register(dir.path(), "boot", "").unwrap_err().full_message();
        assert!(error.contains("others can write"), "{error}");
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        assert!(Instance::register(&file, "boot", "").is_err());
    }

    #[test]
    fn labels_that_no_controller_wrote_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let me = Instance::register(&dir.path().join("state"), "boot", "").unwrap();
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let good = Listed {
            id: "c".into(),
            labels: me.labels("s", expires),
            running: true,
            created: SystemTime::UNIX_EPOCH,
        };
        let read = Labels::read(good.clone()).unwrap();
        assert_eq!(
            (read.sandbox.as_str(), read.instance, read.expires),
            ("s", me.id.clone(), expires)
        );
        for (index, value) in [(3, "soon"), (3, "-1"), (3, "99999999999999999999")] {
            let mut bad = good.clone();
            bad.labels[index].1 = value.into();
            assert!(Labels::read(bad).is_none(), "{value}");
        }
        for index in 0..4 {
            let mut bad = good.clone();
            bad.labels.remove(index);
            assert!(Labels::read(bad).is_none());
        }
    }
}
