//! How requests are accepted: their keys, their quotas, a place in the queue, and the store.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use opentelemetry::trace::FutureExt as _;
use sandbox_api::service::{ExecutionRequest, SandboxRef, Subject, Time};
use sandbox_api::{ExecutionEvent, RootFs};
use sandbox_controller::CancelHandle;
use sandbox_dirfd::random_hex;
use sandbox_store::{Accepted, NewExecution, Store};
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::OnDrop;
use crate::cluster::node::Node;
use crate::core::{Core, Queued};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::feed::{Feed, RECENT_BYTES};
use crate::idempotency::{IdempotencyKey, digest};
use crate::live::{Live, PendingExecution, PendingWork, Phase, span};
use crate::plan::{plan, plan_in_sandbox};
use crate::records::stored_events;
use crate::room::StorageReservation;
use crate::trace::{self, ExecutionTrace};

/// The largest request that stays in memory while it waits; others are read from the store again.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// A day, as quotas have it.
const DAY_MILLIS: i64 = 24 * 3600 * 1000;

/// A request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The execution's id.
    pub id: String,
    /// Whether it is new: otherwise its key was used before, with the same request.
    pub is_new: bool,
}

/// A place in the queue, or among what runs, that is not used yet.
pub(crate) struct Reserved {
    core: Arc<Core>,
    subject: Subject,
    of: Reservation,
}

/// What is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Queue,
    Run,
    /// Nothing any more: it was used.
    Used,
}

impl Reserved {
    /// Makes it a place among what runs, if that which it is for would be the next to run.
    fn begin(&mut self) -> bool {
        let begins = self.core.state().schedule.begin(&self.subject);
        if begins {
            self.of = Reservation::Run;
        }
        begins
    }

    /// Queues an execution, and starts what may run; starts it at once in a place among what runs.
    fn fill_with(mut self, waiting: PendingExecution) {
        match self.of {
            Reservation::Run => {
                self.of = Reservation::Used;
                let live = waiting.live.clone();
                self.core.state().live.insert(live.id.clone(), live);
                Counting::add(&self.core.counting.accepted);
                self.core.begin_work(waiting);
            }
            Reservation::Queue | Reservation::Used => {
                self.fill(waiting.live.id.clone(), Queued::Execution(waiting));
            }
        }
    }

    /// Queues what it was reserved for, and starts what may run.
    pub fn fill(mut self, id: String, queued: Queued) {
        self.of = Reservation::Used;
        let mut state = self.core.state();
        if let Queued::Execution(waiting) = &queued {
            state.live.insert(id.clone(), waiting.live.clone());
        }
        state.schedule.fill(&self.subject, id, queued);
        drop(state);
        Counting::add(&self.core.counting.accepted);
        self.core.dispatch();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match self.of {
            Reservation::Queue => self.core.state().schedule.release(&self.subject),
            Reservation::Run => self.core.release_run(&self.subject),
            Reservation::Used => {}
        }
    }
}

impl Core {
    pub async fn submit(
        self: Arc<Self>,
        subject: Subject,
        request: ExecutionRequest,
        key: Option<IdempotencyKey>,
        place: Option<SandboxRef>,
        is_waited: bool,
    ) -> Result<Submitted, ServiceError> {
        // A caller that goes away does not leave a request half accepted.
        let accepting = self.accept(subject, request, key, place, is_waited);
        let accepting = crate::spawn(accepting.in_current_span().with_current_context());
        let failed = |_| ServiceError::internal("a request could not be accepted");
        accepting.await.map_err(failed)?
    }

    async fn accept(
        self: Arc<Self>,
        subject: Subject,
        mut request: ExecutionRequest,
        key: Option<IdempotencyKey>,
        place: Option<SandboxRef>,
        is_waited: bool,
    ) -> Result<Submitted, ServiceError> {
        let _accepts = self.accepts.read().await;
        self.check_accepting()?;
        let _key = key.as_ref().map(|key| self.use_key(&subject, key)).transpose()?;
        let checked = request.clone();
        let secrets = std::mem::take(&mut request.secrets);
        let names: Vec<&str> = secrets.0.keys().map(String::as_str).collect();
        let sandbox = place.as_ref().map(|place| place.id.as_str());
        let json = serde_json::to_string(&request)
            .map_err(|_| ServiceError::internal("a request cannot be stored"))?;
        let generation = place.as_ref().and_then(|place| place.generation);
        let generation_text = generation.map(|generation| generation.to_string());
        let of = names.iter().copied().chain(sandbox).chain(generation_text.as_deref());
        let digest = digest(&json, of);
        if let Some(key) = &key {
            let accepted = match self.find_in_memory(&subject, key, &digest) {
                Some(accepted) => Some(accepted),
                None => {
                    let (of, key, digest) = (subject.clone(), key.clone(), digest.clone());
                    let find = move |store: &Store| store.find_key(&of, key.as_str(), &digest);
                    self.records.call(find).await?
                }
            };
            if let Some(accepted) = accepted {
                return submitted(accepted);
            }
        }
        // An accepted request is found, regardless of later changes.
        let (kind, image, plan) = match &place {
            Some(place) => {
                let kept = self.kept.check(&subject, place)?;
                let spec = kept.spec()?;
                let plan = plan_in_sandbox(checked, spec, kept.env(), &self.config)?;
                (plan.kind(), image(&spec.root), None)
            }
            None => {
                let plan = plan(checked, &self.config)?;
                (plan.workload.kind(), image(&plan.spec.root), Some(plan))
            }
        };
        let (mut reserved, mut room) = self.admit(&subject, json.len() as u64).await?;
        let (created_at, accepted) = (self.records.now(), Instant::now());
        let is_stored = !(is_waited && place.is_some() && self.config.waited_in_memory);
        let id = match &key {
            Some(key) if !is_stored => id_of(&subject, key),
            _ => random_hex::<12>(),
        };
        let has_secrets = !secrets.is_empty();
        let metadata = request.metadata.clone();
        let is_large = json.len() > MAX_WAITING_BYTES;
        // One in a kept sandbox runs when that is in use, and no earlier.
        let node = self.node.as_deref();
        let plan = plan.filter(|_| node.is_none_or(Node::offers_slot) && reserved.begin());
        let most = self.config.max_queued_bytes;
        // What waits in a cluster is bounded in its database.
        if plan.is_none() && node.is_none() && !room.queue(most.as_u64()) {
            Counting::add(&self.counting.refused_full);
            return Err(ServiceError::full_of_bytes(most));
        }
        let session = node.map(Node::session);
        let start =
            plan.as_ref().map(|plan| self.start_of(created_at, plan.spec.limits, None, session));
        let live = Arc::new(Live {
            span: span(&id, &subject),
            trace: ExecutionTrace::accepted(&id, &subject, kind),
            id: id.clone(),
            subject: subject.clone(),
            in_memory: (!is_stored).then(|| digest.clone()),
            kind,
            created_at,
            accepted,
            metadata: metadata.clone(),
            session,
            was_shared: false,
            sandbox: place.map(|place| place.id),
            generation,
            used: OnceLock::new(),
            request: OnceLock::new(),
            feed: match is_stored {
                true => Feed::new(0, self.config.max_event_bytes.as_u64()),
                // Its caller waits for the document.
                false => Feed::new(0, RECENT_BYTES as u64),
            }
            .by_clock(self.records.store()),
            cancel: CancelHandle::new(),
            phase: watch::Sender::new(
                start.map_or(Phase::Queued, |start| Phase::Running(start.at)),
            ),
        });
        // Its sandbox is started while it is stored. If it is not accepted, nothing runs in it.
        let begun = plan.map(|plan| Box::new(self.begin(&live, plan)));
        // Its first events are as durable as its acceptance: their numbers are not used again.
        live.feed.push(ExecutionEvent::Queued);
        if start.is_some() {
            live.feed.push(ExecutionEvent::Started);
        }
        // Until it is known here.
        let _accepting = node.map(|node| self.accepting(node, &id, &secrets));
        if is_stored {
            let events = live.feed.unsaved();
            let placement =
                node.map(|node| self.placement(node, live.sandbox.is_some(), has_secrets));
            let record = NewExecution {
                id: id.clone(),
                subject: subject.clone(),
                kind,
                request: json,
                has_secrets,
                key: key.map(|key| (key.as_str().to_owned(), digest)),
                created_at,
                // One flush in place of two for what does not wait.
                start,
                metadata,
                image,
                sandbox: live.sandbox.clone(),
                generation,
                events: stored_events(&events),
                trace_parent: trace::parent(),
                placement: placement.unwrap_or_default(),
            };
            let commit = live.trace.step("commit");
            match (self.records.accept(record).await?, node) {
                // It waits in the database, for whichever node; what was begun for it is dropped.
                (Accepted::New, Some(node)) if begun.is_none() => {
                    return Ok(self.queued(node, &live));
                }
                (Accepted::Queued, Some(node)) => return Ok(self.queued(node, &live)),
                (Accepted::New, _) => {}
                (Accepted::Full(queued), _) => {
                    Counting::add(&self.counting.refused_full);
                    return Err(ServiceError::full(queued));
                }
                (other, _) => return submitted(other),
            }
            drop(commit);
            live.feed.mark_saved(events.last().map_or(0, |event| event.seq));
        }
        let work = match begun {
            Some(begun) => {
                live.keep_request(&request, &secrets);
                PendingWork::Started(begun)
            }
            None => {
                let in_memory = !is_large || !is_stored;
                PendingWork::Queued { request: in_memory.then(|| Box::new(request)), secrets }
            }
        };
        reserved.fill_with(PendingExecution { live, work, room });
        Ok(Submitted { id, is_new: true })
    }

    /// An execution was accepted, and waits.
    fn queued(&self, node: &Node, live: &Live) -> Submitted {
        live.trace.enqueued();
        Counting::add(&self.counting.accepted);
        node.queued();
        Submitted { id: live.id.clone(), is_new: true }
    }

    /// What became of a request with this key that is in memory alone.
    fn find_in_memory(
        &self,
        subject: &Subject,
        key: &IdempotencyKey,
        digest: &str,
    ) -> Option<Accepted> {
        let live = self.find_live(subject, &id_of(subject, key))?;
        Some(match live.in_memory.as_deref() == Some(digest) {
            true => Accepted::Same(live.id.clone()),
            false => Accepted::Other,
        })
    }

    /// Has a key in use until what this gives is dropped.
    fn use_key(
        self: &Arc<Self>,
        subject: &Subject,
        key: &IdempotencyKey,
    ) -> Result<OnDrop<impl FnMut() + use<>>, ServiceError> {
        let (core, key) = (self.clone(), (subject.clone(), key.as_str().to_owned()));
        match self.state().keys.insert(key.clone()) {
            true => Ok(OnDrop(move || _ = core.state().keys.remove(&key))),
            false => Err(ServiceError::key_in_flight()),
        }
    }

    /// A place in the queue and room for so many bytes, if the subject may have them.
    pub async fn admit(
        self: &Arc<Self>,
        subject: &Subject,
        bytes: u64,
    ) -> Result<(Reserved, StorageReservation), ServiceError> {
        let room = self.make_room(subject, bytes).await?;
        self.check_quotas(subject).await?;
        let mut state = self.state();
        if !state.schedule.reserve(subject) {
            let queued = state.schedule.waiting();
            drop(state);
            Counting::add(&self.counting.refused_full);
            return Err(ServiceError::full(queued as u64));
        }
        drop(state);
        let of = Reservation::Queue;
        Ok((Reserved { core: self.clone(), subject: subject.clone(), of }, room))
    }

    /// Counts something that is to run against the quotas of its subject.
    pub async fn check_quotas(&self, subject: &Subject) -> Result<(), ServiceError> {
        let now = self.records.now();
        if let Some(quota) = self.quotas().cpu_per_day
            && self.records.cpu_of_day(subject, now).await? >= quota
        {
            Counting::add(&self.counting.refused_quota);
            let next_day = (now.unix_millis().div_euclid(DAY_MILLIS) + 1) * DAY_MILLIS;
            let retry_after = Some(Time::from_unix_millis(next_day).since(now));
            return Err(ServiceError::quota_exceeded("processor time", retry_after));
        }
        self.take_rate(subject).await
    }
}

fn submitted(accepted: Accepted) -> Result<Submitted, ServiceError> {
    match accepted {
        Accepted::Same(id) => Ok(Submitted { id, is_new: false }),
        Accepted::Other => Err(ServiceError::key_reused()),
        Accepted::New | Accepted::Queued | Accepted::Full(_) => {
            Err(ServiceError::internal("a new request is not new"))
        }
    }
}

/// The engine's image, if it is one.
fn image(root: &RootFs) -> Option<String> {
    match root {
        RootFs::Image { reference, .. } => Some(reference.clone()),
        _ => None,
    }
}

/// The id of an execution that is in memory alone: its key finds it.
fn id_of(subject: &Subject, key: &IdempotencyKey) -> String {
    let digest = digest(key.as_str(), std::iter::once(subject.as_str()));
    digest[..24].to_owned()
}
