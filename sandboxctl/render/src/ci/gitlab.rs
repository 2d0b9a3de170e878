//! GitLab's sections: `section_start:TIME:NAME` and `section_end:TIME:NAME`, anywhere in the log.

use std::borrow::Cow;

use super::log_markers::LogMarker;
use crate::escaped_line;

/// The start of a marker. With another last character it is not a marker.
pub static MARK: LogMarker = LogMarker { read: b"section_", neutral: b"section-" };

/// Begins a section that is collapsed.
pub fn open(title: &str, token: &str, time: u64) -> String {
    let title = without_marks(escaped_line(title).as_bytes()).into_owned();
    let title = String::from_utf8_lossy(&title).into_owned();
    format!("\u{1b}[0Ksection_start:{time}:sandboxctl_{token}[collapsed=false]\r\u{1b}[0K{title}\n")
}

/// Ends it on a line of its own.
pub fn close(token: &str, time: u64) -> String {
    format!("\n\u{1b}[0Ksection_end:{time}:sandboxctl_{token}\r\u{1b}[0K\n")
}

/// Whether the runner finds a mark in this text.
pub fn has_mark(text: &str) -> bool {
    MARK.is_in(text.as_bytes())
}

/// JSON without section marks, and the same value.
pub fn json(json: &str) -> Cow<'_, str> {
    match has_mark(json) {
        true => json.replace("section_", "section\\u005f").into(),
        false => json.into(),
    }
}

/// Text without section marks.
pub fn without_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
    MARK.removed_from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_opens_one_section() {
        let title = open("a\rsection_end:1:x", "t", 7);
        assert_eq!(title.matches("section_").count(), 1);
    }
}
