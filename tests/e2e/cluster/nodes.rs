//! Three services on one database, each with a data directory and ports of its own, and a proxy before all that it
//! talks to.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{self, Child, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbox_store::fixture::Postgres;
use serde_json::Value;

use super::proxy::Proxy;
use crate::engine::engine;
use crate::fixture::{Fixture, eventually, own_host};

/// The shortest one that there is: who waits for its end does not wait long.
pub const LEASE: Duration = Duration::from_secs(2);
/// One that a busy machine does not hold a node up for, which would be declared dead: where that must not be, and its
/// end is waited for.
pub const MIDDLE_LEASE: Duration = Duration::from_secs(6);
/// The same without a wait for its end.
pub const LONG_LEASE: Duration = Duration::from_secs(15);
/// How many nodes there are.
pub const NODES: usize = 3;

/// A node, whether its process runs or not.
pub struct Node {
    /// Where clients reach it.
    pub address: SocketAddr,
    /// Before the database.
    pub database: Proxy,
    /// Before its standby, if it has one.
    standby: Option<Proxy>,
    /// Before the port for other nodes.
    pub peers: Proxy,
    peer_listen: SocketAddr,
    process: Mutex<Option<Child>>,
}

/// A cluster in a place.
pub struct Cluster<'a> {
    pub place: &'a Fixture,
    pub postgres: Postgres,
    /// The name of its database.
    pub database: String,
    pub nodes: Vec<Node>,
    /// What each node is started with besides.
    pub variables: Vec<(&'static str, String)>,
    pub flags: Vec<String>,
    tokens: Mutex<Vec<(String, String)>>,
}

/// A free address of a node, at a loopback IP address of its own: a node that was killed finds it free again.
fn free_address(node: usize) -> SocketAddr {
    let host = own_host(u32::try_from(node + 1).unwrap());
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap()
}

impl<'a> Cluster<'a> {
    /// The tables and the tokens; no node runs.
    pub fn new(place: &'a Fixture, postgres: Postgres, lease: Duration) -> Self {
        place.expect_a_dead_instance();
        let url = postgres.database();
        let database = url.rsplit('/').next().unwrap().to_owned();
        let lease = format!("{}s", lease.as_secs());
        place
            .sandboxctl(["database", "init", "--lease", &lease, "--database", &url])
            .assert_code(0);
        let node = |node| {
            let peer_listen = free_address(node);
            Node {
                address: free_address(node),
                database: Proxy::before(([127, 0, 0, 1], postgres.port()).into()),
                standby: None,
                peers: Proxy::before(peer_listen),
                peer_listen,
                process: Mutex::default(),
            }
        };
        let nodes = (0..NODES).map(node).collect();
        // Scripts have files of their own.
        let variables = vec![("SANDBOXCTL_IO_ENABLED", "true".to_owned())];
        let tokens = Mutex::default();
        let flags = Vec::new();
        let cluster = Self { place, postgres, database, nodes, variables, flags, tokens };
        // Without any, no node would listen.
        cluster.token("a");
        cluster
    }

    /// The same, with all nodes.
    pub fn started(place: &'a Fixture, postgres: Postgres, lease: Duration) -> Self {
        let cluster = Self::new(place, postgres, lease);
        for node in 0..NODES {
            cluster.start(node);
        }
        cluster
    }

    /// The nodes find the primary at this port too.
    pub fn add_standby(&mut self, port: u16) {
        for node in &mut self.nodes {
            node.standby = Some(Proxy::before(([127, 0, 0, 1], port).into()));
        }
    }

    /// The token of a subject.
    pub fn token(&self, subject: &str) -> String {
        let mut tokens = self.tokens.lock().unwrap();
        if let Some((_, token)) = tokens.iter().find(|(of, _)| of == subject) {
            return token.clone();
        }
        let url = self.postgres.url(&self.database);
        let args =
            ["token", "create", "--subject", subject, "--scope", "admin", "--database", &url];
        let ended = self.place.sandboxctl(args);
        let token = ended.assert_code(0).stdout.trim().to_owned();
        tokens.push((subject.to_owned(), token.clone()));
        token
    }

    /// The data directory of a node.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        self.place.path(&format!("node{node}"))
    }

    /// What a node logs, of all its processes.
    pub fn log(&self, node: usize) -> String {
        fs::read_to_string(self.place.path(&format!("node{node}.log"))).unwrap_or_default()
    }

    /// Starts the process of a node, and waits until it listens.
    pub fn start(&self, node: usize) {
        let its = &self.nodes[node];
        let hosts = [Some(&its.database), its.standby.as_ref()].into_iter().flatten();
        let hosts: Vec<_> = hosts.map(|proxy| proxy.address().to_string()).collect();
        let (hosts, database) = (hosts.join(","), &self.database);
        let url = format!("postgres://postgres@{hosts}/{database}?target_session_attrs=read-write");
        let mut command = self.place.command(["serve", "--data-dir", &format!("node{node}")]);
        command.args(["--listen", &its.address.to_string(), "--database", &url]);
        command.args(["--peer-listen", &its.peer_listen.to_string()]);
        command.args(["--advertise", &its.peers.address().to_string()]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(&self.flags);
        let log = self.place.path(&format!("node{node}.log"));
        let log: File = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "node {node}: {line:?}\n{}", self.log(node));
        *its.process.lock().unwrap() = Some(child);
    }

    /// Whether its process was started, and not ended by a test.
    pub fn is_started(&self, node: usize) -> bool {
        self.nodes[node].process.lock().unwrap().is_some()
    }

    /// Sends a signal to a node's process.
    pub fn signal(&self, node: usize, signal: Signal) {
        if let Some(child) = &*self.nodes[node].process.lock().unwrap() {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
    }

    /// `kill -9`.
    pub fn kill(&self, node: usize) {
        if let Some(mut child) = self.nodes[node].process.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and waits for an end that is as it should be.
    pub fn stop(&self, node: usize) {
        self.signal(node, Signal::TERM);
        let ended = self.wait(node).expect("it was started");
        assert!(ended.success(), "node {node} ends with {ended}:\n{}", self.log(node));
    }

    /// Waits for the end of a node's process, if it was started.
    pub fn wait(&self, node: usize) -> Option<ExitStatus> {
        let child = self.nodes[node].process.lock().unwrap().take();
        child.map(|mut child| child.wait().unwrap())
    }

    /// The rows of a statement on the cluster's database.
    pub fn rows(&self, statement: &str) -> Vec<Vec<String>> {
        self.postgres.rows(&self.database, &format!("SET search_path = sandboxctl; {statement}"))
    }

    /// The nodes' sessions, as the database has them: each with its node.
    pub fn sessions(&self) -> Vec<Vec<String>> {
        self.rows("SELECT id, node FROM sessions ORDER BY id")
    }

    /// The id of a node.
    pub fn id(&self, node: usize) -> String {
        fs::read_to_string(self.data_dir(node).join("node-id")).unwrap().trim().to_owned()
    }

    /// The node that has an execution, as the database says.
    pub fn node_of(&self, execution: &str) -> Option<usize> {
        let rows = self.rows(&format!("SELECT node FROM executions WHERE id = '{execution}'"));
        (0..NODES).find(|node| rows[0][0] == self.id(*node))
    }

    /// Submits a script to a node that has nothing else to do, and waits until it runs there: another node
    /// may be faster, and the script may have ended before anybody looked.
    #[track_caller]
    pub fn run_on(&self, node: usize, subject: &str, script: &str) -> String {
        let call = self.call(node, subject);
        for _ in 0..10 {
            let id = call.submit(script);
            let is_running = eventually(&format!("{id} to begin"), || {
                let status = call.status(&id);
                (status != "queued").then_some(status == "running")
            });
            if is_running && self.node_of(&id) == Some(node) {
                return id;
            }
            self.ended(node, subject, &id);
        }
        panic!("node {node} runs nothing");
    }

    /// Waits until the session of a node is another one than this.
    #[track_caller]
    pub fn session_after(&self, node: usize, before: Option<&str>) -> String {
        let id = self.id(node);
        eventually(&format!("node {node} to have a new session"), || {
            let sessions = self.sessions();
            let session = sessions.iter().find(|row| row[1] == id)?;
            (Some(&*session[0]) != before).then(|| session[0].clone())
        })
    }

    /// The session of a node that has one.
    #[track_caller]
    pub fn session(&self, node: usize) -> String {
        self.session_after(node, None)
    }

    /// An exchange with a node.
    pub fn call(&self, node: usize, subject: &str) -> Call {
        Call {
            address: self.nodes[node].address,
            token: self.token(subject),
            headers: String::new(),
            patience: Duration::from_secs(60),
        }
    }

    /// Waits until an execution has ended, and gives its document, as this node reports it.
    #[track_caller]
    pub fn ended(&self, node: usize, subject: &str, id: &str) -> Value {
        let call = self.call(node, subject);
        eventually(&format!("{id} to end"), || {
            let (status, document) = call.json("GET", &format!("/v1/executions/{id}"), "")?;
            let is_over =
                status == 200 && !["queued", "running"].contains(&document["status"].as_str()?);
            is_over.then_some(document)
        })
    }

    /// Removes what killed ones left, and stops those that run; nothing is left then.
    pub fn end(&self) {
        self.place.sandboxctl(["gc"]).assert_code(0);
        for node in 0..NODES {
            if self.is_started(node) {
                self.stop(node);
            }
        }
        assert_eq!(self.sessions(), Vec::<Vec<String>>::new(), "sessions are left");
        eventually("nothing to be left on the engine", || {
            let is_clean =
                self.place.containers().is_empty() && engine().remains(self.place).is_empty();
            is_clean.then_some(())
        });
    }
}

impl Drop for Cluster<'_> {
    /// A failed test leaves no process behind, and its evidence.
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].database.heal();
            self.kill(node);
        }
        if std::thread::panicking() {
            let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("cluster-{}", process::id()));
            fs::create_dir_all(&kept).unwrap();
            for node in 0..self.nodes.len() {
                fs::write(kept.join(format!("node{node}.log")), self.log(node)).unwrap();
            }
            eprintln!("what the nodes logged is in {}", kept.display());
        }
    }
}

/// Requests to a node, by one subject.
#[derive(Debug, Clone)]
pub struct Call {
    pub address: SocketAddr,
    token: String,
    headers: String,
    patience: Duration,
}

impl Call {
    /// With a header more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Waits no longer than this for the next bytes of an answer.
    #[must_use]
    pub const fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The status and the body of an answer; `None` if it is not whole.
    pub fn exchange(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.address, self.patience).ok()?;
        stream.set_read_timeout(Some(self.patience)).ok()?;
        let Self { address, token, headers, .. } = self;
        let media_type = match path.split('?').next().is_some_and(|path| path.ends_with("/stdin")) {
            true => "application/octet-stream",
            false => "application/json",
        };
        // Of this version no answer comes in chunks.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nContent-Type: {media_type}\r\n{headers}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        // A node that dies ends its connection in the middle.
        length.is_none_or(|length| length == body.len()).then(|| (status, body.to_owned()))
    }

    /// The same, with JSON.
    pub fn json(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let (status, body) = self.exchange(method, path, body)?;
        Some((status, serde_json::from_str(&body).ok()?))
    }

    /// The answer, if it has this status.
    #[track_caller]
    pub fn expect(&self, status: u16, method: &str, path: &str, body: &str) -> Value {
        let (its, answer) = self.json(method, path, body).expect("an answer");
        assert_eq!(its, status, "{method} {path}: {answer}");
        answer
    }

    /// Submits a script, and gives its id.
    #[track_caller]
    pub fn submit(&self, script: &str) -> String {
        let body = serde_json::json!({ "script": script }).to_string();
        let accepted = self.expect(202, "POST", "/v1/executions", &body);
        accepted["id"].as_str().unwrap().to_owned()
    }

    /// The same for a node whose connections to the database were ended: it may answer with 503 until it has new ones.
    #[track_caller]
    pub fn submit_in_time(&self, script: &str) -> String {
        let body = serde_json::json!({ "script": script }).to_string();
        eventually("the node to reach the database", || {
            let (status, answer) = self.json("POST", "/v1/executions", &body).expect("an answer");
            assert!([202, 503].contains(&status), "{status} {answer}");
            (status == 202).then(|| answer["id"].as_str().unwrap().to_owned())
        })
    }

    /// The status of an execution.
    #[track_caller]
    pub fn status(&self, id: &str) -> String {
        let execution = self.expect(200, "GET", &format!("/v1/executions/{id}"), "");
        execution["status"].as_str().unwrap().to_owned()
    }
}
