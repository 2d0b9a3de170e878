//! Callers and their scopes.

use sandbox_api::service::Subject;

sandbox_api::words! {
    /// What a caller may do, by its name in tokens.
    #[derive(PartialOrd, Ord)]
    pub enum Scope {
        /// Run and cancel executions.
        ExecutionsWrite = "executions:write",
        /// Read executions, their events and files.
        ExecutionsRead = "executions:read",
        /// Use kept sandboxes.
        Sandboxes = "sandboxes",
        /// Everything, and the server's own figures.
        Admin = "admin",
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
