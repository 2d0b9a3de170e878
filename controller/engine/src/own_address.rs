//! Whether an address is one of this machine's own, as the kernel's routes say (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use sandbox_api::hosts::embedded;

/// The length of a message's header, and of the description of a route after it.
const HEADER: usize = 16;
const ROUTE: usize = 12;
/// Where the description has the type of the route, and its flags.
const ROUTE_TYPE: usize = HEADER + 7;
const ROUTE_FLAGS: std::ops::Range<usize> = HEADER + 8..HEADER + 12;
/// `RTCF_LOCAL`: packets are delivered here, for any route type, as through `lo`.
const LOCAL: u32 = 0x8000_0000;

/// Attributes of a route that libc lacks: what a rule may choose it by (linux/rtnetlink.h).
const RTA_IP_PROTO: u16 = 27;
const RTA_DPORT: u16 = 29;

/// Whether TCP packets to a port of an address stay on this machine, or those to the address that it
/// embeds, which a gateway would send back here. Sends none.
///
/// # Errors
///
/// If that cannot be determined, for example because there is no free descriptor.
pub fn is_own(address: IpAddr, port: u16) -> io::Result<bool> {
    let address = address.to_canonical();
    for address in [Some(address), embedded(address)].into_iter().flatten() {
        match route_type(address, port) {
            Ok(libc::RTN_UNICAST) => {}
            Ok(_) => return Ok(true),
            // Packets to it go nowhere.
            Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS) => {}
            // Nor does a kernel without IPv6 send any.
            Err(Errno::OPNOTSUPP) if address.is_ipv6() => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

/// The type of the route to a TCP port of an address.
fn route_type(address: IpAddr, port: u16) -> Result<u8, Errno> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    // The route: family, length of the destination in bits, and what is not asked for.
    let mut route = vec![family as u8, 8 * octets.len() as u8];
    route.resize(ROUTE, 0);
    for (kind, value) in [
        (libc::RTA_DST, &octets[..]),
        (RTA_IP_PROTO, &[libc::IPPROTO_TCP as u8]),
        (RTA_DPORT, &port.to_be_bytes()),
    ] {
        route.extend((4 + value.len() as u16).to_ne_bytes());
        route.extend(kind.to_ne_bytes());
        route.extend(value);
        route.resize(route.len().next_multiple_of(4), 0);
    }
    // The header: length, type, flags, sequence number, sender.
    let mut request = ((HEADER + route.len()) as u32).to_ne_bytes().to_vec();
    request.extend(libc::RTM_GETROUTE.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(route);

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
    let flags = answer.get(ROUTE_FLAGS).and_then(|it| it.try_into().ok()).map(u32::from_ne_bytes);
    match (answer.get(4..6), answer.get(ROUTE_TYPE).zip(flags)) {
        (Some(kind), Some((&route, flags))) if kind == libc::RTM_NEWROUTE.to_ne_bytes() => {
            Ok(if flags & LOCAL == 0 { route } else { libc::RTN_LOCAL })
        }
        (Some(kind), _) if kind == (libc::NLMSG_ERROR as u16).to_ne_bytes() => {
            let negated = answer.get(HEADER..HEADER + 4).and_then(|it| it.try_into().ok());
            Err(Errno::from_raw_os_error(negated.map_or(libc::EIO, |it| -i32::from_ne_bytes(it))))
        }
        _ => Err(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::tests::without_descriptors;

    #[test]
    fn addresses_of_the_loopback_are_own_and_others_are_not() {
        for own in [
            "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
            "2002:7f00:1::1",
        ] {
            let own: IpAddr = own.parse().unwrap();
            assert!(is_own(own, 80).unwrap(), "{own}");
        }
        assert_eq!(route_type(Ipv4Addr::LOCALHOST.into(), 80).unwrap(), libc::RTN_LOCAL);
        // Documentation addresses, which no machine has.
        for other in ["192.0.2.1", "2001:db8::1"] {
            let other: IpAddr = other.parse().unwrap();
            assert!(!is_own(other, 80).unwrap(), "{other}");
        }
    }

    #[test]
    fn address_is_not_called_foreign_without_a_descriptor_to_ask_with() {
        let asked = without_descriptors(|_held| {
            ["127.0.0.1", "192.0.2.1", "::1"].map(|address| is_own(address.parse().unwrap(), 80))
        });
        for answer in asked {
            assert_eq!(answer.unwrap_err().raw_os_error(), Some(libc::EMFILE));
        }
    }
}
