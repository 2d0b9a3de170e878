//! Begins a program: the one place where the agent becomes two.
//!
//! The child shares the agent's memory until it is its program (`CLONE_VM`), and the thread that asked
//! for it keeps that memory as it is meanwhile: nothing is copied, and the child says by that memory what
//! went wrong. So it runs on a stack of its own, makes system calls and nothing else, allocates
//! nothing, takes no lock, touches nothing of its thread's, and leaves signals to nobody.
//!
//! That it has left the memory is the end of a pipe, whose other end is in the child alone and closes
//! as it becomes its program, or ends. The thread waits for that and for whatever ends the program early:
//! it does not stand still (`CLONE_VFORK`), because other programs of the sandbox may stop the child, which
//! is of their user.
#![expect(unsafe_code, reason = "a new process is begun by system calls that nothing safe makes")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use seccompiler::BpfProgram;

use super::reaper::{Death, Reaper};
use super::tree::Tree;
use super::{Spawner, Wake};

/// Enough for a function with a few variables, and the C library's wrappers.
const STACK_BYTES: usize = 64 << 10;

/// The kernel has so many signals. Two of them always do what they do by default.
const LAST_SIGNAL: usize = 64;

/// Where the child has its end of the pipe.
const WORD: c_int = 3;

/// `RLIMIT_LOCKS`.
const LOCKS: usize = libc::RLIMIT_LOCKS as usize;

/// What a program begins with.
#[derive(Debug)]
pub struct Beginning<'a> {
    /// The paths to try, in this order.
    pub candidates: &'a [CString],
    /// Its arguments, its name first.
    pub args: &'a [CString],
    /// Its environment, `NAME=value`.
    pub env: &'a [CString],
    /// Where it runs.
    pub cwd: &'a CStr,
    /// Its input, output and error output, each over 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// The rules on files that it takes upon itself.
    pub layer: Option<BorrowedFd<'a>>,
    /// The filters that it takes upon itself.
    pub filters: &'a [BpfProgram],
}

/// A program that did not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnError {
    /// There is no process to be had.
    Process(Errno),
    /// One of the steps before.
    Step(&'static str, Errno),
    /// The working directory.
    Cwd(Errno),
    /// The program, by the candidate that says most.
    Program(usize, Errno),
}

/// What the child reads, and where it writes what went wrong.
struct Job {
    candidates: *const *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [c_int; 3],
    mark: Option<u64>,
    layer: Option<c_int>,
    filters: *const [libc::sock_fprog],
    /// The end of the pipe that is the child's.
    word: c_int,
    failed: Option<SpawnError>,
}

/// Begins it, as a process of the tree. `wait` is given the pipe that ends when the child has left the
/// agent's memory, and may come back before that, having killed it.
///
/// # Errors
///
/// [`SpawnError`]; a child that got as far as that has ended, or does.
pub fn spawn(
    beginning: &Beginning<'_>,
    tree: &Tree,
    spawner: &Spawner,
    reaper: &Reaper,
    wake: &Arc<Wake>,
    wait: impl FnOnce(&Death, BorrowedFd<'_>),
) -> Result<Arc<Death>, SpawnError> {
    let candidates = pointers(beginning.candidates);
    let args = pointers(beginning.args);
    let env = pointers(beginning.env);
    let filters = beginning.filters.iter().map(|filter| libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter is short"),
        // The two types are the kernel's.
        filter: filter.as_ptr().cast_mut().cast(),
    });
    let filters: Vec<_> = filters.collect();
    let mut job = Job {
        candidates: candidates.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        cwd: beginning.cwd.as_ptr(),
        stdio: beginning.stdio.map(|fd| fd.as_raw_fd()),
        mark: tree.mark(),
        layer: beginning.layer.map(|fd| fd.as_raw_fd()),
        filters: ptr::from_ref(&*filters),
        word: -1,
        failed: None,
    };
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    let job_pointer = &raw mut job;
    let clone = || -> rustix::io::Result<_> {
        // Made and, but for the child's, closed while no other child is begun: nobody else has it.
        let (word, end) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: nobody else looks at the job yet.
        unsafe { (*job_pointer).word = end.as_raw_fd() };
        let start = Start { top, job: job_pointer };
        let pid = spawner.run(move || start.clone_agent())?;
        Ok((pid, word))
    };
    let (death, word) = reaper.begin(tree, wake, clone).map_err(SpawnError::Process)?;
    wait(&death, word.as_fd());
    // Nothing is ever written to it. A child that was killed ends at once, or where the kernel hangs,
    // as late as that; its memory cannot be taken back before.
    while rustix::io::read(&word, &mut [0; 1]) == Err(Errno::INTR) {}
    drop(stack);
    // SAFETY: the child wrote to it through the same pointer, and is done with it.
    match unsafe { job_pointer.read_volatile() }.failed {
        Some(error) => Err(error),
        None => Ok(death),
    }
}

/// What a child begins with: the end of its stack, and its job.
struct Start {
    top: *mut u128,
    job: *mut Job,
}

// SAFETY: the child runs on a stack of its own, which, like the job and what that points to, lives until
// the child has left this memory: `spawn` waits for that before anything of it goes. The thread that
// clones only hands both on.
unsafe impl Send for Start {}

impl Start {
    /// Makes the child, on the [`Spawner`]'s thread. No handler of the agent's runs in it, because
    /// every signal is blocked there.
    fn clone_agent(self) -> rustix::io::Result<Pid> {
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: as above.
        let (pid, errno) = unsafe {
            let pid = libc::clone(child, self.top.cast(), flags, self.job.cast());
            (pid, *libc::__errno_location())
        };
        let made = Pid::from_raw(pid).filter(|_| pid > 0);
        made.ok_or_else(|| Errno::from_raw_os_error(errno))
    }
}

/// The child's whole life in this memory.
extern "C" fn child(job: *mut c_void) -> c_int {
    // SAFETY: `spawn` gives its own job, which it does not touch meanwhile.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.failed = Some(become_program(job));
    loop {
        // SAFETY: ends the process.
        _ = unsafe { system_call(libc::SYS_exit_group, [127, 0, 0, 0, 0]) };
    }
}

/// Comes back only where it failed.
fn become_program(job: &Job) -> SpawnError {
    let call = |number: c_long, args: [usize; 5]| {
        // SAFETY: system calls over plain numbers, and over memory that `spawn` keeps for us.
        unsafe { system_call(number, args) }
    };
    let step = |name: &'static str, number: c_long, args: [usize; 5]| {
        call(number, args).map_err(|errno| SpawnError::Step(name, errno))
    };
    let prepare = || {
        // With the agent, also where that is not the first process of all.
        let (death_signal, kill) = (bits(libc::PR_SET_PDEATHSIG), bits(libc::SIGKILL));
        step("PR_SET_PDEATHSIG", libc::SYS_prctl, [death_signal, kill, 0, 0, 0])?;
        step("setsid", libc::SYS_setsid, [0; 5])?;
        for (number, fd) in (0..).zip(job.stdio) {
            step("dup3", libc::SYS_dup3, [bits(fd), number, 0, 0, 0])?;
        }
        call(libc::SYS_chdir, [job.cwd as usize, 0, 0, 0, 0]).map_err(SpawnError::Cwd)?;
        // What the agent ignores, and whoever began it.
        let default = [0_u64; 4];
        for signal in 1..=LAST_SIGNAL {
            let new = default.as_ptr() as usize;
            _ = call(libc::SYS_rt_sigaction, [signal, new, 0, size_of::<u64>(), 0]);
        }
        if let Some(mark) = job.mark {
            let limit = libc::rlimit64 { rlim_cur: mark, rlim_max: mark };
            let (resource, new) = (LOCKS, &raw const limit as usize);
            step("RLIMIT_LOCKS", libc::SYS_prlimit64, [0, resource, new, 0, 0])?;
        }
        if let Some(layer) = job.layer {
            step("Landlock", libc::SYS_landlock_restrict_self, [bits(layer), 0, 0, 0, 0])?;
        }
        // All of them are closed on exec. Where the kernel has no call for that it has to do. The end
        // of the pipe is the last one that closes.
        let (word, close_on_exec) = (bits(job.word), bits(libc::O_CLOEXEC));
        if job.word != WORD {
            step("dup3", libc::SYS_dup3, [word, bits(WORD), close_on_exec, 0, 0])?;
        }
        _ = call(libc::SYS_close_range, [bits(WORD + 1), bits(c_int::MAX), 0, 0, 0]);
        // SAFETY: the list is alive as long as the job.
        for filter in unsafe { &*job.filters } {
            let (mode, filter) = (libc::SECCOMP_SET_MODE_FILTER, ptr::from_ref(filter) as usize);
            step("the filter", libc::SYS_seccomp, [mode as usize, 0, filter, 0, 0])?;
        }
        let none = 0_u64;
        let (how, set) = (bits(libc::SIG_SETMASK), &raw const none as usize);
        step("signals", libc::SYS_rt_sigprocmask, [how, set, 0, size_of::<u64>(), 0]).map(|_| ())
    };
    if let Err(error) = prepare() {
        return error;
    }
    // As the C library looks along PATH, but for files without a header, which are no scripts to us.
    let mut failed = SpawnError::Program(0, Errno::NOENT);
    for place in 0.. {
        // SAFETY: the list ends with a null pointer.
        let candidate = unsafe { *job.candidates.add(place) };
        if candidate.is_null() {
            break;
        }
        let (args, env) = (job.args as usize, job.env as usize);
        match call(libc::SYS_execve, [candidate as usize, args, env, 0, 0]) {
            // It does not come back where it succeeded.
            Ok(_) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::STALE | Errno::TIMEDOUT) => {}
            Err(Errno::ACCESS) => failed = SpawnError::Program(place, Errno::ACCESS),
            Err(other) => return SpawnError::Program(place, other),
        }
    }
    failed
}

/// One system call, and no more: the C library's leaves its errno with the thread, which goes on
/// meanwhile.
///
/// # Safety
///
/// That of the call.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers what is named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer(result)
}

/// The same of this architecture.
///
/// # Safety
///
/// That of the call.
#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers nothing else.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            options(nostack),
        );
    }
    answer(result)
}

/// What the kernel says, in the register.
fn answer(register: isize) -> Result<usize, Errno> {
    usize::try_from(register).map_err(|_| {
        Errno::from_raw_os_error(c_int::try_from(register.wrapping_neg()).unwrap_or(libc::EIO))
    })
}

/// A descriptor or flags, none of which is negative.
const fn bits(number: c_int) -> usize {
    assert!(number >= 0);
    number as usize
}

/// Pointers to the strings, and the null pointer that ends them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}
