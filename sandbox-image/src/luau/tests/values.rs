//! Results and `json`.

use super::*;

#[test]
fn returned_values_become_json() {
    for (source, expected) in [
        ("", json!(null)),
        ("return", json!(null)),
        ("return nil", json!(null)),
        ("return nil, nil", json!([null, null])),
        ("return 1, 'two', nil, false", json!([1, "two", null, false])),
        ("return {1, 2, 3}", json!([1, 2, 3])),
        ("return {a = 1, b = {c = true}}", json!({"a": 1, "b": {"c": true}})),
        ("return {}", json!({})),
        ("return json.array({})", json!([])),
        ("return json.null", json!(null)),
        ("return {json.null, 1}", json!([null, 1])),
        ("return {n = json.null}", json!({"n": null})),
        ("return 'é\\u{1F600}\\0\\n\"'", json!("é😀\0\n\"")),
        (
            "return 1e15, 2^53, -2^53, 0.1, 1e300, -0",
            json!([
                1_000_000_000_000_000_i64, 9_007_199_254_740_992_i64, -9_007_199_254_740_992_i64,
                0.1, 1e300, 0
            ]),
        ),
        ("return 2^53 + 2, 5e-324", json!([9_007_199_254_740_994.0, 5e-324])),
        ("local t = {} return {t, t}", json!([{}, {}])),
        ("return setmetatable({a = 1}, {__index = {b = 2}})", json!({"a": 1})),
    ] {
        assert_eq!(value(source), expected, "{source}");
    }
}

#[test]
fn integral_numbers_print_as_integers_and_keys_are_sorted() {
    assert_eq!(
        value("return json.encode({b = 1e15, a = 3.0, c = 0.5, [\"\\n\"] = 2^53, z = 1e21})"),
        json!(r#"{"\n":9007199254740992,"a":3,"b":1000000000000000,"c":0.5,"z":1e+21}"#)
    );
}

#[test]
fn values_outside_json_are_refused_with_their_path() {
    for (source, message) in [
        ("return print", "result is a function, which JSON cannot hold"),
        (
            "return {rows = {1, 2, {f = function() end}}}",
            "result.rows[3].f is a function, which JSON cannot hold",
        ),
        ("return 1, {x = 0/0}", "result[2].x is not a number (NaN), which JSON cannot hold"),
        ("return -1/0", "result is infinite, which JSON cannot hold"),
        ("return {['a b'] = '\\255'}", "result[\"a b\"] is a string that is not UTF-8"),
        ("return {1, 2, a = 3}", "result has both indices and keys that are strings"),
        ("return {a = {[1] = 1, [3] = 3}}", "result.a has holes: 2 elements up to index 3"),
        ("return {1, nil, 3}", "result has holes: 2 elements up to index 3"),
        ("return {[1.5] = 1}", "result has the key 1.5, which JSON cannot hold"),
        ("return {[0] = 1}", "result has the key 0, which JSON cannot hold"),
        ("return {[true] = 1}", "result has a key that is a boolean"),
        ("return {['\\255'] = 1}", "result has a key that is not UTF-8"),
        ("local t = {} t.a = {t} return t", "result.a[1] contains itself"),
        ("return io.open('a', 'w')", "result is a file, which JSON cannot hold"),
        ("return buffer.create(1)", "result is a buffer, which JSON cannot hold"),
        ("return vector.one", "result is a vector, which JSON cannot hold"),
        ("return coroutine.create(print)", "result is a thread, which JSON cannot hold"),
        (
            "local t = json.array({}) t.x = 1 return t",
            "result is a json.array with keys that are strings",
        ),
    ] {
        let error = error(source);
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::ResultNotJson, message));
    }
    // A long key is cut.
    let error = error("return {[string.rep('k', 129)] = print}");
    let shown = format!("result[\"{}…\"] is a function, which JSON cannot hold", "k".repeat(128));
    assert_eq!(error.message, shown);
}

#[test]
fn values_nest_as_deep_as_the_wire_takes() {
    let nested = |depth| format!("local t = 1 for i = 1, {depth} do t = {{t}} end return t");
    value(&nested(56));
    let error = error(&nested(57));
    assert_eq!(error.kind, ErrorKind::ResultNotJson);
    assert!(error.message.ends_with("[1][1] is nested deeper than 56"), "{error:?}");
    value(&format!("{}, 1", nested(55)));
    assert_eq!(super::error(&format!("{}, 1", nested(56))).kind, ErrorKind::ResultNotJson);
}

#[test]
fn a_result_over_its_limit_is_refused() {
    let mut sandbox = Sandbox::new();
    sandbox.limits.result_bytes = 12;
    assert_eq!(sandbox.value("return '1234567890'"), json!("1234567890"));
    assert_eq!(sandbox.value("return {a = 12345}"), json!({"a": 12345}));
    assert_eq!(sandbox.value("return {a = 1, [''] = 2}"), json!({"a": 1, "": 2}));
    assert_eq!(sandbox.value("return {a = {[''] = 1}}"), json!({"a": {"": 1}}));
    for source in [
        "return '12345678901'",
        "return '123456\\n\\n\\n'",
        "return {1, 2, 3, 4, 5, 6}",
        "return {a = 1, b = 2}",
        "return {a = '1234567'}",
        "local t = {} for i = 1, 50 do t = {t, t} end return t",
    ] {
        let error = sandbox.error(source);
        assert_eq!(error.kind, ErrorKind::ResultTooLarge, "{source}");
        assert_eq!(error.message, "the result is longer than 12 bytes of JSON");
    }
}

#[test]
fn json_goes_out_and_comes_back() {
    for text in [
        r#"{"a":[1,2.5,{"b":null}],"c":"é","d":[],"e":{}}"#,
        "[]",
        "null",
        "true",
        r#""\u0001\"\\""#,
        "-1.5",
        "[[],[[]]]",
        "9007199254740992",
        "0.1",
        "1.7976931348623157e+308",
    ] {
        let mut sandbox = Sandbox::new();
        sandbox.args.insert("text".into(), text.into());
        let back = sandbox.value("return json.encode(json.decode(args.text))");
        assert_eq!(back, json!(text));
    }
}

#[test]
fn pretty_json_is_indented() {
    let text = "{\n  \"a\": [\n    1,\n    {\n      \"b\": {}\n    }\n  ],\n  \"c\": []\n}";
    assert_eq!(
        value("return json.encode({a = {1, {b = {}}}, c = json.array({})}, {pretty = true})"),
        json!(text)
    );
}

#[test]
fn decoded_arrays_stay_arrays() {
    assert_eq!(
        value(
            "local t = json.decode('[1]') table.remove(t) \
             local u = json.array({}) table.insert(u, 5) \
             return {t, u, json.array(u) == u, table.clone(t)}"
        ),
        json!([[], [5], true, []])
    );
}

#[test]
fn json_failures_raise() {
    for (source, message) in [
        ("json.decode('{')", "invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("json.decode('1 2')", "invalid JSON: trailing characters at line 1 column 3"),
        ("json.decode('')", "invalid JSON: EOF while parsing a value at line 1 column 0"),
        (
            "json.decode('9007199254740993')",
            "invalid JSON: the integer 9007199254740993 is beyond 2^53",
        ),
        ("json.decode('1e999')", "invalid JSON: number out of range at line 1 column 5"),
        ("json.decode(nil)", "invalid argument #1 to 'decode' (string expected, got nil)"),
        ("json.decode()", "missing argument #1 to 'decode' (string expected)"),
        ("json.encode()", "missing argument #1 to 'encode' (value expected)"),
        ("json.encode(1, 2)", "invalid argument #2 to 'encode' (table expected, got number)"),
        ("json.encode({print})", "value[1] is a function, which JSON cannot hold"),
        ("json.array(1)", "invalid argument #1 to 'array' (table expected, got number)"),
        ("json.array(setmetatable({}, {}))", "json.array: the table has a metatable"),
        ("json.array(table.freeze({}))", "json.array: the table is read-only"),
    ] {
        let error = error(source);
        assert_eq!(error.message, format!("script:1: {message}"), "{source}");
        assert_eq!(error.kind, ErrorKind::Runtime);
    }
    let deep = "json.decode(string.rep('[', 57) .. string.rep(']', 57))";
    assert!(error(deep).message.contains("nested deeper than 56"));
    value("return json.decode(string.rep('[', 56) .. string.rep(']', 56))");
    assert!(error("json.decode('\\255')").message.contains("invalid JSON: invalid utf-8"));
}

#[test]
fn null_is_one_value_of_its_own() {
    assert_eq!(
        value(
            "return json.null == json.decode('null'), tostring(json.null), typeof(json.null), \
             json.null ~= nil, pcall(function() return json.null.x end)"
        ),
        json!([true, "null", "null", true, false, "script:1: attempt to index null with 'x'"])
    );
}
