//! Reaps: a thread that waits for every child, that is, commands and the processes that they left
//! behind, and reports their exits to those who wait for them.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use rustix::process::Pid;
use sandbox_protocol::message::ExecEnd;

use super::tree::{Reaped, Tree, Used, limit_of};
use crate::wake::Wake;

/// The exit of a child, once it has exited.
#[derive(Debug)]
pub struct Death {
    /// The child's pid. It may be another process's by now: see [`Reaper::holding`].
    pub pid: Pid,
    exit: Mutex<Option<ExecEnd>>,
    wake: Arc<Wake>,
}

impl Death {
    /// The child's exit, if it has exited.
    pub fn exit(&self) -> Option<ExecEnd> {
        *self.exit.lock().unwrap()
    }
}

/// The thread, and the children whose exits it reports.
#[derive(Debug, Default)]
pub struct Reaper {
    state: Mutex<State>,
    has_started: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By pid. A child in this map is not reaped yet, so its pid is still valid.
    awaited: HashMap<i32, Arc<Death>>,
    /// The process trees of commands, with their marks.
    trees: Vec<(Option<u64>, Weak<Reaped>)>,
    /// How many children were started.
    started: u64,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let own = reaper.clone();
        crate::threads::start("reaper", 64 << 10, move || own.reap())?;
        Ok(reaper)
    }

    /// Starts a child of this tree by `clone`; its exit wakes `wake`. One child is started at a
    /// time.
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
        // Locked meanwhile, so that a child that exits at once is registered before it is reaped.
        let mut state = self.state.lock().unwrap();
        let (pid, more) = clone()?;
        state.started += 1;
        self.has_started.notify_one();
        let death = Arc::new(Death { pid, exit: Mutex::default(), wake: wake.clone() });
        state.awaited.insert(pid.as_raw_nonzero().get(), death.clone());
        state.trees.retain(|(_, reaped)| reaped.strong_count() > 0);
        let reaped = Arc::downgrade(&tree.reaped);
        if !state.trees.iter().any(|(_, known)| known.ptr_eq(&reaped)) {
            state.trees.push((tree.mark, reaped));
        }
        Ok((death, more))
    }

    /// Calls `act` with the pid of a child, which is not reaped meanwhile; `None` if it was before.
    pub fn holding<T>(&self, death: &Death, act: impl FnOnce(Pid) -> T) -> Option<T> {
        let state = self.state.lock().unwrap();
        let is_there = state.awaited.contains_key(&death.pid.as_raw_nonzero().get());
        is_there.then(|| act(death.pid))
    }

    fn reap(&self) {
        loop {
            let started = self.state.lock().unwrap().started;
            match ended() {
                Ok(pid) => self.bury(pid),
                Err(libc::ECHILD) => {
                    // No process is left whose children could be reparented to the agent.
                    let state = self.state.lock().unwrap();
                    drop(
                        self.has_started
                            .wait_while(state, |state| state.started == started)
                            .unwrap(),
                    );
                }
                Err(_) => {}
            }
        }
    }

    fn bury(&self, pid: Pid) {
        let mark = limit_of(pid);
        let mut state = self.state.lock().unwrap();
        // A tree without a mark contains every process.
        let of_it = |(known, _): &&(Option<u64>, _)| known.is_none() || *known == mark;
        let trees = state.trees.iter().filter(of_it);
        let trees: Vec<_> = trees.filter_map(|(_, reaped)| reaped.upgrade()).collect();
        trees.iter().for_each(|reaped| reaped.count());
        let waited = wait_for_exit(pid);
        if let Some((_, used)) = &waited {
            trees.iter().for_each(|reaped| reaped.add(used));
        }
        trees.iter().for_each(|reaped| reaped.count());
        // No other thread reaps, so the child must be there. If it is not, no exit is invented.
        let Some((exit, _)) = waited else { return };
        let death = state.awaited.remove(&pid.as_raw_nonzero().get());
        drop(state);
        match death {
            Some(death) => {
                *death.exit.lock().unwrap() = Some(exit);
                death.wake.wake();
            }
            None => trees.iter().for_each(|reaped| reaped.wake()),
        }
    }
}

/// Waits for any child to exit, without reaping it.
fn ended() -> Result<Pid, i32> {
    let options = libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    #[expect(unsafe_code, reason = "no safe interface waits for children of every kind")]
    // SAFETY: the kernel writes to our memory; all zeros are a valid value.
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

/// Reaps a child that has exited; returns what it used too.
fn wait_for_exit(pid: Pid) -> Option<(ExecEnd, Used)> {
    let mut status = 0;
    let pid = pid.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe interface waits and reports the usage")]
    // SAFETY: both are our memory; all zeros are a valid rusage.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, libc::__WALL, &raw mut usage), usage)
    };
    if reaped != pid {
        return None;
    }
    let time = |time: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    let low = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    let end = if libc::WIFSIGNALED(status) {
        ExecEnd::Signaled(low(libc::WTERMSIG(status)))
    } else {
        ExecEnd::Exited(low(libc::WEXITSTATUS(status)))
    };
    let peak_memory = u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1 << 10);
    Some((end, Used { cpu: time(usage.ru_utime) + time(usage.ru_stime), peak_memory }))
}
