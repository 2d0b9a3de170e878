//! The agent as a process: real frames over real pipes.

mod exec;
mod kept;
mod operations;
mod terminals;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{CWD, OFlags, mkfifoat};
use sandbox_protocol::argv::{
    AgentArgs, CheckReply, ConfinementPolicy, DiskSpace, EXIT_UNCONFINED, Mode, Mount,
};
use sandbox_protocol::limits::{
    HEARTBEAT_INTERVAL, MAX_FRAME_BYTES, MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, MAX_SOURCE_BYTES,
};
use sandbox_protocol::message::{
    Access, AllowedPath, Call, CallEnd, CallFile, CallResult, Cancel, Change, Changes, Closed,
    ClosedReason, Configure, Connect, Entry, Exited, FileScope, Hello, HelloReply, HostCall,
    IoErrors, Limits, Policy, Refused, Request, Run, RunEnd, RunReply, ScriptError, Shutdown,
    Started, Watched,
};
use sandbox_protocol::path::GuestPath;
use sandbox_protocol::stream::{ReceiveWindow, SendWindow};
use sandbox_protocol::{
    Base64, ErrorKind, FromAgent, HEARTBEAT, PROTOCOL_VERSION, ToAgent, User, WireError,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompRule};

/// How the agent ends, as `sandbox_agent::Exit` has it.
const DONE: i32 = 0;
const LOST: i32 = 1;
const START: i32 = 2;
const PROTOCOL: i32 = 3;

/// A host that is still being dialled, and a tool that is still working.
const UNANSWERED: &str = "never.example";

/// A minute for scripts that are to be stopped by something else.
const LONG: u64 = 60_000;

struct Agent {
    child: Child,
    stdin: Option<Arc<Mutex<ChildStdin>>>,
    stdout: BufReader<ChildStdout>,
    last_id: u64,
    /// Answers that were read while another one was awaited.
    answers: HashMap<u64, Result<String, WireError>>,
    notes: Vec<String>,
    /// The pids of kept programs, by request.
    pids: HashMap<u64, u32>,
    /// Entries of lists, by request.
    entries: HashMap<u64, Vec<Entry>>,
    /// What has come on each stream, and its window.
    received: HashMap<u32, (ReceiveWindow, Vec<u8>)>,
    /// The windows of streams to the agent.
    sending: HashMap<u32, SendWindow>,
}

impl Agent {
    fn spawn(args: &[String]) -> Self {
        Self::start(Command::new(env!("CARGO_BIN_EXE_sandbox-agent")).args(args))
    }

    fn start(command: &mut Command) -> Self {
        let agent = Self::silent(command);
        let stdin = Arc::downgrade(agent.stdin.as_ref().unwrap());
        std::thread::spawn(move || {
            while let Some(stdin) = stdin.upgrade() {
                // One that has ended, or reads no more, is what some tests wait for.
                _ = stdin.lock().unwrap().write_all(HEARTBEAT);
                drop(stdin);
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
        agent
    }

    /// One that gets no heartbeats.
    fn silent(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().map(Mutex::new).map(Arc::new);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdin,
            stdout,
            last_id: 0,
            answers: HashMap::new(),
            notes: Vec::new(),
            pids: HashMap::new(),
            entries: HashMap::new(),
            received: HashMap::new(),
            sending: HashMap::new(),
        }
    }

    /// An agent whose only mount, home and working directory is `directory`.
    fn over(directory: &Path) -> Self {
        Self::spawn(&arguments(directory, Mode::Script).to_args())
    }

    fn greeted(directory: &Path) -> Self {
        let mut agent = Self::over(directory);
        agent.greet(rules(directory));
        agent
    }

    /// `hello` and `configure`.
    fn greet(&mut self, rules: Configure) -> HelloReply {
        let reply = self.call(hello()).unwrap();
        self.call(rules).unwrap();
        reply
    }

    fn raw(&mut self, bytes: &[u8]) {
        // Credit for what was read after the end of a controller: it is not sent.
        let Some(stdin) = &self.stdin else { return };
        // An agent that has ended already is what some tests wait for.
        _ = stdin.lock().unwrap().write_all(bytes);
    }

    fn send(&mut self, request: impl Into<Request>) -> u64 {
        self.send_with(request, None)
    }

    fn send_with(&mut self, request: impl Into<Request>, stream: Option<u32>) -> u64 {
        self.last_id += 1;
        let message = ToAgent::Request { id: self.last_id, request: request.into(), stream };
        let line = message.encode().unwrap();
        self.raw(&line);
        self.last_id
    }

    fn call<C: Call>(&mut self, request: C) -> Result<C::Reply, WireError> {
        self.call_with(request, None)
    }

    fn call_with<C: Call>(
        &mut self,
        request: C,
        stream: Option<u32>,
    ) -> Result<C::Reply, WireError> {
        let id = self.send_with(request, stream);
        self.reply::<C>(id)
    }

    fn reply<C: Call>(&mut self, id: u64) -> Result<C::Reply, WireError> {
        while !self.answers.contains_key(&id) {
            assert!(self.read(), "the agent ended without an answer");
        }
        let answer = self.answers.remove(&id).unwrap();
        answer.map(|json| serde_json::from_str(&json).unwrap())
    }

    /// Reads one message; whether there was one.
    fn read(&mut self) -> bool {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        // One that ends in the middle of a line has ended.
        if !line.ends_with('\n') {
            return false;
        }
        match FromAgent::decode(line.trim_end()).unwrap() {
            FromAgent::Reply { id, result } => {
                let result = result.map(|raw| raw.get().to_owned());
                assert!(self.answers.insert(id, result).is_none(), "two answers to one request");
            }
            FromAgent::Log(log) => {
                self.assert_in_progress(log.request);
                self.notes.push(format!("log {}", log.text));
            }
            FromAgent::Case(end) => {
                self.assert_in_progress(end.request);
                self.notes.push(format!("case {} {}", end.case.name, end.case.status.as_str()));
            }
            FromAgent::Refused(refused) => {
                self.assert_in_progress(refused.request);
                let Refused { operation, path, kind, .. } = refused;
                self.notes.push(format!(
                    "refused {} {} {kind}",
                    operation.as_str(),
                    path.to_string_lossy()
                ));
            }
            FromAgent::Touched(touched) => {
                self.assert_in_progress(touched.request);
                let change = match touched.change {
                    Change::Write => "write",
                    Change::Append => "append",
                    Change::Remove => "remove",
                    Change::Failed => "failed",
                };
                self.notes.push(format!("{change} {}", touched.path.to_string_lossy()));
            }
            FromAgent::Page(page) => {
                self.assert_in_progress(page.request);
                self.entries.entry(page.request).or_default().extend(page.entries);
            }
            FromAgent::Chunk(chunk) => {
                let (window, content) = self.received.get_mut(&chunk.stream).expect("a stream");
                window.receive(&chunk).unwrap();
                let credit = window.consumed(chunk.data.0.len() as u64);
                content.extend_from_slice(&chunk.data.0);
                // Late credit for a stream that has ended is harmless.
                let line = ToAgent::Credit(credit).encode().unwrap();
                self.raw(&line);
            }
            FromAgent::Credit(credit) => {
                self.sending.get_mut(&credit.stream).expect("a stream").grant(&credit).unwrap();
            }
            FromAgent::Connect(Connect { tunnel, host, port }) => {
                self.notes.push(format!("connect {host}:{port}"));
                if host == UNANSWERED {
                    return true;
                }
                let message = format!("not {host}");
                let closed = Closed { tunnel, reason: ClosedReason::Refused, message };
                self.raw(&ToAgent::Closed(closed).encode().unwrap());
            }
            FromAgent::Close(_) => self.notes.push("close".to_owned()),
            FromAgent::Started(Started { request, pid }) => {
                self.assert_in_progress(request);
                self.notes.push(format!("started {request}"));
                assert!(self.pids.insert(request, pid).is_none(), "it was started twice");
            }
            FromAgent::Exited(Exited { request, end, .. }) => {
                self.assert_in_progress(request);
                assert!(self.pids.contains_key(&request), "it was not started");
                self.notes.push(format!("exited {request} {end:?}"));
            }
            FromAgent::Call(HostCall { request, call, name, arguments, .. }) => {
                self.assert_in_progress(request);
                self.notes.push(format!("call {name}"));
                if name != UNANSWERED {
                    let end = CallEnd::Value(serde_json::from_str(arguments.get()).unwrap());
                    let data = Base64(b"picture".to_vec());
                    let file = CallFile { name, mime_type: "image/png".to_owned(), data };
                    self.send(CallResult { request, call, end, files: vec![file] });
                }
            }
            FromAgent::Watched(Watched { request }) => {
                self.assert_in_progress(request);
                self.notes.push(format!("watched {request}"));
            }
            FromAgent::Changes(Changes { request, omitted, entries }) => {
                self.assert_in_progress(request);
                assert_eq!(omitted, 0);
                let words = entries.iter().map(|it| format!("{} {}", it.change.as_str(), it.name));
                self.notes.extend(words);
            }
        }
        true
    }

    fn assert_in_progress(&self, request: u64) {
        assert!((1..=self.last_id).contains(&request) && !self.answers.contains_key(&request));
    }

    fn run(&mut self, source: &str) -> Result<RunReply, WireError> {
        self.call(script(source, LONG))
    }

    /// Waits for the process; what it still said, and what it said on stderr.
    fn wait(mut self) -> (ExitStatus, String) {
        while self.read() {}
        let mut complaint = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        (self.child.wait().unwrap(), complaint)
    }

    fn exit_code(self) -> i32 {
        self.wait().0.code().unwrap()
    }

    /// Closes stdin, as a controller that died does.
    fn hang_up(mut self) -> i32 {
        self.stdin = None;
        self.exit_code()
    }
}

fn io(directory: &Path) -> GuestPath {
    use std::os::unix::ffi::OsStrExt as _;
    GuestPath::new(directory.as_os_str().as_bytes()).unwrap()
}

fn arguments(directory: &Path, mode: Mode) -> AgentArgs {
    let path = io(directory);
    AgentArgs {
        mode,
        user: None,
        mounts: vec![Mount { path: path.clone(), access: Access::Write }],
        hidden: Vec::new(),
        home: Some(path.clone()),
        workdir: Some(path),
        confinement: ConfinementPolicy::Required,
        proxy: None,
        disk: DiskSpace::default(),
    }
}

fn hello() -> Hello {
    Hello { protocol: PROTOCOL_VERSION, nonce: None }
}

fn rules(directory: &Path) -> Configure {
    Configure {
        limits: Limits {
            vm_memory_bytes: 64 << 20,
            write_bytes: 50 << 20,
            entries: 10_000,
            file_bytes: 10 << 20,
            open_handles: 64,
            log_bytes: 1 << 20,
            log_lines: 10_000,
            result_bytes: 1 << 20,
            list_entries: 10_000,
            list_depth: 10,
            operation_timeout_ms: LONG,
            output_bytes: 1 << 30,
            collected_bytes: 1_000_000,
            disk_reserve_bytes: 0,
            cpu_seconds: None,
        },
        policy: Policy {
            io: true,
            io_errors: IoErrors::Raise,
            allowed_paths: vec![AllowedPath {
                path: io(directory).to_string(),
                access: Access::Write,
            }],
            protected: Vec::new(),
            files: FileScope::Io,
        },
        ca: None,
    }
}

fn script(source: &str, timeout_ms: u64) -> Run {
    Run {
        source: source.to_owned(),
        args: serde_json::Map::new(),
        secrets: Vec::new(),
        timeout_ms,
        seed: None,
        now: None,
        tools: false,
    }
}

fn returned(reply: RunReply) -> String {
    match reply.end {
        RunEnd::Returned(value) => value.get().to_owned(),
        RunEnd::Failed(error) => panic!("{error:?}"),
    }
}

fn failed(reply: RunReply) -> ScriptError {
    match reply.end {
        RunEnd::Returned(value) => panic!("{value}"),
        RunEnd::Failed(error) => error,
    }
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Puts a filter over the agent, as its parent may: a call fails with an errno if a rule matches,
/// or without rules always.
#[expect(unsafe_code, reason = "only between fork and exec can the filter be the agent's alone")]
fn refuse(agent: &mut Command, call: libc::c_long, rules: Vec<SeccompRule>, errno: libc::c_int) {
    let filter = seccompiler::SeccompFilter::new(
        BTreeMap::from([(call, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program = BpfProgram::try_from(filter.unwrap()).unwrap();
    // SAFETY: two system calls, and no memory is allocated where they succeed.
    unsafe {
        agent.pre_exec(move || {
            seccompiler::apply_filter(&program).map_err(|_| io::Error::last_os_error())
        });
    }
}

/// An agent over `directory` that is refused a call.
fn refused(
    directory: &Path,
    confinement: ConfinementPolicy,
    call: libc::c_long,
    errno: libc::c_int,
) -> Agent {
    let args = AgentArgs { confinement, ..arguments(directory, Mode::Script) };
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-agent"));
    command.args(args.to_args());
    refuse(&mut command, call, Vec::new(), errno);
    Agent::start(&mut command)
}

/// The calls that put a layer in force.
const LAYERS: [libc::c_long; 3] =
    [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self, libc::SYS_seccomp];

#[test]
fn an_agent_that_is_refused_a_layer_ends_before_it_reads_a_byte() {
    let directory = temporary();
    for call in LAYERS {
        let mut agent = refused(directory.path(), ConfinementPolicy::Required, call, libc::EPERM);
        agent.send(hello());
        assert!(!agent.read(), "it answered");
        let (status, complaint) = agent.wait();
        assert_eq!(status.code(), Some(EXIT_UNCONFINED), "{complaint}");
        assert!(complaint.contains("cannot confine the agent"), "{complaint}");
    }
}

#[test]
fn agent_with_the_wrong_user_exits_before_it_reads_a_byte() {
    let directory = temporary();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (uid, gid) in [(uid + 1, gid), (uid, gid + 1)] {
        // Nor does it where a layer could be missing: identity is not a layer.
        for confinement in ConfinementPolicy::ALL {
            let user = Some(User::new(uid, gid).unwrap());
            let args = AgentArgs { user, confinement, ..arguments(directory.path(), Mode::Script) };
            let mut agent = Agent::spawn(&args.to_args());
            agent.send(hello());
            assert!(!agent.read(), "it answered");
            let (status, complaint) = agent.wait();
            assert_eq!(status.code(), Some(2), "{complaint}");
            assert!(
                complaint.contains(&format!("should run as {uid}:{gid}, but runs as")),
                "{complaint}"
            );
        }
    }
}

#[test]
fn agent_with_a_mount_inside_its_mounts_names_it_and_reads_nothing() {
    let directory = temporary();
    fs::create_dir(directory.path().join("in side")).unwrap();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = "mount -t tmpfs none \"$1\" && shift && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(directory.path().join("in side"));
    command.arg(env!("CARGO_BIN_EXE_sandbox-agent"));
    command.args(arguments(directory.path(), Mode::Script).to_args());
    let mut agent = Agent::start(&mut command);
    agent.send(hello());
    assert!(!agent.read(), "it answered");
    let (status, complaint) = agent.wait();
    assert_eq!(status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("in side, inside /"), "{complaint}");
}

#[test]
fn by_best_effort_an_agent_goes_on_and_says_which_layer_it_was_refused() {
    let directory = temporary();
    for call in LAYERS {
        let mut agent = refused(directory.path(), ConfinementPolicy::BestEffort, call, libc::EPERM);
        let confinement = agent.greet(rules(directory.path())).confinement;
        let has_filter = call != libc::SYS_seccomp;
        assert_eq!(confinement.seccomp, has_filter, "{confinement:?}");
        assert_eq!(confinement.landlock_abi.is_some(), !has_filter, "{confinement:?}");
        assert_eq!(confinement.missing.len(), 1, "{confinement:?}");
        assert_eq!(returned(agent.run("return 1").unwrap()), "1");
    }
}

#[test]
fn a_kernel_without_landlock_is_reported_and_not_refused() {
    let directory = temporary();
    let call = libc::SYS_landlock_create_ruleset;
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let mut agent = refused(directory.path(), ConfinementPolicy::Required, call, errno);
        let confinement = agent.call(hello()).unwrap().confinement;
        assert!(confinement.seccomp && confinement.landlock_abi.is_none(), "{confinement:?}");
        assert!(confinement.missing[0].contains("Landlock"), "{confinement:?}");
    }
}

#[test]
fn a_session_is_hello_runs_and_shutdown() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let reply = agent.greet(rules(directory.path()));
    assert_eq!(reply.protocol, PROTOCOL_VERSION);
    assert!(reply.confinement.no_new_privileges && reply.confinement.undumpable);
    // The kernel of the tests has all of it.
    assert!(reply.confinement.seccomp && reply.confinement.landlock_abi >= Some(2));
    assert_eq!(reply.confinement.missing, [""; 0]);
    let metadata = fs::metadata(directory.path()).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((reply.mounts[0].dev, reply.mounts[0].ino), (metadata.dev(), metadata.ino()));
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(reply.boot_id, boot_id.trim());
    for _ in 0..3 {
        let reply = agent.run("print('hello') return 1").unwrap();
        assert!(reply.usage.peak_memory_bytes > 0);
        assert_eq!(returned(reply), "1");
    }
    assert_eq!(agent.notes, ["log hello"; 3]);
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn nothing_runs_before_hello_and_configure() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let refused = |error: WireError, why: &str| {
        assert_eq!((error.kind(), &*error.message), (ErrorKind::InvalidRequest, why));
    };
    refused(agent.run("return 1").unwrap_err(), "'hello' comes first");
    refused(agent.call(rules(directory.path())).unwrap_err(), "'hello' comes first");
    assert!(!agent.call(Cancel { id: 7, at_once: false }).unwrap().found);
    agent.call(hello()).unwrap();
    refused(agent.run("return 1").unwrap_err(), "'configure' comes first");
    agent.call(rules(directory.path())).unwrap();
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
    // A second configuration cannot widen the first.
    refused(agent.call(rules(directory.path())).unwrap_err(), "'configure' comes once");
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
    assert_eq!(agent.hang_up(), LOST);
}

#[test]
fn the_end_of_stdin_ends_the_agent_whatever_it_does() {
    let directory = temporary();
    assert_eq!(Agent::over(directory.path()).hang_up(), LOST);
    assert_eq!(Agent::greeted(directory.path()).hang_up(), LOST);
    let mut agent = Agent::greeted(directory.path());
    agent.send(script("while true do end", LONG));
    assert_eq!(agent.hang_up(), LOST);
    let mut agent = Agent::greeted(directory.path());
    agent.raw(b"{\"jsonrpc\":");
    assert_eq!(agent.hang_up(), LOST);
}

#[test]
fn another_version_gets_a_hint() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let error = agent.call(Hello { protocol: 99, ..hello() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Image);
    assert!(error.message.contains("sandboxctl image build"), "{error}");
    // Also where nothing else of the params can be read.
    let hello = |id: u64, version: u32| {
        let params = format!("{{\"protocol\":{version},\"new\":1}}");
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"hello\",\"params\":{params}}}\n")
    };
    agent.raw(hello(50, PROTOCOL_VERSION + 1).as_bytes());
    assert_eq!(agent.reply::<Hello>(50).unwrap_err().kind(), ErrorKind::Image);
    agent.raw(hello(51, PROTOCOL_VERSION).as_bytes());
    assert_eq!(agent.reply::<Hello>(51).unwrap_err().kind(), ErrorKind::InvalidRequest);
    assert_eq!(agent.run("return 1").unwrap_err().kind(), ErrorKind::InvalidRequest);
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn malformed_params_are_answered_and_malformed_envelopes_end_the_agent() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    agent.raw(b"{\"jsonrpc\":\"2.0\",\"id\":50,\"method\":\"run\",\"params\":{\"source\":1}}\n");
    assert_eq!(agent.reply::<Run>(50).unwrap_err().kind(), ErrorKind::InvalidRequest);
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");

    let deep = format!("{}\n", "[".repeat(100));
    let long = "x".repeat(MAX_FRAME_BYTES + 1);
    for garbage in [
        "hello\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nothing\",\"params\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"shutdown\",\"params\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"credit\",\"params\":{\"stream\":1}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"chunk\",\"params\":{\"stream\":1,\"seq\":0,\"data\":\"?\",\"last\":true}}\n",
        "\u{0}\n",
        &deep,
        &long,
    ] {
        let mut agent = Agent::greeted(directory.path());
        agent.raw(garbage.as_bytes());
        let (status, complaint) = agent.wait();
        assert_eq!(status.code(), Some(PROTOCOL), "{}", &garbage[..garbage.len().min(80)]);
        assert!(complaint.starts_with("sandbox-agent: "), "{complaint}");
    }
}

#[test]
fn a_second_run_is_busy_and_the_first_goes_on() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let first = agent.send(script("while true do end", LONG));
    assert_eq!(agent.run("return 2").unwrap_err().kind(), ErrorKind::Busy);
    assert!(!agent.call(Cancel { id: first + 100, at_once: false }).unwrap().found);
    assert!(agent.call(Cancel { id: first, at_once: false }).unwrap().found);
    let error = failed(agent.reply::<Run>(first).unwrap());
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert!(!agent.call(Cancel { id: first, at_once: false }).unwrap().found);
    assert_eq!(returned(agent.run("return 3").unwrap()), "3");
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn a_run_right_after_an_answer_is_never_busy() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    for _ in 0..200 {
        assert_eq!(returned(agent.run("return 1").unwrap()), "1");
    }
}

#[test]
fn a_deadline_ends_a_run_and_not_the_session() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let error = failed(agent.call(script("while true do end", 20)).unwrap());
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
}

/// C code that no interrupt reaches: a plain search that compares megabytes at every position.
const STUCK: &str = "string.find(('a'):rep(4000000), ('a'):rep(2000000) .. 'b', 1, true)";

/// Runs a script that gets stuck until the agent exits: its reply, and its directory.
fn given_up(source: &str) -> (tempfile::TempDir, RunReply) {
    // On a busy machine the deadline may come before the search begins, and the interrupt sees
    // it; then the session goes on, and it all begins again with more time.
    for time in [200, 1000, 5000, 25_000] {
        let directory = temporary();
        let mut agent = Agent::greeted(directory.path());
        let reply = agent.call(script(source, time)).unwrap();
        let next = agent.send(script("return 1", LONG));
        while agent.read() && !agent.answers.contains_key(&next) {}
        match agent.answers.remove(&next) {
            Some(Ok(_)) => continue,
            Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::Busy),
            None => {}
        }
        assert_eq!(agent.exit_code(), DONE);
        return (directory, reply);
    }
    panic!("no script was ever stuck");
}

#[test]
fn a_stuck_script_ends_the_agent_after_its_reply() {
    let (_, reply) = given_up(STUCK);
    assert_eq!(failed(reply).kind, ErrorKind::Timeout);
}

#[test]
fn stuck_scripts_writes_are_in_its_file() {
    let source = format!("local f = io.open('out', 'w') f:write('kept') {STUCK}");
    let (directory, reply) = given_up(&source);
    assert_eq!(reply.usage.written_bytes, 4);
    assert_eq!(fs::read_to_string(directory.path().join("out")).unwrap(), "kept");
}

#[test]
fn announcements_and_log_entries_come_in_the_order_of_the_script() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let source = "print('a') io.open('f', 'w'):write('x'):close() print('b') os.remove('f')";
    assert_eq!(returned(agent.run(source).unwrap()), "null");
    let file = directory.path().join("f").display().to_string();
    let expected =
        ["log a".into(), format!("write {file}"), "log b".into(), format!("remove {file}")];
    assert_eq!(agent.notes, expected);
    // Each run has its own announcements, and its own budget.
    agent.notes.clear();
    let reply = agent.run("io.open('f', 'w'):write('x'):close()").unwrap();
    assert_eq!(reply.usage.written_bytes, 1);
    assert_eq!(agent.notes, [format!("write {file}")]);
}

#[test]
fn each_rule_that_denies_a_path_is_reported_once() {
    let (directory, inputs) = (temporary(), temporary());
    fs::create_dir_all(directory.path().join("hidden")).unwrap();
    fs::create_dir_all(directory.path().join("tree/.git/hooks")).unwrap();
    std::os::unix::fs::symlink("/etc", directory.path().join("link")).unwrap();
    mkfifoat(CWD, directory.path().join("fifo"), 0o600.into()).unwrap();
    fs::write(inputs.path().join("in"), "x").unwrap();
    let mut args = arguments(directory.path(), Mode::Script);
    args.mounts.push(Mount { path: io(inputs.path()), access: Access::Read });
    let mut agent = Agent::spawn(&args.to_args());
    let mut rules = rules(directory.path());
    rules.policy.io_errors = IoErrors::Return;
    let at = |path: &str, access| AllowedPath { path: path.to_owned(), access };
    let (home, input) = (io(directory.path()).to_string(), io(inputs.path()).to_string());
    rules.policy.allowed_paths = vec![
        at(&format!("{home}/tree"), Access::Write),
        at(&format!("{home}/link"), Access::Write),
        at(&format!("{home}/fifo"), Access::Write),
        at(&input, Access::Write),
    ];
    rules.policy.protected = vec![".git/hooks".to_owned()];
    agent.greet(rules);
    let source = format!(
        "local input = '{input}/in'
        for _ = 1, 2 do
            for _, act in {{
                function() io.open('hidden/f') end,
                function() io.open('./hidden//f', 'r+') end,
                function() io.open(input, 'a') end,
                function() io.lines('../x') end,
                function() io.list('link') end,
                function() os.remove('tree/.git/hooks/x') end,
                function() os.rename('tree/x', 'hidden/x') end,
                function() fs.read('link/passwd') end,
                function() fs.write('fifo', 'x') end,
                function() fs.list('/etc') end,
                function() fs.mkdir('tree/.git/hooks/x') end,
                function() fs.remove('tree', {{recursive = true}}) end,
                function() fs.exists('hidden') end,
                function() fs.stat('~/hidden') end,
                function() io.open('tree/none') fs.read('tree') end,
                function() io.open(input):write('x') end,
            }} do pcall(act) end
        end"
    );
    assert_eq!(returned(agent.run(&source).unwrap()), "null");
    let expected = [
        format!("refused read {home}/hidden/f not_allowed"),
        format!("refused write {home}/hidden/f not_allowed"),
        format!("refused write {input}/in read_only"),
        "refused read ../x path_escape".to_owned(),
        format!("refused list {home}/link symlink"),
        format!("refused remove {home}/tree/.git/hooks/x protected"),
        format!("refused rename {home}/hidden/x not_allowed"),
        format!("refused read {home}/link/passwd symlink"),
        format!("refused write {home}/fifo special_file"),
        "refused list /etc path_escape".to_owned(),
        format!("refused mkdir {home}/tree/.git/hooks/x protected"),
        format!("refused remove {home}/tree/.git/hooks protected"),
        format!("refused exists {home}/hidden not_allowed"),
        format!("refused stat {home}/hidden not_allowed"),
    ];
    assert_eq!(agent.notes, expected);
    // The next run is notified of its own refusals; a refusal of the controller's operation is only
    // in its reply.
    agent.notes.clear();
    agent.run("pcall(io.open, 'hidden/f')").unwrap();
    assert_eq!(agent.notes, expected[..1]);
    let stat = sandbox_protocol::message::Stat::new("hidden");
    assert_eq!(agent.call(stat).unwrap_err().kind(), ErrorKind::NotAllowed);
    assert_eq!(agent.notes.len(), 1);
}

#[test]
fn without_io_a_script_has_no_files() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let mut rules = rules(directory.path());
    rules.policy.io = false;
    agent.greet(rules);
    assert_eq!(returned(agent.run("return io == nil").unwrap()), "true");
}

#[test]
fn processor_time_is_limited_by_configure_and_never_raised() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let limit = |agent: &Agent| {
        let limits = fs::read_to_string(format!("/proc/{}/limits", agent.child.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max cpu time")).unwrap();
        line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ")
    };
    let before = limit(&agent);
    let mut rules = rules(directory.path());
    rules.limits.cpu_seconds = Some(7);
    agent.greet(rules);
    assert_ne!(before, "7 7");
    assert_eq!(limit(&agent), "7 7");
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
}

#[test]
fn shutdown_ends_a_run_first_and_answers_both() {
    for source in ["while true do end", STUCK] {
        let directory = temporary();
        let mut agent = Agent::greeted(directory.path());
        let run = agent.send(script(source, LONG));
        let shutdown = agent.send(Shutdown {});
        // A controller may hang up right away.
        agent.stdin = None;
        let error = failed(agent.reply::<Run>(run).unwrap());
        assert_eq!(error.kind, ErrorKind::Cancelled);
        agent.reply::<Shutdown>(shutdown).unwrap();
        assert_eq!(agent.exit_code(), DONE);
    }
}

#[test]
fn agent_without_heartbeats_ends_itself_and_one_with_them_serves_on() {
    let directory = temporary();
    let mut alive = Agent::greeted(directory.path());
    let command = arguments(directory.path(), Mode::Script).to_args();
    // The script below keeps a processor busy for 15 s: other tests go first.
    let agent = ["-n", "19", env!("CARGO_BIN_EXE_sandbox-agent")];
    let mut silent = Agent::silent(Command::new("nice").args(agent).args(command));
    silent.greet(rules(directory.path()));
    // The end of its stdin never comes, and a script keeps it busy.
    silent.send(script("print('begun') while true do end", LONG));
    let (status, complaint) = silent.wait();
    assert_eq!(status.code(), Some(LOST));
    assert!(complaint.contains("the controller has sent nothing for 15s"), "{complaint}");
    assert_eq!(returned(alive.run("return 1").unwrap()), "1");
}

#[test]
fn agent_that_gets_any_byte_within_its_time_serves_on() {
    let directory = temporary();
    let silent = || {
        let command = arguments(directory.path(), Mode::Script).to_args();
        let mut agent =
            Agent::silent(Command::new(env!("CARGO_BIN_EXE_sandbox-agent")).args(command));
        agent.greet(rules(directory.path()));
        agent
    };
    let mut slow = silent();
    let request =
        ToAgent::Request { id: 3, request: script("return 1", LONG).into(), stream: None };
    let line = request.encode().unwrap();
    let mut bytes = line.iter();
    let mut send = |agent: &mut Agent| agent.raw(&[*bytes.next().expect("the line is long")]);
    send(&mut slow);
    std::thread::sleep(HEARTBEAT_INTERVAL);
    // Its last complete message is no later than the other agent's.
    let mut unheard = silent();
    while unheard.child.try_wait().unwrap().is_none() {
        send(&mut slow);
        std::thread::sleep(HEARTBEAT_INTERVAL);
    }
    slow.last_id = 3;
    slow.raw(bytes.as_slice());
    assert_eq!(returned(slow.reply::<Run>(3).unwrap()), "1");
}

#[test]
fn requests_in_one_piece_are_answered_in_order() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let requests =
        [Request::from(hello()), Cancel { id: 77, at_once: false }.into(), Shutdown {}.into()];
    let mut lines = Vec::new();
    for (request, id) in requests.into_iter().zip(1..) {
        lines.extend(ToAgent::Request { id, request, stream: None }.encode().unwrap());
    }
    agent.raw(&lines);
    agent.reply::<Hello>(1).unwrap();
    assert!(agent.answers.is_empty());
    agent.reply::<Cancel>(2).unwrap();
    agent.reply::<Shutdown>(3).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn a_controller_that_reads_no_answers_does_not_fill_the_agents_memory() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let request = ToAgent::Request { id: 1, request: hello().into(), stream: None };
    let mut line = request.encode().unwrap();
    line = line.repeat(64);
    // The agent ends by itself, long before this is over.
    let stdin = agent.stdin.take().unwrap();
    while stdin.lock().unwrap().write_all(&line).is_ok() {}
    assert_eq!(agent.child.wait().unwrap().code(), Some(PROTOCOL));
}

/// What we build outside of the VM, from what is in it, is within the VM's limit too.
#[test]
fn a_script_cannot_make_the_agent_take_more_than_twice_the_vms_memory() {
    let caught = "[false,\"not enough memory\"]";
    for (source, end) in [
        // A control character takes six bytes.
        (r"return pcall(json.encode, string.rep('\0', 28e6))", Ok(caught)),
        (r"return pcall(json.encode, {[string.rep('\0', 28e6)] = 1})", Ok(caught)),
        // The same long keys at every depth, held while the first of them is written.
        (
            "local keys, t = {}, {} for i = 1, 20 do keys[i] = i .. string.rep('k', 1e6) end \
             table.sort(keys) \
             for depth = 1, 50 do local u = {} for i, k in keys do u[k] = 1 end u[keys[1]] = t t = u end \
             return pcall(json.encode, t)",
            Ok(caught),
        ),
        // Errors of bytes that are no text, which take three each once they are.
        (r"error(string.rep('\255', 6e7), 0)", Err("\u{fffd}\u{fffd}")),
        (
            r"error(setmetatable({}, {__tostring = function() return string.rep('\255', 6e7) end}))",
            Err("\u{fffd}\u{fffd}"),
        ),
        (
            r"error(setmetatable({}, {__tostring = function() error(string.rep('\255', 6e7), 0) end}))",
            Err("(error object is a table value)"),
        ),
    ] {
        let directory = temporary();
        let mut agent = Agent::greeted(directory.path());
        let reply = agent.run(source).unwrap();
        let (peak, limit) =
            (reply.usage.peak_memory_bytes, rules(directory.path()).limits.vm_memory_bytes);
        assert!((1..=2 * limit).contains(&peak), "{peak}: {source}");
        match end {
            Ok(json) => assert_eq!(returned(reply), json, "{source}"),
            Err(message) => {
                let error = failed(reply);
                assert_eq!(error.kind, ErrorKind::Runtime, "{source}");
                assert!(error.message.starts_with(message), "{source}");
                assert!(error.message.len() <= MAX_MESSAGE_BYTES, "{source}");
            }
        }
    }
}

#[test]
fn requests_beyond_what_may_be_in_flight_are_busy_but_never_lost() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let count = 4 * MAX_IN_FLIGHT;
    let ids: Vec<u64> = (0..count).map(|_| agent.send(hello())).collect();
    for id in ids {
        match agent.reply::<Hello>(id) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
        }
    }
}

#[test]
fn the_nonce_proves_a_shared_directory() {
    let directory = temporary();
    fs::write(directory.path().join(".nonce-1"), "4711").unwrap();
    let mut agent = Agent::greeted(directory.path());
    let with = |name: &str| Hello { nonce: Some(name.to_owned()), ..hello() };
    assert_eq!(agent.call(with(".nonce-1")).unwrap().nonce.as_deref(), Some("4711"));
    assert!(!directory.path().join(".nonce-1").exists());
    assert_eq!(agent.call(with(".nonce-1")).unwrap().nonce, None);
    assert_eq!(agent.call(with("../x")).unwrap().nonce, None);
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
}

#[test]
fn source_that_is_not_text_is_answered_with_an_error() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let error = failed(agent.run(&" ".repeat(MAX_SOURCE_BYTES + 1)).unwrap());
    assert_eq!(error.kind, ErrorKind::SourceTooLarge);
    for source in ["\u{3}bytecode", "a\0b"] {
        assert_eq!(failed(agent.run(source).unwrap()).kind, ErrorKind::Syntax);
    }
}

#[test]
fn args_beyond_the_limits_are_refused() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let mut run = script("return 1", LONG);
    run.args.insert("text".into(), "x".repeat(1 << 20).into());
    assert_eq!(agent.call(run).unwrap_err().kind(), ErrorKind::InvalidRequest);
    let mut run = script("return 1", LONG);
    let nested = (0..58).fold(serde_json::Value::Null, |inner, _| vec![inner].into());
    run.args.insert("deep".into(), nested);
    assert_eq!(agent.call(run).unwrap_err().kind(), ErrorKind::InvalidRequest);
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
}

#[test]
fn an_invalid_path_in_the_policy_is_refused() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    agent.call(hello()).unwrap();
    let mut bad = rules(directory.path());
    bad.policy.allowed_paths[0].path = "/io/../etc".into();
    assert_eq!(agent.call(bad).unwrap_err().kind(), ErrorKind::InvalidRequest);
    assert_eq!(agent.run("return 1").unwrap_err().kind(), ErrorKind::InvalidRequest);
}

#[test]
fn an_agent_that_cannot_begin_says_why_and_reads_nothing() {
    let directory = temporary();
    let missing = arguments(&directory.path().join("missing"), Mode::Script);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    for (args, why) in [
        (vec![], "the first argument is the mode"),
        (vec!["--help".to_owned()], "the first argument is the mode"),
        (missing.to_args(), "cannot open the mount"),
        (arguments(&link, Mode::Script).to_args(), "cannot open the mount"),
    ] {
        let (status, complaint) = Agent::spawn(&args).wait();
        assert_eq!(status.code(), Some(START));
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn a_descriptor_that_was_inherited_is_closed() {
    let directory = temporary();
    let fifo = directory.path().join("fifo");
    mkfifoat(CWD, &fifo, 0o600.into()).unwrap();
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&fifo)
        .unwrap();
    let mut agent = Agent::start(
        Command::new("sh")
            .args(["-c", "exec 7>\"$0\" 9</dev/null; exec \"$@\""])
            .arg(&fifo)
            .arg(env!("CARGO_BIN_EXE_sandbox-agent"))
            .args(arguments(directory.path(), Mode::Script).to_args()),
    );
    agent.greet(rules(directory.path()));
    // The end of the file, and not "would block": no writer has it open any more.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    match fs::read_dir(format!("/proc/{}/fd", agent.child.id())) {
        Ok(open) => {
            assert_eq!(open.count(), 6, "three streams, a mount, its own status, its timer")
        }
        // The agent is undumpable: its descriptors are root's to see.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
    }
}

#[test]
fn a_file_over_the_systems_limit_is_an_error_of_the_script() {
    let directory = temporary();
    let mut agent = Agent::start(
        Command::new("sh")
            .args(["-c", "ulimit -f 1; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_sandbox-agent"))
            .args(arguments(directory.path(), Mode::Script).to_args()),
    );
    agent.greet(rules(directory.path()));
    let error = failed(agent.run("io.open('f', 'w'):write(('x'):rep(1e6)):close()").unwrap());
    assert!(error.message.ends_with("f: File too large"), "{error:?}");
    assert_eq!(returned(agent.run("return 1").unwrap()), "1");
}

fn check(script: &[u8]) -> Option<ScriptError> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sandbox-agent"))
        .arg("check")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The agent stops reading after the longest script.
    _ = child.stdin.take().unwrap().write_all(script);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(DONE));
    serde_json::from_slice::<CheckReply>(&output.stdout).unwrap().error
}

#[test]
fn check_says_whether_a_script_compiles() {
    assert_eq!(check(b"return 1"), None);
    assert_eq!(check(b"#!/usr/bin/env sandboxctl run\nreturn 1"), None);
    for (script, kind, line) in [
        (&b"a\n\xff"[..], ErrorKind::Syntax, Some(2)),
        (b"\x06\x03", ErrorKind::Syntax, Some(1)),
        (&vec![b' '; MAX_SOURCE_BYTES + 100], ErrorKind::SourceTooLarge, None),
        (&"é".repeat(MAX_SOURCE_BYTES).into_bytes(), ErrorKind::SourceTooLarge, None),
    ] {
        let error = check(script).unwrap();
        assert_eq!((error.kind, error.line), (kind, line), "{error:?}");
    }
}

#[test]
fn calls_of_the_host_are_answered_and_end_with_their_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut agent = Agent::greeted(directory.path());
    let with_tools = |source: &str| Run { tools: true, ..script(source, LONG) };
    let source = "local value, files = tools.a.b { x = { 1 } } return value, #files";
    let reply = agent.call(with_tools(source)).unwrap();
    assert_eq!(returned(reply), r#"[{"x":[1]},1]"#);
    let file = directory.path().join("tool-files/a.b");
    assert_eq!(fs::read(&file).unwrap(), b"picture");
    assert!(agent.notes.iter().any(|note| note.starts_with("write ")), "{:?}", agent.notes);

    let id = agent.send(with_tools("tools.never.example()"));
    while !agent.notes.iter().any(|note| *note == format!("call {UNANSWERED}")) {
        assert!(agent.read());
    }
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    let reply = agent.reply::<Run>(id).unwrap();
    assert_eq!(failed(reply).kind, ErrorKind::Cancelled);
    // A result that comes too late is dropped.
    let late =
        CallResult { request: id, call: 1, end: CallEnd::Value(1.into()), files: Vec::new() };
    assert!(!agent.call(late).unwrap().found);
    let reply = agent.call(script("return tools", LONG)).unwrap();
    assert_eq!(returned(reply), "null");
}
