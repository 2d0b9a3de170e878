//! Changes in a watched directory, as server-sent events.

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::StreamExt as _;
use sandbox_api::{WatchRecord, WatchRequest};

use super::events::sse;
use super::params::{At, WatchParams};
use crate::refusal::{Refusal, Result};

pub(super) async fn get(at: At<WatchParams>) -> Result<Response> {
    let At { app, subject, sandbox, params: WatchParams { path, recursive, .. } } = at;
    let request = WatchRequest { path: path.as_deref().unwrap_or(".").into(), recursive };
    let watch = app.service.watch_files(&subject, &sandbox, request).await?;
    // A watch that fails is cut off: its client has to look itself at what has changed since.
    Ok(sse(&app, watch.map(|record| message(&record?))))
}

fn message(record: &WatchRecord) -> Result<Event> {
    // JSON has no line breaks of its own.
    let data =
        record.to_json().map_err(|_| Refusal::internal("a change cannot be written as JSON"))?;
    let event = Event::default().event(record.name()).data(data);
    Ok(match record {
        WatchRecord::Event(change) => event.id(change.seq.to_string()),
        WatchRecord::Omitted { .. } => event,
    })
}
