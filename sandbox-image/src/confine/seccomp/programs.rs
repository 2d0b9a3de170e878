//! The filters of sandboxes that run commands.
//!
//! Two are in force for the agent and for every command: [`allowed`], the allowlist, and
//! [`refused`], which refuses calls on that list that a sandbox must not make, some by their
//! arguments. Those of [`of_commands`] refuse what the agent itself must be able to do. They are on the
//! thread that starts commands, so that each command has them from its first instruction, and none
//! pays for them: to install them takes 0.3 ms. Only [`of_a_command`] refuses what a command does
//! before it executes its program; it installs that on itself just before. [`supervised`] is on the
//! thread too, if the agent connects for them.

use sandbox_protocol::argv::DiskSpace;
use sandbox_protocol::message::UnixSockets;
use sandbox_protocol::program_syscalls;
use sandbox_protocol::syscalls::{FCHMODAT2, PERSONALITIES};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompAction};

use super::{Rules, bits, compile, errno, instruction};

macro_rules! numbers {
    (all: [$($all:ident,)+], x86_64: [$($x86:ident,)+],) => {
        const ALLOWED: &[libc::c_long] = &[
            FCHMODAT2,
            $(libc::$all,)+
            $(#[cfg(target_arch = "x86_64")] libc::$x86,)+
        ];
    };
}

program_syscalls!(numbers);

/// Calls that are refused with any arguments. Most of them are not on the allowlist either, but are
/// listed here for their error: commands expect EPERM for a call that exists and is not permitted.
const REFUSED: &[libc::c_long] = {
    use libc::*;
    &[
        SYS_add_key, SYS_bpf, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup,
        SYS_kcmp, SYS_keyctl, SYS_perf_event_open, SYS_process_madvise, SYS_process_vm_writev,
        SYS_ptrace, SYS_request_key, SYS_setns, SYS_unshare, SYS_userfaultfd,
    ]
};

/// Reads another process: the agent needs it to make the connections of commands. The engines'
/// filters allow it too (`container_syscall_names`).
const SUPERVISORS: &[libc::c_long] = &[libc::SYS_pidfd_getfd, libc::SYS_process_vm_readv];

/// Flags of `clone` that create a namespace.
const NAMESPACES: [libc::c_int; 7] = {
    use libc::*;
    [
        CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
        CLONE_NEWUTS,
    ]
};

/// Allowed socket families. Netlink is allowed in addition, for one protocol: see [`refused`].
const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// Allowed protocols of these families: the others (SCTP, SMC, MPTCP and similar) are a large
/// amount of kernel code, loaded on demand, and useless on loopback.
const PROTOCOLS: [libc::c_int; 5] =
    [0, libc::IPPROTO_ICMP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMPV6];

/// Calls that create a file or set its mode, and the index of the mode argument. Not `mkdir`: the kernel
/// ignores these bits there, and `cp -r` passes them on from the folder that it copies.
const MODES: &[(libc::c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// The same for calls where another argument (with its index) decides whether there is a mode.
const MODES_OF_OPEN: &[(libc::c_long, u8, u8)] = &[
    (libc::SYS_openat, 3, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2, 1),
];

/// `S_ISUID` and `S_ISGID`, each alone.
const SET_ID: [u64; 2] = [0o4000, 0o2000];

/// The bit of `O_TMPFILE` that no other flag has.
const TMPFILE: libc::c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Requests that insert characters, or keys bound to strings, into a terminal's input.
const TYPING: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Commands of `fcntl` with which a program that can only read a file delays those that open it for
/// writing (a lease), or watches a directory. An input is a file of the host.
const LEASES: [u64; 3] = [libc::F_SETLEASE as u64, libc::F_NOTIFY as u64, F_SETDELEG];
/// A lease on a directory too, from Linux 6.19.
const F_SETDELEG: u64 = 1040;

/// Calls that change the scheduling of the thread in their first argument: only 0, the caller
/// itself, has an effect. Otherwise a command could change the agent's, which could not be restored
/// (`sched_setaffinity` is not included: programs use thread ids to bind threads to CPUs).
const SCHEDULING: [libc::c_long; 3] =
    [libc::SYS_sched_setattr, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler];

/// The same for calls whose first argument says what the second one, if it is not 0, is the id of: a
/// process or a group. (`setpriority` of a process is [`PRIORITY_OF_A_PROCESS`].)
const PRIORITIES: [(libc::c_long, u64); 3] = [
    (libc::SYS_setpriority, libc::PRIO_PGRP as u64),
    (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS),
    (libc::SYS_ioprio_set, IOPRIO_WHO_PGRP),
];
const IOPRIO_WHO_PROCESS: u64 = 1;
const IOPRIO_WHO_PGRP: u64 = 2;
/// `PRIO_PROCESS`.
const PRIORITY_OF_A_PROCESS: u32 = 0;

/// The same for a user, which means every process.
const PRIORITIES_OF_USERS: [(libc::c_long, u64); 2] =
    [(libc::SYS_setpriority, libc::PRIO_USER as u64), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)];
const IOPRIO_WHO_USER: u64 = 3;

/// Calls that change an owner, and the index of the user; the group is the next one.
const OWNERS: &[(libc::c_long, u8)] = &[
    (libc::SYS_fchown, 1),
    (libc::SYS_fchownat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chown, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lchown, 1),
];
/// An id that leaves the owner or the group as it is: -1.
const UNCHANGED: u64 = u32::MAX as u64;

/// Limits that must not change. The first could hand a crash dump to a program of the host; by the
/// second the agent knows which tree a process belongs to ([`Tree`](crate::exec)).
const FIXED_LIMITS: [u32; 2] = [libc::RLIMIT_CORE, libc::RLIMIT_LOCKS];

/// Sets an extended attribute, from Linux 6.13; it has one number on all architectures.
const SYS_SETXATTRAT: libc::c_long = 463;

/// Calls that set extended attributes.
const ATTRIBUTES: [libc::c_long; 4] =
    [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, SYS_SETXATTRAT];

/// Flags of `fallocate` that free space.
const GIVING_BACK: [libc::c_int; 2] = [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_COLLAPSE_RANGE];

/// Calls that open a file, and the index of their flags.
const FLAGS: &[(libc::c_long, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];

/// Requests of `ioctl` with which XFS reserved space before `fallocate` existed, and which every
/// file system has supported since: `_IOW('X', n, struct space_resv)`, for any number.
const SPACE_REQUESTS: u64 = 0x4030_5800;
const SPACE_REQUESTS_MASK: u64 = 0xffff_ff00;

/// Requests of `ioctl` that set a file's flags and extended attributes: by a hint of XFS every new file of a
/// directory takes gigabytes while it is open. `FS_IOC_FSSETXATTR`, `FS_IOC_SETFLAGS`, and this of 32 bits.
const FLAG_REQUESTS: [u64; 3] = [0x401c_5820, 0x4008_6602, 0x4004_6602];

/// The types of the requests of `ioctl` with which btrfs and bcachefs create subvolumes and
/// snapshots, or make them read-only: write access to the directory is sufficient.
const SUBVOLUME_REQUESTS: [u64; 2] = [0x9400, 0xbc00];
const REQUEST_TYPE_MASK: u64 = 0xff00;
/// Of the same type, and of every file system that shares extents: `FICLONE`, `FICLONERANGE` and
/// `FIDEDUPERANGE`.
const SHARING: [u64; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

/// The allowlist: calls that are not on it do not exist.
pub fn allowed() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(&[ALLOWED, SUPERVISORS].concat());
    for personality in PERSONALITIES {
        rules.add(libc::SYS_personality, [(0, Dword, Eq, personality)])?;
    }
    compile(rules, errno(libc::ENOSYS), SeccompAction::Allow)
}

/// The calls on the allowlist that are not permitted.
pub fn refused() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(REFUSED);
    for flag in NAMESPACES.map(bits) {
        rules.add(libc::SYS_clone, [(0, Qword, MaskedEq(flag), flag)])?;
    }
    let of_family = |family| (0, Dword, Eq, bits(family));
    let of_another_family = |family| (0, Dword, Ne, bits(family));
    let of_another_protocol = |protocol| (2, Dword, Ne, bits(protocol));
    rules.add(libc::SYS_socketpair, FAMILIES.map(of_another_family))?;
    // The devices, addresses and routes of the sandbox's own network namespace, to read: programs list
    // the interfaces. What changes any of them the kernel permits to `CAP_NET_ADMIN` alone, which
    // nothing in a sandbox has or gets. The other protocols stay refused.
    let families = FAMILIES.into_iter().chain([libc::AF_NETLINK]);
    rules.add(libc::SYS_socket, families.map(of_another_family))?;
    let netlink = [of_family(libc::AF_NETLINK), of_another_protocol(libc::NETLINK_ROUTE)];
    rules.add(libc::SYS_socket, netlink)?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let others = PROTOCOLS.map(of_another_protocol);
        rules.add(libc::SYS_socket, [of_family(family)].into_iter().chain(others))?;
    }
    for request in TYPING {
        rules.add(libc::SYS_ioctl, [(1, Dword, Eq, request)])?;
    }
    for command in LEASES {
        rules.add(libc::SYS_fcntl, [(1, Dword, Eq, command)])?;
    }
    // A rename that leaves a whiteout device: it cannot be opened, but an overlay hides a file of
    // the layer below.
    let leaves_device = u64::from(libc::RENAME_WHITEOUT);
    rules.add(libc::SYS_renameat2, [(4, Dword, MaskedEq(leaves_device), leaves_device)])?;
    // Files in the io dir remain after the sandbox is removed: never set-uid or set-gid.
    for bit in SET_ID {
        for &(call, mode) in MODES {
            rules.add(call, [(mode, Dword, MaskedEq(bit), bit)])?;
        }
        for &(call, mode, flags) in MODES_OF_OPEN {
            for makes in [libc::O_CREAT, TMPFILE].map(bits) {
                let creates = (flags, Dword, MaskedEq(makes), makes);
                rules.add(call, [(mode, Dword, MaskedEq(bit), bit), creates])?;
            }
        }
    }
    compile(rules, SeccompAction::Allow, errno(libc::EPERM))
}

/// What the agent may do and commands may not (each filter has its own error), and what restricts
/// commands to the sandbox's UNIX sockets. Where `disk` is watched, they may not take space that is
/// not seen. The ids are the user's and the group's that commands run as.
pub fn of_commands(
    unix_sockets: UnixSockets,
    disk: DiskSpace,
    ids: (u32, u32),
) -> Result<Vec<BpfProgram>, BackendError> {
    let mut filters = vec![of_the_agent()?, hidden_space(disk)?];
    if disk == DiskSpace::Watched {
        filters.push(direct_io()?);
    }
    filters.push(without_effect(unix_sockets, ids)?);
    match unix_sockets {
        // The kernel's own rules restrict them, or nothing does.
        UnixSockets::None | UnixSockets::Landlock | UnixSockets::Unrestricted => {}
        UnixSockets::Supervised => filters.push(datagrams()?),
        UnixSockets::Pairs => filters.extend([datagrams()?, named_sockets()?]),
    }
    Ok(filters)
}

/// Access to other processes, and changes to their limits. A fixed limit that is set and asked for in one
/// call too: [`of_a_command`] answers the others, and a filter cannot write the old limit.
fn of_the_agent() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(SUPERVISORS);
    let sets = || (2, Qword, Ne, 0);
    rules.add(libc::SYS_prlimit64, [(0, Dword, Ne, 0), sets()])?;
    for limit in FIXED_LIMITS.map(u64::from) {
        let asks = (3, Qword, Ne, 0);
        rules.add(libc::SYS_prlimit64, [(1, Dword, Eq, limit), sets(), asks])?;
    }
    compile(rules, SeccompAction::Allow, errno(libc::EPERM))
}

/// Limits that must not change. A command sets one of them itself. Setting one reports success and
/// does nothing: `gpg`, `ssh-agent` and programs with a sanitizer exit if they cannot turn core
/// dumps off, which are one byte here for any setting.
pub fn of_a_command() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::default();
    for limit in FIXED_LIMITS.map(u64::from) {
        let of_itself = [(0, Dword, Eq, 0), (1, Dword, Eq, limit)];
        let only_sets = [(2, Qword, Ne, 0), (3, Qword, Eq, 0)];
        rules.add(libc::SYS_prlimit64, of_itself.into_iter().chain(only_sets))?;
        rules.add(libc::SYS_setrlimit, [(0, Dword, Eq, limit)])?;
    }
    compile(rules, SeccompAction::Allow, errno(0))
}

/// Calls that report success and do nothing, because programs end, or lose what they were about to do, if
/// they fail, and need no effect:
///
/// - scheduling of any thread that is named by its id, for the agent's have ids too. Programs name
///   themselves, to set what they have already. Where the agent supervises, a thread that sets its own
///   priority does so: see [`supervised`].
/// - an owner that is not the sandbox's one user and group, by uid 0: what unpacks archives as root
///   otherwise leaves out modes and times too. Others get the kernel's error, as anywhere.
/// - becoming undumpable, where the agent supervises: it could not access the command, and so not
///   connect for it.
fn without_effect(
    unix_sockets: UnixSockets,
    (uid, gid): (u32, u32),
) -> Result<BpfProgram, BackendError> {
    let is_supervised = unix_sockets == UnixSockets::Supervised;
    let mut rules = Rules::default();
    for call in SCHEDULING {
        rules.add(call, [(0, Dword, Ne, 0)])?;
    }
    let of_a_process = (libc::SYS_setpriority, PRIORITY_OF_A_PROCESS.into());
    let priorities = PRIORITIES.into_iter().chain((!is_supervised).then_some(of_a_process));
    for (call, which) in priorities {
        rules.add(call, [(0, Dword, Eq, which), (1, Dword, Ne, 0)])?;
    }
    for (call, which) in PRIORITIES_OF_USERS {
        rules.add(call, [(0, Dword, Eq, which)])?;
    }
    if uid == 0 {
        for &(call, user) in OWNERS {
            for (place, own) in [(user, uid), (user + 1, gid)] {
                let another = (place, Dword, Ne, own.into());
                rules.add(call, [another, (place, Dword, Ne, UNCHANGED)])?;
            }
        }
    }
    if is_supervised {
        let undumpable = [(0, Dword, Eq, bits(libc::PR_SET_DUMPABLE)), (1, Qword, Eq, 0)];
        rules.add(libc::SYS_prctl, undumpable)?;
    }
    compile(rules, SeccompAction::Allow, errno(0))
}

/// Reserving space without writing: one call can reserve any size, `RLIMIT_FSIZE` does not count
/// it, and no check would be in time. The error is that of a file system that does not support it,
/// so the C library writes instead; freeing space is permitted. Extended attributes are stored
/// outside of every file's size: on btrfs a single file takes gigabytes. Neither is refused where the
/// kernel bounds the disk space. Landlock's own system calls could keep removed files where no process
/// can find them: the error is that of a kernel booted without Landlock.
fn hidden_space(disk: DiskSpace) -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::of(&[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule]);
    if disk == DiskSpace::Watched {
        for call in ATTRIBUTES {
            rules.0.insert(call, Vec::new());
        }
        let takes = GIVING_BACK.map(bits).map(|flag| (1, Dword, MaskedEq(flag), 0));
        rules.add(libc::SYS_fallocate, takes)?;
    }
    rules.add(libc::SYS_ioctl, [(1, Dword, MaskedEq(SPACE_REQUESTS_MASK), SPACE_REQUESTS)])?;
    for request in FLAG_REQUESTS {
        rules.add(libc::SYS_ioctl, [(1, Dword, Eq, request)])?;
    }
    for kind in SUBVOLUME_REQUESTS {
        let request = [(1, Dword, MaskedEq(REQUEST_TYPE_MASK), kind)];
        let shares_nothing = SHARING.map(|sharing| (1, Dword, Ne, sharing));
        rules.add(libc::SYS_ioctl, request.into_iter().chain(shares_nothing))?;
    }
    compile(rules, SeccompAction::Allow, errno(libc::EOPNOTSUPP))
}

/// I/O past the page cache. Not even killing the program interrupts a write in progress: two
/// hundred threads wrote ten gigabytes after they were signalled to stop. Packet pipes have the
/// same flag: it is set at creation, and their flags are not set again. The error is that of a file
/// system that does not support it, as tmpfs long did not.
fn direct_io() -> Result<BpfProgram, BackendError> {
    let direct = bits(libc::O_DIRECT);
    let mut rules = Rules::default();
    for &(call, flags) in FLAGS {
        rules.add(call, [(flags, Dword, MaskedEq(direct), direct)])?;
    }
    let sets = (1, Dword, Eq, bits(libc::F_SETFL));
    rules.add(libc::SYS_fcntl, [sets, (2, Dword, MaskedEq(direct), direct)])?;
    compile(rules, SeccompAction::Allow, errno(libc::EINVAL))
}

/// UNIX sockets that send to an address: it is in memory, where a filter cannot read it. A raw one
/// is a datagram socket too.
fn datagrams() -> Result<BpfProgram, BackendError> {
    const TYPE: libc::c_int = 0xf;
    let mut rules = Rules::default();
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let of_unix = (0, Dword, Eq, bits(libc::AF_UNIX));
            rules.add(call, [of_unix, (1, Dword, MaskedEq(bits(TYPE)), bits(kind))])?;
        }
    }
    compile(rules, SeccompAction::Allow, errno(libc::ESOCKTNOSUPPORT))
}

/// UNIX sockets that could be connected to an address. Socket pairs are connected permanently.
fn named_sockets() -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::default();
    rules.add(libc::SYS_socket, [(0, Dword, Eq, bits(libc::AF_UNIX))])?;
    compile(rules, SeccompAction::Allow, errno(libc::EACCES))
}

/// Makes calls wait for the agent: every `connect`, and every `setpriority` of a process by its id. The
/// filters that are in force already check the architecture of the call.
pub fn supervised() -> BpfProgram {
    const NUMBER: u32 = 0;
    // The lower halves of the first two arguments.
    const WHICH: u32 = 16;
    const WHO: u32 = 24;
    let load = |place| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, place);
    let is =
        |value, jt, jf| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let answer = |action| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let call = |number: libc::c_long| u32::try_from(number).expect("numbers are small");
    vec![
        load(NUMBER),
        is(call(libc::SYS_connect), 6, 0),
        is(call(libc::SYS_setpriority), 0, 4),
        load(WHICH),
        is(PRIORITY_OF_A_PROCESS, 0, 2),
        load(WHO),
        is(0, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
    ]
}
