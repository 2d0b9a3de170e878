use super::*;

const BUDGET: RemainingBudget =
    RemainingBudget { bytes: 50 << 20, most_bytes: 50 << 20, entries: 100, most_entries: 100 };

const NONE: DiskReserve = DiskReserve::Bytes(sandbox_api::ByteSize::b(0));

fn left(bytes: u64, inodes: u64) -> Option<FreeSpace> {
    let (available, available_inodes) = (bytes, inodes);
    let (size, most_inodes) = (100 << 30, 1_000_000);
    let counted = FreeSpace { bytes, available, inodes, available_inodes, ..FreeSpace::default() };
    Some(FreeSpace { most_inodes, size, ..counted })
}

/// A scan from then on that took so many milliseconds.
fn scan(started: Instant, millis: u64, space: Option<FreeSpace>) -> ScanRecord {
    let took = Duration::from_millis(millis);
    ScanRecord { took, ..ScanRecord::none(started + took, space) }
}

#[test]
fn an_expensive_scan_is_made_less_often() {
    let space = left(10 << 30, 1000);
    let after = |millis, now| rest(Duration::from_millis(millis), [space, now], BUDGET).as_millis();
    let idle = |millis| after(millis, space);
    assert_eq!([idle(0), idle(1), idle(20), idle(100)], [100, 100, 380, 1900]);
    // 5 % of one CPU for as long as nothing is gone; then at most a quarter.
    assert_eq!([idle(200), idle(2000)], [3800, 38_000]);
    for now in [left((10 << 30) - 1, 1000), left(10 << 30, 999), left(10 << 30, 0), None] {
        assert_eq!([after(200, now), after(2000, now)], [2000, 6000], "{now:?}");
    }
}

#[test]
fn an_idle_program_near_its_limit_is_scanned_no_more_often() {
    let space = left(10 << 30, 1000);
    let near = RemainingBudget { bytes: 5 << 20, entries: 10, ..BUDGET };
    let after = |now| rest(Duration::from_millis(1), [space, now], near).as_millis();
    assert_eq!(after(space), 100);
    // If space is gone: by the remaining part of the limit, or of the free space.
    assert_eq!(after(left((10 << 30) - (1 << 20), 1000)), 80);
    assert_eq!(after(left((10 << 30) - (5 << 20) + 1, 1000)), 10);
    assert_eq!(after(left(10 << 30, 991)), 10);
    // A filesystem that reports nothing, or counts no inodes.
    assert_eq!([after(None), after(left(10 << 30, 0))], [10, 10]);
    // Far from a limit, other writers do not trigger earlier scans.
    let far = rest(Duration::from_millis(1), [space, left(9 << 30, 1)], BUDGET);
    assert_eq!(far.as_millis(), 100);
}

#[test]
fn scans_for_writes_of_others_come_further_apart_until_something_grows() {
    let started = Instant::now();
    let after = |millis| started + Duration::from_millis(millis);
    let (before, now) = (left(10 << 30, 1000), left((10 << 30) - (50 << 20), 1000));
    let mut schedule = ScanSchedule::new(started, before, NONE);
    // The rest before a triggered scan, in multiples of the 10 ms that the last one took.
    let rest = |schedule: &mut ScanSchedule, space| {
        schedule.last_scan.ended = after(0);
        (0..).find(|&it| schedule.is_due(after(it * 10), Duration::ZERO, space, BUDGET)).unwrap()
    };
    schedule.record(scan(started, 10, before));
    for expected in [1, 2, 4, 8, 16, 16] {
        assert_eq!(rest(&mut schedule, now), expected);
        schedule.record(scan(started, 10, before));
    }
    // It cannot be used to hide: a loss beyond it triggers a scan as soon as ever.
    assert_eq!(rest(&mut schedule, left((10 << 30) - (82 << 20), 1000)), 1);
    assert_eq!(rest(&mut schedule, left((10 << 30) - (81 << 20), 1000)), 16);
    schedule.record(ScanRecord { has_grown: true, ..scan(started, 10, before) });
    assert_eq!(rest(&mut schedule, now), 1);
}

#[test]
fn disk_reserve_is_checked_before_it_can_be_passed() {
    let started = Instant::now();
    let tick = |free: u64, inodes: u64| {
        let mut schedule = ScanSchedule::new(started, left(free, inodes), DiskReserve::Auto);
        let budget = RemainingBudget { bytes: 1 << 40, entries: 1 << 40, ..BUDGET };
        schedule.is_due(started, Duration::ZERO, left(free, inodes), budget);
        schedule.tick().as_millis()
    };
    let all = 1_000_000;
    let bytes = [10 << 30, 3 << 29, 1 << 30].map(|free| tick(free, all));
    assert_eq!(bytes, [250, 125, 5]);
    // 10,000 of them are reserved.
    let inodes = [all, 110_000, 14_000].map(|inodes| tick(10 << 30, inodes));
    assert_eq!(inodes, [250, 125, 5]);
}

#[test]
fn scans_come_closer_together_near_a_limit_that_the_file_system_does_not_report() {
    let budget = |bytes| RemainingBudget { bytes, ..BUDGET };
    let rest = |budget| rest(Duration::from_millis(1), [None, None], budget).as_millis();
    let budgets = [50 << 20, 25 << 20, 5 << 20, 0].map(budget);
    assert_eq!(budgets.map(rest), [100, 50, 10, 5]);
    assert_eq!(rest(RemainingBudget { entries: 10, ..BUDGET }), 10);
}

#[test]
fn a_scan_is_due_at_once_when_the_remaining_budget_is_gone() {
    let started = Instant::now();
    let after = |millis| started + Duration::from_millis(millis);
    let due = |space, budget| {
        let mut schedule = ScanSchedule::new(started, left(10 << 30, 1000), NONE);
        schedule.is_due(after(10), Duration::ZERO, space, budget)
    };
    assert!(!due(left(10 << 30, 1000), BUDGET));
    assert!(!due(left((10 << 30) - (49 << 20), 1000), BUDGET));
    assert!(due(left((10 << 30) - (50 << 20), 1000), BUDGET));
    assert!(due(left(10 << 30, 900), BUDGET));
    assert!(due(left(10 << 30, 1000), RemainingBudget::NONE));
    // If others free space meanwhile, or the filesystem reports nothing, the schedule decides.
    assert!(!due(left(11 << 30, 2000), BUDGET) && !due(None, BUDGET));
    let mut schedule = ScanSchedule::new(started, None, NONE);
    assert!(schedule.is_due(after(100), Duration::ZERO, None, BUDGET));
    // A long scan is not followed by another at once.
    let mut schedule = ScanSchedule::new(started, left(10 << 30, 1000), NONE);
    schedule.record(scan(started, 30, left(10 << 30, 1000)));
    assert!(!schedule.is_due(after(50), Duration::ZERO, left(0, 0), BUDGET));
    assert!(schedule.is_due(after(60), Duration::ZERO, left(0, 0), BUDGET));
}

#[test]
fn commands_that_took_long_to_stop_run_as_long_again_unless_space_goes() {
    let started = Instant::now();
    let after = |millis| started + Duration::from_millis(millis);
    let (before, later) = (left(10 << 30, 1000), left((10 << 30) - (32 << 20), 1000));
    let mut schedule = ScanSchedule::new(started, before, NONE);
    let waited = Duration::from_millis(500);
    schedule.record(ScanRecord { waited, has_grown: true, ..scan(started, 10, before) });
    let due = |schedule: &mut ScanSchedule, millis, space| {
        schedule.is_due(after(millis), Duration::ZERO, space, RemainingBudget::NONE)
    };
    assert!(!due(&mut schedule, 509, before) && due(&mut schedule, 510, before));
    assert!(!due(&mut schedule, 19, later) && due(&mut schedule, 20, later));
}

#[test]
fn each_stop_that_ends_too_early_makes_the_next_one_longer() {
    let started = Instant::now();
    let mut schedule = ScanSchedule::new(started, left(10 << 30, 1000), NONE);
    let mut longest = |stop: Option<Stop>, hides, millis| {
        let stop = stop.map(|stop| StopRecord {
            stop,
            after: Duration::from_millis(millis),
            taken: 1 << 20,
        });
        schedule.record(ScanRecord { stop, hides, ..scan(started, 1, left(10 << 30, 1000)) });
        (schedule.longest_stop().as_millis(), schedule.is_hiding())
    };
    let partial = Some(Stop::Partial);
    // A thread that is slow to stop hides nothing where everything was found.
    assert_eq!(longest(partial, false, 250), (250, false));
    // A program that was started meanwhile was not waited for.
    assert_eq!(longest(partial, true, 10), (250, false));
    assert_eq!([(); 5].map(|()| longest(partial, true, 250).0), [500, 1000, 2000, 4000, 4000]);
    assert_eq!(longest(partial, true, 10), (4000, true));
    assert_eq!(longest(Some(Stop::Broken), true, 250), (4000, true));
    assert_eq!(longest(None, true, 0), (4000, true));
    for (stop, hides) in [(Some(Stop::Complete), true), (partial, false), (None, false)] {
        assert!(longest(partial, true, 250).1);
        assert_eq!(longest(stop, hides, 250), (250, false));
    }
}

#[test]
fn a_stop_waits_longer_only_while_calls_take_little() {
    let [short, longest] = [250, 1000].map(Duration::from_millis);
    let before = |duration: Duration| duration - Duration::from_millis(1);
    assert!(waits_on(before(short), short, u64::MAX) && !waits_on(short, short, 0));
    let slack = 32 << 20;
    assert!(waits_on(before(longest), longest, slack - 1) && !waits_on(longest, longest, 0));
    assert!(!waits_on(short, longest, slack));
}

#[test]
fn files_hidden_for_long_are_reported_as_hiding() {
    let started = Instant::now();
    let mut schedule = ScanSchedule::new(started, left(10 << 30, 1000), NONE);
    let mut hidden = |stop, hides, seconds| {
        let ended = started + Duration::from_secs(seconds);
        let stop = Some(StopRecord { stop, after: Duration::from_millis(250), taken: 0 });
        schedule.record(ScanRecord {
            ended,
            stop,
            hides,
            ..scan(started, 0, left(10 << 30, 1000))
        });
        schedule.is_hiding_for_long()
    };
    assert!(!hidden(Stop::Partial, true, 100));
    assert!(!hidden(Stop::Partial, true, 129) && hidden(Stop::Partial, true, 130));
    // One complete stop, and it begins again.
    assert!(!hidden(Stop::Complete, true, 131) && !hidden(Stop::Partial, true, 150));
    assert!(!hidden(Stop::Broken, true, 179) && hidden(Stop::Broken, true, 180));
    assert!(!hidden(Stop::Partial, false, 181) && !hidden(Stop::Partial, true, 220));
}

#[test]
fn free_space_is_checked_more_often_the_quicker_it_shrinks() {
    let started = Instant::now();
    let tick = |bytes: u64, inodes: u64, cost: u64, budget: RemainingBudget| {
        let all = 1_000_000;
        let mut schedule = ScanSchedule::new(started, left(10 << 30, all), NONE);
        let now = started + Duration::from_millis(10);
        let cost = Duration::from_micros(cost);
        schedule.is_due(now, cost, left((10 << 30) - bytes, all - inodes), budget);
        schedule.tick().as_millis()
    };
    let budget = RemainingBudget { entries: 10_000, ..BUDGET };
    assert_eq!(tick(0, 0, 0, budget), 12);
    assert_eq!(tick(25 << 20, 0, 0, budget), 5);
    assert_eq!(tick(49 << 20, 0, 0, budget), 1);
    assert_eq!(tick(0, 5000, 0, budget), 5);
    assert_eq!(tick(0, 9800, 0, budget), 1);
    assert_eq!(tick(0, 0, 0, RemainingBudget { bytes: 0, ..budget }), 5);
    assert_eq!(tick(0, 0, 0, RemainingBudget { entries: 0, ..budget }), 5);
    assert_eq!(tick(0, 0, 0, RemainingBudget { bytes: 1 << 40, entries: 1 << 40, ..BUDGET }), 250);
    // A slow filesystem, over a network, is not asked all the time.
    assert_eq!(tick(49 << 20, 0, 20_000, budget), 380);
}

#[test]
fn space_taken_by_calls_adds_up_over_a_series_of_stops() {
    let started = Instant::now();
    let mut schedule = ScanSchedule::new(started, left(10 << 30, 1000), NONE);
    let mut taken = |stop, hides, millis, taken| {
        let stop = Some(StopRecord { stop, after: Duration::from_millis(millis), taken });
        schedule.record(ScanRecord { stop, hides, ..scan(started, 1, left(10 << 30, 1000)) });
        schedule.taken()
    };
    // A stop that was not cut short begins none.
    assert_eq!(taken(Stop::Partial, true, 10, 7), 0);
    assert_eq!(taken(Stop::Partial, true, 250, 40), 40);
    assert_eq!(taken(Stop::Partial, true, 10, 7), 47);
    assert_eq!(taken(Stop::Broken, true, 250, 3), 50);
    assert_eq!(taken(Stop::Partial, true, 300, 40), 90);
    assert_eq!(taken(Stop::Complete, true, 250, 1), 0);
    assert_eq!(taken(Stop::Partial, true, 250, 40), 40);
    assert_eq!(taken(Stop::Partial, false, 250, 40), 0);
}

#[test]
fn scans_that_take_long_do_not_keep_the_next_one_from_what_the_commands_write() {
    let started = Instant::now();
    let after = |millis| started + Duration::from_millis(millis);
    let (before, gone) = (left(10 << 30, 1000), left((10 << 30) - (50 << 20), 1000));
    let mut schedule = ScanSchedule::new(started, before, NONE);
    schedule.record(scan(started, 1000, before));
    let asks = |schedule: &mut ScanSchedule, millis, space| {
        assert!(!schedule.is_due(after(millis), Duration::ZERO, space, BUDGET), "{millis}");
        schedule.is_due_if_theirs(after(millis))
    };
    assert!(!asks(&mut schedule, 1019, gone));
    assert!(asks(&mut schedule, 1020, gone));
    // Not each time that the free space is checked.
    assert!(!asks(&mut schedule, 1039, gone));
    assert!(asks(&mut schedule, 1040, gone));
    // Nor if nothing is gone.
    assert!(!asks(&mut schedule, 1100, before));
    assert!(schedule.is_due(after(2000), Duration::ZERO, gone, BUDGET));
}
