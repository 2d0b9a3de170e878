//! Docker contexts: the current one, and its endpoint. Read-only; the format is that of the Docker
//! CLI.

use std::path::Path;
use std::{fs, io};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The name of the built-in context, which stands for the default socket.
pub(super) const DEFAULT_CONTEXT: &str = "default";

// Only the relevant fields; both files have many more, and newer versions add some.
#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default, rename = "currentContext")]
    current_context: String,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default, rename = "Endpoints")]
    endpoints: Endpoints,
}

#[derive(Deserialize, Default)]
struct Endpoints {
    docker: Option<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default, rename = "Host")]
    host: String,
}

/// The endpoint of a context.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextEndpoint {
    pub host: String,
    /// Whether it has TLS material.
    pub tls: bool,
}

/// The current context of `config.json`; `None` without one, and for the default one.
pub(super) fn current(config_dir: &Path) -> Result<Option<String>, String> {
    let path = config_dir.join("config.json");
    let Some(text) = read(&path)? else { return Ok(None) };
    let config: ConfigFile = serde_json::from_slice(&text)
        .map_err(|error| format!("{} is malformed: {error}", path.display()))?;
    Ok(Some(config.current_context).filter(|name| !name.is_empty() && name != DEFAULT_CONTEXT))
}

/// The endpoint of the context `name`.
pub(super) fn endpoint(config_dir: &Path, name: &str) -> Result<ContextEndpoint, String> {
    let id = sandbox_dirfd::hex(&Sha256::digest(name));
    let path = config_dir.join("contexts/meta").join(&id).join("meta.json");
    let Some(text) = read(&path)? else {
        return Err(format!("there is no context '{name}' in {}", config_dir.display()));
    };
    let meta: Meta = serde_json::from_slice(&text)
        .map_err(|error| format!("{} is malformed: {error}", path.display()))?;
    let host = meta.endpoints.docker.map(|endpoint| endpoint.host).unwrap_or_default();
    if host.is_empty() {
        return Err(format!("the context '{name}' has no docker endpoint"));
    }
    let tls = config_dir.join("contexts/tls").join(&id).join("docker").is_dir();
    Ok(ContextEndpoint { host, tls })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}
