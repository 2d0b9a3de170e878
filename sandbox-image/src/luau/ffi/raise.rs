//! Raising errors, and the script's position when one is raised.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use mlua::ffi;
use mlua::ffi::lua_State;
use sandbox_protocol::ErrorKind;

use super::super::context::Host;
use super::call::Call;
use super::error::{OUT_OF_MEMORY, Raise};
use super::slot::{Kind, Slot};

impl Raise {
    /// An argument of the wrong type, in Luau's words.
    pub fn expected(call: &Call<'_>, argument: Slot, function: &str, expected: &str) -> Self {
        if call.kind(argument) == Kind::None {
            return Self::missing(argument.0, function, expected);
        }
        let got = call.type_name(argument);
        Self::argument(argument, function, &format!("{expected} expected, got {got}"))
    }
}

/// A frame of the call stack.
pub(super) struct Frame {
    pub(super) source: String,
    /// `None` in a C function.
    pub(super) line: Option<c_int>,
    pub(super) name: Option<String>,
}

impl Call<'_> {
    /// Pushes the string of an error. Consumes the error, so that nothing is left to drop.
    pub(super) fn push_error(&mut self, raise: Raise) {
        // SAFETY: makes room or throws; then as `push_nil`.
        unsafe { ffi::lua_rawcheckstack(self.state, 4) };
        match raise {
            Raise::Error(message) => self.push_positioned(&message),
            Raise::Rule(kind, message) => self.push_rule(kind, &message),
            Raise::File(error) if error.breaks_rule() => {
                self.push_rule(error.kind, &error.to_string());
            }
            Raise::File(error) => self.push_positioned(&error.to_string()),
            Raise::OutOfMemory => {
                self.host.remember_rule(ErrorKind::OutOfMemory, OUT_OF_MEMORY.as_bytes());
                self.push_string(OUT_OF_MEMORY);
            }
            // SAFETY: `new`'s promise.
            Raise::Stopped => unsafe { push_stopped(self.state, self.host) },
        }
    }

    fn push_rule(&mut self, kind: ErrorKind, message: &str) {
        self.push_positioned(message);
        if let Some(raised) = self.string(self.top()) {
            self.host.remember_rule(kind, raised);
        }
    }

    fn push_positioned(&mut self, message: &str) {
        // SAFETY: `push_error` reserved the space. Level 1 is the caller of the function.
        unsafe { ffi::luaL_where(self.state, 1) };
        self.push_string(message);
        // SAFETY: two strings are there.
        unsafe { ffi::lua_concat(self.state, 2) };
    }
}

/// A frame of a thread's call stack, 0 being the innermost.
///
/// # Safety
///
/// `state` is valid.
pub(super) unsafe fn frame(state: *mut lua_State, level: c_int) -> Option<Frame> {
    let mut info = MaybeUninit::<ffi::lua_Debug>::zeroed();
    // SAFETY: getinfo by level fills the fields that "sln" names, or returns 0; the strings belong
    // to the VM or are in `info` itself, and are copied.
    unsafe {
        if ffi::lua_getinfo(state, level, c"sln".as_ptr(), info.as_mut_ptr()) == 0 {
            return None;
        }
        let info = info.assume_init_ref();
        let text = |text: *const c_char| {
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Some(Frame {
            source: text(info.short_src).unwrap_or_default(),
            line: (info.currentline > 0).then_some(info.currentline),
            name: text(info.name),
        })
    }
}

/// Pushes the string of the error that ends a run, with the position of the innermost Lua frame.
///
/// # Safety
///
/// `state` is running and has space for one value.
unsafe fn push_stopped(state: *mut lua_State, host: &Host) {
    let position = (0..4)
        // SAFETY: as promised.
        .map_while(|level| unsafe { frame(state, level) })
        .find_map(|frame| Some(format!("{}:{}: ", frame.source, frame.line?)))
        .unwrap_or_default();
    let message = format!("{position}{}", host.stop.reason().error().message);
    // SAFETY: the VM copies the bytes; if it throws instead, unwinding drops `message`.
    unsafe { ffi::lua_pushlstring_(state, message.as_ptr().cast(), message.len()) };
}

/// Raises the error that ends a run.
///
/// # Safety
///
/// `state` is at a safepoint.
#[cold]
pub(super) unsafe fn raise_stopped(state: *mut lua_State, host: &Host) -> ! {
    // SAFETY: as promised.
    unsafe {
        ffi::lua_rawcheckstack(state, 1);
        push_stopped(state, host);
        ffi::lua_error(state)
    }
}
