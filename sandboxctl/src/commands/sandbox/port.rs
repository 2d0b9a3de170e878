//! `sandbox port`: ports of this machine that lead to ports of a sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use sandbox_api::ErrorKind;
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

/// How often it looks whether the sandbox is still there, which is no use of it.
const LOOK: Duration = Duration::from_secs(2);

/// Forwards connections until it is dropped, or the sandbox is gone.
pub async fn forward(
    context: &Context<'_>,
    client: &Arc<Client>,
    sandbox: &str,
    pairs: &[PortPair],
    bind: IpAddr,
) -> Result<u8, Error> {
    let found = find(client, sandbox).await?;
    if let Some(pair) = pairs.iter().find(|pair| !found.spec.ports.allows(pair.port)) {
        return Err(not_listed(pair.port).into());
    }
    let id: Arc<str> = found.id.into();
    let (failed, mut failures) = mpsc::channel(MAX_FAILURES);
    let mut listening = JoinSet::new();
    for &PortPair { port, local } in pairs {
        let at = SocketAddr::new(bind, local);
        let refused = |source| refused(at, port, source);
        let listener = TcpListener::bind(at).await.map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        context.output.text(&format!("{bound} -> {port}\n"))?;
        listening.spawn(serve(listener, client.clone(), id.clone(), port, failed.clone()));
    }
    drop(failed);
    loop {
        tokio::select! {
            Some((port, error)) = failures.recv() => {
                context.output.notice(&format!("port {port}: {error}"));
            }
            () = sleep(LOOK) => match client.find_sandbox(&id).await {
                Err(error) if error.is_missing() => return Err(error.into()),
                // Its service may be back before the next connection.
                Ok(_) | Err(_) => {}
            },
        }
    }
}

/// As a service refuses a connection, in the words of the command line.
fn not_listed(port: u16) -> remote::Error {
    let why = format!("the sandbox's spec does not list port {port}");
    let hint = "`--port` names the ports of a sandbox when it is created".to_owned();
    remote::Error::refusal(StatusCode::FORBIDDEN, ErrorKind::Policy, why, Some(hint))
}

/// Nothing can listen at an address.
fn refused(at: SocketAddr, port: u16, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::AddrInUse => Error::usage("PORT:LOCAL", format!("{at} is already in use"))
            .with_hint(format!("{port}:0 takes a free port, and {port}:LOCAL another one")),
        io::ErrorKind::AddrNotAvailable => {
            Error::usage("--bind", format!("{} is not an address of this machine", at.ip()))
        }
        _ => Error::System { what: at.to_string(), source },
    }
}

/// Accepts connections, each of which has one to the sandbox. They end with this.
async fn serve(
    listener: TcpListener,
    client: Arc<Client>,
    id: Arc<str>,
    port: u16,
    failed: mpsc::Sender<(u16, remote::Error)>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((local, _)) = accepted else {
            // Its peer is gone, or there are too many files open: others end meanwhile.
            sleep(PAUSE).await;
            continue;
        };
        let (client, id, failed) = (client.clone(), id.clone(), failed.clone());
        connections.spawn(async move {
            if let Err(error) = join(local, &client, &id, port).await {
                _ = failed.send((port, error)).await;
            }
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_is_taken_names_what_to_write_in_its_place() {
        let at = SocketAddr::from(([127, 0, 0, 1], 8000));
        let error = refused(at, 80, io::ErrorKind::AddrInUse.into());
        assert_eq!(
            error.to_text(),
            "PORT:LOCAL: 127.0.0.1:8000 is already in use\n\
             hint: 80:0 takes a free port, and 80:LOCAL another one"
        );
        let error = refused(at, 80, io::ErrorKind::AddrNotAvailable.into());
        assert_eq!(error.to_text(), "--bind: 127.0.0.1 is not an address of this machine");
        assert_eq!(Error::from(not_listed(80)).exit_code(), 121);
    }
}
