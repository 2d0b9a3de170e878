//! The protocol of the engine and a helper: messages in JSON with descriptors attached, in packets,
//! nearly always one for each. The engine sends requests, the helper answers them in order.
//!
//! Both are of one build (a helper is found by its digest), so there is no version.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::Launch;

/// The maximum length of a packet, in both directions.
const MAX_PACKET_BYTES: usize = 128 << 10;
/// The maximum number of descriptors of a packet: the kernel takes no more at once.
const MAX_PACKET_DESCRIPTORS: usize = 250;
/// The maximum length of a message.
const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// The first byte of a packet, which says whether it is its message's last.
const LAST: u8 = b'.';
const MORE: u8 = b'+';

/// A request of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Launches the container. Attached: its [`Descriptors`](crate::spec::Descriptors). Answered by
    /// [`Reply::Launched`].
    Launch(Box<Launch>),
    /// Waits for its first process, and from now on limits no memory by looking at it: sent when that has
    /// ended. Answered by [`Reply::Exited`].
    Wait,
    /// Kills what is left of it, and removes everything. Answered by [`Reply::Done`], after which
    /// the helper ends. The end of the connection asks for the same. Attached may be a directory of a file
    /// system that ends with its last user: the helper has it until its own end.
    Remove,
}

/// An answer of the helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// Its first process executes the agent. Attached: a pidfd of that process.
    Launched,
    /// How its first process ended.
    Exited {
        /// Its exit code, or 128 and the signal's number.
        code: i64,
        /// The helper has killed it, because it used more than its memory.
        over_memory: bool,
    },
    /// It is done.
    Done,
    /// It failed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// A part of a message, which is sent at once.
#[derive(Debug)]
pub struct Packet<'a> {
    bytes: Vec<u8>,
    descriptors: Vec<BorrowedFd<'a>>,
}

/// The packets of a message: one, unless it or its descriptors are too many for one.
///
/// # Errors
///
/// [`io::Error`] where the message is too long.
pub fn packets<'a>(
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'a>],
) -> io::Result<Vec<Packet<'a>>> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::other("the message is too long"));
    }
    let mut pieces = text.chunks(MAX_PACKET_BYTES - 1);
    let mut attached = descriptors.chunks(MAX_PACKET_DESCRIPTORS);
    let count = pieces.len().max(attached.len());
    let packets = (1..=count).map(|number| {
        let kind = if number == count { LAST } else { MORE };
        let piece = pieces.next().unwrap_or_default();
        let bytes = [&[kind], piece].concat();
        Packet { bytes, descriptors: attached.next().unwrap_or_default().to_vec() }
    });
    Ok(packets.collect())
}

/// Sends a message on a socket that blocks.
///
/// # Errors
///
/// [`io::Error`] where the other side is gone, or the message is too long.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    packets(message, descriptors)?.iter().try_for_each(|packet| packet.send(&socket))
}

impl Packet<'_> {
    /// Sends it. It blocks, or fails with [`io::ErrorKind::WouldBlock`], as the socket does.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where the other side is gone.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !self.descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&self.descriptors));
        }
        let bytes = [IoSlice::new(&self.bytes)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }
}

/// Receives a message and its descriptors; `None` if the other side is gone. It blocks, or
/// fails with [`io::ErrorKind::WouldBlock`], as the socket does: on one that does not block, only
/// messages of one packet can be received.
///
/// # Errors
///
/// [`io::Error`] if it is invalid.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; MAX_PACKET_BYTES];
    let (mut text, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let length = receive_packet(&socket, &mut packet, &mut descriptors)?;
        let Some((kind, piece)) = packet[..length].split_first() else { return Ok(None) };
        text.extend(piece);
        if *kind == LAST {
            return Ok(Some((serde_json::from_slice(&text)?, descriptors)));
        }
        if *kind != MORE || text.len() > MAX_MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Receives a packet, and gives its length: 0 if the other side is gone.
fn receive_packet(
    socket: &impl AsFd,
    packet: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(packet)];
        rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Ok(received) => received,
        Err(rustix::io::Errno::CONNRESET) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    descriptors.extend(ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    }));
    // The limit of descriptors cuts them off without an error.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("more descriptors than this process may have"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_message_arrives_with_its_descriptors_and_the_end_after_it() {
        let (left, right) = pair();
        let file = tempfile::tempfile().unwrap();
        send(&left, &"launch", &[file.as_fd(), left.as_fd()]).unwrap();
        drop(left);
        let (received, descriptors) = receive::<String>(&right).unwrap().unwrap();
        assert_eq!(received, "launch");
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(descriptors[0].as_fd()), inode(file.as_fd()));
        assert_eq!(descriptors.len(), 2);
        drop(descriptors);
        assert!(receive::<Request>(&right).unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_too_much_for_a_packet_arrives_whole_and_in_order() {
        let files: Vec<_> = (0..MAX_PACKET_DESCRIPTORS + 1).map(|_| tempfile::tempfile()).collect();
        let files: Vec<_> = files.into_iter().map(Result::unwrap).collect();
        let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        for (length, attached) in [(3 * MAX_PACKET_BYTES, 1), (1, MAX_PACKET_DESCRIPTORS + 1)] {
            let (left, right) = pair();
            let (text, sent) = ("x".repeat(length), &descriptors[..attached]);
            let (received, arrived) = std::thread::scope(|scope| {
                scope.spawn(|| send(&left, &text, sent).unwrap());
                receive::<String>(&right).unwrap().unwrap()
            });
            assert!(received == text, "{} bytes", received.len());
            let arrived: Vec<_> = arrived.iter().map(|file| inode(file.as_fd())).collect();
            assert_eq!(arrived, sent.iter().map(|file| inode(*file)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn malformed_message_is_an_error() {
        for packet in [&b".{\"wait\":{}}"[..], b"?", b"wait"] {
            let (left, right) = pair();
            rustix::io::write(&left, packet).unwrap();
            assert!(receive::<Request>(&right).is_err(), "{packet:?}");
        }
        let (left, _right) = pair();
        let endless = Reply::Failed { reason: "x".repeat(MAX_MESSAGE_BYTES) };
        assert!(send(&left, &endless, &[]).is_err());
    }
}
