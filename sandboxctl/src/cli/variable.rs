//! `-e`: a variable of a command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// `-e NAME=VALUE`, or `-e NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: OsString,
    /// Its value; without one, the caller's variable.
    pub value: Option<OsString>,
}

pub(super) fn variable() -> impl TypedValueParser<Value = Variable> {
    OsStringValueParser::new().try_map(|written| Variable::parse(&written))
}

impl Variable {
    pub(super) fn parse(written: &OsStr) -> Result<Self, &'static str> {
        let bytes = written.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        match name {
            b"" => Err("there is no name before the '='"),
            _ => Ok(Self {
                name: OsStr::from_bytes(name).to_owned(),
                value: value.map(|value| OsStr::from_bytes(value).to_owned()),
            }),
        }
    }
}
