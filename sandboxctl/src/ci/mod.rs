//! CI runners that read commands from a job's log: what they are told, and what guests cannot tell
//! them.
//!
//! On GitHub everything that a command prints, error messages included, is between a stop-commands
//! token and its end: the token is random, and no guest sees it. A runner reads stdout and stderr
//! apart and in any order, so both are made one. On GitLab, which cannot stop reading section marks,
//! they are changed wherever they are printed.

mod files;
pub mod github;
pub mod gitlab;

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, fstat};

use crate::error::Error;
use crate::report::{self, Entry};
use crate::target;

/// `--ci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum CiMode {
    /// By the variables of the runner.
    #[default]
    Auto,
    /// GitHub Actions, and what reads the same commands.
    Github,
    /// GitLab CI.
    Gitlab,
    /// None.
    None,
}

/// A runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    /// GitHub Actions.
    GitHub,
    /// GitLab CI.
    GitLab,
}

impl CiMode {
    /// The runner, with the variables of the process.
    pub fn runner<'a>(
        self,
        variable: impl Fn(&str) -> Option<&'a std::ffi::OsStr>,
    ) -> Option<Runner> {
        let is_true = |name| variable(name).is_some_and(|value| value == "true");
        match self {
            Self::Github => Some(Runner::GitHub),
            Self::Gitlab => Some(Runner::GitLab),
            Self::Auto if is_true("GITHUB_ACTIONS") => Some(Runner::GitHub),
            Self::Auto if is_true("GITLAB_CI") => Some(Runner::GitLab),
            Self::Auto | Self::None => None,
        }
    }
}

/// What stdout is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdout {
    /// The log.
    Log,
    /// A document or a result, for a program.
    Data,
}

/// Where the runner reads commands from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// The log of a job, from a command's start to its end.
#[derive(Debug)]
pub struct Ci {
    runner: Runner,
    /// `None` if the runner sees neither stdout nor stderr.
    stream: Option<Stream>,
    /// stderr goes to where stdout goes.
    is_one_stream: bool,
    /// The stop-commands token, or the section's name: random.
    token: String,
    summary: Option<PathBuf>,
    outputs: Option<PathBuf>,
    /// The other files that the runner reads after the step, by their variables.
    others: Vec<(&'static str, PathBuf)>,
    /// What follows when commands are read again.
    annotations: Mutex<String>,
}

impl Ci {
    /// Begins a group or a section. From here on everything is printed in it.
    ///
    /// # Errors
    ///
    /// If there is no random token.
    pub fn begin<'a>(
        runner: Runner,
        title: &str,
        stdout: Stdout,
        variable: impl Fn(&str) -> Option<&'a std::ffi::OsStr>,
    ) -> Result<Self, Error> {
        let [out, err] = [rustix::stdio::stdout(), rustix::stdio::stderr()].map(is_read);
        let stream = match (stdout, out, err) {
            (Stdout::Log, true, _) => Some(Stream::Stdout),
            (_, _, true) => Some(Stream::Stderr),
            _ => None,
        };
        let token = token().map_err(|source| Error::System {
            what: "random bytes for the runner's token".to_owned(),
            source,
        })?;
        let file = |name| variable(name).filter(|file| !file.is_empty()).map(PathBuf::from);
        let is_github = runner == Runner::GitHub;
        let is_one_stream = stream == Some(Stream::Stdout) && err;
        let ci = Self {
            runner,
            stream,
            is_one_stream,
            token,
            summary: is_github.then(|| file("GITHUB_STEP_SUMMARY")).flatten(),
            outputs: is_github.then(|| file("GITHUB_OUTPUT")).flatten(),
            others: ["GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"]
                .into_iter()
                .filter(|_| is_github)
                .filter_map(|name| Some((name, file(name)?)))
                .collect(),
            annotations: Mutex::default(),
        };
        ci.print(&match runner {
            Runner::GitHub => github::open(title, &ci.token),
            Runner::GitLab => gitlab::open(title, &ci.token, now()),
        });
        if is_one_stream {
            // One stream: its lines stay in order, and between the tokens.
            rustix::stdio::dup2_stderr(rustix::stdio::stdout()).map_err(|error| Error::System {
                what: "stderr".to_owned(),
                source: error.into(),
            })?;
        }
        Ok(ci)
    }

    /// Refuses an io dir that contains a file of the runner: what runs could write outputs.
    ///
    /// # Errors
    ///
    /// If it does.
    pub fn check_io_dir(&self, io_dir: Option<&Path>) -> Result<(), Error> {
        let own = [("GITHUB_STEP_SUMMARY", &self.summary), ("GITHUB_OUTPUT", &self.outputs)];
        let own = own.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?)));
        let others = self.others.iter().map(|(name, file)| (*name, file));
        own.chain(others).try_for_each(|(name, file)| target::refuse_in_io_dir(name, file, io_dir))
    }

    /// Refuses a file that is this process's own stdout or stderr, unless the runner was told that
    /// nothing on it is a command.
    ///
    /// # Errors
    ///
    /// If it is one.
    pub fn check_file(&self, flag: &str, file: &Path) -> Result<(), Error> {
        let is_told = self.runner == Runner::GitHub && self.stream == Some(Stream::Stdout);
        if is_told || !target::is_own_stream(file) {
            return Ok(());
        }
        let why =
            format!("{} is the log of the job, where a guest's text is a command", file.display());
        Err(Error::usage(flag, why)
            .with_hint("name a file, or use --ci none if nobody reads the log"))
    }

    /// Writes the step summary and the outputs, and keeps the annotations for the end. The files
    /// that could not be written.
    pub fn report(&self, entries: &[Entry]) -> Vec<Error> {
        if self.runner != Runner::GitHub {
            return Vec::new();
        }
        *self.annotations.lock().unwrap_or_else(PoisonError::into_inner) =
            github::annotations(entries);
        let summary = self.summary.as_deref().map(|file| {
            (file, "the step summary", files::append_summary(file, &report::markdown(entries)))
        });
        let outputs = self.outputs.as_deref().map(|file| {
            (file, "the outputs", files::append(file, &github::outputs(entries, &self.token)))
        });
        let failed =
            [summary, outputs].into_iter().flatten().filter_map(|(file, what, written)| {
                let what = format!("cannot write {what} {}", file.display());
                written.err().map(|source| Error::Content { what, source })
            });
        failed.collect()
    }

    /// Ends the group or the section: nothing of a guest is printed any more.
    pub fn end(&self) {
        self.print(&match self.runner {
            Runner::GitHub => {
                let annotations = self.annotations.lock().unwrap_or_else(PoisonError::into_inner);
                github::close(&self.token) + &annotations
            }
            Runner::GitLab => gitlab::close(&self.token, now()),
        });
    }

    /// JSON in which the runner finds no command; the value is the same.
    pub fn json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        let (mark, escaped) = match self.runner {
            Runner::GitHub => ("##[", "#\\u0023["),
            Runner::GitLab => ("section_", "section\\u005f"),
        };
        if json.contains(mark) { json.replace(mark, escaped).into() } else { json.into() }
    }

    /// Whether the runner would find a command in text that is printed as data.
    pub fn finds_command(&self, text: &str) -> bool {
        match self.runner {
            Runner::GitHub => github::has_command(text),
            Runner::GitLab => false,
        }
    }

    /// Text without what the runner reads although it was not told to.
    pub fn neutral<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.runner {
            Runner::GitHub => Cow::Borrowed(bytes),
            Runner::GitLab => gitlab::without_marks(bytes),
        }
    }

    /// Whether stdout and stderr are one log.
    pub const fn is_one_stream(&self) -> bool {
        self.is_one_stream
    }

    /// What a stream of pieces passes through.
    pub fn filter(&self) -> Option<gitlab::MarkFilter> {
        (self.runner == Runner::GitLab).then(gitlab::MarkFilter::default)
    }

    /// A runner that is gone is not a reason to fail.
    fn print(&self, text: &str) {
        _ = match self.stream {
            Some(Stream::Stdout) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
            }
            Some(Stream::Stderr) => io::stderr().lock().write_all(text.as_bytes()),
            None => Ok(()),
        };
    }
}

/// A message that is printed outside of a group: in a job of a runner, without what it would read as
/// a command wherever in a line it stands.
pub fn outside_of_groups(text: &str) -> Cow<'_, [u8]> {
    let is_true = |name: &str| std::env::var_os(name).is_some_and(|value| value == "true");
    if !["GITHUB_ACTIONS", "GITLAB_CI"].into_iter().any(is_true) {
        return Cow::Borrowed(text.as_bytes());
    }
    without_commands(text)
}

/// What both runners read anywhere in a line is not there.
fn without_commands(text: &str) -> Cow<'_, [u8]> {
    if text.contains("##[") {
        let text = text.replace("##[", "# #[");
        return Cow::Owned(gitlab::without_marks(text.as_bytes()).into_owned());
    }
    gitlab::without_marks(text.as_bytes())
}

/// Whether a runner may read what is written to this descriptor: not a regular file, not `/dev/null`.
fn is_read(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|found| match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => false,
        FileType::CharacterDevice => rustix::termios::isatty(fd),
        _ => true,
    })
}

/// 128 random bits in hexadecimal.
fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn runner_is_known_by_its_variables() {
        let with = |set: &'static str, mode: CiMode| {
            mode.runner(|name| (name == set).then_some(OsStr::new("true")))
        };
        assert_eq!(with("GITHUB_ACTIONS", CiMode::Auto), Some(Runner::GitHub));
        assert_eq!(with("GITLAB_CI", CiMode::Auto), Some(Runner::GitLab));
        assert_eq!(with("", CiMode::Auto), None);
        assert_eq!(with("GITHUB_ACTIONS", CiMode::None), None);
        assert_eq!(with("GITHUB_ACTIONS", CiMode::Gitlab), Some(Runner::GitLab));
    }

    #[test]
    fn message_outside_of_groups_has_no_command() {
        for (text, neutral) in [
            ("plain", "plain"),
            ("a ##[error]b ###[x", "a # #[error]b ## #[x"),
            ("section_start:1:a ##[x]", "section-start:1:a # #[x]"),
            ("ssection_end", "ssection-end"),
        ] {
            assert_eq!(without_commands(text), neutral.as_bytes(), "{text}");
        }
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
