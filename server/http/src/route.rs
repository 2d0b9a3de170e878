//! A route as data: what makes the router, the OpenAPI document and the tests of all routes.

use std::collections::BTreeSet;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use sandbox_api::{ErrorKind, ProblemKind};
use sandbox_api::{EventRecord, WatchRecord};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::access::{Needs, Scope};
use crate::app::App;
use crate::forward::owner::Owner;
use crate::limit::Limit;

/// A schema in a document.
pub(crate) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// A route.
pub(crate) struct Route {
    pub method: Method,
    /// With parameters in braces. A last one named `path` takes the rest, slashes included.
    pub path: &'static str,
    /// A name of its own.
    pub name: &'static str,
    pub tag: Tag,
    pub summary: &'static str,
    pub description: &'static str,
    pub needs: Needs,
    /// The headers that it reads: their names, descriptions and schemas.
    pub headers: Vec<(&'static str, &'static str, Value)>,
    /// The parameters of its query: an object with a member for each.
    pub query: Option<SchemaFn>,
    pub body: Option<RequestBody>,
    pub answers: Vec<RouteResponse>,
    problems: BTreeSet<u16>,
    /// Which node of a cluster answers.
    pub owner: Owner,
    pub handler: MethodRouter<App>,
}

sandbox_api::words! {
    /// A group of routes.
    pub enum Tag {
        Executions = "Executions",
        Sandboxes = "Sandboxes",
        Processes = "Processes",
        Ports = "Ports",
        Server = "Server",
    }
}

impl Tag {
    pub const fn description(self) -> &'static str {
        match self {
            Self::Executions => {
                "Scripts and commands, each in a sandbox of its own. What was accepted is stored: it \
                 is neither lost nor run twice when a client or the server goes away."
            }
            Self::Sandboxes => {
                "Sandboxes that are kept for several executions and file operations. Their files \
                 outlive their processes."
            }
            Self::Processes => {
                "Processes of kept sandboxes that live on after the request that started them. What they \
                 print is kept, the last of it, as long as they live and a little longer."
            }
            Self::Ports => {
                "Servers in a sandbox, at the ports that its spec lists. Requests with any method to \
                 `…/ports/{port}/http/PATH` of a sandbox go to the path `/PATH` of what listens there, upgrades \
                 too. That is for programs: requests of pages are refused, and previews are for them."
            }
            Self::Server => "The server itself.",
        }
    }
}

/// The body that a route reads.
pub(crate) struct RequestBody {
    /// Its media types.
    pub content: Vec<Content>,
    /// Its most bytes.
    pub limit: Limit,
}

/// Content of one type.
pub(crate) struct Content {
    pub media_type: &'static str,
    pub schema: SchemaFn,
    pub example: Option<fn() -> Value>,
}

/// An answer of a route that is no problem.
pub(crate) struct RouteResponse {
    pub status: u16,
    pub description: &'static str,
    pub content: Vec<Content>,
    /// Names and descriptions.
    pub headers: Vec<(&'static str, &'static str)>,
}

/// What any request may be refused for: no host, an origin, another host; and internal errors.
const OF_ANY: [u16; 4] = [400, 403, 421, 500];

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn members_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

/// Any bytes: OpenAPI says so by a schema without a type.
pub(crate) fn bytes(_: &mut SchemaGenerator) -> Schema {
    Schema::default()
}

pub(crate) fn text(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "string" })
}

/// A server-sent event of a watch: its data is a [`WatchRecord`] as JSON.
pub(crate) fn watch_event(generator: &mut SchemaGenerator) -> Schema {
    event_of::<WatchRecord>(generator, &["event", "data"], "`seq` of a change.")
}

/// A server-sent event: its data is an [`EventRecord`] as JSON.
pub(crate) fn event(generator: &mut SchemaGenerator) -> Schema {
    let id = "`seq` of the data, for `Last-Event-ID`.";
    event_of::<EventRecord>(generator, &["id", "event", "data"], id)
}

fn event_of<T: JsonSchema>(generator: &mut SchemaGenerator, required: &[&str], id: &str) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "required": required,
        "properties": {
            "id": { "type": "string", "description": id },
            "event": { "type": "string", "description": "`event` of the data." },
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": generator.subschema_for::<T>(),
            },
        },
    })
}

/// A constructor for each method.
macro_rules! methods {
    ($($constructor:ident $method:ident)+) => {
        $(pub fn $constructor<H: Handler<T, App>, T: 'static>(
            path: &'static str,
            name: &'static str,
            handler: H,
        ) -> Self {
            Self::new(Method::$method, MethodFilter::$method, path, name, handler)
        })+
    };
}

impl Route {
    fn new<H, T>(
        method: Method,
        filter: MethodFilter,
        path: &'static str,
        name: &'static str,
        handler: H,
    ) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let mut problems = BTreeSet::from(OF_ANY);
        // Where there is an id, there may be nothing of it. A sandbox ends by itself: it may be gone.
        if path.contains('{') {
            problems.insert(404);
        }
        if path.starts_with("/v1/sandboxes/{") {
            problems.insert(410);
        }
        Self {
            method,
            path,
            name,
            tag: Tag::Server,
            summary: "",
            description: "",
            needs: Needs::Nothing,
            headers: Vec::new(),
            query: None,
            body: None,
            answers: Vec::new(),
            problems,
            owner: Owner::of_path(path),
            handler: on(filter, handler),
        }
    }

    methods! { get GET post POST put PUT delete DELETE patch PATCH }

    /// Its group, what its caller needs, and what it does.
    pub fn is(self, tag: Tag, scope: Scope, summary: &'static str) -> Self {
        self.does(summary).of(tag, scope)
    }

    /// Its group, and what its caller needs.
    pub fn of(mut self, tag: Tag, scope: Scope) -> Self {
        self.tag = tag;
        self.needs(Needs::Scope(scope))
    }

    /// What it does for any caller.
    pub fn of_caller(self, summary: &'static str) -> Self {
        self.does(summary).needs(Needs::Caller)
    }

    fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        // Credentials, scopes, unknown parameters, requests at one time, an answer that takes too much
        // memory; and the service may not be able to answer.
        self.problems.extend([401, 403, 413, 422, 429, 502, 503]);
        self
    }

    /// Which node of a cluster answers, if another than most routes of such a path.
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// What it does.
    pub fn does(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// What it does, as a public route.
    pub fn public(self, summary: &'static str) -> Self {
        self.does(summary)
    }

    pub fn describe(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(members_of::<T>);
        self.problems.insert(422);
        self
    }

    /// A header that it reads, which is some text.
    pub fn reads(self, name: &'static str, description: &'static str) -> Self {
        self.reads_as(name, description, json!({ "type": "string" }))
    }

    /// The key of a request that may be repeated.
    pub fn takes_key(self) -> Self {
        self.reads_as(
            "Idempotency-Key",
            "Idempotency key, chosen by the caller: a repeated request is accepted once; a different \
             request is refused (422).",
            json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$" }),
        )
    }

    /// The event after which a stream goes on.
    pub fn resumes(self) -> Self {
        self.reads_as(
            "Last-Event-ID",
            "The number of the last event that the client has.",
            json!({ "type": "integer", "format": "uint64", "minimum": 0, "maximum": u64::MAX }),
        )
    }

    fn reads_as(mut self, name: &'static str, description: &'static str, schema: Value) -> Self {
        self.headers.push((name, description, schema));
        self.problems.insert(422);
        self
    }

    fn body(mut self, limit: Limit, content: Content) -> Self {
        let body = self.body.get_or_insert(RequestBody { content: Vec::new(), limit });
        body.content.push(content);
        self.problems.extend([408, 413, 415, 503]);
        self
    }

    pub fn json_body<T: JsonSchema>(self, limit: Limit, example: fn() -> Value) -> Self {
        let (schema, example) = (schema_of::<T> as SchemaFn, Some(example));
        let mut route =
            self.body(limit, Content { media_type: "application/json", schema, example });
        route.problems.insert(422);
        route
    }

    pub fn multipart_body<T: JsonSchema>(self, limit: Limit) -> Self {
        let schema = schema_of::<T> as SchemaFn;
        self.body(limit, Content { media_type: "multipart/form-data", schema, example: None })
    }

    pub fn bytes_body(self) -> Self {
        let media_type = "application/octet-stream";
        self.body(Limit::Upload, Content { media_type, schema: bytes, example: None })
    }

    fn answer(mut self, status: u16, description: &'static str, content: Vec<Content>) -> Self {
        self.answers.push(RouteResponse { status, description, content, headers: Vec::new() });
        self
    }

    pub fn answers<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.answers_as(status, "application/json", schema_of::<T>, description)
    }

    /// An answer of this type. The schema of a stream of events is that of each event.
    pub fn answers_as(
        self,
        status: u16,
        media_type: &'static str,
        schema: SchemaFn,
        description: &'static str,
    ) -> Self {
        self.answer(status, description, vec![Content { media_type, schema, example: None }])
    }

    /// An answer without content.
    pub fn answers_nothing(self, status: u16, description: &'static str) -> Self {
        self.answer(status, description, Vec::new())
    }

    /// Another type of the last answer.
    pub fn or_bytes(mut self, media_type: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.content.push(Content { media_type, schema: bytes, example: None });
        }
        self
    }

    /// An example of the last answer.
    pub fn example(mut self, example: fn() -> Value) -> Self {
        let content = self.answers.last_mut().and_then(|answer| answer.content.last_mut());
        if let Some(content) = content {
            content.example = Some(example);
        }
        self
    }

    /// A header of the last answer.
    pub fn header(mut self, name: &'static str, description: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push((name, description));
        }
        self
    }

    /// The headers of what was done in a sandbox, of the last answer.
    pub fn says_generation(self) -> Self {
        let restarted = "`true` in the first answer after a restart: earlier processes are gone.";
        self.header("Sandbox-Generation", "The generation that was used.")
            .header("Sandbox-Restarted", restarted)
    }

    /// The statuses of more problems.
    pub fn refuses<const N: usize>(mut self, statuses: [u16; N]) -> Self {
        self.problems.extend(statuses);
        self
    }

    /// It uses a sandbox, which may end before it is used, and fails in any way that a sandbox does.
    pub fn uses_sandbox(self) -> Self {
        let mut route = self.refuses([410]);
        let kinds = ErrorKind::ALL.iter().map(|&kind| ProblemKind::from(kind));
        route.problems.extend(kinds.map(ProblemKind::status));
        route
    }

    /// The statuses of all its answers.
    pub fn statuses(&self) -> BTreeSet<u16> {
        self.answers.iter().map(|answer| answer.status).chain(self.problems()).collect()
    }

    /// The statuses of all its problems.
    pub fn problems(&self) -> impl Iterator<Item = u16> + '_ {
        self.problems.iter().copied()
    }
}
