//! Reaps: a thread that waits for every child, the programs that were started and whatever they left
//! behind, and tells those who wait for one how it ended.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbox_protocol::message::ExecEnd;

use super::tree::{ReapCount, Tree, limit_of};
use crate::wake::Wake;

/// What a child left.
#[derive(Debug, Clone, Copy)]
pub struct ChildExit {
    /// How it ended.
    pub end: ExecEnd,
    /// Processor time of it, and of those that it waited for.
    pub cpu: Duration,
}

/// The end of a child, once it has come.
#[derive(Debug)]
pub struct Death {
    pid: Pid,
    exit: Mutex<Option<ChildExit>>,
    wake: Arc<Wake>,
}

impl Death {
    /// What the child left, if it has ended.
    pub fn exit(&self) -> Option<ChildExit> {
        *self.exit.lock().unwrap()
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
    /// By number: whose is in here is not reaped yet, so the number is still its own.
    awaited: HashMap<i32, Arc<Death>>,
    /// The trees of programs, with their marks.
    trees: Vec<(Option<u64>, Weak<ReapCount>)>,
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

    /// Begins a child of this tree by `clone`, whose end wakes `wake`. One child is begun at a time.
    ///
    /// # Errors
    ///
    /// Those of `clone`.
    pub fn begin<T, E>(
        &self,
        tree: &Tree,
        wake: &Arc<Wake>,
        clone: impl FnOnce() -> Result<(Pid, T), E>,
    ) -> Result<(Arc<Death>, T), E> {
        // Held meanwhile, so that a child which ends at once is known when it is reaped.
        let mut state = self.0.state.lock().unwrap();
        let (pid, more) = clone()?;
        state.begun += 1;
        self.0.begun.notify_one();
        let death = Arc::new(Death { pid, exit: Mutex::default(), wake: wake.clone() });
        state.awaited.insert(pid.as_raw_nonzero().get(), death.clone());
        state.trees.retain(|(_, reap_count)| reap_count.strong_count() > 0);
        let reap_count = Arc::downgrade(tree.reap_count());
        if !state.trees.iter().any(|(_, known)| known.ptr_eq(&reap_count)) {
            state.trees.push((tree.mark(), reap_count));
        }
        Ok((death, more))
    }

    /// Kills a child, unless it has ended.
    pub fn kill(&self, death: &Death) {
        let state = self.0.state.lock().unwrap();
        if state.awaited.contains_key(&death.pid.as_raw_nonzero().get()) {
            _ = kill_process(death.pid, Signal::KILL);
        }
    }
}

impl Shared {
    fn reap(&self) {
        loop {
            let begun = self.state.lock().unwrap().begun;
            match ended() {
                Ok(pid) => self.bury(pid),
                Err(libc::ECHILD) => {
                    // Nobody is left whose children could come to us.
                    let state = self.state.lock().unwrap();
                    drop(self.begun.wait_while(state, |state| state.begun == begun).unwrap());
                }
                Err(_) => {}
            }
        }
    }

    fn bury(&self, pid: Pid) {
        let mark = limit_of(pid);
        let mut state = self.state.lock().unwrap();
        // A tree without a mark is everybody.
        let of_it = |(known, _): &&(Option<u64>, _)| known.is_none() || *known == mark;
        let trees = state.trees.iter().filter(of_it);
        let trees: Vec<_> = trees.filter_map(|(_, reap_count)| reap_count.upgrade()).collect();
        let count =
            || trees.iter().for_each(|reap_count| _ = reap_count.fetch_add(1, Ordering::SeqCst));
        count();
        let exit = wait_for_exit(pid);
        count();
        // Nobody else reaps, so it is there to be reaped. Were it not, nothing would be made up.
        let Some(exit) = exit else { return };
        let death = state.awaited.remove(&pid.as_raw_nonzero().get());
        drop(state);
        if let Some(death) = death {
            *death.exit.lock().unwrap() = Some(exit);
            death.wake.wake();
        }
    }
}

/// Waits for any child to end, and leaves it as it is.
fn ended() -> Result<Pid, i32> {
    let options = libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    #[expect(unsafe_code, reason = "no safe interface waits for children of every kind")]
    // SAFETY: the answer is ours to write to; all zeros are a legal one, and the kernel fills it in.
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        (result, info.si_pid())
    };
    if result < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Pid::from_raw(pid).ok_or(0)
}

/// Reaps a child that has ended.
fn wait_for_exit(pid: Pid) -> Option<ChildExit> {
    let mut status = 0;
    let pid = pid.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe interface waits and tells what was used")]
    // SAFETY: both are ours to write to; all zeros are a legal rusage.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, libc::__WALL, &raw mut usage), usage)
    };
    if reaped != pid {
        return None;
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
    Some(ChildExit { end, cpu: time(usage.ru_utime) + time(usage.ru_stime) })
}
