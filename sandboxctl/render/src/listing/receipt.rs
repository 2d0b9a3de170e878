//! What a receipt says.

use sandbox_api::Status;
use sandbox_api::receipt::{
    BuildType, Provenance, Receipt, RecordedLine, RecordedOutcome, RunMetadata, TestStatement,
};
use serde_json::Value;

use crate::table;

/// How a run ended, as its receipt says.
pub fn ending(RecordedOutcome { status, exit_code }: RecordedOutcome) -> String {
    let status = status.map_or("an unknown status", Status::as_str);
    exit_code.map_or_else(|| status.to_owned(), |code| format!("{status}, exit code {code}"))
}

/// What a receipt and the statement of its tests say, a line for each fact. `keys` are the ids that its
/// signatures name.
pub fn receipt<'a>(
    receipt: &Receipt,
    tests: Option<&TestStatement>,
    keys: impl IntoIterator<Item = &'a str>,
) -> String {
    let Receipt { subject, predicate, .. } = receipt;
    let Provenance { build_definition: definition, run_details: details } = predicate;
    let parameters = &definition.external_parameters;
    let mut facts = Vec::new();
    let hint = |key: &str| ("signed by", format!("{key} (a hint, not signed)"));
    facts.extend(keys.into_iter().map(hint));
    if facts.is_empty() {
        facts.push(("signed by", "no key".to_owned()));
    }
    let words = parameters.command.as_ref().map(|command| match &command.line {
        RecordedLine::Shell(line) => format!("sh -c {}", quoted(line)),
        RecordedLine::Argv(words) => {
            words.iter().map(|it| quoted(it)).collect::<Vec<_>>().join(" ")
        }
    });
    let what = match definition.build_type {
        BuildType::Script => "a script".to_owned(),
        BuildType::Command => words.unwrap_or_else(|| "a command".to_owned()),
    };
    facts.push(("ran", what));
    facts.push(("ended", ending(predicate.outcome())));
    let RunMetadata { invocation_id, started_on, finished_on } = &details.metadata;
    facts.push(("when", format!("{started_on} to {finished_on}")));
    facts.push(("id", invocation_id.clone()));
    let engine = &definition.internal_parameters.engine;
    facts.push(("engine", format!("{}, Linux {}", engine.version, engine.kernel)));
    for (name, version) in &details.builder.version {
        facts.push(("by", format!("{name} {version}")));
    }
    let allowed = parameters.sandbox.allow.rules();
    facts.extend(allowed.iter().map(|rule| ("allowed", rule.to_string())));
    facts.extend(parameters.seed.map(|seed| ("seed", seed.to_string())));
    facts.extend(parameters.now.iter().map(|now| ("now", now.clone())));
    for it in &definition.resolved_dependencies {
        let reference = it.annotations.get("reference").and_then(Value::as_str);
        let reference = reference.map_or_else(String::new, |it| format!(" ({it})"));
        facts.push(("made of", format!("{}{reference} sha256:{}", it.name, it.digest.sha256)));
    }
    for it in subject {
        facts.push(("made", format!("{} sha256:{}", it.name, it.digest.sha256)));
    }
    if let Some(TestStatement { predicate: it, .. }) = tests {
        let (passed, failed) = (it.passed_tests.len(), it.failed_tests.len());
        facts.push(("tests", format!("{passed} passed, {failed} failed")));
    }
    table::facts(10, facts)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&it);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
