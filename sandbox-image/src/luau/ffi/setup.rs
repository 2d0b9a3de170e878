//! Setting a VM up.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex};

use memchr::memmem;
use mlua::ffi;
use mlua::ffi::lua_State;

use super::call::{Call, HANDLE_TAG, NULL_TAG};
use super::error::{OUT_OF_MEMORY, Raise};
use super::shared::shared;
use super::slot::Slot;
use crate::files::handle::Handle;

/// Closes a handle that was collected, or that still exists when the VM is closed.
unsafe extern "C" fn destroy_handle(state: *mut lua_State, data: *mut c_void) {
    // SAFETY: `push_handle` wrote the Arc, and the VM destroys a userdata once.
    let handle = unsafe { data.cast::<Arc<Mutex<Handle>>>().read() };
    // SAFETY: called by the VM, for which `shared` is valid.
    unsafe { shared(state) }.host.forget(&handle);
}

impl Call<'_> {
    pub(super) fn open_libraries(&mut self) {
        // Not of the run's seed: with the key an address can be decoded.
        let random = || RandomState::new().build_hasher().finish();
        // SAFETY: it takes numbers. `tostring` shows addresses encoded with them: those of this process
        // are no business of a script's.
        unsafe {
            ffi::lua_setpointerencodekey(self.state, random(), random(), random(), random());
        }
        // SAFETY: as `push_nil`; runs in a protected call.
        unsafe { ffi::luaL_openlibs(self.state) };
    }

    /// Pops a value and sets the global `name` to it.
    pub fn set_global(&mut self, name: &CStr) {
        assert!(self.len() > 0);
        // SAFETY: takes one value.
        unsafe { ffi::lua_setfield(self.state, ffi::LUA_GLOBALSINDEX, name.as_ptr()) };
    }

    /// Pushes the global `name`.
    pub fn push_global(&mut self, name: &CStr) -> Slot {
        // SAFETY: as `push_nil`.
        unsafe { ffi::lua_getfield(self.state, ffi::LUA_GLOBALSINDEX, name.as_ptr()) };
        self.top()
    }

    /// Pops a metatable and uses it for all file handles.
    pub fn set_handle_metatable(&mut self) {
        self.assert_table(self.top());
        // SAFETY: a table; the destructor matches what `push_handle` creates.
        unsafe {
            ffi::lua_setuserdatadtor(self.state, HANDLE_TAG, Some(destroy_handle));
            ffi::lua_setuserdatametatable(self.state, HANDLE_TAG);
        }
    }

    /// Pops a metatable and uses it for `json.null`, whose type is called `null`.
    pub fn set_null_metatable(&mut self) {
        self.assert_table(self.top());
        self.push_null();
        let null = self.top();
        self.push(Slot(null.0 - 1));
        // SAFETY: a light userdata and a table; the name is set once, as Luau asks.
        unsafe {
            ffi::lua_setmetatable(self.state, null.0);
            ffi::lua_setlightuserdataname(self.state, NULL_TAG, c"null".as_ptr());
        }
        self.truncate(null.0 - 2);
    }

    /// Makes libraries and globals read-only, and gives this thread globals of its own: a copy that
    /// contains itself as `_G`, from which the others cannot be reached. Returns a thread for our
    /// own work, which keeps the original globals and is kept alive by the registry.
    pub(super) fn seal(&mut self) -> Result<*mut lua_State, Raise> {
        // SAFETY: as `push_nil`; the thread is anchored before anything can collect it.
        unsafe {
            ffi::luaL_sandbox(self.state, 1);
            // Luau leaves the metatable of vectors writable.
            ffi::lua_pushvector(self.state, 0.0, 0.0, 0.0);
            if ffi::lua_getmetatable(self.state, -1) != 0 {
                ffi::lua_setreadonly(self.state, -1, 1);
            }
            let clerk = ffi::lua_newthread(self.state);
            ffi::lua_ref(self.state, -1);
            ffi::lua_clonetable(self.state, ffi::LUA_GLOBALSINDEX);
            ffi::lua_replace(self.state, ffi::LUA_GLOBALSINDEX);
            ffi::lua_pushvalue(self.state, ffi::LUA_GLOBALSINDEX);
            ffi::lua_setfield(self.state, ffi::LUA_GLOBALSINDEX, c"_G".as_ptr());
            Ok(clerk)
        }
    }

    /// Loads a chunk and returns a reference to its function.
    pub(super) fn load(&mut self, name: &CStr, bytecode: &[u8]) -> Result<c_int, Raise> {
        let (data, size) = (bytecode.as_ptr().cast::<c_char>(), bytecode.len());
        // The compiler detects by name which globals a script sets, and lets the VM treat the
        // others as constant. It does not detect writes through the table, which can only be
        // reached by the name `_G`. Bytecode stores every name with its length in front.
        let is_safe = memmem::find(bytecode, b"\x02_G").is_none();
        // SAFETY: the globals are a table.
        unsafe { ffi::lua_setsafeenv(self.state, ffi::LUA_GLOBALSINDEX, is_safe.into()) };
        // SAFETY: the bytecode comes from our own compiler.
        if unsafe { ffi::luau_load(self.state, name.as_ptr(), data, size, 0) } != 0 {
            let message = self.string(self.top()).unwrap_or(b"the chunk cannot be loaded");
            // The loader catches the VM's own error and returns only its text.
            if message == OUT_OF_MEMORY.as_bytes() {
                return Err(Raise::OutOfMemory);
            }
            return Err(Raise::Error(String::from_utf8_lossy(message).into_owned()));
        }
        // SAFETY: the function is on top.
        Ok(unsafe { ffi::lua_ref(self.state, -1) })
    }

    /// Pushes value number `index` of the script's own thread, 0 for the last one.
    pub fn push_outcome(&mut self, index: c_int) {
        // SAFETY: the main thread is not running, and its values can be copied from.
        unsafe {
            let main = ffi::lua_mainthread(self.state);
            let len = ffi::lua_gettop(main);
            let index = if index == 0 { len } else { index };
            if main == self.state || !(1..=len).contains(&index) {
                ffi::lua_pushnil(self.state);
            } else {
                ffi::lua_xpush(main, self.state, index);
            }
        }
    }
}
