//! Lists of sandboxes: filters, order and pages.

use std::cmp::Reverse;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use sandbox_api::service::{SandboxView, Subject, Time};
use sandbox_http::Caller;
use sandbox_service::SandboxQuery;
use serde_json::Value;
use url::form_urlencoded;

use super::request::Result;
use super::view::listed;
use crate::app::App;
use crate::error::Error;
use crate::sandbox::Sandbox;
use crate::settings::untagged;

/// The most sandboxes of a page, which is also what one has that asks for no number.
const MAX_PAGE: usize = 100;

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// The place of a sandbox in the order of lists.
type Position = (Time, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    Oldest,
    #[default]
    Newest,
}

/// Which sandboxes are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ListQuery {
    metadata: Vec<(String, String)>,
    /// Whether paused and running ones are; all if neither is named.
    paused: bool,
    running: bool,
    order: Order,
    started_after: Option<Time>,
    template: Option<String>,
    after: Option<Position>,
    limit: Option<usize>,
}

impl ListQuery {
    fn parse(query: &str) -> Result<Self> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let invalid = |what: &str| Error::invalid(format!("{name}: {what}"));
            match &*name {
                "metadata" => parsed.metadata = metadata(&value),
                "state" => {
                    for state in value.split(',') {
                        match state.trim() {
                            "running" => parsed.running = true,
                            "paused" => parsed.paused = true,
                            "" => {}
                            _ => return Err(invalid("a state is running or paused")),
                        }
                    }
                }
                "order" => {
                    parsed.order = match &*value {
                        "asc" => Order::Oldest,
                        "desc" => Order::Newest,
                        _ => return Err(invalid("an order is asc or desc")),
                    }
                }
                "startedAfter" => {
                    // Of a query that was not encoded.
                    let time = value.replace(' ', "+").parse::<Time>();
                    parsed.started_after =
                        Some(time.map_err(|error| invalid(&format!("{error}")))?);
                }
                "template" => parsed.template = Some(untagged(&value).to_owned()),
                "nextToken" if value.is_empty() => {}
                "nextToken" => {
                    let after = read_token(&value);
                    parsed.after =
                        Some(after.ok_or_else(|| invalid("it is not a token of a list"))?);
                }
                "limit" => match value.parse() {
                    Ok(limit) if (1..=MAX_PAGE).contains(&limit) => parsed.limit = Some(limit),
                    _ => return Err(invalid(&format!("a limit is 1 to {MAX_PAGE}"))),
                },
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn matches(&self, sandbox: &Sandbox) -> bool {
        let Sandbox { view, marker, .. } = sandbox;
        let is_any_state = self.paused == self.running;
        let has = |(key, value): &(String, String)| {
            view.metadata.get(key).and_then(Value::as_str) == Some(value)
        };
        (is_any_state || self.paused == marker.is_paused)
            && self.template.as_ref().is_none_or(|template| *template == marker.template)
            && self.started_after.is_none_or(|time| view.created_at >= time)
            && self.metadata.iter().all(has)
    }

    /// A page of these sandboxes, and the token of the next one.
    fn page(&self, mut sandboxes: Vec<Sandbox>) -> (Vec<Sandbox>, Option<String>) {
        sandboxes.retain(|sandbox| {
            let is_after = |after: &Position| match self.order {
                Order::Oldest => position(&sandbox.view) > *after,
                Order::Newest => position(&sandbox.view) < *after,
            };
            self.matches(sandbox) && self.after.as_ref().is_none_or(is_after)
        });
        match self.order {
            Order::Oldest => sandboxes.sort_by_cached_key(|it| position(&it.view)),
            Order::Newest => sandboxes.sort_by_cached_key(|it| Reverse(position(&it.view))),
        }
        let limit = self.limit.unwrap_or(MAX_PAGE);
        let has_more = sandboxes.len() > limit;
        sandboxes.truncate(limit);
        let last = sandboxes.last().filter(|_| has_more);
        let next = last.map(|it| token(&position(&it.view)));
        (sandboxes, next)
    }
}

fn position(view: &SandboxView) -> Position {
    (view.created_at, view.id.clone())
}

fn token((time, id): &Position) -> String {
    format!("{}-{id}", time.unix_millis())
}

fn read_token(token: &str) -> Option<Position> {
    let (millis, id) = token.split_once('-')?;
    Some((Time::from_unix_millis(millis.parse().ok()?), id.to_owned()))
}

/// Members of the metadata: a query of its own, whose names and values are encoded once more.
fn metadata(text: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        // As it stands: a plus is one in the inner encoding.
        let text = format!("x={}", text.replace('+', "%2B").replace('&', "%26"));
        let value = form_urlencoded::parse(text.as_bytes()).next();
        value.map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    let pairs = form_urlencoded::parse(text.as_bytes());
    pairs.map(|(key, value)| (decoded(&key), decoded(&value))).collect()
}

/// All of E2B's sandboxes of a subject whose time is not over.
async fn all(app: &App, subject: &Subject) -> Result<Vec<Sandbox>> {
    let mut query = SandboxQuery::default();
    let mut sandboxes = Vec::new();
    loop {
        let page = app.service().sandboxes(subject, query.clone()).await?;
        let own = page.sandboxes.into_iter().filter_map(|it| Sandbox::of(subject.clone(), it));
        sandboxes.extend(own);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(sandboxes);
        }
    }
}

pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let query = ListQuery::parse(&query.unwrap_or_default())?;
    let (page, next) = query.page(all(&app, &caller.subject).await?);
    let page: Vec<Value> = page.iter().map(|sandbox| listed(&app, sandbox)).collect();
    let mut response = Json(page).into_response();
    if let Some(next) = next.and_then(|token| HeaderValue::try_from(token).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, next);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_read_as_the_sdks_write_it() {
        // urlencode({quote("a b"): quote("c&d=1+é")}) of Python, once more in the query.
        let query = "metadata=a%252520b%3Dc%252526d%25253D1%25252B%2525C3%2525A9&state=running%2Cpaused\
                     &order=asc&startedAfter=2026-08-01T10%3A00%3A00.5%2B02%3A00&limit=1&template=base%3Alatest";
        let query = ListQuery::parse(query).unwrap();
        assert_eq!(query.metadata, [("a b".to_owned(), "c&d=1+é".to_owned())]);
        assert!(query.running && query.paused && query.order == Order::Oldest);
        assert_eq!(query.started_after, Some("2026-08-01T08:00:00.500Z".parse().unwrap()));
        assert_eq!((query.limit, query.template.as_deref()), (Some(1), Some("base")));
        assert_eq!(ListQuery::parse("state=running&unknown=1").unwrap().order, Order::Newest);
        for wrong in
            ["limit=0", "limit=101", "order=up", "state=gone", "nextToken=x", "startedAfter=1"]
        {
            assert!(ListQuery::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn token_is_the_position_of_the_last_sandbox() {
        let position = (Time::from_unix_millis(1_795_298_400_007), "0a1b".to_owned());
        assert_eq!(read_token(&token(&position)), Some(position));
    }
}
