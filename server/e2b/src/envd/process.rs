//! `process.Process`: processes by their pid inside or by their tag, and streams of what they print.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use sandbox_api::process::{PtyRequest, SCROLLBACKS};
use sandbox_api::service::{CommandRequest, Content, SandboxRef, Time};
use sandbox_api::{
    ByteSize, ErrorKind, ExecutionEvent, Exit, OutputStream, ProcessRequest, ProcessState,
    ProcessStop, ProcessView, ReadFrom, ReadMode, Recorded, SignalName, SignalRequest,
    SignalTarget, TerminalSize, millis,
};
use sandbox_service::{Events, ProcessFilter, ServiceError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::paths::KERNEL_TAG;
use super::{Call, unimplemented};
use crate::connect::json::{Base64, Name, Number, or_default};
use crate::connect::{
    Bounds, Code, ConnectError, Incoming, Messages, after, bounded, client_stream, server_stream,
    to_json, unary,
};
use crate::error::Error;
use crate::marker::Marker;
use crate::sandbox::lock;

/// For how long a process that has ended can be connected to.
const REMEMBERED: Duration = Duration::from_secs(30);
/// How long a kill waits for the end that it brings.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// How long the output is read of what lives on when its parent was killed.
const KILLED_READ: Duration = Duration::from_secs(1);
/// What a stream says where nothing is printed.
const KEEPALIVE: &[u8] = br#"{"event":{"keepalive":{}}}"#;
/// The size of a terminal whose request has none.
const USUAL_SIZE: (u16, u16) = (80, 24);
/// What the SDKs start: where only the line of a process is known, its words are cut there.
const LOGIN_SHELL: &str = "/bin/bash -l -c ";
/// The longest words and variables of a process that are kept for lists, in bytes of JSON.
const MAX_CONFIG: usize = 4 << 10;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Start {
    process: Option<Config>,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Config {
    #[serde(deserialize_with = "or_default")]
    cmd: String,
    #[serde(deserialize_with = "or_default")]
    args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Size {
    #[serde(deserialize_with = "or_default")]
    cols: Number,
    #[serde(deserialize_with = "or_default")]
    rows: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    pid: Option<Number>,
    tag: Option<String>,
}

/// Of all calls that are about one process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    #[serde(deserialize_with = "or_default")]
    process: Selector,
    #[serde(deserialize_with = "or_default")]
    input: Input,
    signal: Option<Name>,
    pty: Option<Pty>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<Base64>,
    pty: Option<Base64>,
}

/// A message of `StreamInput`; a keepalive has neither.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamInput {
    start: Option<About>,
    data: Option<About>,
}

#[derive(Debug, Default, Deserialize)]
struct Nothing {}

pub(super) async fn call(
    method: Result<Path<String>, PathRejection>,
    call: Call,
    request: Request,
) -> Result<Response, Error> {
    let Path(method) = method?;
    Ok(match &*method {
        "Start" => server_stream(request, |it, bounds| call.start(it, bounds)).await,
        "Connect" => server_stream(request, |it, bounds| call.connect(it, bounds)).await,
        "List" => unary(request, |_: Nothing| call.list()).await,
        "SendInput" => unary(request, |it| call.send_input(it)).await,
        "StreamInput" => client_stream(request, |it| call.stream_input(it)).await,
        "CloseStdin" => unary(request, |it| call.close_stdin(it)).await,
        "SendSignal" => unary(request, |it| call.send_signal(it)).await,
        "Update" => unary(request, |it| call.update(it)).await,
        _ => unimplemented("process.Process", &method).into_response(),
    })
}

impl Call {
    async fn start(self, asked: Start, bounds: Bounds) -> Result<Messages, ConnectError> {
        let config = json!(asked.process).to_string();
        let request = self.process_request(asked, bounds.timeout).await?;
        let service = self.service();
        let started = service.start_process(&self.subject, &self.sandbox, request, None).await;
        let view = match started {
            Ok(started) => started.value,
            // Its sandbox is there: so the program or the working directory is not.
            Err(error) if is_callers(&error) && self.has_sandbox().await => {
                return Err(ConnectError::from(error).with_code(Code::InvalidArgument));
            }
            Err(error) => return Err(error.into()),
        };
        self.remember(&view, config);
        self.follow(view, ReadFrom::After(0), bounds).await
    }

    /// Keeps for lists what a process was started with, until nothing of it prints any more.
    fn remember(&self, view: &ProcessView, config: String) {
        let silent = self.service().process_silent(&self.subject, &self.place(view), view.id);
        let Some(silent) = silent.ok().filter(|_| config.len() <= MAX_CONFIG) else {
            return;
        };
        let (configs, key) = (self.configs.clone(), self.key(view));
        lock(&configs.0).insert(key.clone(), config);
        tokio::spawn(async move {
            silent.await;
            lock(&configs.0).remove(&key);
        });
    }

    fn key(&self, view: &ProcessView) -> (String, u64, u32) {
        (self.sandbox.id.clone(), view.generation, view.id)
    }

    /// A process of the sandbox's environment, under that of the call.
    async fn process_request(
        &self,
        asked: Start,
        timeout: Option<Duration>,
    ) -> Result<ProcessRequest, ConnectError> {
        let Start { process, pty, tag, stdin } = asked;
        let Config { cmd, args, envs, cwd } = process.unwrap_or_default();
        if cmd.is_empty() {
            return Err(ConnectError::invalid("process.cmd is missing"));
        }
        let cwd = cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| self.resolve(&cwd)).transpose()?;
        let view = self.view().await?;
        let template = Marker::of(&view.metadata).unwrap_or_default().template;
        let own = view.spec.env;
        let term = envs.get("TERM").cloned();
        let mut env: BTreeMap<_, _> =
            envs.into_iter().map(|(name, value)| (name, Content(value.into_bytes()))).collect();
        let user = self.user.name();
        for (name, value) in [
            ("USER", user),
            ("LOGNAME", user),
            // That of the template; bash would look it up in the accounts, by way of the name service.
            ("SHELL", "/bin/bash"),
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", &self.sandbox.id),
            ("E2B_TEMPLATE_ID", &template),
        ] {
            if !own.contains_key(name) {
                env.entry(name.to_owned()).or_insert_with(|| Content::from(value));
            }
        }
        let command = CommandRequest {
            program: Some(Content(cmd.into_bytes())),
            args: args.into_iter().map(|arg| Content(arg.into_bytes())).collect(),
            env,
            cwd: cwd.map(|cwd| Content(cwd.into_bytes())),
            ..CommandRequest::default()
        };
        let size = pty.map(size_of).transpose()?;
        let pty = size.map(|TerminalSize { cols, rows }| PtyRequest { cols, rows, term });
        let timeout_ms = timeout.map(|it| millis(it).max(1));
        let stdin = stdin.unwrap_or(true);
        // Its first reader is here at once and is waited for, and nothing is repeated for later ones.
        let scrollback = Some(ByteSize::b(*SCROLLBACKS.start()));
        let usual = ProcessRequest::default();
        Ok(ProcessRequest { command, tag, stdin, pty, timeout_ms, scrollback, ..usual })
    }

    async fn connect(self, asked: About, bounds: Bounds) -> Result<Messages, ConnectError> {
        let view = self.find(&asked.process).await?;
        if let (ProcessState::Ended, Some(at)) = (view.state, view.exited_at)
            && Time::now().since(at) > REMEMBERED
        {
            return Err(not_found(&asked.process));
        }
        // Nothing is repeated: what a process has printed was for those who were there.
        self.follow(view, ReadFrom::Now, bounds).await
    }

    /// What a process prints, to its end or until the deadline.
    async fn follow(
        self,
        view: ProcessView,
        from: ReadFrom,
        bounds: Bounds,
    ) -> Result<Messages, ConnectError> {
        let (service, subject) = (self.service(), &self.subject);
        let place = self.place(&view);
        let mode = ReadMode::Wait;
        let events = service.process_events(subject, &place, view.id, from, mode).await?;
        let silent = service.process_silent(subject, &place, view.id)?;
        let start = to_json(&json!({ "event": { "start": { "pid": view.pid } } }))?;
        let mut following = Following {
            call: self,
            place,
            id: view.id,
            is_terminal: view.pty,
            events,
            silent,
            is_silent: false,
            end: None,
            killed_at: None,
        };
        // An exit before the first event that is read.
        if let Some(end) = following.view().await.ok().and_then(|view| end_of(&view)) {
            following.ended(end);
        }
        let stop = following.call.app.stop().clone();
        let rest = stream::try_unfold(Some(following), |following| async {
            let Some(mut following) = following else { return Ok(None) };
            Ok(Some(match following.next().await? {
                Some(message) => (message, Some(following)),
                None => (following.last().await?, None),
            }))
        });
        Ok(after(start, bounded(rest.boxed(), bounds, stop, KEEPALIVE)))
    }

    async fn list(self) -> Result<Value, ConnectError> {
        let filter = ProcessFilter { state: Some(ProcessState::Running), tag: None };
        let found = self.processes(filter).await?;
        // Left out: what its template starts, and the commands that read the kernel's files.
        let prepared = self.view().await?.spec.prepared;
        let is_callers = |view: &&ProcessView| match view.tag.as_deref() {
            None => true,
            tag => tag != Some(KERNEL_TAG) && tag != prepared.as_deref(),
        };
        let configs = lock(&self.configs.0);
        let listed = |view: &ProcessView| listed(view, configs.get(&self.key(view)));
        let processes: Vec<_> = found.iter().filter(is_callers).map(listed).collect();
        Ok(json!({ "processes": processes }))
    }

    async fn send_input(self, asked: About) -> Result<Value, ConnectError> {
        let view = self.find(&asked.process).await?;
        self.input(&view, asked.input).await?;
        Ok(json!({}))
    }

    async fn stream_input(self, mut incoming: Incoming) -> Result<Value, ConnectError> {
        let mut to = None;
        while let Some(StreamInput { start, data }) = incoming.next().await? {
            if let Some(start) = start {
                to = Some(self.find(&start.process).await?);
            }
            if let Some(data) = data {
                let missing = || ConnectError::invalid("input before the start of the stream");
                self.input(to.as_ref().ok_or_else(missing)?, data.input).await?;
            }
        }
        Ok(json!({}))
    }

    async fn input(&self, view: &ProcessView, input: Input) -> Result<(), ConnectError> {
        let no_input = || ConnectError::invalid("there is no input");
        let Base64(bytes) = input.stdin.or(input.pty).ok_or_else(no_input)?;
        not_ended(view)?;
        let (place, bytes) = (self.place(view), bytes.into());
        self.service().write_process_stdin(&self.subject, &place, view.id, bytes).await?;
        Ok(())
    }

    async fn close_stdin(self, asked: About) -> Result<Value, ConnectError> {
        let view = self.find(&asked.process).await?;
        if view.pty {
            let message = "the stdin of a terminal is not closed: send it ^D";
            return Err(ConnectError::new(Code::FailedPrecondition, message));
        }
        not_ended(&view)?;
        let place = self.place(&view);
        self.service().close_process_stdin(&self.subject, &place, view.id).await?;
        Ok(json!({}))
    }

    async fn send_signal(self, asked: About) -> Result<Value, ConnectError> {
        let is = |name, number| asked.signal.as_ref().is_some_and(|signal| signal.is(name, number));
        let signal = if is("SIGNAL_SIGKILL", 9) {
            SignalName::Kill
        } else if is("SIGNAL_SIGTERM", 15) {
            SignalName::Term
        } else {
            return Err(ConnectError::invalid("a signal is SIGNAL_SIGKILL or SIGNAL_SIGTERM"));
        };
        let view = self.find(&asked.process).await?;
        if view.state != ProcessState::Running {
            return Err(not_found(&asked.process));
        }
        let (service, subject, place) = (self.service(), &self.subject, self.place(&view));
        let request = SignalRequest { signal, to: SignalTarget::Process };
        service.signal_process(subject, &place, view.id, request).await?;
        if signal == SignalName::Kill {
            // The next request for it does not find it.
            _ = service.process(subject, &place, view.id, KILL_WAIT).await;
        }
        Ok(json!({}))
    }

    async fn update(self, asked: About) -> Result<Value, ConnectError> {
        let view = self.find(&asked.process).await?;
        if let Some(pty) = asked.pty {
            let (place, size) = (self.place(&view), size_of(pty)?);
            self.service().resize_process(&self.subject, &place, view.id, size).await?;
        }
        Ok(json!({}))
    }

    /// The process that is meant: the latest of its pid or its tag.
    async fn find(&self, selector: &Selector) -> Result<ProcessView, ConnectError> {
        let pid = match selector {
            Selector { pid: Some(Number(pid)), .. } => Some(*pid),
            Selector { tag: Some(_), .. } => None,
            _ => return Err(ConnectError::invalid("a process has a pid or a tag")),
        };
        let tag = selector.tag.clone().filter(|_| pid.is_none());
        let filter = ProcessFilter { state: None, tag };
        let is_meant = |view: &ProcessView| pid.is_none_or(|pid| view.pid == pid);
        self.processes(filter).await?.into_iter().find(is_meant).ok_or_else(|| not_found(selector))
    }

    async fn processes(&self, filter: ProcessFilter) -> Result<Vec<ProcessView>, ServiceError> {
        let found = self.service().processes(&self.subject, &self.sandbox, filter).await?;
        Ok(found.value.processes)
    }

    pub(super) fn place(&self, view: &ProcessView) -> SandboxRef {
        SandboxRef { generation: Some(view.generation), ..self.sandbox.clone() }
    }
}

/// A reader of a process. Without it the process goes on.
struct Following {
    call: Call,
    place: SandboxRef,
    id: u32,
    is_terminal: bool,
    events: Events,
    /// Ready when the process has exited and nothing that it left can print.
    silent: BoxFuture<'static, ()>,
    is_silent: bool,
    /// How its program ended, once that is known.
    end: Option<Exit>,
    /// When that was known, if it was killed.
    killed_at: Option<Instant>,
}

impl Following {
    fn ended(&mut self, end: Exit) {
        self.end = Some(end);
        self.killed_at = is_kill(end).then(Instant::now);
    }

    /// The next piece of output; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ConnectError> {
        loop {
            // What was killed is not waited for longer: a child that has its output may live on, and print.
            if self.killed_at.is_some_and(|at| at.elapsed() > KILLED_READ) {
                return Ok(None);
            }
            let is_over = self.end.is_some() && (self.is_silent || self.killed_at.is_some());
            let event = tokio::select! {
                biased;
                event = self.events.next() => event,
                () = std::future::ready(()), if is_over => None,
                () = &mut self.silent, if !self.is_silent => {
                    // All of its output is in its events: those are read first.
                    self.is_silent = true;
                    continue;
                }
            };
            let Some(record) = event.transpose()? else { return Ok(None) };
            match &record.event {
                Recorded::Event(ExecutionEvent::Output { stream, data }) => {
                    return Ok(Some(output(*stream, self.is_terminal, data)));
                }
                Recorded::Event(ExecutionEvent::Exited(exit)) => self.ended(*exit),
                Recorded::Event(ExecutionEvent::Omitted) => {
                    // What ends with its sandbox waits for no reader.
                    if !self.call.has_sandbox().await {
                        return Err(ConnectError::killed());
                    }
                    let message = "output is missing: it was not read for 30 seconds";
                    return Err(ConnectError::new(Code::DataLoss, message));
                }
                Recorded::Event(_) => {}
                Recorded::End { .. } => return Ok(None),
            }
        }
    }

    /// By an exclusive reference, since a shared one could not be sent between threads.
    async fn view(&mut self) -> Result<ProcessView, ServiceError> {
        let Self { call, place, id, .. } = self;
        Ok(call.service().process(&call.subject, place, *id, Duration::ZERO).await?.value)
    }

    /// How it ended.
    async fn last(&mut self) -> Result<Bytes, ConnectError> {
        if !self.call.has_sandbox().await {
            return Err(ConnectError::killed());
        }
        let view = self.view().await.ok();
        if view.is_some_and(|view| view.stopped == Some(ProcessStop::Timeout)) {
            return Err(ConnectError::too_late());
        }
        let message = "the sandbox has ended, and the process with it";
        let unknown = || ConnectError::new(Code::Unavailable, message);
        to_json(&end_message(self.end.ok_or_else(unknown)?))
    }
}

const fn is_kill(exit: Exit) -> bool {
    matches!(exit, Exit::Signal(9 | 15))
}

fn end_of(view: &ProcessView) -> Option<Exit> {
    view.exit_code.map(Exit::Code).or(view.signal.map(Exit::Signal))
}

/// A piece of output.
fn output(stream: OutputStream, is_terminal: bool, data: &[u8]) -> Bytes {
    let name = match stream {
        _ if is_terminal => "pty",
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    let mut json = format!(r#"{{"event":{{"data":{{"{name}":""#);
    STANDARD.encode_string(data, &mut json);
    json.push_str(r#""}}}"#);
    json.into()
}

fn end_message(exit: Exit) -> Value {
    let (code, exited, status) = match exit {
        Exit::Code(code) => (i32::from(code), true, format!("exit status {code}")),
        Exit::Signal(signal) => (-1, false, format!("signal: {}", signal_text(signal))),
    };
    let mut end = json!({ "exitCode": code, "exited": exited, "status": status });
    if code != 0 {
        end["error"] = status.into();
    }
    json!({ "event": { "end": end } })
}

/// The names of signals that E2B's clients see, from the first on.
const SIGNALS: [&str; 15] = [
    "hangup", "interrupt", "quit", "illegal instruction", "trace/breakpoint trap", "aborted",
    "bus error", "floating point exception", "killed", "user defined signal 1",
    "segmentation fault", "user defined signal 2", "broken pipe", "alarm clock", "terminated",
];

fn signal_text(signal: u8) -> String {
    let name = usize::from(signal).checked_sub(1).and_then(|at| SIGNALS.get(at));
    name.map_or_else(|| format!("signal {signal}"), |name| (*name).to_owned())
}

/// A process of a list, with what it was started with, or else what is known of its words.
fn listed(view: &ProcessView, config: Option<&String>) -> Value {
    let config = config.and_then(|config| serde_json::from_str(config).ok());
    let config: Value = config.unwrap_or_else(|| config_of(&view.command));
    let mut listed = json!({ "config": config, "pid": view.pid });
    if let Some(tag) = &view.tag {
        listed["tag"] = tag.clone().into();
    }
    listed
}

fn config_of(line: &str) -> Value {
    let (cmd, args): (_, Vec<_>) = match line.strip_prefix(LOGIN_SHELL) {
        Some(line) => ("/bin/bash", vec!["-l", "-c", line]),
        None => {
            let mut words = line.split(' ');
            (words.next().unwrap_or_default(), words.collect())
        }
    };
    json!({ "cmd": cmd, "args": args })
}

fn size_of(pty: Pty) -> Result<TerminalSize, ConnectError> {
    let Size { cols, rows } = pty.size.unwrap_or_default();
    let side = |Number(side): Number, usual| match side {
        0 => Ok(usual),
        side => u16::try_from(side).map_err(|_| ConnectError::invalid("the terminal is too large")),
    };
    Ok(TerminalSize { cols: side(cols, USUAL_SIZE.0)?, rows: side(rows, USUAL_SIZE.1)? })
}

/// One that has ended is not there, whether or not it had a stdin.
fn not_ended(view: &ProcessView) -> Result<(), ConnectError> {
    match view.state {
        ProcessState::Ended => Err(ServiceError::process_ended().into()),
        _ => Ok(()),
    }
}

fn not_found(selector: &Selector) -> ConnectError {
    let message = match selector {
        Selector { pid: Some(Number(pid)), .. } => format!("process with pid {pid} not found"),
        Selector { tag, .. } => {
            let tag: String = tag.iter().flat_map(|tag| tag.chars()).take(64).collect();
            format!("process with tag {tag} not found")
        }
    };
    ConnectError::new(Code::NotFound, message)
}

/// Whether a program could not be executed by a mistake of the caller.
fn is_callers(error: &ServiceError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::CommandNotFound
            | ErrorKind::NotExecutable
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::PathEscape
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_what_clients_look_at() {
        let end = |exit| end_message(exit)["event"]["end"].clone();
        let ok = json!({ "exitCode": 0, "exited": true, "status": "exit status 0" });
        assert_eq!(end(Exit::Code(0)), ok);
        let failed = json!({
            "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3",
        });
        assert_eq!(end(Exit::Code(3)), failed);
        let killed = json!({
            "exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed",
        });
        assert_eq!(end(Exit::Signal(9)), killed);
        let data = output(OutputStream::Stderr, false, b"a\xff");
        assert_eq!(&data[..], br#"{"event":{"data":{"stderr":"Yf8="}}}"#);
    }

    #[test]
    fn a_request_is_read_as_every_client_writes_it() {
        let start: Start = serde_json::from_str(
            r#"{"process":{"cmd":"/bin/bash","args":["-i","-l"],"envs":{"A":"b"},"cwd":null},
                "pty":{"size":{"cols":"80","rows":24}},"later":1}"#,
        )
        .unwrap();
        assert_eq!((start.stdin, start.tag), (None, None));
        let size = size_of(start.pty.unwrap()).unwrap();
        assert_eq!(size, TerminalSize { cols: 80, rows: 24 });
        assert!(
            size_of(Pty { size: Some(Size { cols: Number(1 << 16), rows: Number(1) }) }).is_err()
        );
        let about: About = serde_json::from_str(
            r#"{"process":{"pid":7},"input":{"pty":"YQ"},"signal":"SIGNAL_SIGTERM"}"#,
        )
        .unwrap();
        assert_eq!(about.process.pid, Some(Number(7)));
        assert_eq!(about.input.pty, Some(Base64(b"a".to_vec())));
    }
}
