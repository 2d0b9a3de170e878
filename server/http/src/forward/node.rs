//! The connections to one node.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sandbox_auth::Receiver;
use tokio::time::{Instant, timeout};

use crate::lock;
use crate::serve::peer::PeerAddress;

/// How long a connection may take, with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most connections that are kept for later requests.
const MAX_IDLE: usize = 32;
/// How long they are: less than the other side keeps them.
const MAX_IDLE_TIME: Duration = Duration::from_secs(60);

/// How long what a look found is good for everybody who waits for the node.
const MAX_LOOK_AGE: Duration = Duration::from_secs(4);

/// The connections to one node, over each of which one request is sent at a time.
pub(super) struct NodeConnections {
    address: PeerAddress,
    idle: Arc<Mutex<Vec<IdleConnection>>>,
    /// Whether it could be connected to, and when.
    looked: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

struct IdleConnection {
    sender: SendRequest<Body>,
    since: Instant,
}

/// What became of a request.
pub(super) enum Sent {
    /// The head of its answer came.
    Answered(Response<Incoming>),
    /// The node cannot be reached, and nothing of the request was sent.
    Unsent(Request<Body>, Box<dyn Error + Send + Sync>),
    /// The connection failed meanwhile: what the node did is not known.
    Lost(Box<dyn Error + Send + Sync>),
}

impl NodeConnections {
    /// To the node at this address that has this certificate; none is open yet.
    pub fn new(address: &str, certificate: Receiver) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let address = PeerAddress::new(address, certificate)?;
        Ok(Self { address, idle: Arc::default(), looked: tokio::sync::Mutex::default() })
    }

    /// Sends a request over an idle connection, or a new one.
    pub async fn send(&self, mut request: Request<Body>) -> Sent {
        // Some may have been closed by the other side at this moment.
        while let Some(mut sender) = self.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => return self.answered(sender, response),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Sent::Lost(error.into_error().into()),
                },
            }
        }
        let mut sender = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(error)) => return Sent::Unsent(request, error),
            Err(_) => return Sent::Unsent(request, "it did not answer in time".into()),
        };
        match sender.try_send_request(request).await {
            Ok(response) => self.answered(sender, response),
            Err(mut error) => match error.take_message() {
                Some(unsent) => Sent::Unsent(unsent, error.into_error().into()),
                None => Sent::Lost(error.into_error().into()),
            },
        }
    }

    /// Whether it can be connected to now. If not, open connections are of no use either: lost packets
    /// are not reported.
    pub async fn is_reachable(&self) -> bool {
        let mut looked = self.looked.lock().await;
        if let Some((at, found)) = *looked
            && at.elapsed() < MAX_LOOK_AGE
        {
            return found;
        }
        let connected = timeout(CONNECT_TIMEOUT, self.address.connect()).await;
        let is_reachable = matches!(connected, Ok(Ok(_)));
        if !is_reachable {
            lock(&self.idle).clear();
        }
        *looked = Some((Instant::now(), is_reachable));
        is_reachable
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Box<dyn Error + Send + Sync>> {
        let stream = self.address.connect().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends when its sender and its answer do, or with its upgrade.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    /// The connection is kept once its answer has been read to the end.
    fn answered(&self, mut sender: SendRequest<Body>, response: Response<Incoming>) -> Sent {
        let idle = self.idle.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let (mut idle, since) = (lock(&idle), Instant::now());
                if idle.len() < MAX_IDLE {
                    idle.push(IdleConnection { sender, since });
                }
            }
        });
        Sent::Answered(response)
    }

    /// The one that was used last.
    fn take_idle(&self) -> Option<SendRequest<Body>> {
        let mut idle = lock(&self.idle);
        idle.retain(|it| it.sender.is_ready() && it.since.elapsed() < MAX_IDLE_TIME);
        idle.pop().map(|it| it.sender)
    }
}
