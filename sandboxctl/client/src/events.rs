//! The events of an execution or a process, resumed where a connection is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use sandbox_api::EventRecord;
use sandbox_api::process::ProcessState;
use tokio::time::{Instant, sleep};

use super::client::{Call, Client, Stream};
use super::error::{BoxedError, Error};
use super::sandboxes::ProcessRef;
use super::sse::SseParser;

/// How long it may go on that each connection ends before it has brought an event.
const LOST_FOR: Duration = Duration::from_secs(60);
/// Between two connections.
const PAUSE: Duration = Duration::from_millis(200);

/// Whose events they are.
#[derive(Debug, Clone)]
pub enum EventSource {
    /// Those of an execution, by its id.
    Execution(String),
    /// Those of a process of a sandbox.
    Process(ProcessRef),
}

/// The events of an execution or a process, each once, in their order.
#[derive(Debug)]
pub struct Events {
    client: Arc<Client>,
    source: EventSource,
    /// The number of the last one that was given.
    last: u64,
    open: Option<(Stream, SseParser)>,
    ready: VecDeque<EventRecord>,
    has_ended: bool,
    /// Since when no connection has brought anything.
    lost_since: Option<Instant>,
    /// The connection has brought no event so far.
    is_empty: bool,
    /// It had ended before this connection: if no event arrives, none is left.
    is_over: bool,
}

impl EventSource {
    fn path(&self) -> String {
        match self {
            Self::Execution(id) => format!("/v1/executions/{id}/events"),
            // A command line can wait: nothing is to be left out for it.
            Self::Process(process) => format!("{}&mode=wait", process.path("/events")),
        }
    }

    async fn has_ended(&self, client: &Client) -> Result<bool, Error> {
        Ok(match self {
            Self::Execution(id) => client.execution(id).await?.document.is_some(),
            Self::Process(process) => client.process(process).await?.state == ProcessState::Ended,
        })
    }
}

impl Events {
    /// Those after the event with this number.
    pub fn new(client: Arc<Client>, source: EventSource, after: u64) -> Self {
        Self {
            client,
            source,
            last: after,
            open: None,
            ready: VecDeque::new(),
            has_ended: false,
            lost_since: None,
            is_empty: true,
            is_over: false,
        }
    }

    /// The next one; `None` after the last. It may be dropped and called again.
    ///
    /// # Errors
    ///
    /// If the service cannot be reached any more, or sends what is no event.
    pub async fn next(&mut self) -> Result<Option<EventRecord>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = event.seq;
                self.has_ended = event.event.is_end();
                return Ok(Some(event));
            }
            if self.has_ended {
                return Ok(None);
            }
            let Some((stream, parser)) = &mut self.open else {
                let last = (self.last > 0).then(|| self.last.to_string());
                let call = Call::new(Method::GET, self.source.path()).events_after(last.as_deref());
                let stream = self.client.stream(&call).await?;
                self.open = Some((stream, SseParser::default()));
                self.is_empty = true;
                continue;
            };
            match stream.next().await {
                Ok(Some(piece)) => {
                    self.lost_since = None;
                    let events =
                        parser.push(&piece).map_err(|error| self.client.unexpected(error))?;
                    for event in events {
                        let event: EventRecord = serde_json::from_str(&event).map_err(|error| {
                            self.client.unexpected(format!("an event: {error}"))
                        })?;
                        if event.seq > self.ready.back().map_or(self.last, |ready| ready.seq) {
                            self.is_empty = false;
                            self.ready.push_back(event);
                        }
                    }
                }
                // There may be no event after the last one that was given.
                Ok(None) if self.is_empty && self.is_over => self.has_ended = true,
                Ok(None) if self.is_empty && self.source.has_ended(&self.client).await? => {
                    (self.open, self.is_over) = (None, true);
                }
                Ok(None) => self.lose("it was closed before the last event".into()).await?,
                Err(error) => self.lose(error).await?,
            }
        }
    }

    /// Counts a connection that has ended, and waits before the next one.
    async fn lose(&mut self, source: BoxedError) -> Result<(), Error> {
        self.open = None;
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() > LOST_FOR {
            return Err(Error::Lost { server: self.client.server(), was_answered: true, source });
        }
        sleep(PAUSE).await;
        Ok(())
    }
}
