//! A command line that clap refused, in clap's words: what they quote is escaped, as everywhere.

use std::borrow::Cow;
use std::error::Error as _;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};

use crate::render::escaped_line;

/// The error as it is printed, with clap's own styles.
pub fn usage_error(mut error: clap::Error) -> String {
    // A tip repeats the refused argument among words and styles of clap's.
    let refused = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let quoted: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| Some((kind, escaped(value, &refused)?)))
        .collect();
    for (kind, value) in quoted {
        error.insert(kind, value);
    }
    // The message of a value's parser has no place among them.
    let reason = error.source().map(ToString::to_string).unwrap_or_default();
    let text = error.render().ansi().to_string();
    match escaped_line(&reason) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => text.replace(&reason, &shown),
    }
}

/// The same with its quotes escaped, if that is necessary.
fn escaped(value: &ContextValue, refused: &Option<String>) -> Option<ContextValue> {
    let line = |text: &String| escaped_line(text).into_owned();
    match value {
        ContextValue::String(text) => Some(ContextValue::String(line(text))),
        ContextValue::Strings(texts) => {
            Some(ContextValue::Strings(texts.iter().map(line).collect()))
        }
        ContextValue::StyledStrs(tips) => {
            let refused = refused.as_ref()?;
            let tip = |tip: &StyledStr| {
                tip.ansi().to_string().replace(refused.as_str(), &escaped_line(refused)).into()
            };
            Some(ContextValue::StyledStrs(tips.iter().map(tip).collect()))
        }
        // Usage and numbers: they contain no input.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    const EVIL: &str = "\u{1b}[31m\u{1b}]0;title\u{7}\r\nerror: forged\u{202e}\u{9b}2J";

    fn refused(args: &[&str]) -> String {
        let args = ["sandboxctl"].iter().chain(args);
        let text = usage_error(Cli::read(args).expect_err("it is refused"));
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_refused_command_line_cannot_steer_the_terminal() {
        let flag = format!("--{EVIL}");
        let evil_value = |flag: &str| format!("{flag}={EVIL}");
        let mut cases: Vec<Vec<String>> = vec![
            vec![EVIL.to_owned()],
            vec!["fs".to_owned(), EVIL.to_owned()],
            vec!["run".to_owned(), "x".to_owned(), flag.clone()],
            vec!["fs".to_owned(), "read".to_owned(), flag],
            vec!["run".to_owned(), "x".to_owned(), format!("-{EVIL}")],
            vec!["run".to_owned(), "x".to_owned(), EVIL.to_owned()],
            vec!["run".to_owned(), "x".to_owned(), format!("--timeout{EVIL}")],
            vec!["run".to_owned(), "x".to_owned(), format!("--json={EVIL}")],
            vec!["doctor".to_owned(), EVIL.to_owned()],
            vec!["completions".to_owned(), EVIL.to_owned()],
            vec!["fs".to_owned(), "read".to_owned(), "x".to_owned(), evil_value("--lines")],
        ];
        for flag in [
            "--engine", "--confinement", "--color", "--timeout", "--memory", "--cpus", "--pids",
            "--arg", "--user", "--io-errors", "--mount-path", "--allow", "--pull", "--protect",
        ] {
            cases.push(vec!["run".to_owned(), "x".to_owned(), evil_value(flag)]);
        }
        for source in [format!("a:{EVIL}/.."), format!("{EVIL}:.."), format!(":{EVIL}")] {
            cases.push(vec!["run".to_owned(), "x".to_owned(), format!("--in={source}")]);
        }
        let mut refusals = 0;
        for case in &cases {
            let args = ["sandboxctl".to_owned()].into_iter().chain(case.iter().cloned());
            // Some flags accept any text.
            let Err(error) = Cli::read(args) else { continue };
            refusals += 1;
            let styled = usage_error(error);
            let is_raw =
                ["\u{1b}[31m\u{1b}]", "\u{1b}]", "\u{7}"].iter().any(|it| styled.contains(it));
            assert!(!is_raw, "{case:?}: {styled:?}");
            let text = anstream::adapter::strip_str(&styled).to_string();
            assert_eq!(escaped_line(&text.replace('\n', " ")), text.replace('\n', " "), "{case:?}");
            assert!(!text.contains("\nerror: forged"), "{text}");
            // Of unknown short flags only the first one is quoted.
            assert!(text.contains("\\u{1b}"), "{case:?}: {text}");
        }
        assert!(refusals >= cases.len() - 3, "{refusals} of {}", cases.len());
    }

    #[test]
    fn mistyped_command_gets_a_suggestion() {
        for (line, name) in [
            ("rnu x", "run"),
            ("exce debian ls", "exec"),
            ("fs delete a", "rm"),
            ("fs remove a", "rm"),
            ("--engine docker fs raed a", "read"),
            ("executions list", "ls"),
            ("token creat", "create"),
        ] {
            let text = refused(&line.split(' ').collect::<Vec<_>>());
            let tip = format!("tip: a similar subcommand exists: '{name}'\n");
            assert!(text.contains(&tip), "{line}: {text}");
        }
        // An alias of other tools gets the name used here; other words get no guess.
        assert!(refused(&["list"]).contains("`ps` lists sandboxes"));
        let unlike = refused(&["fs", "frobnicate"]);
        assert!(!unlike.contains("similar") && unlike.contains("tip: subcommands: read, write, "));
    }

    #[test]
    fn the_name_of_the_program_is_its_own() {
        let text = usage_error(Cli::read([EVIL, "run"]).unwrap_err());
        assert!(!text.contains("forged") && text.contains("sandboxctl run"), "{text}");
    }

    #[test]
    fn words_and_styles_of_claps_stay() {
        let styled = |args: &[&str]| {
            let args = ["sandboxctl"].iter().chain(args);
            let error = Cli::read(args).unwrap_err();
            (error.render().ansi().to_string(), usage_error(error))
        };
        for args in [&["run", "x", "--timout", "1s"][..], &["run"], &["rum"]] {
            let (before, after) = styled(args);
            assert_eq!(before, after);
        }
        let path = OsString::from_vec(b"a\xff:\x1b".to_vec());
        let args = ["sandboxctl", "run", "x", "--in"].map(OsString::from).into_iter().chain([path]);
        if let Err(error) = Cli::read(args) {
            assert!(!usage_error(error).contains("\u{1b}'"));
        }
        assert_eq!(
            refused(&["run", "x", "--\u{1b}[1mbold"]).lines().next(),
            Some("error: unexpected argument '--\\u{1b}[1mbold' found")
        );
    }
}
