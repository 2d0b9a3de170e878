//! The agent's proxy and the controller's end, connected by a socket in place of a container's
//! stdio, with servers on the loopback. Names are resolved by a resolver of the tests.

#[path = "../../tls/src/tests/hello.rs"]
mod hello;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt};
use sandbox_agent::proxy::{Outbox, Proxy, listen};
use sandbox_api::hosts::{Allowlist, HOST_LOOPBACK};
use sandbox_api::{ByteSize, Limits, Network, SecretValue, Secrets};
use sandbox_engine::{Attached, Output};
use sandbox_grants::policy::EgressLimits;
use sandbox_protocol::frame::FrameDecoder;
use sandbox_protocol::limits::{FIRST_TUNNEL, INITIAL_CREDIT, MAX_CHUNK_BYTES, MAX_TUNNELS};
use sandbox_protocol::message::{
    Chunk, Close, Closed, ClosedReason, Connect, Credit, Done, Request, Shutdown,
};
use sandbox_protocol::{Base64, FromAgent, ToAgent};
use sandbox_session::fake::{FakeAgent, pipe};
use tokio_util::io::ReaderStream;

use self::hello::client_hello;
use super::gate::{Egress, MORE_DIALS};
use super::resolve::Resolve;
use crate::permission::{Answer, Ask, Permission};
use sandbox_session::{CallError, ConnectHandler, Received, Session, SessionEnd};

/// The timeout of every wait in a test.
const TIMEOUT: Duration = Duration::from_secs(60);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What the resolver was asked, and what the audit recorded.
#[derive(Default)]
struct Seen {
    lookups: Mutex<Vec<String>>,
    /// The audit lines: target, outcome, reason.
    audit: Mutex<Vec<(String, String, String)>>,
}

fn resolver(known: HashMap<&'static str, Vec<IpAddr>>, seen: Arc<Seen>) -> Box<Resolve> {
    Box::new(move |name| {
        seen.lookups.lock().unwrap().push(name.clone());
        match &*name {
            "never.example" => std::future::pending().boxed(),
            name => {
                let found = known.get(name).cloned();
                std::future::ready(found.ok_or_else(|| io::Error::other("no such name"))).boxed()
            }
        }
    })
}

fn egress(rules: &[String], limits: EgressLimits, seen: &Arc<Seen>) -> Arc<Egress> {
    egress_asking(None, rules, limits, seen)
}

fn egress_asking(
    permission: Option<Arc<dyn Permission>>,
    rules: &[String],
    limits: EgressLimits,
    seen: &Arc<Seen>,
) -> Arc<Egress> {
    let address = |text: &str| text.parse().unwrap();
    let known = HashMap::from([
        ("ok.example", vec![LOOPBACK]),
        ("inside.example", vec![address("10.1.2.3")]),
        ("cloud.example", vec![address("169.254.169.254")]),
        ("mixed.example", vec![LOOPBACK, address("::ffff:10.1.2.3")]),
        ("wrapped.example", vec![address("64:ff9b::127.0.0.1")]),
        ("empty.example", vec![]),
        // Nothing listens at the first.
        ("two.example", vec![address("127.0.0.2"), LOOPBACK]),
    ]);
    let list: Allowlist = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let recorder = seen.clone();
    let record = move |event: &crate::audit::Event<'_>| {
        let connection = event.connection.expect("of a connection");
        assert!(matches!(event.operation, "connect" | "request") && event.run_id == "box");
        recorder.audit.lock().unwrap().push((
            connection.target.to_owned(),
            event.outcome.to_owned(),
            connection.reason.unwrap_or_default().to_owned(),
        ));
    };
    let egress = Egress::new(resolver(known, seen.clone()), "box", record).asking(permission);
    egress.set_rules(list, limits);
    Arc::new(egress)
}

fn default_limits() -> EgressLimits {
    EgressLimits::from(&Limits::default())
}

/// Writes the agent's messages to its end of the socket, which may be closed at the end of a test.
struct Mouth(UnixStream);

impl Write for Mouth {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A sandbox that consists only of its proxy, and its controller.
struct World {
    address: SocketAddr,
    proxy: Arc<Proxy>,
    seen: Arc<Seen>,
    session: Session,
    egress: Arc<Egress>,
    /// Dropping it ends everything else.
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(rules: &[String]) -> Self {
        Self::with_limits(rules, default_limits())
    }

    fn with_limits(rules: &[String], limits: EgressLimits) -> Self {
        Self::asking(None, rules, limits)
    }

    fn asking(
        permission: Option<Arc<dyn Permission>>,
        rules: &[String],
        limits: EgressLimits,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let seen = Arc::new(Seen::default());
        let egress = egress_asking(permission, rules, limits, &seen);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let _entered = runtime.enter();
        let (output, input) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
        let output = ReaderStream::new(output).map(|piece| piece.map(Output::Stdout)).boxed();
        let attached = Attached { input: Box::pin(input), output };
        let session = Session::start(attached, Some(egress.clone())).unwrap();
        let listener = listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let outbox = Outbox::new(Mouth(theirs.try_clone().unwrap()));
        let proxy = Proxy::start(Some(listener), Arc::new(outbox)).unwrap();
        proxy.accept_clients();
        let listening = proxy.clone();
        std::thread::spawn(move || hear(theirs, &listening));
        Self { address, proxy, seen, session, egress, runtime }
    }

    fn client(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.set_write_timeout(Some(TIMEOUT)).unwrap();
        client
    }

    /// A connection through `CONNECT`.
    fn connect(&self, target: &str) -> TcpStream {
        self.try_connect(target).unwrap()
    }

    fn try_connect(&self, target: &str) -> io::Result<TcpStream> {
        let mut client = self.client();
        write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
        let head = try_read_head(&mut client)?;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Ok(client)
    }

    /// One whose connections are soon idle, and one of these; a little later where the machine is so busy that the
    /// connection was idle before its client had the answer.
    fn soon_idle(list: &[String], target: &str) -> (Self, TcpStream) {
        let connected = [1, 10].into_iter().find_map(|seconds| {
            let idle_timeout = Duration::from_secs(seconds);
            let world = Self::with_limits(list, EgressLimits { idle_timeout, ..default_limits() });
            let client = world.try_connect(target).ok()?;
            Some((world, client))
        });
        connected.expect("it is connected in time")
    }

    /// The whole answer to these bytes.
    fn answer(&self, request: &[u8]) -> String {
        let mut client = self.client();
        client.write_all(request).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    fn refusal(&self, target: &str) -> String {
        self.answer(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes())
    }

    /// The audit lines, once there are this many.
    fn audit(&self, count: usize) -> Vec<(String, String, String)> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let lines = self.seen.audit.lock().unwrap().clone();
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < deadline, "{lines:?}");
            std::thread::yield_now();
        }
    }
}

/// Delivers the controller's messages.
fn hear(mut socket: UnixStream, proxy: &Proxy) {
    let mut decoder = FrameDecoder::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = socket.read(&mut buffer) {
        decoder.extend(&buffer[..count]);
        while let Some(line) = decoder.next_frame().unwrap() {
            match ToAgent::decode(line).unwrap() {
                ToAgent::Chunk(chunk) => proxy.take_chunk(&chunk).unwrap(),
                ToAgent::Credit(credit) => proxy.take_credit(&credit).unwrap(),
                ToAgent::Connected(connected) => proxy.take_connected(connected),
                ToAgent::Closed(closed) => proxy.take_closed(closed),
                ToAgent::Heartbeat => {}
                ToAgent::Request { id, request: Request::Dial(dial), .. } => {
                    proxy.dial(id, dial).unwrap();
                }
                ToAgent::Request { .. } => panic!("{line}"),
            }
        }
    }
}

fn read_head(client: &mut TcpStream) -> String {
    try_read_head(client).unwrap()
}

fn try_read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// A server on the loopback that serves every connection like this, each in a separate thread.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(client.unwrap()));
        }
    });
    port
}

/// A port without a listener, which no other process gets while its socket is there.
fn port_without_a_listener() -> (tokio::net::TcpSocket, u16) {
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = held.local_addr().unwrap().port();
    (held, port)
}

/// The rules under which a name of the tests reaches a server.
fn rules(name: &str, port: u16) -> Vec<String> {
    vec![format!("{name}:{port}"), format!("host.sandbox.internal:{port}")]
}

/// Non-repeating bytes, starting at this position.
fn fill(buffer: &mut [u8], from: u64) {
    for (place, byte) in (from..).zip(buffer) {
        let mixed = (place / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        *byte = mixed.to_le_bytes()[(place % 8) as usize];
    }
}

fn write_bytes(stream: &mut impl Write, total: u64, written: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < total {
        let size = (total - at).min(buffer.len() as u64) as usize;
        fill(&mut buffer[..size], at);
        stream.write_all(&buffer[..size])?;
        at += size as u64;
        written.store(at, Ordering::SeqCst);
    }
    Ok(())
}

fn read_bytes(stream: &mut impl Read, read: &AtomicU64) -> u64 {
    let (mut buffer, mut expected) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut at = 0;
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            return at;
        }
        fill(&mut expected[..count], at);
        assert!(buffer[..count] == expected[..count], "different bytes, after {at}");
        at += count as u64;
        read.store(at, Ordering::SeqCst);
    }
}

#[test]
fn many_megabytes_arrive_byte_exact_and_a_stalled_reader_blocks_no_other() {
    const TOTAL: u64 = 50_000_000;
    let stuck = Arc::new(AtomicU64::new(0));
    let counter = stuck.clone();
    let port = server(move |mut client| {
        let mut which = [0];
        client.read_exact(&mut which).unwrap();
        let (unused, mine) = (AtomicU64::new(0), counter.clone());
        // A connection that is never read is aborted in the end.
        _ = write_bytes(&mut client, TOTAL, if which == [1] { &mine } else { &unused });
    });
    let world = World::new(&rules("ok.example", port));
    let target = format!("ok.example:{port}");
    let mut lazy = world.connect(&target);
    lazy.write_all(&[1]).unwrap();
    let mut eager = world.connect(&target);
    eager.write_all(&[2]).unwrap();
    assert_eq!(read_bytes(&mut eager, &AtomicU64::new(0)), TOTAL);
    // All of it has overtaken the slow connection. Only two socket buffers and the
    // windows of its own data are buffered.
    let kept = stuck.load(Ordering::SeqCst);
    assert!(kept < TOTAL / 3, "{kept} bytes wait for who does not read");
    // And it arrives when it is read.
    let mut start = vec![0; 1 << 20];
    lazy.read_exact(&mut start).unwrap();
    let mut expected = vec![0; 1 << 20];
    fill(&mut expected, 0);
    assert!(start == expected);
}

#[test]
fn ten_at_once_share_fairly() {
    const TOTAL: u64 = 8 << 20;
    let all_are_there = Barrier::new(10);
    let port = server(move |mut client| {
        all_are_there.wait();
        write_bytes(&mut client, TOTAL, &AtomicU64::new(0)).unwrap();
    });
    let world = World::new(&rules("ok.example", port));
    let read: [AtomicU64; 10] = std::array::from_fn(|_| AtomicU64::new(0));
    let when_the_first_ended = Mutex::new(None);
    let look = || read.iter().map(|read| read.load(Ordering::SeqCst)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for read in &read {
            scope.spawn(|| {
                let mut client = world.connect(&format!("ok.example:{port}"));
                assert_eq!(read_bytes(&mut client, read), TOTAL);
                when_the_first_ended.lock().unwrap().get_or_insert_with(look);
            });
        }
    });
    let shares = when_the_first_ended.lock().unwrap().clone().unwrap();
    let least = shares.iter().min().unwrap();
    assert!(*least > TOTAL / 4, "when the first one had all of its {TOTAL}, others had {shares:?}");
}

#[test]
fn bytes_and_end_of_a_program_arrive_whole() {
    const TOTAL: u64 = 20_000_000;
    let port = server(|mut client| {
        let count = read_bytes(&mut client, &AtomicU64::new(0));
        write!(client, "{count} bytes, then the end").unwrap();
    });
    let world = World::new(&rules("ok.example", port));
    let mut client = world.connect(&format!("OK.Example.:{port}"));
    write_bytes(&mut client, TOTAL, &AtomicU64::new(0)).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("{TOTAL} bytes, then the end"));
    let (target, outcome, reason) = world.audit(1).remove(0);
    assert_eq!(
        (target, outcome, reason),
        (format!("ok.example:{port}"), "ok".into(), String::new())
    );
}

#[test]
fn dialled_port_carries_all_bytes_in_both_directions_without_any_rule() {
    let port = server(|mut client| {
        let mut piece = [0; 10_000];
        while let Ok(count @ 1..) = client.read(&mut piece) {
            client.write_all(&piece[..count]).unwrap();
        }
    });
    let (_held, free) = port_without_a_listener();
    let world = World::new(&[]);
    let bytes: Vec<u8> =
        (0..4_u32 << 20).map(|at| at.to_le_bytes()[1] ^ (at >> 16) as u8).collect();
    let exchanged = async {
        let tunnel = world.session.dial(port).await.unwrap().unwrap();
        let send = async {
            tunnel.send(&bytes).await.unwrap();
            tunnel.finish().await.unwrap();
        };
        let receive = async {
            let mut received = Vec::new();
            while let Received::Bytes(piece) = tunnel.receive().await.unwrap() {
                received.extend_from_slice(&piece);
                tunnel.consumed(piece.len() as u64).await.unwrap();
            }
            received
        };
        let ((), received) = tokio::join!(send, receive);
        assert!(received == bytes, "{} bytes", received.len());
        tunnel.close(ClosedReason::Done, "").await;
        let refused = world.session.dial(free).await;
        let Err(CallError::Refused(error)) = refused else { panic!("something listens") };
        assert_eq!(error.kind().as_str(), "not_found");
    };
    world.runtime.block_on(async { tokio::time::timeout(TIMEOUT, exchanged).await.unwrap() });
    assert!(world.session.end().is_none());
    assert!(world.seen.audit.lock().unwrap().is_empty());
}

#[test]
fn more_programs_than_there_may_be_at_one_time_are_all_served() {
    let port = server(|mut client| {
        let mut byte = [0];
        while client.read(&mut byte).unwrap() == 1 {
            client.write_all(&byte).unwrap();
        }
    });
    let world = World::new(&rules("ok.example", port));
    std::thread::scope(|scope| {
        for number in 0..2 * MAX_TUNNELS {
            // None of them begins TLS.
            let (world, byte) = (&world, [0x80 | number as u8]);
            scope.spawn(move || {
                let mut client = world.connect(&format!("ok.example:{port}"));
                client.write_all(&byte).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
                let mut echo = Vec::new();
                client.read_to_end(&mut echo).unwrap();
                assert_eq!(echo, byte);
            });
        }
    });
    assert!(world.audit(2 * MAX_TUNNELS).iter().all(|(_, outcome, _)| outcome == "ok"));
    assert!(world.session.end().is_none());
}

#[test]
fn a_refusal_names_the_rule_and_nothing_is_asked_of_anybody() {
    const OWN: &str = "this machine's is host.sandbox.internal\n";
    let port = server(|client| panic!("{client:?} reached it"));
    let world = World::new(&[
        "other.example".into(),
        format!("inside.example:{port}"),
        format!("cloud.example:{port}"),
        format!("mixed.example:{port}"),
        format!("wrapped.example:{port}"),
        format!("ok.example:{port}"),
    ]);
    let report = world.egress.report();
    let unlisted = [
        (format!("evil.example:{port}"), format!("--allow evil.example:{port}\n")),
        ("evil.example:443".into(), "--allow evil.example\n".into()),
        ("other.example:22".into(), "--allow other.example:22\n".into()),
        ("other.example.evil:80".into(), "--allow other.example.evil\n".into()),
        ("evil-other.example:80".into(), "--allow evil-other.example\n".into()),
        (format!("10.1:{port}"), format!("--allow 10.0.0.1:{port}\n")),
        (format!("[fd00::1]:{port}"), format!("--allow [fd00::1]:{port}\n")),
        // No rule opens the sandbox's own loopback, nor this machine's by that name.
        (format!("127.0.0.1:{port}"), OWN.into()),
        (format!("0x7f.1:{port}"), OWN.into()),
        (format!("2130706433:{port}"), OWN.into()),
        (format!("localhost:{port}"), OWN.into()),
        (format!("[::1]:{port}"), OWN.into()),
        (format!("[::ffff:7f00:1]:{port}"), OWN.into()),
        // No rule is suggested that hands out credentials, or that no list can have.
        ("169.254.169.254:80".into(), "is not on this sandbox's list of hosts\n".into()),
        ("0.0.0.0:80".into(), "is not on this sandbox's list of hosts\n".into()),
        ("ok.example%00.evil:80".into(), "neither a host name nor an address\n".into()),
        ("[fe80::1%lo]:80".into(), "neither a host name nor an address\n".into()),
    ];
    for (target, words) in &unlisted {
        let answer = world.refusal(target);
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{target}: {answer}");
        assert!(answer.ends_with(words), "{target}: {answer}");
    }
    assert_eq!(*world.seen.lookups.lock().unwrap(), [""; 0], "what is not listed is not looked up");
    for (name, words) in [
        ("ok.example", "a loopback address"),
        ("inside.example", "a private address"),
        ("cloud.example", "a metadata service's address"),
        ("mixed.example", "a loopback address"),
        ("wrapped.example", "a loopback address"),
    ] {
        let answer = world.refusal(&format!("{name}:{port}"));
        assert!(
            answer.starts_with("HTTP/1.1 403 Forbidden\r\n") && answer.contains(words),
            "{answer}"
        );
        let of_loopback = format!("--allow host.sandbox.internal:{port}\n");
        assert_eq!(answer.ends_with(&of_loopback), ["ok.example", "mixed.example"].contains(&name));
        // What only the host's resolver knows stays on the host.
        assert!(!answer.contains("10.1.2.3") && !answer.contains("127.0.0.1"), "{answer}");
    }
    let audit = world.audit(unlisted.len() + 5);
    assert!(audit.iter().all(|(_, outcome, _)| outcome == "network_refused"), "{audit:?}");
    assert_eq!(audit[8].0, format!("127.0.0.1:{port}"), "the audit has it as it was understood");

    // The report is for the caller: it has the addresses, each host once, and every rule it takes.
    let network = report.borrow().clone();
    assert_eq!((network.contacted, network.truncated), (vec![], false));
    let listed: Vec<_> = network
        .refused
        .iter()
        .map(|it| format!("{}:{} ({}) {}", it.host, it.port, it.reason, it.allow.join(" ")))
        .map(|text| text.replace(&port.to_string(), "PORT"))
        .collect();
    let own = |host: &str| {
        format!(
            "{host}:PORT (it is the sandbox's own loopback, reached without the proxy; {}) ",
            OWN.trim_end()
        )
    };
    assert_eq!(
        listed,
        [
            "evil.example:PORT (not on the list) evil.example:PORT",
            "evil.example:443 (not on the list) evil.example",
            "other.example:22 (not on the list) other.example:22",
            "other.example.evil:80 (not on the list) other.example.evil",
            "evil-other.example:80 (not on the list) evil-other.example",
            "10.0.0.1:PORT (private address) 10.0.0.1:PORT",
            "[fd00::1]:PORT (private address) [fd00::1]:PORT",
            &own("127.0.0.1"),
            &own("localhost"),
            &own("[::1]"),
            "169.254.169.254:80 (metadata service's address) ",
            "0.0.0.0:80 (unspecified address) ",
            "ok.example%00.evil:80 (neither a host name nor an address) ",
            "fe80::1%lo:80 (neither a host name nor an address) ",
            "ok.example:PORT (loopback address) host.sandbox.internal:PORT",
            "inside.example:PORT (private address) 10.1.2.3:PORT",
            "cloud.example:PORT (metadata service's address) ",
            "mixed.example:PORT (loopback address) host.sandbox.internal:PORT 10.1.2.3:PORT",
            // A gateway's, not this machine's.
            "wrapped.example:PORT (loopback address) ",
        ]
    );
}

#[test]
fn unreachable_hosts_differ_from_refused_ones() {
    let (_held, port) = port_without_a_listener();
    let mut list = rules("ok.example", port);
    list.extend(["gone.example", "never.example", "empty.example"].map(String::from));
    let answers = |world: &World, target: &str, status: &str| {
        let answer = world.refusal(target);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
    };
    let world = World::with_limits(&list, default_limits());
    let report = world.egress.report();
    for target in [&*format!("ok.example:{port}"), "gone.example:443", "empty.example:443"] {
        answers(&world, target, "502");
    }
    let reported = report.borrow().clone();
    assert_eq!((reported.contacted, reported.refused), (vec![], vec![]));
    let [closed, gone, empty] = &reported.unreached[..] else { panic!("{:?}", reported.unreached) };
    assert!(closed.starts_with(&format!("cannot connect to ok.example:{port}: ")), "{closed}");
    assert!(gone.starts_with("gone.example has no address: "), "{gone}");
    assert_eq!(empty, "empty.example has no address: its answer is empty");
    // On a busy machine an answer takes as long.
    let limits = EgressLimits { connect_timeout: Duration::from_millis(50), ..default_limits() };
    let impatient = World::with_limits(&list, limits);
    answers(&impatient, "never.example:443", "504");
    let audited = [world.audit(3), impatient.audit(1)].concat();
    let outcomes: Vec<_> = audited.into_iter().map(|(_, outcome, _)| outcome).collect();
    assert_eq!(outcomes, ["unreachable", "unreachable", "unreachable", "timeout"]);
}

#[test]
fn tls_goes_to_the_name_of_the_connection_alone() {
    let port = server(|mut client| {
        let mut hello = Vec::new();
        client.read_to_end(&mut hello).unwrap_or_default();
        _ = client.write_all(&hello);
    });
    let world = World::new(&rules("ok.example", port));
    let target = format!("ok.example:{port}");
    let hello = client_hello("ok.example");
    let mut client = world.connect(&target);
    for piece in hello.chunks(7) {
        client.write_all(piece).unwrap();
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut echo = Vec::new();
    client.read_to_end(&mut echo).unwrap();
    assert_eq!(echo, hello);
    // Its line comes a little after its end.
    world.audit(1);
    for name in ["evil.example", "ok.example.evil", "a.ok.example"] {
        let mut client = world.connect(&target);
        // The connection may be reset before everything is written: the kernel says that once.
        let hello = client_hello(name);
        let written = hello.chunks(7).try_for_each(|piece| client.write_all(piece));
        let ended = written.and_then(|()| client.read_to_end(&mut Vec::new()).map(drop));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "{name}");
    }
    let audit = world.audit(4);
    assert!(
        audit[1..]
            .iter()
            .all(|(_, outcome, reason)| { outcome == "network_refused" && reason.contains("SNI") }),
        "{audit:?}"
    );
}

#[test]
fn a_server_that_speaks_first_is_answered_in_its_own_protocol() {
    let port = server(|mut client| {
        client.write_all(b"220 mail.example\r\n").unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap_or_default();
        _ = client.write_all(&all);
    });
    let world = World::new(&rules("ok.example", port));
    let greeted = || {
        let mut client = world.connect(&format!("ok.example:{port}"));
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 mail.example\r\n");
        client
    };
    let mut client = greeted();
    client.write_all(b"EHLO me\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut echo = String::new();
    client.read_to_string(&mut echo).unwrap();
    assert_eq!(echo, "EHLO me\r\n");
    // From either side: data that begins TLS must be for the name.
    for start in [&client_hello("evil.example")[..], &[21, 3, 1, 0, 2, 1, 0]] {
        let mut client = greeted();
        _ = client.write_all(start);
        let error = client.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_hello_that_drips_is_idle() {
    let port = server(|mut client| _ = client.read_to_end(&mut Vec::new()));
    let (world, mut client) =
        World::soon_idle(&rules("ok.example", port), &format!("ok.example:{port}"));
    // The longest possible one, a byte at a time, with pauses in between.
    client.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let hello = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 0x3ffc]].concat();
    let deadline = Instant::now() + TIMEOUT;
    let error = hello
        .iter()
        .find_map(|byte| {
            assert!(Instant::now() < deadline, "it drips on");
            client.write_all(&[*byte]).err().or_else(|| match client.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                ended => Some(ended.expect_err("it is broken off")),
            })
        })
        .expect("it is not held for ever");
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
    assert_eq!(world.audit(1)[0].1, "timeout");
}

#[test]
fn a_reset_on_one_side_does_not_reset_the_other() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = server(move |mut client| {
        let mut which = [0];
        client.read_exact(&mut which).unwrap();
        if which == [1] {
            client.write_all(b"half of ").unwrap();
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        } else {
            client.write_all(&which).unwrap();
            sender.send(client.read(&mut which).map_err(|error| error.kind())).unwrap();
        }
    });
    let world = World::new(&rules("ok.example", port));
    let target = format!("ok.example:{port}");
    // A reset by the server is an error for the client, not a normal end.
    let mut client = world.connect(&target);
    client.write_all(&[1]).unwrap();
    let error = client.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    // And a reset by the client is one for the server.
    let mut client = world.connect(&target);
    client.write_all(&[2]).unwrap();
    client.read_exact(&mut [0]).unwrap();
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), Err(io::ErrorKind::ConnectionReset));
    let outcomes: Vec<_> = world.audit(2).into_iter().map(|(_, outcome, _)| outcome).collect();
    assert_eq!(outcomes, ["reset", "reset"]);
}

#[test]
fn connections_end_with_their_session_and_their_audit_lines_are_not_awaited() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = server(move |mut client| {
        client.write_all(b"x").unwrap();
        sender.send(client.read(&mut [0]).map_err(|error| error.kind())).unwrap();
    });
    let world = World::new(&rules("ok.example", port));
    let mut open: Vec<_> = (0..5).map(|_| world.connect(&format!("ok.example:{port}"))).collect();
    open.iter_mut().for_each(|client| client.read_exact(&mut [0]).unwrap());
    // They are open for as long as the session is: the wait times out.
    let settle = |patience| world.runtime.block_on(world.egress.settle(patience));
    settle(Duration::from_millis(20));
    assert_eq!(world.audit(0), []);
    world.session.breach("it ends");
    settle(TIMEOUT);
    let lines = world.seen.audit.lock().unwrap().clone();
    let outcomes: Vec<_> = lines.iter().map(|(_, outcome, _)| outcome.as_str()).collect();
    assert_eq!(outcomes, ["reset"; 5]);
    for _ in 0..5 {
        let end = receiver.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset), "no end that looks whole");
    }
}

#[test]
fn connection_that_is_requested_ends_with_its_command_and_an_open_one_delivers_what_was_sent() {
    const TOTAL: u64 = 1 << 20;
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = server(move |mut client| {
        sender.send(read_bytes(&mut client, &AtomicU64::new(0))).unwrap();
    });
    let mut list = rules("ok.example", port);
    list.push("never.example".to_owned());
    let world = World::new(&list);
    let mut asked = world.client();
    asked.write_all(b"CONNECT never.example:443 HTTP/1.1\r\n\r\n").unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while world.seen.lookups.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "its host is not looked up");
        std::thread::yield_now();
    }
    let mut open = world.connect(&format!("ok.example:{port}"));
    write_bytes(&mut open, TOTAL, &AtomicU64::new(0)).unwrap();
    drop(open);
    world.proxy.drop_clients();
    assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), TOTAL);
    let mut lines = world.audit(2);
    lines.sort_unstable();
    let outcomes: Vec<_> =
        lines.iter().map(|(target, outcome, _)| (&**target, &**outcome)).collect();
    assert_eq!(outcomes, [("never.example:443", "reset"), (&*format!("ok.example:{port}"), "ok")]);
}

#[test]
fn a_plain_request_is_one_connection_to_one_host() {
    let port = server(|mut client| {
        let head = read_head(&mut client);
        // A server that would accept it, and says so.
        let length = head.len();
        write!(
            client,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: {length}\r\n"
        )
        .unwrap();
        write!(client, "Connection: keep-alive\r\n\r\n{head}").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "hello", "the body, and nothing after it");
    });
    let world = World::new(&rules("ok.example", port));
    let answer = world.answer(
        format!(
            "POST http://ok.example:{port}/a?b HTTP/1.1\r\nHost: ok.example:{port}\r\n\
             Content-Length: 5\r\nProxy-Connection: keep-alive\r\n\r\nhello\
             GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        )
        .as_bytes(),
    );
    let (interim, answer) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(interim, "HTTP/1.1 100 Continue");
    let (head, seen) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Connection: close") && !head.contains("keep-alive"), "{head}");
    assert_eq!(
        seen,
        format!(
            "POST /a?b HTTP/1.1\r\nHost: ok.example:{port}\r\nContent-Length: 5\r\n\
             Connection: close\r\n\r\n"
        )
    );
    // A request for another host is another connection, with its own decision.
    let answer = world.answer(b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.ends_with("--allow evil.example\n"), "{answer}");
    let answer = world.answer(
        format!("GET http://ok.example:{port}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n").as_bytes(),
    );
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(world.audit(2).len(), 2, "what is no request is no connection");
}

#[test]
fn socks_goes_the_same_way() {
    let port = server(|mut client| {
        client.write_all(b"first words").unwrap();
    });
    let world = World::new(&rules("ok.example", port));
    let ask = |host: &[u8], port: u16| {
        let mut client = world.client();
        // The greeting and the request at once, as some clients send them.
        let request = [&[5, 1, 0, 5, 1, 0][..], host, &port.to_be_bytes()].concat();
        client.write_all(&request).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer[..2], [5, 0]);
        answer.split_off(2)
    };
    let name = |name: &str| [&[3, name.len() as u8][..], name.as_bytes()].concat();
    let there = [&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"first words"].concat();
    assert_eq!(ask(&name("ok.example"), port), there);
    assert_eq!(ask(&name(HOST_LOOPBACK), port), there);
    assert_eq!(*world.seen.lookups.lock().unwrap(), ["ok.example"], "the other is known");
    // Addresses are understood, and are those of the sandbox.
    assert_eq!(ask(&[1, 127, 0, 0, 1], port)[..2], [5, 2]);
    let mapped =
        [&[4][..], &"::ffff:127.0.0.1".parse::<std::net::Ipv6Addr>().unwrap().octets()].concat();
    assert_eq!(ask(&mapped, port)[..2], [5, 2]);
    assert_eq!(ask(&name("evil.example"), port)[..2], [5, 2]);
    assert_eq!(ask(&[1, 10, 0, 0, 1], port)[..2], [5, 2]);
    let mut client = world.client();
    client.write_all(&[5, 1, 2]).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [5, 0xff], "only without authentication");
}

#[test]
fn addresses_that_are_dialled_at_a_time_are_bounded() {
    let port = server(drop);
    let list = rules("*.example", port);
    let target = format!("two.example:{port}");
    // Without a free slot the wait is short.
    let limits = EgressLimits { connect_timeout: Duration::from_secs(1), ..default_limits() };
    let impatient = World::with_limits(&list, limits);
    let all = impatient.egress.dials.try_acquire_many(MORE_DIALS as u32).unwrap();
    assert!(impatient.refusal(&target).starts_with("HTTP/1.1 504 "));
    drop(all);
    assert_eq!(impatient.egress.dials.available_permits(), MORE_DIALS);
    let world = World::new(&list);
    let all = world.egress.dials.try_acquire_many(MORE_DIALS as u32).unwrap();
    // The first address needs none of them.
    world.connect(&format!("ok.example:{port}"));
    drop(all);
    world.connect(&target);
    assert_eq!(world.egress.dials.available_permits(), MORE_DIALS);
}

#[test]
fn limits_on_connections_bytes_and_time_are_kept() {
    let port = server(|mut client| {
        let mut which = [0];
        client.read_exact(&mut which).unwrap();
        if which == [1] {
            _ = write_bytes(&mut client, 10 << 20, &AtomicU64::new(0));
        }
        _ = client.read(&mut which);
    });
    let list = rules("ok.example", port);
    let target = format!("ok.example:{port}");
    let read = |mut client: TcpStream, which| {
        let mut all = Vec::new();
        // On a busy machine its time may be up before anything is written.
        let written = client.write_all(&[which]);
        let ended = written.and_then(|()| client.read_to_end(&mut all).map(drop));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        all.len()
    };
    let limits = EgressLimits { connections: 2, bytes: ByteSize::b(1 << 20), ..default_limits() };
    let world = World::with_limits(&list, limits);
    let report = world.egress.report();
    assert!(read(world.connect(&target), 1) <= 1 << 20);
    report.send_replace(Network::default());
    let lookups = world.seen.lookups.lock().unwrap().len();
    for limit in ["network byte limit exceeded", "connection limit exceeded"] {
        let answer = world.refusal(&target);
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(limit), "{answer}");
    }
    // No lookup and no connection.
    assert_eq!(world.seen.lookups.lock().unwrap().len(), lookups);
    assert_eq!(*report.borrow(), Network::default());
    assert!(world.audit(3).iter().all(|(_, outcome, _)| outcome == "limit"));
    let (world, client) = World::soon_idle(&list, &target);
    assert_eq!(read(client, 0), 0);
    assert_eq!(world.audit(1)[0].1, "timeout");
}

fn frame(message: FromAgent<'_>) -> Vec<u8> {
    message.encode().unwrap()
}

fn connect(tunnel: u32, host: &str) -> Vec<u8> {
    frame(FromAgent::Connect(Connect { tunnel, host: host.to_owned(), port: 443 }))
}

fn chunk(seq: u64, data: Vec<u8>) -> Vec<u8> {
    let chunk = Chunk { stream: FIRST_TUNNEL, seq, data: Base64(data), last: false };
    frame(FromAgent::Chunk(chunk))
}

fn close() -> Vec<u8> {
    frame(FromAgent::Close(Close { tunnel: FIRST_TUNNEL }))
}

fn hostile(limits: EgressLimits) -> (Session, FakeAgent, Arc<Seen>) {
    let (attached, agent) = pipe();
    let seen = Arc::new(Seen::default());
    let rules = ["never.example".to_owned()];
    let gate: Arc<dyn ConnectHandler> = egress(&rules, limits, &seen);
    (Session::start(attached, Some(gate)).unwrap(), agent, seen)
}

#[tokio::test]
async fn protocol_breach_about_a_tunnel_ends_the_session() {
    let never = || connect(FIRST_TUNNEL, "never.example");
    let credit = |bytes| frame(FromAgent::Credit(Credit { stream: FIRST_TUNNEL, bytes }));
    for (what, lines, words) in [
        ("a number of a request's", vec![connect(1, "ok.example")], "malformed connection"),
        ("a host too long", vec![connect(FIRST_TUNNEL, &"a".repeat(256))], "malformed connection"),
        ("a number twice", vec![never(), never()], "already open"),
        ("a chunk of none", vec![chunk(0, vec![])], "a chunk for an unknown tunnel"),
        ("a chunk too soon", vec![never(), chunk(0, vec![1])], "a chunk for an unknown tunnel"),
        ("credit too soon", vec![never(), credit(1)], "credit for an unknown tunnel"),
        ("a close of none", vec![close()], "a close of an unknown tunnel"),
        (
            "too many",
            (0..=MAX_TUNNELS as u32)
                .map(|at| connect(FIRST_TUNNEL + at, "never.example"))
                .collect(),
            "too many tunnels",
        ),
    ] {
        let (session, mut agent, _) = hostile(default_limits());
        for line in lines {
            agent.send(line).await;
        }
        let SessionEnd::Breach(detail) = session.ended().await else { panic!("{what}") };
        assert!(detail.contains(words), "{what}: {detail}");
    }
    // Without allow rules, a connection request is a breach.
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    agent.send(never()).await;
    assert!(matches!(session.ended().await, SessionEnd::Breach(_)));
}

#[tokio::test]
async fn a_tunnel_keeps_its_place_until_both_have_said_their_last_word() {
    let (session, mut agent, _) = hostile(default_limits());
    for host in ["evil.example", "evil.example"] {
        agent.send(connect(FIRST_TUNNEL, host)).await;
        let Some(ToAgent::Closed(Closed { reason, tunnel, .. })) = agent.message().await else {
            panic!()
        };
        assert_eq!((reason, tunnel), (ClosedReason::Refused, FIRST_TUNNEL));
        agent.send(close()).await;
    }
    // The agent closes first.
    agent.send(connect(FIRST_TUNNEL, "never.example")).await;
    agent.send(close()).await;
    let Some(ToAgent::Closed(closed)) = agent.message().await else { panic!() };
    assert_eq!(closed.reason, ClosedReason::Reset);
    agent.send(connect(FIRST_TUNNEL, "evil.example")).await;
    assert!(matches!(agent.message().await, Some(ToAgent::Closed(_))));
    assert!(session.end().is_none());
    // Until the agent closes it, the tunnel still counts.
    agent.send(connect(FIRST_TUNNEL, "evil.example")).await;
    assert!(matches!(session.ended().await, SessionEnd::Breach(_)));
}

#[tokio::test]
async fn connections_that_the_agent_closed_before_an_answer_are_settled_after_it() {
    let (session, mut agent, seen) = hostile(default_limits());
    // Those that it leaves open are not waited for.
    agent.send(connect(FIRST_TUNNEL + 1, "never.example")).await;
    let settled = async {
        session.call(Shutdown {}).await.unwrap();
        session.settle_tunnels().await;
        seen.audit.lock().unwrap().len()
    };
    let talk = async {
        let (id, _) = agent.request().await.unwrap();
        agent.send([connect(FIRST_TUNNEL, "never.example"), close()].concat()).await;
        agent.answer(id, Done {}).await;
    };
    assert_eq!(tokio::join!(settled, talk), (1, ()));
    assert_eq!(*seen.lookups.lock().unwrap(), ["never.example"], "none for one that is closed");
    // The end of the session closes the other one.
    session.breach("it ends");
    session.settle_tunnels().await;
    assert_eq!(seen.audit.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_agent_that_sends_more_than_its_credit_ends_the_session() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (attached, mut agent) = pipe();
    let gate = egress(&[format!("{HOST_LOOPBACK}:{port}")], default_limits(), &Arc::default());
    let session = Session::start(attached, Some(gate)).unwrap();
    let ask = Connect { tunnel: FIRST_TUNNEL, host: HOST_LOOPBACK.into(), port };
    agent.send(frame(FromAgent::Connect(ask))).await;
    assert!(matches!(agent.message().await, Some(ToAgent::Connected(_))));
    // A server that reads nothing: only what its socket buffers is returned as credit.
    let _server = listener.accept().await.unwrap();
    let mut credit = INITIAL_CREDIT;
    let mut sent = 0;
    let mut seq = 0;
    let end = loop {
        // All the credit so far, in honest chunks; then one more.
        let is_over = sent + MAX_CHUNK_BYTES as u64 > credit;
        if is_over
            && let Ok(message) =
                tokio::time::timeout(Duration::from_millis(200), agent.message()).await
        {
            match message {
                Some(ToAgent::Credit(more)) => credit += more.bytes,
                // There was too little of it.
                None => break session.ended().await,
                other => panic!("{other:?}"),
            }
            continue;
        }
        agent.send(chunk(seq, vec![0; MAX_CHUNK_BYTES])).await;
        seq += 1;
        sent += MAX_CHUNK_BYTES as u64;
        if is_over {
            tokio::select! {
                end = session.ended() => break end,
                // A busy server's socket takes some later: then it was not more.
                Some(ToAgent::Credit(more)) = agent.message() => credit += more.bytes,
            }
        }
    };
    let SessionEnd::Breach(detail) = end else { panic!("{end:?}") };
    assert!(detail.contains("more than its credit"), "{detail}");
    assert!(sent < 64 << 20, "{sent} bytes were taken for who reads nothing");
}

/// A server whose TLS is good for `ok.example`, and the file of the authority that says so.
struct TlsServer {
    port: u16,
    authority: tempfile::NamedTempFile,
}

impl TlsServer {
    /// Answers each request with its own head, and as many bytes more.
    fn echoing(more: usize) -> Self {
        use tokio_rustls::rustls::{
            ServerConfig, ServerConnection, Stream, pki_types::PrivateKeyDer,
        };

        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["ok.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let mut authority = tempfile::NamedTempFile::new().unwrap();
        let text = Base64(certificate.to_vec());
        let text = serde_json::to_value(&text).unwrap();
        let text = text.as_str().unwrap();
        write!(authority, "-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
            .unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        let port = server(move |mut client| {
            let mut connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = Stream::new(&mut connection, &mut client);
            let mut head = Vec::new();
            let mut byte = [0];
            while let Ok(1) = stream.read(&mut byte) {
                head.push(byte[0]);
                if head.ends_with(b"\r\n\r\n") {
                    head.resize(head.len() + more, b'x');
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
                    let sent =
                        stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&head));
                    if sent.is_err() {
                        return;
                    }
                    head.clear();
                }
            }
        });
        Self { port, authority }
    }
}

fn provider() -> Arc<tokio_rustls::rustls::crypto::CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider())
}

/// Lets connections to such a server be terminated, and returns the certificate to trust for that.
fn terminate(world: &World, server: &TlsServer, rules: &[String]) -> String {
    let list = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let rule = format!("ok.example:{}: Authorization: Bearer env:TOKEN", server.port);
    let rule: sandbox_api::InjectRule = rule.parse().unwrap();
    let secret = SecretValue::new("hunter2!");
    let ca =
        world.egress.intercept(&list, &[rule.with(secret).unwrap()], Some(server.authority.path()));
    let ca = ca.unwrap().unwrap();
    assert_eq!(ca.variables[0].value.as_bytes(), b"sandboxctl-injected-TOKEN");
    ca.certificate
}

/// What a program gets that trusts this certificate, for one request.
fn request(client: TcpStream, certificate: &str, head: &str) -> String {
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("ok.example").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, client);
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // It may end without the end of TLS.
    _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn requests_of_a_terminated_host_get_its_secret_and_are_recorded() {
    let server = TlsServer::echoing(0);
    let port = server.port;
    let rules =
        [format!("GET https://ok.example:{port}/a"), format!("host.sandbox.internal:{port}")];
    let world = World::new(&rules);
    let certificate = terminate(&world, &server, &rules);
    let report = world.egress.report();
    let target = format!("ok.example:{port}");
    let send = |method: &str| {
        let head = format!("{method} /a?b HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        request(world.connect(&target), &certificate, &head)
    };
    let answer = send("GET");
    assert!(answer.contains("authorization: Bearer ********\r\n"), "{answer}");
    let answer = send("POST");
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("--allow 'POST https://ok.example:"),
        "{answer}"
    );
    let lines = world.audit(4);
    let outcomes: Vec<_> = lines.iter().map(|(_, outcome, _)| outcome.as_str()).collect();
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == "network_refused").count(),
        1,
        "{lines:?}"
    );
    let network = report.borrow().clone();
    assert_eq!(network.refused[0].reason, "POST /a");
    assert_eq!(network.refused[0].allow, [format!("POST https://ok.example:{port}/a")]);
    assert_eq!(network.contacted.len(), 1);
    let document = world.egress.policy.document().to_string();
    assert!(document.contains("POST /a") && !document.contains("hunter2"), "{document}");
    let mut text = "a log says hunter2!".to_owned();
    world.egress.redactions.text(&mut text);
    assert_eq!(text, "a log says ***");
    // Without TLS there is nothing.
    let mut plain = world.connect(&target);
    plain.write_all(b"GET /a HTTP/1.1\r\nHost: ok.example\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

#[test]
fn limit_of_bytes_holds_for_terminated_connections() {
    let server = TlsServer::echoing(1 << 20);
    let rules = rules("ok.example", server.port);
    let limits = EgressLimits { bytes: ByteSize::b(64 << 10), ..default_limits() };
    let world = World::with_limits(&rules, limits);
    let certificate = terminate(&world, &server, &rules);
    let target = format!("ok.example:{}", server.port);
    let head = format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    let answer = request(world.connect(&target), &certificate, &head);
    assert!(answer.len() < 64 << 10, "{}", answer.len());
    assert!(world.audit(2).iter().any(|(_, outcome, _)| outcome == "limit"));
}

/// Someone who allows these hosts, once they may answer; and what they were asked.
#[derive(Debug)]
struct Person {
    allows: Vec<String>,
    asked: Mutex<Vec<String>>,
    may_answer: tokio::sync::Semaphore,
}

impl Person {
    fn allowing(targets: &[&str]) -> Arc<Self> {
        let person = Self::absent(targets);
        person.answer();
        person
    }

    fn absent(targets: &[&str]) -> Arc<Self> {
        let allows = targets.iter().map(ToString::to_string).collect();
        let may_answer = tokio::sync::Semaphore::new(0);
        Arc::new(Self { allows, asked: Mutex::default(), may_answer })
    }

    fn answer(&self) {
        self.may_answer.add_permits(1000);
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn was_asked(&self, count: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while self.asked().len() < count {
            assert!(Instant::now() < deadline, "{:?}", self.asked());
            std::thread::yield_now();
        }
    }
}

#[async_trait]
impl Permission for Person {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        let Ask::Host { target, reason } = ask else { panic!("{ask}") };
        assert_eq!(*reason, "not on the list");
        self.asked.lock().unwrap().push(target.to_string());
        self.may_answer.acquire().await.unwrap().forget();
        match self.allows.contains(&target.to_string()) {
            true => Answer::Allowed,
            false => Answer::Refused,
        }
    }
}

#[test]
fn host_that_is_not_listed_is_asked_for_once_and_only_that_port_is_allowed() {
    let port = server(|mut client| client.write_all(b"there").unwrap());
    let target = format!("ok.example:{port}");
    let person = Person::absent(&[&target]);
    // Only the address is listed, which is not what a program asks for by this name.
    let list = [format!("host.sandbox.internal:{port}")];
    let world = World::asking(Some(person.clone()), &list, default_limits());
    std::thread::scope(|scope| {
        let many: Vec<_> = (0..10).map(|_| scope.spawn(|| world.connect(&target))).collect();
        person.was_asked(1);
        assert_eq!(*world.seen.lookups.lock().unwrap(), [""; 0], "no lookup before the answer");
        person.answer();
        for client in many {
            let mut words = String::new();
            client.join().unwrap().read_to_string(&mut words).unwrap();
            assert_eq!(words, "there");
        }
    });
    world.connect(&target);
    assert_eq!(person.asked(), [&*target]);
    // No other port, and no other name.
    for other in ["ok.example:1", "sub.ok.example:1", "evil.example:443"] {
        for _ in 0..2 {
            let answer = world.refusal(other);
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        }
    }
    assert_eq!(person.asked()[1..], ["ok.example:1", "sub.ok.example:1", "evil.example:443"]);
    let document = world.egress.policy.document();
    assert_eq!(document["allow"], serde_json::json!([list[0], target]));
    // And not for any other sandbox.
    let other = World::asking(Some(Person::allowing(&[])), &list, default_limits());
    assert!(other.refusal(&target).starts_with("HTTP/1.1 403 "));
    let unasked = World::new(&list);
    assert!(unasked.refusal(&target).starts_with("HTTP/1.1 403 "));
}

#[test]
fn no_question_is_about_special_addresses_and_an_answer_does_not_allow_one() {
    let port = server(drop);
    let targets = [
        format!("ok.example:{port}"),
        "inside.example:443".to_owned(),
        "cloud.example:80".to_owned(),
        "mixed.example:443".to_owned(),
    ];
    let allowed: Vec<_> = targets.iter().map(String::as_str).collect();
    let person = Person::allowing(&allowed);
    let world = World::asking(Some(person.clone()), &[], default_limits());
    for never in [
        "10.0.0.1:443", "0xa.1:443", "127.0.0.1:443", "localhost:80", "[::1]:80",
        "169.254.169.254:80", "[fd00:ec2::254]:80", "metadata.google.internal:80",
        "host.sandbox.internal:80", "policy.sandbox.internal:443", "a.sandbox.internal:80",
    ] {
        assert!(world.refusal(never).starts_with("HTTP/1.1 403 "), "{never}");
    }
    assert_eq!(person.asked(), [""; 0]);
    assert_eq!(*world.seen.lookups.lock().unwrap(), [""; 0]);
    // These names are allowed; their addresses are those of this machine, its network and its cloud.
    for target in &targets {
        let answer = world.refusal(target);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
    }
    assert_eq!(person.asked(), targets);
}

#[test]
fn name_with_a_secret_in_it_is_not_asked_for() {
    let person = Person::allowing(&[]);
    let world = World::asking(Some(person.clone()), &[], default_limits());
    let mut secrets = Secrets::new();
    secrets.add("TOKEN", SecretValue::new("hunter2hunter2")).unwrap();
    world.egress.redactions.add(&secrets);
    assert!(world.refusal("hunter2hunter2.evil.example:443").starts_with("HTTP/1.1 403 "));
    assert_eq!(person.asked(), [""; 0]);
}

#[test]
fn question_is_withdrawn_with_the_last_connection_that_waits_and_their_number_is_bounded() {
    let person = Person::absent(&["ok.example:1"]);
    let world = World::asking(Some(person.clone()), &[], default_limits());
    let asks = |target: &str| {
        let mut client = world.client();
        write!(client, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
        client
    };
    let first = asks("ok.example:1");
    person.was_asked(1);
    drop(first);
    world.proxy.drop_clients();
    assert_eq!(world.audit(1)[0].1, "reset");
    // Nothing was answered: the next one asks again.
    world.proxy.accept_clients();
    person.answer();
    let answer = world.refusal("ok.example:1");
    assert!(!answer.starts_with("HTTP/1.1 200 "), "nothing listens there: {answer}");
    assert_eq!(person.asked(), ["ok.example:1"; 2]);
    for at in 0..200 {
        assert!(world.refusal(&format!("n{at}.example:443")).starts_with("HTTP/1.1 403 "));
    }
    assert_eq!(person.asked().len(), 100);
}

#[test]
fn policy_is_answered_without_a_connection_and_says_why_the_last_refusal_happened() {
    let limits = EgressLimits { connections: 4, ..default_limits() };
    let list = ["ok.example".to_owned(), "*.internal".to_owned(), "inside.example".to_owned()];
    let world = World::with_limits(&list, limits);
    let report = world.egress.report();
    let get = |request: &str| {
        let answer = world.answer(request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split("\r\n").next().unwrap().to_owned(), body.to_owned())
    };
    let policy =
        "GET http://policy.sandbox.internal/ HTTP/1.1\r\nHost: policy.sandbox.internal\r\n\r\n";
    assert!(world.refusal("evil.example:8443").starts_with("HTTP/1.1 403 "));
    assert!(world.refusal("inside.example:443").starts_with("HTTP/1.1 403 "));
    assert!(world.refusal("policy.sandbox.internal:443").starts_with("HTTP/1.1 403 "));
    for _ in 0..10 {
        let (status, body) = get(policy);
        assert_eq!(status, "HTTP/1.1 200 OK");
        let document: serde_json::Value = serde_json::from_str(&body).unwrap();
        let expected = serde_json::json!({
            "allow": ["ok.example", "*.internal", "inside.example"], "injected": [], "tools": [],
            "limits": {
                "connections": 4, "network_bytes": 4_294_967_296_u64,
                "connect_timeout_ms": 10_000, "connection_idle_ms": 300_000,
            },
            "refused": [
                {
                    "target": "evil.example:8443", "reason": "not on the list",
                    "allow": ["evil.example:8443"],
                },
                // Not the address, which is one of the host's network.
                { "target": "inside.example:443", "reason": "private address", "allow": [] },
                {
                    "target": "policy.sandbox.internal:443", "reason": "not on the list",
                    "allow": [],
                },
            ],
        });
        assert_eq!(document, expected);
    }
    let head = policy.replacen("GET", "HEAD", 1);
    assert_eq!(get(&head), ("HTTP/1.1 200 OK".to_owned(), String::new()));
    assert_eq!(get(&policy.replacen("internal/", "internal/x", 1)).0, "HTTP/1.1 404 Not Found");
    assert_eq!(get(&policy.replacen("GET", "PUT", 1)).0, "HTTP/1.1 405 Method Not Allowed");
    // Also where a client opens a tunnel for it, and talks slowly.
    let mut client = world.connect("policy.sandbox.internal:80");
    for piece in ["GET / HT", "TP/1.1\r\nHost: policy.sandbox.internal\r", "\n\r\n"] {
        client.write_all(piece.as_bytes()).unwrap();
        std::thread::yield_now();
    }
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    // What is no request ends too.
    let mut client = world.connect("policy.sandbox.internal:80");
    client.write_all(&vec![b'x'; 20 << 10]).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 405 "));
    drop(client);
    // One connection is left, and none of these was one.
    assert_eq!(*world.seen.lookups.lock().unwrap(), ["inside.example"]);
    assert!(report.borrow().contacted.is_empty());
    assert!(world.refusal("evil.example:443").starts_with("HTTP/1.1 403 "));
    assert!(world.refusal("evil.example:443").starts_with("HTTP/1.1 503 "));
    // Nor do they fill the audit.
    let mut targets: Vec<_> = world.audit(5).into_iter().map(|(target, ..)| target).collect();
    targets.sort_unstable();
    assert_eq!(
        targets,
        [
            "evil.example:443", "evil.example:443", "evil.example:8443", "inside.example:443",
            "policy.sandbox.internal:443",
        ]
    );
}
