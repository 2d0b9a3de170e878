//! Executions, and what subjects have used: their SQL.

use rusqlite::{Connection, OptionalExtension, params};
use sandbox_api::service::{ExecutionState, Subject, Time};
use serde_json::Value;

use super::SqliteStore;
use crate::error::StoreError;
use crate::executions::{
    Accepted, Finish, NewExecution, OF_KEY, Start, StoredEvent, Then, accepted, last_number,
    limits, limits_json, state,
};
use crate::integer::signed;
use crate::statement::of_sqlite;
use crate::usage::{MAX, day};

impl SqliteStore {
    pub fn accept_then(&self, new: NewExecution, then: impl Then<Accepted>) {
        self.write_then(move |connection| accept(connection, new), then);
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

    pub fn add_usage(
        &self,
        subject: &Subject,
        ended_at: Time,
        used: sandbox_api::Usage,
    ) -> Result<(), StoreError> {
        let subject = subject.clone();
        self.write(move |connection| add_usage(connection, subject.as_str(), ended_at, &used))
    }
}

fn accept(connection: &Connection, new: NewExecution) -> Result<Accepted, StoreError> {
    let NewExecution { id, subject, kind, request, has_secrets, key, .. } = new;
    if let Some((key, digest)) = &key {
        let mut before = connection.prepare_cached(&of_sqlite(OF_KEY))?;
        let mut before =
            before.query_and_then(params![subject.as_str(), key], |row| accepted(row, digest))?;
        if let Some(accepted) = before.next() {
            return accepted;
        }
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
        kind.as_str(),
        status.as_str(),
        request,
        has_secrets,
        metadata,
        new.sandbox,
        new.created_at.unix_millis(),
        new.start.map(|start| start.at.unix_millis()),
        new.generation.map(signed),
        new.start.map(|start| start.engine.as_str()),
        new.start.map(|start| limits_json(&start.limits)),
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
    let (at, limits) = (at.unix_millis(), limits_json(limits));
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
    add_usage(connection, &subject, ended_at, &used)
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

/// Adds an execution that ended.
fn add_usage(
    connection: &Connection,
    subject: &str,
    ended_at: Time,
    used: &sandbox_api::Usage,
) -> Result<(), StoreError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO usage VALUES (?1, ?2, 1, ?3, ?4, ?5)
         ON CONFLICT (subject, day) DO UPDATE SET executions = executions + 1,
            cpu_ms = min(cpu_ms + excluded.cpu_ms, ?6),
            wall_ms = min(wall_ms + excluded.wall_ms, ?6),
            written_bytes = min(written_bytes + excluded.written_bytes, ?6)",
    )?;
    let (cpu, written) = (used.cpu_ms.unwrap_or(0), used.written_bytes.unwrap_or(0));
    let [cpu, wall, written] = [cpu, used.wall_ms, written].map(|figure| signed(figure).min(MAX));
    insert.execute(params![subject, day(ended_at), cpu, wall, written, MAX])?;
    Ok(())
}
