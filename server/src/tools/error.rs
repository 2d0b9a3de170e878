//! The error of a call.

use sandbox_api::{ErrorKind, OverCeiling};
use sandbox_controller::Error;

use super::metadata::Metadata;
use crate::registry::{Field, RegistryError, end_reason};

/// Longest message: it may quote what a caller wrote, which may be megabytes.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// The error of a call.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// One line for people.
    pub message: String,
    /// Whether the same call may succeed when it is repeated.
    pub retryable: bool,
    /// The next step, if there is one.
    pub hint: Option<String>,
    /// Further metadata: what a script or a command had done until then.
    pub(super) metadata: Metadata,
}

impl ToolError {
    /// An error of `kind` without further details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            let mut ends = (0..=MAX_MESSAGE_BYTES).rev();
            let end = ends.find(|&end| message.is_char_boundary(end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let (retryable, metadata) = (kind.is_retryable(), Metadata::default());
        Self { kind, message, retryable, hint: None, metadata }
    }

    /// A call that cannot be parsed, or is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A call for a sandbox that does not exist.
    #[must_use]
    pub fn not_registered(container_id: &str) -> Self {
        Self::invalid(format!("Container '{container_id}' not registered"))
            .with_hint("sandbox_init makes it")
    }

    /// The same error with a next step.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same error for a call that changes nothing: a timeout may be retried.
    #[must_use]
    pub(super) fn of_read_only_call(self) -> Self {
        Self { retryable: self.retryable || self.kind == ErrorKind::Timeout, ..self }
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self { hint: error.hint(), ..Self::new(error.kind(), error.full_message()) }
    }
}

/// The argument of `sandbox_init` for a field of its request.
const fn argument(field: Field) -> &'static str {
    match field {
        Field::Handle => "containerId",
        Field::Image => "imageName",
        Field::ContainerName => "containerName",
        Field::HostDir => "projectOutPath",
        Field::MountPath => "rootPath",
        Field::Hosts => "allow",
    }
}

impl From<RegistryError> for ToolError {
    fn from(error: RegistryError) -> Self {
        let kind = error.kind();
        let quote = |field, value: &str, problem: &str| {
            format!("{} '{}': {problem}", argument(field), value.escape_debug())
        };
        let (message, hint) = match error {
            RegistryError::NotRegistered { handle } => return Self::not_registered(&handle),
            RegistryError::Invalid { field, problem } => {
                (format!("sandbox_init: `{}`: {problem}", argument(field)), None)
            }
            RegistryError::RegisteredDifferently { handle } => (
                format!("Container '{handle}' is registered with other arguments already"),
                Some("give them again, or sandbox_destroy it first".to_owned()),
            ),
            RegistryError::NameTaken { name } => (
                format!("the name '{}' is in use by another process", name.escape_debug()),
                Some(
                    "only the process that made a sandbox finds it by its name: give another name, or \
                     end the sandbox there"
                        .to_owned(),
                ),
            ),
            RegistryError::Full { max } => (
                format!("{max} sandboxes are kept already"),
                Some("sandbox_destroy those that are not needed any more".to_owned()),
            ),
            RegistryError::ImageNotAllowed { image } => (
                quote(Field::Image, &image, "it is not allowed"),
                Some("tools.allowed_images says which images may be named".to_owned()),
            ),
            RegistryError::HostNotAllowed { rule } => (
                quote(Field::Hosts, &rule, "it is not allowed"),
                Some("network.allow says which hosts may be named".to_owned()),
            ),
            RegistryError::OverCeiling { over } => {
                return over_ceiling("sandbox_init: limits", &over);
            }
            RegistryError::ImageUnsupported { image, source } => (
                quote(Field::Image, &image, &source.full_message()),
                Some(
                    "without imageName a sandbox has the programs of what `sandboxctl tools \
                     --rootfs` or `--image-archive` names"
                        .to_owned(),
                ),
            ),
            RegistryError::HostDir { path, problem } => {
                (quote(Field::HostDir, &path, &problem), None)
            }
            RegistryError::HostDirProtected { path } => (
                quote(Field::HostDir, &path, "a protected name"),
                Some("filesystem.protected names what no operation may change".to_owned()),
            ),
            RegistryError::HostDirNotAllowed { path, allowed } => {
                let allowed: Vec<_> =
                    allowed.iter().map(|path| path.display().to_string()).collect();
                let hint = match allowed.is_empty() {
                    true => "the configuration allows none".to_owned(),
                    false => format!("allowed: {}", allowed.join(", ")),
                };
                let path = path.escape_debug();
                let message =
                    format!("projectOutPath '{path}' is under none of tools.allowed_out_paths");
                (message, Some(hint))
            }
            RegistryError::Launch { field, value, source } => {
                (quote(field, &value, &source.full_message()), source.hint())
            }
            RegistryError::LaunchCancelled => {
                ("the sandbox_init of this container was cancelled".to_owned(), None)
            }
            RegistryError::LaunchPanicked => (error.to_string(), None),
            RegistryError::CheckPanicked => ("the check of projectOutPath failed".to_owned(), None),
            RegistryError::Ended { handle, source } => (
                format!("Container '{handle}' has ended: {}", end_reason(&source)),
                source
                    .hint()
                    .or_else(|| Some("sandbox_init makes a new one of that name".to_owned())),
            ),
            RegistryError::Controller(source) => (source.full_message(), source.hint()),
        };
        Self { hint, ..Self::new(kind, message) }
    }
}

/// A timeout above its ceiling; `argument` is the tool's name for it.
pub(super) fn over_ceiling(argument: &str, over: &OverCeiling) -> ToolError {
    let OverCeiling { asked, key, ceiling } = over;
    let key = key.key();
    let message = format!("{argument} is {asked}, above the ceiling of {key}: {ceiling}");
    ToolError::new(ErrorKind::Policy, message)
}
