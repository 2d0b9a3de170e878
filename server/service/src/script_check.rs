//! Scripts that are checked and not run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::service::{CheckSeverity, ScriptCheck, ScriptProblem, ScriptRequest, Subject};
use sandbox_controller::{CheckReply, CheckWarning};
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::error::ServiceError;
use crate::service::Service;

/// How many scripts are checked at one time: each check is a process of this machine.
const CHECKS: usize = 4;
/// How long a check waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How long a check may take. A compiler that takes longer was given a script that was written to stall it.
const MAX_TIME: Duration = Duration::from_secs(2);
/// What messages of the compiler begin with, before the line.
const NAME: &str = "script:";

/// The checks that run and wait: one of a subject at a time, so that nobody waits for the scripts of another.
pub(crate) struct Checks {
    turns: Semaphore,
    of_subjects: Mutex<HashMap<Subject, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for Checks {
    fn default() -> Self {
        Self { turns: Semaphore::new(CHECKS), of_subjects: Mutex::default() }
    }
}

impl Checks {
    /// Waits for a turn of this subject.
    async fn turn(
        &self,
        subject: &Subject,
    ) -> Result<(OwnedMutexGuard<()>, SemaphorePermit<'_>), ServiceError> {
        let own = self.of(subject);
        let turn = async { (own.lock_owned().await, self.turns.acquire().await) };
        match timeout(MAX_WAIT, turn).await {
            Ok((own, Ok(turn))) => Ok((own, turn)),
            _ => Err(ServiceError::too_fast(MAX_WAIT)),
        }
    }

    fn of(&self, subject: &Subject) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.of_subjects.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = all.get(subject).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::default();
        all.insert(subject.clone(), Arc::downgrade(&own));
        own
    }
}

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
        let _turn = core.checks.turn(subject).await?;
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

#[cfg(test)]
mod tests {
    use sandbox_api::ProblemKind;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn subject_has_one_check_at_a_time_and_others_do_not_wait_for_it() {
        let (checks, since) = (Checks::default(), Instant::now());
        let [alice, bob] = ["alice", "bob"].map(|name| Subject::new(name).unwrap());
        let first = checks.turn(&alice).await.unwrap();
        checks.turn(&bob).await.unwrap();
        assert_eq!(since.elapsed(), Duration::ZERO);
        let refused = checks.turn(&alice).await.unwrap_err();
        assert_eq!(refused.problem().kind, ProblemKind::RateLimited);
        assert_eq!(refused.retry_after(), Some(MAX_WAIT));
        assert!(since.elapsed() >= MAX_WAIT);
        let since = Instant::now();
        drop(first);
        checks.turn(&alice).await.unwrap();
        assert_eq!(since.elapsed(), Duration::ZERO);
        // Those who ask for nothing any more are forgotten.
        drop(checks.of(&bob));
        assert_eq!(checks.of_subjects.lock().unwrap().len(), 1);
    }
}
