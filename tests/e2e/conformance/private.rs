//! A service of one program: `serve --private`, which the clients start.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Fixture, eventually};

/// A private service under way.
struct Private {
    child: Child,
    socket: String,
}

/// A failed test leaves none behind.
impl Drop for Private {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Private {
    fn start(place: &Fixture) -> Self {
        let mut command = place.command(["serve", "--private"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(hello["protocol"], 1);
        assert_eq!(hello["version"], env!("CARGO_PKG_VERSION"));
        Self { child, socket: hello["socket"].as_str().unwrap().to_owned() }
    }

    /// The status of a request, and its answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut connection = UnixStream::connect(&self.socket).unwrap();
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn create(&self, request: &Value) -> (u16, Value) {
        self.ask("POST", "/v1/sandboxes", request)
    }

    #[track_caller]
    fn delete(&self, sandbox: &Value) {
        let path = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
        assert_eq!(self.ask("DELETE", &path, &Value::Null).0, 204);
    }

    /// Ends its stdin, and waits until nothing of it is left.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = eventually("it ends", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        assert!(!Path::new(&self.socket).exists());
    }
}

#[test]
fn private_service_gives_its_program_directories_of_the_host_and_ends_with_its_stdin() {
    let place = Fixture::new();
    let service = Private::start(&place);
    // Another user does not reach its socket.
    let above = Path::new(&service.socket).parent().unwrap();
    assert_eq!(above.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let spec = json!({"spec": {"host_dir": place.path("out")}});
    let (status, sandbox) = service.create(&spec);
    assert_eq!(status, 201, "{sandbox}");
    let of = |what: &str| format!("/v1/sandboxes/{}/{what}", sandbox["id"].as_str().unwrap());
    let write = json!({"operation": "write", "path": "a", "content": "1"});
    let (_, written) = service.ask("POST", &of("operations?generation=1"), &write);
    assert_eq!(written["success"], true, "{written}");
    assert_eq!(place.read("out/a"), "1");
    let script = json!({"script": "fs.write('b', fs.read('a')) return args", "args": {"n": 5}});
    let (_, document) = service.ask("POST", &of("executions?generation=1&wait=60"), &script);
    assert_eq!(document["result"], json!({"n": 5}), "{document}");
    let (status, gone) = service.ask("POST", &of("operations?generation=2"), &write);
    assert_eq!((status, &gone["kind"]), (410, &json!("gone")));
    let (status, refused) = service.create(&json!({"spec": {"host_dir": "out"}}));
    assert_eq!((status, &refused["kind"]), (422, &json!("invalid_request")));
    let (_, refused) = service.create(&json!({"spec": {"host_dir": place.scratch()}}));
    assert_eq!(refused["kind"], "policy", "{refused}");
    // What still runs does not hold its end up.
    let endless = json!({"script": "while true do end"});
    assert_eq!(service.ask("POST", &of("executions"), &endless).0, 202);
    service.end();
    assert_eq!(place.read("out/b"), "1");
}

#[test]
fn links_that_a_guest_makes_do_not_move_the_directory_of_a_later_generation() {
    let place = Fixture::new();
    place.write("target/sub/secret", "");
    std::fs::create_dir_all(place.path("io/mid/sub")).unwrap();
    let service = Private::start(&place);
    let spec = json!({"spec": {"host_dir": place.path("io/mid/sub")}, "idle_ms": 1});
    let (status, sandbox) = service.create(&spec);
    assert_eq!(status, 201, "{sandbox}");
    let id = sandbox["id"].as_str().unwrap();
    eventually("it is stopped", || {
        let (_, now) = service.ask("GET", &format!("/v1/sandboxes/{id}"), &Value::Null);
        (now["status"] == "stopped").then_some(())
    });
    std::fs::rename(place.path("io/mid"), place.path("io/old")).unwrap();
    std::os::unix::fs::symlink("../target", place.path("io/mid")).unwrap();
    let write = json!({"operation": "write", "path": "planted", "content": ""});
    let (_, refused) = service.ask("POST", &format!("/v1/sandboxes/{id}/operations"), &write);
    assert_ne!(refused["success"], true, "{refused}");
    assert!(!place.path("target/sub/planted").exists());
    service.end();
}

#[test]
fn private_service_refuses_a_name_that_another_process_has_until_its_sandbox_ends() {
    let place = Fixture::new();
    let (first, second) = (Private::start(&place), Private::start(&place));
    let named = |name: &str| json!({"name": name});
    let (_, one) = first.create(&named("a/ü"));
    let (status, again) = first.create(&named("a/ü"));
    assert_eq!((status, &again["id"]), (200, &one["id"]), "its own process finds it");
    let (status, refused) = second.create(&named("a/ü"));
    assert_eq!((status, &refused["kind"]), (409, &json!("conflict")), "{refused}");
    second.delete(&second.create(&named("another")).1);
    // It is free when its sandbox has ended, and when its process has.
    first.delete(&one);
    assert_eq!(second.create(&named("a/ü")).0, 201);
    assert_eq!(first.create(&named("a/ü")).0, 409);
    second.end();
    assert_eq!(first.create(&named("a/ü")).0, 201);
    first.end();
}
