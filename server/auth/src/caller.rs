//! Callers and their scopes.

use std::fmt;
use std::str::FromStr;

use sandbox_api::service::Subject;

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Run and cancel executions.
    ExecutionsWrite,
    /// Read executions, their events and files.
    ExecutionsRead,
    /// Use kept sandboxes.
    Sandboxes,
    /// Everything, and the server's own figures.
    Admin,
}

/// A text is no [`Scope`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope '{0}': use executions:write, executions:read, sandboxes or admin")]
pub struct UnknownScope(pub String);

impl Scope {
    /// Every scope.
    pub const ALL: &[Self] =
        &[Self::ExecutionsWrite, Self::ExecutionsRead, Self::Sandboxes, Self::Admin];

    /// Its name in tokens.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExecutionsWrite => "executions:write",
            Self::ExecutionsRead => "executions:read",
            Self::Sandboxes => "sandboxes",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(name: &str) -> Result<Self, UnknownScope> {
        let found = Self::ALL.iter().copied().find(|scope| scope.as_str() == name);
        found.ok_or_else(|| UnknownScope(name.chars().take(64).collect()))
    }
}

/// Who calls, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub subject: Subject,
    /// What.
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// Whether it may do this.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|it| *it == scope || *it == Scope::Admin)
    }
}
