//! Whom a run asks for what its rules do not give: a person, or a record of what was asked for.

use std::fmt::{Debug, Display, Formatter, Result as FmtResult};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_api::ToolEffect;
use sandbox_api::hosts::Target;
use serde_json::{Map, Value};
use tokio::time::timeout;

/// How long an answer may take. What is not answered by then is refused.
pub const PERMISSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Decides about one host or one call that no rule allows. Without a `Permission`, all of these are
/// refused.
///
/// What it is asked comes from what runs in the sandbox, which may be hostile. It is never asked for what no
/// answer may allow: addresses of this machine, of its networks and of its cloud.
#[async_trait]
pub trait Permission: Send + Sync + Debug {
    /// The answer. It is dropped after [`PERMISSION_TIMEOUT`].
    async fn ask(&self, ask: &Ask<'_>) -> Answer;

    /// The same for a run that has an asker of its own, which is asked in its place.
    fn with_asker(&self, asker: Arc<dyn Permission>) -> Arc<dyn Permission> {
        asker
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// A connection. The answer holds for this host and port, until the sandbox ends.
    Host {
        /// The host and its port, normalised: neither has control characters.
        target: &'a Target,
        /// Why it is refused otherwise, in a few words.
        reason: &'a str,
    },
    /// One call of a tool. The answer holds for this call.
    Tool {
        /// The tool, with its group: `github.delete_repo`.
        tool: &'a str,
        /// Its arguments, as the script wrote them.
        arguments: &'a Map<String, Value>,
        /// What it does, as its server says.
        effect: ToolEffect,
    },
}

impl Display for Ask<'_> {
    /// The host and port, or the tool. A tool is escaped: its name may be anything.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FmtResult {
        match self {
            Self::Host { target, .. } => Display::fmt(target, formatter),
            Self::Tool { tool, .. } => Display::fmt(&tool.escape_debug(), formatter),
        }
    }
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is allowed.
    Allowed,
    /// It is refused, as without anyone to ask.
    Refused,
}

/// Asks, and waits for at most [`PERMISSION_TIMEOUT`]. `None` as the permission is a refusal.
pub async fn ask(permission: Option<&Arc<dyn Permission>>, ask: &Ask<'_>) -> Answer {
    match permission {
        Some(permission) => {
            timeout(PERMISSION_TIMEOUT, permission.ask(ask)).await.unwrap_or(Answer::Refused)
        }
        None => Answer::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl Permission for Silent {
        async fn ask(&self, _: &Ask<'_>) -> Answer {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_a_refusal() {
        let target = Target { host: "a.example".parse().unwrap(), port: 443 };
        let question = Ask::Host { target: &target, reason: "not on the list" };
        let silent: Arc<dyn Permission> = Arc::new(Silent);
        let since = tokio::time::Instant::now();
        assert_eq!(ask(Some(&silent), &question).await, Answer::Refused);
        assert_eq!(since.elapsed(), PERMISSION_TIMEOUT);
        assert_eq!(ask(None, &question).await, Answer::Refused);
    }

    #[test]
    fn a_question_has_no_control_characters() {
        let arguments = Map::new();
        let tool = "github.a\u{1b}[2K\r\nb";
        let ask = Ask::Tool { tool, arguments: &arguments, effect: ToolEffect::Changes };
        assert!(!ask.to_string().chars().any(char::is_control), "{ask}");
    }
}
