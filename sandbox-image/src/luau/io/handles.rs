//! Handles: opened, found among the arguments, closed.

use std::sync::{Arc, Mutex, MutexGuard};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::OperationName;

use super::arguments::files;
use crate::files::handle::Handle;
use crate::files::{FileError, Flush, OpenMode};
use crate::luau::ffi::{Call, Raise, Slot};

const CLOSED: &str = "attempt to use a closed file";

/// The open handle in `slot`.
pub(super) fn open_handle<'c>(
    call: &'c Call<'_>,
    slot: Slot,
    function: &str,
) -> Result<MutexGuard<'c, Handle>, Raise> {
    let Some(handle) = call.handle(slot) else {
        return Err(Raise::expected(call, slot, function, "file"));
    };
    let handle = handle.lock().unwrap();
    if handle.is_open() { Ok(handle) } else { Err(Raise::Error(CLOSED.to_owned())) }
}

/// The same, for callers that push values while they hold the handle.
pub(super) fn shared_handle(
    call: &Call<'_>,
    slot: Slot,
    function: &str,
) -> Result<Arc<Mutex<Handle>>, Raise> {
    drop(open_handle(call, slot, function)?);
    call.handle(slot).cloned().ok_or_else(|| Raise::Error(CLOSED.to_owned()))
}

/// Opens a file and pushes its handle.
pub(super) fn push_open(call: &mut Call<'_>, path: &[u8], mode: OpenMode) -> Result<(), Raise> {
    let host = call.host();
    let max = host.limits.open_handles;
    if host.open_handles.get() >= max {
        call.collect_garbage();
        if host.open_handles.get() >= max {
            let message = format!("too many open files (max {max})");
            return Err(Raise::Rule(ErrorKind::TooManyHandles, message));
        }
    }
    let files = files(call)?;
    let operation = match mode {
        OpenMode::Read => OperationName::Read,
        _ => OperationName::Write,
    };
    let file = files.report_refusal(operation, files.open(path, mode))?;
    let handle = Arc::new(Mutex::new(Handle::new(Arc::clone(files), file, path)));
    let flushed: Arc<Mutex<dyn Flush>> = handle.clone();
    files.register(Arc::downgrade(&flushed));
    call.push_handle(handle);
    host.open_handles.set(host.open_handles.get() + 1);
    Ok(())
}

pub(super) fn close_handle(call: &Call<'_>, handle: &mut Handle) -> Result<(), FileError> {
    let open = &call.host().open_handles;
    open.set(open.get() - 1);
    handle.close()
}
