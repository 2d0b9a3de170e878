//! Empty ext4 images, made by `mke2fs` once for each size, and copied for each use.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use sandbox_dirfd::{DiskUsage, create_private_dir, next_data};

/// Where `mke2fs` may be. No search path is used: what it makes, the kernel mounts.
const MKE2FS: [&str; 4] =
    ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs"];
/// Without a journal: an image is never used again after a crash. All else that a current ext4 has
/// and that every kernel since Linux 4.18 mounts.
const FEATURES: &str = "none,sparse_super,large_file,huge_file,dir_nlink,dir_index,filetype,\
                        extent,flex_bg,extra_isize,ext_attr,metadata_csum,64bit";
const BLOCK: u64 = 4096;
const INODE: u64 = 256;
const BLOCKS_PER_GROUP: u64 = 32_768;
/// Inodes that the file system itself uses.
const RESERVED_INODES: u64 = 11;
/// Blocks for the file system's own lists of a few large files.
const SPARE_BLOCKS: u64 = 64;
/// How often to correct the size of the image.
const TRIES: usize = 6;
/// Changes with anything above: a template of another version is not used.
const VERSION: u32 = 1;
/// How much of a template is copied at once.
const PIECE_BYTES: usize = 256 << 10;
/// How many templates are kept.
const MOST_TEMPLATES: usize = 64;

/// Creates an image without a name, in which so much fits, and no more: of bytes in whole blocks, and
/// of entries up to a multiple of 16 for each 128 MiB. It is gone when nothing has it open.
pub fn image(size: DiskUsage, directory: &Path, templates: &Path) -> io::Result<OwnedFd> {
    let image = unnamed(directory)?;
    let template = template(size, templates)?;
    let length = template.metadata()?.len();
    image.set_len(length)?;
    let (mut at, mut piece) = (0, vec![0; PIECE_BYTES]);
    while let Some(data) = next_data(template.as_fd(), at, length)? {
        let count = (data.end - data.start).min(PIECE_BYTES as u64);
        let piece = &mut piece[..count as usize];
        template.read_exact_at(piece, data.start)?;
        // Where the file system of the template does not report holes.
        if piece.iter().any(|byte| *byte != 0) {
            image.write_all_at(piece, data.start)?;
        }
        at = data.start + count;
    }
    Ok(image.into())
}

/// Opens the template of this size, creating it if it is missing.
fn template(size: DiskUsage, templates: &Path) -> io::Result<File> {
    // The kernel mounts what is there: only this user may have made it.
    create_private_dir(templates)?;
    let path = templates.join(format!("ext4-{VERSION}-{}-{}", size.bytes, size.entries));
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    remove_oldest(templates);
    let made = make(size, templates)?;
    // It has its name only when it is complete. Another process may have been faster.
    match linkat(CWD, path_of(&made), CWD, &path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => File::open(&path),
        Err(errno) => Err(errno.into()),
    }
}

/// Keeps the number of templates bounded: callers may ask for any size.
fn remove_oldest(templates: &Path) {
    let entries = fs::read_dir(templates).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    all.sort();
    let surplus = (all.len() + 1).saturating_sub(MOST_TEMPLATES);
    for (_, path) in &all[..surplus] {
        _ = fs::remove_file(path);
    }
}

fn make(size: DiskUsage, templates: &Path) -> io::Result<File> {
    let data = size.bytes.div_ceil(BLOCK).saturating_add(SPARE_BLOCKS);
    let mut inodes = size.entries.saturating_add(RESERVED_INODES);
    let mut blocks = first_guess(data, inodes);
    for _ in 0..TRIES {
        let file = unnamed(templates)?;
        file.set_len(blocks.saturating_mul(BLOCK))?;
        format(&file, blocks, inodes)?;
        let free = Free::of(&file)?;
        let missing = data.saturating_sub(free.usable(blocks));
        let missing_inodes = size.entries.saturating_sub(free.inodes);
        if (missing, missing_inodes) == (0, 0) {
            return Ok(file);
        }
        // More blocks may need more of the file system's own.
        blocks = blocks.saturating_add(missing + missing / 32);
        inodes = inodes.saturating_add(missing_inodes);
    }
    Err(io::Error::other("mke2fs makes no file system of this size"))
}

/// The number of blocks of an image in which so many fit. Pure.
fn first_guess(data: u64, inodes: u64) -> u64 {
    let tables = inodes.saturating_mul(INODE).div_ceil(BLOCK);
    let blocks = data.saturating_add(tables);
    let groups = blocks.div_ceil(BLOCKS_PER_GROUP);
    // Two bitmaps for each group, and the descriptors of all.
    let blocks = blocks.saturating_add(groups.saturating_mul(3));
    blocks.saturating_add((blocks / 49).min(WITHHELD))
}

/// What the kernel keeps for writes in progress: 2 %, and at most so many blocks.
const WITHHELD: u64 = 4096;

/// What is free in an image, as its superblock says.
struct Free {
    blocks: u64,
    inodes: u64,
}

impl Free {
    fn of(image: &File) -> io::Result<Self> {
        // `s_free_blocks_count_lo`, `s_free_inodes_count` and `s_free_blocks_count_hi`.
        let field = |at: u64| {
            let mut bytes = [0; 4];
            image.read_exact_at(&mut bytes, 1024 + at)?;
            io::Result::Ok(u64::from(u32::from_le_bytes(bytes)))
        };
        Ok(Self { blocks: field(0x158)? << 32 | field(0x0c)?, inodes: field(0x10)? })
    }

    /// How many blocks can be used, of an image of so many.
    fn usable(&self, blocks: u64) -> u64 {
        self.blocks.saturating_sub((blocks / 50).min(WITHHELD))
    }
}

fn format(image: &File, blocks: u64, inodes: u64) -> io::Result<()> {
    let program = MKE2FS.iter().find(|path| Path::new(path).exists());
    let program = program.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "mke2fs (of e2fsprogs) is not installed")
    })?;
    let made = Command::new(program)
        .env_clear()
        // Nor does a file of the machine say what it makes.
        .env("MKE2FS_CONFIG", "/dev/null")
        .args(["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-U", "clear", "-O", FEATURES])
        .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-N", &inodes.to_string()])
        .arg(path_of(image))
        .arg(blocks.to_string())
        .stdin(Stdio::null())
        .output()?;
    if made.status.success() {
        return Ok(());
    }
    tracing::debug!(stderr = %String::from_utf8_lossy(&made.stderr), "mke2fs failed");
    Err(io::Error::other(format!("mke2fs failed ({})", made.status)))
}

/// A file that has no name, and so is gone however this process ends.
fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(open(directory, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// A path of an open file for other processes.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bytes: u64, entries: u64) -> DiskUsage {
        DiskUsage { bytes, entries }
    }

    #[test]
    fn an_image_takes_little_of_the_disk_and_has_no_name() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (images, templates) = (dir.path().join("images"), dir.path().join("templates"));
        fs::create_dir(&images).unwrap();
        for size in [size(0, 1), size(50 << 20, 10_000), size(1 << 30, 100_000)] {
            let image = File::from(image(size, &images, &templates).unwrap());
            let metadata = image.metadata().unwrap();
            assert!(metadata.len() >= size.bytes && metadata.blocks() * 512 < 2 << 20, "{size:?}");
            let free = Free::of(&image).unwrap();
            assert!(free.inodes >= size.entries, "{size:?}");
            let blocks = free.usable(metadata.len() / BLOCK);
            let wanted = size.bytes.div_ceil(BLOCK);
            let most = wanted + SPARE_BLOCKS + wanted / 16 + 64;
            assert!((wanted..most).contains(&blocks), "{size:?}: {blocks}");
        }
        assert_eq!(fs::read_dir(&images).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&templates).unwrap().count(), 3);
    }

    #[test]
    fn the_number_of_templates_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..MOST_TEMPLATES + 5 {
            fs::write(dir.path().join(index.to_string()), "").unwrap();
        }
        remove_oldest(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), MOST_TEMPLATES - 1);
    }
}
