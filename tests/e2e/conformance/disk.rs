//! Programs that fill the disk: in files without a name, beyond what must stay free, in a private io
//! dir. What they write in files with names is in `exec.rs`.

use std::time::Duration;

use sandbox_api::operation::Exists;
use sandbox_api::{ByteSize, ErrorKind, ExecutionResult, Limits, SandboxSpec, Script, Status};
use sandbox_controller::{CancelHandle, Command, DiskReserve};
use serde_json::json;

use super::mounts::HostMount;
use crate::agent::attacker;
use crate::engine::{Engine, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, finish};
use crate::library::{Guest, Library};
use crate::rootfs::{Provided, Rootfs};

const LIMIT: u64 = 8_000_000;
/// Open files without a name, each within the limit of one file.
const OPEN: &str = "exec 3>a 4>b; rm a b; head -c 5000000 /dev/zero >&3; \
                    head -c 5000000 /dev/zero >&4; sleep 1000";

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

#[test]
fn files_without_a_name_count_against_the_write_limit() {
    if !has(Feature::SharedKernel) {
        // The file system does not show them; only the free space is left to check.
        return;
    }
    let provided = rootfs();
    let guest = Guest::with(|spec| spec.root(provided.root()).limits(limits()));
    no_file_without_a_name_passes(&guest);
    let left = std::fs::read_dir(guest.place.path("sandbox-files")).unwrap();
    assert_eq!(left.count(), 0);
}

fn no_file_without_a_name_passes(guest: &Guest) {
    let beside = "files beside many descriptors";
    for command in [Command::shell(OPEN), fill("mappings"), fill("files in flight"), fill(beside)] {
        let (status, kind, message) = exec(guest, command);
        assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::WriteLimit)), "{message}");
        // The sandbox serves on, and what was taken is given back.
        assert_eq!(exec(guest, Command::new("true")).0, Status::Ok);
    }
}

#[test]
fn unlinked_files_in_an_overlay_of_two_file_systems_count_against_the_write_limit() {
    if !has(Feature::SharedKernel) {
        return;
    }
    let provided = rootfs();
    let place = Fixture::new();
    let [overlay, _layers] = HostMount::overlay(&place, place.path("merged"));
    let guest = Guest::with(|spec| {
        let root = provided.root();
        spec.io_dir(overlay.0.clone()).root(root).limits(limits())
    });
    for command in [Command::shell(OPEN), fill("mappings")] {
        let (status, kind, message) = exec(&guest, command);
        assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::WriteLimit)), "{message}");
    }
}

#[test]
fn files_that_only_calls_in_progress_keep_are_held_to_the_write_limit() {
    if !has(Feature::SharedKernel) {
        return;
    }
    let provided = rootfs();
    let guest = Guest::with(|spec| spec.root(provided.root()).limits(limits()));
    no_file_in_a_call_passes(&guest);
}

fn no_file_in_a_call_passes(guest: &Guest) {
    for how in ["files in calls", "files in uncounted calls"] {
        let result = guest.wait(guest.sandbox.run(fill(how))).unwrap();
        // Each stop ends the calls, or it is ended itself for what remains.
        if result.outcome.status() == Status::Ok {
            let stdout = String::from_utf8_lossy(&result.stdout().bytes);
            let kept = stdout.trim().strip_prefix("kept ").and_then(|it| it.parse::<u64>().ok());
            assert!(kept.is_some_and(|kept| kept < 100 << 20), "{how}: {result:?}");
        } else {
            assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::WriteLimit, "{result:?}");
        }
    }
}

/// A sandbox whose io dir is on Btrfs, and that disk, which goes before the directory it is mounted in.
fn on_btrfs(provided: &Provided) -> (Guest, HostMount) {
    let place = Fixture::new();
    let disk = HostMount::disk(place.path("disk"), 4 << 30, "mkfs.btrfs");
    let io_dir = disk.0.join("io");
    let with = |spec: SandboxSpec| spec.io_dir(&io_dir).root(provided.root()).limits(limits());
    (Guest::in_place(place, with), disk)
}

/// Btrfs updates its free space only when it commits.
#[test]
fn files_without_a_name_on_btrfs_count_against_the_write_limit_before_a_commit() {
    if !has(Feature::SharedKernel) {
        return;
    }
    let provided = rootfs();
    let (guest, _disk) = on_btrfs(&provided);
    no_file_without_a_name_passes(&guest);
    no_file_in_a_call_passes(&guest);
}

/// Btrfs frees an extent only once no block of it is in use.
#[test]
fn what_truncated_files_keep_on_btrfs_counts_against_the_write_limit() {
    if !has(Feature::SharedKernel) {
        // The agent's kernel writes files itself, and truncates them before they are on the disk.
        return;
    }
    let provided = rootfs();
    let (guest, _disk) = on_btrfs(&provided);
    let write = "write() { dd if=/dev/zero of=$1 bs=$2 count=1 conv=fsync; }; ";
    let removed = format!("{write} for i in 1 2 3; do write a 6000000; rm a; done; sleep 1");
    let (status, _, message) = exec(&guest, Command::shell(removed));
    assert_eq!(status, Status::Ok, "{message}");
    let kept =
        format!("{write} for i in $(seq 40); do write $i 5000000; truncate -s 4096 $i; done");
    let (status, kind, message) = exec(&guest, Command::shell(kept));
    assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::WriteLimit)), "{message}");
}

#[test]
fn mapped_files_and_named_files_count_together_against_the_write_limit() {
    if !has(Feature::SharedKernel) {
        return;
    }
    let provided = rootfs();
    let guest = Guest::with(|spec| spec.root(provided.root()).limits(limits()));
    let (status, kind, message) = exec(&guest, fill("halves"));
    assert_eq!((status, kind), (Status::Limit, Some(ErrorKind::WriteLimit)), "{message}");
}

#[test]
fn files_without_a_name_within_the_limit_are_permitted() {
    let provided = rootfs();
    let guest = Guest::with(|spec| spec.root(provided.root()).limits(limits()));
    let again = "for i in 1 2 3 4 5; do exec 3>a; rm a; head -c 5000000 /dev/zero >&3; \
                 exec 3>&-; done; sleep 1";
    assert_eq!(exec(&guest, Command::shell(again)).0, Status::Ok);
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
    match engine() {
        Engine::Docker => {
            let error = launched.unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Config, 2));
            assert!(error.hint().unwrap().contains("--engine embedded"));
        }
        Engine::Embedded => {
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
    for line in ["ok    sandbox", "ok    io_dir", "unnamed_files", "limits.disk_reserve"] {
        assert!(stdout.contains(line), "{ended:#?}");
    }
    assert!(!stdout.contains("private_io"), "{ended:#?}");
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[io]\nprivate = \"tmpfs\"\n").unwrap();
    let ended = place.sandboxctl(["doctor"]);
    let (code, line) = match engine() {
        Engine::Docker => (125, "FAIL  private_io"),
        Engine::Embedded => (0, "ok    private_io"),
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
