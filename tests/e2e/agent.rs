//! The program in the agent's place (`tests/programs/agent.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use crate::ENGINE;
use crate::place::{Ended, Place, finish, spawn, wait_and_watch, workspace};

/// Places that have an [`Actor`] now: the last one removes its image.
static ACTORS: Mutex<usize> = Mutex::new(0);

/// A place whose sandboxes have the scripted agent.
pub struct Actor {
    pub place: Place,
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
    pub fn new() -> Self {
        *ACTORS.lock().unwrap() += 1;
        let place = Place::new();
        // Whoever it belongs to, the agent can read what it is to play.
        std::fs::create_dir(place.path("sandbox-files")).unwrap();
        place.write("unused.luau", "return 1");
        Self { place }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("SANDBOX_AGENT", program());
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

/// The program, built once for all tests.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scripted-agent");
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let built = Command::new(rustc)
            .current_dir(workspace())
            .args(["--edition", "2024", "--target", &target])
            .args([
                "-D",
                "warnings",
                "-C",
                "opt-level=2",
                "-C",
                "strip=symbols",
                "-C",
                "target-feature=+crt-static",
            ])
            .args(["tests/programs/agent.rs", "-o"])
            .arg(&program)
            .status()
            .unwrap();
        assert!(built.success(), "building the scripted agent failed");
        program
    })
}
