//! `fs`: the operations have their own tests; these cover what a script sees of them.

use super::*;

/// The error that `source` raises.
#[track_caller]
fn raises(sandbox: &Sandbox, call: &str) -> String {
    let source =
        format!("local ok, e = pcall(function() return {call} end) assert(not ok) return e");
    let message = sandbox.value(&source);
    let message = message.as_str().unwrap();
    message.strip_prefix("script:1: ").unwrap_or_else(|| panic!("{message}")).to_owned()
}

#[test]
fn files_go_in_and_out_whole() {
    let sandbox = Sandbox::new();
    let source = "assert(fs.write('a/b.txt', 'one') == true) \
                  fs.write('a/b.txt', 'two', {append = true}) \
                  fs.write('n', 12) \
                  fs.write('new', '', {create_new = true, append = false}) \
                  return fs.read('a/b.txt'), fs.read('n'), fs.read('new')";
    assert_eq!(sandbox.value(source), json!(["onetwo", "12", ""]));
    let bytes = "local all = {} for byte = 0, 255 do all[byte + 1] = string.char(byte) end \
                 local text = string.rep(table.concat(all), 1000) \
                 fs.write('bytes', text) return fs.read('bytes') == text";
    assert_eq!(sandbox.value(bytes), json!(true));
    assert_eq!(std::fs::metadata(sandbox.path().join("bytes")).unwrap().len(), 256_000);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let sandbox = Sandbox::new();
    let source = "local r = {fs.mkdir('d/e'), fs.mkdir('d/e', {parents = false})} \
                  fs.write('d/e/f', 'xyz') \
                  for _, entry in fs.list(nil, {recursive = true}) do \
                      table.insert(r, `{entry.name} {entry.path} {entry.type} {entry.size}`) end \
                  table.insert(r, #fs.list('d')) \
                  table.insert(r, #fs.list('/io', {recursive = true, max_depth = 2})) \
                  table.insert(r, fs.exists('d/e/f')) table.insert(r, fs.exists('d')) \
                  table.insert(r, fs.exists('no')) \
                  fs.remove('d/e/f') fs.write('d/x', '') \
                  table.insert(r, fs.remove('d', {recursive = true})) \
                  table.insert(r, #fs.list()) return r";
    let found = sandbox.value(source);
    let size = |name: &str| {
        let found = found.as_array().unwrap().iter().filter_map(Value::as_str);
        found.filter(|line| line.starts_with(name)).map(str::to_owned).next().unwrap()
    };
    assert!(size("d /io/d directory").len() > 5 && size("e /io/d/e directory").len() > 5);
    assert_eq!(size("f "), "f /io/d/e/f file 3");
    assert_eq!(found.as_array().unwrap()[..2], [json!(true), json!(false)]);
    let rest = &found.as_array().unwrap()[5..];
    assert_eq!(json!(rest), json!([1, 2, "file", "directory", false, true, 0]));
}

#[test]
fn touch_takes_seconds_and_rfc_3339() {
    let sandbox = Sandbox::new();
    let source = "local r = {fs.touch('d/f'), fs.read('d/f')} \
                  for _, time in {1.5, -0.25, '2026-11-21T22:00:00.5Z', '2026-11-22T00:00:00+02:00'} do \
                      table.insert(r, fs.touch('d/f', {mtime = time})) \
                      table.insert(r, fs.stat('d/f').modified) end \
                  fs.touch('d', {mtime = fs.stat('d/f').modified}) \
                  table.insert(r, fs.stat('d').modified) return r";
    assert_eq!(
        sandbox.value(source),
        json!([
            true, "", false, 1.5, false, -0.25, false, 1_795_298_400.5, false, 1_795_298_400,
            1_795_298_400
        ])
    );
    let expected = "invalid option 'mtime' (seconds or RFC 3339 expected, got";
    for (time, got) in [("0/0", "number"), ("1e18", "number"), ("'now'", "string")] {
        let message = raises(&sandbox, &format!("fs.touch('f', {{mtime = {time}}})"));
        assert_eq!(message, format!("{expected} {got})"), "{time}");
    }
    assert_eq!(sandbox.value("return fs.exists('f')"), json!(false));
}

#[test]
fn grep_takes_its_default_context_as_an_option() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("f"), "one\ntwo\nthree\n").unwrap();
    let source = "local lines = fs.grep('two', 'f', {context = 0}) \
                  return {#lines, lines[1].text, #fs.grep('two', 'f', {context = 1})}";
    assert_eq!(sandbox.value(source), json!([1, "two", 3]));
}

#[test]
fn search_goes_deep_leaves_out_what_is_excluded_and_says_where_it_stopped() {
    let sandbox = Sandbox::new();
    let deep = format!("a/{}", "d/".repeat(30));
    for name in [&*deep, "node_modules/p/", "src/"] {
        std::fs::create_dir_all(sandbox.path().join(name)).unwrap();
        std::fs::write(sandbox.path().join(name).join("f.java"), "class Order{}").unwrap();
    }
    let source = "local found = fs.glob('**/*.java', {exclude = 'node_modules/**'}) \
                  local lines = fs.grep('Order', nil, {exclude = {'node_modules', '!a'}}) \
                  local only = fs.grep('Order', 'src', {glob = '!*.java'}) \
                  local first, more, note = fs.glob('**/*.java', {limit = 2}) \
                  return {#found, found[1], #lines, lines[1].path, #only, first[1], more, note}";
    let expected = json!([
        2,
        format!("{deep}f.java"),
        1,
        "src/f.java",
        0,
        "node_modules/p/f.java",
        true,
        format!("the limit of 2 was reached at '{deep}f.java'"),
    ]);
    assert_eq!(sandbox.value(source), expected);
    for (call, message) in [
        ("fs.glob('*', {exclude = 1})", "(string or table of strings expected, got number)"),
        ("fs.grep('x', '.', {exclude = {{}}})", "(table of strings expected, got table in it)"),
        ("fs.glob('*', {exclude = {'['}})", "[: not a glob: "),
    ] {
        assert!(raises(&sandbox, call).contains(message), "{call}: {}", raises(&sandbox, call));
    }
}

#[test]
fn stat_returns_a_table() {
    let sandbox = Sandbox::new();
    let source = "local now = os.time() fs.write('f', 'x') local s = fs.stat('./f') \
                  assert(math.abs(s.modified - now) < 86400 and s.accessed) \
                  assert(s.created == nil or type(s.created) == 'number') \
                  return {s.path, s.type, s.size, s.permissions, type(s.uid), type(s.gid)}";
    let expected = json!(["/io/f", "file", 1, "rw-r--r--", "number", "number"]);
    assert_eq!(sandbox.value(source), expected);
}

#[test]
fn failures_raise_in_both_modes() {
    for io_errors in [IoErrors::Raise, IoErrors::Return] {
        let sandbox = Sandbox { io_errors, ..Sandbox::new() };
        std::fs::write(sandbox.path().join("f"), "x").unwrap();
        std::fs::create_dir_all(sandbox.path().join("d/e")).unwrap();
        for (call, message) in [
            ("fs.read('no')", "no: No such file or directory"),
            ("fs.read('d')", "d: Is a directory"),
            ("fs.read('../x')", "../x: '..' is not allowed in a path"),
            ("fs.write('d', 'x')", "d: Is a directory"),
            ("fs.write('f', 'x', {create_new = true})", "f: File exists"),
            ("fs.remove('d')", "d: Directory not empty"),
            ("fs.remove('no')", "no: No such file or directory"),
            ("fs.mkdir('f')", "f: File exists"),
            ("fs.mkdir('n/n', {parents = false})", "n/n: No such file or directory"),
            ("fs.touch('f/x')", "f/x: Not a directory"),
            ("fs.list('f')", "f: Not a directory"),
            ("fs.stat('no')", "no: No such file or directory"),
            ("fs.exists('/etc')", "/etc: outside the sandbox's directories"),
        ] {
            assert_eq!(raises(&sandbox, call), message, "{call}");
        }
    }
}

#[test]
fn invalid_arguments_and_options_raise_before_anything_changes() {
    let sandbox = Sandbox::new();
    for (call, message) in [
        ("fs.read()", "missing argument #1 to 'read' (string expected)"),
        ("fs.write('f')", "missing argument #2 to 'write' (string expected)"),
        ("fs.write('f', {})", "invalid argument #2 to 'write' (string expected, got table)"),
        ("fs.write('f', '', 1)", "invalid argument #3 to 'write' (table expected, got number)"),
        ("fs.write('f', '', {apend = true})", "unknown option: 'apend'"),
        ("fs.write('f', '', {true})", "unknown option: '1'"),
        (
            "fs.write('f', '', {append = 1})",
            "invalid option 'append' (boolean expected, got number)",
        ),
        (
            "fs.write('f', '', {append = true, create_new = true})",
            "the options 'append' and 'create_new' exclude each other",
        ),
        ("fs.list('.', {max_depth = 2})", "the option 'max_depth' is for lists that are recursive"),
        (
            "fs.list('.', {recursive = true, max_depth = 0})",
            "invalid option 'max_depth' (whole number from 1 expected, got number)",
        ),
        (
            "fs.grep('x', '.', {context = -1})",
            "invalid option 'context' (whole number from 0 expected, got number)",
        ),
    ] {
        assert_eq!(raises(&sandbox, call), message, "{call}");
    }
    assert_eq!(std::fs::read_dir(sandbox.path()).unwrap().count(), 0);
}

#[test]
fn entries_that_no_path_is_long_enough_for_are_in_no_list_and_no_search() {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let sandbox = Sandbox::new();
    // The path of the 16th is the last one that an operation takes.
    let name = "n".repeat(250);
    let mut here = std::fs::File::open(sandbox.path()).unwrap();
    for _ in 0..17 {
        mkdirat(&here, &name, Mode::RWXU).unwrap();
        here = openat(&here, &name, OFlags::RDONLY, Mode::empty()).unwrap().into();
    }
    let source = "local name = string.rep('n', 250) \
                  local top = string.rep(name .. '/', 15) \
                  local found = fs.glob(top .. '**') \
                  local _, more = fs.glob(top .. '**', {limit = 5}) \
                  return #fs.list(top, {recursive = true}), #found, more, \
                      #io.list(top), #io.list(top .. name)";
    assert_eq!(sandbox.value(source), json!([1, 1, true, 1, 0]));
}

#[test]
fn the_limits_hold_for_fs_and_end_a_run_that_does_not_catch_them() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.file_bytes = 100;
    sandbox.limits.write_bytes = 150;
    sandbox.limits.entries = 3;
    sandbox.limits.list_entries = 2;
    sandbox.limits.list_depth = 1;
    let message = raises(&sandbox, "fs.write('f', string.rep('x', 101))");
    assert_eq!(message, "f: more than 100 bytes are too many");
    let error = sandbox.error("for i = 1, 3 do fs.write('f', string.rep('x', 60)) end");
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    let error = sandbox.error("for i = 1, 4 do fs.mkdir('d' .. i) end");
    assert_eq!(error.kind, ErrorKind::TooManyFiles);
    let message = raises(&sandbox, "fs.list()");
    assert!(message.starts_with(".: the limit of 2 was reached at '"), "{message}");
    let deep = Sandbox { limits: sandbox.limits.clone(), ..Sandbox::new() };
    deep.value("fs.mkdir('a/b')");
    let message = raises(&deep, "fs.list('.', {recursive = true})");
    assert_eq!(message, ".: what is in 'a' is deeper than 1, and left out (filesystem.max_depth)");
    assert_eq!(deep.value("return #fs.list()"), json!(1));
}

#[test]
fn a_file_larger_than_the_machines_memory_is_not_read_as_a_string() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.vm_memory_bytes = 8 << 20;
    sandbox.limits.file_bytes = 1 << 30;
    let large = std::fs::File::create(sandbox.path().join("large")).unwrap();
    large.set_len(64 << 20).unwrap();
    let caught = "local ok, e = pcall(fs.read, 'large') return e";
    assert_eq!(sandbox.value(caught), json!("not enough memory"));
    assert_eq!(sandbox.error("fs.read('large')").kind, ErrorKind::OutOfMemory);
}

#[test]
fn a_run_that_is_stopped_leaves_its_operation() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path().join("d")).unwrap();
    sandbox.stop.stop(StopReason::Cancelled);
    let error = sandbox.error("fs.remove('d', {recursive = true})");
    assert_eq!(error.kind, ErrorKind::Cancelled);
}

#[test]
fn without_io_there_is_no_fs() {
    let sandbox = Sandbox::without_files();
    assert_eq!(sandbox.value("return fs == nil"), json!(true));
    let error = sandbox.error("fs.read('x')");
    assert!(error.message.ends_with("(io is off in this run)"), "{}", error.message);
}
