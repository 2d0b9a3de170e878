//! Tunnels: connections of programs in the sandbox, as the wire has them.
//!
//! What the agent says is held against the rules here, by the task that reads it, and kept until the
//! connection's own task takes it. What comes is bounded by its credit in bytes, however small its
//! pieces are; numbers are bounded too, for a tunnel has its place until both sides have said their
//! last word. Who may connect where is not known here: that is the [`ConnectHandler`]'s.

use std::collections::HashMap;
use std::sync::Arc;

use sandbox_protocol::ToAgent;
use sandbox_protocol::limits::{
    CREDIT_STEP, FIRST_TUNNEL, MAX_CLOSED_MESSAGE_BYTES, MAX_HOST_BYTES, MAX_TUNNELS, cut_encoded,
};
use sandbox_protocol::message::{Chunk, Close, Closed, ClosedReason, Connect, Connected, Credit};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::streams::Ended;
use super::{Shared, WeakLines};

/// Decides about connections, and makes them.
pub(crate) trait ConnectHandler: Send + Sync {
    /// Takes a tunnel over, in a task of its own: it is called by the one that reads the agent.
    fn open(self: Arc<Self>, tunnel: Tunnel, connect: Connect);
}

/// The tunnels of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Tunnels(HashMap<u32, Open>);

/// A tunnel on which at least one side has not said its last word.
#[derive(Debug)]
struct Open {
    incoming: ReceiveWindow,
    outgoing: SendWindow,
    /// What came and was not taken.
    arrived: Vec<u8>,
    /// What was taken and not given credit for yet.
    owed: u64,
    has_arrived: Arc<Notify>,
    has_credit: Arc<Notify>,
    /// The agent's last word, or the session's end.
    broken: CancellationToken,
    is_connected: bool,
    is_closed: bool,
}

impl Tunnels {
    /// Takes a chunk; an error is a breach.
    pub fn chunk(&mut self, chunk: &Chunk) -> Result<(), String> {
        let number = chunk.stream;
        let open =
            self.talking(number).ok_or_else(|| format!("a chunk of no tunnel ({number})"))?;
        open.incoming.receive(chunk).map_err(|error| error.to_string())?;
        if !open.is_closed {
            open.arrived.extend_from_slice(&chunk.data.0);
            open.has_arrived.notify_one();
        }
        Ok(())
    }

    /// Takes a grant; an error is a breach.
    pub fn credit(&mut self, credit: &Credit) -> Result<(), String> {
        let number = credit.stream;
        let open =
            self.talking(number).ok_or_else(|| format!("credit for no tunnel ({number})"))?;
        open.outgoing.grant(credit).map_err(|error| error.to_string())?;
        open.has_credit.notify_one();
        Ok(())
    }

    /// Takes the agent's last word on a tunnel; an error is a breach.
    pub fn close(&mut self, close: Close) -> Result<(), String> {
        let number = close.tunnel;
        let open = self.0.get(&number).filter(|open| !open.broken.is_cancelled());
        let open = open.ok_or_else(|| format!("the close of no tunnel ({number})"))?;
        open.broken.cancel();
        if open.is_closed {
            self.0.remove(&number);
        }
        Ok(())
    }

    /// Ends all of them.
    pub fn clear(&mut self) {
        for (_, open) in self.0.drain() {
            open.broken.cancel();
        }
    }

    /// One that the agent may say something of: connected, and not closed by it.
    fn talking(&mut self, number: u32) -> Option<&mut Open> {
        self.0.get_mut(&number).filter(|open| open.is_connected && !open.broken.is_cancelled())
    }
}

/// Our end of a tunnel. Whoever has it says its last word by [`close`](Self::close).
pub(crate) struct Tunnel {
    number: u32,
    has_arrived: Arc<Notify>,
    has_credit: Arc<Notify>,
    broken: CancellationToken,
    lines: WeakLines,
    shared: Arc<Shared>,
}

/// What came on a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes.
    Bytes(Vec<u8>),
    /// The end: the program sends no more.
    End,
}

impl Tunnel {
    /// Opens the tunnel that the agent asks for, and gives it to the gate; an error is a breach.
    pub(super) fn open(shared: &Arc<Shared>, connect: Connect) -> Result<(), String> {
        let number = connect.tunnel;
        let Some((gate, lines)) = &shared.gate else {
            return Err("a connection from a sandbox that has none".to_owned());
        };
        if number < FIRST_TUNNEL || connect.host.len() > MAX_HOST_BYTES {
            return Err(format!("a malformed connection ({number})"));
        }
        let tunnel = Self {
            number,
            has_arrived: Arc::default(),
            has_credit: Arc::default(),
            broken: CancellationToken::new(),
            lines: lines.clone(),
            shared: shared.clone(),
        };
        {
            let open = &mut shared.lock().tunnels.0;
            if open.contains_key(&number) {
                return Err(format!("a tunnel that is open already ({number})"));
            }
            if open.len() >= MAX_TUNNELS {
                return Err("more tunnels than there may be".to_owned());
            }
            open.insert(
                number,
                Open {
                    incoming: ReceiveWindow::new(number),
                    outgoing: SendWindow::new(number),
                    arrived: Vec::new(),
                    owed: 0,
                    has_arrived: tunnel.has_arrived.clone(),
                    has_credit: tunnel.has_credit.clone(),
                    broken: tunnel.broken.clone(),
                    is_connected: false,
                    is_closed: false,
                },
            );
        }
        gate.clone().open(tunnel, connect);
        Ok(())
    }

    /// Ends when the agent has said its last word, or the session is over.
    pub async fn broken(&self) {
        self.broken.cancelled().await;
    }

    /// Says that the connection is there.
    pub async fn connected(&self) -> Result<(), Ended> {
        self.with(|open| open.is_connected = true)?;
        self.say(&ToAgent::Connected(Connected { tunnel: self.number })).await
    }

    /// Waits for what the program sends. What is taken is to be [given back](Self::consumed).
    pub async fn receive(&self) -> Result<Received, Ended> {
        loop {
            let received = self.with(|open| match std::mem::take(&mut open.arrived) {
                bytes if !bytes.is_empty() => Some(Received::Bytes(bytes)),
                _ => open.incoming.is_ended().then_some(Received::End),
            })?;
            match received {
                Some(received) => return Ok(received),
                None => self.wait(&self.has_arrived).await?,
            }
        }
    }

    /// Gives credit for what was received and has gone on.
    pub async fn consumed(&self, bytes: u64) -> Result<(), Ended> {
        let credit = self.with(|open| {
            open.owed += bytes;
            // Nothing more comes that needs it.
            let is_due = open.owed >= CREDIT_STEP && !open.incoming.is_ended();
            is_due.then(|| open.incoming.consumed(std::mem::take(&mut open.owed)))
        })?;
        match credit {
            Some(credit) => self.say(&ToAgent::Credit(credit)).await,
            None => Ok(()),
        }
    }

    /// Sends all of `data`, as credit comes.
    pub async fn send(&self, mut data: &[u8]) -> Result<(), Ended> {
        while !data.is_empty() {
            let chunk = self.with(|open| {
                let size = open.outgoing.capacity().min(data.len());
                let (now, rest) = data.split_at(size);
                (size > 0).then(|| {
                    data = rest;
                    open.outgoing.chunk(now.to_vec(), false)
                })
            })?;
            match chunk {
                Some(chunk) => self.say(&ToAgent::Chunk(chunk.map_err(|_| Ended)?)).await?,
                None => self.wait(&self.has_credit).await?,
            }
        }
        Ok(())
    }

    /// Says that nothing more follows.
    pub async fn finish(&self) -> Result<(), Ended> {
        let chunk = self.with(|open| open.outgoing.chunk(Vec::new(), true))?;
        self.say(&ToAgent::Chunk(chunk.map_err(|_| Ended)?)).await
    }

    /// Our last word.
    pub async fn close(self, reason: ClosedReason, message: &str) {
        {
            let open = &mut self.shared.lock().tunnels.0;
            let Some(tunnel) = open.get_mut(&self.number) else { return };
            tunnel.is_closed = true;
            tunnel.arrived = Vec::new();
            if tunnel.broken.is_cancelled() {
                open.remove(&self.number);
            }
        }
        let message = cut_encoded(message, MAX_CLOSED_MESSAGE_BYTES).to_owned();
        let closed = Closed { tunnel: self.number, reason, message };
        // Where it cannot be said the session is over.
        _ = self.say(&ToAgent::Closed(closed)).await;
    }

    fn with<T>(&self, act: impl FnOnce(&mut Open) -> T) -> Result<T, Ended> {
        match self.shared.lock().tunnels.0.get_mut(&self.number) {
            Some(open) if !self.broken.is_cancelled() => Ok(act(open)),
            _ => Err(Ended),
        }
    }

    async fn wait(&self, notify: &Notify) -> Result<(), Ended> {
        tokio::select! {
            () = notify.notified() => Ok(()),
            () = self.broken.cancelled() => Err(Ended),
        }
    }

    async fn say(&self, message: &ToAgent) -> Result<(), Ended> {
        let line = message.encode().map_err(|_| Ended)?;
        let lines = self.lines.upgrade().ok_or(Ended)?;
        lines.send(line).await.map_err(|_| Ended)
    }
}
