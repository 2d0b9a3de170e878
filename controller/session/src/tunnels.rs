//! Tunnels: connections of commands in the sandbox, and connections to its ports, on the wire.
//!
//! The task that reads the agent's messages checks them against the rules of the protocol, and
//! stores the bytes until the connection's own task receives them. The bytes are bounded by credit,
//! however small the chunks are; the number of tunnels is bounded too, and a tunnel counts until
//! both sides have closed it. Which hosts may be reached is decided by the [`ConnectHandler`], and which
//! ports by the caller of [`Session::dial`](super::Session::dial), not here.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sandbox_protocol::ToAgent;
use sandbox_protocol::limits::{
    CREDIT_STEP, FIRST_DIAL, FIRST_TUNNEL, MAX_CLOSED_MESSAGE_BYTES, MAX_DIALS, MAX_HOST_BYTES,
    MAX_TUNNELS, cut_encoded,
};
use sandbox_protocol::message::{Chunk, Close, Closed, ClosedReason, Connect, Connected, Credit};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Shared;
use super::outbound::{Ended, Sender};

/// Decides about connections, and establishes them.
pub trait ConnectHandler: Send + Sync {
    /// Serves a tunnel, in a separate task: the caller is the task that reads the agent's messages.
    fn open(self: Arc<Self>, tunnel: Tunnel, connect: Connect);
}

/// The tunnels of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    open: HashMap<u32, Open>,
    /// Where the search for the number of a dialled one starts, from [`FIRST_DIAL`] on.
    next_dial: u32,
}

/// A tunnel that at least one side has not closed.
#[derive(Debug)]
struct Open {
    incoming: ReceiveWindow,
    outgoing: SendWindow,
    /// Received bytes that were not consumed yet.
    arrived: Vec<u8>,
    /// Consumed bytes for which no credit was returned yet.
    owed: u64,
    has_arrived: Arc<Notify>,
    has_credit: Arc<Notify>,
    /// The agent has closed it, or the session has ended.
    broken: CancellationToken,
    /// Nothing uses the controller's end any more.
    ended: CancellationToken,
    is_connected: bool,
    is_closed: bool,
}

impl Tunnels {
    /// Handles a chunk; an error is a breach.
    pub fn chunk(&mut self, chunk: &Chunk) -> Result<(), String> {
        let open = self.talking("a chunk", chunk.stream)?;
        open.incoming.receive(chunk).map_err(|error| error.to_string())?;
        if !open.is_closed {
            open.arrived.extend_from_slice(&chunk.data.0);
            open.has_arrived.notify_one();
        }
        Ok(())
    }

    /// Handles a grant of credit; an error is a breach.
    pub fn credit(&mut self, credit: &Credit) -> Result<(), String> {
        let open = self.talking("credit", credit.stream)?;
        open.outgoing.grant(credit).map_err(|error| error.to_string())?;
        open.has_credit.notify_one();
        Ok(())
    }

    /// Handles the agent's close of a tunnel; an error is a breach.
    pub fn close(&mut self, close: Close) -> Result<(), String> {
        let number = close.tunnel;
        // One that is being dialled ends by the answer, if it does.
        let may_close = |open: &&Open| {
            !open.broken.is_cancelled() && (open.is_connected || !is_dialled(number))
        };
        let open = self.open.get(&number).filter(may_close);
        let open = open.ok_or_else(|| format!("a close of an unknown tunnel ({number})"))?;
        open.broken.cancel();
        if open.is_closed {
            self.open.remove(&number);
        }
        Ok(())
    }

    /// Closes all of them in the agent's stead.
    pub fn close_all(&mut self) {
        self.open.retain(|_, open| {
            open.broken.cancel();
            !open.is_closed
        });
    }

    /// The ends of those of commands that the agent has closed and the controller has not.
    pub fn ends(&self) -> Vec<CancellationToken> {
        let is_left =
            |(number, open): &(&u32, &Open)| !is_dialled(**number) && open.broken.is_cancelled();
        self.open.iter().filter(is_left).map(|(_, open)| open.ended.clone()).collect()
    }

    /// Handles the answer to a `dial`: without a connection, there is no such tunnel.
    pub fn answered(&mut self, number: u32, is_connected: bool) {
        match self.open.get_mut(&number) {
            Some(open) if is_connected => open.is_connected = true,
            _ => _ = self.open.remove(&number),
        }
    }

    /// A number for one that is dialled; `None` if there are as many as there may be.
    fn dial_number(&mut self) -> Option<u32> {
        if self.count(is_dialled) >= MAX_DIALS {
            return None;
        }
        loop {
            let number = FIRST_DIAL + self.next_dial;
            self.next_dial = (self.next_dial + 1) % (FIRST_TUNNEL - FIRST_DIAL);
            if !self.open.contains_key(&number) {
                return Some(number);
            }
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    fn count(&self, which: impl Fn(u32) -> bool) -> usize {
        self.open.keys().filter(|&&number| which(number)).count()
    }

    /// A tunnel on which the agent may send: connected, and not closed by the agent. That it sent
    /// this on another one is a breach.
    fn talking(&mut self, what: &str, number: u32) -> Result<&mut Open, String> {
        let open = self.open.get_mut(&number);
        open.filter(|open| open.is_connected && !open.broken.is_cancelled())
            .ok_or_else(|| format!("{what} for an unknown tunnel ({number})"))
    }
}

/// Whether a tunnel of this number was dialled by the controller.
const fn is_dialled(number: u32) -> bool {
    number < FIRST_TUNNEL
}

impl Open {
    /// What has arrived, or the end.
    fn take(&mut self) -> Option<Received> {
        match std::mem::take(&mut self.arrived) {
            bytes if !bytes.is_empty() => Some(Received::Bytes(bytes)),
            _ => self.incoming.is_ended().then_some(Received::End),
        }
    }
}

/// The controller's end of a tunnel. Its owner must close it with [`close`](Self::close).
pub struct Tunnel {
    number: u32,
    has_arrived: Arc<Notify>,
    has_credit: Arc<Notify>,
    broken: CancellationToken,
    lines: Weak<Sender>,
    shared: Arc<Shared>,
    /// Signals on drop that the tunnel is unused.
    _ended: DropGuard,
}

/// An event received on a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes.
    Bytes(Vec<u8>),
    /// End of stream: the other end sends no more.
    End,
}

impl Tunnel {
    /// Opens a tunnel that the agent requested, and passes it to the handler; an error is a breach.
    pub(super) fn open(shared: &Arc<Shared>, connect: Connect) -> Result<(), String> {
        let number = connect.tunnel;
        let Some((gate, lines)) = &shared.gate else {
            return Err("connection request without network access".to_owned());
        };
        if number < FIRST_TUNNEL || connect.host.len() > MAX_HOST_BYTES {
            return Err(format!("a malformed connection ({number})"));
        }
        let tunnel = {
            let tunnels = &mut shared.lock().tunnels;
            if tunnels.open.contains_key(&number) {
                return Err(format!("a tunnel that is already open ({number})"));
            }
            if tunnels.count(|number| !is_dialled(number)) >= MAX_TUNNELS {
                return Err("too many tunnels".to_owned());
            }
            Self::insert(shared, lines.clone(), number, tunnels)
        };
        gate.clone().open(tunnel, connect);
        Ok(())
    }

    /// A tunnel that is to be dialled; `None` if there are as many as there may be.
    pub(super) fn dial(shared: &Arc<Shared>, lines: Weak<Sender>) -> Option<Self> {
        let tunnels = &mut shared.lock().tunnels;
        let number = tunnels.dial_number()?;
        Some(Self::insert(shared, lines, number, tunnels))
    }

    fn insert(shared: &Arc<Shared>, lines: Weak<Sender>, number: u32, into: &mut Tunnels) -> Self {
        let ended = CancellationToken::new();
        let tunnel = Self {
            number,
            has_arrived: Arc::default(),
            has_credit: Arc::default(),
            broken: CancellationToken::new(),
            lines,
            shared: shared.clone(),
            _ended: ended.clone().drop_guard(),
        };
        let open = Open {
            incoming: ReceiveWindow::new(number),
            outgoing: SendWindow::new(number),
            arrived: Vec::new(),
            owed: 0,
            has_arrived: tunnel.has_arrived.clone(),
            has_credit: tunnel.has_credit.clone(),
            broken: tunnel.broken.clone(),
            ended,
            is_connected: false,
            is_closed: false,
        };
        into.open.insert(number, open);
        tunnel
    }

    /// Its number on the wire.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Forgets one that could not be dialled.
    pub(super) fn forget(self) {
        self.shared.lock().tunnels.open.remove(&self.number);
    }

    /// Whether the agent has closed the tunnel, or the session has ended.
    pub fn is_broken(&self) -> bool {
        self.broken.is_cancelled()
    }

    /// Completes when the agent has closed the tunnel, or the session has ended.
    pub async fn broken(&self) {
        self.broken.cancelled().await;
    }

    /// Reports that the connection is established.
    pub async fn connected(&self) -> Result<(), Ended> {
        self.with(|open| open.is_connected = true)?;
        self.say(&ToAgent::Connected(Connected { tunnel: self.number })).await
    }

    /// Waits for data from the other end. The consumer must return [credit](Self::consumed) for it. What
    /// a port sent before its connection broke is received too: a server may answer and then reset.
    pub async fn receive(&self) -> Result<Received, Ended> {
        let mut is_over = false;
        loop {
            let received = match self.shared.lock().tunnels.open.get_mut(&self.number) {
                Some(open) if is_dialled(self.number) || !self.is_broken() => open.take(),
                _ => return Err(Ended),
            };
            match received {
                Some(received) => return Ok(received),
                None if is_over => return Err(Ended),
                None => is_over = self.wait(&self.has_arrived).await.is_err(),
            }
        }
    }

    /// Returns credit for received bytes that were forwarded.
    pub async fn consumed(&self, bytes: u64) -> Result<(), Ended> {
        let credit = self.with(|open| {
            open.owed += bytes;
            // No more bytes will come that need it.
            let is_due = open.owed >= CREDIT_STEP && !open.incoming.is_ended();
            is_due.then(|| open.incoming.consumed(std::mem::take(&mut open.owed)))
        })?;
        match credit {
            Some(credit) => self.say(&ToAgent::Credit(credit)).await,
            None => Ok(()),
        }
    }

    /// Sends all of `data`, as credit allows.
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

    /// Reports the end of the stream.
    pub async fn finish(&self) -> Result<(), Ended> {
        let chunk = self.with(|open| open.outgoing.chunk(Vec::new(), true))?;
        self.say(&ToAgent::Chunk(chunk.map_err(|_| Ended)?)).await
    }

    /// Closes the controller's side.
    pub async fn close(&self, reason: ClosedReason, message: &str) {
        {
            let open = &mut self.shared.lock().tunnels.open;
            let Some(tunnel) = open.get_mut(&self.number) else { return };
            tunnel.is_closed = true;
            tunnel.arrived = Vec::new();
            if tunnel.broken.is_cancelled() {
                open.remove(&self.number);
            }
        }
        if self.shared.end.borrow().is_some() {
            return;
        }
        let message = cut_encoded(message, MAX_CLOSED_MESSAGE_BYTES).to_owned();
        let closed = Closed { tunnel: self.number, reason, message };
        // If it cannot be sent, the session has ended meanwhile.
        _ = self.say(&ToAgent::Closed(closed)).await;
    }

    fn with<T>(&self, act: impl FnOnce(&mut Open) -> T) -> Result<T, Ended> {
        match self.shared.lock().tunnels.open.get_mut(&self.number) {
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
        lines.send(line).await
    }
}
