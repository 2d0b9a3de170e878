//! Sandboxes that are started ahead, each for one caller.
//!
//! ```text
//!  claim ──> key ──> one of this key is ready? ──> configured ──> Sandbox
//!                      │ no                  └─ refill in the background
//!                      └──> cold start, at once
//! ```
//!
//! A pooled sandbox has its container, its confined agent and its own private io dir. What its caller
//! brings (limits that the agent counts, rules, hosts, scripts, secrets) comes after the claim, and is
//! therefore no part of the [key](key::SlotKey).

mod key;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant as StdInstant};

use sandbox_api::DEFAULT_LIFETIME;
use sandbox_warm_pool::{PoolConfig, PoolSlots, PoolStats, SlotEnd};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::key::{NamedIoDir, SlotKey};
use crate::error::Error;
use crate::io_dir::IoDir;
use crate::sandbox::Sandbox;
use crate::sandbox::context::Shared;
use crate::sandbox::launch::pooled::{PooledSandbox, make_io_dir};
use crate::sandbox::plan::Plan;
use crate::sandbox::prepared::PreparedSandbox;

/// How many sandboxes are started ahead at the same time.
const FILLERS: usize = 2;
/// How long the fillers leave the processors to a launch that took a sandbox, which needs them for
/// a few milliseconds.
const HEAD_START: Duration = Duration::from_millis(10);
/// How long they leave them to cold launches, which callers wait for.
const COLD_START_DELAY: Duration = Duration::from_millis(500);
/// How many unusable pooled sandboxes a launch tries, before it starts one, and for how long: about
/// as long as a start.
const MAX_TRIES: usize = 3;
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);
/// The title of a pooled sandbox in listings, before the claim.
const TITLE: &str = "warm pool";
/// The part of the machine's memory that sandboxes of learnt keys leave available.
const MEMORY_LEFT: u64 = 8;

/// The pool of a controller. Dropping it ends its sandboxes.
pub(crate) struct PoolHandle(Arc<Pool>);

struct Pool {
    shared: Arc<Shared>,
    config: PoolConfig,
    /// The runtime that connected.
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when a sandbox is ready, or could not be started.
    changed: Notify,
    /// How many launches found none, and are starting a sandbox.
    cold_starts: watch::Sender<usize>,
}

/// What a launch gets.
pub(crate) enum Claim {
    /// A pooled sandbox.
    Warm(Sandbox),
    /// None: it starts one.
    Cold(ColdStart),
    /// It is never pooled.
    Unpooled,
}

/// A cold start that a launch waits for. The pool starts none meanwhile.
pub(crate) struct ColdStart(Arc<Pool>);

impl Drop for ColdStart {
    fn drop(&mut self) {
        self.0.cold_starts.send_modify(|starts| *starts -= 1);
    }
}

struct State {
    slots: PoolSlots<SlotKey, Template, Slot>,
    /// The tasks that start sandboxes, and how many of them will check for more work.
    tasks: JoinSet<()>,
    fillers: usize,
    /// The task that waits for the retry after a failure.
    timer: Option<AbortHandle>,
    is_closed: bool,
    /// What is counted.
    stats: PoolStats,
}

/// The template of a key's slots.
#[derive(Debug)]
struct Template {
    sandbox: PreparedSandbox,
    _io_dir: Option<HeldIoDir>,
}

/// A named io dir, which exists as long as there is a key with it.
#[derive(Debug)]
struct HeldIoDir(IoDir);

impl Drop for HeldIoDir {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A pooled sandbox, and the task that waits for its end.
struct Slot {
    sandbox: PooledSandbox,
    _watch: AbortOnDropHandle<()>,
}

impl PoolHandle {
    /// Must be called in the runtime of the controller.
    pub fn new(shared: Arc<Shared>, config: PoolConfig) -> Self {
        let state = State {
            slots: PoolSlots::new(config.size, config.max_keys.max(1), config.adaptive),
            tasks: JoinSet::new(),
            fillers: 0,
            timer: None,
            is_closed: false,
            stats: PoolStats::default(),
        };
        Self(Arc::new(Pool {
            shared,
            config,
            runtime: Handle::current(),
            state: Mutex::new(state),
            changed: Notify::new(),
            cold_starts: watch::Sender::new(0),
        }))
    }

    /// Starts sandboxes of this kind ahead from now on.
    pub async fn prewarm(&self, mut sandbox: PreparedSandbox) -> Result<(), Error> {
        let pool = &self.0;
        let io_dir = make_io_dir(&pool.shared, &sandbox.spec).await?.map(HeldIoDir);
        let (key, _) = pool.key_of(&mut sandbox).await?;
        let template = Template { _io_dir: io_dir, ..Template::of(sandbox) };
        let given_up = pool.state().slots.name(key, template, Instant::now());
        let reason = "the pool has as many keys as it may have";
        given_up.ok_or(Error::NotPooled { reason })?;
        pool.refill();
        Ok(())
    }

    /// Takes a pooled sandbox for a launch, if there is one. Keeps the result of preparing in
    /// `sandbox`.
    pub async fn claim(&self, sandbox: &mut PreparedSandbox) -> Claim {
        let began = StdInstant::now();
        let pool = &self.0;
        let Ok((key, plan)) = pool.key_of(sandbox).await else {
            // On an error the launch reports it.
            pool.count(|stats| stats.unpooled += 1);
            return Claim::Unpooled;
        };
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        for _ in (0..MAX_TRIES).take_while(|_| Instant::now() < deadline) {
            let Some((group, slot)) = pool.take(&key, sandbox) else { break };
            let age = slot.since.elapsed();
            let claimed = slot.claim(sandbox.spec.clone(), plan.clone(), began, deadline).await;
            pool.state().slots.handed_over(group, claimed.is_ok(), Instant::now());
            match claimed {
                Ok(sandbox) => {
                    pool.count(|stats| {
                        stats.hits += 1;
                        stats.claimed_age += age;
                    });
                    tracing::info!(took = ?began.elapsed(), ?age, "took a pooled sandbox");
                    return Claim::Warm(sandbox);
                }
                Err(error) => {
                    pool.count(|stats| stats.dead += 1);
                    tracing::info!(error = error.full_message(), "a pooled sandbox is unusable");
                }
            }
        }
        pool.count(|stats| stats.misses += 1);
        pool.cold_starts.send_modify(|starts| *starts += 1);
        let cold = ColdStart(pool.clone());
        pool.learn(key, sandbox);
        Claim::Cold(cold)
    }

    /// Waits until all missing ones are ready, or cannot be started.
    pub async fn settled(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            if self.0.state().slots.is_settled() {
                return;
            }
            changed.await;
        }
    }

    pub fn stats(&self) -> PoolStats {
        let state = self.0.state();
        let (keys, target, filling) = state.slots.counts();
        let ages = state.slots.iter().map(|slot| slot.sandbox.since.elapsed());
        PoolStats {
            keys,
            target,
            filling,
            parked: state.slots.iter().count(),
            oldest: ages.max().unwrap_or_default(),
            claims: state.stats.hits.saturating_add(state.stats.misses),
            ..state.stats
        }
    }

    /// Ends the pooled sandboxes, and those that are being started. Their containers are then being
    /// removed.
    pub async fn close(&self) {
        let mut tasks = self.0.end();
        tasks.shutdown().await;
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.0.end().abort_all();
    }
}

impl Template {
    fn of(mut sandbox: PreparedSandbox) -> Self {
        let spec = &mut sandbox.spec;
        // The secrets of a launch are for it alone; the hosts decide whether there is a proxy.
        spec.allow = spec.hosts();
        spec.inject = Vec::new();
        spec.title = Some(TITLE.to_owned());
        spec.lifetime = spec.lifetime.max(DEFAULT_LIFETIME);
        Self { sandbox, _io_dir: None }
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        crate::lock(&self.state)
    }

    fn count(&self, count: impl FnOnce(&mut PoolStats)) {
        count(&mut self.state().stats);
    }

    /// The key of a sandbox, and its plan. Prepares its root, if it is not.
    async fn key_of(&self, sandbox: &mut PreparedSandbox) -> Result<(SlotKey, Plan), Error> {
        let PreparedSandbox { spec, prepared, root_owner, .. } = sandbox;
        spec.limits.check(self.shared.ceiling(&spec.root))?;
        let plan = Plan::new(spec, self.shared.confinement)?;
        if prepared.is_none() {
            *prepared = self.shared.prepare(&spec.root, &mut |_| {}).await?;
        }
        let named = NamedIoDir::of(spec)?;
        let key = SlotKey::new(spec, &plan, prepared.as_ref(), *root_owner, named);
        let key = key.map_err(|reason| Error::NotPooled { reason })?;
        Ok((key, plan))
    }

    /// Takes a pooled sandbox that may live as long as this one is to.
    fn take(
        self: &Arc<Self>,
        key: &SlotKey,
        sandbox: &PreparedSandbox,
    ) -> Option<(u64, PooledSandbox)> {
        let lifetime = sandbox.spec.lifetime;
        let lives_on = |slot: &Slot| slot.sandbox.lifetime >= lifetime;
        let taken = self.state().slots.take(key, Instant::now(), lives_on);
        let (group, slot) = taken?;
        self.refill();
        Some((group, slot.sandbox))
    }

    /// Learns from a launch that found none.
    fn learn(self: &Arc<Self>, key: SlotKey, sandbox: &PreparedSandbox) {
        let lifetime = sandbox.spec.lifetime;
        let given_up = self.state().slots.learn(
            key,
            Instant::now(),
            || Template::of(sandbox.clone()),
            |known| known.sandbox.spec.lifetime = known.sandbox.spec.lifetime.max(lifetime),
        );
        drop(given_up);
        self.refill();
    }

    /// Starts missing ones in the background.
    fn refill(self: &Arc<Self>) {
        let mut state = self.state();
        let state = &mut *state;
        if state.is_closed {
            return;
        }
        while state.tasks.try_join_next().is_some() {}
        let now = Instant::now();
        if let Some(due) = state.slots.next_due(now)
            && state.timer.as_ref().is_none_or(AbortHandle::is_finished)
        {
            let pool = Arc::downgrade(self);
            let wait = async move {
                tokio::time::sleep_until(due).await;
                if let Some(pool) = pool.upgrade() {
                    pool.state().timer = None;
                    pool.refill();
                }
            };
            state.timer = Some(self.runtime.spawn(wait).abort_handle());
        }
        while state.fillers < FILLERS && state.slots.has_work(now, memory_is_available) {
            state.fillers += 1;
            state.tasks.spawn_on(self.clone().fill(), &self.runtime);
        }
    }

    /// Starts sandboxes until none is missing that can be started now.
    async fn fill(self: Arc<Self>) {
        tokio::time::sleep(HEAD_START).await;
        loop {
            self.let_cold_starts_pass().await;
            let Some((group, sandbox)) = self.next_fill() else { break };
            let since = Instant::now();
            let max_age = self.config.max_age;
            match PooledSandbox::launch(self.shared.clone(), sandbox, max_age).await {
                Ok(sandbox) => {
                    self.count(|stats| {
                        stats.filled += 1;
                        stats.fill_time += since.elapsed();
                    });
                    let pool = Arc::downgrade(&self);
                    let slot = |number, sandbox| self.slot(pool, number, sandbox);
                    // An unwanted sandbox is dropped without the lock.
                    let unwanted = self.state().slots.filled(group, sandbox, slot);
                    drop(unwanted);
                }
                Err(error) => {
                    self.count(|stats| stats.failed += 1);
                    tracing::warn!(error = error.full_message(), "cannot start a sandbox ahead");
                    self.state().slots.failed_to_fill(group, Instant::now());
                }
            }
            self.changed.notify_waiters();
        }
        // Failed ones are retried later.
        self.refill();
    }

    /// The pool must not slow down the launches of callers. If those never end, it starts a few
    /// sandboxes nevertheless.
    async fn let_cold_starts_pass(&self) {
        let mut starts = self.cold_starts.subscribe();
        _ = timeout(COLD_START_DELAY, starts.wait_for(|starts| *starts == 0)).await;
    }

    /// What to start next. With nothing to start, this filler ends.
    fn next_fill(&self) -> Option<(u64, PreparedSandbox)> {
        let mut state = self.state();
        let next = state.slots.next_fill(Instant::now(), memory_is_available);
        let next = next.map(|(group, template)| (group, template.sandbox.clone()));
        if next.is_none() {
            state.fillers -= 1;
        }
        next
    }

    fn slot(&self, pool: Weak<Self>, number: u64, sandbox: PooledSandbox) -> Slot {
        let ended = sandbox.ended();
        // At different times: sandboxes that started together would expire together.
        let early = self.config.max_age / 64 * u32::try_from(number % 16).unwrap_or(0);
        let expires = sandbox.since + (self.config.max_age - early);
        let watch = async move {
            let why = tokio::select! {
                _ = ended => SlotEnd::Dead,
                () = tokio::time::sleep_until(expires) => SlotEnd::Expired,
            };
            if let Some(pool) = pool.upgrade() {
                pool.remove(number, why);
            }
        };
        Slot { sandbox, _watch: AbortOnDropHandle::new(self.runtime.spawn(watch)) }
    }

    /// Discards a slot.
    fn remove(self: &Arc<Self>, number: u64, why: SlotEnd) {
        let removed = self.state().slots.remove(number, why, Instant::now());
        if removed.is_some() {
            self.count(|stats| match why {
                SlotEnd::Dead => stats.dead += 1,
                SlotEnd::Expired => stats.expired += 1,
            });
            tracing::debug!(?why, "a pooled sandbox is discarded");
            self.changed.notify_waiters();
            self.refill();
        }
    }

    /// Ends everything, and starts nothing any more.
    fn end(&self) -> JoinSet<()> {
        let (slots, tasks) = {
            let mut state = self.state();
            state.is_closed = true;
            if let Some(timer) = state.timer.take() {
                timer.abort();
            }
            (state.slots.clear(), std::mem::take(&mut state.tasks))
        };
        drop(slots);
        self.changed.notify_waiters();
        tasks
    }
}

/// Whether the machine has enough memory left.
fn memory_is_available() -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return true };
    is_enough(&text)
}

/// Judges `/proc/meminfo`.
fn is_enough(meminfo: &str) -> bool {
    let field = |name: &str| {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().split(' ').next()?.parse::<u64>().ok()
    };
    match (field("MemTotal:"), field("MemAvailable:")) {
        (Some(total), Some(available)) => available >= total / MEMORY_LEFT,
        _ => true,
    }
}
