//! How often each subject may ask. Pure: the time is given.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sandbox_api::service::Subject;

/// From how many subjects on those are forgotten whose rate is full again.
const MANY: usize = 1024;

/// The requests of a minute, of each subject: a bucket that fills evenly.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    buckets: HashMap<Subject, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn now(self, per_minute: f64, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        seconds.mul_add(per_minute / 60.0, self.tokens).min(per_minute)
    }
}

impl Rates {
    /// Counts a request. If there were too many: when the next one may come.
    pub fn take(
        &mut self,
        subject: &Subject,
        per_minute: Option<u32>,
        now: Instant,
    ) -> Result<(), Duration> {
        let Some(per_minute) = per_minute else { return Ok(()) };
        let per_minute = f64::from(per_minute.max(1));
        if self.buckets.len() >= MANY && !self.buckets.contains_key(subject) {
            self.buckets.retain(|_, bucket| bucket.now(per_minute, now) < per_minute);
        }
        let full = Bucket { tokens: per_minute, at: now };
        let bucket = self.buckets.entry(subject.clone()).or_insert(full);
        let tokens = bucket.now(per_minute, now);
        if tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - tokens) * 60.0 / per_minute));
        }
        *bucket = Bucket { tokens: tokens - 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_over_its_rate_gets_the_time_to_retry_and_others_are_not_affected() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        let [one, other] = ["one", "other"].map(|name| Subject::new(name).unwrap());
        let mut take =
            |of: &Subject, after: u64| rates.take(of, Some(60), now + Duration::from_secs(after));
        for _ in 0..60 {
            take(&one, 0).unwrap();
        }
        assert_eq!(take(&one, 0), Err(Duration::from_secs(1)));
        take(&other, 0).unwrap();
        take(&one, 1).unwrap();
        take(&one, 1).unwrap_err();
        for _ in 0..60 {
            take(&one, 3600).unwrap();
        }
        take(&one, 3600).unwrap_err();
        rates.take(&one, None, now).unwrap();
    }

    #[test]
    fn subjects_that_ask_seldom_are_forgotten() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        for number in 0..3 * MANY {
            let subject = Subject::new(format!("s{number}")).unwrap();
            let at = now + Duration::from_secs(number as u64 * 60);
            rates.take(&subject, Some(60), at).unwrap();
        }
        assert!(rates.buckets.len() <= MANY + 1, "{}", rates.buckets.len());
    }
}
