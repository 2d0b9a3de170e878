//! The sandboxes that are kept, by the names that their callers gave them.
//!
//! A name is taken from the moment its `sandbox_init` comes until its `sandbox_destroy` comes, or
//! until a call finds that the sandbox has ended. So calls that come between the two belong to that
//! sandbox, whether or not it is up already.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use sandbox_api::hosts::Allowlist;
use sandbox_api::{ErrorKind, Pull, RootFs, SandboxSpec};
use sandbox_controller::{Controller, EngineError, Error, Sandbox};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::args::InitArgs;
use super::call::Tool;
use super::data::{DestroyData, InitData};
use super::error::ToolError;
use super::images::image_matches;
use super::order::{Order, Place, Scope};
use super::out_path::AllowedOutPaths;

/// Sandboxes that are kept at one time.
pub const MAX_CONTAINERS: usize = 64;
/// Longest name of one.
const MAX_ID_BYTES: usize = 255;

/// The sandboxes that are kept.
pub(super) struct Containers {
    controller: Arc<Controller>,
    each: Each,
    allowed: AllowedOutPaths,
    names: Mutex<Names>,
    /// Launches and removals, which go on whoever still waits for them.
    tasks: Mutex<JoinSet<()>>,
}

/// What every sandbox is launched with.
pub(super) struct Each {
    pub spec: SandboxSpec,
    /// The images that callers may name.
    pub allowed_images: Vec<String>,
    /// When its image is fetched, where its caller names one.
    pub pull: Pull,
    /// Whom its programs may reach, where it has some.
    pub hosts: Allowlist,
}

impl Each {
    fn check_image(&self, name: &str) -> Result<(), ToolError> {
        if self.allowed_images.iter().any(|pattern| image_matches(pattern, name)) {
            return Ok(());
        }
        let message = format!("imageName '{}': it is not allowed", name.escape_debug());
        let hint = "tools.allowed_images says which images may be named";
        Err(ToolError::new(ErrorKind::NotAllowed, message).with_hint(hint))
    }

    fn spec(&self, args: &InitArgs) -> SandboxSpec {
        let mut spec = self.spec.clone().mount_path(mount_path(&args.root_path));
        if let Some(name) = &args.container_name {
            spec = spec.container_name(name);
        }
        if let Some(reference) = &args.image_name {
            spec = spec.root(RootFs::Image { reference: reference.clone(), pull: self.pull });
        }
        match spec.supports_exec() {
            true => spec.allow(self.hosts.clone()),
            false => spec,
        }
    }
}

#[derive(Default)]
struct Names {
    kept: HashMap<String, Arc<Container>>,
    /// Those that are being removed, or could not be.
    ending: HashMap<String, Removal>,
}

/// A sandbox that is kept, is being made, or is being removed.
pub(super) struct Container {
    args: InitArgs,
    /// Whether programs run in it.
    supports_exec: bool,
    order: Mutex<Order>,
    state: watch::Sender<State>,
    launch: Mutex<Launch>,
}

#[derive(Clone)]
enum State {
    Making,
    Ready(Arc<Sandbox>),
    /// It did not come up.
    Failed(ToolError),
}

/// A removal under way, or how it went.
#[derive(Clone)]
pub(super) struct Removal {
    container: Arc<Container>,
    outcome: watch::Receiver<Option<Removed>>,
}

#[derive(Clone)]
enum Removed {
    /// The container is gone.
    Gone,
    /// It is not, and why.
    Left(String),
    /// There never was one.
    Never(ToolError),
}

/// The task that makes it, and how many wait for it.
#[derive(Default)]
struct Launch {
    task: Option<AbortHandle>,
    wanted: usize,
}

/// Somebody who called `sandbox_init` and waits. Where the last one gives up, so does the launch.
pub(super) struct Wanted {
    containers: Arc<Containers>,
    container: Arc<Container>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Container {
    fn id(&self) -> &str {
        &self.args.container_id
    }

    /// A place among its calls.
    pub fn enter(&self, scope: Scope) -> Place {
        lock(&self.order).enter(scope)
    }

    /// Whether programs run in it.
    pub const fn supports_exec(&self) -> bool {
        self.supports_exec
    }

    /// Where its files are, in it.
    pub fn mount_path(&self) -> String {
        mount_path(&self.args.root_path)
    }

    /// The sandbox, once it is up.
    pub async fn sandbox(&self) -> Result<Arc<Sandbox>, ToolError> {
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| !matches!(state, State::Making)).await;
        // The sender is in the container itself.
        match state.map(|state| state.clone()) {
            Ok(State::Ready(sandbox)) => Ok(sandbox),
            Ok(State::Failed(error)) => Err(error),
            Ok(State::Making) | Err(_) => Err(ToolError::not_registered(self.id())),
        }
    }

    /// Nobody waits for its launch any more, which was given up.
    fn give_up(&self) {
        let message = "the sandbox_init of this container was given up";
        self.state.send_replace(State::Failed(ToolError::new(ErrorKind::Cancelled, message)));
    }

    /// Whether it was up and has ended by itself.
    fn has_ended(&self) -> bool {
        match &*self.state.borrow() {
            State::Ready(sandbox) => sandbox.ended().is_some(),
            State::Making | State::Failed(_) => false,
        }
    }
}

fn mount_path(root_path: &str) -> String {
    format!("/{}", root_path.trim_start_matches('/'))
}

impl Containers {
    pub fn new(controller: Arc<Controller>, each: Each, allowed: AllowedOutPaths) -> Self {
        Self { controller, each, allowed, names: Mutex::default(), tasks: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    /// The sandbox of that name.
    pub fn find(&self, id: &str) -> Result<Arc<Container>, ToolError> {
        self.names().kept.get(id).cloned().ok_or_else(|| ToolError::not_registered(id))
    }

    /// Begins to make a sandbox, or finds the one that was made by the same arguments.
    pub fn init(self: &Arc<Self>, args: InitArgs) -> Result<Wanted, ToolError> {
        check(&args)?;
        if let Some(name) = &args.image_name {
            self.each.check_image(name)?;
        }
        let mut names = self.names();
        if let Some(container) = names.kept.get(&args.container_id) {
            if !container.has_ended() {
                if container.args != args {
                    let id = &args.container_id;
                    let message =
                        format!("Container '{id}' is registered with other arguments already");
                    let hint = "give them again, or sandbox_destroy it first";
                    return Err(ToolError::invalid(message).with_hint(hint));
                }
                return Ok(self.want(container));
            }
            let ended = container.clone();
            names.remove(&ended);
            self.destroy_in_background(&ended);
        }
        if names.kept.len() >= MAX_CONTAINERS {
            let ended: Vec<_> = names.kept.extract_if(|_, it| it.has_ended()).collect();
            for (_, container) in &ended {
                self.destroy_in_background(container);
            }
        }
        if names.kept.len() >= MAX_CONTAINERS {
            let message = format!("{MAX_CONTAINERS} sandboxes are kept already");
            let hint = "sandbox_destroy those that are not needed any more";
            return Err(ToolError::new(ErrorKind::Busy, message).with_hint(hint));
        }
        let id = args.container_id.clone();
        let container = Arc::new(Container {
            supports_exec: self.each.spec(&args).supports_exec(),
            args,
            order: Mutex::default(),
            state: watch::Sender::new(State::Making),
            launch: Mutex::default(),
        });
        names.kept.insert(id, container.clone());
        drop(names);
        let wanted = self.want(&container);
        let task = self.spawn(self.clone().launch(container.clone()));
        lock(&container.launch).task = Some(task);
        Ok(wanted)
    }

    fn want(self: &Arc<Self>, container: &Arc<Container>) -> Wanted {
        lock(&container.launch).wanted += 1;
        Wanted { containers: self.clone(), container: container.clone() }
    }

    /// Makes a sandbox.
    async fn launch(self: Arc<Self>, container: Arc<Container>) {
        let launched = AssertUnwindSafe(self.launched(&container.args)).catch_unwind().await;
        let failed = || ToolError::new(ErrorKind::Internal, "the launch failed: a fault of ours");
        let state = match launched.unwrap_or_else(|_| Err(failed())) {
            Ok(sandbox) => State::Ready(Arc::new(sandbox)),
            Err(error) => {
                // First, so that whoever hears of it can try again.
                self.names().remove(&container);
                State::Failed(error)
            }
        };
        container.state.send_replace(state);
    }

    async fn launched(&self, args: &InitArgs) -> Result<Sandbox, ToolError> {
        let (allowed, given) = (self.allowed.clone(), args.project_out_path.clone());
        let checked = tokio::task::spawn_blocking(move || allowed.check(&given)).await;
        let io_dir = checked.map_err(|_| {
            ToolError::new(ErrorKind::Internal, "the look at projectOutPath failed")
        })??;
        let spec = self.each.spec(args).io_dir(io_dir);
        let sandbox = self.controller.launch(spec).await.map_err(|error| named(error, args))?;
        // What was opened counts: a link may have come in its place since the look.
        match sandbox.io_dir() {
            Some(io_dir) if self.allowed.allows(io_dir) => Ok(sandbox),
            _ => {
                _ = sandbox.close().await;
                Err(self.allowed.refusal(&args.project_out_path))
            }
        }
    }

    /// Frees the name of a sandbox that has ended by itself, and removes what is left of it. Gives
    /// what a caller is told.
    pub fn ended(self: &Arc<Self>, container: &Arc<Container>, error: &Error) -> ToolError {
        let id = container.id();
        if self.names().remove(container) {
            self.destroy_in_background(container);
        }
        let why = match error {
            Error::Ended { detail } => detail.clone(),
            error => error.full_message(),
        };
        ToolError::new(error.kind(), format!("Container '{id}' has ended: {why}")).with_hint(
            error.hint().unwrap_or_else(|| "sandbox_init makes a new one of that name".to_owned()),
        )
    }

    /// What a caller is told whose script or command did not begin. `timeout` is what the tool calls
    /// its time limit.
    pub fn not_begun(
        self: &Arc<Self>,
        container: &Arc<Container>,
        timeout: &str,
        error: Error,
    ) -> ToolError {
        match error {
            Error::Ended { .. } | Error::MountLost { .. } => self.ended(container, &error),
            Error::OverCeiling(over) => {
                let message = format!(
                    "{timeout} is {}, above the ceiling of {}: {}",
                    over.asked,
                    over.key.key(),
                    over.ceiling
                );
                ToolError::new(ErrorKind::Policy, message)
            }
            error => error.into(),
        }
    }

    /// Begins to remove a sandbox, and frees its name. One that could not be removed is tried again.
    pub fn destroy(self: &Arc<Self>, id: &str) -> Result<Removal, ToolError> {
        let mut names = self.names();
        let container = match (names.kept.remove(id), names.ending.get(id)) {
            (Some(container), _) => container,
            (None, None) => return Err(ToolError::not_registered(id)),
            (None, Some(removal)) => match &*removal.outcome.borrow() {
                None | Some(Removed::Gone | Removed::Never(_)) => return Ok(removal.clone()),
                Some(Removed::Left(_)) => removal.container.clone(),
            },
        };
        let removal = self.destroy_in_background(&container);
        names.ending.insert(id.to_owned(), removal.clone());
        Ok(removal)
    }

    fn destroy_in_background(self: &Arc<Self>, container: &Arc<Container>) -> Removal {
        // It has its place among the calls when this returns.
        let place = container.enter(Scope::End);
        let (sender, outcome) = watch::channel(None);
        let (containers, removed) = (self.clone(), container.clone());
        self.spawn(async move {
            let outcome = containers.remove(&removed, place).await;
            sender.send_replace(Some(outcome));
        });
        Removal { container: container.clone(), outcome }
    }

    async fn remove(&self, container: &Arc<Container>, mut place: Place) -> Removed {
        place.turn().await;
        let outcome = match container.sandbox().await {
            Ok(sandbox) => match sandbox.close().await {
                Ok(()) => Removed::Gone,
                Err(error) => return Removed::Left(error.full_message()),
            },
            Err(error) => Removed::Never(error),
        };
        let mut names = self.names();
        let is_its = |it: &Removal| Arc::ptr_eq(&it.container, container);
        if names.ending.get(container.id()).is_some_and(is_its) {
            names.ending.remove(container.id());
        }
        outcome
    }

    /// Removes every sandbox, whatever is under way in it. Gives what could not be removed, and why.
    pub async fn close(self: Arc<Self>) -> Vec<String> {
        let kept: Vec<_> = self.names().kept.drain().map(|(_, container)| container).collect();
        let removals: Vec<_> = kept
            .iter()
            .map(|container| {
                if let Some(task) = lock(&container.launch).task.take()
                    && matches!(&*container.state.borrow(), State::Making)
                {
                    task.abort();
                    container.give_up();
                }
                self.destroy_in_background(container)
            })
            .collect();
        loop {
            let mut tasks = std::mem::take(&mut *lock(&self.tasks));
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
        let before = self.names().ending.drain().map(|(_, removal)| removal).collect::<Vec<_>>();
        let all = removals.iter().chain(&before);
        all.filter_map(|removal| match &*removal.outcome.borrow() {
            Some(Removed::Left(why)) => {
                Some(format!("Container '{}' could not be removed: {why}", removal.container.id()))
            }
            _ => None,
        })
        .collect()
    }
}

impl Removal {
    /// How it went. The truth, with the reason where the container is still there.
    pub async fn data(mut self) -> Result<(DestroyData, Option<String>), ToolError> {
        let outcome = self.outcome.wait_for(Option::is_some).await.map(|it| it.clone());
        let (removed, reason) = match outcome {
            Ok(Some(Removed::Gone)) => (true, None),
            Ok(Some(Removed::Left(why))) => (false, Some(why)),
            Ok(Some(Removed::Never(error))) => return Err(error),
            Ok(None) | Err(_) => (false, Some("the removal was given up".to_owned())),
        };
        Ok((DestroyData { container_id: self.container.id().to_owned(), removed }, reason))
    }
}

impl Wanted {
    /// The sandbox, once it is up.
    pub async fn data(self) -> Result<InitData, ToolError> {
        let sandbox = self.container.sandbox().await?;
        Ok(InitData {
            container_id: self.container.id().to_owned(),
            docker_id: sandbox.container_id().to_owned(),
        })
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let mut names = self.containers.names();
        let mut launch = lock(&self.container.launch);
        launch.wanted -= 1;
        if launch.wanted > 0 || !matches!(&*self.container.state.borrow(), State::Making) {
            return;
        }
        if let Some(task) = launch.task.take() {
            task.abort();
        }
        drop(launch);
        names.remove(&self.container);
        drop(names);
        self.container.give_up();
    }
}

impl Names {
    /// Frees the name of a container, if it still has it.
    fn remove(&mut self, container: &Arc<Container>) -> bool {
        let has_it = self.kept.get(container.id()).is_some_and(|it| Arc::ptr_eq(it, container));
        if has_it {
            self.kept.remove(container.id());
        }
        has_it
    }
}

/// What is wrong with arguments, as far as they alone tell.
fn check(args: &InitArgs) -> Result<(), ToolError> {
    let refuse = |what: &str| Err(ToolError::invalid(format!("{}: {what}", Tool::Init)));
    if args.container_id.is_empty() {
        return refuse("`containerId`: it is empty");
    }
    if args.container_id.len() > MAX_ID_BYTES {
        return refuse(&format!("`containerId`: it is longer than {MAX_ID_BYTES} bytes"));
    }
    if args.image_name.as_deref() == Some("") {
        return refuse("`imageName`: it is empty");
    }
    if args.root_path.trim_start_matches('/').is_empty() {
        return refuse("`rootPath`: it names no directory");
    }
    Ok(())
}

/// A failure of the launch, with the argument that is the reason for it.
fn named(error: Error, args: &InitArgs) -> ToolError {
    let no_images = matches!(
        error,
        Error::Engine { source: EngineError::UnusableRoot { .. }, .. } if args.image_name.is_some()
    );
    let (name, value) = match (&error, &args.image_name) {
        (error, Some(image)) if no_images || error.kind() == ErrorKind::Image => {
            ("imageName", image)
        }
        (Error::GuestPath { .. } | Error::MountTaken { .. }, _) => ("rootPath", &args.root_path),
        (
            Error::IoDir { .. }
            | Error::IoDirElsewhere { .. }
            | Error::MountRefused { .. }
            | Error::User { .. },
            _,
        ) => ("projectOutPath", &args.project_out_path),
        _ => return error.into(),
    };
    let kind = match error.kind() {
        // Another time it has none either.
        _ if no_images => ErrorKind::Image,
        // It is a call's arguments that are wrong, not the command line's.
        ErrorKind::Usage => ErrorKind::InvalidRequest,
        kind => kind,
    };
    let message = format!("{name} '{}': {}", value.escape_debug(), error.full_message());
    let hint = match no_images {
        true => Some(
            "without imageName a sandbox has the programs of what `sandboxctl tools --rootfs` or \
             `--image-archive` names"
                .to_owned(),
        ),
        false => error.hint(),
    };
    ToolError { hint, ..ToolError::new(kind, message) }
}
