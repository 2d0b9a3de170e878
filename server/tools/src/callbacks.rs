//! Functions of the program that calls these tools, which its scripts may call: lines to it, and its
//! answers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sandbox_api::{HostTool, ToolEffect, ToolRule};
use sandbox_controller::host_tools::{
    Destructive, HostAnswer, HostToolError, HostTools, ToolGrant,
};
use sandbox_protocol::limits::MAX_TOOL_VALUE_BYTES;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::error::ToolError;
use crate::lock;

/// Most functions of one script.
const MAX_TOOLS: usize = 1000;
/// Lines that wait to be written. Each script that runs has one at most.
const MAX_LINES: usize = 64;

/// The calls of the program's functions.
#[derive(Debug, Default)]
pub struct Callbacks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// To the program; none unless it reads lines.
    lines: Option<mpsc::Sender<Vec<u8>>>,
    last_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
}

type Answer = Result<HostAnswer, HostToolError>;

/// The answer to a call, as the program writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallAnswer {
    id: u64,
    /// Null is a value too.
    #[serde(default, deserialize_with = "present")]
    value: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<String>,
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl Callbacks {
    /// From now on calls are lines, which are received here.
    pub(super) fn open(&self) -> mpsc::Receiver<Vec<u8>> {
        let (lines, received) = mpsc::channel(MAX_LINES);
        lock(&self.0).lines = Some(lines);
        received
    }

    /// No answer comes any more: calls fail.
    pub(super) fn close(&self) {
        *lock(&self.0) = State::default();
    }

    /// Whether a call waits for its answer.
    pub(super) fn is_waiting(&self) -> bool {
        !lock(&self.0).waiting.is_empty()
    }

    /// Delivers an answer. One that no call waits for any more is dropped.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(super) fn answer(&self, answer: CallAnswer) -> Result<(), &'static str> {
        let CallAnswer { id, value, error } = answer;
        let answer = match (value, error) {
            (Some(value), None) if value.get().len() > MAX_TOOL_VALUE_BYTES => {
                Err(HostToolError::TooLarge)
            }
            (Some(value), None) => match serde_json::from_str(value.get()) {
                Ok(value) => Ok(HostAnswer { value, files: Vec::new() }),
                Err(_) => return Err("its value is nested too deeply"),
            },
            (None, Some(error)) => Err(HostToolError::Failed(error)),
            _ => return Err("it has either a value or an error"),
        };
        if let Some(waiting) = lock(&self.0).waiting.remove(&id) {
            // The script may have ended.
            _ = waiting.send(answer);
        }
        Ok(())
    }

    /// What a script is given that may call these functions.
    pub(super) fn grant(
        self: &Arc<Self>,
        tool: &str,
        functions: Vec<HostTool>,
    ) -> Result<ToolGrant, ToolError> {
        let refuse = |why: String| ToolError::invalid(format!("{tool}: `tools`: {why}"));
        if lock(&self.0).lines.is_none() {
            let why = "only with `tools --stdio` can this program be called".to_owned();
            return Err(refuse(why));
        }
        if functions.len() > MAX_TOOLS {
            return Err(refuse(format!("there are more than {MAX_TOOLS}")));
        }
        let mut names = HashSet::new();
        for HostTool { name, .. } in &functions {
            HostTool::check_name(name).map_err(|why| refuse(format!("'{name}': {why}")))?;
            if !names.insert(name) {
                return Err(refuse(format!("'{name}' is there twice")));
            }
        }
        let functions = Functions { functions: functions.into(), callbacks: self.clone() };
        Ok(ToolGrant {
            // The program has chosen them for this script.
            rules: vec![ToolRule::all()],
            destructive: Destructive::Allowed,
            ..ToolGrant::new(Arc::new(functions))
        })
    }
}

/// The functions that one script may call.
#[derive(Debug)]
struct Functions {
    functions: Arc<[HostTool]>,
    callbacks: Arc<Callbacks>,
}

#[async_trait]
impl HostTools for Functions {
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        Ok(self.functions.clone())
    }

    async fn call(&self, tool: &str, arguments: Map<String, Value>, _: ToolEffect) -> Answer {
        let gone = || HostToolError::Unavailable("the program answers no calls".to_owned());
        let (sender, answer) = oneshot::channel();
        let (lines, waiter) = {
            let mut state = lock(&self.callbacks.0);
            let lines = state.lines.clone().ok_or_else(gone)?;
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, sender);
            (lines, Waiter { callbacks: &self.callbacks, id })
        };
        let call = json!({ "id": waiter.id, "tool": tool, "arguments": arguments });
        let line = format!("{}\n", json!({ "call": call }));
        lines.send(line.into_bytes()).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// A call that waits for its answer. However it ends, nothing is left of it.
struct Waiter<'a> {
    callbacks: &'a Callbacks,
    id: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.callbacks.0).waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_functions_have_two_names() {
        let callbacks = Arc::new(Callbacks::default());
        let _lines = callbacks.open();
        let refused = |names: &[&str]| {
            let functions = names.iter().map(|name| json!({ "name": name }));
            let functions = functions.map(|it| serde_json::from_value(it).unwrap()).collect();
            callbacks.grant("t", functions).err().map(|error| error.message)
        };
        assert_eq!(refused(&["a.b", "a.c"]), None);
        let error = refused(&["a.b", "a.c", "a.b"]).unwrap();
        assert!(error.contains("`tools`: 'a.b' is there twice"), "{error}");
    }
}
