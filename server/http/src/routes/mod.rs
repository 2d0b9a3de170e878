//! The table of all routes, and their handlers.

mod attach;
mod console;
mod content;
mod events;
mod executions;
mod files;
mod form;
mod params;
pub(crate) mod ports;
mod processes;
mod sandboxes;
mod server;
mod session;
mod watch;

use axum::http::Method;
use sandbox_api::changes::ChangeManifest;
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{Envelope, OperationRequest};
use sandbox_api::service::{
    AcceptedExecution, Execution, ExecutionList, ExecutionRequest, ExtendRequest, FileList, Health,
    SandboxList, SandboxPatch, SandboxRequest, SandboxView, ScriptCheck, ScriptRequest,
    ServiceStatus, UsageTotals,
};
use sandbox_api::{PortList, Preview, PreviewRequest};
use sandbox_api::{ProcessList, ProcessRequest, ProcessView, SignalRequest, TerminalSize};
use serde_json::json;

pub use self::content::{ContentRange, content_range};
use self::params::{
    ArchiveParams, EventParams, GenerationParams, ListParams, ProcessEventParams,
    ProcessListParams, SandboxListParams, SubmitInParams, WaitParams, WatchParams,
};
use crate::access::Scope;
use crate::forward::owner::{Owner, execution, sandbox};
use crate::limit::Limit;
use crate::metrics::OPENMETRICS;
use crate::route::{Route, Tag, bytes, event, text, watch_event};

/// Of an answer 202.
const ACCEPTED: &str =
    "Accepted. It has not ended, or there is not enough memory for its result now.";

/// Every route.
pub(crate) fn table() -> Vec<Route> {
    let mut routes = executions();
    routes.extend(sandboxes());
    routes.extend(processes());
    routes.extend(ports());
    routes.extend(server());
    routes
}

fn executions() -> Vec<Route> {
    let routes = [
        Route::post("/v1/executions", "create_execution", executions::create)
            .does("Run a script or a command")
            .describe(
                "Accepts an execution, durably. With `wait` the answer is the finished execution \
                 (200), if it ends in that time; otherwise its id (202). As `multipart/form-data` \
                 the request comes first, and its inputs follow as files.",
            )
            .takes_key()
            .query::<WaitParams>()
            .json_body::<ExecutionRequest>(Limit::Request, executions::example_request)
            .multipart_body::<form::ExecutionForm>(Limit::Request)
            .answers::<Execution>(200, "It has ended.")
            .header("Location", "The execution.")
            .answers::<AcceptedExecution>(202, ACCEPTED)
            .example(|| json!({ "id": "0f7c2b1d9a3e4c5b", "status": "queued" }))
            .header("Location", "The execution.")
            .refuses([409, 507]),
        Route::get("/v1/executions", "list_executions", executions::list)
            .does("List executions")
            .describe("The latest first, a page at a time.")
            .query::<ListParams>()
            .answers::<ExecutionList>(200, "A page of executions."),
        Route::get("/v1/executions/{id}", "get_execution", executions::get)
            .does("Get an execution and its result")
            .owned_by(Owner::NodeOrStore(execution))
            .describe(
                "With `wait` the answer comes when it ends, or after that time as it is then.",
            )
            .query::<WaitParams>()
            .answers::<Execution>(200, "The execution; its result is final once it has ended."),
        Route::delete("/v1/executions/{id}", "cancel_execution", executions::cancel)
            .does("Cancel an execution")
            .owned_by(Owner::NodeOrStore(execution))
            .describe("A finished execution is unchanged.")
            .answers::<Execution>(200, "The execution, which ends soon."),
        Route::get("/v1/executions/{id}/events", "get_events", events::get)
            .does("Follow the events of an execution")
            .owned_by(Owner::Events(execution))
            .describe(
                "Server-sent events, numbered from 1 without gaps. Each has its number as `id`, \
                 its name as `event`, and an `ExecutionEvent` in JSON as `data`, whose schema is \
                 that of the answer. A client that reconnects with `Last-Event-ID` gets those that \
                 follow. The last one is `end`, after which the stream ends.",
            )
            .resumes()
            .query::<EventParams>()
            .answers_as(200, "text/event-stream", event, "The events."),
        Route::get("/v1/executions/{id}/files", "list_files", files::list)
            .does("List the files that an execution left")
            .answers::<FileList>(200, "The files.")
            .refuses([409]),
        Route::get("/v1/executions/{id}/files/{path}", "get_file", files::get)
            .does("Get a file that an execution left")
            .describe("Whole, or a range of it. The SHA-256 of its content is in the changes.")
            .reads("If-Match", "The file must have one of these ETags: 412 if it has not.")
            .reads(
                "If-None-Match",
                "The ETags that the client has: 304 if the file has one of them.",
            )
            .reads("If-Range", "The range counts only if the file has this ETag.")
            .reads(
                "Range",
                "A range of bytes: `bytes=0-99`. Of several only the whole file is given.",
            )
            .answers_as(200, "*/*", bytes, "The file. Its type is by its name.")
            .header("ETag", "It is strong: the same one means the same content.")
            .header("Content-Disposition", "Always an attachment.")
            .answers_as(206, "*/*", bytes, "The range of the file.")
            .header("Content-Range", "Which range.")
            .answers_nothing(304, "The client has it already.")
            .refuses([409, 412, 416]),
        Route::get("/v1/executions/{id}/archive", "get_archive", files::archive)
            .does("Get all files that an execution left, as an archive")
            .query::<ArchiveParams>()
            .answers_as(200, "application/gzip", bytes, "The archive.")
            .or_bytes("application/zstd")
            .header("Content-Disposition", "Always an attachment.")
            .refuses([409]),
        Route::get("/v1/executions/{id}/changes", "get_changes", files::changes)
            .does("Get the changes that an execution made in its io dir")
            .answers::<ChangeManifest>(200, "The change manifest.")
            .refuses([409]),
    ];
    let with_scope = |route: Route| match route.method {
        Method::GET => route.of(Tag::Executions, Scope::ExecutionsRead),
        _ => route.of(Tag::Executions, Scope::ExecutionsWrite),
    };
    routes.map(with_scope).into()
}

fn sandboxes() -> Vec<Route> {
    let routes = [
        Route::post("/v1/sandboxes", "create_sandbox", sandboxes::create)
            .does("Create a sandbox, or find it by its name")
            .owned_by(Owner::NewSandbox)
            .json_body::<SandboxRequest>(Limit::Request, || {
                json!({
                    "name": "notebook",
                    "spec": { "limits": { "memory_bytes": 268_435_456 } },
                    "ttl_ms": 3_600_000,
                    "idle_ms": 600_000,
                })
            })
            .answers::<SandboxView>(200, "The sandbox of this name, which has the same spec.")
            .header("Location", "The sandbox.")
            .says_generation()
            .answers::<SandboxView>(201, "A new sandbox.")
            .header("Location", "The sandbox.")
            .says_generation()
            .uses_sandbox(),
        Route::get("/v1/sandboxes", "list_sandboxes", sandboxes::list)
            .does("List sandboxes")
            .describe("The latest first, a page at a time.")
            .query::<SandboxListParams>()
            .answers::<SandboxList>(200, "A page of sandboxes."),
        Route::get("/v1/sandboxes/{id}", "get_sandbox", sandboxes::get)
            .does("Get a sandbox")
            .owned_by(Owner::NodeOrStore(sandbox))
            .describe("Reading a sandbox does not count as use: its idle timeout is not renewed.")
            .answers::<SandboxView>(200, "The sandbox."),
        Route::delete("/v1/sandboxes/{id}", "delete_sandbox", sandboxes::delete)
            .does("Remove a sandbox and its files")
            .owned_by(Owner::NodeOrStore(sandbox))
            .answers_nothing(204, "It is removed."),
        Route::post("/v1/sandboxes/{id}/extend", "extend_sandbox", sandboxes::extend)
            .does("Extend the lifetime of a sandbox")
            .describe("At most to the maximum lifetime fixed at creation.")
            .json_body::<ExtendRequest>(Limit::Small, || json!({ "ttl_ms": 3_600_000 }))
            .answers::<SandboxView>(200, "The sandbox."),
        Route::patch("/v1/sandboxes/{id}", "patch_sandbox", sandboxes::patch)
            .does("Change the lifetime or the metadata of a sandbox")
            .describe(
                "What is left out stays. The lifetime may become shorter, and ends at \
                 `max_expires_at` at the latest.",
            )
            .json_body::<SandboxPatch>(
                Limit::Small,
                || json!({ "ttl_ms": 600_000, "metadata": { "owner": "ci" } }),
            )
            .answers::<SandboxView>(200, "The sandbox."),
        Route::post("/v1/sandboxes/{id}/pause", "pause_sandbox", sandboxes::pause)
            .does("Pause a sandbox")
            .describe(
                "Its processes keep their memory, and get no processor time until its next use.",
            )
            .query::<GenerationParams>()
            .answers::<SandboxView>(200, "The sandbox.")
            .uses_sandbox(),
        Route::post("/v1/sandboxes/{id}/resume", "resume_sandbox", sandboxes::resume)
            .does("Resume a sandbox that is paused")
            .query::<GenerationParams>()
            .answers::<SandboxView>(200, "The sandbox.")
            .uses_sandbox(),
        Route::post("/v1/sandboxes/{id}/operations", "operate", sandboxes::operate)
            .does("Perform a file operation")
            .describe(
                "An operation that fails is answered 200 with `success: false` and its error.",
            )
            .query::<GenerationParams>()
            .json_body::<OperationRequest>(
                Limit::Request,
                || json!({ "operation": "write", "path": "notes.txt", "content": "hello\n" }),
            )
            .answers::<Envelope>(200, "The result of the operation.")
            .says_generation()
            .uses_sandbox(),
        Route::get("/v1/sandboxes/{id}/files/{path}", "read_file", sandboxes::read)
            .does("Read a file of a sandbox")
            .reads("If-Match", "412 unless it is `*`: files of a sandbox have no ETags.")
            .query::<GenerationParams>()
            .answers_as(200, "*/*", bytes, "The content. Its type is by its name.")
            .header("Content-Disposition", "Always an attachment.")
            .says_generation()
            .uses_sandbox()
            .refuses([412]),
        Route::put("/v1/sandboxes/{id}/files/{path}", "write_file", sandboxes::write)
            .does("Write a file of a sandbox")
            .describe("Whole or not at all; missing parent directories are created.")
            .reads("Content-Range", "400: a file is written whole.")
            .reads("If-Match", "412: files of a sandbox have no ETags.")
            .reads(
                "If-None-Match",
                "`*`: 412 if the file exists. Files of a sandbox have no ETags.",
            )
            .query::<GenerationParams>()
            .bytes_body()
            .answers::<WriteReply>(200, "The file is written.")
            .says_generation()
            .uses_sandbox()
            .refuses([412]),
        Route::get("/v1/sandboxes/{id}/watch", "watch_files", watch::get)
            .does("Watch a directory of a sandbox")
            .describe(
                "Server-sent events, from when the answer begins: `change` for each change of an \
                 entry, and `omitted` where some are missing, because the client was too slow, \
                 there were too many at once, or a directory could not be watched. Needs a sandbox \
                 with an image of programs, which has at most 8 watches. The stream ends when the \
                 directory is gone.",
            )
            .query::<WatchParams>()
            .answers_as(200, "text/event-stream", watch_event, "The changes.")
            .uses_sandbox(),
        Route::post("/v1/sandboxes/{id}/executions", "run_in_sandbox", sandboxes::run)
            .does("Run a script or a command in a sandbox")
            .describe("As for a one-shot execution, except for what the sandbox already fixes.")
            .takes_key()
            .query::<SubmitInParams>()
            .json_body::<ExecutionRequest>(Limit::Request, executions::example_request)
            .answers::<Execution>(200, "It has ended.")
            .header("Location", "The execution.")
            .answers::<AcceptedExecution>(202, ACCEPTED)
            .header("Location", "The execution.")
            .refuses([409, 507]),
    ];
    routes.map(|route| route.of(Tag::Sandboxes, Scope::Sandboxes)).into()
}

fn processes() -> Vec<Route> {
    let routes = [
        Route::post("/v1/sandboxes/{id}/processes", "start_process", processes::start)
            .does("Start a process")
            .describe("Needs a sandbox whose spec has `processes: kept`.")
            .takes_key()
            .query::<GenerationParams>()
            .json_body::<ProcessRequest>(
                Limit::Request,
                || json!({ "command": { "shell": "python3 -m http.server 8080" }, "tag": "web" }),
            )
            .answers::<ProcessView>(201, "The process.")
            .header("Location", "The process.")
            .says_generation(),
        Route::get("/v1/sandboxes/{id}/processes", "list_processes", processes::list)
            .does("List processes")
            .describe("The latest first: those that run, and those that ended lately.")
            .query::<ProcessListParams>()
            .answers::<ProcessList>(200, "The processes."),
        Route::get("/v1/sandboxes/{id}/processes/{process}", "get_process", processes::get)
            .does("Get a process")
            .describe(
                "With `wait` the answer comes when it has exited, or after that time as it is \
                 then.",
            )
            .query::<SubmitInParams>()
            .answers::<ProcessView>(200, "The process."),
        Route::delete("/v1/sandboxes/{id}/processes/{process}", "stop_process", processes::stop)
            .does("Stop a process and all that it has started")
            .describe(
                "They get SIGTERM, or its `stop_signal`, and SIGKILL after the grace: at once for a \
                 second request.",
            )
            .query::<SubmitInParams>()
            .answers::<ProcessView>(200, "It has ended, and nothing is left.")
            .answers::<ProcessView>(202, "It ends soon."),
        Route::get(
            "/v1/sandboxes/{id}/processes/{process}/events",
            "get_process_events",
            processes::events,
        )
        .does("Follow the events of a process")
        .describe(
            "Server-sent events as those of an execution: `start`, `output`, `exit`, and `end` \
             with the process as its document. What is too old is `omitted`. `mode` is `lossy` \
             by default.",
        )
        .resumes()
        .query::<ProcessEventParams>()
        .answers_as(200, "text/event-stream", event, "The events."),
        Route::get(
            "/v1/sandboxes/{id}/processes/{process}/attach",
            "attach_process",
            attach::attach,
        )
        .does("Attach to a process, by a WebSocket")
        .describe(
            "Its subprotocol is `sandboxctl.process.1`. The server sends output as binary \
             messages (a byte: 1 for stdout, 2 for stderr; the number of the event in 8 bytes, \
             the highest first; the output), and other events as text. A client sends input as \
             binary messages, and `{\"resize\": …}`, `{\"signal\": …}` or `{\"eof\": true}` as \
             text. `mode` is `wait` by default.",
        )
        .query::<ProcessEventParams>()
        .answers_nothing(101, "The connection is a WebSocket."),
        Route::post(
            "/v1/sandboxes/{id}/processes/{process}/stdin",
            "write_stdin",
            processes::write_stdin,
        )
        .does("Send input to a process")
        .query::<GenerationParams>()
        .bytes_body()
        .answers_nothing(204, "All of it is queued."),
        Route::post(
            "/v1/sandboxes/{id}/processes/{process}/stdin/close",
            "close_stdin",
            processes::close_stdin,
        )
        .does("Close the stdin of a process")
        .query::<GenerationParams>()
        .answers_nothing(204, "It is closed."),
        Route::post(
            "/v1/sandboxes/{id}/processes/{process}/resize",
            "resize_process",
            processes::resize,
        )
        .does("Set the size of a process's terminal")
        .query::<GenerationParams>()
        .json_body::<TerminalSize>(Limit::Small, || json!({ "cols": 120, "rows": 40 }))
        .answers_nothing(204, "It has this size."),
        Route::post(
            "/v1/sandboxes/{id}/processes/{process}/signal",
            "signal_process",
            processes::signal,
        )
        .does("Send a signal to a process")
        .query::<GenerationParams>()
        .json_body::<SignalRequest>(Limit::Small, || json!({ "signal": "TERM", "to": "group" }))
        .answers_nothing(204, "It was sent."),
    ];
    routes.map(|route| route.of(Tag::Processes, Scope::Sandboxes).uses_sandbox()).into()
}

fn ports() -> Vec<Route> {
    let routes = [
        Route::get("/v1/sandboxes/{id}/ports", "list_ports", ports::list)
            .does("List the ports of a sandbox at which something listens")
            .query::<GenerationParams>()
            .answers::<PortList>(200, "The ports, whether the spec lists them or not.")
            .says_generation(),
        Route::post("/v1/sandboxes/{id}/ports/{port}/connect", "connect_port", ports::connect)
            .does("Connect to a port of a sandbox")
            .describe(
                "Asks for `Upgrade: sandboxctl-tcp`, over HTTP/1.1. After the answer the \
                 connection is one to the port: the bytes are passed on as they are, both ways.",
            )
            .query::<GenerationParams>()
            .answers_nothing(101, "The connection is one to the port."),
        Route::post("/v1/sandboxes/{id}/ports/{port}/previews", "open_preview", ports::preview)
            .does("Open a preview of a port")
            .describe(
                "A host at which the port can be reached, by requests with the header \
                 `Sandbox-Port-Token`, or without it if the preview is public.",
            )
            .query::<GenerationParams>()
            .json_body::<PreviewRequest>(Limit::Small, || json!({ "ttl_ms": 3_600_000 }))
            .answers::<Preview>(201, "The preview."),
    ];
    routes.map(|route| route.of(Tag::Ports, Scope::Sandboxes).uses_sandbox()).into()
}

fn server() -> Vec<Route> {
    vec![
        Route::get("/v1/usage", "get_usage", server::usage)
            .is(Tag::Server, Scope::ExecutionsRead, "Get the caller's usage")
            .answers::<UsageTotals>(200, "Totals of the caller's subject."),
        Route::get("/v1/service", "get_service", server::service)
            .is(Tag::Server, Scope::Admin, "Get what the service does now")
            .describe(
                "Its queue, its pool, its kept sandboxes, at most 100 subjects with what they have and used today, and \
                 the nodes of its cluster. How it was before is in the metrics.",
            )
            .answers::<ServiceStatus>(200, "What it does."),
        Route::post("/v1/check", "check_script", server::check)
            .is(Tag::Executions, Scope::ExecutionsWrite, "Check a script without running it")
            .json_body::<ScriptRequest>(Limit::Request, || json!({ "script": "return 6 * 7" }))
            .answers::<ScriptCheck>(200, "What is wrong with it: nothing if it compiles."),
        Route::get("/v1/openapi.json", "get_openapi", server::openapi)
            .public("Get this document")
            .answers_as(200, "application/json", bytes, "The OpenAPI document."),
        Route::get("/", "get_console", console::page)
            .public("Get the console, a page for people")
            .answers_as(200, "text/html", text, "The page."),
        Route::get("/assets/{name}", "get_console_asset", console::asset)
            .public("Get an asset of the console")
            .answers_as(200, "*/*", bytes, "The asset. Its type is by its name.")
            .header("ETag", "A weak one, which all encodings have in common.")
            .answers_nothing(304, "The client has it already."),
        Route::get("/docs", "get_docs", console::docs)
            .public("Go to the reference of the API in the console")
            .answers_nothing(308, "It is there.")
            .header("Location", "The reference.")
            .answers_nothing(302, "This program has no console: the document is there.")
            .header("Location", "The document."),
        Route::post("/v1/session", "create_session", session::create)
            .public("Sign a page of this server in")
            .describe(
                "For a browser: the answer sets a cookie that no script can read and that counts for requests of this \
                 server's own pages alone, with `proof` in `Session-Proof`. It lasts up to 12 hours, and no longer \
                 than the token.",
            )
            .json_body::<session::SignIn>(Limit::Small, || json!({ "token": "sbx_0f7c2b1d9a3e4c5b_…" }))
            .answers::<session::SessionView>(200, "Who is signed in.")
            .header("Set-Cookie", "The session.")
            .refuses([401, 429]),
        Route::get("/v1/session", "get_session", session::get)
            .of_caller("Get who is signed in, or whose token the request has")
            .answers::<session::SessionView>(200, "Who that is."),
        Route::delete("/v1/session", "delete_session", session::delete)
            .public("Sign the page out")
            .describe("The browser forgets its session. Revoking its token ends every copy of it.")
            .answers_nothing(204, "It is signed out.")
            .header("Set-Cookie", "No session."),
        Route::get("/healthz", "get_health", server::healthz)
            .public("Liveness check")
            .answers::<server::Healthz>(200, "Alive."),
        Route::get("/readyz", "get_ready", server::readyz)
            .public("Readiness check")
            .answers::<Health>(200, "Ready.")
            .answers::<Health>(503, "Not ready: which checks fail."),
        Route::get("/metrics", "get_metrics", server::metrics)
            .is(Tag::Server, Scope::Admin, "Get metrics for Prometheus")
            .answers_as(200, OPENMETRICS, text, "The figures, as OpenMetrics."),
        Route::get(
            "/.well-known/oauth-protected-resource",
            "get_resource_metadata",
            server::resource_metadata,
        )
        .public("Get the OAuth protected resource metadata")
        .describe("RFC 9728; not found unless `server.url` is set.")
        .answers::<server::ProtectedResource>(200, "The metadata.")
        .refuses([404]),
        Route::get(
            "/.well-known/oauth-protected-resource/mcp",
            "get_mcp_resource_metadata",
            server::mcp_resource_metadata,
        )
        .public("Get the OAuth protected resource metadata of /mcp")
        .answers::<server::ProtectedResource>(200, "The metadata.")
        .refuses([404]),
    ]
}
