//! A service that keeps everything in memory and does what the script says: it ends at once, or
//! waits until a test lets it end.

use std::collections::BTreeMap;
use std::io::{self, Seek as _, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use sandbox_api::changes::ChangeManifest;
use sandbox_api::files::{WriteMode, WriteReply};
use sandbox_api::operation::{Envelope, OperationRequest};
use sandbox_api::service::{
    AcceptedExecution, ExecutionKind, ExecutionList, ExecutionRequest, ExecutionState,
    ExecutionSummary, ExtendRequest, FileEntry, FileKind, FileList, Health, HealthCheck,
    SandboxList, SandboxRequest, SandboxStatus, SandboxView, Subject, Time, UsageTotals,
};
use sandbox_api::{
    ErrorKind, EventRecord, ExecutionDocument, ExecutionEvent, Failure, LogEntry, ProblemKind,
    Recorded, Status,
};
use sandbox_http::{
    ArchiveFormat, Backend, Figure, FigureValue, FileWrite, IsNew, ListFilter, OpenFile, Refusal,
    Reply, SandboxHandle, StoredExecution, Used,
};
use tokio::sync::watch;

/// The version of every file.
pub const VERSION: &str = "2a-10-69000000-1";
/// Of every file.
pub const CONTENT: &[u8] = b"0123456789abcdef";

#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
    /// What every call fails with.
    failure: Mutex<Option<Refusal>>,
}

#[derive(Default)]
struct State {
    executions: BTreeMap<String, Kept>,
    keys: BTreeMap<(Subject, String), (String, String)>,
    sandboxes: BTreeMap<String, (Subject, SandboxView)>,
    next: u32,
}

struct Kept {
    subject: Subject,
    summary: ExecutionSummary,
    status: watch::Sender<ExecutionState>,
}

fn not_found() -> Refusal {
    Refusal::new(ProblemKind::NotFound, "there is no such thing").hint(Some("look at the list"))
}

fn ready<'a, T: Send + 'a>(result: Result<T, Refusal>) -> Reply<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Fake {
    /// From now on every call fails so.
    pub fn fail(&self, refusal: Option<Refusal>) {
        *self.failure.lock().unwrap() = refusal;
    }

    /// How many executions there are.
    pub fn count(&self) -> usize {
        self.state.lock().unwrap().executions.len()
    }

    /// An execution ends.
    pub fn finish(&self, id: &str) {
        let mut state = self.state.lock().unwrap();
        let kept = state.executions.get_mut(id).unwrap();
        kept.summary.status = ExecutionState::Ended(Status::Ok);
        kept.summary.ended_at = Some(Time::from_unix_millis(2000));
        kept.status.send_replace(ExecutionState::Ended(Status::Ok));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> Result<T, Refusal>) -> Result<T, Refusal> {
        match &*self.failure.lock().unwrap() {
            Some(refusal) => Err(refusal.clone()),
            None => act(&mut self.state.lock().unwrap()),
        }
    }

    fn kept<T>(
        &self,
        subject: &Subject,
        id: &str,
        act: impl FnOnce(&mut Kept) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.with(|state| {
            let kept = state.executions.get_mut(id).filter(|kept| kept.subject == *subject);
            act(kept.ok_or_else(not_found)?)
        })
    }

    fn ended<T>(&self, subject: &Subject, id: &str, value: T) -> Result<T, Refusal> {
        self.kept(subject, id, |kept| match kept.summary.status.ended() {
            Some(_) => Ok(value),
            None => Err(Refusal::new(ProblemKind::Conflict, "it has not ended")),
        })
    }

    fn seen<T>(
        &self,
        subject: &Subject,
        handle: &SandboxHandle,
        act: impl FnOnce(&mut SandboxView) -> T,
    ) -> Result<T, Refusal> {
        self.with(|state| {
            let found = state.sandboxes.get_mut(&handle.id).filter(|(owner, _)| owner == subject);
            let (_, view) = found.ok_or_else(not_found)?;
            match handle.generation {
                Some(asked) if asked != view.generation => {
                    Err(Refusal::new(ProblemKind::Gone, "another generation"))
                }
                _ => Ok(act(view)),
            }
        })
    }

    fn view(&self, kept: &Kept) -> StoredExecution {
        let summary = kept.summary.clone();
        let ended = summary.status.ended();
        let document = ended.map(|status| document(&summary, status).to_json().unwrap());
        StoredExecution { summary, document }
    }
}

/// Everything is done by the first generation.
fn used<T>(value: T) -> Used<T> {
    Used { value, generation: 1, restarted: false }
}

fn document(summary: &ExecutionSummary, status: Status) -> ExecutionDocument<'static> {
    let error = Failure::new(ErrorKind::Cancelled, "cancelled by the caller", None);
    ExecutionDocument::ended(summary.kind, &summary.id, status, error)
}

impl Backend for Fake {
    fn submit<'a>(
        &'a self,
        subject: &'a Subject,
        request: ExecutionRequest,
        key: Option<String>,
        sandbox: Option<SandboxHandle>,
    ) -> Reply<'a, AcceptedExecution> {
        if let Some(handle) = &sandbox
            && let Err(refusal) = self.seen(subject, handle, |_| ())
        {
            return ready(Err(refusal));
        }
        ready(self.with(|state| {
            let body = serde_json::to_string(&request).unwrap();
            let known = key.clone().and_then(|key| state.keys.get(&(subject.clone(), key)));
            match known {
                Some((_, other)) if *other != body => {
                    return Err(Refusal::new(ProblemKind::KeyReused, "another request"));
                }
                Some((id, _)) => {
                    let status = state.executions[id].summary.status;
                    return Ok(AcceptedExecution { id: id.clone(), status });
                }
                None => {}
            }
            if request.image.as_deref().is_some_and(|image| image != "debian:13") {
                return Err(Refusal::new(ProblemKind::Policy, "image: it is not allowed")
                    .at("#/image", "it is not allowed"));
            }
            let kind = match (&request.script, &request.command) {
                (Some(_), None) => ExecutionKind::Script,
                (None, Some(_)) => ExecutionKind::Command,
                _ => return Err(Refusal::new(ProblemKind::Invalid, "a script or a command")),
            };
            state.next += 1;
            let id = format!("execution-{}", state.next);
            let is_slow = request.script.as_ref().and_then(|it| it.as_str()) == Some("slow");
            let status =
                if is_slow { ExecutionState::Running } else { ExecutionState::Ended(Status::Ok) };
            let time = Time::from_unix_millis(1000);
            let summary = ExecutionSummary {
                id: id.clone(),
                kind,
                status,
                created_at: time,
                started_at: Some(time),
                ended_at: (!is_slow).then_some(time),
                metadata: request.metadata.clone(),
                generation: sandbox.as_ref().map(|_| 1),
                restarted: sandbox.as_ref().map(|_| false),
                sandbox: sandbox.map(|sandbox| sandbox.id),
            };
            let kept =
                Kept { subject: subject.clone(), summary, status: watch::Sender::new(status) };
            // It may have ended and be forgotten before anybody looks.
            if request.script.as_ref().and_then(|it| it.as_str()) != Some("forgotten") {
                state.executions.insert(id.clone(), kept);
            }
            if let Some(key) = key {
                state.keys.insert((subject.clone(), key), (id.clone(), body));
            }
            Ok(AcceptedExecution { id, status })
        }))
    }

    fn execution<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        wait: Duration,
    ) -> Reply<'a, StoredExecution> {
        Box::pin(async move {
            let mut status = self.kept(subject, id, |kept| Ok(kept.status.subscribe()))?;
            let ended = status.wait_for(|status| status.ended().is_some());
            _ = tokio::time::timeout(wait, ended).await;
            self.kept(subject, id, |kept| Ok(self.view(kept)))
        })
    }

    fn cancel<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, StoredExecution> {
        ready(self.kept(subject, id, |kept| {
            if kept.summary.status.ended().is_none() {
                kept.summary.status = ExecutionState::Ended(Status::Cancelled);
                kept.status.send_replace(ExecutionState::Ended(Status::Cancelled));
            }
            Ok(self.view(kept))
        }))
    }

    fn executions<'a>(
        &'a self,
        subject: &'a Subject,
        filter: ListFilter,
    ) -> Reply<'a, ExecutionList> {
        ready(self.with(|state| {
            let of = state.executions.values().filter(|kept| kept.subject == *subject);
            let of = of.filter(|kept| filter.status.is_none_or(|it| it == kept.summary.status));
            let of = of.filter(|kept| filter.kind.is_none_or(|it| it == kept.summary.kind));
            let of = of.map(|kept| kept.summary.clone()).take(filter.limit as usize);
            Ok(ExecutionList { executions: of.collect(), next_cursor: None })
        }))
    }

    fn events<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        after: u64,
    ) -> Reply<'a, BoxStream<'static, Result<EventRecord, Refusal>>> {
        ready(self.kept(subject, id, |kept| {
            let status = kept.status.subscribe();
            let summary = kept.summary.clone();
            let event = |seq, event| EventRecord {
                seq,
                time: Time::from_unix_millis(1000),
                name: None,
                event,
            };
            let first = [
                ExecutionEvent::Queued,
                ExecutionEvent::Started,
                ExecutionEvent::Log(LogEntry::from_line("a\nb")),
            ];
            let first: Vec<_> =
                (1..).zip(first).map(move |(seq, it)| event(seq, it.into())).collect();
            let end = stream::once(async move {
                let mut status = status;
                _ = status.wait_for(|status| status.ended().is_some()).await;
                let document = document(&summary, Status::Ok).to_json().unwrap();
                let document = serde_json::value::RawValue::from_string(document).unwrap();
                event(4, Recorded::End { exit_code: 0, document })
            });
            let all = stream::iter(first).chain(end);
            Ok(all.filter(move |it| std::future::ready(it.seq > after)).map(Ok).boxed())
        }))
    }

    fn files<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, FileList> {
        let file = FileEntry {
            path: "out.csv".into(),
            kind: FileKind::File,
            bytes: CONTENT.len() as u64,
            modified: None,
        };
        ready(self.ended(subject, id, FileList { files: vec![file], truncated: false }))
    }

    fn open_file<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        path: &'a [u8],
    ) -> Reply<'a, OpenFile> {
        if !matches!(path, b"out.csv" | b"dir/page.html" | b"\xff") {
            return ready(Err(not_found()));
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(CONTENT).unwrap();
        file.rewind().unwrap();
        let bytes = CONTENT.len() as u64;
        let file = OpenFile { file, bytes, version: VERSION.to_owned(), modified: None };
        ready(self.ended(subject, id, file))
    }

    fn archive<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        _format: ArchiveFormat,
    ) -> Reply<'a, BoxStream<'static, io::Result<Bytes>>> {
        let archive = stream::iter([Ok(Bytes::from_static(b"archive"))]).boxed();
        ready(self.ended(subject, id, archive))
    }

    fn changes<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ChangeManifest> {
        ready(self.ended(subject, id, ChangeManifest::default()))
    }

    fn create_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        request: SandboxRequest,
    ) -> Reply<'a, (Used<SandboxView>, IsNew)> {
        ready(self.with(|state| {
            let mut of = state.sandboxes.values().filter(|(owner, _)| owner == subject);
            let same = of.find(|(_, view)| request.name.is_some() && view.name == request.name);
            if let Some((_, view)) = same {
                return match view.spec == request.spec {
                    // As if it had been started again for that.
                    true => Ok((started(view.clone(), true), IsNew::No)),
                    false => Err(Refusal::new(ProblemKind::Conflict, "it has another spec")),
                };
            }
            state.next += 1;
            let time = Time::from_unix_millis(1000);
            let view = SandboxView {
                id: format!("sandbox-{}", state.next),
                name: request.name,
                generation: 1,
                status: SandboxStatus::Ready,
                spec: request.spec,
                created_at: time,
                last_used_at: time,
                expires_at: time,
                max_expires_at: time,
                idle_at: None,
                metadata: request.metadata,
            };
            state.sandboxes.insert(view.id.clone(), (subject.clone(), view.clone()));
            Ok((started(view, false), IsNew::Yes))
        }))
    }

    fn sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, SandboxView> {
        let handle = SandboxHandle { id: id.to_owned(), generation: None };
        ready(self.seen(subject, &handle, |view| view.clone()))
    }

    fn sandboxes<'a>(&'a self, subject: &'a Subject) -> Reply<'a, SandboxList> {
        ready(self.with(|state| {
            let of = state.sandboxes.values().filter(|(owner, _)| owner == subject);
            Ok(SandboxList { sandboxes: of.map(|(_, view)| view.clone()).collect() })
        }))
    }

    fn delete_sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ()> {
        let handle = SandboxHandle { id: id.to_owned(), generation: None };
        ready(self.seen(subject, &handle, |_| ()).and_then(|()| {
            self.with(|state| {
                state.sandboxes.remove(id);
                Ok(())
            })
        }))
    }

    fn extend_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        request: ExtendRequest,
    ) -> Reply<'a, SandboxView> {
        let handle = SandboxHandle { id: id.to_owned(), generation: None };
        ready(self.seen(subject, &handle, |view| {
            view.expires_at = view.expires_at.after(Duration::from_millis(request.ttl_ms));
            view.clone()
        }))
    }

    fn operate<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        request: OperationRequest,
    ) -> Reply<'a, Used<Envelope>> {
        ready(self.seen(subject, &sandbox, |_| {
            let name = request.operation.name();
            let failure = Failure::new(ErrorKind::NotFound, name, None);
            used(Envelope::failed(Duration::from_millis(3), failure))
        }))
    }

    fn read_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        _path: &'a [u8],
    ) -> Reply<'a, Used<BoxStream<'static, Result<Bytes, Refusal>>>> {
        ready(self.seen(subject, &sandbox, |_| {
            used(stream::iter([Ok(Bytes::from_static(CONTENT))]).boxed())
        }))
    }

    fn write_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        write: FileWrite<'a>,
    ) -> Reply<'a, Used<WriteReply>> {
        Box::pin(async move {
            let FileWrite { path, mode, bytes: announced, mut content } = write;
            if mode == WriteMode::CreateNew && path == b"taken" {
                let failure = Failure::new(ErrorKind::AlreadyExists, "taken", None);
                return Err(Refusal::new(ProblemKind::from(failure.kind), failure.message));
            }
            self.seen(subject, &sandbox, |_| ())?;
            let mut bytes = 0;
            while let Some(piece) = content.next().await {
                bytes += piece?.len() as u64;
            }
            assert!(announced.is_none_or(|announced| announced == bytes));
            Ok(used(WriteReply { path: path.into(), bytes_written: bytes, created: true }))
        })
    }

    fn usage<'a>(&'a self, subject: &'a Subject) -> Reply<'a, UsageTotals> {
        ready(self.with(|state| {
            let of = state.executions.values().filter(|kept| kept.subject == *subject);
            Ok(UsageTotals { executions: of.count() as u64, ..UsageTotals::default() })
        }))
    }

    fn health(&self) -> BoxFuture<'_, Health> {
        let ready = self.failure.lock().unwrap().is_none();
        let problem = (!ready).then(|| "a secret of the host".to_owned());
        let check = HealthCheck { name: "engine".to_owned(), ok: ready, problem };
        Box::pin(std::future::ready(Health { ready, checks: vec![check] }))
    }

    fn figures(&self) -> Vec<Figure> {
        let ended = |status, value| {
            let (name, help) = ("executions_ended", "Executions that have ended");
            let labels = vec![("status", String::from(status))];
            Figure { name, help, labels, value: FigureValue::Counter(value) }
        };
        let waiting = |name, value| Figure { name, help: "Waiting", labels: Vec::new(), value };
        let buckets = vec![(0.5, 2), (f64::INFINITY, 1)];
        vec![
            waiting("executions_queued", FigureValue::Gauge(3.0)),
            ended("ok", 2.0),
            ended("limit", 1.0),
            waiting("queue_wait_seconds", FigureValue::Histogram { buckets, sum: 7.5 }),
        ]
    }
}

fn started(view: SandboxView, restarted: bool) -> Used<SandboxView> {
    Used { generation: view.generation, value: view, restarted }
}
