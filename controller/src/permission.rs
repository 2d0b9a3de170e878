//! Permission for what the rules of a run do not give: asked for while it waits.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_api::ToolEffect;
use sandbox_api::hosts::Target;
use serde_json::{Map, Value};

/// How long an answer is waited for. After it, the answer is [`Answer::Refused`].
pub const PERMISSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Who is asked, such as a person at a terminal.
#[async_trait]
pub trait Permission: Send + Sync + Debug {
    /// Asks, and waits for the answer. Whoever calls waits at most [`PERMISSION_TIMEOUT`].
    async fn ask(&self, ask: &Ask<'_>) -> Answer;
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// A connection of a command.
    Host {
        /// Its target.
        target: &'a Target,
        /// Why it is not allowed without asking.
        reason: &'a str,
    },
    /// A call of a tool by a script.
    Tool {
        /// The tool's name.
        tool: &'a str,
        /// Its arguments.
        arguments: &'a Map<String, Value>,
        /// What it does to the world, as far as it says so.
        effect: ToolEffect,
    },
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This once.
    Allowed,
    /// No, or no answer.
    Refused,
}
