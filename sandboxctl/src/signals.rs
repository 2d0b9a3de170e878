//! SIGINT, SIGTERM and SIGHUP: the first signal cancels, the second kills. Also detects that stdout
//! has no reader any more.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use sandbox_controller::CancelHandle;
use tokio::signal::unix;
use tokio::task::JoinHandle;

use crate::error::{Error, Signal};
use crate::{or_never, terminal};

/// How long a second signal leaves for killing the container, before the process exits despite any
/// wait (such as for a stdout that is not read).
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);

/// The signals that ask the process to end.
#[derive(Debug)]
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// `None` if the process was started to outlive its terminal, as by `nohup`.
    hangup: Option<unix::Signal>,
    /// Whether one came, also to a [renewed](Self::renew) listener.
    received: Arc<AtomicBool>,
}

impl Signals {
    /// From here on, signals do not end the process by default.
    ///
    /// # Errors
    ///
    /// If the handlers cannot be set.
    pub fn listen() -> Result<Self, Error> {
        let failed = |error| Error::system("signal handlers", error);
        let listen = |kind| unix::signal(kind).map_err(failed);
        Ok(Self {
            interrupt: listen(unix::SignalKind::interrupt())?,
            terminate: listen(unix::SignalKind::terminate())?,
            hangup: match *HANGUP_IS_IGNORED {
                true => None,
                false => Some(listen(unix::SignalKind::hangup())?),
            },
            received: Arc::default(),
        })
    }

    /// Listens anew in place of this listener, which is returned with the signals that it has not
    /// handed out yet.
    ///
    /// # Errors
    ///
    /// If the handlers cannot be set.
    pub fn renew(&mut self) -> Result<Self, Error> {
        let renewed = Self { received: self.received.clone(), ..Self::listen()? };
        Ok(std::mem::replace(self, renewed))
    }

    /// Whether a signal was handed out.
    pub fn were_received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        let hangup = or_never(self.hangup.as_mut().map(unix::Signal::recv));
        let signal = tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = hangup => Signal::Hangup,
        };
        self.received.store(true, Ordering::Relaxed);
        signal
    }

    /// Runs `work`, or drops it at a signal. What it had started ends when its owner is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Signalled`].
    pub async fn guard<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Error::Signalled(signal)),
            done = work => Ok(done),
        }
    }
}

/// Waits until stdout has no reader any more, if it is a pipe or a socket. A write would fail too,
/// but there may be no output for a long time.
pub async fn stdout_is_unread() {
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    // A thread, because the end of a pipe is no event that the runtime knows without data. It ends with
    // the process.
    std::thread::spawn(move || {
        let stdout = std::io::stdout();
        let waited = rustix::io::retry_on_intr(|| {
            rustix::event::poll(&mut [PollFd::new(&stdout, PollFlags::empty())], None)
        });
        if waited.is_ok() {
            _ = gone.send(());
        }
    });
    if is_gone.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Whether SIGHUP was ignored at startup, as it is before the first handler is installed.
static HANGUP_IS_IGNORED: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
});

fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signal n is bit n - 1, and SIGHUP is signal 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// From here on, until the value is dropped, the first signal cancels a run, and the second kills
/// it at once.
pub fn cancel(run: CancelHandle, mut signals: Signals) -> Canceller {
    // A separate task: it works while the main one waits for stdout.
    Canceller(tokio::spawn(async move {
        run.cancel(signals.next().await.cause());
        let second = signals.next().await;
        run.cancel(second.cause());
        exit_soon(second).await;
    }))
}

/// From here on, until the value is dropped, the first signal cancels what runs elsewhere, and the
/// second ends the process at once: nothing of it is here.
pub fn cancel_remote<F: Future<Output = ()> + Send + 'static>(
    cancel: impl FnOnce(Signal) -> F + Send + 'static,
    mut signals: Signals,
) -> Canceller {
    Canceller(tokio::spawn(async move {
        let cancelled = cancel(signals.next().await);
        let second = match signals.guard(cancelled).await {
            Err(Error::Signalled(second)) => second,
            _ => signals.next().await,
        };
        exit(second);
    }))
}

/// From here on, until the value is dropped, a second signal ends the process during any wait. The
/// next command removes what is left of its sandbox.
///
/// # Errors
///
/// If the handlers cannot be set.
pub fn insist() -> Result<Canceller, Error> {
    let mut signals = Signals::listen()?;
    Ok(Canceller(tokio::spawn(async move {
        signals.next().await;
        exit_soon(signals.next().await).await;
    })))
}

async fn exit_soon(signal: Signal) {
    tokio::time::sleep(CLEANUP_TIMEOUT).await;
    exit(signal);
}

fn exit(signal: Signal) -> ! {
    terminal::restore();
    std::process::exit(signal.exit_code().into())
}

/// Handles signals until it is dropped.
#[derive(Debug)]
pub struct Canceller(JoinHandle<()>);

impl Drop for Canceller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_distinguished_from_others() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\nSigCgt:\t1\n"));
        assert!(!ignores_hangup(""));
    }
}
