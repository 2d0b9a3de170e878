//! How many there are of each: requests of a subject, connections of an address.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use crate::lock;

type ByKey<K> = Arc<Mutex<HashMap<K, usize>>>;

/// How many there are of each key. No key has more than a number that all have in common.
#[derive(Debug, Clone)]
pub(crate) struct Counts<K> {
    by_key: ByKey<K>,
    pub most_of_one: usize,
}

/// One of a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted<K: Eq + Hash> {
    pub key: K,
    by_key: ByKey<K>,
}

impl<K: Clone + Eq + Hash> Counts<K> {
    pub fn new(most_of_one: usize) -> Self {
        Self { by_key: Arc::default(), most_of_one }
    }

    /// One more of this key; `None` if it has as many as it may.
    pub fn add(&self, key: K) -> Option<Counted<K>> {
        let mut by_key = lock(&self.by_key);
        let count = by_key.entry(key.clone()).or_default();
        if *count >= self.most_of_one {
            return None;
        }
        *count += 1;
        drop(by_key);
        Some(Counted { key, by_key: Arc::clone(&self.by_key) })
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut by_key = lock(&self.by_key);
        if let Some(count) = by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                by_key.remove(&self.key);
            }
        }
    }
}
