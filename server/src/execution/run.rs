//! Runs a script or a command in a sandbox to its end, and reports what happens meanwhile.

use std::convert::Infallible;
use std::time::Instant;

use futures_util::future::BoxFuture;
use sandbox_api::service::{EventBody, ExecutionDocuments, ExecutionKind, OutputStream};
use sandbox_api::{
    CancelCause, Command, DEFAULT_COLLECTED_BYTES, ErrorKind, ExecDocument, Failure,
    ResultDocument, Script, Status, Usage, millis,
};
use sandbox_controller::{CancelHandle, Error, ExecStream, RefusedHosts, Sandbox};
use tokio::sync::watch;

use super::request::Work;

/// Receives the events of what runs, which does not go on before it has taken one.
pub type Sink<'a> = &'a (dyn Fn(EventBody) -> BoxFuture<'a, ()> + Send + Sync);

/// How far an execution is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Cancel {
    /// Not.
    #[default]
    No,
    /// By its caller.
    Asked,
    /// Its sandbox is being deleted.
    Deleted,
    /// By its caller or a shutdown, and at once.
    AtOnce,
}

/// How something ended that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The result document, with the execution's id and without a path of the host.
    pub document: String,
    /// Its status.
    pub status: Status,
    /// The exit code of a process that forwards it.
    pub exit_code: u8,
    /// The resources that it used.
    pub usage: Usage,
}

/// What a document says beside what happened in the sandbox.
#[derive(Debug, Clone, Copy)]
pub struct DocumentContext<'a> {
    /// The execution's id.
    pub id: Option<&'a str>,
    /// How long it waited in a queue so far, in milliseconds; `None` where there is none.
    pub queued_ms: Option<u64>,
    /// Whether its sandbox was started for it: otherwise that start is not its own.
    pub is_started_for_it: bool,
}

impl Default for DocumentContext<'_> {
    fn default() -> Self {
        Self { id: None, queued_ms: None, is_started_for_it: true }
    }
}

/// Runs it. Its document has the id that is given, if one is, and no path of the host. One that is
/// cancelled while it waits for the sandbox, where another script runs, ends without having run.
///
/// # Errors
///
/// [`Error`]: nothing ran, because our side failed.
pub async fn run(
    sandbox: &Sandbox,
    work: Work,
    context: DocumentContext<'_>,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    match work {
        Work::Script(script) => run_script(sandbox, script, context, cancel, sink).await,
        Work::Command(command) => run_command(sandbox, command, context, cancel, sink).await,
    }
}

/// Waits until the sandbox takes it, which is a wait in a queue; `None` if it is cancelled before.
async fn begun<T>(
    starting: impl Future<Output = Result<T, Error>>,
    cancel: &mut watch::Receiver<Cancel>,
    context: &mut DocumentContext<'_>,
) -> Result<Option<T>, Error> {
    let since = Instant::now();
    let started = tokio::select! {
        biased;
        started = starting => started?,
        _ = cancelled(cancel, Cancel::No) => return Ok(None),
    };
    context.queued_ms =
        context.queued_ms.map(|queued| queued.saturating_add(millis(since.elapsed())));
    Ok(Some(started))
}

/// The end of what was cancelled before it began.
fn not_begun(kind: ExecutionKind, context: DocumentContext<'_>) -> Result<Ran, Error> {
    let failure = Failure::new(ErrorKind::Cancelled, "cancelled before it began", None);
    let id = context.id.unwrap_or_default();
    let mut document = ExecutionDocuments::failed(kind, id, Status::Cancelled, failure);
    if context.id.is_none() {
        match &mut document {
            ExecutionDocuments::Script(document) => document.id = None,
            ExecutionDocuments::Command(document) => document.id = None,
        }
    }
    let (exit_code, usage) = (document.process_exit_code(), Usage::default());
    let document = document.to_json().map_err(unencodable)?;
    Ok(Ran { document, status: Status::Cancelled, exit_code, usage })
}

/// Waits until it is to be cancelled, further than `so_far`.
async fn cancelled(cancel: &mut watch::Receiver<Cancel>, so_far: Cancel) -> Cancel {
    let asked = cancel.wait_for(|asked| *asked > so_far).await.map(|asked| *asked);
    match asked {
        Ok(asked) => asked,
        // Nobody is left who could cancel it.
        Err(_) => std::future::pending().await,
    }
}

/// Cancels what runs when it is asked to, for as long as it is polled.
async fn cancel_when_asked(
    mut cancel: watch::Receiver<Cancel>,
    handle: CancelHandle,
) -> Infallible {
    let mut so_far = Cancel::No;
    while so_far < Cancel::AtOnce {
        let asked = cancelled(&mut cancel, so_far).await;
        handle.cancel(match asked {
            Cancel::Deleted => CancelCause::Deleted,
            _ => CancelCause::Caller,
        });
        if asked == Cancel::AtOnce {
            handle.cancel(CancelCause::Caller);
        }
        so_far = asked;
    }
    std::future::pending().await
}

/// Reports the hosts that are refused, for as long as it is polled.
async fn report_refused(mut hosts: RefusedHosts, sink: Sink<'_>) -> Infallible {
    while let Some(host) = hosts.next().await {
        sink(EventBody::Refused { host }).await;
    }
    std::future::pending().await
}

async fn run_script(
    sandbox: &Sandbox,
    script: Script,
    mut context: DocumentContext<'_>,
    mut cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    let Some(mut run) = begun(sandbox.start(script), &mut cancel, &mut context).await? else {
        return not_begun(ExecutionKind::Script, context);
    };
    let cancelling = cancel_when_asked(cancel, run.cancel_handle());
    let refusing = report_refused(run.refused_hosts(), sink);
    let following = async {
        while let Some(entry) = run.next_log().await {
            sink(EventBody::log(&entry)).await;
        }
        run.wait().await
    };
    let result = tokio::select! {
        biased;
        never = refusing => match never {},
        result = following => result?,
        never = cancelling => match never {},
    };
    for case in &result.tests {
        sink(EventBody::Test { case: case.clone() }).await;
    }
    let mut document = ResultDocument::from(&result);
    if let Some(id) = context.id {
        document.id = Some(id.into());
    }
    add_context(&mut document.execution, context);
    let (status, exit_code, usage) = (document.status, document.exit_code, result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

async fn run_command(
    sandbox: &Sandbox,
    command: Command,
    mut context: DocumentContext<'_>,
    mut cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    let starting = sandbox.start_exec(command);
    let Some(mut execution) = begun(starting, &mut cancel, &mut context).await? else {
        return not_begun(ExecutionKind::Command, context);
    };
    let cancelling = cancel_when_asked(cancel, execution.cancel_handle());
    let refusing = report_refused(execution.refused_hosts(), sink);
    let following = async {
        let mut kept = [(Vec::new(), false), (Vec::new(), false)];
        while let Some((stream, piece)) = execution.next_output().await {
            let (stream, kept) = match stream {
                ExecStream::Stdout => (OutputStream::Stdout, &mut kept[0]),
                ExecStream::Stderr => (OutputStream::Stderr, &mut kept[1]),
            };
            let room = DEFAULT_COLLECTED_BYTES.saturating_sub(kept.0.len()).min(piece.len());
            kept.0.extend_from_slice(&piece[..room]);
            kept.1 |= room < piece.len();
            sink(EventBody::output(stream, &piece)).await;
        }
        let mut result = execution.wait().await?;
        let [stdout, stderr] = kept;
        (result.stdout, result.stdout_truncated) = stdout;
        (result.stderr, result.stderr_truncated) = stderr;
        Ok::<_, Error>(result)
    };
    let result = tokio::select! {
        biased;
        never = refusing => match never {},
        result = following => result?,
        never = cancelling => match never {},
    };
    let mut document = ExecDocument::from(&result);
    if let Some(id) = context.id {
        document.id = Some(id.into());
    }
    add_context(&mut document.execution, context);
    let (status, exit_code, usage) = (document.status, result.outcome.exit_code(), result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

/// What is not of the sandbox, in a document without a path of the host.
fn add_context(document: &mut sandbox_api::ExecutionDocument<'_>, context: DocumentContext<'_>) {
    document.io_dir = None;
    if let Some(timing) = &mut document.timing {
        timing.queued_ms = context.queued_ms;
        if !context.is_started_for_it {
            (timing.start, timing.start_ms) = (None, None);
        }
    }
}

fn encode(document: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(document).map_err(unencodable)
}

fn unencodable(error: serde_json::Error) -> Error {
    Error::Ended { detail: format!("the result: {error}") }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn what_waits_for_its_sandbox_is_cancelled_without_having_run() {
        let (cancel, mut cancelled) = watch::channel(Cancel::No);
        let mut context = DocumentContext { queued_ms: Some(7), ..DocumentContext::default() };
        let begin = begun(ready(Ok(1)), &mut cancelled, &mut context).await.unwrap();
        assert_eq!(begin, Some(1));
        assert!(context.queued_ms >= Some(7));
        cancel.send_replace(Cancel::Asked);
        let begin = begun(pending::<Result<i32, Error>>(), &mut cancelled, &mut context).await;
        assert_eq!(begin.unwrap(), None);
        for (kind, id) in [(ExecutionKind::Script, Some("e1")), (ExecutionKind::Command, None)] {
            let ran = not_begun(kind, DocumentContext { id, ..context }).unwrap();
            let document = ExecutionDocuments::from_json(kind, &ran.document).unwrap();
            assert_eq!((document.status(), ran.status), (Status::Cancelled, Status::Cancelled));
            let document: serde_json::Value = serde_json::from_str(&ran.document).unwrap();
            assert_eq!(document["id"].as_str(), id);
        }
    }
}
