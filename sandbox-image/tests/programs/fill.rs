//! Takes space of a mount where no walk of it finds any: in files that have no name any more.

use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The size of one file, and of all of them: where nothing ends it, it ends by itself.
const FILE_BYTES: usize = 4 << 20;
const FILES: usize = 128;
/// How many calls keep a file at a time: a sandbox of the tests may have few threads.
const CALLS: usize = 40;

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
        // It never has a name, so a killed process leaves none.
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

/// Keeps files for a moment again and again, while threads have tables of so many descriptors that
/// inspecting them takes long.
pub fn fill_among_descriptors(mount: &str) {
    let content = vec![b'x'; FILE_BYTES];
    let null = File::open("/dev/null").expect("it is there");
    let _many: Vec<_> = (0..900).map(|_| null.try_clone().expect("a descriptor")).collect();
    for _ in 0..CALLS {
        let table = || {
            #[expect(unsafe_code, reason = "no safe interface parts what threads share")]
            // SAFETY: this thread opens and closes nothing from here on.
            let parted = unsafe { libc::unshare(libc::CLONE_FILES) };
            assert_eq!(parted, 0);
            std::thread::park();
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(table).expect("a thread");
    }
    for _ in 0..10 {
        let file = |_| {
            let mut options = File::options();
            let unnamed = options.write(true).custom_flags(libc::O_TMPFILE).open(mount);
            let mut file = unnamed.expect("a file");
            file.write_all(&content).expect("written");
            file
        };
        let _kept: Vec<File> = (0..20).map(file).collect();
    }
}

/// Keeps files by blocking system calls, and closes their descriptors. Prints how many bytes it
/// kept to its end. Its main thread ends first. The kernel's count of its writes leaves out
/// children that are not waited for.
pub fn fill_in_calls(mount: &str, is_counted: bool) {
    let mount = mount.to_owned();
    if !is_counted {
        #[expect(unsafe_code, reason = "no safe interface ignores a signal")]
        // SAFETY: nothing here handles it.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN)
        };
    }
    std::thread::spawn(move || {
        println!("kept {}", keep_in_calls(&mount, is_counted));
        std::process::exit(0);
    });
    #[expect(unsafe_code, reason = "no safe interface ends one thread")]
    // SAFETY: the other threads use nothing of this one's.
    unsafe {
        libc::syscall(libc::SYS_exit, 0)
    };
}

fn keep_in_calls(mount: &str, is_counted: bool) -> usize {
    let content = vec![b'x'; FILE_BYTES];
    let (unread, full) = rustix::pipe::pipe().expect("a pipe");
    let size = rustix::pipe::fcntl_getpipe_size(&full).expect("a size");
    rustix::io::write(&full, &vec![0; size]).expect("as much as fits");
    let full = Arc::new(full);
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for number in 0..CALLS {
        let mut options = File::options();
        let unnamed = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(mount);
        let mut file = unnamed.expect("a file");
        if is_counted {
            file.write_all(&content).expect("written");
        } else {
            let mut writer = Command::new("head");
            writer.args(["-c", &FILE_BYTES.to_string(), "/dev/zero"]);
            // Its status is lost.
            _ = writer.stdout(file.try_clone().expect("a descriptor")).status();
        }
        // A number that nothing else gets: a call that is interrupted begins again with it.
        let own = i32::try_from(number).expect("few") + 500;
        let file = rustix::io::fcntl_dupfd_cloexec(&file, own).expect("a descriptor");
        let fd = file.as_raw_fd();
        let (full, begun_here, ended) = (full.clone(), begun.clone(), ended.clone());
        let call = move || {
            begun_here.fetch_add(1, Ordering::SeqCst);
            #[expect(unsafe_code, reason = "the descriptor is closed meanwhile, on purpose")]
            // SAFETY: the kernel keeps what it uses, and no memory is shared with it.
            unsafe {
                libc::sendfile(full.as_raw_fd(), fd, &mut 0, 4096)
            };
            ended.fetch_add(1, Ordering::SeqCst);
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(call).expect("a thread");
        // Until it waits.
        while begun.load(Ordering::SeqCst) <= number {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(file);
    }
    let kept = CALLS - ended.load(Ordering::SeqCst);
    drop(unread);
    kept * FILE_BYTES
}

fn map(file: &File) {
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    let fd = file.as_raw_fd();
    #[expect(unsafe_code, reason = "no safe interface maps a file")]
    // SAFETY: the kernel chooses a free range, which is never read.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), FILE_BYTES, protection, flags, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "not mapped");
}

fn send(socket: &UnixStream, file: &File) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sent = [file.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).expect("sent");
}
