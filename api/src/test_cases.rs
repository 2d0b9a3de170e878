//! Test cases of a script.

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{ScriptError, TestCase, TestStatus};

use crate::outcome::failure;

/// The error of a script that returned although test cases have failed; `None` if none has.
pub fn test_failure(cases: &[TestCase]) -> Option<ScriptError> {
    let mut failed = cases.iter().filter(|case| case.status == TestStatus::Failed);
    let first = failed.next()?;
    let count = failed.count() + 1;
    let all = if cases.len() == 1 { "test case" } else { "test cases" };
    let message = format!("{count} of {} {all} failed: {}", cases.len(), first.name);
    let message = if count > 1 { format!("{message}, …") } else { message };
    Some(ScriptError { line: first.line, ..failure(ErrorKind::Runtime, message) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_cases_are_counted_and_the_first_is_named() {
        let case = |name: &str, status| TestCase {
            name: name.to_owned(),
            status,
            message: None,
            line: Some(7),
            duration_ms: 0,
        };
        let (passed, failed) = (case("a", TestStatus::Passed), case("b", TestStatus::Failed));
        let skipped = case("c", TestStatus::Skipped);
        assert_eq!(test_failure(&[passed.clone(), skipped.clone()]), None);
        let summary = |cases: &[&TestCase]| {
            let cases: Vec<_> = cases.iter().map(|&case| case.clone()).collect();
            let error = test_failure(&cases).unwrap();
            (error.message, error.line)
        };
        assert_eq!(summary(&[&failed]), ("1 of 1 test case failed: b".to_owned(), Some(7)));
        let all = [&passed, &failed, &skipped, &failed];
        assert_eq!(summary(&all), ("2 of 4 test cases failed: b, …".to_owned(), Some(7)));
    }
}
