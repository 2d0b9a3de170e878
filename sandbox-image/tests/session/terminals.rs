//! Programs in a terminal.

use std::time::Instant;

use sandbox_protocol::WireString;
use sandbox_protocol::limits::{MAX_TERMINAL_SIZE, MAX_TERMINALS};
use sandbox_protocol::message::{
    Command, Exec, ExecEnd, ExecStop, Pty, Resize, SignalName, SignalTarget, Variable,
};

use super::exec::{
    TEST_TIMEOUT, attack, await_process, elsewhere, long_time, program, runs, shell,
};
use super::*;

pub(super) fn pty() -> Pty {
    Pty { cols: 80, rows: 24, term: "xterm-256color".to_owned() }
}

impl Agent {
    /// A request for a program in a terminal in which can be typed.
    fn in_terminal(&mut self, command: Command) -> (Exec, u32) {
        let request = self.request(command);
        let stdin = request.stdout + 2;
        self.sending.insert(stdin, SendWindow::new(stdin));
        (Exec { stdin: Some(stdin), stderr: None, pty: Some(pty()), ..request }, stdin)
    }

    /// An interactive shell, kept, which says its prompt.
    fn interactive(&mut self) -> (u64, Exec, u32) {
        let (request, stdin) =
            self.in_terminal(program("bash", &["--norc", "--noprofile", "--noediting", "-i"]));
        let name = WireString::new("PS1");
        let env = vec![Variable { name, value: WireString::new("ready> ") }];
        let exec = Exec { kept: true, timeout_ms: None, grace_ms: LONG, env, ..request };
        let id = self.keep(&exec);
        self.await_output(exec.stdout, "ready> ");
        (id, exec, stdin)
    }

    fn types(&mut self, (id, exec, stdin): &(u64, Exec, u32), keys: &str, until: &str) {
        self.received.get_mut(&exec.stdout).unwrap().1.clear();
        self.feed(*id, *stdin, keys.as_bytes(), false);
        self.await_output(exec.stdout, until);
    }

    /// The end of what was forgotten meanwhile.
    fn ends(&mut self, (id, exec, _): &(u64, Exec, u32)) -> ExecEnd {
        let reply = self.reply::<Exec>(*id).unwrap();
        assert!(self.received[&exec.stdout].0.is_ended());
        reply.end
    }
}

/// Waits until such a process is in the foreground of its terminal, and not stopped.
fn await_foreground(argument: &str) {
    let is_there = |entry: io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let command = fs::read(path.join("cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        // Behind the name: state, parent, group, session, terminal, group in its foreground.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        command.starts_with(b"sleep\0")
            && command.split(|&byte| byte == 0).any(|word| word == argument.as_bytes())
            && fields.len() > 6
            && fields[1] != "T"
            && fields[3] == fields[6]
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !fs::read_dir("/proc").unwrap().any(is_there) {
        assert!(Instant::now() < deadline, "{argument} is not in the foreground");
        std::thread::yield_now();
    }
}

#[test]
fn program_in_a_terminal_has_it_as_its_own() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let line = "tty; stty size; echo $TERM; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all >&2; \
                ls /proc/self/fd | wc -l; exit 3";
    let (exec, _) = agent.in_terminal(shell(line));
    let ran = agent.exec(&exec).unwrap();
    assert_eq!((ran.reply.end, ran.reply.stopped), (ExecEnd::Exited(3), None));
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{lines:?}");
    assert_eq!(lines[1..4], ["24 80", "xterm-256color", "all"], "{lines:?}");
    // The fourth is the listing's own.
    assert_eq!(lines.last().map(|it| it.trim()), Some("4"), "{lines:?}");
    assert!(ran.stdout.contains("\r\n"), "it is a terminal's output");
    // A variable of the request is the caller's own; without input nothing is typed.
    let env = vec![Variable { name: WireString::new("TERM"), value: WireString::new("dumb") }];
    let (exec, _) = agent.in_terminal(shell("echo $TERM"));
    let exec = Exec { env, stdin: None, ..exec };
    assert_eq!(agent.exec(&exec).unwrap().stdout, "dumb\r\n");
    // All of a large output arrives, and bytes that a terminal does not change are those.
    let (exec, _) = agent.in_terminal(shell("stty -opost; seq 1 100000"));
    let ran = agent.exec(&exec).unwrap();
    assert_eq!(ran.stdout.len(), 588_895);
    assert!(ran.stdout.ends_with("\n99999\n100000\n"));
}

#[test]
fn terminal_is_closed_to_a_program_that_a_request_gives_none() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let shell = agent.interactive();
    let other = agent.says("(exec 3<>/dev/tty) 2>/dev/null || echo none");
    assert_eq!(other, "none\n");
    agent.types(&shell, "exit 0\n", "exit");
    assert_eq!(agent.ends(&shell), ExecEnd::Exited(0));
}

#[test]
fn jobs_of_an_interactive_shell_are_controlled_by_keys_and_signals() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let shell = agent.interactive();
    // Ctrl-C, to the job and not to the shell.
    agent.types(&shell, &format!("sleep {time}\n"), &time);
    await_foreground(&time);
    agent.types(&shell, "\u{3}", "ready> ");
    await_process(&time, false);
    agent.types(&shell, "echo code-$?\n", "code-130\r\n");
    // Ctrl-Z, and on in the foreground.
    agent.types(&shell, &format!("sleep {time}\n"), &time);
    await_foreground(&time);
    agent.types(&shell, "\u{1a}", "Stopped");
    agent.types(&shell, "jobs; echo li''sted\n", "listed\r\n");
    agent.types(&shell, "fg\n", &time);
    await_foreground(&time);
    // The same by a signal to whatever is in the foreground.
    assert!(agent.send_signal(shell.0, SignalName::Int, SignalTarget::Foreground));
    await_process(&time, false);
    agent.types(&shell, "echo code-$?\n", "code-130\r\n");
    // To the shell's group, which is not that of the job.
    agent.types(&shell, &format!("sleep {time}\n"), &time);
    await_foreground(&time);
    assert!(agent.send_signal(shell.0, SignalName::Int, SignalTarget::Group));
    assert!(runs(&time));
    assert!(agent.send_signal(shell.0, SignalName::Kill, SignalTarget::Foreground));
    await_process(&time, false);
    // Ctrl-D.
    agent.types(&shell, "\n", "ready> ");
    agent.types(&shell, "\u{4}", "exit");
    agent.ends(&shell);
}

#[test]
fn terminal_is_resized_while_its_program_runs() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let line = "trap 'stty size' WINCH; echo begun; while :; do sleep 0.01; done";
    let (exec, _) = agent.in_terminal(shell(line));
    let id = agent.send(exec.clone());
    agent.await_output(exec.stdout, "begun");
    assert!(agent.call(Resize { id, cols: 132, rows: 50 }).unwrap().found);
    agent.await_output(exec.stdout, "50 132\r\n");
    for (cols, rows) in [(0, 1), (1, 0), (MAX_TERMINAL_SIZE + 1, 1), (1, u16::MAX)] {
        let error = agent.call(Resize { id, cols, rows }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
    assert!(agent.call(Cancel { id, at_once: true }).unwrap().found);
    agent.finish(id, &exec).unwrap();
    assert!(!agent.call(Resize { id, cols: 80, rows: 24 }).unwrap().found);
    // One without a terminal has none.
    let (id, exec) = agent.begun(shell("echo begun; exec sleep 1000"));
    agent.await_output(exec.stdout, "begun");
    assert!(!agent.call(Resize { id, cols: 80, rows: 24 }).unwrap().found);
    assert!(agent.call(Cancel { id, at_once: true }).unwrap().found);
    agent.finish(id, &exec).unwrap();
}

#[test]
fn shell_that_is_stopped_is_hung_up() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let shell = agent.interactive();
    // It ignores SIGTERM, and its job is of another group.
    agent.types(&shell, &format!("sleep {time} &\n"), "ready> ");
    await_process(&time, true);
    assert!(agent.call(Cancel { id: shell.0, at_once: false }).unwrap().found);
    let reply = agent.reply::<Exec>(shell.0).unwrap();
    // Within its grace.
    assert_ne!(reply.end, ExecEnd::Signaled(9));
    assert_eq!(reply.stopped, Some(ExecStop::Cancelled));
    assert!(!runs(&time));
}

#[test]
fn what_a_shell_leaves_loses_the_terminal_and_lives_on() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let shell = agent.interactive();
    // One that is hung up with the shell, and one that is not.
    let line = format!("(trap '' HUP; sh -c 'sleep {time}; :' &); echo begun\n");
    agent.types(&shell, &line, "begun\r\n");
    await_process(&time, true);
    agent.types(&shell, "exit 4\n", "exit");
    agent.await_note(&format!("exited {} {:?}", shell.0, ExecEnd::Exited(4)));
    assert!(runs(&time) && !agent.answers.contains_key(&shell.0));
    assert!(agent.send_signal(shell.0, SignalName::Kill, SignalTarget::Tree));
    assert_eq!(agent.ends(&shell), ExecEnd::Exited(4));
    assert!(!runs(&time));
}

#[test]
fn there_are_so_many_terminals() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let time = long_time(directory.path());
    let one_more = |agent: &mut Agent| {
        let (exec, _) = agent.in_terminal(shell(&format!("exec sleep {time}")));
        let exec = Exec { kept: true, timeout_ms: None, ..exec };
        (agent.send(exec.clone()), exec)
    };
    let many: Vec<_> = (0..MAX_TERMINALS).map(|_| one_more(&mut agent)).collect();
    let (id, exec) = one_more(&mut agent);
    let error = agent.finish(id, &exec).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    // Another one is made once there is one less.
    agent.call(Cancel { id: many[0].0, at_once: true }).unwrap();
    agent.finish(many[0].0, &many[0].1).unwrap();
    let (id, _) = one_more(&mut agent);
    agent.await_note(&format!("started {id}"));
    let names = ["", "a b", "../../etc/passwd"].map(str::to_owned);
    for term in names.into_iter().chain(["x".repeat(65)]) {
        let (exec, _) = agent.in_terminal(shell("echo no"));
        let error = agent.exec(&Exec { pty: Some(Pty { term, ..pty() }), ..exec }).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
    assert!(!runs(&time));
}

#[test]
fn nothing_types_into_a_terminal_but_who_sends_its_input() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    for name in
        ["type-into-stdin", "type-into-its-terminal", "type-into-a-master", "paste-into-stdin"]
    {
        let (exec, _) = agent.in_terminal(attack(name));
        let ran = agent.exec(&exec).unwrap();
        assert_eq!(ran.stdout, format!("{}\r\n", libc::EPERM), "{name}");
        assert_eq!(ran.reply.end, ExecEnd::Exited(0), "{name}");
    }
}

#[test]
fn terminal_that_is_not_read_and_gets_too_much_input_delays_no_other_program() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    // It prints without end, and reads nothing.
    let (exec, stdin) = agent.in_terminal(shell("stty raw -echo; yes"));
    let exec = Exec { kept: true, timeout_ms: None, ..exec };
    let id = agent.send(exec.clone());
    // More than a terminal holds, and less than may be sent on the stream.
    agent.feed(id, stdin, &[b'x'; 200_000], false);
    agent.await_output(exec.stdout, "y\ny\n");
    assert_eq!(agent.says("echo fine"), "fine\n");
    assert!(agent.call(Cancel { id, at_once: true }).unwrap().found);
    let reply = agent.reply::<Exec>(id).unwrap();
    assert_eq!((reply.end, reply.stopped), (ExecEnd::Signaled(9), Some(ExecStop::Cancelled)));
}
