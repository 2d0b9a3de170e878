//! The engines of this machine, through the library.

use std::path::PathBuf;

use sandbox_controller::{
    Config, Controller, DockerEndpoint, EngineKind, Outcome, Rebuild, RunResult, Sweep,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What is told to controllers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Engines {
    /// Their state.
    pub state_dir: PathBuf,
    /// Where Docker is, once that is known.
    pub docker_host: Option<String>,
}

/// An engine that can be measured.
#[derive(Debug, Clone)]
pub struct Usable {
    /// Its name and version.
    pub version: String,
    /// Where it is.
    pub endpoint: String,
    /// The sandbox image, where it has images.
    pub image: Option<String>,
}

impl Engines {
    fn config(&self, kind: EngineKind) -> Config {
        let mut config = Config::new(&self.state_dir);
        config.engine.kind = kind;
        config.engine.docker = match &self.docker_host {
            Some(host) => DockerEndpoint {
                host: Some((host.clone(), "the benchmark".to_owned())),
                ..DockerEndpoint::default()
            },
            None => docker_by_environment(),
        };
        // Leftovers of others are none of a measurement's business.
        config.sweep = Sweep::Never;
        config
    }

    /// Connects. The controller is to be closed.
    pub async fn connect(&self, kind: EngineKind) -> Result<Controller, Error> {
        Ok(Controller::connect(self.config(kind)).await?)
    }

    /// Connects, works, and waits until everything that is to be removed is.
    pub async fn with_controller<T>(
        &self,
        kind: EngineKind,
        work: impl AsyncFnOnce(&Controller) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let controller = self.connect(kind).await?;
        let done = work(&controller).await;
        controller.close().await;
        done
    }

    /// Whether an engine can be measured: its facts, or why it cannot.
    pub async fn probe(&self, kind: EngineKind) -> Result<Usable, String> {
        let look = self.with_controller(kind, async |controller| {
            let image = match kind {
                EngineKind::Embedded => None,
                EngineKind::Auto | EngineKind::Docker => {
                    Some(controller.image_build(Rebuild::IfMissing, |_| {}).await?.id)
                }
            };
            let version = controller.engine_facts().await?.version;
            Ok(Usable { version, endpoint: controller.engine().endpoint.clone(), image })
        });
        look.await.map_err(|error| error.full_message())
    }
}

/// As the docker command line finds it.
fn docker_by_environment() -> DockerEndpoint {
    let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let home = text("HOME").map(PathBuf::from);
    DockerEndpoint {
        host: None,
        env_host: text("DOCKER_HOST"),
        env_context: text("DOCKER_CONTEXT"),
        config_dir: text("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| home.map(|home| home.join(".docker"))),
        env_tls_verify: text("DOCKER_TLS_VERIFY").is_some(),
        sockets: vec![PathBuf::from("/var/run/docker.sock")],
    }
}

/// What a measured script must have done: ended well.
pub fn ended_well(run: &RunResult) -> Result<(), Error> {
    match &run.outcome {
        Outcome::Ok { .. } => Ok(()),
        other => Err(Error::Outcome(format!("{other:?}"))),
    }
}
