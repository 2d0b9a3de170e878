//! What a caller asks for: a sandbox, and a script to run in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_protocol::User;
use sandbox_protocol::limits::{MAX_ARGS_BYTES, MAX_VALUE_DEPTH};
use sandbox_protocol::message::{AllowedPath, IoErrors};
use sandbox_protocol::path::MAX_PATH_BYTES;
use serde_json::{Map, Value};

use crate::encoding::Encoding;
use crate::hosts::Allowlist;
use crate::limits::Limits;

/// How long a sandbox may live at most.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// How long nothing may be asked of a sandbox that is kept.
pub const DEFAULT_IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Names whose files others run or trust: shells, editors, version control, package managers and
/// agents read them wherever they find them. [`SandboxSpec::protected`] takes them where a sandbox
/// works on somebody's own files; none is protected unless it is asked for.
pub const DEFAULT_PROTECTED: &[&str] = &[
    // Shells, logins.
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".config/fish",
    ".cshrc",
    ".envrc",
    ".inputrc",
    ".kshrc",
    ".login",
    ".logout",
    ".pam_environment",
    ".profile",
    ".ripgreprc",
    ".tcshrc",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    // What starts by itself.
    ".config/autostart",
    ".config/environment.d",
    ".config/systemd",
    ".local/bin",
    // Keys, and where they are used.
    ".aws",
    ".docker",
    ".gnupg",
    ".kube",
    ".netrc",
    ".ssh",
    // Version control.
    ".config/git",
    // Its hooks and its config run programs; a file of that name can lead to another config.
    ".git",
    ".gitconfig",
    ".gitmodules",
    ".hg",
    ".hgrc",
    ".husky",
    ".pre-commit-config.yaml",
    // Pipelines.
    ".circleci",
    ".forgejo",
    ".gitea",
    ".github/actions",
    ".github/workflows",
    ".gitlab-ci.yml",
    // Package managers, interpreters.
    ".cargo/config",
    ".cargo/config.toml",
    ".config/pip",
    ".gemrc",
    ".npmrc",
    ".pip",
    ".pnpmfile.cjs",
    ".pypirc",
    ".pythonrc",
    ".yarn",
    ".yarnrc",
    ".yarnrc.yml",
    // Editors.
    ".config/nvim",
    ".devcontainer",
    ".devcontainer.json",
    ".emacs",
    ".emacs.d",
    ".exrc",
    ".fleet",
    ".gdbinit",
    ".idea",
    ".lldbinit",
    ".nvimrc",
    ".vim",
    ".vimrc",
    ".vscode",
    ".zed",
    // Agents.
    ".aider.conf.yml",
    ".claude",
    ".claude.json",
    ".codex",
    ".continue",
    ".cursor",
    ".cursorrules",
    ".gemini",
    ".mcp.json",
    ".windsurf",
    // Ours.
    "sandboxctl.toml",
    ".config/sandboxctl",
];

/// A part of a [`SandboxSpec`] or a [`Script`] that cannot be used: its caller's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A protected name is none.
    #[error("cannot protect '{name}': {reason}")]
    ProtectedName {
        /// As it was given.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// An argument for the script that no script can be given.
    #[error("the script's argument '{what}' cannot be used: {reason}")]
    Args {
        /// Which.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Arguments for the script that are too long.
    #[error("the script's arguments are longer than {max} bytes of JSON")]
    ArgsTooLarge {
        /// The most that fits.
        max: usize,
    },
}

impl SpecError {
    /// The next step, where there is one to name.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ArgsTooLarge { .. } => Some("give large data as an input: --in SRC[:NAME]"),
            Self::ProtectedName { .. } | Self::Args { .. } => None,
        }
    }
}

/// A sandbox to launch. Every limit is set; without an [`io_dir`](Self::io_dir) it has no files.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// What its file system is made from.
    pub root: RootFs,
    /// The host's directory that is its io dir.
    pub io_dir: Option<PathBuf>,
    /// No files at all.
    pub io_is_off: bool,
    /// An io dir of its own, in memory.
    pub io_is_private: bool,
    /// Where the io dir appears.
    pub mount_path: String,
    /// What relative paths are relative to; `None` for the io dir's root.
    pub workdir: Option<String>,
    /// Its read-only inputs.
    pub inputs: Vec<Input>,
    /// Its limits, all of them.
    pub limits: Limits,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// Guest path prefixes that may be used; `None` for the mounts.
    pub allowed_paths: Option<Vec<AllowedPath>>,
    /// Names that refuse writes.
    pub protected: Vec<String>,
    /// Who it runs as; `None` for the io dir's owner.
    pub user: Option<User>,
    /// How long it may live at most.
    pub lifetime: Duration,
    /// How long nothing may be asked of it.
    pub idle_limit: Option<Duration>,
    /// The encoding of reads and writes that name none.
    pub default_encoding: Encoding,
    /// What it is for.
    pub lifespan: Lifespan,
    /// What its container is called in lists.
    pub container_name: Option<String>,
    /// Which hosts commands may reach.
    pub allow: Allowlist,
}

/// What a sandbox's file system is made from.
///
/// Programs run in any but [`Builtin`](Self::Builtin), beside scripts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RootFs {
    /// The sandbox image, which has no programs: scripts and files alone.
    #[default]
    Builtin,
    /// An image of the engine's.
    Image {
        /// Its name, with a tag or a digest, or its id.
        reference: String,
        /// When it is fetched from its registry.
        pull: Pull,
    },
    /// A directory of the host, which is never written to. The embedded engine's alone.
    Directory(PathBuf),
    /// A tar of an image, as `docker save` writes it or as an OCI layout. The embedded engine's
    /// alone.
    Archive(PathBuf),
}

impl RootFs {
    /// Whether there can be programs.
    #[must_use]
    pub const fn supports_exec(&self) -> bool {
        !matches!(self, Self::Builtin)
    }
}

/// When an image is fetched from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pull {
    /// Where the engine does not have it.
    #[default]
    Missing,
    /// Not at all: the engine has it, or the launch fails.
    Never,
    /// Each time.
    Always,
}

/// What a sandbox is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifespan {
    /// Any number of runs, one at a time.
    #[default]
    ManyRuns,
    /// One run, which also bounds the processor time of its whole life.
    OneRun,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            root: RootFs::default(),
            io_dir: None,
            io_is_off: false,
            io_is_private: false,
            mount_path: "/io".to_owned(),
            workdir: None,
            inputs: Vec::new(),
            limits: Limits::default(),
            io_errors: IoErrors::default(),
            allowed_paths: None,
            protected: Vec::new(),
            user: None,
            lifetime: DEFAULT_LIFETIME,
            idle_limit: None,
            default_encoding: Encoding::default(),
            lifespan: Lifespan::default(),
            container_name: None,
            allow: Allowlist::default(),
        }
    }
}

impl SandboxSpec {
    /// A sandbox with the default limits and no files.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What its file system is made from; the sandbox image by default.
    #[must_use]
    pub fn root(mut self, root: RootFs) -> Self {
        self.root = root;
        self
    }

    /// The host's directory that scripts read and write. Made if it is missing, and then removed
    /// again where a sandbox leaves it empty.
    #[must_use]
    pub fn io_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.io_dir = Some(dir.into());
        self.io_is_off = false;
        self.io_is_private = false;
        self
    }

    /// An io dir of its own, in memory, in place of one of the host's: as large as may be written,
    /// which the kernel keeps, and gone with the sandbox. What is in it counts against the memory
    /// limit. Only the embedded engine makes one.
    #[must_use]
    pub fn private_io_dir(mut self) -> Self {
        self.io_dir = None;
        self.io_is_off = false;
        self.io_is_private = true;
        self
    }

    /// No files at all: a sandbox with inputs is refused then.
    #[must_use]
    pub fn no_io(mut self) -> Self {
        self.io_dir = None;
        self.io_is_off = true;
        self.io_is_private = false;
        self
    }

    /// Where the io dir appears; `/io` by default.
    #[must_use]
    pub fn mount_path(mut self, path: impl Into<String>) -> Self {
        self.mount_path = path.into();
        self
    }

    /// What relative paths are relative to; the io dir's root by default.
    #[must_use]
    pub fn workdir(mut self, path: impl Into<String>) -> Self {
        self.workdir = Some(path.into());
        self
    }

    /// One more read-only input.
    #[must_use]
    pub fn input(mut self, input: Input) -> Self {
        self.inputs.push(input);
        self
    }

    /// The limits, all of them.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How `io` reports OS errors.
    #[must_use]
    pub fn io_errors(mut self, io_errors: IoErrors) -> Self {
        self.io_errors = io_errors;
        self
    }

    /// Guest path prefixes that may be used; by default the mounts, each with its access.
    #[must_use]
    pub fn allowed_paths(mut self, paths: Vec<AllowedPath>) -> Self {
        self.allowed_paths = Some(paths);
        self
    }

    /// Names that refuse writes wherever they stand, such as `.bashrc` or `.git/hooks`, whatever
    /// their case; none by default. [`DEFAULT_PROTECTED`] is a list of them.
    #[must_use]
    pub fn protected(mut self, names: Vec<String>) -> Self {
        self.protected = names;
        self
    }

    /// Whether this can be a name of [`protected`](Self::protected): one component, or several
    /// with `/` between them. A launch checks it too.
    ///
    /// # Errors
    ///
    /// [`SpecError::ProtectedName`].
    pub fn check_protected_name(name: &str) -> Result<(), SpecError> {
        let refuse = |reason| Err(SpecError::ProtectedName { name: name.to_owned(), reason });
        let name = name.strip_suffix('/').unwrap_or(name);
        if name.starts_with('/') {
            return refuse("a name stands anywhere, so it does not begin with '/'");
        }
        if name.len() > MAX_PATH_BYTES || name.contains('\0') {
            return refuse("no path could have it");
        }
        let is_none = |part| matches!(part, "" | "." | "..");
        if name.split('/').any(is_none) {
            return refuse("a part of it is empty, '.' or '..'");
        }
        Ok(())
    }

    /// Who to run as; by default the io dir's owner.
    #[must_use]
    pub fn user(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    /// How long the sandbox may live at most; [`DEFAULT_LIFETIME`] by default.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// How long nothing may be asked of the sandbox before it ends; by default only its lifetime
    /// bounds that. [`DEFAULT_IDLE_LIMIT`] is what a sandbox that is kept for others should have.
    #[must_use]
    pub fn idle_limit(mut self, limit: Option<Duration>) -> Self {
        self.idle_limit = limit;
        self
    }

    /// The encoding of `Sandbox::read` and of operations as data, where
    /// they name none; UTF-8 by default.
    #[must_use]
    pub fn default_encoding(mut self, encoding: Encoding) -> Self {
        self.default_encoding = encoding;
        self
    }

    /// What to call the container where containers are listed: its label `sandboxctl.name`.
    #[must_use]
    pub fn container_name(mut self, name: impl Into<String>) -> Self {
        self.container_name = Some(name.into());
        self
    }

    /// What the sandbox is for; [`Lifespan::ManyRuns`] by default.
    #[must_use]
    pub fn lifespan(mut self, lifespan: Lifespan) -> Self {
        self.lifespan = lifespan;
        self
    }

    /// Whether there can be programs in it.
    #[must_use]
    pub const fn supports_exec(&self) -> bool {
        self.root.supports_exec()
    }

    /// Which hosts programs may reach. None by default. Without programs a list of any is an error of
    /// the launch: a script itself reaches none ever.
    #[must_use]
    pub fn allow(mut self, hosts: Allowlist) -> Self {
        self.allow = hosts;
        self
    }
}

/// A read-only input, at `/in/NAME`.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name below `/in`.
    pub name: String,
    /// What it is.
    pub source: InputSource,
}

/// What an [`Input`] is.
#[derive(Debug, Clone)]
pub enum InputSource {
    /// A file or directory of the host.
    Path(PathBuf),
    /// Bytes, which appear as a file.
    Bytes(Vec<u8>),
}

impl Input {
    /// A file or a directory of the host.
    #[must_use]
    pub fn path(source: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self { name: name.into(), source: InputSource::Path(source.into()) }
    }

    /// Bytes, which appear as a file. They are spooled below the controller's state folder for
    /// the life of the sandbox.
    #[must_use]
    pub fn bytes(name: impl Into<String>, content: Vec<u8>) -> Self {
        Self { name: name.into(), source: InputSource::Bytes(content) }
    }

    /// The name that an input of `source` has where none is given: its last component.
    #[must_use]
    pub fn default_name(source: &Path) -> Option<&str> {
        source.file_name().and_then(|name| name.to_str())
    }
}

/// A script to run.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Its text.
    pub source: Vec<u8>,
    /// Its `args`.
    pub args: Map<String, Value>,
    /// How long it may run; `None` for the sandbox's limit.
    pub timeout: Option<Duration>,
}

impl Script {
    /// A script of this text.
    #[must_use]
    pub fn new(source: impl Into<Vec<u8>>) -> Self {
        Self { source: source.into(), args: Map::new(), timeout: None }
    }

    /// The script's `args`.
    #[must_use]
    pub fn args(mut self, args: Map<String, Value>) -> Self {
        self.args = args;
        self
    }

    /// How long it may run, in place of the sandbox's [`Limits::timeout`] and under the same
    /// ceiling.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Whether these `args` can be given to a script. A run checks it too, before it begins.
    ///
    /// # Errors
    ///
    /// [`SpecError`] for what is too long, too deep, or no number of Luau's.
    pub fn check_args(args: &Map<String, Value>) -> Result<(), SpecError> {
        for (key, value) in args {
            // The arguments themselves are a level.
            check_value(value, 1)
                .map_err(|reason| SpecError::Args { what: format!("args.{key}"), reason })?;
        }
        let length = serde_json::to_string(args).map_or(usize::MAX, |json| json.len());
        if length > MAX_ARGS_BYTES {
            return Err(SpecError::ArgsTooLarge { max: MAX_ARGS_BYTES });
        }
        Ok(())
    }
}

/// Integers beyond here are not exact any more.
const MAX_EXACT: u64 = 1 << 53;

/// By the agent's own rules, so that nothing of the caller's is blamed on the script.
fn check_value(value: &Value, depth: usize) -> Result<(), String> {
    let below: Vec<&Value> = match value {
        Value::Null | Value::Bool(_) | Value::String(_) => return Ok(()),
        Value::Number(number) => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            return match size {
                Some(size) if size > MAX_EXACT => {
                    Err(format!("the integer {number} is beyond 2^53"))
                }
                _ => Ok(()),
            };
        }
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
    };
    if depth == MAX_VALUE_DEPTH {
        return Err(format!("nested deeper than {MAX_VALUE_DEPTH}"));
    }
    below.into_iter().try_for_each(|value| check_value(value, depth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(args: Value) -> Result<(), String> {
        let Value::Object(args) = args else { panic!("{args}") };
        Script::check_args(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_protected_name_is_one_that_a_path_can_have() {
        let check = SandboxSpec::check_protected_name;
        for name in DEFAULT_PROTECTED.iter().copied().chain(["a", ".git/hooks/", "..a", "Zoë"]) {
            check(name).unwrap();
        }
        for name in ["", "/", "/io/.bashrc", "a//b", "./a", "a/..", "..", "a\0b", "a//"] {
            check(name).unwrap_err();
        }
        let error = check("/io/.bashrc").unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot protect '/io/.bashrc': a name stands anywhere, so it does not begin with '/'"
        );
    }

    #[test]
    fn arguments_that_no_script_can_be_given_are_the_callers_mistake() {
        let exact = json!({"a": 1_u64 << 53, "b": -(1_i64 << 53), "c": 1e300, "d": [null, "x"]});
        assert_eq!(check(exact), Ok(()));
        for inexact in [json!((1_u64 << 53) + 1), json!(i64::MIN), json!(u64::MAX)] {
            let error = check(json!({"id": [{"n": inexact}]})).unwrap_err();
            assert!(error.contains("args.id") && error.contains("is beyond 2^53"), "{error}");
        }
        let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(check(json!({"a": nested(MAX_VALUE_DEPTH - 1)})), Ok(()));
        let error = check(json!({"a": nested(MAX_VALUE_DEPTH)})).unwrap_err();
        assert!(error.contains("args.a") && error.contains("deeper than 56"), "{error}");
        assert!(check(json!({"a": "x".repeat(MAX_ARGS_BYTES)})).unwrap_err().contains("longer"));
    }
}
