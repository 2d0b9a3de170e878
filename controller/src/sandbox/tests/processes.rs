//! Processes that live on, with a scripted agent: what they report, what a hostile agent may not, and
//! readers of every pace.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_api::operation::Read;
use sandbox_api::{
    EventRecord, ExecutionEvent, OutputStream, ProcessCommand, ProcessState, ProcessStop,
    ProcessView, Processes, ReadFrom, ReadMode, Recorded, SandboxSpec, SecretValue, Secrets,
    SignalName, SignalTarget, Stdin, TerminalSize,
};
use sandbox_protocol::ToAgent;
use sandbox_protocol::limits::MAX_COMMANDS;
use sandbox_protocol::message::{ControlReply, ExecEnd, ExecReply, ExecStop, Pty};

use super::exec::{Program, launch, with_programs};
use super::fake::{Fake, Scripted, World, greeted};
use super::*;
use crate::process::{Process, ProcessEvents, StdinError, Until};
use sandbox_api::Command;

const SECOND: Duration = Duration::from_secs(1);

fn keeping(world: &World) -> SandboxSpec {
    with_programs(world).processes(Processes::Kept)
}

/// An event in a few words.
fn words(record: &EventRecord) -> String {
    let what = match &record.event {
        Recorded::Event(ExecutionEvent::Output { stream, data }) => {
            let mark = if *stream == OutputStream::Stderr { "!" } else { "" };
            format!("{mark}{}", String::from_utf8_lossy(data))
        }
        Recorded::Event(ExecutionEvent::Exited(end)) => format!("{end:?}"),
        Recorded::Event(_) => record.event.name().to_owned(),
        Recorded::End { exit_code, .. } => format!("end {exit_code}"),
    };
    format!("{} {what}", record.seq)
}

async fn all(events: ProcessEvents) -> Vec<String> {
    events.map(|record| words(&record)).collect().await
}

async fn next(events: &mut ProcessEvents) -> String {
    words(&events.next().await.unwrap())
}

fn read_all(process: &Process) -> ProcessEvents {
    process.attach(ReadFrom::After(0), ReadMode::Lossy).unwrap()
}

/// Starts one process with an agent that behaves like this.
async fn start<F>(
    command: impl Into<ProcessCommand>,
    act: impl FnOnce(Scripted, Arc<Fake>) -> F + Send + 'static,
) -> (Process, Sandbox, World)
where
    F: Future<Output = ()> + Send + 'static,
{
    let world = greeted(act);
    let sandbox = launch(&world, keeping(&world)).await;
    let process = sandbox.start_process(command).await.unwrap();
    (process, sandbox, world)
}

#[tokio::test(start_paused = true)]
async fn a_process_reports_its_life_in_numbered_events() {
    let command = ProcessCommand {
        tag: Some("server".to_owned()),
        ..Command::new("serve").arg("8080").into()
    };
    let (process, sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        assert!(program.exec.kept && program.exec.stdin.is_none());
        assert_eq!(program.exec.timeout_ms, None);
        program.started(15).await;
        program.write(0, "out").await;
        // What comes on both at a time is in no order.
        tokio::time::sleep(SECOND).await;
        program.write(1, "err").await;
        program.exited(ExecEnd::Exited(3)).await;
        // Of what it has left behind.
        program.write(0, "more").await;
        program.end(ExecEnd::Exited(3), None).await;
        agent.rest().await;
    })
    .await;
    assert_eq!((process.id(), process.view().pid), (1, 15));
    process.until(Until::Exited).await;
    let seen = all(read_all(&process)).await;
    assert_eq!(seen, ["1 start", "2 out", "3 !err", "4 Code(3)", "5 more", "6 end 3"]);
    process.until(Until::Ended).await;
    let view = process.view();
    assert_eq!((view.state, view.exit_code, view.signal), (ProcessState::Ended, Some(3), None));
    assert_eq!((view.cpu_ms, view.stopped, view.out_of_memory), (Some(7), None, Some(false)));
    assert_eq!((view.first_event, view.last_event), (1, 6));
    assert_eq!((view.command.as_str(), view.tag.as_deref()), ("serve 8080", Some("server")));
    // The end has what is known of it.
    let mut events = process.attach(ReadFrom::After(5), ReadMode::Wait).unwrap();
    let last = events.next().await.unwrap();
    let Recorded::End { document, .. } = &last.event else { panic!("{last:?}") };
    assert_eq!(serde_json::from_str::<ProcessView>(document.get()).unwrap(), view);
    assert!(events.next().await.is_none());
    assert!(all(process.attach(ReadFrom::Now, ReadMode::Wait).unwrap()).await.is_empty());
    assert_eq!(sandbox.processes().len(), 1);
    assert_eq!(sandbox.process(1).unwrap().id(), 1);
    assert!(sandbox.process(2).is_none());
    // It has nothing to be asked for any more.
    assert!(!process.signal(SignalName::Term, SignalTarget::Tree).await.unwrap());
    process.stop().await;
    // It never had one, which is the mistake to mend.
    assert_eq!(process.write_stdin(Bytes::new()).await, Err(StdinError::NoStdin));
    assert_eq!(process.close_stdin().await, Err(StdinError::NoStdin));
}

#[tokio::test(start_paused = true)]
async fn a_process_is_silent_once_its_outputs_are_closed_whatever_it_has_left() {
    let (process, _sandbox, _world) = start(Command::new("x"), async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        program.write(0, "out").await;
        program.exited(ExecEnd::Exited(0)).await;
        program.last().await;
        std::future::pending::<()>().await;
    })
    .await;
    process.until(Until::Silent).await;
    assert_eq!(process.view().state, ProcessState::Left);
    let mut events = read_all(&process);
    // All of its output is there by then.
    for expected in ["1 start", "2 out", "3 Code(0)"] {
        assert_eq!(next(&mut events).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_not_executed_says_why() {
    let world = greeted(async |mut agent: Scripted, _| {
        Program::asked(&mut agent).await.refuse(ErrorKind::CommandNotFound).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, keeping(&world)).await;
    let error = sandbox.start_process(Command::new("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::CommandNotFound, 127));
    assert!(sandbox.processes().is_empty() && sandbox.ended().is_none());
    let scrollback = ByteSize::b(1);
    let tiny = ProcessCommand { scrollback, ..Command::new("x").into() };
    assert_eq!(sandbox.start_process(tiny).await.unwrap_err().kind(), ErrorKind::Usage);

    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = launch(&world, with_programs(&world)).await;
    let error = sandbox.start_process(Command::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::ProcessesUnsupported), "{error}");
    assert!(error.hint().is_some());
}

#[tokio::test(start_paused = true)]
async fn agent_that_contradicts_itself_about_a_process_is_lost() {
    const BAD: &[&str] = &[
        "started twice",
        "output before its start",
        "exited twice",
        "answered without an exit",
        "another end",
        "another length",
        "no end of output",
        "a timeout that it has not",
        "a cancel that nobody asked for",
        "an output limit",
        "an error after its start",
        "exited first",
        "answered first",
        "an unknown refusal",
    ];
    for &bad in BAD {
        let world = greeted(async move |mut agent: Scripted, _| {
            contradict(&mut agent, bad).await;
            std::future::pending().await
        });
        let sandbox = launch(&world, keeping(&world)).await;
        let started = sandbox.start_process(Command::new("x")).await;
        sandbox.until_ended().await;
        let error = sandbox.ended().unwrap().to_string();
        assert!(error.contains("the agent broke the protocol"), "{bad}: {error}");
        if let Ok(process) = started {
            process.until(Until::Ended).await;
            let seen = all(read_all(&process)).await;
            assert!(seen.last().unwrap().contains("end "), "{bad}: {seen:?}");
        }
    }
}

/// An agent that contradicts itself in this way.
async fn contradict(agent: &mut Scripted, bad: &str) {
    let mut program = Program::asked(agent).await;
    let (end, other) = (ExecEnd::Exited(0), ExecEnd::Exited(1));
    match bad {
        "output before its start" => program.write(0, "x").await,
        "exited first" => return program.exited(end).await,
        "answered first" => return program.end(end, None).await,
        "an unknown refusal" => return program.refuse(ErrorKind::WriteLimit).await,
        _ => {}
    }
    program.started(15).await;
    match bad {
        "started twice" => program.started(16).await,
        "answered without an exit" => return program.end(end, None).await,
        "an error after its start" => return program.refuse(ErrorKind::Busy).await,
        _ => {}
    }
    program.exited(end).await;
    match bad {
        "exited twice" => program.exited(end).await,
        "another end" => program.end(other, None).await,
        "a timeout that it has not" => program.end(end, Some(ExecStop::Timeout)).await,
        "an output limit" => program.end(end, Some(ExecStop::OutputLimit)).await,
        "a cancel that nobody asked for" => program.end(end, Some(ExecStop::Cancelled)).await,
        "another length" => {
            program.last().await;
            let reply = ExecReply { stdout_bytes: 1, ..program.reply(end, None) };
            program.agent.agent.answer(program.id, reply).await;
        }
        "no end of output" => {
            let reply = program.reply(end, None);
            program.agent.agent.answer(program.id, reply).await;
        }
        _ => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_sandbox_is_the_end_of_its_processes() {
    let (process, sandbox, world) = start(Command::new("x"), async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        program.write(0, "part").await;
        agent.rest().await;
    })
    .await;
    let mut reader = process.attach(ReadFrom::After(1), ReadMode::Wait).unwrap();
    assert_eq!(next(&mut reader).await, "2 part");
    sandbox.close().await.unwrap();
    assert_eq!(next(&mut reader).await, "3 end 122");
    assert!(reader.next().await.is_none());
    process.until(Until::Exited).await;
    let view = process.view();
    assert_eq!((view.state, view.exit_code, view.cpu_ms), (ProcessState::Ended, None, None));
    assert!(view.exited_at.is_some());
    world.assert_removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_a_process_up_for_half_a_minute_and_then_misses_events() {
    let command = ProcessCommand { scrollback: ByteSize::b(64 << 10), ..Command::new("x").into() };
    let (process, sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        for _ in 0..8 {
            program.chunk(0, vec![b'x'; 32 << 10], false).await;
        }
        std::future::pending().await
    })
    .await;
    let mut slow = process.attach(ReadFrom::After(0), ReadMode::Wait).unwrap();
    let mut lossy = read_all(&process);
    assert_eq!([next(&mut slow).await, next(&mut lossy).await], ["1 start", "1 start"]);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(process.view().last_event, 2);
    // What is paused waits for no reader.
    sandbox.pause().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    sandbox.resume().await.unwrap();
    tokio::time::sleep(9 * SECOND).await;
    assert_eq!(process.view().last_event, 2);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(process.view().last_event, 9);
    assert!(process.kept_bytes() <= 64 << 10);
    for reader in [&mut slow, &mut lossy] {
        assert_eq!(next(reader).await, "8 omitted");
        assert!(next(reader).await.starts_with("9 xxx"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_process_prints_at_once_waits_a_moment_for_its_first_reader() {
    for is_read in [true, false] {
        let scrollback = ByteSize::b(64 << 10);
        let command = ProcessCommand { scrollback, ..Command::new("x").into() };
        let (process, _sandbox, _world) = start(command, async |mut agent: Scripted, _| {
            let mut program = Program::asked(&mut agent).await;
            program.started(15).await;
            for _ in 0..4 {
                program.chunk(0, vec![b'x'; 32 << 10], false).await;
            }
            program.exited(ExecEnd::Exited(0)).await;
            program.end(ExecEnd::Exited(0), None).await;
            std::future::pending().await
        })
        .await;
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(process.view().first_event, 1);
        if is_read {
            let seen = all(process.attach(ReadFrom::After(0), ReadMode::Wait).unwrap()).await;
            assert_eq!((seen.len(), &*seen[0], &*seen[6]), (7, "1 start", "7 end 0"));
        } else {
            tokio::time::sleep(SECOND).await;
            let view = process.view();
            assert_eq!((view.state, view.last_event), (ProcessState::Ended, 7));
            assert!(view.first_event > 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_waited_for_misses_nothing() {
    const PIECES: usize = 50;
    let command = ProcessCommand { scrollback: ByteSize::b(64 << 10), ..Command::new("x").into() };
    let (process, _sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        let mut credit = 256 << 10;
        for _ in 0..PIECES {
            while credit < 60_000 {
                match program.agent.agent.message().await.unwrap() {
                    ToAgent::Credit(more) => credit += more.bytes,
                    other => panic!("{other:?}"),
                }
            }
            program.chunk(0, vec![b'x'; 60_000], false).await;
            credit -= 60_000;
        }
        program.exited(ExecEnd::Exited(0)).await;
        program.end(ExecEnd::Exited(0), None).await;
        std::future::pending().await
    })
    .await;
    let mut reader = process.attach(ReadFrom::After(0), ReadMode::Wait).unwrap();
    let (mut last, mut bytes) = (0, 0);
    while let Some(record) = reader.next().await {
        assert_eq!(record.seq, last + 1);
        last = record.seq;
        if let Recorded::Event(ExecutionEvent::Output { data, .. }) = &record.event {
            assert!(data.len() <= 32 << 10);
            bytes += data.len();
        }
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(bytes, PIECES * 60_000);
}

#[tokio::test(start_paused = true)]
async fn a_process_has_so_many_readers_and_dropping_one_ends_nothing() {
    let (process, _sandbox, _world) = start(Command::new("x"), async |mut agent: Scripted, _| {
        Program::asked(&mut agent).await.started(15).await;
        agent.rest().await;
    })
    .await;
    let readers: Vec<_> = (0..8).map(|_| read_all(&process)).collect();
    let error = process.attach(ReadFrom::Now, ReadMode::Lossy).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(readers);
    assert_eq!(next(&mut read_all(&process)).await, "1 start");
    assert_eq!(process.view().state, ProcessState::Running);
}

#[tokio::test(start_paused = true)]
async fn input_can_come_later() {
    let command = ProcessCommand {
        open_stdin: true,
        ..Command::new("x").stdin(Stdin::Bytes(b"first ".to_vec())).into()
    };
    let (process, _sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        let mut input = Vec::new();
        loop {
            let message = program.agent.agent.message().await;
            let Some(ToAgent::Chunk(chunk)) = message else { panic!("{message:?}") };
            assert_eq!(Some(chunk.stream), program.exec.stdin);
            input.extend(chunk.data.0);
            if chunk.last {
                break;
            }
        }
        program.write(0, &String::from_utf8(input).unwrap()).await;
        program.exited(ExecEnd::Exited(0)).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    })
    .await;
    process.write_stdin(Bytes::from_static(b"then ")).await.unwrap();
    process.write_stdin(Bytes::from_static(b"last")).await.unwrap();
    process.close_stdin().await.unwrap();
    assert_eq!(process.close_stdin().await, Err(StdinError::NoStdin));
    let seen = all(read_all(&process)).await;
    assert_eq!(seen, ["1 start", "2 first then last", "3 Code(0)", "4 end 0"]);
}

#[tokio::test(start_paused = true)]
async fn signals_and_sizes_reach_the_agent_and_a_second_stop_is_at_once() {
    let term = Pty { cols: 80, rows: 24, term: "xterm".to_owned() };
    let command = Command::new("x").pty(term);
    let (process, _sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        assert!(program.exec.pty.is_some() && program.exec.stderr.is_none());
        program.started(15).await;
        let (id, request) = program.control().await;
        let Request::Signal(signal) = request else { panic!("{request:?}") };
        let expected = (program.id, SignalName::Int, SignalTarget::Foreground);
        assert_eq!((signal.id, signal.signal, signal.to), expected);
        program.agent.agent.answer(id, ControlReply { found: true }).await;
        let (id, request) = program.control().await;
        let Request::Resize(resize) = request else { panic!("{request:?}") };
        assert_eq!((resize.id, resize.cols, resize.rows), (program.id, 132, 43));
        program.agent.agent.answer(id, ControlReply { found: false }).await;
        assert!(!program.cancel().await.at_once);
        assert!(program.cancel().await.at_once);
        program.exited(ExecEnd::Signaled(9)).await;
        program.end(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)).await;
        agent.rest().await;
    })
    .await;
    assert!(process.signal(SignalName::Int, SignalTarget::Foreground).await.unwrap());
    assert!(!process.resize(TerminalSize { cols: 132, rows: 43 }).await.unwrap());
    assert!(process.resize(TerminalSize { cols: 0, rows: 43 }).await.is_err());
    process.stop().await;
    tokio::time::sleep(SECOND).await;
    process.stop().await;
    process.until(Until::Ended).await;
    let view = process.view();
    assert_eq!((view.signal, view.stopped), (Some(9), Some(ProcessStop::Cancelled)));
    // By a kill of the controller.
    assert_eq!(view.out_of_memory, Some(false));
    assert_eq!(all(read_all(&process)).await.last().unwrap(), "3 end 137");
}

#[tokio::test(start_paused = true)]
async fn agent_that_does_not_end_a_process_loses_its_sandbox() {
    for command in [Command::new("x"), Command::new("x").timeout(5 * SECOND)] {
        let has_timeout = command.timeout.is_some();
        let (process, sandbox, _world) = start(command, async |mut agent: Scripted, _| {
            Program::asked(&mut agent).await.started(15).await;
            std::future::pending().await
        })
        .await;
        if !has_timeout {
            process.stop().await;
        }
        process.until(Until::Ended).await;
        assert!(sandbox.ended().is_some());
        assert_eq!(process.view().exit_code, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_may_have_another_grace_than_its_sandbox_and_no_longer_one_than_the_ceiling() {
    let command = Command::new("x").stop_timeout(50 * SECOND);
    let (process, sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        assert_eq!(program.exec.grace_ms, 50_000);
        program.started(15).await;
        assert!(!program.cancel().await.at_once);
        std::future::pending().await
    })
    .await;
    let longer = Command::new("x").stop_timeout(61 * SECOND);
    let error = sandbox.start_process(longer).await.unwrap_err();
    assert!(matches!(error, Error::OverCeiling(_)), "{error}");
    let before = tokio::time::Instant::now();
    process.stop().await;
    process.until(Until::Ended).await;
    let took = before.elapsed();
    assert!(took >= 53 * SECOND && took < 70 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_killed_without_anyone_here_may_have_run_out_of_memory() {
    let (process, _sandbox, _world) = start(Command::new("x"), async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        program.exited(ExecEnd::Signaled(9)).await;
        program.end(ExecEnd::Signaled(9), None).await;
        agent.rest().await;
    })
    .await;
    process.until(Until::Ended).await;
    // This engine knows no control groups.
    assert_eq!((process.view().signal, process.view().out_of_memory), (Some(9), None));
}

#[tokio::test(start_paused = true)]
async fn processes_take_no_place_of_other_requests_and_there_are_so_many() {
    let world = greeted(async |mut agent: Scripted, _| {
        for pid in 0..MAX_COMMANDS as u32 {
            Program::asked(&mut agent).await.started(pid).await;
        }
        let program = Program::asked(&mut agent).await;
        assert!(!program.exec.kept);
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, keeping(&world).idle_limit(Some(SECOND))).await;
    for id in 1..=MAX_COMMANDS as u32 {
        assert_eq!(sandbox.start_process(Command::new("x")).await.unwrap().id(), id);
    }
    let error = sandbox.start_process(Command::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // Each is a use.
    tokio::time::sleep(60 * SECOND).await;
    let result = sandbox.run(Command::new("x")).await.unwrap();
    assert_eq!(result.outcome.status(), Status::Ok);
    let ids = sandbox.processes().iter().map(Process::id).collect::<Vec<_>>();
    assert!(ids.into_iter().eq((1..=MAX_COMMANDS as u32).rev()));
}

#[tokio::test(start_paused = true)]
async fn what_processes_write_together_ends_the_sandbox_when_it_is_too_much() {
    let world = World::in_its_io(async |io, mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        let mut other = Program::asked(&mut agent).await;
        other.started(16).await;
        for name in ["a", "b"] {
            std::fs::write(io.join(name), vec![b'x'; 150_000]).unwrap();
        }
        agent.rest().await;
    });
    let mut spec = keeping(&world);
    spec.limits.max_write = ByteSize::b(200_000);
    let sandbox = launch(&world, spec).await;
    let first = sandbox.start_process(Command::new("x")).await.unwrap();
    sandbox.start_process(Command::new("x")).await.unwrap();
    sandbox.until_ended().await;
    first.until(Until::Ended).await;
    assert_eq!(sandbox.ended().unwrap().kind(), ErrorKind::WriteLimit);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_replaced_before_output_is_kept() {
    let mut secrets = Secrets::new();
    secrets.add("TOKEN", SecretValue::new("hunter2hunter2")).unwrap();
    let command = Command::new("x").arg("hunter2hunter2").secrets(secrets);
    let (process, _sandbox, _world) = start(command, async |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        program.write(0, "it is hunter2hun").await;
        program.write(0, "ter2, and hunter2hu").await;
        program.exited(ExecEnd::Exited(0)).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    })
    .await;
    let seen = all(read_all(&process)).await;
    let seen: String = seen.iter().map(|event| event.split_once(' ').unwrap().1).collect();
    // What is held back when it exits comes before that.
    assert_eq!(seen, "startit is ***, and ***Code(0)end 0");
    assert_eq!(process.view().command, "x ***");
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_is_asked_for_nothing_and_is_not_late() {
    let world = greeted(async |mut agent: Scripted, _| {
        Program::asked(&mut agent).await.started(15).await;
        let program = Program::asked(&mut agent).await;
        // Longer than its time limit, but not by the clock of the sandbox.
        tokio::time::sleep(3600 * SECOND).await;
        program.end(ExecEnd::Exited(0), None).await;
        agent.rest().await;
    });
    let sandbox = launch(&world, keeping(&world).lifetime(10_000 * SECOND)).await;
    let process = sandbox.start_process(Command::new("x")).await.unwrap();
    let execution = sandbox.start(Command::new("x"), CancelHandle::new()).await.unwrap();
    tokio::time::sleep(SECOND).await;
    for _ in 0..2 {
        sandbox.pause().await.unwrap();
        assert!(sandbox.is_paused());
    }
    let error = sandbox.start_process(Command::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Paused), "{error}");
    let error = process.signal(SignalName::Term, SignalTarget::Group).await.unwrap_err();
    assert!(matches!(error, Error::Paused), "{error}");
    let error = sandbox.run(Command::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Paused), "{error}");
    let error = sandbox.read(Read::new("a"), None).await.unwrap_err();
    assert!(matches!(error, Error::Paused), "{error}");
    tokio::time::sleep(3598 * SECOND).await;
    for _ in 0..2 {
        sandbox.resume().await.unwrap();
        assert!(!sandbox.is_paused());
    }
    let result = execution.wait().await.unwrap();
    assert_eq!(result.outcome.status(), Status::Ok);
    let calls = world.fake.calls();
    let of = |name| calls.iter().filter(|call| **call == name).count();
    assert_eq!((of("pause"), of("resume"), of("kill")), (1, 1, 0));
    // A paused one is removed without its agent.
    sandbox.pause().await.unwrap();
    sandbox.close().await.unwrap();
    world.assert_removed().await;
    sandbox.until_ended().await;
    let error = sandbox.resume().await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_paused_goes_on() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = launch(&world, keeping(&world)).await;
    world.fake.is_dead.store(true, Ordering::Relaxed);
    assert_eq!(sandbox.pause().await.unwrap_err().kind(), ErrorKind::Engine);
    assert!(!sandbox.is_paused());
    world.fake.is_dead.store(false, Ordering::Relaxed);
    sandbox.pause().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_caller_is_gone_before_it_starts_is_stopped() {
    let (stopped, is_stopped) = tokio::sync::oneshot::channel();
    let world = greeted(async move |mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        tokio::time::sleep(2 * SECOND).await;
        program.started(15).await;
        _ = stopped.send(program.cancel().await);
        agent.rest().await;
    });
    let sandbox = launch(&world, keeping(&world)).await;
    let start = sandbox.start_process(Command::new("x"));
    assert!(tokio::time::timeout(SECOND, start).await.is_err());
    assert!(!is_stopped.await.unwrap().at_once);
}
