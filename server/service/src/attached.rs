//! What ends with its caller, such as the scripts and commands of agents. It shares the queue, the quotas
//! and the usage of executions, but is not stored, and has no id.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_api::service::Subject;
use sandbox_api::{ExecutionEvent, ExecutionResult, SandboxSpec, Status, Usage, Workload};
use sandbox_controller::CancelHandle;
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::host_tools::gate::Gate;
use sandbox_controller::permission::Permission;
use sandbox_dirfd::random_hex;
use sandbox_protocol::message::CallEnd;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::OnDrop;
use crate::core::{Queued, RunPermit};
use crate::error::ServiceError;
use crate::service::Service;

impl Service {
    /// Runs something to its end in a sandbox of its own, when its turn has come, and gives its events to
    /// `sink`. Its usage counts as that of an execution. Dropping the future leaves the queue, or ends what
    /// runs, whose usage does not count then: the handle cancels it and lets it count. An `asker` is asked about
    /// calls that a rule gives to a script, of tools that remove or overwrite.
    ///
    /// # Errors
    ///
    /// [`ServiceError`] if it did not run; that of a cancel has the kind
    /// [`Cancelled`](sandbox_api::ErrorKind::Cancelled).
    pub async fn run(
        &self,
        subject: &Subject,
        spec: SandboxSpec,
        workload: impl Into<Workload>,
        asker: Option<Arc<dyn Permission>>,
        cancel: &CancelHandle,
        sink: &(dyn Fn(ExecutionEvent) + Send + Sync),
    ) -> Result<ExecutionResult, ServiceError> {
        let tools = self.tools_of(subject, asker);
        self.run_with_tools(subject, spec, workload, tools, cancel, sink).await
    }

    /// The tools of the host that a subject has. An `asker` is asked as by [`run`](Self::run).
    pub fn tools_of(
        &self,
        subject: &Subject,
        asker: Option<Arc<dyn Permission>>,
    ) -> Option<ToolGrant> {
        let tools = self.core.config.host_tools.of(subject).clone();
        match asker {
            Some(asker) => tools.map(|grant| grant.with_asker(asker)),
            None => tools,
        }
    }

    /// Calls one of these tools for a subject itself, when its turn has come among what it runs. The call is
    /// checked, bounded and audited as that of a script. Gives its value, or the text of its failure.
    ///
    /// # Errors
    ///
    /// [`ServiceError`] if it was not made, or was cancelled.
    pub async fn call_tool(
        &self,
        subject: &Subject,
        tools: ToolGrant,
        (name, arguments): (&str, &RawValue),
        cancelled: &CancellationToken,
    ) -> Result<Result<Value, String>, ServiceError> {
        let gate = Gate::new(tools);
        let called = async {
            let _permit = self.run_permit(subject).await?;
            let ((end, _), made) = gate.call(name, arguments, Duration::MAX).await;
            Ok::<_, ServiceError>((end, made))
        };
        let (end, made) = match cancelled.run_until_cancelled(called).await {
            Some(called) => called.map(|(end, made)| (Ok(end), made))?,
            None => (Err(ServiceError::cancelled()), gate.close()),
        };
        if let Some(made) = made {
            self.core.launcher.audit_call(subject, &made);
        }
        Ok(match end? {
            CallEnd::Value(value) => Ok(value),
            CallEnd::Failed { message, .. } => Err(message),
        })
    }

    /// The same, with these tools of the host for a script, and not those that the subject has.
    ///
    /// # Errors
    ///
    /// As of [`run`](Self::run).
    pub async fn run_with_tools(
        &self,
        subject: &Subject,
        spec: SandboxSpec,
        workload: impl Into<Workload>,
        tools: Option<ToolGrant>,
        cancel: &CancelHandle,
        sink: &(dyn Fn(ExecutionEvent) + Send + Sync),
    ) -> Result<ExecutionResult, ServiceError> {
        let (core, workload) = (&self.core, workload.into());
        let launched = async {
            let permit = self.run_permit(subject).await?;
            Ok::<_, ServiceError>((permit, core.launch(subject, spec).await))
        };
        let (permit, launched) = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(ServiceError::cancelled()),
            launched = launched => launched?,
        };
        let result = match launched {
            Ok(guest) => {
                let result = guest.run(workload, tools, cancel.clone(), sink).await;
                core.remove(guest);
                result
            }
            Err(error) => Err(error),
        };
        let (status, used) = match &result {
            Ok(result) => (result.outcome.status(), result.usage.charged(&result.limits)),
            Err(_) => (Status::Error, Usage::default()),
        };
        core.counting.ended(status);
        core.counting.ran(status, subject, Duration::from_millis(used.wall_ms));
        // Its place is not free before what it used counts.
        core.records.add_usage(subject, used).await;
        drop(permit);
        result
    }

    /// Waits in the queue of executions, within the same quotas.
    async fn run_permit(&self, subject: &Subject) -> Result<RunPermit, ServiceError> {
        let core = &self.core;
        core.check_accepting()?;
        let (reserved, _) = core.admit(subject, 0).await?;
        let (sender, granted) = oneshot::channel();
        let id = random_hex::<12>();
        // A caller that does not wait any more leaves the queue.
        let _waiting = OnDrop(|| _ = core.state().schedule.remove(subject, &id));
        let since = Instant::now();
        reserved.fill(id.clone(), Queued::Attached(sender));
        let permit = granted.await.map_err(|_| ServiceError::shutting_down())?;
        core.counting.waited(subject, since.elapsed());
        Ok(permit)
    }
}
