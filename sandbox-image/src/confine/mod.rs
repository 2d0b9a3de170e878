//! What the agent takes from itself before it reads a byte of anybody's. It fails closed: an
//! error here ends the process.
//!
//! [`seal`] comes first, before the mounts are opened; [`confine`] after, and before any thread
//! starts, because most of it binds one thread and those it starts later.

pub mod identity;
pub mod landlock;
pub mod seccomp;

use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use sandbox_protocol::argv::ConfinementPolicy;
use sandbox_protocol::message::{Confinement, UnixSockets};
use seccompiler::BpfProgram;

use landlock::{Grant, LandlockError, Support, Tenant};
use seccomp::SeccompError;

/// Something that could not be taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// One of the small steps.
    #[error("cannot confine the agent: {what}: {source}")]
    Step {
        /// Which.
        what: &'static str,
        /// Why.
        source: Errno,
    },
    /// The kernel's rules on files.
    #[error("cannot confine the agent: {0}")]
    Landlock(#[from] LandlockError),
    /// The system call filter.
    #[error("cannot confine the agent: {0}")]
    Seccomp(#[from] SeccompError),
}

/// Processor time of a check; the compiler takes milliseconds for the longest script.
const CHECK_CPU_SECONDS: u64 = 10;
/// Address space of a check: the stack, the allocator's arenas, and room to compile.
const CHECK_MEMORY_BYTES: u64 = 1 << 30;

fn step<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, ConfineError> {
    result.map_err(|source| ConfineError::Step { what, source })
}

/// Cuts off what the agent may have inherited, and what other processes could do to it.
///
/// # Errors
///
/// [`ConfineError`] for the first step that failed.
pub fn seal() -> Result<(), ConfineError> {
    // First of all: from now on no other process of this user can open our descriptors or our memory.
    step("PR_SET_DUMPABLE", rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    // As a container's first process: die with whoever made the container. Elsewhere the parent
    // may be a short-lived thread, and its end would count. One that has ended already cannot be
    // seen from here (it is in another PID namespace, and so 0 to getppid), and no signal comes of
    // it: but stdin has ended with it, which ends the session at its first read.
    if rustix::process::getpid().is_init() {
        let signal = Some(Signal::KILL);
        step("PR_SET_PDEATHSIG", rustix::process::set_parent_process_death_signal(signal))?;
    }
    step("closing descriptors", close_inherited())?;
    // Engines execute it by a descriptor's number or by a random path: neither says what it is.
    step("PR_SET_NAME", rustix::thread::set_name(c"sandbox-agent"))?;
    step("PR_SET_NO_NEW_PRIVS", rustix::thread::set_no_new_privs(true))?;
    // One byte, not none: of a limit of 0 a kernel takes no notice that hands dumps to a program
    // of the host's.
    step("RLIMIT_CORE", limit(Resource::Core, 1))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A write over RLIMIT_FSIZE and one to a closed pipe are errors, not the end; orphans that
    // init inherits are reaped by the kernel.
    for signal in [libc::SIGXFSZ, libc::SIGPIPE, libc::SIGCHLD] {
        step("ignoring a signal", dispose(signal, libc::SIG_IGN))?;
    }
    Ok(())
}

/// Confines the agent for good, to the grants, and says what is in force; of the UNIX sockets of
/// programs, what is without the agent's making their connections. Under
/// [`ConfinementPolicy::BestEffort`] a layer that fails is reported and no error.
///
/// # Errors
///
/// [`ConfineError`] for the first step that failed.
pub fn confine<'a>(
    tenant: Tenant,
    policy: ConfinementPolicy,
    grants: impl Iterator<Item = Grant<'a>>,
) -> Result<Confinement, ConfineError> {
    // Asked before the filter, which refuses these questions too.
    let dumpable = step("PR_GET_DUMPABLE", rustix::process::dumpable_behavior())?;
    let no_new_privileges = step("PR_GET_NO_NEW_PRIVS", rustix::thread::no_new_privs())?;
    let mut missing = Vec::new();
    let landlock_abi = match landlock::support() {
        Ok(Support::Abi(_)) => landlock::restrict(tenant, grants).map(Some),
        Ok(Support::None(why)) => {
            missing.push(why.to_owned());
            Ok(None)
        }
        Err(error) => Err(error),
    };
    let landlock_abi = match (landlock_abi, policy) {
        (Err(error), ConfinementPolicy::BestEffort) => {
            missing.push(error.to_string());
            None
        }
        (result, _) => result?,
    };
    let seccomp = match (seccomp::install(tenant), policy) {
        (Err(error), ConfinementPolicy::BestEffort) => {
            missing.push(error.to_string());
            false
        }
        (result, _) => result.map(|()| true)?,
    };
    let unix_sockets = match tenant {
        Tenant::Scripts => UnixSockets::None,
        Tenant::Programs if landlock_abi.is_some_and(landlock::holds_unix_sockets) => {
            UnixSockets::Landlock
        }
        Tenant::Programs if seccomp => UnixSockets::Pairs,
        Tenant::Programs => UnixSockets::Unrestricted,
    };
    Ok(Confinement {
        no_new_privileges,
        undumpable: dumpable == DumpableBehavior::NotDumpable,
        landlock_abi,
        seccomp,
        unix_sockets,
        missing,
    })
}

/// What a program takes upon itself just before it begins, beyond what it inherits from the agent.
#[derive(Debug, Default)]
pub struct Layers {
    /// Rules on files of its own.
    pub landlock: Option<OwnedFd>,
    /// Filters of its own.
    pub seccomp: Vec<BpfProgram>,
}

/// The layers of programs, where those are in force that they go with.
///
/// # Errors
///
/// [`ConfineError`], unless the policy is to go on without.
pub fn layers<'a>(
    policy: ConfinementPolicy,
    confinement: &Confinement,
    grants: impl Iterator<Item = Grant<'a>>,
) -> Result<Layers, ConfineError> {
    let landlock = confinement.landlock_abi.map(|_| landlock::layer(grants)).transpose();
    let seccomp = if confinement.seccomp {
        seccomp::programs::last(confinement.unix_sockets)
    } else {
        Ok(Vec::new())
    };
    match policy {
        ConfinementPolicy::Required => {
            Ok(Layers { landlock: landlock?, seccomp: seccomp.map_err(SeccompError::from)? })
        }
        ConfinementPolicy::BestEffort => {
            Ok(Layers { landlock: landlock.ok().flatten(), seccomp: seccomp.unwrap_or_default() })
        }
    }
}

/// Bounds a check, which has no container around it.
///
/// # Errors
///
/// [`ConfineError`] where a limit cannot be set.
pub fn limit_check() -> Result<(), ConfineError> {
    step("RLIMIT_CPU", limit(Resource::Cpu, CHECK_CPU_SECONDS))?;
    step("RLIMIT_AS", limit(Resource::As, CHECK_MEMORY_BYTES))
}

/// What an agent needs beside that runs programs: it is told of its children's ends, whatever
/// loses its parent becomes its child, and it catches no signal: as a first process it takes none from
/// its programs but those that it catches, and these come with contents of the sender's.
///
/// # Errors
///
/// [`ConfineError`] where the kernel refuses.
pub fn adopt() -> Result<(), ConfineError> {
    step("watching children", dispose(libc::SIGCHLD, libc::SIG_DFL))?;
    // The standard library catches these, to say which thread's stack was too small.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        step("catching nothing", dispose(signal, libc::SIG_DFL))?;
    }
    let own = Some(rustix::process::getpid());
    step("PR_SET_CHILD_SUBREAPER", rustix::process::set_child_subreaper(own))
}

/// Lowers the processor time of this process, and of what it starts.
///
/// # Errors
///
/// Those of `setrlimit`.
pub fn limit_cpu(seconds: u64) -> rustix::io::Result<()> {
    limit(Resource::Cpu, seconds)
}

/// Lowers a limit, never above what it is.
fn limit(resource: Resource, value: u64) -> rustix::io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let value = Some(now.maximum.map_or(value, |maximum| maximum.min(value)));
    rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })
}

/// Closes every descriptor over 2. Nothing of ours is open yet.
#[expect(unsafe_code, reason = "descriptors that no Rust value owns can only be closed raw")]
fn close_inherited() -> rustix::io::Result<()> {
    // SAFETY: nobody in this process owns a descriptor over 2 yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    // Before Linux 5.9, or behind a filter that does not know it.
    let listed = std::fs::read_dir("/proc/self/fd").and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
    });
    let names = listed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok());
    for fd in numbers.filter(|&fd| fd > 2) {
        // SAFETY: as above; the listing's own descriptor is closed by now, so this is EBADF there.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

#[expect(unsafe_code, reason = "no safe interface sets a signal's disposition")]
fn dispose(signal: libc::c_int, disposition: libc::sighandler_t) -> rustix::io::Result<()> {
    // SAFETY: neither SIG_IGN nor SIG_DFL runs code of ours.
    let before = unsafe { libc::signal(signal, disposition) };
    if before == libc::SIG_ERR { Err(Errno::INVAL) } else { Ok(()) }
}
