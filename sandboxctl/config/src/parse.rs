//! Parsing values from variables, flags and TOML.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::PathBuf;

use sandbox_api::hosts::AllowRuleError;
use sandbox_api::{LimitValue, SandboxSpec, ToolRule};
use sandbox_controller::DiskReserve;
use sandbox_e2b::Template;
use sandbox_protocol::message::AllowedPath;
use sandbox_protocol::path::GuestPath;
use sandbox_service::Preparation;
use sandbox_upstream::Upstream;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::key::{Key, Kind, MOST_PREWARMED};
use super::network;
use super::value::Value;
use super::value_error::ValueError;

impl Value {
    /// Parses the value of `key` from an environment variable or a flag.
    ///
    /// # Errors
    ///
    /// `ValueError`, which describes a valid value.
    pub fn from_text(key: Key, text: &str) -> Result<Self, ValueError> {
        match key.kind() {
            // No limit is 0, and the size of the pool is not a limit.
            Kind::Limit(_) if key == Key::PoolSize && text == "0" => {
                Ok(Self::Limit(LimitValue::Count(0)))
            }
            Kind::Limit(_)
                if key == Key::PoolSize
                    && text.trim().parse().is_ok_and(|size: u64| size > MOST_PREWARMED.into()) =>
            {
                Err(ValueError::of(format!("'{text}' is too many: at most {MOST_PREWARMED}")))
            }
            Kind::Limit(limit) => {
                let text = if counts_bytes(key) && is_whole_number(text) {
                    format!("{text}B")
                } else {
                    text.to_owned()
                };
                Ok(Self::Limit(limit.parse(&text).map_err(ValueError::of)?))
            }
            Kind::Switch => match text {
                "true" => Ok(Self::Switch(true)),
                "false" => Ok(Self::Switch(false)),
                _ => Err(ValueError::choice(text, &["true", "false"])),
            },
            Kind::Word => {
                let words = key.words();
                let is_one = words.contains(&text).then(|| Self::Text(text.to_owned()));
                is_one.ok_or_else(|| ValueError::choice(text, words))
            }
            Kind::DiskReserve => {
                let reserve: DiskReserve = text.parse().map_err(ValueError::of)?;
                Ok(Self::Text(reserve.to_string()))
            }
            Kind::Text | Kind::AbsolutePath | Kind::IoDir if text.is_empty() => {
                Err(ValueError::of("the value is empty"))
            }
            Kind::Text => Ok(Self::Text(text.to_owned())),
            Kind::IoDir if text.split('/').any(|name| name == "..") => {
                Err(ValueError::of("'..' is not allowed in it; --io-dir takes any directory"))
            }
            Kind::AbsolutePath if !text.starts_with('/') => {
                Err(ValueError::of("it is not an absolute path"))
            }
            Kind::AbsolutePath | Kind::IoDir => Ok(Self::Path(text.into())),
            // Tables and arrays are written as in a file.
            _ => {
                let value =
                    DeValue::parse(text).map_err(|error| ValueError::of(error.message()))?;
                Self::from_toml(key, &value)
            }
        }
    }

    /// Parses the value of `key` from a configuration file.
    ///
    /// # Errors
    ///
    /// `ValueError`, which describes a valid value.
    pub fn from_toml(key: Key, value: &Spanned<DeValue<'_>>) -> Result<Self, ValueError> {
        let expected = key.expects();
        let found = type_name(value.get_ref());
        let wrong_type = || ValueError::of(format!("expected {expected}, found {found}"));
        let wrong_list = |_| ValueError::of(format!("expected {expected}"));
        let filled = |text: &OsStr| match text.is_empty() {
            true => Err("the value is empty"),
            false => Ok(()),
        };
        match (key.kind(), value.get_ref()) {
            (Kind::GuestPaths, DeValue::Array(_)) => {
                let check = |AllowedPath { path, .. }: &AllowedPath| match GuestPath::new(path) {
                    Ok(_) => Ok(()),
                    Err(why) => Err(format!("'{path}' is not a path in the sandbox: {why}")),
                };
                list(value, check).map(Self::Paths)
            }
            (Kind::Preparations, DeValue::Array(_)) => {
                let preparations: Vec<Preparation> = read(value)?;
                for (at, preparation) in preparations.iter().enumerate() {
                    let name = &preparation.name;
                    let is_same = |it: &Preparation| it.name == *name;
                    let problem = match preparations[..at].iter().any(is_same) {
                        true => Err("it is there twice"),
                        false => preparation.check(),
                    };
                    problem.map_err(|why| ValueError::of(format!("'{name}': {why}")))?;
                }
                Ok(Self::Preparations(preparations))
            }
            (Kind::Templates, DeValue::Table(_)) => {
                table(value, |name, it: &Template| it.check(name)).map(Self::Templates)
            }
            (Kind::Upstreams, DeValue::Table(servers)) => {
                for (name, server) in servers {
                    refuse_line(name.get_ref(), server.get_ref())?;
                }
                table(value, |name, it: &Upstream| it.check(name)).map(Self::Upstreams)
            }
            (Kind::ToolRules, DeValue::Array(_)) => {
                list(value, |rule: &String| rule.parse::<ToolRule>().map(drop)).map(Self::Names)
            }
            (Kind::ProtectedNames, DeValue::Array(_)) => {
                let check = |name: &String| SandboxSpec::check_protected_name(name);
                list(value, check).map(Self::Names)
            }
            (Kind::Names, DeValue::Array(_)) => {
                list(value, |name: &String| filled(name.as_ref())).map(Self::Names)
            }
            (Kind::Dirs, DeValue::Array(_)) => {
                list(value, |dir: &PathBuf| filled(dir.as_os_str())).map(Self::Dirs)
            }
            (Kind::Hosts, DeValue::Array(_)) => {
                let entries: Vec<String> = read(value).map_err(wrong_list)?;
                let entries = entries.iter().map(|entry| entry.parse());
                Ok(Self::Hosts(entries.collect::<Result<_, ValueError>>()?))
            }
            (Kind::Lists, DeValue::Table(_)) => read(value).map(Self::Lists).map_err(wrong_list),
            (Kind::Presets, DeValue::Table(_)) => {
                let presets: BTreeMap<String, Vec<String>> = read(value).map_err(wrong_list)?;
                let presets = presets.into_iter().map(|(name, rules)| {
                    let rules = rules.iter().map(|rule| rule.parse());
                    let rules =
                        rules.collect::<Result<_, AllowRuleError>>().map_err(ValueError::of);
                    Ok((network::preset_name(&name)?, rules?))
                });
                Ok(Self::Presets(presets.collect::<Result<_, ValueError>>()?))
            }
            (Kind::Switch, DeValue::Boolean(switch)) => Ok(Self::Switch(*switch)),
            (Kind::Limit(limit), DeValue::Integer(number)) => {
                match limit.default_value() {
                    LimitValue::Count(_) | LimitValue::Cpus(_) => {}
                    LimitValue::Size(_) if counts_bytes(key) => {}
                    LimitValue::Size(_) | LimitValue::Time(_) => return Err(wrong_type()),
                }
                let digits = i64::from_str_radix(number.as_str(), number.radix())
                    .map_err(|_| wrong_type())?;
                Self::from_text(key, &digits.to_string())
            }
            (Kind::Limit(limit), DeValue::Float(number))
                if matches!(limit.default_value(), LimitValue::Cpus(_)) =>
            {
                Self::from_text(key, number.as_str())
            }
            (
                Kind::Limit(_)
                | Kind::Word
                | Kind::Text
                | Kind::AbsolutePath
                | Kind::IoDir
                | Kind::DiskReserve,
                DeValue::String(text),
            ) => Self::from_text(key, text),
            _ => Err(wrong_type()),
        }
    }
}

/// Refuses the command of a server as one text, as a flag has it.
fn refuse_line(name: &str, server: &DeValue<'_>) -> Result<(), ValueError> {
    let DeValue::Table(server) = server else { return Ok(()) };
    let is_line = server.iter().any(|(key, value)| {
        key.get_ref() == "command" && matches!(value.get_ref(), DeValue::String(_))
    });
    match is_line {
        true => Err(ValueError::of(format!(
            "'{name}': command is an array of words: command = [\"uvx\", \"mcp-server-time\"]"
        ))),
        false => Ok(()),
    }
}

/// What a table or an array has.
fn read<T: DeserializeOwned>(value: &Spanned<DeValue<'_>>) -> Result<T, ValueError> {
    T::deserialize(ValueDeserializer::from(value.clone()))
        .map_err(|error| ValueError::of(error.message()))
}

/// An array of what passes this check.
fn list<T: DeserializeOwned, E: ToString>(
    value: &Spanned<DeValue<'_>>,
    check: impl Fn(&T) -> Result<(), E>,
) -> Result<Vec<T>, ValueError> {
    let all: Vec<T> = read(value)?;
    all.iter().try_for_each(check).map_err(ValueError::of)?;
    Ok(all)
}

/// A table of what passes this check, each with its name.
fn table<T: DeserializeOwned, E: Display>(
    value: &Spanned<DeValue<'_>>,
    check: impl Fn(&str, &T) -> Result<(), E>,
) -> Result<BTreeMap<String, T>, ValueError> {
    let all: BTreeMap<String, T> = read(value)?;
    for (name, it) in &all {
        check(name, it).map_err(|why| ValueError::of(format!("'{name}': {why}")))?;
    }
    Ok(all)
}

/// A key whose name says that it is in bytes accepts a bare number of them.
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
    fn printed_settings_round_trip() {
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
        let value = Value::from_text(Key::Allow, "['Example.ORG.', '10.1:80', '@pypi']").unwrap();
        assert_eq!(value.to_string(), "[\"example.org\", \"10.0.0.1:80\", \"@pypi\"]");
        let text = "{ pypi = ['packages.example.org', '*.cdn.example.org:443'], none = [] }";
        let value = Value::from_text(Key::Presets, text).unwrap();
        let printed = "{ none = [], pypi = [\"packages.example.org\", \"*.cdn.example.org:443\"] }";
        assert_eq!(value.to_string(), printed);
        assert_eq!(Value::from_text(Key::Presets, printed).unwrap(), value);
        let json = r#"{"none":[],"pypi":["packages.example.org","*.cdn.example.org:443"]}"#;
        assert_eq!(serde_json::to_string(&value).unwrap(), json);
        for (key, bad) in [
            (Key::Allow, "['https://example.org/']"),
            (Key::Allow, "['@a b']"),
            (Key::Allow, "'example.org'"),
            (Key::Allow, "[1]"),
            (Key::Allow, "example.org"),
            (Key::Allow, "['localhost:80']"),
            (Key::Allow, "['all']"),
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
            "'http://x' is a URL: a rule is HOST or HOST:PORT, and allows all of the host; less is \
             'GET https://HOST/PATH/*'"
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
