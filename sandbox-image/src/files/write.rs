//! Writing a file in full: the content is collected beside the file, and only a commit changes
//! anything.
//!
//! ```text
//!   write ──> put* ──> commit ── overwrite ──> the collected file takes the old one's place
//!                            ├── create_new ─> it becomes the file, if none exists
//!                            └── append, or not atomic: it is copied into the file that is there
//! ```
//!
//! A [`Writing`] that is dropped before its commit has changed nothing and leaves nothing behind.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, copy_file_range, fchmod, fstat,
    ftruncate, statat,
};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{TOO_MANY_BYTES, size_text};
use sandbox_protocol::message::{Change, Write, WriteMode};
use sandbox_protocol::path::GuestPath;

use super::access::Files;
use super::error::{FileError, beneath, special};
use super::follow::LastLink;
use super::modes::mode_of;
use super::mounts::{LocatedPath, MountTarget};
use super::names::size_of;
use super::open::{Absent, ParentDir, expect_file, explain, make_parents};
use super::path_locks::PathLock;
use super::temporary::{Existing, Temporary};
use super::watch::Watch;
use sandbox_dirfd::{FileStamp, Root, retry, split};

/// How often a commit is retried because the file appeared or vanished in between.
const RACES: usize = 8;
/// Size of one piece of a copy.
const COPY_BYTES: usize = 256 << 10;
/// The same where the kernel copies: it shares blocks in longer pieces, but a piece is not stopped.
const KERNEL_COPY_BYTES: usize = 8 << 20;
/// The largest file that may be kept in [`Written::replaced`]: its space is negligible.
const KEPT_BYTES: u64 = 64 << 10;
/// Most content for a mount that is a single file: there is no directory beside it to collect more.
const SINGLE_FILE_BYTES: u64 = 4 << 20;

/// The result of a write.
#[derive(Debug)]
pub struct Written {
    /// The file.
    pub path: GuestPath,
    /// Size of the content.
    pub bytes: u64,
    /// Whether the file was created.
    pub created: bool,
    /// The file that was replaced. Dropping it frees its space, which takes a disk longer than all
    /// the rest: keep it until the answer is sent.
    pub replaced: Option<OwnedFd>,
}

/// Content that is being collected for a file.
pub struct Writing<'f> {
    files: &'f Files,
    located: LocatedPath<'f>,
    request: Write,
    /// What to do if the file does not exist.
    absent: Absent,
    stage: Stage<'f>,
    bytes: u64,
    /// The size of the existing file, if it is appended to.
    before: u64,
    /// The permissions of the file, also in place of an old one, if they are not the old one's or the usual
    /// ones; not if its content is replaced.
    pub(super) permissions: Option<Mode>,
    /// Those of a file that is created.
    permissions_of_new: Option<Mode>,
}

/// Where content is collected.
enum Stage<'f> {
    TempFile(Temporary<'f>),
    Memory(Vec<u8>),
}

/// An existing file.
pub(super) struct Target {
    fd: OwnedFd,
    stat: Stat,
}

impl Files {
    /// Starts to write a file.
    ///
    /// # Errors
    ///
    /// Every error that can be detected now; nothing has changed.
    pub fn write(&self, request: Write, absent: Absent) -> Result<Writing<'_>, FileError> {
        let located = self.locate_to_write(request.path.as_bytes(), LastLink::Follow)?;
        Ok(self.begin(request, absent, located)?.0)
    }

    /// Writes a file whose content is all there.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), [`put`](Writing::put) and [`commit`](Writing::commit).
    pub fn write_all(
        &self,
        request: Write,
        content: &[u8],
        watch: &Watch,
    ) -> Result<Written, FileError> {
        let located = self.locate_to_write(request.path.as_bytes(), LastLink::Follow)?;
        // No other write comes between what is found and the end.
        let lock = self.mounts.path_locks.lock(&located.path, watch)?;
        let (mut writing, found) = self.begin(request, Absent::Accept, located)?;
        watch.check()?;
        writing.put(content)?;
        writing.commit_locked(None, Some(found), lock, watch)
    }

    /// Starts, and returns the file that is there.
    fn begin<'f>(
        &'f self,
        request: Write,
        absent: Absent,
        located: LocatedPath<'f>,
    ) -> Result<(Writing<'f>, Option<Target>), FileError> {
        let (written, mode) = (request.path.as_bytes(), request.mode);
        let permissions_of_new =
            request.permissions.map(|permissions| mode_of(permissions, written)).transpose()?;
        let target = find(&located, mode, absent, written)?;
        if target.is_none() && absent == Absent::Refuse {
            return Err(FileError::system(Errno::NOENT, written));
        }
        if target.is_some() && mode == WriteMode::CreateNew {
            return Err(FileError::system(Errno::EXIST, written));
        }
        let before = match (&target, mode) {
            (Some(target), WriteMode::Append) => size_of(&target.stat),
            _ => 0,
        };
        let stage = match &located.target {
            MountTarget::File => Stage::Memory(Vec::new()),
            &MountTarget::Beneath(root, ref relative) => {
                let parent = self.parent(&located, &root, relative, written)?;
                if !request.parents && !parent.missing.is_empty() {
                    return Err(FileError::system(Errno::NOENT, written));
                }
                let temporary = Temporary::new(parent.directory);
                Stage::TempFile(temporary.map_err(|errno| FileError::system(errno, written))?)
            }
        };
        let writing = Writing {
            files: self,
            located,
            request,
            absent,
            stage,
            bytes: 0,
            before,
            permissions: None,
            permissions_of_new,
        };
        writing.refuse_size(0)?;
        Ok((writing, target))
    }
}

/// The regular file at a path, opened for writing; `None` if nothing exists.
fn find(
    located: &LocatedPath<'_>,
    mode: WriteMode,
    absent: Absent,
    written: &[u8],
) -> Result<Option<Target>, FileError> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = if mode == WriteMode::Append { flags | OFlags::APPEND } else { flags };
    let fail = |errno| FileError::system(errno, written);
    expect_file(located, absent, written)?;
    let fd = match (located.open(flags), &located.target) {
        (Ok(fd), _) => fd,
        (Err(Errno::NOENT), MountTarget::Beneath(..)) => return Ok(None),
        // Whatever it is, it is in the way of a new file.
        (Err(_), MountTarget::Beneath(root, relative))
            if mode == WriteMode::CreateNew && is_there(root, relative) =>
        {
            return Err(fail(Errno::EXIST));
        }
        (Err(errno), _) => return Err(explain(errno, located, written)),
    };
    let stat = fstat(&fd).map_err(fail)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Some(Target { fd, stat })),
        _ if mode == WriteMode::CreateNew => Err(fail(Errno::EXIST)),
        FileType::Directory => Err(fail(Errno::ISDIR)),
        _ => Err(special(written)),
    }
}

/// What was found, as it is now. `None` if it was a file that has been removed.
fn still_there(found: Option<Target>) -> Option<Option<Target>> {
    let Some(Target { fd, .. }) = found else { return Some(None) };
    let stat = fstat(&fd).ok().filter(|stat| stat.st_nlink > 0)?;
    Some(Some(Target { fd, stat }))
}

fn is_there(root: &Root<'_>, relative: &[u8]) -> bool {
    let (parent, name) = split(relative);
    root.directory(parent)
        .is_ok_and(|directory| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

impl<'f> Writing<'f> {
    /// The path as it was given.
    fn written(&self) -> &[u8] {
        self.request.path.as_bytes()
    }

    /// Adds content.
    ///
    /// # Errors
    ///
    /// `too_large`, `write_limit`, `disk_full`; nothing has changed.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.refuse_size(bytes.len() as u64)?;
        self.files.quota.charge(self.located.mount.fd(), bytes.len() as u64)?;
        self.store(bytes)
    }

    /// Adds content that is counted already.
    fn store(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        match &mut self.stage {
            Stage::TempFile(temporary) => write_at(&temporary.fd, bytes, self.bytes)
                .map_err(|error| FileError::system(error.errno, self.written()))?,
            Stage::Memory(content) => content.extend_from_slice(bytes),
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Adds the first `size` bytes of a file, or all if it is shorter by now. The kernel copies them,
    /// and shares their blocks where the file system can.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put), and those of reading.
    pub fn put_file(&mut self, from: &OwnedFd, size: u64, watch: &Watch) -> Result<(), FileError> {
        self.refuse_size(size)?;
        self.files.quota.charge(self.located.mount.fd(), size)?;
        let mut by_kernel = matches!(self.stage, Stage::TempFile(_));
        let mut offset = 0;
        while offset < size {
            watch.check()?;
            let length = usize::try_from(size - offset).unwrap_or(usize::MAX);
            let copied = match &self.stage {
                Stage::TempFile(temporary) if by_kernel => {
                    let (mut read, mut write) = (offset, self.bytes);
                    let length = length.min(KERNEL_COPY_BYTES);
                    let to = &temporary.fd;
                    match retry(|| {
                        copy_file_range(from, Some(&mut read), to, Some(&mut write), length)
                    }) {
                        // It cannot copy between these two file systems.
                        Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                            by_kernel = false;
                            continue;
                        }
                        copied => {
                            let copied =
                                copied.map_err(|errno| FileError::system(errno, self.written()))?;
                            self.bytes += copied as u64;
                            copied
                        }
                    }
                }
                _ => {
                    let mut buffer = vec![0; length.min(COPY_BYTES)];
                    let read = retry(|| rustix::io::pread(from, &mut buffer[..], offset));
                    let read = read.map_err(|errno| FileError::system(errno, self.written()))?;
                    self.store(&buffer[..read])?;
                    read
                }
            };
            if copied == 0 {
                break;
            }
            offset += copied as u64;
        }
        Ok(())
    }

    /// Whether the file would be too large with `more` bytes of content.
    fn refuse_size(&self, more: u64) -> Result<(), FileError> {
        let size = self.before.saturating_add(self.bytes).saturating_add(more);
        // More of it may follow: its final size is unknown.
        if size > self.files.file_bytes {
            let reason = format!("more than {}{TOO_MANY_BYTES}", size_text(self.files.file_bytes));
            return Err(FileError::rule(ErrorKind::TooLarge, reason, self.written()));
        }
        if matches!(self.stage, Stage::Memory(_)) && self.bytes + more > SINGLE_FILE_BYTES {
            let reason = format!(
                "a mount that is a single file takes at most {SINGLE_FILE_BYTES} bytes at once"
            );
            return Err(FileError::rule(ErrorKind::TooLarge, reason, self.written()));
        }
        Ok(())
    }

    /// Makes the content the file's.
    ///
    /// # Errors
    ///
    /// [`FileError`], and nothing has changed, except that parents may have been created, and that
    /// a file overwritten in place may be damaged if the device fails in the middle.
    pub fn commit(self, watch: &Watch) -> Result<Written, FileError> {
        let lock = self.lock(watch)?;
        self.commit_locked(None, None, lock, watch)
    }

    /// Waits until this operation may change the file.
    pub(super) fn lock(&self, watch: &Watch) -> Result<PathLock<'f>, FileError> {
        self.files.mounts.path_locks.lock(&self.located.path, watch)
    }

    /// The same for a caller that holds the lock. If the content was derived from a version of the file,
    /// another version is not overwritten; `found_before` is what was there since the lock is held.
    ///
    /// # Errors
    ///
    /// The same, and `busy` if the file has another version.
    pub(super) fn commit_locked(
        self,
        version: Option<FileStamp>,
        mut found_before: Option<Option<Target>>,
        _lock: PathLock<'_>,
        watch: &Watch,
    ) -> Result<Written, FileError> {
        for _ in 0..RACES {
            watch.check()?;
            let target = match found_before.take().and_then(still_there) {
                Some(target) => target,
                None => find(&self.located, self.request.mode, self.absent, self.written())?,
            };
            let found = target.as_ref().map(|target| FileStamp::of(&target.stat));
            if version.is_some() && found != version {
                return Err(FileError::changing(self.written()));
            }
            if target.is_some() && self.request.mode == WriteMode::CreateNew {
                return Err(FileError::system(Errno::EXIST, self.written()));
            }
            let in_place = match (self.request.mode, self.request.atomic) {
                (WriteMode::CreateNew, _) => false,
                (WriteMode::Append, _) | (WriteMode::Overwrite, false) => true,
                (WriteMode::Overwrite, true) => matches!(self.stage, Stage::Memory(_)),
            };
            let created = target.is_none();
            let (done, replaced) = match target {
                Some(target) if in_place => {
                    self.fill(&target, watch)?;
                    (true, None)
                }
                target => {
                    let done = self.publish(target.as_ref(), watch)?;
                    (done, target.filter(|old| size_of(&old.stat) <= KEPT_BYTES).map(|old| old.fd))
                }
            };
            if done {
                let (path, bytes) = (self.located.path, self.bytes);
                return Ok(Written { path, bytes, created, replaced });
            }
        }
        Err(FileError::system(Errno::AGAIN, self.written()))
    }

    /// Puts the collected file in place; nothing is there if there is no `target`. Returns false if
    /// a file has appeared there.
    fn publish(&self, target: Option<&Target>, watch: &Watch) -> Result<bool, FileError> {
        let fail = |errno| beneath(errno, self.written());
        let (Stage::TempFile(temporary), MountTarget::Beneath(root, relative)) =
            (&self.stage, &self.located.target)
        else {
            // The mount exists in full or not at all.
            return Err(FileError::system(Errno::NOENT, self.written()));
        };
        let ParentDir { directory, missing, name } =
            self.files.parent(&self.located, root, relative, self.written())?;
        if !missing.is_empty() && !self.request.parents {
            return Err(FileError::system(Errno::NOENT, self.written()));
        }
        // Else it gets the permissions of the old file; setuid, setgid and sticky bits are not.
        let of_target = |target: &Target| Mode::from_raw_mode(target.stat.st_mode & 0o777);
        if let Some(mode) = self.permissions.or(target.map(of_target)).or(self.permissions_of_new) {
            retry(|| fchmod(&temporary.fd, mode)).map_err(fail)?;
        }
        let (wanted, existing) = match target {
            Some(_) => (0, Existing::Replace),
            None => (missing.len() as u64 + 1, Existing::Refuse),
        };
        self.files.quota.take_entries(self.located.mount.fd(), wanted)?;
        let pending =
            self.files.announced.announce(&self.located.path, target.is_some(), Change::Write);
        let mut made = 0;
        let published = make_parents(root, directory, &missing, &mut made).and_then(|directory| {
            temporary.publish(&directory, name, existing, |from, to| {
                copy(from, to, 0, self.bytes, watch).map_err(|error| error.errno)
            })
        });
        pending.end(published.is_ok());
        made += u64::from(published.is_ok() && target.is_none());
        self.files.quota.give_back_entries(wanted.saturating_sub(made));
        match (published, self.request.mode) {
            (Err(Errno::EXIST), WriteMode::Overwrite | WriteMode::Append) => Ok(false),
            (published, _) => published.map(|()| true).map_err(fail),
        }
    }

    /// Copies the content into an existing file: appended, or in place of its content.
    fn fill(&self, target: &Target, watch: &Watch) -> Result<(), FileError> {
        let fail = |errno| FileError::system(errno, self.written());
        let size = size_of(&target.stat);
        let (start, change) = match self.request.mode {
            WriteMode::Append => (size, Change::Append),
            WriteMode::Overwrite | WriteMode::CreateNew => (0, Change::Write),
        };
        self.files.refuse_size(start.saturating_add(self.bytes), self.written())?;
        // A full device fails here, before anything has changed.
        if let Err(errno) = reserve(&target.fd, start, self.bytes) {
            give_up_reserve(&target.fd, size);
            return Err(fail(errno));
        }
        let pending = self.files.announced.announce(&self.located.path, true, change);
        let copied = match &self.stage {
            Stage::TempFile(temporary) => copy(&temporary.fd, &target.fd, start, self.bytes, watch),
            Stage::Memory(content) => write_at(&target.fd, content, start),
        };
        let result = copied.and_then(|()| {
            let end = start + self.bytes;
            let shrinks = change == Change::Write && end < size;
            let shrunk = if shrinks { retry(|| ftruncate(&target.fd, end)) } else { Ok(()) };
            shrunk.map_err(|errno| CopyError { errno, stopped: None, copied: self.bytes })
        });
        let Err(error) = result else {
            pending.end(true);
            return Ok(());
        };
        // Removes what was appended, unless something else was appended since.
        let restored = match change {
            Change::Append => {
                let end = size + error.copied;
                fstat(&target.fd).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(end))
                    && ftruncate(&target.fd, size).is_ok()
            }
            Change::Write | Change::Remove | Change::Failed => error.copied == 0,
        };
        pending.end(!restored);
        Err(error.stopped.unwrap_or_else(|| fail(error.errno)))
    }
}

/// Why a copy is incomplete.
struct CopyError {
    errno: Errno,
    /// The watch's error, if it stopped the copy.
    stopped: Option<FileError>,
    /// How much was copied at least.
    copied: u64,
}

/// Copies the first `bytes` of one file to offset `start` of another, or to the end of an
/// append-only one.
fn copy(
    from: &OwnedFd,
    to: &OwnedFd,
    start: u64,
    bytes: u64,
    watch: &Watch,
) -> Result<(), CopyError> {
    let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(bytes).unwrap_or(COPY_BYTES))];
    let mut copied = 0;
    while copied < bytes {
        let failed = |errno| CopyError { errno, stopped: None, copied };
        watch
            .check()
            .map_err(|error| CopyError { stopped: Some(error), ..failed(Errno::TIMEDOUT) })?;
        let length = buffer.len().min(usize::try_from(bytes - copied).unwrap_or(buffer.len()));
        let read = retry(|| rustix::io::pread(from, &mut buffer[..length], copied));
        let read = read.map_err(failed)?;
        if read == 0 {
            return Err(failed(Errno::IO));
        }
        write_at(to, &buffer[..read], start + copied)
            .map_err(|error| CopyError { copied: copied + error.copied, ..error })?;
        copied += read as u64;
    }
    Ok(())
}

/// Writes all of `bytes`. An append-only file adds them at its end, whatever `offset` is.
fn write_at(to: &OwnedFd, bytes: &[u8], offset: u64) -> Result<(), CopyError> {
    let mut done = 0;
    while done < bytes.len() {
        let failed = |errno| CopyError { errno, stopped: None, copied: done as u64 };
        let at = offset + done as u64;
        match retry(|| rustix::io::pwrite(to, &bytes[done..], at)).map_err(failed)? {
            0 => return Err(failed(Errno::IO)),
            count => done += count,
        }
    }
    Ok(())
}

/// Reserves space, if the file system can.
fn reserve(file: &OwnedFd, start: u64, bytes: u64) -> rustix::io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, start, bytes) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno),
        _ => Ok(()),
    }
}

/// Frees what a failed reservation has reserved past the end of a file, unless the file has grown
/// since.
fn give_up_reserve(file: &OwnedFd, size: u64) {
    if fstat(file).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(size)) {
        _ = ftruncate(file, size);
    }
}
