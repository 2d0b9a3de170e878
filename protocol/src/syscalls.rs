//! The system calls that commands in a sandbox may make: one list, for the filter that the agent
//! installs on itself before it runs any command, and for those that engines install on its
//! container.
//!
//! It is the default list of container engines, without the calls that need a capability; without
//! `clone3` and `openat2`, whose arguments are in memory where a filter cannot read them; and
//! without the old asynchronous I/O (`io_setup`), whose contexts are limited for the whole host.
//! Calls that are not on the list fail with `ENOSYS`; calls refused because of their arguments are
//! handled by the agent's second filter (`sandbox-image/src/confine/seccomp/`).

/// Calls `$with!` with the identifiers of two lists, as named by libc: the calls of every
/// architecture, and those that only x86-64 has. `fchmodat2` is in neither: it is `FCHMODAT2`.
#[macro_export]
macro_rules! program_syscalls {
    ($with:ident) => {
        $with! {
            all: [
                SYS_accept, SYS_accept4, SYS_adjtimex, SYS_bind, SYS_brk, SYS_capget, SYS_capset,
                SYS_chdir, SYS_clock_adjtime, SYS_clock_getres, SYS_clock_gettime,
                SYS_clock_nanosleep, SYS_clone, SYS_close, SYS_close_range, SYS_connect,
                SYS_copy_file_range, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl,
                SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2, SYS_execve, SYS_execveat, SYS_exit,
                SYS_exit_group, SYS_faccessat, SYS_faccessat2, SYS_fadvise64, SYS_fallocate,
                SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat,
                SYS_fcntl, SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock,
                SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate,
                SYS_futex, SYS_futex_waitv, SYS_get_robust_list, SYS_getcpu, SYS_getcwd,
                SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getitimer,
                SYS_getpeername, SYS_getpgid, SYS_getpid, SYS_getppid, SYS_getpriority,
                SYS_getrandom, SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_getrusage,
                SYS_getsid, SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_gettimeofday,
                SYS_getuid, SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init1,
                SYS_inotify_rm_watch, SYS_ioctl, SYS_ioprio_get, SYS_ioprio_set, SYS_kill,
                SYS_landlock_add_rule, SYS_landlock_create_ruleset, SYS_landlock_restrict_self,
                SYS_lgetxattr, SYS_linkat, SYS_listen, SYS_listxattr, SYS_llistxattr,
                SYS_lremovexattr, SYS_lseek, SYS_lsetxattr, SYS_madvise, SYS_membarrier,
                SYS_memfd_create, SYS_mincore, SYS_mkdirat, SYS_mknodat, SYS_mlock, SYS_mlock2,
                SYS_mlockall, SYS_mmap, SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open,
                SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_mremap, SYS_msgctl,
                SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock, SYS_munlockall,
                SYS_munmap, SYS_name_to_handle_at, SYS_nanosleep, SYS_newfstatat, SYS_openat,
                SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pipe2, SYS_pkey_alloc, SYS_pkey_free,
                SYS_pkey_mprotect, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2,
                SYS_prlimit64, SYS_pselect6, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read,
                SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg,
                SYS_remap_file_pages, SYS_removexattr, SYS_renameat, SYS_renameat2,
                SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigpending,
                SYS_rt_sigprocmask, SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend,
                SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo, SYS_sched_get_priority_max,
                SYS_sched_get_priority_min, SYS_sched_getaffinity, SYS_sched_getattr,
                SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_rr_get_interval,
                SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam,
                SYS_sched_setscheduler, SYS_sched_yield, SYS_seccomp, SYS_semctl, SYS_semget,
                SYS_semop, SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
                SYS_set_robust_list, SYS_set_tid_address, SYS_setfsgid, SYS_setfsuid, SYS_setgid,
                SYS_setgroups, SYS_setitimer, SYS_setpgid, SYS_setpriority, SYS_setregid,
                SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_setrlimit, SYS_setsid,
                SYS_setsockopt, SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt,
                SYS_shmget, SYS_shutdown, SYS_sigaltstack, SYS_signalfd4, SYS_socket,
                SYS_socketpair, SYS_splice, SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync,
                SYS_sync_file_range, SYS_syncfs, SYS_sysinfo, SYS_tee, SYS_tgkill, SYS_timer_create,
                SYS_timer_delete, SYS_timer_getoverrun, SYS_timer_gettime, SYS_timer_settime,
                SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime, SYS_times, SYS_tkill,
                SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_utimensat, SYS_vmsplice,
                SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
            ],
            x86_64: [
                SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2,
                SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_fork, SYS_futimesat,
                SYS_getdents, SYS_getpgrp, SYS_inotify_init, SYS_lchown, SYS_link, SYS_lstat,
                SYS_mkdir, SYS_mknod, SYS_modify_ldt, SYS_open, SYS_pause, SYS_pipe, SYS_poll,
                SYS_readlink, SYS_rename, SYS_rmdir, SYS_select, SYS_signalfd, SYS_stat,
                SYS_symlink, SYS_time, SYS_unlink, SYS_utime, SYS_utimes, SYS_vfork,
            ],
        }
    };
}

macro_rules! names {
    (all: [$($all:ident,)+], x86_64: [$($x86:ident,)+],) => {
        const NAMES: &[&str] = &["fchmodat2", $(stringify!($all),)+ $(stringify!($x86),)+];
    };
}

program_syscalls!(names);

/// The number of `fchmodat2`, which libc lacks for arm64. New calls have one number everywhere.
pub const FCHMODAT2: i64 = 452;

/// The calls by which the agent makes connections for commands. The engines' filters and the
/// agent's allow them; every command installs a filter on itself that does not.
const SUPERVISOR_NAMES: [&str; 2] = ["pidfd_getfd", "process_vm_readv"];

/// The names of all of them, including those that only one architecture has. `personality` is
/// allowed in addition, only with the values of [`PERSONALITIES`].
pub fn program_syscall_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|name| name.trim_start_matches("SYS_"))
}

/// The calls that the engines' filters allow in a container with commands: the commands' calls, and
/// those that the agent needs in addition.
pub fn container_syscall_names() -> impl Iterator<Item = &'static str> {
    program_syscall_names().chain(SUPERVISOR_NAMES)
}

/// The allowed arguments of `personality`: Linux, 32-bit addresses, the uname of 2.6, both, and the
/// query of the current value.
pub const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn programs_have_what_they_need_and_no_call_stands_twice() {
        let names: HashSet<_> = program_syscall_names().collect();
        assert_eq!(names.len(), NAMES.len());
        for name in ["clone", "execve", "ioctl", "socket", "connect", "chmod", "mkdir", "kill"] {
            assert!(names.contains(name), "{name}");
        }
        for name in [
            "bpf", "chroot", "clone3", "init_module", "io_uring_setup", "keyctl", "mount",
            "openat2", "open_by_handle_at", "perf_event_open", "pidfd_getfd", "pivot_root",
            "process_vm_readv", "ptrace", "setns", "unshare", "userfaultfd",
        ] {
            assert!(!names.contains(name), "{name}");
        }
    }

    #[test]
    fn containers_allow_the_agent_what_programs_do_not_get() {
        let programs: HashSet<_> = program_syscall_names().collect();
        let container: HashSet<_> = container_syscall_names().collect();
        let mut more: Vec<_> = container.difference(&programs).copied().collect();
        more.sort_unstable();
        assert_eq!(more, ["pidfd_getfd", "process_vm_readv"]);
    }
}
