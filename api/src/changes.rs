//! What a run changed in its io dir, and whether the change was committed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

sandbox_protocol::words! {
    /// When the changes of a run are committed to its io dir.
    #[derive(Default, JsonSchema)]
    pub enum CommitPolicy {
        /// For any status.
        #[default]
        Always = "always",
        /// Only if the status is `ok`; otherwise the io dir stays as it was.
        OnSuccess = "on-success",
        /// Never: a dry run.
        Never = "never",
    }
}

/// The change manifest of a run: schema `sandboxctl.changes/1`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeManifest {
    /// The name and version of this schema.
    pub schema: ChangesSchema,
    /// By path.
    pub changes: Vec<Change>,
    /// There are more changes than are listed.
    pub truncated: bool,
}

/// The name and version of the schema of a change manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ChangesSchema {
    /// Version 1.
    #[default]
    #[serde(rename = "sandboxctl.changes/1")]
    V1,
}

named! {
    /// A change of one path: its state after the run, and before it.
    pub struct Change {
        /// Relative to the io dir; lossy where it is not UTF-8.
        path / path_b64: "The path's bytes, where they are not UTF-8.",
        /// What happened to it.
        op: ChangeOp,
        /// What it is now; what it was, if it was removed.
        [serde(rename = "type")]
        kind: ChangeType,
        /// The size of a file, and of a link's target; null for anything else and what was removed.
        bytes: Option<u64>,
        /// The SHA-256 of a file's content or a link's target, in hexadecimal digits.
        [schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
        sha256: Option<String>,
        /// The permission bits, such as `0644`; null if it was removed, and for links, which have none.
        [schemars(extend("pattern" = "^[0-7]{4}$"))]
        mode: Option<String>,
        /// The media type that the name of a file suggests.
        mime: Option<String>,
        /// Where a link leads, as it is written in it; never followed.
        [serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// The path that it had before, if it is certainly the same file.
        [serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// What it was before; null if it did not exist.
        before: Option<Before>,
    }
}

/// What a path was before a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// The size of a file, and of a link's target; null for anything else.
    pub bytes: Option<u64>,
    /// The SHA-256 of a file's content or a link's target, in hexadecimal digits.
    #[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// The permission bits, such as `0644`; null for links, which have none.
    #[schemars(extend("pattern" = "^[0-7]{4}$"))]
    pub mode: Option<String>,
}

sandbox_protocol::words! {
    /// What happened to a path. Equal content, mode and times are no change.
    #[derive(JsonSchema)]
    pub enum ChangeOp {
        /// It did not exist before.
        Created = "created",
        /// It has other content, or another type.
        Modified = "modified",
        /// It does not exist any more.
        Removed = "removed",
        /// It has other permission bits and the same content.
        Mode = "mode",
        /// It was written, and has the same content and permission bits. Not used of directories.
        Times = "times",
    }
}

/// The type of a changed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

/// What became of the changes of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// Whether the io dir has them now.
    pub committed: bool,
    /// How they were kept apart until then.
    pub staging: StagingMethod,
    /// Changed paths that something else changed meanwhile; all else was committed, or nothing.
    pub conflicts: Vec<String>,
    /// The changes: of a commit those that the io dir has now, without the conflicts and what is below
    /// them; else those that the run made.
    pub manifest: ChangeManifest,
}

/// How a run's changes are kept apart from its io dir until they are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StagingMethod {
    /// The run works on a private copy.
    Copy,
    /// The run works on an overlay of it.
    Overlay,
}

impl ChangeManifest {
    /// Whether nothing changed.
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Leaves out these paths and what is below them.
    pub fn leave_out(&mut self, paths: &[Vec<u8>]) {
        let is_at_or_below = |change: &Change, path: &Vec<u8>| {
            let rest = change.path.as_bytes().strip_prefix(&**path);
            rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        };
        self.changes.retain(|it| !paths.iter().any(|path| is_at_or_below(it, path)));
    }
}
