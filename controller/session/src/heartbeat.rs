//! Heartbeats: they tell the agent that its controller is alive, where an open stdin does not,
//! because an engine's shim holds it open, or because the controller is merely stopped.
//!
//! One thread sends them for all sessions of the process, instead of a task: the runtime may only
//! be driven now and then (`block_on` for each call) or be busy with other work, and such a
//! controller is alive. The thread lives as long as there are sessions.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use sandbox_protocol::HEARTBEAT;
use sandbox_protocol::limits::HEARTBEAT_INTERVAL;
use tokio::io::AsyncWrite;

/// An agent's stdin, locked while a line is being written.
pub(super) type Input = Arc<tokio::sync::Mutex<Pin<Box<dyn AsyncWrite + Send>>>>;

type WeakInput = Weak<tokio::sync::Mutex<Pin<Box<dyn AsyncWrite + Send>>>>;

/// The sessions that receive heartbeats; `None` if there is no thread.
static SESSIONS: Mutex<Option<Vec<WeakInput>>> = Mutex::new(None);

/// Starts to send heartbeats, until the input is dropped.
pub(super) fn begin(input: &Input) -> io::Result<()> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sessions) = &mut *sessions {
        sessions.push(Arc::downgrade(input));
        return Ok(());
    }
    std::thread::Builder::new().name("heartbeats".to_owned()).spawn(send)?;
    *sessions = Some(vec![Arc::downgrade(input)]);
    Ok(())
}

fn send() {
    loop {
        std::thread::sleep(HEARTBEAT_INTERVAL);
        let mut all = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sessions) = &mut *all else { return };
        sessions.retain(|input| input.upgrade().is_some_and(|input| beat(&input)));
        if sessions.is_empty() {
            *all = None;
            return;
        }
    }
}

/// Sends a heartbeat without blocking; returns whether to continue.
fn beat(input: &Input) -> bool {
    // A line is being written: its bytes serve the same purpose.
    let Ok(mut input) = input.try_lock() else { return true };
    // No waker is needed: if the heartbeat does not fit now, there are unread bytes before it.
    let mut context = Context::from_waker(Waker::noop());
    match input.as_mut().poll_write(&mut context, HEARTBEAT) {
        Poll::Ready(Ok(_)) => {
            _ = input.as_mut().poll_flush(&mut context);
            true
        }
        Poll::Ready(Err(_)) => false,
        Poll::Pending => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Session;
    use super::super::testing::pipe;
    use super::*;
    use sandbox_protocol::ToAgent;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn input(most: usize) -> (Input, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(most);
        (Arc::new(tokio::sync::Mutex::new(Box::pin(ours) as _)), theirs)
    }

    #[test]
    fn an_idle_session_gets_heartbeats_though_nobody_drives_its_runtime() {
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
        let (input, mut agent) = input(4);
        let line = async {
            let mut input = input.lock().await;
            input.write_all(b"long line\n").await.unwrap();
        };
        let read = async {
            let mut got = vec![0; 10];
            for at in 0..got.len() {
                assert!(beat(&input), "the session goes on");
                agent.read_exact(&mut got[at..=at]).await.unwrap();
            }
            got
        };
        let ((), got) = tokio::join!(line, read);
        assert_eq!(got, b"long line\n");
        assert!(beat(&input));
        assert_eq!(agent.read_u8().await.unwrap(), b'\n');
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_holds_up_nothing() {
        let (input, mut agent) = input(4);
        for _ in 0..100 {
            assert!(beat(&input));
        }
        let mut got = vec![0; 4];
        agent.read_exact(&mut got).await.unwrap();
        assert_eq!(got, b"\n\n\n\n");
        // The reader wakes the next writer; the wake-up is not lost with the heartbeat that did not
        // fit.
        for _ in 0..5 {
            assert!(beat(&input));
        }
        let write = async { input.lock().await.write_all(b"line\n").await.unwrap() };
        let read = async {
            let mut got = vec![0; 9];
            agent.read_exact(&mut got).await.unwrap();
            got
        };
        assert_eq!(tokio::join!(write, read).1, b"\n\n\n\nline\n");
    }

    #[tokio::test]
    async fn a_session_that_ended_gets_no_heartbeat() {
        let (input, agent) = input(4);
        drop(agent);
        assert!(!beat(&input));
    }
}
