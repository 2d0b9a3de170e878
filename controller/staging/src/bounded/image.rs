//! The image of a kept io dir: a file with a name.
//!
//! It is locked while it is mounted. The lock belongs to its open file, and the kernel holds that for the
//! loop device: it is released when nothing has the image mounted any more, however this process ends.
//! A new image has no name before a container has it mounted.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use sandbox_dirfd::DiskUsage;

use super::loop_device;
use super::template::{self, Life, at};

/// How long to wait for the last container of an image to be gone, and how often to look.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// An image that is attached to a loop device.
#[derive(Debug)]
pub(crate) struct KeptImage {
    path: PathBuf,
    /// Locked.
    file: File,
    device: Arc<OwnedFd>,
    has_name: Mutex<bool>,
}

/// What an image was when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    New,
    Clean,
    Repaired,
}

impl KeptImage {
    pub fn open(path: &Path, size: DiskUsage, templates: &Path) -> io::Result<(Self, Found)> {
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

    /// The device that it is mounted from.
    pub const fn device(&self) -> &Arc<OwnedFd> {
        &self.device
    }

    /// The directory that it is in.
    pub fn directory(&self) -> &Path {
        parent(&self.path)
    }

    /// Gives it its name, if it has none yet.
    pub fn name(&self) -> io::Result<()> {
        let mut has_name = self.has_name.lock().unwrap_or_else(PoisonError::into_inner);
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
