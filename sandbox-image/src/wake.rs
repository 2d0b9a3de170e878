//! Wakes a thread that waits in `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when it is woken, until that is consumed.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Creates one that has not been woken.
    ///
    /// # Errors
    ///
    /// If no descriptor is available.
    pub fn new() -> rustix::io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wakes it. Never blocks.
    pub fn wake(&self) {
        // It fails only if the counter is full, and then it is readable anyway.
        _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Consumes the wake-up. Later events wake it again.
    pub fn see(&self) {
        _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
