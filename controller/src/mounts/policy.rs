//! The files and directories of the host that no sandbox may mount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_protocol::message::Access;

use super::refusal::{DEVICES, MountRefusal};
use super::table::{Located, Location, MountTable, Opened};
use crate::error::Error;

/// Filesystems that are interfaces of the kernel or of the host's services, and do not store files:
/// reading them reveals the host's state, and writing to them changes it. The memory of `hugetlbfs`
/// does not count against any limit of a sandbox. Filesystems that store files (including tmpfs,
/// overlay, FUSE and network filesystems) may be mounted.
const PSEUDO_FILE_SYSTEMS: &[&str] = &[
    "autofs",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "functionfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
    "xenfs",
];

/// The directories of a controller, which may not exist yet.
#[derive(Debug, Clone)]
pub(crate) struct ReservedDirs {
    /// Locks, records, caches, programs: in the runtime directory.
    pub state_dir: PathBuf,
    /// The embedded engine's data directory, even if another engine is in use: its files are
    /// executed as root.
    pub data_dir: PathBuf,
    /// Fresh io dirs of other sandboxes.
    pub scratch_dir: PathBuf,
}

/// The rules, for one state of the mount table.
#[derive(Debug)]
pub(super) struct MountPolicy {
    table: Arc<MountTable>,
    own: [ReservedDir; 3],
    devices: Location,
}

#[derive(Debug)]
struct ReservedDir {
    name: &'static str,
    path: PathBuf,
    location: Location,
}

/// How to treat a directory with mount points below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountPointsBelow {
    /// Refuse it.
    Refused,
    /// Allow it: it is the lower layer of an overlay, which is never written to.
    Harmless,
}

impl MountPolicy {
    pub fn new(table: Arc<MountTable>, folders: &ReservedDirs) -> Result<Self, Error> {
        let locate = |what: &str, path: &Path| match place(&table, path) {
            Ok(located) => Ok(located.location),
            Err(reason) => Err(refused(what, path, reason)),
        };
        let own = |name: &'static str, path: &PathBuf| {
            let location = locate(&format!("the {name}"), path)?;
            Ok::<_, Error>(ReservedDir { name, path: path.clone(), location })
        };
        let own = [
            own("state directory", &folders.state_dir)?,
            own("data directory", &folders.data_dir)?,
            own("scratch directory", &folders.scratch_dir)?,
        ];
        let devices = locate("the directory of devices", Path::new(DEVICES))?;
        Ok(Self { own, devices, table })
    }

    #[cfg(test)]
    pub const fn table(&self) -> &Arc<MountTable> {
        &self.table
    }

    /// Refuses a path at which nothing may be created.
    pub fn check_path(&self, path: &Path) -> Result<(), MountRefusal> {
        self.check_place(&place(&self.table, path)?)
    }

    /// Refuses a source that may not be mounted. Returns what a sandbox must not see of it: the
    /// paths of the controller's own directories below it.
    pub fn check(
        &self,
        opened: Opened<'_>,
        access: Access,
        below: MountPointsBelow,
    ) -> Result<Vec<&str>, MountRefusal> {
        let located = locate(&self.table, opened)?;
        self.check_place(&located)?;
        let mut hidden = Vec::new();
        for ReservedDir { name, path, location } in &self.own {
            let Some(rest) = located.location.path_to(location) else { continue };
            match rest.to_str() {
                // A nonexistent directory has nothing to see.
                Some(_) if access == Access::Read && !path.is_dir() => {}
                Some(rest) if access == Access::Read => hidden.push(rest),
                _ => {
                    let folder = path.clone();
                    return Err(MountRefusal::ParentOfReservedDir { name, folder });
                }
            }
        }
        match below {
            MountPointsBelow::Refused => check_below(&self.table, &located)?,
            MountPointsBelow::Harmless => {}
        }
        Ok(hidden)
    }

    fn check_place(&self, located: &Located<'_>) -> Result<(), MountRefusal> {
        let Located { location, fs_type } = located;
        if PSEUDO_FILE_SYSTEMS.contains(fs_type) {
            return Err(MountRefusal::PseudoFileSystem { fs_type: (*fs_type).to_owned() });
        }
        if self.devices.path_to(location).is_some() {
            return Err(MountRefusal::Devices);
        }
        match self.own.iter().find(|folder| folder.location.path_to(location).is_some()) {
            Some(ReservedDir { name, path, .. }) => {
                Err(MountRefusal::ReservedDir { name, folder: path.clone() })
            }
            None => Ok(()),
        }
    }
}

/// Refuses an open file or directory below which anything is mounted.
pub(super) fn check_mounts(table: &MountTable, opened: Opened<'_>) -> Result<(), MountRefusal> {
    check_below(table, &locate(table, opened)?)
}

fn locate<'a>(table: &'a MountTable, opened: Opened<'_>) -> Result<Located<'a>, MountRefusal> {
    listed(table.locate(opened))
}

fn place<'a>(table: &'a MountTable, path: &Path) -> Result<Located<'a>, MountRefusal> {
    listed(table.locate_path(path))
}

fn listed(located: io::Result<Option<Located<'_>>>) -> Result<Located<'_>, MountRefusal> {
    located.map_err(|error| MountRefusal::unknown(&error))?.ok_or(MountRefusal::NotListed)
}

fn check_below(table: &MountTable, located: &Located<'_>) -> Result<(), MountRefusal> {
    match table.mount_point_below(&located.location) {
        Some(point) => Err(MountRefusal::MountPoint { mount_point: point.to_owned() }),
        None => Ok(()),
    }
}

/// The error of a refused mount.
pub(super) fn refused(what: &str, path: &Path, source: MountRefusal) -> Error {
    Error::MountRefused { what: what.to_owned(), path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;

    use crate::mounts::table::MOUNTINFO;

    struct Host {
        dir: tempfile::TempDir,
    }

    impl Host {
        /// `own/state` exists, `own/data` does not.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("own/state/instances")).unwrap();
            fs::create_dir_all(dir.path().join("other")).unwrap();
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn policy(&self) -> MountPolicy {
            let folders = ReservedDirs {
                state_dir: self.path("own/state"),
                data_dir: self.path("own/data"),
                scratch_dir: self.path("own/scratch"),
            };
            let table = MountTable::parse(&fs::read(MOUNTINFO).unwrap()).unwrap();
            MountPolicy::new(Arc::new(table), &folders).unwrap()
        }

        fn check(&self, name: &str, access: Access) -> Result<Vec<String>, MountRefusal> {
            let opened = File::open(self.path(name)).unwrap();
            let opened = Opened::new(opened.as_fd()).unwrap();
            let policy = self.policy();
            let hidden = policy.check(opened, access, MountPointsBelow::Refused)?;
            Ok(hidden.into_iter().map(str::to_owned).collect())
        }
    }

    #[test]
    fn own_folders_are_refused_whatever_they_are_called() {
        let host = Host::new();
        symlink(host.path("own"), host.path("link")).unwrap();
        for access in [Access::Read, Access::Write] {
            for name in ["own/state", "own/state/instances", "link/state", "other/../link/state/."]
            {
                let refused = host.check(name, access).unwrap_err();
                assert!(matches!(refused, MountRefusal::ReservedDir { .. }), "{name}: {refused}");
            }
            assert_eq!(host.check("other", access), Ok(Vec::new()));
        }
        let refused = |name: &str| host.policy().check_path(&host.path(name)).is_err();
        for (name, expected) in [
            ("own/state/new", true),
            ("own/data", true),
            ("own/data/a/b", true),
            ("own/scratch/a", true),
            ("link/data/a", true),
            ("own/database", false),
            ("own", false),
            ("other/a", false),
        ] {
            assert_eq!(refused(name), expected, "{name}");
        }
    }

    #[test]
    fn parent_of_own_folder_is_refused_for_writing_and_hides_it_for_reading() {
        let host = Host::new();
        for name in ["own", "."] {
            let refused = host.check(name, Access::Write).unwrap_err();
            assert!(matches!(refused, MountRefusal::ParentOfReservedDir { .. }), "{refused}");
        }
        assert_eq!(host.check("own", Access::Read), Ok(vec!["state".to_owned()]));
        // Someone with write access could still create the missing directory.
        fs::rename(host.path("own/state"), host.path("other/state")).unwrap();
        assert_eq!(host.check("own", Access::Read), Ok(Vec::new()));
        host.check("own", Access::Write).unwrap_err();
    }

    #[test]
    fn pseudo_file_systems_and_devices_are_refused() {
        let host = Host::new();
        let policy = host.policy();
        for path in ["/proc", "/proc/version", "/proc/self/fd", "/sys", "/dev", "/dev/pts"] {
            let opened = File::open(path).unwrap();
            let opened = Opened::new(opened.as_fd()).unwrap();
            let read = policy.check(opened, Access::Read, MountPointsBelow::Harmless);
            assert!(
                matches!(read, Err(MountRefusal::PseudoFileSystem { .. } | MountRefusal::Devices)),
                "{path}: {read:?}"
            );
            policy.check_path(Path::new(path)).unwrap_err();
        }
    }
}
