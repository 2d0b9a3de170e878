//! The events of executions and of processes, as server-sent events.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _};
use sandbox_api::EventRecord;
use sandbox_api::ProblemKind;
use sandbox_service::Events;

use super::params::EventParams;
use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{Id, LAST_EVENT_ID, Params};

pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let after = last_event(&headers)?.unwrap_or(params.after);
    Ok(stream(&app, app.service.events(&caller.subject, &id, after).await?))
}

/// The answer with these events, as they come.
pub(super) fn stream(app: &App, events: Events) -> Response {
    // A stream that fails is cut off, without an end: the client reconnects where it was.
    sse(app, events.map(|event| message(&*event?)))
}

/// The same of any messages.
pub(super) fn sse(
    app: &App,
    events: impl Stream<Item = Result<Event>> + Send + 'static,
) -> Response {
    let events = events.take_until(app.stop.clone().cancelled_owned());
    let keep_alive = KeepAlive::new().interval(app.config.keep_alive).text("");
    Sse::new(events).keep_alive(keep_alive).into_response()
}

/// The number of the last event that the client has.
pub(super) fn last_event(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let invalid = || {
        Refusal::new(ProblemKind::Invalid, "Last-Event-ID is not the number of an event")
            .at("Last-Event-ID", "not a number")
    };
    number.ok_or_else(invalid).map(Some)
}

fn message(event: &EventRecord) -> Result<Event> {
    // JSON has no line breaks of its own.
    let data = serde_json::to_string(event)
        .map_err(|_| Refusal::internal("an event cannot be written as JSON"))?;
    Ok(Event::default().id(event.seq.to_string()).event(event.event.name()).data(data))
}
