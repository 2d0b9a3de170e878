//! What every tool has: its description, and what a call is made with.

use std::sync::Arc;

use rmcp::model::{JsonObject, ProgressToken, Tool, ToolAnnotations};
use rmcp::service::{Peer, RoleServer};
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;
use crate::workspace::Workspace;

/// What a call is made with.
pub(crate) struct Call<'a> {
    pub workspace: &'a Workspace,
    pub settings: &'a Settings,
    pub arguments: JsonObject,
    /// Cancelled by the client, or when the server ends.
    pub cancelled: CancellationToken,
    /// Where progress goes, if the client wants it.
    pub progress: Option<(Peer<RoleServer>, ProgressToken)>,
}

/// What a client may assume of a tool.
pub(super) struct Hints {
    pub is_read_only: bool,
    pub is_destructive: bool,
    pub is_idempotent: bool,
    pub is_open_world: bool,
}

/// A tool as clients see it.
pub(super) fn described(
    name: &'static str,
    title: &str,
    description: String,
    input: JsonObject,
    output: JsonObject,
    hints: &Hints,
) -> Tool {
    let annotations = ToolAnnotations::with_title(title)
        .read_only(hints.is_read_only)
        .destructive(hints.is_destructive)
        .idempotent(hints.is_idempotent)
        .open_world(hints.is_open_world);
    Tool::new(name, description, Arc::new(input))
        .with_title(title)
        .with_raw_output_schema(Arc::new(output))
        .with_annotations(annotations)
}
