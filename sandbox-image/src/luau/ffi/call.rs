//! The view of the VM that a Rust function has while a script calls it.
//!
//! Slots are positive stack indices or upvalues: an index without a value reads as no value, so a
//! wrong [`Slot`] is never unsound. Borrowed bytes borrow the [`Call`], so nothing can be pushed or
//! popped while they live.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex};

use mlua::ffi;
use mlua::ffi::lua_State;
use sandbox_protocol::ErrorKind;

use super::super::context::{Host, shown};
use super::abort::AbortOnPanic;
use super::error::Raise;
use super::shared::{collect, shared};
use super::slot::{Kind, Slot};
use super::text::Text;
use crate::files::handle::Handle;

/// The tag of a file handle's userdata: checked by the VM, cannot be forged.
pub(super) const HANDLE_TAG: c_int = 1;
/// The tag of the light userdata that is `json.null`, the only light userdata in the VM.
pub(super) const NULL_TAG: c_int = 1;

/// The number of results of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed(c_int);

/// The result of one of our functions.
pub type Results = Result<Pushed, Raise>;

/// A Rust function that scripts can call: functions and closures that capture nothing.
pub trait Function: Fn(&mut Call<'_>) -> Results + Copy + 'static {}
impl<F: Fn(&mut Call<'_>) -> Results + Copy + 'static> Function for F {}

/// The view of one call.
pub struct Call<'a> {
    pub(super) state: *mut lua_State,
    pub(super) host: &'a Host,
}

/// Lets Luau call `F`.
unsafe extern "C-unwind" fn enter<F: Function>(state: *mut lua_State) -> c_int {
    const { assert!(size_of::<F>() == 0, "a function of the VM captures nothing") };
    let guard = AbortOnPanic;
    // SAFETY: `F` is zero-sized and Copy, and a value of it was given when it was registered.
    let function = unsafe { ptr::NonNull::<F>::dangling().read() };
    // SAFETY: Luau calls this with the state of the running function.
    let mut call = unsafe { Call::new(state) };
    let result = function(&mut call);
    match result {
        Ok(Pushed(count)) => {
            std::mem::forget(guard);
            count
        }
        Err(raise) => {
            call.push_error(raise);
            std::mem::forget(guard);
            // SAFETY: the error is on top; every Rust value that owns something has been dropped.
            unsafe { ffi::lua_error(state) }
        }
    }
}

impl<'a> Call<'a> {
    /// # Safety
    ///
    /// `state` is that of a running C function, of a `Vm` that outlives `'a`.
    pub(super) unsafe fn new(state: *mut lua_State) -> Self {
        // SAFETY: as promised.
        Self { state, host: unsafe { &shared(state).host } }
    }

    /// The state shared by the functions in this VM.
    pub const fn host(&self) -> &'a Host {
        self.host
    }

    /// The rule or limit that an error was raised for.
    pub fn rule_of(&self, error: &[u8]) -> Option<ErrorKind> {
        // SAFETY: `new`'s promise.
        unsafe { shared(self.state) }.rule_of(error)
    }

    // --- reading -----------------------------------------------------------------------------

    /// The number of values: the arguments, and what was pushed since.
    pub fn len(&self) -> c_int {
        // SAFETY: `state` is running (so for every call below: `new`'s promise).
        unsafe { ffi::lua_gettop(self.state) }
    }

    /// The value that was pushed last.
    pub fn top(&self) -> Slot {
        Slot(self.len())
    }

    /// The type of a value.
    pub fn kind(&self, slot: Slot) -> Kind {
        // SAFETY: slots are valid to read (module documentation; so for all readers below).
        match unsafe { ffi::lua_type(self.state, slot.0) } {
            ffi::LUA_TNONE => Kind::None,
            ffi::LUA_TNIL => Kind::Nil,
            ffi::LUA_TBOOLEAN => Kind::Boolean,
            ffi::LUA_TNUMBER => Kind::Number,
            ffi::LUA_TSTRING => Kind::String,
            ffi::LUA_TTABLE => Kind::Table,
            ffi::LUA_TLIGHTUSERDATA => Kind::Null,
            _ => Kind::Other,
        }
    }

    /// Whether there is no value, or it is nil.
    pub fn is_nil(&self, slot: Slot) -> bool {
        matches!(self.kind(slot), Kind::None | Kind::Nil)
    }

    /// The type's name, as in `typeof`.
    pub fn type_name(&self, slot: Slot) -> String {
        // SAFETY: gives a string of the VM's, valid while the value is; copied at once.
        unsafe { CStr::from_ptr(ffi::luaL_typename(self.state, slot.0)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Whether a value is truthy.
    pub fn is_true(&self, slot: Slot) -> bool {
        // SAFETY: reads.
        unsafe { ffi::lua_toboolean(self.state, slot.0) != 0 }
    }

    /// A number's value.
    pub fn number(&self, slot: Slot) -> Option<f64> {
        (self.kind(slot) == Kind::Number)
            // SAFETY: reads a number.
            .then(|| unsafe { ffi::lua_tonumberx(self.state, slot.0, ptr::null_mut()) })
    }

    /// A number's value, or that of a string that is a valid numeral.
    pub fn to_number(&self, slot: Slot) -> Option<f64> {
        let mut is_number = 0;
        // SAFETY: reads; a string stays as it is.
        let number = unsafe { ffi::lua_tonumberx(self.state, slot.0, &raw mut is_number) };
        (is_number != 0).then_some(number)
    }

    /// A string's bytes.
    pub fn string(&self, slot: Slot) -> Option<&[u8]> {
        // SAFETY: the string stays on the stack while `self` is borrowed.
        unsafe { string_at(self.state, slot.0) }
    }

    /// A string's bytes, or those of a number, which is converted to a string in its slot.
    pub fn text(&mut self, slot: Slot) -> Option<&[u8]> {
        // SAFETY: slots are valid to read.
        match unsafe { ffi::lua_type(self.state, slot.0) } {
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER => {
                // SAFETY: one of the two; it stays on the stack while `self` is borrowed.
                Some(unsafe { text_at(self.state, slot.0) })
            }
            _ => None,
        }
    }

    /// The identity of a table or another object.
    pub fn identity(&self, slot: Slot) -> usize {
        // SAFETY: reads.
        unsafe { ffi::lua_topointer(self.state, slot.0) as usize }
    }

    /// The identity of a value's metatable, 0 if it has none.
    pub fn metatable_identity(&self, slot: Slot) -> usize {
        // SAFETY: reads.
        unsafe { ffi::lua_getmetatablepointer(self.state, slot.0) as usize }
    }

    /// A file handle.
    pub fn handle(&self, slot: Slot) -> Option<&Arc<Mutex<Handle>>> {
        // SAFETY: the tag says what the userdata holds; it stays on the stack, or an upvalue,
        // while `self` is borrowed.
        unsafe {
            ffi::lua_touserdatatagged(self.state, slot.0, HANDLE_TAG)
                .cast::<Arc<Mutex<Handle>>>()
                .as_ref()
        }
    }

    // --- pushing -----------------------------------------------------------------------------

    /// Returns the last `count` values as the function's results.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn results(&self, count: c_int) -> Pushed {
        assert!((0..=self.len()).contains(&count), "a function gives what it has pushed");
        Pushed(count)
    }

    /// Reserves space for `count` more values. Every function starts with space for 20, and every
    /// push below needs it.
    pub fn reserve(&mut self, count: c_int) -> Result<(), Raise> {
        // SAFETY: grows the stack, or reports that it is at its limit.
        if unsafe { ffi::lua_checkstack(self.state, count) } == 0 {
            return Err(Raise::Error("stack overflow".to_owned()));
        }
        Ok(())
    }

    /// Pops values until `len` are left.
    pub fn truncate(&mut self, len: c_int) {
        if (0..self.len()).contains(&len) {
            // SAFETY: only ever shrinks.
            unsafe { ffi::lua_settop(self.state, len) };
        }
    }

    /// Pushes nil.
    pub fn push_nil(&mut self) {
        // SAFETY: room was reserved (so for all pushers).
        unsafe { ffi::lua_pushnil(self.state) };
    }

    /// Pushes a boolean.
    pub fn push_boolean(&mut self, value: bool) {
        // SAFETY: as `push_nil`.
        unsafe { ffi::lua_pushboolean(self.state, value.into()) };
    }

    /// Pushes a number.
    pub fn push_number(&mut self, value: f64) {
        // SAFETY: as `push_nil`.
        unsafe { ffi::lua_pushnumber(self.state, value) };
    }

    /// Pushes a string.
    pub fn push_string(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        // SAFETY: as `push_nil`; the VM copies the bytes.
        unsafe { ffi::lua_pushlstring_(self.state, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Pushes a copy of a value.
    pub fn push(&mut self, slot: Slot) {
        // SAFETY: as `push_nil`; an empty slot gives nil.
        unsafe { ffi::lua_pushvalue(self.state, slot.0) };
    }

    /// Pops the value on top and stores it in another slot.
    pub fn replace(&mut self, slot: Slot) {
        assert!((1..self.len()).contains(&slot.0));
        // SAFETY: both are there.
        unsafe { ffi::lua_replace(self.state, slot.0) };
    }

    /// Pushes `json.null`.
    pub fn push_null(&mut self) {
        // SAFETY: as `push_nil`.
        unsafe { ffi::lua_pushlightuserdatatagged(self.state, ptr::null_mut(), NULL_TAG) };
    }

    /// Pushes a function; the last `upvalues` values become its upvalues.
    pub fn push_function<F: Function>(&mut self, name: &'static CStr, _: F, upvalues: u8) {
        assert!(c_int::from(upvalues) <= self.len(), "upvalues are pushed first");
        // SAFETY: as `push_nil`; the name is static, and the upvalues are there.
        unsafe {
            ffi::lua_pushcclosurek(self.state, enter::<F>, name.as_ptr(), upvalues.into(), None);
        }
    }

    /// Pushes a string that `write` produces.
    pub fn push_text(
        &mut self,
        write: impl FnOnce(&mut Text<'_>) -> Result<(), Raise>,
    ) -> Result<(), Raise> {
        let mut storage = MaybeUninit::uninit();
        // SAFETY: the text never moves, and `write` cannot touch the stack meanwhile.
        let mut text = unsafe { Text::new(self.state, &mut storage, &shared(self.state).memory) };
        write(&mut text)?;
        text.finish();
        Ok(())
    }

    /// Pushes a file handle.
    pub fn push_handle(&mut self, handle: Arc<Mutex<Handle>>) {
        let size = size_of::<Arc<Mutex<Handle>>>();
        // SAFETY: as `push_nil`; the userdata has the size and alignment of what is written, and
        // its tag's destructor reads the same type.
        unsafe {
            ffi::lua_newuserdatataggedwithmetatable(self.state, size, HANDLE_TAG)
                .cast::<Arc<Mutex<Handle>>>()
                .write(handle);
        }
    }

    // --- tables ------------------------------------------------------------------------------

    pub(super) fn assert_table(&self, table: Slot) {
        assert!(self.kind(table) == Kind::Table, "a table was asked for");
    }

    /// Pushes a new table.
    pub fn push_table(&mut self, array: usize, record: usize) -> Slot {
        let size = |count: usize| c_int::try_from(count).unwrap_or(0);
        // SAFETY: as `push_nil`.
        unsafe { ffi::lua_createtable(self.state, size(array), size(record)) };
        self.top()
    }

    /// Pops a value, then the key below it, and sets that field.
    pub fn set_pair(&mut self, table: Slot) {
        self.assert_table(table);
        assert!(self.len() >= 2);
        // SAFETY: a table, and two values to take.
        unsafe { ffi::lua_rawset(self.state, table.0) };
    }

    /// Pops a value and sets the field `name` to it.
    pub fn set_field(&mut self, table: Slot, name: &CStr) {
        self.assert_table(table);
        // SAFETY: a table, and a value to take: the table itself lies at least as high.
        unsafe { ffi::lua_rawsetfield(self.state, table.0, name.as_ptr()) };
    }

    /// Sets the field `name` to a string.
    pub fn set_string(&mut self, table: Slot, name: &CStr, bytes: impl AsRef<[u8]>) {
        self.push_string(bytes);
        self.set_field(table, name);
    }

    /// Sets the field `name` to a number.
    pub fn set_number(&mut self, table: Slot, name: &CStr, value: f64) {
        self.push_number(value);
        self.set_field(table, name);
    }

    /// Sets the field `name` to a boolean.
    pub fn set_boolean(&mut self, table: Slot, name: &CStr, value: bool) {
        self.push_boolean(value);
        self.set_field(table, name);
    }

    /// Sets the field `name` to a function without upvalues.
    pub fn set_function<F: Function>(&mut self, table: Slot, name: &'static CStr, function: F) {
        self.push_function(name, function, 0);
        self.set_field(table, name);
    }

    /// Pops a value and sets the element `index` to it.
    pub fn set_element(&mut self, table: Slot, index: usize) -> Result<(), Raise> {
        self.assert_table(table);
        let index = c_int::try_from(index).map_err(|_| Raise::OutOfMemory)?;
        // SAFETY: as `set_field`.
        unsafe { ffi::lua_rawseti_(self.state, table.0, index) };
        Ok(())
    }

    /// Pushes the field `key`, without metamethods.
    pub fn push_field(&mut self, table: Slot, key: &[u8]) {
        self.push_string(key);
        self.push_value_of(table);
    }

    /// Pushes the element `index`, without metamethods.
    pub fn push_element(&mut self, table: Slot, index: usize) {
        self.assert_table(table);
        // SAFETY: a table; an index that is out of range is no element.
        unsafe { ffi::lua_rawgeti_(self.state, table.0, c_int::try_from(index).unwrap_or(0)) };
    }

    /// Pops a key and pushes the value that `table` has for it, without metamethods.
    pub fn push_value_of(&mut self, table: Slot) {
        self.assert_table(table);
        assert!(self.len() > table.0);
        // SAFETY: a table, and a key on top, which the value replaces.
        unsafe { ffi::lua_rawget(self.state, table.0) };
    }

    /// Whether two values are the same, without metamethods.
    pub fn is_same(&self, one: Slot, other: Slot) -> bool {
        // SAFETY: reads.
        unsafe { ffi::lua_rawequal(self.state, one.0, other.0) != 0 }
    }

    /// Pushes the next key and value of an iteration that starts with 0. `None` at the end.
    pub fn next(&mut self, table: Slot, position: c_int) -> Option<c_int> {
        self.assert_table(table);
        assert!(position >= 0);
        // SAFETY: a table; any position of 0 or more is legal.
        let next = unsafe { ffi::lua_rawiter(self.state, table.0, position) };
        (next >= 0).then_some(next)
    }

    /// Makes a table read-only.
    pub fn freeze(&mut self, table: Slot) {
        self.assert_table(table);
        // SAFETY: a table.
        unsafe { ffi::lua_setreadonly(self.state, table.0, 1) };
    }

    /// Whether a table is read-only.
    pub fn is_frozen(&self, table: Slot) -> bool {
        self.assert_table(table);
        // SAFETY: a table.
        unsafe { ffi::lua_getreadonly(self.state, table.0) != 0 }
    }

    /// Pops a metatable and sets it on `table`.
    pub fn set_metatable(&mut self, table: Slot) {
        self.assert_table(table);
        self.assert_table(self.top());
        // SAFETY: both are tables.
        unsafe { ffi::lua_setmetatable(self.state, table.0) };
    }

    /// Stores the value on top for [`push_kept`](Self::push_kept), where no script can reach it.
    pub fn keep(&mut self, name: &CStr) {
        assert!(self.len() > 0);
        // SAFETY: the registry is a table; takes one value.
        unsafe { ffi::lua_rawsetfield(self.state, ffi::LUA_REGISTRYINDEX, name.as_ptr()) };
    }

    /// Pushes the stored value.
    pub fn push_kept(&mut self, name: &CStr) {
        // SAFETY: the registry is a table.
        unsafe { ffi::lua_rawgetfield(self.state, ffi::LUA_REGISTRYINDEX, name.as_ptr()) };
    }

    // --- calling and collecting --------------------------------------------------------------

    /// Pushes a value as text, using its `__tostring` if it has one, which is code of the script.
    pub fn push_display(&mut self, slot: Slot) {
        // SAFETY: as `push_nil`; may run the script and throw, which unwinds through here.
        unsafe { ffi::luaL_tolstring_(self.state, slot.0, ptr::null_mut()) };
    }

    /// The text of an error: the `tostring` of a string, a number, or an object with `__tostring`, which
    /// is the script's own code and may fail.
    pub fn describe_error(&mut self, error: Slot) -> Vec<u8> {
        // A string takes no memory of the VM, which may have none left.
        if let Some(text) = self.string(error) {
            return shown(text).to_vec();
        }
        let kind = self.kind(error);
        let type_name = self.type_name(error);
        let has_text = matches!(kind, Kind::Number | Kind::Nil | Kind::Boolean | Kind::Null)
            || self.metatable_identity(error) != 0;
        self.push_function(
            c"tostring",
            |call| {
                call.push_display(Slot::arg(1));
                Ok(call.results(1))
            },
            0,
        );
        self.push(error);
        if has_text && self.call(1).is_ok() {
            let text = self.string(self.top()).unwrap_or_default();
            // An object without `__tostring` would return its address, which is not useful.
            if kind != Kind::Table || !text.starts_with(b"table: 0x") {
                return shown(text).to_vec();
            }
        }
        format!("(error object is a {type_name} value)").into_bytes()
    }

    /// Calls the function below the last `arguments` values, pops all of them, and pushes one
    /// result. A string error is returned with the caller's position in front.
    pub fn call(&mut self, arguments: c_int) -> Result<(), Raise> {
        assert!(arguments >= 0 && self.len() > arguments);
        // SAFETY: function and arguments are there.
        let status = unsafe { ffi::lua_pcall(self.state, arguments, 1, 0) };
        match status {
            ffi::LUA_OK => Ok(()),
            ffi::LUA_ERRMEM => Err(Raise::OutOfMemory),
            _ => {
                let text = self.string(self.top()).unwrap_or(b"error in a function");
                Err(Raise::Error(String::from_utf8_lossy(shown(text)).into_owned()))
            }
        }
    }

    /// Collects all garbage: unreachable handles are closed when it returns.
    pub fn collect_garbage(&mut self) {
        // SAFETY: a running C function may collect.
        unsafe { collect(self.state, &shared(self.state).memory) };
    }

    /// How many bytes the VM, or what we build for it outside, may still allocate.
    pub fn free_memory(&self) -> usize {
        // SAFETY: `new`'s promise.
        unsafe { shared(self.state) }.memory.free()
    }

    /// Stops a long native function if the run must end.
    pub fn check_stop(&self) -> Result<(), Raise> {
        if self.host.is_stopped() { Err(Raise::Stopped) } else { Ok(()) }
    }
}

/// A string's bytes.
///
/// # Safety
///
/// `state` is valid, `index` is valid there, and the value stays in place for `'a`.
pub(super) unsafe fn string_at<'a>(state: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    // SAFETY: as promised.
    unsafe { (ffi::lua_type(state, index) == ffi::LUA_TSTRING).then(|| text_at(state, index)) }
}

/// The bytes of a string, or of a number, which is converted to a string in place.
///
/// # Safety
///
/// As `string_at`, and the value is a string or a number.
unsafe fn text_at<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: as promised; returns null only for other types.
    unsafe {
        let data = ffi::lua_tolstring(state, index, &raw mut len);
        std::slice::from_raw_parts(data.cast(), len)
    }
}
