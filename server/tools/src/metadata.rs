//! The metadata of an answer.

use std::fmt;

use serde::Serialize;
use serde::ser::SerializeMap;

/// Anything that can be serialized to JSON.
pub(super) type Json = Box<dyn erased_serde::Serialize + Send + Sync>;

/// Members of an answer's `metadata`, in order.
#[derive(Default)]
pub(super) struct Metadata(Vec<(&'static str, Json)>);

impl Metadata {
    pub fn push(&mut self, key: &'static str, value: impl Serialize + Send + Sync + 'static) {
        self.0.push((key, Box::new(value)));
    }

    /// Adds an optional member.
    pub fn push_some(
        &mut self,
        key: &'static str,
        value: Option<impl Serialize + Send + Sync + 'static>,
    ) {
        if let Some(value) = value {
            self.push(key, value);
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn serialize_members<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        self.0.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}
