//! Loop devices, each for one file.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// How often to try another device, if other processes take the free one first.
const TRIES: usize = 1000;

/// Requests of include/uapi/linux/loop.h.
const LOOP_CTL_GET_FREE: u64 = 0x4c82;
const LOOP_CONFIGURE: u64 = 0x4c0a;
/// The kernel frees the device when nothing has it open or mounted any more, however that ends.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// `struct loop_info64` up to its flags.
    info: [u32; 13],
    flags: u32,
    rest: [u32; 60],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Attaches a file to a loop device, and returns the device, opened for reading: while a writer has
/// it open, some kernels refuse to mount it. Requires Linux 5.8.
pub fn attach(file: &impl AsRawFd) -> io::Result<OwnedFd> {
    let open = |path: &str, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let control = open("/dev/loop-control", OFlags::RDWR)?;
    for _ in 0..TRIES {
        let number = ioctl(&control, LOOP_CTL_GET_FREE, 0)?;
        let device = open(&format!("/dev/loop{number}"), OFlags::RDWR)?;
        let config = LoopConfig {
            fd: file.as_raw_fd().cast_unsigned(),
            block_size: 0,
            info: [0; 13],
            flags: LO_FLAGS_AUTOCLEAR,
            rest: [0; 60],
        };
        match ioctl(&device, LOOP_CONFIGURE, (&raw const config).addr()) {
            Ok(_) => {
                let path = format!("/proc/self/fd/{}", device.as_raw_fd());
                return Ok(open(&path, OFlags::RDONLY)?);
            }
            // Another process was faster.
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY.into())
}

#[expect(unsafe_code, reason = "no safe interface has these requests")]
fn ioctl(file: &OwnedFd, request: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: the argument is unused, or the address of what the request reads.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
