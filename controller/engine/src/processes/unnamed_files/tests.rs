use super::*;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::thread::UnshareFlags;

/// A check of this process itself.
fn search(dev: u64, depth: UnnamedDepth) -> Unnamed {
    let mut goes_on = || true;
    let directory = File::open("/").unwrap();
    let meter = DiskMeter::new(directory.as_fd());
    let mut search = Search::new(meter, [dev; 3], depth, &mut goes_on);
    search.visit(std::process::id()).unwrap();
    search.found
}

#[test]
fn a_file_without_a_name_counts_once_however_often_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let dev = rustix::fs::stat(dir.path()).unwrap().st_dev;
    let mut file = File::create_new(dir.path().join("f")).unwrap();
    file.write_all(&vec![1; 3 << 20]).unwrap();
    let again = file.try_clone().unwrap();
    let (number, ino) = (file.as_raw_fd(), rustix::fs::fstat(&file).unwrap().st_ino);
    let mut goes_on = || true;
    let directory = File::open(dir.path()).unwrap();
    let meter = DiskMeter::new(directory.as_fd());
    let mut search = Search::new(meter, [dev; 3], UnnamedDepth::Open, &mut goes_on);
    let mut look = || {
        // Only this file: other tests have their own.
        for number in [number, again.as_raw_fd()] {
            let stat = rustix::fs::stat(format!("/proc/self/fd/{number}")).unwrap();
            assert_eq!(stat.st_ino, ino);
            search.meet(&stat);
        }
        search.found.usage.bytes
    };
    assert_eq!(look(), 0);
    fs::remove_file(dir.path().join("f")).unwrap();
    assert_eq!(look(), 3 << 20);
    assert_eq!(look(), 3 << 20);
}

#[test]
fn a_file_that_is_mapped_alone_is_found_by_its_line() {
    let line = b"7f00-7f01 rw-s 00000000 fe:00 5701650                    /io/a b (deleted)";
    let dev = rustix::fs::makedev(0xfe, 0);
    assert_eq!(removed_mapping(line), Some(("7f00-7f01", dev, 5_701_650)));
    for line in [
        &b"7f00-7f01 rw-s 00000000 fe:00 5701650                    /io/a"[..],
        b"7f00-7f01 rw-p 00000000 00:00 0 ",
        b"",
        b" (deleted)",
    ] {
        assert_eq!(removed_mapping(line), None);
    }
}

#[test]
fn descriptors_in_flight_are_known_by_the_socket_that_they_wait_in() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let info = |socket: &UnixStream| {
        let path = format!("/proc/self/fdinfo/{}", socket.as_raw_fd());
        has_descriptors_in_flight(&fs::read_to_string(path).unwrap())
    };
    assert!(!info(&ours) && !info(&theirs));
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let file = File::open("/dev/null").unwrap();
    let sent = [file.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
    let data = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&ours, &data, &mut ancillary, SendFlags::empty()).unwrap();
    assert!(!info(&ours) && info(&theirs));
}

#[test]
fn processes_are_inspected_whatever_they_hold() {
    let dev = rustix::fs::stat("/tmp").unwrap().st_dev;
    let (open, all) = (search(dev, UnnamedDepth::Open), search(dev, UnnamedDepth::Everything));
    assert!(!open.has_unseen && all.usage.bytes < u64::MAX);
}

#[test]
fn files_in_sockets_that_only_keep_each_other_are_freed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (end, kept) = rustix::pipe::pipe().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sent = [ours.as_fd(), theirs.as_fd(), kept.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
    let byte = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&ours, &byte, &mut ancillary, SendFlags::empty()).unwrap();
    drop((ours, theirs, kept));
    free_lost_sockets();
    // It hangs up when nothing keeps its other end.
    let mut waits = [PollFd::new(&end, PollFlags::empty())];
    let most = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut waits, Some(&most)), Ok(1));
}

#[test]
fn parts_that_threads_share_are_inspected_once() {
    let (alone, end) = std::sync::mpsc::channel::<()>();
    let (sender, threads) = std::sync::mpsc::channel();
    let end = std::sync::Arc::new(std::sync::Mutex::new(end));
    for owns in [false, false, true, true] {
        let (sender, end) = (sender.clone(), end.clone());
        std::thread::spawn(move || {
            if owns {
                // SAFETY: this thread uses no descriptor that another one has opened.
                #[expect(unsafe_code, reason = "nothing safe copies a table of descriptors")]
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.unwrap();
            }
            sender.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            // Until the test has ended.
            _ = end.lock().unwrap().recv();
        });
    }
    let threads: Vec<u32> = threads.iter().take(4).collect();
    let looks = |part| {
        let (mut shared, mut looks) = (Shared::default(), 0);
        for thread in threads.iter().chain(&threads).copied() {
            shared
                .once(thread, part, || {
                    looks += 1;
                    Ok(())
                })
                .unwrap();
        }
        looks
    };
    // One table for two of them, and one memory for all.
    assert_eq!((looks(Part::Descriptors), looks(Part::Memory)), (3, 1));
    // A process that has exited is skipped.
    let (mut shared, mut looks) = (Shared { descriptors: vec![u32::MAX], ..Shared::default() }, 0);
    for thread in [threads[0]; 3] {
        let look = || {
            looks += 1;
            Ok(())
        };
        shared.once(thread, Part::Descriptors, look).unwrap();
    }
    assert_eq!(looks, 1);
    // What could not be looked at is looked at by way of the next thread.
    let mut shared = Shared::default();
    let mut failed = |error| shared.once(threads[0], Part::Memory, || error);
    assert_eq!(failed(Err(Errno::NOENT)), Err(Errno::NOENT));
    assert_eq!(failed(Err(Errno::ACCESS)), Err(Errno::ACCESS));
    assert_eq!(failed(Ok(())), Ok(()));
    assert_eq!(failed(Err(Errno::IO)), Ok(()));
    drop(alone);
}
