//! One trace, whatever node does its part.

use opentelemetry_proto::tonic::trace::v1::Span;
use sandbox_store::fixture::Postgres;
use serde_json::json;

use super::nodes::{Cluster, LONG_LEASE};
use crate::collector::{Collector, hex};
use crate::fixture::{Fixture, eventually};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[test]
fn an_execution_and_a_forwarded_request_are_in_the_trace_of_their_caller() {
    let place = Fixture::new();
    let collector = Collector::start();
    let mut cluster = Cluster::new(&place, Postgres::shared(), LONG_LEASE);
    cluster.variables.push(("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.clone()));
    cluster.variables.push(("OTEL_METRIC_EXPORT_INTERVAL", "200".to_owned()));
    cluster.variables.push(("SANDBOXCTL_SERVER_CONCURRENCY", "1".to_owned()));
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let traced = |node| cluster.call(node, "a").with("traceparent", &traceparent);
    cluster.start(0);
    let busy = cluster.run_on(0, "a", "while true do end");
    let queued = traced(0).submit("return 1");
    cluster.start(1);
    assert_eq!(cluster.ended(1, "a", &queued)["status"], "ok");
    assert_eq!(cluster.node_of(&queued), Some(1));
    let path = format!("/v1/executions/{busy}");
    assert_eq!(traced(1).exchange("DELETE", &path, "").unwrap().0, 200);
    assert_eq!(cluster.ended(0, "a", &busy)["status"], json!("cancelled"));
    // What came last is of this node or of the other one.
    eventually("the requests that were forwarded are sent", || {
        collector.metric("sandboxctl_forwarded_requests", Some("ok"))
    });
    cluster.end();

    let all = collector.spans();
    // A span by its name, its node and its parent.
    let find = |name: &str, node: usize, parent: &str| -> Span {
        let port = format!(":{}", cluster.nodes[node].address.port());
        let found = all.iter().find(|(resource, span)| {
            span.name == name
                && resource["service.instance.id"].ends_with(&port)
                && hex(&span.parent_span_id) == parent
        });
        let (_, span) = found.unwrap_or_else(|| panic!("no {name} of {node}: {all:#?}"));
        assert_eq!(hex(&span.trace_id), TRACE);
        span.clone()
    };
    let request = hex(&find("POST /v1/executions", 0, CALLER).span_id);
    find("enqueue", 0, &request);
    let execution = hex(&find("execution", 1, &request).span_id);
    for step in ["queued", "start", "run", "commit"] {
        find(step, 1, &execution);
    }
    let forwarded = hex(&find("DELETE /v1/executions/{id}", 1, CALLER).span_id);
    find("DELETE /v1/executions/{id}", 0, &forwarded);
}
