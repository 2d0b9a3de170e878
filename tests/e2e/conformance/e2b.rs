//! E2B's protocol under clients that are many, slow, hostile or gone.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::e2b::{self, Client, Sandbox, input};
use crate::engine::engine;
use crate::fixture::{Fixture, eventually, finish};
use crate::rootfs::Provided;

const DOMAIN: &str = "box.example";
/// What others do to a server makes no caller wait longer, on a busy machine too.
const SOON: Duration = Duration::from_secs(20);

/// `serve --dev --e2b`, and the client that it prints.
struct Dev<'a> {
    place: &'a Fixture,
    child: Child,
    client: Client,
    _base: Provided,
}

/// A failed test leaves no service behind.
impl Drop for Dev<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl<'a> Dev<'a> {
    fn start(place: &'a Fixture) -> Self {
        let base = e2b::base();
        let mut command = place.command(["serve", "--dev", "--e2b", "--listen", "127.0.0.1:0"]);
        command.envs([
            e2b::templates(&base),
            ("SANDBOXCTL_SERVER_PREVIEW_DOMAIN", DOMAIN.to_owned()),
            ("SANDBOXCTL_SERVER_PUBLIC_PORTS", "true".to_owned()),
        ]);
        let log = std::fs::File::create(place.path("dev.log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !printed.contains("E2B_API_KEY=") {
            let length = lines.read_line(&mut printed).unwrap();
            assert_ne!(length, 0, "{printed}{}", place.read("dev.log"));
        }
        // It may say more, which is not read.
        thread::spawn(move || _ = lines.read_to_end(&mut Vec::new()));
        let after = |name: &str| {
            let (_, rest) = printed.split_once(name).unwrap_or_else(|| panic!("{printed}"));
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let url = after("E2B_API_URL=");
        let address = url.strip_prefix("http://").unwrap().strip_suffix("/e2b").unwrap();
        let client = Client { address: address.parse().unwrap(), key: after("E2B_API_KEY=") };
        Self { place, child, client, _base: base }
    }

    /// Ends it: nothing is left.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.place.read("dev.log"));
        eventually("nothing to be left", || {
            let place = self.place;
            (place.containers().is_empty() && engine().remains(place).is_empty()).then_some(())
        });
    }
}

/// What this gives, within a time that no other caller may lengthen.
#[track_caller]
fn soon<T>(what: &str, done: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let value = done();
    assert!(since.elapsed() < SOON, "{what} takes {:?}", since.elapsed());
    value
}

/// All that one who is not slow does with a sandbox.
#[track_caller]
fn use_it(client: &Client, sandbox: &Sandbox) {
    soon("a command", || assert_eq!(client.run(sandbox, "echo ok"), "ok\n"));
    soon("a file", || {
        client.write(sandbox, "own.txt", b"own");
        assert_eq!(client.read(sandbox, "own.txt").text(), "own");
    });
    soon("the list", || assert!(client.ids().contains(&sandbox.id)));
}

#[test]
fn service_without_the_template_base_does_not_start() {
    let place = Fixture::new();
    let mut command = place.command(["serve", "--dev", "--e2b", "--listen", "127.0.0.1:0"]);
    command.env("SANDBOXCTL_SERVER_E2B_TEMPLATES", "{other = {image = \"a:1\"}}");
    let ended = finish(command);
    ended.assert_code(2).assert_stderr_has("there is no template 'base'");
    ended.assert_stderr_has("hint: templates/e2b-base/build makes the ");
}

#[test]
fn client_that_is_gone_ends_nothing_and_one_that_is_slow_holds_up_no_other() {
    let place = Fixture::new();
    let dev = Dev::start(&place);
    let client = &dev.client;
    let (sandbox, other) = (client.create(&json!({})), client.create(&json!({})));

    // In the middle of a stream, which had more to say.
    let (mut stream, pid) = client.start(
        &sandbox,
        "echo begun; i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; cat; echo done",
    );
    stream.until("begun");
    drop(stream);
    assert_eq!(client.pids(&sandbox), [pid]);
    let of = json!({ "process": { "pid": pid } });
    let mut stream = client.stream(&sandbox, "Connect", &of);
    assert_eq!(stream.message().unwrap()["event"]["start"]["pid"], pid);
    assert_eq!(client.call(&sandbox, "SendInput", &input(pid, "still here\n")).status, 200);
    stream.until("still here\n");
    assert_eq!(client.call(&sandbox, "CloseStdin", &of).status, 200);
    stream.until("done\n");
    assert_eq!(stream.rest(), "");

    let known = client.run(&sandbox, "echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID");
    assert_eq!(known, format!("true {} base\n", sandbox.id));
    // What is left running without its outputs keeps no stream open, and goes on.
    let line = "sleep 7303 >/dev/null 2>&1 & echo $!";
    let left = soon("its end", || client.run(&sandbox, line));
    assert_eq!(client.run(&sandbox, &format!("kill -0 {}; echo $?", left.trim())), "0\n");

    // No reader takes what a process prints, a file, or a port.
    let (yes, endless) = client.start(&sandbox, "exec yes");
    assert_eq!(client.run(&sandbox, "dd if=/dev/zero of=big bs=1M count=24 2>&-; echo $?"), "0\n");
    client.serve(&sandbox, 8080, "page");
    let unread: Vec<TcpStream> = ["49983", "8080"]
        .iter()
        .flat_map(|port| {
            let path = if *port == "8080" { "/big" } else { "/files?path=big" };
            let head = format!(
                "GET /e2b{path} HTTP/1.1\r\nhost: a\r\ne2b-sandbox-id: {}\r\n\
                 e2b-sandbox-port: {port}\r\nx-access-token: {}\r\n\r\n",
                sandbox.id, sandbox.token
            );
            [0; 4].map(|_| client.open(head.as_bytes()))
        })
        .collect();
    for it in [&sandbox, &other] {
        use_it(client, it);
    }
    soon("a port", || assert_eq!(client.port(&sandbox, 8080, "/", &[]).text(), "page"));
    // It is ended all the same, and its reader sees that.
    let kill = json!({ "process": { "pid": endless }, "signal": "SIGNAL_SIGKILL" });
    soon("a signal", || assert_eq!(client.call(&sandbox, "SendSignal", &kill).status, 200));
    // A signal is answered when it was sent.
    eventually("its end", || (!client.pids(&sandbox).contains(&endless)).then_some(()));
    assert!(yes.ends());
    drop(unread);
    killed_at_any_moment(client, &sandbox);
    dev.stop();
}

/// What is sent in part is not done, what was sent is done whole, and nothing is held by one who is gone.
fn killed_at_any_moment(client: &Client, sandbox: &Sandbox) {
    let before = client.ids();
    let creation = client.creation(&json!({ "timeout": 600, "metadata": { "by": "gone" } }));
    for sent in [creation.len() / 3, creation.len() - 1] {
        drop(client.open(&creation[..sent]));
    }
    // Whole, but its answer goes nowhere, if it comes at all.
    for moment in [0, 1, 3, 6, 12, 25, 50] {
        let stream = client.open(&creation);
        thread::sleep(Duration::from_millis(moment));
        drop(stream);
    }
    let made = || client.ids().into_iter().filter(|id| !before.contains(id)).collect::<Vec<_>>();
    // One that is there is one as any other.
    let mut ended = 0;
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(300) {
        for id in made() {
            let answer = client.control("GET", &format!("/sandboxes/{id}"), &json!({}));
            assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("running")));
            let answer = client.control("DELETE", &format!("/sandboxes/{id}"), &json!({}));
            assert_eq!(answer.status, 204, "{}", answer.text());
            (ended, quiet_since) = (ended + 1, Instant::now());
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(ended <= 7, "{ended} sandboxes of seven creations");

    // An upload that broke off left a beginning of what it sent, and the file can be written again.
    let head = format!(
        "POST /e2b/files?path=cut HTTP/1.1\r\nhost: a\r\ne2b-sandbox-id: {}\r\nx-access-token: {}\r\n\
         content-type: application/octet-stream\r\ncontent-length: 300000\r\n\r\n",
        sandbox.id, sandbox.token
    );
    for sent in [0, 1, 70_000, 299_999] {
        let mut stream = client.open(head.as_bytes());
        stream.write_all(&vec![b'x'; sent]).unwrap();
        drop(stream);
    }
    let left = client.read(sandbox, "cut");
    assert!([200, 404].contains(&left.status), "{}", left.text());
    assert!(left.status == 404 || left.body.iter().all(|&byte| byte == b'x'));
    soon("the same file", || client.write(sandbox, "cut", b"whole"));
    eventually("what broke off to change it no more", || {
        client.write(sandbox, "cut", b"whole");
        thread::sleep(Duration::from_millis(50));
        (client.read(sandbox, "cut").text() == "whole").then_some(())
    });

    // A start that was not sent whole starts nothing; one that was goes on.
    let pids = client.pids(sandbox);
    let message = json!({ "process": { "cmd": "/bin/sleep", "args": ["7301"] } }).to_string();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, message.as_bytes()].concat();
    let head = format!(
        "POST /e2b/process.Process/Start HTTP/1.1\r\nhost: a\r\ne2b-sandbox-id: {}\r\n\
         x-access-token: {}\r\ncontent-type: application/connect+json\r\ncontent-length: {}\r\n\r\n",
        sandbox.id,
        sandbox.token,
        body.len()
    );
    for sent in [0, 3, 5, body.len() - 1] {
        drop(client.open(&[head.as_bytes(), &body[..sent]].concat()));
    }
    use_it(client, sandbox);
    assert_eq!(client.pids(sandbox), pids);
    let (stream, pid) = client.start(sandbox, "exec sleep 7302");
    drop(stream);
    use_it(client, sandbox);
    assert!(client.pids(sandbox).contains(&pid));
}

#[test]
fn floods_and_tricks_at_ports_reach_no_other_sandbox_and_hold_up_no_caller() {
    let place = Fixture::new();
    let dev = Dev::start(&place);
    let client = &dev.client;
    let (sandbox, other) = (client.create(&json!({})), client.create(&json!({})));
    client.serve(&sandbox, 8080, "page of one");
    client.serve(&other, 8080, "page of the other");
    let host = format!("8080-{}.{DOMAIN}", sandbox.id);
    let at = |host: &str, more: &[(&str, &str)]| {
        client.ask("GET", "/", &[&[("host", host)][..], more].concat(), b"")
    };
    assert_eq!(at(&host, &[]).text(), "page of one");
    hosts_are_what_they_are(client, &sandbox, &host);

    // Heads and bodies that never end, at the preview and by the headers.
    let by_header =
        format!("e2b-sandbox-id: {}\r\ne2b-sandbox-port: 8080\r\nhost: a\r\n", sandbox.id);
    let mut held = Vec::new();
    for _ in 0..12 {
        for head in [
            format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-slow: "),
            format!("POST / HTTP/1.1\r\nhost: {host}\r\ncontent-length: 1000\r\n\r\nslow"),
            format!("POST /e2b/ HTTP/1.1\r\n{by_header}transfer-encoding: chunked\r\n\r\n4\r\nsl"),
            format!("GET /e2b/ HTTP/1.1\r\n{by_header}connection: upgrade\r\nupgrade: x\r\n\r\n"),
        ] {
            held.push(client.open(head.as_bytes()));
        }
    }
    for it in [&sandbox, &other] {
        use_it(client, it);
    }
    soon("the other's port", || {
        assert_eq!(client.port(&other, 8080, "/", &[]).text(), "page of the other");
    });
    drop(held);

    // A server that listens and accepts no connection: what waits for it holds up no other, and goes with its caller.
    let line = "kill -STOP $(pidof httpd); echo stopped";
    assert_eq!(client.run(&sandbox, line), "stopped\n");
    let head = format!("GET /e2b/ HTTP/1.1\r\n{by_header}\r\n");
    let held: Vec<TcpStream> = (0..100).map(|_| client.open(head.as_bytes())).collect();
    for it in [&sandbox, &other] {
        use_it(client, it);
    }
    soon("the other's port", || {
        assert_eq!(client.port(&other, 8080, "/", &[]).text(), "page of the other");
    });
    drop(held);
    assert_eq!(client.run(&sandbox, "kill -CONT $(pidof httpd); echo goes on"), "goes on\n");
    eventually("its port to answer again", || {
        (client.port(&sandbox, 8080, "/", &[]).text() == "page of one").then_some(())
    });
    dev.stop();
}

/// A host is a port of a sandbox exactly, or nothing of it is answered.
fn hosts_are_what_they_are(client: &Client, sandbox: &Sandbox, host: &str) {
    let id = &sandbox.id;
    let ask = |lines: &str| {
        client.raw(format!("GET / HTTP/1.1\r\n{lines}\r\nconnection: close\r\n\r\n").as_bytes())
    };
    // What a browser may write differently is the same.
    for same in [host.to_uppercase(), format!("{host}:8443")] {
        let answer = ask(&format!("host: {same}")).unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "page of one"), "{same}");
    }
    for other in [
        format!("8080-{id}.evil.{DOMAIN}"),
        format!("evil.8080-{id}.{DOMAIN}"),
        format!("8080-{id}.{DOMAIN}.evil.example"),
        format!("8080-{id}.evil{DOMAIN}"),
        format!("8080-{id}@{DOMAIN}"),
        format!("x@8080-{id}.{DOMAIN}"),
        format!("8080-{id}"),
        format!("8080-{id}-x.{DOMAIN}"),
        format!("8080--{id}.{DOMAIN}"),
        format!("+8080-{id}.{DOMAIN}"),
        format!("73616-{id}.{DOMAIN}"),
        format!("8080-{id}.{DOMAIN}/x"),
        format!("8080-{id}.{DOMAIN} x"),
        format!("8080-{id}%2e{DOMAIN}"),
        format!("49983-{id}.{DOMAIN}"),
        format!("api.{DOMAIN}"),
        DOMAIN.to_owned(),
        String::new(),
    ] {
        for more in ["", "\r\nx-forwarded-host: H", "\r\nforwarded: host=H"] {
            let lines = format!("host: {other}{}", more.replace('H', host));
            let answer = ask(&lines).unwrap();
            assert!(answer.status >= 400, "{lines}: {answer:?}");
            assert!(!answer.text().contains("page of"), "{lines}: {answer:?}");
        }
    }
    // Two hosts, and one in the target, which counts alone.
    let answer = ask(&format!("host: {host}\r\nhost: evil.example")).unwrap();
    assert!(answer.status >= 400, "{answer:?}");
    let absolute =
        format!("GET http://evil.example/ HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let answer = client.raw(absolute.as_bytes()).unwrap();
    assert!(answer.status >= 400 && !answer.text().contains("page of"), "{answer:?}");
    // Its own host says which it is, whatever the headers say.
    let other = format!("host: {host}\r\ne2b-sandbox-id: other\r\ne2b-sandbox-port: 49983");
    assert_eq!(ask(&other).unwrap().text(), "page of one");
}

#[test]
fn kernels_files_are_read_and_the_home_and_tmp_exchange_files() {
    let place = Fixture::new();
    let dev = Dev::start(&place);
    let client = &dev.client;
    let sandbox = client.create(&json!({}));
    let call = |method: &str, message: Value| {
        let path = format!("/filesystem.Filesystem/{method}");
        client.envd(&sandbox, "POST", &path, "application/json", message.to_string().as_bytes())
    };
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let boot = client.run(&sandbox, &format!("cat {boot_id}"));
    assert_eq!((client.read(&sandbox, boot_id).text(), boot.len()), (boot, 37));
    assert_eq!(client.read(&sandbox, "/dev/null").body, b"");
    for (path, status) in [("/proc/nothing", 404), ("/proc", 400), ("/dev/zero", 400)] {
        let read = client.read(&sandbox, path);
        assert_eq!((read.status, &read.json()["code"]), (status, &json!(status)), "{read:?}");
    }
    for (path, kind) in [("/proc/1/mem", "FILE"), ("/proc/cpuinfo", "FILE"), ("/dev", "DIRECTORY")]
    {
        let found = call("Stat", json!({ "path": path })).json();
        assert_eq!(found["entry"]["type"], format!("FILE_TYPE_{kind}"), "{path} {found}");
    }
    assert_eq!(call("Stat", json!({ "path": "/proc/nothing" })).status, 404);
    for (path, name) in [("/proc", "/proc/self"), ("/dev", "/dev/null")] {
        let listed = call("ListDir", json!({ "path": path })).json();
        let entries = listed["entries"].as_array().unwrap();
        assert!(entries.iter().any(|entry| entry["path"] == name), "{listed}");
    }
    assert_eq!(call("ListDir", json!({ "path": "/proc/cpuinfo" })).status, 400);
    assert_eq!(client.pids(&sandbox), [0; 0]);

    let moved = |from: &str, to: &str| {
        let answer = call("Move", json!({ "source": from, "destination": to }));
        (answer.status, answer.json())
    };
    client.write(&sandbox, "/tmp/new/a.txt", b"new");
    client.write(&sandbox, "a.txt", b"old");
    let (status, answer) = moved("/tmp/new/a.txt", "a.txt");
    assert_eq!((status, &answer["entry"]["path"]), (200, &json!("/home/user/a.txt")), "{answer}");
    assert_eq!(client.read(&sandbox, "a.txt").text(), "new");
    client.write(&sandbox, "tree/deep/b.txt", b"b");
    assert_eq!(moved("tree", "/tmp/made/tree").0, 200);
    let found = client.run(&sandbox, "cd /tmp; find made new; ls /home/user");
    assert_eq!(found, "made\nmade/tree\nmade/tree/deep\nmade/tree/deep/b.txt\nnew\na.txt\n");
    let line = "mkdir -p /home/user/full/x /tmp/links; ln -s /etc/passwd /tmp/link; \
                ln -s a /tmp/links/l; echo made";
    assert_eq!(client.run(&sandbox, line), "made\n");
    assert_eq!(moved("/tmp/link", "link").1["entry"]["symlinkTarget"], "/etc/passwd");
    // Nothing is left of what fails, and its source is as it was.
    let failing = [("/tmp/made", "full", 400), ("/tmp/links", "links", 400), ("/tmp/x", "x", 404)];
    for (from, to, status) in failing {
        let (found, answer) = moved(from, to);
        assert_eq!(found, status, "{from} {answer}");
    }
    let line = "echo $(cat /tmp/made/tree/deep/b.txt); ls /home/user /home/user/full; \
                ls -A /home/user | grep move";
    assert_eq!(
        client.run(&sandbox, line),
        "b\n/home/user:\na.txt\nfull\nlink\n\n/home/user/full:\nx\n"
    );
    dev.stop();
}

/// The load: 200 sandboxes in all, at most 16 at once, of 16 clients.
#[test]
fn two_hundred_sandboxes_are_created_used_and_killed_by_sixteen_clients() {
    const SANDBOXES: usize = 200;
    const CLIENTS: usize = 16;
    let place = Fixture::new();
    let dev = Dev::start(&place);
    let (client, next) = (&dev.client, AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= SANDBOXES {
                        break;
                    }
                    let metadata: Value = json!({ "metadata": { "number": number.to_string() } });
                    let sandbox = client.create(&metadata);
                    client.write(&sandbox, "number", number.to_string().as_bytes());
                    let line = "cat number; echo; echo $(cat number) of $(hostname) > told; ls";
                    let printed = client.run(&sandbox, line);
                    assert_eq!(printed, format!("{number}\nnumber\ntold\n"));
                    let told = client.read(&sandbox, "told").text();
                    assert!(told.starts_with(&format!("{number} of ")), "{told}");
                    assert_eq!(client.kill(&sandbox), 204);
                    assert_eq!(client.kill(&sandbox), 404);
                }
            });
        }
    });
    assert_eq!(client.ids(), Vec::<String>::new());
    dev.stop();
}
