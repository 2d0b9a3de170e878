//! Calls about watched directories: streams of what changes, and watchers that are asked for it.

use std::collections::VecDeque;

use futures_util::{StreamExt as _, stream};
use sandbox_api::{FileChange, WatchRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::watchers::{Event, Watched, path_of};
use crate::connect::json::or_default;
use crate::connect::{Bounds, ConnectError, Messages, after, bounded, to_json};

/// Of all calls, each of which has some of these.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    #[serde(deserialize_with = "or_default")]
    path: String,
    #[serde(deserialize_with = "or_default")]
    recursive: bool,
    #[serde(deserialize_with = "or_default", alias = "include_entry")]
    include_entry: bool,
    #[serde(deserialize_with = "or_default", alias = "watcher_id")]
    watcher_id: String,
}

impl Call {
    async fn begin_watch(&self, asked: &Asked) -> Result<Watched, ConnectError> {
        let root = self.resolve(&asked.path)?;
        let request = WatchRequest { path: (&*root).into(), recursive: asked.recursive };
        let watch = self.service().watch_files(&self.subject, &self.sandbox, request).await?;
        let sandbox = self.sandbox.id.clone();
        Ok(self.watchers.watched(watch, sandbox, root, asked.include_entry))
    }

    pub(super) async fn watch_dir(
        self,
        asked: Asked,
        bounds: Bounds,
    ) -> Result<Messages, ConnectError> {
        let stop = self.app.stop().clone();
        let watched = self.begin_watch(&asked).await?;
        let watching = Watching { call: self, watched, waiting: VecDeque::new() };
        let rest = stream::try_unfold(watching, |mut watching| async move {
            let message = watching.next().await?;
            message.map(|message| Ok((to_json(&message)?, watching))).transpose()
        });
        let rest = bounded(rest.boxed(), bounds, stop, br#"{"keepalive":{}}"#);
        Ok(after(to_json(&json!({ "start": {} }))?, rest))
    }

    pub(super) async fn create_watcher(self, asked: Asked) -> Result<Value, ConnectError> {
        self.watchers.make_room(&self.sandbox.id)?;
        let watched = self.begin_watch(&asked).await?;
        Ok(json!({ "watcherId": self.watchers.add(watched) }))
    }

    pub(super) async fn watcher_events(self, asked: Asked) -> Result<Value, ConnectError> {
        let watcher = self.watchers.find(&self.sandbox.id, &asked.watcher_id)?;
        let mut watcher = watcher.lock().await;
        let events = watcher.take().await?;
        let root = watcher.watched().root.clone();
        let has_entries = watcher.watched().has_entries;
        drop(watcher);
        let mut messages = Vec::with_capacity(events.len());
        for event in events {
            messages.push(self.message(&root, has_entries, event).await);
        }
        Ok(json!({ "events": messages }))
    }

    pub(super) async fn remove_watcher(self, asked: Asked) -> Result<Value, ConnectError> {
        self.watchers.remove(&self.sandbox.id, &asked.watcher_id)?;
        Ok(json!({}))
    }

    /// An event as a message, with the entry if that was asked for and is there.
    async fn message(&self, root: &str, has_entries: bool, event: Event) -> Value {
        let Event { name, change } = event;
        let (kind, may_have_entry) = match change {
            FileChange::Create => ("EVENT_TYPE_CREATE", true),
            FileChange::Write => ("EVENT_TYPE_WRITE", true),
            FileChange::Remove => ("EVENT_TYPE_REMOVE", false),
            FileChange::Rename => ("EVENT_TYPE_RENAME", false),
            FileChange::Chmod => ("EVENT_TYPE_CHMOD", true),
        };
        let path = path_of(root, &name);
        let mut message = json!({ "name": name, "type": kind });
        if has_entries
            && may_have_entry
            && let Ok(found) = self.stat(&path).await
        {
            message["entry"] = self.entry(&path, found).await;
        }
        message
    }
}

/// A stream of what changes.
struct Watching {
    call: Call,
    watched: Watched,
    waiting: VecDeque<Event>,
}

impl Watching {
    async fn next(&mut self) -> Result<Option<Value>, ConnectError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                let (root, has_entries) = (self.watched.root.clone(), self.watched.has_entries);
                let message = self.call.message(&root, has_entries, event).await;
                return Ok(Some(json!({ "filesystem": message })));
            }
            match self.watched.next().await {
                Some(Ok(record)) => self.waiting.extend(self.watched.events(record)?),
                Some(Err(_)) if !self.call.has_sandbox().await => {
                    return Err(ConnectError::killed());
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(None),
            }
        }
    }
}
