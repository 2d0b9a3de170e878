//! Mounts inside the agent's mounts. Normally there are none. But the engine follows links on the
//! path to a mount point, and a link that leads into the io dir makes it create a mount point
//! there.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use sandbox_dirfd::unescape;
use sandbox_protocol::argv::Mount;

/// An unexpected mount.
#[derive(Debug, thiserror::Error)]
pub enum NestedError {
    /// The kernel did not report the mounts.
    #[error("cannot read the mount table: {0}")]
    Ask(#[source] io::Error),
    /// A mount inside one of the agent's.
    #[error(
        "the engine has mounted something at {}, inside {mount}: a link led it there, and what it \
         created as a mount point is left behind",
        .at.display()
    )]
    Inside {
        /// Its path.
        at: PathBuf,
        /// The mount that contains it.
        mount: String,
    },
}

/// Fails if there is a mount inside one of these mounts that is not one of the `hidden`.
///
/// # Errors
///
/// [`NestedError`].
pub fn check(mounts: &[Mount], hidden: &[String]) -> Result<(), NestedError> {
    if mounts.is_empty() {
        return Ok(());
    }
    let table = std::fs::read("/proc/self/mountinfo").map_err(NestedError::Ask)?;
    find(&table, mounts, hidden)
}

fn find(table: &[u8], mounts: &[Mount], hidden: &[String]) -> Result<(), NestedError> {
    // The fifth field of a line is the mount point.
    let lines = table.split(|&byte| byte == b'\n');
    let points = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4)).map(unescape);
    let points = points.filter(|at| !hidden.iter().any(|path| at.as_os_str() == path.as_str()));
    for at in points {
        let is_around = |mount: &&Mount| {
            let rest = at.as_os_str().as_bytes().strip_prefix(mount.path.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"/"))
        };
        if let Some(mount) = mounts.iter().find(is_around) {
            return Err(NestedError::Inside { at, mount: mount.path.to_string() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::message::Access;
    use sandbox_protocol::path::GuestPath;

    const TABLE: &str = "\
        1 0 0:1 / / ro,relatime - overlay overlay rw\n\
        2 1 0:2 / /proc rw - proc proc rw\n\
        3 1 8:1 /home/me/out /io rw master:1 - ext4 /dev/sda1 rw\n\
        4 1 8:1 /x /in/a\\040b ro - ext4 /dev/sda1 rw\n\
        5 1 8:1 /x /iox/y ro - ext4 /dev/sda1 rw\n";

    fn check(more: &str) -> Result<(), String> {
        let mount = |path| Mount { path: GuestPath::new(path).unwrap(), access: Access::Read };
        let table = format!("{TABLE}{more}");
        let hidden = ["/in/a b/state".to_owned()];
        find(table.as_bytes(), &[mount("/io"), mount("/in/a b")], &hidden)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_mount_inside_a_mount_is_found_however_it_is_written() {
        assert_eq!(check(""), Ok(()));
        for (line, at) in [
            ("6 3 8:1 /h /io/etc/hosts ro - ext4 /dev/sda1 rw\n", "/io/etc/hosts, inside /io:"),
            ("6 4 0:9 / /in/a\\040b/c\\134d rw - tmpfs t rw\n", "/in/a b/c\\d, inside /in/a b:"),
        ] {
            let error = check(line).unwrap_err();
            assert!(error.contains(at), "{error}");
        }
        assert_eq!(check("6 3 0:9 / /io rw - tmpfs t rw\n"), Ok(()), "another rule's");
        assert_eq!(check("6 4 0:9 / /in/a\\040b/state ro - tmpfs t ro\n"), Ok(()), "hidden");
        assert!(check("6 4 0:9 / /in/a\\040b/state/x ro - tmpfs t ro\n").is_err());
    }
}
