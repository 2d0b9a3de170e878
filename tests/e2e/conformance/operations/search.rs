//! `glob`, `grep` and `copy` through the library, scripts, the command line and the tools.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sandbox_api::operation::{Copy, Glob, Grep};
use sandbox_api::{Limits, Outcome, Script};
use serde_json::{Value, json};

use crate::library::{Guest, kind_of};

/// A small project.
fn guest() -> Guest {
    let guest = Guest::new();
    for (name, content) in [
        ("src/main.rs", "fn main() {\n    todo();\n}\n"),
        ("src/lib/a.rs", "// TODO: all\nfn a() {}\n"),
        ("src/.cache/b.rs", "todo\n"),
        ("notes.txt", "todo\nno\ntodo\n"),
        ("image.bin", "todo\0\ntodo"),
    ] {
        guest.place.write(&format!("sandbox-files/{name}"), content);
    }
    guest
}

#[test]
fn search_and_copy_give_the_same_data_typed_and_as_json() {
    let guest = guest();
    let sandbox = &guest.sandbox;
    let found = guest.wait(sandbox.glob(Glob::new("src/**/*.rs"))).unwrap();
    let data = guest.data(json!({"operation": "glob", "pattern": "src/**/*.rs"}));
    assert_eq!(data, serde_json::to_value(&found).unwrap());
    assert_eq!(
        data,
        json!({
            "path": "/io/src",
            "matches": [
                {"name": "src/lib/a.rs", "path": "/io/src/lib/a.rs"},
                {"name": "src/main.rs", "path": "/io/src/main.rs"},
            ],
            "truncated": false,
        })
    );
    let absolute = guest.data(json!({"operation": "glob", "pattern": "/io/src/*", "path": "src"}));
    assert_eq!(absolute["matches"][0]["name"], "/io/src/lib");
    for home in ["/io", "~"] {
        let itself = guest.data(json!({"operation": "glob", "pattern": home, "path": "src"}));
        assert_eq!(itself["matches"], json!([{"name": home, "path": "/io"}]), "{home}");
    }
    let none = guest.data(json!({"operation": "exists", "path": "/in/none"}));
    assert_eq!(none["exists"], false);
    for pattern in ["/in/none/*", "/in/none"] {
        let none = guest.data(json!({"operation": "glob", "pattern": pattern}));
        assert_eq!(none["matches"], json!([]), "{pattern}");
    }
    let grep = Grep { path: "src".into(), ignore_case: true, context: 1, ..Grep::new("todo") };
    let found = guest.wait(sandbox.grep(grep)).unwrap();
    let data = guest.data(json!({
        "operation": "grep", "pattern": "todo", "path": "src", "ignore_case": true, "context": 1,
    }));
    assert_eq!(data, serde_json::to_value(&found).unwrap());
    assert_eq!((&data["matches"], &data["files"]), (&json!(2), &json!(2)));
    assert_eq!(
        data["lines"][0],
        json!({"name": "src/lib/a.rs", "path": "/io/src/lib/a.rs", "line": 1, "text": "// TODO: all"})
    );
    assert_eq!(
        (&data["lines"][1]["line"], &data["lines"][1]["context"]),
        (&json!(2), &json!(true))
    );
    let one = guest.data(json!({"operation": "grep", "pattern": "todo", "limit": 1}));
    assert_eq!((&one["matches"], &one["truncated"]), (&json!(1), &json!(true)));
    let copy = Copy { recursive: true, ..Copy::new("src", "copy") };
    let copied = guest.wait(sandbox.call(copy)).unwrap();
    assert_eq!((copied.entries, copied.to), (6, "/io/copy".into()));
    assert_eq!(guest.place.read("sandbox-files/copy/lib/a.rs"), "// TODO: all\nfn a() {}\n");
    let again = json!({"operation": "copy", "from": "src", "to": "copy", "recursive": true});
    assert_eq!(guest.kind(again.clone()), "already_exists");
    for (operation, kind) in [
        (json!({"operation": "copy", "from": "src", "to": "x"}), "is_directory"),
        (json!({"operation": "glob", "pattern": "["}), "invalid_request"),
        (json!({"operation": "glob", "pattern": "../*"}), "path_escape"),
        (json!({"operation": "glob", "pattern": "/etc/*"}), "path_escape"),
        (json!({"operation": "grep", "pattern": "("}), "invalid_request"),
        (json!({"operation": "grep", "pattern": "(".repeat(200)}), "invalid_request"),
        (json!({"operation": "grep", "pattern": "x", "path": "none"}), "not_found"),
    ] {
        assert_eq!(guest.kind(operation.clone()), kind, "{operation}");
    }
    let gone = guest.wait(sandbox.grep(Grep { path: "none".into(), ..Grep::new("x") }));
    assert_eq!(kind_of(gone), "not_found");
}

#[test]
fn search_goes_as_deep_as_paths_and_leaves_out_what_is_excluded() {
    let guest = Guest::new();
    let above = "io/services/order/src/main/java/com/example/shop/order";
    let deep = format!("{above}/domain/Order.java");
    for name in [&*deep, "node_modules/p/Order.java", ".git/Order.java"] {
        guest.place.write(&format!("sandbox-files/{name}"), "class Order{}\n");
    }
    let fs = |args: &[&str]| guest.place.sandboxctl(["fs"].iter().chain(args));
    let line = format!("{deep}:1:class Order{{}}\n");
    let found = fs(&["grep", "--hidden", "Order", "-g", "!node_modules/**"]);
    assert_eq!((&*found.assert_code(0).stdout, found.stderr.contains("warning")), (&*line, false));
    let found = fs(&["glob", "**/*.java", "-g", "!node_modules"]);
    assert_eq!((&*found.assert_code(0).stdout, &*found.stderr), (&*format!("{deep}\n"), ""));
    let none = ["grep", "Order", "-g", "*.java", "-g", "!io/**", "-g", "!node_modules/"];
    assert_eq!(fs(&none).assert_code(1).stdout, "");
    let git = fs(&["grep", "Order", ".git"]);
    assert_eq!(git.assert_code(0).stdout, ".git/Order.java:1:class Order{}\n");
    for operation in [
        json!({"operation": "grep", "pattern": "Order", "exclude": ["node_modules/**"]}),
        json!({"operation": "grep", "pattern": "Order", "glob": "!node_modules/**"}),
        json!({"operation": "glob", "pattern": "io/**/*.java", "exclude": ["!target", "io/x/**"]}),
    ] {
        let found = guest.data(operation.clone());
        assert_eq!((&found["truncated"], &found["note"]), (&json!(false), &Value::Null));
        let first =
            if operation["operation"] == "grep" { &found["lines"] } else { &found["matches"] };
        assert_eq!((first.as_array().unwrap().len(), &first[0]["name"]), (1, &json!(deep)));
    }
    let glob = json!({"operation": "glob", "pattern": "io/**", "exclude": ["io/services/**"]});
    assert_eq!(guest.data(glob)["matches"].as_array().unwrap().len(), 1);
    let source = "local paths = fs.glob('**/*.java', {exclude = 'node_modules'}) \
                  local lines = fs.grep('Order', nil, {exclude = {'node_modules/**'}}) \
                  return {#paths, paths[1], #lines}";
    let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
    let Outcome::Ok { result } = &run.outcome else { panic!("{run:?}") };
    assert_eq!(serde_json::from_str::<Value>(result.get()).unwrap(), json!([1, deep, 1]));
    // Only lists are bounded in depth: they name the depth and the key.
    let note =
        format!("what is in '{above}' is deeper than 10, and left out (filesystem.max_depth)");
    let listed = guest.data(json!({"operation": "list", "recursive": true}));
    assert_eq!((&listed["truncated"], &listed["note"]), (&json!(true), &json!(note)));
    fs(&["ls", "-R"]).assert_code(0).assert_stderr_has(&format!("entries are shown: {note}"));
    let one = guest.data(json!({"operation": "grep", "pattern": "Order", "limit": 1}));
    let note = format!("the limit of 1 was reached at '{deep}'");
    assert_eq!(
        (&one["lines"][0]["name"], &one["note"]),
        (&json!("node_modules/p/Order.java"), &json!(note))
    );
    let copy = Copy { recursive: true, ..Copy::new("io", "copy") };
    assert_eq!(guest.wait(guest.sandbox.call(copy)).unwrap().entries, 12);
}

#[test]
fn directory_that_cannot_be_read_is_left_out_of_a_search() {
    let guest = guest();
    let closed = guest.place.path("sandbox-files/src/lib");
    // Without reading, and without searching.
    for mode in [0o444, 0] {
        fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
        let found = guest.data(json!({"operation": "glob", "pattern": "**/*.rs", "hidden": true}));
        let names = found["matches"].as_array().unwrap().iter().map(|it| &it["path"]);
        assert_eq!(names.collect::<Vec<_>>(), ["/io/src/.cache/b.rs", "/io/src/main.rs"]);
        let found = guest.data(json!({"operation": "grep", "pattern": "todo\\("}));
        assert_eq!((&found["matches"], &found["truncated"]), (&json!(1), &json!(false)));
    }
    // Where it is asked for itself, it is an error.
    for operation in ["glob", "grep"] {
        let asked = json!({"operation": operation, "pattern": "a", "path": "src/lib"});
        assert_eq!(guest.kind(asked), "permission_denied", "{operation}");
    }
    fs::set_permissions(&closed, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn scripts_search_and_copy() {
    let guest = guest();
    let source = r#"
        local paths = fs.glob("src/**/*.rs")
        local lines, truncated = fs.grep("todo", "src", {ignore_case = true, glob = "*.rs"})
        local first, more = fs.grep("todo", nil, {limit = 1})
        fs.copy("notes.txt", "new/notes.txt")
        fs.copy("src", "new/src", {recursive = true})
        fs.rename("new/notes.txt", "new/n.txt")
        local refused = {
            pcall(fs.copy, "notes.txt", "new/n.txt"),
            pcall(fs.rename, "notes.txt", "new/n.txt"),
            pcall(fs.glob, "["),
            pcall(fs.grep, "("),
            (pcall(fs.grep, "x", "../x")),
        }
        fs.copy("notes.txt", "new/n.txt", {overwrite = true})
        return {
            paths = paths, lines = lines, truncated = truncated, first = #first, more = more,
            refused = refused, new = fs.glob("new/**", {hidden = true}),
        }
    "#;
    let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
    let Outcome::Ok { result } = &run.outcome else { panic!("{run:?}") };
    let value: Value = serde_json::from_str(result.get()).unwrap();
    assert_eq!(value["paths"], json!(["src/lib/a.rs", "src/main.rs"]));
    assert_eq!(
        value["lines"],
        json!([
            {"path": "src/lib/a.rs", "line": 1, "text": "// TODO: all"},
            {"path": "src/main.rs", "line": 2, "text": "    todo();"},
        ])
    );
    assert_eq!((&value["truncated"], &value["first"]), (&json!(false), &json!(1)));
    assert_eq!(value["more"], true);
    assert!(value["refused"].as_array().unwrap().iter().all(|it| it != &json!(true)), "{value:#}");
    let new = ["new/n.txt", "new/src", "new/src/.cache", "new/src/.cache/b.rs", "new/src/lib"];
    assert_eq!(value["new"].as_array().unwrap()[..5], new.map(Value::from));
    let touched: Vec<_> = run.files_touched.files.iter().map(|it| it.name.as_bytes()).collect();
    assert!(touched.contains(&&b"new/src/lib/a.rs"[..]), "{touched:?}");
}

#[test]
fn command_line_prints_paths_and_lines() {
    let guest = guest();
    let fs = |args: &[&str]| guest.place.sandboxctl(["fs"].iter().chain(args));
    assert_eq!(fs(&["glob", "src/**/*.rs"]).assert_code(0).stdout, "src/lib/a.rs\nsrc/main.rs\n");
    assert_eq!(fs(&["glob", "*.none"]).assert_code(0).stdout, "");
    assert_eq!(fs(&["glob", "/io/*.txt"]).assert_code(0).stdout, "/io/notes.txt\n");
    assert_eq!(
        fs(&["glob", "{notes,image}.[bt]*"]).assert_code(0).stdout,
        "image.bin\nnotes.txt\n"
    );
    assert_eq!(fs(&["exists", "/in/none"]).assert_code(1).stdout, "");
    assert_eq!(
        fs(&["grep", "-i", "todo", "src"]).assert_code(0).stdout,
        "src/lib/a.rs:1:// TODO: all\nsrc/main.rs:2:    todo();\n"
    );
    assert_eq!(
        fs(&["grep", "no", "-C", "1", "notes.txt"]).assert_code(0).stdout,
        "notes.txt-1-todo\nnotes.txt:2:no\nnotes.txt-3-todo\n"
    );
    assert_eq!(
        fs(&["grep", "todo", "--glob", "*.txt"]).assert_code(0).stdout,
        "notes.txt:1:todo\nnotes.txt:3:todo\n"
    );
    assert_eq!(fs(&["grep", "nowhere"]).assert_code(1).stdout, "");
    assert_eq!(fs(&["grep", "x", "none"]).stdout, "");
    assert!(
        fs(&["grep", "("])
            .assert_code(2)
            .stderr
            .contains("error: (: not a regular expression: unclosed group")
    );
    assert!(fs(&["glob", "["]).assert_code(2).stderr.contains("error: [: not a glob: "));
    assert!(fs(&["cp", ":src", ":copy"]).stderr.contains("-r copies it"));
    fs(&["cp", "-r", ":src", ":copy"]).assert_code(0);
    fs(&["cp", "-r", ":src/lib", ":copy/"]).assert_code(0);
    fs(&["cp", ":notes.txt", ":copy"]).assert_code(0);
    assert_eq!(guest.place.read("sandbox-files/copy/lib/a.rs"), "// TODO: all\nfn a() {}\n");
    assert_eq!(guest.place.read("sandbox-files/copy/notes.txt"), "todo\nno\ntodo\n");
    let refused = fs(&["cp", "-r", "src", ":copy"]);
    refused.assert_code(2);
    assert!(refused.stderr.contains("within the sandbox only"), "{}", refused.stderr);
}

#[test]
fn grep_of_a_long_line_by_a_large_expression_ends_at_its_timeout() {
    let limits = Limits { operation_timeout: Duration::from_millis(500), ..Limits::default() };
    let guest = Guest::with(|spec| spec.limits(limits));
    guest.place.write("sandbox-files/a.txt", "x\n");
    guest.place.write("sandbox-files/line", "ab".repeat(130_000));
    let pattern = "(?-u)x|[ab]*a[ab]{4000}c";
    // The answer has what was found until then.
    let found = guest.data(json!({"operation": "grep", "pattern": pattern}));
    let note = "the timeout of 500 ms was reached at 'line' (filesystem.timeout)";
    assert_eq!((&found["lines"][0]["name"], &found["matches"]), (&json!("a.txt"), &json!(1)));
    assert_eq!((&found["truncated"], &found["note"]), (&json!(true), &json!(note)));
    let source = format!(
        "local lines, more, note = fs.grep('{pattern}', nil, {{limit = 9}}) \
         local _, error = pcall(fs.grep, '{pattern}') \
         return {{#lines, more, note, error}}"
    );
    let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
    let Outcome::Ok { result } = &run.outcome else { panic!("{run:?}") };
    let error = format!(".: {note}; narrow the pattern, or set a limit to get a part");
    let result: Value = serde_json::from_str(result.get()).unwrap();
    assert_eq!(result, json!([1, true, note, error]));
    // A search that has found nothing is an error.
    let grep = json!({"operation": "grep", "pattern": pattern, "path": "line"});
    let error = guest.perform(&grep)["error"].take();
    assert_eq!(error["kind"], "timeout", "{error:#}");
    assert_eq!(error["message"], "line: not done within 500 ms");
    // It has stopped, and the sandbox is as good as before.
    for _ in 0..20 {
        let line = guest.data(json!({"operation": "exists", "path": "line"}));
        assert_eq!(line["exists"], true);
    }
}

#[test]
fn hint_of_a_directory_that_is_too_large_names_no_setting() {
    let guest = Guest::new();
    let deep = "d/".repeat(70);
    fs::create_dir_all(guest.place.path(&format!("sandbox-files/{deep}"))).unwrap();
    for operation in [
        json!({"operation": "rename", "from": "d", "to": "e"}),
        json!({"operation": "write", "path": "f", "content": "?", "encoding": "base64"}),
    ] {
        let error = guest.perform(&operation)["error"].take();
        assert_eq!(error["hint"], Value::Null, "{operation}: {error:#}");
    }
    assert!(!guest.place.path("sandbox-files/e").exists());
    let moved = guest.place.sandboxctl(["fs", "mv", "d", "e"]);
    let output = &moved.assert_code(120).stderr;
    assert!(!output.contains("hint"), "{output}");
    guest.place.write("sandbox-files/large", vec![b'x'; 11 << 20]);
    let error = guest.perform(&json!({"operation": "read", "path": "large"}))["error"].take();
    assert!(error["hint"].as_str().unwrap().contains("--max-file-size"), "{error:#}");
}
