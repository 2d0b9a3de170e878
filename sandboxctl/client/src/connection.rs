//! One connection to a service: TCP, TLS or a unix socket, and HTTP/1.1 on it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::address::{Security, ServerAddress};
use super::error::Error;

/// How long it may take to connect, encryption included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there already.
pub fn whole(bytes: Bytes) -> RequestBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// What HTTP runs on.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection, which serves one request after another.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<RequestBody>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects. These certificates are trusted, or else those that this machine trusts.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], [`Error::Tls`] or [`Error::OtherProtocol`].
    pub async fn open(
        address: &ServerAddress,
        trusted: Option<&[CertificateDer<'static>]>,
    ) -> Result<Self, Error> {
        let connect = |source| Error::Connect { server: address.to_string(), source };
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, transport(address, trusted)).await;
        let transport = opened.unwrap_or_else(|_| Err(connect(io::ErrorKind::TimedOut.into())))?;
        let (sender, connection) = http1::handshake(TokioIo::new(transport))
            .await
            .map_err(|error| connect(io::Error::other(error)))?;
        // An error of the connection is that of the request that is under way. One that becomes a
        // WebSocket is its owner's from then on.
        let driver = tokio::spawn(async move { _ = connection.with_upgrades().await });
        Ok(Self { sender, driver })
    }

    /// Whether it can serve another request.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request, and waits for the head of its response.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

async fn transport(
    address: &ServerAddress,
    trusted: Option<&[CertificateDer<'static>]>,
) -> Result<Box<dyn Transport>, Error> {
    let server = || address.to_string();
    let connect = |source| Error::Connect { server: server(), source };
    match address {
        ServerAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(connect)?;
            Ok(Box::new(stream))
        }
        ServerAddress::Tcp { security, host, port, .. } => {
            let stream = TcpStream::connect((&**host, *port)).await.map_err(connect)?;
            // A request is one write, and the next one waits for its response.
            stream.set_nodelay(true).map_err(connect)?;
            if *security == Security::Plain {
                return Ok(Box::new(stream));
            }
            let tls = |source| Error::Tls { server: server(), source };
            let name = ServerName::try_from(host.clone())
                .map_err(|error| tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
            let connector = TlsConnector::from(Arc::new(tls_config(trusted).map_err(tls)?));
            match connector.connect(name, stream).await {
                Ok(stream) => Ok(Box::new(stream)),
                Err(error) if is_no_tls(&error) => Err(Error::other_protocol(address)),
                Err(error) => Err(tls(error)),
            }
        }
    }
}

/// Whether the reply to a handshake is not TLS.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// With the certificates that are trusted; those of this machine are read only if they count.
fn tls_config(trusted: Option<&[CertificateDer<'static>]>) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let (added, why) = match trusted {
        Some(trusted) => (roots.add_parsable_certificates(trusted.iter().cloned()).0, None),
        None => {
            let found = rustls_native_certs::load_native_certs();
            (roots.add_parsable_certificates(found.certs).0, found.errors.into_iter().next())
        }
    };
    if added == 0 {
        let why = why.map(|error| format!(": {error}")).unwrap_or_default();
        return Err(io::Error::other(format!("there is no certificate to trust{why}")));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
