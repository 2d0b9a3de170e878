//! The scripts in `examples/`, each run as its first lines say.

use serde_json::{Value, json};

use crate::fixture::{Fixture, workspace};

fn example(place: &Fixture, name: &str, args: &[&str]) -> Value {
    let script = workspace().join("examples").join(name);
    let mut all = vec!["run", "--json"];
    all.extend(args);
    all.push(script.to_str().unwrap());
    place.document(&place.sandboxctl(all))
}

fn data(name: &str) -> String {
    workspace().join("examples/data").join(name).to_str().unwrap().to_owned()
}

#[test]
fn report_makes_a_csv_and_a_summary() {
    let place = Fixture::new();
    let document = example(&place, "report.luau", &["--arg", "currency=CHF"]);
    assert_eq!(document["status"], "ok", "{document:#}");
    assert_eq!(document["result"]["rows"], 48);
    assert_eq!(document["result"]["currency"], "CHF");
    assert_eq!(place.read("sandbox-files/sales.csv").lines().count(), 49);
    let summary: Value = serde_json::from_str(&place.read("sandbox-files/summary.json")).unwrap();
    assert_eq!(summary, document["result"]);
    let total: f64 = document["result"]["by_region"]
        .as_object()
        .unwrap()
        .values()
        .map(|sum| sum.as_f64().unwrap())
        .sum();
    assert_eq!(document["result"]["total"].as_f64().unwrap(), total);
}

#[test]
fn access_log_is_analysed_line_by_line() {
    let place = Fixture::new();
    let log = std::fs::read_to_string(data("access.log")).unwrap();
    let document = example(&place, "access-log.luau", &["--in", &data("access.log")]);
    assert_eq!(document["status"], "ok", "{document:#}");
    let well_formed = log.lines().filter(|line| line.contains('"')).count();
    assert_eq!(document["result"]["requests"], well_formed);
    assert_eq!(document["result"]["malformed"], log.lines().count() - well_formed);
    assert_eq!(place.read("sandbox-files/top-paths.txt").lines().count(), 3);
}

#[test]
fn letters_are_filled_in() {
    let place = Fixture::new();
    let document = example(
        &place,
        "letters.luau",
        &["--in", &data("letter.txt"), "--in", &data("guests.csv")],
    );
    assert_eq!(
        document["result"],
        json!({"letters": ["letters/1.txt", "letters/2.txt", "letters/3.txt"]}),
        "{document:#}"
    );
    let letter = place.read("sandbox-files/letters/3.txt");
    assert!(letter.starts_with("Dear Zoë,\n\nthe table for one is yours on Sunday."), "{letter}");
    assert!(!letter.contains("{{"), "{letter}");
}
