//! `secrets`: the values that the caller gave this run. They are read by name: nothing lists them,
//! so that a loop over what there is, or a table that is printed or returned, does not show them by
//! accident.

use sandbox_protocol::message::Secret;

use super::ffi::{Call, LOCKED, Raise, Results, Slot};

/// Sets `secrets`: an empty table, whose metatable leads to the values.
pub(super) fn install(call: &mut Call<'_>) {
    let secrets = &call.host().secrets;
    let proxy = call.push_table(0, 0);
    let metatable = call.push_table(0, 3);
    let values = call.push_table(0, secrets.len());
    for Secret { name, value } in secrets {
        call.push_string(name);
        call.push_string(&value.0);
        call.set_pair(values);
    }
    let of_values = call.push_table(0, 1);
    call.push_function(c"secrets", unknown, 0);
    call.set_field(of_values, c"__index");
    call.freeze(of_values);
    call.set_metatable(values);
    call.freeze(values);
    // As a table, and not by a function: a name that exists is read without one.
    call.set_field(metatable, c"__index");
    call.set_string(metatable, c"__metatable", LOCKED);
    call.push_function(c"tostring", shown, 0);
    call.set_field(metatable, c"__tostring");
    call.freeze(metatable);
    call.set_metatable(proxy);
    call.freeze(proxy);
    call.set_global(c"secrets");
}

fn unknown(call: &mut Call<'_>) -> Results {
    const LONGEST: usize = 64;
    let name = match call.string(Slot::arg(2)) {
        Some(name) => String::from_utf8_lossy(&name[..name.len().min(LONGEST)]).into_owned(),
        None => {
            let got = call.type_name(Slot::arg(2));
            return Err(Raise::Error(format!("a secret has a name (string expected, got {got})")));
        }
    };
    let message = format!("there is no secret '{name}' (--secret {name}=env:VARIABLE gives one)");
    Err(Raise::Error(message))
}

fn shown(call: &mut Call<'_>) -> Results {
    call.push_string("secrets");
    Ok(call.results(1))
}
