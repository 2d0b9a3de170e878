//! `exec --server` and `exec` print the same; `service` compares `run`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::service::{Service, lasting};
use crate::fixture::{Fixture, spawn, wait};
use crate::rootfs::{Provided, Rootfs};

/// The address of a relay to a service. It leaves the image out of requests: the embedded engine has
/// none by name, and the service runs commands in its own file system.
fn relay_without_images(service: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = service.strip_prefix("http://").unwrap().to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let service = TcpStream::connect(&service).unwrap();
            std::thread::spawn(move || relay(&client.unwrap(), service));
        }
    });
    url
}

/// Passes a request on, and its answer back.
fn relay(mut client: &TcpStream, mut service: TcpStream) {
    let mut reader = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.to_ascii_lowercase().strip_prefix("content-length:") {
            Some(value) => length = value.trim().parse().unwrap(),
            None if line.trim().is_empty() => break,
            None => head += &line,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    if let Ok(Value::Object(mut request)) = serde_json::from_slice(&body) {
        request.remove("image");
        body = serde_json::to_vec(&request).unwrap();
    }
    let length = body.len();
    // A client that has seen the last event may be gone.
    _ = write!(service, "{head}connection: close\r\ncontent-length: {length}\r\n\r\n");
    _ = service.write_all(&body);
    _ = std::io::copy(&mut service, &mut client);
}

#[test]
fn command_prints_on_a_service_what_it_prints_here() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let root = [&*root[0], &*root[1]];
    let (service, image) = match &provided {
        Provided::Image(name) => (["--allowed-image", name], &**name),
        _ => (root, "image"),
    };
    let service = Service::with(&place, &service, &[]);
    let url = match &provided {
        Provided::Image(_) => service.url.clone(),
        _ => relay_without_images(&service.url),
    };
    for (command, flags) in [
        (&["echo", "out"][..], &[][..]),
        (&["sh", "-c", "echo out; echo err >&2"], &[]),
        (&["sh", "-c", "exit 7"], &[]),
        (&["sh", "-c", "kill -9 $$"], &[]),
        (&["sh", "-c", "printf 'a\\377\\0b\\342\\202'"], &[]),
        (&["sh", "-c", "printf '\\033[31mred'"], &["--raw"]),
        (&["sh", "-c", "yes | head -c 200000"], &[]),
        (&["sh", "-c", "echo begun; sleep 100"], &["--timeout", "300ms"]),
        (&["nothing-of-this-name"], &[]),
        (&["sh", "-c", "echo quiet; exit 3"], &["-q"]),
    ] {
        for is_json in [false, true] {
            let mut flags = flags.to_vec();
            if is_json {
                flags.retain(|flag| *flag != "--raw");
                flags.push("--json");
            }
            let exec = |root: [&str; 2]| {
                place.command([&["exec", "--no-io"][..], &flags, &root, &["--"], command].concat())
            };
            let here = wait(spawn(exec(root)));
            let mut there = exec(["--image", image]);
            there.env("SANDBOXCTL_SERVER", &url);
            let there = wait(spawn(there));
            assert_eq!((there.code, &there.stderr), (here.code, &here.stderr), "{command:?}");
            match is_json {
                true => assert_eq!(lasting(&there), lasting(&here), "{command:?}"),
                false => assert_eq!(there.stdout, here.stdout, "{command:?}"),
            }
        }
    }
    service.stop();
}
