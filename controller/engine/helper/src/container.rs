//! The one container of this process.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use sandbox_helper::cgroup::{Groups, Tenant, View};
use sandbox_helper::wire::Filter;

use crate::executor::Agent;
use crate::mount_ns::{self, MountNamespace};
use crate::{Error, ns_setup};

/// How long the kernel may take to kill a container's processes.
const DEATH: Duration = Duration::from_secs(10);
/// The highest score: the first to be killed when the machine runs out of memory.
const OOM_SCORE_ADJ: &str = "1000";

/// A created container.
pub struct Container {
    container: libcontainer::container::Container,
    pid: Pid,
    pidfd: OwnedFd,
    exit_code: Option<i64>,
    remains: Remains,
}

/// What exists of a container, from before its creation.
struct Remains {
    name: String,
    groups: Groups,
    records: OwnedFd,
    /// The record, locked: a process that removes leftovers waits until nothing more can be
    /// created.
    _record: OwnedFd,
}

impl Container {
    /// Creates a container that waits to be started. On failure, nothing is left of it.
    pub fn create(
        place: &MountNamespace,
        name: String,
        filters: &[Filter],
        masked: &[String],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let Ok([record, stdin, stdout, stderr, config, agent]) =
            <[OwnedFd; 6]>::try_from(descriptors)
        else {
            return Err("a container is made from six descriptors".into());
        };
        let groups = place.hierarchies.of(&name);
        let records = place.records.try_clone()?;
        let mut remains = Remains { name, groups, records, _record: record };
        let made = (|| {
            let limits = write_config(config, place.homes.is_some())?;
            let helper = rustix::process::getpid();
            let helper = rustix::process::pidfd_open(helper, PidfdFlags::empty())?;
            let builder = ContainerBuilder::new(remains.name.clone(), SyscallType::Linux)
                .with_root_path(mount_ns::STATE)?
                .with_executor(Agent::new(agent, helper, filters))
                .with_stdin(stdin)
                .with_stdout(stdout)
                .with_stderr(stderr)
                .as_init(mount_ns::BUNDLE)
                .with_systemd(false)
                .with_detach(true);
            let container = match &place.homes {
                None => builder.build()?,
                Some(homes) => {
                    let built = match remains.groups.visit(place.tenant) {
                        Ok(()) => builder.build().map_err(Error::from),
                        Err(error) => Err(error.into()),
                    };
                    homes.return_to()?;
                    let built = built?;
                    set_limits(&remains.groups, &limits)?;
                    built
                }
            };
            let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
            let pid = pid.ok_or("the container has no process")?;
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            let views: &[View] = match place.tenant {
                Tenant::Scripts => &[],
                Tenant::Programs => remains.groups.views(),
            };
            ns_setup::finish(pid, masked, views)?;
            // libcontainer would set the helper's own.
            fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE_ADJ)?;
            Ok((container, pid, pidfd))
        })();
        match made {
            Ok((container, pid, pidfd)) => {
                Ok(Self { container, pid, pidfd, exit_code: None, remains })
            }
            Err(error) => {
                kill_children();
                let error: Error = error;
                match remains.remove() {
                    Ok(()) => Err(error),
                    Err(second) => Err(format!("{error}; and it was not removed: {second}").into()),
                }
            }
        }
    }

    /// A pidfd of its first process.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Starts the agent.
    pub fn start(&mut self) -> Result<(), Error> {
        Ok(self.container.start()?)
    }

    /// Waits for its first process, and gives its exit code.
    pub fn wait(&mut self) -> Result<i64, Error> {
        if let Some(code) = self.exit_code {
            return Ok(code);
        }
        let waited = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(self.pid), WaitOptions::empty())
        })?;
        let (_, status) = waited.ok_or("there is no such process")?;
        let code = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => i64::from(code),
            (None, Some(signal)) => 128 + i64::from(signal),
            (None, None) => return Err("it has neither ended nor been killed".into()),
        };
        self.exit_code = Some(code);
        Ok(code)
    }

    /// Kills and removes everything.
    pub fn remove(&mut self) -> Result<(), Error> {
        if self.exit_code.is_none() {
            // The kernel kills all others of its process namespace with it.
            _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
            self.remains.groups.lift_cpu_limit();
            self.wait()?;
        }
        Ok(self.remains.remove()?)
    }
}

impl Remains {
    /// The groups first: they are found by the record.
    fn remove(&mut self) -> io::Result<()> {
        self.groups.remove(DEATH)?;
        mount_ns::remove_record(&self.records, &self.name)
    }
}

/// libcontainer reads it from a file of this name; without the resources if the helper sets the
/// limits.
fn write_config(config: OwnedFd, take_resources: bool) -> Result<serde_json::Value, Error> {
    let mut text = Vec::new();
    rustix::fs::seek(&config, rustix::fs::SeekFrom::Start(0))?;
    File::from(config).read_to_end(&mut text)?;
    let mut resources = serde_json::Value::Null;
    if take_resources {
        let mut config: serde_json::Value = serde_json::from_slice(&text)?;
        resources = config["linux"]["resources"].take();
        if let Some(linux) = config["linux"].as_object_mut() {
            linux.remove("resources");
        }
        text = serde_json::to_vec(&config)?;
    }
    fs::write(Path::new(mount_ns::BUNDLE).join("config.json"), text)?;
    Ok(resources)
}

/// Device numbers that any container may use: those of `null`, `zero`, `full`, `tty`, `random` and
/// `urandom`.
const DEVICES: &[&str] =
    &["c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 5:0 rwm", "c 1:8 rwm", "c 1:9 rwm"];

/// On version 1.
fn set_limits(groups: &Groups, resources: &serde_json::Value) -> Result<(), Error> {
    for (pointer, file) in [
        ("/memory/limit", "memory.limit_in_bytes"),
        ("/memory/swap", "memory.memsw.limit_in_bytes"),
        ("/pids/limit", "pids.max"),
        ("/cpu/period", "cpu.cfs_period_us"),
        ("/cpu/quota", "cpu.cfs_quota_us"),
    ] {
        match resources.pointer(pointer) {
            Some(value) => groups.set(file, &value.to_string())?,
            None if pointer == "/memory/swap" => {}
            None => return Err(format!("the configuration has no {pointer}").into()),
        }
    }
    groups.set("memory.max_usage_in_bytes", "0")?;
    groups.set("devices.deny", "a")?;
    for device in DEVICES {
        groups.set("devices.allow", device)?;
    }
    let rules = resources["devices"].as_array().into_iter().flatten();
    for rule in rules.filter(|rule| rule["allow"] == true) {
        // `*` where the rule is for any minor number.
        let minor = rule["minor"].as_u64().map_or("*".to_owned(), |minor| minor.to_string());
        groups.set("devices.allow", &format!("c {}:{minor} rw", rule["major"]))?;
    }
    Ok(())
}

/// Kills what libcontainer started and did not finish.
fn kill_children() {
    let children = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        _ = rustix::process::kill_process(pid, Signal::KILL);
        _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    }
}
