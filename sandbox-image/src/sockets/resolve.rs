//! Resolves a command's path to a socket, and checks whether that is the sandbox's own.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use super::paths::open_path;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// The most components that are looked up for one path, including those of its links: a lookup
/// blocks the connections of other commands.
const MAX_STEPS: usize = 512;

/// Where sockets belong to the sandbox. Only processes inside can create one there.
const OWN: [&str; 2] = ["/tmp", "/dev/shm"];

/// The file systems that belong to the sandbox, by device number: in memory, created with the
/// sandbox, and not part of any mount of the host, under any path.
#[derive(Debug)]
pub struct OwnFileSystems(Vec<u64>);

impl OwnFileSystems {
    /// Finds them. `mounts` are the device numbers of the mounts of the host.
    pub fn find(mounts: &[u64]) -> Self {
        let root = open_path("/").and_then(fstat).map(|stat| stat.st_dev).ok();
        let own = OWN.iter().filter_map(|path| {
            let there = open_path(path).ok()?;
            let in_memory = fstatfs(&there).ok()?.f_type == libc::TMPFS_MAGIC;
            let device = fstat(&there).ok()?.st_dev;
            let is_own = in_memory && root != Some(device) && !mounts.contains(&device);
            is_own.then_some(device)
        });
        Self(own.collect())
    }

    /// Whether this file is on one of them.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn has(&self, fd: &OwnedFd) -> Result<bool, Errno> {
        Ok(self.0.contains(&fstat(fd)?.st_dev))
    }
}

/// Resolves a path from its starting directory, as the kernel would, but refuses magic links: their
/// target depends on the process that resolves them.
///
/// # Errors
///
/// OS errors, and `EACCES` at a magic link.
pub fn resolve(root: &OwnedFd, start: OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut here = start;
    let mut rest = path.to_vec();
    let (mut links, mut steps) = (0, 0);
    loop {
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let end = rest[slashes..].iter().position(|&byte| byte == b'/');
        let end = end.map_or(rest.len(), |end| slashes + end);
        if slashes == end {
            // A trailing slash requires a directory.
            return if slashes > 0 { enter(&here, b".") } else { Ok(here) };
        }
        steps += 1;
        if steps > MAX_STEPS {
            return Err(Errno::LOOP);
        }
        let next = enter(&here, &rest[slashes..end])?;
        rest.drain(..end);
        if FileType::from_raw_mode(fstat(&next)?.st_mode) != FileType::Symlink {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        if fstatfs(&next)?.f_type == libc::PROC_SUPER_MAGIC {
            return Err(Errno::ACCESS);
        }
        let target = readlinkat(&next, c"", Vec::new())?.into_bytes();
        if target.starts_with(b"/") {
            here = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        }
        rest.splice(..0, target);
    }
}

/// Opens the next component of a path; a link itself.
fn enter(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    /// The inode that a path resolves to from this directory, or its error.
    fn found(directory: &Path, path: &str) -> Result<u64, Errno> {
        let directory = open_path(directory.to_str().unwrap()).unwrap();
        resolve(&open_path("/").unwrap(), directory, path.as_bytes())
            .map(|found| fstat(found).unwrap().st_ino)
    }

    #[test]
    fn a_path_leads_where_the_kernel_would_go() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _listener = UnixListener::bind(at("s")).unwrap();
        let socket = found(folder.path(), "s").unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        symlink("s", at("link")).unwrap();
        symlink(at("s"), at("absolute")).unwrap();
        symlink("../link", at("dir/up")).unwrap();
        symlink("dir", at("to-dir")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for path in ["./s", ".//dir/../s", "link", "absolute", "dir/up", "to-dir/up", "to-dir/../s"]
        {
            assert_eq!(found(folder.path(), path), Ok(socket), "{path}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let absolute = format!("{}/s", folder.path().display());
        let start = open_path("/").unwrap();
        let root = open_path("/").unwrap();
        let resolved = resolve(&root, start, absolute.as_bytes()).unwrap();
        assert_eq!(fstat(resolved).unwrap().st_ino, socket);
        for (path, errno) in [
            ("none", Errno::NOENT),
            ("s/", Errno::NOTDIR),
            ("s/x", Errno::NOTDIR),
            ("link/", Errno::NOTDIR),
            ("loop", Errno::LOOP),
        ] {
            assert_eq!(found(folder.path(), path), Err(errno), "{path}");
        }
        assert_eq!(found(elsewhere.path(), "s"), Err(Errno::NOENT));
    }

    #[test]
    fn no_magic_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        drop(listener);
        symlink("/proc/self/cwd", folder.path().join("hidden")).unwrap();
        for path in ["hidden/s", "../../../../proc/self/root/tmp", "../../../../proc/self"] {
            let refused = found(folder.path(), path);
            assert!(matches!(refused, Err(Errno::ACCESS | Errno::NOENT)), "{path}: {refused:?}");
        }
        assert_eq!(found(Path::new("/"), "proc/self/root/tmp"), Err(Errno::ACCESS));
        assert_eq!(found(Path::new("/"), "dev/fd/0"), Err(Errno::ACCESS));
    }

    #[test]
    fn host_mounts_are_not_the_sandboxs_own() {
        let device = |path| fstat(open_path(path).unwrap()).unwrap().st_dev;
        let shared = device("/dev/shm");
        let memory = fstatfs(open_path("/dev/shm").unwrap()).unwrap().f_type == libc::TMPFS_MAGIC;
        assert!(memory, "/dev/shm of this machine is in memory");
        let fd = open_path("/dev/shm").unwrap();
        assert_eq!(OwnFileSystems::find(&[]).has(&fd), Ok(true));
        assert_eq!(OwnFileSystems::find(&[shared]).has(&fd), Ok(false));
        let root = open_path("/").unwrap();
        assert_eq!(OwnFileSystems::find(&[]).has(&root), Ok(false));
    }
}
