//! The agent's own system call filters. Those for sandboxes that run commands are in [`programs`];
//! the one for sandboxes that run scripts is here: an allowlist of what Luau, the C library and the
//! agent's file operations need, and nothing else.
//!
//! Other calls fail with `ENOSYS`, as on a kernel without them. That is as safe as killing the
//! process, and every C library can handle it: a newer library that tries a newer call first
//! (`clone3`, and future ones) falls back to the older one, while a kill would end legitimate
//! scripts on machines that were not tested. Only a call by another architecture's numbers kills:
//! no legitimate code makes one, and its numbers mean other calls.
//!
//! `openat2` is left out on purpose. The mode of a file that it creates is in memory, where a
//! filter cannot read it, so native code in the agent could leave a set-uid program in the io dir;
//! the mode of `openat` is an argument. The agent then resolves paths component by component
//! (`sandbox_dirfd`), with the same guarantees.

pub mod programs;

use std::collections::BTreeMap;

use sandbox_protocol::bpf;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use super::landlock::Tenant;

/// Calls that are allowed with any arguments.
fn allowed() -> Rules {
    use libc::*;
    // Files, by descriptor or beneath one. Landlock restricts which.
    let files = [
        SYS_close, SYS_copy_file_range, SYS_fstat, SYS_fstatfs, SYS_ftruncate, SYS_getdents64,
        SYS_lseek, SYS_newfstatat, SYS_pread64, SYS_pwrite64, SYS_read, SYS_renameat, SYS_statx,
        SYS_unlinkat, SYS_write,
    ];
    // Calls that could make memory executable have conditions.
    let memory = [SYS_brk, SYS_madvise, SYS_mremap, SYS_munmap];
    // Threads, and how they exit, or abort: the C library then writes, too.
    let threads = [
        SYS_exit, SYS_exit_group, SYS_futex, SYS_getpid, SYS_gettid, SYS_restart_syscall, SYS_rseq,
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_getaffinity,
        SYS_sched_yield, SYS_set_robust_list, SYS_sigaltstack, SYS_writev,
    ];
    // Waiting, and reading the time if the vDSO cannot be used.
    let waiting = [
        SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep, SYS_gettimeofday, SYS_nanosleep,
        SYS_ppoll, SYS_timerfd_create, SYS_timerfd_settime,
    ];
    let seeds_of_hash_tables = [SYS_getrandom];
    let calls = [&files[..], &memory, &threads, &waiting, &seeds_of_hash_tables].concat();
    #[cfg(target_arch = "x86_64")]
    let calls = [&calls[..], &[SYS_poll]].concat();
    Rules::of(&calls)
}

/// The flags of a new thread, as the C library sets them. No new process, and no namespace.
const THREAD: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// `S_ISUID`, `S_ISGID` and the sticky bit.
const SPECIAL_MODES: u64 = 0o7000;

/// Why the filter is not in force.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// It cannot be built.
    #[error("cannot make the system call filter: {0}")]
    Make(#[from] BackendError),
    /// The kernel, or a filter that is in force already, refuses it.
    #[error("cannot install the system call filter: {0}")]
    Install(#[source] std::io::Error),
}

/// Installs the filters on this thread and those that it starts, and so on every command.
///
/// # Errors
///
/// [`SeccompError`]; none of the filters is in force, or only some of them.
pub fn install(tenant: Tenant) -> Result<(), SeccompError> {
    let filters = match tenant {
        Tenant::Scripts => vec![program(std::process::id())?],
        Tenant::Programs => vec![programs::allowed()?, programs::refused()?],
    };
    filters.iter().try_for_each(apply)
}

/// Installs a filter on this thread, and on those that it starts.
///
/// # Errors
///
/// [`SeccompError`]
pub fn apply(program: &BpfProgram) -> Result<(), SeccompError> {
    seccompiler::apply_filter(program).map_err(|error| {
        SeccompError::Install(match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            other => std::io::Error::other(other),
        })
    })
}

/// A condition on an argument: its index, how much of it counts, and what it is compared with.
type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// Rules by call; at least one must match, with all of its conditions.
#[derive(Default)]
struct Rules(BTreeMap<i64, Vec<SeccompRule>>);

impl Rules {
    fn of(calls: &[libc::c_long]) -> Self {
        Self(calls.iter().map(|&call| (call, Vec::new())).collect())
    }

    fn add(
        &mut self,
        call: libc::c_long,
        conditions: impl IntoIterator<Item = Condition>,
    ) -> Result<(), BackendError> {
        let condition = |(place, length, operator, value)| {
            SeccompCondition::new(place, length, operator, value)
        };
        let conditions = conditions.into_iter().map(condition).collect::<Result<_, _>>()?;
        self.0.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    }
}

/// The filter for scripts, of the process `pid`.
fn program(pid: u32) -> Result<BpfProgram, BackendError> {
    let mut rules = allowed();
    // Memory of the process itself that can be read and written; never executed.
    let data_only = || (2, Qword, MaskedEq(!bits(libc::PROT_READ | libc::PROT_WRITE)), 0);
    let own = bits(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let kind = bits(libc::MAP_TYPE | libc::MAP_ANONYMOUS);
    rules.add(libc::SYS_mmap, [data_only(), (3, Qword, MaskedEq(kind), own)])?;
    rules.add(libc::SYS_mprotect, [data_only()])?;
    // `clone3`, whose flags a filter cannot read, is missing: the C library falls back to this one.
    rules.add(libc::SYS_clone, [(0, Qword, Eq, bits(THREAD))])?;
    rules.add(libc::SYS_prctl, [(0, Dword, Eq, bits(libc::PR_SET_NAME))])?;
    // The CPU time limit of this process alone, which without a capability can only be lowered.
    let of_itself = (0, Dword, Eq, 0);
    rules.add(libc::SYS_prlimit64, [of_itself, (1, Dword, Eq, libc::RLIMIT_CPU.into())])?;
    // For `abort`, of this process alone.
    rules.add(libc::SYS_tgkill, [(0, Dword, Eq, pid.into())])?;
    // The standard library's own checks of its descriptors.
    rules.add(libc::SYS_fcntl, [(1, Dword, Eq, bits(libc::F_GETFD))])?;
    // Files in the io dir remain after the sandbox is removed: never set-uid.
    rules.add(libc::SYS_openat, [(3, Dword, MaskedEq(SPECIAL_MODES), 0)])?;
    rules.add(libc::SYS_mkdirat, [(2, Dword, MaskedEq(SPECIAL_MODES), 0)])?;
    rules.add(libc::SYS_fchmod, [(1, Dword, MaskedEq(SPECIAL_MODES), 0)])?;
    // The times of a file that is open: Landlock does not restrict those of a path.
    rules.add(libc::SYS_utimensat, [(1, Qword, Eq, 0)])?;
    // Reserving space for a write; no holes, and no other way to change content.
    rules.add(libc::SYS_fallocate, [(1, Dword, Eq, bits(libc::FALLOC_FL_KEEP_SIZE))])?;
    // A complete file is given its new name: by a rename, or by a link, for a file without a name
    // by its descriptor.
    let nothing_there = u64::from(libc::RENAME_NOREPLACE);
    rules.add(libc::SYS_renameat2, [(4, Dword, Eq, nothing_there)])?;
    for flags in [0, libc::AT_EMPTY_PATH, libc::AT_SYMLINK_FOLLOW] {
        rules.add(libc::SYS_linkat, [(4, Dword, Eq, bits(flags))])?;
    }

    compile(rules, errno(libc::ENOSYS), SeccompAction::Allow)
}

/// The actions if no rule matches, and if one does.
fn compile(
    rules: Rules,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules.0, mismatch, matched, architecture)?;
    let filter = BpfProgram::try_from(filter)?;
    let filter: Vec<_> = filter.iter().map(|it| bpf::pack(it.code, it.jt, it.jf, it.k)).collect();
    let short = bpf::shorten(&filter).into_iter().map(|bits| {
        let (code, jt, jf, k) = bpf::unpack(bits);
        sock_filter { code, jt, jf, k }
    });
    Ok(foreign_numbers().into_iter().chain(short).collect())
}

const fn errno(number: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

/// Flags, none of which is the sign bit, as the filter compares them.
const fn bits(flags: libc::c_int) -> u64 {
    assert!(flags >= 0);
    flags as u64
}

/// An instruction that seccompiler cannot generate.
fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    let code = u16::try_from(code).expect("codes are short");
    sock_filter { code, jt, jf, k }
}

/// x32's calls have the same architecture as x86-64's and differ in one bit of the number, which
/// seccompiler does not check. These instructions come before its own. No other architecture has two tables of
/// calls.
fn foreign_numbers() -> Vec<sock_filter> {
    const X32: u32 = 0x4000_0000;
    const NUMBER: u32 = 0;
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ]
}
