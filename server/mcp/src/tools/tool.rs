//! The definition of a tool.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use sandbox_service::permission::Permission;
use schemars::JsonSchema;
use tokio_util::sync::CancellationToken;

use super::schema;
use crate::settings::Settings;
use crate::transport::progress::ProgressTarget;
use crate::workspace::Workspace;

/// A tool: what clients see of it, and how a call of it runs.
pub(super) trait McpTool: 'static {
    const NAME: &'static str;
    /// Its name for people.
    const TITLE: &'static str;
    /// Whether each call has a container of its own.
    const IN_FRESH_CONTAINER: bool;
    type Args: JsonSchema;
    type Data: JsonSchema;

    /// Whether a server has it.
    fn is_offered(server: ServerTraits<'_>) -> bool;

    /// The description, for models.
    fn description(server: ServerTraits<'_>) -> String;

    fn hints(server: ServerTraits<'_>) -> Hints;

    /// The schema of its arguments.
    fn input(_server: ServerTraits<'_>) -> JsonObject {
        schema::input::<Self::Args>()
    }

    /// The schema of its structured result.
    fn output() -> JsonObject {
        schema::output::<Self::Data>()
    }

    /// Runs a call. What fails in it is a result.
    fn call(call: Call<'_>) -> impl Future<Output = CallToolResult> + Send;
}

/// What the tools of a server depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerTraits<'a> {
    pub settings: &'a Settings,
    pub has_files: bool,
}

/// What a call is made with.
pub(crate) struct Call<'a> {
    pub workspace: &'a Workspace,
    pub settings: &'a Settings,
    pub arguments: JsonObject,
    /// Cancelled by the client, or when the server ends.
    pub cancelled: CancellationToken,
    /// Where progress goes, if the client wants it.
    pub progress: Option<ProgressTarget>,
    /// Who is asked what a script may do, if anyone is.
    pub asker: Option<Arc<dyn Permission>>,
}

/// What a client may assume of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    pub is_read_only: bool,
    pub is_destructive: bool,
    pub is_idempotent: bool,
    pub is_open_world: bool,
}

impl Hints {
    /// It changes nothing.
    pub const READ_ONLY: Self = Self {
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        is_open_world: false,
    };
    /// It may replace or remove files.
    pub const DESTRUCTIVE: Self = Self {
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        is_open_world: false,
    };
}

/// A [`McpTool`] without its types.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: &'static str,
    pub in_fresh_container: bool,
    /// The tool as clients see it, if the server has it.
    pub offer: fn(ServerTraits<'_>) -> Option<Tool>,
    pub call: for<'a> fn(Call<'a>) -> BoxFuture<'a, CallToolResult>,
}

impl Entry {
    pub const fn of<T: McpTool>() -> Self {
        Self {
            name: T::NAME,
            in_fresh_container: T::IN_FRESH_CONTAINER,
            offer: |server| T::is_offered(server).then(|| describe::<T>(server)),
            call: |call| Box::pin(T::call(call)),
        }
    }
}

/// A tool as clients see it.
pub(super) fn describe<T: McpTool>(server: ServerTraits<'_>) -> Tool {
    let hints = T::hints(server);
    let annotations = ToolAnnotations::new()
        .read_only(hints.is_read_only)
        .destructive(hints.is_destructive)
        .idempotent(hints.is_idempotent)
        .open_world(hints.is_open_world);
    Tool::new(T::NAME, T::description(server), Arc::new(T::input(server)))
        .with_title(T::TITLE)
        .with_raw_output_schema(Arc::new(T::output()))
        .with_annotations(annotations)
}
