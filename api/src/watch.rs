//! Watching a directory of a sandbox.

use sandbox_protocol::WireString;
pub use sandbox_protocol::message::FileChange;
use sandbox_protocol::names::{describe, published};
use sandbox_protocol::operation::EntryKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The directory to watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchRequest {
    /// Its path, as in a file operation.
    pub path: WireString,
    /// Also watch the directories below it, and those that are created there: up to 4,096 of them, and up
    /// to a depth of 32.
    #[serde(default)]
    pub recursive: bool,
}

/// What is reported of a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum WatchRecord {
    /// Something has changed.
    #[serde(rename = "change")]
    Event(FileEvent),
    /// Changes are missing here: the reader was too slow, there were more at once than are kept, or a
    /// directory could not be watched.
    Omitted {
        /// How many, or at least one that was not counted.
        events: u64,
    },
}

impl WatchRecord {
    /// Its name, as the member `event` has it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Event(_) => "change",
            Self::Omitted { .. } => "omitted",
        }
    }

    /// It as JSON for callers: a name is text, with its bytes beside it where they are not UTF-8.
    ///
    /// # Errors
    ///
    /// None in practice: everything in it can be written.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(published)
    }
}

/// A change in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct FileEvent {
    /// Its number, from 1. Numbers that are missing were omitted.
    pub seq: u64,
    /// The path of what has changed, relative to the watched directory; empty for that itself.
    pub name: WireString,
    /// What has happened to it.
    pub change: FileChange,
    /// Its type, if that is known without asking.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let event = FileEvent {
            seq: 7,
            name: "a/b".into(),
            change: FileChange::Create,
            kind: Some(EntryKind::Directory),
        };
        for (record, json) in [
            (
                WatchRecord::Event(event),
                r#"{"event":"change","seq":7,"name":"a/b","change":"create","type":"directory"}"#,
            ),
            (WatchRecord::Omitted { events: 3 }, r#"{"event":"omitted","events":3}"#),
        ] {
            assert_eq!(record.to_json().unwrap(), json);
            assert!(json.contains(record.name()));
            assert_eq!(serde_json::from_str::<WatchRecord>(json).unwrap(), record);
        }
    }
}
