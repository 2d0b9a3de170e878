//! The spans of executions, for OpenTelemetry. The program sets where they go; without that they cost
//! next to nothing.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use opentelemetry::global::{self, BoxedSpan};
use opentelemetry::trace::{SpanBuilder, Status as SpanStatus, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use sandbox_api::Status;
use sandbox_api::service::{ExecutionKind, Subject, Time};

/// The name under which this crate reports.
const SCOPE: &str = "sandboxctl";
/// The name of a trace context, of W3C.
const TRACE_PARENT: &str = "traceparent";

/// The `traceparent` of the request that is handled now, if traces are sent.
pub(crate) fn parent() -> Option<String> {
    let mut carried = HashMap::new();
    global::get_text_map_propagator(|it| it.inject(&mut carried));
    carried.remove(TRACE_PARENT)
}

/// The span of an execution, from its acceptance to its durable end; the steps in it are its children.
#[derive(Debug)]
pub(crate) struct ExecutionTrace {
    context: Context,
    accepted_at: SystemTime,
}

impl ExecutionTrace {
    /// Of an execution that is accepted now, in the span of its request.
    pub fn accepted(id: &str, subject: &Subject, kind: ExecutionKind) -> Self {
        Self::begin(id, subject, kind, SystemTime::now(), &Context::current())
    }

    /// Of an execution that was accepted then by another process, in a request with this `traceparent`.
    pub fn taken_over(
        id: &str,
        subject: &Subject,
        kind: ExecutionKind,
        created_at: Time,
        parent: Option<String>,
    ) -> Self {
        let carried: HashMap<_, _> =
            HashMap::from_iter(parent.map(|parent| (TRACE_PARENT.to_owned(), parent)));
        let parent = global::get_text_map_propagator(|it| it.extract(&carried));
        let since_1970 = u64::try_from(created_at.unix_millis()).unwrap_or_default();
        let created_at = SystemTime::UNIX_EPOCH + Duration::from_millis(since_1970);
        // The clock of its machine may be ahead.
        Self::begin(id, subject, kind, created_at.min(SystemTime::now()), &parent)
    }

    fn begin(
        id: &str,
        subject: &Subject,
        kind: ExecutionKind,
        accepted_at: SystemTime,
        parent: &Context,
    ) -> Self {
        let span = SpanBuilder::from_name("execution")
            .with_start_time(accepted_at)
            .with_attributes([
                KeyValue::new("sandboxctl.execution.id", id.to_owned()),
                KeyValue::new("sandboxctl.execution.kind", kind.as_str()),
                KeyValue::new("enduser.id", subject.as_str().to_owned()),
            ])
            .start_with_context(&global::tracer(SCOPE), parent);
        Self { context: parent.with_span(span), accepted_at }
    }

    /// It waits in the queue of a cluster: the span of the execution is that of the node that runs it.
    pub fn enqueued(&self) {
        self.context.span().update_name("enqueue");
        self.context.span().end();
    }

    /// Its turn has come: the time until now was spent in the queue.
    pub fn began(&self) {
        let queued = SpanBuilder::from_name("queued").with_start_time(self.accepted_at);
        drop(queued.start_with_context(&global::tracer(SCOPE), &self.context));
    }

    /// A step of it, until the span is dropped.
    #[must_use = "the step ends when this is dropped"]
    pub fn step(&self, name: &'static str) -> BoxedSpan {
        global::tracer(SCOPE).start_with_context(name, &self.context)
    }

    /// It has ended, and its end is as durable as it becomes.
    pub fn ended(&self, status: Status) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("sandboxctl.execution.status", status.as_str()));
        // What a guest does wrong is no failure of the service.
        if matches!(status, Status::Error | Status::Killed | Status::AgentLost) {
            span.set_status(SpanStatus::error(status.as_str()));
        }
        span.end();
    }
}
