use super::*;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// A check of this process itself.
fn search(dev: u64, depth: Depth) -> Unnamed {
    let mut search = Search {
        devs: [dev; 2],
        depth,
        deadline: Instant::now() + LONGEST,
        met: HashSet::new(),
        found: Unnamed::default(),
    };
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
    let mut search = Search {
        devs: [dev; 2],
        depth: Depth::Open,
        deadline: Instant::now() + LONGEST,
        met: HashSet::new(),
        found: Unnamed::default(),
    };
    let mut look = || {
        // Only this file: other tests have their own.
        for number in [number, again.as_raw_fd()] {
            let stat = rustix::fs::stat(format!("/proc/self/fd/{number}")).unwrap();
            assert_eq!(stat.st_ino, ino);
            search.meet(&stat);
        }
        search.found.bytes
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
    assert_eq!(removed_mapping(line, [0, dev]), Some(("7f00-7f01", 5_701_650)));
    assert_eq!(removed_mapping(line, [0, dev + 1]), None);
    for line in [
        &b"7f00-7f01 rw-s 00000000 fe:00 5701650                    /io/a"[..],
        b"7f00-7f01 rw-p 00000000 00:00 0 ",
        b"",
        b" (deleted)",
    ] {
        assert_eq!(removed_mapping(line, [0, dev]), None);
    }
}

#[test]
fn descriptors_in_flight_are_known_by_the_socket_that_they_wait_in() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let info = |socket: &std::os::unix::net::UnixStream| {
        let path = format!("/proc/self/fdinfo/{}", socket.as_raw_fd());
        has_descriptors_in_flight(&fs::read_to_string(path).unwrap())
    };
    assert!(!info(&ours) && !info(&theirs));
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let file = File::open("/dev/null").unwrap();
    let sent = [file.as_fd()];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&sent)));
    let data = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&ours, &data, &mut beside, SendFlags::empty()).unwrap();
    assert!(!info(&ours) && info(&theirs));
}

#[test]
fn programs_stand_still_while_stopped_and_continue_afterwards() {
    let mut child = std::process::Command::new("sh")
        .args(["-c", "while :; do echo x; done"])
        .stdout(File::create("/dev/null").unwrap())
        .spawn()
        .unwrap();
    let pid = child.id();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cgroup.procs"), format!("{pid}\n")).unwrap();
    let group = |group: &str| Processes {
        init: 1,
        group: group.to_owned(),
        threads: dir.path().join("cgroup.threads"),
    };
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.as_bytes()[0]
    };
    let settles = |stopped| {
        for _ in 0..1000 {
            if (state() == b'T') == stopped {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    };
    // The pid of a process outside is left alone.
    assert!(group("0::/elsewhere").stop().programs.is_empty());
    let processes = group(groups.lines().next().unwrap());
    let stopped = processes.stop();
    assert!(settles(true) && stopped.stood_still());
    // A process that was already stopped is not continued.
    assert!(processes.stop().programs.is_empty());
    let written = processes.written();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(processes.written(), written);
    drop(stopped);
    assert!(settles(false));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn parent_that_waits_for_its_stopped_child_to_execute_is_told_from_other_calls() {
    assert!(FORKS.iter().all(|number| is_fork(&format!("{number} 0x4111 0x0 0x7ffe 0x7f12\n"))));
    for call in ["running\n", "-1 0x7ffe 0x7f12\n", "0 0x3 0x7f12 0x1000\n", ""] {
        assert!(!is_fork(call), "{call}");
    }
}

#[test]
fn processes_are_those_of_the_container_and_of_no_other() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(!groups.contains("no-container-of-this-name"));
    assert!(Processes::of(std::process::id(), "no-container-of-this-name").is_none());
    let paths = |line| files_of_threads(line).collect::<Vec<_>>();
    assert_eq!(
        paths("5:cpu,cpuacct:/docker/a"),
        [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/docker/a/tasks")]
    );
    assert_eq!(
        paths("0::/system.slice/docker-a.scope"),
        ["", "unified/"].map(|it| PathBuf::from(format!(
            "/sys/fs/cgroup/{it}system.slice/docker-a.scope/cgroup.threads"
        )))
    );
    assert!(paths("").is_empty());
    // It can be inspected, whatever it holds.
    let dev = rustix::fs::stat("/tmp").unwrap().st_dev;
    let (open, all) = (search(dev, Depth::Open), search(dev, Depth::Everything));
    assert!(!open.has_unseen && all.bytes < u64::MAX);
}
