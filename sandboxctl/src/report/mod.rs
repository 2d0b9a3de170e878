//! Reports: files that contain the results of `run` and `exec`, in addition to the live output.
//!
//! Each format is a function of `sandbox-render` from the results to its text. Reports are
//! written at the end, for any outcome, and replace their file only when they are complete. Only
//! `ndjson` is written during the run.

mod events;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sandbox_api::service::ExecutionKind;
use sandbox_api::{ExecutionDocument, ExecutionEvent, Recorded};
use sandbox_controller::Patterns;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::lock;
use crate::target::Place;
use events::EventLog;
pub use sandbox_render::report::{Entry, ReportArgument, ReportKind, Subject, markdown};
use sandbox_render::report::{junit, sarif};

/// The exit code if a report cannot be written, and nothing else failed.
const FAILED: u8 = 125;

/// The reports of one command.
#[derive(Debug)]
pub struct Reports {
    /// Those that are written at the end.
    files: Vec<(ReportArgument, Place)>,
    events: Mutex<Vec<EventLog>>,
    subjects: Vec<Subject>,
    entries: Mutex<Vec<Entry>>,
}

impl Reports {
    /// Checks that the reports can be written, before anything runs.
    ///
    /// # Errors
    ///
    /// If one cannot, or is in the io dir, where what runs could replace it.
    pub fn of(
        reports: &[ReportArgument],
        io_dir: Option<&Path>,
        subjects: Vec<Subject>,
    ) -> Result<Self, Error> {
        let mut files = Vec::new();
        let mut events = Vec::new();
        for (at, report) in reports.iter().enumerate() {
            let (flag, file) = (flag(report.kind), &report.file);
            if reports[..at].iter().any(|other| other.file == *file) {
                let why = format!("{} is named twice", file.display());
                return Err(Error::usage(flag, why).with_hint("name a file for each report"));
            }
            let place = Place::outside(&flag, file, io_dir)?;
            match report.kind {
                ReportKind::Ndjson => events.push(EventLog::new(file, place)),
                _ => files.push((report.clone(), place)),
            }
        }
        Ok(Self { files, events: Mutex::new(events), subjects, entries: Mutex::default() })
    }

    /// Whether a report shows what a command prints.
    pub fn show_output(&self) -> bool {
        let events = lock(&self.events);
        !self.files.is_empty() || !events.is_empty()
    }

    /// Something happened.
    pub fn event(&self, index: usize, event: &ExecutionEvent) {
        match event {
            // What a service says of itself.
            ExecutionEvent::Queued | ExecutionEvent::Omitted => {}
            event => self.emit(index, || event.clone().into()),
        }
    }

    /// It has ended; `last_lines` are those that a command wrote to stderr.
    pub fn ended(
        &self,
        index: usize,
        document: ExecutionDocument<'static>,
        exit_code: u8,
        mut last_lines: String,
    ) {
        let mut entries = lock(&self.entries);
        // The first result is the run's own; a failure to print it is not another one.
        if entries.iter().any(|entry| entry.index == index) {
            return;
        }
        if let Ok(document) = document.to_json().and_then(RawValue::from_string) {
            self.emit(index, || Recorded::End { exit_code, document: document.clone() });
        }
        let Some(subject) = self.subjects.get(index).cloned() else { return };
        // Again: escapes were removed, which may have stood in a secret.
        Patterns::of([&subject.secrets]).text(&mut last_lines);
        entries.push(Entry { index, subject, document, exit_code, last_lines });
        entries.sort_by_key(|entry| entry.index);
    }

    /// Our side failed, so that there is no result.
    pub fn failed(&self, index: usize, error: &Error) {
        let (failure, code) = (error.document(), error.exit_code());
        let is_script = self.subjects.get(index).is_some_and(|it| it.source.is_some());
        let kind = if is_script { ExecutionKind::Script } else { ExecutionKind::Command };
        let document = ExecutionDocument::failed(kind, failure, code);
        self.ended(index, document, code, String::new());
    }

    fn emit(&self, index: usize, event: impl Fn() -> Recorded) {
        let name = self.subjects.get(index).map_or("", |subject| &subject.name);
        let mut logs = lock(&self.events);
        logs.iter_mut().for_each(|log| log.write(name, event()));
    }

    /// Writes all reports of what has ended, with the failure of our side that ended it, if any. The
    /// results, and why reports could not be written.
    pub fn finish(self, ended: Result<&u8, &Error>) -> (Vec<Entry>, Vec<Error>) {
        if let Err(error) = ended
            && !lock(&self.entries).iter().any(|entry| entry.document.common.engine.is_none())
        {
            let known: Vec<_> = lock(&self.entries).iter().map(|entry| entry.index).collect();
            if let Some(first) = (0..self.subjects.len()).find(|index| !known.contains(index)) {
                self.failed(first, error);
            }
        }
        let entries = self.entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut failures = Vec::new();
        for (ReportArgument { kind, file }, place) in &self.files {
            if let Err(source) = write(*kind, place, &entries) {
                failures.push(unwritten(*kind, file, source));
            }
        }
        for log in self.events.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let unwritten = |source| unwritten(ReportKind::Ndjson, &log.path, source);
            failures.extend(log.failure.map(unwritten));
        }
        (entries, failures)
    }
}

/// The exit code of a command that ended with `code`, and of whose reports some failed.
pub const fn exit_code(code: u8, has_failures: bool) -> u8 {
    if code == 0 && has_failures { FAILED } else { code }
}

pub fn flag(kind: ReportKind) -> String {
    format!("--report {}", kind.as_str())
}

fn unwritten(kind: ReportKind, file: &Path, source: std::io::Error) -> Error {
    let what = format!("cannot write {} {}", flag(kind), file.display());
    Error::Content { what, source }
}

fn write(kind: ReportKind, place: &Place, entries: &[Entry]) -> std::io::Result<()> {
    place.target()?.write(render(kind, entries)?.as_bytes())
}

/// The text of a report.
fn render(kind: ReportKind, entries: &[Entry]) -> Result<String, serde_json::Error> {
    match kind {
        ReportKind::Json => {
            let lines = entries.iter().map(|entry| Ok(entry.document.to_json()? + "\n"));
            lines.collect()
        }
        ReportKind::Ndjson => Ok(String::new()),
        ReportKind::Junit => Ok(junit(entries)),
        ReportKind::Markdown => Ok(markdown(entries)),
        ReportKind::Sarif => sarif(entries),
    }
}

#[cfg(test)]
#[expect(dead_code, reason = "the others are for the tests of the formats")]
#[path = "../../render/src/report/tests/samples.rs"]
mod samples;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sandbox_api::{SecretValue, Secrets};

    use super::samples::{failed_script, ok_script};
    use super::*;

    #[test]
    fn json_is_a_line_for_each_result() {
        let text = render(ReportKind::Json, &[ok_script(), failed_script()]).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["schema"], "sandboxctl.result/1");
        assert_eq!(lines[1]["status"], "script_error");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn report_that_cannot_be_written_leaves_the_exit_code_of_a_failed_run() {
        assert_eq!(exit_code(0, false), 0);
        assert_eq!(exit_code(0, true), 125);
        assert_eq!(exit_code(1, true), 1);
        assert_eq!(exit_code(143, true), 143);
    }

    #[test]
    fn failure_of_our_side_is_the_result_of_the_first_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.json");
        let argument = ReportArgument { kind: ReportKind::Json, file: file.clone() };
        let subject = |name: &str| Subject {
            name: name.to_owned(),
            source: Some(Vec::new()),
            is_file: true,
            secrets: Secrets::new(),
        };
        let reports =
            Reports::of(&[argument], None, vec![subject("a"), subject("b"), subject("c")]).unwrap();
        let failure = Error::usage("x", "y").document();
        let document = ExecutionDocument::failed(ExecutionKind::Script, failure, 2);
        reports.ended(0, document, 2, String::new());
        let error = Error::Signalled(crate::error::Signal::Terminate);
        reports.failed(1, &error);
        reports.failed(1, &Error::usage("x", "later"));
        let (entries, failures) = reports.finish(Err(&error));
        assert!(failures.is_empty());
        let codes: Vec<_> = entries.iter().map(|entry| entry.exit_code).collect();
        assert_eq!(codes, [2, 143]);
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.lines().nth(1).unwrap().contains(r#""status":"cancelled""#), "{text}");
    }

    #[test]
    fn secret_that_escapes_divided_is_not_in_the_last_lines() {
        let mut secrets = Secrets::new();
        secrets.add("A", SecretValue::new("hunter22")).unwrap();
        let name = "sh".to_owned();
        let subject = Subject { name, source: None, is_file: false, secrets };
        let reports = Reports::of(&[], None, vec![subject]).unwrap();
        let failure = Error::usage("x", "y").document();
        let document = ExecutionDocument::failed(ExecutionKind::Command, failure, 1);
        reports.ended(0, document, 1, "it is hunter22".to_owned());
        assert_eq!(reports.finish(Ok(&1)).0[0].last_lines, "it is ***");
    }

    #[test]
    fn report_in_the_io_dir_is_refused_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let io_dir = folder.path().join("io");
        std::fs::create_dir(&io_dir).unwrap();
        std::os::unix::fs::symlink(&io_dir, folder.path().join("link")).unwrap();
        std::fs::write(io_dir.join("there"), "").unwrap();
        std::os::unix::fs::symlink(io_dir.join("there"), folder.path().join("r")).unwrap();
        let refused = |file: PathBuf| {
            let argument = ReportArgument { kind: ReportKind::Ndjson, file };
            Reports::of(&[argument], Some(&io_dir), Vec::new()).map(drop)
        };
        for name in ["io/a", "link/a", "io/../io/a", "r"] {
            let error = refused(folder.path().join(name)).unwrap_err().to_text();
            assert!(error.contains("is in the io dir"), "{name}: {error}");
        }
        refused(folder.path().join("elsewhere")).unwrap();
        let missing = refused(folder.path().join("no/such")).unwrap_err().to_text();
        assert!(missing.contains("--report ndjson"), "{missing}");
    }
}
