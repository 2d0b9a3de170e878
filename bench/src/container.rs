//! A plain container that stays, with this machine's programs in it: for `docker exec`, as a peer
//! of operations on a sandbox.

use std::path::Path;

use tokio::process::Command;

use crate::bench::Bench;
use crate::error::Error;

/// Where Linux keeps programs and what they are linked with.
const PROGRAMS: [&str; 4] = ["/bin", "/lib", "/lib64", "/usr"];

/// A plain container.
pub struct Plain<'a> {
    bench: &'a Bench,
    docker: &'a Path,
    name: String,
}

impl<'a> Plain<'a> {
    /// Starts one, in which `folder` is at `/io`; or returns why it cannot.
    pub async fn start(bench: &'a Bench, folder: &Path) -> Result<Result<Self, String>, Error> {
        let (docker, engine) = match (bench.peers.docker.path(), &bench.docker) {
            (Ok(docker), Ok(engine)) => (docker, engine),
            (Err(why), _) => return Ok(Err(why)),
            (_, Err(why)) => return Ok(Err(why.clone())),
        };
        let image = engine.image.as_deref().unwrap_or_default();
        let name = format!("{}-plain", bench.name());
        let plain = Self { bench, docker, name };
        let mut run =
            plain.docker(["run", "--detach", "--network", "none", "--log-driver", "none"]);
        run.args(["--name", &plain.name, "--label", &bench.label()]);
        for folder in PROGRAMS.into_iter().filter(|folder| Path::new(folder).is_dir()) {
            run.args(["--mount", &format!("type=bind,source={folder},target={folder},readonly")]);
        }
        run.args(["--mount", &format!("type=bind,source={},target=/io", folder.display())]);
        run.args(["--entrypoint", "sleep", image, "86400"]);
        match bench.time(run).await {
            Ok(_) => Ok(Ok(plain)),
            Err(error @ Error::Command { .. }) => Ok(Err(error.full_message())),
            Err(error) => Err(error),
        }
    }

    /// The command line `docker exec` of a program in it.
    pub fn exec<const N: usize>(&self, program: [&str; N]) -> Command {
        let mut command = self.docker(["exec", &self.name]);
        command.args(program);
        command
    }

    /// Removes it.
    pub async fn remove(self) -> Result<(), Error> {
        self.bench.time(self.docker(["rm", "--force", &self.name])).await.map(drop)
    }

    fn docker<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut command = self.bench.command(self.docker, args);
        command.envs(self.bench.docker_host());
        command
    }
}
