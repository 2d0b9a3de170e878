//! The connections of a sandbox, and their limits.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use sandbox_api::hosts::{Allowlist, Special, Target};
use sandbox_api::{Injection, Network, Secrets};
use sandbox_grants::policy::{EgressLimits, Policy};
use sandbox_intercept::{Interceptor, SetupError};
use sandbox_protocol::WireString;
use sandbox_protocol::limits::MAX_TUNNELS;
use sandbox_protocol::message::{Ca, Variable};
use sandbox_redact::Redactions;
use sandbox_tls::Sessions;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::asked::Asked;
use super::resolve::Resolve;
use crate::audit::Event;
use crate::permission::Permission;

/// How many addresses a sandbox dials at a time, beyond one for each of its connections.
pub(super) const MORE_DIALS: usize = 3 * MAX_TUNNELS;

/// Records the audit line of each connection.
type Record = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// The connections of one sandbox.
pub(crate) struct Egress {
    /// The hosts, and the limits. Until they are set, every connection is refused.
    rules: OnceLock<(Allowlist, EgressLimits)>,
    /// What terminates connections, if some are to be.
    interceptor: OnceLock<Interceptor>,
    pub(super) resolver: Box<Resolve>,
    /// The sandbox's id.
    pub(super) sandbox_id: String,
    pub(super) record: Record,
    /// The secrets of the sandbox: a guest may name a host after one.
    pub redactions: Arc<Redactions>,
    /// The reports of the executions in progress.
    reports: Mutex<Vec<Weak<watch::Sender<Network>>>>,
    /// The open connections.
    pub(super) tasks: TaskTracker,
    pub(super) opened: AtomicU64,
    pub(super) spent: AtomicU64,
    /// The addresses that are dialled at a time: a name has several.
    pub(super) dials: Semaphore,
    /// The TLS sessions that its connections began.
    pub(super) sessions: Sessions,
    /// What programs and scripts in the sandbox can read about it.
    pub policy: Arc<Policy>,
    pub(super) asked: Asked,
}

impl Egress {
    /// Refuses every connection, until it gets its [rules](Self::set_rules).
    pub fn new(
        resolver: Box<Resolve>,
        sandbox_id: impl Into<String>,
        record: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            rules: OnceLock::new(),
            interceptor: OnceLock::new(),
            resolver,
            sandbox_id: sandbox_id.into(),
            record: Box::new(record),
            redactions: Arc::default(),
            reports: Mutex::default(),
            tasks: TaskTracker::new(),
            opened: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            dials: Semaphore::new(MORE_DIALS),
            sessions: Sessions::default(),
            policy: Arc::default(),
            asked: Asked::default(),
        }
    }

    /// Terminates connections to those of these hosts whose requests have rules, or get secrets. Returns what
    /// commands are to trust for that. Only the first call has an effect.
    pub fn intercept(
        &self,
        hosts: &Allowlist,
        injections: &[Injection],
        ca_file: Option<&Path>,
    ) -> Result<Option<Ca>, SetupError> {
        let Some(interceptor) = Interceptor::new(hosts, injections, ca_file)? else {
            return Ok(None);
        };
        for injection in injections {
            let mut secret = Secrets::new();
            // It was checked when the injection was made.
            _ = secret.add("INJECTED", injection.value.clone());
            self.redactions.add_injected(&secret);
        }
        let variable = |(name, value): (&str, String)| Variable {
            name: WireString::new(name),
            value: WireString::new(value),
        };
        let variables =
            injections.iter().filter_map(Injection::placeholder).map(variable).collect();
        let certificate = interceptor.certificate();
        self.policy.set_injected(injections.iter().map(|it| it.rule.target.to_string()));
        _ = self.interceptor.set(interceptor);
        Ok(Some(Ca { certificate, variables }))
    }

    /// What terminates connections to this target, if they are.
    pub(super) fn interceptor(&self, target: &Target) -> Option<&Interceptor> {
        self.interceptor.get().filter(|it| it.terminates(target))
    }

    /// Asks about hosts that are not on the list.
    pub fn asking(self, permission: Option<Arc<dyn Permission>>) -> Self {
        Self { asked: Asked { permission, ..Asked::default() }, ..self }
    }

    /// Sets the hosts that may be reached, and the limits. Only the first call has an effect.
    pub fn set_rules(&self, list: Allowlist, limits: EgressLimits) {
        self.policy.set_hosts(&list, limits);
        _ = self.rules.set((list, limits));
    }

    pub(super) fn limits(&self) -> EgressLimits {
        self.rules.get().map(|(_, limits)| *limits).unwrap_or_default()
    }

    pub(super) fn allows(&self, target: &Target) -> bool {
        self.rules.get().is_some_and(|(list, _)| list.allows(target))
    }

    /// Whether this address may be dialled for an allowed target; if not, why.
    pub(super) fn check(&self, address: IpAddr, port: u16) -> Result<(), Special> {
        match self.rules.get() {
            Some((list, _)) => list.check(address, port),
            None => Allowlist::default().check(address, port),
        }
    }

    /// Waits until every connection is closed and has its audit line, but at most for this time.
    /// Connections end with the session; if its agent is still alive, they may be too.
    pub async fn settle(&self, patience: Duration) {
        self.tasks.close();
        _ = timeout(patience, self.tasks.wait()).await;
    }

    /// A report of the connections from now on, as long as the sender exists.
    pub fn report(&self) -> Arc<watch::Sender<Network>> {
        let report = Arc::new(watch::Sender::default());
        let mut reports = crate::lock(&self.reports);
        reports.retain(|report| report.strong_count() > 0);
        reports.push(Arc::downgrade(&report));
        report
    }

    /// Adds something to the reports of the executions in progress.
    pub(super) fn add_to_reports(&self, add: impl Fn(&mut Network)) {
        let reports = crate::lock(&self.reports);
        for report in reports.iter().filter_map(Weak::upgrade) {
            report.send_modify(|network| {
                add(network);
                self.redactions.network(network);
            });
        }
    }

    /// Counts a connection; returns whether it is still within the limit.
    pub(super) fn count_connection(&self) -> bool {
        self.opened.fetch_add(1, Ordering::Relaxed) < self.limits().connections
    }

    /// Whether no byte may be forwarded any more.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed) >= self.limits().bytes.as_u64()
    }

    /// Counts bytes that are about to be forwarded; returns whether they are still within the
    /// limit.
    pub(super) fn spend(&self, bytes: usize) -> bool {
        let before = self.spent.fetch_add(bytes as u64, Ordering::Relaxed);
        before.saturating_add(bytes as u64) <= self.limits().bytes.as_u64()
    }
}
