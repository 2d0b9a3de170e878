//! Docker Engine from API 1.41 on, or Podman's compatible socket. The only module that uses
//! bollard.

mod agent_mount;
pub mod cache;
mod context;
mod create;
mod endpoint;
mod image;
mod image_tar;
mod kill;
mod links;
mod list;
mod pull;
mod removal;
mod response;
mod system;
mod user_image;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bollard::container::LogOutput;
use bollard::models::SystemInfo;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder,
    RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::{StreamExt, TryStreamExt};
use sandbox_api::{EngineInfo, EngineKind, ProgramImage, RootFs};
use sandbox_helper::cgroup::Hierarchies;
use tokio::sync::OnceCell;

use self::agent_mount::AgentMount;
use self::create::{Dialect, From, refuse_volume};
use self::endpoint::{Candidate, Candidates, Endpoint};
use self::image::Image;
use self::links::Links;
use self::response::{CLIENT_TIMEOUT, engine_error, even_if_paused, stopped_is_exited};
use self::system::{missing_limits, rfc3339, security_names, user_mapping};
use crate::agent::Agent;
use crate::config::{DockerEndpoint, EngineConfig};
use crate::error::{ConnectError, EngineError, Tried};
use crate::exit::{ExitEvidence, KILLED};
use crate::{
    Attached, CONNECT_TIMEOUT, Container, ContainerSpec, ContainerSummary, Engine, EngineFacts,
    Groups, Images, Output, Prepared, ProgramRoot, Programs, Progress, UserMapping, accounts,
};

/// How long after a container's exit the engine may take to report that memory had run out.
const LATE_NEWS: Duration = Duration::from_millis(500);
/// What the runtime says that has given a pause up and let the container go on: some process of it was not
/// frozen in time, on a busy machine. And how often it is asked.
const NOT_FROZEN: &str = "unable to freeze";
const PAUSES: usize = 10;
/// How long a container may take to die before its removal is requested nevertheless.
const KILL_BEFORE_REMOVAL: Duration = Duration::from_secs(10);

/// A Docker Engine.
pub struct DockerEngine {
    docker: Docker,
    info: EngineInfo,
    /// Its socket, if it has one.
    socket: Option<PathBuf>,
    /// The host user who runs the engine, if the socket shows it.
    socket_owner: Option<u32>,
    system: OnceCell<SystemInfo>,
    image: Image,
    /// The files to mount into users' images.
    agent_mount: Arc<AgentMount>,
    /// The symbolic links of these images.
    links: Links,
    runtime: Option<String>,
    is_podman: AtomicBool,
}

impl DockerEngine {
    /// Finds an engine that responds.
    pub async fn connect(
        config: &EngineConfig,
        agent: Agent,
        state_dir: &Path,
    ) -> Result<Self, ConnectError> {
        let candidates = match endpoint::find(&config.docker)? {
            Candidates::Named(candidate) => vec![candidate],
            Candidates::Usual(candidates) => candidates,
        };
        let mut tried: Vec<Tried> = Vec::new();
        for Candidate { endpoint, why } in candidates {
            let limit = CONNECT_TIMEOUT;
            let answer = tokio::time::timeout(limit, connect_and_ping(&endpoint))
                .await
                .unwrap_or_else(|_| Err(EngineError::TimedOut { after: limit }));
            match answer {
                Ok(docker) => {
                    let socket = match &endpoint {
                        Endpoint::Unix(path) => Some(path.clone()),
                        Endpoint::Tcp(_) => None,
                    };
                    let metadata = socket.as_ref().and_then(|path| path.metadata().ok());
                    let socket_owner = metadata.map(|meta| meta.uid());
                    let endpoint = endpoint.to_string();
                    let agent_mount = Arc::new(AgentMount::new(agent.clone(), state_dir));
                    let links = Links::new(&endpoint, state_dir);
                    let other = config.image.clone();
                    let image = Image::new(docker.clone(), agent, &endpoint, state_dir, other);
                    let kind = EngineKind::Docker;
                    return Ok(Self {
                        docker,
                        info: EngineInfo { kind, endpoint, why, notice: None },
                        socket,
                        socket_owner,
                        system: OnceCell::new(),
                        image,
                        agent_mount,
                        links,
                        runtime: config.runtime.clone(),
                        is_podman: AtomicBool::new(false),
                    });
                }
                Err(error) => {
                    let endpoint = endpoint.to_string();
                    tried.push(Tried { endpoint, why, outcome: error.to_string() });
                }
            }
        }
        Err(ConnectError::NoEngine { tried })
    }

    async fn system(&self) -> Result<&SystemInfo, EngineError> {
        // With its own time limit: concurrent callers wait for this query.
        let after = CONNECT_TIMEOUT;
        let ask = async || match tokio::time::timeout(after, self.docker.info()).await {
            Ok(answer) => answer.map_err(engine_error),
            Err(_) => Err(EngineError::TimedOut { after }),
        };
        self.system.get_or_try_init(ask).await
    }

    /// Creates a container of a user's image.
    async fn create_foreign(
        &self,
        programs: &Programs,
        spec: &ContainerSpec,
    ) -> Result<String, EngineError> {
        let ProgramRoot::Image { id, reference, volumes } = &programs.root else {
            return Err(not_an_image());
        };
        let unusable = |reason, hint| EngineError::ProgramImage {
            reference: reference.clone(),
            reason,
            hint: Some(hint),
        };
        if let Some(reason) = volumes.iter().find_map(|path| refuse_volume(path, spec)) {
            return Err(unusable(reason, "--mount-path puts the io dir elsewhere"));
        }
        let create = async {
            let refused = self.links.refuse(&self.docker, id, volumes, spec).await?;
            if let Some((reason, hint)) = refused {
                return Err(unusable(reason, hint));
            }
            let image_accounts = self.links.accounts(id);
            let names = accounts::replacements(&image_accounts, spec.user, &spec.home());
            let files = &self.agent_mount.install(names).await?;
            self.create_from(From::UserImage { image: id, volumes, programs, files }, spec).await
        };
        match create.await {
            Err(EngineError::NotFound(_)) => Err(unusable(
                "was removed meanwhile".to_owned(),
                "try again: it is looked up, or pulled, first",
            )),
            result => result,
        }
    }

    async fn create_from(
        &self,
        from: From<'_>,
        spec: &ContainerSpec,
    ) -> Result<String, EngineError> {
        if !self.is_podman.load(Ordering::Relaxed) {
            match self.create_with(from, spec, Dialect::Docker).await {
                // Podman interprets the profile's text as a file name.
                Err(EngineError::Refused(message)) if message.contains("seccomp") => {
                    tracing::info!("the engine accepts no seccomp profile: its own applies");
                    self.is_podman.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.create_with(from, spec, Dialect::Podman).await
    }

    async fn create_with(
        &self,
        from: From<'_>,
        spec: &ContainerSpec,
        dialect: Dialect,
    ) -> Result<String, EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(&spec.name).build();
        let body = create::body(spec, from, self.runtime.as_deref(), dialect);
        tracing::debug!(image = body.image, name = spec.name, ?dialect, "making a container");
        let created = self.docker.create_container(Some(options), body).await;
        let created = created.map_err(engine_error)?;
        for warning in created.warnings {
            tracing::warn!(warning, "the engine cannot keep a setting of the sandbox");
        }
        if let Some(name) = &self.runtime {
            self.verify_runtime(&created.id, name).await?;
        }
        Ok(created.id)
    }

    /// Podman ignores the runtime of a request, and silently uses its default.
    async fn verify_runtime(&self, container: &str, name: &str) -> Result<(), EngineError> {
        let inspect = stopped_is_exited(self.docker.inspect_container(container, None).await)?;
        match inspect.host_config.and_then(|host| host.runtime) {
            Some(taken) if taken == name => Ok(()),
            _ => Err(EngineError::Refused(format!(
                "the engine used its default runtime instead of '{name}'"
            ))),
        }
    }
}

/// Whether no endpoint is configured and no default socket exists.
pub fn is_absent(config: &DockerEndpoint) -> Result<bool, ConnectError> {
    Ok(match endpoint::find(config)? {
        Candidates::Named(_) => false,
        Candidates::Usual(candidates) => candidates.iter().all(Candidate::is_missing),
    })
}

/// Connects and pings.
async fn connect_and_ping(endpoint: &Endpoint) -> Result<Docker, EngineError> {
    let docker = match endpoint {
        Endpoint::Unix(path) => {
            // bollard's errors do not distinguish a missing socket from a forbidden one.
            tokio::net::UnixStream::connect(path).await.map_err(|error| {
                EngineError::Connection(match error.kind() {
                    io::ErrorKind::NotFound => "there is no such socket".to_owned(),
                    io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
                    io::ErrorKind::ConnectionRefused => {
                        "the socket is there, and nothing answers".to_owned()
                    }
                    _ => error.to_string(),
                })
            })?;
            let path = path.to_str().ok_or_else(|| {
                EngineError::Connection("the socket's path is not UTF-8".to_owned())
            })?;
            Docker::connect_with_unix(path, CLIENT_TIMEOUT, API_DEFAULT_VERSION)
        }
        Endpoint::Tcp(address) => Docker::connect_with_http(
            &format!("tcp://{address}"),
            CLIENT_TIMEOUT,
            API_DEFAULT_VERSION,
        ),
    }
    .map_err(engine_error)?;
    docker.ping().await.map_err(engine_error)?;
    Ok(docker)
}

fn not_an_image() -> EngineError {
    EngineError::UnusableRoot {
        reason: "Docker makes sandboxes from images, not from directories or archives".to_owned(),
        hint: Some(
            "`docker load` makes an image of an archive, and `docker import` of a directory's tar, \
             for --image; --engine embedded takes them as they are",
        ),
    }
}

#[async_trait]
impl Engine for DockerEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn highest_id(&self) -> u32 {
        // It keeps them in 32 bits with a sign.
        u32::MAX >> 1
    }

    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let system = self.docker.info().await.map_err(engine_error)?;
        let version = self.docker.version().await.map_err(engine_error)?;
        let name = version
            .components
            .as_deref()
            .and_then(|components| components.first())
            .map_or_else(|| "Docker".to_owned(), |engine| format!("Docker {}", engine.name));
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        Ok(EngineFacts {
            version: format!("{name} {}", text(&version.version))
                .replace("Docker Podman", "Podman"),
            api_version: text(&version.api_version),
            kernel: text(&system.kernel_version),
            cgroups: format!(
                "{} ({})",
                system.cgroup_version.map_or_else(|| "1".to_owned(), |it| it.to_string()),
                system.cgroup_driver.map_or_else(String::new, |it| it.to_string()),
            ),
            security: security_names(&system),
            runtimes: {
                let mut names: Vec<_> =
                    system.runtimes.iter().flatten().map(|(name, _)| name.clone()).collect();
                names.sort();
                names
            },
            missing_limits: missing_limits(&system),
            cpus: system.ncpu.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        })
    }

    fn likely_user_mapping(&self) -> UserMapping {
        match (self.system.get(), self.socket_owner) {
            (Some(system), owner) => user_mapping(system, owner).unwrap_or_default(),
            // A socket that a user owns belongs to a rootless engine of that user.
            (None, Some(owner @ 1..)) => UserMapping::Rootless { owner },
            (None, Some(0) | None) => UserMapping::Identity,
        }
    }

    async fn user_mapping(&self) -> Result<UserMapping, EngineError> {
        user_mapping(self.system().await?, self.socket_owner)
    }

    async fn clock(&self) -> Result<SystemTime, EngineError> {
        clock(&self.docker).await
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(&self.image)
    }

    async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, EngineError> {
        match root {
            RootFs::Builtin => {
                if !self.image.is_known() {
                    self.image.ensure().await?;
                }
                Ok(None)
            }
            RootFs::Image { reference, pull } => {
                user_image::find(&self.docker, reference, *pull, progress).await.map(Some)
            }
            RootFs::Directory(_) | RootFs::Archive(_) => Err(not_an_image()),
        }
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError> {
        let id = if let Some(programs) = &spec.programs {
            self.create_foreign(programs, spec).await?
        } else if let Some(name) = &self.image.other {
            let which = format!("engine.image '{name}'");
            let image = self.image.verify(name, &which).await?;
            self.create_from(From::SandboxImage(&image), spec).await?
        } else {
            let image = self.image.remembered().ok_or(EngineError::ImageMissing)?;
            match self.create_from(From::SandboxImage(&image), spec).await {
                // The image was removed since, or another engine listens at this endpoint.
                Err(EngineError::NotFound(_)) => {
                    self.image.forget(&image);
                    return Err(EngineError::ImageMissing);
                }
                result => result?,
            }
        };
        Ok(Box::new(DockerContainer { docker: self.docker.clone(), id, groups: OnceCell::new() }))
    }

    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        // First, because the engine does not update a container that it is removing; but it removes
        // one, with a kill of its own, even if this one fails.
        match tokio::time::timeout(KILL_BEFORE_REMOVAL, kill::kill(&self.docker, container)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot kill a container that is to be removed");
            }
            Err(_) => tracing::debug!("the container did not die before its removal"),
        }
        even_if_paused(&self.docker, container, || {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            self.docker.remove_container(container, Some(options))
        })
        .await
    }

    async fn begin_removal(&self, container: &str, _mounted: Option<&OwnedFd>) -> bool {
        let Some(socket) = &self.socket else { return false };
        if self.is_podman.load(Ordering::Relaxed) {
            // It may drop a request with its client.
            return false;
        }
        let asked = removal::begin(socket, container).await;
        if let Err(error) = &asked {
            tracing::debug!(%error, "cannot ask for a removal without waiting");
        }
        asked.is_ok()
    }

    async fn program_images(&self) -> Result<Vec<ProgramImage>, EngineError> {
        image::program_images(&self.docker).await
    }

    async fn remove_program_image(&self, id: &str) -> Result<(), EngineError> {
        Err(EngineError::Refused(format!(
            "{id} is an image of Docker's: docker image rm removes it"
        )))
    }

    async fn list(&self, label: &str) -> Result<Vec<ContainerSummary>, EngineError> {
        list::list(&self.docker, label).await
    }
}

/// A container of a Docker Engine.
struct DockerContainer {
    docker: Docker,
    id: String,
    /// Once they were found.
    groups: OnceCell<Groups>,
}

#[async_trait]
impl Container for DockerContainer {
    fn id(&self) -> &str {
        &self.id
    }

    async fn attach(&self) -> Result<Attached, EngineError> {
        let options = AttachContainerOptionsBuilder::new()
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .stream(true)
            .build();
        let attached = self.docker.attach_container(&self.id, Some(options)).await;
        let attached = attached.map_err(engine_error)?;
        let output = attached.output.map_err(io::Error::other).and_then(|piece| async {
            match piece {
                LogOutput::StdOut { message } => Ok(Output::Stdout(message)),
                LogOutput::StdErr { message } => Ok(Output::Stderr(message)),
                // Not a whole frame of the engine: the connection was cut.
                LogOutput::StdIn { .. } | LogOutput::Console { .. } => {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
        });
        Ok(Attached { input: attached.input, output: output.boxed() })
    }

    async fn start(&self) -> Result<(), EngineError> {
        self.docker.start_container(&self.id, None).await.map_err(engine_error)
    }

    async fn wait(&self) -> Result<(), EngineError> {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let mut answers = Box::pin(self.docker.wait_container(&self.id, Some(options)));
        match answers.next().await {
            // bollard treats any exit code other than 0 as an error.
            Some(Ok(_) | Err(bollard::errors::Error::DockerContainerWaitError { .. })) => Ok(()),
            Some(Err(error)) => match engine_error(error) {
                EngineError::NotFound(_) => Ok(()),
                error => Err(error),
            },
            None => Err(EngineError::Connection("the engine hung up".to_owned())),
        }
    }

    async fn kill(&self) -> Result<(), EngineError> {
        kill::kill(&self.docker, &self.id).await
    }

    async fn pause(&self) -> Result<(), EngineError> {
        let mut tries = 0;
        loop {
            let paused = self.docker.pause_container(&self.id).await.map_err(engine_error);
            tries += 1;
            match paused {
                Err(error) if tries < PAUSES && error.to_string().contains(NOT_FROZEN) => {}
                paused => return paused,
            }
        }
    }

    async fn resume(&self) -> Result<(), EngineError> {
        self.docker.unpause_container(&self.id).await.map_err(engine_error)
    }

    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError> {
        let inspect = stopped_is_exited(self.docker.inspect_container(&self.id, None).await);
        let inspect = match inspect {
            Err(EngineError::NotFound(_)) => {
                return Ok(Some(ExitEvidence { removed: true, ..ExitEvidence::default() }));
            }
            inspect => inspect?,
        };
        let state = inspect
            .state
            .ok_or_else(|| EngineError::UnexpectedResponse("no container state".to_owned()))?;
        if state.running == Some(true) || state.paused == Some(true) {
            return Ok(None);
        }
        let code = state.exit_code;
        let oom_killed = match state.oom_killed {
            Some(true) => Some(true),
            _ if code == Some(KILLED) => self.has_run_out_of_memory(None).await,
            _ => Some(false),
        };
        Ok(Some(ExitEvidence { code, oom_killed, ..ExitEvidence::default() }))
    }

    async fn init_pid(&self) -> Option<u32> {
        let inspect = stopped_is_exited(self.docker.inspect_container(&self.id, None).await);
        let pid = inspect.ok()?.state?.pid?;
        u32::try_from(pid).ok().filter(|&pid| pid > 0)
    }

    async fn groups(&self) -> Option<Groups> {
        let find = async {
            let groups = format!("/proc/{}/cgroup", self.init_pid().await?);
            let groups = std::fs::read_to_string(groups).ok()?;
            // A line is its number, its controllers, and the group's path.
            let mut paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            let group = paths.find(|path| path.contains(&self.id))?.trim_start_matches('/');
            let groups = Hierarchies::here().ok()?.of(group);
            groups.usage().map(|_| groups)
        };
        let found = self.groups.get_or_try_init(|| async { find.await.ok_or(()) }).await;
        found.ok().cloned()
    }

    async fn ran_out_of_memory(&self, since: SystemTime) -> Option<bool> {
        // The engine reports the time by its own clock.
        let asked = SystemTime::now();
        let theirs = clock(&self.docker).await.ok()?;
        let since = on_their_clock(since, asked, theirs, SystemTime::now());
        self.has_run_out_of_memory(Some(since)).await
    }
}

impl DockerContainer {
    /// Whether the engine was notified that the container ran out of memory. The container's state
    /// says so only if that notification came before that of its exit, and under load it comes
    /// after. `None` if the engine never gets such notifications.
    async fn has_run_out_of_memory(&self, since: Option<SystemTime>) -> Option<bool> {
        // Podman watches the wrong directory for these notifications before 5.0.
        let engine = self.docker.version().await.unwrap_or_default();
        let version = engine.version.unwrap_or_default();
        let podman = engine.components.iter().flatten().any(|part| part.name == "Podman Engine");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if podman && major.is_none_or(|major| major < 5) {
            return None;
        }
        let filters = HashMap::from([("container", vec![&*self.id]), ("event", vec!["oom"])]);
        // In the past, or at the epoch: past events are returned first.
        let since = since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        let since = since.unwrap_or_default();
        let since = format!("{}.{:09}", since.as_secs(), since.subsec_nanos());
        let options = EventsOptionsBuilder::new().since(&since).filters(&filters).build();
        let mut events = self.docker.events(Some(options));
        let event = tokio::time::timeout(LATE_NEWS, events.next()).await;
        Some(matches!(event, Ok(Some(Ok(_)))))
    }
}

/// Converts a local time to the engine's clock, which showed `theirs` between two local times. If
/// the clocks may agree, they are assumed to.
fn on_their_clock(
    time: SystemTime,
    before: SystemTime,
    theirs: SystemTime,
    after: SystemTime,
) -> SystemTime {
    if let Ok(ahead) = theirs.duration_since(after) {
        time + ahead
    } else if let Ok(behind) = before.duration_since(theirs) {
        time - behind
    } else {
        time
    }
}

async fn clock(docker: &Docker) -> Result<SystemTime, EngineError> {
    let system = docker.info().await.map_err(engine_error)?;
    let text = system.system_time.unwrap_or_default();
    rfc3339(&text).ok_or_else(|| EngineError::UnexpectedResponse(format!("the time '{text}'")))
}

#[cfg(test)]
mod tests {
    pub(super) mod engine;

    use super::*;

    #[test]
    fn a_time_is_moved_by_what_another_clock_is_off_and_by_no_more() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let on = |theirs| on_their_clock(at(90), at(100), at(theirs), at(110));
        assert_eq!([100, 105, 110].map(on), [at(90); 3]);
        assert_eq!([on(60), on(150)], [at(50), at(130)]);
    }
}
