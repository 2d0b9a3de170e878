//! Selects an engine, and finds the available ones.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sandbox_api::DiskReserve;

use super::docker::DockerEngine;
use super::embedded::{EmbeddedEngine, Purpose};
use super::{Engine, docker};
use crate::agent::Agent;
use crate::config::{AgentSource, EngineChoice, EngineConfig};
use crate::error::ConnectError;

/// Why Docker was not chosen.
const NO_SOCKET: &str = "no Docker or Podman socket is there";

/// Connects to the configured engine, which unpacks images above `disk_reserve`. `auto` is Docker
/// or Podman; the embedded engine, of root or of this user, is chosen only if no endpoint is
/// configured and no socket exists.
///
/// # Errors
///
/// [`ConnectError`] if the engine cannot be used.
pub async fn connect(
    engine: &EngineConfig,
    agent: &AgentSource,
    state_dir: &Path,
    disk_reserve: DiskReserve,
) -> Result<Arc<dyn Engine>, ConnectError> {
    match engine.kind {
        EngineChoice::Docker => docker(engine, agent, state_dir).await,
        EngineChoice::Embedded => {
            nothing_is_asked_of_docker(engine)?;
            embedded(engine, agent, disk_reserve, None, Purpose::Launch)
        }
        EngineChoice::Auto if nothing_is_dockers(engine)? => {
            embedded(engine, agent, disk_reserve, Some(NO_SOCKET), Purpose::Launch)
        }
        EngineChoice::Auto => docker(engine, agent, state_dir).await,
    }
}

/// Connects to the configured engine; with `auto` to every available one.
///
/// # Errors
///
/// [`ConnectError`] if one cannot be used.
pub async fn connect_available(
    engine: &EngineConfig,
    agent: &AgentSource,
    state_dir: &Path,
    disk_reserve: DiskReserve,
) -> Result<Vec<Arc<dyn Engine>>, ConnectError> {
    match engine.kind {
        EngineChoice::Docker => Ok(vec![docker(engine, agent, state_dir).await?]),
        EngineChoice::Embedded => {
            Ok(vec![embedded(engine, agent, disk_reserve, None, Purpose::Reap)?])
        }
        EngineChoice::Auto => {
            let mut engines = Vec::new();
            if !docker::is_absent(&engine.docker)? {
                engines.push(docker(engine, agent, state_dir).await?);
            }
            if fs::read_dir(&engine.embedded.data_dir).is_ok() {
                engines.push(embedded(engine, agent, disk_reserve, None, Purpose::Reap)?);
            }
            Ok(engines)
        }
    }
}

/// Whether no Docker endpoint is configured and no Docker socket exists.
fn nothing_is_dockers(engine: &EngineConfig) -> Result<bool, ConnectError> {
    Ok(engine.runtime.is_none() && engine.image.is_none() && docker::is_absent(&engine.docker)?)
}

/// The embedded engine supports neither another runtime nor another image. A user who asks for
/// gVisor must not silently get less.
fn nothing_is_asked_of_docker(engine: &EngineConfig) -> Result<(), ConnectError> {
    match (&engine.runtime, &engine.image) {
        (Some(_), _) => Err(ConnectError::DockerOnly { what: "runtime" }),
        (None, Some(_)) => Err(ConnectError::DockerOnly { what: "image" }),
        (None, None) => Ok(()),
    }
}

async fn docker(
    engine: &EngineConfig,
    agent: &AgentSource,
    state_dir: &Path,
) -> Result<Arc<dyn Engine>, ConnectError> {
    let agent = Agent::open(agent)?;
    Ok(Arc::new(DockerEngine::connect(engine, agent, state_dir).await?))
}

fn embedded(
    engine: &EngineConfig,
    agent: &AgentSource,
    disk_reserve: DiskReserve,
    why: Option<&str>,
    purpose: Purpose,
) -> Result<Arc<dyn Engine>, ConnectError> {
    let agent = Agent::open(agent)?;
    let engine = EmbeddedEngine::connect(&engine.embedded, &agent, disk_reserve, why, purpose);
    Ok(Arc::new(engine.map_err(ConnectError::Embedded)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DockerEndpoint;

    #[test]
    fn configured_or_present_docker_is_never_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let docker = |socket| DockerEndpoint { sockets: vec![socket], ..Default::default() };
        let nothing = EngineConfig { docker: docker(socket.clone()), ..Default::default() };
        assert!(nothing_is_dockers(&nothing).unwrap());

        let name = || Some("x".to_owned());
        let by_runtime = EngineConfig { runtime: name(), ..nothing.clone() };
        let by_image = EngineConfig { image: name(), ..nothing.clone() };
        let mut by_host = nothing.clone();
        by_host.docker.env_host = Some("unix:///nowhere/docker.sock".into());
        let mut by_flag = nothing.clone();
        by_flag.docker.host = Some(("tcp://host:1".into(), "--host".into()));
        // Nothing listens there; that error must be reported.
        fs::write(&socket, "").unwrap();
        for engine in [by_runtime, by_image, by_host, by_flag, nothing] {
            assert!(!nothing_is_dockers(&engine).unwrap(), "{engine:?}");
        }
    }

    #[tokio::test]
    async fn the_embedded_engine_refuses_a_runtime_and_an_image_in_place_of_ignoring_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig { kind: EngineChoice::Embedded, ..Default::default() };
        config.embedded.data_dir = dir.path().join("data");
        config.image = Some("x".to_owned());
        let state_dir = dir.path().join("state");
        let refused = async |config: EngineConfig| {
            connect(&config, &AgentSource::Embedded, &state_dir, DiskReserve::default()).await.err()
        };
        let error = refused(config.clone()).await;
        assert!(matches!(error, Some(ConnectError::DockerOnly { what: "image" })), "{error:?}");
        config.runtime = Some("runsc".to_owned());
        let error = refused(config).await;
        assert!(matches!(error, Some(ConnectError::DockerOnly { what: "runtime" })), "{error:?}");
        assert!(!dir.path().join("data").exists());
    }
}
