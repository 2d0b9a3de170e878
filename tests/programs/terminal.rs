//! A program in a sandbox, for tests: what it may do with terminals. Without dependencies, built by `rustc` as
//! a static program. Each line it prints has the kernel's number of an error, or 0.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;

const TIOCSCTTY: c_ulong = 0x540e;
const TIOCSTI: c_ulong = 0x5412;
const TIOCLINUX: c_ulong = 0x541c;

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, argument: *const c_void) -> c_int;
}

/// The number of the error of a call.
fn call(fd: c_int, request: c_ulong, argument: *const c_void) -> i32 {
    // SAFETY: the argument is a number, or one byte that is there.
    match unsafe { ioctl(fd, request, argument) } {
        0.. => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        // Types a key of its own into its terminal.
        ["inject"] => {
            let key = std::ptr::from_ref(b"x").cast();
            println!("stdin: {}", call(0, TIOCSTI, key));
            println!("stdout: {}", call(1, TIOCSTI, key));
            let own = File::open("/dev/tty").expect("it has a terminal");
            println!("tty: {}", call(own.as_raw_fd(), TIOCSTI, key));
            println!("selection: {}", call(0, TIOCLINUX, key));
        }
        // Takes the terminal of another session, which it has none of.
        ["steal", path] => match File::options().read(true).write(true).open(path) {
            Ok(terminal) => {
                let force = std::ptr::without_provenance(1);
                println!("steal: {}", call(terminal.as_raw_fd(), TIOCSCTTY, force));
                println!("tty: {}", File::open("/dev/tty").is_ok());
            }
            Err(error) => println!("open: {}", error.raw_os_error().unwrap_or(-1)),
        },
        other => panic!("what is {other:?}?"),
    }
}
