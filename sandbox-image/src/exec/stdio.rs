//! The pipes of a command, or its terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_protocol::WireError;

use super::pty::Terminal;

/// Where a command prints.
#[derive(Debug)]
pub enum Outputs {
    /// Stdout and stderr have a pipe each.
    Apart,
    /// Both have the same pipe.
    Merged,
    /// A terminal, which is its stdin too.
    Terminal(Terminal),
}

/// The agent's ends, all non-blocking.
#[derive(Debug)]
pub struct Ends {
    /// The other ends of its outputs.
    pub outputs: [Option<Arc<OwnedFd>>; 2],
    /// The other end of its stdin; of a terminal, that of stdout.
    pub stdin: Option<Arc<OwnedFd>>,
    /// They are of a terminal.
    pub has_terminal: bool,
}

impl Outputs {
    /// The program's stdin, stdout and stderr, and the agent's ends of them. `null` is the stdin of a
    /// command without input.
    ///
    /// # Errors
    ///
    /// `busy` if no pipe can be made.
    pub fn open(
        self,
        has_input: bool,
        null: &Arc<OwnedFd>,
    ) -> Result<([Arc<OwnedFd>; 3], Ends), WireError> {
        let merges = matches!(self, Self::Merged);
        if let Self::Terminal(Terminal { master, slave }) = self {
            let (slave, stdin) = (Arc::new(slave), has_input.then(|| master.clone()));
            let ends = Ends { outputs: [Some(master), None], stdin, has_terminal: true };
            return Ok(([slave.clone(), slave.clone(), slave], ends));
        }
        let (from_stdin, stdin) = match has_input {
            true => pipe().map(|(from_stdin, stdin)| (from_stdin, Some(stdin)))?,
            false => (null.clone(), None),
        };
        let (stdout, to_stdout) = pipe()?;
        let (stderr, to_stderr) = match merges {
            true => (None, to_stdout.clone()),
            false => pipe().map(|(stderr, to_stderr)| (Some(stderr), to_stderr))?,
        };
        for end in [Some(&stdout), stderr.as_ref(), stdin.as_ref()].into_iter().flatten() {
            fcntl_setfl(end, OFlags::NONBLOCK).map_err(no_descriptor)?;
        }
        let ends = Ends { outputs: [Some(stdout), stderr], stdin, has_terminal: false };
        Ok(([from_stdin, to_stdout, to_stderr], ends))
    }
}

/// The end of a new pipe to read from, and that to write to.
fn pipe() -> Result<(Arc<OwnedFd>, Arc<OwnedFd>), WireError> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).map_err(no_descriptor)?;
    Ok((Arc::new(reading), Arc::new(writing)))
}

/// Why a command has no pipe, nor anything else that is a descriptor.
pub fn no_descriptor(errno: Errno) -> WireError {
    let error = io::Error::from(errno);
    WireError::busy(format!("no pipe can be made for a program: {error}"))
}
