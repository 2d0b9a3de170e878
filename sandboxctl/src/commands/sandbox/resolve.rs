//! Which sandbox is meant: by its id, the beginning of it, or its name.

use hyper::StatusCode;
use sandbox_api::ErrorKind;
use sandbox_api::service::SandboxView;

use crate::error::Error;
use crate::remote::Error as RemoteError;

/// The shortest beginning of an id that counts.
const SHORTEST: usize = 4;

/// Why a word means no sandbox.
#[derive(Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// There is none.
    Unknown,
    /// It is the beginning of these ids.
    Several(Vec<String>),
}

impl Unresolved {
    /// The error of the word.
    pub fn named(self, word: &str) -> Error {
        let what = format!("ID '{word}'");
        match self {
            // The same as a service says of an id.
            Self::Unknown => {
                let why = format!("{what}: there is no such sandbox");
                let hint =
                    "`sandboxctl sandbox ls` lists them; of an id at least 4 characters count";
                let (status, kind) = (StatusCode::NOT_FOUND, ErrorKind::NotFound);
                RemoteError::refusal(status, kind, why, Some(hint.to_owned())).into()
            }
            Self::Several(ids) => {
                Error::usage(what, format!("ambiguous ID: matches {}", ids.join(", ")))
                    .with_hint("use more characters")
            }
        }
    }
}

/// The sandbox that a word means: an id before a name, and a name before the beginning of an id.
pub fn resolve<'a>(word: &str, all: &'a [SandboxView]) -> Result<&'a SandboxView, Unresolved> {
    let named = |it: &&SandboxView| it.name.as_deref() == Some(word);
    if let Some(found) = all.iter().find(|it| it.id == word).or_else(|| all.iter().find(named)) {
        return Ok(found);
    }
    let begins = |it: &&SandboxView| word.len() >= SHORTEST && it.id.starts_with(word);
    let mut found = all.iter().filter(begins);
    match (found.next(), found.next()) {
        (None, _) => Err(Unresolved::Unknown),
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            let ids = all.iter().filter(begins).map(|it| it.id.clone());
            Err(Unresolved::Several(ids.collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_api::service::{SandboxStatus, Time};
    use serde_json::{Map, json};

    use super::*;

    /// A sandbox of this id and name.
    fn view(id: &str, name: Option<&str>) -> SandboxView {
        let now = Time::now();
        SandboxView {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            generation: 1,
            status: SandboxStatus::Ready,
            spec: serde_json::from_value(json!({ "image": "debian:13" })).unwrap(),
            created_at: now.before(Duration::from_secs(65)),
            last_used_at: now,
            expires_at: now.after(Duration::from_secs(3605)),
            max_expires_at: now.after(Duration::from_secs(7200)),
            idle_at: None,
            idle: serde_json::from_value(json!("stop")).unwrap(),
            processes: Some(2),
            paused_memory: None,
            metadata: Map::new(),
            node_away: false,
        }
    }

    #[test]
    fn word_is_an_id_a_name_or_the_beginning_of_an_id() {
        let all = [
            view("7f3c9a1be2d40586", None),
            view("7f3c000000000000", Some("7f3c9a")),
            view("0123456789abcdef", Some("build")),
            view("fedcba9876543210", Some("0123456789abcdef")),
        ];
        let id = |word| resolve(word, &all).map(|found| &*found.id);
        assert_eq!(id("build"), Ok("0123456789abcdef"));
        assert_eq!(id("7f3c9a1be2d40586"), Ok("7f3c9a1be2d40586"));
        assert_eq!(id("0123456789abcdef"), Ok("0123456789abcdef"), "an id before a name");
        assert_eq!(id("7f3c9a"), Ok("7f3c000000000000"), "a name before the beginning of an id");
        assert_eq!(id("7f3c9"), Ok("7f3c9a1be2d40586"));
        assert_eq!(id("fedc"), Ok("fedcba9876543210"));
        for word in ["fed", "", "none", "buil", "FEDC"] {
            assert_eq!(id(word), Err(Unresolved::Unknown), "{word}");
        }
        assert_eq!(Unresolved::Unknown.named("x").exit_code(), 1);
        let Err(several) = id("7f3c") else { panic!("it is no id") };
        let text = several.named("7f3c").to_text();
        assert!(
            text.contains("ambiguous ID: matches 7f3c9a1be2d40586, 7f3c000000000000"),
            "{text}"
        );
    }
}
