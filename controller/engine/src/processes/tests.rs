use std::fs::File;

use super::*;

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
        state(Path::new(&format!("/proc/{}", self.child.id()))).unwrap()
    }

    fn reaches(&self, is_reached: impl Fn(u8) -> bool) -> bool {
        (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            is_reached(self.state())
        })
    }

    fn send(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn programs_stand_still_whatever_continues_them_and_run_on_afterwards() {
    let program = Program::shell("trap : CONT; while :; do echo x; done");
    let processes = program.processes();
    let ((), stood_still) = processes.while_stopped(|| {
        let written = processes.written();
        for signal in [Signal::CONT, Signal::STOP, Signal::CONT] {
            program.send(signal);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((program.state(), processes.written()), (b't', written));
        }
    });
    assert!(stood_still);
    assert!(program.reaches(|state| matches!(state, b'R' | b'S')));
    let written = processes.written();
    assert!(program.reaches(|_| processes.written() > written));
    // One that was stopped before remains so.
    program.send(Signal::STOP);
    assert!(program.reaches(|state| state == b'T'));
    assert!(processes.while_stopped(|| ()).1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(program.state(), b'T');
    // The id of a process outside is left alone.
    program.send(Signal::CONT);
    let outside = program.in_group("0::/elsewhere");
    outside.while_stopped(|| assert_ne!(program.state(), b't'));
}

#[test]
fn programs_that_a_signal_stopped_are_known_to_have_run_meanwhile() {
    let program = Program::shell("while :; do echo x; done");
    let (processes, pid) = (program.processes(), program.child.id());
    assert!(program.in_group("0::/elsewhere").signal(pid).is_none());
    let signalled = vec![processes.signal(pid).unwrap()];
    assert!(program.reaches(|state| state == b'T'));
    let stood = processes.standing();
    let stopped = Stopped { processes: &processes, signalled, stood };
    assert!(stopped.stood_still());
    // A process that was already stopped is not continued later.
    assert!(processes.signal(pid).is_none());
    // It is stopped again.
    program.send(Signal::CONT);
    assert!(program.reaches(|state| matches!(state, b'R' | b'S')));
    program.send(Signal::STOP);
    assert!(program.reaches(|state| state == b'T') && !stopped.stood_still());
    drop(stopped);
    assert!(program.reaches(|state| matches!(state, b'R' | b'S')));
}

#[test]
fn calls_that_wait_for_another_process_are_told_from_others() {
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
