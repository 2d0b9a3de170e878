//! Points of a launch at which a test can pause the helper or the container's first process, to kill
//! either, and system calls that a test can take away. Without the feature `failpoints`, which no
//! release enables, they do nothing.

use rustix::io::Errno;

/// The points of a launch, in order. The variable `SANDBOX_FAILPOINT` names one by the path of a file,
/// `Launch(POINT)`, which is created when it is reached. It goes on when the test creates a file of this
/// name with `.go`. The name `Absent(CALL)` takes a system call away.
#[derive(Debug, Clone, Copy)]
pub enum At {
    /// The helper has a mount namespace of its own.
    Prepared,
    /// It has the request.
    Received,
    /// The control groups are made.
    Grouped,
    /// In the helper: there is a process, which goes on meanwhile.
    Cloned,
    /// In the process: it is in its groups, and in all namespaces but one.
    Entered,
    /// In the process: its root and everything in it is mounted.
    Mounted,
    /// In the process: it has no other root, and has not renounced its privileges.
    Pivoted,
    /// In the helper: the process executes the agent.
    Executed,
}

#[cfg(not(feature = "failpoints"))]
mod none {
    use super::{At, Errno};

    /// Does nothing.
    pub const fn open() {}

    /// Does nothing.
    pub const fn hold(_: At) {}

    /// Does nothing.
    pub const fn call(_: &str) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(not(feature = "failpoints"))]
pub use none::{call, hold, open};

#[cfg(feature = "failpoints")]
mod some {
    use std::ffi::OsString;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::time::Duration;

    use rustix::fs::{AtFlags, Mode, OFlags};

    use super::{At, Errno};

    const POLL_INTERVAL: Duration = Duration::from_millis(5);

    /// The directory of the variable's file, and the file's name. By a descriptor: neither the helper nor
    /// a container has the path.
    static NAMED: OnceLock<(OwnedFd, OsString)> = OnceLock::new();

    /// Opens the directory that the variable names, while there is a path to it.
    pub fn open() {
        let Some(path) = std::env::var_os("SANDBOX_FAILPOINT").map(PathBuf::from) else { return };
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty()) {
            _ = NAMED.set((folder, name.to_owned()));
        }
    }

    /// The directory, if the variable's file has this name.
    fn named(name: &str) -> Option<&'static OwnedFd> {
        let (folder, named) = NAMED.get()?;
        (*named == *name).then_some(folder)
    }

    /// Waits, if the variable names this point.
    pub fn hold(at: At) {
        let point = format!("Launch({at:?})");
        let Some(folder) = named(&point) else { return };
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(folder, &point, flags, Mode::from_raw_mode(0o600))
            .expect("it can be created");
        let go = format!("{point}.go");
        while rustix::fs::statat(folder, &go, AtFlags::empty()).is_err() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Fails as the kernel does that lacks this call, if the variable names it.
    pub fn call(name: &str) -> Result<(), Errno> {
        match named(&format!("Absent({name})")) {
            Some(_) => Err(Errno::NOSYS),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "failpoints")]
pub use some::{call, hold, open};
