//! Executions as a service gives them.

use std::borrow::Cow;
use std::marker::PhantomData;

use sandbox_protocol::ErrorKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::time::Time;
use crate::document::{ExecDocument, ExecSchema, ResultDocument, ResultSchema};
use crate::failure::Failure;
use crate::outcome::Status;

/// The state of an execution: it waits, it runs, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionStatus {
    /// It waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// The script returned, or the command ended with code 0.
    Ok,
    /// An uncaught error, a syntax error, or a result that is not JSON.
    ScriptError,
    /// The command ended with another code, or by a signal.
    Exit,
    /// An uncaught limit error, or a kill because of a limit.
    Limit,
    /// The deadline.
    Timeout,
    /// A caller cancelled it.
    Cancelled,
    /// It was killed, and not by its caller.
    Killed,
    /// The agent broke the protocol or disappeared.
    AgentLost,
    /// The service or the engine failed.
    Error,
}

impl ExecutionStatus {
    /// Every state.
    pub const ALL: &[Self] = &[
        Self::Queued,
        Self::Running,
        Self::Ok,
        Self::ScriptError,
        Self::Exit,
        Self::Limit,
        Self::Timeout,
        Self::Cancelled,
        Self::Killed,
        Self::AgentLost,
        Self::Error,
    ];

    /// How it ended; `None` before its end.
    #[must_use]
    pub const fn ended(self) -> Option<Status> {
        Some(match self {
            Self::Queued | Self::Running => return None,
            Self::Ok => Status::Ok,
            Self::ScriptError => Status::ScriptError,
            Self::Exit => Status::Exit,
            Self::Limit => Status::Limit,
            Self::Timeout => Status::Timeout,
            Self::Cancelled => Status::Cancelled,
            Self::Killed => Status::Killed,
            Self::AgentLost => Status::AgentLost,
            Self::Error => Status::Error,
        })
    }

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ok => "ok",
            Self::ScriptError => "script_error",
            Self::Exit => "exit",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::AgentLost => "agent_lost",
            Self::Error => "error",
        }
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|status| status.as_str() == name)
    }
}

impl From<Status> for ExecutionStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => Self::Ok,
            Status::ScriptError => Self::ScriptError,
            Status::Exit => Self::Exit,
            Status::Limit => Self::Limit,
            Status::Timeout => Self::Timeout,
            Status::Cancelled => Self::Cancelled,
            Status::Killed => Self::Killed,
            Status::AgentLost => Self::AgentLost,
            Status::Error => Self::Error,
        }
    }
}

impl std::fmt::Display for ExecutionStatus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// What an execution runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionKind {
    /// A script: its result is a `sandboxctl.result/1`.
    Script,
    /// A command: its result is a `sandboxctl.exec/1`.
    Command,
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
    pub status: ExecutionStatus,
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
}

/// The answer to a request that was accepted and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptedExecution {
    /// Its id.
    pub id: String,
    /// Its state.
    pub status: ExecutionStatus,
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
    pub document: Option<ExecutionDocuments>,
}

/// A result document of either kind.
#[derive(Debug, Clone)]
pub enum ExecutionDocuments {
    /// A script's.
    Script(Box<ResultDocument<'static>>),
    /// A command's.
    Command(Box<ExecDocument<'static>>),
}

impl ExecutionDocuments {
    /// Reads a document of this kind.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn from_json(kind: ExecutionKind, json: &str) -> serde_json::Result<Self> {
        Ok(match kind {
            ExecutionKind::Script => Self::Script(serde_json::from_str(json)?),
            ExecutionKind::Command => Self::Command(serde_json::from_str(json)?),
        })
    }

    /// The document of an execution that did not run, or whose end nobody saw.
    #[must_use]
    pub fn failed(kind: ExecutionKind, id: &str, status: Status, error: Failure) -> Self {
        let exit_code = match status {
            // As of outcomes: whatever the kind of the error says.
            Status::Killed => crate::exit_code(ErrorKind::Killed),
            _ => crate::exit_code(error.kind),
        };
        let id = Some(Cow::Owned(id.to_owned()));
        match kind {
            ExecutionKind::Script => {
                let document = ResultDocument::failed(error, exit_code);
                Self::Script(Box::new(ResultDocument { id, status, ..document }))
            }
            ExecutionKind::Command => {
                Self::Command(Box::new(ExecDocument { id, status, ..ExecDocument::failed(error) }))
            }
        }
    }

    /// How it ended.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Script(document) => document.status,
            Self::Command(document) => document.status,
        }
    }

    /// Why it failed.
    #[must_use]
    pub const fn error(&self) -> Option<&Failure> {
        match self {
            Self::Script(document) => document.execution.error.as_ref(),
            Self::Command(document) => document.execution.error.as_ref(),
        }
    }

    /// The exit code of a process that forwards the result.
    #[must_use]
    pub fn process_exit_code(&self) -> u8 {
        match self {
            Self::Script(document) => document.exit_code,
            Self::Command(document) => match (document.status, document.exit_code, document.signal)
            {
                (Status::Ok, _, _) => 0,
                (Status::Exit, Some(code), _) => u8::try_from(code).unwrap_or(1),
                (Status::Exit, None, Some(signal)) => {
                    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
                }
                (status, _, _) => match &document.execution.error {
                    Some(error) => crate::exit_code(error.kind),
                    None if status == Status::Cancelled => crate::exit_code(ErrorKind::Cancelled),
                    None => crate::exit_code(ErrorKind::Internal),
                },
            },
        }
    }

    /// As `--json` prints it.
    ///
    /// # Errors
    ///
    /// As of `serde_json`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        match self {
            Self::Script(document) => serde_json::to_string(document),
            Self::Command(document) => serde_json::to_string(document),
        }
    }
}

/// The members beside those of the document.
#[derive(Serialize)]
struct Beside<'a, D> {
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
        let summary = &self.summary;
        match &self.document {
            Some(ExecutionDocuments::Script(document)) => {
                summary.beside(document).serialize(serializer)
            }
            Some(ExecutionDocuments::Command(document)) => {
                summary.beside(document).serialize(serializer)
            }
            None => {
                let document = summary.pending_document().map_err(S::Error::custom)?;
                summary.beside(document).serialize(serializer)
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
        let members = serde_json::to_string(&self.beside(Map::new()))?;
        json.truncate(json.trim_end().len());
        match (json.pop(), members.strip_prefix('{')) {
            (Some('}'), Some(members)) if json.len() > 1 => {
                json.push(',');
                json.push_str(members);
                Ok(json)
            }
            _ => Err(<serde_json::Error as serde::ser::Error>::custom("the document is no object")),
        }
    }

    const fn beside<D>(&self, document: D) -> Beside<'_, D> {
        Beside {
            document,
            created_at: self.created_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            metadata: &self.metadata,
            sandbox: match &self.sandbox {
                Some(sandbox) => Some(sandbox.as_str()),
                None => None,
            },
            generation: self.generation,
            restarted: self.restarted,
        }
    }

    /// The members of the document, null or empty.
    fn pending_document(&self) -> serde_json::Result<Map<String, Value>> {
        let nothing = Failure::new(ErrorKind::Internal, "", None);
        let empty = ExecutionDocuments::failed(self.kind, &self.id, Status::Error, nothing);
        let mut members = match empty {
            ExecutionDocuments::Script(document) => serde_json::to_value(document)?,
            ExecutionDocuments::Command(document) => serde_json::to_value(document)?,
        };
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
            ("status", "Its state.", generator.subschema_for::<ExecutionStatus>()),
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
        let script = generator.subschema_for::<OfKind<ResultDocument<'static>>>();
        let command = generator.subschema_for::<OfKind<ExecDocument<'static>>>();
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
        let status: ExecutionStatus = from_value::<_, D>(member("status")?)?;
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
        };
        let document = match (status.ended(), kind) {
            (None, _) => None,
            (Some(_), ExecutionKind::Script) => {
                Some(ExecutionDocuments::Script(from_value::<_, D>(members.into())?))
            }
            (Some(_), ExecutionKind::Command) => {
                Some(ExecutionDocuments::Command(from_value::<_, D>(members.into())?))
            }
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

    fn summary(kind: ExecutionKind, status: ExecutionStatus) -> ExecutionSummary {
        ExecutionSummary {
            id: "e1".to_owned(),
            kind,
            status,
            created_at: Time::from_unix_millis(0),
            started_at: None,
            ended_at: None,
            metadata: Map::from_iter([("step".to_owned(), 3.into())]),
            sandbox: None,
            generation: None,
            restarted: None,
        }
    }

    #[test]
    fn execution_has_the_members_of_its_document_before_its_end_too() {
        for kind in [ExecutionKind::Script, ExecutionKind::Command] {
            let error = Failure::new(ErrorKind::Engine, "gone", None);
            let document = ExecutionDocuments::failed(kind, "e1", Status::Error, error);
            let plain: Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
            let ended = Execution {
                summary: summary(kind, ExecutionStatus::Error),
                document: Some(document),
            };
            let queued =
                Execution { summary: summary(kind, ExecutionStatus::Queued), document: None };
            let (ended, queued) =
                (serde_json::to_value(&ended).unwrap(), serde_json::to_value(&queued).unwrap());
            for (name, value) in plain.as_object().unwrap() {
                assert_eq!(&ended[name], value, "{name}");
                assert!(queued.get(name).is_some(), "{name}");
            }
            assert_eq!((&ended["id"], &ended["status"]), (&"e1".into(), &"error".into()));
            assert_eq!(queued["status"], "queued");
            assert_eq!((&queued["exit_code"], &queued["error"]), (&Value::Null, &Value::Null));
            for json in [ended, queued] {
                let back: Execution = serde_json::from_value(json.clone()).unwrap();
                assert_eq!(back.summary.kind, kind);
                assert_eq!(serde_json::to_value(&back).unwrap(), json);
                let schema = jsonschema::draft202012::new(&crate::schema::answer::<Execution>());
                let errors: Vec<String> =
                    schema.unwrap().iter_errors(&json).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "{json}: {errors:?}");
            }
        }
    }

    #[test]
    fn stored_document_is_sent_as_it_is() {
        for kind in [ExecutionKind::Script, ExecutionKind::Command] {
            let error = Failure::new(ErrorKind::Engine, "gone", None);
            let document = ExecutionDocuments::failed(kind, "e1", Status::Error, error);
            let stored = document.to_json().unwrap();
            let summary = summary(kind, ExecutionStatus::Error);
            let json = summary.clone().to_json_with(Some(stored)).unwrap();
            let read = Execution { summary: summary.clone(), document: Some(document) };
            assert_eq!(json, serde_json::to_string(&read).unwrap());
            for broken in ["", "{}", "{\"a\":1", "[]"] {
                assert!(summary.clone().to_json_with(Some(broken.to_owned())).is_err(), "{broken}");
            }
        }
    }

    #[test]
    fn every_state_has_its_name() {
        for &status in ExecutionStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(ExecutionStatus::from_name(status.as_str()), Some(status));
            if let Some(ended) = status.ended() {
                assert_eq!(ExecutionStatus::from(ended), status);
            }
        }
        assert_eq!(ExecutionStatus::from_name("done"), None);
    }

    #[test]
    fn process_that_forwards_a_command_ends_as_the_command_did() {
        let document = |status, exit_code, signal| {
            let error = Failure::new(ErrorKind::Timeout, "", None);
            let document = ExecDocument::failed(error);
            let document = ExecDocument { status, exit_code, signal, ..document };
            ExecutionDocuments::Command(Box::new(document)).process_exit_code()
        };
        assert_eq!(document(Status::Ok, Some(0), None), 0);
        assert_eq!(document(Status::Exit, Some(7), None), 7);
        assert_eq!(document(Status::Exit, None, Some(15)), 143);
        assert_eq!(document(Status::Timeout, None, Some(9)), 124);
    }
}
