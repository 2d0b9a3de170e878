//! The client, with scripted services.

use std::sync::{Arc, Mutex};

use sandbox_api::service::{
    Execution, ExecutionKind, ExecutionRequest, ExecutionState, ExecutionSummary, Time,
};
use sandbox_api::{ErrorKind, ExecutionDocument, ExecutionEvent, Failure, Recorded, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use super::*;

/// What a service does with a request.
enum Reaction {
    /// Sends this, and keeps the connection.
    Answer(String),
    /// Sends this, and closes the connection.
    Last(String),
}

use Reaction::{Answer, Last};

/// A service that reacts to one request after another, and keeps what it was asked.
struct Service {
    client: Arc<Client>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// The events of an execution.
fn of(id: &str) -> EventSource {
    EventSource::Execution(id.to_owned())
}

impl Service {
    async fn new(reactions: Vec<Reaction>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            let mut reactions = reactions.into_iter();
            let mut reaction = reactions.next();
            while let Some(next) = reaction.take() {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut next = Some(next);
                loop {
                    let Some(request) = read(&mut connection).await else {
                        reaction = next;
                        break;
                    };
                    seen.lock().unwrap().push(request);
                    match next.take() {
                        Some(Answer(text)) => {
                            connection.write_all(text.as_bytes()).await.unwrap();
                            next = reactions.next();
                        }
                        Some(Last(text)) => {
                            connection.write_all(text.as_bytes()).await.unwrap();
                            reaction = reactions.next();
                            break;
                        }
                        None => break,
                    }
                }
            }
        });
        Self { client: Arc::new(Client::new(address.parse().unwrap(), None, None)), requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A request with its body; none at the end of the connection.
async fn read(connection: &mut tokio::net::TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if connection.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

fn json(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

const ACCEPTED: &str = r#"{"id":"e1","status":"queued"}"#;

#[tokio::test]
async fn lost_submission_is_sent_again_with_its_key() {
    let service = Service::new(vec![
        Last(String::new()),
        Last(json("503 Service Unavailable", "retry-after: 0\r\n", r#"{"title":"full"}"#)),
        Answer(json("202 Accepted", "", ACCEPTED)),
        Answer(json("204 No Content", "", "")),
    ])
    .await;
    let request = ExecutionRequest { script: Some("return 1".into()), ..Default::default() };
    let id = service.client.submit(&request, None, "key-1").await.unwrap();
    service.client.cancel(&id).await.unwrap();
    let requests = service.requests();
    let keys: Vec<_> = requests.iter().map(|it| header(it, "idempotency-key")).collect();
    assert_eq!(keys, [Some("key-1"), Some("key-1"), Some("key-1"), None]);
    assert!(requests[0].ends_with(r#"{"script":"return 1"}"#), "{requests:?}");
    assert!(requests[3].starts_with("DELETE /v1/executions/e1 HTTP/1.1"), "{requests:?}");
    assert_eq!(id, "e1");
}

#[tokio::test]
async fn refusal_and_an_invalid_id_are_final() {
    let service = Service::new(vec![
        Answer(json("403 Forbidden", "", r#"{"title":"no","kind":"policy"}"#)),
        Answer(json("202 Accepted", "", r#"{"id":"../e1"}"#)),
        Answer(json("302 Found", "location: http://192.0.2.1/\r\n", "")),
        Answer(json("429 Too Many Requests", "", r#"{"kind":"quota_exceeded"}"#)),
    ])
    .await;
    let request = ExecutionRequest::default();
    let refused = service.client.submit(&request, None, "k").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Policy);
    let strange = service.client.submit(&request, None, "k").await.unwrap_err();
    assert!(strange.to_string().contains("an invalid id"), "{strange}");
    // A service cannot redirect scripts and tokens elsewhere.
    let elsewhere = service.client.submit(&request, None, "k").await.unwrap_err();
    assert!(elsewhere.to_string().contains("302 Found"), "{elsewhere}");
    // A quota that no time frees is not asked for again.
    let used_up = service.client.submit(&request, None, "k").await.unwrap_err();
    assert_eq!((used_up.kind(), used_up.exit_code()), (ErrorKind::Busy, 125));
    assert_eq!(service.requests().len(), 4);
}

#[tokio::test]
async fn events_come_once_and_in_order_though_connections_are_lost() {
    let event = |seq: u64, rest: &str| {
        let time = "2026-11-22T06:11:28.000Z";
        format!("id: {seq}\ndata: {{\"seq\":{seq},\"time\":\"{time}\",{rest}}}\n\n")
    };
    let log = |seq, text| event(seq, &format!(r#""event":"log","level":"print","text":"{text}""#));
    let end = event(4, r#""event":"end","exit_code":3,"document":{}"#);
    let stream = |events: &[String]| {
        let events = events.concat();
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n",
            events.len()
        )
    };
    let service = Service::new(vec![
        Last(stream(&[log(1, "a"), ": a comment\n\n".to_owned()])),
        // An incomplete event does not count.
        Last(stream(&[log(2, "b"), "id: 3\ndata: {\"seq\"".to_owned()])),
        Last(stream(&[log(2, "b"), log(3, "c"), end])),
    ])
    .await;
    let mut events = Events::new(service.client.clone(), of("e1"), 0);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        seen.push(match event.event {
            Recorded::Event(ExecutionEvent::Log(entry)) => entry.text,
            Recorded::End { exit_code, .. } => exit_code.to_string(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(seen, ["a", "b", "c", "3"]);
    let requests = service.requests();
    let last: Vec<_> = requests.iter().map(|it| header(it, "last-event-id")).collect();
    assert_eq!(last, [None, Some("1"), Some("2")]);
}

#[tokio::test]
async fn events_after_the_last_one_end_with_the_execution() {
    let nothing = || Last(json("200 OK", "content-type: text/event-stream\r\n", ""));
    let now = Time::now();
    let execution = |document| Execution {
        summary: ExecutionSummary {
            id: "e1".to_owned(),
            kind: ExecutionKind::Script,
            status: ExecutionState::Running,
            created_at: now,
            started_at: Some(now),
            ended_at: None,
            metadata: serde_json::Map::new(),
            sandbox: None,
            generation: None,
            restarted: None,
            image: None,
            subject: None,
        },
        document,
    };
    let failure = Failure::new(ErrorKind::Internal, "it failed", None);
    let document = ExecutionDocument::ended(ExecutionKind::Script, "e1", Status::Error, failure);
    let [running, ended] =
        [None, Some(document)].map(|document| serde_json::to_string(&execution(document)).unwrap());
    let service = Service::new(vec![
        nothing(),
        Answer(json("200 OK", "", &running)),
        nothing(),
        Answer(json("200 OK", "", &ended)),
        // Events between the two responses are requested.
        nothing(),
    ])
    .await;
    let mut events = Events::new(service.client.clone(), of("e1"), 99);
    assert!(events.next().await.unwrap().is_none());
    assert!(events.next().await.unwrap().is_none());
    let requests = service.requests();
    let last: Vec<_> = requests.iter().map(|it| header(it, "last-event-id")).collect();
    assert_eq!(last, [Some("99"), None, Some("99"), None, Some("99")]);
}

#[tokio::test]
async fn service_that_asks_for_a_longer_pause_than_there_is_time_is_not_waited_for() {
    for pause in ["3600", "18446744073709551615"] {
        let headers = format!("retry-after: {pause}\r\n");
        let full = json("503 Service Unavailable", &headers, r#"{"title":"full"}"#);
        let service = Service::new(vec![Answer(full)]).await;
        let error =
            service.client.submit(&ExecutionRequest::default(), None, "k").await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
    }
}

#[tokio::test]
async fn service_of_the_other_scheme_is_reported_at_once() {
    // An alert of TLS, which a server sends to who speaks HTTP.
    let alert = Last("\x15\x03\x03\x00\x02\x02\x46".to_owned());
    let service = Service::new(vec![alert]).await;
    let plain = service.client.submit(&ExecutionRequest::default(), None, "k").await.unwrap_err();
    assert_eq!((plain.kind(), plain.exit_code()), (ErrorKind::Engine, 125));
    assert!(plain.to_string().ends_with(" does not answer in HTTP"), "{plain}");
    assert!(plain.hint().unwrap().contains("if it speaks TLS: --server https://127.0.0.1:"));
    assert_eq!(service.requests().len(), 1);

    // What a server of HTTP answers to who speaks TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        assert!(connection.read(&mut [0; 4096]).await.unwrap() > 0);
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let client = Client::new(address.parse().unwrap(), None, Some(vec![certificate()]));
    let encrypted = client.submit(&ExecutionRequest::default(), None, "k").await.unwrap_err();
    assert!(encrypted.to_string().ends_with(" does not answer in TLS"), "{encrypted}");
    assert!(encrypted.hint().unwrap().contains("if it speaks plain HTTP: --server http://"));
}

/// A certificate that can be trusted, of whomever.
fn certificate() -> CertificateDer<'static> {
    let pem = include_bytes!("../../../server/http/tests/api/tls/one.cert.pem");
    CertificateDer::from_pem_slice(pem).unwrap()
}

#[tokio::test]
async fn no_server_there_is_an_error_at_once() {
    // A port that no other test gets meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", held.local_addr().unwrap());
    let client = Client::new(address.parse().unwrap(), None, None);
    let error = client.submit(&ExecutionRequest::default(), None, "k").await.unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Engine, 125));
    assert!(error.to_string().starts_with("cannot connect to http://127.0.0.1:"), "{error}");
    let client = Client::new("unix:/no/such.sock".parse().unwrap(), None, None);
    assert!(client.submit(&ExecutionRequest::default(), None, "k").await.is_err());
}

#[tokio::test]
async fn service_that_is_lost_for_good_is_said_to_have_accepted_or_not() {
    let service = Service::new(vec![Last(json("202 Accepted", "", ACCEPTED))]).await;
    let (client, request) = (service.client.clone(), ExecutionRequest::default());
    let id = client.submit(&request, None, "k1").await.unwrap();
    // The minute of attempts passes at once.
    tokio::time::pause();
    let lost = Events::new(client.clone(), of(&id), 0).next().await.unwrap_err();
    let accepted = lost.after_acceptance(&id);
    let server = client.server();
    let get = format!("`sandboxctl executions get e1 --server {server}`");
    assert!(accepted.to_string().ends_with(" was lost; execution e1 was accepted"), "{accepted}");
    assert!(accepted.hint().unwrap().starts_with(&get), "{:?}", accepted.hint());

    let unknown = client.submit(&request, None, "k2").await.unwrap_err();
    assert!(unknown.to_string().contains("it is not known whether"), "{unknown}");
    assert!(unknown.hint().unwrap().contains("idempotency key k2 runs once"));
    for error in [&accepted, &unknown] {
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Engine, 125));
    }
}
