//! Each layer of the agent's confinement alone, without a container and without Luau: native code
//! (`tests/programs/attacker.rs`) takes one layer upon itself, by the agent's own functions, and
//! attacks, a process an attack. The same attack without the layer must be answered otherwise:
//! else it would prove nothing.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::geteuid;
use sandbox_agent::confine::landlock::{Support, support};

/// Calls that a kernel may be built without, or not let this user make.
const OPTIONAL: &[&str] = &[
    "acct", "delete_module", "fchmodat2", "finit_module", "init_module", "ioperm", "iopl",
    "kexec_load", "modify_ldt", "quotactl", "socket-alg", "userfaultfd",
];

/// What came of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Errno(i32),
    Signal(i32),
}

/// What the agent may do, and must be able to.
const INSIDE: &[&str] = &[
    "read the mount",
    "write in the mount",
    "make a file in the mount",
    "make a folder in the mount",
    "rename in the mount",
    "rename to nothing in the mount",
    "link in the mount",
    "name a file without a name in the mount",
    "reserve in the mount",
    "change a mode in the mount",
    "remove in the mount",
    "list the mount",
    "read the inputs",
    "start a thread",
];

/// What Landlock refuses, the first of its versions that does, and how.
const OUTSIDE: &[(&str, u32, &[i32])] = &[
    ("read-etc-passwd", 2, &[libc::EACCES]),
    ("read-outside", 2, &[libc::EACCES]),
    ("read-proc-of-another", 2, &[libc::EACCES]),
    ("list-root", 2, &[libc::EACCES]),
    ("list-outside", 2, &[libc::EACCES]),
    ("write-outside", 2, &[libc::EACCES]),
    ("append-outside", 2, &[libc::EACCES]),
    ("truncate-by-open", 3, &[libc::EACCES]),
    ("truncate-outside", 3, &[libc::EACCES]),
    ("make-outside", 2, &[libc::EACCES]),
    ("mkdir-outside", 2, &[libc::EACCES]),
    ("fifo-outside", 2, &[libc::EACCES]),
    ("unix-socket-outside", 2, &[libc::EACCES]),
    ("symlink-outside", 2, &[libc::EACCES]),
    ("link-outside", 2, &[libc::EACCES]),
    ("link-in", 2, &[libc::EACCES, libc::EXDEV]),
    ("link-from-inputs", 2, &[libc::EACCES, libc::EXDEV]),
    ("link-to-inputs", 2, &[libc::EACCES, libc::EXDEV]),
    ("rename-outside", 2, &[libc::EACCES]),
    ("rename-in", 2, &[libc::EACCES, libc::EXDEV]),
    ("rename-out", 2, &[libc::EACCES, libc::EXDEV]),
    ("unlink-outside", 2, &[libc::EACCES]),
    ("rmdir-outside", 2, &[libc::EACCES]),
    ("write-inputs", 2, &[libc::EACCES]),
    ("write-fifo-of-inputs", 2, &[libc::EACCES]),
    ("read-and-write-fifo-of-inputs", 2, &[libc::EACCES]),
    ("truncate-inputs", 3, &[libc::EACCES]),
    ("make-in-inputs", 2, &[libc::EACCES]),
    ("unlink-inputs", 2, &[libc::EACCES]),
    ("rename-to-inputs", 2, &[libc::EACCES, libc::EXDEV]),
    ("rename-from-inputs", 2, &[libc::EACCES, libc::EXDEV]),
    ("device-in-mount", 2, &[libc::EACCES]),
    ("execute-in-mount", 2, &[libc::EACCES]),
    ("connect-tcp", 4, &[libc::EACCES]),
    ("bind-tcp", 4, &[libc::EACCES]),
    ("connect-abstract", 6, &[libc::EPERM]),
    ("signal-another", 6, &[libc::EPERM]),
];

/// What the filter refuses, as a kernel would that has no such call.
const CALLS: &[&str] = &[
    // The network, and any listener.
    "socket-inet",
    "socket-inet6",
    "socket-unix",
    "socket-netlink",
    "socket-packet",
    "socket-vsock",
    "socket-alg",
    "socketpair",
    "sendmsg",
    "recvmsg",
    // Ways around a filter, and large doors of the kernel.
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "io_setup",
    "userfaultfd",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "seccomp",
    "landlock_create_ruleset",
    // Other processes.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "kill",
    "tkill",
    "tgkill-another",
    "rt_sigqueueinfo",
    "pidfd_open",
    "pidfd_getfd",
    "pidfd_send_signal",
    "prlimit64",
    "setrlimit",
    "sched_setaffinity",
    "setpriority",
    "setpgid",
    // New programs and processes.
    "execve",
    "execveat",
    "memfd_create",
    "fork",
    "clone-untraced",
    "clone-with-memory",
    "clone3",
    "personality",
    "map-executable",
    "map-file",
    "map-shared",
    "mprotect-executable",
    "pkey_mprotect",
    // Namespaces and mounts.
    "clone-new-user",
    "clone-new-mount",
    "clone-new-network",
    "clone-new-pid",
    "unshare-user",
    "unshare-mount",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "chdir",
    "fchdir",
    "open_tree",
    "move_mount",
    "fsopen",
    "mount_setattr",
    // Files beyond what the agent does with them, and what outlives the sandbox.
    "openat2",
    "open_by_handle_at",
    "name_to_handle_at",
    "openat-set-uid",
    "openat-set-gid",
    "mkdirat-set-gid",
    "fchmod-set-uid",
    "fchmod-set-gid",
    "fchmod-sticky",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "mknodat",
    "symlinkat",
    "linkat-follow-by-descriptor",
    "renameat2-replace",
    "renameat2-exchange",
    "renameat2-whiteout",
    "utimensat",
    "fallocate-grow",
    "fallocate-punch-hole",
    "fallocate-zero",
    "ioctl-reserve",
    "ioctl-reserve-64",
    "ioctl-extent-size-hint",
    "ioctl-set-flags",
    "ioctl-zero-range",
    "ioctl-create-subvolume",
    "ioctl-snapshot",
    "ioctl-subvolume-flags",
    "ioctl-create-bcachefs-subvolume",
    "sendfile",
    "splice",
    "vmsplice",
    "pipe2",
    "dup3",
    "inotify_init1",
    "fanotify_init",
    "shmget",
    "mq_open",
    "ioctl-type-into-terminal",
    "fcntl-set-flags",
    "fcntl-set-owner",
    "fcntl-duplicate",
    // What it took from itself, and who it is.
    "prctl-dumpable",
    "prctl-death-signal",
    "setuid",
    "setgroups",
    "capset",
    // The machine.
    "init_module",
    "finit_module",
    "delete_module",
    "reboot",
    "sethostname",
    "syslog",
    "swapon",
    "swapoff",
    "quotactl",
    "acct",
    "clock_settime",
    "adjtimex",
];

/// The same, of the calls and older names that this architecture alone has.
#[cfg(target_arch = "x86_64")]
const CALLS_OF_X86: &[&str] = &[
    "open", "creat", "mkdir", "mknod", "chmod", "chown", "link", "symlink", "unlink", "rename",
    "fork-by-its-name", "vfork", "modify_ldt", "arch_prctl", "ioperm", "iopl", "kexec_load",
];
#[cfg(not(target_arch = "x86_64"))]
const CALLS_OF_X86: &[&str] = &[];

/// What programs may do in addition to the agent.
const INSIDE_OF_PROGRAMS: &[&str] = &[
    "read-etc-passwd", "list-root", "read-outside", "fork", "clone-untraced", "socket-inet",
    "socket-inet6", "socket-unix", "connect-tcp", "bind-tcp", "map-executable", "map-file",
    "map-shared", "memfd_create", "mknodat", "symlinkat", "openat-no-mode", "fchmodat-plain",
    "mkdirat-set-gid", "prlimit64-files", "prlimit64-ask", "prlimit64-ask-another", "own-priority",
    "chown-to-oneself", "socket-netlink",
];

/// What of [`OUTSIDE`] the rules on files refuse programs too.
const OUTSIDE_OF_PROGRAMS: &[&str] = &[
    "write-outside",
    "append-outside",
    "truncate-by-open",
    "truncate-outside",
    "make-outside",
    "mkdir-outside",
    "fifo-outside",
    "unix-socket-outside",
    "symlink-outside",
    "link-outside",
    "link-in",
    "link-from-inputs",
    "link-to-inputs",
    "rename-outside",
    "rename-in",
    "rename-out",
    "unlink-outside",
    "rmdir-outside",
    "write-inputs",
    "write-fifo-of-inputs",
    "read-and-write-fifo-of-inputs",
    "truncate-inputs",
    "make-in-inputs",
    "unlink-inputs",
    "rename-to-inputs",
    "rename-from-inputs",
    "device-in-mount",
    "connect-abstract",
    "signal-another",
];

/// What the filters do not permit programs.
const FORBIDDEN: &[&str] = &[
    "clone-new-user", "clone-new-mount", "clone-new-network", "clone-new-pid", "unshare-user",
    "unshare-mount", "setns", "socket-netlink-diagnosis", "socket-netlink-firewall",
    "socket-netlink-audit", "socket-netlink-events", "socket-netlink-generic", "pair-netlink",
    "socket-packet", "socket-vsock", "socket-alg", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "userfaultfd", "keyctl", "add_key", "request_key", "bpf",
    "perf_event_open", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
    "kcmp", "pidfd_getfd", "openat-set-uid", "openat-set-gid", "openat-unnamed-set-uid",
    "mknodat-set-uid", "renameat2-whiteout", "fchmod-set-uid", "fchmod-set-gid", "fchmodat",
    "fchmodat2", "prlimit64", "prlimit64-core-and-ask", "ioctl-type-into-terminal",
    "ioctl-linux-console", "socket-sctp", "socket-smc", "fcntl-lease", "fcntl-notify",
];

/// What succeeds without effect: nothing has changed that can be asked for.
const UNCHANGED: &[&str] = &[
    "prlimit64-core",
    "prlimit64-mark",
    "setrlimit-core",
    "setrlimit-mark",
    "setpriority-of-another",
    "setpriority-of-a-group",
    "ioprio_set-of-another",
    "ioprio_set-of-a-group",
    "sched_setscheduler-of-another",
];

/// The same, where the kernel would refuse the request, or it affects no one.
const WITHOUT_EFFECT: &[&str] = &[
    "setpriority-of-a-user", "ioprio_set-of-everybody", "sched_setparam-of-another",
    "sched_setattr-of-another",
];

/// What root, as the one user of its sandbox, changes by no call; others are refused it by the kernel.
const OWNERS: &[&str] = &["chown-to-another", "chgrp-to-another", "fchown-to-another"];

/// The same, by the older names of this architecture.
#[cfg(target_arch = "x86_64")]
const FORBIDDEN_OF_X86: &[&str] = &["open-set-uid", "creat-set-gid", "mknod-set-uid", "chmod"];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_OF_X86: &[&str] = &[];

/// What takes space that no limit counts, but where the kernel bounds it.
const UNCOUNTED: &[&str] = &[
    "setxattr", "lsetxattr", "fsetxattr", "fallocate-grow", "fallocate-keep-size", "fallocate-zero",
];

/// What takes space that no limit counts, or sets what is left of a file.
const RESERVING: &[&str] = &[
    "landlock_create_ruleset", "ioctl-reserve", "ioctl-reserve-64", "ioctl-extent-size-hint",
    "ioctl-set-flags", "ioctl-zero-range",
];

/// I/O that nothing interrupts.
const DIRECT: &[&str] = &[
    "openat-direct",
    "fcntl-direct",
    #[cfg(target_arch = "x86_64")]
    "open-direct",
];

/// Sockets whose every message may go to another address.
const DATAGRAMS: &[&str] = &["socket-unix-datagram", "socket-unix-raw", "pair-unix-datagram"];

/// What there is not for programs.
const ABSENT: &[&str] = &[
    "clone3", "openat2", "io_setup", "open_by_handle_at", "mount", "umount2", "pivot_root",
    "chroot", "open_tree", "move_mount", "fsopen", "mount_setattr", "fanotify_init", "init_module",
    "finit_module", "delete_module", "reboot", "sethostname", "syslog", "swapon", "swapoff",
    "quotactl", "acct", "clock_settime",
];

/// Whom attacks are aimed at: folders are made anew for each, the rest does not change.
struct Field {
    uid: u32,
    other: Child,
    tcp: TcpListener,
    _unix: UnixListener,
    socket: String,
}

impl Field {
    fn new(uid: u32) -> Self {
        let mut other = Command::new("cat");
        other.stdout(Stdio::null());
        Self::aimed_at(uid, other)
    }

    /// With another process of the user's that is not `cat`.
    fn aimed_at(uid: u32, mut other: Command) -> Self {
        other.stdin(Stdio::piped());
        if geteuid().is_root() {
            other.uid(uid).gid(uid);
        }
        // The port has no other listener, so the name is free too.
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = format!("sandboxctl-confinement-{}", tcp.local_addr().unwrap().port());
        let address = SocketAddr::from_abstract_name(&socket).unwrap();
        Self {
            uid,
            other: other.spawn().unwrap(),
            tcp,
            _unix: UnixListener::bind_addr(&address).unwrap(),
            socket,
        }
    }

    /// A field a user: root, where the tests are root's, and one without rights.
    fn of_all_users() -> Vec<Self> {
        let uids = if geteuid().is_root() { vec![0, 4321] } else { vec![geteuid().as_raw()] };
        uids.into_iter().map(Self::new).collect()
    }

    fn attack(&self, layers: &str, attack: &str) -> Outcome {
        // Outside of the directories that programs may always write to.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        for (name, content) in [
            ("mount/dir", None),
            ("mount/file", Some("content")),
            ("mount/program", Some("no program")),
            ("inputs", None),
            ("inputs/file", Some("content")),
            ("outside/dir", None),
            ("outside/secret", Some("secret")),
        ] {
            let path = folder.path().join(name);
            match content {
                Some(content) => fs::write(path, content).unwrap(),
                None => fs::create_dir_all(path).unwrap(),
            }
        }
        let fifo = folder.path().join("inputs/fifo");
        mknodat(CWD, fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let program = folder.path().join("mount/program");
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        self.give(folder.path());
        let at = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_attacker"))
            .args([layers, &self.uid.to_string(), attack])
            .args([at("mount"), at("inputs"), at("outside")])
            .args([self.other.id().to_string(), self.tcp.local_addr().unwrap().port().to_string()])
            .arg(&self.socket)
            .output()
            .unwrap();
        if let Some(signal) = output.status.signal() {
            return Outcome::Signal(signal);
        }
        let said = String::from_utf8(output.stdout).unwrap();
        match said.trim() {
            "done" => Outcome::Done,
            // Silence, as of a panic, is no answer.
            errno => Outcome::Errno(errno.parse().unwrap_or_else(|_| {
                panic!("{attack}: {:?} {}", output.status, String::from_utf8_lossy(&output.stderr))
            })),
        }
    }

    /// Everything in it belongs to the user.
    fn give(&self, path: &Path) {
        if !geteuid().is_root() {
            return;
        }
        chown(path, Some(self.uid), Some(self.uid)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.give(&entry.unwrap().path());
            }
        }
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        _ = self.other.kill();
        _ = self.other.wait();
    }
}

/// What the kernel's Landlock refuses.
fn outside() -> impl Iterator<Item = (&'static str, &'static [i32])> {
    let Ok(Support::Abi(abi)) = support() else {
        panic!("the kernel of the tests has no Landlock");
    };
    OUTSIDE.iter().filter(move |(_, least, _)| *least <= abi).map(|&(name, _, how)| (name, how))
}

fn calls() -> impl Iterator<Item = &'static str> {
    CALLS.iter().chain(CALLS_OF_X86).copied()
}

#[test]
fn landlock_alone_keeps_native_code_in_its_mounts() {
    for field in Field::of_all_users() {
        for (attack, errnos) in outside() {
            let refused = |outcome| matches!(outcome, Outcome::Errno(it) if errnos.contains(&it));
            let outcome = field.attack("landlock", attack);
            assert!(refused(outcome), "{attack} as {}: {outcome:?}", field.uid);
            let control = field.attack("none", attack);
            assert!(!refused(control), "{attack} is refused without Landlock too: {control:?}");
        }
    }
}

#[test]
fn the_filter_alone_refuses_every_call_that_the_agent_does_not_need() {
    // The attacker is the strongest user.
    let field = Field::new(geteuid().as_raw());
    let refused = Outcome::Errno(libc::ENOSYS);
    let mut unproven = Vec::new();
    for attack in calls() {
        assert_eq!(field.attack("seccomp", attack), refused, "{attack}");
        if field.attack("none", attack) == refused {
            unproven.push(attack);
        }
    }
    assert!(unproven.iter().all(|attack| OPTIONAL.contains(attack)), "{unproven:?}");
}

#[test]
fn landlock_alone_keeps_programs_from_writing_beyond_their_mounts() {
    for field in Field::of_all_users() {
        for (attack, errnos) in outside().filter(|(name, _)| OUTSIDE_OF_PROGRAMS.contains(name)) {
            let refused = |outcome| matches!(outcome, Outcome::Errno(it) if errnos.contains(&it));
            let outcome = field.attack("landlock of programs", attack);
            assert!(refused(outcome), "{attack} as {}: {outcome:?}", field.uid);
            let control = field.attack("none", attack);
            assert!(!refused(control), "{attack} is refused without Landlock too: {control:?}");
        }
    }
    let known: Vec<_> = OUTSIDE.iter().map(|(name, ..)| name).collect();
    assert!(OUTSIDE_OF_PROGRAMS.iter().all(|name| known.contains(&name)));
}

#[test]
fn the_filters_alone_refuse_calls_outside_of_the_allow_list() {
    let field = Field::new(geteuid().as_raw());
    let forbidden = FORBIDDEN.iter().chain(FORBIDDEN_OF_X86).map(|attack| (attack, libc::EPERM));
    let absent = ABSENT.iter().map(|attack| (attack, libc::ENOSYS));
    let mut unproven = Vec::new();
    let reserving = UNCOUNTED.iter().chain(RESERVING);
    let reserving = reserving.map(|attack| (attack, libc::EOPNOTSUPP));
    let datagrams = DATAGRAMS.iter().map(|attack| (attack, libc::ESOCKTNOSUPPORT));
    let direct = DIRECT.iter().map(|attack| (attack, libc::EINVAL));
    let refused = forbidden.chain(absent).chain(reserving).chain(datagrams).chain(direct);
    for (attack, errno) in refused {
        let refused = Outcome::Errno(errno);
        assert_eq!(field.attack("seccomp of programs", attack), refused, "{attack}");
        if field.attack("none", attack) == refused {
            unproven.push(*attack);
        }
    }
    assert!(unproven.iter().all(|attack| OPTIONAL.contains(attack)), "{unproven:?}");
}

#[test]
fn calls_that_take_uncounted_space_are_free_where_the_kernel_bounds_it_and_no_others() {
    let field = Field::new(geteuid().as_raw());
    let attack = |attack| field.attack("seccomp of programs with a bounded io dir", attack);
    for name in UNCOUNTED.iter().chain(DIRECT) {
        assert_eq!(attack(name), field.attack("none", name), "{name}");
    }
    for name in RESERVING {
        assert_eq!(attack(name), Outcome::Errno(libc::EOPNOTSUPP), "{name}");
    }
    for name in FORBIDDEN.iter().chain(FORBIDDEN_OF_X86) {
        assert_eq!(attack(name), Outcome::Errno(libc::EPERM), "{name}");
    }
}

#[test]
fn what_programs_ask_for_without_effect_changes_nothing() {
    let field = Field::new(geteuid().as_raw());
    let unchanged = UNCHANGED.iter().map(|attack| (attack, Outcome::Errno(libc::EALREADY)));
    let without_effect = WITHOUT_EFFECT.iter().map(|attack| (attack, Outcome::Done));
    let owners = OWNERS.iter().filter(|_| geteuid().is_root());
    let owners = owners.map(|attack| (attack, Outcome::Errno(libc::EALREADY)));
    for (attack, expected) in unchanged.chain(without_effect).chain(owners) {
        let outcome = field.attack("seccomp of unsupervised programs", attack);
        assert_eq!(outcome, expected, "{attack}");
        assert_ne!(field.attack("none", attack), expected, "{attack} without the filters");
    }
    // The kernel protects another user's programs.
    if geteuid().is_root() {
        let field = Field::new(4321);
        for attack in OWNERS {
            let outcome = field.attack("seccomp of unsupervised programs", attack);
            assert_eq!(outcome, Outcome::Errno(libc::EPERM), "{attack}");
        }
    }
}

#[test]
fn programs_can_do_their_work_and_nothing_that_is_refused() {
    for field in Field::of_all_users() {
        for layers in ["landlock of programs", "seccomp of programs", "programs"] {
            let work = INSIDE.iter().chain(INSIDE_OF_PROGRAMS);
            for &work in work.filter(|&&work| work != "reserve in the mount") {
                let outcome = field.attack(layers, work);
                assert_eq!(outcome, Outcome::Done, "{work} under {layers} as {}", field.uid);
            }
            // The file system, or the descriptor, says no: not the filter.
            let outcome = field.attack(layers, "ioctl-clone");
            assert_eq!(outcome, Outcome::Errno(libc::EBADF), "{layers}");
            // A program would have been executed. A child of another test may still have the
            // descriptor by which it was written.
            let is_busy = |outcome: &Outcome| *outcome == Outcome::Errno(libc::ETXTBSY);
            let mut outcomes = (0..100).map(|_| field.attack(layers, "execute-in-mount"));
            let outcome = outcomes.find(|outcome| !is_busy(outcome));
            assert_eq!(outcome, Some(Outcome::Errno(libc::ENOEXEC)), "{layers}");
        }
        let refused = outside().map(|(name, _)| name).filter(|it| OUTSIDE_OF_PROGRAMS.contains(it));
        for attack in refused.chain([FORBIDDEN, FORBIDDEN_OF_X86, ABSENT].concat()) {
            let outcome = field.attack("programs", attack);
            let refusals = [libc::EACCES, libc::EXDEV, libc::EPERM, libc::ENOSYS];
            assert!(
                matches!(outcome, Outcome::Errno(errno) if refusals.contains(&errno)),
                "{attack} as {}: {outcome:?}",
                field.uid
            );
        }
    }
}

#[test]
fn a_sealed_process_is_closed_to_others_of_its_user() {
    // Not root, to whom every process is open.
    let uid = if geteuid().is_root() { 4321 } else { geteuid().as_raw() };
    // Where that user may execute and read it: else the kernel would close it by itself. Copied by
    // another program: a child of another test could hold this process's descriptor open for
    // writing, and the file could not be executed.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("attacker");
    let mut copy = Command::new("install");
    copy.args(["-m", "755", env!("CARGO_BIN_EXE_attacker")]).arg(&program);
    assert!(copy.status().unwrap().success());
    for (layers, expected) in [("seal", Outcome::Errno(libc::EACCES)), ("none", Outcome::Done)] {
        let mut other = Command::new(&program);
        other.args([layers, &uid.to_string(), "wait", "/", "/", "/", "0", "0", "none"]);
        other.stdout(Stdio::piped());
        let mut field = Field::aimed_at(uid, other);
        let mut ready = [0; 6];
        field.other.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        for attack in ["read-environ-of-another", "list-descriptors-of-another"] {
            assert_eq!(field.attack("none", attack), expected, "{attack} after {layers}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_by_another_architectures_numbers_ends_the_process() {
    let field = Field::new(geteuid().as_raw());
    for attack in ["x32", "int-0x80"] {
        for layers in ["seccomp", "all", "seccomp of programs"] {
            assert_eq!(field.attack(layers, attack), Outcome::Signal(libc::SIGSYS), "{attack}");
        }
        assert_ne!(field.attack("none", attack), Outcome::Signal(libc::SIGSYS), "{attack}");
    }
}

#[test]
fn confined_as_the_agent_is_native_code_can_do_its_work_and_nothing_else() {
    for field in Field::of_all_users() {
        for layers in ["landlock", "seccomp", "all"] {
            for &work in INSIDE {
                let outcome = field.attack(layers, work);
                assert_eq!(outcome, Outcome::Done, "{work} under {layers} as {}", field.uid);
            }
        }
        for attack in outside().map(|(attack, _)| attack).chain(calls()) {
            let outcome = field.attack("all", attack);
            let refusals = [libc::EACCES, libc::EXDEV, libc::EPERM, libc::ENOSYS];
            assert!(
                matches!(outcome, Outcome::Errno(errno) if refusals.contains(&errno)),
                "{attack} as {}: {outcome:?}",
                field.uid
            );
        }
    }
}
