//! The mark of tables that are arrays.

use super::super::ffi::{Call, Slot};

/// Where the metatable that marks arrays is stored.
pub(super) const ARRAY_MARK: &std::ffi::CStr = c"json.array";

/// Marks a table as an array, so that it is encoded as one even when it is empty.
pub(super) fn mark_array(call: &mut Call<'_>, table: Slot) {
    call.push_kept(ARRAY_MARK);
    call.set_metatable(table);
}
