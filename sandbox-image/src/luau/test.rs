//! `test`: test cases of a script. Each is reported when it has ended; a failed one does not end the
//! script, and makes it fail at its end.

use std::collections::HashMap;
use std::time::Instant;

use sandbox_protocol::limits::{MAX_TEST_MESSAGE_BYTES, MAX_TEST_NAME_BYTES, cut_encoded};
use sandbox_protocol::message::{TestCase, TestStatus};

use super::context::{TestProgress, shown, split_position, texts_of};
use super::ffi::{Call, Kind, Raise, Results, Slot};
use super::json::is_name;
use super::options::optional_text;

/// Deepest nesting of tables that are compared.
const MAX_DEPTH: usize = 64;
/// How many bytes of a string a message shows.
const TEXT_SHOWN: usize = 120;
/// The suffix of a text that was cut.
const CUT: &str = "…";

/// Sets `test`.
pub(super) fn install(call: &mut Call<'_>) {
    let test = call.push_table(0, 4);
    call.set_function(test, c"case", case);
    call.set_function(test, c"equal", equal);
    call.set_function(test, c"fail", fail);
    call.set_function(test, c"skip", skip);
    call.set_global(c"test");
}

/// `test.case(name, fn)`: whether it did not fail.
fn case(call: &mut Call<'_>) -> Results {
    let (name, function) = (Slot::arg(1), Slot::arg(2));
    let Some(name) = call.string(name).map(|name| cut(name, MAX_TEST_NAME_BYTES)) else {
        return Err(Raise::expected(call, name, "case", "string"));
    };
    if call.type_name(function) != "function" {
        return Err(Raise::expected(call, function, "case", "function"));
    }
    let host = call.host();
    if !matches!(*host.test_case.borrow(), TestProgress::Idle) {
        return Err(Raise::Error("test.case cannot be called in a test case".to_owned()));
    }
    *host.test_case.borrow_mut() = TestProgress::Running;
    call.truncate(2);
    let since = Instant::now();
    let ended = call.call(0);
    let raised = call.top();
    let error = ended.is_err().then(|| call.describe_error(raised));
    let progress = host.test_case.take();
    // A case does not survive the end of the run: that is not its own failure.
    call.check_stop()?;
    let duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (status, message, line) = match (&error, progress) {
        (None, _) => (TestStatus::Passed, None, None),
        // Another error after a skip that was caught is a failure.
        (Some(error), TestProgress::Skipping(reason))
            if texts_of(error).any(|text| text == reason) =>
        {
            let reason = (!reason.is_empty()).then(|| cut(&reason, MAX_TEST_MESSAGE_BYTES));
            (TestStatus::Skipped, reason, None)
        }
        (Some(error), _) => {
            let line = split_position(error).map(|(line, _)| line);
            (TestStatus::Failed, Some(cut(error, MAX_TEST_MESSAGE_BYTES)), line)
        }
    };
    let case = TestCase { name, status, message, line, duration_ms };
    if !host.log.case(case) {
        return Err(Raise::Error("too many test cases".to_owned()));
    }
    // A limit ends the script, as it does outside of a case.
    if let Some(error) = &error
        && let Some(kind) = call.rule_of(error).filter(|kind| kind.is_limit())
    {
        let text = split_position(error).map_or(&error[..], |(_, rest)| rest);
        return Err(Raise::Rule(kind, String::from_utf8_lossy(text).into_owned()));
    }
    call.push_boolean(status != TestStatus::Failed);
    Ok(call.results(1))
}

/// `test.equal(actual, expected, message?)`: raises where they differ, also in tables.
fn equal(call: &mut Call<'_>) -> Results {
    if call.len() < 2 {
        return Err(Raise::missing(2, "equal", "value"));
    }
    let message = note(call, Slot::arg(3), "equal")?;
    let mut comparison = Comparison::default();
    let Some(what) = difference(call, Slot::arg(1), Slot::arg(2), &mut comparison)? else {
        return Ok(call.results(0));
    };
    let place = match comparison.path.is_empty() {
        true => String::new(),
        false => format!(" at {}", comparison.path.concat()),
    };
    let message = message.map(|message| format!("{message}: ")).unwrap_or_default();
    Err(Raise::Error(format!("{message}{what}{place}")))
}

/// `test.fail(message?)`.
fn fail(call: &mut Call<'_>) -> Results {
    let message = note(call, Slot::arg(1), "fail")?;
    Err(Raise::Error(message.unwrap_or_else(|| "failed".to_owned())))
}

/// `test.skip(reason?)`: ends the case.
fn skip(call: &mut Call<'_>) -> Results {
    let reason = note(call, Slot::arg(1), "skip")?.unwrap_or_default();
    let host = call.host();
    if matches!(*host.test_case.borrow(), TestProgress::Idle) {
        return Err(Raise::Error("test.skip is for a test case".to_owned()));
    }
    *host.test_case.borrow_mut() = TestProgress::Skipping(reason.clone().into_bytes());
    Err(Raise::Error(reason))
}

/// A message of the script, if it gives one.
fn note(call: &mut Call<'_>, slot: Slot, function: &str) -> Result<Option<String>, Raise> {
    let text = optional_text(call, slot, function)?;
    Ok(text.map(|text| cut(text, MAX_TEST_MESSAGE_BYTES)))
}

/// A comparison of two values, up to their first difference.
#[derive(Default)]
struct Comparison {
    /// Leads to the values that are compared, and in the end to the difference.
    path: Vec<String>,
    /// Tables that have been found equal, or will be unless a difference is found: each leads to
    /// another one of its class, and in the end to one that stands for all of them. So tables that
    /// are shared or cyclic are compared once, in memory for as many entries as there are tables.
    equal: HashMap<usize, usize>,
}

impl Comparison {
    /// The table that stands for all that equal `table`.
    fn class_of(&mut self, mut table: usize) -> usize {
        while let Some(&next) = self.equal.get(&table) {
            if let Some(&after) = self.equal.get(&next) {
                self.equal.insert(table, after);
            }
            table = next;
        }
        table
    }

    /// Counts two tables as equal. False if they have been already.
    fn unite(&mut self, one: usize, other: usize) -> bool {
        let (one, other) = (self.class_of(one), self.class_of(other));
        if one != other {
            self.equal.insert(one, other);
        }
        one != other
    }
}

/// How two values differ, if they do.
fn difference(
    call: &mut Call<'_>,
    actual: Slot,
    expected: Slot,
    comparison: &mut Comparison,
) -> Result<Option<String>, Raise> {
    if call.is_same(actual, expected) {
        return Ok(None);
    }
    if (call.kind(actual), call.kind(expected)) != (Kind::Table, Kind::Table) {
        let (actual, expected) = (described(call, actual), described(call, expected));
        return Ok(Some(format!("expected {expected}, got {actual}")));
    }
    if !comparison.unite(call.identity(actual), call.identity(expected)) {
        return Ok(None);
    }
    if comparison.path.len() == MAX_DEPTH {
        return Err(Raise::Error(format!("tables are nested deeper than {MAX_DEPTH}")));
    }
    call.check_stop()?;
    call.reserve(8)?;
    let top = call.len();
    let (key, value) = (Slot::arg(top + 1), Slot::arg(top + 2));
    let mut position = 0;
    while let Some(next) = call.next(expected, position) {
        position = next;
        call.push(key);
        call.push_value_of(actual);
        let found = call.top();
        let step = step(call, key);
        comparison.path.push(step);
        if let Some(what) = difference(call, found, value, comparison)? {
            return Ok(Some(what));
        }
        comparison.path.pop();
        call.truncate(top);
    }
    position = 0;
    while let Some(next) = call.next(actual, position) {
        position = next;
        call.push(key);
        call.push_value_of(expected);
        let missing = call.top();
        if call.is_nil(missing) {
            let step = step(call, key);
            comparison.path.push(step);
            return Ok(Some(format!("expected nil, got {}", described(call, value))));
        }
        call.truncate(top);
    }
    Ok(None)
}

/// A key in a path: `.name`, `[1]`.
fn step(call: &mut Call<'_>, key: Slot) -> String {
    match call.string(key) {
        Some(text) if is_name(text) => format!(".{}", cut(text, TEXT_SHOWN)),
        _ => format!("[{}]", described(call, key)),
    }
}

/// A value as messages show it. Runs no code of the script.
fn described(call: &mut Call<'_>, slot: Slot) -> String {
    match call.kind(slot) {
        Kind::None | Kind::Nil => "nil".to_owned(),
        Kind::Boolean => call.is_true(slot).to_string(),
        Kind::Null => "json.null".to_owned(),
        Kind::String => {
            let text = call.string(slot).unwrap_or_default();
            format!("{:?}", cut(text, TEXT_SHOWN))
        }
        Kind::Number => {
            // A copy: the number itself stays one.
            call.push(slot);
            let top = call.top();
            let text = call.text(top).map(|text| String::from_utf8_lossy(text).into_owned());
            call.truncate(top.number() - 1);
            text.unwrap_or_default()
        }
        Kind::Table => "a table".to_owned(),
        Kind::Other => format!("a {}", call.type_name(slot)),
    }
}

/// Text of at most this many encoded bytes.
fn cut(text: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(shown(text));
    let fits = cut_encoded(&text, max);
    if fits.len() == text.len() {
        return text.into_owned();
    }
    let mut head = cut_encoded(&text, max - CUT.len()).to_owned();
    head.push_str(CUT);
    head
}

#[cfg(test)]
mod tests {
    use super::Comparison;

    #[test]
    fn comparison_remembers_tables_and_not_their_pairs() {
        let mut comparison = Comparison::default();
        for (one, other) in (0..100).flat_map(|one| (100..200).map(move |other| (one, other))) {
            comparison.unite(one, other);
            assert!(!comparison.unite(other, one));
        }
        assert_eq!(comparison.equal.len(), 199);
        assert!(!comparison.unite(0, 50) && comparison.unite(0, 200));
    }
}
