//! Name resolution.
//!
//! It uses the system's resolver, like every other program of this machine: `/etc/hosts`, split DNS
//! of a VPN and the like apply to the sandbox as to its user. A separate resolver would be a second
//! source of truth, and a large dependency. A lookup blocks a thread for an unbounded time, hence
//! the limits per sandbox and for all sandboxes together; an abandoned lookup counts until it ends.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;

/// The maximum number of concurrent lookups of a sandbox.
const LOOKUPS: usize = 4;
/// The maximum for all sandboxes together: far fewer than tokio's blocking threads.
const ALL_LOOKUPS: usize = 64;
static ALL: Semaphore = Semaphore::const_new(ALL_LOOKUPS);

/// Resolves names to addresses.
#[async_trait]
pub(crate) trait Resolve: Send + Sync {
    /// The addresses of a name, best first. It may never complete.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
pub(crate) struct SystemResolver {
    places: Arc<Semaphore>,
}

impl SystemResolver {
    pub fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(LOOKUPS)) }
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let place = self.places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let shared = ALL.acquire().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let found = tokio::task::spawn_blocking(move || {
            let _places = (place, shared);
            // A port is required, and returned unchanged.
            (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect())
        });
        found.await.map_err(io::Error::other)?
    }
}
