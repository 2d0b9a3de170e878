use std::fs::File;
use std::os::fd::AsFd as _;

use sandbox_dirfd::DiskMeter;

use super::*;

/// How long a test waits for what must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for processes that stop, however busy the machine is.
fn in_time(since: Duration) -> bool {
    since < TEST_TIMEOUT
}

/// Waits in vain.
fn a_while(since: Duration) -> bool {
    since < Duration::from_millis(250)
}

/// What there is in the end: it looks again and again.
fn until_some<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let found = look();
        if found.is_some() || began.elapsed() >= TEST_TIMEOUT {
            return found;
        }
    }
}

/// A child, with the files of a cgroup that it is alone in.
struct Program {
    child: std::process::Child,
    dir: tempfile::TempDir,
}

impl Program {
    fn shell(line: &str) -> Self {
        let child = std::process::Command::new("sh")
            .args(["-c", line])
            .stdout(File::create("/dev/null").unwrap())
            .spawn()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        for file in ["cgroup.procs", "cgroup.threads"] {
            fs::write(dir.path().join(file), format!("{}\n", child.id())).unwrap();
        }
        Self { child, dir }
    }

    fn processes(&self) -> Processes {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.child.id())).unwrap();
        self.in_group(groups.lines().next().unwrap())
    }

    fn in_group(&self, group: &str) -> Processes {
        let threads = self.dir.path().join("cgroup.threads");
        Processes { init: 1, group: group.to_owned(), threads }
    }

    fn state(&self) -> u8 {
        state(Path::new(&format!("/proc/{}", self.child.id())))
    }

    fn is(&self, states: &[u8]) -> bool {
        until_some(|| states.contains(&self.state()).then_some(())).is_some()
    }

    fn send(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn programs_stand_still_while_stopped_and_continue_afterwards() {
    let program = Program::shell("while :; do echo x; done");
    let processes = program.processes();
    // The pid of a process outside is left alone.
    assert!(program.in_group("0::/elsewhere").stop(a_while).programs.is_empty());
    let stopped = processes.stop(in_time);
    assert!(program.is(b"T"));
    assert_eq!(stopped.so_far(), Stop::Complete);
    // A process that was already stopped is not continued.
    assert!(processes.stop(in_time).programs.is_empty());
    let written = processes.written();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((processes.written(), stopped.so_far()), (written, Stop::Complete));
    drop(stopped);
    assert!(program.is(b"RS"));
}

#[test]
fn processes_not_inspected_in_time_may_hold_hidden_files() {
    let program = Program::shell("exec sleep 1000");
    let processes = program.processes();
    let directory = File::open("/").unwrap();
    let look = |goes_on: &mut dyn FnMut() -> bool| {
        let meter = DiskMeter::new(directory.as_fd());
        processes
            .unnamed_files(meter, [0; 3], unnamed_files::UnnamedDepth::Open, goes_on)
            .has_unseen
    };
    assert!(!look(&mut || true));
    assert!(look(&mut || false));
}

#[test]
fn processes_are_inspected_again_when_a_descriptor_is_free() {
    let program = Program::shell("exec sleep 1000");
    let processes = program.processes();
    let has_unseen = crate::exhausted::without_descriptors(|mut held| {
        let directory = held.remove(0);
        let goes_on = &mut || {
            held.clear();
            true
        };
        let depth = unnamed_files::UnnamedDepth::Everything;
        processes
            .unnamed_files(DiskMeter::new(directory.as_fd()), [0; 3], depth, goes_on)
            .has_unseen
    });
    assert!(!has_unseen);
}

#[test]
fn writes_of_processes_that_started_or_ended_are_unknown() {
    let written = |bytes, pids: &[u32]| Written(pids.iter().map(|pid| (*pid, bytes)).collect());
    let before = written(3, &[1, 2]);
    assert_eq!(written(4, &[1, 2]).since(&before), Some(2));
    for pids in [&[1][..], &[1, 2, 3], &[1, 3]] {
        assert_eq!(written(5, pids).since(&before), None, "{pids:?}");
    }
}

#[test]
fn what_processes_write_is_counted_by_each_of_them() {
    let before = Written([(1, 100), (2, 1000)].into());
    // One has ended, and one has started.
    assert_eq!(Written([(1, 150), (3, 7)].into()).known_since(&before), 57);
    assert_eq!(before.known_since(&before), 0);
}

#[test]
fn parents_stop_before_their_children() {
    let program = Program::shell("sleep 1000 & wait");
    let pid = program.child.id();
    let child = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child = until_some(|| child().trim().parse::<u32>().ok()).unwrap();
    for file in ["cgroup.procs", "cgroup.threads"] {
        fs::write(program.dir.path().join(file), format!("{child}\n{pid}\n")).unwrap();
    }
    let processes = program.processes();
    let stopped = processes.stop(in_time);
    assert_eq!(stopped.programs.iter().map(|it| it.pid).collect::<Vec<_>>(), [pid, child]);
    assert_eq!(stopped.so_far(), Stop::Complete);
    drop(stopped);
    let child = Pid::from_raw(child.cast_signed()).unwrap();
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

#[test]
fn a_continued_process_breaks_a_stop_and_a_new_one_makes_it_partial() {
    let program = Program::shell("while :; do echo x; done");
    let other = Program::shell("while :; do echo x; done");
    let processes = program.processes();
    let stopped = processes.stop(in_time);
    let both = format!("{}\n{}\n", program.child.id(), other.child.id());
    fs::write(program.dir.path().join("cgroup.threads"), both).unwrap();
    assert_eq!(stopped.so_far(), Stop::Partial);
    // It is stopped again, and the other one still runs.
    program.send(Signal::CONT);
    assert!(program.is(b"RS"));
    program.send(Signal::STOP);
    assert!(program.is(b"T"));
    assert_eq!(stopped.so_far(), Stop::Broken);
}

#[test]
fn stop_ends_at_its_deadline_and_detects_continued_processes() {
    let program = Program::shell("while :; do :; done");
    let other = Program::shell("while :; do :; done");
    let (pid, runs) = (program.child.id(), other.child.id());
    // Of the other one's process nothing is known but a thread, so that it is not stopped.
    fs::write(program.dir.path().join("cgroup.threads"), format!("{pid}\n{runs}\n")).unwrap();
    let processes = program.processes();
    let mut asked = 0;
    let stopped = processes.stop(|_| {
        asked += 1;
        asked < 3
    });
    assert_eq!((stopped.so_far(), stopped.programs.len()), (Stop::Partial, 1));
    drop(stopped);
    let mut asked = 0;
    let stopped = processes.stop(|_| {
        asked += 1;
        if asked == 1 {
            assert!(program.is(b"T"));
        } else {
            // It was seen, and may be stopped again at once.
            program.send(Signal::CONT);
        }
        asked < 5
    });
    assert_eq!(stopped.so_far(), Stop::Broken);
}

#[test]
fn honest_programs_never_break_a_stop() {
    let program = Program::shell("while :; do :; done");
    let processes = program.processes();
    for _ in 0..300 {
        assert_eq!(processes.while_stopped(in_time, || ()).1, Stop::Complete);
    }
}

#[test]
fn programs_that_others_stop_stay_stopped() {
    let program = Program::shell("printf '\\377' >/proc/$$/comm; while :; do :; done");
    let name = format!("/proc/{}/comm", program.child.id());
    until_some(|| (fs::read(&name).unwrap() == b"\xff\n").then_some(())).unwrap();
    let processes = program.processes();
    // On a busy machine the thread of the process is signalled too and takes that signal. Then the
    // other signal stays pending, and it is unknown whether another process sent it.
    let mut stops = std::iter::repeat_with(|| processes.stop(in_time));
    let stopped = stops.find(|stopped| stopped.programs[0].has_taken).unwrap();
    assert_eq!(stopped.so_far(), Stop::Complete);
    // It is taken only once it continues.
    program.send(Signal::STOP);
    drop(stopped);
    assert!(program.is(b"T") && has_stop_pending(program.child.id()));
    program.send(Signal::CONT);
    assert!(program.is(b"RS"));
    for _ in 0..100 {
        // It may not have taken the signal yet.
        program.send(Signal::STOP);
        drop(processes.stop(in_time));
        assert!(program.is(b"T"));
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(program.state(), b'T');
        program.send(Signal::CONT);
    }
}

#[test]
fn calls_that_wait_for_another_process_are_distinguished() {
    assert!(WAITS.iter().all(|number| is_wait(&format!("{number} 0x4111 0x0 0x7ffe 0x7f12\n"))));
    for call in ["running\n", "-1 0x7ffe 0x7f12\n", "0 0x3 0x7f12 0x1000\n", ""] {
        assert!(!is_wait(call), "{call}");
    }
}

#[test]
fn processes_are_those_of_the_container_and_of_no_other() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(!groups.contains("no-container-of-this-name"));
    assert!(Processes::of(std::process::id(), "no-container-of-this-name").is_none());
    let paths = |line| files_of_threads(line).collect::<Vec<_>>();
    assert_eq!(
        paths("5:cpu,cpuacct:/docker/a"),
        [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/docker/a/tasks")]
    );
    assert_eq!(
        paths("0::/system.slice/docker-a.scope"),
        ["", "unified/"].map(|it| PathBuf::from(format!(
            "/sys/fs/cgroup/{it}system.slice/docker-a.scope/cgroup.threads"
        )))
    );
    assert!(paths("").is_empty());
}

#[test]
fn only_programs_are_killed() {
    let mut program = Program::shell("while :; do :; done");
    let processes = program.processes();
    program.in_group("0::/another").kill();
    assert!(program.child.try_wait().unwrap().is_none());
    processes.kill();
    let ended = program.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL));
    // The agent is not.
    let agent = Program::shell("while :; do :; done");
    Processes { init: agent.child.id(), ..agent.processes() }.kill();
    assert!(agent.is(b"RS"));
}
