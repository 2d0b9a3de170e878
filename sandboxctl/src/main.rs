//! The command line: parse, call, render, exit code.

mod cli;
mod commands;
mod config;
mod environment;
mod error;
mod input;
mod output;
mod render;
mod signals;

use std::process::ExitCode;

use clap::Parser;
use sandbox_controller::{ErrorDocument, ErrorKind, ResultDocument};

use cli::{Cli, Global};
use output::{Chatter, Output};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    choose_colour(cli.global.color);
    trace(&cli.global);
    let chatter = if cli.global.quiet { Chatter::Quiet } else { Chatter::Normal };
    let output = Output::new(chatter);
    let wants_json = cli.command.wants_json();
    let code = commands::run(cli, &output).unwrap_or_else(|error| {
        let code = error.exit_code();
        if wants_json {
            let document = ResultDocument::failed(error.document(), code);
            if output.document(&document).is_ok() {
                return code;
            }
        }
        output.error(&error);
        code
    });
    ExitCode::from(code)
}

/// Help and version, or a command line that is none.
fn usage(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    let json = std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if error.use_stderr() && json {
        let text = error.to_string();
        // The first paragraph is the message; usage and tips follow.
        let message = text.split("\n\n").next().unwrap_or_default();
        let message = message.trim_start_matches("error: ").trim();
        let hint = Some("`sandboxctl help` lists commands and flags".to_owned());
        let document = ErrorDocument::new(ErrorKind::Usage, message, hint);
        let written = Output::new(Chatter::Quiet).document(&ResultDocument::failed(document, code));
        if written.is_ok() {
            return ExitCode::from(code);
        }
    }
    // There is no one left to tell where this fails.
    _ = error.print();
    ExitCode::from(code)
}

fn choose_colour(choice: clap::ColorChoice) {
    match choice {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// What the library traces goes to stderr: nothing, unless it is asked for.
fn trace(global: &Global) {
    let filter = match (global.verbose, std::env::var(config::LOG_VARIABLE)) {
        (0, Ok(filter)) if !filter.is_empty() => filter,
        (0, _) => return,
        (1, _) => "sandboxctl=info,sandbox_controller=info".to_owned(),
        (2, _) => "sandboxctl=debug,sandbox_controller=debug".to_owned(),
        (_, _) => "trace".to_owned(),
    };
    let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .init();
}
