//! The state of a sandbox, shared with its runs, commands and file operations.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use sandbox_api::{
    Ceiling, Disk, Encoding, EngineInfo, FilesTouched, KernelEvents, Lifespan, Limits, Network,
    Ports, Processes, StartKind, Timing, millis,
};
use sandbox_engine::{Container, ExitEvidence, Groups, GroupsUsage, UserMapping};
use sandbox_grants::policy::Policy;
use sandbox_protocol::message::{Call, Confinement, FileScope, Refused, ScriptError, Shutdown};
use sandbox_protocol::path::GuestPath;
use sandbox_redact::Redactions;
use sandbox_session::{CallError, InFlightPermit, Session, SessionEnd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::removal::EVIDENCE_TIMEOUT;
use crate::audit::{Audit, By, Event};
use crate::clock::{Clock, or_never};
use crate::engine_call::step;
use crate::error::Error;
use crate::io_dir::IoDir;
use crate::io_dir::path_map::PathMap;
use crate::io_dir::write_monitor::{WriteBaseline, WriteMonitor};
use crate::mounts::{LOOK_INTERVAL, MountGuard, MountLooks, MountLost};
use crate::process::ProcessTable;
use crate::sandbox::context::Shared;
use crate::sandbox::idle::{Active, Activity};
use crate::sandbox::removal::{Attempt, RemovalGuard};
use crate::sandbox::stats::CpuSample;
use crate::step::Step;

/// How a sandbox was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchInfo {
    /// Whether it was taken from a pool.
    pub start: StartKind,
    /// How long the launch took its caller.
    pub took: Duration,
}

/// The state of a container before something runs in it.
pub(crate) struct KernelBaseline {
    time: SystemTime,
    /// What the kernel had counted, if that is known.
    counted: Option<GroupsUsage>,
}

/// A sandbox, shared with the run in progress.
pub(crate) struct Inner {
    pub(super) id: String,
    pub(super) launch: LaunchInfo,
    pub(super) container: Arc<dyn Container>,
    pub limits: Limits,
    pub(super) lifespan: Lifespan,
    pub confinement: Confinement,
    /// Whether its agent runs on the kernel of this process.
    pub(super) is_our_kernel: bool,
    pub session: Session,
    /// Held by the run in progress.
    pub(super) run_lock: Arc<Semaphore>,
    /// Why the controller ended the sandbox without a request.
    pub(super) end_cause: Arc<OnceLock<EndCause>>,
    pub activity: Activity,
    /// By which what is asked of the agent has time.
    pub clock: Clock,
    /// `Some` while it is paused, which is a use of it.
    pub(super) paused: tokio::sync::Mutex<Option<Active>>,
    /// How long its processes live.
    pub keeps: Processes,
    pub processes: ProcessTable,
    /// Which ports of its loopback may be connected to.
    pub ports: Ports,
    /// Whether a timer spares the runtime a wake for each operation.
    pub has_timer: Arc<AtomicBool>,
    /// A run has killed its container, which may take a while to end.
    pub(super) is_killed: AtomicBool,
    /// From now on, the sandbox ends because its owner closes it.
    pub(super) is_closing: AtomicBool,
    /// Its container has exited, and is to be removed.
    pub(super) is_stopped: AtomicBool,
    pub(super) runs: AtomicU64,
    /// Processor time of the runs so far, as last reported by the agent, in milliseconds.
    pub(super) cpu_reported: AtomicU64,
    /// What the kernel had counted at the end of the last command, in milliseconds.
    pub(super) cpu_counted: AtomicU64,
    pub(super) cpu_sample: CpuSample,
    pub(super) io_dir: Option<Arc<IoDir>>,
    pub io_mount: Option<GuestPath>,
    /// The default working directory of commands according to the image. `None` if there is an io
    /// dir, or no support for commands.
    pub(super) image_workdir: Option<String>,
    /// The id of the image that its commands run in, if it is one of the engine.
    pub(super) image_id: Option<String>,
    /// The paths of what it is made of, as the caller named them.
    pub(super) named: Vec<Arc<OwnedFd>>,
    /// Whether commands can run in it.
    pub supports_exec: bool,
    pub(super) write_baseline: OnceLock<WriteBaseline>,
    pub(super) home: Option<GuestPath>,
    pub(super) workdir: GuestPath,
    pub(super) path_map: PathMap,
    pub default_encoding: Encoding,
    pub(super) user_mapping: UserMapping,
    pub(super) files: FileScope,
    /// What programs and scripts in it can read about its rules.
    pub policy: Arc<Policy>,
    /// The secrets that it was given.
    pub redactions: Arc<Redactions>,
    pub(super) mount_looks: MountLooks,
    pub(super) removal: RemovalGuard,
    pub(super) shared: Arc<Shared>,
}

impl Inner {
    pub fn engine(&self) -> &EngineInfo {
        self.shared.engine.info()
    }

    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// The ceilings of a run's limits.
    pub fn ceiling(&self) -> &Ceiling {
        if self.supports_exec { &self.shared.program_ceiling } else { &self.shared.ceiling }
    }

    /// A report of the connections of its commands from now on, if they may have any.
    pub fn report_network(&self) -> Option<Arc<watch::Sender<Network>>> {
        self.removal.egress.as_ref().map(|egress| egress.report())
    }

    /// Waits briefly until the connections that ended with a command are in the reports.
    pub async fn settle_connections(&self) {
        _ = tokio::time::timeout(EVIDENCE_TIMEOUT, self.session.settle_tunnels()).await;
    }

    /// Scans the io dir before a run, if more may be written to it than the agent counts: by
    /// commands, or by an overlay, which copies a whole file at the first write.
    pub async fn monitor_writes(&self, limits: Limits) -> Option<WriteMonitor> {
        Some(WriteMonitor::begin(self.write_baseline()?, limits).await)
    }

    /// The same for the life of the sandbox, for what goes on beside other runs.
    pub async fn monitor_life(&self) -> Option<WriteMonitor> {
        Some(WriteMonitor::of_life(self.write_baseline()?, self.limits).await)
    }

    fn write_baseline(&self) -> Option<&WriteBaseline> {
        let writes_more = |io_dir: &&Arc<IoDir>| self.supports_exec || io_dir.lower().is_some();
        let io_dir = self.io_dir.as_ref().filter(writes_more)?;
        Some(self.write_baseline.get_or_init(|| {
            let (reserve, runtime) = (self.shared.disk_reserve, (self.shared.watch_runtime)());
            WriteBaseline::new(io_dir.clone(), reserve, runtime, self.clock.clone())
        }))
    }

    /// What bounds the disk space that is taken in the io dir with these limits; `None` if the agent
    /// alone does.
    pub fn describe_disk(&self, limits: &Limits) -> Option<Disk> {
        let is_said = |io_dir: &&Arc<IoDir>| self.supports_exec || io_dir.bounds().is_some();
        self.io_dir.as_ref().filter(is_said).map(|io_dir| io_dir.describe_disk(limits))
    }

    /// The image's default working directory, if it applies and the image sets one.
    pub fn image_workdir(&self) -> Option<&str> {
        self.image_workdir.as_deref().filter(|workdir| !workdir.is_empty())
    }

    pub fn io_dir(&self) -> Option<&IoDir> {
        self.io_dir.as_deref()
    }

    /// The normalised form of a path that a caller gave.
    pub fn resolve(&self, written: &[u8]) -> Option<GuestPath> {
        GuestPath::resolve(written, &self.workdir, self.home.as_ref()).ok().map(|it| it.path)
    }

    /// The names of an owner and a group: those in the sandbox where they are known, else those of this
    /// machine if the sandbox's ids are ids of it.
    pub async fn owner_names(
        &self,
        uid: u32,
        gid: u32,
        inside: (Option<String>, Option<String>),
    ) -> (String, String) {
        let (owner, group) = match (inside, self.user_mapping) {
            ((Some(owner), Some(group)), _) => return (owner, group),
            ((None, None), UserMapping::Identity) if self.files.is_default() => {
                return self.shared.owners.names(uid, gid).await;
            }
            (inside, _) => inside,
        };
        (owner.unwrap_or_else(|| uid.to_string()), group.unwrap_or_else(|| gid.to_string()))
    }

    /// Why the controller has ended it without a request, if it has.
    pub fn end_cause(&self) -> Option<&EndCause> {
        self.end_cause.get()
    }

    /// The mount because of which it was ended.
    pub fn lost_mount(&self) -> Option<&MountLost> {
        match self.end_cause.get()? {
            EndCause::MountLost(lost) => Some(lost),
            EndCause::Outlived(_) | EndCause::Unanswered(_) | EndCause::OverLimit(_) => None,
        }
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Whether the container's total usage is that of the first run.
    pub fn has_run_once(&self) -> bool {
        self.runs.load(Ordering::Relaxed) == 1
    }

    /// The processor time since the last report: the agent counts from its start.
    pub fn cpu_of_this_run(&self, total: u64) -> u64 {
        total.saturating_sub(self.cpu_reported.swap(total, Ordering::Relaxed))
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The timing of the run `run_id`: the sandbox was started for the first one.
    pub fn timing(&self, run_id: &str, run_ms: u64) -> Timing {
        let LaunchInfo { start, took } = self.launch;
        Timing::new((run_id == self.id).then_some((start, took)), run_ms)
    }

    /// The first run has the sandbox's id, so that its container can be found from its result.
    pub fn next_run_id(&self) -> String {
        match self.runs.fetch_add(1, Ordering::Relaxed) {
            0 => self.id.clone(),
            earlier => format!("{}-{}", self.id, earlier + 1),
        }
    }

    /// Records that a rule denied the script of the run `run_id` access to a path.
    pub fn refused(&self, run_id: &str, refused: &Refused) {
        let Refused { operation, path, kind, .. } = refused;
        self.audit().record(&Event {
            by: By::Script,
            path: Some(&self.redactions.bytes(path.as_bytes())),
            outcome: kind.as_str(),
            ..Event::new(run_id, operation.as_str())
        });
    }

    /// Records in the audit what a run or a command changed: the final state, as in its result.
    pub fn record_changes(&self, run_id: &str, changes: &FilesTouched) {
        let Some(mount) = &self.io_mount else { return };
        for file in &changes.files {
            let path = [mount.as_bytes(), b"/", file.name.as_bytes()].concat();
            self.audit().record(&Event {
                by: By::Script,
                path: Some(&path),
                bytes: Some(file.bytes),
                ..Event::new(run_id, file.op.as_str())
            });
        }
        if changes.truncated {
            let event = Event::new(run_id, "changes");
            self.audit().record(&Event { by: By::Script, outcome: "truncated", ..event });
        }
    }

    /// Waits until another request may be in flight.
    pub async fn acquire_permit<C: Call>(&self) -> Result<InFlightPermit, Error> {
        let permit = self.session.acquire_permit::<C>().await?;
        match self.refusal() {
            Some(error) => Err(error),
            None => Ok(permit),
        }
    }

    /// Waits for the run in progress, and then holds the lock for the next one.
    pub async fn acquire_run_lock(&self) -> Result<OwnedSemaphorePermit, Error> {
        let turn = self
            .run_lock
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Error::Ended { detail: "it served its one run".to_owned() })?;
        if let Some(error) = self.ended() {
            return Err(error);
        }
        if self.lifespan == Lifespan::OneRun {
            self.run_lock.close();
        }
        Ok(turn)
    }

    /// Why the sandbox accepts no request now.
    pub fn refusal(&self) -> Option<Error> {
        self.ended().or_else(|| self.clock.is_paused().then_some(Error::Paused))
    }

    /// Why the sandbox accepts no more requests, if it has ended.
    pub fn ended(&self) -> Option<Error> {
        let mut detail = match (self.session.end(), self.end_cause.get()) {
            (Some(SessionEnd::Breach(detail)), _) => {
                format!("the agent broke the protocol: {detail}")
            }
            // Independent of whether its container could be killed.
            (_, Some(EndCause::MountLost(lost))) => return Some(lost.clone().into()),
            (_, Some(EndCause::OverLimit(limit))) => {
                return Some(Error::OverLimit { limit: limit.clone() });
            }
            (None, _) | (Some(SessionEnd::Eof), None) if self.is_killed.load(Ordering::Relaxed) => {
                "its container was killed".to_owned()
            }
            (None, _) => return None,
            (_, Some(EndCause::Outlived(why) | EndCause::Unanswered(why))) => (*why).to_owned(),
            (Some(SessionEnd::Eof), None) => "its agent is gone".to_owned(),
        };
        self.redactions.text(&mut detail);
        Some(Error::Ended { detail })
    }

    /// Like [`ended`](Self::ended), for a request without a reply: includes the engine's evidence
    /// of the end.
    pub async fn why_ended(&self) -> Error {
        if self.is_closing() {
            return Error::Ended { detail: "it was closed meanwhile".to_owned() };
        }
        let by_itself =
            self.end_cause.get().is_none() && self.session.end() == Some(SessionEnd::Eof);
        if by_itself
            && let Ok(Ok(Some(exit))) = tokio::time::timeout(EVIDENCE_TIMEOUT, self.exited()).await
        {
            return Error::Ended { detail: how_it_ended(&exit) };
        }
        self.ended().unwrap_or_else(|| Error::Ended { detail: "its agent is gone".to_owned() })
    }

    /// Checks the mount table regularly, while it is awaited.
    pub async fn look_at_mounts(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            self.check_mounts(LOOK_INTERVAL).await;
        }
    }

    /// Checks the mount table before the sandbox is used, unless that was done just now. Refuses
    /// the use if a mount must not exist.
    pub async fn check_mounts_before_use(&self) -> Result<(), Error> {
        self.check_mounts(LOOK_INTERVAL).await;
        self.lost_mount().map_or(Ok(()), |lost| Err(lost.clone().into()))
    }

    /// Checks the mount table, at most `age` old. A forbidden mount ends the sandbox, which must
    /// not be used any more even if its container cannot be killed.
    pub async fn check_mounts(&self, age: Duration) {
        if self.lost_mount().is_none()
            && let Some(lost) = self.mount_looks.lost(age).await
        {
            _ = self.end_cause.set(EndCause::MountLost(lost));
            let container = self.container.clone();
            // The caller may stop waiting, and later calls skip the check: hence a task.
            let kill = crate::spawn(async move { step(Step::Kill, container.kill()).await });
            if let Ok(Err(error)) = kill.await {
                tracing::debug!(%error, "cannot kill a container that lost a mount");
            }
        }
    }

    /// Ends the sandbox, because what lives in it has exceeded a limit of all of it together.
    pub async fn overrun(&self, limit: ScriptError) {
        tracing::warn!(why = limit.message, "a sandbox is ended");
        _ = self.end_cause.set(EndCause::OverLimit(limit));
        if let Err(error) = self.kill().await {
            tracing::debug!(%error, "cannot kill a container that exceeds a limit");
        }
    }

    /// Ends the sandbox, because its agent replies too late.
    pub async fn abandon(&self, why: &'static str) {
        _ = self.end_cause.set(EndCause::Unanswered(why));
        tracing::warn!(why, "a sandbox is ended");
        self.session.abandon();
        if let Err(error) = self.kill().await {
            tracing::debug!(%error, "cannot kill a container that is to be removed");
        }
    }

    /// Waits for the answer of an agent that has this time for it; `why` ends one that is late.
    pub async fn answered<T>(
        &self,
        limit: Duration,
        why: &'static str,
        asked: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, Error> {
        match self.clock.timeout(limit, asked).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(CallError::Over)) => Err(self.why_ended().await),
            Some(Err(error)) => Err(error.into()),
            None => {
                self.abandon(why).await;
                Err(self.why_ended().await)
            }
        }
    }

    pub async fn kill(&self) -> Result<(), Error> {
        self.is_killed.store(true, Ordering::Relaxed);
        step(Step::Kill, self.container.kill()).await
    }

    /// Waits for the container to exit, and reads how it exited.
    pub async fn exited(&self) -> Result<Option<ExitEvidence>, Error> {
        exited(&*self.container).await
    }

    /// What the container used until its end, if the engine measures that and reports it within
    /// `soon`.
    pub async fn usage(&self, soon: Duration) -> Option<GroupsUsage> {
        tokio::time::timeout(soon, self.container.usage()).await.ok()?
    }

    /// The current state, to compare with later.
    pub async fn kernel_baseline(&self) -> KernelBaseline {
        let time = SystemTime::now();
        let counted = match self.has_run_once() {
            // Nothing was counted before, and the first run does not wait for the answer.
            true => Some(GroupsUsage::default()),
            false => self.counted().await.map(|(_, counted)| counted),
        };
        KernelBaseline { time, counted }
    }

    /// What the kernel has counted since then, if it can be asked.
    pub async fn kernel_events(&self, since: &KernelBaseline) -> Option<KernelEvents> {
        let before = since.counted?;
        let (groups, now) = self.counted().await?;
        let oom_kills = now.oom_kills.saturating_sub(before.oom_kills);
        let victim =
            (oom_kills > 0).then(|| tokio::task::spawn_blocking(move || groups.oom_victim()));
        let mut oom_victim = match victim {
            Some(victim) => victim.await.ok().flatten(),
            None => None,
        };
        // Here, because the kernel cuts a name, and more than half of a secret at an end is one.
        oom_victim.iter_mut().for_each(|name| self.redactions.text(name));
        Some(KernelEvents {
            oom_kills,
            oom_victim,
            refused_processes: now.refused_processes.saturating_sub(before.refused_processes),
        })
    }

    /// The processor time that the kernel has counted since then, without that of commands which ended
    /// meanwhile. It includes what the agent cannot see: the time of processes whose parent did not wait
    /// for them. Read after every command, because each result shows it and quotas count it.
    pub async fn cpu_since(&self, since: &KernelBaseline) -> Option<u64> {
        if !self.processes.is_quiet() {
            // Theirs is in it, and counted with them.
            return None;
        }
        let before = millis(since.counted?.cpu);
        let now = millis(self.counted().await?.1.cpu);
        let counted = self.cpu_counted.fetch_max(now, Ordering::Relaxed);
        Some(now.saturating_sub(before.max(counted)))
    }

    /// The container's groups, and what is counted there.
    async fn counted(&self) -> Option<(Groups, GroupsUsage)> {
        if !self.is_our_kernel {
            // gVisor counts its own processes; the kernel sees it as one process.
            return None;
        }
        let groups =
            tokio::time::timeout(EVIDENCE_TIMEOUT, self.container.groups()).await.ok()??;
        let counted = groups.usage()?;
        Some((groups, counted))
    }

    /// Whether memory has run out since then, if the kernel or the engine reports it soon.
    pub async fn ran_out_of_memory(&self, since: &KernelBaseline) -> bool {
        if let Some(was_killed) = self.oom_since(since).await {
            return was_killed;
        }
        let asked = self.container.ran_out_of_memory(since.time);
        matches!(tokio::time::timeout(EVIDENCE_TIMEOUT, asked).await, Ok(Some(true)))
    }

    /// Whether the kernel has killed a process since then because memory ran out, if it can be asked.
    pub async fn oom_since(&self, since: &KernelBaseline) -> Option<bool> {
        let (before, (_, now)) = (since.counted?, self.counted().await?);
        Some(now.oom_kills > before.oom_kills)
    }

    /// Whether it is known to have ended because memory ran out.
    pub async fn ended_out_of_memory(&self) -> Option<bool> {
        if self.is_closing() {
            return None;
        }
        let exit = tokio::time::timeout(EVIDENCE_TIMEOUT, self.exited()).await.ok()?.ok()??;
        (exit.over_memory || exit.oom_killed == Some(true)).then_some(true)
    }

    /// Kills the container when its agent breaks the protocol, when its lifetime is over (even
    /// while something runs), when the idle timeout expires, or when a mount appears below one of
    /// its mounts.
    pub(super) fn guard(
        &self,
        lifetime: Duration,
        idle_limit: Option<Duration>,
        mounts: MountGuard,
    ) {
        let ended = self.session.subscribe_end();
        let container = self.container.clone();
        let (end_cause, redactions) = (self.end_cause.clone(), self.redactions.clone());
        let idle = or_never(idle_limit.map(|limit| self.activity.idle(limit)));
        crate::spawn(async move {
            let why = tokio::select! {
                end = ended => match end {
                    SessionEnd::Eof => return,
                    SessionEnd::Breach(mut detail) => {
                        redactions.text(&mut detail);
                        tracing::warn!(detail, "the agent broke the protocol");
                        None
                    }
                },
                lost = mounts.lost() => Some(EndCause::MountLost(lost)),
                () = tokio::time::sleep(lifetime) => {
                    Some(EndCause::Outlived("its lifetime is over"))
                }
                () = idle => {
                    let why = "idle timeout expired";
                    Some(EndCause::Outlived(why))
                }
            };
            if let Some(why) = why {
                _ = end_cause.set(why);
            }
            if let Err(error) = step(Step::Kill, container.kill()).await {
                tracing::debug!(%error, "cannot kill a container that is to be removed");
            }
        });
    }

    /// Ends the sandbox. If it is intact or [stopped](Self::stop), its removal is requested, and not waited for.
    pub(super) async fn release(&self) -> Result<(), Error> {
        let is_staged = self.io_dir().is_some_and(|io_dir| !io_dir.staged_sources().is_empty());
        let is_well = self.session.end().is_none() && !self.is_killed.load(Ordering::Relaxed);
        let is_quiet = is_well && self.activity.is_idle() && !is_staged;
        if is_quiet || self.is_stopped.load(Ordering::Relaxed) {
            self.is_closing.store(true, Ordering::Relaxed);
            if self.removal.hand_over().await {
                return Ok(());
            }
        }
        self.close().await
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        self.leave().await;
        self.remove().await
    }

    /// Removes the container, unless that is done, or waits for a removal in progress.
    async fn remove(&self) -> Result<(), Error> {
        loop {
            if let Some(removed) = self.removal.remove(Attempt::Any) {
                return removed.await.unwrap_or_else(|_| {
                    Err(Error::Ended { detail: "the runtime ended before its removal".to_owned() })
                });
            }
            if self.removal.are_gone().await {
                return Ok(());
            }
        }
    }

    /// Ends everything that runs in the sandbox. Its container is there until it is
    /// [released](Self::release) or [closed](Self::close), or is removed now if its end cannot be seen.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        // Another kernel may still have to write when the engine reports the end.
        if self.leave().await && self.is_our_kernel {
            match step(Step::Exit, self.container.wait()).await {
                Ok(()) => {
                    self.is_stopped.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => tracing::debug!(%error, "the container's end is unknown"),
            }
        }
        self.remove().await
    }

    /// Shuts the agent down; whether it ended its session. One that exits by itself is faster than a kill,
    /// unless it is frozen.
    async fn leave(&self) -> bool {
        self.is_closing.store(true, Ordering::Relaxed);
        let leave = async {
            !self.clock.is_paused() && self.session.call(Shutdown {}).await.is_ok() && {
                self.session.ended().await;
                true
            }
        };
        let limit = Step::Shutdown.time_limit();
        let has_left = tokio::time::timeout(limit, leave).await.unwrap_or(false);
        if !has_left {
            tracing::debug!("the agent did not exit by itself");
        }
        has_left
    }
}

/// Why the controller ends a sandbox without a request.
#[derive(Debug)]
pub(crate) enum EndCause {
    /// A time limit has passed.
    Outlived(&'static str),
    /// Its agent exceeds the time limit of a request.
    Unanswered(&'static str),
    /// A mount appeared below one of its mounts.
    MountLost(MountLost),
    /// What lives in it has exceeded a limit.
    OverLimit(ScriptError),
}

/// Waits for a container to exit, and reads how it exited.
pub(super) async fn exited(container: &dyn Container) -> Result<Option<ExitEvidence>, Error> {
    step(Step::Exit, container.wait()).await?;
    step(Step::Evidence, container.evidence()).await
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(source) => Self::Refused { source },
            CallError::Over => {
                Self::Ended { detail: "its agent is gone, without an answer".to_owned() }
            }
            CallError::TooLarge(error) => Self::Ended { detail: error.to_string() },
        }
    }
}

/// Describes an unexpected exit according to the engine.
pub(super) fn how_it_ended(exit: &ExitEvidence) -> String {
    match exit {
        ExitEvidence { over_memory: true, .. } | ExitEvidence { oom_killed: Some(true), .. } => {
            "it ran out of memory".to_owned()
        }
        ExitEvidence { code: Some(code), .. } => format!("the agent ended with exit code {code}"),
        ExitEvidence { removed: true, .. } => "its container was removed from outside".to_owned(),
        ExitEvidence { code: None, .. } => "the agent ended".to_owned(),
    }
}
