//! `exec`: a command in a fresh container of the server's image.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use sandbox_api::service::{CommandRequest, Content};
use sandbox_api::{
    Captured, Command, ExecutionEvent, ExecutionResult, Failure, Outcome, OutputStream,
    RefusedHost, TouchedFile, millis,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{alias, decode, timeout};
use super::result::{
    attach, failure_text, invalid, listed, listed_hosts, ran, run_failure, write_refused,
};
use super::schema;
use super::tool::{Call, Hints, McpTool, ServerTraits};
use crate::hints::{explained, noted};
use crate::lock;
use crate::outputs::{Kept, MAX_KEPT_BYTES, Output, OutputEnd, Outputs, Shown};
use crate::paths;
use crate::settings::{Access, Settings};
use crate::transport::progress::Progress;

/// What a call gives, however the command ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecData {
    /// Its stdout, as `truncated` says; an object with `b64` where it is not UTF-8.
    stdout: Content,
    /// Its stderr, likewise.
    stderr: Content,
    /// Its exit code; null if it did not exit by itself.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// It did not exit with code 0.
    failed: bool,
    /// Its timeout expired, and it was killed.
    timed_out: bool,
    /// There was more output: of that, only the beginning and the end are given.
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
        let hosts = match sandbox.hosts().rules().is_empty() {
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
             {hosts} On timeout the program and its children are killed."
        )
    }

    fn hints(server: ServerTraits<'_>) -> Hints {
        Hints {
            is_read_only: false,
            is_destructive: true,
            is_idempotent: false,
            is_open_world: !server.settings.sandbox.hosts().rules().is_empty(),
        }
    }

    fn input(server: ServerTraits<'_>) -> JsonObject {
        let mut input = command_input();
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
        let (settings, workspace) = (call.settings, call.workspace);
        let (mut data, text, kept) = match run(call).await {
            Ok((result, ends)) => shown(result, ends, settings, workspace.outputs()),
            Err(failure) => {
                let data = ExecData { failed: true, error: Some(failure), ..ExecData::default() };
                (data, String::new(), Vec::new())
            }
        };
        data.error = data.error.map(|failure| explained(failure, settings));
        let text = (!text.is_empty()).then_some(text);
        let content = data.error.iter().map(failure_text).chain(text).map(ContentBlock::text);
        let content: Vec<_> = content.collect();
        let mut result = ran(content, &data, data.error.is_some());
        attach(&mut result, kept, &data.files_touched, workspace).await;
        result
    }
}

/// The schema of a command.
pub(super) fn command_input() -> JsonObject {
    let mut input = schema::input::<CommandRequest>();
    // Only stdin is likely to be no text.
    for (name, property) in schema::properties(&mut input) {
        let text = match &**name {
            "args" => json!({ "type": "array", "items": { "type": "string" } }),
            "env" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            "stdin" => json!({ "type": ["string", "object"] }),
            _ => json!({ "type": "string" }),
        };
        let description = property["description"].take();
        *property = text;
        property["description"] = match &**name {
            "stdin" => "Its stdin: text, or bytes as {\"b64\": \"…\"}.".into(),
            _ => description,
        };
    }
    input
}

/// Runs a command, and gives the ends of its stdout and stderr too.
async fn run(call: Call<'_>) -> Result<(ExecutionResult, [OutputEnd; 2]), Failure> {
    let Call { workspace, settings, mut arguments, cancelled: token, progress, .. } = call;
    let time = timeout(arguments.remove("timeout_ms"), Exec::NAME, settings)?;
    let mut command = command(arguments)?.output_limit(MAX_KEPT_BYTES);
    command.timeout = time;
    if let Some(cwd) = &mut command.cwd {
        paths::understand(workspace, cwd).await;
    }
    let progress = progress.map(Progress::new);
    let ends = Mutex::new([OutputEnd::default(), OutputEnd::default()]);
    let sink = |event: ExecutionEvent| {
        let ExecutionEvent::Output { stream, data } = event else { return };
        let [stdout, stderr] = &mut *lock(&ends);
        match stream {
            OutputStream::Stdout => stdout.push(&data),
            OutputStream::Stderr => stderr.push(&data),
        }
        if let Some(progress) = &progress {
            progress.push_output(&data);
        }
    };
    let result = workspace.run("mcp exec", command, &token, progress.as_ref(), None, &sink).await?;
    Ok((result, ends.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// The arguments as a command.
fn command(arguments: JsonObject) -> Result<Command, Failure> {
    let request = command_request(Exec::NAME, "`timeout_ms`", arguments)?;
    Command::try_from(request).map_err(|error| {
        let field = error.field.trim_start_matches("command.");
        invalid(format!("{}: `{field}`: {}", Exec::NAME, error.problem))
    })
}

/// The arguments of a tool as a command, but for `others`, which are decoded apart.
pub(super) fn command_request(
    tool: &str,
    others: &str,
    mut arguments: JsonObject,
) -> Result<CommandRequest, Failure> {
    // As other tools call it: a line for a shell, or a program with its arguments.
    alias(&mut arguments, "cmd", "command");
    let is_line = arguments.get("command").is_some_and(Value::is_string)
        && arguments.get("args").is_none_or(|args| args == &json!([]));
    match arguments.get_mut("command").map(Value::take) {
        Some(Value::Array(mut words)) if !words.is_empty() && !arguments.contains_key("args") => {
            let args = words.split_off(1);
            arguments.insert("command".to_owned(), words.remove(0));
            arguments.insert("args".to_owned(), args.into());
        }
        Some(command) => _ = arguments.insert("command".to_owned(), command),
        None => {}
    }
    alias(&mut arguments, "command", if is_line { "shell" } else { "program" });
    decode(tool, arguments).map_err(|mut failure| {
        let all = format!("expected one of {others}, ");
        failure.message = failure.message.replace("expected one of ", &all);
        failure
    })
}

/// What a model is given of it: as data, and as text with at most so many bytes of output as the
/// settings say; and what is kept of more.
fn shown(
    result: ExecutionResult,
    [stdout, stderr]: [OutputEnd; 2],
    settings: &Settings,
    outputs: &Outputs,
) -> (ExecData, String, Vec<Kept>) {
    let output = |captured: &Captured, end| Output { beginning: captured.bytes.clone(), end };
    let (stdout, stderr) = (output(result.stdout(), stdout), output(result.stderr(), stderr));
    let (most, notes) = (settings.output_bytes, noted(&result.notes, settings));
    let [for_stdout, for_stderr] = shares(&stdout, &stderr, most);
    let (mut kept, mut is_cut) = (Vec::new(), false);
    let mut show = |output: Output, most, name| {
        // What is no text is given as it is, if there is room.
        let bytes = output.whole().filter(|bytes| bytes.len() <= most);
        let bytes = bytes.filter(|bytes| std::str::from_utf8(bytes).is_err() || bytes.contains(&0));
        let bytes = bytes.map(<[u8]>::to_vec);
        let Shown { text, is_whole, kept: more } = output.show(most, outputs, name);
        kept.extend(more);
        is_cut |= !is_whole && bytes.is_none();
        (Content(bytes.unwrap_or_else(|| text.clone().into_bytes())), text)
    };
    let (stdout, of_stdout) = show(stdout, for_stdout, "stdout");
    let (stderr, of_stderr) = show(stderr, for_stderr, "stderr");
    let mut data = ExecData { notes, ..ExecData::of(result) };
    data.truncated |= is_cut;
    (data.stdout, data.stderr) = (stdout, stderr);
    let text = data.text(of_stdout, &of_stderr);
    (data, text, kept)
}

/// How much of stdout and of stderr is given, of so much in all: each has what the other leaves, and half
/// of it at least.
fn shares(stdout: &Output, stderr: &Output, most: usize) -> [usize; 2] {
    let half = most / 2;
    [stderr, stdout].map(|other| most - other.room(half).min(half))
}

impl ExecData {
    /// Without the output.
    fn of(result: ExecutionResult) -> Self {
        let (failed, error) = (result.failed(), run_failure(&result));
        let (exit_code, signal) = (result.command_exit_code(), result.signal());
        let ExecutionResult { outcome, files_touched, network, .. } = result;
        let (files_touched, files_touched_truncated) = listed(files_touched);
        let timed_out = matches!(outcome, Outcome::Timeout(_));
        let (refused_hosts, truncated) =
            listed_hosts(network.map(|network| network.refused).unwrap_or_default());
        Self {
            exit_code,
            signal,
            failed,
            timed_out,
            truncated,
            files_touched,
            files_touched_truncated,
            refused_hosts,
            error,
            ..Self::default()
        }
    }

    /// The output, and how the command ended, for a model to read.
    fn text(&self, stdout: String, stderr: &str) -> String {
        let mut text = stdout;
        let line = |text: &mut String| {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
        };
        if !stderr.is_empty() {
            line(&mut text);
            text.push_str("stderr:\n");
            text.push_str(stderr);
        }
        if !self.refused_hosts.is_empty() {
            line(&mut text);
            write_refused(&mut text, &self.refused_hosts);
        }
        for note in &self.notes {
            line(&mut text);
            _ = write!(text, "note: {note}");
        }
        match (self.exit_code, self.signal) {
            (Some(code), _) if code != 0 || text.is_empty() => {
                line(&mut text);
                _ = write!(text, "exit code {code}");
            }
            (None, Some(signal)) => {
                line(&mut text);
                _ = write!(text, "ended by signal {signal}");
            }
            _ => {}
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_one_of_program_and_shell() {
        let made = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!("no object") };
            command(arguments).map(drop).map_err(|failure| failure.message)
        };
        assert_eq!(made(json!({ "program": "ls", "args": ["-l"], "env": { "A": "b" } })), Ok(()));
        assert_eq!(made(json!({ "shell": "ls | wc", "stdin": "x", "cwd": "/tmp" })), Ok(()));
        assert_eq!(made(json!({ "command": "ls | wc" })), Ok(()));
        assert_eq!(made(json!({ "cmd": ["ls", "-l"] })), Ok(()));
        for wrong in [
            json!({}),
            json!({ "program": "ls", "shell": "ls" }),
            json!({ "shell": "ls", "args": ["x"] }),
            json!({ "programme": "ls" }),
            json!({ "program": "ls", "args": "x" }),
            json!({ "program": "ls", "command": "ls" }),
            json!({ "command": [] }),
        ] {
            let message = made(wrong).unwrap_err();
            assert!(message.starts_with("exec: "), "{message}");
        }
        let message = made(json!({ "programme": "ls" })).unwrap_err();
        assert!(message.contains("expected one of `timeout_ms`, `program`"), "{message}");
    }

    #[test]
    fn words_of_other_tools_are_understood() {
        let program = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!("no object") };
            let command = command(arguments).unwrap();
            String::from_utf8(command.program().to_vec()).unwrap() + &format!("{:?}", command.what)
        };
        let same = |one: Value, other: Value| assert_eq!(program(one), program(other));
        same(json!({ "command": "ls -l" }), json!({ "shell": "ls -l" }));
        same(json!({ "command": "ls -l", "args": [] }), json!({ "shell": "ls -l" }));
        let with_args = json!({ "program": "ls", "args": ["-l"] });
        same(json!({ "command": "ls", "args": ["-l"] }), with_args.clone());
        same(json!({ "command": ["ls", "-l"] }), with_args);
    }

    #[test]
    fn each_output_has_what_the_other_leaves() {
        let of = |bytes: usize| Output::from(vec![b'x'; bytes]);
        for (stdout, stderr, expected) in
            [(0, 0, [100, 100]), (10, 500, [50, 90]), (500, 20, [80, 50]), (500, 500, [50, 50])]
        {
            assert_eq!(shares(&of(stdout), &of(stderr), 100), expected, "{stdout} {stderr}");
        }
    }

    #[test]
    fn text_is_the_output_and_says_how_the_command_ended() {
        let text =
            |data: ExecData, stdout: &str, stderr: &str| data.text(stdout.to_owned(), stderr);
        let exit = |exit_code, signal| ExecData { exit_code, signal, ..ExecData::default() };
        assert_eq!(text(exit(Some(0), None), "a\n", ""), "a\n");
        assert_eq!(text(exit(Some(0), None), "", ""), "exit code 0");
        assert_eq!(text(exit(Some(3), None), "a", "b\n"), "a\nstderr:\nb\nexit code 3");
        assert_eq!(text(exit(None, Some(9)), "", ""), "ended by signal 9");
        let refused = RefusedHost {
            host: "a.example".into(),
            port: 443,
            reason: "not allowed".into(),
            allow: vec!["a.example".into()],
        };
        let data = ExecData { refused_hosts: vec![refused], ..exit(Some(0), None) };
        let expected = "refused: a.example:443 (not allowed); a rule that allows it: a.example\n";
        assert_eq!(text(data, "", ""), expected);
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
