//! Time, memory and the limits of `io`.

use super::*;

#[test]
fn a_stopped_run_cannot_keep_its_error() {
    for source in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "repeat local ok = pcall(function() while true do end end) until false",
        "while true do local co = coroutine.wrap(function() while true do end end) pcall(co) end",
        "local function f() pcall(f) f() end f()",
        "local t = setmetatable({}, {__index = function(t, k) return t[k] end}) while true do pcall(function() return t.x end) end",
        "local t = {} for i = 1, 1000 do t[i] = i end while true do pcall(table.sort, t, function() while true do end end) end",
        "while true do pcall(string.gsub, 'aaaa', 'a', function() while true do end end) end",
        "local t = setmetatable({}, {__tostring = function() while true do end end}) while true do pcall(print, t) end",
        "for i = 1, 100 do pcall(function() while true do end end) end return 1",
        "local s = string.rep('a', 5000) while true do s:find('a-a-a-a-a-b') end",
        "local t = {} for i = 1, 1e5 do t[i] = {i} end while true do pcall(json.encode, t) end",
        "error(setmetatable({}, {__tostring = function() while true do end end}))",
        "xpcall(error, function() while true do end end)",
    ] {
        for (reason, kind, message) in [
            (StopReason::Timeout, ErrorKind::Timeout, "script timed out"),
            (StopReason::Cancelled, ErrorKind::Cancelled, "the run was cancelled"),
        ] {
            let error = Sandbox::new().stopped(&format!("print('started') {source}"), reason);
            assert_eq!(error.kind, kind, "{source}");
            assert!(error.message.ends_with(message), "{error:?}");
        }
    }
    let error = Sandbox::new().stopped("print('started')\nwhile true do end", StopReason::Timeout);
    assert_eq!(error.message, "script:2: script timed out");
    assert_eq!((error.line, error.traceback.as_deref()), (Some(2), Some("script:2")));
}

#[test]
fn our_own_long_work_ends_too() {
    for source in [
        // A file of spaces contains no number, and reading it would take too long to wait for.
        "local f = io.open('a', 'w+') f:write(string.rep(' ', 4e7)) while true do f:seek('set') f:read('n') end",
        "local t = {} for i = 1, 1e6 do t[i] = i end while true do json.encode(t) end",
        "local s = '[' .. string.rep('1,', 1e6) .. '1]' while true do json.decode(s) end",
    ] {
        let error =
            Sandbox::new().stopped(&format!("print('started') {source}"), StopReason::Timeout);
        assert_eq!(error.kind, ErrorKind::Timeout, "{source}");
    }
}

#[test]
fn a_script_that_returned_has_returned() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.value("return 1"), json!(1));
    sandbox.stop.stop(StopReason::Timeout);
    assert_eq!(sandbox.error("return 1").kind, ErrorKind::Timeout);
}

#[test]
fn memory_is_limited() {
    for source in [
        "local t = {} while true do table.insert(t, string.rep('x', 1e5) .. #t) end",
        "local s = string.rep('x', 1e8)",
        "local t = table.create(5e7, 1)",
        "local b = buffer.create(1e9)",
        "local s = 'x' while true do s ..= s end",
        "local t = {} while true do t = {t} end",
        "coroutine.wrap(function() return string.rep('x', 1e8) end)()",
        "coroutine.wrap(function() coroutine.wrap(function() return string.rep('x', 1e8) end)() end)()",
        "local ok, e = pcall(string.rep, 'x', 1e8) error(e, 0)",
        "local ok, e = pcall(string.rep, 'x', 1e8) error(e)",
        "json.encode({string.rep('x', 3e7), string.rep('x', 3e7)})",
    ] {
        let error = error(source);
        assert_eq!(error.kind, ErrorKind::OutOfMemory, "{source}: {error:?}");
        assert!(error.message.ends_with("not enough memory"), "{error:?}");
    }
    assert_eq!(value("return pcall(string.rep, 'x', 1e8)"), json!([false, "not enough memory"]));
    assert_eq!(error("error('not enough memory', 0)").kind, ErrorKind::Runtime);
    let error = error("\nlocal s = string.rep('x', 1e8)");
    assert_eq!(error.line, Some(2));
}

#[test]
fn garbage_is_collected_before_memory_is_out() {
    // 40 MB are live, with 4 MB of garbage per turn: at its own pace the collector is too late.
    let source = "local keep = {} for i = 1, 40 do keep[i] = string.rep('k', 1e6) .. i end \
                  for i = 1, 100 do local s = string.rep('g', 4e6) .. i end return #keep";
    assert_eq!(value(source), json!(40));
}

#[test]
fn a_vm_that_is_too_small_to_begin_is_out_of_memory() {
    for bytes in [0, 10_000, 50_000, 100_000] {
        let mut sandbox = Sandbox::new();
        sandbox.limits.vm_memory_bytes = bytes;
        assert_eq!(sandbox.error("return 1").kind, ErrorKind::OutOfMemory, "{bytes}");
    }
    let mut sandbox = Sandbox::new();
    sandbox.limits.vm_memory_bytes = 400_000;
    assert_eq!(sandbox.value("return 1"), json!(1));
    sandbox.args.insert("x".into(), "y".repeat(400_000).into());
    assert_eq!(sandbox.error("return 1").kind, ErrorKind::OutOfMemory);
}

/// Every allocation fails once: the script may only end, and nothing may break.
#[test]
fn running_out_of_memory_anywhere_ends_cleanly() {
    let source = "local f = io.open('a', 'w+') f:write('abc\\n', 12, '\\n') f:seek('set') \
                  for l in f:lines('n', 'L', 'a') do end \
                  local ok, e = pcall(io.open, 'missing') \
                  local t = json.decode('[1, {\"a\": [true, null]}]') \
                  print(json.encode(t), os.date(), f, json.null, #io.list()) \
                  for l in io.lines('a') do end \
                  local co = coroutine.wrap(function() coroutine.yield(io.open('b', 'w')) end) co() \
                  return t, ok, e";
    let mut sandbox = Sandbox::new();
    let mut ends = [0; 2];
    for bytes in (10_000..600_000).step_by(499) {
        sandbox.limits.vm_memory_bytes = bytes;
        match sandbox.run(source) {
            Ok(_) => ends[0] += 1,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::OutOfMemory, "{error:?}");
                ends[1] += 1;
            }
        }
    }
    assert!(ends[0] > 0 && ends[1] > 0);
}

#[test]
fn a_script_at_its_memory_limit_still_says_how_it_ended() {
    // Less memory is left than reporting the error takes.
    let source = "local t, ok = {}, true local e = 'my own words' \
                  while ok do ok = pcall(table.insert, t, {}) end \
                  while pcall(buffer.create, 16) do table.insert(t, 1) end error(e, 0)";
    let error = error(source);
    assert!(["my own words", "not enough memory"].contains(&error.message.as_str()), "{error:?}");
}

#[test]
fn a_move_over_a_huge_empty_range_comes_back() {
    let source =
        "local t = {} for i = 1, 1000 do table.move({1}, -1e9, 1e9, 0, t) end return t[1e9 + 1]";
    assert_eq!(value(source), json!(1));
}

#[test]
fn the_stack_is_limited() {
    let error = error("local function f() return 1 + f() end f()");
    assert_eq!(error.kind, ErrorKind::Runtime);
    assert!(error.message.contains("stack overflow"), "{error:?}");
    let many = "return io.lines(table.unpack(table.create(300, 'l')))";
    assert_eq!(super::error(many).kind, ErrorKind::Runtime);
}

#[test]
fn the_write_limit_counts_every_byte_and_a_write_over_it_writes_nothing() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.write_bytes = 10;
    let error =
        sandbox.error("local f = io.open('a', 'w')\nf:write('12345')\nf:write('67890', 'x')");
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    assert_eq!(error.message, "script:3: write limit exceeded (10 bytes)");
    assert_eq!(error.line, Some(3));
    assert_eq!(std::fs::read(sandbox.path().join("a")).unwrap(), b"12345");
    let error = sandbox.error(
        "local f = io.open('a', 'w') f:write('12345') f:seek('set') f:write('67890') f:seek('set') \
         assert(pcall(f.write, f, '')) f:write('x')",
    );
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    assert_eq!(std::fs::read(sandbox.path().join("a")).unwrap(), b"67890");
}

#[test]
fn a_hole_counts_as_written() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.write_bytes = 100;
    let error = sandbox.error("local f = io.open('a', 'w') f:seek('set', 1e12) f:write('x')");
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    assert_eq!(std::fs::metadata(sandbox.path().join("a")).unwrap().len(), 0);
    let error = sandbox
        .error("local f = io.open('a', 'w') f:seek('end', 95) f:write('12345') f:write('x')");
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    assert_eq!(std::fs::metadata(sandbox.path().join("a")).unwrap().len(), 100);
    // Another handle may have emptied the file meanwhile.
    let error = sandbox.error(
        "local f = io.open('a', 'w') f:write(string.rep('x', 40)) f:flush() io.open('a', 'w'):close() \
         f:write(string.rep('x', 30))",
    );
    assert_eq!(error.kind, ErrorKind::WriteLimit);
}

#[test]
fn an_uncaught_refusal_of_the_sandbox_ends_the_run_by_its_kind() {
    let mut sandbox = Sandbox::new();
    sandbox.protected = vec![".bashrc"];
    sandbox.limits.file_bytes = 3;
    std::os::unix::fs::symlink("f", sandbox.path().join("link")).unwrap();
    std::fs::write(sandbox.path().join("f"), "long").unwrap();
    let fifo = sandbox.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (call, kind) in [
        ("io.open('../x')", ErrorKind::PathEscape),
        ("fs.stat('/etc/passwd')", ErrorKind::PathEscape),
        ("os.rename('f', '../f')", ErrorKind::PathEscape),
        ("io.list(string.rep('n', 256))", ErrorKind::InvalidPath),
        ("fs.exists('')", ErrorKind::InvalidPath),
        ("fs.write('.bashrc', '')", ErrorKind::Protected),
        ("io.open('.bashrc', 'a')", ErrorKind::Protected),
        ("fs.read('link')", ErrorKind::Symlink),
        ("io.lines('link/x')", ErrorKind::Symlink),
        ("io.open('fifo', 'w')", ErrorKind::SpecialFile),
        ("fs.read('f')", ErrorKind::TooLarge),
        // OS errors.
        ("io.open('none')", ErrorKind::Runtime),
        ("fs.stat('f/')", ErrorKind::Runtime),
        ("io.open('f'):write('x')", ErrorKind::Runtime),
        ("fs.remove('none')", ErrorKind::Runtime),
    ] {
        assert_eq!(sandbox.error(call).kind, kind, "{call}");
        // By the error itself: it is the same when passed on; a string with the same words alone is
        // not.
        let passed_on = format!("assert(pcall(function() {call} end))");
        assert_eq!(sandbox.error(&passed_on).kind, kind, "{call}");
        let script = format!("local _, e = pcall(function() {call} end) error('so: ' .. e)");
        assert_eq!(sandbox.error(&script).kind, ErrorKind::Runtime, "{call}");
    }
    // A limit is not forgotten, however many errors are caught.
    sandbox.limits.write_bytes = 1;
    let many = "local _, limit = pcall(function() fs.write('a', 'xx') end) \
                for i = 1, 1000 do pcall(io.open, '../' .. i) end error(limit, 0)";
    assert_eq!(sandbox.error(many).kind, ErrorKind::WriteLimit);
}

#[test]
fn a_limit_is_known_by_the_error_itself_never_by_its_text() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.write_bytes = 1;
    let write = "io.open('a', 'w'):write('xx')";
    for (source, kind) in [
        (write.to_owned(), ErrorKind::WriteLimit),
        (format!("local ok, e = pcall(function() {write} end) error(e, 0)"), ErrorKind::WriteLimit),
        (format!("local ok, e = pcall(function() {write} end) error(e)"), ErrorKind::WriteLimit),
        (format!("assert(pcall(function() {write} end))"), ErrorKind::WriteLimit),
        (format!("coroutine.wrap(function() {write} end)()"), ErrorKind::WriteLimit),
        (
            format!("xpcall(function() {write} end, function(e) error(e, 0) end) error('x')"),
            ErrorKind::Runtime,
        ),
        ("error('write limit exceeded (1 bytes)')".to_owned(), ErrorKind::Runtime),
        ("error('script:1: write limit exceeded (1 bytes)', 0)".to_owned(), ErrorKind::Runtime),
        (format!("pcall(function() {write} end) error('x')"), ErrorKind::Runtime),
        (
            format!("local ok, e = pcall(function() {write} end) error('so: ' .. e, 0)"),
            ErrorKind::Runtime,
        ),
    ] {
        assert_eq!(sandbox.error(&source).kind, kind, "{source}");
    }
    let caught = format!("pcall(function() {write} end) return 1");
    assert_eq!(sandbox.value(&caught), json!(1));
}

#[test]
fn the_65th_handle_is_refused_and_nothing_is_truncated() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("precious"), "data").unwrap();
    let error = sandbox.error(
        "local open = {} for i = 1, 64 do open[i] = io.open('f' .. i, 'w') end\nio.open('precious', 'w')",
    );
    assert_eq!(error.kind, ErrorKind::TooManyHandles);
    assert_eq!(error.message, "script:2: too many open files (max 64)");
    assert_eq!(std::fs::read(sandbox.path().join("precious")).unwrap(), b"data");
    assert_eq!(
        sandbox.value(
            "local open = {} for i = 1, 64 do open[i] = io.open('f' .. i, 'w') end \
             open[1]:close() io.open('precious'):close() \
             return select(2, pcall(io.lines, 'precious')) ~= nil, #open"
        ),
        json!([true, 64])
    );
}

#[test]
fn forgotten_handles_do_not_count_and_are_flushed() {
    let sandbox = Sandbox::new();
    let count = "for i = 1, 1000 do io.open('f', 'a'):write('x') end return io.open('f'):seek('end') >= 900";
    assert_eq!(sandbox.value(count), json!(true));
    assert_eq!(std::fs::metadata(sandbox.path().join("f")).unwrap().len(), 1000);
    assert_eq!(
        sandbox.value("for i = 1, 1000 do for l in io.lines('f', 10) do break end end return 1"),
        json!(1)
    );
}

#[test]
fn handles_are_flushed_whatever_the_end() {
    for end in [
        "return 1",
        "error('x')",
        "return print",
        "local s = string.rep('x', 1e9)",
        "coroutine.yield()",
    ] {
        let sandbox = Sandbox::new();
        _ = sandbox.run(&format!("f = io.open('a', 'w') f:write('kept') {end}"));
        assert_eq!(std::fs::read(sandbox.path().join("a")).unwrap(), b"kept", "{end}");
    }
    let sandbox = Sandbox::new();
    sandbox.stopped(
        "local f = io.open('a', 'w') f:write('kept') print('started') while true do end",
        StopReason::Timeout,
    );
    assert_eq!(std::fs::read(sandbox.path().join("a")).unwrap(), b"kept");
}

/// A file that opens, and refuses the bytes.
const OPEN_LOST: &str = "local f = io.open('/proc/oom_score_adj', 'w') f:write('x')";

#[test]
fn write_that_fails_after_a_script_returned_is_its_error() {
    let forgotten = format!(
        "do {OPEN_LOST} end for i = 1, 63 do io.open('f', 'a') end io.open('f', 'a') return 1"
    );
    for source in [format!("{OPEN_LOST} return 1"), format!("{OPEN_LOST} return f"), forgotten] {
        for io_errors in [IoErrors::Raise, IoErrors::Return] {
            // The log is too short for a warning.
            let limits = Limits { log_lines: 0, ..LIMITS };
            let sandbox = Sandbox { has_proc: true, io_errors, limits, ..Sandbox::new() };
            let error = sandbox.error(&source);
            let expected =
                "/proc/oom_score_adj: Invalid argument (the script did not close the file)";
            assert_eq!((error.kind, &*error.message), (ErrorKind::Runtime, expected), "{source}");
        }
    }
}

#[test]
fn write_error_that_a_script_has_seen_or_a_failed_script_stays_a_warning() {
    let sandbox = Sandbox { has_proc: true, ..Sandbox::new() };
    let warning = (LogLevel::Warn, "/proc/oom_score_adj: Invalid argument".to_owned());
    let seen = format!("{OPEN_LOST} return (pcall(f.flush, f))");
    assert_eq!(sandbox.value(&seen), json!(false));
    assert_eq!(sandbox.logs(), std::slice::from_ref(&warning));
    let closed = format!("{OPEN_LOST} return (pcall(f.close, f))");
    assert_eq!(sandbox.value(&closed), json!(false));
    assert_eq!(sandbox.error(&format!("{OPEN_LOST} error('own', 0)")).message, "own");
    assert_eq!(sandbox.logs(), [warning.clone(), warning]);
}
