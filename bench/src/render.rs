//! The report as text for a terminal, and as tables in the documentation. Pure.

use std::fmt::Write as _;

use crate::report::{Aspect, Figure, Measurement, Report, Row, Side, Table, Target, Unit, Verdict};

const COLUMNS: usize = 7;
const HEAD: [&str; COLUMNS] =
    ["what", "median", "p10 … p90", "p99", "samples", "ratio (p10 … p90)", "target"];

/// The whole report, for people.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    _ = writeln!(text, "{}", report.machine);
    for peer in &report.peers {
        _ = writeln!(text, "{peer}");
    }
    for table in &report.tables {
        _ = write!(text, "\n{}: {}\n{}", table.id, table.title, aligned(table));
    }
    text
}

fn aligned(table: &Table) -> String {
    let rows: Vec<[String; COLUMNS]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(table.rows.iter().map(cells)).collect();
    let is_spanning = |row: &[String; COLUMNS]| row[2..].iter().all(String::is_empty);
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        // Why a figure is missing is a sentence, which needs no column.
        let cells = rows.iter().filter(|row| column == 0 || !is_spanning(row));
        cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            _ = write!(line, "  {cell:<width$}");
        }
        _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// One table, in Markdown, with where it was measured.
#[must_use]
pub fn markdown(report: &Report, table: &Table) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned));
    text.push_str("|---|---:|---:|---:|---:|---:|---|\n");
    for row in &table.rows {
        text.push_str(&line(&cells(row).map(|cell| cell.replace('|', "\\|"))));
    }
    _ = write!(text, "\n{}.\n", report.machine);
    text
}

fn cells(row: &Row) -> [String; COLUMNS] {
    let empty = String::new;
    match &row.found {
        Measurement::Missing(why) => {
            let mut cells = [const { String::new() }; COLUMNS];
            cells[0].clone_from(&row.what);
            cells[1] = format!("not measured: {why}");
            cells
        }
        Measurement::Figure(figure) => {
            let Figure { unit, summary, beside, .. } = figure;
            [
                row.what.clone(),
                quantity(summary.median, *unit),
                match summary.count {
                    1 => empty(),
                    _ => spread(summary.p10, summary.p90, *unit),
                },
                match summary.count {
                    1 => empty(),
                    _ => quantity(summary.p99, *unit),
                },
                summary.count.to_string(),
                beside.as_ref().map_or_else(empty, |beside| {
                    let ratio = &beside.ratio;
                    match summary.count {
                        1 => number(ratio.value),
                        _ => format!(
                            "{} ({} … {})",
                            number(ratio.value),
                            number(ratio.p10),
                            number(ratio.p90)
                        ),
                    }
                }),
                figure.target.map_or_else(empty, |target| goal(target, *unit, figure.verdict())),
            ]
        }
    }
}

fn goal(target: Target, unit: Unit, verdict: Option<Verdict>) -> String {
    let sign = match target.side {
        Side::AtMost => '≤',
        Side::AtLeast => '≥',
    };
    let bound = match target.of {
        Aspect::Ratio => number(target.bound),
        Aspect::Median => quantity(target.bound, unit),
        Aspect::P95 => format!("{} at p95", quantity(target.bound, unit)),
        Aspect::P99 => format!("{} at p99", quantity(target.bound, unit)),
    };
    let verdict = match verdict {
        Some(Verdict::Met) => "met",
        Some(Verdict::Missed) => "missed",
        None => "unknown",
    };
    format!("{sign} {bound}: {verdict}")
}

/// A number of two decimals, or of three digits where it is larger.
fn number(value: f64) -> String {
    match value.abs() {
        0.0..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// What a unit is shown in, by the size of what is shown.
fn scale(value: f64, unit: Unit) -> (f64, &'static str) {
    const STEPS: [(f64, &str); 3] = [(1_048_576.0, " MiB"), (1024.0, " KiB"), (1.0, " B")];
    match unit {
        Unit::Seconds if value.abs() >= 10.0 => (1.0, " s"),
        Unit::Seconds if value.abs() < 1e-3 => (1e-6, " µs"),
        Unit::Seconds => (1e-3, " ms"),
        Unit::Bytes => {
            let fits = STEPS.into_iter().find(|(step, _)| value.abs() >= *step);
            fits.unwrap_or(STEPS[2])
        }
        Unit::Count => (1.0, ""),
        Unit::Rate => (1.0, " /s"),
    }
}

fn quantity(value: f64, unit: Unit) -> String {
    let (step, name) = scale(value, unit);
    format!("{}{name}", digits(value / step, unit))
}

/// Both in the unit of the larger.
fn spread(low: f64, high: f64, unit: Unit) -> String {
    let (step, name) = scale(high, unit);
    format!("{} … {}{name}", digits(low / step, unit), digits(high / step, unit))
}

fn digits(value: f64, unit: Unit) -> String {
    match unit {
        // As good as whole: counts of things.
        Unit::Count if value.fract().abs() < 0.05 => format!("{value:.0}"),
        _ => number(value),
    }
}

/// Replaces what stands between a table's marks in a page.
///
/// # Errors
///
/// The id of the table whose marks the page does not have.
pub fn splice(page: &str, report: &Report) -> Result<String, &'static str> {
    let mut page = page.to_owned();
    for table in &report.tables {
        let begin = format!("<!-- figures: {} -->\n", table.id);
        let end = "<!-- end of figures -->";
        let from = page.find(&begin).ok_or(table.id)? + begin.len();
        let length = page[from..].find(end).ok_or(table.id)?;
        page.replace_range(from..from + length, &format!("\n{}\n", markdown(report, table)));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{SCHEMA, compare};

    fn report() -> Report {
        let mut rows = vec![
            Row::figure("docker run", Unit::Seconds, vec![0.300, 0.320, 0.400]),
            Row::figure("sandboxctl run", Unit::Seconds, vec![0.150, 0.144, 0.160]),
            Row::missing("runc run", "no runc here (apt install runc)"),
        ];
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(0.5)));
        Report {
            schema: SCHEMA,
            machine: Machine::made_up(),
            peers: Vec::new(),
            tables: vec![Table { id: "p1", title: "A run", rows }],
        }
    }

    #[test]
    fn a_table_shows_every_row_and_what_is_missing() {
        let text = aligned(&report().tables[0]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "  what            median  p10 … p90     p99     samples  ratio (p10 … p90)   target",
                "  docker run      320 ms  304 … 384 ms  398 ms  3",
                "  sandboxctl run  150 ms  145 … 158 ms  160 ms  3        0.47 (0.41 … 0.49)  ≤ 0.50: met",
                "  runc run        not measured: no runc here (apt install runc)",
            ]
        );
    }

    #[test]
    fn a_page_keeps_what_stands_around_the_figures() {
        let page = "Before.\n<!-- figures: p1 -->\nold\n<!-- end of figures -->\nAfter.\n";
        let once = splice(page, &report()).unwrap();
        assert!(once.starts_with("Before.\n<!-- figures: p1 -->\n\n| what |"), "{once}");
        assert!(once.ends_with(".\n\n<!-- end of figures -->\nAfter.\n"), "{once}");
        assert!(!once.contains("old"));
        assert_eq!(splice(&once, &report()).unwrap(), once);
    }

    #[test]
    fn a_page_without_a_place_for_a_table_names_it() {
        for page in ["", "<!-- figures: p1 -->\n", "<!-- end of figures -->"] {
            assert_eq!(splice(page, &report()), Err("p1"));
        }
    }

    #[test]
    fn quantities_have_three_digits_and_a_unit() {
        for (value, unit, expected) in [
            (0.344, Unit::Seconds, "344 ms"),
            (0.009_23, Unit::Seconds, "9.23 ms"),
            (0.000_055, Unit::Seconds, "55.0 µs"),
            (12.3, Unit::Seconds, "12.3 s"),
            (3_145_728.0, Unit::Bytes, "3.00 MiB"),
            (-2048.0, Unit::Bytes, "-2.00 KiB"),
            (0.0, Unit::Bytes, "0.00 B"),
            (17.0, Unit::Count, "17"),
            (0.5, Unit::Count, "0.50"),
            (175.2, Unit::Rate, "175 /s"),
        ] {
            assert_eq!(quantity(value, unit), expected);
        }
        assert_eq!(spread(0.9e3, 2048.0, Unit::Bytes), "0.88 … 2.00 KiB");
    }
}
