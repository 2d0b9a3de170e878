//! The tools of an agent, over the Model Context Protocol: one tool that runs a whole Luau script,
//! tools for files and commands, the io dir's files as resources, and prompts.
//!
//! A [`Workspace`] is what the calls of one caller share: an io dir, a sandbox in which the file tools
//! work, and one in which processes go on. Each script and each command gets a fresh container. All
//! sandboxes are those of a [`Service`](sandbox_service::Service), which admits and limits calls.
//! [`serve_lines`] serves one client over stdin and stdout; [`HttpServer`] serves any number of subjects,
//! each with a workspace of its own.
//!
//! The protocol itself is that of the crate `rmcp`: the stateless revision 2026-07-28, and the
//! revisions before it, which begin with `initialize`.

#![forbid(unsafe_code)]

mod api_text;
mod elicitation;
mod hints;
mod outputs;
mod paths;
mod private_dir;
mod prompts;
mod resources;
mod server;
mod settings;
mod skills;
mod subscriptions;
mod tools;
mod transport;
mod uris;
mod workspace;
mod workspaces;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use api_text::SCRIPT_API;
pub use elicitation::Elicitation;
pub use outputs::{DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES};
pub use private_dir::PrivateDir;
pub use server::McpServer;
pub use settings::{Access, Audience, Settings};
pub use skills::{SKILL, SKILL_NAME};
pub use tools::{DEFAULT_CONCURRENCY, tool_names};
pub use transport::http::{HttpOptions, HttpServer, Instance};
pub use transport::lines::{ServeError, serve_lines};
pub use workspace::{Workspace, WorkspaceDir, WorkspaceError};

/// Locks a mutex. What a thread that panicked has left in it is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
