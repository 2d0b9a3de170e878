//! The lanes are whole: `tests/lanes.toml` has a row for each module with tests, and no other row.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fixture::{files_below, workspace};

const TABLE: &str = include_str!("../lanes.toml");
/// The tables whose rows are modules.
const LANES: [&str; 4] = ["both", "docker", "embedded", "embedded-only"];

fn table() -> BTreeMap<String, Value> {
    toml::from_str(TABLE).unwrap()
}

/// The modules of rows, and the folders that each is about.
fn rows() -> Vec<(String, Vec<String>)> {
    let mut table = table();
    let lanes = LANES.iter().map(|lane| table.remove(*lane).unwrap());
    lanes.flat_map(|lane| serde_json::from_value::<BTreeMap<_, _>>(lane).unwrap()).collect()
}

/// The tests by their names, as the test program has them.
fn tests() -> BTreeSet<String> {
    let root = workspace().join("tests/e2e");
    let mut tests: BTreeSet<String> =
        crate::docs::PAGES.iter().map(|page| format!("docs::{page}")).collect();
    for file in files_below(&root) {
        let module = file.strip_prefix(&root).unwrap().with_extension("");
        let module = module.to_str().unwrap().replace('/', "::");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            if is_test && let Some((_, function)) = line.split_once("fn ") {
                let (name, _) = function.split_once('(').unwrap();
                tests.insert(format!("{module}::{name}"));
                is_test = false;
            }
        }
    }
    tests
}

#[test]
fn every_module_has_a_row_and_every_row_has_tests() {
    let (rows, tests) = (rows(), tests());
    let is_of =
        |test: &str, row: &str| test.strip_prefix(row).is_some_and(|it| it.starts_with("::"));
    for test in &tests {
        // A page of the docs may have a row of its own.
        let its: Vec<_> = rows.iter().filter(|(row, _)| is_of(test, row)).collect();
        assert_eq!(its.len(), 1, "{test} is in one row of tests/lanes.toml, not in {its:?}");
    }
    for (row, folders) in &rows {
        let has_tests = tests.iter().any(|test| is_of(test, row) || test == row);
        assert!(has_tests, "tests/lanes.toml: {row} has no tests");
        for folder in folders {
            assert!(workspace().join(folder).exists(), "tests/lanes.toml: no {folder}");
        }
    }
    assert!(tests.len() > 500, "only {} tests were found", tests.len());
}

#[test]
fn tests_that_have_lanes_of_their_own_exist() {
    let mut table = table();
    let mut names = |lane: &str, list: &str| -> BTreeSet<String> {
        serde_json::from_value(table.get_mut(lane).unwrap()[list].take()).unwrap()
    };
    let nightly = ["both", "docker", "embedded"].map(|engine| names("nightly", engine));
    let nightly: BTreeSet<_> = nightly.into_iter().flatten().collect();
    let nightly = &nightly | &names("engines", "except");
    let rootless = names("rootless", "tests");
    let walks = &names("smoke", "tests") | &rootless;
    let named = &(&walks | &nightly) | &not_rootless();
    let missing: Vec<_> = named.difference(&tests()).cloned().collect();
    assert!(missing.is_empty(), "tests/lanes.toml: no tests {missing:?}");
    let both: Vec<_> = rootless.intersection(&not_rootless()).cloned().collect();
    assert!(both.is_empty(), "tests/lanes.toml: {both:?} both run and do not run without root");
}

/// The tests of the lane `both` that need root, each below one reason.
fn not_rootless() -> BTreeSet<String> {
    let except = table().remove("rootless").unwrap()["except"].take();
    let except: BTreeMap<String, Vec<String>> = serde_json::from_value(except).unwrap();
    let mut tests = BTreeSet::new();
    for (reason, excepted) in except {
        assert!(!excepted.is_empty(), "tests/lanes.toml: no test needs root for: {reason}");
        for test in excepted {
            assert!(tests.insert(test.clone()), "tests/lanes.toml: {test} has two reasons");
        }
    }
    tests
}

#[test]
fn tests_that_need_root_are_of_the_lane_that_runs_without_it() {
    let both: BTreeMap<String, Vec<String>> =
        serde_json::from_value(table().remove("both").unwrap()).unwrap();
    for test in not_rootless() {
        let is_of_both = both.keys().any(|row| test.starts_with(&format!("{row}::")));
        assert!(is_of_both, "tests/lanes.toml: no pool without root has {test}");
    }
}
