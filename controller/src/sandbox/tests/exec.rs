//! Commands with a scripted agent: what an honest one reports, and what a hostile one may not.

use std::time::Duration;

use sandbox_api::{
    ExecutionResult, FileOp, NoteKind, OutputStream, Pull, RootFs, SandboxSpec, Script, Sign,
    SignalName, TerminalSize, TouchedFile, TouchedSource,
};
use sandbox_protocol::WireString;
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_CHUNK_BYTES};
use sandbox_protocol::message::{
    Cancel, Chunk, ControlReply, Credit, Exec, ExecEnd, ExecReply, ExecStop, Exited, Pty, Started,
};
use sandbox_protocol::{Base64, ErrorKind, ToAgent, WireError, message};
use tokio::io::AsyncWriteExt;

use super::fake::{Fake, NextEvent as _, Scripted, World, greeted};
use super::*;
use crate::DiskReserve;
use sandbox_api::{Command, Stdin};

/// A spec of a sandbox that supports commands.
pub fn with_programs(world: &World) -> SandboxSpec {
    let root = RootFs::Image { reference: "image".into(), pull: Pull::Never };
    world.spec().root(root).limits(Limits::default())
}

pub async fn launch(world: &World, spec: SandboxSpec) -> Sandbox {
    Sandbox::launch(world.shared.clone(), spec).await.unwrap()
}

/// A command in progress, from the agent's side.
pub struct Program<'a> {
    pub agent: &'a mut Scripted,
    pub id: u64,
    pub exec: Exec,
    sent: [u64; 2],
    seq: [u64; 2],
}

impl<'a> Program<'a> {
    pub async fn asked(agent: &'a mut Scripted) -> Self {
        let (id, request) = agent.agent.request().await.unwrap();
        let Request::Exec(exec) = request else { panic!("{request:?}") };
        Self { agent, id, exec, sent: [0; 2], seq: [0; 2] }
    }

    pub async fn chunk(&mut self, output: usize, data: Vec<u8>, last: bool) {
        let stream = [Some(self.exec.stdout), self.exec.stderr][output].unwrap();
        self.sent[output] += data.len() as u64;
        let (seq, data) = (self.seq[output], Base64(data));
        self.seq[output] += 1;
        self.agent.notify(FromAgent::Chunk(Chunk { stream, seq, data, last })).await;
    }

    pub async fn write(&mut self, output: usize, text: &str) {
        self.chunk(output, text.as_bytes().to_vec(), false).await;
    }

    pub async fn last(&mut self) {
        self.chunk(0, Vec::new(), true).await;
        if self.exec.stderr.is_some() {
            self.chunk(1, Vec::new(), true).await;
        }
    }

    pub fn reply(&self, end: ExecEnd, stopped: Option<ExecStop>) -> ExecReply {
        let [stdout_bytes, stderr_bytes] = self.sent;
        let (cpu_ms, peak_memory_bytes, signs) = (7, 1 << 20, Vec::new());
        ExecReply { end, stopped, stdout_bytes, stderr_bytes, cpu_ms, peak_memory_bytes, signs }
    }

    pub async fn end(mut self, end: ExecEnd, stopped: Option<ExecStop>) {
        self.last().await;
        let reply = self.reply(end, stopped);
        self.agent.agent.answer(self.id, reply).await;
    }

    pub async fn refuse(self, kind: ErrorKind) {
        let error = WireError::new(kind, "no");
        self.agent.agent.send(FromAgent::encode_reply::<()>(self.id, Err(error)).unwrap()).await;
    }

    /// Its program is executed, if it is a kept one.
    pub async fn started(&mut self, pid: u32) {
        let request = self.id;
        self.agent.notify(FromAgent::Started(Started { request, pid })).await;
    }

    pub async fn exited(&mut self, end: ExecEnd) {
        let request = self.id;
        self.agent.notify(FromAgent::Exited(Exited { request, end, stopped: None })).await;
    }

    /// The next request, which is about it.
    pub async fn control(&mut self) -> (u64, Request) {
        loop {
            match self.agent.agent.message().await {
                Some(ToAgent::Request { id, request, .. }) => return (id, request),
                Some(ToAgent::Credit(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for its cancel, and accepts it.
    async fn cancelled(&mut self) {
        _ = self.cancel().await;
    }

    /// The same, and what it says.
    pub async fn cancel(&mut self) -> Cancel {
        let (id, request) = self.control().await;
        let Request::Cancel(cancel) = request else { panic!("{request:?}") };
        assert_eq!(cancel.id, self.id);
        self.agent.agent.answer(id, ControlReply { found: true }).await;
        cancel
    }
}

/// Runs one command with an agent that behaves like this.
async fn run<F>(
    command: Command,
    act: impl FnOnce(Scripted, Arc<Fake>) -> F + Send + 'static,
) -> (ExecutionResult, World)
where
    F: Future<Output = ()> + Send + 'static,
{
    let world = greeted(act);
    let sandbox = launch(&world, with_programs(&world)).await;
    let result = sandbox.run(command).await.unwrap();
    drop(sandbox);
    (result, world)
}

#[tokio::test(start_paused = true)]
async fn a_command_reaches_the_agent_as_it_was_given_and_its_output_comes_back() {
    let command = Command::new("prog")
        .arg("a b")
        .args([&b"\xff"[..], b""])
        .cwd("sub")
        .env("K", "v=1")
        .stdin(Stdin::Bytes(b"input".to_vec()))
        .timeout(Duration::from_millis(1500));
    let (result, _world) = run(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        let word = |text: &[u8]| WireString::new(text);
        assert_eq!(
            program.exec.command,
            message::Command::Program(message::Program {
                program: word(b"prog"),
                args: vec![word(b"a b"), word(b"\xff"), word(b"")],
            })
        );
        assert_eq!(program.exec.cwd, Some(word(b"sub")));
        let env = message::Variable { name: word(b"K"), value: word(b"v=1") };
        assert_eq!(program.exec.env, [env]);
        assert_eq!((program.exec.timeout_ms, program.exec.grace_ms), (Some(1500), 2000));
        let mut input = Vec::new();
        loop {
            let Some(ToAgent::Chunk(chunk)) = program.agent.agent.message().await else { panic!() };
            assert_eq!(Some(chunk.stream), program.exec.stdin);
            input.extend(chunk.data.0);
            if chunk.last {
                break;
            }
        }
        assert_eq!(input, b"input");
        program.write(1, "err").await;
        program.write(0, "out").await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    })
    .await;
    assert_eq!(result.outcome.status(), Status::Ok);
    assert_eq!((result.command_exit_code(), result.signal()), (Some(0), None));
    assert_eq!((&*result.stdout().bytes, &*result.stderr().bytes), (&b"out"[..], &b"err"[..]));
    assert!(!result.stdout().truncated && !result.stderr().truncated);
    assert!(!result.failed() && !result.timed_out());
    assert_eq!(result.usage.cpu_ms, Some(7));
    assert_eq!(result.usage.written_bytes, None);
    assert_eq!(result.files_touched.source, TouchedSource::Scan);
}

#[tokio::test(start_paused = true)]
async fn a_command_has_a_terminal_or_one_stream_if_it_is_asked_for() {
    let term = || Pty { cols: 80, rows: 24, term: "xterm".to_owned() };
    for command in [Command::new("x").pty(term()), Command::new("x").merged()] {
        let has_terminal = command.pty.is_some();
        let world = greeted(async move |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            assert_eq!(program.exec.stderr, None);
            assert_eq!(program.exec.pty.is_some(), has_terminal);
            assert!(!program.exec.kept);
            program.write(0, "out and err").await;
            let (id, request) = program.control().await;
            let Request::Resize(resize) = request else { panic!("{request:?}") };
            assert_eq!((resize.id, resize.cols, resize.rows), (program.id, 100, 30));
            program.agent.agent.answer(id, ControlReply { found: has_terminal }).await;
            program.end(ExecEnd::Exited(0), None).await;
            agent.rest().await;
        });
        let sandbox = launch(&world, with_programs(&world)).await;
        let execution = sandbox.start(command, CancelHandle::new()).await.unwrap();
        let resized = execution.resize(TerminalSize { cols: 100, rows: 30 });
        let (resized, result) = tokio::join!(resized, execution.wait());
        assert_eq!(resized, has_terminal);
        let result = result.unwrap();
        assert_eq!(
            (&*result.stdout().bytes, result.stderr().bytes.len()),
            (&b"out and err"[..], 0)
        );
        assert_eq!(result.outcome.status(), Status::Ok);
    }
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = launch(&world, with_programs(&world)).await;
    for wrong in [Pty { cols: 0, ..term() }, Pty { term: "a b".to_owned(), ..term() }] {
        let error = sandbox.run(Command::new("x").pty(wrong)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_a_program_decides_its_status() {
    for (end, oom, status, code) in [
        (ExecEnd::Exited(3), None, Status::Exit, 3),
        // If a child ran out of memory, its parent decides on the exit code.
        (ExecEnd::Exited(0), Some(true), Status::Ok, 0),
        (ExecEnd::Signaled(15), Some(true), Status::Exit, 143),
        (ExecEnd::Signaled(9), Some(true), Status::Limit, 120),
        (ExecEnd::Signaled(9), Some(false), Status::Exit, 137),
        (ExecEnd::Signaled(9), None, Status::Exit, 137),
    ] {
        let (result, world) =
            run(Command::new("x"), async move |mut agent: Scripted, fake: Arc<Fake>| {
                let program = Program::asked(&mut agent).await;
                fake.exit.lock().unwrap().oom_killed = oom;
                program.end(end, None).await;
                agent.rest().await;
            })
            .await;
        let what = format!("{end:?} {oom:?}");
        assert_eq!((result.outcome.status(), result.outcome.exit_code()), (status, code), "{what}");
        let expected = match end {
            ExecEnd::Exited(code) => (Some(i32::from(code)), None),
            ExecEnd::Signaled(signal) => (None, Some(i32::from(signal))),
        };
        assert_eq!((result.command_exit_code(), result.signal()), expected, "{what}");
        if status == Status::Limit {
            assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::OutOfMemory);
            assert_eq!(result.hint().as_deref(), Some("--memory raises the limit"));
        }
        // The engine is asked only if the answer decides.
        let asked = world.fake.calls().contains(&"ran_out_of_memory");
        assert_eq!(asked, end == ExecEnd::Signaled(9), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_did_not_begin_says_why_by_its_exit_code() {
    for (kind, status, code) in [
        (ErrorKind::CommandNotFound, Status::Error, 127),
        (ErrorKind::NotExecutable, Status::Error, 126),
        (ErrorKind::NotFound, Status::Error, 2),
        (ErrorKind::NotADirectory, Status::Error, 2),
        (ErrorKind::PermissionDenied, Status::Error, 2),
        (ErrorKind::PathEscape, Status::Error, 2),
        (ErrorKind::InvalidRequest, Status::Error, 2),
        (ErrorKind::Busy, Status::Error, 125),
        (ErrorKind::Internal, Status::Error, 125),
        (ErrorKind::OutOfMemory, Status::Limit, 120),
        // An honest agent does not send this for a command.
        (ErrorKind::WriteLimit, Status::AgentLost, 122),
        (ErrorKind::Cancelled, Status::AgentLost, 122),
    ] {
        let (result, _world) = run(Command::new("x"), async move |mut agent: Scripted, _| {
            Program::asked(&mut agent).await.refuse(kind).await;
            agent.rest().await;
        })
        .await;
        let ended = (result.outcome.status(), result.outcome.exit_code());
        assert_eq!(ended, (status, code), "{kind}");
        assert_eq!((result.command_exit_code(), result.signal()), (None, None), "{kind}");
        if status == Status::Error {
            assert_eq!(result.outcome.failure().unwrap().kind, kind);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_keeps_what_had_come() {
    let (result, world) = run(Command::new("x"), async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.write(0, "part").await;
        tokio::time::sleep(Duration::from_secs(31)).await;
        program.end(ExecEnd::Signaled(9), Some(ExecStop::Timeout)).await;
        agent.rest().await;
    })
    .await;
    assert_eq!((result.outcome.status(), result.outcome.exit_code()), (Status::Timeout, 124));
    assert!(result.timed_out() && result.failed());
    assert_eq!((result.command_exit_code(), result.signal()), (None, Some(9)));
    assert_eq!(result.stdout().bytes, b"part");
    assert_eq!(result.hint().as_deref(), Some("--timeout raises the limit"));
    assert!(!world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_end_a_program_is_killed_three_seconds_after_its_grace() {
    let before = tokio::time::Instant::now();
    let command = Command::new("x").timeout(Duration::from_secs(2));
    let (result, _world) = run(command, async |mut agent: Scripted, _| {
        Program::asked(&mut agent).await.write(0, "part").await;
        std::future::pending().await
    })
    .await;
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(7) && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(result.outcome.status(), Status::Timeout);
    assert_eq!(
        (&*result.stdout().bytes, result.command_exit_code(), result.signal()),
        (&b"part"[..], None, None)
    );
    assert_eq!(result.usage.cpu_ms, None);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_program_and_a_second_one_the_sandbox() {
    for times in [1, 2] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            program.write(1, "part").await;
            if times == 1 {
                program.cancelled().await;
                program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
            }
            std::future::pending().await
        });
        let sandbox = launch(&world, with_programs(&world)).await;
        let mut execution = sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap();
        let first = execution.next_output().await.unwrap();
        assert_eq!(first, (OutputStream::Stderr, "part".into()));
        for _ in 0..times {
            execution.cancel_handle().cancel(CancelCause::Terminate);
        }
        let before = tokio::time::Instant::now();
        let result = execution.wait().await.unwrap();
        assert!(before.elapsed() < Duration::from_secs(1));
        assert_eq!((result.outcome.status(), result.outcome.exit_code()), (Status::Cancelled, 143));
        // The result has output that was returned before, too.
        assert_eq!(result.stderr().bytes, b"part");
        assert_eq!(world.fake.calls().contains(&"kill"), times == 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_goes_on_after_a_cancel_has_its_grace_and_no_more() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        assert_eq!(program.exec.grace_ms, 60_000);
        assert_eq!(program.exec.stop_signal, Some(SignalName::Usr1));
        program.cancelled().await;
        std::future::pending().await
    });
    let mut spec = with_programs(&world);
    spec.limits.stop_timeout = Duration::from_secs(1);
    let long = Command::new("x").timeout(Duration::from_secs(600)).stop_signal(SignalName::Usr1);
    let long = long.stop_timeout(Duration::from_secs(60));
    let sandbox = launch(&world, spec).await;
    let execution = sandbox.start(long, CancelHandle::new()).await.unwrap();
    execution.cancel_handle().cancel(CancelCause::Caller);
    let before = tokio::time::Instant::now();
    let result = execution.wait().await.unwrap();
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(63) && took < Duration::from_secs(64), "{took:?}");
    assert_eq!(result.outcome.status(), Status::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn what_stood_in_the_way_of_a_program_is_noted_unless_it_ended_well() {
    for (code, kinds) in [(0, &[][..]), (1, &[NoteKind::NoSpace, NoteKind::NoNetwork][..])] {
        let (result, _world) = run(Command::new("x"), async move |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            program.last().await;
            // An honest agent sees none in what ended well.
            let signs = vec![Sign::NoNetwork, Sign::TmpFull, Sign::NoNetwork];
            let reply = ExecReply { signs, ..program.reply(ExecEnd::Exited(code), None) };
            program.agent.agent.answer(program.id, reply).await;
            agent.rest().await;
        })
        .await;
        assert_eq!(result.notes.iter().map(|note| note.kind).collect::<Vec<_>>(), kinds);
        assert_eq!(result.usage.peak_memory_bytes, Some(1 << 20));
    }
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_is_dropped_is_cancelled() {
    let (sender, mut cancelled) = tokio::sync::mpsc::channel(1);
    let world = greeted(async move |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.cancelled().await;
        program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
        sender.send(()).await.unwrap();
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    drop(sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap());
    cancelled.recv().await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_sandbox_cancels_its_programs() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.write(0, "begun").await;
        let (shutdown, request) = program.agent.agent.request().await.unwrap();
        assert!(matches!(request, Request::Shutdown(_)), "{request:?}");
        program.write(0, "part").await;
        program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
        agent.agent.answer(shutdown, Done {}).await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let mut execution = sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap();
    assert_eq!(execution.next_output().await.unwrap().1, "begun");
    let (closed, result) = tokio::join!(sandbox.close(), execution.wait());
    closed.unwrap();
    let result = result.unwrap();
    assert_eq!((result.outcome.status(), result.outcome.exit_code()), (Status::Cancelled, 130));
    assert_eq!(result.stdout().bytes, b"begunpart");
}

#[tokio::test(start_paused = true)]
async fn output_beyond_what_is_kept_is_drained_and_said() {
    let command = Command::new("x").output_limit(100_000);
    let (result, _world) = run(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        let mut credit = INITIAL_CREDIT;
        for _ in 0..100 {
            while credit < MAX_CHUNK_BYTES as u64 {
                let message = program.agent.agent.message().await;
                let Some(ToAgent::Credit(more)) = message else { panic!("{message:?}") };
                assert_eq!(more.stream, program.exec.stdout);
                credit += more.bytes;
            }
            credit -= MAX_CHUNK_BYTES as u64;
            program.chunk(0, vec![b'x'; MAX_CHUNK_BYTES], false).await;
        }
        program.write(1, "e").await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    })
    .await;
    assert_eq!(result.outcome.status(), Status::Ok);
    assert_eq!((result.stdout().bytes.len(), result.stdout().truncated), (100_000, true));
    assert_eq!((&*result.stderr().bytes, result.stderr().truncated), (&b"e"[..], false));
}

#[tokio::test(start_paused = true)]
async fn unread_output_makes_the_program_wait_until_its_deadline() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        for _ in 0..INITIAL_CREDIT / MAX_CHUNK_BYTES as u64 {
            program.chunk(0, vec![b'x'; MAX_CHUNK_BYTES], false).await;
        }
        let begun = tokio::time::Instant::now();
        // Then the remaining output is drained, so that the end can be reported.
        let stdout = program.exec.stdout;
        match program.agent.agent.message().await {
            Some(ToAgent::Credit(Credit { stream, bytes })) => {
                assert_eq!(stream, stdout);
                assert!(bytes >= 1 << 20);
            }
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() >= Duration::from_secs(32), "{:?}", begun.elapsed());
        program.write(0, "rest").await;
        program.end(ExecEnd::Exited(5), None).await;
        std::future::pending().await
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let mut execution = sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut output = Vec::new();
    while let Some((stream, piece)) = execution.next_output().await {
        assert_eq!(stream, OutputStream::Stdout);
        output.extend_from_slice(&piece);
    }
    assert_eq!(output.len() as u64, INITIAL_CREDIT + 4);
    let result = execution.wait().await.unwrap();
    assert_eq!(result.outcome.exit_code(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_ended_before_its_stop_keeps_its_own_code() {
    for (stop, status) in
        [(ExecStop::Timeout, Status::Timeout), (ExecStop::Cancelled, Status::Cancelled)]
    {
        let world = greeted(async move |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            match stop {
                ExecStop::Cancelled => program.cancelled().await,
                _ => tokio::time::sleep(Duration::from_secs(31)).await,
            }
            program.write(0, "not all").await;
            program.end(ExecEnd::Exited(0), Some(stop)).await;
            agent.rest().await;
        });
        let sandbox = launch(&world, with_programs(&world)).await;
        let execution = sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap();
        if stop == ExecStop::Cancelled {
            execution.cancel_handle().cancel(CancelCause::Caller);
        }
        let result = execution.wait().await.unwrap();
        assert_eq!((result.outcome.status(), result.command_exit_code()), (status, Some(0)));
        assert_eq!((&*result.stdout().bytes, result.failed()), (&b"not all"[..], true));
    }
}

#[tokio::test(start_paused = true)]
async fn more_output_than_its_limit_ends_a_program() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.write(0, "12345678").await;
        program.write(1, "90").await;
        program.end(ExecEnd::Signaled(9), Some(ExecStop::OutputLimit)).await;
        agent.rest().await;
    });
    let mut spec = with_programs(&world);
    spec.limits.output_bytes = ByteSize::b(10);
    let result = launch(&world, spec).await.run(Command::new("x")).await.unwrap();
    assert_eq!((result.outcome.status(), result.outcome.exit_code()), (Status::Limit, 120));
    assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::OutputLimit);
    assert_eq!((&*result.stdout().bytes, &*result.stderr().bytes), (&b"12345678"[..], &b"90"[..]));
    let hint = result.hint().unwrap();
    assert!(
        hint.starts_with("SANDBOXCTL_LIMITS_OUTPUT_BYTES, or limits.output_bytes in "),
        "{hint}"
    );
}

#[tokio::test(start_paused = true)]
async fn protocol_breach_about_a_program_ends_the_sandbox() {
    for what in [
        "fewer bytes than came",
        "more bytes than came",
        "no last chunk",
        "more than the limit on both outputs",
        "output and then a refusal",
        "a timeout before the deadline",
        "an unrequested cancel",
        "an output limit that was not reached",
        "a chunk after the last",
        "a chunk on its input",
        "credit for its output",
        "a second answer",
        "a log entry",
    ] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            program.write(0, "12345678").await;
            let (stdin, stdout) = (program.exec.stdin.unwrap(), program.exec.stdout);
            match what {
                "fewer bytes than came" => {
                    program.sent[0] -= 1;
                    program.end(ExecEnd::Exited(0), None).await;
                }
                "more bytes than came" => {
                    program.sent[1] += 1;
                    program.end(ExecEnd::Exited(0), None).await;
                }
                "no last chunk" => {
                    program.chunk(0, Vec::new(), true).await;
                    let reply = program.reply(ExecEnd::Exited(0), None);
                    program.agent.agent.answer(program.id, reply).await;
                }
                "more than the limit on both outputs" => {
                    program.write(1, "901").await;
                    program.end(ExecEnd::Exited(0), None).await;
                }
                "output and then a refusal" => program.refuse(ErrorKind::CommandNotFound).await,
                "a timeout before the deadline" => {
                    program.end(ExecEnd::Signaled(9), Some(ExecStop::Timeout)).await;
                }
                "an unrequested cancel" => {
                    program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
                }
                "an output limit that was not reached" => {
                    program.end(ExecEnd::Signaled(9), Some(ExecStop::OutputLimit)).await;
                }
                "a chunk after the last" => {
                    program.last().await;
                    program.write(0, "x").await;
                }
                "a chunk on its input" => {
                    program.exec.stdout = stdin;
                    program.write(0, "x").await;
                }
                "credit for its output" => {
                    let credit = Credit { stream: stdout, bytes: 1 };
                    program.agent.notify(FromAgent::Credit(credit)).await;
                }
                "a second answer" => {
                    let id = program.id;
                    let reply = program.reply(ExecEnd::Exited(0), None);
                    program.end(ExecEnd::Exited(0), None).await;
                    agent.agent.answer(id, reply).await;
                }
                _ => {
                    program.agent.run = program.id;
                    program.agent.log("x").await;
                }
            }
            std::future::pending().await
        });
        let mut spec = with_programs(&world);
        spec.limits.output_bytes = ByteSize::b(10);
        let sandbox = launch(&world, spec).await;
        let command = Command::new("x").stdin(Stdin::Stream);
        let mut execution = sandbox.start(command, CancelHandle::new()).await.unwrap();
        let _stdin = execution.stdin();
        let mut result = execution.wait().await.unwrap();
        assert_eq!(result.stdout().bytes, b"12345678", "{what}: what had come is kept");
        if what == "a second answer" {
            // The first outcome stands: the next command finds that the sandbox has ended.
            assert_eq!(result.outcome.status(), Status::Ok);
            match sandbox.run(Command::new("x")).await {
                Ok(next) => result = next,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::AgentLost);
                    continue;
                }
            }
        }
        assert_eq!(result.outcome.status(), Status::AgentLost, "{what}: {:?}", result.outcome);
        assert_eq!(result.outcome.exit_code(), 122);
        assert!(world.fake.calls().contains(&"kill"), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn engine_evidence_decides_when_a_programs_agent_is_silent() {
    for (code, oom_killed, status) in [
        (Some(137), true, Status::Limit),
        (Some(137), false, Status::Killed),
        (Some(0), false, Status::AgentLost),
    ] {
        let (result, _world) =
            run(Command::new("x"), async move |mut agent: Scripted, fake: Arc<Fake>| {
                Program::asked(&mut agent).await.write(0, "last words").await;
                fake.ends_with(code, oom_killed);
            })
            .await;
        assert_eq!(result.outcome.status(), status, "{code:?} {oom_killed}");
        assert_eq!(result.stdout().bytes, b"last words");
        assert_eq!((result.command_exit_code(), result.signal()), (None, None));
    }
}

#[tokio::test(start_paused = true)]
async fn input_is_written_as_the_program_takes_it_and_ends_when_it_is_dropped() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        let stdin = program.exec.stdin.unwrap();
        let (mut left, mut got) = (INITIAL_CREDIT, 0);
        loop {
            let Some(ToAgent::Chunk(chunk)) = program.agent.agent.message().await else { panic!() };
            let length = chunk.data.0.len() as u64;
            (left, got) = (left - length, got + length);
            if chunk.last {
                break;
            }
            if left == 0 {
                left += 100_000;
                let credit = Credit { stream: stdin, bytes: 100_000 };
                program.agent.notify(FromAgent::Credit(credit)).await;
            }
        }
        program.write(0, &got.to_string()).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let command = Command::shell("wc -c").stdin(Stdin::Stream);
    let mut execution = sandbox.start(command, CancelHandle::new()).await.unwrap();
    let mut stdin = execution.stdin().unwrap();
    assert!(execution.stdin().is_none());
    let write = async move {
        stdin.write_all(&vec![b'x'; 1_000_000]).await.unwrap();
    };
    let ((), result) = tokio::join!(write, execution.wait());
    assert_eq!(result.unwrap().stdout().bytes, b"1000000");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_ends_before_its_input_breaks_the_pipe() {
    let world = greeted(async |mut agent: Scripted, _| {
        let program = Program::asked(&mut agent).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let command = Command::new("true").stdin(Stdin::Stream);
    let mut execution = sandbox.start(command, CancelHandle::new()).await.unwrap();
    let mut stdin = execution.stdin().unwrap();
    let write = async {
        let error = loop {
            if let Err(error) = stdin.write_all(&[b'x'; 1000]).await {
                break error;
            }
        };
        error.kind()
    };
    let (error, result) = tokio::join!(write, execution.wait());
    assert_eq!(error, std::io::ErrorKind::BrokenPipe);
    assert_eq!(result.unwrap().outcome.status(), Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn more_commands_than_places_wait_for_theirs() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut asked = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            let program = Program::asked(&mut agent).await;
            asked.push((program.id, program.exec));
        }
        // No further request arrives before one of them has ended.
        let next = tokio::time::timeout(Duration::from_secs(5), agent.agent.message()).await;
        assert!(next.is_err(), "{next:?}");
        while let Some((id, exec)) = asked.pop() {
            let program = Program { agent: &mut agent, id, exec, sent: [0; 2], seq: [0; 2] };
            program.end(ExecEnd::Exited(0), None).await;
            if asked.len() == MAX_IN_FLIGHT - 1 {
                let program = Program::asked(&mut agent).await;
                program.end(ExecEnd::Exited(1), None).await;
            }
        }
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let all = (0..=MAX_IN_FLIGHT).map(|_| sandbox.run(Command::new("x")));
    let results = futures_util::future::join_all(all).await;
    let codes: Vec<i32> =
        results.into_iter().map(|it| it.unwrap().command_exit_code().unwrap()).collect();
    assert_eq!(codes.iter().filter(|&&code| code == 0).count(), MAX_IN_FLIGHT);
    assert_eq!(codes[MAX_IN_FLIGHT], 1);
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_scripts_time_begins_when_there_is_a_place_for_it() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut asked = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            let program = Program::asked(&mut agent).await;
            asked.push((program.id, program.exec));
        }
        tokio::time::sleep(Duration::from_secs(100)).await;
        for (id, exec) in asked {
            let program = Program { agent: &mut agent, id, exec, sent: [0; 2], seq: [0; 2] };
            program.end(ExecEnd::Exited(0), None).await;
        }
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let long = || Command::new("x").timeout(Duration::from_secs(200));
    let programs = futures_util::future::join_all((0..MAX_IN_FLIGHT).map(|_| sandbox.run(long())));
    let (programs, run) = tokio::join!(programs, sandbox.run(Script::new("x")));
    assert_eq!(run.unwrap().outcome.status(), Status::Ok);
    assert!(programs.iter().all(Result::is_ok));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_command_that_no_sandbox_can_be_given_is_the_callers_mistake() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = launch(&world, with_programs(&world)).await;
    for (command, words) in [
        (Command::new("a\0b"), "NUL"),
        (Command::new("x").arg("\0"), "NUL"),
        (Command::new("x").cwd("a\0"), "NUL"),
        (Command::new("x").env("A=B", "c"), "'A=B' is not the name of a variable"),
        (Command::new("x").env("", "c"), "'' is not the name of a variable"),
        (Command::shell("x".repeat(600_000)), "longer than 524288 bytes"),
        (Command::new("x").args(vec!["a"; 100_000]), "longer than 524288 bytes"),
    ] {
        let error = sandbox.run(command).await.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(words), "{error}");
    }
    let long = Command::new("x").timeout(Duration::from_secs(601));
    assert_eq!(sandbox.run(long).await.unwrap_err().exit_code(), 121);
    sandbox.close().await.unwrap();
    let error = sandbox.run(Command::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AgentLost);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_without_programs_takes_no_command() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = world.launch().await.unwrap();
    let error = sandbox.run(Command::new("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Usage, 2));
    assert!(error.hint().unwrap().contains("--image"));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changes_of_a_program_are_found_by_a_scan() {
    let world = World::in_its_io(async |io, mut agent: Scripted, _| {
        let program = Program::asked(&mut agent).await;
        std::fs::write(io.join("made"), "123").unwrap();
        std::fs::remove_file(io.join("gone")).unwrap();
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    std::fs::write(world.io.path().join("gone"), "1").unwrap();
    std::fs::write(world.io.path().join("same"), "1").unwrap();
    let result = launch(&world, with_programs(&world)).await.run(Command::new("x")).await.unwrap();
    let files = &result.files_touched;
    let file = |name: &str, op, bytes| TouchedFile { name: name.into(), op, bytes };
    let expected = [file("gone", FileOp::Remove, 0), file("made", FileOp::Write, 3)];
    assert_eq!(files.files, expected);
    assert!(!files.truncated);
}

#[tokio::test(start_paused = true)]
async fn growth_beyond_a_limit_ends_the_program_and_is_found_afterwards_too() {
    for (files, bytes, kind) in
        [(1, 300_000, ErrorKind::WriteLimit), (20, 0, ErrorKind::TooManyFiles)]
    {
        for is_seen in [true, false] {
            let world = World::in_its_io(async move |io, mut agent: Scripted, _| {
                let mut program = Program::asked(&mut agent).await;
                for number in 0..files {
                    std::fs::write(io.join(number.to_string()), vec![b'x'; bytes]).unwrap();
                }
                if is_seen {
                    program.cancelled().await;
                    program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
                } else {
                    program.end(ExecEnd::Exited(0), None).await;
                }
                agent.rest().await;
            });
            let mut spec = with_programs(&world);
            spec.limits.max_write = ByteSize::b(200_000);
            spec.limits.entries = std::num::NonZeroU32::new(19).unwrap();
            let result = launch(&world, spec).await.run(Command::new("x")).await.unwrap();
            assert_eq!((result.outcome.status(), result.outcome.exit_code()), (Status::Limit, 120));
            assert_eq!(result.outcome.failure().unwrap().kind, kind);
            assert_eq!(result.command_exit_code(), (!is_seen).then_some(0));
            assert_eq!(result.files_touched.files.len(), files);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_directory_of_a_program_blocks_further_commands() {
    let world = World::in_its_io(async |io, mut agent: Scripted, _| {
        let program = Program::asked(&mut agent).await;
        let path: PathBuf = std::iter::repeat_n("d", 130).collect();
        std::fs::create_dir_all(io.join(path)).unwrap();
        program.end(ExecEnd::Exited(0), None).await;
        // A command that gets a permit is requested here.
        let program = Program::asked(&mut agent).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let exec = async || {
        let result = sandbox.run(Command::new("x")).await.unwrap();
        let failure = result.outcome.failure();
        (
            result.outcome.status(),
            failure.map(|it| (it.kind, it.message)),
            result.command_exit_code(),
        )
    };
    let (status, made, code) = exec().await;
    assert_eq!((status, code), (Status::Limit, Some(0)));
    let (kind, message) = made.unwrap();
    assert_eq!(kind, ErrorKind::TooManyFiles);
    assert!(message.starts_with("the io dir has directories"), "{message}");
    let (status, refused, code) = exec().await;
    assert_eq!((status, code), (Status::Limit, None));
    let (_, message) = refused.unwrap();
    assert!(message.starts_with("nothing was started: the io dir has"), "{message}");
    let run = sandbox.run(Script::new("return 1")).await.unwrap();
    assert_eq!(run.outcome.failure().unwrap().kind, ErrorKind::TooManyFiles);
    assert_eq!(run.hint(), None, "--entries does not help");
    std::fs::remove_dir_all(sandbox.io_dir().unwrap().join("d")).unwrap();
    assert_eq!(exec().await, (Status::Ok, None, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn no_program_begins_where_less_space_is_left_than_must_stay_free() {
    for (reserve, expected) in [(0, None), (1 << 60, Some(ErrorKind::DiskFull))] {
        let world = World::in_its_io(async |_, mut agent: Scripted, _| {
            let program = Program::asked(&mut agent).await;
            program.end(ExecEnd::Exited(0), None).await;
            agent.rest().await;
        });
        let world = world.reserving(DiskReserve::Bytes(ByteSize::b(reserve)));
        let sandbox = launch(&world, with_programs(&world)).await;
        let result = sandbox.run(Command::new("x")).await.unwrap();
        assert_eq!(result.outcome.failure().map(|failure| failure.kind), expected);
        if expected.is_some() {
            assert_eq!(
                (result.outcome.status(), result.command_exit_code()),
                (Status::Limit, None)
            );
            assert!(result.hint().unwrap().contains("make room"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_that_may_start_programs_is_watched_and_scanned_as_they_are() {
    let world = World::in_its_io(async |io, mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.touched("/io/announced", Change::Write).await;
        agent.touched("/io/announced", Change::Remove).await;
        std::fs::write(io.join("by-a-program"), "123").unwrap();
        agent.returned(id, "1").await;
        let id = agent.run_request().await;
        std::fs::write(io.join("large"), vec![b'x'; 300_000]).unwrap();
        let (cancel, request) = agent.agent.request().await.unwrap();
        assert!(matches!(request, Request::Cancel(_)), "{request:?}");
        agent.agent.answer(cancel, ControlReply { found: true }).await;
        let error = ScriptError::new(ErrorKind::Cancelled, "cancelled");
        let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
        let end = RunEnd::Failed(error);
        agent.agent.answer(id, RunReply { end, logs_truncated: false, usage }).await;
        agent.rest().await;
    });
    let mut spec = with_programs(&world);
    spec.limits.max_write = ByteSize::b(200_000);
    let sandbox = launch(&world, spec).await;
    let result = sandbox.run(Script::new("x")).await.unwrap();
    assert_eq!(result.outcome.status(), Status::Ok);
    assert_eq!(result.files_touched.source, TouchedSource::Scan);
    let names = result.files_touched.files.iter().map(|it| (it.name.to_string(), it.op));
    let expected = [("announced", FileOp::Remove), ("by-a-program", FileOp::Write)];
    assert!(names.eq(expected.map(|(name, op)| (name.to_owned(), op))));
    let result = sandbox.run(Script::new("x")).await.unwrap();
    assert_eq!(result.outcome.status(), Status::Limit);
    assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::WriteLimit);
}
