//! The agent's command line. The agent needs it before it confines itself and reads `hello`.

use std::fmt::Display;

use crate::message::Access;
use crate::path::{GuestPath, PathError};
use crate::user::{User, UserError};

/// Path of the agent in the project's own image, set by its Dockerfile. Docker mounts the agent
/// into other images under a random name; the embedded engine executes it from memory. This path is
/// never inside an io dir.
pub const MOUNTED_AGENT: &str = "/.sandbox/agent";

/// The beginning of the names under which the agent's process has the variables of the image, which
/// commands get. Under their own names they could decide how the agent's process itself runs.
pub const IMAGE_VARIABLE: &str = "image:";

/// The port on loopback where commands find the proxy. It is Squid's default port, so that software
/// that does not read proxy variables can be configured once.
pub const PROXY_PORT: u16 = 3128;

crate::words! {
    /// What the agent does.
    pub enum Mode {
        /// Serves a session that runs scripts.
        Script = "script",
        /// Serves a session that also runs commands of the image.
        Exec = "exec",
        /// Reads one script from stdin and reports whether it compiles ([`CheckReply`]). No session.
        Check = "check",
    }
}

crate::words! {
    /// What happens if the agent cannot confine itself as required.
    #[derive(Default)]
    pub enum ConfinementPolicy {
        /// The agent exits, unless its system call filter is in force, and Landlock if the kernel has
        /// it.
        #[default]
        Required = "required",
        /// The agent continues and reports which layer is missing.
        BestEffort = "best-effort",
    }
}

/// What bounds the disk space that commands can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DiskSpace {
    /// Measurements of the io dir, which see what is written there.
    #[default]
    Watched,
    /// The kernel: everything that they can write to is a file system of a bounded size.
    Bounded,
}

impl DiskSpace {
    const BOUNDED: &str = "bounded";
}

/// The exit code of an agent that could not confine itself as its policy requires; the reason is on
/// stderr.
pub const EXIT_UNCONFINED: i32 = 5;

/// A mount that scripts and operations can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its path in the sandbox.
    pub path: GuestPath,
    /// The access allowed to it.
    pub access: Access,
}

/// The agent's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentArgs {
    /// What the agent does.
    pub mode: Mode,
    /// The user that the agent must run as; it exits if it runs as another one. `None` if any user
    /// will do, as without a container.
    pub user: Option<User>,
    /// The mounts. None is inside another.
    pub mounts: Vec<Mount>,
    /// Directories in the mounts that the controller has covered with an empty one. Any other mount
    /// inside a mount is an error.
    pub hidden: Vec<String>,
    /// What `~` expands to: the root of the io dir's mount, if there is one.
    pub home: Option<GuestPath>,
    /// The base of relative paths.
    pub workdir: Option<GuestPath>,
    /// What happens if the agent cannot confine itself.
    pub confinement: ConfinementPolicy,
    /// The port on the sandbox's loopback where the proxy of commands listens, if they have egress.
    pub proxy: Option<u16>,
    /// What bounds the disk space that commands can take.
    pub disk: DiskSpace,
}

/// An invalid command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgsError {
    /// The mode is missing or unknown.
    #[error("the first argument is the mode: script, exec or check")]
    Mode,
    /// An unknown option, or an option without its value.
    #[error("unknown or incomplete argument '{0}'")]
    Option(String),
    /// Not a user: two numbers are needed.
    #[error("bad user '{user}': {source}")]
    User {
        /// As given.
        user: String,
        /// What is wrong.
        source: UserError,
    },
    /// An unknown policy.
    #[error("'{0}' is not a confinement policy: required or best-effort")]
    Confinement(String),
    /// An unknown bound.
    #[error("'{0}' is not a bound of disk space: bounded")]
    Disk(String),
    /// An invalid proxy.
    #[error("'{0}' is not a port")]
    Proxy(String),
    /// An invalid path.
    #[error("bad path '{path}': {source}")]
    Path {
        /// As given.
        path: String,
        /// What is wrong.
        source: PathError,
    },
}

/// What [`Mode::Check`] prints: one JSON object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckReply {
    /// Why the script does not compile, or null.
    pub error: Option<crate::message::ScriptError>,
    /// Names that it uses and that no script has, by line; at most [`MAX_CHECK_WARNINGS`].
    pub warnings: Vec<CheckWarning>,
}

/// Something in a script that compiles and cannot work.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckWarning {
    /// The line of the script, from 1.
    pub line: u32,
    /// What is wrong, and what to use.
    pub message: String,
}

/// Most warnings of a [`CheckReply`].
pub const MAX_CHECK_WARNINGS: usize = 50;

impl AgentArgs {
    /// The mode, with nothing mounted and every option at its default.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            user: None,
            mounts: Vec::new(),
            hidden: Vec::new(),
            home: None,
            workdir: None,
            confinement: ConfinementPolicy::default(),
            proxy: None,
            disk: DiskSpace::default(),
        }
    }

    /// The base of relative paths: the working directory, else the home, else `/` if there is no
    /// mount.
    pub fn base(&self) -> GuestPath {
        self.workdir.clone().or_else(|| self.home.clone()).unwrap_or_else(GuestPath::root)
    }

    /// The arguments after the program's name.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![self.mode.to_string()];
        let mut add = |option: &str, value: &dyn Display| {
            args.extend([option.to_owned(), value.to_string()]);
        };
        self.user.iter().for_each(|user| add("--user", user));
        for Mount { path, access } in &self.mounts {
            match access {
                Access::Read => add("--read", path),
                Access::Write => add("--write", path),
            }
        }
        self.hidden.iter().for_each(|path| add("--hidden", path));
        self.home.iter().for_each(|home| add("--home", home));
        self.workdir.iter().for_each(|workdir| add("--workdir", workdir));
        // The stricter policy is the default.
        if self.confinement != ConfinementPolicy::default() {
            add("--confinement", &self.confinement);
        }
        self.proxy.iter().for_each(|port| add("--proxy", port));
        if self.disk == DiskSpace::Bounded {
            add("--disk", &DiskSpace::BOUNDED);
        }
        args
    }

    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    ///
    /// [`ArgsError`] for anything that [`to_args`](Self::to_args) does not produce.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, ArgsError> {
        let mut args = args.into_iter();
        let mode = args.next().as_deref().and_then(Mode::from_word).ok_or(ArgsError::Mode)?;
        let mut parsed = Self::new(mode);
        let guest =
            |path: String| GuestPath::new(&path).map_err(|source| ArgsError::Path { path, source });
        while let Some(option) = args.next() {
            let Some(value) = args.next() else { return Err(ArgsError::Option(option)) };
            match option.as_str() {
                "--user" => {
                    let user = value.parse();
                    parsed.user =
                        Some(user.map_err(|source| ArgsError::User { user: value, source })?);
                }
                "--read" => {
                    parsed.mounts.push(Mount { path: guest(value)?, access: Access::Read });
                }
                "--write" => {
                    parsed.mounts.push(Mount { path: guest(value)?, access: Access::Write });
                }
                "--hidden" => parsed.hidden.push(value),
                "--home" => parsed.home = Some(guest(value)?),
                "--workdir" => parsed.workdir = Some(guest(value)?),
                "--confinement" => {
                    parsed.confinement = ConfinementPolicy::from_word(&value)
                        .ok_or(ArgsError::Confinement(value))?;
                }
                "--proxy" => {
                    parsed.proxy = Some(value.parse().map_err(|_| ArgsError::Proxy(value))?);
                }
                "--disk" if value == DiskSpace::BOUNDED => parsed.disk = DiskSpace::Bounded,
                "--disk" => return Err(ArgsError::Disk(value)),
                _ => return Err(ArgsError::Option(option)),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_back_as_they_went() {
        let path = |text: &str| GuestPath::new(text).unwrap();
        let args = AgentArgs {
            mode: Mode::Script,
            user: Some(User::new(4321, 4322).unwrap()),
            mounts: vec![
                Mount { path: path("/io"), access: Access::Write },
                Mount { path: path("/in/a b"), access: Access::Read },
            ],
            hidden: vec!["/in/a b/state".into()],
            home: Some(path("/io")),
            workdir: Some(path("/io/x")),
            confinement: ConfinementPolicy::BestEffort,
            proxy: Some(PROXY_PORT),
            disk: DiskSpace::Bounded,
        };
        assert_eq!(AgentArgs::parse(args.to_args()), Ok(args.clone()));
        for mode in [Mode::Script, Mode::Exec, Mode::Check] {
            let confinement = ConfinementPolicy::Required;
            let disk = DiskSpace::Watched;
            let args = AgentArgs { mode, confinement, proxy: None, disk, ..args.clone() };
            assert_eq!(AgentArgs::parse(args.to_args()), Ok(args));
        }
    }

    #[test]
    fn an_unknown_argument_is_named() {
        let parse = |args: &[&str]| AgentArgs::parse(args.iter().map(|&arg| arg.to_owned()));
        assert_eq!(parse(&[]), Err(ArgsError::Mode));
        assert_eq!(parse(&["script", "--read"]), Err(ArgsError::Option("--read".into())));
        assert_eq!(parse(&["script", "--x", "/a"]), Err(ArgsError::Option("--x".into())));
        let unchanged = parse(&["script", "--user", "4294967295:0"]).unwrap_err();
        assert!(unchanged.to_string().contains("unchanged"), "{unchanged}");
        let none = parse(&["script", "--confinement", "none"]);
        assert_eq!(none, Err(ArgsError::Confinement("none".into())));
        let unlimited = parse(&["exec", "--disk", "unlimited"]);
        assert_eq!(unlimited, Err(ArgsError::Disk("unlimited".into())));
        for none in ["65536", "3128:localhost", "x", ""] {
            let refused = parse(&["exec", "--proxy", none]);
            assert_eq!(refused, Err(ArgsError::Proxy(none.into())));
        }
    }
}
