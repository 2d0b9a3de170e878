//! `exec`: its flags and their help.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Args};
use sandbox_api::{RootFs, SignalName};

use super::allow::{AllowArgs, RulesArgs};
use super::artifacts::ArtifactArgs;
use super::changes::ChangesArgs;
use super::docker_flags::DockerFlags;
pub use super::env_file::{Variable, VariableArgs};
use super::limits::{CommandLimits, LimitArgs};
use super::receipt::ReceiptArgs;
use super::remote::RemoteArgs;
use super::report::ReportArgs;
use super::root::{RootArgs, image};
use super::sandbox::{BoundsArgs, FileArgs};
use super::secret::SecretArgs;
use super::values::{Utf8, signal, text};
use super::volume::VolumeArgs;
use crate::config::{Flags, Key, Scope, Settings, Value};
use crate::error::Error;
use crate::terminal::DetachKeys;

/// The two ways to write it.
const USAGE: &str = "sandboxctl exec IMAGE COMMAND…, or sandboxctl exec IMAGE --shell 'LINE'";
/// The two ways to write it for a service.
const USAGE_OF_SERVICE: &str = "sandboxctl exec IMAGE COMMAND…, or sandboxctl exec -- COMMAND… in \
                                the image that the service has for all";

/// `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The image, unless a flag names what to run in; then program and arguments; options after the
    /// first of them belong to the program
    #[arg(value_name = "IMAGE] [COMMAND", trailing_var_arg = true, num_args = 1..)]
    words: Vec<OsString>,

    /// `--` stands before the first of the words.
    #[arg(skip)]
    words_are_separated: bool,

    /// Run this line with the image's /bin/sh instead of COMMAND
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    shell: Option<OsString>,

    /// Its variables.
    #[command(flatten)]
    pub variables: VariableArgs,

    /// Secrets for the script or command.
    #[command(flatten)]
    pub secrets: SecretArgs,

    /// Working directory in the sandbox; a relative path is below the io dir [default: the io dir,
    /// else the image's]
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<OsString>,

    /// Pass stdin on to the command; without this its stdin is empty
    #[arg(short = 'i', long, visible_alias = "interactive")]
    pub stdin: bool,

    /// Give the command a terminal; with -i it is this one
    #[arg(short = 't', long, conflicts_with = "json")]
    pub tty: bool,

    /// Keys that cancel a command with -it: ctrl-X or characters, with commas; empty for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", requires = "tty",
        value_parser = text::<DetachKeys>())]
    pub detach_keys: DetachKeys,

    /// Print stderr on stdout, in the order of writing
    #[arg(long)]
    pub merge: bool,

    /// The signal that asks the command to end, before it is killed [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = Utf8(signal))]
    pub stop_signal: Option<SignalName>,

    /// Print one JSON document (sandboxctl.exec/1) at the end; it has the first bytes of the output
    #[arg(long)]
    pub json: bool,

    /// Pass every control sequence of the command on to a terminal
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,

    /// What bounds it.
    #[command(flatten)]
    bounds: BoundsArgs,

    /// Its files.
    #[command(flatten)]
    pub files: FileArgs,

    /// Mount no directory of the host
    #[arg(long, help_heading = "Files",
        conflicts_with_all = ["io_dir", "inputs", "mount_path", "volumes"])]
    no_io: bool,

    /// Keep the files of a fresh io dir in ./sandbox-files-ID, and print its path
    #[arg(long, help_heading = "Files", conflicts_with_all = ["io_dir", "no_io"])]
    pub keep: bool,

    /// What it may use.
    #[command(flatten)]
    limits: LimitArgs<CommandLimits>,

    /// What it runs in.
    #[command(flatten)]
    pub root: RootArgs,

    /// Whom it may reach.
    #[command(flatten)]
    allow: AllowArgs,

    /// What it may reach and call beyond that, and what is learnt of it.
    #[command(flatten)]
    pub rules: RulesArgs,

    /// What is copied out of its io dir.
    #[command(flatten)]
    pub artifacts: ArtifactArgs,

    /// What becomes of its changes.
    #[command(flatten)]
    pub changes: ChangesArgs,

    /// What it made of what.
    #[command(flatten)]
    pub receipt: ReceiptArgs,

    /// Record the command and its working directory in the receipt, so that `replay` knows them
    #[arg(long, help_heading = "Receipt", requires = "receipt")]
    pub receipt_argv: bool,

    /// Where its result is written to, in addition to the live output.
    #[command(flatten)]
    pub reports: ReportArgs,

    /// Which service runs it, if one does.
    #[command(flatten)]
    pub remote: RemoteArgs,

    /// Mounts as Docker writes them.
    #[command(flatten)]
    pub volumes: VolumeArgs,

    /// What Docker's users type.
    #[command(flatten)]
    pub docker_flags: DockerFlags,
}

/// What runs, and what in.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// What it runs in.
    pub root: RootFs,
    /// The first word named the image.
    pub image_is_a_word: bool,
    /// What runs.
    pub command: CommandLine,
}

/// Where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On this machine.
    Here,
    /// On a service, which may have an image for requests that name none.
    Service,
}

/// What `exec` runs.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A program and its arguments.
    Program(OsString, Vec<OsString>),
    /// A line for the shell.
    Shell(OsString),
}

impl CommandLine {
    /// Its words for people.
    pub fn text(&self) -> String {
        match self {
            Self::Shell(line) => line.to_string_lossy().into_owned(),
            Self::Program(program, args) => {
                let words = std::iter::once(program).chain(args);
                words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

impl ExecArgs {
    /// What to run, and what in. Where no flag says what to run in, the first word is an image:
    /// the sandbox image has no programs. A service may have an image for all: there the words after
    /// `--`, and a line for the shell without a word, run in that one.
    ///
    /// # Errors
    ///
    /// If one of the two is missing.
    pub fn target(&self, settings: &Settings, place: Place) -> Result<Target, Error> {
        let mut words = self.words.iter().peekable();
        let usage = match place {
            Place::Here => USAGE,
            Place::Service => USAGE_OF_SERVICE,
        };
        let names_no_image =
            self.words_are_separated || self.shell.is_some() && self.words.is_empty();
        let is_left_out = place == Place::Service && names_no_image;
        let image_is_a_word = !self.root.is_named() && !is_left_out;
        let root = match image_is_a_word {
            false => self.root.root(settings),
            true => {
                let word = words.next().ok_or_else(|| {
                    Error::usage("IMAGE", "there is nothing to run the command in").with_hint(usage)
                })?;
                let reference = word.to_str().filter(|word| !word.is_empty());
                let reference = reference
                    .ok_or_else(|| Error::usage("IMAGE", "it is empty or not UTF-8 text"))?;
                words.next_if(|word| *word == "--");
                image(reference, settings)
            }
        };
        let command = match (&self.shell, words.next()) {
            (Some(line), None) => CommandLine::Shell(line.clone()),
            (Some(_), Some(word)) => {
                let why = "the line for the shell is the whole command";
                let what = format!("'{}'", word.to_string_lossy());
                return Err(Error::usage(what, why).with_hint(usage));
            }
            (None, Some(flag)) if image_is_a_word && flag == "--shell" && words.len() == 1 => {
                CommandLine::Shell(words.next().cloned().unwrap_or_default())
            }
            (None, None) => return Err(Error::usage("COMMAND", "it is missing").with_hint(usage)),
            (None, Some(program)) if program.is_empty() => {
                return Err(Error::usage("COMMAND", "it is empty"));
            }
            // Options after the image would be the program's.
            (None, Some(option)) if image_is_a_word && self.is_misplaced(option) => {
                let option = option.to_string_lossy();
                let image = self.words.first().map(|it| it.to_string_lossy()).unwrap_or_default();
                let of_service = match place {
                    Place::Here => String::new(),
                    Place::Service => format!(
                        ", or exec -- {image} {option} … in the image that the service has for all"
                    ),
                };
                let hint = format!(
                    "'{image}' is read as the image: exec IMAGE {image} {option} …{of_service}; \
                     options of sandboxctl stand before the image"
                );
                return Err(
                    Error::usage("COMMAND", format!("'{option}' is not a program")).with_hint(hint)
                );
            }
            (None, Some(program)) => {
                CommandLine::Program(program.clone(), words.cloned().collect())
            }
        };
        Ok(Target { root, image_is_a_word, command })
    }

    /// Whether the word that names the image may have been meant as the command: no `--` follows it.
    pub fn image_may_be_the_command(&self) -> bool {
        !self.root.is_named() && self.words.get(1).is_none_or(|word| word != "--")
    }

    /// Finds out whether `--` stands before the words, which are the last arguments: clap does not say.
    pub(super) fn find_separator(&mut self, arguments: &[OsString]) {
        let before = arguments.len().checked_sub(self.words.len() + 1);
        self.words_are_separated = before.is_some_and(|at| arguments[at] == "--");
    }

    /// Whether an option follows the image directly.
    fn is_misplaced(&self, program: &OsStr) -> bool {
        program.as_bytes().starts_with(b"-") && self.words.get(1).is_some_and(|it| it == program)
    }

    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.scope = Scope::Exec;
        self.files.add_flags(flags);
        self.bounds.add_flags(flags);
        self.root.add_flags(flags);
        self.allow.add_flags(flags);
        flags.set(Key::IoEnabled, self.no_io.then_some(Value::Switch(false)));
        self.limits.add_flags(flags);
    }
}

/// Flags that other commands have too are for limits of `exec` here, with defaults of their own.
pub fn with_limits_of_exec(arg: Arg) -> Arg {
    if arg.get_id() == "protect" {
        // It holds scripts and file operations; a command with it is refused.
        return arg.hide(true);
    }
    let own = |key: &Key| key.flag().and_then(|flag| flag.strip_prefix("--")) == arg.get_long();
    if arg.get_id() == "io_dir" {
        return arg
            .help("Writable directory of the host [default: a fresh one, discarded at the end]");
    }
    match Key::exec().find(own) {
        Some(key) => arg.help(key.help()),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_api::{Pull, RootFs};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::Settings;
    use sandbox_env::Environment;

    fn parse(args: &[&str]) -> Result<ExecArgs, String> {
        let all = ["sandboxctl", "exec"].iter().chain(args);
        match Cli::read(all).map(|cli| cli.command) {
            Ok(Command::Exec(args)) => Ok(*args.0),
            Ok(other) => panic!("it is no other command: {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn target(args: &[&str]) -> Result<Target, String> {
        target_at(Place::Here, args)
    }

    fn target_at(place: Place, args: &[&str]) -> Result<Target, String> {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::new(folder.path(), 1000, &[]);
        let args = parse(args)?;
        let mut flags = Flags::default();
        args.add_flags(&mut flags);
        let settings = Settings::load(&environment, flags).unwrap();
        args.target(&settings, place).map_err(|error| error.to_text())
    }

    fn program(words: &[&str]) -> CommandLine {
        let mut words = words.iter().map(OsString::from);
        CommandLine::Program(words.next().unwrap(), words.collect())
    }

    #[test]
    fn arguments_after_the_command_belong_to_it() {
        for separator in [&["--"][..], &[]] {
            let given = ["--image", "debian", "-e", "A=1"];
            let command = ["ls", "-e", "--json", "--", "-i"];
            let all = [&given, separator, &command].concat();
            assert_eq!(target(&all).unwrap().command, program(&command));
            let args = parse(&all).unwrap();
            assert_eq!(
                (args.json, args.stdin, args.variables.read().unwrap().len()),
                (false, false, 1)
            );
        }
        let version = target(&["--image", "debian", "--", "--version"]).unwrap();
        assert_eq!(version.command, program(&["--version"]));
        // An unknown flag is not taken for the command.
        assert!(parse(&["--imag", "debian", "ls"]).unwrap_err().contains("'--image'"));
    }

    #[test]
    fn first_word_is_the_image_unless_a_flag_names_one() {
        let image = |name: &str| RootFs::Image { reference: name.into(), pull: Pull::Missing };
        let debian = image("debian:13");
        for words in [
            &["debian:13", "ls", "-l", "--", "x"][..],
            &["debian:13", "--", "ls", "-l", "--", "x"],
            &["--", "debian:13", "ls", "-l", "--", "x"],
            &["-e", "A=1", "debian:13", "ls", "-l", "--", "x"],
        ] {
            let made = target(words).unwrap();
            assert_eq!((&made.root, made.image_is_a_word), (&debian, true), "{words:?}");
            assert_eq!(made.command, program(&["ls", "-l", "--", "x"]), "{words:?}");
        }
        let named = target(&["--image", "debian:13", "ls", "-l"]).unwrap();
        assert_eq!((named.root, named.image_is_a_word), (debian, false));
        assert_eq!(named.command, program(&["ls", "-l"]));
        for (words, why) in [
            (&[][..], "IMAGE: there is nothing to run"),
            (&["debian"], "COMMAND: it is missing"),
            (&["debian", "--"], "COMMAND: it is missing"),
            (&["--image", "debian"], "COMMAND: it is missing"),
            (&["debian", ""], "COMMAND: it is empty"),
            (&["", "ls"], "IMAGE: it is empty"),
            (&["debian", "--timeout", "5s", "ls"], "stand before the image"),
        ] {
            let refused = target(words).unwrap_err();
            assert!(refused.contains(why), "{words:?}: {refused}");
        }
        // After an explicit `--` it is accepted.
        assert!(target(&["debian", "--", "--version"]).is_ok());
    }

    #[test]
    fn command_after_the_separator_names_no_image_for_a_service() {
        let at_service = |words: &[&str]| target_at(Place::Service, words);
        for words in [&["--", "ls", "-l"][..], &["-e", "A=1", "--", "ls", "-l"]] {
            let made = at_service(words).unwrap();
            assert_eq!((made.root, made.image_is_a_word), (RootFs::Builtin, false), "{words:?}");
            assert_eq!(made.command, program(&["ls", "-l"]), "{words:?}");
        }
        let line = at_service(&["--shell", "ls | wc -l"]).unwrap();
        assert_eq!(
            (line.root, line.command),
            (RootFs::Builtin, CommandLine::Shell("ls | wc -l".into()))
        );
        for words in [
            &["debian:13", "--", "ls", "-l"][..],
            &["debian:13", "ls", "-l"],
            &["--image", "debian:13", "--", "ls", "-l"],
        ] {
            let made = at_service(words).unwrap();
            assert!(matches!(made.root, RootFs::Image { .. }), "{words:?}");
            assert_eq!(made.command, program(&["ls", "-l"]), "{words:?}");
        }
        let refused = at_service(&["uname", "-a"]).unwrap_err();
        assert!(refused.contains("exec -- uname -a … in the image that the service"), "{refused}");
        for words in [&["uname"][..], &["--"], &[]] {
            let refused = at_service(words).unwrap_err();
            assert!(refused.contains("sandboxctl exec -- COMMAND…"), "{words:?}: {refused}");
        }
    }

    #[test]
    fn a_command_is_a_program_or_a_line_for_the_shell() {
        let line = CommandLine::Shell("ls | wc -l".into());
        assert_eq!(target(&["--image", "debian", "--shell", "ls | wc -l"]).unwrap().command, line);
        assert_eq!(target(&["--shell", "ls | wc -l", "debian"]).unwrap().command, line);
        assert_eq!(target(&["debian", "--shell", "ls | wc -l"]).unwrap().command, line);
        let refused = target(&["--shell", "ls", "debian", "wc"]).unwrap_err();
        assert!(refused.contains("'wc': the line for the shell is the whole command"), "{refused}");
    }

    #[test]
    fn docker_users_may_write_what_holds_anyway() {
        assert!(target(&["--rm", "--network", "none", "debian", "ls"]).is_ok());
        assert!(target(&["--network=host", "debian", "ls"]).unwrap_err().contains("--allow"));
    }

    #[test]
    fn variables_have_a_name_and_any_value() {
        let args = parse(&["-e", "A=b=c", "-eB=", "--env", "C", "true"]).unwrap();
        let made = |name: &str, value: Option<&str>| Variable {
            name: name.into(),
            value: value.map(OsString::from),
        };
        assert_eq!(
            args.variables.read().unwrap(),
            [made("A", Some("b=c")), made("B", Some("")), made("C", None)]
        );
        for wrong in ["=x", ""] {
            let refusal = parse(&["-e", wrong, "true"]).unwrap_err();
            assert!(refusal.contains("no name") && refusal.contains("--env"), "{refusal}");
        }
    }

    #[test]
    fn one_flag_says_what_the_sandbox_is_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::new(folder.path(), 1000, &[]);
        let root = |args: &[&str]| {
            let args = parse(&[args, &["true"]].concat())?;
            let mut flags = Flags::default();
            args.add_flags(&mut flags);
            Ok::<_, String>(args.root.root(&Settings::load(&environment, flags).unwrap()))
        };
        assert_eq!(root(&[]), Ok(RootFs::Builtin));
        let image = |pull| Ok(RootFs::Image { reference: "debian:13".to_owned(), pull });
        assert_eq!(root(&["--image", "debian:13"]), image(Pull::Missing));
        assert_eq!(root(&["--image", "debian:13", "--pull", "never"]), image(Pull::Never));
        assert_eq!(root(&["--rootfs", "/srv/x"]), Ok(RootFs::Directory("/srv/x".into())));
        assert_eq!(root(&["--image-archive", "x.tar"]), Ok(RootFs::Archive("x.tar".into())));
        assert!(root(&["--image", "a", "--rootfs", "b"]).is_err());
        assert!(root(&["--rootfs", "a", "--image-archive", "b"]).is_err());
    }
}
