//! A timer that interrupts blocking system calls of one thread.
#![expect(unsafe_code, reason = "nothing safe makes a timer whose signal one thread gets")]
//!
//! The thread that makes connections uses no blocking calls, but the sockets it connects also
//! belong to commands: one that makes its socket blocking again at the wrong moment, or sets it to
//! linger when it is closed, would delay the connections of all others.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;
use std::time::Duration;

/// How long a call may block, approximately. The attempts themselves take microseconds.
const LONGEST: Duration = Duration::from_millis(20);
/// The last signal: no C library uses it, and no program sends it by chance.
const SIGNAL: libc::c_int = 64;

/// Interrupts system calls of the thread that created it. Lives until that thread ends.
#[derive(Debug)]
pub struct Alarm(libc::c_int);

impl Alarm {
    /// Blocks the signal in this thread, and in those that it starts: a command may send it too.
    pub fn keep_from_this_thread() {
        mask(libc::SIG_BLOCK);
    }

    /// Creates a timer for this thread. No other thread gets the signal.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn of_this_thread() -> io::Result<Self> {
        extern "C" fn interrupt(_: libc::c_int) {}
        // SAFETY: zeros are valid for both, and the handler does nothing. Without SA_RESTART the
        // calls fail with EINTR.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = interrupt as *const () as usize;
            checked(libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()).into())?;
            mask(libc::SIG_UNBLOCK);
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = MaybeUninit::<libc::c_int>::uninit();
            let (clock, event) = (libc::CLOCK_MONOTONIC, &raw const event);
            checked(libc::syscall(libc::SYS_timer_create, clock, event, timer.as_mut_ptr()))?;
            Ok(Self(timer.assume_init()))
        }
    }

    /// Runs a function, and interrupts each system call in it that blocks.
    pub fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        self.set(LONGEST);
        let done = act();
        self.set(Duration::ZERO);
        done
    }

    /// Repeatedly: the first signal may arrive before the blocking call.
    fn set(&self, every: Duration) {
        let every = libc::timespec { tv_sec: 0, tv_nsec: every.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: every, it_value: every };
        let none = ptr::null_mut::<libc::itimerspec>();
        // SAFETY: the timer belongs to this value, and the times are only read.
        let set =
            unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, &raw const times, none) };
        debug_assert_eq!(set, 0, "a timer that is there can be set");
    }
}

fn mask(how: libc::c_int) {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled in before it is used, and only this thread's mask is changed.
    let done = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), SIGNAL);
        libc::pthread_sigmask(how, signals.as_ptr(), ptr::null_mut())
    };
    debug_assert_eq!(done, 0, "a signal that is there can be kept away");
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn call_that_would_wait_for_ever_is_interrupted() {
        let alarm = Alarm::of_this_thread().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut byte = [0];
        let read = alarm.during(|| rustix::io::read(&ours, &mut byte));
        assert_eq!(read, Err(rustix::io::Errno::INTR));
        // Afterwards nothing is.
        ours.set_read_timeout(Some(LONGEST * 5)).unwrap();
        assert_eq!(rustix::io::read(&ours, &mut byte), Err(rustix::io::Errno::AGAIN));
    }
}
