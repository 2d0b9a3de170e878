//! What people type who know another tool, and what it is called here.

/// What was typed, words separated by commas, and below it the tip. A word applies to every command, or after
/// the name of one command only to this; `sandboxctl` is the program itself.
const GUESSES: &str = include_str!("guesses.txt");

/// Each guess: its words, and the tip.
fn guesses() -> impl Iterator<Item = (std::str::Split<'static, &'static str>, &'static str)> {
    let guesses = GUESSES.split("\n\n").filter_map(|guess| guess.split_once('\n'));
    guesses.map(|(words, tip)| (words.split(", "), tip.trim()))
}

/// The tip for a command that there is not. `path` is the command whose subcommand it would be.
pub fn command(path: &str, typed: &str) -> Option<&'static str> {
    let own = look_up(&format!("{path} {typed}"));
    own.or_else(|| look_up(typed).filter(|_| path.is_empty()))
}

/// The tip for a flag that a command does not have. `path` is the command.
pub fn flag(path: &str, typed: &str) -> Option<&'static str> {
    let name = typed.split(['=', ' ']).next().unwrap_or(typed);
    let path = if path.is_empty() { "sandboxctl" } else { path };
    look_up(&format!("{path} {name}")).or_else(|| look_up(name))
}

fn look_up(typed: &str) -> Option<&'static str> {
    guesses().find_map(|(mut words, tip)| words.any(|word| word == typed).then_some(tip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::Command;

    #[test]
    fn no_guess_is_a_command_and_each_stands_once() {
        let whole = cli::parse::command();
        let words: Vec<_> = guesses().flat_map(|(words, _)| words).collect();
        assert_eq!(GUESSES.split("\n\n").count(), guesses().count());
        for (at, word) in words.iter().enumerate() {
            assert!(!words[..at].contains(word), "{word}");
            let mut path = word.split(' ').filter(|part| *part != "sandboxctl").peekable();
            let mut command = &whole;
            while let Some(part) = path.next() {
                match command.find_subcommand(part) {
                    Some(found) => {
                        assert!(path.peek().is_some(), "{word} is a command");
                        command = found;
                    }
                    None => assert!(path.peek().is_none(), "{word}"),
                }
            }
            let is_flag = has(command, word.rsplit(' ').next().unwrap());
            assert!(command.get_name() == "sandboxctl" || !is_flag, "{word} is a flag");
        }
    }

    /// Whether a command has this flag.
    fn has(command: &Command, flag: &str) -> bool {
        command.get_arguments().any(|arg| {
            let long = arg.get_long_and_visible_aliases().unwrap_or_default();
            let is_long = long.iter().any(|long| flag == format!("--{long}"));
            is_long || arg.get_short().is_some_and(|short| flag == format!("-{short}"))
        })
    }

    /// A command, and all that it has.
    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn tip_works_when_it_is_followed_word_for_word() {
        let whole = cli::parse::command();
        let every = all(&whole);
        for (words, tip) in guesses() {
            let words: Vec<_> = words.collect();
            // Other programs'.
            let own = tip.replace("cargo install --path sandboxctl", "");
            for flag in own.split(|char: char| !char.is_ascii_alphanumeric() && char != '-') {
                if !flag.starts_with('-') || ["--help", "--version"].contains(&flag) {
                    continue;
                }
                let is_group = flag.len() > 2 && !flag.starts_with("--");
                let single = flag.chars().skip(1).map(|letter| format!("-{letter}"));
                let single: Vec<String> =
                    if is_group { single.collect() } else { vec![flag.to_owned()] };
                let has_all = |it: &&&Command| single.iter().all(|flag| has(it, flag));
                assert!(every.iter().any(|it| has_all(&it)), "{words:?}: {flag} in {tip}");
            }
            assert_eq!(cli::tests::named::mistakes(&whole, &own), [] as [String; 0], "{words:?}");
        }
    }
}
