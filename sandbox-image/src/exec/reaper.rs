//! Reaps: a thread that waits for every child, the programs that were started and whatever they left
//! behind, and tells those who wait for one how it ended.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::Pid;
use sandbox_protocol::message::ExecEnd;

use super::Wake;

/// What a child left.
#[derive(Debug, Clone, Copy)]
pub struct Remains {
    /// How it ended.
    pub end: ExecEnd,
    /// Processor time of it, and of those that it waited for.
    pub cpu: Duration,
}

/// The end of a child, once it has come.
#[derive(Debug)]
pub struct Death {
    remains: Mutex<Option<Remains>>,
    wake: Arc<Wake>,
}

impl Death {
    /// What the child left, if it has ended.
    pub fn remains(&self) -> Option<Remains> {
        *self.remains.lock().unwrap()
    }
}

/// The thread, and those whose ends it tells.
#[derive(Debug)]
pub struct Reaper(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    begun: Condvar,
}

#[derive(Debug, Default)]
struct State {
    awaited: HashMap<i32, Arc<Death>>,
    /// How many children were begun.
    begun: u64,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Where no thread can be had.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::Builder::new()
            .name("reaper".to_owned())
            .stack_size(64 << 10)
            .spawn(move || own.reap())?;
        Ok(Self(shared))
    }

    /// Begins a child by `spawn`, whose end wakes `wake`.
    ///
    /// # Errors
    ///
    /// Those of `spawn`.
    pub fn begin<E>(
        &self,
        wake: Arc<Wake>,
        spawn: impl FnOnce() -> Result<Pid, E>,
    ) -> Result<Arc<Death>, E> {
        // Held meanwhile, so that a child which ends at once is known when it is reaped.
        let mut state = self.0.state.lock().unwrap();
        let spawned = spawn();
        // Even where it failed there may be a child: one that could not become its program.
        state.begun += 1;
        self.0.begun.notify_one();
        let pid = spawned?;
        let death = Arc::new(Death { remains: Mutex::default(), wake });
        state.awaited.insert(pid.as_raw_nonzero().get(), death.clone());
        Ok(death)
    }
}

impl Shared {
    fn reap(&self) {
        loop {
            let begun = self.state.lock().unwrap().begun;
            match wait() {
                Ok((pid, remains)) => {
                    let death = self.state.lock().unwrap().awaited.remove(&pid);
                    if let Some(death) = death {
                        *death.remains.lock().unwrap() = Some(remains);
                        death.wake.wake();
                    }
                }
                Err(libc::ECHILD) => {
                    // Nobody is left whose children could come to us.
                    let state = self.state.lock().unwrap();
                    drop(self.begun.wait_while(state, |state| state.begun == begun).unwrap());
                }
                Err(_) => {}
            }
        }
    }
}

/// Waits for any child.
fn wait() -> Result<(i32, Remains), i32> {
    let mut status = 0;
    #[expect(unsafe_code, reason = "no safe interface waits and tells what was used")]
    // SAFETY: both are ours to write to; all zeros are a legal rusage.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::__WALL, &raw mut usage), usage)
    };
    if pid < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    let low = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    let end = if libc::WIFSIGNALED(status) {
        ExecEnd::Signaled(low(libc::WTERMSIG(status)))
    } else {
        ExecEnd::Exited(low(libc::WEXITSTATUS(status)))
    };
    let time = |time: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    Ok((pid, Remains { end, cpu: time(usage.ru_utime) + time(usage.ru_stime) }))
}
