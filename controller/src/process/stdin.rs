//! The stdin of a process: a bounded queue between those who write and the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How many bytes wait for the process.
const QUEUE_BYTES: usize = 256 << 10;
/// How long a writer waits for room in the queue.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a process takes no input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StdinError {
    /// It was started without one, whether or not it has ended since, or it was closed.
    #[error("its stdin is not open")]
    NoStdin,
    /// It has ended.
    #[error("the process has ended")]
    Ended,
    /// It did not read what was written before, for 10 s.
    #[error("the process does not read its stdin")]
    Full,
}

/// The writers' end.
#[derive(Debug)]
pub(super) struct Stdin {
    queue: Mutex<Option<mpsc::UnboundedSender<Written>>>,
    room: Arc<Semaphore>,
    written: AtomicU64,
}

/// Bytes that were written, and their room in the queue.
#[derive(Debug)]
pub(crate) struct Written {
    /// They.
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// The process's end.
pub(crate) type Input = mpsc::UnboundedReceiver<Written>;

impl Stdin {
    /// A stdin that is open, and where what is written to it arrives.
    pub fn open() -> (Self, Input) {
        let (queue, input) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(QUEUE_BYTES));
        (Self { queue: Mutex::new(Some(queue)), room, written: AtomicU64::new(0) }, input)
    }

    /// Writes all of it, as one piece if the queue can hold that.
    pub async fn write(&self, mut bytes: Bytes) -> Result<(), StdinError> {
        self.queue()?;
        // What is in the queue is written, even if the process has ended by it before this returns.
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(QUEUE_BYTES));
            let length = piece.len();
            let room = self.room.clone().acquire_many_owned(length as u32);
            let room = tokio::time::timeout(PATIENCE, room).await.map_err(|_| StdinError::Full)?;
            let written = Written { bytes: piece, _room: room.map_err(|_| StdinError::Ended)? };
            let queue = self.queue()?;
            self.written.fetch_add(length as u64, Ordering::Relaxed);
            if queue.send(written).is_err() {
                self.written.fetch_sub(length as u64, Ordering::Relaxed);
                return Err(StdinError::Ended);
            }
        }
        Ok(())
    }

    /// Closes it after what was written.
    pub fn close(&self) -> Result<(), StdinError> {
        self.queue()?;
        crate::lock(&self.queue).take();
        Ok(())
    }

    /// The process has ended: what is written has no reader.
    pub fn end(&self) {
        self.room.close();
    }

    /// How many bytes were written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn queue(&self) -> Result<mpsc::UnboundedSender<Written>, StdinError> {
        if self.room.is_closed() {
            return Err(StdinError::Ended);
        }
        let queue = crate::lock(&self.queue);
        queue.clone().ok_or(StdinError::NoStdin)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_writer_waits_for_the_process_but_not_for_ever() {
        let (stdin, mut input) = Stdin::open();
        stdin.write(Bytes::from_static(b"first")).await.unwrap();
        let rest = Bytes::from(vec![b'x'; QUEUE_BYTES]);
        assert_eq!(stdin.write(rest.clone()).await, Err(StdinError::Full));
        // Of what did not fit, nothing was written.
        let read = async {
            assert_eq!(input.recv().await.unwrap().bytes, "first");
            assert_eq!(input.recv().await.unwrap().bytes, rest);
            assert!(input.recv().await.is_none());
        };
        let write = async {
            stdin.write(rest.clone()).await.unwrap();
            stdin.close().unwrap();
            assert_eq!(stdin.write(Bytes::new()).await, Err(StdinError::NoStdin));
            assert_eq!(stdin.close(), Err(StdinError::NoStdin));
        };
        tokio::join!(read, write);
        stdin.end();
        assert_eq!(stdin.write(Bytes::new()).await, Err(StdinError::Ended));
    }

    /// A process that ends in the moment in which something is there to be read.
    struct Ends(Arc<Stdin>);

    impl Wake for Ends {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.written(), 5);
            self.0.end();
        }
    }

    #[tokio::test]
    async fn a_process_may_end_as_soon_as_it_is_written_to() {
        let (stdin, mut input) = Stdin::open();
        let stdin = Arc::new(stdin);
        let process = Waker::from(Arc::new(Ends(stdin.clone())));
        assert!(input.poll_recv(&mut Context::from_waker(&process)).is_pending());
        assert_eq!(stdin.write(Bytes::from_static(b"line\n")).await, Ok(()));
        assert_eq!(input.recv().await.unwrap().bytes, "line\n");
    }

    #[tokio::test]
    async fn a_process_that_ends_ends_its_writers() {
        let (stdin, _input) = Stdin::open();
        stdin.write(Bytes::from(vec![0; QUEUE_BYTES])).await.unwrap();
        let (written, ()) = tokio::join!(stdin.write(Bytes::from_static(b"x")), async {
            tokio::task::yield_now().await;
            stdin.end();
        });
        assert_eq!(written, Err(StdinError::Ended));
        let (none, _) = Stdin::open();
        none.close().unwrap();
        assert_eq!(none.close(), Err(StdinError::NoStdin));
    }
}
