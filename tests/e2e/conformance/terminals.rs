//! Terminals: programs that have one, the user's own terminal, and that it is as it was after
//! every end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
};
use serde_json::{Value, json};

use super::fs::terminal;
use super::living::{Living, text};
use crate::agent;
use crate::cluster::proxy::Proxy;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, TIMEOUT, eventually, runs};
use crate::rootfs::{Provided, Rootfs};

/// The terminal of a person, and the command that has it.
pub struct Terminal {
    keyboard: File,
    /// The command's side.
    side: File,
    child: Child,
    /// What it has shown.
    shown: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

/// Asks a terminal where its cursor is.
const WHERE: &str = "\x1b[6n";

/// Gives a terminal another size, which its programs are notified of.
fn resize(side: &File, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(side, size).unwrap();
}

/// A failed test leaves no command behind.
impl Drop for Terminal {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Terminal {
    /// Runs a command as a login shell does: it leads a session that has the terminal.
    pub fn run(place: &Fixture, run: &Command) -> Self {
        let (keyboard, side) = terminal();
        let mut command = Command::new("setsid");
        // It is no group's leader, so that it becomes the command.
        command.arg("--ctty").arg(run.get_program()).args(run.get_args());
        place.equip(&mut command);
        command.env("TERM", "xterm-256color");
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let stdio = || Stdio::from(OwnedFd::from(side.try_clone().unwrap()));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let before = tcgetattr(&side).unwrap();
        resize(&side, 30, 100);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let terminal = Self {
            child: command.spawn().unwrap(),
            keyboard: keyboard.try_clone().unwrap(),
            side,
            shown: shown.clone(),
            before,
        };
        std::thread::spawn(move || {
            let (mut keyboard, mut piece) = (keyboard, [0; 4096]);
            while let Ok(length @ 1..) = keyboard.read(&mut piece) {
                shown.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        terminal
    }

    /// Runs `exec -it` with this command.
    fn exec(place: &Fixture, provided: &Provided, words: &[&str]) -> Self {
        let root = provided.args();
        let args = ["exec", "-it", &root[0], &root[1], "--"].into_iter();
        Self::run(place, &place.command(args.chain(words.iter().copied())))
    }

    /// Runs a verb on a sandbox of a service.
    fn verb(place: &Fixture, living: &Living<'_>, verb: &str, more: &[&str]) -> Self {
        let args = ["sandbox", verb, &living.id].into_iter();
        let mut command = place.command(args.chain(more.iter().copied()));
        command.env("SANDBOXCTL_SERVER", &living.service.url);
        Self::run(place, &command)
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until it has shown this.
    #[track_caller]
    pub fn until(&self, text: &str) {
        let since = Instant::now();
        while !self.shown().contains(text) {
            let shown = self.shown();
            assert!(since.elapsed() < TIMEOUT, "no {text:?} in {shown:?}");
            sleep(Duration::from_millis(5));
        }
    }

    /// Answers so many questions of a program, as a terminal far away does.
    fn answer(&self, questions: usize) -> JoinHandle<()> {
        let (shown, mut keyboard) = (self.shown.clone(), self.keyboard.try_clone().unwrap());
        std::thread::spawn(move || {
            let (since, mut answered) = (Instant::now(), 0);
            while answered < questions && since.elapsed() < TIMEOUT {
                let asked = String::from_utf8_lossy(&shown.lock().unwrap()).matches(WHERE).count();
                sleep(Duration::from_millis(15));
                keyboard.write_all("\x1b[30;100R".repeat(asked - answered).as_bytes()).unwrap();
                answered = asked;
            }
        })
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.side).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Sends a signal to the command.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the command, after which the terminal is as it was, and gives its code.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = eventually("the command ends", || self.child.try_wait().unwrap());
        let after = tcgetattr(&self.side).unwrap();
        let modes =
            |it: &Termios| (it.input_modes, it.output_modes, it.control_modes, it.local_modes);
        assert_eq!(modes(&after), modes(&self.before), "{}", self.shown());
        // What was shown last may not be read yet: this is shown after it.
        self.side.write_all(b"that is all").unwrap();
        self.until("that is all");
        (status.code(), self.shown())
    }
}

#[test]
fn shell_in_a_terminal_has_keys_size_and_job_control_and_leaves_the_terminal_as_it_was() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut terminal = Terminal::exec(&place, &provided, &["sh"]);
    // What is typed is shown by the terminal inside; this is no part of what it echoes.
    terminal.type_keys("echo u''p $TERM\r");
    terminal.until("up xterm-256color");
    assert!(terminal.is_raw());
    terminal.type_keys("stty size\r");
    terminal.until("30 100");
    resize(&terminal.side, 41, 97);
    eventually("it has the new size", || {
        terminal.type_keys("stty size\r");
        terminal.shown().contains("41 97").then_some(())
    });
    let seconds = format!("71{}", std::process::id());
    terminal.type_keys(&format!("tty; sleep {seconds}\r"));
    terminal.until("/dev/pts/");
    // Before that the shell's own handler may still have the signal. Another kernel's processes are not seen.
    if has(Feature::SharedKernel) {
        eventually("the program to run", || runs(&seconds).then_some(()));
    }
    terminal.type_keys("\x03");
    terminal.type_keys("echo ali''ve $?\r");
    terminal.until("alive 130");
    // A job is stopped and goes on.
    terminal.type_keys("echo ca''ts; cat\r");
    terminal.until("cats");
    terminal.type_keys("typed\r");
    terminal.until("typed\r\ntyped");
    terminal.type_keys("\x1a");
    terminal.until("Stopped");
    // The first one may say that there are stopped jobs.
    terminal.type_keys("kill -KILL %1; exit 7\rexit 7\r");
    assert_eq!(terminal.end().0, Some(7));
}

#[test]
fn terminal_is_as_it_was_when_its_client_is_ended() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut terminal = Terminal::exec(&place, &provided, &["sh"]);
        terminal.type_keys("echo u''p; printf '\\033[?1000h'; sleep 7111\r");
        terminal.until("up");
        terminal.until("\x1b[?1000h");
        terminal.signal(signal);
        let (code, shown) = terminal.end();
        assert_ne!(code, Some(0), "{signal:?}: {shown}");
        assert!(shown.contains("\x1b[?1000l"), "{signal:?}: {shown:?}");
    }
}

#[test]
fn terminal_is_raw_again_when_its_client_goes_on_after_a_stop() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut terminal = Terminal::exec(&place, &provided, &["sh"]);
    terminal.type_keys("echo u''p\r");
    terminal.until("up");
    terminal.signal(Signal::STOP);
    waitid(WaitId::Pid(Pid::from_child(&terminal.child)), WaitIdOptions::STOPPED).unwrap();
    // The shell that has it meanwhile has it as it was.
    tcsetattr(&terminal.side, OptionalActions::Now, &terminal.before).unwrap();
    terminal.signal(Signal::CONT);
    eventually("it is raw again", || terminal.is_raw().then_some(()));
    terminal.type_keys("exit 7\r");
    assert_eq!(terminal.end().0, Some(7));
}

#[test]
fn keys_that_leave_a_command_cancel_it() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let line = "trap 'echo asked; exit 3' TERM; trap 'echo asked in its way; exit 3' USR1; \
        echo up; while :; do sleep 0.05; done";
    for (flags, keys, said, line) in [
        // SIGHUP comes with SIGTERM, and first.
        (&[][..], "\x10\x11", "asked\r\n", &*format!("trap '' HUP; {line}")),
        (
            &["--detach-keys", "ctrl-x,x", "--stop-signal", "USR1"],
            "\x18x",
            "asked in its way\r\n",
            line,
        ),
    ] {
        let own = ["exec", "-it", "--stop-timeout", "60s", &*root[0], &*root[1]];
        let words = [&own[..], flags, &["--", "sh", "-c", line]].concat();
        let mut terminal = Terminal::run(&place, &place.command(words));
        terminal.until("up");
        terminal.type_keys(keys);
        let (code, shown) = terminal.end();
        assert_eq!(code, Some(130), "{shown}");
        assert!(shown.contains(said), "{shown}");
    }
}

#[test]
fn answers_to_a_programs_last_questions_are_not_typed_after_it() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let line = "n=0; while [ $n -lt 2000 ]; do printf '\\033[6n'; n=$((n + 1)); done";
    let are_dropped = || {
        let mut terminal = Terminal::exec(&place, &provided, &["sh", "-c", line]);
        let answering = terminal.answer(2000);
        eventually("the command ends", || terminal.child.try_wait().unwrap());
        answering.join().unwrap();
        terminal.type_keys("typed\r");
        let mut typed = [0; 64];
        let length = terminal.side.read(&mut typed).unwrap();
        typed[..length] == *b"typed\n"
    };
    // On a busy machine an answer may take longer than the client waits for it.
    assert!((0..20).any(|_| are_dropped()));
}

#[test]
fn terminal_is_as_it_was_when_its_service_is_killed() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let mut terminal = Terminal::verb(&place, &living, "shell", &[]);
    terminal.type_keys("echo u''p\r");
    terminal.until("up");
    assert!(terminal.is_raw());
    place.expect_a_dead_instance();
    living.service.kill();
    assert_eq!(terminal.end().0, Some(125));
    eventually("nothing of it is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        place.containers().is_empty().then_some(())
    });
}

#[test]
fn what_a_program_does_to_a_terminal_is_undone_at_its_end_and_the_clipboard_is_not_written() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let line = "printf '\\033[?1049h\\033[?1000h\\033[?2004h\\033[?25l\\033[31m'; \
        printf '\\033]52;c;aGk=\\007written '; \
        printf '\\033]52;c;'; head -c 1000000 /dev/zero | tr '\\0' a; printf '\\007and more '; \
        printf '\\033P'; head -c 1000000 /dev/zero | tr '\\0' b; printf '\\033\\\\the end'; exit 5";
    let terminal = Terminal::exec(&place, &provided, &["sh", "-c", line]);
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(5));
    for text in ["written ", "and more ", "the end"] {
        assert!(shown.contains(text), "{text}");
    }
    assert!(!shown.contains("]52") && !shown.contains("aaa"));
    let (_, after) = shown.split_once("the end").unwrap();
    for undone in ["\x1b[!p", "\x1b[?1047l", "\x1b[?1000l", "\x1b[?2004l", "\x1b[?25h", "\x1b[0m"] {
        assert!(after.contains(undone), "no {undone:?} in {after:?}");
    }
}

#[test]
fn terminal_is_refused_where_stdin_is_none() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let ended = place.sandboxctl(["exec", "-it", &root[0], &root[1], "--", "sh"]);
    assert_ne!(ended.code, 0);
    ended.assert_stderr_has("the input device is not a TTY");
}

#[test]
fn shell_that_is_left_by_its_keys_is_attached_to_again() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let mut terminal = Terminal::verb(&place, &living, "shell", &[]);
    terminal.type_keys("n=5; echo u''p\r");
    terminal.until("up");
    terminal.type_keys("\x10\x11");
    assert_eq!(terminal.end().0, Some(0));
    let listed = living.ask(200, "GET", "/processes?state=running", &Value::Null);
    let process = &listed["processes"][0];
    assert_eq!((&process["pty"], &process["state"]), (&json!(true), &json!("running")), "{listed}");
    let id = process["id"].to_string();
    // By another word, which the note repeats, and other keys.
    let word = &living.id[..6];
    let args = ["sandbox", "attach", word, &*id, "--detach-keys", "ctrl-x,x"];
    let mut command = place.command(args);
    command.env("SANDBOXCTL_SERVER", &living.service.url);
    let mut again = Terminal::run(&place, &command);
    again.type_keys("echo n is $n\r");
    again.until("n is 5");
    again.type_keys("\x18x");
    let (code, shown) = again.end();
    assert_eq!(code, Some(0));
    assert!(shown.contains(&format!("`sandboxctl sandbox attach {word} {id}`")), "{shown}");
    let mut again = Terminal::verb(&place, &living, "attach", &[&id]);
    again.type_keys("echo n is still $n\r");
    again.until("n is still 5");
    again.type_keys("exit 4\r");
    assert_eq!(again.end().0, Some(4));
    living.end();
}

#[test]
fn client_whose_connection_is_lost_goes_on_over_another_one() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start(&in_terminal(&["sh"])).to_string();
    let address = living.service.url.strip_prefix("http://").unwrap();
    let proxy = Proxy::before(address.parse().unwrap());
    let mut command = place.command(["sandbox", "attach", &*living.id, &*id]);
    command.env("SANDBOXCTL_SERVER", format!("http://{}", proxy.address()));
    let mut terminal = Terminal::run(&place, &command);
    terminal.type_keys("n=5; echo u''p\r");
    terminal.until("up");
    proxy.reset();
    eventually("it is connected again", || {
        terminal.type_keys("echo n is $n\r");
        terminal.shown().contains("n is 5").then_some(())
    });
    terminal.type_keys("exit 4\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(4), "{shown}");
    assert!(shown.contains("reconnected; some keystrokes may be lost"), "{shown}");
    living.end();
}

/// A request for a process in a terminal.
fn in_terminal(words: &[&str]) -> Value {
    json!({
        "command": { "program": words[0], "args": words[1..] },
        "pty": { "cols": 80, "rows": 24 },
        "stdin": true,
    })
}

#[test]
fn program_types_nothing_into_a_terminal_and_takes_none_of_another() {
    let place = Fixture::new();
    let rootfs = Rootfs::busybox().copy("bin/terminal", agent::terminal());
    let Some(living) = Living::with(&place, &rootfs, json!({})) else { return };
    let id = living.start(&in_terminal(&["terminal", "inject"]));
    living.until(id, "ended");
    let said = text(&living.events(id, 0), "stdout");
    let refused: Vec<_> = said.lines().filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(refused.len(), 4, "{said}");
    // EPERM; ENOTTY is what this kind of terminal answers by itself.
    for (what, number) in refused {
        let expected: &[&str] = if what == "selection" { &["1", "25"] } else { &["1"] };
        assert!(expected.contains(&number), "{what}: {number}");
    }

    let shell = living.start(&in_terminal(&["sh"]));
    living.write(shell, "tty\r");
    let mut reader = living.read(shell, "after=0");
    let shown = text(&reader.until("/dev/pts/"), "stdout");
    let path = shown.split("/dev/pts/").nth(1).unwrap().split_whitespace().next().unwrap_or("0");
    let path = format!("/dev/pts/{path}");
    let thief = json!({ "command": { "program": "terminal", "args": ["steal", path] } });
    let thief = living.start(&thief);
    living.until(thief, "ended");
    let said = text(&living.events(thief, 0), "stdout");
    assert!(said == "steal: 1\ntty: false\n" || said == "open: 13\n", "{said}");
    living.write(shell, "echo mi''ne\r");
    reader.until("mine");
    living.end();
}

#[test]
fn sandbox_has_sixteen_terminals_and_the_next_is_refused() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let ids: Vec<u64> = (0..16).map(|_| living.start(&in_terminal(&["cat"]))).collect();
    let next = in_terminal(&["cat"]).to_string();
    let (next, refused) = living.send("POST", "/processes", &next);
    assert!([409, 429].contains(&next), "{refused}");
    living.write(ids[15], "typed\r");
    // The terminal shows it, and then the program.
    living.read(ids[15], "after=0").until("typed\r\ntyped\r\n");
    living.end_process(ids[0]);
    living.start(&in_terminal(&["cat"]));
    living.end();
}

/// A WebSocket, as far as these tests need one.
pub struct WebSocket(TcpStream);

impl WebSocket {
    fn attach(living: &Living<'_>, id: u64) -> Self {
        let address = living.service.url.strip_prefix("http://").unwrap();
        let path = format!("/v1/sandboxes/{}/processes/{id}/attach?after=0", living.id);
        Self::open(address, &path, "")
    }

    /// Opens one, with these headers besides.
    pub fn open(address: &str, path: &str, headers: &str) -> Self {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(
            connection,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             sec-websocket-protocol: sandboxctl.process.1\r\n{headers}\r\n"
        )
        .unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            connection.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self(connection)
    }

    /// Sends a message: 1 is text, 2 is binary.
    pub fn send(&mut self, kind: u8, message: &str) {
        let length = u8::try_from(message.len()).ok().filter(|length| *length < 126).unwrap();
        // Masked, with zeros.
        let frame = [&[0x80 | kind, 0x80 | length, 0, 0, 0, 0], message.as_bytes()].concat();
        self.0.write_all(&frame).unwrap();
    }

    /// The next message.
    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).unwrap();
                u16::from_be_bytes(length).into()
            }
            length => {
                assert!(length < 126, "a message that is too long");
                usize::from(length)
            }
        };
        let mut message = vec![0; length];
        self.0.read_exact(&mut message).unwrap();
        (head[0] & 0xf, message)
    }

    /// Reads until the output has this, and gives the number of the last event.
    pub fn until(&mut self, text: &str) -> u64 {
        let mut output = Vec::new();
        loop {
            let (kind, message) = self.next();
            if kind != 2 {
                continue;
            }
            assert_eq!(message[0], 1, "a terminal has one stream");
            output.extend_from_slice(&message[9..]);
            if String::from_utf8_lossy(&output).contains(text) {
                return u64::from_be_bytes(message[1..9].try_into().unwrap());
            }
        }
    }
}

#[test]
fn websocket_has_keys_output_size_and_end_of_a_terminal() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start(&in_terminal(&["sh"]));
    let mut socket = WebSocket::attach(&living, id);
    socket.send(2, "stty size\r");
    socket.until("24 80");
    socket.send(1, r#"{"resize":{"cols":97,"rows":41}}"#);
    socket.send(2, "stty size\r");
    let last = socket.until("41 97");
    assert!(living.process(id)["last_event"].as_u64() >= Some(last));
    // A second one sees the same from the beginning.
    let mut other = WebSocket::attach(&living, id);
    other.until("41 97");
    socket.send(2, "sleep 7121\r");
    socket.until("sleep 7121");
    socket.send(1, r#"{"signal":{"signal":"INT","to":"foreground"}}"#);
    socket.send(2, "echo ali''ve; exit 6\r");
    socket.until("alive");
    let end = loop {
        let (kind, message) = other.next();
        let event: Value = match kind {
            1 => serde_json::from_slice(&message).unwrap(),
            _ => continue,
        };
        if event["event"] == "end" {
            break event;
        }
    };
    assert_eq!((&end["exit_code"], &end["document"]["exit_code"]), (&json!(6), &json!(6)), "{end}");
    // The service waits for neither.
    drop((socket, other));
    living.end();
}
