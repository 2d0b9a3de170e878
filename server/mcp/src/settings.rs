//! Configuration of a server.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::service::BySubject;
use sandbox_api::{SandboxSpec, ToolRule};
use sandbox_upstream::Upstreams;

use crate::elicitation::Elicitation;

/// The settings of a server. Plain data.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The template of every sandbox, without its io dir.
    pub sandbox: SandboxSpec,
    /// The most that a call may ask for as its `timeout_ms`.
    pub timeout_ceiling: Duration,
    /// Whether files may be changed.
    pub access: Access,
    /// Who reads the answers.
    pub audience: Audience,
    /// Whether ports of sandboxes can have URLs.
    pub has_previews: bool,
    /// The names of the tools that are offered; `None` for all.
    pub tools: Option<Vec<String>>,
    /// How many bytes of a call's output a model is given, at most
    /// [`MAX_OUTPUT_BYTES`](crate::MAX_OUTPUT_BYTES).
    pub output_bytes: usize,
    /// The other servers whose tools scripts may call.
    pub upstreams: BySubject<Upstreams>,
    /// Patterns of their tools that are offered as tools of this server, too.
    pub expose: Vec<ToolRule>,
    /// How the user of the client is asked, if scripts need it.
    pub elicitation: Option<Arc<Elicitation>>,
}

impl Settings {
    /// Whether scripts of some subject may call tools of other servers.
    pub(crate) fn has_upstreams(&self) -> bool {
        self.upstreams.any(|upstreams| !upstreams.is_empty())
    }
}

/// Whether the tools and scripts may change files of the io dir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// They may.
    #[default]
    ReadWrite,
    /// They may not: the io dir is mounted read-only, and the tools that change files are not
    /// offered.
    ReadOnly,
}

/// Who reads the answers, which decides how much they say of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Audience {
    /// The user of the host.
    #[default]
    Local,
    /// Someone else: no message has a path of the host.
    Remote,
}
