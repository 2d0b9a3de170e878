//! Patterns in which `*` is any text.

/// Whether a pattern matches all of a text, where each `*` stands for a text that `passes`.
pub fn matches(pattern: &str, text: &str, passes: impl Fn(&str) -> bool) -> bool {
    let mut parts = pattern.split('*');
    // `split` always returns a first part.
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The first match leaves the most text for the rest.
        match rest.find(part) {
            Some(at) if passes(&rest[..at]) => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.strip_suffix(last).is_some_and(passes)
}
