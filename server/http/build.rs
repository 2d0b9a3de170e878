//! Embeds the console, if it was built: each file of `clients/console/dist`, compressed once, by its name in
//! `console.rs`.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() {
    let dir = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let (manifest, out) = (dir("CARGO_MANIFEST_DIR"), dir("OUT_DIR"));
    let console = manifest.join("../../clients/console");
    let dist = console.join("dist");
    println!("cargo::rerun-if-changed=build.rs");
    // A path that does not exist would have this run for each build: one above it changes when it appears.
    let watched = if dist.exists() { &dist } else { &console };
    if watched.exists() {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    let embedded = embed(&dist, &out).unwrap_or_else(|error| panic!("{}: {error}", dist.display()));
    fs::write(out.join("console.rs"), embedded).expect("the output can be written");
}

/// The files as an expression: a slice of names and compressed contents, sorted by name.
fn embed(dist: &Path, out: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    if dist.join("index.html").exists() {
        files.push(dist.join("index.html"));
        for entry in fs::read_dir(dist.join("assets"))? {
            files.push(entry?.path());
        }
    }
    files.sort();
    let mut table = "&[".to_owned();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| io::Error::other("a name is not UTF-8"))?;
        let compressed = out.join(format!("{name}.gz"));
        let mut encoder = GzEncoder::new(File::create(&compressed)?, Compression::best());
        encoder.write_all(&fs::read(&file)?)?;
        encoder.finish()?;
        _ = write!(table, "({name:?}, include_bytes!({:?})), ", compressed.display().to_string());
    }
    table.push(']');
    Ok(table)
}
