//! Ports of a sandbox: who may use it connects to what its programs serve on the loopback there, and to
//! nothing else.

use std::net::TcpListener;
use std::time::Duration;

use sandbox_api::hosts::Allowlist;
use sandbox_api::{Ports, Processes, SandboxSpec};
use sandbox_controller::{Command, PortStream, Process};
use sandbox_protocol::limits::MAX_DIALS;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::engines::{Feature, has};
use crate::fixture::{TIMEOUT, eventually};
use crate::library::{Guest, kind_of};
use crate::rootfs::{Provided, Rootfs};

/// Sends back what it gets, and ends when that ends.
const ECHO: &str = "exec nc -ll -p 8080 -e cat";

/// A sandbox with busybox, in which something is served.
struct Served {
    guest: Guest,
    _server: Process,
    _rootfs: Provided,
}

impl Served {
    /// `None` on an engine without processes that live on.
    fn new(
        ports: Ports,
        line: &str,
        spec: impl FnOnce(SandboxSpec) -> SandboxSpec,
    ) -> Option<Self> {
        if !has(Feature::KeptProcesses) {
            return None;
        }
        let rootfs = Rootfs::busybox().provide();
        let root = rootfs.root();
        let guest = Guest::with(|usual| {
            spec(usual.root(root)).processes(Processes::Kept).ports(ports.clone())
        });
        let server = guest.wait(guest.sandbox.start_process(Command::shell(line).merged()));
        let served = Self { guest, _server: server.unwrap(), _rootfs: rootfs };
        served.until_listens(8080);
        Some(served)
    }

    fn until_listens(&self, port: u16) {
        eventually("it listens", || self.listening().contains(&port).then_some(()));
    }

    fn listening(&self) -> Vec<u16> {
        let listed = self.guest.wait(self.guest.sandbox.listening_ports()).unwrap();
        listed.ports.iter().map(|it| it.port).collect()
    }

    #[track_caller]
    fn dial(&self, port: u16) -> PortStream {
        self.guest.wait(self.guest.sandbox.dial(port)).unwrap()
    }

    #[track_caller]
    fn refused(&self, port: u16) -> &'static str {
        kind_of(self.guest.wait(self.guest.sandbox.dial(port)))
    }

    /// What comes back of this, after which nothing more is sent.
    #[track_caller]
    fn exchange(&self, mut stream: PortStream, sent: &[u8]) -> Vec<u8> {
        self.guest.wait(async {
            stream.write_all(sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            got
        })
    }
}

fn listed(ports: &[u16]) -> Ports {
    Ports::Listed(ports.iter().map(|&port| port.try_into().unwrap()).collect())
}

#[test]
fn listed_port_is_one_of_the_sandboxs_loopback_with_and_without_egress() {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts_port = host.local_addr().unwrap().port();
    let line = format!(
        "{{ httpd -f -p '[::1]:8081' || httpd -f -p 127.0.0.1:8081; }} & \
         nc -ll -p 9090 -e cat & {ECHO}"
    );
    for rule in [None, Some("example.org")] {
        let ports = listed(&[8080, 8081, 8082, 3128, hosts_port]);
        let allow: Allowlist = rule.iter().map(|rule| rule.parse().unwrap()).collect();
        let Some(served) = Served::new(ports, &line, |spec| spec.allow(allow)) else { return };
        served.until_listens(8081);
        served.until_listens(9090);
        assert_eq!(served.exchange(served.dial(8080), b"hello"), b"hello");
        // A server of ::1 alone.
        let answer = served.exchange(served.dial(8081), b"GET /none HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
        // What the spec does not list, where nothing listens, this machine, and our own proxy.
        assert_eq!(served.refused(9090), "policy");
        for closed in [8082, hosts_port, 3128] {
            assert_eq!(served.refused(closed), "not_found", "{closed}");
        }
        assert!(!served.listening().contains(&3128));
        // A connection outlives commands and the end of their egress.
        let mut stream = served.dial(8080);
        let sandbox = &served.guest.sandbox;
        served.guest.wait(sandbox.run(Command::new("true"))).unwrap();
        let mut byte = [0];
        served.guest.wait(async {
            stream.write_all(b"x").await.unwrap();
            stream.read_exact(&mut byte).await.unwrap();
        });
        assert_eq!(&byte, b"x");
        drop(stream);
        served.guest.wait(sandbox.close()).unwrap();
    }
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "something has connected to this machine");
}

#[test]
fn connection_waits_for_a_slow_reader_and_loses_nothing() {
    const MOST: usize = 64 << 20;
    let Some(served) = Served::new(Ports::Any, ECHO, |spec| spec) else { return };
    served.guest.wait(async {
        let stream = served.guest.sandbox.dial(8080).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let piece = |at: usize| vec![u8::try_from(at % 251).unwrap(); 64 << 10];
        let mut pieces = 0;
        // What comes back has no reader.
        loop {
            let piece = piece(pieces);
            let written = writer.write_all(&piece);
            match tokio::time::timeout(Duration::from_secs(1), written).await {
                Ok(written) => written.unwrap(),
                Err(_) => break,
            }
            pieces += 1;
            assert!(pieces * piece.len() < MOST, "all of it is taken");
        }
        // The last one may have been taken in part.
        let end = async {
            writer.shutdown().await.unwrap();
        };
        let read = async {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).await.unwrap();
            got
        };
        let ((), got) =
            tokio::time::timeout(TIMEOUT, async { tokio::join!(end, read) }).await.unwrap();
        assert!(got.len() >= pieces * (64 << 10), "{} of {pieces} pieces", got.len());
        for (at, got) in got.chunks(64 << 10).enumerate() {
            assert!(got == &piece(at)[..got.len()], "piece {at}");
        }
    });
    let took = std::time::Instant::now();
    assert_eq!(served.exchange(served.dial(8080), &vec![7; 1 << 20]).len(), 1 << 20);
    assert!(took.elapsed() < TIMEOUT);
}

#[test]
fn there_are_64_connections_at_a_time_and_all_end_with_their_sandbox() {
    let Some(served) = Served::new(Ports::Any, ECHO, |spec| spec) else { return };
    let mut open: Vec<_> = (0..MAX_DIALS).map(|_| served.dial(8080)).collect();
    assert_eq!(served.refused(8080), "busy");
    drop(open.pop());
    let again =
        eventually("there is one less", || served.guest.wait(served.guest.sandbox.dial(8080)).ok());
    open.push(again);
    for stream in &mut open {
        served.guest.wait(async {
            stream.write_all(b"x").await.unwrap();
            assert_eq!(stream.read(&mut [0; 2]).await.unwrap(), 1);
        });
    }
    served.guest.wait(served.guest.sandbox.close()).unwrap();
    for mut stream in open {
        let read = served.guest.wait(stream.read(&mut [0]));
        assert!(!matches!(read, Ok(1)), "{read:?}");
    }
    assert_eq!(served.refused(8080), "agent_lost");
}
