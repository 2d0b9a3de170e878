use super::*;
use sandbox_api::Limits;

const GIB: u64 = 1 << 30;

fn usage(bytes: u64, entries: u64) -> DiskUsage {
    DiskUsage { bytes, entries }
}

fn reading(usage: DiskUsage, coverage: ScanCoverage) -> Reading {
    Reading { usage, coverage, space: None, is_missing: false }
}

fn baseline(usage: DiskUsage, most: Most) -> Baseline {
    Baseline {
        usage,
        coverage: ScanCoverage::All,
        first: usage,
        most,
        space: None,
        reserve: DiskReserve::Auto,
        is_overlay: false,
    }
}

#[test]
fn growth_is_measured_against_what_was_there_before() {
    let before = baseline(usage(1000, 50), Most { in_run: usage(100, 10), in_life: NEVER });
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
        let kind = before.passed(&reading(now, coverage)).map(|limit| limit.kind);
        assert_eq!(kind, expected, "{now:?} {coverage:?}");
    }
    let missing = Reading { is_missing: true, ..reading(before.usage, ScanCoverage::All) };
    let limit = before.passed(&missing).unwrap();
    assert_eq!(limit.kind, ErrorKind::WriteLimit, "what is not measured is within no limit");
}

#[test]
fn runs_together_may_write_what_one_may_and_a_gibibyte() {
    let limits = Limits::default();
    let most = Most::of(None, &limits);
    let before = Baseline { first: usage(0, 0), ..baseline(usage(GIB, 5), most) };
    assert!(before.passed(&reading(usage(GIB, 5), ScanCoverage::All)).is_none());
    let limit = before.passed(&reading(usage(GIB + 1, 5), ScanCoverage::All)).unwrap();
    assert!(limit.message.contains("life"), "{limit:?}");
}

#[test]
fn limits_that_the_kernel_enforces_are_not_watched_and_lower_ones_are() {
    let limits = Limits::default();
    let bound = usage(limits.max_write.as_u64(), limits.entries.get().into());
    assert_eq!(Most::of(Some(bound), &limits), Most { in_run: NEVER, in_life: NEVER });
    let lower = Limits { max_write: ByteSize::b(1000), ..limits };
    let in_run = DiskUsage { bytes: 1000, ..NEVER };
    assert_eq!(Most::of(Some(bound), &lower), Most { in_run, in_life: NEVER });
}

#[test]
fn disk_reserve_must_stay_free_whichever_process_used_the_space() {
    let space = |bytes| {
        let size = 100 * GIB;
        Some(FreeSpace { bytes, available: bytes, inodes: 1, size, ..FreeSpace::default() })
    };
    let before = Baseline {
        space: space(10 * GIB),
        ..baseline(usage(1000, 5), Most::of(None, &Limits::default()))
    };
    let now = usage(1000 + (5 << 20), 5);
    let passed =
        |left| before.passed(&Reading { space: space(left), ..reading(now, ScanCoverage::All) });
    // The free space alone does not show who used it.
    assert!(passed(2 * GIB).is_none());
    let limit = passed(GIB - 1).unwrap();
    assert_eq!(limit.kind, ErrorKind::DiskFull);
    assert_eq!(
        limit.message,
        "the io dir's file system has less than 1.0 GiB left (limits.disk_reserve): 9GiB less \
             than at the beginning, of which the sandbox has taken at least 5MiB"
    );
}

/// Programs took all inodes of a file system: nothing was reserved of them.
#[test]
fn programs_leave_inodes_free() {
    let space = |inodes| FreeSpace {
        available: 1 << 40,
        inodes,
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
