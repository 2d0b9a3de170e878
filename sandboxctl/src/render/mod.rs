//! Rendering values as text for people. Nothing here writes anything.

mod diff;
mod escape;
mod script_error;
mod styled;
mod table;
mod usage;

pub use diff::diff;
pub use escape::{escaped_line, escaped_text, json_for_terminal};
pub use script_error::{call_stack, columns, script_error};
pub use styled::StyledText;
pub use table::{age, cell, count, facts, size, table, word};
pub use usage::usage_error;
