//! Checks of the directories that a sandbox mounts from the host, and of other mounts below them.
//!
//! A bind mount shows a sandbox a single filesystem. It does not show what the host has mounted
//! below it: the sandbox would work in the directory hidden under the host's mount, and could
//! detach that mount by removing or replacing the directory. The sandbox cannot detect this, so the
//! controller checks: it refuses a mount point below a mount at the launch, and ends the sandbox if
//! one appears later. It also refuses places whose content affects the host: pseudo filesystems,
//! devices, and the controller's own directories.
//!
//! Everything is compared by its [`Location`](sandbox_engine::mount_table::Location) in a
//! filesystem, not by its path: a bind mount or a link gives the same directory another path.

mod policy;
pub(crate) mod refusal;
mod watch;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sandbox_engine::Source;
use sandbox_engine::mount_table::{MountTable, Opened};
use sandbox_protocol::message::Access;

pub(crate) use self::policy::ReservedDirs;
use self::policy::{MountPointsBelow, MountPolicy};
use self::refusal::MountRefusal;
pub(crate) use self::watch::MountWatch;
use self::watch::{MountChanges, MountReader, Table};
use crate::error::Error;
use crate::mounts::policy::refused;

/// How often an inconclusive table is read again before a sandbox is ended because of it: a read
/// can fail, or race with a change.
const READ_ATTEMPTS: u32 = 5;
/// How often the mounts of a sandbox in use are checked: the kernel reports no rename of a
/// directory above a mount point.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The locations of the host's files and directories, independent of their paths: a bind mount or a
/// link adds further paths.
#[derive(Debug)]
pub struct HostPlaces(Option<MountTable>);

impl HostPlaces {
    /// As they are now.
    pub fn now() -> Self {
        // Without a table nothing can be compared, nor mounted.
        Self(MountTable::now().ok())
    }

    /// Whether a path leads to a directory or below it, or will once what is missing has been
    /// created.
    pub fn contains(&self, directory: &Path, path: &Path) -> bool {
        let locate = |path| self.0.as_ref()?.locate_path(path).ok()?;
        let places = locate(directory).zip(locate(path));
        places.is_some_and(|(of, it)| of.location.path_to(&it.location).is_some())
    }

    /// The same for a file that may be a link: its own location, or its target's.
    pub(crate) fn contains_file(&self, directory: &Path, file: &Path) -> bool {
        [file.parent(), Some(file)].into_iter().flatten().any(|it| self.contains(directory, it))
    }
}

/// Refuses to write a file in these directories. The file may be missing, or in no directory, such
/// as a pipe.
pub(crate) fn check_output(folders: &ReservedDirs, path: &Path) -> Result<(), MountRefusal> {
    let Some(table) = HostPlaces::now().0 else { return Ok(()) };
    match MountPolicy::new(Arc::new(table), folders) {
        Ok(policy) => policy.check_output(path),
        // Such as a directory in a mount that is not visible: a launch reports the error.
        Err(_) => Ok(()),
    }
}

/// The mounts of one sandbox: checked at the launch, and watched during its life.
#[derive(Debug)]
pub(crate) struct MountGuard {
    table: MountWatch,
    folders: ReservedDirs,
    /// `None` before the first check: a sandbox without mounts of the host needs no mount table.
    rules: Option<Rules>,
    watched: Arc<Vec<Watched>>,
    hidden: Vec<String>,
}

/// The rules, and the changes of the table.
#[derive(Debug)]
struct Rules {
    policy: MountPolicy,
    changes: MountChanges,
}

/// A mounted file or directory.
#[derive(Debug, Clone)]
struct Watched {
    /// Its name in messages: `the io dir`.
    what: String,
    path: PathBuf,
    file: Arc<OwnedFd>,
    /// The id of the mount that `file` was opened on.
    mount: u64,
}

/// A mount of a sandbox that must not continue to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLost {
    what: String,
    path: PathBuf,
    reason: MountRefusal,
}

impl MountGuard {
    pub fn new(watch: &MountWatch, folders: &ReservedDirs) -> Self {
        let (table, folders) = (watch.clone(), folders.clone());
        Self { table, folders, rules: None, watched: Arc::default(), hidden: Vec::new() }
    }

    fn policy(&mut self) -> Result<&MountPolicy, Error> {
        let rules = match self.rules.take() {
            Some(rules) => rules,
            None => {
                let subscribed = self.table.subscribe();
                let (table, changes) = subscribed.map_err(|source| Error::MountTable { source })?;
                Rules { policy: MountPolicy::new(table, &self.folders)?, changes }
            }
        };
        Ok(&self.rules.insert(rules).policy)
    }

    /// Refuses a path at which a directory may have to be created.
    pub fn check_path(&mut self, what: &str, path: &Path) -> Result<(), Error> {
        if path.as_os_str().is_empty() {
            // Nothing is created there: the creation itself reports the error.
            return Ok(());
        }
        self.policy()?.check_path(path).map_err(|reason| refused(what, path, reason))
    }

    /// Checks a source for the guest path `target`: refuses it, or watches it.
    pub fn add(
        &mut self,
        what: &str,
        source: &Source,
        target: &str,
        access: Access,
    ) -> Result<(), Error> {
        let mount = self.check(what, source, |policy, opened| {
            let hidden = policy.check(opened, access, MountPointsBelow::Refused)?;
            Ok(guest_paths(target, &hidden))
        })?;
        self.watch(what, source, mount);
        Ok(())
    }

    /// The same of a directory that belongs to sandboxctl alone, and is where no other may be.
    pub fn add_own(&mut self, what: &str, source: &Source) -> Result<(), Error> {
        let mount = self.check(what, source, |policy, opened| {
            policy.check_mounts_below(opened).map(|()| Vec::new())
        })?;
        self.watch(what, source, mount);
        Ok(())
    }

    fn watch(&mut self, what: &str, source: &Source, mount: u64) {
        let (what, path, file) = (what.to_owned(), (&source.path).into(), source.file.clone());
        // Not shared before the launch is over.
        Arc::make_mut(&mut self.watched).push(Watched { what, path, file, mount });
    }

    /// Refuses a directory that no sandbox may use as its root.
    pub fn add_root(&mut self, source: &Source) -> Result<(), Error> {
        let checked = self.check("the root directory", source, |policy, opened| {
            let hidden = policy.check(opened, Access::Read, MountPointsBelow::Harmless)?;
            Ok(guest_paths("", &hidden))
        });
        checked.map(|_mount| ())
    }

    /// Checks a source by `rules`, which return the guest paths to hide. Returns the id of its
    /// mount.
    fn check(
        &mut self,
        what: &str,
        source: &Source,
        rules: impl FnOnce(&MountPolicy, Opened<'_>) -> Result<Vec<String>, MountRefusal>,
    ) -> Result<u64, Error> {
        let refused = |reason| refused(what, Path::new(&source.path), reason);
        let policy = self.policy()?;
        let opened = Opened::new(source.file.as_fd());
        let opened = opened.map_err(|error| refused(MountRefusal::unknown(&error)))?;
        let hidden = rules(policy, opened).map_err(refused)?;
        policy.check_servers(opened).map_err(refused)?;
        self.hidden.extend(hidden);
        Ok(opened.mount)
    }

    /// The guest paths of the controller's own directories within read-only mounts.
    pub fn hidden(&self) -> Vec<String> {
        self.hidden.clone()
    }

    /// Checks the mounts against the table of now, if it has changed since they were checked.
    pub fn check_again(&self) -> Result<(), Error> {
        let table = self.rules.as_ref().and_then(|rules| rules.changes.latest());
        let lost = table.and_then(|table| self.watched.iter().find_map(|it| it.check(&table)));
        lost.map_or(Ok(()), |lost| Err(lost.into()))
    }

    /// For checks of the mounts when the sandbox is used.
    pub fn looks(&self) -> MountLooks {
        let reader = self.rules.as_ref().map(|rules| rules.changes.reader.clone());
        MountLooks {
            reader: reader.filter(|_| !self.watched.is_empty()),
            watched: self.watched.clone(),
            examined: Mutex::default(),
        }
    }

    /// Waits until a mount must not continue to exist.
    pub async fn lost(self) -> MountLost {
        let Self { rules, watched, .. } = self;
        // The rules, with their own table, were only for the launch.
        let changes = rules.map(|Rules { changes, policy: _ }| changes);
        match changes {
            Some(changes) if !watched.is_empty() => lost(changes, &watched).await,
            _ => std::future::pending().await,
        }
    }
}

/// The guest paths of what is at these paths below `target`.
fn guest_paths(target: &str, below: &[&str]) -> Vec<String> {
    below.iter().map(|path| format!("{target}/{path}")).collect()
}

/// Checks the mounts of a sandbox whenever it is used: the kernel reports no rename of a directory
/// above a mount point, and an idle sandbox is not watched.
#[derive(Debug)]
pub(crate) struct MountLooks {
    /// `None` without mounts of the host.
    reader: Option<Arc<MountReader>>,
    watched: Arc<Vec<Watched>>,
    /// The last table by which nothing was lost.
    examined: Mutex<Weak<MountTable>>,
}

impl MountLooks {
    /// A mount that certainly must not continue to exist, by the table as it was less than `age`
    /// ago. Each table is examined once.
    pub async fn lost(&self, age: Duration) -> Option<MountLost> {
        let table = self.reader.as_ref()?.table(age).await;
        let mut examined = crate::lock(&self.examined);
        if let Ok(table) = &table
            && examined.as_ptr() == Arc::as_ptr(table)
        {
            return None;
        }
        let lost: Vec<_> = self.watched.iter().filter_map(|it| it.check(&table)).collect();
        if let Ok(table) = &table
            && lost.is_empty()
        {
            *examined = Arc::downgrade(table);
        }
        lost.into_iter().find(MountLost::is_certain)
    }
}

/// Waits until one of these must not stay mounted.
async fn lost(mut changes: MountChanges, watched: &[Watched]) -> MountLost {
    let mut attempts = 0;
    loop {
        let table = changes.next().await;
        let mut lost: Vec<_> = watched.iter().filter_map(|watched| watched.check(&table)).collect();
        // Certain findings first.
        lost.sort_by_key(|lost| !lost.is_certain());
        match lost.into_iter().next() {
            None => attempts = 0,
            Some(lost) if lost.is_certain() || attempts == READ_ATTEMPTS => return lost,
            Some(_) => {
                attempts += 1;
                changes.read_again();
            }
        }
    }
}

impl Watched {
    fn check(&self, table: &Table) -> Option<MountLost> {
        let opened = Opened { file: self.file.as_fd(), mount: self.mount };
        let reason = match table {
            Ok(table) => policy::check_mounts(table, opened).err()?,
            Err(error) => MountRefusal::unknown(error),
        };
        let (what, path) = (self.what.clone(), self.path.clone());
        Some(MountLost { what, path, reason })
    }
}

impl MountLost {
    /// Whether reading the table again could not change the result.
    const fn is_certain(&self) -> bool {
        !matches!(self.reason, MountRefusal::NotListed | MountRefusal::Unknown { .. })
    }
}

impl From<MountLost> for Error {
    fn from(lost: MountLost) -> Self {
        let MountLost { what, path, reason } = lost;
        Self::MountLost { what, path, source: reason }
    }
}

#[cfg(test)]
impl MountLost {
    pub fn made_up() -> Self {
        let reason = MountRefusal::MountPoint { mount_point: "/x/m".into() };
        Self { what: "the io dir".into(), path: "/x".into(), reason }
    }
}

#[cfg(test)]
pub(crate) mod tests;
