//! How many connections there are: in all, and of each address.

use std::net::IpAddr;
use std::sync::Arc;

use sandbox_auth::network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Peer;
use crate::counts::{Counted, Counts};

/// Places for connections.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    all: Arc<Semaphore>,
    by_address: Counts<IpAddr>,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Slot {
    _counted: Option<Counted<IpAddr>>,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub fn new(all: usize, most_of_an_address: usize) -> Self {
        let all = Arc::new(Semaphore::new(all.clamp(1, Semaphore::MAX_PERMITS)));
        Self { all, by_address: Counts::new(most_of_an_address) }
    }

    /// Waits for a place. Until then the kernel holds those who connect, and bounds how many.
    pub async fn wait(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.all).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// The place of this peer; `None` if its address has as many as it may.
    pub fn assign(&self, permit: OwnedSemaphorePermit, peer: &Peer) -> Option<Slot> {
        let counted = match peer {
            Peer::Tcp(address) => Some(self.by_address.add(network(address.ip()))?),
            Peer::Unix { .. } => None,
        };
        Some(Slot { _counted: counted, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp(address.parse().unwrap())
    }

    #[tokio::test]
    async fn an_address_has_few_places_and_gives_them_back() {
        let slots = Slots::new(10, 2);
        let take = async |address: &str| slots.assign(slots.wait().await, &peer(address));
        let one = take("192.0.2.1:1").await.unwrap();
        let _two = take("[::ffff:192.0.2.1]:2").await.unwrap();
        assert!(take("192.0.2.1:3").await.is_none());
        let _other = take("192.0.2.2:1").await.unwrap();
        drop(one);
        let _three = take("192.0.2.1:3").await.unwrap();
        let _v6 = take("[2001:db8::1]:1").await.unwrap();
        let _same = take("[2001:db8::ffff:1]:1").await.unwrap();
        assert!(take("[2001:db8::2]:1").await.is_none());
        assert!(take("[2001:db8:0:1::2]:1").await.is_some());
        assert_eq!(slots.all.available_permits(), 5);
    }

    #[tokio::test]
    async fn no_connection_waits_once_a_slot_is_free() {
        let slots = Slots::new(1, 1);
        let slot = slots.assign(slots.wait().await, &Peer::Unix { uid: 0 }).unwrap();
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { slots.wait().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(slot);
        drop(waiting.await.unwrap());
    }
}
