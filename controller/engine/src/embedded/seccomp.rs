//! The seccomp filters in the kernel's format: the helper installs them in the container's first
//! process just before that becomes the agent.
//!
//! They are made from numbers: the first launch of a process waits for them, and seccompiler takes several times
//! as long to make them from names in JSON.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use libc::c_long;
use rustix::io::Errno;
use sandbox_helper::spec::Filter;
use sandbox_protocol::syscalls::{FCHMODAT2, PERSONALITIES, container_syscall_names};
use sandbox_protocol::{bpf, program_syscalls};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::hardening::{ALLOWED_SYSCALLS, CLONE, CLONE_NAMESPACES, CLONE3, EXECVE, EXECVEAT};

/// Allowed with some arguments only.
const PERSONALITY: &str = "personality";
/// What a container may not do whose limit of processors is that it is bound to some.
const SCHED_SETAFFINITY: &str = "sched_setaffinity";

macro_rules! numbers {
    (all: [$($all:ident,)+], x86_64: [$($x86:ident,)+],) => {
        /// The calls of programs that this architecture has, and what else a filter names.
        const NUMBERS: &[(&str, c_long)] = &[
            $((stringify!($all), libc::$all),)+
            $(#[cfg(target_arch = "x86_64")] (stringify!($x86), libc::$x86),)+
            (CLONE3, libc::SYS_clone3),
            ("fchmodat2", FCHMODAT2),
            ("openat2", libc::SYS_openat2),
            (PERSONALITY, libc::SYS_personality),
            ("pidfd_getfd", libc::SYS_pidfd_getfd),
            ("process_vm_readv", libc::SYS_process_vm_readv),
        ];
    };
}

program_syscalls!(numbers);

/// A call that is listed by its first argument too: how that is compared, and with what.
type Rule = (&'static str, SeccompCmpOp, u64);

/// The filters of a container that runs only scripts, compiled once. There are two, because a
/// filter has a single action for all calls it matches: the first allows the listed calls, the
/// second makes `clone3` fail as nonexistent. The kernel uses the stricter action.
///
/// The first process executes the agent by its descriptor, so that call is allowed in place of the one
/// that takes a path.
pub(super) fn of_scripts() -> Vec<Filter> {
    static FILTERS: OnceLock<Vec<Filter>> = OnceLock::new();
    let compile = || {
        let names = ALLOWED_SYSCALLS.concat();
        let names = names.into_iter().map(|name| if name == EXECVE { EXECVEAT } else { name });
        // `clone3` is handled by the second filter.
        let names = names.chain([CLONE3]);
        let allowed = (SeccompAction::Allow, errno(Errno::PERM));
        let absent = (errno(Errno::NOSYS), SeccompAction::Allow);
        vec![filter(names, [clone_without_namespaces()], allowed), filter([CLONE3], [], absent)]
    };
    FILTERS.get_or_init(compile).clone()
}

/// The filter of a container that supports commands, compiled once. Calls that are denied depending
/// on their arguments are handled by the agent's own filter.
pub(super) fn of_programs() -> Vec<Filter> {
    static FILTERS: OnceLock<Vec<Filter>> = OnceLock::new();
    let compile = || {
        let personalities = PERSONALITIES.map(|value| (PERSONALITY, SeccompCmpOp::Eq, value));
        let rules = personalities.into_iter().chain([clone_without_namespaces()]);
        let names = container_syscall_names().filter(|name| *name != CLONE);
        vec![filter(names, rules, (SeccompAction::Allow, errno(Errno::NOSYS)))]
    };
    FILTERS.get_or_init(compile).clone()
}

/// The filter of a container whose limit of processors is that it is bound to some, compiled once.
pub(super) fn of_bound_processors() -> Filter {
    static FILTER: OnceLock<Filter> = OnceLock::new();
    let compile = || filter([SCHED_SETAFFINITY], [], (errno(Errno::PERM), SeccompAction::Allow));
    FILTER.get_or_init(compile).clone()
}

fn clone_without_namespaces() -> Rule {
    (CLONE, SeccompCmpOp::MaskedEq(CLONE_NAMESPACES), 0)
}

fn errno(errno: Errno) -> SeccompAction {
    SeccompAction::Errno(errno.raw_os_error().unsigned_abs())
}

fn arch() -> TargetArch {
    TargetArch::try_from(std::env::consts::ARCH)
        .unwrap_or_else(|error| panic!("the filter does not support this architecture: {error}"))
}

/// The numbers of calls by name.
fn numbers() -> BTreeMap<&'static str, c_long> {
    NUMBERS.iter().map(|&(name, number)| (name.trim_start_matches("SYS_"), number)).collect()
}

/// Does the first of these actions for calls by name, some of them depending on their first argument, and the
/// second for all others.
fn filter(
    names: impl IntoIterator<Item = &'static str>,
    rules: impl IntoIterator<Item = Rule>,
    actions: (SeccompAction, SeccompAction),
) -> Filter {
    let program = compile(names, rules, actions).expect("seccompiler compiles each of these");
    let program: Vec<_> = program.iter().map(|it| bpf::pack(it.code, it.jt, it.jf, it.k)).collect();
    bpf::shorten(&program)
}

fn compile(
    names: impl IntoIterator<Item = &'static str>,
    rules: impl IntoIterator<Item = Rule>,
    (listed, others): (SeccompAction, SeccompAction),
) -> Result<BpfProgram, BackendError> {
    let numbers = numbers();
    // The list is for several architectures: a call that this one does not have cannot be made.
    let known = names.into_iter().filter_map(|name| numbers.get(name));
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> =
        known.map(|&number| (number, Vec::new())).collect();
    for (name, operator, value) in rules {
        let qword = SeccompCmpArgLen::Qword;
        let rule = SeccompRule::new(vec![SeccompCondition::new(0, qword, operator, value)?])?;
        calls.entry(numbers[name]).or_default().push(rule);
    }
    BpfProgram::try_from(SeccompFilter::new(calls, others, listed, arch())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The action of a filter, computed by interpreting its instructions like the kernel.
    fn answer(filter: &Filter, syscall: u32, first_argument: u64) -> u32 {
        const AUDIT_ARCH: u32 =
            if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let mut data = Vec::new();
        data.extend(syscall.to_ne_bytes());
        data.extend(AUDIT_ARCH.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(first_argument.to_ne_bytes());
        data.extend([0; 40]);
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let [code_low, code_high, jt, jf, k @ ..] = filter[at].to_le_bytes();
            let k = u32::from_le_bytes(k);
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match u16::from_le_bytes([code_low, code_high]) {
                0x20 => {
                    let at = k as usize;
                    accumulator = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
                }
                0x54 => accumulator &= k,
                0x05 => at += k as usize,
                0x15 => at += jump(accumulator == k),
                0x25 => at += jump(accumulator > k),
                0x35 => at += jump(accumulator >= k),
                0x06 => return k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    const ALLOW: u32 = 0x7fff_0000;
    const EPERM: u32 = 0x0005_0001;
    const ENOSYS: u32 = 0x0005_0026;

    fn call(number: c_long, argument: u64) -> [u32; 2] {
        let number = u32::try_from(number).unwrap();
        let filters = of_scripts();
        [answer(&filters[0], number, argument), answer(&filters[1], number, argument)]
    }

    #[test]
    fn the_filters_say_what_the_list_says() {
        for number in [libc::SYS_read, libc::SYS_openat2, libc::SYS_execveat, libc::SYS_prctl] {
            assert_eq!(call(number, 0), [ALLOW, ALLOW], "{number}");
        }
        for number in [libc::SYS_socket, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_execve] {
            assert_eq!(call(number, 0), [EPERM, ALLOW], "{number}");
        }
        assert_eq!(call(libc::SYS_clone3, 0), [ALLOW, ENOSYS]);
    }

    #[test]
    fn a_thread_may_be_made_and_a_namespace_may_not() {
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        assert_eq!(call(libc::SYS_clone, u64::try_from(thread).unwrap())[0], ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
            assert_eq!(call(libc::SYS_clone, u64::try_from(flag).unwrap())[0], EPERM, "{flag}");
        }
    }

    #[test]
    fn programs_may_ask_for_what_is_on_their_list_and_the_rest_is_not_there() {
        let filters = of_programs();
        let [filter] = &filters[..] else { panic!("{}", filters.len()) };
        let call =
            |number: c_long, argument| answer(filter, u32::try_from(number).unwrap(), argument);
        for number in [libc::SYS_socket, libc::SYS_execve, libc::SYS_clone, libc::SYS_ioctl] {
            assert_eq!(call(number, 0), ALLOW, "{number}");
        }
        for number in [libc::SYS_clone3, libc::SYS_mount, libc::SYS_ptrace, libc::SYS_bpf] {
            assert_eq!(call(number, 0), ENOSYS, "{number}");
        }
        for value in PERSONALITIES {
            assert_eq!(call(libc::SYS_personality, value), ALLOW, "{value:#x}");
        }
        assert_eq!(call(libc::SYS_clone, u64::try_from(libc::CLONE_NEWUSER).unwrap()), ENOSYS);
        // READ_IMPLIES_EXEC.
        assert_eq!(call(libc::SYS_personality, 0x40_0000), ENOSYS);
    }

    #[test]
    fn filters_are_short_because_the_kernel_tries_them_with_every_call_at_each_start() {
        for filter in of_scripts().iter().chain(&of_programs()) {
            assert!(filter.len() < 200, "{} instructions", filter.len());
        }
    }

    #[test]
    fn no_name_of_the_list_is_lost() {
        let numbers = numbers();
        assert_eq!(numbers.len(), NUMBERS.len(), "one is twice");
        let names = ALLOWED_SYSCALLS.concat().into_iter().chain(container_syscall_names());
        for name in names.chain([CLONE, CLONE3, EXECVEAT, PERSONALITY, SCHED_SETAFFINITY]) {
            let is_known = numbers.contains_key(name);
            assert!(is_known || !cfg!(target_arch = "x86_64"), "{name}");
        }
        assert!(!numbers.contains_key("no_such_call"));
    }

    #[test]
    fn every_call_is_answered_as_the_lists_say() {
        let numbers = numbers();
        let named = |names: &[&'static str]| -> Vec<u32> {
            let known = names.iter().filter_map(|name| numbers.get(name));
            known.map(|&number| u32::try_from(number).unwrap()).collect()
        };
        let scripts = ALLOWED_SYSCALLS.concat();
        let scripts = named(&[&scripts[..], &[CLONE, CLONE3, EXECVEAT]].concat());
        let programs: Vec<_> = container_syscall_names().chain([PERSONALITY]).collect();
        let (execve, programs) = (named(&[EXECVE]), named(&programs));
        let (of_scripts, of_programs) = (of_scripts(), of_programs());
        for number in 0..1000 {
            let is_listed = scripts.contains(&number) && !execve.contains(&number);
            let expected = if is_listed { ALLOW } else { EPERM };
            assert_eq!(answer(&of_scripts[0], number, 0), expected, "{number}");
            let expected = if programs.contains(&number) { ALLOW } else { ENOSYS };
            assert_eq!(answer(&of_programs[0], number, 0), expected, "{number}");
        }
        let bound = of_bound_processors();
        let [bind] = named(&[SCHED_SETAFFINITY])[..] else { panic!("it has a number") };
        assert_eq!([answer(&bound, bind, 0), answer(&bound, bind + 1, 0)], [EPERM, ALLOW]);
    }
}
