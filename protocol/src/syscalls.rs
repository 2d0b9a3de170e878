//! The system calls that programs in a sandbox may make: one list, for the filter that the agent
//! puts on itself before it runs any of them, and for those that engines put on its container.
//!
//! It is the well-known default list of container engines without what needs a capability, and
//! without `clone3` and `openat2`, whose arguments lie in memory where no filter can look. What is
//! not on it is answered with `ENOSYS`; what is refused by its arguments is the agent's second
//! filter's (`sandbox-image/src/confine/seccomp/`).

/// Calls `$with!` with the identifiers of two lists: the calls of every architecture, and those that
/// x86-64 alone has.
#[macro_export]
macro_rules! program_syscalls {
    ($with:ident) => {
        $with! {
            all: [
                accept, accept4, adjtimex, bind, brk, capget, capset, chdir, clock_adjtime, clock_getres,
                clock_gettime, clock_nanosleep, clone, close, close_range, connect, copy_file_range, dup,
                dup3, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, eventfd2, execve, execveat, exit,
                exit_group, faccessat, faccessat2, fadvise64, fallocate, fchdir, fchmod, fchmodat, fchmodat2,
                fchown, fchownat, fcntl, fdatasync, fgetxattr, flistxattr, flock, fremovexattr, fsetxattr,
                fstat, fstatfs, fsync, ftruncate, futex, futex_waitv, get_robust_list, getcpu, getcwd,
                getdents64, getegid, geteuid, getgid, getgroups, getitimer, getpeername, getpgid, getpid,
                getppid, getpriority, getrandom, getresgid, getresuid, getrlimit, getrusage, getsid,
                getsockname, getsockopt, gettid, gettimeofday, getuid, getxattr, inotify_add_watch,
                inotify_init1, inotify_rm_watch, io_cancel, io_destroy, io_getevents, io_pgetevents, io_setup,
                io_submit, ioctl, ioprio_get, ioprio_set, kill, landlock_add_rule, landlock_create_ruleset,
                landlock_restrict_self, lgetxattr, linkat, listen, listxattr, llistxattr, lremovexattr, lseek,
                lsetxattr, madvise, membarrier, memfd_create, mincore, mkdirat, mknodat, mlock, mlock2,
                mlockall, mmap, mprotect, mq_getsetattr, mq_notify, mq_open, mq_timedreceive, mq_timedsend,
                mq_unlink, mremap, msgctl, msgget, msgrcv, msgsnd, msync, munlock, munlockall, munmap,
                name_to_handle_at, nanosleep, newfstatat, openat, pidfd_open, pidfd_send_signal, pipe2,
                pkey_alloc, pkey_free, pkey_mprotect, ppoll, prctl, pread64, preadv, preadv2, prlimit64,
                pselect6, pwrite64, pwritev, pwritev2, read, readahead, readlinkat, readv, recvfrom, recvmmsg,
                recvmsg, remap_file_pages, removexattr, renameat, renameat2, restart_syscall, rseq,
                rt_sigaction, rt_sigpending, rt_sigprocmask, rt_sigqueueinfo, rt_sigreturn, rt_sigsuspend,
                rt_sigtimedwait, rt_tgsigqueueinfo, sched_get_priority_max, sched_get_priority_min,
                sched_getaffinity, sched_getattr, sched_getparam, sched_getscheduler, sched_rr_get_interval,
                sched_setaffinity, sched_setattr, sched_setparam, sched_setscheduler, sched_yield, seccomp,
                semctl, semget, semop, semtimedop, sendfile, sendmmsg, sendmsg, sendto, set_robust_list,
                set_tid_address, setfsgid, setfsuid, setgid, setgroups, setitimer, setpgid, setpriority,
                setregid, setresgid, setresuid, setreuid, setrlimit, setsid, setsockopt, setuid, setxattr,
                shmat, shmctl, shmdt, shmget, shutdown, sigaltstack, signalfd4, socket, socketpair, splice,
                statfs, statx, symlinkat, sync, sync_file_range, syncfs, sysinfo, tee, tgkill, timer_create,
                timer_delete, timer_getoverrun, timer_gettime, timer_settime, timerfd_create, timerfd_gettime,
                timerfd_settime, times, tkill, truncate, umask, uname, unlinkat, utimensat, vmsplice, wait4,
                waitid, write, writev,
            ],
            x86_64: [
                access, alarm, arch_prctl, chmod, chown, creat, dup2, epoll_create, epoll_wait, eventfd, fork,
                futimesat, getdents, getpgrp, inotify_init, lchown, link, lstat, mkdir, mknod, modify_ldt, open,
                pause, pipe, poll, readlink, rename, rmdir, select, signalfd, stat, symlink, time, unlink,
                utime, utimes, vfork,
            ],
        }
    };
}

macro_rules! names {
    (all: [$($all:ident,)+], x86_64: [$($x86:ident,)+],) => {
        /// The names of all of them, those that one architecture alone has included. `personality` is
        /// beside them: with the values of [`PERSONALITIES`] only.
        pub const PROGRAM_SYSCALLS: &[&str] = &[$(stringify!($all),)+ $(stringify!($x86),)+];
    };
}

program_syscalls!(names);

/// What `personality` may be called with: Linux, 32-bit addresses, the uname of 2.6, both, and the
/// question what it is.
pub const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn programs_have_what_they_need_and_no_call_stands_twice() {
        let names: HashSet<_> = PROGRAM_SYSCALLS.iter().copied().collect();
        assert_eq!(names.len(), PROGRAM_SYSCALLS.len());
        for name in ["clone", "execve", "ioctl", "socket", "connect", "chmod", "mkdir", "kill"] {
            assert!(names.contains(name), "{name}");
        }
        for name in [
            "bpf",
            "chroot",
            "clone3",
            "init_module",
            "io_uring_setup",
            "keyctl",
            "mount",
            "openat2",
            "open_by_handle_at",
            "perf_event_open",
            "pidfd_getfd",
            "pivot_root",
            "process_vm_readv",
            "ptrace",
            "setns",
            "unshare",
            "userfaultfd",
        ] {
            assert!(!names.contains(name), "{name}");
        }
    }
}
