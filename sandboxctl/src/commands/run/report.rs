//! What is told of a run: its log as it comes, and how it ended.

use std::path::Path;

use sandbox_controller::{FileOp, LogEntry, Outcome, ResultDocument, RunResult, ScriptError};

use crate::error::Error;
use crate::input::Given;
use crate::output::Output;
use crate::render;

/// Files named after a run; more are counted.
const FILES_SHOWN: usize = 10;

/// Tells of a run.
pub struct Report<'a> {
    pub output: &'a Output,
    /// One document at the end, and nothing before.
    pub json: bool,
    /// The script.
    pub given: &'a Given,
    /// The working directory, from which files are named.
    pub here: &'a Path,
}

impl Report<'_> {
    pub fn log(&self, entry: &LogEntry) -> Result<(), Error> {
        if self.json { Ok(()) } else { self.output.log(entry) }
    }

    pub fn end(&self, result: &RunResult) -> Result<(), Error> {
        let output = self.output;
        if self.json {
            return output.document(&ResultDocument::from(result));
        }
        match &result.outcome {
            Outcome::Ok { result } if result.get() == "null" => {}
            Outcome::Ok { result } => {
                let value: serde_json::Value = serde_json::from_str(result.get())
                    .map_err(|error| Error::Stdout { source: error.into() })?;
                output.pretty_json(&value)?;
            }
            Outcome::ScriptError(error) | Outcome::Limit(error) | Outcome::Timeout(error) => {
                self.script_error(error);
                if let Some(hint) = result.hint() {
                    output.hint(&hint);
                }
            }
            outcome => {
                if let Some(error) = outcome.failure() {
                    output.failure(&error.message, result.hint().as_deref());
                }
            }
        }
        self.files(result);
        Ok(())
    }

    fn script_error(&self, error: &ScriptError) {
        let output = self.output;
        let Given { source, name } = self.given;
        output.block(&render::script_error(error, name, source, output.stderr_has_colour()));
        if let Some(stack) = render::call_stack(error) {
            output.indented(stack);
        }
    }

    /// What became of the files, for whoever watches.
    fn files(&self, result: &RunResult) {
        let Some(io_dir) = &result.io_dir else { return };
        let files = &result.files_touched.files;
        for file in files.iter().take(FILES_SHOWN) {
            let path = io_dir.join(&file.name);
            let path = path.strip_prefix(self.here).unwrap_or(&path).display();
            self.output.progress(&match file.op {
                FileOp::Write => format!("wrote {path} ({})", render::size(file.bytes)),
                FileOp::Append => format!("appended to {path} ({})", render::size(file.bytes)),
                FileOp::Remove => format!("removed {path}"),
            });
        }
        if files.len() > FILES_SHOWN || result.files_touched.truncated {
            let more = files.len().saturating_sub(FILES_SHOWN);
            let or_more = if result.files_touched.truncated { " or more" } else { "" };
            self.output.progress(&format!("and {more}{or_more} others"));
        }
    }
}
