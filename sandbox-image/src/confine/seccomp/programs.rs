//! The filters of sandboxes that run programs.
//!
//! Two are in force for the agent and for every program: [`allowed`], the well-known list, and
//! [`refused`], what is on that list and yet no business of a sandbox's, by its arguments. A third,
//! [`last`], a program takes upon itself just before it begins: it refuses what the agent itself has
//! to do. [`notify_connects`] is on the thread that begins programs, where the agent connects for them.

use std::collections::BTreeMap;

use sandbox_protocol::message::UnixSockets;
use sandbox_protocol::syscalls::PERSONALITIES;
use sandbox_protocol::{program_syscalls, supervisor_syscalls};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompRule};

use super::{argument, bits, compile, errno, instruction};

macro_rules! numbers {
    (all: [$($all:ident,)+], x86_64: [$($x86:ident,)+],) => {
        const ALLOWED: &[libc::c_long] = &[
            $(libc::$all,)+
            $(#[cfg(target_arch = "x86_64")] libc::$x86,)+
        ];
    };
}

program_syscalls!(numbers);

/// Calls that are refused whatever their arguments. That most of them are not on the other list is no
/// reason to leave them to it: the answer of a call that is there and not permitted is what programs
/// expect of these.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

macro_rules! supervisor_numbers {
    ($($call:ident,)+) => {
        /// Looks into another process: the agent's, which makes the connections of programs.
        const SUPERVISORS: &[libc::c_long] = &[$(libc::$call,)+];
    };
}

supervisor_syscalls!(supervisor_numbers);

/// Flags of `clone` that make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Families of sockets that there are.
const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// What these families speak: the rest (SCTP, SMC, MPTCP and their kind) is much code of the kernel's,
/// loaded when somebody asks, for nobody on a loopback.
const PROTOCOLS: [libc::c_int; 5] =
    [0, libc::IPPROTO_ICMP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMPV6];

/// Calls that make a file or give it a mode, and the place of the mode among their arguments.
const MODES: &[(libc::c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mkdirat, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// The same where another argument says whether there is a mode, and that one's place.
const MODES_OF_OPEN: &[(libc::c_long, u8, u8)] = &[
    (libc::SYS_openat, 3, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2, 1),
];

/// `S_ISUID` and `S_ISGID`, each alone.
const SET_ID: [u64; 2] = [0o4000, 0o2000];

/// The bit of `O_TMPFILE` that is its own.
const TMPFILE: libc::c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Puts words, or what they stand for, into a terminal's input.
const TYPING: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Calls that change how a thread is scheduled, which is named by this argument: the caller's own, by 0.
/// Another one could be the agent's, which would never get back what it was (`sched_setaffinity` is not
/// among them: threads of programs are named when they are bound to processors).
const SCHEDULING: [(libc::c_long, u8); 3] = [
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setscheduler, 0),
];

/// The same where it may be a process, a group or a user, by the argument before: the last is everybody.
const PRIORITIES: [(libc::c_long, u64); 2] =
    [(libc::SYS_setpriority, libc::PRIO_USER as u64), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)];
const IOPRIO_WHO_USER: u64 = 3;

/// Limits that stay as they are. By the first a crash would be handed to a program of the host's; by
/// the second the agent knows whose a process is ([`Tree`](crate::exec)).
const FIXED_LIMITS: [u32; 2] = [libc::RLIMIT_CORE, libc::RLIMIT_LOCKS];

/// Flags of `fallocate` that give space back.
const GIVING_BACK: [libc::c_int; 2] = [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_COLLAPSE_RANGE];

/// Requests of `ioctl` by which XFS reserved space before there was `fallocate`, and which every file
/// system answers since: `_IOW('X', n, struct space_resv)`, whatever the number.
const SPACE_REQUESTS: u64 = 0x4030_5800;
const SPACE_REQUESTS_MASK: u64 = 0xffff_ff00;

/// Rules by call; one of them must hold, with all of its conditions.
#[derive(Default)]
struct Rules(BTreeMap<i64, Vec<SeccompRule>>);

impl Rules {
    fn of(calls: &[libc::c_long]) -> Self {
        Self(calls.iter().map(|&call| (call, Vec::new())).collect())
    }

    fn add(
        &mut self,
        call: libc::c_long,
        conditions: Vec<SeccompCondition>,
    ) -> Result<(), BackendError> {
        self.0.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    }
}

/// What may be asked of the kernel at all: the rest is not there.
pub fn allowed() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(&[ALLOWED, SUPERVISORS].concat());
    for personality in PERSONALITIES {
        rules.add(libc::SYS_personality, vec![argument(0, Dword, Eq, personality)?])?;
    }
    compile(rules.0, errno(libc::ENOSYS), SeccompAction::Allow)
}

/// What of it is not permitted.
pub fn refused() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(REFUSED);
    for flag in NAMESPACES {
        let flag = bits(flag);
        rules.add(libc::SYS_clone, vec![argument(0, Qword, MaskedEq(flag), flag)?])?;
    }
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let others = FAMILIES.into_iter().map(|family| argument(0, Dword, Ne, bits(family)));
        rules.add(call, others.collect::<Result<_, _>>()?)?;
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut others = vec![argument(0, Dword, Eq, bits(family))?];
        for protocol in PROTOCOLS {
            others.push(argument(2, Dword, Ne, bits(protocol))?);
        }
        rules.add(libc::SYS_socket, others)?;
    }
    for (call, thread) in SCHEDULING {
        rules.add(call, vec![argument(thread, Dword, Ne, 0)?])?;
    }
    for (call, everybody) in PRIORITIES {
        rules.add(call, vec![argument(0, Dword, Eq, everybody)?])?;
        rules.add(call, vec![argument(1, Dword, Ne, 0)?])?;
    }
    for request in TYPING {
        rules.add(libc::SYS_ioctl, vec![argument(1, Dword, Eq, request)?])?;
    }
    // What is made in the io dir stays there when the sandbox is gone: never set-id.
    for bit in SET_ID {
        for &(call, mode) in MODES {
            rules.add(call, vec![argument(mode, Dword, MaskedEq(bit), bit)?])?;
        }
        for &(call, mode, flags) in MODES_OF_OPEN {
            for makes in [libc::O_CREAT, TMPFILE].map(bits) {
                let conditions = vec![
                    argument(mode, Dword, MaskedEq(bit), bit)?,
                    argument(flags, Dword, MaskedEq(makes), makes)?,
                ];
                rules.add(call, conditions)?;
            }
        }
    }
    compile(rules.0, SeccompAction::Allow, errno(libc::EPERM))
}

/// What the agent does and programs do not, each filter with an answer of its own, and what holds
/// the UNIX sockets of programs to the sandbox.
pub fn last(unix_sockets: UnixSockets) -> Result<Vec<BpfProgram>, BackendError> {
    let mut filters = vec![of_the_agent()?, hidden_space()?];
    match unix_sockets {
        // The kernel's own rules hold them, or nothing does.
        UnixSockets::None | UnixSockets::Landlock | UnixSockets::Unrestricted => {}
        UnixSockets::Supervised => filters.extend([datagrams()?, undumpable()?]),
        UnixSockets::Pairs => filters.extend([datagrams()?, named_sockets()?]),
    }
    Ok(filters)
}

/// Other processes, their limits, and limits that stay.
fn of_the_agent() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(SUPERVISORS);
    rules.add(libc::SYS_prlimit64, vec![argument(0, Dword, Ne, 0)?])?;
    for limit in FIXED_LIMITS.map(u64::from) {
        rules.add(
            libc::SYS_prlimit64,
            vec![argument(1, Dword, Eq, limit)?, argument(2, Qword, Ne, 0)?],
        )?;
        rules.add(libc::SYS_setrlimit, vec![argument(0, Dword, Eq, limit)?])?;
    }
    compile(rules.0, SeccompAction::Allow, errno(libc::EPERM))
}

/// Space that is taken without a byte being written: of any size in one call, which `RLIMIT_FSIZE` does
/// not count, and nobody could look in time. As on a file system that cannot do it, so that the C
/// library writes instead; what gives space back is permitted. Landlock's rules keep removed files
/// where nobody can look at all: as on a kernel that was booted without it.
fn hidden_space() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(&[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule]);
    let takes = GIVING_BACK.map(bits).map(|flag| argument(1, Dword, MaskedEq(flag), 0));
    rules.add(libc::SYS_fallocate, takes.into_iter().collect::<Result<_, _>>()?)?;
    let request = argument(1, Dword, MaskedEq(SPACE_REQUESTS_MASK), SPACE_REQUESTS)?;
    rules.add(libc::SYS_ioctl, vec![request])?;
    compile(rules.0, SeccompAction::Allow, errno(libc::EOPNOTSUPP))
}

/// UNIX sockets that send to an address: it lies in memory, where no filter can look. A raw one is a
/// datagram socket too.
fn datagrams() -> Result<BpfProgram, BackendError> {
    const TYPE: libc::c_int = 0xf;
    let mut rules = Rules::default();
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let conditions = vec![
                argument(0, Dword, Eq, bits(libc::AF_UNIX))?,
                argument(1, Dword, MaskedEq(bits(TYPE)), bits(kind))?,
            ];
            rules.add(call, conditions)?;
        }
    }
    compile(rules.0, SeccompAction::Allow, errno(libc::ESOCKTNOSUPPORT))
}

/// UNIX sockets that could be connected to a name. Both of a pair are connected for good.
fn named_sockets() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::default();
    rules.add(libc::SYS_socket, vec![argument(0, Dword, Eq, bits(libc::AF_UNIX))?])?;
    compile(rules.0, SeccompAction::Allow, errno(libc::EACCES))
}

/// Who makes itself undumpable could not be looked into, and so not be connected: it is told that it
/// has, and nothing is done.
fn undumpable() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::default();
    let conditions =
        vec![argument(0, Dword, Eq, bits(libc::PR_SET_DUMPABLE))?, argument(1, Qword, Eq, 0)?];
    rules.add(libc::SYS_prctl, conditions)?;
    compile(rules.0, SeccompAction::Allow, errno(0))
}

/// Has every `connect` wait for the agent. That a call is one of this architecture's is looked at by
/// the filters that are in force already.
pub fn notify_connects() -> BpfProgram {
    const NUMBER: u32 = 0;
    let connect = u32::try_from(libc::SYS_connect).expect("numbers are small");
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, connect),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
