//! What can fail on our side. What the guest did is no error: it is an
//! [`Outcome`](crate::Outcome).

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::path::PathError;

use crate::engine::{EmbeddedProblem, EngineError, EngineKind};
use crate::failpoint::{Point, failpoint};
use crate::limits::OverCeiling;
use crate::mounts::MountRefusal;

/// A step of a sandbox's life, or another call to the engine. Each has its own time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Asking an engine whether it is there, and what it is.
    Connect,
    /// Finding or building the sandbox image.
    Image,
    /// Fetching, unpacking or looking at what programs run in.
    Programs,
    /// Making the container.
    Create,
    /// Attaching to its stdin and stdout.
    Attach,
    /// Starting it.
    Start,
    /// The agent's answer to `hello`.
    Hello,
    /// The agent's answer to `shutdown`.
    Shutdown,
    /// Killing it.
    Kill,
    /// Waiting for its end.
    Exit,
    /// Reading how it ended.
    Evidence,
    /// Removing it.
    Remove,
    /// Removing an image.
    RemoveImage,
    /// Listing containers or images.
    List,
}

impl Step {
    /// What is being done, as messages say it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connecting to the engine",
            Self::Image => "preparing the sandbox image",
            Self::Programs => "preparing the image",
            Self::Create => "creating the container",
            Self::Attach => "attaching to the container",
            Self::Start => "starting the container",
            Self::Hello => "greeting the agent",
            Self::Shutdown => "shutting the agent down",
            Self::Kill => "killing the container",
            Self::Exit => "waiting for the container's end",
            Self::Evidence => "reading how the container ended",
            Self::Remove => "removing the container",
            Self::RemoveImage => "removing the image",
            Self::List => "listing what the engine has",
        }
    }

    /// How long the step may take. Generous: an engine under load is slow, not dead.
    #[must_use]
    pub const fn time_limit(self) -> Duration {
        let seconds = match self {
            Self::Connect => 5,
            Self::Image => 120,
            // A registry far away, an image of gigabytes.
            Self::Programs => 1800,
            Self::Create | Self::Start | Self::Remove | Self::RemoveImage => 30,
            Self::Attach | Self::Hello | Self::Kill | Self::Exit => 10,
            Self::Evidence | Self::List => 10,
            Self::Shutdown => 2,
        };
        Duration::from_secs(seconds)
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// An endpoint that was tried, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Tried {
    /// The endpoint, such as `unix:///var/run/docker.sock`.
    pub endpoint: String,
    /// What names it: `--host`, `DOCKER_HOST`, a context, a usual socket.
    pub why: String,
    /// What came of it.
    pub outcome: String,
}

/// What can fail on our side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No engine answered.
    #[error("no container engine answers: {}", list_tried(.tried))]
    NoEngine {
        /// What was tried, in order.
        tried: Vec<Tried>,
    },
    /// The embedded engine cannot be used here.
    #[error("the embedded engine cannot be used")]
    Embedded(#[source] EmbeddedProblem),
    /// Something was asked of the embedded engine that only Docker has.
    #[error("the embedded engine takes no {what}: engine.{what} is for Docker")]
    DockerOnly {
        /// The key, in `engine`.
        what: &'static str,
    },
    /// Something was to be done with an image, and the engine needs none.
    #[error("the {engine} engine has no images: it runs the agent itself")]
    NoImages {
        /// Which.
        engine: EngineKind,
    },
    /// The endpoint that was named cannot be used.
    #[error("cannot use the endpoint of {why}: {reason}")]
    Endpoint {
        /// What names it: `--host`, `DOCKER_HOST`, a context.
        why: String,
        /// What is wrong.
        reason: String,
    },
    /// Docker's context cannot be read, or names no engine.
    #[error("cannot use {why}: {reason}")]
    Context {
        /// Which, and what names it.
        why: String,
        /// What is wrong.
        reason: String,
    },
    /// The engine failed, or did not answer in time.
    #[error("{step} failed")]
    Engine {
        /// What was being done.
        step: Step,
        /// What happened.
        #[source]
        source: EngineError,
    },
    /// The sandbox ended before it was ready: nothing of the guest's ran.
    #[error("sandbox failed to start: {detail}")]
    NotUp {
        /// What is known.
        detail: String,
    },
    /// The agent is confined by less than the policy wants: nothing of the guest's ran.
    #[error("required confinement is not in effect: {detail}")]
    Unconfined {
        /// What is missing, and why.
        detail: String,
    },
    /// The agent in the image is not this controller's.
    #[error("the agent in the image does not fit this controller: {reason}")]
    AgentMismatch {
        /// What it said.
        reason: String,
    },
    /// The agent's file cannot be used.
    #[error("cannot use the agent {}", .path.display())]
    Agent {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// A limit is above its ceiling.
    #[error(transparent)]
    OverCeiling(#[from] OverCeiling),
    /// The io dir cannot be used.
    #[error("cannot use {} as the io dir: {reason}", .path.display())]
    IoDir {
        /// As it was given.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Something of the host that a sandbox may not have mounted.
    #[error("cannot use {} as {what}", .path.display())]
    MountRefused {
        /// What it was to be: `the io dir`.
        what: String,
        /// Where it is.
        path: PathBuf,
        /// Why not.
        #[source]
        source: MountRefusal,
    },
    /// Something that a sandbox has mounted cannot stay so: the sandbox was ended.
    #[error("the sandbox was ended: {what} {} cannot stay mounted", .path.display())]
    MountLost {
        /// What it is: `the io dir`.
        what: String,
        /// Where it is.
        path: PathBuf,
        /// Why not.
        #[source]
        source: MountRefusal,
    },
    /// The mount table of this process cannot be watched.
    #[error("cannot read /proc/self/mountinfo")]
    MountTable {
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// The directory that the sandbox sees is not the io dir.
    #[error("the engine does not see the io dir {}", .path.display())]
    IoDirElsewhere {
        /// The io dir.
        path: PathBuf,
    },
    /// The container would run as a user that is refused.
    #[error("refusing to run the sandbox as {uid}:{gid}: {reason}")]
    User {
        /// The uid.
        uid: u32,
        /// The gid.
        gid: u32,
        /// Why not.
        reason: String,
    },
    /// An input cannot be used.
    #[error("cannot use the input '{name}': {reason}")]
    Input {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A guest path is none.
    #[error("{what} '{path}' is not usable: {source}")]
    GuestPath {
        /// Which setting it is.
        what: &'static str,
        /// As it was given.
        path: String,
        /// What is wrong.
        #[source]
        source: PathError,
    },
    /// The io dir would be in, or hide, a path that every sandbox has.
    #[error("the io dir cannot be at {path}: {taken} is the sandbox's own")]
    MountTaken {
        /// Where it was to be.
        path: String,
        /// The sandbox's path.
        taken: String,
    },
    /// A working directory outside the mounts.
    #[error("the working directory {workdir} is outside the mounts")]
    WorkdirOutside {
        /// The directory.
        workdir: String,
    },
    /// A list of hosts for a sandbox without programs.
    #[error("hosts require an image: scripts have no network")]
    NoPrograms,
    /// An io dir in memory cannot be made.
    #[error("cannot make a private io dir: {reason}")]
    PrivateIoDir {
        /// Why.
        reason: String,
    },
    /// A rule about paths for a sandbox whose programs would not be held by it.
    #[error(
        "{rule} cannot be enforced for commands, which write to all of the io dir and read all inputs"
    )]
    RuleForPrograms {
        /// The configuration key of the rule.
        rule: &'static str,
    },
    /// An argument for the script that no script can be given.
    #[error("the script's argument '{what}' cannot be used: {reason}")]
    Args {
        /// Which.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Arguments for the script that are too long.
    #[error("the script's arguments are longer than {max} bytes of JSON")]
    ArgsTooLarge {
        /// The most that fits.
        max: usize,
    },
    /// The state folder cannot be used.
    #[error("cannot use the state folder {}", .path.display())]
    State {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// A protected name is none.
    #[error("cannot protect '{name}': {reason}")]
    ProtectedName {
        /// As it was given.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The audit cannot be written.
    #[error("cannot write the audit to {}: {reason}", .path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The sandbox has ended and runs nothing any more.
    #[error("the sandbox has ended: {detail}")]
    Ended {
        /// What is known.
        detail: String,
    },
    /// A file operation was refused, or failed, in the sandbox.
    #[error(transparent)]
    Operation {
        /// What went wrong.
        source: sandbox_protocol::WireError,
    },
    /// The agent refused a request of ours.
    #[error("the agent refused a request: {source}")]
    Refused {
        /// Its answer.
        #[source]
        source: sandbox_protocol::WireError,
    },
    /// A command that cannot be given to a sandbox.
    #[error("cannot use the command: {reason}")]
    Command {
        /// What is wrong.
        reason: String,
    },
    /// The sandbox has no programs.
    #[error("this sandbox has no programs: it is made from the sandbox image")]
    NoCommands,
    /// A program did not begin: nothing of it ran.
    #[error(transparent)]
    NotBegun {
        /// Why, as the sandbox says it.
        source: sandbox_protocol::WireError,
    },
    /// `check` could not run the agent.
    #[error("cannot check the script")]
    Check {
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// An id does not name one sandbox image.
    #[error("cannot use the image id '{which}': {reason}")]
    ImageId {
        /// As it was given.
        which: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A stream of an image cannot be read or written.
    #[error("cannot {action} the image")]
    ImageStream {
        /// `save` or `load`.
        action: &'static str,
        /// What happened.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What went wrong, in one word.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Operation { source } | Self::NotBegun { source } => source.kind(),
            Self::Engine {
                source:
                    EngineError::UnusableImage { .. }
                    | EngineError::ProgramImage { .. }
                    | EngineError::Archive { .. },
                ..
            } => ErrorKind::Image,
            Self::Engine { source: EngineError::UnusableRoot { .. }, .. } => ErrorKind::Usage,
            Self::NoEngine { .. }
            | Self::Embedded(_)
            | Self::Engine { .. }
            | Self::NotUp { .. }
            | Self::Unconfined { .. }
            | Self::IoDirElsewhere { .. } => ErrorKind::Engine,
            Self::DockerOnly { .. }
            | Self::PrivateIoDir { .. }
            | Self::Endpoint { .. }
            | Self::Context { .. }
            | Self::Audit { .. } => ErrorKind::Config,
            Self::AgentMismatch { .. } | Self::Agent { .. } | Self::ImageStream { .. } => {
                ErrorKind::Image
            }
            Self::OverCeiling(_)
            | Self::User { .. }
            | Self::RuleForPrograms { .. }
            | Self::MountRefused { .. }
            | Self::MountLost { .. } => ErrorKind::Policy,
            Self::IoDir { .. }
            | Self::Input { .. }
            | Self::GuestPath { .. }
            | Self::MountTaken { .. }
            | Self::WorkdirOutside { .. }
            | Self::NoPrograms
            | Self::ProtectedName { .. }
            | Self::Args { .. }
            | Self::ArgsTooLarge { .. }
            | Self::NoImages { .. }
            | Self::Command { .. }
            | Self::NoCommands
            | Self::ImageId { .. } => ErrorKind::Usage,
            Self::Ended { .. } => ErrorKind::AgentLost,
            Self::State { .. }
            | Self::MountTable { .. }
            | Self::Refused { .. }
            | Self::Check { .. } => ErrorKind::Internal,
        }
    }

    /// The exit code of a command that ends by this error.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotBegun { source } => match source.kind() {
                // The sandbox cannot do it, whatever is asked.
                ErrorKind::Busy | ErrorKind::Internal => 125,
                kind @ (ErrorKind::NotExecutable | ErrorKind::CommandNotFound) => exit_code(kind),
                // Its working directory, its words: what the caller gave.
                _ => 2,
            },
            error => exit_code(error.kind()),
        }
    }

    /// The next step, where there is one to name.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoEngine { tried } if tried.iter().any(|one| one.outcome.contains("denied")) => {
                "your user may not use the engine's socket: `sudo usermod -aG docker $USER` and a \
                 new login let it (and make it as good as root), or run a rootless engine"
            }
            Self::NoEngine { .. } => {
                "install and start Docker or Podman, or name a running engine with --host"
            }
            Self::Embedded(problem) => problem.hint(),
            Self::DockerOnly { .. } => "unset it, or name Docker: --engine docker",
            Self::NoImages { .. } => "--engine docker names one that has",
            Self::Endpoint { .. } => "unix:// and tcp:// endpoints can be used",
            Self::Context { .. } => {
                "`docker context ls` lists the contexts; --host or DOCKER_HOST names an engine \
                 without one"
            }
            Self::Engine { source: EngineError::UnusableImage { .. }, .. } => {
                "a sandbox needs the image of this very version: `sandboxctl image save` writes it \
                 for `sandboxctl image load`, and without engine.image a run builds it"
            }
            Self::Engine { source: EngineError::Archive { source, .. }, .. } => {
                return source.hint().map(str::to_owned);
            }
            Self::Engine {
                source:
                    EngineError::ProgramImage { hint, .. } | EngineError::UnusableRoot { hint, .. },
                ..
            } => return hint.map(str::to_owned),
            Self::Operation { source } => return operation_hint(source.kind()).map(str::to_owned),
            // There is no sandbox then that something could be left of.
            Self::Engine {
                step: Step::Connect | Step::Image | Step::Programs | Step::RemoveImage | Step::List,
                ..
            } => return None,
            Self::Engine { .. } | Self::NotUp { .. } => {
                "what may be left of the sandbox is removed by the next run that reaches the \
                 engine"
            }
            Self::Unconfined { .. } => {
                "`sandboxctl doctor` shows what this machine has; --confinement best-effort runs \
                 without what is missing"
            }
            Self::AgentMismatch { .. } => "`sandboxctl image build --rebuild` builds it anew",
            Self::Agent { .. } => "SANDBOX_AGENT must name a static sandbox-agent program",
            Self::OverCeiling(over) => {
                return Some(format!(
                    "limits.ceiling in the user's or the system's configuration raises the \
                     ceiling of {}",
                    over.key.key()
                ));
            }
            Self::IoDirElsewhere { .. } => {
                "the engine runs on another machine, or does not share this directory with its \
                 own: use a local engine, or a directory that it shares"
            }
            Self::MountRefused { source, .. } => return Some(source.hint()),
            Self::MountLost { source: source @ MountRefusal::MountPoint { .. }, .. } => {
                return Some(format!(
                    "{}; look whether it is still mounted: a sandbox may have detached it before \
                     that was seen",
                    source.hint()
                ));
            }
            Self::MountLost { source, .. } => return Some(source.hint()),
            Self::MountTable { .. } => "mount /proc",
            Self::User { .. } => {
                "give the io dir to another owner, or name a user with --user UID:GID"
            }
            Self::PrivateIoDir { .. } => {
                "--engine embedded makes one, as root; --io-dir names a directory in its place, and \
                 io.private = \"off\" takes the default one"
            }
            Self::Input { .. } => "--in takes a regular file or a directory: --in SRC[:NAME]",
            Self::ArgsTooLarge { .. } => "give large data as an input: --in SRC[:NAME]",
            Self::State { .. } => {
                "the state folder must be yours alone and writable: name another one"
            }
            Self::Audit { .. } => {
                "name a file outside of the io dir that can be written, or a FIFO that is read"
            }
            Self::ImageId { .. } => "`sandboxctl image ls` lists them",
            Self::RuleForPrograms { .. } => {
                "give programs an io dir that has nothing to keep them from, and drop the rule; or no files at all"
            }
            Self::NoPrograms | Self::NoCommands => {
                "--image (--rootfs or --image-archive on the embedded engine) names what has programs"
            }
            Self::NotBegun { source } => match source.kind() {
                ErrorKind::Busy => "--pids raises the limit",
                ErrorKind::CommandNotFound => {
                    "no shell is implied: the first word is a program of the image"
                }
                _ => return None,
            },
            Self::IoDir { .. }
            | Self::GuestPath { .. }
            | Self::MountTaken { .. }
            | Self::WorkdirOutside { .. }
            | Self::ProtectedName { .. }
            | Self::Args { .. }
            | Self::Command { .. }
            | Self::Ended { .. }
            | Self::Refused { .. }
            | Self::Check { .. }
            | Self::ImageStream { .. } => return None,
        };
        Some(hint.to_owned())
    }

    /// The message with all its causes, on one line.
    #[must_use]
    pub fn full_message(&self) -> String {
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let text = cause.to_string();
            // A transparent variant repeats its cause.
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        message
    }
}

/// The exit code of a command that ends by an error of this kind.
#[must_use]
pub const fn exit_code(kind: ErrorKind) -> u8 {
    use ErrorKind as Kind;
    match kind {
        // What was asked for failed, or the script did.
        Kind::NotFound
        | Kind::AlreadyExists
        | Kind::IsDirectory
        | Kind::NotADirectory
        | Kind::NotEmpty
        | Kind::PermissionDenied
        | Kind::Symlink
        | Kind::SpecialFile
        | Kind::DiskFull
        | Kind::Encoding
        | Kind::Busy
        | Kind::Syntax
        | Kind::Runtime
        | Kind::ResultNotJson => 1,
        Kind::Usage | Kind::Config | Kind::InvalidRequest | Kind::InvalidPath => 2,
        Kind::TooLarge
        | Kind::WriteLimit
        | Kind::TooManyFiles
        | Kind::TooManyHandles
        | Kind::OutOfMemory
        | Kind::OutputLimit
        | Kind::SourceTooLarge
        | Kind::ResultTooLarge => 120,
        Kind::Policy
        | Kind::NotAllowed
        | Kind::Protected
        | Kind::PathEscape
        | Kind::ReadOnly
        | Kind::NetworkRefused => 121,
        Kind::AgentLost => 122,
        Kind::Timeout => 124,
        Kind::NotExecutable => 126,
        Kind::CommandNotFound => 127,
        Kind::Cancelled => 130,
        Kind::Killed => 137,
        // Our side: engine, image, internal.
        _ => 125,
    }
}

/// What to do about a file operation that ended by such an error, where there is something.
const fn operation_hint(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::IsDirectory => "`list` shows what is in a directory",
        ErrorKind::NotEmpty => "`recursive` removes a directory with all that is in it",
        ErrorKind::PathEscape => {
            "paths are relative to the working directory, or absolute under a mount: the io dir's, /in/…"
        }
        ErrorKind::NotAllowed => "filesystem.allowed_paths says which paths may be used",
        ErrorKind::Protected => "filesystem.protected names what no operation may change",
        ErrorKind::Symlink => "links are never followed: name what the link leads to",
        ErrorKind::TooLarge => {
            "filesystem.max_file_size bounds a file; `offset` and `limit` read a part of one"
        }
        ErrorKind::WriteLimit => "io.max_bytes bounds what is written",
        ErrorKind::TooManyFiles => "limits.entries bounds how many files and directories are made",
        ErrorKind::Encoding => "the encoding base64 takes and gives any bytes",
        ErrorKind::Timeout => "filesystem.timeout bounds an operation",
        _ => return None,
    })
}

fn list_tried(tried: &[Tried]) -> String {
    if tried.is_empty() {
        return "nothing was found to try".to_owned();
    }
    let lines: Vec<_> = tried
        .iter()
        .map(|Tried { endpoint, why, outcome }| format!("{endpoint}, {why}: {outcome}"))
        .collect();
    lines.join("; ")
}

/// Makes a call to the engine within the step's time limit.
pub(crate) async fn step<T>(
    step: Step,
    call: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, Error> {
    failpoint(Point::Before(step)).await;
    let after = step.time_limit();
    let since = tokio::time::Instant::now();
    let result = tokio::time::timeout(after, call).await;
    tracing::debug!(took = ?since.elapsed(), "{step}");
    let result = result.unwrap_or(Err(EngineError::TimedOut { after }));
    let result = result.map_err(|source| Error::Engine { step, source })?;
    failpoint(Point::After(step)).await;
    Ok(result)
}
