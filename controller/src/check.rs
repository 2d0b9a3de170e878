//! `check`: does a script compile? Asked of the agent itself, without a container.

use sandbox_protocol::message::ScriptError;

use crate::config::AgentSource;
use crate::error::Error;

/// Whether a script compiles; `Some` says why not. The agent runs on this machine, with its own
/// limits on time and memory, and runs nothing of the script.
///
/// # Errors
///
/// [`Error::Check`] where the agent could not be run.
#[expect(clippy::unused_async, reason = "the body comes next")]
pub async fn check_script(
    _source: &[u8],
    _agent: &AgentSource,
) -> Result<Option<ScriptError>, Error> {
    Ok(None)
}
