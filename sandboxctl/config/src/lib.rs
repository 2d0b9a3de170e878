//! Configuration: the value of every setting, and its source.
//!
//! Layers, each overriding the one before: defaults, the system's file, the user's file, the
//! project's file, environment variables, flags. `--config FILE` is trusted like the user's file,
//! and is then the only file that is read. The project's file is not trusted: it may narrow and
//! never widen (`project`).

mod effective;
mod error;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod key;
mod network;
mod origin;
mod parse;
mod project;
pub mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod value;
mod value_error;
mod variables;

pub use effective::resolved_parents;
pub use error::Error;
pub use key::{Key, MOST_PREWARMED, Scope};
pub use network::Allow;
pub use origin::{Layer, Origin};
pub use settings::{Flags, Settings};
pub use value::Value;
pub use variables::{
    CA_VARIABLE, DATABASE_PASSWORD_VARIABLE, LOG_VARIABLE, OTHER_VARIABLES, RUNNER_FILES,
    SERVER_VARIABLE, STEP_OUTPUTS, STEP_SUMMARY, TOKEN_VARIABLE,
};
