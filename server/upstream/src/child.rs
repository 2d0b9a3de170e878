//! A server that is a program: lines over its stdin and stdout, and the end of its process group.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use hyper::body::Bytes;
use memchr::memmem;
use rmcp::RoleClient;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::clean;

/// The longest message of a server. More is not read.
pub(crate) const MAX_MESSAGE: usize = 8 << 20;
/// How long a server may go on after its stdin has ended.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of its stderr is traced, and how much of its end is kept.
const MAX_STDERR: usize = 64 << 10;
const MAX_TAIL: usize = 1 << 10;

/// The end of what a server wrote to stderr.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    pub fn text(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clean(String::from_utf8_lossy(&tail).trim_end(), MAX_TAIL)
    }
}

/// Lines of at most [`MAX_MESSAGE`] bytes.
struct Lines {
    stdout: FramedRead<ChildStdout, AnyDelimiterCodec>,
    too_long: CancellationToken,
}

impl Lines {
    /// The next line; `None` at the end, and if it is too long.
    async fn next(&mut self) -> Option<Bytes> {
        let line = self.stdout.next().await?;
        if let Err(AnyDelimiterCodecError::MaxChunkLengthExceeded) = line {
            self.too_long.cancel();
        }
        line.ok()
    }
}

/// The connection to a program. Dropping it kills what is in its process group.
pub(crate) struct ChildTransport {
    stdin: Arc<tokio::sync::Mutex<Option<ChildStdin>>>,
    lines: Lines,
    child: Child,
    /// The number of the group, until it was killed.
    group: Option<Pid>,
}

impl ChildTransport {
    /// Starts the program, and the reader of its stderr. `too_long` is cancelled when it sends a line
    /// that is.
    pub fn start(
        name: &str,
        (command, env, cwd): (&[String], &BTreeMap<String, String>, &Path),
        too_long: CancellationToken,
        tail: Tail,
    ) -> io::Result<(Self, AbortOnDropHandle<()>)> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut started = Command::new(program);
        started.args(arguments).env_clear().envs(env).current_dir(cwd);
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = started.process_group(0).kill_on_drop(true).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let stdin = Arc::new(tokio::sync::Mutex::new(child.stdin.take()));
        let codec = AnyDelimiterCodec::new_with_max_length(vec![b'\n'], Vec::new(), MAX_MESSAGE);
        let lines = Lines { stdout: FramedRead::new(stdout, codec), too_long };
        let traced = tokio::spawn(trace(name.to_owned(), stderr, tail));
        Ok((Self { stdin, lines, child, group }, AbortOnDropHandle::new(traced)))
    }

    fn kill(&mut self) {
        _ = self.group.take().map(|group| kill_process_group(group, Signal::KILL));
    }
}

impl Drop for ChildTransport {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Transport<RoleClient> for ChildTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let stdin = self.stdin.clone();
        async move {
            let is_reply = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
            let mut stdin = match is_reply {
                // It is offered nothing to ask for. Who asks and does not read gets no answer.
                true => match stdin.try_lock_owned() {
                    Ok(stdin) => stdin,
                    Err(_) => return Ok(()),
                },
                false => stdin.lock_owned().await,
            };
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(&line).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.lines.next() => line?,
                // What it has started may have its stdout still.
                _ = self.child.wait(), if self.group.is_some() => {
                    self.kill();
                    continue;
                }
            };
            match serde_json::from_slice(&line) {
                Ok(message) => return Some(message),
                // Some print to their stdout.
                Err(_) if memmem::find(&line, b"\"jsonrpc\"").is_none() => {}
                // Whose answer it is cannot be read either.
                Err(_) => return None,
            }
        }
    }

    /// Ends its stdin, and kills what is left.
    async fn close(&mut self) -> io::Result<()> {
        let closing = async {
            drop(self.stdin.lock().await.take());
            while self.lines.next().await.is_some() {}
        };
        _ = timeout(END_TIMEOUT, closing).await;
        self.kill();
        timeout(END_TIMEOUT, self.child.wait()).await?.map(drop)
    }
}

/// Reads a stderr to its end, so that its writer never waits; what is traced of it is bounded.
async fn trace(name: String, mut stderr: ChildStderr, Tail(tail): Tail) {
    let (mut buffer, mut traced) = ([0; 4 << 10], 0);
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let piece = &buffer[..read];
        if traced < MAX_STDERR {
            traced += read;
            let text = clean(String::from_utf8_lossy(piece).trim_end(), MAX_STDERR);
            tracing::debug!(upstream = name, "stderr: {text}");
        }
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(piece);
        let more = tail.len().saturating_sub(MAX_TAIL);
        tail.drain(..more);
    }
}
