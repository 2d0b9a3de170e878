//! `SHA256SUMS`, as coreutils writes and reads it.

use sandbox_api::artifacts::ArtifactManifest;
use sandbox_dirfd::hex;
use sha2::{Digest as _, Sha256};

use crate::MANIFEST;

/// The file's content for a manifest: the manifest's own line, then a line for each file.
pub fn checksums(manifest: &ArtifactManifest, manifest_json: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    push_line(&mut text, MANIFEST.as_bytes(), &hex(&Sha256::digest(manifest_json)));
    for file in &manifest.files {
        push_line(&mut text, file.path(), &file.sha256);
    }
    text
}

/// A name that would break its line is escaped, and a backslash at the line's beginning says so.
fn push_line(text: &mut Vec<u8>, path: &[u8], sha256: &str) {
    let is_special = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r');
    if path.iter().any(is_special) {
        text.push(b'\\');
    }
    text.extend_from_slice(sha256.as_bytes());
    text.extend_from_slice(b"  ");
    for &byte in path {
        match byte {
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            byte => text.push(byte),
        }
    }
    text.push(b'\n');
}
