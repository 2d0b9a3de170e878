//! Properties of the wire that hold for any bytes: the bodies of the fuzz targets `frames` and
//! `messages`. They panic if a property does not hold.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpora.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::frame::{FrameDecoder, FrameError, encode};
use crate::limits::{MAX_FRAME_BYTES, MAX_NESTING};
use crate::message::{
    ControlReply, Done, ExecReply, HelloReply, ListPortsReply, Operation, Request, RunReply,
};
use crate::operation::read_replies;
use crate::{DecodeError, FromAgent, ToAgent};

/// A stream of frames. The first byte is the number of bytes that follow which determine how the
/// rest is split.
pub fn frames(data: &[u8]) {
    let Some((&count, rest)) = data.split_first() else { return };
    let (cuts, stream) = rest.split_at(usize::from(count % 16).min(rest.len()));

    let (lines, end) = decoded([stream]);
    let mut rest = stream;
    let mut cut = cuts.iter().cycle();
    let pieces = std::iter::from_fn(|| {
        let length = usize::from(*cut.next().unwrap_or(&0)) + 1;
        let (piece, more) = rest.split_at(length.min(rest.len()));
        rest = more;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(decoded(pieces), (lines.clone(), end.clone()), "the cuts make a difference");

    let read: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
    let left = stream.strip_prefix(read.as_slice()).expect("the lines are the stream");
    match end {
        Ok(()) => assert!(!left.contains(&b'\n')),
        Err(FrameError::NotUtf8) => assert!(std::str::from_utf8(first_line(left)).is_err()),
        Err(FrameError::TooDeep) => {
            let opened = first_line(left).iter().filter(|byte| b"[{".contains(byte)).count();
            assert!(opened > MAX_NESTING);
        }
        Err(FrameError::TooLong) => assert!(first_line(left).len() >= MAX_FRAME_BYTES),
        Err(FrameError::Encode(reason)) => panic!("a decoder encodes nothing: {reason}"),
    }
    for line in &lines {
        assert!(line.len() < MAX_FRAME_BYTES && !line.contains('\n'));
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        assert!(depth(&value) <= MAX_NESTING);
        // A decoded message can be encoded again, and decodes to the same.
        let said = encode(&value).expect("it fitted");
        let (again, end) = decoded([said.as_slice()]);
        assert_eq!((again.len(), end), (1, Ok(())));
        assert_eq!(serde_json::from_str::<Value>(&again[0]).expect("it is JSON"), value);
    }
}

/// A line, decoded as each side decodes it.
pub fn messages(data: &[u8]) {
    // Only what the frame decoder accepts is ever decoded as a message.
    let mut decoder = FrameDecoder::new();
    decoder.extend(data);
    decoder.extend(b"\n");
    let Ok(Some(line)) = decoder.next_frame() else { return };

    let to_agent = ToAgent::decode(line);
    match &to_agent {
        Ok(message) => {
            let said = text(message.encode());
            assert_eq!(ToAgent::decode(said.trim_end()).expect("our own words"), *message);
        }
        Err(DecodeError::Params { method, id, .. }) => {
            let method = method.as_str();
            let is_known = match id {
                Some(_) => Request::METHODS.contains(&method) || Operation::NAMES.contains(&method),
                None => ["chunk", "credit", "connected", "closed"].contains(&method),
            };
            assert!(is_known, "params of an unknown method '{method}'");
        }
        Err(DecodeError::Envelope(_)) => {}
    }
    match FromAgent::decode(line) {
        Ok(message) => {
            assert!(!matches!(to_agent, Ok(ToAgent::Request { .. })), "both ways at once");
            let said = text(message.encode());
            let again = FromAgent::decode(said.trim_end()).expect("our own words");
            assert_eq!(text(again.encode()), said);
            if let FromAgent::Reply { result: Ok(raw), .. } = message {
                reply::<HelloReply>(raw);
                reply::<RunReply>(raw);
                reply::<ExecReply>(raw);
                reply::<ControlReply>(raw);
                reply::<ListPortsReply>(raw);
                reply::<Done>(raw);
                read_replies(raw);
            }
        }
        Err(DecodeError::Params { method, id, .. }) => {
            let known = [
                "log", "case", "touched", "refused", "page", "started", "exited", "chunk",
                "credit", "connect", "close", "call",
            ];
            assert!(id.is_none() && known.contains(&method.as_str()), "'{method}'");
        }
        Err(DecodeError::Envelope(_)) => {}
    }
}

/// Decodes an answer as the answer to some request; a decoded answer can be encoded again.
pub(crate) fn reply<T: DeserializeOwned + serde::Serialize>(raw: &RawValue) {
    let Ok(reply) = serde_json::from_str::<T>(raw.get()) else { return };
    let said = serde_json::to_string(&reply).expect("our own words");
    let again: T = serde_json::from_str(&said).expect("our own words");
    assert_eq!(serde_json::to_string(&again).expect("our own words"), said);
}

fn text(frame: Result<Vec<u8>, FrameError>) -> String {
    String::from_utf8(frame.expect("what was read can be said")).expect("JSON is text")
}

fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(values) => 1 + values.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// All frames of a stream, and how the stream ends.
pub(crate) fn decoded<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<String>, Result<(), FrameError>) {
    let mut decoder = FrameDecoder::new();
    let mut lines = Vec::new();
    for piece in pieces {
        decoder.extend(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(line)) => lines.push(line.to_owned()),
                Ok(None) => break,
                Err(error) => {
                    decoder.extend(b"more\n");
                    assert_eq!(decoder.next_frame(), Err(error.clone()), "it comes back to life");
                    return (lines, Err(error));
                }
            }
        }
    }
    (lines, Ok(()))
}

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn frame_properties_hold_for_the_corpus() {
        corpus::replay("frames", super::frames);
    }

    #[test]
    fn message_properties_hold_for_the_corpus() {
        corpus::replay("messages", super::messages);
    }
}
