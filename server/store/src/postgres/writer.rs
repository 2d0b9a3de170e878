//! The connections that write. Each takes the changes that wait for it, and makes them in one transaction:
//! two round trips and one flush, however many changes. The changes of one execution all go to one writer, in their order;
//! its acceptance goes to that of its subject, whose share is locked until the commit: another one would wait for it.
//!
//! **A commit whose answer is lost.** Each transaction has a number, and its first statement stores it in the
//! row of its writer. When the answer to its commit is lost, another connection closes that number in
//! the same row, and reads which number was committed last. The lock of the row makes it wait for a commit
//! that is still under way; a transaction whose number is closed before its first statement fails. So what it reads
//! is final: the changes were made, or never will be and can be made again. A look for the changed rows, or
//! for the state of a transaction id, would not be: a transaction can still be on its way, and a failover
//! gives ids again.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::maybe_done;
use sandbox_api::service::Subject;
use tokio::runtime::Builder;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::connect::{Connector, Purpose};
use super::error::{QueryError, within};
use super::parameters::{Parameter, bind};
use crate::error::StoreError;
use crate::writer::Writer;

/// The most changes of one transaction.
const BATCH: usize = 256;
/// How long a transaction may take until its connection is given up.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long it is tried to learn what became of a transaction.
const LOOKUP: Duration = Duration::from_secs(10);
const LOOKUP_PAUSE: Duration = Duration::from_millis(100);
/// How often a transaction is begun that others stop.
const ATTEMPTS: u32 = 5;
/// What `begin_batch` raises if the number is closed, or the row of the writer is gone.
const CLOSED: SqlState = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;

/// What the writers of a node have done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatabaseFigures {
    /// Transactions that were committed.
    pub commits: u64,
    /// How long they took, all together.
    pub commit_time: Duration,
    /// Transactions that were begun again.
    pub retries: u64,
}

/// Takes the result of a change: what it returned, or why it was not made.
type Completion = Box<dyn FnOnce(Result<Vec<Row>, StoreError>) + Send>;

/// A change: one statement, which decides by itself, so that nothing is to be read before.
pub(crate) struct Change {
    statement: &'static str,
    parameters: Vec<Parameter>,
    then: Completion,
    share: Share,
}

/// Which share of a subject a change locks. Everybody locks shares first, in the order of subjects, so that no two
/// transactions wait for each other.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    Of(String),
    None,
    /// That of an execution, whose subject is not known here: a transaction of its own locks no other.
    OfExecution,
}

impl Change {
    /// A change, whose rows are read when it is durable.
    pub fn new<T>(
        statement: &'static str,
        parameters: Vec<Parameter>,
        read: impl FnOnce(&[Row]) -> Result<T, StoreError> + Send + 'static,
        then: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) -> Self {
        let then = Box::new(move |rows: Result<Vec<Row>, StoreError>| {
            then(rows.and_then(|rows| read(&rows)));
        });
        Self { statement, parameters, then, share: Share::None }
    }

    /// A change that locks the share of a subject.
    pub fn with_share(self, subject: &Subject) -> Self {
        Self { share: Share::Of(subject.as_str().to_owned()), ..self }
    }

    /// A change that locks the share of an execution's subject.
    pub fn with_share_of_execution(self) -> Self {
        Self { share: Share::OfExecution, ..self }
    }

    /// Sends it. Its `then` is of one thread at a time, and so not shared.
    fn make<'a>(&'a self, client: &'a Client) -> Sent<'a> {
        let (statement, parameters) = (self.statement, &self.parameters);
        let parameters: Vec<_> = parameters
            .iter()
            .map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone()))
            .collect();
        Box::pin(async move { client.query_typed(statement, &parameters).await })
    }
}

/// Starts the thread of one connection, which is driven there: no other thread is woken for what is sent or comes.
/// While nothing is written, it is not read: that it was closed is found with the next transaction, which is begun
/// again then.
pub(super) fn start(
    connector: Arc<Connector>,
    figures: Arc<Mutex<DatabaseFigures>>,
) -> std::io::Result<Writer<Change>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut connection = WriteConnection { connector, figures, open: None };
    Writer::start("database writer", move |changes| {
        write_all(changes, |batch| {
            runtime.block_on(async {
                connection.write(batch).await;
                // What was given up is closed now, and its transaction undone.
                tokio::task::yield_now().await;
            });
        });
    })
}

fn write_all(changes: &Receiver<Change>, mut write: impl FnMut(Vec<Change>)) {
    while let Ok(first) = changes.recv() {
        let mut batch = vec![first];
        batch.extend(changes.try_iter().take(BATCH - 1));
        batch.sort_by(|one, other| one.share.cmp(&other.share));
        let alone = batch.partition_point(|change| change.share != Share::OfExecution);
        let alone = batch.split_off(alone);
        if !batch.is_empty() {
            write(batch);
        }
        alone.into_iter().for_each(|change| write(vec![change]));
    }
}

/// Why a transaction was not committed. Nothing of it was, or ever will be.
enum Failure {
    /// The same would fail again.
    Refused(StoreError),
    /// Because of its connection, or of what others did at the same time.
    Stopped(StoreError),
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        let is_closed = error.code() == Some(&CLOSED);
        match StoreError::from(error) {
            error @ (StoreError::Contended(_) | StoreError::Unavailable(_)) => Self::Stopped(error),
            error if is_closed => Self::Stopped(error),
            error => Self::Refused(error),
        }
    }
}

/// A connection that writes, made when it is needed.
struct WriteConnection {
    connector: Arc<Connector>,
    figures: Arc<Mutex<DatabaseFigures>>,
    open: Option<Open>,
}

struct Open {
    client: Client,
    /// The id of its row in `writers`.
    writer: i64,
    /// The number of its last transaction.
    number: i64,
}

impl WriteConnection {
    /// Makes changes in one transaction; if one of them cannot be made, each in its own.
    async fn write(&mut self, changes: Vec<Change>) {
        match self.commit(&changes).await {
            Ok(made) => {
                for (change, rows) in changes.into_iter().zip(made) {
                    (change.then)(Ok(rows));
                }
            }
            Err(error) if changes.len() > 1 && !error.is_transient() => {
                for change in changes {
                    let made = self.commit(std::slice::from_ref(&change)).await;
                    (change.then)(made.map(|mut rows| rows.pop().unwrap_or_default()));
                }
            }
            Err(error) => changes.into_iter().for_each(|it| (it.then)(Err(error.clone()))),
        }
    }

    /// Commits a transaction, which is begun again while others stop it.
    async fn commit(&mut self, changes: &[Change]) -> Result<Vec<Vec<Row>>, StoreError> {
        let mut attempt = 1;
        loop {
            let since = Instant::now();
            match self.attempt(changes).await {
                Ok(made) => {
                    let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
                    figures.commits += 1;
                    figures.commit_time += since.elapsed();
                    return Ok(made);
                }
                Err(Failure::Stopped(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(Failure::Stopped(error) | Failure::Refused(error)) => return Err(error),
            }
            self.figures.lock().unwrap_or_else(PoisonError::into_inner).retries += 1;
        }
    }

    async fn attempt(&mut self, changes: &[Change]) -> Result<Vec<Vec<Row>>, Failure> {
        let mut open = match self.open.take() {
            Some(open) if !open.client.is_closed() => open,
            _ => self.connect().await.map_err(Failure::Refused)?,
        };
        open.number += 1;
        let made = match within(TIMEOUT, open.make(changes)).await {
            Ok(made) => made,
            Err(error) => {
                // The commit was not sent. A connection that does not answer is dropped, and the server
                // undoes the transaction.
                if within(TIMEOUT, open.client.batch_execute("ROLLBACK")).await.is_ok()
                    && error.code() != Some(&CLOSED)
                {
                    self.open = Some(open);
                }
                return Err(error.into());
            }
        };
        match within(TIMEOUT, open.client.batch_execute("COMMIT")).await {
            Ok(()) => self.open = Some(open),
            Err(error) if error.is_refusal() => {
                self.open = Some(open);
                return Err(error.into());
            }
            Err(error) => {
                tracing::warn!(%error, "the answer to a commit is lost");
                let (writer, number) = (open.writer, open.number);
                drop(open);
                if !self.look_up(writer, number).await.map_err(Failure::Refused)? {
                    return Err(Failure::Stopped(error.into()));
                }
            }
        }
        Ok(made)
    }

    async fn connect(&self) -> Result<Open, StoreError> {
        let client = self.connector.connect(Purpose::Write).await?;
        // Those of programs that ended long ago are of no use.
        let statement = "WITH old AS (
                DELETE FROM writers WHERE used_at < clock_timestamp() - interval '30 days'
            ) INSERT INTO writers DEFAULT VALUES RETURNING id";
        let rows = within(TIMEOUT, client.query_typed(statement, &[])).await?;
        let writer =
            rows.first().ok_or_else(|| StoreError::row("a writer has no id"))?.try_get(0)?;
        Ok(Open { client, writer, number: 0 })
    }

    /// Whether a transaction whose commit was not answered was committed. If not, it never will be.
    async fn look_up(&self, writer: i64, number: i64) -> Result<bool, StoreError> {
        let since = Instant::now();
        loop {
            match self.close(writer, number).await {
                Ok(committed) => return Ok(committed == Some(number)),
                Err(error) if since.elapsed() > LOOKUP => {
                    tracing::error!(%error, "whether a transaction was committed is not known");
                    return Err(StoreError::Unknown);
                }
                Err(_) => tokio::time::sleep(LOOKUP_PAUSE).await,
            }
        }
    }

    /// Closes the number of a transaction, and returns the number that was committed last. Without a row of the
    /// writer, nothing that it wrote is there, and nothing more will be.
    async fn close(&self, writer: i64, number: i64) -> Result<Option<i64>, StoreError> {
        let client = self.connector.connect(Purpose::Write).await?;
        let statement = "UPDATE writers SET closed = greatest(closed, $2) WHERE id = $1
             RETURNING committed";
        let parameters = [bind(&writer), bind(&number)];
        let rows = within(TIMEOUT, client.query_typed(statement, &parameters)).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }
}

/// A statement whose rows are awaited.
type Sent<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

impl Open {
    /// Makes changes in a transaction, which stays open.
    async fn make(&self, changes: &[Change]) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
        // In one message: each has an answer that is sent, and wakes this thread.
        let numbered = format!("BEGIN; SELECT begin_batch({}, {})", self.writer, self.number);
        let begin = async {
            self.client.batch_execute(&numbered).await?;
            Ok(Vec::new())
        };
        let mut sent: Vec<Sent<'_>> = vec![Box::pin(begin)];
        sent.extend(changes.iter().map(|it| it.make(&self.client)));
        let answers = in_order(sent).await;
        // After the first error, the others only say that there was one.
        let made: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
        Ok(made.into_iter().skip(1).collect())
    }
}

/// Polls each future once, so that what each sends when it is first polled is sent in order. Their answers come in this
/// order too.
async fn in_order<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(maybe_done).collect();
    poll_fn(|context| {
        for future in &mut futures {
            _ = Pin::new(future).poll(context);
        }
        Poll::Ready(())
    })
    .await;
    for future in &mut futures {
        future.await;
    }
    futures.iter_mut().filter_map(|it| Pin::new(it).take_output()).collect()
}
