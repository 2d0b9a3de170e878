//! What was measured, as data: what the table, the JSON and the documentation are made of. Pure.

use serde::Serialize;

use crate::machine::Machine;
use crate::peers::Peer;
use crate::stats::{Ratio, Summary};

/// The name of the JSON document's form.
pub const SCHEMA: &str = "sandbox-bench.report/1";

/// One session of measuring.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Where.
    pub machine: Machine,
    /// What there was to compare with, and what was not there.
    pub peers: Vec<Peer>,
    /// A table for each scenario.
    pub tables: Vec<Table>,
}

/// What one scenario found.
#[derive(Debug, Serialize)]
pub struct Table {
    /// The scenario's.
    pub id: &'static str,
    /// The scenario's.
    pub title: &'static str,
    /// In the order in which they are shown.
    pub rows: Vec<Row>,
}

/// One line of a table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// The figure, or why it is missing.
    pub found: Measurement,
}

/// A figure, or why it is missing: nothing is left out silently.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measurement {
    /// A figure.
    Figure(Figure),
    /// Why it is missing, and what to do about it.
    Missing(String),
}

/// A figure.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Of the samples.
    pub unit: Unit,
    /// What they say.
    pub summary: Summary,
    /// The comparison with another row, if any.
    pub beside: Option<Comparison>,
    /// What it should be.
    pub target: Option<Target>,
    /// Each measurement, in the order in which it was made.
    pub samples: Vec<f64>,
}

/// A comparison with another row.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// What that row measured.
    pub what: String,
    /// How the two compare.
    pub ratio: Ratio,
}

/// What a number is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Things.
    Count,
    /// Things a second.
    Rate,
}

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Target {
    /// What it is about.
    pub of: Aspect,
    /// On which side of `bound` it should be.
    pub side: Side,
    /// The bound.
    pub bound: f64,
}

/// What of a figure a target is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aspect {
    /// The ratio.
    Ratio,
    /// The median, in the figure's unit.
    Median,
    /// What a twentieth of the samples exceeds, in the figure's unit.
    P95,
    /// What a hundredth of the samples exceeds, in the figure's unit.
    P99,
}

/// On which side of a bound a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Not above.
    AtMost,
    /// Not below.
    AtLeast,
}

/// Whether a target is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is.
    Met,
    /// It is not.
    Missed,
}

impl Target {
    /// A ratio of at most this.
    #[must_use]
    pub const fn ratio_at_most(bound: f64) -> Self {
        Self { of: Aspect::Ratio, side: Side::AtMost, bound }
    }

    /// A ratio of at least this.
    #[must_use]
    pub const fn ratio_at_least(bound: f64) -> Self {
        Self { of: Aspect::Ratio, side: Side::AtLeast, bound }
    }

    /// A median of at most this, in the figure's unit.
    #[must_use]
    pub const fn median_at_most(bound: f64) -> Self {
        Self { of: Aspect::Median, side: Side::AtMost, bound }
    }

    /// A median of at least this, in the figure's unit.
    #[must_use]
    pub const fn median_at_least(bound: f64) -> Self {
        Self { of: Aspect::Median, side: Side::AtLeast, bound }
    }

    /// All but a twentieth at most this, in the figure's unit.
    #[must_use]
    pub const fn p95_at_most(bound: f64) -> Self {
        Self { of: Aspect::P95, side: Side::AtMost, bound }
    }

    /// All but a hundredth at most this, in the figure's unit.
    #[must_use]
    pub const fn p99_at_most(bound: f64) -> Self {
        Self { of: Aspect::P99, side: Side::AtMost, bound }
    }
}

impl Figure {
    /// Whether its target is met; `None` without a target, or if that is unknown.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let target = self.target?;
        let value = match target.of {
            Aspect::Ratio => self.beside.as_ref()?.ratio.value,
            Aspect::Median => self.summary.median,
            Aspect::P95 => self.summary.p95,
            Aspect::P99 => self.summary.p99,
        };
        let is_met = match target.side {
            Side::AtMost => value <= target.bound,
            Side::AtLeast => value >= target.bound,
        };
        Some(if is_met { Verdict::Met } else { Verdict::Missed })
    }
}

impl Row {
    /// A figure of these samples.
    #[must_use]
    pub fn figure(what: impl Into<String>, unit: Unit, samples: Vec<f64>) -> Self {
        let found = match Summary::of(&samples) {
            Some(summary) => {
                Measurement::Figure(Figure { unit, summary, beside: None, target: None, samples })
            }
            None => Measurement::Missing("nothing was measured".to_owned()),
        };
        Self { what: what.into(), found }
    }

    /// No figure, and why.
    #[must_use]
    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), found: Measurement::Missing(why.into()) }
    }

    /// The same figure under another name, to be compared with something else.
    #[must_use]
    pub fn again(&self, what: impl Into<String>) -> Self {
        match &self.found {
            Measurement::Figure(figure) => Self::figure(what, figure.unit, figure.samples.clone()),
            Measurement::Missing(why) => Self::missing(what, why),
        }
    }

    /// Says what it should be.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.aim(target);
        self
    }

    /// The same, of a row that stands among others.
    pub fn aim(&mut self, target: Target) {
        if let Measurement::Figure(figure) = &mut self.found {
            figure.target = Some(target);
        }
    }
}

/// Compares a row with another one of the same rounds, and says how the two should compare.
pub fn compare(rows: &mut [Row], this: usize, that: usize, target: Option<Target>) {
    let what = rows[that].what.clone();
    let base = match &rows[that].found {
        Measurement::Figure(figure) => figure.samples.clone(),
        Measurement::Missing(_) => Vec::new(),
    };
    if let Measurement::Figure(figure) = &mut rows[this].found {
        figure.beside = Ratio::of(&figure.samples, &base).map(|ratio| Comparison { what, ratio });
        figure.target = target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(row: &Row) -> Option<Verdict> {
        match &row.found {
            Measurement::Figure(figure) => figure.verdict(),
            Measurement::Missing(_) => None,
        }
    }

    fn rows(base: Vec<f64>) -> [Row; 2] {
        [Row::figure("base", Unit::Seconds, base), Row::figure("half", Unit::Seconds, vec![1.0])]
    }

    #[test]
    fn a_target_is_met_on_its_own_side_and_at_its_bound() {
        for (target, expected) in [
            (Target::ratio_at_most(0.5), Verdict::Met),
            (Target::ratio_at_most(0.4), Verdict::Missed),
            (Target::ratio_at_least(0.5), Verdict::Met),
            (Target::ratio_at_least(0.6), Verdict::Missed),
            (Target::median_at_most(1.0), Verdict::Met),
            (Target::median_at_most(0.9), Verdict::Missed),
            (Target::p99_at_most(0.9), Verdict::Missed),
        ] {
            let mut rows = rows(vec![2.0]);
            compare(&mut rows, 1, 0, Some(target));
            assert_eq!(verdict(&rows[1]), Some(expected), "{target:?}");
        }
    }

    #[test]
    fn without_its_peer_a_ratio_is_neither_met_nor_missed() {
        let mut rows = rows(vec![]);
        assert!(matches!(rows[0].found, Measurement::Missing(_)));
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(1.0)));
        assert_eq!(verdict(&rows[1]), None);
        compare(&mut rows, 0, 1, Some(Target::ratio_at_most(1.0)));
        assert_eq!(verdict(&rows[0]), None);
    }
}
