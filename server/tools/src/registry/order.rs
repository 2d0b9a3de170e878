//! The order of the calls of one sandbox: which call waits for which. Pure, except for the waiting.
//!
//! Calls run concurrently and are answered in any order. So that a client can send a whole session
//! at once, without waiting for answers, dependent calls keep their order: file operations with
//! overlapping paths, if one of them writes; a script or command after everything before it; a
//! destroy after everything. Calls after a script do not wait for it, unless they are one too,
//! because it may take minutes.

use sandbox_protocol::path::GuestPath;
use tokio::sync::watch;

/// What a call uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A path. An operation that is refused for its path has no dependencies.
    Path { path: GuestPath, changes: bool },
    /// A script or a command: any path.
    Script,
    /// The removal of the sandbox.
    End,
}

impl Scope {
    /// Whether a call with this scope waits for an earlier one with that scope.
    fn waits_for(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::End, _) | (_, Self::End) => true,
            (Self::Script, Self::Script) => true,
            (Self::Script, Self::Path { changes, .. }) => *changes,
            (Self::Path { .. }, Self::Script) => false,
            (
                Self::Path { path, changes },
                Self::Path { path: earlier, changes: earlier_changes },
            ) => {
                (*changes || *earlier_changes) && (path.is_under(earlier) || earlier.is_under(path))
            }
        }
    }
}

/// The calls of a sandbox that are in progress.
#[derive(Debug, Default)]
pub(super) struct Order {
    in_progress: Vec<(Scope, watch::Receiver<()>)>,
}

/// A call's place in the order. Calls that wait for it continue when it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    before: Vec<watch::Receiver<()>>,
    _done: watch::Sender<()>,
}

impl Order {
    /// The ticket of a new call.
    pub fn enter(&mut self, scope: Scope) -> Ticket {
        self.in_progress.retain(|(_, done)| done.has_changed().is_ok());
        let before = self.in_progress.iter().filter(|(earlier, _)| scope.waits_for(earlier));
        let before = before.map(|(_, done)| done.clone()).collect();
        let (sender, done) = watch::channel(());
        self.in_progress.push((scope, done));
        Ticket { before, _done: sender }
    }
}

impl Ticket {
    /// Waits until it is the first.
    pub async fn turn(&mut self) {
        while let Some(done) = self.before.last_mut() {
            // Nothing is ever sent: the sender is dropped when the call is done.
            _ = done.changed().await;
            self.before.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str, changes: bool) -> Scope {
        Scope::Path { path: GuestPath::new(path).unwrap(), changes }
    }

    #[test]
    fn only_what_depends_on_each_other_waits() {
        let read = |at| path(at, false);
        let write = |at| path(at, true);
        for (later, earlier, waits) in [
            (read("/w/a"), write("/w/a"), true),
            (write("/w/a"), read("/w/a"), true),
            (read("/w/a"), read("/w/a"), false),
            (write("/w/a"), write("/w/b"), false),
            (write("/w/ab"), write("/w/a"), false),
            (write("/w/a/b"), write("/w/a"), true),
            (read("/w"), write("/w/a/b"), true),
            (Scope::Script, write("/w/a"), true),
            (Scope::Script, read("/w/a"), false),
            (Scope::Script, Scope::Script, true),
            (read("/w/a"), Scope::Script, false),
            (Scope::End, read("/w/a"), true),
            (Scope::End, Scope::Script, true),
            (read("/w/a"), Scope::End, true),
        ] {
            assert_eq!(later.waits_for(&earlier), waits, "{later:?} after {earlier:?}");
        }
    }

    #[tokio::test]
    async fn a_turn_comes_when_those_before_have_ended_however() {
        let mut order = Order::default();
        let mut first = order.enter(path("/w/a", true));
        first.turn().await;
        let mut second = order.enter(path("/w/a", true));
        let mut third = order.enter(path("/w/a", false));
        let mut other = order.enter(path("/w/b", false));
        other.turn().await;
        tokio::select! {
            biased;
            () = second.turn() => panic!("the first is under way"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        // Dropped before it was the first.
        drop(second);
        third.turn().await;
        drop((third, other));
        order.enter(Scope::End).turn().await;
        assert_eq!(order.in_progress.len(), 1, "what has ended is forgotten");
    }
}
