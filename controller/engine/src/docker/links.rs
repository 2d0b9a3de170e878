//! Symbolic links in users' images: no mount target may lead through one.
//!
//! The OCI runtime follows the links of the image when it creates a container's mounts, even into
//! an earlier mount: a mount point could then be created in the io dir, by root, before the agent
//! could check anything. So every component of every target is checked beforehand, in a container
//! of the same image without any mount, which is never started: an engine that is asked about a
//! path in a container with mounts (Docker 20.10) sets these up first, through those very links.
//!
//! The engine also looks up users and groups in files of the image, as root, while the mounts are
//! in place. A link there could lead into a mount, to a FIFO or to a file of the kernel, and no
//! engine reports what a link resolves to: Docker 20.10, asked for the link itself, opens its
//! target. So these files must not be links. The engine reads each file completely and keeps every
//! line, in 27 times its size, without a time limit: so they must be small too.
//!
//! The files of users and groups are read here too, as the sandbox's user may be [added](crate::accounts) to
//! them.
//!
//! The content of an image does not change, so the result is cached by its id.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Mutex;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
    DownloadFromContainerOptionsBuilder, RemoveContainerOptionsBuilder,
};
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};

use super::create::{EMPTY, TMP};
use super::response::{engine_error, even_if_paused};
use crate::ContainerSpec;
use crate::accounts::{self, Accounts};
use crate::docker::cache::Cache;
use crate::error::EngineError;
use crate::hardening::SYSTEM_FILES;
use crate::lock;

/// Mounts that engines add by themselves.
const ENGINES_OWN: &[&str] = &["/dev/mqueue", "/dev/pts", "/dev/shm", "/proc", "/sys/fs/cgroup"];
/// The bit of a symbolic link in a mode reported by the engine: that of Go's `fs.FileMode`.
const MODE_SYMLINK: u32 = 1 << 27;
/// The maximum number of cached paths of an image; the mounts of a sandbox have some dozen.
const MAX_REMEMBERED: usize = 256;

/// The files in which an engine looks up users and groups of the image, without a time limit: it waits for
/// a writer of a FIFO for ever.
const LOOKED_UP: &[&str] = &accounts::PATHS;
/// The largest such file. That of a machine with 10,000 users has about 600 KB.
const MAX_LOOKED_UP: i64 = 1 << 20;
/// The bits of Go's `fs.FileMode` for what is neither a file, a directory nor a link.
const MODE_SPECIAL: u32 = 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;

/// What to do about an image with a link.
const HINT_LINK: &str = "make an image without the link, or put the io dir elsewhere by --mount-path \
                         where that is what it leads to";
/// What to do about an image with a large file of users or groups.
const HINT_LARGE: &str = "make an image with fewer users and groups: a sandbox runs as a number, and \
                          needs none of them";
/// What to do about an image in which the engine cannot inspect a path.
const HINT_UNSEEN: &str = "make an image in which that can be a directory: no loop of links, nothing \
                           below a file, no name longer than 255 bytes";

/// The kind of a path of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Component {
    /// Missing: what the engine creates there belongs to the container.
    Missing,
    /// A directory or a file.
    Plain,
    /// A symbolic link.
    Link,
    /// A FIFO, a device or a socket.
    Special,
    /// A file that the engine would read, and that is too large for that.
    Large,
}

/// The checked paths of an image.
type Paths = BTreeMap<String, Component>;

/// The known facts about an image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Known {
    paths: Paths,
    /// Its files of users and groups, once they were read.
    accounts: Option<Accounts>,
}

/// The checked paths of the images of an engine.
pub(super) struct Links {
    endpoint: String,
    state_dir: PathBuf,
    images: Mutex<HashMap<String, Known>>,
}

impl Links {
    pub fn new(endpoint: &str, state_dir: &Path) -> Self {
        let (endpoint, state_dir) = (endpoint.to_owned(), state_dir.to_owned());
        Self { endpoint, state_dir, images: Mutex::default() }
    }

    /// Refuses an image if a mount target passes through a link of the image, or cannot be
    /// inspected: the reason, and a hint. The image is inspected in a container with the name of
    /// `spec`, so that removing the container by name also removes this one.
    pub async fn refuse(
        &self,
        docker: &Docker,
        image: &str,
        volumes: &[String],
        spec: &ContainerSpec,
    ) -> Result<Option<(String, &'static str)>, EngineError> {
        let targets = targets(volumes, spec);
        let mut known = self.recall(image);
        let targets: Vec<_> = targets.iter().map(String::as_str).collect();
        let paths = [&targets[..], LOOKED_UP].concat();
        if first_unknown(&known.paths, &paths).is_some() || known.accounts.is_none() {
            create_bare(docker, image, volumes, spec).await?;
            let checked = async {
                let checked = check(docker, &spec.name, &paths, &mut known.paths).await?;
                // A refused image may have unchecked paths.
                if checked.is_none() {
                    known.accounts = Some(read_accounts(docker, &spec.name, &known.paths).await?);
                }
                Ok::<_, EngineError>(checked)
            };
            let checked = checked.await;
            let removed = even_if_paused(docker, &spec.name, || {
                let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
                docker.remove_container(&spec.name, Some(options))
            });
            removed.await?;
            if let Some(unseen) = checked? {
                return Ok(Some((unseen, HINT_UNSEEN)));
            }
            self.remember(image, &known);
        }
        let known = known.paths;
        for (targets, why) in [
            (&targets[..], "where the sandbox mounts its"),
            (LOOKED_UP, "through which the engine would read"),
        ] {
            if let Some((path, target)) = first_link(&known, targets) {
                let reason = format!("has a symbolic link at {path}, {why} {target}");
                return Ok(Some((reason, HINT_LINK)));
            }
        }
        Ok(LOOKED_UP.iter().find_map(|path| match known.get(*path)? {
            Component::Special => {
                let reason = format!("has a special file at {path}, which the engine would read");
                Some((reason, HINT_LINK))
            }
            Component::Large => {
                let reason = format!(
                    "has more than {MAX_LOOKED_UP} bytes at {path}, which the engine would read as a whole"
                );
                Some((reason, HINT_LARGE))
            }
            Component::Missing | Component::Plain | Component::Link => None,
        }))
    }

    /// The image's files of users and groups, as far as they were read: by [`refuse`](Self::refuse).
    pub fn accounts(&self, image: &str) -> Accounts {
        self.recall(image).accounts.unwrap_or_default()
    }

    fn recall(&self, image: &str) -> Known {
        let known = lock(&self.images).get(image).cloned();
        known.unwrap_or_else(|| {
            let kept = self.cache(image).read();
            kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
        })
    }

    fn remember(&self, image: &str, known: &Known) {
        if known.paths.len() > MAX_REMEMBERED {
            return;
        }
        lock(&self.images).insert(image.to_owned(), known.clone());
        if let Ok(text) = serde_json::to_string(known) {
            self.cache(image).write(&text);
        }
    }

    fn cache(&self, image: &str) -> Cache {
        Cache::new(&self.state_dir, &format!("links 3\n{}\n{image}", self.endpoint))
    }
}

/// The mount targets in a container of an image. The agent's path is not included: it is a name in
/// the root directory that no image can predict.
fn targets(volumes: &[String], spec: &ContainerSpec) -> Vec<String> {
    let ours = spec.mounts.iter().map(|bind| &*bind.target);
    let system = SYSTEM_FILES.iter().map(|(path, _)| *path);
    let others = ENGINES_OWN.iter().copied().chain([TMP]).chain(system);
    ours.chain(volumes.iter().map(String::as_str)).chain(others).map(str::to_owned).collect()
}

/// A path and all of its parents except the root, from the top.
fn components(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.filter(|at| *at > 0).map(|at| &path[..at])
}

/// The first unchecked component that matters: there is nothing below a missing one, and no need to
/// check below a link.
fn first_unknown<'a>(known: &Paths, paths: &[&'a str]) -> Option<&'a str> {
    paths.iter().find_map(|path| {
        let beyond = components(path).find(|path| known.get(*path) != Some(&Component::Plain))?;
        (!known.contains_key(beyond)).then_some(beyond)
    })
}

/// The first link on the way to one of the paths, and that path.
fn first_link<'a>(known: &Paths, paths: &[&'a str]) -> Option<(&'a str, &'a str)> {
    paths.iter().find_map(|target| {
        let path = components(target).find(|path| known.get(*path) == Some(&Component::Link))?;
        Some((path, *target))
    })
}

/// Creates a container of the image without a mount, which is never started.
async fn create_bare(
    docker: &Docker,
    image: &str,
    volumes: &[String],
    spec: &ContainerSpec,
) -> Result<(), EngineError> {
    let options = CreateContainerOptionsBuilder::new().name(&spec.name).build();
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec!["/".to_owned()]),
        cmd: Some(Vec::new()),
        // Otherwise the engine would create that of the image.
        working_dir: Some("/".to_owned()),
        labels: Some(spec.labels.iter().cloned().collect()),
        network_disabled: Some(true),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            // Otherwise the engine would create volumes. These are only mounted at a start.
            tmpfs: Some(volumes.iter().map(|path| (path.clone(), EMPTY.to_owned())).collect()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    docker.create_container(Some(options), body).await.map_err(engine_error).map(|_| ())
}

/// Checks every component that matters, up to one that the engine cannot inspect, and returns why.
async fn check(
    docker: &Docker,
    container: &str,
    paths: &[&str],
    known: &mut Paths,
) -> Result<Option<String>, EngineError> {
    while let Some(path) = first_unknown(known, paths) {
        let component = match look(docker, container, path).await {
            Err(EngineError::Refused(why)) => return Ok(Some(unseen(path, &why))),
            looked => looked?,
        };
        known.insert(path.to_owned(), component);
    }
    Ok(None)
}

/// Reads the files of users and groups of a container's image that are plain files. One that cannot be
/// read stays as it is.
async fn read_accounts(
    docker: &Docker,
    container: &str,
    paths: &Paths,
) -> Result<Accounts, EngineError> {
    let mut accounts = Accounts::default();
    for (path, content) in LOOKED_UP.iter().zip(&mut accounts) {
        // A missing parent means a missing entry.
        let found =
            components(path).find_map(|it| paths.get(it).filter(|it| **it != Component::Plain));
        *content = match found.unwrap_or(&Component::Plain) {
            Component::Missing => Some(String::new()),
            Component::Plain => accounts::plain_text(download(docker, container, path).await?),
            Component::Link | Component::Special | Component::Large => None,
        };
    }
    Ok(accounts)
}

/// The content of a file of a container's image, which is in an archive.
async fn download(docker: &Docker, container: &str, path: &str) -> Result<Vec<u8>, EngineError> {
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut pieces = pin!(docker.download_from_container(container, Some(options)));
    let mut archive = Vec::new();
    while let Some(piece) = pieces.try_next().await.map_err(engine_error)? {
        archive.extend_from_slice(&piece);
        if archive.len() > 2 * accounts::MAX_BYTES {
            break;
        }
    }
    let read = || {
        let mut content = Vec::new();
        let mut archive = tar::Archive::new(&*archive);
        archive
            .entries()?
            .next()
            .transpose()?
            .map_or(Ok(0), |mut it| it.read_to_end(&mut content))?;
        Ok::<_, std::io::Error>(content)
    };
    // One that is cut off is too large.
    Ok(read().unwrap_or_else(|_| vec![0]))
}

/// Docker gives no reason: the answer to a HEAD request has no body.
fn unseen(path: &str, why: &str) -> String {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!("has something in the way at {path}, where the engine cannot look{why}")
}

/// What is at a path of a container's image.
async fn look(docker: &Docker, container: &str, path: &str) -> Result<Component, EngineError> {
    let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
    let asked = docker.get_container_archive_info(container, Some(options)).await;
    Ok(match asked.map_err(engine_error) {
        Ok(stat) if stat.file_mode & MODE_SYMLINK != 0 => Component::Link,
        // Podman follows links, and reports the target.
        Ok(stat) if !stat.link_target.is_empty() && stat.link_target != path => Component::Link,
        Ok(stat) if stat.file_mode & MODE_SPECIAL != 0 => Component::Special,
        Ok(stat) if LOOKED_UP.contains(&path) && stat.size > MAX_LOOKED_UP => Component::Large,
        Ok(_) => Component::Plain,
        Err(EngineError::NotFound(_)) => Component::Missing,
        Err(error) => return Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[(&str, Component)]) -> Paths {
        paths.iter().map(|&(path, component)| (path.to_owned(), component)).collect()
    }

    #[test]
    fn every_component_of_a_target_is_looked_at_from_the_top() {
        assert_eq!(components("/in/a/b").collect::<Vec<_>>(), ["/in", "/in/a", "/in/a/b"]);
        let targets = ["/io", "/in/a/b"];
        let mut known = Paths::new();
        for (path, component) in [
            ("/io", Component::Missing),
            ("/in", Component::Plain),
            ("/in/a", Component::Plain),
            ("/in/a/b", Component::Plain),
        ] {
            assert_eq!(first_unknown(&known, &targets), Some(path));
            known.insert(path.to_owned(), component);
        }
        assert_eq!(first_unknown(&known, &targets), None);
        assert_eq!(first_link(&known, &targets), None);
    }

    #[test]
    fn nothing_is_looked_for_beneath_what_is_missing_or_a_link() {
        let targets = ["/in/a/b", "/v/w/x"];
        let known = paths(&[("/in", Component::Missing), ("/v", Component::Plain)]);
        assert_eq!(first_unknown(&known, &targets), Some("/v/w"));
        let known = paths(&[
            ("/in", Component::Missing),
            ("/v", Component::Plain),
            ("/v/w", Component::Link),
        ]);
        assert_eq!(first_unknown(&known, &targets), None);
        assert_eq!(first_link(&known, &targets), Some(("/v/w", "/v/w/x")));
    }

    #[test]
    fn path_that_the_engine_cannot_look_at_is_named_with_a_reason_or_without_one() {
        assert!(unseen("/tmp", "").ends_with(" at /tmp, where the engine cannot look"));
        assert!(unseen("/tmp", "a loop").ends_with(" where the engine cannot look (a loop)"));
    }

    #[test]
    fn links_of_an_image_are_cached_by_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let links = || Links::new("unix:///x", dir.path());
        let seen = Known {
            paths: paths(&[("/io", Component::Link), ("/a\n\"b", Component::Missing)]),
            accounts: Some([Some("root:x:0:0::/:\n".to_owned()), None]),
        };
        links().remember("sha256:1", &seen);
        assert_eq!(links().recall("sha256:1"), seen);
        assert_eq!(links().accounts("sha256:1"), seen.accounts.unwrap());
        assert_eq!(links().recall("sha256:2"), Known::default());
        assert_eq!(Links::new("unix:///y", dir.path()).recall("sha256:1"), Known::default());
    }
}
