//! The seccomp filters in the kernel's format: the helper installs them in the container's first
//! process just before that becomes the agent.

use std::sync::OnceLock;

use rustix::io::Errno;
use sandbox_helper::spec::Filter;
use sandbox_protocol::bpf;
use sandbox_protocol::syscalls::{PERSONALITIES, container_syscall_names};
use seccompiler::TargetArch;
use serde_json::{Value, json};

use crate::hardening::{ALLOWED_SYSCALLS, CLONE, CLONE_NAMESPACES, CLONE3, EXECVE, EXECVEAT};

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
        let absent = json!({
            "mismatch_action": "allow",
            "match_action": {"errno": Errno::NOSYS.raw_os_error()},
            "filter": [{"syscall": CLONE3}],
        });
        let absent = program(&absent, arch()).expect("every call in it is known");
        vec![allowed(names, &[clone_without_namespaces()], Errno::PERM), absent]
    };
    FILTERS.get_or_init(compile).clone()
}

/// The filter of a container that supports commands, compiled once. Calls that are denied depending
/// on their arguments are handled by the agent's own filter.
pub(super) fn of_programs() -> Vec<Filter> {
    static FILTERS: OnceLock<Vec<Filter>> = OnceLock::new();
    let compile = || {
        let personalities = PERSONALITIES.map(|value| {
            json!({
                "syscall": "personality",
                "args": [{"index": 0, "type": "qword", "op": "eq", "val": value}],
            })
        });
        let by_arguments: Vec<_> =
            personalities.into_iter().chain([clone_without_namespaces()]).collect();
        let names = container_syscall_names().filter(|name| *name != CLONE);
        vec![allowed(names, &by_arguments, Errno::NOSYS)]
    };
    FILTERS.get_or_init(compile).clone()
}

/// The filter of a container whose limit of processors is that it is bound to some, compiled once.
pub(super) fn of_bound_processors() -> Filter {
    static FILTER: OnceLock<Filter> = OnceLock::new();
    let compile = || {
        let bound = json!({
            "mismatch_action": "allow",
            "match_action": {"errno": Errno::PERM.raw_os_error()},
            "filter": [{"syscall": "sched_setaffinity"}],
        });
        program(&bound, arch()).expect("every call in it is known")
    };
    FILTER.get_or_init(compile).clone()
}

fn clone_without_namespaces() -> Value {
    json!({
        "syscall": CLONE,
        "args": [{
            "index": 0, "type": "qword", "op": {"masked_eq": CLONE_NAMESPACES}, "val": 0,
        }],
    })
}

fn arch() -> TargetArch {
    TargetArch::try_from(std::env::consts::ARCH)
        .unwrap_or_else(|error| panic!("the filter does not support this architecture: {error}"))
}

/// Allows calls by name, some of them depending on their arguments; all others fail.
fn allowed(
    names: impl IntoIterator<Item = &'static str>,
    by_arguments: &[Value],
    others: Errno,
) -> Filter {
    let by_name = |name: &&str| json!({"syscall": name});
    let names: Vec<_> = names.into_iter().collect();
    let list = |names: &[&str]| {
        let rules = names.iter().map(by_name).chain(by_arguments.iter().cloned());
        program(&allow_list(rules.collect(), others), arch())
    };
    let filter = list(&names).or_else(|| {
        // The list is for several architectures: a call that this one does not have cannot be made.
        let is_known =
            |name: &&str| program(&allow_list(vec![by_name(name)], others), arch()).is_some();
        list(&names.iter().copied().filter(is_known).collect::<Vec<_>>())
    });
    filter.expect("every call in it is known")
}

fn allow_list(filter: Vec<Value>, others: Errno) -> Value {
    let mismatch = json!({"errno": others.raw_os_error()});
    json!({"mismatch_action": mismatch, "match_action": "allow", "filter": filter})
}

/// `None` if it contains a call that the architecture does not have.
fn program(filter: &Value, arch: TargetArch) -> Option<Filter> {
    const NAME: &str = "agent";
    let text = json!({NAME: filter}).to_string();
    let mut programs = seccompiler::compile_from_json(text.as_bytes(), arch).ok()?;
    let program = programs.remove(NAME)?;
    let program: Vec<_> = program.iter().map(|it| bpf::pack(it.code, it.jt, it.jf, it.k)).collect();
    Some(bpf::shorten(&program))
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

    fn call(number: libc::c_long, argument: u64) -> [u32; 2] {
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
        let call = |number: libc::c_long, argument| {
            answer(filter, u32::try_from(number).unwrap(), argument)
        };
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
        if cfg!(target_arch = "x86_64") {
            let arch = TargetArch::x86_64;
            for name in ALLOWED_SYSCALLS.concat().into_iter().chain(container_syscall_names()) {
                let list = allow_list(vec![json!({"syscall": name})], Errno::PERM);
                assert!(program(&list, arch).is_some(), "{name}");
            }
        }
        let unknown = allow_list(vec![json!({"syscall": "no_such_call"})], Errno::PERM);
        assert!(program(&unknown, TargetArch::x86_64).is_none());
    }
}
