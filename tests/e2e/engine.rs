//! The engine, looked at from outside: not by `sandboxctl`'s word.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, eventually, files_below, peak_memory_kib};

/// What runs the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Docker,
    Embedded,
}

impl Engine {
    /// As `--engine` and results name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }

    /// Whether its containers are made from images.
    pub const fn has_images(self) -> bool {
        match self {
            Self::Docker => true,
            Self::Embedded => false,
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
    pub const fn tells_of_closed_streams(self) -> bool {
        match self {
            Self::Docker => false,
            Self::Embedded => true,
        }
    }

    /// Whether it can tell what a killed container used.
    pub const fn tells_usage(self) -> bool {
        match self {
            Self::Docker => false,
            Self::Embedded => true,
        }
    }

    /// The containers of a place, running or not.
    pub fn containers(self, place: &Fixture) -> Vec<String> {
        match self {
            Self::Docker => docker_containers(place),
            Self::Embedded => records(place),
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
        let pid = match self {
            Self::Docker => docker_lines(&["inspect", "--format", "{{.State.Pid}}", container])
                .first()
                .and_then(|pid| pid.parse().ok()),
            Self::Embedded => {
                processes(container).first().map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
            }
        };
        peak_memory_kib(pid.expect("it runs"))
    }

    pub fn is_running(self, container: &str) -> bool {
        match self {
            Self::Docker => {
                let state = docker(&["inspect", "--format", "{{.State.Running}}", container]);
                state.stdout == b"true\n"
            }
            Self::Embedded => !processes(container).is_empty(),
        }
    }
}

/// By the instances that the place's state directory knows, by its io dir and by the ids in results:
/// each alone would miss some.
fn docker_containers(place: &Fixture) -> Vec<String> {
    let mut filters = vec![format!("volume={}", place.path("sandbox-files").display())];
    filters.extend(place.ids().iter().map(|id| format!("label=sandboxctl.sandbox={id}")));
    filters.extend(place.instances().iter().map(|id| format!("label=sandboxctl.instance={id}")));
    let mut found: Vec<String> = filters
        .iter()
        .flat_map(|filter| {
            let ours = ["--filter", "label=sandboxctl.instance", "--filter", filter];
            docker_lines(&[&["ps", "-a", "-q", "--no-trunc"][..], &ours].concat())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The embedded engine's: a record each in the data directory.
fn records(place: &Fixture) -> Vec<String> {
    let records = files_below(&place.data().join("containers"));
    let names = records.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    place.saw(&names);
    names
}

/// The control groups of a container, in whatever hierarchies.
fn groups(container: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let groups = hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(container));
    groups.filter(|group| group.is_dir()).collect()
}

/// The processes of a container that is not ended.
pub fn processes(container: &str) -> Vec<Pid> {
    let lists = groups(container).into_iter().map(|group| group.join("cgroup.procs"));
    let lists = lists.filter_map(|list| std::fs::read_to_string(list).ok());
    let pids = lists.flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>());
    let pids: BTreeSet<i32> = pids.map(|pid| pid.parse().unwrap()).collect();
    pids.into_iter().filter_map(Pid::from_raw).collect()
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
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|it| it == command.as_bytes())
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
