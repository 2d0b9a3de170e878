//! What is wrong with a configuration.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::key::{Key, Kind};
use super::network::Presets;
use super::origin::Origin;
use super::value_error::ValueError;
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
    /// Something at a position is invalid.
    #[error("{origin}: {what}")]
    At {
        /// The position.
        origin: Origin,
        /// What is wrong.
        what: String,
        /// The next step, if there is one.
        hint: Option<String>,
    },
    /// What the settings name cannot be used.
    #[error("{what}")]
    Unusable {
        /// What is wrong, after what named it.
        what: String,
        /// The next step, if there is one.
        hint: Option<String>,
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
    pub(super) fn at(origin: Origin, what: impl Into<String>) -> Self {
        Self::At { origin, what: what.into(), hint: None }
    }

    /// The same with a next step, if it is about a position.
    #[must_use]
    pub(super) fn with_hint(mut self, next: &str) -> Self {
        if let Self::At { hint, .. } = &mut self {
            *hint = Some(next.to_owned());
        }
        self
    }

    /// An invalid value.
    pub(super) fn of_value(origin: Origin, key: Key, why: &ValueError) -> Self {
        let name = key.name();
        let error = Self::at(origin, format!("{name}: {why}"));
        match key.kind() {
            Kind::Upstreams => error.with_hint(&format!(
                "[{name}.NAME] has command = [\"PROGRAM\", \"ARGUMENT\"] or url = \"https://HOST/PATH\""
            )),
            _ => error,
        }
    }

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
        } else if name == "mcp.allow_destructive" {
            Some("no file says it: --allow-destructive does, for one call".to_owned())
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
        Self::At { origin, what: format!("unknown {what} '{name}'"), hint }
    }

    pub(super) fn unknown_variable(name: String) -> Self {
        let known =
            Key::all().map(Key::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
        let hint = nearest(&name, &known).map(|known| format!("did you mean {known}?"));
        let what = format!("unknown variable '{name}'");
        Self::At { origin: Origin::Variable(name), what, hint }
    }

    /// An unknown preset, which `name` names.
    pub(super) fn unknown_preset(name: &str, preset: &str, presets: &Presets) -> Self {
        let known = presets.keys().cloned().collect();
        let hint = match nearest(preset, &known) {
            Some(known) => format!("did you mean @{known}?"),
            None if !known.is_empty() => "`sandboxctl config show` lists them".to_owned(),
            None => "[network.presets] in the user's configuration makes one: name = [HOST, …]"
                .to_owned(),
        };
        Self::Unusable { what: format!("{name}: there is no preset @{preset}"), hint: Some(hint) }
    }

    /// The next step, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::At { hint, .. } | Self::Unusable { hint, .. } => hint.clone(),
            Self::OverCeiling { key, section, .. } => Some(format!(
                "{section} in the user's or the system's configuration raises the ceiling of {key}"
            )),
            Self::Unreadable { .. } => None,
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
