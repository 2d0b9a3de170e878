//! The clock of a sandbox, which stands still while the sandbox is paused: what has a time limit in it
//! does not use that up then.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// A clock that can stand still. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<watch::Sender<State>>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// When it began to stand still, if it does.
    paused_at: Option<Instant>,
    /// How long it has stood still before.
    paused: Duration,
}

impl Clock {
    /// Its time. Only it, and [`sleep_until`](Self::sleep_until), can compare such a time with another.
    pub fn now(&self) -> Instant {
        let State { paused_at, paused } = *self.0.borrow();
        paused_at.unwrap_or_else(Instant::now) - paused
    }

    /// Waits until it shows this time. Cancel-safe.
    pub async fn sleep_until(&self, at: Instant) {
        let mut states = self.0.subscribe();
        loop {
            let State { paused_at, paused } = *states.borrow_and_update();
            // The sender is this clock's own.
            let changed = states.changed();
            match paused_at {
                Some(_) => _ = changed.await,
                // A timer counts whole milliseconds: it would make this wait for the next one.
                None if at + paused <= Instant::now() => return,
                None if timeout_at(at + paused, changed).await.is_err() => return,
                None => {}
            }
        }
    }

    /// Waits for this to complete, for at most so long; `None` if it did not.
    pub async fn timeout<T>(&self, limit: Duration, awaited: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = awaited => Some(done),
            () = self.sleep_until(self.now() + limit) => None,
        }
    }

    /// Whether it stands still.
    pub fn is_paused(&self) -> bool {
        self.0.borrow().paused_at.is_some()
    }

    /// Makes it stand still.
    pub fn pause(&self) {
        self.0.send_modify(|state| _ = state.paused_at.get_or_insert_with(Instant::now));
    }

    /// Makes it go on.
    pub fn resume(&self) {
        self.0.send_modify(|state| {
            state.paused += state.paused_at.take().map(|at| at.elapsed()).unwrap_or_default();
        });
    }
}

/// Waits for this, and for ever without one.
pub(crate) async fn or_never<T>(awaited: Option<impl Future<Output = T>>) -> T {
    match awaited {
        Some(awaited) => awaited.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_is_not_used_up_while_the_clock_stands_still() {
        let clock = Clock::default();
        let began = Instant::now();
        let limit = clock.now() + 10 * SECOND;
        let pauses = async {
            for _ in 0..2 {
                tokio::time::sleep(SECOND).await;
                clock.pause();
                let shown = clock.now();
                tokio::time::sleep(60 * SECOND).await;
                assert_eq!(clock.now(), shown);
                // Twice is once.
                clock.pause();
                clock.resume();
                clock.resume();
            }
        };
        tokio::join!(clock.sleep_until(limit), pauses);
        assert_eq!(began.elapsed(), 130 * SECOND);
        assert_eq!(clock.now(), limit);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_has_come_is_not_waited_for() {
        let clock = Clock::default();
        tokio::time::advance(Duration::from_micros(100)).await;
        let began = Instant::now();
        clock.sleep_until(clock.now()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_late_while_the_clock_stands_still() {
        let clock = Clock::default();
        clock.pause();
        let waited = clock.timeout(SECOND, std::future::pending::<()>());
        assert!(tokio::time::timeout(60 * SECOND, waited).await.is_err());
        assert_eq!(clock.timeout(SECOND, async { 7 }).await, Some(7));
    }
}
