//! A program in a sandbox, for tests: many processes, each in one long system call after another. The
//! kernel takes no processor away from a system call, so they use more than the sandbox's share, and the
//! kernel lets none of them die before the share has grown by that. Without dependencies, built by
//! `rustc` as a static program.
//!
//! `long-calls PROCESSES`

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;

const NONE: c_int = 0;
const READ_AND_WRITE: c_int = 3;
const SHARED: c_int = 0x01;
const PRIVATE: c_int = 0x02;
const FIXED: c_int = 0x10;
const ANONYMOUS: c_int = 0x20;
const NO_RESERVE: c_int = 0x4000;

/// What each call reads: seconds of the kernel's work.
const LENGTH: usize = 2040 << 20;
/// The memory that it is read into, again and again.
const PIECE: usize = 1 << 20;

unsafe extern "C" {
    fn fork() -> c_int;
    fn pause() -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn ftruncate(fd: c_int, length: c_long) -> c_int;
    fn mmap(
        at: *mut c_void,
        length: usize,
        access: c_int,
        flags: c_int,
        fd: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
}

fn main() {
    let processes: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let random = File::open("/dev/urandom").unwrap();
    let region = region();
    // They begin together: the first ones would leave no time to start the others.
    let (mut begun, begin) = std::io::pipe().unwrap();
    for _ in 0..processes {
        // SAFETY: it has one thread.
        match unsafe { fork() } {
            0 => {
                drop(begin);
                assert_eq!(begun.read(&mut [0]).unwrap(), 0);
                loop {
                    // SAFETY: the region is as long, and nothing else uses it.
                    unsafe { read(random.as_raw_fd(), region, LENGTH) };
                }
            }
            child => assert!(child > 0, "{}", std::io::Error::last_os_error()),
        }
    }
    std::io::stdout().write_all(b"begun\n").unwrap();
    drop(begin);
    loop {
        // SAFETY: it changes nothing.
        unsafe { pause() };
    }
}

/// A large region of little memory.
fn region() -> *mut c_void {
    // SAFETY: every mapping is new, or within the first one.
    unsafe {
        let memory = memfd_create(c"piece".as_ptr(), 0);
        assert!(memory >= 0 && ftruncate(memory, PIECE as c_long) == 0);
        let flags = PRIVATE | ANONYMOUS | NO_RESERVE;
        let region = mmap(std::ptr::null_mut(), LENGTH, NONE, flags, -1, 0);
        assert_ne!(region as isize, -1);
        for offset in (0..LENGTH).step_by(PIECE) {
            let at = region.byte_add(offset);
            let mapped = mmap(at, PIECE, READ_AND_WRITE, SHARED | FIXED, memory, 0);
            assert_eq!(mapped, at);
        }
        region
    }
}
