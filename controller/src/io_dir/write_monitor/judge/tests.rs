use super::*;

#[test]
fn growth_is_measured_against_what_was_there_before() {
    let usage = |bytes, entries| DiskUsage { bytes, entries };
    let most = usage(100, 10);
    let kind = |before, now, coverage| {
        over(before, now, coverage, most, "").map(|limit: ScriptError| limit.kind)
    };
    let before = usage(1000, 50);
    for (now, coverage, expected) in [
        (usage(1100, 60), ScanCoverage::All, None),
        (usage(1101, 50), ScanCoverage::All, Some(ErrorKind::WriteLimit)),
        (usage(1000, 61), ScanCoverage::Cut, Some(ErrorKind::TooManyFiles)),
        // Removing files frees space.
        (usage(0, 0), ScanCoverage::All, None),
        (usage(1000, 50), ScanCoverage::Readable, None),
        // What is too deep to be counted exceeds the limit.
        (usage(1000, 50), ScanCoverage::Deep, Some(ErrorKind::TooManyFiles)),
        (usage(1000, 50), ScanCoverage::Hidden, Some(ErrorKind::TooManyFiles)),
    ] {
        assert_eq!(kind(before, now, coverage), expected, "{now:?} {coverage:?}");
    }
}

#[test]
fn unlinked_files_of_others_are_not_counted_at_the_end() {
    let limits = Limits::default();
    let most = limits.max_write.as_u64();
    let named = DiskUsage { bytes: 1000, entries: 5 };
    let baseline = Baseline {
        usage: DiskUsage { bytes: 1000 + most, ..named },
        named,
        is_measured: true,
        first: named,
        space: None,
        reserve: DiskReserve::Auto,
        is_overlay: false,
    };
    let passed = |grown| {
        let now = DiskUsage { bytes: 1000 + grown, ..named };
        let reading = Reading::new(now, ScanCoverage::All, None);
        baseline.of_names().passed(&reading, &limits).map(|limit| limit.kind)
    };
    let missing = Reading { is_missing: true, ..Reading::new(named, ScanCoverage::All, None) };
    let limit = baseline.passed(&missing, &limits).unwrap();
    assert_eq!(limit.kind, ErrorKind::WriteLimit, "what is not measured is within no limit");
    assert_eq!(passed(most), None);
    assert_eq!(passed(most + 1), Some(ErrorKind::WriteLimit));
}

#[test]
fn unmeasurable_io_dir_is_judged_by_free_space() {
    const GIB: u64 = 1 << 30;
    let space = |bytes| {
        let size = 100 * GIB;
        Some(FreeSpace { bytes, available: bytes, inodes: 1, size, ..FreeSpace::default() })
    };
    let usage = DiskUsage { bytes: 1000, entries: 5 };
    let baseline = Baseline {
        usage,
        named: usage,
        is_measured: true,
        first: usage,
        space: space(10 * GIB),
        reserve: DiskReserve::Auto,
        is_overlay: false,
    };
    let limits = Limits::default();
    let passed = |unseen, was_unseen, unexplained, left| {
        let now = DiskUsage { bytes: 1000 + (5 << 20), ..usage };
        let reading = Reading {
            unseen,
            was_unseen,
            unexplained,
            ..Reading::new(now, ScanCoverage::All, space(left))
        };
        baseline.passed(&reading, &limits).map(|limit| (limit.kind, limit.message))
    };
    let kind = |unseen, was_unseen, unexplained| {
        passed(unseen, was_unseen, unexplained, 2 * GIB).map(|it| it.0)
    };
    // The free space alone does not show who used it.
    assert_eq!(kind(false, false, 8 * GIB), None);
    assert_eq!(kind(true, false, 8 * GIB), None);
    assert_eq!(kind(true, true, 8 * GIB), Some(ErrorKind::WriteLimit));
    assert_eq!(kind(true, true, 100 << 20), None);
    // The disk reserve must stay free, whichever process used the space.
    let (kind, message) = passed(false, false, 0, GIB - 1).unwrap();
    assert_eq!(kind, ErrorKind::DiskFull);
    assert_eq!(
        message,
        "the io dir's file system has less than 1.0 GiB left (limits.disk_reserve): 9GiB less \
             than at the beginning, of which the sandbox has taken at least 5MiB"
    );
}

/// Programs took all inodes of a file system: nothing was reserved of them.
#[test]
fn programs_leave_inodes_free() {
    let space = |available_inodes| FreeSpace {
        available: 1 << 40,
        available_inodes,
        most_inodes: 1_000_000,
        size: 100 << 30,
        ..FreeSpace::default()
    };
    let little = |inodes, reserve| too_little(space(inodes), reserve);
    assert_eq!(little(10_000, DiskReserve::Auto), None);
    let expected = "the io dir's file system has room for fewer than 10000 files left \
                    (limits.disk_reserve)";
    assert_eq!(little(9999, DiskReserve::Auto).as_deref(), Some(expected));
    assert_eq!(little(0, DiskReserve::Bytes(ByteSize::b(0))), None);
    // A file system that counts none.
    let uncounted = FreeSpace { most_inodes: 0, ..space(0) };
    assert_eq!(too_little(uncounted, DiskReserve::Auto), None);
}

#[test]
fn programs_are_stopped_for_a_long_scan_when_their_file_limit_is_reached() {
    let left = RemainingBudget {
        bytes: 50 << 20,
        most_bytes: 50 << 20,
        entries: 10_000,
        most_entries: 10_000,
    };
    let stops =
        |entries, millis, gone| is_worth_a_stop(entries, Duration::from_millis(millis), gone, left);
    assert!(stops(5000, 0, (50 << 20, 0)) && stops(0, 10, (50 << 20, 0)));
    assert!(!stops(4999, 9, (50 << 20, 0)), "the look is short");
    assert!(!stops(5000, 10, ((50 << 20) - 1, 9999)), "no limit is passed");
    // However few there were at the last look.
    assert!(stops(0, 0, (0, 10_000)));
}

#[test]
fn lost_space_is_unexplained_until_a_scan_finds_nothing_hidden() {
    let met = |bytes| DiskUsage { bytes, entries: 0 };
    let left = |bytes| Some(FreeSpace { bytes, ..FreeSpace::default() });
    let mut ledger = Ledger::new(&Reading::new(met(10), ScanCoverage::All, left(1000)));
    // In files that were found, and in others.
    assert_eq!(ledger.unexplained(met(110), left(900)), 0);
    assert_eq!(ledger.unexplained(met(10), left(900)), 100);
    assert_eq!(ledger.enter(met(10), [left(900); 2], false), 100);
    assert!(ledger.backs(met(110), left(900)) && !ledger.backs(met(111), left(900)));
    assert!(!ledger.backs(met(10), None));
    // Others free space meanwhile, which does not hide a later loss.
    assert_eq!(ledger.enter(met(10), [left(5000); 2], false), 0);
    assert_eq!(ledger.enter(met(10), [left(4900); 2], false), 100);
    // Nothing is hidden: others have used it.
    assert_eq!(ledger.enter(met(10), [left(4900); 2], true), 0);
    assert_eq!(ledger.unexplained(met(10), left(4800)), 100);
    // A file that was created or removed during the scan is no reason for suspicion.
    assert_eq!(ledger.enter(met(510), [left(4900), left(4400)], true), 0);
    assert_eq!(ledger.unexplained(met(510), left(4400)), 0);
    assert_eq!(ledger.unexplained(met(510), None), 0);
}

#[test]
fn calls_in_progress_may_exceed_the_budget_only_by_what_honest_ones_write() {
    let most = DiskUsage { bytes: 50 << 20, entries: 10 };
    let run = Bounds::new(DiskUsage::default(), most);
    let left = run.budget(DiskUsage { bytes: (40 << 20) + 1, entries: 0 });
    assert_eq!((left.bytes, left.entries), (10 << 20, 11));
    let too_much = (10 << 20) + OTHERS + 1;
    assert!(is_too_much(too_much, left) && !is_too_much(too_much - 1, left));
    assert!(run.reason_to_end().is_none());
    run.end();
    let reason = run.reason_to_end().unwrap();
    assert_eq!(reason.kind, ErrorKind::WriteLimit);
    assert!(reason.message.contains("50MiB"), "{}", reason.message);
}
