//! The images that requests may use.

use sandbox_api::is_image_reference;

/// Matches an image name against a pattern, where `*` is any text without a `/`; `*` alone is any
/// name. What cannot be the name of an image matches no pattern.
#[must_use]
pub fn image_matches(pattern: &str, name: &str) -> bool {
    if !is_image_reference(name) {
        return false;
    }
    if pattern == "*" {
        return true;
    }
    let mut parts = pattern.split('*');
    // `split` always returns a first part.
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some((last, middle)) =
        parts.collect::<Vec<_>>().split_last().map(|(last, middle)| (*last, middle.to_vec()))
    else {
        return rest.is_empty();
    };
    let passes = |text: &str| !text.contains('/');
    for part in middle {
        // The first match leaves the most text for the rest.
        match rest.find(part) {
            Some(at) if passes(&rest[..at]) => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.strip_suffix(last).is_some_and(passes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
