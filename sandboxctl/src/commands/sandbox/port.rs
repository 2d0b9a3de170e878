//! `sandbox port`: ports of this machine that lead to ports of a sandbox.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::Context;
use super::find;
use crate::cli::sandboxes::PortPair;
use crate::error::Error;
use crate::remote::{self, Client};

/// What is said of connections that failed, before the next ones wait.
const MAX_FAILURES: usize = 16;

/// After a connection that cannot be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Forwards connections until it is dropped.
pub async fn forward(
    context: &Context<'_>,
    client: &Arc<Client>,
    sandbox: &str,
    pairs: &[PortPair],
    bind: IpAddr,
) -> Result<u8, Error> {
    let id: Arc<str> = find(client, sandbox).await?.id.into();
    let (failed, mut failures) = mpsc::channel(MAX_FAILURES);
    let mut listening = JoinSet::new();
    for &PortPair { port, local } in pairs {
        let at = SocketAddr::new(bind, local);
        let refused = |source| Error::System { what: at.to_string(), source };
        let listener = TcpListener::bind(at).await.map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        context.output.text(&format!("{bound} -> {port}\n"))?;
        let listener = Forwarded { listener, client: client.clone(), id: id.clone(), port };
        listening.spawn(listener.serve(failed.clone()));
    }
    drop(failed);
    while let Some((port, error)) = failures.recv().await {
        context.output.notice(&format!("port {port}: {error}"));
    }
    Ok(0)
}

/// A port of this machine.
struct Forwarded {
    listener: TcpListener,
    client: Arc<Client>,
    id: Arc<str>,
    port: u16,
}

impl Forwarded {
    /// Accepts connections, each of which has one to the sandbox. They end with this.
    async fn serve(self, failed: mpsc::Sender<(u16, remote::Error)>) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let Ok((local, _)) = accepted else {
                // Its peer is gone, or there are too many files open: others end meanwhile.
                sleep(PAUSE).await;
                continue;
            };
            let (client, id, failed) = (self.client.clone(), self.id.clone(), failed.clone());
            let port = self.port;
            connections.spawn(async move {
                if let Err(error) = join(local, &client, &id, port).await {
                    _ = failed.send((port, error)).await;
                }
            });
        }
    }
}

/// Joins a connection with one to the sandbox, until both have ended.
async fn join(
    mut local: TcpStream,
    client: &Client,
    id: &str,
    port: u16,
) -> Result<(), remote::Error> {
    let mut inside = client.connect_port(id, port).await?;
    _ = local.set_nodelay(true);
    // How it ends is for the two that speak.
    _ = copy_bidirectional(&mut local, &mut inside).await;
    Ok(())
}
