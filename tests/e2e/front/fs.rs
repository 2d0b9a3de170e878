//! `sandboxctl fs`: its data, messages, exit codes and notations.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::conformance::fs::{
    all_of, bytes, data, done, envelope, fifo, fs, fs_with, interrupt, left, refused, terminal,
};
use crate::fixture::Fixture;

#[test]
fn footer_of_lines_works_word_for_word() {
    let place = Fixture::new();
    let long = format!("1\n{}\n3\n", "é".repeat(60_000));
    place.write("sandbox-files/a.txt", &long);
    let lines = |given: &str| data(&place, &["read", "a.txt", "--lines", given]);
    let first = lines("1:1");
    let footer = first["footer"].as_str().unwrap();
    assert!(footer.ends_with(" Use --lines 2: to continue.]"), "{footer}");
    let second = lines("2:");
    let footer = second["footer"].as_str().unwrap();
    let reported = " for the rest of it, --lines 3: to continue.]";
    let rest = footer.strip_suffix(reported).unwrap_or_else(|| panic!("{footer}"));
    let rest: Vec<&str> = rest.split_once(" Use ").unwrap().1.split(' ').collect();
    let rest = data(&place, &[&["read", "a.txt"][..], &rest].concat());
    let parts = [&first["text"], &second["text"], &rest["content"]];
    assert!(parts.map(|part| part.as_str().unwrap()).concat() == long);
    assert_eq!(lines("3:")["text"], "3\n");
}

#[test]
fn every_operation_has_its_data_in_an_envelope() {
    let place = Fixture::new();
    assert_eq!(
        data(&place, &["write", "d/a.txt", "--content", "one\ntwo\nthree"]),
        json!({"path": "/io/d/a.txt", "bytes_written": 13, "created": true})
    );
    assert_eq!(
        data(&place, &["read", "d/a.txt", "--offset", "4", "--limit", "3"]),
        json!({"path": "/io/d/a.txt", "content": "two", "encoding": "utf-8", "bytes": 3,
            "mime_type": "text/plain"})
    );
    assert_eq!(
        data(&place, &["read", "d/a.txt", "--lines", "2:2"]),
        json!({"type": "text", "path": "/io/d/a.txt", "text": "two\n", "first_line": 2,
            "output_lines": 1, "total_lines": 3, "truncated": true, "truncated_by": "lines",
            "footer": "[Showing lines 2-2 of 3. Use --lines 3: to continue.]"})
    );
    assert_eq!(
        data(&place, &["edit", "d/a.txt", "--old", "t", "--new", "T", "--count", "2"]),
        json!({"path": "/io/d/a.txt", "replacements": 2})
    );
    let list = data(&place, &["ls", "--recursive"]);
    assert_eq!((&list["path"], &list["truncated"]), (&json!("/io"), &json!(false)));
    let entry = &list["entries"][1];
    assert_eq!(entry["name"], "a.txt");
    assert_eq!(entry["path"], "/io/d/a.txt");
    assert_eq!((&entry["type"], &entry["size"]), (&json!("file"), &json!(13)));
    let modified = entry["modified"].as_str().unwrap();
    assert!(modified.starts_with("20") && modified.ends_with('Z'), "{modified}");
    assert_eq!(data(&place, &["mkdir", "d"]), json!({"path": "/io/d", "created": false}));
    assert_eq!(data(&place, &["touch", "d"]), json!({"path": "/io/d", "created": false}));
    let stat = data(&place, &["stat", "d/a.txt"]);
    assert_eq!(stat["type"], "file");
    assert_eq!((&stat["permissions"], &stat["mode"]), (&json!("rw-r--r--"), &json!("0644")));
    for key in ["size", "uid", "gid", "owner", "group", "modified", "accessed", "created"] {
        assert!(stat.get(key).is_some(), "no {key} in {stat:#}");
    }
    assert_eq!(
        data(&place, &["mv", "d/a.txt", "b.txt"]),
        json!({"from": "/io/d/a.txt", "to": "/io/b.txt"})
    );
    assert_eq!(
        data(&place, &["exists", "b.txt"]),
        json!({"path": "/io/b.txt", "exists": true, "type": "file"})
    );
    let absent = fs(&place, &["exists", "d/a.txt", "--json"]);
    let reported = json!({"path": "/io/d/a.txt", "exists": false, "type": null});
    assert_eq!((absent.code, &envelope(&absent.stdout)["data"]), (1, &reported));
    assert_eq!(
        data(&place, &["rm", "-r", "d"]),
        json!({"path": "/io/d", "removed": true, "entries": 1})
    );
    assert_eq!(
        data(&place, &["rm", "-f", "d"]),
        json!({"path": "/io/d", "removed": false, "entries": 0})
    );
    place.write("host.txt", "host");
    assert_eq!(
        data(&place, &["cp", "host.txt", ":in/"]),
        json!({"from": "host.txt", "to": ":/io/in/host.txt", "bytes": 4})
    );
}

#[test]
fn failures_have_their_kind_and_exit_code() {
    let place = Fixture::new();
    place.write("sandbox-files/file", "text");
    place.write("sandbox-files/other", "text");
    place.write("sandbox-files/full/file", "text");
    place.write("sandbox-files/binary", b"\xff\xfe");
    place.write("input.txt", "input");
    symlink("file", place.path("sandbox-files/link")).unwrap();
    symlink("full", place.path("sandbox-files/linked")).unwrap();
    fifo(&place, "sandbox-files/fifo");
    for (args, code, kind) in [
        (&["read", "none"][..], 1, "not_found"),
        (&["read", "full"], 1, "is_directory"),
        (&["read", "file/x"], 1, "not_a_directory"),
        (&["read", "link"], 1, "symlink"),
        (&["read", "linked/file"], 1, "symlink"),
        (&["read", "fifo"], 1, "special_file"),
        (&["read", "binary", "--encoding", "utf-8"], 1, "encoding"),
        (&["read", "/etc/passwd"], 121, "path_escape"),
        (&["read", "../file"], 121, "path_escape"),
        (&["read", "file", "--lines", "2:"], 2, "invalid_request"),
        (&["read", "file", "--max-file-size", "3B"], 120, "too_large"),
        (&["write", "file", "--content", "x", "--create-new"], 1, "already_exists"),
        (&["write", "new/x", "--content", "x", "--no-parents"], 1, "not_found"),
        (&["write", "full", "--content", "x"], 1, "is_directory"),
        (&["write", "link", "--content", "x"], 1, "symlink"),
        (&["write", "fifo", "--content", "x"], 1, "special_file"),
        (&["write", "file", "--content", "large", "--max-file-size", "4B"], 120, "too_large"),
        (&["write", "file", "--content", "large", "--max-write", "4B"], 120, "write_limit"),
        (&["write", "file", "--content", "g0", "--encoding", "hex"], 1, "encoding"),
        (&["write", "/in/x", "--in", "input.txt:x", "--content", ""], 121, "read_only"),
        (&["write", ".bashrc", "--protect", "--content", ""], 121, "protected"),
        (&["edit", "file", "--old", "none", "--new", ""], 2, "invalid_request"),
        (&["edit", "file", "--old", "t", "--new", ""], 2, "invalid_request"),
        (&["edit", "binary", "--old", "t", "--new", ""], 1, "encoding"),
        (&["ls", "file"], 1, "not_a_directory"),
        (&["mkdir", "file"], 1, "already_exists"),
        (&["rm", "none"], 1, "not_found"),
        (&["rm", "full"], 1, "not_empty"),
        (&["rm", "."], 1, "permission_denied"),
        (&["stat", "none"], 1, "not_found"),
        (&["mv", "file", "other"], 1, "already_exists"),
        (&["mv", "none", "other"], 1, "not_found"),
        (&["cp", ":none", "host"], 1, "not_found"),
        (&["cp", "input.txt", ":../x"], 121, "path_escape"),
        // Neither present nor absent: unknown.
        (&["exists", "linked/file"], 2, "symlink"),
        (&["exists", "link/"], 2, "symlink"),
        (&["exists", "file/"], 2, "not_a_directory"),
        (&["exists", "/etc"], 121, "path_escape"),
    ] {
        refused(&place, args, code, kind);
    }
    assert_eq!(place.read("sandbox-files/file"), "text");
    assert!(!place.path("host").exists());
    assert!(place.path("sandbox-files/full/file").exists());
    let hints = [
        (&["rm", "full"][..], "hint: -r removes"),
        (&["mv", "file", "other"], "hint: -f replaces"),
        (&["read", "file", "--max-file-size", "3B"], "hint: --offset and --limit"),
        (&["read", "binary", "--encoding", "ascii"], "hint: --encoding base64"),
    ];
    for (args, hint) in hints {
        fs(&place, args).assert_stderr_has(hint);
    }
}

#[test]
fn bad_input_names_its_flag_in_text_and_in_json() {
    let place = Fixture::new();
    place.write("big.txt", vec![b'x'; (1 << 20) + 1]);
    place.write("binary", b"\xff");
    for (args, names) in [
        (&["read"][..], "PATH"),
        (&["read", ""], "PATH"),
        (&["read", "a", "b"], "'b'"),
        (&["read", "a", "--lines", "0"], "--lines"),
        (&["read", "a", "--lines", "3:1"], "--lines"),
        (&["read", "a", "--lines", "-1"], "--lines"),
        (&["read", "a", "--lines", "1", "--offset", "1"], "--offset"),
        (&["read", "a", "--offset", "-1"], "--offset"),
        (&["read", "a", "--encoding", "utf-7"], "--encoding"),
        (&["read", "a", "--max-file-size", "many"], "--max-file-size"),
        (&["read", "a", "--timeout", "5x"], "--timeout"),
        (&["write", "a", "--append", "--create-new"], "--create-new"),
        (&["write", "a", "--append", "--in-place"], "--in-place"),
        (&["write", "a", "--in", "-:x"], "--in"),
        (&["edit", "a", "--old", "x"], "--new"),
        (&["edit", "a", "--new", "x"], "--old"),
        (&["edit", "a", "--old", "x", "--new", "y", "--count", "0"], "--count"),
        (&["edit", "a", "--old-file", "none", "--new", "y"], "--old-file"),
        (&["edit", "a", "--old", "x", "--new-file", "big.txt"], "--new-file"),
        (&["edit", "a", "--old-file", "binary", "--new", "y"], "--old-file"),
        (&["ls", "--max-depth", "0", "-R"], "--max-depth"),
        (&["ls", "--max-depth", "2"], "--recursive"),
        (&["ls", "--limit", "0"], "--limit"),
        (&["ls", "--io-dir", "big.txt"], "--io-dir"),
        (&["mv", "a"], "TO"),
        (&["cp", "a", "b"], "TO"),
        (&["cp", "-", "b"], "TO"),
        (&["cp", "none", ":"], "FROM"),
        (&["cp", ".", ":"], "FROM"),
        (&["cp", ":a", "none/b"], "TO"),
        (&["list"], "'list'"),
        (&[], "read"),
    ] {
        let ended = fs(&place, args);
        ended.assert_code(2).assert_stderr_has(names);
        assert_eq!(ended.stdout, "", "{args:?}");
        let ended = fs(&place, &[args, &["--json"]].concat());
        let error = envelope(&ended.assert_code(2).stdout)["error"].take();
        let kind = error["kind"].as_str().unwrap();
        assert!(matches!(kind, "usage" | "config"), "{args:?}: {error:#}");
        let message = error["message"].as_str().unwrap();
        assert!(args.is_empty() || message.contains(names), "{args:?}: {error:#}");
    }
    refused(&place, &["cp", ":a", "b", "--max-file-size", "2GiB"], 121, "policy");
    let taken = fs(&place, &["cp", ":a", "-", "--json"]);
    assert_eq!(envelope(&taken.assert_code(2).stdout)["error"]["kind"], "usage");
    let nowhere = ["ls", "--json", "--engine", "docker", "--host", "unix:///nowhere.sock"];
    let ended = fs(&place, &nowhere);
    assert_eq!(envelope(&ended.assert_code(125).stdout)["error"]["kind"], "engine");
    assert!(!place.path("sandbox-files").exists());
}

#[test]
fn lines_are_read_with_their_ends_byte_for_byte() {
    let place = Fixture::new();
    place.write("sandbox-files/a", b"one\r\ntwo\n\xff\xfe\n\nlast");
    for (lines, taken) in [
        ("1", &b"one\r\n"[..]),
        ("2:3", b"two\n\xff\xfe\n"),
        ("3:", b"\xff\xfe\n\nlast"),
        (":2", b"one\r\ntwo\n"),
        ("5:9", b"last"),
    ] {
        assert_eq!(bytes(&place, &["read", "a", "--lines", lines]), taken, "{lines}");
    }
    let error = refused(&place, &["read", "a", "--lines", "6"], 2, "invalid_request");
    assert!(error.contains("line 6 is past the end of the file (5 lines)"), "{error}");
    // More than a view shows: `--lines` has no such bound.
    let many: String = (1..=100_000).map(|line| format!("line {line}\n")).collect();
    place.write("sandbox-files/many", &many);
    assert!(bytes(&place, &["read", "many", "--lines", "1:"]) == many.as_bytes());
    assert_eq!(bytes(&place, &["read", "many", "--lines", "99999"]), b"line 99999\n");
    let view = data(&place, &["read", "many", "--lines", "1:"]);
    assert_eq!((&view["output_lines"], &view["total_lines"]), (&json!(2000), &json!(100_000)));
}

#[test]
fn content_is_written_and_read_in_encodings() {
    let place = Fixture::new();
    for (encoding, text, bytes) in [
        ("utf-8", "é\n", "é\n".as_bytes()),
        ("utf8", "é", "é".as_bytes()),
        ("base64", "AP8=", b"\0\xff"),
        ("hex", "00ff", b"\0\xff"),
        ("latin1", "é", b"\xe9"),
        ("utf-16le", "é", b"\xe9\0"),
        ("utf-16be", "é", b"\0\xe9"),
        ("ascii", "e", b"e"),
    ] {
        let encoded = ["--encoding", encoding];
        done(&place, &[&["write", "a", "--content", text], &encoded[..]].concat());
        assert_eq!(std::fs::read(place.path("sandbox-files/a")).unwrap(), bytes, "{encoding}");
        assert_eq!(done(&place, &[&["read", "a"], &encoded[..]].concat()), text, "{encoding}");
        fs_with(&place, text.as_bytes(), &[&["write", "b"], &encoded[..]].concat()).assert_code(0);
        assert_eq!(std::fs::read(place.path("sandbox-files/b")).unwrap(), bytes, "{encoding}");
    }
    // As programs write it: in lines, with an end.
    fs_with(&place, b"AP8A\n/wD/\n", &["write", "b", "--encoding", "base64"]).assert_code(0);
    assert_eq!(std::fs::read(place.path("sandbox-files/b")).unwrap(), b"\0\xff\0\xff\0\xff");
    for (input, encoding) in [(&b"\xff"[..], "utf-8"), (b"A", "base64"), ("é".as_bytes(), "ascii")]
    {
        let ended = fs_with(&place, input, &["write", "b", "--encoding", encoding, "--json"]);
        assert_eq!(envelope(&ended.assert_code(1).stdout)["error"]["kind"], "encoding");
    }
    assert_eq!(std::fs::read(place.path("sandbox-files/b")).unwrap(), b"\0\xff\0\xff\0\xff");
}

#[test]
fn writes_append_refuse_or_go_into_the_file_that_is_there() {
    let place = Fixture::new();
    let file = place.write("sandbox-files/a", "one ");
    std::fs::hard_link(&file, place.path("sandbox-files/b")).unwrap();
    done(&place, &["write", "a", "--content", "two ", "--append"]);
    assert_eq!(place.read("sandbox-files/b"), "one two ");
    done(&place, &["write", "a", "--content", "in", "--in-place"]);
    assert_eq!(place.read("sandbox-files/b"), "in");
    done(&place, &["write", "a", "--content", "new"]);
    assert_eq!(place.read("sandbox-files/b"), "in", "a new file took the place of one name");
    done(&place, &["write", "c", "--content", "", "--create-new"]);
    assert_eq!(left(&place), ["a", "b", "c"]);
    fs_with(&place, b"more", &["write", "a", "--append"]).assert_code(0);
    assert_eq!(place.read("sandbox-files/a"), "newmore");
}

#[test]
fn a_list_is_capped_and_says_so() {
    let place = Fixture::new();
    for index in 0..10_001 {
        place.write(&format!("sandbox-files/many/{index:05}"), "");
    }
    place.write("sandbox-files/deep/a/b/c", "");
    let ended = fs(&place, &["ls", "many"]);
    ended.assert_code(0).assert_stderr_has("warning: only 10000 entries are shown");
    assert_eq!(ended.stdout.lines().count(), 10_000);
    assert!(ended.stdout.ends_with("09999\n"));
    let list = data(&place, &["ls", "many"]);
    assert_eq!(
        (&list["truncated"], list["entries"].as_array().unwrap().len()),
        (&json!(true), 10_000)
    );
    let ended = fs(&place, &["ls", "many", "--limit", "2"]);
    ended.assert_code(0).assert_stderr_has("warning: only 2 entries");
    assert_eq!(ended.stdout, "00000\n00001\n");
    assert_eq!(fs(&place, &["ls", "many", "--limit", "2", "--quiet"]).stderr, "");
    assert_eq!(done(&place, &["ls", "deep", "-R", "--max-depth", "2"]), "a\na/b\n");
    assert_eq!(done(&place, &["ls", "deep", "-R"]), "a\na/b\na/b/c\n");
}

#[test]
fn a_batch_is_done_in_order_in_one_sandbox() {
    let place = Fixture::new();
    let operations = [
        json!({"operation": "write", "path": "a", "content": "one", "mode": "create_new"}),
        json!({"operation": "write", "path": "a", "content": "AP8=", "encoding": "base64",
            "mode": "append"}),
        json!({"operation": "read", "path": "a", "encoding": "hex"}),
        json!({"operation": "view", "path": "b", "lines": {"offset": 1, "limit": 1}}),
        json!({"operation": "write", "path": "b", "content": "1\n2\n", "parents": false}),
        json!({"operation": "view", "path": "b", "lines": {"offset": 2}}),
        json!({"operation": "edit", "path": "b", "old": "1", "new": "3", "count": 1}),
        json!({"operation": "rename", "from": "b", "to": "d/c"}),
        json!({"operation": "mkdir", "path": "d"}),
        json!({"operation": "rename", "from": "b", "to": "d/c", "overwrite": true}),
        json!({"operation": "exists", "path": "d/c"}),
        json!({"operation": "stat", "path": "d"}),
        json!({"operation": "list", "recursive": true}),
        json!({"operation": "remove", "path": "d", "recursive": true}),
        json!({"operation": "remove", "path": "d", "force": true}),
    ];
    let lines: String = operations.iter().map(|operation| format!("{operation}\n\n")).collect();
    // Some shells write a byte-order mark.
    let lines = format!("\u{feff}{lines}");
    let ended = fs_with(&place, lines.as_bytes(), &["batch", "--keep-going"]);
    // The first that fails says how it ends.
    ended.assert_code(1);
    assert_eq!(ended.stderr, "");
    let results: Vec<Value> = ended.stdout.lines().map(envelope).collect();
    let outcomes: Vec<&str> =
        results.iter().map(|result| result["error"]["kind"].as_str().unwrap_or("ok")).collect();
    let expected = [
        "ok", "ok", "ok", "not_found", "ok", "ok", "ok", "not_found", "ok", "ok", "ok", "ok", "ok",
        "ok", "ok",
    ];
    assert_eq!(outcomes, expected, "{ended:#?}");
    assert_eq!(results[2]["data"]["content"], "6f6e6500ff");
    assert_eq!(results[5]["data"]["text"], "2\n");
    assert_eq!(results[12]["data"]["entries"].as_array().unwrap().len(), 3);
    assert_eq!(results[13]["data"]["entries"], 2);
    assert_eq!(std::fs::read(place.path("sandbox-files/a")).unwrap(), b"one\0\xff");

    place.write("operations.ndjson", &lines);
    let ended = fs(&place, &["batch", "operations.ndjson"]);
    assert_eq!((ended.code, ended.stdout.lines().count()), (1, 1), "{ended:#?}");
    assert_eq!(fs_with(&place, b"", &["batch"]).assert_code(0).stdout, "");
}

#[test]
fn invalid_batch_operation_names_its_line_and_error() {
    let place = Fixture::new();
    let lines = [
        (
            &br#"{"operation":"read","path":"a","follow":true}"#[..],
            "line 1: read: follow: unknown field `follow`",
        ),
        (br#"{"operation":"read","path":1}"#, "line 2: read: path: invalid type"),
        (br#"{"operation":"read","path":"a","encoding":"utf-7"}"#, "unknown encoding 'utf-7'"),
        (br#"{"operation":"chown","path":"a"}"#, "line 4: unknown operation 'chown'"),
        (br#"{"path":"a"}"#, "line 5: missing field `operation`"),
        (br#"["read"]"#, "line 6: not a JSON object"),
        (b"\xff", "line 7: it is not UTF-8 text"),
        (b"{", "line 8: not a JSON object"),
    ];
    let mut input: Vec<u8> =
        lines.iter().flat_map(|(line, _)| [line, &b"\n"[..]].concat()).collect();
    input.extend_from_slice(br#"{"operation":"exists","path":"a"}"#);
    let ended = fs_with(&place, &input, &["batch", "--keep-going"]);
    ended.assert_code(2);
    let results: Vec<Value> = ended.stdout.lines().map(envelope).collect();
    assert_eq!(results.len(), 9, "{ended:#?}");
    for ((_, part), result) in lines.iter().zip(&results) {
        assert_eq!(result["error"]["kind"], "invalid_request");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}: no {part}");
    }
    assert_eq!(results[8]["success"], true);

    // A line that is too long is skipped in bounded memory; the lines after it are executed.
    let mut long = vec![b' '; (64 << 20) + 1];
    long.extend_from_slice(b"\n{\"operation\":\"exists\",\"path\":\"a\"}\n");
    let ended = fs_with(&place, &long, &["batch", "--keep-going"]);
    ended.assert_code(2);
    let results: Vec<Value> = ended.stdout.lines().map(envelope).collect();
    assert_eq!(results.len(), 2, "{ended:#?}");
    assert!(results[0]["error"]["message"].as_str().unwrap().contains("line 1: it is longer than"));
}

#[test]
fn a_batch_answers_each_line_when_it_comes_and_ctrl_c_has_an_envelope() {
    let place = Fixture::new();
    let mut command = place.command(["fs", "batch"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut answer = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        envelope(&line)
    };
    for index in 0..3 {
        let operation = json!({"operation": "write", "path": "a", "content": index.to_string()});
        writeln!(stdin, "{operation}").unwrap();
        assert_eq!(answer()["success"], true);
        assert_eq!(place.read("sandbox-files/a"), index.to_string());
    }
    interrupt(&child);
    assert_eq!(answer()["error"]["kind"], "cancelled");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn batch_whose_reader_is_gone_ends_and_what_it_did_stays() {
    let place = Fixture::new();
    // It waits for the next line, or has one more to answer.
    for has_more in [false, true] {
        let mut command = place.command(["fs", "batch"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let content = has_more.to_string();
        let operation = json!({"operation": "write", "path": "a", "content": content});
        writeln!(stdin, "{operation}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(envelope(&line)["success"], true);
        drop(stdout);
        if has_more {
            // It may have ended before.
            _ = writeln!(stdin, "{operation}");
        }
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), &*ended.stderr), (Some(141), &b""[..]));
        assert_eq!(place.read("sandbox-files/a"), content);
        drop(stdin);
    }
}

#[test]
fn a_terminal_shows_control_characters_and_does_not_obey_them() {
    let place = Fixture::new();
    place.write("sandbox-files/evil\x1b[2Jname", "one\n\x1b]0;title\x07é\u{202e}");
    for args in [
        &["read", "evil\x1b[2Jname"][..],
        &["read", "evil\x1b[2Jname", "--lines", "1:"],
        &["read", "evil\x1b[2Jname", "--encoding", "utf-8"],
        &["ls"],
        &["ls", "-l"],
        &["stat", "evil\x1b[2Jname"],
        &["cp", ":evil\x1b[2Jname", "-"],
        &["ls", "--json"],
    ] {
        let (shown, side) = terminal();
        let mut command = place.command(["fs"].iter().chain(args));
        let mut child = command.stdout(side).spawn().unwrap();
        // Its own copy of the terminal's side.
        drop(command);
        let shown = all_of(shown);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}: {shown:?}");
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{args:?}: {shown:?}");
        assert!(shown.contains("u{1b}") || shown.contains("u001b"), "{args:?}: {shown:?}");
    }
}
