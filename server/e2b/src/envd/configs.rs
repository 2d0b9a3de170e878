//! What processes were started with.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::Value;

/// What processes were started with that run here, by sandbox, generation and id: the service has no more of that
/// than a line for people.
#[derive(Debug, Default)]
pub(super) struct Configs(pub Mutex<HashMap<(String, u64, u32), Value>>);
