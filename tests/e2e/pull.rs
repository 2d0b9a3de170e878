//! `--pull`: images that Docker fetches from a registry, which is a thread of the test's.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::engine::{docker, docker_lines};
use crate::fixture::{Ended, Fixture, eventually, spawn, wait};
use crate::rootfs::{Rootfs, digest};

/// A registry on loopback, of which an engine asks no TLS.
struct Registry {
    port: u16,
    served: Arc<Served>,
}

#[derive(Default)]
struct Served {
    /// Type and content, by path.
    answers: Mutex<HashMap<String, (&'static str, Vec<u8>)>>,
    /// Paths that were asked for.
    asked: Mutex<Vec<String>>,
}

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

impl Registry {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = Arc::new(Served::default());
        let shared = served.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, served) = (connection.unwrap(), shared.clone());
                // One that is broken off is the engine's business.
                std::thread::spawn(move || _ = served.serve(connection));
            }
        });
        Self { port, served }
    }

    /// Has it serve an image by this name and tag; gives what the engine is to call it.
    fn add(&self, name: &str, tag: &str, rootfs: &Rootfs) -> String {
        let layer = rootfs.layer();
        let config = rootfs.image_config(&layer);
        let part = |kind, content: &[u8]| json!({"mediaType": kind, "size": content.len(), "digest": digest(content)});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": part(CONFIG, &config),
            "layers": [part(LAYER, &layer)],
        });
        let manifest = serde_json::to_vec(&manifest).unwrap();
        let mut answers = self.served.answers.lock().unwrap();
        for content in [config, layer] {
            let path = format!("/v2/{name}/blobs/{}", digest(&content));
            answers.insert(path, ("application/octet-stream", content));
        }
        for by in [tag, &digest(&manifest)] {
            answers.insert(format!("/v2/{name}/manifests/{by}"), (MANIFEST, manifest.clone()));
        }
        format!("127.0.0.1:{}/{name}:{tag}", self.port)
    }

    /// How often a manifest was asked for.
    fn manifests_asked(&self) -> usize {
        let asked = self.served.asked.lock().unwrap();
        asked.iter().filter(|path| path.contains("/manifests/")).count()
    }
}

impl Served {
    fn serve(&self, connection: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?);
        loop {
            let mut request = Vec::new();
            // Who begins with a greeting of TLS is not answered.
            if lines.read_until(b'\n', &mut request)? == 0 || request[0] == 0x16 {
                return Ok(());
            }
            let request = String::from_utf8_lossy(&request).into_owned();
            let mut words = request.split_whitespace();
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or("/"));
            let mut header = String::new();
            while lines.read_line(&mut header)? > 2 {
                header.clear();
            }
            self.asked.lock().unwrap().push(path.to_owned());
            let found = self.answers.lock().unwrap().get(path).cloned();
            let (status, more, kind, content) = match found {
                _ if path == "/v2/" => ("200 OK", "", "application/json", b"{}".to_vec()),
                _ if path.contains("/private/") => {
                    let asks = "WWW-Authenticate: Basic realm=\"here\"\r\n";
                    ("401 Unauthorized", asks, "application/json", b"{}".to_vec())
                }
                Some((kind, content)) => ("200 OK", "", kind, content),
                None => {
                    let errors = json!({"errors": [
                        {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"},
                    ]});
                    let errors = errors.to_string().into_bytes();
                    ("404 Not Found", "", "application/json", errors)
                }
            };
            let mut to = &connection;
            write!(
                to,
                "HTTP/1.1 {status}\r\nDocker-Distribution-Api-Version: registry/2.0\r\n{more}\
                 Content-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\r\n",
                content.len(),
                digest(&content),
            )?;
            if path.contains("/slow/blobs/") {
                // It never comes.
                let mut rest = String::new();
                return lines.read_line(&mut rest).map(drop);
            }
            if method != "HEAD" {
                to.write_all(&content)?;
            }
        }
    }
}

/// Images that a test has the engine fetch; they go with it.
struct Fetched(Vec<String>);

impl Drop for Fetched {
    fn drop(&mut self) {
        for name in &self.0 {
            if !docker_lines(&["images", "--quiet", name]).is_empty() {
                docker(&["rmi", "--force", name]);
            }
            // An image whose tag went to a later one keeps its digest.
            let repository = name.rsplit_once(':').map_or(&**name, |(repository, _)| repository);
            let format = "--format={{.Repository}}@{{.Digest}}";
            for left in docker_lines(&["image", "ls", "--digests", format, repository]) {
                docker(&["rmi", "--force", &left]);
            }
        }
    }
}

fn exec(place: &Fixture, image: &str, pull: &[&str], line: &str) -> Ended {
    let flags = ["exec", "--image", image];
    place.sandboxctl([&flags[..], pull, &["--shell", line]].concat())
}

#[test]
fn an_image_is_fetched_where_that_is_wanted_and_only_there() {
    let (place, registry) = (Fixture::new(), Registry::new());
    let one = Rootfs::busybox().file("version", 0o644, "one\n");
    let name = registry.add("test/busy", "1", &one);
    let _fetched = Fetched(vec![name.clone()]);

    let ended = exec(&place, &name, &["--pull", "never"], "cat /version");
    ended.assert_code(125).assert_stderr_has(&format!("the image '{name}' is not there"));
    ended.assert_stderr_has("hint: `docker pull` fetches it, and so does --pull missing");
    assert_eq!(registry.manifests_asked(), 0);

    assert_eq!(exec(&place, &name, &[], "cat /version").assert_code(0).stdout, "one\n");
    let asked = registry.manifests_asked();
    assert!(asked > 0);
    assert_eq!(exec(&place, &name, &[], "cat /version").assert_code(0).stdout, "one\n");
    let never = ["--pull", "never"];
    assert_eq!(exec(&place, &name, &never, "cat /version").assert_code(0).stdout, "one\n");
    assert_eq!(registry.manifests_asked(), asked, "what is there is not asked for");

    registry.add("test/busy", "1", &Rootfs::busybox().file("version", 0o644, "two\n"));
    assert_eq!(exec(&place, &name, &[], "cat /version").assert_code(0).stdout, "one\n");
    let always = ["--pull", "always"];
    assert_eq!(exec(&place, &name, &always, "cat /version").assert_code(0).stdout, "two\n");
    // A setting says it too.
    place.write("sandboxctl.toml", "[programs]\npull = 'never'\n");
    let other = registry.add("test/other", "1", &one);
    let asked = registry.manifests_asked();
    exec(&place, &other, &[], "true").assert_code(125).assert_stderr_has("is not there");
    assert_eq!(registry.manifests_asked(), asked);
}

#[test]
fn an_image_that_cannot_be_fetched_says_why() {
    let (place, registry) = (Fixture::new(), Registry::new());
    let named = |name: &str| format!("127.0.0.1:{}/{name}", registry.port);
    for (name, words, hint) in [
        (named("none:1"), "cannot be fetched: ", "its tag or its digest is wrong"),
        (named("private/x:1"), "cannot be fetched: ", "without a password"),
        // No server listens there.
        ("127.0.0.1:1/x:1".to_owned(), "cannot be fetched: ", "cannot reach the registry"),
        ("No/Such Name".to_owned(), "'No/Such Name' ", ""),
    ] {
        let ended = exec(&place, &name, &[], "true");
        ended.assert_code(125).assert_stderr_has(words).assert_stderr_has(hint);
        let json = place.sandboxctl(["exec", "--json", "--image", &name, "--", "true"]);
        let document: Value = serde_json::from_str(&json.assert_code(125).stdout).unwrap();
        assert_eq!(document["error"]["kind"], "image", "{document:#}");
        assert_eq!(document["status"], "error");
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_registry() {
    let (place, registry) = (Fixture::new(), Registry::new());
    // No other image has it, so that it has to be fetched.
    let own = place.work().to_str().unwrap().to_owned();
    let name = registry.add("slow", "1", &Rootfs::empty().file("own", 0o644, own));
    let _fetched = Fetched(vec![name.clone()]);
    let child = spawn(place.command(["exec", "--image", &name, "--", "true"]));
    eventually("a layer is asked for", || {
        let asked = registry.served.asked.lock().unwrap();
        asked.iter().any(|path| path.contains("/blobs/")).then_some(())
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait(child).assert_code(130);
    assert_eq!(place.containers(), Vec::<String>::new());
}
