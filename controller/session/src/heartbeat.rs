//! Heartbeats: they show the agent that its controller is alive. An open stdin does not, because an
//! engine's shim holds it open, or because the controller is merely stopped.
//!
//! One thread sends them for all sessions of the process, instead of a task: the runtime may only
//! be driven now and then (`block_on` for each call) or be busy with other work, and such a
//! controller is alive. The thread lives as long as there are sessions.

use std::io;
use std::sync::{Mutex, PoisonError, Weak};

use sandbox_protocol::limits::HEARTBEAT_INTERVAL;

use super::outbound::Lines;

/// The sessions that receive heartbeats; `None` if there is no thread.
static SESSIONS: Mutex<Option<Vec<Weak<Lines>>>> = Mutex::new(None);

/// Starts to send heartbeats, until the session has ended.
pub(super) fn begin(session: Weak<Lines>) -> io::Result<()> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sessions) = &mut *sessions {
        sessions.push(session);
        return Ok(());
    }
    std::thread::Builder::new().name("heartbeats".to_owned()).spawn(send)?;
    *sessions = Some(vec![session]);
    Ok(())
}

fn send() {
    loop {
        std::thread::sleep(HEARTBEAT_INTERVAL);
        let mut all = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sessions) = &mut *all else { return };
        sessions.retain(|session| session.upgrade().is_some_and(|lines| lines.beat()));
        if sessions.is_empty() {
            *all = None;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Session;
    use super::super::fake::pipe;
    use super::super::outbound;
    use std::sync::Arc;

    use sandbox_protocol::{HEARTBEAT, ToAgent};
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    /// A session whose agent reads through a pipe of this size.
    fn session(most: usize) -> (Arc<outbound::Sender>, outbound::Writer, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(most);
        let (sender, writer) = outbound::open(Box::pin(ours));
        (sender, writer, theirs)
    }

    fn beat(sender: &outbound::Sender) -> bool {
        sender.lines().upgrade().is_some_and(|lines| lines.beat())
    }

    #[test]
    fn an_idle_session_gets_heartbeats_while_its_runtime_is_not_polled() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (attached, agent) = pipe();
        let session = runtime.block_on(async { Session::start(attached, None).unwrap() });
        // On a separate runtime: the session's is not being driven now.
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut agent = agent;
        let line = other.block_on(async {
            let mut line = vec![0; HEARTBEAT.len()];
            agent.input.read_exact(&mut line).await.unwrap();
            String::from_utf8(line).unwrap()
        });
        assert_eq!(ToAgent::decode(line.trim_end()).unwrap(), ToAgent::Heartbeat);
        drop(session);
    }

    #[tokio::test]
    async fn a_heartbeat_never_comes_into_the_middle_of_a_line() {
        let (sender, writer, mut agent) = session(4);
        tokio::spawn(writer.run());
        sender.send(b"long line\n".to_vec()).await.unwrap();
        let mut got = vec![0; 10];
        for at in 0..got.len() {
            assert!(beat(&sender), "the session goes on");
            agent.read_exact(&mut got[at..=at]).await.unwrap();
        }
        assert_eq!(got, b"long line\n");
        // The task that wrote the end of the line is done with it.
        tokio::task::yield_now().await;
        assert!(beat(&sender));
        assert_eq!(agent.read_u8().await.unwrap(), b'\n');
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_holds_up_nothing() {
        let (sender, writer, mut agent) = session(4);
        tokio::spawn(writer.run());
        for _ in 0..100 {
            assert!(beat(&sender));
        }
        let mut got = vec![0; 4];
        agent.read_exact(&mut got).await.unwrap();
        assert_eq!(got, b"\n\n\n\n");
        // The reader wakes the next writer; the wake-up is not lost with the heartbeat that did not
        // fit.
        for _ in 0..5 {
            assert!(beat(&sender));
        }
        sender.send(b"line\n".to_vec()).await.unwrap();
        let mut got = vec![0; 9];
        agent.read_exact(&mut got).await.unwrap();
        assert_eq!(got, b"\n\n\n\nline\n");
    }

    #[tokio::test]
    async fn a_session_that_ended_gets_no_heartbeat() {
        let (sender, writer, agent) = session(4);
        drop(agent);
        assert!(!beat(&sender));
        drop(writer);
        assert!(!beat(&sender));
    }
}
