//! Images that programs are measured in.

use std::path::{Path, PathBuf};

use sandbox_api::{Pull, RootFs};

use crate::bench::Bench;
use crate::error::Error;

/// Static, so that it is all that the sandbox's root has.
pub const BUSYBOX: &str = "/bin/busybox";

/// An image of a folder, on Docker.
pub struct Image<'a> {
    bench: &'a Bench,
    docker: &'a Path,
    /// Its name.
    pub name: String,
}

impl<'a> Image<'a> {
    /// Makes one, or returns why it cannot. One at a time.
    pub async fn import(bench: &'a Bench, root: &Path) -> Result<Result<Self, String>, Error> {
        let docker = match (bench.peers.docker.path(), &bench.docker) {
            (Ok(docker), Ok(_)) => docker,
            (Err(why), _) => return Ok(Err(why)),
            (_, Err(why)) => return Ok(Err(why.clone())),
        };
        let tar: PathBuf = root.with_extension("tar");
        let mut pack = bench.command(Path::new("tar"), ["--create", "--file"]);
        pack.arg(&tar).arg("--directory").arg(root).arg(".");
        bench.time(pack).await?;
        let image = Self { bench, docker, name: bench.name().to_lowercase() };
        let mut import = image.docker(["import"]);
        import.arg(&tar).arg(&image.name);
        bench.time(import).await?;
        Ok(Ok(image))
    }

    /// For a sandbox.
    pub fn root(&self) -> RootFs {
        RootFs::Image { reference: self.name.clone(), pull: Pull::Never }
    }

    /// Removes it.
    pub async fn remove(self) -> Result<(), Error> {
        self.bench.time(self.docker(["rmi", "--force", &self.name])).await.map(drop)
    }

    /// A command line of Docker's.
    pub fn docker<const N: usize>(&self, args: [&str; N]) -> tokio::process::Command {
        let mut command = self.bench.command(self.docker, args);
        command.envs(self.bench.docker_host());
        command
    }
}
