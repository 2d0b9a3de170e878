//! Signs that something in the sandbox stood in a command's way: file systems that are full when it has
//! ended, and what it says at the end of its output.
//!
//! They are hints for people. A command that ends well has none.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use sandbox_protocol::argv::DiskSpace;
use sandbox_protocol::message::Sign;

/// How much of the end of a command's output is searched.
const TAIL_BYTES: usize = 16 << 10;

/// What programs print, in lower case; and error codes, as whole words: a `FileNotFoundError` does
/// not match.
const WORDS: [(Sign, &[&str], &[&str]); 4] = [
    (Sign::NoSpace, &["no space left on device"], &["ENOSPC"]),
    (Sign::ReadOnly, &["read-only file system"], &["EROFS"]),
    (Sign::FileTooLarge, &["file too large", "file size limit exceeded"], &["EFBIG"]),
    // That they do not resolve a name, or find no route.
    (
        Sign::NoNetwork,
        &[
            "network is unreachable",
            "name resolution",
            "name or service not known",
            "resolve host",
            "could not resolve",
            "failure resolving",
            // BusyBox.
            "bad address '",
            // Alpine's package manager.
            "error (try again later)",
            // Go.
            "no such host",
            "dial tcp",
            // Node.
            "getaddrinfo",
            // Java.
            "unknownhostexception",
            // Rust.
            "failed to lookup address",
            "dns error",
            // psql and others.
            "could not translate host name",
        ],
        &["ENOTFOUND", "EAI_AGAIN", "ENETUNREACH"],
    ),
];

/// The end of what a command prints, in which it says why it fails.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Keeps the end of this.
    pub fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        // Now and then: the bytes are moved.
        if self.0.len() > 2 * TAIL_BYTES {
            self.0.drain(..self.0.len() - TAIL_BYTES);
        }
    }

    /// What it says.
    fn signs(&self) -> impl Iterator<Item = Sign> {
        let tail = &self.0[self.0.len().saturating_sub(TAIL_BYTES)..];
        let text = String::from_utf8_lossy(tail).into_owned();
        let lower = text.to_lowercase();
        let is_in_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
        WORDS.into_iter().filter_map(move |(sign, words, codes)| {
            let says = words.iter().any(|word| lower.contains(word))
                || text.split(|it| !is_in_word(it)).any(|word| codes.contains(&word));
            says.then_some(sign)
        })
    }
}

/// The file systems of the sandbox alone that programs may write to.
#[derive(Debug)]
pub struct OwnPlaces(Vec<(Sign, OwnedFd)>);

impl OwnPlaces {
    /// Opens them, before the agent is confined. `home` is the io dir, and `disk` what bounds it.
    pub fn open(home: Option<&Path>, disk: DiskSpace) -> Self {
        let places = [(Sign::TmpFull, Path::new("/tmp")), (Sign::ShmFull, Path::new("/dev/shm"))];
        let places = places.into_iter().chain(home.map(|home| (Sign::IoFull, home)));
        let open = |(sign, path)| {
            let opened = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
            let is_own = sign == Sign::IoFull && disk == DiskSpace::Bounded
                || fstatfs(&opened).ok()?.f_type == libc::TMPFS_MAGIC;
            is_own.then_some((sign, opened))
        };
        Self(places.filter_map(open).collect())
    }

    /// File systems with no free page, or no free inode.
    fn full(&self) -> impl Iterator<Item = Sign> {
        // Of one without a bound, all is 0.
        let is_spent = |all: u64, left: u64| all > 0 && left == 0;
        let is_full = move |place: &OwnedFd| {
            fstatfs(place).is_ok_and(|found| {
                is_spent(found.f_blocks, found.f_bavail) || is_spent(found.f_files, found.f_ffree)
            })
        };
        self.0.iter().filter(move |(_, place)| is_full(place)).map(|(sign, _)| *sign)
    }
}

/// The signs for a command that did not end well.
pub fn signs(places: &OwnPlaces, tail: &Tail) -> Vec<Sign> {
    places.full().chain(tail.signs()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs_of(pieces: &[&[u8]]) -> Vec<Sign> {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.signs().collect()
    }

    #[test]
    fn failure_is_known_by_the_end_of_the_output() {
        for (text, sign) in [
            ("wget: bad address 'example.org'", Sign::NoNetwork),
            ("curl: (6) Could not resolve host: example.org", Sign::NoNetwork),
            ("ERROR: [Errno -3] Temporary failure in name resolution", Sign::NoNetwork),
            ("npm error errno EAI_AGAIN", Sign::NoNetwork),
            ("fatal: unable to access 'https://x/': Could not resolve host: x", Sign::NoNetwork),
            ("dial tcp: lookup proxy.example.org on [::1]:53: connection refused", Sign::NoNetwork),
            ("touch: cannot touch '/x': Read-only file system", Sign::ReadOnly),
            ("OSError: [Errno 30] Read-only file system: '/x'", Sign::ReadOnly),
            ("Error: EROFS: read-only file system, open '/x'", Sign::ReadOnly),
            ("OSError: [Errno 28] No space left on device", Sign::NoSpace),
            ("npm error code ENOSPC", Sign::NoSpace),
            ("OSError: [Errno 27] File too large", Sign::FileTooLarge),
            ("File size limit exceeded (core dumped)", Sign::FileTooLarge),
        ] {
            let long = vec![b'x'; 5 * TAIL_BYTES];
            let (start, end) = text.as_bytes().split_at(text.len() / 2);
            assert_eq!(signs_of(&[&long, start, end]), [sign], "{text}");
            assert_eq!(signs_of(&[start, end, &long[..TAIL_BYTES]]), [], "{text}");
        }
        for text in ["FileNotFoundError: [Errno 2] No such file: 'x'", "raise DeviceNotFound()"] {
            assert_eq!(signs_of(&[text.as_bytes()]), [], "{text}");
        }
    }

    #[test]
    fn only_a_bounded_file_system_of_the_sandbox_can_be_full() {
        let is_io_own = |disk| {
            let places = OwnPlaces::open(Some(Path::new("/proc")), disk).0;
            places.iter().any(|(sign, _)| *sign == Sign::IoFull)
        };
        assert!(!is_io_own(DiskSpace::Watched) && is_io_own(DiskSpace::Bounded));
        let unbounded = OwnedFd::from(std::fs::File::open("/proc").unwrap());
        assert_eq!(OwnPlaces(vec![(Sign::TmpFull, unbounded)]).full().count(), 0);
    }
}
