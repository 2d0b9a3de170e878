//! Wakes a thread that waits in `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable once it was woken, until that is seen.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// One that nobody has woken.
    ///
    /// # Errors
    ///
    /// Where there is no descriptor left.
    pub fn new() -> rustix::io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wakes it. Never waits.
    pub fn wake(&self) {
        // The only failure is a counter that is full, which is readable.
        _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sees that it was woken. What happens from here on wakes it again.
    pub fn see(&self) {
        _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
