//! The store of programs: agent and helper of this version in a file system in memory that is read-only
//! as a whole, made once per boot, and executed from by every process of this user, root.
//!
//! It is complete and read-only before it is mounted, so no process sees it otherwise: a process that is
//! killed while it makes one leaves an empty directory. A start uses a copy of the mount that is in no
//! directory, read-only too: no process of a sandbox has a path to it, and what it reaches by its own
//! `/proc/self/exe` it cannot change, because that takes the right to mount.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, StatVfsMountFlags, fchmod, flock, fstat,
    fstatfs, fstatvfs, mkdirat, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_reconfigure, fsconfig_set_flag,
    move_mount, open_tree, unmount,
};
use rustix::process::geteuid;
use sandbox_api::{GcMode, Stores};
use sandbox_dirfd::{Links, open_path, open_private_child};
use sandbox_helper::mounts::{self, NODEV, NOSUID, RDONLY, Reach, restrict};
use sha2::{Digest as _, Sha256};

use crate::agent::{AGENT, AGENT_SHA256, Content, HELPER, HELPER_SHA256};
use crate::failpoint::hold;
use crate::installed_files::has_content;

/// What it is below.
const RUN: &str = "/run";
/// The directories below that in which the stores are, one of each version: only root may enter them.
const FOLDERS: [&str; 2] = ["sandboxctl", "programs"];

/// The names of the programs.
pub const AGENT_NAME: &CStr = c"sandbox-agent";
pub const HELPER_NAME: &CStr = c"sandbox-helper";

/// The mode of a program: it is executed by users of any container.
const PROGRAM: Mode = Mode::from_raw_mode(0o555);
const FOLDER: Mode = Mode::from_raw_mode(0o700);
/// How long to wait for another process that makes the store, and for writers that a process which is
/// being started has copied. Making one takes a hundredth of that.
const BUSY: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(1);
/// Of a file system, as `statfs` has it.
const TMPFS: u64 = 0x0102_1994;

/// The directory of the stores. Only root may access it.
pub fn directory() -> PathBuf {
    FOLDERS.iter().fold(RUN.into(), |path: PathBuf, name| path.join(name))
}

/// Detaches stores, and returns their paths. What runs is not affected: a start that needs one makes it
/// again. None are there for a user other than root.
///
/// # Errors
///
/// If one cannot be detached.
pub fn detach(which: Stores, mode: GcMode) -> io::Result<Vec<PathBuf>> {
    Store::here().detach(which, mode)
}

/// Compares what is executed with what is embedded here, and says where it is, for people.
///
/// # Errors
///
/// If it is not the same.
pub fn examine() -> io::Result<String> {
    let store = Store::here();
    let path = store.path();
    let path = path.display();
    let refused = match geteuid().is_root() {
        true => store.is_intact(),
        false => Err(io::Error::other("only root has it")),
    };
    match refused {
        Ok(true) => Ok(format!("in memory, read-only at {path}: unchanged")),
        Ok(false) => Err(io::Error::other(format!(
            "the programs at {path} are not those of this version: `sandboxctl gc --all` removes them"
        ))),
        Err(error) => Ok(format!("in sealed memory of each process; no store: {error}")),
    }
}

/// A store of programs, which may be missing.
#[derive(Debug)]
pub struct Store<'a> {
    /// The directory that has `FOLDERS`.
    base: &'a Path,
    /// The name of its directory there, which is of its programs alone.
    name: String,
    programs: [(&'a CStr, Content<'a>); 2],
}

impl Store<'static> {
    /// That of the programs which are embedded here.
    pub fn here() -> Self {
        let digest = Sha256::digest([AGENT_SHA256, HELPER_SHA256].concat());
        Self {
            base: Path::new(RUN),
            name: sandbox_dirfd::hex(&digest[..8]),
            programs: [(AGENT_NAME, AGENT), (HELPER_NAME, HELPER)],
        }
    }
}

impl Store<'_> {
    /// The path at which it is mounted.
    pub fn path(&self) -> PathBuf {
        FOLDERS.iter().fold(self.base.to_owned(), |path, name| path.join(name)).join(&self.name)
    }

    /// Opens a program, to execute it. The store is made if it is missing.
    ///
    /// # Errors
    ///
    /// If this process may not mount, if the kernel lacks a call (before Linux 5.12), or if what is
    /// there is no store.
    pub fn open(&self, program: &CStr) -> io::Result<OwnedFd> {
        self.open_in(&self.mount()?, program)
    }

    /// A copy of its mount that is in no directory. The store is made if it is missing. To close the copy
    /// waits for all processors; what was opened in it stays open.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    pub fn mount(&self) -> io::Result<OwnedFd> {
        let folder = self.folder()?;
        loop {
            match self.copy(&folder)? {
                Some(tree) => return Ok(tree),
                // A `gc` of another version may detach it at once.
                None => locked(&folder, || self.make(&folder))?,
            }
        }
    }

    /// Opens a program in such a copy, to execute it.
    ///
    /// # Errors
    ///
    /// If what is there is not the program.
    pub fn open_in(&self, mount: &OwnedFd, program: &CStr) -> io::Result<OwnedFd> {
        let (name, bytes) = self.program(program);
        let opened =
            openat(mount, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, FOLDER)?;
        let stat = fstat(&opened)?;
        let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && Mode::from_raw_mode(stat.st_mode) == PROGRAM
            && stat.st_uid == 0
            && u64::try_from(stat.st_size) == Ok(bytes.size() as u64);
        if is_ours { Ok(opened) } else { Err(odd("its programs are others")) }
    }

    /// Whether its programs are what is embedded here, byte for byte.
    pub fn is_intact(&self) -> io::Result<bool> {
        for (name, content) in self.programs {
            let opened = self.open(name)?;
            let mut file = File::open(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
            if !has_content(&mut file, content)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn program(&self, program: &CStr) -> (&CStr, Content<'_>) {
        let [agent, helper] = self.programs;
        if program == helper.0 { helper } else { agent }
    }

    /// The directory of the stores.
    fn folder(&self) -> io::Result<OwnedFd> {
        let base = open_path(self.base, OFlags::PATH | OFlags::DIRECTORY, Links::Refuse)?;
        FOLDERS.iter().try_fold(base, |parent, name| open_private_child(parent, *name))
    }

    /// A copy of its mount that is in no directory; `None` if it is not mounted.
    fn copy(&self, folder: &OwnedFd) -> io::Result<Option<OwnedFd>> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = match open_tree(folder, &*self.name, flags) {
            Err(Errno::NOENT) => return Ok(None),
            tree => tree?,
        };
        if fstat(&tree)?.st_dev == fstat(folder)?.st_dev {
            // Nothing is mounted on the directory.
            return Ok(None);
        }
        // The mount can be written to, so this is said of the file system as a whole.
        let flags = fstatvfs(&tree)?.f_flag;
        if fstatfs(&tree)?.f_type as u64 != TMPFS || !flags.contains(StatVfsMountFlags::RDONLY) {
            return Err(odd("what is mounted there is not read-only"));
        }
        restrict(&tree, RDONLY | NOSUID | NODEV, Reach::Itself)?;
        Ok(Some(tree))
    }

    /// Makes it, unless another process has. The directory is locked.
    fn make(&self, folder: &OwnedFd) -> io::Result<()> {
        if self.copy(folder)?.is_some() {
            return Ok(());
        }
        match mkdirat(folder, &*self.name, FOLDER) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        point("locked");
        let bytes: usize = self.programs.iter().map(|(_, it)| it.size() + (64 << 10)).sum();
        let options = [
            ("noswap", String::new()),
            ("mode", "0700".to_owned()),
            ("size", bytes.to_string()),
            ("nr_inodes", "8".to_owned()),
        ];
        let create = |options| mounts::create("tmpfs", "sandboxctl", options, NOSUID | NODEV);
        // Kernels before Linux 6.4 do not know the first option.
        let (system, mount) = create(&options).or_else(|_| create(&options[1..]))?;
        for (name, content) in self.programs {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut file = File::from(openat(&mount, name, flags, PROGRAM)?);
            content.write_to(&mut file)?;
            // The umask may have removed bits.
            fchmod(&file, PROGRAM)?;
        }
        point("written");
        fsconfig_set_flag(&system, "ro")?;
        // Refused while anything is open for writing.
        wait_for(|| fsconfig_reconfigure(&system), Errno::BUSY)?;
        point("sealed");
        let unnamed = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&mount, c"", folder, &*self.name, unnamed)?;
        point("mounted");
        Ok(())
    }

    fn detach(&self, which: Stores, mode: GcMode) -> io::Result<Vec<PathBuf>> {
        let folders = FOLDERS.iter().fold(self.base.to_owned(), |path, name| path.join(name));
        // It is not created for this.
        if !geteuid().is_root() || !folders.is_dir() {
            return Ok(Vec::new());
        }
        let folder = self.folder()?;
        locked(&folder, || self.detach_from(&folder, &folders, which, mode))
    }

    fn detach_from(
        &self,
        folder: &OwnedFd,
        folders: &Path,
        which: Stores,
        mode: GcMode,
    ) -> io::Result<Vec<PathBuf>> {
        let mut detached = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = entry?.file_name().to_owned();
            let is_store = name.to_str().is_ok_and(sandbox_dirfd::is_random_hex::<8>);
            if !is_store
                || (which == Stores::OtherVersions && name.to_bytes() == self.name.as_bytes())
            {
                continue;
            }
            let path = folders.join(name.to_str().unwrap_or_default());
            if is_mounted(folder, &name)? {
                detached.push(path);
            }
            if mode == GcMode::Remove {
                let path = CString::new(format!("/proc/self/fd/{}/", folder.as_raw_fd()))?;
                let path = CString::new([path.to_bytes(), name.to_bytes()].concat())?;
                while is_mounted(folder, &name)? {
                    unmount(&*path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
                }
                unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
            }
        }
        if which == Stores::All && mode == GcMode::Remove {
            // Not if they have anything else.
            _ = fs::remove_dir(folders).and_then(|()| fs::remove_dir(self.base.join(FOLDERS[0])));
        }
        Ok(detached)
    }
}

/// Works while no other process makes or detaches a store.
fn locked<T>(folder: &OwnedFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    wait_for(|| flock(folder, FlockOperation::NonBlockingLockExclusive), Errno::WOULDBLOCK)?;
    let done = work();
    // A process that another thread is starting has a copy of the descriptor, which would hold it.
    _ = flock(folder, FlockOperation::Unlock);
    done
}

/// Whether a file system is mounted on a directory of this one.
fn is_mounted(folder: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let there = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(there.st_dev != fstat(folder)?.st_dev)
}

/// Where a test can hold this process.
fn point(name: &str) {
    hold(&format!("Store({name:?})"), || false);
}

/// Tries again for a while if something else holds what is needed.
fn wait_for(mut attempt: impl FnMut() -> Result<(), Errno>, busy: Errno) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match attempt() {
            Err(error) if error == busy && since.elapsed() < BUSY => std::thread::sleep(POLL),
            done => return Ok(done?),
        }
    }
}

fn odd(why: &str) -> io::Error {
    io::Error::other(format!("the store of programs cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::Command;

    use rustix::mount::MountFlags;

    /// A directory with a store whose agent is a shell.
    struct Place {
        dir: tempfile::TempDir,
        agent: Vec<u8>,
        helper: Vec<u8>,
    }

    fn programs<'a>(agent: &'a [u8], helper: &'a [u8]) -> [(&'a CStr, Content<'a>); 2] {
        [(AGENT_NAME, Content::Plain(agent)), (HELPER_NAME, Content::Plain(helper))]
    }

    impl Place {
        /// `None` for a user who has no store.
        fn new() -> Option<Self> {
            geteuid().is_root().then(|| Self {
                dir: tempfile::tempdir().unwrap(),
                agent: fs::read("/bin/sh").unwrap(),
                helper: fs::read("/bin/true").unwrap(),
            })
        }

        fn store(&self, version: u8) -> Store<'_> {
            Store {
                base: self.dir.path(),
                name: format!("{version:016x}"),
                programs: programs(&self.agent, &self.helper),
            }
        }

        fn mounts(&self) -> Vec<String> {
            let table = fs::read("/proc/self/mountinfo").unwrap();
            let table = String::from_utf8_lossy(&table);
            let here = self.dir.path().to_str().unwrap();
            table.lines().filter(|line| line.contains(here)).map(str::to_owned).collect()
        }

        /// Removes the stores, of which nothing is left.
        fn end(self) {
            self.store(1).detach(Stores::All, GcMode::Remove).unwrap();
            assert_eq!(self.mounts(), [""; 0]);
            assert!(!self.dir.path().join(FOLDERS[0]).exists());
        }
    }

    fn path(opened: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", opened.as_raw_fd())
    }

    #[test]
    fn many_first_starts_make_one_store_and_execute_from_it() {
        let Some(place) = Place::new() else { return };
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let helper = place.store(1).open(HELPER_NAME).unwrap();
                    assert!(Command::new(path(&helper)).status().unwrap().success());
                });
            }
        });
        let mounts = place.mounts();
        assert_eq!(mounts.len(), 1, "{mounts:?}");
        assert!(place.store(1).is_intact().unwrap());
        place.end();
    }

    #[test]
    fn no_process_changes_what_is_executed_not_even_as_root() {
        let Some(place) = Place::new() else { return };
        let store = place.store(1);
        let agent = store.open(AGENT_NAME).unwrap();
        let refused = |done: io::Result<()>, what: &str| {
            let error = done.expect_err(what);
            assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
        };
        let attack = |step: &str| {
            for flags in
                [OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC, OFlags::WRONLY | OFlags::APPEND]
            {
                let opened = rustix::fs::open(path(&agent), flags, Mode::empty());
                refused(opened.map(|_| ()).map_err(io::Error::from), &format!("{step}: {flags:?}"));
            }
            // By a descriptor that is allowed to be read.
            let file = File::open(path(&agent)).unwrap();
            refused(fchmod(&file, Mode::RWXU).map_err(io::Error::from), step);
            refused(file.set_modified(std::time::SystemTime::now()), step);
            refused(std::os::unix::fs::fchown(&file, Some(1), Some(1)), step);
            // As what executes it.
            let script = "for it in /proc/$$/exe /proc/$$/fd/3; do
                    (echo x >$it) && echo written
                    (echo x >>$it) && echo appended
                    chmod 777 $it && echo opened
                    truncate -s 1 $it && echo truncated
                done 3</proc/$$/exe";
            let done = Command::new(path(&agent)).args(["-c", script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&done.stdout), "", "{step}: {done:?}");
            let refusals = String::from_utf8_lossy(&done.stderr).into_owned();
            let count = |what| refusals.matches(what).count();
            // What runs is busy, if that is looked at first.
            let refused = count("Read-only file system") + count("Text file busy");
            assert_eq!(refused, 8, "{step}: {refusals}");
        };
        attack("as it is");
        let at = store.path();
        for what in ["sandbox-agent", "more"] {
            refused(fs::write(at.join(what), "x"), what);
        }
        refused(fs::remove_file(at.join("sandbox-agent")), "removed");
        assert!(store.is_intact().unwrap());
        // Root of the host, who may mount, can have another one. What is open stays as it was.
        rustix::mount::mount_remount(&at, MountFlags::empty(), c"").unwrap();
        let attempt = fs::write(at.join("sandbox-helper"), "x");
        attempt.expect("root of the host may");
        attack("its file system is writable");
        assert!(store.open(AGENT_NAME).is_err(), "what is not read-only is not used");
        place.end();
    }

    #[test]
    fn what_is_no_store_is_not_used() {
        let Some(place) = Place::new() else { return };
        let store = place.store(1);
        let outer = place.dir.path().join(FOLDERS[0]);
        let elsewhere = place.dir.path().join("elsewhere");
        // A link, and a directory that others may enter.
        fs::create_dir(&elsewhere).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&elsewhere, &outer).unwrap();
        store.open(AGENT_NAME).unwrap_err();
        fs::remove_file(&outer).unwrap();
        fs::create_dir(&outer).unwrap();
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o755)).unwrap();
        store.open(AGENT_NAME).unwrap_err();
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o700)).unwrap();
        // A link in place of the store itself, and one that has other programs.
        drop(store.folder().unwrap());
        symlink(&elsewhere, store.path()).unwrap();
        store.open(AGENT_NAME).unwrap_err();
        fs::remove_file(store.path()).unwrap();
        drop(store.open(AGENT_NAME).unwrap());
        let longer = [&place.agent[..], b"more"].concat();
        let other = Store { programs: programs(&longer, &longer), ..place.store(1) };
        other.open(AGENT_NAME).unwrap_err();
        let mut same_length = place.helper.clone();
        *same_length.last_mut().unwrap() ^= 1;
        let other = Store { programs: programs(&place.agent, &same_length), ..place.store(1) };
        assert!(!other.is_intact().unwrap());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        place.end();
    }

    #[test]
    fn stores_of_other_versions_are_detached_and_this_one_only_with_all() {
        let Some(place) = Place::new() else { return };
        let (mine, other) = (place.store(1), place.store(2));
        let running = other.open(AGENT_NAME).unwrap();
        drop(mine.open(AGENT_NAME).unwrap());
        for mode in [GcMode::DryRun, GcMode::Remove] {
            assert_eq!(mine.detach(Stores::OtherVersions, mode).unwrap(), [other.path()]);
        }
        assert_eq!(
            mine.detach(Stores::OtherVersions, GcMode::Remove).unwrap(),
            [""; 0].map(PathBuf::from)
        );
        let done = Command::new(path(&running)).args(["-c", "exit 3"]).status().unwrap();
        assert_eq!(done.code(), Some(3), "what is open can still be executed");
        assert_eq!(mine.detach(Stores::All, GcMode::Remove).unwrap(), [mine.path()]);
        place.end();
    }
}
