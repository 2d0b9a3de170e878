//! Empty ext4 images, made by `mke2fs` once for each size and life, and copied for each use.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use sandbox_dirfd::{DiskUsage, create_private_dir, next_data};

/// Where the programs of e2fsprogs may be. No search path is used: what they make, the kernel mounts.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
/// All that a current ext4 has and that every kernel since Linux 4.18 mounts.
const FEATURES: &str = "none,sparse_super,large_file,huge_file,dir_nlink,dir_index,filetype,\
                        extent,flex_bg,extra_isize,ext_attr,metadata_csum,64bit";
/// The size of a journal in MiB: the least that there is.
const JOURNAL: u32 = 4;
/// From this many blocks on, an image has a journal if it is kept.
const LEAST_WITH_JOURNAL: u64 = 8192;
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
/// How long an image lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// As long as its sandbox. It is never used again after a crash, and needs no journal.
    OneSandbox,
    /// It is kept.
    Kept,
}

/// How much of a template is copied at once.
const PIECE_BYTES: usize = 256 << 10;
/// How many templates are kept.
const MOST_TEMPLATES: usize = 64;

/// Creates an image without a name, in which so much fits, and no more: of bytes in whole blocks, and
/// of entries up to a multiple of 16 for each 128 MiB. It is gone when nothing has it open.
pub fn image(
    size: DiskUsage,
    life: Life,
    directory: &Path,
    templates: &Path,
) -> io::Result<OwnedFd> {
    let image = unnamed(directory)?;
    let template = template(size, life, templates)?;
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
fn template(size: DiskUsage, life: Life, templates: &Path) -> io::Result<File> {
    // The kernel mounts what is there: only this user may have made it.
    create_private_dir(templates)?;
    let kept = if life == Life::Kept { "-kept" } else { "" };
    let DiskUsage { bytes, entries } = size;
    let path = templates.join(format!("ext4-{VERSION}-{bytes}-{entries}{kept}"));
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    remove_oldest(templates);
    let made = make(size, life, templates)?;
    // It has its name only when it is complete. Another process may have been faster.
    match name(&made, &path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => File::open(&path),
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

fn make(size: DiskUsage, life: Life, templates: &Path) -> io::Result<File> {
    let data = size.bytes.div_ceil(BLOCK).saturating_add(SPARE_BLOCKS);
    let mut inodes = size.entries.saturating_add(RESERVED_INODES);
    let has_journal = life == Life::Kept && data >= LEAST_WITH_JOURNAL;
    let mut blocks = first_guess(data, inodes);
    for _ in 0..TRIES {
        let file = unnamed(templates)?;
        file.set_len(blocks.saturating_mul(BLOCK))?;
        format(&file, blocks, inodes, has_journal)?;
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
pub(super) const WITHHELD: u64 = 4096;

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

fn format(image: &File, blocks: u64, inodes: u64, has_journal: bool) -> io::Result<()> {
    let mut mke2fs = program("mke2fs", image)?;
    if has_journal {
        mke2fs.args(["-J", &format!("size={JOURNAL}"), "-O", &format!("{FEATURES},has_journal")]);
    } else {
        mke2fs.args(["-O", FEATURES]);
    }
    let made = mke2fs
        .args(["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-U", "clear"])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"])
        .args(["-N", &inodes.to_string()])
        .args([ITS_IMAGE, &blocks.to_string()])
        .output()?;
    if made.status.success() {
        return Ok(());
    }
    tracing::debug!(stderr = %String::from_utf8_lossy(&made.stderr), "mke2fs failed");
    Err(io::Error::other(format!("mke2fs failed ({})", made.status)))
}

/// The image of a [`program`] as it sees it.
const ITS_IMAGE: &str = "/proc/self/fd/0";

/// A program of e2fsprogs for an image, which no file or variable of the machine configures.
fn program(name: &str, image: &File) -> io::Result<Command> {
    let mut paths = PROGRAMS.iter().map(|directory| Path::new(directory).join(name));
    let path = paths.find(|path| path.exists()).ok_or_else(|| {
        let missing = format!("{name} (of e2fsprogs) is not installed");
        io::Error::new(io::ErrorKind::NotFound, missing)
    })?;
    let mut program = Command::new(path);
    program.env_clear().env("MKE2FS_CONFIG", "/dev/null").env("E2FSCK_CONFIG", "/dev/null");
    with_image(program, image)
}

/// The image is locked until the program ends, also if this process ends before.
fn with_image(mut program: Command, image: &File) -> io::Result<Command> {
    program.stdin(image.try_clone()?);
    Ok(program)
}

/// Repairs an image if it was not unmounted. Returns whether anything was changed.
pub fn repair(image: &File) -> io::Result<bool> {
    let ended = program("e2fsck", image)?.args(["-p", ITS_IMAGE]).output()?;
    match ended.status.code() {
        Some(0) => Ok(false),
        Some(1 | 2) => Ok(true),
        _ => {
            let said = String::from_utf8_lossy(&ended.stdout);
            tracing::warn!(said = said.trim(), "an image is damaged");
            Err(io::Error::other(format!("`e2fsck -p` cannot repair it ({})", ended.status)))
        }
    }
}

/// Names the step that failed.
pub fn at(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot make {what}: {error}"))
}

/// Gives an unnamed file a name that nothing has.
pub fn name(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
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
        let sizes = [size(0, 1), size(50 << 20, 10_000), size(1 << 30, 100_000)];
        let all = sizes.map(|size| [(size, Life::OneSandbox), (size, Life::Kept)]);
        for (size, life) in all.into_iter().flatten() {
            let image = File::from(image(size, life, &images, &templates).unwrap());
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
        assert_eq!(fs::read_dir(&templates).unwrap().count(), 6);
    }

    #[test]
    fn image_is_locked_until_its_program_ends() {
        use rustix::fs::{FlockOperation, flock};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let image = File::create_new(&path).unwrap();
        lock(&image).unwrap();
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        let mut program = with_image(sleep, &image).unwrap();
        let mut running = program.spawn().unwrap();
        // As if this process were killed.
        drop((program, image));
        let again = File::open(&path).unwrap();
        assert_eq!(lock(&again), Err(rustix::io::Errno::WOULDBLOCK));
        running.kill().unwrap();
        running.wait().unwrap();
        lock(&again).unwrap();
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
