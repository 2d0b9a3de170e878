//! Secrets in what is reported of a script or a command.

use std::borrow::Cow;

use sandbox_api::changes::Changes;
use sandbox_api::{ExecutionResult, Failure, FilesTouched, Network, Note, Outcome, ScriptError};
use sandbox_protocol::WireString;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::{Finished, Redactions};

impl Redactions {
    /// Replaces the secrets in how a run ended.
    pub fn outcome(&self, outcome: &mut Outcome) {
        let patterns = self.finished();
        match outcome {
            Outcome::Ok { result } => json(&patterns, result),
            Outcome::ScriptError(error) | Outcome::Limit(error) | Outcome::Timeout(error) => {
                script_error(&patterns, error);
            }
            Outcome::AgentLost { detail } => patterns.text(detail),
            Outcome::Error { failure, .. } => {
                let Failure { message, traceback, value: raised, hint, .. } = failure;
                patterns.text(message);
                traceback.iter_mut().chain(hint).for_each(|text| patterns.text(text));
                raised.iter_mut().for_each(|raised| value(&patterns, raised));
            }
            Outcome::Cancelled { .. } | Outcome::Killed { .. } | Outcome::Exit(_) => {}
        }
    }

    /// Replaces the secrets in the names of files. Names that become equal stay apart.
    pub fn files(&self, touched: &mut FilesTouched) {
        let patterns = self.finished();
        touched.files.iter_mut().for_each(|file| name(&patterns, &mut file.name));
    }

    /// Replaces the secrets in the names of what changed, and in where links lead.
    pub fn changes(&self, changes: &mut Changes) {
        let patterns = self.finished();
        changes.conflicts.iter_mut().for_each(|path| patterns.text(path));
        for change in &mut changes.manifest.changes {
            name(&patterns, &mut change.path);
            let texts = [&mut change.target, &mut change.from];
            texts.into_iter().flatten().for_each(|text| patterns.text(text));
        }
    }

    /// Replaces the secrets in the names of hosts, and in the rules that would allow them.
    pub fn network(&self, network: &mut Network) {
        let replace = |text: &mut String| self.text(text);
        network.contacted.iter_mut().for_each(|it| replace(&mut it.host));
        for refused in &mut network.refused {
            replace(&mut refused.host);
            replace(&mut refused.reason);
            refused.allow.iter_mut().for_each(replace);
        }
        network.unreached.iter_mut().for_each(replace);
    }

    /// Replaces the secrets in everything that a guest can have written into a result, beside what
    /// was replaced as it came.
    pub fn result(&self, result: &mut ExecutionResult) {
        self.outcome(&mut result.outcome);
        self.files(&mut result.files_touched);
        result.network.iter_mut().for_each(|network| self.network(network));
        self.notes(&mut result.notes);
    }

    /// Replaces the secrets in notes, which name processes and hosts.
    pub fn notes(&self, notes: &mut [Note]) {
        let patterns = self.finished();
        for note in notes {
            patterns.text(&mut note.message);
            note.hint.iter_mut().for_each(|hint| patterns.text(hint));
        }
    }
}

fn name(patterns: &Finished, name: &mut WireString) {
    if let Cow::Owned(replaced) = patterns.bytes(name.as_bytes()) {
        *name = replaced.into();
    }
}

fn script_error(patterns: &Finished, error: &mut ScriptError) {
    patterns.text(&mut error.message);
    error.traceback.iter_mut().for_each(|text| patterns.text(text));
    error.value.iter_mut().for_each(|raised| value(patterns, raised));
}

/// JSON stays JSON, and what holds no secret keeps its text.
fn json(patterns: &Finished, result: &mut Box<RawValue>) {
    let Ok(parsed) = serde_json::from_str::<Value>(result.get()) else { return };
    let mut replaced = parsed.clone();
    value(patterns, &mut replaced);
    if replaced != parsed
        && let Ok(raw) = serde_json::value::to_raw_value(&replaced)
    {
        *result = raw;
    }
}

/// A number in which a secret stands becomes a string. Keys that become equal get a number.
fn value(patterns: &Finished, at: &mut Value) {
    match at {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => {
            let written = number.to_string();
            let mut text = written.clone();
            patterns.text(&mut text);
            if text != written {
                *at = Value::String(text);
            }
        }
        Value::String(text) => patterns.text(text),
        Value::Array(items) => items.iter_mut().for_each(|item| value(patterns, item)),
        Value::Object(members) => {
            let mut replaced = Map::new();
            for (mut key, mut member) in std::mem::take(members) {
                patterns.text(&mut key);
                value(patterns, &mut member);
                let mut unique = key.clone();
                let mut number = 2;
                while replaced.contains_key(&unique) {
                    unique = format!("{key} ({number})");
                    number += 1;
                }
                replaced.insert(unique, member);
            }
            *members = replaced;
        }
    }
}
