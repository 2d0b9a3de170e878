//! The engine's own life, and containers that are not ours: a `dockerd` that the test starts for
//! itself, with folders and a socket of its own. It needs root, and Docker's daemon installed.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::{docker, docker_lines};
use crate::fixture::{Ended, Fixture, eventually, finish, runs, spawn, wait};
use crate::rootfs::{Provided, Rootfs};

/// A Docker Engine of this test's own.
struct Daemon {
    folder: TempDir,
    child: Child,
}

impl Daemon {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "a daemon of its own needs root");
        let folder = tempfile::Builder::new().prefix("dockerd-").tempdir().unwrap();
        let child = Self::start(folder.path().to_owned());
        let daemon = Self { folder, child };
        daemon.wait_until_it_answers();
        daemon
    }

    fn start(folder: PathBuf) -> Child {
        let at = |name: &str| folder.join(name).into_os_string().into_string().unwrap();
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        Command::new("dockerd")
            .args(["--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--pidfile", &at("pid"), "--host", &format!("unix://{}", at("sock"))])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd is installed")
    }

    fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("sock").display())
    }

    fn wait_until_it_answers(&self) {
        eventually("dockerd answers", || {
            let host = self.host();
            let asked = Command::new("docker").args(["--host", &host, "version"]).output().unwrap();
            asked.status.success().then_some(())
        });
    }

    fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        // A daemon that was killed leaves them, and the pids in them may be anybody's by now.
        for file in ["pid", "exec/containerd/containerd.pid"] {
            _ = std::fs::remove_file(self.folder.path().join(file));
        }
        self.child = Self::start(self.folder.path().to_owned());
        self.wait_until_it_answers();
    }

    fn containers(&self) -> Vec<String> {
        docker_lines(&["--host", &self.host(), "ps", "--all", "--quiet"])
    }

    /// A command on this engine, independent of the other tests' engine.
    fn command(&self, place: &Fixture, args: &[&str]) -> Command {
        let mut command = place.command(args);
        command.env("DOCKER_HOST", self.host()).env_remove("SANDBOXCTL_ENGINE_RUNTIME");
        command
    }

    fn sandboxctl(&self, place: &Fixture, args: &[&str]) -> Ended {
        finish(self.command(place, args))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            // So it ends its containers.
            self.end(Signal::TERM);
        }
        // One that was killed before has forgotten what it mounted.
        let mounts = std::fs::read("/proc/self/mounts").unwrap();
        let mounts = String::from_utf8_lossy(&mounts);
        let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for target in targets.filter(|it| std::path::Path::new(it).starts_with(self.folder.path()))
        {
            _ = rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn engine_that_goes_under_a_run_and_comes_back(signal: Signal) {
    let place = Fixture::new();
    let mut daemon = Daemon::new();
    place.write("one.luau", "return 1");
    place.write(
        "loop.luau",
        "io.open('f', 'w'):write('x'):close() print('started') pcall(io.open, '/no') while true do end",
    );
    daemon.sandboxctl(&place, &["run", "--no-io", "one.luau"]).assert_code(0);

    let args = ["run", "--json", "--audit", "audit", "--timeout", "60s", "loop.luau"];
    let run = spawn(daemon.command(&place, &args));
    // The refusal was sent after the log, so both have arrived: an engine that is killed takes with it
    // what is still on its way.
    eventually("the script is refused a path", || {
        let audit = std::fs::read_to_string(place.path("audit")).ok()?;
        audit.contains("path_escape").then_some(())
    });
    daemon.end(signal);
    let ended = wait(run);
    let document = place.document(&ended);
    // It kills its containers first, or is gone itself: never the script's fault, nor a success.
    let status = document["status"].as_str().unwrap();
    assert!(["killed", "error"].contains(&status), "{document:#}");
    assert!([137, 125].contains(&ended.code), "{ended:#?}");
    assert_eq!(document["logs"], json!(["started"]));
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 1}]));

    daemon.restart();
    daemon.sandboxctl(&place, &["run", "--no-io", "one.luau"]).assert_code(0);
    eventually("nothing is left", || {
        daemon.sandboxctl(&place, &["gc"]).assert_code(0);
        daemon.containers().is_empty().then_some(())
    });
    place.expect_a_dead_instance();
}

#[test]
fn an_engine_that_is_restarted_under_a_run_costs_that_run_alone() {
    engine_that_goes_under_a_run_and_comes_back(Signal::TERM);
}

#[test]
fn an_engine_that_is_killed_under_a_run_costs_that_run_alone() {
    engine_that_goes_under_a_run_and_comes_back(Signal::KILL);
}

#[test]
fn program_ends_though_its_killed_engine_stays_away() {
    let place = Fixture::new();
    let mut daemon = Daemon::new();
    let image = Rootfs::busybox().archive();
    let Provided::Archive(archive) = &image else { panic!("{image:?}") };
    let archive = archive.path().to_str().unwrap();
    let host = daemon.host();
    docker_lines(&["--host", &host, "load", "--input", archive]);
    // A unique argument among processes.
    let nap = (1_000_000_000 + u64::from(std::process::id())).to_string();
    let line = format!("touch /io/begun; (setsid sleep {nap} &); sleep {nap}");
    let image = "sandboxctl-test/archive:1";
    let exec = ["exec", "--io-dir", "out", "--timeout", "10m", "--image", image, "--", "sh", "-c"];
    let exec = spawn(daemon.command(&place, &[&exec[..], &[&line]].concat()));
    eventually("the program runs", || {
        (place.path("out/begun").exists() && runs(&nap)).then_some(())
    });
    daemon.end(Signal::KILL);
    wait(exec).assert_code(125);
    // The shim holds the agent's stdin open: only the missing heartbeats show it.
    eventually("its programs are gone", || (!runs(&nap)).then_some(()));
    daemon.restart();
    place.expect_a_dead_instance();
    eventually("nothing is left", || {
        daemon.sandboxctl(&place, &["gc"]).assert_code(0);
        daemon.containers().is_empty().then_some(())
    });
}

#[test]
fn an_engine_that_is_restarted_after_its_controller_died_is_swept_all_the_same() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut daemon = Daemon::new();
    place.write("loop.luau", "io.open('f', 'w'):write('x'):close() while true do end");
    let mut run = spawn(daemon.command(&place, &["run", "--timeout", "60s", "loop.luau"]));
    eventually("the script writes", || place.path("sandbox-files/f").exists().then_some(()));
    run.kill().unwrap();
    run.wait().unwrap();
    daemon.end(Signal::KILL);
    daemon.restart();
    assert_eq!(daemon.containers().len(), 1, "the engine remembers it");
    daemon.sandboxctl(&place, &["gc"]).assert_code(0);
    assert_eq!(daemon.containers(), Vec::<String>::new());
}

/// A container with the labels of a sandbox's, never started.
fn labelled(image: &str, name: &str, id: &str, host: &str, expires: &str) -> String {
    let (id, host) = (format!("sandboxctl.sandbox={id}"), format!("sandboxctl.host={host}"));
    let labels = [&id, "sandboxctl.instance=0123456789abcdef", &host, expires];
    let labels = labels.into_iter().flat_map(|label| ["--label", label]);
    let args: Vec<&str> = ["create", "--name", name].into_iter().chain(labels).collect();
    docker_lines(&[&args[..], &[image]].concat()).remove(0)
}

#[test]
fn a_container_that_inherits_its_images_labels_is_not_a_sandbox() {
    let place = Fixture::new();
    place.run_json("return 1", &["--no-io"]);
    let images: Value =
        serde_json::from_str(&place.sandboxctl(["image", "ls", "--json"]).stdout).unwrap();
    let image = images.as_array().unwrap().iter().find(|image| image["current"] == true).unwrap();
    let name = format!("sandboxctls-database-{}", std::process::id());
    let image = image["id"].as_str().unwrap();
    // Long past its end, under any creator.
    let made = labelled(image, &name, "1", "x", "sandboxctl.expires=5");
    let listed = place.sandboxctl(["ps", "--json"]);
    let removed = place.sandboxctl(["gc", "--force", "--dry-run", "--json"]);
    place.sandboxctl(["gc"]).assert_code(0);
    let left = docker_lines(&["ps", "--all", "--quiet", "--no-trunc"]);
    docker(&["rm", "--force", &made]);
    assert!(left.contains(&made), "somebody's container was removed");
    for reported in [listed, removed] {
        assert!(!reported.assert_code(0).stdout.contains(&made), "{reported:#?}");
    }
}

#[test]
fn container_of_an_image_with_all_labels_of_a_sandbox_is_not_a_sandbox() {
    // An image's author chooses labels and command; only the name is the creator's.
    let pid = std::process::id();
    for id in [format!("web-{pid}"), format!("{pid:08x}ffffffff")] {
        let place = Fixture::new();
        let [sandbox, instance] =
            ["sandbox", "instance"].map(|it| format!("LABEL sandboxctl.{it}={id}"));
        let others = ["LABEL sandboxctl.host=x", "LABEL sandboxctl.expires=1"];
        let changes = [&*sandbox, &instance, others[0], others[1], r#"CMD ["/bin/x"]"#];
        let changes = changes.into_iter().flat_map(|change| ["--change", change]);
        let tar = place.write("empty.tar", [0_u8; 1024]);
        let tag = format!("sandboxctl-test-labels:{id}");
        let args: Vec<&str> = ["import"].into_iter().chain(changes).collect();
        docker(&[&args[..], &[tar.to_str().unwrap(), &tag]].concat());
        let made = docker_lines(&["create", "--name", &format!("sandboxctl-{id}"), &tag]).remove(0);
        let listed = place.sandboxctl(["ps", "--json"]);
        // It would be past its deadline.
        place.run_json("return 1", &["--no-io"]);
        place.sandboxctl(["gc"]).assert_code(0);
        let left = docker_lines(&["ps", "--all", "--quiet", "--no-trunc"]);
        if left.contains(&made) {
            docker(&["rm", "--force", &made]);
        }
        docker(&["rmi", &tag]);
        assert!(left.contains(&made), "somebody's container was removed");
        assert!(!listed.assert_code(0).stdout.contains(&made), "{listed:#?}");
    }
}

#[test]
fn containers_of_other_users_and_machines_are_left_alone() {
    let place = Fixture::new();
    place.run_json("return 1", &["--no-io"]);
    let images: Value =
        serde_json::from_str(&place.sandboxctl(["image", "ls", "--json"]).stdout).unwrap();
    let image = images.as_array().unwrap().iter().find(|image| image["current"] == true).unwrap();
    let image = image["id"].as_str().unwrap();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot_id = boot_id.trim();
    let uid = rustix::process::geteuid().as_raw();
    // Each of a controller whose lock file is not here.
    let others = [
        format!("{boot_id}:{}", uid + 1),
        format!("00000000-0000-0000-0000-000000000000:{uid}"),
        format!("{boot_id}:{uid}"),
    ];
    let far = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let expires = format!("sandboxctl.expires={}", far.as_secs() + 3600);
    let made: Vec<String> = others
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let id = format!("{:08x}{index:08x}", std::process::id());
            labelled(image, &format!("sandboxctl-{id}"), &id, host, &expires)
        })
        .collect();
    let listed = place.sandboxctl(["ps", "--json"]);
    place.sandboxctl(["gc"]).assert_code(0);
    let left = docker_lines(&["ps", "--all", "--quiet", "--no-trunc"]);
    docker(
        &[&["rm", "--force"][..], &made.iter().map(String::as_str).collect::<Vec<_>>()].concat(),
    );
    let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
    for container in &made {
        assert!(left.contains(container), "another's container was removed");
        let mut listed = listed.as_array().unwrap().iter();
        let ours = listed.find(|it| it["container"] == **container).expect("it is listed");
        assert_eq!(ours["state"], "unknown");
    }
}
