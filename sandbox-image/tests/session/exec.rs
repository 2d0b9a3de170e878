//! Programs over the wire, and from scripts: their environment, their outcome, and that nothing of
//! them is left.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use sandbox_protocol::WireString;
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_COMMAND_BYTES, MAX_IN_FLIGHT};
use sandbox_protocol::message::{
    Command, Credit, Exec, ExecEnd, ExecReply, ExecStop, Program, Sign, SignalName, UnixSockets,
    Variable,
};

use super::*;

/// What a program wrote, and its answer.
pub(super) struct Ran {
    pub(super) reply: ExecReply,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

pub(super) fn program(name: &str, args: &[&str]) -> Command {
    let args = args.iter().map(WireString::new).collect();
    Command::Program(Program { program: WireString::new(name), args })
}

pub(super) fn shell(line: &str) -> Command {
    Command::Shell(WireString::new(line))
}

/// A folder outside of `/tmp`, where programs may always write.
pub(super) fn elsewhere() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

impl Agent {
    /// An agent that runs programs.
    pub(super) fn with_programs(directory: &Path) -> Self {
        Self::with_programs_and(directory, |_| {})
    }

    pub(super) fn with_programs_and(directory: &Path, change: impl FnOnce(&mut Limits)) -> Self {
        let mut agent = Self::spawn(&arguments(directory, Mode::Exec).to_args());
        let mut rules = rules(directory);
        change(&mut rules.limits);
        agent.greet(rules);
        agent
    }

    /// One whose programs have a network.
    fn with_proxy(directory: &Path) -> Self {
        let args = AgentArgs { proxy: Some(0), ..arguments(directory, Mode::Exec) };
        let mut agent = Self::spawn(&args.to_args());
        agent.greet(rules(directory));
        agent
    }

    /// A request for a program, and its two streams.
    pub(super) fn request(&mut self, command: Command) -> Exec {
        let stdout = u32::try_from(self.last_id).unwrap() * 10 + 1000;
        for stream in [stdout, stdout + 1] {
            self.received.insert(stream, (ReceiveWindow::new(stream), Vec::new()));
        }
        Exec {
            command,
            cwd: None,
            env: Vec::new(),
            secrets: Vec::new(),
            stdin: None,
            stdout,
            stderr: Some(stdout + 1),
            pty: None,
            kept: false,
            timeout_ms: Some(LONG),
            // At once; who has a grace says so.
            grace_ms: 0,
            stop_signal: None,
        }
    }

    pub(super) fn begun(&mut self, command: Command) -> (u64, Exec) {
        let exec = self.request(command);
        (self.send(exec.clone()), exec)
    }

    pub(super) fn finish(&mut self, id: u64, exec: &Exec) -> Result<Ran, WireError> {
        let answer = self.reply::<Exec>(id);
        let mut take = |stream| {
            let (window, content) = self.received.remove(&stream).unwrap();
            assert_eq!(window.is_ended(), answer.is_ok(), "a last chunk comes before the answer");
            content
        };
        let (stdout, stderr) = (take(exec.stdout), exec.stderr.map(&mut take).unwrap_or_default());
        answer.map(|reply| {
            assert_eq!(reply.stdout_bytes, stdout.len() as u64);
            assert_eq!(reply.stderr_bytes, stderr.len() as u64);
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ran { reply, stdout: text(stdout), stderr: text(stderr) }
        })
    }

    pub(super) fn exec(&mut self, exec: &Exec) -> Result<Ran, WireError> {
        let id = self.send(exec.clone());
        self.finish(id, exec)
    }

    pub(super) fn ran(&mut self, command: Command) -> Result<Ran, WireError> {
        let exec = self.request(command);
        self.exec(&exec)
    }

    /// Runs a line of the shell's until its time is up; again with more of that if it has not printed `begun` by then,
    /// on a busy machine.
    fn timed_out(&mut self, line: &str, begun: &str, grace_ms: u64) -> Ran {
        let ran = [1_000, 10_000, LONG].into_iter().find_map(|time| {
            let exec = Exec { timeout_ms: Some(time), grace_ms, ..self.request(shell(line)) };
            let ran = self.exec(&exec).unwrap();
            ran.stdout.contains(begun).then_some(ran)
        });
        ran.expect("it begins in its time")
    }

    /// What a line of the shell's writes, which ends well.
    pub(super) fn says(&mut self, line: &str) -> String {
        let ran = self.ran(shell(line)).unwrap();
        assert_eq!(ran.reply.end, ExecEnd::Exited(0), "{}", ran.stderr);
        assert_eq!((ran.reply.stopped, ran.stderr.as_str()), (None, ""));
        ran.stdout
    }

    /// Reads all that may be sent on so many streams of which nothing is given back; whether nothing else came before.
    #[must_use]
    fn take_without_credit(&mut self, streams: usize) -> bool {
        let most = INITIAL_CREDIT * streams as u64;
        let mut seen = 0;
        let mut line = String::new();
        while seen < most {
            line.clear();
            self.stdout.read_line(&mut line).unwrap();
            let FromAgent::Chunk(chunk) = FromAgent::decode(line.trim_end()).unwrap() else {
                return false;
            };
            let (window, _) = self.received.get_mut(&chunk.stream).unwrap();
            window.receive(&chunk).unwrap();
            seen += chunk.data.0.len() as u64;
        }
        assert_eq!(seen, most);
        true
    }

    /// Reads until a stream has these bytes.
    pub(super) fn await_output(&mut self, stream: u32, expected: &str) {
        while !String::from_utf8_lossy(&self.received[&stream].1).contains(expected) {
            assert!(self.read(), "the agent ended");
        }
    }
}

/// Whether a process runs that has this argument.
pub(super) fn runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().any(|entry| {
        let command = fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
        command.split(|&byte| byte == 0).any(|word| word == argument.as_bytes())
    })
}

/// How long a test waits for what must happen.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until such a process runs, or until none is left.
pub(super) fn await_process(argument: &str, is_there: bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while runs(argument) != is_there {
        assert!(Instant::now() < deadline, "{argument} runs: {}", !is_there);
        std::thread::yield_now();
    }
}

/// An argument for `sleep` that no other test has.
pub(super) fn long_time(directory: &Path) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    format!("{}.{}", 100_000, RandomState::new().hash_one(directory) % 1_000_000_007)
}

#[test]
fn a_program_gets_what_was_asked_for_and_is_answered_truly() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let ran = agent.ran(program("printf", &["%s|", "a b", "", "ü"])).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a b||ü|", ""));
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(0), None));
    let ran = agent.ran(shell("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(ran.reply.end, ExecEnd::Exited(7));
    let ran = agent.ran(shell("kill -SEGV $$")).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(11), None));
    let ran = agent.ran(shell("kill -KILL $$")).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(9), None));

    let variable = |name: &str, value: &[u8]| Variable {
        name: WireString::new(name),
        value: WireString::new(value),
    };
    let exec = Exec {
        env: vec![variable("GIVEN", b"\xff\n"), variable("HOME", b"/root")],
        cwd: Some(WireString::new("/usr/bin")),
        ..agent.request(shell("pwd; echo $HOME; printf $GIVEN | od -An -tx1; echo $TMPDIR"))
    };
    let ran = agent.exec(&exec).unwrap();
    let home = directory.path().display();
    assert_eq!(ran.stdout, "/usr/bin\n/root\n ff\n/tmp\n");
    assert_eq!(agent.says("pwd; echo $HOME"), format!("{home}\n{home}\n"));
    let odd = WireString::new(b"\xfe");
    let args = vec![WireString::new("%s"), odd];
    let printf = Command::Program(Program { program: WireString::new("/usr/bin/printf"), args });
    let (id, exec) = agent.begun(printf);
    agent.reply::<Exec>(id).unwrap();
    assert_eq!(agent.received[&exec.stdout].1, b"\xfe");
    assert_eq!(agent.hang_up(), LOST);
}

#[test]
fn a_program_begins_clean() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    // The third is the listing's own.
    assert_eq!(agent.says("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
    assert_eq!(agent.says("readlink /proc/self/fd/0"), "/dev/null\n");
    assert_eq!(agent.says("umask"), "0022\n");
    let status = agent.says("cat /proc/self/status");
    for line in ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{status}");
    }
    let session = agent.says("cut -d' ' -f1,6 /proc/self/stat; echo $$");
    let words: Vec<_> = session.split_whitespace().collect();
    assert_eq!(words[1], words[2], "the shell leads the session: {session}");
    assert_eq!(agent.says("ulimit -Hc"), agent.says("ulimit -Sc"));
    // Writing to a pipe without a reader ends a program, as usual.
    assert_eq!(agent.says("yes | head -n 1"), "y\n");
}

#[test]
fn why_a_program_did_not_begin_is_named() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let file = |name: &str, content: &str, mode| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    file("plain", "#!/bin/sh\n", 0o644);
    file("headless", "echo no\n", 0o755);
    file("lost", "#!/no/such/interpreter\n", 0o755);
    file("fine", "#!/bin/sh\necho $0 $1\n", 0o755);
    fs::create_dir(directory.path().join("folder")).unwrap();
    std::os::unix::fs::symlink("nothing", directory.path().join("dangling")).unwrap();
    for (name, kind, message) in [
        ("no-such-program", ErrorKind::CommandNotFound, "'no-such-program' was not found"),
        ("", ErrorKind::CommandNotFound, "'' was not found"),
        ("/no/such/program", ErrorKind::CommandNotFound, "'/no/such/program' was not found"),
        ("./fine/below", ErrorKind::CommandNotFound, "'./fine/below' was not found"),
        ("./dangling", ErrorKind::CommandNotFound, "'./dangling' was not found"),
        ("./plain", ErrorKind::NotExecutable, "cannot execute './plain': permission denied"),
        ("./folder", ErrorKind::NotExecutable, "cannot execute './folder': it is a directory"),
        ("./headless", ErrorKind::NotExecutable, "nor a script with a '#!' line"),
        ("./lost", ErrorKind::NotExecutable, "the interpreter that it names is not there"),
    ] {
        let error = agent.ran(program(name, &[])).err().expect(name);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.message.contains(message), "{name}: {error}");
    }
    // While somebody writes to it, however often it is tried.
    let held = OpenOptions::new().append(true).open(directory.path().join("fine")).unwrap();
    let error = agent.ran(program("./fine", &[])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotExecutable, "{error}");
    drop(held);
    assert_eq!(agent.ran(program("./fine", &["x"])).unwrap().stdout, "./fine x\n");
    // Found along the path that the program itself gets, relative to where it runs.
    let path = |value: &str| {
        vec![Variable { name: WireString::new("PATH"), value: WireString::new(value) }]
    };
    let exec = Exec { env: path("/nothing:"), ..agent.request(program("fine", &[])) };
    assert_eq!(agent.exec(&exec).unwrap().stdout, "fine\n");
    let exec = Exec { env: path("/nothing:."), ..agent.request(program("plain", &[])) };
    assert_eq!(agent.exec(&exec).err().unwrap().kind(), ErrorKind::NotExecutable);
    for (cwd, kind) in [
        ("/no/such/folder", ErrorKind::NotFound),
        ("plain", ErrorKind::NotADirectory),
        ("../x", ErrorKind::PathEscape),
    ] {
        let cwd = Some(WireString::new(cwd));
        let exec = Exec { cwd, ..agent.request(program("true", &[])) };
        assert_eq!(agent.exec(&exec).err().unwrap().kind(), kind);
    }
    let huge = "x".repeat(MAX_COMMAND_BYTES);
    for args in [&["a\0b"][..], &[&huge]] {
        let error = agent.ran(program("true", args)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
    // The kernel's own bound of one argument.
    let long = "x".repeat(200_000);
    let error = agent.ran(program("true", &[&long])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    let mut scripts = Agent::greeted(directory.path());
    let error = scripts.ran(program("true", &[])).err().unwrap();
    assert!(error.message.contains("this sandbox runs scripts only"), "{error}");
}

#[test]
fn input_is_streamed_and_need_not_be_read() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let content: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    let give = |agent: &mut Agent, command| {
        let request = agent.request(command);
        let stdin = request.stdout + 2;
        agent.sending.insert(stdin, SendWindow::new(stdin));
        (Exec { stdin: Some(stdin), ..request }, stdin)
    };
    let (exec, stdin) = give(&mut agent, program("cat", &[]));
    let id = agent.send(exec.clone());
    agent.feed(id, stdin, &content, true);
    agent.reply::<Exec>(id).unwrap();
    assert!(agent.received[&exec.stdout].1 == content, "it is what was sent");
    // A program may stop reading; the rest is never requested.
    let (exec, stdin) = give(&mut agent, shell("head -c 3; exec <&-; echo; echo done"));
    let id = agent.send(exec.clone());
    agent.feed(id, stdin, b"abcdef", false);
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.reply.end), ("abc\ndone\n", ExecEnd::Exited(0)));
    let (exec, stdin) = give(&mut agent, program("wc", &["-c"]));
    let id = agent.send(exec.clone());
    agent.feed(id, stdin, b"", true);
    assert_eq!(agent.finish(id, &exec).unwrap().stdout.trim(), "0");
}

#[test]
fn at_a_timeout_the_whole_tree_is_dead_and_what_was_written_is_kept() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    // A child, a daemon that was forked twice and leads a session of its own, one that has forgotten
    // its environment, and one that listens to no signal.
    let line = format!(
        "sleep {time} & \
         (setsid sh -c 'sleep {time} & exec sleep {time}' >/dev/null 2>&1 &) ; \
         (setsid env -i sleep {time} &) ; \
         (trap '' TERM INT HUP; sleep {time} &) ; \
         echo begun; wait"
    );
    let ran = agent.timed_out(&line, "begun", 0);
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(9), Some(ExecStop::Timeout)));
    assert_eq!(ran.stdout, "begun\n");
    assert!(!runs(&time), "what was answered is over");
    assert_eq!(agent.says("echo fine"), "fine\n");
}

#[test]
fn programs_that_are_to_end_get_sigterm_first_and_what_they_do_then_is_kept() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let waits = "echo begun; while :; do sleep 0.01; done";
    let clean = format!("trap 'echo clean; exit 7' TERM; {waits}");
    // The one whose time is up.
    let ran = agent.timed_out(&clean, "begun", LONG);
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(7), Some(ExecStop::Timeout)));
    assert_eq!(ran.stdout, "begun\nclean\n");
    // The one that is cancelled, and a child that outlives its shell, which SIGTERM ends.
    let child = format!("(trap 'sleep 0.3; echo child; exit' TERM; {waits}) & wait");
    for (line, end, said) in [
        (&*clean, ExecEnd::Exited(7), "begun\nclean\n"),
        (&*child, ExecEnd::Signaled(15), "begun\nchild\n"),
    ] {
        let exec = Exec { grace_ms: LONG, ..agent.request(shell(line)) };
        let id = agent.send(exec.clone());
        agent.await_output(exec.stdout, "begun");
        assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
        let ran = agent.finish(id, &exec).unwrap();
        assert_eq!((ran.reply.end, ran.reply.stopped), (end, Some(ExecStop::Cancelled)), "{line}");
        assert_eq!(ran.stdout, said);
    }
    // The one that is asked by another signal.
    let other = format!("trap '' TERM; trap 'echo clean; exit 7' USR1; {waits}");
    let stop_signal = Some(SignalName::Usr1);
    let exec = Exec { grace_ms: LONG, stop_signal, ..agent.request(shell(&other)) };
    let id = agent.send(exec.clone());
    agent.await_output(exec.stdout, "begun");
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.reply.end, &*ran.stdout), (ExecEnd::Exited(7), "begun\nclean\n"));
    assert_eq!(agent.says("echo fine"), "fine\n");
}

#[test]
fn program_that_ignores_sigterm_is_killed_after_its_grace_or_by_a_cancel_without_one() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let deaf = "trap '' TERM; echo begun; while :; do sleep 0.01; done";
    let ran = agent.timed_out(deaf, "begun", 200);
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(9), Some(ExecStop::Timeout)));
    let exec = Exec { grace_ms: LONG, ..agent.request(shell(deaf)) };
    let id = agent.send(exec.clone());
    agent.await_output(exec.stdout, "begun");
    for at_once in [false, true] {
        assert!(agent.call(Cancel { id, at_once }).unwrap().found);
    }
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!(
        (ran.reply.end, ran.reply.stopped),
        (ExecEnd::Signaled(9), Some(ExecStop::Cancelled))
    );
    // Nor has it a grace where its output is too much, or the session ends.
    let loud = "trap '' TERM; echo begun; cat /dev/zero; while :; do sleep 0.01; done";
    let mut agent = Agent::with_programs_and(directory.path(), |limits| limits.output_bytes = 1000);
    let exec = Exec { grace_ms: LONG, ..agent.request(shell(loud)) };
    let ran = agent.exec(&exec).unwrap();
    assert_eq!(
        (ran.reply.end, ran.reply.stopped),
        (ExecEnd::Signaled(9), Some(ExecStop::OutputLimit))
    );
    let exec = Exec { grace_ms: LONG, ..agent.request(shell(deaf)) };
    let id = agent.send(exec.clone());
    agent.await_output(exec.stdout, "begun");
    let shutdown = agent.send(Shutdown {});
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::Cancelled));
    agent.reply::<Shutdown>(shutdown).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn reply_of_a_failed_program_has_its_last_output_and_peak_memory() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let line = "echo 'touch: /x: Read-only file system' >&2";
    assert_eq!(agent.ran(shell(line)).unwrap().reply.signs, []);
    let failed = agent.ran(shell(&format!("{line}; exit 3"))).unwrap().reply;
    assert_eq!(failed.signs, [Sign::ReadOnly]);
    assert!(failed.peak_memory_bytes > 100_000, "{failed:?}");
    // The largest of its processes, which is a child of its shell.
    let large = "head -c 50000000 /dev/zero | tail -c 50000000 >/dev/null; :";
    let large = agent.ran(shell(large)).unwrap().reply;
    assert!(large.peak_memory_bytes > 50_000_000, "{large:?}");
}

#[test]
fn leftover_processes_end_with_the_program_and_delay_no_reply() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    // The daemon holds both outputs open.
    let line = format!("(setsid sleep {time} &); echo over; exit 3");
    let ran = agent.ran(shell(&line)).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(3), None));
    assert_eq!(ran.stdout, "over\n");
    assert!(!runs(&time));
}

#[test]
fn programs_run_beside_each_other_and_each_ends_its_own_tree() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let times = [0, 1].map(|place| long_time(&directory.path().join(place.to_string())));
    let started = times.each_ref().map(|time| {
        agent.begun(shell(&format!("(setsid sleep {time} &); echo begun; sleep {time}")))
    });
    for ((_, exec), time) in started.iter().zip(&times) {
        agent.await_output(exec.stdout, "begun");
        await_process(time, true);
    }
    assert!(agent.call(Cancel { id: started[0].0, at_once: false }).unwrap().found);
    let ran = agent.finish(started[0].0, &started[0].1).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::Cancelled));
    assert_eq!(ran.reply.end, ExecEnd::Signaled(9));
    assert!(!runs(&times[0]) && runs(&times[1]), "the other one goes on, its daemon too");
    let many: Vec<_> = (0..8).map(|n| agent.begun(shell(&format!("echo {n}; exit {n}")))).collect();
    for (n, (id, exec)) in (0..).zip(&many) {
        let ran = agent.finish(*id, exec).unwrap();
        assert_eq!((ran.stdout, ran.reply.end), (format!("{n}\n"), ExecEnd::Exited(n)));
    }
    // The end of the session is the end of them all.
    let shutdown = agent.send(Shutdown {});
    let ran = agent.finish(started[1].0, &started[1].1).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::Cancelled));
    agent.reply::<Shutdown>(shutdown).unwrap();
    assert_eq!(agent.exit_code(), DONE);
    assert!(!runs(&times[1]));
}

/// The agent's threads for programs.
fn threads_for_programs(agent: &Agent) -> Vec<std::path::PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.child.id())).unwrap();
    let is_one = |task: &std::path::PathBuf| {
        // One that ends meanwhile does not count.
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "exec\n")
    };
    tasks.map(|task| task.unwrap().path()).filter(is_one).collect()
}

#[test]
fn all_programs_have_one_thread() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    assert_eq!(threads_for_programs(&agent).len(), 0);
    assert_eq!(agent.says("echo 0"), "0\n");
    let first = threads_for_programs(&agent);
    assert_eq!(first.len(), 1);
    let go = directory.path().join("go");
    let waits = format!("echo begun; until [ -e '{}' ]; do sleep 0.01; done", go.display());
    let many: Vec<_> = (0..3).map(|_| agent.begun(shell(&waits))).collect();
    for (_, exec) in &many {
        agent.await_output(exec.stdout, "begun");
    }
    assert_eq!(agent.says("echo 1"), "1\n");
    assert_eq!(threads_for_programs(&agent), first);
    fs::write(&go, "").unwrap();
    for (id, exec) in &many {
        agent.finish(*id, exec).unwrap();
    }
    assert_eq!(agent.says("echo 2"), "2\n");
    assert_eq!(threads_for_programs(&agent), first);
}

#[test]
fn a_program_ends_with_an_agent_that_lost_its_controller() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let (_, exec) = agent.begun(shell(&format!("echo begun; exec sleep {time}")));
    agent.await_output(exec.stdout, "begun");
    assert_eq!(agent.hang_up(), LOST);
    await_process(&time, false);
}

#[test]
fn output_is_bounded_in_total_and_never_in_memory() {
    let directory = elsewhere();
    let bytes = 8_000_000;
    let mut agent =
        Agent::with_programs_and(directory.path(), |limits| limits.output_bytes = bytes);
    let ran = agent.ran(shell("head -c 6000000 /dev/zero; head -c 2000000 /dev/zero >&2")).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(0), None));
    assert_eq!((ran.stdout.len(), ran.stderr.len()), (6_000_000, 2_000_000));
    let ran = agent.ran(shell("cat /dev/zero & cat /dev/zero >&2")).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::OutputLimit));
    assert_eq!((ran.stdout.len() + ran.stderr.len()) as u64, bytes);
    assert!(agent.peak_memory() < 32 << 20, "{}", agent.peak_memory());
}

#[test]
fn a_program_waits_for_its_reader_and_a_cancel_does_not() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let exec = agent.request(program("cat", &["/dev/zero"]));
    let id = agent.send(exec.clone());
    assert!(agent.take_without_credit(1));
    // Other requests are answered meanwhile, and nothing more has come of this one.
    assert_eq!(agent.says("echo fine"), "fine\n");
    agent.call(Cancel { id, at_once: false }).unwrap();
    let reply = agent.reply::<Exec>(id).unwrap();
    assert_eq!((reply.stdout_bytes, reply.stopped), (INITIAL_CREDIT, Some(ExecStop::Cancelled)));
    let credit = ToAgent::Credit(Credit { stream: exec.stdout, bytes: 1 });
    agent.raw(&credit.encode().unwrap());
    assert_eq!(agent.says("echo fine"), "fine\n");
}

#[test]
fn unread_last_bytes_are_lost_at_the_timeout_and_reported() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    // A little more than is taken fits into the pipe, so the program has ended long before.
    let line = format!("head -c {} /dev/zero; exit 3", INITIAL_CREDIT + 10_000);
    // Unless the machine is busy: then it gets more time.
    let ended = [1_000, 10_000, LONG].into_iter().find_map(|time| {
        let exec = Exec { timeout_ms: Some(time), ..agent.request(shell(&line)) };
        let id = agent.send(exec);
        let reply = agent.take_without_credit(1).then(|| agent.reply::<Exec>(id).unwrap());
        reply.filter(|reply| reply.end == ExecEnd::Exited(3))
    });
    let reply = ended.expect("it ends in its time");
    assert_eq!(reply.stopped, Some(ExecStop::Timeout));
    assert_eq!(reply.stdout_bytes, INITIAL_CREDIT);
    let exec = agent.request(shell(&line));
    let id = agent.send(exec);
    assert!(agent.take_without_credit(1));
    agent.call(Cancel { id, at_once: false }).unwrap();
    let reply = agent.reply::<Exec>(id).unwrap();
    assert_eq!(reply.stopped, Some(ExecStop::Cancelled));
    assert_eq!(reply.stdout_bytes, INITIAL_CREDIT);
}

#[test]
fn a_program_may_close_its_outputs_and_live_on() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let ran = agent.ran(shell("echo a; exec >&- 2>&-; sleep 0.3; exit 5")).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.reply.end), ("a\n", ExecEnd::Exited(5)));
    let exec =
        Exec { timeout_ms: Some(300), ..agent.request(shell("exec >&- 2>&- <&-; sleep 1000")) };
    let ran = agent.exec(&exec).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::Timeout));
}

#[test]
fn the_maximum_of_programs_waits_for_readers_and_blocks_no_request() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let many: Vec<_> = (0..MAX_IN_FLIGHT - 1)
        .map(|_| {
            let exec = agent.request(program("cat", &["/dev/zero"]));
            agent.send(exec)
        })
        .collect();
    assert!(agent.take_without_credit(many.len()));
    assert_eq!(agent.says("echo fine"), "fine\n");
    for id in many {
        assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
        let reply = agent.reply::<Exec>(id).unwrap();
        assert_eq!(reply.stopped, Some(ExecStop::Cancelled));
    }
}

#[test]
fn streams_of_a_program_must_be_free() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let request = agent.request(shell("echo no"));
    let exec = Exec { stderr: Some(request.stdout), ..request };
    let id = agent.send(exec.clone());
    assert_eq!(agent.reply::<Exec>(id).unwrap_err().kind(), ErrorKind::InvalidRequest);
    // What was opened for it is free again.
    let exec = Exec { stderr: Some(exec.stdout + 1), ..exec };
    assert_eq!(agent.exec(&exec).unwrap().stdout, "no\n");
}

#[test]
fn a_script_runs_programs() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs_and(directory.path(), |limits| {
        limits.collected_bytes = 5;
    });
    let mut value = |source: &str| {
        let json = returned(agent.run(source).unwrap());
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    assert_eq!(
        value(
            "return process.exec('sh', {'-c', 'echo $A; pwd; cat >&2; exit 3'}, \
               {env = {A = 'given'}, cwd = '/usr', stdin = 'in'})"
        ),
        serde_json::json!({
            "ok": false, "code": 3, "stdout": "given", "stderr": "in",
            "truncated": true, "timed_out": false,
        })
    );
    assert_eq!(
        value(
            "local r = process.exec('sleep', {'100000'}, {timeout = 0.2}) \
               return {r.ok, r.signal, r.timed_out, r.code == nil}"
        ),
        serde_json::json!([false, 9, true, true])
    );
    assert_eq!(
        value("return {pcall(process.exec, 'no-such-program')}"),
        serde_json::json!([false, "'no-such-program' was not found"])
    );
    assert_eq!(
        value("return {select(2, pcall(process.exec, 'true', {}, {shell = true}))}"),
        serde_json::json!(["unknown option: 'shell'"])
    );
    // No argument is lost without a word.
    assert_eq!(
        value("return process.exec('echo', table.pack('a', 'b')).stdout"),
        serde_json::json!("a b\n")
    );
    for args in [
        "{'a', nil, 'c'}", "table.pack('a', nil, 'c')", "{n = 1}", "{x = 'a'}", "{'a', x = 'b'}",
        "{[0] = 'a'}", "{[2] = 'a'}",
    ] {
        assert_eq!(
            value(&format!("return select(2, pcall(process.exec, 'echo', {args}))")),
            serde_json::json!(
                "invalid argument #2 to 'exec' (array expected, got a table with holes or keys \
                 that are not indices)"
            ),
            "{args}"
        );
    }
    assert_eq!(
        value(
            "io.open('s', 'w'):write('#!/bin/sh\\necho ran\\n'):close() \
               process.exec('chmod', {'+x', 's'}) return process.exec('./s').stdout"
        ),
        serde_json::json!("ran\n")
    );
    // Its input is one piece, of which a pipe takes a part at a time.
    assert_eq!(
        value(
            "local t = {} for i = 1, 500000 do t[i] = i end local text = table.concat(t, ',') \
               process.exec('sh', {'-c', 'cat > copy'}, {stdin = text}) \
               return {#text > 3e6, fs.read('copy') == text}"
        ),
        serde_json::json!([true, true])
    );
    // What is declared of it is all there is.
    assert_eq!(
        value("local names = {} for name in process do table.insert(names, name) end return names"),
        serde_json::json!(["exec"])
    );
    // The run's own end is its programs' end.
    let time = long_time(directory.path());
    let source =
        format!("print('begun') process.exec('sh', {{'-c', 'sleep {time} & sleep {time}'}})");
    let error = failed(agent.call(script(&source, 500)).unwrap());
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(!runs(&time));
    let mut scripts = Agent::greeted(directory.path());
    assert_eq!(returned(scripts.run("return process == nil").unwrap()), "true");
}

#[test]
fn the_output_limit_ends_a_scripts_program_and_the_run() {
    let directory = elsewhere();
    let mut agent =
        Agent::with_programs_and(directory.path(), |limits| limits.output_bytes = 1_000_000);
    let error = failed(agent.run("process.exec('cat', {'/dev/zero'})").unwrap());
    assert_eq!(error.kind, ErrorKind::OutputLimit);
    assert_eq!(error.message, "script:1: output limit exceeded (976.5 KiB)");
}

#[test]
fn cpu_time_of_a_command_is_that_of_all_its_processes() {
    // Left to the agent by a parent that waits for nothing.
    const BUSY: &str =
        "(trap '' HUP; i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; touch done) & ";
    const UNTIL: &str = "until [ -e done ]; do sleep 0.01; done";
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let abandoned = agent.ran(shell(&format!("({BUSY}); {UNTIL}"))).unwrap();
    let waited = agent.ran(shell(&format!("rm done; {BUSY} wait"))).unwrap();
    let (abandoned, waited) = (abandoned.reply.cpu_ms, waited.reply.cpu_ms);
    assert!(waited > 20 && abandoned > waited / 4, "{abandoned} of {waited} ms");
    let before = agent.run("return 1").unwrap().usage.cpu_ms;
    let script = format!("process.exec('sh', {{'-c', [[rm done; ({BUSY}); {UNTIL}]]}})");
    let after = agent.run(&script).unwrap().usage.cpu_ms;
    assert!(after - before > waited / 4, "{before}, {after}, {waited} ms");
}

/// Attacks the agent itself, as a program of a user who may do anything.
#[test]
fn a_program_cannot_reach_into_the_agent_nor_leave_what_outlives_it() {
    let directory = elsewhere();
    fs::write(directory.path().join("file"), "").unwrap();
    let mut agent = Agent::with_programs(directory.path());
    let uid = rustix::process::geteuid().as_raw().to_string();
    let pid = agent.child.id().to_string();
    let at = directory.path().to_str().unwrap();
    let outcome = |output: &str| output.trim().parse::<i32>().map_err(|_| output.trim().to_owned());
    for (attack, expected) in [
        // Frames of its own, in the agent's name.
        ("open-output-of-another", libc::EACCES),
        ("ptrace", libc::EPERM),
        ("process_vm_writev", libc::EPERM),
        ("prlimit64", libc::EPERM),
        ("clone-new-user", libc::EPERM),
        ("unshare-user", libc::EPERM),
        // Success, and nothing has changed.
        ("prlimit64-core", libc::EALREADY),
        ("prlimit64-mark", libc::EALREADY),
        ("setpriority-of-another", libc::EALREADY),
        ("ioprio_set-of-another", libc::EALREADY),
        ("sched_setscheduler-of-another", libc::EALREADY),
        ("openat-set-uid", libc::EPERM),
        ("mknodat-set-uid", libc::EPERM),
        ("fchmodat", libc::EPERM),
        ("openat2", libc::ENOSYS),
        ("device-in-mount", libc::EACCES),
        ("io_uring_setup", libc::EPERM),
        ("socket-netlink-firewall", libc::EPERM),
    ] {
        let args = ["none", &uid, attack, at, "/", "/", &pid, "0", "none"];
        let ran = agent.ran(program(env!("CARGO_BIN_EXE_attacker"), &args)).unwrap();
        assert_eq!(outcome(&ran.stdout), Ok(expected), "{attack}: {}", ran.stderr);
        // The same program, unrestricted.
        let free = std::process::Command::new(env!("CARGO_BIN_EXE_attacker")).args(args).output();
        let free = String::from_utf8(free.unwrap().stdout).unwrap();
        assert_ne!(outcome(&free), Ok(expected), "{attack} is refused without the agent too");
        _ = fs::remove_file(directory.path().join("new"));
        fs::set_permissions(directory.path().join("file"), fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    assert_eq!(agent.says("echo fine"), "fine\n");
}

#[test]
fn agent_that_may_not_inspect_programs_leaves_them_pairs() {
    let directory = elsewhere();
    for call in [libc::SYS_pidfd_getfd, libc::SYS_process_vm_readv] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sandbox-agent"));
        command.args(arguments(directory.path(), Mode::Exec).to_args());
        refuse(&mut command, call, Vec::new(), libc::EPERM);
        let mut agent = Agent::start(&mut command);
        let confinement = agent.greet(rules(directory.path())).confinement;
        assert_eq!(confinement.unix_sockets, UnixSockets::Pairs, "{confinement:?}");
        let [missing] = &confinement.missing[..] else { panic!("{confinement:?}") };
        assert!(missing.starts_with("connections of programs cannot be supervised"), "{missing}");
        for (name, expected) in [
            ("socket-unix", Err(libc::EACCES)),
            ("socket-unix-datagram", Err(libc::EACCES)),
            ("pair-unix-datagram", Err(libc::ESOCKTNOSUPPORT)),
            ("pair-unix-stream", Ok(())),
            ("pair-unix-seqpacket", Ok(())),
            ("socket-inet", Ok(())),
        ] {
            let ran = agent.ran(attack(name)).unwrap();
            let said = expected.map_or_else(|errno| errno.to_string(), |()| "done".to_owned());
            assert_eq!(ran.stdout.trim_end(), said, "{name}: {}", ran.stderr);
        }
        assert_eq!(agent.says("echo fine"), "fine\n");
    }
}

/// An agent that is the first process of a PID namespace, in which it is alone with its programs, as in
/// a container.
pub(super) fn first_process(directory: &Path) -> Agent {
    let mut unshare = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(env!("CARGO_BIN_EXE_sandbox-agent"))
        .args(arguments(directory, Mode::Exec).to_args());
    let mut agent = Agent::start(&mut unshare);
    agent.greet(rules(directory));
    agent
}

/// An attack that is aimed at nothing in particular.
pub(super) fn attack(name: &str) -> Command {
    let uid = rustix::process::geteuid().as_raw().to_string();
    program(env!("CARGO_BIN_EXE_attacker"), &["none", &uid, name, "/", "/", "/", "1", "0", "none"])
}

/// The number of processes, by a shell's own means, and without the agent.
const COUNT: &str = "set -- /proc/[0-9]*; echo $#";
const ALONE: &str = "2\n";

#[test]
fn a_program_that_runs_away_from_its_end_is_caught() {
    let directory = elsewhere();
    let mut agent = first_process(directory.path());
    // The program ended at once; the process that it left changes its number faster than a walk can
    // follow.
    for _ in 0..60 {
        let ran = agent.ran(attack("run-away")).unwrap();
        assert_eq!((ran.stdout.as_str(), ran.reply.end), ("begun\n", ExecEnd::Exited(0)));
        assert_eq!(agent.says("cat /proc/[0-9]*/comm 2>&1 | grep -c attacker || :"), "0\n");
    }
    assert_eq!(agent.says(COUNT), ALONE);
}

#[test]
fn a_program_that_stops_all_others_takes_their_time_and_nothing_of_the_agents() {
    let directory = elsewhere();
    let mut agent = first_process(directory.path());
    let (stopper, stopper_exec) = agent.begun(attack("stop-everybody"));
    agent.await_output(stopper_exec.stdout, "begun");
    // Stopped before they are programs, or after; each ends when its time is up.
    let others: Vec<_> = (0..4)
        .map(|_| {
            let exec =
                Exec { timeout_ms: Some(700), ..agent.request(shell("while :; do :; done")) };
            (agent.send(exec.clone()), exec)
        })
        .collect();
    for (id, exec) in &others {
        let reply = agent.finish(*id, exec).unwrap().reply;
        let ended = (reply.end, reply.stopped);
        assert_eq!(ended, (ExecEnd::Signaled(9), Some(ExecStop::Timeout)));
    }
    // A cancel is as good.
    let (id, exec) = agent.begun(shell("while :; do :; done"));
    agent.call(Cancel { id, at_once: false }).unwrap();
    let reply = agent.finish(id, &exec).unwrap().reply;
    assert_eq!((reply.end, reply.stopped), (ExecEnd::Signaled(9), Some(ExecStop::Cancelled)));
    agent.call(Cancel { id: stopper, at_once: false }).unwrap();
    agent.finish(stopper, &stopper_exec).unwrap();
    assert_eq!(agent.says(COUNT), ALONE);
}

#[test]
fn nothing_that_a_program_signals_ends_the_agent() {
    let directory = elsewhere();
    let mut agent = first_process(directory.path());
    // A caught signal would reach it, with forged sender data. The ones above are the C library's
    // own, which checks the sender.
    let caught = agent.says("grep SigCgt /proc/1/status");
    assert!(caught.ends_with("00000000\n"), "{caught}");
    let ran = agent.ran(shell("for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null; echo sent"));
    assert_eq!(ran.unwrap().stdout, "sent\n");
    let time = long_time(directory.path());
    // All that it may signal, which is another program, and not the agent.
    let (id, exec) = agent.begun(shell(&format!("echo begun; exec sleep {time}")));
    agent.await_output(exec.stdout, "begun");
    assert_eq!(agent.says("kill -KILL -1; echo sent"), "sent\n");
    let reply = agent.finish(id, &exec).unwrap().reply;
    assert_eq!((reply.end, reply.stopped), (ExecEnd::Signaled(9), None));
    // A bomb of daemons, each of which begins others until there are many.
    let bomb = "b() { [ $1 -gt 0 ] && { (setsid sh -c \"sleep 9999\" &); b $(($1 - 1)) & b $(($1 - 1)) & }; }; \
                b 5; echo lit; wait; sleep 9999";
    let ran = agent.timed_out(bomb, "lit", 0);
    assert_eq!((ran.stdout.as_str(), ran.reply.stopped), ("lit\n", Some(ExecStop::Timeout)));
    assert_eq!(agent.says(COUNT), ALONE);
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn a_program_finds_the_proxy_and_connects_only_through_the_controller() {
    let directory = elsewhere();
    let mut agent = Agent::with_proxy(directory.path());
    // What a program says to the proxy, by the shell that has TCP in it.
    let ask = |words: &str| {
        let line = format!(
            "exec 3<>/dev/tcp/127.0.0.1/${{HTTP_PROXY##*:}}; printf '{words}' >&3; cat <&3; \
             [ \"$HTTP_PROXY\" = \"$https_proxy\" ] && [ \"$ALL_PROXY\" = \"$http_proxy\" ]"
        );
        program("bash", &["-c", &line])
    };
    let ran = agent.ran(ask("CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n")).unwrap();
    assert_eq!(ran.reply.end, ExecEnd::Exited(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("\r\n\r\nnot evil.example\n"), "{}", ran.stdout);
    let ran = agent.ran(ask("\\5\\1\\0\\5\\1\\0\\1\\12\\0\\0\\1\\0\\120")).unwrap();
    assert_eq!(ran.stdout.as_bytes()[..4], [5, 0, 5, 2], "{:?}", ran.stdout);
    assert_eq!(agent.notes, ["connect evil.example:443", "close", "connect 10.0.0.1:80", "close"]);
    // Addresses that bypass the proxy are listed too; variables of the request override them.
    let own = "localhost,127.0.0.1,::1";
    assert_eq!(agent.says("echo $NO_PROXY $no_proxy"), format!("{own} {own}\n"));
    let env = [("no_proxy", "mine"), ("HTTP_PROXY", "")].map(|(name, value)| Variable {
        name: WireString::new(name),
        value: WireString::new(value),
    });
    let asked = agent.request(shell("echo $NO_PROXY $no_proxy$HTTP_PROXY"));
    let asked = Exec { env: env.to_vec(), ..asked };
    assert_eq!(agent.exec(&asked).unwrap().stdout, format!("{own} mine\n"));
}

#[test]
fn requested_connections_are_closed_before_the_answer_to_the_last_program() {
    let directory = elsewhere();
    let mut agent = Agent::with_proxy(directory.path());
    // By the answer to the second request, the agent has read the first one too.
    let line = format!(
        "proxy=/dev/tcp/127.0.0.1/${{HTTP_PROXY##*:}}; exec 3<>$proxy 4<>$proxy; \
         printf 'CONNECT {UNANSWERED}:443 HTTP/1.1\\r\\n\\r\\n' >&3; \
         printf 'CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n' >&4; cat <&4"
    );
    let leave = || program("bash", &["-c", &line]);
    let connects = ["connect evil.example:443", "connect never.example:443", "close"];
    agent.ran(leave()).unwrap();
    agent.notes[..2].sort();
    assert_eq!(agent.notes, [&connects[..], &["close"]].concat());
    // It is the same for a script's programs.
    agent.notes.clear();
    let source = format!("process.exec('bash', {{'-c', [[{line}]]}})\nprint('ended')");
    agent.run(&source).unwrap();
    agent.notes[..2].sort();
    assert_eq!(agent.notes, [&connects[..], &["close", "log ended"]].concat());
    // While another one runs, it may be the one that waits for the connection.
    agent.notes.clear();
    let (id, exec) = agent.begun(shell("echo begun; exec sleep 60"));
    agent.await_output(exec.stdout, "begun");
    agent.ran(leave()).unwrap();
    agent.notes[..2].sort();
    assert_eq!(agent.notes, connects);
    agent.call(Cancel { id, at_once: false }).unwrap();
    agent.finish(id, &exec).unwrap();
    assert_eq!(agent.notes, [&connects[..], &["close"]].concat());
}
