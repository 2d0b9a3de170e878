//! Commands of scripts: each runs on the script's thread, and its output is collected.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandbox_protocol::WireError;
use sandbox_protocol::message::ExecReply;

use super::poller::Poller;
use super::programs::Programs;
use super::stdio::no_descriptor;
use super::watch::{Console, Input, Output, Step, Task, Watch};
use crate::wake::Wake;

/// The number of a script's command in its own poller.
const SCRIPTS: u64 = 1;

impl Programs {
    /// Runs a command of a script until it ends. If no other one runs then, the proxy has no clients any
    /// more but those that still forward what was sent.
    ///
    /// # Errors
    ///
    /// Why it did not start; then its console was not used.
    pub fn run_for_script(
        self: &Arc<Self>,
        task: Task<'_>,
        console: &mut Collected,
    ) -> Result<ExecReply, WireError> {
        let wake = Arc::new(Wake::new().map_err(no_descriptor)?);
        let poller = Poller::new().map_err(no_descriptor)?;
        let stop = task.bounds.stop.clone();
        let reply = stop.while_waking(&wake, || {
            let mut watch = Watch::begin(self, task, console, &wake, &poller, SCRIPTS)?;
            loop {
                match watch.step(&poller) {
                    Step::Wait(until) => {
                        poller.wait(until).for_each(|(_, source)| watch.note(source));
                    }
                    Step::Over(result) => break result,
                }
            }
        })?;
        self.scripts_cpu.fetch_add(reply.cpu_ms, Ordering::Relaxed);
        Ok(reply)
    }
}

/// A command's console in memory: its input is complete from the start, and the beginning of its
/// output is kept.
#[derive(Debug)]
pub struct Collected {
    /// The kept bytes of each output.
    pub kept: [Vec<u8>; 2],
    /// Whether either output was longer.
    pub truncated: bool,
    most: usize,
    stdin: Vec<u8>,
}

impl Collected {
    /// A console that keeps at most this many bytes of each output.
    pub fn new(stdin: Vec<u8>, most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { kept: Default::default(), truncated: false, most, stdin }
    }
}

impl Console for &mut Collected {
    fn room(&self, _: Output) -> usize {
        usize::MAX
    }

    fn give(&mut self, output: Output, mut data: Vec<u8>) {
        let kept = &mut self.kept[output as usize];
        let room = self.most - kept.len();
        self.truncated |= data.len() > room;
        data.truncate(room);
        kept.append(&mut data);
    }

    fn input(&mut self) -> Input {
        match std::mem::take(&mut self.stdin) {
            stdin if stdin.is_empty() => Input::End,
            stdin => Input::Piece(stdin),
        }
    }
}
