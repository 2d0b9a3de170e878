//! Artifacts: files that a run left, copied out of the io dir with their digests.
//!
//! Paths are relative to the directory that contains them. If one is not UTF-8, `path` is lossy,
//! and `path_b64` has its bytes.

use sandbox_protocol::{Base64, WireString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// `manifest.json` of an artifacts directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactManifest {
    /// Its name and version.
    pub schema: ArtifactSchema,
    /// The files, sorted by the bytes of their paths.
    pub files: Vec<Artifact>,
    /// What matched and is not among the files, sorted likewise.
    pub omitted: Vec<OmittedEntry>,
}

/// The name and version of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArtifactSchema {
    /// The only version.
    #[serde(rename = "sandboxctl.artifacts/1")]
    V1,
}

/// A file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Its path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its content, in lower-case hexadecimal.
    #[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
    pub sha256: String,
    /// Its permissions in octal: `0755` if its owner may execute it, else `0644`.
    pub mode: ArtifactMode,
    /// Its MIME type, by its name or its first bytes.
    pub mime: String,
}

/// The permissions of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArtifactMode {
    /// Everyone may read it.
    #[serde(rename = "0644")]
    Plain,
    /// Everyone may read and execute it.
    #[serde(rename = "0755")]
    Executable,
}

impl ArtifactMode {
    /// By the permissions of the original: its owner's right to execute it counts.
    pub const fn of(mode: u32) -> Self {
        if mode & 0o100 == 0 { Self::Plain } else { Self::Executable }
    }

    /// The permission bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Plain => 0o644,
            Self::Executable => 0o755,
        }
    }
}

impl Artifact {
    /// The bytes of its path.
    pub fn path(&self) -> &[u8] {
        exact(&self.path, self.path_b64.as_ref())
    }
}

/// An entry that matched and was not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OmittedEntry {
    /// Its path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Why it was not copied.
    pub reason: OmitReason,
}

impl OmittedEntry {
    /// The entry at this path.
    pub fn new(path: &[u8], reason: OmitReason) -> Self {
        let (path, path_b64) = text_and_bytes(path);
        Self { path, path_b64, reason }
    }

    /// The bytes of its path.
    pub fn path(&self) -> &[u8] {
        exact(&self.path, self.path_b64.as_ref())
    }
}

/// Why an entry was not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OmitReason {
    /// It is a symbolic link: they are never followed.
    Symlink,
    /// It is a FIFO.
    Fifo,
    /// It is a socket.
    Socket,
    /// It is a device.
    Device,
    /// An artifacts directory has a file of this name itself: `manifest.json` or `SHA256SUMS`.
    ReservedName,
}

impl OmitReason {
    /// What the entry is, for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::ReservedName => "a reserved name",
        }
    }
}

/// What was copied out of the io dir after a run: the member `artifacts` of its document.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactsReport {
    /// The artifacts directory on the host; lossy where it is not UTF-8.
    pub dir: String,
    /// The number of files; 0 if they could not be copied.
    pub files: u64,
    /// The bytes of all files together.
    pub bytes: u64,
    /// What matched and was not copied.
    pub omitted: Vec<OmittedEntry>,
    /// The globs that no file matches, where that is not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// Why nothing was copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The result of comparing an artifacts directory with its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactsCheck {
    /// The number of files in the manifest.
    pub files: u64,
    /// Their bytes together, according to the manifest.
    pub bytes: u64,
    /// The differences, sorted by path; empty if there are none.
    pub differences: Vec<PathDifference<CheckDifference>>,
}

/// The result of comparing two artifacts directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactsDiff {
    /// The differences, sorted by path; empty if there are none.
    pub differences: Vec<PathDifference<DiffChange>>,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathDifference<T> {
    /// The path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How it differs.
    pub change: T,
    /// The digest that was expected, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The digest that was found instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<String>,
}

impl<T> PathDifference<T> {
    /// A difference at this path.
    pub fn new(path: &[u8], change: T) -> Self {
        let (path, path_b64) = text_and_bytes(path);
        Self { path, path_b64, change, expected: None, actual: None }
    }

    /// The same with the digests of both.
    #[must_use]
    pub fn with_digests(self, expected: Option<&str>, actual: Option<&str>) -> Self {
        let [expected, actual] = [expected, actual].map(|it| it.map(str::to_owned));
        Self { expected, actual, ..self }
    }

    /// The bytes of its path.
    pub fn path(&self) -> &[u8] {
        exact(&self.path, self.path_b64.as_ref())
    }
}

/// The first line of a file that differs from the expected one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineDifference {
    /// The file's path; lossy where it is not UTF-8.
    pub path: String,
    /// The number of the line, from 1.
    pub line: u64,
    /// The line that was expected; null behind the end.
    pub expected: Option<String>,
    /// The line that is there; null behind the end.
    pub actual: Option<String>,
}

sandbox_protocol::words! {
    /// How a directory differs from its manifest.
    #[derive(JsonSchema)]
    pub enum CheckDifference {
        /// The manifest has a file that is not there.
        Missing = "missing",
        /// Its content is another, or it is no regular file any more.
        Changed = "changed",
        /// The manifest has no such file.
        Unexpected = "unexpected",
    }
}

sandbox_protocol::words! {
    /// How a file of the second directory differs from the first.
    #[derive(JsonSchema)]
    pub enum DiffChange {
        /// Only the second directory has it.
        Added = "added",
        /// Only the first directory has it.
        Removed = "removed",
        /// Its content or its mode is another.
        Changed = "changed",
    }
}

/// A path as documents have it.
pub fn text_and_bytes(path: &[u8]) -> (String, Option<Base64>) {
    let (text, bytes) = WireString::parts(path);
    (text.into_owned(), bytes)
}

fn exact<'a>(path: &'a str, bytes: Option<&'a Base64>) -> &'a [u8] {
    bytes.map_or(path.as_bytes(), |exact| &exact.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_keeps_its_members_and_their_order() {
        let (path, path_b64) = text_and_bytes(b"a\xff");
        let manifest = ArtifactManifest {
            schema: ArtifactSchema::V1,
            files: vec![Artifact {
                path,
                path_b64,
                bytes: 3,
                sha256: "ab".to_owned(),
                mode: ArtifactMode::of(0o4711),
                mime: "text/plain".to_owned(),
            }],
            omitted: vec![OmittedEntry::new(b"link", OmitReason::Symlink)],
        };
        let json = serde_json::to_string(&manifest).unwrap();
        let expected = concat!(
            r#"{"schema":"sandboxctl.artifacts/1","files":[{"path":"a"#,
            "\u{fffd}",
            r#"","path_b64":"Yf8=","bytes":3,"sha256":"ab","mode":"0755","mime":"text/plain"}],"#,
            r#""omitted":[{"path":"link","reason":"symlink"}]}"#,
        );
        assert_eq!(json, expected);
        let read: ArtifactManifest = serde_json::from_str(&json).unwrap();
        assert_eq!((read.files[0].path(), &read), (&b"a\xff"[..], &manifest));
        assert_eq!(ArtifactMode::of(0o077), ArtifactMode::Plain);
    }
}
