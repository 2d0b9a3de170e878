//! Connections that are refused before they have a request: those beyond the share of their address, as long
//! as that costs little, and those without TLS where it is spoken.

use std::time::Duration;

use sandbox_api::{Problem, ProblemKind};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::refusal::PROBLEM_JSON;

/// How many are answered at a time. The others are closed.
pub(super) const AT_ONE_TIME: usize = 1024;
/// How long one of them may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How much of its request is read, so that the kernel does not drop the answer with the rest.
const MAX_READ: u64 = 64 << 10;

/// Sends `answer` on a connection from which nothing was read, and closes it.
pub(super) async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: String) {
    let refused = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(MAX_READ), &mut tokio::io::sink()).await
    };
    // A client that does not read misses it.
    _ = tokio::time::timeout(TIMEOUT, refused).await;
}

/// For one beyond the share of its address.
pub(super) fn too_many() -> String {
    let problem = Problem::new(ProblemKind::Full, "your address has as many connections as it may");
    let hint = "close some, or send requests over those that are open";
    answer("503 Service Unavailable\r\nretry-after: 1", &problem.hint(Some(hint)))
}

/// For one that speaks HTTP without TLS.
pub(super) fn without_tls() -> String {
    let problem = Problem::new(ProblemKind::Malformed, "this port speaks HTTPS");
    answer("400 Bad Request", &problem.hint(Some("use https:// in place of http://")))
}

fn answer(status: &str, problem: &Problem) -> String {
    // Its members are texts and numbers, which JSON can represent.
    let body = serde_json::to_string(problem).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}
