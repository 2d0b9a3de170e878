//! The configuration of a controller that the environment of a process implies.
//!
//! The controller itself reads no environment variables, home directory or terminal. A program that
//! wants the engine that `sandboxctl` would use calls [`config`]:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let controller = sandbox_controller::Controller::connect(sandbox_env::config()?).await?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod environment;

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sandbox_controller::{Config, ConfinementPolicy, EngineChoice, RootlessLimits};

pub use environment::Environment;

/// The prefix of the variables that are settings: `engine.kind` is `SANDBOXCTL_ENGINE_KIND`.
pub const VARIABLE_PREFIX: &str = "SANDBOXCTL_";

/// The variable of a setting, by its key in a configuration file.
#[must_use]
pub fn variable_of(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Settings whose variable must have an absolute path.
const ABSOLUTE: &[&str] =
    &["audit.file", "engine.data_dir", "io.scratch_dir", "network.ca_file", "server.data_dir"];

/// The environment does not give a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The working directory does not exist or cannot be read.
    #[error("cannot read the working directory")]
    WorkingDirectory(#[source] io::Error),
    /// A setting has an invalid value.
    #[error("{name}: {reason}")]
    Setting {
        /// What sets it: a variable.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The value of a setting, as text or as a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: OsString,
    /// What sets it, for messages: a variable, a flag, a key and its file.
    pub name: String,
}

impl Setting {
    fn path(self) -> PathBuf {
        self.value.into()
    }

    fn text(self) -> Result<String, Error> {
        let Self { value, name } = self;
        value.into_string().map_err(|_| Error::Setting { name, reason: "is not UTF-8".into() })
    }

    fn parse<T: FromStr<Err: Display>>(self) -> Result<T, Error> {
        let name = self.name.clone();
        self.text()?
            .parse()
            .map_err(|error: T::Err| Error::Setting { name, reason: error.to_string() })
    }

    /// The one that has this word. A message says what `kind` of words there are.
    fn word<T>(self, of: impl FnOnce(&str) -> Option<T>, kind: &str) -> Result<T, Error> {
        let name = self.name.clone();
        let word = self.text()?;
        let unknown = || Error::Setting { name, reason: format!("'{word}' is not {kind}") };
        of(&word).ok_or_else(unknown)
    }
}

/// The configuration that this process's environment implies: Docker where `sandboxctl` would use it,
/// otherwise the embedded engine, with the directories that `sandboxctl` uses.
///
/// Read are the variables of the Docker CLI, `XDG_RUNTIME_DIR`, `XDG_DATA_HOME`, `HOME`, `SANDBOX_AGENT`, `SSL_CERT_FILE`, and those
/// settings of `sandboxctl` that concern a controller: `SANDBOXCTL_ENGINE_*`, `SANDBOXCTL_AUDIT_FILE`,
/// `SANDBOXCTL_IO_SCRATCH_DIR`, `SANDBOXCTL_NETWORK_CA_FILE`, `SANDBOXCTL_LIMITS_DISK_RESERVE` and `SANDBOXCTL_POLICY_CONFINEMENT`.
/// Configuration files are not read.
///
/// # Errors
///
/// [`Error`] if a variable has an invalid value, or if there is no working directory.
pub fn config() -> Result<Config, Error> {
    Environment::capture().map_err(Error::WorkingDirectory)?.config()
}

impl Environment {
    /// The configuration that this environment implies: [`config`].
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if a variable has an invalid value.
    pub fn config(&self) -> Result<Config, Error> {
        let setting = |key: &str| {
            let name = variable_of(key);
            let value = self.variable(&name)?.to_owned();
            Some(Setting { value, name })
        };
        for setting in ABSOLUTE.iter().filter_map(|key| setting(key)) {
            if !Path::new(&setting.value).is_absolute() {
                let reason = "it is not an absolute path".to_owned();
                return Err(Error::Setting { name: setting.name, reason });
            }
        }
        self.config_with(setting)
    }

    /// The configuration of a controller in this environment, whose settings are looked up by their
    /// keys in a configuration file, such as `engine.kind`.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if a setting has an invalid value.
    pub fn config_with(
        &self,
        setting: impl Fn(&'static str) -> Option<Setting>,
    ) -> Result<Config, Error> {
        let text = |key| setting(key).map(Setting::text).transpose();
        let path = |key| setting(key).map(Setting::path);
        let mut config = Config::new(self.state_dir());
        config.scratch_dir = path("io.scratch_dir").unwrap_or_else(|| self.scratch_dir());
        config.agent = self.agent();
        config.audit = path("audit.file").map(|file| self.working_directory.join(file));
        let ca_file = || self.variable("SSL_CERT_FILE").map(PathBuf::from);
        config.ca_file = path("network.ca_file").or_else(ca_file);
        config.service_dir = path("server.data_dir").map(|dir| self.working_directory.join(dir));
        if let Some(reserve) = setting("limits.disk_reserve") {
            config.disk_reserve = reserve.parse()?;
        }
        let policies = "a policy: use required or best-effort";
        if let Some(policy) = setting("policy.confinement") {
            config.confinement = policy.word(ConfinementPolicy::from_word, policies)?;
        }
        let engine = &mut config.engine;
        if let Some(kind) = setting("engine.kind") {
            let engines = "an engine: use auto, docker or embedded";
            engine.kind = kind.word(EngineChoice::from_word, engines)?;
        }
        engine.docker = self.docker();
        if let Some(host) = setting("engine.host") {
            let name = host.name.clone();
            engine.docker.host = Some((host.text()?, name));
        }
        engine.runtime = text("engine.runtime")?;
        engine.image = text("engine.image")?;
        engine.embedded.data_dir = path("engine.data_dir").unwrap_or_else(|| self.data_dir());
        if let Some(policy) = setting("engine.rootless_limits") {
            engine.embedded.rootless_limits = policy.word(RootlessLimits::from_word, policies)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, String> {
        let environment = Environment::new(Path::new("/work"), 1000, variables);
        environment.config().map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_sandboxctl_apply_to_a_library_user() {
        let config = config(&[
            ("DOCKER_CONTEXT", "remote"),
            ("SANDBOXCTL_AUDIT_FILE", "/var/log/audit"),
            ("SANDBOXCTL_ENGINE_DATA_DIR", "/data"),
            ("SANDBOXCTL_ENGINE_HOST", "unix:///run/d.sock"),
            ("SANDBOXCTL_ENGINE_IMAGE", "sha256:1"),
            ("SANDBOXCTL_ENGINE_KIND", "docker"),
            ("SANDBOXCTL_ENGINE_RUNTIME", "runsc"),
            ("SANDBOXCTL_IO_SCRATCH_DIR", "/scratch"),
            ("SANDBOXCTL_LIMITS_DISK_RESERVE", "2GiB"),
            ("SANDBOXCTL_LIMITS_TIMEOUT", "5s"),
            ("SANDBOXCTL_POLICY_CONFINEMENT", "best-effort"),
            ("SANDBOXCTL_SERVER_DATA_DIR", "/service"),
            ("XDG_RUNTIME_DIR", "/"),
        ])
        .unwrap();
        assert_eq!(config.audit, Some("/var/log/audit".into()));
        assert_eq!(config.scratch_dir, Path::new("/scratch"));
        assert_eq!(config.service_dir, Some("/service".into()));
        assert_eq!(config.state_dir, Path::new("/sandboxctl"));
        assert_eq!(config.disk_reserve, "2GiB".parse().unwrap());
        assert_eq!(config.confinement, ConfinementPolicy::BestEffort);
        let engine = config.engine;
        assert_eq!(engine.kind, EngineChoice::Docker);
        assert_eq!(engine.embedded.data_dir, Path::new("/data"));
        assert_eq!(engine.runtime.as_deref(), Some("runsc"));
        assert_eq!(engine.image.as_deref(), Some("sha256:1"));
        let host = ("unix:///run/d.sock".to_owned(), "SANDBOXCTL_ENGINE_HOST".to_owned());
        assert_eq!(engine.docker.host, Some(host));
        assert_eq!(engine.docker.env_context.as_deref(), Some("remote"));
    }

    #[test]
    fn engine_is_chosen_automatically_and_docker_is_looked_for_without_any_variable() {
        let engine = config(&[]).unwrap().engine;
        assert_eq!(engine.kind, EngineChoice::Auto);
        assert!(engine.docker.sockets.contains(&"/var/run/docker.sock".into()));
    }

    #[test]
    fn invalid_settings_name_their_variable() {
        let refused = |name, value| config(&[(name, value)]).unwrap_err();
        assert_eq!(
            refused("SANDBOXCTL_ENGINE_KIND", "podman"),
            "SANDBOXCTL_ENGINE_KIND: 'podman' is not an engine: use auto, docker or embedded"
        );
        assert_eq!(
            refused("SANDBOXCTL_AUDIT_FILE", "a.log"),
            "SANDBOXCTL_AUDIT_FILE: it is not an absolute path"
        );
        assert_eq!(
            refused("SANDBOXCTL_POLICY_CONFINEMENT", "none"),
            "SANDBOXCTL_POLICY_CONFINEMENT: 'none' is not a policy: use required or best-effort"
        );
        let message = refused("SANDBOXCTL_LIMITS_DISK_RESERVE", "much");
        assert!(message.starts_with("SANDBOXCTL_LIMITS_DISK_RESERVE: "), "{message}");
    }
}
