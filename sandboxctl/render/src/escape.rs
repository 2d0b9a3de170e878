//! Escapes guest text for a terminal, so that control characters are shown and have no effect.
//!
//! A script that prints an escape sequence could clear the screen, overwrite earlier lines, or
//! imitate the colours of sandboxctl's own lines; a direction mark reverses a name.

use std::borrow::Cow;
use std::io;

/// Shows control characters and direction marks of `text` as `\u{1b}`; newlines and tabs stay.
pub fn escaped_text(text: &str) -> Cow<'_, str> {
    escape(text, steers_in_text, |character| character.escape_default().to_string())
}

/// The same for text that must stay on one line: newlines are escaped too.
pub fn escaped_line(text: &str) -> Cow<'_, str> {
    escape(text, steers, |character| character.escape_default().to_string())
}

/// Escapes the characters in JSON text that `serde_json` leaves unescaped (DEL, C1, direction
/// marks) as JSON does, so that the value is the same.
pub fn json_for_terminal(json: &str) -> Cow<'_, str> {
    // All of them are in the basic plane: one unit of UTF-16 each.
    escape(json, steers_in_text, |character| format!("\\u{:04x}", u32::from(character)))
}

fn escape(
    text: &str,
    shown: impl Fn(char) -> bool,
    escape: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&shown) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if shown(character) {
            escaped.push_str(&escape(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

fn steers_in_text(character: char) -> bool {
    steers(character) && !matches!(character, '\n' | '\t')
}

/// Control characters (C0, DEL, C1), and the marks that change the direction of the following text.
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The OS error's text, without the number.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_sequences_are_shown_not_obeyed() {
        assert_eq!(escaped_text("a\u{1b}[31mb\rc"), "a\\u{1b}[31mb\\rc");
        assert_eq!(escaped_text("\u{9b}2J\u{202e}x"), "\\u{9b}2J\\u{202e}x");
        assert_eq!(escaped_text("one\n\ttwo é 猫"), "one\n\ttwo é 猫");
        assert_eq!(escaped_line("x\nerror: forged"), "x\\nerror: forged");
    }

    proptest! {
        #[test]
        fn nothing_that_steers_is_left(text in any::<String>()) {
            prop_assert!(!escaped_line(&text).contains(steers));
            prop_assert!(!escaped_text(&text).replace(['\n', '\t'], "").contains(steers));
        }

        #[test]
        fn json_stays_the_same_value(text in "[\u{0}-\u{a0}\u{200e}-\u{202f}a\\\\\"]{0,20}") {
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let shown = json_for_terminal(&json);
            prop_assert!(!shown.replace('\n', "").contains(steers));
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), vec![text]);
        }
    }
}
