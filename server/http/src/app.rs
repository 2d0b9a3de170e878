//! The state of the application: what all handlers share.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use sandbox_service::Service;
use tokio_util::sync::CancellationToken;

use crate::access::{Authenticate, InFlight, Sites};
use crate::config::HttpConfig;
use crate::forward::peers::Peers;
use crate::limit::Limit;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::request::json::Parsers;
use crate::session::Sessions;

/// Bodies of a few members.
const SMALL_BODY: u64 = 64 << 10;

/// The state of all handlers.
#[derive(Clone)]
pub(crate) struct App(Arc<AppState>);

pub(crate) struct AppState {
    pub service: Service,
    pub auth: Arc<dyn Authenticate>,
    pub config: HttpConfig,
    pub sites: Sites,
    /// The requests that are handled now.
    pub in_flight: InFlight,
    /// The memory of bodies.
    pub requests: Memory,
    /// The memory of answers.
    pub answers: Memory,
    pub parsers: Parsers,
    pub metrics: Arc<Metrics>,
    /// Ends when the server stops: waiting requests must reply with what there is.
    pub stop: CancellationToken,
    pub openapi: Bytes,
    pub sessions: Sessions,
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl App {
    pub fn new(
        config: HttpConfig,
        service: Service,
        auth: Arc<dyn Authenticate>,
        stop: CancellationToken,
        document: &serde_json::Value,
    ) -> Self {
        let mut openapi = serde_json::to_vec_pretty(document).unwrap_or_default();
        openapi.push(b'\n');
        Self(Arc::new(AppState {
            sites: Sites::new(&config.hosts, &config.origins),
            in_flight: InFlight::new(config.max_requests, config.max_requests_of_a_subject),
            requests: Memory::new(config.body_memory.as_u64()),
            answers: Memory::new(config.body_memory.as_u64()),
            parsers: Parsers::default(),
            metrics: Arc::new(Metrics::new(service.clone())),
            openapi: openapi.into(),
            sessions: Sessions::new(service.signing_key()),
            service,
            auth,
            config,
            stop,
        }))
    }

    /// The other nodes, in a cluster.
    pub fn peers(&self) -> Option<&Peers> {
        self.config.peers.as_ref()
    }

    /// The most bytes of a body.
    pub fn limit(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Small => SMALL_BODY,
            Limit::Request => self.config.max_request.as_u64(),
            Limit::Upload => self.config.max_upload.as_u64(),
            Limit::Bytes(bytes) | Limit::Stream(bytes) => bytes,
        }
    }
}
