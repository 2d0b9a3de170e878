//! Prints how the preparation of an image goes on: on a terminal in one line that changes, else in a
//! line from time to time.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;
use crate::render::escaped_line;

/// How often a line is printed where stderr is not a terminal.
const INTERVAL: Duration = Duration::from_secs(10);

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
