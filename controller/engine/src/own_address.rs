//! Whether an address is one of this machine's own, as the kernel's routes say (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use sandbox_api::hosts::embedded;
use sandbox_helper::netlink;

/// The length of the description of a route.
const ROUTE: usize = 12;
/// Where it has the type of the route, and its flags.
const ROUTE_TYPE: usize = 7;
const ROUTE_FLAGS: std::ops::Range<usize> = 8..12;
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
    let (kind, answer) = netlink::ask(libc::RTM_GETROUTE, 0, &route)?;
    let flags = answer.get(ROUTE_FLAGS).and_then(|it| it.try_into().ok()).map(u32::from_ne_bytes);
    match (kind, answer.get(ROUTE_TYPE).zip(flags)) {
        (libc::RTM_NEWROUTE, Some((&route, flags))) => {
            Ok(if flags & LOCAL == 0 { route } else { libc::RTN_LOCAL })
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
