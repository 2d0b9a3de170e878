//! Brings `lo` up in a container's network namespace: the one device that it has.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
/// It is the first device of every namespace.
const LOOPBACK_INDEX: u32 = 1;
const MESSAGE_BYTES: u32 = 32;

/// Brings it up in the current network namespace.
pub fn up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0: routes and devices.
        None,
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &message(), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    match errno(&answer[..length]) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("unexpected response from netlink")),
    }
}

/// A `nlmsghdr` and an `ifinfomsg`, both in the machine's own byte order.
fn message() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES as usize);
    bytes.extend(MESSAGE_BYTES.to_ne_bytes());
    bytes.extend(RTM_NEWLINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    // Sequence number and sender; then the family, padding and kind of device: none is read.
    bytes.extend([0; 12]);
    bytes.extend(LOOPBACK_INDEX.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes
}

/// The number in an `nlmsgerr`: 0 for an acknowledgement.
fn errno(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then(|| error.wrapping_neg())
}
