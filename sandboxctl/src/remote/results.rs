//! Documents of a service as the results that they were made from, to be printed as those are.

use sandbox_api::{
    CancelCause, ExecDocument, ExecResult, ExecutionDocument, ExecutionReport, Exit, Failure,
    FilesTouched, LimitKey, Outcome, ResultDocument, RunResult, ScriptError, Status,
};
use serde_json::value::RawValue;

/// The result of a script that ran on a service.
///
/// # Errors
///
/// The failure, if nothing ran, or the service was killed meanwhile: then the document may have a
/// log, test cases and files all the same.
pub fn run_result(document: &ResultDocument<'static>) -> Result<RunResult, Failure> {
    let outcome = match (document.status, &document.result) {
        (Status::Ok, Some(result)) => Outcome::Ok { result: result.clone().into_owned() },
        (Status::Ok, None) => Outcome::Ok { result: RawValue::NULL.to_owned() },
        _ => failed(document.status, &document.execution, document.exit_code),
    };
    // An agent that could still report was not killed, and the hint says whose memory was exhausted.
    let hint = document.execution.error.as_ref().and_then(|error| error.hint.as_deref());
    Ok(RunResult {
        execution: report(document.id.as_deref(), outcome, &document.execution)?,
        logs: document.log_entries(),
        logs_truncated: document.logs_truncated,
        tests: document.tests.to_vec(),
        answered: hint == Some(&LimitKey::VmMemory.hint()),
    })
}

/// The result of a command that ran on a service; `code` is the exit code of a process that forwards
/// it.
///
/// # Errors
///
/// The failure, if nothing ran, or the service was killed meanwhile: then the document may have
/// output and files all the same.
pub fn exec_result(document: &ExecDocument<'static>, code: u8) -> Result<ExecResult, Failure> {
    let outcome = match (document.status, document.exit_code, document.signal) {
        (Status::Ok, ..) => Outcome::Ok { result: RawValue::NULL.to_owned() },
        (Status::Exit, _, Some(signal)) => {
            Outcome::Exit(Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)))
        }
        (Status::Exit, ..) => Outcome::Exit(Exit::Code(code)),
        (status, ..) => failed(status, &document.execution, code),
    };
    Ok(ExecResult {
        execution: report(document.id.as_deref(), outcome, &document.execution)?,
        exit_code: document.exit_code,
        signal: document.signal,
        stdout: document.stdout_encoding.decode(&document.stdout),
        stderr: document.stderr_encoding.decode(&document.stderr),
        stdout_truncated: document.stdout_truncated,
        stderr_truncated: document.stderr_truncated,
    })
}

/// An outcome that is a failure.
fn failed(status: Status, document: &ExecutionDocument<'static>, exit_code: u8) -> Outcome {
    let failure = document.error.clone().unwrap_or_else(|| {
        Failure::new(sandbox_api::ErrorKind::Internal, format!("it ended: {status}"), None)
    });
    let error = |Failure { kind, message, line, traceback, value, .. }| ScriptError {
        kind,
        message,
        line,
        traceback,
        value,
    };
    match status {
        Status::ScriptError => Outcome::ScriptError(error(failure)),
        Status::Limit => Outcome::Limit(error(failure)),
        Status::Timeout => Outcome::Timeout(error(failure)),
        // The document has the cause's message alone.
        Status::Cancelled => {
            use CancelCause::{Caller, Deleted, Hangup, Interrupt, Terminate};
            let mut causes = [Interrupt, Terminate, Hangup, Deleted].into_iter();
            let cause = causes.find(|cause| cause.message() == failure.message).unwrap_or(Caller);
            Outcome::Cancelled { cause }
        }
        Status::AgentLost => Outcome::AgentLost { detail: failure.message },
        // Who killed it is in the message alone.
        Status::Killed | Status::Error | Status::Ok | Status::Exit => {
            Outcome::Error { failure, exit_code }
        }
    }
}

fn report(
    id: Option<&str>,
    outcome: Outcome,
    document: &ExecutionDocument<'static>,
) -> Result<ExecutionReport, Failure> {
    let failure = || {
        let error = document.error.clone();
        error.unwrap_or_else(|| Failure::new(sandbox_api::ErrorKind::Internal, "nothing ran", None))
    };
    let parts = (document.engine, document.limits, document.usage, &document.confinement);
    let (Some(engine), Some(limits), Some(usage), Some(confinement)) = parts else {
        return Err(failure());
    };
    Ok(ExecutionReport {
        id: id.unwrap_or_default().to_owned(),
        outcome,
        files_touched: FilesTouched {
            files: document.files_touched.to_vec(),
            source: document.files_touched_source,
            truncated: document.files_touched_truncated,
        },
        engine,
        engine_notice: document.engine_notice.as_ref().map(ToString::to_string),
        io_dir: None,
        network: document.network.clone().map(std::borrow::Cow::into_owned),
        changes: None,
        limits,
        usage,
        notes: document.notes.to_vec(),
        timing: document.timing,
        confinement: confinement.clone().into_owned(),
    })
}
