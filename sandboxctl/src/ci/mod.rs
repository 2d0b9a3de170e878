//! CI runners that read commands from a job's log: the commands written for them, and how guest output
//! is kept from issuing any.
//!
//! On GitHub everything that a command prints, error messages included, is between a stop-commands
//! token and its end: the token is random, and no guest sees it. A runner reads stdout and stderr
//! apart and in any order, so both are made one. What is read all the same is changed wherever it is
//! printed: section marks on GitLab, and on GitHub the marks of which its page makes groups.

mod files;

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, fstat};
use sandbox_api::{Failure, OutputStream};
use sandbox_controller::Config;
use sandbox_dirfd::{Links, random_hex};

use crate::config::{RUNNER_FILES, STEP_OUTPUTS, STEP_SUMMARY};
use crate::error::Error;
use crate::lock;
use crate::report::{self, Entry};
use crate::target;
use sandbox_render::ci::log_markers::{LogMarker, MarkFilter};
use sandbox_render::ci::{github, gitlab};

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

/// The log of a job, from a command's start to its end.
#[derive(Debug)]
pub struct Ci {
    runner: Runner,
    /// What runs, in one line.
    title: String,
    /// Whether the runner may read stdout.
    reads_stdout: bool,
    /// Where the group is; `None` if the runner reads neither stdout nor stderr.
    stream: Option<OutputStream>,
    /// stderr goes to where stdout goes: both are one log.
    pub is_one_stream: bool,
    /// The stop-commands token, or the section's name: random.
    token: String,
    /// The files that the runner reads after the step, by their variables.
    files: Vec<(&'static str, PathBuf)>,
    /// How they are written; `None` if one is in the io dir, where it could be what an earlier run made
    /// of it.
    links: Mutex<Option<Links>>,
    /// What follows when commands are read again; `None` before the report.
    annotations: Mutex<Option<String>>,
}

impl Ci {
    /// Begins a group or a section, if there is a runner. From here on everything is printed in it. A
    /// runner that is named reads files too: a later command may print them.
    ///
    /// # Errors
    ///
    /// If stderr cannot be the stream that stdout is.
    pub fn begin<'a>(
        mode: CiMode,
        title: &str,
        stdout: Stdout,
        variable: impl Fn(&str) -> Option<&'a std::ffi::OsStr>,
    ) -> Result<Option<Self>, Error> {
        let Some(runner) = mode.runner(&variable) else { return Ok(None) };
        let is_read = |fd| mode != CiMode::Auto || may_be_read(fd);
        let [out, err] = [rustix::stdio::stdout(), rustix::stdio::stderr()].map(is_read);
        let stream = match (stdout, out, err) {
            (Stdout::Log, true, _) => Some(OutputStream::Stdout),
            (_, _, true) => Some(OutputStream::Stderr),
            _ => None,
        };
        let file = |name| variable(name).filter(|file| !file.is_empty()).map(PathBuf::from);
        let is_one_stream = stream == Some(OutputStream::Stdout) && err;
        let ci = Self {
            runner,
            title: title.to_owned(),
            reads_stdout: out,
            stream,
            is_one_stream,
            token: random_hex::<16>(),
            files: RUNNER_FILES.into_iter().filter_map(|name| Some((name, file(name)?))).collect(),
            // The location of the io dir is not known yet.
            links: Mutex::new(Some(Links::Refuse)),
            annotations: Mutex::default(),
        };
        ci.print(&match runner {
            Runner::GitHub => github::open(title, &ci.token),
            Runner::GitLab => gitlab::open(title, &ci.token, now()),
        });
        if is_one_stream {
            // One stream: its lines stay in order, and between the tokens.
            rustix::stdio::dup2_stderr(rustix::stdio::stdout())
                .map_err(|error| Error::system("stderr", error))?;
        }
        Ok(Some(ci))
    }

    /// The files that the runner reads after the step, by their variables.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.files.iter().map(|(name, file)| (*name, &**file))
    }

    /// Refuses files of the runner in the io dir, where what runs could write outputs, and in a
    /// directory of sandboxctl's own.
    ///
    /// # Errors
    ///
    /// If there are some.
    pub fn check_files(&self, io_dir: Option<&Path>, config: &Config) -> Result<(), Error> {
        let checked = self.files().try_for_each(|(name, file)| {
            target::refuse_in_io_dir(name, file, io_dir)?;
            target::refuse_own(name, file, config)
        });
        *lock(&self.links) = checked.is_ok().then_some(Links::Follow);
        checked
    }

    /// Refuses a file that is this process's own stdout or stderr, unless the runner was set to
    /// ignore commands on it.
    ///
    /// # Errors
    ///
    /// If it is one.
    pub fn check_file(&self, flag: &str, file: &Path) -> Result<(), Error> {
        let is_stopped = self.runner == Runner::GitHub && self.stream == Some(OutputStream::Stdout);
        if is_stopped || !target::is_own_stream(file) {
            return Ok(());
        }
        Err(is_the_log(flag, file)
            .with_hint("name a file, or use --ci none if no CI runner reads the log"))
    }

    /// Writes the step summary and the outputs, and keeps the annotations for the end. The files
    /// that could not be written.
    pub fn report(&self, entries: &[Entry]) -> Vec<Error> {
        if self.runner != Runner::GitHub {
            return Vec::new();
        }
        *lock(&self.annotations) = Some(github::annotations(entries));
        let links = *lock(&self.links);
        let Some(links) = links else { return Vec::new() };
        let (summary, outputs) = (report::markdown(entries), github::outputs(entries, &self.token));
        let failed = self.files().filter_map(|(name, file)| {
            let (what, written) = match name {
                STEP_SUMMARY => ("the step summary", files::append_summary(file, &summary, links)),
                STEP_OUTPUTS => ("the outputs", files::append(file, &outputs, links)),
                _ => return None,
            };
            let what = format!("cannot write {what} {}", file.display());
            written.err().map(|source| Error::Content { what, source })
        });
        failed.collect()
    }

    /// Reports a failure of our side before anything ran, unless results were reported. The files that
    /// could not be written.
    pub fn report_failure(&self, failure: Failure, exit_code: u8) -> Vec<Error> {
        if lock(&self.annotations).is_some() {
            return Vec::new();
        }
        self.report(&[Entry::failed_before(&self.title, failure, exit_code)])
    }

    /// Ends the group or the section: no guest output follows.
    pub fn end(&self) {
        self.print(&match self.runner {
            Runner::GitHub => {
                let annotations = lock(&self.annotations);
                github::close(&self.token) + annotations.as_deref().unwrap_or_default()
            }
            Runner::GitLab => gitlab::close(&self.token, now()),
        });
    }

    /// JSON in which the runner finds no command; the value is the same.
    pub fn json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        match self.runner {
            Runner::GitHub => github::json(json),
            Runner::GitLab => gitlab::json(json),
        }
    }

    /// Whether the runner would find a command in text that is printed to stdout as data.
    pub fn finds_command(&self, text: &str) -> bool {
        let is_data = self.stream != Some(OutputStream::Stdout);
        self.reads_stdout
            && is_data
            && match self.runner {
                Runner::GitHub => github::has_command(text),
                Runner::GitLab => gitlab::has_mark(text),
            }
    }

    /// Text for a stream, without what is read in a group too. What is not read is unchanged.
    pub fn neutral<'a>(&self, stream: OutputStream, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.mark(stream).map_or(Cow::Borrowed(bytes), |mark| mark.removed_from(bytes))
    }

    /// What no guest's text on a stream may have.
    fn mark(&self, stream: OutputStream) -> Option<&'static LogMarker> {
        match self.runner {
            Runner::GitHub if self.stream == Some(stream) || self.is_one_stream => {
                Some(&github::MARK)
            }
            Runner::GitLab if stream == OutputStream::Stderr || self.reads_stdout => {
                Some(&gitlab::MARK)
            }
            _ => None,
        }
    }

    /// What the pieces for a stream pass through.
    pub fn filter(&self, stream: OutputStream) -> Option<MarkFilter> {
        self.mark(stream).map(MarkFilter::new)
    }

    /// A runner that is gone is not a reason to fail.
    fn print(&self, text: &str) {
        _ = match self.stream {
            Some(OutputStream::Stdout) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
            }
            Some(OutputStream::Stderr) => io::stderr().lock().write_all(text.as_bytes()),
            None => Ok(()),
        };
    }
}

/// Text that is printed outside of a group: in a job of a runner, without what it would read as a
/// command.
pub fn outside_of_groups(text: &[u8]) -> Cow<'_, [u8]> {
    if is_job() { without_commands(text) } else { Cow::Borrowed(text) }
}

/// Refuses a file of guests' text that is this process's own stdout or stderr, which the runner of a
/// job reads. `flag` names it.
///
/// # Errors
///
/// If it is one.
pub fn check_file_outside_of_groups(flag: &str, file: &Path) -> Result<(), Error> {
    match is_job() && target::is_own_stream(file) {
        true => Err(is_the_log(flag, file).with_hint("name a file")),
        false => Ok(()),
    }
}

fn is_the_log(flag: &str, file: &Path) -> Error {
    let why =
        format!("{} is the log of the job, where a guest's text is a command", file.display());
    Error::usage(flag, why)
}

/// JSON that is printed outside of a group: in a job of a runner, none finds a command in it; its
/// value is the same.
pub fn json_outside_of_groups(json: &str) -> Cow<'_, str> {
    if is_job() { gitlab::json(&github::json(json)).into_owned().into() } else { json.into() }
}

fn is_job() -> bool {
    let is_true = |name: &str| std::env::var_os(name).is_some_and(|value| value == "true");
    ["GITHUB_ACTIONS", "GITLAB_CI"].into_iter().any(is_true)
}

/// Lines without the commands of any runner.
fn without_commands(text: &[u8]) -> Cow<'_, [u8]> {
    match github::without_commands(text) {
        Cow::Borrowed(text) => gitlab::without_marks(text),
        Cow::Owned(text) => Cow::Owned(gitlab::without_marks(&text).into_owned()),
    }
}

/// Whether a runner may read what is written to this descriptor: not a regular file, not `/dev/null`.
fn may_be_read(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|found| match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => false,
        FileType::CharacterDevice => rustix::termios::isatty(fd),
        _ => true,
    })
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
    fn json_has_no_command_and_the_same_value() {
        let value = "##[a] section_start:1:x ###[";
        let json = serde_json::to_string(value).unwrap();
        let neutral = gitlab::json(&github::json(&json)).into_owned();
        assert!(!neutral.contains("##[") && !neutral.contains("section_"), "{neutral}");
        assert_eq!(serde_json::from_str::<String>(&neutral).unwrap(), value);
    }

    #[test]
    fn message_outside_of_groups_has_no_command() {
        for (text, neutral) in [
            ("plain", "plain"),
            ("a ##[error]b ###[x", "a # #[error]b ## #[x"),
            ("section_start:1:a ##[x]", "section-start:1:a # #[x]"),
            ("ssection_end", "ssection-end"),
            ("a\n \u{feff} ::error::b\rc ::d", "a\n \u{feff} : :error::b\rc ::d"),
        ] {
            assert_eq!(without_commands(text.as_bytes()), neutral.as_bytes(), "{text}");
        }
    }
}
