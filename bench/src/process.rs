//! What `/proc` says of processes.

use std::fs;
use std::time::Duration;

use sandbox_controller::Sandbox;

use crate::error::Error;

/// Bytes that this process has resident.
pub fn resident() -> Result<f64, Error> {
    status("self", "VmRSS:")
}

/// The most bytes that this process ever had resident, or since [`forget_peak`].
pub fn peak() -> Result<f64, Error> {
    status("self", "VmHWM:")
}

/// From here on, the peak is a new one.
pub fn forget_peak() -> Result<(), Error> {
    let path = "/proc/self/clear_refs";
    fs::write(path, "5").map_err(Error::file("write", path))
}

/// Bytes that a process has resident.
pub fn resident_of(pid: u32) -> Result<f64, Error> {
    status(&pid.to_string(), "VmRSS:")
}

/// Bytes that a process has resident and shares with no other, and its share of the others (`Pss`).
pub fn share_of(pid: u32) -> Result<f64, Error> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// The most bytes that a process ever had resident, or since [`forget_peak_of`].
pub fn peak_of(pid: u32) -> Result<f64, Error> {
    status(&pid.to_string(), "VmHWM:")
}

/// From here on, a process's peak is a new one. Where this is not allowed, what it had at its
/// beginning stays in it: then it is too high, and never too low.
pub fn forget_peak_of(pid: u32) {
    _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn status(process: &str, name: &str) -> Result<f64, Error> {
    field(&format!("/proc/{process}/status"), name)
}

fn field(path: &str, field: &str) -> Result<f64, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    // A process that has ended and was not waited for has no memory any more.
    Ok(kib.unwrap_or(0.0) * 1024.0)
}

/// Processor time of this process, all its threads.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Processor time of a process, all its threads that have not ended.
pub fn processor_time_of(pid: u32) -> Result<Duration, Error> {
    let path = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&path).map_err(Error::file("list", &path))?;
    let mut time = Duration::ZERO;
    for task in tasks.flatten() {
        let path = task.path().join("schedstat");
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
        time += Duration::from_nanos(nanoseconds.unwrap_or(0));
    }
    Ok(time)
}

/// Open descriptors of a process; `None` where only a mightier user may look.
pub fn descriptors_of(pid: u32) -> Option<usize> {
    count(&format!("/proc/{pid}/fd")).ok()
}

/// Threads of a process.
pub fn threads_of(pid: u32) -> Result<usize, Error> {
    count(&format!("/proc/{pid}/task"))
}

/// Open descriptors of this process.
pub fn descriptors() -> Result<usize, Error> {
    // One is that of the look.
    Ok(count("/proc/self/fd")? - 1)
}

/// Threads of this process.
pub fn threads() -> Result<usize, Error> {
    count("/proc/self/task")
}

fn count(path: &str) -> Result<usize, Error> {
    Ok(fs::read_dir(path).map_err(Error::file("list", path))?.count())
}

/// The processes whose cgroup or command line has one of these words: those of containers, by
/// their ids.
pub fn in_containers(ids: &[String]) -> Vec<u32> {
    processes()
        .filter(|pid| {
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            ids.iter().any(|id| cgroup.contains(id.as_str()))
        })
        .collect()
}

/// The agent of a sandbox, by the ids of its container.
pub fn agent_of(sandbox: &Sandbox) -> Result<u32, Error> {
    let ids = [sandbox.id(), sandbox.container_id()].map(str::to_owned);
    match in_containers(&ids)[..] {
        [agent] => Ok(agent),
        ref others => Err(Error::Agent(others.len())),
    }
}

/// The processes that this one started, and those that they started.
pub fn descendants() -> Vec<u32> {
    descendants_of(std::process::id())
}

/// The processes that a process started, and those that they started.
pub fn descendants_of(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> =
        processes().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&of) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}
