//! Classifies the first bytes of a connection: whether some server would read them as the beginning
//! of TLS or SSL.
//!
//! Servers differ in what they accept before, or in place of, a TLS record with a ClientHello:
//!
//! - Go's `crypto/tls`: warning alerts before it, and record versions from 0.0 to 15.255;
//! - OpenSSL: a ClientHello in the format of SSLv2, and empty records before it; older versions alerts too;
//! - GnuTLS: record versions from 0.0 on; NSS: SSLv2's record header of three bytes too;
//! - OpenSSL up to 1.0.2, where its version is fixed: records of a type that TLS does not have;
//! - front ends such as HAProxy and nginx: a header of the PROXY protocol before it.
//!
//! None of these can carry a server name that a guard could check. So only data that none of these
//! servers would accept counts as another protocol. A record of an unknown type may be one: what
//! follows it decides.

/// The maximum number of bytes that a decision needs.
pub const DECISIVE: usize = 12;

/// TLS's content types: change_cipher_spec, alert, handshake, application_data, heartbeat.
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 0x14..=0x18;
const HANDSHAKE: u8 = 0x16;
/// The major version of SSL 3.0 and TLS.
const MAJOR_VERSION: u8 = 3;
const RECORD_HEADER: usize = 5;

const SSL2_CLIENT_HELLO: u8 = 1;
/// Set in the first byte of an SSLv2 record header of two bytes. In a header of three bytes, which
/// includes the padding length, it is not set, and the next bit is reserved.
const SSL2_SHORT_HEADER: u8 = 0x80;
const SSL2_RESERVED: u8 = 0x40;
const SSL2_LONG_HEADER_BYTES: usize = 3;
/// Type, version, and the lengths of the ciphers, the session id and the challenge.
const SSL2_HELLO_HEAD: usize = 9;

/// Headers of the PROXY protocol, versions 1 and 2.
const PROXY_HEADERS: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

/// A classification of the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A TLS handshake record, to be parsed as one.
    Handshake,
    /// Some server would accept it as TLS or SSL, but it has no server name to check.
    Ambiguous,
    /// A record of this length, with its header, of a type that TLS does not have. Some servers skip it
    /// and read on; for all others it is another protocol.
    Skipped(usize),
    /// Another protocol, for every server.
    Other,
    /// Too short for any server to decide.
    TooShort,
}

impl Beginning {
    /// Classifies the first bytes: all that have arrived, up to [`DECISIVE`].
    pub fn of(first: &[u8]) -> Self {
        match first {
            [] => Self::TooShort,
            [HANDSHAKE, ..] => Self::Handshake,
            [kind, ..] if CONTENT_TYPES.contains(kind) => Self::Ambiguous,
            [head, ..] => {
                let ssl2 = match head & (SSL2_SHORT_HEADER | SSL2_RESERVED) {
                    0 => ssl2_long_header(first),
                    SSL2_RESERVED => Self::Other,
                    _ => ssl2_short_header(first),
                };
                let ssl = ssl2.or(unknown_record(first));
                PROXY_HEADERS.iter().fold(ssl, |so_far, header| so_far.or(prefix(first, header)))
            }
        }
    }

    /// Combines two readings: what either of them rules out is ruled out.
    const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ambiguous, _) | (_, Self::Ambiguous) => Self::Ambiguous,
            (Self::TooShort, _) | (_, Self::TooShort) => Self::TooShort,
            (Self::Other, _) => other,
            _ => self,
        }
    }
}

/// Servers that skip such records look at no more of the version.
fn unknown_record(first: &[u8]) -> Beginning {
    match *first {
        [_, MAJOR_VERSION, _, high, low, ..] => {
            Beginning::Skipped(RECORD_HEADER + usize::from(u16::from_be_bytes([high, low])))
        }
        [_] | [_, MAJOR_VERSION, ..] => Beginning::TooShort,
        _ => Beginning::Other,
    }
}

/// Servers look only at the message type.
const fn ssl2_short_header(first: &[u8]) -> Beginning {
    match first {
        [_, _, SSL2_CLIENT_HELLO, ..] => Beginning::Ambiguous,
        [_, _, _, ..] => Beginning::Other,
        _ => Beginning::TooShort,
    }
}

/// One byte is not enough to decide: every MySQL login has it at the same position. Servers that
/// accept this form check the lengths of its parts against that of the record.
fn ssl2_long_header(first: &[u8]) -> Beginning {
    match first {
        [_, _, _, kind, ..] if *kind != SSL2_CLIENT_HELLO => Beginning::Other,
        &[high, low, padding, _, _, _, a, b, c, d, e, f, ..] => {
            let record = usize::from(u16::from_be_bytes([high, low]));
            let parts =
                [[a, b], [c, d], [e, f]].map(|length| usize::from(u16::from_be_bytes(length)));
            let message = SSL2_HELLO_HEAD + parts.iter().sum::<usize>();
            if record == message || record == message + usize::from(padding) {
                Beginning::Ambiguous
            } else {
                Beginning::Other
            }
        }
        _ => Beginning::TooShort,
    }
}

fn prefix(first: &[u8], header: &[u8]) -> Beginning {
    if first.starts_with(header) {
        Beginning::Ambiguous
    } else if header.starts_with(first) {
        Beginning::TooShort
    } else {
        Beginning::Other
    }
}

const _: () = assert!(SSL2_LONG_HEADER_BYTES + SSL2_HELLO_HEAD == DECISIVE);
