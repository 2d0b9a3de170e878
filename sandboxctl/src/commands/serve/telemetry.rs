//! Traces and metrics for OpenTelemetry, sent by OTLP over HTTP to a collector: off, unless its address
//! is set. What the variables of OpenTelemetry's SDKs mean is theirs.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use opentelemetry::{KeyValue, global};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    MetricExporter, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustix::system::uname;
use sandbox_http::Endpoint;
use tokio::runtime::Handle;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::cli::remote::read_certificates;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::remote::{Connection, ServerAddress, whole};

/// How long a collector may take for a batch, and a shutdown for what was not sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer of a collector that is read.
const MAX_ANSWER: usize = 1 << 20;

/// What is sent, each to an address of its own, as the variables of OpenTelemetry name it.
const TRACES: &str = "TRACES";
const METRICS: &str = "METRICS";

/// Where a signal goes; `None` if it goes nowhere. A variable overrides the key.
fn destination(
    signal: &str,
    variable: impl Fn(&str) -> Option<String>,
    key: Option<(&str, String)>,
) -> Result<Option<String>, Error> {
    let is_off = |value: &String| value.eq_ignore_ascii_case("true");
    if variable("OTEL_SDK_DISABLED").as_ref().is_some_and(is_off)
        || variable(&format!("OTEL_{signal}_EXPORTER")).as_deref() == Some("none")
    {
        return Ok(None);
    }
    let of_signal = |name: &str| format!("OTEL_EXPORTER_OTLP_{signal}_{name}");
    let own = of_signal("ENDPOINT");
    let shared = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let path = signal.to_ascii_lowercase();
    let joined = |base: &str| format!("{}/v1/{path}", base.trim_end_matches('/'));
    let (name, url) = if let Some(url) = variable(&own) {
        (own, url)
    } else if let Some(base) = variable(shared) {
        (shared.to_owned(), joined(&base))
    } else if let Some((base, name)) = key {
        (name, joined(base))
    } else {
        return Ok(None);
    };
    if !matches!(url.parse(), Ok(ServerAddress::Tcp { .. })) {
        return Err(Error::usage(name, "it is not the URL of an OTLP collector")
            .with_hint("such as http://127.0.0.1:4318"));
    }
    for name in [of_signal("PROTOCOL"), "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()] {
        match variable(&name).as_deref() {
            None => {}
            Some("http/protobuf") => break,
            Some(_) => {
                return Err(Error::usage(name, "telemetry is sent as http/protobuf alone")
                    .with_hint("collectors take that at port 4318"));
            }
        }
    }
    Ok(Some(url))
}

/// The telemetry of this process, while it is sent.
#[derive(Default)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
}

impl Telemetry {
    /// Starts to send what the settings or the variables ask for, on the runtime of the caller.
    ///
    /// # Errors
    ///
    /// If an address or a certificate cannot be used.
    pub fn start(settings: &Settings, endpoint: &Endpoint) -> Result<Self, Error> {
        let key = Key::ServerOtlpEndpoint;
        let to = |signal| {
            let base = settings.text(key).map(|base| (base, settings.named(key)));
            destination(signal, variable, base)
        };
        let (traces, metrics) = (to(TRACES)?, to(METRICS)?);
        if traces.is_none() && metrics.is_none() {
            return Ok(Self::default());
        }
        let trusted = trusted()?;
        let client = || Collector { runtime: Handle::current(), trusted: trusted.clone() };
        let resource = resource(endpoint);
        let refused = |error| Error::system("telemetry", error);
        let mut started = Self::default();
        if let Some(url) = traces {
            let exporter = SpanExporter::builder().with_http().with_http_client(client());
            let exporter = exporter.with_retry_policy(RetryPolicy::recommended());
            let exporter = exporter.with_endpoint(url).build();
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter.map_err(refused)?)
                .with_resource(resource.clone())
                .build();
            global::set_text_map_propagator(TraceContextPropagator::new());
            global::set_tracer_provider(provider.clone());
            started.traces = Some(provider);
        }
        if let Some(url) = metrics {
            let exporter = MetricExporter::builder().with_http().with_http_client(client());
            let exporter = exporter.with_retry_policy(RetryPolicy::recommended());
            let exporter = exporter.with_endpoint(url).build();
            let provider = SdkMeterProvider::builder()
                .with_periodic_exporter(exporter.map_err(refused)?)
                .with_resource(resource)
                .build();
            global::set_meter_provider(provider.clone());
            started.metrics = Some(provider);
        }
        Ok(started)
    }

    /// Sends what was not sent yet. It blocks, while the runtime goes on.
    pub fn stop(self) {
        let traces = self.traces.map(|it| it.shutdown_with_timeout(STOP_TIMEOUT));
        let metrics = self.metrics.map(|it| it.shutdown_with_timeout(STOP_TIMEOUT));
        for stopped in [traces, metrics].into_iter().flatten() {
            if let Err(error) = stopped {
                tracing::warn!(%error, "the last telemetry was not sent");
            }
        }
    }
}

/// A variable that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The certificates that are trusted, if not those of this machine.
fn trusted() -> Result<Option<Vec<CertificateDer<'static>>>, Error> {
    const NAME: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
    variable(NAME).map(|file| read_certificates(NAME, Path::new(&file))).transpose()
}

/// Who sends it; what the variables say of that overrides it.
fn resource(endpoint: &Endpoint) -> Resource {
    let host = uname().nodename().to_string_lossy().into_owned();
    let instance = match endpoint {
        Endpoint::Tcp(address) => format!("{host}:{}", address.port()),
        Endpoint::Unix(path) => format!("{host}:{}", path.display()),
    };
    let resource = Resource::builder_empty()
        .with_service_name("sandboxctl")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
            KeyValue::new("host.name", host),
        ])
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match variable("OTEL_SERVICE_NAME") {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

/// The client of the exporters, whose threads are not the runtime's.
#[derive(Debug)]
struct Collector {
    runtime: Handle,
    trusted: Option<Vec<CertificateDer<'static>>>,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = send(request, self.trusted.clone());
        let sent = async { tokio::time::timeout(SEND_TIMEOUT, sent).await };
        self.runtime.spawn(sent).await??
    }
}

async fn send(
    request: Request<Bytes>,
    trusted: Option<Vec<CertificateDer<'static>>>,
) -> Result<Response<Bytes>, HttpError> {
    let (mut head, body) = request.into_parts();
    let address: ServerAddress = head.uri.to_string().parse()?;
    head.headers.insert(HOST, HeaderValue::from_str(address.authority())?);
    head.uri = Uri::try_from(head.uri.path())?;
    let mut connection = Connection::open(&address, trusted.as_deref()).await?;
    let response = connection.send(Request::from_parts(head, whole(body))).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(signal: &str, variables: &[(&str, &str)], key: Option<&str>) -> Option<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let key = key.map(|base| (base, "server.otlp_endpoint".to_owned()));
        destination(signal, variable, key).unwrap_or_else(|error| Some(error.message()))
    }

    #[test]
    fn nothing_is_sent_unless_an_address_is_set() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b/in");
        assert_eq!(of(TRACES, &[], None), None);
        assert_eq!(of(TRACES, &[base], None).unwrap(), "http://a:4318/v1/traces");
        assert_eq!(of(METRICS, &[base, own], None).unwrap(), "http://a:4318/v1/metrics");
        assert_eq!(of(TRACES, &[base, own], None).unwrap(), "http://b/in");
        assert_eq!(of(METRICS, &[own], None), None);
        assert_eq!(of(METRICS, &[], Some("https://c/")).unwrap(), "https://c/v1/metrics");
        assert_eq!(of(METRICS, &[base], Some("https://c/")).unwrap(), "http://a:4318/v1/metrics");
        assert_eq!(of(TRACES, &[base, ("OTEL_TRACES_EXPORTER", "none")], None), None);
        assert_eq!(of(METRICS, &[base, ("OTEL_SDK_DISABLED", "true")], Some("http://c")), None);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (variables, name) in [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "a:4317")][..], "OTEL_EXPORTER_OTLP_ENDPOINT"),
            (
                &[
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317"),
                    ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ],
                "OTEL_EXPORTER_OTLP_PROTOCOL",
            ),
        ] {
            let refused = of(TRACES, variables, None).unwrap();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
