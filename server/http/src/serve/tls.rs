//! TLS: certificates that can be read again while the server runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sandbox_auth::{KeyFileError, read_private};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::{self, ServerConfig};

use super::peer::PeerIdentity;

/// The protocols that are offered, by their names in ALPN.
pub(super) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The certificate that a server shows over TCP.
pub(crate) enum Certificate {
    /// From files.
    Files(Arc<Tls>),
    /// That of a node.
    Node(Arc<PeerIdentity>),
}

impl Certificate {
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        match self {
            Self::Files(tls) => tls.acceptor(),
            Self::Node(identity) => identity.acceptor(),
        }
    }
}

/// A certificate and its key, from files.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: pem::Error,
    },
    /// The key cannot be read, or others can read it.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The file has no certificate.
    #[error("{} has no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The certificate and the key do not fit, or are of an unknown kind.
    #[error("the certificate cannot be used")]
    Unusable(#[source] rustls::Error),
}

impl TlsError {
    /// A suggested next step.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        const FILES: &str = "--tls-cert is a chain in PEM, the server's own certificate first; \
                             --tls-key its private key in PEM";
        match self {
            Self::Key(error) => match error.hint() {
                Some(hint) => hint,
                None => FILES,
            },
            Self::Read { .. } | Self::NoCertificate { .. } => FILES,
            Self::Unusable(_) => "the key must be that of the first certificate of the chain",
        }
    }
}

impl Tls {
    /// Reads a certificate chain and its private key, both PEM. Only this user, or root, may be
    /// able to read the key.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), config })
    }

    /// Reads both files again. Connections that are open keep what they have.
    ///
    /// # Errors
    ///
    /// [`TlsError`]; then the old ones stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.certificate, &self.key)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Read { path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(failed(certificate))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate.to_owned() });
    }
    let key = PrivateKeyDer::from_pem_slice(&read_private(key)?).map_err(failed(key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}
