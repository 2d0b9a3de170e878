//! Limits of the protocol itself. They apply to every sandbox and are not configurable.
//!
//! Sizes of results, logs and lists count *encoded* bytes ([`encoded_len`]), so that anything
//! within its limit fits into a frame.

use std::time::Duration;

/// Longest line, in encoded bytes, with its newline. Both sides enforce it when they send and when
/// they read.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// Most bytes of body in one `chunk`, before base64. It is small so that control frames are not
/// delayed.
pub const MAX_CHUNK_BYTES: usize = 64 << 10;

/// Deepest nesting of objects and arrays in a frame.
pub const MAX_NESTING: usize = 64;

/// Deepest nesting of a value that a script returns or receives (`return`, `args`, `json`).
pub const MAX_VALUE_DEPTH: usize = 56;

/// Most unanswered requests at one time; one more is answered `busy`.
pub const MAX_IN_FLIGHT: usize = 16;

/// Most commands of requests at one time, kept ones and others; one more is answered `busy`. Kept
/// commands are not among the [requests in flight](MAX_IN_FLIGHT).
pub const MAX_COMMANDS: usize = 64;

/// Most terminals of commands at one time; one more is answered `busy`.
pub const MAX_TERMINALS: usize = 16;

/// Most directories that are watched at one time by requests; one more `watch` is answered `busy`.
pub const MAX_WATCHES: usize = 8;

/// Most directories of one watch. Those below it that are more are not watched, and count as omitted.
pub const MAX_WATCHED_DIRECTORIES: usize = 4096;

/// How deep a watch goes: the directories in the watched one are at 1. Deeper ones are not watched, and
/// count as omitted.
pub const MAX_WATCH_DEPTH: usize = 32;

/// Most columns, and most rows, of a terminal. It has one at least.
pub const MAX_TERMINAL_SIZE: u16 = 4096;

/// Longest `TERM` of a terminal: letters, digits and `.+_-`.
pub const MAX_TERM_BYTES: usize = 64;

/// Most entries in one page of a list.
pub const LIST_PAGE: usize = 500;

/// A page of a list also ends when its names reach this many encoded bytes, including the last
/// name.
pub const LIST_PAGE_BYTES: usize = 1 << 20;

/// Most lines in one view of a text.
pub const MAX_VIEW_LINES: u64 = 2000;

/// Most bytes of text in one view.
pub const MAX_VIEW_BYTES: usize = 50 << 10;

/// Longest entry of the log, in encoded bytes; a longer one is cut.
pub const MAX_LOG_ENTRY_BYTES: usize = 64 << 10;

/// Longest script, in bytes. The limits on time and memory do not cover compilation, hence this
/// one.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Longest result of a script, in encoded bytes.
pub const MAX_RESULT_BYTES: usize = 1 << 20;

/// Longest `args` object, in encoded bytes.
pub const MAX_ARGS_BYTES: usize = 1 << 20;

/// Most bytes of a command's arguments, environment and working directory, plus eight for each
/// string.
pub const MAX_COMMAND_BYTES: usize = 512 << 10;

/// Most secrets of a script or a command.
pub const MAX_SECRETS: usize = 64;

/// Shortest secret. What replaces a secret in output is shorter, so that output never grows, and
/// the text of a shorter one stands in ordinary output.
pub const MIN_SECRET_BYTES: usize = 4;

/// Longest secret. Half of what the kernel takes as one variable.
pub const MAX_SECRET_BYTES: usize = 64 << 10;

/// Most bytes of all secrets of a script or a command.
pub const MAX_SECRETS_BYTES: usize = 256 << 10;

/// Longest name of a secret.
pub const MAX_SECRET_NAME_BYTES: usize = 128;

/// Longest JSON of the table that a script raised; a longer one is left out.
pub const MAX_ERROR_VALUE_BYTES: usize = 64 << 10;
/// Longest message or traceback of an error, in encoded bytes; a longer one is cut.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Most `refused` notifications of one run; further refusals are not reported.
pub const MAX_REFUSALS: usize = 1000;

/// Most test cases of one run.
pub const MAX_TEST_CASES: usize = 10_000;

/// Longest name of a test case, in encoded bytes; a longer one is cut.
pub const MAX_TEST_NAME_BYTES: usize = 256;

/// Longest message of a test case, in encoded bytes; a longer one is cut.
pub const MAX_TEST_MESSAGE_BYTES: usize = 1 << 10;

/// Longest name of a tool of the host, and most bytes of the words of a search for tools.
pub const MAX_TOOL_NAME_BYTES: usize = 256;

/// Longest arguments of a script's call of a tool, in encoded bytes.
pub const MAX_TOOL_ARGUMENT_BYTES: usize = 1 << 20;

/// Longest value of a call's result, in encoded bytes.
pub const MAX_TOOL_VALUE_BYTES: usize = 1 << 20;

/// Most files of a call's result.
pub const MAX_TOOL_FILES: usize = 16;
/// Most bytes of the files of a call's result together.
pub const MAX_TOOL_FILE_BYTES: usize = 2 << 20;

/// Longest name of such a file, and longest media type.
pub const MAX_TOOL_FILE_NAME_BYTES: usize = 128;

/// Longest pattern of `glob` and `grep`.
pub const MAX_PATTERN_BYTES: usize = 4 << 10;

/// Encoded bytes of all paths that `glob` returns, each counted with one more.
pub const MAX_GLOB_BYTES: usize = 1 << 20;

/// Encoded bytes of all lines that `grep` returns, with their paths, each counted with 64 more.
pub const MAX_GREP_BYTES: usize = 1 << 20;

/// Longest line that `grep` returns; it searches longer ones.
pub const MAX_GREP_LINE_BYTES: usize = 2 << 10;

/// Most lines of context on each side of a match.
pub const MAX_GREP_CONTEXT: u64 = 100;

/// The most bytes of keys and values that a file may have in both namespaces together.
pub const MAX_METADATA_BYTES: usize = 4096;
/// The most keys that a file may have in both namespaces together.
pub const MAX_METADATA_KEYS: usize = 64;

/// Initial credit of a stream, in bytes: what the sender may send before the first `credit`.
pub const INITIAL_CREDIT: u64 = 256 << 10;

/// Bytes that a sandbox may write in its lifetime, unless the limit of a single run is higher.
pub const LIFETIME_WRITE_BYTES: u64 = 1 << 30;

/// Entries that a sandbox may create in its lifetime, unless the limit of a single run is higher.
pub const LIFETIME_ENTRIES: u64 = 100_000;

/// The lowest number of a [dialled](crate::message::Dial) tunnel. The controller chooses these from
/// here up to [`FIRST_TUNNEL`], and the numbers of a request's streams below them.
pub const FIRST_DIAL: u32 = 1 << 30;

/// Most dialled tunnels at one time, including those that only one side has closed. They are not
/// among the [tunnels of commands](MAX_TUNNELS): neither can starve the other.
pub const MAX_DIALS: usize = 64;

/// How long the agent tries to connect for a `dial`.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Most sockets in the answer to `ports`.
pub const MAX_LISTENING: usize = 1024;

/// The lowest number of a command's tunnel, which the agent chooses.
pub const FIRST_TUNNEL: u32 = 1 << 31;

/// Most tunnels at one time, including those that only one side has closed.
pub const MAX_TUNNELS: usize = 64;

/// Longest host in a `connect`: a name has at most 253 bytes, 254 with the trailing dot, and SOCKS
/// allows 255.
pub const MAX_HOST_BYTES: usize = 255;

/// Longest message of a `closed`.
pub const MAX_CLOSED_MESSAGE_BYTES: usize = 2 << 10;

/// A receiver may hold back less than this of the bytes it has consumed before it grants credit for
/// them, so that a slow trickle does not need a grant for each piece.
pub const CREDIT_STEP: u64 = 32 << 10;

/// Interval of the controller's heartbeats, in addition to other messages.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long an agent waits for the next byte from its controller, of any frame, before it exits.
/// Measured by the monotonic clock, which stops while the machine is suspended.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);

/// The same for the first byte of all: an engine may be slow to report that a container has
/// started, and until then the controller sends nothing. No guest code runs before that.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(60);

// Several heartbeats may be late, or lost in an engine, before the agent exits.
const _: () = assert!(HEARTBEAT_INTERVAL.as_secs() * 5 <= HEARTBEAT_TIMEOUT.as_secs());
const _: () = assert!(HEARTBEAT_TIMEOUT.as_secs() <= FIRST_BYTE_TIMEOUT.as_secs());

// One byte of text is at most six of JSON (`\u0001`), base64 is 4 for 3, and 4 KiB is enough for an
// envelope.
const ENVELOPE: usize = 4 << 10;
const SECRETS: usize =
    MAX_SECRETS_BYTES.div_ceil(3) * 4 + MAX_SECRETS * (MAX_SECRET_NAME_BYTES + 64);
const _: () =
    assert!(MAX_SOURCE_BYTES * 6 + MAX_ARGS_BYTES + SECRETS + ENVELOPE <= MAX_FRAME_BYTES);
// What surrounds a string is less than six times the eight bytes that are counted for it.
const _: () = assert!(MAX_COMMAND_BYTES * 6 + SECRETS + ENVELOPE <= MAX_FRAME_BYTES);
const _: () = assert!(MAX_RESULT_BYTES + 2 * MAX_MESSAGE_BYTES + ENVELOPE <= MAX_FRAME_BYTES);
const _: () = assert!(MAX_LOG_ENTRY_BYTES + ENVELOPE <= MAX_FRAME_BYTES);
const _: () = assert!(MAX_CHUNK_BYTES.div_ceil(3) * 4 + ENVELOPE <= MAX_FRAME_BYTES);
// A name that is not UTF-8 is sent as base64. Beside its names and its metadata, an entry needs less
// than 512 bytes.
const LONGEST_NAME: usize = crate::path::MAX_PATH_BYTES * 6;
const MOST_METADATA: usize = (MAX_METADATA_BYTES + 256) * 6;
const _: () = assert!(
    LIST_PAGE_BYTES + 2 * LONGEST_NAME + MOST_METADATA + LIST_PAGE * 512 + ENVELOPE
        <= MAX_FRAME_BYTES
);
const _: () =
    assert!((MAX_VIEW_BYTES + crate::path::MAX_PATH_BYTES) * 6 + ENVELOPE <= MAX_FRAME_BYTES);
// A path has a comma. A line has its names, its number and two words: 80 bytes at most, of which 64
// are counted.
const _: () = assert!(2 * MAX_GLOB_BYTES + LONGEST_NAME + ENVELOPE <= MAX_FRAME_BYTES);
const _: () = assert!(2 * MAX_GREP_BYTES + LONGEST_NAME + ENVELOPE <= MAX_FRAME_BYTES);
const _: () =
    assert!(MAX_TOOL_ARGUMENT_BYTES + 6 * MAX_TOOL_NAME_BYTES + ENVELOPE <= MAX_FRAME_BYTES);
// What surrounds a file, and the last bytes of its base64, need less than 128 bytes.
const _: () = assert!(
    MAX_TOOL_VALUE_BYTES
        + MAX_TOOL_FILE_BYTES.div_ceil(3) * 4
        + MAX_TOOL_FILES * (12 * MAX_TOOL_FILE_NAME_BYTES + 128)
        + ENVELOPE
        <= MAX_FRAME_BYTES
);
const _: () = assert!(MAX_VALUE_DEPTH + 8 <= MAX_NESTING);
const _: () = assert!(INITIAL_CREDIT >= MAX_CHUNK_BYTES as u64 + CREDIT_STEP);

/// Stands in the message of `too_large` if a file or a range of it is meant.
pub const TOO_MANY_BYTES: &str = " are too many";
/// Stands in the message of `not_empty` if a directory was to be replaced, not removed.
pub const ONLY_EMPTY: &str = "; only an empty one is replaced";
/// The reason of `not_allowed` in a sandbox without files.
pub const IO_IS_OFF: &str = "the sandbox has no io dir, because io is off";

/// A size in messages: bytes below 1 KiB, else the largest unit, with a decimal where it is not
/// whole.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let power = 10 * (bytes.ilog2() as usize / 10).min(UNITS.len());
    let unit = UNITS[power / 10 - 1];
    let (whole, rest) = (bytes >> power, bytes & ((1 << power) - 1));
    match (u128::from(rest) * 10) >> power {
        0 => format!("{whole} {unit}"),
        tenths => format!("{whole}.{tenths} {unit}"),
    }
}

/// The number of bytes of `text` in a JSON string, without the quotes, as this crate writes it.
pub fn encoded_len(text: &str) -> usize {
    text.bytes().map(encoded_byte_len).sum()
}

fn encoded_byte_len(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    }
}

/// The longest prefix of `text` of at most `max` encoded bytes, cut between characters.
pub fn cut_encoded(text: &str, max: usize) -> &str {
    let mut used = 0;
    for (index, character) in text.char_indices() {
        used += encoded_byte_len(text.as_bytes()[index]) + character.len_utf8() - 1;
        if used > max {
            return &text[..index];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_their_largest_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (52_428_800, "50 MiB"),
            (20_000_000, "19 MiB"),
            (1_610_612_736, "1.5 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_len_is_what_serde_json_writes(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(encoded_len(&text), json.len() - 2);
        }

        #[test]
        fn a_cut_text_fits_and_no_longer_start_would(text in any::<String>(), max in 0_usize..64) {
            let cut = cut_encoded(&text, max);
            prop_assert!(text.starts_with(cut));
            prop_assert!(encoded_len(cut) <= max);
            if let Some(next) = text[cut.len()..].chars().next() {
                let longer = &text[..cut.len() + next.len_utf8()];
                prop_assert!(encoded_len(longer) > max);
            }
        }
    }
}
