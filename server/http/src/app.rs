//! The state of the application: what all handlers share.

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
pub(crate) struct App(Arc<Inner>);

struct Inner {
    service: Service,
    auth: Arc<dyn Authenticate>,
    config: HttpConfig,
    sites: Sites,
    in_flight: InFlight,
    requests: Memory,
    answers: Memory,
    parsers: Parsers,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    openapi: Bytes,
    sessions: Sessions,
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
        Self(Arc::new(Inner {
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

    pub fn service(&self) -> &Service {
        &self.0.service
    }

    pub fn parsers(&self) -> &Parsers {
        &self.0.parsers
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub fn config(&self) -> &HttpConfig {
        &self.0.config
    }

    /// Ends when the server stops: waiting requests must reply with what there is.
    pub fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    pub fn openapi(&self) -> &Bytes {
        &self.0.openapi
    }

    pub fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub fn auth(&self) -> &dyn Authenticate {
        &*self.0.auth
    }

    pub fn sites(&self) -> &Sites {
        &self.0.sites
    }

    /// The requests that are handled now.
    pub fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    /// The memory of bodies.
    pub fn requests(&self) -> &Memory {
        &self.0.requests
    }

    /// The memory of answers.
    pub fn answers(&self) -> &Memory {
        &self.0.answers
    }

    /// The other nodes, in a cluster.
    pub fn peers(&self) -> Option<&Peers> {
        self.0.config.peers.as_ref()
    }

    /// The most bytes of a body.
    pub fn limit(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Small => SMALL_BODY,
            Limit::Request => self.0.config.max_request.as_u64(),
            Limit::Upload => self.0.config.max_upload.as_u64(),
            Limit::Bytes(bytes) | Limit::Stream(bytes) => bytes,
        }
    }
}
