//! The journal of a commit: what moves where. Once it has its name, the commit is certain to be
//! completed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use sandbox_api::Base64;
use sandbox_dirfd::FileStamp;
use serde::{Deserialize, Serialize};

/// The name of the journal in its stage.
pub(crate) const NAME: &str = "journal";
/// Its name while it is written.
const PART: &str = "journal.part";
/// Its version, and that of the layout of a stage.
const VERSION: u32 = 1;

/// The journal of a commit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Journal {
    version: u32,
    pub moves: Vec<Move>,
    /// Directories whose modes and times are set at the end.
    pub directories: Vec<DirectoryState>,
}

/// A change of one path. Each can be repeated: it is done if the inode is not in the copy any more, and
/// it is not made where something else changed the path.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Move {
    /// It is removed.
    Remove {
        path: Base64,
        before: OldEntry,
        #[serde(default)]
        below: Vec<RemovedChild>,
    },
    /// What has this inode in the copy is put where nothing is.
    Create { path: Base64, inode: u64 },
    /// What has this inode in the copy is put in the place of what was there.
    Replace {
        path: Base64,
        inode: u64,
        before: OldEntry,
        #[serde(default)]
        below: Vec<RemovedChild>,
    },
}

impl Move {
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Remove { path, .. } | Self::Create { path, .. } | Self::Replace { path, .. } => {
                &path.0
            }
        }
    }
}

/// What was at a path when the journal was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OldEntry {
    pub inode: u64,
    size: u64,
    modified: (i64, u64),
}

impl OldEntry {
    pub const fn of(stamp: FileStamp) -> Self {
        Self { inode: stamp.ino, size: stamp.size, modified: stamp.modified }
    }

    /// As it is in [`RemovedChild`]: of a directory only which one it is, because its entries are there too.
    pub fn below(stamp: FileStamp) -> Self {
        match stamp.is_directory() {
            true => Self { inode: stamp.ino, size: 0, modified: (0, 0) },
            false => Self::of(stamp),
        }
    }
}

/// What was in a directory that goes: it does not go with anything else in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RemovedChild {
    /// Relative to the directory.
    pub path: Base64,
    pub entry: OldEntry,
}

/// The mode and the modification time of a directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DirectoryState {
    pub path: Base64,
    /// Which one it is. The io dir itself has none: it is open.
    #[serde(default)]
    pub inode: Option<u64>,
    /// `None` keeps it.
    pub mode: Option<u32>,
    /// `None` keeps it.
    pub modified: Option<(i64, u64)>,
}

impl Journal {
    pub const fn new() -> Self {
        Self { version: VERSION, moves: Vec::new(), directories: Vec::new() }
    }

    /// Writes it into a stage and to the disk, without its name.
    pub fn write(&self, stage: BorrowedFd<'_>) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(stage, PART, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        // Not left to the sync of the file system alone, of which some (FUSE) know nothing.
        Ok(fsync(&file)?)
    }

    /// Gives it its name. When this returns it is there for good.
    pub fn begin(stage: BorrowedFd<'_>) -> rustix::io::Result<()> {
        renameat(stage, PART, stage, NAME)?;
        fsync(stage)
    }

    /// Whether it has its name, or may have it.
    pub fn is_written(stage: BorrowedFd<'_>) -> bool {
        statat(stage, NAME, AtFlags::SYMLINK_NOFOLLOW).err() != Some(Errno::NOENT)
    }

    /// Removes it from a stage: all of it is done.
    pub fn remove(stage: BorrowedFd<'_>) -> rustix::io::Result<()> {
        unlinkat(stage, NAME, AtFlags::empty())
    }

    /// Reads the journal of a stage; `None` if its commit has not started.
    pub fn read(stage: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut text = Vec::new();
        match openat(stage, NAME, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file?).read_to_end(&mut text)?,
        };
        let journal: Self = serde_json::from_slice(&text)?;
        match journal.version {
            VERSION => Ok(Some(journal)),
            other => Err(io::Error::other(format!("its journal has version {other}"))),
        }
    }
}
