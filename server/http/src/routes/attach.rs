//! A WebSocket that is attached to a process: its output, its input and its terminal in one connection.
//! `sandbox_api::attach` has its messages.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_api::attach::{
    AttachRefusal, AttachRequest, PING_INTERVAL, SUBPROTOCOL, output_message,
};
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{EventRecord, Problem, ProblemKind, ReadMode, strict};
use sandbox_service::{Events, ServiceError};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::params::{At, ProcessEventParams};
use crate::app::App;
use crate::refusal::Result;
use crate::request::ProcessId;
use crate::websocket::{Closing, Received, Receiver, Sender, WebSocket, WebSocketUpgrade};

/// Refusals that wait to be sent. Then the next message of the client waits too.
const MAX_REFUSALS: usize = 8;

pub(super) async fn attach(
    at: At<ProcessEventParams>,
    upgrade: Result<WebSocketUpgrade>,
    ProcessId(process): ProcessId,
) -> Result<Response> {
    let At { app, subject, sandbox, params } = at;
    let found = app.service.process(&subject, &sandbox, process, Duration::ZERO).await?;
    let upgrade = upgrade?;
    upgrade.speaks(SUBPROTOCOL)?;
    // What comes later is for this process, not for one of its number in another generation.
    let sandbox = SandboxRef { generation: Some(found.generation), ..sandbox };
    let (from, mode) = (params.after, params.mode.unwrap_or(ReadMode::Wait));
    let events = app.service.process_events(&subject, &sandbox, process, from, mode).await?;
    let attached = Attached { app, subject, sandbox, process };
    Ok(upgrade.accept(SUBPROTOCOL, move |socket| attached.serve(socket, events)))
}

/// A client that is attached to a process.
struct Attached {
    app: App,
    subject: Subject,
    sandbox: SandboxRef,
    process: u32,
}

impl Attached {
    async fn serve(self, socket: WebSocket, events: Events) {
        let WebSocket { mut sender, mut receiver } = socket;
        let (refusals, refused) = mpsc::channel(MAX_REFUSALS);
        let why = tokio::select! {
            why = send(&mut sender, events, refused) => why,
            why = self.receive(&mut receiver, refusals) => why,
            () = self.app.stop.cancelled() => Closing::Stopping,
        };
        tracing::debug!(process = self.process, ?why, "a client is not attached any more");
        WebSocket { sender, receiver }.close(why).await;
    }

    /// Does what the client asks for, one message after the other, until it ends.
    async fn receive(&self, receiver: &mut Receiver, refusals: mpsc::Sender<Problem>) -> Closing {
        loop {
            let done = match receiver.next().await {
                Ok(Received::Binary(bytes)) => self.write(bytes).await,
                Ok(Received::Text(text)) => match strict::from_slice(text.as_bytes()) {
                    Ok(request) => self.perform(request).await,
                    Err(mistake) => return Closing::Invalid(mistake.to_string()),
                },
                Err(why) => return why,
            };
            if let Err(error) = done
                && refusals.send(error.problem().clone()).await.is_err()
            {
                return Closing::Gone;
            }
        }
    }

    /// Waits for as long as the process takes nothing: a terminal has no other way to say so.
    async fn write(&self, bytes: Bytes) -> Result<(), ServiceError> {
        let Self { app, subject, sandbox, process } = self;
        loop {
            let write = app.service.write_process_stdin(subject, sandbox, *process, bytes.clone());
            match write.await {
                Err(error) if error.problem().kind == ProblemKind::StdinFull => {}
                written => return written,
            }
        }
    }

    async fn perform(&self, request: AttachRequest) -> Result<(), ServiceError> {
        let Self { app, subject, sandbox, process } = self;
        let service = &app.service;
        match request {
            AttachRequest::Resize(size) => {
                service.resize_process(subject, sandbox, *process, size).await
            }
            AttachRequest::Signal(signal) => {
                service.signal_process(subject, sandbox, *process, signal).await
            }
            AttachRequest::Eof(true) => {
                service.close_process_stdin(subject, sandbox, *process).await
            }
            AttachRequest::Eof(false) => Ok(()),
        }
    }
}

/// Sends the events of the process, and what was refused, until the last event.
async fn send(
    sender: &mut Sender,
    mut events: Events,
    mut refused: mpsc::Receiver<Problem>,
) -> Closing {
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sent = tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => match send_event(sender, &event).await {
                    Ok(()) if event.event.is_end() => return Closing::Ended,
                    sent => sent,
                },
                Some(Err(error)) => return Closing::Failed(error.to_string()),
                None => return Closing::Failed("the sandbox has ended".to_owned()),
            },
            Some(problem) = refused.recv() => send_json(sender, &AttachRefusal { problem }).await,
            _ = pings.tick() => sender.ping().await,
        };
        if let Err(why) = sent {
            return why;
        }
    }
}

async fn send_event(sender: &mut Sender, event: &EventRecord) -> Result<(), Closing> {
    match output_message(event) {
        Some(message) => sender.binary(message).await,
        None => send_json(sender, event).await,
    }
}

async fn send_json(sender: &mut Sender, message: &impl Serialize) -> Result<(), Closing> {
    let text = serde_json::to_string(message)
        .map_err(|_| Closing::Failed("an event cannot be written as JSON".to_owned()))?;
    sender.text(text).await
}
