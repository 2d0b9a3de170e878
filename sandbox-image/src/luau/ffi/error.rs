//! The errors that native functions raise in the VM.

use std::ffi::c_int;

use sandbox_protocol::ErrorKind;

use super::slot::Slot;
use crate::files::FileError;

/// Luau's message when memory is exhausted.
pub(super) const OUT_OF_MEMORY: &str = "not enough memory";

/// An error to raise: always a string, as `error` creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raise {
    /// With the caller's position in front.
    Error(String),
    /// The same, and remembered: if uncaught, the run ends with this kind.
    Rule(ErrorKind, String),
    /// A file's error: one or the other.
    File(FileError),
    /// The VM's own message for the VM's own limit.
    OutOfMemory,
    /// The run must end.
    Stopped,
}

impl From<FileError> for Raise {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl Raise {
    /// A missing argument, in Luau's words.
    pub fn missing(argument: c_int, function: &str, expected: &str) -> Self {
        Self::Error(format!("missing argument #{argument} to '{function}' ({expected} expected)"))
    }

    /// An invalid argument, in Luau's words.
    pub fn argument(argument: Slot, function: &str, problem: &str) -> Self {
        Self::Error(format!("invalid argument #{} to '{function}' ({problem})", argument.0))
    }
}
