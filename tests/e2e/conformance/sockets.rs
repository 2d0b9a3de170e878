//! UNIX sockets and FIFOs of the host that a mount shows: no program connects, sends or writes to one.
//! What is the sandbox's own keeps working.

use std::fs;
use std::io::ErrorKind::WouldBlock;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sandbox_api::{Confinement, ExecutionResult, Input, Outcome, UnixSockets};
use sandbox_controller::Command;

use crate::agent::sockets;
use crate::engines::{Feature, has};
use crate::fixture::Fixture;
use crate::library::Guest;
use crate::rootfs::{Provided, Rootfs};

const TIMEOUT: Duration = Duration::from_secs(120);
const EACCES: &str = "13";
const EISCONN: &str = "106";
const EOPNOTSUPP: &str = "95";
const ESOCKTNOSUPPORT: &str = "94";

/// What listens in a directory of the host: a stream, a seqpacket and a datagram socket, and a FIFO that
/// somebody reads.
struct Host {
    stream: UnixListener,
    seqpacket: UnixListener,
    datagram: UnixDatagram,
    fifo: fs::File,
    directory: PathBuf,
}

impl Host {
    fn listen(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).unwrap();
        let stream = UnixListener::bind(directory.join("stream")).unwrap();
        let datagram = UnixDatagram::bind(directory.join("datagram")).unwrap();
        let kind = SocketType::SEQPACKET;
        let seqpacket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .unwrap();
        let address = SocketAddrUnix::new(directory.join("seqpacket")).unwrap();
        rustix::net::bind(&seqpacket, &address).unwrap();
        rustix::net::listen(&seqpacket, 128).unwrap();
        let seqpacket = UnixListener::from(seqpacket);
        let path = directory.join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        let fifo = openat(CWD, &path, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
        stream.set_nonblocking(true).unwrap();
        seqpacket.set_nonblocking(true).unwrap();
        datagram.set_nonblocking(true).unwrap();
        Self { stream, seqpacket, datagram, fifo: fifo.into(), directory }
    }

    /// Asserts that there was no connection.
    #[track_caller]
    fn assert_alone(&self) {
        let at = self.directory.display();
        assert_eq!(self.stream.accept().unwrap_err().kind(), WouldBlock, "{at}");
        assert_eq!(self.seqpacket.accept().unwrap_err().kind(), WouldBlock, "{at}");
        assert_eq!(self.datagram.recv(&mut [0; 8]).unwrap_err().kind(), WouldBlock, "{at}");
        let read = rustix::io::read(&self.fifo, &mut [0; 8]);
        assert_eq!(read, Err(rustix::io::Errno::AGAIN), "{at}");
    }
}

/// A sandbox whose io dir and input have what listens on the host.
struct Sockets {
    io: Host,
    input: Host,
    guest: Guest,
    _rootfs: Provided,
}

impl Sockets {
    fn new() -> Self {
        let rootfs = Rootfs::busybox().copy("sockets", sockets()).folder("tmp", 0o1777).provide();
        let place = Fixture::new();
        let io = Host::listen(place.path("sandbox-files"));
        let input = Host::listen(place.path("given"));
        let given = place.path("given");
        let guest = Guest::in_place(place, |spec| {
            spec.root(rootfs.root()).input(Input::path(&given, "given"))
        });
        Self { io, input, guest, _rootfs: rootfs }
    }

    fn confinement(&self) -> &Confinement {
        self.guest.sandbox.confinement()
    }

    fn exec(&self, words: &[&str]) -> ExecutionResult {
        let command = Command::new("/sockets").args(words.iter().copied()).timeout(TIMEOUT);
        self.guest.wait(self.guest.sandbox.run(command)).unwrap()
    }

    /// What the program prints, which ends well.
    #[track_caller]
    fn says(&self, words: &[&str]) -> String {
        let result = self.exec(words);
        let stderr = String::from_utf8_lossy(&result.stderr().bytes);
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{:?} {stderr}", result.outcome);
        String::from_utf8(result.stdout().bytes.clone()).unwrap()
    }

    /// Whether programs have no sockets but pairs. Then what they try ends with the first other one.
    fn has_pairs_only(&self, words: &[&str]) -> bool {
        let pairs_only = self.confinement().unix_sockets == UnixSockets::Pairs;
        assert_eq!(pairs_only, !has(Feature::OwnSockets));
        if pairs_only {
            let result = self.exec(words);
            let stderr = String::from_utf8_lossy(&result.stderr().bytes);
            let refused = ["a socket: 13", "PermissionDenied"];
            assert!(refused.iter().any(|text| stderr.contains(text)), "{words:?}: {stderr}");
            assert_eq!(result.command_exit_code(), Some(101), "{words:?}: {stderr}");
            self.assert_alone();
        }
        pairs_only
    }

    #[track_caller]
    fn assert_alone(&self) {
        self.io.assert_alone();
        self.input.assert_alone();
    }
}

/// The directories in the sandbox that show the host's.
const SHOWN: [&str; 2] = ["/io", "/in/given"];

#[test]
fn programs_say_which_unix_sockets_they_reach() {
    let sockets = Sockets::new();
    let Confinement { unix_sockets, missing, landlock_abi, .. } = sockets.confinement();
    if !has(Feature::SharedKernel) {
        assert_ne!(*unix_sockets, UnixSockets::Unrestricted);
        return;
    }
    let expected = match landlock_abi {
        Some(9..) => UnixSockets::Landlock,
        _ => UnixSockets::Supervised,
    };
    assert_eq!(*unix_sockets, expected, "{missing:?}");
}

#[test]
fn a_program_connects_to_no_unix_socket_of_a_mount_by_any_spelling() {
    let sockets = Sockets::new();
    for directory in SHOWN {
        if sockets.has_pairs_only(&["reach", directory]) {
            continue;
        }
        let said = sockets.says(&["reach", directory]);
        let lines: Vec<(&str, &str)> =
            said.lines().map(|line| line.rsplit_once(": ").unwrap()).collect();
        assert!(lines.len() > 100, "{said}");
        for (what, came) in lines {
            let expected: &[&str] = match what {
                "hard link" => &["false"],
                "end of a pair" | "widowed" => &[EISCONN, EACCES],
                // A stream refuses the address, a packet goes to the other end, which is gone.
                "sent" => &[EISCONN, EOPNOTSUPP, "32", "111"],
                "undumpable" => &["done"],
                _ => &[EACCES],
            };
            assert!(expected.contains(&came), "{directory}: {what}: {came}");
        }
        sockets.assert_alone();
    }
}

#[test]
fn a_socket_that_appears_in_a_mount_later_is_not_connected_to_either() {
    let sockets = Sockets::new();
    for (host, directory) in [(&sockets.io, SHOWN[0]), (&sockets.input, SHOWN[1])] {
        let said = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sockets.says(&["later", &format!("{directory}/late")]));
            let late = UnixListener::bind(host.directory.join("late")).unwrap();
            late.set_nonblocking(true).unwrap();
            let said = waiting.join().unwrap();
            assert_eq!(late.accept().unwrap_err().kind(), WouldBlock);
            said
        });
        assert_eq!(said, format!("waits\n{EACCES}\n"));
    }
}

#[test]
fn an_address_and_a_descriptor_that_change_under_the_call_lead_nowhere_else() {
    let sockets = Sockets::new();
    for directory in SHOWN {
        if sockets.has_pairs_only(&["race", &format!("{directory}/stream")]) {
            continue;
        }
        assert_eq!(sockets.says(&["race", &format!("{directory}/stream")]), "raced\n");
        sockets.assert_alone();
        sockets.guest.wait(sockets.guest.sandbox.run(Command::shell("rm /tmp/own"))).unwrap();
    }
}

#[test]
fn a_program_sends_no_datagram_to_a_mount() {
    let sockets = Sockets::new();
    let refused = match sockets.confinement().unix_sockets {
        UnixSockets::Landlock => EACCES,
        _ => ESOCKTNOSUPPORT,
    };
    for directory in SHOWN {
        let said = sockets.says(&["datagrams", &format!("{directory}/datagram")]);
        assert_eq!(said.lines().count(), 8);
        for line in said.lines() {
            let refused = match sockets.confinement().unix_sockets {
                UnixSockets::Pairs if line.starts_with("socket: ") => EACCES,
                _ => refused,
            };
            assert_eq!(line.rsplit_once(": ").unwrap().1, refused, "{said}");
        }
        sockets.assert_alone();
    }
}

#[test]
fn the_sandboxs_own_unix_sockets_keep_working() {
    let sockets = Sockets::new();
    if sockets.has_pairs_only(&["own"]) {
        return;
    }
    let said = sockets.says(&["own"]);
    for line in said.lines() {
        let (what, came) = line.rsplit_once(": ").unwrap();
        assert!(["done", "true", "hello"].contains(&came), "{what}: {came}");
    }
    assert_eq!(said.lines().count(), 16, "{said}");
}

#[test]
fn a_connection_that_the_agent_makes_is_answered_as_the_kernel_answers() {
    let sockets = Sockets::new();
    if sockets.has_pairs_only(&["answers"]) {
        return;
    }
    let said = sockets.says(&["answers"]);
    let expected = "first: done\nagain: 106\nfills: done\nfull, at once: 11\n\
        full, for a time: 11\nits time: [0, 120000]\nfull, and a signal: 4\nits time: [0, 0]\n\
        no listener: 2\na file: 111\nanother kind: 91\nno socket: 88\nno descriptor: 9\nno memory: 14\n\
        too long: 22\nnegative: 22\nempty: 22\ndisconnect: done true\nrefused: 111\n\
        in progress: as ever\n";
    assert_eq!(said, expected);
}

#[test]
fn connections_that_wait_hold_up_no_other_and_end_with_their_programs() {
    let sockets = Sockets::new();
    // More than the agent accepts as pending at one time: those of killed programs are dropped.
    if sockets.has_pairs_only(&["blocked", "3"]) {
        return;
    }
    for count in ["3", "40", "40"] {
        let said = sockets.says(&["blocked", count]);
        assert!(said.ends_with("another: true\nafterwards: true\n"), "{said}");
        sockets.guest.wait(sockets.guest.sandbox.run(Command::shell("rm /tmp/full"))).unwrap();
    }
}

#[test]
fn system_calls_that_inspect_processes_are_refused_to_programs() {
    let sockets = Sockets::new();
    if cfg!(target_arch = "x86_64") {
        assert_eq!(sockets.says(&["calls"]), "pidfd_getfd: 1\nprocess_vm_readv: 1\n");
    }
}

#[test]
fn a_fifo_in_a_read_only_input_is_not_written_to() {
    let sockets = Sockets::new();
    if sockets.confinement().landlock_abi.is_none() {
        // A read-only mount alone does not stop it, which the documentation says.
        return;
    }
    let fifo = format!("{}/fifo", SHOWN[1]);
    let root = format!("/proc/self/root{fifo}");
    let said = sockets.says(&["fifo", &fifo, &root]);
    assert_eq!(said.lines().count(), 4);
    for line in said.lines() {
        assert!(line.ends_with(&format!(": {EACCES}")), "{said}");
    }
    let line = format!("echo x >{fifo}; echo x >>{fifo}; echo x | dd of={fifo}; true <>{fifo}");
    sockets.guest.wait(sockets.guest.sandbox.run(Command::shell(line))).unwrap();
    sockets.assert_alone();
}
