//! The session: reads requests from stdin and dispatches them. It never waits for a script or the
//! controller's reads, and 2 ms at most for a file, so it sees a cancel at once, and also the end of
//! stdin, which ends the process. A stdin without any bytes, not even heartbeats, ends it too: an
//! engine may hold the other side open after its controller is gone, or the controller may be stopped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox_protocol::frame::{FrameDecoder, nesting};
use sandbox_protocol::limits::{
    FIRST_BYTE_TIMEOUT, FIRST_DIAL, HEARTBEAT_TIMEOUT, MAX_ARGS_BYTES, MAX_VALUE_DEPTH,
};
use sandbox_protocol::message::{
    Cancel, Configure, Confinement, ControlReply, Dial, Done, Exec, FileScope, Flush, Hello,
    HelloReply, Limits, ListPorts, ListPortsReply, Operation, Policy, Request, Resolver, Run,
    Shutdown, Watch,
};
use sandbox_protocol::stream::StreamError;
use sandbox_protocol::{DecodeError, ErrorKind, PROTOCOL_VERSION, ToAgent, WireError};
use serde::Serialize;
use serde_json::Value;

use crate::confine::limit_cpu;
use crate::exec::{Execs, Programs};
use crate::files::{Files, Lifetime, Mounts, PathPolicy};
use crate::operation::Operations;
use crate::outbox::{Outbox, Replier, Stdout};
use crate::proc::Proc;
use crate::proxy::Proxy;
use crate::run::{Job, Runner};
use crate::stop::no_thread;
use crate::stream::Streams;
use crate::threads::{Reader, ThreadJob, Threads};
use crate::{Agent, Exit, die};

/// Size of one read of stdin.
const READ_BYTES: usize = 64 << 10;
/// How long a session may take to end after `shutdown` and the end of stdin.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves the session on stdin and stdout until it ends.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn serve(agent: Agent) -> io::Result<Infallible> {
    let Agent { mounts, confinement, proc, proxy, programs } = agent;
    let outbox = Arc::new(Outbox::new(Stdout));
    let start = |listener| Proxy::start(Some(listener), outbox.clone());
    let proxy = proxy.map(start).transpose()?;
    let start = |(context, spawner)| Programs::start(context, spawner, proxy.clone());
    let programs = programs.map(start).transpose()?;
    let proc = Arc::new(proc);
    let replier = Replier::start(outbox.clone())?;
    let threads = Threads::new()?;
    let streams = Arc::new(Streams::new(threads.clone()));
    let session = Session {
        mounts: Arc::new(mounts),
        confinement,
        runner: Arc::new(Runner::new(outbox.clone(), replier.clone(), proc.clone())),
        proc,
        replier,
        operations: Operations::new(outbox.clone(), streams.clone()),
        execs: Execs::new(outbox.clone(), streams.clone()),
        outbox,
        streams,
        threads: threads.clone(),
        accepted: VecDeque::new(),
        proxy,
        programs,
        greeted: false,
        rules: None,
        closing: false,
    };
    threads.serve(Box::new(Requests {
        session,
        decoder: FrameDecoder::new(),
        buffer: vec![0; READ_BYTES],
        timeout: FIRST_BYTE_TIMEOUT,
    }))
}

/// The requests on stdin.
struct Requests {
    session: Session,
    decoder: FrameDecoder,
    buffer: Vec<u8>,
    timeout: Duration,
}

impl Reader for Requests {
    fn read(&mut self) -> VecDeque<ThreadJob> {
        while self.session.accepted.is_empty() {
            // The controller is gone.
            let Some(length) = read_stdin(&mut self.buffer, self.timeout) else {
                if self.session.closing {
                    std::thread::sleep(FLUSH_TIMEOUT);
                }
                crate::exit(Exit::Lost)
            };
            self.timeout = HEARTBEAT_TIMEOUT;
            self.decoder.extend(&self.buffer[..length]);
            loop {
                match self.decoder.next_frame() {
                    Ok(Some(line)) => self.session.take(line),
                    Ok(None) => break,
                    Err(error) => die(Exit::Protocol, &error.to_string()),
                }
            }
        }
        std::mem::take(&mut self.session.accepted)
    }
}

/// One read of stdin; `None` at its end, or if it fails. The timeout, at which the agent exits, only counts the
/// wait for bytes: if the sandbox was paused or got no CPU time meanwhile, the bytes that have arrived are read.
fn read_stdin(buffer: &mut [u8], timeout: Duration) -> Option<usize> {
    let stdin = rustix::stdio::stdin();
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("it is seconds");
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&left)) {
            Ok(0) => die(Exit::Lost, &format!("the controller has sent nothing for {timeout:?}")),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        match rustix::io::read(stdin, &mut *buffer) {
            Ok(0) => return None,
            Ok(length) => return Some(length),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
}

struct Session {
    mounts: Arc<Mounts>,
    confinement: Confinement,
    proc: Arc<Proc>,
    outbox: Arc<Outbox>,
    replier: Replier,
    runner: Arc<Runner>,
    streams: Arc<Streams>,
    operations: Arc<Operations>,
    threads: Arc<Threads>,
    /// What was accepted and is not performed by a thread yet.
    accepted: VecDeque<ThreadJob>,
    /// Has the connections of the sandbox, once there can be some.
    proxy: Option<Arc<Proxy>>,
    /// Runs the commands of the image, in a sandbox that supports them.
    programs: Option<Arc<Programs>>,
    execs: Execs,
    /// `hello` was answered.
    greeted: bool,
    rules: Option<Rules>,
    /// `shutdown` was received.
    closing: bool,
}

/// What `configure` set.
struct Rules {
    limits: Limits,
    policy: Policy,
    paths: Arc<PathPolicy>,
    lifetime: Arc<Lifetime>,
}

impl Session {
    /// Handles one line.
    fn take(&mut self, line: &str) {
        match ToAgent::decode(line) {
            Ok(ToAgent::Request { id, request, stream }) => self.request(id, request, stream),
            Ok(ToAgent::Chunk(chunk)) if chunk.stream >= FIRST_DIAL => {
                keep(self.proxy.as_ref().map_or(Ok(()), |proxy| proxy.take_chunk(&chunk)));
            }
            Ok(ToAgent::Credit(credit)) if credit.stream >= FIRST_DIAL => {
                keep(self.proxy.as_ref().map_or(Ok(()), |proxy| proxy.take_credit(&credit)));
            }
            Ok(ToAgent::Chunk(chunk)) => keep(self.streams.take_chunk(chunk)),
            Ok(ToAgent::Credit(credit)) => keep(self.streams.take_credit(&credit)),
            Ok(ToAgent::Connected(connected)) => {
                self.proxy.iter().for_each(|proxy| proxy.take_connected(connected));
            }
            Ok(ToAgent::Closed(closed)) => {
                self.proxy.iter().for_each(|proxy| proxy.take_closed(closed.clone()));
            }
            // A heartbeat has no other effect: it was read.
            Ok(ToAgent::Heartbeat) => {}
            Err(DecodeError::Params { method, id: Some(id), source }) => {
                let error = match protocol_of(line) {
                    Some(version) if method == "hello" && version != PROTOCOL_VERSION => {
                        wrong_version(version)
                    }
                    _ => WireError::invalid(format!("malformed params of '{method}': {source}")),
                };
                self.replier.answer::<()>(id, Err(error));
            }
            Err(error) => die(Exit::Protocol, &error.to_string()),
        }
    }

    /// Answers a request, or starts the work that will.
    fn request(&mut self, id: u64, request: Request, stream: Option<u32>) {
        let taken = match request {
            Request::Hello(hello) => self.hello(hello).and_then(|reply| self.answer(id, reply)),
            Request::Configure(configure) => {
                self.configure(configure).and_then(|reply| self.answer(id, reply))
            }
            Request::Cancel(Cancel { id: target, at_once }) => {
                let found = self.runner.cancel(target)
                    || self.operations.cancel(target)
                    || self.execs.cancel(target, at_once);
                self.answer(id, ControlReply { found })
            }
            Request::Shutdown(Shutdown {}) => {
                self.closing = true;
                let (runner, operations) = (self.runner.clone(), self.operations.clone());
                self.execs.end(move || operations.end(move || runner.shutdown(id)));
                Ok(())
            }
            Request::Run(run) => self.begin(|session| session.run(id, run)),
            // It is not among the requests in flight.
            Request::Exec(exec) if exec.kept => self.exec(id, exec),
            Request::Exec(exec) => self.begin(|session| session.exec(id, exec)),
            Request::Signal(signal) => {
                self.answer(id, ControlReply { found: self.execs.signal(signal) })
            }
            Request::Resize(resize) => {
                self.execs.resize(resize).and_then(|found| self.answer(id, ControlReply { found }))
            }
            Request::Dial(dial) => self.dial(id, dial),
            Request::ListPorts(ListPorts {}) => self
                .programs()
                .and_then(|it| self.answer(id, ListPortsReply { listening: it.listening() })),
            Request::Watch(watch) => {
                self.watch(id, watch).map(|work| self.accepted.push_back(work))
            }
            Request::Flush(Flush {}) => match self.execs.flush(id) {
                true => Ok(()),
                false => self.answer(id, Done {}),
            },
            Request::CallResult(result) => {
                self.answer(id, ControlReply { found: self.runner.take_result(result) })
            }
            Request::File(operation) => self
                .begin(|session| session.operate(id, operation, stream))
                .map(|work| self.accepted.push_back(work)),
        };
        if let Err(error) = taken {
            self.replier.answer::<()>(id, Err(error));
        }
    }

    fn answer(&self, id: u64, reply: impl Serialize) -> Result<(), WireError> {
        self.replier.answer(id, Ok(reply));
        Ok(())
    }

    /// Starts work that answers its request when it is done.
    fn begin<T>(&self, begin: impl FnOnce(&Self) -> Result<T, WireError>) -> Result<T, WireError> {
        self.outbox.admit()?;
        begin(self).inspect_err(|_| self.outbox.withdraw())
    }

    /// A repeated `hello` proves a bind mount.
    fn hello(&mut self, hello: Hello) -> Result<HelloReply, WireError> {
        let Hello { protocol, nonce } = hello;
        if protocol != PROTOCOL_VERSION {
            return Err(wrong_version(protocol));
        }
        self.greeted = true;
        Ok(HelloReply {
            protocol: PROTOCOL_VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            confinement: self.confinement.clone(),
            resolver: match self.mounts.resolver {
                sandbox_dirfd::Resolver::Openat2 => Resolver::Openat2,
                sandbox_dirfd::Resolver::Walk => Resolver::Walk,
            },
            boot_id: self.proc.boot_id.clone(),
            mounts: self.mounts.identities().collect(),
            nonce: nonce.and_then(|name| self.mounts.take_nonce(&name)),
        })
    }

    fn configure(&mut self, configure: Configure) -> Result<Done, WireError> {
        self.check_greeted()?;
        if self.rules.is_some() {
            return Err(WireError::invalid("'configure' comes once"));
        }
        let Configure { limits, policy, ca } = configure;
        let paths = PathPolicy::new(&policy).map_err(|error| {
            WireError::invalid(format!("a path in policy.allowed_paths: {error}"))
        })?;
        if policy.files == FileScope::All {
            if self.programs.is_none() {
                return Err(WireError::invalid(
                    "policy.files: only where programs run is there more",
                ));
            }
            self.mounts
                .open_container(Path::new("/"))
                .map_err(|error| WireError::new(ErrorKind::Internal, error.to_string()))?;
        }
        if let Some(ca) = ca {
            self.programs()?.trust(&ca)?;
        }
        if let Some(seconds) = limits.cpu_seconds {
            limit_cpu(seconds).map_err(|errno| {
                WireError::new(ErrorKind::Internal, format!("setting RLIMIT_CPU: {errno}"))
            })?;
        }
        let lifetime = Arc::new(Lifetime::new(&limits));
        self.rules = Some(Rules { limits, policy, paths: Arc::new(paths), lifetime });
        Ok(Done {})
    }

    fn check_greeted(&self) -> Result<(), WireError> {
        if self.greeted { Ok(()) } else { Err(WireError::invalid("'hello' comes first")) }
    }

    fn rules(&self) -> Result<&Rules, WireError> {
        self.check_greeted()?;
        self.rules.as_ref().ok_or_else(|| WireError::invalid("'configure' comes first"))
    }

    /// The files of the request `id`; `announce` sends what it changes.
    fn files(&self, rules: &Rules, id: u64, announce: Option<Arc<Outbox>>) -> Files {
        Files::new(
            self.mounts.clone(),
            rules.paths.clone(),
            &rules.limits,
            rules.lifetime.clone(),
            announce,
            id,
        )
    }

    fn programs(&self) -> Result<&Arc<Programs>, WireError> {
        self.programs.as_ref().ok_or_else(|| {
            WireError::invalid(
                "this sandbox runs scripts only: to run programs it needs an image of them",
            )
        })
    }

    /// Begins a connection to a port of the sandbox. What serves it is started for the first one.
    fn dial(&mut self, id: u64, dial: Dial) -> Result<(), WireError> {
        self.rules()?;
        self.programs()?;
        let proxy = match self.proxy.take() {
            Some(proxy) => proxy,
            None => Proxy::start(None, self.outbox.clone()).map_err(no_thread)?,
        };
        self.proxy.insert(proxy).dial(id, dial)
    }

    /// The files of the operation `id`, which may be anywhere in the container.
    fn files_of_operation(&self, rules: &Rules, id: u64) -> Files {
        let files = self.files(rules, id, None);
        match rules.policy.files {
            FileScope::Io => files,
            FileScope::All => files.anywhere(),
        }
    }

    /// The work of a file operation.
    fn operate(
        &self,
        id: u64,
        operation: Operation,
        stream: Option<u32>,
    ) -> Result<ThreadJob, WireError> {
        let rules = self.rules()?;
        self.threads.expect(self.accepted.len()).map_err(no_thread)?;
        let time = Duration::from_millis(rules.limits.operation_timeout_ms);
        self.operations.accept(id, operation, stream, self.files_of_operation(rules, id), time)
    }

    /// The work that begins a watch, which is not among the requests in flight.
    fn watch(&self, id: u64, watch: Watch) -> Result<ThreadJob, WireError> {
        let rules = self.rules()?;
        if self.programs.is_none() {
            return Err(WireError::invalid(
                "this sandbox runs scripts only: to watch its files it needs an image of programs",
            ));
        }
        self.threads.expect(self.accepted.len()).map_err(no_thread)?;
        let time = Duration::from_millis(rules.limits.operation_timeout_ms);
        self.execs.watch(id, watch, self.files_of_operation(rules, id), time)
    }

    fn exec(&self, id: u64, exec: Exec) -> Result<(), WireError> {
        let accepted = Instant::now();
        let (rules, programs) = (self.rules()?, self.programs()?);
        self.execs.start(id, exec, accepted, programs.clone(), rules.limits.output_bytes)
    }

    fn run(&self, id: u64, run: Run) -> Result<(), WireError> {
        let accepted = Instant::now();
        let rules = self.rules()?;
        let args =
            serde_json::to_vec(&run.args).map_err(|error| WireError::invalid(error.to_string()))?;
        if args.len() > MAX_ARGS_BYTES {
            return Err(WireError::invalid(format!("args is longer than {MAX_ARGS_BYTES} bytes")));
        }
        // The object itself is no value.
        if nesting(&args) > MAX_VALUE_DEPTH {
            return Err(WireError::invalid(format!(
                "args is nested deeper than {MAX_VALUE_DEPTH}"
            )));
        }
        let files =
            rules.policy.io.then(|| Arc::new(self.files(rules, id, Some(self.outbox.clone()))));
        let (limits, io_errors) = (rules.limits.clone(), rules.policy.io_errors);
        let programs = self.programs.clone();
        self.runner.start(Job { id, run, accepted, limits, io_errors, files, programs })
    }
}

fn wrong_version(theirs: u32) -> WireError {
    WireError::new(
        ErrorKind::Image,
        format!(
            "the agent in the image speaks protocol {PROTOCOL_VERSION}, this sandboxctl {theirs}: \
             rebuild the image with `sandboxctl image build`"
        ),
    )
}

/// After a violation of its rules, a stream cannot be read further.
fn keep(delivered: Result<(), StreamError>) {
    if let Err(breach) = delivered {
        die(Exit::Protocol, &breach.to_string());
    }
}

/// The version in a `hello` whose other fields this agent cannot decode.
fn protocol_of(line: &str) -> Option<u32> {
    let hello: Value = serde_json::from_str(line).ok()?;
    u32::try_from(hello.pointer("/params/protocol")?.as_u64()?).ok()
}
