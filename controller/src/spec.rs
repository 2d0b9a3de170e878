//! What a caller asks for: a sandbox, and a script to run in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_protocol::message::{AllowedPath, IoErrors};
use serde_json::{Map, Value};

use crate::limits::Limits;

/// How long a sandbox may live at most.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// A sandbox to launch. Every limit is set; without an [`io_dir`](Self::io_dir) it has no files.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    pub(crate) io_dir: Option<PathBuf>,
    pub(crate) mount_path: String,
    pub(crate) workdir: Option<String>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) limits: Limits,
    pub(crate) io_errors: IoErrors,
    pub(crate) allowed_paths: Option<Vec<AllowedPath>>,
    pub(crate) protected: Vec<String>,
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) lifetime: Duration,
    pub(crate) lifespan: Lifespan,
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
            io_dir: None,
            mount_path: "/io".to_owned(),
            workdir: None,
            inputs: Vec::new(),
            limits: Limits::default(),
            io_errors: IoErrors::default(),
            allowed_paths: None,
            protected: Vec::new(),
            user: None,
            lifetime: DEFAULT_LIFETIME,
            lifespan: Lifespan::default(),
        }
    }
}

impl SandboxSpec {
    /// A sandbox with the default limits and no files.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The host's directory that scripts read and write. Made if it is missing, and then removed
    /// again where a sandbox leaves it empty.
    #[must_use]
    pub fn io_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.io_dir = Some(dir.into());
        self
    }

    /// No files at all.
    #[must_use]
    pub fn no_io(mut self) -> Self {
        self.io_dir = None;
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

    /// How `io` tells a failure of the system.
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

    /// Names that refuse writes wherever they stand, such as `.bashrc` or `.git/hooks`.
    #[must_use]
    pub fn protected(mut self, names: Vec<String>) -> Self {
        self.protected = names;
        self
    }

    /// The uid and gid to run as; by default the io dir's owner.
    #[must_use]
    pub fn user(mut self, user: Option<(u32, u32)>) -> Self {
        self.user = user;
        self
    }

    /// How long the sandbox may live at most; [`DEFAULT_LIFETIME`] by default.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// What the sandbox is for; [`Lifespan::ManyRuns`] by default.
    #[must_use]
    pub fn lifespan(mut self, lifespan: Lifespan) -> Self {
        self.lifespan = lifespan;
        self
    }
}

/// A read-only input, at `/in/NAME`.
#[derive(Debug, Clone)]
pub struct Input {
    pub(crate) name: String,
    pub(crate) source: InputSource,
}

#[derive(Debug, Clone)]
pub(crate) enum InputSource {
    Path(PathBuf),
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
    pub(crate) source: Vec<u8>,
    pub(crate) args: Map<String, Value>,
}

impl Script {
    /// A script of this text.
    #[must_use]
    pub fn new(source: impl Into<Vec<u8>>) -> Self {
        Self { source: source.into(), args: Map::new() }
    }

    /// The script's `args`.
    #[must_use]
    pub fn args(mut self, args: Map<String, Value>) -> Self {
        self.args = args;
        self
    }
}
