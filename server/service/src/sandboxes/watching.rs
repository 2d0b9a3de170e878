//! Watched directories of kept sandboxes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::stream::Stream;
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{WatchRecord, WatchRequest};

use super::registry::{SandboxEntry, SandboxLease};
use crate::error::ServiceError;
use crate::launcher::{GuestWatch, failed};
use crate::service::Service;

/// What changes in a watched directory of a kept sandbox. It ends when the directory is gone, and with an
/// error when the sandbox is. Dropping it ends the watch.
pub struct FileWatch {
    watch: Box<dyn GuestWatch>,
    kept: Arc<SandboxEntry>,
    /// None where the sandbox may be idle meanwhile.
    _in_use: Option<SandboxLease>,
}

impl FileWatch {
    /// Completes when everything that was changed before is there to be read: after an operation is
    /// answered, its changes are.
    pub fn flushed(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.watch.flushed()
    }
}

impl Stream for FileWatch {
    type Item = Result<WatchRecord, ServiceError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.watch.poll_next_unpin(context);
        let failed = |error| match self.kept.is_deleted.load(Ordering::Acquire) {
            true => self.kept.gone(),
            false => failed(error),
        };
        next.map(|next| next.map(|it| it.map_err(failed)))
    }
}

impl Service {
    /// Watches a directory of a kept sandbox, whose container is started if it is missing. The watch is on
    /// when this returns. The sandbox is in use meanwhile; as a reader, the watch hinders neither its expiry
    /// nor a pause.
    ///
    /// # Errors
    ///
    /// [`ServiceError::sandbox`] if there is no such directory, or the sandbox has as many watches as it
    /// may; as of [`perform`](Self::perform).
    pub async fn watch_files(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        request: WatchRequest,
    ) -> Result<FileWatch, ServiceError> {
        let in_use = self.core.lease(subject, sandbox).await?;
        let watch = watch(&in_use, request).await?;
        in_use.mark_restart_reported();
        let kept = in_use.kept.clone();
        Ok(FileWatch { watch, kept, _in_use: Some(in_use.into_reader()) })
    }

    /// Watches a directory of a sandbox that a front end keeps, in the container that is there. It is no use of
    /// the sandbox, which ends when nothing else uses it.
    ///
    /// # Errors
    ///
    /// As of [`watch_files`](Self::watch_files).
    pub async fn watch_attached_files(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        request: WatchRequest,
    ) -> Result<FileWatch, ServiceError> {
        let in_use = self.core.lease_current(subject, sandbox).await?;
        let watch = watch(&in_use, request).await?;
        Ok(FileWatch { watch, kept: in_use.kept.clone(), _in_use: None })
    }
}

async fn watch(
    in_use: &SandboxLease,
    request: WatchRequest,
) -> Result<Box<dyn GuestWatch>, ServiceError> {
    in_use.guest.watch_files(request).await.map_err(|error| in_use.failed(error))
}
