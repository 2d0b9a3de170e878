//! The environment of the process: variables, working directory and user.
//!
//! Read once, and nowhere else: the functions here depend only on this value, which callers can
//! construct too.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sandbox_controller::{AgentSource, DockerEndpoint, EmbeddedConfig};

/// Overrides the embedded agent with a file.
const AGENT_VARIABLE: &str = "SANDBOX_AGENT";

/// The environment of the process.
#[derive(Debug, Clone)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    /// The working directory, with links resolved.
    pub working_directory: PathBuf,
    /// The effective user.
    pub uid: u32,
}

impl Environment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    ///
    /// If the working directory does not exist or cannot be read.
    pub fn capture() -> io::Result<Self> {
        let working_directory = std::env::current_dir()?;
        Ok(Self {
            variables: std::env::vars_os().collect(),
            working_directory,
            uid: rustix::process::geteuid().as_raw(),
        })
    }

    /// An environment that the caller composes, for a service with users of its own and for tests.
    #[must_use]
    pub fn new(working_directory: &Path, uid: u32, variables: &[(&str, &str)]) -> Self {
        Self {
            variables: variables.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
            working_directory: working_directory.to_owned(),
            uid,
        }
    }

    /// Every variable, sorted by name.
    pub fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// A variable; an empty one counts as not set.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// The path in a variable.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.variable(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// The source of the agent.
    #[must_use]
    pub fn agent(&self) -> AgentSource {
        self.path(AGENT_VARIABLE).map_or(AgentSource::Embedded, AgentSource::File)
    }

    /// Where to look for a Docker engine, in the same places as the docker command line.
    #[must_use]
    pub fn docker(&self) -> DockerEndpoint {
        let below = |variable, path: &str| Some(self.path(variable)?.join(path));
        let sockets = [
            Some("/var/run/docker.sock".into()),
            below("XDG_RUNTIME_DIR", "docker.sock"),
            below("HOME", ".docker/run/docker.sock"),
            below("XDG_RUNTIME_DIR", "podman/podman.sock"),
            Some("/run/podman/podman.sock".into()),
        ];
        DockerEndpoint {
            host: None,
            env_host: self.text("DOCKER_HOST"),
            env_context: self.text("DOCKER_CONTEXT"),
            env_tls_verify: self.variable("DOCKER_TLS_VERIFY").is_some(),
            config_dir: self.path("DOCKER_CONFIG").or_else(|| below("HOME", ".docker")),
            sockets: sockets.into_iter().flatten().collect(),
        }
    }

    /// The directory for locks and the state of instances, which the controller creates and checks.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        match self.path("XDG_RUNTIME_DIR") {
            Some(runtime) if runtime.is_absolute() && runtime.is_dir() => {
                runtime.join("sandboxctl")
            }
            _ if self.uid == 0 => PathBuf::from("/run/sandboxctl"),
            // As without a login session: `cron`, `su`. In /tmp anyone can create the name.
            _ => match runtime_folder(Path::new("/run/user"), self.uid) {
                Some(runtime) => runtime.join("sandboxctl"),
                None => PathBuf::from(format!("/tmp/sandboxctl-{}", self.uid)),
            },
        }
    }

    /// The default data directory of the embedded engine.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        match self.uid {
            0 => EmbeddedConfig::DATA_DIR.into(),
            _ => self.user_data_dir(),
        }
    }

    /// The directory for what this user has made for sandboxes, also of root.
    #[must_use]
    pub fn user_data_dir(&self) -> PathBuf {
        self.user_dir("XDG_DATA_HOME", ".local/share", "data")
    }

    /// The directory for what a service of this user keeps, also when the machine starts again.
    #[must_use]
    pub fn lasting_state_dir(&self) -> PathBuf {
        self.user_dir("XDG_STATE_HOME", ".local/state", "lasting")
    }

    /// Our directory in that of a variable, or in this one of the home directory, or else in the state
    /// directory under a name of its own.
    fn user_dir(&self, variable: &str, of_home: &str, name: &str) -> PathBuf {
        // A relative path is invalid there.
        let absolute = |variable| self.path(variable).filter(|path| path.is_absolute());
        match absolute(variable).or_else(|| Some(absolute("HOME")?.join(of_home))) {
            Some(folder) => folder.join("sandboxctl"),
            None => self.state_dir().join(name),
        }
    }

    /// The default directory for fresh io dirs: on a disk, where the runtime directory is in memory.
    #[must_use]
    pub fn scratch_dir(&self) -> PathBuf {
        let disk = Path::new("/var/tmp");
        match disk.is_dir() {
            true => disk.join(format!("sandboxctl-{}", self.uid)),
            false => self.state_dir().join("scratch"),
        }
    }
}

/// The usual value of `XDG_RUNTIME_DIR`, if it exists and belongs to the user.
fn runtime_folder(all: &Path, uid: u32) -> Option<PathBuf> {
    let folder = all.join(uid.to_string());
    let found = folder.symlink_metadata().ok()?;
    (found.is_dir() && found.uid() == uid).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn the_state_folder_is_in_the_runtime_folder() {
        // No user of this number is logged in anywhere.
        const UID: u32 = 4_000_000_001;
        let runtime = tempfile::tempdir().unwrap();
        let at = |uid: u32, variable: &str| {
            Environment::new(Path::new("/"), uid, &[("XDG_RUNTIME_DIR", variable)]).state_dir()
        };
        let folder = runtime.path().join("sandboxctl");
        for uid in [0, UID] {
            assert_eq!(at(uid, runtime.path().to_str().unwrap()), folder);
        }
        for unusable in ["", "relative", "/no/such/folder"] {
            assert_eq!(at(0, unusable), Path::new("/run/sandboxctl"));
            assert_eq!(at(UID, unusable), Path::new("/tmp/sandboxctl-4000000001"));
        }
    }

    #[test]
    fn a_runtime_folder_without_its_variable_counts_where_it_is_the_users() {
        let all = tempfile::tempdir().unwrap();
        let at = |uid: u32| all.path().join(uid.to_string());
        assert_eq!(runtime_folder(all.path(), uid()), None);
        std::fs::create_dir(at(uid())).unwrap();
        assert_eq!(runtime_folder(all.path(), uid()), Some(at(uid())));
        std::fs::create_dir(at(uid() + 1)).unwrap();
        assert_eq!(runtime_folder(all.path(), uid() + 1), None, "another user's");
        std::fs::remove_dir(at(uid())).unwrap();
        symlink(at(uid() + 1), at(uid())).unwrap();
        assert_eq!(runtime_folder(all.path(), uid()), None, "a link");
    }

    #[test]
    fn lasting_state_is_in_that_of_the_desktop_standard() {
        let at = |variables: &[(&str, &str)]| {
            Environment::new(Path::new("/"), 1000, variables).lasting_state_dir()
        };
        let home = ("HOME", "/home/me");
        assert_eq!(at(&[home]), Path::new("/home/me/.local/state/sandboxctl"));
        assert_eq!(at(&[home, ("XDG_STATE_HOME", "/state")]), Path::new("/state/sandboxctl"));
        let relative = [home, ("XDG_STATE_HOME", "state")];
        assert_eq!(at(&relative), Path::new("/home/me/.local/state/sandboxctl"));
        assert!(at(&[]).ends_with("lasting"));
    }

    #[test]
    fn data_directory_of_a_user_is_in_that_of_the_desktop_standard() {
        let at = |uid: u32, variables: &[(&str, &str)]| {
            Environment::new(Path::new("/"), uid, variables).data_dir()
        };
        let home = ("HOME", "/home/me");
        assert_eq!(at(0, &[home]), Path::new("/var/lib/sandboxctl"));
        assert_eq!(at(1000, &[home]), Path::new("/home/me/.local/share/sandboxctl"));
        let data = ("XDG_DATA_HOME", "/data");
        assert_eq!(at(1000, &[home, data]), Path::new("/data/sandboxctl"));
        let relative = ("XDG_DATA_HOME", "data");
        assert_eq!(at(1000, &[home, relative]), Path::new("/home/me/.local/share/sandboxctl"));
        assert!(at(1000, &[]).ends_with("sandboxctl-1000/data"));
    }

    #[test]
    fn the_engine_is_looked_for_where_docker_looks() {
        let environment = Environment::new(
            Path::new("/"),
            1000,
            &[("HOME", "/h"), ("DOCKER_HOST", "tcp://h:1"), ("XDG_RUNTIME_DIR", "/run/user/1")],
        );
        let endpoint = environment.docker();
        assert_eq!(endpoint.env_host.as_deref(), Some("tcp://h:1"));
        assert_eq!(endpoint.config_dir.as_deref(), Some(Path::new("/h/.docker")));
        assert_eq!(
            endpoint.sockets,
            [
                "/var/run/docker.sock",
                "/run/user/1/docker.sock",
                "/h/.docker/run/docker.sock",
                "/run/user/1/podman/podman.sock",
                "/run/podman/podman.sock",
            ]
            .map(PathBuf::from)
        );
    }
}
