//! `junit`: a test suite for each script or command. The XML of Jenkins, which others read too.
//!
//! It is five elements with text: the crates for it bring a calendar and random ids.

use std::fmt::Write as _;

use sandbox_api::{DocumentBody, OutputEncoding, Status, TestCase, TestStatus};

use super::entry::Entry;
use crate::escaped_text;

/// The results as JUnit's XML.
pub fn junit(entries: &[Entry]) -> String {
    let suites: Vec<_> = entries.iter().map(cases_of).collect();
    let sum = |count: fn(&[Case]) -> usize| suites.iter().map(|cases| count(cases)).sum::<usize>();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    _ = writeln!(
        xml,
        "<testsuites name=\"sandboxctl\" tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{}\">",
        sum(<[Case]>::len),
        sum(|cases| count(cases, "failure")),
        sum(|cases| count(cases, "error")),
        seconds(entries.iter().map(Entry::wall_ms).sum()),
    );
    for (cases, entry) in suites.iter().zip(entries) {
        write(cases, &mut xml, entry);
    }
    xml.push_str("</testsuites>\n");
    xml
}

/// A test case, with the element that says why it did not pass.
struct Case {
    name: String,
    line: Option<u32>,
    ms: u64,
    problem: Option<Problem>,
}

struct Problem {
    /// `failure`, `error` or `skipped`.
    element: &'static str,
    kind: String,
    message: String,
    detail: Option<String>,
}

/// The test cases of a script, and the one that stands for it as a whole.
fn cases_of(entry: &Entry) -> Vec<Case> {
    let cases = entry.tests().iter().map(of_test).collect::<Vec<_>>();
    // Failed test cases say why the script failed; anything else is a case of its own.
    let is_explained = entry.is_explained_by_tests();
    let own = (cases.is_empty() || entry.failed() && !is_explained).then(|| own_case(entry));
    cases.into_iter().chain(own).collect()
}

fn count(cases: &[Case], element: &str) -> usize {
    let is_it = |case: &&Case| case.problem.as_ref().is_some_and(|it| it.element == element);
    cases.iter().filter(is_it).count()
}

fn write(cases: &[Case], xml: &mut String, entry: &Entry) {
    let name = attribute(&entry.subject.name);
    _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" \
         skipped=\"{}\" time=\"{}\">",
        cases.len(),
        count(cases, "failure"),
        count(cases, "error"),
        count(cases, "skipped"),
        seconds(entry.wall_ms()),
    );
    for case in cases {
        case.write(xml, entry);
    }
    let [stdout, stderr] = output(entry);
    for (element, text) in [("system-out", stdout), ("system-err", stderr)] {
        if !text.is_empty() {
            _ = writeln!(xml, "    <{element}>{}</{element}>", content(&text));
        }
    }
    xml.push_str("  </testsuite>\n");
}

impl Case {
    fn write(&self, xml: &mut String, entry: &Entry) {
        let suite = attribute(&entry.subject.name);
        let (name, time) = (attribute(&self.name), seconds(self.ms));
        _ = write!(xml, "    <testcase classname=\"{suite}\" name=\"{name}\" time=\"{time}\"");
        if entry.subject.is_file {
            _ = write!(xml, " file=\"{suite}\"");
        }
        if let Some(line) = self.line {
            _ = write!(xml, " line=\"{line}\"");
        }
        let Some(Problem { element, kind, message, detail }) = &self.problem else {
            xml.push_str("/>\n");
            return;
        };
        _ = writeln!(
            xml,
            ">\n      <{element} type=\"{}\" message=\"{}\">{}</{element}>\n    </testcase>",
            attribute(kind),
            attribute(message),
            content(detail.as_deref().unwrap_or_default()),
        );
    }
}

/// A test case of a script.
fn of_test(test: &TestCase) -> Case {
    let element = match test.status {
        TestStatus::Passed => None,
        TestStatus::Failed => Some("failure"),
        TestStatus::Skipped => Some("skipped"),
    };
    let problem = element.map(|element| Problem {
        element,
        kind: test.status.as_str().to_owned(),
        message: test.message.clone().unwrap_or_default(),
        detail: None,
    });
    Case { name: test.name.clone(), line: test.line, ms: test.duration_ms, problem }
}

/// The case that stands for the script or the command as a whole.
fn own_case(entry: &Entry) -> Case {
    let found = entry.problem();
    let error = found.as_ref().and_then(|it| it.error);
    let problem = entry.failed().then(|| Problem {
        // A test that failed, in contrast to one that could not be made.
        element: match entry.document.status {
            Status::ScriptError | Status::Exit => "failure",
            _ => "error",
        },
        kind: found.as_ref().map_or(entry.document.status.as_str(), |it| it.rule).to_owned(),
        message: found.as_ref().map(|it| it.message.to_string()).unwrap_or_default(),
        detail: error.and_then(|error| error.traceback.clone()),
    });
    let line = error.and_then(|error| error.line);
    Case { name: entry.subject.name.clone(), line, ms: entry.wall_ms(), problem }
}

/// What it printed to stdout and stderr; a script's log is stdout.
fn output(entry: &Entry) -> [String; 2] {
    match &entry.document.body {
        DocumentBody::Script(body) => [body.logs.join("\n"), String::new()],
        DocumentBody::Command(body) => {
            let text = |text: &str, encoding| match encoding {
                OutputEncoding::Utf8 => text.to_owned(),
                OutputEncoding::Base64 => format!("base64: {text}"),
            };
            [text(&body.stdout, body.stdout_encoding), text(&body.stderr, body.stderr_encoding)]
        }
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// Text between tags. What XML cannot contain is shown as an escape.
fn content(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in escaped_text(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => escaped.extend(character.escape_default()),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The value of an attribute, in double quotes.
fn attribute(text: &str) -> String {
    content(text).replace('"', "&quot;").replace('\n', "&#10;").replace('\t', "&#9;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::samples::{
        all_entries, failed_script, incomplete_scripts, tested_script, xmllint,
    };

    #[test]
    fn every_outcome_is_valid_by_the_published_schema() {
        xmllint(&junit(&all_entries()));
        xmllint(&junit(&[]));
    }

    #[test]
    fn error_of_a_script_is_a_failure_with_its_line() {
        let xml = junit(&[failed_script()]);
        insta::assert_snapshot!(xml);
    }

    #[test]
    fn test_cases_of_a_script_are_its_cases() {
        insta::assert_snapshot!(junit(&[tested_script()]));
    }

    #[test]
    fn receipt_that_cannot_be_written_is_an_error_with_its_reason() {
        for entry in incomplete_scripts() {
            let xml = junit(&[entry]);
            assert!(xml.contains(r#"<error type="disk_full" message="no space">"#), "{xml}");
        }
    }

    #[test]
    fn script_that_is_no_file_is_named_as_none() {
        let mut entry = failed_script();
        entry.subject.is_file = false;
        assert!(!junit(&[entry]).contains(" file="));
    }

    #[test]
    fn guest_text_is_never_markup() {
        let hostile =
            "]]>\"'</failure><testcase name=\"x\"/>\u{0}\u{1b}[2J\u{fffe}\u{d7ff}\r\n&#0;";
        assert!(!content(hostile).contains(['<', '>', '\u{0}', '\u{1b}', '\u{fffe}', '\r']));
        assert!(!attribute(hostile).contains(['"', '<', '\n']));
    }
}
