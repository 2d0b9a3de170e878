//! Builds the agent and the embedded engine's helper, statically linked, and hands them to the
//! crate as `programs.rs`: their bytes, packed, and their digests.
//!
//! They are built in a cargo run of their own, with its own flags (`+crt-static`) and profile: debug,
//! release, test and clippy builds all embed the same programs, and none of them compiles Luau; those of
//! the profile `dist` are linked with LTO. It has its own target folder next to the outer one, so
//! neither run waits for the other's lock, and one folder serves every outer profile.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lz4::block::{CompressionMode, compress};
use sha2::{Digest, Sha256};

/// Variables by which the outer cargo would reach into the inner one.
const OUTER: &[&str] = &[
    "RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CLIPPY_CONF_DIR",
    "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_RUSTFLAGS",
    "CARGO_PRIMARY_PACKAGE", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "TARGET", "HOST",
    "OUT_DIR", "PROFILE", "OPT_LEVEL", "DEBUG", "LD_LIBRARY_PATH",
];
const OUTER_PREFIXES: &[&str] =
    &["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PKG_", "CARGO_PROFILE_", "DEP_"];

/// A program that is linked statically and embedded.
struct Program {
    /// Its package and its binary.
    name: &'static str,
    /// The constants that it becomes: its content, and with `_SHA256` the digest of that.
    constant: &'static str,
    /// The variable that names a file to embed in place of building one: for packagers, who build
    /// the static programs once for many builds of what embeds them.
    prebuilt: &'static str,
}

const HELPER: &str = "sandbox-helper";
const PROGRAMS: [Program; 2] = [
    Program { name: "sandbox-agent", constant: "AGENT", prebuilt: "SANDBOX_PREBUILT_AGENT" },
    Program { name: HELPER, constant: "HELPER", prebuilt: "SANDBOX_PREBUILT_HELPER" },
];
/// The profile of both.
const PROFILE: &str = "agent";
/// Their target folder, in the outer one.
const FOLDER: &str = "static-programs";
const INPUTS: &[&str] = &[
    "Cargo.toml", "Cargo.lock", "Dockerfile", "sandbox-image", "dirfd", "protocol",
    "controller/engine/helper",
];

fn main() {
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).expect("a workspace").to_owned();
    for input in INPUTS {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["CC", "CXX"].into_iter().chain(PROGRAMS.map(|program| program.prebuilt)) {
        println!("cargo::rerun-if-env-changed={variable}");
    }

    let out = PathBuf::from(var("OUT_DIR"));
    // Fuzz targets start no sandbox, and every program would be built for them from nothing.
    let is_needed = env::var_os("CARGO_CFG_FUZZING").is_none();
    let missing: Vec<_> =
        PROGRAMS.iter().filter(|it| is_needed && env::var_os(it.prebuilt).is_none()).collect();
    let built = target_folder(&out).join(FOLDER);
    if !missing.is_empty() {
        build(&missing, &root, &built, is_dist(&out));
    }
    let constants = PROGRAMS.map(|program| {
        let bytes = if is_needed { program.bytes(&built) } else { Vec::new() };
        program.constants(&bytes, &out)
    });
    let dockerfile = format!(
        "/// The image's Dockerfile.\npub const DOCKERFILE: &str = include_str!({:?});\n",
        root.join("Dockerfile"),
    );
    let block = format!("const BLOCK_BYTES: usize = {BLOCK_BYTES};\n");
    fs::write(out.join("programs.rs"), constants.concat() + &dockerfile + &block)
        .expect("OUT_DIR is writable");
}

impl Program {
    /// The executable: the one that its variable names, or else the one that was built.
    fn bytes(&self, built: &Path) -> Vec<u8> {
        let file = match env::var_os(self.prebuilt) {
            Some(file) => {
                println!("cargo::rerun-if-changed={}", Path::new(&file).display());
                file.into()
            }
            None => built.join(var("TARGET")).join(PROFILE).join(self.name),
        };
        fs::read(&file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()))
    }

    fn constants(&self, bytes: &[u8], out: &Path) -> String {
        let Self { name, constant, .. } = self;
        let file = out.join(name);
        fs::write(&file, pack(bytes)).expect("OUT_DIR is writable");
        let size = bytes.len();
        let digest = Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string grows");
            hex
        });
        format!(
            "/// The program `{name}`, static, for this target. No constant: each use would copy it.\n\
             pub static {constant}: Content<'static> =\n\
             Content::Packed {{ packed: include_bytes!({file:?}), size: {size} }};\n\
             /// The sha256 of [`{constant}`], in hex.\n\
             pub const {constant}_SHA256: &str = {digest:?};\n",
        )
    }
}

/// Builds programs, in one run: what they share is compiled once.
fn build(programs: &[&Program], root: &Path, target_folder: &Path, is_dist: bool) {
    let target = var("TARGET");
    assert!(
        target.ends_with("-linux-gnu"),
        "the agent and the helper are linked statically against glibc: build for a *-linux-gnu target, \
         not {target}"
    );
    let cargo_home = env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", env::var("HOME").unwrap_or_default()));
    // The same program from every checkout: no path of the machine stays in it.
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/src", root.display()),
        format!("--remap-path-prefix={cargo_home}=/cargo"),
    ];
    if is_dist && unpacks_relocations() {
        // Half a megabyte of them is some kilobytes then.
        flags.push("-Clink-arg=-Wl,-z,pack-relative-relocs".to_owned());
    }

    let mut cargo = Command::new(var("CARGO"));
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if OUTER.contains(&&*name) || OUTER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            cargo.env_remove(&*name);
        }
    }
    if is_dist {
        for setting in ["lto='fat'", "codegen-units=1"] {
            cargo.args(["--config", &format!("profile.{PROFILE}.{setting}")]);
        }
    }
    cargo
        .current_dir(root)
        .args(["build", "--locked", "--profile", PROFILE, "--target", &target, "--target-dir"])
        .arg(target_folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        // Luau's own assertions cost a third of its speed.
        .env("LUAU_CXXFLAGS", "-DNDEBUG");
    for Program { name, .. } in programs {
        cargo.args(["--package", name, "--bin", name]);
        if *name == HELPER && env::var_os("CARGO_FEATURE_FAILPOINTS").is_some() {
            cargo.args(["--features", "sandbox-helper/failpoints"]);
        }
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot start cargo: {error}"));
    assert!(status.success(), "building the programs failed: {status} (the messages are above)");
}

/// Whether this is a build with the profile `dist`: cargo's variables name only what that inherits.
fn is_dist(out: &Path) -> bool {
    out.ancestors().nth(3).is_some_and(|folder| folder.ends_with("dist"))
}

/// Whether the C library that is linked in unpacks relocations: glibc does since 2.36. That of another target is not
/// asked.
fn unpacks_relocations() -> bool {
    let asked = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok();
    let version = asked.and_then(|it| String::from_utf8(it.stdout).ok()).unwrap_or_default();
    let minor = version.trim().strip_prefix("glibc 2.").and_then(|it| it.parse::<u32>().ok());
    var("HOST") == var("TARGET") && minor.is_some_and(|minor| minor >= 36)
}

/// The outer target folder: the nearest folder above `OUT_DIR` that cargo marked as a cache, or
/// the one around it where that is only a target's (`target/<triple>`). Cargo marks none that was there
/// before: then it is the one around `PROFILE/build/PACKAGE/out`.
fn target_folder(out: &Path) -> PathBuf {
    let is_marked = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let around = out.ancestors().nth(4).unwrap_or(out);
    let nearest = out.ancestors().find(is_marked).unwrap_or(around);
    nearest.parent().filter(is_marked).unwrap_or(nearest).to_owned()
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// How many bytes of a program a block of LZ4 has; the last block has the rest. So few that they are still in the
/// processor's cache when they are written to a file.
const BLOCK_BYTES: usize = 256 << 10;

/// Blocks of LZ4, each after its length.
fn pack(program: &[u8]) -> Vec<u8> {
    // The most that it can do: only packing takes longer.
    let mode = CompressionMode::HIGHCOMPRESSION(12);
    let mut packed = Vec::new();
    for part in program.chunks(BLOCK_BYTES) {
        let block = compress(part, Some(mode), false).expect("a block is not too long");
        let length = u32::try_from(block.len()).expect("a block is not too long");
        packed.extend_from_slice(&length.to_le_bytes());
        packed.extend_from_slice(&block);
    }
    packed
}
