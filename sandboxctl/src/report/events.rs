//! `ndjson`: numbered events, a line each, written as they come.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use sandbox_api::service::Time;
use sandbox_api::{EventRecord, Recorded};

use crate::target::Place;

/// A file of events. It stays as it is until the first one.
#[derive(Debug)]
pub struct EventLog {
    /// Its path.
    pub path: PathBuf,
    place: Place,
    file: Option<File>,
    /// The number of the next line, from 1.
    next: u64,
    /// Why nothing more is written.
    pub failure: Option<io::Error>,
}

impl EventLog {
    /// Events in the file at `path`, which is open.
    pub fn new(path: &Path, place: Place) -> Self {
        Self { path: path.to_owned(), place, file: None, next: 1, failure: None }
    }

    /// Writes a line. After a failure nothing more is written: numbers have no gaps.
    pub fn write(&mut self, name: &str, event: Recorded) {
        if self.failure.is_none()
            && let Err(error) = self.try_write(name, event)
        {
            self.failure = Some(error);
        }
    }

    fn try_write(&mut self, name: &str, event: Recorded) -> io::Result<()> {
        let (seq, time, name) = (self.next, Time::now(), Some(name.to_owned()));
        let event = EventRecord { seq, time, name, event };
        let mut json = serde_json::to_vec(&event)?;
        json.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.place.truncate()?),
        };
        file.write_all(&json)?;
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use sandbox_api::{ExecutionEvent, LogEntry, OutputStream};
    use serde_json::value::RawValue;

    #[test]
    fn lines_are_numbered_and_end_at_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        std::fs::write(&path, "of an earlier run").unwrap();
        let mut log = EventLog::new(&path, Place::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of an earlier run");
        log.write("a", ExecutionEvent::Started.into());
        log.write("a", ExecutionEvent::Log(LogEntry::from_line("x\n{\"seq\":9}")).into());
        let (stream, data) = (OutputStream::Stdout, b"\xff".to_vec().into());
        log.write("a", ExecutionEvent::Output { stream, data }.into());
        let document = RawValue::from_string(r#"{"status":"ok"}"#.to_owned()).unwrap();
        log.write("a", Recorded::End { exit_code: 1, document });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let numbers: Vec<_> = lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(lines[0]["schema"], "sandboxctl.events/1");
        assert_eq!(lines[1]["text"], "x\n{\"seq\":9}");
        assert_eq!((&lines[2]["text"], &lines[2]["encoding"]), (&"/w==".into(), &"base64".into()));
        assert_eq!(lines[3]["document"]["status"], "ok");

        let full = Path::new("/dev/full");
        let mut full = EventLog::new(full, Place::open(full).unwrap());
        full.write("a", ExecutionEvent::Started.into());
        full.write("a", ExecutionEvent::Started.into());
        assert_eq!(full.path, Path::new("/dev/full"));
        assert_eq!(full.failure.unwrap().kind(), io::ErrorKind::StorageFull);
    }
}
