//! Tools of other MCP servers, which scripts call as `tools.NAME.TOOL { … }`.
//!
//! An [`Upstream`] is a program of the host that speaks over stdin and stdout, or a URL. [`Upstreams`]
//! has one connection to each: started when it is first needed, started again after it was lost, with
//! growing pauses, and ended with its process group. All that a server says is bounded before it is kept,
//! and is data: no text of it is a rule.
//!
//! The protocol itself is that of the crate `rmcp`: revision 2026-07-28 if the server has it, and else
//! one of those that begin with `initialize`.

#![forbid(unsafe_code)]

mod answer;
mod child;
mod connection;
mod http;
mod settings;
#[cfg(test)]
mod tests;
mod upstreams;

pub use settings::{Credentials, Target, Upstream, UpstreamError};
pub use upstreams::Upstreams;
