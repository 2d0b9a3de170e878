//! Commands of the image: starts and supervises them, and kills every process that they started.
//!
//! [`command`] builds the start parameters, [`spawn`] starts the command on a thread of its own
//! ([`spawner`]), [`supervise`] copies its input and output and enforces its timeout, [`tree`]
//! ends it, [`reaper`] reports its exit, [`signs`] say what stood in its way. This module combines
//! them, for requests of the controller ([`Execs`]) and for scripts ([`Programs::run`]).

mod command;
mod reaper;
mod signs;
mod spawn;
mod spawner;
mod supervise;
mod tree;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_protocol::argv::AgentArgs;
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::message::{Command, Exec, ExecReply};
use sandbox_protocol::operation::Way;
use sandbox_protocol::{ErrorKind, WireError};

use crate::confine::{Layers, seccomp};
use crate::outbox::Outbox;
use crate::proxy::Proxy;
use crate::stop::{StopFlag, StopReason, no_thread};
use crate::stream::{Stream, Streams};
use crate::wake::Wake;
use command::{CommandRequest, Defaults, Prepared};
use reaper::Reaper;
use signs::OwnPlaces;
use spawn::{Beginning, SpawnError, spawn};
pub use spawner::Spawner;
pub use supervise::Output;
use supervise::{Bounds, Console, Input, Running, supervise};
use tree::Marks;

/// The longest timeout of a command, even if a longer one was requested.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How many times, and at which interval, execution of a file that is still open for writing is
/// retried: a command that starts at the same moment holds it open for that long.
const BUSY_TRIES: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// Stack size of a thread that supervises a command: its largest frame is the poll list.
const STACK_BYTES: usize = 256 << 10;

/// What commands need that must be opened before the agent is confined.
#[derive(Debug)]
pub struct ExecContext {
    defaults: Defaults,
    marks: Marks,
    layers: Layers,
    /// The stdin of a command without input.
    null: File,
    /// The file systems of their own that commands may write to.
    places: OwnPlaces,
}

impl ExecContext {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// If there is no `/dev/null`, or `/proc` does not show the running processes.
    pub fn prepare(args: &AgentArgs, proxy: Option<&TcpListener>) -> io::Result<Self> {
        let mut defaults = Defaults::new(std::env::vars_os(), args.home.clone(), args.base());
        defaults.add_what_programs_expect(&command::own_name());
        if let Some(listener) = proxy {
            defaults.set_proxy(listener.local_addr()?);
        }
        let null = File::open("/dev/null")?;
        let home = args.home.as_ref().map(|home| Path::new(OsStr::from_bytes(home.as_bytes())));
        let (marks, places) = (Marks::new()?, OwnPlaces::open(home, args.disk));
        Ok(Self { defaults, marks, layers: Layers::default(), null, places })
    }

    /// Puts every command under these layers.
    #[must_use]
    pub fn under(self, layers: Layers) -> Self {
        Self { layers, ..self }
    }
}

/// Runs commands.
pub struct Programs {
    context: ExecContext,
    spawner: Spawner,
    reaper: Reaper,
    /// Their way to the network, if they have one.
    proxy: Option<Arc<Proxy>>,
    running: Mutex<usize>,
    /// CPU time in milliseconds of the commands that scripts ran.
    scripts_cpu: AtomicU64,
}

/// The parameters of a command.
#[derive(Debug)]
pub struct Task<'a> {
    /// The command.
    pub command: &'a Command,
    /// The working directory, as it was written.
    pub cwd: Option<&'a [u8]>,
    /// Names and values.
    pub env: Vec<(&'a [u8], &'a [u8])>,
    /// Whether its console provides input.
    pub has_input: bool,
    /// Its deadline.
    pub deadline: Instant,
    /// How long its processes may go on after SIGTERM, when it is to end.
    pub grace: Duration,
    /// The most bytes of both outputs together.
    pub output_bytes: u64,
}

impl Programs {
    /// Starts the reaper thread, and restricts the one that starts commands.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, or the kernel refuses a filter.
    pub fn start(
        mut context: ExecContext,
        spawner: Spawner,
        proxy: Option<Arc<Proxy>>,
    ) -> io::Result<Arc<Self>> {
        let filters = std::mem::take(&mut context.layers.inherited);
        let restricted = spawner.run(move || filters.iter().try_for_each(seccomp::apply));
        restricted.map_err(io::Error::other)?;
        let (reaper, running) = (Reaper::start()?, Mutex::default());
        let scripts_cpu = AtomicU64::new(0);
        Ok(Arc::new(Self { context, spawner, reaper, proxy, running, scripts_cpu }))
    }

    /// CPU time in milliseconds of the commands that scripts ran and that have ended.
    pub fn scripts_cpu(&self) -> u64 {
        self.scripts_cpu.load(Ordering::Relaxed)
    }

    /// Runs a command of a script until it ends.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub fn run_for_script(
        &self,
        task: &Task<'_>,
        console: &mut impl Console,
        wake: &Arc<Wake>,
        stop: &StopFlag,
    ) -> Result<ExecReply, WireError> {
        let reply = self.run(task, console, wake, stop)?;
        self.scripts_cpu.fetch_add(reply.cpu_ms, Ordering::Relaxed);
        Ok(reply)
    }

    /// Runs a command until it ends. Its console wakes `wake`; `stop` ends it early. If no other one
    /// runs then, the proxy has no clients any more but those that still forward what was sent.
    ///
    /// # Errors
    ///
    /// Why it did not start; then its console was not used.
    pub fn run(
        &self,
        task: &Task<'_>,
        console: &mut impl Console,
        wake: &Arc<Wake>,
        stop: &StopFlag,
    ) -> Result<ExecReply, WireError> {
        let _permit = RunningPermit::take(self)?;
        let Task { command, cwd, ref env, .. } = *task;
        let asked = CommandRequest { command, cwd, env };
        let prepared = Prepared::new(&asked, &self.context.defaults)?;
        stop.waking(wake, || {
            let Task { deadline, grace, output_bytes, .. } = *task;
            let bounds = Bounds { stop, deadline, grace, output_bytes };
            let running = self.begin(&prepared, task.has_input, wake, &bounds)?;
            supervise(running, console, &bounds, &self.context.places)
        })
    }

    fn begin(
        &self,
        prepared: &Prepared,
        has_input: bool,
        wake: &Arc<Wake>,
        bounds: &Bounds<'_>,
    ) -> Result<Running, WireError> {
        let tree = self.context.marks.tree();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(no_descriptor);
        let stdin = has_input.then(pipe).transpose()?;
        let (stdout, stderr) = (pipe()?, pipe()?);
        let to_stdin = stdin.as_ref().map(|(_, end)| end);
        for end in [&stdout.0, &stderr.0].into_iter().chain(to_stdin) {
            rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK).map_err(no_descriptor)?;
        }
        let input = stdin.as_ref().map_or(self.context.null.as_fd(), |(end, _)| end.as_fd());
        let beginning = Beginning {
            candidates: &prepared.candidates,
            args: &prepared.args,
            env: &prepared.env,
            cwd: &prepared.cwd,
            stdio: [input, stdout.1.as_fd(), stderr.1.as_fd()],
            layer: self.context.layers.landlock.as_ref().map(OwnedFd::as_fd),
            filter: self.context.layers.seccomp.as_ref(),
        };
        let mut tries = 0;
        let mut stopped = None;
        let death = loop {
            let started =
                spawn(&beginning, &tree, &self.spawner, &self.reaper, wake, |death, word| {
                    stopped = bounds.outlast(wake, word);
                    if stopped.is_some() {
                        self.reaper.kill(death);
                    }
                });
            match started {
                Ok(death) => break death,
                Err(SpawnError::Program(_, Errno::TXTBSY)) if tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_WAIT);
                }
                Err(error) => return Err(prepared.explain(error)),
            }
        };
        let (outputs, stdin) = ([stdout.0, stderr.0], stdin.map(|(_, end)| end));
        Ok(Running { tree, death, wake: wake.clone(), outputs, stdin, stopped })
    }
}

/// Permission to run. Only one at a time if the kernel cannot distinguish commands. The proxy has
/// clients while there is one.
struct RunningPermit<'a>(&'a Programs);

impl<'a> RunningPermit<'a> {
    fn take(programs: &'a Programs) -> Result<Self, WireError> {
        let mut running = programs.running.lock().unwrap();
        if *running > 0 && !programs.context.marks.tell_apart() {
            let message =
                "another program is running, and this kernel cannot distinguish their processes";
            return Err(WireError::new(ErrorKind::Busy, message));
        }
        if *running == 0 {
            programs.proxy.iter().for_each(|proxy| proxy.accept_clients());
        }
        *running += 1;
        Ok(Self(programs))
    }
}

impl Drop for RunningPermit<'_> {
    fn drop(&mut self) {
        // Held: a command that starts meanwhile keeps its connections.
        let mut running = self.0.running.lock().unwrap();
        *running -= 1;
        if *running == 0 {
            self.0.proxy.iter().for_each(|proxy| proxy.drop_clients());
        }
    }
}

fn no_descriptor(errno: Errno) -> WireError {
    let error = io::Error::from(errno);
    WireError::new(ErrorKind::Busy, format!("no pipe can be made for a program: {error}"))
}

/// The commands that the controller has requested.
#[derive(Clone)]
pub struct Execs(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    outbox: Arc<Outbox>,
    streams: Arc<Streams>,
}

#[derive(Default)]
struct State {
    running: HashMap<u64, Arc<StopFlag>>,
    /// A thread whose command has ended, for the next one.
    idle: Option<Sender<Job>>,
    /// Called when no command is in progress any more.
    last: Vec<Box<dyn FnOnce() + Send>>,
    closing: bool,
}

/// A command for a thread.
struct Job {
    id: u64,
    exec: Exec,
    accepted: Instant,
    programs: Arc<Programs>,
    output_bytes: u64,
    terminal: Terminal,
    wake: Arc<Wake>,
    stop: Arc<StopFlag>,
}

impl Execs {
    /// Starts without commands.
    #[must_use]
    pub fn new(outbox: Arc<Outbox>, streams: Arc<Streams>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), outbox, streams }))
    }

    /// Starts the command of the request `id`. Its answer is sent when none of its processes is
    /// left.
    ///
    /// # Errors
    ///
    /// `invalid_request` if the command is too long or a stream is open, `busy` if the session ends
    /// or no thread or descriptor is available.
    pub fn start(
        &self,
        id: u64,
        exec: Exec,
        accepted: Instant,
        programs: Arc<Programs>,
        output_bytes: u64,
    ) -> Result<(), WireError> {
        if exec.command_bytes() > MAX_COMMAND_BYTES {
            let message = format!(
                "the command and its environment are longer than {MAX_COMMAND_BYTES} bytes, each \
                 word counted with eight more"
            );
            return Err(WireError::new(ErrorKind::InvalidRequest, message));
        }
        let mut state = self.0.state.lock().unwrap();
        if state.closing {
            return Err(WireError::new(ErrorKind::Busy, "the session ends"));
        }
        let wake = Arc::new(Wake::new().map_err(no_descriptor)?);
        let terminal = Terminal::open(&self.0, &exec, &wake)?;
        let stop = Arc::new(StopFlag::default());
        state.running.insert(id, stop.clone());
        let idle = state.idle.take();
        drop(state);
        let (shared, streams) = (self.0.clone(), terminal.streams());
        let job = Job { id, exec, accepted, programs, output_bytes, terminal, wake, stop };
        if let Some(idle) = idle {
            idle.send(job).expect("an idle thread waits");
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("exec".to_owned()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || shared.serve(job));
        if let Err(error) = started {
            streams.iter().for_each(|stream| self.0.streams.close(stream));
            self.0.state.lock().unwrap().running.remove(&id);
            return Err(no_thread(error));
        }
        Ok(())
    }

    /// Ends the command of this request early; returns whether there was one.
    pub fn cancel(&self, id: u64, at_once: bool) -> bool {
        let state = self.0.state.lock().unwrap();
        let Some(stop) = state.running.get(&id) else { return false };
        match at_once {
            true => stop.stop_at_once(StopReason::Cancelled),
            false => stop.stop(StopReason::Cancelled),
        }
        true
    }

    /// Ends all commands at once, refuses new ones, and calls `then` when all are answered.
    pub fn end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock().unwrap();
        state.closing = true;
        for stop in state.running.values() {
            stop.stop_at_once(StopReason::Cancelled);
        }
        if state.running.is_empty() {
            drop(state);
            then();
        } else {
            state.last.push(Box::new(then));
        }
    }
}

impl Shared {
    /// The thread of a command, and of later ones if it is the one that waits for them.
    fn serve(&self, mut job: Job) {
        let (sender, jobs) = channel();
        loop {
            let (id, result) = (job.id, conduct(job));
            if !self.answer(id, result, &sender) {
                return;
            }
            job = jobs.recv().expect("the sender is here");
        }
    }

    /// Returns whether the thread is to wait for another command.
    fn answer(&self, id: u64, result: Result<ExecReply, WireError>, thread: &Sender<Job>) -> bool {
        let (mut last, mut waits) = (Vec::new(), false);
        self.outbox.answer(id, result, || {
            let mut state = self.state.lock().unwrap();
            state.running.remove(&id);
            if state.idle.is_none() {
                state.idle = Some(thread.clone());
                waits = true;
            }
            if state.running.is_empty() {
                last = std::mem::take(&mut state.last);
            }
        });
        last.into_iter().for_each(|last| last());
        waits
    }
}

/// A command from its start to the end of its streams.
fn conduct(job: Job) -> Result<ExecReply, WireError> {
    let Job { exec, accepted, programs, output_bytes, mut terminal, wake, stop, .. } = job;
    let env = exec.env.iter().map(|variable| (variable.name.as_bytes(), variable.value.as_bytes()));
    let secrets = exec.secrets.iter().map(|secret| (secret.name.as_bytes(), &*secret.value.0));
    let task = Task {
        command: &exec.command,
        cwd: exec.cwd.as_ref().map(|cwd| cwd.as_bytes()),
        env: env.chain(secrets).collect(),
        has_input: exec.stdin.is_some(),
        deadline: accepted + Duration::from_millis(exec.timeout_ms).min(LONGEST),
        grace: Duration::from_millis(exec.grace_ms).min(LONGEST),
        output_bytes,
    };
    let result = programs.run(&task, &mut terminal, &wake, &stop);
    if result.is_ok() {
        terminal.end();
    }
    terminal.streams().iter().for_each(|stream| terminal.shared.streams.close(stream));
    result
}

/// A command's console on the wire.
struct Terminal {
    shared: Arc<Shared>,
    outputs: [Arc<Stream>; 2],
    stdin: Option<Arc<Stream>>,
}

impl Terminal {
    fn open(shared: &Arc<Shared>, exec: &Exec, wake: &Arc<Wake>) -> Result<Self, WireError> {
        let asked =
            [(Some(exec.stdout), Way::Out), (Some(exec.stderr), Way::Out), (exec.stdin, Way::In)];
        let mut opened = Vec::new();
        for (number, way) in asked {
            let stream = number.map(|number| shared.streams.open(number, way, Some(wake.clone())));
            match stream.transpose() {
                Ok(stream) => opened.extend(stream),
                Err(error) => {
                    opened.iter().for_each(|stream| shared.streams.close(stream));
                    return Err(error);
                }
            }
        }
        let mut opened = opened.into_iter();
        let (Some(stdout), Some(stderr)) = (opened.next(), opened.next()) else {
            unreachable!("both were opened")
        };
        Ok(Self { shared: shared.clone(), outputs: [stdout, stderr], stdin: opened.next() })
    }

    fn streams(&self) -> Vec<Arc<Stream>> {
        self.outputs.iter().chain(&self.stdin).cloned().collect()
    }

    /// Sends the last chunk of each output.
    fn end(&self) {
        for stream in &self.outputs {
            stream.send_now(&self.shared.outbox, Vec::new(), true);
        }
    }
}

impl Console for Terminal {
    fn room(&self, output: Output) -> usize {
        self.outputs[output as usize].room()
    }

    fn give(&mut self, output: Output, data: Vec<u8>) {
        self.outputs[output as usize].send_now(&self.shared.outbox, data, false);
    }

    fn input(&mut self) -> Input {
        let Some(stdin) = &self.stdin else { return Input::End };
        match stdin.receive_now(&self.shared.outbox) {
            Some(Some(piece)) => Input::Piece(piece),
            Some(None) => Input::End,
            None => Input::Later,
        }
    }
}

/// A command's console in memory: its input is complete from the start, and the beginning of its
/// output is kept.
#[derive(Debug)]
pub struct Collected {
    /// The kept bytes of each output.
    pub kept: [Vec<u8>; 2],
    /// Whether either output was longer.
    pub truncated: bool,
    most: usize,
    stdin: Vec<u8>,
}

impl Collected {
    /// A console that keeps at most this many bytes of each output.
    #[must_use]
    pub fn new(stdin: Vec<u8>, most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { kept: Default::default(), truncated: false, most, stdin }
    }
}

impl Console for Collected {
    fn room(&self, _: Output) -> usize {
        usize::MAX
    }

    fn give(&mut self, output: Output, mut data: Vec<u8>) {
        let kept = &mut self.kept[output as usize];
        let room = self.most - kept.len();
        self.truncated |= data.len() > room;
        data.truncate(room);
        kept.append(&mut data);
    }

    fn input(&mut self) -> Input {
        match std::mem::take(&mut self.stdin) {
            stdin if stdin.is_empty() => Input::End,
            stdin => Input::Piece(stdin),
        }
    }
}
