//! Kills containers, whatever processor time they have used.
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

/// An engine that refuses it has lost nothing: the container dies later.
async fn lift_cpu_limit(docker: &Docker, container: &str) {
    let no_limit = ContainerUpdateBody { cpu_quota: Some(NO_QUOTA), ..Default::default() };
    match docker.update_container(container, no_limit).await.map_err(engine_error) {
        Ok(()) => tracing::debug!("the processor limit of a container that does not die is lifted"),
        Err(error) => tracing::debug!(%error, "cannot lift the processor limit of a container"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bollard::API_DEFAULT_VERSION;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::Notify;

    use super::super::response::CLIENT_TIMEOUT;
    use super::*;

    /// An engine with one container, which dies when it is told to.
    #[derive(Default)]
    struct Fake {
        asked: Mutex<Vec<String>>,
        dies: Notify,
        /// Whether its limit can be lifted.
        refuses: bool,
    }

    impl Fake {
        async fn answer(&self, stream: UnixStream) {
            let mut stream = BufReader::new(stream);
            let mut request = String::new();
            stream.read_line(&mut request).await.unwrap();
            let path = request.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
            let call = path.rsplit('/').next().unwrap_or_default().to_owned();
            self.asked.lock().unwrap().push(call.clone());
            let answer: &[u8] = match &*call {
                "kill" => {
                    self.dies.notified().await;
                    b"204 No Content\r\n\r\n"
                }
                "update" if self.refuses => b"500 No\r\ncontent-length: 2\r\n\r\n{}",
                _ => b"200 OK\r\ncontent-length: 2\r\n\r\n{}",
            };
            if call == "update" {
                self.dies.notify_one();
            }
            _ = stream.write_all(&[b"HTTP/1.1 ", answer].concat()).await;
        }

        /// The calls that a kill makes.
        async fn kill(self: Arc<Self>) -> Vec<String> {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("socket");
            let listener = UnixListener::bind(&socket).unwrap();
            let path = socket.to_str().unwrap();
            let docker = Docker::connect_with_unix(path, CLIENT_TIMEOUT, API_DEFAULT_VERSION);
            let me = self.clone();
            let serve = async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let me = me.clone();
                    tokio::spawn(async move { me.answer(stream).await });
                }
            };
            tokio::select! {
                killed = kill(docker.as_ref().unwrap(), "c1") => killed.unwrap(),
                () = serve => {}
            }
            self.asked.lock().unwrap().clone()
        }
    }

    #[tokio::test]
    async fn limit_of_a_container_that_does_not_die_is_lifted() {
        assert_eq!(Arc::new(Fake::default()).kill().await, ["kill", "update"]);
        // It dies later, in this case at once.
        let refuses = Arc::new(Fake { refuses: true, ..Fake::default() });
        assert_eq!(refuses.kill().await, ["kill", "update"]);
    }

    #[tokio::test]
    async fn container_that_dies_at_once_costs_one_call() {
        let fake = Arc::new(Fake::default());
        fake.dies.notify_one();
        assert_eq!(fake.kill().await, ["kill"]);
    }
}
