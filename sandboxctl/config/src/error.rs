//! What is wrong with a configuration.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::key::Key;
use super::origin::Origin;
use super::value::ValueError;
use super::variables::{OTHER_VARIABLES, SERVER_VARIABLE};

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
        source: ValueError,
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
    pub fn unknown_key(origin: Origin, name: String, is_table: bool) -> Self {
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

    pub(super) fn unknown_variable(name: String) -> Self {
        let known =
            Key::all().map(Key::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
        let hint = nearest(&name, &known).map(|known| format!("did you mean {known}?"));
        Self::Unknown { origin: Origin::Variable(name.clone()), what: "variable", name, hint }
    }

    /// The next step, if there is one.
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
