//! Directories that their user holds by a lock, which the kernel releases however the user ends.
//! The lock is on the directory, or on a file in it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::{open_directory, random_hex};

/// How often to try again if a sweep removes a directory before it is locked.
const TRIES: usize = 100;

/// Creates a directory that only this user can access, and locks it. Returns its name, which is
/// `prefix` and random digits, and the lock.
///
/// # Errors
///
/// If it cannot be created; `EWOULDBLOCK` or `ENOENT` if sweeps remove it each time before it is locked.
pub fn create_locked_dir(parent: impl AsFd, prefix: &str) -> Result<(String, OwnedFd)> {
    let mut tries = 1..=TRIES;
    loop {
        let name = format!("{prefix}{}", random_hex::<8>());
        mkdirat(&parent, &name, Mode::RWXU)?;
        match lock_directory(&parent, &name) {
            // A sweep was faster than the lock.
            Err(Errno::NOENT | Errno::WOULDBLOCK) if tries.next().is_some() => {}
            locked => return Ok((name, locked?)),
        }
    }
}

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
    let lock = open_directory(parent, name)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    match fstat(&lock)?.st_nlink {
        0 => Err(Errno::NOENT),
        _ => Ok(lock),
    }
}
