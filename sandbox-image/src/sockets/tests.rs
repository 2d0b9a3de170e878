//! Connections of this process's own threads, made by the supervisor.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with,
};
use rustix::process::{Pid, getpid, getpriority_process, setpriority_process};

use super::paths::proc_of;
use super::*;

/// Threads whose connections are made by the supervisor.
fn supervised() -> Spawner {
    rustix::thread::set_no_new_privs(true).unwrap();
    let (spawner, sockets, why) = start(UnixSockets::Pairs, OwnFileSystems::find(&[])).unwrap();
    assert_eq!((sockets, why), (UnixSockets::Supervised, None));
    spawner
}

/// Starts one of them. It blocks in `connect` once its thread id shows that.
fn thread<T: Send + 'static>(
    spawner: &Spawner,
    work: impl FnOnce() -> T + Send + 'static,
) -> (Receiver<u32>, JoinHandle<T>) {
    spawner.run(move || {
        let (sender, number) = channel();
        let thread = std::thread::spawn(move || {
            let this = rustix::thread::gettid().as_raw_nonzero().get();
            // Not every test checks that.
            _ = sender.send(u32::try_from(this).unwrap());
            work()
        });
        (number, thread)
    })
}

fn await_connect(thread: &Receiver<u32>) {
    let thread = thread.recv().unwrap();
    let connect = format!("{} ", libc::SYS_connect);
    while !std::fs::read_to_string(proc_of(thread, "syscall")).unwrap().starts_with(&connect) {
        std::thread::yield_now();
    }
}

/// A server whose backlog is full, and the client that it has not accepted yet.
fn full_server(name: &str) -> (UnixListener, SocketAddr, UnixStream) {
    let name = format!("{name}-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let server = UnixListener::bind_addr(&address).unwrap();
    listen(&server, 0).unwrap();
    let client = UnixStream::connect_addr(&address).unwrap();
    (server, address, client)
}

#[test]
fn connections_that_wait_hold_up_none_that_their_server_makes() {
    let spawner = supervised();
    let (server, address, _client) = full_server("hold-up-none");
    let clients: Vec<_> = (0..MAX_WAITING)
        .map(|_| {
            let address = address.clone();
            thread(&spawner, move || UnixStream::connect_addr(&address).map(drop))
        })
        .collect();
    clients.iter().for_each(|(number, _)| await_connect(number));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    // Before each accept.
    let (_, server) = thread(&spawner, move || -> io::Result<()> {
        for _ in 0..=MAX_WAITING {
            std::net::TcpStream::connect(at)?;
            server.accept()?;
        }
        Ok(())
    });
    server.join().unwrap().unwrap();
    for (_, client) in clients {
        client.join().unwrap().unwrap();
    }
}

#[test]
fn connections_over_the_limit_get_eagain() {
    let spawner = supervised();
    let (server, address, _client) = full_server("try-again");
    let (sender, results) = channel();
    for _ in 0..=MAX_WAITING {
        let (address, sender) = (address.clone(), sender.clone());
        thread(&spawner, move || {
            sender.send(UnixStream::connect_addr(&address).map(drop)).unwrap();
        });
    }
    // All others wait.
    let refused = results.recv().unwrap().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
    (0..=MAX_WAITING).for_each(|_| drop(server.accept().unwrap()));
    (0..MAX_WAITING).for_each(|_| results.recv().unwrap().unwrap());
}

#[test]
fn two_connects_of_one_socket_leave_its_time_limit_and_flags_alone() {
    const LIMIT: Duration = Duration::from_secs(3600);
    let spawner = supervised();
    let (server, address, _client) = full_server("one-socket");
    let name = address.as_abstract_name().unwrap();
    let address = SocketAddrUnix::new_abstract_name(name).unwrap();
    let kind = SocketType::STREAM;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(LIMIT)).unwrap();
    let socket = Arc::new(socket);
    let (sender, results) = channel();
    for _ in 0..2 {
        let (same, address, sender) = (socket.clone(), address.clone(), sender.clone());
        let (number, _) = thread(&spawner, move || {
            sender.send(connect(&same, &address)).unwrap();
        });
        await_connect(&number);
        assert_eq!(sockopt::socket_timeout(&socket, Timeout::Send), Ok(Some(LIMIT)));
    }
    // The previous client, and the connected one: the kernel checks the backlog first.
    (0..2).for_each(|_| drop(server.accept().unwrap()));
    let mut came = [results.recv().unwrap(), results.recv().unwrap()];
    came.sort_unstable_by_key(Result::is_err);
    assert_eq!(came, [Ok(()), Err(Errno::ISCONN)]);
    assert_eq!(sockopt::socket_timeout(&socket, Timeout::Send), Ok(Some(LIMIT)));
    assert!(!fcntl_getfl(&socket).unwrap().contains(OFlags::NONBLOCK));
}

#[test]
fn a_wait_ends_with_the_sockets_own_time_limit() {
    let spawner = supervised();
    let (_server, address, _client) = full_server("time-limit");
    let name = address.as_abstract_name().unwrap();
    let address = SocketAddrUnix::new_abstract_name(name).unwrap();
    let kind = SocketType::STREAM;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let limit = Duration::from_millis(80);
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(limit)).unwrap();
    let (_, ended) = thread(&spawner, move || connect(&socket, &address));
    assert_eq!(ended.join().unwrap(), Err(Errno::AGAIN));
}

#[test]
fn a_thread_sets_its_own_priority_by_its_id_and_that_of_no_other() {
    let spawner = supervised();
    let (another, number) = channel();
    let (end, ends) = channel::<()>();
    let other = std::thread::spawn(move || {
        another.send(rustix::thread::gettid()).unwrap();
        _ = ends.recv();
    });
    let other_id = number.recv().unwrap();
    let before = getpriority_process(Some(other_id)).unwrap();
    let (_, work) = thread(&spawner, move || -> rustix::io::Result<_> {
        let this = rustix::thread::gettid();
        setpriority_process(Some(this), before + 2)?;
        setpriority_process(Some(getpid()), before + 1)?;
        // Success, and nothing changes; nor of one that there is not.
        for id in [Some(other_id), Pid::from_raw(i32::MAX)] {
            setpriority_process(id, before + 3)?;
        }
        let ids = [this, getpid(), other_id];
        Ok(ids.map(|id| getpriority_process(Some(id)).unwrap() - before))
    });
    assert_eq!(work.join().unwrap(), Ok([2, 1, 0]));
    drop(end);
    other.join().unwrap();
}
