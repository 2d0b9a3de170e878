//! Where values are, and of which type.

use std::ffi::c_int;

use mlua::ffi;

/// The location of a value: an argument, a pushed value, or an upvalue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub(super) c_int);

impl Slot {
    /// Argument number `n`, from 1.
    pub const fn arg(n: c_int) -> Self {
        assert!(n > 0);
        Self(n)
    }

    /// Upvalue number `n`, from 1.
    pub const fn upvalue(n: c_int) -> Self {
        assert!(n > 0 && n < 256);
        Self(ffi::lua_upvalueindex(n))
    }

    /// The number of an argument.
    pub const fn number(self) -> c_int {
        self.0
    }
}

/// The types of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No value: after the last argument.
    None,
    /// `nil`.
    Nil,
    /// A boolean.
    Boolean,
    /// A number.
    Number,
    /// A string.
    String,
    /// A table.
    Table,
    /// `json.null`.
    Null,
    /// Anything else.
    Other,
}
