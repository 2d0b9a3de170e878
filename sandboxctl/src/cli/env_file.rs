//! `-e` and `--env-file FILE`: the variables of a command, as Docker's files have them.
//!
//! A line is `NAME=VALUE`, or `NAME` to pass on the caller's variable. The value is everything after
//! the first `=`: quotes and `#` are part of it. White space before a name, empty lines, and lines
//! that begin with `#` do not count.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::without_bom;

use super::values::written;
use crate::error::Error;
use crate::input::{read_file, reason};

/// What the caller does about a line that cannot be used.
const HINT: &str = "a line is NAME=VALUE, or NAME to pass on your own; # begins a comment";

/// `-e NAME=VALUE`, or `-e NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: OsString,
    /// Its value; without one, the caller's variable.
    pub value: Option<OsString>,
}

impl Variable {
    pub(super) fn parse(written: &OsStr) -> Result<Self, &'static str> {
        let bytes = written.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        match name {
            b"" => Err("there is no name before the '='"),
            _ => Ok(Self {
                name: OsStr::from_bytes(name).to_owned(),
                value: value.map(|value| OsStr::from_bytes(value).to_owned()),
            }),
        }
    }
}

/// The environment variables of a command.
#[derive(Debug, Args)]
pub struct VariableArgs {
    /// Set an environment variable, or pass on the caller's if no value is given; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = written(Variable::parse))]
    env: Vec<Variable>,

    /// Set the variables of this file: NAME=VALUE lines, as Docker reads them; --env wins; repeatable
    #[arg(long = "env-file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    env_files: Vec<PathBuf>,
}

impl VariableArgs {
    /// Those of files, and then those of flags: the last one of a name counts.
    ///
    /// # Errors
    ///
    /// As [`read`].
    pub fn read(&self) -> Result<Vec<Variable>, Error> {
        read_all(&self.env_files, &self.env)
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.env_files.iter().map(PathBuf::as_path)
    }
}

/// The variables of files, and then those of flags.
///
/// # Errors
///
/// As [`read`].
pub fn read_all(files: &[PathBuf], flags: &[Variable]) -> Result<Vec<Variable>, Error> {
    let files = files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
    Ok(files.into_iter().flatten().chain(flags.iter().cloned()).collect())
}

/// The variables of a file, in order.
///
/// # Errors
///
/// If it cannot be read or is too large, or a line is invalid: its number is named, its value is
/// not.
pub fn read(file: &Path) -> Result<Vec<Variable>, Error> {
    let flag = || format!("--env-file {}", file.display());
    let refuse = |why: String| Error::usage(flag(), why).with_hint(HINT);
    let read = read_file(file, MAX_COMMAND_BYTES);
    let bytes = read.map_err(|error| refuse(reason(&error)))?;
    let text = without_bom(&bytes);
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let name = line.split(|&byte| byte == b'=').next().unwrap_or_default();
        let why = if name.iter().any(u8::is_ascii_whitespace) {
            Err("the name has white space in it")
        } else if line.contains(&0) {
            Err("it has a NUL byte")
        } else {
            Variable::parse(OsStr::from_bytes(line)).map(|variable| variables.push(variable))
        };
        why.map_err(|why| refuse(format!("line {number}: {why}")))?;
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content: &[u8]) -> Result<Vec<(String, Option<String>)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("env");
        std::fs::write(&file, content).unwrap();
        let text = |it: &OsStr| it.to_str().unwrap().to_owned();
        let read = read(&file)
            .map_err(|error| error.to_text().replace(folder.path().to_str().unwrap(), ""))?;
        Ok(read.iter().map(|it| (text(&it.name), it.value.as_deref().map(text))).collect())
    }

    #[test]
    fn lines_are_variables_as_docker_reads_them() {
        let content =
            b"\xef\xbb\xbf# comment\n\n  A=1\r\nB='x y' # z\nC=\nD\nA==2\n\t#E=1\nHOME= v ";
        let expected = [
            ("A", Some("1")),
            ("B", Some("'x y' # z")),
            ("C", Some("")),
            ("D", None),
            ("A", Some("=2")),
            ("HOME", Some(" v ")),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        assert_eq!(of(content).unwrap(), expected);
        assert_eq!(of(b"").unwrap(), []);
    }

    #[test]
    fn invalid_line_is_named_by_its_number_without_its_value() {
        for (content, why) in [
            (&b"A=1\nexport B=hunter2\n"[..], "line 2: the name has white space in it"),
            (b"=hunter2", "line 1: there is no name before the '='"),
            (b"A=hunter2\0", "line 1: it has a NUL byte"),
            (&vec![b'x'; MAX_COMMAND_BYTES + 1], "it is longer than 512 KiB"),
        ] {
            let error = of(content).unwrap_err();
            assert_eq!(error, format!("--env-file /env: {why}\nhint: {HINT}"));
        }
        let error = read(Path::new("/no/such")).unwrap_err().to_text();
        assert!(error.starts_with("--env-file /no/such: No such file or directory"), "{error}");
    }
}
