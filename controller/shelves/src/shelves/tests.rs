use super::*;

type Words = Shelves<&'static str, &'static str, u64>;

fn fill(shelves: &mut Words, now: Instant) -> usize {
    let mut count = 0;
    while let Some((shelf, _)) = shelves.next_fill(now, || true) {
        shelves.filled(shelf, (), |number, ()| number).unwrap();
        count += 1;
    }
    count
}

fn named(size: usize, now: Instant) -> Words {
    let mut shelves = Words::new(size, 2, true);
    assert_eq!(shelves.name("a", "A", now), Some(Vec::new()));
    shelves
}

#[test]
fn each_slot_is_taken_once_and_never_for_another_key() {
    let now = Instant::now();
    let mut shelves = named(3, now);
    assert_eq!(fill(&mut shelves, now), 3);
    assert_eq!(shelves.take(&"b", now, |_| true), None);
    let mut taken = Vec::new();
    while let Some((_, slot)) = shelves.take(&"a", now, |_| true) {
        assert!(!taken.contains(&slot));
        taken.push(slot);
    }
    assert_eq!(taken.len(), 3);
    // The oldest first; and one that does not fit stays.
    assert!(taken.is_sorted());
    assert_eq!(fill(&mut shelves, now), 3);
    assert_eq!(shelves.take(&"a", now, |_| false), None);
    assert_eq!(shelves.slots().count(), 3);
}

#[test]
fn refill_begins_with_the_shelf_that_has_least() {
    let now = Instant::now();
    let mut shelves = named(2, now);
    assert_eq!(fill(&mut shelves, now), 2);
    shelves.name("b", "B", now).unwrap();
    shelves.take(&"a", now, |_| true).unwrap();
    let order: Vec<_> =
        (0..4).map(|_| shelves.next_fill(now, || true).map(|(_, word)| *word)).collect();
    assert_eq!(order, [Some("B"), Some("A"), Some("B"), None]);
    assert_eq!(shelves.counts(), (2, 4, 3));
    assert!(!shelves.is_settled());
}

#[test]
fn shelf_whose_slots_fail_waits_longer_each_time_and_then_for_a_claim() {
    let mut now = Instant::now();
    let mut shelves = named(3, now);
    let mut waits = Vec::new();
    while let Some((shelf, _)) = shelves.next_fill(now, || true) {
        if !waits.is_empty() {
            // One attempt at a time, until one succeeds.
            assert_eq!(shelves.next_fill(now, || true), None);
        }
        shelves.failed_to_fill(shelf, now);
        let Some(due) = shelves.next_due(now) else { break };
        waits.push(due - now);
        assert_eq!(shelves.next_fill(now, || true), None);
        now = due;
    }
    assert_eq!(waits.len(), MAX_FAILURES as usize - 1);
    assert_eq!(waits[..3], [BACK_OFF, BACK_OFF * 2, BACK_OFF * 4]);
    assert!(waits.iter().all(|&wait| wait <= MAX_BACK_OFF));
    assert!(shelves.is_settled());
    now += MAX_BACK_OFF;
    assert_eq!(shelves.next_fill(now, || true), None);
    assert_eq!(shelves.next_due(now), None);
    assert_eq!(shelves.learn("a", now, || "", |_| ()), Vec::<u64>::new());
    let (shelf, _) = shelves.next_fill(now, || true).unwrap();
    shelves.filled(shelf, (), |number, ()| number).unwrap();
    // It has not proven itself yet.
    assert_eq!(shelves.slots().count(), 1);
    let (shelf, _) = shelves.take(&"a", now, |_| true).unwrap();
    shelves.handed_over(shelf, true, now);
    assert_eq!(fill(&mut shelves, now), 3);
}

#[test]
fn slot_that_dies_is_replaced_after_a_while() {
    let now = Instant::now();
    let mut shelves = named(2, now);
    fill(&mut shelves, now);
    let dead = *shelves.slots().next().unwrap();
    assert_eq!(shelves.remove(dead, Leaves::Dead, now), Some(dead));
    assert_eq!(shelves.remove(dead, Leaves::Dead, now), None);
    assert_eq!(shelves.next_fill(now, || true), None);
    assert_eq!(shelves.next_due(now), Some(now + BACK_OFF));
    assert_eq!(fill(&mut shelves, now + BACK_OFF), 1);
}

#[test]
fn keys_are_learnt_from_use_and_forgotten_without_it() {
    let now = Instant::now();
    let mut shelves = Words::new(4, 2, true);
    let learn = |shelves: &mut Words, key, now| shelves.learn(key, now, || key, |_| ());
    // Once is not a habit.
    learn(&mut shelves, "a", now);
    assert_eq!(fill(&mut shelves, now), 0);
    learn(&mut shelves, "a", now);
    assert_eq!(shelves.next_fill(now, || false), None, "there is no memory for it");
    assert_eq!(fill(&mut shelves, now), 1);
    // Too few.
    for target in [2, 4, 4] {
        learn(&mut shelves, "a", now);
        fill(&mut shelves, now);
        assert_eq!(shelves.slots().count(), target);
    }
    // Too many.
    for left in (0..4).rev() {
        let oldest = *shelves.slots().next().unwrap();
        shelves.remove(oldest, Leaves::Expired, now).unwrap();
        assert_eq!((fill(&mut shelves, now), shelves.slots().count()), (0, left));
    }
    assert_eq!(shelves.counts(), (0, 0, 0));
}

#[test]
fn there_are_only_so_many_keys_and_named_ones_stay() {
    let now = Instant::now();
    let mut shelves = named(1, now);
    let twice = |shelves: &mut Words, key: &'static str, now| {
        shelves.learn(key, now, || key, |_| ());
        shelves.learn(key, now, || key, |_| ())
    };
    twice(&mut shelves, "b", now);
    assert_eq!(fill(&mut shelves, now), 2);
    // Both are in use.
    assert_eq!(twice(&mut shelves, "c", now), Vec::<u64>::new());
    assert_eq!(fill(&mut shelves, now), 0);
    let later = now + LEARNT_FOR;
    let given_up = shelves.learn("c", later, || "c", |_| ());
    assert_eq!(given_up.len(), 1);
    assert_eq!(shelves.take(&"b", later, |_| true), None);
    assert!(shelves.take(&"a", later, |_| true).is_some());
    // A named one takes the place of a learnt one at once.
    assert_eq!(shelves.name("d", "D", later).map(|slots| slots.len()), Some(0));
    assert_eq!(shelves.name("e", "E", later), None);
    for key in 0..1000 {
        let word: &'static str = Box::leak(key.to_string().into_boxed_str());
        shelves.learn(word, later, || word, |_| ());
        assert!(shelves.candidates.len() <= MAX_CANDIDATES);
    }
}

#[test]
fn slot_that_nobody_wants_any_more_is_given_back() {
    let now = Instant::now();
    let mut shelves = named(1, now);
    let (shelf, _) = shelves.next_fill(now, || true).unwrap();
    assert_eq!(shelves.clear(), Vec::<u64>::new());
    assert_eq!(shelves.filled(shelf, "slot", |number, _| number), Err("slot"));
}
