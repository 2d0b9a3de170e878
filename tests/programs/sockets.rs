//! A program in a sandbox, for tests: which UNIX sockets and FIFOs it reaches, and how a connection that the
//! agent makes for it behaves. Without dependencies, built by `rustc` as a static program.
//!
//! `sockets WORD ARGUMENTS…`, see [`main`]. Errors are printed as the kernel's numbers.

use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};
use std::io::{Error, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const AF_UNIX: c_int = 1;
const STREAM: c_int = 1;
const DATAGRAM: c_int = 2;
const RAW: c_int = 3;
const SEQPACKET: c_int = 5;
const NONBLOCK: c_int = 0o4000;
const PATH_ONLY: c_int = 0o10_000_000;

const EINPROGRESS: i32 = 115;

#[repr(C)]
#[derive(Clone, Copy)]
struct Address {
    family: u16,
    path: [u8; 108],
}

unsafe extern "C" {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    fn bind(fd: c_int, address: *const c_void, length: u32) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn connect(fd: c_int, address: *const c_void, length: u32) -> c_int;
    fn sendto(
        fd: c_int,
        data: *const c_void,
        size: usize,
        flags: c_int,
        address: *const c_void,
        length: u32,
    ) -> isize;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, size: u32) -> c_int;
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut u32,
    ) -> c_int;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn alarm(seconds: c_uint) -> c_uint;
    fn signal(number: c_int, handler: usize) -> usize;
    fn siginterrupt(number: c_int, flag: c_int) -> c_int;
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match &words[..] {
        // Every spelling of the sockets of a directory, and what came of each.
        ["reach", directory] => reach(directory),
        // The sandbox's own sockets, and what they carry.
        ["own"] => own(),
        // Datagram sockets, and sending to this one by any.
        ["datagrams", path] => datagrams(path),
        // Addresses and descriptors that change while they are connected to.
        ["race", path] => race(path),
        // A socket that is not there yet.
        ["later", path] => {
            println!("waits");
            while !Path::new(path).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            println!("{}", outcome(connect_path(STREAM, path)));
        }
        // FIFOs, opened to write to them.
        ["fifo", paths @ ..] => paths.iter().for_each(|path| {
            for flags in [1 | NONBLOCK, 2 | NONBLOCK] {
                println!("{path}: {}", outcome(open_file(path, flags).map(drop)));
            }
        }),
        // How a call answers that the agent makes.
        ["answers"] => answers(),
        // So many connections that are not accepted, one more, and one after all.
        ["blocked", count] => blocked(count.parse().unwrap()),
        // The calls by which the agent looks into programs.
        ["calls"] => {
            println!(
                "pidfd_getfd: {}",
                outcome(result(unsafe { syscall(438, -1, 0, 0) } as c_int))
            );
            let read = unsafe { syscall(310, std::process::id(), 0, 0, 0, 0, 0) };
            println!("process_vm_readv: {}", outcome(result(read as c_int)));
        }
        _ => panic!("unknown words: {words:?}"),
    }
}

fn result(value: c_int) -> Result<c_int, i32> {
    if value < 0 { Err(Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(value) }
}

fn outcome<T>(result: Result<T, i32>) -> String {
    result.map_or_else(|errno| errno.to_string(), |_| "done".to_owned())
}

fn address(path: &[u8]) -> (Address, u32) {
    let mut address = Address { family: AF_UNIX as u16, path: [0; 108] };
    address.path[..path.len()].copy_from_slice(path);
    (address, 2 + path.len() as u32)
}

fn new_socket(kind: c_int) -> Result<OwnedFd, i32> {
    result(unsafe { socket(AF_UNIX, kind, 0) }).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn connect_fd(fd: RawFd, path: &[u8]) -> Result<(), i32> {
    let (address, length) = address(path);
    result(unsafe { connect(fd, (&raw const address).cast(), length) }).map(drop)
}

fn connect_path(kind: c_int, path: &str) -> Result<(), i32> {
    connect_fd(new_socket(kind)?.as_raw_fd(), path.as_bytes())
}

fn listen_at(kind: c_int, path: &[u8], backlog: c_int) -> OwnedFd {
    let fd = new_socket(kind).expect("a socket");
    let (address, length) = address(path);
    result(unsafe { bind(fd.as_raw_fd(), (&raw const address).cast(), length) }).expect("bound");
    result(unsafe { listen(fd.as_raw_fd(), backlog) }).expect("listening");
    fd
}

fn open_file(path: &str, flags: c_int) -> Result<OwnedFd, i32> {
    let path = CString::new(path).unwrap();
    result(unsafe { open(path.as_ptr(), flags) }).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn reach(directory: &str) {
    let opened = open_file(directory, 0).expect("the directory");
    let number = opened.as_raw_fd();
    std::env::set_current_dir(directory).expect("into it");
    let base = directory.rsplit('/').next().unwrap();
    for (name, kind) in [("stream", STREAM), ("seqpacket", SEQPACKET)] {
        let link = format!("/tmp/link-{base}-{name}");
        symlink(format!("{directory}/{name}"), &link).expect("a link");
        let near = format!("/tmp/near-{base}-{name}");
        symlink(format!("/proc/self/cwd/{name}"), &near).expect("a link");
        let hard = format!("/tmp/hard-{base}-{name}");
        println!("hard link: {}", std::fs::hard_link(name, &hard).is_ok());
        let path_only = open_file(name, PATH_ONLY).expect("the socket's place");
        let path_only = path_only.as_raw_fd();
        for spelling in [
            format!("{directory}/{name}"),
            format!("//{directory}/../{base}/./{name}"),
            name.to_owned(),
            format!("./{name}"),
            format!("../{base}/{name}"),
            format!("/proc/self/fd/{number}/{name}"),
            format!("/dev/fd/{number}/{name}"),
            format!("/proc/thread-self/fd/{number}/{name}"),
            format!("/proc/1/root{directory}/{name}"),
            format!("/proc/self/root{directory}/{name}"),
            format!("/proc/1/cwd{directory}/{name}"),
            format!("/proc/self/cwd/{name}"),
            format!("/proc/{}/cwd/{name}", std::process::id()),
            format!("/proc/self/fd/{path_only}"),
            format!("/dev/fd/{path_only}"),
            link,
            near,
        ] {
            let mut spellings = vec![spelling.clone().into_bytes()];
            // A path ends at a NUL, or where the address does.
            spellings.push([spelling.as_bytes(), b"\0"].concat());
            spellings.push([spelling.as_bytes(), b"\0and more"].concat());
            for bytes in spellings {
                let made = new_socket(kind).and_then(|fd| connect_fd(fd.as_raw_fd(), &bytes));
                println!("{spelling}: {}", outcome(made));
            }
            let fd = new_socket(kind | NONBLOCK).expect("a socket");
            println!("{spelling}: {}", outcome(connect_fd(fd.as_raw_fd(), spelling.as_bytes())));
        }
        // Both of a pair are connected for good, and the listener does not see the destination of a
        // packet.
        let mut pair = [0; 2];
        result(unsafe { socketpair(AF_UNIX, kind, 0, pair.as_mut_ptr()) }).expect("a pair");
        let path = format!("{directory}/{name}");
        println!("end of a pair: {}", outcome(connect_fd(pair[0], path.as_bytes())));
        drop(unsafe { OwnedFd::from_raw_fd(pair[1]) });
        println!("widowed: {}", outcome(connect_fd(pair[0], path.as_bytes())));
        println!("sent: {}", outcome(send_to(pair[0], path.as_bytes())));
    }
    // Undumpable, as it thinks.
    println!("undumpable: {}", outcome(result(unsafe { prctl(4, 0_usize, 0, 0, 0) })));
    println!("afterwards: {}", outcome(connect_path(STREAM, &format!("{directory}/stream"))));
}

fn send_to(fd: RawFd, path: &[u8]) -> Result<(), i32> {
    const NO_SIGNAL: c_int = 0x4000;
    let (address, length) = address(path);
    let sent = unsafe {
        sendto(fd, b"x".as_ptr().cast(), 1, NO_SIGNAL, (&raw const address).cast(), length)
    };
    result(sent as c_int).map(drop)
}

fn own() {
    for (name, kind) in [("stream", STREAM), ("seqpacket", SEQPACKET)] {
        for path in
            [format!("/tmp/own-{name}"), format!("/dev/shm/own-{name}"), format!("\0{name}")]
        {
            let listener = listen_at(kind, path.as_bytes(), 8);
            println!("{}: {}", path.replace('\0', "@"), outcome(connect_path(kind, &path)));
            drop(listener);
        }
        let mut pair = [0; 2];
        println!(
            "pair: {}",
            outcome(result(unsafe { socketpair(AF_UNIX, kind, 0, pair.as_mut_ptr()) }))
        );
    }
    std::env::set_current_dir("/tmp").unwrap();
    let listener = listen_at(STREAM, b"near", 8);
    symlink("near", "/tmp/link").unwrap();
    std::fs::create_dir("/tmp/directory").unwrap();
    for path in ["near", "./directory/../near", "link", "/dev/../tmp/link"] {
        println!("{path}: {}", outcome(connect_path(STREAM, path)));
    }
    drop(listener);
    prctl_undumpable();
    let stream = std::os::unix::net::UnixListener::bind("/tmp/talk").unwrap();
    let client = std::thread::spawn(|| {
        let mut client = std::os::unix::net::UnixStream::connect("/tmp/talk").unwrap();
        client.write_all(b"hello").unwrap();
    });
    let mut text = String::new();
    stream.accept().unwrap().0.read_to_string(&mut text).unwrap();
    client.join().unwrap();
    println!("talk: {text}");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("tcp: {}", TcpStream::connect(tcp.local_addr().unwrap()).is_ok());
    let (one, two) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("[::1]:0"));
    println!("udp: {}", one.connect(one.local_addr().unwrap()).is_ok());
    println!("udp6: {}", two.and_then(|two| two.connect(two.local_addr()?)).is_ok());
}

fn prctl_undumpable() {
    result(unsafe { prctl(4, 0_usize, 0, 0, 0) }).expect("made undumpable");
}

fn datagrams(path: &str) {
    for kind in [DATAGRAM, RAW, DATAGRAM | NONBLOCK, DATAGRAM | 0o2_000_000] {
        let made = new_socket(kind);
        println!(
            "socket: {}",
            outcome(made.and_then(|fd| send_to(fd.as_raw_fd(), path.as_bytes())))
        );
        let mut pair = [0; 2];
        let made = result(unsafe { socketpair(AF_UNIX, kind, 0, pair.as_mut_ptr()) });
        println!("pair: {}", outcome(made.and_then(|_| send_to(pair[0], path.as_bytes()))));
    }
}

/// A place for an address that other threads write to.
struct Shared(*mut Address);
// SAFETY: it is raced on purpose; every value read is an address.
unsafe impl Sync for Shared {}

fn race(path: &str) {
    /// What is connected, and changes under the call.
    const RACED: RawFd = 100;
    let own = std::os::unix::net::UnixListener::bind("/tmp/own").unwrap();
    std::thread::spawn(move || own.incoming().for_each(drop));
    let mut raced = address(b"/tmp/own").0;
    let both = [raced, address(path.as_bytes()).0];
    let shared = Shared(&raw mut raced);
    let stop = AtomicBool::new(false);
    let (mut made, mut not) = (0, 0);
    let replace = || {
        let fresh = new_socket(STREAM).expect("a socket");
        result(unsafe { dup2(fresh.as_raw_fd(), RACED) }).expect("replaced");
    };
    std::thread::scope(|scope| {
        let (shared, both, stop) = (&shared, &both, &stop);
        scope.spawn(move || {
            for at in (0..2).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                // SAFETY: a place that lives on; see above.
                unsafe { shared.0.write_volatile(both[at]) };
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                replace();
            }
        });
        for _ in 0..5_000 {
            replace();
            // SAFETY: as above.
            match unsafe { connect(RACED, shared.0.cast(), 2 + 108) } {
                0 => made += 1,
                _ => not += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{}", if made > 0 && not > 0 { "raced" } else { "not raced" });
    eprintln!("{made} connected, {not} refused");
}

fn set_timeout(fd: RawFd, milliseconds: i64) {
    const SOCKET: c_int = 1;
    const SEND_TIMEOUT: c_int = 21;
    let time = [milliseconds / 1000, milliseconds % 1000 * 1000];
    result(unsafe { setsockopt(fd, SOCKET, SEND_TIMEOUT, time.as_ptr().cast(), 16) }).expect("set");
}

fn timeout(fd: RawFd) -> [i64; 2] {
    let (mut time, mut size) = ([-1_i64; 2], 16);
    result(unsafe { getsockopt(fd, 1, 21, time.as_mut_ptr().cast(), &raw mut size) }).expect("got");
    time
}

/// Asks for the next one: the first may come before the call that it is to interrupt.
extern "C" fn again(_: c_int) {
    unsafe { alarm(1) };
}

fn answers() {
    let _free = listen_at(STREAM, b"/tmp/free", 8);
    let first = new_socket(STREAM).unwrap();
    println!("first: {}", outcome(connect_fd(first.as_raw_fd(), b"/tmp/free")));
    println!("again: {}", outcome(connect_fd(first.as_raw_fd(), b"/tmp/free")));
    // One waits in its queue, and there is no place for another.
    let _full = listen_at(STREAM, b"/tmp/full", 0);
    println!("fills: {}", outcome(connect_path(STREAM, "/tmp/full")));
    let second = new_socket(STREAM | NONBLOCK).unwrap();
    println!("full, at once: {}", outcome(connect_fd(second.as_raw_fd(), b"/tmp/full")));
    let third = new_socket(STREAM).unwrap();
    set_timeout(third.as_raw_fd(), 120);
    println!("full, for a time: {}", outcome(connect_fd(third.as_raw_fd(), b"/tmp/full")));
    println!("its time: {:?}", timeout(third.as_raw_fd()));
    unsafe {
        signal(14, again as *const () as usize);
        siginterrupt(14, 1);
        alarm(1);
    }
    let fourth = new_socket(STREAM).unwrap();
    println!("full, and a signal: {}", outcome(connect_fd(fourth.as_raw_fd(), b"/tmp/full")));
    unsafe { alarm(0) };
    println!("its time: {:?}", timeout(fourth.as_raw_fd()));
    println!("no listener: {}", outcome(connect_path(STREAM, "/tmp/none")));
    std::fs::write("/tmp/file", "").unwrap();
    println!("a file: {}", outcome(connect_path(STREAM, "/tmp/file")));
    println!("another kind: {}", outcome(connect_path(SEQPACKET, "/tmp/full")));
    println!("no socket: {}", outcome(connect_fd(0, b"/tmp/full")));
    println!("no descriptor: {}", outcome(connect_fd(99, b"/tmp/full")));
    let fd = new_socket(STREAM).unwrap();
    let call = |address: usize, length: u32| {
        outcome(result(unsafe { connect(fd.as_raw_fd(), address as *const c_void, length) }))
    };
    println!("no memory: {}", call(8, 20));
    println!("too long: {}", call(8, 1000));
    println!("negative: {}", call(8, u32::MAX));
    println!("empty: {}", call(8, 0));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect("127.0.0.1:9").unwrap();
    let unspecified = [0_u8; 16];
    let done = unsafe { connect(udp.as_raw_fd(), unspecified.as_ptr().cast(), 16) };
    println!("disconnect: {} {}", outcome(result(done)), udp.peer_addr().is_err());
    let refused = TcpStream::connect("127.0.0.1:9").unwrap_err();
    println!("refused: {}", refused.raw_os_error().unwrap_or(0));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("in progress: {}", in_progress(server.local_addr().unwrap()));
}

/// A connection that does not wait, to an address of IPv4.
fn in_progress(to: SocketAddr) -> String {
    let fd = result(unsafe { socket(2, STREAM | NONBLOCK, 0) }).unwrap();
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut address = [0_u8; 16];
    address[0] = 2;
    address[2..4].copy_from_slice(&to.port().to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let call = || result(unsafe { connect(fd.as_raw_fd(), address.as_ptr().cast(), 16) });
    let mut answers = Vec::new();
    // Until it reports that it is connected.
    loop {
        let answer = call();
        let is_over = answer == Err(106);
        answers.push(answer);
        if is_over {
            break;
        }
    }
    match answers[..] {
        [Err(EINPROGRESS), .., Err(106)] => "as ever".to_owned(),
        _ => format!("{answers:?}"),
    }
}

fn blocked(count: usize) {
    let _full = listen_at(STREAM, b"/tmp/full", 0);
    let first = new_socket(STREAM).unwrap();
    connect_fd(first.as_raw_fd(), b"/tmp/full").expect("connected");
    let mut children = Vec::new();
    for _ in 0..count {
        let program = std::env::current_exe().unwrap();
        children.push(
            std::process::Command::new(program).args(["later", "/tmp/full"]).spawn().unwrap(),
        );
    }
    let connect = if cfg!(target_arch = "x86_64") { "42 " } else { "203 " };
    for child in &children {
        let call = || std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap();
        while !call().starts_with(connect) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("another: {}", TcpStream::connect(tcp.local_addr().unwrap()).is_ok());
    // A killed child is no longer waited for.
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    println!("afterwards: {}", TcpStream::connect(tcp.local_addr().unwrap()).is_ok());
}
