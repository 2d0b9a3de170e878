//! Reports on the paths of a run: which ones it changes, announced before the change so that none
//! is lost if the agent is killed in the middle, and to which ones a rule refused access.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use sandbox_protocol::limits::MAX_REFUSALS;
use sandbox_protocol::message::{Change, OperationName, Refused, Touched};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};
use sandbox_protocol::{ErrorKind, FromAgent, WireString};

use super::text::beginning;
use crate::outbox::Outbox;

/// Memory for announced paths. When it is used up, every change of a further path is announced,
/// which is correct, only longer.
const REMEMBERED_BYTES: usize = 8 << 20;
/// The cost of one remembered path beside its bytes.
const ENTRY_BYTES: usize = 64;

/// The announcements of this run. A file operation has none: its reply reports what it did.
pub(super) struct TouchedPaths {
    /// Announcements are on their way when it returns.
    out: Option<Arc<Outbox>>,
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
    pub fn new(out: Option<Arc<Outbox>>, request: u64) -> Self {
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
            out.notify(&FromAgent::Refused(refused));
        }
    }

    fn send(&self, path: &GuestPath, existed: bool, change: Change) {
        let Some(out) = &self.out else { return };
        let path = path.into();
        let touched = Touched { request: self.request, path, existed, change };
        out.notify(&FromAgent::Touched(touched));
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
    use crate::outbox::Recorder;

    /// The announcements of a request, and what it has sent.
    fn announcements(request: u64) -> (TouchedPaths, Recorder) {
        let recorder = Recorder::default();
        let outbox = Arc::new(Outbox::new(recorder.clone()));
        (TouchedPaths::new(Some(outbox), request), recorder)
    }

    fn touched(recorder: &Recorder) -> Vec<Touched> {
        let lines = recorder.lines();
        let touched = lines.iter().map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Touched(touched) => touched,
            other => panic!("{other:?}"),
        });
        touched.collect()
    }

    fn refused(recorder: &Recorder) -> Vec<Refused> {
        let lines = recorder.lines();
        let refused = lines.iter().map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Refused(refused) => refused,
            other => panic!("{other:?}"),
        });
        refused.collect()
    }

    fn changes(act: impl FnOnce(&TouchedPaths, &GuestPath)) -> Vec<(bool, Change)> {
        let (announced, recorder) = announcements(1);
        act(&announced, &GuestPath::new("/io/a").unwrap());
        touched(&recorder).into_iter().map(|touched| (touched.existed, touched.change)).collect()
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
        let (announced, recorder) = announcements(1);
        announced.state.lock().unwrap().bytes = REMEMBERED_BYTES;
        let path = GuestPath::new("/io/a").unwrap();
        announced.announce(&path, false, Change::Write).end(true);
        announced.announce(&path, true, Change::Write).end(false);
        assert_eq!(touched(&recorder).len(), 2);
        assert!(announced.state.lock().unwrap().last.is_empty());
    }

    #[test]
    fn a_refusal_is_reported_once_and_so_many_at_most() {
        let (announced, recorder) = announcements(7);
        let refuse =
            |operation, path: &str, kind| announced.refuse(operation, path.as_bytes(), kind);
        for _ in 0..2 {
            refuse(OperationName::Read, "../a", ErrorKind::PathEscape);
            refuse(OperationName::Write, "../a", ErrorKind::PathEscape);
            refuse(OperationName::Read, "/io/l", ErrorKind::Symlink);
        }
        assert_eq!(refused(&recorder).len(), 3);
        for number in 0..2 * MAX_REFUSALS {
            refuse(OperationName::Read, &format!("../{number}"), ErrorKind::PathEscape);
        }
        let refused = refused(&recorder);
        assert_eq!(refused.len(), MAX_REFUSALS);
        assert!(refused.iter().all(|refused| refused.request == 7));
    }

    #[test]
    fn an_invalid_path_is_reported_truncated() {
        let (announced, recorder) = announcements(1);
        let long = format!("..{}", "ä".repeat(MAX_PATH_BYTES));
        for path in [long.as_bytes(), &[0xff; 2 * MAX_PATH_BYTES]] {
            announced.refuse(OperationName::Read, path, ErrorKind::PathEscape);
        }
        let reported = refused(&recorder);
        assert_eq!(reported[0].path.as_bytes().len(), MAX_PATH_BYTES - 1);
        assert!(long.as_bytes().starts_with(reported[0].path.as_bytes()));
        assert_eq!(reported[1].path.as_bytes(), [0xff; MAX_PATH_BYTES]);
    }
}
