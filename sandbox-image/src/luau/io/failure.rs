//! Failures of the file functions: raised, or returned where the sandbox says so.

use sandbox_protocol::message::IoErrors;

use crate::files::FileError;
use crate::luau::ffi::{Call, Pushed, Raise, Results};

/// Why a function ends early: an error to raise, or a file error, which is raised or returned
/// depending on the sandbox.
pub(super) enum Failure {
    Raise(Raise),
    File(FileError),
}

impl From<Raise> for Failure {
    fn from(raise: Raise) -> Self {
        Self::Raise(raise)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

pub(super) fn raised(error: &FileError) -> Raise {
    let message = error.to_string();
    if error.breaks_rule() { Raise::Rule(error.kind, message) } else { Raise::Error(message) }
}

/// For functions that always raise failures and cannot return one.
pub(super) fn raise(failure: Failure) -> Raise {
    match failure {
        Failure::Raise(raise) => raise,
        Failure::File(error) => raised(&error),
    }
}

/// Raises a failure, or returns it as `nil, message, errno`.
pub(super) fn settle(call: &mut Call<'_>, result: Result<Pushed, Failure>) -> Results {
    match result {
        Ok(pushed) => Ok(pushed),
        Err(Failure::File(error)) => match (call.host().io_errors, error.errno) {
            (IoErrors::Return, Some(errno)) if !error.breaks_rule() => {
                call.reserve(3)?;
                call.push_nil();
                call.push_string(error.to_string());
                call.push_number(errno.raw_os_error().into());
                Ok(call.results(3))
            }
            (IoErrors::Return | IoErrors::Raise, _) => Err(raised(&error)),
        },
        Err(Failure::Raise(raise)) => Err(raise),
    }
}
