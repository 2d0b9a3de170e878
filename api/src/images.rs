//! Lists of images.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EngineKind;
use crate::time::unix_seconds;
use crate::wildcard;

/// Whether a text can be the name or the id of an image. It has none of the characters that mean
/// something in the URL of an engine's API, where another image than the text says could be meant.
pub fn is_image_reference(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+:@/[]".contains(&byte);
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    text.bytes().all(is_allowed) && text.split('/').all(is_part)
}

/// Matches an image name against a pattern, where `*` is any text without a `/`; `*` alone is any
/// name. What cannot be the name of an image matches no pattern.
pub fn image_matches(pattern: &str, name: &str) -> bool {
    let is_part = |text: &str| !text.contains('/');
    is_image_reference(name) && (pattern == "*" || wildcard::matches(pattern, name, is_part))
}

/// A sandbox image of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageInfo {
    /// The engine's id of the image.
    pub id: String,
    /// The kind of engine that has it.
    pub engine: EngineKind,
    /// The sha256 of the agent in it; empty if the label is missing.
    pub agent: String,
    /// When it was created, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub created: SystemTime,
    /// Its size in bytes.
    pub size: u64,
    /// Whether this controller uses it.
    pub current: bool,
}

/// What programs can run in: an image of Docker's, or an unpacked archive of the embedded engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramImage {
    /// Its id: the engine's, or the name in the cache.
    pub id: String,
    /// The kind of engine that has it.
    pub engine: EngineKind,
    /// Its names; an unpacked archive has none.
    pub names: Vec<String>,
    /// When it was created, or an unpacked archive last used, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub since: SystemTime,
    /// Its size in bytes.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::{image_matches, is_image_reference};

    #[test]
    fn reference_has_no_character_that_means_something_in_a_url() {
        for name in [
            "busybox",
            "python:3.13-slim",
            "registry.example.org:5000/a/b_c:1.0",
            "[::1]:5000/a",
            "a@sha256:0123456789abcdef",
            "sha256:0123456789abcdef",
            "0123456789ab",
        ] {
            assert!(is_image_reference(name), "{name}");
        }
        for name in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\..\\b", "a%2fb", "a?b",
            "a#b", "a b", "a\tb", "a\nb", "a&b", "a;b", "\u{e9}", "a\0",
        ] {
            assert!(!is_image_reference(name), "{name:?}");
        }
    }

    #[test]
    fn a_star_is_any_text_within_a_part_of_the_name() {
        for (pattern, name, expected) in [
            ("*", "ghcr.io/a/b:1", true),
            ("python:3.13", "python:3.13", true),
            ("python:3.13", "python:3.13-slim", false),
            ("python:*", "python:3.13-slim", true),
            ("python:*", "python:x/y", false),
            ("python*", "python.evil.example/x", false),
            ("ghcr.io/me/*", "ghcr.io/me/a:1", true),
            ("ghcr.io/me/*", "ghcr.io/me/a/b:1", false),
            ("ghcr.io/*/tool:*-slim", "ghcr.io/a/tool:1-slim", true),
            ("ghcr.io/*/tool:*-slim", "ghcr.io/a/b/tool:1-slim", false),
            ("*-slim", "a-slim-slim", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("", "a", false),
            ("*", "", false),
            ("*", "a/../b", false),
            ("python:*", "python:x\\..\\evil:latest", false),
            ("python*", "python.evil.example%2fx", false),
            ("python:*", "python:big%2fget?", false),
        ] {
            assert_eq!(image_matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
