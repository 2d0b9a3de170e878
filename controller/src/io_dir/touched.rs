//! `files_touched`: the final state of what a run changed.
//!
//! The agent announces each path before it changes it, and is trusted with nothing else. The
//! controller itself checks the result and the size of each path, through the io dir's dirfd and
//! under the same path rules as the agent.

use std::collections::HashMap;
use std::os::fd::AsFd;

use rustix::fs::FileType;
use rustix::io::Errno;
use sandbox_api::{FileOp, FilesTouched, TouchedFile, TouchedSource};
use sandbox_dirfd::Root;
use sandbox_protocol::message::{Change, Touched};
use sandbox_protocol::path::GuestPath;

/// The maximum number of listed paths.
const MAX_FILES: usize = 10_000;
/// The maximum size of all remembered paths, so that a hostile agent cannot fill the memory.
const MAX_PATH_BYTES: usize = 8 << 20;

/// The agent's announcements, by path.
#[derive(Debug, Default)]
pub(crate) struct TouchedPaths {
    paths: HashMap<GuestPath, TouchedEntry>,
    bytes: usize,
    truncated: bool,
}

/// The announced changes of a path, and the state before the last one, which may be withdrawn.
#[derive(Debug)]
struct TouchedEntry {
    changes: Changes,
    before: Option<Changes>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Changes {
    /// Whether it existed before the first change.
    existed: bool,
    write: bool,
    append: bool,
    remove: bool,
}

impl TouchedPaths {
    /// Handles an announcement; an error is a breach.
    pub fn record(&mut self, touched: &Touched, mount: Option<&GuestPath>) -> Result<(), String> {
        let Touched { path, existed, change, .. } = touched;
        let path =
            GuestPath::new(path).map_err(|error| format!("a changed path is invalid: {error}"))?;
        let is_inside =
            |mount: &GuestPath| path.strip_prefix(mount).is_some_and(|it| !it.is_empty());
        if !mount.is_some_and(is_inside) {
            return Err("a changed path outside the mounts".to_owned());
        }
        let length = path.as_bytes().len();
        let before = self.paths.remove(&path);
        if before.is_some() {
            self.bytes -= length;
        }
        let entry = match (change, before) {
            (Change::Failed, None) => None,
            (Change::Failed, Some(entry)) => {
                entry.before.map(|changes| TouchedEntry { changes, before: None })
            }
            (change, entry) => {
                let before = entry.map(|entry| entry.changes);
                let first = Changes { existed: *existed, ..Changes::default() };
                let changes = before.unwrap_or(first).and(*change);
                Some(TouchedEntry { changes, before })
            }
        };
        let Some(entry) = entry else { return Ok(()) };
        if self.paths.len() >= MAX_FILES || self.bytes + length > MAX_PATH_BYTES {
            self.truncated = true;
            return Ok(());
        }
        self.bytes += length;
        self.paths.insert(path, entry);
        Ok(())
    }

    /// Whether nothing was announced, so that there is nothing to check.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.truncated
    }

    /// Checks every path. `root` is the directory mounted at `mount`. It may take long on a slow
    /// filesystem.
    pub fn scan(&self, root: impl AsFd, mount: &GuestPath) -> FilesTouched {
        let Ok(root) = Root::new(root.as_fd()) else {
            return FilesTouched { truncated: true, ..FilesTouched::default() };
        };
        let mut truncated = self.truncated;
        let mut files: Vec<(&[u8], TouchedFile)> = self
            .paths
            .iter()
            .filter_map(|(path, entry)| {
                let name = path.strip_prefix(mount)?;
                let Some(now) = state(&root, name) else {
                    truncated = true;
                    return None;
                };
                let (op, bytes) = entry.changes.outcome(now)?;
                Some((name, TouchedFile::new(name, op, bytes)))
            })
            .collect();
        files.sort_by_key(|&(name, _)| name);
        FilesTouched {
            files: files.into_iter().map(|(_, file)| file).collect(),
            source: TouchedSource::Observed,
            truncated,
        }
    }
}

/// What is at a path now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing.
    Absent,
    /// A regular file of this size.
    File(u64),
    /// A directory.
    Directory,
    /// A link, a FIFO, a socket, a device.
    Other,
}

impl Changes {
    const fn and(mut self, change: Change) -> Self {
        match change {
            Change::Write => self.write = true,
            Change::Append => self.append = true,
            Change::Remove => self.remove = true,
            Change::Failed => {}
        }
        self
    }

    /// What happened to the path, and its size; `None` if it is not to be listed.
    const fn outcome(self, now: State) -> Option<(FileOp, u64)> {
        let size = match now {
            State::Absent => {
                // An announced change that was never made leaves no trace: the path did not exist
                // before, and does not exist now.
                let gone = self.existed || self.remove;
                return if gone { Some((FileOp::Remove, 0)) } else { None };
            }
            State::Directory => return None,
            State::File(size) => size,
            State::Other => 0,
        };
        if self.append && !self.write && !self.remove && self.existed {
            Some((FileOp::Append, size))
        } else if self.write || self.append {
            Some((FileOp::Write, size))
        } else {
            // Only its removal was announced, but it still exists.
            None
        }
    }
}

/// `None` if it cannot be checked: a link or another filesystem is in the way now.
fn state(root: &Root<'_>, name: &[u8]) -> Option<State> {
    match root.stat(name).map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_size)) {
        Ok((FileType::RegularFile, size)) => Some(State::File(u64::try_from(size).unwrap_or(0))),
        Ok((FileType::Directory, _)) => Some(State::Directory),
        Ok(_) => Some(State::Other),
        Err(Errno::NOENT | Errno::NOTDIR) => Some(State::Absent),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
