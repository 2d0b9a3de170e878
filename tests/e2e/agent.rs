//! Programs for tests. In the agent's place: one that plays what it is told (`tests/programs/agent.rs`),
//! and one that confines itself as the agent does and then attacks
//! (`sandbox-image/tests/programs/attacker.rs`). In a sandbox: one that says what it reaches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use crate::ENGINE;
use crate::fixture::{Ended, Fixture, finish, spawn, wait_and_watch, workspace};

/// Places that have an [`Actor`] of each program now: the last one removes its image.
static ACTORS: Mutex<BTreeMap<&Path, usize>> = Mutex::new(BTreeMap::new());

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
        *ACTORS.lock().unwrap().entry(program).or_default() += 1;
        let place = Fixture::new();
        // Whoever it belongs to, the agent can read what it is to play.
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

    /// A run in which the agent does what is said, with more `args` for `sandboxctl run`.
    pub fn play(&self, play: &str, args: &[&str]) -> Played {
        self.place.write("sandbox-files/play", play);
        let command = self.command(&[&["run", "--json"], args, &["unused.luau"]].concat());
        let (ended, peak_kib) = wait_and_watch(spawn(command));
        let document = self.place.document(&ended);
        Played { ended, document, peak_kib }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let mut actors = ACTORS.lock().unwrap();
        let actors = actors.entry(self.program).or_default();
        *actors -= 1;
        if *actors > 0 || !ENGINE.has_images() || std::thread::panicking() {
            return;
        }
        let sandboxctl = |args: &[&str]| finish(self.command(args));
        let listed = sandboxctl(&["image", "ls", "--json"]);
        let images: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
        for image in images.as_array().unwrap().iter().filter(|image| image["current"] == true) {
            sandboxctl(&["image", "rm", image["id"].as_str().unwrap()]).assert_code(0);
        }
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

/// Builds a program of one source as a static one. The tests of another engine may use it meanwhile.
fn build_static(source: &str, name: &str) -> PathBuf {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Not as an extension: the compiler's temporary files are named after what comes before it.
    let part = program.with_file_name(format!("{name}-{}", std::process::id()));
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = Command::new(rustc)
        .current_dir(workspace())
        .args(["--edition", "2024", "--target", &target])
        .args(["-D", "warnings", "-C", "opt-level=2", "-C", "strip=symbols"])
        .args(["-C", "target-feature=+crt-static", source, "-o"])
        .arg(&part)
        .status()
        .unwrap();
    assert!(built.success(), "building {source} failed");
    std::fs::rename(part, &program).unwrap();
    program
}

/// The program that attacks, built once for all tests: beside the agent and as `controller/engine/build.rs`
/// builds that, so that nothing but itself is compiled.
pub fn attacker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("static-agent");
        let cargo_home = std::env::var("CARGO_HOME")
            .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap()));
        let flags = [
            "-Ctarget-feature=+crt-static".to_owned(),
            format!("--remap-path-prefix={}=/src", workspace().display()),
            format!("--remap-path-prefix={cargo_home}=/cargo"),
        ];
        let mut cargo = Command::new(env!("CARGO"));
        for variable in ["RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "LD_LIBRARY_PATH"] {
            cargo.env_remove(variable);
        }
        let built = cargo
            .current_dir(workspace())
            .args(["build", "--locked", "--profile", "agent", "--package", "sandbox-agent"])
            .args(["--bin", "attacker", "--target", &target, "--target-dir"])
            .arg(&folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("LUAU_CXXFLAGS", "-DNDEBUG")
            .status()
            .unwrap();
        assert!(built.success(), "building the program that attacks failed");
        folder.join(target).join("agent/attacker")
    })
}
