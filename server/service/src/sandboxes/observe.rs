//! What is seen of a kept sandbox without using it.

use futures_util::future::BoxFuture;
use sandbox_api::SandboxStats;
use sandbox_api::service::{SandboxRef, Subject, Time};
use sandbox_controller::Until;

use super::operations::InSandbox;
use crate::error::ServiceError;
use crate::service::Service;

impl Service {
    /// What a sandbox uses now. Its processors are measured since the last call of this.
    ///
    /// # Errors
    ///
    /// [`ServiceError::stale_generation`]; as of [`sandbox`](Self::sandbox).
    pub async fn sandbox_stats(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
    ) -> Result<InSandbox<SandboxStats>, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        let (guest, generation) = kept.guest(sandbox.generation)?;
        let limits = kept.spec()?.limits;
        let used = match guest {
            Some(guest) => guest.current_use().await.unwrap_or_default(),
            None => Default::default(),
        };
        let value = SandboxStats {
            cpu_count: f64::from(limits.cpus),
            cpu_used_ratio: used.cpu_used_ratio,
            memory_bytes: used.memory_bytes,
            memory_limit: limits.memory.as_u64(),
            cache_bytes: used.cache_bytes,
            disk_bytes: kept.stored_bytes(&self.core.files).await,
            disk_limit: limits.max_write.as_u64(),
            at: Time::now(),
        };
        Ok(InSandbox { value, generation, restarted: false })
    }

    /// Waits until a process has exited and all that it started has closed its stdout and stderr: all of its
    /// output is in its events then. The end of the sandbox is one. No use.
    ///
    /// # Errors
    ///
    /// As of [`process`](Self::process).
    pub fn process_silent(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
    ) -> Result<BoxFuture<'static, ()>, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        let (guest, _) = kept.guest(sandbox.generation)?;
        let guest = guest.ok_or_else(|| ServiceError::not_running(&sandbox.id))?;
        let process = guest.process(id).ok_or_else(|| ServiceError::no_process(id))?;
        Ok(process.until(Until::Silent))
    }
}
