//! Requests to the kernel about devices and routes (rtnetlink(7)).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// The length of a message's header.
const HEADER: usize = 16;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;

/// Asks the kernel in the current network namespace, and returns the type of its answer, and the body of
/// that. An acknowledgement is one too.
///
/// # Errors
///
/// That of the kernel's answer; if there is no free descriptor to ask with.
pub fn ask(kind: u16, flags: u16, body: &[u8]) -> Result<(u16, Vec<u8>), Errno> {
    // The header: length, type, flags, sequence number, sender.
    let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    // NETLINK_ROUTE is protocol 0.
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&kernel, &request, SendFlags::empty())?;
    let mut answer = [0; 1024];
    // It is there when the request is sent.
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::DONTWAIT)?;
    let (header, body) = answer[..length].split_first_chunk::<HEADER>().ok_or(Errno::IO)?;
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    // Negated; 0 in an acknowledgement.
    let errno = body.first_chunk().map_or(-libc::EIO, |errno| i32::from_ne_bytes(*errno));
    match kind == ERROR && errno != 0 {
        true => Err(Errno::from_raw_os_error(-errno)),
        false => Ok((kind, body.to_vec())),
    }
}
