//! Being asked to end: the first time between two measurements, the second time at once.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::Error;

/// How often an end was asked for.
#[derive(Debug, Clone)]
pub struct Interrupt(watch::Receiver<u32>);

impl Interrupt {
    /// By SIGINT, SIGTERM and SIGHUP, which from here on do not end the process by themselves.
    pub fn by_signals() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (asked, receiver) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                asked.send_modify(|times| *times += 1);
            }
        });
        Ok(Self(receiver))
    }

    /// By the end of stdin, however the process at its other end has ended.
    pub fn by_stdin() -> Self {
        let (asked, receiver) = watch::channel(0);
        tokio::spawn(async move {
            // Stdin stays silent.
            _ = tokio::io::stdin().read(&mut [0]).await;
            asked.send_modify(|times| *times += 1);
            asked.closed().await;
        });
        Self(receiver)
    }

    /// An error where an end was asked for.
    pub fn check(&self) -> Result<(), Error> {
        match *self.0.borrow() {
            0 => Ok(()),
            _ => Err(Error::Interrupted),
        }
    }

    /// Waits until an end was asked for `times` times.
    pub async fn asked(&self, times: u32) {
        if self.0.clone().wait_for(|asked| *asked >= times).await.is_err() {
            std::future::pending().await
        }
    }
}
