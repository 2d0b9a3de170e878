//! Takes space of a mount where no walk of it finds any: in files that have no name any more.

use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The size of one file, and of all of them: where nothing ends it, it ends by itself.
const FILE_BYTES: usize = 4 << 20;
const FILES: usize = 128;

/// What keeps the files.
#[derive(Clone, Copy)]
pub enum Kept {
    /// Nothing but mappings.
    Mapped,
    /// Nothing but a socket's queue.
    InFlight,
    /// One has a name, and one nothing but a mapping: neither is too much by itself.
    Halves,
}

pub fn fill(mount: &str, kept: Kept) {
    let content = vec![b'x'; FILE_BYTES];
    let sockets = UnixStream::pair().expect("a pair");
    let files = match kept {
        Kept::Mapped | Kept::InFlight => FILES,
        Kept::Halves => {
            std::fs::write(format!("{mount}/half"), &content).expect("written");
            1
        }
    };
    for _ in 0..files {
        let mut options = File::options();
        // It never has a name, so none is left by whoever is killed.
        let unnamed = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(mount);
        let mut file = unnamed.expect("a file");
        file.write_all(&content).expect("written");
        match kept {
            Kept::Mapped | Kept::Halves => map(&file),
            Kept::InFlight => send(&sockets.0, &file),
        }
    }
    // Until somebody ends it.
    std::thread::park();
    drop(sockets);
}

fn map(file: &File) {
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    let fd = file.as_raw_fd();
    #[expect(unsafe_code, reason = "no safe interface maps a file")]
    // SAFETY: the kernel chooses a free range, and nobody reads there.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), FILE_BYTES, protection, flags, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "not mapped");
}

fn send(socket: &UnixStream, file: &File) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let sent = [file.as_fd()];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&sent)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut beside, SendFlags::empty()).expect("sent");
}
