//! A sandbox with programs that is given no io dir: it gets a private one, which ends with it. The kernel
//! bounds it: it is an image without a name, on a loop device.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use sandbox_api::{Status, User};
use sandbox_controller::Command;
use serde_json::json;

use super::exec_cli::{Commands, document};
use crate::engine::{Engine, engine};
use crate::fixture::{eventually, finish, spawn};
use crate::library::Guest;
use crate::rootfs::Rootfs;
use crate::shared::cases;

/// The entries of a place's scratch directory.
fn fresh(commands: &Commands) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(commands.place.scratch()).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// How many loop devices have an image in that directory.
fn images(commands: &Commands) -> usize {
    let scratch = commands.place.scratch();
    let devices = std::fs::read_dir("/sys/block").unwrap();
    let files = devices.filter_map(|device| {
        std::fs::read_to_string(device.unwrap().path().join("loop/backing_file")).ok()
    });
    files.filter(|file| file.starts_with(scratch.to_str().unwrap())).count()
}

#[test]
fn module_that_a_command_planted_is_not_loaded_by_the_next() {
    let commands = Commands::new();
    let line = "echo 'echo poisoned' > json.py; cat json.py";
    commands.shell(&[], line).assert_code(0);
    // Nor is one that a script has left where scripts leave their files.
    commands.place.write("sandbox-files/json.py", "echo poisoned");
    let ended = commands.shell(&[], "if [ -e json.py ]; then . ./json.py; fi; ls -A /io | wc -l");
    assert_eq!(ended.assert_code(0).stdout, "0\n");
    let script = "return process.exec('ls', {'-A', '/io'}).stdout";
    commands.place.write("list.luau", script);
    let mut run = commands.place.command(["run"]);
    run.args(commands.provided.args()).arg("list.luau");
    assert_eq!(finish(run).assert_code(0).stdout, "\"\"\n");
    assert_eq!(commands.place.read("sandbox-files/json.py"), "echo poisoned");
}

#[test]
fn discarded_files_are_counted_and_listed() {
    let commands = Commands::new();
    let line = "mkdir d; echo 1234 > a; echo 1234 > d/b; echo x > c; rm c";
    let ended = commands.shell(&[], line);
    ended.assert_code(0);
    assert_eq!(ended.stderr, "note: 2 files (10 B) were discarded; --io-dir DIR keeps them\n");
    assert_eq!(commands.shell(&["--quiet"], line).assert_code(0).stderr, "");
    let reported = document(commands.shell(&["--json"], line).assert_code(0));
    assert_eq!(reported["io_dir"], json!(null), "{reported:#}");
    let names: Vec<_> = reported["files_touched"].as_array().unwrap().iter().collect();
    assert_eq!(names.iter().map(|file| &file["name"]).collect::<Vec<_>>(), ["a", "d/b"]);
    assert_eq!(commands.shell(&[], "true").assert_code(0).stderr, "");
    assert!(!commands.place.path("sandbox-files").exists());

    commands.place.write("write.luau", "fs.write('f', 'x')");
    let mut run = commands.place.command(["run"]);
    run.args(commands.provided.args()).arg("write.luau");
    let ended = finish(run);
    ended.assert_code(0);
    assert_eq!(ended.stderr, "note: 1 file (1 B) was discarded; --io-dir DIR keeps it\n");
}

#[test]
fn keep_keeps_the_files_and_prints_their_path() {
    let commands = Commands::new();
    let ended = commands.shell(&["--keep"], "echo x > f");
    ended.assert_code(0);
    let dir = ended.stderr.strip_prefix("note: the files are in ").unwrap().trim_end();
    let dir = PathBuf::from(dir);
    assert_eq!(std::fs::read_to_string(dir.join("f")).unwrap(), "x\n");
    assert!(dir.starts_with(commands.place.work()), "{}", dir.display());
    // The next one is another.
    let reported = document(commands.shell(&["--keep", "--json"], "ls; echo x > f").assert_code(0));
    assert_eq!(reported["stdout"], "");
    assert_ne!(reported["io_dir"].as_str().unwrap(), dir.to_str().unwrap());
    let before = std::fs::read_dir(commands.place.work()).unwrap().count();
    assert_eq!(commands.shell(&["--keep"], "true").assert_code(0).stderr, "");
    assert_eq!(std::fs::read_dir(commands.place.work()).unwrap().count(), before);
    commands.shell(&["--keep", "--io-dir", "x"], "true").assert_code(2);
    commands.shell(&["--keep", "--no-io"], "true").assert_code(2);
}

#[test]
fn directories_that_are_made_belong_to_the_user_who_runs() {
    let commands = Commands::new();
    let place = &commands.place;
    let line = "touch f && stat -c %u:%g .";
    let run = |flags: &[&str]| {
        let ended = commands.shell(&[&["--user", "4321:4322"], flags].concat(), line);
        assert_eq!(ended.assert_code(0).stdout, "4321:4322\n", "{flags:?}");
        ended
    };
    let owner = |path: &std::path::Path| {
        let made = std::fs::metadata(path).unwrap();
        (made.uid(), made.gid())
    };
    run(&[]);
    // Programs warn of a directory that everybody may write to.
    assert_eq!(commands.shell(&[], "stat -c %a /io").assert_code(0).stdout, "755\n");
    let kept = run(&["--keep"]);
    let kept = kept.stderr.strip_prefix("note: the files are in ").unwrap().trim_end();
    assert_eq!(owner(kept.as_ref()), (4321, 4322));
    run(&["--io-dir", "made/deep"]);
    for path in ["made", "made/deep", "made/deep/f"] {
        assert_eq!(owner(&place.path(path)), (4321, 4322), "{path}");
    }
    run(&["--io-dir", "staged", "--diff=staged.diff"]);
    // One that was there stays whose it is.
    std::fs::create_dir(place.path("there")).unwrap();
    let mine = owner(&place.path("there"));
    commands.shell(&["--user", "4321", "--io-dir", "there/made"], line).assert_code(0);
    assert_eq!(owner(&place.path("there")), mine);
    assert_eq!(owner(&place.path("there/made")), (4321, 4321));
}

#[test]
fn kept_io_dir_can_be_written_to_by_users_who_do_not_own_it() {
    let provided = Rootfs::busybox().folder("tmp", 0o1777).provide();
    let place = tempfile::tempdir().unwrap();
    for (name, user) in [("a", None), ("b", Some(4321)), ("c", Some(4322))] {
        let guest = Guest::with(|spec| {
            let user = user.map(|uid| User::new(uid, uid).unwrap());
            spec.root(provided.root()).user(user).kept_io_dir(place.path().join("kept"))
        });
        let line = format!("mkdir {name}");
        let ended = guest.wait(guest.sandbox.run(Command::shell(line))).unwrap();
        assert_eq!(ended.outcome.status(), Status::Ok, "{user:?}: {ended:?}");
    }
}

#[test]
fn named_io_dir_is_used_from_any_source() {
    let commands = Commands::new();
    let place = &commands.place;
    commands.shell(&["--io-dir", "by-flag"], "echo x > f").assert_code(0);
    let mut exec = commands.exec(&[], &["touch", "f"]);
    exec.env("SANDBOXCTL_IO_DIR", "by-variable");
    finish(exec).assert_code(0);
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "io.dir = 'by-user'\n").unwrap();
    commands.shell(&[], "echo x > f").assert_code(0);
    place.write("sandboxctl.toml", "io.dir = 'by-project'\n");
    commands.shell(&["--keep"], "echo x > f").assert_code(0).assert_stderr_has("by-project");
    for named in ["by-flag", "by-variable", "by-user", "by-project"] {
        assert!(place.path(named).join("f").exists(), "{named}");
    }
}

#[test]
fn tree_that_resists_its_removal_is_removed() {
    let commands = Commands::new();
    let line = "i=0; while [ $i -lt 100 ]; do mkdir d e && cd -P d || exit 1; i=$((i + 1)); done; \
                mkdir /io/closed; touch /io/closed/f; ln -s /etc /io/link; \
                chmod 000 /io/closed; chmod 000 /io; echo made";
    let ended = commands.shell(&[], line);
    assert_eq!(ended.assert_code(0).stdout, "made\n");
    assert_eq!(fresh(&commands), Vec::<PathBuf>::new());
    eventually("its image is gone", || (images(&commands) == 0).then_some(()));
}

#[test]
fn killed_controller_leaves_no_fresh_io_dir() {
    let commands = Commands::new();
    let line = "echo secret > f; chmod 000 /io; echo ready; sleep 1000";
    let (mut child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], line);
    let here = || (fresh(&commands).len(), images(&commands));
    assert_eq!(here(), (0, 1));
    // A sweep does nothing to it.
    commands.place.sandboxctl(["gc"]).assert_code(0);
    assert_eq!(here(), (0, 1));
    commands.place.expect_a_dead_instance();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdout);
    // Its container ends without a command.
    eventually("the kernel removes it", || (here() == (0, 0)).then_some(()));
    eventually("its container is gone", || {
        commands.place.sandboxctl(["gc"]).assert_code(0);
        commands.place.containers().is_empty().then_some(())
    });
}

#[test]
fn controller_that_is_killed_at_any_point_leaves_no_device_and_no_image() {
    let commands = Commands::new();
    let place = &commands.place;
    place.expect_a_dead_instance();
    let points = [
        "Opened", "Before(Create)", "After(Create)", "After(Attach)", "Before(Start)",
        "After(Start)", "Greeted", "Answered", "Before(Remove)",
    ];
    // Docker takes seconds for each.
    let step = if engine() == Engine::Docker { cases(2, 1) } else { 1 };
    for point in points.iter().step_by(step) {
        let reached = place.home().join(point);
        let mut command = commands.exec(&["--timeout", "60s"], &["touch", "f"]);
        command.env("SANDBOX_FAILPOINT", &reached);
        let mut child = spawn(command);
        eventually(point, || reached.exists().then_some(()));
        assert_eq!(images(&commands), 1, "{point}");
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(reached).unwrap();
        eventually(point, || (images(&commands) == 0).then_some(()));
        eventually(point, || {
            place.sandboxctl(["gc"]).assert_code(0);
            place.containers().is_empty().then_some(())
        });
        assert_eq!(fresh(&commands), Vec::<PathBuf>::new(), "{point}");
    }
}

#[test]
fn sandboxes_with_programs_have_limits_for_builds_and_others_have_theirs() {
    let commands = Commands::new();
    let limits = |reported: &serde_json::Value| {
        ["timeout_ms", "memory_bytes", "pids", "write_bytes", "entries"].map(|key| {
            reported["limits"][key].as_u64().unwrap_or_else(|| panic!("{key} {reported:#}"))
        })
    };
    let reported = document(commands.shell(&["--json"], "true").assert_code(0));
    assert_eq!(limits(&reported), [600_000, 1 << 30, 256, 1 << 30, 100_000]);
    let args = commands.provided.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let reported = commands.place.run_json("return 1", &args);
    assert_eq!(limits(&reported), [600_000, 1 << 30, 256, 1 << 30, 100_000]);
    let reported = commands.place.run_json("return 1", &[]);
    assert_eq!(limits(&reported), [30_000, 256 << 20, 64, 50 << 20, 10_000]);
    let flags = ["--json", "--entries", "7", "--timeout", "50s"];
    let reported =
        document(&commands.shell(&flags, "for i in 1 2 3 4 5 6 7 8 9; do touch $i; done"));
    assert_eq!((limits(&reported)[0], limits(&reported)[4]), (50_000, 7));
    assert_eq!(reported["error"]["hint"], "--entries raises the limit", "{reported:#}");
}
