//! The optional arguments and the option tables of our functions.

use super::ffi::{Call, Kind, Raise, Slot};

/// An optional string.
pub(super) fn optional_text<'c>(
    call: &'c mut Call<'_>,
    slot: Slot,
    function: &str,
) -> Result<Option<&'c [u8]>, Raise> {
    match call.kind(slot) {
        Kind::None | Kind::Nil => Ok(None),
        Kind::String | Kind::Number => Ok(call.text(slot)),
        _ => Err(Raise::expected(call, slot, function, "string")),
    }
}

/// Checks that an option table has no other keys than these, and returns where it is.
pub(super) fn options(
    call: &mut Call<'_>,
    table: Slot,
    function: &str,
    known: &[&str],
) -> Result<Slot, Raise> {
    match call.kind(table) {
        Kind::None | Kind::Nil => return Ok(table),
        Kind::Table => {}
        _ => return Err(Raise::expected(call, table, function, "table")),
    }
    let top = call.len();
    let mut position = 0;
    while let Some(next) = call.next(table, position) {
        position = next;
        let key = Slot::arg(top + 1);
        let is_known =
            call.string(key).is_some_and(|key| known.iter().any(|name| name.as_bytes() == key));
        if !is_known {
            call.push_display(key);
            let name = String::from_utf8_lossy(call.string(call.top()).unwrap_or_default());
            return Err(Raise::Error(format!("unknown option: '{name}'")));
        }
        call.truncate(top);
    }
    Ok(table)
}

/// Reads an option with `take`, from a table that may be missing.
pub(super) fn option<T>(
    call: &mut Call<'_>,
    table: Slot,
    name: &str,
    expected: &str,
    take: impl FnOnce(&Call<'_>, Slot) -> Option<T>,
) -> Result<Option<T>, Raise> {
    if call.is_nil(table) {
        return Ok(None);
    }
    let top = call.len();
    call.push_field(table, name.as_bytes());
    let value = call.top();
    let taken = if call.is_nil(value) {
        Ok(None)
    } else {
        take(call, value).map(Some).ok_or_else(|| {
            let got = call.type_name(value);
            Raise::Error(format!("invalid option '{name}' ({expected} expected, got {got})"))
        })
    };
    call.truncate(top);
    taken
}

/// A boolean.
pub(super) fn flag(
    call: &mut Call<'_>,
    table: Slot,
    name: &str,
    default: bool,
) -> Result<bool, Raise> {
    let given = option(call, table, name, "boolean", |call, value| {
        (call.kind(value) == Kind::Boolean).then(|| call.is_true(value))
    })?;
    Ok(given.unwrap_or(default))
}

/// An integer of at least `least`.
pub(super) fn count(
    call: &mut Call<'_>,
    table: Slot,
    name: &str,
    least: u8,
) -> Result<Option<u64>, Raise> {
    option(call, table, name, &format!("whole number from {least}"), |call, value| {
        let range = f64::from(least)..=1e15;
        let number = call.number(value).filter(|n| n.fract() == 0.0 && range.contains(n))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        Some(number as u64)
    })
}
