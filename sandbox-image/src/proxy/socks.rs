//! SOCKS5 (RFC 1928): the greeting and the request. No authentication, `CONNECT` only. Pure: no
//! I/O.

use std::net::{Ipv4Addr, Ipv6Addr};

use sandbox_protocol::message::ClosedReason;

use super::http::{ConnectRequest, OnConnect};

/// The first byte of a SOCKS5 client.
pub const VERSION: u8 = 5;

/// The response to a greeting: no authentication.
pub const NO_AUTHENTICATION: [u8; 2] = [VERSION, 0];
/// The response if the client does not offer that.
pub const NO_METHOD: [u8; 2] = [VERSION, 0xff];

/// The reply codes of SOCKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// Success.
    Succeeded = 0,
    /// General failure.
    Failure = 1,
    /// Not allowed by a rule.
    NotAllowed = 2,
    /// Host unreachable.
    HostUnreachable = 4,
    /// Timeout.
    TtlExpired = 6,
    /// Unsupported command: not `CONNECT`.
    CommandNotSupported = 7,
    /// Unsupported address type.
    AddressTypeNotSupported = 8,
}

impl Reply {
    /// The reply for a failed connection.
    pub const fn to(reason: ClosedReason) -> Self {
        match reason {
            ClosedReason::Refused => Self::NotAllowed,
            ClosedReason::Unreachable => Self::HostUnreachable,
            ClosedReason::Timeout => Self::TtlExpired,
            ClosedReason::Done | ClosedReason::Limit | ClosedReason::Reset => Self::Failure,
        }
    }

    /// The reply, with an unspecified address: the proxy has none to report.
    pub const fn bytes(self) -> [u8; 10] {
        [VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// Parses a greeting: its length, and whether it offers no authentication. `None` if it is
/// incomplete.
pub fn read_greeting(bytes: &[u8]) -> Option<(usize, bool)> {
    let (&[_version, count], rest) = bytes.split_first_chunk::<2>()?;
    let methods = rest.get(..usize::from(count))?;
    Some((2 + methods.len(), methods.contains(&0)))
}

/// Parses a request; `None` if it is incomplete.
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
        port => {
            let (length, then) = (4 + length + 2, OnConnect::Tunnel);
            Ok(Some(ConnectRequest { host, port, then, length }))
        }
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
            let (host, length, then) = (host.to_owned(), bytes.len(), OnConnect::Tunnel);
            let request = ConnectRequest { host, port, then, length };
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
