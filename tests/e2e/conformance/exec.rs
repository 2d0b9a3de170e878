//! Commands by the library: collected and streamed, several at once, every end, every limit.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use sandbox_api::operation::{Remove, Write};
use sandbox_api::{
    ByteSize, CancelCause, ErrorKind, ExecutionResult, FileOp, Limits, Outcome, OutputStream,
    SandboxSpec, Script, Status, TouchedSource,
};
use sandbox_controller::{CancelHandle, Command, Execution, Stdin};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually};
use crate::library::{Guest, NextEvent as _};
use crate::rootfs::{Provided, Rootfs};

/// Limits with time for a busy machine.
fn patient() -> Limits {
    Limits { timeout: Duration::from_secs(120), ..Limits::default() }
}

/// A sandbox in which busybox is.
struct Programs {
    guest: Guest,
    _provided: Provided,
}

impl Programs {
    fn new() -> Self {
        Self::with(|spec| spec)
    }

    fn with(spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        Self::in_place(Fixture::new(), spec)
    }

    fn in_place(place: Fixture, spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        let provided = Rootfs::busybox().provide();
        let guest = Guest::in_place(place, |it| spec(it.root(provided.root()).limits(patient())));
        Self { guest, _provided: provided }
    }

    fn limited(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = patient();
        change(&mut limits);
        Self::with(|spec| spec.limits(limits))
    }

    #[track_caller]
    fn exec(&self, command: Command) -> ExecutionResult {
        self.wait(self.guest.sandbox.run(command)).unwrap()
    }

    #[track_caller]
    fn start(&self, command: Command) -> Execution {
        self.wait(self.guest.sandbox.start(command, CancelHandle::new())).unwrap()
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.guest.wait(future)
    }

    /// Asserts that the sandbox still works, without processes of earlier commands.
    #[track_caller]
    fn serves_on(&self) {
        let listed = self.exec(Command::shell("echo /proc/[0-9]*/exe | wc -w"));
        assert_eq!(listed.outcome.status(), Status::Ok, "{listed:?}");
        // The agent, the shell and what it asks, each.
        let processes: u32 = text(&listed.stdout().bytes).trim().parse().unwrap();
        assert!((2..=4).contains(&processes), "{processes}");
    }
}

#[track_caller]
fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap()
}

fn status(result: &ExecutionResult) -> (Status, u8) {
    (result.outcome.status(), result.outcome.exit_code())
}

fn kind(result: &ExecutionResult) -> Option<ErrorKind> {
    result.outcome.failure().map(|failure| failure.kind)
}

/// The first line that a command writes.
async fn first_line(execution: &mut Execution) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let (stream, piece) = execution.next_output().await.expect("a line");
        assert_eq!(stream, OutputStream::Stdout);
        line.extend_from_slice(&piece);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn a_command_is_given_what_it_is_given_and_says_how_it_ended() {
    let programs = Programs::new();
    let command = Command::new("sh")
        .args(["-c", "cat; pwd; echo \"$K\" \"$1\" \"$HOME\" >&2; exit 3", "sh", "a b"])
        .cwd("/tmp")
        .env("K", "v")
        .env("HOME", "/elsewhere")
        .stdin(Stdin::Bytes(b"input\n".to_vec()));
    let result = programs.exec(command);
    assert_eq!(status(&result), (Status::Exit, 3));
    assert_eq!((result.command_exit_code(), result.signal()), (Some(3), None));
    assert_eq!(
        (text(&result.stdout().bytes), text(&result.stderr().bytes)),
        ("input\n/tmp\n", "v a b /elsewhere\n")
    );
    assert_eq!(result.engine.as_str(), engine().name());
    let killed = programs.exec(Command::shell("kill -TERM $$"));
    assert_eq!((status(&killed), killed.signal()), ((Status::Exit, 143), Some(15)));
    // A kill that neither this project nor a lack of memory caused.
    let killed = programs.exec(Command::shell("kill -KILL $$"));
    assert_eq!((status(&killed), killed.signal()), ((Status::Exit, 137), Some(9)));
    for (command, code) in [
        (Command::new("nothing-of-that-name"), 127),
        (Command::new("/nothing"), 127),
        (Command::new("/bin"), 126),
        (Command::new("true").cwd("/nothing"), 2),
        (Command::new("true").cwd("/bin/busybox"), 2),
    ] {
        let result = programs.exec(command);
        assert_eq!(status(&result), (Status::Error, code), "{result:?}");
        assert_eq!((result.command_exit_code(), result.signal()), (None, None));
    }
}

#[test]
fn changes_of_commands_and_of_scripts_that_run_them_are_listed() {
    let place = Fixture::new();
    for name in ["same", "changed", "gone"] {
        place.write(&format!("sandbox-files/{name}"), "1");
    }
    let programs = Programs::in_place(place, |spec| spec);
    let line = "echo 12 > changed; rm gone; mkdir -p d/e; echo 1 > d/e/f; echo x > /tmp/x";
    let result = programs.exec(Command::shell(line));
    assert_eq!(status(&result), (Status::Ok, 0), "{result:?}");
    let files = |files: &sandbox_api::FilesTouched| -> Vec<(String, FileOp, u64)> {
        assert_eq!((files.source, files.truncated), (TouchedSource::Scan, false));
        files.files.iter().map(|file| (file.name.to_string(), file.op, file.bytes)).collect()
    };
    let expected =
        [("changed", FileOp::Write, 3), ("d/e/f", FileOp::Write, 2), ("gone", FileOp::Remove, 0)];
    let named = |(name, op, bytes): (&str, FileOp, u64)| (name.to_owned(), op, bytes);
    assert_eq!(files(&result.files_touched), expected.map(named));

    let source = "io.open('own', 'w'):write('1234'):close()
        local made = process.exec('sh', {'-c', 'echo 1 > theirs; echo 2 > brief'})
        fs.remove('brief')
        return made.ok";
    let run = programs.wait(programs.guest.sandbox.run(Script::new(source))).unwrap();
    let Outcome::Ok { result } = &run.outcome else { panic!("{run:?}") };
    assert_eq!(result.get(), "true");
    let expected =
        [("brief", FileOp::Remove, 0), ("own", FileOp::Write, 4), ("theirs", FileOp::Write, 2)];
    assert_eq!(files(&run.files_touched), expected.map(named));
}

#[test]
fn commands_run_at_once_beside_a_script_and_file_operations() {
    let programs = Programs::new();
    let sandbox = &programs.guest.sandbox;
    if !has(Feature::CommandsAtOnce) {
        let line = "echo ready; until [ -e 2 ]; do sleep 0.01; done";
        let mut first = programs.start(Command::shell(line));
        assert_eq!(programs.wait(first_line(&mut first)), "ready\n");
        let second = programs.exec(Command::new("true"));
        assert_eq!(kind(&second), Some(ErrorKind::Busy), "{second:?}");
        programs.guest.place.write("sandbox-files/2", "");
        assert_eq!(programs.wait(first.wait()).unwrap().outcome.status(), Status::Ok);
        return;
    }
    // Each waits for the one before, so they end only if all of them run.
    let chain = |number: u32| {
        let line = format!("until [ -e {number} ]; do sleep 0.01; done; touch {}", number + 1);
        programs.start(Command::shell(line))
    };
    let commands = [8, 7, 6, 5, 3, 2, 1].map(chain);
    let script = "while not fs.exists('4') do end io.open('5', 'w'):close() return 'script'";
    let (run, written) = programs.wait(async {
        let run = sandbox.run(Script::new(script));
        let write = sandbox.write(Write::new("1"), b"");
        tokio::join!(run, write)
    });
    written.unwrap();
    assert_eq!(run.unwrap().outcome.status(), Status::Ok);
    for command in commands {
        assert_eq!(programs.wait(command.wait()).unwrap().outcome.status(), Status::Ok);
    }
    assert!(programs.guest.place.path("sandbox-files/9").exists());
}

#[test]
fn a_conversation_goes_both_ways_in_bounded_memory() {
    let programs = Programs::limited(|limits| limits.timeout = Duration::from_secs(300));
    let total = 24 << 20;
    programs.wait(async {
        let command = Command::new("cat").stdin(Stdin::Stream);
        let mut execution =
            programs.guest.sandbox.start(command, CancelHandle::new()).await.unwrap();
        let mut stdin = execution.stdin().unwrap();
        // First a word and its echo, so that nothing waits for the end.
        stdin.write_all(b"ping\n").await.unwrap();
        assert_eq!(first_line(&mut execution).await, "ping\n");
        let byte = |at: usize| (at % 251) as u8;
        let write = async move {
            let mut at = 0;
            while at < total {
                let piece: Vec<u8> = (at..(at + 100_003).min(total)).map(byte).collect();
                stdin.write_all(&piece).await.unwrap();
                at += piece.len();
            }
        };
        let read = async {
            let mut at = 0;
            while at < total {
                let (_, piece) = execution.next_output().await.unwrap();
                assert!(piece.iter().enumerate().all(|(offset, &it)| it == byte(at + offset)));
                at += piece.len();
            }
            at
        };
        assert_eq!(tokio::join!(write, read).1, total);
        assert_eq!(execution.next_output().await, None);
        assert_eq!(execution.wait().await.unwrap().outcome.status(), Status::Ok);
    });
    if has(Feature::SharedKernel) {
        let [container] = &programs.guest.place.containers()[..] else { panic!() };
        let peak = engine().peak_memory_kib(container);
        assert!(peak < 32 << 10, "the agent has used {peak} KiB");
    }
}

#[test]
fn a_program_waits_for_the_reader_of_its_output() {
    let programs = Programs::new();
    let line = "i=0; while :; do i=$((i + 1)); echo $i > count.new; mv count.new count; \
                head -c 65536 /dev/zero; done";
    let (mut taken, count) = (0_u64, programs.guest.place.path("sandbox-files/count"));
    let written = || -> u64 {
        let text = std::fs::read_to_string(&count).unwrap_or_default();
        65536 * text.trim().parse::<u64>().unwrap_or(0)
    };
    let execution = programs.start(Command::shell(line));
    // It gets as far as the windows and the pipe are wide, and stands.
    let mut stands_at = 0;
    eventually("the program to stand still", || {
        let now = written();
        std::thread::sleep(Duration::from_millis(300));
        stands_at = written();
        (now > 0 && now == stands_at).then_some(())
    });
    assert!(stands_at < 2 << 20, "{stands_at}");
    programs.wait(async {
        let mut execution = execution;
        while taken < 8 << 20 {
            taken += execution.next_output().await.unwrap().1.len() as u64;
        }
        execution.cancel_handle().cancel(CancelCause::Caller);
        let result = execution.wait().await.unwrap();
        assert_eq!(status(&result), (Status::Cancelled, 130));
    });
    assert!(written() >= taken);
    programs.serves_on();
}

#[test]
fn output_beyond_the_limit_is_drained_and_blocks_nothing() {
    let programs = Programs::new();
    let line = "head -c 20000000 /dev/zero; echo end >&2";
    let result = programs.exec(Command::shell(line).output_limit(1000));
    assert_eq!(status(&result), (Status::Ok, 0));
    assert_eq!((result.stdout().bytes.len(), result.stdout().truncated), (1000, true));
    assert_eq!((text(&result.stderr().bytes), result.stderr().truncated), ("end\n", false));
}

#[test]
fn a_command_is_over_at_its_deadline_with_all_that_it_started() {
    let programs = Programs::new();
    let line = "trap '' TERM; echo before; (setsid sleep 1000 &); setsid sleep 1001 & sleep 1002";
    let begun = Instant::now();
    // Long enough for the shell to have started all of them, on a busy machine too.
    let timeout = Duration::from_secs(5);
    let result = programs.exec(Command::shell(line).timeout(timeout));
    assert!(begun.elapsed() >= timeout);
    assert_eq!(status(&result), (Status::Timeout, 124));
    assert!(result.timed_out() && result.failed());
    assert_eq!((result.command_exit_code(), result.signal()), (None, Some(9)));
    assert_eq!(text(&result.stdout().bytes), "before\n");
    programs.serves_on();
}

#[test]
fn a_cancel_and_a_drop_end_a_command_and_the_sandbox_serves_on() {
    let programs = Programs::new();
    programs.wait(async {
        let sandbox = &programs.guest.sandbox;
        let ready = Command::shell("setsid sleep 1000 & echo ready; sleep 1000");
        let mut execution = sandbox.start(ready.clone(), CancelHandle::new()).await.unwrap();
        assert_eq!(first_line(&mut execution).await, "ready\n");
        execution.cancel_handle().cancel(CancelCause::Interrupt);
        assert_eq!(status(&execution.wait().await.unwrap()), (Status::Cancelled, 130));
        let mut execution = sandbox.start(ready.clone(), CancelHandle::new()).await.unwrap();
        assert_eq!(first_line(&mut execution).await, "ready\n");
        drop(execution);
        // A command that is cancelled during the call has ended too.
        for patience in [0, 1, 3, 10, 30] {
            let exec = sandbox.run(ready.clone());
            _ = tokio::time::timeout(Duration::from_millis(patience), exec).await;
        }
    });
    eventually("the dropped ones to end", || {
        let listed = programs.exec(Command::shell("echo /proc/[0-9]*/exe | wc -w"));
        // Nothing is listed by a command that is refused because another one runs.
        text(&listed.stdout().bytes)
            .trim()
            .parse::<u32>()
            .is_ok_and(|count| count <= 4)
            .then_some(())
    });
    programs.serves_on();
}

#[test]
fn more_output_than_its_limit_ends_a_command_with_exactly_that_much() {
    let programs = Programs::limited(|limits| limits.output_bytes = ByteSize::b(300_000));
    let line = "head -c 100000 /dev/zero >&2; cat /dev/zero";
    let result = programs.exec(Command::shell(line));
    assert_eq!(
        (status(&result), kind(&result)),
        ((Status::Limit, 120), Some(ErrorKind::OutputLimit))
    );
    assert_eq!(
        (result.stdout().bytes.len() + result.stderr().bytes.len(), result.stderr().bytes.len()),
        (300_000, 100_000)
    );
    // Just as much is not too much.
    let result = programs.exec(Command::shell("head -c 300000 /dev/zero"));
    assert_eq!((status(&result), result.stdout().bytes.len()), ((Status::Ok, 0), 300_000));
    programs.serves_on();
}

/// An awk program that allocates until memory runs out.
const HOG: &str = "BEGIN { s = \"0123456789abcdef\"; while (1) s = s s }";

#[test]
fn oom_kill_is_reported_for_the_program_and_its_parent_keeps_its_own_status() {
    let programs = Programs::limited(|limits| limits.memory = ByteSize::b(64 << 20));
    let result = programs.exec(Command::new("awk").arg(HOG));
    assert_eq!(
        (status(&result), kind(&result)),
        ((Status::Limit, 120), Some(ErrorKind::OutOfMemory))
    );
    assert_eq!(result.hint().as_deref(), Some("--memory raises the limit"));
    if !has(Feature::OwnMemory) {
        // The whole sandbox has ended.
        assert_eq!((result.command_exit_code(), result.signal()), (None, None));
        return;
    }
    assert_eq!((result.command_exit_code(), result.signal()), (None, Some(9)));
    let line = format!("awk '{HOG}'; echo $?; exit 4");
    let result = programs.exec(Command::shell(line));
    assert_eq!((status(&result), text(&result.stdout().bytes)), ((Status::Exit, 4), "137\n"));
    // What ran out then is no reason of a later end, once the engine has had its news of it.
    eventually("the kill to be distinguished from it", || {
        let killed = programs.exec(Command::shell("kill -KILL $$"));
        assert_eq!(killed.signal(), Some(9));
        (status(&killed) == (Status::Exit, 137)).then_some(())
    });
    programs.serves_on();
}

#[test]
fn command_over_the_write_limit_is_ended() {
    // Files that are each within the limit of one.
    let fill = "i=0; while :; do i=$((i + 1)); head -c 1000000 /dev/zero > f$i; done";
    let make = "i=0; while :; do i=$((i + 1)); : > f$i; done";
    let nest = "while :; do mkdir d; cd d; done";
    for (line, expected, hint) in [
        (fill, ErrorKind::WriteLimit, Some("--max-write raises the limit")),
        (make, ErrorKind::TooManyFiles, Some("--entries raises the limit")),
        // Its depth is no limit that a flag raises.
        (nest, ErrorKind::TooManyFiles, None),
    ] {
        let programs = Programs::limited(|limits| {
            limits.max_write = ByteSize::b(8_000_000);
            limits.entries = NonZeroU32::new(500).unwrap();
        });
        let result = programs.exec(Command::shell(line));
        assert_eq!(status(&result), (Status::Limit, 120), "{line}: {result:?}");
        assert_eq!((kind(&result), result.hint().as_deref()), (Some(expected), hint), "{line}");
        let ended = (result.command_exit_code(), result.signal());
        assert_eq!(ended, (None, Some(9)), "{line}: {result:?}");
        if line == nest {
            // Too deep to be looked at, it keeps the next one from beginning until it is gone.
            let refused = programs.exec(Command::shell("touch f"));
            assert_eq!(kind(&refused), Some(ErrorKind::TooManyFiles), "{refused:?}");
            let remove = Remove { recursive: true, ..Remove::new("d") };
            programs.guest.wait(programs.guest.sandbox.call(remove)).unwrap();
        }
        programs.serves_on();
    }
}

#[test]
fn writes_just_before_the_end_count_too() {
    let programs = Programs::limited(|limits| {
        limits.max_write = ByteSize::b(1_000_000);
        limits.max_file_size = ByteSize::b(1_000_000);
    });
    let result = programs.exec(Command::shell("head -c 900000 /dev/zero > a"));
    assert_eq!(status(&result), (Status::Ok, 0));
    // A command of its own, with a limit of its own.
    let result =
        programs.exec(Command::shell("head -c 900000 /dev/zero > b; head -c 900000 /dev/zero > c"));
    assert_eq!(
        (status(&result), kind(&result)),
        ((Status::Limit, 120), Some(ErrorKind::WriteLimit))
    );
    // Removing files frees space.
    let result = programs.exec(Command::shell("rm a b; head -c 900000 /dev/zero > d; rm c d"));
    assert_eq!(status(&result), (Status::Ok, 0));
    // One file alone meets its bound at once, whether that ends the program or not.
    for line in
        ["trap '' XFSZ; head -c 2000000 /dev/zero > e", "exec head -c 2000000 /dev/zero > e"]
    {
        let result = programs.exec(Command::shell(line));
        assert_eq!(
            (status(&result), kind(&result)),
            ((Status::Limit, 120), Some(ErrorKind::WriteLimit)),
            "{line}: {result:?}"
        );
        let file = programs.guest.place.path("sandbox-files/e");
        assert_eq!(file.metadata().unwrap().len(), 1_000_001);
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_container_that_is_killed_from_outside_says_so_of_its_commands() {
    let programs = Programs::new();
    let (killed, document) = programs.wait(async {
        let sandbox = &programs.guest.sandbox;
        let mut execution = sandbox
            .start(Command::shell("echo ready; sleep 1000"), CancelHandle::new())
            .await
            .unwrap();
        assert_eq!(first_line(&mut execution).await, "ready\n");
        let [container] = &programs.guest.place.containers()[..] else { panic!() };
        engine().kill(container);
        let result = execution.wait().await.unwrap();
        let document = serde_json::to_value(sandbox_api::ExecutionDocument::from(&result)).unwrap();
        (status(&result), document)
    });
    assert_eq!(killed, (Status::Killed, 137));
    assert_eq!((&document["exit_code"], &document["signal"]), (&json!(null), &json!(null)));
    assert_eq!(document["error"]["kind"], "killed");
    let error = programs.wait(programs.guest.sandbox.run(Command::new("true"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AgentLost);
}
