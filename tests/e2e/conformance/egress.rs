//! What programs reach: the hosts on their list, by the proxy, and no other host by any way. The
//! servers are the tests' own, on the loopback.

use std::io;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::process::Command as HostCommand;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use sandbox_api::Outcome;
use sandbox_api::hosts::{Allowlist, HOST_LOOPBACK};
use sandbox_controller::Command;
use sandbox_protocol::limits::MAX_TUNNELS;
use serde_json::{Value, json};

use crate::agent::network;
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, finish, sandboxctl, spawn, wait_and_watch};
use crate::library::Guest;
use crate::rootfs::{Provided, Rootfs};
use crate::tls;
use crate::tls::{Hello, Server};

/// Longer than any connection of these tests needs.
const TIMEOUT: Duration = Duration::from_secs(240);
const MIB: u64 = 1 << 20;

/// busybox, and the program that says what it reaches.
fn rootfs() -> Provided {
    Rootfs::busybox().copy("network", network()).provide()
}

/// A sandbox whose programs may reach these hosts.
struct Net {
    guest: Guest,
    _rootfs: Provided,
}

impl Net {
    fn new(rules: &[String]) -> Self {
        let rootfs = rootfs();
        let list: Allowlist = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let guest = Guest::with(|spec| spec.root(rootfs.root()).allow(list));
        Self { guest, _rootfs: rootfs }
    }

    /// What a program prints, which ends well.
    #[track_caller]
    fn says(&self, command: Command) -> String {
        let result = self.guest.wait(self.guest.sandbox.run(command.timeout(TIMEOUT))).unwrap();
        let stderr = String::from_utf8_lossy(&result.stderr().bytes);
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{:?} {stderr}", result.outcome);
        String::from_utf8(result.stdout().bytes.clone()).unwrap()
    }

    #[track_caller]
    fn network(&self, words: &[&str]) -> String {
        self.says(Command::new("/network").args(words.iter().copied()))
    }
}

/// A server on the loopback that serves every connection so, each in a thread of its own.
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

/// Bytes that are nowhere the same, from this place of theirs on: as the program expects them.
fn fill(buffer: &mut [u8], from: u64) {
    for (place, byte) in (from..).zip(buffer) {
        let mixed = (place / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        *byte = mixed.to_le_bytes()[(place % 8) as usize];
    }
}

fn send(stream: &mut TcpStream, total: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < total {
        let size = (total - at).min(buffer.len() as u64) as usize;
        fill(&mut buffer[..size], at);
        stream.write_all(&buffer[..size])?;
        at += size as u64;
    }
    Ok(())
}

/// A server of this machine's loopback, as rules and programs name it.
fn on_host(port: u16) -> String {
    format!("{HOST_LOOPBACK}:{port}")
}

/// `sandboxctl exec` of a command that may reach this.
fn exec(place: &Fixture, rootfs: &Provided, rule: &str, command: &[&str]) -> HostCommand {
    let root = rootfs.args();
    let mut args = vec!["exec", "--timeout", "5m", "--allow", rule];
    args.extend(root.iter().map(String::as_str));
    args.push("--");
    args.extend(command);
    place.command(args)
}

#[test]
fn programs_find_the_proxy_and_have_no_device_but_the_loopback() {
    let net = Net::new(&["example.org".to_owned(), on_host(9)]);
    assert_eq!(net.network(&["loopback"]), "hello\n");
    let devices = net.says(Command::shell("cut -d: -f1 /proc/net/dev | tail -n +3"));
    assert_eq!(devices.trim(), "lo");
    let variables = net.says(Command::shell("env | grep -i proxy | sort"));
    let by_it = "http://127.0.0.1:3128";
    // The host's loopback is on the list, and the sandbox's own is reached without the proxy all the same.
    let own_hosts = "localhost,127.0.0.1,::1";
    let expected = [
        format!("ALL_PROXY={by_it}"),
        format!("HTTPS_PROXY={by_it}"),
        format!("HTTP_PROXY={by_it}"),
        "NODE_USE_ENV_PROXY=1".to_owned(),
        format!("NO_PROXY={own_hosts}"),
        format!("all_proxy={by_it}"),
        format!("http_proxy={by_it}"),
        format!("https_proxy={by_it}"),
        format!("no_proxy={own_hosts}"),
    ];
    let mut found: Vec<&str> = variables.lines().collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    let own = Command::shell("echo $HTTP_PROXY").env("HTTP_PROXY", "mine");
    assert_eq!(net.says(own), "mine\n");

    // No network without a list.
    let none = Net::new(&[]);
    assert_eq!(none.says(Command::shell("env | grep -ic proxy || true")), "0\n");
    assert_eq!(
        none.network(&["around", "tcp=127.0.0.1:3128"]),
        "tcp=127.0.0.1:3128: 111\n",
        "no server listens"
    );
    assert_eq!(none.network(&["loopback"]), "hello\n");
}

#[test]
fn a_hundred_megabytes_come_byte_exact_in_bounded_memory() {
    const TOTAL: u64 = 100_000_000;
    let port = server(|mut client| send(&mut client, TOTAL).unwrap());
    let (place, rootfs) = (Fixture::new(), rootfs());
    let target = on_host(port);
    // The agent's peak memory, as the kernel reports it to every process.
    let line = format!("/network download {target} && sed -n /VmHWM/p /proc/1/status");
    let command = exec(&place, &rootfs, &target, &["sh", "-c", &line]);
    let (ended, peak_kib) = wait_and_watch(spawn(command));
    let mut lines = ended.assert_code(0).stdout.lines();
    assert_eq!(lines.next(), Some(&*format!("{TOTAL} bytes")));
    if has(Feature::SharedKernel) {
        let peak = lines.next().and_then(|line| line.split_whitespace().nth(1));
        let agent_kib: u64 = peak.unwrap().parse().unwrap();
        assert!(agent_kib * 1024 < 64 * MIB, "the agent needed {agent_kib} KiB");
    }
    assert!(peak_kib * 1024 < 96 * MIB, "the controller needed {peak_kib} KiB");
}

#[test]
fn ten_at_once_share_fairly() {
    const TOTAL: u64 = 8 * MIB;
    let all_are_there = Barrier::new(10);
    let port = server(move |mut client| {
        all_are_there.wait();
        send(&mut client, TOTAL).unwrap();
    });
    let net = Net::new(&[on_host(port)]);
    // A busy machine may hold up one of the server's threads for longer than all of it takes.
    let mut tries = Vec::new();
    let is_fair = (0..3).any(|_| {
        let shares = net.network(&["downloads", &on_host(port), "10"]);
        let shares: Vec<u64> = shares.lines().map(|share| share.parse().unwrap()).collect();
        assert_eq!(shares.len(), 10);
        let least = shares.iter().min().copied();
        tries.push(shares);
        least > Some(TOTAL / 4)
    });
    assert!(is_fair, "when the first one had all of its {TOTAL}, others had {tries:?}");
}

/// This machine's addresses.
fn addresses() -> Vec<String> {
    let listed = HostCommand::new("hostname").arg("-I").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.split_whitespace().filter(|it| !it.contains(':')).map(str::to_owned).collect()
}

#[test]
fn around_the_proxy_there_is_no_way() {
    // Everything here that could be reached listens, and must not be.
    let reached = Arc::new(AtomicU64::new(0));
    let counter = reached.clone();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while listener.accept().is_ok() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let name = format!("sandboxctl-test-{port}");
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let net = Net::new(&["example.org".to_owned(), HOST_LOOPBACK.to_owned()]);

    const REFUSED: &str = "111";
    const UNREACHABLE: &str = "101";
    const NO_ROUTE: &str = "113";
    const NO_ACCESS: &str = "13";
    const NOT_PERMITTED: &str = "1";
    const NOT_THERE: &str = "2";
    const NO_SUCH_DEVICE: &str = "19";
    let mut ways: Vec<(String, &[&str])> = vec![
        // The sandbox's loopback is not the host's.
        (format!("tcp=127.0.0.1:{port}"), &[REFUSED]),
        (format!("tcp=[::1]:{port}"), &[REFUSED, "99"]),
        ("udp=127.0.0.1:53".to_owned(), &[REFUSED]),
        // Where Docker's own name server is in its other networks.
        ("udp=127.0.0.11:53".to_owned(), &[REFUSED]),
        // Name servers, the hosts of the list too, clouds' metadata, others on the network.
        ("udp=9.9.9.9:53".to_owned(), &[UNREACHABLE]),
        ("tcp=9.9.9.9:53".to_owned(), &[UNREACHABLE]),
        ("tcp=93.184.215.14:443".to_owned(), &[UNREACHABLE]),
        ("tcp=169.254.169.254:80".to_owned(), &[UNREACHABLE]),
        ("tcp=[fd00:ec2::254]:80".to_owned(), &[UNREACHABLE, "99"]),
        ("udp=224.0.0.251:5353".to_owned(), &[UNREACHABLE]),
        ("tcp=172.17.0.1:2375".to_owned(), &[UNREACHABLE]),
        // The engine's sockets, by their files and by a name that has none.
        ("unix=/var/run/docker.sock".to_owned(), &[NOT_THERE]),
        ("unix=/run/docker.sock".to_owned(), &[NOT_THERE]),
        ("unix=/run/containerd/containerd.sock".to_owned(), &[NOT_THERE]),
        (format!("abstract={name}"), &[REFUSED]),
        // Packets of one's own making: raw IP, raw ICMP, Ethernet; messages of the kernel's drivers; the
        // hypervisor.
        ("socket=2,3,255".to_owned(), &[NOT_PERMITTED]),
        ("socket=2,3,1".to_owned(), &[NOT_PERMITTED]),
        ("socket=10,3,58".to_owned(), &[NOT_PERMITTED]),
        ("socket=17,3,768".to_owned(), &[NOT_PERMITTED]),
        ("socket=17,2,768".to_owned(), &[NOT_PERMITTED]),
        ("socket=16,3,15".to_owned(), &[NOT_PERMITTED]),
        ("socket=40,1,0".to_owned(), &[NOT_PERMITTED]),
        ("device=eth0".to_owned(), &[NO_SUCH_DEVICE, NOT_PERMITTED]),
    ];
    ways.extend(
        addresses()
            .into_iter()
            .map(|address| (format!("tcp={address}:{port}"), &[UNREACHABLE][..])),
    );
    let words: Vec<&str> =
        ["around"].into_iter().chain(ways.iter().map(|(way, _)| &**way)).collect();
    let reported = net.network(&words);
    let reported: Vec<&str> = reported.lines().collect();
    assert_eq!(reported.len(), ways.len());
    for (line, (way, expected)) in reported.iter().zip(&ways) {
        let found = match line.strip_prefix(&format!("{way}: ")).unwrap() {
            NO_ROUTE if !has(Feature::SharedKernel) => UNREACHABLE,
            // The socket does not exist.
            NO_ACCESS if !has(Feature::OwnSockets) => {
                assert!(["unix=", "abstract="].iter().any(|kind| way.starts_with(kind)), "{line}");
                continue;
            }
            found => found,
        };
        assert!(expected.contains(&found), "{line}");
    }
    // And by the proxy just as little.
    for target in
        [format!("127.0.0.1:{port}"), "169.254.169.254:80".to_owned(), "9.9.9.9:53".to_owned()]
            .into_iter()
            .chain(addresses().into_iter().map(|address| format!("{address}:{port}")))
    {
        let answer = net.network(&["ask", &target]);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[test]
fn a_refusal_is_a_403_that_names_the_rule() {
    let port = server(|client| panic!("{client:?} reached it"));
    let net = Net::new(&["ok.example".to_owned(), "host.sandbox.internal:1".to_owned()]);
    for (target, rule) in [
        ("evil.example:443".to_owned(), "evil.example".to_owned()),
        ("ok.example.evil:443".to_owned(), "ok.example.evil".to_owned()),
        ("OK.Example.:8443".to_owned(), "ok.example:8443".to_owned()),
        (format!("0xa.1:{port}"), format!("10.0.0.1:{port}")),
        (format!("[::ffff:10.0.0.1]:{port}"), format!("10.0.0.1:{port}")),
        (on_host(port), on_host(port)),
    ] {
        let answer = net.network(&["ask", &target]);
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.ends_with(&format!("--allow {rule}\n")), "{target}: {answer}");
    }
    // No rule is suggested that hands out credentials.
    let answer = net.network(&["ask", "169.254.169.254:80"]);
    assert!(answer.ends_with("is not on this sandbox's list of hosts\n"), "{answer}");
    // Nor one for the sandbox's own loopback.
    for own in ["localhost", "127.0.0.1", "0x7f.1", "[::1]"] {
        let answer = net.network(&["ask", &format!("{own}:{port}")]);
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.ends_with("this machine's is host.sandbox.internal\n"), "{answer}");
        assert!(!answer.contains("--allow"), "{answer}");
    }
    // busybox's own client, which knows the variables: it shows the status.
    let wget = "wget -O - http://evil.example/ 2>&1 | grep -o '403 Forbidden'";
    assert_eq!(net.says(Command::shell(wget)), "403 Forbidden\n");
}

#[test]
fn service_of_this_machine_accepts_nothing_by_a_public_address() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    // In network and mount namespaces with a public address and a name for it, one more of the same
    // subnet, and one that is no interface's; the kernel's source for both is the first. Then one that is
    // so by a rule for ports, and one that a NAT64 gateway would translate to the first.
    let script = "ip link set lo up && ip addr add 11.22.33.44/24 dev lo &&
        ip addr add 11.22.33.45/24 dev lo && ip route add local 11.55.0.0/24 dev lo src 11.22.33.44 &&
        ip route add local 11.66.0.0/24 dev lo src 11.22.33.44 table 77 &&
        ip rule add pref 10 ipproto tcp dport 18090-18091 lookup 77 &&
        printf '%s\\n' '11.22.33.44 wild.example' '11.22.33.45 second.example' \
            '11.55.0.7 any.example' '11.66.0.7 ruled.example' '64:ff9b::b16:212c nat64.example' >hosts && mount --bind hosts /etc/hosts &&
        { python3 -c \"$0\" >accepted & } && until [ -s accepted ]; do sleep 0.01; done &&
        \"$@\"; status=$?; kill $!; exit $status";
    let listen = "import socket
s = socket.create_server(('', 18090))
print('listening', flush=True)
while True: print(s.accept(), flush=True)";
    let mut command = HostCommand::new("unshare");
    command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", script, listen]);
    command.arg(sandboxctl()).arg("exec").args(rootfs.args());
    for name in ["wild", "second", "any", "ruled", "nat64"] {
        for port in [18090, 18091] {
            command.args(["--allow", &format!("{name}.example:{port}")]);
        }
    }
    // A program cannot distinguish an open port from a closed one.
    let ask = "for name in wild second any ruled nat64; do for port in 18090 18091; do
        /network ask $name.example:$port; done; done";
    place.equip(command.args(["--shell", ask]));
    let ended = finish(command);
    let answers: Vec<_> = ended.assert_code(0).stdout.matches("HTTP/1.1 403 ").collect();
    assert_eq!(answers.len(), 10, "{ended:#?}");
    assert_eq!(place.read("accepted"), "listening\n");
}

#[test]
fn refused_host_is_printed_once_while_the_command_runs() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let ask = "/network ask 127.0.0.1:8098 && /network ask 127.0.0.1:8098 && \
               /network ask evil.example:443 && cat";
    let root = rootfs.args();
    let mut args = vec!["exec", "--stdin", "--allow", "host.sandbox.internal:8098"];
    args.extend(root.iter().map(String::as_str));
    args.extend(["--shell", ask]);
    let mut command = place.command(args);
    command.stdin(std::process::Stdio::piped());
    let mut running = spawn(command);
    // It ends with its stdin, which is closed when the notes have been read.
    let stdin = running.stdin.take();
    let mut stderr = BufReader::new(running.stderr.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        line
    };
    if !engine().notice().is_empty() {
        assert_eq!(line(), engine().notice());
    }
    let first = line();
    let start = "note: refused 127.0.0.1:8098 (it is the sandbox's own loopback, ";
    assert!(first.starts_with(start) && !first.contains("--allow"), "{first}");
    let other =
        "note: refused evil.example:443 (not on the list); to allow it: --allow evil.example\n";
    assert_eq!(line(), other);
    drop(stdin);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(running.wait_with_output().unwrap().status.success());
}

#[test]
fn printed_refused_hosts_are_bounded_and_escaped() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    // A name of control characters, by SOCKS.
    let ask = r"printf '\005\001\000\005\001\000\003\007\033[31m.x\000\001' | nc 127.0.0.1 3128 >/dev/null
                for port in $(seq 2 120); do /network ask evil.example:$port; done >/dev/null";
    let ended = finish(exec(&place, &rootfs, "ok.example", &["sh", "-c", ask]));
    let notes: Vec<_> = ended.assert_code(0).messages().lines().collect();
    assert_eq!(notes.len(), 11, "{ended:?}");
    assert!(notes[0].contains(r"refused \u{1b}[31m.x:1 (neither a host name"), "{notes:?}");
    assert_eq!(notes[10], "note: more hosts were refused; --json and --audit FILE list them");
}

#[test]
fn documents_list_contacted_and_refused_hosts() {
    let port = server(|mut client| client.write_all(b"hello").unwrap());
    let (place, rootfs) = (Fixture::new(), rootfs());
    let target = on_host(port);
    let expected = json!({
        "contacted": [{ "host": HOST_LOOPBACK, "port": port }],
        "refused": [{
            "host": "evil.example",
            "port": 443,
            "reason": "not on the list",
            "allow": ["evil.example"],
        }],
        "truncated": false,
    });
    let ask = format!("/network ask {target} && /network ask evil.example:443");
    let root = rootfs.args();
    let of_command = |rules: &[&str]| {
        let mut args = vec!["exec", "--json"];
        args.extend(rules);
        args.extend(root.iter().map(String::as_str));
        args.extend(["--", "sh", "-c", &ask]);
        let ended = finish(place.command(args));
        assert_eq!(ended.messages(), "", "the document lists them");
        serde_json::from_str::<Value>(&ended.stdout).unwrap()["network"].clone()
    };
    assert_eq!(of_command(&["--allow", &target]), expected);
    assert_eq!(of_command(&[]), Value::Null, "there is no network, and nothing that refuses");

    let source = format!(
        "for _, target in {{'{target}', 'evil.example:443'}} do\n\
         process.exec('/network', {{'ask', target}}) end",
    );
    let file = place.write("script.luau", source);
    let of_script = |flags: &[&str]| {
        let mut args = vec!["run", "--allow", &target];
        args.extend(flags);
        args.extend(root.iter().map(String::as_str));
        args.push(file.to_str().unwrap());
        finish(place.command(args))
    };
    assert_eq!(place.document(&of_script(&["--json"]))["network"], expected);
    let note =
        "note: refused evil.example:443 (not on the list); to allow it: --allow evil.example\n";
    assert_eq!(of_script(&[]).messages(), note);
}

#[test]
fn command_that_failed_without_network_gets_one_note() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let root = rootfs.args();
    let stderr = |flags: &[&str], line: &str, code: i32| {
        let mut args = vec!["exec"];
        args.extend(flags);
        args.extend(root.iter().map(String::as_str));
        args.extend(["--shell", line]);
        finish(place.command(args)).assert_code(code).messages().to_owned()
    };
    let wget = "wget -O - http://example.org/";
    let own = "wget: bad address 'example.org'\n";
    let note = "note: it had no network; --allow HOST lets it reach a host\n";
    assert_eq!(stderr(&[], wget, 1), format!("{own}{note}"));
    assert_eq!(stderr(&["--quiet"], wget, 1), own);
    assert_eq!(stderr(&["--network", "none"], wget, 1), own);
    assert_eq!(stderr(&[], &format!("{wget} || true"), 0), own);
    // No message about a network, or it had one.
    assert_eq!(stderr(&[], "exit 1", 1), "");
    let other = stderr(&["--allow", "ok.example"], "echo could not resolve host; exit 1", 1);
    let note = "note: names are resolved by the proxy alone, which not every program uses; \
                HTTPS_PROXY and ALL_PROXY have its address\n";
    assert_eq!(other, note);
}

#[test]
fn command_that_failed_without_an_allowed_host_gets_one_note() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let host = on_host(server(drop));
    // A port without a listener, which no other test gets meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let closed = on_host(held.local_addr().unwrap().port());
    let stderr = |host: &str, line: &str| {
        let command = exec(&place, &rootfs, host, &["sh", "-c", line]);
        finish(command).messages().to_owned()
    };
    let failed = stderr(&closed, &format!("wget -O - http://{closed}/"));
    let note = format!("note: cannot connect to {closed}: Connection refused (os error 111); ");
    assert!(failed.contains("502 Bad Gateway") && failed.contains(&note), "{failed}");
    let well = stderr(&closed, &format!("wget -O - http://{closed}/ || true"));
    assert!(!well.contains("note: "), "{well}");
    let reset = stderr(&host, &format!("wget -O - http://{host}/"));
    assert!(!reset.contains("note: "), "it was reached: {reset}");
}

#[test]
fn tls_is_for_the_name_however_its_packets_are_cut() {
    let (sender, receiver) = mpsc::channel();
    let port = server(move |mut client| {
        let mut all = Vec::new();
        let ended = client.read_to_end(&mut all);
        _ = client.write_all(b"welcome");
        _ = sender.send((all, ended.is_ok()));
    });
    let net = Net::new(&[on_host(port)]);
    let target = on_host(port);
    for piece in ["1", "3", "40", "1000"] {
        assert_eq!(net.network(&["tls", &target, "Host.Sandbox.Internal", piece]), "welcome\n");
        let (hello, is_whole) = receiver.recv_timeout(TIMEOUT).unwrap();
        assert!(is_whole && hello.starts_with(&[22, 3, 1]));
        assert!(hello.ends_with(b"Host.Sandbox.Internal"));
        // Another name: broken off, and not a byte has gone out.
        let other = "host.sandbox.internal.evil";
        assert_eq!(net.network(&["tls", &target, other, piece]), "ConnectionReset\n");
        let (hello, is_whole) = receiver.recv_timeout(TIMEOUT).unwrap();
        assert_eq!((hello, is_whole), (Vec::new(), false), "pieces of {piece}");
    }
}

/// What the server says to each of these on one connection, by way of a sandbox.
fn answers(net: &Net, server: &Server, says: &[Vec<u8>]) -> Vec<tls::TlsReply> {
    let words: Vec<String> = says.iter().map(|bytes| tls::hex(bytes)).collect();
    let target = on_host(server.port());
    let mut args = vec!["exchange", &target];
    args.extend(words.iter().map(String::as_str));
    net.network(&args).lines().map(tls::TlsReply::read).collect()
}

/// A sandbox whose programs may reach this server by its name.
fn net_to(server: &Server) -> Net {
    Net::new(&[on_host(server.port())])
}

#[test]
fn hellos_for_lenient_servers_hide_no_server_name() {
    let hello = Hello::for_name("other.example").record([3, 1]);
    let with_version = |major, minor| Hello::for_name("other.example").record([major, minor]);
    let behind = |start: &[u8]| [start, &hello].concat();
    for (server, tricks) in [
        (
            Server::go(),
            vec![
                ("a warning alert first", behind(&[21, 3, 1, 0, 2, 1, 100])),
                ("an alert of version 0.0 first", behind(&[21, 0, 0, 0, 2, 1, 100])),
                ("record version 4.0", with_version(4, 0)),
                ("record version 0.0", with_version(0, 0)),
                ("record version 15.0", with_version(15, 0)),
                ("an alert in the middle", {
                    let message = Hello::for_name("other.example").message();
                    let (start, end) = message.split_at(50);
                    let alert = [21, 3, 1, 0, 2, 1, 100];
                    [tls::record([3, 1], start), alert.to_vec(), tls::record([3, 1], end)].concat()
                }),
            ],
        ),
        (
            Server::openssl(&[]),
            vec![
                ("SSLv2's format", tls::ssl2_hello()),
                ("an empty record first", behind(&[22, 3, 1, 0, 0])),
            ],
        ),
    ] {
        let net = net_to(&server);
        for (what, bytes) in tricks {
            let says = [bytes];
            assert_eq!(
                server.answers(&says),
                [tls::TlsReply::ServerHello],
                "{what}, without a guard"
            );
            assert_eq!(answers(&net, &server, &says), [tls::TlsReply::Reset], "{what}");
        }
        // The same hello as it should be, for another name and for this one.
        assert_eq!(answers(&net, &server, std::slice::from_ref(&hello)), [tls::TlsReply::Reset]);
        let honest = Hello::for_name("Host.Sandbox.Internal").record([3, 1]);
        assert_eq!(answers(&net, &server, &[honest]), [tls::TlsReply::ServerHello]);
    }
}

#[test]
fn a_second_hello_is_for_the_name_too_where_the_server_does_not_care() {
    let server = Server::openssl(&["-groups", "P-384"]);
    let net = net_to(&server);
    let first = Hello::for_name(HOST_LOOPBACK).record([3, 1]);
    let second = |name| Hello::for_name(name).with_p384().record([3, 3]);
    let ccs = [20, 3, 3, 0, 1, 1];
    use tls::TlsReply::{Reset, Retry, ServerHello};
    for (second, answer) in [
        (second(HOST_LOOPBACK), ServerHello),
        ([&ccs[..], &second(HOST_LOOPBACK)].concat(), ServerHello),
        (second("other.example"), Reset),
        ([&ccs[..], &second("other.example")].concat(), Reset),
    ] {
        let says = [first.clone(), second];
        assert_eq!(server.answers(&says), [Retry, ServerHello]);
        assert_eq!(answers(&net, &server, &says), [Retry, answer]);
    }
}

#[test]
fn honest_clients_talk_tls_to_real_servers_on_any_port() {
    let rootfs = Rootfs::host(&["/bin/sh", tls::OPENSSL]).provide();
    let says = |server: &Server, args: &[&str]| {
        let target = on_host(server.port());
        let list: Allowlist = [target.parse().unwrap()].into_iter().collect();
        let guest = Guest::with(|spec| spec.root(rootfs.root()).allow(list));
        let script = "request=$1; shift; printf \"$request\" | OPENSSL_CONF=/dev/null exec \"$@\"";
        let client = [tls::OPENSSL, "s_client", "-proxy", "127.0.0.1:3128", "-connect", &target];
        let command = Command::new("/bin/sh")
            .args(["-c", script, "sh", "GET / HTTP/1.0\r\n\r\n"])
            .args(client)
            .args(["-servername", HOST_LOOPBACK])
            .args(args.iter().copied())
            .timeout(TIMEOUT);
        let result = guest.wait(guest.sandbox.run(command)).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&result.stdout().bytes) + &text(&result.stderr().bytes)
    };
    let plain = Server::openssl(&[]);
    for version in ["-tls1_2", "-tls1_3"] {
        let reported = says(&plain, &["-quiet", "-ign_eof", version]);
        assert!(reported.contains("HTTP/1.0 200 ok"), "{reported}");
    }
    // Its first hello has no share of the group that the server wants.
    let retries = Server::openssl(&["-groups", "P-384"]);
    let reported = says(&retries, &["-quiet", "-ign_eof", "-groups", "X25519:P-384"]);
    assert!(reported.contains("HTTP/1.0 200 ok"), "{reported}");
    let go = Server::go();
    for version in ["-tls1_2", "-tls1_3"] {
        let reported = says(&go, &["-brief", "-alpn", "h2", version]);
        assert!(reported.contains("CONNECTION ESTABLISHED"), "{reported}");
    }
    let reported =
        says(&go, &["-brief", "-alpn", "h2", "-tls1_3", "-groups", "X448:P-256", "-msg"]);
    assert!(reported.contains("CONNECTION ESTABLISHED"), "{reported}");
    assert_eq!(reported.matches("ClientHello").count(), 2, "no HelloRetryRequest: {reported}");
}

#[test]
fn connections_stand_in_the_audit_before_the_end_of_their_sandbox() {
    let port = server(|mut client| client.write_all(b"hello").unwrap());
    let (place, rootfs) = (Fixture::new(), rootfs());
    let target = on_host(port);
    let source = format!(
        "local function run(...) return process.exec('/network', {{...}}).stdout end\n\
         run('ask', 'evil.example:443')\nrun('ask', '{target}')\n\
         return run('ask', 'localhost:1')",
    );
    let presets = "{ mine = ['host.sandbox.internal:PORT'], none = ['a.example:1'] }";
    let presets = presets.replace("PORT", &port.to_string());
    let file = place.write("script.luau", source);
    let root = rootfs.args();
    let mut args = vec!["run", "--audit", "audit.log", "--allow", "@mine", "--allow", "@none"];
    args.extend(root.iter().map(String::as_str));
    args.push(file.to_str().unwrap());
    let mut command = place.command(args);
    command.env("SANDBOXCTL_NETWORK_PRESETS", presets);
    finish(command).assert_code(0);

    let mut lines: Vec<Value> =
        place.read("audit.log").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // A launch that the engine refuses is tried again, as another sandbox.
    let run = lines.last().unwrap()["run_id"].clone();
    lines.retain(|line| line["run_id"] == run);
    let of = |operation: &str| -> Vec<usize> {
        let places = lines.iter().enumerate();
        places.filter(|(_, line)| line["operation"] == operation).map(|(place, _)| place).collect()
    };
    let (connects, closes) = (of("connect"), of("close"));
    assert_eq!((connects.len(), closes.len()), (3, 1), "{lines:#?}");
    assert!(connects.iter().all(|place| *place < closes[0]), "{lines:#?}");
    let mut reported: Vec<_> = connects
        .iter()
        .map(|&place| {
            let Value::Object(line) = &lines[place] else { panic!() };
            assert_eq!(line["by"], "script");
            assert_eq!(line["run_id"], lines[closes[0]]["run_id"]);
            let connection = &line["connection"];
            (
                connection["target"].as_str().unwrap().to_owned(),
                connection["address"].as_str().map(str::to_owned),
                line["outcome"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    // A connection that the server ends later is reported later.
    reported.sort_unstable();
    let address = Some("127.0.0.1".to_owned());
    assert_eq!(
        reported,
        [
            ("evil.example:443".to_owned(), None, "network_refused".to_owned()),
            (target, address, "ok".to_owned()),
            ("localhost:1".to_owned(), None, "network_refused".to_owned()),
        ]
    );
    let bytes: Vec<_> = connects.iter().map(|place| &lines[*place]["bytes"]).collect();
    assert!(bytes.contains(&&json!(5)), "{lines:#?}");
}

#[test]
fn connections_that_a_command_leaves_reach_no_further_host_and_take_no_places_of_the_next() {
    // It keeps its connections open for as long as the test runs.
    let (sender, receiver) = mpsc::channel();
    let port = server(move |client| sender.send(client).unwrap());
    // The queue of this one is full, so that a connection to it is still being made.
    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&busy, 0).unwrap();
    let _queued = TcpStream::connect(busy.local_addr().unwrap()).unwrap();
    let [target, dialled] = [port, busy.local_addr().unwrap().port()].map(on_host);

    let net = Net::new(&[target.clone(), dialled.clone()]);
    let contacted = |words: &[&str]| {
        let command = Command::new("/network").args(words.iter().copied()).timeout(TIMEOUT);
        let result = net.guest.wait(net.guest.sandbox.run(command)).unwrap();
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{result:?}");
        let hosts = result.network.unwrap().contacted;
        hosts.into_iter().map(|host| format!("{}:{}", host.host, host.port)).collect::<Vec<_>>()
    };
    let (all, others) = (MAX_TUNNELS.to_string(), (MAX_TUNNELS - 1).to_string());
    assert_eq!(contacted(&["leave", &dialled, &target, &others]), [&*target]);
    // Now the host would accept it.
    busy.accept().unwrap();
    assert_eq!(contacted(&["leave", &target, &all]), [&*target]);
    busy.set_nonblocking(true).unwrap();
    let late = busy.accept().map_err(|error| error.kind());
    assert!(matches!(late, Err(io::ErrorKind::WouldBlock)), "{late:?}");
    for _ in 0..2 * MAX_TUNNELS - 1 {
        receiver.recv_timeout(TIMEOUT).unwrap();
    }
}

#[test]
fn a_connection_ends_with_its_killed_controller() {
    let (sender, receiver) = mpsc::channel::<(SocketAddr, bool)>();
    let port = server(move |mut client| {
        let peer = client.peer_addr().unwrap();
        sender.send((peer, false)).unwrap();
        // An end or a break, whichever: it does not go on.
        _ = client.read(&mut [0]);
        sender.send((peer, true)).unwrap();
    });
    let (place, rootfs) = (Fixture::new(), rootfs());
    place.expect_a_dead_instance();
    let target = on_host(port);
    let mut controller = spawn(exec(&place, &rootfs, &target, &["/network", "hold", &target]));
    let (peer, is_over) = receiver.recv_timeout(TIMEOUT).unwrap();
    assert!(!is_over);
    controller.kill().unwrap();
    controller.wait().unwrap();
    assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), (peer, true));
    // What the engine still has of it, the next command removes.
    eventually("the container to go", || {
        place.sandboxctl(["gc"]).assert_code(0);
        place.containers().is_empty().then_some(())
    });
}
