//! Whether an address is one of this machine's own, as the kernel's routes say (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// A port for a socket that never sends: that of the discard service.
const DISCARD: u16 = 9;
/// The length of a message's header, and of the description of a route after it.
const HEADER: usize = 16;
const ROUTE: usize = 12;
/// Where the description has the type of the route.
const ROUTE_TYPE: usize = HEADER + 7;

/// Whether packets to an address stay on this machine. Sends none.
pub(super) fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    // Without routes to ask for, the source address tells it of most addresses.
    route_type(address).map_or_else(
        |_| source(address).is_ok_and(|source| source == address),
        |kind| kind != libc::RTN_UNICAST,
    )
}

/// The type of the route to an address.
fn route_type(address: IpAddr) -> io::Result<u8> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let attribute = 4 + octets.len();
    let mut request = Vec::new();
    // The header: length, type, flags, sequence number, sender.
    request.extend(((HEADER + ROUTE + attribute) as u32).to_ne_bytes());
    request.extend(libc::RTM_GETROUTE.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]);
    // The route: family, length of the destination in bits, and what is not asked for.
    request.extend([family as u8, 8 * octets.len() as u8]);
    request.extend([0; ROUTE - 2]);
    // The destination.
    request.extend((attribute as u16).to_ne_bytes());
    request.extend(libc::RTA_DST.to_ne_bytes());
    request.extend(octets);

    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // NETLINK_ROUTE is protocol 0.
        None,
    )?;
    send(&kernel, &request, SendFlags::empty())?;
    let mut answer = [0; 1024];
    // It is there when the request is sent.
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::DONTWAIT)?;
    let answer = &answer[..length];
    match (answer.get(4..6), answer.get(ROUTE_TYPE)) {
        (Some(kind), Some(&route)) if kind == libc::RTM_NEWROUTE.to_ne_bytes() => Ok(route),
        _ => Err(io::Error::other("no route")),
    }
}

/// The source address that the kernel chooses for an address.
fn source(address: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((address, DISCARD))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_loopback_are_own_and_others_are_not() {
        for own in ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"] {
            let own: IpAddr = own.parse().unwrap();
            assert!(is_own(own), "{own}");
        }
        assert_eq!(route_type(Ipv4Addr::LOCALHOST.into()).unwrap(), libc::RTN_LOCAL);
        // Documentation addresses, which no machine has.
        for other in ["192.0.2.1", "2001:db8::1"] {
            let other: IpAddr = other.parse().unwrap();
            assert!(!is_own(other), "{other}");
        }
    }
}
