//! An engine for tests.

use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;

use super::super::response::CLIENT_TIMEOUT;

/// Makes calls of an engine that answers each path with a status and a body.
pub(in crate::docker) async fn with_engine<T>(
    answer: impl AsyncFn(&str) -> (u16, String),
    calls: impl AsyncFnOnce(&Docker) -> T,
) -> T {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let path = socket.to_str().unwrap();
    let docker = Docker::connect_with_unix(path, CLIENT_TIMEOUT, API_DEFAULT_VERSION).unwrap();
    let requests = stream::unfold(listener, async |listener| {
        let (stream, _) = listener.accept().await.unwrap();
        Some((BufReader::new(stream), listener))
    });
    let serve = requests.for_each_concurrent(None, async |mut stream| {
        let mut request = String::new();
        stream.read_line(&mut request).await.unwrap();
        let (status, body) = answer(request.split([' ', '?']).nth(1).unwrap_or_default()).await;
        let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: ");
        let reply = format!("{head}{}\r\n\r\n{body}", body.len());
        _ = stream.write_all(reply.as_bytes()).await;
    });
    tokio::select! {
        result = calls(&docker) => result,
        () = serve => unreachable!("it listens for ever"),
    }
}
