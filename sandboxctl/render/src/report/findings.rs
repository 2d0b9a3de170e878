//! What failed, with positions: for the formats that show errors in a source.

use super::entry::Entry;
use crate::columns;

/// An error, and where it is.
#[derive(Debug)]
pub struct Finding {
    /// The error's kind, or `test`.
    pub rule: String,
    /// What is wrong.
    pub message: String,
    /// The script, if it is a file.
    pub file: Option<String>,
    /// Its line, from 1.
    pub line: Option<u32>,
    /// The columns in that line, from 1 and without the second, in characters.
    pub columns: Option<(usize, usize)>,
}

impl Entry {
    /// What failed: the test cases, or else the script or the command.
    pub fn findings(&self) -> Vec<Finding> {
        let tests = self.failed_tests().map(|test| {
            let message = format!("{}: {}", test.name, test.message.as_deref().unwrap_or("failed"));
            self.finding("test".to_owned(), message, test.line)
        });
        let own = self.problem().filter(|_| !self.is_explained_by_tests()).map(|problem| {
            let line = problem.error.and_then(|error| error.line);
            let message = match &*self.last_lines {
                "" => problem.message.into_owned(),
                lines => format!("{}\n{lines}", problem.message),
            };
            self.finding(problem.rule.to_owned(), message, line)
        });
        tests.chain(own).collect()
    }

    fn finding(&self, rule: String, message: String, line: Option<u32>) -> Finding {
        let source = self.subject.source.as_deref();
        let line = line.filter(|&line| line > 0);
        let columns = source.zip(line).and_then(|(it, line)| columns(it, line, &message));
        let file = self.subject.is_file.then(|| self.subject.name.clone());
        Finding { rule, message, file, line, columns }
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::samples::{failed_script, incomplete_scripts};

    #[test]
    fn artifacts_and_receipt_that_cannot_be_written_have_the_kind_of_their_error() {
        for entry in incomplete_scripts() {
            let findings = entry.findings();
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            assert_eq!((&*finding.rule, &*finding.message), ("disk_full", "no space"));
        }
    }

    #[test]
    fn script_from_an_argument_has_a_line_and_no_file() {
        let mut entry = failed_script();
        entry.subject.is_file = false;
        let findings = entry.findings();
        assert_eq!((&findings[0].file, findings[0].line), (&None, Some(2)));
    }
}
