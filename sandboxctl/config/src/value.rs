//! Values of settings, and how they are printed as TOML.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use sandbox_api::LimitValue;
use sandbox_e2b::Template;
use sandbox_protocol::message::AllowedPath;
use sandbox_service::Preparation;
use sandbox_upstream::Upstream;
use serde::{Serialize, Serializer};
use toml::ser::ValueSerializer;

use super::network::{Allow, Presets};

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A limit or a ceiling.
    Limit(LimitValue),
    /// A boolean.
    Switch(bool),
    /// A text: an enumerated value, an address.
    Text(String),
    /// A host path.
    Path(PathBuf),
    /// Guest paths and the access allowed below them.
    Paths(Vec<AllowedPath>),
    /// Names of files and directories.
    Names(Vec<String>),
    /// Host directories.
    Dirs(Vec<PathBuf>),
    /// Hosts that commands may reach.
    Hosts(Vec<Allow>),
    /// Presets: named lists of such hosts.
    Presets(Presets),
    /// Named lists of texts.
    Lists(BTreeMap<String, Vec<String>>),
    /// Processes that are started ahead.
    Preparations(Vec<Preparation>),
    /// Templates of E2B's sandboxes.
    Templates(BTreeMap<String, Template>),
    /// Other MCP servers.
    Upstreams(BTreeMap<String, Upstream>),
}

impl Value {
    /// The text of a [`Value::Text`].
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// As TOML, so that what `config show` prints is a configuration file.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(value @ (LimitValue::Count(_) | LimitValue::Cpus(_))) => {
                value.fmt(formatter)
            }
            // Their members are sorted.
            Self::Preparations(_) | Self::Templates(_) | Self::Upstreams(_) => {
                toml::Value::try_from(self).map_err(|_| fmt::Error)?.fmt(formatter)
            }
            _ => {
                let mut text = String::new();
                self.serialize(ValueSerializer::new(&mut text)).map_err(|_| fmt::Error)?;
                formatter.write_str(&text)
            }
        }
    }
}

/// As JSON: TOML strings are strings here too.
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
            Self::Preparations(preparations) => preparations.serialize(serializer),
            Self::Templates(templates) => templates.serialize(serializer),
            Self::Lists(lists) => lists.serialize(serializer),
            Self::Upstreams(upstreams) => upstreams.serialize(serializer),
            Self::Presets(presets) => presets.serialize(serializer),
        }
    }
}
