//! Io dirs that outlive the sandboxes that use them: [images](crate::bounded) with a name each.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandbox_dirfd::DiskUsage;

use crate::bounded::BoundedDir;
use crate::bounded::image::{Found, KeptImage};

/// The kept images that this process has mounted, by path: sandboxes that use one at the same time
/// have a mount of it each.
#[derive(Debug, Default)]
pub struct KeptImages(Mutex<HashMap<PathBuf, Arc<Known>>>);

type Known = Mutex<Weak<KeptImage>>;

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
            return BoundedDir::of_kept(&image, size);
        }
        let (image, found) = KeptImage::open(path, size, templates)?;
        let image = Arc::new(image);
        let dir = BoundedDir::of_kept(&image, size)?;
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
