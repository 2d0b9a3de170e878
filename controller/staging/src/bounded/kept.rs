//! Images that are kept: each is a file with a name, whose files outlive the sandboxes that use it.
//!
//! An image is locked while it is mounted. The lock belongs to its open file, and the kernel holds
//! that for the loop device: it is released when nothing has the image mounted any more, however this
//! process ends. A new image has no name before a container has it mounted.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstatvfs, open};
use rustix::io::Errno;
use sandbox_dirfd::DiskUsage;

use super::template::{self, Life, WITHHELD};
use super::{BoundedDir, at, loop_device, open_directory};

/// Space that is deleted is given back to the disk.
const FLAGS: [&str; 2] = ["noinit_itable", "discard"];
/// How long to wait for the last container of an image to be gone, and how often to look.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// An image holds at most this much more than it was made for, and a sixteenth.
const SLACK: u64 = 4 << 20;

/// The kept images that this process has mounted, by path: sandboxes that use one at the same time
/// have a mount of it each.
#[derive(Debug, Default)]
pub struct KeptImages(Mutex<HashMap<PathBuf, Arc<Known>>>);

type Known = Mutex<Weak<KeptImage>>;

/// An image that is attached to a loop device.
#[derive(Debug)]
pub(super) struct KeptImage {
    path: PathBuf,
    /// Locked.
    file: File,
    device: Arc<OwnedFd>,
    has_name: Mutex<bool>,
}

/// Whether the content of an image was changed when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    New,
    Clean,
    Repaired,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeptImages {
    /// Mounts the image at `path`; if there is none, a new one of this size for `owner`, which has its
    /// name once it is [kept](BoundedDir::keep_image). One that was not unmounted is repaired. Its
    /// directory must admit only this user.
    ///
    /// # Errors
    ///
    /// As of [`BoundedDir::on_disk`]; if it cannot be repaired; if another process has it mounted.
    pub fn open(
        &self,
        path: &Path,
        size: DiskUsage,
        owner: Option<(u32, u32)>,
        templates: &Path,
    ) -> io::Result<BoundedDir> {
        let known = self.known(path);
        let mut known = lock(&known);
        if let Some(image) = known.upgrade() {
            return image.mount(size);
        }
        let (image, found) = KeptImage::open(path, size, templates)?;
        let image = Arc::new(image);
        let dir = image.mount(size)?;
        match found {
            Found::New => dir.set_up(owner)?,
            Found::Repaired => dir.remove_lost_and_found()?,
            Found::Clean => {}
        }
        *known = Arc::downgrade(&image);
        Ok(dir)
    }

    /// Others that open the same image wait for its lock.
    fn known(&self, path: &Path) -> Arc<Known> {
        let mut all = lock(&self.0);
        all.retain(|_, known| Arc::strong_count(known) > 1 || lock(known).strong_count() > 0);
        all.entry(path.to_owned()).or_default().clone()
    }
}

impl KeptImage {
    fn open(path: &Path, size: DiskUsage, templates: &Path) -> io::Result<(Self, Found)> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (file, found) = match open(path, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                lock_image(&file)?;
                let is_changed = template::repair(&file)?;
                if is_changed {
                    tracing::warn!(path = %path.display(), "an image was repaired");
                }
                (file, if is_changed { Found::Repaired } else { Found::Clean })
            }
            Err(Errno::NOENT) => {
                let image = template::image(size, Life::Kept, parent(path), templates);
                let file = File::from(image.map_err(at("an image"))?);
                lock_image(&file)?;
                (file, Found::New)
            }
            Err(errno) => return Err(errno.into()),
        };
        let device = loop_device::attach(&file).map_err(at("a loop device"))?;
        let has_name = Mutex::new(found != Found::New);
        Ok((Self { path: path.to_owned(), file, device: Arc::new(device), has_name }, found))
    }

    /// A mount of it, for one sandbox.
    fn mount(self: &Arc<Self>, wanted: DiskUsage) -> io::Result<BoundedDir> {
        let disk = open_directory(parent(&self.path))?;
        let dir = BoundedDir::of_device(&self.device, disk, wanted, &FLAGS)?;
        let stat = fstatvfs(dir.files())?;
        let blocks = stat.f_blocks - (stat.f_blocks / 50).min(WITHHELD);
        let bytes = blocks.saturating_mul(stat.f_frsize);
        let most = wanted.bytes.saturating_add(wanted.bytes / 16).saturating_add(SLACK);
        let bytes = if (wanted.bytes..most).contains(&bytes) { wanted.bytes } else { bytes };
        let size = DiskUsage { bytes, ..dir.size };
        Ok(BoundedDir { size, kept: Some(self.clone()), ..dir })
    }

    /// Gives it its name, if it has none yet.
    pub fn name(&self) -> io::Result<()> {
        let mut has_name = lock(&self.has_name);
        if !*has_name {
            template::name(&self.file, &self.path)?;
            *has_name = true;
        }
        Ok(())
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// The last container that had it mounted may be ending.
fn lock_image(file: &File) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if since.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let busy = "another process, or a container that is left, has it mounted";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, busy));
            }
            locked => return Ok(locked?),
        }
    }
}
