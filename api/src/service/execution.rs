//! Executions as a service gives them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::marker::PhantomData;

use sandbox_protocol::ErrorKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::subject::Subject;
use super::time::Time;
use crate::execution::{
    ExecDocument, ExecSchema, ExecutionDocument, ExecutionKind, ResultDocument, ResultSchema,
};
use crate::failure::Failure;
use crate::outcome::Status;

/// The state of an execution: it waits, it runs, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecutionState {
    /// It waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// It has ended.
    Ended(Status),
}

/// Every state, and what it means for the caller of a service.
const STATES: [(ExecutionState, &str); 11] = {
    use ExecutionState::{Ended, Queued, Running};
    [
        (Queued, "It waits for its turn."),
        (Running, "It runs."),
        (Ended(Status::Ok), "The script returned, or the command ended with code 0."),
        (
            Ended(Status::ScriptError),
            "An uncaught error, a syntax error, or a result that is not JSON.",
        ),
        (Ended(Status::Exit), "The command ended with another code, or by a signal."),
        (Ended(Status::Limit), "An uncaught limit error, or a kill because of a limit."),
        (Ended(Status::Timeout), "The deadline."),
        (Ended(Status::Cancelled), "A caller cancelled it."),
        (Ended(Status::Killed), "It was killed, and not by its caller."),
        (Ended(Status::AgentLost), "The agent broke the protocol or disappeared."),
        (Ended(Status::Error), "The service or the engine failed."),
    ]
};

impl ExecutionState {
    /// Every state.
    pub fn all() -> impl Iterator<Item = Self> {
        STATES.iter().map(|(state, _)| *state)
    }

    /// How it ended; `None` before its end.
    pub const fn ended(self) -> Option<Status> {
        match self {
            Self::Ended(status) => Some(status),
            Self::Queued | Self::Running => None,
        }
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ended(status) => status.as_str(),
        }
    }
}

impl std::str::FromStr for ExecutionState {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::all().find(|state| state.as_str() == name);
        found.ok_or_else(|| format!("unknown state '{name}'"))
    }
}

impl std::fmt::Display for ExecutionState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

sandbox_protocol::as_text!(ExecutionState);

impl JsonSchema for ExecutionState {
    fn schema_name() -> Cow<'static, str> {
        "ExecutionStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut description =
            "The state of an execution: it waits, it runs, or how it ended.\n".to_owned();
        for (state, meaning) in STATES {
            _ = write!(description, "\n- `{state}`: {meaning}");
        }
        let names: Vec<_> = Self::all().map(Self::as_str).collect();
        json_schema!({ "type": "string", "enum": names, "description": description })
    }
}

/// An execution without its result, as lists give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutionSummary {
    /// Its id.
    pub id: String,
    /// What it runs.
    pub kind: ExecutionKind,
    /// Its state.
    pub status: ExecutionState,
    /// When it was accepted.
    pub created_at: Time,
    /// When its run began.
    pub started_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// The members of its caller's own.
    pub metadata: Map<String, Value>,
    /// The kept sandbox that it runs in; null for one of its own.
    pub sandbox: Option<String>,
    /// The generation of that sandbox that it runs in; before that, the one that was asked for.
    pub generation: Option<u64>,
    /// Whether it started that generation in place of an earlier one, whose processes are gone; null
    /// before its run, and without a kept sandbox.
    pub restarted: Option<bool>,
    /// The image that it runs in; in lists alone, and absent if it runs in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whose it is, in lists of other subjects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
}

/// The answer to a request that was accepted and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptedExecution {
    /// Its id.
    pub id: String,
    /// Its state.
    pub status: ExecutionState,
}

/// A page of a list of executions, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutionList {
    /// The executions.
    pub executions: Vec<ExecutionSummary>,
    /// The `cursor` of the next page; null on the last one.
    pub next_cursor: Option<String>,
}

/// An execution with its result.
///
/// In JSON it is its result document (`sandboxctl.result/1` or `sandboxctl.exec/1`, with its own
/// `id` and `status`), and beside those members `created_at`, `started_at`, `ended_at`, `metadata`,
/// `sandbox`, `generation` and `restarted`. Before its end the members of the document are there too, null or empty.
#[derive(Debug, Clone)]
pub struct Execution {
    /// What is known before its end.
    pub summary: ExecutionSummary,
    /// Its result; `None` before its end.
    pub document: Option<ExecutionDocument<'static>>,
}

/// The members of an execution that its document does not have.
#[derive(Serialize)]
struct ServiceMembers<'a, D> {
    #[serde(flatten)]
    document: D,
    created_at: Time,
    started_at: Option<Time>,
    ended_at: Option<Time>,
    metadata: &'a Map<String, Value>,
    sandbox: Option<&'a str>,
    generation: Option<u64>,
    restarted: Option<bool>,
}

impl Serialize for Execution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.document {
            Some(document) => self.summary.with_members_of(document).serialize(serializer),
            None => {
                let document = self.summary.pending_document().map_err(S::Error::custom)?;
                self.summary.with_members_of(document).serialize(serializer)
            }
        }
    }
}

impl ExecutionSummary {
    /// [`Execution`] in JSON, with its result document as it is stored: that is not read.
    ///
    /// # Errors
    ///
    /// As of `serde_json`; if the document is no object.
    pub fn to_json_with(self, document: Option<String>) -> serde_json::Result<String> {
        let Some(mut json) = document else {
            return serde_json::to_string(&Execution { summary: self, document: None });
        };
        let members = serde_json::to_string(&self.with_members_of(Map::new()))?;
        json.truncate(json.trim_end().len());
        match (json.pop(), members.strip_prefix('{')) {
            (Some('}'), Some(members)) if json.len() > 1 => {
                json.push(',');
                json.push_str(members);
                Ok(json)
            }
            _ => Err(<serde_json::Error as serde::ser::Error>::custom("not an object")),
        }
    }

    fn with_members_of<D>(&self, document: D) -> ServiceMembers<'_, D> {
        ServiceMembers {
            document,
            created_at: self.created_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            metadata: &self.metadata,
            sandbox: self.sandbox.as_deref(),
            generation: self.generation,
            restarted: self.restarted,
        }
    }

    /// The members of the document, null or empty.
    fn pending_document(&self) -> serde_json::Result<Map<String, Value>> {
        let nothing = Failure::new(ErrorKind::Internal, "", None);
        let empty = ExecutionDocument::ended(self.kind, &self.id, Status::Error, nothing);
        let mut members = serde_json::to_value(empty)?;
        let members = members.as_object_mut().map(std::mem::take).unwrap_or_default();
        let state = |(name, value): (String, Value)| {
            let value = match name.as_str() {
                "status" => self.status.as_str().into(),
                "exit_code" | "error" => Value::Null,
                "failed" => false.into(),
                _ => value,
            };
            (name, value)
        };
        Ok(members.into_iter().map(state).collect())
    }
}

/// The schema of an execution of one kind: its document, which may not be final, and the members
/// beside it.
struct OfKind<D>(PhantomData<D>);

impl<D: JsonSchema> JsonSchema for OfKind<D> {
    fn schema_name() -> Cow<'static, str> {
        D::schema_name().replace("Document", "Execution").into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let later = generator.subschema_for::<Option<Time>>();
        let members = [
            ("status", "Its state.", generator.subschema_for::<ExecutionState>()),
            ("created_at", "When it was accepted.", generator.subschema_for::<Time>()),
            ("started_at", "When its run began.", later.clone()),
            ("ended_at", "When it ended.", later),
            (
                "metadata",
                "The members of its caller's own.",
                generator.subschema_for::<Map<String, Value>>(),
            ),
            (
                "sandbox",
                "The kept sandbox that it runs in; null for one of its own.",
                generator.subschema_for::<Option<String>>(),
            ),
            (
                "generation",
                "The generation of that sandbox that it runs in; before that, the one that was asked for.",
                generator.subschema_for::<Option<u64>>(),
            ),
            (
                "restarted",
                "Whether it started that generation in place of an earlier one, whose processes are \
                 gone; null before its run, and without a kept sandbox.",
                generator.subschema_for::<Option<bool>>(),
            ),
            (
                "exit_code",
                "The exit code; null before the end, and of a command that a signal ended.",
                generator.subschema_for::<Option<u8>>(),
            ),
        ];
        let mut schema = D::json_schema(generator);
        let object = schema.ensure_object();
        for (name, description, mut member) in members {
            member.insert("description".to_owned(), description.into());
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                properties.insert(name.to_owned(), member.into());
            }
            match object.get_mut("required") {
                Some(Value::Array(required)) if !required.contains(&name.into()) => {
                    required.push(name.into());
                }
                _ => {}
            }
        }
        schema
    }
}

impl JsonSchema for Execution {
    fn schema_name() -> Cow<'static, str> {
        "Execution".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let script = generator.subschema_for::<OfKind<ResultDocument>>();
        let command = generator.subschema_for::<OfKind<ExecDocument>>();
        json_schema!({
            "description": "An execution: the members of its result document, which are null or \
                empty before its end, and more.",
            "oneOf": [script, command],
        })
    }
}

impl<'de> Deserialize<'de> for Execution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut members = Map::deserialize(deserializer)?;
        let mut beside =
            |name: &'static str| members.remove(name).ok_or_else(|| D::Error::missing_field(name));
        let created_at = from_value::<_, D>(beside("created_at")?)?;
        let started_at = from_value::<_, D>(beside("started_at")?)?;
        let ended_at = from_value::<_, D>(beside("ended_at")?)?;
        let metadata = from_value::<_, D>(beside("metadata")?)?;
        let sandbox = from_value::<_, D>(beside("sandbox")?)?;
        // A server from before them gives none.
        let generation = members.remove("generation").map_or(Ok(None), from_value::<_, D>)?;
        let restarted = members.remove("restarted").map_or(Ok(None), from_value::<_, D>)?;
        let member = |name: &'static str| {
            members.get(name).cloned().ok_or_else(|| D::Error::missing_field(name))
        };
        let status: ExecutionState = from_value::<_, D>(member("status")?)?;
        let id = from_value::<_, D>(member("id")?)?;
        let schema = member("schema")?;
        let kind = if ExecSchema::deserialize(&schema).is_ok() {
            ExecutionKind::Command
        } else {
            from_value::<ResultSchema, D>(schema)?;
            ExecutionKind::Script
        };
        let summary = ExecutionSummary {
            id,
            kind,
            status,
            created_at,
            started_at,
            ended_at,
            metadata,
            sandbox,
            generation,
            restarted,
            image: None,
            subject: None,
        };
        let document = match status {
            ExecutionState::Queued | ExecutionState::Running => None,
            ExecutionState::Ended(_) => Some(from_value::<_, D>(members.into())?),
        };
        Ok(Self { summary, document })
    }
}

fn from_value<'de, T: serde::de::DeserializeOwned, D: Deserializer<'de>>(
    value: Value,
) -> Result<T, D::Error> {
    serde_json::from_value(value).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::DocumentBody;

    #[test]
    fn every_state_has_its_name() {
        for state in ExecutionState::all() {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(
                serde_json::from_value::<ExecutionState>(state.as_str().into()).unwrap(),
                state
            );
        }
        for status in Status::ALL {
            assert!(ExecutionState::all().any(|state| state == ExecutionState::Ended(status)));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        assert_eq!("done".parse::<ExecutionState>(), Err("unknown state 'done'".to_owned()));
    }

    #[test]
    fn process_that_forwards_a_command_ends_as_the_command_did() {
        let document = |status, exit_code, signal| {
            let error = Failure::new(ErrorKind::Timeout, "", None);
            let mut document = ExecutionDocument::failed(ExecutionKind::Command, error, 1);
            document.status = status;
            if let DocumentBody::Command(body) = &mut document.body {
                (body.exit_code, body.signal) = (exit_code, signal);
            }
            document.process_exit_code()
        };
        assert_eq!(document(Status::Ok, Some(0), None), 0);
        assert_eq!(document(Status::Exit, Some(7), None), 7);
        assert_eq!(document(Status::Exit, None, Some(15)), 143);
        assert_eq!(document(Status::Timeout, None, Some(9)), 124);
    }
}
