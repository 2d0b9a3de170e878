//! Watched directories: what the kernel reports of them (inotify), as changes with names relative to the
//! directory that was asked for.
//!
//! One instance serves all watches of a sandbox: a user of the machine has few. A directory is watched
//! before it is listed, so that nothing in a new one is missed: what is found there is reported as
//! created, and what the kernel reports of the same names is left out. Temporary files of the agent, here
//! and in other sandboxes, are never reported. A new file that one becomes is created, with all of its
//! content, and one that it replaces is written.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use sandbox_dirfd::retry;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_WATCH_DEPTH, MAX_WATCHED_DIRECTORIES};
use sandbox_protocol::message::{self, ChangedEntry, Changes, EntryKind, FileChange};
use sandbox_protocol::path::{GuestPath, join_written};

use super::access::Files;
use super::entries::{read_directory, read_watched};
use super::error::FileError;
use super::names::kind_of;
use super::temporary::is_temporary;
use super::watch::Watch;
use crate::stop::{StopFlag, StopReason};

/// The most changes of a watch that wait to be sent, and the most bytes of their names. Older ones are
/// omitted.
const MOST_WAITING: usize = 4096;
const MOST_WAITING_BYTES: usize = 1 << 20;
/// The most entries of a new directory that are reported as created.
const MOST_FOUND: usize = 4096;
/// Among how many of the latest changes an earlier write of the same file is looked for.
const NEAR: usize = 16;
/// What is read of the kernel's reports at one time: each may mean a directory to list.
const READ_BYTES: usize = 4 << 10;

/// The changes that the kernel reports.
const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    // Not what is written to files that have no name.
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// The watches of a sandbox, by the ids of their requests.
pub struct Watches {
    inotify: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watches: BTreeMap<u64, Watched>,
    /// By the kernel's number of each.
    directories: HashMap<i32, Places>,
    /// What was reported of new directories, and may be once more by the kernel.
    found: HashSet<(i32, Vec<u8>)>,
    /// The rename of a temporary file of which the other half is to come.
    temporary: Option<u32>,
}

/// The watches that a directory is in, each with its path there. It is in a watch once.
type Places = Vec<(u64, Vec<u8>)>;

struct Watched {
    files: Arc<Files>,
    path: GuestPath,
    is_recursive: bool,
    /// The kernel's number of the directory itself.
    root: i32,
    directories: usize,
    /// Whether its changes are reported already.
    is_on: bool,
    is_over: bool,
    waiting: VecDeque<ChangedEntry>,
    waiting_bytes: usize,
    omitted: u64,
}

impl Files {
    /// Opens a directory to be read and watched.
    pub(super) fn open_directory(&self, written: &[u8]) -> Result<(GuestPath, OwnedFd), FileError> {
        let located = self.locate_directory(written)?;
        let directory = located.open_directory(written)?;
        Ok((located.path, directory))
    }
}

impl Watches {
    /// Starts without watches.
    ///
    /// # Errors
    ///
    /// If the kernel has no instance left for this user.
    pub fn new() -> rustix::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, state: Mutex::default() })
    }

    /// Begins the watch `id`. It is [turned on](Self::turn_on) by another call.
    ///
    /// # Errors
    ///
    /// [`FileError`] of the directory, of a directory below it that cannot be listed, or of `time`; `busy`
    /// if the kernel watches no more for this user. Nothing is watched then.
    pub fn begin(
        &self,
        id: u64,
        files: Arc<Files>,
        request: &message::Watch,
        time: &Watch,
    ) -> Result<(), FileError> {
        let written = request.path.as_bytes();
        let (path, directory) = files.open_directory(written)?;
        {
            let mut state = self.state.lock().unwrap();
            let watched = Watched {
                files,
                path,
                is_recursive: request.recursive,
                root: -1,
                directories: 0,
                is_on: false,
                is_over: false,
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                omitted: 0,
            };
            state.watches.insert(id, watched);
            match state.add(&self.inotify, id, b"", &directory) {
                Ok(number) => {
                    state.watches.get_mut(&id).expect("it was added").root = number;
                }
                Err(errno) => {
                    state.remove(&self.inotify, id);
                    return Err(refused(errno, written));
                }
            }
        }
        let listed = if request.recursive { self.list(id, directory, time) } else { Ok(()) };
        listed.inspect_err(|_| self.state.lock().unwrap().remove(&self.inotify, id))
    }

    /// Adds the directories below one that is watched. The lock is free while one is listed.
    fn list(&self, id: u64, top: OwnedFd, time: &Watch) -> Result<(), FileError> {
        let mut pending = vec![(Vec::new(), Some(top))];
        while let Some((path, opened)) = pending.pop() {
            time.check()?;
            let opened = match opened {
                Some(directory) => Some(directory),
                None => {
                    let mut state = self.state.lock().unwrap();
                    state.enter(&self.inotify, id, &path).map(|(_, directory)| directory)
                }
            };
            let Some(directory) = opened else { continue };
            let mut is_cut = false;
            let read = read_watched(&directory, time, |name, kind| {
                if kind == FileType::Directory {
                    match pending.len() < MAX_WATCHED_DIRECTORIES {
                        true => pending.push((join_written(&path, name), None)),
                        false => is_cut = true,
                    }
                }
            })?;
            if is_cut || read.is_err_and(|errno| errno != Errno::NOENT) {
                self.state.lock().unwrap().omit(id);
            }
        }
        Ok(())
    }

    /// Has the changes of a watch reported from now on, unless it was stopped: then it is removed.
    pub fn turn_on(&self, id: u64, stop: &StopFlag) -> bool {
        let mut state = self.state.lock().unwrap();
        if stop.reason() != StopReason::None {
            state.remove(&self.inotify, id);
            return false;
        }
        state.watches.get_mut(&id).map(|watched| watched.is_on = true).is_some()
    }

    /// Ends a watch that was turned on; returns whether there was one.
    pub fn end(&self, id: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        let is_on = state.watches.get(&id).is_some_and(|watched| watched.is_on);
        if is_on {
            state.remove(&self.inotify, id);
        }
        is_on
    }

    /// Reads what the kernel reports; returns whether there may be more, because the time was over.
    pub fn read(&self, until: Instant) -> bool {
        let mut state = self.state.lock().unwrap();
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            if reader.is_buffer_empty() && Instant::now() >= until {
                return true;
            }
            match reader.next() {
                Ok(event) => state.take(&self.inotify, &event),
                Err(Errno::INTR) => {}
                // There is no more.
                Err(_) => break,
            }
        }
        state.found = HashSet::new();
        false
    }

    /// The changes that were read and not taken yet, each with whether its directory is gone: there is
    /// nothing more to come then.
    pub fn take(&self) -> Vec<(Changes, bool)> {
        let mut state = self.state.lock().unwrap();
        let mut reports = Vec::new();
        for (&id, watched) in &mut state.watches {
            let Watched { waiting, omitted, is_over, .. } = watched;
            if watched.is_on && (!waiting.is_empty() || *omitted > 0 || *is_over) {
                let (omitted, entries) = (std::mem::take(omitted), std::mem::take(waiting).into());
                reports.push((Changes { request: id, omitted, entries }, *is_over));
                watched.waiting_bytes = 0;
            }
        }
        reports
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Why the kernel watches no more.
fn refused(errno: Errno, written: &[u8]) -> FileError {
    match errno {
        Errno::NOSPC | Errno::NOMEM => {
            let reason = "the kernel watches no more directories for this user";
            FileError::rule(ErrorKind::Busy, reason, written)
        }
        errno => FileError::system(errno, written),
    }
}

impl State {
    /// Has the kernel watch a directory for a watch.
    fn add(
        &mut self,
        inotify: &OwnedFd,
        id: u64,
        path: &[u8],
        directory: &OwnedFd,
    ) -> rustix::io::Result<i32> {
        let by_descriptor = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let number = retry(|| inotify::add_watch(inotify, &*by_descriptor, MASK))?;
        let places = self.directories.entry(number).or_default();
        match places.iter_mut().find(|(of, _)| *of == id) {
            // It was renamed.
            Some((_, known)) => *known = path.to_vec(),
            None => {
                places.push((id, path.to_vec()));
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.directories += 1;
                }
            }
        }
        Ok(number)
    }

    /// Adds a directory below a watched one; `None` if it is not there or cannot be watched.
    fn enter(&mut self, inotify: &OwnedFd, id: u64, path: &[u8]) -> Option<(i32, OwnedFd)> {
        let watched = self.watches.get(&id)?;
        let depth = path.iter().filter(|&&byte| byte == b'/').count() + 1;
        if watched.directories >= MAX_WATCHED_DIRECTORIES || depth > MAX_WATCH_DEPTH {
            self.omit(id);
            return None;
        }
        let written = join_written(watched.path.as_bytes(), path);
        let opened = match watched.files.open_directory(&written) {
            Ok((_, directory)) => self.add(inotify, id, path, &directory).map(|it| (it, directory)),
            // Gone, or something else by now, which is reported.
            Err(error) if error.is_absence() || error.kind == ErrorKind::Symlink => return None,
            Err(_) => Err(Errno::ACCESS),
        };
        if opened.is_err() {
            self.omit(id);
        }
        opened.ok()
    }

    /// Adds a directory that appeared in a watched one, with all below it, and reports what is there.
    fn discover(&mut self, inotify: &OwnedFd, id: u64, top: Vec<u8>) {
        let (mut pending, mut found) = (vec![top], 0);
        while let Some(path) = pending.pop() {
            let Some((number, directory)) = self.enter(inotify, id, &path) else { continue };
            let mut names = Vec::new();
            let read = read_directory(&directory, std::convert::identity, |name, kind| {
                if found == MOST_FOUND {
                    return Err(Errno::OVERFLOW);
                }
                if !is_temporary(name) {
                    found += 1;
                    names.push((name.to_vec(), kind));
                }
                Ok(())
            });
            if read.is_err_and(|errno| errno != Errno::NOENT) {
                self.omit(id);
            }
            for (name, kind) in names {
                let below = join_written(&path, &name);
                let is_written = kind == FileType::RegularFile
                    && statat(&directory, &*name, AtFlags::SYMLINK_NOFOLLOW)
                        .is_ok_and(|stat| stat.st_size > 0);
                self.push(id, &below, FileChange::Create, Some(kind_of(kind)));
                if is_written {
                    self.push(id, &below, FileChange::Write, Some(kind_of(kind)));
                }
                self.found.insert((number, name));
                if kind == FileType::Directory {
                    pending.push(below);
                }
            }
        }
    }

    /// Removes a directory from a watch, with all below it.
    fn leave(&mut self, inotify: &OwnedFd, id: u64, top: &[u8]) {
        self.remove_places(inotify, id, |path| {
            path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        });
    }

    /// Removes a watch.
    fn remove(&mut self, inotify: &OwnedFd, id: u64) {
        self.remove_places(inotify, id, |_| true);
        self.watches.remove(&id);
    }

    fn remove_places(&mut self, inotify: &OwnedFd, id: u64, is_meant: impl Fn(&[u8]) -> bool) {
        let Self { watches, directories, .. } = self;
        let mut removed = 0;
        directories.retain(|&number, places| {
            let before = places.len();
            places.retain(|(of, path)| *of != id || !is_meant(path));
            removed += before - places.len();
            if places.is_empty() {
                // The kernel may have done it already.
                _ = inotify::remove_watch(inotify, number);
            }
            !places.is_empty()
        });
        if let Some(watched) = watches.get_mut(&id) {
            watched.directories = watched.directories.saturating_sub(removed);
        }
    }

    /// Notes that something of a watch is missing.
    fn omit(&mut self, id: u64) {
        if let Some(watched) = self.watches.get_mut(&id) {
            watched.omitted += 1;
        }
    }

    fn push(&mut self, id: u64, name: &[u8], change: FileChange, kind: Option<EntryKind>) {
        if let Some(watched) = self.watches.get_mut(&id) {
            watched.push(name, change, kind);
        }
    }

    /// Takes one report of the kernel.
    fn take(&mut self, inotify: &OwnedFd, event: &inotify::Event<'_>) {
        let (flags, number) = (event.events(), event.wd());
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.watches.values_mut().for_each(|watched| watched.omitted += 1);
            return;
        }
        let Some(name) = event.file_name().map(|name| name.to_bytes()) else {
            return self.take_own(number, flags);
        };
        if is_temporary(name) {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.temporary = Some(event.cookie());
            }
            return;
        }
        let Some(places) = self.directories.get(&number).cloned() else { return };
        let is_new = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        let change = if is_new {
            let was_temporary = flags.contains(ReadFlags::MOVED_TO)
                && self.temporary.take_if(|cookie| *cookie == event.cookie()).is_some();
            if self.found.remove(&(number, name.to_vec())) {
                return;
            }
            if was_temporary { FileChange::Write } else { FileChange::Create }
        } else if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            // What has the name next is another entry than the one that was found.
            self.found.remove(&(number, name.to_vec()));
            let is_moved = flags.contains(ReadFlags::MOVED_FROM);
            if is_moved { FileChange::Rename } else { FileChange::Remove }
        } else if flags.contains(ReadFlags::ATTRIB) {
            FileChange::Chmod
        } else if flags.contains(ReadFlags::MODIFY) {
            FileChange::Write
        } else {
            return;
        };
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let kind = is_directory.then_some(EntryKind::Directory);
        for (id, path) in places {
            let Some(watched) = self.watches.get_mut(&id) else { continue };
            let below = join_written(&path, name);
            if flags.contains(ReadFlags::ATTRIB) && watched.is_unnamed(name, &below) {
                continue;
            }
            watched.push(&below, change, kind);
            if !is_directory || !watched.is_recursive {
                continue;
            }
            if is_new {
                self.discover(inotify, id, below);
            } else if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
                self.leave(inotify, id, &below);
            }
        }
    }

    /// Takes a report of a directory itself.
    fn take_own(&mut self, number: i32, flags: ReadFlags) {
        let change = if flags.contains(ReadFlags::MOVE_SELF) {
            FileChange::Rename
        } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED)
        {
            FileChange::Remove
        } else {
            return;
        };
        let is_root = |watched: &&mut Watched| watched.root == number && !watched.is_over;
        for watched in self.watches.values_mut().filter(is_root) {
            watched.push(b"", change, Some(EntryKind::Directory));
            watched.is_over = true;
        }
        if flags.contains(ReadFlags::IGNORED)
            && let Some(places) = self.directories.remove(&number)
        {
            for (id, _) in places {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.directories = watched.directories.saturating_sub(1);
                }
            }
        }
    }
}

impl Watched {
    /// Adds a change. Of writes of a file that follow each other, one is enough: it is sent after them.
    fn push(&mut self, name: &[u8], change: FileChange, kind: Option<EntryKind>) {
        let latest = self.waiting.iter().rev().take(NEAR).find(|it| it.name.as_bytes() == name);
        if change == FileChange::Write && latest.is_some_and(|it| it.change == change) {
            return;
        }
        self.waiting.push_back(ChangedEntry { name: name.into(), change, kind });
        self.waiting_bytes += name.len();
        while self.waiting.len() > MOST_WAITING || self.waiting_bytes > MOST_WAITING_BYTES {
            let Some(dropped) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= dropped.name.as_bytes().len();
            self.omitted += 1;
        }
    }

    /// Whether this is what the kernel calls a file without a name: `#` and its inode.
    fn is_unnamed(&self, name: &[u8], below: &[u8]) -> bool {
        let digits = name.strip_prefix(b"#").unwrap_or_default();
        !digits.is_empty()
            && digits.iter().all(u8::is_ascii_digit)
            && self
                .files
                .exists(&join_written(self.path.as_bytes(), below))
                .is_ok_and(|(_, kind)| kind.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::time::Duration;

    use sandbox_protocol::message::{Write, WriteMode};

    use crate::files::tests::setup::Setup;

    struct Observer {
        watches: Watches,
        files: Arc<Files>,
    }

    impl Observer {
        fn of(directory: &Path) -> Self {
            Self { watches: Watches::new().unwrap(), files: Setup::io(directory).open().0 }
        }

        fn time() -> Watch {
            Watch::new(Arc::default(), Duration::from_secs(60))
        }

        fn begin(&self, id: u64, path: &str, recursive: bool) -> Result<(), FileError> {
            let request = message::Watch { path: path.into(), recursive };
            self.watches.begin(id, self.files.clone(), &request, &Self::time())?;
            assert!(self.watches.turn_on(id, &StopFlag::default()));
            Ok(())
        }

        fn write(&self, path: &str, mode: WriteMode) {
            let request = Write { mode, ..Write::new(path) };
            self.files.write_all(request, b"content", &Self::time()).unwrap();
        }

        /// What was reported of a watch, and of all others nothing.
        fn seen(&self, id: u64) -> Vec<String> {
            while self.watches.read(Instant::now() + Duration::from_secs(1)) {}
            let mut seen = Vec::new();
            for (report, is_over) in self.watches.take() {
                assert_eq!((report.request, report.omitted), (id, 0), "{report:?}");
                let words = |it: &ChangedEntry| format!("{} {}", it.change.as_str(), it.name);
                seen.extend(report.entries.iter().map(words));
                seen.extend(is_over.then(|| "over".to_owned()));
            }
            seen
        }
    }

    #[test]
    fn upload_of_a_new_file_creates_it_and_of_a_known_one_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let observer = Observer::of(directory.path());
        observer.begin(1, ".", false).unwrap();
        observer.write("a", WriteMode::Overwrite);
        assert_eq!(observer.seen(1), ["create a"]);
        observer.write("a", WriteMode::Overwrite);
        assert_eq!(observer.seen(1), ["write a"]);
        observer.write("a", WriteMode::Append);
        assert_eq!(observer.seen(1), ["write a"]);
        observer.write("b", WriteMode::CreateNew);
        observer.write("b", WriteMode::Overwrite);
        assert_eq!(observer.seen(1), ["create b", "write b"]);
        assert!(observer.seen(1).is_empty());
    }

    #[test]
    fn changes_by_programs_are_reported_as_the_kernel_sees_them() {
        let directory = tempfile::tempdir().unwrap();
        let (observer, at) = (Observer::of(directory.path()), |name| directory.path().join(name));
        observer.begin(1, ".", false).unwrap();
        fs::write(at("a"), "x").unwrap();
        assert_eq!(observer.seen(1), ["create a", "write a"]);
        fs::set_permissions(at("a"), Permissions::from_mode(0o600)).unwrap();
        fs::rename(at("a"), at("#1")).unwrap();
        fs::set_permissions(at("#1"), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(observer.seen(1), ["chmod a", "rename a", "create #1", "chmod #1"]);
        fs::remove_file(at("#1")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/deep"), "").unwrap();
        assert_eq!(observer.seen(1), ["remove #1", "create d"]);
        // As another sandbox over the same directory replaces a file.
        let temporary = at(".sandboxctl-0123456789abcdef0123456789abcdef.tmp");
        fs::write(&temporary, "x").unwrap();
        fs::rename(&temporary, at("d/../c")).unwrap();
        assert_eq!(observer.seen(1), ["write c"]);
    }

    #[test]
    fn what_is_in_a_new_directory_is_reported_once_however_late_it_is_watched() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("top/old")).unwrap();
        let (observer, at) = (Observer::of(directory.path()), |name| directory.path().join(name));
        observer.begin(1, "top", true).unwrap();
        fs::write(at("top/old/f"), "x").unwrap();
        assert_eq!(observer.seen(1), ["create old/f", "write old/f"]);
        fs::create_dir_all(at("top/a/b")).unwrap();
        fs::write(at("top/a/b/f"), "x").unwrap();
        let seen = observer.seen(1);
        assert_eq!(seen, ["create a", "create a/b", "create a/b/f", "write a/b/f"]);
        observer.write("top/a/b/g", WriteMode::Overwrite);
        assert_eq!(observer.seen(1), ["create a/b/g"]);
        fs::remove_file(at("top/a/b/g")).unwrap();
        fs::rename(at("top/a"), at("top/z")).unwrap();
        fs::write(at("top/z/b/f"), "more").unwrap();
        let seen = observer.seen(1);
        assert_eq!(seen[..3], ["remove a/b/g", "rename a", "create z"]);
        assert_eq!(seen[3..], ["create z/b", "create z/b/f", "write z/b/f"]);
        fs::write(at("top/z/b/f"), "again").unwrap();
        assert_eq!(observer.seen(1), ["write z/b/f"]);
    }

    #[test]
    fn entry_that_was_found_in_a_new_directory_and_replaced_is_reported_again() {
        let directory = tempfile::tempdir().unwrap();
        let (observer, at) = (Observer::of(directory.path()), |name| directory.path().join(name));
        observer.begin(1, ".", true).unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/f"), "").unwrap();
        assert_eq!(observer.seen(1).len(), 3);
        {
            // As if they were found in it just now.
            let mut state = observer.watches.state.lock().unwrap();
            let mut all = state.directories.iter();
            let is_it = |places: &Places| places.contains(&(1, b"a".to_vec()));
            let number = *all.find(|(_, places)| is_it(places)).unwrap().0;
            state.found.extend([(number, b"f".to_vec()), (number, b"b".to_vec())]);
        }
        fs::remove_file(at("a/f")).unwrap();
        fs::write(at("a/f"), "").unwrap();
        fs::rename(at("a/b"), at("c")).unwrap();
        fs::create_dir(at("a/b")).unwrap();
        let seen = ["remove a/f", "create a/f", "rename a/b", "create c", "create a/b"];
        assert_eq!(observer.seen(1), seen);
        fs::write(at("a/b/new"), "").unwrap();
        assert_eq!(observer.seen(1), ["create a/b/new"]);
    }

    #[test]
    fn directory_of_two_watches_is_reported_to_both_until_each_ends() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        let (observer, at) = (Observer::of(directory.path()), |name| directory.path().join(name));
        observer.begin(1, ".", true).unwrap();
        observer.begin(2, "a", false).unwrap();
        fs::write(at("a/f"), "").unwrap();
        while observer.watches.read(Instant::now() + Duration::from_secs(1)) {}
        let names = observer.watches.take().into_iter().map(|it| it.0.entries[0].name.to_string());
        assert_eq!(names.collect::<Vec<_>>(), ["a/f", "f"]);
        assert!(observer.watches.end(1) && !observer.watches.end(1));
        fs::remove_file(at("a/f")).unwrap();
        assert_eq!(observer.seen(2), ["remove f"]);
        fs::remove_dir_all(at("a")).unwrap();
        assert_eq!(observer.seen(2), ["remove b", "remove ", "over"]);
    }

    #[test]
    fn what_is_no_directory_cannot_be_watched() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let observer = Observer::of(directory.path());
        for (path, kind) in [
            ("missing", ErrorKind::NotFound),
            ("file", ErrorKind::NotADirectory),
            ("/etc", ErrorKind::PathEscape),
        ] {
            assert_eq!(observer.begin(1, path, true).unwrap_err().kind, kind, "{path}");
        }
        assert!(!observer.watches.end(1));
        let stopped = StopFlag::default();
        stopped.stop(StopReason::Cancelled);
        let request = message::Watch { path: ".".into(), recursive: false };
        observer.watches.begin(2, observer.files.clone(), &request, &Observer::time()).unwrap();
        assert!(!observer.watches.turn_on(2, &stopped));
    }

    #[test]
    fn changes_without_a_reader_are_bounded_and_the_oldest_are_missing() {
        let directory = tempfile::tempdir().unwrap();
        let observer = Observer::of(directory.path());
        observer.begin(1, ".", false).unwrap();
        for number in 0..MOST_WAITING {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        fs::write(directory.path().join("last"), "").unwrap();
        while observer.watches.read(Instant::now() + Duration::from_secs(1)) {}
        let (report, _) = observer.watches.take().pop().unwrap();
        assert_eq!((report.omitted, report.entries.len()), (1, MOST_WAITING));
        assert_eq!(report.entries.last().unwrap().name, "last");
    }
}
