//! The tools for workflow steps: lines on stdin and stdout, and one call at a time.

mod commands;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::engine::engine;
use crate::fixture::{Fixture, eventually, in_its_time, workspace};

/// Longer than any answer of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// `sandboxctl tools --stdio` under way.
struct Server<'a> {
    place: &'a Fixture,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<Value>,
    /// Answers that came before somebody asked for them, by their ids.
    early: HashMap<String, Value>,
    calls: u64,
}

impl<'a> Server<'a> {
    fn new(place: &'a Fixture) -> Self {
        Self::with(place, &[])
    }

    fn with(place: &'a Fixture, flags: &[&str]) -> Self {
        let mut command = place.command(["tools", "--stdio"]);
        command.args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, answers) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines {
                let line = line.unwrap();
                let answer = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("no answer: {error}: {line}"));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { place, child, stdin, answers, early: HashMap::new(), calls: 0 }
    }

    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    /// Makes a call, and gives its id.
    fn begin(&mut self, tool: &str, args: Value) -> Value {
        self.calls += 1;
        let id = json!(self.calls);
        self.send(&json!({"id": id, "tool": tool, "args": args}).to_string());
        id
    }

    fn next(&self) -> Value {
        self.answers.recv_timeout(TIMEOUT).expect("an answer")
    }

    /// The answer to a call.
    fn answer(&mut self, id: &Value) -> Value {
        loop {
            if let Some(answer) = self.early.remove(&id.to_string()) {
                return answer;
            }
            let answer = self.next();
            self.early.insert(answer["id"].to_string(), answer);
        }
    }

    /// Makes a call, and waits for its answer.
    fn ask(&mut self, tool: &str, args: Value) -> Value {
        let id = self.begin(tool, args);
        self.answer(&id)
    }

    /// The data of a call that succeeds.
    #[track_caller]
    fn data(&mut self, tool: &str, args: Value) -> Value {
        let answer = self.ask(tool, args.clone());
        assert!(answer.get("error").is_none(), "{tool} {args}: {answer:#}");
        assert_eq!(answer["type"], "text", "{answer:#}");
        assert!(answer["metadata"]["durationMs"].is_u64(), "{answer:#}");
        answer["data"].clone()
    }

    /// The kind and the message of a call that fails.
    #[track_caller]
    fn failure(&mut self, tool: &str, args: Value) -> (String, String) {
        let answer = self.ask(tool, args.clone());
        assert!(answer.get("data").is_none(), "{tool} {args}: {answer:#}");
        assert!(answer["metadata"]["retryable"].is_boolean(), "{answer:#}");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        (text(&answer["metadata"]["kind"]), text(&answer["error"]))
    }

    /// A sandbox called `c` on `sandbox-files`, and the engine's id of its container.
    #[track_caller]
    fn init(&mut self) -> String {
        let data = self.data("sandbox_init", init("c"));
        assert_eq!(data["containerId"], "c");
        data["dockerId"].as_str().unwrap().to_owned()
    }

    /// Says that no more calls come, and gives the answers that still did.
    fn end(mut self) -> (i32, Vec<Value>) {
        drop(self.stdin.take());
        let rest: Vec<Value> = self.answers.iter().collect();
        (self.wait(), rest)
    }

    /// Waits for its end, and for that of helpers which were kept ready.
    fn wait(&mut self) -> i32 {
        let code = self.child.wait().unwrap().code().unwrap();
        assert_eq!(self.place.containers(), Vec::<String>::new());
        eventually("no helper is left", || engine().remains(self.place).is_empty().then_some(()));
        code
    }

    fn end_well(self) {
        assert_eq!(self.end(), (0, Vec::new()));
    }
}

fn init(id: &str) -> Value {
    json!({"containerId": id, "projectOutPath": "sandbox-files"})
}

/// Arguments with the sandbox `c`.
fn c(mut args: Value) -> Value {
    args["containerId"] = json!("c");
    args
}

#[test]
fn the_session_of_the_guide_does_what_it_shows() {
    let place = Fixture::new();
    let session = std::fs::read(workspace().join("examples/session.ndjson")).unwrap();
    let ended = place.sandboxctl_with(&session, ["tools", "--stdio"]);
    ended.assert_code(0);
    let answers: HashMap<u64, Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|answer| (answer["id"].as_u64().unwrap(), answer))
        .collect();
    assert_eq!(answers.len(), 9, "{ended:#?}");
    let data = |id: u64| &answers[&id]["data"];
    let hello = "/workspace/src/hello.txt";
    assert!(data(1)["dockerId"].as_str().is_some_and(|id| !id.is_empty()), "{ended:#?}");
    assert_eq!(*data(2), json!({"path": "/workspace/src", "created": true}));
    assert_eq!(*data(3), json!({"path": hello, "bytesWritten": 24}));
    assert_eq!(*data(4), json!({"content": "Hello from the sandbox!\n", "encoding": "utf8"}));
    let entry = json!({"name": "hello.txt", "type": "file", "size": 24, "path": hello});
    assert_eq!(*data(5), json!({"path": "/workspace/src", "entries": [entry]}));
    assert_eq!(data(6)["size"], 24);
    assert_eq!(*data(7), json!({"path": hello, "deleted": true}));
    assert_eq!(*data(8), json!({"path": hello, "exists": false, "type": null}));
    assert_eq!(*data(9), json!({"containerId": "step", "removed": true}));
    assert!(place.path("out/src").is_dir());
}

#[test]
fn files_are_written_and_read_as_the_table_says() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();

    let wrote =
        server.data("sandbox_write_file", c(json!({"path": "a/b.txt", "content": "héllo"})));
    assert_eq!(wrote, json!({"path": "/workspace/a/b.txt", "bytesWritten": 6}));
    assert_eq!(place.read("sandbox-files/a/b.txt"), "héllo");
    let absolute = c(json!({"path": "/workspace/a/b.txt"}));
    let read = server.data("sandbox_read_file", absolute);
    assert_eq!(read, json!({"content": "héllo", "encoding": "utf8"}));
    let hyphen = c(json!({"path": "a/b.txt", "encoding": "utf-8"}));
    assert_eq!(server.data("sandbox_read_file", hyphen), read);
    let part = c(json!({"path": "a/b.txt", "offset": 3, "limit": 2}));
    assert_eq!(server.data("sandbox_read_file", part)["content"], "ll");
    let half = c(json!({"path": "a/b.txt", "offset": 2}));
    let (kind, _) = server.failure("sandbox_read_file", half);
    assert_eq!(kind, "encoding");

    let bytes = c(json!({"path": "bytes", "content": "AP8Q/w==", "encoding": "base64"}));
    assert_eq!(server.data("sandbox_write_file", bytes)["bytesWritten"], 4);
    assert_eq!(std::fs::read(place.path("sandbox-files/bytes")).unwrap(), [0, 255, 16, 255]);
    let base64 = c(json!({"path": "bytes", "encoding": "base64"}));
    let read = server.data("sandbox_read_file", base64);
    assert_eq!(read, json!({"content": "AP8Q/w==", "encoding": "base64"}));
    let answer = server.ask("sandbox_read_file", c(json!({"path": "bytes"})));
    assert_eq!(answer["metadata"]["kind"], "encoding");
    assert!(answer["metadata"]["hint"].as_str().unwrap().contains("base64"), "{answer:#}");
    let wrong = c(json!({"path": "bytes", "content": "AP8", "encoding": "base64"}));
    assert_eq!(server.failure("sandbox_write_file", wrong).0, "encoding");
    assert_eq!(std::fs::read(place.path("sandbox-files/bytes")).unwrap().len(), 4);

    let orphan = json!({"path": "x/y", "content": "", "createParentDirs": false});
    assert_eq!(server.failure("sandbox_write_file", c(orphan)).0, "not_found");
    let (kind, message) = server.failure("sandbox_read_file", c(json!({"path": "none"})));
    assert_eq!((&*kind, &*message), ("not_found", "none: No such file or directory"));
    assert_eq!(server.failure("sandbox_read_file", c(json!({"path": "../x"}))).0, "path_escape");
    assert_eq!(server.failure("sandbox_read_file", c(json!({"path": "/io/x"}))).0, "path_escape");
    server.end_well();
}

#[test]
fn directories_are_made_listed_and_deleted_as_the_table_says() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let files = place.path("sandbox-files");

    let made = server.data("sandbox_create_directory", c(json!({"path": "a/b"})));
    assert_eq!(made, json!({"path": "/workspace/a/b", "created": true}));
    let again = server.data("sandbox_create_directory", c(json!({"path": "a/b/"})));
    assert_eq!(again, json!({"path": "/workspace/a/b", "created": true}), "as mkdir -p");
    let strict = c(json!({"path": "a/b", "recursive": false}));
    let strict = server.data("sandbox_create_directory", strict);
    assert_eq!(strict, json!({"path": "/workspace/a/b", "created": false}));
    let alone = c(json!({"path": "x/y", "recursive": false}));
    assert_eq!(server.failure("sandbox_create_directory", alone).0, "not_found");

    for name in ["a/2", "a/b/3", "1"] {
        std::fs::write(files.join(name), name).unwrap();
    }
    symlink("nowhere", files.join("link")).unwrap();
    let names = |data: &Value| -> Vec<(String, String)> {
        let entries = data["entries"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        entries.iter().map(|entry| (text(&entry["path"]), text(&entry["type"]))).collect()
    };
    let here = server.ask("sandbox_list_directory", c(json!({"path": "."})));
    assert_eq!(here["data"]["path"], "/workspace");
    assert_eq!(here["metadata"]["truncated"], false);
    let pair = |path: &str, kind: &str| (format!("/workspace/{path}"), kind.to_owned());
    let top = [pair("1", "file"), pair("a", "directory"), pair("link", "symlink")];
    assert_eq!(names(&here["data"]), top);
    let entry = &here["data"]["entries"][0];
    assert_eq!((&entry["name"], &entry["size"]), (&json!("1"), &json!(1)));
    let all = server.data("sandbox_list_directory", c(json!({"path": ".", "recursive": true})));
    assert_eq!(all["entries"].as_array().unwrap().len(), 6);
    let two = c(json!({"path": ".", "recursive": true, "maxDepth": 2}));
    assert_eq!(server.data("sandbox_list_directory", two)["entries"].as_array().unwrap().len(), 5);
    let few = server.ask("sandbox_list_directory", c(json!({"path": ".", "limit": 2})));
    assert_eq!(few["data"]["entries"].as_array().unwrap().len(), 2);
    assert_eq!(few["metadata"]["truncated"], true);
    assert_eq!(few["metadata"]["note"], "the limit of 2 was reached at 'link'");
    let globbed = c(json!({"pattern": "**", "exclude": ["a/**"]}));
    let globbed = server.data("sandbox_glob", globbed);
    assert_eq!(globbed["matches"].as_array().unwrap().len(), 3, "{globbed:#}");
    let found = server.data("sandbox_grep", c(json!({"pattern": "[0-9]", "exclude": ["a", "!b"]})));
    assert_eq!(found["matches"], 1, "{found:#}");

    let exists =
        |server: &mut Server, path: &str| server.data("sandbox_exists", c(json!({"path": path})));
    for (path, kind) in
        [("1", json!("file")), ("a", json!("directory")), ("link", json!("symlink"))]
    {
        let reported = json!({"path": format!("/workspace/{path}"), "exists": true, "type": kind});
        assert_eq!(exists(&mut server, path), reported);
    }
    let absent = json!({"path": "/workspace/none", "exists": false, "type": null});
    assert_eq!(exists(&mut server, "none"), absent);

    let (kind, _) = server.failure("sandbox_delete", c(json!({"path": "a"})));
    assert_eq!(kind, "not_empty");
    let gone = server.data("sandbox_delete", c(json!({"path": "a", "recursive": true})));
    assert_eq!(gone, json!({"path": "/workspace/a", "deleted": true}));
    assert_eq!(server.failure("sandbox_delete", c(json!({"path": "a"}))).0, "not_found");
    let forced = server.data("sandbox_delete", c(json!({"path": "a", "force": true})));
    assert_eq!(forced, json!({"path": "/workspace/a", "deleted": true}), "as rm -f");
    server.end_well();
}

#[test]
fn a_file_is_described_as_the_table_says() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    server.data("sandbox_write_file", c(json!({"path": "d/f", "content": "12345"})));
    let info = server.data("sandbox_file_info", c(json!({"path": "d/f"})));
    let known = [("path", json!("/workspace/d/f")), ("name", json!("f")), ("type", json!("file"))];
    for (key, value) in known.into_iter().chain([("size", json!(5))]) {
        assert_eq!(info[key], value, "{info:#}");
    }
    assert_eq!(info["permissions"], "-rw-r--r--", "{info:#}");
    for key in ["owner", "group", "modifiedAt", "accessedAt"] {
        assert!(info[key].is_string(), "{info:#}");
    }
    assert!(info["modifiedAt"].as_str().unwrap().ends_with('Z'), "{info:#}");
    assert!(info["createdAt"].is_string() || info["createdAt"].is_null(), "{info:#}");
    assert_eq!(info.as_object().unwrap().len(), 10, "{info:#}");
    let directory = server.data("sandbox_file_info", c(json!({"path": "d"})));
    assert_eq!((&directory["type"], &directory["name"]), (&json!("directory"), &json!("d")));
    assert_eq!(directory["permissions"], "drwxr-xr-x");
    symlink("f", place.path("sandbox-files/d/link")).unwrap();
    let link = server.data("sandbox_file_info", c(json!({"path": "d/link"})));
    assert_eq!((&link["type"], &link["permissions"]), (&json!("symlink"), &json!("lrwxrwxrwx")));
    assert_eq!(server.data("sandbox_file_info", c(json!({"path": "."})))["name"], "workspace");
    assert_eq!(server.failure("sandbox_file_info", c(json!({"path": "none"}))).0, "not_found");
    server.end_well();
}

#[test]
fn a_slash_at_the_end_of_a_path_means_a_directory() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let files = place.path("sandbox-files");
    std::fs::create_dir(files.join("dir")).unwrap();
    std::fs::write(files.join("file"), "x").unwrap();
    symlink("dir", files.join("link")).unwrap();
    // `file/` and `link/` are errors of every tool; "" is not.
    for (tool, of_directory, of_nothing) in [
        ("sandbox_exists", "", ""),
        ("sandbox_read_file", "is_directory", "not_found"),
        ("sandbox_write_file", "is_directory", "is_directory"),
        ("sandbox_file_info", "", "not_found"),
    ] {
        for (path, expected) in [
            ("dir/", of_directory),
            ("file/", "not_a_directory"),
            ("link/", "symlink"),
            ("none/", of_nothing),
        ] {
            let mut args = c(json!({"path": path}));
            if tool == "sandbox_write_file" {
                args["content"] = json!("y");
            }
            let answer = server.ask(tool, args);
            if expected.is_empty() {
                assert!(answer.get("error").is_none(), "{tool} {path}: {answer:#}");
            } else {
                assert_eq!(answer["metadata"]["kind"], expected, "{tool} {path}: {answer:#}");
            }
        }
    }
    let exists =
        |server: &mut Server, path: &str| server.data("sandbox_exists", c(json!({"path": path})));
    assert_eq!(exists(&mut server, "dir/")["type"], "directory");
    assert_eq!(exists(&mut server, "none/")["exists"], false);
    assert_eq!(place.read("sandbox-files/file"), "x");
    assert!(files.join("link").is_symlink() && !files.join("none").exists());
    server.end_well();
}

#[test]
fn file_whose_name_is_not_utf8_is_used_by_its_bytes() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    // `d\xff/f\xfe`, as the operations' documents write it.
    let (folder, file) = (json!({"b64": "ZP8="}), json!({"b64": "ZP8vZv4="}));
    let absolute = json!("L3dvcmtzcGFjZS9k/y9m/g==");
    let named = json!({"path": "/workspace/d\u{fffd}/f\u{fffd}", "path_b64": absolute});

    let data = server.data("sandbox_create_directory", c(json!({"path": folder})));
    assert_eq!(
        (&data["created"], &data["path_b64"]),
        (&json!(true), &json!("L3dvcmtzcGFjZS9k/w=="))
    );
    let write = c(json!({"path": file, "content": "x"}));
    let wrote = server.data("sandbox_write_file", write);
    assert_eq!((&wrote["path"], &wrote["path_b64"]), (&named["path"], &absolute));
    use std::os::unix::ffi::OsStrExt as _;
    let on_disk = place.path("sandbox-files").join(std::ffi::OsStr::from_bytes(b"d\xff/f\xfe"));
    assert_eq!(std::fs::read(&on_disk).unwrap(), b"x");

    // What a list gives is what the others take.
    let list = server.data("sandbox_list_directory", c(json!({"path": ".", "recursive": true})));
    let entries = list["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "{list:#}");
    assert_eq!((&entries[1]["name_b64"], &entries[1]["path_b64"]), (&json!("Zv4="), &absolute));
    let given = |rest: Value| {
        let mut args = c(rest);
        args["path"] = json!({"b64": entries[1]["path_b64"]});
        args
    };
    assert_eq!(server.data("sandbox_read_file", given(json!({})))["content"], "x");
    let exists = server.data("sandbox_exists", given(json!({})));
    assert_eq!((&exists["exists"], &exists["path_b64"]), (&json!(true), &absolute));
    let info = server.data("sandbox_file_info", given(json!({})));
    assert_eq!((&info["name_b64"], &info["size"]), (&json!("Zv4="), &json!(1)), "{info:#}");
    let enveloped = server.data("sandbox_filesystem", given(json!({"operation": "read"})));
    assert_eq!(enveloped["data"]["content"], "x");
    let found = server.data("sandbox_glob", c(json!({"path": folder, "pattern": "*"})));
    assert_eq!(found["matches"], json!([named]));
    let found = server.data("sandbox_grep", c(json!({"path": folder, "pattern": "x"})));
    assert_eq!(found["lines"][0]["path_b64"], absolute, "{found:#}");
    // `d\xff/g\xff`, by the tool of its own and by the envelope.
    let copy = on_disk.with_file_name(std::ffi::OsStr::from_bytes(b"g\xff"));
    for tool in ["sandbox_copy", "sandbox_filesystem"] {
        let mut args = json!({"destination": {"b64": "ZP8vZ/8="}});
        if tool == "sandbox_filesystem" {
            args["operation"] = json!("copy");
        }
        let data = server.data(tool, given(args));
        let data = if tool == "sandbox_copy" { &data } else { &data["data"] };
        assert_eq!(data["path_b64"], absolute, "{data:#}");
        assert_eq!(data["destination_b64"], "L3dvcmtzcGFjZS9k/y9n/w==", "{data:#}");
        assert_eq!(std::fs::read(&copy).unwrap(), b"x");
        std::fs::remove_file(&copy).unwrap();
    }
    let deleted = server.data("sandbox_delete", given(json!({})));
    assert_eq!(deleted["path_b64"], absolute);
    assert!(!on_disk.exists());

    // Names that are UTF-8 have no such members, and bytes that are a plain path are that path.
    server.data("sandbox_write_file", c(json!({"path": "plain", "content": "y"})));
    let plain = server.data("sandbox_read_file", c(json!({"path": {"b64": "cGxhaW4="}})));
    assert_eq!(plain, json!({"content": "y", "encoding": "utf8"}));
    let info = server.data("sandbox_file_info", c(json!({"path": {"b64": "cGxhaW4="}})));
    assert!(info.get("path_b64").is_none() && info.get("name_b64").is_none(), "{info:#}");
    let outside = c(json!({"path": {"b64": "Li4v/w=="}}));
    assert_eq!(server.failure("sandbox_read_file", outside).0, "path_escape");
    server.end_well();
}

#[test]
fn a_script_returns_its_result_log_and_files_even_if_it_fails() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let script = "print('hi') io.open('f', 'w'):write('123'):close() return {rows = 3}";
    let answer = server.ask("sandbox_execute_script", c(json!({"script": script})));
    let file = json!({"name": "f", "op": "write", "bytes": 3});
    let expected = json!({"result": {"rows": 3}, "logs": ["hi"], "files_touched": [file]});
    assert_eq!(answer["data"], expected, "{answer:#}");
    assert_eq!(answer["metadata"]["logsTruncated"], false);

    let script = "print('hi') io.open('g', 'w'):close()\nerror('no')";
    let answer = server.ask("sandbox_execute_script", c(json!({"script": script})));
    assert_eq!(answer["error"], "script:2: no");
    let metadata = &answer["metadata"];
    assert_eq!((&metadata["kind"], &metadata["line"]), (&json!("runtime"), &json!(2)));
    assert_eq!((&metadata["result"], &metadata["logs"]), (&Value::Null, &json!(["hi"])));
    assert_eq!(metadata["files_touched"], json!([{"name": "g", "op": "write", "bytes": 0}]));

    let endless = "print('begun') while true do end";
    let timed = |time: Duration| {
        let millis = u64::try_from(time.as_millis()).unwrap();
        server.ask("sandbox_execute_script", c(json!({"script": endless, "timeoutMs": millis})))
    };
    let answer = in_its_time(timed, |answer| answer["metadata"]["logs"] != json!([]));
    assert_eq!(answer["metadata"]["kind"], "timeout", "{answer:#}");
    assert_eq!(answer["metadata"]["logs"], json!(["begun"]));
    assert_eq!(answer["metadata"]["retryable"], false);
    let (kind, message) = server.failure(
        "sandbox_execute_script",
        c(json!({"script": "return 1", "timeoutMs": 3_600_000})),
    );
    assert_eq!(kind, "policy");
    assert!(message.contains("timeoutMs") && message.contains("limits.timeout"), "{message}");
    let none = c(json!({"script": "return 1", "timeoutMs": 0}));
    assert_eq!(server.failure("sandbox_execute_script", none).0, "invalid_request");
    // After any failure: all three exist, and the sandbox still works.
    let answer = server.ask("sandbox_execute_script", json!({"containerId": "d", "script": ""}));
    assert_eq!(answer["error"], "Container 'd' not registered");
    for (key, value) in [("result", Value::Null), ("logs", json!([])), ("files_touched", json!([]))]
    {
        assert_eq!(answer["metadata"].get(key), Some(&value), "{answer:#}");
    }
    let answer = server.data("sandbox_execute_script", c(json!({"script": "return 'on'"})));
    assert_eq!(answer["result"], "on");
    server.end_well();
}

#[test]
fn the_filesystem_tool_returns_a_failed_operation_as_data() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let mut done = |args: Value| server.data("sandbox_filesystem", c(args));
    let none = json!({"bytesWritten": null, "itemsCount": null});
    let wrote = done(json!({"operation": "write", "path": "a", "content": "xyz"}));
    assert_eq!(
        wrote,
        json!({"success": true, "data": {"path": "/workspace/a", "bytesWritten": 3}, "error": null,
            "metadata": {"bytesWritten": 3, "itemsCount": null}})
    );
    let read = done(json!({"operation": "read", "path": "a"}));
    assert_eq!(read["data"], json!({"content": "xyz", "encoding": "utf8"}));
    assert_eq!(read["metadata"], none);
    let made = done(json!({"operation": "createDir", "path": "d"}));
    assert_eq!(made["data"], json!({"path": "/workspace/d", "created": true}));
    let list = done(json!({"operation": "list", "path": "."}));
    assert_eq!(
        (&list["metadata"]["itemsCount"], &list["metadata"]["truncated"]),
        (&json!(2), &json!(false)),
        "{list:#}"
    );
    assert_eq!(done(json!({"operation": "exists", "path": "a"}))["data"]["type"], "file");
    assert_eq!(done(json!({"operation": "info", "path": "a"}))["data"]["size"], 3);
    let gone = done(json!({"operation": "delete", "path": "a"}));
    assert_eq!(gone["data"], json!({"path": "/workspace/a", "deleted": true}));
    let failed = done(json!({"operation": "read", "path": "a"}));
    assert_eq!(
        failed,
        json!({"success": false, "data": null, "error": "a: No such file or directory",
            "metadata": {"bytesWritten": null, "itemsCount": null, "kind": "not_found",
                "retryable": false}})
    );
    // An unknown operation is an error of the call.
    let unknown = json!({"operation": "stat", "containerId": "c", "path": "a"});
    assert_eq!(server.failure("sandbox_filesystem", unknown).0, "invalid_request");
    let unknown = json!({"operation": "read", "containerId": "d", "path": "a"});
    let (_, message) = server.failure("sandbox_filesystem", unknown);
    assert_eq!(message, "Container 'd' not registered");
    server.end_well();
}

#[test]
fn impossible_tool_calls_are_refused_by_name() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    for (tool, args, names) in [
        ("sandbox_exist", json!({}), "unknown tool 'sandbox_exist'"),
        ("sandbox_exists", json!([]), "not an object"),
        ("sandbox_exists", c(json!({})), "`path`"),
        ("sandbox_exists", c(json!({"path": 1})), "`path`"),
        ("sandbox_exists", c(json!({"path": "a", "pth": "b"})), "`pth`"),
        ("sandbox_read_file", c(json!({"path": "a", "encoding": "utf-9"})), "`utf-9`"),
        ("sandbox_read_file", c(json!({"path": "a", "limit": -1})), "`limit`"),
        ("sandbox_destroy", c(json!({"removeContainer": "yes"})), "`removeContainer`"),
        ("sandbox_destroy", json!({"containerId": "d"}), "Container 'd' not registered"),
        ("sandbox_command", c(json!({"executable": "ls"})), "needs one"),
        ("sandbox_command", json!({"containerId": "d", "executable": "ls"}), "not registered"),
        ("sandbox_init", json!({"containerId": "", "projectOutPath": "x"}), "`containerId`"),
        (
            "sandbox_init",
            json!({"containerId": "e", "projectOutPath": "x", "imageName": ""}),
            "`imageName`",
        ),
        (
            "sandbox_init",
            json!({"containerId": "e", "projectOutPath": "x", "rootPath": "/"}),
            "`rootPath`",
        ),
        (
            "sandbox_init",
            json!({"containerId": "e", "projectOutPath": "x", "rootPath": "proc"}),
            "rootPath 'proc'",
        ),
        (
            "sandbox_init",
            json!({"containerId": "e", "projectOutPath": "x", "rootPath": "a/../b"}),
            "rootPath 'a/../b'",
        ),
        ("sandbox_init", json!({"containerId": "e", "projectOutPath": ""}), "projectOutPath"),
        ("sandbox_init", json!({"containerId": "c", "projectOutPath": "x"}), "other arguments"),
    ] {
        let (kind, message) = server.failure(tool, args.clone());
        assert_eq!(kind, "invalid_request", "{tool} {args}: {message}");
        assert!(message.contains(names), "{tool} {args}: {message}");
    }
    // A name that was refused is free.
    let other = json!({"containerId": "e", "projectOutPath": "sandbox-files", "rootPath": "w"});
    server.data("sandbox_init", other);
    let write = json!({"containerId": "e", "path": "/w/a", "content": ""});
    assert_eq!(server.data("sandbox_write_file", write)["path"], "/w/a");
    assert_eq!(place.containers().len(), 2);
    server.end_well();
    assert!(!place.path("x").exists());
}

#[test]
fn a_sandbox_has_its_files_below_an_allowed_directory_wherever_links_lead() {
    let place = Fixture::new();
    let outside = place.home().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(place.path("real")).unwrap();
    symlink(&outside, place.path("away")).unwrap();
    symlink("real", place.path("within")).unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();
    let mut server = Server::new(&place);
    let init = |path: &str| json!({"containerId": "c", "projectOutPath": path});
    let sibling = format!("{}-sibling", place.work().display());
    for path in ["/", "..", "../state", "away", "away/x", "real/../..", &sibling] {
        let (kind, message) = server.failure("sandbox_init", init(path));
        assert_eq!(kind, "policy", "{path}: {message}");
        assert!(message.contains("tools.allowed_out_paths"), "{message}");
    }
    assert_eq!(server.failure("sandbox_init", init("dangling")).0, "invalid_request");
    for path in ["real/a", "within/b", "away/../../work/c", "new/d"] {
        server.data("sandbox_init", init(path));
        server.data("sandbox_write_file", c(json!({"path": "f", "content": path})));
        server.data("sandbox_destroy", c(json!({})));
    }
    server.end_well();
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert_eq!(place.read("real/a/f"), "real/a");
    assert_eq!(place.read("real/b/f"), "within/b");
    assert_eq!(read(place.path("new/d/f").to_str().unwrap()), "new/d");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);

    let mut command = place.command(["tools", "--stdio"]);
    command.env("SANDBOXCTL_TOOLS_ALLOWED_OUT_PATHS", "['real/a']").stdin(Stdio::piped());
    let mut child = crate::fixture::spawn(command);
    let line = |id: &str, path: &str| {
        let args = json!({"containerId": id, "projectOutPath": path});
        format!("{}\n", json!({"id": id, "tool": "sandbox_init", "args": args}))
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all((line("c", "real") + &line("d", "real/ab")).as_bytes()).unwrap();
    drop(stdin);
    let ended = crate::fixture::wait(child);
    assert_eq!(ended.stdout.matches("\"kind\":\"policy\"").count(), 2, "{ended:#?}");
}

#[test]
fn protected_names_are_so_in_the_sandboxes_of_the_tools_and_above_them() {
    let place = Fixture::new();
    std::fs::create_dir_all(place.path(".git/hooks")).unwrap();
    let mut server = Server::with(&place, &["--protect"]);
    let init = |path: &str| json!({"containerId": "c", "projectOutPath": path});
    for path in [".git", ".git/hooks", ".GIT/hooks", "a/.vscode", ".config"] {
        assert_eq!(server.failure("sandbox_init", init(path)).0, "protected", "{path}");
    }
    server.data("sandbox_init", init("."));
    let hook = c(json!({"path": ".git/hooks/pre-commit", "content": "x"}));
    assert_eq!(server.failure("sandbox_write_file", hook).0, "protected");
    let script = c(json!({"script": "fs.write('.bashrc', 'x')"}));
    let (kind, message) = server.failure("sandbox_execute_script", script);
    assert!(kind == "protected" && message.contains("a protected name"), "{kind}: {message}");
    let script = c(json!({"script": "os.rename('proj', 'old')"}));
    std::fs::create_dir_all(place.path("proj/.git")).unwrap();
    assert_eq!(server.failure("sandbox_execute_script", script).0, "protected");
    let delete = c(json!({"path": "proj", "recursive": true}));
    assert_eq!(server.failure("sandbox_delete", delete).0, "protected");
    let alias = c(json!({"path": "proj/GIT~1/config", "content": "x"}));
    assert_eq!(server.failure("sandbox_write_file", alias).0, "protected");
    let delete = c(json!({"path": ".git", "recursive": true}));
    assert_eq!(server.failure("sandbox_delete", delete).0, "protected");
    server.data("sandbox_write_file", c(json!({"path": "a", "content": "x"})));
    server.end_well();
    assert_eq!(place.read("a"), "x");
    assert!(place.path(".git/hooks").read_dir().unwrap().next().is_none());
    assert!(!place.path(".bashrc").exists() && !place.path(".config").exists());
}

#[test]
fn many_inits_of_one_name_make_one_container() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    let ids: Vec<Value> = (0..8).map(|_| server.begin("sandbox_init", init("c"))).collect();
    let other = json!({"containerId": "c", "projectOutPath": "sandbox-files", "rootPath": "w"});
    let refused = server.begin("sandbox_init", other);
    let answers: Vec<Value> = ids.iter().map(|id| server.answer(id)).collect();
    let docker_id = answers[0]["data"]["dockerId"].as_str().expect("it is made").to_owned();
    for answer in &answers {
        assert_eq!(answer["data"]["dockerId"], *docker_id, "{answer:#}");
    }
    let refused = server.answer(&refused);
    assert!(refused["error"].as_str().unwrap().contains("other arguments"), "{refused:#}");
    assert_eq!(place.containers(), [docker_id.as_str()]);
    // The id of the sandbox is the one that lists have, and its container's name.
    let id = answers[0]["data"]["sandboxId"].as_str().unwrap();
    assert_eq!(engine().name_of(&docker_id), Some(format!("sandboxctl-{id}")));
    let listed = place.sandboxctl(["ps", "--quiet"]);
    assert!(listed.assert_code(0).stdout.lines().any(|listed| listed == id), "{listed:#?}");
    assert_eq!(server.init(), docker_id, "it is the same one");
    server.data("sandbox_destroy", c(json!({})));
    assert_ne!(server.init(), docker_id, "it is a new one");
    server.end_well();
}

#[test]
fn a_container_is_gone_when_its_destroy_says_so() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    for remove in [true, false] {
        server.init();
        assert_eq!(place.containers().len(), 1);
        let destroy = || c(json!({"removeContainer": remove}));
        let both = [(); 2].map(|()| server.begin("sandbox_destroy", destroy()));
        for (at, id) in both.iter().enumerate() {
            let answer = server.answer(id);
            let truth = json!({"containerId": "c", "removed": true});
            // The second may be read when the first is done.
            let is_late = at == 1 && answer["error"] == "Container 'c' not registered";
            assert!(is_late || answer["data"] == truth, "{answer:#}");
            assert_eq!(place.containers(), Vec::<String>::new());
        }
        let (_, message) = server.failure("sandbox_destroy", destroy());
        assert_eq!(message, "Container 'c' not registered");
    }
    server.end_well();
}

#[test]
fn the_end_of_stdin_answers_what_came_and_leaves_nothing() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.begin("sandbox_init", init("c"));
    server.begin("sandbox_init", init("d"));
    let script = "local t = os.clock() while os.clock() - t < 0.3 do end return 'done'";
    server.begin("sandbox_execute_script", c(json!({"script": script})));
    server.begin("sandbox_exists", c(json!({"path": "a"})));
    let (code, answers) = server.end();
    assert_eq!((code, answers.len()), (0, 4), "{answers:#?}");
    assert!(answers.iter().all(|answer| answer["type"] == "text"), "{answers:#?}");
    assert!(answers.iter().any(|answer| answer["data"]["result"] == "done"), "{answers:#?}");
}

#[test]
fn a_signal_gives_up_the_calls_and_leaves_nothing() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let place = Fixture::new();
        let mut server = Server::new(&place);
        server.init();
        let script = "io.open('begun', 'w'):close() while true do end";
        server.begin("sandbox_execute_script", c(json!({"script": script})));
        // One that is not up yet.
        server.begin("sandbox_init", init("d"));
        eventually("the script begins", || {
            place.path("sandbox-files/begun").exists().then_some(())
        });
        kill_process(Pid::from_child(&server.child), signal).unwrap();
        assert_eq!(server.wait(), code);
    }
}

#[test]
fn a_program_that_is_gone_takes_its_script_along_though_it_says_nothing() {
    let place = Fixture::new();
    let mut command = place.command(["tools", "--stdio"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let script = "io.open('begun', 'w'):close() while true do end";
    let mut stdin = child.stdin.take().unwrap();
    for (id, tool, args) in [
        (1, "sandbox_init", init("c")),
        (2, "sandbox_execute_script", c(json!({"script": script, "timeoutMs": 600_000}))),
    ] {
        writeln!(stdin, "{}", json!({"id": id, "tool": tool, "args": args})).unwrap();
    }
    eventually("the script begins", || place.path("sandbox-files/begun").exists().then_some(()));
    drop((stdin, child.stdout.take()));
    let ended = eventually("the server ends", || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
    assert_eq!(place.containers(), Vec::<String>::new());
}

#[test]
fn a_server_that_is_killed_leaves_nothing_that_the_next_command_does_not_remove() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut server = Server::new(&place);
    server.init();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(&place).is_empty()).then_some(())
    });
}

#[test]
fn a_cancelled_or_timed_out_script_reports_what_it_did() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let script =
        |name: &str| format!("print('begun') io.open('{name}', 'w'):close() while true do end");
    let id = server.begin("sandbox_execute_script", c(json!({"script": script("one")})));
    eventually("it begins", || place.path("sandbox-files/one").exists().then_some(()));
    // What comes after a script does not wait for it.
    assert_eq!(server.data("sandbox_exists", c(json!({"path": "one"})))["exists"], true);
    server.send(&json!({"cancel": id}).to_string());
    let answer = server.answer(&id);
    let metadata = &answer["metadata"];
    assert_eq!(metadata["kind"], "cancelled", "{answer:#}");
    assert_eq!(metadata["logs"], json!(["begun"]));
    assert_eq!(metadata["files_touched"][0]["name"], "one");

    let timed = |time: Duration| {
        let millis = u64::try_from(time.as_millis()).unwrap();
        let id = format!("two of {millis}");
        let call = json!({"id": id, "tool": "sandbox_execute_script", "timeout_ms": millis,
            "args": c(json!({"script": script("two")}))});
        server.send(&call.to_string());
        server.answer(&json!(id))
    };
    let answer = in_its_time(timed, |answer| answer["metadata"]["logs"] != json!([]));
    assert_eq!(answer["metadata"]["kind"], "timeout", "{answer:#}");
    assert!(answer["error"].as_str().unwrap().contains("timeout_ms"), "{answer:#}");
    assert_eq!(answer["metadata"]["logs"], json!(["begun"]));
    let script = json!({"script": "return 'on'"});
    assert_eq!(server.data("sandbox_execute_script", c(script))["result"], "on");
    server.end_well();
}

#[test]
fn a_burst_of_cancels_leaves_room_for_the_next_script() {
    let place = Fixture::new();
    place.write("sandbox-files/large", vec![b'x'; 9 << 20]);
    let mut server = Server::new(&place);
    server.init();
    for _ in 0..3 {
        let read = || c(json!({"path": "large", "encoding": "base64"}));
        let reads: Vec<Value> =
            (0..32).map(|_| server.begin("sandbox_read_file", read())).collect();
        for id in &reads {
            server.send(&json!({"cancel": id}).to_string());
        }
        let script = server.begin("sandbox_execute_script", c(json!({"script": "return 1"})));
        let answer = server.answer(&script);
        assert_eq!(answer["data"]["result"], 1, "{answer:#}");
        for id in &reads {
            let answer = server.answer(id);
            let kind = &answer["metadata"]["kind"];
            assert!(answer.get("data").is_some() || kind == "cancelled", "{kind}");
        }
    }
    server.end_well();
}

#[test]
fn an_init_that_is_cancelled_leaves_its_name_free() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    let id = server.begin("sandbox_init", init("c"));
    server.send(&json!({"cancel": id}).to_string());
    let answer = server.answer(&id);
    // It may have been up already.
    if answer.get("error").is_some() {
        assert_eq!(answer["metadata"]["kind"], "cancelled", "{answer:#}");
        let other = json!({"containerId": "c", "projectOutPath": "sandbox-files", "rootPath": "w"});
        server.data("sandbox_init", other);
    }
    server.data("sandbox_exists", c(json!({"path": "a"})));
    server.end_well();
}

#[test]
fn a_sandbox_that_ended_by_itself_says_why_and_its_name_is_free() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let containers = place.containers();
    assert_eq!(containers.len(), 1);
    engine().kill(&containers[0]);
    let (kind, message) = eventually("the end is noticed", || {
        let answer = server.ask("sandbox_exists", c(json!({"path": "a"})));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reported = answer.get("error")?;
        Some((text(&answer["metadata"]["kind"]), text(reported)))
    });
    assert_eq!(kind, "agent_lost");
    assert!(message.starts_with("Container 'c' has ended: "), "{message}");
    let (_, message) = server.failure("sandbox_exists", c(json!({"path": "a"})));
    assert_eq!(message, "Container 'c' not registered");
    server.init();
    // A sandbox that was not used since it ended is evicted too.
    let containers: Vec<String> =
        place.containers().into_iter().filter(|container| engine().is_running(container)).collect();
    engine().kill(&containers[0]);
    eventually("it is not running", || (!engine().is_running(&containers[0])).then_some(()));
    eventually("there is a new one", || {
        let data = server.data("sandbox_init", init("c"));
        let answer = server.ask("sandbox_exists", c(json!({"path": "a"})));
        (answer.get("error").is_none() && data["dockerId"] != containers[0]).then_some(())
    });
    server.end_well();
}

#[test]
fn ten_mebibytes_pass_unchanged_and_invalid_lines_get_a_reply() {
    let place = Fixture::new();
    let mut server = Server::new(&place);
    server.init();
    let content: String = (0..10 << 20).map(|n: u32| char::from((n % 95 + 32) as u8)).collect();
    let wrote = server.data("sandbox_write_file", c(json!({"path": "big", "content": content})));
    assert_eq!(wrote["bytesWritten"], 10 << 20);
    server.send("garbage");
    server.send("");
    server.send(r#"{"id": "x", "tool": "sandbox_exists"}"#);
    server.send(r#"{"id": "y", "tool": "sandbox_exists", "args": {}, "extra": 1}"#);
    let read = server.data("sandbox_read_file", c(json!({"path": "big"})));
    assert!(read["content"] == content);
    assert_eq!(server.answer(&Value::Null)["metadata"]["kind"], "invalid_request");
    assert!(server.answer(&json!("x"))["error"].as_str().unwrap().contains("`args`"));
    assert!(server.answer(&json!("y"))["error"].as_str().unwrap().contains("`extra`"));
    let more = content + "x";
    let (kind, _) =
        server.failure("sandbox_write_file", c(json!({"path": "big", "content": more})));
    assert_eq!(kind, "too_large");
    let info = server.data("sandbox_file_info", c(json!({"path": "big"})));
    assert_eq!(info["size"], 10 << 20, "the old file is whole");
    // Longer than any line may be.
    server.stdin.as_mut().unwrap().write_all(&vec![b'x'; (64 << 20) + 1]).unwrap();
    assert_eq!(server.answer(&Value::Null)["metadata"]["kind"], "too_large");
    server.send("");
    server.data("sandbox_exists", c(json!({"path": "big"})));
    server.end_well();
}

#[test]
fn one_call_has_a_sandbox_for_itself_and_its_exit_code() {
    let place = Fixture::new();
    let init = r#"{"containerId": "c", "projectOutPath": "sandbox-files"}"#;
    let document = |args: &[&str], code: i32| -> Value {
        let ended = place.sandboxctl([&["tool"][..], args].concat());
        ended.assert_code(code);
        assert_eq!(ended.stdout.lines().count(), 1, "{ended:#?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let made = document(&["sandbox_init", "--input", init], 0);
    assert!(made["data"]["dockerId"].is_string(), "{made:#}");
    let call = |content: &str| json!({"containerId": "c", "path": "a", "content": content});
    place.write("call.json", call("from a file").to_string());
    let written = document(&["sandbox_write_file", "--init", init, "--input", "@call.json"], 0);
    assert_eq!(written["data"], json!({"path": "/workspace/a", "bytesWritten": 11}));
    assert_eq!(place.read("sandbox-files/a"), "from a file");
    let stdin = call("from stdin").to_string();
    let args = ["tool", "sandbox_write_file", "--init", init, "--input", "-"];
    place.sandboxctl_with(stdin.as_bytes(), args).assert_code(0);
    assert_eq!(place.read("sandbox-files/a"), "from stdin");

    for (args, code, kind) in [
        (
            &[
                "sandbox_read_file",
                "--init",
                init,
                "--input",
                r#"{"containerId": "c", "path": "none"}"#,
            ][..],
            1,
            "not_found",
        ),
        (
            &[
                "sandbox_filesystem",
                "--init",
                init,
                "--input",
                r#"{"operation": "read", "containerId": "c", "path": "none"}"#,
            ],
            1,
            "",
        ),
        (
            &[
                "sandbox_read_file",
                "--init",
                init,
                "--input",
                r#"{"containerId": "c", "path": "../x"}"#,
            ],
            121,
            "path_escape",
        ),
        (
            &[
                "sandbox_read_file",
                "--init",
                init,
                "--input",
                r#"{"containerId": "d", "path": "a"}"#,
            ],
            2,
            "invalid_request",
        ),
        (
            &["sandbox_read_file", "--input", r#"{"containerId": "c", "path": "a"}"#],
            2,
            "invalid_request",
        ),
        (&["sandbox_read_file", "--init", init, "--input", "{"], 2, "usage"),
        (&["sandbox_read_file", "--init", "-", "--input", "-"], 2, "usage"),
        (
            &["sandbox_init", "--input", r#"{"containerId": "c", "projectOutPath": "/"}"#],
            121,
            "policy",
        ),
        (
            &[
                "sandbox_init",
                "--input",
                r#"{"containerId": "c", "projectOutPath": "x"}"#,
                "--memory",
                "1TiB",
            ],
            121,
            "policy",
        ),
        (
            &[
                "sandbox_execute_script",
                "--init",
                init,
                "--input",
                r#"{"containerId": "c", "script": "error('x')"}"#,
            ],
            1,
            "runtime",
        ),
        (
            &[
                "sandbox_execute_script",
                "--init",
                init,
                "--input",
                r#"{"containerId": "c", "script": "while true do end", "timeoutMs": 200}"#,
            ],
            124,
            "timeout",
        ),
    ] {
        let document = document(args, code);
        if !kind.is_empty() {
            assert_eq!(document["metadata"]["kind"], kind, "{args:?}: {document:#}");
            assert!(document["error"].is_string(), "{document:#}");
        }
    }
    place.sandboxctl(["tool", "sandbox_read", "--input", "{}"]).assert_code(2);
    place.sandboxctl(["tools"]).assert_code(2).assert_stderr_has("--stdio");
    let no_files =
        place.command(["tools", "--stdio"]).env("SANDBOXCTL_IO_ENABLED", "false").status();
    assert_eq!(no_files.unwrap().code(), Some(2));
}

#[test]
fn the_tools_are_listed_with_their_schemas() {
    let place = Fixture::new();
    let ended = place.sandboxctl(["tools", "--list"]);
    let listed: Vec<Value> = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
    let names: Vec<&str> = listed.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let page = std::fs::read_to_string(workspace().join("docs/src/reference/tools.md")).unwrap();
    assert_eq!(names.len(), 15);
    for (tool, name) in listed.iter().zip(&names) {
        assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not in the reference");
        assert!(tool["description"].is_string(), "{tool:#}");
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{tool:#}");
        }
    }

    // Data has what its schema says.
    let mut server = Server::new(&place);
    let path = json!({"path": "a"});
    for (tool, args) in [
        ("sandbox_init", json!({"projectOutPath": "sandbox-files"})),
        ("sandbox_write_file", json!({"path": "a", "content": ""})),
        ("sandbox_read_file", path.clone()),
        ("sandbox_exists", json!({"path": "none"})),
        ("sandbox_glob", json!({"pattern": "*"})),
        ("sandbox_grep", json!({"pattern": "x"})),
        ("sandbox_copy", json!({"path": "a", "destination": "copy"})),
        ("sandbox_file_info", path.clone()),
        ("sandbox_delete", path),
        ("sandbox_create_directory", json!({"path": "d"})),
        ("sandbox_list_directory", json!({"path": "."})),
        ("sandbox_execute_script", json!({"script": ""})),
        ("sandbox_filesystem", json!({"operation": "exists", "path": "d"})),
        ("sandbox_destroy", json!({})),
    ] {
        let data = server.data(tool, c(args));
        let schema = &listed.iter().find(|it| it["name"] == tool).unwrap()["outputSchema"];
        let reported: BTreeSet<&str> =
            data.as_object().unwrap().keys().map(String::as_str).collect();
        let required = schema["required"].as_array().unwrap().iter();
        assert_eq!(reported, required.map(|name| name.as_str().unwrap()).collect(), "{tool}");
        // A name in UTF-8 has no `_b64` form.
        let named = schema["properties"].as_object().unwrap().keys().map(String::as_str);
        let named = named
            .filter(|name| !["path_b64", "name_b64", "destination_b64"].contains(name))
            .collect();
        assert_eq!(reported, named, "{tool}");
    }
    server.end_well();
}

#[test]
fn default_encoding_of_the_configuration_is_not_that_of_tools() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "filesystem.default_encoding = 'hex'\n");
    let mut server = Server::new(&place);
    server.init();
    server.data("sandbox_write_file", c(json!({"path": "a", "content": "text"})));
    let read = server.data("sandbox_read_file", c(json!({"path": "a"})));
    assert_eq!(read, json!({"content": "text", "encoding": "utf8"}));
    server.end_well();
}
