//! Executions, from the moment that they are accepted until they are forgotten.
//!
//! ```text
//! queued ──> running ──> ended
//!    └────────────────────^
//! ```

use std::fmt;
use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types};
use sandbox_api::service::{ExecutionKind, ExecutionState, ExecutionSummary, Subject, Time};
use sandbox_api::{EngineKind, Limits, Status, Usage};
use serde_json::{Map, Value};

use crate::error::StoreError;
use crate::integer::{signed, unsigned};
use crate::{Store, usage};

/// The most executions of one page of a list.
pub const EXECUTION_PAGE: usize = 500;
/// The most events of one read.
pub const EVENT_PAGE: usize = 1000;

/// An execution to accept.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Its id, which no other one has.
    pub id: String,
    /// Whose it is.
    pub subject: Subject,
    /// What runs.
    pub kind: ExecutionKind,
    /// The request as JSON, without its secrets. It is stored until it runs.
    pub request: String,
    /// It has secrets, which are stored nowhere: it cannot be run after a restart.
    pub has_secrets: bool,
    /// The idempotency key and the digest of the request.
    pub key: Option<(String, String)>,
    /// When it was accepted.
    pub created_at: Time,
    /// Its start, if it runs at once: it is never stored as one that waits then.
    pub start: Option<Start>,
    /// What its caller said about it.
    pub metadata: Map<String, Value>,
    /// The kept sandbox that it runs in.
    pub sandbox: Option<String>,
    /// The generation of it that was asked for.
    pub generation: Option<u64>,
    /// Its first events: a client may have seen them once the execution was accepted.
    pub events: Vec<StoredEvent>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It is a new execution.
    New,
    /// The same request was accepted under its key before: this execution's id.
    Same(String),
    /// Another request was accepted under its key before.
    Other,
}

/// The generation of a kept sandbox that an execution runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedGeneration {
    /// Its number.
    pub generation: u64,
    /// Whether the execution started it, in place of an earlier one.
    pub is_restart: bool,
}

/// The start of an execution, with what is known then of how it runs. Its result says the same;
/// this is for an execution whose result was lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Start {
    /// When it began to run.
    pub at: Time,
    /// The engine that it runs on.
    pub engine: EngineKind,
    /// The limits in force.
    pub limits: Limits,
    /// The generation of its kept sandbox.
    pub used: Option<UsedGeneration>,
}

/// The end of an execution.
#[derive(Debug, Clone)]
pub struct Finish {
    /// The execution.
    pub id: String,
    /// How it ended.
    pub status: Status,
    /// Its result document, as JSON.
    pub document: String,
    /// The bytes that are stored for it: document and files.
    pub stored_bytes: u64,
    /// What it used, if it ran.
    pub usage: Option<Usage>,
    /// When it ended.
    pub ended_at: Time,
    /// Its last events, with the end event as the last one.
    pub events: Vec<StoredEvent>,
}

/// An event, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number, from 1.
    pub number: u64,
    /// The event.
    pub json: String,
}

/// An execution as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredExecution {
    /// What lists show.
    pub summary: ExecutionSummary,
    /// Its result document, after its end.
    pub document: Option<String>,
    /// Whether it left files that were kept.
    pub has_files: bool,
}

/// Which executions to list.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExecutionQuery {
    /// Those with this status.
    pub status: Option<ExecutionState>,
    /// Those of this kind.
    pub kind: Option<ExecutionKind>,
    /// Those of this kept sandbox.
    pub sandbox: Option<String>,
    /// Continues a list: the cursor of the page before.
    pub cursor: Option<Cursor>,
    /// At most so many, up to [`EXECUTION_PAGE`].
    pub limit: usize,
}

/// The end of a page: the time and the id of its last execution, by which lists are sorted. Both
/// are stable, and reveal nothing of other executions, as a row number would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    created_at: Time,
    id: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.created_at.unix_millis(), self.id)
    }
}

impl FromStr for Cursor {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let none = || StoreError::row("invalid cursor");
        let (created_at, id) = text.split_once('.').ok_or_else(none)?;
        let created_at = Time::from_unix_millis(created_at.parse().map_err(|_| none())?);
        Ok(Self { created_at, id: id.to_owned() })
    }
}

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExecutionPage {
    /// The executions.
    pub executions: Vec<ExecutionSummary>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<Cursor>,
}

/// What a service that starts finds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recovered {
    /// Executions that wait, oldest first.
    pub queued: Vec<RecoveredExecution>,
    /// Executions that were running: how they ended is unknown. They are to be finished as killed.
    pub running: Vec<RecoveredExecution>,
}

/// An execution that had not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RecoveredExecution {
    /// What lists show.
    pub summary: ExecutionSummary,
    /// Whose it is.
    pub subject: Subject,
    /// It has secrets, which are lost.
    pub has_secrets: bool,
    /// The bytes of its request; 0 once it has run.
    pub request_bytes: u64,
    /// The number of its last event.
    pub last_event: u64,
    /// The engine that it ran on, if an earlier version did not start it.
    pub engine: Option<EngineKind>,
    /// The limits that it ran under, likewise.
    pub limits: Option<Limits>,
}

/// Is called with what became of a change when that is durable.
pub trait Then<T>: FnOnce(Result<T, StoreError>) + Send + 'static {}

impl<T, F: FnOnce(Result<T, StoreError>) + Send + 'static> Then<T> for F {}

const SUMMARY: &str = "id, kind, status, created_at, started_at, ended_at, metadata, sandbox, \
                       generation, is_restart";

impl Store {
    /// Accepts an execution. When this returns, it is never forgotten.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn accept(&self, new: NewExecution) -> Result<Accepted, StoreError> {
        self.write(move |connection| accept(connection, new))
    }

    /// The same without a wait.
    pub fn accept_then(&self, new: NewExecution, then: impl Then<Accepted>) {
        self.write_then(move |connection| accept(connection, new), then);
    }

    /// The execution that was accepted under a key, if there is one.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn find_key(
        &self,
        subject: &Subject,
        key: &str,
        digest: &str,
    ) -> Result<Option<Accepted>, StoreError> {
        self.read(|connection| find_key(connection, subject, key, digest))
    }

    /// The request of an execution that waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it does not.
    pub fn request(&self, id: &str) -> Result<String, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT request FROM executions WHERE id = ?1 AND request IS NOT NULL",
            )?;
            let request = query.query_row([id], |row| row.get(0)).optional()?;
            request.ok_or_else(|| state(id, "queued"))
        })
    }

    /// Records that an execution runs.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it does not wait: none runs twice.
    pub fn mark_running(&self, id: &str, start: Start) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(move |connection| mark_running(connection, &id, &start))
    }

    /// The same without a wait.
    pub fn mark_running_then(&self, id: &str, start: Start, then: impl Then<()>) {
        let id = id.to_owned();
        self.write_then(move |connection| mark_running(connection, &id, &start), then);
    }

    /// Records the end of an execution, with its last events.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it has ended before.
    pub fn finish(&self, end: Finish) -> Result<(), StoreError> {
        self.write(move |connection| finish(connection, end))
    }

    /// The same without a wait.
    pub fn finish_then(&self, end: Finish, then: impl Then<()>) {
        self.write_then(move |connection| finish(connection, end), then);
    }

    /// Appends events to executions, all of them with one flush. Events that are there are left alone, and
    /// so is an execution that has ended: the others came with its end.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn append_events(&self, events: Vec<(String, Vec<StoredEvent>)>) -> Result<(), StoreError> {
        self.write(move |connection| {
            let mut query = connection
                .prepare_cached("SELECT seq FROM executions WHERE id = ?1 AND ended_at IS NULL")?;
            let mut update = connection.prepare_cached(
                "UPDATE executions SET last_event = max(last_event, ?2) WHERE seq = ?1",
            )?;
            for (id, events) in events {
                let seq: Option<i64> = query.query_row([&id], |row| row.get(0)).optional()?;
                if let (Some(seq), Some(last)) = (seq, last_number(&events)) {
                    insert_events(connection, seq, &events)?;
                    update.execute(params![seq, last])?;
                }
            }
            Ok(())
        })
    }

    /// Up to `limit` events of an execution after the one with this number, in order, and never more
    /// than [`EVENT_PAGE`].
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn events(
        &self,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT number, json FROM events
                 WHERE execution = (SELECT seq FROM executions WHERE id = ?1) AND number > ?2
                 ORDER BY number LIMIT ?3",
            )?;
            let limit = signed(limit.min(EVENT_PAGE) as u64);
            let events = query.query_map(params![id, signed(after), limit], event)?;
            Ok(events.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// An execution of a subject; another's is not found.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn execution(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<Option<StoredExecution>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(&format!(
                "SELECT {SUMMARY}, document, stored_bytes FROM executions
                 WHERE id = ?1 AND subject = ?2 AND NOT is_expired"
            ))?;
            let mut rows = query.query(params![id, subject.as_str()])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let (document, stored) = (row.get::<_, Option<String>>(10)?, row.get::<_, i64>(11)?);
            let has_files =
                document.as_ref().is_some_and(|document| stored > document.len() as i64);
            Ok(Some(StoredExecution { summary: summary(row)?, document, has_files }))
        })
    }

    /// Which of these ids belong to executions, of any subject.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn known(&self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT 1 FROM executions WHERE id = ?1")?;
            let mut known = Vec::new();
            for id in ids {
                if query.exists([id])? {
                    known.push(id.clone());
                }
            }
            Ok(known)
        })
    }

    /// Lists executions of a subject, newest first. Paging returns each execution that exists
    /// throughout exactly once, even if others are accepted, end or are deleted meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn list(
        &self,
        subject: &Subject,
        query: &ExecutionQuery,
    ) -> Result<ExecutionPage, StoreError> {
        let mut sql =
            format!("SELECT {SUMMARY} FROM executions WHERE subject = ? AND NOT is_expired");
        let mut values: Vec<types::Value> = vec![subject.as_str().to_owned().into()];
        if let Some(Cursor { created_at, id }) = &query.cursor {
            sql.push_str(" AND (created_at, id) < (?, ?)");
            values.extend([created_at.unix_millis().into(), id.clone().into()]);
        }
        let mut with = |condition: &str, value: types::Value| {
            sql.push_str(condition);
            values.push(value);
        };
        if let Some(kind) = query.kind {
            with(" AND kind = ?", kind_name(kind).to_owned().into());
        }
        if let Some(sandbox) = &query.sandbox {
            with(" AND sandbox = ?", sandbox.clone().into());
        }
        if let Some(status) = query.status {
            // There are few that have not ended, and an index has them.
            let condition = match status {
                ExecutionState::Queued | ExecutionState::Running => {
                    " AND ended_at IS NULL AND status = ?"
                }
                ExecutionState::Ended(_) => " AND status = ?",
            };
            with(condition, status.as_str().to_owned().into());
        }
        let limit = query.limit.clamp(1, EXECUTION_PAGE);
        sql.push_str(" ORDER BY created_at DESC, id DESC LIMIT ?");
        values.push(types::Value::Integer(signed(limit as u64 + 1)));
        self.read(|connection| {
            let mut query = connection.prepare_cached(&sql)?;
            let mut rows = query.query(params_from_iter(values))?;
            let mut page = ExecutionPage::default();
            while let Some(row) = rows.next()? {
                if page.executions.len() == limit {
                    let last = page.executions.last();
                    page.next_cursor =
                        last.map(|it| Cursor { created_at: it.created_at, id: it.id.clone() });
                    break;
                }
                page.executions.push(summary(row)?);
            }
            Ok(page)
        })
    }

    /// The executions that have not ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn recover(&self) -> Result<Recovered, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare(&format!(
                "SELECT {SUMMARY}, subject, has_secrets, last_event, engine, limits,
                    ifnull(octet_length(request), 0)
                 FROM executions INDEXED BY executions_under_way
                 WHERE ended_at IS NULL ORDER BY seq"
            ))?;
            let mut rows = query.query([])?;
            let mut recovered = Recovered::default();
            while let Some(row) = rows.next()? {
                let execution = RecoveredExecution {
                    summary: summary(row)?,
                    subject: Subject::new(row.get::<_, String>(10)?).map_err(StoreError::row)?,
                    has_secrets: row.get(11)?,
                    last_event: unsigned(row.get(12)?),
                    engine: row.get::<_, Option<String>>(13)?.as_deref().and_then(engine),
                    request_bytes: unsigned(row.get(15)?),
                    limits: row.get::<_, Option<String>>(14)?.as_deref().and_then(limits),
                };
                match execution.summary.status {
                    ExecutionState::Queued => recovered.queued.push(execution),
                    _ => recovered.running.push(execution),
                }
            }
            Ok(recovered)
        })
    }
}

fn accept(connection: &Connection, new: NewExecution) -> Result<Accepted, StoreError> {
    let NewExecution { id, subject, kind, request, has_secrets, key, .. } = new;
    if let Some((key, digest)) = &key
        && let Some(accepted) = find_key(connection, &subject, key, digest)?
    {
        return Ok(accepted);
    }
    let metadata = Value::Object(new.metadata).to_string();
    // What runs is never run again, and is not read again.
    let (status, request) = match new.start {
        Some(_) => (ExecutionState::Running, None),
        None => (ExecutionState::Queued, Some(request)),
    };
    let mut insert = connection.prepare_cached(
        "INSERT INTO executions
            (id, subject, kind, status, request, has_secrets, metadata, sandbox, created_at,
             started_at, generation, engine, limits, last_event)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    let seq = insert.insert(params![
        id,
        subject.as_str(),
        kind_name(kind),
        status.as_str(),
        request,
        has_secrets,
        metadata,
        new.sandbox,
        new.created_at.unix_millis(),
        new.start.map(|start| start.at.unix_millis()),
        new.generation.map(signed),
        new.start.map(|start| start.engine.as_str()),
        new.start.map(|start| limits_json(&start.limits)).transpose()?,
        last_number(&new.events).unwrap_or(0),
    ])?;
    insert_events(connection, seq, &new.events)?;
    if let Some((key, digest)) = key {
        // That of an execution that is about to be forgotten is free.
        let mut insert = connection
            .prepare_cached("INSERT OR REPLACE INTO idempotency_keys VALUES (?1, ?2, ?3, ?4)")?;
        insert.execute(params![subject.as_str(), key, digest, seq])?;
    }
    Ok(Accepted::New)
}

fn mark_running(connection: &Connection, id: &str, start: &Start) -> Result<(), StoreError> {
    let Start { at, engine, limits, used } = start;
    let mut update = connection.prepare_cached(
        "UPDATE executions SET status = 'running', request = NULL, started_at = ?2, generation = ?3,
            is_restart = ?4, engine = ?5, limits = ?6
         WHERE id = ?1 AND status = 'queued'",
    )?;
    let (generation, is_restart) = used.map(|of| (signed(of.generation), of.is_restart)).unzip();
    let (at, limits) = (at.unix_millis(), limits_json(limits)?);
    match update.execute(params![id, at, generation, is_restart, engine.as_str(), limits])? {
        1 => Ok(()),
        _ => Err(state(id, "queued")),
    }
}

fn finish(connection: &Connection, end: Finish) -> Result<(), StoreError> {
    let Finish { id, status, document, stored_bytes, usage, ended_at, events } = end;
    let mut update = connection.prepare_cached(
        "UPDATE executions
         SET status = ?2, document = ?3, stored_bytes = ?4, ended_at = ?5, request = NULL,
            last_event = max(last_event, ?6)
         WHERE id = ?1 AND ended_at IS NULL RETURNING seq, subject, limits",
    )?;
    let ended = update
        .query_row(
            params![
                id,
                status.as_str(),
                document,
                signed(stored_bytes),
                ended_at.unix_millis(),
                last_number(&events).unwrap_or(0),
            ],
            |row| {
                let limited = row.get::<_, Option<String>>(2)?;
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, limited))
            },
        )
        .optional()?;
    let (seq, subject, limited) = ended.ok_or_else(|| state(&id, "queued or running"))?;
    insert_events(connection, seq, &events)?;
    let limits = limited.as_deref().and_then(limits).unwrap_or_default();
    let used = usage.map(|usage| usage.charged(&limits)).unwrap_or_default();
    usage::add(connection, &subject, ended_at, &used)
}

fn find_key(
    connection: &Connection,
    subject: &Subject,
    key: &str,
    digest: &str,
) -> Result<Option<Accepted>, StoreError> {
    let mut query = connection.prepare_cached(
        "SELECT k.digest, e.id FROM idempotency_keys k JOIN executions e ON e.seq = k.execution
         WHERE k.subject = ?1 AND k.key = ?2 AND NOT e.is_expired",
    )?;
    let found = query
        .query_row(params![subject.as_str(), key], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    Ok(found.map(|(before, id)| match before == digest {
        true => Accepted::Same(id),
        false => Accepted::Other,
    }))
}

fn insert_events(
    connection: &Connection,
    seq: i64,
    events: &[StoredEvent],
) -> Result<(), StoreError> {
    let mut insert =
        connection.prepare_cached("INSERT OR IGNORE INTO events VALUES (?1, ?2, ?3)")?;
    for event in events {
        insert.execute(params![seq, signed(event.number), event.json])?;
    }
    Ok(())
}

fn last_number(events: &[StoredEvent]) -> Option<i64> {
    events.iter().map(|event| signed(event.number)).max()
}

fn event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent { number: unsigned(row.get(0)?), json: row.get(1)? })
}

/// The columns of [`SUMMARY`].
fn summary(row: &Row<'_>) -> Result<ExecutionSummary, StoreError> {
    let (kind, status): (String, String) = (row.get(1)?, row.get(2)?);
    let time = |column| -> Result<Option<Time>, StoreError> {
        Ok(row.get::<_, Option<i64>>(column)?.map(Time::from_unix_millis))
    };
    let metadata = serde_json::from_str(&row.get::<_, String>(6)?).map_err(StoreError::row)?;
    Ok(ExecutionSummary {
        id: row.get(0)?,
        kind: match kind.as_str() {
            SCRIPT => ExecutionKind::Script,
            COMMAND => ExecutionKind::Command,
            other => return Err(StoreError::row(format!("the kind '{other}'"))),
        },
        status: ExecutionState::from_name(&status)
            .ok_or_else(|| StoreError::row(format!("the status '{status}'")))?,
        created_at: Time::from_unix_millis(row.get(3)?),
        started_at: time(4)?,
        ended_at: time(5)?,
        metadata,
        sandbox: row.get(7)?,
        generation: row.get::<_, Option<i64>>(8)?.map(unsigned),
        restarted: row.get(9)?,
    })
}

fn limits_json(limits: &Limits) -> Result<String, StoreError> {
    serde_json::to_string(limits).map_err(StoreError::row)
}

/// Limits as they are stored; those of a version that had others are not known.
fn limits(json: &str) -> Option<Limits> {
    serde_json::from_str(json).ok()
}

fn engine(name: &str) -> Option<EngineKind> {
    [EngineKind::Docker, EngineKind::Embedded].into_iter().find(|kind| kind.as_str() == name)
}

const SCRIPT: &str = "script";
const COMMAND: &str = "command";

const fn kind_name(kind: ExecutionKind) -> &'static str {
    match kind {
        ExecutionKind::Script => SCRIPT,
        ExecutionKind::Command => COMMAND,
    }
}

fn state(id: &str, expected: &'static str) -> StoreError {
    StoreError::State { id: id.to_owned(), expected }
}
