//! Requests a removal without waiting for it.
//!
//! An HTTP client does not report when its request has been sent, and cancels the request when it
//! is dropped. So this one is written to its own connection. The engine reads what a local socket
//! has accepted, even if the writer has died; and a Docker Engine completes a removal even if its
//! client has hung up.

use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// How much of the answer is read.
const MAX_ANSWER: u64 = 4 << 10;

/// Asks the engine at this socket to kill and remove a container.
pub(super) async fn begin(socket: &Path, container: &str) -> io::Result<()> {
    let request = request(container)
        .ok_or_else(|| io::Error::other("the container's name cannot be in a path"))?;
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(request.as_bytes()).await?;
    // While this process lives, the engine can send its reply.
    tokio::spawn(async move {
        let mut answer = Vec::new();
        _ = stream.take(MAX_ANSWER).read_to_end(&mut answer).await;
        let line = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
        tracing::debug!(answer = %String::from_utf8_lossy(line), "a container was removed");
    });
    Ok(())
}

/// Without a version, like the client's other requests: the engine uses its own.
fn request(container: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if container.is_empty() || !container.bytes().all(is_plain) {
        return None;
    }
    let path = format!("/containers/{container}?force=true&v=true");
    Some(format!("DELETE {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn request_is_delivered_before_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        begin(&socket, "sandboxctl-12ab").await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 36];
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(&request, b"DELETE /containers/sandboxctl-12ab?f");
    }

    #[tokio::test]
    async fn engine_that_is_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        begin(&dir.path().join("socket"), "a").await.unwrap_err();
    }

    #[test]
    fn name_that_would_change_the_request_is_refused() {
        for name in ["", "a/b", "a?b", "a b", "a\r\n", "\u{e9}"] {
            assert_eq!(request(name), None, "{name:?}");
        }
    }
}
