//! The protocol of the engine and a helper: JSON, one message per packet, with descriptors
//! attached. The engine sends requests, the helper answers them in order.
//!
//! Both are of one build (a helper is found by its digest), so there is no version.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The maximum length of a message, in both directions.
pub const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// The maximum number of descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 6;

/// A request of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Creates the container's root from a directory, which is never written to. Attached: a
    /// detached mount of the directory. Sent before any other mount; without it the root contains
    /// only those. No answer.
    Root {
        /// Files to create there, replacing what is at their paths.
        files: Vec<(String, String)>,
        /// Bytes of `/tmp`.
        tmpfs_bytes: u64,
        /// Files and directories of `/tmp`.
        tmpfs_inodes: u64,
    },
    /// Mounts something in the container. Attached: a detached mount. No answer.
    Mount {
        /// Where, absolute.
        target: String,
        /// Whether it can be written to.
        read_only: bool,
    },
    /// Creates the container. Attached: its record, which is locked while anything of the container
    /// may still be created; its stdin, stdout and stderr; a file with its OCI configuration; and
    /// the program to execute in it. Answered by [`Reply::Created`].
    Create {
        /// Its name, which is its record's and its control groups' too.
        name: String,
        /// The system call filters of its first process, each as [`Filter`] says.
        filters: Vec<Filter>,
        /// Paths of its `/proc` to hide, whether they exist or not.
        masked: Vec<String>,
    },
    /// Starts it. Answered by [`Reply::Done`].
    Start,
    /// Waits for its first process. Answered by [`Reply::Exited`].
    Wait,
    /// Kills what is left of it, and removes everything. Answered by [`Reply::Done`], after which
    /// the helper ends. The end of the connection asks for the same.
    Remove,
}

/// An answer of the helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// It is created, and waits to be started. Attached: a pidfd of its first process.
    Created,
    /// How its first process ended.
    Exited {
        /// Its exit code, or 128 and the signal's number.
        code: i64,
    },
    /// It is done.
    Done,
    /// It failed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// A system call filter: instructions of classic BPF, each as its eight bytes in one number.
pub type Filter = Vec<u64>;

/// Sends a message. It blocks, or fails with [`io::ErrorKind::WouldBlock`], as the socket does.
///
/// # Errors
///
/// [`io::Error`] where the other side is gone, or the message is too long.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::other("the message is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a message and its descriptors; `None` if the other side is gone. It blocks, or
/// fails with [`io::ErrorKind::WouldBlock`], as the socket does.
///
/// # Errors
///
/// [`io::Error`] if it is invalid.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Ok(received) => received,
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let descriptors = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
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
        let request = Request::Create {
            name: "sandboxctl-1".into(),
            filters: vec![vec![u64::MAX; 600]; 2],
            masked: vec!["/proc/keys".into()],
        };
        send(&left, &request, &[file.as_fd(), left.as_fd()]).unwrap();
        drop(left);
        let (received, descriptors) = receive::<Request>(&right).unwrap().unwrap();
        assert_eq!(received, request);
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(descriptors[0].as_fd()), inode(file.as_fd()));
        assert_eq!(descriptors.len(), 2);
        drop(descriptors);
        assert!(receive::<Request>(&right).unwrap().is_none());
    }

    #[test]
    fn malformed_message_is_an_error() {
        let (left, right) = pair();
        rustix::io::write(&left, b"{\"start\":{}}").unwrap();
        assert!(receive::<Request>(&right).is_err());
        let endless = Reply::Failed { reason: "x".repeat(MAX_MESSAGE_BYTES) };
        assert!(send(&left, &endless, &[]).is_err());
    }
}
