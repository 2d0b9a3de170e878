//! `io` as a script meets it, through the whole way down.

use serde_json::json;

use crate::fixture::Fixture;

#[test]
fn all_bytes_go_in_and_out_unchanged() {
    let place = Fixture::new();
    let document = place.run_json(
        r#"
            local all = {}
            for i = 0, 255 do all[i + 1] = string.char(i) end
            all = table.concat(all)
            io.open("b", "wb"):write(all):close()
            io.open("t", "w"):write(all):close()
            return io.open("b", "r"):read("a") == all and io.open("t", "rb"):read("a") == all
        "#,
        &[],
    );
    assert_eq!(document["result"], true, "{document:#}");
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(std::fs::read(place.path("sandbox-files/b")).unwrap(), all);
    assert_eq!(std::fs::read(place.path("sandbox-files/t")).unwrap(), all);
}

#[test]
fn inputs_are_listed_and_searched_where_they_are() {
    let place = Fixture::new();
    place.write("one.csv", "1\n");
    place.write("two.csv", "2\n");
    place.write("more/three.csv", "3\n");
    let source = r#"
        return {
            names = io.list("/in"),
            tables = (fs.glob("/in/*.csv")),
            all = (fs.glob("/in/**/*.csv")),
            lines = #(fs.grep("3", "/in")),
        }
    "#;
    let document = place.run_json(source, &["--in", "*.csv", "--in", "more"]);
    assert_eq!(
        document["result"],
        json!({
            "names": ["more", "one.csv", "two.csv"],
            "tables": ["/in/one.csv", "/in/two.csv"],
            "all": ["/in/more/three.csv", "/in/one.csv", "/in/two.csv"],
            "lines": 1,
        }),
        "{document:#}"
    );
}

#[test]
fn a_seek_forgets_what_was_read_ahead() {
    let place = Fixture::new();
    let document = place.run_json(
        r#"
            io.open("f", "w"):write("0123456789"):close()
            local r = io.open("f")
            r:read(3)
            local w = io.open("f", "r+")
            w:seek("set", 5)
            w:write("ABC"):close()
            r:seek("set", 4)
            local seen = r:read("a")
            io.open("f", "w"):close()
            r:seek("set", 2)
            return seen, r:read("a"), r:read("a")
        "#,
        &[],
    );
    assert_eq!(document["result"], json!(["4ABC89", "", ""]), "{document:#}");
}

#[test]
fn failures_raise_strings_with_a_position() {
    let place = Fixture::new();
    let document = place.run_json(
        r#"
            local seen = {}
            local function try(name, f)
                local ok, e = pcall(f)
                seen[name] = if type(e) == "string" then e else typeof(e)
            end
            io.open("d/f", "w"):close()
            local closed = io.open("d/f"); closed:close()
            try("missing", function() io.open("none.csv") end)
            try("directory", function() os.remove("d") end)
            try("closed", function() closed:read("a") end)
            try("twice", function() closed:close() end)
            try("mode", function() io.open("d/f", "x") end)
            try("format", function() io.open("d/f"):read("q") end)
            try("whence", function() io.open("d/f"):seek("mid") end)
            return seen
        "#,
        &[],
    );
    let seen = &document["result"];
    for (name, message) in [
        ("missing", "script:9: none.csv: No such file or directory"),
        ("directory", "script:10: cannot remove directory 'd'"),
        ("closed", "script:11: attempt to use a closed file"),
        ("twice", "script:12: attempt to use a closed file"),
        ("mode", "script:13: invalid mode: 'x'"),
        ("format", "script:14: invalid format: 'q'"),
        ("whence", "script:15: invalid whence: 'mid'"),
    ] {
        assert_eq!(seen[name], message, "{document:#}");
    }
}

#[test]
fn errors_can_be_returned_as_standard_lua_does() {
    let place = Fixture::new();
    let source = r#"
        local f, message, errno = io.open("none")
        local rule = pcall(io.open, "../x")
        return { f == nil, message, errno, rule }
    "#;
    let document = place.run_json(source, &["--io-errors", "return"]);
    assert_eq!(
        document["result"],
        json!([true, "none: No such file or directory", 2, false]),
        "{document:#}"
    );
}

#[test]
fn the_write_limit_holds_and_its_write_writes_nothing() {
    let place = Fixture::new();
    let source = r#"
        local f = io.open("f", "w")
        f:write(string.rep("x", 600))
        f:flush()
        f:write(string.rep("y", 600))
    "#;
    let document = place.run_json(source, &["--max-write", "1000"]);
    assert_eq!(document["status"], "limit", "{document:#}");
    assert_eq!(document["exit_code"], 120);
    assert_eq!(document["error"]["kind"], "write_limit");
    assert!(
        document["error"]["message"]
            .as_str()
            .unwrap()
            .contains("write limit exceeded (1000 bytes)")
    );
    assert_eq!(place.read("sandbox-files/f"), "x".repeat(600));
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 600}]));
    assert_eq!(document["usage"]["written_bytes"], 600);

    let caught = place.run_json(
        "local f = io.open('g', 'w') local ok = pcall(f.write, f, string.rep('x', 2000)) return ok",
        &["--max-write", "1000"],
    );
    assert_eq!((&caught["status"], &caught["result"]), (&json!("ok"), &json!(false)));

    let forged =
        place.run_json("error('write limit exceeded (1000 bytes)', 0)", &["--max-write", "1000"]);
    assert_eq!(forged["status"], "script_error");
    assert_eq!(forged["error"]["kind"], "runtime");
}

#[test]
fn a_hole_counts_as_written() {
    let place = Fixture::new();
    let document = place
        .run_json("local f = io.open('f', 'w') f:seek('set', 1e12) f:write('x') f:close()", &[]);
    assert_eq!(document["error"]["kind"], "write_limit", "{document:#}");
    assert_eq!(std::fs::metadata(place.path("sandbox-files/f")).unwrap().len(), 0);
}

#[test]
fn the_sixty_fifth_handle_is_refused_and_truncates_nothing() {
    let place = Fixture::new();
    place.write("sandbox-files/kept", "kept");
    let document = place.run_json(
        "local t = {} for i = 1, 64 do t[i] = io.open('f' .. i, 'w') end io.open('kept', 'w')",
        &[],
    );
    assert_eq!(document["status"], "limit", "{document:#}");
    assert_eq!(document["error"]["kind"], "too_many_handles");
    assert!(
        document["error"]["message"].as_str().unwrap().contains("too many open files (max 64)")
    );
    assert_eq!(place.read("sandbox-files/kept"), "kept");

    let document =
        place.run_json("for i = 1, 300 do io.open('g', 'w'):write(i) end return 'ok'", &[]);
    assert_eq!(document["result"], "ok", "forgotten handles do not count: {document:#}");
}

#[test]
fn files_touched_is_the_final_state() {
    let place = Fixture::new();
    for (name, text) in
        [("old", "1234"), ("log", "a\n"), ("gone", "x"), ("from", "abc"), ("same", "s")]
    {
        place.write(&format!("sandbox-files/{name}"), text);
    }
    let document = place.run_json(
        r#"
            io.open("new", "w"):write("12"):close()
            io.open("old", "w"):write("1"):close()
            io.open("log", "a"):write("b\n"):close()
            os.remove("gone")
            os.rename("from", "to")
            io.open("temp", "w"):close() os.remove("temp")
            io.open("same"):read("a")
            pcall(io.open, "none/../x", "w")
            pcall(io.open, "sub", "r")
        "#,
        &[],
    );
    assert_eq!(
        document["files_touched"],
        json!([
            {"name": "from", "op": "remove", "bytes": 0},
            {"name": "gone", "op": "remove", "bytes": 0},
            {"name": "log", "op": "append", "bytes": 4},
            {"name": "new", "op": "write", "bytes": 2},
            {"name": "old", "op": "write", "bytes": 1},
            {"name": "temp", "op": "remove", "bytes": 0},
            {"name": "to", "op": "write", "bytes": 3},
        ]),
        "{document:#}"
    );
}

#[test]
fn nothing_that_luau_md_leaves_out_is_there() {
    let place = Fixture::new();
    let document = place.run_json(
        r#"
            local absent = {}
            for _, name in { "require", "loadstring", "loadfile", "dofile", "collectgarbage",
                "newproxy", "getfenv", "setfenv", "process", "load" } do
                if getmetatable("").__index and _G[name] ~= nil then table.insert(absent, name) end
            end
            for _, name in { "execute", "exit", "getenv", "tmpname" } do
                if os[name] ~= nil then table.insert(absent, "os." .. name) end
            end
            for _, name in { "popen", "stdin", "stdout", "stderr", "tmpfile", "input", "output", "read", "write", "flush" } do
                if io[name] ~= nil then table.insert(absent, "io." .. name) end
            end
            if io.open("f", "w").setvbuf then table.insert(absent, "setvbuf") end
            return json.array(absent), pcall(function() io.open = nil end), pcall(function() string.x = 1 end)
        "#,
        &[],
    );
    assert_eq!(document["result"][0], json!([]), "{document:#}");
    assert_eq!(document["result"][1], false);
}
