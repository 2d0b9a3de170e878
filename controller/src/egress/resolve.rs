//! Name resolution.
//!
//! It uses the system's resolver, like every other program of this machine: `/etc/hosts`, split DNS
//! of a VPN and the like apply to the sandbox as to its user. A separate resolver would be a second
//! source of truth, and a large dependency. A lookup blocks a thread for an unbounded time, hence
//! the limits per sandbox and for all sandboxes together; an abandoned lookup counts until it ends.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// The maximum number of concurrent lookups of a sandbox.
const LOOKUPS: usize = 4;
/// The maximum for all sandboxes together: far fewer than tokio's blocking threads.
const ALL_LOOKUPS: usize = 64;
static ALL: Semaphore = Semaphore::const_new(ALL_LOOKUPS);

/// Resolves a name to its addresses, best first. It may never complete.
pub(crate) type Resolve =
    dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

/// The system's resolver, for one sandbox.
pub(crate) fn system_resolver() -> Box<Resolve> {
    let places = Arc::new(Semaphore::new(LOOKUPS));
    Box::new(move |name| lookup(name, places.clone()).boxed())
}

async fn lookup(name: String, places: Arc<Semaphore>) -> io::Result<Vec<IpAddr>> {
    let place = places.acquire_owned().await.map_err(io::Error::other)?;
    let shared = ALL.acquire().await.map_err(io::Error::other)?;
    let found = tokio::task::spawn_blocking(move || {
        let _places = (place, shared);
        // A port is required, and returned unchanged.
        (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect())
    });
    found.await.map_err(io::Error::other)?
}
