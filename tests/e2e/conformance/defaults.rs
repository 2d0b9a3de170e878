//! What programs have without a flag: limits, names, an environment, a way to end; and what is noted
//! where a limit bites.

use std::num::NonZeroU32;
use std::os::unix::fs::chown;
use std::time::Duration;

use sandbox_api::{
    ByteSize, CancelCause, ErrorKind, ExecutionResult, Limits, NoteKind, SandboxSpec, Script,
    Status, User,
};
use sandbox_controller::{CancelHandle, Command, Execution};
use serde_json::{Value, json};

use crate::conformance::exec_cli::{Commands, document as exec_document};
use crate::engines::{Feature, Kind, has, kind};
use crate::fixture::{Fixture, finish, in_its_time};
use crate::library::{Guest, NextEvent as _};
use crate::rootfs::{Provided, Rootfs};

/// A sandbox in which programs are.
struct Programs {
    guest: Guest,
    _provided: Provided,
}

impl Programs {
    fn new(rootfs: &Rootfs, spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> Self {
        Self::in_place(Fixture::new(), rootfs, spec)
    }

    fn in_place(
        place: Fixture,
        rootfs: &Rootfs,
        spec: impl FnOnce(SandboxSpec) -> SandboxSpec,
    ) -> Self {
        let provided = rootfs.provide();
        let guest = Guest::in_place(place, |it| spec(it.root(provided.root())));
        Self { guest, _provided: provided }
    }

    fn limited(change: impl FnOnce(&mut Limits)) -> Self {
        Self::new(&Rootfs::busybox(), |mut spec| {
            change(&mut spec.limits);
            spec
        })
    }

    #[track_caller]
    fn exec(&self, command: Command) -> ExecutionResult {
        self.guest.wait(self.guest.sandbox.run(command)).unwrap()
    }

    /// What a line of the shell's writes, which ends well.
    #[track_caller]
    fn prints(&self, line: &str) -> String {
        let result = self.exec(Command::shell(line));
        assert_eq!(result.outcome.status(), Status::Ok, "{line}: {result:#?}");
        String::from_utf8(result.stdout().bytes.clone()).unwrap()
    }
}

fn kinds(result: &ExecutionResult) -> Vec<NoteKind> {
    result.notes.iter().map(|note| note.kind).collect()
}

/// An awk program that allocates until memory runs out.
const HOG: &str = "awk 'BEGIN { s = \"0123456789abcdef\"; while (1) s = s s }'";

#[test]
fn sandbox_with_programs_has_the_limits_of_exec_at_every_door() {
    let commands = Commands::new();
    let (place, root) = (&commands.place, commands.provided.args());
    let is_of_exec = |limits: &Value, door: &str| {
        let some = json!([
            limits["timeout_ms"], limits["memory_bytes"], limits["pids"], limits["write_bytes"],
            limits["entries"],
        ]);
        let expected = json!([600_000, 1 << 30, 256, 1 << 30, 100_000]);
        assert_eq!(some, expected, "{door}");
    };
    let ended = commands.shell(&["--json"], "true");
    is_of_exec(&exec_document(&ended)["limits"], "exec");
    let mut run = place.command(["run", "--json", "-c", "return 1"]);
    run.args(&root);
    is_of_exec(&place.document(&finish(run))["limits"], "run");
    // The library's, also for its scripts; and without programs, those of scripts.
    let programs = Programs::new(&Rootfs::busybox(), |spec| spec);
    let sandbox = &programs.guest.sandbox;
    let (command, script) = programs.guest.wait(async {
        (sandbox.run(Command::new("true")).await.unwrap(), sandbox.run(Script::new("")).await)
    });
    assert_eq!((command.limits, script.unwrap().limits), (Limits::for_programs(), command.limits));
    let scripts = Guest::new();
    let script = scripts.wait(scripts.sandbox.run(Script::new(""))).unwrap();
    assert_eq!(script.limits, Limits::default());
    // A flag is for both.
    let mut run = place.command(["run", "--json", "--memory", "64MiB", "-c", "return 1"]);
    run.args(&root);
    assert_eq!(place.document(&finish(run))["limits"]["memory_bytes"], 64 << 20);
}

#[test]
fn where_a_limit_bites_inside_a_note_names_its_flag_unless_the_command_ends_well() {
    type Change = fn(&mut Limits);
    let small: Change = |limits| {
        // A kernel of the sandbox's own is in this memory too, and its threads are among the processes.
        let (memory, pids) = if has(Feature::SharedKernel) { (64, 24) } else { (256, 64) };
        limits.memory = ByteSize::b(memory << 20);
        limits.pids = NonZeroU32::new(pids).unwrap();
        limits.tmpfs = ByteSize::b(1 << 20);
        limits.shm = ByteSize::b(1 << 20);
        limits.max_write = ByteSize::b(500_000);
        limits.max_file_size = ByteSize::b(500_000);
    };
    let dd = |place: &str| {
        format!("for i in 1 2 3; do dd if=/dev/zero of={place}/$i bs=1000 count=499; done")
    };
    let forks = "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i + 1)); done";
    // Without root these are not counted: by best effort there is no note on them.
    let is_counted = kind() != Kind::Rootless;
    let own = has(Feature::OwnLimits) && has(Feature::SharedKernel) && is_counted;
    let lines = [
        (own, HOG.to_owned(), NoteKind::OutOfMemory, "--memory raises the limit"),
        (own, forks.to_owned(), NoteKind::Processes, "--pids raises the limit"),
        (true, dd("/tmp"), NoteKind::NoSpace, "--tmpfs-size raises the limit"),
        (true, dd("/dev/shm"), NoteKind::SharedMemory, "--shm-size raises the limit"),
        (has(Feature::NothingToWrite), "touch /bin/x".to_owned(), NoteKind::ReadOnly, "--io-dir"),
        (
            has(Feature::SharedKernel),
            "cd /tmp; head -c 600000 /dev/zero > large".to_owned(),
            NoteKind::FileSize,
            "--max-write raises the limit",
        ),
    ];
    for (_, line, kind, hint) in lines.into_iter().filter(|(is_seen, ..)| *is_seen) {
        // How a shell that cannot fork ends is unspecified.
        for end in ["exit 4", "exit 0"].iter().filter(|end| **end == "exit 4" || line != forks) {
            let programs = Programs::limited(small);
            let result = programs.exec(Command::shell(format!("({line}) 2>&1; {end}")));
            match *end {
                "exit 0" => assert_eq!(kinds(&result), [], "{line}: {result:#?}"),
                _ => {
                    assert_ne!(result.outcome.status(), Status::Ok, "{line}: {result:#?}");
                    let note = result.notes.iter().find(|note| note.kind == kind);
                    let note = note.unwrap_or_else(|| panic!("{line}: {result:#?}"));
                    assert!(note.hint.as_ref().unwrap().contains(hint), "{note:?}");
                }
            }
            // What was counted then is no reason of a later end.
            if kind == NoteKind::OutOfMemory {
                assert_eq!(kinds(&programs.exec(Command::shell("exit 5"))), []);
            }
        }
    }
}

#[test]
fn notes_are_on_stderr_in_the_document_and_in_what_an_agent_gets() {
    let commands = Commands::new();
    let line = "touch /bin/x; exit 4";
    if !has(Feature::NothingToWrite) {
        return;
    }
    let reported = commands.shell(&[], line);
    let note = "note: programs can write to /io and /tmp only: the rest is read-only; --io-dir DIR \
                gives it a directory of the host to write to\n";
    reported.assert_code(4).assert_stderr_has(note);
    let document = exec_document(&commands.shell(&["--json"], line));
    assert_eq!(document["notes"][0]["kind"], "read_only", "{document:#}");
    let well = commands.shell(&["--json"], "touch /bin/x || true");
    assert_eq!(exec_document(&well).get("notes"), None);
    assert!(document["usage"]["peak_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 100_000));
}

#[test]
fn tmp_has_nearly_all_memory_and_shared_memory_what_docker_gives() {
    let programs = Programs::limited(|limits| limits.memory = ByteSize::b(256 << 20));
    let sizes = programs.prints("df -k /tmp /dev/shm | awk 'NR > 1 { print $2 }'");
    assert_eq!(sizes, format!("{}\n{}\n", 224 << 10, 64 << 10));
    let one = Programs::limited(|limits| {
        limits.tmpfs = ByteSize::b(3 << 20);
        limits.shm = ByteSize::b(2 << 20);
    });
    let sizes = one.prints("df -k /tmp /dev/shm | awk 'NR > 1 { print $2 }'");
    assert_eq!(sizes, format!("{}\n{}\n", 3 << 10, 2 << 10));
    // A full one is an error that the program gets, and not the end of the sandbox.
    let full = programs.exec(Command::shell("dd if=/dev/zero of=/tmp/x bs=1M; echo $?; exit 4"));
    assert_eq!(
        (full.outcome.status(), &*full.stdout().bytes),
        (Status::Exit, &b"1\n"[..]),
        "{full:#?}"
    );
    assert_eq!(kinds(&full), [NoteKind::NoSpace]);
    assert!(full.notes[0].hint.as_ref().unwrap().contains("--memory"), "{full:#?}");
}

#[test]
fn user_has_a_name_whether_the_image_has_one_or_not() {
    let busybox = Rootfs::busybox;
    let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1234:1234::/home/ann:/bin/sh\n";
    let listed =
        busybox().file("etc/passwd", 0o644, passwd).file("etc/group", 0o644, "ann:x:1234:\n");
    let user =
        |uid| move |spec: SandboxSpec| spec.fresh_io_dir().user(Some(User::new(uid, uid).unwrap()));
    let ask = "eval echo $USER $LOGNAME $(id -un) $(id -gn) ~$(id -un)";
    for (rootfs, uid, expected) in [
        (busybox(), 1234, "sandbox sandbox sandbox sandbox /io\n"),
        (busybox(), 0, "root root root root /io\n"),
        (listed.clone(), 1234, "ann ann ann ann /io\n"),
        (listed.clone(), 4321, "sandbox sandbox sandbox sandbox /io\n"),
    ] {
        let programs = Programs::new(&rootfs, user(uid));
        assert_eq!(programs.prints(ask), expected, "{uid}");
    }
    // The names that the image has stay.
    let programs = Programs::new(&listed, user(4321));
    assert_eq!(
        programs.prints("cat /etc/passwd"),
        format!("{passwd}sandbox:x:4321:4321:sandbox:/io:/bin/sh\n")
    );
    // Who has a name by the caller keeps it.
    let named = Command::shell(ask.replace(" ~$(id -un)", "")).env("USER", "eve");
    assert_eq!(programs.exec(named).stdout().bytes, b"eve sandbox sandbox sandbox\n");
}

#[test]
fn special_file_in_place_of_the_users_is_left_alone() {
    let rootfs = Rootfs::busybox().file("etc/passwd", 0o644, b"\xff\xff:x:5:5::/:\n");
    let programs = Programs::new(&rootfs, |spec| {
        spec.fresh_io_dir().user(Some(User::new(1234, 1234).unwrap()))
    });
    // Podman adds a line for a user without a name itself.
    let name = if kind() == Kind::Podman { "1234" } else { "sandbox" };
    let printed = programs.prints("head -c 2 /etc/passwd | wc -c; echo $USER");
    assert_eq!(printed, format!("2\n{name}\n"));
}

#[test]
fn git_opens_a_repository_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Fixture::new();
    let repository = place.path("sandbox-files/below/repository");
    std::fs::create_dir_all(&repository).unwrap();
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        let ended = git.arg("-C").arg(&repository).args(args).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    };
    git(&["init", "--quiet"]);
    chown(&repository, Some(4321), Some(4321)).unwrap();
    let rootfs = Rootfs::host(&["/usr/bin/git"]);
    let user = Some(User::new(1234, 1234).unwrap());
    let programs = Programs::in_place(place, &rootfs, |spec| spec.user(user));
    let status = || Command::new("git").args(["-C", "below/repository", "status", "--short"]);
    let result = programs.exec(status());
    assert_eq!(result.outcome.status(), Status::Ok, "{result:#?}");
    // And a caller can restore Git's own rule.
    let refused = programs.exec(status().env("GIT_CONFIG_COUNT", "0"));
    assert_eq!(refused.command_exit_code(), Some(128), "{refused:#?}");
}

#[test]
fn command_that_is_to_end_gets_sigterm_and_its_grace_before_it_is_killed() {
    let programs = Programs::limited(|limits| limits.stop_timeout = Duration::from_secs(60));
    let line = |trap: &str| format!("trap '{trap}' TERM; echo ready; while :; do sleep 0.1; done");
    let clean = || Command::shell(line("echo clean; exit 3"));
    let timeout = in_its_time(
        |time| programs.exec(clean().timeout(time)),
        |result| result.stdout().bytes.starts_with(b"ready\n"),
    );
    assert_eq!(timeout.outcome.status(), Status::Timeout, "{timeout:#?}");
    assert_eq!(
        (timeout.command_exit_code(), &*timeout.stdout().bytes),
        (Some(3), &b"ready\nclean\n"[..])
    );
    let cancelled = |programs: &Programs, command, times| {
        programs.guest.wait(async {
            let mut execution =
                programs.guest.sandbox.start(command, CancelHandle::new()).await.unwrap();
            let (_, ready) = execution.next_output().await.unwrap();
            assert_eq!(ready, b"ready\n");
            let cancel = |execution: &Execution| {
                execution.cancel_handle().cancel(CancelCause::Interrupt);
            };
            (0..times).for_each(|_| cancel(&execution));
            execution.wait().await.unwrap()
        })
    };
    let result = cancelled(&programs, clean(), 1);
    assert_eq!(result.outcome.status(), Status::Cancelled, "{result:#?}");
    assert_eq!(
        (result.command_exit_code(), &*result.stdout().bytes),
        (Some(3), &b"ready\nclean\n"[..])
    );
    // A program that ignores it is killed: at the end of its grace period, at once without one, and
    // with its container by a second cancel.
    let brief = Programs::limited(|limits| limits.stop_timeout = Duration::from_millis(100));
    let none = Programs::limited(|limits| limits.stop_timeout = Duration::ZERO);
    for programs in [&brief, &none] {
        let result = cancelled(programs, Command::shell(line("")), 1);
        assert_eq!((result.outcome.status(), result.signal()), (Status::Cancelled, Some(9)));
    }
    let result = cancelled(&none, clean(), 1);
    assert_eq!(
        (result.signal(), &*result.stdout().bytes),
        (Some(9), &b"ready\n"[..]),
        "{result:#?}"
    );
    let result = cancelled(&programs, Command::shell(line("")), 2);
    assert_eq!((result.outcome.status(), result.signal()), (Status::Cancelled, None));
}

#[test]
fn limit_kills_at_once_without_a_grace() {
    let programs = Programs::limited(|limits| {
        limits.stop_timeout = Duration::from_secs(60);
        limits.max_write = ByteSize::b(2_000_000);
        limits.max_file_size = ByteSize::b(1_000_000);
        limits.output_bytes = ByteSize::b(100_000);
    });
    let deaf = "trap '' TERM; i=0;";
    for (line, kind) in [
        ("while :; do i=$((i + 1)); head -c 900000 /dev/zero > f$i; done", ErrorKind::WriteLimit),
        ("cat /dev/zero; while :; do sleep 0.1; done", ErrorKind::OutputLimit),
    ] {
        let result = programs.exec(Command::shell(format!("{deaf} {line}")));
        assert_eq!(result.outcome.failure().unwrap().kind, kind, "{result:#?}");
        // The agent has said so: one that waits is killed with its container.
        assert_eq!(result.signal(), Some(9), "{result:#?}");
    }
    // Also in the grace of a cancel.
    let line = format!(
        "{deaf} echo ready; while :; do i=$((i + 1)); head -c 900000 /dev/zero > f$i; done"
    );
    let result = programs.guest.wait(async {
        let mut execution =
            programs.guest.sandbox.start(Command::shell(line), CancelHandle::new()).await.unwrap();
        execution.next_output().await.unwrap();
        execution.cancel_handle().cancel(CancelCause::Caller);
        execution.wait().await.unwrap()
    });
    assert_eq!(result.outcome.failure().unwrap().kind, ErrorKind::WriteLimit, "{result:#?}");
}
