//! Errors of the registry.

use std::path::PathBuf;
use std::sync::Arc;

use sandbox_api::{ErrorKind, OverCeiling};
use sandbox_controller::Error;

/// A field of a [`SandboxRequest`](super::SandboxRequest). Each front end has its own names for the
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The handle.
    Handle,
    /// The image.
    Image,
    /// The name of the container.
    ContainerName,
    /// The directory on the host.
    HostDir,
    /// The mount point in the sandbox.
    MountPath,
    /// The hosts.
    Hosts,
}

/// An error of the registry.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistryError {
    /// No sandbox has this handle.
    #[error("sandbox '{handle}' is not registered")]
    NotRegistered {
        /// The handle.
        handle: String,
    },
    /// A field of the request has an invalid value.
    #[error("invalid request: {problem}")]
    Invalid {
        /// The field.
        field: Field,
        /// What is wrong with its value.
        problem: String,
    },
    /// The handle belongs to a sandbox with a different request.
    #[error("sandbox '{handle}' is registered with another request")]
    RegisteredDifferently {
        /// The handle.
        handle: String,
    },
    /// Another process of this user has a container of this name.
    #[error("name '{}' is in use by another process", name.escape_debug())]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The maximum number of sandboxes is registered.
    #[error("{max} sandboxes are registered already")]
    Full {
        /// The maximum.
        max: usize,
    },
    /// The configuration does not allow the image.
    #[error("image '{}' is not allowed", image.escape_debug())]
    ImageNotAllowed {
        /// The image.
        image: String,
    },
    /// The configuration does not allow the host.
    #[error("'{rule}' is not allowed")]
    HostNotAllowed {
        /// The rule.
        rule: String,
    },
    /// A limit is above its ceiling.
    #[error("{over}")]
    OverCeiling {
        /// Which one.
        over: OverCeiling,
    },
    /// The engine does not support images.
    #[error("image '{}': {}", image.escape_debug(), source.full_message())]
    ImageUnsupported {
        /// The image.
        image: String,
        /// The engine's message.
        source: Arc<Error>,
    },
    /// The directory cannot be used for a sandbox.
    #[error("directory '{}': {problem}", path.escape_debug())]
    HostDir {
        /// The directory, as it was requested.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The directory has a protected name, or is below one that has.
    #[error("directory '{}': a protected name", path.escape_debug())]
    HostDirProtected {
        /// The directory, as it was requested.
        path: String,
    },
    /// The directory is not below any of those that the configuration allows.
    #[error("directory '{}' is not allowed", path.escape_debug())]
    HostDirNotAllowed {
        /// The directory, as it was requested.
        path: String,
        /// The allowed directories.
        allowed: Vec<PathBuf>,
    },
    /// The launch failed because of one field.
    #[error("'{}': {}", value.escape_debug(), source.full_message())]
    Launch {
        /// The field.
        field: Field,
        /// Its value.
        value: String,
        /// Why it failed.
        source: Arc<Error>,
    },
    /// All callers stopped waiting for the launch.
    #[error("the launch was cancelled")]
    LaunchCancelled,
    /// The launch panicked.
    #[error("internal error: the launch failed")]
    LaunchPanicked,
    /// The check of the directory panicked.
    #[error("the check of the directory failed")]
    CheckPanicked,
    /// The sandbox has ended by itself.
    #[error("sandbox '{handle}' has ended: {}", end_reason(source))]
    Ended {
        /// Its handle.
        handle: String,
        /// How it ended.
        source: Arc<Error>,
    },
    /// The controller failed, for a reason unrelated to the request's fields.
    #[error("{}", .0.full_message())]
    Controller(Arc<Error>),
}

impl RegistryError {
    /// The error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRegistered { .. }
            | Self::Invalid { .. }
            | Self::RegisteredDifferently { .. }
            | Self::HostDir { .. } => ErrorKind::InvalidRequest,
            Self::NameTaken { .. } => ErrorKind::Conflict,
            Self::Full { .. } => ErrorKind::Busy,
            Self::ImageNotAllowed { .. } => ErrorKind::NotAllowed,
            // A retry does not help either.
            Self::ImageUnsupported { .. } => ErrorKind::Image,
            Self::HostDirProtected { .. } => ErrorKind::Protected,
            Self::HostDirNotAllowed { .. }
            | Self::HostNotAllowed { .. }
            | Self::OverCeiling { .. } => ErrorKind::Policy,
            Self::Launch { source, .. } => match source.kind() {
                // The request is wrong, not the command line.
                ErrorKind::Usage => ErrorKind::InvalidRequest,
                kind => kind,
            },
            Self::LaunchCancelled => ErrorKind::Cancelled,
            Self::LaunchPanicked | Self::CheckPanicked => ErrorKind::Internal,
            Self::Ended { source, .. } | Self::Controller(source) => source.kind(),
        }
    }
}

/// Why a sandbox has ended, for people.
pub fn end_reason(source: &Error) -> String {
    match source {
        Error::Ended { detail } => detail.clone(),
        error => error.full_message(),
    }
}
