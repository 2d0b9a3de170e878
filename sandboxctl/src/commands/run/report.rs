//! The report of a run: its log as it arrives, and its result.

use std::borrow::Cow;
use std::path::Path;

use sandbox_api::{
    ErrorKind, LogEntry, Outcome, ResultDocument, RunResult, ScriptError, TestCase, TestStatus,
};

use super::super::collect::Copied;
use super::super::receipt::Issued;
use super::super::staging::Staged;
use super::super::{hints, touched, truncation};
use crate::error::Error;
use crate::input::ScriptSource;
use crate::output::Output;
use crate::render;

/// How many failed test cases are printed.
const TESTS_SHOWN: usize = 50;

/// What became of the files of a run.
pub struct Ended {
    pub copied: Copied,
    pub staged: Staged,
    pub issued: Issued,
}

/// Prints a run.
pub struct Report<'a> {
    pub output: &'a Output,
    /// A single document at the end.
    pub json: bool,
    /// Only the result on stdout.
    pub result_only: bool,
    /// Pass every control sequence on.
    pub raw: bool,
    /// Print where the files are.
    pub keep: bool,
    /// The script.
    pub script: &'a ScriptSource,
    /// The working directory, the base of printed file names.
    pub here: &'a Path,
}

impl Report<'_> {
    pub fn log(&self, entry: &LogEntry) -> Result<(), Error> {
        match (self.json, self.result_only) {
            (true, _) => Ok(()),
            (false, true) => {
                self.output.log_to_stderr(entry);
                Ok(())
            }
            (false, false) => self.output.log(entry, self.raw),
        }
    }

    pub fn end(&self, result: &RunResult, ended: &Ended) -> Result<(), Error> {
        let output = self.output;
        let Ended { copied, staged, .. } = ended;
        if self.json {
            output.document(&document(self.script, result, ended))?;
            staged.print_diff(output);
            truncation::warn_of_run(output, result);
            return Ok(());
        }
        self.outcome(result)?;
        let io_dir = result.io_dir.as_deref();
        copied.print(output);
        // What was not selected was not to be kept.
        if (io_dir.is_some() || !copied.is_complete()) && staged.is_kept(result) {
            touched::print(output, self.here, io_dir, &result.files_touched);
        }
        staged.print(output, result);
        if self.keep {
            touched::print_kept(output, io_dir);
        }
        truncation::warn_of_run(output, result);
        Ok(())
    }

    /// Prints how it ended: its result or why it failed, and its test cases.
    pub fn outcome(&self, result: &RunResult) -> Result<(), Error> {
        let output = self.output;
        match &result.outcome {
            Outcome::Ok { result } if result.get() == "null" => {}
            Outcome::Ok { result } => {
                let value: serde_json::Value = serde_json::from_str(result.get())
                    .map_err(|error| Error::Stdout { source: error.into() })?;
                match (self.result_only, &value) {
                    // As it is, for the program that reads it.
                    (true, serde_json::Value::String(text)) => output.result_text(text)?,
                    (true, _) => output.document(&value)?,
                    (false, _) => output.pretty_json(&value)?,
                }
            }
            Outcome::ScriptError(error) | Outcome::Limit(error) | Outcome::Timeout(error) => {
                self.script_error(error);
                let own = other_language(self.script, &result.outcome);
                if let Some(hint) = own.or_else(|| result.hint()) {
                    output.hint(&hint);
                }
            }
            outcome => {
                if let Some(error) = outcome.failure() {
                    output.failure(&error.message, result.hint().as_deref());
                }
            }
        }
        for note in &result.notes {
            output.notice(&note.to_string());
        }
        self.tests(&result.tests);
        Ok(())
    }

    /// The failed test cases, and how many passed.
    pub fn tests(&self, tests: &[TestCase]) {
        let failed = tests.iter().filter(|test| test.status == TestStatus::Failed);
        for test in failed.take(TESTS_SHOWN) {
            let message = test.message.as_deref().unwrap_or("failed");
            self.output.indented(&format!("{}: {message}", test.name));
        }
        if !tests.is_empty() {
            let count = |status| tests.iter().filter(|it| it.status == status).count();
            let [passed, failed, skipped] = TestStatus::ALL.map(count);
            let notice = format!("test cases: {passed} passed, {failed} failed, {skipped} skipped");
            self.output.notice(&notice);
        }
    }

    fn script_error(&self, error: &ScriptError) {
        let output = self.output;
        let ScriptSource { source, name, .. } = self.script;
        output.block(&render::script_error(error, name, source, output.stderr_has_colour()));
        if let Some(stack) = render::call_stack(error) {
            output.indented(stack);
        }
    }
}

/// The document of a run.
pub fn document<'a>(
    script: &ScriptSource,
    result: &'a RunResult,
    Ended { copied, issued, .. }: &'a Ended,
) -> ResultDocument<'a> {
    let mut document = ResultDocument::from(result);
    document.exit_code = copied.exit_code(document.exit_code);
    document.execution.artifacts = copied.report.as_ref().map(Cow::Borrowed);
    document.execution.receipt = issued.report().map(Cow::Borrowed);
    if let Some(error) = &mut document.execution.error {
        error.hint = other_language(script, &result.outcome).or(error.hint.take());
    }
    document
}

/// Adds what only this side knows to the document of a service: what the script looks like.
pub fn add_hint(script: &ScriptSource, document: &mut ResultDocument<'_>) {
    if let Some(error) = &mut document.execution.error
        && error.kind == ErrorKind::Syntax
        && let Some(hint) = hints::other_language(&script.name, &script.source)
    {
        error.hint = Some(hint);
    }
}

/// How to run a script that does not compile, if it looks like another language.
fn other_language(script: &ScriptSource, outcome: &Outcome) -> Option<String> {
    let ScriptSource { source, name, .. } = script;
    match outcome {
        Outcome::ScriptError(error) if error.kind == ErrorKind::Syntax => {
            hints::other_language(name, source)
        }
        _ => None,
    }
}
