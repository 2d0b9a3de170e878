//! Terminals of commands.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};
use sandbox_protocol::WireError;
use sandbox_protocol::limits::{MAX_TERM_BYTES, MAX_TERMINAL_SIZE};
use sandbox_protocol::message::Pty;

/// The most bytes that the kernel holds of a terminal's output: what its programs print after that waits
/// for the agent. More than the kernel's own figures.
pub const MOST_HELD: u64 = 128 << 10;

/// A terminal that no program has yet.
#[derive(Debug)]
pub struct Terminal {
    /// The agent's end. When it is closed, the terminal is hung up.
    pub master: Arc<OwnedFd>,
    /// The programs' end.
    pub slave: OwnedFd,
}

impl Terminal {
    /// Makes one of this [size](checked). It becomes the terminal of no process of the agent's session.
    ///
    /// # Errors
    ///
    /// `busy` if no more can be made.
    pub fn open(size: Winsize) -> Result<Self, WireError> {
        Self::make(size).map_err(|errno| {
            let error = std::io::Error::from(errno);
            WireError::busy(format!("no terminal can be made: {error}"))
        })
    }

    fn make(size: Winsize) -> rustix::io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, size)?;
        let slave = match ioctl_tiocgptpeer(&master, flags) {
            // gVisor has no such call. No program there changes what is mounted at the path.
            Err(Errno::NOTTY) => {
                let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
                open(ptsname(&master, Vec::new())?, flags, Mode::empty())?
            }
            // By the master alone: a path could be another terminal's.
            slave => slave?,
        };
        rustix::fs::fcntl_setfl(&master, OFlags::NONBLOCK)?;
        Ok(Self { master: Arc::new(master), slave })
    }
}

/// The size of the terminal that is asked for.
///
/// # Errors
///
/// `invalid_request` for a size or a name that no terminal has.
pub fn checked(pty: &Pty) -> Result<Winsize, WireError> {
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte);
    let length = pty.term.len();
    if length == 0 || length > MAX_TERM_BYTES || !pty.term.bytes().all(is_named) {
        let message =
            format!("the name of a terminal has 1 to {MAX_TERM_BYTES} letters, digits and '.+_-'");
        return Err(WireError::invalid(message));
    }
    size(pty.cols, pty.rows)
}

/// Sets the size of a terminal.
///
/// # Errors
///
/// `invalid_request` for one that no terminal has.
pub fn resize(master: impl AsFd, cols: u16, rows: u16) -> Result<bool, WireError> {
    let size = size(cols, rows)?;
    Ok(tcsetwinsize(master, size).is_ok())
}

/// The process group in the foreground, if there is one.
pub fn foreground(master: impl AsFd) -> Option<Pid> {
    tcgetpgrp(master).ok()
}

fn size(cols: u16, rows: u16) -> Result<Winsize, WireError> {
    let sizes = 1..=MAX_TERMINAL_SIZE;
    if !sizes.contains(&cols) || !sizes.contains(&rows) {
        let message = format!("a terminal has 1 to {MAX_TERMINAL_SIZE} columns and rows");
        return Err(WireError::invalid(message));
    }
    Ok(Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::ErrorKind;

    #[test]
    fn size_and_name_of_a_terminal_are_checked_before_it_is_made() {
        let pty = |cols, rows, term: &str| Pty { cols, rows, term: term.to_owned() };
        let long = "x".repeat(MAX_TERM_BYTES + 1);
        for wrong in [
            pty(0, 24, "xterm"),
            pty(80, 0, "xterm"),
            pty(MAX_TERMINAL_SIZE + 1, 24, "xterm"),
            pty(80, 24, ""),
            pty(80, 24, "a b"),
            pty(80, 24, "../x"),
            pty(80, 24, &long),
        ] {
            let error = checked(&wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{wrong:?}");
        }
        let size = checked(&pty(MAX_TERMINAL_SIZE, 1, "screen.xterm-256color")).unwrap();
        let made = Terminal::open(size).unwrap();
        assert!(resize(&made.master, 1, MAX_TERMINAL_SIZE).unwrap());
        assert!(resize(&made.master, 0, 1).is_err());
        let size = rustix::termios::tcgetwinsize(&made.slave).unwrap();
        assert_eq!((size.ws_col, size.ws_row), (1, MAX_TERMINAL_SIZE));
        assert_eq!(foreground(&made.master), None);
    }
}
