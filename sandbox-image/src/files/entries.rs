//! Directory entries: listing, removing, renaming.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, Stat, fchmod, fstat, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::ONLY_EMPTY;
use sandbox_protocol::message::{Change, Rename, RenameReply};
use sandbox_protocol::path::{GuestPath, MAX_COMPONENT_BYTES, MAX_PATH_BYTES, join_written};

use super::access::Files;
use super::calls::count_call;
use super::error::{FileError, beneath, not_allowed, protected, special};
use super::follow::LastLink;
use super::mounts::{LocatedPath, MountTarget};
use super::temporary::{Existing, is_temporary, rename_to_nothing};
use super::touched::Pending;
use super::watch::Watch;
use sandbox_dirfd::{Directory, Identity, Root, retry, split};

/// How deep a directory is searched before it is moved or removed.
const LOOKED_DEPTH: usize = 64;

/// An entry of an open directory, and its type.
pub(super) struct Entry<'a> {
    pub root: &'a Root<'a>,
    pub directory: Directory<'a>,
    pub name: &'a [u8],
}

impl Entry<'_> {
    pub fn stat(&self) -> rustix::io::Result<Stat> {
        retry(|| statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW))
    }
}

/// A directory on the path to the one that is being searched.
struct LookedLevel {
    id: Identity,
    /// Subdirectories that are still to be searched.
    inner: Vec<Vec<u8>>,
}

/// Opens the directory above one that a walk has entered, which is this one.
pub(super) fn above(inner: &OwnedFd, id: Identity) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    expect_same(retry(|| openat(inner, "..", flags, Mode::empty()))?, id)
}

/// Refuses another directory: the tree is being moved meanwhile.
pub(super) fn expect_same(found: OwnedFd, id: Identity) -> rustix::io::Result<OwnedFd> {
    if identity(&found)? == id { Ok(found) } else { Err(Errno::AGAIN) }
}

pub(super) fn identity(directory: &OwnedFd) -> rustix::io::Result<Identity> {
    fstat(directory).map(|stat| Identity::of(&stat))
}

impl Files {
    /// The names in a directory, sorted by their bytes.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `too_large` if there are more than `limits.list_entries`.
    pub fn list(&self, written: &[u8]) -> Result<Vec<Vec<u8>>, FileError> {
        let located = match self.locate_directory(written) {
            Ok(located) => located,
            Err(error) => {
                let (_, inputs) = self.inputs(written).ok_or(error)?;
                return Ok(inputs.into_iter().map(|(name, _)| name.to_vec()).collect());
            }
        };
        let directory = located.open_directory(written)?;
        let above = located.path.as_bytes().len() + 1;
        let mut names = Vec::new();
        let fail = |errno| beneath(errno, written);
        read_directory(&directory, fail, |name, _| {
            if is_temporary(name) || !has_path(above, name) {
                return Ok(());
            }
            if names.len() == self.list_entries {
                return Err(self.too_many("list", written));
            }
            names.push(name.to_vec());
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a file, or a symbolic link itself; never a directory.
    ///
    /// # Errors
    ///
    /// [`FileError`], and it still exists.
    pub fn remove(&self, written: &[u8]) -> Result<(), FileError> {
        let located = self.locate_to_write(written, LastLink::Keep)?;
        let fail = |errno| FileError::system(errno, written);
        let entry = entry(&located, written)?.ok_or_else(|| cannot_remove_directory(written))?;
        let kind = FileType::from_raw_mode(entry.stat().map_err(fail)?.st_mode);
        located.expect_directory(kind, written)?;
        match kind {
            FileType::Directory => return Err(cannot_remove_directory(written)),
            kind => refuse_special(kind, written)?,
        }
        let pending = self.announced.announce(&located.path, true, Change::Remove);
        let removed = retry(|| unlinkat(&entry.directory, entry.name, AtFlags::empty()));
        pending.end(removed.is_ok());
        removed.map_err(|errno| match errno {
            Errno::ISDIR => cannot_remove_directory(written),
            errno => fail(errno),
        })
    }

    /// Renames within one mount, as `rename(2)` does; a symbolic link is moved itself.
    ///
    /// # Errors
    ///
    /// [`FileError`], and nothing was moved; of a directory on an overlay perhaps a part, as the error
    /// then says.
    pub fn rename(&self, from: &[u8], to: &[u8], watch: &Watch) -> Result<(), FileError> {
        let request = Rename { overwrite: true, ..Rename::new(from, to) };
        self.rename_entry(&request, watch).map(drop)
    }

    /// The same with options.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn rename_entry(&self, request: &Rename, watch: &Watch) -> Result<RenameReply, FileError> {
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let existing = if request.overwrite { Existing::Replace } else { Existing::Refuse };
        if request.parents {
            self.make_parents_for(from, to)?;
        }
        let source = self.locate_to_write(from, LastLink::Keep)?;
        let target = self.locate_to_write(to, LastLink::Keep)?;
        for (located, written) in [(&source, from), (&target, to)] {
            if self.policy.is_pinned(&located.path) {
                return Err(protected(written));
            }
            if self.policy.is_narrower_below(&located.path) {
                return Err(not_allowed(written));
            }
        }
        if !std::ptr::eq(source.mount, target.mount) {
            return Err(FileError::system(Errno::XDEV, from));
        }
        let fail = |errno| FileError::system(errno, from);
        let old = entry(&source, from)?.ok_or_else(|| FileError::mount_root(from))?;
        let new = entry(&target, to)?.ok_or_else(|| FileError::mount_root(to))?;
        let stat = old.stat().map_err(fail)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        source.expect_directory(kind, from)?;
        refuse_special(kind, from)?;
        let replaced = match new.stat() {
            Ok(replaced) => {
                let kind = FileType::from_raw_mode(replaced.st_mode);
                target.expect_directory(kind, to)?;
                refuse_special(kind, to)?;
                Some(replaced)
            }
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(FileError::system(errno, to)),
        };
        let is_directory = kind == FileType::Directory;
        if !is_directory && target.wants_directory {
            let Some(_) = replaced else { return Err(fail(Errno::NOTDIR)) };
            let error = FileError::system(Errno::ISDIR, to);
            let there = join_written(to, source.path.name());
            let there = String::from_utf8_lossy(&there);
            return Err(FileError { reason: format!("{}: name {there}", error.reason), ..error });
        }
        if replaced.is_some() && existing == Existing::Refuse {
            return Err(FileError::system(Errno::EXIST, to));
        }
        let reply = || RenameReply { from: (&source.path).into(), to: (&target.path).into() };
        let same = |other: &Stat| Identity::of(other) == Identity::of(&stat);
        if replaced.as_ref().is_some_and(same) {
            // Two names of the same file: POSIX changes nothing, so there is nothing to announce.
            return Ok(reply());
        }
        let (moved, longest) = if is_directory {
            self.files_below(&old, &source.path, "rename", from, watch)?
        } else {
            (vec![Vec::new()], 0)
        };
        let paths = moved
            .iter()
            .map(|below| Ok((descend(&source.path, below)?, descend(&target.path, below)?)));
        let paths = paths.collect::<Result<Vec<_>, Errno>>();
        let paths = paths.ok().filter(|_| target.path.as_bytes().len() + longest <= MAX_PATH_BYTES);
        let paths = paths.ok_or_else(|| {
            let reason = format!("a path in it would be longer than {MAX_PATH_BYTES} bytes");
            FileError { reason, ..FileError::system(Errno::NAMETOOLONG, to) }
        })?;
        // A directory replaces an empty one.
        let replaces = replaced.is_some() && !is_directory;
        let mut pending = Vec::with_capacity(2 * paths.len());
        for (old, new) in &paths {
            pending.push(self.announced.announce(old, true, Change::Remove));
            pending.push(self.announced.announce(new, replaces, Change::Write));
        }
        // The search and the announcements may have taken all of the time.
        if let Err(error) = watch.check() {
            withdraw(pending);
            return Err(error);
        }
        let rename = || retry(|| renameat(&old.directory, old.name, &new.directory, new.name));
        let renamed = match existing {
            Existing::Replace => rename(),
            Existing::Refuse => {
                rename_to_nothing(&old.directory, old.name, &new.directory, new.name, rename)
            }
        };
        let mut in_part = false;
        let renamed = match renamed {
            Err(Errno::XDEV) if is_directory => {
                let to = (new.directory.as_fd(), new.name);
                move_directory((old.directory.as_fd(), old.name), to, existing, watch, &mut in_part)
            }
            renamed => renamed,
        };
        match renamed {
            Ok(()) => {
                pending.into_iter().for_each(|it| it.end(true));
                Ok(reply())
            }
            Err(errno) if in_part => {
                // Each entry is at one of its two paths, which the controller looks at.
                pending.into_iter().for_each(|it| it.end(true));
                let stopped = watch.check().err().filter(|_| errno == Errno::TIMEDOUT);
                let error = stopped.unwrap_or_else(|| fail(errno));
                let reason = format!("{} (the directory has been moved in part)", error.reason);
                Err(FileError { reason, ..error })
            }
            Err(errno) => {
                withdraw(pending);
                // These errors name what is in the way.
                let is_of_target =
                    matches!(errno, Errno::EXIST | Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY);
                let mut error = FileError::system(errno, if is_of_target { to } else { from });
                if error.kind == ErrorKind::NotEmpty {
                    error.reason.push_str(ONLY_EMPTY);
                }
                Err(error)
            }
        }
    }

    /// Searches a directory that is to be moved or removed, and returns its entries that are not
    /// directories, by relative path, and the length of the longest path of all its entries, with a
    /// slash before it. One walk with one open directory: it goes back up by `..`.
    ///
    /// # Errors
    ///
    /// `protected` if it contains a protected name, `too_large` if it has more entries than a list
    /// may have, or directories deeper than [`LOOKED_DEPTH`].
    pub(super) fn files_below(
        &self,
        entry: &Entry<'_>,
        path: &GuestPath,
        verb: &str,
        written: &[u8],
        watch: &Watch,
    ) -> Result<(Vec<Vec<u8>>, usize), FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fail = |errno| beneath(errno, written);
        let opened = entry.root.child(entry.directory.as_fd(), entry.name, flags);
        let mut here = opened.map_err(fail)?;
        let mut levels: Vec<LookedLevel> = Vec::new();
        let mut below = Vec::new();
        let mut files = Vec::new();
        let mut longest = 0;
        let mut seen = 0;
        loop {
            watch.check()?;
            let mut level = LookedLevel { id: identity(&here).map_err(fail)?, inner: Vec::new() };
            let depth = levels.len() + 1;
            read_directory(&here, fail, |name, kind| {
                let inner = join_written(&below, name);
                let names = inner.rsplit(|&byte| byte == b'/');
                if self.policy.is_protected_end(names.chain(path.components().rev())) {
                    return Err(protected(&join_written(written, &inner)));
                }
                let is_directory = kind == FileType::Directory;
                if is_temporary(name) && !is_directory {
                    return Ok(());
                }
                seen += 1;
                if seen > self.list_entries {
                    return Err(self.too_many(verb, written));
                }
                longest = longest.max(1 + inner.len());
                if !is_directory {
                    files.push(inner);
                } else if depth < LOOKED_DEPTH {
                    level.inner.push(name.to_vec());
                } else {
                    let reason = format!(
                        "directories are nested deeper than {LOOKED_DEPTH}: too deep to {verb}"
                    );
                    return Err(FileError::rule(ErrorKind::TooLarge, reason, written));
                }
                Ok(())
            })?;
            levels.push(level);
            while levels.last().is_some_and(|level| level.inner.is_empty()) {
                levels.pop();
                let Some(level) = levels.last() else { return Ok((files, longest)) };
                count_call(1);
                here = above(&here, level.id).map_err(fail)?;
                below.truncate(split(&below).0.len());
            }
            let Some(name) = levels.last_mut().and_then(|level| level.inner.pop()) else {
                return Ok((files, longest));
            };
            count_call(1);
            here = entry.root.child(here.as_fd(), &name, flags).map_err(fail)?;
            below = join_written(&below, &name);
        }
    }

    fn too_many(&self, verb: &str, written: &[u8]) -> FileError {
        let reason = format!("too many entries to {verb} (max {})", self.list_entries);
        FileError::rule(ErrorKind::TooLarge, reason, written)
    }
}

/// Withdraws announcements, the last one first: each can be withdrawn only while it is the last one
/// for its path.
fn withdraw(pending: Vec<Pending<'_>>) {
    pending.into_iter().rev().for_each(|it| it.end(false));
}

/// Moves a directory entry by entry: a filesystem that is an overlay renames no directory that was
/// there before. An error leaves each entry at one of the two paths, and `in_part` true if anything
/// has changed. Nothing is moved back: that would fail where the move has failed.
fn move_directory(
    (parent, name): (BorrowedFd<'_>, &[u8]),
    (target, new_name): (BorrowedFd<'_>, &[u8]),
    existing: Existing,
    watch: &Watch,
    in_part: &mut bool,
) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = retry(|| openat(parent, name, flags, Mode::empty()))?;
    let stat = fstat(&from)?;
    if existing == Existing::Replace {
        // An empty directory, as `rename(2)` does it.
        match retry(|| unlinkat(target, new_name, AtFlags::REMOVEDIR)) {
            Ok(()) => *in_part = true,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    mkdirat(target, new_name, Mode::RWXU)?;
    *in_part = true;
    let to = retry(|| openat(target, new_name, flags, Mode::empty()))?;
    let mut names = Vec::new();
    read_directory(&from, std::convert::identity, |name, _| {
        names.push(name.to_vec());
        Ok(())
    })?;
    for name in &names {
        // The caller asks the watch itself.
        watch.check().map_err(|_| Errno::TIMEDOUT)?;
        match retry(|| renameat(&from, &name[..], &to, &name[..])) {
            Err(Errno::XDEV) => {
                let to = (to.as_fd(), &name[..]);
                move_directory((from.as_fd(), name), to, Existing::Refuse, watch, in_part)?;
            }
            renamed => renamed?,
        }
    }
    fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    retry(|| unlinkat(parent, name, AtFlags::REMOVEDIR))
}

/// The name of a path in its parent directory; `None` for the root of a mount.
pub(super) fn entry<'a>(
    located: &'a LocatedPath<'_>,
    written: &[u8],
) -> Result<Option<Entry<'a>>, FileError> {
    let MountTarget::Beneath(root, relative) = &located.target else {
        return Err(FileError::mount_root(written));
    };
    if relative.is_empty() {
        return Ok(None);
    }
    let (parent, name) = split(relative);
    let directory = root.directory(parent).map_err(|errno| beneath(errno, written))?;
    Ok(Some(Entry { root, directory, name }))
}

/// The sandbox must not change the name of a FIFO, a socket or a device, nor what is behind it.
pub(super) fn refuse_special(kind: FileType, written: &[u8]) -> Result<(), FileError> {
    match kind {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => Ok(()),
        _ => Err(special(written)),
    }
}

fn descend(path: &GuestPath, below: &[u8]) -> Result<GuestPath, Errno> {
    let mut names = below.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    names.try_fold(path.clone(), |path, name| path.join(name)).map_err(|_| Errno::NAMETOOLONG)
}

/// Whether operations take the path of an entry, after so many bytes of its directory. Some file
/// systems have longer names, and directories may be deeper than paths.
pub(super) fn has_path(above: usize, name: &[u8]) -> bool {
    name.len() <= MAX_COMPONENT_BYTES && above + name.len() <= MAX_PATH_BYTES
}

/// Calls `each` with the name and type of every entry except `.` and `..`, until it fails; `fail` makes the
/// error of reading.
pub(super) fn read_directory<E>(
    directory: &OwnedFd,
    fail: impl Fn(Errno) -> E,
    mut each: impl FnMut(&[u8], FileType) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry.map_err(&fail)?,
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => retry(|| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            known => known,
        };
        each(name, kind)?;
    }
    Ok(())
}

/// The same, until the operation is to stop: that error is the outer one.
pub(super) fn read_watched(
    directory: &OwnedFd,
    watch: &Watch,
    mut each: impl FnMut(&[u8], FileType),
) -> Result<rustix::io::Result<()>, FileError> {
    let mut stopped = Ok(());
    let read = read_directory(directory, std::convert::identity, |name, kind| {
        stopped = watch.check();
        if stopped.is_err() {
            return Err(Errno::INTR);
        }
        each(name, kind);
        Ok(())
    });
    stopped.map(|()| read)
}

fn cannot_remove_directory(written: &[u8]) -> FileError {
    let reason = format!("cannot remove directory '{}'", String::from_utf8_lossy(written));
    FileError { reason, ..FileError::system(Errno::ISDIR, b"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_path_may_have_is_left_out() {
        for (above, length) in [(4, 255), (4, 256), (4, 765), (4000, 94), (4000, 95)] {
            let (directory, name) = (b"/d".repeat(above / 2), vec![b'n'; length]);
            let path = GuestPath::new([&*directory, b"/", &name].concat());
            assert_eq!(has_path(above + 1, &name), path.is_ok(), "{above} {length}");
        }
    }
}
