//! What ran, and how it ended.

use std::borrow::Cow;

use sandbox_api::service::ExecutionKind;
use sandbox_api::{
    DocumentBody, ExecutionDocument, Failure, Secrets, Status, TestCase, TestStatus,
};

/// What runs: a script, or a command.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The script's name as it was given, or the command.
    pub name: String,
    /// The script's text.
    pub source: Option<Vec<u8>>,
    /// Whether the name is that of a file.
    pub is_file: bool,
    /// What may not be in a report.
    pub secrets: Secrets,
}

/// What ran, and how it ended.
#[derive(Debug)]
pub struct Entry {
    /// Its position on the command line.
    pub index: usize,
    /// What ran.
    pub subject: Subject,
    /// How it ended.
    pub document: ExecutionDocument<'static>,
    /// The exit code of sandboxctl, if nothing else runs.
    pub exit_code: u8,
    /// The last lines that a command wrote to stderr.
    pub last_lines: String,
}

impl Entry {
    /// Our side failed before it ran anything.
    pub fn failed_before(title: &str, failure: Failure, exit_code: u8) -> Self {
        let (name, secrets) = (title.to_owned(), Secrets::new());
        let subject = Subject { name, source: None, is_file: false, secrets };
        let document = ExecutionDocument::failed(ExecutionKind::Command, failure, exit_code);
        Self { index: 0, subject, document, exit_code, last_lines: String::new() }
    }

    /// Whether it did not end well.
    pub const fn failed(&self) -> bool {
        self.exit_code != 0
    }

    /// Why it failed: the first of the run, its artifacts and its receipt that has an error.
    pub fn problem(&self) -> Option<Problem<'_>> {
        let common = &self.document.common;
        if let Some(error) = &common.error {
            return Some(Problem::of(error));
        }
        if let DocumentBody::Command(body) = &self.document.body
            && body.failed
        {
            let message = match (body.exit_code, body.signal) {
                (Some(code), _) => format!("exit code {code}").into(),
                (None, Some(signal)) => format!("killed by signal {signal}").into(),
                (None, None) => "failed".into(),
            };
            return Some(Problem { rule: self.document.status.as_str(), message, error: None });
        }
        let artifacts = common.artifacts.as_ref().and_then(|it| it.error.as_ref());
        let receipt = common.receipt.as_ref().and_then(|it| it.error.as_ref());
        artifacts.or(receipt).map(Problem::of)
    }

    /// Whether its failed test cases say why it failed.
    pub fn is_explained_by_tests(&self) -> bool {
        self.document.status == Status::ScriptError && self.failed_tests().next().is_some()
    }

    /// The test cases of a script.
    pub fn tests(&self) -> &[TestCase] {
        match &self.document.body {
            DocumentBody::Script(body) => &body.tests,
            DocumentBody::Command(_) => &[],
        }
    }

    /// Those that failed.
    pub fn failed_tests(&self) -> impl Iterator<Item = &TestCase> {
        self.tests().iter().filter(|test| test.status == TestStatus::Failed)
    }

    /// How long it took.
    pub fn wall_ms(&self) -> u64 {
        self.document.common.usage.map_or(0, |usage| usage.wall_ms)
    }
}

/// Why something failed.
#[derive(Debug)]
pub struct Problem<'a> {
    /// The kind of the error; of a command that failed, its status.
    pub rule: &'static str,
    /// What is wrong, in one line.
    pub message: Cow<'a, str>,
    /// The error, unless a command failed.
    pub error: Option<&'a Failure>,
}

impl<'a> Problem<'a> {
    fn of(error: &'a Failure) -> Self {
        let message = Cow::Borrowed(&*error.message);
        Self { rule: error.kind.as_str(), message, error: Some(error) }
    }
}
