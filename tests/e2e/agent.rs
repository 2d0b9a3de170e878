//! Programs for tests. In the agent's place: one that plays a given scene
//! (`tests/programs/agent.rs`), and one that confines itself as the agent does and then attacks
//! (`sandbox-image/tests/programs/attacker.rs`). In a sandbox: one that prints what it reaches.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::engine::{Engine, engine};
use crate::fixture::{Ended, Fixture, files_below, spawn, wait_and_watch, workspace};
use crate::rootfs::digest;
use crate::shared::{once, program, remove_image_at_end};

/// A fixture whose sandboxes have a test's program in the agent's place.
pub struct Actor {
    pub place: Fixture,
    program: &'static Path,
}

/// How a run with the scripted agent went.
#[derive(Debug)]
pub struct Played {
    pub ended: Ended,
    pub document: Value,
    /// The most memory that `sandboxctl` used, in KiB.
    pub peak_kib: u64,
}

impl Actor {
    /// With the scripted agent.
    pub fn new() -> Self {
        Self::with(scripted())
    }

    /// With the one that attacks.
    pub fn attacker() -> Self {
        Self::with(attacker())
    }

    fn with(program: &'static Path) -> Self {
        if engine() == Engine::Docker {
            // The first sandbox has the engine make an image of it.
            let digest = digest(&std::fs::read(program).unwrap());
            let digest = &digest["sha256:".len()..];
            let label = format!("label=sandboxctl.agent={digest}");
            once(&format!("agent-{digest}"), || {
                remove_image_at_end(&label);
                String::new()
            });
        }
        let place = Fixture::new();
        // The agent can read its scene under any user.
        std::fs::create_dir(place.path("sandbox-files")).unwrap();
        place.write("unused.luau", "return 1");
        Self { place, program }
    }

    pub const fn program(&self) -> &'static Path {
        self.program
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("SANDBOX_AGENT", self.program).env_remove("SANDBOXCTL_POLICY_CONFINEMENT");
        command
    }

    /// A run in which the agent plays `play`, with more `args` for `sandboxctl run`.
    pub fn play(&self, play: &str, args: &[&str]) -> Played {
        self.place.write("sandbox-files/play", play);
        let command = self.command(&[&["run", "--json"], args, &["unused.luau"]].concat());
        let (ended, peak_kib) = wait_and_watch(spawn(command));
        let document = self.place.document(&ended);
        Played { ended, document, peak_kib }
    }
}

/// The scripted agent, built once for all tests.
fn scripted() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_static("tests/programs/agent.rs", "scripted-agent"))
}

/// The program that says what it reaches (`tests/programs/network.rs`), built once for all tests.
pub fn network() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_static("tests/programs/network.rs", "network"))
}

/// The program that says which UNIX sockets it reaches (`tests/programs/sockets.rs`), built once for
/// all tests.
pub fn sockets() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_static("tests/programs/sockets.rs", "sockets"))
}

/// The program of many processes in long system calls (`tests/programs/long_calls.rs`), built once for
/// all tests.
pub fn long_calls() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_static("tests/programs/long_calls.rs", "long-calls"))
}

/// The program that says what it may do with terminals (`tests/programs/terminal.rs`), built once for all
/// tests.
pub fn terminal() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_static("tests/programs/terminal.rs", "terminal"))
}

/// Builds a static program from one source file and its modules.
fn build_static(source: &str, name: &str) -> PathBuf {
    let sources = files_below(&workspace().join("tests/programs"));
    let text: Vec<u8> = sources.iter().flat_map(|file| std::fs::read(file).unwrap()).collect();
    program(name, &text, |file| {
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let built = Command::new(rustc)
            .current_dir(workspace())
            .args(["--edition", "2024", "--target", &target])
            .args(["-D", "warnings", "-C", "opt-level=2", "-C", "strip=symbols"])
            .args(["-C", "target-feature=+crt-static", source, "-o"])
            .arg(file)
            .status()
            .unwrap();
        assert!(built.success(), "building {source} failed");
    })
}

/// The attacking program, built once for all tests: next to the agent, and as
/// `controller/engine/build.rs` builds the agent, so that only itself is compiled.
pub fn attacker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("static-programs");
        let program = folder.join(&target).join("agent/attacker");
        // A user who is not root may not build there: the tests of root have built it before.
        if rustix::process::geteuid().is_root() || !program.exists() {
            once("attacker.program", || {
                build_attacker(&target, &folder);
                String::new()
            });
        }
        program
    })
}

fn build_attacker(target: &str, folder: &Path) {
    let cargo_home = std::env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap()));
    let flags = [
        "-Ctarget-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/src", workspace().display()),
        format!("--remap-path-prefix={cargo_home}=/cargo"),
    ];
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo and nextest say to the tests is not meant for another build.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        let is_theirs = ["CARGO_", "NEXTEST", "RUST"].iter().any(|start| name.starts_with(start));
        let is_kept = name == "CARGO_HOME" || name.starts_with("RUSTUP_");
        if (is_theirs && !is_kept) || name == "LD_LIBRARY_PATH" {
            cargo.env_remove(variable);
        }
    }
    let built = cargo
        .current_dir(workspace())
        .args(["build", "--locked", "--profile", "agent", "--package", "sandbox-agent"])
        // Features are those of all packages of a build: with other ones the agent is compiled again.
        .args(["--package", "sandbox-helper"])
        .args(["--bin", "attacker", "--target", target, "--target-dir"])
        .arg(folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("LUAU_CXXFLAGS", "-DNDEBUG")
        .status()
        .unwrap();
    assert!(built.success(), "building the program that attacks failed");
}
