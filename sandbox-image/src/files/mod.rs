//! The files of a sandbox: the only way in which anything in the agent touches one.

mod error;

use std::os::fd::OwnedFd;
use std::sync::{Mutex, Weak};

use sandbox_protocol::path::GuestPath;

pub use error::FileError;

/// How a file is opened, as `io.open` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// `r`.
    Read,
    /// `w`: made, or emptied.
    Write,
    /// `a`: made where it is missing; every write goes to the end.
    Append,
    /// `r+`.
    ReadUpdate,
    /// `w+`.
    WriteUpdate,
    /// `a+`.
    AppendUpdate,
}

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    /// The descriptor (`O_APPEND` in the append modes).
    pub fd: OwnedFd,
    /// Which file it is.
    pub path: GuestPath,
    /// How it was opened.
    pub mode: OpenMode,
    /// Its size when it was opened (0 for `w` and `w+`).
    pub size: u64,
}

/// An open handle with bytes that are not written yet.
pub trait Flush: Send {
    /// Writes what is buffered, as far as it goes.
    fn flush_best_effort(&mut self);
}

/// The files of one run.
pub struct Files {}

impl Files {
    /// Opens a regular file. The write modes make missing parents.
    pub fn open(&self, written: &[u8], mode: OpenMode) -> Result<OpenFile, FileError> {
        todo!("{written:?} {mode:?}")
    }
    /// The names in a directory, sorted.
    pub fn list(&self, written: &[u8]) -> Result<Vec<Vec<u8>>, FileError> {
        todo!("{written:?}")
    }
    /// Removes a file, or a symbolic link itself.
    pub fn remove(&self, written: &[u8]) -> Result<(), FileError> {
        todo!("{written:?}")
    }
    /// Renames within one mount.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        todo!("{from:?} {to:?}")
    }
    /// Counts bytes that are about to be written. All or nothing.
    pub fn charge(&self, bytes: u64) -> Result<(), FileError> {
        todo!("{bytes}")
    }
    /// Bytes written in this run.
    pub fn written(&self) -> u64 {
        todo!()
    }
    /// Call once a handle, before its first write reaches the file.
    pub fn touch_before_write(&self, path: &GuestPath, mode: OpenMode) {
        todo!("{path:?} {mode:?}")
    }
    /// Call where that first write failed and wrote nothing.
    pub fn first_write_failed(&self, path: &GuestPath) {
        todo!("{path:?}")
    }
    /// Remembers a handle, so that a run that is given up can still flush it.
    pub fn register(&self, handle: Weak<Mutex<dyn Flush>>) {
        drop(handle);
    }
}
