//! Brings `lo` up in a container's network namespace: the one device that it has.

use rustix::io::Errno;
use sandbox_helper::netlink;

const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const IFF_UP: u32 = libc::IFF_UP as u32;
/// It is the first device of every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Brings it up in the current network namespace.
pub fn up() -> Result<(), Errno> {
    // An `ifinfomsg`: nothing is read of what precedes the index. The flags, and which of them change.
    let [index, up] = [LOOPBACK_INDEX, IFF_UP].map(u32::to_ne_bytes);
    let device = [[0; 4], index, up, up].concat();
    netlink::ask(libc::RTM_NEWLINK, ACKNOWLEDGE, &device).map(drop)
}
