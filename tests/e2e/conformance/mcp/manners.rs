//! The usual mistakes of AI agents, and the replies: every hint and every footer works when it is
//! followed.

use super::*;

impl Client {
    /// Sends a line that is no message.
    fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    /// The text of a call that succeeds.
    #[track_caller]
    fn text(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result:#}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// What stands in a text between two others.
#[track_caller]
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).map(|(_, rest)| rest);
    let found = rest.and_then(|rest| rest.split_once(after)).map(|(found, _)| found);
    found.unwrap_or_else(|| panic!("nothing between '{before}' and '{after}': {text:.300}"))
}

/// The arguments that a hint gives in backticks.
#[track_caller]
fn hinted(text: &str, base: Value) -> Value {
    let (_, hint) = text.split_once("\nhint: ").unwrap_or_else(|| panic!("no hint: {text}"));
    let mut arguments = base;
    let given = between(hint, "`", "`");
    let (name, value) = given.split_once(": ").unwrap_or_else(|| panic!("no argument: {hint}"));
    arguments[name] = serde_json::from_str(value).unwrap_or_else(|_| panic!("no value: {hint}"));
    arguments
}

#[test]
fn request_that_cannot_be_read_is_answered_with_its_id() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--no-io", "--pool", "0"]);
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let long = format!("\"{}\"", "x".repeat(17 << 20));
    for (at, content) in [r#""\ud83d""#, &nested, "1e999", &long].into_iter().enumerate() {
        let params = format!(r#"{{"name":"execute_script","arguments":{{"script":{content}}}}}"#);
        let head = format!(r#""jsonrpc":"2.0","id":{}"#, 1000 + 2 * at);
        client.send_line(&format!(r#"{{{head},"method":"tools/call","params":{params}}}"#));
        let tail = format!(r#""jsonrpc":"2.0","id":{}"#, 1001 + 2 * at);
        client.send_line(&format!(r#"{{"method":"tools/call","params":{params},{tail}}}"#));
        for id in [1000 + 2 * at, 1001 + 2 * at] {
            let refused = client.answer(id as u64);
            let expected = if at == 3 { -32600 } else { -32700 };
            assert_eq!(refused["error"]["code"], expected, "{refused:.300}");
        }
    }
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    client.end();
}

#[test]
fn footers_of_read_file_work_word_for_word() {
    let place = Fixture::new();
    let lines: String = (1..=4500).map(|number| format!("line {number}\n")).collect();
    place.write("out/lines.txt", &lines);
    let long = format!("first\n{}\nlast\n", "é".repeat(60_000));
    place.write("out/long.txt", &long);
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let (mut all, mut arguments) = (String::new(), json!({ "path": "lines.txt" }));
    loop {
        let text = client.text("read_file", arguments.clone());
        let Some((part, footer)) = text.split_once("[Showing lines ") else {
            all.push_str(&text);
            break;
        };
        all.push_str(part);
        let next = between(footer, " Use lines=", " to continue.]");
        arguments["lines"] = serde_json::from_str(next).unwrap();
    }
    assert!(all == lines);

    let from = json!({ "path": "long.txt", "lines": { "offset": 2 } });
    let text = client.text("read_file", from);
    let (part, footer) = text.split_once("\n[Showing the first ").unwrap();
    let encoding = between(footer, "Use read with encoding=", ", offset=");
    let offset = between(footer, ", offset=", " for the rest of it");
    let arguments = json!({
        "path": "long.txt",
        "encoding": serde_json::from_str::<Value>(encoding).unwrap(),
        "offset": offset.parse::<u64>().unwrap(),
    });
    let rest = client.data("read_file", arguments);
    assert!(format!("first\n{part}{}", rest["content"].as_str().unwrap()) == long);
    let next = between(footer, ", lines=", " to continue.]");
    let next = json!({ "path": "long.txt", "lines": serde_json::from_str::<Value>(next).unwrap() });
    assert_eq!(client.text("read_file", next), "last\n");
    client.end();
}

#[test]
fn hints_of_file_tools_work_word_for_word() {
    let place = Fixture::new();
    place.write("out/bytes", b"\x7fELF\x02\x01\0\0\0\0\xff");
    let text = "name;Größe\r\nÄpfel;3\r\n";
    let of_units =
        |unit: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(unit).collect::<Vec<u8>>();
    place.write("out/le.csv", of_units(u16::to_le_bytes));
    place.write("out/be.csv", of_units(u16::to_be_bytes));
    let latin1: Vec<u8> = text.chars().map(|character| character as u8).collect();
    place.write("out/latin1.csv", &latin1);
    place.write("out/large.txt", "x".repeat(11 << 20));
    place.write("out/dir/a", "x");
    // As macOS writes it.
    place.write("out/Gro\u{308}ße/Ä.txt", "found");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);

    for (name, encoding, reported) in [
        ("bytes", "base64", "it is not text"),
        ("le.csv", "utf-16le", "it is UTF-16"),
        ("be.csv", "utf-16be", "it is UTF-16"),
        ("latin1.csv", "latin1", "such as Latin-1"),
    ] {
        let path = json!({ "path": name });
        let failure = client.failure("read_file", path.clone());
        assert!(failure.contains(reported), "{failure}");
        let arguments = hinted(&failure, path);
        assert_eq!(arguments["encoding"], encoding, "{failure}");
        let read = client.data("read_file", arguments);
        assert_eq!(read["content"] == text, name != "bytes", "{read:#}");
        // An edit takes UTF-8 alone, and says how it is done in two calls.
        let edit = json!({ "path": name, "old": "3", "new": "4" });
        let failure = client.failure("edit_file", edit);
        assert!(failure.contains("read_file and write_file"), "{failure}");
        let mut write = hinted(&failure, json!({ "path": name }));
        write["content"] = read["content"].as_str().unwrap().replace(";3", ";4").into();
        client.data("write_file", write);
    }
    let edited: Vec<u8> =
        text.replace(";3", ";4").chars().map(|character| character as u8).collect();
    assert_eq!(std::fs::read(place.path("out/latin1.csv")).unwrap(), edited);

    // The name as people write it.
    let composed = json!({ "path": "Größe/Ä.txt" });
    let failure = client.failure("read_file", composed.clone());
    assert!(failure.contains("another Unicode normalisation"), "{failure}");
    assert_eq!(client.text("read_file", hinted(&failure, composed)), "found");
    let from = json!({ "from": "/io/Größe/Ä.txt", "to": "b.txt" });
    let failure = client.failure("copy", from.clone());
    client.data("copy", hinted(&failure, from));
    assert_eq!(place.read("out/b.txt"), "found");

    let copy = json!({ "from": "dir", "to": "other" });
    let failure = client.failure("copy", copy.clone());
    client.data("copy", hinted(&failure, copy));
    assert_eq!(place.read("out/other/a"), "x");
    let remove = json!({ "path": "dir" });
    let failure = client.failure("remove", remove);
    assert!(failure.contains("hint: `recursive` removes"), "{failure}");
    client.data("remove", json!({ "path": "dir", "recursive": true }));
    let failure = client.failure("read_file", json!({ "path": "other" }));
    assert!(failure.contains("hint: list_directory shows"), "{failure}");
    assert_eq!(
        client.data("list_directory", json!({ "path": "other" }))["entries"][0]["name"],
        "a"
    );

    // Too large to be seen, and too large for a resource.
    let failure = client.failure("read_file", json!({ "path": "large.txt", "encoding": "utf-8" }));
    assert!(failure.contains("`offset` and `limit`"), "{failure}");
    let part = json!({ "path": "large.txt", "encoding": "utf-8", "offset": 5, "limit": 7 });
    assert_eq!(client.data("read_file", part)["content"], "xxxxxxx");
    let refused = client.ask("resources/read", json!({ "uri": "sandbox:///io/large.txt" }));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("execute_script all of it"), "{message}");
    let slow = json!({ "script": "while true do end", "timeout_ms": 50 });
    let failure = client.failure("execute_script", slow);
    assert!(failure.contains("hint: `timeout_ms` gives it more time"), "{failure}");
    client.end();
}

#[test]
fn paths_and_words_that_models_write_are_understood() {
    let place = Fixture::new();
    place.write("out/a b.txt", "x");
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let flags: Vec<&str> = root.iter().map(String::as_str).collect();
    let mut client =
        Client::new(&place, &[&flags[..], &["--io-dir", "out", "--pool", "0"]].concat());
    for path in ["sandbox:///io/a%20b.txt", "io/a b.txt", "/io/a b.txt", "a b.txt"] {
        assert_eq!(client.text("read_file", json!({ "path": path })), "x", "{path}");
    }
    client.data("copy", json!({ "from": "sandbox:///io/a%20b.txt", "to": "io/sub/c.txt" }));
    assert_eq!(place.read("out/sub/c.txt"), "x");
    let listed = client.data("exec", json!({ "program": "ls", "cwd": "io/sub" }));
    assert_eq!(listed["stdout"], "c.txt\n");
    // What is there has its name.
    client.data("write_file", json!({ "path": "/io/io/own.txt", "content": "own" }));
    assert_eq!(client.text("read_file", json!({ "path": "io/own.txt" })), "own");

    for arguments in [
        json!({ "command": "echo $((1 + 1))" }),
        json!({ "cmd": "echo 2", "args": [] }),
        json!({ "command": ["echo", "2"] }),
        json!({ "command": "echo", "args": ["2"] }),
    ] {
        assert_eq!(client.data("exec", arguments.clone())["stdout"], "2\n", "{arguments}");
    }
    let data = client.data("execute_script", json!({ "code": "return 1 + 1" }));
    assert_eq!(data["result"], 2);
    for script in ["import os\nprint(os.getcwd())", "x = 1\nfor i in range(3):\n    print(i)"] {
        let failure = client.failure("execute_script", json!({ "code": script }));
        assert!(failure.contains("looks like Python, and scripts are Luau: `exec`"), "{failure}");
    }
    client.end();
}

#[test]
fn edit_keeps_the_line_ends_of_a_file() {
    let place = Fixture::new();
    place.write("out/crlf.txt", "one\r\ntwo\r\nthree\r\n");
    place.write("out/mixed.txt", "one\r\ntwo\nthree\n");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let edit = |path: &str| json!({ "path": path, "old": "one\ntwo\n", "new": "1\n2\n" });
    client.data("edit_file", edit("crlf.txt"));
    assert_eq!(place.read("out/crlf.txt"), "1\r\n2\r\nthree\r\n");
    let failure = client.failure("edit_file", edit("mixed.txt"));
    assert!(failure.contains("some of its lines end with CRLF"), "{failure}");
    client.end();
}
