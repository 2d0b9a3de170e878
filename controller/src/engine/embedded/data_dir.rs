//! The data directory: root's alone, on a mount that programs can be started from.
//!
//! `containers/` has the [records](super::records), `programs/` the helper and the agent, each by
//! its digest, and `mnt/` is where helpers mount what they make, each in a mount namespace of its
//! own: on the host it is always empty.

use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, FlockOperation, RenameFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::EmbeddedProblem;
use crate::state::private_folder;

/// How long a program that nobody uses any more is kept: some controller of another version may
/// have been started with it.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a process that is being started may keep a program open.
const CLOSING: Duration = Duration::from_secs(2);

/// A program that helpers are or run.
pub(super) struct Program<'a> {
    pub name: &'static str,
    pub bytes: &'a [u8],
    pub sha256: &'a str,
}

/// A data directory that can be used.
#[derive(Debug, Clone)]
pub(super) struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// Makes it where it is missing, and looks whether it can be used.
    pub fn open(path: &Path) -> Result<Self, EmbeddedProblem> {
        let failed = |source| EmbeddedProblem::DataDir { path: path.to_owned(), source };
        let dir = Self { path: path.to_owned() };
        private_folder(path).map_err(failed)?;
        let mount = rustix::fs::statvfs(path).map_err(|errno| failed(errno.into()))?;
        if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(EmbeddedProblem::NoExec { path: path.to_owned() });
        }
        for folder in ["containers", "programs", "mnt"] {
            private_folder(&path.join(folder)).map_err(failed)?;
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a program, which is written where it is missing.
    pub fn install(&self, program: &Program<'_>) -> Result<PathBuf, EmbeddedProblem> {
        let folder = self.path.join("programs");
        let path = folder.join(format!("{}-{}", program.name, program.sha256));
        let install = || {
            if let Some(there) = whole(&path, program.bytes) {
                let now = SystemTime::now();
                // It is in use: whoever tidies up sees that.
                if there.modified()?.elapsed().is_ok_and(|age| age > KEPT / 2) {
                    File::open(&path)?.set_modified(now)?;
                }
                return Ok(());
            }
            write_program(&folder, &path, program.bytes)?;
            forget_unused(&folder);
            Ok(())
        };
        install().map_err(|source| EmbeddedProblem::DataDir { path: path.clone(), source })?;
        Ok(path)
    }
}

/// The program that is there, where it is whole: its name has its digest.
fn whole(path: &Path, bytes: &[u8]) -> Option<Metadata> {
    let there = fs::symlink_metadata(path).ok()?;
    (there.is_file() && there.len() == bytes.len() as u64).then_some(there)
}

/// Under its name only once it is whole. One that somebody else has put there meanwhile stays: a
/// file that has lost its name cannot be mounted any more by whoever has opened it.
fn write_program(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = folder.join(format!("part-{}", crate::random_hex::<8>()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o555).open(&part)?;
        file.write_all(bytes)?;
        close(file, &part)?;
        match rustix::fs::renameat_with(CWD, &part, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if whole(path, bytes).is_some() => fs::remove_file(&part),
            Err(Errno::EXIST | Errno::INVAL) => fs::rename(&part, path),
            renamed => Ok(renamed?),
        }
    })();
    if written.is_err() {
        _ = fs::remove_file(&part);
    }
    written
}

/// Closes a program for good: one that is open for writing cannot be started (`ETXTBSY`), and a
/// process that another thread is just starting has a copy of every descriptor until its exec. A
/// lock is free only when the last copy is closed.
fn close(file: File, path: &Path) -> io::Result<()> {
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    drop(file);
    let file = File::open(path)?;
    let since = Instant::now();
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        && since.elapsed() < CLOSING
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Removes programs of other versions that nobody has started for long, and parts of them.
fn forget_unused(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age > KEPT) {
            _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    const PROGRAM: Program<'_> = Program { name: "agent", bytes: b"\x7fELF", sha256: "0123" };

    #[test]
    fn a_program_is_written_once_and_again_where_it_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join("data")).unwrap();
        let path = data.install(&PROGRAM).unwrap();
        assert_eq!(path.file_name().unwrap(), "agent-0123");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o555);
        let first = path.metadata().unwrap().ino();
        data.install(&PROGRAM).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        data.install(&PROGRAM).unwrap();
        assert_eq!(fs::read(&path).unwrap(), PROGRAM.bytes);
        assert_eq!(fs::read_dir(data.path().join("programs")).unwrap().count(), 1);
    }

    #[test]
    fn a_program_that_somebody_else_has_written_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join("data")).unwrap();
        let path = data.install(&PROGRAM).unwrap();
        let first = path.metadata().unwrap().ino();
        write_program(path.parent().unwrap(), &path, PROGRAM.bytes).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), first);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_program_is_closed_when_its_last_copy_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let mut file =
            File::options().write(true).create_new(true).mode(0o755).open(&path).unwrap();
        io::copy(&mut File::open("/bin/true").unwrap(), &mut file).unwrap();
        // What a child has between its fork and its exec.
        let copy = file.try_clone().unwrap();
        let busy = std::process::Command::new(&path).status().unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ExecutableFileBusy);
        std::thread::scope(|scope| {
            let (closing, is_closing) = std::sync::mpsc::channel();
            scope.spawn(move || {
                is_closing.recv().unwrap();
                drop(copy);
            });
            closing.send(()).unwrap();
            close(file, &path).unwrap();
            assert!(std::process::Command::new(&path).status().unwrap().success());
        });
    }

    #[test]
    fn what_nobody_has_used_for_long_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join("data")).unwrap();
        let old = data.install(&Program { sha256: "old", ..PROGRAM }).unwrap();
        let long_ago = SystemTime::now() - 2 * KEPT;
        File::open(&old).unwrap().set_modified(long_ago).unwrap();
        let new = data.install(&PROGRAM).unwrap();
        assert!(!old.exists() && new.exists());
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o755] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = DataDir::open(dir.path()).unwrap_err();
            assert!(matches!(error, EmbeddedProblem::DataDir { .. }), "{error}");
        }
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DataDir::open(&file).is_err());
    }
}
