//! What of the host is mounted into a sandbox, and what the host has mounted below that. Mounting
//! needs root.

use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use sandbox_api::operation::{Remove, Write};
use sandbox_api::{ErrorKind, Input, Limits, Outcome, SandboxSpec, Script, Status};
use sandbox_controller::{CancelHandle, Command, Error};
use serde_json::json;

use crate::engine::{Engine, engine};
use crate::fixture::{Ended, Fixture, eventually, finish, spawn, wait};
use crate::library::{Guest, Library, NextEvent as _};
use crate::rootfs::Rootfs;

/// A mount of the host, removed at its end even if the test fails.
pub struct HostMount(pub PathBuf);

impl HostMount {
    /// An empty file system in memory, with these options.
    pub(super) fn memory(at: PathBuf, options: &CStr) -> Self {
        fs::create_dir_all(&at).unwrap();
        rustix::mount::mount("tmpfs", &at, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(at)
    }

    /// A file system in memory with the file `inside`.
    fn tmpfs(at: PathBuf) -> Self {
        let mounted = Self::memory(at, c"size=1m");
        fs::write(mounted.0.join("inside"), "of the host").unwrap();
        mounted
    }

    /// A directory of the same device.
    pub fn bind(source: &Path, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        rustix::mount::mount_bind(source, &at).unwrap();
        Self(at)
    }

    #[track_caller]
    fn assert_is_mounted(&self) {
        let inside = fs::read_to_string(self.0.join("inside"));
        assert_eq!(inside.unwrap(), "of the host", "{}", self.0.display());
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn run(place: &Fixture, args: &[&str]) -> Ended {
    let source = "pcall(fs.remove, 'm', {recursive = true}) pcall(fs.rename, 'm', 'n')";
    let script = place.write("script.luau", source);
    place.sandboxctl(["run", script.to_str().unwrap()].iter().chain(args))
}

#[track_caller]
pub fn assert_refused(ended: &Ended, why: &str) {
    ended.assert_code(121).assert_stderr_has(why).assert_stderr_has("hint: ");
}

#[test]
fn directory_of_another_user_is_not_mounted_for_users_of_docker() {
    // The embedded engine is root's.
    if engine() != Engine::Docker {
        return;
    }
    const USER: (u32, u32) = (4321, 4322);
    let place = Fixture::new();
    place.give_to(USER);
    let run = |args: &[&str]| {
        let command = place.command(["run", "-c", "io.open('made', 'w')"].iter().chain(args));
        finish(place.command_of(USER, &command))
    };
    let mode = |name: &str, mode: u32| {
        let path = place.path(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root's: the state directory of root's sandboxes is like the first, `/etc` like the second.
    for (name, permissions) in [("closed", 0o700), ("seen", 0o755), ("listed", 0o766)] {
        mode(name, permissions);
        run(&["--io-dir", name])
            .assert_code(2)
            .assert_stderr_has("you may not read, write and enter it: Permission denied")
            .assert_stderr_has("hint: ");
        assert_eq!(fs::read_dir(place.path(name)).unwrap().count(), 0, "{name}");
    }
    for name in ["closed", "listed"] {
        let refused = run(&["--io-dir", "own", "--in", name]);
        refused.assert_code(2).assert_stderr_has("Permission denied");
    }
    run(&["--io-dir", "own", "--in", "seen"]).assert_code(0);
    assert!(place.path("own/made").is_file());
    // What the last one has left to the engine: its state is closed to root's commands.
    finish(place.command_of(USER, &place.command(["gc"]))).assert_code(0);
}

#[test]
fn mount_point_below_the_io_dir_or_an_input_is_refused_at_launch() {
    let place = Fixture::new();
    let tmpfs = HostMount::tmpfs(place.path("sandbox-files/m"));
    assert_refused(&run(&place, &[]), &format!("{} is a mount point below it", tmpfs.0.display()));
    let document = place.run_json("return 1", &[]);
    assert_eq!(document["status"], "error", "{document:#}");
    assert_eq!(document["error"]["kind"], "policy");
    tmpfs.assert_is_mounted();
    drop(tmpfs);

    // Device numbers do not distinguish a bind mount from its parent.
    place.write("elsewhere/inside", "of the host");
    let odd = place.path("sandbox-files/a b\\040/m");
    let bind = HostMount::bind(&place.path("elsewhere"), odd);
    assert_refused(&run(&place, &[]), "a b\\040/m is a mount point below it");
    bind.assert_is_mounted();
    drop(bind);

    place.write("data/sub/x", "");
    let below_input = HostMount::tmpfs(place.path("data/sub/m"));
    assert_refused(&run(&place, &["--in", "data"]), "cannot use ");
    assert_refused(&run(&place, &["--in", "data/sub:x"]), "as the input 'x': ");
    run(&place, &["--in", "data/sub/x"]).assert_code(0);
    below_input.assert_is_mounted();
    run(&place, &["--io-dir", "data/sub/m"]).assert_code(0);
    below_input.assert_is_mounted();
}

#[test]
fn mount_point_below_another_mount_of_the_io_dir_is_refused() {
    let place = Fixture::new();
    place.write("data/x/f", "");
    let view = HostMount::bind(&place.path("data"), place.path("view"));
    let below = HostMount::tmpfs(place.path("view/x/m"));
    // It sits on a directory that the io dir has too, and would go with that.
    let why = format!("{} is a mount point below it", below.0.display());
    assert_refused(&run(&place, &["--io-dir", "data/x"]), &why);
    below.assert_is_mounted();
    // Mounts of the io dir elsewhere do no harm.
    drop(below);
    run(&place, &["--io-dir", "data/x"]).assert_code(0);
    run(&place, &["--io-dir", "view/x"]).assert_code(0);
    drop(view);
}

/// A sandbox that may run for long, with the directory `m` in its io dir.
fn guest(spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Guest {
    let place = Fixture::new();
    fs::create_dir_all(place.path("sandbox-files/m")).unwrap();
    let limits = Limits { timeout: Duration::from_secs(100), ..Limits::default() };
    Guest::in_place(place, |it| spec(it.limits(limits)))
}

#[track_caller]
fn assert_ended_for(outcome: &Outcome, mounted: &HostMount) {
    assert_eq!((outcome.status(), outcome.exit_code()), (Status::Error, 121), "{outcome:?}");
    let Outcome::Error { failure, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, ErrorKind::Policy);
    assert!(failure.message.starts_with("the sandbox was ended: the io dir"), "{failure:?}");
    let reported = format!("{} is a mount point below it", mounted.0.display());
    assert!(failure.message.contains(&reported), "{failure:?}");
    assert!(failure.hint.as_ref().unwrap().contains("still mounted"), "{failure:?}");
    mounted.assert_is_mounted();
}

#[test]
fn mount_that_appears_ends_the_script_and_is_reported() {
    let guest = guest(|spec| spec);
    let source = "fs.write('begun', '') print('begun') while true do end";
    let mut mounted = None;
    let result = guest.wait(async {
        let mut run = guest.sandbox.start(Script::new(source), CancelHandle::new()).await.unwrap();
        run.next_log().await.unwrap();
        mounted = Some(HostMount::tmpfs(guest.place.path("sandbox-files/m")));
        run.wait().await.unwrap()
    });
    assert_ended_for(&result.outcome, mounted.as_ref().unwrap());
    // Nothing of it is lost.
    assert_eq!(result.logs().len(), 1, "{result:?}");
    let touched: Vec<_> = result.files_touched.files.iter().map(|file| &file.name).collect();
    assert_eq!(touched, ["begun"], "{result:?}");
    assert_eq!(guest.kind(json!({"operation": "read", "path": "begun"})), "policy");
}

#[test]
fn mount_that_appears_ends_the_command_and_is_reported() {
    let provided = Rootfs::busybox().provide();
    let guest = guest(|spec| spec.root(provided.root()));
    let mut mounted = None;
    let result = guest.wait(async {
        let command = Command::shell("echo begun; sleep 100");
        let mut execution = guest.sandbox.start(command, CancelHandle::new()).await.unwrap();
        execution.next_output().await.unwrap();
        mounted = Some(HostMount::tmpfs(guest.place.path("sandbox-files/m")));
        execution.wait().await.unwrap()
    });
    assert_ended_for(&result.outcome, mounted.as_ref().unwrap());
    assert_eq!((result.command_exit_code(), result.signal()), (None, None), "{result:?}");
}

#[test]
fn mount_that_appears_in_a_fresh_io_dir_ends_the_script_and_is_reported() {
    // Programs have one that the host cannot mount into.
    let guest = guest(SandboxSpec::fresh_io_dir);
    let scratch = guest.place.state().join("sandboxctl/scratch");
    let mut mounted = None;
    let result = guest.wait(async {
        let script = Script::new("fs.mkdir('m') print('begun') while true do end");
        let mut execution = guest.sandbox.start(script, CancelHandle::new()).await.unwrap();
        execution.next_log().await.unwrap();
        let fresh = fs::read_dir(&scratch).unwrap();
        let mut fresh = fresh.map(|entry| entry.unwrap().path().join("files/m"));
        mounted = Some(HostMount::tmpfs(fresh.find(|path| path.exists()).unwrap()));
        execution.wait().await.unwrap()
    });
    let mounted = mounted.unwrap();
    assert_ended_for(&result.outcome, &mounted);
    let Guest { sandbox, library, place: _place } = guest;
    drop(sandbox);
    drop(library);
    // What it is mounted on cannot be removed, and nothing that it has is.
    mounted.assert_is_mounted();
    drop(mounted);
    fs::remove_dir_all(scratch).unwrap();
}

/// Runs a script that prints, and is to end for a mount whose directory is then renamed into the io dir.
fn assert_ends_for_a_mount_that_is_moved_in(source: &str) {
    let guest = guest(|spec| spec);
    let aside = guest.place.path("aside");
    fs::create_dir_all(aside.join("m")).unwrap();
    let mounted = HostMount::tmpfs(aside.join("m"));
    let result = guest.wait(async {
        let mut run = guest.sandbox.start(Script::new(source), CancelHandle::new()).await.unwrap();
        run.next_log().await.unwrap();
        // The kernel does not report this.
        fs::rename(&aside, guest.place.path("sandbox-files/aside")).unwrap();
        run.wait().await.unwrap()
    });
    assert_eq!(result.outcome.status(), Status::Error, "{result:?}");
    assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::Policy, "{result:?}");
    fs::rename(guest.place.path("sandbox-files/aside"), &aside).unwrap();
    mounted.assert_is_mounted();
}

#[test]
fn mount_that_is_moved_into_the_io_dir_with_its_directory_ends_the_script() {
    assert_ends_for_a_mount_that_is_moved_in("print('begun') while true do end");
}

#[test]
fn mount_that_is_moved_into_the_io_dir_just_before_the_end_is_reported() {
    let source = "print('begun') while not fs.exists('aside') do end";
    assert_ends_for_a_mount_that_is_moved_in(source);
}

#[test]
fn mount_that_is_moved_into_the_io_dir_of_an_idle_sandbox_is_seen_at_its_next_use() {
    let guest = guest(|spec| spec);
    let aside = guest.place.path("aside");
    fs::create_dir_all(aside.join("m")).unwrap();
    let mounted = HostMount::tmpfs(aside.join("m"));
    guest.wait(async {
        guest.sandbox.write(Write::new("before"), "").await.unwrap();
        // Longer than a look is good for.
        tokio::time::sleep(Duration::from_millis(300)).await;
        fs::rename(&aside, guest.place.path("sandbox-files/aside")).unwrap();
        let remove = Remove { recursive: true, ..Remove::new("aside") };
        guest.sandbox.call(remove).await.unwrap_err();
    });
    fs::rename(guest.place.path("sandbox-files/aside"), &aside).unwrap();
    mounted.assert_is_mounted();
}

#[test]
fn mount_whose_name_is_not_utf8_changes_nothing() {
    let place = Fixture::new();
    let name = place.work().join(std::ffi::OsStr::from_bytes(b"\xff"));
    let mounted = HostMount::tmpfs(name);
    assert_eq!(place.run_json("return 1", &["--no-io"])["result"], 1);
    mounted.assert_is_mounted();
}

#[test]
fn bind_mount_that_appears_below_an_input_ends_an_idle_sandbox() {
    let place = Fixture::new();
    place.write("elsewhere/inside", "of the host");
    place.write("data/f", "");
    let data = place.path("data");
    let guest = Guest::in_place(place, |spec| spec.input(Input::path(&data, "data")));
    // Mounts elsewhere end nothing.
    let elsewhere = HostMount::tmpfs(guest.place.path("other"));
    assert_eq!(guest.data(json!({"operation": "exists", "path": "/in/data/f"}))["exists"], true);
    let source = guest.place.path("elsewhere");
    let mounted = HostMount::bind(&source, data.join("m"));
    let error = eventually("the sandbox's end", || guest.sandbox.ended());
    assert!(matches!(error, Error::MountLost { .. }), "{error}");
    assert!(error.to_string().contains("the input 'data'"), "{error}");
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Policy, 121));
    mounted.assert_is_mounted();
    elsewhere.assert_is_mounted();
}

#[test]
fn mount_that_appears_is_printed_with_a_hint_and_in_the_document() {
    let place = Fixture::new();
    fs::create_dir_all(place.path("sandbox-files/m")).unwrap();
    let source = "fs.write('begun', '') while true do end";
    let script = place.write("script.luau", source);
    for json in [false, true] {
        let args = ["run", script.to_str().unwrap(), "--timeout", "100s"];
        let child = spawn(place.command(args.iter().chain(json.then_some(&"--json"))));
        let begun = place.path("sandbox-files/begun");
        eventually("the script's begin", || begun.exists().then_some(()));
        let mounted = HostMount::tmpfs(place.path("sandbox-files/m"));
        let ended = wait(child);
        mounted.assert_is_mounted();
        drop(mounted);
        fs::remove_file(begun).unwrap();
        if json {
            let document = place.document(&ended);
            assert_eq!(document["status"], "error", "{document:#}");
            assert_eq!(document["error"]["kind"], "policy", "{document:#}");
            assert_eq!(document["files_touched"][0]["name"], "begun", "{document:#}");
        } else {
            assert_refused(&ended, "sandbox-files/m is a mount point below it");
        }
    }
}

#[test]
fn pseudo_file_systems_and_devices_are_not_mounted() {
    let place = Fixture::new();
    let proc = HostMount::bind(Path::new("/proc"), place.path("innocent"));
    // Other tests have mounts whose names are not UTF-8.
    let mounts = fs::read("/proc/self/mounts").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let mut cgroup = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let cgroup = cgroup.rfind(|fields| fields[2].starts_with("cgroup")).unwrap()[1];
    for path in ["/proc", "/proc/self", "/sys", cgroup, "/dev", "/dev/pts", "innocent"] {
        assert_refused(&run(&place, &["--io-dir", path]), "as the io dir: it is ");
        assert_refused(&run(&place, &["--in", &format!("{path}:x")]), "as the input 'x': it is ");
    }
    // As `/etc/mtab` is.
    symlink("/proc/mounts", place.path("link")).unwrap();
    for file in ["/proc/version", "/proc/self/environ", "innocent/version", "link"] {
        let ended = run(&place, &["--in", &format!("{file}:x")]);
        assert_refused(&ended, "pseudo file system (proc)");
        ended.assert_stderr_has("`--in -:NAME < FILE` gives a copy");
    }
    drop(proc);
    // What stores files is mounted, and so is what comes by stdin.
    let tmpfs = HostMount::tmpfs(place.path("tmpfs"));
    run(&place, &["--io-dir", "tmpfs", "--in", "tmpfs/inside"]).assert_code(0);
    tmpfs.assert_is_mounted();
    place.sandboxctl_with(b"x", ["run", "script.luau", "--in", "-:x"]).assert_code(0);
}

#[test]
fn root_of_the_whole_system_is_refused_as_a_root_under_any_path() {
    if engine() != Engine::Embedded {
        return;
    }
    let place = Fixture::new();
    symlink("/", place.path("link")).unwrap();
    let _bind = HostMount::bind(Path::new("/"), place.path("bound"));
    for path in ["/", "link", "bound", "bound/proc/.."] {
        let ended = place.sandboxctl(["exec", "--rootfs", path, "--", "/bin/true"]);
        assert_refused(&ended, "as the root directory: programs could read all of this machine's");
    }
}

#[test]
fn own_folders_and_their_parents_are_not_mounted_however_they_are_named() {
    let place = Fixture::new();
    run(&place, &[]).assert_code(0);
    let root = place.work().parent().unwrap().to_owned();
    symlink(&root, place.path("link")).unwrap();
    let bind = HostMount::bind(&root, place.home().join("view"));
    let work = place.work();
    let spelled = |below: &str| {
        [work.join("..").join(below), work.join("link").join(below), bind.0.join(below)]
            .map(|path| path.to_str().unwrap().to_owned())
    };
    for own in ["state/sandboxctl", "state/sandboxctl/instances", "data", "data/programs"] {
        for path in spelled(own) {
            assert_refused(&run(&place, &["--io-dir", &path]), "as the io dir: it is in the ");
            if Path::new(&path).is_dir() {
                let input = run(&place, &["--in", &format!("{path}:x")]);
                assert_refused(&input, "as the input 'x': it is in the ");
            }
        }
    }
    // Where nothing is, nothing is made.
    let new = root.join("state/sandboxctl/new/dir");
    assert_refused(
        &run(&place, &["--io-dir", new.to_str().unwrap()]),
        "it is in the state directory",
    );
    assert!(!root.join("state/sandboxctl/new").exists());
    for parent in ["", "state"] {
        for path in spelled(parent) {
            let ended = run(&place, &["--io-dir", path.trim_end_matches('/')]);
            // A link as the last component is refused for itself.
            if !path.trim_end_matches('/').ends_with("link") {
                assert_refused(&ended, " is in it");
            }
        }
    }

    // The library, and the tools.
    let library = Library::new(&place);
    for path in [root.join("state/sandboxctl"), root.join("data"), root.clone()] {
        let error = library.try_launch(SandboxSpec::new().io_dir(&path)).unwrap_err();
        assert!(matches!(error, Error::MountRefused { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Policy);
    }
    drop(library);
    let config = place.write("c.toml", "[tools]\nallowed_out_paths = ['/']\n");
    let init =
        json!({"containerId": "c", "projectOutPath": root.join("state/sandboxctl")}).to_string();
    let call = json!({"containerId": "c", "path": "x", "content": "x"}).to_string();
    let args = ["tool", "sandbox_write_file", "--init", &init, "--input", &call];
    let ended = place.sandboxctl(args.iter().chain(&["--config", config.to_str().unwrap()]));
    ended.assert_code(121);
    assert!(format!("{}{}", ended.stdout, ended.stderr).contains("is in the state directory"));
}

#[test]
fn what_a_service_keeps_is_neither_mounted_nor_seen() {
    let place = Fixture::new();
    place.write("service/files/a/f", "");
    place.write("seen", "");
    let data_dir = place.path("service");
    let text = format!("[server]\ndata_dir = '{}'\n", data_dir.display());
    let config = place.write("c.toml", text);
    let run =
        |flags: &[&str]| run(&place, &[&["--config", config.to_str().unwrap()], flags].concat());
    for path in ["service", "service/files", "service/files/a", "service/new"] {
        let refused = run(&["--io-dir", path]);
        assert_refused(&refused, "as the io dir: it is in the service's data directory ");
    }
    let refused = run(&["--in", "service/files/a/f:x"]);
    assert_refused(&refused, "as the input 'x': it is in the service's data directory ");
    assert_refused(&run(&["--io-dir", "."]), "is in it");
    let source = "local ok, kept = pcall(fs.list, '/in/x/service') \
                  return { kept = if ok then #kept else 0, seen = fs.exists('/in/x/seen') }";
    let config = config.to_str().unwrap();
    let ended =
        place.sandboxctl(["run", "--config", config, "--in", ".:x", "-c", source, "--json"]);
    let document = place.document(ended.assert_code(0));
    assert_eq!(document["result"], json!({"kept": 0, "seen": "file"}));
    // Nor by the service itself, as the io dir of all.
    for io_dir in ["service/files", "."] {
        let serve = ["serve", "--data-dir", "service", "--io-dir", io_dir];
        let flags = ["--listen", "127.0.0.1:0", "--insecure-no-auth"];
        let refused = place.sandboxctl(serve.iter().chain(&flags));
        refused.assert_code(2).assert_stderr_has("the service's data directory");
    }
}

#[test]
fn own_folders_are_hidden_in_an_input_that_holds_them() {
    let provided = Rootfs::busybox().provide();
    let place = Fixture::new();
    place.write("seen", "");
    let root = place.work().parent().unwrap().to_owned();
    let library = Library::new(&place);
    let instances = fs::read_dir(root.join("state/sandboxctl/instances")).unwrap();
    assert_ne!(instances.count(), 0);
    let launch = |spec: SandboxSpec| {
        let io_dir = place.path("sandbox-files");
        library.launch(spec.io_dir(io_dir).input(Input::path(&root, "host")))
    };
    let programs = launch(SandboxSpec::new().root(provided.root()));
    let list = "ls -RA /in/host/state /in/host/data; ls /in/host/work";
    let listed = library.wait(programs.run(Command::shell(list))).unwrap();
    let listed = String::from_utf8(listed.stdout().bytes.clone()).unwrap();
    for own in ["instances", "image-", "programs", ".lock", "containers", "roots"] {
        assert!(!listed.contains(own), "{own} in {listed}");
    }
    assert!(listed.contains("seen"), "{listed}");

    let source = "local ok, found = pcall(fs.list, '/in/host/state/sandboxctl') \
                  return { own = if ok then #found else 0, seen = fs.exists('/in/host/work/seen'), \
                  instances = pcall(fs.list, '/in/host/state/sandboxctl/instances') }";
    let scripts = launch(SandboxSpec::new());
    let result = library.wait(scripts.run(Script::new(source))).unwrap();
    let Outcome::Ok { result } = &result.outcome else { panic!("{result:?}") };
    let reported: serde_json::Value = serde_json::from_str(result.get()).unwrap();
    assert_eq!(reported, json!({"own": 0, "seen": "file", "instances": false}));
    for sandbox in [programs, scripts] {
        library.wait(sandbox.close()).unwrap();
    }
    drop(library);
    // What covers them does so for the sandbox alone.
    assert!(root.join("state/sandboxctl/instances").is_dir());
}

#[test]
fn mounts_of_a_sandbox_are_private_where_the_hosts_are_shared() {
    let provided = Rootfs::busybox().provide();
    let place = Fixture::new();
    let shared = HostMount::bind(&place.work(), place.home().join("shared"));
    rustix::mount::mount_change(&shared.0, MountPropagationFlags::SHARED).unwrap();
    let (io_dir, input) = (shared.0.join("io"), shared.0.join("input"));
    for dir in [&io_dir, &input] {
        fs::create_dir(dir).unwrap();
    }
    let library = Library::new(&place);
    let spec = SandboxSpec::new().root(provided.root()).io_dir(io_dir);
    let sandbox = library.launch(spec.input(Input::path(input, "input")));
    let mounts = library.wait(sandbox.run(Command::new("cat").args(["/proc/self/mountinfo"])));
    let mounts = String::from_utf8(mounts.unwrap().stdout().bytes.clone()).unwrap();
    for target in ["/io", "/in/input"] {
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(target)).unwrap();
        // Between its options and the dash there is no tag: what is mounted on one side is not
        // mounted on the other.
        assert_eq!(line.split(' ').nth(6), Some("-"), "{line}");
    }
    library.wait(sandbox.close()).unwrap();
}
