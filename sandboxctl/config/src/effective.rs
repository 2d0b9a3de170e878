//! The settings in the form that the controller uses.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use sandbox_api::hosts::Allowlist;
use sandbox_api::{ByteSize, Encoding, LimitKey, LimitValue, PrivateIo, Pull, ToolRule};
use sandbox_controller::{Config, ConfinementPolicy, PoolConfig};
use sandbox_dirfd::random_hex;
use sandbox_e2b::Template;
use sandbox_env::Environment;
use sandbox_protocol::message::{AllowedPath, IoErrors};
use sandbox_service::Preparation;
use sandbox_upstream::Upstream;

use super::error::Error;
use super::key::{Key, Scope};
use super::network::{self, Presets};
use super::origin::{Layer, Origin};
use super::settings::{Setting, Settings};
use super::value::Value;
use super::variables::RUNNER_FILES;

impl Settings {
    /// Whether scripts can use files.
    pub fn io_enabled(&self) -> bool {
        self.is_on(Key::IoEnabled)
    }

    /// How `io` reports OS errors.
    pub fn io_errors(&self) -> IoErrors {
        match self.text(Key::IoErrors) {
            Some("return") => IoErrors::Return,
            _ => IoErrors::Raise,
        }
    }

    /// The same, if something sets it.
    pub fn chosen_io_errors(&self) -> Option<IoErrors> {
        (self.setting(Key::IoErrors).layer != Layer::Default).then(|| self.io_errors())
    }

    /// Which guest paths may be used, if configured; otherwise all mounts.
    pub fn allowed_paths(&self) -> Option<Vec<AllowedPath>> {
        let Setting { value: Some(Value::Paths(paths)), layer, .. } =
            self.setting(Key::AllowedPaths)
        else {
            return None;
        };
        (*layer != Layer::Default).then(|| paths.clone())
    }

    /// Where sandboxes that support commands have their io dir if none is named; `None` if one is.
    pub fn private_io(&self) -> Option<PrivateIo> {
        match (self.setting(Key::IoDir).layer, self.text(Key::IoPrivate)) {
            (Layer::Default, Some("tmpfs")) => Some(PrivateIo::Memory),
            (Layer::Default, _) => Some(PrivateIo::Disk),
            _ => None,
        }
    }

    /// Names a new directory of the working directory as the io dir, if none is named: `--keep`.
    pub fn keep_io_dir(&mut self) {
        if self.private_io().is_some() {
            let dir = Value::Path(format!("sandbox-files-{}", random_hex::<8>()).into());
            self.set(Key::IoDir, dir, Layer::Flag, Origin::Flag("--keep"));
        }
    }

    /// Gives a command that a person sits at the longest time that it may have, unless one is chosen.
    pub fn allow_long_commands(&mut self) {
        let key = self.limit_key(LimitKey::Timeout);
        let Setting { layer, origin, .. } = self.setting(key).clone();
        if layer == Layer::Default {
            let longest = self.ceiling().0.get(LimitKey::Timeout);
            self.set(key, Value::Limit(longest), layer, origin);
        }
    }

    /// The default encoding of file operations.
    pub fn default_encoding(&self) -> Encoding {
        // The value was checked when it was parsed.
        let word = self.text(Key::DefaultEncoding);
        word.and_then(|word| word.parse().ok()).unwrap_or_default()
    }

    /// The protected names.
    pub fn protected(&self) -> Vec<String> {
        self.names(Key::Protected)
    }

    /// When images for commands are pulled.
    pub fn pull(&self) -> Pull {
        match self.text(Key::Pull) {
            Some("never") => Pull::Never,
            Some("always") => Pull::Always,
            _ => Pull::Missing,
        }
    }

    /// When images that a tool call names are pulled. The caller may be a model, so the default is
    /// never: a request to a registry reveals the name to it.
    pub fn tools_pull(&self) -> Pull {
        match self.setting(Key::Pull).layer {
            Layer::Default => Pull::Never,
            _ => self.pull(),
        }
    }

    /// How many sandboxes are started ahead; none if nothing asks for some.
    pub fn pool(&self) -> PoolConfig {
        let default = PoolConfig::default();
        PoolConfig {
            size: self.count(Key::PoolSize).unwrap_or(default.size),
            max_age: self.time(Key::PoolMaxAge).unwrap_or(default.max_age),
            max_keys: self.count(Key::PoolMaxKeys).unwrap_or(default.max_keys),
            adaptive: self.is_on(Key::PoolAdaptive),
        }
    }

    /// The processes that are started ahead.
    pub fn prepared(&self) -> Vec<Preparation> {
        let Some(Value::Preparations(preparations)) = &self.setting(Key::PoolPrepared).value else {
            return Vec::new();
        };
        preparations.clone()
    }

    /// The templates of E2B's sandboxes.
    pub fn e2b_templates(&self) -> BTreeMap<String, Template> {
        let Some(Value::Templates(templates)) = &self.setting(Key::E2bTemplates).value else {
            return BTreeMap::new();
        };
        templates.clone()
    }

    /// Other MCP servers: those of an agent, or those of a service.
    pub fn upstreams(&self, key: Key) -> BTreeMap<String, Upstream> {
        let Some(Value::Upstreams(upstreams)) = &self.setting(key).value else {
            return BTreeMap::new();
        };
        upstreams.clone()
    }

    /// The rules for their tools, without those of `--rules`.
    pub fn rules_of_tools(&self, key: Key) -> Vec<ToolRule> {
        // They were checked when they were parsed.
        self.names(key).iter().filter_map(|rule| rule.parse().ok()).collect()
    }

    /// The named lists of hosts.
    pub(super) fn presets(&self) -> &Presets {
        static NONE: Presets = Presets::new();
        match &self.setting(Key::Presets).value {
            Some(Value::Presets(presets)) => presets,
            _ => &NONE,
        }
    }

    /// The hosts that commands may reach.
    ///
    /// # Errors
    ///
    /// If a preset is unknown.
    pub fn allow(&self) -> Result<Allowlist, Error> {
        let Some(Value::Hosts(entries)) = &self.setting(Key::Allow).value else {
            return Ok(Allowlist::default());
        };
        let presets = self.presets();
        let unknown = |preset| Error::unknown_preset(&self.named(Key::Allow), preset, presets);
        network::resolve(entries, presets).map_err(unknown)
    }

    /// Whether the command line itself requests hosts, as opposed to settings for every command.
    pub fn asks_for_hosts(&self) -> bool {
        [Key::Allow, Key::Inject].iter().any(|key| self.setting(*key).layer == Layer::Flag)
    }

    /// The rules of secrets that are added for each caller of a service.
    pub fn server_inject(&self) -> BTreeMap<String, Vec<String>> {
        let Some(Value::Lists(lists)) = &self.setting(Key::ServerInject).value else {
            return BTreeMap::new();
        };
        lists.clone()
    }

    /// The io dir, absolute.
    ///
    /// # Errors
    ///
    /// A relative path that comes from a file, or is the default, must not lead through a link: it
    /// could have come with the project, and point anywhere. If it exists it must be a directory.
    /// Engines require paths in UTF-8.
    pub fn io_dir(&self, working_directory: &Path) -> Result<PathBuf, Error> {
        let setting = self.setting(Key::IoDir);
        let dir = self.path_of(Key::IoDir).unwrap_or_default();
        let path = self.without_links(Key::IoDir, setting.layer, &dir, working_directory)?;
        // Links are followed here if the user chose the path, and never when it is opened.
        let path = match may_have_links(setting.layer, &dir) {
            true => resolved_parents(&path),
            false => path,
        };
        // Before anything is created there.
        let why = if path.metadata().is_ok_and(|found| !found.is_dir()) {
            "is not a directory"
        } else if path.to_str().is_none() {
            "is not a path in UTF-8, and engines take no other"
        } else {
            return Ok(path);
        };
        let what = format!("{}: {} {why}", self.named(Key::IoDir), path.display());
        Err(Error::Unusable { what, hint: None })
    }

    /// Where `sandbox_init` may mount, absolute.
    ///
    /// # Errors
    ///
    /// As for [`io_dir`](Self::io_dir): a relative one must not lead through a link.
    pub fn allowed_out_paths(&self, working_directory: &Path) -> Result<Vec<PathBuf>, Error> {
        let key = Key::AllowedOutPaths;
        let Setting { value: Some(Value::Dirs(dirs)), layer, .. } = self.setting(key) else {
            return Ok(Vec::new());
        };
        let absolute = |dir| self.without_links(key, *layer, dir, working_directory);
        dirs.iter().map(|dir| absolute(dir)).collect()
    }

    /// The directory of a key, which must not lead through a link unless it [may](may_have_links). A
    /// link that is made later is refused when the directory is opened.
    fn without_links(
        &self,
        key: Key,
        layer: Layer,
        dir: &Path,
        working_directory: &Path,
    ) -> Result<PathBuf, Error> {
        if may_have_links(layer, dir) {
            return Ok(working_directory.join(dir));
        }
        let mut path = working_directory.to_owned();
        for part in dir.components() {
            if part == Component::CurDir {
                continue;
            }
            path.push(part);
            if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
                let (name, path) = (self.named(key), path.display());
                return Err(Error::Unusable {
                    what: format!("{name}: {path} is a symbolic link, which is not followed there"),
                    hint: Some(format!(
                        "name what it leads to {}, if that is meant",
                        match key {
                            Key::IoDir => "with --io-dir",
                            _ => "in the user's configuration",
                        }
                    )),
                });
            }
        }
        Ok(path)
    }

    /// The name of a setting in messages: the flag that sets it, or the key and its position.
    pub fn named(&self, key: Key) -> String {
        match &self.setting(key).origin {
            Origin::Flag(flag) => (*flag).to_owned(),
            origin => format!("{} ({origin})", key.name()),
        }
    }

    /// What happens if an agent cannot confine itself as required.
    pub fn confinement(&self) -> ConfinementPolicy {
        // The value was checked when it was parsed.
        self.text(Key::Confinement).and_then(ConfinementPolicy::from_word).unwrap_or_default()
    }

    /// The configuration of the controller.
    pub fn controller(&self, environment: &Environment) -> Config {
        let setting = |name: &str| {
            let key = Key::from_name(name)?;
            let value = match self.setting(key).value.as_ref()? {
                Value::Path(path) => path.into(),
                value => value.as_text()?.into(),
            };
            Some(sandbox_env::Setting { value, name: self.named(key) })
        };
        let config = environment.config_with(setting);
        let config = config.expect("values are checked when they are parsed");
        // For any runner: these variables decide about the next steps of the job.
        let files = RUNNER_FILES.into_iter().filter_map(|name| environment.variable(name));
        let reserved_files = files.map(|file| environment.working_directory.join(file)).collect();
        Config {
            ceiling: self.ceiling_of(Scope::Limits),
            program_ceiling: self.ceiling_of(Scope::Exec),
            reserved_files,
            ..config
        }
    }

    /// Whether a switch is on.
    pub fn is_on(&self, key: Key) -> bool {
        matches!(self.setting(key).value, Some(Value::Switch(true)))
    }

    /// The path of a key, if it is set.
    pub fn path_of(&self, key: Key) -> Option<PathBuf> {
        let Some(Value::Path(path)) = &self.setting(key).value else { return None };
        Some(path.clone())
    }

    /// The names of a key; none if it is not set.
    pub fn names(&self, key: Key) -> Vec<String> {
        let Some(Value::Names(names)) = &self.setting(key).value else { return Vec::new() };
        names.clone()
    }

    /// The value of a limit, or of a key whose value is written as one.
    pub(super) fn limit(&self, key: Key) -> Option<LimitValue> {
        let Some(Value::Limit(value)) = self.setting(key).value else { return None };
        Some(value)
    }

    /// The count of a key, if it is set.
    pub fn count(&self, key: Key) -> Option<usize> {
        let Some(LimitValue::Count(count)) = self.limit(key) else { return None };
        usize::try_from(count).ok()
    }

    /// The time of a key, if it is set.
    pub fn time(&self, key: Key) -> Option<Duration> {
        let Some(LimitValue::Time(time)) = self.limit(key) else { return None };
        Some(time)
    }

    /// The size of a key, if it is set.
    pub fn size(&self, key: Key) -> Option<ByteSize> {
        let Some(LimitValue::Size(size)) = self.limit(key) else { return None };
        Some(size)
    }

    /// The text of a key, if it is set.
    pub fn text(&self, key: Key) -> Option<&str> {
        self.setting(key).value.as_ref().and_then(Value::as_text)
    }
}

/// Whether links in the path of a setting are followed: a relative one that comes from a file, or is the
/// default, leads through what came with the project.
fn may_have_links(layer: Layer, dir: &Path) -> bool {
    dir.is_absolute() || layer > Layer::Project
}

/// The path of an io dir that the caller named: absolute and without links, except that its last
/// component is not to be one.
pub fn resolved_parents(path: &Path) -> PathBuf {
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let resolve = |(above, name): (&Path, &OsStr)| {
        let found = above.ancestors().find_map(|it| Some((it, it.canonicalize().ok()?)));
        let (existing, resolved) = found?;
        Some(resolved.join(above.strip_prefix(existing).ok()?).join(name))
    };
    path.parent().zip(path.file_name()).and_then(resolve).unwrap_or_else(|| path.to_owned())
}
