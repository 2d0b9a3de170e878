//! A collector of OpenTelemetry that keeps what it gets, by OTLP over HTTP.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// A collector.
pub struct Collector {
    /// Its address.
    pub url: String,
    got: Arc<Mutex<Got>>,
}

#[derive(Default)]
struct Got {
    traces: Vec<ExportTraceServiceRequest>,
    metrics: Vec<ExportMetricsServiceRequest>,
    /// The header `x-key` of each request.
    keys: Vec<String>,
}

impl Collector {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got = Arc::<Mutex<Got>>::default();
        let into = got.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                receive(connection.unwrap(), &into);
            }
        });
        Self { url, got }
    }

    /// All spans, each with the attributes of the process that sent it.
    pub fn spans(&self) -> Vec<(HashMap<String, String>, Span)> {
        let got = self.got.lock().unwrap();
        let resources = got.traces.iter().flat_map(|request| &request.resource_spans);
        let spans = resources.flat_map(|sent| {
            let resource = texts(&sent.resource.as_ref().unwrap().attributes);
            let spans = sent.scope_spans.iter().flat_map(|scope| scope.spans.iter().cloned());
            spans.map(move |span| (resource.clone(), span))
        });
        spans.collect()
    }

    /// The values of the header `x-key` of its requests.
    pub fn keys(&self) -> Vec<String> {
        self.got.lock().unwrap().keys.clone()
    }

    /// The last value of a metric with an attribute of this value: of a histogram, how often it was
    /// observed.
    pub fn metric(&self, name: &str, with: Option<&str>) -> Option<f64> {
        let got = self.got.lock().unwrap();
        let resources = got.metrics.last()?.resource_metrics.iter();
        let mut metrics = resources
            .flat_map(|resource| &resource.scope_metrics)
            .flat_map(|scope| &scope.metrics)
            .filter(|metric| metric.name == name);
        let fits = |attributes: &[KeyValue]| {
            with.is_none_or(|with| texts(attributes).values().any(|value| value == with))
        };
        let of_number = |value: Option<Number>| match value.unwrap() {
            Number::AsDouble(value) => value,
            Number::AsInt(value) => value as f64,
        };
        metrics.find_map(|metric| match metric.data.as_ref()? {
            Data::Gauge(gauge) => {
                let point = gauge.data_points.iter().find(|point| fits(&point.attributes))?;
                Some(of_number(point.value))
            }
            Data::Sum(sum) => {
                let point = sum.data_points.iter().find(|point| fits(&point.attributes))?;
                Some(of_number(point.value))
            }
            Data::Histogram(histogram) => {
                let point = histogram.data_points.iter().find(|point| fits(&point.attributes))?;
                Some(point.count as f64)
            }
            other => panic!("{name}: {other:?}"),
        })
    }
}

/// Reads one request, and accepts it.
fn receive(connection: TcpStream, into: &Mutex<Got>) {
    let mut reader = BufReader::new(&connection);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() <= 2 {
            break;
        }
        head.push(line.trim_end().to_ascii_lowercase());
    }
    let header = |name: &str| {
        let found = head.iter().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        found.unwrap_or_default().to_owned()
    };
    assert_eq!(header("content-type"), "application/x-protobuf", "{head:?}");
    let mut body = vec![0; header("content-length").parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let mut got = into.lock().unwrap();
    got.keys.push(header("x-key"));
    match head[0].split(' ').nth(1) {
        Some("/v1/traces") => got.traces.push(ExportTraceServiceRequest::decode(&*body).unwrap()),
        Some("/v1/metrics") => {
            got.metrics.push(ExportMetricsServiceRequest::decode(&*body).unwrap());
        }
        other => panic!("{other:?}"),
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    (&connection).write_all(answer).unwrap();
}

/// Attributes that are texts or numbers.
pub fn texts(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref()?.value.as_ref()? {
        AnyValue::StringValue(text) => Some(text.clone()),
        AnyValue::IntValue(number) => Some(number.to_string()),
        _ => None,
    };
    let pairs = attributes.iter().filter_map(|it| Some((it.key.clone(), text(it)?)));
    pairs.collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
