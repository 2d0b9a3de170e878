//! Pausing: the engine freezes the container, and the sandbox's [clock](crate::clock) stands still.

use std::sync::Arc;

use sandbox_engine::EngineError;

use crate::audit::{self, Event};
use crate::engine_call::step;
use crate::error::Error;
use crate::sandbox::{Inner, Sandbox, detached};
use crate::step::Step;

impl Sandbox {
    /// Freezes it: nothing in it runs, and its memory stays, until it is [resumed](Self::resume) or
    /// ends. Time limits of what is in progress, and its idle time, stand still meanwhile; its lifetime
    /// does not. Does nothing to a sandbox that is paused.
    ///
    /// # Errors
    ///
    /// [`Error`] if it has ended, or its engine cannot.
    pub async fn pause(&self) -> Result<(), Error> {
        detached(self.inner().clone().pause()).await
    }

    /// Goes on after [`pause`](Self::pause). Does nothing to a sandbox that runs.
    ///
    /// # Errors
    ///
    /// As `pause`.
    pub async fn resume(&self) -> Result<(), Error> {
        detached(self.inner().clone().resume()).await
    }

    /// Whether it is paused. What is asked of it then fails with [`Error::Paused`], but for the events
    /// and the stdin of its processes.
    pub fn is_paused(&self) -> bool {
        self.inner().clock.is_paused()
    }
}

impl Inner {
    async fn pause(self: Arc<Self>) -> Result<(), Error> {
        let mut paused = self.paused.lock().await;
        self.ended().map_or(Ok(()), Err)?;
        if paused.is_some() {
            return Ok(());
        }
        // First: nothing is late because of a frozen agent.
        self.clock.pause();
        let result = step(Step::Pause, self.container.pause()).await.map_err(|error| match error {
            Error::Engine { source: EngineError::NoFreezer, .. } => Error::PauseUnsupported,
            error => error,
        });
        match &result {
            Ok(()) => *paused = Some(self.activity.begin()),
            Err(_) => {
                // It may have been paused after all.
                _ = step(Step::Resume, self.container.resume()).await;
                self.clock.resume();
            }
        }
        self.record("pause", &result);
        result
    }

    async fn resume(self: Arc<Self>) -> Result<(), Error> {
        let mut paused = self.paused.lock().await;
        self.ended().map_or(Ok(()), Err)?;
        if paused.is_none() {
            return Ok(());
        }
        let result = step(Step::Resume, self.container.resume()).await;
        if result.is_ok() {
            self.clock.resume();
            *paused = None;
        }
        self.record("resume", &result);
        result
    }

    fn record(&self, operation: &str, result: &Result<(), Error>) {
        let outcome = audit::outcome(result);
        self.audit().record(&Event { outcome, ..Event::new(self.id(), operation) });
    }
}
