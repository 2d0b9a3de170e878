//! Which engine is used, and which are there.

use std::fs;
use std::sync::Arc;

use super::Engine;
use super::docker::{self, DockerEngine};
use super::embedded::{Ahead, EmbeddedEngine};
use crate::agent::Agent;
use crate::config::{Config, EngineChoice, EngineConfig};
use crate::error::Error;

/// Why it is not Docker, in one line.
const NOTICE: &str = "no Docker or Podman socket is there: using the embedded engine";

/// The engine that the configuration asks for. `auto` is Docker; the embedded one only where
/// nobody has named anything of Docker's, nothing of it is there, and this user could use the other.
pub(crate) async fn connect(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    match config.engine.kind {
        EngineChoice::Docker => docker(config).await,
        EngineChoice::Embedded => {
            nothing_is_asked_of_docker(&config.engine)?;
            embedded(config, None, Ahead::Start)
        }
        EngineChoice::Auto
            if rustix::process::geteuid().is_root() && nothing_is_dockers(&config.engine)? =>
        {
            embedded(config, Some(NOTICE.to_owned()), Ahead::Start)
        }
        EngineChoice::Auto => docker(config).await,
    }
}

/// The engine that is named; with `auto` every one that is there.
pub(crate) async fn reach(config: &Config) -> Result<Vec<Arc<dyn Engine>>, Error> {
    match config.engine.kind {
        EngineChoice::Docker => Ok(vec![docker(config).await?]),
        EngineChoice::Embedded => Ok(vec![embedded(config, None, Ahead::Wait)?]),
        EngineChoice::Auto => {
            let mut engines = Vec::new();
            if !docker::is_absent(&config.engine.docker)? {
                engines.push(docker(config).await?);
            }
            if fs::read_dir(&config.engine.embedded.data_dir).is_ok() {
                engines.push(embedded(config, None, Ahead::Wait)?);
            }
            Ok(engines)
        }
    }
}

/// Whether nobody has named anything of Docker's, and there is none.
fn nothing_is_dockers(engine: &EngineConfig) -> Result<bool, Error> {
    Ok(engine.runtime.is_none() && engine.image.is_none() && docker::is_absent(&engine.docker)?)
}

/// The embedded engine has neither a runtime nor an image to choose. Somebody who asks for gVisor
/// must not be given less without a word.
fn nothing_is_asked_of_docker(engine: &EngineConfig) -> Result<(), Error> {
    match (&engine.runtime, &engine.image) {
        (Some(_), _) => Err(Error::DockerOnly { what: "runtime" }),
        (None, Some(_)) => Err(Error::DockerOnly { what: "image" }),
        (None, None) => Ok(()),
    }
}

async fn docker(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    let agent = Agent::open(&config.agent)?;
    Ok(Arc::new(DockerEngine::connect(&config.engine, agent, &config.state_dir).await?))
}

fn embedded(
    config: &Config,
    notice: Option<String>,
    ahead: Ahead,
) -> Result<Arc<dyn Engine>, Error> {
    let agent = Agent::open(&config.agent)?;
    let engine = EmbeddedEngine::connect(&config.engine.embedded, &agent, notice, ahead);
    Ok(Arc::new(engine.map_err(Error::Embedded)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DockerEndpoint;

    #[test]
    fn whatever_is_named_or_there_of_dockers_is_not_passed_over() {
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
        // Nobody answers there; that is an error to tell.
        fs::write(&socket, "").unwrap();
        for engine in [by_runtime, by_image, by_host, by_flag, nothing] {
            assert!(!nothing_is_dockers(&engine).unwrap(), "{engine:?}");
        }
    }

    #[tokio::test]
    async fn the_embedded_engine_refuses_a_runtime_and_an_image_in_place_of_ignoring_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("state"));
        config.engine.kind = EngineChoice::Embedded;
        config.engine.embedded.data_dir = dir.path().join("data");
        config.engine.image = Some("x".to_owned());
        let refused = |config: Config| async move { connect(&config).await.err() };
        let error = refused(config.clone()).await;
        assert!(matches!(error, Some(Error::DockerOnly { what: "image" })), "{error:?}");
        config.engine.runtime = Some("runsc".to_owned());
        let error = refused(config).await;
        assert!(matches!(error, Some(Error::DockerOnly { what: "runtime" })), "{error:?}");
        assert!(!dir.path().join("data").exists());
    }
}
