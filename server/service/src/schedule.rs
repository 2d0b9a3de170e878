//! The queue: fair among subjects, bounded, and with a concurrency for each subject and for all.
//! Pure: no clock, no lock, no task.
//!
//! Subjects take turns. One whose executions all run as much as they may is passed over until one of
//! them ends, and then continues at its place.

use std::collections::{HashMap, VecDeque};

use sandbox_api::service::Subject;

/// The bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// What runs at one time.
    pub running: usize,
    /// What of one subject runs at one time.
    pub running_of_one: usize,
    /// What waits at one time. A tenth more is for subjects of which nothing waits.
    pub waiting: usize,
}

/// What waits and how much runs.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    bounds: Bounds,
    subjects: HashMap<Subject, Share<T>>,
    /// Whose turn it is, in order: every subject of which something waits, once.
    turns: VecDeque<Subject>,
    waiting: usize,
    running: usize,
    /// Slots that are kept free for what is being claimed.
    kept: usize,
}

#[derive(Debug)]
struct Share<T> {
    waiting: VecDeque<(String, T)>,
    running: usize,
    /// Places that were reserved and not yet used.
    reserved: usize,
}

impl<T> Default for Share<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), running: 0, reserved: 0 }
    }
}

impl<T> Schedule<T> {
    pub fn new(bounds: Bounds) -> Self {
        let (subjects, turns) = (HashMap::new(), VecDeque::new());
        Self { bounds, subjects, turns, waiting: 0, running: 0, kept: 0 }
    }

    pub const fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// How many wait, with reserved places.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many run.
    pub const fn running(&self) -> usize {
        self.running
    }

    /// How many may run at one time.
    pub const fn slots(&self) -> usize {
        self.bounds.running
    }

    /// Keeps slots free for what is being claimed.
    pub const fn take_slots(&mut self, slots: usize) {
        self.kept += slots;
    }

    /// Gives them back.
    pub const fn give_slots(&mut self, slots: usize) {
        self.kept -= slots;
    }

    const fn has_slot(&self) -> bool {
        self.running + self.kept < self.bounds.running
    }

    /// One of this subject runs, whose turn came in the queue of a cluster.
    pub fn hold(&mut self, subject: &Subject) {
        self.subjects.entry(subject.clone()).or_default().running += 1;
        self.running += 1;
    }

    /// How many of this subject wait and run.
    pub fn of(&self, subject: &Subject) -> (usize, usize) {
        self.subjects
            .get(subject)
            .map_or((0, 0), |share| (share.waiting.len() + share.reserved, share.running))
    }

    /// Reserves a place in the queue; `false` if it is full.
    pub fn reserve(&mut self, subject: &Subject) -> bool {
        let has_some = self.of(subject).0 > 0;
        let most = match has_some {
            true => self.bounds.waiting,
            false => self.bounds.waiting.saturating_add(self.bounds.waiting.div_ceil(10)),
        };
        if self.waiting >= most {
            return false;
        }
        self.waiting += 1;
        self.subjects.entry(subject.clone()).or_default().reserved += 1;
        true
    }

    /// Gives a reserved place back.
    pub fn release(&mut self, subject: &Subject) {
        if let Some(share) = self.subjects.get_mut(subject) {
            share.reserved = share.reserved.saturating_sub(1);
            self.waiting -= 1;
        }
        self.forget(subject);
    }

    /// Fills a reserved place.
    pub fn fill(&mut self, subject: &Subject, id: String, item: T) {
        let share = self.subjects.entry(subject.clone()).or_default();
        share.reserved = share.reserved.saturating_sub(1);
        if share.waiting.is_empty() {
            self.turns.push_back(subject.clone());
        }
        share.waiting.push_back((id, item));
    }

    /// Queues what was accepted before: there is always a place.
    pub fn restore(&mut self, subject: &Subject, id: String, item: T) {
        self.waiting += 1;
        self.subjects.entry(subject.clone()).or_default().reserved += 1;
        self.fill(subject, id, item);
    }

    /// Takes what runs next, if something may. It counts as running until [`done`](Self::done).
    pub fn next(&mut self) -> Option<(Subject, String, T)> {
        if !self.has_slot() {
            return None;
        }
        let at = self.turns.iter().position(|subject| self.may_run(subject))?;
        let subject = self.turns.remove(at)?;
        let share = self.subjects.get_mut(&subject)?;
        let (id, item) = share.waiting.pop_front()?;
        share.running += 1;
        if !share.waiting.is_empty() {
            self.turns.push_back(subject.clone());
        }
        self.waiting -= 1;
        self.running += 1;
        Some((subject, id, item))
    }

    /// Begins something for which a place is reserved, if that would be [next](Self::next) as soon as it is
    /// there. It counts as running until [`done`](Self::done).
    pub fn begin(&mut self, subject: &Subject) -> bool {
        if !self.has_slot()
            || self.turns.iter().any(|turn| self.may_run(turn))
            || !self.may_run(subject)
        {
            return false;
        }
        let Some(share) = self.subjects.get_mut(subject) else { return false };
        share.reserved = share.reserved.saturating_sub(1);
        share.running += 1;
        self.waiting -= 1;
        self.running += 1;
        true
    }

    fn may_run(&self, subject: &Subject) -> bool {
        let most = self.bounds.running_of_one;
        self.subjects.get(subject).is_some_and(|share| share.running < most)
    }

    /// Something of this subject has ended.
    pub fn done(&mut self, subject: &Subject) {
        if let Some(share) = self.subjects.get_mut(subject)
            && share.running > 0
        {
            share.running -= 1;
            self.running -= 1;
        }
        self.forget(subject);
    }

    /// Takes something out that waits; `None` if it does not.
    pub fn remove(&mut self, subject: &Subject, id: &str) -> Option<T> {
        let share = self.subjects.get_mut(subject)?;
        let at = share.waiting.iter().position(|(waiting, _)| waiting == id)?;
        let (_, item) = share.waiting.remove(at)?;
        if share.waiting.is_empty() {
            self.turns.retain(|turn| turn != subject);
        }
        self.waiting -= 1;
        self.forget(subject);
        Some(item)
    }

    /// The ids of what waits.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.subjects.values().flat_map(|share| share.waiting.iter().map(|(id, _)| id.as_str()))
    }

    /// Memory is bounded by what waits and runs, not by who ever asked.
    fn forget(&mut self, subject: &Subject) {
        let is_unused = |share: &Share<T>| {
            share.waiting.is_empty() && share.running == 0 && share.reserved == 0
        };
        if self.subjects.get(subject).is_some_and(is_unused) {
            self.subjects.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject(number: usize) -> Subject {
        Subject::new(format!("s{number}")).unwrap()
    }

    fn queue(running: usize, running_of_one: usize, waiting: usize) -> Schedule<usize> {
        Schedule::new(Bounds { running, running_of_one, waiting })
    }

    fn push(queue: &mut Schedule<usize>, of: usize, item: usize) -> bool {
        let is_reserved = queue.reserve(&subject(of));
        if is_reserved {
            queue.fill(&subject(of), item.to_string(), item);
        }
        is_reserved
    }

    #[test]
    fn subjects_take_turns_however_much_one_of_them_queues() {
        let mut queue = queue(100, 100, 100);
        for item in 0..10 {
            push(&mut queue, 0, item);
        }
        push(&mut queue, 1, 100);
        push(&mut queue, 2, 200);
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).map(|next| next.2).collect();
        assert_eq!(order[..5], [0, 100, 200, 1, 2]);
    }

    #[test]
    fn subject_at_its_concurrency_is_passed_over_and_keeps_its_place() {
        let mut queue = queue(10, 1, 100);
        for (of, item) in [(0, 0), (0, 1), (1, 10), (1, 11)] {
            push(&mut queue, of, item);
        }
        let mut next = || queue.next().map(|next| next.2);
        assert_eq!([next(), next(), next()], [Some(0), Some(10), None]);
        queue.done(&subject(1));
        assert_eq!(queue.next().map(|next| next.2), Some(11));
        queue.done(&subject(0));
        assert_eq!(queue.next().map(|next| next.2), Some(1));
    }

    #[test]
    fn slot_that_is_kept_for_a_claim_is_neither_free_nor_used() {
        let mut queue = queue(2, 2, 100);
        assert!(queue.reserve(&subject(0)));
        queue.take_slots(2);
        assert!(!queue.begin(&subject(0)));
        assert_eq!(queue.running(), 0);
        queue.give_slots(2);
        assert!(queue.begin(&subject(0)));
        assert_eq!(queue.running(), 1);
    }

    #[test]
    fn immediate_start_overtakes_no_runnable_subject() {
        let mut queue = queue(3, 2, 100);
        let begins = |queue: &mut Schedule<usize>, of: usize| {
            assert!(queue.reserve(&subject(of)));
            let begins = queue.begin(&subject(of));
            if !begins {
                queue.fill(&subject(of), of.to_string(), of);
            }
            begins
        };
        assert!(begins(&mut queue, 0) && begins(&mut queue, 0));
        assert!(!begins(&mut queue, 0), "it runs as much as it may");
        assert!(begins(&mut queue, 1), "one that may not run is passed");
        assert!(!begins(&mut queue, 2), "there is no room");
        queue.done(&subject(1));
        assert!(!begins(&mut queue, 1), "another one's turn has come");
        assert_eq!(queue.next().map(|next| next.2), Some(2));
        assert_eq!((queue.waiting(), queue.running()), (2, 3));
    }

    #[test]
    fn full_queue_keeps_places_for_subjects_of_which_nothing_waits() {
        let mut queue = queue(0, 0, 10);
        for item in 0..10 {
            assert!(push(&mut queue, 0, item));
        }
        assert!(!push(&mut queue, 0, 10));
        assert!(push(&mut queue, 1, 20));
        assert!(!push(&mut queue, 1, 21));
        assert!(!push(&mut queue, 2, 30));
        assert_eq!(queue.remove(&subject(0), "3"), Some(3));
        assert!(push(&mut queue, 2, 30));
    }

    #[derive(Debug, Clone)]
    enum Act {
        Push(usize),
        Next,
        Done(usize),
        Remove(usize),
        Release(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0usize..4).prop_map(Act::Push),
            3 => Just(Act::Next),
            2 => (0usize..4).prop_map(Act::Done),
            1 => (0usize..40).prop_map(Act::Remove),
            1 => (0usize..4).prop_map(Act::Release),
        ]
    }

    proptest! {
        /// After any steps: bounds hold, nothing is lost or started twice, each subject's order is
        /// kept, and something runs whenever something may.
        #[test]
        fn every_sequence_keeps_the_bounds_and_loses_nothing(
            acts in proptest::collection::vec(act(), 0..200),
            running in 1usize..5,
            running_of_one in 1usize..4,
        ) {
            let mut queue = queue(running, running_of_one, 8);
            let mut waiting: Vec<(usize, usize)> = Vec::new();
            let mut runs = [0usize; 4];
            for (item, act) in acts.into_iter().enumerate() {
                match act {
                    Act::Push(of) => {
                        if push(&mut queue, of, item) {
                            waiting.push((of, item));
                        }
                    }
                    Act::Next => {
                        let may = |of: usize| runs[of] < running_of_one;
                        let total: usize = runs.iter().sum();
                        let is_due = total < running && waiting.iter().any(|&(of, _)| may(of));
                        let next = queue.next();
                        prop_assert_eq!(next.is_some(), is_due);
                        if let Some((of, id, item)) = next {
                            prop_assert_eq!(id, item.to_string());
                            let at = waiting.iter().position(|&(its, _)| subject(its) == of).unwrap();
                            let (of, first) = waiting.remove(at);
                            prop_assert_eq!(first, item);
                            runs[of] += 1;
                        }
                    }
                    Act::Done(of) => {
                        queue.done(&subject(of));
                        runs[of] = runs[of].saturating_sub(1);
                    }
                    Act::Remove(item) => {
                        if let Some(at) = waiting.iter().position(|&(_, its)| its == item) {
                            let (of, _) = waiting.remove(at);
                            prop_assert_eq!(queue.remove(&subject(of), &item.to_string()), Some(item));
                        }
                    }
                    Act::Release(of) => {
                        if queue.reserve(&subject(of)) {
                            queue.release(&subject(of));
                        }
                    }
                }
                prop_assert_eq!(queue.waiting(), waiting.len());
                prop_assert_eq!(queue.running(), runs.iter().sum::<usize>());
                prop_assert!(queue.waiting() <= 9 && queue.running() <= running);
                for (of, &its) in runs.iter().enumerate() {
                    prop_assert!(its <= running_of_one);
                    let waits = waiting.iter().filter(|&&(it, _)| it == of).count();
                    prop_assert_eq!(queue.of(&subject(of)), (waits, its));
                }
                prop_assert_eq!(queue.ids().count(), waiting.len());
            }
        }

        /// A subject that always has work waits for at most one turn of each other one.
        #[test]
        fn subject_waits_for_at_most_one_turn_of_each_other(others in 1usize..6, rounds in 1usize..20) {
            let mut queue = queue(1, 1, 1000);
            for of in 0..=others {
                for item in 0..rounds {
                    push(&mut queue, of, of * 1000 + item);
                }
            }
            let mut since = 0;
            while let Some((of, _, _)) = queue.next() {
                queue.done(&of);
                since = if of == subject(0) { 0 } else { since + 1 };
                prop_assert!(since <= others || queue.of(&subject(0)).0 == 0);
            }
        }
    }
}
