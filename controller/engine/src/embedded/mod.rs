//! Containers without a daemon: each is launched, served and removed by its own helper process.
//!
//! Without root, helper and container are in a user namespace in which this user is the only one.
//!
//! Little outlives the processes, and it can be found by the container's name alone: a record in
//! the data directory ([`records`]), and the cgroups. Everything else (root filesystem, mounts) is in
//! the container's and the helper's mount namespaces and disappears with them.

mod container;
mod data_dir;
mod helper;
mod launch;
mod privileges;
mod records;
mod root;
mod seccomp;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sandbox_api::{DiskReserve, EngineInfo, EngineKind, GcMode, ProgramImage, RootFs, processors};
use sandbox_helper::cgroup::Hierarchies;
use sandbox_rootfs::{CachedTree, RootCache, Unpacked, prepare_archive};
use tokio::sync::Semaphore;

use self::container::{Handle, Live};
use self::helper::Helpers;
use self::launch::Swap;
pub use self::privileges::Purpose;
use self::privileges::Rootless;
use self::records::Records;
use crate::agent::{Agent, HELPER_SHA256};
use crate::config::EmbeddedConfig;
use crate::error::{EmbeddedProblem, EngineError};
use crate::image::check_env;
use crate::program::ProgramOnce;
use crate::{
    Container, ContainerSpec, ContainerSummary, Engine, EngineFacts, Prepared, ProgramRoot,
    Progress, Source, UserMapping, lock,
};

/// How many containers are created at one time, for each processor. More of them would wait for each
/// other's locks in the kernel, and each would be ready when all are.
const CREATED_AT_ONCE: usize = 2;

/// The limits that no control group enforces where there is none.
const BY_BEST_EFFORT: [&str; 3] = ["memory", "swap", "cpus"];

/// The embedded engine.
pub struct EmbeddedEngine {
    info: EngineInfo,
    user: Rootless,
    hierarchies: Arc<Hierarchies>,
    records: Records,
    /// The unpacked images.
    roots: RootCache,
    /// What unpacking leaves free.
    disk_reserve: DiskReserve,
    helpers: Arc<Helpers>,
    /// The executable that helpers start in containers.
    agent: Arc<ProgramOnce>,
    swap: Swap,
    /// Held while a container is created, by those who came first.
    creating: Semaphore,
    /// Containers that this process created and has not removed.
    live: Mutex<HashMap<String, Arc<Live>>>,
}

impl EmbeddedEngine {
    /// Checks whether the embedded engine can be used, and prepares it.
    pub fn connect(
        config: &EmbeddedConfig,
        agent: &Agent,
        disk_reserve: DiskReserve,
        no_other: Option<&str>,
        purpose: Purpose,
    ) -> Result<Self, EmbeddedProblem> {
        let user = privileges::user();
        // First: a user who has none that can be used makes no directory and starts no helper.
        let hierarchies = privileges::hierarchies(user, config.rootless_limits, purpose)?;
        let roots = data_dir::open(&config.data_dir)?;
        // Without root a helper looks for them itself.
        let groups = hierarchies.mounted().filter(|_| user.is_none()).map(Path::to_owned);
        let helpers = Helpers::new(config.data_dir.clone(), groups.collect());
        let agent = Arc::new(ProgramOnce::agent(agent.clone()));
        if purpose == Purpose::Launch {
            let mount = ProgramOnce::open_from_store([&agent, helpers.program()]);
            if mount.is_none() {
                // Where both are copied into memory, in parallel.
                agent.copy_ahead();
            }
            helpers.start_ahead();
            if let Some(mount) = mount {
                tokio::task::spawn_blocking(move || drop(mount));
            }
        }
        let path = config.data_dir.display();
        Ok(Self {
            user,
            info: EngineInfo {
                kind: EngineKind::Embedded,
                endpoint: format!("embedded:{path}"),
                why: if no_other.is_some() { "no other is there" } else { "engine.kind" }
                    .to_owned(),
                notice: privileges::notice(no_other, user, &hierarchies),
            },
            swap: if hierarchies.counts_swap() { Swap::Counted } else { Swap::NotCounted },
            hierarchies: Arc::new(hierarchies),
            records: Records::new(&config.data_dir),
            roots,
            disk_reserve,
            helpers,
            agent,
            creating: Semaphore::new(CREATED_AT_ONCE * processors() as usize),
            live: Mutex::default(),
        })
    }

    /// Works on the unpacked images, on a thread of its own.
    async fn in_cache<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RootCache) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let roots = self.roots.clone();
        let done = tokio::task::spawn_blocking(move || work(&roots)).await;
        done.map_err(|error| EngineError::Connection(error.to_string()))?
            .map_err(|error| EngineError::Refused(format!("the cache of images: {error}")))
    }
}

#[async_trait]
impl Engine for EmbeddedEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Ok(EngineFacts {
            version: format!("embedded, helper {}", &HELPER_SHA256[..12]),
            api_version: String::new(),
            kernel: text(uname.release()),
            cgroups: self.hierarchies.version().to_owned(),
            security: vec!["seccomp".to_owned()],
            // It launches containers itself.
            runtimes: vec!["sandbox-helper".to_owned()],
            missing_limits: match self.swap {
                _ if self.hierarchies.is_none() => BY_BEST_EFFORT.map(str::to_owned).to_vec(),
                Swap::Counted => Vec::new(),
                Swap::NotCounted => vec!["swap".to_owned()],
            },
            cpus: processors(),
        })
    }

    fn likely_user_mapping(&self) -> UserMapping {
        match self.user {
            None => UserMapping::Identity,
            Some((uid, gid)) => UserMapping::Single { uid, gid },
        }
    }

    async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, EngineError> {
        match root {
            RootFs::Builtin => Ok(None),
            RootFs::Image { .. } => Err(root::no_images()),
            RootFs::Directory(directory) => root::open(directory, self.user).map(Some),
            RootFs::Archive(path) => {
                let unpacked =
                    prepare_archive(path, &self.roots, self.disk_reserve, progress).await;
                let Unpacked { root, tree, env, workdir, digest, archive } =
                    unpacked.map_err(|error| EngineError::Archive {
                        path: path.clone(),
                        source: Box::new(error),
                    })?;
                check_env(&path.display().to_string(), &env)?;
                let named = Some(Source::new(path.display().to_string(), archive));
                let path = root.display().to_string();
                tracing::debug!(%digest, path, "the image is unpacked");
                // The descriptor keeps it from being removed while it is in use.
                let root = ProgramRoot::Directory(Source::new(path, tree));
                Ok(Some(Prepared { root, env, workdir: workdir.unwrap_or_default(), named }))
            }
        }
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError> {
        let _turn = self.creating.acquire().await;
        let helper = self.helpers.take().await?;
        let record = self.records.create(&spec.name, &spec.labels).map_err(|error| {
            EngineError::Refused(format!("cannot keep a record of {}: {error}", spec.name))
        })?;
        let groups = self.hierarchies.of(&spec.name);
        let agent = self
            .agent
            .get()
            .map_err(|error| EngineError::Refused(format!("cannot open the agent: {error}")))?;
        let live = Live::launch(spec, record, helper, &agent, groups, self.swap, self.user).await?;
        let live = Arc::new(live);
        lock(&self.live).insert(spec.name.clone(), live.clone());
        Ok(Box::new(Handle(live)))
    }

    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        let live = lock(&self.live).remove(container);
        if let Some(live) = live {
            if !self.helpers.expect_more()
                && let Some(agent) = self.agent.take_from_memory()
            {
                // While the helper removes the container: freeing megabytes takes about as long.
                tokio::task::spawn_blocking(move || drop(agent));
            }
            match live.remove().await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, "the helper did not remove its container");
                    live.give_up();
                }
            }
        }
        let (records, hierarchies) = (self.records.clone(), self.hierarchies.clone());
        let name = container.to_owned();
        let removal = tokio::task::spawn_blocking(move || records.remove(&name, &hierarchies));
        removal.await.unwrap_or_else(|error| Err(EngineError::Connection(error.to_string())))
    }

    async fn begin_removal(&self, container: &str, mounted: Option<&OwnedFd>) -> bool {
        let Some(live) = lock(&self.live).remove(container) else { return false };
        let asked = live.begin_removal(mounted).await;
        if let Err(error) = &asked {
            tracing::debug!(%error, "the helper was not asked to remove its container");
            // Its removal is up to `remove`.
            lock(&self.live).insert(container.to_owned(), live);
        }
        asked.is_ok()
    }

    async fn list(&self, label: &str) -> Result<Vec<ContainerSummary>, EngineError> {
        let listed = self.records.list(label);
        listed.map_err(|error| EngineError::Refused(format!("cannot list the records: {error}")))
    }

    async fn program_images(&self) -> Result<Vec<ProgramImage>, EngineError> {
        let trees = self.in_cache(|roots| roots.list()).await?;
        Ok(trees.into_iter().map(unpacked).collect())
    }

    async fn remove_program_image(&self, id: &str) -> Result<(), EngineError> {
        let key = id.to_owned();
        match self.in_cache(move |roots| roots.remove(&key)).await? {
            true => Ok(()),
            false => Err(EngineError::Refused(format!("{id} is in use"))),
        }
    }

    async fn tidy(&self, mode: GcMode) -> Result<Vec<ProgramImage>, EngineError> {
        let removed = self.in_cache(move |roots| {
            let mut expired = roots.expired()?;
            if mode == GcMode::Remove {
                roots.tidy();
                if !expired.is_empty() {
                    // Those in use are still there.
                    let kept = roots.expired()?;
                    expired.retain(|tree| !kept.contains(tree));
                }
            }
            Ok(expired)
        });
        Ok(removed.await?.into_iter().map(unpacked).collect())
    }
}

/// An unpacked archive, as callers see it.
fn unpacked(CachedTree { key, size, used }: CachedTree) -> ProgramImage {
    ProgramImage { id: key, engine: EngineKind::Embedded, names: Vec::new(), since: used, size }
}
