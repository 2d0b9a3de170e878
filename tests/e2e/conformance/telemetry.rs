//! What a service sends to a collector of OpenTelemetry.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::{Value, json};

use super::service::{Service, serve};
use crate::collector::{Collector, hex, texts};
use crate::fixture::{Fixture, finish, own_host};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// The id of a script that ran to its end, in the trace of its caller.
fn run(service: &Service<'_>, script: &str, flags: &str) -> Value {
    let headers = format!("traceparent: 00-{TRACE}-{CALLER}-{flags}\r\n");
    let request = json!({ "script": script }).to_string();
    let (status, body) = service.http("POST", "/v1/executions?wait=60", &headers, &request);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn an_execution_is_one_trace_in_that_of_its_caller() {
    let place = Fixture::new();
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k%207"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.instance.id=n1"),
    ];
    let service = Service::with(&place, &["--pool", "0", "--log-format", "json"], &variables);
    let execution = run(&service, "return 1", "01");
    let failed = run(&service, "error('no')", "01");
    assert_eq!(failed["status"], "script_error");
    // Its caller records nothing of it.
    run(&service, "return 2", "00");
    let (status, _) = service.http("GET", "/healthz", "", "");
    assert_eq!(status, 200);
    let log = service.stop();

    let (resources, spans): (Vec<_>, Vec<_>) = collector.spans().into_iter().unzip();
    let resource = &resources[0];
    assert_eq!(resource["service.name"], "sandboxctl");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&*resource["deployment.environment"], &*resource["service.instance.id"]),
        ("test", "n1")
    );
    assert!(collector.keys().iter().all(|key| key == "k 7"));

    let of = |span: &Span| texts(&span.attributes);
    let find = |name: &str, parent: &str| -> Vec<&Span> {
        let is_it = |span: &&Span| span.name == name && hex(&span.parent_span_id) == parent;
        spans.iter().filter(is_it).collect()
    };
    let requests = find("POST /v1/executions", CALLER);
    assert_eq!(requests.len(), 2, "{spans:#?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let mut ended = Vec::new();
    for request in requests {
        assert_eq!(of(request)["http.response.status_code"], "200");
        assert_eq!(of(request)["enduser.id"], "local");
        let execution = find("execution", &hex(&request.span_id));
        let [execution] = *execution else { panic!("{spans:#?}") };
        let step = |name| {
            let found = find(name, &hex(&execution.span_id));
            assert!(!found.is_empty(), "{name}: {spans:#?}");
            found
        };
        let (queued, started, ran) = (step("queued")[0], step("start")[0], step("run")[0]);
        // Its acceptance and its end.
        let commits = step("commit");
        assert_eq!(commits.len(), 2, "{spans:#?}");
        let last = commits.iter().map(|span| span.end_time_unix_nano).max().unwrap();
        assert!(execution.start_time_unix_nano <= queued.start_time_unix_nano);
        assert!(started.end_time_unix_nano <= ran.start_time_unix_nano);
        assert!(queued.end_time_unix_nano <= ran.start_time_unix_nano);
        assert!(ran.end_time_unix_nano <= last && last <= execution.end_time_unix_nano);
        // What a script does wrong is no failure of the service.
        assert_ne!(execution.status.clone().unwrap_or_default().code(), StatusCode::Error);
        let attributes = of(execution);
        let id = attributes["sandboxctl.execution.id"].clone();
        ended.push((id, attributes["sandboxctl.execution.status"].clone()));
    }
    let id = |execution: &Value| execution["id"].as_str().unwrap().to_owned();
    let expected = [(id(&execution), "ok".to_owned()), (id(&failed), "script_error".to_owned())];
    ended.sort_by_key(|(id, _)| *id != expected[0].0);
    assert_eq!(ended, expected);
    assert!(log.lines().any(|line| line.contains(TRACE)), "{log}");

    let count = |name, with| collector.metric(name, with);
    assert_eq!(count("sandboxctl_executions_accepted", None), Some(3.0));
    assert_eq!(count("sandboxctl_executions_running", None), Some(0.0));
    assert_eq!(count("sandboxctl_executions_ended", Some("ok")), Some(2.0));
    assert_eq!(count("sandboxctl_execution_seconds", Some("script_error")), Some(1.0));
    assert_eq!(count("sandboxctl_queue_wait_seconds", None), Some(3.0));
    assert_eq!(count("http.server.request.duration", Some("/v1/executions")), Some(3.0));
    assert_eq!(count("http.server.request.duration", Some("/healthz")), None);
}

#[test]
fn collector_that_is_away_disturbs_nothing() {
    let place = Fixture::new();
    // Nothing listens there.
    let url = format!("http://{}:4318", own_host(1));
    let service = Service::with(&place, &[], &[("SANDBOXCTL_SERVER_OTLP_ENDPOINT", &url)]);
    assert_eq!(run(&service, "return 1", "01")["result"], 1);
    let log = service.stop();
    assert!(log.contains("telemetry was not sent"), "{log}");
}

#[test]
fn collector_that_cannot_be_used_is_refused_at_the_start() {
    let place = Fixture::new();
    for (name, value, why) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317", "OTLP collector"),
        ("SANDBOXCTL_SERVER_OTLP_ENDPOINT", "unix:/collector", "OTLP collector"),
    ] {
        let refused = finish(serve(&place, &["--insecure-no-auth"], &[(name, value)]));
        refused.assert_code(2).assert_stderr_has(name).assert_stderr_has(why);
    }
}
