//! The threads that read requests and perform file operations.
//!
//! One thread reads. It performs itself what it has read, after another has taken over the reading:
//! to hand the work to another thread takes as long as most operations, because that thread must be
//! woken first. So there is always one that reads, and an operation that waits (for a disk, for the
//! controller to read) never delays another one, or a cancel.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

use sandbox_protocol::limits::MAX_IN_FLIGHT;

/// Stack of a thread: the largest frame is a buffer of directory entries, and the compiler of regular
/// expressions is recursive.
const STACK_BYTES: usize = 1 << 20;
/// One for each operation in progress, and one that reads.
const MAX_THREADS: usize = MAX_IN_FLIGHT + 1;

/// Work for one thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// Reads requests.
pub trait Reader: Send {
    /// Waits until there is work, and returns it. It never waits for anything else.
    fn read(&mut self) -> VecDeque<Work>;
}

/// The threads.
pub struct Threads {
    state: Mutex<State>,
    /// There is something for a free thread.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// While no thread reads.
    reader: Option<Box<dyn Reader>>,
    waiting: VecDeque<Work>,
    threads: usize,
    /// Threads that neither read nor work. They wait, or are about to look here.
    free: usize,
}

impl Threads {
    /// Starts with no thread.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new() })
    }

    /// Makes the caller the first thread.
    pub fn serve(&self, reader: Box<dyn Reader>) -> ! {
        {
            let mut state = self.state.lock().unwrap();
            state.reader = Some(reader);
            state.threads += 1;
            state.free += 1;
        }
        self.work()
    }

    /// Called by the reader for work beside which it has read `others`: starts a thread, if it needs
    /// one.
    ///
    /// # Errors
    ///
    /// If no thread can be started, and there is none but the caller.
    pub fn expect(self: &Arc<Self>, others: usize) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        // The caller will perform one of them, and a free thread must read then.
        if state.free > state.waiting.len() + others || state.threads >= MAX_THREADS {
            return Ok(());
        }
        let threads = self.clone();
        let thread = std::thread::Builder::new().name("worker".to_owned());
        match thread.stack_size(STACK_BYTES).spawn(move || threads.work()) {
            Ok(_) => {
                state.threads += 1;
                state.free += 1;
                Ok(())
            }
            // The others will do it, one after another.
            Err(_) if state.threads > 1 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The main loop of a thread.
    fn work(&self) -> ! {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(reader) = state.reader.take() {
                state.free -= 1;
                drop(state);
                let work = self.read(reader);
                work();
            } else if let Some(work) = state.waiting.pop_front() {
                state.free -= 1;
                drop(state);
                work();
            } else {
                state = self.changed.wait(state).unwrap();
                continue;
            }
            state = self.state.lock().unwrap();
            state.free += 1;
        }
    }

    /// Reads until another thread can take over, and returns work for this one.
    fn read(&self, mut reader: Box<dyn Reader>) -> Work {
        loop {
            let more = reader.read();
            let mut state = self.state.lock().unwrap();
            state.waiting.extend(more);
            if state.free > 0
                && let Some(work) = state.waiting.pop_front()
            {
                state.reader = Some(reader);
                let wanted = state.free.min(1 + state.waiting.len());
                drop(state);
                (0..wanted).for_each(|_| self.changed.notify_one());
                return work;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Reads batches of work, and starts threads for it if it may.
    struct Batches {
        batches: Receiver<VecDeque<Work>>,
        threads: Option<Arc<Threads>>,
    }

    impl Reader for Batches {
        fn read(&mut self) -> VecDeque<Work> {
            // After the test nobody sends any more.
            let batch = self.batches.recv().unwrap_or_else(|_| {
                loop {
                    std::thread::park();
                }
            });
            let expect = |at| self.threads.iter().try_for_each(|threads| threads.expect(at));
            (0..batch.len()).try_for_each(expect).unwrap();
            batch
        }
    }

    fn serve(may_start: bool) -> (Arc<Threads>, Sender<VecDeque<Work>>) {
        let (sender, batches) = channel();
        let threads = Threads::new();
        let reader = Batches { batches, threads: may_start.then(|| threads.clone()) };
        let first = threads.clone();
        std::thread::spawn(move || first.serve(Box::new(reader)));
        (threads, sender)
    }

    #[test]
    fn work_that_waits_for_later_requests_is_no_obstacle() {
        let (threads, requests) = serve(true);
        let (done, all_done) = channel();
        let mut wakers = Vec::new();
        for round in 0..MAX_IN_FLIGHT {
            let (wake, woken) = channel::<()>();
            wakers.push(wake);
            let done = done.clone();
            let work: Work = Box::new(move || {
                _ = woken.recv();
                done.send(round).unwrap();
            });
            requests.send(VecDeque::from([work])).unwrap();
        }
        // All wait, and the last one is read nevertheless.
        for (round, waker) in wakers.into_iter().enumerate().rev() {
            drop(waker);
            assert_eq!(all_done.recv().unwrap(), round);
        }
        assert!(threads.state.lock().unwrap().threads <= MAX_THREADS);
    }

    #[test]
    fn all_work_of_a_batch_is_done_at_one_time() {
        let (_threads, requests) = serve(true);
        let meeting = Arc::new(std::sync::Barrier::new(MAX_IN_FLIGHT + 1));
        for _ in 0..10 {
            let work = || {
                let meeting = meeting.clone();
                Box::new(move || _ = meeting.wait()) as Work
            };
            requests.send((0..MAX_IN_FLIGHT).map(|_| work()).collect()).unwrap();
            meeting.wait();
        }
    }

    #[test]
    fn where_no_thread_can_be_started_work_waits_for_other_work() {
        let (threads, requests) = serve(false);
        // One besides the first, as after the first request.
        threads.expect(0).unwrap();
        let (done, all_done) = channel();
        for at in 0..100 {
            let done = done.clone();
            let work: Work = Box::new(move || done.send(at).unwrap());
            requests.send(VecDeque::from([work])).unwrap();
        }
        let mut order: Vec<usize> = (0..100).map(|_| all_done.recv().unwrap()).collect();
        order.sort_unstable();
        assert_eq!(order, Vec::from_iter(0..100));
        assert!(threads.state.lock().unwrap().threads <= 2);
    }
}
