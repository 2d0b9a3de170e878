//! Checks a script's text before it is compiled.

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::MAX_SOURCE_BYTES;
use sandbox_protocol::message::ScriptError;

/// Checks a script and removes what Luau does not support: a byte-order mark, and a `#!` line,
/// which is replaced by a blank one so that line numbers stay correct.
///
/// # Errors
///
/// `source_too_large`, or `syntax` for a NUL byte (Luau would silently stop there) and for bytecode
/// (which is not verified).
pub fn prepare(source: &str) -> Result<&str, ScriptError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(too_large());
    }
    if let Some(at) = source.bytes().position(|byte| byte == 0) {
        return Err(syntax(&source.as_bytes()[..at], "a NUL byte in the script"));
    }
    let text = source.strip_prefix('\u{feff}').unwrap_or(source);
    // Bytecode starts with its version, a small number; text starts with none of these.
    if text.bytes().next().is_some_and(|byte| byte < b' ' && !byte.is_ascii_whitespace()) {
        return Err(syntax(b"", "bytecode is not accepted, only text"));
    }
    match text.strip_prefix("#!") {
        Some(line) => Ok(line.find('\n').map_or("", |end| &line[end..])),
        None => Ok(text),
    }
}

/// A script over the limit.
pub fn too_large() -> ScriptError {
    ScriptError::new(
        ErrorKind::SourceTooLarge,
        format!("the script is longer than {MAX_SOURCE_BYTES} bytes"),
    )
}

/// An error after a part of the script.
pub fn syntax(before: &[u8], what: &str) -> ScriptError {
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    ScriptError {
        line: u32::try_from(line).ok(),
        ..ScriptError::new(ErrorKind::Syntax, format!("script:{line}: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_and_a_first_line_for_the_shell_are_taken_away() {
        for (source, text) in [
            ("return 1", "return 1"),
            ("", ""),
            ("\u{feff}return 1", "return 1"),
            ("#!/usr/bin/env sandboxctl run\nreturn 1", "\nreturn 1"),
            ("\u{feff}#!x\r\nreturn 1", "\nreturn 1"),
            ("#!x", ""),
            ("\n\treturn 1", "\n\treturn 1"),
            ("return #t", "return #t"),
        ] {
            assert_eq!(prepare(source), Ok(text), "{source:?}");
        }
    }

    #[test]
    fn source_that_is_not_text_is_refused_by_name() {
        for (source, kind, line) in [
            ("a\n\nb\0", ErrorKind::Syntax, Some(3)),
            ("\u{6}\u{3}x", ErrorKind::Syntax, Some(1)),
            ("\u{feff}\u{1}", ErrorKind::Syntax, Some(1)),
            (&" ".repeat(MAX_SOURCE_BYTES + 1), ErrorKind::SourceTooLarge, None),
        ] {
            let error = prepare(source).unwrap_err();
            assert_eq!((error.kind, error.line), (kind, line), "{error:?}");
        }
        assert!(prepare(&" ".repeat(MAX_SOURCE_BYTES)).is_ok());
    }
}
