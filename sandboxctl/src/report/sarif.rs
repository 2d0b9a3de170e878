//! `sarif`: SARIF 2.1.0, as code scanning reads it: an error is a result with file, line and column.

use std::collections::BTreeMap;

use sandbox_api::Status;
use serde_json::{Value, json};

use super::Entry;
use crate::render::{self, escaped_text};

/// The results as SARIF.
///
/// # Errors
///
/// If it cannot be encoded.
pub fn sarif(entries: &[Entry]) -> Result<String, serde_json::Error> {
    let findings: Vec<_> = entries.iter().flat_map(findings).collect();
    let rules: BTreeMap<&str, &str> =
        findings.iter().map(|it| (it.rule.as_str(), it.rule.as_str())).collect();
    let rules: Vec<_> = rules.keys().map(|id| json!({ "id": id, "name": id })).collect();
    let results: Vec<_> = findings.iter().map(Finding::json).collect();
    let is_ok = !entries.iter().any(Entry::failed);
    let exit_code = entries.iter().map(|it| it.exit_code).find(|&code| code != 0).unwrap_or(0);
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "sandboxctl",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "columnKind": "unicodeCodePoints",
            "invocations": [{ "executionSuccessful": is_ok, "exitCode": exit_code }],
            "results": results,
        }],
    });
    Ok(serde_json::to_string_pretty(&log)? + "\n")
}

/// An error, and where it is.
struct Finding {
    rule: String,
    message: String,
    /// The script.
    file: Option<String>,
    region: Option<Value>,
}

fn findings(entry: &Entry) -> Vec<Finding> {
    let tests = entry.failed_tests().map(|test| {
        let message = format!("{}: {}", test.name, test.message.as_deref().unwrap_or("failed"));
        finding(entry, "test".to_owned(), message, test.line)
    });
    let tests: Vec<_> = tests.collect();
    if !tests.is_empty() && entry.document.status() == Status::ScriptError {
        return tests;
    }
    let Some(message) = entry.message() else { return tests };
    let error = entry.document.execution().error.as_ref();
    let rule = error.map_or(entry.document.status().as_str(), |it| it.kind.as_str()).to_owned();
    let own = finding(entry, rule, message, error.and_then(|error| error.line));
    tests.into_iter().chain([own]).collect()
}

fn finding(entry: &Entry, rule: String, message: String, line: Option<u32>) -> Finding {
    let source = entry.subject.source.as_deref();
    let region = line.filter(|&line| line > 0).map(|line| {
        let columns = source.and_then(|source| render::columns(source, line, &message));
        match columns {
            Some((start, end)) => json!({
                "startLine": line, "startColumn": start, "endColumn": end
            }),
            None => json!({ "startLine": line }),
        }
    });
    let file = source.map(|_| entry.subject.name.clone());
    Finding { rule, message, file, region }
}

impl Finding {
    fn json(&self) -> Value {
        // `[text](target)` would be a link.
        let text = escaped_text(&self.message).replace("](", "] (");
        let mut result = json!({
            "ruleId": self.rule,
            "level": "error",
            "message": { "text": text },
        });
        if let Some(file) = &self.file {
            let mut location = json!({ "artifactLocation": { "uri": uri(file) } });
            if let Some(region) = &self.region {
                location["region"] = region.clone();
            }
            result["locations"] = json!([{ "physicalLocation": location }]);
        }
        result
    }
}

/// A path as a reference in a URI: relative paths stay relative.
fn uri(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    let mut uri = String::new();
    if path.starts_with('/') {
        uri.push_str("file://");
    }
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{all_entries, failed_script};

    #[test]
    fn every_outcome_is_valid_by_the_published_schema() {
        let schema = include_str!("../../../tests/schemas/sarif-2.1.0.json");
        let mut schema: Value = serde_json::from_str(schema).unwrap();
        // Not a regular expression of ECMA-262: it has a bracket too many.
        for of in ["run", "toolComponent"] {
            let language = format!("/definitions/{of}/properties/language");
            let language = schema.pointer_mut(&language).unwrap();
            language.as_object_mut().unwrap().remove("pattern").unwrap();
        }
        let validator = jsonschema::validator_for(&schema).unwrap();
        for entries in [all_entries(), Vec::new()] {
            let log: Value = serde_json::from_str(&sarif(&entries).unwrap()).unwrap();
            let errors: Vec<_> = validator.iter_errors(&log).map(|it| it.to_string()).collect();
            assert!(errors.is_empty(), "{errors:#?}\n{log:#}");
        }
        // The schema is in force.
        assert!(!validator.is_valid(&json!({ "version": "2.1.0" })));
    }

    #[test]
    fn error_of_a_script_has_file_line_and_column() {
        let log: Value = serde_json::from_str(&sarif(&[failed_script()]).unwrap()).unwrap();
        let result = &log["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], "runtime");
        let location = &result["locations"][0]["physicalLocation"];
        assert_eq!(location["artifactLocation"]["uri"], "tests/bad%20one.luau");
        let region = json!({ "startLine": 2, "startColumn": 3, "endColumn": 17 });
        assert_eq!(location["region"], region);
    }

    #[test]
    fn path_is_a_reference() {
        assert_eq!(uri("./a b%/é.luau"), "a%20b%25/%C3%A9.luau");
        assert_eq!(uri("/a:b"), "file:///a%3Ab");
    }
}
