//! Scripts that are checked and not run.

use std::time::Duration;

use sandbox_api::service::{CheckSeverity, ScriptCheck, ScriptProblem, ScriptRequest, Subject};
use sandbox_controller::{CheckReply, CheckWarning};
use tokio::time::timeout;

use crate::error::ServiceError;
use crate::service::Service;

/// How long a check may take. A compiler that takes longer was given a script that was written to stall it.
const MAX_TIME: Duration = Duration::from_secs(2);
/// What messages of the compiler begin with, before the line.
const NAME: &str = "script:";

impl Service {
    /// Checks whether a script compiles, and whether it uses names that no script has. Nothing of it runs.
    ///
    /// # Errors
    ///
    /// If the checker fails, or if no turn comes: a subject has one check at a time.
    pub async fn check_script(
        &self,
        subject: &Subject,
        request: ScriptRequest,
    ) -> Result<ScriptCheck, ServiceError> {
        let core = &self.core;
        let _turn = core.checks.take(subject).await?;
        let Ok(reply) = timeout(MAX_TIME, core.launcher.check(request.script.0)).await else {
            let message = format!("it does not compile within {} seconds", MAX_TIME.as_secs());
            let problem = ScriptProblem { line: 1, message, severity: CheckSeverity::Error };
            return Ok(ScriptCheck { problems: vec![problem] });
        };
        let CheckReply { error, warnings } = reply?;
        let warning = |CheckWarning { line, message }| ScriptProblem {
            line,
            message,
            severity: CheckSeverity::Warning,
        };
        let error = error.map(|error| {
            let line = error.line.unwrap_or(1);
            let message = error.message;
            let place = format!("{NAME}{line}: ");
            let message = message.strip_prefix(&place).map_or(message.clone(), str::to_owned);
            ScriptProblem { line, message, severity: CheckSeverity::Error }
        });
        Ok(ScriptCheck {
            problems: error.into_iter().chain(warnings.into_iter().map(warning)).collect(),
        })
    }
}
