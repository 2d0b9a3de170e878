//! What all handlers have in common.

use std::sync::Arc;

use sandbox_api::service::{SandboxRef, Subject};
use sandbox_service::Service;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::marker::Marker;
use crate::settings::Settings;

/// The front end: a service, its settings, and when it ends. Clones are the same one.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    service: Service,
    settings: Settings,
    stop: CancellationToken,
    /// Held while what E2B's API knows of a sandbox is changed.
    changing: Mutex<()>,
}

/// For which sandbox an envd request is, and whose it is: an extension of every request that reaches envd's
/// handlers. Its token or signature was verified.
#[derive(Debug, Clone)]
pub(crate) struct EnvdCaller {
    pub subject: Subject,
    pub sandbox: SandboxRef,
}

impl App {
    /// A front end of this service, until `stop`.
    #[must_use]
    pub fn new(service: Service, settings: Settings, stop: CancellationToken) -> Self {
        Self(Arc::new(Inner { service, settings, stop, changing: Mutex::default() }))
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.0.service
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// When streams end, because the server does.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Whether the ports of a sandbox need its traffic token.
    pub(crate) fn is_private(&self, marker: &Marker) -> bool {
        marker.is_private || !self.settings().public_ports
    }

    pub(crate) fn changing(&self) -> &Mutex<()> {
        &self.0.changing
    }
}
