//! Control groups of version 2 that are delegated to a user other than root.
//!
//! systemd delegates a unit's group: its user may make groups in it, and give them its controllers
//! once no process is in the unit's group itself. So the controller moves itself into a group below,
//! but only if it is alone in its group: it moves no other process. Helpers are there too, because a
//! process begins in the group of its parent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use crate::cgroup::{Hierarchies, delegate, missing};

/// The group that the controller moves itself into.
const OWN: &str = "sandboxctl-controller";

/// The delegated group in which containers get theirs, as the only hierarchy. Takes it: this process
/// moves, and the group's controllers are enabled.
///
/// # Errors
///
/// Why there is none, for people.
pub fn take_delegated() -> Result<Hierarchies, String> {
    take(&own_group()?, std::process::id()).map(Hierarchies::unified_at)
}

/// The same group, untouched, for what looks for containers that are there; `None` if there cannot be
/// one.
pub fn find_delegated() -> Option<Hierarchies> {
    own_group().ok().map(|own| Hierarchies::unified_at(unit_of(&own).to_owned()))
}

/// The group of version 2 that this process is in.
fn own_group() -> Result<PathBuf, String> {
    let here = Hierarchies::here().map_err(|error| format!("cannot read /proc: {error}"))?;
    let Some(root) = here.unified() else {
        return Err(
            "this machine has control groups of version 1, which cannot be delegated".into()
        );
    };
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    own.map(|group| root.join(group)).ok_or_else(|| "this process is in no control group".into())
}

/// The group of the unit: that of a process which has not moved, or the one above.
fn unit_of(own: &Path) -> &Path {
    match own.file_name().is_some_and(|name| name == OWN) {
        true => own.parent().unwrap_or(own),
        false => own,
    }
}

/// Makes the unit's group of a process that is in `own` one for containers.
fn take(own: &Path, pid: u32) -> Result<PathBuf, String> {
    let unit = unit_of(own);
    for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
        let path = unit.join(file);
        if rustix::fs::accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS).is_err() {
            return Err(format!("{} is not this user's", unit.display()));
        }
    }
    let read = |file: &str| fs::read_to_string(unit.join(file)).unwrap_or_default();
    let available = read("cgroup.controllers");
    if let Some(missing) = missing(&available.split_whitespace().collect::<Vec<_>>()) {
        return Err(format!("{} has no {missing} controller", unit.display()));
    }
    if unit == own {
        if read("cgroup.procs").split_whitespace().any(|other| other != pid.to_string()) {
            return Err(format!("other processes are in {} too", unit.display()));
        }
        let moved = match fs::create_dir(unit.join(OWN)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::write(unit.join(OWN).join("cgroup.procs"), pid.to_string()),
        };
        moved
            .map_err(|error| format!("this process cannot move in {}: {error}", unit.display()))?;
    }
    // Now, because the files of a group below show what is counted: whether swap is.
    delegate(unit).map_err(|error| error.to_string())?;
    Ok(unit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files of a delegated group.
    fn unit(controllers: &str, processes: &str) -> tempfile::TempDir {
        let unit = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.procs", processes),
            ("cgroup.subtree_control", ""),
        ] {
            fs::write(unit.path().join(file), text).unwrap();
        }
        unit
    }

    #[test]
    fn process_that_is_alone_makes_room_for_containers_beside_itself() {
        let unit = unit("cpuset cpu io memory pids\n", "7\n");
        assert_eq!(take(unit.path(), 7).unwrap(), unit.path());
        let own = unit.path().join(OWN);
        assert_eq!(fs::read_to_string(own.join("cgroup.procs")).unwrap(), "7");
        // The next controller there finds itself in that group, and moves nothing.
        fs::write(own.join("cgroup.procs"), "7\n8\n").unwrap();
        assert_eq!(take(&own, 8).unwrap(), unit.path());
    }

    #[test]
    fn group_without_a_controller_or_with_other_processes_is_left_as_it_is() {
        for (controllers, processes, why) in [
            ("memory pids", "7\n", "has no cpu controller"),
            ("memory pids cpu", "7\n9\n", "other processes are in"),
        ] {
            let unit = unit(controllers, processes);
            let error = take(unit.path(), 7).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(!unit.path().join(OWN).exists());
        }
        let error = take(Path::new("/proc"), 7).unwrap_err();
        assert!(error.contains("is not this user's"), "{error}");
    }
}
