//! Builds the agent, statically linked, and hands it to the crate as `agent.rs`:
//! `AGENT` (the program's bytes) and `AGENT_SHA256` (their digest).
//!
//! A cargo run of its own, because the agent needs other flags (`+crt-static`) and another
//! profile than whatever is being built around it: debug, release, tests and clippy all embed the
//! very same agent. It has a target folder of its own beside the outer one, so that the two runs
//! never wait for one another's lock, and one folder serves every outer profile.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Variables by which the outer cargo would reach into the inner one.
const OUTER: &[&str] = &[
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_PRIMARY_PACKAGE",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "TARGET",
    "HOST",
    "OUT_DIR",
    "PROFILE",
    "OPT_LEVEL",
    "DEBUG",
    "LD_LIBRARY_PATH",
];
const OUTER_PREFIXES: &[&str] =
    &["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PKG_", "CARGO_PROFILE_", "DEP_"];

fn main() {
    let root = Path::new(&var("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned();
    for input in ["Cargo.toml", "Cargo.lock", "Dockerfile", "sandbox-image", "protocol"] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    for compiler in ["CC", "CXX"] {
        println!("cargo::rerun-if-env-changed={compiler}");
    }

    let out = PathBuf::from(var("OUT_DIR"));
    // Fuzz targets start no sandbox, and an agent would be built for them from nothing.
    let agent = if env::var_os("CARGO_CFG_FUZZING").is_some() {
        Vec::new()
    } else {
        let built = build_agent(&root, &target_folder(&out).join("static-agent"));
        fs::read(&built)
            .unwrap_or_else(|error| panic!("cannot read the agent at {}: {error}", built.display()))
    };
    let copy = out.join("sandbox-agent");
    fs::write(&copy, &agent).expect("OUT_DIR is writable");

    let digest = Sha256::digest(&agent).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string grows");
        hex
    });
    let module = format!(
        "/// The agent: a static program for this target.\n\
         pub const AGENT: &[u8] = include_bytes!({copy:?});\n\
         /// The sha256 of [`AGENT`], in hex.\n\
         pub const AGENT_SHA256: &str = {digest:?};\n\
         /// The image's Dockerfile.\n\
         pub const DOCKERFILE: &str = include_str!({:?});\n",
        root.join("Dockerfile"),
    );
    fs::write(out.join("agent.rs"), module).expect("OUT_DIR is writable");
}

fn build_agent(root: &Path, target_folder: &Path) -> PathBuf {
    let target = var("TARGET");
    assert!(
        target.ends_with("-linux-gnu"),
        "the agent is linked statically against glibc: build for a *-linux-gnu target, not {target}"
    );
    let cargo_home = env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", env::var("HOME").unwrap_or_default()));
    // The same agent from every checkout: no path of the machine stays in it.
    let flags = [
        "-Ctarget-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/src", root.display()),
        format!("--remap-path-prefix={cargo_home}=/cargo"),
    ];

    let mut cargo = Command::new(var("CARGO"));
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if OUTER.contains(&&*name) || OUTER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            cargo.env_remove(&*name);
        }
    }
    let status = cargo
        .current_dir(root)
        .args(["build", "--locked", "--profile", "agent", "--package", "sandbox-agent"])
        .args(["--bin", "sandbox-agent", "--target", &target, "--target-dir"])
        .arg(target_folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        // Luau's own assertions cost a third of its speed.
        .env("LUAU_CXXFLAGS", "-DNDEBUG")
        .status()
        .unwrap_or_else(|error| panic!("cannot start cargo for the agent: {error}"));
    assert!(status.success(), "building the agent failed: {status} (the messages are above)");
    target_folder.join(target).join("agent/sandbox-agent")
}

/// The outer target folder: the nearest folder above `OUT_DIR` that cargo marked as a cache, or
/// the one around it where that is only a target's (`target/<triple>`). `OUT_DIR` itself where none
/// is marked (`cargo install`).
fn target_folder(out: &Path) -> PathBuf {
    let is_marked = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let nearest = out.ancestors().find(is_marked).unwrap_or(out);
    nearest.parent().filter(is_marked).unwrap_or(nearest).to_owned()
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
