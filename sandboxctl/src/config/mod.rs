//! Configuration: the value of every setting, and its source.
//!
//! Layers, each overriding the one before: defaults, the system's file, the user's file, the
//! project's file, environment variables, flags. `--config FILE` is trusted like the user's file,
//! and is then the only file that is read. The project's file is not trusted: it may narrow and
//! never widen ([`project`]).

mod effective;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod key;
mod network;
mod parse;
mod project;
mod value;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use sandbox_api::{Ceiling, LimitKey, LimitValue, Limits, OverCeiling};
use serde::Serialize;

pub use effective::resolved_parents;
pub use key::{Key, Scope};
pub use network::Allow;
use sandbox_env::{Environment, VARIABLE_PREFIX};
pub use value::{Value, ValueError};

/// The path of the configuration file, like `--config`.
pub const FILE_VARIABLE: &str = "SANDBOXCTL_CONFIG";
/// The trace filter for stderr, in the syntax of `tracing`'s filters.
pub const LOG_VARIABLE: &str = "SANDBOXCTL_LOG";
/// The address of a service, like `--server`. No file sets it: a project's would send scripts and
/// secrets elsewhere.
pub const SERVER_VARIABLE: &str = "SANDBOXCTL_SERVER";
/// The token that the service is shown.
pub const TOKEN_VARIABLE: &str = "SANDBOXCTL_TOKEN";
/// The program that client libraries start; it says nothing to the program itself.
const BINARY_VARIABLE: &str = "SANDBOXCTL_BINARY";
/// The variables that are no settings.
const OTHER_VARIABLES: [&str; 5] =
    [BINARY_VARIABLE, FILE_VARIABLE, LOG_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE];

/// The layer of a setting, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The default.
    Default,
    /// `/etc/sandboxctl/config.toml`.
    System,
    /// The user's file, or `--config FILE`.
    User,
    /// `sandboxctl.toml`.
    Project,
    /// `SANDBOXCTL_*`.
    Environment,
    /// A flag.
    Flag,
}

/// The source of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// The default, lowered by a ceiling that was set here.
    Ceiling(Key, Box<Self>),
    /// In a file.
    File {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
    },
    /// In an environment variable.
    Variable(String),
    /// By a flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::Ceiling(key, origin) => write!(formatter, "{}, {origin}", key.name()),
            Self::File { file, line } => write!(formatter, "{}:{line}", file.display()),
            Self::Variable(name) => formatter.write_str(name),
            Self::Flag(flag) => formatter.write_str(flag),
        }
    }
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read the configuration {}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file given by `--config` cannot be read.
    #[error("{origin}")]
    Named {
        /// What named it.
        origin: Origin,
        /// The reason.
        source: Box<Self>,
    },
    /// The file given by `--config` does not exist.
    #[error("{origin}: no such file: {}", .file.display())]
    Missing {
        /// What named it.
        origin: Origin,
        /// The file.
        file: PathBuf,
    },
    /// Invalid TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// The position.
        origin: Origin,
        /// What is wrong.
        message: String,
    },
    /// An unknown key, section or variable.
    #[error("{origin}: unknown {what} '{name}'")]
    Unknown {
        /// The position.
        origin: Origin,
        /// `key`, `section` or `variable`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The most similar known name.
        hint: Option<String>,
    },
    /// An invalid value for its key.
    #[error("{origin}: {key}")]
    Value {
        /// The position.
        origin: Origin,
        /// The key.
        key: String,
        /// What is wrong.
        source: ValueError,
    },
    /// A project's file that requests more than is allowed.
    #[error("{origin}: {key}")]
    Widening {
        /// The position.
        origin: Origin,
        /// The key.
        key: String,
        /// The reason.
        source: project::Widening,
    },
    /// A directory, set by a file or by default, leads through a link.
    #[error("{name}: {} is a symbolic link, which is not followed there", .link.display())]
    Link {
        /// What set it.
        name: String,
        /// The link.
        link: PathBuf,
    },
    /// A ceiling in an environment variable, which the caller controls.
    #[error("{origin}: ceilings cannot be set by an environment variable")]
    CeilingVariable {
        /// The variable.
        origin: Origin,
    },
    /// An unknown preset.
    #[error("{name}: there is no preset @{preset}")]
    Preset {
        /// What named it.
        name: String,
        /// Its name.
        preset: String,
        /// The existing presets.
        known: BTreeSet<String>,
    },
    /// An invalid io dir.
    #[error("{name}: {} {why}", .path.display())]
    IoDir {
        /// What set the io dir.
        name: String,
        /// The io dir.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// A limit above its ceiling.
    #[error("{name} is {asked}, above its ceiling of {ceiling}")]
    OverCeiling {
        /// What set it.
        name: String,
        /// The limit's key.
        key: String,
        /// The section of its ceiling.
        section: &'static str,
        /// The requested value.
        asked: String,
        /// The ceiling.
        ceiling: String,
    },
}

impl Error {
    /// An unknown key or section.
    pub(crate) fn unknown_key(origin: Origin, name: String, is_table: bool) -> Self {
        let (what, known): (_, BTreeSet<String>) = if is_table {
            ("section", sections())
        } else {
            ("key", Key::all().map(Key::name).collect())
        };
        let hint = if name == "output" || name.starts_with("output.") {
            Some("the section is called [io]: [io] dir = \"./sandbox-files\"".to_owned())
        } else if name == "server.url" || name == "server.token" {
            Some(format!("no file says where to run: --server or {SERVER_VARIABLE} does"))
        } else if matches!(&*name, "secret" | "secrets") || name.starts_with("secrets.") {
            Some("no file gives secrets: --secret NAME=env:VARIABLE does, for one call".to_owned())
        } else {
            Some(nearest(&name, &known).map_or_else(
                || "`sandboxctl config show` lists what there is".to_owned(),
                |known| match what {
                    "section" => format!("did you mean [{known}]?"),
                    _ => format!("did you mean '{known}'?"),
                },
            ))
        };
        Self::Unknown { origin, what, name, hint }
    }

    fn unknown_variable(name: String) -> Self {
        let known =
            Key::all().map(Key::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
        let hint = nearest(&name, &known).map(|known| format!("did you mean {known}?"));
        Self::Unknown { origin: Origin::Variable(name.clone()), what: "variable", name, hint }
    }

    /// The next step, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { hint, .. } => hint.clone(),
            Self::Widening { .. } => Some(
                "set it in the user's configuration, or give the file with --config if you trust \
                 all of it"
                    .to_owned(),
            ),
            Self::CeilingVariable { .. } => Some(
                "[limits.ceiling] and [exec.ceiling] stand in the user's or the system's file"
                    .to_owned(),
            ),
            Self::Link { name, .. } if name.starts_with("io.dir ") => {
                Some("name what it leads to with --io-dir, if that is meant".to_owned())
            }
            Self::Link { .. } => Some(
                "name what it leads to in the user's configuration, if that is meant".to_owned(),
            ),
            Self::OverCeiling { key, section, .. } => Some(format!(
                "{section} in the user's or the system's configuration raises the ceiling of {key}"
            )),
            Self::Preset { preset, known, .. } => Some(match nearest(preset, known) {
                Some(known) => format!("did you mean @{known}?"),
                None if !known.is_empty() => "`sandboxctl config show` lists them".to_owned(),
                None => "[network.presets] in the user's configuration makes one: name = [HOST, …]"
                    .to_owned(),
            }),
            Self::Unreadable { .. }
            | Self::Named { .. }
            | Self::Missing { .. }
            | Self::Syntax { .. }
            | Self::IoDir { .. }
            | Self::Value { .. } => None,
        }
    }
}

fn sections() -> BTreeSet<String> {
    let mut sections = BTreeSet::new();
    for name in Key::all().map(Key::name) {
        let dots = name.match_indices('.').map(|(dot, _)| name[..dot].to_owned());
        sections.extend(dots);
    }
    sections
}

/// The known name that is most similar to `name`, if any: as a whole, or in its last part, for a
/// key in the wrong section.
fn nearest<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |candidate: &str| {
        let whole = strsim::normalized_damerau_levenshtein(name, candidate);
        let ends = strsim::normalized_damerau_levenshtein(&last(name), &last(candidate));
        whole.max(0.9 * ends)
    };
    known
        .iter()
        .map(|candidate| (likeness(candidate), candidate))
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .filter(|(likeness, _)| *likeness > 0.6)
        .map(|(_, candidate)| candidate.as_str())
}

/// An effective setting.
#[derive(Debug, Clone)]
pub struct Setting {
    /// None for a key without a default that is not set.
    pub value: Option<Value>,
    /// Its layer.
    pub layer: Layer,
    /// Its source.
    pub origin: Origin,
}

/// The settings of the command line.
#[derive(Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// Which settings limit the command.
    pub scope: Scope,
    /// The settings among the flags.
    pub values: Vec<(Key, Value, &'static str)>,
}

impl Flags {
    /// Adds a setting from its own flag.
    pub fn set(&mut self, key: Key, value: Option<Value>) {
        debug_assert!(value.is_none() || key.flag().is_some(), "{} has no flag", key.name());
        if let (Some(value), Some(flag)) = (value, key.flag()) {
            self.values.push((key, value, flag));
        }
    }
}

/// Every effective setting.
#[derive(Debug)]
pub struct Settings {
    settings: HashMap<Key, Setting>,
    scope: Scope,
    /// The files that were read.
    pub files: Vec<PathBuf>,
}

impl Settings {
    /// The settings from the files, the environment and the flags.
    ///
    /// # Errors
    ///
    /// [`Error`] for the first error.
    pub fn load(environment: &Environment, flags: Flags) -> Result<Self, Error> {
        Self::load_with_system(environment, flags, Path::new(file::SYSTEM_FILE))
    }

    fn load_with_system(
        environment: &Environment,
        flags: Flags,
        system: &Path,
    ) -> Result<Self, Error> {
        let mut settings = Self { scope: flags.scope, ..Self::defaults() };
        let named = flags.file.map(|file| (file, Origin::Flag("--config"))).or_else(|| {
            let file = environment.variable(FILE_VARIABLE)?;
            Some((file.into(), Origin::Variable(FILE_VARIABLE.to_owned())))
        });
        if let Some((file, origin)) = named {
            match settings.read(Layer::User, &file) {
                Ok(true) => {}
                Ok(false) => return Err(Error::Missing { origin, file }),
                Err(source @ Error::Unreadable { .. }) => {
                    return Err(Error::Named { origin, source: Box::new(source) });
                }
                // That error names the file and the line.
                Err(error) => return Err(error),
            }
        } else {
            settings.read(Layer::System, system)?;
            if let Some(file) = file::user(environment) {
                settings.read(Layer::User, &file)?;
            }
            if let Some(file) = file::find_project(&environment.working_directory) {
                settings.read(Layer::Project, &file)?;
            }
        }
        settings.read_variables(environment)?;
        for (key, value, flag) in flags.values {
            settings.set(flags.scope.of_flag(key), value, Layer::Flag, Origin::Flag(flag));
        }
        settings.lower_defaults();
        Ok(settings)
    }

    fn defaults() -> Self {
        let default = |key: Key| {
            let origin = Origin::Default;
            (key, Setting { value: key.default(), layer: Layer::Default, origin })
        };
        let settings = Key::all().map(default).collect();
        Self { settings, scope: Scope::default(), files: Vec::new() }
    }

    fn set(&mut self, key: Key, mut value: Value, layer: Layer, origin: Origin) {
        match (&mut value, &self.setting(key).value) {
            // Protected names are added by each layer, and never removed by another.
            (Value::Names(names), Some(Value::Names(below))) if key == Key::Protected => {
                let new = names.iter().filter(|name| !below.contains(name));
                *names = below.iter().chain(new).cloned().collect();
            }
            // A preset that a layer does not redefine is inherited.
            (Value::Presets(presets), Some(Value::Presets(below))) => {
                for (name, rules) in below {
                    presets.entry(name.clone()).or_insert_with(|| rules.clone());
                }
            }
            _ => {}
        }
        self.settings.insert(key, Setting { value: Some(value), layer, origin });
    }

    /// Reads a file into a layer; false if it does not exist.
    fn read(&mut self, layer: Layer, file: &Path) -> Result<bool, Error> {
        let links = match layer {
            Layer::Project => file::Links::Refuse,
            _ => file::Links::Follow,
        };
        let Some(entries) = file::read(file, links)? else { return Ok(false) };
        self.files.push(file.to_owned());
        self.apply(layer, entries)?;
        Ok(true)
    }

    fn apply(&mut self, layer: Layer, entries: Vec<file::Entry>) -> Result<(), Error> {
        for file::Entry { key, value, origin } in entries {
            if layer == Layer::Project {
                // A file has no duplicate keys, so the effective value is that of the layers below.
                let below = self.setting(key).value.as_ref();
                project::check(key, &value, below, self.presets()).map_err(|source| {
                    Error::Widening { origin: origin.clone(), key: key.name(), source }
                })?;
            }
            self.set(key, value, layer, origin);
        }
        Ok(())
    }

    fn read_variables(&mut self, environment: &Environment) -> Result<(), Error> {
        for (name, value) in environment.variables() {
            let Some(name) = name.to_str() else { continue };
            if !name.starts_with(VARIABLE_PREFIX) || OTHER_VARIABLES.contains(&name) {
                continue;
            }
            let Some(key) = Key::all().find(|key| key.variable() == name) else {
                return Err(Error::unknown_variable(name.to_owned()));
            };
            if matches!(key, Key::Ceiling(_) | Key::ExecCeiling(_)) {
                return Err(Error::CeilingVariable { origin: Origin::Variable(name.to_owned()) });
            }
            // As usual: an empty variable counts as not set.
            if value.is_empty() {
                continue;
            }
            let origin = Origin::Variable(name.to_owned());
            let value = value
                .to_str()
                .ok_or(ValueError::NotUtf8)
                .and_then(|text| Value::from_text(key, text))
                .map_err(|source| Error::Value {
                    origin: origin.clone(),
                    key: key.name(),
                    source,
                })?;
            self.set(key, value, Layer::Environment, origin);
        }
        Ok(())
    }

    /// Lowers a default that is over its ceiling: setting a ceiling implies that. A ceiling of
    /// `[limits]` that was set applies to `exec` too, unless `exec` has one of its own.
    fn lower_defaults(&mut self) {
        for key in Key::exec() {
            let Key::Exec(limit) = key else { continue };
            if self.setting(Key::Ceiling(limit)).layer != Layer::Default {
                self.lower_default(Key::ExecCeiling(limit), Key::Ceiling(limit));
            }
        }
        for scope in [Scope::Limits, Scope::Exec] {
            for &limit in LimitKey::ALL {
                let (key, ceiling) = scope.keys(limit);
                self.lower_default(key, ceiling);
            }
        }
    }

    fn lower_default(&mut self, key: Key, ceiling: Key) {
        if self.setting(key).layer == Layer::Default && self.over(key, ceiling).is_some() {
            let Setting { value, origin, .. } = self.setting(ceiling).clone();
            let origin = Origin::Ceiling(ceiling, Box::new(origin));
            self.settings.insert(key, Setting { value, layer: Layer::Default, origin });
        }
    }

    /// What is wrong if the value of `key` is above that of `ceiling`, which is of the same limit.
    fn over(&self, key: Key, ceiling: Key) -> Option<OverCeiling> {
        let alone = |key| {
            let mut limits = Limits::default();
            if let Key::Limit(limit)
            | Key::Ceiling(limit)
            | Key::Exec(limit)
            | Key::ExecCeiling(limit) = key
            {
                self.put(&mut limits, limit, key);
            }
            limits
        };
        alone(key).check(&Ceiling(alone(ceiling))).err()
    }

    /// Why the value of a limit's key is refused: it is above its ceiling.
    #[must_use]
    pub fn refusal(&self, key: Key) -> Option<Error> {
        let (ceiling, section) = match key {
            Key::Limit(limit) => (Key::Ceiling(limit), "limits.ceiling"),
            Key::Exec(limit) => (Key::ExecCeiling(limit), "exec.ceiling"),
            _ => return None,
        };
        let OverCeiling { asked, ceiling, .. } = self.over(key, ceiling)?;
        Some(Error::OverCeiling { name: self.named(key), key: key.name(), section, asked, ceiling })
    }

    /// The key by which the command is limited.
    #[must_use]
    pub fn limit_key(&self, limit: LimitKey) -> Key {
        self.scope.keys(limit).0
    }

    /// The limits, each within its ceiling.
    ///
    /// # Errors
    ///
    /// [`Error::OverCeiling`], which names the source of the first one that is not.
    pub fn allowed_limits(&self) -> Result<Limits, Error> {
        let mut keys = LimitKey::ALL.iter().map(|&limit| self.scope.keys(limit).0);
        match keys.find_map(|key| self.refusal(key)) {
            Some(refusal) => Err(refusal),
            None => Ok(self.limits()),
        }
    }

    /// The effective setting of a key.
    #[must_use]
    pub fn setting(&self, key: Key) -> &Setting {
        // `defaults` has inserted every key.
        &self.settings[&key]
    }

    /// The effective limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for &limit in LimitKey::ALL {
            self.put(&mut limits, limit, self.scope.keys(limit).0);
        }
        limits
    }

    /// The effective ceilings.
    #[must_use]
    pub fn ceiling(&self) -> Ceiling {
        let mut ceiling = Ceiling::default();
        for &limit in LimitKey::ALL {
            self.put(&mut ceiling.0, limit, self.scope.keys(limit).1);
        }
        ceiling
    }

    fn put(&self, limits: &mut Limits, limit: LimitKey, key: Key) {
        let value: Option<LimitValue> = match self.setting(key).value {
            Some(Value::Limit(value)) => Some(value),
            _ => None,
        };
        // Every value was parsed by its own key, so it has the right type and range.
        if let Some(value) = value {
            let set = limits.set(limit, value);
            debug_assert!(set.is_ok(), "{set:?}");
        }
    }
}

#[cfg(test)]
mod tests;
