//! The terminal of this process: raw while a program in a sandbox has it, and as it was after any end.
//!
//! One process has one terminal, so what it was like is kept in one place: whatever ends the process can
//! put it back, a panic and a second signal too.

mod keys;

use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};
use sandbox_api::process::{TERMINAL_SIZES, TerminalSize};
use sandbox_render::ClipboardFilter;

use crate::lock;

pub use self::keys::{DetachKeys, KeyMatcher, Typed};

/// What programs may leave behind, undone: an unfinished string and keyboard modes, on the screen that is shown.
const FINISH: &[u8] = b"\x1b\\\x1b[<99u";
/// The same then: keyboard modes of the first screen (1047 leaves the cursor where it is), scrolling region and keypad
/// (soft reset), mouse, focus, paste, size and colour reports, held updates; a cursor, no colours.
const RESET: &[u8] = b"\x1b[?1047l\x1b[<99u\x1b[!p\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\
    \x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2026l\x1b[?2031l\
    \x1b[?2048l\x1b[>4m\x1b[?25h\x1b[0m";
/// To the other screen, where the cursor is saved, and back, where it is restored.
const SCREENS: [&[u8]; 2] = [b"\x1b[?1049h", b"\x1b[?1049l"];
/// Answers of the terminal to a program's last questions are awaited until it is silent for so long, and dropped:
/// later they would be typed into the user's shell.
const SILENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often input is dropped meanwhile, at most.
const ANSWERS: usize = 1000;
/// For how long a terminal that takes no output is waited for.
const STUCK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The size of a terminal that does not say.
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// What the terminal was like; `None` while it is.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);
/// Something that is no plain text was written to it: modes of it may have changed.
static IS_CHANGED: AtomicBool = AtomicBool::new(false);
/// The other screen is shown.
static IS_OTHER_SCREEN: AtomicBool = AtomicBool::new(false);

/// While it exists the terminal is raw: every key is input, and none a signal.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Makes the terminal on stdin raw.
    ///
    /// # Errors
    ///
    /// If stdin is not a terminal.
    pub fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let earlier = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                earlier(panic);
            }));
        });
        let was = tcgetattr(stdin())?;
        *lock(&SAVED) = Some(was);
        let raw = Self(());
        raw.again()?;
        Ok(raw)
    }

    /// Makes it raw again, after the process was stopped and others had it.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn again(&self) -> io::Result<()> {
        let Some(mut modes) = lock(&SAVED).clone().filter(|_| is_in_foreground()) else {
            return Ok(());
        };
        modes.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &modes)?)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was, if it is raw. For whatever ends the process without dropping what it
/// has; not for handlers of signals.
pub fn restore() {
    let Some(was) = lock(&SAVED).take() else { return };
    // A shell that has taken the terminal over has set it up for itself.
    if !is_in_foreground() {
        return;
    }
    // Nothing here waits for a terminal that takes no output.
    if IS_CHANGED.swap(false, Ordering::Relaxed)
        && io::stdout().is_terminal()
        && is_ready(&mut [PollFd::new(&stdout(), PollFlags::OUT)], &STUCK)
    {
        // Without the lock of stdout, which the thread that writes may hold.
        let back = if IS_OTHER_SCREEN.swap(false, Ordering::Relaxed) { SCREENS[1] } else { b"" };
        _ = rustix::io::write(stdout(), &[FINISH, back, RESET].concat());
        for _ in 0..ANSWERS {
            if !is_ready(&mut [PollFd::new(&stdin(), PollFlags::IN)], &SILENCE) {
                break;
            }
            _ = tcflush(stdin(), QueueSelector::IFlush);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    _ = tcsetattr(stdin(), OptionalActions::Now, &was);
    _ = tcflush(stdin(), QueueSelector::IFlush);
}

fn is_ready(fds: &mut [PollFd<'_>], limit: &Timespec) -> bool {
    poll(fds, Some(limit)).is_ok_and(|ready| ready > 0)
}

/// Whether the terminal is this process's. One that runs in the background is stopped if it touches it.
fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// The size of the terminal.
pub fn size() -> TerminalSize {
    let sizes = [tcgetwinsize(stdout()), tcgetwinsize(stdin())].into_iter().flatten();
    let (least, most) = TERMINAL_SIZES.into_inner();
    let within = |value: u16| value.clamp(least, most);
    sizes
        .filter(|size| size.ws_col > 0 && size.ws_row > 0)
        .map(|size| TerminalSize { cols: within(size.ws_col), rows: within(size.ws_row) })
        .next()
        .unwrap_or(DEFAULT_SIZE)
}

/// What a program in a sandbox shows on the terminal: everything, but for what writes to the clipboard
/// of its user.
pub struct Screen<W> {
    to: W,
    filter: ClipboardFilter,
    /// The last bytes, which may begin a sequence of [`SCREENS`].
    tail: Vec<u8>,
}

impl<W> Screen<W> {
    pub fn new(to: W) -> Self {
        Self { to, filter: ClipboardFilter::default(), tail: Vec::new() }
    }

    /// Notes which screen is shown. What enters it together with other modes is not seen.
    fn note_screen(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let [other, first] = SCREENS.map(|it| self.tail.windows(it.len()).rposition(|at| at == it));
        if other != first {
            IS_OTHER_SCREEN.store(other > first, Ordering::Relaxed);
        }
        self.tail.drain(..self.tail.len().saturating_sub(SCREENS[0].len() - 1));
    }
}

impl<W: Write> Write for Screen<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        // An escape, or one of the controls that begin with one, in UTF-8 too.
        if piece.iter().any(|byte| matches!(byte, 0x1b | 0x80..=0x9f)) {
            IS_CHANGED.store(true, Ordering::Relaxed);
        }
        let shown = self.filter.take(piece);
        self.note_screen(&shown);
        self.to.write_all(&shown)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::ManuallyDrop;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    #[test]
    fn terminal_is_as_it_was_after_a_panic() {
        const CHILD: &str = "SANDBOXCTL_TEST_PANIC";
        if std::env::var_os(CHILD).is_some() {
            // A thread that panics elsewhere drops nothing of what others have.
            let _raw = ManuallyDrop::new(RawTerminal::enter().unwrap());
            let modes = tcgetattr(stdin()).unwrap().local_modes;
            assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
            panic!("while it is raw");
        }
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let before = tcgetattr(&side).unwrap();
        // Only who leads a session that has the terminal is in its foreground.
        let panicked = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "terminal::tests::terminal_is_as_it_was_after_a_panic"])
            .arg("--nocapture")
            .env(CHILD, "")
            .stdin(Stdio::from(side.try_clone().unwrap()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&panicked.stderr);
        assert!(said.contains("while it is raw"), "{panicked:?}");
        let after = tcgetattr(&side).unwrap();
        let modes =
            |it: &Termios| (it.input_modes, it.output_modes, it.control_modes, it.local_modes);
        assert_eq!(modes(&after), modes(&before), "{said}");
    }

    #[test]
    fn screen_counts_what_it_was_given_and_drops_what_is_for_the_clipboard() {
        let mut shown = Vec::new();
        let mut screen = Screen::new(&mut shown);
        screen.write_all(b"a\x1b]52;c;aGk=\x07b").unwrap();
        assert_eq!(shown, b"ab");
    }

    #[test]
    fn screen_that_a_program_has_entered_is_left_as_it_was_entered() {
        let mut screen = Screen::new(Vec::new());
        let mut is_other = |pieces: &[&[u8]]| {
            pieces.iter().for_each(|piece| screen.write_all(piece).unwrap());
            IS_OTHER_SCREEN.load(Ordering::Relaxed)
        };
        assert!(is_other(&[b"a\x1b[?10", b"49hb"]));
        assert!(is_other(&[b"\x1b[?1049l\x1b[?1049h", b"c"]), "the last one counts");
        assert!(!is_other(&[b"\x1b[?1049h\x1b[?104", b"9", b"l"]));
    }
}
