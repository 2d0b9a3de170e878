//! `sandbox_execute_script`: a script's run, whose log and files are told however it ended.

use std::sync::Arc;
use std::time::Duration;

use sandbox_controller::{Error, ErrorKind, LogEntry, Outcome, Run, RunResult, Script};

use super::Done;
use super::answer::Remarks;
use super::args::ExecuteScriptArgs;
use super::data::{Data, ExecuteScriptData, ScriptResult};
use super::error::{Partial, ScriptFailure, ToolError, over_ceiling};
use super::stop::{Stop, StopCause};
use crate::registry::{RegisteredSandbox, Registry, Ticket};

/// Runs a script when its turn has come. Stopped in the middle, it is cancelled, and what it had
/// done until then is told.
pub(super) async fn run(
    registry: Arc<Registry>,
    registered: Arc<RegisteredSandbox>,
    args: ExecuteScriptArgs,
    mut ticket: Ticket,
    mut stop: Stop,
) -> Done {
    let begun = async {
        ticket.turn().await;
        let sandbox = registered.ready().await?;
        let mut script = Script::new(args.script);
        if let Some(milliseconds) = args.timeout_ms {
            if milliseconds == 0 {
                return Err(ToolError::invalid("sandbox_execute_script: `timeoutMs`: it is 0"));
            }
            script = script.timeout(Duration::from_millis(milliseconds));
        }
        sandbox.start(script).await.map_err(|error| match error {
            Error::OverCeiling(over) => over_ceiling("timeoutMs", &over),
            error => registry.failure(&registered, error).into(),
        })
    };
    let ended = stop.ended(begun, |run: Run| (run.cancel_handle(), run.wait())).await;
    // Those that wait for it see all that it did.
    drop(ticket);
    match ended {
        Ok((result, cause)) => told(result, cause),
        Err(error) => Err(error).into(),
    }
}

/// What is told of a run.
fn told(result: RunResult, cause: Option<StopCause>) -> Done {
    let hint = hint(&result);
    let RunResult { outcome, logs, logs_truncated, files_touched, .. } = result;
    let mut data = ExecuteScriptData {
        result: ScriptResult::default(),
        logs: logs.iter().map(|entry: &LogEntry| entry.line().into_owned()).collect(),
        files_touched: files_touched.files,
    };
    let failure = outcome.failure();
    if let Outcome::Ok { result } = outcome {
        data.result = ScriptResult(Some(result));
        let remarks = Remarks {
            logs_truncated: Some(logs_truncated),
            files_touched_truncated: Some(files_touched.truncated),
            ..Remarks::default()
        };
        return Done { remarks, ..Ok(Data::ExecuteScript(data)).into() };
    }
    let (error, line, traceback) = match (outcome, cause, failure) {
        (Outcome::Cancelled { .. }, Some(cause), _) => (cause.into(), None, None),
        (_, _, Some(failure)) => {
            let error = ToolError { hint, ..ToolError::new(failure.kind, failure.message) };
            (error, failure.line, failure.traceback)
        }
        (_, _, None) => {
            let message = "the script ended as no script does: a fault of ours";
            (ToolError::new(ErrorKind::Internal, message), None, None)
        }
    };
    let script = ScriptFailure {
        data,
        logs_truncated,
        files_touched_truncated: files_touched.truncated,
        line,
        traceback,
    };
    Err(ToolError { partial: Some(Partial::Script(script).into()), ..error }).into()
}

fn hint(result: &RunResult) -> Option<String> {
    match result.outcome.failure()?.kind {
        ErrorKind::Timeout => Some("timeoutMs gives it more time".to_owned()),
        _ => result.hint(),
    }
}
