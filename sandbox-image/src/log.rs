//! The log of a run, `print` and `warn`, and its test cases: sent immediately, within their limits.

use std::sync::{Arc, Mutex};

use sandbox_protocol::FromAgent;
use sandbox_protocol::limits::{MAX_LOG_ENTRY_BYTES, MAX_TEST_CASES, cut_encoded, encoded_len};
use sandbox_protocol::message::{CaseEnd, Limits, Log, LogLevel, TestCase};

use crate::outbox::Outbox;

/// Counts and sends log entries, cuts those that are too long, and records whether any were
/// dropped.
pub struct LogSink {
    outbox: Arc<Outbox>,
    request: u64,
    budget: Mutex<LogBudget>,
}

/// The remaining log budget.
struct LogBudget {
    bytes: u64,
    lines: u64,
    truncated: bool,
    /// Test cases.
    cases: usize,
}

impl LogSink {
    /// The log of the run `request`, which starts now.
    pub fn new(outbox: Arc<Outbox>, request: u64, limits: &Limits) -> Self {
        let budget = LogBudget {
            bytes: limits.log_bytes,
            lines: limits.log_lines,
            truncated: false,
            cases: MAX_TEST_CASES,
        };
        Self { outbox, request, budget: Mutex::new(budget) }
    }

    /// Sends an entry. The one that fills the log is cut, and later ones are dropped.
    pub fn log(&self, level: LogLevel, text: &[u8]) {
        // The lock is held until the entry is sent, so that entries keep their order.
        let mut budget = self.budget.lock().unwrap();
        if budget.truncated || budget.lines == 0 {
            budget.truncated = true;
            return;
        }
        let left = usize::try_from(budget.bytes).unwrap_or(usize::MAX);
        let entry = entry(self.request, level, text, left.min(MAX_LOG_ENTRY_BYTES));
        budget.truncated = entry.cut && left < MAX_LOG_ENTRY_BYTES;
        if budget.truncated && entry.text.is_empty() {
            return;
        }
        budget.lines -= 1;
        budget.bytes -= encoded_len(&entry.text) as u64;
        self.outbox.notify(&FromAgent::Log(entry));
    }

    /// Sends a test case. False if there have been as many as there may be.
    pub fn case(&self, case: TestCase) -> bool {
        let mut budget = self.budget.lock().unwrap();
        let Some(left) = budget.cases.checked_sub(1) else { return false };
        budget.cases = left;
        self.outbox.notify(&FromAgent::Case(CaseEnd { request: self.request, case }));
        true
    }

    /// Whether entries, or parts of one, were dropped because the log was full.
    pub fn is_truncated(&self) -> bool {
        self.budget.lock().unwrap().truncated
    }
}

/// An entry of the prefix of `bytes` that takes at most `max` encoded bytes. Only that prefix is scanned, so that a
/// huge string costs no more than a long one.
fn entry(request: u64, level: LogLevel, bytes: &[u8], max: usize) -> Log {
    // Every byte takes at least one when encoded, and a character has at most four: a character
    // split by this cut is beyond `max`.
    let head = &bytes[..bytes.len().min(max + 4)];
    let all = String::from_utf8_lossy(head);
    let text = cut_encoded(&all, max);
    Log {
        request,
        level,
        // A replacement character differs from the bytes in its place.
        lossy: !head.starts_with(text.as_bytes()),
        cut: text.len() < all.len() || head.len() < bytes.len(),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::setup::LIMITS;
    use crate::outbox::Recorder;
    use proptest::prelude::*;

    fn logged(limits: Limits, entries: &[&[u8]]) -> (Vec<Log>, bool) {
        let recorder = Recorder::default();
        let log = LogSink::new(Arc::new(Outbox::new(recorder.clone())), 1, &limits);
        for entry in entries {
            log.log(LogLevel::Print, entry);
        }
        let lines = recorder.lines();
        let logs = lines.iter().map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Log(log) => log,
            other => panic!("{other:?}"),
        });
        (logs.collect(), log.is_truncated())
    }

    fn texts(logs: &[Log]) -> Vec<&str> {
        logs.iter().map(|log| log.text.as_str()).collect()
    }

    #[test]
    fn entries_beyond_the_number_of_lines_are_left_out() {
        let limits = Limits { log_lines: 2, ..LIMITS };
        let (logs, truncated) = logged(limits.clone(), &[b"a", b"b"]);
        assert_eq!((texts(&logs), truncated), (vec!["a", "b"], false));
        let (logs, truncated) = logged(limits, &[b"a", b"b", b"c", b""]);
        assert_eq!((texts(&logs), truncated), (vec!["a", "b"], true));
    }

    #[test]
    fn the_entry_that_fills_the_log_is_cut_and_nothing_follows() {
        let limits = Limits { log_bytes: 5, ..LIMITS };
        let (logs, truncated) = logged(limits.clone(), &[b"abc", b"de", b""]);
        assert_eq!((texts(&logs), truncated), (vec!["abc", "de", ""], false));
        let (logs, truncated) = logged(limits.clone(), &[b"abc", b"d\n\n", b"e"]);
        assert_eq!((texts(&logs), truncated), (vec!["abc", "d"], true));
        assert!(logs[1].cut);
        let (logs, truncated) = logged(limits, &[b"abcde", b"f"]);
        assert_eq!((texts(&logs), truncated), (vec!["abcde"], true));
    }

    #[test]
    fn a_long_entry_is_cut_and_the_log_goes_on() {
        let long = vec![b'x'; MAX_LOG_ENTRY_BYTES + 1];
        let (logs, truncated) = logged(LIMITS, &[&long, b"next"]);
        assert_eq!(logs[0].text.len(), MAX_LOG_ENTRY_BYTES);
        assert!(logs[0].cut && !logs[1].cut && !truncated);
    }

    #[test]
    fn bytes_that_are_not_text_are_marked() {
        let (logs, _) = logged(LIMITS, &[b"a\xffb", "é".as_bytes()]);
        assert_eq!((logs[0].text.as_str(), logs[0].lossy), ("a\u{fffd}b", true));
        assert_eq!((logs[1].text.as_str(), logs[1].lossy), ("é", false));
    }

    proptest! {
        #[test]
        fn an_entry_fits_and_text_is_never_marked_lossy(text in any::<String>(), max in 0_usize..40) {
            let entry = entry(1, LogLevel::Print, text.as_bytes(), max);
            prop_assert_eq!(entry.text.as_str(), cut_encoded(&text, max));
            prop_assert!(encoded_len(&entry.text) <= max);
            prop_assert_eq!(entry.cut, entry.text.len() < text.len());
            prop_assert!(!entry.lossy);
        }

        #[test]
        fn bytes_are_what_std_makes_of_them(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let entry = entry(1, LogLevel::Print, &bytes, 1000);
            prop_assert_eq!(entry.text, String::from_utf8_lossy(&bytes));
            prop_assert!(!entry.cut);
        }
    }
}
