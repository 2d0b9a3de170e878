//! Files to mount into containers, for engines that only accept files: the agent and its
//! companions, each in a private directory under its digest.

use std::fs::{File, Metadata, Permissions};
use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::agent::{Agent, Content};

/// How long an unused file is kept: a controller of a different version may still use it.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a process that is being started may keep an executable open.
const CLOSING: Duration = Duration::from_secs(2);

/// How much is compared at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The mode of an executable for all users.
const PROGRAM: u32 = 0o555;
/// The mode of a file that all users may read.
pub(super) const TEXT: u32 = 0o444;

/// A file to mount into containers.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstalledFile<'a> {
    pub name: &'a str,
    pub content: Content<'a>,
    pub sha256: &'a str,
    /// [`PROGRAM`] or [`TEXT`].
    pub mode: u32,
}

/// The agent.
pub(super) fn agent(agent: &Agent) -> InstalledFile<'_> {
    InstalledFile {
        name: "sandbox-agent",
        content: agent.content(),
        sha256: agent.sha256(),
        mode: PROGRAM,
    }
}

/// Returns the path of a file in a private directory. It is written if it is missing or wrong; its
/// content is compared each time. Who can access the directory is the caller's responsibility.
pub(super) fn install(folder: &Path, part: &InstalledFile<'_>) -> io::Result<PathBuf> {
    let path = folder.join(format!("{}-{}", part.name, part.sha256));
    if let Some(there) = intact(&path, part) {
        // Marks it as in use for the cleanup.
        if there.modified()?.elapsed().is_ok_and(|age| age > KEPT / 2) {
            File::open(&path)?.set_modified(SystemTime::now())?;
        }
    } else {
        write(folder, &path, part)?;
        forget_unused(folder);
    }
    Ok(path)
}

/// Opens the existing file, if it belongs to this user and has the right mode and content.
/// Comparing the content is faster than a digest, and just as reliable.
fn intact(path: &Path, part: &InstalledFile<'_>) -> Option<Metadata> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let there = file.metadata().ok()?;
    let is_ours = there.is_file()
        && there.uid() == rustix::process::geteuid().as_raw()
        && there.len() == part.content.size() as u64
        && there.mode() & 0o7777 == part.mode;
    (is_ours && has_content(&mut file, part.content).ok()?).then_some(there)
}

/// Whether the file has this content from the current position to its end.
pub(super) fn has_content(file: &mut File, content: Content<'_>) -> io::Result<bool> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut content = content.open();
    loop {
        let expected = content.fill_buf()?;
        // At the end, whether there is another byte.
        let most = expected.len().clamp(1, PIECE_BYTES);
        let length = file.read(&mut piece[..most])?;
        if length == 0 {
            return Ok(expected.is_empty());
        }
        if expected.get(..length) != Some(&piece[..length]) {
            return Ok(false);
        }
        content.consume(length);
    }
}

/// Renamed to its name only once it is complete. If someone else has created the file meanwhile,
/// theirs stays: a file that was unlinked can no longer be mounted by a process that has it open.
fn write(folder: &Path, path: &Path, part: &InstalledFile<'_>) -> io::Result<()> {
    let unfinished = folder.join(format!("part-{}", sandbox_dirfd::random_hex::<8>()));
    let written = (|| {
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        part.content.write_to(&mut file)?;
        // Not with the mode at creation, from which the umask may remove bits.
        file.set_permissions(Permissions::from_mode(part.mode))?;
        close(file, &unfinished)?;
        match rustix::fs::renameat_with(CWD, &unfinished, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if intact(path, part).is_some() => fs::remove_file(&unfinished),
            Err(Errno::EXIST | Errno::INVAL) => fs::rename(&unfinished, path),
            renamed => Ok(renamed?),
        }
    })();
    if written.is_err() {
        _ = fs::remove_file(&unfinished);
    }
    written
}

/// Closes an executable for good: one that is open for writing cannot be started (`ETXTBSY`), and a
/// process that another thread is just starting has a copy of every descriptor until its exec. The
/// lock is only released when the last copy is closed.
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

/// Removes executables of other versions that were not used for a long time, and incomplete files.
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

    const BYTES: &[u8] = b"\x7fELF";
    const AGENT: InstalledFile<'_> = InstalledFile {
        name: "agent",
        content: Content::Plain(BYTES),
        sha256: "0123",
        mode: PROGRAM,
    };

    #[test]
    fn a_program_is_written_once_and_again_where_it_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = install(dir.path(), &AGENT).unwrap();
        assert_eq!(path.file_name().unwrap(), "agent-0123");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o555);
        let first = path.metadata().unwrap().ino();
        install(dir.path(), &AGENT).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        install(dir.path(), &AGENT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), BYTES);
        // Of the same size and mode, like one made by an attacker who wants it to be executed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "#!/x").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(PROGRAM)).unwrap();
        install(dir.path(), &AGENT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), BYTES);
        // A link to a file that is currently correct.
        fs::rename(&path, dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        install(dir.path(), &AGENT).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_file(dir.path().join("other")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_program_that_another_process_has_written_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = install(dir.path(), &AGENT).unwrap();
        let first = path.metadata().unwrap().ino();
        write(dir.path(), &path, &AGENT).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), first);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_compared_with_what_is_packed_to_its_last_byte() {
        let content = crate::agent::HELPER;
        let bytes = content.to_vec();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let is_same = |there: &[u8]| {
            fs::write(&path, there).unwrap();
            has_content(&mut File::open(&path).unwrap(), content).unwrap()
        };
        assert!(is_same(&bytes));
        let mut other = bytes.clone();
        *other.last_mut().unwrap() ^= 1;
        for other in
            [&other[..], &bytes[1..], &bytes[..bytes.len() - 1], &[&bytes[..], b"x"].concat(), b""]
        {
            assert!(!is_same(other), "{} bytes", other.len());
        }
        let mut written = File::create(&path).unwrap();
        content.write_to(&mut written).unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn a_program_is_closed_when_its_last_copy_is() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let dir = tempfile::tempdir().unwrap();
        // Again, where a busy machine gave the thread below no time for as long as it was waited for.
        let is_closed = (0..10).any(|number| {
            let path = dir.path().join(number.to_string());
            let mut file =
                File::options().write(true).create_new(true).mode(0o755).open(&path).unwrap();
            io::copy(&mut File::open("/bin/true").unwrap(), &mut file).unwrap();
            // The descriptor that a child has between its fork and its exec.
            let copy = file.try_clone().unwrap();
            let busy = std::process::Command::new(&path).status().unwrap_err();
            assert_eq!(busy.kind(), io::ErrorKind::ExecutableFileBusy);
            let is_dropped = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (closing, is_closing) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    is_closing.recv().unwrap();
                    drop(copy);
                    is_dropped.store(true, Ordering::SeqCst);
                });
                closing.send(()).unwrap();
                close(file, &path).unwrap();
                let was_dropped = is_dropped.load(Ordering::SeqCst);
                match std::process::Command::new(&path).status() {
                    Err(error) if error.kind() == busy.kind() && !was_dropped => false,
                    status => status.unwrap().success(),
                }
            })
        });
        assert!(is_closed, "it cannot be executed");
    }

    #[test]
    fn unused_installed_files_expire() {
        let dir = tempfile::tempdir().unwrap();
        let old = install(dir.path(), &InstalledFile { sha256: "old", ..AGENT }).unwrap();
        let long_ago = SystemTime::now() - 2 * KEPT;
        File::open(&old).unwrap().set_modified(long_ago).unwrap();
        let new = install(dir.path(), &AGENT).unwrap();
        assert!(!old.exists() && new.exists());
    }
}
