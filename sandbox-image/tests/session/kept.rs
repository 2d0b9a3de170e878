//! Kept programs: what is reported of them, that what they leave belongs to them, and signals to their
//! processes.

use std::time::Instant;

use sandbox_protocol::limits::{MAX_COMMANDS, MAX_IN_FLIGHT};
use sandbox_protocol::message::{
    Exec, ExecEnd, ExecStop, Resize, Signal, SignalName, SignalTarget,
};

use super::exec::{
    Ran, TEST_TIMEOUT, attack, await_process, elsewhere, first_process, long_time, program, runs,
    shell,
};
use super::*;

impl Agent {
    /// A kept command's request.
    fn kept_request(&mut self, line: &str) -> Exec {
        Exec { kept: true, timeout_ms: None, ..self.request(shell(line)) }
    }

    /// Starts a kept command, and waits until it was started.
    pub(super) fn keep(&mut self, exec: &Exec) -> u64 {
        let id = self.send(exec.clone());
        self.await_note(&format!("started {id}"));
        id
    }

    fn kept(&mut self, line: &str) -> (u64, Exec) {
        let exec = self.kept_request(line);
        (self.keep(&exec), exec)
    }

    pub(super) fn await_note(&mut self, note: &str) {
        while !self.notes.iter().any(|known| known == note) {
            assert!(self.read(), "the agent ended");
        }
    }

    /// The program of a kept command has ended like this; returns what it has printed by then.
    fn await_exit(&mut self, id: u64, exec: &Exec, end: ExecEnd) -> String {
        self.await_note(&format!("exited {id} {end:?}"));
        String::from_utf8_lossy(&self.received[&exec.stdout].1).into_owned()
    }

    fn stop(&mut self, id: u64, exec: &Exec) -> Ran {
        assert!(self.call(Cancel { id, at_once: false }).unwrap().found);
        self.finish(id, exec).unwrap()
    }

    pub(super) fn send_signal(&mut self, id: u64, signal: SignalName, to: SignalTarget) -> bool {
        self.call(Signal { id, signal, to }).unwrap().found
    }
}

#[test]
fn kept_program_is_answered_when_nothing_that_it_left_runs_any_more() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    // The daemon has inherited its stdout, and prints on request.
    let (id, exec) =
        agent.kept("echo out; (until [ -e go ]; do sleep 0.01; done; echo late) & exit 3");
    assert!(agent.pids[&id] > 1);
    // All that the program itself has printed comes before its end is reported.
    assert_eq!(agent.await_exit(id, &exec, ExecEnd::Exited(3)), "out\n");
    assert_eq!(agent.says("echo fine"), "fine\n");
    assert!(!agent.answers.contains_key(&id));
    fs::write(directory.path().join("go"), "").unwrap();
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(3), None));
    assert_eq!(ran.stdout, "out\nlate\n");
    assert_eq!(agent.notes, [format!("started {id}"), format!("exited {id} Exited(3)")]);
    // What leaves nothing is answered at once, and nothing is reported of what is not kept.
    let (id, exec) = agent.kept("echo a; echo b >&2; kill -KILL $$");
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a\n", "b\n"));
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(9), None));
    assert_eq!(agent.notes.last(), Some(&format!("exited {id} Signaled(9)")));
    // One that never ran is not reported.
    let exec = Exec { command: program("no-such-program", &[]), ..agent.kept_request("") };
    let id = agent.send(exec.clone());
    let error = agent.finish(id, &exec).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CommandNotFound);
    assert_eq!(agent.notes.len(), 4, "{:?}", agent.notes);
}

#[test]
fn daemons_of_a_kept_program_live_on_until_it_is_stopped() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    for line in [
        format!("nohup sleep {time} >/dev/null 2>&1 & echo over"),
        format!("(setsid sleep {time} >/dev/null 2>&1 <&- &); echo over"),
        // Forked twice, and its parent is gone.
        format!("(setsid sh -c 'sleep {time} & exit' >/dev/null 2>&1 &); echo over"),
        format!("(setsid env -i sleep {time} &) ; echo over"),
    ] {
        let exec = Exec { grace_ms: LONG, ..agent.kept_request(&line) };
        let id = agent.keep(&exec);
        assert_eq!(agent.await_exit(id, &exec, ExecEnd::Exited(0)), "over\n");
        await_process(&time, true);
        assert!(!agent.answers.contains_key(&id), "{line}");
        let ran = agent.stop(id, &exec);
        let ended = (ran.reply.end, ran.reply.stopped);
        assert_eq!(ended, (ExecEnd::Exited(0), Some(ExecStop::Cancelled)), "{line}");
        assert!(!runs(&time), "{line}");
    }
    // At its timeout too, which comes later than its own end, with more time on a busy machine.
    let line = format!("(setsid sleep {time} &); echo over");
    let ran = [1_000, 10_000, LONG].into_iter().find_map(|timeout| {
        let exec = Exec { timeout_ms: Some(timeout), ..agent.kept_request(&line) };
        let ran = agent.exec(&exec).unwrap();
        (ran.reply.end == ExecEnd::Exited(0)).then_some(ran)
    });
    let ran = ran.expect("it ends in its time");
    assert_eq!((ran.reply.stopped, &*ran.stdout), (Some(ExecStop::Timeout), "over\n"));
    assert!(!runs(&time));
}

#[test]
fn kept_program_has_its_grace_and_a_second_stop_cuts_it_short() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let waits = "echo begun; while :; do sleep 0.01; done";
    let clean = format!("trap 'echo clean; exit 7' TERM; {waits}");
    let exec = Exec { grace_ms: LONG, ..agent.kept_request(&clean) };
    let id = agent.keep(&exec);
    agent.await_output(exec.stdout, "begun");
    let ran = agent.stop(id, &exec);
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(7), Some(ExecStop::Cancelled)));
    assert_eq!(ran.stdout, "begun\nclean\n");
    let exec = Exec { grace_ms: LONG, ..agent.kept_request(&format!("trap '' TERM; {waits}")) };
    let id = agent.keep(&exec);
    agent.await_output(exec.stdout, "begun");
    for at_once in [false, true] {
        assert!(agent.call(Cancel { id, at_once }).unwrap().found);
    }
    let ran = agent.finish(id, &exec).unwrap();
    let ended = (ran.reply.end, ran.reply.stopped);
    assert_eq!(ended, (ExecEnd::Signaled(9), Some(ExecStop::Cancelled)));
}

#[test]
fn leftovers_of_a_program_that_is_not_kept_are_killed_beside_a_kept_one() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let [kept_time, time] = ["kept", "other"].map(|name| long_time(&directory.path().join(name)));
    let (id, exec) = agent.kept(&format!("(setsid sleep {kept_time} &); exec sleep {kept_time}"));
    await_process(&kept_time, true);
    for line in [
        format!("(setsid sleep {time} &); echo over; exit 3"),
        format!("nohup sleep {time} >/dev/null 2>&1 & echo over; exit 3"),
    ] {
        let ran = agent.ran(shell(&line)).unwrap();
        assert_eq!((ran.stdout.as_str(), ran.reply.end), ("over\n", ExecEnd::Exited(3)));
        assert!(!runs(&time), "what was answered is over: {line}");
        assert!(runs(&kept_time), "{line}");
    }
    // A script's programs too.
    let source = format!("return process.exec('sh', {{'-c', '(setsid sleep {time} &)'}}).ok");
    assert_eq!(returned(agent.run(&source).unwrap()), "true");
    assert!(!runs(&time) && runs(&kept_time));
    // And the end of the session is the end of all.
    let shutdown = agent.send(Shutdown {});
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!(ran.reply.stopped, Some(ExecStop::Cancelled));
    agent.reply::<Shutdown>(shutdown).unwrap();
    assert_eq!(agent.exit_code(), DONE);
    assert!(!runs(&kept_time));
}

#[test]
fn kept_program_ends_with_an_agent_that_lost_its_controller() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    agent.kept(&format!("echo begun; exec sleep {time}"));
    await_process(&time, true);
    assert_eq!(agent.hang_up(), LOST);
    await_process(&time, false);
}

#[test]
fn input_of_a_kept_program_may_come_later_and_its_output_has_no_limit() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs_and(directory.path(), |limits| limits.output_bytes = 1000);
    let request = agent.kept_request("cat; head -c 500000 /dev/zero");
    let stdin = request.stdout + 2;
    agent.sending.insert(stdin, SendWindow::new(stdin));
    let exec = Exec { stdin: Some(stdin), ..request };
    let id = agent.keep(&exec);
    for text in ["one\n", "two\n"] {
        agent.feed(id, stdin, text.as_bytes(), false);
        agent.await_output(exec.stdout, text);
    }
    agent.feed(id, stdin, b"", true);
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(0), None));
    assert_eq!(ran.stdout.len(), 500_008);
}

#[test]
fn there_are_so_many_programs_and_kept_ones_take_no_place_of_a_request() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let mut many: Vec<_> =
        (0..MAX_COMMANDS - 1).map(|_| agent.kept(&format!("exec sleep {time}"))).collect();
    assert!(many.len() > MAX_IN_FLIGHT);
    // The last place is anybody's.
    assert_eq!(agent.says("echo fine"), "fine\n");
    many.push(agent.kept(&format!("exec sleep {time}")));
    for kept in [true, false] {
        let request = agent.request(shell("echo no"));
        let exec = Exec { kept, ..request };
        let error = agent.exec(&exec).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    let (id, exec) = many.pop().unwrap();
    agent.stop(id, &exec);
    assert_eq!(agent.says("echo fine"), "fine\n");
    // A program has its place until nothing of it is left.
    let left = agent.kept(&format!("(setsid sleep {time} &)"));
    agent.await_exit(left.0, &left.1, ExecEnd::Exited(0));
    let error = agent.ran(shell("echo no")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
    assert!(!runs(&time));
}

#[test]
fn signals_reach_the_processes_that_are_named_and_no_others() {
    use SignalName::{Cont, Int, Kill, Stop, Term, Usr1};
    use SignalTarget::{Foreground, Group, Process, Tree};
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let [time, other] = ["time", "other"].map(|name| long_time(&directory.path().join(name)));
    // The program, a process of its group, and one of another group.
    let line = format!(
        "trap 'echo usr1' USR1; sh -c 'trap \"echo child\" USR1; echo ready; while :; do sleep 0.01; done' & \
         (setsid sh -c 'echo ready; exec sleep {time}' &); echo ready; while :; do sleep 0.01; done"
    );
    let (bystander, bystander_exec) = agent.kept(&format!("exec sleep {other}"));
    let (id, exec) = agent.kept(&line);
    // The last has left the group by then: `setsid` itself has the same arguments before it does.
    agent.await_output(exec.stdout, "ready\nready\nready\n");
    await_process(&time, true);
    assert!(agent.send_signal(id, Usr1, Process));
    agent.await_output(exec.stdout, "usr1\n");
    assert!(agent.send_signal(id, Usr1, Group));
    agent.await_output(exec.stdout, "child\n");
    assert!(!agent.send_signal(id, Int, Foreground), "it has no terminal");
    assert!(agent.send_signal(id, Kill, Group));
    agent.await_note(&format!("exited {id} {:?}", ExecEnd::Signaled(9)));
    assert!(runs(&time), "it is of another group");
    // The program and its group are gone: their numbers mean nothing any more.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while agent.send_signal(id, Kill, Group) {
        assert!(Instant::now() < deadline, "they are not reaped");
    }
    for to in [Process, Group, Foreground] {
        assert!(!agent.send_signal(id, Kill, to), "{to:?}");
    }
    assert!(agent.send_signal(id, Stop, Tree));
    assert!(agent.send_signal(id, Cont, Tree));
    assert!(agent.send_signal(id, Term, Tree));
    let ran = agent.finish(id, &exec).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Signaled(9), None));
    assert!(!runs(&time) && runs(&other));
    // Of a command that was answered, a request of another kind, and none at all.
    let forged = agent.last_id + 1000;
    for unknown in [id, 1, 0, forged, u64::MAX] {
        for to in SignalTarget::ALL {
            assert!(!agent.send_signal(unknown, Kill, to), "{unknown} {to:?}");
        }
        let resized = agent.call(Resize { id: unknown, cols: 80, rows: 24 }).unwrap();
        assert!(!resized.found, "{unknown}");
        assert!(!agent.call(Cancel { id: unknown, at_once: true }).unwrap().found);
    }
    // What is not kept gets them too.
    let (once, once_exec) =
        agent.begun(shell("trap 'exit 5' USR1; echo begun; while :; do sleep 0.01; done"));
    agent.await_output(once_exec.stdout, "begun");
    assert!(agent.send_signal(once, Usr1, Process));
    assert_eq!(agent.finish(once, &once_exec).unwrap().reply.end, ExecEnd::Exited(5));
    assert!(runs(&other));
    agent.stop(bystander, &bystander_exec);
}

#[test]
fn both_outputs_in_one_pipe_are_in_the_order_of_writing() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let line = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done; exit 3";
    let expected = "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n";
    let exec = Exec { stderr: None, ..agent.request(shell(line)) };
    let ran = agent.exec(&exec).unwrap();
    assert_eq!((ran.stdout.as_str(), ran.reply.end), (expected, ExecEnd::Exited(3)));
    assert_eq!(ran.reply.stderr_bytes, 0);
    let exec = Exec { stderr: None, ..agent.kept_request(line) };
    let id = agent.keep(&exec);
    assert_eq!(agent.finish(id, &exec).unwrap().stdout, expected);
}

#[test]
fn request_that_contradicts_itself_starts_nothing() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let exec = Exec { timeout_ms: None, ..agent.request(shell("echo no")) };
    let error = agent.exec(&exec).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    let pty = Some(terminals::pty());
    let exec = Exec { pty, ..agent.request(shell("echo no")) };
    let error = agent.exec(&exec).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "a terminal has no stderr: {error}");
    assert_eq!(agent.says("echo fine"), "fine\n");
}

#[test]
fn kept_program_that_another_ones_evasion_ended_reports_that() {
    let directory = elsewhere();
    let mut agent = first_process(directory.path());
    let (mut id, mut exec) = agent.kept("exec sleep 100000");
    let deadline = Instant::now() + TEST_TIMEOUT;
    // It may be caught before everything has to be killed; then the kept one goes on.
    for _ in 0..20 {
        let ran = agent.ran(attack("run-away")).unwrap();
        assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(0), None));
        if agent.answers.contains_key(&id) {
            let ran = agent.finish(id, &exec).unwrap();
            let ended = (ran.reply.end, ran.reply.stopped);
            assert_eq!(ended, (ExecEnd::Signaled(9), Some(ExecStop::EvasionOfAnother)));
            (id, exec) = agent.kept("exec sleep 100000");
        }
        assert!(Instant::now() < deadline);
    }
    assert_eq!(agent.says("echo fine"), "fine\n");
    agent.call(Cancel { id, at_once: true }).unwrap();
    assert!(agent.finish(id, &exec).unwrap().reply.stopped.is_some());
}
