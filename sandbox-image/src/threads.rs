//! The threads that read requests and perform file operations.
//!
//! One thread reads. It performs itself what it has read, and reads on: to wake another thread takes as
//! long as most operations. If it has not come back after a moment, another takes over the reading, and
//! at once if the operation waits for the controller. So an operation that waits (for a disk, for the
//! controller to read) delays another one, or a cancel, by that moment at most.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use sandbox_protocol::limits::MAX_IN_FLIGHT;

/// Stack of a thread: the largest frame is a buffer of directory entries, and the compiler of regular
/// expressions is recursive.
const STACK_BYTES: usize = 1 << 20;
/// One for each operation in progress, and one that reads.
const MAX_THREADS: usize = MAX_IN_FLIGHT + 1;

/// How long work may take before another thread takes over the reading.
const PATIENCE: Duration = Duration::from_millis(2);

/// Starts a thread that is not joined.
///
/// # Errors
///
/// If it cannot be started.
pub fn start<T: Send + 'static>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(stack_bytes);
    thread.spawn(work).map(drop)
}

/// A job for one thread.
pub type ThreadJob = Box<dyn FnOnce() + Send>;

/// Reads requests.
pub trait Reader: Send {
    /// Waits until there is work, and returns it. It never waits for anything else.
    fn read(&mut self) -> VecDeque<ThreadJob>;
}

/// The threads.
pub struct Threads {
    state: Mutex<State>,
    /// There is something for a free thread.
    changed: Condvar,
    /// Wakes the free thread that waits for it.
    alarm: OwnedFd,
}

#[derive(Default)]
struct State {
    /// While no thread reads. The next one that is free takes it.
    reader: Option<Box<dyn Reader>>,
    waiting: VecDeque<ThreadJob>,
    threads: usize,
    /// Threads that neither read nor work. They wait, or are about to look here.
    free: usize,
    /// One of the free threads waits for the alarm.
    has_standby: bool,
}

impl Threads {
    /// Starts with no thread.
    ///
    /// # Errors
    ///
    /// If there is no descriptor for its timer.
    pub fn new() -> io::Result<Arc<Self>> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), alarm }))
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

    /// Called by the reader with a job, of a batch with `others` besides: starts a thread, if one
    /// is needed.
    ///
    /// # Errors
    ///
    /// If no thread can be started, and only the caller exists.
    pub fn expect(self: &Arc<Self>, others: usize) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        // The caller will perform one of them, and a free thread must read then.
        if state.free > state.waiting.len() + others || state.threads >= MAX_THREADS {
            return Ok(());
        }
        let threads = self.clone();
        match start("worker", STACK_BYTES, move || threads.work()) {
            Ok(()) => {
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
            } else if !state.has_standby {
                state.has_standby = true;
                drop(state);
                // The result does not matter: the thread checks the queue.
                _ = rustix::io::read(&self.alarm, &mut [0; 8]);
                state = self.state.lock().unwrap();
                state.has_standby = false;
                continue;
            } else {
                state = self.changed.wait(state).unwrap();
                continue;
            }
            state = self.state.lock().unwrap();
            state.free += 1;
        }
    }

    /// Called by work before it waits for what will be read: another thread takes over the reading at
    /// once.
    pub fn hand_over(&self) {
        let state = self.state.lock().unwrap();
        let (is_needed, has_standby) = (state.reader.is_some(), state.has_standby);
        drop(state);
        if is_needed {
            self.wake(1, has_standby);
        }
    }

    /// Wakes free threads, at least one.
    fn wake(&self, threads: usize, has_standby: bool) {
        if has_standby {
            self.set_alarm(Duration::from_nanos(1));
        }
        (usize::from(has_standby)..threads).for_each(|_| self.changed.notify_one());
    }

    fn set_alarm(&self, after: Duration) {
        let zero = Duration::ZERO.try_into().expect("it is short");
        let after = after.try_into().expect("it is short");
        let time = Itimerspec { it_interval: zero, it_value: after };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &time).expect("its own timer");
    }

    /// Reads until another thread can take over, and returns work for this one.
    fn read(&self, mut reader: Box<dyn Reader>) -> ThreadJob {
        loop {
            let more = reader.read();
            let mut state = self.state.lock().unwrap();
            state.waiting.extend(more);
            if state.free > 0
                && let Some(work) = state.waiting.pop_front()
            {
                state.reader = Some(reader);
                let (others, has_standby) = (state.waiting.len(), state.has_standby);
                let wanted = state.free.min(1 + others);
                drop(state);
                match others {
                    0 if has_standby => self.set_alarm(PATIENCE),
                    _ => self.wake(wanted, has_standby),
                }
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
        batches: Receiver<VecDeque<ThreadJob>>,
        threads: Option<Arc<Threads>>,
    }

    impl Reader for Batches {
        fn read(&mut self) -> VecDeque<ThreadJob> {
            // The sender is gone after the test.
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

    fn serve(may_start: bool) -> (Arc<Threads>, Sender<VecDeque<ThreadJob>>) {
        let (sender, batches) = channel();
        let threads = Threads::new().unwrap();
        let reader = Batches { batches, threads: may_start.then(|| threads.clone()) };
        let first = threads.clone();
        std::thread::spawn(move || first.serve(Box::new(reader)));
        (threads, sender)
    }

    #[test]
    fn work_that_waits_for_later_requests_does_not_block_them() {
        let (threads, requests) = serve(true);
        let (done, all_done) = channel();
        let mut wakers = Vec::new();
        for round in 0..MAX_IN_FLIGHT {
            let (wake, woken) = channel::<()>();
            wakers.push(wake);
            let done = done.clone();
            let work: ThreadJob = Box::new(move || {
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
                Box::new(move || _ = meeting.wait()) as ThreadJob
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
            let work: ThreadJob = Box::new(move || done.send(at).unwrap());
            requests.send(VecDeque::from([work])).unwrap();
        }
        let mut order: Vec<usize> = (0..100).map(|_| all_done.recv().unwrap()).collect();
        order.sort_unstable();
        assert_eq!(order, Vec::from_iter(0..100));
        assert!(threads.state.lock().unwrap().threads <= 2);
    }
}
