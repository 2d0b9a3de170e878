//! Tracks the activity in a sandbox, and how long it has been idle.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
struct State {
    active: usize,
    /// When the activity last changed.
    since: Instant,
}

/// The number of activities in progress.
#[derive(Debug)]
pub(crate) struct Activity(watch::Sender<State>);

/// An activity, in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct Active(watch::Sender<State>);

impl Activity {
    /// No activity yet.
    pub fn new() -> Self {
        Self(watch::Sender::new(State { active: 0, since: Instant::now() }))
    }

    /// Begins an activity.
    pub fn begin(&self) -> Active {
        count(&self.0, |active| active + 1);
        Active(self.0.clone())
    }

    /// Whether nothing is in progress.
    pub fn is_idle(&self) -> bool {
        self.0.borrow().active == 0
    }

    /// Completes when the sandbox has been idle for `limit`; never, if that does not happen.
    pub fn idle(&self, limit: Duration) -> impl Future<Output = ()> + Send + use<> {
        let mut states = self.0.subscribe();
        async move {
            loop {
                let State { active, since } = *states.borrow_and_update();
                let changed = states.changed();
                let still_there = if active > 0 {
                    changed.await.is_ok()
                } else {
                    match tokio::time::timeout_at(since + limit, changed).await {
                        Err(_) => return,
                        Ok(changed) => changed.is_ok(),
                    }
                };
                if !still_there {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        count(&self.0, |active| active.saturating_sub(1));
    }
}

fn count(states: &watch::Sender<State>, change: impl FnOnce(usize) -> usize) {
    states.send_modify(|state| {
        *state = State { active: change(state.active), since: Instant::now() };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_end_of_the_last_operation() {
        let activity = Activity::new();
        let start = Instant::now();
        let idle = activity.idle(LIMIT);
        let (long, short) = (activity.begin(), activity.begin());
        tokio::spawn(async move {
            tokio::time::sleep(LIMIT).await;
            drop(short);
            tokio::time::sleep(LIMIT * 2).await;
            drop(long);
        });
        idle.await;
        assert_eq!(start.elapsed(), LIMIT * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_sandbox_is_idle() {
        let activity = Activity::new();
        let start = Instant::now();
        activity.idle(LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT);
    }
}
