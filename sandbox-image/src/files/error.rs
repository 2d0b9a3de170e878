//! What went wrong with a file.

use std::fmt;

use rustix::io::Errno;
use sandbox_protocol::ErrorKind;

/// A file operation that failed. Displayed as `path: reason`, or as the reason alone where that
/// names the path itself or where no path is at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// The kind.
    pub kind: ErrorKind,
    /// The system's error number; `None` where a rule of the sandbox was broken.
    pub errno: Option<i32>,
    /// strerror's words, or ours.
    pub reason: String,
    /// The path as the caller wrote it; empty where the reason stands alone.
    pub path: Vec<u8>,
}

impl FileError {
    /// Whether the system failed, which `io.errors = "return"` gives back as
    /// `nil, message, errno`. A broken rule of the sandbox always raises.
    #[must_use]
    pub const fn is_system(&self) -> bool {
        self.errno.is_some()
    }

    /// A failure of the system.
    #[must_use]
    pub fn system(errno: Errno, path: &[u8]) -> Self {
        Self {
            kind: kind_of(errno),
            errno: Some(errno.raw_os_error()),
            reason: strerror(errno),
            path: path.to_vec(),
        }
    }

    /// What is asked of the root of a mount can be asked of nothing that is in use like that.
    #[must_use]
    pub fn mount_root(path: &[u8]) -> Self {
        Self { kind: ErrorKind::PermissionDenied, ..Self::system(Errno::BUSY, path) }
    }

    /// A broken rule of the sandbox.
    #[must_use]
    pub fn rule(kind: ErrorKind, reason: impl Into<String>, path: &[u8]) -> Self {
        Self { kind, errno: None, reason: reason.into(), path: path.to_vec() }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(formatter, "{}: ", String::from_utf8_lossy(&self.path))?;
        }
        formatter.write_str(&self.reason)
    }
}

impl std::error::Error for FileError {}

/// strerror's words: what std prints, without the number it adds.
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
        // In use, or somebody kept changing what was looked up: the same call may succeed.
        Errno::BUSY | Errno::AGAIN | Errno::STALE | Errno::INTR => ErrorKind::Busy,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => ErrorKind::InvalidPath,
        Errno::XDEV => ErrorKind::InvalidRequest,
        _ => ErrorKind::Internal,
    }
}
