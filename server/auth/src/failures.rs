//! Failed attempts to authenticate, per address. Who fails too often hears nothing more of what is wrong
//! until it has waited. A caller elsewhere, or with a valid token, does not wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Failures of one address before it waits.
const FREE: u32 = 10;
/// After so long without a failure, they are forgotten.
const WINDOW: Duration = Duration::from_secs(300);
/// The first wait; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The most addresses that are remembered.
const MAX_ADDRESSES: usize = 10_000;

/// The failed attempts of addresses.
#[derive(Debug, Default)]
pub struct Failures(HashMap<IpAddr, FailedAttempts>);

#[derive(Debug, Clone, Copy)]
struct FailedAttempts {
    count: u32,
    last: Instant,
}

impl FailedAttempts {
    /// When it may try again.
    fn until(self) -> Instant {
        match self.count.checked_sub(FREE) {
            None => self.last,
            Some(more) => self.last + (FIRST_WAIT * 2_u32.pow(more.min(6))).min(LONGEST_WAIT),
        }
    }
}

impl Failures {
    /// How long an address must wait before its next attempt, if it must.
    #[must_use]
    pub fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let failed = self.0.get(&network(address))?;
        let wait = failed.until().saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// Counts a failed attempt.
    pub fn add(&mut self, address: IpAddr, now: Instant) {
        let is_old = |failed: &FailedAttempts| now.saturating_duration_since(failed.last) > WINDOW;
        let address = network(address);
        if !self.0.contains_key(&address) && self.0.len() >= MAX_ADDRESSES {
            self.0.retain(|_, failed| !is_old(failed));
            // All of them are fresh: a flood from everywhere. The one that failed first goes.
            let oldest = self.0.iter().min_by_key(|(_, failed)| failed.last).map(|(it, _)| *it);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= MAX_ADDRESSES) {
                self.0.remove(&oldest);
            }
        }
        let failed = self.0.entry(address).or_insert(FailedAttempts { count: 0, last: now });
        let count = if is_old(failed) { 0 } else { failed.count };
        *failed = FailedAttempts { count: count.saturating_add(1), last: now };
    }

    /// Forgets the failures of an address that succeeded.
    pub fn clear(&mut self, address: IpAddr) {
        self.0.remove(&network(address));
    }
}

/// What an address is counted as: one customer has a whole /64 of IPv6.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_that_fails_often_waits_longer_each_time() {
        let (mut failures, one) = (Failures::default(), address("192.0.2.1"));
        let mut now = Instant::now();
        for _ in 1..FREE {
            failures.add(one, now);
            assert_eq!(failures.wait(one, now), None);
        }
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            failures.add(one, now);
            assert_eq!(failures.wait(one, now), Some(expected * SECOND));
            // Others do not wait.
            assert_eq!(failures.wait(address("192.0.2.2"), now), None);
            now += expected * SECOND;
            assert_eq!(failures.wait(one, now), None);
        }
        failures.clear(one);
        failures.add(one, now);
        assert_eq!(failures.wait(one, now), None);
    }

    #[test]
    fn failures_are_forgotten_after_the_window() {
        let (mut failures, one) = (Failures::default(), address("192.0.2.1"));
        let now = Instant::now();
        (0..FREE + 5).for_each(|_| failures.add(one, now));
        let later = now + WINDOW + SECOND;
        failures.add(one, later);
        assert_eq!(failures.wait(one, later), None);
    }

    #[test]
    fn addresses_of_one_network_count_together_and_mapped_ones_as_themselves() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for host in 0..FREE {
            failures.add(address(&format!("2001:db8::{host:x}")), now);
        }
        assert!(failures.wait(address("2001:db8::ffff:1"), now).is_some());
        assert!(failures.wait(address("2001:db8:0:1::1"), now).is_none());
        (0..FREE).for_each(|_| failures.add(address("::ffff:192.0.2.9"), now));
        assert!(failures.wait(address("192.0.2.9"), now).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for number in 0..MAX_ADDRESSES as u32 + 100 {
            failures.add(IpAddr::V4(number.into()), now + Duration::from_millis(number.into()));
        }
        assert_eq!(failures.0.len(), MAX_ADDRESSES);
        assert!(!failures.0.contains_key(&IpAddr::V4(0.into())));
    }
}
