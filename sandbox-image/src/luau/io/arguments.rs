//! The arguments of the file functions.

use std::sync::Arc;
use std::time::Duration;

use sandbox_protocol::message::OperationName;

use crate::files::{FileError, Files, Watch};
use crate::luau::ffi::{Call, Raise, Slot};

pub(super) fn files<'a>(call: &Call<'a>) -> Result<&'a Arc<Files>, Raise> {
    let none = || Raise::Error("io is off in this run".to_owned());
    call.host().files.as_ref().ok_or_else(none)
}

/// Ends with the run, or when the operation times out.
pub(super) fn watch(call: &Call<'_>) -> Watch {
    let host = call.host();
    let limit = Duration::from_millis(host.limits.operation_timeout_ms);
    Watch::new(Arc::clone(&host.stop), limit)
}

/// Performs a file operation, and reports a refusal by a rule to the controller.
pub(super) fn perform<T>(
    call: &Call<'_>,
    operation: OperationName,
    act: impl FnOnce(&Files, &Watch) -> Result<T, FileError>,
) -> Result<T, Raise> {
    let files = files(call)?;
    Ok(files.report_refusal(operation, act(files, &watch(call)))?)
}

pub(super) fn path(call: &mut Call<'_>, slot: Slot, function: &str) -> Result<Vec<u8>, Raise> {
    match call.text(slot) {
        Some(path) => Ok(path.to_vec()),
        None => Err(Raise::expected(call, slot, function, "string")),
    }
}

pub(super) fn invalid(what: &str, text: &[u8]) -> Raise {
    Raise::Error(format!("invalid {what}: '{}'", String::from_utf8_lossy(text)))
}
