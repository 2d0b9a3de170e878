//! The files of one run or operation: which paths it may use, and what it has used.

use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{TOO_MANY_BYTES, size_text};
use sandbox_protocol::message::{Access, Limits, OperationName};
use sandbox_protocol::path::GuestPath;

use super::error::{FileError, not_allowed, protected, read_only_inputs};
use super::follow::LastLink;
use super::mounts::{LocatedPath, Mounts, below_inputs, no_mount};
use super::policy::PathPolicy;
use super::quota::{Lifetime, Quota};
use super::touched::TouchedPaths;
use crate::outbox::Outbox;

/// How often an operation is tried while links appear in its paths.
const TRIES: usize = 8;

/// An open handle with bytes that are not yet written.
pub trait Flush: Send {
    /// Writes what is buffered, as far as possible.
    ///
    /// # Errors
    ///
    /// OS errors that were not returned before.
    fn flush_best_effort(&mut self) -> Result<(), FileError>;
}

/// The files of one run, or of one file operation.
pub struct Files {
    pub(super) mounts: Arc<Mounts>,
    pub(super) policy: Arc<PathPolicy>,
    pub(super) quota: Quota,
    pub(super) announced: TouchedPaths,
    pub(super) handles: Mutex<Vec<Weak<Mutex<dyn Flush>>>>,
    pub(super) list_entries: usize,
    pub(super) list_depth: u64,
    pub(super) file_bytes: u64,
    /// Links are followed, to anywhere in the container.
    pub follows: bool,
}

impl Files {
    /// The files of the run or operation `request`, which starts now.
    pub fn new(
        mounts: Arc<Mounts>,
        policy: Arc<PathPolicy>,
        limits: &Limits,
        lifetime: Arc<Lifetime>,
        announce: Option<Arc<Outbox>>,
        request: u64,
    ) -> Self {
        Self {
            mounts,
            policy,
            quota: Quota::new(limits, lifetime),
            announced: TouchedPaths::new(announce, request),
            handles: Mutex::default(),
            list_entries: usize::try_from(limits.list_entries).unwrap_or(usize::MAX),
            list_depth: limits.list_depth,
            file_bytes: limits.file_bytes,
            follows: false,
        }
    }

    /// The same anywhere in the container, whose links are followed. Its mounts must be
    /// [open](Mounts::open_container).
    #[must_use]
    pub fn anywhere(mut self) -> Self {
        self.follows = true;
        self.quota.spare(self.mounts.in_memory());
        self
    }

    /// Bytes written in this run, as counted towards the limit.
    pub fn written(&self) -> u64 {
        self.quota.written()
    }

    /// Registers a handle, so that an abandoned run can still flush it.
    pub fn register(&self, handle: Weak<Mutex<dyn Flush>>) {
        let mut handles = self.handles.lock().unwrap();
        // Forget closed handles when the list would grow, so that it is no longer than the number
        // of open handles.
        if handles.len() == handles.capacity() {
            handles.retain(|handle| handle.strong_count() > 0);
        }
        handles.push(handle);
    }

    /// Flushes every handle that is not in use at this moment: in an abandoned run, whose thread
    /// may never return, some may be.
    ///
    /// # Errors
    ///
    /// The first one; the other handles are flushed all the same.
    pub fn flush_all_best_effort(&self) -> Result<(), FileError> {
        let Ok(handles) = self.handles.try_lock() else { return Ok(()) };
        let mut result = Ok(());
        for handle in handles.iter().filter_map(Weak::upgrade) {
            if let Ok(mut handle) = handle.try_lock() {
                result = result.and(handle.flush_best_effort());
            }
        }
        result
    }

    /// Passes on the result of a script's operation, and reports it to the controller if a rule of
    /// the sandbox refused it.
    ///
    /// # Errors
    ///
    /// The given error.
    pub fn report_refusal<T>(
        &self,
        operation: OperationName,
        result: Result<T, FileError>,
    ) -> Result<T, FileError> {
        result.inspect_err(|error| {
            if error.kind.is_refusal() {
                let meant = self.mounts.meant(&error.path);
                let path = meant.as_ref().map_or(error.path.as_slice(), GuestPath::as_bytes);
                self.announced.refuse(operation, path, error.kind);
            }
        })
    }

    /// Refuses a size over `filesystem.max_file_size`.
    pub(super) fn refuse_size(&self, size: u64, written: &[u8]) -> Result<(), FileError> {
        if size <= self.file_bytes {
            return Ok(());
        }
        let [size_is, max] = [size, self.file_bytes].map(size_text);
        let reason = match size_is == max {
            true => format!("{size} bytes{TOO_MANY_BYTES} (max {})", self.file_bytes),
            false => format!("{size_is}{TOO_MANY_BYTES} (max {max})"),
        };
        Err(FileError::rule(ErrorKind::TooLarge, reason, written))
    }

    /// Finds a path; whether a link at its end is meant itself is of use only where links are followed.
    pub(super) fn locate_to_read(
        &self,
        written: &[u8],
        last: LastLink,
    ) -> Result<LocatedPath<'_>, FileError> {
        let located = match self.follows {
            true => self.mounts.locate_in_container(written, last)?,
            false => self.mounts.locate(written)?,
        };
        match self.policy.access(&located.path) {
            Some(Access::Read | Access::Write) => Ok(located),
            None => Err(not_allowed(written)),
        }
    }

    /// The same for what lists or searches a directory: the one above the inputs is not read itself.
    pub(super) fn locate_directory(&self, written: &[u8]) -> Result<LocatedPath<'_>, FileError> {
        match self.mounts.inputs(written) {
            Some((path, inputs)) if self.follows && !inputs.is_empty() => {
                Err(no_mount(&path, written))
            }
            _ => self.locate_to_read(written, LastLink::Follow),
        }
    }

    pub(super) fn locate_to_write(
        &self,
        written: &[u8],
        last: LastLink,
    ) -> Result<LocatedPath<'_>, FileError> {
        let located = self.locate_to_read(written, last).map_err(|error| match error.kind {
            // There is no such input, and none can be made.
            ErrorKind::NotFound if !self.follows => read_only_inputs(written),
            _ => error,
        })?;
        if located.mount.access == Access::Read {
            return Err(match below_inputs(&located.path) {
                Some(_) => read_only_inputs(written),
                None => FileError::system(Errno::ROFS, written),
            });
        }
        if self.policy.access(&located.path) != Some(Access::Write) {
            return Err(not_allowed(written));
        }
        if self.policy.is_protected(&located.path) {
            return Err(protected(written));
        }
        Ok(located)
    }

    /// Does an operation, and repeats it while links appear in its paths. It must have changed
    /// nothing then.
    ///
    /// # Errors
    ///
    /// Those of the operation; `busy` if they appear every time.
    pub fn repeated<T>(
        &self,
        mut operation: impl FnMut() -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut done = operation();
        for _ in 1..TRIES {
            match &done {
                Err(error) if self.follows && is_race(error) => done = operation(),
                _ => break,
            }
        }
        done.map_err(|error| self.settled(error))
    }

    /// The error of an operation that cannot be repeated.
    pub fn settled(&self, error: FileError) -> FileError {
        if !self.follows || !is_race(&error) {
            return error;
        }
        FileError::rule(ErrorKind::Busy, "the path changes while it is looked up", &error.path)
    }

    /// The normalised form of a path, if it is valid.
    pub fn meant(&self, written: &[u8]) -> Option<GuestPath> {
        self.mounts.meant(written)
    }

    /// The error of an operation that needs that.
    pub(super) fn expect_following(&self, written: &[u8]) -> Result<(), FileError> {
        if self.follows {
            return Ok(());
        }
        let reason = "this operation needs a sandbox with `files: all`";
        Err(FileError::rule(ErrorKind::NotAllowed, reason, written))
    }
}

/// Whether a path had a link after its links were followed: only then no error number comes with it.
fn is_race(error: &FileError) -> bool {
    error.kind == ErrorKind::Symlink && error.errno.is_none()
}
