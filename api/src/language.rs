//! Other languages that are taken for Luau.

/// A language that is not Luau, and what runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language {
    /// As in a sentence: `Python`, `a shell script`.
    pub name: &'static str,
    /// An image that has the [program](Self::program).
    pub image: &'static str,
    /// The program that runs a file of it.
    pub program: &'static str,
    extensions: &'static [&'static str],
    /// What a first line `#!` has of its programs.
    interpreters: &'static [&'static str],
    /// How its scripts begin, and no Luau does.
    beginnings: &'static [&'static str],
}

/// A language a row: its name, its image and the program in it; its extensions, its interpreters and how its
/// scripts begin.
macro_rules! languages {
    ($($name:literal, $image:literal, $program:literal:
        $extensions:expr, $interpreters:expr, $beginnings:expr;)+) => {
        const LANGUAGES: &[Language] = &[$(Language {
            name: $name,
            image: $image,
            program: $program,
            extensions: &$extensions,
            interpreters: &$interpreters,
            beginnings: &$beginnings,
        },)+];
    };
}

languages! {
    "Python", "python:3.13-slim", "python3": ["py"], ["python"], ["import ", "from ", "def "];
    "JavaScript", "node:24-slim", "node": ["js", "mjs", "cjs"], ["node"], ["const ", "let ", "var "];
    "TypeScript", "node:24-slim", "node": ["ts", "mts", "tsx"], ["deno"], [];
    "a shell script", "debian:13", "sh": ["sh", "bash"], ["bash", "/sh", "dash", "zsh"], [];
    "Ruby", "ruby:3.4-slim", "ruby": ["rb"], ["ruby"], [];
    "Perl", "perl:5-slim", "perl": ["pl", "pm"], ["perl"], [];
    "PHP", "php:8-cli", "php": ["php"], ["php"], ["<?php"];
    "Go", "golang:1.25", "go run": ["go"], [], ["package main"];
}

/// How a line that ends with a colon begins in Python alone.
const PYTHON_BLOCKS: &[&str] = &["def ", "class ", "for ", "if ", "while ", "with ", "try"];
/// Lines of a script that are looked at.
const LINES: usize = 50;

impl Language {
    /// The language of a file with this name, by its extension.
    pub fn of_file(name: &str) -> Option<&'static Self> {
        let (_, file) = name.rsplit_once('/').unwrap_or(("", name));
        let (_, extension) = file.rsplit_once('.')?;
        LANGUAGES.iter().find(|language| language.extensions.contains(&extension))
    }

    /// The language of a text that does not compile as Luau, if its beginning shows it.
    pub fn of_text(text: &str) -> Option<&'static Self> {
        if let Some(line) = text.lines().next().and_then(|line| line.strip_prefix("#!")) {
            let has = |language: &&Self| language.interpreters.iter().any(|at| line.contains(at));
            return LANGUAGES.iter().find(has);
        }
        let lines = text.lines().map(str::trim).take(LINES);
        let mut code =
            lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '-', '/'])).peekable();
        let first = *code.peek()?;
        let begins = |language: &&Self| language.beginnings.iter().any(|at| first.starts_with(at));
        let is_block = |line: &str| {
            line.ends_with(':') && PYTHON_BLOCKS.iter().any(|start| line.starts_with(start))
        };
        let found = LANGUAGES.iter().find(begins);
        found.or_else(|| code.any(is_block).then(|| &LANGUAGES[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_is_known_by_extension_first_line_beginning_or_blocks() {
        let of_file = |name| Language::of_file(name).map(|language| language.name);
        assert_eq!(of_file("a.py"), Some("Python"));
        assert_eq!(of_file("b.py/c.mjs"), Some("JavaScript"));
        for other in ["a.luau", "a", "py", "a.py/b", ""] {
            assert_eq!(of_file(other), None, "{other}");
        }
        for (text, expected) in [
            ("# a comment\n\nimport os\n", Some("Python")),
            ("x = 1\nfor i in range(3):\n    print(i)\n", Some("Python")),
            ("#!/usr/bin/env python3\nprint(1)", Some("Python")),
            ("const a = 1;", Some("JavaScript")),
            ("#!/bin/sh\nls", Some("a shell script")),
            ("package main\n", Some("Go")),
            ("#!/usr/bin/luau\nimport x", None),
            ("local x =", None),
            ("for i = 1, 3 do print(i) end", None),
            ("", None),
        ] {
            assert_eq!(Language::of_text(text).map(|found| found.name), expected, "{text}");
        }
    }
}
