//! The certificate authority of one sandbox. Its key is in memory only, and its certificate is good for
//! the hosts of the sandbox alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::{ALPN, SetupError, provider};

/// How long the certificates are valid: longer than any sandbox lives. Clocks of programs may be behind.
const VALID: Duration = Duration::from_secs(366 * 24 * 3600);
const EARLIER: Duration = Duration::from_secs(24 * 3600);

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The key of every host's certificate.
    key: KeyPair,
    pub certificate: CertificateDer<'static>,
}

impl Authority {
    /// One for these hosts: names, and with a dot before it all names below one.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Result<Self, SetupError> {
        let mut params = dated(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "sandboxctl: hosts of this sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let permitted_subtrees = hosts.into_iter().map(GeneralSubtree::DnsName).collect();
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { issuer: Issuer::new(params, key), key: KeyPair::generate()?, certificate })
    }

    /// Its certificate, as PEM.
    pub fn pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>();
        let lines = lines.join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
    }

    /// TLS as this host has it.
    pub fn server(&self, host: &str) -> Result<Arc<ServerConfig>, SetupError> {
        let certificate = self.leaf(host)?;
        let key = PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Its key is another one for each sandbox, and a connection is cheap.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// The certificate of this host.
    pub fn leaf(&self, host: &str) -> Result<CertificateDer<'static>, rcgen::Error> {
        let mut params = dated(vec![host.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "sandboxctl");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(&self.key, &self.issuer)?.der().clone())
    }
}

fn dated(names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = SystemTime::now();
    params.not_before = (now - EARLIER).into();
    params.not_after = (now + VALID).into();
    Ok(params)
}
