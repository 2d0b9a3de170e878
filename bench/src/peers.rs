//! What sandboxctl is compared with, as far as this machine has it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// What peers of a run do: the agent compiles the script on its stdin, which is empty, and ends.
pub const CHECK: &str = "check";

/// A program to compare with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// Where it is, and its version; or why it cannot run.
    pub found: Result<Program, String>,
}

/// A program that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// The first line of what it says of itself.
    pub version: String,
}

/// All of them.
#[derive(Debug, Clone)]
pub struct Peers {
    /// The Docker command line.
    pub docker: Peer,
    /// The OCI runtime under Docker, by itself.
    pub runc: Peer,
    /// Bubblewrap: namespaces alone, without cgroups or an image.
    pub bwrap: Peer,
    /// Stock Lua.
    pub lua: Peer,
}

impl Peers {
    /// Looks for them.
    #[must_use]
    pub fn find() -> Self {
        Self {
            docker: find("docker", "--version", "apt install docker.io"),
            runc: find("runc", "--version", "apt install runc"),
            bwrap: find("bwrap", "--version", "apt install bubblewrap"),
            lua: find("lua5.4", "-v", "apt install lua5.4"),
        }
    }

    /// For the report.
    #[must_use]
    pub fn all(&self) -> Vec<Peer> {
        let Self { docker, runc, bwrap, lua } = self;
        [docker, runc, bwrap, lua].map(Clone::clone).into()
    }
}

fn find(name: &'static str, version: &str, install: &str) -> Peer {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    let found = match path {
        None => Err(format!("there is no {name} here; {install}")),
        Some(path) => say(&path, version)
            .map(|version| Program { path: path.clone(), version })
            .ok_or_else(|| format!("{} does not run", path.display())),
    };
    Peer { name, found }
}

fn say(path: &Path, version: &str) -> Option<String> {
    let said = Command::new(path).arg(version).output().ok()?;
    let text = if said.stdout.is_empty() { said.stderr } else { said.stdout };
    let line = String::from_utf8(text).ok()?.lines().next()?.to_owned();
    said.status.success().then_some(line)
}

impl Peer {
    /// Its file, or why it cannot run.
    ///
    /// # Errors
    ///
    /// Why it cannot run.
    pub fn path(&self) -> Result<&Path, String> {
        match &self.found {
            Ok(program) => Ok(&program.path),
            Err(why) => Err(why.clone()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Ok(Program { path, version }) => {
                write!(formatter, "{}: {version} ({})", self.name, path.display())
            }
            Err(why) => write!(formatter, "{}: {why}", self.name),
        }
    }
}
