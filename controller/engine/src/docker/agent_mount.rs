//! Files to mount into a user's image: the agent, and the few files that every program expects but
//! that the engine does not create for a container without a network. All are mounted read-only
//! from this user's state directory, so the engine must be able to see it. No other user may access
//! the directory, and its content is verified before each container.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_dirfd::create_private_dir;
use sha2::{Digest, Sha256};

use crate::SYSTEM_FILES;
use crate::agent::{Agent, Content};
use crate::error::EngineError;
use crate::installed_files::{self, InstalledFile, TEXT};

/// The directory where the files are kept.
pub(super) struct AgentMount {
    agent: Agent,
    directory: PathBuf,
}

/// A file to mount into a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundFile {
    pub source: String,
    pub target: String,
}

impl AgentMount {
    pub fn new(agent: Agent, state_dir: &Path) -> Self {
        Self { agent, directory: state_dir.join("programs") }
    }

    /// Installs all files, writing those that are missing or wrong, and the files with the names of
    /// this container's user. The agent is the first, at a path that is unique to this container: no
    /// image has anything there.
    pub async fn install(
        self: &Arc<Self>,
        names: Vec<(&'static str, String)>,
    ) -> Result<Vec<BoundFile>, EngineError> {
        let mount = self.clone();
        let installed = tokio::task::spawn_blocking(move || mount.install_now(&names)).await;
        let installed = installed.unwrap_or_else(|error| Err(io::Error::other(error)));
        installed.map_err(|error| {
            let directory = self.directory.display();
            EngineError::Refused(format!("cannot keep the agent in {directory}: {error}"))
        })
    }

    fn install_now(&self, names: &[(&'static str, String)]) -> io::Result<Vec<BoundFile>> {
        create_private_dir(&self.directory)?;
        let install = |file: &InstalledFile<'_>, target: String| {
            let path = installed_files::install(&self.directory, file)?;
            let source = path.into_os_string().into_string().map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8")
            })?;
            Ok(BoundFile { source, target })
        };
        let target = format!("/.sandbox-{}", sandbox_dirfd::random_hex::<16>());
        let agent = install(&installed_files::agent(&self.agent), target)?;
        let names = names.iter().map(|(path, content)| (*path, &**content));
        let files = SYSTEM_FILES.into_iter().chain(names).map(|(path, content)| {
            let (_, name) = path.rsplit_once('/').unwrap_or_default();
            let sha256 = sandbox_dirfd::hex(&Sha256::digest(content));
            let content = Content::Plain(content.as_bytes());
            install(&InstalledFile { name, content, sha256: &sha256, mode: TEXT }, path.to_owned())
        });
        [Ok(agent)].into_iter().chain(files).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn any_user_may_start_the_agent_and_read_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Arc::new(AgentMount::new(Agent::Embedded, dir.path()));
        let names = || vec![("/etc/passwd", "sandbox:x:7:7::/io:/bin/sh\n".to_owned())];
        let installed = mount.install(names()).await.unwrap();
        let [agent, files @ ..] = &installed[..] else { panic!("{installed:?}") };
        let again = mount.install(names()).await.unwrap();
        assert_eq!((&again[0].source, &again[1..]), (&agent.source, files));
        assert_ne!(again[0].target, agent.target);
        let random = agent.target.strip_prefix("/.sandbox-").unwrap();
        assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(fs::read(&agent.source).unwrap(), Agent::Embedded.content().to_vec());
        let mode = |file: &BoundFile| fs::metadata(&file.source).unwrap().permissions().mode();
        assert_eq!(mode(agent) & 0o7777, 0o555);
        let targets: Vec<_> = files.iter().map(|file| &*file.target).collect();
        assert_eq!(targets, ["/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/passwd"]);
        assert!(files.iter().all(|file| mode(file) & 0o7777 == 0o444));
        let hosts = fs::read_to_string(&files[0].source).unwrap();
        assert!(hosts.contains("127.0.0.1 localhost\n"), "{hosts}");
    }
}
