//! What the first process of a container finds itself to be, as it was executed: what made the
//! container is judged by it.

use std::ffi::{c_int, c_ulong};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::{list, names, text};

unsafe extern "C" {
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
}

const PR_GET_PDEATHSIG: c_int = 2;
const PR_GET_DUMPABLE: c_int = 3;

/// As one JSON object, unsorted and with this machine's numbers.
pub fn describe() -> String {
    let file = |path: &str| text(&String::from_utf8_lossy(&fs::read(path).unwrap_or_default()));
    let mut death_signal: c_int = 0;
    // SAFETY: the first writes one number, to a place for it; the others write nothing.
    let dumpable = unsafe {
        prctl(PR_GET_PDEATHSIG, (&raw mut death_signal) as c_ulong, 0, 0, 0);
        prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    };
    // Where the kernel has routes to the loopback, it is up.
    let routes = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let cwd = std::env::current_dir().map(|it| it.display().to_string()).unwrap_or_default();
    let fields = [
        ("status", file("/proc/self/status")),
        ("mountinfo", file("/proc/self/mountinfo")),
        ("limits", file("/proc/self/limits")),
        ("cgroup", file("/proc/self/cgroup")),
        ("cmdline", file("/proc/self/cmdline")),
        ("environ", list(environment())),
        ("oom_score_adj", file("/proc/self/oom_score_adj")),
        ("hostname", file("/proc/sys/kernel/hostname")),
        ("ports", file("/proc/sys/net/ipv4/ip_unprivileged_port_start")),
        ("ping", file("/proc/sys/net/ipv4/ping_group_range")),
        ("loopback", routes.contains("127.0.0.1").to_string()),
        ("dumpable", dumpable.to_string()),
        ("death_signal", death_signal.to_string()),
        ("cwd", text(&cwd)),
        ("namespaces", list(links("/proc/self/ns"))),
        ("descriptors", list(descriptors())),
        ("devices", list(below("/dev"))),
        ("root", list(names("/").into_iter().map(|name| entry(&format!("/{name}"))))),
        ("unmasked", list(unmasked())),
        ("processes", list(names("/proc").into_iter().filter(|it| it.parse::<u32>().is_ok()))),
    ];
    let fields = fields.map(|(name, json)| format!("{}:{json}", text(name)));
    format!("{{{}}}", fields.join(","))
}

fn environment() -> Vec<String> {
    std::env::vars().map(|(name, value)| format!("{name}={value}")).collect()
}

fn links(folder: &str) -> Vec<String> {
    let target = |name: &String| fs::read_link(format!("{folder}/{name}"));
    let links = names(folder).into_iter();
    links.filter_map(|name| Some(format!("{name} {}", target(&name).ok()?.display()))).collect()
}

/// Each descriptor's kind and flags, but the one of the folder that lists them.
fn descriptors() -> Vec<String> {
    let describe = |link: String| {
        let (number, target) = link.split_once(' ')?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
        let kind = target.split(':').next().unwrap_or_default();
        Some(format!("{number} {kind} {flags}"))
    };
    links("/proc/self/fd").into_iter().filter_map(describe).collect()
}

/// Everything in a folder: its mode, owner, and what it is.
fn below(folder: &str) -> Vec<String> {
    let mut found = vec![entry(folder)];
    for name in names(folder) {
        let path = format!("{folder}/{name}");
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => found.extend(below(&path)),
            _ => found.push(entry(&path)),
        }
    }
    found
}

fn entry(path: &str) -> String {
    let Ok(metadata) = fs::symlink_metadata(path) else { return format!("{path} ?") };
    let (mode, device) = (metadata.permissions().mode(), metadata.rdev());
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & !0xff));
    let target = fs::read_link(path).map(|it| format!(" -> {}", it.display())).unwrap_or_default();
    let owner = format!("{}:{}", metadata.uid(), metadata.gid());
    format!("{path} {mode:o} {owner} {major}:{minor}{target}")
}

/// What is readable of the files and folders of `/proc` that are neither of a process nor for every
/// process.
fn unmasked() -> Vec<String> {
    let is_empty = |path: &str| match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => names(path).is_empty(),
        Ok(metadata) => metadata.rdev() == 0x103,
        Err(_) => true,
    };
    let all = names("/proc").into_iter().filter(|name| name.parse::<u32>().is_err());
    all.filter(|name| !is_empty(&format!("/proc/{name}"))).collect()
}
