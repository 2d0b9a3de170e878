//! The agent: the only program that sandboxctl runs inside a sandbox.
//!
//! It checks that it runs as the requested user, opens its mounts, confines itself, and only then
//! reads input. One thread reads requests and never waits for anything else (`session`). Each run
//! has a thread for the script and one that enforces the timeout (`run`), which asks the host (`calls`), a file operation
//! (`operation`) has a thread (`threads`) and a stream for its content (`stream`), all commands of
//! requests share a thread (`exec`), and the agent makes the connections of commands (`sockets`). All file access goes
//! through `files`. The end of stdin always ends the process.

#![deny(unsafe_code)]

mod calls;
mod check;
pub mod confine;
mod exec;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod log;
mod luau;
mod nested;
mod operation;
mod outbox;
mod proc;
pub mod proxy;
mod run;
mod session;
mod sockets;
mod source;
mod stop;
mod stream;
mod threads;
mod wake;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::TcpListener;

use sandbox_protocol::argv::{AgentArgs, ArgsError, EXIT_UNCONFINED, Mode};
use sandbox_protocol::message::Confinement;

use confine::descriptors;
use confine::landlock::{ImageGrants, Tenant};

/// How the agent exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Exit {
    /// As requested: `shutdown`, an abandoned run, or a check.
    Done = 0,
    /// Stdin or stdout ended without `shutdown`.
    Lost = 1,
    /// It could not start: its command line, its mounts.
    Start = 2,
    /// The controller broke the protocol.
    Protocol = 3,
    /// An internal error.
    Internal = 4,
    /// It could not confine itself as its policy requires.
    Unconfined = EXIT_UNCONFINED,
}

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An invalid command line.
    #[error("bad command line: {0}")]
    Args(#[from] ArgsError),
    /// An invalid command line, too.
    #[error("an argument is not UTF-8")]
    ArgsNotUtf8,
    /// It runs as another user.
    #[error(transparent)]
    Identity(#[from] confine::identity::IdentityError),
    /// Confinement.
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
    /// A mount.
    #[error(transparent)]
    Mount(#[from] files::MountError),
    /// A mount inside a mount.
    #[error(transparent)]
    Nested(#[from] nested::NestedError),
    /// The proxy's port.
    #[error("cannot listen on the loopback: {0}")]
    Proxy(#[source] std::io::Error),
    /// A resource that commands need.
    #[error("cannot run programs: {0}")]
    Programs(#[source] std::io::Error),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The script to check.
    #[error("cannot read the script: {0}")]
    Read(#[source] std::io::Error),
}

/// The size of the embedded engine's pipes.
const PIPE_BYTES: usize = 256 << 10;

/// Runs the agent with the arguments after the program's name.
pub fn main(args: impl Iterator<Item = OsString>) -> Exit {
    // After a panic, locks and the VM may be in an inconsistent state, and unwinding would reach
    // C++: end the process, which loses only this sandbox.
    std::panic::set_hook(Box::new(|panic| die(Exit::Internal, &panic.to_string())));
    match start(args) {
        Ok(exit) => exit,
        Err(error @ StartError::Confine(_)) => die(Exit::Unconfined, &error.to_string()),
        Err(error) => die(Exit::Start, &error.to_string()),
    }
}

fn start(args: impl Iterator<Item = OsString>) -> Result<Exit, StartError> {
    confine::seal()?;
    let args = args.map(|arg| arg.into_string().map_err(|_| StartError::ArgsNotUtf8));
    let args = AgentArgs::parse(args.collect::<Result<Vec<_>, _>>()?)?;
    if let Some(user) = args.user {
        confine::identity::check(user)?;
    }
    match args.mode {
        Mode::Check => check::main(args.confinement),
        Mode::Script | Mode::Exec => {
            widen_pipes();
            match Agent::prepare(&args)?.serve()? {}
        }
    }
}

/// Enlarges the pipes of stdin and stdout to hold several frames, so that neither side is woken for
/// every piece: engines' pipes hold less than one.
fn widen_pipes() {
    for pipe in [rustix::stdio::stdin(), rustix::stdio::stdout()] {
        // If it is not a pipe, or cannot grow, it stays as it is.
        if rustix::pipe::fcntl_getpipe_size(pipe).is_ok_and(|size| size < PIPE_BYTES) {
            _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
    }
}

/// An agent before its first request: its mounts are open, and it is confined.
#[derive(Debug)]
pub struct Agent {
    mounts: files::Mounts,
    confinement: Confinement,
    proc: proc::Proc,
    /// The proxy's port, if commands have egress.
    proxy: Option<TcpListener>,
    programs: Option<(exec::ExecContext, exec::Spawner)>,
}

impl Agent {
    /// Opens the mounts and confines the process, which must be [sealed](confine::seal) and have
    /// one thread.
    ///
    /// # Errors
    ///
    /// [`StartError`] for the first thing that failed.
    pub fn prepare(args: &AgentArgs) -> Result<Self, StartError> {
        nested::check(&args.mounts, &args.hidden)?;
        let mounts = files::Mounts::open(args)?;
        let proc = proc::Proc::open();
        let proxy = args.proxy.map(proxy::listen).transpose().map_err(StartError::Proxy)?;
        let tenant = match args.mode {
            Mode::Exec => Tenant::Programs,
            Mode::Script | Mode::Check => Tenant::Scripts,
        };
        let (confinement, programs) = match tenant {
            Tenant::Scripts => (confine::confine(tenant, args.confinement, mounts.grants())?, None),
            Tenant::Programs => {
                confine::adopt()?;
                let around = ImageGrants::open().map_err(|e| StartError::Programs(e.into()))?;
                let grants = || mounts.grants().chain(around.grants());
                let programs = exec::ExecContext::prepare(args, proxy.as_ref())
                    .map_err(StartError::Programs)?;
                let devices: Vec<u64> = mounts.identities().map(|mount| mount.dev).collect();
                let own = sockets::OwnFileSystems::find(&devices);
                let mut confinement = confine::confine(tenant, args.confinement, grants())?;
                if confinement.landlock_abi.is_none()
                    && descriptors::are_open_to_others().map_err(StartError::Thread)?
                {
                    confinement.undumpable = false;
                    let why = "programs could open the agent's descriptors on this kernel";
                    confinement.missing.push(why.to_owned());
                }
                let (spawner, unix_sockets, why) =
                    sockets::start(confinement.unix_sockets, own).map_err(StartError::Thread)?;
                confinement.unix_sockets = unix_sockets;
                confinement.missing.extend(why);
                let layers = confine::layers(args.confinement, &confinement, args.disk, grants())?;
                (confinement, Some((programs.under(layers), spawner)))
            }
        };
        let resolver = mounts.probe_resolver();
        Ok(Self { mounts: mounts.with_resolver(resolver), confinement, proc, programs, proxy })
    }

    /// Serves the session on stdin and stdout, and ends the process with it.
    ///
    /// # Errors
    ///
    /// [`StartError::Thread`] if a thread cannot be started.
    pub fn serve(self) -> Result<Infallible, StartError> {
        session::serve(self).map_err(StartError::Thread)
    }
}

/// Exits at once: no destructors, no exit handlers, no waiting for threads. Only unfinished files
/// are removed first.
pub fn exit(exit: Exit) -> ! {
    files::remove_temporaries();
    #[expect(unsafe_code, reason = "std has no _exit, and exit handlers may wait for the VM")]
    // SAFETY: _exit has no preconditions.
    unsafe {
        libc::_exit(exit as i32)
    }
}

/// Prints the reason on stderr, and exits.
pub fn die(how: Exit, why: &str) -> ! {
    _ = writeln!(std::io::stderr(), "sandbox-agent: {why}");
    exit(how)
}
