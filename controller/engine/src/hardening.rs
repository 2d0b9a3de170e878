//! The part of the hardening that is the same for all containers on all engines. Engines only
//! translate it.

/// Masked paths, which appear empty: the usual ones of container engines, and those that reveal the
/// host's hardware, disks, boot, drivers and load. Paths that programs need are not masked: the
/// amount of memory, the number of processors and their load (`meminfo`, `vmstat`, `cpuinfo`,
/// `stat`, `loadavg`, `uptime`), the kernel's version and settings (`/proc/sys`), and their own
/// processes.
pub const MASKED_PATHS: &[&str] = &[
    "/proc/acpi", "/proc/allocinfo", "/proc/asound", "/proc/bootconfig", "/proc/buddyinfo",
    "/proc/bus", "/proc/cmdline", "/proc/config.gz", "/proc/consoles", "/proc/devices",
    "/proc/diskstats", "/proc/dma", "/proc/driver", "/proc/dynamic_debug", "/proc/fb", "/proc/fs",
    "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/irq", "/proc/kallsyms",
    "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kpagecgroup", "/proc/kpagecount",
    "/proc/kpageflags", "/proc/latency_stats", "/proc/locks", "/proc/mdstat", "/proc/misc",
    "/proc/modules", "/proc/mtrr", "/proc/pagetypeinfo", "/proc/partitions",
    // Writable for every user, and each line makes the kernel monitor the load of the whole host.
    "/proc/pressure",
    // The processor time of each program on the host, by name, in the kernels of some clouds.
    "/proc/program_cpu", "/proc/sched_debug", "/proc/schedstat", "/proc/scsi", "/proc/slabinfo",
    "/proc/softirqs", "/proc/swaps", "/proc/timer_list", "/proc/timer_stats", "/proc/tty/driver",
    "/proc/vmallocinfo", "/proc/vmcore", "/proc/zoneinfo", "/sys/block", "/sys/bus", "/sys/class",
    "/sys/dev", DEVICES, "/sys/firmware", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/xfs",
    "/sys/hypervisor", "/sys/kernel/boot_params", "/sys/kernel/iommu_groups", "/sys/kernel/irq",
    "/sys/kernel/slab", "/sys/module", "/sys/power",
];

/// The masked directory of the host's devices.
pub const DEVICES: &str = "/sys/devices";

/// The files of [`DEVICES`] that commands see nevertheless: the list of processors, which
/// `/proc/cpuinfo` has too. `lscpu` fails without them.
pub const PROCESSOR_LISTS: [&str; 3] = [
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/system/cpu/present",
];

/// Settings of a network namespace with commands: those of Docker. Its one device is the loopback,
/// so unprivileged low ports and ping affect only the sandbox.
pub const SYSCTLS: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// Read-only paths.
pub const READONLY_PATHS: &[&str] = &["/proc/sys", "/proc/sysrq-trigger"];

/// The hostname inside a container that supports commands.
pub const HOSTNAME: &str = "sandbox";

/// Files that programs expect and that reveal nothing about the host: their paths and contents. They
/// replace the image's own files, which are often empty placeholders for an engine's.
pub const SYSTEM_FILES: [(&str, &str); 3] = [
    (
        "/etc/hosts",
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.0.1 sandbox\n",
    ),
    // A query would go to the loopback, where nothing answers: fail fast.
    ("/etc/resolv.conf", "# A sandbox has no name server.\noptions timeout:1 attempts:1\n"),
    ("/etc/hostname", "sandbox\n"),
];

/// If memory is short on the host, sandboxes are killed first.
pub const OOM_SCORE_ADJ: i32 = 1000;

/// The system calls allowed in a sandbox that runs scripts, for the agent and for the runtime that
/// starts it. Others fail with EPERM; [`CLONE`] and [`CLONE3`] have separate rules.
pub const ALLOWED_SYSCALLS: &[&[&str]] = &[
    // Files, always beneath a dirfd; open, stat and the like only for the runtime that starts the
    // agent.
    &[
        "access", "chdir", "close", "close_range", "copy_file_range", "dup", "dup2", "dup3",
        "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat",
        "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "getcwd",
        "getdents64", "linkat", "lseek", "lstat", "mkdirat", "newfstatat", "open", "openat",
        "openat2", "pread64", "preadv", "pwrite64", "pwritev", "read", "readlink", "readlinkat",
        "readv", "renameat", "renameat2", "stat", "statfs", "statx", "symlinkat",
        "sync_file_range", "umask", "unlinkat", "utimensat", "write", "writev",
    ],
    // Memory.
    &["brk", "madvise", "membarrier", "mincore", "mmap", "mprotect", "mremap", "munmap"],
    // Threads and signals; the agent is PID 1 and reaps.
    &[
        EXECVE, "exit", "exit_group", "futex", "futex_waitv", "get_robust_list", "getpgrp",
        "getpid", "getppid", "gettid", "kill", "restart_syscall", "rseq", "rt_sigaction",
        "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
        "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_yield",
        "set_robust_list", "set_tid_address", "setitimer", "setsid", "sigaltstack", "tgkill",
        "wait4", "waitid",
    ],
    // Waiting.
    &[
        "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create1", "epoll_ctl",
        "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2", "gettimeofday", "nanosleep",
        "pipe", "pipe2", "poll", "ppoll", "pselect6", "select", "time", "timerfd_create",
        "timerfd_settime",
    ],
    // Process and user ids, and the agent's own confinement.
    &[
        "arch_prctl", "capget", "capset", "getegid", "geteuid", "getgid", "getgroups", "getrandom",
        "getresgid", "getresuid", "getrlimit", "getrusage", "getuid", "landlock_add_rule",
        "landlock_create_ruleset", "landlock_restrict_self", "prctl", "prlimit64", "seccomp",
        "setrlimit", "sysinfo", "times", "uname",
    ],
];

/// Executes a program by its path, as an engine does that has the agent in a file.
pub const EXECVE: &str = "execve";
/// Executes one by its descriptor. The embedded engine needs only this one.
pub const EXECVEAT: &str = "execveat";
/// Allowed if its first argument, the flags, contains none of [`CLONE_NAMESPACES`]: threads, but no
/// namespaces.
pub const CLONE: &str = "clone";
/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`.
pub const CLONE_NAMESPACES: u64 = 0x7e02_0000;
/// Fails with ENOSYS: a filter cannot inspect its flags, and the C library then falls back to
/// `clone`.
pub const CLONE3: &str = "clone3";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn system_calls_of_the_agent_are_allowed_and_dangerous_ones_are_not() {
        let allowed: Vec<&str> = ALLOWED_SYSCALLS.iter().copied().flatten().copied().collect();
        for name in [
            "openat2", "openat", "mkdirat", "unlinkat", "renameat2", "statx", "read", "write",
            "ftruncate", "getdents64", "futex", "execve", "prctl", "exit_group",
            "landlock_restrict_self", "seccomp", "getrandom", "getrusage", "wait4",
        ] {
            assert!(allowed.contains(&name), "{name}");
        }
        for name in [
            "clone", "clone3", "socket", "connect", "ptrace", "mount", "unshare", "setns", "bpf",
            "io_uring_setup", "perf_event_open", "userfaultfd", "keyctl", "process_vm_readv",
            "mknodat", "fchownat", "setuid", "open_by_handle_at", "personality",
            // Timers count against the user's limit on the whole host, so other programs could run
            // out of them.
            "timer_create", "chroot", "pivot_root",
        ] {
            assert!(!allowed.contains(&name), "{name}");
        }
        assert_eq!(allowed.iter().collect::<HashSet<_>>().len(), allowed.len(), "one is twice");
    }

    #[test]
    fn every_namespace_is_among_the_flags_that_no_clone_may_have() {
        use rustix::thread::UnshareFlags;
        let namespaces = UnshareFlags::NEWNS
            | UnshareFlags::NEWCGROUP
            | UnshareFlags::NEWUTS
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUSER
            | UnshareFlags::NEWPID
            | UnshareFlags::NEWNET;
        assert_eq!(u64::from(namespaces.bits()), CLONE_NAMESPACES);
    }

    #[test]
    fn the_usual_masked_paths_of_engines_are_masked() {
        for path in [
            "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys",
            "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
            "/proc/scsi", "/sys/firmware",
        ] {
            assert!(MASKED_PATHS.contains(&path), "{path}");
        }
    }
}
