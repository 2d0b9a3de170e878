//! Specifications: a sandbox, and a script to run in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_protocol::limits::{MAX_ARGS_BYTES, MAX_VALUE_DEPTH};
use sandbox_protocol::message::{AllowedPath, FileScope, IoErrors};
use sandbox_protocol::path::MAX_PATH_BYTES;
use sandbox_protocol::{User, WireString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::encoding::Encoding;
use crate::hosts::Allowlist;
use crate::injection::Injection;
use crate::json::{In, Millis};
use crate::limits::Limits;
use crate::ports::Ports;
use crate::secrets::Secrets;
use crate::setters::setters;

/// The default maximum lifetime of a sandbox.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// The recommended idle timeout of a sandbox that is kept open.
pub const DEFAULT_IDLE_LIMIT: Duration = Duration::from_secs(600);

/// File names that other programs execute or trust: shells, editors, version control, package
/// managers and agents read such files wherever they find them. Pass this list to
/// [`SandboxSpec::protected`] if a sandbox works on a user's own files; no name is protected by
/// default.
pub const DEFAULT_PROTECTED: &[&str] = &[
    // Shells, logins.
    ".bash_aliases", ".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".config/fish",
    ".cshrc", ".envrc", ".inputrc", ".kshrc", ".login", ".logout", ".pam_environment", ".profile",
    ".ripgreprc", ".tcshrc", ".xinitrc", ".xprofile", ".xsession", ".zlogin", ".zlogout",
    ".zprofile", ".zshenv", ".zshrc",
    // Programs that start automatically.
    ".config/autostart", ".config/environment.d", ".config/systemd", ".local/bin",
    // Keys, and files that configure their use.
    ".aws", ".docker", ".gnupg", ".kube", ".netrc", ".ssh",
    // Version control: hooks and configs run programs, and a file of such a name can point to another config.
    ".config/git", ".git", ".gitconfig", ".gitmodules", ".hg", ".hgrc", ".husky",
    ".pre-commit-config.yaml", // Pipelines of continuous integration.
    ".circleci", ".forgejo", ".gitea", ".github/actions", ".github/workflows", ".gitlab-ci.yml",
    // Package managers, interpreters.
    ".cargo/config", ".cargo/config.toml", ".config/pip", ".gemrc", ".npmrc", ".pip",
    ".pnpmfile.cjs", ".pypirc", ".pythonrc", ".yarn", ".yarnrc", ".yarnrc.yml",
    // Editors.
    ".config/nvim", ".devcontainer", ".devcontainer.json", ".emacs", ".emacs.d", ".exrc", ".fleet",
    ".gdbinit", ".idea", ".lldbinit", ".nvimrc", ".vim", ".vimrc", ".vscode", ".zed",
    // Agents.
    ".aider.conf.yml", ".claude", ".claude.json", ".codex", ".continue", ".cursor", ".cursorrules",
    ".gemini", ".mcp.json", ".windsurf",
    // The configuration of sandboxctl itself.
    "sandboxctl.toml", ".config/sandboxctl",
];

/// A part of a [`SandboxSpec`] or a [`Script`] is invalid: the caller's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A protected name is invalid.
    #[error("cannot protect '{name}': {reason}")]
    ProtectedName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An argument that cannot be passed to a script.
    #[error("the script's argument '{what}' cannot be used: {reason}")]
    Args {
        /// Which argument.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The id is not one of a kept sandbox's containers.
    #[error("'{}' is not the id of a container of a kept sandbox", .id.escape_debug())]
    Id {
        /// As given.
        id: String,
    },
    /// The script's arguments are too large.
    #[error("the script's arguments are longer than {max} bytes of JSON")]
    ArgsTooLarge {
        /// The maximum size in bytes.
        max: usize,
    },
}

impl SpecError {
    /// A suggested next step, if there is one.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ArgsTooLarge { .. } => Some("give large data as an input: --in SRC[:NAME]"),
            Self::ProtectedName { .. } | Self::Args { .. } | Self::Id { .. } => None,
        }
    }
}

/// A sandbox to launch. Every limit is set. Without an [`io_dir`](Self::io_dir) it has no files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSpec {
    /// The root filesystem.
    pub root: RootFs,
    /// The io dir on the host.
    #[serde(with = "In::<Option<WireString>>")]
    pub io_dir: Option<PathBuf>,
    /// Whether the sandbox has no files at all.
    pub io_is_off: bool,
    /// Whether the paths of its io dir and its inputs are opened without following a symbolic link:
    /// a writer of a directory in such a path cannot redirect it.
    pub no_symlinks: bool,
    /// Where its private io dir is, if it has one.
    pub private_io: Option<PrivateIo>,
    /// Where its private io dir is kept when the sandbox ends, if it is. In no receipt.
    #[serde(skip)]
    pub kept_at: Option<PathBuf>,
    /// Whether it works on a copy of the io dir, whose changes are listed and committed at its end.
    pub staged: bool,
    /// The guest path of the io dir.
    pub mount_path: String,
    /// The working directory, to which relative paths are resolved; `None` for the io dir.
    pub workdir: Option<String>,
    /// The read-only inputs.
    pub inputs: Vec<Input>,
    /// The limits, all of them.
    pub limits: Limits,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// The guest path prefixes that may be used; `None` for the mounts.
    pub allowed_paths: Option<Vec<AllowedPath>>,
    /// File names that may not be written.
    pub protected: Vec<String>,
    /// The user it runs as; `None` for the owner of the io dir.
    pub user: Option<User>,
    /// The maximum lifetime.
    #[serde(rename = "lifetime_ms", with = "In::<Millis>")]
    pub lifetime: Duration,
    /// The idle timeout.
    #[serde(rename = "idle_limit_ms", with = "In::<Option<Millis>>")]
    pub idle_limit: Option<Duration>,
    /// The encoding of reads and writes that do not specify one.
    pub default_encoding: Encoding,
    /// Whether it serves one run or many.
    pub lifespan: Lifespan,
    /// Its id, if it is one of the containers of a kept sandbox: [`generation_id`](crate::generation_id).
    /// Others have a random one.
    #[serde(skip)]
    pub id: Option<String>,
    /// The name of its container in lists.
    pub container_name: Option<String>,
    /// What it is made for, for lists: a script's file or a program, without its arguments, because
    /// everyone who may use the engine can read it.
    #[serde(default)]
    pub title: Option<String>,
    /// The hosts that commands may reach.
    pub allow: Allowlist,
    /// The secrets that are added to requests to hosts, which are allowed by that. No document has them.
    #[serde(skip)]
    pub inject: Vec<Injection>,
    /// Whether processes may live on after the request that started them.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub processes: Processes,
    /// The TCP ports of its loopback that may be connected to from outside. Needs programs.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub ports: Ports,
    /// Where file operations may go.
    #[serde(skip_serializing_if = "FileScope::is_default")]
    pub files: FileScope,
}

/// How long the processes of a sandbox live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// Until the command ends that started them.
    #[default]
    PerCommand,
    /// Those that are started to live on, and what these leave behind, until they end or the sandbox does.
    Kept,
}

/// Where a private io dir is: one that only its sandbox sees, and that ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrivateIo {
    /// In memory. Embedded engine only.
    Memory,
    /// On the host's disk.
    Disk,
}

/// The root filesystem of a sandbox.
///
/// All but [`Builtin`](Self::Builtin) support commands as well as scripts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum RootFs {
    /// The built-in sandbox image, which contains no programs: scripts and file operations only.
    #[default]
    Builtin,
    /// An image of the engine.
    Image {
        /// Its name with a tag or a digest, or its id.
        reference: String,
        /// When to pull it.
        #[serde(default)]
        pull: Pull,
    },
    /// A directory on the host, which is never written to. Embedded engine only.
    Directory(#[serde(with = "In::<WireString>")] PathBuf),
    /// A tar archive of an image: the format of `docker save`, or an OCI layout. Embedded engine
    /// only.
    Archive(#[serde(with = "In::<WireString>")] PathBuf),
}

impl RootFs {
    /// Whether commands can run in it.
    pub const fn supports_exec(&self) -> bool {
        !matches!(self, Self::Builtin)
    }

    /// The limits of a sandbox that is made from it, unless others are set.
    pub fn default_limits(&self) -> Limits {
        match self.supports_exec() {
            true => Limits::for_programs(),
            false => Limits::default(),
        }
    }
}

/// When to pull an image from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// If the engine does not have it.
    #[default]
    Missing,
    /// Never: if the engine does not have it, the launch fails.
    Never,
    /// At every launch.
    Always,
}

/// How many runs a sandbox serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lifespan {
    /// Any number of runs, one at a time.
    #[default]
    ManyRuns,
    /// One run. Its limit of processor time then applies to the whole life of the sandbox.
    OneRun,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            root: RootFs::default(),
            io_dir: None,
            io_is_off: false,
            no_symlinks: false,
            private_io: None,
            kept_at: None,
            staged: false,
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
            id: None,
            container_name: None,
            title: None,
            allow: Allowlist::default(),
            inject: Vec::new(),
            processes: Processes::default(),
            ports: Ports::default(),
            files: FileScope::default(),
        }
    }
}

impl SandboxSpec {
    /// A sandbox with the default limits and no files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the root filesystem; the built-in sandbox image by default. Limits that are the defaults
    /// become [those of programs](Limits::for_programs) in a sandbox that has some.
    #[must_use]
    pub fn root(mut self, root: RootFs) -> Self {
        if self.limits == self.root.default_limits() {
            self.limits = root.default_limits();
        }
        self.root = root;
        self
    }

    /// Sets the directory on the host that scripts read and write. It is created if it is missing,
    /// and removed again if a sandbox leaves it empty.
    #[must_use]
    pub fn io_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { io_dir: Some(dir.into()), ..self.without_io_dir() }
    }

    /// Uses a private io dir that is kept at this path when the sandbox ends, and that other sandboxes
    /// with the same path share. What is there is the controller's own: an image, or a directory where
    /// there can be no image. Its directory must admit only this user. Removing it is the caller's.
    #[must_use]
    pub fn kept_io_dir(self, path: impl Into<PathBuf>) -> Self {
        Self { kept_at: Some(path.into()), ..self.private(PrivateIo::Disk) }
    }

    /// Lets the sandbox work on a copy of the io dir. At its end the changes can be listed, and are
    /// committed atomically; without that decision they are discarded.
    #[must_use]
    pub fn staged(mut self) -> Self {
        self.staged = true;
        self
    }

    /// Uses a private io dir in memory instead of a directory on the host. The kernel limits its
    /// size to the write limit, and it disappears with the sandbox. Its content counts against the
    /// memory limit. Embedded engine only.
    #[must_use]
    pub fn private_io_dir(self) -> Self {
        self.private(PrivateIo::Memory)
    }

    /// Uses a private io dir on the host's disk: a fresh directory that no other sandbox sees, and
    /// that is removed with the sandbox.
    #[must_use]
    pub fn fresh_io_dir(self) -> Self {
        self.private(PrivateIo::Disk)
    }

    fn private(self, private: PrivateIo) -> Self {
        Self { private_io: Some(private), ..self.without_io_dir() }
    }

    fn without_io_dir(self) -> Self {
        Self { io_dir: None, io_is_off: false, private_io: None, kept_at: None, ..self }
    }

    /// Disables files entirely: a sandbox with inputs is then refused.
    #[must_use]
    pub fn no_io(self) -> Self {
        Self { io_is_off: true, ..self.without_io_dir() }
    }

    /// Refuses a symbolic link in the paths of the io dir and the inputs, also one that is made while
    /// the sandbox is launched. Resolve the links that are to be followed before.
    #[must_use]
    pub const fn no_symlinks(mut self) -> Self {
        self.no_symlinks = true;
        self
    }

    /// Sets the guest path of the io dir; `/io` by default.
    #[must_use]
    pub fn mount_path(mut self, path: impl Into<String>) -> Self {
        self.mount_path = path.into();
        self
    }

    /// Adds a read-only input.
    #[must_use]
    pub fn input(mut self, input: Input) -> Self {
        self.inputs.push(input);
        self
    }

    /// Checks a name for [`protected`](Self::protected): it must be one path component, or several
    /// separated by `/`. A launch checks it too.
    ///
    /// # Errors
    ///
    /// [`SpecError::ProtectedName`].
    pub fn check_protected_name(name: &str) -> Result<(), SpecError> {
        let refuse = |reason| Err(SpecError::ProtectedName { name: name.to_owned(), reason });
        let name = name.strip_suffix('/').unwrap_or(name);
        if name.starts_with('/') {
            return refuse("a protected name matches at any depth, so it cannot begin with '/'");
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

    /// Whether commands can run in it.
    pub const fn supports_exec(&self) -> bool {
        self.root.supports_exec()
    }

    /// The hosts that commands may reach, with those that secrets are sent to.
    pub fn hosts(&self) -> Allowlist {
        Injection::add_hosts(&self.inject, &self.allow)
    }
}

setters! {
    SandboxSpec {
        /// Lets these TCP ports of its loopback be connected to from outside.
        ports: Ports,
        /// Sets where file operations may go.
        files: FileScope,
        /// Sets all limits.
        limits: Limits,
        /// Sets how `io` reports OS errors.
        io_errors: IoErrors,
        /// Sets file names that may not be written anywhere, such as `.bashrc` or `.git/hooks`,
        /// compared without case; none by default. [`DEFAULT_PROTECTED`] is a recommended list.
        protected: Vec<String>,
        /// Sets the user to run as; by default the owner of the io dir.
        user: Option<User>,
        /// Sets the maximum lifetime of the sandbox; [`DEFAULT_LIFETIME`] by default.
        lifetime: Duration,
        /// Sets the idle timeout, after which a sandbox without requests ends; none by default. Use
        /// [`DEFAULT_IDLE_LIMIT`] for a sandbox that is kept open for other callers.
        idle_limit: Option<Duration>,
        /// Sets the encoding of `Sandbox::read` and of [`Operation`](crate::Operation)s that do not
        /// specify one; UTF-8 by default.
        default_encoding: Encoding,
        /// Sets how many runs the sandbox serves; [`Lifespan::ManyRuns`] by default.
        lifespan: Lifespan,
        /// Sets the hosts that commands may reach; none by default. A launch fails if the list is not
        /// empty and the sandbox does not support commands: scripts have no network.
        allow: Allowlist,
        /// Sets the secrets that are added to requests to hosts, so that the sandbox does not have them; none
        /// by default. Needs commands, as hosts do.
        inject: Vec<Injection>,
        /// Sets whether processes may live on after the request that started them; by default not.
        processes: Processes,
    }
    some {
        /// Sets the guest path prefixes that may be used; by default the mounts, each with its access.
        allowed_paths: Vec<AllowedPath>,
    }
    text {
        /// Sets the working directory, to which relative paths are resolved; the io dir by default.
        workdir,
        /// Sets the id of the sandbox: the container is `sandboxctl-ID-gN`. A launch fails if it is not of
        /// the form of a [`generation_id`](crate::generation_id).
        id,
        /// Sets the name of the container in lists of containers: its label `sandboxctl.name`.
        container_name,
        /// Says in lists what the sandbox is made for: the label `sandboxctl.title`. Everyone who may use
        /// the engine can read it.
        title,
    }
}

/// A read-only input, at `/in/NAME` or at a path of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name below `/in`; or, if it begins with `/`, the path in the sandbox where it appears.
    pub name: String,
    /// Its content.
    pub source: InputSource,
}

/// The content of an [`Input`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputSource {
    /// A file or directory on the host.
    Path(#[serde(with = "In::<WireString>")] PathBuf),
    /// Bytes, which appear as a file.
    Bytes(#[serde(with = "In::<WireString>")] Vec<u8>),
}

impl Input {
    /// An input from a file or directory on the host.
    pub fn path(source: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self { name: name.into(), source: InputSource::Path(source.into()) }
    }

    /// An input from bytes, which appear as a file. They are stored below the controller's state
    /// directory for the life of the sandbox.
    pub fn bytes(name: impl Into<String>, content: Vec<u8>) -> Self {
        Self { name: name.into(), source: InputSource::Bytes(content) }
    }

    /// Whether its name is a path of its own, not a name below `/in`.
    pub fn is_at_a_path(&self) -> bool {
        self.name.starts_with('/')
    }

    /// The default name of an input from `source`: its last path component.
    pub fn default_name(source: &Path) -> Option<&str> {
        source.file_name().and_then(|name| name.to_str())
    }
}

/// A script to run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its source code.
    #[serde(with = "In::<WireString>")]
    pub source: Vec<u8>,
    /// Its `args`.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Its `secrets`. No document has them.
    #[serde(skip)]
    pub secrets: Secrets,
    /// Its time limit; `None` for the sandbox's limit.
    #[serde(rename = "timeout_ms", default, with = "In::<Option<Millis>>")]
    pub timeout: Option<Duration>,
    /// The seed of its `math.random`; `None` for another one each time.
    #[serde(default)]
    pub seed: Option<u32>,
    /// Its time in seconds since 1970, which stands still; `None` for that of the machine.
    #[serde(default)]
    pub now: Option<u64>,
}

impl Script {
    /// A script with this source code.
    pub fn new(source: impl Into<Vec<u8>>) -> Self {
        Self { source: source.into(), ..Self::default() }
    }

    /// Checks whether a script accepts these `args`. A run checks them too, before it begins.
    ///
    /// # Errors
    ///
    /// [`SpecError`] if they are too large, too deeply nested, or contain a number that Luau cannot
    /// represent.
    pub fn check_args(args: &Map<String, Value>) -> Result<(), SpecError> {
        for (key, value) in args {
            // The arguments themselves are one level.
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

setters! {
    Script {
        /// Sets the script's `args`.
        args: Map<String, Value>,
        /// Sets the secrets, which the script reads as `secrets.NAME`.
        secrets: Secrets,
        /// Gives `math.random` this seed, so that a script draws the same numbers each time.
        seed: Option<u32>,
        /// Sets what `os.time` and `os.date` give, in seconds since 1970, and lets `os.clock` begin at 0.
        now: Option<u64>,
    }
    some {
        /// Sets the time limit, in place of the sandbox's [`Limits::timeout`] and under the same
        /// ceiling.
        timeout: Duration,
    }
}

/// Larger integers are not exact in a double.
const MAX_EXACT: u64 = 1 << 53;

/// Applies the agent's own rules, so that a mistake of the caller is not reported as the script's.
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
            "cannot protect '/io/.bashrc': a protected name matches at any depth, so it cannot begin with '/'"
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

    #[test]
    fn a_spec_in_json_comes_back_and_has_defaults() {
        use std::os::unix::ffi::OsStrExt;
        let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"/srv/\xff"));
        let spec = SandboxSpec::new()
            .root(RootFs::Archive(odd.clone()))
            .io_dir(&odd)
            .input(Input::path(odd, "a"))
            .input(Input::bytes("b", b"\xff".to_vec()))
            .user(Some(User::new(1000, 100).unwrap()))
            .allow(["*.example.org:8080".parse().unwrap()].into_iter().collect());
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<SandboxSpec>(&json).unwrap(), spec, "{json}");
        let given = json!({
            "root": {"image": {"reference": "debian:13"}},
            "io_dir": "out",
            "limits": {"timeout_ms": 5000},
            "user": "1000:100",
            "idle_limit_ms": 1,
        });
        let expected = SandboxSpec {
            root: RootFs::Image { reference: "debian:13".to_owned(), pull: Pull::Missing },
            limits: Limits { timeout: Duration::from_secs(5), ..Limits::default() },
            user: Some(User::new(1000, 100).unwrap()),
            idle_limit: Some(Duration::from_millis(1)),
            ..SandboxSpec::new().io_dir("out")
        };
        assert_eq!(SandboxSpec::deserialize(given).unwrap(), expected);
        for wrong in [
            json!({"io-dir": "a"}),
            json!({"allow": ["http://a"]}),
            json!({"user": "0"}),
            // A kernel takes it as "unchanged".
            json!({"user": "4294967295:0"}),
        ] {
            SandboxSpec::deserialize(&wrong).expect_err(&wrong.to_string());
        }
    }

    #[test]
    fn a_script_in_json_comes_back() {
        let script = Script::new(b"return '\xff'")
            .args(Map::from_iter([("a".to_owned(), json!([1.5, null]))]))
            .timeout(Duration::from_millis(1500));
        let json = serde_json::to_string(&script).unwrap();
        assert_eq!(serde_json::from_str::<Script>(&json).unwrap(), script, "{json}");
        let script: Script = serde_json::from_str(r#"{"source":"return 1"}"#).unwrap();
        assert_eq!(script, Script::new("return 1"));
        assert!(serde_json::from_str::<Script>(r#"{"args":{}}"#).is_err());
    }
}
