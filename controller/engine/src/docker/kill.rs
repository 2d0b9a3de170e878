//! Kills containers, also those that the CPU limit throttles.
//!
//! The kernel holds a process that has used more than its share back before it lets it die, and long
//! system calls use seconds more than the share. So the limit of a container that does not die is
//! lifted.

use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::KillContainerOptionsBuilder;

use super::response::{engine_error, even_if_paused};
use crate::error::EngineError;

/// How long a container may take to die before its limit is lifted. Almost all take less, and cost
/// the engine no second call.
const ORDINARY_DEATH: Duration = Duration::from_millis(300);
/// No limit. Every version of Docker accepts it for a container that was created with `NanoCpus`,
/// and refuses any other quota for it.
const NO_QUOTA: i64 = -1;

/// Kills a container, and waits for its end if the engine does. Ignores one that does not run.
pub(super) async fn kill(docker: &Docker, container: &str) -> Result<(), EngineError> {
    let kill = even_if_paused(docker, container, || {
        let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
        docker.kill_container(container, Some(options))
    });
    let lift = async {
        tokio::time::sleep(ORDINARY_DEATH).await;
        lift_cpu_limit(docker, container).await;
        std::future::pending().await
    };
    let killed = tokio::select! {
        biased;
        killed = kill => killed,
        () = lift => unreachable!("it never ends"),
    };
    killed.or_else(|error| match error {
        // Podman's 409.
        EngineError::Refused(words) if words.contains("can only kill running containers") => Ok(()),
        error => Err(error),
    })
}

/// A refusal is harmless: the container dies later.
async fn lift_cpu_limit(docker: &Docker, container: &str) {
    let no_limit = ContainerUpdateBody { cpu_quota: Some(NO_QUOTA), ..Default::default() };
    match docker.update_container(container, no_limit).await.map_err(engine_error) {
        Ok(()) => tracing::debug!("the processor limit of a container that does not die is lifted"),
        Err(error) => tracing::debug!(%error, "cannot lift the processor limit of a container"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Notify;

    use super::super::tests::engine::with_engine;
    use super::*;

    /// An engine with one container, which dies on request.
    #[derive(Default)]
    struct Fake {
        asked: Mutex<Vec<String>>,
        dies: Notify,
        /// Whether its limit can be lifted.
        refuses: bool,
    }

    impl Fake {
        async fn answer(&self, path: &str) -> (u16, String) {
            let call = path.rsplit('/').next().unwrap_or_default();
            self.asked.lock().unwrap().push(call.to_owned());
            match call {
                "kill" => self.dies.notified().await,
                "update" => self.dies.notify_one(),
                _ => {}
            }
            (if call == "update" && self.refuses { 500 } else { 200 }, "{}".to_owned())
        }

        /// The calls that a kill makes.
        async fn kill(self) -> Vec<String> {
            let killed = async |docker: &Docker| kill(docker, "c1").await;
            with_engine(async |path| self.answer(path).await, killed).await.unwrap();
            self.asked.into_inner().unwrap()
        }
    }

    // The clock stands still while the engine, at a socket of this thread, has something to read.
    #[tokio::test(start_paused = true)]
    async fn limit_of_a_container_that_does_not_die_is_lifted() {
        assert_eq!(Fake::default().kill().await, ["kill", "update"]);
        // It dies later, in this case at once.
        let refuses = Fake { refuses: true, ..Fake::default() };
        assert_eq!(refuses.kill().await, ["kill", "update"]);
    }

    #[tokio::test(start_paused = true)]
    async fn container_that_dies_at_once_costs_one_call() {
        let fake = Fake::default();
        fake.dies.notify_one();
        assert_eq!(fake.kill().await, ["kill"]);
    }
}
