//! Executions, and what subjects have used: their SQL.

use std::sync::mpsc::sync_channel;

use sandbox_api::Limits;
use sandbox_api::service::{Subject, Time};
use serde_json::Value;
use tokio_postgres::Row;

use super::parameters::{bind, one, own};
use super::{Change, PostgresStore, WRITERS};
use crate::error::StoreError;
use crate::executions::{
    Accepted, Finish, Lane, NewExecution, Start, StoredEvent, Then, limits_json, state,
};
use crate::integer::{signed, unsigned};
use crate::usage::{MAX, day};

impl PostgresStore {
    pub fn accept_then(&self, new: NewExecution, then: impl Then<Accepted>) {
        let database = &self.database;
        let subject = new.subject.clone();
        let start = new.start.as_ref();
        let lane = match new.placement.lane {
            Lane::Any => String::new(),
            Lane::Node => new.placement.node.clone(),
            Lane::Session => format!("#{}", new.placement.session),
        };
        let (key, digest) = new.key.unzip();
        let (numbers, events) = columns(new.events);
        let parameters = vec![
            own(new.id),
            own(new.subject.as_str().to_owned()),
            own(new.kind.as_str()),
            own(new.request),
            own(new.has_secrets),
            own(Value::Object(new.metadata).to_string()),
            own(new.sandbox),
            own(new.generation.map(signed)),
            own(new.trace_parent),
            own(new.created_at.unix_millis()),
            own(key),
            own(digest),
            own(start.map(|start| start.at.unix_millis())),
            own(start.map(|start| start.engine.as_str())),
            own(start.map(|start| limits_json(&start.limits))),
            own(numbers),
            own(events),
            own(new.placement.session),
            own(lane),
            own(signed(new.placement.subject_limit)),
            own(signed(new.placement.max_queued)),
            own(signed(new.placement.max_queued_bytes)),
            own(new.image),
        ];
        let starts = start.is_some();
        let read = move |rows: &[Row]| {
            let row = one(rows)?;
            let accepted = || row.try_get::<_, String>(1);
            match row.try_get(0)? {
                "begun" => Ok(Accepted::New),
                "queued" if starts => Ok(Accepted::Queued),
                "queued" => Ok(Accepted::New),
                "full" => Ok(Accepted::Full(unsigned(row.try_get(2)?))),
                "same" => Ok(Accepted::Same(accepted()?)),
                "other" => Ok(Accepted::Other),
                other => Err(StoreError::row(format!("the verdict '{other}'"))),
            }
        };
        let statement =
            "SELECT verdict, accepted, waiting FROM accept($1, $2, $3, $4, $5, $6, $7, $8, $9,
             $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)";
        let change = Change::new(statement, parameters, read, then).with_share(&subject);
        database.write(database.writer_of(subject.as_str()), change);
    }

    pub fn mark_running_then(&self, id: &str, start: Start, then: impl Then<()>) {
        let (writer, of) = (self.database.writer_of(id), id.to_owned());
        let (generation, is_restart) =
            start.used.map(|used| (signed(used.generation), used.is_restart)).unzip();
        let parameters = vec![
            own(id.to_owned()),
            own(start.session),
            own(start.at.unix_millis()),
            own(generation),
            own(is_restart),
            own(start.engine.as_str()),
            own(limits_json(&start.limits)),
        ];
        let statement = "SELECT mark_running($1, $2, $3, $4, $5, $6, $7)";
        let read = move |rows: &[Row]| match one(rows)?.try_get(0)? {
            true => Ok(()),
            false => Err(StoreError::Fenced { id: of }),
        };
        self.database.write(writer, Change::new(statement, parameters, read, then));
    }

    pub fn finish_then(&self, end: Finish, then: impl Then<()>) {
        let writer = self.database.writer_of(&end.id);
        let (id, is_held) = (end.id.clone(), end.session.is_some());
        let used = end.usage.unwrap_or_default();
        // Of one that did not run, nothing is charged.
        let cpu_ms = if end.usage.is_some() { used.cpu_ms.map(signed) } else { Some(0) };
        let (numbers, events) = columns(end.events);
        let parameters = vec![
            own(end.id),
            own(end.session),
            own(end.status.as_str()),
            own(end.document),
            own(signed(end.stored_bytes)),
            own(end.ended_at.unix_millis()),
            own(numbers),
            own(events),
            own(cpu_ms),
            own(signed(used.wall_ms)),
            own(signed(used.written_bytes.unwrap_or(0))),
            own(f64::from(Limits::default().cpus)),
            own(MAX),
            own(day(end.ended_at)),
            own(writer as i16),
        ];
        let read = move |rows: &[Row]| match one(rows)?.try_get(0)? {
            true => Ok(()),
            false if is_held => Err(StoreError::Fenced { id }),
            false => Err(state(&id, "queued or running")),
        };
        let statement =
            "SELECT finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
        let change = Change::new(statement, parameters, read, then);
        let change = if is_held { change } else { change.with_share_of_execution() };
        self.database.write(writer, change);
    }

    pub fn append_events(&self, events: Vec<(String, Vec<StoredEvent>)>) -> Result<(), StoreError> {
        let session = self.database.session();
        let mut of_writers: [(Vec<String>, Vec<i64>, Vec<String>); WRITERS] = Default::default();
        for (id, events) in events {
            let (ids, numbers, jsons) = &mut of_writers[self.database.writer_of(&id)];
            for event in events {
                ids.push(id.clone());
                numbers.push(signed(event.number));
                jsons.push(event.json);
            }
        }
        let statement = "WITH new AS (SELECT * FROM unnest($1, $2, $3) AS new (id, number, json)),
            known AS (
                UPDATE executions e SET last_event = greatest(e.last_event, last.number)
                FROM (SELECT id, max(number) AS number FROM new GROUP BY id) AS last
                WHERE e.id = last.id AND e.session = $4 AND e.ended_at IS NULL
                RETURNING e.seq, e.id
            )
            INSERT INTO events SELECT known.seq, new.number, new.json FROM new JOIN known USING (id)
            ON CONFLICT DO NOTHING";
        let (sender, receiver) = sync_channel(WRITERS);
        for (writer, (ids, numbers, jsons)) in of_writers.into_iter().enumerate() {
            if !ids.is_empty() {
                let parameters = vec![own(ids), own(numbers), own(jsons), own(session)];
                let sender = sender.clone();
                let then = move |made| _ = sender.send(made);
                let change = Change::new(statement, parameters, |_| Ok(()), then);
                self.database.write(writer, change);
            }
        }
        drop(sender);
        // A change whose writer is gone says nothing.
        receiver.iter().collect()
    }

    pub fn known(&self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        let rows = self.database.query(
            "SELECT id FROM unnest($1) WITH ORDINALITY AS asked (id, place)
             WHERE EXISTS (SELECT FROM executions e WHERE e.id = asked.id) ORDER BY place",
            &[bind(&ids)],
        )?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    pub fn add_usage(
        &self,
        subject: &Subject,
        ended_at: Time,
        used: sandbox_api::Usage,
    ) -> Result<(), StoreError> {
        let writer = self.database.writer_of(subject.as_str());
        let parameters = vec![
            own(subject.as_str().to_owned()),
            own(day(ended_at)),
            own(self.database.node().to_owned()),
            own(writer as i16),
            own(signed(used.cpu_ms.unwrap_or(0))),
            own(signed(used.wall_ms)),
            own(signed(used.written_bytes.unwrap_or(0))),
            own(MAX),
        ];
        let statement = "SELECT add_usage($1, $2, $3, $4, $5, $6, $7, $8)";
        self.database.change(writer, statement, parameters, |_| Ok(()))
    }
}

fn columns(events: Vec<StoredEvent>) -> (Vec<i64>, Vec<String>) {
    events.into_iter().map(|event| (signed(event.number), event.json)).unzip()
}
