//! The last steps of a container's first process, after libcontainer's and before the agent's.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sandbox_helper::wire::Filter;
use seccompiler::{BpfProgram, sock_filter};

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

/// Becomes the agent.
#[derive(Clone)]
pub struct Agent {
    program: Rc<OwnedFd>,
    helper: Rc<OwnedFd>,
    filters: Rc<Vec<BpfProgram>>,
}

impl Agent {
    /// `program` is what it becomes, `helper` a pidfd of this very process.
    pub fn new(program: OwnedFd, helper: OwnedFd, filters: &[Filter]) -> Self {
        let instructions = |filter: &Filter| filter.iter().copied().map(instruction).collect();
        Self {
            program: Rc::new(program),
            helper: Rc::new(helper),
            filters: Rc::new(filters.iter().map(instructions).collect()),
        }
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

impl Executor for Agent {
    /// Runs before the helper learns that the container is created. From here on, the container
    /// dies with the helper. If the helper was killed before, the container would wait forever to
    /// be started, so that is checked afterwards.
    ///
    /// The process already runs as the container's user.
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let error = |what: &str| ExecutorValidationError::ArgValidationError(what.to_owned());
        if !is_who_was_asked_for(spec) {
            return Err(error("the process is not the user that was asked for"));
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|_| error("cannot be made to die with the helper"))?;
        let mut helper = [PollFd::from_borrowed_fd(self.helper.as_fd(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut helper, Some(&at_once)) {
            Ok(0) => Ok(()),
            _ => Err(error("the helper is gone")),
        }
    }

    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let args = spec.process().as_ref().and_then(|process| process.args().as_deref());
        let args = c_strings(args.unwrap_or_default())?;
        // By its descriptor, which is closed on exec: it has no path, not even in the container.
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        let program = CString::new(program).map_err(because)?;
        let variables = spec.process().as_ref().and_then(|process| process.env().as_deref());
        let variables = c_strings(variables.unwrap_or_default())?;
        for signal in IGNORED {
            set_disposition(*signal, libc::SIG_DFL);
        }
        for filter in &*self.filters {
            seccompiler::apply_filter(filter).map_err(because)?;
        }
        let (argv, envp) = (pointers(&args), pointers(&variables));
        #[expect(unsafe_code, reason = "std's exec looks for the program, and allocates")]
        // SAFETY: both lists end with a null pointer, and what they point at lives on.
        unsafe {
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        }
        let error = std::io::Error::last_os_error();
        // libcontainer's error is lost; this text arrives with the exit code.
        let message = format!("cannot become the agent: {error}");
        _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        Err(because(error))
    }
}

/// Whether every id of this process, including the saved ones, is the requested one.
fn is_who_was_asked_for(spec: &Spec) -> bool {
    let Some(user) = spec.process().as_ref().map(|process| process.user()) else { return false };
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([real, effective, saved], [real_gid, effective_gid, saved_gid]) = (&mut uids, &mut gids);
    #[expect(unsafe_code, reason = "no safe interface gives the saved ids")]
    // SAFETY: each call writes three numbers, to three places that are there for it.
    let known = unsafe {
        libc::getresuid(real, effective, saved) == 0
            && libc::getresgid(real_gid, effective_gid, saved_gid) == 0
    };
    known && uids == [user.uid(); 3] && gids == [user.gid(); 3]
}

fn c_strings(texts: &[String]) -> Result<Vec<CString>, ExecutorError> {
    texts.iter().map(|text| CString::new(text.as_str()).map_err(because)).collect()
}

/// As the kernel takes a list.
fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

fn because(error: impl std::error::Error + Send + Sync + 'static) -> ExecutorError {
    ExecutorError::Execution(Box::new(error))
}

/// Ignores a signal, or restores its default action.
#[expect(unsafe_code, reason = "no safe interface sets a signal's disposition")]
pub fn set_disposition(signal: libc::c_int, disposition: libc::sighandler_t) {
    // SAFETY: neither SIG_IGN nor SIG_DFL is a handler function.
    unsafe { libc::signal(signal, disposition) };
}
