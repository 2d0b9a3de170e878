//! Secrets: the flag of `run` and `exec`.
//!
//! The flag is parsed when it is read, and not by clap, whose errors repeat the value: a secret that
//! was typed by mistake must not be printed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;
use sandbox_api::{SecretValue, Secrets};
use sandbox_env::Environment;
use sandbox_protocol::limits::MAX_SECRET_BYTES;

use crate::error::Error;
use crate::input::reason;

const SOURCES: &str = "the source of a secret is env:VARIABLE, file:PATH or - (stdin): its value does \
                       not stand on the command line, where every process can read it";

/// Secrets for the script or command.
#[derive(Debug, Args)]
pub struct SecretArgs {
    /// Give secrets.NAME to a script, or the variable NAME to a command, from env:VARIABLE, file:PATH
    /// or - (stdin); its value is replaced by *** in logs, output and results; repeatable
    #[arg(long = "secret", value_name = "NAME=SOURCE", allow_hyphen_values = true)]
    secrets: Vec<OsString>,
}

/// Where a secret or a key comes from.
#[derive(Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// `env:VARIABLE`.
    Variable(&'a OsStr),
    /// `file:PATH`.
    File(&'a Path),
    /// `-`.
    Stdin,
}

impl<'a> Source<'a> {
    /// `None` if it is something else.
    pub fn parse(written: &'a [u8]) -> Option<Self> {
        match (written.strip_prefix(b"env:"), written.strip_prefix(b"file:"), written) {
            (Some(variable), ..) if !variable.is_empty() => {
                Some(Self::Variable(OsStr::from_bytes(variable)))
            }
            (_, Some(path), _) if !path.is_empty() => {
                Some(Self::File(Path::new(OsStr::from_bytes(path))))
            }
            (.., b"-") => Some(Self::Stdin),
            _ => None,
        }
    }

    /// Reads it, for the flag `flag`.
    ///
    /// # Errors
    ///
    /// If it is not there or cannot be read.
    pub fn read(&self, flag: &str, environment: &Environment) -> Result<SecretValue, Error> {
        match self {
            Self::Variable(variable) => {
                let found = environment.variables().find(|(known, _)| known == variable);
                let (_, value) = found.ok_or_else(|| {
                    let variable = variable.to_string_lossy();
                    Error::usage(flag, format!("{variable} is not set here"))
                        .with_hint("set the variable, or give a file: file:PATH")
                })?;
                Ok(SecretValue::new(value.as_bytes()))
            }
            Self::File(path) => File::open(path).and_then(content).map_err(|error| {
                Error::unusable(flag, path, &error)
                    .with_hint("file:PATH names a file that can be read")
            }),
            Self::Stdin => content(io::stdin().lock())
                .map_err(|error| Error::usage(flag, format!("stdin: {}", reason(&error)))),
        }
    }
}

impl SecretArgs {
    /// The files that they are read from.
    pub fn files(&self) -> Vec<&Path> {
        let parsed = self.secrets.iter().filter_map(|it| parse(it).ok());
        let file = |(_, source)| if let Source::File(path) = source { Some(path) } else { None };
        parsed.filter_map(file).collect()
    }

    /// Reads them. The second value is the argument that uses stdin, if one does; `stdin` is the one
    /// that uses it already.
    ///
    /// # Errors
    ///
    /// If one cannot be read or is invalid. No message has a value.
    pub fn read(
        &self,
        environment: &Environment,
        stdin: Option<&str>,
    ) -> Result<(Secrets, Option<String>), Error> {
        let parsed: Vec<_> = self.secrets.iter().map(|it| parse(it)).collect::<Result<_, _>>()?;
        let mut stdin = stdin.map(str::to_owned);
        for (name, _) in parsed.iter().filter(|(_, source)| *source == Source::Stdin) {
            take_stdin(&mut stdin, format!("--secret {name}=-"))?;
        }
        let mut secrets = Secrets::new();
        for (name, source) in parsed {
            let flag = format!("--secret {name}");
            let value = source.read(&flag, environment)?;
            secrets
                .add(name, value)
                .map_err(|error| Error::usage(flag, error.to_string()).with_hint(error.hint()))?;
        }
        Ok((secrets, stdin))
    }
}

/// Takes stdin for this flag, unless another argument uses it.
///
/// # Errors
///
/// If one does.
pub fn take_stdin(stdin: &mut Option<String>, flag: String) -> Result<(), Error> {
    if let Some(taken) = stdin {
        return Err(Error::usage(flag, format!("stdin is taken by {taken}"))
            .with_hint("env:VARIABLE and file:PATH are sources too"));
    }
    *stdin = Some(flag);
    Ok(())
}

fn parse(written: &OsStr) -> Result<(&str, Source<'_>), Error> {
    let bytes = written.as_bytes();
    let end = bytes.iter().position(|&byte| byte == b'=');
    // Not even what seems to be the name is repeated: base64 ends with '=' too.
    let refused = || Error::usage("--secret", "expected NAME=SOURCE").with_hint(SOURCES);
    let end = end.ok_or_else(refused)?;
    let name = str::from_utf8(&bytes[..end]).map_err(|_| refused())?;
    let source = Source::parse(&bytes[end + 1..]).ok_or_else(refused)?;
    Ok((name, source))
}

/// The content without its last line break, which editors and `echo` add.
fn content(from: impl Read) -> io::Result<SecretValue> {
    const MOST: usize = MAX_SECRET_BYTES + 3;
    // As large as it can become: growing would leave copies behind.
    let mut bytes = Vec::with_capacity(MOST + 1);
    from.take(MOST as u64).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(SecretValue::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        written: &[&str],
        variables: &[(&str, &str)],
        stdin: Option<&str>,
    ) -> Result<Vec<(String, Vec<u8>)>, String> {
        let args = SecretArgs { secrets: written.iter().map(OsString::from).collect() };
        let environment = Environment::new(Path::new("/"), 1000, variables);
        let (secrets, _) = args.read(&environment, stdin).map_err(|error| error.to_text())?;
        let own = |(name, value): (&str, &SecretValue)| (name.into(), value.as_bytes().to_vec());
        Ok(secrets.iter().map(own).collect())
    }

    #[test]
    fn secret_is_a_variable_or_the_content_of_a_file_without_its_last_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        for (content, value) in [
            ("value", "value"),
            ("value\n", "value"),
            ("one\r\ntwo\r\n", "one\r\ntwo"),
            ("two\n\n", "two\n"),
        ] {
            std::fs::write(&file, content).unwrap();
            let argument = format!("A=file:{}", file.display());
            let both = read(&[&argument, "B=env:X=Y"], &[("X=Y", "from\n")], None).unwrap();
            let expected = [("A".into(), value.into()), ("B".into(), b"from\n".to_vec())];
            assert_eq!(both, expected);
        }
        std::fs::write(&file, vec![b'x'; MAX_SECRET_BYTES + 1]).unwrap();
        let refused = read(&[&format!("A=file:{}", file.display())], &[], None).unwrap_err();
        assert!(refused.starts_with("--secret A: the secret A is longer than 64 KiB"), "{refused}");
    }

    #[test]
    fn invalid_secret_is_refused_without_its_value() {
        let variables = [("E", ""), ("SHORT", "abc"), ("GOOD", "value")];
        let refused = |written: &[&str], stdin| {
            let text = read(written, &variables, stdin).unwrap_err();
            assert!(!text.contains("hunter2"), "{text}");
            text
        };
        let texts = [
            refused(&["hunter2"], None),
            refused(&["A=hunter2"], None),
            refused(&["A="], None),
            refused(&["A=env:"], None),
            refused(&["A=env:NONE"], None),
            refused(&["A=env:E"], None),
            refused(&["A=env:SHORT"], None),
            refused(&["A-B=env:GOOD"], None),
            refused(&["A=env:GOOD", "A=env:GOOD"], None),
            refused(&["A=file:/no/such"], None),
            refused(&["A=file:/"], None),
            refused(&["A=-"], Some("SCRIPT -")),
            refused(&["A=-", "B=-"], None),
        ];
        insta::assert_snapshot!(texts.join("\n"));
    }
}
