//! P6's other half: files of 10 MiB and of 1 GiB go through streams, and what the agent and the
//! controller hold meanwhile does not grow with them.
//!
//! A worker for each, which does nothing else. What is looked at is what each process has resident,
//! not its control group's account: that counts the cached pages of the files too, which the kernel
//! takes back as it needs them. Every byte is compared on its way back, and on the machine's disk.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::operation::{Read, Write};
use sandbox_api::{ByteSize, Limits, SandboxSpec};
use sandbox_controller::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Scenario;
use crate::bench::{Bench, Counts, Work};
use crate::engines::On;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process;
use crate::report::{Row, Target, Unit};

pub const SCENARIO: Scenario = Scenario {
    id: "p6-memory",
    title: "Memory of files on their way",
    counts: Counts { warm_up: 0, samples: 3 },
    measure,
    work: Some(|work, interrupt| stream(work, interrupt).boxed_local()),
};

const SIZES: [(u64, &str); 2] = [(10 << 20, "10 MiB"), (1 << 30, "1 GiB")];
const BOUND: f64 = 8.0 * 1_048_576.0;
const FILE: &str = "file";
const BLOCK: usize = 64 << 10;

/// Bytes that look like nothing in particular, and are nowhere the same.
pub struct Content {
    block: Vec<u8>,
    number: u64,
    left: u64,
}

impl Content {
    /// So many of them.
    pub fn of(bytes: u64) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        Self { block: words.take(BLOCK / 8).flatten().collect(), number: 0, left: bytes }
    }

    /// The next of them; empty at the end.
    pub fn next(&mut self) -> &[u8] {
        let length = BLOCK.min(usize::try_from(self.left).unwrap_or(BLOCK));
        self.block[..8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        self.left -= length as u64;
        &self.block[..length]
    }

    /// All that are left.
    pub fn all(mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while self.left > 0 {
            all.extend_from_slice(self.next());
        }
        all
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    on: On,
    bytes: u64,
    /// Empty and the job's own.
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Streamed {
    /// Seconds.
    written: f64,
    read: f64,
    /// Bytes that were resident at most, beyond what was before.
    agent: f64,
    controller: f64,
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            for (bytes, size) in SIZES {
                let mut streamed = Vec::new();
                for _ in 0..counts.samples {
                    let folder = bench.folder("p6-memory")?;
                    let job = Job { on, bytes, folder: folder.clone() };
                    streamed.push(bench.worker::<Streamed>(SCENARIO.id, &job).await?);
                    std::fs::remove_dir_all(&folder).map_err(Error::file("remove", folder))?;
                }
                let row = |what: &str, unit, of: fn(&Streamed) -> f64| {
                    let what = format!("{on}: {size}, {what}");
                    Row::figure(what, unit, streamed.iter().map(of).collect())
                };
                let grown = Target::median_at_most(BOUND);
                rows.extend([
                    row("agent grows by", Unit::Bytes, |it| it.agent).target(grown),
                    row("controller grows by", Unit::Bytes, |it| it.controller).target(grown),
                    row("time to write", Unit::Seconds, |it| it.written),
                    row("time to read", Unit::Seconds, |it| it.read),
                ]);
            }
        }
        Ok(rows)
    }
    .boxed_local()
}

async fn stream(work: Work<Value>, interrupt: Interrupt) -> Result<Value, Error> {
    let Job { on, bytes, folder } = serde_json::from_value(work.job).map_err(Error::Worker)?;
    let limits = Limits {
        max_file_size: ByteSize::b(bytes),
        max_write: ByteSize::b(bytes),
        operation_timeout: Duration::from_secs(300),
        ..Limits::default()
    };
    let streamed = work
        .engines
        .with_controller(on, async |controller| {
            let spec = SandboxSpec::new().io_dir(&folder).limits(limits);
            let sandbox = controller.launch(spec).await?;
            let streamed = through(&sandbox, bytes, &interrupt).await;
            sandbox.close().await?;
            compare(&folder.join(FILE), bytes)?;
            streamed
        })
        .await?;
    serde_json::to_value(streamed).map_err(Error::Worker)
}

async fn through(sandbox: &Sandbox, bytes: u64, interrupt: &Interrupt) -> Result<Streamed, Error> {
    let agent = process::agent_of(sandbox)?;
    let before = (process::resident_of(agent)?, process::resident()?);
    process::forget_peak_of(agent);
    process::forget_peak()?;
    let failed = |_| Error::Operation(format!("a stream of {bytes} bytes"));

    let started = Instant::now();
    let mut writer = sandbox.writer(Write::new(FILE)).await?;
    let mut content = Content::of(bytes);
    loop {
        interrupt.check()?;
        let block = content.next();
        // The writer reports its error at its end.
        if block.is_empty() || writer.write_all(block).await.is_err() {
            break;
        }
    }
    writer.finish().await?;
    let written = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut reader = sandbox.reader(Read::new(FILE)).await?;
    let mut content = Content::of(bytes);
    let mut came = vec![0; BLOCK];
    loop {
        interrupt.check()?;
        let block = content.next();
        if block.is_empty() {
            break;
        }
        let came = &mut came[..block.len()];
        reader.read_exact(came).await.map_err(failed)?;
        if came != block {
            return Err(Error::Operation("a read, byte by byte,".to_owned()));
        }
    }
    if reader.read(&mut came).await.map_err(failed)? > 0 {
        return Err(Error::Operation("a read to the end".to_owned()));
    }
    let read = started.elapsed().as_secs_f64();
    Ok(Streamed {
        written,
        read,
        agent: process::peak_of(agent)? - before.0,
        controller: process::peak()? - before.1,
    })
}

/// Whether the machine's own file is what was written.
fn compare(path: &Path, bytes: u64) -> Result<(), Error> {
    let mut file = File::open(path).map_err(Error::file("open", path))?;
    let mut content = Content::of(bytes);
    let mut came = vec![0; BLOCK];
    loop {
        let block = content.next();
        let came = &mut came[..block.len()];
        file.read_exact(came).map_err(Error::file("read", path))?;
        if came != block {
            return Err(Error::Operation("a write, byte by byte,".to_owned()));
        }
        if block.is_empty() {
            let size = file.metadata().map_err(Error::file("look at", path))?.len();
            let is_whole = size == bytes;
            return is_whole.then_some(()).ok_or_else(|| Error::Operation("a write".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_its_length_and_no_two_blocks_alike() {
        let all = Content::of(3 * BLOCK as u64 + 7).all();
        assert_eq!(all.len(), 3 * BLOCK + 7);
        let blocks: Vec<&[u8]> = all.chunks(BLOCK).collect();
        assert_ne!(blocks[0], blocks[1]);
        assert_ne!(blocks[1], blocks[2]);
        assert_ne!(blocks[0][8..4096], blocks[0][4104..8192]);
    }
}
