//! What people, and programs that read what people do, are shown of data: text for a terminal, tables,
//! reports, and what the logs of CI runners take for commands. All of it is a function from values to text;
//! nothing here reads or writes anything.

pub mod ci;
mod clipboard;
mod diff;
mod escape;
pub mod listing;
pub mod report;
mod script_error;
mod styled;
mod table;

pub use clipboard::ClipboardFilter;
pub use diff::diff;
pub use escape::{escaped_line, escaped_text, json_for_terminal, reason};
pub use script_error::{call_stack, columns, script_error};
pub use styled::StyledText;
pub use table::{age, cell, count, facts, size, table, time_left, word};
