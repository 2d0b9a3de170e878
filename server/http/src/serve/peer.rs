//! TLS between the nodes of a cluster: each has a certificate of its own making, and accepts exactly the one
//! whose digest the session of a node has.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use sandbox_auth::Receiver;
use sha2::{Digest as _, Sha256};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature,
};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in all certificates: what tells nodes apart is the digest.
const NAME: &str = "sandboxctl-node";
/// A connection with nothing to send is probed after this time, and as often, until the node is given up.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// What is read of a socket at a time: TLS alone reads 4 KiB, a fourth of one of its records.
const READ_BYTES: usize = 64 << 10;

/// What a node shows to the others: a key and a certificate that it made when it started.
pub struct PeerIdentity {
    digest: Receiver,
    config: Arc<ServerConfig>,
}

/// No certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum PeerIdentityError {
    /// Its making failed.
    #[error("cannot make the certificate of this node")]
    Make(#[source] rcgen::Error),
    /// The library of TLS does not take it.
    #[error("the certificate of this node cannot be used")]
    Unusable(#[source] RustlsError),
}

impl PeerIdentity {
    /// Makes a key and a certificate.
    ///
    /// # Errors
    ///
    /// [`PeerIdentityError`].
    pub fn generate() -> Result<Self, PeerIdentityError> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
        let rcgen::CertifiedKey { cert, signing_key } = made.map_err(PeerIdentityError::Make)?;
        let certificate = cert.der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let digest = digest_of(&certificate);
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .and_then(|it| it.with_no_client_auth().with_single_cert(vec![certificate], key))
            .map_err(PeerIdentityError::Unusable)?;
        Ok(Self { digest, config: Arc::new(config) })
    }

    /// The SHA-256 of its certificate, for its session.
    #[must_use]
    pub const fn digest(&self) -> Receiver {
        self.digest
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.config.clone().into()
    }
}

/// The way to one node: its address, and what its certificate must be.
pub(crate) struct PeerAddress {
    address: String,
    connector: TlsConnector,
}

impl PeerAddress {
    pub fn new(address: &str, certificate: Receiver) -> Result<Self, RustlsError> {
        let provider = provider();
        let verifier = ExactCertificate {
            digest: certificate,
            algorithms: provider.signature_verification_algorithms,
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        // Each connection shows the certificate.
        config.resumption = Resumption::disabled();
        Ok(Self { address: address.to_owned(), connector: Arc::new(config).into() })
    }

    /// A connection, which is given up some seconds after the node or the network is gone.
    pub async fn connect(&self) -> io::Result<TlsStream<BufReader<TcpStream>>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        give_up_early(&stream)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        self.connector.connect(name, BufReader::with_capacity(READ_BYTES, stream)).await
    }
}

fn give_up_early(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    let unacknowledged = PROBE_INTERVAL * (PROBES + 1);
    sockopt::set_tcp_user_timeout(stream, unacknowledged.as_millis() as u32)?;
    Ok(())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn digest_of(certificate: &CertificateDer<'_>) -> Receiver {
    Sha256::digest(certificate).into()
}

/// Accepts one certificate, whatever is in it, from who has its key.
#[derive(Debug)]
struct ExactCertificate {
    digest: Receiver,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ExactCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        match digest_of(end_entity) == self.digest {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::rustls::version::TLS12;

    use super::*;

    /// Shows this identity to all who connect, and says hello.
    async fn node(identity: PeerIdentity) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(mut stream) = identity.acceptor().accept(stream).await {
                    _ = stream.write_all(b"hello").await;
                    _ = stream.shutdown().await;
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn node_with_the_certificate_of_its_session_is_accepted_and_no_other() {
        let identity = PeerIdentity::generate().unwrap();
        let (own, other) = (identity.digest(), PeerIdentity::generate().unwrap().digest());
        assert_ne!(own, other);
        let address = node(identity).await;
        let mut stream = PeerAddress::new(&address, own).unwrap().connect().await.unwrap();
        let mut hello = String::new();
        stream.read_to_string(&mut hello).await.unwrap();
        assert_eq!(hello, "hello");
        let refused = PeerAddress::new(&address, other).unwrap().connect().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
    }

    #[tokio::test]
    async fn older_versions_of_tls_are_refused() {
        let address = node(PeerIdentity::generate().unwrap()).await;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .with_root_certificates(tokio_rustls::rustls::RootCertStore::empty())
            .with_no_client_auth();
        let stream = TcpStream::connect(&address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let refused = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap_err();
        assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
    }
}
