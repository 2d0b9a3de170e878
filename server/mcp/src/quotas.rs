//! When the calls of a subject may run, and who gets their usage: for servers with many subjects.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandbox_api::service::Subject;
use sandbox_api::{Failure, Status, Usage};

/// The quotas of subjects.
pub trait Quotas: fmt::Debug + Send + Sync + 'static {
    /// Waits until a script or a command may run. Dropping the future leaves the queue.
    fn turn<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, Result<Box<dyn Turn>, Failure>>;

    /// Refuses what would make the files of the subject larger, if they are as large as they may be.
    fn check_stored<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, Result<(), Failure>>;

    /// A place for a sandbox that is kept, until it is dropped.
    ///
    /// # Errors
    ///
    /// If there is none, and what to do about it.
    fn sandbox_place(&self, subject: &Subject) -> Result<Box<dyn Any + Send>, Failure>;
}

/// The turn of a script or a command. It is over when this is dropped.
pub trait Turn: Send + Sync + 'static {
    /// It has ended so, and has used this.
    fn end(self: Box<Self>, status: Status, used: Usage) -> BoxFuture<'static, ()>;
}

/// A subject, and its quotas.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub quotas: Arc<dyn Quotas>,
    pub subject: Subject,
}

impl Account {
    pub async fn turn(&self) -> Result<Box<dyn Turn>, Failure> {
        self.quotas.turn(&self.subject).await
    }

    pub async fn check_stored(&self) -> Result<(), Failure> {
        self.quotas.check_stored(&self.subject).await
    }

    pub fn sandbox_place(&self) -> Result<Box<dyn Any + Send>, Failure> {
        self.quotas.sandbox_place(&self.subject)
    }
}
