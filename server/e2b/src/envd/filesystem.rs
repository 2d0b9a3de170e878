//! `filesystem.Filesystem`: entries of a sandbox's file system, and its watches.

mod kernel;

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use sandbox_api::ErrorKind;
use sandbox_api::operation::{
    self, EntryKind, List, Mkdir, OperationRequest, Remove, Rename, Stat, Symlink,
};
use sandbox_dirfd::random_hex;
use sandbox_service::ServiceError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::paths::{is_kernels, name_of, target_of};
use super::{Call, unimplemented};
use crate::connect::json::{Number, or_default};
use crate::connect::{Code, ConnectError, server_stream, unary};
use crate::error::Error;

/// What the keys of E2B's metadata begin with.
const METADATA: &str = "e2b.";

/// Of all calls, each of which has some of these.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    #[serde(deserialize_with = "or_default")]
    path: String,
    #[serde(deserialize_with = "or_default")]
    source: String,
    #[serde(deserialize_with = "or_default")]
    destination: String,
    #[serde(deserialize_with = "or_default")]
    depth: Number,
}

pub(super) async fn call(
    method: Result<Path<String>, PathRejection>,
    call: Call,
    request: Request,
) -> Result<Response, Error> {
    let Path(method) = method?;
    Ok(match &*method {
        "Stat" => unary(request, |it| call.stat_call(it)).await,
        "MakeDir" => unary(request, |it| call.make_dir(it)).await,
        "Move" => unary(request, |it| call.rename(it)).await,
        "ListDir" => unary(request, |it| call.list_dir(it)).await,
        "Remove" => unary(request, |it| call.remove(it)).await,
        "WatchDir" => server_stream(request, |it, bounds| call.watch_dir(it, bounds)).await,
        "CreateWatcher" => unary(request, |it| call.create_watcher(it)).await,
        "GetWatcherEvents" => unary(request, |it| call.watcher_events(it)).await,
        "RemoveWatcher" => unary(request, |it| call.remove_watcher(it)).await,
        _ => unimplemented("filesystem.Filesystem", &method).into_response(),
    })
}

/// An entry as the service describes it; what it does not say is left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    path: String,
    #[serde(rename = "type")]
    kind: Option<EntryKind>,
    pub(super) size: u64,
    modified: Option<String>,
    permissions: String,
    mode: String,
    owner: String,
    group: String,
    target: Option<String>,
    metadata: BTreeMap<String, String>,
    /// Of an entry of a list: the members from `permissions` on.
    details: Option<Box<Found>>,
}

impl Found {
    pub(super) fn kind(&self) -> EntryKind {
        self.kind.unwrap_or(EntryKind::Other)
    }

    /// Its permissions: nine bits.
    fn bits(&self) -> u32 {
        u32::from_str_radix(&self.mode, 8).unwrap_or(0) & 0o777
    }

    /// An entry of a list as if it had been asked for alone.
    fn alone(mut self) -> Self {
        match self.details.take() {
            Some(details) => {
                let Self { path, kind, size, modified, .. } = self;
                Self { path, kind, size, modified, ..*details }
            }
            None => self,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    path: String,
    entries: Vec<Found>,
    truncated: bool,
    note: Option<String>,
}

impl Call {
    /// Performs a file operation.
    pub(super) async fn perform<T: DeserializeOwned>(
        &self,
        operation: impl Into<OperationRequest>,
    ) -> Result<T, ServiceError> {
        let operation = operation.into();
        let done = self.service().perform(&self.subject, &self.sandbox, operation).await?;
        let json = done.value.into_result().map_err(ServiceError::sandbox)?;
        let unreadable = |_| ServiceError::internal("the result of an operation cannot be read");
        serde_json::from_str(json.get()).map_err(unreadable)
    }

    pub(super) fn resolve(&self, written: &str) -> Result<String, ConnectError> {
        self.user.resolve(written).map_err(ConnectError::invalid)
    }

    /// What is at a path, where a link is what it is.
    pub(super) async fn stat(&self, path: &str) -> Result<Found, ServiceError> {
        self.perform(Stat::new(path)).await
    }

    /// What is at a path, or where a link there leads.
    pub(super) async fn stat_followed(&self, path: &str) -> Result<Found, ServiceError> {
        self.perform(Stat { follow: true, ..Stat::new(path) }).await
    }

    /// An entry as E2B's clients know it. Of a link, type and mode are those of what it leads to.
    pub(super) async fn entry(&self, path: &str, found: Found) -> Value {
        let target = match found.kind() {
            EntryKind::Symlink => self.stat_followed(path).await.ok(),
            _ => None,
        };
        entry_json(path, &found, target.as_ref())
    }

    async fn entry_at(&self, path: &str) -> Result<Value, ConnectError> {
        let entry = match self.stat(path).await {
            Err(error) if is_kernels(path, &error) => self.kernels(path, 0).await?.swap_remove(0),
            found => self.entry(path, found?).await,
        };
        Ok(json!({ "entry": entry }))
    }

    async fn stat_call(self, asked: Asked) -> Result<Value, ConnectError> {
        self.entry_at(&self.resolve(&asked.path)?).await
    }

    async fn make_dir(self, asked: Asked) -> Result<Value, ConnectError> {
        let path = self.resolve(&asked.path)?;
        #[derive(Deserialize)]
        struct Made {
            created: bool,
        }
        match self.perform::<Made>(Mkdir::new(&*path)).await {
            Ok(Made { created: true }) => self.entry_at(&path).await,
            Ok(Made { created: false }) => {
                let message = format!("directory already exists: {path}");
                Err(ConnectError::new(Code::AlreadyExists, message))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message = format!("path already exists but it is not a directory: {path}");
                Err(ConnectError::invalid(message))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn rename(self, asked: Asked) -> Result<Value, ConnectError> {
        let (from, to) = (self.resolve(&asked.source)?, self.resolve(&asked.destination)?);
        let rename = Rename { overwrite: true, parents: true, ..Rename::new(&*from, &*to) };
        match self.perform::<Value>(rename).await {
            // Between two file systems, as those of the home and of `/tmp` are.
            Err(error) if error.kind() == ErrorKind::InvalidRequest => {
                let (call, to) = (self.clone(), to.clone());
                // A client that goes away leaves nothing half done.
                let moving = tokio::spawn(async move { call.move_by_copy(&from, &to).await });
                let lost = |_| ConnectError::new(Code::Internal, "the move has failed");
                moving.await.map_err(lost)??;
            }
            moved => drop(moved?),
        }
        self.entry_at(&to).await
    }

    /// Copies to a name beside the new one, which the copy then takes, and removes what was copied.
    async fn move_by_copy(&self, from: &str, to: &str) -> Result<(), ConnectError> {
        let (parent, _) = to.rsplit_once('/').unwrap_or_default();
        let beside = format!("{parent}/.e2b-move-{}", random_hex::<16>());
        let remove = |path: &str| Remove { recursive: true, force: true, ..Remove::new(path) };
        let copying = async {
            // What cannot be removed from its place is refused before it is copied.
            let stay = Rename { overwrite: true, ..Rename::new(from, from) };
            let _: Value = self.perform(stay).await?;
            let _: Value = match self.stat(from).await?.target {
                Some(target) => self.perform(Symlink::new(&*beside, &*target)).await?,
                None => {
                    let copy = operation::Copy::new(from, &*beside);
                    self.perform(operation::Copy { recursive: true, ..copy }).await?
                }
            };
            let rename = Rename { overwrite: true, ..Rename::new(&*beside, to) };
            self.perform::<Value>(rename).await
        };
        if let Err(error) = copying.await {
            // What was copied of it, if anything.
            _ = self.perform::<Value>(remove(&beside)).await;
            let doing = "it cannot be copied to another file system";
            return Err(ConnectError::from(error).preceded_by(doing));
        }
        let kept = |error: ServiceError| {
            ConnectError::from(error).preceded_by("it was copied, and is not removed")
        };
        self.perform::<Value>(remove(from)).await.map(drop).map_err(kept)
    }

    async fn list_dir(self, asked: Asked) -> Result<Value, ConnectError> {
        let path = self.resolve(&asked.path)?;
        let depth = asked.depth.0.max(1);
        let list = List {
            recursive: depth > 1,
            max_depth: Some(u64::from(depth)).filter(|_| depth > 1),
            details: true,
            ..List::new(&*path)
        };
        let listed: Listed = match self.perform(list).await {
            Err(error) if is_kernels(&path, &error) => {
                let mut entries = self.kernels(&path, depth).await?;
                if entries.remove(0)["type"] != "FILE_TYPE_DIRECTORY" {
                    return Err(ConnectError::invalid(format!("path is not a directory: {path}")));
                }
                return Ok(json!({ "entries": entries }));
            }
            listed => listed?,
        };
        if listed.truncated {
            let note = listed.note.unwrap_or_else(|| "there are too many entries".to_owned());
            return Err(ConnectError::new(Code::FailedPrecondition, note));
        }
        let mut entries = Vec::with_capacity(listed.entries.len());
        for found in listed.entries {
            let asked = shown(&path, &listed.path, &found.path);
            entries.push(self.entry(&asked, found.alone()).await);
        }
        Ok(json!({ "entries": entries }))
    }

    async fn remove(self, asked: Asked) -> Result<Value, ConnectError> {
        let path = self.resolve(&asked.path)?;
        let remove = Remove { recursive: true, force: true, ..Remove::new(&*path) };
        let _: Value = self.perform(remove).await?;
        Ok(json!({}))
    }
}

/// The path of an entry below the path that was asked for: `listed` is where that leads.
fn shown(asked: &str, listed: &str, entry: &str) -> String {
    match entry.strip_prefix(listed) {
        Some(below) => {
            format!("{}/{}", asked.trim_end_matches('/'), below.trim_start_matches('/'))
        }
        None => entry.to_owned(),
    }
}

/// Metadata as E2B's clients know it.
fn e2b_metadata(metadata: &BTreeMap<String, String>) -> Map<String, Value> {
    let own = metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(METADATA)?, value)));
    own.map(|(key, value)| (key.to_owned(), value.clone().into())).collect()
}

fn entry_json(path: &str, found: &Found, target: Option<&Found>) -> Value {
    let is_link = found.kind() == EntryKind::Symlink;
    let meant = target.unwrap_or(found);
    let kind = match meant.kind() {
        EntryKind::Directory => "FILE_TYPE_DIRECTORY",
        EntryKind::File => "FILE_TYPE_FILE",
        EntryKind::Symlink => "FILE_TYPE_SYMLINK",
        EntryKind::Other => "FILE_TYPE_UNSPECIFIED",
    };
    let letter = match found.kind() {
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'L',
        EntryKind::File | EntryKind::Other => '-',
    };
    let mut entry = json!({
        "name": name_of(path),
        "type": kind,
        "path": path,
        "size": found.size.to_string(),
        "mode": meant.bits(),
        "permissions": format!("{letter}{}", found.permissions),
        "owner": found.owner,
        "group": found.group,
    });
    if let Some(modified) = &found.modified {
        entry["modifiedTime"] = modified.clone().into();
    }
    if is_link && let Some(target) = &found.target {
        entry["symlinkTarget"] = target_of(path, target).into();
    }
    let metadata = e2b_metadata(&meant.metadata);
    if !metadata.is_empty() {
        entry["metadata"] = metadata.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> Found {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_entry_has_what_clients_look_at() {
        let file = found(
            r#"{"path":"/home/user/a.txt","type":"file","size":4,"modified":"2026-11-29T12:00:00Z",
                "permissions":"rw-r--r--","mode":"0644","uid":1,"gid":1,"owner":"user","group":"user",
                "metadata":{"e2b.author":"me","sbx.other":"x"},"accessed":null,"created":null}"#,
        );
        let expected = json!({
            "name": "a.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/a.txt", "size": "4",
            "mode": 0o644, "permissions": "-rw-r--r--", "owner": "user", "group": "user",
            "modifiedTime": "2026-11-29T12:00:00Z", "metadata": { "author": "me" },
        });
        assert_eq!(entry_json("/home/user/a.txt", &file, None), expected);
        let link = found(
            r#"{"path":"/home/user/d/l","type":"symlink","size":5,"mode":"0777",
                "permissions":"rwxrwxrwx","target":"../a.txt"}"#,
        );
        let shown = entry_json("/home/user/d/l", &link, Some(&file));
        assert_eq!(shown["type"], "FILE_TYPE_FILE");
        assert_eq!(shown["symlinkTarget"], "/home/user/a.txt");
        assert_eq!((&shown["mode"], &shown["size"]), (&json!(0o644), &json!("5")));
        assert_eq!(entry_json("/l", &link, None)["type"], "FILE_TYPE_SYMLINK");
    }

    #[test]
    fn an_entry_of_a_list_has_its_details_inside() {
        let listed = found(
            r#"{"name":"d","path":"/d","type":"directory","size":9,"modified":null,
                "details":{"permissions":"rwxr-xr-x","mode":"0755","owner":"user","group":"user"}}"#,
        );
        let alone = listed.alone();
        assert_eq!((alone.bits(), alone.size, &*alone.owner), (0o755, 9, "user"));
        assert_eq!(alone.kind(), EntryKind::Directory);
        assert_eq!(shown("/l", "/home/user/d", "/home/user/d/a/b"), "/l/a/b");
        assert_eq!(shown("/", "/", "/etc"), "/etc");
    }

    #[test]
    fn members_are_read_in_either_case() {
        let asked: Asked = serde_json::from_str(r#"{"path":null,"depth":"2","new":[]}"#).unwrap();
        assert_eq!((&*asked.path, asked.depth), ("", Number(2)));
    }
}
