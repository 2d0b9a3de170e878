//! What the helper makes a container's first process of: its mounts, privileges, limits, namespaces
//! and groups, compared with a record of them.
//!
//! The record is what libcontainer made of the same container, before the helper had a launcher of
//! its own, but for what was changed since: masks of files are read-only, and `/dev/shm` has a number of
//! entries. A change of it is a change of what confines a sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::agent::Actor;
use crate::engine::first_process;
use crate::engines::most_descriptors;
use crate::fixture::{Fixture, eventually, finish, spawn, wait};
use crate::rootfs::Rootfs;

/// The user and group that everything runs as.
const OWNER: (u32, u32) = (4321, 4322);
/// The controllers whose groups are the container's own, or are not.
const CONTROLLERS: [&str; 8] =
    ["blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"];

/// What is recorded.
struct Recorded {
    /// What the process finds itself to be.
    inside: String,
    /// Its control groups, as the host sees them; only of version 1, which has one for each
    /// controller.
    groups: Option<String>,
}

/// Runs a container with `args`, and records its first process.
fn record(args: &[&str]) -> Recorded {
    let actor = Actor::new();
    let io_dir = actor.place.path("sandbox-files");
    actor.place.write("given.txt", "given");
    actor.place.write("sandbox-files/play", "first-process");
    std::os::unix::fs::chown(&io_dir, Some(OWNER.0), Some(OWNER.1)).unwrap();
    let args = [
        &["run", "--json", "--io-dir", "sandbox-files", "--in", "given.txt"],
        args,
        &["unused.luau"],
    ]
    .concat();
    let child = spawn(actor.command(&args));
    eventually("the agent runs", || io_dir.join("ready").exists().then_some(()));
    let containers = actor.place.containers();
    let pid = first_process(&containers[0]).expect("it runs");
    let groups = groups(&format!("/proc/{}/cgroup", pid.as_raw_nonzero()), &containers[0]);
    actor.place.write("sandbox-files/go", "");
    let document = actor.place.document(wait(child).assert_code(0));
    let seen = &document["result"];
    masked(seen);
    Recorded { inside: inside(seen), groups }
}

fn text<'a>(seen: &'a Value, key: &str) -> &'a str {
    seen[key].as_str().unwrap_or_else(|| panic!("no {key} in {seen:#}"))
}

fn list<'a>(seen: &'a Value, key: &str) -> Vec<&'a str> {
    seen[key].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

/// Everything that does not depend on the machine, a line each.
fn inside(seen: &Value) -> String {
    let mut lines = String::new();
    let fields: BTreeMap<_, _> =
        text(seen, "status").lines().filter_map(|line| line.split_once(':')).collect();
    for name in [
        "Umask", "Uid", "Gid", "Groups", "NSpid", "NSpgid", "NSsid", "Threads", "SigBlk", "CapInh",
        "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
    ] {
        writeln!(
            lines,
            "{name}: {}",
            fields[name].split_whitespace().collect::<Vec<_>>().join(" ")
        )
        .unwrap();
    }
    for name in ["death_signal", "dumpable", "loopback"] {
        writeln!(lines, "{name}: {}", seen[name]).unwrap();
    }
    for name in ["oom_score_adj", "hostname", "ports", "ping", "cwd"] {
        writeln!(lines, "{name}: {}", text(seen, name).trim()).unwrap();
    }
    writeln!(lines, "argv: {}", text(seen, "cmdline").trim_end_matches('\0').replace('\0', " "))
        .unwrap();
    let groups = text(seen, "cgroup").lines().filter_map(|line| line.splitn(3, ':').nth(2));
    writeln!(lines, "groups: {}", BTreeSet::from_iter(groups).into_iter().collect::<String>())
        .unwrap();
    let mut section = |name: &str, entries: &mut dyn Iterator<Item = String>| {
        writeln!(lines, "\n{name}").unwrap();
        entries.for_each(|entry| writeln!(lines, "  {entry}").unwrap());
    };
    section("namespaces", &mut list(seen, "namespaces").into_iter().map(namespace));
    section("limits", &mut limits(text(seen, "limits")).into_iter());
    section("mounts", &mut mounts(text(seen, "mountinfo")).into_iter());
    for name in ["environ", "descriptors", "devices", "root", "processes"] {
        section(name, &mut list(seen, name).into_iter().map(str::to_owned));
    }
    lines
}

/// Whether a namespace is the container's own.
fn namespace(link: &str) -> String {
    let (name, target) = link.split_once(' ').unwrap();
    let host = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
    let whose = if host == Path::new(target) { "the host's" } else { "its own" };
    format!("{name}: {whose}")
}

/// Its resource limits: those that it inherited are only named.
fn limits(seen: &str) -> Vec<String> {
    let inherited = fs::read_to_string("/proc/self/limits").unwrap();
    // As many as this process may have, at most.
    let most = format!(" {} files", most_descriptors());
    let lines = seen.lines().skip(1).map(|line| {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words.replace(&most, " 65536 files");
        let is_inherited = inherited.lines().any(|it| it == line);
        let is_set = [
            "core file", "open files", "locked", "msgqueue", "file size", "cpu time",
            "nice priority", "realtime priority",
        ];
        let is_set = is_set.iter().any(|name| line.contains(name));
        match is_inherited && !is_set {
            true => format!("{}: inherited", line[..26].trim()),
            false => words,
        }
    });
    lines.collect()
}

/// Its mounts by their targets, without their numbers. Those that mask a path are one line for each
/// kind: which paths there are, the kernel decides.
fn mounts(mountinfo: &str) -> Vec<String> {
    let lines: Vec<Vec<&str>> = mountinfo.lines().map(|line| line.split(' ').collect()).collect();
    let parent_of = |number: &str| {
        lines.iter().find(|fields| fields[0] == number).map_or("nothing", |fields| fields[4])
    };
    // The kernel's own defaults, which differ between versions and configurations.
    let defaults = ["relatime", "noatime", "inode64", "uuid=on", "uuid=auto"];
    let options = |text: &str| {
        let kept = text.split(',').filter(|option| !defaults.contains(option));
        kept.collect::<Vec<_>>().join(",")
    };
    let mut found = BTreeSet::new();
    for fields in &lines {
        let dash = fields.iter().position(|field| *field == "-").unwrap();
        let (root, target, own) = (fields[3], fields[4], options(fields[5]));
        let propagation = fields[6..dash].join(" ");
        let (kind, of_all) = (fields[dash + 1], options(fields[dash + 3]));
        let parent = parent_of(fields[1]);
        let what = match () {
            // The host's file system, as it has it.
            () if target == "/io" || target.starts_with("/in/") => "of the host".to_owned(),
            () if target.starts_with("/sys/fs/cgroup") => format!("{root} {kind}"),
            () => format!("{root} {kind} {of_all}"),
        };
        let is_mask = parent == "/proc" && (root == "/null" || of_all == "ro,size=4k,nr_inodes=1");
        let target = match () {
            () if is_mask => "(masked)",
            () if target.starts_with("/sys/fs/cgroup") => "/sys/fs/cgroup",
            () => target,
        };
        found.insert(format!("{target} on {parent}: {own} {propagation}- {what}"));
    }
    found.into_iter().collect()
}

/// Every path to be masked is: nothing is readable there.
fn masked(seen: &Value) {
    let unmasked = list(seen, "unmasked");
    for path in ["kcore", "keys", "kallsyms", "config.gz", "cmdline", "interrupts", "pressure"] {
        assert!(!unmasked.contains(&path), "/proc/{path} is readable");
    }
    // What is neither for every process nor harmless is on the list of the paths to mask.
    let known = [
        "cgroups", "cpuinfo", "crypto", "execdomains", "filesystems", "fips_enabled", "kmsg",
        "loadavg", "meminfo", "mounts", "net", "self", "stat", "sys", "sysrq-trigger", "sysvipc",
        "thread-self", "tty", "uptime", "version", "version_signature", "vmstat",
    ];
    let unknown: Vec<_> = unmasked.into_iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Which groups of version 1 are the container's own, and what limits them.
fn groups(memberships: &str, container: &str) -> Option<String> {
    let memberships = fs::read_to_string(memberships).unwrap();
    let mut lines = String::new();
    for controller in CONTROLLERS {
        let line = memberships.lines().find(|line| {
            line.split(':').nth(1).is_some_and(|names| names.split(',').any(|it| it == controller))
        })?;
        let is_own = line.rsplit('/').next() == Some(container);
        writeln!(lines, "{controller}: {}", if is_own { "its own" } else { "the host's" }).unwrap();
    }
    let root = Path::new("/sys/fs/cgroup");
    for (controller, files) in [
        ("memory", &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][..]),
        ("cpu", &["cpu.cfs_period_us", "cpu.cfs_quota_us"]),
        ("pids", &["pids.max"]),
        ("devices", &["devices.list"]),
    ] {
        for file in files {
            let value = fs::read_to_string(root.join(controller).join(container).join(file)).ok();
            let mut value: Vec<_> = value.iter().flat_map(|value| value.lines()).collect();
            value.sort_unstable();
            writeln!(lines, "{file}: {}", value.join(", ")).unwrap();
        }
    }
    Some(lines)
}

fn hold_to(name: &str, args: &[&str]) {
    let Recorded { inside, groups } = record(args);
    insta::assert_snapshot!(name, inside);
    if let Some(groups) = groups {
        insta::assert_snapshot!(format!("{name}_groups_of_version_1"), groups);
    }
}

#[test]
fn first_process_of_scripts_is_what_the_record_says() {
    hold_to("scripts", &[]);
}

#[test]
fn first_process_of_programs_is_what_the_record_says() {
    let root = Rootfs::empty().file("etc/motd", 0o644, "hello").directory();
    hold_to("programs", &root.args().iter().map(String::as_str).collect::<Vec<_>>());
}

/// The caller's priorities and domain name: the machine's other processes come before a sandbox, and
/// it learns no name of the host.
#[test]
fn priorities_and_domain_name_of_the_caller_are_not_the_sandboxs() {
    let place = Fixture::new();
    let root = Rootfs::busybox().directory();
    let rootfs = root.args();
    let rootfs: Vec<_> = rootfs.iter().map(String::as_str).collect();
    // Nice value, real-time priority and policy; the class of I/O, which may follow from the nice value.
    let print = "cut -d' ' -f19,40,41 /proc/self/stat; cat /proc/sys/kernel/domainname
        ionice | cut -d: -f1 | sed s/best-effort/none/";
    let command = place.command([&["exec"], &rootfs[..], &["--", "sh", "-c", print]].concat());
    let own = rustix::process::getpriority_process(None).unwrap();
    for (priority, added) in [
        (&["nice", "-n", "-20"][..], -20),
        (&["ionice", "-c", "1"], 0),
        (&["chrt", "--fifo", "1"], 0),
        // What the caller gives up stays given up.
        (&["nice", "-n", "5"], 5),
    ] {
        let [program, options @ ..] = priority else { unreachable!("each names a program") };
        // A machine may refuse a real-time policy.
        let is_possible = Command::new(program).args(options).arg("true").status().unwrap();
        if !is_possible.success() {
            continue;
        }
        let mut inside = Command::new("unshare");
        let script = "echo secret.example > /proc/sys/kernel/domainname && exec \"$@\"";
        inside.args(["--uts", "sh", "-c", script, "sh"]).args(priority);
        inside.arg(command.get_program()).args(command.get_args());
        place.equip(&mut inside);
        let ended = finish(inside);
        let nice = (own + added).clamp(0, 19);
        let expected = format!("{nice} 0 0\n(none)\nnone\n");
        assert_eq!(ended.assert_code(0).stdout, expected, "{priority:?}");
    }
}
