//! A program in a sandbox, for tests: it says what it reaches, by the proxy and around it. Without
//! dependencies, built by `rustc` as a static program.
//!
//! `network WORD ARGUMENTS…`, see [`main`]. Numbers that it prints for errors are the kernel's.

use std::ffi::{c_int, c_void};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

unsafe extern "C" {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, size: u32) -> c_int;
}

/// No attempt takes longer, on a busy machine either: a missing reply is reported.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match &words[..] {
        // What the proxy answers to CONNECT, whole.
        ["ask", target] => print!("{}", ask(target)),
        // All that a server sends, held against what it should be.
        ["download", target] => println!("{} bytes", download(target, &AtomicU64::new(0))),
        // So many of them at once, and what the others had when the first one was done.
        ["downloads", target, count] => downloads(target, count.parse().unwrap()),
        // Says hello to the proxy and then nothing more.
        ["hold", target] => {
            let mut held = connect(target).expect("connected");
            println!("connected");
            _ = held.read_to_end(&mut Vec::new());
        }
        // Ends without waiting for its connections to the first ones, and with so many to the last.
        ["leave", requested @ .., target, count] => {
            leave(requested, target, count.parse().unwrap());
        }
        // Begins TLS with a server name, so many bytes a packet, and prints what comes back.
        ["tls", target, name, piece] => tls(target, name, piece.parse().unwrap()),
        // Says each of these, in hexadecimal, and prints what is answered to it; by the proxy, where
        // there is one.
        ["exchange", target, says @ ..] => exchange(target, says),
        // Each way around the proxy, and what became of it.
        ["around", rest @ ..] => rest.iter().for_each(|way| println!("{way}: {}", around(way))),
        // The loopback is up: a server of the sandbox's own is reached.
        ["loopback"] => loopback(),
        _ => panic!("unknown words: {words:?}"),
    }
}

fn proxy() -> TcpStream {
    let url = std::env::var("HTTPS_PROXY").expect("programs have the address of the proxy");
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The proxy, which was asked for a connection.
fn request(target: &str) -> TcpStream {
    let mut proxy = proxy();
    write!(proxy, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
    proxy
}

fn ask(target: &str) -> String {
    let mut proxy = request(target);
    let mut answer = String::new();
    proxy.read_to_string(&mut answer).unwrap();
    answer
}

/// A connection through the proxy, or what it said.
fn connect(target: &str) -> Result<TcpStream, String> {
    let mut proxy = request(target);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if proxy.read(&mut byte).unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    if head.starts_with("HTTP/1.1 200 ") { Ok(proxy) } else { Err(head) }
}

fn leave(requested: &[&str], target: &str, count: usize) {
    let requests: Vec<_> = requested.iter().map(|target| request(target)).collect();
    let held: Vec<_> = (0..count).map(|_| connect(target).expect("connected")).collect();
    println!("{} requested, {} connected", requests.len(), held.len());
}

/// Bytes that are nowhere the same, from this place of theirs on: as the test's server sends them.
fn fill(buffer: &mut [u8], from: u64) {
    for (place, byte) in (from..).zip(buffer) {
        let mixed = (place / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        *byte = mixed.to_le_bytes()[(place % 8) as usize];
    }
}

fn download(target: &str, read: &AtomicU64) -> u64 {
    let mut stream = connect(target).expect("connected");
    let (mut buffer, mut expected) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut at = 0;
    loop {
        let count = stream.read(&mut buffer).expect("no break in the middle");
        if count == 0 {
            return at;
        }
        fill(&mut expected[..count], at);
        assert!(buffer[..count] == expected[..count], "other bytes than were sent, behind {at}");
        at += count as u64;
        read.store(at, Ordering::SeqCst);
    }
}

fn downloads(target: &str, count: usize) {
    let read: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let shares = Mutex::new(None);
    let look = || read.iter().map(|read| read.load(Ordering::SeqCst)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for read in &read {
            scope.spawn(|| {
                download(target, read);
                shares.lock().unwrap().get_or_insert_with(look);
            });
        }
    });
    for share in shares.lock().unwrap().as_ref().unwrap() {
        println!("{share}");
    }
}

fn tls(target: &str, name: &str, piece: usize) {
    let mut stream = connect(target).expect("connected");
    // A packet a piece.
    for piece in client_hello(name).chunks(piece) {
        // After a refusal the rest has no receiver.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    _ = stream.shutdown(Shutdown::Write);
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => println!("{answer}"),
        Err(error) => println!("{:?}", error.kind()),
    }
}

fn exchange(target: &str, says: &[&str]) {
    let mut stream = match std::env::var("HTTPS_PROXY") {
        Ok(_) => connect(target).expect("connected"),
        Err(_) => TcpStream::connect(target).unwrap(),
    };
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    for said in says {
        let bytes = (0..said.len()).step_by(2).map(|at| u8::from_str_radix(&said[at..at + 2], 16));
        let bytes: Vec<u8> = bytes.map(Result::unwrap).collect();
        // If it is refused before all of it is sent, the reply says so.
        _ = stream.write_all(&bytes);
        println!("{}", answer(&mut stream));
    }
}

/// The beginning of an answer, or all of a shorter one.
fn answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 1 << 14];
    while answer.len() < 44 {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if answer.is_empty() => return format!("{:?}", error.kind()),
            Err(_) => break,
        }
    }
    answer.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn vector(length_bytes: usize, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[4 - length_bytes..], bytes].concat()
}

fn client_hello(name: &str) -> Vec<u8> {
    let names = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extensions = [&[0, 0][..], &vector(2, &names)].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &vector(1, &[9; 32]),
        &vector(2, &[0x13, 1]),
        &vector(1, &[0]),
        &vector(2, &extensions),
    ]
    .concat();
    let message = [&[1][..], &vector(3, &body)].concat();
    [&[22, 3, 1][..], &vector(2, &message)].concat()
}

/// What became of a way around the proxy: `reached`, or the kernel's error.
fn around(way: &str) -> String {
    let (kind, to) = way.split_once('=').expect("KIND=WHERE");
    let result = match kind {
        "tcp" => TcpStream::connect_timeout(&to.parse().unwrap(), TEST_TIMEOUT).map(drop),
        "udp" => datagram(to),
        "unix" => UnixStream::connect(to).map(drop),
        "abstract" => SocketAddr::from_abstract_name(to)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map(drop),
        "socket" => {
            let numbers: Vec<c_int> = to.split(',').map(|number| number.parse().unwrap()).collect();
            // SAFETY: three numbers.
            got(unsafe { socket(numbers[0], numbers[1], numbers[2]) })
        }
        "device" => to_device(to),
        _ => panic!("unknown kind: {kind}"),
    };
    match result {
        Ok(()) => "reached".to_owned(),
        Err(error) => error.raw_os_error().map_or(format!("{error}"), |code| code.to_string()),
    }
}

fn got(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A question to a name server, and its answer.
fn datagram(to: &str) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(TEST_TIMEOUT))?;
    let question = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    socket.send(question)?;
    socket.recv(&mut [0; 512]).map(drop)
}

/// Takes another device than the routes say.
fn to_device(name: &str) -> io::Result<()> {
    const SOL_SOCKET: c_int = 1;
    const SO_BINDTODEVICE: c_int = 25;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let (pointer, size) = (name.as_ptr().cast(), name.len() as u32);
    // SAFETY: the name has the given length.
    got(unsafe { setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, pointer, size) })
}

fn loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"hello").unwrap();
    });
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    client.join().unwrap();
    println!("{heard}");
}
