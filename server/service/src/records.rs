//! The store, in the types of this crate. Its calls block until they are durable, so they are made on
//! the threads for that; those that each execution needs are made without one.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::ErrorKind;
use sandbox_api::service::{ExecutionList, ExecutionRequest, Subject, Time};
use sandbox_api::{EventRecord, Recorded};
use sandbox_store::{
    Accepted, ExecutionPage, Finish, NewExecution, SandboxRecord, SigningKey, Start, Store,
    StoreError, StoredEvent, StoredExecution,
};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, oneshot};

use crate::error::ServiceError;
use crate::turns::Turns;

/// The store of a service.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    store: Store,
    signing_key: SigningKey,
    /// For those who read a document, which may be large.
    documents: Arc<Semaphore>,
    /// For those who list executions.
    lists: Turns,
}

/// How many documents are read at one time.
const DOCUMENTS: usize = 4;
/// How many lists are read at one time, and of one subject: a list whose filter nothing meets is looked for among all
/// that its subject has. The store has more readers than that.
const LISTS: usize = 6;
const LISTS_OF_A_SUBJECT: usize = 2;
/// How long a list waits for its turn.
const LIST_WAIT: Duration = Duration::from_secs(2);

impl Records {
    pub fn new(store: Store, signing_key: SigningKey) -> Self {
        let documents = Arc::new(Semaphore::new(DOCUMENTS));
        let lists = Turns::new(LISTS, LISTS_OF_A_SUBJECT, LIST_WAIT);
        Self { store, signing_key, documents, lists }
    }

    pub const fn signing_key(&self) -> &SigningKey {
        &self.signing_key
    }

    /// Calls the store, on a thread for that.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let store = self.store.clone();
        crate::blocking(move || Ok(call(&store)?)).await
    }

    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The time by the clock of the store, which all nodes of a cluster have in common.
    pub fn now(&self) -> Time {
        self.store.now()
    }

    /// Makes a change, for which no thread waits.
    async fn change<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&Store, Box<dyn FnOnce(Result<T, StoreError>) + Send>),
    ) -> Result<T, StoreError> {
        let (sender, made) = oneshot::channel();
        begin(&self.store, Box::new(move |result| _ = sender.send(result)));
        made.await.unwrap_or(Err(StoreError::Closed))
    }

    pub async fn accept(&self, new: NewExecution) -> Result<Accepted, ServiceError> {
        Ok(self.change(|store, then| store.accept_then(new, then)).await?)
    }

    pub async fn mark_running(&self, id: &str, start: Start) -> Result<(), ServiceError> {
        Ok(self.change(|store, then| store.mark_running_then(id, start, then)).await?)
    }

    /// Stores the end, unless it is stored already.
    pub async fn finish(&self, end: Finish) -> Result<(), ServiceError> {
        match self.change(|store, then| store.finish_then(end, then)).await {
            Err(StoreError::State { id, .. }) if self.store.cluster().is_some() => {
                Err(StoreError::Fenced { id }.into())
            }
            Err(StoreError::State { id, .. }) => {
                tracing::error!(id, "an execution ended twice");
                Ok(())
            }
            finished => Ok(finished?),
        }
    }

    /// The events after this one, at most `limit`.
    pub async fn events(
        &self,
        subject: &Subject,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventRecord>, ServiceError> {
        let of = id.to_owned();
        let read = move |store: &Store| {
            store.events(&of, after, limit)?.into_iter().map(read_event).collect()
        };
        let mut events: Vec<EventRecord> = self.call(read).await?;
        if let Some(last) = events.last_mut() {
            self.add_document(subject, id, last).await?;
        }
        Ok(events)
    }

    /// Adds the document, which is stored once, to the end of an execution.
    async fn add_document(
        &self,
        subject: &Subject,
        id: &str,
        event: &mut EventRecord,
    ) -> Result<(), ServiceError> {
        let Recorded::End { document, .. } = &mut event.event else { return Ok(()) };
        let json = match self.stored(subject, id).await {
            // It was forgotten meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            stored => stored?.document,
        };
        if let Some(json) = json {
            *document = RawValue::from_string(json).map_err(unreadable)?;
        }
        Ok(())
    }

    /// The request of an execution that waits, without its secrets.
    pub async fn request(&self, id: &str) -> Result<ExecutionRequest, ServiceError> {
        let id = id.to_owned();
        let json = self.call(move |store| store.request(&id)).await?;
        serde_json::from_str(&json)
            .map_err(|_| ServiceError::internal("a stored request cannot be read"))
    }

    /// An execution with its document as it is stored.
    pub async fn stored(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<StoredExecution, ServiceError> {
        let (subject, of) = (subject.clone(), id.to_owned());
        let turn = self.documents.clone().acquire_owned().await;
        let stored = self.call(move |store| {
            // Until it is read, even if the waiter is gone.
            let _turn = turn;
            store.execution(&subject, &of)
        });
        let stored = stored.await?;
        stored.ok_or_else(|| ServiceError::not_found("execution", id))
    }

    /// A page of a list of executions for this caller.
    pub async fn list(
        &self,
        caller: &Subject,
        list: impl FnOnce(&Store) -> Result<ExecutionPage, StoreError> + Send + 'static,
    ) -> Result<ExecutionList, ServiceError> {
        let turn = self.lists.take(caller).await?;
        let page = self.call(move |store| {
            // Until it is read, even if the waiter is gone.
            let _turn = turn;
            list(store)
        });
        let ExecutionPage { executions, next_cursor } = page.await?;
        Ok(ExecutionList { executions, next_cursor: next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Adds something that ended now to what its subject has used.
    pub async fn add_usage(&self, subject: &Subject, used: sandbox_api::Usage) {
        let (subject, now) = (subject.clone(), self.now());
        let added = self.call(move |store| store.add_usage(&subject, now, used)).await;
        if let Err(error) = added {
            tracing::error!(%error, "cannot record usage");
        }
    }

    /// The processor time that a subject has used on this UTC day.
    pub async fn cpu_of_day(&self, subject: &Subject, day: Time) -> Result<Duration, ServiceError> {
        let subject = subject.clone();
        let usage = self.call(move |store| store.usage_since(&subject, day)).await?;
        Ok(Duration::from_millis(usage.cpu_ms))
    }

    /// Whether the store can be written to; if not, why.
    pub async fn check(&self) -> Result<(), String> {
        let checked = self.call(|store| store.check_writable()).await;
        checked.map_err(|error| match error.of_store() {
            Some(cause) if cause.is_transient() => cause.to_string(),
            _ => error.to_string(),
        })
    }

    pub async fn add_sandbox(&self, new: SandboxRecord) -> Result<(), ServiceError> {
        let name = new.name.clone().unwrap_or_default();
        match self.call(move |store| store.create_sandbox(new)).await? {
            true => Ok(()),
            // Another node has just created it.
            false if self.store.cluster().is_some() => Err(ServiceError::name_elsewhere(&name)),
            // Those in memory are those in the store.
            false => Err(ServiceError::name_taken(&name)),
        }
    }

    /// Changes a sandbox that is stored.
    pub async fn change_sandbox(
        &self,
        id: &str,
        change: impl FnOnce(&Store, &str) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), ServiceError> {
        let of = id.to_owned();
        match self.call(move |store| change(store, &of)).await {
            Err(error) if matches!(error.of_store(), Some(StoreError::State { .. })) => {
                Err(ServiceError::sandbox_gone(id))
            }
            changed => changed,
        }
    }

    pub async fn remove_sandbox(&self, id: &str) -> Result<(), ServiceError> {
        let id = id.to_owned();
        self.call(move |store| store.remove_sandbox(&id).map(drop)).await
    }
}

/// Events as they are stored: the end without its document, which is stored once.
pub(crate) fn stored_events<'a>(
    events: impl IntoIterator<Item = &'a Arc<EventRecord>>,
) -> Vec<StoredEvent> {
    let stored = |event: &Arc<EventRecord>| {
        let json = match &event.event {
            Recorded::End { exit_code, .. } => {
                RawValue::from_string("{}".to_owned()).and_then(|document| {
                    let end = Recorded::End { exit_code: *exit_code, document };
                    serde_json::to_string(&EventRecord { event: end, ..(**event).clone() })
                })
            }
            _ => serde_json::to_string(&**event),
        };
        // It has no map with keys that are no strings, which alone could fail.
        json.ok().map(|json| StoredEvent { number: event.seq, json })
    };
    events.into_iter().filter_map(stored).collect()
}

fn unreadable(error: serde_json::Error) -> StoreError {
    StoreError::Row { detail: error.to_string() }
}

/// An event as it is stored.
fn read_event(stored: StoredEvent) -> Result<EventRecord, StoreError> {
    serde_json::from_str(&stored.json).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use sandbox_api::service::ExecutionKind;
    use sandbox_api::{ExecutionEvent, Status};
    use sandbox_store::{Durability, Placement};
    use serde_json::Map;

    use super::*;

    #[tokio::test]
    async fn document_of_an_end_is_read_within_the_bound_of_documents() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("data"), Durability::Disk).unwrap();
        let records = Records::new(store.clone(), store.signing_key().unwrap());
        let (subject, time) = (Subject::new("me").unwrap(), Time::now());
        let new = NewExecution {
            id: "a".to_owned(),
            subject: subject.clone(),
            kind: ExecutionKind::Script,
            request: "{}".to_owned(),
            has_secrets: false,
            key: None,
            created_at: time,
            start: None,
            metadata: Map::new(),
            image: None,
            sandbox: None,
            generation: None,
            events: Vec::new(),
            trace_parent: None,
            placement: Placement::default(),
        };
        records.accept(new).await.unwrap();
        let event = |seq, event| Arc::new(EventRecord { seq, time, name: None, event });
        let document = || RawValue::from_string("{}".to_owned()).unwrap();
        let end = Recorded::End { exit_code: 0, document: document() };
        let end = Finish {
            id: "a".to_owned(),
            status: Status::Ok,
            document: r#"{"a":1}"#.to_owned(),
            stored_bytes: 1,
            usage: None,
            ended_at: time,
            events: stored_events(&[event(1, ExecutionEvent::Queued.into()), event(2, end)]),
            session: None,
        };
        records.finish(end).await.unwrap();
        let has_document = |event: &EventRecord| match &event.event {
            Recorded::End { document, .. } => document.get() == r#"{"a":1}"#,
            _ => false,
        };
        let turns = records.documents.clone().acquire_many_owned(DOCUMENTS as u32).await.unwrap();
        // A batch of only an event does not wait.
        assert_eq!(records.events(&subject, "a", 0, 1).await.unwrap().len(), 1);
        let mut waits = [
            records.stored(&subject, "a").map(|it| it.unwrap().document.is_some()).boxed(),
            records.events(&subject, "a", 0, 9).map(|it| has_document(&it.unwrap()[1])).boxed(),
        ];
        // The reads of events go on at another thread.
        for _ in 0..3 {
            for waits in &mut waits {
                assert!(waits.now_or_never().is_none());
            }
            records.events(&subject, "a", 0, 1).await.unwrap();
        }
        drop(turns);
        for waits in waits {
            assert!(waits.await);
        }
    }
}
