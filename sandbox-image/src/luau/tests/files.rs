//! `io`, as Lua 5.4 has it.

use super::*;

/// Runs `source` with a file `f` that holds `content`.
#[track_caller]
fn with_file(content: impl AsRef<[u8]>, source: &str) -> Value {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("f"), content).unwrap();
    sandbox.value(source)
}

/// The content of a file after `source` has run.
#[track_caller]
fn written(content: &str, source: &str) -> String {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("f"), content).unwrap();
    sandbox.value(source);
    std::fs::read_to_string(sandbox.path().join("f")).unwrap()
}

#[test]
fn reads_follow_their_formats() {
    let all = "local r = table.pack(io.open('f'):read(%)) for i = 1, r.n do \
               if r[i] == nil then r[i] = 'NIL' end end r.n = nil return r";
    for (content, formats, expected) in [
        ("a\nb", "", json!(["a"])),
        ("", "", json!(["NIL"])),
        ("\n", "", json!([""])),
        ("a\nb", "'l', 'l', 'l'", json!(["a", "b", "NIL"])),
        ("a\nb\n", "'L', 'L', 'L'", json!(["a\n", "b\n", "NIL"])),
        ("a\nb", "'L', 'L'", json!(["a\n", "b"])),
        ("a\r\nb\r\r\nc\rd\r", "'l', 'l', 'l'", json!(["a", "b\r", "c\rd\r"])),
        ("a\r\nb", "'L'", json!(["a\r\n"])),
        ("ab", "'a', 'a'", json!(["ab", ""])),
        ("", "'a'", json!([""])),
        ("abc", "'*l'", json!(["abc"])),
        ("abc", "'line', '*all'", json!(["abc", ""])),
        ("abcde", "2, 2, 2, 2", json!(["ab", "cd", "e", "NIL"])),
        ("ab", "0, 1, 0, 1, 0", json!(["", "a", "", "b", "NIL"])),
        ("ab", "1e9", json!(["ab"])),
        ("ab", "2^60", json!(["ab"])),
        ("", "5, 5", json!(["NIL"])),
        (" 12 0x1F\n-3.5e1x", "'n', 'n', 'n', 'l'", json!([12, 31, -35, "x"])),
        ("1\n2", "'n', 'l', 'n'", json!([1, "", 2])),
        ("1 x 2", "'n', 'n', 'n'", json!([1, "NIL"])),
        ("x", "'n', 'l'", json!(["NIL"])),
        ("0x", "'n'", json!(["NIL"])),
        ("  ", "'n'", json!(["NIL"])),
        ("0x1p4 0x.8 1e2", "'n', 'n', 'n'", json!([16, 0.5, 100])),
        ("3 lines\nleft", "'n', 1, 'l', 'a'", json!([3, " ", "lines", "left"])),
    ] {
        let found = with_file(content, &all.replace('%', formats));
        assert_eq!(found, expected, "{content:?} {formats}");
    }
}

#[test]
fn malformed_numeral_is_consumed_as_far_as_it_is_valid() {
    let digits = "1".repeat(300);
    let content = format!(".e+\t0.e;\t--;  0xX;\n{digits}\n");
    let source = "local f = io.open('f') local r = {} \
                  for _, n in {2, 1, 2, 1, 1} do assert(f:read('n') == nil) table.insert(r, f:read(n)) end \
                  assert(f:read('n') == nil) table.insert(r, #f:read()) return r";
    assert_eq!(with_file(content, source), json!(["e+", ";", "-;", "X", ";", 100]));
}

#[test]
fn invalid_formats_raise() {
    for (format, message) in [
        ("'x'", "invalid format: 'x'"),
        ("''", "invalid format: ''"),
        ("'*'", "invalid format: '*'"),
        ("-1", "invalid format: '-1'"),
        ("1.5", "invalid format: '1.5'"),
        ("0/0", "invalid format: 'nan'"),
        ("nil", "invalid argument #2 to 'read' (string expected, got nil)"),
        ("{}", "invalid argument #2 to 'read' (string expected, got table)"),
    ] {
        let source = format!(
            "local ok, e = pcall(function() io.open('f', 'w+'):read({format}) end) return e"
        );
        assert_eq!(value(&source), json!(format!("script:1: {message}")), "{format}");
        // The format is checked before the file is read.
        let source = source.replace("w+", "w");
        assert_eq!(value(&source), json!(format!("script:1: {message}")), "{format}");
    }
    // One after the other.
    let source = "local f = io.open('f') pcall(f.read, f, 1, 'x') return f:read('a')";
    assert_eq!(with_file("ab", source), json!("b"));
}

#[test]
fn lines_are_found_across_every_buffer_border() {
    // Lines of all lengths around the buffer's, so that line ends fall on both sides of its
    // boundary.
    for line in [1, 2, 65_533, 65_534, 65_535, 65_536, 65_537, 131_071, 131_072, 200_000] {
        for end in ["\n", "\r\n"] {
            let content = format!("{}{end}", "x".repeat(line)).repeat(3) + "tail";
            let source = "local r = {} for l in io.lines('f') do table.insert(r, #l) end \
                          for l in io.lines('f', 'L') do table.insert(r, #l) end return r";
            let with_end = line + end.len();
            assert_eq!(
                with_file(&content, source),
                json!([line, line, line, 4, with_end, with_end, with_end, 4]),
                "{line} {end:?}"
            );
        }
    }
}

#[test]
fn whole_reads_begin_where_the_handle_stands() {
    let content = "0123456789".repeat(30_000);
    let source = "local f = io.open('f') local a = f:read(5) local rest = f:read('a') \
                  f:seek('set', 299990) local b = f:read('a') f:seek('set') \
                  local c = f:read(200000) local d = f:read(200000) \
                  return a, #rest, rest:sub(1, 3), b, #c, #d, c:sub(-1), d:sub(1, 1), f:read(1) == nil";
    assert_eq!(
        with_file(content, source),
        json!(["01234", 299_995, "567", "0123456789", 200_000, 100_000, "9", "0", true])
    );
}

#[test]
fn a_file_that_grows_is_read_to_its_new_end() {
    let source = "local w = io.open('f', 'w') local r = io.open('f') w:write('one\\n'):flush() \
                  local a, b = r:read(), r:read() w:write('two\\n'):flush() \
                  return a, b == nil, r:read(), r:read('a')";
    // `flush` returns true and not the handle, as in Lua.
    let source = source.replace("w:write('one\\n'):flush()", "w:write('one\\n') w:flush()");
    let source = source.replace("w:write('two\\n'):flush()", "w:write('two\\n') w:flush()");
    assert_eq!(value(&source), json!(["one", true, "two", ""]));
}

#[test]
fn lines_takes_formats_and_closes_only_what_it_opened() {
    assert_eq!(
        with_file(
            "1 a\n2 b\n",
            "local r = {} for n, s in io.lines('f', 'n', 'l') do table.insert(r, {n, s}) end return r"
        ),
        json!([[1, " a"], [2, " b"]])
    );
    assert_eq!(
        with_file(
            "abc",
            "local r = {} for c in io.lines('f', 1) do table.insert(r, c) end return r"
        ),
        json!(["a", "b", "c"])
    );
    assert_eq!(
        with_file(
            "a\nb",
            "local f = io.open('f') local n = 0 for l in f:lines() do n += 1 end \
             local next = f:lines('a') return n, io.type(f), next(), select('#', f:lines('l')()), f:close()"
        ),
        json!([2, "file", "", 0, true])
    );
    assert_eq!(
        with_file("a", "local n = io.lines('f') n() n() return select(2, pcall(n))"),
        json!("file is already closed")
    );
    assert_eq!(
        value("return select(2, pcall(function() for l in io.lines('none') do end end))"),
        json!("script:1: none: No such file or directory")
    );
    assert_eq!(
        with_file("a", "local n = io.lines('f', 'x') pcall(n) return select(2, pcall(n))"),
        json!("file is already closed")
    );
    assert_eq!(
        with_file(
            "a",
            "local f = io.open('f') local n = f:lines() f:close() return select(2, pcall(n))"
        ),
        json!("file is already closed")
    );
    assert_eq!(
        with_file("a", "local f = io.open('f') f:close() return select(2, pcall(f.lines, f))"),
        json!("attempt to use a closed file")
    );
}

#[test]
fn seeks_are_right_after_buffered_reads_and_writes() {
    for (source, expected) in [
        (
            "local f = io.open('f') f:read(3) return f:seek(), f:seek('cur', 2), f:read(2)",
            json!([3, 5, "56"]),
        ),
        (
            "local f = io.open('f') f:read('l') return f:seek('cur'), f:seek('end'), f:read(1) == nil",
            json!([10, 10, true]),
        ),
        (
            "local f = io.open('f') return f:seek('end', -3), f:read('a'), f:seek('set', 1), f:read(1)",
            json!([7, "789", 1, "1"]),
        ),
        (
            "local f = io.open('f', 'r+') f:read(2) f:write('XY') return f:read(2), f:seek('set'), f:read('a')",
            json!(["45", 0, "01XY456789"]),
        ),
        (
            "local f = io.open('f', 'r+') f:write('ab') f:seek('set', 1) f:write('c') f:seek('set') return f:read('a')",
            json!("ac23456789"),
        ),
        (
            "local f = io.open('f', 'w+') f:write('abc') local a = f:read('a') f:seek('set') return a, f:read('a')",
            json!(["", "abc"]),
        ),
        (
            "local f = io.open('f', 'a+') local a = f:read(2) f:write('Z') f:seek('set') return a, f:read('a'), f:seek()",
            json!(["01", "0123456789Z", 11]),
        ),
        (
            "local f = io.open('f', 'a') return f:seek(), f:write('Z'):seek(), f:seek('set'), f:write('Y'):seek()",
            json!([10, 11, 0, 12]),
        ),
        ("local f = io.open('f', 'w') f:seek('set', 3) f:write('x') return f:seek()", json!(4)),
        (
            "local f = io.open('f') return f:seek('set', 100), f:read(1) == nil, f:read('a'), f:seek()",
            json!([100, true, "", 100]),
        ),
        ("local f = io.open('f') return f:seek('set', '2'), f:seek('cur', ' 0x3 ')", json!([2, 5])),
        (
            "local f = io.open('f') return pcall(f.seek, f, 'set', 'two')",
            json!([false, "invalid argument #3 to 'seek' (number expected, got string)"]),
        ),
        (
            "local f = io.open('f') f:read(1) return pcall(f.seek, f, 'cur', -2)",
            json!([false, "f: Invalid argument"]),
        ),
        (
            "local f = io.open('f') return pcall(f.seek, f, 'set', 2^62)",
            json!([true, 4_611_686_018_427_387_904_i64 as f64]),
        ),
        (
            "local f = io.open('f') return pcall(f.seek, f, 'cur', 2^63)",
            json!([false, "invalid argument #3 to 'seek' (number has no integer representation)"]),
        ),
        (
            "local f = io.open('f') return pcall(f.seek, f, 'begin')",
            json!([false, "invalid whence: 'begin'"]),
        ),
        (
            "local f = io.open('f') return pcall(f.seek, f, 'set', 1.5)",
            json!([false, "invalid argument #3 to 'seek' (number has no integer representation)"]),
        ),
    ] {
        assert_eq!(with_file("0123456789", source), expected, "{source}");
    }
}

#[test]
fn writes_take_strings_and_numbers_and_check_all_first() {
    assert_eq!(
        written(
            "",
            "io.open('f', 'w'):write('a', 1, 1.5, 1e15, -0.0, 2^53, '\\n'):write():close()"
        ),
        "a11.51000000000000000-09007199254740992\n"
    );
    for (argument, got) in
        [("nil", "nil"), ("{}", "table"), ("true", "boolean"), ("print", "function")]
    {
        let source = format!(
            "local f = io.open('f', 'w') local ok, e = pcall(function() f:write('lost', {argument}) end) \
             f:write('kept') f:close() return e"
        );
        let sandbox = Sandbox::new();
        let message =
            format!("script:1: invalid argument #3 to 'write' (string expected, got {got})");
        assert_eq!(sandbox.value(&source), json!(message));
        assert_eq!(std::fs::read(sandbox.path().join("f")).unwrap(), b"kept");
    }
}

#[test]
fn modes_do_what_they_say() {
    assert_eq!(written("old", "io.open('f', 'w'):write('n')"), "n");
    assert_eq!(written("old", "io.open('f', 'a'):write('n')"), "oldn");
    assert_eq!(written("old", "io.open('f', 'r+'):write('n')"), "nld");
    assert_eq!(written("old", "io.open('f', 'w+b'):write('n')"), "n");
    assert_eq!(written("old", "io.open('f', 'ab'):write('n')"), "oldn");
    assert_eq!(written("old", "io.open('f', 'rb')"), "old");
    for mode in ["rw", "rb+", "r+bk", "", "+", "b", "rw+", "x", "R"] {
        let e = value(&format!("return select(2, pcall(function() io.open('f', '{mode}') end))"));
        assert_eq!(e, json!(format!("script:1: invalid mode: '{mode}'")));
    }
    for (source, message) in [
        ("io.open('f'):write('x')", "f: Bad file descriptor"),
        ("io.open('f', 'w'):read('a')", "f: Bad file descriptor"),
        ("io.open('f', 'a'):read(1)", "f: Bad file descriptor"),
    ] {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.path().join("f"), "").unwrap();
        assert_eq!(sandbox.error(source).message, format!("script:1: {message}"));
    }
}

#[test]
fn every_byte_survives_in_every_mode() {
    let source = "local all = {} for i = 0, 255 do all[i + 1] = string.char(i) end \
                  local text = string.rep(table.concat(all), 1000) \
                  for _, b in {'', 'b'} do \
                      io.open('f', 'w' .. b):write(text):close() \
                      assert(io.open('f', 'r' .. b):read('a') == text) \
                      io.open('f', 'w'):close() \
                      local f = io.open('f', 'a' .. b) for i = 0, 255 do f:write(all[i + 1]) end f:close() \
                      assert(io.open('f'):read(256) == table.concat(all)) \
                  end return true";
    assert_eq!(value(source), json!(true));
}

#[test]
fn closed_files_are_named_as_such() {
    for method in ["read", "write", "lines", "seek", "flush", "close"] {
        let source = format!("local f = io.open('f', 'w') f:close() f:{method}()");
        let error = error(&source);
        assert_eq!(error.message, "script:1: attempt to use a closed file", "{method}");
    }
    assert_eq!(
        value(
            "local f = io.open('some/f', 'w') local a, b = tostring(f), io.type(f) f:close() \
             return a, b, tostring(f), io.type(f), io.type(1), io.type(nil), type(f), typeof(f)"
        ),
        json!([
            "file (some/f)", "file", "file (closed)", "closed file", null, null, "userdata", "file"
        ])
    );
    assert_eq!(
        error("io.type()").message,
        "script:1: missing argument #1 to 'type' (value expected)"
    );
}

#[test]
fn a_handle_cannot_be_forged() {
    for (source, message) in [
        (
            "io.open('f', 'w').write('x')",
            "invalid argument #1 to 'write' (file expected, got string)",
        ),
        (
            "io.open('f', 'w').write({})",
            "invalid argument #1 to 'write' (file expected, got table)",
        ),
        ("io.open('f', 'w').close()", "missing argument #1 to 'close' (file expected)"),
        (
            "io.open('f', 'w').read(json.null)",
            "invalid argument #1 to 'read' (file expected, got null)",
        ),
        ("io.open('f', 'w'):setvbuf('no')", "attempt to call missing method 'setvbuf' of file"),
        ("local f = io.open('f', 'w') f.x = 1", "attempt to index file with 'x'"),
        (
            "setmetatable(io.open('f', 'w'), {})",
            "invalid argument #1 to 'setmetatable' (table expected, got file)",
        ),
    ] {
        assert_eq!(error(source).message, format!("script:1: {message}"), "{source}");
    }
}

#[test]
fn failures_raise_strings_with_the_position() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path().join("d")).unwrap();
    for (source, message) in [
        ("io.open('none')", "script:1: none: No such file or directory"),
        ("\n\nio.open('none/x', 'r+')", "script:3: none/x: No such file or directory"),
        ("io.open('d')", "script:1: d: Is a directory"),
        ("io.open('d', 'w')", "script:1: d: Is a directory"),
        ("os.remove('none')", "script:1: none: No such file or directory"),
        ("os.remove('d')", "script:1: cannot remove directory 'd'"),
        ("os.rename('none', 'x')", "script:1: none: No such file or directory"),
        ("io.list('none')", "script:1: none: No such file or directory"),
        ("io.open()", "script:1: missing argument #1 to 'open' (string expected)"),
        ("io.open({})", "script:1: invalid argument #1 to 'open' (string expected, got table)"),
        (
            "io.open('f', {})",
            "script:1: invalid argument #2 to 'open' (string expected, got table)",
        ),
        ("io.lines()", "script:1: missing argument #1 to 'lines' (string expected)"),
    ] {
        let error = sandbox.error(source);
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Runtime, message), "{source}");
    }
    assert_eq!(
        sandbox.value("local ok, e = pcall(function() io.open('none') end) return type(e), e"),
        json!(["string", "script:1: none: No such file or directory"])
    );
    assert!(error("io.open('../x')").message.starts_with("script:1: ../x: "));
}

#[test]
fn failures_are_returned_where_the_sandbox_says_so() {
    let mut sandbox = Sandbox::new();
    sandbox.io_errors = IoErrors::Return;
    std::fs::create_dir(sandbox.path().join("d")).unwrap();
    std::fs::write(sandbox.path().join("f"), "text").unwrap();
    for (source, expected) in [
        ("io.open('none')", json!([null, "none: No such file or directory", 2])),
        ("io.open('d')", json!([null, "d: Is a directory", 21])),
        ("os.remove('none')", json!([null, "none: No such file or directory", 2])),
        ("os.rename('none', 'x')", json!([null, "none: No such file or directory", 2])),
        ("io.open('f'):write('x')", json!([null, "f: Bad file descriptor", 9])),
        ("io.open('f', 'a'):read()", json!([null, "f: Bad file descriptor", 9])),
        ("io.open('f'):seek('set', -1)", json!([null, "f: Invalid argument", 22])),
    ] {
        assert_eq!(sandbox.value(&format!("return {source}")), expected, "{source}");
    }
    for (source, message) in [
        ("io.open('../x')", "script:1: ../x: "),
        ("io.lines('none')", "script:1: none: No such file or directory"),
        ("io.open('f', 'x')", "script:1: invalid mode: 'x'"),
        ("local f = io.open('f') f:close() f:close()", "script:1: attempt to use a closed file"),
        ("for l in io.open('f', 'a'):lines() do end", "script:1: f: Bad file descriptor"),
    ] {
        assert!(sandbox.error(source).message.starts_with(message), "{source}");
    }
    sandbox.limits.write_bytes = 1;
    assert_eq!(sandbox.error("io.open('f', 'w'):write('xx')").kind, ErrorKind::WriteLimit);
    assert_eq!(
        sandbox.value("return os.remove('f'), io.open('f')").as_array().map(Vec::len),
        Some(4)
    );
}

#[test]
fn writing_to_an_input_raises_where_failures_are_returned_too() {
    let input = tempfile::tempdir().unwrap();
    std::fs::write(input.path().join("a"), "text").unwrap();
    let io_errors = IoErrors::Return;
    let sandbox = Sandbox { input: Some(input), io_errors, ..Sandbox::new() };
    for source in [
        "io.open('/in/d/x', 'w')",
        "io.open('/in/x', 'w')",
        "fs.write('/in/x', 'text')",
        "fs.mkdir('/in/d/new')",
        "io.open('/in/d/a', 'r+')",
        "os.remove('/in/d/a')",
        "os.rename('/in/d/a', '/in/d/b')",
    ] {
        let error = sandbox.error(source);
        assert_eq!(error.kind, ErrorKind::ReadOnly, "{source}");
        assert!(
            error.message.ends_with("Read-only file system (inputs are read-only)"),
            "{source}: {}",
            error.message
        );
    }
    let listed = "local all = fs.list('/in', {recursive = true}) \
                  return io.list('/in'), #all, all[2].path";
    assert_eq!(sandbox.value(listed), json!([["d"], 2, "/in/d/a"]));
    let found = json!([null, "/in/d/x: No such file or directory", 2]);
    assert_eq!(sandbox.value("return io.open('/in/d/x')"), found);
}

#[test]
fn entries_are_listed_removed_and_renamed() {
    let source = "assert(#io.list() == 0) for _, n in {'b', 'a', 'sub/c'} do io.open(n, 'w'):close() end \
                  local all = io.list('.') local sub = io.list('sub') \
                  local r, m = os.remove('a'), os.rename('b', 'sub/b') \
                  return all, sub, r, m, io.list(), io.list('sub')";
    assert_eq!(value(source), json!([["a", "b", "sub"], ["c"], true, true, ["sub"], ["b", "c"]]));
}

#[test]
fn a_file_that_shrinks_and_grows_while_it_is_read_gives_only_what_it_held() {
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let sandbox = Sandbox::new();
    let file = std::fs::File::create(sandbox.path().join("f")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for length in [300_000, 0, 1, 70_000, 65_536, 150_000] {
                    file.set_len(length as u64).unwrap();
                    file.write_all_at(&vec![b'a'; length], 0).unwrap();
                }
            }
        });
        let _over = Over(&over);
        // A hole reads as zeros; there was never anything else.
        let lengths = sandbox.value(
            r#"
                local lengths, count, round = {}, 0, 0
                repeat
                    round += 1
                    local f = io.open("f")
                    for _, how in { "a", "l", "n", 100000, 1, 0 } do
                        f:seek("set", round % 3 * 60000)
                        local text = f:read(how)
                        if type(text) == "string" then
                            assert(not string.find(text, "[^a\0]"), how)
                            count += if lengths[#text] then 0 else 1
                            lengths[#text] = true
                        end
                    end
                    f:close()
                until round >= 300 and count > 10 or round == 30000
                return count
            "#,
        );
        assert!(lengths.as_u64().unwrap() > 10, "{lengths} lengths were seen");
    });
}

#[test]
fn a_huge_sparse_file_costs_only_what_is_read_of_it() {
    let sandbox = Sandbox::new();
    let file = std::fs::File::create(sandbox.path().join("f")).unwrap();
    // As long as the tests' file system allows: tmpfs any length, ext4 16 TiB.
    let length = [1 << 62, (1 << 44) - 4096, 1 << 40]
        .into_iter()
        .find(|&length| file.set_len(length).is_ok())
        .expect("a file may be sparse");
    let results = sandbox.value(
        r#"
            local results = {}
            local function try(f) table.insert(results, (select(2, pcall(f)))) end
            local function open(mode) return io.open("f", mode) end
            table.insert(results, open():seek("end"))
            table.insert(results, #open():read(10))
            try(function() return open():read("a") end)
            try(function() return open():read(2 ^ 53) end)
            try(function() return open():read("l") end)
            try(function() for line in open():lines() do return line end end)
            try(function() local f = open("r+") f:seek("end", -1) f:read(1) f:seek("set") f:write("x") f:close() end)
            try(function() local f = io.open("new", "w") f:seek("set", 2 ^ 43) f:write("x") end)
            return results
        "#,
    );
    let memory = "not enough memory";
    #[expect(clippy::cast_precision_loss, reason = "as the VM has it")]
    let length = length as f64;
    assert_eq!(results[0].as_f64(), Some(length));
    assert_eq!(results[1], 10);
    for index in 2..6 {
        assert_eq!(results[index], memory, "{results}");
    }
    let limit = "script:12: write limit exceeded (50 MiB)";
    assert_eq!(results.as_array().unwrap()[6..], [json!(limit)], "{results}");
    assert_eq!(std::fs::read(sandbox.path().join("new")).unwrap(), b"");
}
