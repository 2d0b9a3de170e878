//! The files and directories of the host that no sandbox may mount.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_engine::mount_table::{Located, Location, MountTable, Opened};
use sandbox_protocol::message::Access;

use super::refusal::{DEVICES, MountRefusal};
use crate::error::Error;

/// Filesystems that are interfaces of the kernel or of the host's services, and do not store files:
/// reading them reveals the host's state, and writing to them changes it. The memory of `hugetlbfs`
/// does not count against any limit of a sandbox. Filesystems that store files (including tmpfs,
/// overlay, FUSE and network filesystems) may be mounted.
const PSEUDO_FILE_SYSTEMS: &[&str] = &[
    "autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs",
    "devpts", "devtmpfs", "efivarfs", "functionfs", "fusectl", "hugetlbfs", "mqueue", "nfsd",
    "nsfs", "proc", "pstore", "resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs",
    "sysfs", "tracefs", "xenfs",
];

/// The directories of a controller, which may not exist yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReservedDirs {
    /// Each with what it is: `state directory`.
    pub own: Vec<(&'static str, PathBuf)>,
    /// The stores of programs that are executed as root, if this user is root.
    pub store_dir: Option<PathBuf>,
    /// Files of the caller's that no sandbox may write. They may not exist yet.
    pub files: Vec<PathBuf>,
}

/// The rules, for one state of the mount table.
#[derive(Debug)]
pub(super) struct MountPolicy {
    table: Arc<MountTable>,
    own: Vec<ReservedDir>,
    files: Vec<(PathBuf, Location)>,
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
    /// Allow it: it is the lower layer of an overlay, which is never written to. But not the root
    /// of the whole system, by any path.
    Harmless,
}

impl MountPolicy {
    pub fn new(table: Arc<MountTable>, folders: &ReservedDirs) -> Result<Self, Error> {
        let locate = |what: &str, path: &Path| match place(&table, path) {
            Ok(located) => Ok(located.location),
            Err(reason) => Err(refused(what, path, reason)),
        };
        let reserve = |name: &'static str, path: &PathBuf| {
            let location = locate(&format!("the {name}"), path)?;
            Ok::<_, Error>(ReservedDir { name, path: path.clone(), location })
        };
        let own = folders.own.iter().map(|&(name, ref path)| reserve(name, path));
        let mut own = own.collect::<Result<Vec<_>, _>>()?;
        if let Some(path) = &folders.store_dir {
            let programs = reserve("directory of programs", path)?;
            // Each is a file system of its own.
            let stores = table.roots_below(&programs.location).cloned();
            own.extend(stores.map(|location| ReservedDir {
                path: path.clone(),
                location,
                ..programs
            }));
            own.push(programs);
        }
        let devices = locate("the directory of devices", Path::new(DEVICES))?;
        // A path without a location cannot be written.
        let file = |path: &PathBuf| Some((path.clone(), place(&table, path).ok()?.location));
        let files = folders.files.iter().filter_map(file).collect();
        Ok(Self { own, files, devices, table })
    }

    #[cfg(test)]
    pub const fn table(&self) -> &Arc<MountTable> {
        &self.table
    }

    /// Refuses a path at which nothing may be created.
    pub fn check_path(&self, path: &Path) -> Result<(), MountRefusal> {
        let located = place(&self.table, path)?;
        self.check_place(&located)?;
        self.check_served(&located)
    }

    /// Refuses a path of the controller's own directories, of a running server's or of a pseudo
    /// filesystem, for files that are written and not mounted.
    pub fn check_output(&self, path: &Path) -> Result<(), MountRefusal> {
        // Such as a device, a terminal, a pipe.
        let is_stream = path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir());
        match place(&self.table, path) {
            Ok(Located { fs_type, .. }) if !is_stream && PSEUDO_FILE_SYSTEMS.contains(&fs_type) => {
                Err(MountRefusal::PseudoFileSystem { fs_type: fs_type.to_owned() })
            }
            Ok(located) => {
                let is_in = |own: &&ReservedDir| located.location.path_to(&own.location).is_some();
                if !path.exists()
                    && let Some(ReservedDir { name, path, location: _ }) =
                        self.own.iter().find(is_in)
                {
                    // It would be created with content from a sandbox.
                    return Err(MountRefusal::ParentOfReservedDir { name, folder: path.clone() });
                }
                self.check_own(&located.location)?;
                if is_stream { Ok(()) } else { self.check_served(&located) }
            }
            // Nor is it a file of another mount namespace.
            Err(MountRefusal::NotListed) if is_stream => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Refuses a source that may not be mounted. Returns what to hide in it from a sandbox: the
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
            let folder = path.clone();
            let Some(rest) = rest.to_str().filter(|_| access == Access::Read) else {
                return Err(MountRefusal::ParentOfReservedDir { name, folder });
            };
            // A missing one could be created while the sandbox runs: creating it now allows hiding
            // it.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|error| MountRefusal::unhidden(name, folder, &error))?;
            hidden.push(rest);
        }
        // What is below another one is hidden with it.
        let all = hidden.clone();
        hidden.retain(|it| !all.iter().any(|of| of != it && Path::new(it).starts_with(of)));
        let is_in = |(_, file): &&(PathBuf, Location)| located.location.path_to(file).is_some();
        if access == Access::Write
            && let Some((file, _)) = self.files.iter().find(is_in)
        {
            return Err(MountRefusal::ParentOfReservedFile { file: file.clone() });
        }
        match below {
            MountPointsBelow::Refused => {
                let below = check_below(&self.table, &located);
                // A mount of the sandbox's own, such as its programs, is not one to be advised to unmount.
                below.map_err(|refusal| self.of_own(&located.location, refusal))?;
            }
            MountPointsBelow::Harmless => {
                let root = place(&self.table, Path::new("/"));
                if root.is_ok_and(|root| located.location.path_to(&root.location).is_some()) {
                    return Err(MountRefusal::Root);
                }
            }
        }
        Ok(hidden)
    }

    /// The refusal of a mount point: of the controller's own directory below this place, if it is
    /// mounted there.
    fn of_own(&self, place: &Location, refusal: MountRefusal) -> MountRefusal {
        let MountRefusal::MountPoint { mount_point } = &refusal else { return refusal };
        let is_in = |own: &&ReservedDir| {
            place.path_to(&own.location).is_some() && mount_point.starts_with(&own.path)
        };
        match self.own.iter().find(is_in) {
            Some(ReservedDir { name, path, location: _ }) => {
                MountRefusal::ParentOfReservedDir { name, folder: path.clone() }
            }
            None => refusal,
        }
    }

    /// Refuses a source in the data directory of a running server.
    pub fn check_servers(&self, opened: Opened<'_>) -> Result<(), MountRefusal> {
        self.check_served(&locate(&self.table, opened)?)
    }

    /// Refuses what is in the data directory of a running server, except io dirs in the
    /// controller's own.
    fn check_served(&self, located: &Located<'_>) -> Result<(), MountRefusal> {
        if self.own.iter().any(|own| own.location.path_to(&located.location).is_some()) {
            return Ok(());
        }
        located.served_dir().map_or(Ok(()), |folder| Err(MountRefusal::ServedDir { folder }))
    }

    /// Refuses only an open file or directory below which anything is mounted.
    pub fn check_mounts_below(&self, opened: Opened<'_>) -> Result<(), MountRefusal> {
        check_mounts(&self.table, opened)
    }

    fn check_place(&self, located: &Located<'_>) -> Result<(), MountRefusal> {
        let Located { location, fs_type, .. } = located;
        if PSEUDO_FILE_SYSTEMS.contains(fs_type) {
            return Err(MountRefusal::PseudoFileSystem { fs_type: (*fs_type).to_owned() });
        }
        if self.devices.path_to(location).is_some() {
            return Err(MountRefusal::Devices);
        }
        self.check_own(location)
    }

    fn check_own(&self, location: &Location) -> Result<(), MountRefusal> {
        match self.own.iter().find(|own| own.location.path_to(location).is_some()) {
            Some(ReservedDir { name, path, location: _ }) => {
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
mod tests;
