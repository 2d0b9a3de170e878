//! The parameters of statements, and their rows. Each of the parameters is sent with its type, so that no statement has to be prepared: that would be
//! a round trip more, and nothing that a pooler of transactions keeps.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::error::StoreError;

/// The parameters of a query.
pub(crate) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];
/// A parameter of a change, which is kept until that is made.
pub(crate) type Parameter = (Box<dyn ToSql + Sync + Send>, Type);

/// A value of one type of the database.
pub(crate) trait Typed: ToSql + Sync {
    const TYPE: Type;
}

macro_rules! typed {
    ($($of:ident: $($rust:ty),+;)+) => {
        $($(impl Typed for $rust { const TYPE: Type = Type::$of; })+)+
    };
}

typed! {
    BOOL: bool;
    BYTEA: Vec<u8>, &[u8];
    FLOAT8: f64;
    INT2: i16;
    INT4: i32;
    INT8: i64;
    INT8_ARRAY: Vec<i64>;
    TEXT: String, &str;
    TEXT_ARRAY: Vec<String>, &[String];
}

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
}

/// A parameter of a query.
pub(crate) fn bind<T: Typed>(value: &T) -> (&(dyn ToSql + Sync), Type) {
    (value, T::TYPE)
}

/// A parameter of a change.
pub(crate) fn own<T: Typed + Send + 'static>(value: T) -> Parameter {
    (Box::new(value), T::TYPE)
}

/// The only row.
pub(super) fn one(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| StoreError::row("the row is missing"))
}

/// Whether something was changed; if not, why.
pub(super) fn if_any(rows: &[Row], none: impl FnOnce() -> StoreError) -> Result<(), StoreError> {
    rows.first().map(drop).ok_or_else(none)
}
