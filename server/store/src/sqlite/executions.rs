//! Executions: their SQL.

use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types};
use sandbox_api::service::{ExecutionState, ExecutionSummary, Subject};
use serde_json::Value;

use super::{SqliteStore, usage};
use crate::error::StoreError;
use crate::executions::{
    Accepted, Cursor, EVENT_PAGE, EXECUTION_PAGE, ExecutionPage, ExecutionQuery, Finish,
    NewExecution, Recovered, SUMMARY, Start, StoredEvent, StoredExecution, Then, kind_name,
    last_number, limits, limits_json, recovered, state, stored, summary,
};
use crate::integer::signed;
use crate::row::Columns as _;

impl SqliteStore {
    pub fn accept_then(&self, new: NewExecution, then: impl Then<Accepted>) {
        self.write_then(move |connection| accept(connection, new), then);
    }

    pub fn find_key(
        &self,
        subject: &Subject,
        key: &str,
        digest: &str,
    ) -> Result<Option<Accepted>, StoreError> {
        self.read(|connection| find_key(connection, subject, key, digest))
    }

    pub fn request(&self, id: &str) -> Result<String, StoreError> {
        let statement = "SELECT request FROM executions WHERE id = ?1 AND request IS NOT NULL";
        let request = self.first(statement, [id], |row| row.column("request"))?;
        request.ok_or_else(|| state(id, "queued"))
    }

    pub fn mark_running_then(&self, id: &str, start: Start, then: impl Then<()>) {
        let id = id.to_owned();
        self.write_then(move |connection| mark_running(connection, &id, &start), then);
    }

    pub fn finish_then(&self, end: Finish, then: impl Then<()>) {
        self.write_then(move |connection| finish(connection, end), then);
    }

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

    pub fn events(
        &self,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.all(
            "SELECT number, json FROM events
             WHERE execution = (SELECT seq FROM executions WHERE id = ?1) AND number > ?2
             ORDER BY number LIMIT ?3",
            params![id, signed(after), signed(limit.min(EVENT_PAGE) as u64)],
            |row| Ok(StoredEvent { number: row.count("number")?, json: row.column("json")? }),
        )
    }

    pub fn execution(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<Option<StoredExecution>, StoreError> {
        let statement = format!(
            "SELECT {SUMMARY}, document, stored_bytes FROM executions
             WHERE id = ?1 AND subject = ?2 AND NOT is_expired"
        );
        self.first(&statement, params![id, subject.as_str()], |row| stored(row))
    }

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

    /// A page of the executions of a subject, or of all; with the subject of each.
    pub fn page(
        &self,
        subject: Option<&Subject>,
        query: &ExecutionQuery,
    ) -> Result<(Vec<Subject>, ExecutionPage), StoreError> {
        let whose = if subject.is_some() { "subject = ?" } else { "? IS NULL" };
        let mut sql = format!(
            "SELECT {SUMMARY}, subject, image FROM executions WHERE {whose} AND NOT is_expired"
        );
        let subject = subject.map(|subject| subject.as_str().to_owned());
        let mut values: Vec<types::Value> = vec![subject.into()];
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
        if let Some(image) = &query.image {
            with(" AND image = ?", image.clone().into());
        }
        if let Some(since) = query.since {
            with(" AND created_at >= ?", since.unix_millis().into());
        }
        if let Some(until) = query.until {
            with(" AND created_at < ?", until.unix_millis().into());
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
            let (mut subjects, mut page) = (Vec::new(), ExecutionPage::default());
            while let Some(row) = rows.next()? {
                if page.executions.len() == limit {
                    let last = page.executions.last();
                    page.next_cursor =
                        last.map(|it| Cursor { created_at: it.created_at, id: it.id.clone() });
                    break;
                }
                let image = row.column("image")?;
                page.executions.push(ExecutionSummary { image, ..summary(row)? });
                subjects.push(row.subject()?);
            }
            Ok((subjects, page))
        })
    }

    pub fn recover(&self) -> Result<Recovered, StoreError> {
        let executions = self.all(
            &format!(
                "SELECT {SUMMARY}, subject, has_secrets, last_event, engine, limits, trace_parent,
                    ifnull(octet_length(request), 0) AS request_bytes
                 FROM executions INDEXED BY executions_under_way
                 WHERE ended_at IS NULL ORDER BY seq"
            ),
            [],
            |row| recovered(row),
        )?;
        Ok(executions.into_iter().collect())
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
             started_at, generation, engine, limits, last_event, trace_parent, image)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
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
        new.trace_parent,
        new.image,
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
    let Start { at, engine, limits, used, session: _ } = start;
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
    let Finish { id, status, document, stored_bytes, usage, ended_at, events, session: _ } = end;
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
