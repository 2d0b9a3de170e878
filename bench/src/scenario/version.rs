//! The start of the program: what every command pays for the loader, and for nothing else.

use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "version",
    title: "`sandboxctl --version`, whole process",
    counts: Counts { warm_up: 3, samples: 40 },
    measure,
    work: None,
};

/// A small program that is linked as most are.
const TRUE: &str = "/bin/true";

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let none: [&str; 0] = [];
        let entries = vec![
            Entry::new("`true`", move || bench.time(bench.command(Path::new(TRUE), none))),
            Entry::new("`sandboxctl --version`", || bench.time(bench.sandboxctl(["--version"]))),
        ];
        let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
        compare(&mut rows, 1, 0, Some(Target::median_at_most(2e-3)));
        Ok(rows)
    }
    .boxed_local()
}
