//! What a sandbox's container uses now.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The shortest time that a share of the processors is computed over.
const SHORTEST: Duration = Duration::from_millis(100);

/// What a container uses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ContainerUse {
    /// The share of its processors that it used since this was last asked for, 0 to 1.
    pub cpu_used_ratio: f64,
    /// Its memory in bytes, without the cache.
    pub memory_bytes: u64,
    /// The cache of files, in bytes.
    pub cache_bytes: u64,
}

/// Where the share of the processors was computed last.
#[derive(Debug)]
pub(crate) struct CpuSample(Mutex<(Instant, Duration, f64)>);

impl CpuSample {
    pub fn new() -> Self {
        Self(Mutex::new((Instant::now(), Duration::ZERO, 0.0)))
    }

    /// The share that was used of so many processors since the last sample, if that is long enough ago.
    pub fn ratio(&self, now: Instant, used: Duration, processors: f64) -> f64 {
        let mut sample = crate::lock(&self.0);
        let (at, before, _) = *sample;
        let time = now.saturating_duration_since(at);
        if time >= SHORTEST {
            let share = used.saturating_sub(before).as_secs_f64() / time.as_secs_f64() / processors;
            *sample = (now, used, share.clamp(0.0, 1.0));
        }
        sample.2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_processors_and_of_the_time_since_the_last_one() {
        let sample = CpuSample::new();
        let began = sample.0.lock().unwrap().0;
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(sample.ratio(began + second, second, 2.0), 0.5);
        // Too soon: the last one.
        assert_eq!(sample.ratio(began + second + ms, second + ms, 2.0), 0.5);
        assert_eq!(sample.ratio(began + 2 * second, second, 2.0), 0.0);
        // More than there is comes of clocks that differ.
        assert_eq!(sample.ratio(began + 3 * second, 9 * second, 2.0), 1.0);
    }
}
