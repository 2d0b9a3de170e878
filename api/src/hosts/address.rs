//! Special addresses, which a connection by host name may not reach: addresses of this machine, its
//! networks or its cloud, and addresses that are not routed.
//!
//! The prefixes are IANA's special-purpose registries, written out because the standard library's
//! `is_global` is not stable, plus the addresses that cloud providers use elsewhere. For IPv6, only
//! the one block of allocated global addresses is allowed, instead of a list of blocks that are
//! not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// This machine.
    Loopback,
    /// A private network.
    Private,
    /// The shared network between a provider and its customers (carrier-grade NAT).
    Shared,
    /// The local link.
    LinkLocal,
    /// A cloud's instance metadata service, which hands out credentials.
    Metadata,
    /// Multicast.
    Multicast,
    /// No address: many systems treat `0.0.0.0` as this machine.
    Unspecified,
    /// Reserved: documentation, benchmarks, protocols, future use.
    Reserved,
}

impl Special {
    /// Its name with an article, for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "a provider's shared address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a metadata service's address",
            Self::Multicast => "a multicast address",
            Self::Unspecified => "an unspecified address",
            Self::Reserved => "a reserved address",
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let text = self.as_str();
        text.split_once(' ').map_or(text, |(_article, name)| name)
    }

    /// Whether no host can have such an address, so that no rule may contain it.
    pub const fn is_never_a_host(self) -> bool {
        matches!(self, Self::Multicast | Self::Unspecified)
    }
}

const V4: &[([u8; 4], u32, Special)] = &[
    // Before the blocks that contain them.
    ([169, 254, 169, 254], 32, Special::Metadata),
    // Alibaba Cloud and Oracle Cloud.
    ([100, 100, 100, 200], 32, Special::Metadata),
    ([192, 0, 0, 192], 32, Special::Metadata),
    // Azure, in the middle of a public block.
    ([168, 63, 129, 16], 32, Special::Metadata),
    ([255, 255, 255, 255], 32, Special::Multicast),
    ([0, 0, 0, 0], 8, Special::Unspecified),
    ([10, 0, 0, 0], 8, Special::Private),
    ([100, 64, 0, 0], 10, Special::Shared),
    ([127, 0, 0, 0], 8, Special::Loopback),
    ([169, 254, 0, 0], 16, Special::LinkLocal),
    ([172, 16, 0, 0], 12, Special::Private),
    ([192, 0, 0, 0], 24, Special::Reserved),
    ([192, 0, 2, 0], 24, Special::Reserved),
    ([192, 88, 99, 0], 24, Special::Reserved),
    ([192, 168, 0, 0], 16, Special::Private),
    ([198, 18, 0, 0], 15, Special::Reserved),
    ([198, 51, 100, 0], 24, Special::Reserved),
    ([203, 0, 113, 0], 24, Special::Reserved),
    ([224, 0, 0, 0], 4, Special::Multicast),
    ([240, 0, 0, 0], 4, Special::Reserved),
];

const V6: &[([u16; 8], u32, Special)] = &[
    // Amazon and Google.
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, Special::Metadata),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Special::Metadata),
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, Special::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, Special::Loopback),
    // NAT64 with a network-specific prefix (RFC 8215).
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, Special::Private),
    // Protocol assignments: Teredo, ORCHID and the like.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, Special::Reserved),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Special::Reserved),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Special::Reserved),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Special::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, Special::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, Special::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Special::Multicast),
];

/// Why this address is refused unless it is listed explicitly; `None` for a public address.
pub fn special(address: IpAddr) -> Option<Special> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<Special> {
    let bits = address.to_bits();
    let is_in = |&&(prefix, length, _): &&([u8; 4], u32, Special)| {
        (bits ^ Ipv4Addr::from(prefix).to_bits()) >> (32 - length) == 0
    };
    V4.iter().find(is_in).map(|&(_, _, special)| special)
}

fn special_v6(address: Ipv6Addr) -> Option<Special> {
    if let Some(IpAddr::V4(inner)) = embedded(address.into()) {
        return special_v4(inner);
    }
    let bits = address.to_bits();
    let is_in = |&&(prefix, length, _): &&([u16; 8], u32, Special)| {
        (bits ^ Ipv6Addr::from(prefix).to_bits()) >> (128 - length) == 0
    };
    let is_given_out = address.segments()[0] & 0xe000 == 0x2000;
    let found = V6.iter().find(is_in).map(|&(_, _, special)| special);
    found.or((!is_given_out).then_some(Special::Reserved))
}

/// The IPv4 address that a packet to this IPv6 address reaches: v4-mapped, NAT64 (RFC 6052) and 6to4.
pub fn embedded(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let (high, low) = match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn special_addresses_are_distinguished_from_others() {
        use Special::{
            LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Shared, Unspecified,
        };
        for (address, expected) in [
            ("1.1.1.1", None),
            ("8.8.8.8", None),
            ("93.184.215.14", None),
            ("9.255.255.255", None),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.128.0.0", None),
            ("126.255.255.255", None),
            ("128.0.0.0", None),
            ("168.63.129.15", None),
            ("169.253.255.255", None),
            ("169.255.0.0", None),
            ("172.15.255.255", None),
            ("172.32.0.0", None),
            ("192.0.1.0", None),
            ("192.167.255.255", None),
            ("192.169.0.0", None),
            ("198.17.255.255", None),
            ("198.20.0.0", None),
            ("223.255.255.255", None),
            ("0.0.0.0", Some(Unspecified)),
            ("0.1.2.3", Some(Unspecified)),
            ("10.0.0.0", Some(Private)),
            ("10.255.255.255", Some(Private)),
            ("100.64.0.0", Some(Shared)),
            ("100.100.100.200", Some(Metadata)),
            ("100.127.255.255", Some(Shared)),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.255.254", Some(Loopback)),
            ("168.63.129.16", Some(Metadata)),
            ("169.254.0.1", Some(LinkLocal)),
            ("169.254.169.254", Some(Metadata)),
            ("169.254.170.2", Some(LinkLocal)),
            ("172.16.0.0", Some(Private)),
            ("172.17.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.0.0.8", Some(Reserved)),
            ("192.0.0.192", Some(Metadata)),
            ("192.0.2.1", Some(Reserved)),
            ("192.88.99.1", Some(Reserved)),
            ("192.168.0.0", Some(Private)),
            ("192.168.255.255", Some(Private)),
            ("198.18.0.0", Some(Reserved)),
            ("198.19.255.255", Some(Reserved)),
            ("198.51.100.7", Some(Reserved)),
            ("203.0.113.7", Some(Reserved)),
            ("224.0.0.1", Some(Multicast)),
            ("239.255.255.255", Some(Multicast)),
            ("240.0.0.1", Some(Reserved)),
            ("255.255.255.255", Some(Multicast)),
            ("2606:4700:4700::1111", None),
            ("2001:4860:4860::8888", None),
            ("2a00:1450:4001::1", None),
            ("2003::1", None),
            ("3ffe::1", None),
            ("::", Some(Unspecified)),
            ("::1", Some(Loopback)),
            ("::2", Some(Reserved)),
            // Deprecated notation of an IPv4 address.
            ("::127.0.0.1", Some(Reserved)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("::ffff:169.254.169.254", Some(Metadata)),
            ("::ffff:8.8.8.8", None),
            // IPv4-translated (SIIT).
            ("::ffff:0:127.0.0.1", Some(Reserved)),
            ("64:ff9b::127.0.0.1", Some(Loopback)),
            ("64:ff9b::169.254.169.254", Some(Metadata)),
            ("64:ff9b::8.8.8.8", None),
            ("64:ff9b:1::8.8.8.8", Some(Private)),
            ("64:ff9b:0:1::8.8.8.8", Some(Reserved)),
            ("100::1", Some(Reserved)),
            ("2001::1", Some(Reserved)),
            ("2001:0:7f00:1::", Some(Reserved)),
            ("2001:10::1", Some(Reserved)),
            ("2001:1ff:ffff::1", Some(Reserved)),
            ("2001:200::1", None),
            ("2001:db8::1", Some(Reserved)),
            ("2002:7f00:1::1", Some(Loopback)),
            ("2002:a00:1::", Some(Private)),
            ("2002:808:808::1", None),
            ("3fff::1", Some(Reserved)),
            ("3fff:fff::1", Some(Reserved)),
            ("4000::1", Some(Reserved)),
            ("5f00::1", Some(Reserved)),
            ("fc00::1", Some(Private)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fd00:ec2::253", Some(Private)),
            ("fd20:ce::254", Some(Metadata)),
            ("fdff::1", Some(Private)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("fec0::1", Some(Private)),
            ("ff02::1", Some(Multicast)),
        ] {
            assert_eq!(special(address.parse().unwrap()), expected, "{address}");
        }
    }

    proptest! {
        #[test]
        fn wrapping_an_address_makes_it_no_more_reachable(bits in any::<u32>()) {
            let inner = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = inner.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            for wrapped in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 7, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(special(wrapped.into()), special(inner.into()));
            }
            // The stable methods of the standard library agree.
            let known = inner.is_private() || inner.is_loopback() || inner.is_link_local()
                || inner.is_multicast() || inner.is_unspecified() || inner.is_documentation()
                || inner.is_broadcast();
            prop_assert!(!known || special(inner.into()).is_some(), "{}", inner);
        }
    }
}
