//! The fixture: a place to run `sandboxctl` in.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

use crate::engine::{Engine, engine, engine_socket};
use crate::engines::{Feature, has};

/// Longer than any command of these tests needs; a command that hangs fails its test.
/// Ample for a machine that is busy with other things, at the lowest priority.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// How long an engine may take for a removal without a waiting client, on a busy machine too.
const REMOVAL: Duration = Duration::from_secs(60);

/// The signal dispositions of a foreground command. The test runner may ignore some of these
/// signals (`nohup`, a background job), which a child would inherit.
pub const SIGNALS_BY_DEFAULT: &str = "--default-signal=HUP,INT,QUIT,TERM,PIPE";

/// A directory of its own, and the environment of a user who has only that.
pub struct Fixture {
    root: TempDir,
    ids: Mutex<Vec<String>>,
    /// Containers that were there once.
    seen: Mutex<BTreeSet<String>>,
    dead_instance: AtomicBool,
    /// The user whom it was given to.
    owner: OnceLock<(u32, u32)>,
}

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Fixture {
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("sandboxctl-test-").tempdir().unwrap();
        for folder in ["work", "state", "home"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        // What a login manager gives; sandboxctl keeps its state there.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(root.path().join("state"), private).unwrap();
        Self {
            root,
            ids: Mutex::default(),
            seen: Mutex::default(),
            dead_instance: AtomicBool::new(false),
            owner: OnceLock::new(),
        }
    }

    /// The working directory.
    pub fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// A path below the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work().join(name)
    }

    /// The runtime directory, where sandboxctl keeps its state.
    pub fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Where the embedded engine keeps what it has.
    pub fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// Where fresh io dirs are.
    pub fn scratch(&self) -> PathBuf {
        self.root.path().join("scratch")
    }

    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// `sandboxctl` in this place, not started yet.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.command_with_signals(SIGNALS_BY_DEFAULT, args)
    }

    /// As [`command`](Self::command), with the dispositions that this option of `env` sets.
    pub fn command_with_signals<S: AsRef<OsStr>>(
        &self,
        dispositions: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("env");
        command.arg(dispositions).arg(sandboxctl()).args(args);
        self.equip(&mut command);
        command
    }

    /// Puts a command into this place: working directory, environment, an empty stdin.
    pub fn equip(&self, command: &mut Command) {
        command.current_dir(self.work()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home()).env("XDG_RUNTIME_DIR", self.state());
        command.env("SANDBOXCTL_ENGINE_KIND", engine().name());
        command.env("SANDBOXCTL_ENGINE_DATA_DIR", self.data());
        // No machine of these tests delegates control groups to a user.
        command.env("SANDBOXCTL_ENGINE_ROOTLESS_LIMITS", "best-effort");
        command.env("SANDBOXCTL_IO_SCRATCH_DIR", self.scratch());
        for name in ["DOCKER_HOST", "SANDBOXCTL_ENGINE_RUNTIME"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        if !has(Feature::ClosedDescriptors) {
            command.env("SANDBOXCTL_POLICY_CONFINEMENT", "best-effort");
        }
        command.stdin(Stdio::null());
    }

    /// Gives this place to a user who is not root.
    pub fn give_to(&self, (uid, gid): (u32, u32)) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.root.path(), open).unwrap();
        for path in [self.root.path().to_owned(), self.work(), self.state(), self.home()] {
            std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
        }
        _ = self.owner.set((uid, gid));
    }

    /// The same command, run by a user who may use Docker.
    pub fn command_of(&self, user: (u32, u32), command: &Command) -> Command {
        let group =
            std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(engine_socket()).unwrap());
        self.command_in_group(user, group, command)
    }

    /// The same command, run by a user who is in this group too.
    pub fn command_in_group(
        &self,
        (uid, gid): (u32, u32),
        group: u32,
        command: &Command,
    ) -> Command {
        let mut dropped = Command::new("setpriv");
        dropped.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        dropped.arg(format!("--groups={group}"));
        // Its folder may be closed to this user.
        let program = self.home().join("sandboxctl");
        if !program.exists() {
            std::fs::hard_link(sandboxctl(), &program)
                .or_else(|_| std::fs::copy(sandboxctl(), &program).map(drop))
                .unwrap();
        }
        let from = command.get_args().position(|it| it == sandboxctl()).unwrap();
        dropped.arg(program).args(command.get_args().skip(from + 1));
        self.equip(&mut dropped);
        dropped
    }

    /// Runs `sandboxctl` to its end.
    pub fn sandboxctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        finish(self.command(args))
    }

    /// Runs `sandboxctl` with `input` on its stdin.
    pub fn sandboxctl_with<S: AsRef<OsStr>>(
        &self,
        input: &[u8],
        args: impl IntoIterator<Item = S>,
    ) -> Ended {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        let mut child = spawn(command);
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A thread: the child may end without reading it all.
        let writer = std::thread::spawn(move || _ = stdin.write_all(&input));
        let ended = wait(child);
        writer.join().unwrap();
        ended
    }

    /// Runs a script with `--json` and more `args`, and gives the result document. Asserts what
    /// holds for every document.
    pub fn run_json(&self, source: &str, args: &[&str]) -> Value {
        let script = self.write("script.luau", source);
        let mut all = vec!["run", "--json"];
        all.extend(args);
        all.push(script.to_str().unwrap());
        self.document(&self.sandboxctl(all))
    }

    /// The one document on `ended`'s stdout.
    pub fn document(&self, ended: &Ended) -> Value {
        let document: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON document: {error}\n{ended:#?}"));
        assert_eq!(document["schema"], "sandboxctl.result/1");
        assert_eq!(document["exit_code"], ended.code, "{ended:#?}");
        for key in [
            "id", "status", "result", "logs", "logs_truncated", "files_touched",
            "files_touched_source", "files_touched_truncated", "error", "engine", "io_dir",
            "network", "limits", "usage",
        ] {
            assert!(document.get(key).is_some(), "no key {key} in {document:#}");
        }
        if let Some(id) = document["id"].as_str() {
            self.ids.lock().unwrap().push(id.to_owned());
        }
        document
    }

    /// Declares that a controller of this place ended without cleaning up. Its lock file, possibly
    /// incomplete, stays for a while then: the engine may still be creating its container.
    pub fn expect_a_dead_instance(&self) {
        self.dead_instance.store(true, Ordering::Relaxed);
    }

    /// The containers of this place that the engine has, running or not.
    pub fn containers(&self) -> Vec<String> {
        engine().containers(self)
    }

    /// The sandboxes that results named.
    pub fn ids(&self) -> Vec<String> {
        self.ids.lock().unwrap().clone()
    }

    /// Remembers containers, so that what is left of them is looked for when they are gone.
    pub fn saw(&self, containers: &[String]) {
        self.seen.lock().unwrap().extend(containers.iter().cloned());
    }

    /// Containers that were there once, by their names.
    pub fn seen(&self) -> BTreeSet<String> {
        let of_results = self.ids().into_iter().map(|id| format!("sandboxctl-{id}"));
        self.seen.lock().unwrap().iter().cloned().chain(of_results).collect()
    }

    /// The controllers that the state directory knows, dead or alive.
    pub fn instances(&self) -> Vec<String> {
        files_below(&self.state())
            .iter()
            .filter(|file| file.extension().is_some_and(|extension| extension == "lock"))
            .filter(|file| !is_of_local_service(file))
            .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    /// Asserts that nothing of this place is left on the engine, and no state file but the cache.
    pub fn assert_clean(&self) {
        // The engine removes sandboxes that a program of the library releases; no client waits for
        // it.
        let deadline = Instant::now() + REMOVAL;
        while Instant::now() < deadline
            && !(self.containers().is_empty() && engine().remains(self).is_empty())
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.containers(), Vec::<String>::new(), "containers are left");
        assert_eq!(engine().remains(self), Vec::<String>::new(), "something is left of containers");
        if !self.instances().is_empty() && !self.dead_instance.load(Ordering::Relaxed) {
            // The next command sees that nothing is left of such a one.
            let gc = self.command(["gc"]);
            let gc = match self.owner.get() {
                Some(user) if engine() == Engine::Docker => self.command_of(*user, &gc),
                Some(user) => self.command_in_group(*user, user.1, &gc),
                None => gc,
            };
            finish(gc).assert_code(0);
        }
        // The image's id is remembered on purpose: it spares the next command a question.
        let expected = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let dead = self.dead_instance.load(Ordering::Relaxed)
                && (name.ends_with(".lock") || name.ends_with(".part") || is_record(file));
            // The agent and the files next to it, for images of users, stay too, and empty images of
            // io dirs.
            let is_part = file.parent().is_some_and(|folder| {
                folder.ends_with("programs") || folder.ends_with("templates")
            });
            name.starts_with("image-") || is_part || dead || is_of_local_service(file)
        };
        let left: Vec<PathBuf> =
            files_below(&self.state()).into_iter().filter(|file| !expected(file)).collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "state files are left");
        // The directory of the records of stages stays, without records.
        _ = std::fs::remove_dir(self.scratch().join("stages"));
        let left = std::fs::read_dir(self.scratch()).into_iter().flatten();
        assert_eq!(left.count(), 0, "fresh io dirs are left");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_clean();
        }
    }
}

impl fmt::Debug for Ended {
    /// What a failed test shows: of long output the start.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = |text: &str| text.chars().take(4000).collect::<String>();
        formatter
            .debug_struct("Ended")
            .field("code", &self.code)
            .field("stdout", &start(&self.stdout))
            .field("stderr", &start(&self.stderr))
            .finish()
    }
}

impl Ended {
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn assert_stderr_has(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Its stderr without the engine's notice.
    pub fn messages(&self) -> &str {
        self.stderr.strip_prefix(engine().notice()).unwrap_or(&self.stderr)
    }
}

/// Whether a file is a lock of the local service, by which its clients start it, or its log: they stay.
fn is_of_local_service(file: &Path) -> bool {
    let is_lock_or_log = file.extension().is_some_and(|it| it == "lock" || it == "log");
    is_lock_or_log && file.parent().is_some_and(|folder| folder.ends_with("local"))
}

/// Whether a file says which folders a controller made: the next command reads it.
fn is_record(file: &Path) -> bool {
    let folder = file.parent().and_then(Path::extension);
    folder.is_some_and(|suffix| suffix == "made")
}

/// Every file below `folder`, by its path.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return files };
    for entry in entries {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    files
}

/// Starts a command whose stdout and stderr are to be collected.
pub fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub fn finish(command: Command) -> Ended {
    wait(spawn(command))
}

/// Waits for a child, reading all that it prints.
pub fn wait(child: Child) -> Ended {
    collect(child, |child| {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        let timeout = TIMEOUT.try_into().unwrap();
        let mut process = [PollFd::new(&process, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut process, Some(&timeout))).unwrap() > 0
    })
}

/// As [`wait`], and gives the most memory that the child used, in KiB.
pub fn wait_and_watch(child: Child) -> (Ended, u64) {
    let mut peak_kib = 0;
    let ended = collect(child, |child| {
        let since = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if since.elapsed() > TIMEOUT {
                return false;
            }
            peak_kib = peak_kib.max(peak_memory_kib(child.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    });
    (ended, peak_kib)
}

/// What a child prints, and how it ends; `has_ended` waits for its end, and returns whether it came
/// in time.
fn collect(mut child: Child, has_ended: impl FnOnce(&mut Child) -> bool) -> Ended {
    let read_out = Printed::read(child.stdout.take().unwrap());
    let read_err = Printed::read(child.stderr.take().unwrap());
    let in_time = has_ended(&mut child);
    if !in_time {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    // What it started may go on and hold the pipes open.
    assert!(
        in_time,
        "a command did not end within {TIMEOUT:?}; it printed {:?} and {:?}",
        read_out.so_far(),
        read_err.so_far()
    );
    Ended { code: status.code().unwrap_or(-1), stdout: read_out.all(), stderr: read_err.all() }
}

/// What a child prints into a pipe, as it comes.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Printed {
    fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let to = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 64 << 10];
            loop {
                match pipe.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(n) => to.lock().unwrap().extend_from_slice(&chunk[..n]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => panic!("a pipe of a command: {error}"),
                }
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn all(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

/// The most memory that a process used, in KiB, without what it maps of files: programs of debug builds are large.
pub fn peak_memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix(" kB"));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0_u64)
    };
    kib("VmHWM:").saturating_sub(kib("RssFile:"))
}

/// What `run` gives that has a time limit, before which it was to do something. On a busy machine it may not have
/// `begun` by then: it has more time with each try.
pub fn in_its_time<T>(mut run: impl FnMut(Duration) -> T, begun: impl Fn(&T) -> bool) -> T {
    let short = [2, 10].map(Duration::from_secs);
    let ended = short.into_iter().map(&mut run).find(begun);
    ended.unwrap_or_else(|| run(Duration::from_secs(60)))
}

/// Polls until `done` gives something; fails the test when that hangs.
#[track_caller]
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(since.elapsed() < TIMEOUT, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process of this machine has this argument.
pub fn runs(argument: &str) -> bool {
    let pids = std::fs::read_dir("/proc").unwrap();
    pids.filter_map(|entry| std::fs::read(entry.unwrap().path().join("cmdline")).ok()).any(|line| {
        let mut arguments = line.split(|&byte| byte == 0);
        arguments.next().is_some_and(|program| !program.ends_with(b"sandboxctl"))
            && arguments.any(|it| it == argument.as_bytes())
    })
}

/// An address of the loopback that this test alone uses, by a number from 1 to 3. A port of 127.0.0.1 that is free
/// again may be another test's next, or that of an outgoing connection.
pub fn own_host(number: u32) -> Ipv4Addr {
    // A process id has 22 bits.
    let host = std::process::id() << 2 | number;
    Ipv4Addr::from_bits(0x7f00_0000 | host & 0x00ff_ffff)
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The built command line. It can be held at its failpoints.
pub fn sandboxctl() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sandboxctl"))
}
