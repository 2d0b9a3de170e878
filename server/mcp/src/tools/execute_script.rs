//! `execute_script`: a whole script in a fresh container.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Resource};
use sandbox_api::{
    CancelCause, ErrorKind, ExecutionReport, Failure, FileOp, Outcome, RefusedHost, RunResult,
    Script, TouchedFile, millis,
};
use sandbox_controller::{Error, Sandbox};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::args::{decode, timeout};
use super::result::{failure_text, listed};
use super::schema;
use super::tool::{Call, Hints, McpTool, ServerTraits};
use crate::api_text::{Abilities, taught};
use crate::hints::{explained, noted};
use crate::resources::uri_below;
use crate::settings::Access;
use crate::transport::progress::Progress;

/// The most files that a result links to. It lists all.
const MAX_LINKS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The source code, in Luau
    script: String,
    /// What the script reads as `args`
    #[serde(default)]
    args: Map<String, Value>,
    /// Milliseconds that it may take
    #[serde(default)]
    #[schemars(with = "Option<i64>")]
    timeout_ms: Option<Value>,
}

/// What a call gives, however the script ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptData {
    /// What the script returned; null where it returned nothing, or failed.
    #[schemars(with = "Value")]
    result: Option<Box<RawValue>>,
    /// What it printed.
    logs: Vec<String>,
    /// The files that it changed, in their final state. The first 100 that exist are also links.
    files_touched: Vec<TouchedFile>,
    /// There are more than `files_touched` lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    files_touched_truncated: bool,
    /// The hosts that its programs were refused, each with the rules that would allow it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_hosts: Vec<RefusedHost>,
    /// What stood in its way in the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// Runs a script.
#[derive(Debug)]
pub(crate) struct ExecuteScript;

impl McpTool for ExecuteScript {
    const NAME: &'static str = "execute_script";
    const TITLE: &'static str = "Run a script";
    const IN_FRESH_CONTAINER: bool = true;
    type Args = Arguments;
    type Data = ScriptData;

    fn is_offered(_server: ServerTraits<'_>) -> bool {
        true
    }

    fn description(server: ServerTraits<'_>) -> String {
        let ServerTraits { settings, has_files } = server;
        let spec = &settings.sandbox;
        let abilities = Abilities { files: has_files, programs: spec.supports_exec() };
        let mut description = String::from(
            "Run a Luau script and get what it returns, what it prints, and the files it changed. \
             One script replaces many calls: read, search, compute and write in one go, and return \
             only what you need.\n\n",
        );
        description.push_str(&taught(abilities, &spec.limits, &spec.mount_path));
        if has_files && settings.access == Access::ReadOnly {
            description.push_str("\nFiles are read-only: writing fails.\n");
        }
        description
    }

    fn hints(server: ServerTraits<'_>) -> Hints {
        let writes = server.has_files && server.settings.access == Access::ReadWrite;
        let is_open_world = !server.settings.sandbox.allow.rules().is_empty();
        Hints {
            // What reaches a host may change something there.
            is_read_only: !writes && !is_open_world,
            is_destructive: writes,
            is_idempotent: false,
            is_open_world,
        }
    }

    fn input(server: ServerTraits<'_>) -> JsonObject {
        let mut input = schema::input::<Arguments>();
        let timeout = schema::properties(&mut input).get_mut("timeout_ms");
        if let Some(timeout) = timeout.and_then(Value::as_object_mut) {
            let ServerTraits { settings, .. } = server;
            timeout.insert("minimum".to_owned(), 1.into());
            timeout.insert("maximum".to_owned(), millis(settings.timeout_ceiling).into());
            timeout.insert("default".to_owned(), millis(settings.sandbox.limits.timeout).into());
        }
        input
    }

    async fn call(call: Call<'_>) -> CallToolResult {
        let settings = call.settings;
        let mut data = match run(call).await {
            Ok(result) => {
                let notes = noted(&result.notes, settings);
                ScriptData { notes, ..ScriptData::from(result) }
            }
            Err(failure) => ScriptData { error: Some(failure), ..ScriptData::default() },
        };
        data.error = data.error.map(|failure| explained(failure, settings));
        result(data, &settings.sandbox.mount_path)
    }
}

async fn run(call: Call<'_>) -> Result<RunResult, Failure> {
    let Call { workspace, settings, arguments, cancelled: token, progress } = call;
    let Arguments { script, args, timeout_ms } = decode(ExecuteScript::NAME, arguments)?;
    let timeout = timeout(timeout_ms, ExecuteScript::NAME, settings)?;
    let mut script = Script::new(script).args(args);
    script.timeout = timeout;
    let progress = progress.map(|(peer, token)| Progress::new(peer, token));
    let work = async |sandbox: &Sandbox| follow(sandbox, script, &token, progress).await;
    workspace.run_fresh("mcp script", &token, work).await
}

/// Runs a script to its end, and sends its log lines as progress.
async fn follow(
    sandbox: &Sandbox,
    script: Script,
    token: &CancellationToken,
    mut progress: Option<Progress>,
) -> Result<RunResult, Error> {
    let mut run = sandbox.start(script).await?;
    loop {
        tokio::select! {
            biased;
            () = token.cancelled() => {
                run.cancel_handle().cancel(CancelCause::Caller);
                break;
            }
            // The clock of what is not sent yet.
            () = Progress::due(&progress), if progress.is_some() => {
                if let Some(progress) = &mut progress {
                    progress.send(token).await;
                }
            }
            entry = run.next_log() => match (entry, &mut progress) {
                (Some(entry), Some(progress)) => progress.push(&entry.line()),
                (Some(_), None) => {}
                (None, _) => break,
            },
        }
    }
    let result = run.wait().await?;
    if let Some(progress) = &mut progress {
        progress.send(token).await;
    }
    Ok(result)
}

impl From<RunResult> for ScriptData {
    fn from(result: RunResult) -> Self {
        let hint = match result.outcome.failure().map(|failure| failure.kind) {
            Some(ErrorKind::Timeout) => Some("`timeout_ms` gives it more time".to_owned()),
            Some(_) => result.hint(),
            None => None,
        };
        let RunResult { execution, logs, .. } = result;
        let ExecutionReport { outcome, files_touched, network, .. } = execution;
        let (files_touched, files_touched_truncated) = listed(files_touched);
        let error = outcome.failure().map(|error| Failure { hint, ..error.into() });
        let result = match outcome {
            Outcome::Ok { result } => Some(result),
            _ => None,
        };
        Self {
            result,
            logs: logs.iter().map(|entry| entry.line().into_owned()).collect(),
            files_touched,
            files_touched_truncated,
            refused_hosts: network.map(|network| network.refused).unwrap_or_default(),
            notes: Vec::new(),
            error,
        }
    }
}

/// The result of a call: the data, the same as text, and links to the files that exist.
fn result(data: ScriptData, mount_path: &str) -> CallToolResult {
    let value = serde_json::to_value(&data).unwrap_or_else(|_| json!({}));
    let mut content = Vec::new();
    let is_error = data.error.is_some();
    match &data.error {
        None => content.push(ContentBlock::text(value.to_string())),
        Some(failure) => {
            let mut text = format!("Script execution error: {}", failure_text(failure));
            if let Some(traceback) = &failure.traceback {
                text.push('\n');
                text.push_str(traceback);
            }
            for line in &data.logs {
                text.push_str("\nlog: ");
                text.push_str(line);
            }
            for note in &data.notes {
                text.push_str("\nnote: ");
                text.push_str(note);
            }
            content.push(ContentBlock::text(text));
        }
    }
    let exist = data.files_touched.iter().filter(|file| file.op != FileOp::Remove);
    for file in exist.take(MAX_LINKS) {
        let name = match &file.name_b64 {
            Some(bytes) => &*bytes.0,
            None => file.name.as_bytes(),
        };
        let link = Resource::new(uri_below(mount_path, name), file.name.clone());
        content.push(ContentBlock::resource_link(link.with_size(file.bytes)));
    }
    let mut result = match is_error {
        false => CallToolResult::success(content),
        true => CallToolResult::error(content),
    };
    result.structured_content = Some(value);
    result
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn arguments_are_strict() {
        let decoded = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!("no object") };
            decode::<Arguments>(ExecuteScript::NAME, arguments)
                .map(drop)
                .map_err(|failure| failure.message)
        };
        assert_eq!(decoded(json!({ "script": "return 1", "args": { "a": [1] } })), Ok(()));
        for (wrong, expected) in [
            (json!({}), "missing field `script`"),
            (json!({ "script": "", "timeout": 5 }), "unknown field `timeout`"),
            (json!({ "script": 5 }), "invalid type"),
            (json!({ "script": "", "args": [] }), "invalid type"),
        ] {
            let message = decoded(wrong).unwrap_err();
            assert!(
                message.starts_with("execute_script: ") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn result_links_to_the_first_hundred_files() {
        let file =
            |number: usize| TouchedFile::new(number.to_string().as_bytes(), FileOp::Write, 0);
        let data =
            ScriptData { files_touched: (0..150).map(file).collect(), ..ScriptData::default() };
        let result = result(data, "/io");
        let links = result.content.iter().filter(|it| it.as_resource_link().is_some());
        assert_eq!(links.count(), MAX_LINKS);
        let listed = result.structured_content.unwrap()["files_touched"].as_array().unwrap().len();
        assert_eq!(listed, 150);
    }

    #[test]
    fn script_that_changes_nothing_is_read_only_unless_it_reaches_hosts() {
        let is_read_only = |settings: &Settings, has_files| {
            ExecuteScript::hints(ServerTraits { settings, has_files }).is_read_only
        };
        let mut settings = settings();
        assert!(!is_read_only(&settings, true) && is_read_only(&settings, false));
        settings.access = Access::ReadOnly;
        assert!(is_read_only(&settings, true));
        settings.sandbox =
            settings.sandbox.allow(["example.org".parse().unwrap()].into_iter().collect());
        assert!(!is_read_only(&settings, true) && !is_read_only(&settings, false));
    }

    #[test]
    fn failed_script_keeps_its_log_and_its_files() {
        let failure = Failure::new(ErrorKind::Runtime, "script:1: boom", None);
        let data = ScriptData {
            logs: vec!["before".to_owned()],
            files_touched: vec![
                TouchedFile::new(b"a b.csv", FileOp::Write, 3),
                TouchedFile::new(b"gone", FileOp::Remove, 0),
            ],
            error: Some(failure),
            ..ScriptData::default()
        };
        let result = result(data, "/io");
        assert_eq!(result.is_error, Some(true));
        let text = &result.content[0].as_text().unwrap().text;
        assert!(text.starts_with("Script execution error: script:1: boom"), "{text}");
        assert!(text.ends_with("\nlog: before"), "{text}");
        let links: Vec<_> =
            result.content.iter().filter_map(|it| Some(&*it.as_resource_link()?.uri)).collect();
        assert_eq!(links, ["sandbox:///io/a%20b.csv"]);
        let structured = result.structured_content.unwrap();
        assert_eq!(structured["result"], Value::Null);
        assert_eq!(structured["logs"], json!(["before"]));
        assert_eq!(structured["files_touched"][1]["op"], "remove");
        assert_eq!(structured["error"]["kind"], "runtime");
    }
}
