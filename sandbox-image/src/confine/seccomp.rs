//! The agent's own system call filters. For sandboxes that run programs they are in [`programs`]; for
//! those that run scripts there is one, here: an allowlist of what Luau,
//! the C library and the agent's file operations need, and nothing else.
//!
//! What is not on it fails with `ENOSYS`, as on a kernel that has no such call. That refuses it as
//! surely as a kill would, and it is the one answer that every C library knows how to live with: a
//! newer one that tries a newer call first (`clone3`, and whatever comes) goes on with the older
//! one, where a kill would end honest scripts on machines that we have not seen. Only a call by
//! another architecture's numbers kills: there is no honest one, and its numbers mean other calls.
//!
//! `openat2` is left out on purpose. The mode of a file that it makes lies in memory, where no
//! filter can look, so that native code in the agent could leave a set-uid program in the io dir;
//! the mode of `openat` is an argument. The agent resolves paths component by component then
//! (`files/resolve.rs`), with the same guarantees.

pub mod programs;

use std::collections::BTreeMap;

use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::landlock::Tenant;

/// Calls that are allowed whatever their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Files, by descriptor or beneath one. Landlock says which.
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_renameat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    // The C library's last words.
    libc::SYS_writev,
    // Memory; what could make some of it executable is below.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, and how they end.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // Waiting, and the time where the kernel's page of it cannot be used.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    // Seeds of hash tables.
    libc::SYS_getrandom,
];

/// The flags of a new thread, as the C library gives them. No new process, and no namespace.
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
    /// It cannot be made.
    #[error("cannot make the system call filter: {0}")]
    Make(#[from] BackendError),
    /// The kernel, or a filter that is in force already, does not take it.
    #[error("cannot install the system call filter: {0}")]
    Install(#[source] std::io::Error),
}

/// Puts the filters in force for this thread and those that it starts, and for every program.
///
/// # Errors
///
/// [`SeccompError`], and nothing has changed, or only a part of it is in force.
pub fn install(tenant: Tenant) -> Result<(), SeccompError> {
    let filters = match tenant {
        Tenant::Scripts => vec![program(std::process::id())?],
        Tenant::Programs => vec![programs::allowed()?, programs::refused()?],
    };
    filters.iter().try_for_each(apply)
}

fn apply(program: &BpfProgram) -> Result<(), SeccompError> {
    seccompiler::apply_filter(program).map_err(|error| {
        SeccompError::Install(match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            other => std::io::Error::other(other),
        })
    })
}

/// The filter for scripts, of the process `pid`.
fn program(pid: u32) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let mut only = |call: libc::c_long, conditions: Vec<SeccompCondition>| {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok::<_, BackendError>(())
    };
    // Memory of the process's own that can be read and written; never executed.
    let data_only = || argument(2, Qword, MaskedEq(!bits(libc::PROT_READ | libc::PROT_WRITE)), 0);
    let own = bits(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let kind = bits(libc::MAP_TYPE | libc::MAP_ANONYMOUS);
    only(libc::SYS_mmap, vec![data_only()?, argument(3, Qword, MaskedEq(kind), own)?])?;
    only(libc::SYS_mprotect, vec![data_only()?])?;
    // `clone3`, whose flags no filter can see, is not there: the C library takes this one then.
    only(libc::SYS_clone, vec![argument(0, Qword, Eq, bits(THREAD))?])?;
    only(libc::SYS_prctl, vec![argument(0, Dword, Eq, bits(libc::PR_SET_NAME))?])?;
    // The processor time of this process alone, which without a capability only goes down.
    only(
        libc::SYS_prlimit64,
        vec![argument(0, Dword, Eq, 0)?, argument(1, Dword, Eq, libc::RLIMIT_CPU.into())?],
    )?;
    // `abort`, of this process alone.
    only(libc::SYS_tgkill, vec![argument(0, Dword, Eq, pid.into())?])?;
    // The standard library's own checks of its descriptors.
    only(libc::SYS_fcntl, vec![argument(1, Dword, Eq, bits(libc::F_GETFD))?])?;
    // What is made in the io dir stays there when the sandbox is gone: never set-uid.
    only(libc::SYS_openat, vec![argument(3, Dword, MaskedEq(SPECIAL_MODES), 0)?])?;
    only(libc::SYS_mkdirat, vec![argument(2, Dword, MaskedEq(SPECIAL_MODES), 0)?])?;
    only(libc::SYS_fchmod, vec![argument(1, Dword, MaskedEq(SPECIAL_MODES), 0)?])?;
    // Space for what is about to be written; no holes, and no other way to change content.
    only(libc::SYS_fallocate, vec![argument(1, Dword, Eq, bits(libc::FALLOC_FL_KEEP_SIZE))?])?;
    // A whole file takes its name where nothing has it: by a rename, or by a link, for a file
    // without a name by its descriptor.
    let nothing_there = u64::from(libc::RENAME_NOREPLACE);
    only(libc::SYS_renameat2, vec![argument(4, Dword, Eq, nothing_there)?])?;
    for flags in [0, libc::AT_EMPTY_PATH, libc::AT_SYMLINK_FOLLOW] {
        only(libc::SYS_linkat, vec![argument(4, Dword, Eq, bits(flags))?])?;
    }

    compile(rules, errno(libc::ENOSYS), SeccompAction::Allow)
}

/// What is answered where no rule holds, and where one does.
fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, mismatch, matched, architecture)?;
    let filter = BpfProgram::try_from(filter)?;
    Ok(foreign_numbers().into_iter().chain(filter).collect())
}

const fn errno(number: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

/// A condition on an argument, by its place.
fn argument(
    place: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(place, length, operator, value)
}

/// Flags, none of which is the sign bit, as the filter compares them.
const fn bits(flags: libc::c_int) -> u64 {
    assert!(flags >= 0);
    flags as u64
}

/// One step of a filter that seccompiler cannot make.
fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> seccompiler::sock_filter {
    let code = u16::try_from(code).expect("codes are short");
    seccompiler::sock_filter { code, jt, jf, k }
}

/// x32's calls come by the same architecture as ours and differ in a bit of the number, which
/// seccompiler does not look at. These instructions stand before its own.
#[cfg(target_arch = "x86_64")]
fn foreign_numbers() -> Vec<seccompiler::sock_filter> {
    const X32: u32 = 0x4000_0000;
    const NUMBER: u32 = 0;
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ]
}

/// No other architecture has two tables of calls.
#[cfg(not(target_arch = "x86_64"))]
fn foreign_numbers() -> Vec<seccompiler::sock_filter> {
    Vec::new()
}
