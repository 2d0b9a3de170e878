//! File systems for programs, made by the tests: of busybox alone, or of this machine's own programs
//! with the libraries that they load.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FileType;
use sandbox_api::{Pull, RootFs};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempDir};

use crate::engine::{Engine, engine};
use crate::fixture::workspace;
use crate::shared::{once, program, remove_image_at_end, run_id};

/// A file system that is being made.
#[derive(Debug, Clone, Default)]
pub struct Rootfs {
    /// By paths without a slash at their beginnings.
    entries: BTreeMap<String, Entry>,
    /// The image's settings, as OCI has them.
    config: Value,
    architecture: Option<&'static str>,
}

#[derive(Debug, Clone)]
enum Entry {
    Folder { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
    Fifo,
}

impl Rootfs {
    /// Empty.
    pub fn empty() -> Self {
        Self { config: json!({}), ..Self::default() }
    }

    /// busybox with all its names, and nothing else: static, without `/tmp`, `/proc` or `/etc`.
    pub fn busybox() -> Self {
        let busybox = std::fs::read("/bin/busybox").expect("busybox-static is installed");
        let listed = Command::new("/bin/busybox").arg("--list-full").output().unwrap();
        let names = String::from_utf8(listed.stdout).unwrap();
        let rootfs = Self::empty().file("bin/busybox", 0o755, busybox);
        names
            .lines()
            .filter(|name| *name != "bin/busybox")
            .fold(rootfs, |rootfs, name| rootfs.link(name, "/bin/busybox"))
    }

    /// Programs of this machine, by their paths, and the libraries that they load: dynamic ones of
    /// its own C library.
    pub fn host(programs: &[&str]) -> Self {
        Self::empty().with_host(programs)
    }

    /// The same, in what there is already.
    pub fn with_host(self, programs: &[&str]) -> Self {
        let mut files = BTreeSet::new();
        for program in programs {
            files.insert((*program).to_owned());
            let listed = Command::new("ldd").arg(program).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
            files.extend(paths.map(str::to_owned));
        }
        files.into_iter().fold(self, |rootfs, path| rootfs.copy(&path, &path))
    }

    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(path, Entry::Folder { mode })
    }

    pub fn file(self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.entry(path, Entry::File { mode, content: content.into() })
    }

    pub fn fifo(self, path: &str) -> Self {
        self.entry(path, Entry::Fifo)
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, Entry::Link { target: target.to_owned() })
    }

    /// A file of this machine, through links.
    pub fn copy(self, path: &str, source: impl AsRef<Path>) -> Self {
        let source = source.as_ref();
        let mode = source.metadata().unwrap().permissions().mode() & 0o777;
        self.file(path, mode, std::fs::read(source).unwrap())
    }

    /// Settings of the image, as OCI has them: `Env`, `WorkingDir`, `Volumes`.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// For another processor.
    pub fn architecture(mut self, architecture: &'static str) -> Self {
        self.architecture = Some(architecture);
        self
    }

    fn entry(mut self, path: &str, entry: Entry) -> Self {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            let folder = path[..at].to_owned();
            self.entries.entry(folder).or_insert(Entry::Folder { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    /// As a tar: one layer.
    pub fn layer(&self) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            match entry {
                Entry::Folder { mode } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, path, &[][..]).unwrap();
                }
                Entry::File { mode, content } => {
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, &content[..]).unwrap();
                }
                Entry::Link { target } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target).unwrap();
                }
                Entry::Fifo => {
                    header.set_entry_type(tar::EntryType::Fifo);
                    header.set_mode(0o644);
                    header.set_size(0);
                    tar.append_data(&mut header, path, &[][..]).unwrap();
                }
            }
        }
        tar.into_inner().unwrap()
    }

    /// The image's configuration for this layer.
    pub fn image_config(&self, layer: &[u8]) -> Vec<u8> {
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": self.architecture.unwrap_or(machine),
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [],
        });
        serde_json::to_vec(&config).unwrap()
    }

    /// As `docker save` writes an image of this name.
    pub fn docker_archive(&self, name: &str) -> Vec<u8> {
        let layer = self.layer();
        let config = self.image_config(&layer);
        let config_name = format!("{}.json", digest(&config).trim_start_matches("sha256:"));
        let manifest = json!([
            {"Config": config_name, "RepoTags": [name], "Layers": ["layer/layer.tar"]},
        ]);
        let manifest = serde_json::to_vec(&manifest).unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        for (path, content) in
            [(&*config_name, config), ("layer/layer.tar", layer), ("manifest.json", manifest)]
        {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, path, &content[..]).unwrap();
        }
        tar.into_inner().unwrap()
    }

    /// As a directory of this machine's, below `folder`.
    pub fn write_to(&self, folder: &Path) {
        for (path, entry) in &self.entries {
            let path = folder.join(path);
            match entry {
                Entry::Folder { .. } => std::fs::create_dir(&path).unwrap(),
                Entry::File { content, .. } => std::fs::write(&path, content).unwrap(),
                Entry::Link { target } => std::os::unix::fs::symlink(target, &path).unwrap(),
                Entry::Fifo => {
                    let mode = 0o644.into();
                    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).unwrap();
                }
            }
        }
        // Last: what was made may not be written to.
        for (path, entry) in self.entries.iter().rev() {
            if let Entry::Folder { mode } | Entry::File { mode, .. } = entry {
                let permissions = std::fs::Permissions::from_mode(*mode);
                std::fs::set_permissions(folder.join(path), permissions).unwrap();
            }
        }
    }

    /// Has the engine have it: an image on Docker, on the embedded engine a directory.
    pub fn provide(&self) -> Provided {
        match engine() {
            Engine::Docker => self.load(),
            Engine::Embedded => self.directory(),
        }
    }

    /// As [`provide`](Self::provide), with the image's settings: on the embedded engine an archive.
    pub fn provide_image(&self) -> Provided {
        match engine() {
            Engine::Docker => self.load(),
            Engine::Embedded => self.archive(),
        }
    }

    /// As an archive, as `docker save` writes it.
    pub fn archive(&self) -> Provided {
        let mut file = tempfile::Builder::new().prefix("sandboxctl-image-").tempfile().unwrap();
        file.write_all(&self.docker_archive("sandboxctl-test/archive:1")).unwrap();
        Provided::Archive(file)
    }

    /// As a directory.
    pub fn directory(&self) -> Provided {
        let folder = tempfile::Builder::new().prefix("sandboxctl-rootfs-").tempdir().unwrap();
        self.write_to(folder.path());
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Provided::Directory(folder)
    }

    /// As an image of the engine's, which all tests of this run share.
    pub fn load(&self) -> Provided {
        let digest = digest(&self.image_config(&self.layer()));
        let digest = &digest["sha256:".len()..][..16];
        // A name of this run: another that uses the same engine removes its own images.
        let name = format!("sandboxctl-test/rootfs:{digest}-{}", run_id());
        once(&format!("image-{digest}"), || {
            remove_image_at_end(&name);
            load(&self.docker_archive(&name));
            String::new()
        });
        Provided::Image(name)
    }
}

fn load(archive: &[u8]) {
    let mut docker = Command::new("docker")
        .args(["load", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    docker.stdin.take().unwrap().write_all(archive).unwrap();
    assert!(docker.wait().unwrap().success(), "docker load failed");
}

/// The sha256 of bytes, as images have it.
pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

/// A file system of Debian's packages, with what they depend on, that is made once for all runs of the tests.
#[derive(Debug)]
pub struct Debian(PathBuf);

impl Debian {
    /// Of packages, none of whose scripts has run.
    pub fn new(packages: &[&str]) -> Self {
        Self::make(packages, "")
    }

    /// With npm's package from its registry, at `/usr/lib/npm`.
    pub fn with_npm(packages: &[&str]) -> Self {
        Self::make(
            packages,
            "mkdir \"$1/usr/lib/npm\" && cd \"$1/usr/lib/npm\" && npm pack --silent npm@10 >/dev/null \
             && tar -xf npm-*.tgz && rm npm-*.tgz",
        )
    }

    fn make(packages: &[&str], then: &str) -> Self {
        let script = workspace().join("scripts/debian");
        let source = [std::fs::read(&script).unwrap(), packages.join(" ").into(), then.into()];
        let name = format!("debian-{}", packages.join("-"));
        Self(program(&name, &source.concat(), |root| {
            let run = |command: &mut Command| {
                assert!(command.status().unwrap().success(), "{packages:?}");
            };
            run(Command::new(&script).arg(root).args(packages));
            run(Command::new("sh").args(["-ec", then, "sh"]).arg(root));
        }))
    }

    /// Where it is on this machine, whose own programs can use what is in it.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Has the engine have it.
    pub fn provide(&self) -> Provided {
        if engine() == Engine::Embedded {
            return Provided::Shared(self.0.clone());
        }
        let folder = self.0.file_name().unwrap().to_str().unwrap();
        let name = format!("sandboxctl-test/{folder}:{}", run_id());
        once(&format!("image-{folder}"), || {
            remove_image_at_end(&name);
            let line = "tar --create --directory \"$1\" . | docker import - \"$2\" >/dev/null";
            let mut shell = Command::new("sh");
            shell.args(["-c", line, "sh"]).arg(&self.0).arg(&name);
            assert!(shell.status().unwrap().success(), "docker import failed");
            String::new()
        });
        Provided::Image(name)
    }
}

/// What an engine can make sandboxes from. Files go with this value, images with the run of the tests.
#[derive(Debug)]
pub enum Provided {
    /// An image of Docker's, by its name.
    Image(String),
    /// A directory.
    Directory(TempDir),
    /// A directory that others use too.
    Shared(PathBuf),
    /// A tar, as `docker save` writes one.
    Archive(NamedTempFile),
}

impl Provided {
    /// For the library.
    pub fn root(&self) -> RootFs {
        match self {
            Self::Image(name) => RootFs::Image { reference: name.clone(), pull: Pull::Never },
            Self::Directory(folder) => RootFs::Directory(folder.path().to_owned()),
            Self::Shared(folder) => RootFs::Directory(folder.clone()),
            Self::Archive(file) => RootFs::Archive(file.path().to_owned()),
        }
    }

    /// For the command line.
    pub fn args(&self) -> Vec<String> {
        match self {
            Self::Image(name) => vec!["--image".to_owned(), name.clone()],
            Self::Directory(folder) => {
                vec!["--rootfs".to_owned(), folder.path().to_str().unwrap().to_owned()]
            }
            Self::Shared(folder) => {
                vec!["--rootfs".to_owned(), folder.to_str().unwrap().to_owned()]
            }
            Self::Archive(file) => {
                vec!["--image-archive".to_owned(), file.path().to_str().unwrap().to_owned()]
            }
        }
    }

    /// The directory that it is.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Image(_) | Self::Archive(_) => None,
            Self::Directory(folder) => Some(folder.path().to_owned()),
            Self::Shared(folder) => Some(folder.clone()),
        }
    }
}
