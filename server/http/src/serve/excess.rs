//! Connections beyond those that one address may have: refused with 503, as long as that costs little.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{Problem, ProblemKind};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::PROBLEM_JSON;

/// How many are answered at a time. The others are closed.
const AT_ONE_TIME: usize = 1024;
/// How long one of them may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How much of its request is read, so that the kernel does not drop the answer with the rest.
const MAX_READ: u64 = 64 << 10;

/// The turns to refuse a connection with 503.
#[derive(Debug, Clone)]
pub(super) struct Excess(Arc<Semaphore>);

impl Excess {
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONE_TIME)))
    }

    /// The turn of a connection; none if there are too many.
    pub fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// Answers a connection that nothing was read of, and closes it.
pub(super) async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let refused = async {
        stream.write_all(answer().as_bytes()).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(MAX_READ), &mut tokio::io::sink()).await
    };
    // Whoever does not listen is not told.
    _ = tokio::time::timeout(TIMEOUT, refused).await;
}

fn answer() -> String {
    let detail = "your address has as many connections as it may";
    let problem = Problem::new(ProblemKind::Full, detail);
    let problem = problem.hint(Some("close some, or send requests over those that are open"));
    // Its members are texts and numbers, which JSON can represent.
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
