//! The address of a service, as `--server` gives it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;

/// Where a service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// `http://…` or `https://…`.
    Tcp {
        /// Whether the connection is encrypted.
        security: Security,
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// The host and the port as they are in the header `Host`.
        authority: String,
        /// What precedes every path; empty or beginning with a slash.
        prefix: String,
    },
    /// `unix:PATH`.
    Unix(PathBuf),
}

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// `http`.
    Plain,
    /// `https`.
    Tls,
}

const SCHEME: &str = "expected http://HOST, https://HOST or unix:PATH";
const USER: &str =
    "it has a user or a password; a token is read from SANDBOXCTL_TOKEN or --token-file";

/// A text that is not an address is not repeated: it may have a password.
impl FromStr for ServerAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("there is no path after unix:"),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let uri: Uri = text.parse().map_err(|_| SCHEME)?;
        let security = match uri.scheme_str() {
            Some("http") => Security::Plain,
            Some("https") => Security::Tls,
            _ => return Err(SCHEME),
        };
        let authority = uri.authority().ok_or(SCHEME)?;
        if authority.as_str().contains('@') {
            return Err(USER);
        }
        if uri.query().is_some() || text.contains('#') {
            return Err("it has a query");
        }
        let default = match security {
            Security::Plain => 80,
            Security::Tls => 443,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(SCHEME);
        }
        Ok(Self::Tcp {
            security,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(default),
            authority: authority.as_str().to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl ServerAddress {
    /// The header `Host` of its requests.
    pub fn authority(&self) -> &str {
        match self {
            Self::Tcp { authority, .. } => authority,
            Self::Unix(_) => "localhost",
        }
    }

    /// What precedes every path.
    pub fn prefix(&self) -> &str {
        match self {
            Self::Tcp { prefix, .. } => prefix,
            Self::Unix(_) => "",
        }
    }

    /// The same address with the other scheme: `https` for `http`.
    pub fn by_other_scheme(&self) -> String {
        let shown = self.to_string();
        match self {
            Self::Tcp { security: Security::Plain, .. } => shown.replacen("http://", "https://", 1),
            Self::Tcp { security: Security::Tls, .. } => shown.replacen("https://", "http://", 1),
            Self::Unix(_) => shown,
        }
    }

    /// Whether what is sent there can be read on its way: it leaves this machine unencrypted.
    pub fn is_exposed(&self) -> bool {
        match self {
            Self::Tcp { security: Security::Plain, host, .. } => match host.parse::<IpAddr>() {
                Ok(address) => !address.is_loopback(),
                Err(_) => host != "localhost" && !host.ends_with(".localhost"),
            },
            Self::Tcp { security: Security::Tls, .. } | Self::Unix(_) => false,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { security, authority, prefix, .. } => {
                let scheme = match security {
                    Security::Plain => "http",
                    Security::Tls => "https",
                };
                write!(formatter, "{scheme}://{authority}{prefix}")
            }
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_url_or_a_socket() {
        let tcp = |security, host: &str, port, authority: &str, prefix: &str| {
            let (host, authority, prefix) = (host.into(), authority.into(), prefix.into());
            ServerAddress::Tcp { security, host, port, authority, prefix }
        };
        use Security::{Plain, Tls};
        for (text, address) in [
            ("http://127.0.0.1:8470", tcp(Plain, "127.0.0.1", 8470, "127.0.0.1:8470", "")),
            ("http://[::1]:1/", tcp(Plain, "::1", 1, "[::1]:1", "")),
            ("https://example.org/a/b/", tcp(Tls, "example.org", 443, "example.org", "/a/b")),
            ("HTTP://example.org", tcp(Plain, "example.org", 80, "example.org", "")),
            ("unix:/run/s.sock", ServerAddress::Unix("/run/s.sock".into())),
            ("unix:///run/s.sock", ServerAddress::Unix("/run/s.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for (text, error) in [
            ("", SCHEME),
            ("localhost:8470", SCHEME),
            ("example.org", SCHEME),
            ("ftp://example.org", SCHEME),
            ("http://", SCHEME),
            ("http://me:hunter2@example.org", USER),
            ("http://example.org/?token=hunter2", "it has a query"),
            ("unix:", "there is no path after unix:"),
        ] {
            assert_eq!(text.parse::<ServerAddress>(), Err(error), "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn only_unencrypted_requests_to_other_machines_are_exposed() {
        let other = |text: &str| text.parse::<ServerAddress>().unwrap().by_other_scheme();
        assert_eq!(other("http://[::1]:1"), "https://[::1]:1");
        assert_eq!(other("https://example.org/a/"), "http://example.org/a");
        for (text, is_exposed) in [
            ("http://127.0.0.1", false),
            ("http://[::1]", false),
            ("http://localhost", false),
            ("http://10.0.0.1", true),
            ("http://example.org", true),
            ("https://example.org", false),
            ("unix:/s", false),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.is_exposed(), is_exposed, "{text}");
            assert_eq!(address.to_string(), text);
        }
    }
}
