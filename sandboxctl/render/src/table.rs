//! Tables, facts, counts, sizes and ages.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::escape::escaped_line;

/// The narrowest that a column is made so that a table fits.
const NARROW: usize = 8;

/// Rows below their headings, in columns as wide as their content. Where they are wider than
/// `fit` together, the widest columns are cut.
#[must_use]
pub fn table<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    fit: Option<usize>,
) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let mut widths: [usize; N] = std::array::from_fn(width);
    // Between two columns are two spaces.
    let fit = fit.map_or(usize::MAX, |fit| fit.saturating_sub(2 * N.saturating_sub(1)));
    while widths.iter().sum::<usize>() > fit {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROW) else {
            break;
        };
        *widest -= 1;
    }
    let line = |cells: &[&str; N]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            line.push_str(&format!("{:width$}  ", cut(cell, width)));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    };
    let mut text = line(&headings);
    for row in &rows {
        text.push_str(&line(&std::array::from_fn(|column| row[column].as_str())));
    }
    text
}

/// The text in at most `width` characters.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    match text.chars().count() > width {
        false => Cow::Borrowed(text),
        true => Cow::Owned(text.chars().take(width.saturating_sub(1)).chain(['…']).collect()),
    }
}

/// Text of others as a cell of a table: on one line, and a dash where there is none.
pub fn cell(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| escaped_line(text).into_owned())
}

/// The word of a value that is one in JSON.
pub fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A line for each fact: its name, in a column of this width, and what it is.
pub fn facts<'a>(width: usize, facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let line = |(name, fact): (&str, String)| format!("{name:<width$} {}\n", escaped_line(&fact));
    facts.into_iter().map(line).collect()
}

/// How many there are: `1 file`, `3 files`.
pub fn count(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// A human-readable size: `1.2 KiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal place is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 and more would be shown as 1024.0 of the smaller unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A human-readable age, in its largest unit: `3h`.
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

/// A human-readable time that is left, to the nearest of its largest unit: `2h`, right after two hours were given.
pub fn time_left(left: Duration) -> String {
    let seconds = left.as_secs() + u64::from(left.subsec_millis() >= 500);
    let unit = match seconds {
        0..60 => 1,
        60..3600 => 60,
        3600..86400 => 3600,
        _ => 86400,
    };
    age(Duration::from_secs(seconds + unit / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_left_is_rounded_and_an_age_is_not() {
        for (seconds, left, gone) in [
            (59, "59s", "59s"),
            (89, "1m", "1m"),
            (91, "2m", "1m"),
            (3599, "1h", "59m"),
            (7199, "2h", "1h"),
            (86_399, "1d", "23h"),
            (3 * 86_400 - 1, "3d", "2d"),
        ] {
            let time = Duration::from_secs(seconds);
            assert_eq!((&*time_left(time), &*age(time)), (left, gone));
        }
        assert_eq!(time_left(Duration::from_millis(7_199_600)), "2h");
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["é".to_owned(), "running".to_owned()], ["longer".to_owned(), String::new()]];
        assert_eq!(table(["ID", "STATE"], rows, None), "ID      STATE\né       running\nlonger\n");
        assert_eq!(table(["ID"], [], None), "ID\n");
    }

    #[test]
    fn widest_columns_are_cut_where_the_terminal_is_narrow() {
        let rows = [["da2442acca66".to_owned(), "/a/very/long/path".to_owned()]];
        assert_eq!(
            table(["ID", "PATH"], rows.clone(), Some(24)),
            "ID           PATH\nda2442acca…  /a/very/lo…\n"
        );
        let narrow = table(["ID", "PATH"], rows, Some(1));
        assert_eq!(narrow, "ID        PATH\nda2442a…  /a/very…\n");
    }

    #[test]
    fn sizes_and_ages_have_one_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (52_428_800, "50.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (90_000, "1d")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
