//! Errors of the controller and the engine. What the guest did is not an error but an
//! [`Outcome`](sandbox_api::Outcome).

use std::io;
use std::path::PathBuf;

use sandbox_api::{
    EngineKind, Failure, Outcome, OverCeiling, SpecError, causes, exit_code, failure_hint,
};
use sandbox_engine::{AgentError, ConnectError, EngineError, ImageIdError};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::path::PathError;

use crate::Step;
use crate::mounts::refusal::MountRefusal;

/// Why an io dir that belongs to another user is refused.
pub(crate) const CLOSED: &str = "you may not read, write and enter it";

/// An error of the controller or the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No engine can be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An image operation on an engine that needs no images.
    #[error("the {engine} engine has no images: it runs the agent itself")]
    NoImages {
        /// The engine.
        engine: EngineKind,
    },
    /// The engine failed, or did not respond in time.
    #[error("{step} failed")]
    Engine {
        /// The step during which it failed.
        step: Step,
        /// What happened.
        #[source]
        source: EngineError,
    },
    /// The sandbox failed to start: no guest code ran.
    #[error("sandbox failed to start: {detail}")]
    StartFailed {
        /// What is known.
        detail: String,
    },
    /// The agent's confinement is weaker than the policy requires: no guest code ran.
    #[error("required confinement is not in effect: {detail}")]
    Unconfined {
        /// What is missing, and why.
        detail: String,
    },
    /// The agent in the image is not the one of this controller.
    #[error("the agent in the image does not fit this controller: {reason}")]
    AgentMismatch {
        /// What the agent reported.
        reason: String,
    },
    /// The agent's file is unusable.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A part of a spec or a script is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A limit is above its ceiling.
    #[error(transparent)]
    OverCeiling(#[from] OverCeiling),
    /// The io dir is unusable.
    #[error("cannot use {} as the io dir: {reason}", .path.display())]
    IoDir {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or directory on the host may not be mounted in a sandbox.
    #[error("cannot use {} as {what}", .path.display())]
    MountRefused {
        /// Its role: `the io dir`.
        what: String,
        /// Its path.
        path: PathBuf,
        /// Why it is refused.
        #[source]
        source: MountRefusal,
    },
    /// A mount of the sandbox may not continue to exist: the sandbox was ended.
    #[error("the sandbox was ended: {what} {} cannot stay mounted", .path.display())]
    MountLost {
        /// Its role: `the io dir`.
        what: String,
        /// Its path.
        path: PathBuf,
        /// Why it is refused.
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
    /// The container would run as a user that is not allowed.
    #[error("refusing to run the sandbox as {uid}:{gid}: {reason}")]
    User {
        /// The uid.
        uid: u32,
        /// The gid.
        gid: u32,
        /// Why it is refused.
        reason: String,
    },
    /// An input is unusable.
    #[error("cannot use the input '{name}': {reason}")]
    Input {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A guest path is invalid.
    #[error("{what} '{path}' is not usable: {source}")]
    GuestPath {
        /// The setting that has it.
        what: &'static str,
        /// The path as given.
        path: String,
        /// What is wrong with it.
        #[source]
        source: PathError,
    },
    /// The io dir would be inside, or hide, a path that every sandbox has.
    #[error("the io dir cannot be at {path}: {taken} is the sandbox's own")]
    MountTaken {
        /// The requested guest path.
        path: String,
        /// The path that every sandbox has.
        taken: String,
    },
    /// The working directory is outside the mounts.
    #[error("the working directory {workdir} is outside the mounts")]
    WorkdirOutside {
        /// The directory.
        workdir: String,
    },
    /// Allow rules for a sandbox that does not support commands.
    #[error("hosts require an image: scripts have no network")]
    EgressUnsupported,
    /// No connection can be terminated.
    #[error("cannot terminate TLS for hosts with secrets or rules for requests: {0}")]
    Intercept(#[from] sandbox_intercept::SetupError),
    /// An io dir in memory cannot be created.
    #[error("cannot create a private io dir: {reason}")]
    PrivateIoDir {
        /// The reason.
        reason: String,
    },
    /// A path rule that commands in this sandbox could not be held to.
    #[error(
        "{rule} cannot be enforced for commands, which write to all of the io dir and read all inputs"
    )]
    RuleForPrograms {
        /// The configuration key of the rule.
        rule: &'static str,
    },
    /// The directory of fresh io dirs is unusable.
    #[error("cannot use the directory of fresh io dirs {}", .path.display())]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// The changes of a sandbox cannot be compared or committed. The io dir is as it was, unless a
    /// commit was interrupted: the next command completes it.
    #[error("cannot commit the changes to {}: {reason}", .path.display())]
    Staging {
        /// The io dir.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A staged io dir cannot be copied for its caller. The io dir is as it was.
    #[error("cannot copy the staged io dir to {}: {reason}", .path.display())]
    KeepStaged {
        /// The directory to be made.
        path: PathBuf,
        /// The reason.
        reason: String,
        /// The disk is full.
        is_disk_full: bool,
    },
    /// The state directory is unusable.
    #[error("cannot use the state directory {}", .path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
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
    /// A file operation was refused or failed in the sandbox.
    #[error(transparent)]
    Operation {
        /// What went wrong.
        source: sandbox_protocol::WireError,
    },
    /// The agent refused a request.
    #[error("the agent refused a request: {source}")]
    Refused {
        /// The agent's answer.
        #[source]
        source: sandbox_protocol::WireError,
    },
    /// It was cancelled before it began: nothing ran.
    #[error("cancelled before it began")]
    Cancelled,
    /// A command is invalid.
    #[error("cannot use the command: {reason}")]
    Command {
        /// What is wrong with it.
        reason: String,
    },
    /// The sandbox does not support commands.
    #[error("this sandbox does not support commands: it uses the sandbox image")]
    ExecUnsupported,
    /// The sandbox's processes end with the command that started them.
    #[error("this sandbox keeps no processes after the command that started them")]
    ProcessesUnsupported,
    /// Its container cannot be frozen.
    #[error("this sandbox cannot be paused: no control group of it can be frozen")]
    PauseUnsupported,
    /// A port that the sandbox's spec does not open.
    #[error("the sandbox's spec does not list port {port}")]
    PortNotListed {
        /// The port.
        port: u16,
    },
    /// Nothing in the sandbox accepts connections to the port.
    #[error("nothing in the sandbox accepts connections to port {port}")]
    PortClosed {
        /// The port.
        port: u16,
    },
    /// The sandbox is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// As many as there may be: processes of a sandbox, or readers of a process.
    #[error("there are {most} {what} already")]
    TooMany {
        /// How many there may be.
        most: usize,
        /// Of what: `processes`.
        what: &'static str,
    },
    /// What runs in the sandbox has used more than a limit for all of it together.
    #[error("{}", .limit.message)]
    OverLimit {
        /// The limit.
        limit: sandbox_protocol::message::ScriptError,
    },
    /// A command failed to start.
    #[error(transparent)]
    ExecFailed {
        /// The reason that the sandbox gave.
        source: sandbox_protocol::WireError,
    },
    /// `check` could not run the agent.
    #[error("cannot check the script")]
    Check {
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// An id does not identify exactly one sandbox image.
    #[error(transparent)]
    ImageId(#[from] ImageIdError),
    /// Artifacts could not be copied.
    #[error(transparent)]
    Artifacts(#[from] sandbox_artifacts::Error),
    /// Artifacts of a sandbox that has no files.
    #[error("this sandbox has no io dir to copy artifacts from")]
    NoIoDir,
    /// A sandbox without a private io dir on disk, or whose private io dir is gone, has none to keep.
    #[error("this sandbox has no private io dir on disk to keep")]
    NoFreshIoDir,
    /// A private io dir cannot be moved to where it is to be kept.
    #[error("cannot keep the io dir as {}", .path.display())]
    KeepIoDir {
        /// Where it was to be.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// A sandbox that cannot be prewarmed.
    #[error("the sandbox cannot be prewarmed: {reason}")]
    NotPooled {
        /// What about it is not known before it is asked for.
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

/// The hint for a path of the controller that differs from what the engine mounts.
const ELSEWHERE: &str = "the engine runs on another machine, or this process runs in a container: \
     mount the directory into that container at the path that it has on the host; without --io-dir \
     that is io.scratch_dir, /var/tmp by default";

impl Error {
    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Operation { source } | Self::ExecFailed { source } => source.kind(),
            Self::Engine {
                source:
                    EngineError::UnusableImage { .. }
                    | EngineError::ProgramImage { .. }
                    | EngineError::Archive { .. },
                ..
            } => ErrorKind::Image,
            Self::Engine { source: EngineError::UnusableRoot { .. }, .. } => ErrorKind::Usage,
            Self::Connect(error) => error.kind(),
            Self::Artifacts(error) => error.kind(),
            Self::Engine { .. }
            | Self::StartFailed { .. }
            | Self::Unconfined { .. }
            | Self::IoDirElsewhere { .. } => ErrorKind::Engine,
            Self::Intercept(_) | Self::PrivateIoDir { .. } | Self::Audit { .. } => {
                ErrorKind::Config
            }
            Self::AgentMismatch { .. } | Self::Agent(_) | Self::ImageStream { .. } => {
                ErrorKind::Image
            }
            Self::OverCeiling(_)
            | Self::User { .. }
            | Self::RuleForPrograms { .. }
            | Self::PortNotListed { .. }
            | Self::MountRefused { .. }
            | Self::MountLost { .. } => ErrorKind::Policy,
            Self::IoDir { .. }
            | Self::Input { .. }
            | Self::GuestPath { .. }
            | Self::MountTaken { .. }
            | Self::WorkdirOutside { .. }
            | Self::EgressUnsupported
            | Self::Spec(_)
            | Self::NoImages { .. }
            | Self::NoIoDir
            | Self::NoFreshIoDir
            | Self::NotPooled { .. }
            | Self::Command { .. }
            | Self::ExecUnsupported
            | Self::ProcessesUnsupported
            | Self::PauseUnsupported
            | Self::ImageId(_) => ErrorKind::Usage,
            Self::PortClosed { .. } => ErrorKind::NotFound,
            Self::Paused | Self::TooMany { .. } => ErrorKind::Busy,
            Self::OverLimit { limit } => limit.kind,
            Self::KeepStaged { is_disk_full: true, .. } => ErrorKind::DiskFull,
            Self::KeepIoDir { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                ErrorKind::DiskFull
            }
            Self::Ended { .. } => ErrorKind::AgentLost,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::State { .. }
            | Self::Scratch { .. }
            | Self::KeepIoDir { .. }
            | Self::Staging { .. }
            | Self::KeepStaged { .. }
            | Self::MountTable { .. }
            | Self::Refused { .. }
            | Self::Check { .. } => ErrorKind::Internal,
        }
    }

    /// The exit code of a process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::ExecFailed { source } => match source.kind() {
                // The sandbox is unable to, for any request.
                ErrorKind::Busy | ErrorKind::Internal => 125,
                kind @ (ErrorKind::NotExecutable | ErrorKind::CommandNotFound) => exit_code(kind),
                // The working directory or the arguments that the caller gave.
                _ => 2,
            },
            error => exit_code(error.kind()),
        }
    }

    /// A suggested next step, if there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Connect(error) => error.hint(),
            Self::Spec(error) => return error.hint().map(str::to_owned),
            Self::Artifacts(error) => return error.hint().map(str::to_owned),
            Self::NoImages { .. } => "--engine docker selects an engine with images",
            Self::Engine { source: EngineError::UnusableImage { .. }, .. } => {
                "a sandbox needs the image of this version: `sandboxctl image save` writes it \
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
            Self::Engine { source: EngineError::Namespaces { hint: Some(hint), .. }, .. } => hint,
            Self::Operation { source } => return failure_hint(source),
            // In this step there is no sandbox yet that could leave anything behind.
            Self::Engine {
                step: Step::Connect | Step::Image | Step::Programs | Step::RemoveImage | Step::List,
                ..
            } => return None,
            Self::Engine { source: EngineError::Refused(why), .. }
                if why.contains("bind source path does not exist") =>
            {
                ELSEWHERE
            }
            Self::Engine { .. } | Self::StartFailed { .. } => {
                "leftovers of the sandbox are removed by the next run that reaches the \
                 engine"
            }
            Self::Unconfined { .. } => {
                "`sandboxctl doctor` shows what this machine supports; --confinement best-effort runs \
                 without what is missing"
            }
            Self::AgentMismatch { .. } => "`sandboxctl image build --rebuild` rebuilds it",
            Self::Agent(_) => AgentError::HINT,
            Self::OverCeiling(over) => {
                return Some(format!(
                    "limits.ceiling in the user's or the system's configuration raises the \
                     ceiling of {}",
                    over.key.key()
                ));
            }
            Self::IoDirElsewhere { .. } => ELSEWHERE,
            Self::MountRefused { source, .. } => return Some(source.hint()),
            Self::MountLost { source: source @ MountRefusal::MountPoint { .. }, .. } => {
                return Some(format!(
                    "{}; check whether it is still mounted: a sandbox may have detached it before \
                     this was detected",
                    source.hint()
                ));
            }
            Self::MountLost { source, .. } => return Some(source.hint()),
            Self::MountTable { .. } => "mount /proc",
            Self::User { .. } => {
                "give the io dir to another owner, or name a user with --user UID:GID"
            }
            Self::Intercept(_) => {
                "network.ca_file names a file of certificates, as PEM, by which hosts are verified"
            }
            Self::PrivateIoDir { .. } => {
                "--engine embedded makes one, as root; --io-dir names a directory in its place, and \
                 io.private = \"disk\" makes one on disk"
            }
            Self::Input { name, .. } if name.starts_with('/') => {
                "-v SRC:DST:ro takes a regular file or a directory, and a DST that is still free"
            }
            Self::Input { .. } => "--in takes a regular file or a directory: --in SRC[:NAME]",
            Self::Staging { .. } => "`sandboxctl gc` completes an interrupted commit",
            Self::KeepStaged { .. } => {
                "--keep-staged names a directory that does not exist yet, where there is room for it"
            }
            Self::Scratch { .. } => {
                "io.scratch_dir must be yours alone (mode 0700) and writable: name another one, or \
                 --io-dir"
            }
            Self::KeepIoDir { .. } => {
                "it must be on the file system of the scratch directory, and not exist yet"
            }
            Self::State { .. } => {
                "the state directory must be private to this user and writable: select another one"
            }
            Self::Audit { .. } => {
                "name a file outside of the io dir that can be written, or a FIFO that is read"
            }
            Self::ImageId(_) => "`sandboxctl image ls` lists them",
            Self::RuleForPrograms { .. } => {
                "drop the rule, which works with scripts and `fs` only, and give commands what they \
                 may not change as read-only inputs: -v DIR:/src:ro"
            }
            Self::EgressUnsupported | Self::ExecUnsupported => {
                "--image (--rootfs or --image-archive on the embedded engine) selects an image with programs"
            }
            Self::ProcessesUnsupported => {
                "a sandbox keeps them if it is created so, as `sandbox create IMAGE` does"
            }
            Self::PauseUnsupported => {
                "the embedded engine needs root, or control groups of version 2 that are delegated"
            }
            Self::PortNotListed { .. } => "create one with `--port PORT`, or with `--port any`",
            Self::PortClosed { .. } => {
                "a server listens on 127.0.0.1, ::1 or on all addresses; it may still be starting"
            }
            Self::Paused => "resume it first",
            Self::ExecFailed { source } => match source.kind() {
                ErrorKind::Busy => "--pids raises the limit",
                ErrorKind::CommandNotFound => {
                    "no shell is implied: the first word is a program of the image"
                }
                _ => return None,
            },
            Self::IoDir { reason, .. } if reason.starts_with(CLOSED) => {
                "--io-dir names a directory of your own; what you may read is an input: --in or \
                 -v DIR:/src:ro"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// The message with all its causes, on one line.
    pub fn full_message(&self) -> String {
        causes(self)
    }
}

/// The controller or the engine failed while something ran.
impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        Outcome::Error { exit_code: error.exit_code(), failure: Failure::from(&error) }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self::new(error.kind(), error.full_message(), error.hint())
    }
}
