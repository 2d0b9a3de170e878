//! Begins a program: the one place where the agent becomes two.
//!
//! The child shares the agent's memory until it is its program (`CLONE_VM`), and the thread that made
//! it stands still meanwhile (`CLONE_VFORK`): nothing is copied, and the child says by that memory what
//! went wrong. So it runs on a stack of its own, makes system calls and nothing else, allocates
//! nothing, takes no lock, and leaves signals to nobody.
#![expect(unsafe_code, reason = "a new process is begun by system calls that nothing safe makes")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;
use seccompiler::BpfProgram;

/// Enough for a function with a few variables, and the C library's wrappers.
const STACK_BYTES: usize = 64 << 10;

/// The kernel has so many signals. Two of them always do what they do by default.
const LAST_SIGNAL: c_int = 64;

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
    /// The limit by which its tree is known.
    pub mark: Option<u64>,
    /// The rules on files that it takes upon itself.
    pub layer: Option<BorrowedFd<'a>>,
    /// The filter that it takes upon itself.
    pub filter: Option<&'a BpfProgram>,
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
    filter: Option<libc::sock_fprog>,
    failed: Option<SpawnError>,
}

/// Begins it.
///
/// # Errors
///
/// [`SpawnError`]; a child that got as far as that has ended, and is to be reaped.
pub fn spawn(beginning: &Beginning<'_>) -> Result<Pid, SpawnError> {
    let candidates = pointers(beginning.candidates);
    let args = pointers(beginning.args);
    let env = pointers(beginning.env);
    let filter = beginning.filter.map(|filter| libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter is short"),
        // The two types are the kernel's.
        filter: filter.as_ptr().cast_mut().cast(),
    });
    let mut job = Job {
        candidates: candidates.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        cwd: beginning.cwd.as_ptr(),
        stdio: beginning.stdio.map(|fd| fd.as_raw_fd()),
        mark: beginning.mark,
        layer: beginning.layer.map(|fd| fd.as_raw_fd()),
        filter,
        failed: None,
    };
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    let job_pointer = &raw mut job;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs `child` on a stack of its own, which, like the job and what that points
    // to, lives until the child has left this memory: until then this thread stands still. No
    // handler of the agent's runs in it, because every signal is blocked from before until after.
    let (pid, errno) = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let pid = libc::clone(child, top.cast(), flags, job_pointer.cast());
        let errno = last_errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        (pid, errno)
    };
    drop(stack);
    // SAFETY: the child wrote to it through the same pointer, and is done with it.
    match unsafe { job_pointer.read() }.failed {
        Some(error) => Err(error),
        None if pid > 0 => Pid::from_raw(pid).ok_or(SpawnError::Process(errno)),
        None => Err(SpawnError::Process(errno)),
    }
}

/// The child's whole life in this memory.
extern "C" fn child(job: *mut c_void) -> c_int {
    // SAFETY: `spawn` gives its own job, which it does not touch meanwhile.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.failed = Some(become_program(job));
    127
}

/// Comes back only where it failed.
fn become_program(job: &Job) -> SpawnError {
    let step = |name: &'static str, result: c_long| {
        if result < 0 { Err(SpawnError::Step(name, last_errno())) } else { Ok(()) }
    };
    let prepare = || {
        // SAFETY: system calls over plain numbers, and over memory that `spawn` keeps for us.
        unsafe {
            // With the agent, also where that is not the first process of all.
            step("PR_SET_PDEATHSIG", libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into())?;
            step("setsid", libc::setsid().into())?;
            for (number, fd) in (0..).zip(job.stdio) {
                step("dup2", libc::dup2(fd, number).into())?;
            }
            if libc::chdir(job.cwd) < 0 {
                return Err(SpawnError::Cwd(last_errno()));
            }
            // What the agent ignores, and whoever began it. By the kernel's own call: the C library
            // refuses to touch two signals that it uses itself.
            let default = [0_u64; 4];
            let (new, old) = (default.as_ptr(), ptr::null::<u64>());
            for signal in 1..=LAST_SIGNAL {
                libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size_of::<u64>());
            }
            if let Some(mark) = job.mark {
                let limit = libc::rlimit64 { rlim_cur: mark, rlim_max: mark };
                let set = libc::prlimit64(0, libc::RLIMIT_LOCKS, &raw const limit, ptr::null_mut());
                step("RLIMIT_LOCKS", set.into())?;
            }
            if let Some(layer) = job.layer {
                step("Landlock", libc::syscall(libc::SYS_landlock_restrict_self, layer, 0))?;
            }
            // All of them are closed on exec. Where the kernel has no such call that has to do.
            libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0);
            if let Some(filter) = &job.filter {
                let mode = libc::SECCOMP_SET_MODE_FILTER;
                let filter = ptr::from_ref(filter);
                step("the filter", libc::syscall(libc::SYS_seccomp, mode, 0, filter))?;
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        }
        Ok(())
    };
    if let Err(error) = prepare() {
        return error;
    }
    // As the C library looks along PATH, but for files without a header, which are no scripts to us.
    let mut failed = SpawnError::Program(0, Errno::NOENT);
    for place in 0.. {
        // SAFETY: the lists end with a null pointer, and what they point to is alive.
        unsafe {
            let candidate = *job.candidates.add(place);
            if candidate.is_null() {
                break;
            }
            libc::execve(candidate, job.args, job.env);
        }
        match last_errno() {
            Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::STALE | Errno::TIMEDOUT => {}
            Errno::ACCESS => failed = SpawnError::Program(place, Errno::ACCESS),
            other => return SpawnError::Program(place, other),
        }
    }
    failed
}

/// The errno of the call before.
fn last_errno() -> Errno {
    // SAFETY: reads this thread's own.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Pointers to the strings, and the null pointer that ends them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}
