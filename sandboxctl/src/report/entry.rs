//! What ran, and how it ended.

use std::borrow::Cow;

use sandbox_api::{
    ExecDocument, ExecutionDocument, Failure, ResultDocument, Secrets, Status, TestCase, TestStatus,
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

/// A result document.
#[derive(Debug)]
pub enum Document {
    /// Of a script.
    Run(Box<ResultDocument<'static>>),
    /// Of a command.
    Exec(Box<ExecDocument<'static>>),
}

impl Document {
    /// How it ended.
    pub const fn status(&self) -> Status {
        match self {
            Self::Run(document) => document.status,
            Self::Exec(document) => document.status,
        }
    }

    /// The members that both have.
    pub const fn execution(&self) -> &ExecutionDocument<'static> {
        match self {
            Self::Run(document) => &document.execution,
            Self::Exec(document) => &document.execution,
        }
    }

    #[cfg(test)]
    pub const fn execution_mut(&mut self) -> &mut ExecutionDocument<'static> {
        match self {
            Self::Run(document) => &mut document.execution,
            Self::Exec(document) => &mut document.execution,
        }
    }

    pub(super) fn json(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Run(document) => serde_json::to_string(document),
            Self::Exec(document) => serde_json::to_string(document),
        }
    }
}

/// What ran, and how it ended.
#[derive(Debug)]
pub struct Entry {
    /// Its position on the command line.
    pub index: usize,
    /// What ran.
    pub subject: Subject,
    /// How it ended.
    pub document: Document,
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
        let document = Document::Exec(Box::new(ExecDocument::failed(failure)));
        Self { index: 0, subject, document, exit_code, last_lines: String::new() }
    }

    /// Whether it did not end well.
    pub const fn failed(&self) -> bool {
        self.exit_code != 0
    }

    /// Why it failed: the first of the run, its artifacts and its receipt that has an error.
    pub fn problem(&self) -> Option<Problem<'_>> {
        let execution = self.document.execution();
        if let Some(error) = &execution.error {
            return Some(Problem::of(error));
        }
        if let Document::Exec(document) = &self.document
            && document.failed
        {
            let message = match (document.exit_code, document.signal) {
                (Some(code), _) => format!("exit code {code}").into(),
                (None, Some(signal)) => format!("killed by signal {signal}").into(),
                (None, None) => "failed".into(),
            };
            return Some(Problem { rule: document.status.as_str(), message, error: None });
        }
        let artifacts = execution.artifacts.as_ref().and_then(|it| it.error.as_ref());
        let receipt = execution.receipt.as_ref().and_then(|it| it.error.as_ref());
        artifacts.or(receipt).map(Problem::of)
    }

    /// Whether its failed test cases say why it failed.
    pub fn is_explained_by_tests(&self) -> bool {
        self.document.status() == Status::ScriptError && self.failed_tests().next().is_some()
    }

    /// The test cases of a script.
    pub fn tests(&self) -> &[TestCase] {
        match &self.document {
            Document::Run(document) => &document.tests,
            Document::Exec(_) => &[],
        }
    }

    /// Those that failed.
    pub fn failed_tests(&self) -> impl Iterator<Item = &TestCase> {
        self.tests().iter().filter(|test| test.status == TestStatus::Failed)
    }

    /// How long it took.
    pub fn wall_ms(&self) -> u64 {
        self.document.execution().usage.map_or(0, |usage| usage.wall_ms)
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
