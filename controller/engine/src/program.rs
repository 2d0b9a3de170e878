//! Executables that no process can change: agent and helper, from the [store](crate::store), or if
//! there can be none, from sealed memory.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::process::geteuid;

use crate::agent::{Agent, Content, HELPER};
use crate::store::{AGENT_NAME, HELPER_NAME, Store};
use crate::{lock, sealed};

/// An executable that no process can change.
#[derive(Debug)]
pub struct Program {
    executable: OwnedFd,
    place: Place,
}

/// Where an executable is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Store,
    Memory,
}

impl Program {
    /// The agent.
    ///
    /// # Errors
    ///
    /// If there can be neither a store nor executable memory.
    pub fn agent(agent: &Agent) -> io::Result<Self> {
        Which::Agent(agent.clone()).open()
    }

    /// Puts an executable with this content into memory, and seals it. `name` is what the kernel shows
    /// instead of its path.
    pub(crate) fn in_memory(name: &CStr, content: Content<'_>) -> io::Result<Self> {
        Self::above_streams(sealed::seal(name, content)?, Place::Memory)
    }

    /// With a descriptor above those of the standard streams, which a child gets in their place.
    fn above_streams(executable: OwnedFd, place: Place) -> io::Result<Self> {
        let executable = match executable.as_raw_fd() {
            0..3 => rustix::io::fcntl_dupfd_cloexec(&executable, 3)?,
            _ => executable,
        };
        Ok(Self { executable, place })
    }

    /// The path by which this process, and its forked children, can execute it.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.executable.as_raw_fd())
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.executable.as_fd()
    }
}

/// One of the programs.
#[derive(Debug)]
enum Which {
    Agent(Agent),
    Helper,
}

impl Which {
    const fn name(&self) -> &'static CStr {
        match self {
            Self::Agent(_) => AGENT_NAME,
            Self::Helper => HELPER_NAME,
        }
    }

    fn open(&self) -> io::Result<Program> {
        self.in_store().map_or_else(|| self.in_memory(), Ok)
    }

    /// `None` if there can be no store, or if it does not have this program.
    fn in_store(&self) -> Option<Program> {
        if !self.may_be_in_store() {
            return None;
        }
        let opened = Store::here().open(self.name());
        from_store(opened.and_then(|it| Program::above_streams(it, Place::Store)))
    }

    /// Root has a store, with what each process of this version starts.
    fn may_be_in_store(&self) -> bool {
        !matches!(self, Self::Agent(Agent::File { .. })) && geteuid().is_root()
    }

    fn in_memory(&self) -> io::Result<Program> {
        let content = match self {
            Self::Agent(agent) => agent.content(),
            Self::Helper => HELPER,
        };
        Program::in_memory(self.name(), content)
    }
}

/// What came of the store, if there can be one.
fn from_store<T>(opened: io::Result<T>) -> Option<T> {
    opened.inspect_err(|error| tracing::debug!(%error, "programs are executed from memory")).ok()
}

/// A program that is opened when it is first needed, once, and kept open.
#[derive(Debug)]
pub(crate) struct ProgramOnce {
    which: Which,
    program: Mutex<Option<Arc<Program>>>,
}

impl ProgramOnce {
    pub const fn agent(agent: Agent) -> Self {
        Self { which: Which::Agent(agent), program: Mutex::new(None) }
    }

    pub const fn helper() -> Self {
        Self { which: Which::Helper, program: Mutex::new(None) }
    }

    /// The program; waits if another thread is opening it.
    pub fn get(&self) -> io::Result<Arc<Program>> {
        self.get_by(Which::open)
    }

    /// Opens these ahead in one copy of the store's mount, and returns that: to close it takes longer than all
    /// the rest. `None` if not all of them are in the store.
    pub fn open_from_store(programs: [&Self; 2]) -> Option<OwnedFd> {
        if !programs.iter().all(|it| it.which.may_be_in_store()) {
            return None;
        }
        let store = Store::here();
        from_store(store.mount().and_then(|mount| {
            for it in programs {
                let opened = store.open_in(&mount, it.which.name())?;
                let program = Program::above_streams(opened, Place::Store)?;
                *lock(&it.program) = Some(Arc::new(program));
            }
            Ok(mount)
        }))
    }

    /// Copies it into memory ahead, on a thread of its own, unless it is open. An error is left to
    /// [`get`](Self::get).
    pub fn copy_ahead(self: &Arc<Self>) {
        if lock(&self.program).is_none() {
            let ahead = self.clone();
            std::thread::spawn(move || _ = ahead.get_by(Which::in_memory));
        }
    }

    fn get_by(&self, open: fn(&Which) -> io::Result<Program>) -> io::Result<Arc<Program>> {
        let mut program = lock(&self.program);
        if let Some(program) = &*program {
            return Ok(program.clone());
        }
        let opened = Arc::new(open(&self.which)?);
        *program = Some(opened.clone());
        Ok(opened)
    }

    /// Takes the program out of memory, to free that unless it is in use; when it is needed again, it
    /// is opened again. `None` if it is in the store.
    pub fn take_from_memory(&self) -> Option<Arc<Program>> {
        lock(&self.program).take_if(|program| program.place == Place::Memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn once() -> ProgramOnce {
        let bytes: Arc<[u8]> = std::fs::read("/bin/true").unwrap().into();
        ProgramOnce::agent(Agent::File { bytes, sha256: "".into() })
    }

    #[test]
    fn a_program_is_opened_once() {
        let once = once();
        let first = once.get().unwrap();
        assert!(Arc::ptr_eq(&first, &once.get().unwrap()));
    }

    #[test]
    fn memory_of_a_program_is_freed_and_it_can_be_used_again() {
        let once = once();
        let first = Arc::downgrade(&once.get().unwrap());
        drop(once.take_from_memory().expect("a file's agent is in memory"));
        assert!(first.upgrade().is_none());
        let again = once.get().unwrap();
        drop(once.take_from_memory());
        assert!(Command::new(again.path()).status().unwrap().success(), "it is in use");
    }
}
