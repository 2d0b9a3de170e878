//! Errors of file operations.

use std::fmt;

use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::path::MAX_PATH_BYTES;

/// A file operation that failed. Displayed as `path: reason`, or as the reason alone if that names
/// the path itself or no path is involved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// The kind.
    pub kind: ErrorKind,
    /// The OS error number, which `io.errors = "return"` returns as `nil, message, errno` unless a
    /// rule of the sandbox was broken, which always raises.
    pub errno: Option<Errno>,
    /// The text of strerror, or our own.
    pub reason: String,
    /// The path as the caller wrote it; empty if the reason is displayed alone.
    pub path: Vec<u8>,
}

impl FileError {
    /// Whether a rule of the sandbox was broken; then an uncaught error ends the script with this
    /// kind. That includes errors with an OS error number (an input is read-only).
    pub fn breaks_rule(&self) -> bool {
        match self.errno {
            None => self.kind.is_sandbox_rule(),
            Some(errno) => {
                matches!(errno, Errno::ROFS | Errno::LOOP | Errno::NXIO | Errno::NODEV)
            }
        }
    }

    /// Whether a lookup failed because nothing exists. Nothing exists below a path that is not a
    /// directory.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self.errno, Some(Errno::NOENT | Errno::NOTDIR))
    }

    /// An OS error.
    pub fn system(errno: Errno, path: &[u8]) -> Self {
        Self {
            kind: kind_of(errno),
            errno: Some(errno),
            reason: strerror(errno),
            path: path.to_vec(),
        }
    }

    /// The root of a mount is always in use, so it does not support this operation.
    pub fn mount_root(path: &[u8]) -> Self {
        Self { kind: ErrorKind::PermissionDenied, ..Self::system(Errno::BUSY, path) }
    }

    /// The edited file is being changed by another writer.
    pub(super) fn changing(path: &[u8]) -> Self {
        Self::rule(ErrorKind::Busy, "the file changes while it is edited", path)
    }

    /// A broken rule of the sandbox.
    pub fn rule(kind: ErrorKind, reason: impl Into<String>, path: &[u8]) -> Self {
        Self { kind, errno: None, reason: reason.into(), path: path.to_vec() }
    }

    /// A request that is wrong in itself.
    pub fn invalid(reason: impl Into<String>, path: &[u8]) -> Self {
        Self::rule(ErrorKind::InvalidRequest, reason, path)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            // A name longer than any path is cut, so that the reason stays visible.
            let is_path = self.path.len() <= MAX_PATH_BYTES;
            let (shown, rest) = if is_path { (&*self.path, "") } else { (&self.path[..60], "…") };
            write!(formatter, "{}{rest}: ", String::from_utf8_lossy(shown))?;
        }
        formatter.write_str(&self.reason)
    }
}

impl std::error::Error for FileError {}

/// The text of strerror: what std prints, without the number that it appends.
fn strerror(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.rfind(" (os error").map_or(text.as_str(), |end| &text[..end]).to_owned()
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::AlreadyExists,
        Errno::ISDIR => ErrorKind::IsDirectory,
        Errno::NOTDIR => ErrorKind::NotADirectory,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::ACCESS | Errno::PERM | Errno::TXTBSY => ErrorKind::PermissionDenied,
        Errno::ROFS | Errno::BADF => ErrorKind::ReadOnly,
        Errno::LOOP => ErrorKind::Symlink,
        Errno::NXIO | Errno::NODEV => ErrorKind::SpecialFile,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::DiskFull,
        Errno::FBIG | Errno::OVERFLOW => ErrorKind::TooLarge,
        Errno::MFILE | Errno::NFILE => ErrorKind::TooManyHandles,
        Errno::NOMEM => ErrorKind::OutOfMemory,
        Errno::TIMEDOUT => ErrorKind::Timeout,
        // In use, or the path kept changing during its lookup: the same call may succeed later.
        Errno::BUSY | Errno::AGAIN | Errno::STALE | Errno::INTR => ErrorKind::Busy,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => ErrorKind::InvalidPath,
        Errno::XDEV => ErrorKind::InvalidRequest,
        _ => ErrorKind::Internal,
    }
}

/// A path outside the mounts.
pub(super) const OUTSIDE: &str = "outside the sandbox's directories";

pub(super) fn not_allowed(written: &[u8]) -> FileError {
    FileError::rule(ErrorKind::NotAllowed, "not among the allowed paths", written)
}

pub(super) fn read_only_inputs(written: &[u8]) -> FileError {
    let error = FileError::system(Errno::ROFS, written);
    FileError { reason: format!("{} (inputs are read-only)", error.reason), ..error }
}

pub(super) fn protected(written: &[u8]) -> FileError {
    FileError::rule(ErrorKind::Protected, "a protected name", written)
}

pub(super) fn special(written: &[u8]) -> FileError {
    FileError::rule(ErrorKind::SpecialFile, "not a regular file", written)
}

/// An error of [`sandbox_dirfd`]; two error numbers mean that a rule of the sandbox was broken.
pub(super) fn beneath(errno: Errno, written: &[u8]) -> FileError {
    match errno {
        Errno::LOOP => FileError::rule(ErrorKind::Symlink, "a symbolic link", written),
        Errno::XDEV => FileError::rule(ErrorKind::PathEscape, OUTSIDE, written),
        errno => FileError::system(errno, written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_path_is_shown_by_its_first_bytes() {
        let shown =
            |path: &[u8]| FileError::rule(ErrorKind::InvalidPath, "too long", path).to_string();
        let path = "p".repeat(MAX_PATH_BYTES);
        assert_eq!(shown(path.as_bytes()), format!("{path}: too long"));
        assert_eq!(shown(format!("{path}p").as_bytes()), format!("{}…: too long", &path[..60]));
        assert_eq!(shown(b"\xff"), "\u{fffd}: too long");
        assert_eq!(shown(b""), "too long");
    }
}
