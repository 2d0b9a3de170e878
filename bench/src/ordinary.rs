//! An ordinary user, for what is measured without root.

use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::bench::{Bench, folder_in, memory};
use crate::error::Error;

/// The user where this process is root: no user of the machine has this number.
const USER: u32 = 60_777;

/// A user without privileges, with a place of its own.
pub struct Ordinary<'a> {
    bench: &'a Bench,
    place: TempDir,
    runtime: TempDir,
    sandboxctl: PathBuf,
}

impl<'a> Ordinary<'a> {
    /// This process's user, or another one where that is root.
    pub fn new(bench: &'a Bench) -> Result<Self, Error> {
        let (place, runtime) = (folder_in(&std::env::temp_dir())?, folder_in(&memory())?);
        // The folder of the program may be closed to this user.
        let sandboxctl = place.path().join("sandboxctl");
        std::fs::copy(bench.program(), &sandboxctl).map_err(Error::file("copy to", &sandboxctl))?;
        let ordinary = Self { bench, place, runtime, sandboxctl };
        ordinary.give(ordinary.place.path())?;
        ordinary.give(ordinary.runtime.path())?;
        Ok(ordinary)
    }

    /// A fresh folder of the user's.
    pub fn folder(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.place.path().join(name);
        std::fs::create_dir(&path).map_err(Error::file("make", &path))?;
        self.give(&path)?;
        Ok(path)
    }

    fn give(&self, path: &Path) -> Result<(), Error> {
        if rustix::process::geteuid().is_root() {
            chown(path, Some(USER), Some(USER)).map_err(Error::file("give away", path))?;
        }
        Ok(())
    }

    /// The command, run by the user in the user's place.
    pub fn command(&self, mut command: Command) -> Command {
        command.current_dir(self.place.path());
        if rustix::process::geteuid().is_root() {
            // And without further groups.
            command.uid(USER).gid(USER);
        }
        command
    }

    /// A command line of `sandboxctl` on the embedded engine, with the limits that this user can set.
    pub fn sandboxctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let engine = ["--engine", "embedded", "--limits", "best-effort"];
        let mut command = self.bench.command(&self.sandboxctl, engine);
        command.args(args);
        command.env_clear();
        command.env("HOME", self.place.path()).env("XDG_RUNTIME_DIR", self.runtime.path());
        self.command(command)
    }
}
