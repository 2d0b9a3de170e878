//! Sandboxes of E2B's protocol: each is at one node, and used through the other one.

use sandbox_store::fixture::Postgres;
use serde_json::json;

use super::nodes::{Cluster, LONG_LEASE};
use crate::e2b::{self, Client, Sandbox, input};
use crate::fixture::Fixture;

const DOMAIN: &str = "box.example";

/// Two nodes, and a client of each.
fn start(cluster: &mut Cluster<'_>, base: &crate::rootfs::Provided) -> [Client; 2] {
    cluster.variables.extend([
        e2b::templates(base),
        ("SANDBOXCTL_SERVER_E2B_ENABLED", "true".to_owned()),
        ("SANDBOXCTL_SERVER_PREVIEW_DOMAIN", DOMAIN.to_owned()),
        ("SANDBOXCTL_SERVER_PUBLIC_PORTS", "true".to_owned()),
    ]);
    [0, 1].map(|node| {
        cluster.start(node);
        Client { address: cluster.nodes[node].address, key: cluster.token("a") }
    })
}

/// The client of the node that has a sandbox, and that of the other one.
fn owner_and_other<'a>(
    cluster: &Cluster<'_>,
    nodes: &'a [Client; 2],
    sandbox: &Sandbox,
) -> (&'a Client, &'a Client) {
    let rows = cluster.rows(&format!("SELECT node FROM sandboxes WHERE id = '{}'", sandbox.id));
    let owner = usize::from(cluster.id(0) != rows[0][0]);
    (&nodes[owner], &nodes[1 - owner])
}

#[test]
fn sandbox_is_used_through_another_node_and_by_its_subject_alone_at_any() {
    let place = Fixture::new();
    let base = e2b::base();
    let mut cluster = Cluster::new(&place, Postgres::shared(), LONG_LEASE);
    let nodes = start(&mut cluster, &base);
    let private = json!({ "network": { "allowPublicTraffic": false } });
    let (open, closed) = (nodes[0].create(&json!({})), nodes[1].create(&private));
    let (owner, other) = owner_and_other(&cluster, &nodes, &open);
    for node in &nodes {
        assert_eq!(node.ids().len(), 2);
        let (path, none) = (format!("/sandboxes/{}", open.id), json!({}));
        assert_eq!(node.control("GET", &path, &none).json()["sandboxID"], open.id);
    }

    // A stream, input, and a client that goes on at the other node.
    let (mut stream, pid) = other.start(&open, "echo begun; cat; echo done");
    stream.until("begun");
    assert_eq!(other.call(&open, "SendInput", &input(pid, "one\n")).status, 200);
    stream.until("one\n");
    drop(stream);
    let mut stream = owner.stream(&open, "Connect", &json!({ "process": { "pid": pid } }));
    assert_eq!(stream.message().unwrap()["event"]["start"]["pid"], pid);
    assert_eq!(other.call(&open, "SendInput", &input(pid, "two\n")).status, 200);
    stream.until("two\n");
    assert_eq!(other.pids(&open), [pid]);

    // Files, by its token and by a URL that names no sandbox, also where SDKs sign it.
    other.write(&open, "note.txt", b"a note");
    assert_eq!(owner.read(&open, "note.txt").text(), "a note");
    for path in ["/e2b/files", "/files"] {
        let url = format!("{path}?{}", open.signed("note.txt", "read"));
        for node in &nodes {
            assert_eq!(node.ask("GET", &url, &[], b"").text(), "a note");
        }
    }

    // Ports, by headers and by the host.
    for (sandbox, page) in [(&open, "of the open one"), (&closed, "of the closed one")] {
        other.serve(sandbox, 8080, page);
    }
    let token = [("e2b-traffic-access-token", &*closed.traffic)];
    for node in &nodes {
        let host = format!("8080-{}.{DOMAIN}", open.id);
        for answer in
            [node.port(&open, 8080, "/", &[]), node.ask("GET", "/", &[("host", &host)], b"")]
        {
            assert_eq!((answer.status, &*answer.text()), (200, "of the open one"));
        }
        assert_eq!(node.port(&closed, 8080, "/", &token).text(), "of the closed one");
        let not_open = node.port(&open, 8081, "/", &[]);
        assert!(not_open.status == 502 && not_open.text().contains("port is not open"));
    }

    no_stranger_takes_over(&nodes, &open, &closed);
    let strangers = [0, 1].map(|node| Client { key: cluster.token("b"), ..nodes[node].clone() });
    only_the_owners(&strangers, &open, &closed);

    // One creation under its key, whichever node is asked.
    let key = [("x-api-key", &*nodes[0].key), ("idempotency-key", "once")];
    let made = |node: &Client| {
        let answer = node.ask("POST", "/e2b/v2/sandboxes", &key, b"{}");
        assert_eq!(answer.status, 201, "{}", answer.text());
        Sandbox::of(&answer.json())
    };
    let once = made(&nodes[0]);
    assert_eq!(made(&nodes[1]).id, once.id);

    // Its end through the other one ends its streams, and is known everywhere.
    assert_eq!(other.kill(&open), 204);
    assert!(stream.ends());
    for node in &nodes {
        let health = [("e2b-sandbox-id", &*open.id), ("e2b-sandbox-port", "49983")];
        let answer = node.ask("GET", "/e2b/health", &health, b"");
        assert!(answer.status == 502 && answer.text().contains("was not found"), "{answer:?}");
        assert_eq!(node.kill(&open), 404);
    }
    for sandbox in [&closed, &once] {
        assert_eq!(nodes[0].kill(sandbox), 204);
    }
    cluster.end();
}

/// A header that a client names in `Connection` does not go on to the other node: what it decides by is what the
/// first one has decided by.
fn no_stranger_takes_over(nodes: &[Client; 2], open: &Sandbox, closed: &Sandbox) {
    let host = format!("8080-{}.{DOMAIN}", open.id);
    let by_header = [("e2b-sandbox-id", &*open.id), ("e2b-sandbox-port", "8080")];
    let by_host = [("host", &*host), ("e2b-sandbox-id", &*open.id)];
    let none = [("sandboxctl-target", &*open.id), ("sandboxctl-e2b-by-host", "true")];
    for node in nodes {
        for own in [&by_header[..], &by_host, &none] {
            for dropped in [
                "E2b-Sandbox-Id, E2b-Sandbox-Port",
                "close, e2b-sandbox-id",
                "e2b-sandbox-port",
                "sandboxctl-target",
                "sandboxctl-e2b-by-host, e2b-sandbox-id, sandboxctl-target, e2b-sandbox-port, host",
                "x-sandboxctl-forwarded",
            ] {
                let headers = [own, &[("connection", dropped)]].concat();
                for (method, path) in [
                    ("GET", "/sandboxes".to_owned()),
                    ("GET", format!("/sandboxes/{}", closed.id)),
                    ("POST", format!("/sandboxes/{}/connect", closed.id)),
                    ("DELETE", format!("/sandboxes/{}", closed.id)),
                    ("POST", "/process.Process/List".to_owned()),
                    ("GET", "/files?path=note.txt".to_owned()),
                ] {
                    let path = match own == by_host {
                        true => path,
                        false => format!("/e2b{path}"),
                    };
                    let answer = node.ask(method, &path, &headers, b"{}");
                    // At most the program at the port answers, which has none of these.
                    assert!(
                        answer.status >= 400 && answer.status != 500,
                        "{method} {path} {headers:?}: {answer:?}"
                    );
                    for secret in [&closed.token, &closed.id, &open.token] {
                        let (head, body) = (&answer.head, answer.text());
                        assert!(!head.contains(secret) && !body.contains(secret), "{body}");
                    }
                }
            }
        }
        assert_eq!(node.ids().len(), 2);
    }
}

/// Another subject neither sees nor reaches them, nor signs for them, at any node.
fn only_the_owners(strangers: &[Client; 2], open: &Sandbox, closed: &Sandbox) {
    let own = strangers[0].create(&json!({ "network": { "allowPublicTraffic": false } }));
    for stranger in strangers {
        assert_eq!(stranger.ids(), [&*own.id]);
        for sandbox in [open, closed] {
            let path = format!("/sandboxes/{}", sandbox.id);
            for (method, rest) in [
                ("GET", ""),
                ("DELETE", ""),
                ("POST", "/connect"),
                ("POST", "/timeout"),
                ("POST", "/pause"),
            ] {
                let body = json!({ "timeout": 1 });
                let answer = stranger.control(method, &format!("{path}{rest}"), &body);
                assert_eq!(answer.status, 404, "{method} {path}{rest}: {}", answer.text());
            }
            let forged = Sandbox { id: sandbox.id.clone(), ..own.clone() };
            assert_eq!(stranger.call(&forged, "List", &json!({})).status, 401);
            assert_eq!(stranger.read(&forged, "note.txt").status, 401);
            // What it signs is for its own.
            let by_id = [("e2b-sandbox-id", &*sandbox.id), ("e2b-sandbox-port", "49983")];
            let url = format!("/e2b/files?{}", forged.signed("note.txt", "read"));
            assert_eq!(stranger.ask("GET", &url, &by_id, b"").status, 401);
            assert_eq!(stranger.ask("GET", &url, &[], b"").status, 404);
        }
        // Neither with none, nor with its own token, by headers and by the host.
        let host = format!("8080-{}.{DOMAIN}", closed.id);
        for more in [
            &[][..],
            &[("e2b-traffic-access-token", &*own.traffic)],
            &[("e2b-traffic-access-token", &*open.token)],
            &[("x-api-key", &*stranger.key), ("x-access-token", &*own.token)],
        ] {
            assert_eq!(stranger.port(closed, 8080, "/", more).status, 403, "{more:?}");
            let by_host = [&[("host", &*host)][..], more].concat();
            assert_eq!(stranger.ask("GET", "/", &by_host, b"").status, 403, "{more:?}");
        }
    }
    assert_eq!(strangers[1].kill(&own), 204);
}
