//! What the first process of a container is and may do, and the program that it becomes.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet};
use sandbox_helper::spec::{self, Filter, Limits, Process};
use seccompiler::{BpfProgram, sock_filter};

use super::sys;
use crate::failed::{Failed, Step as _};
use crate::rootless::Rootless;

/// Signals that the helper ignores, but the agent must not.
pub const IGNORED: &[libc::c_int] = &[
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGPIPE,
];
const UMASK: Mode = Mode::from_raw_mode(0o022);

/// Binds this process's life to the helper's, which may be gone already. The kernel forgets it when the
/// user changes.
pub fn die_with(helper: &OwnedFd) -> Result<(), Failed> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step("be killed with the helper")?;
    let mut helper = [PollFd::from_borrowed_fd(helper.as_fd(), PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut helper, Some(&at_once)) {
        Ok(0) => Ok(()),
        _ => Err(Failed("the helper is gone".to_owned())),
    }
}

/// Takes the controller's pipes as its standard streams. All other descriptors are closed on exec.
pub fn take_stdio([input, output, errors]: &[OwnedFd; 3]) -> Result<(), Failed> {
    let take = || {
        rustix::stdio::dup2_stdin(input)?;
        rustix::stdio::dup2_stdout(output)?;
        rustix::stdio::dup2_stderr(errors)
    };
    take().step("take the standard streams")
}

/// Gives up what puts the caller before other processes of the machine: a real-time policy, a negative
/// nice value, and real-time I/O. What puts the caller behind them stays.
pub fn reset_priorities() -> Result<(), Failed> {
    if sys::is_real_time().step("find its scheduling policy")? {
        sys::schedule_normally().step("reset its scheduling policy")?;
    }
    if rustix::process::getpriority_process(None).step("find its nice value")? < 0 {
        rustix::process::setpriority_process(None, 0).step("reset its nice value")?;
    }
    // A kernel without block devices has no such priority.
    if sys::is_real_time_for_io().unwrap_or(false) {
        sys::reset_io_priority().step("reset its I/O priority")?;
    }
    Ok(())
}

/// Leaves the caller's session keyring for an empty one. A kernel may have no keys, another container's
/// filter may refuse the call, and a user's quota of keys may be used up: then it stays, and the
/// filters refuse every call that names a key.
pub fn leave_session_keyring() -> Result<(), Failed> {
    match sys::join_session_keyring() {
        Ok(()) | Err(Errno::NOSYS | Errno::PERM | Errno::DQUOT) => Ok(()),
        Err(error) => Err(error).step("join a session keyring"),
    }
}

/// Sets its resource limits, while it may raise them. Without root none can be raised.
pub fn limit(process: &Process, rootless: Option<&Rootless>) -> Result<(), Failed> {
    for spec::Rlimit { name, soft, hard } in &process.rlimits {
        let resource = match &**name {
            "core" => Resource::Core,
            "cpu" => Resource::Cpu,
            "fsize" => Resource::Fsize,
            "memlock" => Resource::Memlock,
            "msgqueue" => Resource::Msgqueue,
            "nice" => Resource::Nice,
            "nofile" => Resource::Nofile,
            "nproc" => Resource::Nproc,
            "rtprio" => Resource::Rtprio,
            _ => return Err(Failed(format!("there is no resource limit {name}"))),
        };
        let most = rootless.and_then(|_| getrlimit(resource).maximum).unwrap_or(u64::MAX);
        let [current, maximum] = [*soft, *hard].map(|value| Some(value.min(most)));
        let limit = Rlimit { current, maximum };
        setrlimit(resource, limit).step_at("set the resource limit", name)?;
    }
    Ok(())
}

/// Binds it to as many processors as its limit, rounded up.
pub fn bind_to_processors(limits: &Limits) -> Result<(), Failed> {
    let allowed = rustix::thread::sched_getaffinity(None).step("find its processors")?;
    let mut allowed: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&it| allowed.is_set(it)).collect();
    let period = i64::try_from(limits.cpu_period).unwrap_or(i64::MAX).max(1);
    let count = (limits.cpu_quota + period - 1) / period;
    let count = usize::try_from(count).unwrap_or(1).clamp(1, allowed.len().max(1));
    // Where it runs now: the kernel's choice, by the load.
    let here = rustix::thread::sched_getcpu();
    let here = allowed.iter().position(|&it| it == here).unwrap_or(0);
    allowed.rotate_left(here);
    let mut bound = CpuSet::new();
    allowed.iter().take(count).for_each(|&processor| bound.set(processor));
    rustix::thread::sched_setaffinity(None, &bound).step("bind it to processors")
}

/// Becomes the container's user and group, without any capability, and without a way to get one: not
/// by a user, a program with set-id bits or file capabilities, or a namespace.
///
/// Without root this process is that user already, and its groups cannot be dropped.
pub fn renounce_privileges(process: &Process, rootless: Option<&Rootless>) -> Result<(), Failed> {
    let Process { uid, gid, .. } = *process;
    // The kernel reads it as "unchanged", and this is root.
    if [uid, gid].contains(&u32::MAX) {
        return Err(Failed(format!("there is no user {uid}:{gid}")));
    }
    // First, while it may; and as long as the kernel has another one.
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error).step("drop a capability for good"),
        }
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if rootless.is_none() {
        // Its own group as the only supplementary one: the helper has none, and programs list theirs.
        rustix::thread::set_thread_groups(&[group]).step("set the supplementary groups")?;
    }
    rustix::thread::set_thread_res_gid(group, group, group).step("set the group")?;
    rustix::thread::set_thread_res_uid(user, user, user).step("set the user")?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none).step("drop all capabilities")?;
    rustix::thread::set_no_new_privs(true).step("renounce new privileges")?;
    match sys::identity().step("look at its own user")? {
        (uids, gids) if uids == [uid; 3] && gids == [gid; 3] => Ok(()),
        _ => Err(Failed("the process is not the user that was asked for".to_owned())),
    }
}

/// What a [`Process`] becomes, in the kernel's form.
pub struct Program<'a> {
    file: BorrowedFd<'a>,
    args: Vec<CString>,
    env: Vec<CString>,
    filters: Vec<BpfProgram>,
}

impl<'a> Program<'a> {
    pub fn new(file: BorrowedFd<'a>, process: &Process) -> Result<Self, Failed> {
        let texts = |texts: &[String]| sys::c_strings(texts).step("pass arguments with a null");
        let (args, env) = (texts(&process.args)?, texts(&process.env)?);
        let instructions = |filter: &Filter| filter.iter().copied().map(instruction).collect();
        let filters = process.filters.iter().map(instructions).collect();
        Ok(Self { file, args, env, filters })
    }

    /// Becomes it. The filters come last, because what comes before needs calls that they refuse.
    pub fn execute(self) -> Result<Infallible, Failed> {
        rustix::process::umask(UMASK);
        for signal in IGNORED {
            sys::set_disposition(*signal, libc::SIG_DFL);
        }
        for filter in &self.filters {
            seccompiler::apply_filter(filter)
                .map_err(|error| Failed(format!("cannot install a filter: {error}")))?;
        }
        Err(sys::execute(self.file, &self.args, &self.env)).step("execute the agent")
    }
}

/// `code`, `jt`, `jf` and `k`, as they are in memory on a machine of little endian.
#[expect(clippy::cast_possible_truncation, reason = "each takes its own bits")]
fn instruction(bits: u64) -> sock_filter {
    sock_filter {
        code: bits as u16,
        jt: (bits >> 16) as u8,
        jf: (bits >> 24) as u8,
        k: (bits >> 32) as u32,
    }
}
