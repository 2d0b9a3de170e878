//! The span of a request, for OpenTelemetry: in the trace of its caller, if that sent one.

use std::sync::LazyLock;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use opentelemetry::metrics::Histogram;
use opentelemetry::trace::{SpanBuilder, SpanKind, Status as SpanStatus, TraceContextExt as _};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::HeaderExtractor;
use sandbox_api::service::Subject;

use crate::metrics::BOUNDS;

/// The name under which this crate reports.
const SCOPE: &str = "sandboxctl";
/// What is asked every few seconds, by probes and scrapers.
const PROBES: [&str; 3] = ["/healthz", "/metrics", "/readyz"];

/// How long requests took until the heads of their answers.
static DURATION: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    let meter = global::meter(SCOPE);
    let histogram = meter.f64_histogram("http.server.request.duration");
    histogram.with_unit("s").with_boundaries(BOUNDS.to_vec()).build()
});

/// A request, and what is done for it.
pub(crate) struct RequestTrace {
    /// Its span is the current one in this.
    pub context: Context,
    since: Instant,
    method: &'static str,
    /// Its method and its route; none, if nothing is sent of it.
    attributes: Vec<KeyValue>,
}

impl RequestTrace {
    pub fn begin(request: &Request) -> Self {
        let (path, since) = (request.uri().path(), Instant::now());
        if PROBES.contains(&path) {
            return Self { context: Context::new(), since, method: "", attributes: Vec::new() };
        }
        let caller = HeaderExtractor(request.headers());
        let parent = global::get_text_map_propagator(|it| it.extract(&caller));
        let method = known(request.method());
        let attributes = vec![KeyValue::new("http.request.method", method)];
        let span = SpanBuilder::from_name(method)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes.clone())
            .start_with_context(&global::tracer(SCOPE), &parent);
        let context = parent.with_span(span);
        context.span().set_attribute(KeyValue::new("url.path", path.to_owned()));
        Self { context, since, method, attributes }
    }

    /// The id of the trace, if it is recorded.
    pub fn id(&self) -> Option<String> {
        let span = self.context.span();
        span.span_context().is_valid().then(|| span.span_context().trace_id().to_string())
    }

    /// The head of its answer is there.
    pub fn answered(mut self, status: u16, subject: Option<&Subject>, route: Option<&MatchedPath>) {
        let code = KeyValue::new("http.response.status_code", i64::from(status));
        let span = self.context.span();
        if let (Some(route), false) = (route, self.attributes.is_empty()) {
            let route = route.as_str().to_owned();
            span.update_name(format!("{} {route}", self.method));
            let route = KeyValue::new("http.route", route);
            span.set_attribute(route.clone());
            self.attributes.push(route);
        }
        span.set_attribute(code.clone());
        if !self.attributes.is_empty() {
            self.attributes.push(code);
            DURATION.record(self.since.elapsed().as_secs_f64(), &self.attributes);
        }
        if let Some(subject) = subject {
            span.set_attribute(KeyValue::new("enduser.id", subject.as_str().to_owned()));
        }
        if status >= 500 {
            span.set_status(SpanStatus::error(""));
        }
        span.end();
    }
}

/// The method; a single word for all that a caller may make up.
fn known(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|known| method.as_str() == *known).unwrap_or("_OTHER")
}
