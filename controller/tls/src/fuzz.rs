//! The property that holds for any bytes on both sides of a connection: the body of the fuzz target
//! `tls`.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

use sandbox_api::hosts::Host;
use sandbox_api::hosts::first_bytes::{Beginning, DECISIVE};

use crate::{
    ALERT, CHANGE_CIPHER_SPEC, CLIENT_HELLO, CLIENT_KEY_EXCHANGE, Guard, HANDSHAKE, MAJOR_VERSION,
    MAX_HELD, MAX_PLAIN_RECORD, RETRY, SERVER_HELLO, SERVER_NAME, SUPPORTED_VERSIONS, Sessions,
    TlsRefusal,
};

/// The host of every connection that is not to an address.
const NAME: &str = "ok.example";

/// The first byte selects the target of the connection. Then come pieces, each preceded by a byte
/// with its length and its sender.
pub fn tls(data: &[u8]) {
    let Some((&target, mut rest)) = data.split_first() else { return };
    let (host, port) = match target % 4 {
        0 => (NAME, 80),
        1 => ("10.0.0.5", 443),
        _ => (NAME, 443),
    };
    let host: Host = host.parse().expect("it is one");
    let mut pieces = Vec::new();
    while let Some((&head, more)) = rest.split_first() {
        let (piece, more) = more.split_at(usize::from(head >> 1).min(more.len()));
        rest = more;
        pieces.push((head & 1 == 1, piece));
    }

    let spoken =
        converse(Guard::new(host.clone(), port, Sessions::default()), pieces.iter().copied());
    // How the data of either side is split depends on the network.
    let bytes = pieces.iter().flat_map(|&(is_server, piece)| {
        piece.iter().map(move |byte| (is_server, std::slice::from_ref(byte)))
    });
    let cut = converse(Guard::new(host.clone(), port, Sessions::default()), bytes);
    assert_eq!(cut.refusal, spoken.refusal, "the cuts make a difference");
    assert!(spoken.refusal.is_some() || cut.passed == spoken.passed, "other bytes by other cuts");

    let tls_only = port == 443 && matches!(host, Host::Name(_));
    for Spoken { passed, said, heard, .. } in [&spoken, &cut] {
        assert!(said.starts_with(passed), "something else went out than was said");
        is_for(&host, passed, heard, tls_only);
    }
}

/// The result of a conversation.
struct Spoken {
    /// Everything that the client sent, as far as the guard accepted data.
    said: Vec<u8>,
    passed: Vec<u8>,
    /// Everything that the server sent.
    heard: Vec<u8>,
    refusal: Option<TlsRefusal>,
}

/// Like the tunnel: a client that is held up is not read.
fn converse<'a>(mut guard: Guard, pieces: impl Iterator<Item = (bool, &'a [u8])>) -> Spoken {
    let (mut said, mut passed, mut heard) = (Vec::new(), Vec::new(), Vec::new());
    let mut waiting: Vec<u8> = Vec::new();
    let mut refusal = None;
    for (is_server, piece) in pieces {
        if is_server {
            heard.extend_from_slice(piece);
            guard.server(piece);
        } else {
            said.extend_from_slice(piece);
            waiting.extend_from_slice(piece);
        }
        if guard.is_waiting() {
            continue;
        }
        match guard.client(std::mem::take(&mut waiting)) {
            Ok(bytes) => passed.extend(bytes),
            Err(why) => {
                refusal = Some(why);
                break;
            }
        }
        assert!(guard.held.len() <= MAX_HELD + data_limit(), "{} bytes are held", guard.held.len());
    }
    if refusal.is_none() && !guard.is_waiting() {
        match guard.finish() {
            Ok(bytes) => passed.extend(bytes),
            Err(why) => refusal = Some(why),
        }
    }
    Spoken { said, passed, heard, refusal }
}

/// How much one piece can exceed the bound: all that was held.
const fn data_limit() -> usize {
    1 << 20
}

/// A second parser, simple and on whole streams: what was forwarded is for the host.
fn is_for(host: &Host, mut passed: &[u8], heard: &[u8], tls_only: bool) {
    if passed.first().is_some_and(|&kind| kind != HANDSHAKE) {
        assert!(!tls_only, "what is no TLS went to a name's port 443");
    }
    // Some servers skip records of other types than those of TLS.
    while let [0..=0x13 | 0x19.., 3, _, _, _, ..] = *passed {
        passed = after_record(passed);
    }
    if passed.is_empty() {
        return;
    }
    if passed[0] != HANDSHAKE {
        let is_other = matches!(Beginning::of(passed), Beginning::Other | Beginning::TooShort);
        assert!(is_other, "a server may read {:x?} as TLS", &passed[..passed.len().min(DECISIVE)]);
        return;
    }
    let (hello, mut rest) = message(passed).expect("a whole hello goes out, or nothing");
    names(host, &hello);
    let mut answer = heard;
    while let [ALERT | CHANGE_CIPHER_SPEC, MAJOR_VERSION, _, _, _, ..] = *answer {
        answer = after_record(answer);
    }
    let answer = message(answer).map(|(answer, _)| answer).unwrap_or_default();
    let is_hello = answer.first() == Some(&SERVER_HELLO);
    let is_retry = is_hello && answer.get(6..38) == Some(&RETRY);
    let is_old = is_hello && !is_retry && is_old(&answer);
    let mut messages = Vec::new();
    while let [kind, _, _, high, low, ref payload @ ..] = *rest {
        if kind == HANDSHAKE && is_retry {
            let (hello, _) = message(rest).expect("and so does a second one");
            return names(host, &hello);
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        assert_ne!(length, 0, "an empty record");
        match kind {
            HANDSHAKE => messages.extend_from_slice(&payload[..length.min(payload.len())]),
            CHANGE_CIPHER_SPEC if is_old && has_keys(&messages) => return,
            _ => {}
        }
        rest = after_record(rest);
    }
    has_keys(&messages);
}

/// Whether a client may encrypt after these messages, of which none may be a further hello.
fn has_keys(mut messages: &[u8]) -> bool {
    let mut has_keys = false;
    while let Some((&kind, rest)) = messages.split_first() {
        assert_ne!(kind, CLIENT_HELLO, "a further hello");
        let Some((&[a, b, c], body)) = rest.split_first_chunk() else { return false };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some(next) = body.get(length..) else { return false };
        has_keys |= kind == CLIENT_KEY_EXCHANGE;
        messages = next;
    }
    has_keys
}

/// Whether a ServerHello is one of TLS 1.2 or older; of a malformed one, that does not matter.
fn is_old(hello: &[u8]) -> bool {
    let number = |at: usize| {
        hello.get(at..at + 2).map_or(0, |it| usize::from(u16::from_be_bytes([it[0], it[1]])))
    };
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(hello.get(at).copied().unwrap_or(0)) + 2 + 1;
    let end = (at + 2 + number(at)).min(hello.len());
    at += 2;
    while at < end {
        let version = hello.get(at + 4..at + 4 + number(at + 2));
        if number(at) == usize::from(SUPPORTED_VERSIONS)
            && matches!(version, Some([3, minor]) if *minor >= 4)
        {
            return false;
        }
        at += 4 + number(at + 2);
    }
    true
}

fn after_record(stream: &[u8]) -> &[u8] {
    let length = usize::from(u16::from_be_bytes([stream[3], stream[4]]));
    &stream[stream.len().min(5 + length)..]
}

/// The first handshake message of a stream of records, or enough of it to see that it requests another
/// hello, and what follows its last record.
fn message(mut stream: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut message: Vec<u8> = Vec::new();
    loop {
        if let &[kind, a, b, c, ..] = &message[..] {
            let length = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            let is_retry = kind == SERVER_HELLO && message.get(6..38) == Some(&RETRY);
            let enough = if is_retry { 38 } else { length };
            if message.len() >= enough {
                return Some((message, stream));
            }
        }
        let (&[kind, major, _, high, low], rest) = stream.split_first_chunk::<5>()?;
        if (kind, major) != (HANDSHAKE, 3) {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        // For a server's last record, the part that has arrived is enough.
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        // A handshake record has neither length.
        if payload.is_empty() || length > MAX_PLAIN_RECORD {
            return None;
        }
        message.extend_from_slice(payload);
        stream = rest;
    }
}

/// Asserts that this is a hello with the host's name, or with none for an address.
fn names(host: &Host, hello: &[u8]) {
    assert_eq!(hello[0], CLIENT_HELLO);
    let number = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + number(at);
    at += 1 + usize::from(hello[at]);
    let mut found = Vec::new();
    let end = hello.len();
    if at < end {
        assert_eq!(at + 2 + number(at), end);
        at += 2;
        while at < end {
            let (kind, length) = (number(at), number(at + 2));
            if kind == usize::from(SERVER_NAME) {
                // The list's length, the type, the name's length.
                found.push(&hello[at + 4 + 5..at + 4 + length]);
            }
            at += 4 + length;
        }
    }
    match (&found[..], host) {
        ([], Host::Address(_)) => {}
        ([name], host) => {
            let name = std::str::from_utf8(name).expect("a name is text");
            assert!(name.is_ascii());
            assert_eq!(name.parse::<Host>().as_ref(), Ok(host));
        }
        (found, _) => panic!("{} names went out", found.len()),
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn tls_properties_hold_for_the_corpus() {
        corpus::replay("tls", super::tls);
    }
}
