//! Figures of the server, for `/metrics`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::backend::{Backend, Figure, FigureValue};

/// The bounds of durations of requests, in seconds: from what a warm start takes to the longest wait.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// The content type of `/metrics`.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A route and the status of its answer. Both are of few values, whatever is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

/// The figures.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    durations: Family<RouteLabel, Histogram>,
    in_flight: Gauge<i64, AtomicI64>,
    connections: Gauge<i64, AtomicI64>,
    connections_refused: Counter<u64, AtomicU64>,
}

impl Metrics {
    pub fn new(backend: Option<Arc<dyn Backend>>) -> Self {
        let mut registry = Registry::with_prefix("sandboxctl");
        let requests = Family::default();
        let durations =
            Family::<RouteLabel, Histogram>::new_with_constructor(|| Histogram::new(BOUNDS));
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
        if let Some(backend) = backend {
            registry.register_collector(Box::new(Figures(backend)));
        }
        Self { registry, requests, durations, in_flight, connections, connections_refused }
    }

    pub fn request_begun(&self) -> InGauge {
        InGauge::new(&self.in_flight)
    }

    pub fn request_answered(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&Labels { route, status }).inc();
        self.durations.get_or_create(&RouteLabel { route }).observe(took.as_secs_f64());
    }

    pub fn connection_opened(&self) -> InGauge {
        InGauge::new(&self.connections)
    }

    pub fn connection_refused(&self) {
        self.connections_refused.inc();
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
struct Figures(Arc<dyn Backend>);

impl fmt::Debug for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.figures();
        for figures in all.chunk_by(|one, other| one.name == other.name) {
            let Figure { name, help, value, .. } = &figures[0];
            let kind = match value {
                FigureValue::Counter(_) => MetricType::Counter,
                FigureValue::Gauge(_) => MetricType::Gauge,
                FigureValue::Histogram { .. } => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            match figures {
                [Figure { labels, value, .. }] if labels.is_empty() => encode_value(value, metric)?,
                _ => {
                    for Figure { labels, value, .. } in figures {
                        encode_value(value, metric.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn encode_value(value: &FigureValue, mut metric: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match value {
        FigureValue::Counter(value) => ConstCounter::new(*value).encode(metric),
        FigureValue::Gauge(value) => ConstGauge::new(*value).encode(metric),
        FigureValue::Histogram { buckets, sum } => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}
