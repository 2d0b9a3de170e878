//! GitHub's commands: `::name key=value::data` at the start of a line, and `##[name]data` anywhere in
//! one. Forgejo and Gitea read the same.

use std::borrow::Cow;
use std::fmt::Write as _;

use sandbox_api::DocumentBody;

use super::log_markers::LogMarker;
use crate::escaped_text;
use crate::report::{Entry, Finding};

/// Most annotations of a step that GitHub shows.
const MAX_ANNOTATIONS: usize = 10;
/// Longest message of an annotation.
const MAX_MESSAGE: usize = 4 << 10;
/// Longest output.
const MAX_OUTPUT: usize = 1 << 20;

/// Begins a group, and stops the reading of commands.
pub fn open(title: &str, token: &str) -> String {
    format!("::group::{}\n::stop-commands::{token}\n", data(title))
}

/// Resumes the reading of commands on a line of its own, and ends the group.
pub fn close(token: &str) -> String {
    format!("\n::{token}::\n::endgroup::\n")
}

/// Errors with their positions, as many as are shown.
pub fn annotations(entries: &[Entry]) -> String {
    let findings = entries.iter().flat_map(Entry::findings);
    findings.take(MAX_ANNOTATIONS).map(|finding| annotation(&finding)).collect()
}

fn annotation(finding: &Finding) -> String {
    let mut command = String::from("::error ");
    if let Some(file) = &finding.file {
        _ = write!(command, "file={},", property(file.strip_prefix("./").unwrap_or(file)));
        if let Some(line) = finding.line {
            _ = write!(command, "line={line},");
        }
        if let Some((start, end)) = finding.columns {
            _ = write!(command, "col={start},endColumn={end},");
        }
    }
    let title = property(&format!("sandboxctl: {}", finding.rule));
    let message = sandbox_protocol::limits::cut_encoded(&finding.message, MAX_MESSAGE);
    _ = writeln!(command, "title={title}::{}", data(message));
    command
}

/// The outputs of a step, as lines of the runner's file.
pub fn outputs(entries: &[Entry], token: &str) -> String {
    let first = entries.iter().find(|entry| entry.failed()).or(entries.first());
    let Some(first) = first else { return String::new() };
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let delimiter = format!("sandboxctl_{token}");
        // No guest knows the token.
        if value.len() <= MAX_OUTPUT && !value.contains(&delimiter) {
            _ = write!(text, "{name}<<{delimiter}\n{value}\n{delimiter}\n");
        }
    };
    add("status", first.document.status.as_str());
    add("exit-code", &first.exit_code.to_string());
    if let [Entry { document, .. }] = entries
        && let DocumentBody::Script(body) = &document.body
        && let Some(result) = &body.result
    {
        add("result", result.get());
    }
    text
}

/// Whether the runner finds a command in this text.
pub fn has_command(text: &str) -> bool {
    text.split(['\n', '\r']).any(is_command)
}

fn is_command(line: &str) -> bool {
    line.trim_start_matches(is_blank).starts_with("::") || line.contains("##[")
}

/// The runner's reader drops a byte-order mark.
fn is_blank(char: char) -> bool {
    char.is_whitespace() || char == '\u{feff}'
}

/// Lines without commands: a space is in each.
pub fn without_commands(text: &[u8]) -> Cow<'_, [u8]> {
    if !String::from_utf8_lossy(text).split(['\n', '\r']).any(is_command) {
        return Cow::Borrowed(text);
    }
    let lines = text.split_inclusive(|byte| matches!(byte, b'\n' | b'\r'));
    Cow::Owned(lines.flat_map(neutral_line).collect())
}

fn neutral_line(line: &[u8]) -> Vec<u8> {
    let mut neutral = Vec::with_capacity(line.len() + 1);
    let mut is_begin = String::from_utf8_lossy(line).trim_start_matches(is_blank).starts_with("::");
    for (at, &byte) in line.iter().enumerate() {
        neutral.push(byte);
        let is_mark = is_begin && byte == b':' || line[at..].starts_with(b"##[");
        if is_mark {
            neutral.push(b' ');
        }
        is_begin &= byte != b':';
    }
    neutral
}

/// JSON without commands that stand in a line, and the same value.
pub fn json(json: &str) -> Cow<'_, str> {
    match json.contains("##[") {
        true => json.replace("##[", "#\\u0023[").into(),
        false => json.into(),
    }
}

/// What viewers of a log read wherever it stands, also while commands are stopped: groups, and the
/// colours of errors.
pub static MARK: LogMarker = LogMarker { read: b"##[", neutral: b"## [" };

/// The data of a command.
fn data(text: &str) -> String {
    escaped_text(text)
        .replace("##[", "## [")
        .replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// The value of a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::samples::{HOSTILE, all_entries, failed_script, tested_script};

    #[test]
    fn annotation_has_file_line_and_columns_on_one_line() {
        let text = annotations(&[failed_script()]);
        assert_eq!(
            text,
            "::error file=tests/bad one.luau,line=2,col=3,endColumn=17,title=sandboxctl%3A runtime::\
             script:2: attempt to call 'x'\n"
        );
        let text = annotations(&all_entries());
        assert_eq!(text.lines().count(), text.matches("::error ").count());
        assert!(!text.contains(['\r', '\u{1b}']));
    }

    #[test]
    fn annotations_are_at_most_ten() {
        let many: Vec<_> = std::iter::repeat_with(tested_script).take(30).collect();
        assert_eq!(annotations(&many).lines().count(), MAX_ANNOTATIONS);
    }

    #[test]
    fn commands_are_found_as_the_runner_finds_them() {
        for text in ["::error::x", "a\n \t::x::", "a\r::x", "a ##[error]b", "\u{feff}::error::x"] {
            assert!(has_command(text), "{text}");
        }
        assert!(!has_command("a ::error::b\n: :x\n# #[x]"));
        assert!(open(HOSTILE, "t").lines().count() == 2);
    }
}
