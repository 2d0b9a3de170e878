//! The root of a container: the directories and files that mounts and programs need, made beneath
//! its descriptor, such that nothing in an image leads them elsewhere.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;
use sandbox_helper::mounts::{NODEV, NOEXEC, NOSUID, RDONLY, Reach};

use super::mounts::{attach, make, restrict};
use crate::failed::{Failed, Step as _};
use crate::mount_ns::{LAYER, LOWER, ROOT, enter};
use crate::rootless::Rootless;

const FOLDER: Mode = Mode::from_raw_mode(0o755);

/// The root, while it is made.
pub struct Root {
    mount: OwnedFd,
}

impl Root {
    /// An empty one in memory, of which nothing is executed: the agent needs no path.
    pub fn empty() -> Result<Self, Failed> {
        let options = [("size", "256k".to_owned()), ("mode", "755".to_owned())];
        Self::attached(make("tmpfs", "tmpfs", &options, NOSUID | NODEV | NOEXEC)?)
    }

    /// A directory below a layer in memory, which gets what a container needs and the directory
    /// lacks. So the directory is never written to.
    pub fn above(directory: OwnedFd, rootless: Option<&Rootless>) -> Result<Self, Failed> {
        restrict(&directory, RDONLY | NOSUID | NODEV, Reach::Itself)
            .step("make the directory of the root read-only")?;
        let at = |path: &'static str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).step_at("open", path)
        };
        attach(&directory, at(LOWER)?).step("mount the directory of the root")?;
        let options = [("mode", "700".to_owned()), ("size", "1m".to_owned())];
        let layer = make("tmpfs", "tmpfs", &options, NOSUID | NODEV)?;
        for folder in ["upper", "work"] {
            rustix::fs::mkdirat(&layer, folder, FOLDER).step_at("create", folder)?;
        }
        attach(&layer, at(LAYER)?).step("mount the layer of the root")?;
        // The directory cannot control the overlay: extended attributes of lower layers are not
        // honoured.
        let mut options = vec![
            ("lowerdir", LOWER.to_owned()),
            ("upperdir", format!("{LAYER}/upper")),
            ("workdir", format!("{LAYER}/work")),
            ("redirect_dir", "nofollow".to_owned()),
            ("metacopy", "off".to_owned()),
            ("index", "off".to_owned()),
        ];
        if rootless.is_some() {
            // Its own attributes have a name that a user may set, and so may the directory. They could
            // rename or hide files of the one directory, but lead to no other.
            options.push(("userxattr", String::new()));
        }
        let overlay = make("overlay", "overlay", &options, NOSUID | NODEV);
        let overlay = overlay.map_err(|failed| match rootless {
            None => failed,
            Some(_) => Failed(format!(
                "{failed}; without root the kernel must allow overlays in user namespaces"
            )),
        })?;
        // It has mounts of its own of both, and these are detached with everything else that is not in the root.
        Self::attached(overlay)
    }

    fn attached(mount: OwnedFd) -> Result<Self, Failed> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, c"", CWD, ROOT, flags).step_at("mount at", ROOT)?;
        Ok(Self { mount })
    }

    /// Attaches a mount at a path of the root: a directory, or a file if the mount is one.
    pub fn mount(&self, mount: &OwnedFd, target: &str) -> Result<(), Failed> {
        let mount_it = || {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(mount)?.st_mode);
            let at = if kind == FileType::Directory {
                self.real_folder(target)?
            } else {
                let (folder, name) = split(target)?;
                new_file(&self.real_folder(folder)?, name)?
            };
            io::Result::Ok(attach(mount, at)?)
        };
        mount_it().step_at("mount at", target)
    }

    /// Covers a directory in a mount by a mount.
    pub fn cover(&self, mount: &OwnedFd, target: &str) -> Result<(), Failed> {
        self.open_folder(target).and_then(|at| Ok(attach(mount, at)?)).step_at("cover", target)
    }

    /// A link where a process in the container looks for it, unless something is there.
    pub fn link(&self, path: &str, target: &str) -> Result<(), Failed> {
        let made = split(path).and_then(|(folder, name)| {
            _ = rustix::fs::symlinkat(target, self.folder(folder)?, name);
            Ok(())
        });
        made.step_at("create", path)
    }

    /// A file of this content, where a process in the container looks for it, in place of what is there.
    pub fn write(&self, path: &str, content: &str) -> Result<(), Failed> {
        let written = split(path).and_then(|(folder, name)| {
            let mut file = File::from(new_file(&self.folder(folder)?, name)?);
            file.write_all(content.as_bytes())
        });
        written.step_at("write", path)
    }

    /// Makes it the root of this process's mount namespace, detaches everything else, and makes it
    /// read-only. What is mounted in it may be writable. Every mount in it has been made private and
    /// without set-id bits once more, all at once.
    pub fn enter(self) -> Result<(), Failed> {
        restrict(&self.mount, NOSUID, Reach::All).step("restrict all mounts of the container")?;
        let entered = rustix::process::fchdir(&self.mount).and_then(|()| enter());
        entered.step("make the container's root this process's")?;
        restrict(&self.mount, RDONLY, Reach::Itself).step("make the root read-only")
    }

    /// Creates the directory at a path of the root, replacing anything else on the way, even links,
    /// so that the path leads to it.
    pub fn real_folder(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = self.mount.try_clone()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
            match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                Ok(FileType::Directory) => {}
                Ok(_) => {
                    rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
                    rustix::fs::mkdirat(&folder, name, FOLDER)?;
                }
                Err(Errno::NOENT) => rustix::fs::mkdirat(&folder, name, FOLDER)?,
                Err(error) => return Err(error.into()),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        }
        Ok(folder)
    }

    /// The directory at a path of the root, as a process in the container resolves it: links are
    /// followed, never out of the root. Missing directories are created, replacing other files.
    fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = self.mount.try_clone()?;
        let mut so_far = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            so_far = format!("{so_far}/{name}");
            folder = match self.open_folder(&so_far) {
                Ok(folder) => folder,
                Err(_) => {
                    _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
                    rustix::fs::mkdirat(&folder, name, FOLDER)?;
                    self.open_folder(&so_far)?
                }
            };
        }
        Ok(folder)
    }

    fn open_folder(&self, path: &str) -> io::Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = || rustix::fs::openat2(&self.mount, path, folder, Mode::empty(), inside);
        // A concurrent rename on the host: retry.
        let opened = (0..100).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::AGAIN)));
        Ok(opened.unwrap_or(Err(Errno::AGAIN))?)
    }
}

/// The path of a file's directory, and its name.
fn split(path: &str) -> io::Result<(&str, &str)> {
    Ok(path.rsplit_once('/').ok_or(Errno::INVAL)?)
}

/// A new file, replacing what is there unless it is a directory.
fn new_file(folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
    let file = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, file, Mode::from_raw_mode(0o644))?)
}
