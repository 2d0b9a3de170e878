//! `executions`: what a service runs, ran and is to run.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use sandbox_api::service::Time;

use super::remote::RemoteArgs;
use super::values::{Utf8, text};
use crate::input::{Argument, JsonArgument};

/// `executions`.
#[derive(Debug, Args)]
pub struct ExecutionsArgs {
    /// The service.
    #[command(flatten)]
    pub remote: RemoteArgs,

    /// What to do.
    #[command(subcommand)]
    pub command: ExecutionsCommand,
}

/// What to do with executions.
#[derive(Debug, Subcommand)]
pub enum ExecutionsCommand {
    /// Submit a script, or any request of the HTTP API
    ///
    /// Prints the document of the execution when it has ended; with --detach, its id at once.
    /// `sandboxctl run --server` and `exec --server` print what a script or a command prints.
    #[command(after_long_help = "\
sandboxctl executions run examples/report.luau --arg year=2026
sandboxctl executions run --detach -c 'return 6 * 7'
sandboxctl executions run --request '{\"script\": \"return args.n\", \"args\": {\"n\": 1}}'
sandboxctl executions run --request @request.json --idempotency-key build-17")]
    Run(SubmitArgs),

    /// List executions, the latest first
    #[command(after_long_help = "\
sandboxctl executions ls
sandboxctl executions ls --status running -q
sandboxctl executions ls --image debian:13 --since 2026-11-29T00:00:00Z
sandboxctl executions ls --subject '*' --limit 1000 --json")]
    Ls(ListArgs),

    /// Print the document of an execution
    #[command(after_long_help = "\
sandboxctl executions get 7f3c9a1be2d40586
sandboxctl executions get 7f3c9a1be2d40586 --wait --json")]
    Get {
        /// The execution
        #[arg(value_parser = Utf8(execution_id))]
        id: String,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Print the events of an execution as they come, until it has ended
    #[command(after_long_help = "\
sandboxctl executions events 7f3c9a1be2d40586
sandboxctl executions events 7f3c9a1be2d40586 --after 100 --json")]
    Events {
        /// The execution
        #[arg(value_parser = Utf8(execution_id))]
        id: String,
        /// Begin after the event with this number
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
        /// Print a JSON object a line
        #[arg(long)]
        json: bool,
    },

    /// Cancel executions, whether they run or wait
    #[command(after_long_help = "\
sandboxctl executions cancel 7f3c9a1be2d40586
sandboxctl executions cancel $(sandboxctl executions ls --status queued -q)")]
    Cancel {
        /// The executions
        #[arg(value_name = "ID", required = true, value_parser = Utf8(execution_id))]
        ids: Vec<String>,
    },

    /// List the files of an execution that has ended
    #[command(after_long_help = "\
sandboxctl executions files 7f3c9a1be2d40586
sandboxctl executions files 7f3c9a1be2d40586 --json")]
    Files {
        /// The execution
        #[arg(value_parser = Utf8(execution_id))]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Download the files of an execution
    #[command(after_long_help = "\
sandboxctl executions download 7f3c9a1be2d40586 -o files.tar.gz
sandboxctl executions download 7f3c9a1be2d40586 -o - | tar xz -C out
sandboxctl executions download 7f3c9a1be2d40586 report.csv -o report.csv")]
    Download {
        /// The execution
        #[arg(value_parser = Utf8(execution_id))]
        id: String,
        /// The file; without it all of them, as a tar.gz
        path: Option<String>,
        /// Where to write it; - is stdout
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
}

/// What is listed.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those with this status: queued, running, ok, script_error, exit, limit, …
    #[arg(long, value_name = "STATUS", value_hint = ValueHint::Other)]
    pub status: Option<String>,

    /// Only those that ran in this image
    #[arg(long, value_name = "IMAGE", value_hint = ValueHint::Other)]
    pub image: Option<String>,

    /// Only those that were accepted at this time or later, in RFC 3339
    #[arg(long, value_name = "TIME", value_hint = ValueHint::Other, value_parser = text::<Time>())]
    pub since: Option<Time>,

    /// Only those that were accepted before this time
    #[arg(long, value_name = "TIME", value_hint = ValueHint::Other, value_parser = text::<Time>())]
    pub until: Option<Time>,

    /// Those of this subject, or '*' for all; needs a token with the scope admin
    #[arg(long, value_name = "SUBJECT", value_hint = ValueHint::Other)]
    pub subject: Option<String>,

    /// At most this many
    #[arg(long, value_name = "NUMBER", default_value = "50",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,

    /// Print only the ids
    #[arg(short, long)]
    pub quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is submitted.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// The script, or - for stdin
    #[arg(value_hint = ValueHint::FilePath,
        required_unless_present_any = ["code", "request"])]
    pub script: Option<PathBuf>,

    /// Run this code instead of a SCRIPT
    #[arg(short, long, conflicts_with = "script", allow_hyphen_values = true,
        value_parser = text::<String>())]
    pub code: Option<String>,

    /// Submit this request of the HTTP API, as JSON; @FILE reads a file, - stdin
    #[arg(long, value_name = "JSON", conflicts_with_all = ["script", "code", "args", "args_file"],
        allow_hyphen_values = true, value_parser = text::<JsonArgument>())]
    pub request: Option<JsonArgument>,

    /// Pass a string as args.KEY; repeatable
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = text::<Argument>())]
    pub args: Vec<Argument>,

    /// Pass the members of this JSON object as args; --arg wins
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub args_file: Option<PathBuf>,

    /// Submit it once, however often the same key is given [default: a random one]
    #[arg(long, value_name = "KEY", value_parser = text::<String>())]
    pub idempotency_key: Option<String>,

    /// Print the id, and do not wait for the end
    #[arg(short, long)]
    pub detach: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads the id of an execution, which is part of a path.
fn execution_id(text: &str) -> Result<String, &'static str> {
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match !text.is_empty() && text.len() <= 128 && text.bytes().all(is_one) {
        true => Ok(text.to_owned()),
        false => Err("it is not the id of an execution"),
    }
}
