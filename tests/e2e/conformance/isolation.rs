//! What a program sees from inside a sandbox, without the agent's own confinement: the
//! container's walls alone.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use serde_json::Value;

use crate::agent::Actor;
use crate::engine::engine;
use crate::engines::{Feature, Kind, has, kind};
use crate::fixture::finish;

/// What the probe saw, and who it was to be.
struct Seen {
    seen: Value,
    owner: (u32, u32),
    actor: Actor,
}

impl Seen {
    fn new() -> Self {
        let actor = Actor::new();
        let io_dir = actor.place.path("sandbox-files");
        if rustix::process::geteuid().is_root() {
            chown(&io_dir, Some(4321), Some(4322)).unwrap();
        }
        let metadata = std::fs::metadata(&io_dir).unwrap();
        actor.place.write("given.txt", "given");
        let played = actor.play("probe", &["--in", "given.txt"]);
        assert_eq!(played.document["status"], "ok", "{:#?}", played.ended);
        let seen = played.document["result"].clone();
        Self { seen, owner: (metadata.uid(), metadata.gid()), actor }
    }

    fn text(&self, key: &str) -> &str {
        self.seen[key].as_str().unwrap_or_else(|| panic!("no {key} in {:#}", self.seen))
    }

    fn list(&self, key: &str) -> Vec<&str> {
        self.seen[key].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
    }

    /// `/proc/self/status`, by field.
    fn status(&self) -> BTreeMap<&str, &str> {
        let fields = self.text("status").lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name, value.trim())).collect()
    }

    /// The options of the mount at `target`, and of its filesystem.
    fn mount(&self, target: &str) -> (&str, &str, &str) {
        let mut lines =
            self.text("mountinfo").lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = lines.rfind(|fields| fields[4] == target);
        let fields = found.unwrap_or_else(|| panic!("no mount {target}: {}", self.seen));
        let dash = fields.iter().position(|field| *field == "-").unwrap();
        (fields[5], fields[dash + 1], fields[dash + 3])
    }
}

#[test]
fn script_runs_unprivileged() {
    let seen = Seen::new();
    let status = seen.status();
    let (uid, gid) = seen.owner;
    let four = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
    assert_eq!(status["Uid"], four(uid));
    assert_eq!(status["Gid"], four(gid));
    // None, or its own gid again; without root also those that cannot be dropped, without a number.
    let is_kept = |group: &str| kind() == Kind::Rootless && group == "65534";
    let mut groups = status["Groups"].split_whitespace();
    assert!(groups.all(|group| group == gid.to_string() || is_kept(group)), "{status:?}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        // Another kernel may not have this one.
        if set == "CapAmb" && !has(Feature::SharedKernel) {
            continue;
        }
        assert_eq!(u64::from_str_radix(status[set], 16), Ok(0), "{set}");
    }
    if has(Feature::SharedKernel) {
        assert_eq!(status["NoNewPrivs"], "1");
        assert_eq!(status["Seccomp"], "2");
    }
}

#[test]
fn script_sees_no_other_process() {
    let seen = Seen::new();
    assert_eq!(seen.list("pids"), ["1"]);
    let namespaces = &seen.seen["namespaces"];
    let names = ["pid", "net", "mnt", "ipc", "uts", "cgroup"];
    let names = match () {
        () if has(Feature::CgroupNamespace) => &names[..],
        () if has(Feature::SharedKernel) => &names[..5],
        () => &names[..2],
    };
    for name in names {
        let host = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_ne!(namespaces[name], host.to_str().unwrap(), "{name}");
    }
    // The only device is the loopback.
    let devices = seen.text("net_dev").lines().filter_map(|line| line.split_once(':'));
    let devices: Vec<&str> = devices.map(|(name, _)| name.trim()).collect();
    assert_eq!(devices, ["lo"]);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(seen.text("hostname"), host);
    for line in seen.text("cgroup").lines() {
        let path = line.rsplit(':').next().unwrap();
        if has(Feature::CgroupNamespace) {
            assert_eq!(path, "/", "a path of the host's cgroups: {line}");
        }
    }
    let fds = seen.seen["fds"].as_object().unwrap();
    // Its stdio, and what lists the folder.
    assert!(fds.keys().all(|fd| fd.parse::<u32>().unwrap() <= 3), "{fds:?}");
    for fd in ["0", "1", "2"] {
        let target = fds[fd].as_str().unwrap();
        let kinds = ["pipe:", "socket:", "host:"];
        assert!(kinds.iter().any(|kind| target.starts_with(kind)), "{fds:?}");
    }
}

#[test]
fn script_learns_nothing_of_the_host() {
    let seen = Seen::new();
    let host_paths = [seen.actor.place.work(), seen.actor.place.state(), seen.actor.place.home()];
    for key in ["cmdline", "environ", "cgroup", "hostname"] {
        let text = seen.seen[key].to_string();
        for path in &host_paths {
            assert!(!text.contains(path.to_str().unwrap()), "{key}: {text}");
        }
    }
    for variable in seen.list("environ") {
        let name = variable.split('=').next().unwrap();
        assert!(["PATH", "HOSTNAME", "HOME", "TERM", "container"].contains(&name), "{variable}");
    }
    // What reveals the host's boot, disks and drivers to programs is masked: /proc/cmdline and its
    // kind. Another kernel's own are not the host's.
    let own: &[&str] = if has(Feature::SharedKernel) {
        &[]
    } else {
        &["/proc/cmdline", "/sys/devices", "/sys/class"]
    };
    let readable = seen.list("readable");
    assert!(readable.iter().all(|path| own.contains(path)), "{readable:?}");
}

#[test]
fn script_writes_to_its_io_dir_alone() {
    let seen = Seen::new();
    // In its own memory.
    let own: &[&str] = if has(Feature::NothingToWrite) { &[] } else { &["/tmp", "/run"] };
    let writable = seen.list("writable");
    assert!(writable.iter().all(|path| own.contains(path)), "{writable:?}");
    for (target, is_read_only) in [("/", true), ("/in/given.txt", true), ("/io", false)] {
        let (options, _, _) = seen.mount(target);
        let is = options.split(',').any(|option| option == "ro");
        assert_eq!(is, is_read_only, "{target} {options}");
    }
    let (options, kind, _) = seen.mount("/proc");
    assert_eq!(kind, "proc");
    let needed: &[&str] =
        if has(Feature::SharedKernel) { &["nosuid", "nodev", "noexec"] } else { &["noexec"] };
    for &option in needed {
        assert!(options.split(',').any(|it| it == option), "/proc {options}");
    }
    assert!(!Path::new("/made-by-a-probe").exists());
    // Nothing of the host that was not given. Docker creates a file with the container's own name.
    let ours = ["/", "/io", "/in/given.txt", "/.sandbox/agent", "/etc/hostname"];
    // Podman makes more such files.
    let podmans = ["/etc/hosts", "/etc/passwd", "/etc/group"];
    for line in seen.text("mountinfo").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let dash = fields.iter().position(|field| *field == "-").unwrap();
        let kind = fields[dash + 1];
        let is_virtual =
            ["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs"];
        let is_podmans = !has(Feature::NothingToWrite) && podmans.contains(&fields[4]);
        assert!(ours.contains(&fields[4]) || is_podmans || is_virtual.contains(&kind), "{line}");
        // No mount made in it reaches the host, and none made on the host reaches what was given.
        assert!(!line.contains(" shared:"), "{line}");
        let is_given = ["/io", "/in/given.txt"].contains(&fields[4]);
        assert!(!(is_given && line.contains(" master:")), "{line}");
    }
}

#[test]
fn its_devices_are_the_harmless_ones() {
    let seen = Seen::new();
    for device in seen.list("dev") {
        let known = [
            "null c 1:3", "zero c 1:5", "full c 1:7", "random c 1:8", "urandom c 1:9", "tty c 5:0",
            "console c 136:0", "core l", "fd l", "stdin l", "stdout l", "stderr l", "ptmx l",
            "pts d", "mqueue d", "shm d",
        ];
        // Another kernel's lead to nothing on the host.
        let own = ["fuse c 10:229", "net d"];
        let is_own = !has(Feature::SharedKernel) && own.contains(&device);
        assert!(known.contains(&device) || is_own, "{device}");
    }
}

#[test]
fn its_resource_limits_are_set_hard_and_soft() {
    let seen = Seen::new();
    let is_shared = has(Feature::SharedKernel);
    if !is_shared && seen.seen["limits"].is_null() {
        // It shows none; the engine sets what it can around the whole of that kernel.
        return;
    }
    let limits = seen.text("limits");
    let own = [("Max core file size", "1"), ("Max locked memory", "0"), ("Max msgqueue size", "0")];
    // 64 of scripts, 64 of the agent, one a mount.
    let files = [("Max open files", "130"), ("Max file size", "68719476736")];
    for (name, value) in own.into_iter().filter(|_| is_shared).chain(files) {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        let values: Vec<&str> = line[name.len()..].split_whitespace().take(2).collect();
        assert_eq!(values, [value, value], "{line}");
    }
    if is_shared {
        assert_eq!(seen.text("oom_score_adj").trim(), "1000");
    }
}

#[test]
fn no_system_call_leads_out_of_it() {
    let seen = Seen::new();
    // What another kernel gives to any process is its own, not the host's.
    let own = [
        "unshare_user", "unshare_mount", "chroot", "ptrace", "socket_inet", "socket_unix",
        "socket_netlink", "socket_packet",
    ];
    let let_by_podman = [
        "unshare_user", "unshare_mount", "mount", "pivot_root", "ptrace", "process_vm_readv",
        "keyctl", "socket_inet", "socket_unix", "socket_netlink",
    ];
    for (call, errno) in seen.seen["calls"].as_object().unwrap() {
        let is_own = !has(Feature::SharedKernel) && own.contains(&call.as_str());
        // Podman's filter lets it: in namespaces of its own, which have no device and no network.
        let is_let = !has(Feature::OwnFilter) && let_by_podman.contains(&call.as_str());
        assert!(errno != 0 || is_own || is_let, "{call}");
    }
    if !has(Feature::OwnFilter) {
        return;
    }
    // What a filter refuses, where it is not a capability that is missing.
    for call in ["unshare_user", "clone_user", "ptrace", "keyctl", "io_uring_setup", "socket_inet"]
    {
        let errno = seen.seen["calls"][call].as_u64().unwrap();
        assert!([1, 38].contains(&errno), "{call}: {errno} on {}", engine().name());
    }
}

/// What `sandbox-image/tests/confinement.rs` proves on the host, in a container: its walls let the
/// agent put up its own.
#[test]
fn native_code_in_the_confined_agent_gets_nowhere() {
    const EACCES: &str = "13";
    const ENOSYS: &str = "38";
    let attacks = [
        ("read the mount", "done"),
        ("make a folder in the mount", "done"),
        ("list-root", EACCES),
        ("read-proc-of-another", EACCES),
        ("socket-inet", ENOSYS),
        ("socket-unix", ENOSYS),
        ("io_uring_setup", ENOSYS),
        ("ptrace", ENOSYS),
        ("process_vm_readv", ENOSYS),
        ("execve", ENOSYS),
        ("fork", ENOSYS),
        ("clone-new-user", ENOSYS),
        ("unshare-mount", ENOSYS),
        ("map-executable", ENOSYS),
        ("memfd_create", ENOSYS),
        ("openat-set-uid", ENOSYS),
        ("fchmod-set-uid", ENOSYS),
        ("fchmodat", ENOSYS),
        ("renameat2-exchange", ENOSYS),
        ("symlinkat", ENOSYS),
        ("prctl-dumpable", ENOSYS),
        ("kill", ENOSYS),
    ];
    if !has(Feature::SharedKernel) {
        // The other kernel has no Landlock.
        return;
    }
    let actor = Actor::attacker();
    let names = attacks.map(|(attack, _)| attack).join("\n");
    actor.place.write("sandbox-files/attacks", &names);
    actor.place.write("sandbox-files/file", "content");
    let ended = finish(actor.command(&["run", "--json", "unused.luau"]));
    // It never spoke, so nothing ran.
    ended.assert_code(125);
    let report = std::fs::read_to_string(actor.place.path("sandbox-files/report")).unwrap();
    let expected = attacks.map(|(attack, outcome)| format!("{attack}: {outcome}\n")).concat();
    assert_eq!(report, expected, "{ended:#?}");
}

#[test]
fn created_files_belong_to_the_io_dirs_owner_with_a_safe_mode() {
    let seen = Seen::new();
    let place = &seen.actor.place;
    let played = seen.actor.play("lies-about-files", &[]);
    assert_eq!(played.document["status"], "ok", "{:#}", played.document);
    let made = std::fs::metadata(place.path("sandbox-files/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), seen.owner);
    // The container's own umask; the agent sets it again.
    assert_eq!(made.permissions().mode() & 0o022, 0, "{:o}", made.permissions().mode());
}
