//! A TCP proxy between two parties, which loses, holds or delays what they say.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long a thread waits for bytes until it looks at the faults again.
const LOOK: Duration = Duration::from_millis(10);

/// What becomes of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    Passes,
    /// Nothing comes through; it does when this is over, as after lost packets.
    IsHeld,
    /// It is lost, and so its connections are, when this is over.
    IsLost,
}

impl Flow {
    const fn of(number: u8) -> Self {
        match number {
            1 => Self::IsHeld,
            2 => Self::IsLost,
            _ => Self::Passes,
        }
    }
}

#[derive(Debug)]
struct Faults {
    to_server: AtomicU8,
    to_client: AtomicU8,
    /// In milliseconds, for each piece.
    delay: AtomicU64,
    is_closed: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

/// A proxy. Its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: Arc<Faults>,
}

impl Proxy {
    /// Before this address.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(Faults {
            to_server: AtomicU8::new(Flow::Passes as u8),
            to_client: AtomicU8::new(Flow::Passes as u8),
            delay: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let shared = faults.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.is_closed.load(Ordering::Acquire) {
                    return;
                }
                // Without a server the client sees its connection end.
                let Ok(server) = TcpStream::connect(server) else { continue };
                shared.connect(&client, &server);
            }
        });
        Self { address, faults }
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What becomes of requests and of answers from now on.
    pub fn set(&self, to_server: Flow, to_client: Flow) {
        self.faults.to_server.store(to_server as u8, Ordering::Release);
        self.faults.to_client.store(to_client as u8, Ordering::Release);
    }

    /// Nothing passes in either direction, without an error.
    pub fn partition(&self) {
        self.set(Flow::IsHeld, Flow::IsHeld);
    }

    /// Delays every piece.
    pub fn delay(&self, delay: Duration) {
        self.faults.delay.store(delay.as_millis().try_into().unwrap(), Ordering::Release);
    }

    /// Everything passes again.
    pub fn heal(&self) {
        self.delay(Duration::ZERO);
        self.set(Flow::Passes, Flow::Passes);
    }

    /// Ends the connections that there are.
    pub fn reset(&self) {
        for connection in self.faults.connections.lock().unwrap().drain(..) {
            _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.faults.is_closed.store(true, Ordering::Release);
        self.reset();
        // Wakes the thread that listens.
        _ = TcpStream::connect(self.address);
    }
}

impl Faults {
    fn connect(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        for stream in [client, server] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(LOOK)).unwrap();
            self.connections.lock().unwrap().push(stream.try_clone().unwrap());
        }
        let requests = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let answers = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let faults = self.clone();
        thread::spawn(move || faults.copy(requests, |faults| &faults.to_server));
        let faults = self.clone();
        thread::spawn(move || faults.copy(answers, |faults| &faults.to_client));
    }

    fn copy(&self, (mut from, mut to): (TcpStream, TcpStream), flow: fn(&Self) -> &AtomicU8) {
        let mut piece = [0; 16 << 10];
        let mut has_lost = false;
        loop {
            let now = Flow::of(flow(self).load(Ordering::Acquire));
            if now == Flow::Passes && has_lost {
                break;
            }
            if now == Flow::IsHeld {
                thread::sleep(LOOK);
                // Who waits for an end does not learn of it either.
                if self.is_closed.load(Ordering::Acquire) {
                    break;
                }
                continue;
            }
            let length = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            // As it is when the piece has come.
            let mut now = Flow::of(flow(self).load(Ordering::Acquire));
            thread::sleep(Duration::from_millis(self.delay.load(Ordering::Acquire)));
            while now == Flow::IsHeld && !self.is_closed.load(Ordering::Acquire) {
                thread::sleep(LOOK);
                now = Flow::of(flow(self).load(Ordering::Acquire));
            }
            if now == Flow::IsLost {
                has_lost = true;
            } else if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        _ = from.shutdown(Shutdown::Both);
        _ = to.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that gives back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    std::io::copy(&mut reader, &mut stream)
                });
            }
        });
        address
    }

    fn heard(stream: &mut TcpStream, patience: Duration) -> Option<u8> {
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => Some(byte[0]),
            _ => None,
        }
    }

    #[test]
    fn what_is_held_comes_later_and_what_is_lost_never_does() {
        let proxy = Proxy::before(echo());
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        let (short, long) = (Duration::from_millis(100), Duration::from_secs(60));
        stream.write_all(b"a").unwrap();
        assert_eq!(heard(&mut stream, long), Some(b'a'));
        proxy.partition();
        stream.write_all(b"b").unwrap();
        assert_eq!(heard(&mut stream, short), None);
        proxy.heal();
        assert_eq!(heard(&mut stream, long), Some(b'b'));
        // On a busy machine the answer may come after that is over.
        let is_lost = [1, 10, 100].into_iter().any(|times| {
            proxy.set(Flow::Passes, Flow::IsLost);
            stream.write_all(b"c").unwrap();
            assert_eq!(heard(&mut stream, short * times), None);
            proxy.heal();
            heard(&mut stream, long).is_none()
        });
        assert!(is_lost, "its connection is gone with what was lost");
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(b"d").unwrap();
        assert_eq!(heard(&mut stream, long), Some(b'd'));
        proxy.reset();
        assert_eq!(heard(&mut stream, long), None);
    }
}
