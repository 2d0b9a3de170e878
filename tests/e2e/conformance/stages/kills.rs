//! Commands that are killed, or asked to end, while they stage or commit: after the next command the
//! io dir is the old one or the new one, whole, with its modes and times.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::super::exec_cli::Commands;
use super::{
    Dice, HostMount, Tree, assert_no_stage_is_left, assert_same, difference, records, tree,
};
use crate::engine::{Engine, engine};
use crate::fixture::{eventually, finish, spawn};
use crate::shared;

/// What is run. It gives everything that it changes a certain time, so that every run leaves the same.
const CHANGES: &str = "set -e
echo two > edited
: > truncated
rm gone
chmod 700 modes
rm -r replaced
echo file > replaced
rm folder
mkdir folder
echo in > folder/in
mv moved dir/moved
rm link
ln -s edited link
for i in 1 3 5 7 9; do echo new > many/$i; done
rm many/2 many/4
echo x > many/new
touch -h -d @1500000000 link
touch -d @1500000000 edited truncated replaced folder/in many/[13579] many/new
touch -d @1600000000 folder dir many .
echo done";

/// Io dirs in one place, each in a directory of its own.
struct Cases {
    /// Io dirs in it are staged by copies, others by overlays where that can be.
    _merged: HostMount,
    commands: Commands,
    old: Tree,
    new: Tree,
    /// How long a whole command takes, and the part of it after its program's end.
    whole: Duration,
    rest: Duration,
}

impl Cases {
    /// Runs one to its end, which the others are compared with.
    fn new() -> Self {
        let commands = Commands::new();
        commands.place.expect_a_dead_instance();
        let mut cases = Self {
            _merged: HostMount::overlay(&commands.place),
            commands,
            old: Tree::new(),
            new: Tree::new(),
            whole: Duration::ZERO,
            rest: Duration::ZERO,
        };
        let io = cases.io("reference");
        // The first command of a place prepares more.
        for _ in 0..2 {
            _ = fs::remove_dir_all(&io);
            plant(&io, 10);
            cases.old = tree(&io);
            let since = Instant::now();
            let mut child = spawn(cases.command(&io));
            assert!(done(&mut child), "the program came to its end");
            cases.rest = since.elapsed();
            assert_eq!(child.wait().unwrap().code(), Some(0));
            cases.whole = since.elapsed();
            cases.rest = cases.whole - cases.rest;
        }
        cases.new = tree(&io);
        assert_ne!(cases.old, cases.new);
        assert_eq!(cases.new[&b"."[..0]].modified.0, 1_600_000_000);
        assert_no_stage_is_left(&cases.commands.place, &io, "reference");
        cases
    }

    fn io(&self, name: &str) -> PathBuf {
        self.commands.place.path(name).join("io")
    }

    fn copied_io(&self, name: &str) -> PathBuf {
        self.io(&format!("merged/{name}"))
    }

    fn command(&self, io: &Path) -> Command {
        self.command_of(io, CHANGES)
    }

    fn command_of(&self, io: &Path, program: &str) -> Command {
        let flags = ["--commit", "on-success", "--io-dir", io.to_str().unwrap()];
        self.commands.exec(&flags, &["sh", "-c", program])
    }

    /// Held at a failpoint, until the test creates the returned file.
    fn held(&self, io: &Path, point: &str) -> (Child, PathBuf) {
        Self::hold(self.command(io), io, point)
    }

    fn hold(mut command: Command, io: &Path, point: &str) -> (Child, PathBuf) {
        let points = io.parent().unwrap().with_extension("points");
        fs::create_dir_all(&points).unwrap();
        let reached = points.join(point);
        command.env("SANDBOX_FAILPOINT", &reached);
        let child = spawn(command);
        eventually(point, || reached.exists().then_some(()));
        (child, reached.with_extension("go"))
    }

    /// Leaves a commit of this io dir that has started to move files.
    fn killed_as_it_commits(&self, io: &Path) {
        let (mut child, _) = self.held(io, "Commit(\"moving\")");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What `doctor` says of stages.
    fn checked(&self) -> Value {
        let ended = self.commands.place.sandboxctl(["doctor", "--json"]);
        let checks: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
        checks.into_iter().find(|it| it["id"] == "stages").unwrap()
    }

    fn gc(&self) {
        self.commands.place.sandboxctl(["gc"]).assert_code(0);
    }

    /// What an io dir is now, after the next command.
    #[track_caller]
    fn outcome(&self, io: &Path, what: &str) -> Whole {
        let found = tree(io);
        assert_no_stage_is_left(&self.commands.place, io, what);
        match () {
            () if found == self.old => Whole::Old,
            () if found == self.new => Whole::New,
            () => panic!(
                "{what}: neither\nfound, old\n{}\nfound, new\n{}",
                difference(&found, &self.old),
                difference(&found, &self.new)
            ),
        }
    }

    /// Asserts that the engine has nothing left of any command.
    fn assert_all_is_gone(&self) {
        eventually("nothing is left", || {
            self.gc();
            self.commands.place.containers().is_empty().then_some(())
        });
        let mounts =
            String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
        let work = self.commands.place.work();
        let mounts = mounts.lines().filter(|line| line.contains(work.to_str().unwrap()));
        assert_eq!(mounts.count(), 1, "only the test's own");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Old,
    New,
}

/// Waits for the program's last words.
fn done(child: &mut Child) -> bool {
    let stdout = BufReader::new(child.stdout.as_mut().unwrap());
    stdout.lines().map_while(Result::ok).any(|line| line == "done")
}

/// The tree that is changed, with `many` files of one kind.
fn plant(io: &Path, many: usize) {
    fs::create_dir_all(io).unwrap();
    let write = |name: &str, content: &[u8]| {
        fs::create_dir_all(io.join(name).parent().unwrap()).unwrap();
        fs::write(io.join(name), content).unwrap();
    };
    for name in ["kept", "edited", "gone", "modes", "folder", "moved", "dir/a", "dir/sub/b"] {
        write(name, format!("old {name}\n").as_bytes());
    }
    write("replaced/a/b", b"deep");
    write("truncated", &[b'x'; 10_000]);
    for number in 0..many {
        write(&format!("many/{number}"), b"old");
    }
    std::os::unix::fs::symlink("kept", io.join("link")).unwrap();
    fs::set_permissions(io.join("edited"), Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(io.join("dir"), Permissions::from_mode(0o750)).unwrap();
    let time = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30));
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1 << 30, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 1 << 30, tv_nsec: 0 },
    };
    for path in tree(io).keys().rev() {
        let path = io.join(OsStr::from_bytes(path));
        if path.is_symlink() {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, flags).unwrap();
        } else {
            File::open(path).unwrap().set_times(time).unwrap();
        }
    }
}

/// Every point of a stage, in its order, and whether the commit is certain then.
const POINTS: &[(&str, Whole)] = &[
    ("Stage(\"recorded\")", Whole::Old),
    ("Stage(\"created\")", Whole::Old),
    ("Stage(\"empty\")", Whole::Old),
    ("Stage(\"filled\")", Whole::Old),
    ("Opened", Whole::Old),
    ("Greeted", Whole::Old),
    ("Commit(\"planned\")", Whole::Old),
    ("Commit(\"synced\")", Whole::Old),
    ("Commit(\"journaled\")", Whole::New),
    ("Commit(\"moving\")", Whole::New),
    ("Commit(\"applied\")", Whole::New),
];

#[test]
fn command_killed_at_any_point_of_stage_and_commit_leaves_the_old_io_dir_or_the_new_one() {
    let cases = Cases::new();
    let killed: Vec<_> = thread::scope(|scope| {
        let cases = &cases;
        let ios = [Cases::io, Cases::copied_io];
        let points = ios.into_iter().flat_map(|io| POINTS.iter().map(move |point| (io, point)));
        let started = points.enumerate().map(|(number, (io, (point, whole)))| {
            scope.spawn(move || {
                let io = io(cases, &format!("{number}"));
                plant(&io, 10);
                let (mut child, _) = cases.held(&io, point);
                child.kill().unwrap();
                child.wait().unwrap();
                (io, point, *whole)
            })
        });
        let started: Vec<_> = started.collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    cases.gc();
    for (io, point, whole) in killed {
        assert_eq!(cases.outcome(&io, point), whole, "{point}");
    }
    cases.assert_all_is_gone();
}

#[test]
fn command_asked_to_end_at_any_point_of_stage_and_commit_leaves_nothing_itself() {
    let cases = Cases::new();
    thread::scope(|scope| {
        let cases = &cases;
        for (number, (point, _)) in POINTS.iter().enumerate() {
            scope.spawn(move || {
                let io = cases.io(&format!("{number}"));
                plant(&io, 10);
                // A run that has ended well is committed: it is too late to cancel it.
                let has_ended = point.starts_with("Commit");
                let endless = format!("{CHANGES}\nexec sleep 1000");
                let program = if has_ended { CHANGES } else { &endless };
                let (mut child, go) = Cases::hold(cases.command_of(&io, program), &io, point);
                kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
                fs::write(go, "").unwrap();
                let code = child.wait().unwrap().code();
                let expected = if has_ended { (0, Whole::New) } else { (143, Whole::Old) };
                assert_eq!(
                    (code, cases.outcome(&io, point)),
                    (Some(expected.0), expected.1),
                    "{point}"
                );
            });
        }
    });
    cases.assert_all_is_gone();
}

#[test]
fn commit_that_a_power_cut_interrupts_is_completed_after_the_next_boot() {
    let cases = Cases::new();
    let place = &cases.commands.place;
    let (image, disk) = (place.path("disk.img"), place.path("disk"));
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let mut format = Command::new("mkfs.ext4");
    format.arg("-q").arg(&image);
    finish(format).assert_code(0);
    let scratch = disk.join("scratch");
    let gc = || {
        let mut gc = place.command(["gc"]);
        gc.env("SANDBOXCTL_IO_SCRATCH_DIR", &scratch);
        finish(gc).assert_code(0);
    };
    let io = |point: usize| disk.join(format!("{point}/io"));
    let points = POINTS.iter().filter(|(point, _)| point.starts_with("Commit"));
    let points: Vec<_> = points.enumerate().collect();
    let before = HostMount::disk(&image, disk.clone());
    let mut cuts = Vec::new();
    for (number, (point, whole)) in points {
        let io = io(number);
        plant(&io, 10);
        rustix::fs::syncfs(File::open(&disk).unwrap()).unwrap();
        let mut command = cases.command(&io);
        command.env("SANDBOXCTL_IO_SCRATCH_DIR", &scratch);
        let (mut child, _) = Cases::hold(command, &io, point);
        // What is on the disk now, and not what the kernel has of it in memory.
        let cut = place.path(&format!("cut-{number}.img"));
        let mut copy = Command::new("cp");
        finish({
            copy.arg("--sparse=always").args([&image, &cut]);
            copy
        })
        .assert_code(0);
        child.kill().unwrap();
        child.wait().unwrap();
        cuts.push((cut, io, point, *whole));
        gc();
    }
    drop(before);
    for (cut, io, point, whole) in cuts {
        let _after = HostMount::disk(&cut, disk.clone());
        let records = records(&scratch, &io);
        assert!(whole == Whole::Old || records.len() == 1, "{point}: {records:?}");
        for record in records {
            let mut recorded: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            recorded["boot"] = "the one before".into();
            fs::write(record, recorded.to_string()).unwrap();
        }
        gc();
        let found = tree(&io);
        let expected = if whole == Whole::New { &cases.new } else { &cases.old };
        assert_same(&found, expected, point);
        if whole == Whole::New {
            assert_no_stage_is_left(place, &io, point);
        }
    }
    cases.assert_all_is_gone();
}

/// How many of them run at the same time.
const AT_ONCE: usize = 6;

#[test]
fn commands_killed_at_random_times_leave_the_old_io_dir_or_the_new_one() {
    let cases = Cases::new();
    // Docker takes ten times as long for each.
    let kills = match engine() {
        Engine::Embedded => shared::cases(48, 400),
        Engine::Docker => shared::cases(48, 96),
    };
    let next = AtomicUsize::new(0);
    // Several run at the same time, and each is slower than one alone.
    let within = Mutex::new([cases.whole.mul_f32(1.5), cases.rest.mul_f32(2.0)]);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= kills {
                        break;
                    }
                    kill_one(&cases, number, &within);
                }
            });
        }
    });
    cases.gc();
    let (mut old, mut new) = (0, 0);
    for number in 0..kills {
        match cases.outcome(&random_io(&cases, number), &format!("case {number}")) {
            Whole::Old => old += 1,
            Whole::New => new += 1,
        }
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
    cases.assert_all_is_gone();
}

/// The io dir of a case: each third one is staged by a copy.
fn random_io(cases: &Cases, number: usize) -> PathBuf {
    match number % 3 {
        2 => cases.copied_io(&format!("{number}")),
        _ => cases.io(&format!("{number}")),
    }
}

/// Kills a command at a random time, at most so long after its beginning or its program's end, and
/// some of the next ones too.
fn kill_one(cases: &Cases, number: usize, within: &Mutex<[Duration; 2]>) {
    let mut dice = Dice::new(shared::seed() + number as u64);
    let io = random_io(cases, number);
    plant(&io, 10);
    let mut child = spawn(cases.command(&io));
    if number % 2 == 1 {
        done(&mut child);
    }
    let longest = within.lock().unwrap()[number % 2];
    nap(&mut dice, longest);
    let has_ended = child.try_wait().unwrap().is_some();
    if !has_ended {
        let signal = if number % 4 < 2 { Signal::KILL } else { Signal::TERM };
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
    }
    // However busy the machine is by now, about half of them are to have ended before.
    let factor = if has_ended { 0.8 } else { 1.25 };
    let mut within = within.lock().unwrap();
    within[number % 2] = within[number % 2].mul_f32(factor);
    drop(within);
    if number.is_multiple_of(8) {
        let mut gc = spawn(cases.commands.place.command(["gc"]));
        nap(&mut dice, cases.whole / 4);
        gc.kill().unwrap();
        gc.wait().unwrap();
    }
}

fn nap(dice: &mut Dice, within: Duration) {
    let within = u64::try_from(within.as_micros()).unwrap().max(1);
    thread::sleep(Duration::from_micros(dice.below(within)));
}

#[test]
fn recovery_that_is_killed_again_and_again_is_completed_by_the_next_command() {
    const COMMITS: usize = 4;
    const FILES: usize = 300;
    let cases = Cases::new();
    let line = "for i in many/*; do echo new > $i; done; touch -d @1500000000 many/*; \
                touch -d @1600000000 many";
    let run = |name: &str, point: Option<&str>| {
        let io = cases.io(name);
        plant(&io, FILES);
        let reached = cases.commands.place.home().join(format!("{name}.points"));
        fs::create_dir_all(&reached).unwrap();
        let flags = ["--commit", "on-success", "--io-dir", io.to_str().unwrap()];
        let mut command = cases.commands.exec(&flags, &["sh", "-c", line]);
        let Some(point) = point else {
            finish(command).assert_code(0);
            return io;
        };
        let reached = reached.join(point);
        command.env("SANDBOX_FAILPOINT", &reached);
        let mut child = spawn(command);
        eventually(point, || reached.exists().then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
        io
    };
    let new = tree(&run("whole", None));
    let interrupted: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let begin =
            |number| scope.spawn(move || run(&format!("{number}"), Some("Commit(\"journaled\")")));
        let threads: Vec<_> = (0..COMMITS).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut dice = Dice::new(7);
    let since = Instant::now();
    cases.commands.place.sandboxctl(["gc", "--dry-run"]).assert_code(0);
    let within = since.elapsed() * 2;
    for _ in 0..20 {
        let mut gc = spawn(cases.commands.place.command(["gc"]));
        nap(&mut dice, within);
        gc.kill().unwrap();
        gc.wait().unwrap();
    }
    cases.gc();
    for io in interrupted {
        assert_same(&tree(&io), &new, "recovered");
        assert_no_stage_is_left(&cases.commands.place, &io, "recovered");
    }
    cases.assert_all_is_gone();
}

#[test]
fn commit_whose_stage_was_moved_is_reported_and_completed_when_it_is_back() {
    let cases = Cases::new();
    let place = &cases.commands.place;
    let io = cases.io("hidden");
    plant(&io, 10);
    cases.killed_as_it_commits(&io);
    let beside = fs::read_dir(io.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let stage = beside.into_iter().find(|path| path.to_string_lossy().contains("-stage-")).unwrap();
    let elsewhere = io.with_file_name("elsewhere");
    // As the owner of their parent directory can do.
    fs::rename(&stage, &elsewhere).unwrap();
    fs::create_dir(&stage).unwrap();
    for _ in 0..2 {
        let reported = place.sandboxctl(["gc"]);
        let needs = format!("needs {}, which is not there", stage.display());
        reported
            .assert_code(125)
            .assert_stderr_has(&needs)
            .assert_stderr_has("move it back and run");
    }
    let report: Value = serde_json::from_str(&place.sandboxctl(["gc", "--json"]).stdout).unwrap();
    assert_eq!(report["stages_kept"][0]["missing"], json!([stage]), "{report:#}");
    let stages = cases.checked();
    assert_eq!(stages["status"], "warn", "{stages:#}");
    assert!(stages["fix"].as_str().unwrap().contains("move it back"), "{stages:#}");
    fs::remove_dir(&stage).unwrap();
    fs::rename(&elsewhere, &stage).unwrap();
    cases.gc();
    assert_eq!(cases.outcome(&io, "hidden"), Whole::New);
    cases.assert_all_is_gone();
}

#[test]
fn commit_blocked_by_a_mount_is_reported_and_completed_without_it() {
    let cases = Cases::new();
    let place = &cases.commands.place;
    let io = cases.io("mounted");
    plant(&io, 10);
    cases.killed_as_it_commits(&io);
    let mount = HostMount::bind(io.join("edited"));
    for args in [&["gc"][..], &["gc", "--dry-run"], &["gc"]] {
        let reported = place.sandboxctl(args);
        reported
            .assert_code(125)
            .assert_stderr_has("cannot change edited: unmount what is mounted there")
            .assert_stderr_has("to give the commit up, delete");
    }
    let report: Value = serde_json::from_str(&place.sandboxctl(["gc", "--json"]).stdout).unwrap();
    assert_eq!(report["commits_completed"], json!([]), "{report:#}");
    let blocked = &report["stages_kept"][0]["blocked"];
    assert_eq!(*blocked, json!({"first": ["edited"], "more": 0}), "{report:#}");
    let stages = cases.checked();
    assert_eq!(stages["status"], "warn", "{stages:#}");
    assert!(stages["fix"].as_str().unwrap().contains("cannot change edited"), "{stages:#}");
    drop(mount);
    cases.gc();
    assert_eq!(cases.outcome(&io, "mounted"), Whole::New);
    cases.assert_all_is_gone();
}

#[test]
fn paths_that_a_recovery_skips_are_reported_by_the_completing_command() {
    let cases = Cases::new();
    let place = &cases.commands.place;
    for way in ["gc", "gc --json", "doctor", "exec"] {
        let io = cases.io(&format!("conflict-{}", way.replace(' ', "")));
        plant(&io, 10);
        cases.killed_as_it_commits(&io);
        fs::write(io.join("edited"), "of another program").unwrap();
        let io_dir = io.to_str().unwrap();
        let reported = format!("the interrupted commit to {io_dir} was completed without edited:");
        match way {
            "gc" => {
                let ended = place.sandboxctl(["gc"]);
                assert!(ended.assert_code(0).stdout.contains(&reported), "{}", ended.stdout);
            }
            "gc --json" => {
                let ended = place.sandboxctl(["gc", "--json"]);
                let report: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
                let paths = json!({"first": ["edited"], "more": 0});
                let expected = json!([{"io_dir": io_dir, "paths": paths}]);
                assert_eq!(report["commit_conflicts"], expected, "{report:#}");
            }
            "doctor" => {
                let ended = place.sandboxctl(["doctor", "--json"]);
                assert!(ended.stdout.contains(&reported), "{}", ended.stdout);
            }
            _ => {
                let command = cases.commands.exec(&["--io-dir", io_dir], &["true"]);
                finish(command).assert_code(0).assert_stderr_has(&format!("warning: {reported}"));
            }
        }
        assert_eq!(fs::read_to_string(io.join("edited")).unwrap(), "of another program");
        assert_eq!(fs::read_to_string(io.join("replaced")).unwrap(), "file\n");
        assert_no_stage_is_left(place, &io, way);
    }
    cases.assert_all_is_gone();
}

#[test]
fn gc_and_doctor_report_what_dead_controllers_left_of_stages() {
    let cases = Cases::new();
    let place = &cases.commands.place;
    for way in ["gc", "doctor"] {
        let points = ["Commit(\"planned\")", "Commit(\"journaled\")"];
        let ios = ["discarded", "interrupted"].map(|name| cases.io(&format!("{way}-{name}")));
        for io in &ios {
            plant(io, 10);
        }
        // The second waits for the lock of commits, and so was launched before the first is killed.
        let (mut first, _) = cases.held(&ios[0], points[0]);
        let reached = place.home().join(points[1]);
        let mut command = cases.command(&ios[1]);
        command.env("SANDBOX_FAILPOINT", &reached);
        let mut second = spawn(command);
        assert!(done(&mut second));
        first.kill().unwrap();
        first.wait().unwrap();
        eventually(points[1], || reached.exists().then_some(()));
        fs::remove_file(reached).unwrap();
        second.kill().unwrap();
        second.wait().unwrap();
        let report = |args: &[&str]| -> Value {
            let ended = place.sandboxctl(args);
            serde_json::from_str(&ended.assert_code(0).stdout).unwrap()
        };
        let assert_lists = |report: &Value| {
            let [discarded, interrupted] = &ios;
            assert_eq!(report["stages_removed"][0]["io_dir"], *discarded.to_str().unwrap());
            assert_eq!(report["commits_completed"][0]["io_dir"], *interrupted.to_str().unwrap());
            assert_eq!(report["stages_kept"], json!([]));
        };
        assert_lists(&report(&["gc", "--dry-run", "--json"]));
        if way == "gc" {
            assert_lists(&report(&["gc", "--json"]));
        } else {
            let stages = cases.checked();
            let detail = stages["detail"].as_str().unwrap();
            assert!(detail.contains("1 interrupted commits, 1 stages to discard"), "{detail}");
            assert!(ios.iter().all(|io| detail.contains(io.to_str().unwrap())), "{detail}");
        }
        assert_eq!(ios.map(|io| cases.outcome(&io, way)), [Whole::Old, Whole::New]);
    }
    cases.assert_all_is_gone();
}
