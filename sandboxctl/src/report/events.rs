//! `ndjson`: numbered events, a line each, written as they come.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{LogLevel, TestCase};
use serde::Serialize;
use serde_json::value::RawValue;

/// The name and version of the events.
const SCHEMA: &str = "sandboxctl.events/1";

/// What happens.
pub enum Event<'a> {
    /// A script or a command starts.
    Start,
    /// A script has written an entry of its log.
    Log {
        /// By which function.
        level: LogLevel,
        /// What it has written.
        text: &'a str,
    },
    /// A command has printed something.
    Output {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// The output, or its base64.
        text: String,
        /// How `text` is encoded.
        encoding: &'static str,
    },
    /// A test case of a script has ended.
    Test {
        /// The test case.
        case: &'a TestCase,
    },
    /// It has ended.
    End {
        /// The exit code that this result asks for.
        exit_code: u8,
        /// The result document.
        document: &'a str,
    },
}

impl Event<'_> {
    /// A command has printed this. A piece may end within a character: then it is base64.
    pub fn output(stream: &'static str, bytes: &[u8]) -> Self {
        let (text, encoding) = match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), "utf-8"),
            Err(_) => (STANDARD.encode(bytes), "base64"),
        };
        Self::Output { stream, text, encoding }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<&'static str>,
    time: String,
    event: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<LogLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'a TestCase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<&'a RawValue>,
}

/// A file of events.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
    /// The number of the next line, from 1.
    next: u64,
    /// Why nothing more is written.
    failure: Option<io::Error>,
}

impl EventLog {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = match path.metadata() {
            Ok(found) if !found.is_file() && !found.is_dir() => {
                File::options().write(true).open(path)?
            }
            _ => File::create(path)?,
        };
        Ok(Self { path: path.to_owned(), file, next: 1, failure: None })
    }

    /// Writes a line. After a failure nothing more is written: numbers have no gaps.
    pub fn write(&mut self, name: &str, event: &Event<'_>) {
        if self.failure.is_none()
            && let Err(error) = self.try_write(name, event)
        {
            self.failure = Some(error);
        }
    }

    fn try_write(&mut self, name: &str, event: &Event<'_>) -> io::Result<()> {
        let mut line = Line {
            seq: self.next,
            schema: (self.next == 1).then_some(SCHEMA),
            time: sandbox_api::time::now(),
            event: "start",
            name,
            level: None,
            stream: None,
            text: None,
            encoding: None,
            case: None,
            exit_code: None,
            document: None,
        };
        match event {
            Event::Start => {}
            Event::Log { level, text } => {
                line.event = "log";
                (line.level, line.text) = (Some(*level), Some(*text));
            }
            Event::Output { stream, text, encoding } => {
                line.event = "output";
                (line.stream, line.text) = (Some(*stream), Some(text.as_str()));
                line.encoding = Some(*encoding);
            }
            Event::Test { case } => {
                line.event = "test";
                line.case = Some(*case);
            }
            Event::End { exit_code, document } => {
                line.event = "end";
                line.exit_code = Some(*exit_code);
                line.document = Some(serde_json::from_str(document)?);
            }
        }
        let mut json = serde_json::to_vec(&line)?;
        json.push(b'\n');
        self.file.write_all(&json)?;
        self.next += 1;
        Ok(())
    }

    /// Its path, and why it is not complete.
    pub fn finish(self) -> (PathBuf, Option<io::Error>) {
        (self.path, self.failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_end_at_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut log = EventLog::create(&path).unwrap();
        log.write("a", &Event::Start);
        log.write("a", &Event::Log { level: LogLevel::Warn, text: "x\n{\"seq\":9}" });
        log.write("a", &Event::output("stdout", b"\xff"));
        log.write("a", &Event::End { exit_code: 1, document: r#"{"status":"ok"}"# });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let numbers: Vec<_> = lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(lines[0]["schema"], SCHEMA);
        assert_eq!(lines[1]["text"], "x\n{\"seq\":9}");
        assert_eq!((&lines[2]["text"], &lines[2]["encoding"]), (&"/w==".into(), &"base64".into()));
        assert_eq!(lines[3]["document"]["status"], "ok");

        let mut full = EventLog::create(Path::new("/dev/full")).unwrap();
        full.write("a", &Event::Start);
        full.write("a", &Event::Start);
        let (path, failure) = full.finish();
        assert_eq!(
            (path, failure.unwrap().kind()),
            ("/dev/full".into(), io::ErrorKind::StorageFull)
        );
    }
}
