//! Runs a script or a command in a sandbox to its end, and reports what happens meanwhile.

use std::convert::Infallible;

use futures_util::future::BoxFuture;
use sandbox_api::service::{EventBody, OutputStream};
use sandbox_api::{
    CancelCause, Command, DEFAULT_COLLECTED_BYTES, ExecDocument, ResultDocument, Script, Status,
    Usage,
};
use sandbox_controller::{CancelHandle, Error, ExecStream, RefusedHosts, Sandbox};
use tokio::sync::watch;

use super::Work;

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

/// Runs it. Its document has the id that is given, if one is, and no path of the host.
///
/// # Errors
///
/// [`Error`]: nothing ran, because our side failed.
pub async fn run(
    sandbox: &Sandbox,
    work: Work,
    id: Option<&str>,
    queued_ms: Option<u64>,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    match work {
        Work::Script(script) => run_script(sandbox, script, id, queued_ms, cancel, sink).await,
        Work::Command(command) => run_command(sandbox, command, id, queued_ms, cancel, sink).await,
    }
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
        handle.cancel(CancelCause::Caller);
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
    id: Option<&str>,
    queued_ms: Option<u64>,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    let mut run = sandbox.start(script).await?;
    let cancelling = cancel_when_asked(cancel, run.cancel_handle());
    let following = async {
        while let Some(entry) = run.next_log().await {
            sink(EventBody::log(&entry)).await;
        }
        run.wait().await
    };
    let result = tokio::select! {
        result = following => result?,
        never = cancelling => match never {},
    };
    for case in &result.tests {
        sink(EventBody::Test { case: case.clone() }).await;
    }
    let mut document = ResultDocument::from(&result);
    if let Some(id) = id {
        document.id = Some(id.into());
    }
    document.execution.io_dir = None;
    set_queued(&mut document.execution, queued_ms);
    let (status, exit_code, usage) = (document.status, document.exit_code, result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

async fn run_command(
    sandbox: &Sandbox,
    command: Command,
    id: Option<&str>,
    queued_ms: Option<u64>,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Error> {
    let mut execution = sandbox.start_exec(command).await?;
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
    if let Some(id) = id {
        document.id = Some(id.into());
    }
    document.execution.io_dir = None;
    set_queued(&mut document.execution, queued_ms);
    let (status, exit_code, usage) = (document.status, result.outcome.exit_code(), result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

fn set_queued(document: &mut sandbox_api::ExecutionDocument<'_>, queued_ms: Option<u64>) {
    if let Some(timing) = &mut document.timing {
        timing.queued_ms = queued_ms;
    }
}

fn encode(document: &impl serde::Serialize) -> Result<String, Error> {
    let failed = |error: serde_json::Error| Error::Ended { detail: format!("the result: {error}") };
    serde_json::to_string(document).map_err(failed)
}
