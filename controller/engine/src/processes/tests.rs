use std::fs::File;

use super::*;

#[test]
fn programs_stand_still_while_stopped_and_continue_afterwards() {
    let mut child = std::process::Command::new("sh")
        .args(["-c", "while :; do echo x; done"])
        .stdout(File::create("/dev/null").unwrap())
        .spawn()
        .unwrap();
    let pid = child.id();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for file in ["cgroup.procs", "cgroup.threads"] {
        fs::write(dir.path().join(file), format!("{pid}\n")).unwrap();
    }
    let group = |group: &str| Processes {
        init: 1,
        group: group.to_owned(),
        threads: dir.path().join("cgroup.threads"),
    };
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.as_bytes()[0]
    };
    let settles = |stopped| {
        for _ in 0..1000 {
            if (state() == b'T') == stopped {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    };
    // The pid of a process outside is left alone.
    assert!(group("0::/elsewhere").stop().programs.is_empty());
    let processes = group(groups.lines().next().unwrap());
    let stopped = processes.stop();
    assert_eq!(state(), b'T');
    assert!(stopped.stood_still());
    // A process that was already stopped is not continued.
    assert!(processes.stop().programs.is_empty());
    let written = processes.written();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(processes.written(), written);
    assert!(stopped.stood_still());
    // It has run meanwhile, though it is stopped again.
    let signal = |signal| rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
    signal(Signal::CONT);
    assert!(settles(false));
    signal(Signal::STOP);
    assert!(settles(true) && !stopped.stood_still());
    drop(stopped);
    assert!(settles(false));
    child.kill().unwrap();
    child.wait().unwrap();
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
