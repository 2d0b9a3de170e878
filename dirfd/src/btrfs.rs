//! Disk space on Btrfs that sizes and block counts do not show. Btrfs frees an extent only once no
//! block of it is in use: a file that was written and then truncated keeps the whole extent. And
//! the free space of the file system is that of its last commit, up to 30 s ago.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Result;
use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};

/// The file system's magic number.
pub const MAGIC: u32 = 0x9123_683e;

/// The type of items that describe a file's extents.
const EXTENT_DATA: u32 = 108;
/// The length of such an item, but for extents that are stored in the item itself.
const ITEM: usize = 53;
/// The length of the header in front of each item.
const HEADER: usize = 32;
/// `BTRFS_IOC_TREE_SEARCH`.
const TREE_SEARCH: Opcode = opcode::read_write::<Search>(0x94, 17);
/// `BTRFS_IOC_FS_INFO`.
const FS_INFO: Opcode = opcode::read::<Info>(0x94, 31);
/// `BTRFS_IOC_START_SYNC`.
const START_SYNC: Opcode = opcode::read::<u64>(0x94, 24);
/// Lists all mounted Btrfs file systems.
const ALL: &str = "/sys/fs/btrfs";

/// Where a search begins and ends, and how many items it has found.
#[repr(C)]
#[derive(Debug, Default)]
struct Key {
    tree: u64,
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    types: [u32; 2],
    items: u32,
    unused: u32,
    unused_too: [u64; 4],
}

#[repr(C)]
#[derive(Debug)]
struct Search {
    key: Key,
    found: [u8; 4096 - size_of::<Key>()],
}

/// An extent that a file uses a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it is: its identity.
    pub start: u64,
    /// The bytes that the extent occupies, including unused blocks.
    pub bytes: u64,
    /// How much the file uses of it, before compression.
    pub used: u64,
}

/// The kernel's information about a file system.
#[repr(C)]
struct Info {
    most_id: u64,
    devices: u64,
    uuid: [u8; 16],
    others: [u8; 992],
}

/// Opens a directory that may have been opened as a path alone, which answers no request.
pub fn open(directory: impl AsFd) -> Result<OwnedFd> {
    openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Space for data that is taken since the last commit: none of it is in the answer of `statfs` yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uncommitted {
    /// Bytes on the disk, also those that were removed or overwritten meanwhile.
    pub written: u64,
    /// Bytes that are to be written there.
    pub to_write: u64,
}

/// The space taken since the last commit; zero where the kernel does not report it.
pub fn uncommitted(directory: impl AsFd) -> Uncommitted {
    let place = open(directory).ok().and_then(|opened| {
        #[expect(unsafe_code, reason = "no library has this request")]
        // SAFETY: the request writes a structure of this layout and length, and no other.
        let info: Info = unsafe { ioctl(&opened, Getter::<FS_INFO, _>::new()) }.ok()?;
        Some(format!("{ALL}/{}/allocation/data", name(info.uuid)))
    });
    let count = |counter| {
        let text = place.as_ref().and_then(|it| fs::read_to_string(format!("{it}/{counter}")).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    // In this order: what is written between the two is missed, not counted twice.
    Uncommitted { written: count("bytes_reserved"), to_write: count("bytes_may_use") }
}

/// Begins a commit, if the directory is on Btrfs: without one, what was removed or overwritten is not
/// free for up to 30 s. It takes milliseconds, and does not write what is to be written.
pub fn free_removed(directory: impl AsFd) {
    if let Ok(opened) = open(directory) {
        #[expect(unsafe_code, reason = "no library has this request")]
        // SAFETY: the request writes a number, and nothing else.
        let _begun = unsafe { ioctl(opened, Getter::<START_SYNC, u64>::new()) };
    }
}

/// A file system's name there.
fn name(uuid: [u8; 16]) -> String {
    let number = format!("{:032x}", u128::from_be_bytes(uuid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    parts.map(|part| &number[part]).join("-")
}

/// Calls `see` with the extents of a file for as long as that returns true. The file is on the
/// subvolume of `there`; a hole or what is not written to the disk yet has none.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN`, and `ENOTTY` on other file systems.
pub fn extents(there: impl AsFd, inode: u64, mut see: impl FnMut(Extent) -> bool) -> Result<()> {
    let mut next = Some(0);
    while let Some(from) = next {
        let key = Key {
            objects: [inode; 2],
            offsets: [from, u64::MAX],
            transactions: [0, u64::MAX],
            types: [EXTENT_DATA; 2],
            items: u32::MAX,
            ..Key::default()
        };
        let mut search = Search { key, found: [0; _] };
        #[expect(unsafe_code, reason = "no library has this request")]
        // SAFETY: the request reads and writes a structure of this layout and length, and no other.
        unsafe {
            ioctl(&there, Updater::<TREE_SEARCH, _>::new(&mut search))?;
        }
        next = read(&search.found, search.key.items, &mut see);
    }
    Ok(())
}

/// Reads the items that a search has found. Returns where in the file the next search begins, if there
/// may be more.
fn read(found: &[u8], items: u32, see: &mut impl FnMut(Extent) -> bool) -> Option<u64> {
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 8).and_then(|it| it.try_into().ok()).map(u64::from_ne_bytes)
    };
    let (mut rest, mut next) = (found, None);
    for _ in 0..items {
        let (header, items) = rest.split_at_checked(HEADER)?;
        let length = u32::from_ne_bytes(header.get(28..)?.try_into().ok()?);
        let (item, others) = items.split_at_checked(length as usize)?;
        rest = others;
        next = number(header, 16)?.checked_add(1);
        // On the disk numbers are little-endian. A hole has no start.
        let [start, bytes, used] = [21, 29, 45].map(|at| number(item, at).map(u64::from_le));
        if let (Some(start @ 1..), Some(bytes), Some(used)) = (start, bytes, used)
            && item.len() == ITEM
            && !see(Extent { start, bytes, used })
        {
            return None;
        }
    }
    // A further item would not have fitted.
    next.filter(|_| rest.len() < HEADER + ITEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut item = Vec::new();
        for number in [7, 257, offset] {
            item.extend(u64::to_ne_bytes(number));
        }
        item.extend(u32::to_ne_bytes(EXTENT_DATA));
        item.extend(u32::to_ne_bytes(u32::try_from(bytes.len()).unwrap()));
        item.extend(bytes);
        item
    }

    fn extent(start: u64, bytes: u64, used: u64) -> Vec<u8> {
        let mut item = vec![0; ITEM];
        item[20] = 1;
        item[21..29].copy_from_slice(&start.to_le_bytes());
        item[29..37].copy_from_slice(&bytes.to_le_bytes());
        item[45..].copy_from_slice(&used.to_le_bytes());
        item
    }

    fn read_all(found: &[u8], items: u32) -> (Vec<Extent>, Option<u64>) {
        let mut all = Vec::new();
        let next = read(found, items, &mut |extent| {
            all.push(extent);
            true
        });
        (all, next)
    }

    #[test]
    fn extents_are_reported_whole_without_holes_and_inline_ones() {
        let inline = [vec![0; 20], vec![0], vec![b'x'; 40]].concat();
        let mut found = [
            item(0, &extent(4096, 40 << 20, 8192)),
            item(8192, &extent(0, 1 << 20, 4096)),
            item(0, &inline),
        ]
        .concat();
        found.resize(3992, 0);
        let expected = vec![Extent { start: 4096, bytes: 40 << 20, used: 8192 }];
        assert_eq!(read_all(&found, 3), (expected, None));
    }

    #[test]
    fn full_answer_is_followed_by_a_search_behind_its_last_item() {
        let items = (0..46).map(|at| item(at * 4096, &extent(at + 1, 4096, 4096)));
        let mut found: Vec<u8> = items.flatten().collect();
        found.resize(3992, 0);
        let (all, next) = read_all(&found, 46);
        assert_eq!((all.len(), next), (46, Some(45 * 4096 + 1)));
    }

    #[test]
    fn answer_that_is_cut_off_is_not_read_beyond_its_end() {
        let found = item(0, &extent(4096, 4096, 4096));
        for length in 0..found.len() {
            assert_eq!(read_all(&found[..length], 1), (vec![], None), "{length}");
        }
    }

    #[test]
    fn other_file_systems_report_nothing() {
        let memory = fs::File::open("/dev/shm").unwrap();
        assert!(extents(&memory, 1, |_| true).is_err());
        assert_eq!(uncommitted(&memory), Uncommitted { written: 0, to_write: 0 });
    }

    #[test]
    fn file_system_is_named_as_its_uuid_is_written() {
        let uuid = 0x5f34_b22f_a570_4fe8_aac1_7584_4d1f_0200_u128.to_be_bytes();
        assert_eq!(name(uuid), "5f34b22f-a570-4fe8-aac1-75844d1f0200");
    }
}
