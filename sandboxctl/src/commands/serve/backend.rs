//! The service behind the HTTP API.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use hyper::body::Bytes;
use sandbox_api::changes::ChangeManifest;
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{Envelope, OperationRequest, Read, Write};
use sandbox_api::service::{
    AcceptedExecution, ExecutionList, ExecutionRequest, ExecutionState, ExtendRequest, FileList,
    Health, SandboxList, SandboxRequest, SandboxView, Subject, UsageTotals,
};
use sandbox_api::{ErrorKind, EventRecord, ProblemKind};
use sandbox_controller::{Controller, PoolStats};
use sandbox_http::{
    ArchiveFormat, Backend, Figure, FigureValue, FileWrite, IsNew, ListFilter, OpenFile, Refusal,
    Reply, SandboxHandle, StoredExecution, Used,
};
use sandbox_service::{
    CreatedSandbox, Histogram, IdempotencyKey, KeptReader, ListQuery, Service, UseOutcome,
};
use std::io;
use std::sync::{Arc, Weak};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What is read of a sandbox's file at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A service, as the HTTP API sees it.
pub struct ServiceBackend {
    pub service: Service,
    /// For its figures; it is the service's.
    pub controller: Weak<Controller>,
}

fn used<T>(done: UseOutcome<T>) -> Used<T> {
    let UseOutcome { value, generation, restarted } = done;
    Used { value, generation, restarted }
}

/// Content that is read from a sandbox as it is sent.
fn content(reader: KeptReader) -> BoxStream<'static, Result<Bytes, Refusal>> {
    let next = async |mut reader: KeptReader| {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        match reader.read_buf(&mut piece).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(Bytes::from(piece)), reader)),
            Err(error) => Some((Err(failed_io(&error)), reader)),
        }
    };
    stream::unfold(Some(reader), move |reader| async move {
        let (piece, reader) = next(reader?).await?;
        // After an error there is nothing more.
        let reader = piece.is_ok().then_some(reader);
        Some((piece, reader))
    })
    .boxed()
}

fn failed_io(error: &io::Error) -> Refusal {
    Refusal::new(ProblemKind::Sandbox(ErrorKind::AgentLost), error.to_string())
}

impl ServiceBackend {
    async fn stored(
        &self,
        subject: &Subject,
        id: &str,
        wait: Duration,
    ) -> Result<StoredExecution, Refusal> {
        let stored =
            self.service.wait_for_document(subject, id, wait).await.map_err(Refusal::from)?;
        Ok(StoredExecution { summary: stored.summary, document: stored.document })
    }
}

impl Backend for ServiceBackend {
    fn submit<'a>(
        &'a self,
        subject: &'a Subject,
        request: ExecutionRequest,
        key: Option<String>,
        sandbox: Option<SandboxHandle>,
    ) -> Reply<'a, AcceptedExecution> {
        async move {
            let key = key.map(IdempotencyKey::new).transpose().map_err(Refusal::from)?;
            let submitted = match sandbox {
                None => self.service.submit(subject, request, key).await,
                Some(SandboxHandle { id, generation }) => {
                    self.service.submit_in(subject, &id, generation, request, key).await
                }
            };
            let id = submitted.map_err(Refusal::from)?.id;
            // It is accepted, whatever can be read of it: it may be over and forgotten.
            let stored = self.stored(subject, &id, Duration::ZERO).await;
            let status = stored.map_or(ExecutionState::Queued, |it| it.summary.status);
            Ok(AcceptedExecution { id, status })
        }
        .boxed()
    }

    fn execution<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        wait: Duration,
    ) -> Reply<'a, StoredExecution> {
        self.stored(subject, id, wait).boxed()
    }

    fn cancel<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, StoredExecution> {
        async move {
            self.service.cancel(subject, id).await.map_err(Refusal::from)?;
            self.stored(subject, id, Duration::ZERO).await
        }
        .boxed()
    }

    fn executions<'a>(
        &'a self,
        subject: &'a Subject,
        filter: ListFilter,
    ) -> Reply<'a, ExecutionList> {
        async move {
            let query = ListQuery {
                statuses: filter.status.into_iter().collect(),
                kind: filter.kind,
                sandbox: filter.sandbox,
                limit: usize::try_from(filter.limit).ok(),
                cursor: filter.cursor,
                ..ListQuery::default()
            };
            self.service.list(subject, query).await.map_err(Refusal::from)
        }
        .boxed()
    }

    fn events<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        after: u64,
    ) -> Reply<'a, BoxStream<'static, Result<EventRecord, Refusal>>> {
        async move {
            let events = self.service.events(subject, id, after).await.map_err(Refusal::from)?;
            Ok(events.map(|event| event.map(Arc::unwrap_or_clone).map_err(Refusal::from)).boxed())
        }
        .boxed()
    }

    fn files<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, FileList> {
        async move { self.service.files(subject, id).await.map_err(Refusal::from) }.boxed()
    }

    fn open_file<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        path: &'a [u8],
    ) -> Reply<'a, OpenFile> {
        async move {
            let file = self.service.open_file(subject, id, path).await.map_err(Refusal::from)?;
            Ok(OpenFile {
                file: file.file,
                bytes: file.bytes,
                version: file.version,
                modified: Some(file.modified.unix_millis().div_euclid(1000)),
            })
        }
        .boxed()
    }

    fn archive<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        format: ArchiveFormat,
    ) -> Reply<'a, BoxStream<'static, io::Result<Bytes>>> {
        let format = match format {
            ArchiveFormat::TarGz => sandbox_service::ArchiveFormat::TarGzip,
            ArchiveFormat::TarZst => sandbox_service::ArchiveFormat::TarZstd,
        };
        async move { self.service.archive(subject, id, format).await.map_err(Refusal::from) }
            .boxed()
    }

    fn changes<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ChangeManifest> {
        async move { self.service.changes(subject, id).await.map_err(Refusal::from) }.boxed()
    }

    fn create_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        request: SandboxRequest,
    ) -> Reply<'a, (Used<SandboxView>, IsNew)> {
        async move {
            let created =
                self.service.create_sandbox(subject, request).await.map_err(Refusal::from)?;
            let is_new = if created.is_new { IsNew::Yes } else { IsNew::No };
            let CreatedSandbox { sandbox, restarted, .. } = created;
            let generation = sandbox.generation;
            Ok((Used { value: sandbox, generation, restarted }, is_new))
        }
        .boxed()
    }

    fn sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, SandboxView> {
        async move { self.service.sandbox(subject, id).map_err(Refusal::from) }.boxed()
    }

    fn sandboxes<'a>(&'a self, subject: &'a Subject) -> Reply<'a, SandboxList> {
        async move { Ok(self.service.sandboxes(subject)) }.boxed()
    }

    fn delete_sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ()> {
        async move { self.service.delete_sandbox(subject, id).await.map_err(Refusal::from) }.boxed()
    }

    fn extend_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        request: ExtendRequest,
    ) -> Reply<'a, SandboxView> {
        let ttl = Duration::from_millis(request.ttl_ms);
        async move { self.service.extend_sandbox(subject, id, ttl).await.map_err(Refusal::from) }
            .boxed()
    }

    fn operate<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        request: OperationRequest,
    ) -> Reply<'a, Used<Envelope>> {
        async move {
            let SandboxHandle { id, generation } = sandbox;
            let done = self.service.perform(subject, &id, generation, request).await;
            done.map(used).map_err(Refusal::from)
        }
        .boxed()
    }

    fn read_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        path: &'a [u8],
    ) -> Reply<'a, Used<BoxStream<'static, Result<Bytes, Refusal>>>> {
        async move {
            let SandboxHandle { id, generation } = sandbox;
            let reader = self.service.read_file(subject, &id, generation, Read::new(path)).await;
            let UseOutcome { value, generation, restarted } = reader.map_err(Refusal::from)?;
            Ok(Used { value: content(value), generation, restarted })
        }
        .boxed()
    }

    fn write_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        write: FileWrite<'a>,
    ) -> Reply<'a, Used<WriteReply>> {
        async move {
            let SandboxHandle { id, generation } = sandbox;
            let FileWrite { path, mode, bytes, mut content } = write;
            let write = Write { mode, ..Write::new(path) };
            let writer = self.service.write_file(subject, &id, generation, write, bytes).await;
            let mut writer = writer.map_err(Refusal::from)?;
            while let Some(piece) = content.next().await {
                // Dropped without its end, nothing is written.
                let piece = piece?;
                writer.make_room(piece.len()).await.map_err(Refusal::from)?;
                if let Err(error) = writer.write_all(&piece).await {
                    // Why is known at the end.
                    return match writer.finish().await {
                        Ok(_) => Err(failed_io(&error)),
                        Err(error) => Err(error.into()),
                    };
                }
            }
            writer.finish().await.map(used).map_err(Refusal::from)
        }
        .boxed()
    }

    fn usage<'a>(&'a self, subject: &'a Subject) -> Reply<'a, UsageTotals> {
        async move { self.service.usage(subject).await.map_err(Refusal::from) }.boxed()
    }

    fn health(&self) -> BoxFuture<'_, Health> {
        self.service.health().boxed()
    }

    fn figures(&self) -> Vec<Figure> {
        let counters = self.service.counters();
        let counter = |name, help, value: u64| figure(name, help, FigureValue::Counter, value);
        let gauge = |name, help, value: u64| figure(name, help, FigureValue::Gauge, value);
        let ended = counters.ended.iter().map(|(status, count)| Figure {
            labels: vec![("status", status.as_str().to_owned())],
            ..counter("executions_ended", "Executions that have ended, by status.", *count)
        });
        let mut figures: Vec<Figure> = ended.collect();
        figures.extend([
            counter("executions_accepted", "Executions that were accepted.", counters.accepted),
            counter(
                "executions_refused_full",
                "Executions that were refused because the queue was full.",
                counters.refused_full,
            ),
            counter(
                "executions_refused_quota",
                "Executions that were refused because of a rate or a quota.",
                counters.refused_quota,
            ),
            counter(
                "sandbox_starts_retried",
                "Starts of sandboxes that were tried again.",
                counters.retried_starts,
            ),
            counter(
                "sandbox_removals_failed",
                "Sandboxes that could not be removed at once.",
                counters.failed_removals,
            ),
            gauge("executions_queued", "Executions that wait.", counters.queued),
            gauge("executions_running", "Executions that run.", counters.running),
            gauge("sandboxes_kept", "Kept sandboxes that exist.", counters.sandboxes),
        ]);
        for (name, help, times) in [
            ("queue_wait_seconds", "How long requests waited for their turn.", &counters.waits),
            ("sandbox_start_seconds", "How long starts of sandboxes took.", &counters.starts),
            ("execution_seconds", "How long executions ran, by status.", &counters.runs),
        ] {
            figures.extend(times.iter().map(|times| histogram(name, help, times)));
        }
        if let Some(pool) = self.controller.upgrade().and_then(|it| it.pool_stats()) {
            figures.extend(pool_figures(&pool));
        }
        figures
    }
}

fn pool_figures(pool: &PoolStats) -> Vec<Figure> {
    let counter = |name, help, value: u64| figure(name, help, FigureValue::Counter, value);
    let gauge = |name, help, value: usize| figure(name, help, FigureValue::Gauge, value as u64);
    let seconds = |name, help, kind: fn(f64) -> FigureValue, time: Duration| Figure {
        value: kind(time.as_secs_f64()),
        ..figure(name, help, kind, 0)
    };
    vec![
        gauge("pool_keys", "Kinds of sandboxes that are started ahead.", pool.keys),
        gauge("pool_target", "Sandboxes that are to be ready.", pool.target),
        gauge("pool_parked", "Sandboxes that are ready: started ahead.", pool.parked),
        gauge("pool_filling", "Sandboxes that are being started ahead.", pool.filling),
        seconds(
            "pool_oldest_seconds",
            "Age of the oldest pooled sandbox.",
            FigureValue::Gauge,
            pool.oldest,
        ),
        counter("pool_claims", "Launches of sandboxes that can be pooled.", pool.claims),
        counter("pool_hits", "Launches that were given a pooled sandbox.", pool.hits),
        counter("pool_misses", "Launches for which none was ready.", pool.misses),
        counter("pool_unpooled", "Launches of sandboxes that are never pooled.", pool.unpooled),
        seconds(
            "pool_claimed_age_seconds",
            "Ages of the sandboxes that were given, together.",
            FigureValue::Counter,
            pool.claimed_age,
        ),
        counter("pool_filled", "Sandboxes that were started ahead.", pool.filled),
        seconds(
            "pool_fill_seconds",
            "Time that starts ahead took, together.",
            FigureValue::Counter,
            pool.fill_time,
        ),
        counter("pool_failed", "Starts ahead that failed.", pool.failed),
        counter("pool_dead", "Pooled sandboxes that died or could not be given.", pool.dead),
        counter("pool_expired", "Pooled sandboxes that nobody claimed in time.", pool.expired),
    ]
}

fn histogram(name: &'static str, help: &'static str, times: &Histogram) -> Figure {
    let Histogram { status, subject, sum, buckets } = times;
    let status = status.map(|status| ("status", status.to_owned()));
    let subject = subject.clone().map(|subject| ("subject", subject));
    let value = FigureValue::Histogram { buckets: buckets.to_vec(), sum: *sum };
    Figure { name, help, labels: status.into_iter().chain(subject).collect(), value }
}

fn figure(
    name: &'static str,
    help: &'static str,
    kind: fn(f64) -> FigureValue,
    value: u64,
) -> Figure {
    #[expect(clippy::cast_precision_loss, reason = "counts of a process are smaller")]
    let value = value as f64;
    Figure { name, help, labels: Vec::new(), value: kind(value) }
}
