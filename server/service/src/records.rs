//! The store, in the types of this crate. Everything here waits until it is durable, on the threads
//! for calls that block.

use std::sync::Arc;

use crate::stub::Store;
use sandbox_api::service::{
    Execution, ExecutionEvent, ExecutionKind, ExecutionList, ExecutionRequest, ExecutionStatus,
    Subject, Time, UsageTotals,
};
use sandbox_api::{Status, Usage};
use serde_json::{Map, Value};

use crate::error::ServiceError;
use crate::kept::KeptRecord;

/// An execution to accept.
#[derive(Debug)]
pub(crate) struct NewRecord {
    pub id: String,
    pub subject: Subject,
    pub kind: ExecutionKind,
    pub request: String,
    pub has_secrets: bool,
    pub key: Option<(String, String)>,
    pub created_at: Time,
    pub metadata: Map<String, Value>,
    pub sandbox: Option<String>,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Accepted {
    New,
    Same(String),
    Other,
}

/// The end of an execution.
#[derive(Debug)]
pub(crate) struct Finish {
    pub id: String,
    pub kind: ExecutionKind,
    pub status: Status,
    pub stored_bytes: u64,
    pub document: String,
    pub usage: Option<Usage>,
    pub ended_at: Time,
    pub events: Vec<Arc<ExecutionEvent>>,
    pub end: Arc<ExecutionEvent>,
}

#[derive(Debug)]
pub(crate) struct ExecutionQuery {
    pub status: Option<ExecutionStatus>,
    pub sandbox: Option<String>,
    pub limit: usize,
    pub cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Recovered {
    pub queued: Vec<QueuedRecord>,
    pub killed: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct QueuedRecord {
    pub id: String,
    pub subject: Subject,
    pub kind: ExecutionKind,
    pub has_secrets: bool,
    pub created_at: Time,
    pub metadata: Map<String, Value>,
    pub sandbox: Option<String>,
    pub last_event: u64,
}

pub(crate) struct Records {
    store: Store,
}

impl Records {
    pub fn new(store: Store) -> Self {
        Self { store }
    }
    pub async fn find_key(
        &self,
        _subject: &Subject,
        _key: &str,
        _digest: &str,
    ) -> Result<Option<Accepted>, ServiceError> {
        todo!()
    }
    pub async fn accept(&self, _new: NewRecord) -> Result<Accepted, ServiceError> {
        todo!()
    }
    pub async fn mark_running(&self, _id: &str, _at: Time) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn finish(&self, _finish: &Finish) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn append_events(
        &self,
        _id: &str,
        _events: Vec<Arc<ExecutionEvent>>,
    ) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn events(
        &self,
        _id: &str,
        _after: u64,
        _limit: usize,
    ) -> Result<Vec<ExecutionEvent>, ServiceError> {
        todo!()
    }
    pub async fn end_event(&self, _id: &str) -> Result<Option<ExecutionEvent>, ServiceError> {
        todo!()
    }
    pub async fn request(&self, _id: &str) -> Result<ExecutionRequest, ServiceError> {
        todo!()
    }
    pub async fn get(
        &self,
        _subject: &Subject,
        _id: &str,
    ) -> Result<Option<Execution>, ServiceError> {
        todo!()
    }
    pub async fn list(
        &self,
        _subject: &Subject,
        _query: ExecutionQuery,
    ) -> Result<ExecutionList, ServiceError> {
        todo!()
    }
    pub async fn usage(&self, _subject: &Subject) -> Result<UsageTotals, ServiceError> {
        todo!()
    }
    pub async fn check(&self) -> Result<(), String> {
        todo!()
    }
    pub async fn expire(
        &self,
        _before: Time,
        _max_bytes: u64,
    ) -> Result<Vec<String>, ServiceError> {
        todo!()
    }
    pub async fn forget(&self, _ids: Vec<String>) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn oldest_end(&self) -> Result<Option<Time>, ServiceError> {
        todo!()
    }
    pub async fn recover(&self, _now: Time) -> Result<Recovered, ServiceError> {
        todo!()
    }
    pub async fn known(&self, _ids: Vec<String>) -> Result<Vec<String>, ServiceError> {
        todo!()
    }
    pub async fn sandboxes(&self) -> Result<Vec<KeptRecord>, ServiceError> {
        todo!()
    }
    pub async fn add_sandbox(&self, _record: KeptRecord) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn remove_sandbox(&self, _id: &str) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn set_generation(&self, _id: &str, _generation: u64) -> Result<(), ServiceError> {
        todo!()
    }
    pub async fn set_expiry(&self, _id: &str, _at: Time) -> Result<(), ServiceError> {
        todo!()
    }
}
