//! Finds Docker's endpoint the same way as the Docker CLI.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::context;
use crate::config::DockerEndpoint;
use crate::error::ConnectError;

const FORWARD: &str = "which sandboxctl does not speak; forward the socket instead: \
                       ssh -L /tmp/docker.sock:/var/run/docker.sock HOST";

/// An endpoint to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A UNIX socket.
    Unix(PathBuf),
    /// `host:port`, without TLS.
    Tcp(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
        }
    }
}

/// An endpoint, and what named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub endpoint: Endpoint,
    /// For people: `--host`, `DOCKER_HOST`, `the context 'x'`, `a default socket`.
    pub why: String,
}

impl Candidate {
    /// Whether it is a socket that does not exist. One that cannot be checked may exist.
    pub fn is_missing(&self) -> bool {
        let Endpoint::Unix(path) = &self.endpoint else { return false };
        let kind = path.metadata().map_err(|error| error.kind());
        matches!(kind, Err(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

/// The endpoints to try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Candidates {
    /// Only this one, because it was named explicitly.
    Named(Candidate),
    /// The default sockets, in order, because none was named.
    Usual(Vec<Candidate>),
}

/// Determines the endpoints to try.
pub(super) fn find(config: &DockerEndpoint) -> Result<Candidates, ConnectError> {
    let set = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    if let Some((host, why)) = &config.host
        && !host.is_empty()
    {
        return named(host, why.clone(), config.env_tls_verify);
    }
    if let Some(host) = set(&config.env_host) {
        return named(&host, "DOCKER_HOST".to_owned(), config.env_tls_verify);
    }
    let (context, by) = match (set(&config.env_context), &config.config_dir) {
        (Some(name), _) => (Some(name), "DOCKER_CONTEXT"),
        (None, Some(dir)) => (
            context::current(dir).map_err(|reason| ConnectError::Context {
                why: "docker's config.json".to_owned(),
                reason,
            })?,
            "the current one",
        ),
        (None, None) => (None, ""),
    };
    match context {
        Some(name) if name != context::DEFAULT_CONTEXT => {
            let why = format!("the context '{name}' ({by})");
            let error = |reason| ConnectError::Context { why: why.clone(), reason };
            let dir = config
                .config_dir
                .as_deref()
                .ok_or_else(|| error("the Docker CLI has no configuration directory".to_owned()))?;
            let endpoint = context::endpoint(dir, &name).map_err(error)?;
            named(&endpoint.host, why.clone(), endpoint.tls)
        }
        _ => Ok(Candidates::Usual(
            config
                .sockets
                .iter()
                .map(|path| Candidate {
                    endpoint: Endpoint::Unix(path.clone()),
                    why: "a default socket".to_owned(),
                })
                .collect(),
        )),
    }
}

// Messages do not repeat the address that is refused: it may contain a password.
fn named(host: &str, why: String, tls: bool) -> Result<Candidates, ConnectError> {
    let refuse =
        |reason: &str| Err(ConnectError::Endpoint { why: why.clone(), reason: reason.to_owned() });
    let endpoint = match host.split_once("://") {
        Some(("unix", path)) if Path::new(path).is_absolute() => Endpoint::Unix(path.into()),
        Some(("unix", _)) => return refuse("the path of the socket is not absolute"),
        Some(("tcp" | "http", address)) => {
            let address = address.trim_end_matches('/');
            if address.contains('@') {
                return refuse(
                    "the address of an engine has no user and no password: tcp://host:port",
                );
            }
            if tls || address.ends_with(":2376") {
                return refuse(&format!("it wants TLS, {FORWARD}"));
            }
            if address.is_empty() || address.contains(['/', '?', '#']) {
                return refuse("expected tcp://HOST:PORT");
            }
            match address.rsplit_once(':') {
                Some((_, port)) if port.parse::<u16>().is_ok() => Endpoint::Tcp(address.to_owned()),
                Some((_, rest)) if !rest.ends_with(']') => {
                    return refuse("its port is not a number up to 65535");
                }
                // Docker's own default port.
                _ => Endpoint::Tcp(format!("{address}:2375")),
            }
        }
        Some(("ssh", _)) => return refuse(&format!("it is over SSH, {FORWARD}")),
        Some((scheme, _)) => return refuse(&format!("'{scheme}://' is not known")),
        // The Docker CLI also accepts host:port without a scheme, but not a path.
        None => return refuse("it is neither unix:///… nor tcp://host:port"),
    };
    Ok(Candidates::Named(Candidate { endpoint, why }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const BUILD_META: &str = r#"{"Name":"build","Metadata":{},
        "Endpoints":{"docker":{"Host":"unix:///run/build.sock","SkipTLSVerify":false}}}"#;

    fn config_dir(current: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("config.json"),
            format!(r#"{{"auths":{{}},"currentContext":"{current}"}}"#),
        )
        .unwrap();
        add_context(dir.path(), "build", BUILD_META);
        dir
    }

    fn add_context(dir: &Path, name: &str, meta: &str) {
        use sha2::{Digest, Sha256};
        let id = sandbox_dirfd::hex(&Sha256::digest(name));
        let folder = dir.join("contexts/meta").join(id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("meta.json"), meta).unwrap();
    }

    fn endpoint(config: &DockerEndpoint) -> Result<String, String> {
        match find(config).map_err(|error| error.to_string())? {
            Candidates::Named(candidate) => {
                Ok(format!("{} by {}", candidate.endpoint, candidate.why))
            }
            Candidates::Usual(candidates) => Ok(candidates
                .iter()
                .map(|candidate| candidate.endpoint.to_string())
                .collect::<Vec<_>>()
                .join(" ")),
        }
    }

    #[test]
    fn endpoint_sources_are_tried_in_dockers_order() {
        let dir = config_dir("build");
        let all = DockerEndpoint {
            host: Some(("unix:///run/flag.sock".into(), "--host".into())),
            env_host: Some("tcp://env:1".into()),
            env_context: Some("build".into()),
            config_dir: Some(dir.path().into()),
            env_tls_verify: false,
            sockets: vec!["/run/a.sock".into(), "/run/b.sock".into()],
        };
        assert_eq!(endpoint(&all).unwrap(), "unix:///run/flag.sock by --host");
        let config = DockerEndpoint { host: None, ..all };
        assert_eq!(endpoint(&config).unwrap(), "tcp://env:1 by DOCKER_HOST");
        let config = DockerEndpoint { env_host: Some(String::new()), ..config };
        assert_eq!(
            endpoint(&config).unwrap(),
            "unix:///run/build.sock by the context 'build' (DOCKER_CONTEXT)"
        );
        let config = DockerEndpoint { env_context: None, ..config };
        assert_eq!(
            endpoint(&config).unwrap(),
            "unix:///run/build.sock by the context 'build' (the current one)"
        );
        let config = DockerEndpoint { env_context: Some("default".into()), ..config };
        assert_eq!(endpoint(&config).unwrap(), "unix:///run/a.sock unix:///run/b.sock");
        let config = DockerEndpoint { env_context: None, config_dir: None, ..config };
        assert_eq!(endpoint(&config).unwrap(), "unix:///run/a.sock unix:///run/b.sock");
    }

    #[test]
    fn a_folder_without_a_configuration_names_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config = DockerEndpoint { config_dir: Some(dir.path().into()), ..Default::default() };
        assert_eq!(endpoint(&config).unwrap(), "");
        for current in ["", "default"] {
            let dir = config_dir(current);
            let config =
                DockerEndpoint { config_dir: Some(dir.path().into()), ..Default::default() };
            assert_eq!(endpoint(&config).unwrap(), "", "{current}");
        }
    }

    #[test]
    fn an_endpoint_that_cannot_be_used_says_why() {
        let dir = config_dir("gone");
        let config = DockerEndpoint { config_dir: Some(dir.path().into()), ..Default::default() };
        assert!(endpoint(&config).unwrap_err().contains("there is no context 'gone'"));
        add_context(dir.path(), "gone", r#"{"Name":"gone","Endpoints":{"kubernetes":{}}}"#);
        assert!(endpoint(&config).unwrap_err().contains("has no docker endpoint"));
        add_context(dir.path(), "gone", "{");
        assert!(endpoint(&config).unwrap_err().contains("malformed"));
        fs::write(dir.path().join("config.json"), "[").unwrap();
        assert!(endpoint(&config).unwrap_err().contains("malformed"));

        for (host, words) in [
            ("ssh://me@there", "over SSH"),
            ("npipe:////./pipe/docker", "'npipe://' is not known"),
            ("/var/run/docker.sock", "neither unix:///"),
            ("unix://relative", "is not absolute"),
            ("tcp://host:2376", "wants TLS"),
            ("tcp://", "expected tcp://HOST:PORT"),
            ("tcp://127.0.0.1:99999", "port"),
            ("127.0.0.1:2375", "tcp://host:port"),
        ] {
            let config =
                DockerEndpoint { host: Some((host.into(), "--host".into())), ..Default::default() };
            let error = endpoint(&config).unwrap_err();
            assert!(error.contains(words), "{host}: {error}");
            assert!(error.contains("--host"), "{host}: {error}");
        }
        let config = DockerEndpoint {
            env_host: Some("tcp://host:1".into()),
            env_tls_verify: true,
            ..Default::default()
        };
        assert!(endpoint(&config).unwrap_err().contains("wants TLS"));
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        for host in [
            "tcp://user:hunter2@127.0.0.1:1",
            "tcp://user:hunter2@127.0.0.1:2376",
            "http://hunter2@127.0.0.1",
            "tcp://127.0.0.1:1/hunter2",
            "tcp://127.0.0.1:1?token=hunter2",
            "https://user:hunter2@127.0.0.1",
            "ssh://user:hunter2@there",
            "unix://user:hunter2@there",
            "user:hunter2@127.0.0.1:1",
        ] {
            for env_tls_verify in [false, true] {
                let env_host = Some(host.into());
                let config = DockerEndpoint { env_host, env_tls_verify, ..Default::default() };
                let error = format!("{:?}", find(&config).unwrap_err());
                assert!(!error.contains("hunter2"), "{host}: {error}");
            }
        }
    }

    #[test]
    fn a_socket_is_missing_only_where_its_file_surely_is() {
        let dir = tempfile::tempdir().unwrap();
        let missing = |endpoint| Candidate { endpoint, why: String::new() }.is_missing();
        let socket = dir.path().join("docker.sock");
        assert!(missing(Endpoint::Unix(socket.clone())));
        assert!(missing(Endpoint::Unix(socket.join("x"))));
        std::os::unix::fs::symlink("nowhere", &socket).unwrap();
        assert!(missing(Endpoint::Unix(socket.clone())), "a link that leads nowhere");
        fs::remove_file(&socket).unwrap();
        fs::write(&socket, "").unwrap();
        assert!(!missing(Endpoint::Unix(socket.clone())), "whatever answers there");
        assert!(missing(Endpoint::Unix(socket.join("x"))), "a file is no folder");
        assert!(!missing(Endpoint::Tcp("host:1".into())));
    }

    #[test]
    fn an_address_without_a_port_gets_the_usual_one() {
        let config = DockerEndpoint {
            host: Some(("tcp://host/".into(), "--host".into())),
            ..Default::default()
        };
        assert_eq!(endpoint(&config).unwrap(), "tcp://host:2375 by --host");
    }
}
