//! Directories that their user holds by a lock, which the kernel releases however the user ends.
//! The lock is on the directory, or on a file in it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Whether the lock of a file is held. Never blocks.
#[must_use]
pub fn is_locked_file(file: impl Arg) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(CWD, file, flags, Mode::empty());
    // Another's look takes it for a moment too, and shares it.
    opened.is_ok_and(|file| {
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

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
