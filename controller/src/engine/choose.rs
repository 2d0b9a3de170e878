//! Which engine is used, and which are there.

use std::fs;
use std::sync::Arc;

use super::Engine;
use super::docker::{self, DockerEngine};
use crate::agent::Agent;
use crate::config::{Config, EngineChoice};
use crate::error::Error;

/// Why it is not Docker, in one line.
const NOTICE: &str = "no Docker or Podman socket is there: using the embedded engine";

/// The engine that the configuration asks for. `auto` is Docker; the embedded one only where
/// nobody has named anything of Docker's, nothing of it is there, and this user could use the other.
pub(crate) async fn connect(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    match config.engine.kind {
        EngineChoice::Docker => docker(config).await,
        EngineChoice::Embedded => embedded(config, None).await,
        EngineChoice::Auto if is_for_embedded(config)? => {
            embedded(config, Some(NOTICE.to_owned())).await
        }
        EngineChoice::Auto => docker(config).await,
    }
}

/// The engine that is named; with `auto` every one that is there.
pub(crate) async fn reach(config: &Config) -> Result<Vec<Arc<dyn Engine>>, Error> {
    match config.engine.kind {
        EngineChoice::Docker => Ok(vec![docker(config).await?]),
        EngineChoice::Embedded => Ok(vec![embedded(config, None).await?]),
        EngineChoice::Auto => {
            let mut engines = Vec::new();
            if !docker::is_absent(&config.engine.docker)? {
                engines.push(docker(config).await?);
            }
            if fs::read_dir(&config.engine.embedded.data_dir).is_ok() {
                match embedded(config, None).await {
                    Ok(engine) => engines.push(engine),
                    Err(Error::NoEmbeddedEngine) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(engines)
        }
    }
}

fn is_for_embedded(config: &Config) -> Result<bool, Error> {
    let engine = &config.engine;
    Ok(rustix::process::geteuid().is_root()
        && engine.runtime.is_none()
        && engine.image.is_none()
        && docker::is_absent(&engine.docker)?)
}

async fn docker(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    let agent = Agent::open(&config.agent)?;
    Ok(Arc::new(DockerEngine::connect(&config.engine, agent, &config.state_dir).await?))
}

async fn embedded(_config: &Config, _notice: Option<String>) -> Result<Arc<dyn Engine>, Error> {
    Err(Error::NoEmbeddedEngine)
}
