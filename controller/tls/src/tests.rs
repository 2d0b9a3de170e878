mod client_hellos;
mod first_bytes;
mod hello;

use proptest::prelude::*;

use self::hello::{client_hello, extension, message, records, server_name, vector};
use super::*;

fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let version = vector(2, &extension(SUPPORTED_VERSIONS, &[3, 4]));
    let body = [&[3, 3][..], &random, &[0, 0x13, 0x01, 0], &version].concat();
    records(HANDSHAKE, &[&[SERVER_HELLO][..], &vector(3, &body)].concat(), MAX_PLAIN_RECORD)
}

/// Messages of a server of TLS 1.2, in records of this size: its hello with the id of a session, and
/// others of these types with these bodies.
fn old_server(session: &[u8], others: &[(u8, &[u8])], size: usize) -> Vec<u8> {
    let hello = [&[3, 3][..], &[5; 32], &vector(1, session), &[0xc0, 0x2f, 0]].concat();
    let messages = [&[(SERVER_HELLO, &hello[..])], others].concat();
    let message = |(kind, body): (u8, &[u8])| [&[kind][..], &vector(3, body)].concat();
    let messages: Vec<_> = messages.into_iter().flat_map(message).collect();
    records(HANDSHAKE, &messages, size)
}

/// What a server's message has after its head: how long the ticket lives, and the ticket.
fn ticket(ticket: &[u8]) -> Vec<u8> {
    [&[0, 0, 1, 0][..], &vector(2, ticket)].concat()
}

/// A ClientHello for the name, that resumes the session of this ticket.
fn resuming(ticket: &[u8]) -> Vec<u8> {
    let hello = message(&[server_name("ok.example"), extension(SESSION_TICKET, ticket)]);
    records(HANDSHAKE, &hello, MAX_PLAIN_RECORD)
}

fn guard() -> Guard {
    Guard::new("ok.example".parse().unwrap(), HTTPS, Sessions::default())
}

/// What is forwarded of bytes in pieces, while the server sends nothing.
fn passed(mut guard: Guard, bytes: &[u8], piece: usize) -> Result<Vec<u8>, TlsRefusal> {
    let mut out = Vec::new();
    for piece in bytes.chunks(piece) {
        out.extend(guard.client(piece.to_vec())?);
    }
    Ok(out)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn a_hello_for_the_name_passes_whole_however_it_is_cut() {
    let plain = message(&[extension(43, &[2, 3, 4]), server_name("ok.example")]);
    for record in [1, 2, 3, 4, 5, 7, 64, MAX_PLAIN_RECORD] {
        let hello = records(HANDSHAKE, &plain, record);
        for piece in [1, 2, 3, 5, 6, 11, 100, hello.len()] {
            assert_eq!(passed(guard(), &hello, piece).as_ref(), Ok(&hello), "{record} {piece}");
        }
        // No byte is forwarded before the last one has arrived.
        let (last, start) = hello.split_last().unwrap();
        let mut guard = guard();
        assert_eq!(guard.client(start.to_vec()), Ok(vec![]));
        assert_eq!(guard.client(vec![*last]), Ok(hello));
    }
    assert!(passed(guard(), &client_hello("OK.Example"), 9).is_ok());
}

#[test]
fn the_hellos_of_real_programs_pass() {
    for (program, hello) in client_hellos::REAL {
        let hello = unhex(hello);
        let ours = || Guard::new("ok.example".parse().unwrap(), HTTPS, Sessions::default());
        for piece in [1, 17, hello.len()] {
            assert_eq!(passed(ours(), &hello, piece).as_ref(), Ok(&hello), "{program}");
        }
        let theirs = Guard::new("evil.example".parse().unwrap(), HTTPS, Sessions::default());
        let refusal = TlsRefusal::OtherName("ok.example".into());
        assert_eq!(passed(theirs, &hello, 100), Err(refusal), "{program}");
    }
}

#[test]
fn hello_for_another_name_is_refused() {
    use TlsRefusal::{Encrypted, Malformed, NoName, NoTls};
    let hello = |extensions: &[Vec<u8>]| records(HANDSHAKE, &message(extensions), 16 << 10);
    let other = |name: &str| TlsRefusal::OtherName(name.to_owned());
    let ok = || server_name("ok.example");
    let two_names = [&[0][..], &vector(2, b"ok.example"), &[0], &vector(2, b"evil")].concat();
    let long = extension(21, &vec![0; 60_000]);
    for (what, bytes, expected) in [
        ("plain HTTP", b"GET / HTTP/1.1\r\n".to_vec(), NoTls),
        ("SSH", b"SSH-2.0-x\r\n".to_vec(), NoTls),
        ("SSLv2's hello", vec![0x80, 46, 1, 3, 1], NoTls),
        ("an alert first", vec![21, 3, 1, 0, 2, 1, 0], NoTls),
        ("another name", client_hello("evil.example"), other("evil.example")),
        ("a longer name", client_hello("ok.example.evil"), other("ok.example.evil")),
        ("a subdomain", client_hello("a.ok.example"), other("a.ok.example")),
        ("an address", client_hello("10.0.0.1"), other("10.0.0.1")),
        ("a name with NUL", client_hello("ok.example\0.evil"), Malformed),
        ("a name with a dot at its end", client_hello("ok.example."), Malformed),
        ("an invalid name", client_hello("ok example"), Malformed),
        ("a name in wide letters", client_hello("ｏｋ.example"), Malformed),
        ("no name", hello(&[extension(43, &[2, 3, 4])]), NoName),
        ("no extensions", hello(&[]), NoName),
        ("ECH", hello(&[ok(), extension(0xfe0d, &[0; 40])]), Encrypted),
        ("ECH first", hello(&[extension(0xfe0d, &[1]), ok()]), Encrypted),
        ("ESNI", hello(&[extension(0xffce, &[0; 9]), ok()]), Encrypted),
        ("two extensions", hello(&[ok(), server_name("evil.example")]), Malformed),
        ("the same twice", hello(&[ok(), ok()]), Malformed),
        ("two names", hello(&[extension(0, &vector(2, &two_names))]), Malformed),
        ("an empty list", hello(&[extension(0, &[0, 0])]), Malformed),
        ("an empty extension", hello(&[extension(0, &[])]), Malformed),
        ("an empty name", client_hello(""), Malformed),
        ("another kind of name", hello(&[extension(0, &[0, 4, 1, 0, 1, b'a'])]), Malformed),
        ("data after the list", hello(&[extension(0, &[0, 4, 0, 0, 1, b'a', 0])]), Malformed),
        ("too long", hello(&[long.clone(), long, ok()]), Malformed),
        ("another message", records(HANDSHAKE, &[2, 0, 0, 1, 0], 99), Malformed),
        ("an empty message", records(HANDSHAKE, &[1, 0, 0, 0], 99), Malformed),
        ("an empty record", vec![22, 3, 1, 0, 0], Malformed),
        ("a record too long", vec![22, 3, 1, 0x40, 1], Malformed),
        (
            "a version of none",
            records(HANDSHAKE, &[&[1, 0, 0, 40][..], &[9; 40]].concat(), 99),
            Malformed,
        ),
        (
            "a message after it in its record",
            records(HANDSHAKE, &[message(&[ok()]), vec![16, 0, 0, 0]].concat(), 16 << 10),
            Malformed,
        ),
        (
            "another record in the middle of it",
            [&records(HANDSHAKE, &message(&[ok()])[..20], 99)[..], &[23, 3, 3, 0, 1, 0]].concat(),
            Malformed,
        ),
    ] {
        for piece in [1, 13, bytes.len()] {
            assert_eq!(passed(guard(), &bytes, piece).as_ref(), Err(&expected), "{what}");
        }
    }
}

#[test]
fn other_ports_take_any_protocol_and_tls_only_for_the_name() {
    let guard = |host: &str, port| Guard::new(host.parse().unwrap(), port, Sessions::default());
    // However short, nothing is held back.
    for text in [&b"GET / HTTP/1.1\r\n"[..], b"x", b"\n", b"\x05\x01\0", b"\xff\xfd\x03", b""] {
        assert_eq!(passed(guard("ok.example", 80), text, 1).as_deref(), Ok(text));
    }
    let hello = client_hello("ok.example");
    assert_eq!(passed(guard("ok.example", 8443), &hello, 7).as_ref(), Ok(&hello));
    let evil = client_hello("evil.example");
    assert!(passed(guard("ok.example", 8443), &evil, 7).is_err());
    // What begins TLS must continue as TLS.
    let mut short = guard("ok.example", 80);
    assert_eq!(short.client(vec![HANDSHAKE]), Ok(vec![]));
    assert_eq!(short.finish(), Err(TlsRefusal::Malformed));
}

#[test]
fn no_port_passes_what_a_server_takes_for_tls_and_the_guard_cannot_read() {
    use TlsRefusal::{Ambiguous, Malformed};
    let hello = client_hello("evil.example");
    let after = |start: &[u8]| [start, &hello].concat();
    let version = |major, minor| [&[HANDSHAKE, major, minor][..], &hello[3..]].concat();
    let [short, long, padded] = first_bytes::ssl2_hellos();
    for (what, bytes, expected) in [
        ("a warning alert first", after(&[21, 3, 1, 0, 2, 1, 100]), Ambiguous),
        ("an alert of no version first", after(&[21, 0, 0, 0, 2, 1, 100]), Ambiguous),
        ("a change_cipher_spec first", after(&[20, 3, 3, 0, 1, 1]), Ambiguous),
        ("data first", after(&[23, 3, 3, 0, 0]), Ambiguous),
        ("a heartbeat first", after(&[24, 3, 3, 0, 3, 1, 0, 0]), Ambiguous),
        ("SSLv2's format", short, Ambiguous),
        ("SSLv2's format with the longer header", long, Ambiguous),
        ("SSLv2's format, padded", padded, Ambiguous),
        ("a PROXY header first", after(b"PROXY UNKNOWN\r\n"), Ambiguous),
        ("version 4.0", version(4, 0), Malformed),
        ("version 0.0", version(0, 0), Malformed),
        ("version 2.0", version(2, 0), Malformed),
        ("version 15.0", version(15, 0), Malformed),
        ("version 3.5", version(3, 5), Malformed),
        ("an empty record first", after(&[22, 3, 1, 0, 0]), Malformed),
        ("a HelloRequest first", after(&[22, 3, 1, 0, 4, 0, 0, 0, 0]), Malformed),
    ] {
        for (host, port) in [("ok.example", 8443), ("ok.example", 80), ("10.0.0.5", 443)] {
            for piece in [1, 2, 3, 5, bytes.len()] {
                let mut guard = Guard::new(host.parse().unwrap(), port, Sessions::default());
                let mut out = Vec::new();
                let refusal = bytes.chunks(piece).find_map(|piece| {
                    guard.client(piece.to_vec()).map(|passed| out.extend(passed)).err()
                });
                assert_eq!(refusal.as_ref(), Some(&expected), "{what} to {host}:{port}");
                // Less than any server needs was forwarded.
                assert_eq!(Beginning::of(&out), Beginning::TooShort, "{what}: {out:?}");
            }
        }
    }
}

#[test]
fn record_of_a_type_that_tls_lacks_hides_no_hello_behind_it() {
    let record =
        |kind: u8, minor: u8, payload: &[u8]| [&[kind, 3, minor][..], &vector(2, payload)].concat();
    let (good, evil) = (client_hello("ok.example"), client_hello("evil.example"));
    let other_name = TlsRefusal::OtherName("evil.example".to_owned());
    for kind in [0, 0x13, 0x19, 0x20, 0x41, 0x80, 0xff] {
        for (minor, payload) in [(0, &b""[..]), (3, b"\x05"), (3, b"hello"), (0xff, &[9; 300])] {
            let skipped = [record(kind, minor, payload), record(0x41, 3, payload)].concat();
            for piece in [1, 2, 3, 5, 1000] {
                let judged = |next: &[u8]| {
                    let bytes = [&skipped, next].concat();
                    let is_whole = |out: Vec<u8>| assert_eq!(out, bytes);
                    passed(
                        Guard::new("ok.example".parse().unwrap(), 8443, Sessions::default()),
                        &bytes,
                        piece,
                    )
                    .map(is_whole)
                };
                let what = format!("{kind:#x} 3.{minor} {} {piece}", payload.len());
                assert_eq!(judged(&evil), Err(other_name.clone()), "{what}");
                assert_eq!(judged(&[21, 3, 1, 0, 2, 1, 100]), Err(TlsRefusal::Ambiguous), "{what}");
                // A hello for the name, or another protocol with such a record in it.
                for honest in [&good[..], b"", b"GET / HTTP/1.1\r\n", &[0x41, 3]] {
                    assert_eq!(judged(honest), Ok(()), "{what} {honest:?}");
                }
            }
        }
    }
}

#[test]
fn a_server_that_warns_before_it_asks_for_a_second_hello_is_understood() {
    let mut guard = guard();
    guard.client(client_hello("ok.example")).unwrap();
    let change = [20, 3, 3, 0, 1, 1];
    for byte in [&[21, 3, 3, 0, 2, 1, 112][..], &change, &server_hello(RETRY)].concat() {
        guard.server(&[byte]);
    }
    let refusal = TlsRefusal::OtherName("evil.example".to_owned());
    assert_eq!(guard.client(client_hello("evil.example")), Err(refusal));
}

#[test]
fn an_address_has_no_name_and_takes_no_others() {
    let guard = || Guard::new("10.0.0.5".parse().unwrap(), HTTPS, Sessions::default());
    let nameless = records(HANDSHAKE, &message(&[]), 99);
    assert_eq!(passed(guard(), &nameless, 3).as_ref(), Ok(&nameless));
    assert!(passed(guard(), &client_hello("10.0.0.5"), 99).is_ok());
    assert!(passed(guard(), &client_hello("ok.example"), 99).is_err());
    assert_eq!(passed(guard(), b"GET /", 1).as_deref(), Ok(&b"GET /"[..]));
}

#[test]
fn a_second_hello_that_the_server_asks_for_must_be_for_the_name_too() {
    let begin = |answer: &[u8]| {
        let mut guard = guard();
        let hello = client_hello("ok.example");
        assert_eq!(guard.client(hello.clone()), Ok(hello));
        answer.chunks(3).for_each(|piece| guard.server(piece));
        guard
    };
    let retry = server_hello(RETRY);
    // Early data and the like may precede it.
    let early = [&[20, 3, 3, 0, 1, 1][..], &[23, 3, 3, 0, 2, 9, 9]].concat();
    for answer in [&retry[..], &records(HANDSHAKE, &retry[5..], 7)] {
        for (name, expected) in [
            ("ok.example", Ok(())),
            ("evil.example", Err(TlsRefusal::OtherName("evil.example".into()))),
        ] {
            let second = [&early[..], &client_hello(name)].concat();
            let result = passed(begin(answer), &second, 4);
            assert_eq!(result.as_ref().map(|_| ()).map_err(Clone::clone), expected);
            if let Ok(bytes) = result {
                assert_eq!(bytes, second);
            }
        }
    }
    // Once.
    let third = [client_hello("ok.example"), client_hello("ok.example")].concat();
    assert_eq!(passed(begin(&retry), &third, 4), Err(TlsRefusal::Unasked));
}

/// A ClientKeyExchange.
const KEY_EXCHANGE: [u8; 7] = [16, 0, 0, 3, 1, 1, 1];

/// A guard after a hello for the name and an answer of the server.
fn answered(answer: &[u8]) -> Guard {
    let mut guard = guard();
    guard.client(client_hello("ok.example")).unwrap();
    answer.chunks(3).for_each(|piece| guard.server(piece));
    guard.server_ended();
    guard
}

#[test]
fn a_further_hello_that_the_server_did_not_ask_for_is_refused_until_the_client_encrypts() {
    let hello = message(&[server_name("evil.example")]);
    let alert = [21, 3, 3, 0, 2, 1, 0];
    let data = [23, 3, 3, 0, 2, 9, 9];
    // The retry request of a draft, bytes that are not TLS, and the end of the server's data.
    let draft = records(HANDSHAKE, &[6, 0, 0, 2, 3, 3], 99);
    let old = old_server(&[], &[CERTIFICATE, DONE], 99);
    for answer in [&old[..], &server_hello([5; 32]), b"HTTP/1.1 400", &draft, &[]] {
        for record in [1, 3, 99] {
            let after = records(HANDSHAKE, &[&KEY_EXCHANGE[..], &hello].concat(), record);
            for refused in [records(HANDSHAKE, &hello, record), after] {
                assert_eq!(passed(answered(answer), &refused, 2), Err(TlsRefusal::Unasked));
            }
            // What a client of TLS 1.2 encrypts is of any type.
            let keys = records(HANDSHAKE, &KEY_EXCHANGE, record);
            let encrypted = [&CHANGE[..], &records(HANDSHAKE, &hello, record), &data].concat();
            let said = [&alert[..], &keys, &encrypted].concat();
            let expected = if answer == old { Ok(said.clone()) } else { Err(TlsRefusal::Unasked) };
            assert_eq!(passed(answered(answer), &said, 2), expected);
        }
    }
    // Data and alerts of TLS 1.3 pass at any time, and a hello never.
    let said = [&CHANGE[..], &data, &alert, &data, &data].concat();
    assert_eq!(passed(answered(&server_hello([5; 32])), &said, 4).as_ref(), Ok(&said));
    let late = [&said[..], &records(HANDSHAKE, &hello, 99)].concat();
    assert_eq!(passed(answered(&server_hello([5; 32])), &late, 4), Err(TlsRefusal::Unasked));
    // What is sent before the server answers is not encrypted by its answer.
    for answer in [&old[..], &server_hello([5; 32])] {
        let mut early = guard();
        early.client(client_hello("ok.example")).unwrap();
        assert_eq!(early.client(CHANGE.to_vec()).unwrap(), CHANGE);
        early.server(answer);
        assert_eq!(early.client(records(HANDSHAKE, &hello, 99)), Err(TlsRefusal::Unasked));
    }
}

#[test]
fn client_must_not_encrypt_after_a_reply_that_is_not_a_hello() {
    let data = [23, 3, 3, 0, 2, 9, 9];
    let alert = [21, 3, 3, 0, 2, 2, 40];
    // A request for a hello, before the hello of a server that resumes a session.
    let request = records(HANDSHAKE, &[0; 4], 99);
    let resumes = [&request[..], &old_server(&[9; 32], &[], 99), &CHANGE].concat();
    // The end of the server's data, a fatal alert, and a malformed hello.
    let malformed = records(HANDSHAKE, &[&[2, 0, 0, 40, 3, 3][..], &[5; 38]].concat(), 99);
    for answer in [&resumes[..], &[], b"HTTP/1.1 400", &alert, &malformed] {
        for refused in [&CHANGE[..], &data] {
            assert_eq!(passed(answered(answer), refused, 9), Err(TlsRefusal::TooSoon));
        }
        assert_eq!(passed(answered(answer), &alert, 9).as_deref(), Ok(&alert[..]));
    }
    // An older version in the extension of the new one.
    let version = vector(2, &extension(SUPPORTED_VERSIONS, &[3, 3]));
    let body = [&[3, 3][..], &[5; 32], &vector(1, &[9; 32]), &[0xc0, 0x2f, 0], &version].concat();
    let hello = records(HANDSHAKE, &[&[SERVER_HELLO][..], &vector(3, &body)].concat(), 99);
    let mirrors = [&hello[..], &CHANGE].concat();
    assert_eq!(passed(answered(&mirrors), &CHANGE, 9), Err(TlsRefusal::Resumed));
}

#[test]
fn what_is_held_at_the_end_is_judged() {
    let mut guard = guard();
    guard.client(client_hello("ok.example")).unwrap();
    let evil = client_hello("evil.example");
    assert!(guard.client(evil.clone()).unwrap().is_empty() && guard.is_waiting());
    // The reply arrives between two queries of the guard.
    guard.server(&server_hello(RETRY));
    let refusal = TlsRefusal::OtherName("evil.example".to_owned());
    assert_eq!(guard.finish(), Err(refusal));
    // A part of a header is useless to a server.
    let mut partly = answered(&server_hello([5; 32]));
    assert!(partly.client(vec![23, 3, 3, 0]).unwrap().is_empty());
    assert_eq!(partly.finish(), Ok(vec![23, 3, 3, 0]));
}

#[test]
fn record_that_servers_skip_does_not_begin_the_encryption() {
    let old = old_server(&[], &[CERTIFICATE, DONE], 99);
    let keys = records(HANDSHAKE, &KEY_EXCHANGE, 99);
    let half = records(HANDSHAKE, &KEY_EXCHANGE[..6], 99);
    let said = |parts: &[&[u8]]| passed(answered(&old), &parts.concat(), 3);
    for kind in [CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA] {
        let empty = [kind, 3, 3, 0, 0];
        assert_eq!(said(&[&empty]), Err(TlsRefusal::TooSoon), "{kind}");
        assert_eq!(said(&[&keys, &empty]), Err(TlsRefusal::TooSoon), "{kind}");
        assert_eq!(
            passed(answered(&server_hello([5; 32])), &empty, 1),
            Err(TlsRefusal::TooSoon),
            "{kind}"
        );
    }
    // Without keys, in the middle of a message, longer than it is; and data before it.
    let long = [20, 3, 3, 0, 2, 1, 1];
    let data = [23, 3, 3, 0, 1, 9];
    for parts in [&[&CHANGE[..]][..], &[&half, &CHANGE], &[&keys, &long], &[&keys, &data], &[&data]]
    {
        assert_eq!(said(parts), Err(TlsRefusal::TooSoon), "{parts:x?}");
    }
    assert!(said(&[&keys, &CHANGE, &data]).is_ok());
}

#[test]
fn a_second_hello_that_comes_too_soon_is_held_until_the_server_speaks() {
    let (ok, evil) = (client_hello("ok.example"), client_hello("evil.example"));
    let other = TlsRefusal::OtherName("evil.example".to_owned());
    for (answer, expected) in [(RETRY, other), ([5; 32], TlsRefusal::Unasked)] {
        let mut guard = guard();
        assert_eq!(guard.client(ok.clone()), Ok(ok.clone()));
        assert!(!guard.is_waiting());
        assert_eq!(guard.client(vec![23, 3, 3, 0, 1, 0]), Ok(vec![23, 3, 3, 0, 1, 0]));
        assert_eq!(guard.client(evil.clone()), Ok(vec![]));
        assert!(guard.is_waiting());
        guard.server(&server_hello(answer)[..20]);
        assert!(guard.is_waiting());
        guard.server(&server_hello(answer)[20..]);
        assert!(!guard.is_waiting());
        assert_eq!(guard.client(vec![]), Err(expected));
    }
}

const CERTIFICATE: (u8, &[u8]) = (11, &[0, 0, 0]);
const DONE: (u8, &[u8]) = (14, &[]);
const CHANGE: [u8; 6] = [20, 3, 3, 0, 1, 1];
/// What a client of TLS 1.2 sends last in a handshake, and its first data.
const FINISHED: [u8; 24] =
    [20, 3, 3, 0, 1, 1, 22, 3, 3, 0, 4, 9, 9, 9, 9, 23, 3, 3, 0, 4, 9, 9, 9, 9];

#[test]
fn session_is_resumed_only_for_the_name_with_which_it_began() {
    for (size, piece) in [(99, 99), (99, 1), (1, 2), (7, 5)] {
        let sessions = Sessions::default();
        let talk = |host: &str, hello: &[u8], answer: &[u8]| {
            let mut guard = Guard::new(host.parse().unwrap(), HTTPS, sessions.clone());
            guard.client(hello.to_vec()).unwrap();
            answer.chunks(piece).for_each(|piece| guard.server(piece));
            guard.client(FINISHED.to_vec())
        };
        // The same with new keys.
        let begins = |host: &str, hello: &[u8], answer: &[u8]| {
            let mut guard = Guard::new(host.parse().unwrap(), HTTPS, sessions.clone());
            guard.client(hello.to_vec()).unwrap();
            let (keys, answered) = answer.split_at(answer.len() - CHANGE.len());
            keys.chunks(piece).for_each(|piece| guard.server(piece));
            guard.client(records(HANDSHAKE, &KEY_EXCHANGE, size)).unwrap();
            let finished = guard.client(FINISHED.to_vec());
            answered.chunks(piece).for_each(|piece| guard.server(piece));
            finished
        };
        let by_ticket = resuming(b"ticket");
        let by_id = client_hello("ok.example");
        let with_ticket = [&old_server(&[], &[(4, &ticket(b"next"))], size)[..], &CHANGE].concat();
        let without = [&old_server(&[9; 32], &[], size)[..], &CHANGE].concat();
        // A session that started elsewhere.
        assert_eq!(talk("ok.example", &by_ticket, &with_ticket), Err(TlsRefusal::Resumed));
        assert_eq!(talk("ok.example", &by_ticket, &without), Err(TlsRefusal::Resumed));
        assert_eq!(talk("ok.example", &by_id, &without), Err(TlsRefusal::Resumed));
        // A server that repeats the client's id in a new session has not issued it.
        let repeats = [&old_server(&[9; 32], &[CERTIFICATE, DONE], size)[..], &CHANGE].concat();
        assert_eq!(begins("ok.example", &by_id, &repeats), Ok(FINISHED.to_vec()));
        assert_eq!(talk("ok.example", &by_id, &without), Err(TlsRefusal::Resumed));
        // One that began here.
        let started = [
            &old_server(&[8; 32], &[CERTIFICATE, DONE], size)[..],
            &records(HANDSHAKE, &[&[4][..], &vector(3, &ticket(b"ticket"))].concat(), size),
            &CHANGE,
        ]
        .concat();
        assert_eq!(begins("ok.example", &by_id, &started), Ok(FINISHED.to_vec()));
        assert_eq!(talk("ok.example", &by_ticket, &with_ticket), Ok(FINISHED.to_vec()));
        assert_eq!(talk("ok.example", &resuming(b"next"), &without), Ok(FINISHED.to_vec()));
        // An id is not a ticket: a server without tickets would use the id next to it.
        let id_as_ticket = resuming(&[8; 32]);
        assert_eq!(talk("ok.example", &id_as_ticket, &without), Err(TlsRefusal::Resumed));
        // Its id is known too, and nothing is known for another name.
        let has = |host: &str, session| sessions.has(&host.parse().unwrap(), HTTPS, session);
        assert!(has("ok.example", Session::Id(&[8; 32])));
        assert!(!has("evil.example", Session::Id(&[8; 32])));
        assert!(!has("evil.example", Session::Ticket(b"ticket")));
        assert!(!has("ok.example", Session::Ticket(b"another")));
    }
}

#[test]
fn server_with_endless_messages_is_kept_in_bounded_memory() {
    let mut guard = guard();
    guard.client(client_hello("ok.example")).unwrap();
    guard.server(&old_server(&[], &[CERTIFICATE], 99));
    let empty = records(HANDSHAKE, &[0; MAX_PLAIN_RECORD], MAX_PLAIN_RECORD);
    for _ in 0..1000 {
        guard.server(&empty);
        if let Server::IsNew(handshake, _) = &guard.server {
            assert!(handshake.message.len() <= MAX_ANSWER);
        }
    }
    assert!(matches!(guard.server, Server::Old));
}

#[test]
fn sessions_that_are_used_stay_known_and_others_make_room() {
    let sessions = Sessions::default();
    let host: Host = "ok.example".parse().unwrap();
    let (used, unused) = (Session::Ticket(b"used"), Session::Id(b"unused"));
    sessions.add(&host, HTTPS, used);
    sessions.add(&host, HTTPS, unused);
    for number in 0_u32..5000 {
        sessions.add(&host, HTTPS, Session::Ticket(&number.to_be_bytes()));
        assert!(sessions.has(&host, HTTPS, used));
    }
    assert!(!sessions.has(&host, HTTPS, unused));
    assert!(!sessions.has(&host, 8443, used));
}

#[test]
fn client_waits_until_the_server_shows_whether_it_resumes() {
    let mut guard = guard();
    guard.client(resuming(b"ticket")).unwrap();
    let answer = [&old_server(&[], &[], 99)[..], &CHANGE].concat();
    let (hello, change) = answer.split_at(answer.len() - CHANGE.len());
    guard.server(hello);
    assert!(guard.client(FINISHED.to_vec()).unwrap().is_empty());
    assert!(guard.is_waiting());
    guard.server(change);
    assert!(!guard.is_waiting());
    assert_eq!(guard.client(Vec::new()), Err(TlsRefusal::Resumed));
}

#[test]
fn name_that_is_encrypted_in_any_way_is_refused() {
    for kind in [0xfe08, 0xfe09, 0xfe0a, 0xfe0b, 0xfe0c, 0xfe0d, 0xff02, 0xff03, 0xffce] {
        let hello = message(&[server_name("ok.example"), extension(kind, &[1])]);
        let hello = records(HANDSHAKE, &hello, 99);
        assert_eq!(passed(guard(), &hello, 9), Err(TlsRefusal::Encrypted), "{kind:x}");
    }
}

#[test]
fn the_end_of_half_a_hello_is_a_refusal() {
    let hello = client_hello("ok.example");
    for length in 1..hello.len() {
        let mut guard = guard();
        assert_eq!(guard.client(hello[..length].to_vec()), Ok(vec![]));
        assert_eq!(guard.finish(), Err(TlsRefusal::Malformed), "{length}");
    }
    assert_eq!(guard().finish(), Ok(vec![]));
    let mut whole = guard();
    whole.client(hello).unwrap();
    assert_eq!(whole.finish(), Ok(vec![]));
}

#[test]
fn an_endless_hello_times_out() {
    let mut guard = guard();
    let mut sent = 0;
    // Records of one byte hold the most data for the fewest bytes.
    let mut records = std::iter::once(vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xff])
        .chain(std::iter::repeat(vec![22, 3, 1, 0, 1, 0]));
    let refusal = loop {
        let record = records.next().unwrap();
        sent += record.len();
        match guard.client(record) {
            Ok(out) => assert!(out.is_empty()),
            Err(refusal) => break refusal,
        }
        assert!(guard.held.len() <= MAX_HELD);
    };
    assert_eq!(refusal, TlsRefusal::Malformed);
    assert!(sent <= MAX_HELD + 6);
}

proptest! {
    #[test]
    fn passed_bytes_are_a_prefix_of_the_input_however_it_is_cut(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        hello in any::<bool>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        piece in 1_usize..40,
        port in prop::sample::select(vec![443_u16, 80]),
    ) {
        if hello {
            bytes = [client_hello("ok.example"), bytes].concat();
        }
        for (at, byte) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let run = |piece| {
            let mut guard = Guard::new("ok.example".parse().unwrap(), port, Sessions::default());
            let (mut out, mut rest) = (Vec::new(), bytes.as_slice());
            while !rest.is_empty() {
                let (now, more) = rest.split_at(rest.len().min(piece));
                rest = more;
                match guard.client(now.to_vec()) {
                    Ok(passed) => out.extend(passed),
                    Err(refusal) => return (out, Some(refusal)),
                }
            }
            (out, None)
        };
        let (whole, refusal) = run(usize::MAX);
        let (cut, cut_refusal) = run(piece);
        prop_assert!(bytes.starts_with(&whole) && bytes.starts_with(&cut));
        prop_assert_eq!(&refusal, &cut_refusal);
        if refusal.is_none() {
            prop_assert_eq!(whole, cut);
        }
    }

    #[test]
    fn only_a_hello_for_the_name_ever_passes(
        name in "[a-z.]{1,12}",
        prefix in proptest::collection::vec(any::<u8>(), 0..4),
    ) {
        let bytes = [prefix.clone(), client_hello(&name)].concat();
        let result = passed(guard(), &bytes, 50);
        if result.is_ok_and(|out| !out.is_empty()) {
            prop_assert!(prefix.is_empty());
            prop_assert_eq!(name.trim_end_matches('.'), "ok.example");
        }
    }
}
