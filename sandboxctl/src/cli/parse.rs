//! Reading a command line: what derives cannot say of it.

use std::ffi::{OsStr, OsString};

use clap::builder::{ArgPredicate, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::{Cli, guess, on_demand};

/// Commands that use no engine: their help has the flags of all commands on one line.
const WITHOUT_ENGINE: [&str; 4] = ["check", "types", "completions", "man"];
/// That line.
const GLOBALS: &str = "Global options: `sandboxctl --help` shows them";
/// A flag, or the value name of an argument, and its line in the short help.
type ShortHelp = (&'static str, &'static str);
/// What the short help of commands with many flags shows, a line each; `--help` has all.
const SHORT_HELP: &[(&str, &[ShortHelp])] = &[
    (
        "run",
        &[
            ("SCRIPT", "The script, or - for stdin"),
            ("code", "Run this code instead of a SCRIPT"),
            ("arg", "Pass a string as args.KEY; repeatable"),
            ("args-file", "Pass the members of this JSON object as args"),
            ("secret", "Give secrets.NAME from env:VARIABLE, file:PATH or - (stdin)"),
            ("json", "Print one JSON document instead of log and result"),
            ("result-only", "Print only the result; the log goes to stderr"),
            ("timeout", "Time that the script may take [default: 30s]"),
            ("memory", "Memory of the container [default: 256MiB]"),
            ("cpus", "Processors [default: 1]"),
            ("io-dir", "Directory that the sandbox sees at /io [default: ./sandbox-files]"),
            ("in", "Show a file or directory read-only at /in/NAME; repeatable"),
            ("keep", "Keep the files of a fresh io dir in ./sandbox-files-ID"),
            ("volume", "Mount SRC of the host at DST, as Docker does"),
            ("image", "Run in this image, with its programs"),
            ("allow", "Let programs reach HOST[:PORT], *.DOMAIN[:PORT] or @PRESET"),
        ],
    ),
    (
        "exec",
        &[
            ("shell", "Run this line with the image's /bin/sh instead"),
            ("env", "Set a variable, or pass on the caller's; repeatable"),
            ("secret", "Set a variable from env:VARIABLE, file:PATH or - (stdin)"),
            ("workdir", "Working directory in the sandbox"),
            ("stdin", "Pass stdin on to the command"),
            ("tty", "Give the command a terminal: -it IMAGE bash"),
            ("json", "Print one JSON document at the end"),
            ("io-dir", "Writable directory of the host [default: a fresh one]"),
            ("in", "Show a file or directory read-only at /in/NAME; repeatable"),
            ("keep", "Keep the files of a fresh io dir in ./sandbox-files-ID"),
            ("volume", "Mount SRC of the host at DST, as Docker does"),
            ("memory", "Memory of the container [default: 1GiB]"),
            ("cpus", "Processors [default: 1]"),
            ("timeout", "Time that the command may take [default: 10m]"),
            ("rootfs", "Run in this directory instead of an image (embedded engine)"),
            ("allow", "Let the command reach HOST[:PORT], *.DOMAIN[:PORT] or @PRESET"),
        ],
    ),
];
/// Most lines of examples that the short help shows.
const SHORT_EXAMPLES: usize = 3;

impl Cli {
    /// Reads a command line.
    ///
    /// # Errors
    ///
    /// clap's, of an invalid one; help and version too.
    pub fn read<I, T>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let mut command = command_of(&args);
        let matches = command
            .try_get_matches_from_mut(&args)
            .map_err(|error| with_tip(error, &command, &args))?;
        let mut cli =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let mut wants_json = asks_for_document(&matches);
        match &mut cli.command {
            super::Command::Run(args) => args.0.remote.given = super::remote::given(&matches),
            super::Command::Exec(exec) => {
                exec.0.remote.given = super::remote::given(&matches);
                exec.0.find_separator(&args);
            }
            super::Command::Fs(args) => {
                args.0.json |= args.output_format.is_some();
                wants_json = args.wants_json();
            }
            _ => {}
        }
        cli.json = wants_json.then(|| cli.command.form());
        Ok(cli)
    }
}

/// Whether the innermost subcommand has `--json`.
fn asks_for_document(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, matches)) => asks_for_document(matches),
        None => matches.try_get_one("json").is_ok_and(|json| json == Some(&true)),
    }
}

/// What subcommands are called here, and elsewhere.
const SYNONYMS: &[(&str, &[&str])] = &[
    ("ls", &["list", "dir"]),
    ("read", &["cat"]),
    ("rm", &["delete", "remove", "unlink"]),
    ("cp", &["copy"]),
    ("mv", &["move", "rename"]),
    ("grep", &["search"]),
    ("show", &["list", "get", "print"]),
    ("install", &["add"]),
    ("create", &["add", "new", "generate"]),
    ("new", &["generate", "create"]),
];

/// How many letters a mistyped word has too many, too few, wrong or swapped.
const MOST_MISTYPED: usize = 2;
/// From which likeness on a word is a mistyped one: one pair of letters swapped in three is likelier.
const LIKENESS: f64 = 0.6;

/// Whether this may have been meant.
fn is_near(typed: &str, name: &str) -> bool {
    strsim::damerau_levenshtein(typed, name) <= MOST_MISTYPED
        && strsim::normalized_damerau_levenshtein(typed, name) > LIKENESS
}

/// Says what a command or a flag that there is not may be: by the table of what people type, or one that
/// is nearly written so. clap's own measure finds others that only begin so.
fn with_tip(mut error: clap::Error, whole: &Command, args: &[OsString]) -> clap::Error {
    if !matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        return error;
    }
    let typed = |kind| error.get(kind).map(ToString::to_string);
    let (command, flag) = (typed(ContextKind::InvalidSubcommand), typed(ContextKind::InvalidArg));
    let mut group = whole;
    let mut groups = vec![whole];
    let mut path = Vec::new();
    for arg in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        if command.as_deref() == Some(arg) {
            break;
        }
        if let Some(found) = group.find_subcommand(arg) {
            group = found;
            groups.push(found);
            path.push(arg);
        }
    }
    let path = path.join(" ");
    // To pass a flag as a value never helps here.
    error.remove(ContextKind::Suggested);
    let tip = match (&command, &flag) {
        (Some(typed), _) => guess::command(&path, typed),
        (None, Some(typed)) => guess::flag(&path, typed).filter(|tip| {
            // A flag helps where it exists; a group may have it in its commands.
            let flag = tip.strip_prefix("--").and_then(|rest| rest.split([' ', ',']).next());
            let mut known = groups.iter().flat_map(|it| it.get_arguments());
            group.has_subcommands()
                || flag.is_none_or(|flag| known.any(|arg| arg.get_long() == Some(flag)))
        }),
        (None, None) => None,
    };
    let suggested = error.get(ContextKind::SuggestedArg).map(ToString::to_string);
    let is_meant = flag.zip(suggested).is_some_and(|(typed, name)| {
        let typed = typed.split('=').next().unwrap_or_default();
        is_near(typed, &name)
    });
    if tip.is_some() || command.is_some() || !is_meant {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let mut tips: Vec<StyledStr> = tip.into_iter().map(StyledStr::from).collect();
    if let Some(typed) = command {
        if let Some(name) = subcommand_for(group, &typed).filter(|_| tips.is_empty()) {
            let names = ContextValue::Strings(vec![name.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, names);
        }
        let names: Vec<&str> = visible_subcommands(group).collect();
        // `help` has none that it shows.
        if !names.is_empty() {
            tips.push(format!("subcommands: {}", names.join(", ")).into());
        }
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

fn visible_subcommands(group: &Command) -> impl Iterator<Item = &str> {
    group.get_subcommands().filter(|it| !it.is_hide_set()).map(Command::get_name)
}

/// The intended subcommand: an alias of other tools, or a near match.
fn subcommand_for<'a>(group: &'a Command, typed: &str) -> Option<&'a str> {
    let names = || visible_subcommands(group);
    let mut synonyms = SYNONYMS.iter().filter(|(_, others)| others.contains(&typed));
    let synonym = synonyms.find_map(|(here, _)| names().find(|name| name == here));
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(typed, name);
    let nearest = names().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    synonym.or(nearest.filter(|name| is_near(typed, name)))
}

/// The definition of the command line.
pub fn command() -> Command {
    define(&|_| true)
}

/// The same, as far as a command line of these arguments needs it: every process reads one.
fn command_of(args: &[OsString]) -> Command {
    on_demand::for_line(args, || define(&|name| args.iter().any(|arg| arg == name)))
}

/// Defines the command line; complete are the commands whose names are needed.
fn define(is_needed: &dyn Fn(&str) -> bool) -> Command {
    let whole = Cli::command();
    let global: Vec<Arg> = whole.get_arguments().filter(|it| it.is_global_set()).cloned().collect();
    complete(whole, &global, is_needed)
}

/// Adds to a command and its needed subcommands what derives cannot say.
fn complete(command: Command, global: &[Arg], is_needed: &dyn Fn(&str) -> bool) -> Command {
    let names = command.get_subcommands().map(Command::get_name).filter(|name| is_needed(name));
    let names: Vec<String> = names.map(str::to_owned).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let is_top = command.get_name() == "sandboxctl";
        let short = SHORT_HELP.iter().find(|(of, _)| is_top && *of == name);
        command.mut_subcommand(name, |command| {
            let command = complete(command, global, is_needed);
            match short {
                Some((_, lines)) => with_short_help(command, lines, global),
                None => command,
            }
        })
    });
    with_folded_globals(with_examples(with_output_format(command)), global)
}

/// Leaves the flags that few need to `--help`.
fn with_short_help(command: Command, lines: &[ShortHelp], global: &[Arg]) -> Command {
    let all = format!("All flags: sandboxctl {} --help", command.get_name());
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    // One of them, -v, is here already, with another short name.
    let is_new = |arg: &&Arg| command.get_arguments().all(|own| own.get_id() != arg.get_id());
    let globals: Vec<Arg> = global.iter().filter(is_new).cloned().collect();
    let globals = globals.into_iter().map(|arg| arg.global(false).hide_short_help(true));
    let short = |arg: Arg| {
        let value = arg.get_value_names().and_then(|names| names.first());
        let name = arg.get_long().or_else(|| value.map(|name| name.as_str()));
        let Some((_, line)) = lines.iter().find(|(of, _)| Some(*of) == name) else {
            return arg.hide_short_help(true);
        };
        let long = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
        arg.help(*line).long_help(long)
    };
    command.mut_args(short).args(globals).after_help(format!("{all}\n\n{examples}"))
}

/// Folds the flags of all commands into a line, if it is a command that uses no engine.
fn with_folded_globals(command: Command, global: &[Arg]) -> Command {
    if !WITHOUT_ENGINE.contains(&command.get_name()) {
        return command;
    }
    let hidden = global.iter().cloned().map(|arg| arg.global(false).hide(true));
    let with_line = |help: Option<&StyledStr>| {
        let help = help.map(ToString::to_string).unwrap_or_default();
        format!("{help}\n\n{GLOBALS}")
    };
    let (short, long) =
        (with_line(command.get_after_help()), with_line(command.get_after_long_help()));
    command.args(hidden).after_help(short).after_long_help(long)
}

/// `-o json` is `--json`.
fn with_output_format(command: Command) -> Command {
    let has = |id| command.get_arguments().any(|arg| arg.get_id() == id);
    if !has("json") || has("output_format") {
        return command;
    }
    let format = Arg::new("output_format")
        .short('o')
        .long("output")
        .alias("format")
        .value_name("FORMAT")
        .value_parser(["json"])
        .hide(true);
    command.arg(format).mut_arg("json", |json| {
        json.default_value_if("output_format", ArgPredicate::Equals("json".into()), Some("true"))
    })
}

/// The long help has examples, which its text begins with, and the short one the first of them.
fn with_examples(command: Command) -> Command {
    let Some(long) = command.get_after_long_help().map(ToString::to_string) else { return command };
    let (examples, rest) = long.split_at(long.find("\n\n").unwrap_or(long.len()));
    let shown = |line: &str| format!("\n  {line}");
    let long = examples.lines().map(shown).collect::<String>();
    let first = examples.lines().take(SHORT_EXAMPLES);
    // One that goes on below would be cut.
    let short = first.take_while(|line| !line.ends_with('\\')).map(shown).collect::<String>();
    let command = command.after_long_help(format!("Examples:{long}{rest}"));
    if short.is_empty() { command } else { command.after_help(format!("Examples:{short}")) }
}

/// Whether our own arguments ask for JSON, for a command line that cannot be read.
pub fn asks_for_json<'a>(flags: impl Iterator<Item = &'a OsStr>) -> bool {
    let mut is_format = false;
    flags.into_iter().any(|flag| {
        let is_value = std::mem::replace(
            &mut is_format,
            ["-o", "--output", "--format"].iter().any(|it| flag == *it),
        );
        (is_value && flag == "json")
            || ["--json", "-ojson", "--output=json", "--format=json"].iter().any(|it| flag == *it)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_in_each_usual_way() {
        for flags in [
            &["ps", "--json"][..],
            &["ps", "-o", "json"],
            &["ps", "-ojson"],
            &["ps", "--output", "json"],
            &["ps", "--output=json"],
            &["ps", "--format", "json"],
            &["fs", "ls", "-o", "json"],
            &["fs", "-o", "json", "ls"],
        ] {
            let cli = Cli::read(["sandboxctl"].iter().chain(flags)).unwrap();
            assert!(cli.json.is_some(), "{flags:?}");
            assert!(asks_for_json(flags.iter().map(OsStr::new)), "{flags:?}");
        }
        assert!(Cli::read(["sandboxctl", "ps", "-o", "yaml"]).is_err());
        assert!(Cli::read(["sandboxctl", "ps"]).unwrap().json.is_none());
        assert!(!asks_for_json(["ps", "-o", "yaml", "json"].map(OsStr::new).into_iter()));
    }

    #[test]
    fn arguments_define_the_commands_that_they_name() {
        fn paths(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
            assert_eq!(command.get_all_aliases().count(), 0, "an alias is not looked for");
            for command in command.get_subcommands() {
                let path = [path, &[command.get_name().to_owned()]].concat();
                paths(command, &path, found);
                found.push(path);
            }
        }
        let mut found = Vec::new();
        paths(&command(), &["sandboxctl".to_owned()], &mut found);
        assert!(found.len() > 20, "{found:?}");
        for path in found {
            for last in ["-h", "--help", "--no-such-flag"] {
                let args: Vec<OsString> =
                    path.iter().map(String::as_str).chain([last]).map(OsString::from).collect();
                let said = |command: Command| {
                    command.try_get_matches_from(&args).unwrap_err().render().to_string()
                };
                assert_eq!(said(command_of(&args)), said(command()), "{path:?} {last}");
            }
        }
    }

    #[test]
    fn short_help_of_a_command_with_many_flags_fits_a_window() {
        for (name, lines) in SHORT_HELP {
            let mut whole = command().term_width(100);
            whole.build();
            let command = whole.find_subcommand_mut(name).unwrap();
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 40, "{} lines:\n{help}", help.lines().count());
            assert!(help.contains(&format!("sandboxctl {name} --help")), "{help}");
            for (flag, line) in *lines {
                assert!(help.contains(flag) && help.contains(line), "{flag}:\n{help}");
            }
        }
    }

    #[test]
    fn flags_of_all_commands_are_read_before_and_after_a_command_that_hides_them() {
        for args in [["--quiet", "run", "a.luau"], ["run", "--quiet", "a.luau"]] {
            assert!(
                Cli::read(["sandboxctl"].iter().chain(&args)).unwrap().global.quiet,
                "{args:?}"
            );
        }
    }

    #[test]
    fn an_unknown_subcommand_is_answered_with_those_that_exist() {
        for (args, expected) in [
            (&["token", "zzz"][..], "subcommands: create, ls, rotate, revoke"),
            (&["fs", "cat", "x"], "subcommands: read, write, edit, ls"),
            (&["nosuch"], "subcommands: run, exec, fs"),
        ] {
            let error = Cli::read(["sandboxctl"].iter().chain(args)).unwrap_err().to_string();
            assert!(error.contains(expected), "{args:?}: {error}");
        }
        let error = Cli::read(["sandboxctl", "help", "nosuch"]).unwrap_err().to_string();
        assert!(!error.contains("tip:"), "{error}");
    }

    #[test]
    fn tip_names_a_flag_that_the_command_has() {
        for (args, expected) in [
            (&["receipt", "verify", "r.json", "--dir", "out"][..], "--artifacts DIR"),
            (&["exec", "--cwd", "/x", "debian:13"], "--workdir DIR"),
            (&["exec", "--debug", "debian:13"], "--verbose prints more"),
        ] {
            let error = Cli::read(["sandboxctl"].iter().chain(args)).unwrap_err().to_string();
            assert!(error.contains(expected), "{args:?}: {error}");
        }
        let error = Cli::read(["sandboxctl", "keys", "new", "k", "--cwd=/x"]).unwrap_err();
        assert!(!error.to_string().contains("--workdir"), "{error}");
    }

    #[test]
    fn verbosity_and_a_mount_are_distinguished() {
        let verbose =
            |args: &[&str]| Cli::read(["sandboxctl"].iter().chain(args)).unwrap().global.verbose;
        assert_eq!(verbose(&["ps", "-vv"]), 2);
        assert_eq!(verbose(&["run", "x.luau", "--verbose", "--verbose"]), 2);
        assert_eq!(verbose(&["exec", "--verbose", "-v", "./a:/b", "debian", "ls", "-v"]), 1);
        assert_eq!(verbose(&["-v", "run", "x.luau"]), 1);
        assert!(Cli::read(["sandboxctl", "run", "x.luau", "-v"]).is_err());
    }

    #[test]
    fn quiet_of_ps_prints_ids_only() {
        let cli = Cli::read(["sandboxctl", "ps", "-q"]).unwrap();
        assert!(cli.global.quiet);
        assert!(matches!(cli.command, super::super::Command::Ps(args) if args.quiet));
    }
}
