//! How promptly a filesystem answers.

use std::time::Duration;

use sandbox_dirfd::Locality;

/// Whether a filesystem may be asked on a thread that others wait for.
#[derive(Debug)]
pub(crate) struct ScanLatency {
    locality: Locality,
    /// Whether the last answer was immediate.
    is_prompt: bool,
}

impl ScanLatency {
    /// Longer than any answer from memory, but too short for others to notice.
    const AT_ONCE: Duration = Duration::from_millis(1);

    /// Without any measurement so far.
    pub const fn new(locality: Locality) -> Self {
        Self { locality, is_prompt: false }
    }

    pub fn is_inline(&self) -> bool {
        self.is_prompt && self.is_local()
    }

    pub fn is_local(&self) -> bool {
        self.locality == Locality::Local
    }

    /// Records how long the last answer took.
    pub fn answered(&mut self, cost: Duration) {
        self.is_prompt = cost < Self::AT_ONCE;
    }
}

#[cfg(test)]
mod tests;
