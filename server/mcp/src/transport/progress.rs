//! Progress of a script, by the lines that it logs.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The shortest time between two notifications: a script logs faster than clients draw.
const INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes of lines in one notification; more are left out, and the result has them.
const MAX_BYTES: usize = 4 << 10;

/// How long one notification may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Log lines on their way to a client as notifications.
pub(crate) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    /// Lines so far.
    lines: u64,
    /// Those not sent yet.
    pending: String,
    /// When they may be sent; none if nothing is to be sent.
    due: Option<Instant>,
    last: Option<Instant>,
}

impl Progress {
    pub fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, lines: 0, pending: String::new(), due: None, last: None }
    }

    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        self.lines += 1;
        append(&mut self.pending, line);
        let earliest = || self.last.map_or_else(Instant::now, |last| last + INTERVAL);
        self.due = Some(self.due.unwrap_or_else(earliest));
    }

    /// Waits until lines may be sent; for ever if there are none.
    pub async fn due(progress: &Option<Self>) {
        match progress.as_ref().and_then(|progress| progress.due) {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Sends the lines that are not sent yet, unless the call is cancelled: a client that is gone does
    /// not get them, and one that does not read must not hold up the call.
    pub async fn send(&mut self, cancelled: &CancellationToken) {
        if self.due.take().is_none() {
            return;
        }
        self.last = Some(Instant::now());
        let message = std::mem::take(&mut self.pending);
        let param = ProgressNotificationParam::new(self.token.clone(), self.lines as f64);
        let sent = self.peer.notify_progress(param.with_message(message));
        tokio::select! {
            biased;
            () = cancelled.cancelled() => {}
            _ = tokio::time::timeout(SEND_TIMEOUT, sent) => {}
        }
    }
}

/// Appends a line, as far as there is room.
fn append(pending: &mut String, line: &str) {
    if !pending.is_empty() && pending.len() < MAX_BYTES {
        pending.push('\n');
    }
    let room = MAX_BYTES.saturating_sub(pending.len());
    let end = (0..=room.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
    pending.push_str(&line[..end.unwrap_or(0)]);
}

#[cfg(test)]
mod tests {
    use rmcp::ServerHandler;
    use rmcp::model::NumberOrString;
    use rmcp::service::serve_directly;

    use super::*;

    /// A server that does nothing.
    struct Idle;

    impl ServerHandler for Idle {}

    #[tokio::test(start_paused = true)]
    async fn call_that_is_cancelled_does_not_wait_for_a_client_to_read() {
        let (ours, theirs) = tokio::io::duplex(64);
        let server = serve_directly::<RoleServer, _, _, _, _>(Idle, ours, None);
        let mut progress =
            Progress::new(server.peer().clone(), ProgressToken(NumberOrString::Number(1)));
        // Nobody reads what is longer than the stream.
        progress.push(&"x".repeat(MAX_BYTES));
        let (before, cancelled) = (Instant::now(), CancellationToken::new());
        cancelled.cancel();
        progress.send(&cancelled).await;
        assert_eq!(Instant::now(), before);
        // A client that is there is waited for, and not for ever.
        progress.push("y");
        progress.send(&CancellationToken::new()).await;
        assert_eq!(Instant::now(), before + SEND_TIMEOUT);
        drop(theirs);
    }

    #[test]
    fn lines_are_joined_within_bounds_and_between_characters() {
        let mut pending = String::new();
        append(&mut pending, "a");
        append(&mut pending, "b");
        assert_eq!(pending, "a\nb");
        append(&mut pending, &"é".repeat(MAX_BYTES));
        append(&mut pending, "c");
        assert!((MAX_BYTES - 1..=MAX_BYTES).contains(&pending.len()), "{}", pending.len());
    }
}
