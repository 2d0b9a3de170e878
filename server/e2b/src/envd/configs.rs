//! What processes were started with.

use std::collections::HashMap;
use std::sync::Mutex;

/// What processes were started with that run here, as JSON, by sandbox, generation and id: the service has no more of
/// that than a line for people.
#[derive(Default)]
pub(super) struct Configs(pub Mutex<HashMap<(String, u64, u32), String>>);
