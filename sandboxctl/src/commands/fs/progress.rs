//! How far a transfer is, for whoever sits at a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// A transfer that takes longer is worth a bar.
const SLOW: Duration = Duration::from_millis(500);

/// Counts the bytes of a transfer. Where it takes its time a bar on stderr shows them, which goes
/// away with it.
#[derive(Debug)]
pub struct Progress {
    since: Instant,
    bytes: u64,
    /// None where there is no one to see it.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of `total` bytes, where that is known; shown where there is someone to see it.
    pub fn shown(output: &Output, total: Option<u64>) -> Self {
        let bar = output.shows_progress().then(|| bar(total));
        Self { since: Instant::now(), bytes: 0, bar }
    }

    /// Only counts.
    pub fn hidden() -> Self {
        Self { since: Instant::now(), bytes: 0, bar: None }
    }

    /// So many more are through.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(bar) = &self.bar {
            if bar.is_hidden() && self.since.elapsed() > SLOW {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            // From the start on, so that it knows how fast it goes.
            bar.set_position(self.bytes);
        }
    }

    /// How many are through.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Not drawn yet.
fn bar(total: Option<u64>) -> ProgressBar {
    // Checked by a test: a template that is none would leave the default.
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
        assert_eq!(progress.bytes(), 7);
    }
}
