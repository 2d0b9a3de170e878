//! Where a setting is from.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::key::Key;

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
