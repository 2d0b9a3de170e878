//! What a service runs, ran and is to run.

use std::time::Duration;

use sandbox_api::service::{
    Execution, ExecutionSummary, FileEntry, FileKind, FileList, Subject, Time,
};
use sandbox_api::{DocumentBody, EventRecord, ExecutionEvent, Exit, Recorded};

use crate::escape::escaped_line;
use crate::table::{self, age, cell, size, table};

/// Executions as a table of this width; with a column of subjects if each has one.
pub fn executions(executions: &[ExecutionSummary], now: Time, width: Option<usize>) -> String {
    let of_subjects = executions.iter().map(|it| Some((it.subject.as_ref()?, it)));
    if let Some(of_subjects) = of_subjects.collect::<Option<Vec<_>>>().filter(|it| !it.is_empty()) {
        return executions_of_subjects(of_subjects, now, width);
    }
    let rows = executions.iter().map(|it| row(it, now));
    table(["ID", "STATUS", "AGE", "TOOK", "RUNS", "SANDBOX"], rows, width)
}

/// Executions of several subjects as a table of this width.
pub fn executions_of_subjects<'a>(
    executions: impl IntoIterator<Item = (&'a Subject, &'a ExecutionSummary)>,
    now: Time,
    width: Option<usize>,
) -> String {
    let row = |(subject, execution): (&Subject, &ExecutionSummary)| {
        let [id, status, age, took, title, sandbox] = row(execution, now);
        [id, cell(Some(subject.as_str())), status, age, took, title, sandbox]
    };
    let headings = ["ID", "SUBJECT", "STATUS", "AGE", "TOOK", "RUNS", "SANDBOX"];
    table(headings, executions.into_iter().map(row), width)
}

/// The columns of an execution in a table.
fn row(it: &ExecutionSummary, now: Time) -> [String; 6] {
    let took = match (it.started_at, it.ended_at) {
        (Some(start), Some(end)) => took(end.since(start)),
        (Some(start), None) => took(now.since(start)),
        (None, _) => "-".to_owned(),
    };
    // Its submitter chose it.
    let title = it.metadata.get("title").and_then(|title| title.as_str());
    [
        it.id.clone(),
        it.status.to_string(),
        age(now.since(it.created_at)),
        took,
        cell(title),
        cell(it.sandbox.as_deref()),
    ]
}

fn took(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis}ms"),
        millis @ 1000..60_000 => format!("{}.{}s", millis / 1000, millis % 1000 / 100),
        _ => age(time),
    }
}

/// An execution as lines for people.
pub fn execution(execution: &Execution) -> String {
    let summary = &execution.summary;
    let mut facts = vec![
        ("id", summary.id.clone()),
        ("status", summary.status.to_string()),
        ("created", summary.created_at.to_string()),
    ];
    facts.extend(summary.started_at.map(|time| ("started", time.to_string())));
    facts.extend(summary.ended_at.map(|time| ("ended", time.to_string())));
    if let Some(document) = &execution.document {
        facts.push(("exit", document.process_exit_code().to_string()));
        facts.extend(document.common.error.iter().map(|error| ("error", error.message.clone())));
        if let DocumentBody::Script(body) = &document.body {
            facts.extend(body.result.iter().map(|result| ("result", result.get().to_owned())));
        }
    }
    table::facts(8, facts)
}

/// An event as a line for people.
pub fn event(record: &EventRecord) -> String {
    let what = match &record.event {
        Recorded::Event(event) => match event {
            ExecutionEvent::Log(entry) => entry.text.as_str().into(),
            ExecutionEvent::Output { data, .. } => String::from_utf8_lossy(data),
            ExecutionEvent::Test(case) => case.name.as_str().into(),
            ExecutionEvent::HostRefused(host) => {
                format!("{}:{} ({})", host.host, host.port, host.reason).into()
            }
            ExecutionEvent::Exited(Exit::Code(code)) => format!("exit code {code}").into(),
            ExecutionEvent::Exited(Exit::Signal(signal)) => format!("signal {signal}").into(),
            ExecutionEvent::Queued | ExecutionEvent::Started | ExecutionEvent::Omitted => "".into(),
        },
        Recorded::End { exit_code, .. } => format!("exit code {exit_code}").into(),
    };
    let what = escaped_line(what.trim_end_matches('\n')).into_owned();
    let name = record.event.name();
    let shown = format!("{:>5}  {}  {name:<8} {what}", record.seq, record.time);
    format!("{}\n", shown.trim_end())
}

/// Files as a table of this width.
pub fn files(files: &FileList, width: Option<usize>) -> String {
    let row = |file: &FileEntry| {
        let size = match file.kind {
            FileKind::File => size(file.bytes),
            FileKind::Directory => "directory".to_owned(),
            FileKind::Symlink => "link".to_owned(),
            FileKind::Other => "other".to_owned(),
        };
        [escaped_line(&file.path.to_string_lossy()).into_owned(), size]
    };
    let mut text = table(["PATH", "SIZE"], files.files.iter().map(row), width);
    if files.truncated {
        text.push_str("…\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use sandbox_api::service::{ExecutionKind, ExecutionState};
    use sandbox_api::{LogEntry, Status};
    use serde_json::json;

    use super::*;

    #[test]
    fn table_says_what_each_execution_is_and_how_it_ended() {
        let now = Time::now();
        let summary = ExecutionSummary {
            id: "da2442acca66b731".into(),
            kind: ExecutionKind::Script,
            status: ExecutionState::Ended(Status::ScriptError),
            created_at: now.before(Duration::from_secs(65)),
            started_at: Some(now.before(Duration::from_millis(64_000))),
            ended_at: Some(now.before(Duration::from_millis(62_750))),
            metadata: [("title".to_owned(), json!("a\n.luau"))].into_iter().collect(),
            sandbox: None,
            generation: None,
            restarted: None,
            image: None,
            subject: None,
        };
        insta::assert_snapshot!(executions(&[summary], now, None), @r"
        ID                STATUS        AGE  TOOK  RUNS      SANDBOX
        da2442acca66b731  script_error  1m   1.2s  a\n.luau  -
        ");
    }

    #[test]
    fn events_are_one_line_each_whatever_a_script_prints() {
        let entry = LogEntry::from_line("a\nend exit code 0\u{1b}[2J\n");
        let record = EventRecord {
            seq: 3,
            time: Time::from_unix_millis(0),
            name: None,
            event: ExecutionEvent::Log(entry).into(),
        };
        let text = event(&record);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("a\\nend exit code 0\\u{1b}[2J"), "{text}");
    }
}
