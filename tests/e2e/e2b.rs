//! A client of E2B's protocol over plain connections: it also does what no SDK does.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::rootfs::{Provided, Rootfs};

/// Nothing that is asked for takes longer, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// What sandboxes are made of in these tests: busybox, with a home.
pub fn base() -> Provided {
    Rootfs::busybox().folder("home/user", 0o755).folder("tmp", 0o1777).provide_image()
}

/// The setting that makes it the template `base`.
pub fn templates(base: &Provided) -> (&'static str, String) {
    let of = match base {
        Provided::Archive(file) => json!({ "archive": file.path() }),
        Provided::Image(name) => json!({ "image": name }),
        Provided::Directory(_) | Provided::Shared(_) => panic!("{base:?} is no image"),
    };
    let (kind, name) = of.as_object().unwrap().iter().next().unwrap();
    ("SANDBOXCTL_SERVER_E2B_TEMPLATES", format!("{{base = {{{kind} = {name}}}}}"))
}

/// Who asks a server, with an API key.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub key: String,
}

/// A sandbox, as its creation says.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub token: String,
    pub traffic: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, head, body: bytes[end + 4..].to_vec() })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

/// A request of HTTP/1.0: of this version no answer comes in chunks, and the connection ends with it.
fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.0\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// A message of a stream.
fn envelope(message: &Value) -> Vec<u8> {
    let json = message.to_string();
    [&[0][..], &u32::try_from(json.len()).unwrap().to_be_bytes(), json.as_bytes()].concat()
}

impl Client {
    /// A connection on which this was sent.
    pub fn open(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Who is refused early may not be heard to its end.
        _ = stream.write_all(sent);
        stream
    }

    /// The answer to this, if there is one.
    pub fn raw(&self, sent: &[u8]) -> Option<Answer> {
        let (mut stream, mut answer) = (self.open(sent), Vec::new());
        _ = stream.read_to_end(&mut answer);
        Answer::parse(&answer)
    }

    /// The answer to a request, with a host of its own unless there is one.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let host = self.address.to_string();
        let mut all = headers.to_vec();
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            all.push(("host", &host));
        }
        self.raw(&request(method, path, &all, body)).expect("an answer")
    }

    /// The same of the control API.
    #[track_caller]
    pub fn control(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("x-api-key", &*self.key), ("content-type", "application/json")];
        self.ask(method, &format!("/e2b{path}"), &headers, body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn create(&self, body: &Value) -> Sandbox {
        let answer = self.control("POST", "/v2/sandboxes", body);
        assert_eq!(answer.status, 201, "{}", answer.text());
        Sandbox::of(&answer.json())
    }

    /// The bytes of a creation.
    pub fn creation(&self, body: &Value) -> Vec<u8> {
        let host = self.address.to_string();
        let headers = [("host", &*host), ("x-api-key", &*self.key)];
        request("POST", "/e2b/v2/sandboxes", &headers, body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn kill(&self, sandbox: &Sandbox) -> u16 {
        self.control("DELETE", &format!("/sandboxes/{}", sandbox.id), &json!({})).status
    }

    /// The sandboxes that it sees.
    #[track_caller]
    pub fn ids(&self) -> Vec<String> {
        let answer = self.control("GET", "/v2/sandboxes", &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let listed = answer.json();
        listed
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["sandboxID"].to_string().replace('"', ""))
            .collect()
    }

    /// What is asked of a sandbox itself.
    #[track_caller]
    pub fn envd(
        &self,
        sandbox: &Sandbox,
        method: &str,
        path: &str,
        media_type: &str,
        body: &[u8],
    ) -> Answer {
        let headers = [
            ("e2b-sandbox-id", &*sandbox.id),
            ("e2b-sandbox-port", "49983"),
            ("x-access-token", &*sandbox.token),
            ("content-type", media_type),
        ];
        self.ask(method, &format!("/e2b{path}"), &headers, body)
    }

    /// A call of a method of a process.
    #[track_caller]
    pub fn call(&self, sandbox: &Sandbox, method: &str, message: &Value) -> Answer {
        let (path, body) = (format!("/process.Process/{method}"), message.to_string());
        self.envd(sandbox, "POST", &path, "application/json", body.as_bytes())
    }

    /// The pids of the processes that run.
    #[track_caller]
    pub fn pids(&self, sandbox: &Sandbox) -> Vec<u64> {
        let listed = self.call(sandbox, "List", &json!({})).json();
        let processes = listed["processes"].as_array().cloned().unwrap_or_default();
        processes.iter().map(|it| it["pid"].as_u64().unwrap()).collect()
    }

    /// A stream of what a process prints.
    #[track_caller]
    pub fn stream(&self, sandbox: &Sandbox, method: &str, message: &Value) -> Stream {
        let host = self.address.to_string();
        let headers = [
            ("host", &*host),
            ("e2b-sandbox-id", &*sandbox.id),
            ("e2b-sandbox-port", "49983"),
            ("x-access-token", &*sandbox.token),
            ("content-type", "application/connect+json"),
        ];
        let path = format!("/e2b/process.Process/{method}");
        let mut stream = self.open(&request("POST", &path, &headers, &envelope(message)));
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}");
        Stream(stream)
    }

    /// A process of a line for a shell, and its pid.
    #[track_caller]
    pub fn start(&self, sandbox: &Sandbox, line: &str) -> (Stream, u64) {
        let process = json!({ "cmd": "/bin/sh", "args": ["-c", line] });
        let mut stream = self.stream(sandbox, "Start", &json!({ "process": process }));
        let first = stream.message().expect("a start");
        let pid = first["event"]["start"]["pid"].as_u64();
        (stream, pid.unwrap_or_else(|| panic!("{first}")))
    }

    /// What a line for a shell prints to its end.
    #[track_caller]
    pub fn run(&self, sandbox: &Sandbox, line: &str) -> String {
        self.start(sandbox, line).0.rest()
    }

    #[track_caller]
    pub fn write(&self, sandbox: &Sandbox, path: &str, content: &[u8]) {
        let path = format!("/files?path={path}");
        let answer = self.envd(sandbox, "POST", &path, "application/octet-stream", content);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    #[track_caller]
    pub fn read(&self, sandbox: &Sandbox, path: &str) -> Answer {
        self.envd(sandbox, "GET", &format!("/files?path={path}"), "text/plain", b"")
    }

    /// A request to a port by the headers of the SDKs.
    #[track_caller]
    pub fn port(&self, sandbox: &Sandbox, port: u16, path: &str, more: &[(&str, &str)]) -> Answer {
        let port = port.to_string();
        let own = [("e2b-sandbox-id", &*sandbox.id), ("e2b-sandbox-port", &*port)];
        self.ask("GET", &format!("/e2b{path}"), &[&own[..], more].concat(), b"")
    }

    /// Starts a server of files in the sandbox's home.
    #[track_caller]
    pub fn serve(&self, sandbox: &Sandbox, port: u16, page: &str) {
        self.write(sandbox, "index.html", page.as_bytes());
        let line = format!(
            "httpd -p 127.0.0.1:{port} -h /home/user >/dev/null 2>&1; \
             until wget -q -O /dev/null http://127.0.0.1:{port}/; do sleep 0.02; done; echo serves"
        );
        self.start(sandbox, &line).0.until("serves\n");
    }
}

impl Sandbox {
    #[track_caller]
    pub fn of(created: &Value) -> Self {
        let text = |member: &str| created[member].as_str().unwrap_or_default().to_owned();
        let (id, token) = (text("sandboxID"), text("envdAccessToken"));
        assert!(!id.is_empty() && !token.is_empty(), "{created}");
        Self { id, token, traffic: text("trafficAccessToken") }
    }

    /// The query of a URL for a file, signed by its token.
    pub fn signed(&self, path: &str, operation: &str) -> String {
        let digest = Sha256::digest(format!("{path}:{operation}::{}", self.token));
        let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B").replace('/', "%2F");
        format!("path={path}&signature=v1_{signature}")
    }
}

/// An answer that comes in messages.
pub struct Stream(TcpStream);

impl Stream {
    /// The next message, or the end that it says; `None` if it has broken off.
    pub fn message(&mut self) -> Option<Value> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).ok()?;
        let mut json = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize];
        self.0.read_exact(&mut json).ok()?;
        let message: Value = serde_json::from_slice(&json).unwrap();
        Some(if head[0] == 2 { json!({ "over": message }) } else { message })
    }

    /// Reads until what was printed has this.
    #[track_caller]
    pub fn until(&mut self, text: &str) {
        let mut printed = String::new();
        while !printed.contains(text) {
            let message = self.message().unwrap_or_else(|| panic!("it ends after {printed:?}"));
            assert!(message.get("over").is_none(), "{message} after {printed:?}");
            printed.push_str(&printed_by(&message));
        }
    }

    /// What is printed to a good end.
    #[track_caller]
    pub fn rest(mut self) -> String {
        let mut printed = String::new();
        loop {
            let message = self.message().unwrap_or_else(|| panic!("it ends after {printed:?}"));
            if let Some(over) = message.get("over") {
                assert_eq!(*over, json!({}), "after {printed:?}");
                return printed;
            }
            printed.push_str(&printed_by(&message));
        }
    }

    /// Whether it ends, whatever comes before.
    pub fn ends(mut self) -> bool {
        loop {
            match self.message() {
                Some(message) if message.get("over").is_none() => {}
                _ => return true,
            }
        }
    }
}

fn printed_by(message: &Value) -> String {
    let data = &message["event"]["data"];
    let data = data["stdout"].as_str().or(data["stderr"].as_str()).unwrap_or_default();
    String::from_utf8_lossy(&STANDARD.decode(data).unwrap()).into_owned()
}

/// Bytes as a message has them.
pub fn input(pid: u64, text: &str) -> Value {
    json!({ "process": { "pid": pid }, "input": { "stdin": STANDARD.encode(text) } })
}
