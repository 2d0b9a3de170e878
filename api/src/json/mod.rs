//! JSON forms of fields whose types have another one in serde, or none: times are whole
//! milliseconds, bytes and paths of the host are a string, or `{"b64": …}` where they are not UTF-8.

pub mod strict;

use std::borrow::Cow;
use std::ffi::OsString;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use sandbox_protocol::WireString;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::millis;

/// The JSON form of a `T`.
pub trait Form<T>: Serialize + DeserializeOwned {
    fn of(value: &T) -> Self;
    fn into_value(self) -> T;
}

/// `#[serde(with = "In::<F>")]` writes and reads a field in the form `F`.
pub struct In<F>(PhantomData<F>);

impl<F> In<F> {
    pub fn serialize<T, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        F: Form<T>,
    {
        F::of(value).serialize(serializer)
    }

    pub fn deserialize<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error>
    where
        F: Form<T>,
    {
        F::deserialize(deserializer).map(F::into_value)
    }
}

/// A time in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Millis(u64);

/// The schema of a field is that of its form.
impl<F: JsonSchema> JsonSchema for In<F> {
    fn schema_name() -> Cow<'static, str> {
        F::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        F::schema_id()
    }

    fn inline_schema() -> bool {
        F::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        F::json_schema(generator)
    }
}

impl Form<Duration> for Millis {
    fn of(time: &Duration) -> Self {
        Self(millis(*time))
    }

    fn into_value(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Form<Vec<u8>> for WireString {
    fn of(bytes: &Vec<u8>) -> Self {
        Self::new(bytes)
    }

    fn into_value(self) -> Vec<u8> {
        self.into_bytes()
    }
}

impl Form<PathBuf> for WireString {
    fn of(path: &PathBuf) -> Self {
        Self::new(path.as_os_str().as_bytes())
    }

    fn into_value(self) -> PathBuf {
        OsString::from_vec(self.into_bytes()).into()
    }
}

impl<T, F: Form<T>> Form<Option<T>> for Option<F> {
    fn of(value: &Option<T>) -> Self {
        value.as_ref().map(F::of)
    }

    fn into_value(self) -> Option<T> {
        self.map(F::into_value)
    }
}
