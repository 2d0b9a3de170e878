//! The command line: parse, call, render, exit code.
//!
//! A library only so that tests can access its modules; its only API is [`main`].

mod ci;
mod cli;
mod clients;
mod commands;
mod error;
mod file_conflicts;
mod input;
mod output;
mod report;
mod signals;
mod target;
mod terminal;
mod trace;
mod usage_error;
mod whole_file;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use clap::{ArgMatches, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox_api::operation::Envelope;
use sandbox_api::service::ExecutionKind;
use sandbox_api::{ErrorKind, ExecutionDocument, Failure};

use sandbox_client as remote;
use sandbox_config as config;
use sandbox_render as render;

use cli::{Cli, Json};
use output::{Output, Verbosity};

/// What a mutex has, also after a panic of who had it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What comes of a future, if there is one.
async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Executes the process's arguments.
pub fn main() -> ExitCode {
    if commands::completions::answered() {
        return ExitCode::SUCCESS;
    }
    let since = Instant::now();
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(version) = cli::version_asked_for(&args) {
        // If this fails, there is no way to report it.
        _ = std::io::stdout().write_all(version.as_bytes());
        return ExitCode::SUCCESS;
    }
    // First of all: clap's own help and errors use colour too.
    choose_colour(colour_asked_for(&args));
    let cli = match Cli::read(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(error, &args, since),
    };
    // Exactly, now that it is known which arguments belong to a command in the sandbox.
    choose_colour(cli.global.color);
    let verbosity = if cli.global.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    let output = Output::new(verbosity);
    trace::start(&cli, &output);
    raise_descriptor_limit();
    let json = cli.json;
    let code = commands::run(cli, &output).unwrap_or_else(|error| {
        let code = error.exit_code();
        if !json.is_some_and(|json| failed(&output, json, error.document(), code, since)) {
            output.error(&error);
        }
        output.report_failure(error.document(), code);
        code
    });
    // A reader of only a part does not see that the rest is well.
    let code = if code == 0 && !output.is_read() { error::UNREAD } else { code };
    // Errors may quote guests too.
    output.end_ci();
    ExitCode::from(code)
}

/// Each sandbox and each of its connections takes descriptors, and shells often leave a soft limit of
/// 1,024 for programs that call `select`. No process that this one starts does.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Reports an error of sandboxctl in JSON. False if stdout cannot be written any more.
fn failed(output: &Output, json: Json, error: Failure, code: u8, since: Instant) -> bool {
    let kind = match json {
        Json::Result => ExecutionKind::Script,
        Json::Exec => ExecutionKind::Command,
        Json::Envelope => {
            return output.document(&Envelope::failed(since.elapsed(), error)).is_ok();
        }
    };
    output.document(&ExecutionDocument::failed(kind, error, code)).is_ok()
}

/// Our own arguments: those before `--`.
fn flags(args: &[OsString]) -> impl Iterator<Item = &OsStr> {
    args.iter().skip(1).map(OsString::as_os_str).take_while(|arg| *arg != "--")
}

fn colour_asked_for(args: &[OsString]) -> clap::ColorChoice {
    let mut flags = flags(args);
    let mut choice = clap::ColorChoice::Auto;
    while let Some(flag) = flags.next().map(OsStr::to_string_lossy) {
        let word = match flag.split_once('=') {
            Some(("--color", word)) => Some(word.to_owned()),
            None if flag == "--color" => flags.next().map(|word| word.to_string_lossy().into()),
            _ => None,
        };
        // clap reports an invalid value.
        choice =
            word.and_then(|word| clap::ColorChoice::from_str(&word, false).ok()).unwrap_or(choice);
    }
    choice
}

/// Help and version, or an invalid command line.
fn usage(error: clap::Error, args: &[OsString], since: Instant) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    if !error.use_stderr() {
        // If this fails, there is no way to report it.
        _ = error.print();
        return ExitCode::from(code);
    }
    let text = usage_error::usage_error(error);
    let plain = anstream::adapter::strip_str(&text).to_string();
    let (message, hint) = message_and_hint(&plain);
    let failure = Failure::new(ErrorKind::Usage, message, Some(hint));
    let output = Output::new(Verbosity::Quiet);
    let partly = cli::parse::command().ignore_errors(true).try_get_matches_from(args).ok();
    let asked = partly.as_ref().and_then(ArgMatches::subcommand);
    let wants_json = cli::parse::asks_for_json(flags(args));
    commands::begin_job_of_usage(&output, asked, wants_json);
    let is_reported = wants_json && failed(&output, json_of(asked), failure.clone(), code, since);
    if !is_reported {
        let text = output.neutral_message(text.as_bytes());
        _ = write!(anstream::stderr(), "{}", String::from_utf8_lossy(&text));
    }
    output.report_failure(failure, code);
    output.end_ci();
    ExitCode::from(code)
}

/// The output format that an invalid command line asked for.
fn json_of(asked: Option<(&str, &ArgMatches)>) -> Json {
    match asked.map(|(name, _)| name) {
        Some("fs") => Json::Envelope,
        Some("exec") => Json::Exec,
        _ => Json::Result,
    }
}

/// clap's error in two parts: the first paragraph is the message, and tips may follow.
fn message_and_hint(text: &str) -> (String, String) {
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.trim_start_matches("error: ").trim().to_owned();
    let tips: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
    let hint = match tips.is_empty() {
        true => "`sandboxctl help` lists commands and flags".to_owned(),
        false => tips.join("; "),
    };
    (message, hint)
}

fn choose_colour(choice: clap::ColorChoice) {
    match choice {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(args: &[&str]) -> Vec<OsString> {
        ["sandboxctl"].iter().chain(args).map(OsString::from).collect()
    }

    #[test]
    fn colour_is_known_before_the_rest_is_read() {
        use clap::ColorChoice::{Always, Auto, Never};
        for (given, choice) in [
            (&["run", "--color", "never"][..], Never),
            (&["--color=always", "--no-such-flag"], Always),
            (&["--color=always", "--color=never"], Never),
            (&["--color", "blue"], Auto),
            (&["--color"], Auto),
            (&["run", "x", "--", "--color=never"], Auto),
        ] {
            assert_eq!(colour_asked_for(&args(given)), choice, "{given:?}");
        }
    }

    #[test]
    fn version_alone_is_answered_as_clap_answers_it() {
        for flag in ["--version", "-V"] {
            let args = args(&[flag]);
            let of_clap = Cli::read(&args).unwrap_err();
            assert_eq!(cli::version_asked_for(&args), Some(of_clap.to_string()));
        }
        for others in [&["run", "--version"][..], &["--version", "--color=never"], &["--"], &[]] {
            assert_eq!(cli::version_asked_for(&args(others)), None, "{others:?}");
        }
    }

    #[test]
    fn a_tip_of_claps_is_the_hint() {
        let refused = |given: &[&str]| {
            let error = Cli::read(args(given)).unwrap_err();
            message_and_hint(
                &anstream::adapter::strip_str(&usage_error::usage_error(error)).to_string(),
            )
        };
        let (message, hint) = refused(&["run", "x", "--timout", "1s"]);
        assert_eq!(message, "unexpected argument '--timout' found");
        assert_eq!(hint, "a similar argument exists: '--timeout'");
        assert_eq!(refused(&["run"]).1, "`sandboxctl help` lists commands and flags");
    }
}
