//! E2B's protocol in front of a service: the control API that creates and ends sandboxes, and what E2B's SDKs
//! ask of a sandbox itself (envd).
//!
//! E2B's sandboxes are kept sandboxes of the service. [`E2b`] decides who sends a request and which sandbox it is
//! for, whatever names it: a header, a host, a signature. Nothing hangs: what is not offered is answered with 501
//! and a sentence.

#![forbid(unsafe_code)]

mod access;
mod answers;
mod app;
mod body;
mod connect;
mod control;
mod envd;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod marker;
mod plane;
mod router;
mod sandbox;
mod settings;
mod tokens;

pub use access::E2b;
pub use app::App;
pub use settings::{Settings, Template};
