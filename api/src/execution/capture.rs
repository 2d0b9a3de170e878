//! What an execution prints, as far as its result has it.

use super::event::{ExecutionEvent, OutputStream};
use super::result::Captured;

/// Collects the beginnings of stdout and stderr from the events of an execution.
#[derive(Debug, Clone)]
pub struct OutputCapture {
    /// The beginning of stdout.
    pub stdout: Captured,
    /// The beginning of stderr.
    pub stderr: Captured,
    limit: usize,
}

impl OutputCapture {
    /// Keeps at most this many bytes of each.
    pub fn new(limit: usize) -> Self {
        Self { stdout: Captured::default(), stderr: Captured::default(), limit }
    }

    /// Takes what an event has of them.
    pub fn push(&mut self, event: &ExecutionEvent) {
        if let ExecutionEvent::Output { stream, data } = event {
            match stream {
                OutputStream::Stdout => self.stdout.push(data, self.limit),
                OutputStream::Stderr => self.stderr.push(data, self.limit),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_kept_up_to_the_limit() {
        let mut capture = OutputCapture::new(5);
        let output = |stream, data: &'static [u8]| ExecutionEvent::Output {
            stream,
            data: bytes::Bytes::from_static(data),
        };
        capture.push(&output(OutputStream::Stdout, b"abc"));
        capture.push(&ExecutionEvent::Omitted);
        capture.push(&output(OutputStream::Stderr, b"12345"));
        assert!(!capture.stdout.truncated && !capture.stderr.truncated);
        capture.push(&output(OutputStream::Stdout, b"def"));
        assert_eq!((&*capture.stdout.bytes, capture.stdout.truncated), (&b"abcde"[..], true));
        assert_eq!((&*capture.stderr.bytes, capture.stderr.truncated), (&b"12345"[..], false));
    }
}
