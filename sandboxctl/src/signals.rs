//! SIGINT and SIGTERM: the first asks, the second insists.

use std::future::Future;
use std::time::Duration;

use sandbox_controller::{CancelCause, CancelHandle};
use tokio::signal::unix;
use tokio::task::JoinHandle;

use crate::error::{Error, Signal};

/// How long a second signal leaves for killing the container, before the process ends whatever
/// it is waiting for (such as a stdout that nobody reads).
const LAST_GRACE: Duration = Duration::from_secs(3);

/// The signals that ask us to end.
#[derive(Debug)]
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// From here on, signals do not end the process by themselves.
    ///
    /// # Errors
    ///
    /// Where the handlers cannot be set.
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            unix::signal(kind)
                .map_err(|source| Error::System { what: "signal handlers".into(), source })
        };
        Ok(Self {
            interrupt: listen(unix::SignalKind::interrupt())?,
            terminate: listen(unix::SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }

    /// Does `work`, or gives it up at a signal. What was started is ended by its owner's end.
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

/// From here on, until the value is dropped, the first signal cancels a run, and the second kills
/// it at once.
///
/// # Errors
///
/// Where the handlers cannot be set.
pub fn cancel(run: CancelHandle) -> Result<Canceller, Error> {
    let mut signals = Signals::listen()?;
    // A task of its own: it works while the main one waits for stdout.
    Ok(Canceller(tokio::spawn(async move {
        let cause = |signal| match signal {
            Signal::Interrupt => CancelCause::Interrupt,
            Signal::Terminate => CancelCause::Terminate,
        };
        run.cancel(cause(signals.next().await));
        let second = signals.next().await;
        run.cancel(cause(second));
        tokio::time::sleep(LAST_GRACE).await;
        std::process::exit(second.exit_code().into());
    })))
}

/// Cancels a run at a signal, while it is kept.
#[derive(Debug)]
pub struct Canceller(JoinHandle<()>);

impl Drop for Canceller {
    fn drop(&mut self) {
        self.0.abort();
    }
}
