//! `fs batch`: operations as data, one JSON object per line, and one envelope per line.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use sandbox_api::operation::{Envelope, OperationRequest};
use sandbox_api::{ErrorKind, MessageLine, exit_code};
use sandbox_controller::Sandbox;

use super::super::transfer::{LineSource, Source};
use super::report::Report;
use super::stream::{failed, poured, refused, still_read};
use crate::cli::fs::BatchArgs;
use crate::error::Error;
use crate::input;
use crate::output::Output;
use crate::render::json_for_terminal;
use crate::signals;

/// The longest line: it contains content, and all of it is held in memory.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Pending operations.
pub struct Batch {
    lines: LineSource,
    what: String,
    keep_going: bool,
}

impl Batch {
    /// Opens them.
    pub fn prepare(args: &BatchArgs) -> Result<Self, Error> {
        let (source, what) = if input::is_stdin(&args.file) {
            (Source::stdin().map_err(|error| failed("stdin", error))?, "stdin".to_owned())
        } else {
            let file: &Path = &args.file;
            let what = file.display().to_string();
            let source =
                Source::file(file).map_err(|error| Error::unusable("FILE", file, &error))?;
            (source, what)
        };
        let lines = LineSource::new(source, MAX_LINE_BYTES);
        Ok(Self { lines, what, keep_going: args.keep_going })
    }

    /// Performs them in order, until nothing reads the results. The one in progress is completed.
    pub async fn perform(mut self, sandbox: &Sandbox, output: &Output) -> Result<Report, Error> {
        let unread = signals::stdout_is_unread();
        tokio::pin!(unread);
        let mut code = 0;
        let mut number = 0_u64;
        loop {
            let line = tokio::select! {
                // The end of the lines comes first: all of them were answered.
                biased;
                line = self.lines.next() => line.map_err(|error| failed(&self.what, error))?,
                () = &mut unread => return Ok(poured(false)),
            };
            let Some(line) = line else { break };
            number += 1;
            let envelope = match line {
                MessageLine::Whole(line) if line.trim_ascii().is_empty() => continue,
                MessageLine::Whole(line) => match operation(&line) {
                    Ok(operation) => sandbox.perform(operation).await,
                    Err(why) => refusal(number, &why),
                },
                MessageLine::TooLong(_) => refusal(number, "it is longer than 64 MiB"),
            };
            let kind = envelope.error.as_ref().map(|error| error.kind);
            if !print_envelope(&envelope, output).await? {
                return Ok(poured(false));
            }
            let Some(kind) = kind else { continue };
            if code == 0 {
                code = exit_code(kind);
            }
            // No operation is possible in a sandbox that is gone.
            if !self.keep_going || kind == ErrorKind::AgentLost {
                break;
            }
        }
        Ok(Report { code, ..Report::default() })
    }
}

fn operation(line: &[u8]) -> Result<OperationRequest, String> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8 text".to_owned())?;
    OperationRequest::from_json(line).map_err(|error| error.to_string())
}

fn refusal(number: u64, why: &str) -> Envelope {
    let error = refused(ErrorKind::InvalidRequest, format!("line {number}: {why}"));
    Envelope::failed(Duration::ZERO, error.document())
}

/// Writes an envelope to stdout, on one line. Returns false if the reader is gone.
async fn print_envelope(envelope: &Envelope, output: &Output) -> Result<bool, Error> {
    let mut json = serde_json::to_string(envelope).map_err(Error::stdout)?;
    json = output.neutral_json(&json).into_owned();
    json.push('\n');
    if output.stdout_is_terminal {
        json = json_for_terminal(&json).into_owned();
    }
    // Not on this thread, where a blocked reader would delay signals. In one write, so that nothing
    // is written in between.
    let write = move || {
        let mut stdout = io::stdout().lock();
        stdout.write_all(json.as_bytes()).and_then(|()| stdout.flush())
    };
    let written = tokio::task::spawn_blocking(write).await;
    still_read(written.unwrap_or_else(|error| Err(io::Error::other(error))), "stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_operation_names_its_line() {
        let why = |line: &[u8]| {
            let refusal = refusal(3, &operation(line).unwrap_err());
            let error = refusal.error.unwrap();
            assert_eq!(error.kind, ErrorKind::InvalidRequest);
            error.message
        };
        assert!(why(b"{").starts_with("line 3: not a JSON object"));
        assert!(why(b"\xff").starts_with("line 3: it is not UTF-8"));
        let unknown = why(br#"{"operation":"read","path":"a","lines":1}"#);
        assert!(unknown.contains("unknown field `lines`"), "{unknown}");
        assert!(operation(br#"{"operation":"stat","path":"a"}"#).is_ok());
    }
}
