//! The engines of this machine, through the library.

use std::fmt;
use std::path::PathBuf;

use sandbox_api::{ExecutionResult, Outcome};
use sandbox_controller::{
    Config, Controller, DockerEndpoint, EngineChoice, Reaper, Rebuild, Sweep,
};
use sandbox_env::Environment;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An engine to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// Docker's.
    Docker,
    /// Ours.
    Embedded,
}

impl On {
    const fn choice(self) -> EngineChoice {
        match self {
            Self::Docker => EngineChoice::Docker,
            Self::Embedded => EngineChoice::Embedded,
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.choice().as_str())
    }
}

/// The settings for controllers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Engines {
    /// Their state.
    pub state_dir: PathBuf,
    /// What the embedded engine keeps.
    pub data_dir: PathBuf,
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
    fn config(&self, on: On) -> Config {
        let mut config = Config::new(&self.state_dir);
        config.engine.kind = on.choice();
        config.engine.embedded.data_dir.clone_from(&self.data_dir);
        config.engine.docker = match &self.docker_host {
            Some(host) => DockerEndpoint {
                host: Some((host.clone(), "the benchmark".to_owned())),
                ..DockerEndpoint::default()
            },
            None => Environment::capture().map(|it| it.docker()).unwrap_or_default(),
        };
        // Do not measure the removal of other processes' leftovers.
        config.sweep = Sweep::Never;
        config
    }

    /// Connects. The controller is to be closed.
    pub async fn connect(&self, on: On) -> Result<Controller, Error> {
        Ok(Controller::connect(self.config(on)).await?)
    }

    /// What lists the containers of an engine.
    pub async fn reaper(&self, on: On) -> Result<Reaper, Error> {
        Ok(Reaper::connect(&self.config(on)).await?)
    }

    /// Connects, works, and waits until everything that is to be removed is.
    pub async fn with_controller<T>(
        &self,
        on: On,
        work: impl AsyncFnOnce(&Controller) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let controller = self.connect(on).await?;
        let done = work(&controller).await;
        controller.close().await;
        done
    }

    /// Whether an engine can be measured: its facts, or why it cannot.
    pub async fn probe(&self, on: On) -> Result<Usable, String> {
        let look = self.with_controller(on, async |controller| {
            let image = match on {
                On::Embedded => None,
                On::Docker => Some(controller.image_build(Rebuild::IfMissing, |_| {}).await?.id),
            };
            let version = controller.engine_facts().await?.version;
            Ok(Usable { version, endpoint: controller.engine().endpoint.clone(), image })
        });
        look.await.map_err(|error| error.full_message())
    }
}

/// What a measured script must have done: ended well.
pub fn ended_well(run: &ExecutionResult) -> Result<(), Error> {
    match &run.outcome {
        Outcome::Ok { .. } => Ok(()),
        other => Err(Error::Outcome(format!("{other:?}"))),
    }
}
