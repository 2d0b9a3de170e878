//! Directories used as root filesystems of sandboxes that support commands.
//!
//! The helper adds a layer in memory on top, so they are never written to. Their content is
//! untrusted.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use sandbox_dirfd::path_of;

use super::privileges::Rootless;
use crate::error::EngineError;
use crate::mount_table::{MountTable, Opened};
use crate::{Bind, Prepared, ProgramRoot, Source};

/// There is no daemon that could find an image by name.
pub(super) fn no_images() -> EngineError {
    EngineError::UnusableRoot {
        reason: "the embedded engine has no images".to_owned(),
        hint: Some(
            "--image-archive FILE takes what `docker save` wrote, and --rootfs DIR a directory; a \
             service takes them as flags of `serve`",
        ),
    }
}

/// Opens a directory on the host. Without root it must be this user's: the helper creates files in the
/// layer above it, which the kernel allows only the owner of its directories.
pub(super) fn open(directory: &Path, user: Rootless) -> Result<Prepared, EngineError> {
    let refuse = |why: &str| {
        let directory = directory.display();
        let reason = format!("cannot make a sandbox from {directory}: {why}");
        EngineError::UnusableRoot { reason, hint: None }
    };
    let failed = |errno: Errno| refuse(&io::Error::from(errno).to_string());
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, path, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(refuse("it is not a directory"));
    }
    if let Some((uid, _)) = user
        && stat.st_uid != uid
    {
        return Err(refuse("only its owner can, or root"));
    }
    // The path of the opened directory, with links resolved.
    let path = path_of(&opened).map_err(failed)?;
    let mount = rustix::fs::fstatvfs(&opened).map_err(failed)?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(refuse("it is on a mount with the noexec option"));
    }
    let path = path.into_os_string().into_string().map_err(|_| refuse("its path is not UTF-8"))?;
    let source = Source::new(path, Arc::new(opened));
    Ok(Prepared {
        root: ProgramRoot::Directory(source.clone()),
        env: Vec::new(),
        workdir: String::new(),
        named: Some(source),
    })
}

/// Refuses a root that a mount could change, or that would change with one: the source of a mount
/// is below the root, or the root is below the source, under any path.
pub(super) fn check(root: &Source, mounts: &[Bind]) -> Result<(), EngineError> {
    let mut mounts = mounts.iter().filter(|bind| !bind.source.is_private()).peekable();
    if mounts.peek().is_none() {
        return Ok(());
    }
    let failed = |error: io::Error| EngineError::Refused(format!("cannot locate a mount: {error}"));
    let table = MountTable::now().map_err(failed)?;
    let locate = |source: &Source| {
        let located = table.locate(Opened::new(source.file.as_fd())?)?;
        located.map(|it| it.location).ok_or_else(|| {
            let why =
                format!("{} is on a mount that /proc/self/mountinfo does not list", source.path);
            io::Error::other(why)
        })
    };
    let root_at = locate(root).map_err(failed)?;
    for Bind { source, target, read_only } in mounts {
        let at = locate(source).map_err(failed)?;
        let is_inside = root_at.path_to(&at).is_some();
        let is_around_it = at.path_to(&root_at).is_some() && !read_only;
        if is_inside || is_around_it {
            let (root, path) = (&root.path, &source.path);
            let how = if is_inside { "is inside it" } else { "contains it, and is writable" };
            return Err(EngineError::UnusableRoot {
                reason: format!(
                    "cannot make a sandbox from {root}: {path}, to be mounted at {target}, \
                     {how}"
                ),
                hint: Some("select another directory with --io-dir or --in"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::slice;

    fn source(path: &Path) -> Source {
        let file = Arc::new(fs::File::open(path).unwrap().into());
        Source::new(path.to_str().unwrap().to_owned(), file)
    }

    fn bind(path: &Path, read_only: bool) -> Bind {
        Bind { source: source(path), target: "/io".to_owned(), read_only }
    }

    #[test]
    fn a_directory_is_what_it_was_when_it_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (root, link) = (dir.path().join("root"), dir.path().join("link"));
        fs::create_dir(&root).unwrap();
        symlink(&root, &link).unwrap();
        let prepared = open(&link, None).unwrap();
        let ProgramRoot::Directory(source) = prepared.root else { panic!("{prepared:?}") };
        assert_eq!(source.path, root.canonicalize().unwrap().to_str().unwrap());
    }

    #[test]
    fn root_that_is_not_a_plain_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, reason) in
            [(&file, "not a directory"), (&dir.path().join("missing"), "No such file")]
        {
            let error = open(path, None).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_root_that_a_mount_could_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (root, beside) = (dir.path().join("root"), dir.path().join("root-2"));
        fs::create_dir_all(root.join("inside")).unwrap();
        fs::create_dir(&beside).unwrap();
        let check = |bind: Bind| check(&source(&root), &[bind]).map_err(|error| error.to_string());
        check(bind(&beside, false)).unwrap();
        check(bind(dir.path(), true)).unwrap();
        for (around, reason) in [
            (dir.path(), "contains it"),
            (&root, "is inside it"),
            (&root.join("inside"), "is inside"),
        ] {
            let error = check(bind(around, false)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(check(bind(&root.join("inside"), true)).is_err());
    }

    #[test]
    fn a_root_without_mounts_of_the_host_needs_no_mount_table() {
        // The table does not list the mount of a pipe.
        let (pipe, _writer) = io::pipe().unwrap();
        let pipe = Arc::new(pipe.into());
        let root = Source::new("/a pipe".to_owned(), Arc::clone(&pipe));
        let private = Bind {
            source: Source::private(pipe, None),
            target: "/io".to_owned(),
            read_only: false,
        };
        check(&root, &[]).unwrap();
        check(&root, slice::from_ref(&private)).unwrap();
        check(&root, &[private, bind(Path::new("/"), true)]).unwrap_err();
    }

    /// Mounting needs root.
    #[test]
    fn a_root_is_known_by_any_path_of_it() {
        use rustix::mount::{UnmountFlags, mount_bind, unmount};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("around/root/inside")).unwrap();
        fs::create_dir(at("alias")).unwrap();
        for (aliased, is_refused) in [
            ("around/root", [true, true]),
            ("around/root/inside", [true, true]),
            ("around", [true, false]),
        ] {
            mount_bind(at(aliased), at("alias")).unwrap();
            // Each opens the mount, which goes when the last of them is closed.
            let refused = [false, true].map(|read_only| {
                check(&source(&at("around/root")), &[bind(&at("alias"), read_only)]).is_err()
            });
            let other = check(&source(&at("alias")), &[bind(&at("around/root/inside"), true)]);
            unmount(at("alias"), UnmountFlags::DETACH).unwrap();
            assert_eq!(refused, is_refused, "{aliased}");
            assert!(other.is_err(), "{aliased}");
        }
    }
}
