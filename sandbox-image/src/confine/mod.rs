//! The confinement that the agent applies to itself before it reads any input. It fails closed: an
//! error here ends the process.
//!
//! [`seal`] comes first, before the mounts are opened; [`confine`] after them, and before any
//! thread starts, because most of it applies to one thread and those it starts later.

pub mod descriptors;
pub mod identity;
pub mod landlock;
pub mod seccomp;

use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use sandbox_protocol::argv::{ConfinementPolicy, DiskSpace};
use sandbox_protocol::message::{Confinement, UnixSockets};
use seccompiler::BpfProgram;

use landlock::{Grant, LandlockError, Support, Tenant};
use seccomp::SeccompError;

/// A step of the confinement that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// One of the simple steps.
    #[error("cannot confine the agent: {what}: {source}")]
    Step {
        /// Its name.
        what: &'static str,
        /// Its error.
        source: Errno,
    },
    /// Landlock.
    #[error("cannot confine the agent: {0}")]
    Landlock(#[from] LandlockError),
    /// The system call filter.
    #[error("cannot confine the agent: {0}")]
    Seccomp(#[from] SeccompError),
}

/// CPU time of a check; the compiler takes milliseconds for the longest script.
const CHECK_CPU_SECONDS: u64 = 10;
/// Address space of a check: the stack, the allocator's arenas, and memory to compile.
const CHECK_MEMORY_BYTES: u64 = 1 << 30;

fn step<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, ConfineError> {
    result.map_err(|source| ConfineError::Step { what, source })
}

/// Drops what the agent may have inherited, and prevents access by other processes.
///
/// # Errors
///
/// [`ConfineError`] for the first step that failed.
pub fn seal() -> Result<(), ConfineError> {
    // First of all: from now on no other process of this user can open our descriptors or our
    // memory.
    step("PR_SET_DUMPABLE", rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    // As the init process of a container: die with the parent that created the container. Elsewhere
    // the parent may be a short-lived thread, whose end would count. A parent that has ended
    // already cannot be detected from here (it is in another PID namespace, so getppid returns 0),
    // and causes no signal: but stdin has ended with it, which ends the session at its first read.
    if rustix::process::getpid().is_init() {
        let signal = Some(Signal::KILL);
        step("PR_SET_PDEATHSIG", rustix::process::set_parent_process_death_signal(signal))?;
    }
    step("closing descriptors", close_inherited())?;
    // Engines execute the agent by a descriptor's number or by a random path; neither is a useful
    // process name.
    step("PR_SET_NAME", rustix::thread::set_name(c"sandbox-agent"))?;
    step("PR_SET_NO_NEW_PRIVS", rustix::thread::set_no_new_privs(true))?;
    // One byte, not zero: kernels ignore a limit of 0 when they pipe dumps to a program of the
    // host.
    step("RLIMIT_CORE", limit(Resource::Core, 1))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A write over RLIMIT_FSIZE and one to a closed pipe are errors instead of fatal signals;
    // orphans that init inherits are reaped by the kernel.
    for signal in [libc::SIGXFSZ, libc::SIGPIPE, libc::SIGCHLD] {
        step("ignoring a signal", dispose(signal, libc::SIG_IGN))?;
    }
    Ok(())
}

/// Confines the agent permanently to the grants, and returns what is in force; for the UNIX sockets
/// of commands, what is in force if the agent does not make their connections. Under
/// [`ConfinementPolicy::BestEffort`] a layer that fails is reported and is not an error.
///
/// # Errors
///
/// [`ConfineError`] for the first step that failed.
pub fn confine<'a>(
    tenant: Tenant,
    policy: ConfinementPolicy,
    grants: impl Iterator<Item = Grant<'a>>,
) -> Result<Confinement, ConfineError> {
    // Queried before the filter, which also refuses these queries.
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

/// What restricts a command in addition to what it inherits from the agent.
#[derive(Debug, Default)]
pub struct Layers {
    /// A Landlock ruleset that it applies to itself just before it starts.
    pub landlock: Option<OwnedFd>,
    /// The seccomp filter that it installs on itself after that.
    pub seccomp: Option<BpfProgram>,
    /// Seccomp filters of the thread that starts it.
    pub inherited: Vec<BpfProgram>,
}

/// The layers of commands, if the layers that they extend are in force.
///
/// # Errors
///
/// [`ConfineError`], unless the policy is best effort.
pub fn layers<'a>(
    policy: ConfinementPolicy,
    confinement: &Confinement,
    disk: DiskSpace,
    grants: impl Iterator<Item = Grant<'a>>,
) -> Result<Layers, ConfineError> {
    let landlock = confinement.landlock_abi.map(|_| landlock::layer(grants)).transpose();
    let seccomp = || {
        if !confinement.seccomp {
            return Ok::<_, SeccompError>((None, Vec::new()));
        }
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let inherited = seccomp::programs::of_commands(confinement.unix_sockets, disk, ids)?;
        Ok((Some(seccomp::programs::of_a_command()?), inherited))
    };
    let (landlock, (seccomp, inherited)) = match policy {
        ConfinementPolicy::Required => (landlock?, seccomp()?),
        ConfinementPolicy::BestEffort => (landlock.ok().flatten(), seccomp().unwrap_or_default()),
    };
    Ok(Layers { landlock, seccomp, inherited })
}

/// Limits a check, which has no container around it.
///
/// # Errors
///
/// [`ConfineError`] if a limit cannot be set.
pub fn limit_check() -> Result<(), ConfineError> {
    step("RLIMIT_CPU", limit(Resource::Cpu, CHECK_CPU_SECONDS))?;
    step("RLIMIT_AS", limit(Resource::As, CHECK_MEMORY_BYTES))
}

/// Further settings of an agent that runs commands: it gets SIGCHLD for its children, orphaned
/// processes become its children, and it handles no signal: as the init process it only receives
/// signals from its commands that it handles, and their contents are chosen by the sender.
///
/// # Errors
///
/// [`ConfineError`] if the kernel refuses.
pub fn adopt() -> Result<(), ConfineError> {
    step("watching children", dispose(libc::SIGCHLD, libc::SIG_DFL))?;
    // The standard library handles these, to report which thread's stack overflowed.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        step("catching nothing", dispose(signal, libc::SIG_DFL))?;
    }
    let own = Some(rustix::process::getpid());
    step("PR_SET_CHILD_SUBREAPER", rustix::process::set_child_subreaper(own))
}

/// Lowers the CPU time limit of this process, and of what it starts.
///
/// # Errors
///
/// The errors of `setrlimit`.
pub fn limit_cpu(seconds: u64) -> rustix::io::Result<()> {
    limit(Resource::Cpu, seconds)
}

/// Lowers a limit, and never raises it.
fn limit(resource: Resource, value: u64) -> rustix::io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let value = Some(now.maximum.map_or(value, |maximum| maximum.min(value)));
    rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })
}

/// Closes every descriptor above 2. The agent has opened nothing yet.
#[expect(unsafe_code, reason = "descriptors that no Rust value owns can only be closed raw")]
fn close_inherited() -> rustix::io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor above 2 yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    // Before Linux 5.9, or under a filter that denies the call.
    let listed = std::fs::read_dir("/proc/self/fd").and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
    });
    let names = listed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok());
    for fd in numbers.filter(|&fd| fd > 2) {
        // SAFETY: as above; the listing's own descriptor is closed by now, so its close fails with
        // EBADF.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

#[expect(unsafe_code, reason = "no safe interface sets a signal's disposition")]
fn dispose(signal: libc::c_int, disposition: libc::sighandler_t) -> rustix::io::Result<()> {
    // SAFETY: neither SIG_IGN nor SIG_DFL runs our code.
    let before = unsafe { libc::signal(signal, disposition) };
    if before == libc::SIG_ERR { Err(Errno::INVAL) } else { Ok(()) }
}
