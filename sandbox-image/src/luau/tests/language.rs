//! Available and missing globals.

use super::*;

#[test]
fn the_globals_are_these() {
    let source = "local names = {} for name in _G do table.insert(names, name) end \
                  table.sort(names) return table.concat(names, ' ')";
    let with_io = "_G _VERSION args assert bit32 buffer coroutine debug error fs \
                   getmetatable io ipairs json math next os pairs pcall policy print rawequal rawget rawlen rawset \
                   secrets select setmetatable string table test tonumber tostring type typeof unpack utf8 \
                   vector warn xpcall";
    assert_eq!(value(source), json!(with_io));
    let without_io = with_io.replace(" io ", " ").replace(" fs ", " ");
    assert_eq!(Sandbox::without_files().value(source), json!(without_io));
}

#[test]
fn libraries_hold_only_what_is_documented() {
    let list = "local function list(t) local names = {} for name in t do \
                table.insert(names, name) end table.sort(names) return table.concat(names, ' ') end ";
    let source = format!("{list} return list(os), list(io), list(fs), list(json), list(debug)");
    let all = json!([
        "clock date difftime remove rename time",
        "lines list open type",
        "copy exists glob grep list mkdir read remove rename stat touch write",
        "array decode encode null",
        "info traceback",
    ]);
    assert_eq!(value(&source), all);
    let source = format!("{list} return list(os), type(io), type(fs), type(process)");
    let none = json!(["clock date difftime time", "nil", "nil", "nil"]);
    assert_eq!(Sandbox::without_files().value(&source), none);
}

#[test]
fn every_registered_table_is_read_only() {
    for table in [
        "os", "io", "fs", "json", "string", "table", "math", "args", "debug", "coroutine", "utf8",
        "bit32", "buffer", "vector", "getmetatable('').__index", "getmetatable(json.array({}))",
    ] {
        let error = error(&format!("local t = {table} t.x = 1"));
        assert_eq!(error.message, "script:1: attempt to modify a readonly table", "{table}");
        let error = super::error(&format!("rawset({table}, 'x', 1)"));
        assert_eq!(error.message, "attempt to modify a readonly table", "{table}");
    }
    assert_eq!(
        value("local h = io.open('a', 'w') return getmetatable(h), getmetatable(json.null)"),
        json!(["The metatable is locked", "The metatable is locked"])
    );
}

#[test]
fn the_globals_are_the_scripts_own() {
    for (source, expected) in [
        ("_G.x = 1 return x", json!(1)),
        ("x = 1 return _G.x, rawget(_G, 'x'), _G._G == _G", json!([1, 1, true])),
        ("function f() return 1 end return _G.f()", json!(1)),
        // Luau treats globals that no script can change as constant; these can be changed.
        ("_G.tostring = function() return 'mine' end return tostring(1)", json!("mine")),
        (
            "local g = _G g.math = {abs = function() return 'mine' end} return math.abs(1)",
            json!("mine"),
        ),
        (
            "setmetatable(_G, {__newindex = function(_, k) error('undeclared ' .. k, 0) end}) \
             return select(2, pcall(function() y = 1 end)), type(print)",
            json!(["undeclared y", "function"]),
        ),
        ("return coroutine.wrap(function() return _G end)() == _G", json!(true)),
    ] {
        assert_eq!(value(source), expected, "{source}");
    }
    // The globals of the VM cannot be reached from them, and are read-only.
    assert_eq!(value("return getmetatable(_G), _G.io == io"), json!([null, true]));
    assert_eq!(error("_G.math.abs = 1").message, "script:1: attempt to modify a readonly table");
    // Changes of an earlier run are gone.
    let sandbox = Sandbox::new();
    sandbox.value("_G.x, _G.print = 1, nil");
    assert_eq!(sandbox.value("return _G.x, type(print)"), json!([null, "function"]));
}

#[test]
fn print_and_warn_make_one_entry_a_call() {
    let sandbox = Sandbox::new();
    sandbox.value(
        "print(1, 'a\\nb', nil, true, 1.5, setmetatable({}, {__tostring = function() return 'T' end})) \
         print() warn('careful', 2)",
    );
    let expected = [
        (LogLevel::Print, "1\ta\nb\tnil\ttrue\t1.5\tT".to_owned()),
        (LogLevel::Print, String::new()),
        (LogLevel::Warn, "careful\t2".to_owned()),
    ];
    assert_eq!(sandbox.logs(), expected);
}

#[test]
fn a_huge_entry_is_cut() {
    let sandbox = Sandbox::new();
    sandbox.value("local s = string.rep('é', 1e6) print(s, s)");
    let logs = sandbox.logs();
    assert_eq!(logs[0].1, "é".repeat(32 << 10));
}

#[test]
fn an_error_in_tostring_is_the_scripts() {
    let error = error("print(setmetatable({}, {__tostring = function() error('no') end}))");
    assert_eq!(error.message, "script:1: no");
    let error = super::error("print(setmetatable({}, {__tostring = function() return {} end}))");
    assert!(error.message.contains("'__tostring' must return a string"), "{error:?}");
}

#[test]
fn args_are_read_only_all_the_way_down() {
    let mut sandbox = Sandbox::new();
    sandbox.args = json!({"k": "v", "deep": {"list": [1, {"x": null}]}, "empty": []})
        .as_object()
        .unwrap()
        .clone();
    assert_eq!(
        sandbox.value("return args, args.deep.list[2].x == json.null"),
        json!([sandbox.args, true])
    );
    for target in ["args", "args.deep", "args.deep.list", "args.deep.list[2]", "args.empty"] {
        let error = sandbox.error(&format!("{target}[1] = 1"));
        assert_eq!(error.message, "script:1: attempt to modify a readonly table");
    }
}

#[test]
fn format_takes_any_value_by_a_star() {
    assert_eq!(
        value("return string.format('%* %* %s', nil, true, 1), pcall(string.format, '%s', nil)"),
        json!(["nil true 1", false, "invalid argument #2 to 'format' (string expected, got nil)"])
    );
}

#[test]
fn dates_are_in_utc() {
    assert_eq!(
        value(
            "return os.date('%Y-%m-%d %H:%M:%S', 86400), os.date('!%H', 0), os.date('*t', 0).hour"
        ),
        json!(["1970-01-02 00:00:00", "00", 0])
    );
    assert_eq!(
        value(
            "return os.time({year=1970, month=1, day=2, hour=0}), os.difftime(5, 3), \
               type(os.clock()), #os.date() > 10, os.date('!%Y', '-1'), os.date('%Y', -0.5)"
        ),
        json!([86400, 2, "number", true, "1969", "1970"])
    );
    // Luau has no local date for a time before 1970, and neither has the sandbox.
    assert_eq!(
        value(
            "return tostring(os.date('%Y', -1)), tostring(os.date(nil, '-1')), \
               tostring(os.date('*t', -86400)), os.date('!*t', -86400).year"
        ),
        json!(["nil", "nil", "nil", 1969])
    );
    let error = error("\nos.date('%Ez')");
    assert_eq!(
        error.message,
        "script:2: invalid argument #1 to 'date' (invalid conversion specifier)"
    );
}

#[test]
fn script_with_a_time_of_its_own_sees_no_other() {
    let sandbox = Sandbox { now: Some(1_767_225_600), ..Sandbox::new() };
    let source = "local before = os.time()
        while os.clock() < 0.01 do end
        return before, os.time(nil), os.date('%Y-%m-%d %H:%M:%S'), os.date('!*t').year, os.date('*t').yday,
            os.time({year=1970, month=1, day=2, hour=0}), os.date('%Y', 0), os.clock() < 60,
            pcall(os.time, 'x')";
    let found = sandbox.value(source);
    let expected = json!([
        1_767_225_600, 1_767_225_600, "2026-01-01 00:00:00", 2026, 1, 86400, "1970", true, false
    ]);
    assert_eq!(found.as_array().unwrap()[..9], expected.as_array().unwrap()[..]);
    assert_eq!(value("return os.time() > 1767225600 and os.clock() >= 0"), json!(true));
}

#[test]
fn script_with_a_seed_draws_the_same_numbers() {
    let draw = |seed| {
        let sandbox = Sandbox { seed, ..Sandbox::new() };
        sandbox.value("return math.random(1e9), math.random(), math.random(1, 6)")
    };
    assert_eq!(draw(Some(7)), draw(Some(7)));
    assert_ne!(draw(Some(7)), draw(Some(8)));
    assert_ne!(draw(Some(u32::MAX)), draw(Some(u32::MAX - 1)));
    assert_ne!(draw(None), draw(None));
    let again = "math.randomseed(7) return math.random(1e9), math.random(), math.random(1, 6)";
    assert_eq!(value(again), draw(Some(7)), "a seed is what randomseed takes");
}

#[test]
fn no_text_shows_an_address() {
    // One of a process has zeros there.
    let is_raw = |_: i32| {
        let text = value("return tostring({})");
        text.as_str().unwrap().starts_with("table: 0x0000")
    };
    assert!(!(0..4).all(is_raw));
}

#[test]
fn a_chunk_begins_like_any_coroutine_of_luau() {
    assert_eq!(
        value("return coroutine.running() == nil, coroutine.isyieldable()"),
        json!([true, true])
    );
    let error = error("\ncoroutine.yield(1)");
    assert_eq!(error.kind, ErrorKind::Runtime);
    assert_eq!(error.message, "attempt to yield from outside a coroutine");
    assert_eq!(error.line, Some(2));
}

#[test]
fn an_uncaught_error_has_its_line_and_traceback() {
    let error = error(
        "local function inner()\n  error('bad')\nend\nlocal function outer()\n  inner()\nend\nouter()",
    );
    assert_eq!(error.kind, ErrorKind::Runtime);
    assert_eq!(error.message, "script:2: bad");
    assert_eq!(error.line, Some(2));
    assert_eq!(
        error.traceback.as_deref(),
        Some("script:2 function inner\nscript:5 function outer\nscript:7")
    );
    let error = super::error("local x = nil\nreturn x.y");
    assert_eq!(error.message, "script:2: attempt to index nil with 'y'");
    let error = super::error("\n\nerror('plain', 0)");
    assert_eq!((error.message.as_str(), error.line), ("plain", Some(3)));
}

#[test]
fn an_error_may_be_any_value() {
    for (thrown, message) in [
        ("{}", "(error object is a table value)"),
        ("nil", "nil"),
        ("42", "42"),
        ("true", "true"),
        ("print", "(error object is a function value)"),
        ("json.null", "null"),
        ("setmetatable({}, {})", "(error object is a table value)"),
        ("setmetatable({}, {__tostring = function() return 'mine' end})", "mine"),
        (
            "setmetatable({}, {__tostring = function() error('no') end})",
            "(error object is a table value)",
        ),
        ("'\\255'", "\u{fffd}"),
    ] {
        assert_eq!(error(&format!("error({thrown}, 0)")).message, message, "{thrown}");
    }
}

#[test]
fn a_deep_traceback_shows_both_ends() {
    let error = error(
        "local function f(n) if n == 0 then error(string.rep('x', 1e6)) end return (f(n - 1)) end\n\
         f(15000)",
    );
    let frames = |count| "script:1 function f\n".repeat(count);
    let expected = format!("{}… 14982 more\n{}script:2", frames(10), frames(9));
    assert_eq!(error.traceback, Some(expected));
    assert_eq!(error.message.len(), 64 << 10);
}

#[test]
fn raised_table_is_kept_as_json() {
    let raised = error("error({ code = 7, list = { 'a' } })");
    assert_eq!(raised.value, Some(json!({ "code": 7, "list": ["a"] })));
    assert_eq!(raised.message, "(error object is a table value)");
    for source in ["error('text')", "error({ f = print })", "error(nil)", "return nil + 1"] {
        assert_eq!(error(source).value, None, "{source}");
    }
    let long = error("error({ text = string.rep('x', 100000) })");
    assert_eq!(long.value, None);
}

#[test]
fn name_that_is_not_there_is_named() {
    for (source, message) in [
        (
            "local x = 1\nprnt(x)",
            "script:2: attempt to call a nil value (there is no global 'prnt': did you mean 'print'?)",
        ),
        ("return foo.bar", "script:1: attempt to index nil with 'bar' (there is no global 'foo')"),
    ] {
        assert_eq!(error(source).message, message);
    }
    assert!(error("io.read()").message.contains("there is no 'io.read': input is a file"));
    assert!(error("os.getenv('HOME')").message.contains("--arg NAME=VALUE"));
    // What a script sets to nil itself is not explained.
    assert_eq!(error("f = nil\nf()").message, "script:2: attempt to call a nil value");
}

#[test]
fn known_names_are_those_of_the_vm() {
    let listed = "local all = {}\nfor name, value in _G do\n  if type(value) == 'table' and name ~= \
                  '_G' and name ~= 'args' then\n    for member in value do all[name .. '.' .. \
                  member] = true end\n  end\n  all[name] = true\nend\nreturn all";
    let Value::Object(all) = Sandbox::new().run(listed).unwrap() else { panic!("it is a table") };
    let found: Vec<_> = all.keys().map(String::as_str).collect();
    let mut known = super::super::names::known();
    // Only a sandbox of an image has programs, and only a run that was given some has tools.
    known.retain(|name| !name.starts_with("process") && name != "tools");
    known.sort();
    assert_eq!(known, found);
}

#[test]
fn syntax_errors_have_a_line() {
    let error = error("local x = 1\nlocal = 2");
    assert_eq!((error.kind, error.line), (ErrorKind::Syntax, Some(2)));
    assert!(error.message.starts_with("script:2: Expected identifier"), "{error:?}");
    assert_eq!(super::super::check("local x = 1\nlocal = 2"), Err(error));
    assert_eq!(super::super::check("return 1"), Ok(Vec::new()));
}

#[test]
fn hints_meet_scripts_that_expect_something_else() {
    let error = error("file.save('a', 'b')");
    assert_eq!(
        error.message,
        "script:1: attempt to index nil with 'save' \
         (there is no file.save: io.open(name, \"w\"):write(data):close())"
    );
    let error = Sandbox::without_files().error("file.save('a', 'b')");
    assert_eq!(
        error.message,
        "script:1: attempt to index nil with 'save' (there is no file.save: io is off in this run)"
    );
    let error = Sandbox::without_files().error("io.open('a')");
    assert_eq!(error.message, "script:1: attempt to index nil with 'open' (io is off in this run)");
    let error = super::error("process.exec('ls')");
    assert_eq!(
        error.message,
        "script:1: attempt to index nil with 'exec' \
         (this sandbox does not support commands: `run --image IMAGE` creates one that does)"
    );
    let error = super::error("tools.github.list_issues {}");
    assert_eq!(
        error.message,
        "script:1: attempt to index nil with 'github' (this run was given no tools)"
    );
    let error = super::error("require('x')");
    assert!(error.message.starts_with("script:1: attempt to call a nil value ("), "{error:?}");
}
