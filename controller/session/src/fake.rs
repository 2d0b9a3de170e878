//! A scripted agent on the other end of a pipe.

use super::*;
use bytes::Bytes;
use sandbox_protocol::message::Request;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

/// The agent's end.
pub struct FakeAgent {
    /// What the controller sends.
    pub input: BufReader<ReadHalf<DuplexStream>>,
    /// Its stdout.
    pub output: WriteHalf<DuplexStream>,
    /// Its stderr.
    pub errors: mpsc::Sender<Bytes>,
    /// The number of the stream that the last request opens; 0 if it opens none.
    pub stream: u32,
}

/// The two ends of a container's stdio.
pub fn pipe() -> (Attached, FakeAgent) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (stdout, stdin) = tokio::io::split(ours);
    let output = futures_util::stream::unfold(stdout, |mut stdout| async move {
        let mut piece = vec![0; 4096];
        match tokio::io::AsyncReadExt::read(&mut stdout, &mut piece).await {
            Ok(0) => None,
            Ok(length) => {
                piece.truncate(length);
                Some((Ok(Output::Stdout(Bytes::from(piece))), stdout))
            }
            Err(error) => Some((Err(error), stdout)),
        }
    });
    let (errors, stderr) = mpsc::channel(16);
    let errors_seen = futures_util::stream::unfold(stderr, |mut stderr| async move {
        let piece = mpsc::Receiver::recv(&mut stderr).await?;
        Some((Ok(Output::Stderr(piece)), stderr))
    });
    let output = futures_util::stream::select(output.boxed(), errors_seen.boxed());
    let (input, output_half) = tokio::io::split(theirs);
    let attached = Attached { input: Box::pin(stdin), output: output.boxed() };
    let input = BufReader::new(input);
    (attached, FakeAgent { input, output: output_half, errors, stream: 0 })
}

impl FakeAgent {
    /// The next request; `None` if stdin is closed.
    pub async fn request(&mut self) -> Option<(u64, Request)> {
        match self.message().await? {
            ToAgent::Request { id, request, stream } => {
                self.stream = stream.unwrap_or_default();
                Some((id, request))
            }
            other => panic!("{other:?}"),
        }
    }

    /// The next message other than a heartbeat; `None` if stdin is closed.
    pub async fn message(&mut self) -> Option<ToAgent> {
        loop {
            let mut line = String::new();
            if self.input.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match ToAgent::decode(line.trim_end()).expect("the controller is honest") {
                ToAgent::Heartbeat => {}
                message => return Some(message),
            }
        }
    }

    /// Sends raw bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The controller may have hung up, which is then what is tested.
        _ = self.output.write_all(bytes.as_ref()).await;
    }

    /// Answers a request.
    pub async fn answer<T: serde::Serialize>(&mut self, id: u64, result: T) {
        self.send(FromAgent::encode_reply(id, Ok(result)).unwrap()).await;
    }
}
