//! What the database answers, as an error of the store.

use std::time::Duration;

use tokio_postgres::error::{Severity, SqlState};

use crate::error::StoreError;

/// Why the database did not do something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("the database does not answer")]
    Timeout,
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
}

impl QueryError {
    /// What the server said.
    pub fn code(&self) -> Option<&SqlState> {
        let Self::Postgres(error) = self else { return None };
        error.code()
    }

    /// Whether the server refused it, and goes on with the connection. Otherwise what became of it is not known.
    pub fn is_refusal(&self) -> bool {
        let Self::Postgres(error) = self else { return false };
        error.as_db_error().is_some_and(|it| it.parsed_severity() == Some(Severity::Error))
    }
}

/// Waits for an answer, but not longer than this.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, QueryError> {
    Ok(tokio::time::timeout(limit, answer).await.map_err(|_| QueryError::Timeout)??)
}

impl From<QueryError> for StoreError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Postgres(error) => error.into(),
            QueryError::Timeout => Self::unavailable(error),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            // Anything but a lost connection is a fault of this program.
            let is_lost = error.is_closed()
                || std::error::Error::source(&error).is_some_and(|it| it.is::<std::io::Error>());
            return match is_lost {
                true => Self::unavailable(error),
                false => Self::database(error),
            };
        };
        let code = answer.code();
        let is_fatal = answer.parsed_severity() != Some(Severity::Error);
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::LOCK_NOT_AVAILABLE => Self::Contended(std::sync::Arc::new(error)),
            SqlState::DISK_FULL => Self::Full,
            // That of a server that has become a standby.
            SqlState::READ_ONLY_SQL_TRANSACTION => Self::unavailable(error),
            SqlState::INSUFFICIENT_PRIVILEGE => Self::refused(
                format!("the database refuses this user: {}", answer.message()),
                "give it the privileges of the cluster guide, or use the owner of the tables",
            ),
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                Self::database(error)
            }
            // It stops, starts, or has too many connections.
            _ if is_fatal || code.code().starts_with("08") || code.code().starts_with("57P") => {
                Self::unavailable(error)
            }
            _ => Self::database(error),
        }
    }
}
