//! `sarif`: SARIF 2.1.0, as code scanning reads it: an error is a result with file, line and column.

use std::collections::BTreeSet;

use sandbox_api::encode_percent;
use serde_json::{Value, json};

use super::entry::Entry;
use super::findings::Finding;
use crate::escaped_text;

/// The results as SARIF.
///
/// # Errors
///
/// If it cannot be encoded.
pub fn sarif(entries: &[Entry]) -> Result<String, serde_json::Error> {
    let findings: Vec<_> = entries.iter().flat_map(Entry::findings).collect();
    let rules: BTreeSet<_> = findings.iter().map(|it| it.rule.as_str()).collect();
    let rules: Vec<_> = rules.iter().map(|id| json!({ "id": id, "name": id })).collect();
    let results: Vec<_> = findings.iter().map(result).collect();
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

/// A finding as a result.
fn result(finding: &Finding) -> Value {
    let text = plain(&finding.message);
    let mut result = json!({
        "ruleId": finding.rule,
        "level": "error",
        "message": { "text": text },
    });
    if let Some(file) = &finding.file {
        let mut location = json!({ "artifactLocation": { "uri": uri(file) } });
        location["region"] = match (finding.line, finding.columns) {
            (Some(line), Some((start, end))) => json!({
                "startLine": line, "startColumn": start, "endColumn": end
            }),
            (Some(line), None) => json!({ "startLine": line }),
            (None, _) => json!({ "startLine": 1 }),
        };
        result["locations"] = json!([{ "physicalLocation": location }]);
    }
    result
}

/// Text without what a message has a meaning for: `[text](target)` would be a link, and `{0}` the
/// place of an argument.
fn plain(text: &str) -> String {
    let escaped = escaped_text(text).replace("](", "] (");
    let mut plain = String::with_capacity(escaped.len());
    let mut characters = escaped.chars().peekable();
    while let Some(character) = characters.next() {
        plain.push(character);
        if character == '{' && characters.peek().is_some_and(char::is_ascii_digit) {
            plain.push(' ');
        }
    }
    plain
}

/// A path as a reference in a URI: relative paths stay relative.
fn uri(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    let scheme = if path.starts_with('/') { "file://" } else { "" };
    format!("{scheme}{}", encode_percent(path.as_bytes(), b"/-._~"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::samples::{all_entries, failed_script};

    #[test]
    fn every_outcome_is_valid_by_the_published_schema() {
        let schema = include_str!("../../../../tests/schemas/sarif-2.1.0.json");
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
    fn guest_text_is_never_a_link_or_placeholder() {
        assert_eq!(plain("[a](b) {0} {{12}} { x = {} }"), "[a] (b) { 0} {{ 12}} { x = {} }");
    }

    #[test]
    fn path_is_a_reference() {
        assert_eq!(uri("./a b%/é.luau"), "a%20b%25/%C3%A9.luau");
        assert_eq!(uri("/a:b"), "file:///a%3Ab");
    }
}
