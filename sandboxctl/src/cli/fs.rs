//! `fs`: its commands, flags and their help.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use sandbox_api::Encoding;
use sandbox_api::files::Timestamp;
use sandbox_api::operation::{Chmod, Mkdir, Operation, Remove, Rename, Touch};
use sandbox_api::time::parse_rfc3339;
use sandbox_protocol::WireString;

use super::limits::{LimitArgs, OperationLimits};
use super::sandbox::SandboxArgs;
use super::values::{Utf8, text, written};
use crate::config::Flags;
use crate::input;

/// `fs`.
#[derive(Debug, Args)]
pub struct FsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: FsCommand,

    /// Print the result as JSON: {"success", "data", "error", "metadata"}
    #[arg(long, global = true)]
    pub json: bool,

    /// The same, as other tools name it
    // A default of `json` would not reach the commands below.
    #[arg(short = 'o', long = "output", alias = "format", global = true, hide = true,
        value_parser = ["json"])]
    pub(super) output_format: Option<String>,

    /// The sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// What an operation may use.
    #[command(flatten)]
    limits: LimitArgs<OperationLimits>,
}

impl FsArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        self.sandbox.add_flags(flags);
        self.limits.add_flags(flags);
    }

    /// Whether stdout has JSON, also after errors.
    pub const fn wants_json(&self) -> bool {
        self.json || matches!(self.command, FsCommand::Batch(_))
    }
}

/// An operation, or many.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Print a file, or a range of it
    #[command(after_long_help = "\
sandboxctl fs read report.csv
sandboxctl fs read app.log --lines 100:120
sandboxctl fs read photo.png --offset 8 --limit 16 --encoding hex
sandboxctl fs read report.csv --json")]
    Read(ReadArgs),

    /// Write stdin or --content to a file
    ///
    /// Readers see the old file or the new one, never a part, unless --append or --in-place is given.
    #[command(after_long_help = "\
sandboxctl fs write notes/today.txt --content 'first line'
sort names.txt | sandboxctl fs write names.txt
echo 'one more' | sandboxctl fs write log.txt --append")]
    Write(WriteArgs),

    /// Replace text in a UTF-8 file
    ///
    /// The text must occur exactly --count times; otherwise nothing changes.
    #[command(after_long_help = "\
sandboxctl fs edit config.toml --old 'debug = true' --new 'debug = false'
sandboxctl fs edit main.lua --old-file old.txt --new-file new.txt --count 2")]
    Edit(EditArgs),

    /// List a directory
    #[command(after_long_help = "\
sandboxctl fs ls
sandboxctl fs ls reports -l
sandboxctl fs ls -R --max-depth 3 --json")]
    Ls(LsArgs),

    /// Find paths by a pattern
    ///
    /// Within a name, * and ? match; ** matches any directories; there are [a-z] and {a,b}. Quote the
    /// pattern, so that the shell leaves it alone. Paths are printed relative where the pattern is.
    #[command(after_long_help = "\
sandboxctl fs glob '*.csv'
sandboxctl fs glob 'src/**/*.{rs,toml}' --hidden
sandboxctl fs glob 'reports/*/' --json")]
    Glob(GlobArgs),

    /// Find lines in files by a regular expression: exit code 1 without a match
    ///
    /// Any other exit code than 0 and 1 is an error. Binary files are searched up to their first NUL.
    #[command(after_long_help = "\
sandboxctl fs grep 'TODO|FIXME'
sandboxctl fs grep -i error logs --glob '*.log' --context 2
sandboxctl fs grep '^import' main.py --json")]
    Grep(GrepArgs),

    /// A change without a result to print.
    #[command(flatten)]
    Change(ChangeCommand),

    /// Test whether a path exists: exit code 0 if it does, 1 if not
    ///
    /// Any other exit code is an error.
    #[command(after_long_help = "\
sandboxctl fs exists out.csv && echo yes
sandboxctl fs exists out.csv --json")]
    Exists {
        /// The path
        #[arg(value_parser = guest())]
        path: OsString,
    },

    /// Print the metadata of a file or directory
    #[command(after_long_help = "\
sandboxctl fs stat out.csv
sandboxctl fs stat out.csv --json")]
    Stat {
        /// The path
        #[arg(value_parser = guest())]
        path: OsString,
    },

    /// Copy a file into, out of or within the sandbox
    ///
    /// A path that begins with a colon is in the sandbox; - is stdin or stdout. In a target directory
    /// the file keeps its name. The copy of a file is atomic.
    #[command(after_long_help = "\
sandboxctl fs cp data.csv :
sandboxctl fs cp data.csv :input/data.csv
sandboxctl fs cp :report.pdf .
sandboxctl fs cp :report.pdf - | lpr
sandboxctl fs cp -r :template :project")]
    Cp {
        /// The file to copy
        #[arg(value_hint = ValueHint::FilePath, value_parser = written(Side::parse))]
        from: Side,
        /// The destination
        #[arg(value_hint = ValueHint::AnyPath, value_parser = written(Side::parse))]
        to: Side,
        /// Copy a directory with its contents; within the sandbox only
        #[arg(short, long)]
        recursive: bool,
    },

    /// Run many operations in one sandbox: one JSON object per line in, one result per line out
    ///
    /// Operations run in order. The first failure stops the batch and sets the exit code.
    #[command(after_long_help = "\
sandboxctl fs batch operations.ndjson
echo '{\"operation\":\"list\",\"path\":\".\"}' | sandboxctl fs batch
sandboxctl fs batch --keep-going < operations.ndjson > results.ndjson")]
    Batch(BatchArgs),
}

/// A change that prints nothing. Its flags are the whole operation.
#[derive(Debug, Subcommand)]
pub enum ChangeCommand {
    /// Create a directory and its missing parents
    #[command(after_long_help = "sandboxctl fs mkdir reports/2026")]
    Mkdir {
        /// The directory
        #[arg(value_parser = guest())]
        path: OsString,
        /// Do not create missing parents
        #[arg(long)]
        no_parents: bool,
        // What fingers type.
        #[arg(short = 'p', long, hide = true, overrides_with = "no_parents")]
        parents: bool,
    },

    /// Create an empty file, or set when a file or directory was last modified
    #[command(after_long_help = "\
sandboxctl fs touch done
sandboxctl fs touch report.csv --mtime 2026-11-22T06:11:28Z")]
    Touch {
        /// The file or directory
        #[arg(value_parser = guest())]
        path: OsString,
        /// The time in RFC 3339, in place of now
        #[arg(long, value_name = "TIME", value_parser = Utf8(time))]
        mtime: Option<Timestamp>,
    },

    /// Remove a file or a directory
    #[command(after_long_help = "\
sandboxctl fs rm old.csv
sandboxctl fs rm -rf cache")]
    Rm {
        /// What to remove
        #[arg(value_parser = guest())]
        path: OsString,
        /// Remove a directory and its contents
        #[arg(short, long)]
        recursive: bool,
        /// Ignore nonexistent files
        #[arg(short, long)]
        force: bool,
    },

    /// Move or rename
    #[command(after_long_help = "\
sandboxctl fs mv draft.csv report.csv
sandboxctl fs mv -f draft.csv report.csv")]
    Mv {
        /// The old name
        #[arg(value_parser = guest())]
        from: OsString,
        /// The new name
        #[arg(value_parser = guest())]
        to: OsString,
        /// Replace an existing file
        #[arg(short = 'f', long, visible_alias = "force")]
        overwrite: bool,
        /// Create missing directories above the new name
        #[arg(short = 'p', long)]
        parents: bool,
    },

    /// Set the permissions of a file or a directory
    #[command(after_long_help = "\
sandboxctl fs chmod 755 run.sh
sandboxctl fs chmod -R 700 private")]
    Chmod {
        /// The permissions, in octal
        #[arg(value_name = "MODE", value_parser = Utf8(permissions))]
        permissions: u32,
        /// The file or directory
        #[arg(value_parser = guest())]
        path: OsString,
        /// Do so for all that is in a directory too
        #[arg(short = 'R', long)]
        recursive: bool,
    },
}

impl ChangeCommand {
    /// The operation.
    pub fn operation(&self) -> Operation {
        match *self {
            Self::Mkdir { path: ref directory, no_parents, .. } => {
                Mkdir { path: path(directory), parents: !no_parents }.into()
            }
            Self::Touch { path: ref touched, mtime } => Touch { path: path(touched), mtime }.into(),
            Self::Rm { path: ref removed, recursive, force } => {
                Remove { path: path(removed), recursive, force }.into()
            }
            Self::Mv { ref from, ref to, overwrite, parents } => {
                Rename { from: path(from), to: path(to), overwrite, parents }.into()
            }
            Self::Chmod { path: ref changed, permissions, recursive } => {
                Chmod { path: path(changed), permissions, recursive }.into()
            }
        }
    }
}

/// A guest path, of any bytes.
pub fn path(written: &OsStr) -> WireString {
    WireString::new(written.as_bytes())
}

/// `fs read`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The file
    #[arg(value_parser = guest())]
    pub path: OsString,

    /// Print these lines only, counted from 1: 3, 3:7, 3: or :7
    #[arg(long, value_name = "A:B", allow_hyphen_values = true, value_parser = text::<Lines>(),
        conflicts_with_all = ["offset", "limit", "encoding"])]
    pub lines: Option<Lines>,

    /// Begin at this byte, counted from 0
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = Utf8(number_of_bytes))]
    pub offset: Option<u64>,

    /// Print at most that many bytes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = Utf8(number_of_bytes))]
    pub limit: Option<u64>,

    /// Print the content as text: base64 or hex of the bytes, or UTF-8 of text in another encoding
    #[arg(long, value_parser = encoding())]
    pub encoding: Option<Encoding>,
}

/// `fs write`.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The file
    #[arg(value_parser = guest())]
    pub path: OsString,

    /// Write this text instead of stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub content: Option<OsString>,

    /// Decode the content from base64 or hex, or encode it from UTF-8 to another encoding
    #[arg(long, value_parser = encoding())]
    pub encoding: Option<Encoding>,

    /// Append to the file
    #[arg(long, conflicts_with = "create_new")]
    pub append: bool,

    /// Fail if the path exists
    #[arg(long)]
    pub create_new: bool,

    /// Do not create missing parents
    #[arg(long)]
    pub no_parents: bool,

    /// The permissions of a file that is created, in octal; an existing one keeps its own
    #[arg(long, value_name = "MODE", value_parser = Utf8(permissions))]
    pub permissions: Option<u32>,

    /// Overwrite the existing file, which keeps its owner and its hard links; not atomic
    #[arg(long, conflicts_with_all = ["append", "create_new"])]
    pub in_place: bool,
}

/// `fs edit`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// The file
    #[arg(value_parser = guest())]
    pub path: OsString,

    /// The text to replace
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true,
        value_parser = text::<String>(), required_unless_present = "old_file")]
    pub old: Option<String>,

    /// The replacement
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true,
        value_parser = text::<String>(), required_unless_present = "new_file")]
    pub new: Option<String>,

    /// File of the host with the text to replace
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "old")]
    pub old_file: Option<PathBuf>,

    /// File of the host with the replacement
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "new")]
    pub new_file: Option<PathBuf>,

    /// How often the text must occur
    #[arg(long, value_name = "NUMBER", default_value = "1", allow_hyphen_values = true,
        value_parser = Utf8(at_least_1))]
    pub count: NonZeroU64,
}

/// `fs ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// The directory
    #[arg(default_value = ".", value_parser = guest())]
    pub path: OsString,

    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,

    /// Print a table of type, size and modification time
    #[arg(short, long)]
    pub long: bool,

    /// Depth of the list; 1 is the directory alone
    #[arg(long, value_name = "NUMBER", requires = "recursive", allow_hyphen_values = true,
        value_parser = Utf8(at_least_1))]
    pub max_depth: Option<NonZeroU64>,

    /// Print at most that many entries
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = Utf8(at_least_1))]
    pub limit: Option<NonZeroU64>,
}

/// `fs glob`.
#[derive(Debug, Args)]
pub struct GlobArgs {
    /// The pattern
    #[arg(value_parser = text::<String>())]
    pub pattern: String,

    /// Print only paths of which the name, or with a slash the path, matches this glob too; `!GLOB` leaves
    /// out what matches it; repeatable
    #[arg(short, long = "glob", value_name = "GLOB", value_parser = text::<String>())]
    pub globs: Vec<String>,

    /// Match names that begin with a dot too
    #[arg(long)]
    pub hidden: bool,

    /// Print at most that many paths
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = Utf8(at_least_1))]
    pub limit: Option<NonZeroU64>,
}

/// `fs grep`.
#[derive(Debug, Args)]
pub struct GrepArgs {
    /// The regular expression
    #[arg(value_parser = text::<String>())]
    pub pattern: String,

    /// The file or directory to search
    #[arg(default_value = ".", value_parser = guest())]
    pub path: OsString,

    /// Ignore case
    #[arg(short, long)]
    pub ignore_case: bool,

    /// Search only files whose name, or with a slash whose path, matches this glob; `!GLOB` leaves out what
    /// matches it; repeatable
    #[arg(short, long = "glob", value_name = "GLOB", value_parser = text::<String>())]
    pub globs: Vec<String>,

    /// Print that many lines before and after each match, at most 100
    #[arg(short = 'C', long, value_name = "NUMBER", default_value = "0")]
    pub context: u64,

    /// Search files and directories whose names begin with a dot too, but not .git and its like
    #[arg(long)]
    pub hidden: bool,

    /// Print at most that many matches
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = Utf8(at_least_1))]
    pub limit: Option<NonZeroU64>,
}

/// `fs batch`.
#[derive(Debug, Args)]
pub struct BatchArgs {
    /// The operations, or - for stdin
    #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Continue after a failure; the exit code is the first failure's
    #[arg(long)]
    pub keep_going: bool,
}

/// Reads a guest path of any bytes, which is not empty.
fn guest() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|path| match path.is_empty() {
        true => Err("it is empty"),
        false => Ok(path),
    })
}

/// Reads a time.
fn time(text: &str) -> Result<Timestamp, &'static str> {
    match parse_rfc3339(text) {
        Some((seconds, nanoseconds)) => Ok(Timestamp { seconds, nanoseconds }),
        None => Err("expected a time in RFC 3339, such as 2026-11-22T06:11:28Z"),
    }
}

/// Reads a number from 1 on.
fn at_least_1(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 1 or more")
}

/// Reads permissions in octal.
fn permissions(text: &str) -> Result<u32, &'static str> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or("expected permissions in octal, such as 644")
}

/// Reads a number of bytes, without a unit.
fn number_of_bytes(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "expected a whole number of bytes, such as 4096")
}

/// Reads an encoding by its word.
fn encoding() -> impl TypedValueParser<Value = Encoding> {
    let words = Encoding::ALL.iter().map(|&encoding| match encoding {
        Encoding::Utf8 => PossibleValue::new(encoding.as_str()).alias("utf8"),
        _ => PossibleValue::new(encoding.as_str()),
    });
    Utf8(PossibleValuesParser::new(words).try_map(|word| Encoding::from_str(&word)))
}

/// Lines of a text, from 1, both ends included: `3`, `3:7`, `3:`, `:7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// The first.
    pub first: NonZeroU64,
    /// The last; none for the rest of the file.
    pub last: Option<NonZeroU64>,
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            // Digits alone: Rust's own would take a plus too.
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits);
            number.ok_or_else(|| match text {
                "" => "expected A:B, A:, :B or A".to_owned(),
                _ => format!("'{text}' is not a line number: lines are counted from 1"),
            })
        };
        let (first, last) = match text.split_once(':') {
            None => (number(text)?, Some(number(text)?)),
            Some(("", last)) => (NonZeroU64::MIN, Some(number(last)?)),
            Some((first, "")) => (number(first)?, None),
            Some((first, last)) => (number(first)?, Some(number(last)?)),
        };
        match last {
            Some(last) if last < first => Err(format!("line {last} is before line {first}")),
            _ => Ok(Self { first, last }),
        }
    }
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// A guest path, which was written after a colon.
    Sandbox(OsString),
    /// stdin or stdout.
    Stdio,
    /// A path of the host.
    Host(PathBuf),
}

impl Side {
    fn parse(written: &OsStr) -> Result<Self, &'static str> {
        match written.as_bytes() {
            b"" => Err("it is empty"),
            // The io dir's root, or wherever relative paths begin.
            b":" => Ok(Self::Sandbox(".".into())),
            [b':', path @ ..] => Ok(Self::Sandbox(OsStr::from_bytes(path).to_owned())),
            _ if input::is_stdin(Path::new(written)) => Ok(Self::Stdio),
            _ => Ok(Self::Host(written.into())),
        }
    }
}

/// As it is written.
impl fmt::Display for Side {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(path) => write!(formatter, ":{}", path.display()),
            Self::Stdio => formatter.write_str("-"),
            Self::Host(path) => write!(formatter, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &str) -> Result<(u64, Option<u64>), String> {
        let Lines { first, last } = text.parse()?;
        Ok((first.get(), last.map(NonZeroU64::get)))
    }

    #[test]
    fn lines_are_counted_from_1_with_both_ends() {
        assert_eq!(lines("3"), Ok((3, Some(3))));
        assert_eq!(lines("3:7"), Ok((3, Some(7))));
        assert_eq!(lines("3:"), Ok((3, None)));
        assert_eq!(lines(":7"), Ok((1, Some(7))));
        assert_eq!(lines("7:7"), Ok((7, Some(7))));
        for (text, why) in [
            ("", "expected A:B"),
            (":", "expected A:B"),
            ("0", "'0' is not a line number"),
            ("0:3", "'0' is not a line number"),
            ("3:0", "'0' is not a line number"),
            ("-1", "'-1' is not a line number"),
            ("+1", "'+1' is not a line number"),
            ("1:2:3", "'2:3' is not a line number"),
            ("1-3", "'1-3' is not a line number"),
            ("7:3", "line 3 is before line 7"),
            ("99999999999999999999", "is not a line number"),
        ] {
            let error = lines(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_side_with_a_colon_is_the_sandboxs() {
        let side = |text: &str| Side::parse(OsStr::new(text)).unwrap();
        assert_eq!(side(":dir/b.txt"), Side::Sandbox("dir/b.txt".into()));
        assert_eq!(side(":/io/a"), Side::Sandbox("/io/a".into()));
        assert_eq!(side(":"), Side::Sandbox(".".into()));
        assert_eq!(side("::a"), Side::Sandbox(":a".into()));
        assert_eq!(side("-"), Side::Stdio);
        assert_eq!(side("./:a"), Side::Host("./:a".into()));
        assert_eq!(side("a:b"), Side::Host("a:b".into()));
        assert!(Side::parse(OsStr::new("")).is_err());
        let bytes = OsStr::from_bytes(b":a\xff");
        assert_eq!(Side::parse(bytes), Ok(Side::Sandbox(OsStr::from_bytes(b"a\xff").to_owned())));
    }

    proptest! {
        #[test]
        fn lines_that_are_read_are_in_order(text in "[0-9:+-]{0,8}") {
            if let Ok((first, Some(last))) = lines(&text) {
                prop_assert!(1 <= first && first <= last);
            }
        }
    }
}
