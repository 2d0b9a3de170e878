//! Statements that both databases understand; `$1` and so on are their values.

use rusqlite::params_from_iter;
use tokio_postgres::types::{ToSql, Type};

use crate::error::StoreError;
use crate::postgres::parameters::{Parameter, Typed};
use crate::row::{Columns, Stored};
use crate::{Backend, Store};

/// What either database can be given.
pub(crate) trait Storable: rusqlite::ToSql + ToSql + Send + Sync {}

impl<T: rusqlite::ToSql + ToSql + Send + Sync> Storable for T {}

/// A value, with its type in PostgreSQL.
pub(crate) type Value = (Box<dyn Storable>, Type);

pub(crate) fn value<T: Storable + Typed + 'static>(of: T) -> Value {
    (Box::new(of), T::TYPE)
}

/// A row of either database.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

impl Columns for Row<'_> {
    fn column<T: Stored>(&self, name: &str) -> Result<T, StoreError> {
        match self {
            Self::Sqlite(row) => row.column(name),
            Self::Postgres(row) => row.column(name),
        }
    }
}

impl Store {
    /// Reads the rows that a statement finds.
    pub(crate) fn all<T>(
        &self,
        statement: &str,
        values: &[Value],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match &self.0 {
            Backend::Sqlite(store) => {
                store.all(&of_sqlite(statement), in_sqlite(values), |row| read(&Row::Sqlite(row)))
            }
            Backend::Postgres(store) => {
                let values: Vec<(&(dyn ToSql + Sync), Type)> =
                    values.iter().map(|(value, of)| (&**value as _, of.clone())).collect();
                store.database.all(statement, &values, |row| read(&Row::Postgres(row)))
            }
        }
    }

    /// Reads the first row that a statement finds, if it finds any.
    pub(crate) fn first<T>(
        &self,
        statement: &str,
        values: &[Value],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.all(statement, values, read)?.into_iter().next())
    }

    /// Reads the row that a statement always finds.
    pub(crate) fn one<T>(
        &self,
        statement: &str,
        values: &[Value],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.first(statement, values, read)?.ok_or_else(|| StoreError::row("the row is missing"))
    }

    /// Makes a change of what has this id, and waits until it is durable. Returns the number of rows that
    /// the statement returned.
    pub(crate) fn change(
        &self,
        id: &str,
        statement: &'static str,
        values: Vec<Value>,
    ) -> Result<usize, StoreError> {
        match &self.0 {
            Backend::Sqlite(store) => store.write(move |connection| {
                let mut change = connection.prepare_cached(&of_sqlite(statement))?;
                let rows =
                    change.query_and_then(in_sqlite(&values), |_| Ok::<_, StoreError>(()))?;
                Ok(rows.collect::<Result<Vec<()>, _>>()?.len())
            }),
            Backend::Postgres(store) => {
                let writer = store.database.writer_of(id);
                store.database.change(writer, statement, in_postgres(values), |rows| Ok(rows.len()))
            }
        }
    }
}

pub(crate) fn in_sqlite(values: &[Value]) -> impl rusqlite::Params {
    params_from_iter(values.iter().map(|(value, _)| value))
}

pub(crate) fn in_postgres(values: Vec<Value>) -> Vec<Parameter> {
    values.into_iter().map(|(value, of)| (value as _, of)).collect()
}

/// The same with SQLite's own numbers of values: it would take `$1` for a name.
pub(crate) fn of_sqlite(statement: &str) -> String {
    statement.replace('$', "?")
}
