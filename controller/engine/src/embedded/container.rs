//! A container of the embedded engine.

use std::fs::File;
use std::io;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::stream::{self, Stream, StreamExt as _};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{Resource, Signal, getrlimit};
use sandbox_helper::cgroup::{Groups, Usage};
use sandbox_helper::spec::Descriptors;
use sandbox_helper::wire::{Reply, Request};
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::OnceCell;

use super::helper::{Helper, watch};
use super::launch::{Swap, launch, without_root};
use super::privileges::{Rootless, remedy};
use super::root;
use crate::error::EngineError;
use crate::exit::ExitEvidence;
use crate::hardening::PROCESSOR_LISTS;
use crate::program::Program;
use crate::{
    Attached, Container, ContainerSpec, Output, ProgramRoot, Programs, SYSTEM_FILES, Source,
    accounts, lock,
};

/// How much of a container's output is read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Large enough that a sender that is faster than its reader is not woken for every piece.
const PIPE_BYTES: usize = 256 << 10;
/// How long the kernel may take to freeze a container.
const FREEZE: Duration = Duration::from_secs(5);
/// How long a helper may take to remove its container.
const REMOVAL: Duration = Duration::from_secs(15);

/// A container that a helper launched.
pub(super) struct Live {
    name: String,
    /// One request at a time.
    helper: tokio::sync::Mutex<Helper>,
    /// Of its first process. It becomes readable when that has exited.
    pidfd: AsyncFd<OwnedFd>,
    groups: Groups,
    /// `Some` until attached.
    stdio: Mutex<Option<Stdio>>,
    /// The directory of its root filesystem, which is not removed while this is open.
    _root: Option<Arc<OwnedFd>>,
    /// Cached: the cgroups are removed.
    evidence: OnceCell<ExitEvidence>,
}

/// The controller's ends of its standard streams.
struct Stdio {
    input: pipe::Sender,
    output: pipe::Receiver,
    errors: pipe::Receiver,
}

impl Live {
    /// Launches a container, in one request. `record` is locked.
    pub async fn launch(
        spec: &ContainerSpec,
        record: File,
        mut helper: Helper,
        agent: &Program,
        groups: Groups,
        swap: Swap,
        user: Rootless,
    ) -> Result<Self, EngineError> {
        let (files, root) = match &spec.programs {
            Some(programs) => {
                let (files, root) = root_of(programs, spec, user)?;
                (files, Some(root))
            }
            None => (Vec::new(), None),
        };
        let mounts = spec.mounts.iter().map(|bind| open_mount(&bind.source, user));
        let mounts = mounts.collect::<Result<Vec<_>, _>>()?;
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let mut launch = launch(spec, files, swap, most);
        if user.is_some() {
            without_root(&mut launch, groups.is_none());
        }
        let (stdio, theirs) = pipes().map_err(|error| ours(&error))?;
        let record = OwnedFd::from(record);
        let descriptors = Descriptors {
            record: record.as_fd(),
            stdio: theirs.each_ref().map(AsFd::as_fd),
            program: agent.as_fd(),
            root: root.as_ref().map(AsFd::as_fd),
            mounts: mounts.iter().map(AsFd::as_fd).collect(),
        };
        let request = Request::Launch(Box::new(launch));
        let answer = helper.call(&request, &descriptors.attached()).await;
        let (reply, mut sent) = answer.map_err(|error| match error {
            EngineError::Refused(reason) if user.is_some() => {
                EngineError::Namespaces { reason, hint: remedy() }
            }
            error => error,
        })?;
        let (Reply::Launched, Some(pidfd)) = (reply, sent.pop()) else {
            return Err(EngineError::UnexpectedResponse("the helper made no container".to_owned()));
        };
        Ok(Self {
            name: spec.name.clone(),
            helper: tokio::sync::Mutex::new(helper),
            pidfd: watch(pidfd).map_err(|error| ours(&error))?,
            groups,
            stdio: Mutex::new(Some(stdio)),
            _root: spec.programs.as_ref().and_then(|programs| match &programs.root {
                ProgramRoot::Directory(source) => Some(source.file.clone()),
                ProgramRoot::Image { .. } => None,
            }),
            evidence: OnceCell::new(),
        })
    }

    /// Kills and removes the container, through its helper.
    pub async fn remove(&self) -> Result<(), EngineError> {
        let ask = async {
            let mut helper = self.helper.lock().await;
            helper.call(&Request::Remove, &[]).await?;
            helper.exited().await;
            Ok(())
        };
        let answer = tokio::time::timeout(REMOVAL, ask).await;
        answer.unwrap_or(Err(EngineError::TimedOut { after: REMOVAL }))
    }

    /// Makes the helper kill and remove the container, even if this process ends. It is the last user of
    /// what is `mounted`.
    pub async fn begin_removal(&self, mounted: Option<&OwnedFd>) -> Result<(), EngineError> {
        let mounted = mounted.map(AsFd::as_fd);
        self.helper.lock().await.send(&Request::Remove, mounted.as_slice()).await
    }

    /// Kills the helper, which did not do what was requested; its container dies with it.
    pub fn give_up(&self) {
        _ = self.kill();
        if let Ok(helper) = self.helper.try_lock() {
            helper.kill();
        }
    }

    /// Kills its first process. The kernel then kills all others of its PID namespace, throttled,
    /// frozen or not.
    fn kill(&self) -> Result<(), Errno> {
        let killed = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
        self.groups.let_die();
        killed
    }

    fn has_ended(&self) -> bool {
        let mut process = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut process, Some(&at_once)) != Ok(0)
    }

    async fn read_evidence(&self) -> ExitEvidence {
        let answer = self.helper.lock().await.call(&Request::Wait, &[]).await;
        let (code, over_memory) = match answer {
            Ok((Reply::Exited { code, over_memory }, _)) => (Some(code), over_memory),
            // The helper was killed from outside, and the container with it: the exit status is
            // unknown.
            _ => (None, false),
        };
        let usage = self.groups.usage();
        ExitEvidence {
            code,
            oom_killed: usage.map(|usage| usage.oom_kills > 0),
            over_memory,
            removed: code.is_none() && usage.is_none(),
        }
    }
}

/// The handle that the caller gets, while the engine keeps the container itself.
pub(super) struct Handle(pub Arc<Live>);

#[async_trait]
impl Container for Handle {
    fn id(&self) -> &str {
        &self.0.name
    }

    async fn attach(&self) -> Result<Attached, EngineError> {
        let stdio = lock(&self.0.stdio).take();
        let Some(Stdio { input, output, errors }) = stdio else {
            return Err(EngineError::Refused("the container is already attached".to_owned()));
        };
        let output = pieces(output).map(|piece| piece.map(Output::Stdout));
        let errors = pieces(errors).map(|piece| piece.map(Output::Stderr));
        Ok(Attached { input: Box::pin(input), output: stream::select(output, errors).boxed() })
    }

    async fn start(&self) -> Result<(), EngineError> {
        // It was launched: one request does everything.
        Ok(())
    }

    async fn wait(&self) -> Result<(), EngineError> {
        // Never cleared: it stays ready.
        self.0.pidfd.readable().await.map(|_| ()).map_err(|error| ours(&error))
    }

    async fn kill(&self) -> Result<(), EngineError> {
        match self.0.kill() {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(ours(&error.into())),
        }
    }

    async fn pause(&self) -> Result<(), EngineError> {
        let groups = self.0.groups.clone();
        let frozen = tokio::task::spawn_blocking(move || groups.freeze(FREEZE)).await;
        frozen.map_err(io::Error::other).flatten().map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => EngineError::NoFreezer,
            _ => ours(&error),
        })
    }

    async fn resume(&self) -> Result<(), EngineError> {
        self.0.groups.thaw().map_err(|error| ours(&error))
    }

    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError> {
        if !self.0.has_ended() {
            return Ok(None);
        }
        Ok(Some(*self.0.evidence.get_or_init(|| self.0.read_evidence()).await))
    }

    async fn init_pid(&self) -> Option<u32> {
        let pidfd = self.0.pidfd.get_ref().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
    }

    async fn usage(&self) -> Option<Usage> {
        self.wait().await.ok()?;
        self.0.groups.usage()
    }

    async fn groups(&self) -> Option<Groups> {
        Some(self.0.groups.clone()).filter(|groups| !groups.is_none())
    }
}

fn ours(error: &io::Error) -> EngineError {
    EngineError::Refused(error.to_string())
}

/// The root filesystem of a container that supports commands: the files to create in it, and a mount
/// of the directory.
fn root_of(
    programs: &Programs,
    spec: &ContainerSpec,
    user: Rootless,
) -> Result<(Vec<(String, String)>, OwnedFd), EngineError> {
    let ProgramRoot::Directory(root) = &programs.root else { return Err(root::no_images()) };
    root::check(root, &spec.mounts)?;
    let files = SYSTEM_FILES.map(|(path, content)| (path.to_owned(), content.to_owned()));
    // As this kernel has them.
    let lists = PROCESSOR_LISTS.iter();
    let lists =
        lists.filter_map(|&path| Some((path.to_owned(), std::fs::read_to_string(path).ok()?)));
    let image = accounts::PATHS.map(|path| accounts::plain_text(read_text(root, path)?));
    let names = accounts::replacements(&image, spec.user, &spec.home());
    let names = names.into_iter().map(|(path, content)| (path.to_owned(), content));
    Ok((files.into_iter().chain(lists).chain(names).collect(), open_mount(root, user)?))
}

/// The content of a file of a root as a program in it would read it, and some more than may be used of
/// it; empty if it is missing, and `None` if it is not a file.
fn read_text(root: &Source, path: &str) -> Option<Vec<u8>> {
    // Inspected before it is opened: opening a device may have side effects.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = match rustix::fs::openat2(&root.file, path, flags, Mode::empty(), within) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Some(Vec::new()),
        Err(_) => return None,
    };
    let mode = rustix::fs::fstat(&found).ok()?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return None;
    }
    let opened = File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()?;
    let mut content = Vec::new();
    opened.take(accounts::MAX_BYTES as u64 + 1).read_to_end(&mut content).ok()?;
    Some(content)
}

/// A detached copy of a mount's source: mounts the opened file, not what its path leads to now. Without
/// root the file itself, which the helper mounts.
fn open_mount(source: &Source, user: Rootless) -> Result<OwnedFd, EngineError> {
    if source.is_private() {
        return source.file.try_clone().map_err(|error| ours(&error));
    }
    let Source { path, file, overlay, .. } = source;
    let refuse = |why: &str| EngineError::Refused(format!("cannot mount {path}: {why}"));
    if let Some(layers) = overlay {
        return layers.mount().map_err(|error| refuse(&format!("no overlay of it: {error}")));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = match user {
        None => rustix::mount::open_tree(file, c"", flags).map_err(io::Error::from),
        Some(_) => file.try_clone(),
    };
    let mount = mount.map_err(|error| refuse(&error.to_string()))?;
    let stat = rustix::fs::fstat(&mount).map_err(|errno| ours(&errno.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory | FileType::RegularFile => Ok(mount),
        _ => Err(refuse("it is neither a directory nor a regular file")),
    }
}

/// A pipe: the end to read from, and that to write to.
fn large_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A larger pipe is only an optimisation, so errors are ignored.
    _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES);
    Ok((read, write))
}

/// The pipes of a container: the controller's ends, which become non-blocking, and stdin, stdout and
/// stderr.
fn pipes() -> io::Result<(Stdio, [OwnedFd; 3])> {
    let (their_input, input) = large_pipe()?;
    let (output, their_output) = large_pipe()?;
    let (errors, their_errors) = large_pipe()?;
    let stdio = Stdio {
        input: pipe::Sender::from_owned_fd(input)?,
        output: pipe::Receiver::from_owned_fd(output)?,
        errors: pipe::Receiver::from_owned_fd(errors)?,
    };
    Ok((stdio, [their_input, their_output, their_errors]))
}

fn pieces(pipe: pipe::Receiver) -> impl Stream<Item = io::Result<bytes::Bytes>> + Send {
    stream::unfold(Some((pipe, BytesMut::new())), |state| async {
        let (mut pipe, mut buffer) = state?;
        buffer.reserve(PIECE_BYTES);
        match pipe.read_buf(&mut buffer).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(buffer.split().freeze()), Some((pipe, buffer)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use sandbox_helper::cgroup::Hierarchies;
    use sandbox_helper::spec::Launch;

    use crate::agent::{AGENT, Content};
    use crate::embedded::data_dir;
    use crate::embedded::helper::Helpers;
    use crate::embedded::records::Records;
    use crate::testing::spec;

    /// Makes a helper launch a container with this program as its agent, by a launch that differs
    /// from the engine's.
    async fn make(
        data_dir: &Path,
        program: &Program,
        change: impl FnOnce(&mut Launch),
    ) -> Result<(), EngineError> {
        let name = format!("sandboxctl-test-{}", sandbox_dirfd::random_hex::<8>());
        let data_dir = data_dir.join("data");
        data_dir::open(&data_dir).unwrap();
        let hierarchies = Hierarchies::here().unwrap();
        let groups = hierarchies.mounted().map(Path::to_owned).collect();
        let mut helper = Helpers::new(data_dir.clone(), groups).take().await?;
        let records = Records::new(&data_dir);
        let record = OwnedFd::from(records.create(&name, &[]).unwrap());
        let spec = ContainerSpec { name: name.clone(), mounts: Vec::new(), ..spec() };
        let mut launch = launch(&spec, Vec::new(), Swap::NotCounted, u64::MAX);
        launch.process.filters.clear();
        change(&mut launch);
        let null = OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
        let descriptors = Descriptors {
            record: record.as_fd(),
            stdio: [null.as_fd(); 3],
            program: program.as_fd(),
            root: None,
            mounts: Vec::new(),
        };
        let request = Request::Launch(Box::new(launch));
        let made = helper.call(&request, &descriptors.attached()).await.map(|_| ());
        if made.is_ok() {
            helper.call(&Request::Remove, &[]).await.unwrap();
        }
        helper.exited().await;
        drop(record);
        records.remove(&name, &hierarchies).unwrap();
        made
    }

    #[tokio::test]
    async fn process_that_is_not_the_user_that_was_asked_for_never_becomes_the_agent() {
        if !rustix::process::geteuid().is_root() {
            // Only root can use this engine.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = Program::in_memory(c"agent", AGENT).unwrap();
        make(dir.path(), &program, |_| {}).await.unwrap();
        // The value that the kernel reads as "unchanged": the helper's own user, root.
        for change in
            [(|launch: &mut Launch| launch.process.uid = u32::MAX) as fn(&mut Launch), |launch| {
                launch.process.gid = u32::MAX
            }]
        {
            let error = make(dir.path(), &program, change).await.unwrap_err();
            assert!(error.to_string().contains("there is no user"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_launch_that_fails_says_which_step_did_and_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let no_program = Program::in_memory(c"agent", Content::Plain(b"no program")).unwrap();
        let error = make(dir.path(), &no_program, |_| {}).await.unwrap_err().to_string();
        assert!(error.contains("cannot execute the agent: Exec format error"), "{error}");
        let program = Program::in_memory(c"agent", AGENT).unwrap();
        let hidden = |launch: &mut Launch| launch.hidden.push("/in/missing".to_owned());
        let error = make(dir.path(), &program, hidden).await.unwrap_err().to_string();
        assert!(error.contains("cannot cover /in/missing: No such file or directory"), "{error}");
        let limit = |launch: &mut Launch| launch.limits.pids = u32::MAX;
        let error = make(dir.path(), &program, limit).await.unwrap_err().to_string();
        assert!(error.contains("cannot limit the container: "), "{error}");
    }
}
