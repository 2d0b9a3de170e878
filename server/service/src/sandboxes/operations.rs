//! File operations in kept sandboxes, and content that is streamed in and out of them.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{OperationRequest, Read, Write};
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{Envelope, ErrorKind, Failure, SandboxSpec, operation_hint};
use sandbox_protocol::limits::{TOO_MANY_BYTES, size_text};
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use super::registry::SandboxLease;
use crate::core::Core;
use crate::error::ServiceError;
use crate::launcher::ContentWriter;
use crate::room::StorageReservation;
use crate::service::Service;

/// What is read of a file at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The content of a file of a kept sandbox, which is in use until this is dropped.
pub type FileContent = BoxStream<'static, io::Result<Bytes>>;

/// A file of a kept sandbox that is being written. Nothing changes before it is
/// [finished](Self::finish), or at all if it is dropped without.
pub struct KeptWriter {
    core: Arc<Core>,
    writer: Box<dyn ContentWriter>,
    in_use: SandboxLease,
    /// For what was announced, or else for what was written.
    room: StorageReservation,
    written: u64,
}

impl KeptWriter {
    /// Writes the next piece of the content, with room for what goes beyond what was announced. After an error
    /// nothing is written.
    ///
    /// # Errors
    ///
    /// [`ServiceError::quota_exceeded`] and [`ServiceError::disk_full`]; as [`finish`](Self::finish); if the store
    /// fails.
    pub async fn write(mut self, piece: &[u8]) -> Result<Self, ServiceError> {
        self.written = self.written.saturating_add(piece.len() as u64);
        let missing = self.written.saturating_sub(self.room.bytes());
        if missing > 0 {
            self.core.add_room(&mut self.room, missing).await?;
        }
        if let Err(error) = self.writer.write_all(piece).await {
            // Why is known at the end.
            self.finish().await?;
            let failure = Failure::new(ErrorKind::AgentLost, error.to_string(), None);
            return Err(ServiceError::sandbox(failure));
        }
        Ok(self)
    }

    /// Ends the content, and waits until the file is written.
    ///
    /// # Errors
    ///
    /// [`ServiceError::sandbox`], with what failed; nothing was written then.
    /// [`ServiceError::sandbox_gone`] if the sandbox was removed meanwhile.
    pub async fn finish(self) -> Result<InSandbox<WriteReply>, ServiceError> {
        let written = self.writer.finish().await;
        let value = written.map_err(|failed| self.in_use.failed(failed))?;
        self.in_use.grew(self.written);
        Ok(done(value, &self.in_use))
    }
}

/// What was done in a kept sandbox.
#[derive(Debug)]
pub struct InSandbox<T> {
    /// What it gave.
    pub value: T,
    /// The generation that did it.
    pub generation: u64,
    /// Whether that generation replaced an earlier one, and this is the first report of it: earlier
    /// processes are gone.
    pub restarted: bool,
}

impl<T> InSandbox<T> {
    /// What was done, with this as what it gave.
    pub(super) fn with<U>(self, value: U) -> InSandbox<U> {
        InSandbox { value, generation: self.generation, restarted: self.restarted }
    }
}

impl Core {
    /// Room for what an operation stores.
    async fn room_of(
        self: &Arc<Self>,
        subject: &Subject,
        request: &OperationRequest,
    ) -> Result<Option<StorageReservation>, ServiceError> {
        match request.operation.stores() {
            true => self.make_room(subject, content_bytes(request)).await.map(Some),
            false => Ok(None),
        }
    }
}

impl SandboxLease {
    /// Performs a file operation.
    async fn perform(&self, request: OperationRequest) -> Result<Envelope, ServiceError> {
        let bytes = content_bytes(&request);
        let envelope = self.guest.perform(request).await;
        match (envelope.success, self.gone()) {
            (false, Some(gone)) => return Err(gone),
            (false, None) => {}
            (true, _) => self.grew(bytes),
        }
        Ok(envelope)
    }
}

fn content_bytes(request: &OperationRequest) -> u64 {
    request.content.as_ref().map_or(0, |content| content.len() as u64)
}

impl Service {
    /// Performs a file operation in a kept sandbox. The envelope has its result or its error.
    ///
    /// # Errors
    ///
    /// [`ServiceError`] if the sandbox cannot be used: nothing was performed, but for one that is
    /// [gone](ServiceError::sandbox_gone) meanwhile.
    pub async fn perform(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        request: OperationRequest,
    ) -> Result<InSandbox<Envelope>, ServiceError> {
        let _room = self.core.room_of(subject, &request).await?;
        let in_use = self.core.lease(subject, sandbox).await?;
        Ok(done(in_use.perform(request).await?, &in_use))
    }

    /// Performs a file operation in the sandbox of this title that a front end keeps for a subject, and
    /// makes it from the spec if it is missing. It is not stored, in no list, and removed when it is idle.
    ///
    /// # Errors
    ///
    /// As of [`perform`](Self::perform); [`ServiceError::quota_exceeded`] if there may be no such sandbox.
    pub async fn perform_attached(
        &self,
        subject: &Subject,
        title: &'static str,
        spec: impl Fn() -> SandboxSpec,
        request: OperationRequest,
    ) -> Result<Envelope, ServiceError> {
        let _room = self.core.room_of(subject, &request).await?;
        self.core.lease_attached(subject, title, spec).await?.perform(request).await
    }

    /// Whether a front end keeps a sandbox of a subject.
    #[must_use]
    pub fn has_attached(&self, subject: &Subject) -> bool {
        self.core.kept.has_attached(subject)
    }

    /// Reads a file of a kept sandbox, or a range of it.
    ///
    /// # Errors
    ///
    /// [`ServiceError::sandbox`] if there is no such file; as of [`perform`](Self::perform).
    pub async fn read_file(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        read: Read,
    ) -> Result<InSandbox<FileContent>, ServiceError> {
        let in_use = self.core.lease(subject, sandbox).await?;
        let reader = in_use.guest.reader(read).await;
        let reader = reader.map_err(|failed| in_use.failed(failed))?;
        let done = done((), &in_use);
        let content = ReaderStream::with_capacity(reader, PIECE_BYTES).map(move |piece| {
            let _in_use = &in_use;
            piece
        });
        Ok(done.with(content.boxed()))
    }

    /// Begins to write a file of a kept sandbox. The content has at most `bytes`, where it says so.
    ///
    /// # Errors
    ///
    /// As of [`read_file`](Self::read_file).
    pub async fn write_file(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        write: Write,
        bytes: Option<u64>,
    ) -> Result<KeptWriter, ServiceError> {
        let core = self.core.clone();
        let most = core.kept.find(subject, &sandbox.id)?.spec()?.limits.max_file_size.as_u64();
        if bytes.is_some_and(|bytes| bytes > most) {
            // Nothing of it is waited for.
            let (path, most) = (write.path.to_string_lossy(), size_text(most));
            let message = format!("{path}: more than {most}{TOO_MANY_BYTES}");
            let hint = operation_hint(ErrorKind::TooLarge);
            return Err(ServiceError::sandbox(Failure::new(ErrorKind::TooLarge, message, hint)));
        }
        let room = core.make_room(subject, bytes.unwrap_or(0)).await?;
        let in_use = self.core.lease(subject, sandbox).await?;
        let writer = in_use.guest.writer(write).await;
        let writer = writer.map_err(|failed| in_use.failed(failed))?;
        Ok(KeptWriter { core, writer, in_use, room, written: 0 })
    }
}

pub(super) fn done<T>(value: T, in_use: &SandboxLease) -> InSandbox<T> {
    in_use.mark_restart_reported();
    InSandbox { value, generation: in_use.generation, restarted: in_use.is_restart }
}
