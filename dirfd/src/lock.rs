//! Directories that their user holds by a lock, which the kernel releases however the user ends.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Opens and locks a directory that still exists.
///
/// # Errors
///
/// `EWOULDBLOCK` if someone else holds it, `ENOENT` if it was removed before it could be locked.
pub fn lock_directory(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = openat(parent, name, flags, Mode::empty())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    match fstat(&lock)?.st_nlink {
        0 => Err(Errno::NOENT),
        _ => Ok(lock),
    }
}
