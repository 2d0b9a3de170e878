//! Checks of the directories that a sandbox mounts from the host, and of other mounts below them.
//!
//! A bind mount shows a sandbox a single filesystem. It does not show what the host has mounted
//! below it: the sandbox would work in the directory underneath the host's mount, which nobody
//! looks at, and could detach that mount by removing or replacing the directory. Nothing inside the
//! sandbox can recognise such a directory, so the controller checks: a mount point below is refused
//! at the launch, and one that appears later ends the sandbox. It also refuses places whose content
//! affects the host: pseudo filesystems, devices, and the controller's own directories.
//!
//! Everything is compared by its [`Location`](table::Location) in a filesystem, not by its path: a
//! bind mount or a link gives the same directory another path.

mod policy;
pub(crate) mod refusal;
mod table;
mod watch;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_engine::Source;
use sandbox_protocol::message::Access;

pub(crate) use self::policy::ReservedDirs;
use self::policy::{MountPointsBelow, MountPolicy};
use self::refusal::MountRefusal;
use self::table::{MountTable, Opened};
use self::watch::MountChanges;
pub(crate) use self::watch::MountWatch;
use crate::error::Error;
use crate::mounts::policy::refused;

/// How often an inconclusive table is read again before a sandbox is ended because of it: a read
/// can fail, or race with a change.
const READ_ATTEMPTS: u32 = 5;

/// The mounts of one sandbox: checked at the launch, and watched during its life.
#[derive(Debug)]
pub(crate) struct MountGuard {
    watch: MountWatch,
    folders: ReservedDirs,
    /// `None` before the first check: a sandbox without mounts of the host needs no mount table.
    rules: Option<Rules>,
    watched: Vec<Watched>,
    hidden: Vec<String>,
}

/// The rules, and the changes of the table.
#[derive(Debug)]
struct Rules {
    policy: MountPolicy,
    changes: MountChanges,
}

/// A mounted file or directory.
#[derive(Debug)]
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
        let (watch, folders) = (watch.clone(), folders.clone());
        Self { watch, folders, rules: None, watched: Vec::new(), hidden: Vec::new() }
    }

    fn policy(&mut self) -> Result<&MountPolicy, Error> {
        let rules = match self.rules.take() {
            Some(rules) => rules,
            None => {
                let subscribed = self.watch.subscribe();
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
        let mount = self.check(what, source, target, access, MountPointsBelow::Refused)?;
        let (what, path) = (what.to_owned(), PathBuf::from(&source.path));
        self.watched.push(Watched { what, path, file: source.file.clone(), mount });
        Ok(())
    }

    /// Refuses a directory that no sandbox may use as its root.
    pub fn add_root(&mut self, source: &Source) -> Result<(), Error> {
        let below = MountPointsBelow::Harmless;
        self.check("the root directory", source, "", Access::Read, below).map(|_mount| ())
    }

    /// Returns the id of its mount.
    fn check(
        &mut self,
        what: &str,
        source: &Source,
        target: &str,
        access: Access,
        below: MountPointsBelow,
    ) -> Result<u64, Error> {
        let refused = |reason| refused(what, Path::new(&source.path), reason);
        let policy = self.policy()?;
        let opened = Opened::new(source.file.as_fd());
        let opened = opened.map_err(|error| refused(MountRefusal::unknown(&error)))?;
        let hidden = policy.check(opened, access, below).map_err(refused)?;
        let hidden: Vec<String> =
            hidden.into_iter().map(|path| format!("{target}/{path}")).collect();
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
    fn check(&self, table: &Result<Arc<MountTable>, Arc<io::Error>>) -> Option<MountLost> {
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
mod tests {
    use std::fs::{self, File};
    use std::task::Poll;

    use super::table::MOUNTINFO;
    use super::watch::MadeUp;
    use super::*;

    fn watched(dir: &Path) -> Watched {
        let file: Arc<OwnedFd> = Arc::new(File::open(dir).unwrap().into());
        let mount = Opened::new(file.as_fd()).unwrap().mount;
        Watched { what: "the io dir".to_owned(), path: dir.to_owned(), file, mount }
    }

    fn table(text: &str) -> io::Result<MountTable> {
        MountTable::parse(text.as_bytes())
    }

    fn this() -> String {
        String::from_utf8(fs::read(MOUNTINFO).unwrap()).unwrap()
    }

    fn failure() -> io::Result<MountTable> {
        Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()))
    }

    #[tokio::test]
    async fn a_table_that_cannot_be_read_or_lacks_a_mount_ends_nothing_before_it_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let watched = [watched(dir.path())];
        type Bad = fn() -> io::Result<MountTable>;
        let bad: [(Bad, MountRefusal); 2] = [
            (failure, MountRefusal::unknown(&failure().unwrap_err())),
            (|| table(""), MountRefusal::NotListed),
        ];
        for (bad, reason) in bad {
            let (made_up, changes) = MadeUp::new();
            let mut lost = std::pin::pin!(lost(changes, &watched));
            // One successful read in between resets the counter.
            for attempts in [READ_ATTEMPTS, READ_ATTEMPTS] {
                for _ in 0..attempts {
                    made_up.publish(bad());
                    assert!(poll_once(&mut lost).await.is_pending());
                    made_up.is_asked_again().await;
                }
                made_up.publish(table(&this()));
                assert!(poll_once(&mut lost).await.is_pending());
            }
            for _ in 0..READ_ATTEMPTS {
                made_up.publish(bad());
                assert!(poll_once(&mut lost).await.is_pending());
            }
            made_up.publish(bad());
            assert_eq!(lost.await.reason, reason);
        }
    }

    #[tokio::test]
    async fn a_mount_point_below_ends_it_at_the_first_look() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().canonicalize().unwrap().join("m");
        let watched = [watched(dir.path())];
        let (made_up, changes) = MadeUp::new();
        let mount = watched[0].mount;
        let line = format!("{} {mount} 0:999 / {} rw - tmpfs t rw\n", u64::MAX, below.display());
        made_up.publish(table(&(this() + &line)));
        let lost = lost(changes, &watched).await;
        assert_eq!(lost.reason, MountRefusal::MountPoint { mount_point: below });
    }

    #[tokio::test]
    async fn a_sandbox_with_nothing_of_the_host_needs_no_mount_table() {
        // Neither can be located: it would be refused if it were checked.
        let folder = PathBuf::from("/proc/self/fd/999999/x");
        let folders = ReservedDirs {
            state_dir: folder.clone(),
            data_dir: folder.clone(),
            scratch_dir: folder,
        };
        let mut guard = MountGuard::new(&MountWatch::default(), &folders);
        guard.check_path("the io dir", Path::new("")).unwrap();
        assert!(guard.rules.is_none());
        assert!(guard.hidden().is_empty());
        let mut lost = std::pin::pin!(guard.lost());
        assert!(poll_once(&mut lost).await.is_pending());
    }

    #[tokio::test]
    async fn files_checked_at_launch_are_not_kept_open() {
        let dir = tempfile::tempdir().unwrap();
        let (state, data) = (dir.path().join("state"), dir.path().join("data"));
        let folders =
            ReservedDirs { scratch_dir: state.join("scratch"), state_dir: state, data_dir: data };
        let io = dir.path().join("io");
        fs::create_dir(&io).unwrap();
        let file = Arc::new(File::open(&io).unwrap().into());
        let source = Source::new(io.to_str().unwrap().to_owned(), file);
        let mut guard = MountGuard::new(&MountWatch::default(), &folders);
        guard.add("the io dir", &source, "/io", Access::Write).unwrap();
        let table = Arc::downgrade(guard.policy().unwrap().table());
        assert!(table.upgrade().is_some());
        let mut lost = std::pin::pin!(guard.lost());
        assert!(poll_once(&mut lost).await.is_pending());
        assert!(table.upgrade().is_none());
    }

    /// Polls it once.
    async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
        std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context)))
            .await
    }
}
