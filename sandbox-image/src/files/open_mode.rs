//! How a file is opened.

use sandbox_protocol::message::Change;

/// The mode in which a file is opened, as in `io.open`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// `r`.
    Read,
    /// `w`: created or truncated.
    Write,
    /// `a`: created if missing; every write goes to the end.
    Append,
    /// `r+`.
    ReadUpdate,
    /// `w+`.
    WriteUpdate,
    /// `a+`.
    AppendUpdate,
}

impl OpenMode {
    /// The kind of change that a write through such a handle makes.
    pub(super) const fn change(self) -> Change {
        match self {
            Self::Append | Self::AppendUpdate => Change::Append,
            Self::Read | Self::Write | Self::ReadUpdate | Self::WriteUpdate => Change::Write,
        }
    }
}
