//! The one container of this process.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions};
use sandbox_helper::cgroup::Groups;
use sandbox_helper::spec::{Descriptors, Launch};
use sandbox_helper::wire::Reply;

use crate::failed::{Failed, Step as _};
use crate::failpoint::{self, At};
use crate::launch;
use crate::mount_ns::{self, MountNamespace};
use crate::watch::{self, Watch};

/// How long a process that has no root any more may take to end.
const END: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long the kernel may take to kill a container's processes.
const DEATH: Duration = Duration::from_secs(10);

/// A launched container.
pub struct Container {
    pid: Pid,
    pidfd: OwnedFd,
    exit_code: Option<i64>,
    /// `Some` while it runs without control groups.
    watch: Option<Watch>,
    over_memory: bool,
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
    /// Launches a container. On failure, nothing is left of it.
    pub fn launch(
        place: &MountNamespace,
        wanted: &Launch,
        given: Descriptors<OwnedFd>,
    ) -> Result<Self, Failed> {
        let record = given.record.try_clone().step("keep the record")?;
        let records = place.records.try_clone().step("keep the records")?;
        let groups = place.hierarchies.of(&wanted.name);
        let mut remains = Remains { name: wanted.name.clone(), groups, records, _record: record };
        let launched = remains
            .groups
            .make(launch::tenant(wanted), &wanted.limits)
            .step("limit the container")
            .inspect(|()| failpoint::hold(At::Grouped))
            .and_then(|()| launch::launch(wanted, given, &remains.groups, place.rootless.as_ref()));
        match launched {
            Ok((pid, pidfd)) => {
                let (exit_code, watch, over_memory) = (None, None, false);
                let mut container = Self { pid, pidfd, exit_code, watch, over_memory, remains };
                container.watch_memory(wanted.limits.memory)?;
                Ok(container)
            }
            Err(failed) => Err(match remains.remove() {
                Ok(()) => failed,
                Err(second) => {
                    Failed(format!("{failed}; and what it left was not removed: {second}"))
                }
            }),
        }
    }

    /// A pidfd of its first process.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Begins to watch its memory, if no control group limits it.
    fn watch_memory(&mut self, limit: u64) -> Result<(), Failed> {
        if !self.remains.groups.is_none() {
            return Ok(());
        }
        match Watch::of(self.pid, limit) {
            Ok(watch) => self.watch = Some(watch),
            // Of one that has ended there is nothing to see. It loses its root a moment before that is known.
            Err(_) if is_ready(&self.pidfd, &END) => {}
            Err(error) => {
                self.remove()?;
                return Err(error).step("watch the container's memory");
            }
        }
        Ok(())
    }

    /// Waits until there is something to receive, and meanwhile kills a container that uses more
    /// memory than it may, if no control group limits it.
    pub fn watch_until_request(&mut self, control: &OwnedFd) {
        while let Some(watch) = &self.watch {
            if is_ready(control, &watch::INTERVAL) {
                return;
            }
            if watch.is_exceeded() {
                self.over_memory =
                    rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL).is_ok();
                self.watch = None;
            }
        }
    }

    /// Waits for its first process, and says how that ended.
    pub fn wait(&mut self) -> Result<Reply, Failed> {
        let over_memory = self.over_memory;
        self.exit_code().map(|code| Reply::Exited { code, over_memory })
    }

    fn exit_code(&mut self) -> Result<i64, Failed> {
        if let Some(code) = self.exit_code {
            return Ok(code);
        }
        self.watch = None;
        let waited = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(self.pid), WaitOptions::empty())
        });
        let ended = waited.step("wait for the container")?.map(|(_, status)| status);
        let code = ended.and_then(|status| {
            let signal = status.terminating_signal().map(|signal| 128 + i64::from(signal));
            status.exit_status().map(i64::from).or(signal)
        });
        let code = code.ok_or_else(|| Failed("it has neither ended nor been killed".to_owned()))?;
        self.exit_code = Some(code);
        Ok(code)
    }

    /// Kills and removes everything.
    pub fn remove(&mut self) -> Result<(), Failed> {
        if self.exit_code.is_none() {
            // The kernel kills all others of its process namespace with it.
            _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
            self.remains.groups.let_die();
            self.exit_code()?;
        }
        self.remains.remove()
    }
}

/// Whether there is something to read within a time; also where the kernel does not say.
fn is_ready(descriptor: &OwnedFd, within: &Timespec) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(within)) != Ok(0)
}

impl Remains {
    /// The groups first: they are found by the record.
    fn remove(&mut self) -> Result<(), Failed> {
        self.groups.remove(DEATH).step("remove the container")?;
        mount_ns::remove_record(&self.records, &self.name).step("remove the record")
    }
}
