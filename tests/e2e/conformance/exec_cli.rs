//! `sandboxctl exec`: input, output, and how every end is reported.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::agent::long_calls;
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{
    Ended, Fixture, eventually, finish, in_its_time, runs, spawn, wait, wait_and_watch,
};
use crate::rootfs::{Provided, Rootfs};

/// A place, and what its commands run in: busybox.
pub struct Commands {
    pub place: Fixture,
    pub provided: Provided,
}

impl Commands {
    pub fn new() -> Self {
        Self::of(&Rootfs::busybox())
    }

    fn of(rootfs: &Rootfs) -> Self {
        Self { place: Fixture::new(), provided: rootfs.provide() }
    }

    /// `sandboxctl exec`, not started yet.
    pub fn exec<S: AsRef<OsStr>>(&self, flags: &[&str], command: &[S]) -> Command {
        let mut exec = self.place.command(["exec"]);
        exec.args(self.provided.args()).args(flags).arg("--").args(command);
        exec
    }

    /// Runs a line of the shell's to its end.
    pub fn shell(&self, flags: &[&str], line: &str) -> Ended {
        finish(self.exec(flags, &["sh", "-c", line]))
    }

    /// A line of the shell's that is under way: it has written `ready`.
    pub fn shell_that_is_ready(&self, flags: &[&str], line: &str) -> (Child, BufReader<impl Read>) {
        let mut child = spawn(self.exec(flags, &["sh", "-c", line]));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        if ready != "ready\n" {
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("{ready:?}, {stderr}");
        }
        (child, stdout)
    }
}

/// How a child ended whose stdout was read already.
#[track_caller]
fn ended(mut child: Child, mut stdout: impl Read) -> Ended {
    let mut out = Vec::new();
    stdout.read_to_end(&mut out).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = child.wait().unwrap().code().unwrap_or(-1);
    Ended { code, stdout: String::from_utf8_lossy(&out).into_owned(), stderr }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Whether a program runs: the one with this argument, or on another kernel, whose processes are not
/// seen from here, its container.
fn program_runs(containers: &[String], nap: &str) -> bool {
    if has(Feature::SharedKernel) { runs(nap) } else { engine().is_running(&containers[0]) }
}

/// An argument of a `sleep` that no other process of this machine has.
fn nap(commands: &Commands) -> String {
    let id = commands
        .place
        .work()
        .to_string_lossy()
        .bytes()
        .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()) % 900_000_000);
    format!("{}", 1_000_000_000 + id)
}

#[test]
fn a_commands_output_and_exit_code_are_its_own() {
    let commands = Commands::new();
    let ended = commands.shell(&[], "printf out; printf err >&2; exit 7");
    ended.assert_code(7);
    assert_eq!((&*ended.stdout, &*ended.stderr), ("out", "err"));
    let ended = commands.shell(&["--quiet"], "true");
    ended.assert_code(0);
    assert_eq!((&*ended.stdout, &*ended.stderr), ("", ""));
    // Of our own codes too, none is anything but a number.
    for code in [1, 2, 120, 124, 125, 126, 127, 130, 137, 255] {
        let ended = commands.shell(&[], &format!("exit {code}"));
        ended.assert_code(code);
        assert_eq!(ended.stderr, "");
    }
    for (name, number) in [("TERM", 15), ("KILL", 9), ("USR1", 10)] {
        let ended = commands.shell(&[], &format!("printf x; kill -{name} $$"));
        ended.assert_code(128 + number);
        assert_eq!(ended.stdout, "x");
        ended.assert_stderr_has(&format!("ended by signal {number} (SIG{name})"));
    }
}

#[test]
fn merged_output_of_a_command_is_in_the_order_of_writing() {
    let commands = Commands::new();
    let line = "for n in 1 2 3 4 5; do echo out $n; echo error $n >&2; done";
    let ended = commands.shell(&["--merge"], line);
    ended.assert_code(0);
    let expected: String = (1..=5).map(|n| format!("out {n}\nerror {n}\n")).collect();
    assert_eq!((&*ended.stdout, &*ended.stderr), (&*expected, ""));
}

#[test]
fn programs_that_could_open_the_agents_descriptors_need_best_effort() {
    let commands = Commands::new();
    let ended = finish(commands.exec(&["--confinement", "required"], &["true"]));
    if has(Feature::ClosedDescriptors) {
        ended.assert_code(0);
    } else {
        ended.assert_code(125).assert_stderr_has("other processes can access it (");
        ended.assert_stderr_has("programs could open the agent's descriptors on this kernel");
        ended.assert_stderr_has("--confinement best-effort");
    }
    // Scripts without programs.
    let script = ["run", "--confinement", "required", "-c", "return 1"];
    assert_eq!(commands.place.sandboxctl(script).assert_code(0).stdout, "1\n");
}

#[test]
fn a_command_has_its_variables_its_directory_and_its_arguments_byte_for_byte() {
    let commands = Commands::of(&Rootfs::busybox().folder("srv/data", 0o755));
    let mut given = commands.exec(&["-e", "A=b=c", "-e", "OURS", "-eEMPTY="], &["env"]);
    given.env("OURS", "passed on").env("NOT_OURS", "secret");
    let ended = finish(given);
    ended.assert_code(0);
    let env: Vec<&str> = ended.stdout.lines().collect();
    for line in ["A=b=c", "OURS=passed on", "EMPTY=", "HOME=/io", "TMPDIR=/tmp"] {
        assert!(env.contains(&line), "{line} in {ended:#?}");
    }
    assert!(!ended.stdout.contains("secret"), "{ended:#?}");

    let pwd = |flags: &[&str]| finish(commands.exec(flags, &["pwd"])).assert_code(0).stdout.clone();
    assert_eq!(pwd(&[]), "/io\n");
    assert_eq!(pwd(&["-w", "/srv/data"]), "/srv/data\n");
    std::fs::create_dir_all(commands.place.path("files/sub")).unwrap();
    assert_eq!(pwd(&["--io-dir", "files", "-w", "sub"]), "/io/sub\n");
    assert_eq!(pwd(&["--mount-path", "/workspace"]), "/workspace\n");
    assert_eq!(pwd(&["--no-io"]), "/\n");

    let odd = [&b"\xff\xfe"[..], b"", b"a b", b"$HOME", b"'", b"\n", "é".as_bytes()];
    let odd = odd.map(OsStr::from_bytes);
    let command = [&["printf", "[%s]"].map(OsStr::new)[..], &odd].concat();
    let printed = commands.exec(&[], &command).output().unwrap();
    assert_eq!(printed.stdout, b"[\xff\xfe][][a b][$HOME]['][\n][\xc3\xa9]");
}

#[test]
fn terminal_gets_colours_of_a_command_and_nothing_else_unless_raw() {
    let commands = Commands::new();
    let printed = r"printf '\033[32mok\033[0m \033[2J10%%\r20%%\033[K\n'";
    let on_terminal = |flags: &[&str]| {
        let (shown, side) = super::fs::terminal();
        let mut command = commands.exec(flags, &["sh", "-c", printed]);
        let mut child = command.stdout(side).spawn().unwrap();
        // Its own copy of the terminal's side.
        drop(command);
        let shown = super::fs::all_of(shown);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{shown:?}");
        shown.replace("\r\n", "\n")
    };
    let colour = "\u{1b}[32mok\u{1b}[0m \\u{1b}[2J10%\r20%\u{1b}[K\n\u{1b}[0m";
    assert_eq!(on_terminal(&["--color", "always"]), colour);
    let plain = "ok \\u{1b}[2J10%\r20%\u{1b}[K\n";
    assert_eq!(on_terminal(&["--color", "never"]), plain);
    let raw = "\u{1b}[32mok\u{1b}[0m \u{1b}[2J10%\r20%\u{1b}[K\n";
    assert_eq!(on_terminal(&["--raw"]), raw);
}

#[test]
fn a_line_for_the_shell_is_one() {
    let commands = Commands::new();
    let mut exec = commands.place.command(["exec"]);
    exec.args(commands.provided.args()).args(["--shell", "seq 3 | wc -l; exit 3"]);
    let ended = finish(exec);
    ended.assert_code(3);
    assert_eq!(ended.stdout.trim(), "3");
}

#[test]
fn command_writes_to_the_io_dir_and_reads_inputs() {
    let commands = Commands::new();
    commands.place.write("words.txt", "b\na\n");
    let ended =
        commands.shell(&["--in", "words.txt", "--io-dir", "out"], "sort /in/words.txt > sorted");
    ended.assert_code(0);
    assert_eq!(commands.place.read("out/sorted"), "a\nb\n");
    let ended = commands.shell(&["--in", "words.txt"], "echo x > /in/words.txt");
    ended.assert_code(1).assert_stderr_has("Read-only");
    // Nothing was made.
    assert!(!commands.place.path("sandbox-files").exists());
    let ended = commands.shell(&["--no-io"], "echo x > /x || echo y > /tmp/y && cat /tmp/y");
    assert_eq!(ended.assert_code(0).stdout, "y\n");
}

#[test]
fn home_user_and_path_are_the_callers_where_it_sets_them() {
    let commands = Commands::new();
    let line = "echo $HOME $USER $PATH";
    let own = ["-e", "HOME=/x", "-e", "USER=me", "-e", "PATH=/bin:/x"];
    assert_eq!(commands.shell(&own, line).assert_code(0).stdout, "/x me /bin:/x\n");
    let file = commands.place.write("own.env", "HOME=/x\nUSER=me\nPATH=/bin:/x\n");
    let ended = commands.shell(&["--env-file", file.to_str().unwrap()], line);
    assert_eq!(ended.assert_code(0).stdout, "/x me /bin:/x\n");
    assert_eq!(commands.shell(&[], "echo $HOME").assert_code(0).stdout, "/io\n");
    let script = format!(
        "local env = {{ HOME = '/x', USER = 'me', PATH = '/bin:/x' }}
         return process.exec('sh', {{ '-c', '{line}' }}, {{ env = env }}).stdout"
    );
    let mut run = commands.place.command(["run", "--result-only", "-c", &script]);
    run.args(commands.provided.args());
    assert_eq!(finish(run).assert_code(0).stdout, "/x me /bin:/x\n");
}

#[test]
fn command_has_a_hard_limit_of_processor_time() {
    // (10 min + 2 s of grace + 5 s) × one processor.
    let ended = Commands::new().shell(&["--no-io"], "ulimit -t; ulimit -Ht");
    assert_eq!(ended.assert_code(0).stdout, "607\n607\n");
}

#[test]
fn command_that_cannot_start_says_why_by_its_exit_code() {
    let commands = Commands::of(&Rootfs::busybox().file("srv/plain", 0o644, "no program"));
    let ended = finish(commands.exec(&[], &["no-such-program", "x"]));
    ended.assert_code(127).assert_stderr_has("error: 'no-such-program' was not found");
    ended.assert_stderr_has("hint: ");
    for (program, why) in [("/srv/plain", "cannot execute"), ("/srv", "cannot execute")] {
        finish(commands.exec(&[], &[program])).assert_code(126).assert_stderr_has(why);
    }
    let ended = finish(commands.exec(&["-w", "/no/such"], &["true"]));
    ended.assert_code(2).assert_stderr_has("the working directory '/no/such'");
    finish(commands.exec(&[], &[""])).assert_code(2).assert_stderr_has("COMMAND: it is empty");
    let ended = finish(commands.exec(&["-e", "NOT_SET_HERE"], &["true"]));
    ended.assert_code(0).assert_stderr_has("note: NOT_SET_HERE is not set here");
    // What names nothing to run in.
    let ended = commands.place.sandboxctl(["exec"]);
    ended.assert_code(2).assert_stderr_has("IMAGE: ").assert_stderr_has("exec IMAGE COMMAND");
    let ended = commands.place.sandboxctl(["exec", "--", "true"]);
    ended.assert_code(2).assert_stderr_has("COMMAND: it is missing");
    let ended = commands.place.sandboxctl(["exec", "--image", "x"]);
    ended.assert_code(2).assert_stderr_has("COMMAND");
    let ended = finish(commands.exec(&["--in", "-:x", "-i"], &["true"]));
    ended.assert_code(2).assert_stderr_has("--stdin");
    let long = "x".repeat(100_000);
    let ended = finish(commands.exec(&[], &[&["true"], &[&*long; 6][..]].concat()));
    ended.assert_code(2).assert_stderr_has("524288");
}

#[test]
fn stdin_is_empty_unless_it_is_asked_for() {
    let commands = Commands::new();
    let with = |flags: &[&str], input: &[u8]| {
        let mut exec = commands.exec(flags, &["cat"]);
        exec.stdin(Stdio::piped());
        let mut child = spawn(exec);
        child.stdin.take().unwrap().write_all(input).unwrap();
        wait(child)
    };
    assert_eq!(with(&[], b"hello").assert_code(0).stdout, "");
    for flag in ["-i", "--stdin"] {
        assert_eq!(with(&[flag], b"hello").assert_code(0).stdout, "hello");
    }
}

#[test]
fn a_conversation_goes_both_ways_as_it_comes() {
    let commands = Commands::new();
    let line = "echo ready; while read line; do printf \"got $line. \"; done; echo end";
    let mut exec = commands.exec(&["-i", "--timeout", "2m"], &["sh", "-c", line]);
    exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = exec.spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut expect = |text: &str| {
        let mut got = vec![0; text.len()];
        stdout.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), text);
    };
    expect("ready\n");
    for word in ["one", "two"] {
        writeln!(stdin, "{word}").unwrap();
        // No line ends there.
        expect(&format!("got {word}. "));
    }
    drop(stdin);
    expect("end\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn bytes_pass_as_they_are_in_bounded_memory() {
    const BYTES: u64 = 100 << 20;
    let commands = Commands::new();
    let mut exec = commands.exec(&["-i", "--timeout", "10m"], &["cat"]);
    exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = exec.spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writer = std::thread::spawn(move || {
        let (mut hash, mut state, mut piece) = (Sha256::new(), 1_u64, vec![0_u8; 1 << 20]);
        for _ in 0..BYTES >> 20 {
            for word in piece.chunks_exact_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.copy_from_slice(&state.rotate_left(17).to_le_bytes());
            }
            hash.update(&piece);
            stdin.write_all(&piece).unwrap();
        }
        hash.finalize()
    });
    let passed = Arc::new(AtomicU64::new(0));
    let counted = passed.clone();
    let (goes_on, may_go_on) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 16]);
        let mut may_go_on = Some(may_go_on);
        loop {
            match stdout.read(&mut piece).unwrap() {
                0 => return hash.finalize(),
                length => {
                    hash.update(&piece[..length]);
                    let before = counted.fetch_add(length as u64, Ordering::Relaxed);
                    if before > BYTES / 2
                        && let Some(may_go_on) = may_go_on.take()
                    {
                        may_go_on.recv().unwrap();
                    }
                }
            }
        }
    });
    // While it runs, and waits for its reader, the agent is looked at too.
    eventually("most of it passes", || (passed.load(Ordering::Relaxed) > BYTES / 2).then_some(()));
    let agent_kib = engine().peak_memory_kib(&commands.place.containers()[0]);
    goes_on.send(()).unwrap();
    // Only its memory is watched: no output is left to read.
    child.stdout = Some(std::process::ChildStdout::from(std::os::fd::OwnedFd::from(
        std::fs::File::open("/dev/null").unwrap(),
    )));
    let (ended, peak_kib) = wait_and_watch(child);
    ended.assert_code(0);
    assert_eq!(reader.join().unwrap(), writer.join().unwrap());
    assert_eq!(passed.load(Ordering::Relaxed), BYTES);
    assert!(peak_kib < 32 << 10, "{peak_kib} KiB of memory for {BYTES} bytes");
    // Another kernel's memory is not seen from here.
    if has(Feature::SharedKernel) {
        assert!(agent_kib < 32 << 10, "{agent_kib} KiB of the agent's memory for {BYTES} bytes");
    }
}

#[test]
fn out_of_time_the_whole_tree_is_dead_and_the_output_is_kept() {
    let commands = Commands::new();
    let nap = nap(&commands);
    let line = format!(
        "trap '' TERM INT HUP; printf before; sleep {nap} & (setsid sleep {nap} &); sleep {nap}"
    );
    let ended = commands.shell(&["--timeout", "5s"], &line);
    ended.assert_code(124).assert_stderr_has("error: ");
    ended.assert_stderr_has("hint: --timeout raises the limit");
    assert_eq!(ended.stdout, "before");
    assert!(!runs(&nap));
}

#[test]
fn a_daemon_does_not_outlive_its_command() {
    let commands = Commands::new();
    let nap = nap(&commands);
    let line = format!("(setsid sh -c '(sleep {nap} &) ; sleep {nap}' &) ; echo started");
    let ended = commands.shell(&[], &line);
    assert_eq!(ended.assert_code(0).stdout, "started\n");
    assert!(!runs(&nap));
}

#[test]
fn a_fork_bomb_ends_with_its_time_or_by_itself_and_nothing_is_left_of_it() {
    let commands = Commands::new();
    let nap = nap(&commands);
    let line = format!("bomb() {{ sleep {nap} & bomb & bomb; }}; printf lit; bomb");
    // Another kernel needs some of them for itself.
    let pids = if has(Feature::OwnLimits) { "32" } else { "128" };
    let ended = commands.shell(&["--timeout", "5s", "--pids", pids], &line);
    // A shell that cannot fork says so and ends, with what code is its own business. Another kernel
    // may end with it.
    let is_lost = ended.code == 122 && !has(Feature::OwnLimits);
    assert!([124, 1, 2].contains(&ended.code) || is_lost, "{ended:#?}");
    assert_eq!(ended.stdout, "lit");
    assert!(!runs(&nap));
}

#[test]
fn a_child_killed_by_oom_is_reported_by_its_parent() {
    let commands = Commands::new();
    let line = "dd if=/dev/zero of=/dev/null bs=400M count=1; echo child $?; exit 5";
    let ended = commands.shell(&["--memory", "64MiB"], line);
    if !has(Feature::OwnLimits) {
        ended.assert_code(120).assert_stderr_has("more than its 64MiB of memory");
        return;
    }
    ended.assert_code(5);
    assert_eq!(ended.stdout, "child 137\n");
}

#[test]
fn a_command_that_wants_more_memory_than_there_is_ends_by_that_limit() {
    let commands = Commands::new();
    let command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1"];
    let ended = finish(commands.exec(&["--memory", "64MiB", "--json"], &command));
    let reported = document(&ended);
    if has(Feature::OutOfMemory) {
        assert_eq!(reported["error"]["kind"], "out_of_memory", "{reported:#}");
        ended.assert_code(120);
    } else {
        assert_eq!(reported["signal"], 9, "{reported:#}");
        ended.assert_code(137);
    }
}

#[test]
fn output_is_limited_in_total() {
    const LIMIT: usize = 3 << 20;
    let commands = Commands::new();
    let mut exec = commands.exec(&[], &["sh", "-c", "yes a >&2 & yes b"]);
    exec.env("SANDBOXCTL_LIMITS_OUTPUT_BYTES", "3MiB");
    let (ended, peak_kib) = wait_and_watch(spawn(exec));
    ended
        .assert_code(120)
        .assert_stderr_has("hint: SANDBOXCTL_LIMITS_OUTPUT_BYTES, or limits.output_bytes in ");
    let (output, ours) = ended.stderr.split_once("error: ").unwrap();
    assert!(ours.contains("output"), "{ours}");
    assert_eq!(ended.stdout.len() + output.len(), LIMIT);
    assert!(ended.stdout.bytes().all(|byte| b"b\n".contains(&byte)));
    assert!(peak_kib < 32 << 10, "{peak_kib} KiB");
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    let commands = Commands::new();
    let (child, mut stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], "echo ready; yes");
    let mut some = [0; 100];
    stdout.read_exact(&mut some).unwrap();
    drop(stdout);
    let ended = ended(child, std::io::empty());
    assert_eq!(ended.assert_code(141).stderr, "");
}

#[test]
fn a_reader_that_is_slow_loses_nothing() {
    let commands = Commands::new();
    let line = "echo ready; seq 300000; echo end";
    let (child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], line);
    // More than all pipes and buffers hold is to come, so the command waits for us.
    let place = &commands.place;
    eventually("it runs", || (!place.containers().is_empty()).then_some(()));
    let ended = ended(child, stdout);
    ended.assert_code(0);
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(ended.stdout == expected + "end\n", "{} bytes", ended.stdout.len());
}

#[test]
fn a_signal_ends_the_command_and_its_output_is_kept() {
    let commands = Commands::new();
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let nap = nap(&commands);
        let line = format!("trap 'echo trapped' TERM INT HUP; echo ready; sleep {nap} & wait");
        let (child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], &line);
        signal(&child, sent);
        let ended = ended(child, stdout);
        ended.assert_code(code);
        // It was asked, and what it still said is there.
        assert_eq!(ended.stdout, "trapped\n");
        assert!(!runs(&nap));
    }
}

#[test]
fn a_second_signal_kills_at_once_whatever_is_waited_for() {
    let commands = Commands::new();
    // Its output has no reader.
    let (mut child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], "echo ready; yes");
    signal(&child, Signal::INT);
    let mut reported = child.try_wait().unwrap();
    eventually("it ends", || {
        if reported.is_none() {
            signal(&child, Signal::INT);
            reported = child.try_wait().unwrap();
        }
        reported
    });
    assert_eq!(reported.unwrap().code(), Some(130));
    drop(stdout);
    commands.place.expect_a_dead_instance();
    eventually("nothing is left", || {
        commands.place.sandboxctl(["gc"]).assert_code(0);
        commands.place.containers().is_empty().then_some(())
    });
}

#[test]
fn a_controller_that_is_killed_takes_the_command_with_it() {
    let commands = Commands::new();
    let nap = nap(&commands);
    let line = format!("trap '' TERM INT HUP; (setsid sleep {nap} &); echo ready; sleep {nap}");
    let (mut child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], &line);
    let containers = commands.place.containers();
    let runs = || program_runs(&containers, &nap);
    eventually("its programs run", || runs().then_some(()));
    commands.place.expect_a_dead_instance();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdout);
    eventually("its programs are gone", || (!runs()).then_some(()));
    eventually("its container is gone", || {
        commands.place.sandboxctl(["gc"]).assert_code(0);
        (commands.place.containers().is_empty() && engine().remains(&commands.place).is_empty())
            .then_some(())
    });
}

#[test]
fn controller_that_is_stopped_loses_its_command() {
    let commands = Commands::new();
    let nap = nap(&commands);
    let line = format!("(setsid sleep {nap} &); echo ready; sleep {nap}");
    let (child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], &line);
    let containers = commands.place.containers();
    eventually("its programs run", || program_runs(&containers, &nap).then_some(()));
    signal(&child, Signal::STOP);
    eventually("its programs are gone", || (!program_runs(&containers, &nap)).then_some(()));
    signal(&child, Signal::CONT);
    ended(child, stdout).assert_code(122).assert_stderr_has("has sent nothing for 15s");
}

#[test]
fn a_container_that_is_killed_from_outside_says_so() {
    let commands = Commands::new();
    let line = "echo ready; sleep 1000";
    let (child, stdout) = commands.shell_that_is_ready(&["--timeout", "5m"], line);
    let containers = commands.place.containers();
    assert_eq!(containers.len(), 1);
    engine().kill(&containers[0]);
    let ended = ended(child, stdout);
    let reported =
        if has(Feature::OutOfMemory) { "killed from outside" } else { "killed: from outside" };
    ended.assert_code(137).assert_stderr_has(reported);
}

#[test]
fn a_script_in_an_image_runs_its_programs() {
    let commands = Commands::new();
    let script =
        "local done = process.exec('wc', {'-c', '/in/x'}) print(done.stdout) return done.code";
    commands.place.write("count.luau", script);
    commands.place.write("x", "12345");
    let mut run = commands.place.command(["run", "--in", "x"]);
    run.args(commands.provided.args()).arg("count.luau");
    let ended = finish(run);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "5 /in/x\n\n0\n");
}

/// The one document on stdout.
#[track_caller]
pub(super) fn document(ended: &Ended) -> Value {
    let document: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("stdout is not one JSON document: {error}\n{ended:#?}"));
    assert_eq!(document["schema"], "sandboxctl.exec/1", "{document:#}");
    document
}

#[test]
fn a_document_has_all_of_it_whatever_happens() {
    let commands = Commands::new();
    let ended = commands.shell(&["--json"], "printf out; printf 'e\\377' >&2; echo x > f; exit 3");
    ended.assert_code(3);
    assert_eq!(ended.stderr, "");
    let reported = document(&ended);
    assert_eq!(reported["status"], "exit", "{reported:#}");
    assert_eq!(
        (&reported["exit_code"], &reported["signal"]),
        (&json!(3), &json!(null)),
        "{reported:#}"
    );
    assert_eq!((&reported["failed"], &reported["timed_out"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&reported["stdout"], &reported["stdout_encoding"]),
        (&json!("out"), &json!("utf-8"))
    );
    assert_eq!(
        (&reported["stderr"], &reported["stderr_encoding"]),
        (&json!("Zf8="), &json!("base64"))
    );
    assert_eq!(reported["files_touched"], json!([{"name": "f", "op": "write", "bytes": 2}]));
    assert_eq!(reported["engine"], engine().name());

    let reported = document(commands.shell(&["--json"], "kill -9 $$").assert_code(137));
    assert_eq!(
        (&reported["exit_code"], &reported["signal"]),
        (&json!(null), &json!(9)),
        "{reported:#}"
    );
    assert_eq!(reported["status"], "exit");

    let late = |time: Duration| {
        let time = format!("{}s", time.as_secs());
        commands.shell(&["--json", "--timeout", &time], "echo before; sleep 1000")
    };
    let late = in_its_time(late, |ended| ended.stdout.contains("before"));
    let reported = document(late.assert_code(124));
    assert_eq!((&reported["status"], &reported["timed_out"]), (&json!("timeout"), &json!(true)));
    assert_eq!((&reported["stdout"], &reported["exit_code"]), (&json!("before\n"), &json!(null)));
    assert_eq!(reported["error"]["hint"], "--timeout raises the limit");

    let reported = document(finish(commands.exec(&["--json"], &["nope"])).assert_code(127));
    assert_eq!(reported["status"], "error");
    assert_eq!(reported["error"]["kind"], "command_not_found");

    // Ours: wrong usage, wrong values.
    let place = &commands.place;
    for wrong in [&["exec", "--json", "--", "true"][..], &["exec", "--json", "--nope"]] {
        let reported = document(place.sandboxctl(wrong).assert_code(2));
        assert_eq!(reported["error"]["kind"], "usage", "{reported:#}");
        assert_eq!(reported["id"], json!(null));
    }

    let mut exec = commands.exec(&["--json", "-i"], &["wc", "-c"]);
    exec.stdin(Stdio::piped());
    let mut child = spawn(exec);
    child.stdin.take().unwrap().write_all(b"12345").unwrap();
    assert_eq!(document(wait(child).assert_code(0))["stdout"], "5\n");

    let long = commands.shell(&["--json"], "yes | head -c 1500000");
    let reported = document(long.assert_code(0));
    assert_eq!(reported["stdout"].as_str().unwrap().len(), 1_000_000);
    assert_eq!(
        (&reported["stdout_truncated"], &reported["stderr_truncated"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn a_rule_that_would_not_hold_a_command_is_refused() {
    let commands = Commands::new();
    let ended = commands.shell(&["--protect"], "touch .bashrc");
    ended.assert_code(121).assert_stderr_has("filesystem.protected cannot be enforced");
    ended.assert_stderr_has("hint: ");
    // Where it can write to nothing, there is nothing to keep it from.
    commands.shell(&["--protect", "--no-io"], "true").assert_code(0);
}

#[test]
fn cut_off_output_of_a_document_is_one_warning() {
    let commands = Commands::new();
    let line = ["sh", "-c", "head -c 1000001 /dev/zero; echo x >&2"];
    let ended = finish(commands.exec(&["--json"], &line));
    let warning =
        "warning: cut off: stdout after 1,000,000 bytes (without --json all of it is printed)\n";
    assert_eq!(ended.assert_code(0).stderr, warning);
    let ended = finish(commands.exec(&[], &line));
    assert_eq!(ended.assert_code(0).stderr, "x\n");
}

#[test]
fn variables_of_a_file_are_set_and_those_of_the_command_line_win() {
    let commands = Commands::new();
    commands.place.write("build.env", "# of the build\nA=from file\nB='b'\nC=c\nGIVEN\nUNSET\n");
    let mut exec = commands.exec(
        &["--env-file", "build.env", "-e", "C=wins"],
        &["sh", "-c", "echo $A,$B,$C,$GIVEN,${UNSET-unset}"],
    );
    exec.env("GIVEN", "given");
    let ended = finish(exec);
    ended.assert_code(0).assert_stderr_has("UNSET is not set here");
    assert_eq!(ended.stdout, "from file,'b',wins,given,unset\n");
    commands.place.write("build.env", "A=1\nexport B=hunter2\n");
    let ended = finish(commands.exec(&["--env-file", "build.env"], &["true"]));
    ended.assert_code(2).assert_stderr_has("line 2: the name has white space in it");
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
}

#[test]
fn inputs_are_what_a_pattern_matches() {
    let commands = Commands::new();
    for name in ["b.csv", "a.csv", "c.txt"] {
        commands.place.write(name, name);
    }
    let ended = finish(commands.exec(
        &["--in", "*.csv", "--in", "c.*:text"],
        &["sh", "-c", "cd /in; find . -type f | sort; cat text"],
    ));
    ended.assert_code(0);
    assert_eq!(ended.stdout, "./a.csv\n./b.csv\n./text\nc.txt");
    let ended = finish(commands.exec(&["--in", "*.none"], &["true"]));
    ended.assert_code(2).assert_stderr_has("nothing matches it");
}

#[test]
fn a_program_that_is_in_debt_with_its_processors_ends_at_its_deadline() {
    if !has(Feature::LimitLifted) {
        return;
    }
    let rootfs = Rootfs::busybox().copy("bin/long-calls", long_calls());
    let commands = Commands::of(&rootfs);
    let flags = ["--cpus", "0.1", "--timeout", "3s", "--json"];
    let ended = finish(commands.exec(&flags, &["long-calls", "40"]));
    let document = document(&ended);
    assert_eq!((ended.code, &document["status"]), (124, &json!("timeout")), "{document:#}");
    // Instead of minutes; the machine may be busy. Whether the agent reported its output is open.
    let wall = document["usage"]["wall_ms"].as_u64().unwrap();
    assert!((3000..100_000).contains(&wall), "{document:#}");
}
