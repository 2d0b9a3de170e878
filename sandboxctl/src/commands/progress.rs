//! The progress of a transfer, on a terminal; and that of the preparation of an image: on a terminal in one
//! line that changes, else in a line from time to time.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;
use crate::render::escaped_line;

/// A transfer that takes longer gets a progress bar.
const SLOW: Duration = Duration::from_millis(500);
/// How often a line is printed where stderr is not a terminal.
const INTERVAL: Duration = Duration::from_secs(10);

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

/// The progress of a preparation. Dropping it clears its line.
pub struct PrepareProgress<'a> {
    output: &'a Output,
    /// On a terminal, from the first step on. Dropped, it is cleared.
    bar: Option<ProgressBar>,
    printed: Instant,
}

impl<'a> PrepareProgress<'a> {
    pub fn new(output: &'a Output) -> Self {
        Self { output, bar: None, printed: Instant::now() }
    }

    /// The current step, which may have text of others.
    pub fn step(&mut self, text: &str) {
        if self.output.shows_progress() {
            let bar = self.bar.get_or_insert_with(spinner);
            bar.set_message(escaped_line(text).into_owned());
            bar.tick();
        } else if self.printed.elapsed() >= INTERVAL {
            self.output.notice(text);
            self.printed = Instant::now();
        }
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_msg}").expect("the template is constant");
    bar.with_style(style)
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
