//! Executions, from the moment that they are accepted until they are forgotten.
//!
//! ```text
//! queued ──> running ──> ended
//!    └────────────────────^
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::mpsc::sync_channel;

use sandbox_api::service::{ExecutionKind, ExecutionState, ExecutionSummary, Subject, Time};
use sandbox_api::{EngineKind, Limits, Status, Usage};
use serde_json::{Map, Value};

use crate::error::StoreError;
use crate::integer::{signed, unsigned};
use crate::row::Columns;
use crate::statement::{self, value};
use crate::{Backend, Store};

/// The most executions of one page of a list.
pub const EXECUTION_PAGE: usize = 500;
/// The most events of one read.
pub const EVENT_PAGE: usize = 1000;

/// Who may take an execution that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lane {
    /// Any node.
    #[default]
    Any,
    /// This node: its kept sandbox is here.
    Node,
    /// This session: its secrets are in the memory of this process.
    Session,
}

/// Where a new execution may run, and within which bounds it may wait.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The node that accepts it.
    pub node: String,
    /// Its session.
    pub session: i64,
    /// Who may take it.
    pub lane: Lane,
    /// What of its subject runs at one time, at all nodes.
    pub subject_limit: u64,
    /// What waits at one time. A tenth more is for subjects of which nothing waits; also of the bytes.
    pub max_queued: u64,
    /// The bytes of requests that wait.
    pub max_queued_bytes: u64,
}

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
    /// The image that it runs in, if it is one of the engine's.
    pub image: Option<String>,
    /// The kept sandbox that it runs in.
    pub sandbox: Option<String>,
    /// The generation of it that was asked for.
    pub generation: Option<u64>,
    /// Its first events: a client may have seen them once the execution was accepted.
    pub events: Vec<StoredEvent>,
    /// The W3C trace context of its request.
    pub trace_parent: Option<String>,
    /// In a cluster: where it may run, and the bounds of the queue.
    pub placement: Placement,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It is a new execution, which runs if it was accepted with a start.
    New,
    /// It is a new execution that waits, although it was accepted with a start: others have their turn before.
    Queued,
    /// It was not accepted: so many wait.
    Full(u64),
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
    /// In a cluster: the session that it runs in.
    pub session: Option<i64>,
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
    /// In a cluster: the session that holds it; none if it waits.
    pub session: Option<i64>,
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
    /// Those that run in this image.
    pub image: Option<String>,
    /// Those that were accepted then or later.
    pub since: Option<Time>,
    /// Those that were accepted before.
    pub until: Option<Time>,
    /// Continues a list: the cursor of the page before.
    pub cursor: Option<Cursor>,
    /// At most so many, up to [`EXECUTION_PAGE`].
    pub limit: usize,
}

/// The end of a page: the time and the id of its last execution or sandbox, by which lists are sorted. Both
/// are stable, and reveal nothing of other executions, as a row number would.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub(crate) created_at: Time,
    pub(crate) id: String,
}

impl Cursor {
    /// The position of what was created then and has this id.
    #[must_use]
    pub fn new(created_at: Time, id: &str) -> Self {
        Self { created_at, id: id.to_owned() }
    }
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
    /// The W3C trace context of its request.
    pub trace_parent: Option<String>,
}

/// Is called with what became of a change when that is durable.
pub trait Then<T>: FnOnce(Result<T, StoreError>) + Send + 'static {}

impl<T, F: FnOnce(Result<T, StoreError>) + Send + 'static> Then<T> for F {}

of_either! {
    /// [Accepts](Self::accept) an execution without a wait.
    fn accept_then(&self, new: NewExecution, then: impl Then<Accepted>);

    /// Records that an execution [runs](Self::mark_running), without a wait.
    fn mark_running_then(&self, id: &str, start: Start, then: impl Then<()>);

    /// Records the [end](Self::finish) of an execution without a wait.
    fn finish_then(&self, end: Finish, then: impl Then<()>);

    /// Appends events to executions, all of them with one flush. Events that are there are left alone, and
    /// so is an execution that has ended: the others came with its end.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn append_events(&self, events: Vec<(String, Vec<StoredEvent>)>) -> Result<(), StoreError>;

    /// Which of these ids belong to executions, of any subject.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn known(&self, ids: &[String]) -> Result<Vec<String>, StoreError>;
}

impl Store {
    /// Accepts an execution. When this returns, it is never forgotten.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn accept(&self, new: NewExecution) -> Result<Accepted, StoreError> {
        wait(|then| self.accept_then(new, then))
    }

    /// Records that an execution runs.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it does not wait: none runs twice. [`StoreError::Fenced`] likewise, in a
    /// cluster.
    pub fn mark_running(&self, id: &str, start: Start) -> Result<(), StoreError> {
        wait(|then| self.mark_running_then(id, start, then))
    }

    /// Records the end of an execution, with its last events.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it has ended before. In a cluster [`StoreError::Fenced`] if it has ended in
    /// another way, or belongs to another session; the same end twice is no error.
    pub fn finish(&self, end: Finish) -> Result<(), StoreError> {
        wait(|then| self.finish_then(end, then))
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
        let values = [value(subject.as_str().to_owned()), value(key.to_owned())];
        self.first(OF_KEY, &values, |row| accepted(row, digest))
    }

    /// The request of an execution that waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it does not.
    pub fn request(&self, id: &str) -> Result<String, StoreError> {
        let statement = "SELECT request FROM executions WHERE id = $1 AND request IS NOT NULL";
        let request =
            self.first(statement, &[value(id.to_owned())], |row| row.column("request"))?;
        request.ok_or_else(|| state(id, "queued"))
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
        let limit = signed(limit.min(EVENT_PAGE) as u64);
        self.all(
            "SELECT number, json FROM events
             WHERE execution = (SELECT seq FROM executions WHERE id = $1) AND number > $2
             ORDER BY number LIMIT $3",
            &[value(id.to_owned()), value(signed(after)), value(limit)],
            |row| Ok(StoredEvent { number: row.count("number")?, json: row.column("json")? }),
        )
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
        let statement = format!(
            "SELECT {SUMMARY}, document, stored_bytes FROM executions
             WHERE id = $1 AND subject = $2 AND NOT is_expired"
        );
        let values = [value(id.to_owned()), value(subject.as_str().to_owned())];
        self.first(&statement, &values, |row| stored(row))
    }

    /// The executions that have not ended; in a cluster those that this session holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn recover(&self) -> Result<Recovered, StoreError> {
        let (which, values) = match &self.0 {
            Backend::Sqlite(_) => ("INDEXED BY executions_under_way WHERE", Vec::new()),
            Backend::Postgres(store) => {
                ("WHERE session = $1 AND", vec![value(store.database.session())])
            }
        };
        let statement =
            format!("SELECT {RECOVERED} FROM executions {which} ended_at IS NULL ORDER BY seq");
        let all = self.all(&statement, &values, |row| recovered(row))?;
        let is_queued = |it: &RecoveredExecution| it.summary.status == ExecutionState::Queued;
        let (queued, running) = all.into_iter().partition(is_queued);
        Ok(Recovered { queued, running })
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
        Ok(self.page_of(Some(subject), query)?.1)
    }

    /// A page of the executions of a subject, or of all, each with its subject: for who administers the service.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn page(
        &self,
        subject: Option<&Subject>,
        query: &ExecutionQuery,
    ) -> Result<ExecutionPage, StoreError> {
        let (subjects, mut page) = self.page_of(subject, query)?;
        for (execution, subject) in page.executions.iter_mut().zip(subjects) {
            execution.subject = Some(subject);
        }
        Ok(page)
    }

    /// Lists executions of all subjects, or of one, newest first: for who administers the store. The limit of the query
    /// is that of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn list_all(
        &self,
        subject: Option<&Subject>,
        query: &ExecutionQuery,
    ) -> Result<Vec<(Subject, ExecutionSummary)>, StoreError> {
        let mut all = Vec::new();
        let mut query = query.clone();
        loop {
            let (subjects, page) = self.page_of(subject, &query)?;
            all.extend(subjects.into_iter().zip(page.executions));
            query.limit = query.limit.saturating_sub(EXECUTION_PAGE);
            query.cursor = page.next_cursor;
            if query.cursor.is_none() || query.limit == 0 {
                return Ok(all);
            }
        }
    }

    /// A page of the executions of a subject, or of all; with the subject of each.
    fn page_of(
        &self,
        subject: Option<&Subject>,
        query: &ExecutionQuery,
    ) -> Result<(Vec<Subject>, ExecutionPage), StoreError> {
        let mut statement =
            format!("SELECT {SUMMARY}, subject, image FROM executions WHERE NOT is_expired");
        let mut values = Vec::new();
        let mut only = |condition: &str, of: Option<statement::Value>| {
            if let Some(of) = of {
                values.push(of);
                statement += &format!(" AND {condition} ${}", values.len());
            }
        };
        only("subject =", subject.map(|it| value(it.as_str().to_owned())));
        only("kind =", query.kind.map(|it| value(it.as_str())));
        only("sandbox =", query.sandbox.clone().map(value));
        only("image =", query.image.clone().map(value));
        only("created_at >=", query.since.map(|it| value(it.unix_millis())));
        only("created_at <", query.until.map(|it| value(it.unix_millis())));
        only("status =", query.status.map(|it| value(it.as_str())));
        if let Some(ExecutionState::Queued | ExecutionState::Running) = query.status {
            // There are few that have not ended, and an index has them.
            statement += " AND ended_at IS NULL";
        }
        if let Some(Cursor { created_at, id }) = &query.cursor {
            values.extend([value(created_at.unix_millis()), value(id.clone())]);
            let last = values.len();
            statement += &format!(" AND (created_at, id) < (${}, ${last})", last - 1);
        }
        let limit = query.limit.clamp(1, EXECUTION_PAGE);
        values.push(value(signed(limit as u64 + 1)));
        statement += &format!(" ORDER BY created_at DESC, id DESC LIMIT ${}", values.len());
        let mut found = self.all(&statement, &values, |row| {
            let image = row.column("image")?;
            Ok((row.subject()?, ExecutionSummary { image, ..summary(row)? }))
        })?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let (subjects, executions): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let last = executions.last().filter(|_| has_more);
        let next_cursor = last.map(|it| Cursor::new(it.created_at, &it.id));
        Ok((subjects, ExecutionPage { executions, next_cursor }))
    }
}

/// Makes a change, and waits until it is durable.
pub(crate) fn wait<T: Send + 'static>(
    begin: impl FnOnce(Box<dyn FnOnce(Result<T, StoreError>) + Send>),
) -> Result<T, StoreError> {
    let (sender, receiver) = sync_channel(1);
    // A caller that is gone needs no answer.
    begin(Box::new(move |made| _ = sender.send(made)));
    receiver.recv().unwrap_or(Err(StoreError::Closed))
}

/// The columns of a [`summary`].
pub(crate) const SUMMARY: &str = "id, kind, status, created_at, started_at, ended_at, metadata, sandbox, \
                                  generation, is_restart";

pub(crate) fn summary(row: &impl Columns) -> Result<ExecutionSummary, StoreError> {
    Ok(ExecutionSummary {
        id: row.column("id")?,
        kind: kind(&row.column::<String>("kind")?)?,
        status: state_named(&row.column::<String>("status")?)?,
        created_at: row.time("created_at")?,
        started_at: row.time_if_any("started_at")?,
        ended_at: row.time_if_any("ended_at")?,
        metadata: row.json("metadata")?,
        sandbox: row.column("sandbox")?,
        generation: row.column::<Option<i64>>("generation")?.map(unsigned),
        restarted: row.column("is_restart")?,
        image: None,
        subject: None,
    })
}

/// An execution with the columns of a [`summary`], `document` and `stored_bytes`.
pub(crate) fn stored(row: &impl Columns) -> Result<StoredExecution, StoreError> {
    let (document, stored) =
        (row.column::<Option<String>>("document")?, row.count("stored_bytes")?);
    let has_files = document.as_ref().is_some_and(|document| stored > document.len() as u64);
    Ok(StoredExecution { summary: summary(row)?, document, has_files })
}

/// The columns of [`recovered`].
pub(crate) const RECOVERED: &str = "id, kind, status, created_at, started_at, ended_at, metadata, \
    sandbox, generation, is_restart, subject, has_secrets, last_event, engine, limits, trace_parent, \
    CAST(coalesce(octet_length(request), 0) AS bigint) AS request_bytes";

pub(crate) fn recovered(row: &impl Columns) -> Result<RecoveredExecution, StoreError> {
    Ok(RecoveredExecution {
        summary: summary(row)?,
        subject: row.subject()?,
        has_secrets: row.column("has_secrets")?,
        last_event: row.count("last_event")?,
        engine: row.column::<Option<String>>("engine")?.as_deref().and_then(EngineKind::from_word),
        limits: row.column::<Option<String>>("limits")?.as_deref().and_then(limits),
        request_bytes: row.count("request_bytes")?,
        trace_parent: row.column("trace_parent")?,
    })
}

/// What was accepted under a key.
pub(crate) const OF_KEY: &str =
    "SELECT k.digest, e.id FROM idempotency_keys k JOIN executions e ON e.seq = k.execution
     WHERE k.subject = $1 AND k.key = $2 AND NOT e.is_expired";

/// That is the request of this digest, or another one.
pub(crate) fn accepted(row: &impl Columns, digest: &str) -> Result<Accepted, StoreError> {
    Ok(match row.column::<String>("digest")? == digest {
        true => Accepted::Same(row.column("id")?),
        false => Accepted::Other,
    })
}

pub(crate) fn last_number(events: &[StoredEvent]) -> Option<i64> {
    events.iter().map(|event| signed(event.number)).max()
}

/// Limits as they are stored: numbers with names can be written.
pub(crate) fn limits_json(limits: &Limits) -> String {
    serde_json::to_string(limits).unwrap_or_default()
}

/// Limits as they are stored; those of a version that had others are not known.
pub(crate) fn limits(json: &str) -> Option<Limits> {
    serde_json::from_str(json).ok()
}

/// The kind of this name.
pub(crate) fn kind(name: &str) -> Result<ExecutionKind, StoreError> {
    ExecutionKind::from_word(name).ok_or_else(|| StoreError::row(format!("the kind '{name}'")))
}

/// The state of this name.
pub(crate) fn state_named(name: &str) -> Result<ExecutionState, StoreError> {
    name.parse().map_err(|_: String| StoreError::row(format!("the status '{name}'")))
}

pub(crate) fn state(id: &str, expected: &'static str) -> StoreError {
    StoreError::State { id: id.to_owned(), expected }
}
