//! `exec`: its flags and their help.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, Args, ValueHint};

use super::allow::AllowArgs;
use super::limits::{CommandLimits, LimitArgs};
use super::root::RootArgs;
use super::{BoundsArgs, FileArgs};
use crate::config::{Flags, Key, Scope, Value};

/// `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Program and arguments; options after the program belong to it
    #[arg(value_name = "COMMAND", value_hint = ValueHint::Other, trailing_var_arg = true,
        required_unless_present = "shell", num_args = 1..)]
    pub command: Vec<OsString>,

    /// Run this line with the image's /bin/sh instead of COMMAND
    #[arg(long, value_name = "LINE", value_hint = ValueHint::Other, conflicts_with = "command",
        allow_hyphen_values = true)]
    pub shell: Option<OsString>,

    /// Set an environment variable, or pass on the caller's if no value is given; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]", value_hint = ValueHint::Other,
        value_parser = variable())]
    pub env: Vec<Variable>,

    /// Working directory in the sandbox; a relative path is below the io dir [default: the io dir,
    /// else the image's]
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::Other)]
    pub workdir: Option<OsString>,

    /// Pass stdin on to the command; without this its stdin is empty
    #[arg(short = 'i', long, visible_alias = "interactive")]
    pub stdin: bool,

    /// Print one JSON document (sandboxctl.exec/1) at the end; it has the first bytes of the output
    #[arg(long)]
    pub json: bool,

    /// What bounds it.
    #[command(flatten)]
    bounds: BoundsArgs,

    /// Its files.
    #[command(flatten)]
    pub files: FileArgs,

    /// Mount no directory of the host
    #[arg(long, help_heading = "Files", conflicts_with_all = ["io_dir", "inputs", "mount_path"])]
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
}

impl ExecArgs {
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
    let own = |key: &Key| key.flag().and_then(|flag| flag.strip_prefix("--")) == arg.get_long();
    match Key::exec().find(own) {
        Some(key) => arg.help(key.help()),
        None => arg,
    }
}

/// `-e NAME=VALUE`, or `-e NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: OsString,
    /// Its value; the caller's variable where there is none.
    pub value: Option<OsString>,
}

fn variable() -> impl TypedValueParser<Value = Variable> {
    OsStringValueParser::new().try_map(|written| Variable::parse(&written))
}

impl Variable {
    fn parse(written: &OsStr) -> Result<Self, &'static str> {
        let bytes = written.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        match name {
            b"" => Err("there is no name before the '='"),
            b"HOME" => Err("HOME is the io dir, or /tmp, and nothing else"),
            _ => Ok(Self {
                name: OsStr::from_bytes(name).to_owned(),
                value: value.map(|value| OsStr::from_bytes(value).to_owned()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sandbox_api::{Pull, RootFs};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::Settings;
    use crate::environment::Environment;

    fn parse(args: &[&str]) -> Result<Box<ExecArgs>, String> {
        let all = ["sandboxctl", "exec"].iter().chain(args);
        match Cli::try_parse_from(all).map(|cli| cli.command) {
            Ok(Command::Exec(args)) => Ok(args),
            Ok(other) => panic!("it is no other command: {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn arguments_after_the_command_belong_to_it() {
        for separator in [&["--"][..], &[]] {
            let given = ["--image", "debian", "-e", "A=1"];
            let command = ["ls", "-e", "--json", "--", "-i"];
            let args = parse(&[&given, separator, &command].concat()).unwrap();
            assert_eq!(args.command, command);
            assert_eq!((args.json, args.stdin, args.env.len()), (false, false, 1));
        }
        let args = parse(&["--image", "debian", "--", "--version"]).unwrap();
        assert_eq!(args.command, ["--version"]);
        // A flag that is none is not taken for the command.
        assert!(parse(&["--imag", "debian", "ls"]).unwrap_err().contains("'--image'"));
    }

    #[test]
    fn a_command_is_a_program_or_a_line_for_the_shell() {
        assert!(parse(&["--image", "debian"]).unwrap_err().contains("COMMAND"));
        assert!(parse(&["--image", "debian", "--"]).unwrap_err().contains("COMMAND"));
        let args = parse(&["--image", "debian", "--shell", "ls | wc -l"]).unwrap();
        assert_eq!(args.shell.as_deref(), Some(OsStr::new("ls | wc -l")));
        assert!(parse(&["--shell", "ls", "wc"]).unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn variables_have_a_name_and_any_value() {
        let args = parse(&["-e", "A=b=c", "-eB=", "--env", "C", "true"]).unwrap();
        let made = |name: &str, value: Option<&str>| Variable {
            name: name.into(),
            value: value.map(OsString::from),
        };
        assert_eq!(args.env, [made("A", Some("b=c")), made("B", Some("")), made("C", None)]);
        for (wrong, why) in [("=x", "no name"), ("", "no name"), ("HOME=/root", "HOME is the io")] {
            let refusal = parse(&["-e", wrong, "true"]).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("--env"), "{refusal}");
        }
    }

    #[test]
    fn one_flag_says_what_the_sandbox_is_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::made_up(folder.path(), &[]);
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
