//! Values of settings: how they are read from text and from TOML, and printed as TOML.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use sandbox_api::hosts::AllowRuleError;
use sandbox_api::{LimitValue, SandboxSpec};
use sandbox_controller::DiskReserve;
use sandbox_protocol::message::{Access, AllowedPath};
use sandbox_protocol::path::{GuestPath, PathError};
use serde::{Deserialize, Serialize, Serializer};
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::key::Key;
use super::network;
use super::network::{Allow, AllowError, Presets};

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A limit or a ceiling.
    Limit(LimitValue),
    /// Yes or no.
    Switch(bool),
    /// A word, an address.
    Text(String),
    /// A path of the host.
    Path(PathBuf),
    /// Guest paths and what may be done below them.
    Paths(Vec<AllowedPath>),
    /// Names of files and directories.
    Names(Vec<String>),
    /// Directories of the host.
    Dirs(Vec<PathBuf>),
    /// Hosts that programs may reach.
    Hosts(Vec<Allow>),
    /// Named lists of such hosts.
    Presets(Presets),
}

/// Why a text or a TOML value is no value of its key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// No value of a limit.
    #[error(transparent)]
    Limit(#[from] sandbox_api::LimitParseError),
    /// No reserve of disk space.
    #[error(transparent)]
    DiskReserve(#[from] sandbox_controller::DiskReserveError),
    /// Not one of a few words.
    #[error("'{text}' is not one of: {}", .words.join(", "))]
    Choice {
        /// As it was given.
        text: String,
        /// What it may be.
        words: &'static [&'static str],
    },
    /// Another TOML type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// What the key takes.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// Nothing at all.
    #[error("the value is empty")]
    Empty,
    /// Bytes of a variable that are no text.
    #[error("it is not UTF-8 text")]
    NotUtf8,
    /// `..` in `[io] dir`.
    #[error("'..' is not allowed in it; --io-dir takes any directory")]
    Parent,
    /// A relative path where only an absolute one says the same everywhere.
    #[error("it is not an absolute path")]
    Relative,
    /// No list of allowed paths.
    #[error("{0}")]
    Paths(String),
    /// No list of names, or a name that is none.
    #[error("{0}")]
    Names(String),
    /// No list of hosts, or an entry that is none.
    #[error("{0}")]
    Hosts(String),
    /// A rule that is none, or no name of a preset.
    #[error(transparent)]
    Allow(#[from] AllowError),
    /// An allowed path that is no guest path.
    #[error("'{path}' is no path in the sandbox: {source}")]
    GuestPath {
        /// As it was given.
        path: String,
        /// What is wrong.
        source: PathError,
    },
}

impl Value {
    /// Reads the value of `key` from an environment variable or a flag.
    ///
    /// # Errors
    ///
    /// [`ValueError`], which says what a right value looks like.
    pub fn from_text(key: Key, text: &str) -> Result<Self, ValueError> {
        match key {
            Key::Limit(limit) | Key::Ceiling(limit) => {
                let text = if counts_bytes(key) && is_whole_number(text) {
                    format!("{text}B")
                } else {
                    text.to_owned()
                };
                Ok(Self::Limit(limit.parse(&text)?))
            }
            Key::IoEnabled => match text {
                "true" => Ok(Self::Switch(true)),
                "false" => Ok(Self::Switch(false)),
                _ => Err(ValueError::Choice { text: text.into(), words: &["true", "false"] }),
            },
            Key::AllowedPaths | Key::AllowedOutPaths => {
                let value = DeValue::parse(text)
                    .map_err(|error| ValueError::Paths(error.message().to_owned()))?;
                Self::from_toml(key, &value)
            }
            Key::Protected | Key::AllowedImages => {
                let value = DeValue::parse(text)
                    .map_err(|error| ValueError::Names(error.message().to_owned()))?;
                Self::from_toml(key, &value)
            }
            Key::Allow | Key::Presets => {
                let value = DeValue::parse(text)
                    .map_err(|error| ValueError::Hosts(error.message().to_owned()))?;
                Self::from_toml(key, &value)
            }
            Key::IoErrors
            | Key::IoPrivate
            | Key::DefaultEncoding
            | Key::Confinement
            | Key::EngineKind
            | Key::Pull => {
                let words = key.words();
                if words.contains(&text) {
                    Ok(Self::Text(text.to_owned()))
                } else {
                    Err(ValueError::Choice { text: text.to_owned(), words })
                }
            }
            Key::DiskReserve => {
                let reserve: DiskReserve = text.parse()?;
                Ok(Self::Text(reserve.to_string()))
            }
            Key::IoDir
            | Key::AuditFile
            | Key::EngineHost
            | Key::EngineRuntime
            | Key::EngineImage
            | Key::EngineDataDir => {
                if text.is_empty() {
                    return Err(ValueError::Empty);
                }
                if key == Key::IoDir && text.split('/').any(|name| name == "..") {
                    return Err(ValueError::Parent);
                }
                if matches!(key, Key::EngineDataDir | Key::AuditFile) && !text.starts_with('/') {
                    return Err(ValueError::Relative);
                }
                Ok(match key {
                    Key::IoDir | Key::AuditFile | Key::EngineDataDir => Self::Path(text.into()),
                    _ => Self::Text(text.to_owned()),
                })
            }
        }
    }

    /// Reads the value of `key` from a configuration file.
    ///
    /// # Errors
    ///
    /// [`ValueError`], which says what a right value looks like.
    pub fn from_toml(key: Key, value: &Spanned<DeValue<'_>>) -> Result<Self, ValueError> {
        let expected = key.expects();
        let wrong_type = || ValueError::Type { expected, found: type_name(value.get_ref()) };
        match (key, value.get_ref()) {
            (Key::AllowedPaths, DeValue::Array(_)) => {
                let paths = Vec::<AllowedPath>::deserialize(ValueDeserializer::from(value.clone()))
                    .map_err(|error| ValueError::Paths(error.message().to_owned()))?;
                for AllowedPath { path, access: _ } in &paths {
                    GuestPath::new(path)
                        .map_err(|source| ValueError::GuestPath { path: path.clone(), source })?;
                }
                Ok(Self::Paths(paths))
            }
            (Key::Protected, DeValue::Array(_)) => {
                let names = Vec::<String>::deserialize(ValueDeserializer::from(value.clone()))
                    .map_err(|error| ValueError::Names(error.message().to_owned()))?;
                for name in &names {
                    SandboxSpec::check_protected_name(name)
                        .map_err(|error| ValueError::Names(error.to_string()))?;
                }
                Ok(Self::Names(names))
            }
            (Key::AllowedImages, DeValue::Array(_)) => {
                let names = Vec::<String>::deserialize(ValueDeserializer::from(value.clone()))
                    .map_err(|error| ValueError::Names(error.message().to_owned()))?;
                match names.iter().any(String::is_empty) {
                    true => Err(ValueError::Empty),
                    false => Ok(Self::Names(names)),
                }
            }
            (Key::AllowedOutPaths, DeValue::Array(_)) => {
                let dirs = Vec::<PathBuf>::deserialize(ValueDeserializer::from(value.clone()))
                    .map_err(|error| ValueError::Paths(error.message().to_owned()))?;
                match dirs.iter().any(|dir| dir.as_os_str().is_empty()) {
                    true => Err(ValueError::Empty),
                    false => Ok(Self::Dirs(dirs)),
                }
            }
            (Key::Allow, DeValue::Array(_)) => {
                let entries = Vec::<String>::deserialize(ValueDeserializer::from(value.clone()))
                    .map_err(|_| ValueError::Hosts(format!("expected {expected}")))?;
                let entries = entries.iter().map(|entry| entry.parse());
                Ok(Self::Hosts(entries.collect::<Result<_, AllowError>>()?))
            }
            (Key::Presets, DeValue::Table(_)) => {
                let source = ValueDeserializer::from(value.clone());
                let presets = BTreeMap::<String, Vec<String>>::deserialize(source)
                    .map_err(|_| ValueError::Hosts(format!("expected {expected}")))?;
                let presets = presets.into_iter().map(|(name, rules)| {
                    let rules = rules.iter().map(|rule| rule.parse());
                    let rules = rules.collect::<Result<_, AllowRuleError>>();
                    Ok((network::preset_name(&name)?, rules?))
                });
                Ok(Self::Presets(presets.collect::<Result<_, AllowError>>()?))
            }
            (
                Key::AllowedPaths
                | Key::Protected
                | Key::AllowedOutPaths
                | Key::AllowedImages
                | Key::Allow
                | Key::Presets,
                _,
            ) => Err(wrong_type()),
            (Key::IoEnabled, DeValue::Boolean(switch)) => Ok(Self::Switch(*switch)),
            (Key::IoEnabled, _) => Err(wrong_type()),
            (Key::Limit(limit) | Key::Ceiling(limit), DeValue::Integer(number)) => {
                match limit.default_value() {
                    LimitValue::Count(_) | LimitValue::Cpus(_) => {}
                    LimitValue::Size(_) if counts_bytes(key) => {}
                    LimitValue::Size(_) | LimitValue::Time(_) => return Err(wrong_type()),
                }
                let digits = i64::from_str_radix(number.as_str(), number.radix())
                    .map_err(|_| wrong_type())?;
                Self::from_text(key, &digits.to_string())
            }
            (Key::Limit(limit) | Key::Ceiling(limit), DeValue::Float(number)) => {
                match limit.default_value() {
                    LimitValue::Cpus(_) => Self::from_text(key, number.as_str()),
                    LimitValue::Count(_) | LimitValue::Size(_) | LimitValue::Time(_) => {
                        Err(wrong_type())
                    }
                }
            }
            (_, DeValue::String(text)) => Self::from_text(key, text),
            _ => Err(wrong_type()),
        }
    }

    /// The text of a [`Value::Text`].
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Limit(_)
            | Self::Switch(_)
            | Self::Path(_)
            | Self::Paths(_)
            | Self::Names(_)
            | Self::Dirs(_)
            | Self::Hosts(_)
            | Self::Presets(_) => None,
        }
    }
}

/// A key that says in its name that it counts bytes takes a bare number of them.
fn counts_bytes(key: Key) -> bool {
    key.name().ends_with("_bytes")
}

fn is_whole_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// As TOML, so that what `config show` prints is a configuration file.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: String| toml::Value::String(text).to_string();
        match self {
            Self::Limit(value @ (LimitValue::Count(_) | LimitValue::Cpus(_))) => {
                value.fmt(formatter)
            }
            Self::Limit(value @ (LimitValue::Size(_) | LimitValue::Time(_))) => {
                formatter.write_str(&quoted(value.to_string()))
            }
            Self::Switch(switch) => switch.fmt(formatter),
            Self::Text(text) => formatter.write_str(&quoted(text.clone())),
            Self::Path(path) => formatter.write_str(&quoted(path.to_string_lossy().into_owned())),
            Self::Paths(paths) => {
                formatter.write_str("[")?;
                for (index, AllowedPath { path, access }) in paths.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    let access = match access {
                        Access::Read => "read",
                        Access::Write => "write",
                    };
                    let path = quoted(path.clone());
                    write!(formatter, "{comma}{{ path = {path}, access = \"{access}\" }}")?;
                }
                formatter.write_str("]")
            }
            Self::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| quoted(name.clone())).collect();
                write!(formatter, "[{}]", names.join(", "))
            }
            Self::Dirs(dirs) => {
                let dirs = dirs.iter().map(|dir| quoted(dir.to_string_lossy().into_owned()));
                write!(formatter, "[{}]", dirs.collect::<Vec<_>>().join(", "))
            }
            Self::Hosts(entries) => {
                let entries = entries.iter().map(|entry| quoted(entry.to_string()));
                write!(formatter, "[{}]", entries.collect::<Vec<_>>().join(", "))
            }
            Self::Presets(presets) if presets.is_empty() => formatter.write_str("{}"),
            Self::Presets(presets) => {
                let presets = presets.iter().map(|(name, rules)| {
                    let rules = rules.iter().map(|rule| quoted(rule.to_string()));
                    format!("{name} = [{}]", rules.collect::<Vec<_>>().join(", "))
                });
                write!(formatter, "{{ {} }}", presets.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// As JSON: what TOML has as a string is a string here too.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Limit(LimitValue::Count(count)) => serializer.serialize_u64(*count),
            Self::Limit(LimitValue::Cpus(cpus)) => {
                serializer.serialize_f64(f64::from(cpus.thousandths()) / 1000.0)
            }
            Self::Limit(value @ (LimitValue::Size(_) | LimitValue::Time(_))) => {
                serializer.collect_str(value)
            }
            Self::Switch(switch) => serializer.serialize_bool(*switch),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Path(path) => serializer.serialize_str(&path.to_string_lossy()),
            Self::Paths(paths) => paths.serialize(serializer),
            Self::Names(names) => names.serialize(serializer),
            Self::Dirs(dirs) => {
                serializer.collect_seq(dirs.iter().map(|dir| dir.to_string_lossy()))
            }
            Self::Hosts(entries) => serializer.collect_seq(entries.iter().map(ToString::to_string)),
            Self::Presets(presets) => {
                serializer.collect_map(presets.iter().map(|(name, rules)| {
                    (name, rules.iter().map(ToString::to_string).collect::<Vec<_>>())
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(key: Key, text: &str) -> Result<Value, String> {
        let value = DeValue::parse(text).unwrap();
        Value::from_toml(key, &value).map_err(|error| error.to_string())
    }

    fn key(name: &str) -> Key {
        Key::from_name(name).unwrap()
    }

    #[test]
    fn what_is_printed_is_read_again() {
        for key in Key::all() {
            let Some(default) = key.default() else { continue };
            assert_eq!(toml(key, &default.to_string()), Ok(default), "{}", key.name());
        }
    }

    #[test]
    fn a_bare_number_is_bytes_only_where_the_key_says_so() {
        let printed = |name, text| toml(key(name), text).map(|value| value.to_string());
        assert_eq!(printed("io.max_bytes", "52428800").as_deref(), Ok("\"50MiB\""));
        assert_eq!(printed("io.max_bytes", "\"1MiB\"").as_deref(), Ok("\"1MiB\""));
        assert_eq!(
            printed("limits.memory", "268435456").unwrap_err(),
            "expected a size such as \"64MiB\", found a whole number"
        );
        assert_eq!(
            printed("limits.timeout", "30").unwrap_err(),
            "expected a duration such as \"30s\", found a whole number"
        );
        assert_eq!(printed("limits.cpus", "1").as_deref(), Ok("1"));
        assert_eq!(printed("limits.cpus", "0.5").as_deref(), Ok("0.5"));
        assert_eq!(printed("limits.pids", "0x40").as_deref(), Ok("64"));
        assert!(printed("limits.pids", "-1").is_err());
        assert!(printed("limits.pids", "1.5").is_err());
    }

    #[test]
    fn words_are_checked() {
        assert_eq!(
            toml(Key::IoErrors, "\"throw\"").unwrap_err(),
            "'throw' is not one of: raise, return"
        );
        assert_eq!(
            toml(Key::IoEnabled, "1").unwrap_err(),
            "expected true or false, found a whole number"
        );
        assert!(toml(Key::IoDir, "\"a/../b\"").unwrap_err().starts_with("'..' is not allowed"));
        assert!(toml(Key::IoDir, "\"a..b\"").is_ok());
        assert_eq!(toml(Key::EngineDataDir, "'x'").unwrap_err(), "it is not an absolute path");
    }

    #[test]
    fn protected_names_are_checked() {
        let value = Value::from_text(Key::Protected, "['.bashrc', '.git/hooks']").unwrap();
        assert_eq!(value.to_string(), "[\".bashrc\", \".git/hooks\"]");
        for bad in ["['']", "['/io/.bashrc']", "['a/../b']", "[1]", "'.bashrc'", ".bashrc", "["] {
            assert!(Value::from_text(Key::Protected, bad).is_err(), "{bad}");
        }
        assert_eq!(
            toml(Key::Protected, "true").unwrap_err(),
            "expected an array of names such as \".bashrc\" or \".git/hooks\", found true or false"
        );
    }

    #[test]
    fn hosts_and_presets_are_checked_and_printed_as_they_are_compared() {
        let value = Value::from_text(Key::Allow, "['Example.ORG.', '127.1:80', '@pypi']").unwrap();
        assert_eq!(value.to_string(), "[\"example.org\", \"127.0.0.1:80\", \"@pypi\"]");
        let text = "{ pypi = ['pypi.org', '*.pythonhosted.org:443'], none = [] }";
        let value = Value::from_text(Key::Presets, text).unwrap();
        let printed = "{ none = [], pypi = [\"pypi.org\", \"*.pythonhosted.org:443\"] }";
        assert_eq!(value.to_string(), printed);
        assert_eq!(Value::from_text(Key::Presets, printed).unwrap(), value);
        let json = r#"{"none":[],"pypi":["pypi.org","*.pythonhosted.org:443"]}"#;
        assert_eq!(serde_json::to_string(&value).unwrap(), json);
        for (key, bad) in [
            (Key::Allow, "['https://example.org/']"),
            (Key::Allow, "['@a b']"),
            (Key::Allow, "'example.org'"),
            (Key::Allow, "[1]"),
            (Key::Allow, "example.org"),
            (Key::Presets, "[]"),
            (Key::Presets, "{ a = 'example.org' }"),
            (Key::Presets, "{ a = ['@b'] }"),
            (Key::Presets, "{ 'a b' = [] }"),
            (Key::Presets, "{ a = [], a = [] }"),
        ] {
            assert!(Value::from_text(key, bad).is_err(), "{bad}");
        }
        assert_eq!(
            toml(Key::Allow, "['http://x']").unwrap_err(),
            "'http://x' is a URL: a rule is HOST or HOST:PORT, and allows all of the host"
        );
    }

    #[test]
    fn allowed_paths_are_read_from_text_too() {
        let text = "[{path = '/io', access = 'read'}]";
        let value = Value::from_text(Key::AllowedPaths, text).unwrap();
        assert_eq!(value.to_string(), "[{ path = \"/io\", access = \"read\" }]");
        for bad in
            ["[{path = '/io'}]", "[{path = 'io', access = 'read'}]", "['/io']", "'/io'", "[{", ""]
        {
            assert!(Value::from_text(Key::AllowedPaths, bad).is_err(), "{bad}");
        }
        let unknown = "[{path = '/io', access = 'read', x = 1}]";
        let error = Value::from_text(Key::AllowedPaths, unknown).unwrap_err().to_string();
        assert!(error.contains("unknown field `x`"), "{error}");
    }
}
