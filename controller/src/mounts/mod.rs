//! What a sandbox has mounted of the host, and what else is mounted there.
//!
//! A bind mount shows a sandbox one file system alone. What the host has mounted below, it does not
//! see: it works in the directory underneath, where nobody else looks, and by removing or replacing
//! that directory it detaches the host's mount. Nothing in the sandbox can tell such a directory from
//! another one, so the controller looks: a mount point below is refused at the launch, and one that
//! appears later ends the sandbox. Refused as well are places whose content decides what the host
//! does: pseudo file systems, devices, and the controller's own folders.
//!
//! Everything is compared by its [`Location`](table::Location) in a file system, not by its path: a
//! bind mount or a link gives the same directory another path.

mod policy;
mod table;
mod watch;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_protocol::message::Access;

pub use self::policy::MountRefusal;
pub(crate) use self::policy::OwnFolders;
use self::policy::{MountPointsBelow, MountPolicy};
use self::table::MountTable;
use self::watch::MountChanges;
pub(crate) use self::watch::MountWatch;
use crate::engine::Source;
use crate::error::Error;

/// The mounts of one sandbox: checked as it is launched, watched for as long as it lives.
#[derive(Debug)]
pub(crate) struct MountGuard {
    policy: MountPolicy,
    changes: MountChanges,
    watched: Vec<Watched>,
    hidden: Vec<String>,
}

/// A file or directory that a sandbox has.
#[derive(Debug)]
struct Watched {
    /// As messages name it: `the io dir`.
    what: String,
    path: PathBuf,
    file: Arc<OwnedFd>,
}

/// A mount of a sandbox that cannot stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLost {
    what: String,
    path: PathBuf,
    reason: MountRefusal,
}

impl MountGuard {
    pub fn new(watch: &MountWatch, folders: &OwnFolders) -> Result<Self, Error> {
        let unreadable = |source| Error::MountTable { source };
        // In this order, so that no change falls between the two.
        let changes = watch.subscribe().map_err(unreadable)?;
        let table = MountTable::read().map_err(unreadable)?;
        let policy = MountPolicy::new(table, folders)?;
        Ok(Self { policy, changes, watched: Vec::new(), hidden: Vec::new() })
    }

    /// Refuses a place for a directory that may have to be made.
    pub fn check_path(&self, what: &str, path: &Path) -> Result<(), Error> {
        if path.as_os_str().is_empty() {
            // Nothing is made there: who would make it says so.
            return Ok(());
        }
        self.policy.check_path(path).map_err(|reason| refused(what, path, reason))
    }

    /// Refuses what must not be mounted at the guest path `target`, and watches the rest.
    pub fn add(
        &mut self,
        what: &str,
        source: &Source,
        target: &str,
        access: Access,
    ) -> Result<(), Error> {
        self.check(what, source, target, access, MountPointsBelow::Refused)?;
        let path = PathBuf::from(&source.path);
        self.watched.push(Watched { what: what.to_owned(), path, file: source.file.clone() });
        Ok(())
    }

    /// Refuses what no sandbox may be made from.
    pub fn add_root(&mut self, source: &Source) -> Result<(), Error> {
        self.check("the root directory", source, "", Access::Read, MountPointsBelow::Harmless)
    }

    fn check(
        &mut self,
        what: &str,
        source: &Source,
        target: &str,
        access: Access,
        below: MountPointsBelow,
    ) -> Result<(), Error> {
        let hidden = self.policy.check(source.file.as_fd(), access, below);
        let hidden = hidden.map_err(|reason| refused(what, Path::new(&source.path), reason))?;
        self.hidden.extend(hidden.into_iter().map(|path| format!("{target}/{path}")));
        Ok(())
    }

    /// The guest paths of the controller's own folders, in what a sandbox may only read.
    pub fn hidden(&self) -> Vec<String> {
        self.hidden.clone()
    }

    /// Waits until a mount cannot stay.
    pub async fn lost(self) -> MountLost {
        let Self { mut changes, watched, .. } = self;
        loop {
            let table = changes.next().await;
            if let Some(lost) = watched.iter().find_map(|watched| watched.check(&table)) {
                return lost;
            }
        }
    }
}

impl Watched {
    fn check(&self, table: &io::Result<MountTable>) -> Option<MountLost> {
        let reason = match table {
            Ok(table) => policy::check_mounts(table, self.file.as_fd()).err()?,
            Err(error) => MountRefusal::Unknown { reason: error.to_string() },
        };
        let (what, path) = (self.what.clone(), self.path.clone());
        Some(MountLost { what, path, reason })
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

fn refused(what: &str, path: &Path, source: MountRefusal) -> Error {
    Error::MountRefused { what: what.to_owned(), path: path.to_owned(), source }
}
