//! SOCKS5 (RFC 1928): the greeting and the request. No authentication, `CONNECT` alone. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use sandbox_protocol::message::ClosedReason;

/// The first byte of a client's.
pub const VERSION: u8 = 5;

/// The answer to a greeting: no authentication.
pub const NO_AUTHENTICATION: [u8; 2] = [VERSION, 0];
/// The same, where the program would not have it so.
pub const NO_METHOD: [u8; 2] = [VERSION, 0xff];

/// What went wrong, as SOCKS says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// Nothing.
    Succeeded = 0,
    /// Something.
    Failure = 1,
    /// A rule.
    NotAllowed = 2,
    /// Nobody there.
    HostUnreachable = 4,
    /// Too late.
    TtlExpired = 6,
    /// Another command than `CONNECT`.
    CommandNotSupported = 7,
    /// Another kind of address.
    AddressTypeNotSupported = 8,
}

impl Reply {
    /// The reply that tells why there is no connection.
    pub const fn to(reason: ClosedReason) -> Self {
        match reason {
            ClosedReason::Refused => Self::NotAllowed,
            ClosedReason::Unreachable => Self::HostUnreachable,
            ClosedReason::Timeout => Self::TtlExpired,
            ClosedReason::Done | ClosedReason::Limit | ClosedReason::Reset => Self::Failure,
        }
    }

    /// The reply, with an address of nobody: there is none of ours to tell.
    pub const fn bytes(self) -> [u8; 10] {
        [VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// Reads a greeting: its length, and whether it offers to go without authentication. `None` where
/// more of it must come.
pub fn read_greeting(bytes: &[u8]) -> Option<(usize, bool)> {
    let (&[_version, count], rest) = bytes.split_first_chunk::<2>()?;
    let methods = rest.get(..usize::from(count))?;
    Some((2 + methods.len(), methods.contains(&0)))
}

/// What a program asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// A name as it was given, or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How many bytes of what came it is.
    pub length: usize,
}

/// Reads a request; `None` where more of it must come.
pub fn read_request(bytes: &[u8]) -> Result<Option<ConnectRequest>, Reply> {
    let Some((&[version, command, reserved, kind], rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    if version != VERSION || reserved != 0 {
        return Err(Reply::Failure);
    }
    if command != 1 {
        return Err(Reply::CommandNotSupported);
    }
    let (length, host) = match kind {
        1 => match rest.first_chunk::<4>() {
            Some(&address) => (4, Ipv4Addr::from(address).to_string()),
            None => return Ok(None),
        },
        4 => match rest.first_chunk::<16>() {
            Some(&address) => (16, Ipv6Addr::from(address).to_string()),
            None => return Ok(None),
        },
        3 => {
            let Some((&length, rest)) = rest.split_first() else { return Ok(None) };
            let Some(name) = rest.get(..usize::from(length)) else { return Ok(None) };
            let name = std::str::from_utf8(name).map_err(|_| Reply::Failure)?;
            if name.is_empty() {
                return Err(Reply::Failure);
            }
            (1 + name.len(), name.to_owned())
        }
        _ => return Err(Reply::AddressTypeNotSupported),
    };
    let Some(&port) = rest[length..].first_chunk::<2>() else { return Ok(None) };
    match u16::from_be_bytes(port) {
        0 => Err(Reply::Failure),
        port => Ok(Some(ConnectRequest { host, port, length: 4 + length + 2 })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_read_with_all_of_its_methods() {
        assert_eq!(read_greeting(&[5]), None);
        assert_eq!(read_greeting(&[5, 2, 0]), None);
        assert_eq!(read_greeting(&[5, 2, 2, 0, 9]), Some((4, true)));
        assert_eq!(read_greeting(&[5, 1, 2]), Some((3, false)));
        assert_eq!(read_greeting(&[5, 0]), Some((2, false)));
    }

    #[test]
    fn a_request_is_read_in_each_of_its_forms() {
        let name = [&[5, 1, 0, 3, 10][..], b"ok.example", &[1, 187]].concat();
        let v4 = [5, 1, 0, 1, 127, 0, 0, 1, 0, 80];
        let v6 = [&[5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[31, 144]].concat();
        for (bytes, host, port) in
            [(&name[..], "ok.example", 443), (&v4, "127.0.0.1", 80), (&v6, "::1", 8080)]
        {
            for length in 0..bytes.len() {
                assert_eq!(read_request(&bytes[..length]), Ok(None), "{host} {length}");
            }
            let request = ConnectRequest { host: host.to_owned(), port, length: bytes.len() };
            assert_eq!(read_request(&[bytes, b"more"].concat()), Ok(Some(request)));
        }
    }

    #[test]
    fn unsupported_requests_get_an_error_reply() {
        for (bytes, reply) in [
            (&[4, 1, 0, 1][..], Reply::Failure),
            (&[5, 1, 1, 1], Reply::Failure),
            (&[5, 2, 0, 1], Reply::CommandNotSupported),
            (&[5, 3, 0, 1], Reply::CommandNotSupported),
            (&[5, 1, 0, 2], Reply::AddressTypeNotSupported),
            (&[5, 1, 0, 3, 0, 0, 80], Reply::Failure),
            (&[5, 1, 0, 3, 1, 0xff, 0, 80], Reply::Failure),
            (&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0], Reply::Failure),
        ] {
            assert_eq!(read_request(bytes), Err(reply), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            _ = read_greeting(&bytes);
            if let Ok(Some(request)) = read_request(&bytes) {
                prop_assert!(request.length <= bytes.len() && request.host.len() <= 255);
            }
        }
    }
}
