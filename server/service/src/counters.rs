//! Counters of a service, for metrics.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::{KeyValue, metrics};
use sandbox_api::Status;
use sandbox_api::service::Subject;
use sandbox_controller::PoolStats;

use crate::lock;

/// What a service has done since it started, and what it does now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counters {
    /// Requests that were accepted.
    pub accepted: u64,
    /// Requests that were refused because the queue was full.
    pub refused_full: u64,
    /// Requests that were refused because of a rate or a quota.
    pub refused_quota: u64,
    /// Executions that ended, by status.
    pub ended: Vec<(Status, u64)>,
    /// Starts of sandboxes that were tried again because the engine did not answer.
    pub retried_starts: u64,
    /// Sandboxes that could not be removed.
    pub failed_removals: u64,
    /// Executions of which the end was not stored, because another node had ended them.
    pub fenced: u64,
    /// Executions that wait now.
    pub queued: u64,
    /// Executions that run now.
    pub running: u64,
    /// Kept sandboxes that exist now.
    pub sandboxes: u64,
    /// Those of them that are paused now.
    pub paused: u64,
    /// The bytes of memory that these had just before they were paused.
    pub paused_memory: u64,
    /// How often one was paused.
    pub pauses: u64,
    /// Processes that have been started in them and have not ended.
    pub processes: u64,
    /// Processes that were started in them.
    pub processes_started: u64,
    /// How long requests waited for their turn.
    pub waits: Vec<Histogram>,
    /// How long starts of sandboxes took.
    pub starts: Vec<Histogram>,
    /// How long executions ran, by status.
    pub runs: Vec<Histogram>,
    /// What the pool has done and has, if there is one.
    pub pool: Option<PoolStats>,
}

/// How often a time was observed, by its length.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The status of the executions, if they are counted by it.
    pub status: Option<&'static str>,
    /// Their subject, if they are counted by it; empty for those beyond the first thousand.
    pub subject: Option<String>,
    /// All times together, in seconds.
    pub sum: f64,
    /// Upper bounds in seconds, the last of which is infinite, and how many times are below each of them and
    /// not below the one before.
    pub buckets: [(f64, u64); BOUNDS.len()],
}

/// From what a start in a pool takes to the longest run.
const BOUNDS: [f64; 16] = [
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    f64::INFINITY,
];
/// Subjects that have histograms of their own.
const MAX_SUBJECTS: usize = 1000;

/// The counters as they count.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub accepted: AtomicU64,
    pub refused_full: AtomicU64,
    pub refused_quota: AtomicU64,
    pub retried_starts: AtomicU64,
    pub failed_removals: AtomicU64,
    pub fenced: AtomicU64,
    pub pauses: AtomicU64,
    pub processes_started: AtomicU64,
    ended: [AtomicU64; Status::ALL.len()],
    by_subject: bool,
    waits: Times,
    starts: Times,
    runs: Times,
    sent: SentTimes,
}

/// The same times for OpenTelemetry.
#[derive(Debug)]
struct SentTimes {
    waits: metrics::Histogram<f64>,
    starts: metrics::Histogram<f64>,
    runs: metrics::Histogram<f64>,
}

impl Default for SentTimes {
    fn default() -> Self {
        let meter = opentelemetry::global::meter("sandboxctl");
        let [waits, starts, runs] = [
            "sandboxctl_queue_wait_seconds",
            "sandboxctl_sandbox_start_seconds",
            "sandboxctl_execution_seconds",
        ]
        .map(|name| {
            let bounds = BOUNDS.into_iter().filter(|bound| bound.is_finite()).collect();
            meter.f64_histogram(name).with_unit("s").with_boundaries(bounds).build()
        });
        Self { waits, starts, runs }
    }
}

/// The status and the subject of a histogram, if it is of one.
type Label = (Option<&'static str>, Option<String>);

/// Histograms by status and subject.
#[derive(Debug, Default)]
struct Times(Mutex<BTreeMap<Label, Histogram>>);

impl Times {
    fn add(
        &self,
        sent: &metrics::Histogram<f64>,
        status: Option<&'static str>,
        subject: Option<&Subject>,
        time: Duration,
    ) {
        let mut all = lock(&self.0);
        let mut key = (status, subject.map(|subject| subject.as_str().to_owned()));
        if all.len() >= MAX_SUBJECTS && !all.contains_key(&key) {
            key.1 = key.1.map(|_| String::new());
        }
        let (status, subject) = key.clone();
        let attributes: Vec<_> = (status.map(|status| KeyValue::new("status", status)).into_iter())
            .chain(subject.clone().map(|subject| KeyValue::new("subject", subject)))
            .collect();
        let buckets = BOUNDS.map(|bound| (bound, 0));
        let new = || Histogram { status, subject, sum: 0.0, buckets };
        let histogram = all.entry(key).or_insert_with(new);
        let seconds = time.as_secs_f64();
        sent.record(seconds, &attributes);
        histogram.sum += seconds;
        if let Some((_, count)) = histogram.buckets.iter_mut().find(|(bound, _)| seconds <= *bound)
        {
            *count += 1;
        }
    }

    fn so_far(&self) -> Vec<Histogram> {
        lock(&self.0).values().cloned().collect()
    }
}

impl Counting {
    /// Counts by subject too, or not.
    pub fn new(by_subject: bool) -> Self {
        Self { by_subject, ..Self::default() }
    }

    /// A request has waited this long in the queue.
    pub fn waited(&self, subject: &Subject, time: Duration) {
        self.waits.add(&self.sent.waits, None, self.by_subject.then_some(subject), time);
    }

    /// A sandbox has started.
    pub fn started(&self, subject: &Subject, time: Duration) {
        self.starts.add(&self.sent.starts, None, self.by_subject.then_some(subject), time);
    }

    /// Something that ran has ended so.
    pub fn ran(&self, status: Status, subject: &Subject, time: Duration) {
        let subject = self.by_subject.then_some(subject);
        self.runs.add(&self.sent.runs, Some(status.as_str()), subject, time);
    }

    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self, status: Status) {
        if let Some(at) = Status::ALL.iter().position(|it| *it == status) {
            Self::add(&self.ended[at]);
        }
    }

    /// The counts so far; of now, there are none.
    pub fn so_far(&self) -> Counters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            accepted: count(&self.accepted),
            refused_full: count(&self.refused_full),
            refused_quota: count(&self.refused_quota),
            ended: Status::ALL.into_iter().zip(self.ended.iter().map(count)).collect(),
            retried_starts: count(&self.retried_starts),
            failed_removals: count(&self.failed_removals),
            fenced: count(&self.fenced),
            pauses: count(&self.pauses),
            processes_started: count(&self.processes_started),
            waits: self.waits.so_far(),
            starts: self.starts.so_far(),
            runs: self.runs.so_far(),
            ..Counters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_status_and_by_subject_only_where_that_is_wanted() {
        let [alice, bob] = ["alice", "bob"].map(|name| Subject::new(name).unwrap());
        let second = Duration::from_secs(1);
        for by_subject in [false, true] {
            let counting = Counting::new(by_subject);
            for (status, subject, time) in [
                (Status::Ok, &alice, second),
                (Status::Ok, &bob, Duration::from_secs(7200)),
                (Status::Timeout, &bob, second),
            ] {
                counting.ran(status, subject, time);
            }
            let runs = counting.so_far().runs;
            let keys: Vec<_> =
                runs.iter().map(|it| (it.status.unwrap(), it.subject.as_deref())).collect();
            match by_subject {
                false => {
                    assert_eq!(keys, [("ok", None), ("timeout", None)]);
                    assert_eq!(runs[0].buckets[8], (1.0, 1));
                    assert_eq!(runs[0].buckets.last(), Some(&(f64::INFINITY, 1)));
                    assert!((runs[0].sum - 7201.0).abs() < f64::EPSILON);
                }
                true => {
                    let all =
                        [("ok", Some("alice")), ("ok", Some("bob")), ("timeout", Some("bob"))];
                    assert_eq!(keys, all);
                }
            }
        }
    }

    #[test]
    fn subjects_are_counted_in_bounded_memory() {
        let counting = Counting::new(true);
        for number in 0..2 * MAX_SUBJECTS {
            let subject = Subject::new(format!("s{number}")).unwrap();
            counting.waited(&subject, Duration::ZERO);
        }
        let waits = counting.so_far().waits;
        assert_eq!(waits.len(), MAX_SUBJECTS + 1);
        let others = waits.iter().find(|it| it.subject.as_deref() == Some("")).unwrap();
        assert_eq!(others.buckets[0].1, MAX_SUBJECTS as u64);
    }
}
