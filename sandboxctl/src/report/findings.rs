//! What failed, with positions: for the formats that show errors beside a source.

use sandbox_api::Status;

use super::Entry;
use crate::render;

/// An error, and where it is.
#[derive(Debug)]
pub struct Finding {
    /// The error's kind, or `test`.
    pub rule: String,
    /// What is wrong.
    pub message: String,
    /// The script.
    pub file: Option<String>,
    /// Its line, from 1.
    pub line: Option<u32>,
    /// The columns in that line, from 1 and without the second, in characters.
    pub columns: Option<(usize, usize)>,
}

impl Entry {
    /// What failed: the test cases, or else the script or the command.
    pub fn findings(&self) -> Vec<Finding> {
        let tests = self.failed_tests().map(|test| {
            let message = format!("{}: {}", test.name, test.message.as_deref().unwrap_or("failed"));
            self.finding("test".to_owned(), message, test.line)
        });
        let tests: Vec<_> = tests.collect();
        if !tests.is_empty() && self.document.status() == Status::ScriptError {
            return tests;
        }
        let Some(message) = self.message() else { return tests };
        let error = self.document.execution().error.as_ref();
        let rule = error.map_or(self.document.status().as_str(), |it| it.kind.as_str()).to_owned();
        let own = self.finding(rule, message, error.and_then(|error| error.line));
        tests.into_iter().chain([own]).collect()
    }

    fn finding(&self, rule: String, message: String, line: Option<u32>) -> Finding {
        let source = self.subject.source.as_deref();
        let line = line.filter(|&line| line > 0);
        let columns = source.zip(line).and_then(|(it, line)| render::columns(it, line, &message));
        let file = source.map(|_| self.subject.name.clone());
        Finding { rule, message, file, line, columns }
    }
}
