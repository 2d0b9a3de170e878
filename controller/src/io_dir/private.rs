//! Private io dirs, which no caller names: a file system whose size the kernel enforces
//! ([`BoundedDir`]), or, where there can be none, a directory ([`FreshDir`]). They are removed with their
//! sandbox, unless they are kept for others.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use rustix::fs::{AtFlags, Mode, chmodat};
use sandbox_dirfd::{Links, create_private_dir};
use sandbox_engine::Source;
use sandbox_staging::bounded::BoundedDir;
use sandbox_staging::fresh::{FreshDir, make_io_dir};

use super::{IoDir, PrivateFiles};
use crate::error::Error;

/// What a kept io dir is to be, if there is none yet.
#[derive(Debug)]
pub(crate) enum Wanted {
    Image,
    /// And why, if it was to be an image.
    Directory(Option<String>),
}

impl IoDir {
    /// One that the kernel bounds, and that ends with its sandbox.
    pub fn bounded(dir: BoundedDir) -> Result<Self, Error> {
        Ok(Self { private: Mutex::new(Some(PrivateFiles::Bounded)), ..Self::of_bounded(dir)? })
    }

    fn of_bounded(dir: BoundedDir) -> Result<Self, Error> {
        let refuse = |error: io::Error| Error::PrivateIoDir { reason: error.to_string() };
        let stat = rustix::fs::fstat(dir.files()).map_err(|errno| refuse(errno.into()))?;
        let files = dir.files().clone();
        let source = Source::private(files.clone(), dir.device().cloned());
        Ok(Self {
            is_private: true,
            bounded: Some(Arc::new(dir)),
            ..Self::opened(PathBuf::new(), source, files, &stat)
        })
    }

    /// Opens what is kept at `path`, or creates it: by `image`, or a directory for `owner` that nothing
    /// bounds. What is a directory stays one.
    pub fn kept(
        path: &Path,
        owner: Option<(u32, u32)>,
        wanted: Wanted,
        image: impl FnOnce() -> io::Result<BoundedDir>,
    ) -> Result<Self, Error> {
        let refuse = |error: io::Error| {
            let reason = format!("{}: {error}", path.display());
            Error::PrivateIoDir { reason }
        };
        let (is_new, wanted) = match (fs::symlink_metadata(path), wanted) {
            (Ok(found), _) if found.is_file() => {
                return Self::of_bounded(image().map_err(refuse)?);
            }
            (Ok(_), Wanted::Image) => (false, Some("it was made as a directory".to_owned())),
            (Ok(_), Wanted::Directory(reason)) => (false, reason),
            (Err(_), Wanted::Image) => match image() {
                Ok(image) => return Self::of_bounded(image),
                Err(error) => {
                    tracing::warn!(%error, "a kept io dir is watched, not bounded");
                    (true, Some(error.to_string()))
                }
            },
            (Err(_), Wanted::Directory(reason)) => (true, reason),
        };
        if is_new {
            make_directory(path, owner).map_err(refuse)?;
        }
        let io_dir = Self::open_at(path, Links::Follow);
        let io_dir = io_dir.map_err(|why| refuse(io::Error::other(why)))?;
        Ok(Self { is_private: true, unbounded: wanted, ..io_dir })
    }

    /// Lets every user write to it: the sandbox's cannot be made its owner.
    pub fn admit_every_user(&self) -> Result<(), Error> {
        chmodat(self.fd(), ".", Mode::from_raw_mode(0o777), AtFlags::empty())
            .map_err(|errno| Error::PrivateIoDir { reason: errno.to_string() })
    }

    /// Gives the image of a kept io dir its name: a container has it mounted.
    pub fn keep_image(&self) -> Result<(), Error> {
        let named = self.bounded.as_ref().map_or(Ok(()), |bounded| bounded.keep_image());
        named.map_err(|error| Error::PrivateIoDir { reason: error.to_string() })
    }

    /// Creates one on disk, in `scratch`, for `owner`: a directory that nothing bounds, for the
    /// `reason` if it was to be bounded.
    pub fn fresh(
        scratch: &Path,
        owner: Option<(u32, u32)>,
        reason: Option<String>,
    ) -> Result<Self, Error> {
        let refuse = |source| Error::Scratch { path: scratch.to_owned(), source };
        let fresh = FreshDir::create(scratch, owner).map_err(refuse)?;
        let io_dir = Self::open_at(&fresh.path(), Links::Follow)
            .map_err(|why| refuse(io::Error::other(why)))?;
        let private = Mutex::new(Some(PrivateFiles::Fresh(fresh)));
        Ok(Self { is_private: true, private, unbounded: reason, ..io_dir })
    }
}

fn make_directory(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    create_private_dir(parent)?;
    match make_io_dir(fs::File::open(parent)?, name, owner) {
        // Another sandbox with this path has made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
