//! `check`: whether a script compiles, tested by the agent itself, without a container.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use sandbox_engine::{Agent, AgentSource, Program};
use sandbox_protocol::argv::{AgentArgs, CheckReply, ConfinementPolicy, EXIT_UNCONFINED, Mode};
use sandbox_protocol::limits::{MAX_FRAME_BYTES, MAX_SOURCE_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::controller::Controller;
use crate::error::Error;

/// A compiler that takes longer was given a script that was written to stall it.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Checks whether a script compiles, and whether it uses undefined names. The agent runs on this
/// machine, with its own limits of time and memory, confined as in a sandbox, and does not execute
/// the script.
///
/// # Errors
///
/// [`Error::Check`] if the agent could not be run, [`Error::Unconfined`] if it could not confine
/// itself as the policy requires.
pub async fn check_script(
    source: &[u8],
    agent: &AgentSource,
    confinement: ConfinementPolicy,
) -> Result<CheckReply, Error> {
    if source.len() > MAX_SOURCE_BYTES {
        let error = Some(crate::execution::script::source_too_large());
        return Ok(CheckReply { error, warnings: Vec::new() });
    }
    let agent = Agent::open(agent)?;
    let checked = tokio::time::timeout(TIME_LIMIT, run(source, &agent, confinement)).await;
    let answer = checked
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
        .map_err(|source| Error::Check { source })?;
    answer.map_err(|detail| Error::Unconfined { detail })
}

impl Controller {
    /// [Checks](check_script) a script with the agent of its sandboxes.
    ///
    /// # Errors
    ///
    /// As of [`check_script`].
    pub async fn check_script(&self, source: &[u8]) -> Result<CheckReply, Error> {
        check_script(source, &self.shared.agent, self.shared.confinement).await
    }
}

/// The inner error is why the agent could not confine itself.
async fn run(
    source: &[u8],
    agent: &Agent,
    confinement: ConfinementPolicy,
) -> io::Result<Result<CheckReply, String>> {
    let program = Program::agent(agent)?;
    let args = AgentArgs { confinement, ..AgentArgs::new(Mode::Check) };
    let mut child = Command::new(program.path())
        .args(args.to_args())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let feed = async {
        // An agent that exits early reports the reason on stderr.
        _ = stdin.write_all(source).await;
        drop(stdin);
    };
    let mut reply = Vec::new();
    let mut words = Vec::new();
    let mut stdout = stdout.take(MAX_FRAME_BYTES as u64);
    let mut stderr = stderr.take(4096);
    let ((), reply_read, words_read) =
        tokio::join!(feed, stdout.read_to_end(&mut reply), stderr.read_to_end(&mut words));
    reply_read?;
    words_read?;
    let status = child.wait().await?;
    let words = String::from_utf8_lossy(&words);
    if status.code() == Some(EXIT_UNCONFINED) {
        return Ok(Err(words.trim().to_owned()));
    }
    if !status.success() {
        return Err(io::Error::other(format!("the agent ended by {status}: {}", words.trim())));
    }
    Ok(Ok(serde_json::from_slice(&reply)?))
}
