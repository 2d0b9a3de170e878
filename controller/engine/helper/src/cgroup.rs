//! A container's control groups: their paths, how to kill their processes, and their statistics.
//!
//! They outlive the controller and the helper: if both were killed, the container is found and
//! removed by its name. On version 1 (and hybrid) a container has a group in each hierarchy
//! that limits it or that its commands look at, and in no other, because each costs the kernel
//! milliseconds; on version 2 one.
//! Always directly beneath the root, or the group that is delegated to a user, so that no parent is left.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::CpuSet;

use crate::spec::Limits;

/// The longest record of the kernel's log, and the most records that are read: more than it keeps.
const MAX_RECORD: usize = 8 << 10;
const MAX_RECORDS: usize = 1 << 17;

/// Poll interval for a group whose processes are dying.
const POLL: Duration = Duration::from_millis(1);

/// Where control groups are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// Version 1: each hierarchy's controllers and mount point.
    v1: Vec<(Vec<String>, PathBuf)>,
    /// Version 2: the mount point.
    v2: Option<PathBuf>,
    /// Mount points that cannot be written to.
    read_only: Vec<PathBuf>,
}

/// The statistics of a container's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How many of its processes were killed by the OOM killer.
    pub oom_kills: u64,
    /// How often it could start no process or thread, for its limit of them.
    pub refused_processes: u64,
    /// Its peak memory, in bytes.
    pub peak_memory: u64,
    /// CPU time, including ended processes.
    pub cpu: Duration,
}

/// The controllers that a sandbox's limits require.
const NEEDED: &[&str] = &["memory", "cpu", "pids"];
/// What else a container has a group of on version 1: what it used is counted, and devices are
/// denied.
const BESIDES: &[&str] = &["cpuacct", "devices"];
/// Commands also get a cgroup of this controller, with everything that this process may use: a JVM
/// that does not see it finds no limits.
const PROCESSORS: &str = "cpuset";
/// What a container of version 1 gets a group of when it is frozen for the first time.
const FREEZER: &str = "freezer";
/// What commands see of their groups.
const SHOWN: &[&str] = &["memory", "cpu", "cpuacct", "pids", PROCESSORS];

/// The limit of version 1 on the memory of TCP connections, which not every kernel has.
const TCP_MEMORY: &str = "memory.kmem.tcp.limit_in_bytes";

/// Devices that any container may use, on version 1: `null`, `zero`, `full`, `tty`, `random` and
/// `urandom`.
const DEVICES: &[&str] =
    &["c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 5:0 rwm", "c 1:8 rwm", "c 1:9 rwm"];
/// The container's own terminals, which commands may use.
const TERMINALS: &[&str] = &["c 5:2 rw", "c 136:* rw"];

/// What runs in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// Scripts, in the agent itself.
    Scripts,
    /// Commands of an image, too.
    Programs,
}

/// A group to show to a container's commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Where it is on this machine.
    pub group: PathBuf,
    /// The path at which commands look for it, and aliases in the same directory.
    pub target: String,
    /// Names in the same directory that are links to it.
    pub links: Vec<String>,
}

/// The needed controllers that are not among these, for a sentence; `None` if all are.
pub(crate) fn missing(has: &[&str]) -> Option<String> {
    let missing: Vec<_> = NEEDED.iter().copied().filter(|needed| !has.contains(needed)).collect();
    (!missing.is_empty()).then(|| missing.join(" and no "))
}

/// Where control groups are mounted, by convention.
const USUAL_PLACE: &str = "/sys/fs/cgroup";

impl Hierarchies {
    /// Those of this process's mount namespace.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where `/proc` cannot be read.
    pub fn here() -> io::Result<Self> {
        // Any user may mount something with a name that is not UTF-8; no control group has one.
        let table = fs::read("/proc/self/mountinfo")?;
        Ok(Self::parse(&String::from_utf8_lossy(&table)))
    }

    /// Reads them from a `mountinfo` file.
    pub fn parse(mountinfo: &str) -> Self {
        let mut found = Self { v1: Vec::new(), v2: None, read_only: Vec::new() };
        for line in mountinfo.lines() {
            // 35 25 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
            let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
            let mut mount = mount.split(' ').skip(4);
            let (Some(point), Some(options)) = (mount.next(), mount.next()) else { continue };
            let mut filesystem = filesystem.split(' ');
            let kind = filesystem.next().unwrap_or_default();
            let super_options = filesystem.nth(1).unwrap_or_default();
            let point = PathBuf::from(point);
            match kind {
                "cgroup" => {
                    let known = super_options.split(',').filter(|&option| {
                        !matches!(option, "rw" | "ro" | "xattr") && !option.contains('=')
                    });
                    let known: Vec<_> = known.map(str::to_owned).collect();
                    // A hierarchy that is mounted twice is one: the first place is its own.
                    if found.v1.iter().any(|(names, _)| !names.is_empty() && *names == known) {
                        continue;
                    }
                    found.v1.push((known, point.clone()));
                }
                "cgroup2" if found.v2.is_none() => found.v2 = Some(point.clone()),
                _ => continue,
            }
            if options.split(',').chain(super_options.split(',')).any(|option| option == "ro") {
                found.read_only.push(point);
            }
        }
        found
    }

    /// One of version 2, at a group in which containers get theirs.
    pub const fn unified_at(group: PathBuf) -> Self {
        Self { v1: Vec::new(), v2: Some(group), read_only: Vec::new() }
    }

    /// None: containers get no groups.
    pub const fn none() -> Self {
        Self { v1: Vec::new(), v2: None, read_only: Vec::new() }
    }

    /// Whether containers get no groups.
    pub const fn is_none(&self) -> bool {
        self.v1.is_empty() && self.v2.is_none()
    }

    /// The mount point of version 2 where that enforces limits, and not version 1.
    pub fn unified(&self) -> Option<&Path> {
        self.v2.as_deref().filter(|_| !self.is_v1())
    }

    /// `1`, `1 and 2 (hybrid)`, `2`, or `none` without any.
    pub const fn version(&self) -> &'static str {
        match (self.is_v1(), self.v2.is_some()) {
            _ if self.is_none() => "none",
            (true, true) => "1 and 2 (hybrid)",
            (true, false) => "1",
            (false, _) => "2",
        }
    }

    /// Why limits cannot be set, for people; `None` if they can.
    pub fn problem(&self) -> Option<String> {
        let listed;
        let (has, points): (Vec<&str>, Vec<&PathBuf>) = if self.is_v1() {
            let is_needed = |name: &String| NEEDED.contains(&name.as_str());
            let limiting = self.v1.iter().filter(|(names, _)| names.iter().any(is_needed));
            let names = self.v1.iter().flat_map(|(names, _)| names);
            (names.map(String::as_str).collect(), limiting.map(|(_, point)| point).collect())
        } else if let Some(root) = &self.v2 {
            listed = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            (listed.split_whitespace().collect(), vec![root])
        } else {
            return Some("no control groups are mounted".to_owned());
        };
        if let Some(missing) = missing(&has) {
            return Some(format!("there is no {missing} controller"));
        }
        let read_only = self.read_only.iter().find(|point| points.contains(point))?;
        Some(format!("{} is mounted read-only", read_only.display()))
    }

    /// Whether swap is counted, so that it can be limited.
    pub fn counts_swap(&self) -> bool {
        let v1 = self.v1.iter().map(|(_, point)| point.join("memory.memsw.limit_in_bytes"));
        if self.is_v1() {
            return v1.into_iter().any(|file| file.exists());
        }
        // The root has no such file; groups beneath it do.
        let groups = self.v2.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten());
        groups.flatten().any(|group| group.path().join("memory.swap.max").exists())
    }

    /// The mount points of those that a container has groups in.
    pub fn used(&self) -> impl Iterator<Item = &Path> {
        let is_used = |name: &String| {
            let name = name.as_str();
            NEEDED.contains(&name) || BESIDES.contains(&name) || name == PROCESSORS
        };
        let v1 = self.v1.iter().filter(move |(names, _)| names.iter().any(is_used));
        let v2 = self.v2.iter().filter(|_| !self.is_v1());
        v1.map(|(_, point)| point).chain(v2).map(PathBuf::as_path)
    }

    /// The mount points of those that a container has groups in, or may get one in.
    pub fn mounted(&self) -> impl Iterator<Item = &Path> {
        let freezes = |(names, _): &&(Vec<String>, PathBuf)| names.iter().any(|it| it == FREEZER);
        // It may be the hierarchy of another controller, too.
        let freezer = self.v1.iter().find(freezes).map(|(_, point)| point.as_path());
        let is_used = freezer.is_some_and(|freezer| self.used().any(|point| point == freezer));
        self.used().chain(freezer.filter(|_| !is_used))
    }

    fn views(&self, name: &str) -> Vec<View> {
        if !self.is_v1() {
            let target = USUAL_PLACE.to_owned();
            let view =
                |point: &PathBuf| View { group: point.join(name), target, links: Vec::new() };
            return self.v2.as_ref().map(view).into_iter().collect();
        }
        let shown = self.v1.iter().filter_map(|(names, point)| {
            let names: Vec<_> =
                names.iter().filter(|name| SHOWN.contains(&name.as_str())).cloned().collect();
            let (first, links) = names.split_first()?;
            let target = format!("{USUAL_PLACE}/{first}");
            Some(View { group: point.join(name), target, links: links.to_vec() })
        });
        shown.collect()
    }

    /// Whether version 1 enforces the limits. If it is mounted at all, version 2 cannot be relied
    /// on to have the controllers.
    pub const fn is_v1(&self) -> bool {
        !self.v1.is_empty()
    }

    /// The groups of the container with this name, whether they exist or not.
    pub fn of(&self, name: &str) -> Groups {
        let all = self.used().map(|point| point.join(name)).collect();
        let controllers = NEEDED.iter().chain(BESIDES).chain([&FREEZER]);
        let v1 = controllers.filter_map(|&controller| {
            let holds =
                |(names, _): &&(Vec<String>, PathBuf)| names.iter().any(|it| it == controller);
            let (_, point) = self.v1.iter().find(holds)?;
            Some((controller, point.join(name)))
        });
        let unified = self.unified().map(|point| point.join(name));
        let processors = self.v1.iter().find(|(names, _)| *names == [PROCESSORS]);
        let processors = processors.map(|(_, point)| point.join(name));
        let (v1, views) = (v1.collect(), self.views(name));
        Groups { name: name.to_owned(), all, processors, v1, unified, views }
    }
}

/// What is used of a container's groups now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Current {
    /// Memory in bytes, files in memory included, without the cache.
    pub memory: u64,
    /// The cache of files, in bytes.
    pub cache: u64,
    /// Processor time since their start.
    pub cpu: Duration,
}

/// A container's groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    name: String,
    /// In every hierarchy that is used.
    all: Vec<PathBuf>,
    /// That of [`PROCESSORS`] alone, which limits nothing.
    processors: Option<PathBuf>,
    /// Those of version 1, each with its controller. That of [`FREEZER`] need not be there.
    v1: Vec<(&'static str, PathBuf)>,
    /// That of version 2. It is the only one.
    unified: Option<PathBuf>,
    views: Vec<View>,
}

impl Groups {
    /// Whether there are none: the container is limited by other means.
    pub const fn is_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Their statistics; `None` if they are gone, or do not account memory.
    pub fn usage(&self) -> Option<Usage> {
        let memory = self.group("memory")?;
        let [events, peak] = match self.unified {
            None => ["memory.oom_control", "memory.max_usage_in_bytes"],
            Some(_) => ["memory.events", "memory.peak"],
        };
        // A kernel without it counts none.
        let refused = self.group("pids").and_then(|pids| field(&pids.join("pids.events"), "max"));
        // Before Linux 5.19 version 2 has no peak: the current value is a lower bound.
        let current = || number(&memory.join("memory.current"));
        Some(Usage {
            oom_kills: field(&memory.join(events), "oom_kill")?,
            refused_processes: refused.unwrap_or(0),
            peak_memory: number(&memory.join(peak)).or_else(current)?,
            cpu: self.cpu()?,
        })
    }

    /// What is used of them now; `None` if they are gone, or do not account memory.
    pub fn current(&self) -> Option<Current> {
        let memory = self.group("memory")?;
        let (used, cached) = match self.unified {
            None => ("memory.usage_in_bytes", ["total_cache", "total_shmem"]),
            Some(_) => ("memory.current", ["file", "shmem"]),
        };
        let stat = memory.join("memory.stat");
        let [cache, shared] = cached.map(|name| field(&stat, name).unwrap_or(0));
        let cache = cache.saturating_sub(shared);
        let cpu = self.cpu()?;
        let memory = number(&memory.join(used))?.saturating_sub(cache);
        Some(Current { memory, cache, cpu })
    }

    /// The processor time of all that has run in them.
    fn cpu(&self) -> Option<Duration> {
        let group = self.group("cpuacct")?;
        match self.unified {
            None => number(&group.join("cpuacct.usage")).map(Duration::from_nanos),
            Some(_) => field(&group.join("cpu.stat"), "usage_usec").map(Duration::from_micros),
        }
    }

    /// The name of the process that the kernel has killed last in them because memory ran out, if this
    /// process may read the kernel's log, and that still has it.
    pub fn oom_victim(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
        let (mut record, mut victim) = (vec![0; MAX_RECORD], None);
        // Each read is one record. Some may be overwritten meanwhile.
        for _ in 0..MAX_RECORDS {
            match rustix::io::read(&log, &mut record) {
                Ok(length) => {
                    let found = victim_of(&String::from_utf8_lossy(&record[..length]), &self.name);
                    victim = found.or(victim);
                }
                Err(Errno::PIPE | Errno::INTR) => {}
                Err(_) => break,
            }
        }
        victim
    }

    /// Makes them, with the limits of the container, before anything is in them.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where the kernel refuses.
    pub fn make(&self, tenant: Tenant, limits: &Limits) -> io::Result<()> {
        if self.is_none() {
            return Ok(());
        }
        if let Some(group) = &self.unified {
            delegate(group.parent().unwrap_or(group))?;
        }
        for group in self.all.iter().filter(|group| Some(*group) != self.processors.as_ref()) {
            fs::create_dir(group).map_err(|error| about("create", group, &error))?;
        }
        if let (Some(group), Tenant::Programs) = (&self.processors, tenant)
            && make_processors(group).is_err()
        {
            // It limits nothing. Another group may have these processors for itself.
            _ = fs::remove_dir(group);
        }
        match self.unified {
            None => self.limit_v1(tenant, limits),
            Some(_) => self.limit_v2(limits),
        }
    }

    fn limit_v1(&self, tenant: Tenant, limits: &Limits) -> io::Result<()> {
        let Limits { memory, counts_swap, cpu_quota, cpu_period, pids } = *limits;
        self.set("memory.limit_in_bytes", &memory.to_string())?;
        if counts_swap {
            // Memory and swap together, so no swap.
            self.set("memory.memsw.limit_in_bytes", &memory.to_string())?;
        }
        // Queues of TCP connections are counted separately, and only from the first limit on.
        match self.set(TCP_MEMORY, &memory.to_string()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            set => set?,
        }
        self.set("pids.max", &pids.to_string())?;
        self.set("cpu.cfs_period_us", &cpu_period.to_string())?;
        self.set("cpu.cfs_quota_us", &cpu_quota.to_string())?;
        self.set("devices.deny", "a")?;
        let terminals: &[&str] = match tenant {
            Tenant::Scripts => &[],
            Tenant::Programs => TERMINALS,
        };
        self.set_each("devices.allow", DEVICES.iter().chain(terminals))
    }

    fn limit_v2(&self, limits: &Limits) -> io::Result<()> {
        let Limits { memory, counts_swap, cpu_quota, cpu_period, pids } = *limits;
        self.set("memory.max", &memory.to_string())?;
        if counts_swap {
            self.set("memory.swap.max", "0")?;
        }
        self.set("pids.max", &pids.to_string())?;
        self.set("cpu.max", &format!("{cpu_quota} {cpu_period}"))
    }

    /// The group that a process can be created in: that of version 2.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where it is not there.
    pub fn birthplace(&self) -> io::Result<Option<OwnedFd>> {
        let Some(group) = &self.unified else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Some(rustix::fs::open(group, flags, Mode::empty())?))
    }

    /// Moves this process, which has one thread, into those of version 1, but for the one that limits
    /// processor time.
    ///
    /// A process that moves itself, by `tasks`, moves at once. One that is moved by its number, or by
    /// `cgroup.procs`, waits for all processors of the machine: 15 to 30 ms unless another process did so
    /// just before.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where the kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        if self.unified.is_some() {
            return Ok(());
        }
        let time = self.of_v1("cpu");
        for group in self.all.iter().filter(|group| Some(*group) != time) {
            match enter(group) {
                // It limits nothing, and need not be there.
                Err(_) if Some(group) == self.processors.as_ref() => {}
                entered => entered?,
            }
        }
        Ok(())
    }

    /// Moves this process, which has one thread, into the one that limits processor time. What it does
    /// before is not on the container's account, and a busy machine schedules a process in a new group late.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where the kernel refuses.
    pub fn enter_time(&self) -> io::Result<()> {
        self.of_v1("cpu").map_or(Ok(()), |group| enter(group))
    }

    /// What the container's commands may see of them, and where. On version 1 each is at the names of its
    /// controllers, wherever this machine has it.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Writes a setting.
    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        self.set_each(file, [&value])
    }

    /// Writes values of one setting, one after another.
    fn set_each<'a>(
        &self,
        file: &str,
        values: impl IntoIterator<Item = &'a &'a str>,
    ) -> io::Result<()> {
        let write = || {
            // Each has the name of its controller before the first dot.
            let controller = file.split('.').next().unwrap_or_default();
            let group = self.group(controller).ok_or(io::ErrorKind::NotFound)?;
            // Nothing to create or cut: each write is a value.
            let mut setting = File::options().write(true).open(group.join(file))?;
            values.into_iter().try_for_each(|value| setting.write_all(value.as_bytes()))
        };
        write()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write {file}: {error}")))
    }

    /// The group that has the files of a controller.
    fn group(&self, controller: &str) -> Option<&PathBuf> {
        self.unified.as_ref().or_else(|| self.of_v1(controller))
    }

    /// The group of version 1 that has the files of a controller.
    fn of_v1(&self, controller: &str) -> Option<&PathBuf> {
        self.v1.iter().find(|(name, _)| *name == controller).map(|(_, group)| group)
    }

    /// Lifts the CPU limit. Call it before a kill: the kernel delays the death of a process that
    /// has used more than its share, and long system calls use seconds more than the share.
    pub fn lift_cpu_limit(&self) {
        let (file, none) = match self.unified {
            None => ("cpu.cfs_quota_us", "-1"),
            Some(_) => ("cpu.max", "max"),
        };
        _ = self.set(file, none);
    }

    /// Freezes all processes in the groups, however they fork. On an error they go on.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if there is nothing to freeze them by, or the kernel does not do it `within` that
    /// time.
    pub fn freeze(&self, within: Duration) -> io::Result<()> {
        let deadline = Instant::now() + within;
        let frozen = match (&self.unified, self.of_v1("memory"), self.of_v1(FREEZER)) {
            (Some(group), ..) => write(group, "cgroup.freeze", "1").and_then(|()| {
                let events = group.join("cgroup.events");
                wait_until(deadline, || field(&events, "frozen") == Some(1))
            }),
            (None, Some(members), Some(freezer)) => freeze_v1(members, freezer, deadline),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        frozen.inspect_err(|_| _ = self.thaw())
    }

    /// Lets the processes go on.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where the kernel refuses.
    pub fn thaw(&self) -> io::Result<()> {
        match (&self.unified, self.of_v1(FREEZER)) {
            (Some(group), _) => write(group, "cgroup.freeze", "0"),
            (None, Some(freezer)) if freezer.exists() => write(freezer, "freezer.state", "THAWED"),
            _ => Ok(()),
        }
    }

    /// Lets processes that were killed die: throttled ones, and on version 1 also frozen ones, which
    /// are all killed before they are thawed.
    pub fn let_die(&self) {
        self.lift_cpu_limit();
        if self.of_v1(FREEZER).is_some_and(|freezer| freezer.exists()) {
            self.kill_processes();
            _ = self.thaw();
        }
    }

    /// Kills all processes in the groups, throttled, frozen or not.
    pub fn kill(&self) {
        self.lift_cpu_limit();
        self.kill_processes();
        _ = self.thaw();
    }

    fn kill_processes(&self) {
        for group in &self.all {
            // cgroup v2, Linux 5.14 and later: atomic, forking processes included.
            if fs::write(group.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            for pid in processes(group) {
                self.kill_process(pid);
            }
        }
    }

    /// Kills a process, if it is in one of the groups still: its number may be another's by now.
    fn kill_process(&self, pid: Pid) {
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let is_ours = |line: &str| line.rsplit_once('/').is_some_and(|(_, last)| last == self.name);
        if cgroups.lines().any(is_ours) {
            _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Kills everything in them until they can be removed, and removes them.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where they are not gone `within` that time.
    pub fn remove(&self, within: Duration) -> io::Result<()> {
        let deadline = Instant::now() + within;
        let mut is_killed = false;
        loop {
            let mut left = None;
            for group in self.all.iter().chain(self.of_v1(FREEZER)) {
                match remove_tree(group) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => left = Some((group, error)),
                }
            }
            let Some((group, error)) = left else { return Ok(()) };
            if error != Errno::BUSY || Instant::now() >= deadline {
                let error = io::Error::from(error);
                return Err(io::Error::new(
                    error.kind(),
                    format!("cannot remove {}: {error}", group.display()),
                ));
            }
            if is_killed {
                self.kill_processes();
            } else {
                self.kill();
                is_killed = true;
            }
            thread::sleep(POLL);
        }
    }
}

fn enter(group: &Path) -> io::Result<()> {
    let tasks = File::options().write(true).open(group.join("tasks"));
    tasks.and_then(|mut tasks| tasks.write_all(b"0")).map_err(|error| about("enter", group, &error))
}

/// Freezes the processes of a group by another one, in which each is frozen as soon as it is there. A
/// child is in the group of its parent, so those that fork meanwhile are fewer each time.
fn freeze_v1(members: &Path, freezer: &Path, deadline: Instant) -> io::Result<()> {
    match fs::create_dir(freezer) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(about("create", freezer, &error));
        }
        _ => write(freezer, "freezer.state", "FROZEN")?,
    }
    loop {
        let (all, there) = (processes(members), processes(freezer));
        let left = all.iter().filter(|pid| !there.contains(pid));
        // One that cannot be moved has ended.
        let moved = left.filter(|pid| write(freezer, "cgroup.procs", &pid.to_string()).is_ok());
        if moved.count() == 0 {
            break;
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    wait_until(deadline, || {
        let state = fs::read_to_string(freezer.join("freezer.state")).unwrap_or_default();
        state.trim() == "FROZEN"
    })
}

fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    fs::write(group.join(file), value)
        .map_err(|error| about(&format!("write {file} of"), group, &error))
}

/// Waits until something is so, and looks once at least.
fn wait_until(deadline: Instant, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
    while !is_so() {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// An error that names the group.
fn about(act: &str, group: &Path, error: &io::Error) -> io::Error {
    let group = group.display();
    io::Error::new(error.kind(), format!("cannot {act} the control group {group}: {error}"))
}

/// Makes the controllers of version 2 available in a group's children: those that the limits require,
/// and the one that programs look at.
pub(crate) fn delegate(parent: &Path) -> io::Result<()> {
    let file = parent.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file).map_err(|error| about("look at", parent, &error))?;
    for controller in NEEDED.iter().chain([&PROCESSORS]) {
        if enabled.split_whitespace().any(|it| it == *controller) {
            continue;
        }
        match fs::write(&file, format!("+{controller}")) {
            Err(error) if *controller != PROCESSORS => {
                return Err(about(&format!("enable {controller} in"), parent, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a group of the processors and the memory nodes that this process may use. Such a
/// group has none of its own to begin with.
fn make_processors(group: &Path) -> io::Result<()> {
    fs::create_dir(group)?;
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    let processors: Vec<_> = processors.map(|processor| processor.to_string()).collect();
    fs::write(group.join("cpuset.cpus"), processors.join(","))?;
    let status = fs::read_to_string("/proc/self/status")?;
    let nodes = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    fs::write(group.join("cpuset.mems"), nodes.unwrap_or_default().trim())
}

/// Removes a group, and its subgroups, which a guest may have created.
fn remove_tree(group: &Path) -> Result<(), Errno> {
    match rustix::fs::rmdir(group) {
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        result => return result,
    }
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    rustix::fs::rmdir(group)
}

/// The processes of a group; none where it is gone.
fn processes(group: &Path) -> Vec<Pid> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// The name of a process in the kernel's record that it was killed, if it was in the group of this name.
/// A process chooses its name.
fn victim_of(record: &str, group: &str) -> Option<String> {
    let (_, rest) = record.split_once(",task_memcg=/")?;
    let rest = rest.strip_prefix(group)?;
    let (_, named) = rest.split_once(",task=").filter(|_| rest.starts_with([',', '/']))?;
    let (name, _) = named.rsplit_once(",pid=")?;
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._+-:".contains(it);
    Some(name.chars().map(|it| if is_plain(it) { it } else { '?' }).collect())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after a name, in a file of such lines.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
24 1 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
25 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:4 - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
27 24 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
28 24 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";
    const UNIFIED: &str = "29 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_container_has_a_group_in_every_hierarchy_of_version_1_that_limits_it() {
        let groups = Hierarchies::parse(V1).of("sandboxctl-1");
        let all: Vec<_> = groups.all.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(
            all,
            [
                "/sys/fs/cgroup/cpu,cpuacct/sandboxctl-1",
                "/sys/fs/cgroup/memory/sandboxctl-1",
                "/sys/fs/cgroup/pids/sandboxctl-1",
            ]
        );
        assert_eq!(
            ["memory", "cpuacct", "pids", "devices"].map(|it| groups.group(it)?.to_str()),
            [
                Some("/sys/fs/cgroup/memory/sandboxctl-1"),
                Some("/sys/fs/cgroup/cpu,cpuacct/sandboxctl-1"),
                Some("/sys/fs/cgroup/pids/sandboxctl-1"),
                None,
            ]
        );
    }

    #[test]
    fn control_groups_that_are_mounted_twice_are_used_at_their_first_place() {
        let again = format!("{V1}{UNIFIED}").replace("/sys/fs/cgroup", "/mnt/sys/fs/cgroup");
        let (once, twice) = (format!("{V1}{UNIFIED}"), format!("{V1}{UNIFIED}{again}"));
        let groups = |table: &str| Hierarchies::parse(table).of("x");
        assert_eq!(groups(&twice).all, groups(&once).all);
        assert_eq!(groups(&twice).v1, groups(&once).v1);
    }

    #[test]
    fn commands_see_their_own_groups_at_the_usual_places() {
        let seen = |table: &str| {
            let groups = Hierarchies::parse(table).of("x");
            let views = groups.views().iter().map(|view| {
                let View { group, target, links } = view;
                format!("{} at {target} {}", group.display(), links.join(" ")).trim().to_owned()
            });
            views.collect::<Vec<_>>()
        };
        let processors = "30 24 0:28 / /cg/set rw - cgroup cgroup rw,cpuset\n";
        assert_eq!(
            seen(&format!("{V1}{processors}{UNIFIED}")),
            [
                "/sys/fs/cgroup/cpu,cpuacct/x at /sys/fs/cgroup/cpu cpuacct",
                "/sys/fs/cgroup/memory/x at /sys/fs/cgroup/memory",
                "/sys/fs/cgroup/pids/x at /sys/fs/cgroup/pids",
                "/cg/set/x at /sys/fs/cgroup/cpuset",
            ]
        );
        let unified = UNIFIED.replace("/sys/fs/cgroup/unified", "/cg");
        assert_eq!(seen(&unified), ["/cg/x at /sys/fs/cgroup"]);
    }

    #[test]
    fn a_hybrid_machine_keeps_limits_by_version_1_alone() {
        let hierarchies = Hierarchies::parse(&format!("{V1}{UNIFIED}"));
        assert_eq!(hierarchies.version(), "1 and 2 (hybrid)");
        let groups = hierarchies.of("x");
        assert_eq!(groups.unified, None);
        assert_eq!(groups.all.last().unwrap(), Path::new("/sys/fs/cgroup/pids/x"));
    }

    #[test]
    fn a_container_has_one_group_of_version_2() {
        let line = "29 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let hierarchies = Hierarchies::parse(line);
        assert_eq!(hierarchies.version(), "2");
        let groups = hierarchies.of("x");
        assert_eq!(groups.all, [Path::new("/sys/fs/cgroup/x")]);
        assert_eq!(groups.unified, Some("/sys/fs/cgroup/x".into()));
    }

    #[test]
    fn missing_cgroup_controllers_are_named() {
        let problem = |mountinfo: &str| Hierarchies::parse(mountinfo).problem();
        assert_eq!(problem(V1), None);
        assert_eq!(problem("").unwrap(), "no control groups are mounted");
        let without: String =
            V1.lines().filter(|line| !line.contains("pids")).collect::<Vec<_>>().join("\n");
        assert_eq!(problem(&without).unwrap(), "there is no pids controller");
        let read_only = V1.replace("/memory rw", "/memory ro");
        assert_eq!(problem(&read_only).unwrap(), "/sys/fs/cgroup/memory is mounted read-only");
        // Version 2 says what it has in a file of its root.
        let dir = tempfile::tempdir().unwrap();
        let line = |options: &str| {
            format!("29 24 0:27 / {} {options} - cgroup2 cgroup2 rw\n", dir.path().display())
        };
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        assert_eq!(problem(&line("rw")), None);
        assert!(problem(&line("ro")).unwrap().ends_with("is mounted read-only"));
        fs::write(dir.path().join("cgroup.controllers"), "cpuset io\n").unwrap();
        let expected = "there is no memory and no cpu and no pids controller";
        assert_eq!(problem(&line("rw")).unwrap(), expected);
    }

    #[test]
    fn cpu_limit_is_lifted_in_the_files_of_either_version() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let [cpu, memory, unified] = ["cpu", "memory", "unified"].map(|name| {
            fs::create_dir_all(root.join(name).join("x")).unwrap();
            root.join(name)
        });
        let (cpu, memory) = (cpu.display(), memory.display());
        let v1 = format!(
            "1 2 0:1 / {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n\
             3 4 0:2 / {memory} rw - cgroup cgroup rw,memory\n",
        );
        let v2 = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw\n", unified.display());
        for (table, file, none) in
            [(v1, "cpu/x/cpu.cfs_quota_us", "-1"), (v2, "unified/x/cpu.max", "max")]
        {
            let file = root.join(file);
            fs::write(&file, "").unwrap();
            let hierarchies = Hierarchies::parse(&table);
            hierarchies.of("x").kill();
            assert_eq!(fs::read_to_string(&file).unwrap(), none);
            // Of a container that is gone, there is nothing to lift.
            hierarchies.of("y").lift_cpu_limit();
        }
        assert!(!root.join("cpu/x/cpu.max").exists() && !root.join("cpu/y").exists());
        assert!(!root.join("memory/x/cpu.cfs_quota_us").exists());
    }

    #[test]
    fn frozen_processes_are_thawed_once_they_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let [freezer, memory, unified] = ["freezer", "memory", "unified"].map(|name| {
            fs::create_dir_all(root.join(name).join("x")).unwrap();
            root.join(name)
        });
        let table = format!(
            "1 2 0:1 / {} rw - cgroup cgroup rw,freezer\n3 4 0:2 / {} rw - cgroup cgroup rw,memory\n",
            freezer.display(),
            memory.display()
        );
        let v1 = Hierarchies::parse(&table);
        assert_eq!(v1.mounted().collect::<Vec<_>>(), [&*memory, &*freezer]);
        // A group without processes is frozen as soon as the kernel says so: here it is what was written.
        let groups = v1.of("x");
        groups.freeze(Duration::ZERO).unwrap();
        let state = || fs::read_to_string(freezer.join("x/freezer.state")).unwrap();
        assert_eq!(state(), "FROZEN");
        groups.let_die();
        assert_eq!(state(), "THAWED");
        groups.freeze(Duration::ZERO).unwrap();
        groups.kill();
        assert_eq!(state(), "THAWED");
        // One that was never frozen has no such group, and gets none by being killed.
        v1.of("y").kill();
        v1.of("y").thaw().unwrap();
        assert!(!freezer.join("y").exists());

        let table = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw\n", unified.display());
        let v2 = Hierarchies::parse(&table).of("x");
        let frozen = || fs::read_to_string(unified.join("x/cgroup.freeze")).unwrap();
        fs::write(unified.join("x/cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        v2.freeze(Duration::ZERO).unwrap();
        assert_eq!(frozen(), "1");
        // The kernel does not do it: they go on.
        fs::write(unified.join("x/cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        assert_eq!(v2.freeze(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(frozen(), "0");
        assert!(Hierarchies::none().of("x").freeze(Duration::ZERO).is_err());
    }

    #[test]
    fn memory_of_tcp_is_limited_where_version_1_can() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("x");
        fs::create_dir(&group).unwrap();
        for file in [
            "memory.limit_in_bytes", "pids.max", "cpu.cfs_period_us", "cpu.cfs_quota_us",
            "devices.deny", "devices.allow",
        ] {
            fs::write(group.join(file), "").unwrap();
        }
        let point = dir.path().display();
        let controllers = "rw,cpu,cpuacct,devices,memory,pids";
        let table = format!("1 2 0:1 / {point} rw - cgroup cgroup {controllers}\n");
        let groups = Hierarchies::parse(&table).of("x");
        let limits = Limits {
            memory: 4096,
            counts_swap: false,
            cpu_quota: 1_000,
            cpu_period: 100_000,
            pids: 2,
        };
        let file = group.join(TCP_MEMORY);
        groups.limit_v1(Tenant::Scripts, &limits).unwrap();
        assert!(!file.exists());
        fs::write(&file, "").unwrap();
        groups.limit_v1(Tenant::Scripts, &limits).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "4096");
    }

    #[test]
    fn usage_is_read_from_the_files_of_either_version() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let point = |name: &str| {
            fs::create_dir_all(root.join(name).join("x")).unwrap();
            root.join(name).display().to_string()
        };
        let v1 = format!(
            "1 2 0:1 / {} rw - cgroup cgroup rw,memory\n3 4 0:2 / {} rw - cgroup cgroup rw,cpuacct\n\
             5 6 0:3 / {} rw - cgroup cgroup rw,pids\n",
            point("memory"),
            point("cpuacct"),
            point("pids")
        );
        fs::write(
            root.join("memory/x/memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        )
        .unwrap();
        fs::write(root.join("memory/x/memory.max_usage_in_bytes"), "4096\n").unwrap();
        fs::write(root.join("cpuacct/x/cpuacct.usage"), "1500\n").unwrap();
        let expected = Usage {
            oom_kills: 2,
            refused_processes: 0,
            peak_memory: 4096,
            cpu: Duration::from_nanos(1500),
        };
        // Not every kernel counts the processes.
        assert_eq!(Hierarchies::parse(&v1).of("x").usage(), Some(expected));
        fs::write(root.join("pids/x/pids.events"), "max 3\n").unwrap();
        let expected = Usage { refused_processes: 3, ..expected };
        assert_eq!(Hierarchies::parse(&v1).of("x").usage(), Some(expected));
        assert_eq!(Hierarchies::parse(&v1).of("y").usage(), None);

        let v2 = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw\n", point("unified"));
        let file = |name: &str, text: &str| {
            fs::write(root.join("unified/x").join(name), text).unwrap();
        };
        file("memory.events", "low 0\noom 3\noom_kill 1\noom_group_kill 0\n");
        file("memory.peak", "8192\n");
        file("cpu.stat", "usage_usec 7\nuser_usec 3\n");
        file("pids.events", "max 5\n");
        let expected = Usage {
            oom_kills: 1,
            refused_processes: 5,
            peak_memory: 8192,
            cpu: Duration::from_micros(7),
        };
        assert_eq!(Hierarchies::parse(&v2).of("x").usage(), Some(expected));
    }

    #[test]
    fn files_in_memory_are_no_cache() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("x")).unwrap();
        let file = |name: &str, text: &str| fs::write(root.join("x").join(name), text).unwrap();
        file("memory.current", "1000\n");
        file("memory.stat", "anon 1\nfile 700\nshmem 300\n");
        file("cpu.stat", "usage_usec 7\n");
        let v2 = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw\n", root.display());
        let expected = Current { memory: 600, cache: 400, cpu: Duration::from_micros(7) };
        assert_eq!(Hierarchies::parse(&v2).of("x").current(), Some(expected));
        assert_eq!(Hierarchies::parse(&v2).of("y").current(), None);
        for (name, text) in [
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.stat", "cache 1\ntotal_cache 700\ntotal_shmem 300\n"),
            ("cpuacct.usage", "7000\n"),
        ] {
            file(name, text);
        }
        let v1 = format!("1 2 0:1 / {} rw - cgroup cgroup rw,memory,cpuacct\n", root.display());
        assert_eq!(Hierarchies::parse(&v1).of("x").current(), Some(expected));
    }

    #[test]
    fn victim_of_the_oom_killer_is_named_as_the_kernel_names_it() {
        let record = |group: &str, task: &str| {
            format!(
                "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,\
                 mems_allowed=0,oom_memcg=/{group},task_memcg=/{group},task={task},pid=531,uid=0\n"
            )
        };
        let victim = |group: &str, task: &str| victim_of(&record(group, task), "sandboxctl-1");
        assert_eq!(victim("sandboxctl-1", "python3.13").as_deref(), Some("python3.13"));
        assert_eq!(victim("sandboxctl-1/inner", "x").as_deref(), Some("x"));
        assert_eq!(victim("sandboxctl-1", "a,pid=7\x1b[m").as_deref(), Some("a?pid?7??m"));
        for group in ["sandboxctl-11", "sandboxctl-2", "x/sandboxctl-1"] {
            assert_eq!(victim(group, "x"), None, "{group}");
        }
        assert_eq!(victim_of("6,1,2,-;something else", "sandboxctl-1"), None);
    }
}
