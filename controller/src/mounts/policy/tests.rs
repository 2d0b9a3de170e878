use super::*;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandbox_api::service::{DATABASE_FILE, LOCK_FILE};
use sandbox_engine::mount_table::MOUNTINFO;

struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    /// `own/state` exists, `own/data` does not.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("own/state/instances")).unwrap();
        fs::create_dir_all(dir.path().join("other")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn policy(&self) -> MountPolicy {
        self.policy_with("")
    }

    /// With more lines in the mount table.
    fn policy_with(&self, mounts: &str) -> MountPolicy {
        let folders = ReservedDirs {
            own: vec![
                ("state directory", self.path("own/state")),
                ("data directory", self.path("own/data")),
                ("scratch directory", self.path("own/scratch")),
                ("service's data directory", self.path("service")),
                ("directory of agents' io dirs", self.path("own/scratch-mcp")),
            ],
            store_dir: None,
            files: vec![self.path("runner/later/env")],
        };
        let table = [&fs::read(MOUNTINFO).unwrap(), mounts.as_bytes()].concat();
        let table = MountTable::parse(&table).unwrap();
        MountPolicy::new(Arc::new(table), &folders).unwrap()
    }

    fn check(&self, name: &str, access: Access) -> Result<Vec<String>, MountRefusal> {
        let opened = File::open(self.path(name)).unwrap();
        let opened = Opened::new(opened.as_fd()).unwrap();
        let policy = self.policy();
        let hidden = policy.check(opened, access, MountPointsBelow::Refused)?;
        Ok(hidden.into_iter().map(str::to_owned).collect())
    }
}

#[test]
fn own_folder_that_is_still_to_be_made_is_hidden_too() {
    let host = Host::new();
    assert!(!host.path("own/data").exists());
    let mut hidden = host.check("own", Access::Read).unwrap();
    hidden.sort_unstable();
    assert_eq!(hidden, ["data", "scratch", "scratch-mcp", "state"]);
    let mode = fs::metadata(host.path("own/data")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn mount_point_of_the_engine_is_refused_as_such() {
    let host = Host::new();
    let opened = File::open(host.path("own")).unwrap();
    let opened = Opened::new(opened.as_fd()).unwrap();
    let check = |below: &str| {
        let point = host.path("own").canonicalize().unwrap().join(below);
        let (id, parent) = (u64::MAX, opened.mount);
        let line = format!("{id} {parent} 0:999 / {} rw - tmpfs t rw\n", point.display());
        let policy = host.policy_with(&line);
        policy.check(opened, Access::Read, MountPointsBelow::Refused).map(|hidden| hidden.len())
    };
    // As the programs are, in `/run/sandboxctl`.
    let refused = check("state/programs/x").unwrap_err();
    assert!(!refused.hint().contains("unmount"), "{refused}: {}", refused.hint());
    let folder = host.path("own/state");
    assert_eq!(refused, MountRefusal::ParentOfReservedDir { name: "state directory", folder });
    let refused = check("beside").unwrap_err();
    assert!(matches!(refused, MountRefusal::MountPoint { .. }), "{refused}");
}

#[test]
fn file_that_is_reserved_is_in_no_directory_that_is_mounted_writable() {
    let host = Host::new();
    fs::create_dir(host.path("runner")).unwrap();
    assert_eq!(host.check("runner", Access::Read), Ok(Vec::new()));
    let refused = host.check("runner", Access::Write).unwrap_err();
    assert!(matches!(refused, MountRefusal::ParentOfReservedFile { .. }), "{refused}");
    assert_eq!(host.check("other", Access::Write), Ok(Vec::new()));
}

#[test]
fn own_folders_are_refused_whatever_they_are_called() {
    let host = Host::new();
    symlink(host.path("own"), host.path("link")).unwrap();
    for access in [Access::Read, Access::Write] {
        for name in ["own/state", "own/state/instances", "link/state", "other/../link/state/."] {
            let refused = host.check(name, access).unwrap_err();
            assert!(matches!(refused, MountRefusal::ReservedDir { .. }), "{name}: {refused}");
        }
        assert_eq!(host.check("other", access), Ok(Vec::new()));
    }
    let refused = |name: &str| host.policy().check_path(&host.path(name)).is_err();
    for (name, expected) in [
        ("own/state/new", true),
        ("own/data", true),
        ("own/data/a/b", true),
        ("own/scratch/a", true),
        ("own/scratch-mcp", true),
        ("own/scratch-mcp/1", true),
        ("own/scratch-mcp/1/files", true),
        ("own/scratch-mcp/2/files", true),
        ("link/data/a", true),
        ("own/database", false),
        ("own", false),
        ("other/a", false),
    ] {
        assert_eq!(refused(name), expected, "{name}");
    }
}

#[test]
fn nothing_is_written_into_own_folders_by_any_path() {
    let host = Host::new();
    symlink(host.path("own/state"), host.path("link")).unwrap();
    let policy = host.policy();
    for name in ["own/state", "own/data/a", "link/a", "other/../own/scratch", "own/x/../data/a"] {
        let refused = policy.check_output(&host.path(name)).unwrap_err();
        assert!(!refused.hint().is_empty(), "{name}: {refused}");
    }
    // Unlike a mount, a file may be next to them, or a device.
    for path in [&*host.path("own"), &*host.path("other/a/b"), Path::new("/dev/null")] {
        assert_eq!(policy.check_output(path), Ok(()), "{}", path.display());
    }
    let (pipe, _writer) = io::pipe().unwrap();
    let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
    assert_eq!(policy.check_output(Path::new(&pipe)), Ok(()));
    // What makes them, or a way to them.
    fs::rename(host.path("own"), host.path("gone")).unwrap();
    symlink(host.path("own"), host.path("dangling")).unwrap();
    for name in ["own", "dangling", "dangling/data/a", "dangling/../own/data", "own/a/../data"] {
        host.policy().check_output(&host.path(name)).unwrap_err();
    }
    assert_eq!(host.policy().check_output(&host.path("dangling/a")), Ok(()));
}

#[test]
fn nothing_is_written_or_made_in_the_directory_of_a_server_that_runs() {
    let host = Host::new();
    fs::create_dir_all(host.path("other/served/files")).unwrap();
    for name in [DATABASE_FILE, LOCK_FILE] {
        fs::write(host.path("other/served").join(name), "").unwrap();
    }
    symlink(host.path("other/served"), host.path("link")).unwrap();
    symlink(host.path("other/served/new"), host.path("dangling")).unwrap();
    let names = ["other/served/files/a/b", "other/served/x", "link/x", "dangling"];
    let lock = File::open(host.path("other/served").join(LOCK_FILE)).unwrap();
    for name in names {
        assert_eq!(host.policy().check_output(&host.path(name)), Ok(()), "{name}: none runs");
    }
    lock.lock().unwrap();
    for name in names {
        for refused in [
            host.policy().check_output(&host.path(name)).unwrap_err(),
            host.policy().check_path(&host.path(name)).unwrap_err(),
        ] {
            let is_served = matches!(refused, MountRefusal::ServedDir { .. });
            assert!(is_served, "{name}: {refused}");
        }
    }
    assert_eq!(host.policy().check_output(&host.path("other/x")), Ok(()));
}

#[test]
fn nothing_is_written_into_a_pseudo_file_system_but_to_a_device() {
    let policy = Host::new().policy();
    for path in ["/proc/x", "/proc/self/comm", "/proc/sys/kernel", "/sys/x", "/sys/kernel/x"] {
        let refused = policy.check_output(Path::new(path)).unwrap_err();
        assert!(!refused.hint().is_empty(), "{path}: {refused}");
        let is_pseudo = matches!(refused, MountRefusal::PseudoFileSystem { .. });
        assert!(is_pseudo, "{path}: {refused}");
    }
    for path in ["/dev/null", "/dev/ptmx"] {
        assert_eq!(policy.check_output(Path::new(path)), Ok(()), "{path}");
    }
}

#[test]
fn service_reserves_what_it_keeps() {
    let host = Host::new();
    fs::create_dir_all(host.path("service/files/a/b")).unwrap();
    for access in [Access::Read, Access::Write] {
        for name in ["service", "service/files", "service/files/a", "service/files/a/b"] {
            let refused = host.check(name, access).unwrap_err();
            assert!(matches!(refused, MountRefusal::ReservedDir { .. }), "{name}: {refused}");
        }
    }
    let refused = host.check(".", Access::Write).unwrap_err();
    assert!(matches!(refused, MountRefusal::ParentOfReservedDir { .. }), "{refused}");
    assert!(host.check(".", Access::Read).unwrap().contains(&"service".to_owned()));
}

#[test]
fn own_folder_that_can_be_neither_made_nor_hidden_is_named_with_the_reason() {
    let host = Host::new();
    fs::write(host.path("own/data"), "").unwrap();
    let refused = host.check("own", Access::Read).unwrap_err();
    let (text, folder) = (refused.to_string(), host.path("own/data"));
    assert!(matches!(refused, MountRefusal::UnhiddenDir { .. }), "{text}");
    assert!(text.contains(folder.to_str().unwrap()) && text.ends_with("(os error 17)"), "{text}");
    assert!(refused.hint().starts_with(&format!("make {}", folder.display())));
}

#[test]
fn parent_of_own_folder_is_refused_for_writing_and_hides_it_for_reading() {
    let host = Host::new();
    for name in ["own", "."] {
        let refused = host.check(name, Access::Write).unwrap_err();
        assert!(matches!(refused, MountRefusal::ParentOfReservedDir { .. }), "{refused}");
    }
    let all = ["state", "data", "scratch", "scratch-mcp"].map(str::to_owned).to_vec();
    assert_eq!(host.check("own", Access::Read), Ok(all));
    // Someone with write access could still create the missing directory.
    fs::rename(host.path("own/state"), host.path("other/state")).unwrap();
    host.check("own", Access::Write).unwrap_err();
}

#[test]
fn pseudo_file_systems_and_devices_are_refused() {
    let host = Host::new();
    let policy = host.policy();
    for path in ["/proc", "/proc/version", "/proc/self/fd", "/sys", "/dev", "/dev/pts"] {
        let opened = File::open(path).unwrap();
        let opened = Opened::new(opened.as_fd()).unwrap();
        let read = policy.check(opened, Access::Read, MountPointsBelow::Harmless);
        assert!(
            matches!(read, Err(MountRefusal::PseudoFileSystem { .. } | MountRefusal::Devices)),
            "{path}: {read:?}"
        );
        policy.check_path(Path::new(path)).unwrap_err();
    }
}

/// A bind mount of it was not recognised: it has another path.
#[test]
fn root_of_the_whole_system_is_refused_as_a_root_under_any_path() {
    let host = Host::new();
    let opened = File::open("/").unwrap();
    let opened = Opened::new(opened.as_fd()).unwrap();
    let text = String::from_utf8_lossy(&fs::read(MOUNTINFO).unwrap()).into_owned();
    let line = text.lines().find(|it| it.starts_with(&format!("{} ", opened.mount))).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    let (_, rest) = line.split_once(" - ").unwrap();
    let point = host.path("bound");
    fs::create_dir(&point).unwrap();
    // The directory at which a mount of `source` would be, and the table with that mount.
    let check = |source: &str| {
        let bound = File::open(&point).unwrap();
        let bound = Opened { mount: u64::MAX, file: bound.as_fd() };
        let (device, point) = (fields[2], point.canonicalize().unwrap());
        let line = format!(
            "{} {} {device} {source} {} rw - {rest}\n",
            u64::MAX,
            fields[0],
            point.display()
        );
        let table = MountTable::parse(format!("{text}{line}").as_bytes()).unwrap();
        let MountPolicy { own, files, devices, .. } = host.policy();
        let policy = MountPolicy { table: Arc::new(table), own, files, devices };
        policy.check(bound, Access::Read, MountPointsBelow::Harmless).map(drop)
    };
    assert_eq!(check(fields[3]), Err(MountRefusal::Root));
    let sibling = Path::new(fields[3]).join("srv");
    assert_eq!(check(sibling.to_str().unwrap()), Ok(()));
}
