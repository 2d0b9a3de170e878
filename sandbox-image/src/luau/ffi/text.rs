//! Strings that are built in the VM's own memory, under its limit.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use mlua::ffi;
use mlua::ffi::lua_State;

use super::error::Raise;
use super::shared::{Memory, collect};
use crate::files::FileError;

/// `luaL_Strbuf` of lualib.h, whose fields are private in the binding.
#[repr(C)]
pub(super) struct Strbuf {
    position: *mut c_char,
    end: *mut c_char,
    state: *mut lua_State,
    storage: *mut c_void,
    inline: [c_char; ffi::LUA_BUFFERSIZE],
}

const _: () = assert!(size_of::<Strbuf>() == size_of::<ffi::luaL_Strbuf>());

/// A growable string. If it is reserved and filled exactly, it becomes the script's string without
/// a copy.
pub struct Text<'a> {
    buffer: *mut Strbuf,
    memory: &'a Memory,
    len: usize,
    storage: PhantomData<&'a mut Strbuf>,
}

impl<'a> Text<'a> {
    /// # Safety
    ///
    /// `state` is that of a running C function, `storage` does not move, and nothing else uses the
    /// stack while the text lives.
    pub(super) unsafe fn new(
        state: *mut lua_State,
        storage: &'a mut MaybeUninit<Strbuf>,
        memory: &'a Memory,
    ) -> Self {
        let buffer = storage.as_mut_ptr();
        // SAFETY: initialises everything that Luau reads of it.
        unsafe { ffi::luaL_buffinit(state, buffer.cast()) };
        Self { buffer, memory, len: 0, storage: PhantomData }
    }

    /// The number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Reserves space for `more` bytes at once.
    ///
    /// # Errors
    ///
    /// [`Raise::OutOfMemory`] if that is more than the VM may have after a garbage collection.
    pub fn reserve(&mut self, more: usize) -> Result<(), Raise> {
        // SAFETY: `new`'s promise; position and end are in one block (this holds for all uses
        // below).
        unsafe {
            let room = (*self.buffer).end.offset_from((*self.buffer).position).cast_unsigned();
            if room >= more {
                return Ok(());
            }
            // Growing copies: both blocks exist for a moment.
            let wanted = self.len.saturating_add(more);
            if wanted > self.memory.free() {
                collect((*self.buffer).state, self.memory);
                if wanted > self.memory.free() {
                    return Err(Raise::OutOfMemory);
                }
            }
            ffi::luaL_prepbuffsize(self.buffer.cast(), more);
        }
        Ok(())
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Raise> {
        self.reserve(bytes.len())?;
        // SAFETY: there is room.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr().cast(), (*self.buffer).position, bytes.len());
            (*self.buffer).position = (*self.buffer).position.add(bytes.len());
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Lets `fill` write up to `size` bytes in place; it returns those that it wrote, which must
    /// start at the beginning of its buffer. Returns their number.
    ///
    /// # Panics
    ///
    /// If `fill` returns other bytes.
    pub fn fill(
        &mut self,
        size: usize,
        fill: impl for<'b> FnOnce(&'b mut [MaybeUninit<u8>]) -> Result<&'b [u8], FileError>,
    ) -> Result<usize, Raise> {
        self.reserve(size)?;
        // SAFETY: there is space for `size` bytes, which need not be initialised.
        let spare = unsafe {
            std::slice::from_raw_parts_mut((*self.buffer).position.cast::<MaybeUninit<u8>>(), size)
        };
        let start = spare.as_ptr().cast::<u8>();
        let filled = fill(spare)?;
        assert!(ptr::eq(filled.as_ptr(), start) && filled.len() <= size);
        let filled = filled.len();
        // SAFETY: that many bytes after the position are initialised.
        unsafe { (*self.buffer).position = (*self.buffer).position.add(filled) };
        self.len += filled;
        Ok(filled)
    }

    /// Removes `byte` from the end, if it is the last one.
    pub fn drop_last(&mut self, byte: u8) {
        if self.len > 0 {
            // SAFETY: there is at least one byte before the position.
            unsafe {
                let last = (*self.buffer).position.sub(1);
                if last.cast::<u8>().read() == byte {
                    (*self.buffer).position = last;
                    self.len -= 1;
                }
            }
        }
    }

    /// Pushes the string.
    pub(super) fn finish(self) {
        // SAFETY: `new`'s promise; there has been space for one value from the start.
        unsafe { ffi::luaL_pushresult(self.buffer.cast()) };
    }
}
