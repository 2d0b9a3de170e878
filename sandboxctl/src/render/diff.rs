//! Unified diffs of what a sandbox wrote.

use anstyle::{AnsiColor, Style};

use super::escape::escaped_text;

/// A unified diff for a terminal: what the sandbox wrote is escaped, and lines are coloured by their
/// first character.
pub fn diff(text: &str, has_colour: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let style = style_of(line);
        let line = escaped_text(line);
        if has_colour && style != Style::new() {
            let (line, end) = line.split_at(line.trim_end_matches('\n').len());
            shown.push_str(&format!("{style}{line}{style:#}{end}"));
        } else {
            shown.push_str(&line);
        }
    }
    shown
}

fn style_of(line: &str) -> Style {
    if line.starts_with("---") || line.starts_with("+++") {
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
        assert_eq!(diff(text, false), text.replace('\u{1b}', "\\u{1b}"));
        let coloured = diff(text, true);
        assert!(coloured.contains("\u{1b}[31m-old\u{1b}[0m\n"), "{coloured:?}");
        assert!(coloured.ends_with("\n same\n") && !coloured.contains("\u{1b}[2J"));
    }
}
