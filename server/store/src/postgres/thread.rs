//! The thread that the connections of a store live on, except for those that write.

use std::time::Duration;

use sandbox_api::service::Time;
use tokio::runtime::{Handle, Runtime};
use tokio_postgres::Client;

use super::error::within;
use crate::error::StoreError;

/// How long a query may take: longer than the server lets it.
pub(super) const TIMEOUT: Duration = Duration::from_secs(12);
/// The thread of the connections. Dropping it waits for nothing, so that it can be dropped anywhere.
pub(super) struct DatabaseThread(Option<Runtime>);

impl DatabaseThread {
    pub fn start() -> Result<Self, StoreError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("database").enable_all().build();
        Ok(Self(Some(runtime.map_err(StoreError::unavailable)?)))
    }

    /// Waits for a future here, whose connections are on the thread; also where something else is asynchronous.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _context = self.handle().enter();
        futures_executor::block_on(future)
    }

    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken when it is dropped").handle()
    }
}

impl Drop for DatabaseThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the clock of the database is ahead of this machine's, in milliseconds.
pub(super) async fn clock_ahead(client: &Client) -> Result<i64, StoreError> {
    let before = Time::now().unix_millis();
    let statement = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let rows = within(TIMEOUT, client.query_typed(statement, &[])).await?;
    let said: i64 = rows.first().ok_or_else(|| StoreError::row("no time"))?.try_get(0)?;
    let after = Time::now().unix_millis();
    Ok(said - (before + (after - before) / 2))
}
