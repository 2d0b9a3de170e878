//! Copying a file, or a tree of files and directories.

use rustix::fs::{FileType, Mode, fchmod, fstat};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{
    Copy, CopyReply, CutBy, Entry, EntryKind, List, Mkdir, Write, WriteMode,
};
use sandbox_protocol::path::join_written;

use super::access::Files;
use super::error::{FileError, beneath, special};
use super::follow::LastLink;
use super::list::DEPTH_OF_PATHS;
use super::names::kind_of;
use super::open::Absent;
use super::open_mode::OpenMode;
use super::watch::Watch;

impl Files {
    /// Copies a file with its permissions; if the request is recursive also a directory with its
    /// permissions and its content, into an existing one only if it overwrites. Each file of it is written
    /// whole or not at all.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `symlink` for a link, which is not copied, and `special_file` for what is
    /// neither a file nor a directory. A tree is checked before anything is copied; an error later
    /// leaves what has been copied.
    pub fn copy(&self, request: &Copy, watch: &Watch) -> Result<CopyReply, FileError> {
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let mode = match request.overwrite {
            true => WriteMode::Overwrite,
            false => WriteMode::CreateNew,
        };
        let (source, stat, _) = self.look(from, LastLink::Follow)?;
        let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
        let target = self.locate_to_write(to, LastLink::Follow)?;
        if kind == EntryKind::File && target.wants_directory {
            let (_, found) = self.exists(to)?;
            let errno = if found.is_some() { Errno::ISDIR } else { Errno::NOTDIR };
            return Err(FileError::system(errno, to));
        }
        let (source, target) = (source.path, target.path);
        if target == source || target.is_under(&source) {
            let reason = format!("cannot copy '{source}' into itself");
            return Err(FileError::invalid(reason, to));
        }
        let (entries, bytes) = match kind {
            EntryKind::File => (1, self.copy_file(from, to, mode, watch)?),
            EntryKind::Directory if request.recursive => self.copy_tree(from, to, mode, watch)?,
            EntryKind::Directory => return Err(FileError::system(Errno::ISDIR, from)),
            EntryKind::Symlink => return Err(beneath(Errno::LOOP, from)),
            EntryKind::Other => return Err(special(from)),
        };
        Ok(CopyReply { from: (&source).into(), to: (&target).into(), entries, bytes })
    }

    fn copy_tree(
        &self,
        from: &[u8],
        to: &[u8],
        mode: WriteMode,
        watch: &Watch,
    ) -> Result<(u64, u64), FileError> {
        let (_, found) = self.exists(to)?;
        match found {
            Some(EntryKind::Directory) if mode == WriteMode::Overwrite => {}
            Some(_) => return Err(FileError::system(Errno::EXIST, to)),
            None => {}
        }
        let mut listed = Vec::new();
        let every = List { recursive: true, ..List::new(from) };
        let end = self.walk(&every, DEPTH_OF_PATHS, watch, |entry| {
            match entry.kind {
                EntryKind::File | EntryKind::Directory => listed.push(entry),
                EntryKind::Symlink => {
                    return Err(beneath(Errno::LOOP, &join_written(from, entry.name.as_bytes())));
                }
                EntryKind::Other => {
                    return Err(special(&join_written(from, entry.name.as_bytes())));
                }
            }
            // A copy must not have what could not be written there.
            let copy = join_written(to, listed[listed.len() - 1].name.as_bytes());
            self.locate_to_write(&copy, LastLink::Follow).map(drop)
        })?;
        if let Some(cut) = end.cut {
            let (kind, reason) = match cut.by {
                CutBy::Name => (
                    ErrorKind::InvalidPath,
                    "a name or a path in it is too long for a copy".to_owned(),
                ),
                CutBy::Mount => (
                    ErrorKind::PathEscape,
                    format!("a file system is mounted in it: {}", cut.at.to_string_lossy()),
                ),
                _ => (
                    ErrorKind::TooLarge,
                    format!("too many entries to copy (max {})", self.list_entries),
                ),
            };
            return Err(FileError::rule(kind, reason, from));
        }
        // Directories that get their modes at the end: these forbid the owner to copy into them.
        let mut narrow = Vec::new();
        let mut mkdir = |from: &[u8], to: Vec<u8>, parents| {
            let mode = copied_mode(self.stat_at(from, LastLink::Follow)?.permissions);
            let request = Mkdir { parents, ..Mkdir::new(&*to) };
            let made = self.mkdir_with(&request, mode | Mode::RWXU)?;
            if made.created && !mode.contains(Mode::RWXU) {
                narrow.push((to, mode));
            }
            Ok::<_, FileError>(())
        };
        mkdir(from, to.to_vec(), true)?;
        let mut bytes = 0;
        for Entry { name, kind, .. } in &listed {
            watch.check()?;
            let [from, to] = [from, to].map(|top| join_written(top, name.as_bytes()));
            match kind {
                EntryKind::Directory => mkdir(&from, to, false)?,
                _ => bytes += self.copy_file(&from, &to, mode, watch)?,
            }
        }
        // The inner ones first, while they can be reached.
        for (directory, mode) in narrow.into_iter().rev() {
            let located = self.locate_to_write(&directory, LastLink::Follow)?;
            let opened = located.open_directory(&directory)?;
            fchmod(&opened, mode).map_err(|errno| beneath(errno, &directory))?;
        }
        Ok((listed.len() as u64 + 1, bytes))
    }

    fn copy_file(
        &self,
        from: &[u8],
        to: &[u8],
        mode: WriteMode,
        watch: &Watch,
    ) -> Result<u64, FileError> {
        let source = self.open(from, OpenMode::Read)?;
        let stat = fstat(&source.fd).map_err(|errno| FileError::system(errno, from))?;
        self.refuse_size(source.size, from)?;
        let mut writing = self.write(Write { mode, ..Write::new(to) }, Absent::Accept)?;
        writing.permissions = Some(copied_mode(stat.st_mode));
        writing.put_file(&source.fd, source.size, watch)?;
        Ok(writing.commit(watch)?.bytes)
    }
}

/// The mode of a copy: as the usual umask leaves it, and without set-id and sticky bits.
const fn copied_mode(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o755)
}
