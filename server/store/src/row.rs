//! Rows of either database, by the names of their columns.

use sandbox_api::service::{Subject, Time};
use serde::de::DeserializeOwned;

use crate::error::StoreError;
use crate::integer::unsigned;

/// What a column of either database can have.
pub(crate) trait Stored:
    rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>
{
}

impl<T: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>> Stored for T {}

/// A row of either database.
pub(crate) trait Columns {
    fn column<T: Stored>(&self, name: &str) -> Result<T, StoreError>;

    fn count(&self, name: &str) -> Result<u64, StoreError> {
        self.column(name).map(unsigned)
    }

    fn time(&self, name: &str) -> Result<Time, StoreError> {
        self.column(name).map(Time::from_unix_millis)
    }

    fn time_if_any(&self, name: &str) -> Result<Option<Time>, StoreError> {
        Ok(self.column::<Option<i64>>(name)?.map(Time::from_unix_millis))
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, StoreError> {
        serde_json::from_str(&self.column::<String>(name)?).map_err(StoreError::row)
    }

    fn subject(&self) -> Result<Subject, StoreError> {
        Subject::new(self.column::<String>("subject")?).map_err(StoreError::row)
    }
}

impl Columns for rusqlite::Row<'_> {
    fn column<T: Stored>(&self, name: &str) -> Result<T, StoreError> {
        Ok(self.get(name)?)
    }
}

impl Columns for tokio_postgres::Row {
    fn column<T: Stored>(&self, name: &str) -> Result<T, StoreError> {
        Ok(self.try_get(name)?)
    }
}
