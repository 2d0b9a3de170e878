//! The only module with unsafe code: a safe wrapper of the Luau VM.
//!
//! mlua's safe layer is not used: it wraps every call from a script into a protected call of its
//! own and raises errors as userdata. Here plain Rust functions are C functions of the VM, errors
//! are strings as `error` creates them, and the status of the uncaught error is known exactly.
//!
//! Safety relies on the following:
//! - Luau is built with C++ exceptions and everything here with `panic = "unwind"`. An error that
//!   Luau throws unwinds through Rust frames as a foreign exception, and their destructors run
//!   (`extern "C-unwind"`). So any function of [`Call`] may leave by an error of the VM, as it
//!   may by a panic, and nothing leaks.
//! - A Rust panic must never reach Luau's frames, which cannot handle it: [`AbortOnPanic`] ends the
//!   process instead. A sandbox is for one run, so nothing of value is lost.
//! - Nothing here runs outside of a protected call except what cannot throw (stated at each place).
//! - The VM never leaves its thread: [`Vm`] holds raw pointers and so is neither `Send` nor `Sync`.
#![expect(unsafe_code, reason = "the binding to Luau's C API is here and nowhere else")]

mod abort;
mod call;
mod error;
mod raise;
mod setup;
mod shared;
mod slot;
mod text;

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Once;

use mlua::ffi;
use mlua::ffi::lua_State;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::encoded_len;

pub use call::{Call, Function, Results};
pub use error::Raise;
pub use slot::{Kind, Slot};
pub use text::Text;

use super::context::Host;
use abort::AbortOnPanic;
use shared::{Memory, Shared, collect, shared};

/// The value that `getmetatable` returns for our metatables.
pub const LOCKED: &str = "The metatable is locked";

/// The chunk's name: `=` makes it the name itself, so messages read `script:3: …`.
const CHUNK_NAME: &CStr = c"=script";

/// Luau's own fixes that are not yet enabled in this version, and that matter for hostile scripts:
/// tables stay consistent if memory runs out while they grow, and a `table.move` over a huge, empty
/// range returns.
const CORRECTIONS: [&CStr; 4] = [
    c"LuauTableRobustOom", c"LuauTableArrayShrinkOrder", c"LuauTableArrayAdjustCheck",
    c"LuauTableMoveTimeoutFix",
];

/// Number of frames shown of each end of a deep call stack.
const FRAMES_AT_AN_END: usize = 10;

/// An uncaught error.
#[derive(Debug)]
pub enum Thrown {
    /// An allocation was refused, by the VM's own status.
    OutOfMemory,
    /// Any other error, as text.
    Error(Vec<u8>),
}

/// How a chunk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It returned this many values.
    Returned(c_int),
    /// It yielded, which only a coroutine may do.
    Yielded,
    /// An error that is not a string may be any value; see [`Call::push_outcome`].
    Failed,
    /// An allocation was refused.
    OutOfMemory,
}

/// Memory that the VM may use above its limit after the script has run, so that its result can
/// always be reported.
const GRACE_BYTES: usize = 256 << 10;

/// A VM that runs one script.
pub struct Vm {
    /// Runs the script. After a failure, it holds the error and its frames.
    main: *mut lua_State,
    /// Runs our own work after the script. Kept alive by the registry.
    clerk: *mut lua_State,
    shared: *mut Shared,
}

impl Vm {
    /// A VM with Luau's standard libraries. `None` if its memory limit is too small for that.
    pub fn new(host: Host, memory_limit: usize) -> Option<Self> {
        static CORRECTED: Once = Once::new();
        CORRECTED.call_once(|| {
            for name in CORRECTIONS {
                // SAFETY: no VM runs before this has been done.
                unsafe { ffi::luau_setfflag(name.as_ptr(), 1) };
            }
        });
        let shared = Box::new(Shared { memory: Memory::new(memory_limit), host });
        let memory = &raw const shared.memory;
        // SAFETY: `allocate` meets lua_Alloc's contract, and `memory` is in a box that is freed
        // after the state is closed. lua_newstate runs protected and returns null on failure.
        let main = unsafe { ffi::lua_newstate(allocate, memory.cast_mut().cast()) };
        if main.is_null() {
            return None;
        }
        let mut vm = Self { main, clerk: main, shared: Box::into_raw(shared) };
        // SAFETY: lua_callbacks returns the VM's own struct; nothing runs in the VM yet.
        unsafe {
            let callbacks = ffi::lua_callbacks(main);
            (*callbacks).userdata = vm.shared.cast();
            (*callbacks).interrupt = Some(interrupt);
        }
        vm.protect(|call| {
            call.open_libraries();
            Ok(())
        })
        .ok()?;
        Some(vm)
    }

    /// The state shared by the functions in this VM.
    pub fn host(&self) -> &Host {
        // SAFETY: `shared` is valid until `drop`, and only ever borrowed immutably.
        unsafe { &(*self.shared).host }
    }

    /// The rule or limit that an error was raised for.
    pub fn rule_of(&self, error: &[u8]) -> Option<ErrorKind> {
        // SAFETY: as `host`.
        unsafe { &*self.shared }.rule_of(error)
    }

    /// Runs our own work in the VM; returns an error that is thrown in it.
    pub fn protect<T, F: FnOnce(&mut Call<'_>) -> Result<T, Raise>>(
        &mut self,
        work: F,
    ) -> Result<T, Thrown> {
        struct Job<T, F> {
            work: Option<F>,
            result: Option<T>,
        }
        unsafe extern "C-unwind" fn enter<T, F: FnOnce(&mut Call<'_>) -> Result<T, Raise>>(
            state: *mut lua_State,
        ) -> c_int {
            let guard = AbortOnPanic;
            // SAFETY: `protect` gives a pointer to its own Job, which outlives this call.
            let job = unsafe { &mut *ffi::lua_touserdata(state, 1).cast::<Job<T, F>>() };
            // SAFETY: `state` is a running C function's.
            let mut call = unsafe { Call::new(state) };
            if let Some(work) = job.work.take() {
                match work(&mut call) {
                    Ok(result) => job.result = Some(result),
                    Err(raise) => {
                        call.push_error(raise);
                        std::mem::forget(guard);
                        // SAFETY: the error is on the stack; the frames left to unwind own nothing.
                        unsafe { ffi::lua_error(state) }
                    }
                }
            }
            std::mem::forget(guard);
            0
        }

        let mut job = Job { work: Some(work), result: None };
        // SAFETY: lua_cpcall catches what is thrown; `job` outlives it. `clerk` is idle.
        let status = unsafe { ffi::lua_cpcall(self.clerk, enter::<T, F>, (&raw mut job).cast()) };
        if status == ffi::LUA_OK
            && let Some(result) = job.result
        {
            return Ok(result);
        }
        let thrown = if status == ffi::LUA_ERRMEM {
            Thrown::OutOfMemory
        } else {
            // SAFETY: lua_cpcall left the error on the stack; reading a string cannot throw.
            Thrown::Error(unsafe { call::string_at(self.clerk, -1) }.unwrap_or_default().to_vec())
        };
        // SAFETY: pops the error.
        unsafe { ffi::lua_settop(self.clerk, 0) };
        Err(thrown)
    }

    /// Makes the globals read-only, gives the script a table of its own in front of them, and loads
    /// `bytecode`, which must come from our own compiler.
    pub fn load(&mut self, bytecode: &[u8]) -> Result<(), Thrown> {
        let clerk = self.protect(|call| call.seal())?;
        let loaded = self.protect(|call| call.load(CHUNK_NAME, bytecode));
        let reference = loaded?;
        // SAFETY: fetching a reference pushes one value and cannot throw. The stack is empty.
        unsafe { ffi::lua_rawgeti_(self.main, ffi::LUA_REGISTRYINDEX, reference) };
        self.clerk = clerk;
        Ok(())
    }

    /// Runs the loaded chunk.
    pub fn run(&mut self) -> Ended {
        // SAFETY: lua_resume catches what is thrown. The function is on the main thread's stack.
        let status = unsafe { ffi::lua_resume_(self.main, ptr::null_mut(), 0) };
        // SAFETY: as `host`.
        let memory = unsafe { &(*self.shared).memory };
        memory.limit.set(memory.limit.get().saturating_add(GRACE_BYTES));
        match status {
            // SAFETY: gettop cannot throw.
            ffi::LUA_OK => Ended::Returned(unsafe { ffi::lua_gettop(self.main) }),
            ffi::LUA_YIELD | ffi::LUA_BREAK => Ended::Yielded,
            ffi::LUA_ERRMEM => Ended::OutOfMemory,
            _ => Ended::Failed,
        }
    }

    /// The call stack of the script, innermost frame first, without C functions; empty if the
    /// script has returned. Both ends of a deep one. At most `max` bytes encoded, in whole lines.
    pub fn traceback(&self, max: usize) -> String {
        let (mut first, mut last, mut left_out) = (Vec::new(), VecDeque::new(), 0_usize);
        for level in 0.. {
            // SAFETY: `main` is not running; getinfo by level neither allocates nor throws.
            let Some(frame) = (unsafe { raise::frame(self.main, level) }) else { break };
            let Some(line) = frame.line else { continue };
            let name = frame.name.map(|name| format!(" function {name}")).unwrap_or_default();
            let entry = format!("{}:{line}{name}\n", frame.source);
            if first.len() < FRAMES_AT_AN_END {
                first.push(entry);
                continue;
            }
            last.push_back(entry);
            if last.len() > FRAMES_AT_AN_END {
                last.pop_front();
                left_out += 1;
            }
        }
        let gap = (left_out > 0).then(|| format!("… {left_out} more\n"));
        let (mut text, mut encoded) = (String::new(), 0);
        for entry in first.into_iter().chain(gap).chain(last) {
            encoded += encoded_len(&entry);
            if encoded > max {
                break;
            }
            text.push_str(&entry);
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // SAFETY: closes the state once; destructors of userdata run and can still use `shared`,
        // which is freed last.
        unsafe {
            ffi::lua_close(self.main);
            drop(Box::from_raw(self.shared));
        }
    }
}

/// Compiles to bytecode.
///
/// # Errors
///
/// The compiler's message, as `:3: …`.
pub fn compile(source: &str) -> Result<Vec<u8>, String> {
    // SAFETY: the options are Luau's defaults; the compiler reads `source` and catches its own
    // errors, which it returns as bytecode of version 0.
    let bytecode =
        unsafe { ffi::luau_compile(source.as_bytes(), ffi::lua_CompileOptions::default()) };
    match bytecode.split_first() {
        Some((0, message)) => Err(String::from_utf8_lossy(message).into_owned()),
        _ => Ok(bytecode),
    }
}

/// The VM's allocator: counts, and refuses allocations over the limit.
unsafe extern "C" fn allocate(
    memory: *mut c_void,
    block: *mut c_void,
    old_size: usize,
    new_size: usize,
) -> *mut c_void {
    const ALIGN: usize = 16;
    // SAFETY: `Vm::new` passed this pointer, and its box outlives the state.
    let memory = unsafe { &*memory.cast::<Memory>() };
    // SAFETY: Luau passes the size that the block was allocated with, so the layouts agree; sizes
    // are below isize::MAX because the limit refuses larger ones, and freed blocks were accepted
    // before; the alignment is a power of two.
    unsafe {
        let old = Layout::from_size_align_unchecked(old_size, ALIGN);
        if new_size == 0 {
            if !block.is_null() {
                std::alloc::dealloc(block.cast(), old);
                memory.used.set(memory.used.get() - old_size);
            }
            return ptr::null_mut();
        }
        let old_size = if block.is_null() { 0 } else { old_size };
        if new_size > old_size && new_size - old_size > memory.free() {
            memory.refused.set(true);
            return ptr::null_mut();
        }
        let new = if block.is_null() {
            std::alloc::alloc(Layout::from_size_align_unchecked(new_size, ALIGN))
        } else {
            std::alloc::realloc(block.cast(), old, new_size)
        };
        if !new.is_null() {
            memory.used.set(memory.used.get() - old_size + new_size);
        }
        new.cast()
    }
}

/// Called by the VM at loop ends, calls and returns (`gc` below 0), and by its collector.
unsafe extern "C-unwind" fn interrupt(state: *mut lua_State, gc: c_int) {
    if gc >= 0 {
        return;
    }
    // SAFETY: the VM calls this with a state of its own.
    let shared = unsafe { shared(state) };
    if shared.memory.used.get() > shared.memory.collect_above.get() {
        // SAFETY: a safepoint of the VM, where it may collect; called by the VM itself.
        unsafe { collect(state, &shared.memory) };
    }
    if shared.host.is_stopped() {
        // SAFETY: a safepoint, where an error may be raised.
        unsafe { raise::raise_stopped(state, &shared.host) };
    }
}
