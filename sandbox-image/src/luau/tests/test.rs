//! `test`: cases of a script.

use sandbox_protocol::limits::{
    MAX_TEST_CASES, MAX_TEST_MESSAGE_BYTES, MAX_TEST_NAME_BYTES, encoded_len,
};
use sandbox_protocol::message::{TestCase, TestStatus};

use super::*;

/// What a script returned, and its cases.
fn cases(source: &str) -> (Value, Vec<TestCase>) {
    let sandbox = Sandbox::new();
    let value = sandbox.value(source);
    (value, sandbox.cases())
}

/// The one case of a script that has the function's body `body`.
fn case(body: &str) -> TestCase {
    let (_, mut cases) = cases(&format!("test.case('c', function() {body} end)"));
    assert_eq!(cases.len(), 1);
    cases.remove(0)
}

#[test]
fn cases_are_reported_in_order_and_a_failed_one_ends_nothing() {
    let (value, cases) = cases(
        "local a = test.case('sums', function() test.equal(1 + 1, 2) end)
         local b = test.case('words', function()
             test.equal('a', 'b', 'first')
         end)
         local c = test.case('later', function() test.skip('not yet') end)
         local d = test.case('raised', function() error({ code = 7 }) end)
         return { a, b, c, d }",
    );
    assert_eq!(value, json!([true, false, true, false]));
    let outcomes: Vec<_> = cases
        .iter()
        .map(|it| (it.name.as_str(), it.status, it.message.as_deref(), it.line))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("sums", TestStatus::Passed, None, None),
            (
                "words",
                TestStatus::Failed,
                Some(r#"script:3: first: expected "b", got "a""#),
                Some(3)
            ),
            ("later", TestStatus::Skipped, Some("not yet"), None),
            ("raised", TestStatus::Failed, Some("(error object is a table value)"), None),
        ]
    );
}

#[test]
fn values_are_equal_by_their_content() {
    for (one, other, difference) in [
        ("{ a = { 1, 2 } }", "{ a = { 1, 2 } }", None),
        ("json.decode('[null]')", "{ json.null }", None),
        ("vector.create(1, 2, 3)", "vector.create(1, 2, 3)", None),
        ("'1'", "1", Some(r#"expected 1, got "1""#)),
        ("{ a = { 1, 2 } }", "{ a = { 1, 3 } }", Some("expected 3, got 2 at .a[2]")),
        ("{ 1 }", "{ 1, 2 }", Some("expected 2, got nil at [2]")),
        ("{ ['x y'] = 1 }", "{}", Some(r#"expected nil, got 1 at ["x y"]"#)),
        ("{ [true] = false }", "{}", Some("expected nil, got false at [true]")),
        ("{}", "1", Some("expected 1, got a table")),
        ("print", "warn", Some("expected a function, got a function")),
        ("0 / 0", "0 / 0", Some("expected nan, got nan")),
    ] {
        let outcome = case(&format!("test.equal({one}, {other})"));
        let expected = difference.map(|text| format!("script:1: {text}"));
        assert_eq!(outcome.message.map(|it| it.replace("-nan", "nan")), expected, "{one}, {other}");
    }
    let deep = "local function deep() local t = {} for i = 1, 100 do t = { t } end return t end \
                test.equal(deep(), deep())";
    assert_eq!(case(deep).message.unwrap(), "script:1: tables are nested deeper than 64");
}

#[test]
fn cyclic_and_shared_tables_are_compared_once() {
    for (body, difference) in [
        ("local a, b = {}, {}; a.x = a; b.x = b; test.equal(a, b)", None),
        // A cycle of two tables looks from within like one of a single table.
        ("local a, b = { x = {} }, {}; a.x.x = a; b.x = b; test.equal(a, b)", None),
        (
            "local a, b = { n = 1 }, { n = 2 }; a.x = a; b.x = b; test.equal(a, b)",
            Some("expected 2, got 1 at .n"),
        ),
        (
            "local a, b = {}, {}; a.x = a; b.x = { x = 1 }; test.equal(a, b)",
            Some("expected 1, got a table at .x.x"),
        ),
        // 2^60 paths to one leaf.
        (
            "local function twice(leaf) local t = { leaf } \
             for i = 1, 60 do t = { t, t } end return t end \
             test.equal(twice(1), twice(1)) test.equal({ twice(1) }, { twice(2) })",
            Some("expected 2, got 1 at [1][1]"),
        ),
    ] {
        let outcome = case(body);
        let message = outcome.message.as_deref();
        match difference {
            None => assert_eq!(message, None, "{body}"),
            Some(text) => {
                let message = message.unwrap();
                assert!(message.starts_with(&format!("script:1: {text}")), "{body}: {message}");
            }
        }
    }
}

#[test]
fn misuse_is_an_error_of_its_caller() {
    for (source, message) in [
        ("test.case()", "missing argument #1 to 'case' (string expected)"),
        ("test.case('a', 1)", "invalid argument #2 to 'case' (function expected, got number)"),
        ("test.skip()", "test.skip is for a test case"),
        ("test.fail('no')", "no"),
        ("test.equal(1)", "missing argument #2 to 'equal' (value expected)"),
    ] {
        assert_eq!(error(source).message, format!("script:1: {message}"));
    }
    let nested = case("test.case('d', function() end)");
    assert_eq!(nested.message.unwrap(), "script:1: test.case cannot be called in a test case");
    // An error that a script catches does not fail the case, and one after a skip does.
    assert_eq!(case("pcall(test.skip, 'x')").status, TestStatus::Passed);
    assert_eq!(case("pcall(test.skip, 'x'); error('y')").status, TestStatus::Failed);
    assert_eq!(case("pcall(test.skip); error('y')").status, TestStatus::Failed);
    assert_eq!(case("pcall(test.skip, 'x'); error('another x')").status, TestStatus::Failed);
    assert_eq!(case("test.skip()").message, None);
}

#[test]
fn failed_case_shows_an_error_object_as_an_uncaught_error_shows_it() {
    let object = "error(setmetatable({}, { __tostring = function() return 'own words' end }))";
    for (raise, message) in [
        (object, "own words"),
        (
            "error(setmetatable({}, { __tostring = function() error('x') end }))",
            "(error object is a table value)",
        ),
        (
            "error(setmetatable({}, { __tostring = function() test.skip('x') end }))",
            "(error object is a table value)",
        ),
        ("error({ code = 7 })", "(error object is a table value)"),
        ("error(json.null)", "null"),
        ("error(12, 0)", "12"),
        ("error()", "nil"),
    ] {
        let outcome = case(raise);
        assert_eq!((outcome.status, &*outcome.message.unwrap()), (TestStatus::Failed, message));
        assert_eq!(error(raise).message, message);
    }
    // The next case is not affected.
    let (value, cases) = cases(&format!(
        "test.case('a', function() {object} end) return test.case('b', function() end)"
    ));
    assert_eq!((value, cases.len()), (json!(true), 2));
}

#[test]
fn a_skip_passes_through_what_adds_a_position_to_it() {
    for body in [
        "coroutine.wrap(function() test.skip('later') end)()",
        "coroutine.wrap(function() coroutine.wrap(test.skip)('later') end)()",
        "local _, e = pcall(test.skip, 'later'); error(e)",
    ] {
        let outcome = case(body);
        assert_eq!(
            (outcome.status, outcome.message.as_deref()),
            (TestStatus::Skipped, Some("later"))
        );
    }
}

#[test]
fn limits_and_the_deadline_end_a_script_in_a_case_too() {
    let sandbox = Sandbox { limits: Limits { write_bytes: 3, ..LIMITS }, ..Sandbox::new() };
    let error = sandbox.error("test.case('c', function() fs.write('a', 'long') end)");
    assert_eq!(error.kind, ErrorKind::WriteLimit);
    assert_eq!(sandbox.cases()[0].status, TestStatus::Failed);

    let source = "test.case('c', function() print('on'); while true do end end)";
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.stopped(source, StopReason::Timeout).kind, ErrorKind::Timeout);
    assert_eq!(sandbox.cases(), []);
}

#[test]
fn memory_that_runs_out_in_a_case_fails_it_and_ends_the_script() {
    let fill = "local t = {} while true do table.insert(t, string.rep('x', 1e6) .. #t) end";
    for body in [
        fill.to_owned(),
        "string.rep('x', 1e8)".to_owned(),
        format!("coroutine.wrap(function() {fill} end)()"),
        format!("local _, e = pcall(function() {fill} end) error(e)"),
        format!("local _, e = pcall(function() {fill} end) error(e, 0)"),
    ] {
        let sandbox = Sandbox::new();
        let error = sandbox.error(&format!(
            "test.case('ok', function() end) test.case('oom', function() {body} end)
             test.case('later', function() end)"
        ));
        assert_eq!(error.kind, ErrorKind::OutOfMemory, "{body}: {error:?}");
        assert!(error.message.ends_with("not enough memory"), "{body}: {error:?}");
        let cases = sandbox.cases();
        let outcomes: Vec<_> = cases.iter().map(|it| (it.name.as_str(), it.status)).collect();
        assert_eq!(outcomes, [("ok", TestStatus::Passed), ("oom", TestStatus::Failed)], "{body}");
        assert!(cases[1].message.as_deref().unwrap().ends_with("not enough memory"), "{cases:?}");
    }
    // A case that catches the error has passed.
    let (value, outcomes) =
        cases("return test.case('c', function() pcall(string.rep, 'x', 1e8) end)");
    assert_eq!((value, outcomes[0].status), (json!(true), TestStatus::Passed));
}

#[test]
fn names_messages_and_the_number_of_cases_are_bounded() {
    let source =
        "test.case(string.rep('\\0', 1000), function() test.fail(string.rep('é', 9999)) end)";
    let (_, cases) = cases(source);
    assert!(encoded_len(&cases[0].name) <= MAX_TEST_NAME_BYTES && cases[0].name.ends_with('…'));
    let message = cases[0].message.as_deref().unwrap();
    assert!(encoded_len(message) <= MAX_TEST_MESSAGE_BYTES && message.ends_with('…'));

    let sandbox = Sandbox::new();
    let source = format!("for i = 1, {MAX_TEST_CASES} + 1 do test.case('c', function() end) end");
    assert_eq!(sandbox.error(&source).message, "script:1: too many test cases");
    assert_eq!(sandbox.cases().len(), MAX_TEST_CASES);
}
