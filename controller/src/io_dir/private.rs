//! Private io dirs, which only their sandbox sees and which are removed with it: a file system whose
//! size the kernel enforces ([`BoundedDir`]), or, where there can be none, a directory ([`FreshDir`]).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandbox_dirfd::Links;
use sandbox_engine::Source;
use sandbox_staging::bounded::BoundedDir;
use sandbox_staging::fresh::FreshDir;

use super::{IoDir, PrivateFiles};
use crate::error::Error;

impl IoDir {
    /// One that the kernel bounds.
    pub fn bounded(dir: BoundedDir) -> Result<Self, Error> {
        let refuse = |error: io::Error| Error::PrivateIoDir { reason: error.to_string() };
        let stat = rustix::fs::fstat(dir.files()).map_err(|errno| refuse(errno.into()))?;
        let files = dir.files().clone();
        let source = Source::private(files.clone(), dir.device().cloned());
        Ok(Self {
            is_private: true,
            private: Mutex::new(Some(PrivateFiles::Bounded)),
            bounded: Some(Arc::new(dir)),
            ..Self::opened(PathBuf::new(), source, files, &stat)
        })
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
