//! `markdown`: a summary for people, as a pull request or a job shows it.
//!
//! What comes from a guest stands in code spans and code blocks, so that it is no link, no image, no
//! mention and no HTML.

use std::fmt::Write as _;

use sandbox_api::{DocumentBody, TestStatus};

use super::entry::Entry;
use crate::{count, escaped_line, escaped_text, size};

/// Bytes of a result, an error or an output that are shown.
const SHOWN: usize = 4 << 10;
/// The most backticks in a row. Renderers know no longer delimiter of a span than 79, and count those
/// of a block in a byte.
const MAX_ROW: usize = 16;
/// Failed test cases that are listed for each script.
const TESTS_SHOWN: usize = 50;

/// The results as Markdown.
pub fn markdown(entries: &[Entry]) -> String {
    let failed = entries.iter().filter(|entry| entry.failed()).count();
    let verdict = match (entries.len(), failed) {
        (_, 0) => "passed".to_owned(),
        (1, _) => "failed".to_owned(),
        (all, failed) => format!("{failed} of {all} failed"),
    };
    let mut text = format!(
        "## sandboxctl: {verdict}\n\n| | status | exit code | time | tests |\n|---|---|---|---|---|\n"
    );
    for entry in entries {
        let name = cell(&code(&entry.subject.name));
        let (status, code) = (entry.document.status, entry.exit_code);
        let (time, tests) = (seconds(entry.wall_ms()), tests(entry));
        _ = writeln!(text, "| {name} | {status} | {code} | {time} | {tests} |");
    }
    for entry in entries {
        detail(&mut text, entry);
    }
    text
}

fn detail(text: &mut String, entry: &Entry) {
    let name = code(&entry.subject.name);
    let mut section = String::new();
    if let Some(problem) = entry.problem() {
        let error = problem.error;
        let place = error.and_then(|error| error.line).map(|line| format!(", line {line}"));
        let (place, message) = (place.unwrap_or_default(), block(&problem.message, ""));
        _ = writeln!(section, "Error{place}:\n\n{message}");
        if let Some(hint) = error.and_then(|error| error.hint.as_deref()) {
            _ = writeln!(section, "Hint: {}\n", code(hint));
        }
    }
    for test in entry.failed_tests().take(TESTS_SHOWN) {
        let line = test.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        let message = code(test.message.as_deref().unwrap_or("failed"));
        _ = writeln!(section, "- {}{line}: {message}", code(&test.name));
    }
    match entry.failed_tests().count() {
        0 => {}
        count if count > TESTS_SHOWN => {
            _ = writeln!(section, "- and {} more\n", count - TESTS_SHOWN);
        }
        _ => section.push('\n'),
    }
    match &entry.document.body {
        DocumentBody::Script(body) => {
            if let Some(result) = body.result.as_ref().filter(|it| it.get() != "null") {
                _ = writeln!(section, "Result:\n\n{}", block(result.get(), "json"));
            }
        }
        DocumentBody::Command(body) if body.failed && !body.stderr.is_empty() => {
            _ = writeln!(section, "stderr:\n\n{}", block(tail(&body.stderr), ""));
        }
        DocumentBody::Command(_) => {}
    }
    if let Some(artifacts) =
        entry.document.common.artifacts.as_ref().filter(|it| it.error.is_none())
    {
        let files = count(artifacts.files, "file", "files");
        let (size, dir) = (size(artifacts.bytes), code(&artifacts.dir));
        _ = writeln!(section, "Artifacts: {files} ({size}) in {dir}\n");
    }
    let refused = entry.document.common.network.iter().flat_map(|network| &network.refused);
    for host in refused.take(10) {
        let to = format!("{}:{}", host.host, host.port);
        _ = writeln!(section, "Refused {} ({})\n", code(&to), code(&host.reason));
    }
    if !section.is_empty() {
        _ = write!(text, "\n### {name}\n\n{section}");
    }
}

/// How many test cases passed.
fn tests(entry: &Entry) -> String {
    let all = entry.tests();
    let count = |status| all.iter().filter(|test| test.status == status).count();
    match (all.len(), count(TestStatus::Skipped)) {
        (0, _) => String::new(),
        (all, 0) => format!("{} of {all}", count(TestStatus::Passed)),
        (all, skipped) => {
            format!("{} of {all}, {skipped} skipped", count(TestStatus::Passed))
        }
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// Text with rows of backticks that are not longer than any renderer's delimiters.
fn short_rows(text: &str) -> String {
    let mut row = 0;
    let is_shown = |char: &char| {
        row = if *char == '`' { row + 1 } else { 0 };
        row <= MAX_ROW
    };
    text.chars().filter(is_shown).collect()
}

/// A code span: delimited by more backticks than it has in a row.
fn code(text: &str) -> String {
    let shown = sandbox_protocol::limits::cut_encoded(text, SHOWN);
    let cut = if shown.len() < text.len() { "… [cut]" } else { "" };
    let text = escaped_line(&short_rows(shown)).to_string() + cut;
    let fence = "`".repeat(longest_run(&text, '`') + 1);
    // A span that is empty, or begins or ends with a backtick, needs spaces.
    format!("{fence} {text} {fence}")
}

/// In a table, a bar ends its cell in a code span too.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A code block: delimited by more backticks than it has in a row.
fn block(text: &str, language: &str) -> String {
    let shown = sandbox_protocol::limits::cut_encoded(text, SHOWN);
    let cut = if shown.len() < text.len() { "\n… [cut]" } else { "" };
    let text = short_rows(&escaped_text(shown));
    let fence = "`".repeat(longest_run(&text, '`').max(2) + 1);
    format!("{fence}{language}\n{text}{cut}\n{fence}\n")
}

/// The end of a text, where it says why it fails.
fn tail(text: &str) -> &str {
    let from = (text.len().saturating_sub(SHOWN)..text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or_default();
    &text[from..]
}

fn longest_run(text: &str, of: char) -> usize {
    text.split(|it| it != of).map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::samples::{
        all_entries, failed_script, incomplete_scripts, ok_script, tested_script,
    };

    #[test]
    fn summary_has_a_row_for_each_and_the_errors() {
        insta::assert_snapshot!(markdown(&[ok_script(), failed_script(), tested_script()]));
    }

    #[test]
    fn guest_text_stays_in_its_code() {
        assert_eq!(code("a``b\n![](x)"), "``` a``b\\n![](x) ```");
        assert_eq!(block("```\n<script>", ""), "````\n```\n<script>\n````\n");
        let long = block(&format!("a\n{}\n# b", "`".repeat(300)), "");
        assert_eq!(longest_run(&long, '`'), MAX_ROW + 1, "{long}");
        assert_eq!(cell(&code("a|b")), "` a\\|b `");
        for line in markdown(&all_entries()).lines().filter(|line| line.starts_with("| `")) {
            assert_eq!(line.replace("\\|", "").matches('|').count(), 6, "{line}");
        }
        assert_eq!(tail(&"é".repeat(SHOWN)).len(), SHOWN);
    }

    #[test]
    fn receipt_that_cannot_be_written_has_its_reason() {
        for entry in incomplete_scripts() {
            let text = markdown(&[entry]);
            assert!(text.contains("no space") && text.contains("free some"), "{text}");
        }
    }

    #[test]
    fn code_is_code_however_many_backticks_it_has() {
        let text = format!("{} [a](http://evil.example)", "`".repeat(80));
        let shown = code(&text);
        assert_eq!(longest_run(&shown, '`'), MAX_ROW + 1);
        assert!(shown.ends_with(&format!(" {}", "`".repeat(MAX_ROW + 1))), "{shown}");
        let long = code(&"a".repeat(100_000));
        assert!(long.len() < 2 * SHOWN && long.contains("[cut]"), "{}", long.len());
    }
}
