//! The HTTP API of a service.
//!
//! One table of routes makes the router, the OpenAPI document and the tests of all routes. The
//! [`Service`] decides and does; [`Authenticate`] says who asks. Every connection is bounded in what it
//! may send, take, hold and wait for.

#![forbid(unsafe_code)]

mod access;
mod app;
mod config;
mod counts;
mod forward;
mod here;
mod limit;
mod lists;
mod memory;
mod metrics;
mod mount;
mod openapi;
mod previews;
mod proxy;
mod refusal;
mod request;
mod response;
mod route;
mod router;
mod routes;
mod serve;
mod session;
mod websocket;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{Extension, Router};
use sandbox_service::Service;
use tokio_util::sync::CancellationToken;

pub use access::{
    AccessDecision, Audit, Authenticate, Caller, Peer, Scope, Sites, Unauthenticated,
};
pub use config::{HttpConfig, ResourceMetadata};
pub use forward::create::NewSandbox;
pub use forward::peers::Peers;
pub use forward::places::Places;
pub use memory::Held as HeldMemory;
pub use mount::{Admit, Admitted, ByHost, Mount, MountAccess, with_path};
pub use proxy::{Guard, HostHeader, ProxyError, ProxyOptions, proxy};
pub use refusal::Refusal;
pub use request::id::instance;
pub use request::media_type;
pub use routes::{ContentRange, content_range};
pub use serve::{
    ConnectionLimits, Endpoint, InvalidEndpoint, ListenError, Listener, PeerIdentity,
    PeerIdentityError, Tls, TlsError,
};

use crate::access::FromNode;
use crate::app::App;
use crate::serve::{Certificate, Server};

/// Locks a mutex. What a thread that panicked has left in it is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a server stops.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// No more connections and requests; waiting requests get what there is.
    pub stop: CancellationToken,
    /// Connections that are still open are dropped.
    pub kill: CancellationToken,
}

/// The API as a server.
pub struct Http {
    app: App,
    router: Router,
    shutdown: Shutdown,
}

impl Http {
    /// The API over this service, and what is mounted next to it.
    #[must_use]
    pub fn new(
        config: HttpConfig,
        service: Service,
        auth: Arc<dyn Authenticate>,
        mounts: Vec<Mount>,
        shutdown: Shutdown,
    ) -> Self {
        let stop = shutdown.stop.clone();
        let app = App::new(config, service, auth, stop, &openapi_document());
        let router = router::router(&app, mounts);
        Self { app, router, shutdown }
    }

    /// Its router, for a server of the caller's own. Requests need the [`Peer`] among their
    /// extensions.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// A code that signs a page in once, within ten minutes, as the caller with this token.
    #[must_use]
    pub fn sign_in_code(&self, token: &str) -> String {
        self.app.sessions.issue_code(token)
    }

    /// Says how many connections are open, whenever it is asked.
    pub fn connections(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        let metrics = Arc::clone(&self.app.metrics);
        move || metrics.open_connections()
    }

    /// Serves what the listeners accept, over TLS where TCP has a certificate. Returns after
    /// [`Shutdown::stop`], when every connection has ended.
    pub async fn serve(self, listeners: Vec<Listener>, tls: Option<Arc<Tls>>) {
        let limits = self.app.config.connections;
        let server = self.server(self.router.clone(), tls.map(Certificate::Files), limits);
        server.run(listeners).await;
    }

    /// Serves what the other [nodes](HttpConfig::peers) of a cluster send here, and nothing else. Returns as
    /// [`serve`](Self::serve).
    pub fn serve_peers(&self, listener: Listener) -> impl Future<Output = ()> + use<> {
        let router = self.router.clone().layer(Extension(FromNode));
        let certificate = self.app.peers().map(|it| Certificate::Node(it.identity().clone()));
        // Each node is one address.
        let connections = self.app.config.connections.connections;
        let limits = ConnectionLimits { connections, of_an_address: connections };
        let server = certificate.map(|it| self.server(router, Some(it), limits));
        async move {
            if let Some(server) = server {
                server.run(vec![listener]).await;
            }
        }
    }

    fn server(&self, router: Router, tls: Option<Certificate>, limits: ConnectionLimits) -> Server {
        let Shutdown { stop, kill } = self.shutdown.clone();
        Server { router, tls, limits, metrics: Arc::clone(&self.app.metrics), stop, kill }
    }
}

/// The OpenAPI document, as `/v1/openapi.json` gives it.
#[must_use]
pub fn openapi_document() -> serde_json::Value {
    openapi::document(&routes::table())
}
