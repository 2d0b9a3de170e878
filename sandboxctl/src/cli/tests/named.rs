//! Follows what messages and hints recommend: a command line is read as it is written, with an example
//! for each placeholder, a flag takes the value that is named with it, and a setting, a variable, a
//! member of a request and an endpoint exist.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;
use sandbox_api::LimitKey;
use serde_json::Value;

use crate::cli::Cli;
use crate::cli::parse::command;
use crate::config::{Key, OTHER_VARIABLES};

/// The folders whose messages people read.
const FOLDERS: &[&str] =
    &["api/src", "controller", "env/src", "sandbox-image/src", "server", "sandboxctl"];
/// Files in which flags are those of other programs, or of the build.
const OTHERS: &[&str] = &["build.rs", "guess.rs", "page.rs"];
/// Flags of other programs that messages and examples have.
const OF_OTHER_PROGRAMS: &[&str] =
    &["--bind", "--git", "--path", "--platform", "--privileged", "--scope", "--sparse", "--year"];
/// The sections of settings.
const SECTIONS: &[&str] = &[
    "filesystem", "limits", "network", "audit", "engine", "programs", "mcp", "pool", "io", "exec",
    "server", "tools",
];
/// Functions of scripts that are called like a section's settings.
const FUNCTIONS: &[&str] = &[
    "io.input", "io.lines", "io.open", "io.output", "io.popen", "io.read", "io.stdin", "io.stdout",
    "io.tmpfile", "io.write", "tools.NAME.TOOL", "tools.describe", "tools.search",
];
/// Variables that are no settings, and that the program itself sets.
const OWN_VARIABLES: &[&str] = &["SANDBOXCTL_COMPLETE"];
/// What a message of the service quotes beside names of its API and settings.
const OTHER_QUOTES: &[&str] = &["sandboxctl.process.1", "snake_case", "true"];
/// The folders whose messages a caller of the service reads.
const OF_THE_SERVICE: &[&str] = &["api/src", "server/http/src", "server/service/src"];
/// What is typed for a placeholder, which stands alone or after its flag.
const EXAMPLES: &[(&str, &str)] = &[
    ("--client NAME", "cursor"),
    ("--now TIME", "2026-01-01T00:00:00Z"),
    ("ADDRESS", "192.0.2.1"),
    ("CODE", "return 1"),
    ("COMMAND", "true"),
    ("DIR", "dir"),
    ("DST", "/dst"),
    ("FILE", "file"),
    ("GID", "1000"),
    ("GLOB", "*"),
    ("HOST", "example.org"),
    ("ID", "7f3c9a1be2d40586"),
    ("IMAGE", "debian:13"),
    ("LINE", "true"),
    ("N", "16"),
    ("NAME", "name"),
    ("NUMBER", "16"),
    ("PATH", "path"),
    ("PORT", "80"),
    ("SIZE", "64MiB"),
    ("SOURCE", "env:VARIABLE"),
    ("SRC", "./src"),
    ("TIME", "30s"),
    ("UID", "1000"),
    ("URL", "http://127.0.0.1:8470"),
    ("WHEN", "never"),
    ("{process}", "3"),
    ("{server}", "http://127.0.0.1:8470"),
];

/// The sources without tests and comments, each with its path.
fn sources() -> Vec<(PathBuf, String)> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders: Vec<_> = FOLDERS.iter().map(|folder| workspace.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let is_test =
                    ["tests", "testing", "examples", "snapshots", "target"].contains(&name);
                folders.extend((!is_test).then_some(path));
            } else if name.ends_with(".rs")
                && !["tests.rs", "testing.rs", "fixture.rs"].contains(&name)
                && !OTHERS.contains(&name)
            {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, without_tests_and_comments(&text)));
            }
        }
    }
    found
}

fn without_tests_and_comments(text: &str) -> String {
    let is_of_tests = |at: &usize| {
        let next = text[*at..].lines().nth(1);
        next.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    let mut tests = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
    let code = &text[..tests.find(is_of_tests).unwrap_or(text.len())];
    let mut kept = String::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        // A string may go on in the next line.
        if kept.ends_with('\\') {
            kept.pop();
            kept.push_str(line.trim_start());
        } else {
            kept.push('\n');
            kept.push_str(line);
        }
    }
    kept
}

fn flags_of(command: &Command) -> BTreeSet<String> {
    let long = command.get_arguments().flat_map(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases)
    });
    long.map(|name| format!("--{name}"))
        .chain(["--help".to_owned(), "--version".to_owned()])
        .collect()
}

fn all_flags(command: &Command) -> BTreeSet<String> {
    let below = command.get_subcommands().flat_map(all_flags);
    below.chain(flags_of(command)).collect()
}

/// The words of a text that begin so, up to what ends a name, each with what follows.
fn words<'a>(text: &'a str, begin: &str) -> Vec<(&'a str, &'a str)> {
    let found = text.match_indices(begin).filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let is_first = before.is_none_or(|it| !it.is_ascii_alphanumeric() && !"-_./".contains(it));
        let rest = &text[at..];
        let is_inside = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let end = rest.find(|it| !is_inside(it)).unwrap_or(rest.len());
        is_first.then(|| (rest[..end].trim_end_matches(['.', '-']), &rest[end..]))
    });
    found.collect()
}

/// Whether a word that begins with two dashes is a flag.
fn is_flag(word: &str) -> bool {
    word.get(2..).is_some_and(|name| name.starts_with(|it: char| it.is_ascii_lowercase()))
}

#[test]
fn flags_that_messages_name_are_flags() {
    let flags = all_flags(&command());
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for (word, _) in words(&text, "--") {
            if word.len() > 3
                && is_flag(word)
                && !flags.contains(word)
                && !OF_OTHER_PROGRAMS.contains(&word)
            {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The string literals of a source, as the program has them.
fn literals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        rest = after;
        let is_char = before.ends_with("'\\") || before.ends_with('\'') && after.starts_with('\'');
        if is_char {
            continue;
        }
        let name = before.trim_end_matches('#');
        if name.ends_with('r') {
            let end = format!("\"{}", &before[name.len()..]);
            let (literal, after) = after.split_once(&end).unwrap_or((after, ""));
            found.push(literal.to_owned());
            rest = after;
            continue;
        }
        let mut literal = String::new();
        let mut chars = after.chars();
        loop {
            match chars.next() {
                Some('"') | None => break,
                Some('\\') => {
                    literal.extend(chars.next().map(|it| if it == 'n' { '\n' } else { it }))
                }
                Some(char) => literal.push(char),
            }
        }
        found.push(literal);
        rest = chars.as_str();
    }
    found
}

/// A word of a message as someone types it who follows it, after a flag or another word.
fn typed(before: &str, word: &str) -> String {
    let mut typed = String::new();
    let mut rest = word.trim_end_matches("...");
    while let Some(first) = rest.chars().next() {
        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let end = match first {
            // Something that may be left out.
            '[' => rest.find(']').map(|at| at + 1),
            '{' => {
                let end = rest[1..].find(|it| !is_name(it)).map(|at| at + 1);
                end.filter(|end| rest[*end..].starts_with('}')).map(|end| end + 1)
            }
            'A'..='Z' => rest.find(|it| !is_name(it)).or(Some(rest.len())),
            _ => None,
        };
        let part;
        (part, rest) = rest.split_at(end.unwrap_or(first.len_utf8()));
        let of = |name: &str| EXAMPLES.iter().find(|(it, _)| *it == name);
        match (first, end) {
            ('[', Some(_)) | ('\u{2026}', _) => {}
            // What the program writes there.
            ('{', Some(_)) => typed.push_str(of(part).map_or("x", |found| found.1)),
            _ => {
                let after_flag = format!("{before} {part}");
                typed.push_str(of(&after_flag).or_else(|| of(part)).map_or(part, |found| found.1));
            }
        }
    }
    typed
}

/// The words of the first command of a line, as a shell reads them, with examples for placeholders.
fn shell_words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for char in line.chars().chain([' ']) {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '>' | '<' | '&' | ';' | ')') => break,
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    let before = [String::new()].into_iter().chain(words.clone());
    let typed = before.zip(&words).map(|(before, word)| typed(&before, word));
    typed.filter(|word| !word.is_empty()).collect()
}

/// The command lines in a message, and whether one must be whole: those in backquotes that do not name
/// the program are parts of some.
fn command_lines<'a>(whole: &Command, message: &'a str) -> Vec<(&'a str, bool)> {
    let is_command = |line: &str| {
        let first = line.split([' ', ')', ',']).next().unwrap_or_default();
        whole.find_subcommand(first).is_some()
    };
    let mut found = Vec::new();
    for (index, piece) in message.split('`').enumerate() {
        let is_quoted = index % 2 == 1;
        for line in piece.lines() {
            let lines =
                line.match_indices("sandboxctl ").map(|(at, name)| &line[at + name.len()..]);
            found.extend(lines.filter(|it| is_quoted || is_command(it)).map(|it| (it, true)));
            if is_quoted && line.contains(' ') && is_command(line) {
                found.push((line, false));
            }
        }
    }
    found
}

/// The words of a command line, and whether it must be whole.
type Line = (Vec<String>, bool);

/// Why a command line is refused. Of a part arguments may be missing.
fn refusal<'a>(words: impl IntoIterator<Item = &'a str>, is_whole: bool) -> Option<String> {
    thread_local! {
        /// Many messages have the same words, and to read a line takes milliseconds.
        static READ: RefCell<HashMap<Line, Option<String>>> = RefCell::default();
    }
    let line: Line = (words.into_iter().map(str::to_owned).collect(), is_whole);
    let refused = || read_refusal(&line.0, is_whole);
    READ.with_borrow_mut(|read| read.entry(line.clone()).or_insert_with(refused).clone())
}

fn read_refusal(words: &[String], is_whole: bool) -> Option<String> {
    let words = words.iter().map(String::as_str);
    let error = Cli::read(std::iter::once("sandboxctl").chain(words)).err()?;
    let is_taken = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !is_whole,
        _ => false,
    };
    (!is_taken).then(|| error.to_string())
}

/// The paths of the commands that have a flag.
fn commands_with<'a>(command: &'a Command, flag: &str) -> Vec<Vec<&'a str>> {
    let below = command.get_subcommands().flat_map(|it| {
        let paths = commands_with(it, flag);
        paths.into_iter().map(|path| [vec![it.get_name()], path].concat())
    });
    let own = flags_of(command).contains(flag).then(Vec::new);
    own.into_iter().chain(below).collect()
}

/// The value that a message names after a flag: a placeholder, or an example of one.
fn value_after(flag: &str, rest: &str) -> Option<String> {
    let rest = rest.strip_prefix([' ', '='])?;
    let quoted = rest.strip_prefix('\'').and_then(|it| it.split_once('\''));
    let end = || rest.find([' ', '\n', '`', ',', ';', ')', '"']).unwrap_or(rest.len());
    let value = quoted.map_or_else(|| rest[..end()].trim_end_matches(['.', ':']), |it| it.0);
    let is_value = |it: char| it.is_ascii_uppercase() || it.is_ascii_digit() || "./".contains(it);
    let is_named = quoted.is_some() || value.starts_with(is_value) || value.starts_with("-:");
    is_named.then(|| typed(flag, value))
}

/// What of a message does not work when it is followed word for word.
pub fn mistakes(whole: &Command, message: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, is_whole) in command_lines(whole, message) {
        // The first of alternatives; and an id for what another command prints.
        let one = line.split(", or ").next().unwrap_or_default();
        let one = one.split_once("$(").map_or(one.to_owned(), |(before, _)| format!("{before}ID"));
        let words = shell_words(&one);
        let is_name =
            words.iter().try_fold(whole, |group, word| group.find_subcommand(word)).is_some();
        let refused = refusal(words.iter().map(String::as_str), is_whole && !is_name);
        wrong.extend(refused.map(|error| format!("{line}: {error}")));
    }
    for (flag, rest) in words(message, "--") {
        let Some(value) = value_after(flag, rest) else { continue };
        if !is_flag(flag) || OF_OTHER_PROGRAMS.contains(&flag) {
            continue;
        }
        let given = format!("{flag}={value}");
        let refused = |path: Vec<&str>| refusal(path.into_iter().chain([&*given]), false);
        let refused: Option<Vec<_>> = commands_with(whole, flag).into_iter().map(refused).collect();
        wrong.extend(refused.map(|errors| format!("{given}: {}", errors.join("\n"))));
    }
    wrong
}

#[test]
fn messages_work_when_they_are_followed_word_for_word() {
    let whole = command();
    let mut wrong = BTreeSet::new();
    for (path, text) in sources() {
        let messages: BTreeSet<String> = literals(&text).into_iter().collect();
        for message in messages.iter().filter(|it| it.contains(' ')) {
            let of = mistakes(&whole, message);
            wrong.extend(of.into_iter().map(|it| format!("{}: {it}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn what_does_not_work_is_found() {
    let whole = command();
    for message in [
        "`sandboxctl rum` does it",
        "`sandboxctl gc --forced` does it",
        "`sandboxctl keys new` makes one, `sandboxctl keys new --json` prints it",
        "type: sandboxctl run --memory much FILE",
        "an image is `run --image`",
        "--timeout SIZE raises it",
        "--json FILE writes it",
        "--memory '1 potato' is enough",
    ] {
        assert_eq!(mistakes(&whole, message).len(), 1, "{message}");
    }
    let fine =
        "`sandboxctl keys new` and `run --image IMAGE`: sandboxctl run FILE > out, or another";
    assert_eq!(mistakes(&whole, fine), [] as [String; 0]);
}

#[test]
fn settings_and_variables_that_messages_name_exist() {
    let names: Vec<String> = Key::all().map(Key::name).collect();
    let variables: Vec<String> = Key::all().map(Key::variable).collect();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for message in literals(&text).iter().filter(|it| it.contains(' ')) {
            for section in SECTIONS {
                for (word, _) in words(message, &format!("{section}.")) {
                    let is_known =
                        |name: &String| name == word || name.starts_with(&format!("{word}."));
                    if word.len() > section.len()
                        && !FUNCTIONS.contains(&word)
                        && !names.iter().any(is_known)
                    {
                        wrong.push(format!("{}: {word}", path.display()));
                    }
                }
            }
            for (word, _) in words(message, "SANDBOXCTL_") {
                let others = OTHER_VARIABLES.iter().chain(OWN_VARIABLES);
                if !variables.iter().any(|it| it == word)
                    && !others.into_iter().any(|it| *it == word)
                {
                    wrong.push(format!("{}: {word}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn limits_are_raised_by_what_their_hints_name() {
    let flags = all_flags(&command());
    for limit in LimitKey::ALL {
        match limit.flag() {
            Some(flag) => assert!(flags.contains(flag), "{flag}"),
            None => {
                let key = Key::from_name(limit.key()).unwrap();
                assert_eq!(key.variable(), limit.variable());
            }
        }
    }
}

/// All names and texts of a document.
fn all_texts(value: &Value, texts: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                texts.insert(name.clone());
                all_texts(value, texts);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| all_texts(value, texts)),
        Value::String(text) => _ = texts.insert(text.clone()),
        _ => {}
    }
}

#[test]
fn members_and_endpoints_that_messages_of_the_service_name_are_in_its_api() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = workspace.join("docs/src/reference/openapi.json");
    let document: Value = serde_json::from_slice(&fs::read(document).unwrap()).unwrap();
    let mut texts = BTreeSet::new();
    all_texts(&document, &mut texts);
    let settings: Vec<String> = Key::all().map(Key::name).collect();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (path, text) in sources() {
        if !OF_THE_SERVICE.iter().any(|folder| path.starts_with(workspace.join(folder))) {
            continue;
        }
        for message in literals(&text).iter().filter(|it| it.contains(' ')) {
            let is_name = |it: &&str| {
                let mut chars = it.chars();
                chars.next().is_some_and(|it| it.is_ascii_lowercase())
                    && chars.all(|it| it.is_ascii_alphanumeric() || "_.".contains(it))
            };
            let quotes = message.split('`').skip(1).step_by(2).filter(is_name);
            for quote in quotes.filter(|it| !OTHER_QUOTES.contains(it)) {
                let is_member = quote.split('.').all(|name| texts.contains(name));
                if !is_member && !settings.iter().any(|it| it == quote) {
                    wrong.push(format!("{}: {quote}", path.display()));
                }
                checked += 1;
            }
            for endpoint in message.split([' ', '`']).filter(|it| it.starts_with("/v1/")) {
                if document["paths"].get(endpoint).is_none() {
                    wrong.push(format!("{}: {endpoint}", path.display()));
                }
                checked += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "{checked}");
}
