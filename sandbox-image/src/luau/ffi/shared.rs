//! What every function in the VM can reach, and the accounting of its memory.

use std::cell::Cell;

use mlua::ffi;
use mlua::ffi::lua_State;
use sandbox_protocol::ErrorKind;

use super::super::context::Host;
use super::error::OUT_OF_MEMORY;

/// The allocator's accounting.
pub(super) struct Memory {
    pub(super) limit: Cell<usize>,
    pub(super) used: Cell<usize>,
    /// An allocation was refused in this run.
    pub(super) refused: Cell<bool>,
    /// Luau collects at a fixed pace, not on demand: above this size the interrupt collects
    /// everything.
    pub(super) collect_above: Cell<usize>,
}

impl Memory {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: Cell::new(limit),
            used: Cell::new(0),
            refused: Cell::new(false),
            collect_above: Cell::new(limit / 4 * 3),
        }
    }

    pub(super) fn free(&self) -> usize {
        self.limit.get().saturating_sub(self.used.get())
    }

    /// After a full collection: collect again when half of the free memory has been used, but not
    /// so soon that a script at its limit does nothing else.
    pub(super) fn collected(&self) {
        let step = (self.free() / 2).max(self.limit.get() / 64);
        self.collect_above.set((self.used.get() + step).max(self.limit.get() / 4 * 3));
    }
}

/// State that every function in the VM can reach, through the VM's callbacks.
pub(super) struct Shared {
    pub(super) memory: Memory,
    pub(super) host: Host,
}

impl Shared {
    /// The rule or limit that an error was raised for, of a script or of a test case. The VM
    /// reports that its memory ran out only by the status of the error, which does not survive a
    /// coroutine or `pcall`; its message does.
    pub(super) fn rule_of(&self, error: &[u8]) -> Option<ErrorKind> {
        if self.memory.refused.get() {
            self.host.remember_rule(ErrorKind::OutOfMemory, OUT_OF_MEMORY.as_bytes());
        }
        self.host.remembered_rule(error)
    }
}

/// The shared state of the VM of `state`. The caller must bound the lifetime.
///
/// # Safety
///
/// `state` belongs to a [`Vm`](super::Vm).
pub(super) unsafe fn shared<'a>(state: *mut lua_State) -> &'a Shared {
    // SAFETY: `Vm::new` set the pointer before anything could run.
    unsafe { &*(*ffi::lua_callbacks(state)).userdata.cast::<Shared>() }
}

/// # Safety
///
/// `state` is running.
#[cold]
pub(super) unsafe fn collect(state: *mut lua_State, memory: &Memory) {
    // SAFETY: as above.
    unsafe { ffi::lua_gc(state, ffi::LUA_GCCOLLECT, 0) };
    memory.collected();
}
