//! The idempotency keys of processes.

use std::collections::VecDeque;

use crate::error::ServiceError;
use crate::idempotency::IdempotencyKey;

/// The keys of starts that are known of a generation, which are forgotten in the order of their use.
const MAX_KEYS: usize = 1024;

/// The processes of a generation that were started under keys.
#[derive(Debug, Default)]
pub(crate) struct StartKeys {
    generation: u64,
    /// The key, the digest of the request, and the process.
    started: VecDeque<(String, String, u32)>,
}

impl StartKeys {
    /// The process that was started under this key.
    pub fn find(
        &self,
        generation: u64,
        key: &IdempotencyKey,
        digest: &str,
    ) -> Result<Option<u32>, ServiceError> {
        let is_same = |(its, ..): &&(String, String, u32)| its == key.as_str();
        match self.started.iter().find(is_same) {
            Some(_) if self.generation != generation => Ok(None),
            Some((_, its, id)) if its == digest => Ok(Some(*id)),
            Some(_) => Err(ServiceError::key_reused()),
            None => Ok(None),
        }
    }

    /// One was started under this key.
    pub fn add(&mut self, generation: u64, key: &IdempotencyKey, digest: String, process: u32) {
        if self.generation != generation {
            self.generation = generation;
            self.started.clear();
        }
        if self.started.len() == MAX_KEYS {
            self.started.pop_front();
        }
        self.started.push_back((key.as_str().to_owned(), digest, process));
    }
}
