//! Which node of a cluster answers a request: a route's row says it by one of these.

use axum::http::request::Parts;
use sandbox_service::Target;

use crate::request::id_in_path;

/// Which node answers the requests of a route.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    /// Every one: what it needs is in the store.
    Any,
    /// The one that has what the head of the request names: by its path, a header, its host, or a key that
    /// is looked up.
    Node(TargetOf),
    /// The same. Where that node cannot be reached, every other one answers from the store.
    NodeOrStore(TargetOf),
    /// The same for a stream of events, which goes on.
    Events(TargetOf),
    /// One that is chosen for a new sandbox.
    NewSandbox,
}

/// What a request is about, by its head.
pub(super) type TargetOf = fn(&Parts) -> Target;

impl Owner {
    /// Of most routes with an id in their path; others say it in their row.
    pub fn of_path(path: &str) -> Self {
        if path.starts_with("/v1/sandboxes/{") {
            Self::Node(sandbox)
        } else if path.starts_with("/v1/executions/{") {
            Self::Node(files)
        } else {
            Self::Any
        }
    }
}

/// The execution whose id is in the path.
pub(crate) fn execution(head: &Parts) -> Target {
    id_in_path(&head.uri).map_or(Target::Here, Target::Execution)
}

/// The files of the execution whose id is in the path.
pub(crate) fn files(head: &Parts) -> Target {
    id_in_path(&head.uri).map_or(Target::Here, Target::Files)
}

/// The sandbox whose id is in the path.
pub(crate) fn sandbox(head: &Parts) -> Target {
    id_in_path(&head.uri).map_or(Target::Here, Target::Sandbox)
}

/// What the agents of the caller use.
pub(crate) fn workspace(_: &Parts) -> Target {
    Target::Workspace
}

/// What a request to something that is mounted was admitted for.
pub(crate) fn admitted(head: &Parts) -> Target {
    head.extensions.get().cloned().unwrap_or(Target::Here)
}
