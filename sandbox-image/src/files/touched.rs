//! Reports on the paths of a run: which ones it changes, announced before the change so that none
//! is lost if the agent is killed in the middle, and to which ones a rule refused access.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use sandbox_protocol::limits::MAX_REFUSALS;
use sandbox_protocol::message::{Change, OperationName, Refused, Touched};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};
use sandbox_protocol::{ErrorKind, WireString};

use super::text::beginning;

/// Memory for announced paths. When it is used up, every change of a further path is announced,
/// which is correct, only longer.
const REMEMBERED_BYTES: usize = 8 << 20;
/// The cost of one remembered path beside its bytes.
const ENTRY_BYTES: usize = 64;

/// Sends announcements; they are on their way when `announce` returns.
pub trait Announce: Send + Sync {
    /// Sends one.
    fn announce(&self, touched: Touched);
    /// Sends a refusal.
    fn refuse(&self, refused: Refused);
}

/// The announcements of this run. A file operation has none: its reply reports what it did.
pub(super) struct TouchedPaths {
    out: Option<Arc<dyn Announce>>,
    /// The request that causes the changes.
    request: u64,
    state: Mutex<State>,
    refused: Mutex<HashSet<Refused>>,
}

#[derive(Default)]
struct State {
    last: HashMap<GuestPath, Change>,
    bytes: usize,
}

/// An announced change. It is withdrawn if the change fails.
#[must_use]
pub(super) struct Pending<'a> {
    announced: &'a TouchedPaths,
    path: &'a GuestPath,
    existed: bool,
    entry: TouchedEntry,
}

/// How an announcement changed what was announced for its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct TouchedEntry {
    change: Change,
    before: Before,
}

#[derive(Debug, Clone, Copy)]
enum Before {
    /// It is the first change of this path.
    Nothing,
    /// The path had this other kind of change before.
    Change(Change),
    /// There was nothing to announce, or it is no longer known.
    Settled,
}

impl TouchedPaths {
    pub fn new(out: Option<Arc<dyn Announce>>, request: u64) -> Self {
        Self { out, request, state: Mutex::default(), refused: Mutex::default() }
    }

    /// Announces `change`, if it is of another kind than what was announced for the path. Appending
    /// to what was written in this run is not another kind.
    pub fn announce<'a>(
        &'a self,
        path: &'a GuestPath,
        existed: bool,
        change: Change,
    ) -> Pending<'a> {
        if self.out.is_none() {
            let entry = TouchedEntry { change, before: Before::Settled };
            return Pending { announced: self, path, existed, entry };
        }
        let mut state = self.state.lock().unwrap();
        let before = match state.last.get_mut(path) {
            Some(last) if *last == change => Before::Settled,
            Some(Change::Write) if change == Change::Append => Before::Settled,
            Some(last) => Before::Change(std::mem::replace(last, change)),
            None => {
                let bytes = state.bytes + path.as_bytes().len() + ENTRY_BYTES;
                if bytes <= REMEMBERED_BYTES {
                    state.bytes = bytes;
                    state.last.insert(path.clone(), change);
                    Before::Nothing
                } else {
                    self.send(path, existed, change);
                    Before::Settled
                }
            }
        };
        if !matches!(before, Before::Settled) {
            self.send(path, existed, change);
        }
        drop(state);
        Pending { announced: self, path, existed, entry: TouchedEntry { change, before } }
    }

    /// Withdraws an announcement whose [`Pending`] has been dropped.
    pub fn take_back(&self, path: &GuestPath, existed: bool, entry: TouchedEntry) {
        Pending { announced: self, path, existed, entry }.failed();
    }

    /// Reports a refusal, if it was not reported before.
    pub fn refuse(&self, operation: OperationName, path: &[u8], kind: ErrorKind) {
        let Some(out) = &self.out else { return };
        // The part of a script's text that could be a path.
        let path = WireString::new(beginning(path, MAX_PATH_BYTES));
        let refused = Refused { request: self.request, operation, path, kind };
        let mut reported = self.refused.lock().unwrap();
        if reported.len() < MAX_REFUSALS && reported.insert(refused.clone()) {
            out.refuse(refused);
        }
    }

    fn send(&self, path: &GuestPath, existed: bool, change: Change) {
        let Some(out) = &self.out else { return };
        let path = path.into();
        out.announce(Touched { request: self.request, path, existed, change });
    }
}

impl Pending<'_> {
    /// The change has been made, or has failed and the path is unchanged.
    pub fn end(self, is_made: bool) {
        if !is_made {
            self.failed();
        }
    }

    /// The change is made elsewhere; returns what is needed to withdraw it.
    pub fn into_entry(self) -> TouchedEntry {
        self.entry
    }

    fn failed(self) {
        let mut state = self.announced.state.lock().unwrap();
        let TouchedEntry { change, before } = self.entry;
        if state.last.get(self.path) != Some(&change) {
            // Something else has been announced since.
            return;
        }
        match before {
            Before::Nothing => {
                state.last.remove(self.path);
                state.bytes -= self.path.as_bytes().len() + ENTRY_BYTES;
            }
            Before::Change(change) => _ = state.last.insert(self.path.clone(), change),
            Before::Settled => return,
        }
        self.announced.send(self.path, self.existed, Change::Failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Mutex<Vec<(WireString, bool, Change)>>);

    impl Announce for Recorded {
        fn announce(&self, touched: Touched) {
            self.0.lock().unwrap().push((touched.path, touched.existed, touched.change));
        }

        fn refuse(&self, refused: Refused) {
            panic!("{refused:?}");
        }
    }

    fn changes(act: impl FnOnce(&TouchedPaths, &GuestPath)) -> Vec<(bool, Change)> {
        let out = Arc::new(Recorded::default());
        act(&TouchedPaths::new(Some(out.clone()), 1), &GuestPath::new("/io/a").unwrap());
        out.0.lock().unwrap().iter().map(|(_, existed, change)| (*existed, *change)).collect()
    }

    #[test]
    fn a_path_is_announced_again_only_for_another_kind_of_change() {
        let seen = changes(|announced, path| {
            for (existed, change) in [
                (true, Change::Append),
                (true, Change::Append),
                (true, Change::Write),
                (true, Change::Append),
                (true, Change::Remove),
                (false, Change::Append),
            ] {
                announced.announce(path, existed, change).end(true);
            }
        });
        let expected = [
            (true, Change::Append),
            (true, Change::Write),
            (true, Change::Remove),
            (false, Change::Append),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_change_that_fails_is_taken_back() {
        let seen = changes(|announced, path| {
            announced.announce(path, false, Change::Write).end(false);
            announced.announce(path, false, Change::Write).end(true);
            announced.announce(path, true, Change::Remove).end(false);
            announced.announce(path, true, Change::Write).end(false);
            let earlier = announced.announce(path, true, Change::Remove);
            announced.announce(path, false, Change::Append).end(true);
            earlier.end(false);
        });
        let expected = [
            (false, Change::Write),
            (false, Change::Failed),
            (false, Change::Write),
            (true, Change::Remove),
            (true, Change::Failed),
            (true, Change::Remove),
            (false, Change::Append),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn beyond_its_memory_every_change_is_announced() {
        let out = Arc::new(Recorded::default());
        let announced = TouchedPaths::new(Some(out.clone()), 1);
        announced.state.lock().unwrap().bytes = REMEMBERED_BYTES;
        let path = GuestPath::new("/io/a").unwrap();
        announced.announce(&path, false, Change::Write).end(true);
        announced.announce(&path, true, Change::Write).end(false);
        assert_eq!(out.0.lock().unwrap().len(), 2);
        assert!(announced.state.lock().unwrap().last.is_empty());
    }

    #[derive(Default)]
    struct Refusals(Mutex<Vec<Refused>>);

    impl Announce for Refusals {
        fn announce(&self, touched: Touched) {
            panic!("{touched:?}");
        }

        fn refuse(&self, refused: Refused) {
            self.0.lock().unwrap().push(refused);
        }
    }

    #[test]
    fn a_refusal_is_reported_once_and_so_many_at_most() {
        let out = Arc::new(Refusals::default());
        let announced = TouchedPaths::new(Some(out.clone()), 7);
        let refuse =
            |operation, path: &str, kind| announced.refuse(operation, path.as_bytes(), kind);
        for _ in 0..2 {
            refuse(OperationName::Read, "../a", ErrorKind::PathEscape);
            refuse(OperationName::Write, "../a", ErrorKind::PathEscape);
            refuse(OperationName::Read, "/io/l", ErrorKind::Symlink);
        }
        let reported = |out: &Refusals| out.0.lock().unwrap().len();
        assert_eq!(reported(&out), 3);
        for number in 0..2 * MAX_REFUSALS {
            refuse(OperationName::Read, &format!("../{number}"), ErrorKind::PathEscape);
        }
        assert_eq!(reported(&out), MAX_REFUSALS);
        assert!(out.0.lock().unwrap().iter().all(|refused| refused.request == 7));
    }

    #[test]
    fn an_invalid_path_is_reported_truncated() {
        let out = Arc::new(Refusals::default());
        let announced = TouchedPaths::new(Some(out.clone()), 1);
        let long = format!("..{}", "ä".repeat(MAX_PATH_BYTES));
        for path in [long.as_bytes(), &[0xff; 2 * MAX_PATH_BYTES]] {
            announced.refuse(OperationName::Read, path, ErrorKind::PathEscape);
        }
        let reported = out.0.lock().unwrap();
        assert_eq!(reported[0].path.as_bytes().len(), MAX_PATH_BYTES - 1);
        assert!(long.as_bytes().starts_with(reported[0].path.as_bytes()));
        assert_eq!(reported[1].path.as_bytes(), [0xff; MAX_PATH_BYTES]);
    }
}
