//! `read` and `view`: content, encodings, windows, images.

use std::fs;

use serde_json::json;

use crate::library::Guest;

/// The shortest prefix that identifies each image.
const IMAGES: &[(&str, &[u8], &str)] = &[
    ("i.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
    ("i.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
    ("i.gif", b"GIF89a\x01\0\x01\0", "image/gif"),
    ("i.webp", b"RIFF\x1a\0\0\0WEBPVP8 ", "image/webp"),
];

#[test]
fn content_is_given_whole_and_as_it_is() {
    let guest = Guest::new();
    for (name, content) in [
        ("empty", ""),
        ("plain", "one\ntwo\n"),
        ("spaces", "\u{feff} \t\r\n no end \r"),
        ("nul", "a\0b"),
        ("wide", "é€😀"),
    ] {
        guest.place.write(&format!("sandbox-files/{name}"), content);
        let envelope = guest.perform(&json!({"operation": "read", "path": name}));
        let data = json!({"path": format!("/io/{name}"), "content": content, "encoding": "utf-8",
            "bytes": content.len(), "mime_type": "text/plain"});
        assert_eq!(envelope["data"], data, "{name}");
        assert_eq!(envelope["metadata"]["bytes"], content.len(), "{name}");
    }
}

#[test]
fn every_encoding_gives_the_text_that_stands_for_the_bytes_or_says_that_none_does() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/f", b"\x00\x41\xff\xe8");
    for (encoding, content) in [
        ("base64", "AEH/6A=="),
        ("hex", "0041ffe8"),
        ("latin1", "\0A\u{ff}\u{e8}"),
        ("utf-16le", "\u{4100}\u{e8ff}"),
        ("utf-16be", "A\u{ffe8}"),
    ] {
        let read = json!({"operation": "read", "path": "f", "encoding": encoding});
        let data = guest.data(read);
        assert_eq!((&data["content"], &data["encoding"]), (&json!(content), &json!(encoding)));
        assert_eq!(data["mime_type"], "application/octet-stream");
        assert_eq!(data["bytes"], 4);
    }
    for encoding in ["utf-8", "utf8", "ascii"] {
        let read = json!({"operation": "read", "path": "f", "encoding": encoding});
        let error = &guest.perform(&read)["error"];
        assert_eq!(error["kind"], "encoding", "{encoding}");
        assert!(error["hint"].as_str().unwrap().contains("base64"), "{error:#}");
        assert!(error["message"].as_str().unwrap().starts_with("/io/f: "), "{error:#}");
    }
    // Half a unit, and half a pair.
    for content in [&b"\x41\x00\x42"[..], b"\xd8\xd8"] {
        guest.place.write("sandbox-files/half", content);
        for encoding in ["utf-16le", "utf-16be"] {
            let read = json!({"operation": "read", "path": "half", "encoding": encoding});
            assert_eq!(guest.kind(read), "encoding");
        }
    }
}

#[test]
fn a_sandbox_can_have_another_encoding_by_default() {
    let guest = Guest::with(|spec| spec.default_encoding("hex".parse().unwrap()));
    guest.data(json!({"operation": "write", "path": "f", "content": "fF00"}));
    assert_eq!(fs::read(guest.place.path("sandbox-files/f")).unwrap(), b"\xff\0");
    let data = guest.data(json!({"operation": "read", "path": "f"}));
    assert_eq!((&data["content"], &data["encoding"]), (&json!("ff00"), &json!("hex")));
}

#[test]
fn a_range_is_counted_in_bytes() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/f", "0123456789é");
    let read = |offset: u64, limit: Option<u64>| json!({"operation": "read", "path": "f", "offset": offset, "limit": limit});
    for (offset, limit, content) in [
        (0, None, "0123456789é"),
        (3, Some(4), "3456"),
        (8, Some(100), "89é"),
        (12, None, ""),
        (u64::MAX, Some(u64::MAX), ""),
        (5, Some(0), ""),
    ] {
        let data = guest.data(read(offset, limit));
        assert_eq!(data["content"], content, "{offset} {limit:?}");
        assert_eq!(data["bytes"], content.len());
    }
    // A range that cuts a character is not UTF-8; its bytes can be had.
    assert_eq!(guest.kind(read(11, None)), "encoding");
    let cut = json!({"operation": "read", "path": "f", "offset": 11, "encoding": "base64"});
    assert_eq!(guest.data(cut)["content"], "qQ==");
}

#[test]
fn media_type_is_detected_from_the_first_bytes() {
    let guest = Guest::new();
    for (name, content, mime_type) in IMAGES {
        guest.place.write(&format!("sandbox-files/{name}.txt"), content);
        let path = format!("{name}.txt");
        let read = json!({"operation": "read", "path": path, "encoding": "base64"});
        assert_eq!(guest.data(read)["mime_type"], *mime_type);
    }
}

#[test]
fn a_view_has_a_window_of_lines_and_says_what_follows() {
    let guest = Guest::new();
    let io = |name: &str| format!("sandbox-files/{name}");
    guest.place.write(&io("f"), "one\ntwo\r\nthree");
    let view = |path: &str, lines: serde_json::Value| json!({"operation": "view", "path": path, "lines": lines});
    let whole = json!({"type": "text", "path": "/io/f", "text": "one\ntwo\r\nthree", "first_line": 1,
        "output_lines": 3, "total_lines": 3, "truncated": false, "truncated_by": null, "footer": null});
    assert_eq!(guest.data(json!({"operation": "view", "path": "f"})), whole);
    assert_eq!(guest.data(view("f", json!({}))), whole);
    let window = guest.data(view("f", json!({"offset": 2, "limit": 1})));
    let expected = json!({"type": "text", "path": "/io/f", "text": "two\r\n", "first_line": 2,
        "output_lines": 1, "total_lines": 3, "truncated": true, "truncated_by": "lines",
        "footer": "[Showing lines 2-2 of 3. Use lines={\"offset\":3} to continue.]"});
    assert_eq!(window, expected);
    guest.place.write(&io("empty"), "");
    let empty = guest.data(json!({"operation": "view", "path": "empty"}));
    assert_eq!((&empty["text"], &empty["total_lines"]), (&json!(""), &json!(0)));
    for (path, lines) in [
        ("f", json!({"offset": 0})),
        ("f", json!({"offset": 4})),
        ("f", json!({"limit": 0})),
        ("empty", json!({"offset": 2})),
    ] {
        assert_eq!(guest.kind(view(path, lines.clone())), "invalid_request", "{path} {lines}");
    }
}

/// What stands in a footer between two texts.
fn between<'a>(footer: &'a str, before: &str, after: &str) -> &'a str {
    footer.split_once(before).unwrap().1.split_once(after).unwrap().0
}

#[test]
fn footer_of_a_view_works_word_for_word() {
    let guest = Guest::new();
    let long = format!("1\n{}\n3\n", "é".repeat(60_000));
    guest.place.write("sandbox-files/f", &long);
    let view = |lines: &str| {
        let lines: serde_json::Value = serde_json::from_str(lines).unwrap();
        json!({"operation": "view", "path": "f", "lines": lines})
    };
    let first = guest.data(view(r#"{"limit":1}"#));
    let next = between(first["footer"].as_str().unwrap(), "lines=", " to continue.]");
    let second = guest.data(view(next));
    let footer = second["footer"].as_str().unwrap();
    let encoding = between(footer, "Use read with encoding=\"", "\", offset=");
    let offset: u64 = between(footer, ", offset=", " for the rest of it").parse().unwrap();
    let rest = json!({"operation": "read", "path": "f", "encoding": encoding, "offset": offset});
    let rest = guest.data(rest);
    let parts = [&first["text"], &second["text"], &rest["content"]];
    assert!(parts.map(|part| part.as_str().unwrap()).concat() == long);
    let last = guest.data(view(between(footer, "lines=", " to continue.]")));
    assert_eq!((&last["text"], &last["footer"]), (&json!("3\n"), &json!(null)));
}

#[test]
fn a_view_has_at_most_2000_lines_and_50_kib() {
    let guest = Guest::new();
    let io = |name: &str| format!("sandbox-files/{name}");
    guest.place.write(&io("many"), "x\n".repeat(5000));
    let many = guest.data(json!({"operation": "view", "path": "many", "lines": {"limit": 9999}}));
    assert_eq!(many["output_lines"], 2000);
    let footer = "[Showing lines 1-2000 of 5000. Use lines={\"offset\":2001} to continue.]";
    assert_eq!(many["footer"], footer);
    let rest = json!({"operation": "view", "path": "many", "lines": {"offset": 4001}});
    assert_eq!(guest.data(rest)["footer"], json!(null));
    guest.place.write(&io("wide"), format!("{}\n", "y".repeat(999)).repeat(100));
    let wide = guest.data(json!({"operation": "view", "path": "wide"}));
    assert_eq!((&wide["truncated_by"], &wide["output_lines"]), (&json!("bytes"), &json!(51)));
    assert!(wide["text"].as_str().unwrap().ends_with("y\n"), "it is cut at a line's end");
    // One line that is longer than any window is cut between characters.
    guest.place.write(&io("long"), "é".repeat(60_000));
    let long = guest.data(json!({"operation": "view", "path": "long"}));
    assert_eq!(long["text"].as_str().unwrap(), "é".repeat(25 << 10));
    guest.place.write(&io("binary"), b"\xff\xfe\n");
    assert_eq!(guest.kind(json!({"operation": "view", "path": "binary"})), "encoding");
    assert_eq!(guest.kind(json!({"operation": "view", "path": "."})), "is_directory");
}

#[test]
fn a_view_of_an_image_is_the_image() {
    let guest = Guest::new();
    for (name, start, mime_type) in IMAGES {
        // More than one piece on the wire, and than the first credit.
        let content = [start, &[7_u8; 300_000][..]].concat();
        guest.place.write(&format!("sandbox-files/{name}"), &content);
        let shown = guest.data(json!({"operation": "view", "path": name}));
        assert_eq!(shown["type"], "image");
        assert_eq!(
            (&shown["mime_type"], &shown["bytes"]),
            (&json!(mime_type), &json!(content.len()))
        );
        let read = json!({"operation": "read", "path": name, "encoding": "base64"});
        assert_eq!(shown["content"], guest.data(read)["content"]);
    }
}
