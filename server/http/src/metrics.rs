//! Figures of the server, for `/metrics`.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, Counter as SentCounter};
use opentelemetry::{KeyValue, global};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use sandbox_service::{ClusterCounters, Counters, Histogram as Times, PoolStats, Service};

/// The bounds of durations of requests, in seconds: from what a warm start takes to the longest wait.
pub(crate) const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// The content type of `/metrics`.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A label and its value: a route, a status, a result. Each has few values, for any request.
type Label<V> = [(&'static str, V); 1];

/// The figures.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<(Label<&'static str>, Label<u16>), Counter>,
    durations: Family<Label<&'static str>, Histogram>,
    in_flight: Gauge<i64, AtomicI64>,
    connections: Gauge<i64, AtomicI64>,
    connections_refused: Counter<u64, AtomicU64>,
    forwarded: Family<Label<&'static str>, Counter>,
    /// The same for OpenTelemetry.
    forwarded_sent: SentCounter<u64>,
}

impl Metrics {
    pub fn new(service: Service) -> Self {
        let mut registry = Registry::with_prefix("sandboxctl");
        let requests = Family::default();
        let durations =
            Family::<Label<_>, Histogram>::new_with_constructor(|| Histogram::new(BOUNDS));
        let (in_flight, connections) = (Gauge::default(), Gauge::default());
        let connections_refused = Counter::default();
        registry.register("http_requests", "Requests by route and status", requests.clone());
        registry.register(
            "http_request_duration_seconds",
            "Time until the head of an answer",
            durations.clone(),
        );
        registry.register("http_requests_in_flight", "Requests in progress", in_flight.clone());
        registry.register("http_connections", "Open connections", connections.clone());
        registry.register(
            "http_connections_refused",
            "Connections beyond those that one address may have",
            connections_refused.clone(),
        );
        let forwarded = Family::default();
        let help = "Requests that were sent to another node, by what came of it";
        registry.register("forwarded_requests", help, forwarded.clone());
        let meter = global::meter("sandboxctl");
        let forwarded_sent = meter.u64_counter("sandboxctl_forwarded_requests");
        let forwarded_sent = forwarded_sent.with_description(help).build();
        send(&service);
        registry.register_collector(Box::new(OfService(service)));
        Self {
            registry,
            requests,
            durations,
            in_flight,
            connections,
            connections_refused,
            forwarded,
            forwarded_sent,
        }
    }

    pub fn request_begun(&self) -> InGauge {
        InGauge::new(&self.in_flight)
    }

    pub fn request_answered(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&([("route", route)], [("status", status)])).inc();
        self.durations.get_or_create(&[("route", route)]).observe(took.as_secs_f64());
    }

    pub fn connection_opened(&self) -> InGauge {
        InGauge::new(&self.connections)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        usize::try_from(self.connections.get()).unwrap_or_default()
    }

    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// Counts a request that was sent on, by what came of it.
    pub fn forwarded(&self, result: &'static str) {
        self.forwarded.get_or_create(&[("result", result)]).inc();
        self.forwarded_sent.add(1, &[KeyValue::new("result", result)]);
    }

    /// All of them, as text.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// One of what a gauge counts.
pub(crate) struct InGauge(Gauge<i64, AtomicI64>);

impl InGauge {
    fn new(gauge: &Gauge<i64, AtomicI64>) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The figures of the service.
#[derive(Debug)]
struct OfService(Service);

impl Collector for OfService {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counters = self.0.counters();
        if !counters.ended.is_empty() {
            let kind = MetricType::Counter;
            let mut metric = encoder.encode_descriptor("executions_ended", ENDED, None, kind)?;
            for (status, count) in &counters.ended {
                let labels = [("status", status.as_str())];
                ConstCounter::new(float(*count)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let cluster = self.0.cluster_counters();
        encode_rows(&mut encoder, &all_rows(&counters, cluster.as_ref()))?;
        if let Some(ClusterCounters { commits, commit_seconds, .. }) = cluster {
            let help = "How long transactions took to be committed.";
            let (name, kind) = ("database_commit_seconds", MetricType::Histogram);
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            // Their sum and their number: there are no bounds.
            let all = [(f64::INFINITY, commits)];
            metric.encode_histogram::<NoLabelSet>(commit_seconds, commits, &all, None)?;
        }
        for (name, help, times) in [
            ("queue_wait_seconds", "How long requests waited for their turn.", &counters.waits),
            ("sandbox_start_seconds", "How long starts of sandboxes took.", &counters.starts),
            ("execution_seconds", "How long executions ran, by status.", &counters.runs),
        ] {
            if !times.is_empty() {
                let kind = MetricType::Histogram;
                let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
                times.iter().try_for_each(|times| encode_times(&mut metric, times))?;
            }
        }
        Ok(())
    }
}

/// Has the figures of the service sent by OpenTelemetry, under their names here; the times are where
/// they are measured.
fn send(service: &Service) {
    let rows_of =
        |service: &Service| all_rows(&service.counters(), service.cluster_counters().as_ref());
    let rows = rows_of(service);
    // The callbacks are kept for as long as this process.
    let service = service.downgrade();
    let meter = global::meter("sandboxctl");
    for (index, (name, help, kind, _)) in rows.into_iter().enumerate() {
        let service = service.clone();
        let observe = move |observer: &dyn AsyncInstrument<f64>| {
            let rows = service.upgrade().map(|service| rows_of(&service));
            if let Some((.., value)) = rows.and_then(|rows| rows.into_iter().nth(index)) {
                observer.observe(value, &[]);
            }
        };
        let name = format!("sandboxctl_{name}");
        match kind {
            MetricType::Counter => {
                let counter = meter.f64_observable_counter(name).with_description(help);
                counter.with_callback(observe).build();
            }
            _ => {
                let gauge = meter.f64_observable_gauge(name).with_description(help);
                gauge.with_callback(observe).build();
            }
        }
    }
    let ended = meter.u64_observable_counter("sandboxctl_executions_ended");
    let ended = ended.with_description(ENDED).with_callback(move |observer| {
        let ended = service.upgrade().map(|service| service.counters().ended);
        for (status, count) in ended.into_iter().flatten() {
            observer.observe(count, &[KeyValue::new("status", status.as_str())]);
        }
    });
    ended.build();
}

/// All of them: which there are does not change while a service runs.
fn all_rows(counters: &Counters, cluster: Option<&ClusterCounters>) -> Vec<Row> {
    let pool = counters.pool.as_ref().map(pool_rows);
    let cluster = cluster.map(|cluster| cluster_rows(counters, cluster));
    let all = rows(counters).into_iter().chain(pool.into_iter().flatten());
    all.chain(cluster.into_iter().flatten()).collect()
}

/// What `executions_ended` is.
const ENDED: &str = "Executions that have ended, by status.";

/// A metric of one value: its name, what it is, its type and its value.
type Row = (&'static str, &'static str, MetricType, f64);

fn counter(name: &'static str, help: &'static str, count: u64) -> Row {
    (name, help, MetricType::Counter, float(count))
}

fn gauge(name: &'static str, help: &'static str, count: u64) -> Row {
    (name, help, MetricType::Gauge, float(count))
}

fn rows(counters: &Counters) -> [Row; 13] {
    let full = "Executions that were refused because the queue was full.";
    let quota = "Executions that were refused because of a rate or a quota.";
    let retried = "Starts of sandboxes that were tried again.";
    let not_removed = "Sandboxes that could not be removed at once.";
    let running = "Processes of kept sandboxes that have not ended, with what they left.";
    let started = "Processes of kept sandboxes that were started.";
    let paused = "Kept sandboxes that are paused, which have their memory.";
    let memory = "The memory that these had when they were paused.";
    [
        counter("executions_accepted", "Executions that were accepted.", counters.accepted),
        counter("executions_refused_full", full, counters.refused_full),
        counter("executions_refused_quota", quota, counters.refused_quota),
        counter("sandbox_starts_retried", retried, counters.retried_starts),
        counter("sandbox_removals_failed", not_removed, counters.failed_removals),
        gauge("executions_queued", "Executions that wait.", counters.queued),
        gauge("executions_running", "Executions that run.", counters.running),
        gauge("sandboxes_kept", "Kept sandboxes that exist.", counters.sandboxes),
        gauge("sandboxes_paused", paused, counters.paused),
        gauge("sandboxes_paused_memory_bytes", memory, counters.paused_memory),
        counter("sandbox_pauses", "Pauses of kept sandboxes.", counters.pauses),
        gauge("processes_running", running, counters.processes),
        counter("processes_started", started, counters.processes_started),
    ]
}

fn cluster_rows(counters: &Counters, cluster: &ClusterCounters) -> [Row; 8] {
    let age = "Time since this node renewed its session.";
    let claims = "Executions that this node took from the queue.";
    let fenced = "Changes of executions that were refused: another node had ended them.";
    let requeued = "Executions that were put back after their node was lost.";
    let oldest = "How long the execution waits that waits longest.";
    [
        gauge("cluster_sessions", "Nodes that are there.", cluster.sessions),
        ("cluster_beat_age_seconds", age, MetricType::Gauge, cluster.beat_age),
        counter("cluster_claims", claims, cluster.claims),
        counter(
            "cluster_claimed_empty",
            "Looks for executions that found none.",
            cluster.empty_claims,
        ),
        counter("executions_fenced", fenced, counters.fenced),
        counter("executions_requeued", requeued, cluster.requeued),
        counter(
            "database_retries",
            "Transactions that were begun again.",
            cluster.database_retries,
        ),
        ("queue_oldest_seconds", oldest, MetricType::Gauge, cluster.queue_oldest),
    ]
}

fn pool_rows(pool: &PoolStats) -> [Row; 15] {
    use MetricType::{Counter, Gauge};
    let size = |name, help, number: usize| gauge(name, help, number as u64);
    let given = "Launches that were given a pooled sandbox.";
    let unpooled = "Launches of sandboxes that are never pooled.";
    let ages = "Ages of the sandboxes that were given, together.";
    let times = "Time that starts ahead took, together.";
    let dead = "Pooled sandboxes that died or could not be given.";
    let expired = "Pooled sandboxes that expired unclaimed.";
    let oldest = "Age of the oldest pooled sandbox.";
    [
        size("pool_keys", "Kinds of sandboxes that are started ahead.", pool.keys),
        size("pool_target", "Sandboxes that are to be ready.", pool.target),
        size("pool_parked", "Sandboxes that are ready: started ahead.", pool.parked),
        size("pool_filling", "Sandboxes that are being started ahead.", pool.filling),
        ("pool_oldest_seconds", oldest, Gauge, pool.oldest.as_secs_f64()),
        counter("pool_claims", "Launches of sandboxes that can be pooled.", pool.claims),
        counter("pool_hits", given, pool.hits),
        counter("pool_misses", "Launches for which none was ready.", pool.misses),
        counter("pool_unpooled", unpooled, pool.unpooled),
        ("pool_claimed_age_seconds", ages, Counter, pool.claimed_age.as_secs_f64()),
        counter("pool_filled", "Sandboxes that were started ahead.", pool.filled),
        ("pool_fill_seconds", times, Counter, pool.fill_time.as_secs_f64()),
        counter("pool_failed", "Starts ahead that failed.", pool.failed),
        counter("pool_dead", dead, pool.dead),
        counter("pool_expired", expired, pool.expired),
    ]
}

fn encode_rows(encoder: &mut DescriptorEncoder<'_>, rows: &[Row]) -> Result<(), fmt::Error> {
    for &(name, help, kind, value) in rows {
        let metric = encoder.encode_descriptor(name, help, None, kind)?;
        match kind {
            MetricType::Counter => ConstCounter::new(value).encode(metric)?,
            _ => ConstGauge::new(value).encode(metric)?,
        }
    }
    Ok(())
}

fn encode_times(metric: &mut MetricEncoder<'_>, times: &Times) -> Result<(), fmt::Error> {
    let Times { status, subject, sum, buckets } = times;
    let status = status.map(|status| ("status", status));
    let subject = subject.as_deref().map(|subject| ("subject", subject));
    let labels: Vec<_> = status.into_iter().chain(subject).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    match labels.is_empty() {
        true => metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None),
        false => metric
            .encode_family(&labels)?
            .encode_histogram::<NoLabelSet>(*sum, count, buckets, None),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a process are smaller")]
fn float(count: u64) -> f64 {
    count as f64
}
