//! The metadata of an answer.

use std::fmt;

use serde::{Serialize, Serializer};

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
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}
