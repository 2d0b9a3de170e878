//! Names to addresses.
//!
//! The system's resolver is asked, as every other program of this machine asks it: `/etc/hosts`,
//! split DNS of a VPN and the like hold for the sandbox as for its user. A resolver of our own would be
//! a second truth, and a large dependency. It blocks a thread for as long as it likes, hence the
//! bounds: of one sandbox, and of all together, whose places a lookup that was given up keeps until
//! it ends.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;

/// Lookups under way at one time, of one sandbox.
const LOOKUPS: usize = 4;
/// And of all together: far less than the threads that tokio has for what blocks.
const ALL_LOOKUPS: usize = 64;
static ALL: Semaphore = Semaphore::const_new(ALL_LOOKUPS);

/// Gives the addresses of names.
#[async_trait]
pub(crate) trait Resolve: Send + Sync {
    /// The addresses of a name, the best first. It may take for ever.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The machine's own resolver.
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
            // A port must be given, and comes back.
            (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect())
        });
        found.await.map_err(io::Error::other)?
    }
}
