//! Diffs of what a sandbox wrote.

use anstyle::{AnsiColor, Style};

use super::escape::escaped_text;

/// What begins the changes of a path. No line of a content begins so.
const SECTION: &str = "diff --git ";

/// A diff for a terminal: what the sandbox wrote is escaped, lines are coloured by their first
/// character, and content that is not text is left out.
pub fn diff(diff: &[u8], has_colour: bool) -> String {
    let text = String::from_utf8_lossy(diff);
    let mut shown = String::with_capacity(text.len());
    let mut rest = &*text;
    while !rest.is_empty() {
        let next = rest.find(&format!("\n{SECTION}")).map_or(rest.len(), |at| at + 1);
        let (section, after) = rest.split_at(next);
        rest = after;
        let is_text = !section.contains('\0');
        let mut is_left_out = false;
        for line in section.split_inclusive('\n') {
            if !is_text && !is_left_out && line.starts_with("@@ ") {
                shown.push_str("binary content differs\n");
                is_left_out = true;
            }
            if !is_left_out || !line.starts_with(['@', ' ', '+', '-', '\\']) {
                push(&mut shown, line, has_colour);
            }
        }
    }
    shown
}

fn push(shown: &mut String, line: &str, has_colour: bool) {
    let style = style_of(line);
    let line = escaped_text(line);
    if has_colour && style != Style::new() {
        let (line, end) = line.split_at(line.trim_end_matches('\n').len());
        shown.push_str(&format!("{style}{line}{style:#}{end}"));
    } else {
        shown.push_str(&line);
    }
}

fn style_of(line: &str) -> Style {
    if [SECTION, "--- ", "+++ "].iter().any(|head| line.starts_with(head)) {
        return Style::new().bold();
    }
    match line.as_bytes().first() {
        Some(b'+') => AnsiColor::Green.on_default(),
        Some(b'-') => AnsiColor::Red.on_default(),
        Some(b'@') => AnsiColor::Cyan.on_default(),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_is_escaped_and_coloured_by_line() {
        let text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\u{1b}[2J\n same\n";
        assert_eq!(diff(text.as_bytes(), false), text.replace('\u{1b}', "\\u{1b}"));
        let coloured = diff(text.as_bytes(), true);
        assert!(coloured.contains("\u{1b}[31m-old\u{1b}[0m\n"), "{coloured:?}");
        assert!(coloured.ends_with("\n same\n") && !coloured.contains("\u{1b}[2J"));
    }

    #[test]
    fn content_that_is_not_text_is_left_out_on_a_terminal() {
        let binary = "diff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-\0\n+\r\n";
        let text = "diff --git a/t b/t\n--- a/t\n+++ b/t\n@@ -1 +1 @@\n-a\n+a\r\n";
        let shown = diff([binary, "created: d\n", text].concat().as_bytes(), false);
        let expected = "diff --git a/b b/b\n--- a/b\n+++ b/b\nbinary content differs\ncreated: d\n";
        assert_eq!(shown, format!("{expected}{}", text.replace('\r', "\\r")));
    }
}
