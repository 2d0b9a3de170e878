//! The engine, looked at from outside: not by `sandboxctl`'s word.

use std::process::{Command, Output};

use crate::place::Place;

/// What runs the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Docker,
}

impl Engine {
    /// As `--engine` and results name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
        }
    }

    /// Whether its containers are made from images.
    pub const fn has_images(self) -> bool {
        match self {
            Self::Docker => true,
        }
    }

    /// Whether it can tell what a killed container used.
    pub const fn tells_usage(self) -> bool {
        match self {
            Self::Docker => false,
        }
    }

    /// The containers of a place, running or not.
    pub fn containers(self, place: &Place) -> Vec<String> {
        match self {
            Self::Docker => docker_containers(place),
        }
    }

    /// What else there is of a place's containers, on the host.
    pub fn remains(self, _: &Place) -> Vec<String> {
        match self {
            // The engine's own business.
            Self::Docker => Vec::new(),
        }
    }

    /// Kills a container, as somebody does who is not its controller.
    pub fn kill(self, container: &str) {
        match self {
            Self::Docker => _ = docker(&["kill", container]),
        }
    }

    pub fn is_running(self, container: &str) -> bool {
        match self {
            Self::Docker => {
                let state = docker(&["inspect", "--format", "{{.State.Running}}", container]);
                state.stdout == b"true\n"
            }
        }
    }
}

/// By the instances that the place's state folder knows, by its io dir and by the ids in results:
/// each alone would miss some.
fn docker_containers(place: &Place) -> Vec<String> {
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

/// Runs the docker CLI.
pub fn docker(args: &[&str]) -> Output {
    let output = Command::new("docker").args(args).output().expect("the docker CLI is installed");
    assert!(output.status.success(), "docker {args:?}: {output:?}");
    output
}

pub fn docker_lines(args: &[&str]) -> Vec<String> {
    String::from_utf8(docker(args).stdout).unwrap().lines().map(str::to_owned).collect()
}
