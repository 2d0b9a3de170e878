//! Programs that fill the disk: a bounded io dir, and what must stay free. What they write to an io dir
//! that is watched is in `exec.rs`.

use std::time::Duration;

use sandbox_api::operation::Exists;
use sandbox_api::{
    ByteSize, DiskBackend, DiskBound, ErrorKind, ExecutionResult, Input, Limits, NoteKind,
    SandboxSpec, Script, Status,
};
use sandbox_controller::{CancelHandle, Command, DiskReserve};
use serde_json::json;

use super::mounts::HostMount;
use crate::agent::attacker;
use crate::engine::{Engine, engine};
use crate::engines::{Feature, Kind, has, kind};
use crate::fixture::{Fixture, eventually, finish};
use crate::library::{Guest, Library};
use crate::rootfs::{Debian, Provided, Rootfs};

const LIMIT: u64 = 8_000_000;

/// With more time than even a busy machine needs to see what is written.
fn limits() -> Limits {
    let timeout = Duration::from_secs(120);
    Limits { max_write: ByteSize::b(LIMIT), timeout, ..Limits::default() }
}

fn rootfs() -> Provided {
    Rootfs::busybox().copy("bin/attacker", attacker()).folder("tmp", 0o1777).provide()
}

fn exec(guest: &Guest, command: Command) -> (Status, Option<ErrorKind>, String) {
    let result = guest.wait(guest.sandbox.run(command)).unwrap();
    let failure = result.outcome.failure();
    let message = match &failure {
        Some(failure) => failure.message.clone(),
        None => format!(
            "{:?}: {}",
            result.command_exit_code(),
            String::from_utf8_lossy(&result.stderr().bytes)
        ),
    };
    (result.outcome.status(), failure.map(|failure| failure.kind), message)
}

fn fill(how: &str) -> Command {
    let attack = format!("fill the mount by {how}");
    let uid = "0";
    Command::new("sh").args([
        "-c",
        "attacker none $(id -u) \"$1\" /io /in / 1 1 none",
        uid,
        &attack,
    ])
}

/// A sandbox with a private io dir on disk, which the kernel bounds.
fn bounded(provided: &Provided, limits: Limits) -> Guest {
    Guest::with(|spec| spec.root(provided.root()).limits(limits).fresh_io_dir())
}

/// More than a small part of the sandbox's memory: else the io dir is there.
const IMAGE: u64 = 64_000_000;
/// What an image holds beyond that.
const SPARE: u64 = 4 << 20;

fn limits_of_an_image() -> Limits {
    Limits { max_write: ByteSize::b(IMAGE), ..limits() }
}

fn output(guest: &Guest, line: &str) -> String {
    let result = guest.wait(guest.sandbox.run(Command::shell(line))).unwrap();
    assert_eq!(result.outcome.status(), Status::Ok, "{result:?}");
    String::from_utf8(result.stdout().bytes.clone()).unwrap()
}

#[test]
fn a_program_that_fills_its_bounded_io_dir_keeps_its_status_and_a_note_says_why() {
    if !has(Feature::BoundedDirs) {
        return;
    }
    let provided = rootfs();
    for (limits, backend) in [
        (limits_of_an_image(), DiskBackend::Ext4),
        // In memory, where the engine can mount that.
        (
            limits(),
            match engine() {
                Engine::Docker => DiskBackend::Ext4,
                Engine::Embedded => DiskBackend::Tmpfs,
            },
        ),
    ] {
        let guest = bounded(&provided, limits);
        let line = "dd if=/dev/zero of=f bs=4096 count=50000; echo $?; wc -c < f; exit 7";
        let result = guest.wait(guest.sandbox.run(Command::shell(line))).unwrap();
        let stdout = String::from_utf8(result.stdout().bytes.clone()).unwrap();
        let lines: Vec<&str> = stdout.lines().collect();
        let [code, taken] = lines[..] else { panic!("{result:?}") };
        let (taken, most) = (taken.parse::<u64>().unwrap(), limits.max_write.as_u64());
        assert_eq!((code, result.command_exit_code()), ("1", Some(7)), "{result:?}");
        assert!((most - (1 << 16)..most + SPARE).contains(&taken), "{taken} of {most}");
        let disk = result.disk.as_ref().unwrap();
        assert_eq!((disk.bound, disk.backend, disk.bytes), (DiskBound::Kernel, backend, most));
        let notes: Vec<_> = result.notes.iter().map(|note| (note.kind, &*note.message)).collect();
        let [(NoteKind::NoSpace, message)] = notes[..] else { panic!("{result:?}") };
        assert!(message.contains("the io dir"), "{message}");
        // The sandbox serves on, and what was removed can be written again.
        assert_eq!(output(&guest, "rm f; head -c 5000000 /dev/zero > g; wc -c < g"), "5000000\n");
    }
}

/// Each took more than its limit while it was only watched.
#[test]
fn nothing_that_programs_do_with_files_takes_more_than_a_bounded_io_dir_holds() {
    if !has(Feature::BoundedDirs) {
        return;
    }
    let provided = rootfs();
    let guest = bounded(&provided, limits_of_an_image());
    let attacks = [
        "mappings",
        "files in flight",
        "files beside many descriptors",
        "files in calls",
        "files in uncounted calls",
    ];
    for how in attacks {
        let result = guest.wait(guest.sandbox.run(fill(how))).unwrap();
        let status = result.outcome.status();
        assert!(matches!(status, Status::Ok | Status::Exit), "{how}: {result:?}");
        // The kernel frees all of it, of sockets a moment later.
        let line = "head -c 60000000 /dev/zero > f; rm f";
        eventually(how, || (exec(&guest, Command::shell(line)).2 == "Some(0): ").then_some(()));
    }
    // Beside files without names there is as much less room for others.
    let line = "exec 3>a; rm a; head -c 50000000 /dev/zero >&3; \
                head -c 50000000 /dev/zero 2>/dev/null > b; wc -c < b";
    let left: u64 = output(&guest, line).trim().parse().unwrap();
    assert!(left < IMAGE - 50_000_000 + SPARE, "{left}");
    // A hole takes nothing, and a file that is allocated all of its size.
    let line = "rm b; truncate -s 100M hole && fallocate -l 60000000 full && \
                ! fallocate -l 60000000 more && echo held";
    assert_eq!(output(&guest, line), "held\n");
}

#[test]
fn files_and_directories_beyond_the_limit_end_the_program_in_a_bounded_io_dir_too() {
    let provided = rootfs();
    let entries = 300.try_into().unwrap();
    let guest = bounded(&provided, Limits { entries, ..limits_of_an_image() });
    let line = "i=0; while :; do mkdir $i; i=$((i + 1)); done 2>/dev/null";
    let (status, kind, message) = exec(&guest, Command::shell(line));
    assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::TooManyFiles)), "{message}");
    let made: u64 = output(&guest, "ls | wc -l").trim().parse().unwrap();
    // A watch ends the program some time later.
    assert!(made >= 300 && (made < 400 || !has(Feature::BoundedDirs)), "{made}");
}

/// Programs of Debian, which use what is refused where the io dir is watched.
#[test]
fn programs_allocate_write_directly_and_set_attributes_in_a_bounded_io_dir() {
    if !has(Feature::BoundedDirs) {
        return;
    }
    let place = Fixture::new();
    place.write("marked", "content");
    let marked = std::fs::File::open(place.path("marked")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&marked, c"user.mark", b"x", flags).unwrap();
    let provided =
        Debian::new(&["acl", "coreutils", "dash", "grep", "sqlite3", "util-linux"]).provide();
    let library = Library::new(&place);
    let spec = SandboxSpec::new().root(provided.root()).limits(limits_of_an_image());
    let input = Input::path(place.path("marked"), "marked");
    let sandbox = library.launch(spec.fresh_io_dir().input(input));
    let sql = "pragma journal_mode=wal; create table t(x); \
               insert into t select value from generate_series(1, 10000); select count(*) from t;";
    let lines = [
        (format!("sqlite3 db \"{sql}\""), "wal\n10000\n"),
        (
            "dd if=/dev/zero of=d bs=4096 count=10 oflag=direct status=none; wc -c < d".into(),
            "40960\n",
        ),
        ("fallocate -l 1000000 f && wc -c < f".into(), "1000000\n"),
        // It fails if it cannot set them.
        ("cp --preserve=xattr /in/marked m && cat m".into(), "content"),
        (
            "setfacl -m u:1000:rw m && getfacl -c m | grep user:".into(),
            "user::rw-\nuser:user:rw-\n",
        ),
    ];
    let count = if has(Feature::AccessLists) { lines.len() } else { lines.len() - 1 };
    for (line, expected) in lines.into_iter().take(count) {
        let result = library.wait(sandbox.run(Command::shell(&*line))).unwrap();
        let stdout = String::from_utf8_lossy(&result.stdout().bytes);
        assert_eq!(stdout, expected, "{line}: {result:?}");
    }
    library.wait(sandbox.close()).unwrap();
}

#[test]
fn files_of_a_bounded_io_dir_are_kept_by_a_copy() {
    if !has(Feature::BoundedDirs) {
        return;
    }
    let provided = rootfs();
    let guest = bounded(&provided, limits_of_an_image());
    output(&guest, "mkdir d; echo x > d/f; ln d/f d/g; truncate -s 8796093022208 hole");
    let kept = guest.place.path("kept");
    guest.sandbox.keep_io_dir(&kept).unwrap();
    assert_eq!(std::fs::read_to_string(kept.join("d/g")).unwrap(), "x\n");
    use std::os::unix::fs::MetadataExt as _;
    let inode = |name: &str| std::fs::metadata(kept.join(name)).unwrap().ino();
    assert_eq!(inode("d/f"), inode("d/g"));
    assert!(std::fs::metadata(kept.join("hole")).unwrap().blocks() < 100);
}

/// What is only reserved takes no memory and no space: .NET does not start without it.
#[test]
fn a_program_reserves_terabytes_where_the_kernel_bounds_what_it_takes() {
    let provided = rootfs();
    let reserve = "attacker none $(id -u) reserve-2-tib /io /in / 1 1 none";
    let in_memory = Guest::with(|spec| spec.root(provided.root()).no_io());
    assert_eq!(output(&in_memory, reserve), "done\n");
    if !has(Feature::BoundedDirs) {
        return;
    }
    let guest = bounded(&provided, limits());
    assert_eq!(output(&guest, reserve), "done\n");
}

#[test]
fn copy_of_a_large_file_into_a_stage_ends_at_its_bound() {
    let provided = rootfs();
    let place = Fixture::new();
    std::fs::create_dir_all(place.path("sandbox-files")).unwrap();
    std::fs::write(place.path("sandbox-files/large"), vec![1; 40_000_000]).unwrap();
    let guest = Guest::in_place(place, |spec| {
        spec.root(provided.root()).limits(limits_of_an_image()).staged()
    });
    let disk = guest.wait(guest.sandbox.run(Command::new("true"))).unwrap().disk.unwrap();
    if !has(Feature::Overlay) {
        // Its stage is a copy beside the io dir.
        assert_eq!((disk.bound, disk.backend), (DiskBound::Watched, DiskBackend::Directory));
        return;
    }
    assert_eq!((disk.bound, disk.backend), (DiskBound::Kernel, DiskBackend::Ext4), "{disk:?}");
    let line = "cp large other; echo x >> large; echo $?; wc -c < large";
    assert_eq!(output(&guest, line), "1\n40000000\n");
    assert_eq!(
        output(&guest, "rm other; echo x >> large; echo $?; wc -c < large"),
        "0\n40000002\n"
    );
}

#[test]
fn no_program_starts_where_less_space_is_left_than_must_stay_free() {
    let provided = rootfs();
    let place = Fixture::new();
    let reserve = DiskReserve::Bytes(ByteSize::b(1 << 60));
    let library = Library::with_disk_reserve(&place, reserve);
    let guest = Guest::in_library(place, library, |spec| spec.root(provided.root()));
    let (status, kind, message) = exec(&guest, Command::shell("touch made"));
    assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::DiskFull)));
    assert!(message.starts_with("nothing was started: "), "{message}");
    assert!(message.contains("limits.disk_reserve"), "{message}");
    assert!(!guest.place.path("sandbox-files/made").exists());
    // A script could start programs.
    let result = guest.wait(guest.sandbox.run(Script::new("return 1"))).unwrap();
    let kind = result.outcome.failure().map(|failure| failure.kind);
    assert_eq!((result.outcome.status(), kind), (Status::Limit, Some(ErrorKind::DiskFull)));
}

#[test]
fn scripts_and_file_operations_write_nothing_below_the_disk_reserve() {
    let place = Fixture::new();
    place.write("sandbox-files/before", "before");
    let library = Library::with_disk_reserve(&place, DiskReserve::Bytes(ByteSize::b(1 << 60)));
    let guest = Guest::in_library(place, library, |spec| spec);
    let code = "local read = io.open('before'):read('a')
                local f = io.open('made', 'w')
                f:write('x')
                f:close()
                return read";
    let result = guest.wait(guest.sandbox.run(Script::new(code))).unwrap();
    let failure = result.outcome.failure().unwrap();
    // As of a disk that is full: scripts know it by its text, or by its number.
    assert_eq!(failure.kind, ErrorKind::Runtime);
    let expected = "No space left on device: 1048576 TiB stay free";
    assert!(failure.message.contains(expected), "{}", failure.message);
    let write = json!({"operation": "write", "path": "made too", "content": "x"});
    assert_eq!(guest.kind(write), "disk_full");
    // Operations that use no disk space work.
    assert_eq!(guest.data(json!({"operation": "read", "path": "before"}))["content"], "before");
    guest.data(json!({"operation": "remove", "path": "before"}));
    assert!(!guest.place.path("sandbox-files/made too").exists());
}

#[test]
fn a_program_ends_when_others_take_what_must_stay_free() {
    let provided = rootfs();
    let place = Fixture::new();
    // A disk of its own: on the machine's, other tests free and take space at the same time.
    let disk = HostMount::memory(place.path("disk"), c"size=64m");
    let (io_dir, of_others) = (disk.0.join("io"), disk.0.join("of-others"));
    std::fs::create_dir(&io_dir).unwrap();
    let stat = rustix::fs::statvfs(disk.0.as_path()).unwrap();
    let others = 16 << 20;
    let reserve = stat.f_bavail * stat.f_frsize - others;
    let library = Library::with_disk_reserve(&place, DiskReserve::Bytes(ByteSize::b(reserve)));
    let with = |spec: SandboxSpec| spec.io_dir(io_dir).root(provided.root()).limits(limits());
    let guest = Guest::in_library(place, library, with);
    // It goes before the directory it is mounted in.
    let _disk = disk;
    let file = std::fs::File::create(of_others).unwrap();
    let (status, kind, message) = guest.wait(async {
        let execution =
            guest.sandbox.start(Command::shell("sleep 1000"), CancelHandle::new()).await.unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, 2 * others).unwrap();
        let result: ExecutionResult = execution.wait().await.unwrap();
        let failure = result.outcome.failure().unwrap();
        (result.outcome.status(), failure.kind, failure.message)
    });
    assert_eq!((status, kind), (Status::Limit, ErrorKind::DiskFull), "{message}");
    assert!(message.contains("limits.disk_reserve"), "{message}");
}

#[test]
fn a_private_io_dir_is_as_large_as_may_be_written() {
    let provided = rootfs();
    let place = Fixture::new();
    let library = Library::new(&place);
    let spec = SandboxSpec::new().root(provided.root()).limits(limits()).private_io_dir();
    let launched = library.try_launch(spec);
    match kind() {
        Kind::Docker | Kind::Gvisor | Kind::Podman | Kind::Rootless => {
            let error = launched.unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Config, 2));
            assert!(error.hint().unwrap().contains("--engine embedded makes one, as root"));
        }
        Kind::Embedded => {
            let sandbox = launched.unwrap();
            assert_eq!(sandbox.io_dir(), None);
            let line = "pwd; for f in a b; do head -c 5000000 /dev/zero > $f; done; \
                        cat a b | wc -c; rm a b; mkdir d; echo c > d/c; cat d/c";
            let result = library.wait(sandbox.run(Command::shell(line))).unwrap();
            let output = String::from_utf8(result.stdout().bytes.clone()).unwrap();
            let lines: Vec<&str> = output.lines().collect();
            let [cwd, taken, content] = &lines[..] else { panic!("{result:?}") };
            assert_eq!((*cwd, *content), ("/io", "c"));
            assert!(taken.parse::<u64>().unwrap() <= LIMIT, "{taken}");
            assert_eq!((result.outcome.status(), result.io_dir.as_deref()), (Status::Ok, None));
            let names: Vec<_> =
                result.files_touched.files.iter().map(|it| it.name.to_string()).collect();
            assert_eq!(names, ["d/c"]);
            // The agent's operations see the same.
            assert!(library.wait(sandbox.call(Exists::new("d/c"))).unwrap().exists);
            library.wait(sandbox.close()).unwrap();
        }
    }
}

#[test]
fn doctor_examines_the_engine_and_says_what_holds_a_private_io_dirs_size() {
    let place = Fixture::new();
    let ended = place.sandboxctl(["doctor"]);
    let stdout = &ended.assert_code(0).stdout;
    // Only root can make a file system.
    let bound = match kind() {
        Kind::Rootless => {
            "warn  disk_bound    private io dirs of programs are watched, not bounded: "
        }
        Kind::Podman => "warn  disk_bound",
        Kind::Docker | Kind::Gvisor | Kind::Embedded => "ok    disk_bound",
    };
    for line in ["ok    sandbox", "ok    io_dir", bound, "limits.disk_reserve"] {
        assert!(stdout.contains(line), "{ended:#?}");
    }
    assert!(!stdout.contains("private_io"), "{ended:#?}");
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[io]\nprivate = \"tmpfs\"\n").unwrap();
    let ended = place.sandboxctl(["doctor"]);
    let (code, line) = match kind() {
        Kind::Embedded => (0, "ok    private_io"),
        Kind::Docker | Kind::Gvisor | Kind::Podman | Kind::Rootless => (125, "FAIL  private_io"),
    };
    assert!(ended.assert_code(code).stdout.contains(line), "{ended:#?}");
}

#[test]
fn programs_beside_many_files_are_held_to_the_write_limit_and_continue_within_it() {
    let provided = rootfs();
    let place = Fixture::new();
    for index in 0..6000 {
        place.write(&format!("sandbox-files/before/{index}"), "");
    }
    let guest = Guest::in_place(place, |spec| spec.root(provided.root()).limits(limits()));
    // Near the limit, where looks come often; they stop it for a moment each.
    let near = "for i in 1 2 3 4 5 6 7; do head -c 1000000 /dev/zero > $i; sleep 0.1; done; rm ?";
    assert_eq!(exec(&guest, Command::shell(near)).0, Status::Ok);
    let beyond = "i=0; while :; do head -c 1000000 /dev/zero > big-$i; i=$((i + 1)); done";
    let (status, kind, message) = exec(&guest, Command::shell(beyond));
    assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::WriteLimit)), "{message}");
}

#[test]
fn script_whose_unclosed_file_does_not_fit_on_the_disk_fails() {
    let place = Fixture::new();
    let mounted = HostMount::memory(place.path("small"), c"size=256k");
    std::fs::write(mounted.0.join("full"), vec![0; 240_000]).unwrap();
    let code = "io.open('out.csv', 'w'):write(string.rep('x', 60000)) return 'saved'";
    for errors in ["raise", "return"] {
        let mut command =
            place.command(["run", "--io-dir", "small", "--io-errors", errors, "-c", code]);
        command.env("SANDBOXCTL_LIMITS_DISK_RESERVE", "0B");
        let ended = finish(command);
        ended.assert_code(1);
        assert!(!ended.stdout.contains("saved"), "{ended:#?}");
        let expected = "out.csv: No space left on device (the script did not close the file)";
        ended.assert_stderr_has(expected);
        // gVisor's next sandbox needs a block, to prove where its io dir is.
        std::fs::remove_file(mounted.0.join("out.csv")).unwrap();
    }
}
