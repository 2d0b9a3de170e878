//! Hostile programs: what they try against the agent, the container, the io dir and the machine, in a
//! real sandbox, as root without rights and as a user. `sandbox-image/tests/confinement.rs` has the
//! agent's layers one by one, `sandbox-image/tests/session/exec.rs` what becomes of what they start.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::time::Duration;

use sandbox_api::{
    ByteSize, CancelCause, ErrorKind, ExecutionResult, Exit, Limits, Outcome, SandboxSpec,
    UnixSockets,
};
use sandbox_controller::{CancelHandle, Command, MASKED_PATHS};
use serde_json::json;

use crate::agent::{Actor, attacker};
use crate::engine::{Engine, engine};
use crate::engines::{Feature, Kind, has, kind, most_descriptors, out_of_memory};
use crate::fixture::{Fixture, finish};
use crate::library::{Guest, NextEvent as _};
use crate::rootfs::{Provided, Rootfs};

const EPERM: &str = "1";
const ENOENT: &str = "2";
const EBADF: &str = "9";
const EACCES: &str = "13";
const EFAULT: &str = "14";
const EXDEV: &str = "18";
const EMFILE: &str = "24";
const EROFS: &str = "30";
const ENOSYS: &str = "38";
const EOPNOTSUPP: &str = "95";
const EALREADY: &str = "114";

/// A sandbox with busybox, the program that attacks, and what would be theirs to change if the mode of
/// a file were all that protects it.
struct Hostile {
    guest: Guest,
    owner: (u32, u32),
    _provided: Provided,
}

fn rootfs() -> Rootfs {
    Rootfs::busybox()
        .copy("bin/attacker", attacker())
        .folder("open", 0o777)
        .file("open/secret", 0o666, "content")
        .folder("open/dir", 0o777)
        .file("bin/rooted", 0o6755, "#!/bin/sh\n")
        .folder("grouped", 0o2755)
        .file("grouped/file", 0o644, "content")
        .folder("tmp", 0o1777)
}

impl Hostile {
    fn new() -> Self {
        Self::with(None, |spec| spec)
    }

    /// One whose io dir is root's, where the tests are root's, and one of a user's.
    fn of_all_users() -> Vec<Self> {
        let user = rustix::process::geteuid().is_root().then_some((4321, 4322));
        [None].into_iter().chain(user.map(Some)).map(|owner| Self::with(owner, |it| it)).collect()
    }

    fn with(owner: Option<(u32, u32)>, spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        let provided = rootfs().provide();
        let place = Fixture::new();
        let io_dir = place.path("sandbox-files");
        std::fs::create_dir(&io_dir).unwrap();
        place.write("sandbox-files/file", "content");
        for path in [&io_dir, &io_dir.join("file")] {
            let (uid, gid) = owner.unzip();
            chown(path, uid, gid).unwrap();
        }
        let metadata = std::fs::metadata(&io_dir).unwrap();
        let owner = (metadata.uid(), metadata.gid());
        // Time for a busy machine.
        let limits = Limits { timeout: Duration::from_secs(120), ..Limits::default() };
        let guest = Guest::in_place(place, |it| spec(it.root(provided.root()).limits(limits)));
        Self { guest, owner, _provided: provided }
    }

    fn exec(&self, command: Command) -> ExecutionResult {
        self.guest.wait(self.guest.sandbox.run(command)).unwrap()
    }

    /// An attack, as the sandbox's user.
    fn attack(&self, name: &str) -> Command {
        let uid = self.owner.0.to_string();
        Command::new("attacker").args(["none", &uid, name, "/io", "/in", "/open", "1", "1", "none"])
    }

    /// What came of an attack: `done`, or an errno.
    #[track_caller]
    fn struck(&self, attack: &str) -> String {
        let result = self.exec(self.attack(attack));
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{attack}: {result:#?}");
        String::from_utf8(result.stdout().bytes.clone()).unwrap().trim().to_owned()
    }

    /// What a line of the shell prints, for any exit status.
    fn prints(&self, line: &str) -> String {
        String::from_utf8(self.exec(Command::shell(line)).stdout().bytes.clone()).unwrap()
    }

    /// A process's own status, by field.
    fn status(&self) -> BTreeMap<String, String> {
        let text = self.prints("cat /proc/self/status");
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    }

    /// Asserts that only the agent is left, and that it works.
    #[track_caller]
    fn assert_well_and_alone(&self) {
        assert_eq!(self.prints("set -- /proc/[0-9]*; echo $#"), "2\n");
    }
}

#[test]
fn a_program_is_unprivileged() {
    for hostile in Hostile::of_all_users() {
        let status = hostile.status();
        let (uid, gid) = hostile.owner;
        let four = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
        assert_eq!((&status["Uid"], &status["Gid"]), (&four(uid), &four(gid)));
        // Without root the groups of its user cannot be dropped. Inside they have no number.
        let gid = gid.to_string();
        let is_kept = |group: &str| kind() == Kind::Rootless && group == "65534";
        let mut groups = status["Groups"].split_whitespace();
        assert!(groups.all(|group| group == gid || is_kept(group)), "{status:?}");
        let reported = |field: &&str| has(Feature::SharedKernel) || status.contains_key(*field);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].into_iter().filter(reported) {
            assert_eq!(u64::from_str_radix(&status[set], 16), Ok(0), "{set}");
        }
        for (field, value) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Umask", "0022")] {
            assert!(!reported(&field) || status[field] == value, "{field}");
        }
        assert_eq!(status["Seccomp"], "2");
    }
}

#[test]
fn processor_time_of_processes_without_a_waiter_is_counted() {
    if !has(Feature::SharedKernel) || !has(Feature::OutOfMemory) {
        // Its control groups are not read.
        return;
    }
    let hostile = Hostile::new();
    // The second one without what the first one used.
    for _ in 0..2 {
        let result = hostile.exec(hostile.attack("burn-unseen"));
        let cpu = result.usage.cpu_ms.unwrap();
        assert!((1000..2000).contains(&cpu), "{result:#?}");
    }
}

#[test]
fn a_program_sees_itself_and_the_agent_and_nothing_of_the_host() {
    let hostile = Hostile::new();
    hostile.assert_well_and_alone();
    let agent = hostile.prints("tr '\\0' '\\n' </proc/1/cmdline | head -n 1");
    assert!(agent.starts_with("/.sandbox-") || agent == "sandbox-agent\n", "{agent}");
    assert_eq!(hostile.prints("cat /proc/1/comm"), "sandbox-agent\n");
    for name in ["pid", "net", "mnt", "ipc", "uts"] {
        let host = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        let seen = hostile.prints(&format!("readlink /proc/self/ns/{name}"));
        assert_ne!(seen.trim(), host.to_str().unwrap(), "{name}");
        assert!(seen.starts_with(name), "{seen}");
    }
    let devices = hostile.prints("cat /proc/net/dev");
    let devices = devices.lines().filter_map(|line| line.split_once(':'));
    assert_eq!(devices.map(|(name, _)| name.trim()).collect::<Vec<_>>(), ["lo"]);
    assert_eq!(hostile.prints("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
    // No variables of sandboxctl or the engine except the host's name, and Podman's two.
    let names = hostile.prints("env | sed 's/=.*//' | sort | tr '\\n' ' '");
    let names = ["HOSTNAME ", "TERM ", "container "]
        .iter()
        .fold(names, |names, engines| names.replace(engines, ""));
    let git = "GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0";
    let expected = format!("{git} HOME LANG LOGNAME PATH PWD PYTHONUNBUFFERED SHLVL TMPDIR USER ");
    assert_eq!(names, expected);
    assert_eq!(hostile.prints("echo $HOME $TMPDIR; pwd"), "/io /tmp\n/io\n");
}

#[test]
fn program_learns_of_the_host_what_programs_need_and_not_its_hardware_disks_or_boot() {
    let hostile = Hostile::new();
    let masked: Vec<_> =
        MASKED_PATHS.iter().copied().filter(|path| *path != "/sys/devices").collect();
    let masked = masked.join(" ");
    let read = format!("for path in {masked}; do cat $path || ls -A $path; done 2>/dev/null");
    let masked = hostile.prints(&read);
    if has(Feature::SharedKernel) {
        assert_eq!(masked, "");
        // As `/proc/cpuinfo` says, and nothing else of the devices.
        let lists =
            ["online", "possible", "present"].map(|name| format!("/sys/devices/system/cpu/{name}"));
        let found = hostile.prints("find /sys/devices -type f -o -type l | sort");
        assert_eq!(found.lines().collect::<Vec<_>>(), lists);
        for list in lists {
            let host = std::fs::read_to_string(&list).unwrap();
            assert_eq!(hostile.prints(&format!("cat {list}")), host, "{list}");
        }
    } else {
        // Another kernel's own.
        let boot = std::fs::read_to_string("/proc/cmdline").unwrap();
        assert!(!masked.contains(boot.trim()), "{masked}");
    }
    // Without these many programs do not run, or not well.
    let mut needed = "meminfo cpuinfo stat loadavg uptime version filesystems self/status \
                      self/maps self/mountinfo"
        .to_owned();
    if has(Feature::SharedKernel) {
        needed += " vmstat sys/kernel/osrelease sys/kernel/random/uuid";
    }
    let read = format!("for file in {needed}; do head -c 1 /proc/$file | wc -c; done | sort -u");
    assert_eq!(hostile.prints(&read), "1\n");
}

#[test]
fn program_that_binds_the_agent_to_a_processor_changes_nothing_else_of_it() {
    let hostile = Hostile::new();
    // Its priority and policy, which it inherits from its parent.
    let others = || hostile.prints("cut -d ' ' -f 18,19,40,41 /proc/1/stat");
    let before = others();
    assert_eq!(before.split(' ').count(), 4, "{before}");
    let bind =
        "for thread in /proc/1/task/*; do taskset -p 1 ${thread##*/} >/dev/null || exit 1; done";
    // Without root its processors are a limit, which no program changes.
    let bound = i32::from(kind() == Kind::Rootless);
    assert_eq!(hostile.exec(Command::shell(bind)).command_exit_code(), Some(bound));
    assert_eq!(others(), before);
    // For programs that set a thread's priority by its own id, the call reports success and does
    // nothing.
    for (attack, outcome) in [
        ("sched_setscheduler-of-another", EALREADY),
        ("setpriority-of-another", EALREADY),
        ("ioprio_set-of-another", EALREADY),
        ("setpriority-of-a-user", "done"),
        ("ioprio_set-of-everybody", "done"),
    ] {
        assert_eq!(hostile.struck(attack), outcome, "{attack}");
    }
    assert_eq!(others(), before);
    hostile.assert_well_and_alone();
}

#[test]
fn commands_see_their_own_limits_in_control_groups_that_they_cannot_change() {
    if !has(Feature::CgroupNamespace) {
        return;
    }
    for hostile in Hostile::of_all_users() {
        let memory = hostile.prints(
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null",
        );
        assert_eq!(memory.trim().parse(), Ok(Limits::default().memory.as_u64()));
        let table = hostile.prints("cat /proc/self/mountinfo");
        let groups = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let groups: Vec<_> =
            groups.filter(|it| it.contains(&"cgroup") || it.contains(&"cgroup2")).collect();
        assert!(!groups.is_empty(), "{table}");
        for fields in groups {
            let [root, target, options] = [fields[3], fields[4], fields[5]];
            let options: Vec<_> = options.split(',').collect();
            assert!(options.contains(&"ro") && options.contains(&"nosuid"), "{fields:?}");
            assert_eq!(root, "/", "{fields:?}");
            // The shell and its children, in the sandbox's own numbers: no processes of other
            // groups. One of the engine's may appear as 0 there.
            let seen = hostile.prints(&format!("cat {target}/cgroup.procs"));
            let seen: Vec<u32> = seen.lines().map(|pid| pid.parse().unwrap()).collect();
            assert!((1..=4).contains(&seen.len()), "{target}: {seen:?}");
            let line = format!("cd {target}; for name in * ; do [ -d $name ] && echo $name; done");
            assert_eq!(hostile.prints(&line), "", "{target}");
            let line = format!(
                "cd {target}; mkdir x && echo made; echo $$ > cgroup.procs && echo written; true"
            );
            assert_eq!(hostile.prints(&line), "", "{target}");
        }
        let refused = hostile.struck("write-control-group");
        assert!([EROFS, EACCES].contains(&&*refused), "{refused}");
    }
}

#[test]
fn loopback_of_a_sandbox_is_its_own_to_use_and_not_to_change() {
    for hostile in Hostile::of_all_users() {
        for attack in ["bind-low-port", "ping-oneself", "netlink-list-devices"] {
            assert_eq!(hostile.struck(attack), "done", "{attack} as {:?}", hostile.owner);
        }
        assert_eq!(hostile.prints("ip -o link | cut -d ' ' -f 2"), "lo:\n");
        assert_ne!(
            hostile.exec(Command::shell("ip link set lo down")).command_exit_code(),
            Some(0)
        );
        assert_eq!(hostile.struck("bind-tcp"), "done");
    }
}

/// What gpg, an agent for keys and a sanitizer turn off is off.
#[test]
fn turning_core_dumps_off_succeeds_and_leaves_the_limit() {
    for hostile in Hostile::of_all_users() {
        let line = "ulimit -c 0; echo $?; ulimit -Hc 0; echo $?; grep core /proc/self/limits";
        let reported = hostile.prints(line);
        let reported: Vec<_> = reported.split_whitespace().collect();
        let limit = if has(Feature::SharedKernel) { "1" } else { reported[6] };
        assert_eq!(reported, ["0", "0", "Max", "core", "file", "size", limit, limit, "bytes"]);
    }
}

#[test]
fn programs_set_their_own_priority_by_zero_and_by_their_number() {
    for hostile in Hostile::of_all_users() {
        assert_eq!(hostile.struck("own-priority"), "done");
        let supervised = hostile.guest.sandbox.confinement().unix_sockets;
        // Where no supervisor knows whose number it is, nothing happens.
        let expected = if supervised == UnixSockets::Supervised { "done" } else { EALREADY };
        assert_eq!(hostile.struck("own-priority-by-id"), expected);
        assert_eq!(hostile.prints("renice -n 5 -p $$; echo $?"), "0\n");
    }
}

/// One user, one rule: it owns its files, even against root. Elsewhere the kernel refuses.
#[test]
fn chown_by_root_succeeds_and_changes_nothing() {
    for hostile in Hostile::of_all_users() {
        let (uid, gid) = hostile.owner;
        let code = if uid == 0 { 0 } else { 1 };
        for line in ["chown 1234:1235 file", "chgrp 1235 file", "chown -R 1234 ."] {
            let result = hostile.exec(Command::shell(line));
            assert_eq!(result.command_exit_code(), Some(code), "{line} as {uid}: {result:?}");
        }
        let line = format!("chown {uid}:{gid} file && stat -c %u:%g file");
        assert_eq!(hostile.prints(&line), format!("{uid}:{gid}\n"));
        // The kernel's own answer, where no other owner is named.
        assert_ne!(
            hostile.exec(Command::shell(format!("chown {uid} none"))).command_exit_code(),
            Some(0)
        );
    }
}

#[test]
fn programs_beside_each_other_do_not_look_into_each_other() {
    for hostile in Hostile::of_all_users() {
        let guest = &hostile.guest;
        let other = Command::shell("echo $$; exec sleep 1000").env("SECRET", "of the other");
        let mut other = guest.wait(guest.sandbox.start(other, CancelHandle::new())).unwrap();
        let (_, pid) = guest.wait(other.next_output()).unwrap();
        let pid = String::from_utf8(pid.to_vec()).unwrap();
        let pid = pid.trim();
        if !has(Feature::CommandsAtOnce) {
            let refused = hostile.exec(Command::new("true"));
            let failure = refused.outcome.failure().unwrap();
            assert_eq!(failure.kind, ErrorKind::Busy, "{failure:?}");
            continue;
        }
        let line = format!(
            "cd /proc/{pid} && grep -c . comm; for file in environ mem maps fd/1 exe; do
                (cat <$file) >/dev/null 2>&1 && echo $file
            done; grep -c SECRET /proc/self/environ"
        );
        let looking = Command::shell(line).env("SECRET", "of its own");
        let seen = String::from_utf8(hostile.exec(looking).stdout().bytes.clone()).unwrap();
        assert_eq!(seen, "1\n1\n", "{:?}", hostile.owner);
    }
}

/// Aimed at the agent, at the kernel, at the io dir and at everything else.
#[test]
fn a_hostile_program_gets_nowhere() {
    let refusals: [(&[&str], &[&str]); 5] = [
        // To speak in the agent's name, to look into it, to slow it down.
        (
            &[EACCES],
            &["open-output-of-another", "open-memory-of-another", "read-environ-of-another"],
        ),
        (
            &[EPERM],
            &[
                "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
                "pidfd_getfd", "kcmp", "prlimit64", "prlimit64-core-and-ask", "clone-new-user",
                "clone-new-mount", "clone-new-network", "clone-new-pid", "unshare-user",
                "unshare-mount", "setns", "io_uring_setup", "userfaultfd", "keyctl", "add_key",
                "bpf", "perf_event_open", "socket-raw", "socket-packet",
                "socket-netlink-diagnosis", "socket-netlink-firewall", "socket-netlink-audit",
                "socket-netlink-generic", "netlink-take-device-down", "netlink-remove-device",
                "socket-vsock", "socket-alg", "socket-sctp", "setxattr-capability",
                "openat-set-uid", "openat-set-gid", "openat-unnamed-set-uid", "mknodat-set-uid",
                "renameat2-whiteout", "fchmodat", "fchmodat2", "ioctl-type-into-terminal",
            ],
        ),
        (
            &[ENOSYS],
            &[
                "clone3", "openat2", "io_setup", "open_by_handle_at", "mount", "umount2",
                "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fanotify_init",
                "init_module", "reboot", "syslog", "swapon", "clock_settime",
            ],
        ),
        // Success, and nothing has changed.
        (&[EALREADY], &["prlimit64-core", "prlimit64-mark", "setrlimit-core", "setrlimit-mark"]),
        // Where anybody could write, by the modes alone.
        (
            &[EACCES, EROFS, EXDEV],
            &[
                "write-outside", "append-outside", "truncate-outside", "make-outside",
                "mkdir-outside", "fifo-outside", "symlink-outside", "link-outside", "link-in",
                "rename-outside", "rename-in", "rename-out", "unlink-outside", "rmdir-outside",
                "device-in-mount",
            ],
        ),
    ];
    for hostile in Hostile::of_all_users() {
        for (errnos, attacks) in refusals {
            for attack in attacks {
                let outcome = hostile.struck(attack);
                if !has(Feature::ClosedDescriptors)
                    && ["open-output-of-another", "read-environ-of-another"].contains(attack)
                {
                    assert_eq!(outcome, "done", "{attack}");
                    continue;
                }
                // Programs set no attributes: no limit counts them.
                if *attack == "setxattr-capability" {
                    assert_eq!(outcome, EOPNOTSUPP);
                    continue;
                }
                let errnos = match *attack {
                    "device-in-mount" if !has(Feature::SharedKernel) => &[EPERM],
                    "netlink-take-device-down" | "netlink-remove-device"
                        if !has(Feature::SharedKernel) =>
                    {
                        &[EACCES]
                    }
                    _ => errnos,
                };
                assert!(errnos.contains(&&*outcome), "{attack} as {:?}: {outcome}", hostile.owner);
            }
        }
        hostile.assert_well_and_alone();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_calls_by_another_architectures_numbers_is_killed() {
    let hostile = Hostile::new();
    for attack in ["x32", "int-0x80"] {
        let result = hostile.exec(hostile.attack(attack));
        let killed = matches!(result.outcome, Outcome::Exit(Exit::Signal(31)));
        assert!(killed, "{attack}: {result:#?}");
    }
    hostile.assert_well_and_alone();
}

/// A file with a set-id bit in the io dir would be one on the host.
#[test]
fn no_program_plants_a_set_id_file_whatever_it_tries() {
    for hostile in Hostile::of_all_users() {
        let attempts = "
            cp /bin/busybox sh; chmod 4755 sh; chmod u+s sh; chmod 2755 sh; chmod g+s sh
            cp -p /bin/rooted kept; install -m 6755 /bin/busybox installed
            cp -r /grouped tree; mkdir -m 2755 folder; mkdir plain; chmod g+s plain; mknod -m 4755 fifo p
            (umask 0; cp -a /bin/rooted archived; tar -c -C /bin rooted | tar -x -p)
            cat /bin/rooted >content; mv content moved; ln moved linked
            ln -s /bin/rooted link; chmod 6755 link
            touch /tmp/t; chmod 6755 /tmp/t; mv /tmp/t from-tmp
            true";
        let result = hostile.exec(Command::shell(attempts));
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{result:#?}");
        let io_dir = hostile.guest.place.path("sandbox-files");
        let entries = std::fs::read_dir(&io_dir).unwrap().map(|entry| entry.unwrap());
        let mut names = Vec::new();
        for entry in entries {
            let metadata = entry.metadata().unwrap();
            let (mode, name) = (metadata.permissions().mode(), entry.file_name());
            assert_eq!(mode & 0o6000, 0, "{name:?} has mode {mode:o}");
            assert_eq!((metadata.uid(), metadata.gid()), hostile.owner, "{name:?}");
            names.push(name.into_string().unwrap());
        }
        names.sort();
        for made in ["folder", "link", "linked", "moved", "plain", "sh", "tree"] {
            assert!(names.iter().any(|name| name == made), "{made} is not in {names:?}");
        }
        // Copied with all in it.
        assert!(io_dir.join("tree/file").exists());
    }
}

#[test]
fn a_program_writes_to_the_io_dir_to_what_is_temporary_and_to_nothing_else() {
    for hostile in Hostile::of_all_users() {
        let line = "for place in / /bin /open /etc /proc /sys /dev /.sandbox /io /tmp /dev/shm; do
                (echo x >$place/new) 2>/dev/null && echo $place
            done
            for file in /open/secret /etc/hosts /etc/resolv.conf /.sandbox-*[0-9a-f] \\
                /proc/self/oom_score_adj /proc/1/oom_score_adj /proc/self/comm /proc/self/mem \\
                /proc/sys/kernel/hostname /proc/sysrq-trigger /dev/null; do
                (echo x >>$file) 2>/dev/null && echo $file
            done
            true";
        let printed = hostile.prints(line);
        let mut written: Vec<_> = printed.lines().collect();
        if !has(Feature::SharedKernel) {
            // In the memory of the other kernel, which has no Landlock.
            written.retain(|path| !["/dev", "/proc/self/comm"].contains(path));
        }
        if !has(Feature::NothingToWrite) {
            written.retain(|path| *path != "/run");
        }
        assert_eq!(written, ["/io", "/tmp", "/dev/shm", "/dev/null"], "{:?}", hostile.owner);
    }
}

#[test]
fn pseudoterminals_of_a_sandbox_are_bounded() {
    if engine() != Engine::Embedded {
        // Docker's mount options do not show it.
        return;
    }
    let hostile = Hostile::new();
    assert_eq!(hostile.prints("grep -c '^devpts.*max=64' /proc/mounts"), "1\n");
}

#[test]
fn tmp_is_bounded_in_bytes_and_files() {
    let hostile = Hostile::with(None, |mut spec| {
        spec.limits.tmpfs = ByteSize::b(64 << 20);
        spec.limits.shm = ByteSize::b(16 << 20);
        spec
    });
    let mounts = hostile.prints("cat /proc/mounts");
    for place in ["/tmp", "/dev/shm"] {
        let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = fields.rfind(|fields| fields[1] == place);
        let fields = found.unwrap_or_else(|| panic!("{place} is not mounted: {mounts}"));
        let options: Vec<_> = fields[3].split(',').collect();
        let closed = options.contains(&"nosuid") && options.contains(&"nodev");
        assert!(closed || !has(Feature::SharedKernel), "{fields:?}");
    }
    for (place, most) in [("/tmp", 64 << 20), ("/dev/shm", 16 << 20)] {
        let line = format!(
            "cd {place}; dd if=/dev/zero of=a bs=1M count=10 2>/dev/null; \
             dd if=/dev/zero of=b bs=1M count=20 2>/dev/null; \
             dd if=/dev/zero of=c bs=1M count=40 2>/dev/null; \
             (echo x >d) 2>&1 | grep -o 'No space left'; cat * | wc -c; rm *"
        );
        assert_eq!(hostile.prints(&line), format!("No space left\n{most}\n"), "{place}");
    }
    let line =
        "cd /tmp; seq 1 66000 | xargs -n 1000 touch 2>&1 | grep -o 'No space left' | head -n 1
        set -- *; [ $# -gt 65000 ] && [ $# -lt 65536 ] && echo bounded; [ $# -lt 66000 ] || echo all";
    let expected = if has(Feature::BoundedFiles) { "No space left\nbounded\n" } else { "all\n" };
    assert_eq!(hostile.prints(line), expected);
}

#[test]
fn a_crash_leaves_nothing() {
    let hostile = Hostile::new();
    let line = "for place in /io /tmp; do cd $place; sh -c 'kill -SEGV $$'; echo $?; done
        ls -A /io /tmp";
    assert_eq!(hostile.prints(line), "139\n139\n/io:\nfile\n\n/tmp:\n");
}

#[test]
fn a_bomb_of_processes_that_never_stay_ends_at_its_time_and_the_sandbox_serves_on() {
    let hostile = Hostile::new();
    for attack in ["multiply", "run-away"] {
        let command = hostile.attack(attack).timeout(Duration::from_secs(5));
        let result = hostile.exec(command);
        if !has(Feature::OwnLimits) && matches!(result.outcome, Outcome::AgentLost { .. }) {
            // The other kernel ended with the processes that it had none left of.
            return;
        }
        assert_eq!(result.stdout().bytes, b"begun\n");
        // The first of them has ended by itself, unless the others have left it no place for its second.
        let ended = matches!(result.outcome, Outcome::Ok { .. } | Outcome::Timeout(_));
        assert!(ended, "{attack}: {result:#?}");
        hostile.assert_well_and_alone();
    }
}

#[test]
fn fork_bomb_is_ended_and_others_get_busy() {
    let hostile = Hostile::new();
    let guest = &hostile.guest;
    let holding = guest.sandbox.start(hostile.attack("hold-all-processes"), CancelHandle::new());
    let mut holding = guest.wait(holding).unwrap();
    if !has(Feature::OwnLimits) {
        // The other kernel ends with the processes that it has none left of.
        let ended = guest.wait(holding.wait()).unwrap();
        assert!(matches!(ended.outcome, Outcome::AgentLost { .. }), "{ended:#?}");
        return;
    }
    let (_, held) = guest.wait(holding.next_output()).unwrap();
    assert_eq!(&held[..], b"Err(11)\n");
    // No process and no thread for anybody else.
    let refused = hostile.exec(Command::new("true"));
    let Outcome::Error { failure, .. } = &refused.outcome else { panic!("{refused:#?}") };
    assert_eq!(failure.kind, ErrorKind::Busy, "{failure:?}");
    assert_eq!(guest.kind(json!({"operation": "read", "path": "file"})), "busy");
    holding.cancel_handle().cancel(CancelCause::Caller);
    let ended = guest.wait(holding.wait()).unwrap();
    assert!(matches!(ended.outcome, Outcome::Cancelled { .. }), "{ended:#?}");
    hostile.assert_well_and_alone();
    assert_eq!(guest.data(json!({"operation": "read", "path": "file"}))["content"], "content");
}

#[test]
fn a_program_has_as_many_descriptors_as_it_was_given_and_the_agent_its_own() {
    let hostile = Hostile::new();
    assert_eq!(hostile.struck("open-until-refused"), EMFILE);
    let most = most_descriptors();
    assert_eq!(hostile.prints("ulimit -n; ulimit -Hn"), format!("1024\n{most}\n"));
    // With all that it may ask for, too.
    let uid = hostile.owner.0;
    let attack = format!(
        "ulimit -n {most}; attacker none {uid} open-until-refused /io /in /open 1 1 none; ulimit -n"
    );
    assert_eq!(hostile.prints(&attack), format!("{EMFILE}\n{most}\n"));
    hostile.assert_well_and_alone();
}

#[test]
fn a_program_that_takes_all_memory_is_reported_as_out_of_memory() {
    for attack in ["allocate", "allocate-in-many"] {
        let hostile = Hostile::new();
        // Enough time: to touch all of it takes a while on a busy machine.
        let result = hostile.exec(hostile.attack(attack).timeout(Duration::from_secs(600)));
        if out_of_memory().0 == "killed" {
            assert_eq!(result.signal(), Some(9), "{attack}: {result:#?}");
            continue;
        }
        if !has(Feature::SharedKernel) && matches!(result.outcome, Outcome::AgentLost { .. }) {
            // The container's own kernel found no memory before the host's ended it.
            continue;
        }
        let Outcome::Limit(error) = &result.outcome else { panic!("{attack}: {result:#?}") };
        assert_eq!(error.kind, ErrorKind::OutOfMemory, "{attack}");
        assert_eq!(result.stdout().bytes.get(..6), Some(&b"begun\n"[..]), "{attack}");
    }
}

/// In the agent's place, before any program: as the agent confines itself in a sandbox with programs,
/// and by the container's own walls alone.
#[test]
fn native_code_in_the_agent_gets_nowhere_and_nor_does_it_by_the_containers_walls_alone() {
    if !has(Feature::SharedKernel) {
        // The other kernel has no Landlock.
        return;
    }
    let absent = [
        "clone3", "openat2", "open_by_handle_at", "mount", "pivot_root", "chroot", "init_module",
        "reboot", "io_setup",
    ];
    let refused = [
        "unshare-user", "unshare-mount", "setns", "clone-new-user", "clone-new-network",
        "io_uring_setup", "userfaultfd", "keyctl", "bpf", "perf_event_open", "ptrace",
        "process_vm_writev", "kcmp", "setxattr-capability",
    ];
    // By the agent's filters alone.
    let own = ["openat-set-uid", "fchmodat", "socket-netlink-audit", "ioctl-type-into-terminal"];
    let with = |attacks: &[&'static str], outcomes: &'static [&'static str]| {
        attacks.iter().map(|&attack| (attack, outcomes)).collect::<Vec<_>>()
    };
    // The last two are how it makes the connections of programs; nothing is named to them here.
    let able = [
        with(&["read the mount", "fork"], &["done"]),
        with(&["process_vm_readv"], &[EFAULT]),
        with(&["pidfd_getfd"], &[EBADF]),
    ]
    .concat();
    // Root, as the sandbox is here, owns the files of its control groups: their mount is read-only. Without
    // root there are none.
    let has_groups = kind() != Kind::Rootless;
    let outcomes: &[_] = if has_groups { &[EROFS, EACCES] } else { &[ENOENT] };
    let read_only = with(&["write-control-group"], outcomes);
    let confined = [
        able.clone(),
        read_only,
        with(&absent, &[ENOSYS]),
        with(&refused, &[EPERM]),
        with(&own, &[EPERM]),
    ];
    // Engines differ in what their filter answers to a call that is not on its list.
    let outcomes: &[_] = if has_groups { &[EROFS] } else { &[ENOENT] };
    let read_only = with(&["write-control-group"], outcomes);
    let walls =
        [able, read_only, with(&absent, &[EPERM, ENOSYS]), with(&refused, &[EPERM, ENOSYS])];
    let mut rounds = vec![(None, confined.concat())];
    if has(Feature::OwnFilter) {
        rounds.push((Some("unconfined"), walls.concat()));
    }
    for (first, attacks) in rounds {
        let actor = Actor::attacker();
        let provided = rootfs().provide();
        let names = attacks.iter().map(|(attack, _)| *attack);
        let lines: Vec<_> = first.into_iter().chain(names).collect();
        actor.place.write("sandbox-files/attacks", lines.join("\n"));
        actor.place.write("sandbox-files/file", "content");
        let args = provided.args();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let args =
            [&["run", "--json", "--io-dir", "sandbox-files"], &args[..], &["unused.luau"]].concat();
        let ended = finish(actor.command(&args));
        // It never spoke, so nothing ran.
        ended.assert_code(125);
        let report = std::fs::read_to_string(actor.place.path("sandbox-files/report")).unwrap();
        let outcomes: Vec<_> = report.lines().filter_map(|line| line.split_once(": ")).collect();
        assert_eq!(outcomes.len(), attacks.len(), "{report}");
        for ((attack, outcome), (expected, outcomes)) in outcomes.iter().zip(&attacks) {
            assert_eq!(attack, expected);
            assert!(outcomes.contains(outcome), "{attack}: {outcome}, {first:?}");
        }
    }
}
