//! The tools for processes: what is started here lives on after its call.

mod output;

use std::num::NonZeroU16;
use std::time::Duration;

use futures_util::StreamExt as _;
use rmcp::model::{CallToolResult, JsonObject};
use sandbox_api::service::{CommandRequest, Content};
use sandbox_api::{
    EventRecord, ExecutionEvent, Failure, Preview, PreviewRequest, ProcessRequest, ProcessState,
    ProcessView, PtyRequest, Recorded, SignalName, millis,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use self::output::{Collected, ProcessOutput, Search};
use super::args::decode;
use super::exec::{command_input, command_request};
use super::result::{failed, invalid, structured};
use super::schema;
use super::tool::{Call, Entry, Hints, McpTool, ServerTraits};
use crate::hints::explained;
use crate::paths::understand;

/// The terminal of a process that asks for one. Its type has no escape sequences, which a model would have to read.
const TERMINAL: (u16, u16, &str) = (120, 40, "dumb");
/// How much of the first output `start_process` gives.
const FIRST_OUTPUT: usize = 4 << 10;
/// How long it waits for that, if not for a condition.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long a process may take to be ready by default, and at most.
const READY_WAIT: Duration = Duration::from_secs(10);
const MAX_READY_WAIT: Duration = Duration::from_secs(60);
/// How long `read_output` waits by default, and at most.
const READ_WAIT: Duration = Duration::from_secs(1);
const MAX_READ_WAIT: Duration = Duration::from_secs(30);
/// Once something has come: after how long without more it is given.
const LINGER: Duration = Duration::from_millis(50);
/// How long `stop_process` waits for the end.
const STOP_WAIT: Duration = Duration::from_secs(20);
/// The most bytes of one input: they fit into the queue of a process that reads none.
const MAX_INPUT: usize = 64 << 10;

/// A process in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProcessItem {
    /// Its number.
    process: u32,
    command: String,
    state: ProcessState,
    exit_code: Option<u8>,
    signal: Option<u8>,
}

impl From<ProcessView> for ProcessItem {
    fn from(view: ProcessView) -> Self {
        let ProcessView { id: process, command, state, exit_code, signal, .. } = view;
        Self { process, command, state, exit_code, signal }
    }
}

/// A tool a row: its name, its name for people, what it takes and gives, what a client may assume of it, its
/// description, the schema of its arguments if another than theirs, and what runs a call of it.
macro_rules! process_tools {
    ($(
        $tool:ident $name:literal $title:literal ($args:ty) -> $data:ty
        { $hints:expr, $description:literal, $input:expr, $run:ident }
    )+) => {
        /// In the order of their list.
        pub(super) const TOOLS: &[Entry] = &[$(Entry::of::<$tool>()),+];

        $(
            #[derive(Debug)]
            struct $tool;

            impl McpTool for $tool {
                const NAME: &'static str = $name;
                const TITLE: &'static str = $title;
                const IN_FRESH_CONTAINER: bool = false;
                type Args = $args;
                type Data = $data;

                fn is_offered(server: ServerTraits<'_>) -> bool {
                    let is_possible = Self::NAME != OpenPort::NAME || server.settings.has_previews;
                    is_possible && server.settings.sandbox.supports_exec()
                }

                fn description(_: ServerTraits<'_>) -> String {
                    $description.to_owned()
                }

                fn hints(server: ServerTraits<'_>) -> Hints {
                    let is_open_world = !server.settings.sandbox.hosts().rules().is_empty();
                    let hints: Hints = $hints;
                    // What only reads and stops has no effect outside.
                    let is_open_world = is_open_world && !hints.is_idempotent;
                    Hints { is_open_world, ..hints }
                }

                fn input(_: ServerTraits<'_>) -> JsonObject {
                    $input()
                }

                async fn call(call: Call<'_>) -> CallToolResult {
                    let settings = call.settings;
                    let result = $run(call).await;
                    result.unwrap_or_else(|failure| failed(&explained(failure, settings)))
                }
            }
        )+
    };
}

process_tools! {
    StartProcess "start_process" "Start a process" (CommandRequest) -> ProcessOutput {
        Hints::DESTRUCTIVE,
        "Start a program or a shell line that goes on after this call: a server, a REPL, a long build. \
         Gives its number and its first output. All processes share a container \
         and its loopback.",
        start_input, start
    }
    ReadOutput "read_output" "Read the output of a process" (ReadArgs) -> ProcessOutput {
        Hints::READ_ONLY,
        "What a process has printed, and whether it still runs. The last MiB is kept.",
        schema::input::<ReadArgs>, read
    }
    SendInput "send_input" "Send input to a process" (InputArgs) -> InputData {
        Hints::DESTRUCTIVE,
        "Write to the stdin of a process, or its terminal. Then use read_output.",
        schema::input::<InputArgs>, send_input
    }
    StopProcess "stop_process" "Stop a process" (StopArgs) -> ProcessItem {
        Hints { is_idempotent: true, ..Hints::DESTRUCTIVE },
        "End a process and all that it has started. Its output can still be read.",
        schema::input::<StopArgs>, stop
    }
    ListProcesses "list_processes" "List processes" (ListArgs) -> ListedProcesses {
        Hints::READ_ONLY,
        "Processes that run or ended lately, the latest first.",
        schema::input::<ListArgs>, list
    }
    OpenPort "open_port" "Open a port" (PortArgs) -> Preview {
        Hints { is_destructive: false, is_idempotent: true, ..Hints::DESTRUCTIVE },
        "A URL for others of a port that a process listens on. Requests need the header Sandbox-Port-Token with \
         `token`, unless it is public.",
        schema::input::<PortArgs>, open_port
    }
}

/// When a process is ready, by one of the two, and how long it may take.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ready {
    port: Option<NonZeroU16>,
    text: Option<String>,
    timeout_ms: Option<u64>,
}

impl Ready {
    fn read(given: Value) -> Result<Self, Failure> {
        let refused = |why: &str| invalid(format!("start_process: `ready`: {why}"));
        let member = |name: &str, value| JsonObject::from_iter([(name.to_owned(), value)]);
        let given = match given {
            Value::Object(given) => given,
            // Models write these, too.
            Value::Number(_) => member("port", given),
            Value::String(_) => member("text", given),
            _ => return Err(refused("it is an object with `port` or `text`")),
        };
        let mut ready: Self = decode("start_process: `ready`", given)?;
        ready.text = ready.text.filter(|text| !text.is_empty());
        if ready.port.is_some() == ready.text.is_some() {
            return Err(refused("give one of `port` and `text`"));
        }
        if ready.wait() > MAX_READY_WAIT {
            let most = millis(MAX_READY_WAIT);
            return Err(refused(&format!("`timeout_ms` is at most {most}")));
        }
        Ok(ready)
    }

    fn wait(&self) -> Duration {
        self.timeout_ms.map_or(READY_WAIT, Duration::from_millis)
    }
}

fn start_input() -> JsonObject {
    let mut input = command_input();
    let properties = schema::properties(&mut input);
    properties.remove("stdin");
    let pty = json!({
        "description": "Whether it has a terminal.",
        "type": "boolean",
    });
    let ready = json!({
        "description": "Waits until it listens on this port, or has printed this text.",
        "type": "object",
        "properties": {
            "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
            "text": { "type": "string" },
            "timeout_ms": {
                "type": "integer",
                "minimum": 1,
                "maximum": millis(MAX_READY_WAIT),
                "default": millis(READY_WAIT),
            },
        },
        "additionalProperties": false,
    });
    let stop_signal = json!({
        "description": "What asks it to end; by default TERM.",
        "type": "string",
        "enum": SignalName::ALL,
    });
    let stop_timeout = json!({
        "description": "Milliseconds from then until it is killed; 0 kills at once.",
        "type": "integer",
        "minimum": 0,
    });
    properties.insert("pty".to_owned(), pty);
    properties.insert("ready".to_owned(), ready);
    properties.insert("stop_signal".to_owned(), stop_signal);
    properties.insert("stop_timeout_ms".to_owned(), stop_timeout);
    input
}

async fn start(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let Call { workspace, mut arguments, cancelled, .. } = call;
    let pty = match arguments.remove("pty").map(|pty| pty.as_bool()) {
        None | Some(Some(false)) => None,
        Some(Some(true)) => {
            let (cols, rows, term) = TERMINAL;
            Some(PtyRequest { cols, rows, term: Some(term.to_owned()) })
        }
        Some(None) => return Err(invalid("start_process: `pty` is true or false")),
    };
    let ready = arguments.remove("ready").map(Ready::read).transpose()?;
    let stop = ["stop_signal", "stop_timeout_ms"];
    let stop = stop.into_iter().filter_map(|name| arguments.remove_entry(name)).collect();
    let request: ProcessRequest = decode(StartProcess::NAME, stop)?;
    let others = "`pty`, `ready`, `stop_signal`, `stop_timeout_ms`";
    let mut command = command_request(StartProcess::NAME, others, arguments)?;
    if let Some(Content(cwd)) = &mut command.cwd {
        understand(workspace, cwd).await;
    }
    let request = ProcessRequest { command, stdin: true, pty, ..request };
    let process = workspace.start_process(request).await?.id;
    let mut events = workspace.process_events(process, 0).await?;
    let wait = ready.as_ref().map_or(FIRST_WAIT, Ready::wait);
    let has_condition = ready.is_some();
    let Ready { port, text, .. } = ready.unwrap_or_default();
    let mut search = text.map(Search::new);
    let listens = async {
        match port {
            Some(port) => workspace.listens(port.get()).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(listens);
    let (mut collected, mut is_ready) = (Collected::after(0), false);
    let until = Instant::now() + wait;
    loop {
        let patience = match has_condition || collected.is_empty() {
            true => until,
            false => until.min(Instant::now() + LINGER),
        };
        tokio::select! {
            () = cancelled.cancelled() => break,
            listening = &mut listens => {
                is_ready = listening.is_ok();
                break;
            }
            event = timeout_at(patience, events.next()) => {
                let Ok(Some(event)) = event else { break };
                let event = event.map_err(|error| workspace.failure(&error))?;
                collected.add(&event, FIRST_OUTPUT);
                if let (Some(search), Some(data)) = (&mut search, output_of(&event)) {
                    is_ready = search.find(data);
                }
                if is_ready || collected.has_exited || (!has_condition && collected.is_full) {
                    break;
                }
            }
        }
    }
    let view = workspace.process(process, Duration::ZERO).await?;
    Ok(collected.shown(view, has_condition.then_some(is_ready)).result())
}

fn output_of(event: &EventRecord) -> Option<&[u8]> {
    match &event.event {
        Recorded::Event(ExecutionEvent::Output { data, .. }) => Some(&data[..]),
        _ => None,
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadArgs {
    process: u32,
    /// `next` of the last result; 0 for all that is kept.
    #[serde(default)]
    after: u64,
    /// How long to wait for output.
    #[schemars(extend("maximum" = 30_000, "default" = 1000))]
    wait_ms: Option<u64>,
    /// The most bytes of output.
    #[schemars(extend("minimum" = 1))]
    max_bytes: Option<usize>,
}

async fn read(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let Call { workspace, settings, arguments, cancelled, .. } = call;
    let args: ReadArgs = decode(ReadOutput::NAME, arguments)?;
    let wait = args.wait_ms.map_or(READ_WAIT, Duration::from_millis);
    if wait > MAX_READ_WAIT {
        let most = millis(MAX_READ_WAIT);
        return Err(invalid(format!("read_output: `wait_ms` is at most {most}")));
    }
    let most = args.max_bytes.unwrap_or(usize::MAX).min(settings.output_bytes).max(1);
    let mut events = workspace.process_events(args.process, args.after).await?;
    let mut collected = Collected::after(args.after);
    // What is there already comes, however short the wait.
    let until = Instant::now() + wait.max(LINGER);
    while !collected.is_full && !collected.has_ended {
        let patience = match collected.is_empty() {
            true => until,
            false => until.min(Instant::now() + LINGER),
        };
        tokio::select! {
            () = cancelled.cancelled() => break,
            event = timeout_at(patience, events.next()) => {
                let Ok(Some(event)) = event else { break };
                let event = event.map_err(|error| workspace.failure(&error))?;
                collected.add(&event, most);
            }
        }
    }
    let view = workspace.process(args.process, Duration::ZERO).await?;
    Ok(collected.shown(view, None).result())
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InputArgs {
    process: u32,
    /// A line ends with a newline; in a terminal, `\u0003` is Ctrl-C.
    #[serde(default)]
    text: String,
    /// Whether to close its stdin then.
    #[serde(default)]
    eof: bool,
}

/// What was sent to a process.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InputData {
    /// The number of the process.
    process: u32,
    bytes_written: usize,
}

async fn send_input(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let InputArgs { process, text, eof } = decode(SendInput::NAME, call.arguments)?;
    let bytes_written = text.len();
    if bytes_written == 0 && !eof {
        return Err(invalid("send_input: give `text`, or `eof: true`"));
    }
    if bytes_written > MAX_INPUT {
        return Err(invalid(format!("send_input: `text` has at most {MAX_INPUT} bytes")));
    }
    if bytes_written > 0 {
        call.workspace.write_process(process, text).await?;
    }
    if eof {
        call.workspace.close_process_stdin(process).await?;
    }
    Ok(result_of(&InputData { process, bytes_written }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopArgs {
    process: u32,
}

async fn stop(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let StopArgs { process } = decode(StopProcess::NAME, call.arguments)?;
    Ok(result_of(&ProcessItem::from(call.workspace.stop_process(process, STOP_WAIT).await?)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListArgs {}

/// The processes of a workspace.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListedProcesses {
    /// The latest first.
    processes: Vec<ProcessItem>,
}

async fn list(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let ListArgs {} = decode(ListProcesses::NAME, call.arguments)?;
    let listed = call.workspace.list_processes().await?;
    let processes = listed.into_iter().map(ProcessItem::from).collect();
    Ok(result_of(&ListedProcesses { processes }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PortArgs {
    port: NonZeroU16,
    /// Whether its URL is enough to use it.
    #[serde(default)]
    public: bool,
    /// An hour by default.
    ttl_ms: Option<u64>,
}

async fn open_port(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let PortArgs { port, public, ttl_ms } = decode(OpenPort::NAME, call.arguments)?;
    let opened = call.workspace.open_port(port.get(), PreviewRequest { ttl_ms, public })?;
    Ok(result_of(&opened))
}

fn result_of(data: &impl Serialize) -> CallToolResult {
    structured(serde_json::to_value(data).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_a_port_or_a_text() {
        let read = |value: Value| {
            Ready::read(value).map(|ready| ready.wait()).map_err(|failure| failure.message)
        };
        assert_eq!(read(json!({ "port": 80 })), Ok(READY_WAIT));
        let second = json!({ "text": "a", "timeout_ms": 1000 });
        assert_eq!(read(second), Ok(Duration::from_secs(1)));
        assert_eq!(read(json!(80)), Ok(READY_WAIT));
        assert_eq!(read(json!("listening")), Ok(READY_WAIT));
        for wrong in [
            json!({}),
            json!([80]),
            json!(0),
            json!(""),
            json!({ "port": 0 }),
            json!({ "port": 70_000 }),
            json!({ "text": "" }),
            json!({ "port": 80, "text": "a" }),
            json!({ "port": 80, "timeout_ms": 60_001 }),
            json!({ "host": "a" }),
        ] {
            let message = read(wrong.clone()).unwrap_err();
            assert!(message.starts_with("start_process: `ready`: "), "{wrong}: {message}");
        }
    }
}
