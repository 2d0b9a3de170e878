//! Scripts that are checked and not run.

use sandbox_api::service::{CheckSeverity, ScriptCheck, ScriptProblem, ScriptRequest};
use sandbox_controller::{CheckReply, CheckWarning};

use crate::error::ServiceError;
use crate::service::Service;

/// How many are checked at one time: each is a process of this machine.
pub(crate) const CHECKS: usize = 4;
/// What messages of the compiler begin with, before the line.
const NAME: &str = "script:";

impl Service {
    /// Checks whether a script compiles, and whether it uses names that no script has. Nothing of it runs.
    ///
    /// # Errors
    ///
    /// If the checker fails.
    pub async fn check_script(&self, request: ScriptRequest) -> Result<ScriptCheck, ServiceError> {
        let core = &self.core;
        let _turn = core.checks.acquire().await;
        let CheckReply { error, warnings } = core.launcher.check(request.script.0).await?;
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
