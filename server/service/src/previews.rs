//! Previews of ports: who may use one is signed, and not stored.
//!
//! A host is `PORT-ID.DOMAIN`, whose requests have a token in a header, or `PORT-ID-TOKEN.DOMAIN` for a public one.
//! Both are valid until a time that is in them.

use std::time::Duration;

use sandbox_api::service::{SandboxRef, SandboxView, Subject, Time};
use sandbox_api::{Ports, Preview, PreviewRequest};
use sandbox_dirfd::{from_hex, hex, is_random_hex};

use crate::config::PreviewConfig;
use crate::error::ServiceError;
use crate::service::Service;

/// How long a preview is valid, if its request does not say it.
const DEFAULT_TTL: Duration = Duration::from_secs(3600);
/// What tokens in a header and in a host are signed for.
const PRIVATE: &str = "preview";
const PUBLIC: &str = "public preview";
/// The bytes of a MAC in a host, a part of which has 63 characters: a port of 5, an id of 24, a time of 8, and this.
const HOST_MAC: usize = 12;
/// The digits of a time in a host.
const HOST_TIME: usize = 8;

/// The host of a preview, without its domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewHost {
    /// The port in the sandbox.
    pub port: u16,
    /// The id of the sandbox.
    pub sandbox: String,
    /// The token of a public one.
    pub token: Option<String>,
}

impl PreviewHost {
    /// Reads the first part of a host: `8080-ID`, or `8080-ID-TOKEN`.
    #[must_use]
    pub fn parse(label: &str) -> Option<Self> {
        let mut parts = label.splitn(3, '-');
        let (port, sandbox) = (parts.next()?, parts.next()?);
        let number: u16 = port.parse().ok().filter(|&number| number > 0)?;
        let is_id = is_random_hex::<12>(sandbox);
        let token = parts.next().map(str::to_owned);
        // Each preview has one host.
        (number.to_string() == port && is_id).then(|| Self {
            port: number,
            sandbox: sandbox.to_owned(),
            token,
        })
    }
}

impl Service {
    /// Where previews are, if anywhere.
    #[must_use]
    pub fn previews(&self) -> Option<&PreviewConfig> {
        self.core.config.previews.as_ref()
    }

    /// Opens a preview of a port. Nothing needs to listen there yet.
    ///
    /// # Errors
    ///
    /// If the service has no previews, or none that are public; if the spec of the sandbox does not list the port.
    pub async fn open_preview(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        port: u16,
        request: PreviewRequest,
    ) -> Result<Preview, ServiceError> {
        let view = self.sandbox(subject, &sandbox.id).await?;
        self.preview(&view, &view.spec.ports, sandbox.generation, port, request)
    }

    /// The same of a sandbox that a front end keeps.
    ///
    /// # Errors
    ///
    /// As of [`open_preview`](Self::open_preview). In a cluster there are none: the other nodes do not know such
    /// a sandbox.
    pub fn open_attached_preview(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        port: u16,
        request: PreviewRequest,
    ) -> Result<Preview, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        if self.core.node.is_some() {
            return Err(ServiceError::no_attached_previews());
        }
        self.preview(&kept.view(), &kept.spec()?.ports, sandbox.generation, port, request)
    }

    fn preview(
        &self,
        view: &SandboxView,
        ports: &Ports,
        generation: Option<u64>,
        port: u16,
        request: PreviewRequest,
    ) -> Result<Preview, ServiceError> {
        let config = self.previews().ok_or_else(ServiceError::no_previews)?;
        if request.public && !config.may_be_public {
            return Err(ServiceError::no_public_previews());
        }
        if let Some(asked) = generation.filter(|&asked| asked != view.generation) {
            return Err(ServiceError::stale_generation(&view.id, asked));
        }
        if !ports.allows(port) {
            return Err(ServiceError::port_not_open(port));
        }
        let ttl = request.ttl_ms.map_or(DEFAULT_TTL, Duration::from_millis);
        let expires_at = self.cluster_time().after(ttl).min(view.expires_at);
        let seconds = expires_at.unix_millis() / 1000;
        let expires_at = Time::from_unix_millis(seconds * 1000);
        let (host, token) = match request.public {
            true => {
                let time = format!("{seconds:0HOST_TIME$x}");
                let mac = self.preview_mac(PUBLIC, &view.id, port, &time);
                (format!("{port}-{}-{time}{}", view.id, hex(&mac[..HOST_MAC])), None)
            }
            false => {
                let time = seconds.to_string();
                let mac = self.preview_mac(PRIVATE, &view.id, port, &time);
                (format!("{port}-{}", view.id), Some(format!("{time}.{}", hex(&mac))))
            }
        };
        self.core.launcher.audit(&view.id, "preview.create", port);
        let PreviewConfig { domain, scheme, port: at, .. } = config;
        let at = at.map(|at| format!(":{at}")).unwrap_or_default();
        Ok(Preview { url: format!("{scheme}://{host}.{domain}{at}/"), token, expires_at })
    }

    /// The subject whose sandbox a request to a preview uses, if its host or its header has a valid token.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn preview_subject(
        &self,
        host: &PreviewHost,
        token: Option<&str>,
    ) -> Result<Option<Subject>, ServiceError> {
        let is_public = self.previews().is_some_and(|config| config.may_be_public);
        let is_valid = match (&host.token, token) {
            (Some(token), _) => is_public && self.is_host_token(host, token),
            (None, Some(token)) => self.is_header_token(host, token),
            (None, None) => false,
        };
        if !is_valid {
            return Ok(None);
        }
        let subject = match self.core.kept.get(&host.sandbox).filter(|kept| kept.attached.is_some())
        {
            Some(kept) => Some(kept.record.subject.clone()),
            None => self.subject_of(&host.sandbox).await?,
        };
        if subject.is_some()
            && let Some(token) = host.token.as_deref().or(token)
            && self.core.previews_used.is_first(token)
        {
            self.core.launcher.audit(&host.sandbox, "preview.use", host.port);
        }
        Ok(subject)
    }

    fn is_host_token(&self, host: &PreviewHost, token: &str) -> bool {
        let Some((time, mac)) = token.split_at_checked(HOST_TIME) else { return false };
        let expires = i64::from_str_radix(time, 16).ok();
        mac.len() == 2 * HOST_MAC && self.is_signed(PUBLIC, host, time, expires, mac)
    }

    fn is_header_token(&self, host: &PreviewHost, token: &str) -> bool {
        let Some((time, mac)) = token.split_once('.') else { return false };
        mac.len() == 64 && self.is_signed(PRIVATE, host, time, time.parse().ok(), mac)
    }

    fn is_signed(
        &self,
        purpose: &str,
        host: &PreviewHost,
        time: &str,
        expires: Option<i64>,
        mac: &str,
    ) -> bool {
        let is_over = |seconds: i64| self.cluster_time().unix_millis() / 1000 >= seconds;
        if expires.is_none_or(is_over) {
            return false;
        }
        let (port, mac) = (host.port.to_string(), from_hex(mac).unwrap_or_default());
        self.signing_key().verify(purpose, &[&host.sandbox, &port, time], &mac)
    }

    fn preview_mac(&self, purpose: &str, sandbox: &str, port: u16, time: &str) -> [u8; 32] {
        self.signing_key().sign(purpose, &[sandbox, &port.to_string(), time])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_a_preview_has_one_form() {
        let id = "0123456789abcdef01234567";
        let parsed = PreviewHost::parse(&format!("8080-{id}")).unwrap();
        assert_eq!((parsed.port, &*parsed.sandbox, parsed.token), (8080, id, None));
        let parsed = PreviewHost::parse(&format!("1-{id}-ab-c")).unwrap();
        assert_eq!(parsed.token.as_deref(), Some("ab-c"));
        for other in [
            "8080".to_owned(),
            format!("0-{id}"),
            format!("08080-{id}"),
            format!("+8080-{id}"),
            format!("65536-{id}"),
            format!("8080-{}", id.to_uppercase()),
            format!("8080-{id}0"),
            format!("8080-{id}.a"),
            format!("a.8080-{id}"),
        ] {
            assert_eq!(PreviewHost::parse(&other), None, "{other}");
        }
        // The longest is a part of a host.
        let longest = format!("65535-{id}-{}", "f".repeat(HOST_TIME + 2 * HOST_MAC));
        assert_eq!(longest.len(), 63);
    }
}
