//! Checks what messages and hints name: each command, flag and setting that one of them recommends
//! exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use super::parse::command;
use crate::config::Key;

/// The folders whose messages people read.
const FOLDERS: &[&str] =
    &["api/src", "controller", "env/src", "sandbox-image/src", "server", "sandboxctl/src"];
/// Files in which flags are those of other programs, or of the build.
const OTHERS: &[&str] = &["build.rs", "guess.rs", "page.rs"];
/// Flags of other programs that messages and examples have.
const OF_OTHER_PROGRAMS: &[&str] =
    &["--bind", "--git", "--path", "--platform", "--privileged", "--sparse", "--year"];
/// The sections of settings whose names are no others' too.
const SECTIONS: &[&str] =
    &["filesystem", "limits", "network", "audit", "engine", "programs", "mcp", "pool"];

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
                && !["tests.rs", "testing.rs", "named.rs"].contains(&name)
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

/// The words of a text that begin so, up to what ends a name.
fn words<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let found = text.match_indices(begin).filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let is_first = before.is_none_or(|it| !it.is_ascii_alphanumeric() && !"-_./".contains(it));
        let rest = &text[at..];
        let is_inside = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let end = rest.find(|it| !is_inside(it)).unwrap_or(rest.len());
        is_first.then(|| rest[..end].trim_end_matches(['.', '-']))
    });
    found.collect()
}

#[test]
fn flags_that_messages_name_are_flags() {
    let flags = all_flags(&command());
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for word in words(&text, "--") {
            let is_flag =
                word.len() > 3 && word[2..].starts_with(|it: char| it.is_ascii_lowercase());
            if is_flag && !flags.contains(word) && !OF_OTHER_PROGRAMS.contains(&word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_that_messages_name_are_commands_with_these_flags() {
    let whole = command();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for line in text.split("`sandboxctl ").skip(1) {
            let line = line.split('`').next().unwrap_or_default();
            let mut of = &whole;
            for word in line.split(' ') {
                if word.starts_with("--") {
                    let is_known = flags_of(of).contains(word) || flags_of(&whole).contains(word);
                    if !is_known {
                        wrong.push(format!("{}: {line}: {word}", path.display()));
                    }
                } else if of.has_subcommands()
                    && word.starts_with(|it: char| it.is_ascii_lowercase())
                {
                    match of.find_subcommand(word) {
                        Some(found) => of = found,
                        None if word == "help" => break,
                        None => wrong.push(format!("{}: {line}: {word}", path.display())),
                    }
                } else {
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn settings_that_messages_name_are_settings() {
    let names: Vec<String> = Key::all().map(Key::name).collect();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        // The code has members that are called so.
        let quoted =
            text.lines().filter_map(|line| Some(line.split_once('"')?.1.rsplit_once('"')?.0));
        for sentence in quoted.filter(|quoted| quoted.contains(' ')) {
            for section in SECTIONS {
                for word in words(sentence, &format!("{section}.")) {
                    let is_known =
                        |name: &String| name == word || name.starts_with(&format!("{word}."));
                    if word.len() > section.len() && !names.iter().any(is_known) {
                        wrong.push(format!("{}: {word}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
