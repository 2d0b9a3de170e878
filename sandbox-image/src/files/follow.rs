//! Following links inside the container, for operations that may go anywhere in it.
//!
//! A path is first turned into one without links: component by component from the container's root, as
//! the kernel would do it, but never onto a file system of the kernel's own. The operation then opens
//! that path as it opens any other, through no link. If a link has appeared in it meanwhile, that
//! fails, and the operation is repeated ([`Files::repeated`]). So the rules that apply are always
//! those of the place that is used.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;
use sandbox_dirfd::{again, retry, split};
use sandbox_protocol::path::GuestPath;

use super::error::{FileError, special};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// The most components that are looked up for one path, including those of its links.
const MAX_STEPS: usize = 512;

/// File systems that the kernel makes up: their files are no files, and some of their links lead to
/// the descriptors of the process that reads them.
const KERNELS: [libc::c_long; 16] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1980_0202, // mqueue
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0x6573_5543, // fusectl
    0x4249_4e4d, // binfmt_misc
    0x6e73_6673, // nsfs
    0x5049_4446, // pidfs
    0xde5e_81e4, // efivarfs
];
/// Devices, by their path: the kernel's own file system of them looks like any in memory.
const DEVICES: &[u8] = b"/dev";
/// What is in there and has files.
const SHARED_MEMORY: &[u8] = b"/dev/shm";

/// Whether a link at the end of a path is meant itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// What it points to is meant.
    Follow,
    /// It is meant itself.
    Keep,
}

/// A path whose links were followed.
#[derive(Debug)]
pub(super) struct Followed {
    /// A path without links, but for one at its end that is meant itself.
    pub path: GuestPath,
    /// There was one.
    pub ends_in_link: bool,
}

/// Follows the links of an absolute path. What does not exist is left as it is written.
///
/// # Errors
///
/// `special_file` on a file system of the kernel's, `symlink` after too many links, and OS errors.
pub(super) fn follow(
    root: BorrowedFd<'_>,
    path: &GuestPath,
    last: LastLink,
    written: &[u8],
) -> Result<Followed, FileError> {
    let fail = |errno| FileError::system(errno, written);
    let mut here = again(root).map_err(fail)?;
    let top = fstat(&here).map_err(fail)?.st_dev;
    let mut device = top;
    let mut rest: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
    let mut found = Vec::new();
    let (mut links, mut steps) = (0, 0);
    let mut ends_in_link = false;
    while let Some(name) = rest.pop_front() {
        steps += 1;
        if steps > MAX_STEPS {
            return Err(too_many_links(written));
        }
        if name == b".." && found.is_empty() {
            continue;
        }
        let next = match enter(&here, &name) {
            Ok(next) => next,
            // The operation gets this error too, or creates what is missing.
            Err(errno) => {
                if name == b".." || rest.iter().any(|name| name == b"..") {
                    return Err(fail(errno));
                }
                rest.push_front(name);
                break;
            }
        };
        let stat = fstat(&next).map_err(fail)?;
        if stat.st_dev != device && is_kernels(&next).map_err(fail)? {
            return Err(special(written));
        }
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if name == b".." {
            found.truncate(split(&found).0.len());
        } else if !is_link || rest.is_empty() && last == LastLink::Keep {
            found = [found.as_slice(), name.as_slice()].join(&b'/');
            ends_in_link = is_link;
        } else {
            links += 1;
            if links > MAX_LINKS {
                return Err(too_many_links(written));
            }
            let target = readlinkat(&next, c"", Vec::new()).map_err(fail)?.into_bytes();
            if target.starts_with(b"/") {
                here = again(root).map_err(fail)?;
                device = top;
                found.clear();
            }
            let names = target.rsplit(|&byte| byte == b'/');
            for name in names.filter(|name| !matches!(*name, b"" | b".")) {
                rest.push_front(name.to_vec());
            }
            continue;
        }
        here = next;
        device = stat.st_dev;
    }
    let found =
        rest.iter().fold(found, |path, name| [path.as_slice(), name.as_slice()].join(&b'/'));
    let found: &[u8] = if found.is_empty() { b"/" } else { &found };
    let path = GuestPath::new(found)
        .map_err(|error| FileError::rule(error.kind(), error.to_string(), written))?;
    let below = |directory: &[u8]| {
        path.as_bytes().strip_prefix(directory).is_some_and(|it| matches!(it, [] | [b'/', ..]))
    };
    if below(DEVICES) && !below(SHARED_MEMORY) {
        return Err(special(written));
    }
    Ok(Followed { path, ends_in_link })
}

/// Opens the next component of a path; a link itself.
fn enter(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| openat(directory, name, flags, Mode::empty()))
}

/// Whether this is on a file system that the kernel makes up.
pub(super) fn is_kernels(file: impl std::os::fd::AsFd) -> rustix::io::Result<bool> {
    Ok(KERNELS.contains(&fstatfs(file)?.f_type))
}

fn too_many_links(written: &[u8]) -> FileError {
    let reason = format!("more than {MAX_LINKS} symbolic links");
    FileError { reason, ..FileError::system(Errno::LOOP, written) }
}
