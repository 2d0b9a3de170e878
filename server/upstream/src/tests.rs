//! Servers that are programs and servers over HTTP, well-behaved and not.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse as _;
use axum::routing::post;
use hyper::header::HeaderValue;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
    Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sandbox_api::ToolEffect;
use sandbox_controller::host_tools::{HostAnswer, HostToolError, HostTools as _};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{Target, Upstreams};

/// A server of revision 2025-11-25, which ends where `die` is called, and forgets where `hang` is.
const SERVER: &str = r#"
echo "started with $SECRET" >&2
sleep 1000 &
echo $! >> "$PIDS"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
    *'"initialize"'*)
      answer '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}';;
    *'"tools/list"'*'"cursor"'*) answer '{"tools":[{"name":"a-b","inputSchema":{"type":"object"}}]}';;
    *'"tools/list"'*)
      answer '{"nextCursor":"2","tools":[{"name":"env","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"bad\u001bname","inputSchema":{"type":"object"}}]}';;
    *'"tools/call"'*die*) exit 1;;
    *'"tools/call"'*hang*) ;;
    *'"tools/call"'*long*) yes x | tr -d '\n';;
    *'"tools/call"'*env*) answer "{\"content\":[{\"type\":\"text\",\"text\":\"$(env | cut -d= -f1 | sort | tr '\n' ' ')\"}]}";;
    *'"tools/call"'*) answer '{"isError":true,"content":[{"type":"text","text":"no \u001b[31mway"}]}';;
    *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}\n' "$id";;
  esac
done
"#;

fn program(script: &str, env: &[(&str, &str)]) -> Upstreams {
    let path = [("PATH", "/usr/bin:/bin")];
    let env = path.iter().chain(env).map(|(name, value)| (name.to_string(), value.to_string()));
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let target = Target::Command { command, env: env.collect(), cwd: "/".into() };
    Upstreams::new([("s".to_owned(), target)])
}

async fn call(upstreams: &Upstreams, tool: &str) -> Result<HostAnswer, HostToolError> {
    let called = upstreams.call(tool, serde_json::Map::new(), ToolEffect::Destructive);
    timeout(Duration::from_secs(20), called).await.unwrap_or(Err(HostToolError::Timeout))
}

/// The processes that the server has started.
struct Pids(tempfile::TempDir);

impl Pids {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("pids")
    }

    fn read(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until all of them have ended.
    async fn ended(&self) {
        // Another one may have its number meanwhile.
        let lives = |pid: &String| {
            let line = fs::read(Path::new("/proc").join(pid).join("cmdline"));
            line.is_ok_and(|line| line == b"sleep\x001000\0")
        };
        let ended = async {
            while self.read().iter().any(lives) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), ended).await.expect("its processes end");
    }
}

#[tokio::test]
async fn program_is_called_and_ends_with_its_processes() {
    let pids = Pids::new();
    let file = pids.file();
    let env = [("PIDS", file.to_str().unwrap()), ("SECRET", "x")];
    let upstreams = program(SERVER, &env);
    assert_eq!(upstreams.names().next(), Some("s"));
    let tools = upstreams.list().await.unwrap();
    let names: Vec<_> = tools.iter().map(|it| (&*it.name, it.effect)).collect();
    assert_eq!(names, [("s.env", ToolEffect::ReadOnly), ("s.a-b", ToolEffect::Changes)]);
    // Of our own environment it has nothing; the shell adds the rest.
    let answer = call(&upstreams, "s.env").await.unwrap();
    let text = answer.value.as_str().unwrap();
    assert!(text.contains("SECRET") && !text.contains("CARGO") && !text.contains("HOME"), "{text}");
    let failed = call(&upstreams, "s.a-b").await.unwrap_err();
    assert_eq!(failed, HostToolError::Failed("no [31mway".to_owned()));
    assert_eq!(call(&upstreams, "s.none").await.unwrap_err(), HostToolError::Unknown);
    assert_eq!(call(&upstreams, "t.env").await.unwrap_err(), HostToolError::Unknown);
    assert_eq!(pids.read().len(), 1, "one connection for all calls");
    drop(upstreams);
    pids.ended().await;
}

#[tokio::test]
async fn program_that_dies_is_started_again() {
    let pids = Pids::new();
    let file = pids.file();
    let dies = SERVER.replace("a-b", "die");
    let upstreams = program(&dies, &[("PIDS", file.to_str().unwrap())]);
    let is_lost = |error: &HostToolError| matches!(error, HostToolError::Unavailable(why) if why.contains("lost"));
    for started in 1..=2 {
        let error = call(&upstreams, "s.die").await.unwrap_err();
        assert!(is_lost(&error), "{error}");
        assert_eq!(pids.read().len(), started);
    }
    // It never answered a call: it has to wait now, longer each time, and in the end longer than the next call takes
    // to come.
    let waits = |error: &HostToolError| matches!(error, HostToolError::Unavailable(why) if why.contains("again in"));
    let mut error = call(&upstreams, "s.die").await.unwrap_err();
    while is_lost(&error) && !waits(&error) {
        error = call(&upstreams, "s.die").await.unwrap_err();
    }
    assert!(waits(&error), "{error}");
    upstreams.close().await;
    pids.ended().await;
}

#[tokio::test]
async fn call_that_is_given_up_costs_no_other() {
    let pids = Pids::new();
    let file = pids.file();
    let upstreams = program(&SERVER.replace("a-b", "hang"), &[("PIDS", file.to_str().unwrap())]);
    upstreams.list().await.unwrap();
    let hanging = upstreams.call("s.hang", serde_json::Map::new(), ToolEffect::Changes);
    assert!(timeout(Duration::from_millis(300), hanging).await.is_err());
    call(&upstreams, "s.env").await.unwrap();
    assert_eq!(pids.read().len(), 1);
}

#[tokio::test]
async fn message_that_cannot_be_read_ends_the_connection() {
    let pids = Pids::new();
    let file = pids.file();
    let deep = format!("printf '{{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}\\n'", "[".repeat(400));
    let script = SERVER.replace("yes x | tr -d '\\n'", &format!("echo hello; {deep}"));
    let upstreams = program(&script.replace("a-b", "long"), &[("PIDS", file.to_str().unwrap())]);
    let error = call(&upstreams, "s.long").await.unwrap_err();
    assert!(matches!(&error, HostToolError::Unavailable(why) if why.contains("lost")), "{error}");
}

#[tokio::test]
async fn line_without_end_is_not_kept() {
    let pids = Pids::new();
    let file = pids.file();
    let upstreams = program(&SERVER.replace("a-b", "long"), &[("PIDS", file.to_str().unwrap())]);
    assert_eq!(call(&upstreams, "s.long").await.unwrap_err(), HostToolError::TooLarge);
    drop(upstreams);
    pids.ended().await;
}

#[tokio::test]
async fn program_that_is_no_server_is_explained() {
    for (script, expected) in [
        (
            "echo 'no token' >&2; exit 3",
            "it ended before it answered; its stderr ends with: no token",
        ),
        ("yes x | tr -d '\\n'", "it ended before it answered"),
        // With the id of no request.
        (r#"while read -r l; do echo '{"jsonrpc":"2.0","id":99,"result":{}}'; done"#, "id"),
        (r#"while read -r l; do echo '{"jsonrpc":"2.0","id":0,"result":{"x":1}}'; done"#, "expect"),
    ] {
        let checked = program(script, &[]).check().await.remove(0);
        let error = checked.1.unwrap_err();
        assert!(error.contains(expected) && error.len() < 1500, "{script}: {error}");
    }
    let command = vec!["/nowhere/at/all".to_owned()];
    let target = Target::Command { command, env: BTreeMap::new(), cwd: "/".into() };
    let failing = Upstreams::new([("t".to_owned(), target)]);
    let error = failing.list().await.unwrap_err();
    let expected = "t: its program 'all' cannot be started: No such file or directory (os error 2)";
    assert_eq!(error, HostToolError::Unavailable(expected.to_owned()));
    let both = program(SERVER, &[]).with(failing);
    let (listed, missing) = both.list_some().await.unwrap();
    assert_eq!((listed.len(), missing), (2, vec!["t".to_owned()]));
    let (known, missing) = both.known().unwrap();
    assert_eq!((known.len(), missing), (2, vec!["t".to_owned()]));
    both.close().await;
}

#[tokio::test]
async fn what_is_known_is_there_without_waiting_and_grows() {
    // It refuses to list its tools once, and stays.
    let refusing = r#"case $told$line in
    '{'*'"tools/list"'*)
      told=x
      printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"not yet"}}\n' "$id";;"#;
    let refusing = SERVER.replace("case $line in", refusing);
    assert_ne!(refusing, SERVER);
    for script in [SERVER, &refusing] {
        let upstreams = program(script, &[]);
        let (known, missing) = upstreams.known().unwrap();
        assert_eq!((known.len(), missing), (0, vec!["s".to_owned()]));
        // It is being started, though no call waits for it.
        let ready = async {
            while upstreams.known().unwrap().0.len() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), ready).await.expect("its tools are known");
        assert_eq!(upstreams.known().unwrap().1, Vec::<String>::new());
        upstreams.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn program_that_never_answers_is_given_up() {
    let checked = program("cat > /dev/null", &[]).check().await.remove(0);
    assert_eq!(checked.1.unwrap_err(), "it did not answer within 60 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_that_floods_is_still_answered() {
    let flood = format!(
        "(yes '{}' & yes '{}' &) 2>/dev/null\n{SERVER}",
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#
    );
    // Lines of several writers may be mixed: what counts is that nothing hangs, and all of it ends.
    let pids = Pids::new();
    let file = pids.file();
    let upstreams = program(&flood, &[("PIDS", file.to_str().unwrap())]);
    _ = timeout(Duration::from_secs(3), upstreams.list()).await;
    // Its start goes on, if its answer was lost in the flood: it ends with the connection.
    timeout(Duration::from_secs(20), upstreams.close()).await.expect("it is closed");
    drop(upstreams);
    pids.ended().await;
}

/// A server over HTTP.
#[derive(Debug, Clone)]
struct Server;

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = |schema: Value| std::sync::Arc::new(schema.as_object().unwrap().clone());
        let input = schema(json!({ "type": "object" }));
        let wrapped = json!({ "type": "object", "properties": { "result": {} } });
        Ok(ListToolsResult::with_all_items(vec![
            Tool::new("sum", "Adds.\u{202e}\u{7}", input.clone())
                .with_raw_output_schema(schema(wrapped))
                .with_annotations(ToolAnnotations::new().read_only(true)),
            Tool::new("image", "Draws.", input.clone())
                .with_annotations(ToolAnnotations::new().destructive(true)),
            Tool::new("large", "", input),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let revision = context.protocol_version().map(|it| it.to_string());
        Ok(match &*request.name {
            "sum" => CallToolResult::structured(json!({ "result": [1, revision] })),
            "image" => CallToolResult::success(vec![
                ContentBlock::image("aGk=", "image/png"),
                ContentBlock::text("hi"),
                ContentBlock::text("{}"),
            ]),
            _ => CallToolResult::success(vec![ContentBlock::text("x".repeat(9 << 20))]),
        }
        .into())
    }
}

async fn listen(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/mcp?a=b")
}

fn url(url: String, token: &'static str) -> Upstreams {
    let headers = [("authorization".parse().unwrap(), HeaderValue::from_static(token))];
    let headers: HashMap<_, _> = headers.into_iter().collect();
    Upstreams::new([("web".to_owned(), Target::Url { url, headers })])
}

fn router(is_legacy: bool) -> axum::Router {
    let config = StreamableHttpServerConfig::default();
    let sessions = std::sync::Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(Server), sessions, config);
    let check = move |request: Request, next: Next| async move {
        let (is_known, is_new) = {
            let headers = request.headers();
            let is = |name: &str, value: &str| headers.get(name).is_some_and(|it| it == value);
            let is_known = is("authorization", "Bearer x") && request.uri().query() == Some("a=b");
            (is_known, is("mcp-protocol-version", ProtocolVersion::LATEST.as_str()))
        };
        if !is_known {
            return StatusCode::FORBIDDEN.into_response();
        }
        if is_legacy && is_new {
            return StatusCode::BAD_REQUEST.into_response();
        }
        next.run(request).await
    };
    axum::Router::new().route_service("/mcp", service).layer(from_fn(check))
}

#[tokio::test]
async fn url_is_called_by_both_eras_of_the_protocol() {
    for (is_legacy, revision) in [(false, "2026-07-28"), (true, "2025-11-25")] {
        let upstreams = url(listen(router(is_legacy)).await, "Bearer x");
        let tools = upstreams.check().await.remove(0).1.unwrap();
        assert_eq!((&*tools[0].name, &*tools[0].description), ("web.sum", "Adds."));
        assert_eq!(tools[1].effect, ToolEffect::Destructive);
        for _ in 0..3 {
            let answer = call(&upstreams, "web.sum").await.unwrap();
            assert_eq!(answer.value, json!({ "result": [1, revision] }));
        }
        let answer = call(&upstreams, "web.image").await.unwrap();
        assert_eq!(answer.value, json!("hi\n{}"));
        assert_eq!(
            (&*answer.files[0].mime_type, &*answer.files[0].data),
            ("image/png", &b"hi"[..])
        );
        let called = upstreams.call("web.image", serde_json::Map::new(), ToolEffect::Changes);
        assert_eq!(called.await.unwrap_err(), HostToolError::NotPermitted);
        let error = call(&upstreams, "web.large").await.unwrap_err();
        assert_eq!(error, HostToolError::TooLarge);
    }
}

#[tokio::test]
async fn url_that_refuses_or_leads_elsewhere_is_not_followed() {
    let checked = url(listen(router(false)).await, "Bearer y").check().await.remove(0);
    assert!(checked.1.unwrap_err().contains("403"));
    let elsewhere = post(async || (StatusCode::TEMPORARY_REDIRECT, [("location", "/mcp")]));
    let elsewhere = axum::Router::new().route("/mcp", elsewhere);
    let checked = url(listen(elsewhere).await, "Bearer x").check().await.remove(0);
    assert!(checked.1.unwrap_err().contains("307"));
    let checked = url("http://127.0.0.1:1/mcp".to_owned(), "").check().await.remove(0);
    assert!(checked.1.unwrap_err().contains("refused"));
}
