use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sandbox_api::{
    FileOp, FilesTouched, Network, Note, NoteKind, Outcome, RefusedHost, SecretValue, Secrets,
    TouchedFile,
};
use serde_json::value::RawValue;

use super::*;

/// What [`Patterns`] is defined by, on a whole text: every occurrence of every pattern is masked,
/// and an end that is more than half of one; what overlaps or touches is one mask.
fn naive(patterns: &[Vec<u8>], text: &[u8]) -> Vec<u8> {
    masked(patterns, text, Ends::Yes, text.len())
}

/// Whether a text ends here, or more of it follows.
#[derive(PartialEq)]
enum Ends {
    Yes,
    No,
}

/// The bytes of a text before `until`, replaced.
fn masked(patterns: &[Vec<u8>], text: &[u8], ends: Ends, until: usize) -> Vec<u8> {
    let mut is_secret = vec![false; text.len()];
    for pattern in patterns {
        for start in 0..text.len() {
            if text[start..].starts_with(pattern) {
                is_secret[start..start + pattern.len()].fill(true);
            }
        }
        let halves = (pattern.len() / 2 + 1).max(4)..pattern.len();
        for length in halves.filter(|&length| ends == Ends::Yes && length <= text.len()) {
            let start = text.len() - length;
            if pattern.starts_with(&text[start..]) {
                is_secret[start..].fill(true);
            }
        }
    }
    let mut replaced = Vec::new();
    for (at, &byte) in text[..until].iter().enumerate() {
        match is_secret[at] {
            false => replaced.push(byte),
            true if at == 0 || !is_secret[at - 1] => replaced.extend_from_slice(b"***"),
            true => {}
        }
    }
    replaced
}

fn streamed(patterns: &Patterns, pieces: &[Vec<u8>]) -> Vec<u8> {
    let (mut stream, mut passed) = (Stream::default(), Vec::new());
    for piece in pieces {
        stream.push(patterns, piece, &mut passed);
    }
    stream.flush(patterns, &mut passed);
    passed
}

fn secrets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Few letters, so that secrets overlap, repeat, and contain each other.
    let secret = prop::collection::vec(prop::sample::select(b"abc".to_vec()), 4..9);
    prop::collection::vec(secret, 1..5)
}

fn text(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"abc".to_vec()), 0..most)
}

/// Pieces that contain whole secrets often.
fn pieces() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<Vec<u8>>)> {
    secrets().prop_flat_map(|secrets| {
        let piece = prop_oneof![text(6), prop::sample::select(secrets.clone())];
        (Just(secrets), prop::collection::vec(piece, 0..20))
    })
}

proptest! {
    #[test]
    fn stream_in_any_pieces_is_the_whole_text_replaced(
        (secrets, parts) in pieces(),
        cuts in prop::collection::vec(1_usize..7, 1..50),
    ) {
        let text = parts.concat();
        let patterns = Patterns::new(secrets.iter().map(Vec::as_slice));
        let (mut rest, mut pieces) = (&*text, Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = after;
        }
        let expected = naive(&secrets, &text);
        prop_assert_eq!(&streamed(&patterns, &pieces), &expected);
        prop_assert_eq!(patterns.bytes(&text).into_owned(), expected);
    }

    #[test]
    fn held_back_is_only_the_beginning_of_a_secret((secrets, parts) in pieces()) {
        let patterns = Patterns::new(secrets.iter().map(Vec::as_slice));
        let (mut stream, mut passed, mut text) = (Stream::default(), Vec::new(), Vec::new());
        for byte in parts.concat() {
            text.push(byte);
            stream.push(&patterns, &[byte], &mut passed);
            let held = (0..=text.len()).rev().filter(|&length| {
                let end = &text[text.len() - length..];
                secrets.iter().any(|secret| secret.starts_with(end))
            });
            let decided = text.len() - held.max().unwrap_or(0);
            let expected = masked(&secrets, &text, Ends::No, decided);
            prop_assert_eq!(&passed, &expected);
        }
    }

    #[test]
    fn pause_shows_at_most_half_of_a_secret(
        // Different bytes: no part matches by accident.
        secret in prop::sample::subsequence((b'!'..b'*').chain(b'+'..=b'~').collect::<Vec<_>>(), 4..40)
            .prop_shuffle(),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(secret.len());
        let patterns = Patterns::new([&*secret]);
        let (mut stream, mut passed) = (Stream::default(), Vec::new());
        stream.push(&patterns, &secret[..at], &mut passed);
        stream.flush(&patterns, &mut passed);
        stream.push(&patterns, &secret[at..], &mut passed);
        stream.push(&patterns, b" end", &mut passed);
        // It may begin with the last of these letters.
        stream.flush(&patterns, &mut passed);
        let shown = passed.iter().filter(|byte| secret.contains(byte)).count() - {
            b" end".iter().filter(|byte| secret.contains(byte)).count()
        };
        prop_assert!(shown <= (secret.len() / 2).max(3), "{passed:?} {secret:?}");
        prop_assert!(passed.ends_with(b"*** end"), "{passed:?}");
    }
}

fn redact(secrets: &[&str], text: &str) -> String {
    let patterns = Patterns::new(secrets.iter().map(|secret| secret.as_bytes()));
    let mut text = text.to_owned();
    patterns.text(&mut text);
    text
}

#[test]
fn secrets_that_overlap_or_touch_are_one_mask() {
    assert_eq!(redact(&["abcd", "cdef"], "xabcdefx"), "x***x");
    assert_eq!(redact(&["abcd"], "abcdabcd abcd"), "*** ***");
    assert_eq!(redact(&["abcd", "abcdefgh"], "abcdefg abcdefgh"), "***efg ***");
    assert_eq!(redact(&["hunter22"], "nothing"), "nothing");
}

#[test]
fn lines_of_a_secret_are_replaced_too_unless_they_are_short() {
    let key = "-----BEGIN KEY-----\r\n  line one\nab\n-----END KEY-----\n";
    assert_eq!(redact(&[key], &format!("<{key}>")), "<***>");
    assert_eq!(redact(&[key], "> line one <\nab"), "> *** <\nab");
}

#[test]
fn secret_that_is_not_utf8_is_replaced_in_the_text_that_a_log_shows() {
    let secret = b"ab\xff\xfecd";
    let patterns = Patterns::new([&secret[..]]);
    let mut text = format!("x{}x", String::from_utf8_lossy(secret));
    patterns.text(&mut text);
    assert_eq!(text, "x***x");
    assert_eq!(&*patterns.bytes(b"xab\xff\xfecdx"), b"x***x");
}

#[test]
fn text_that_was_cut_in_a_secret_does_not_end_with_most_of_it() {
    assert_eq!(redact(&["0123456789"], "it is 012345"), "it is ***");
    assert_eq!(redact(&["0123456789"], "it is 01234"), "it is 01234");
    assert_eq!(redact(&["abcd"], "abc"), "abc");
}

#[test]
fn long_secrets_that_repeat_themselves_take_linear_time() {
    // Quadratic, this would be 10^11 steps.
    let secret = vec![b'a'; 64 << 10];
    let patterns = Patterns::new([&*secret]);
    let text = vec![b'a'; 2 << 20];
    assert_eq!(&*patterns.bytes(&text), b"***");
    let (mut stream, mut passed) = (Stream::default(), Vec::new());
    let almost = [&secret[1..], b"b"].concat();
    for piece in almost.chunks(1) {
        stream.push(&patterns, piece, &mut passed);
    }
    assert_eq!(passed, almost);
}

fn redactions(value: &str) -> Redactions {
    let mut secrets = Secrets::new();
    secrets.add("A", SecretValue::new(value)).unwrap();
    let redactions = Redactions::default();
    redactions.add(&secrets);
    redactions
}

#[test]
fn secrets_of_earlier_commands_stay_replaced() {
    let redactions = redactions("first");
    let mut more = Secrets::new();
    more.add("B", SecretValue::new("second")).unwrap();
    redactions.add(&more);
    redactions.add(&Secrets::new());
    let mut text = "first, second".to_owned();
    redactions.text(&mut text);
    assert_eq!(text, "***, ***");
    assert!(Redactions::default().patterns().is_none());
}

#[test]
fn result_stays_json() {
    let redactions = redactions("12345678");
    let result = r#"{"a":["x12345678\n",912345678,1.5,null,true],"12345678":1,"***":2}"#;
    let mut outcome = Outcome::Ok { result: RawValue::from_string(result.into()).unwrap() };
    redactions.outcome(&mut outcome);
    let Outcome::Ok { result } = outcome else { panic!() };
    let expected =
        serde_json::json!({"a": ["x***\n", "9***", 1.5, null, true], "***": 1, "*** (2)": 2});
    let result: serde_json::Value = serde_json::from_str(result.get()).unwrap();
    assert_eq!(result.to_string().matches("***").count(), 4, "{result}");
    assert_eq!(result["a"], expected["a"]);
    let untouched = r#"{ "b" : 1.50 }"#;
    let mut outcome = Outcome::Ok { result: RawValue::from_string(untouched.into()).unwrap() };
    redactions.outcome(&mut outcome);
    let Outcome::Ok { result } = outcome else { panic!() };
    assert_eq!(result.get(), untouched);
}

#[test]
fn names_of_files_are_replaced() {
    let redactions = redactions("hunter22");
    let file = |name: &[u8]| TouchedFile::new(name, FileOp::Write, 1);
    let files = vec![file(b"a/hunter22.txt"), file(b"\xffhunter22"), file(b"b")];
    let mut touched = FilesTouched { files, ..FilesTouched::default() };
    redactions.files(&mut touched);
    assert_eq!(touched.files, [file(b"a/***.txt"), file(b"\xff***"), file(b"b")]);
}

#[test]
fn notes_show_no_secret() {
    let redactions = redactions("hunter22");
    let kind = NoteKind::OutOfMemory;
    let note = |name: &str| Note {
        kind,
        message: format!("a process, {name}, was killed"),
        hint: Some(format!("not {name}")),
    };
    let mut notes = [note("hunter22"), note("other")];
    redactions.notes(&mut notes);
    assert_eq!(notes, [note("***"), note("other")]);
}

#[test]
fn console_holds_nothing_back_for_long() {
    let mut secrets = Secrets::new();
    secrets.add("A", SecretValue::new("password123")).unwrap();
    let redactions = Redactions::default();
    redactions.add(&secrets);
    let mut console = Console::new(redactions.patterns());
    let now = Instant::now();
    assert_eq!(console.push(0, b"$ ".to_vec(), now), b"$ ");
    assert_eq!(console.due(), None);
    assert_eq!(console.push(0, b"a pass".to_vec(), now), b"a ");
    assert_eq!(console.push(1, b"say password12".to_vec(), now), b"say ");
    let due = console.due().unwrap();
    assert_eq!(console.pause(now), None);
    assert!(due <= now + Duration::from_secs(1));
    assert_eq!(console.pause(due), Some((0, b"pass".to_vec())));
    assert_eq!(console.pause(due), Some((1, b"***".to_vec())));
    assert_eq!((console.pause(due), console.due()), (None, None));
    // The rest is a secret's still, and one that was masked gets no second mask.
    assert_eq!(console.push(0, b"word123!".to_vec(), due), b"***!");
    assert_eq!(console.push(1, b"3!".to_vec(), due), b"!");
    assert_eq!(console.end(0), b"");
    let mut plain = Console::new(None::<Arc<Patterns>>);
    assert_eq!(plain.push(0, b"pass".to_vec(), now), b"pass");
}

#[test]
fn reasons_show_nothing_about_parts_of_injected_secrets() {
    let redactions = redactions("hunter22");
    let mut injected = Secrets::new();
    injected.add("B", SecretValue::new("password123")).unwrap();
    redactions.add_injected(&injected);
    for (text, expected) in [
        ("GET /hunter22", "GET /***"),
        // One that was given may have been cut.
        ("GET /hunter", "GET /***"),
        ("GET /password123", "GET /***"),
        ("GET /password12", "GET /password12"),
        ("GET /password", "GET /password"),
    ] {
        let (host, reason) = ("a.example".to_owned(), text.to_owned());
        let refused = RefusedHost { host, port: 443, reason, allow: vec![text.to_owned()] };
        let mut network = Network { refused: vec![refused], ..Network::default() };
        redactions.network(&mut network);
        assert_eq!(network.refused[0].reason, expected);
        assert_eq!(network.refused[0].allow, [expected]);
    }
    let mut log = "hunter22 password123 password12".to_owned();
    redactions.text(&mut log);
    assert_eq!(log, "*** *** password12");
    // Nor does what a stream holds back.
    let (mut console, now) = (Console::new(redactions.patterns()), Instant::now());
    assert_eq!(console.push(0, b"<password12".to_vec(), now), b"<password12");
    assert_eq!(console.push(0, b"<hunter".to_vec(), now), b"<");
}
