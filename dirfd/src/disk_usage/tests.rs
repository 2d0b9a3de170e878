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
        let counted_by = |is_xfs| DiskMeter { is_xfs }.bytes_of(&stat);
        assert_eq!(counted_by(true), bytes as u64, "{size} {allocated}");
        // On no other file system.
        let counted = if allocated >= size + 4096 { allocated } else { size.min(allocated) };
        assert_eq!(counted_by(false), counted as u64, "{size} {allocated}");
    }
}
