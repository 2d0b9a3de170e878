//! The settings, from their layers.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};

use sandbox_api::{Bounds, Ceiling, LimitKey, LimitValue, Limits, ToolRule};
use sandbox_dirfd::Links;
use sandbox_env::{Environment, VARIABLE_PREFIX};

use super::error::Error;
use super::key::{Key, Scope};
use super::origin::{Layer, Origin};
use super::rules::Rules;
use super::value::Value;
use super::value_error::ValueError;
use super::variables::{FILE_VARIABLE, OTHER_VARIABLES};
use super::{file, project};

/// Where a project's file cannot set something.
const ELSEWHERE: &str = "set it in the user's configuration, or give the file with --config if you trust \
     all of it";
const RULES: &str = "--learn FILE writes a file of rules, which --rules FILE adds";
const CEILINGS: &str =
    "[limits.ceiling] and [exec.ceiling] stand in the user's or the system's file";

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
    pub(super) settings: HashMap<Key, Setting>,
    pub(super) scope: Scope,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// The rules of tools that `--rules` adds.
    pub tool_rules: Vec<ToolRule>,
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

    pub(super) fn load_with_system(
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
                Ok(false) => {
                    return Err(Error::at(origin, format!("no such file: {}", file.display())));
                }
                Err(Error::Unreadable { file, source }) => {
                    let file = file.display();
                    let what = format!("cannot read the configuration {file}: {source}");
                    return Err(Error::at(origin, what));
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
            for key in Scope::of_flag(key) {
                settings.set(key, value.clone(), Layer::Flag, Origin::Flag(flag));
            }
        }
        settings.lower_defaults();
        Ok(settings)
    }

    pub(super) fn defaults() -> Self {
        let default = |key: Key| {
            let origin = Origin::Default;
            (key, Setting { value: key.default(), layer: Layer::Default, origin })
        };
        let settings = Key::all().map(default).collect();
        Self { settings, scope: Scope::default(), files: Vec::new(), tool_rules: Vec::new() }
    }

    pub(super) fn set(&mut self, key: Key, mut value: Value, layer: Layer, origin: Origin) {
        match (&mut value, &self.setting(key).value) {
            // Protected names are added by each layer, and never removed by another.
            (Value::Names(names), Some(Value::Names(below))) if key == Key::Protected => {
                let new = names.iter().filter(|name| !below.contains(name));
                *names = below.iter().chain(new).cloned().collect();
            }
            // A preset that a layer does not redefine is inherited.
            (Value::Presets(presets), Some(Value::Presets(below))) => {
                *presets = below.clone().into_iter().chain(mem::take(presets)).collect();
            }
            // As is a server.
            (Value::Upstreams(upstreams), Some(Value::Upstreams(below))) => {
                *upstreams = below.clone().into_iter().chain(mem::take(upstreams)).collect();
            }
            _ => {}
        }
        self.settings.insert(key, Setting { value: Some(value), layer, origin });
    }

    /// Adds the rules of this file for the command: `--rules`. Its hosts are not asked for by the command
    /// line itself: without programs they have no effect.
    ///
    /// # Errors
    ///
    /// As [`Rules::read`], and if there is no such file.
    pub fn add_rules(&mut self, file: &Path) -> Result<(), Error> {
        let origin = Origin::Flag("--rules");
        let refused = |why: &str| {
            Error::at(origin.clone(), format!("{why}: {}", file.display())).with_hint(RULES)
        };
        let missing = || refused("no such file");
        if file.is_dir() {
            return Err(refused("it is a directory"));
        }
        let (Rules { allow, tools }, _) = Rules::read(file)?.ok_or_else(missing)?;
        let Setting { value, layer, .. } = self.setting(Key::Allow);
        let known = value.iter().flat_map(|value| match value {
            Value::Hosts(hosts) => &**hosts,
            _ => &[],
        });
        if !allow.is_empty() {
            let (hosts, layer) = (known.cloned().chain(allow).collect(), *layer);
            self.set(Key::Allow, Value::Hosts(hosts), layer.max(Layer::Environment), origin);
        }
        self.tool_rules.extend(tools);
        Ok(())
    }

    /// Reads a file into a layer; false if it does not exist.
    fn read(&mut self, layer: Layer, file: &Path) -> Result<bool, Error> {
        let links = match layer {
            Layer::Project => Links::Refuse,
            _ => Links::Follow,
        };
        let Some(entries) = file::read(file, links)? else { return Ok(false) };
        self.files.push(file.to_owned());
        self.apply(layer, entries)?;
        Ok(true)
    }

    pub(super) fn apply(&mut self, layer: Layer, entries: Vec<file::Entry>) -> Result<(), Error> {
        for file::Entry { key, value, origin } in entries {
            if layer == Layer::Project {
                // A file has no duplicate keys, so the effective value is that of the layers below.
                let below = self.setting(key).value.as_ref();
                project::check(key, &value, below, self.presets()).map_err(|why| {
                    let what = format!("{}: {why}", key.name());
                    Error::at(origin.clone(), what).with_hint(ELSEWHERE)
                })?;
            }
            self.set(key, value, layer, origin);
        }
        Ok(())
    }

    pub(super) fn read_variables(&mut self, environment: &Environment) -> Result<(), Error> {
        for (name, value) in environment.variables() {
            let Some(name) = name.to_str() else { continue };
            if !name.starts_with(VARIABLE_PREFIX) || OTHER_VARIABLES.contains(&name) {
                continue;
            }
            let Some(key) = Key::all().find(|key| key.variable() == name) else {
                return Err(Error::unknown_variable(name.to_owned()));
            };
            if matches!(key, Key::Ceiling(_) | Key::ExecCeiling(_)) {
                let why = "ceilings cannot be set by an environment variable";
                let origin = Origin::Variable(name.to_owned());
                return Err(Error::at(origin, why).with_hint(CEILINGS));
            }
            // As usual: an empty variable counts as not set.
            if value.is_empty() {
                continue;
            }
            let origin = Origin::Variable(name.to_owned());
            let value = value
                .to_str()
                .ok_or_else(|| ValueError::of("it is not UTF-8 text"))
                .and_then(|text| Value::from_text(key, text))
                .map_err(|why| Error::of_value(origin.clone(), key, &why))?;
            self.set(key, value, Layer::Environment, origin);
        }
        Ok(())
    }

    /// Lowers a default that is over its ceiling: setting a ceiling implies that. A ceiling of
    /// `[limits]` that was set applies to `exec` too, unless `exec` has one of its own.
    pub(super) fn lower_defaults(&mut self) {
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

    /// The values of `key` and of `ceiling`, which is of the same limit, if the former is above it.
    fn over(&self, key: Key, ceiling: Key) -> Option<(LimitValue, LimitValue)> {
        let (asked, most) = (self.limit(key)?, self.limit(ceiling)?);
        asked.is_over(most).then_some((asked, most))
    }

    /// Why the value of a limit's key is refused: it is above its ceiling.
    pub fn refusal(&self, key: Key) -> Option<Error> {
        let (ceiling, section) = match key {
            Key::Limit(limit) => (Key::Ceiling(limit), "limits.ceiling"),
            Key::Exec(limit) => (Key::ExecCeiling(limit), "exec.ceiling"),
            _ => return None,
        };
        let (asked, most) = self.over(key, ceiling)?;
        let (asked, ceiling) = (asked.to_string(), most.to_string());
        Some(Error::OverCeiling { name: self.named(key), key: key.name(), section, asked, ceiling })
    }

    /// The key by which the command is limited.
    pub fn limit_key(&self, limit: LimitKey) -> Key {
        self.scope.keys(limit).0
    }

    /// The limits, each within its ceiling.
    ///
    /// # Errors
    ///
    /// [`Error::OverCeiling`], which names the source of the first one that is not.
    pub fn allowed_limits(&self) -> Result<Limits, Error> {
        self.bounds(self.scope).map(|bounds| bounds.limits)
    }

    /// The limits of this scope, each within its ceiling, for who makes sandboxes of both.
    ///
    /// # Errors
    ///
    /// As [`allowed_limits`](Self::allowed_limits).
    pub fn bounds(&self, scope: Scope) -> Result<Bounds, Error> {
        let mut keys = LimitKey::ALL.iter().map(|&limit| scope.keys(limit).0);
        match keys.find_map(|key| self.refusal(key)) {
            Some(refusal) => Err(refusal),
            None => Ok(Bounds { limits: self.limits_of(scope), ceiling: self.ceiling_of(scope) }),
        }
    }

    /// The effective setting of a key.
    pub fn setting(&self, key: Key) -> &Setting {
        // `defaults` has inserted every key.
        &self.settings[&key]
    }

    /// The effective limits.
    pub fn limits(&self) -> Limits {
        self.limits_of(self.scope)
    }

    fn limits_of(&self, scope: Scope) -> Limits {
        self.values_of(|limit| scope.keys(limit).0)
    }

    /// The effective ceilings.
    pub fn ceiling(&self) -> Ceiling {
        self.ceiling_of(self.scope)
    }

    /// The effective ceilings of this scope.
    pub fn ceiling_of(&self, scope: Scope) -> Ceiling {
        Ceiling(self.values_of(|limit| scope.keys(limit).1))
    }

    /// The values of these keys, one for each limit.
    fn values_of(&self, key: impl Fn(LimitKey) -> Key) -> Limits {
        let mut limits = Limits::default();
        for &limit in LimitKey::ALL {
            // Every value was parsed by its own key, so it has the right type and range.
            if let Some(value) = self.limit(key(limit)) {
                let set = limits.set(limit, value);
                debug_assert!(set.is_ok(), "{set:?}");
            }
        }
        limits
    }
}
