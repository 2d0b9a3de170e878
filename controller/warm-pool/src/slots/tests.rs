use super::*;

type Words = PoolSlots<&'static str, &'static str, u64>;

fn fill(groups: &mut Words, now: Instant) -> usize {
    let mut count = 0;
    while let Some((group, _)) = groups.next_fill(now, || true) {
        groups.filled(group, (), |number, ()| number).unwrap();
        count += 1;
    }
    count
}

fn named(size: usize, now: Instant) -> Words {
    let mut groups = Words::new(size, 2, true);
    assert_eq!(groups.name("a", "A", now), Some(Vec::new()));
    groups
}

#[test]
fn each_slot_is_taken_once_and_never_for_another_key() {
    let now = Instant::now();
    let mut groups = named(3, now);
    assert_eq!(fill(&mut groups, now), 3);
    assert_eq!(groups.take(&"b", now, |_| true), None);
    let mut taken = Vec::new();
    while let Some((_, slot)) = groups.take(&"a", now, |_| true) {
        assert!(!taken.contains(&slot));
        taken.push(slot);
    }
    assert_eq!(taken.len(), 3);
    // The oldest first; and one that does not fit stays.
    assert!(taken.is_sorted());
    assert_eq!(fill(&mut groups, now), 3);
    assert_eq!(groups.take(&"a", now, |_| false), None);
    assert_eq!(groups.iter().count(), 3);
}

#[test]
fn refill_begins_with_the_group_that_has_least() {
    let now = Instant::now();
    let mut groups = named(2, now);
    assert_eq!(fill(&mut groups, now), 2);
    groups.name("b", "B", now).unwrap();
    groups.take(&"a", now, |_| true).unwrap();
    let order: Vec<_> =
        (0..4).map(|_| groups.next_fill(now, || true).map(|(_, word)| *word)).collect();
    assert_eq!(order, [Some("B"), Some("A"), Some("B"), None]);
    assert_eq!(groups.counts(), (2, 4, 3));
    assert!(!groups.is_settled());
}

#[test]
fn group_whose_slots_fail_waits_longer_each_time_and_then_for_a_claim() {
    let mut now = Instant::now();
    let mut groups = named(3, now);
    let mut waits = Vec::new();
    while let Some((group, _)) = groups.next_fill(now, || true) {
        if !waits.is_empty() {
            // One attempt at a time, until one succeeds.
            assert_eq!(groups.next_fill(now, || true), None);
        }
        groups.failed_to_fill(group, now);
        let Some(due) = groups.next_due(now) else { break };
        waits.push(due - now);
        assert_eq!(groups.next_fill(now, || true), None);
        now = due;
    }
    assert_eq!(waits.len(), MAX_FAILURES as usize - 1);
    assert_eq!(waits[..3], [BACK_OFF, BACK_OFF * 2, BACK_OFF * 4]);
    assert!(waits.iter().all(|&wait| wait <= MAX_BACK_OFF));
    assert!(groups.is_settled());
    now += MAX_BACK_OFF;
    assert_eq!(groups.next_fill(now, || true), None);
    assert_eq!(groups.next_due(now), None);
    assert_eq!(groups.learn("a", now, || "", |_| ()), Vec::<u64>::new());
    let (group, _) = groups.next_fill(now, || true).unwrap();
    groups.filled(group, (), |number, ()| number).unwrap();
    // It has not proven itself yet.
    assert_eq!(groups.iter().count(), 1);
    let (group, _) = groups.take(&"a", now, |_| true).unwrap();
    groups.handed_over(group, true, now);
    assert_eq!(fill(&mut groups, now), 3);
}

#[test]
fn slot_that_dies_is_replaced_after_a_while() {
    let now = Instant::now();
    let mut groups = named(2, now);
    fill(&mut groups, now);
    let dead = *groups.iter().next().unwrap();
    assert_eq!(groups.remove(dead, SlotEnd::Dead, now), Some(dead));
    assert_eq!(groups.remove(dead, SlotEnd::Dead, now), None);
    assert_eq!(groups.next_fill(now, || true), None);
    assert_eq!(groups.next_due(now), Some(now + BACK_OFF));
    assert_eq!(fill(&mut groups, now + BACK_OFF), 1);
}

#[test]
fn keys_are_learnt_from_use_and_forgotten_without_it() {
    let now = Instant::now();
    let mut groups = Words::new(4, 2, true);
    let learn = |groups: &mut Words, key, now| groups.learn(key, now, || key, |_| ());
    // Once is not a habit.
    learn(&mut groups, "a", now);
    assert_eq!(fill(&mut groups, now), 0);
    learn(&mut groups, "a", now);
    assert_eq!(groups.next_fill(now, || false), None, "there is no memory for it");
    assert_eq!(fill(&mut groups, now), 1);
    // Too few.
    for target in [2, 4, 4] {
        learn(&mut groups, "a", now);
        fill(&mut groups, now);
        assert_eq!(groups.iter().count(), target);
    }
    // Too many.
    for left in (0..4).rev() {
        let oldest = *groups.iter().next().unwrap();
        groups.remove(oldest, SlotEnd::Expired, now).unwrap();
        assert_eq!((fill(&mut groups, now), groups.iter().count()), (0, left));
    }
    assert_eq!(groups.counts(), (0, 0, 0));
}

#[test]
fn there_are_only_so_many_keys_and_named_ones_stay() {
    let now = Instant::now();
    let mut groups = named(1, now);
    let twice = |groups: &mut Words, key: &'static str, now| {
        groups.learn(key, now, || key, |_| ());
        groups.learn(key, now, || key, |_| ())
    };
    twice(&mut groups, "b", now);
    assert_eq!(fill(&mut groups, now), 2);
    // Both are in use.
    assert_eq!(twice(&mut groups, "c", now), Vec::<u64>::new());
    assert_eq!(fill(&mut groups, now), 0);
    let later = now + LEARNT_FOR;
    let given_up = groups.learn("c", later, || "c", |_| ());
    assert_eq!(given_up.len(), 1);
    assert_eq!(groups.take(&"b", later, |_| true), None);
    assert!(groups.take(&"a", later, |_| true).is_some());
    // A named key replaces a learnt one at once.
    assert_eq!(groups.name("d", "D", later).map(|slots| slots.len()), Some(0));
    assert_eq!(groups.name("e", "E", later), None);
    for key in 0..1000 {
        let word: &'static str = Box::leak(key.to_string().into_boxed_str());
        groups.learn(word, later, || word, |_| ());
        assert!(groups.candidates.len() <= MAX_CANDIDATES);
    }
}

#[test]
fn unwanted_slot_is_returned() {
    let now = Instant::now();
    let mut groups = named(1, now);
    let (group, _) = groups.next_fill(now, || true).unwrap();
    assert_eq!(groups.clear(), Vec::<u64>::new());
    assert_eq!(groups.filled(group, "slot", |number, _| number), Err("slot"));
}
