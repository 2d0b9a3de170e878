//! Bubblewrap as a peer: a program in new namespaces, with a root, a proc, a dev and a tmp, as the ones of
//! a sandbox, and without control groups and limits.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::process::Command;

use crate::bench::Bench;
use crate::error::Error;
use crate::peers::CHECK;

/// What it is in tables.
pub const BWRAP: &str = "`bwrap`";
/// The program of a root of the agent, which does what peers of a run do.
pub const AGENT: [&str; 2] = ["/.sandbox/agent", CHECK];

/// A root for it: the directories that it mounts at.
pub fn root(root: &Path) -> Result<(), Error> {
    for folder in ["proc", "dev", "tmp"] {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
    }
    Ok(())
}

/// A root for it whose only program is the agent.
pub fn root_of_agent(folder: &Path) -> Result<(), Error> {
    root(folder)?;
    let agent = folder.join(AGENT[0].trim_start_matches('/'));
    let parent = agent.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(Error::file("make", parent))?;
    std::fs::write(&agent, sandbox_controller::AGENT.to_vec())
        .map_err(Error::file("write", &agent))?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))
        .map_err(Error::file("make executable", &agent))
}

/// The command line that runs a program in a root.
pub fn command(bench: &Bench, bwrap: &Path, root: &Path, program: [&str; 2]) -> Command {
    let mut command = bench.command(bwrap, ["--unshare-all", "--die-with-parent", "--ro-bind"]);
    command.arg(root).args(["/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    command.args(["--cap-drop", "ALL"]).args(program);
    command
}
