//! `watch`: a directory whose changes are reported until the watch is cancelled.

use serde::{Deserialize, Serialize};

use crate::WireString;
use crate::operation::EntryKind;

/// `watch`: reports what changes in a directory. Like a kept command it is not among the requests in
/// flight, and is in progress until it is cancelled, or the directory is gone. Its answer comes then; an
/// error before [`Watched`] means that nothing was watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The directory, as in a file operation.
    pub path: WireString,
    /// Also watch the directories below it, and those that are created there, as far as
    /// [`MAX_WATCHED_DIRECTORIES`](crate::limits::MAX_WATCHED_DIRECTORIES) and
    /// [`MAX_WATCH_DEPTH`](crate::limits::MAX_WATCH_DEPTH) allow.
    #[serde(default)]
    pub recursive: bool,
}

/// `watched`: the watch is on. Sent once, before its first [`Changes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watched {
    /// The id of the `watch`.
    pub request: u64,
}

/// `changes`: what has changed, in order. The limits are those of a [`Page`](super::Page).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// The id of the `watch`.
    pub request: u64,
    /// How many changes before these are missing, or at least one that was not counted: the kernel's
    /// queue was full, there were too many at once, or a directory could not be watched.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
    /// The changes.
    pub entries: Vec<ChangedEntry>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A change of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedEntry {
    /// Its path relative to the watched directory; empty for the directory itself.
    pub name: WireString,
    /// What has happened to it.
    pub change: FileChange,
    /// Its type, if that is known.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
}

crate::words! {
    /// What has happened to an entry of a watched directory.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum FileChange {
        /// It appeared under this name: created, linked, or renamed to it.
        Create = "create",
        /// Its content was changed. Several writes in a short time are one.
        Write = "write",
        /// It was removed.
        Remove = "remove",
        /// It was renamed: it no longer has this name.
        Rename = "rename",
        /// Its permissions, its owner, its times or its extended attributes were changed.
        Chmod = "chmod",
    }
}

/// `flush`: answered when every change that was made before it is in [`Changes`] that were sent. Answered
/// outside of the requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flush {}
