//! The user's own service, which the verbs of `sandbox` start on first use and which ends by itself.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use rustix::process::{Pid, Signal, Uid, kill_process};
use rustix::thread::set_thread_uid;
use serde_json::{Value, json};

use super::console::Dev;
use crate::engine::{Engine, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Ended, Fixture, eventually, finish, sandboxctl, spawn, wait};
use crate::rootfs::{Provided, Rootfs};

/// A user whom nothing belongs to.
const NOBODY: u32 = 65534;

/// The local service of a place, whether it runs or not, and what its sandboxes are made from.
struct Local<'a> {
    place: &'a Fixture,
    provided: Provided,
}

/// A failed test leaves no service behind.
impl Drop for Local<'_> {
    fn drop(&mut self) {
        for pid in self.processes() {
            _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl<'a> Local<'a> {
    fn new(place: &'a Fixture) -> Self {
        Self { place, provided: Rootfs::busybox().provide() }
    }

    fn folder(&self) -> PathBuf {
        self.place.state().join("sandboxctl/local")
    }

    fn socket(&self) -> PathBuf {
        self.folder().join("sock")
    }

    /// The processes of its service.
    fn processes(&self) -> Vec<Pid> {
        let own = format!("XDG_RUNTIME_DIR={}", self.place.state().display());
        let has = |pid: i32, file: &str, word: &str| {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text.split(|&byte| byte == 0).any(|it| it == word.as_bytes())
        };
        let pids = std::fs::read_dir("/proc").unwrap();
        let pids =
            pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
        let its = pids.filter(|pid| has(*pid, "cmdline", "--local") && has(*pid, "environ", &own));
        its.filter_map(Pid::from_raw).collect()
    }

    /// Asserts that it has one. A program that it starts has its words for a moment.
    #[track_caller]
    fn is_one(&self) {
        eventually("one process is there", || (self.processes().len() == 1).then_some(()));
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.place.sandboxctl(args)
    }

    /// What a verb prints that does what it is to.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        self.run(args).assert_code(0).stdout.clone()
    }

    /// Creates a sandbox, and gives its id.
    #[track_caller]
    fn create(&self, more: &[&str]) -> String {
        finish(self.creation(more)).assert_code(0).stdout.trim().to_owned()
    }

    fn creation(&self, more: &[&str]) -> Command {
        let own = match &self.provided {
            Provided::Image(name) => vec![name.clone()],
            provided => provided.args(),
        };
        let mut command = self.place.command(["sandbox", "create"]);
        command.args(own).args(more);
        command
    }

    /// Ends the service: nothing is left.
    #[track_caller]
    fn stop(&self) {
        self.ok(&["local", "stop"]);
        self.is_gone();
    }

    #[track_caller]
    fn is_gone(&self) {
        eventually("it ends", || self.processes().is_empty().then_some(()));
        assert!(!self.socket().exists());
        assert_eq!(self.place.containers(), Vec::<String>::new());
        assert_eq!(engine().remains(self.place), Vec::<String>::new());
    }
}

#[test]
fn first_use_starts_a_service_whose_sandboxes_all_commands_find_until_it_is_stopped() {
    let place = Fixture::new();
    let local = Local::new(&place);
    assert_eq!(local.processes(), []);
    let id = local.create(&["--name", "boxed"]);
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(local.folder()), mode(local.socket())), (0o700, 0o600));
    local.is_one();
    let made = ["sandbox", "exec", "boxed", "--", "sh", "-c", "echo hi > file; echo made"];
    assert_eq!(local.ok(&made), "made\n");
    place.write("up.txt", "up\n");
    local.ok(&["sandbox", "cp", "up.txt", "boxed:up.txt"]);
    // By the beginning of its id too.
    assert_eq!(local.ok(&["sandbox", "exec", &id[..6], "--", "cat", "file", "up.txt"]), "hi\nup\n");
    local.ok(&["sandbox", "cp", "boxed:file", "down.txt"]);
    assert_eq!(place.read("down.txt"), "hi\n");
    let listed = local.ok(&["sandbox", "ls"]);
    assert!(listed.contains("boxed"), "{listed}");
    local.run(&["ps"]).assert_stderr_has("`sandboxctl sandbox ls` lists kept sandboxes");

    if has(Feature::KeptProcesses) {
        let process =
            ["sandbox", "run", "-d", "boxed", "--", "sh", "-c", "echo up; exec sleep 7201"];
        let process = local.ok(&process).trim().to_owned();
        let listed = local.ok(&["sandbox", "ps", "boxed"]);
        assert!(listed.contains("sleep 7201"), "{listed}");
        eventually("it has a log", || {
            (local.ok(&["sandbox", "logs", "boxed", &process]) == "up\n").then_some(())
        });
        local.ok(&["sandbox", "kill", "boxed", &process]);
    }
    let expires = || {
        let listed: Value = serde_json::from_str(&local.ok(&["sandbox", "ls", "--json"])).unwrap();
        listed[0]["expires_at"].as_str().unwrap().to_owned()
    };
    // By default it is an hour.
    let default = expires();
    for (time, is_later) in [("10h", true), ("30m", false)] {
        let extended = local.run(&["sandbox", "extend", "boxed", time]);
        extended.assert_code(0).assert_stderr_has("it is removed at ");
        assert_eq!(expires() > default, is_later, "{extended:?}");
    }
    // It is not what was asked for, and so it is not removed.
    local.run(&["sandbox", "exec", "other", "--", "true"]).assert_stderr_has("other");
    local.ok(&["sandbox", "rm", "-f", "boxed"]);
    let listed = local.ok(&["sandbox", "ls"]);
    assert!(!listed.contains("boxed"), "{listed}");
    assert_eq!(place.containers(), Vec::<String>::new());
    local.stop();
}

#[test]
fn port_is_forwarded_until_a_signal_or_the_end_of_its_sandbox() {
    let place = Fixture::new();
    let local = Local::new(&place);
    local.create(&["--name", "web", "--port", "8000"]);
    let other = local.run(&["sandbox", "port", "web", "8000:0", "9000"]);
    other.assert_stderr_has("the sandbox's spec does not list port 9000");
    other.assert_stderr_has("`--port` names the ports of a sandbox");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = format!("8000:{}", taken.local_addr().unwrap().port());
    local.run(&["sandbox", "port", "web", &pair]).assert_stderr_has("8000:0 takes a free port");
    let forward = || {
        let mut child = spawn(place.command(["sandbox", "port", "web", "8000:0"]));
        let mut byte = [0];
        // Not buffered: the rest is for who waits for its end.
        while byte != *b"\n" {
            child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        }
        child
    };
    let forwarder = forward();
    kill_process(Pid::from_child(&forwarder), Signal::INT).unwrap();
    let ended = wait(forwarder);
    assert_eq!((ended.code, &*ended.stderr), (130, ""));
    let forwarder = forward();
    local.ok(&["sandbox", "rm", "web"]);
    let ended = wait(forwarder);
    assert_ne!(ended.code, 0);
    ended.assert_stderr_has("sandbox");
    local.stop();
}

#[test]
fn clients_that_start_it_at_one_moment_have_one_service() {
    let place = Fixture::new();
    let local = Local::new(&place);
    let clients: Vec<_> = (0..8).map(|_| spawn(place.command(["sandbox", "ls"]))).collect();
    for client in clients {
        wait(client).assert_code(0);
    }
    local.is_one();
    local.stop();
    // One that does not run is stopped already.
    local.stop();
}

#[test]
fn socket_that_a_killed_service_left_is_replaced_and_its_sandboxes_are_there() {
    let place = Fixture::new();
    let local = Local::new(&place);
    local.create(&["--name", "boxed"]);
    local.ok(&["sandbox", "exec", "boxed", "--", "sh", "-c", "echo kept > file"]);
    place.expect_a_dead_instance();
    eventually("it is gone", || {
        for pid in local.processes() {
            // What it was just starting may have become another program.
            _ = kill_process(pid, Signal::KILL);
        }
        local.processes().is_empty().then_some(())
    });
    assert!(local.socket().exists(), "it was not removed");
    let listed = local.ok(&["sandbox", "ls"]);
    assert!(listed.contains("boxed") && listed.contains("stopped"), "{listed}");
    assert_eq!(local.ok(&["sandbox", "exec", "boxed", "--", "cat", "file"]), "kept\n");
    // After an end that was asked for it is the same.
    local.stop();
    let listed = local.ok(&["sandbox", "ls"]);
    assert!(listed.contains("boxed") && listed.contains("stopped"), "{listed}");
    assert_eq!(local.ok(&["sandbox", "exec", "boxed", "--", "cat", "file"]), "kept\n");
    local.ok(&["sandbox", "rm", "-f", "boxed"]);
    local.stop();
    // One that has never had a service behind it.
    drop(UnixListener::bind(local.socket()).unwrap());
    local.ok(&["sandbox", "ls"]);
    local.stop();
}

#[test]
fn service_of_a_machine_that_was_restarted_has_the_stopped_sandboxes_and_its_audit() {
    let place = Fixture::new();
    let local = Local::new(&place);
    // Who starts it says where its audit is.
    let mut first = local.creation(&["--name", "boxed"]);
    first.env("SANDBOXCTL_AUDIT_FILE", place.path("audit.log"));
    finish(first).assert_code(0);
    local.ok(&["sandbox", "exec", "boxed", "--", "sh", "-c", "echo kept > file"]);
    local.stop();
    let audit = place.read("audit.log");
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let own = lines.filter(|line| line["operation"].as_str().unwrap().starts_with("local."));
    let own = own.map(|line| json!([line["run_id"], line["operation"], line["outcome"]]));
    let expected = ["local.start", "local.stop"].map(|it| json!(["local", it, "ok"]));
    assert_eq!(own.collect::<Vec<_>>(), expected);
    // The runtime directory is in memory: after a restart nothing is in it.
    std::fs::remove_dir_all(place.state().join("sandboxctl")).unwrap();
    let listed = local.ok(&["sandbox", "ls"]);
    assert!(listed.contains("boxed") && listed.contains("stopped"), "{listed}");
    local.is_one();
    assert_eq!(local.ok(&["sandbox", "exec", "boxed", "--", "cat", "file"]), "kept\n");
    local.ok(&["sandbox", "rm", "-f", "boxed"]);
    local.stop();
}

/// A shell in this place whose `sandboxctl` is ours, and its `$0` too.
fn shell(place: &Fixture, mut command: Command, line: &str) -> Command {
    command.args(["sh", "-ec", line]).arg(sandboxctl());
    place.equip(&mut command);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let own = sandboxctl().parent().unwrap().to_owned();
    let folders = std::iter::once(own).chain(std::env::split_paths(&folders));
    command.env("PATH", std::env::join_paths(folders).unwrap());
    command
}

#[test]
fn development_server_is_the_local_service_with_a_door_and_a_token_that_end_with_it() {
    let place = Fixture::new();
    let local = Local::new(&place);
    // There is one at a time.
    local.ok(&["sandbox", "ls"]);
    let second = ["serve", "--dev", "--listen", "127.0.0.1:0"];
    let refused = local.run(&second);
    refused.assert_code(2).assert_stderr_has("--dev: the local service is running already");
    refused.assert_stderr_has("`sandboxctl local stop` ends it");
    local.stop();

    let (image, flags) = match &local.provided {
        Provided::Image(name) => (name.as_str(), Vec::new()),
        provided => ("", provided.args()),
    };
    let dev = Dev::start(&place, &flags);
    // What it says is to be typed works as it is printed, with an image that is here.
    let (_, steps) = dev.printed.split_once("In another terminal:\n").unwrap();
    let lines: Vec<_> = steps.lines().take(2).collect();
    assert!(lines[0].starts_with("  export ") && lines[1].ends_with(" debian:13"), "{steps}");
    let typed = lines.join("\n").replace("debian:13", image);
    let created = finish(shell(&place, Command::new("env"), &typed));
    let id = created.assert_code(0).stdout.trim().to_owned();
    // Commands that name no service find it at their socket, and start none.
    assert_eq!(local.ok(&["sandbox", "ls", "-q"]), format!("{id}\n"));
    assert_eq!(local.ok(&["sandbox", "exec", &id, "--", "echo", "hi"]), "hi\n");
    assert_eq!(local.processes(), []);
    local.run(&second).assert_code(2);
    let token = dev.after("SANDBOXCTL_TOKEN=").to_owned();
    let list = |dev: &Dev<'_>, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer)];
        dev.client(token).ask("GET", "/v1/sandboxes", &headers, b"")
    };
    assert_eq!(list(&dev, &token).json()["sandboxes"][0]["id"], *id);
    dev.stop();
    assert!(!local.socket().exists());

    let dev = Dev::start(&place, &flags);
    assert_eq!(list(&dev, &token).status, 401, "the token is that of the one before");
    let kept = list(&dev, dev.after("SANDBOXCTL_TOKEN=")).json();
    assert_eq!(kept["sandboxes"][0]["id"], *id, "{kept}");
    assert_eq!(kept["sandboxes"][0]["status"], "stopped", "{kept}");
    local.ok(&["sandbox", "rm", &id]);
    dev.stop();
}

#[test]
fn development_server_finds_the_engine_and_listens_at_port_8470() {
    if !rustix::process::geteuid().is_root() {
        // Only root has a network of its own, where no other process has the port.
        return;
    }
    let place = Fixture::new();
    // Where Docker is to be found its socket is there. Otherwise nothing is in /run.
    let hide = if engine() == Engine::Embedded { "mount -t tmpfs tmpfs /run" } else { ":" };
    let line = format!(
        r#"ip link set lo up; {hide}
        "$0" serve --dev >printed 2>dev.log & dev=$!
        trap 'kill $dev 2>/dev/null || :' EXIT
        until grep -q code= printed; do readlink /proc/$dev/exe >/dev/null; sleep 0.02; done
        eval "$(grep '^  export ' printed)"
        sandboxctl sandbox ls --json
        sandboxctl local status --json >status.json
        kill $dev; wait $dev"#
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--propagation", "private"]);
    let mut command = shell(&place, command, &line);
    command.env_remove("SANDBOXCTL_ENGINE_KIND");
    if engine() == Engine::Embedded {
        command.env_remove("DOCKER_HOST");
    }
    let ended = finish(command);
    assert_eq!(ended.code, 0, "{ended:?} {}", place.read("dev.log"));
    assert_eq!(ended.stdout, "[]\n");
    let printed = place.read("printed");
    assert!(printed.contains("listening on http://127.0.0.1:8470\n"), "{printed}");
    assert!(printed.contains("SANDBOXCTL_SERVER=http://127.0.0.1:8470 "), "{printed}");
    let status: Value = serde_json::from_str(&place.read("status.json")).unwrap();
    assert_eq!(status["service"]["settings"]["engine.kind"], engine().name(), "{status}");
}

#[test]
fn socket_and_folder_of_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make what another user has.
        return;
    }
    let place = Fixture::new();
    let local = Local::new(&place);
    std::fs::create_dir_all(local.folder()).unwrap();
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.state().join("sandboxctl"), private.clone()).unwrap();
    std::fs::set_permissions(local.folder(), private).unwrap();
    let path = SocketAddrUnix::new(local.socket()).unwrap();
    let foreign = std::thread::spawn(move || {
        let foreign = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&foreign, &path).unwrap();
        // Of this thread alone: the kernel tells a client who listens.
        set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
        listen(&foreign, 8).unwrap();
        foreign
    });
    let foreign = UnixListener::from(foreign.join().unwrap());
    let refused = local.run(&["sandbox", "ls"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert_eq!(local.processes(), []);
    foreign.set_nonblocking(true).unwrap();
    while let Ok((mut connection, _)) = foreign.accept() {
        let mut heard = Vec::new();
        connection.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"", "it received something");
    }
    drop(foreign);
    std::fs::remove_file(local.socket()).unwrap();
    chown(local.folder(), Some(NOBODY), None).unwrap();
    let refused = local.run(&["sandbox", "ls"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert_eq!(local.processes(), []);
    std::fs::remove_dir_all(local.folder()).unwrap();
    local.ok(&["sandbox", "ls"]);
    local.stop();
}

#[test]
fn engine_of_a_local_service_is_that_of_its_start() {
    let place = Fixture::new();
    let local = Local::new(&place);
    local.ok(&["sandbox", "ls"]);
    let other = match engine() {
        Engine::Docker => "embedded",
        Engine::Embedded => "docker",
    };
    let mut command = place.command(["sandbox", "ls"]);
    command.env("SANDBOXCTL_ENGINE_KIND", other);
    let refused = finish(command);
    assert_ne!(refused.code, 0, "{refused:?}");
    refused.assert_stderr_has("sandboxctl local stop");
    local.stop();
}

#[test]
fn local_service_ends_by_itself_after_its_last_sandbox_and_leaves_nothing() {
    let place = Fixture::new();
    let local = Local::new(&place);
    local.create(&["--name", "boxed"]);
    if has(Feature::KeptProcesses) {
        local.ok(&["sandbox", "run", "-d", "boxed", "--", "sleep", "7211"]);
    }
    local.ok(&["sandbox", "rm", "-f", "boxed"]);
    local.is_one();
    local.is_gone();
    // The next use starts another one.
    local.ok(&["sandbox", "ls"]);
    local.stop();
}
