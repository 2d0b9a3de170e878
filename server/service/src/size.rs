//! The sizes of directories that change: each is measured again when it may be another one, and that
//! costs a small part of the time, however large it is and however often it is asked for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A directory is measured again after so many times as long as the last time took.
const PAUSE: u32 = 10;

/// The size of a directory.
#[derive(Debug, Default)]
pub(crate) struct Size(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// When it was last measured.
    bytes: u64,
    /// Nothing has changed since it was measured.
    is_current: bool,
    /// Before this it is not measured again.
    not_before: Option<Instant>,
}

impl Size {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It may be another one now.
    pub fn changed(&self) {
        self.lock().is_current = false;
    }

    /// The bytes by `measure`, or those of the last time. While the directory is in use it changes all
    /// the time.
    pub async fn bytes(
        &self,
        is_in_use: bool,
        measure: impl FnOnce() -> u64 + Send + 'static,
    ) -> u64 {
        let since = Instant::now();
        {
            let mut measured = self.lock();
            let is_due = measured.not_before.is_none_or(|at| since >= at);
            if !is_due || (measured.is_current && !is_in_use) {
                return measured.bytes;
            }
            // A use that ends meanwhile makes it another one again.
            measured.is_current = true;
        }
        let bytes = crate::blocking(move || Ok(measure())).await;
        let mut measured = self.lock();
        measured.bytes = bytes.unwrap_or(measured.bytes);
        measured.not_before = Some(Instant::now() + since.elapsed() * PAUSE);
        measured.bytes
    }
}
