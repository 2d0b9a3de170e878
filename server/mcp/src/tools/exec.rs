//! `exec`: a command in a fresh container of the server's image.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use sandbox_api::service::{CommandRequest, Content};
use sandbox_api::{
    CancelCause, Command, ErrorKind, ExecResult, ExecutionReport, Failure, Outcome, RefusedHost,
    Stdin, TouchedFile, millis,
};
use sandbox_controller::{Error, Sandbox};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::args::{decode, timeout};
use super::result::{failure_text, invalid, listed, structured};
use super::schema;
use super::tool::{Call, Hints, McpTool, ServerTraits};
use crate::hints::{explained, noted};
use crate::settings::Access;

/// What a call gives, however the command ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecData {
    /// The beginning of its stdout; an object with `b64` where it is not UTF-8.
    stdout: Content,
    /// The beginning of its stderr, likewise.
    stderr: Content,
    /// Its exit code; null if it did not exit by itself.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// It did not exit with code 0.
    failed: bool,
    /// It was out of time, and was killed.
    timed_out: bool,
    /// There was more output.
    truncated: bool,
    /// The files that it changed.
    files_touched: Vec<TouchedFile>,
    /// There are more than `files_touched` lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    files_touched_truncated: bool,
    /// The hosts that it was refused, each with the rules that would allow it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_hosts: Vec<RefusedHost>,
    /// What stood in its way in the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// Why it failed, if the command is not the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// Runs a command.
#[derive(Debug)]
pub(super) struct Exec;

impl McpTool for Exec {
    const NAME: &'static str = "exec";
    const TITLE: &'static str = "Run a command";
    const IN_FRESH_CONTAINER: bool = true;
    type Args = CommandRequest;
    type Data = ExecData;

    fn is_offered(server: ServerTraits<'_>) -> bool {
        server.settings.sandbox.supports_exec()
    }

    fn description(server: ServerTraits<'_>) -> String {
        let sandbox = &server.settings.sandbox;
        let hosts = match sandbox.allow.rules().is_empty() {
            true => "It has no network.",
            false => "It reaches only the hosts that the server allows.",
        };
        let mount_path = &sandbox.mount_path;
        let files = match (server.has_files, server.settings.access) {
            (true, Access::ReadWrite) => {
                format!("It starts in {mount_path}, whose files stay; all else is gone afterwards.")
            }
            (true, Access::ReadOnly) => format!(
                "It starts in {mount_path}, whose files it can only read; what it writes in /tmp is \
                 gone afterwards."
            ),
            (false, _) => {
                "Files are off: it can only write in /tmp, and what is there is gone afterwards."
                    .to_owned()
            }
        };
        format!(
            "Run a program of the image, or a line for its shell, in a fresh container. {files} \
             {hosts} What is out of time is killed with all that it has started."
        )
    }

    fn hints(server: ServerTraits<'_>) -> Hints {
        Hints {
            is_read_only: false,
            is_destructive: true,
            is_idempotent: false,
            is_open_world: !server.settings.sandbox.allow.rules().is_empty(),
        }
    }

    fn input(server: ServerTraits<'_>) -> JsonObject {
        let mut input = schema::input::<CommandRequest>();
        let timeout = json!({
            "description": "Milliseconds that it may take.",
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": millis(server.settings.timeout_ceiling),
            "default": millis(server.settings.sandbox.limits.timeout),
        });
        schema::properties(&mut input).insert("timeout_ms".to_owned(), timeout);
        input
    }

    async fn call(call: Call<'_>) -> CallToolResult {
        let settings = call.settings;
        let mut data = match run(call).await {
            Ok(result) => {
                let notes = noted(&result.notes, settings);
                ExecData { notes, ..ExecData::from(result) }
            }
            Err(failure) => ExecData { failed: true, error: Some(failure), ..ExecData::default() },
        };
        data.error = data.error.map(|failure| explained(failure, settings));
        let error = data.error.as_ref().map(failure_text);
        let mut result = structured(serde_json::to_value(&data).unwrap_or_else(|_| json!({})));
        if let Some(error) = error {
            result.is_error = Some(true);
            result.content.insert(0, ContentBlock::text(error));
        }
        result
    }
}

async fn run(call: Call<'_>) -> Result<ExecResult, Failure> {
    let Call { workspace, settings, mut arguments, cancelled: token, .. } = call;
    let time = timeout(arguments.remove("timeout_ms"), Exec::NAME, settings)?;
    let mut command = command(arguments)?;
    command.timeout = time;
    let work = async |sandbox: &Sandbox| follow(sandbox, command, &token).await;
    workspace.run_fresh("mcp exec", &token, work).await
}

/// Runs a command to its end.
async fn follow(
    sandbox: &Sandbox,
    command: Command,
    token: &CancellationToken,
) -> Result<ExecResult, Error> {
    let execution = sandbox.start_exec(command).await?;
    let handle = execution.cancel_handle();
    let ended = execution.wait();
    tokio::pin!(ended);
    tokio::select! {
        biased;
        ended = &mut ended => ended,
        () = token.cancelled() => {
            handle.cancel(CancelCause::Caller);
            ended.await
        }
    }
}

/// The arguments as a command.
fn command(arguments: JsonObject) -> Result<Command, Failure> {
    let request: CommandRequest = decode(Exec::NAME, arguments).map_err(|mut failure| {
        // It is decoded apart.
        let all = "expected one of `timeout_ms`, ";
        failure.message = failure.message.replace("expected one of ", all);
        failure
    })?;
    let CommandRequest { program, args, shell, env, cwd, stdin } = request;
    let mut command = match (program, shell) {
        (Some(program), None) => Command::new(program.0).args(args.into_iter().map(|arg| arg.0)),
        (None, Some(_)) if !args.is_empty() => {
            return Err(invalid("exec: `args` are for a `program`, not for a `shell` line"));
        }
        (None, Some(line)) => Command::shell(line.0),
        _ => return Err(invalid("exec: give exactly one of `program` and `shell`")),
    };
    for (name, value) in env {
        command = command.env(name, value.0);
    }
    if let Some(cwd) = cwd {
        command = command.cwd(cwd.0);
    }
    if let Some(stdin) = stdin {
        command.stdin = Stdin::Bytes(stdin.0);
    }
    Ok(command)
}

impl From<ExecResult> for ExecData {
    fn from(result: ExecResult) -> Self {
        let failed = result.failed();
        let hint = result.hint();
        let ExecResult { execution, exit_code, signal, stdout, stderr, .. } = result;
        let ExecutionReport { outcome, files_touched, network, .. } = execution;
        let (files_touched, files_touched_truncated) = listed(files_touched);
        let timed_out = matches!(outcome, Outcome::Timeout(_));
        let error = match &outcome {
            // The command's own end is data.
            Outcome::Ok { .. } | Outcome::Exit(_) => None,
            outcome => outcome.failure(),
        };
        let error = error.map(|error| {
            let hint = match error.kind {
                ErrorKind::Timeout => Some("`timeout_ms` gives it more time".to_owned()),
                _ => hint,
            };
            Failure { hint, ..error.into() }
        });
        Self {
            stdout: Content(stdout),
            stderr: Content(stderr),
            exit_code,
            signal,
            failed,
            timed_out,
            truncated: result.stdout_truncated || result.stderr_truncated,
            files_touched,
            files_touched_truncated,
            refused_hosts: network.map(|network| network.refused).unwrap_or_default(),
            notes: Vec::new(),
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn command_is_one_of_program_and_shell() {
        let made = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!("no object") };
            command(arguments).map(drop).map_err(|failure| failure.message)
        };
        assert_eq!(made(json!({ "program": "ls", "args": ["-l"], "env": { "A": "b" } })), Ok(()));
        assert_eq!(made(json!({ "shell": "ls | wc", "stdin": "x", "cwd": "/tmp" })), Ok(()));
        for wrong in [
            json!({}),
            json!({ "program": "ls", "shell": "ls" }),
            json!({ "shell": "ls", "args": ["x"] }),
            json!({ "programme": "ls" }),
            json!({ "program": "ls", "args": "x" }),
        ] {
            let message = made(wrong).unwrap_err();
            assert!(message.starts_with("exec: "), "{message}");
        }
        let message = made(json!({ "programme": "ls" })).unwrap_err();
        assert!(message.contains("expected one of `timeout_ms`, `program`"), "{message}");
    }

    #[test]
    fn description_says_which_files_there_are() {
        let described = |access, has_files| {
            let settings = Settings { access, ..super::super::tests::settings() };
            Exec::description(ServerTraits { settings: &settings, has_files })
        };
        assert!(described(Access::ReadWrite, true).contains("starts in /io, whose files stay"));
        assert!(
            described(Access::ReadOnly, true).contains("starts in /io, whose files it can only")
        );
        let off = described(Access::ReadWrite, false);
        assert!(off.contains("Files are off") && !off.contains("/io"), "{off}");
    }
}
