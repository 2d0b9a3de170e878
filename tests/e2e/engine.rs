//! The engine, looked at from outside: not by `sandboxctl`'s word.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fixture::{Fixture, eventually, files_below, peak_memory_kib};

/// What runs the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Docker,
    Embedded,
}

/// What these tests run on: `SANDBOX_TEST_ENGINE` says it.
pub fn engine() -> Engine {
    match std::env::var("SANDBOX_TEST_ENGINE").as_deref() {
        Ok("docker") => Engine::Docker,
        Ok("embedded") => Engine::Embedded,
        other => panic!(
            "SANDBOX_TEST_ENGINE is docker or embedded, not {other:?}: ./scripts/test MODULE runs \
             some of the tests"
        ),
    }
}

impl Engine {
    /// As `--engine` and results name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }

    /// Whether a container whose controller is killed goes without anybody's sweep.
    pub const fn removes_by_itself(self) -> bool {
        match self {
            Self::Docker => false,
            Self::Embedded => true,
        }
    }

    /// Whether a container's output can end before the container does.
    pub const fn detects_closed_streams(self) -> bool {
        match self {
            Self::Docker => false,
            Self::Embedded => true,
        }
    }

    /// Whether it reports what a killed container used: from control groups.
    pub fn reports_usage(self) -> bool {
        match self {
            Self::Docker => false,
            Self::Embedded => rustix::process::geteuid().is_root(),
        }
    }

    /// What stderr has first of a command with a sandbox, unless it is quiet.
    pub fn notice(self) -> &'static str {
        match self {
            Self::Embedded if !rustix::process::geteuid().is_root() => {
                "note: memory and processors are limited by best effort\n"
            }
            Self::Docker | Self::Embedded => "",
        }
    }

    /// The containers of a place, running or not.
    pub fn containers(self, place: &Fixture) -> Vec<String> {
        match self {
            Self::Docker => docker_containers(place),
            Self::Embedded => records(place),
        }
    }

    /// The name of a container, if it is there.
    pub fn name_of(self, container: &str) -> Option<String> {
        match self {
            Self::Docker => {
                let found = docker_api(&format!("/containers/{container}/json"))?;
                Some(found["Name"].as_str()?.trim_start_matches('/').to_owned())
            }
            Self::Embedded => Some(container.to_owned()),
        }
    }

    /// What else there is of a place's containers, on the host.
    pub fn remains(self, place: &Fixture) -> Vec<String> {
        match self {
            // The engine's own business.
            Self::Docker => Vec::new(),
            Self::Embedded => embedded_remains(place),
        }
    }

    /// Kills a container, as somebody does who is not its controller.
    pub fn kill(self, container: &str) {
        match self {
            Self::Docker => _ = docker(&["kill", container]),
            Self::Embedded => {
                for pid in processes(container) {
                    match kill_process(pid, Signal::KILL) {
                        // The first of them takes the others with it.
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
    }

    /// The most memory that a container's first process used, in KiB.
    pub fn peak_memory_kib(self, container: &str) -> u64 {
        peak_memory_kib(self.first_process(container).expect("it runs"))
    }

    /// The process of this machine that is the first one in a container, if it runs.
    pub fn first_process(self, container: &str) -> Option<u32> {
        match self {
            Self::Docker => docker_api(&format!("/containers/{container}/json"))
                .and_then(|it| it["State"]["Pid"].as_u64()?.try_into().ok()),
            Self::Embedded => {
                first_process(container).map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
            }
        }
    }

    pub fn is_running(self, container: &str) -> bool {
        match self {
            // One that is removed by now is not running either.
            Self::Docker => docker_api(&format!("/containers/{container}/json"))
                .is_some_and(|it| it["State"]["Running"] == true),
            Self::Embedded => !processes(container).is_empty(),
        }
    }
}

/// By the instances that the place's state directory knows, by its io dir and by the ids in results:
/// each alone would miss some.
fn docker_containers(place: &Fixture) -> Vec<String> {
    let listed = |filters: Value| {
        let list = docker_api(&format!("/containers/json?all=1&filters={}", percent(&filters)));
        list.expect("it lists containers").as_array().unwrap().clone()
    };
    let label = "sandboxctl.instance";
    let io_dir = place.path("sandbox-files");
    let mut found = listed(json!({ "label": [label], "volume": [io_dir] }));
    let (ids, instances) = (place.ids(), place.instances());
    if !ids.is_empty() || !instances.is_empty() {
        found.extend(listed(json!({ "label": [label] })).into_iter().filter(|container| {
            let is_one_of = |label: &str, ours: &[String]| {
                let value = container["Labels"][label].as_str();
                value.is_some_and(|value| ours.iter().any(|it| it == value))
            };
            is_one_of("sandboxctl.sandbox", &ids) || is_one_of(label, &instances)
        }));
    }
    let ids = found.iter().map(|container| container["Id"].as_str().unwrap().to_owned());
    BTreeSet::from_iter(ids).into_iter().collect()
}

/// Where the Docker Engine listens.
pub fn engine_socket() -> PathBuf {
    match std::env::var("DOCKER_HOST").as_deref() {
        Err(_) | Ok("") => "/var/run/docker.sock".into(),
        Ok(host) => host.strip_prefix("unix://").expect("the tests need a socket of UNIX").into(),
    }
}

/// What the engine's API answers: the docker CLI takes 40 ms for a question, and tests ask thousands.
/// `None` if there is no such thing.
fn docker_api(path: &str) -> Option<Value> {
    let mut engine = UnixStream::connect(engine_socket()).unwrap();
    // In HTTP/1.0 the answer ends with the connection.
    write!(engine, "GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    engine.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    match head.split(' ').nth(1) {
        Some("200") => Some(serde_json::from_str(body).unwrap()),
        Some("404") => None,
        // Podman's word for one that is removed while it is asked.
        Some("500") if body.contains("no such container") => None,
        _ => panic!("GET {path}: {answer}"),
    }
}

/// JSON as a part of a URL.
fn percent(value: &Value) -> String {
    let text = value.to_string();
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The embedded engine's: a record each in the data directory.
fn records(place: &Fixture) -> Vec<String> {
    let records = files_below(&place.data().join("containers"));
    let names = records.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    place.saw(&names);
    names
}

/// The control groups of a container, in all hierarchies.
fn groups(container: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let groups = hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(container));
    groups.filter(|group| group.is_dir()).collect()
}

/// The processes of a container that is not ended.
pub fn processes(container: &str) -> Vec<Pid> {
    if !rustix::process::geteuid().is_root() {
        return descendants_of_helper(container);
    }
    let lists = groups(container).into_iter().map(|group| group.join("cgroup.procs"));
    let lists = lists.filter_map(|list| std::fs::read_to_string(list).ok());
    let pids = lists.flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>());
    let pids: BTreeSet<i32> = pids.map(|pid| pid.parse().unwrap()).collect();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

/// Those below the helper that has the container's record open: without root there may be no groups.
fn descendants_of_helper(container: &str) -> Vec<Pid> {
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let of =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // One that has ended and is not waited for has no group either.
        let has_ended = of("State:").is_some_and(|state| state.starts_with('Z'));
        of("PPid:")?.parse::<i32>().ok().filter(|_| !has_ended)
    };
    let parents: BTreeMap<i32, i32> = pids.filter_map(|pid| Some((pid, parent(&pid)?))).collect();
    let has_record = |pid: &i32| {
        let is_helper = std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|it| it.starts_with(b"sandbox-helper\0"));
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        is_helper
            && files
                .filter_map(|file| file.path().read_link().ok())
                .any(|it| it.ends_with(container))
    };
    let helpers: Vec<i32> = parents.keys().copied().filter(has_record).collect();
    let is_below = |pid: &i32| {
        let mut above = parents.get(pid).copied();
        while let Some(pid) = above {
            if helpers.contains(&pid) {
                return true;
            }
            above = parents.get(&pid).copied();
        }
        false
    };
    parents.keys().copied().filter(is_below).filter_map(Pid::from_raw).collect()
}

/// The process that is the first one in a container. It need not have the lowest number of them on
/// this machine, where numbers begin again.
pub fn first_process(container: &str) -> Option<Pid> {
    let is_first = |pid: &Pid| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
        let status = status.unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().next_back() == Some("1"))
    };
    processes(container).into_iter().find(is_first)
}

/// Control groups of containers that were seen, mounts, and the processes of helpers.
fn embedded_remains(place: &Fixture) -> Vec<String> {
    // A helper that was started ahead hears of its controller's end a moment later.
    eventually("the place's helpers to end", || helpers(place).is_empty().then_some(()));
    let data = place.data();
    let groups = place.seen().into_iter().flat_map(|container| groups(&container));
    let mut found: Vec<String> = groups.map(|group| group.display().to_string()).collect();
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap();
    // Another test's mount has a name that is not UTF-8.
    let mounts = String::from_utf8_lossy(&mounts);
    let mounts = mounts.lines().filter(|line| line.contains(data.to_str().unwrap()));
    found.extend(mounts.map(str::to_owned));
    found.extend(files_below(&data.join("mnt")).iter().map(|file| file.display().to_string()));
    found
}

/// The embedded engine's helpers that serve this place.
pub fn helpers(place: &Fixture) -> Vec<Pid> {
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // They have no file: their first argument is the data directory.
    let command = format!("sandbox-helper\0{}\0", place.data().display());
    let serves = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|it| it.starts_with(command.as_bytes()))
    };
    pids.filter(serves).filter_map(Pid::from_raw).collect()
}

/// Runs the docker CLI.
pub fn docker(args: &[&str]) -> Output {
    let output = Command::new("docker").args(args).output().expect("the docker CLI is installed");
    assert!(output.status.success(), "docker {args:?}: {output:?}");
    output
}

pub fn docker_lines(args: &[&str]) -> Vec<String> {
    String::from_utf8(docker(args).stdout).unwrap().lines().map(str::to_owned).collect()
}
