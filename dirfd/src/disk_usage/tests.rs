use super::*;

fn stat(size: i64, allocated: i64) -> Stat {
    let mut stat = rustix::fs::fstat(std::fs::File::open("/").unwrap()).unwrap();
    stat.st_size = size;
    stat.st_blocks = allocated / 512;
    stat.st_blksize = 4096;
    stat
}

#[test]
fn what_a_file_system_allocates_ahead_of_writes_does_not_count() {
    const MIB: i64 = 1 << 20;
    let counted = [
        // Within the last block, and holes.
        (1, 4096, 1),
        (MIB, 4096, 4096),
        // XFS allocates a power of two for a file that grows.
        (34 * MIB, 64 * MIB, 34 * MIB),
        (65 << 10, 128 << 10, 65 << 10),
        // Nothing but a reservation of space explains that.
        (4096, 64 << 10, 64 << 10),
        (33 * MIB, 99 * MIB, 33 * MIB),
        (34 * MIB, 103 * MIB, 103 * MIB),
        (0, MIB, MIB),
    ];
    for (size, allocated, bytes) in counted {
        let stat = stat(size, allocated);
        assert_eq!(bytes_of(&stat, true), bytes as u64, "{size} {allocated}");
        // On no other file system.
        let counted = if allocated >= size + 4096 { allocated } else { size.min(allocated) };
        assert_eq!(bytes_of(&stat, false), counted as u64, "{size} {allocated}");
    }
}

#[test]
fn meter_of_another_file_system_counts_files_by_themselves() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let opened = std::fs::File::open(directory.path()).unwrap();
    std::fs::write(directory.path().join("file"), vec![1; 10_000]).unwrap();
    let stat = rustix::fs::stat(directory.path().join("file")).unwrap();
    let mut meter = DiskMeter::new(&opened);
    assert_eq!([meter.bytes_of(&stat), meter.bytes_of(&stat)], [10_000; 2]);
}

#[test]
fn extent_counts_whole_and_once_and_what_is_in_none_counts_beside_it() {
    let mut met = HashSet::new();
    let mut counted = |file, extents: &[(u64, u64, u64)]| {
        let mut kept = Kept::default();
        for &(start, bytes, used) in extents {
            kept.add(Extent { start, bytes, used }, &mut met);
        }
        kept.allocated_with(file)
    };
    // No part of the file is on the disk yet.
    assert_eq!(counted(300, &[]), 300);
    // It was truncated, and goes on where the disk has nothing yet.
    assert_eq!(counted(150, &[(1, 1000, 100)]), 1050);
    // Two parts of an extent, and one that another file has: all but a new one are counted.
    assert_eq!(counted(160, &[(2, 200, 50), (2, 200, 50), (1, 1000, 60)]), 200);
    assert_eq!(counted(60, &[(1, 1000, 60)]), 0);
    // A compressed one takes less than the file uses of it.
    assert_eq!(counted(500, &[(3, 100, 500)]), 100);
}
