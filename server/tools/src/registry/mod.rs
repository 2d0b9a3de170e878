//! A registry of sandboxes by the handles that their callers chose.
//!
//! A handle is in use from the request of its sandbox until the request of its removal, or until a
//! call finds that the sandbox has ended. Calls in between belong to that sandbox, whether or not
//! it has started yet.

mod mount_policy;
mod order;

use std::collections::HashMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use sandbox_api::hosts::Allowlist;
use sandbox_api::{Bounds, ErrorKind, Limits, Pull, RootFs, SandboxSpec, image_matches};
use sandbox_controller::{Controller, EngineError, Error, Sandbox};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{ToolError, over_ceiling};
use crate::lock;
use mount_policy::MountPolicy;
pub(crate) use order::Scope;
use order::{Order, Ticket};

/// The most sandboxes that are registered at one time.
const MAX_SANDBOXES: usize = 64;
/// Longest handle.
const MAX_HANDLE_BYTES: usize = 255;

/// The settings of a registry's sandboxes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The base of relative host directories.
    pub working_directory: PathBuf,
    /// The directories that may contain a sandbox's host directory.
    pub allowed_out_paths: Vec<PathBuf>,
    /// Protected names, in a sandbox and in the path of its host directory.
    pub protected: Vec<String>,
    /// The template for launches, without what the request sets.
    pub sandbox: SandboxSpec,
    /// The limits of a sandbox without programs.
    pub scripts: Bounds,
    /// The limits of one with programs.
    pub programs: Bounds,
    /// The images that requests may use, as patterns of [`image_matches`].
    pub allowed_images: Vec<String>,
    /// When such an image is pulled.
    pub pull: Pull,
    /// The hosts that commands may reach, in every sandbox that supports commands. A request may name
    /// some of them.
    pub hosts: Allowlist,
}

/// A caller's request for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxRequest {
    /// The caller's name for it.
    pub handle: String,
    /// The engine's image in which commands run.
    pub image: Option<String>,
    /// A display name for the container.
    pub container_name: Option<String>,
    /// The host directory that is mounted; a private one that ends with the sandbox if none is named.
    pub host_dir: Option<String>,
    /// Its absolute mount point in the sandbox.
    pub mount_path: String,
    /// The sandbox's limits, if it has others than the usual ones.
    pub limits: Option<Limits>,
    /// The hosts that its commands may reach, if they are others than the usual ones.
    pub hosts: Option<Allowlist>,
}

impl SandboxRequest {
    /// Checks the fields, as far as possible without other information.
    fn check(&self) -> Result<(), ToolError> {
        if self.handle.is_empty() {
            return Err(invalid("containerId", "it is empty"));
        }
        if self.handle.len() > MAX_HANDLE_BYTES {
            let problem = format!("it is longer than {MAX_HANDLE_BYTES} bytes");
            return Err(invalid("containerId", &problem));
        }
        if self.image.as_deref() == Some("") {
            return Err(invalid("imageName", "it is empty"));
        }
        if self.mount_path.trim_start_matches('/').is_empty() {
            return Err(invalid("rootPath", "it names no directory"));
        }
        Ok(())
    }

    fn absolute_mount_path(&self) -> String {
        format!("/{}", self.mount_path.trim_start_matches('/'))
    }
}

/// An argument of `sandbox_init` is invalid.
fn invalid(argument: &str, problem: &str) -> ToolError {
    ToolError::invalid(format!("sandbox_init: `{argument}`: {problem}"))
}

/// The registered sandboxes.
pub struct Registry {
    controller: Arc<Controller>,
    settings: Settings,
    mounts: MountPolicy,
    names: Mutex<Names>,
    /// Launches and removals, which continue when their callers are gone.
    tasks: Mutex<JoinSet<()>>,
}

impl Settings {
    /// Whether a request asks for what these allow.
    fn check(&self, request: &SandboxRequest) -> Result<(), ToolError> {
        if let Some(image) = &request.image
            && !self.allowed_images.iter().any(|pattern| image_matches(pattern, image))
        {
            let kind = ErrorKind::NotAllowed;
            return Err(ToolError::of_value(kind, "imageName", image, "it is not allowed")
                .with_hint("tools.allowed_images says which images may be named"));
        }
        if let Some(limits) = &request.limits {
            let over = |over| over_ceiling("sandbox_init: limits", &over);
            limits.check(&self.bounds(request.image.as_deref()).ceiling).map_err(over)?;
        }
        let Some(hosts) = &request.hosts else { return Ok(()) };
        if !self.spec(request).supports_exec() {
            let problem = "only commands have a network, and this sandbox has no programs";
            return Err(invalid("allow", problem));
        }
        let mut rules = hosts.rules().iter();
        match rules.find(|rule| !self.hosts.covers(rule)) {
            Some(rule) => {
                let (kind, rule) = (ErrorKind::Policy, rule.to_string());
                Err(ToolError::of_value(kind, "allow", &rule, "it is not allowed")
                    .with_hint("network.allow says which hosts may be named"))
            }
            None => Ok(()),
        }
    }

    /// The limits of a sandbox that is made from this image, or from the usual root.
    const fn bounds(&self, image: Option<&str>) -> &Bounds {
        match image.is_some() || self.sandbox.supports_exec() {
            true => &self.programs,
            false => &self.scripts,
        }
    }

    fn spec(&self, request: &SandboxRequest) -> SandboxSpec {
        let mut spec = self.sandbox.clone().mount_path(request.absolute_mount_path());
        if let Some(name) = &request.container_name {
            spec = spec.container_name(name);
        }
        if let Some(reference) = &request.image {
            spec = spec.root(RootFs::Image { reference: reference.clone(), pull: self.pull });
        }
        let usual = self.bounds(request.image.as_deref()).limits;
        spec = spec.limits(request.limits.unwrap_or(usual));
        match spec.supports_exec() {
            true => spec.allow(request.hosts.as_ref().unwrap_or(&self.hosts).clone()),
            // Only programs have a network.
            false => spec.inject(Vec::new()),
        }
    }
}

#[derive(Default)]
struct Names {
    registered: HashMap<String, Arc<RegisteredSandbox>>,
    /// Sandboxes that are being removed, or whose removal failed.
    removals: HashMap<String, Removal>,
}

/// A sandbox that is being launched, is running, or is being removed.
struct RegisteredSandbox {
    request: SandboxRequest,
    /// Whether it supports commands.
    supports_exec: bool,
    bounds: Bounds,
    order: Mutex<Order>,
    state: watch::Sender<State>,
    launch: Mutex<Launch>,
}

/// None as long as it is being launched; an error if that failed.
type State = Option<Result<Arc<Sandbox>, Arc<ToolError>>>;

/// A removal in progress, or its result.
#[derive(Clone)]
pub(crate) struct Removal {
    sandbox: Arc<RegisteredSandbox>,
    outcome: watch::Receiver<Option<Removed>>,
}

#[derive(Clone)]
enum Removed {
    /// The container is gone.
    Gone,
    /// It still exists, and why.
    Left(String),
    /// It never existed.
    Never(Arc<ToolError>),
}

/// The task that launches the sandbox, and the number of waiters.
#[derive(Default)]
struct Launch {
    task: Option<AbortHandle>,
    waiters: usize,
}

/// A caller that waits for a launch. When the last waiter is dropped, the launch is cancelled.
pub(crate) struct LaunchWaiter {
    registry: Arc<Registry>,
    sandbox: Arc<RegisteredSandbox>,
}

/// A call's use of a sandbox.
pub(crate) struct Lease {
    registry: Arc<Registry>,
    sandbox: Arc<RegisteredSandbox>,
    /// Its place among the calls; none if it depends on no other. The sandbox is not removed as long as a
    /// call has one.
    ticket: Option<Ticket>,
}

impl RegisteredSandbox {
    fn handle(&self) -> &str {
        &self.request.handle
    }

    fn enter(&self, scope: Scope) -> Ticket {
        lock(&self.order).enter(scope)
    }

    /// The sandbox, once it is ready; an error if the launch failed or was cancelled.
    async fn ready(&self) -> Result<Arc<Sandbox>, Arc<ToolError>> {
        let mut state = self.state.subscribe();
        let state = state.wait_for(Option::is_some).await;
        // `self` holds the sender.
        let state = state.ok().and_then(|state| state.clone());
        state.unwrap_or_else(|| Err(Arc::new(ToolError::not_registered(self.handle()))))
    }

    fn cancel_launch(&self) {
        let message = "the sandbox_init of this container was cancelled";
        let error = Arc::new(ToolError::new(ErrorKind::Cancelled, message));
        self.state.send_replace(Some(Err(error)));
    }

    /// Whether it was ready and has ended by itself.
    fn has_ended(&self) -> bool {
        matches!(&*self.state.borrow(), Some(Ok(sandbox)) if sandbox.ended().is_some())
    }
}

impl Lease {
    /// Takes a place in the order of the calls.
    pub fn enter(self, scope: Scope) -> Self {
        let ticket = Some(self.sandbox.enter(scope));
        Self { ticket, ..self }
    }

    /// Whether the sandbox supports commands.
    pub fn supports_exec(&self) -> bool {
        self.sandbox.supports_exec
    }

    /// Its limits, and what they may be raised to.
    pub fn bounds(&self) -> &Bounds {
        &self.sandbox.bounds
    }

    /// The mount point of its files.
    pub fn mount_path(&self) -> String {
        self.sandbox.request.absolute_mount_path()
    }

    /// The sandbox, once it is ready and the calls before this one have ended.
    ///
    /// # Errors
    ///
    /// If the launch failed or was cancelled.
    pub async fn ready(&mut self) -> Result<Arc<Sandbox>, ToolError> {
        if let Some(ticket) = &mut self.ticket {
            ticket.turn().await;
        }
        self.sandbox.ready().await.map_err(|error| error.repeated())
    }

    /// The error of an operation. If the sandbox has ended by itself, its handle becomes free, and its
    /// leftovers are removed.
    pub fn failure(&self, error: Error) -> ToolError {
        let reason = match &error {
            Error::Ended { detail } => detail.clone(),
            Error::MountLost { .. } => error.full_message(),
            _ => return error.into(),
        };
        if lock(&self.registry.names).remove(&self.sandbox) {
            self.registry.remove_in_background(&self.sandbox);
        }
        let message = format!("Container '{}' has ended: {reason}", self.sandbox.handle());
        let hint = error.hint();
        ToolError::new(error.kind(), message)
            .with_hint(hint.unwrap_or_else(|| "sandbox_init makes a new one of that name".into()))
    }
}

impl Registry {
    /// An empty registry.
    ///
    /// # Errors
    ///
    /// If one of the allowed directories cannot be accessed.
    pub fn new(controller: Arc<Controller>, settings: Settings) -> io::Result<Self> {
        let Settings { working_directory, allowed_out_paths, protected, .. } = &settings;
        let mounts = MountPolicy::new(working_directory, allowed_out_paths, protected)?;
        let sandbox = settings.sandbox.clone().protected(protected.clone());
        let settings = Settings { sandbox, ..settings };
        let (names, tasks) = (Mutex::default(), Mutex::default());
        Ok(Self { controller, settings, mounts, names, tasks })
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    /// The limits of a sandbox that is made from this image, or from the usual root.
    #[must_use]
    pub const fn bounds(&self, image: Option<&str>) -> &Bounds {
        self.settings.bounds(image)
    }

    /// The sandbox with this handle.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn find(self: &Arc<Self>, handle: &str) -> Result<Lease, ToolError> {
        let sandbox = lock(&self.names).registered.get(handle).cloned();
        let sandbox = sandbox.ok_or_else(|| ToolError::not_registered(handle))?;
        Ok(Lease { registry: self.clone(), sandbox, ticket: None })
    }

    /// Starts to launch a sandbox, or returns the one that was launched by the same request.
    ///
    /// # Errors
    ///
    /// If the request is not allowed, or its handle belongs to another sandbox.
    pub(crate) fn launch(
        self: &Arc<Self>,
        request: SandboxRequest,
    ) -> Result<LaunchWaiter, ToolError> {
        request.check()?;
        self.settings.check(&request)?;
        let mut names = lock(&self.names);
        if let Some(sandbox) = names.registered.get(&request.handle) {
            if !sandbox.has_ended() {
                if sandbox.request != request {
                    let handle = request.handle;
                    return Err(ToolError::invalid(format!(
                        "Container '{handle}' is registered with other arguments already"
                    ))
                    .with_hint("give them again, or sandbox_destroy it first"));
                }
                return Ok(self.waiter(sandbox));
            }
            let ended = sandbox.clone();
            names.remove(&ended);
            self.remove_in_background(&ended);
        }
        if names.registered.len() >= MAX_SANDBOXES {
            let ended: Vec<_> = names.registered.extract_if(|_, it| it.has_ended()).collect();
            for (_, sandbox) in &ended {
                self.remove_in_background(sandbox);
            }
        }
        if names.registered.len() >= MAX_SANDBOXES {
            let message = format!("{MAX_SANDBOXES} sandboxes are kept already");
            return Err(ToolError::new(ErrorKind::Busy, message)
                .with_hint("sandbox_destroy those that are not needed any more"));
        }
        let handle = request.handle.clone();
        let spec = self.settings.spec(&request);
        let ceiling = self.settings.bounds(request.image.as_deref()).ceiling;
        let sandbox = Arc::new(RegisteredSandbox {
            supports_exec: spec.supports_exec(),
            bounds: Bounds { limits: spec.limits, ceiling },
            request,
            order: Mutex::default(),
            state: watch::Sender::new(None),
            launch: Mutex::default(),
        });
        names.registered.insert(handle, sandbox.clone());
        drop(names);
        let waiter = self.waiter(&sandbox);
        let task = self.spawn(self.clone().run_launch(sandbox.clone()));
        lock(&sandbox.launch).task = Some(task);
        Ok(waiter)
    }

    fn waiter(self: &Arc<Self>, sandbox: &Arc<RegisteredSandbox>) -> LaunchWaiter {
        lock(&sandbox.launch).waiters += 1;
        LaunchWaiter { registry: self.clone(), sandbox: sandbox.clone() }
    }

    async fn run_launch(self: Arc<Self>, sandbox: Arc<RegisteredSandbox>) {
        let launched = AssertUnwindSafe(self.launch_container(&sandbox.request)).catch_unwind();
        let launched = launched.await.unwrap_or_else(|_| {
            Err(ToolError::new(ErrorKind::Internal, "internal error: the launch failed"))
        });
        let state = launched.map(Arc::new).map_err(|error| {
            // First, so that a caller that sees the failure can retry.
            lock(&self.names).remove(&sandbox);
            Arc::new(error)
        });
        sandbox.state.send_replace(Some(state));
    }

    async fn launch_container(&self, request: &SandboxRequest) -> Result<Sandbox, ToolError> {
        let spec = self.settings.spec(request);
        let spec = match request.host_dir.clone() {
            None => spec.fresh_io_dir(),
            Some(host_dir) => {
                let mounts = self.mounts.clone();
                let checked = tokio::task::spawn_blocking(move || mounts.check(&host_dir)).await;
                let io_dir = checked.map_err(|_| {
                    ToolError::new(ErrorKind::Internal, "the check of projectOutPath failed")
                })??;
                // Its links are resolved: one that is planted since is refused.
                spec.io_dir(io_dir).no_symlinks()
            }
        };
        let launched = self.controller.launch(spec).await;
        let sandbox = launched.map_err(|error| launch_error(error, request))?;
        // Check the opened directory: a link may have replaced it since the first check.
        match (&request.host_dir, sandbox.io_dir()) {
            (Some(host_dir), io_dir) if !io_dir.is_some_and(|it| self.mounts.allows(it)) => {
                _ = sandbox.close().await;
                Err(self.mounts.not_allowed(host_dir))
            }
            _ => Ok(sandbox),
        }
    }

    /// Has sandboxes started ahead that see the first of the allowed directories at this mount path, if
    /// the controller has a pool.
    ///
    /// # Errors
    ///
    /// As a launch.
    pub async fn prewarm(&self, mount_path: String) -> Result<(), Error> {
        let Some(dir) = self.mounts.first_allowed() else { return Ok(()) };
        let request = SandboxRequest { mount_path, ..SandboxRequest::default() };
        self.controller.prewarm(self.settings.spec(&request).io_dir(dir).no_symlinks()).await
    }

    /// Starts to remove a sandbox, and frees its handle. A failed removal is tried again.
    ///
    /// # Errors
    ///
    /// If there is none with this handle.
    pub(crate) fn remove(self: &Arc<Self>, handle: &str) -> Result<Removal, ToolError> {
        let mut names = lock(&self.names);
        let sandbox = match (names.registered.remove(handle), names.removals.get(handle)) {
            (Some(sandbox), _) => sandbox,
            (None, None) => return Err(ToolError::not_registered(handle)),
            (None, Some(removal)) => match &*removal.outcome.borrow() {
                None | Some(Removed::Gone | Removed::Never(_)) => return Ok(removal.clone()),
                Some(Removed::Left(_)) => removal.sandbox.clone(),
            },
        };
        let removal = self.remove_in_background(&sandbox);
        names.removals.insert(handle.to_owned(), removal.clone());
        Ok(removal)
    }

    fn remove_in_background(self: &Arc<Self>, sandbox: &Arc<RegisteredSandbox>) -> Removal {
        // Its position among the calls is fixed when this returns.
        let ticket = sandbox.enter(Scope::End);
        let (sender, outcome) = watch::channel(None);
        let (registry, removed) = (self.clone(), sandbox.clone());
        self.spawn(async move {
            let outcome = registry.run_removal(&removed, ticket).await;
            sender.send_replace(Some(outcome));
        });
        Removal { sandbox: sandbox.clone(), outcome }
    }

    async fn run_removal(&self, sandbox: &Arc<RegisteredSandbox>, mut ticket: Ticket) -> Removed {
        ticket.turn().await;
        let outcome = match sandbox.ready().await {
            Ok(ready) => match ready.close().await {
                Ok(()) => Removed::Gone,
                Err(error) => return Removed::Left(error.full_message()),
            },
            Err(error) => Removed::Never(error),
        };
        let mut names = lock(&self.names);
        let is_its = |it: &Removal| Arc::ptr_eq(&it.sandbox, sandbox);
        if names.removals.get(sandbox.handle()).is_some_and(is_its) {
            names.removals.remove(sandbox.handle());
        }
        outcome
    }

    /// Removes every sandbox, even if calls are in progress in it. Returns the handles of those
    /// that could not be removed, with the reasons.
    pub async fn close(self: Arc<Self>) -> Vec<(String, String)> {
        let registered: Vec<_> =
            lock(&self.names).registered.drain().map(|(_, sandbox)| sandbox).collect();
        let removals: Vec<_> = registered
            .iter()
            .map(|sandbox| {
                if let Some(task) = lock(&sandbox.launch).task.take()
                    && sandbox.state.borrow().is_none()
                {
                    task.abort();
                    sandbox.cancel_launch();
                }
                self.remove_in_background(sandbox)
            })
            .collect();
        loop {
            let mut tasks = std::mem::take(&mut *lock(&self.tasks));
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
        let before =
            lock(&self.names).removals.drain().map(|(_, removal)| removal).collect::<Vec<_>>();
        let all = removals.iter().chain(&before);
        all.filter_map(|removal| match &*removal.outcome.borrow() {
            Some(Removed::Left(why)) => Some((removal.sandbox.handle().to_owned(), why.clone())),
            _ => None,
        })
        .collect()
    }
}

impl Removal {
    /// The result: none if the container is gone, otherwise why it still exists.
    ///
    /// # Errors
    ///
    /// If there never was a container, because its launch failed.
    pub async fn finished(mut self) -> Result<Option<String>, ToolError> {
        let outcome = self.outcome.wait_for(Option::is_some).await.map(|it| it.clone());
        match outcome {
            Ok(Some(Removed::Gone)) => Ok(None),
            Ok(Some(Removed::Left(why))) => Ok(Some(why)),
            Ok(Some(Removed::Never(error))) => Err(error.repeated()),
            Ok(None) | Err(_) => Ok(Some("the removal was cancelled".to_owned())),
        }
    }
}

impl LaunchWaiter {
    /// The mount point of its files.
    pub fn mount_path(&self) -> String {
        self.sandbox.request.absolute_mount_path()
    }

    /// The sandbox, once it is ready.
    ///
    /// # Errors
    ///
    /// If the launch failed.
    pub async fn ready(self) -> Result<Arc<Sandbox>, ToolError> {
        self.sandbox.ready().await.map_err(|error| error.repeated())
    }
}

impl Drop for LaunchWaiter {
    fn drop(&mut self) {
        let mut names = lock(&self.registry.names);
        let mut launch = lock(&self.sandbox.launch);
        launch.waiters -= 1;
        if launch.waiters > 0 || self.sandbox.state.borrow().is_some() {
            return;
        }
        if let Some(task) = launch.task.take() {
            task.abort();
        }
        drop(launch);
        names.remove(&self.sandbox);
        drop(names);
        self.sandbox.cancel_launch();
    }
}

impl Names {
    /// Frees the handle of a sandbox, if it still has it.
    fn remove(&mut self, sandbox: &Arc<RegisteredSandbox>) -> bool {
        let registered = self.registered.get(sandbox.handle());
        let has_it = registered.is_some_and(|it| Arc::ptr_eq(it, sandbox));
        if has_it {
            self.registered.remove(sandbox.handle());
        }
        has_it
    }
}

/// An error of the launch, with the argument of `sandbox_init` that caused it.
fn launch_error(error: Error, request: &SandboxRequest) -> ToolError {
    let (image, host_dir) = (request.image.as_ref(), request.host_dir.as_ref());
    let (argument, value) = match (&error, image) {
        (Error::Engine { source: EngineError::UnusableRoot { .. }, .. }, Some(image)) => {
            let hint = "without imageName a sandbox has the programs of what `sandboxctl tools \
                        --stdio --rootfs DIR` or `--image-archive FILE` names";
            // A retry does not help either.
            return ToolError::of_value(ErrorKind::Image, "imageName", image, error.full_message())
                .with_hint(hint);
        }
        (error, Some(image)) if error.kind() == ErrorKind::Image => ("imageName", image),
        (Error::GuestPath { .. } | Error::MountTaken { .. }, _) => {
            ("rootPath", &request.mount_path)
        }
        (
            Error::IoDir { .. }
            | Error::IoDirElsewhere { .. }
            | Error::MountRefused { .. }
            | Error::User { .. },
            _,
        ) if let Some(host_dir) = host_dir => ("projectOutPath", host_dir),
        _ => return error.into(),
    };
    let kind = match error.kind() {
        // The request is wrong, not the command line.
        ErrorKind::Usage => ErrorKind::InvalidRequest,
        kind => kind,
    };
    let hint = error.hint();
    ToolError { hint, ..ToolError::of_value(kind, argument, value, error.full_message()) }
}
