//! Progress of a script by the lines that it logs, and of a command by its output.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::lock;

/// The shortest time between two notifications: a script logs faster than clients draw.
const INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes of lines in one notification; more are left out, and the result has them.
const MAX_BYTES: usize = 4 << 10;

/// How long one notification may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The client's request that progress belongs to; none while its call waits without one.
pub(crate) type ProgressTarget = Arc<Mutex<Option<(Peer<RoleServer>, ProgressToken)>>>;

/// Log lines or output on their way to a client as notifications.
pub(crate) struct Progress {
    target: ProgressTarget,
    pending: Mutex<Pending>,
}

/// What is not sent yet.
#[derive(Default)]
struct Pending {
    /// Lines or bytes so far.
    done: u64,
    /// How many of them were sent or left out.
    sent: u64,
    message: Vec<u8>,
}

impl Progress {
    pub fn new(target: ProgressTarget) -> Self {
        Self { target, pending: Mutex::default() }
    }

    /// Adds a line of a script's log.
    pub fn push_line(&self, line: &str) {
        let mut pending = lock(&self.pending);
        pending.done += 1;
        if !pending.message.is_empty() {
            append(&mut pending.message, b"\n");
        }
        append(&mut pending.message, line.as_bytes());
    }

    /// Adds output of a command.
    pub fn push_output(&self, piece: &[u8]) {
        let mut pending = lock(&self.pending);
        pending.done += piece.len() as u64;
        append(&mut pending.message, piece);
    }

    /// The times at which to [send](Self::send).
    pub fn ticks() -> Interval {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    /// What is to be sent: how much there is so far, and the message.
    fn next(&self) -> Option<(u64, String)> {
        let mut pending = lock(&self.pending);
        if pending.sent == pending.done {
            return None;
        }
        pending.sent = pending.done;
        let mut message = std::mem::take(&mut pending.message);
        // What is left out may split a character, as the next piece of an output may.
        if let Err(error) = std::str::from_utf8(&message)
            && error.error_len().is_none()
        {
            let partial = message.split_off(error.valid_up_to());
            if message.len() + partial.len() < MAX_BYTES {
                pending.message = partial;
            }
        }
        Some((pending.done, String::from_utf8_lossy(&message).into_owned()))
    }

    /// Sends what is not sent yet, unless the call is cancelled: a client that is gone does not get it, and
    /// one that does not read must not hold up the call.
    pub async fn send(&self, cancelled: &CancellationToken) {
        let Some((peer, token)) = lock(&self.target).clone() else { return };
        let Some((done, message)) = self.next() else { return };
        let param = ProgressNotificationParam::new(token, done as f64);
        let sent = peer.notify_progress(param.with_message(message));
        tokio::select! {
            biased;
            () = cancelled.cancelled() => {}
            _ = tokio::time::timeout(SEND_TIMEOUT, sent) => {}
        }
    }
}

/// Appends what there is room for.
fn append(pending: &mut Vec<u8>, piece: &[u8]) {
    let room = MAX_BYTES.saturating_sub(pending.len());
    pending.extend_from_slice(&piece[..room.min(piece.len())]);
}

#[cfg(test)]
mod tests {
    use rmcp::ServerHandler;
    use rmcp::model::NumberOrString;
    use rmcp::service::serve_directly;
    use serde_json::{Value, json};
    use tokio::io::AsyncBufReadExt as _;
    use tokio::time::Instant;

    use super::*;

    /// A server that does nothing.
    struct Idle;

    impl ServerHandler for Idle {}

    fn progress_of(peer: &Peer<RoleServer>) -> Progress {
        let token = ProgressToken(NumberOrString::Number(1));
        Progress::new(Arc::new(Mutex::new(Some((peer.clone(), token)))))
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_is_cancelled_does_not_wait_for_a_client_to_read() {
        let (ours, theirs) = tokio::io::duplex(64);
        let server = serve_directly::<RoleServer, _, _, _, _>(Idle, ours, None);
        let progress = progress_of(server.peer());
        // Lines longer than the stream are not read.
        progress.push_line(&"x".repeat(MAX_BYTES));
        let (before, cancelled) = (Instant::now(), CancellationToken::new());
        cancelled.cancel();
        progress.send(&cancelled).await;
        assert_eq!(Instant::now(), before);
        // A client that is there is waited for, and not for ever.
        progress.push_line("y");
        progress.send(&CancellationToken::new()).await;
        assert_eq!(Instant::now(), before + SEND_TIMEOUT);
        drop(theirs);
    }

    /// A client, and the notifications that it receives.
    fn notified() -> (Progress, impl AsyncFnMut() -> Value) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let server = serve_directly::<RoleServer, _, _, _, _>(Idle, ours, None);
        let progress = progress_of(server.peer());
        let mut theirs = tokio::io::BufReader::new(theirs);
        let next = async move || {
            let _server = &server;
            let mut line = String::new();
            theirs.read_line(&mut line).await.unwrap();
            serde_json::from_str::<Value>(&line).unwrap()["params"].take()
        };
        (progress, next)
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_joined_within_bounds_and_between_characters() {
        let (progress, mut next) = notified();
        let alive = CancellationToken::new();
        progress.push_line("a");
        progress.push_line("b");
        progress.send(&alive).await;
        let sent = next().await;
        assert_eq!((&sent["message"], &sent["progress"]), (&json!("a\nb"), &json!(2.0)));
        progress.push_line(&format!("x{}", "é".repeat(MAX_BYTES)));
        progress.push_line("c");
        progress.send(&alive).await;
        let sent = next().await;
        let message = sent["message"].as_str().unwrap();
        assert_eq!((message.len(), message.ends_with('é')), (MAX_BYTES - 1, true));
        // While there is no request, lines wait.
        let target = lock(&progress.target).take();
        progress.push_line("d");
        progress.send(&alive).await;
        *lock(&progress.target) = target;
        progress.push_line("e");
        progress.send(&alive).await;
        assert_eq!(next().await["message"], "d\ne");
    }

    #[tokio::test(start_paused = true)]
    async fn output_is_reported_as_it_comes_and_no_character_is_split() {
        let (progress, mut next) = notified();
        let alive = CancellationToken::new();
        let (first, rest) = "a\né".as_bytes().split_at(3);
        progress.push_output(first);
        progress.send(&alive).await;
        assert_eq!(next().await["message"], "a\n");
        progress.push_output(rest);
        progress.push_output(b"\xff.");
        progress.send(&alive).await;
        let sent = next().await;
        assert_eq!((&sent["message"], &sent["progress"]), (&json!("é\u{fffd}."), &json!(6.0)));
    }
}
