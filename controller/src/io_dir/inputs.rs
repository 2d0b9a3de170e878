//! Inputs on the host: opened once, held open, and never looked up by path again.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sandbox_api::{Input, InputSource};
use sandbox_dirfd::{Access, Identity, Links, check_access, open_path, path_of};
use sandbox_engine::Source;
use sandbox_protocol::path::MAX_COMPONENT_BYTES;

use crate::error::Error;

/// An input that is ready to be mounted.
#[derive(Debug)]
pub(crate) struct OpenInput {
    /// The source of the mount. Held open, so that no other file can get its inode number.
    pub source: Source,
    pub identity: Identity,
    /// `None` if it is the caller's own file.
    pub spool: Option<Spool>,
}

/// A file with the bytes of an input. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Spool(PathBuf);

impl Drop for Spool {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// Opens the inputs. Bytes are spooled to files in `spool_dir`.
pub(crate) fn open_inputs(
    inputs: Vec<Input>,
    links: Links,
    spool_dir: &Path,
) -> Result<Vec<OpenInput>, Error> {
    let mut names = HashSet::new();
    inputs
        .into_iter()
        .map(|input| {
            let is_at_a_path = input.is_at_a_path();
            let Input { name, source } = input;
            let refuse = |reason: String| Error::Input { name: name.clone(), reason };
            // The plan has checked the paths.
            if !is_at_a_path {
                check_name(&name).map_err(|reason| refuse(reason.to_owned()))?;
            }
            if !names.insert(name.clone()) {
                return Err(refuse("there are two of this name".to_owned()));
            }
            open_input(source, links, spool_dir).map_err(|error| refuse(error.to_string()))
        })
        .collect()
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the name is empty"),
        "." | ".." => Err("the name is not a file name"),
        _ if name.contains('/') => Err("the name contains a '/'"),
        _ if name.contains('\0') => Err("the name contains a NUL byte"),
        _ if name.len() > MAX_COMPONENT_BYTES => Err("the name is longer than 255 bytes"),
        _ => Ok(()),
    }
}

fn open_input(source: InputSource, links: Links, spool_dir: &Path) -> io::Result<OpenInput> {
    let (path, links, spool) = match source {
        InputSource::Path(path) => (std::path::absolute(path)?, links, None),
        InputSource::Bytes(content) => {
            let spool = spool(spool_dir, &content)?;
            (spool.0.clone(), Links::Follow, Some(spool))
        }
    };
    let fd = open_path(&path, OFlags::PATH, links).map_err(|errno| match (errno, links) {
        (Errno::LOOP, Links::Refuse) => io::Error::other("a symbolic link is in its path"),
        (errno, _) => errno.into(),
    })?;
    // A path without links, for an engine that opens it again. The opened files are compared.
    let path = path_of(&fd)?;
    let stat = rustix::fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        // Read access alone suffices to list names, but the sandbox also enters it.
        FileType::Directory => check_access(&fd, Access::READ_OK | Access::EXEC_OK)?,
        other => return Err(io::Error::other(format!("it is a {}", kind_name(other)))),
    }
    // Only opening it shows whether it is readable. Do not wait for another process's lease.
    let readable = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(readable, flags, Mode::empty())?;
    let source = path.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
    Ok(OpenInput {
        source: Source::new(source.to_owned(), Arc::new(fd)),
        identity: Identity::of(&stat),
        spool,
    })
}

const fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Symlink => "symbolic link",
        FileType::RegularFile | FileType::Directory | FileType::Unknown => "special file",
    }
}

fn spool(folder: &Path, content: &[u8]) -> io::Result<Spool> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::create_dir_all(folder)?;
    let path = folder.join(sandbox_dirfd::random_hex::<8>());
    // Readable for the sandbox's user; the directories above deny access to everyone else.
    let mut file = fs::File::options().write(true).create_new(true).mode(0o444).open(&path)?;
    let spool = Spool(path);
    file.write_all(content)?;
    Ok(spool)
}

#[cfg(test)]
mod tests;
