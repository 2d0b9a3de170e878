//! Where engines differ: the one table that tests ask, and that the documents repeat.

use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use self::Kind::{Docker, Embedded, Gvisor, Podman, Rootless};
use crate::engine::{Engine, docker, engine};
use crate::fixture::workspace;
use crate::shared::once;

/// What runs a sandbox, as far as it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A Docker Engine with its usual runtime.
    Docker,
    /// A Docker Engine whose runtime is gVisor.
    Gvisor,
    /// Podman's socket.
    Podman,
    /// The embedded engine, as root.
    Embedded,
    /// The embedded engine, as another user, without control groups.
    Rootless,
}

/// The most descriptors that a program can ask for: none more without control groups.
pub fn most_descriptors() -> u64 {
    let own = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if kind() == Rootless { 1024 } else { own.min(65_536) }
}

/// Something that not every engine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    PeakMemory,
    OutOfMemory,
    SharedKernel,
    MountNumbers,
    OwnLimits,
    OwnMemory,
    OwnFilter,
    ClosedDescriptors,
    CommandsAtOnce,
    KeptProcesses,
    BoundedDirs,
    AccessLists,
    OwnSockets,
    BoundedFiles,
    CgroupNamespace,
    NothingToWrite,
    LinksReplaced,
    LinksFound,
    NamedRuntime,
    Overlay,
    LimitLifted,
    RemovalFinished,
}

/// Each feature, in the words of the documents, and which engines lack it.
const FEATURES: &[(Feature, &str, &[Kind])] = &[
    (Feature::PeakMemory, "tells the peak memory of a run", &[Gvisor]),
    (
        Feature::OutOfMemory,
        "tells memory that ran out in the container from a kill from outside",
        &[Podman, Rootless],
    ),
    (
        Feature::SharedKernel,
        "runs on the host's kernel, whose filter, masks and resource limits are around the agent",
        &[Gvisor],
    ),
    (
        Feature::MountNumbers,
        "proves every mount by its device and inode, not the io dir alone by a file in it",
        &[Gvisor],
    ),
    (
        Feature::OwnLimits,
        "counts processes and processor time of children as the agent's own",
        &[Gvisor],
    ),
    (
        Feature::OwnMemory,
        "ends the one process that uses up the memory (else the sandbox)",
        &[Gvisor, Rootless],
    ),
    (
        Feature::OwnFilter,
        "applies sandboxctl's filter of system calls to the agent: no namespaces, no sockets, no `ptrace`",
        &[Gvisor, Podman],
    ),
    (
        Feature::ClosedDescriptors,
        "keeps the agent's descriptors from programs (else they need `--confinement best-effort`)",
        &[Gvisor],
    ),
    (Feature::CommandsAtOnce, "runs several commands in a sandbox at a time", &[Gvisor]),
    (Feature::KeptProcesses, "keeps processes in a sandbox", &[Gvisor]),
    (
        Feature::BoundedDirs,
        "bounds a private io dir by a file system of its size (else it is watched)",
        &[Podman, Rootless],
    ),
    (
        Feature::AccessLists,
        "sets access control lists in a bounded io dir (`setfacl`)",
        &[Gvisor, Podman, Rootless],
    ),
    (Feature::OwnSockets, "gives programs UNIX sockets, not pairs alone", &[Gvisor]),
    (Feature::BoundedFiles, "limits the number of files in `/tmp`", &[Gvisor, Podman]),
    (Feature::CgroupNamespace, "gives a cgroup namespace", &[Gvisor, Podman]),
    (
        Feature::NothingToWrite,
        "leaves nothing but the io dir to write to (else `/tmp` and the like, in memory)",
        &[Gvisor, Podman],
    ),
    (
        Feature::LinksReplaced,
        "runs an image with links at `/dev`, `/proc`, `/sys` or in `/etc` (else it is refused)",
        &[Podman],
    ),
    (
        Feature::LinksFound,
        "finds links in an image that lead nowhere (else the agent finds those at the io dir and inputs)",
        &[Podman],
    ),
    (Feature::NamedRuntime, "takes `engine.runtime`", &[Podman, Embedded, Rootless]),
    (
        Feature::Overlay,
        "stages an io dir by an overlay, where the controller is root (else by a copy)",
        &[Gvisor, Podman, Rootless],
    ),
    (
        Feature::LimitLifted,
        "ends a killed program at once that has used more than its processors (else minutes later)",
        &[Podman],
    ),
    (Feature::RemovalFinished, "finishes a removal though its client has disconnected", &[Podman]),
];

/// What ends a container that uses more memory than it may: status, exit code and kind.
pub fn out_of_memory() -> (&'static str, i32, &'static str) {
    // Without root the helper kills, which is certain; what the kernel kills is not known.
    if has(Feature::OutOfMemory) || kind() == Rootless {
        ("limit", 120, "out_of_memory")
    } else {
        ("killed", 137, "killed")
    }
}

/// Whether the engine that the tests run on has it.
pub fn has(feature: Feature) -> bool {
    let (_, _, lacking) = FEATURES.iter().find(|(it, ..)| *it == feature).unwrap();
    !lacking.contains(&kind())
}

/// The engine that the tests run on: detected, so that it cannot be misconfigured.
pub fn kind() -> Kind {
    static KIND: OnceLock<Kind> = OnceLock::new();
    *KIND.get_or_init(|| match engine() {
        Engine::Docker => {
            let version = once("docker.version", || {
                let version = docker(&["version", "--format", "{{json .Server.Components}}"]);
                String::from_utf8(version.stdout).unwrap()
            });
            let runtime = std::env::var("SANDBOXCTL_ENGINE_RUNTIME").unwrap_or_default();
            if version.contains("Podman Engine") {
                Podman
            } else if runtime.starts_with("runsc") {
                Gvisor
            } else {
                Docker
            }
        }
        Engine::Embedded if rustix::process::geteuid().is_root() => Embedded,
        Engine::Embedded => Rootless,
    })
}

#[test]
fn the_documentation_has_the_differences_of_engines() {
    let page = std::fs::read_to_string(workspace().join("docs/src/engines.md")).unwrap();
    let page = page.split_once("## Where they differ").unwrap().1;
    // The line between head and rows begins otherwise.
    let reported: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let mut table =
        vec!["| | Docker Engine | gVisor | Podman | embedded | without root |".to_owned()];
    table.extend(FEATURES.iter().map(|(_, words, lacking)| {
        let cell = |kind| if lacking.contains(&kind) { "no" } else { "yes" };
        let cells = [Docker, Gvisor, Podman, Embedded, Rootless].map(cell).join(" | ");
        format!("| {words} | {cells} |")
    }));
    assert_eq!(reported, table);
}
