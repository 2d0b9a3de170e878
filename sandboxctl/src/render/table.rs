//! Tables, sizes and ages.

use std::time::Duration;

/// Rows below their headings, in columns as wide as their content.
#[must_use]
pub fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[&str; N]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    };
    let mut text = line(&headings);
    for row in rows {
        text.push_str(&line(&std::array::from_fn(|column| row[column].as_str())));
    }
    text
}

/// A human-readable size: `1.2 KiB`.
#[must_use]
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
#[must_use]
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["é".to_owned(), "running".to_owned()], ["longer".to_owned(), String::new()]];
        assert_eq!(table(["ID", "STATE"], &rows), "ID      STATE\né       running\nlonger\n");
        assert_eq!(table(["ID"], &[]), "ID\n");
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
