//! Mount tables that were made up, and what they end.

use std::fs::{self, File};
use std::io;
use std::task::Poll;

use sandbox_engine::mount_table::MOUNTINFO;

use super::watch::MadeUp;
use super::*;

fn watched(dir: &Path) -> Watched {
    let file: Arc<OwnedFd> = Arc::new(File::open(dir).unwrap().into());
    let mount = Opened::new(file.as_fd()).unwrap().mount;
    Watched { what: "the io dir".to_owned(), path: dir.to_owned(), file, mount }
}

fn table(text: &str) -> io::Result<MountTable> {
    MountTable::parse(text.as_bytes())
}

fn this() -> String {
    // Other tests mount directories with any bytes in their names.
    String::from_utf8_lossy(&fs::read(MOUNTINFO).unwrap()).into_owned()
}

/// The table of now, and a file system that is mounted at `m` in `dir`.
fn with_mount_below(dir: &Path) -> String {
    let (below, mount) = (dir.canonicalize().unwrap().join("m"), watched(dir).mount);
    format!("{}{} {mount} 0:999 / {} rw - tmpfs t rw\n", this(), u64::MAX, below.display())
}

/// Looks at `dir` and this table, which is kept in `dir`.
fn looks(dir: &Path, text: &str) -> MountLooks {
    let file = dir.join("mountinfo");
    fs::write(&file, text).unwrap();
    let reader = MountReader::of(File::open(file).unwrap());
    let (watched, examined) = (Arc::new(vec![watched(dir)]), Mutex::default());
    MountLooks { reader: Some(reader), watched, examined }
}

/// Looks that find a mount below `dir`.
pub(crate) fn looks_that_find(dir: &Path) -> MountLooks {
    looks(dir, &with_mount_below(dir))
}

fn failure() -> io::Result<MountTable> {
    Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()))
}

#[tokio::test]
async fn a_table_that_cannot_be_read_or_lacks_a_mount_ends_nothing_before_it_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let watched = [watched(dir.path())];
    type Bad = fn() -> io::Result<MountTable>;
    let bad: [(Bad, MountRefusal); 2] = [
        (failure, MountRefusal::unknown(&failure().unwrap_err())),
        (|| table(""), MountRefusal::NotListed),
    ];
    for (bad, reason) in bad {
        let (made_up, changes) = MadeUp::new();
        let mut lost = std::pin::pin!(lost(changes, &watched));
        // One successful read in between resets the counter.
        for attempts in [READ_ATTEMPTS, READ_ATTEMPTS] {
            for _ in 0..attempts {
                made_up.publish(bad());
                assert!(poll_once(&mut lost).await.is_pending());
                made_up.is_asked_again().await;
            }
            made_up.publish(table(&this()));
            assert!(poll_once(&mut lost).await.is_pending());
        }
        for _ in 0..READ_ATTEMPTS {
            made_up.publish(bad());
            assert!(poll_once(&mut lost).await.is_pending());
        }
        made_up.publish(bad());
        assert_eq!(lost.await.reason, reason);
    }
}

#[tokio::test]
async fn a_mount_point_below_ends_it_at_the_first_look() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().canonicalize().unwrap().join("m");
    let watched = [watched(dir.path())];
    let (made_up, changes) = MadeUp::new();
    made_up.publish(table(&with_mount_below(dir.path())));
    let lost = lost(changes, &watched).await;
    assert_eq!(lost.reason, MountRefusal::MountPoint { mount_point: below });
}

#[tokio::test]
async fn an_unreported_mount_point_is_found_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let text = with_mount_below(dir.path());
    let look = |text: &str| looks(dir.path(), text);
    assert_eq!(look(&this()).lost(Duration::ZERO).await, None);
    // What another look could refute ends nothing.
    assert_eq!(look("").lost(Duration::ZERO).await, None);
    let looks = look(&this());
    assert_eq!(looks.lost(Duration::ZERO).await, None);
    fs::write(dir.path().join("mountinfo"), &text).unwrap();
    // All looks share the table of one that was just made.
    assert_eq!(looks.lost(Duration::MAX).await, None);
    let lost = looks.lost(Duration::ZERO).await.unwrap();
    let mount_point = dir.path().canonicalize().unwrap().join("m");
    assert_eq!(lost.reason, MountRefusal::MountPoint { mount_point });
}

#[tokio::test]
async fn a_directory_that_was_moved_above_a_mount_point_is_found_by_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let (io, above) = (dir.path().join("io"), dir.path().join("above"));
    fs::create_dir(&above).unwrap();
    let text = with_mount_below(&above);
    fs::rename(&above, &io).unwrap();
    let looks = looks(&io, &text);
    assert_eq!(looks.lost(Duration::ZERO).await, None);
    fs::rename(&io, &above).unwrap();
    let lost = looks.lost(Duration::ZERO).await.unwrap();
    let mount_point = above.canonicalize().unwrap().join("m");
    assert_eq!(lost.reason, MountRefusal::MountPoint { mount_point });
}

#[tokio::test]
async fn a_sandbox_with_nothing_of_the_host_needs_no_mount_table() {
    // Neither can be located: it would be refused if it were checked.
    let folder = PathBuf::from("/proc/self/fd/999999/x");
    let own = vec![("state directory", folder)];
    let folders = ReservedDirs { own, ..ReservedDirs::default() };
    let mut guard = MountGuard::new(&MountWatch::default(), &folders);
    guard.check_path("the io dir", Path::new("")).unwrap();
    assert!(guard.rules.is_none());
    assert!(guard.hidden().is_empty());
    let mut lost = std::pin::pin!(guard.lost());
    assert!(poll_once(&mut lost).await.is_pending());
}

#[tokio::test]
async fn files_checked_at_launch_are_not_kept_open() {
    let dir = tempfile::tempdir().unwrap();
    let own = vec![
        ("state directory", dir.path().join("state")),
        ("data directory", dir.path().join("data")),
        ("scratch directory", dir.path().join("state/scratch")),
    ];
    let folders = ReservedDirs { own, ..ReservedDirs::default() };
    let io = dir.path().join("io");
    fs::create_dir(&io).unwrap();
    let file = Arc::new(File::open(&io).unwrap().into());
    let source = Source::new(io.to_str().unwrap().to_owned(), file);
    let mut guard = MountGuard::new(&MountWatch::default(), &folders);
    guard.add("the io dir", &source, "/io", Access::Write).unwrap();
    let table = Arc::downgrade(guard.policy().unwrap().table());
    assert!(table.upgrade().is_some());
    let mut lost = std::pin::pin!(guard.lost());
    assert!(poll_once(&mut lost).await.is_pending());
    assert!(table.upgrade().is_none());
}

#[tokio::test]
async fn data_directory_of_a_server_that_runs_is_not_mounted_whatever_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let own = vec![
        ("state directory", at("state")),
        ("data directory", at("data")),
        ("scratch directory", at("scratch")),
    ];
    let folders = ReservedDirs { own, ..ReservedDirs::default() };
    fs::create_dir_all(at("served/files/a")).unwrap();
    fs::write(at("served/store.db"), "").unwrap();
    let lock = File::create(at("served/lock")).unwrap();
    let source = |name: &str| {
        let source = at(name).canonicalize().unwrap();
        let file = Arc::new(File::open(&source).unwrap().into());
        Source::new(source.to_str().unwrap().to_owned(), file)
    };
    let guard = |folders: &ReservedDirs| MountGuard::new(&MountWatch::default(), folders);
    let add = |name: &str, access| guard(&folders).add("it", &source(name), "/in", access);
    add("served/files/a", Access::Write).unwrap();
    lock.lock().unwrap();
    for name in ["served", "served/files/a", "served/store.db"] {
        for access in [Access::Read, Access::Write] {
            let Err(Error::MountRefused { source, .. }) = add(name, access) else {
                panic!("{name} is mounted");
            };
            let folder = at("served").canonicalize().unwrap();
            assert_eq!(source, MountRefusal::ServedDir { folder });
        }
    }
    // The server's own sandboxes have io dirs there.
    let mut of_server = folders.clone();
    of_server.own.push(("service's data directory", at("served")));
    guard(&of_server).add_own("it", &source("served/files/a")).unwrap();
    guard(&folders).add_own("it", &source("served/files/a")).unwrap_err();
}

/// Polls it once.
async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context)))
        .await
}

#[test]
fn a_file_in_a_directory_is_found_by_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("io/sub")).unwrap();
    fs::write(at("outside"), "").unwrap();
    std::os::unix::fs::symlink(at("io/sub"), at("link")).unwrap();
    std::os::unix::fs::symlink(at("outside"), at("io/planted")).unwrap();
    for (file, inside) in [
        ("outside", false),
        ("iox", false),
        ("io/a", true),
        ("io/sub/a", true),
        ("link/a", true),
        ("io/planted", true),
        ("io/../b", false),
    ] {
        assert_eq!(HostPlaces::now().contains_file(&at("io"), &at(file)), inside, "{file}");
    }
}
