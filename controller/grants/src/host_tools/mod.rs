//! Tools of the host that a script calls: which ones a run is given, and each call of them.
//!
//! The agent is untrusted: it names a tool and has arguments. Whether the run was given that tool
//! with these arguments, how often and for how long is decided here, and nothing else of the host
//! is reached by it.

pub mod gate;
mod luau;
mod search;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_api::{ByteSize, HostTool, ToolEffect, ToolRule};
use serde_json::{Map, Value};

pub use self::luau::{declare, describe};
use crate::permission::Permission;

/// Tools, and the servers whose tools are missing.
pub type Listed = (Arc<[HostTool]>, Vec<String>);

/// Tools of the host, as their provider implements them.
#[async_trait]
pub trait HostTools: Send + Sync + Debug {
    /// All of them.
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError>;

    /// Those that can be listed by now, and the servers whose tools are missing.
    async fn list_some(&self) -> Result<Listed, HostToolError> {
        Ok((self.list().await?, Vec::new()))
    }

    /// The same without waiting, as it is by now; `None` if that is no more than [`list_some`](Self::list_some)
    /// gave before.
    fn known(&self) -> Option<Listed> {
        None
    }

    /// One of them, which may be there before all of them can be listed.
    async fn find(&self, tool: &str) -> Result<HostTool, HostToolError> {
        let all = self.list().await?;
        all.iter().find(|it| it.name == tool).cloned().ok_or(HostToolError::Unknown)
    }

    /// Calls one, which the run was given if it does no more than `permitted`: where tools change what they say
    /// of themselves, the call is refused if it does by now. It is cancelled by dropping the future, as when its
    /// time is up.
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError>;
}

/// What a tool answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostAnswer {
    /// The result as data; text, where the tool has no structured result.
    pub value: Value,
    /// Images and other content that is no text. The script gets them as files.
    pub files: Vec<HostFile>,
}

/// A file that a tool answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    /// Its media type, such as `image/png`.
    pub mime_type: String,
    /// Its content.
    pub data: Vec<u8>,
}

/// Why a tool was not called, or has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostToolError {
    /// The tool failed, and says why: `isError`.
    #[error("{0}")]
    Failed(String),
    /// There is no such tool.
    #[error("there is no such tool")]
    Unknown,
    /// It does more than what was permitted.
    #[error("the server now marks the tool as doing more than this script may")]
    NotPermitted,
    /// It took longer than it may.
    #[error("the tool took too long")]
    Timeout,
    /// Its result is larger than a script is given.
    #[error("the tool's result is too large")]
    TooLarge,
    /// Its provider cannot be reached, and why.
    #[error("the tool is not available: {0}")]
    Unavailable(String),
}

/// The tools that a run is given.
#[derive(Debug, Clone)]
pub struct ToolGrant {
    /// Their provider.
    pub tools: Arc<dyn HostTools>,
    /// Which calls are given. Without a rule: the tools that only read.
    pub rules: Vec<ToolRule>,
    /// Which calls are given besides, as by a file of rules: these take nothing away.
    pub added: Vec<ToolRule>,
    /// Whether tools that remove or overwrite may be called, if a rule gives them.
    pub destructive: Destructive,
    /// The limits of the run's calls.
    pub limits: ToolLimits,
    /// Who is asked about a call that a rule gives, of a tool that removes or overwrites.
    pub permission: Option<Arc<dyn Permission>>,
    /// Who is asked about a call that no rule gives, where rules are learnt.
    pub learner: Option<Arc<dyn Permission>>,
}

impl ToolGrant {
    /// The tools that only read, with the usual limits.
    pub fn new(tools: Arc<dyn HostTools>) -> Self {
        Self {
            tools,
            rules: Vec::new(),
            added: Vec::new(),
            destructive: Destructive::Refused,
            limits: ToolLimits::default(),
            permission: None,
            learner: None,
        }
    }

    /// The same for a run that has an asker of its own: it is asked about what a rule gives, and nothing else.
    #[must_use]
    pub fn with_asker(self, asker: Arc<dyn Permission>) -> Self {
        let permission = match &self.permission {
            Some(permission) => permission.with_asker(asker),
            None => asker,
        };
        Self { permission: Some(permission), ..self }
    }

    /// Whether some call of a tool may be given.
    pub fn gives(&self, tool: &HostTool) -> bool {
        let given = self.given(tool, |rule| rule.names(&tool.name));
        given.is_some_and(|most| tool.effect <= most || self.permission.is_some())
    }

    /// Whether a tool of this server may be given.
    fn may_give_one_of(&self, server: &str) -> bool {
        let mut rules = self.rules.iter().chain(&self.added);
        self.rules.is_empty() || rules.any(|rule| rule.may_name_one_of(server))
    }

    /// The most that a tool may do, if a rule or the lack of one gives it.
    fn given(&self, tool: &HostTool, is_it: impl Fn(&ToolRule) -> bool) -> Option<ToolEffect> {
        let reads = self.rules.is_empty() && tool.effect == ToolEffect::ReadOnly;
        match self.rules.iter().chain(&self.added).any(is_it) {
            true if self.destructive == Destructive::Allowed => Some(ToolEffect::Destructive),
            true => Some(ToolEffect::Changes),
            false => reads.then_some(ToolEffect::ReadOnly),
        }
    }

    /// The first rule that names a tool but not this call, and the condition that is not met.
    fn unmet(&self, tool: &HostTool, arguments: &Map<String, Value>) -> Option<(&ToolRule, &str)> {
        let mut naming = self.rules.iter().chain(&self.added).filter(|rule| rule.names(&tool.name));
        naming.find_map(|rule| Some((rule, rule.unmet(arguments)?)))
    }

    fn needs_permission(&self, tool: &HostTool) -> bool {
        tool.effect == ToolEffect::Destructive && self.destructive == Destructive::Refused
    }
}

/// Whether tools that remove or overwrite may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Destructive {
    /// Only if the [`Permission`] says so.
    #[default]
    Refused,
    /// As any tool that a rule gives.
    Allowed,
}

/// The limits of a run's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolLimits {
    /// How long a call may take. The deadline of the script ends it too.
    pub timeout: Duration,
    /// How many calls a run may make, refused ones included.
    pub calls: u32,
    /// The bytes of all arguments and results together.
    pub bytes: ByteSize,
    /// How many calls are made in a second; more have to wait.
    pub rate: u32,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            calls: 1000,
            bytes: ByteSize::b(16 << 20),
            rate: 50,
        }
    }
}
