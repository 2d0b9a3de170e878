//! What a series of measurements says: order statistics and ratios. Pure.

use serde::Serialize;

/// Fewer are no figure for the record.
pub const ENOUGH: usize = 20;

/// A series of measurements, in words that an outlier does not change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// How many were taken.
    pub count: usize,
    /// A tenth of them is smaller.
    pub p10: f64,
    /// The middle one.
    pub median: f64,
    /// A tenth of them is greater.
    pub p90: f64,
    /// A twentieth of them is greater.
    pub p95: f64,
    /// A hundredth of them is greater.
    pub p99: f64,
}

impl Summary {
    /// Of `samples`; `None` without samples.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            p10: quantile(&sorted, 0.10)?,
            median: quantile(&sorted, 0.50)?,
            p90: quantile(&sorted, 0.90)?,
            p95: quantile(&sorted, 0.95)?,
            p99: quantile(&sorted, 0.99)?,
        })
    }
}

/// The value below which `share` of `sorted` lies, between two neighbours where it falls there.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "a count of measurements is small")]
    let place = share * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and the last index"
    )]
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * place.fract())
}

/// How two series that were taken by turns compare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// Median by median.
    pub value: f64,
    /// The spread of the rounds, each compared by itself: a tenth is smaller.
    pub p10: f64,
    /// A tenth of the rounds is greater.
    pub p90: f64,
}

impl Ratio {
    /// `these` compared with `those`, of the same rounds in the same order. `None` without samples,
    /// or if one of `those` is zero.
    #[must_use]
    pub fn of(these: &[f64], those: &[f64]) -> Option<Self> {
        let value = quotient(Summary::of(these)?.median, Summary::of(those)?.median)?;
        let rounds = these.iter().zip(those).map(|(&this, &that)| quotient(this, that));
        let rounds = Summary::of(&rounds.collect::<Option<Vec<f64>>>()?)?;
        Some(Self { value, p10: rounds.p10, p90: rounds.p90 })
    }
}

fn quotient(this: f64, that: f64) -> Option<f64> {
    (that != 0.0).then(|| this / that)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_the_order_and_not_of_the_turn() {
        let samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&samples).unwrap();
        assert_eq!(
            summary,
            Summary { count: 101, p10: 10., median: 50., p90: 90., p95: 95., p99: 99. }
        );
    }

    #[test]
    fn an_outlier_moves_no_median() {
        let calm = Summary::of(&[1., 2., 3., 4., 5.]).unwrap();
        let wild = Summary::of(&[1., 2., 3., 4., 5e9]).unwrap();
        assert_eq!(calm.median.to_bits(), wild.median.to_bits());
    }

    #[test]
    fn percentile_interpolates_between_samples() {
        let summary = Summary::of(&[10., 20.]).unwrap();
        assert_eq!((summary.p10, summary.median, summary.p90), (11., 15., 19.));
        let one = Summary::of(&[7.]).unwrap();
        assert_eq!((one.p10, one.median, one.p99), (7., 7., 7.));
    }

    #[test]
    fn nothing_measured_gives_no_figure() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Ratio::of(&[], &[]), None);
        assert_eq!(Ratio::of(&[1.], &[0.]), None);
    }

    #[test]
    fn a_ratio_is_that_of_the_medians_with_the_spread_of_the_rounds() {
        // A machine that is slow for a while is slow for both.
        let ratio = Ratio::of(&[1., 1., 10.], &[2., 2., 20.]).unwrap();
        assert_eq!(ratio, Ratio { value: 0.5, p10: 0.5, p90: 0.5 });
        let ratio = Ratio::of(&[1., 2., 3.], &[2., 2., 2.]).unwrap();
        assert_eq!((ratio.value, ratio.p10, ratio.p90), (1.0, 0.6, 1.4));
    }
}
