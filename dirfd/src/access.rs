//! What this process may do in a directory, asked of what is open: its path may lead elsewhere by now.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, accessat};
use rustix::io::{Errno, Result};

pub use rustix::fs::Access;

/// Checks that this process may use an open directory in all of these ways, by its effective user. A
/// descriptor opened with `O_PATH` proves none of them.
///
/// A read-only file system does not count as a missing permission.
///
/// # Errors
///
/// `EACCES` or `EPERM` if it may not.
pub fn check_access(dir: impl AsFd, access: Access) -> Result<()> {
    match accessat(&dir, ".", access, AtFlags::EACCESS) {
        Err(Errno::ROFS) => accessat(&dir, ".", access - Access::WRITE_OK, AtFlags::EACCESS),
        checked => checked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use rustix::fs::{Mode, OFlags, open};
    use rustix::thread::set_thread_uid;

    #[test]
    fn directory_that_was_opened_without_permission_is_refused_to_its_user() {
        const USER: u32 = 12_345;
        let dir = tempfile::tempdir().unwrap();
        let opened = |name: &str, owner: u32, mode: u32| -> OwnedFd {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(owner), None).unwrap();
            open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        let read = Access::READ_OK | Access::EXEC_OK;
        let (closed, seen) = (opened("closed", 0, 0o700), opened("seen", 0, 0o755));
        let (listed, own) = (opened("listed", 0, 0o744), opened("own", USER, 0o700));
        // The user is the thread's alone.
        let user = std::thread::spawn(move || {
            set_thread_uid(rustix::process::Uid::from_raw(USER)).unwrap();
            for (dir, access) in [(&closed, read), (&seen, all), (&listed, read)] {
                assert_eq!(check_access(dir, access), Err(Errno::ACCESS));
            }
            for (dir, access) in [(&seen, read), (&own, all)] {
                assert_eq!(check_access(dir, access), Ok(()));
            }
        });
        user.join().unwrap();
    }
}
