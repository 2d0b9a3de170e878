//! A script's error with its position in the source.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use sandbox_api::{ErrorKind, ScriptError};

use super::escape::escaped_line;

/// Widest rendering; longer source lines are cut around the mark.
const WIDTH: usize = 120;

/// The error as `error: script:3: message`, the source line with a mark under the part that the
/// message refers to, and the call stack if it is deeper than the position itself.
pub fn script_error(error: &ScriptError, name: &str, source: &[u8], colour: bool) -> String {
    // Escaped first: the renderer shows most control characters, but not all of them.
    let message = match error.kind {
        // The file is wrong as a whole, not one of its lines.
        ErrorKind::SourceTooLarge => format!("SCRIPT: {name}: {}", error.message),
        _ => error.message.clone(),
    };
    let message = escaped_line(&message);
    let place = error.line.and_then(|line| Some((line, line_of(source, line)?)));
    let title = Level::ERROR.primary_title(&*message);
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() }.term_width(WIDTH);
    let text;
    let group = match place {
        None => Group::with_title(title),
        Some((number, line)) => {
            text = escaped_line(&line.replace('\t', "    ")).into_owned();
            let mark = marked(&text, &error.message);
            title.element(
                Snippet::source(text.as_str())
                    .line_start(number as usize)
                    .path(escaped_line(name).into_owned())
                    .annotation(AnnotationKind::Primary.span(mark)),
            )
        }
    };
    renderer.render(&[group])
}

/// The call stack, if it is deeper than the position that the error names.
pub fn call_stack(error: &ScriptError) -> Option<&str> {
    let traceback = error.traceback.as_deref()?;
    let levels = traceback.lines().filter(|line| line.contains("script:")).count();
    (levels > 1).then_some(traceback)
}

/// The columns of a line, from 1 and without the second, that a message refers to, in characters.
pub fn columns(source: &[u8], line: u32, message: &str) -> Option<(usize, usize)> {
    let line = line_of(source, line)?;
    let mark = marked(&line, message);
    let column = |at: usize| line[..at].chars().count() + 1;
    (!mark.is_empty()).then(|| (column(mark.start), column(mark.end)))
}

fn line_of(source: &[u8], line: u32) -> Option<String> {
    let index = usize::try_from(line).ok()?.checked_sub(1)?;
    let line = source.split(|&byte| byte == b'\n').nth(index)?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    // The byte-order mark is not part of the first line.
    Some(text.trim_start_matches('\u{feff}').to_owned())
}

/// The part of `line` that `message` refers to: a quoted name that occurs there once, otherwise the
/// whole line without its indentation.
fn marked(line: &str, message: &str) -> Range<usize> {
    let quoted = message.split('\'').skip(1).step_by(2);
    for name in quoted.filter(|name| !name.is_empty()) {
        let mut found = line.match_indices(name).filter(|&(at, _)| stands_alone(line, at, name));
        if let (Some((at, _)), None) = (found.next(), found.next()) {
            return at..at + name.len();
        }
    }
    let start = line.len() - line.trim_start().len();
    let end = line.trim_end().len();
    if start < end { start..end } else { 0..line.len() }
}

/// Whether `name` at `at` is a whole word: `x` is not one in `max`.
fn stands_alone(line: &str, at: usize, name: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let (before, after) = (&line[..at], &line[at + name.len()..]);
    !(name.starts_with(is_word) && before.ends_with(is_word)
        || name.ends_with(is_word) && after.starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::ErrorKind;

    fn error(message: &str, line: Option<u32>) -> ScriptError {
        ScriptError {
            kind: ErrorKind::Runtime,
            message: message.into(),
            line,
            traceback: None,
            value: None,
        }
    }

    fn rendered(source: &str, message: &str, line: Option<u32>) -> String {
        script_error(&error(message, line), "report.luau", source.as_bytes(), false)
    }

    #[test]
    fn the_part_that_the_message_names_is_marked() {
        let name = rendered(
            "local x = 1\n\nlocal y = x + total.sum\r\n",
            "script:3: attempt to index nil with 'sum'",
            Some(3),
        );
        insta::assert_snapshot!(name);
        let line = rendered(
            "local t = {\n\tf = prnt('x')\n}\n",
            "script:2: attempt to call a nil value",
            Some(2),
        );
        insta::assert_snapshot!(line);
    }

    #[test]
    fn an_error_without_a_line_is_its_message() {
        insta::assert_snapshot!(rendered("return 1", "boom", None), @"error: boom");
        insta::assert_snapshot!(rendered("return 1", "script:9: boom", Some(9)), @"error: script:9: boom");
        insta::assert_snapshot!(rendered("return 1", "boom", Some(0)), @"error: boom");
    }

    #[test]
    fn a_guests_text_stays_on_its_lines() {
        let text =
            rendered("error('\u{1b}[2J\u{202e}')\n", "x\nhint: run rm\r\u{1b}[2J\u{9b}2J", Some(1));
        assert!(!text.contains(['\u{1b}', '\r', '\u{9b}', '\u{202e}']), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("hint")), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn names_are_marked_as_words() {
        assert_eq!(marked("max = x", "'x'"), 6..7);
        assert_eq!(marked("  x = x", "'x'"), 2..7, "twice: the whole line");
        assert_eq!(marked("  a = b  ", "no name"), 2..7);
        assert_eq!(marked("", "'x'"), 0..0);
        assert_eq!(marked("é = ü", "near 'ü'"), 5..7);
    }

    #[test]
    fn one_level_is_not_shown_as_a_call_stack() {
        let with = |traceback: &str| ScriptError {
            traceback: Some(traceback.into()),
            ..error("script:1: x", Some(1))
        };
        assert_eq!(call_stack(&with("script:1")), None);
        assert_eq!(
            call_stack(&with("script:1 function f\nscript:2")),
            Some("script:1 function f\nscript:2")
        );
        assert_eq!(call_stack(&error("x", None)), None);
    }
}
