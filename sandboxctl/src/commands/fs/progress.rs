//! The progress of a transfer, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// A transfer that takes longer gets a progress bar.
const SLOW: Duration = Duration::from_millis(500);

/// Counts the bytes of a transfer. If it is slow, a bar on stderr shows the progress, and is
/// removed on drop.
#[derive(Debug)]
pub struct Progress {
    since: Instant,
    /// The number of transferred bytes.
    pub bytes: u64,
    /// None without a terminal. Dropped, it is cleared.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A transfer of `total` bytes, if known; displayed on a terminal.
    pub fn shown(output: &Output, total: Option<u64>) -> Self {
        let bar = output.shows_progress().then(|| bar(total));
        Self { since: Instant::now(), bytes: 0, bar }
    }

    /// Only counts.
    pub fn hidden() -> Self {
        Self { since: Instant::now(), bytes: 0, bar: None }
    }

    /// Adds transferred bytes.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(bar) = &self.bar {
            if bar.is_hidden() && self.since.elapsed() > SLOW {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            // Counts from the start, so that the speed is correct.
            bar.set_position(self.bytes);
        }
    }
}

/// Not drawn yet.
fn bar(total: Option<u64>) -> ProgressBar {
    // A test checks it: an invalid template would leave the default.
    let style = ProgressStyle::with_template(template(total))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()).with_style(style)
}

const fn template(total: Option<u64>) -> &'static str {
    match total {
        Some(_) => "{binary_bytes} of {binary_total_bytes} [{wide_bar}] {binary_bytes_per_sec}",
        None => "{binary_bytes} {spinner} {binary_bytes_per_sec}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_bar_template_is_valid() {
        for total in [Some(10), None] {
            assert!(ProgressStyle::with_template(template(total)).is_ok());
        }
        let mut progress = Progress::hidden();
        progress.add(3);
        progress.add(4);
        assert_eq!(progress.bytes, 7);
    }
}
