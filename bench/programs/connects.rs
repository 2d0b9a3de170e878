//! Makes connections, one after another. Without dependencies, built by `rustc` as a static program.
//!
//! `connects COUNT`: to this program, on the loopback. `connects COUNT TARGET`: through the proxy that
//! `HTTPS_PROXY` names, each to this target. Prints the nanoseconds that all of them took.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let count: u32 = args[0].parse().unwrap();
    let took = match args.get(1) {
        None => direct(count),
        Some(target) => proxied(count, target),
    };
    println!("{}", took.as_nanos());
}

fn direct(count: u32) -> Duration {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || server.incoming().for_each(drop));
    let begun = Instant::now();
    for _ in 0..count {
        drop(TcpStream::connect(address).unwrap());
    }
    begun.elapsed()
}

fn proxied(count: u32, target: &str) -> Duration {
    let url = std::env::var("HTTPS_PROXY").expect("a proxy");
    let proxy = url.strip_prefix("http://").unwrap();
    let begun = Instant::now();
    for _ in 0..count {
        let mut stream = TcpStream::connect(proxy).unwrap();
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert!(head.ends_with(b" 200"), "{}", String::from_utf8_lossy(&head));
    }
    begun.elapsed()
}
