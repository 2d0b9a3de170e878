//! What listens on the sandbox's ports: read from the kernel's tables, which are opened before the agent
//! is confined.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sandbox_protocol::limits::MAX_LISTENING;
use sandbox_protocol::message::ListeningPort;

/// The tables; one is missing on a kernel without that kind of address.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// How much of a table is read. Sockets that listen are its first lines, of at most 180 bytes.
const TABLE_BYTES: u64 = 256 << 10;

/// The state of a socket that listens.
const LISTENS: &str = "0A";

/// The tables of the sandbox's TCP sockets.
#[derive(Debug)]
pub struct Listening(Vec<File>);

impl Listening {
    /// Opens them.
    pub fn open() -> Self {
        Self(TABLES.iter().filter_map(|table| File::open(table).ok()).collect())
    }

    /// The sockets that listen now, but for the one on this port of 127.0.0.1.
    pub fn ports(&self, but_for: Option<u16>) -> Vec<ListeningPort> {
        let tables: Vec<String> = self.0.iter().map(read).collect();
        let own = but_for.map(|port| ListeningPort { port, address: Ipv4Addr::LOCALHOST.into() });
        let lines = tables.iter().flat_map(|table| table.lines());
        let mut ports: Vec<_> =
            lines.filter_map(listener).filter(|port| Some(port) != own.as_ref()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.truncate(MAX_LISTENING);
        ports
    }
}

fn read(mut table: &File) -> String {
    let mut bytes = Vec::new();
    _ = table.rewind().and_then(|()| table.take(TABLE_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The socket of a line, if it listens: after a number come the local address, the remote one, and the
/// state.
fn listener(line: &str) -> Option<ListeningPort> {
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != LISTENS {
        return None;
    }
    Some(ListeningPort { port: u16::from_str_radix(port, 16).ok()?, address: address_of(address)? })
}

/// An address as the kernel writes it: in words of this machine's byte order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn only_sockets_that_listen_are_found_in_the_tables() {
        let tables = "  sl  local_address rem_address   st tx_queue\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
            \x20  1: 0100007F:1F91 0100007F:D431 01 00000000:00000000\n\
            \x20  0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A\n\
            \x20  1: 00000000000000000000000001000000:0051 00000000000000000000000000000000:0000 0A\n\
            \x20  2: 0100007:1F92 00000000:0000 0A\n\
            \x20  3: 0100007F 00000000:0000 0A\n";
        let found: Vec<_> = tables.lines().filter_map(listener).collect();
        let port = |port, address: &str| ListeningPort { port, address: address.parse().unwrap() };
        assert_eq!(found, [port(8080, "127.0.0.1"), port(80, "::"), port(81, "::1")]);
    }

    #[test]
    fn socket_is_listed_as_long_as_it_listens() {
        let tables = Listening::open();
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = ListeningPort { port, address: Ipv4Addr::LOCALHOST.into() };
        // A machine with more sockets than are listed shows the lowest ports.
        let all = tables.ports(None);
        assert!(all.contains(&own) || all.len() == MAX_LISTENING, "{all:?}");
        assert!(!tables.ports(Some(port)).contains(&own));
        drop(socket);
        assert!(!tables.ports(None).contains(&own));
    }
}
