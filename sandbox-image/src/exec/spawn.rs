//! Starts a command: the only place where the agent forks.
//!
//! The child shares the agent's memory until it executes its program (`CLONE_VM`), and the thread
//! that spawned it does not touch that memory meanwhile: nothing is copied, and the child reports
//! errors through that memory. So it runs on a stack of its own, only makes system calls, allocates
//! nothing, takes no lock, touches no thread-local data, and handles no signals.
//!
//! A pipe shows when the child no longer uses the memory: only the child has its other end, which
//! closes when it executes its program, or exits. Until then a [`Launch`] owns what the child uses. The
//! thread does not block in `CLONE_VFORK`, because other commands of the sandbox run as the same user and
//! could stop the child.
#![expect(unsafe_code, reason = "starts a process by system calls without a safe interface")]

use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, LazyLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::command::{Prepared, SpawnError};
use super::reaper::{Death, Reaper};
use super::spawner::Spawner;
use super::tree::Tree;
use crate::confine::Layers;
use crate::wake::Wake;

/// Enough for a function with a few variables and the C library's wrappers.
const STACK_BYTES: usize = 64 << 10;

/// Number of signals of the kernel. Two of them always keep their default action.
const LAST_SIGNAL: usize = 64;

/// The signals that the agent handles or ignores, or its parent ignored. The agent changes none after
/// its start.
static CHANGED_SIGNALS: LazyLock<Vec<usize>> =
    LazyLock::new(|| (1..=LAST_SIGNAL).filter(|&signal| is_changed(signal)).collect());

/// The descriptor of the pipe's end in the child.
const WORD: c_int = 3;

/// `RLIMIT_LOCKS`.
const LOCKS: usize = libc::RLIMIT_LOCKS as usize;

/// Start parameters of a command.
#[derive(Debug)]
pub struct Beginning {
    /// Its paths, arguments, environment and working directory.
    pub prepared: Prepared,
    /// Its stdin, stdout and stderr, each above 2.
    pub stdio: [Arc<OwnedFd>; 3],
    /// Its stdin is a terminal, which becomes the one that controls its session.
    pub has_terminal: bool,
    /// The ruleset and the filter that it applies to itself.
    pub layers: Arc<Layers>,
}

/// The data that the child reads, and where it writes its error.
struct Job {
    candidates: *const *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [c_int; 3],
    has_terminal: bool,
    signals: *const [usize],
    mark: Option<u64>,
    layer: Option<c_int>,
    filter: Option<libc::sock_fprog>,
    /// The child's end of the pipe.
    word: c_int,
    failed: Option<SpawnError>,
}

/// A child that may still use the memory of the agent.
#[derive(Debug)]
pub struct Launch {
    /// The child's exit.
    pub death: Arc<Death>,
    /// Closed when the child has left this memory.
    word: OwnedFd,
    job: *mut Job,
    /// What the job points to.
    beginning: Option<Box<Beginning>>,
    _pointers: [Vec<*const c_char>; 3],
    _stack: Vec<u128>,
}

/// Starts it as a process of the tree.
///
/// # Errors
///
/// [`SpawnError`], and why: no child was created.
pub fn spawn(
    beginning: Box<Beginning>,
    tree: &Tree,
    spawner: &Spawner,
    reaper: &Reaper,
    wake: &Arc<Wake>,
) -> Result<Launch, (SpawnError, Box<Beginning>)> {
    let Beginning { prepared, stdio, has_terminal, layers } = &*beginning;
    let pointers = [&prepared.candidates, &prepared.args, &prepared.env].map(|it| pointers(it));
    let [candidates, args, env] = pointers.each_ref().map(Vec::as_ptr);
    let filter = layers.seccomp.as_ref().map(|filter| libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter is short"),
        // The two types are those of the kernel.
        filter: filter.as_ptr().cast_mut().cast(),
    });
    let job = Box::into_raw(Box::new(Job {
        candidates,
        args,
        env,
        cwd: prepared.cwd.as_ptr(),
        stdio: stdio.each_ref().map(|fd| fd.as_raw_fd()),
        has_terminal: *has_terminal,
        signals: ptr::from_ref(&**CHANGED_SIGNALS),
        mark: tree.mark,
        layer: layers.landlock.as_ref().map(|fd| fd.as_raw_fd()),
        filter,
        word: -1,
        failed: None,
    }));
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    let clone = || -> rustix::io::Result<_> {
        // Created and (but for the child's) closed while no other child is started: no other
        // process has it.
        let (word, end) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: nothing else accesses the job yet.
        unsafe { (*job).word = end.as_raw_fd() };
        let start = Start { top, job };
        let pid = spawner.run(move || start.clone_agent())?;
        Ok((pid, word))
    };
    match reaper.begin(tree, wake, clone) {
        Ok((death, word)) => Ok(Launch {
            death,
            word,
            job,
            beginning: Some(beginning),
            _pointers: pointers,
            _stack: stack,
        }),
        Err(errno) => {
            // SAFETY: it was made above, and no child has it.
            drop(unsafe { Box::from_raw(job) });
            Err((SpawnError::Process(errno), beginning))
        }
    }
}

impl Launch {
    /// Whether the child has left this memory. Then [this](AsFd) becomes readable.
    pub fn has_left(&self) -> bool {
        let word = &mut [PollFd::new(&self.word, PollFlags::IN)];
        poll(word, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the child has left this memory.
    ///
    /// # Errors
    ///
    /// Why it does not execute the program; it has exited, or is about to.
    pub fn finish(mut self) -> Result<Arc<Death>, (SpawnError, Box<Beginning>)> {
        self.await_word();
        let beginning = self.beginning.take().expect("taken here alone");
        // SAFETY: the child wrote to it through the same pointer, and no longer uses it.
        match unsafe { self.job.read_volatile() }.failed {
            Some(error) => Err((error, beginning)),
            None => Ok(self.death.clone()),
        }
    }

    /// Nothing is ever written to the pipe. A child that was killed exits at once, or later if the
    /// kernel hangs; its memory cannot be reclaimed before that.
    fn await_word(&self) {
        while rustix::io::read(&self.word, &mut [0; 1]) == Err(Errno::INTR) {}
    }
}

impl AsFd for Launch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.word.as_fd()
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.await_word();
        // SAFETY: `spawn` made it, and the child no longer uses it.
        drop(unsafe { Box::from_raw(self.job) });
    }
}

/// What a child starts with: the end of its stack, and its job.
struct Start {
    top: *mut u128,
    job: *mut Job,
}

// SAFETY: the child runs on a stack of its own. The stack, the job and what the job points to live
// until the child has left this memory: a `Launch` waits for that before it drops any of it. The
// thread that clones only passes both on.
unsafe impl Send for Start {}

impl Start {
    /// Creates the child, on the [`Spawner`]'s thread. No signal handler of the agent runs in it,
    /// because every signal is blocked there.
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

/// All that the child does in this memory.
extern "C" fn child(job: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own job, which nothing else touches meanwhile.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.failed = Some(become_program(job));
    loop {
        // SAFETY: ends the process.
        _ = unsafe { system_call(libc::SYS_exit_group, [127, 0, 0, 0, 0]) };
    }
}

/// Returns only on failure.
fn become_program(job: &Job) -> SpawnError {
    let call = |number: c_long, args: [usize; 5]| {
        // SAFETY: system calls with plain numbers, and with memory that a `Launch` keeps alive.
        unsafe { system_call(number, args) }
    };
    let step = |name: &'static str, number: c_long, args: [usize; 5]| {
        call(number, args).map_err(|errno| SpawnError::Step(name, errno))
    };
    let prepare = || {
        // Die with the agent, also if the agent is not the init process.
        let (death_signal, kill) = (bits(libc::PR_SET_PDEATHSIG), bits(libc::SIGKILL));
        step("PR_SET_PDEATHSIG", libc::SYS_prctl, [death_signal, kill, 0, 0, 0])?;
        step("setsid", libc::SYS_setsid, [0; 5])?;
        for (number, fd) in (0..).zip(job.stdio) {
            step("dup3", libc::SYS_dup3, [bits(fd), number, 0, 0, 0])?;
        }
        if job.has_terminal {
            step("TIOCSCTTY", libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0])?;
        }
        call(libc::SYS_chdir, [job.cwd as usize, 0, 0, 0, 0]).map_err(SpawnError::Cwd)?;
        let default = [0_u64; 4];
        // SAFETY: the list is never freed.
        for &signal in unsafe { &*job.signals } {
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
        // All descriptors have close-on-exec set, which has to suffice if the kernel has no
        // `close_range`. The pipe's end closes last.
        let (word, close_on_exec) = (bits(job.word), bits(libc::O_CLOEXEC));
        if job.word != WORD {
            step("dup3", libc::SYS_dup3, [word, bits(WORD), close_on_exec, 0, 0])?;
        }
        _ = call(libc::SYS_close_range, [bits(WORD + 1), bits(c_int::MAX), 0, 0, 0]);
        if let Some(filter) = &job.filter {
            let filter = ptr::from_ref(filter) as usize;
            let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
            step("the filter", libc::SYS_seccomp, [mode, 0, filter, 0, 0])?;
        }
        let none = 0_u64;
        let (how, set) = (bits(libc::SIG_SETMASK), &raw const none as usize);
        step("signals", libc::SYS_rt_sigprocmask, [how, set, 0, size_of::<u64>(), 0]).map(|_| ())
    };
    if let Err(error) = prepare() {
        return error;
    }
    // Like the C library's search of `PATH`, except that files without a header are not run as
    // shell scripts.
    let mut failed = SpawnError::Program(0, Errno::NOENT);
    for place in 0.. {
        // SAFETY: the list ends with a null pointer.
        let candidate = unsafe { *job.candidates.add(place) };
        if candidate.is_null() {
            break;
        }
        let (args, env) = (job.args as usize, job.env as usize);
        match call(libc::SYS_execve, [candidate as usize, args, env, 0, 0]) {
            // It returns only on failure.
            Ok(_) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::STALE | Errno::TIMEDOUT) => {}
            Err(Errno::ACCESS) => failed = SpawnError::Program(place, Errno::ACCESS),
            Err(other) => return SpawnError::Program(place, other),
        }
    }
    failed
}

/// Whether a signal has another action than the default.
fn is_changed(signal: usize) -> bool {
    // The kernel's own structure; the action is its first member.
    let mut action = [0_u64; 4];
    let old = action.as_mut_ptr() as usize;
    // SAFETY: nothing is changed, and the action is written to our memory.
    let asked =
        unsafe { system_call(libc::SYS_rt_sigaction, [signal, 0, old, size_of::<u64>(), 0]) };
    asked.is_err() || action[0] != libc::SIG_DFL as u64
}

/// One system call without the C library's wrapper, which would write to the errno of the thread,
/// and that thread continues meanwhile.
///
/// # Safety
///
/// That of the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers the named registers.
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

/// The same for this architecture.
///
/// # Safety
///
/// That of the system call.
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

/// Decodes the return value of the kernel.
fn answer(register: isize) -> Result<usize, Errno> {
    usize::try_from(register).map_err(|_| {
        Errno::from_raw_os_error(c_int::try_from(register.wrapping_neg()).unwrap_or(libc::EIO))
    })
}

/// A descriptor or flags, which are never negative.
const fn bits(number: c_int) -> usize {
    assert!(number >= 0);
    number as usize
}

/// Pointers to the strings, with a null pointer at the end.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}
