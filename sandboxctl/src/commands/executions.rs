//! `executions`: what a service runs, ran and is to run.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use sandbox_api::ExecutionDocument;
use sandbox_api::service::{Content, ExecutionRequest, ExecutionState, ExecutionSummary, Time};

use super::{Context, guarded};
use crate::cli::executions::{ExecutionsArgs, ExecutionsCommand, ListArgs, SubmitArgs};
use crate::error::{Error, UNREAD};
use crate::input::{self, ScriptArgument};
use crate::output::Output;
use crate::remote::{self, Client, EventSource, Events, Stream};
use crate::render::listing;
use crate::signals::stdout_is_unread;
use crate::target::Target;

/// The longest request that is read.
const MAX_REQUEST_BYTES: usize = 64 << 20;
/// How many executions are on a page.
const PAGE: u32 = 100;

pub fn executions(context: &Context<'_>, args: ExecutionsArgs) -> Result<u8, Error> {
    let client = args.remote.required_client(&context.environment)?;
    let client = super::execution::remote::connect(context, client);
    let output = context.output;
    guarded(async {
        match args.command {
            ExecutionsCommand::Run(args) => return submit(output, &client, &args).await,
            ExecutionsCommand::Ls(args) => {
                let executions = list(&client, &args).await?;
                output.show(args.json, &executions, |width| match args.quiet {
                    true => executions.iter().map(|it| format!("{}\n", it.id)).collect(),
                    false => listing::executions(&executions, Time::now(), width),
                })?;
            }
            ExecutionsCommand::Get { id, wait, json } => {
                let execution = match wait {
                    true => client.ended_execution(&id).await?,
                    false => client.execution(&id).await?,
                };
                output.show(json, &execution, |_| listing::execution(&execution))?;
            }
            ExecutionsCommand::Events { id, after, json } => {
                let source = EventSource::Execution(id);
                let mut events = Events::new(client.clone(), source, after.unwrap_or(0));
                let print = async {
                    while let Some(event) = events.next().await? {
                        match json {
                            // A line each, on a terminal too.
                            true => output.json_line(&event)?,
                            false => output.text(&listing::event(&event))?,
                        }
                    }
                    Ok(())
                };
                return while_read(output, print).await;
            }
            ExecutionsCommand::Cancel { ids } => return cancel(output, &client, &ids).await,
            ExecutionsCommand::Files { id, json } => {
                let files = client.files(&id).await?;
                output.show(json, &files, |width| listing::files(&files, width))?;
            }
            ExecutionsCommand::Download { id, path, output: file } => {
                context.check_output("--output", &file)?;
                if path.is_none() {
                    check_archive_name(&file)?;
                }
                let content = client.download(&id, path.as_deref()).await?;
                return save(output, content, "--output", &file).await;
            }
        }
        Ok(0)
    })
}

/// All files come as one archive in one format: a name for another one is refused.
fn check_archive_name(file: &Path) -> Result<(), Error> {
    match file.extension().and_then(OsStr::to_str) {
        Some("zip" | "tar" | "bz2" | "xz" | "zst" | "7z") => {
            let why = format!("{}: all files of an execution are a tar.gz", file.display());
            Err(Error::usage("--output", why)
                .with_hint("name it FILE.tar.gz, or give the PATH of one file"))
        }
        _ => Ok(()),
    }
}

/// Cancels all that can be, and says of each other one why it cannot. The exit code is that of the first.
async fn cancel(output: &Output, client: &Client, ids: &[String]) -> Result<u8, Error> {
    let mut code = 0;
    for id in ids {
        if let Err(error) = client.cancel(id).await {
            let error = Error::from(error);
            output.error(&error);
            code = if code == 0 { error.exit_code() } else { code };
        }
    }
    Ok(code)
}

/// Submits a request, and waits for its end unless it is detached. The exit code is that of the
/// execution.
async fn submit(output: &Output, client: &Arc<Client>, args: &SubmitArgs) -> Result<u8, Error> {
    let request = request(args)?;
    let key = args.idempotency_key.clone().unwrap_or_else(remote::new_key);
    let id = client.submit(&request, None, &key).await?;
    let lost = |error: remote::Error| error.after_acceptance(&id);
    if args.detach {
        match args.json {
            true => output.document(&client.execution(&id).await.map_err(lost)?)?,
            false => output.text(&format!("{id}\n"))?,
        }
        return Ok(0);
    }
    let execution = client.ended_execution(&id).await.map_err(lost)?;
    output.show(args.json, &execution, |_| listing::execution(&execution))?;
    Ok(execution.document.as_ref().map_or(0, ExecutionDocument::process_exit_code))
}

fn request(args: &SubmitArgs) -> Result<ExecutionRequest, Error> {
    if let Some(request) = &args.request {
        let json = request.read("--request", MAX_REQUEST_BYTES)?;
        return serde_json::from_str(json.get())
            .map_err(|error| Error::usage("--request", error.to_string()));
    }
    let script = match (&args.code, &args.script) {
        (Some(code), _) => ScriptArgument::Code(code),
        (None, Some(file)) => ScriptArgument::File(file),
        (None, None) => return Err(Error::usage("SCRIPT", "it is missing")),
    };
    let script = input::script(script)?;
    super::hints::check_language(&script)?;
    Ok(ExecutionRequest {
        script: Some(Content(script.source)),
        args: input::arguments(args.args_file.as_deref(), &args.args)?,
        metadata: super::execution::remote::title(&super::launch::title(&script.name)),
        ..ExecutionRequest::default()
    })
}

/// The latest executions, page by page.
async fn list(client: &Client, args: &ListArgs) -> Result<Vec<ExecutionSummary>, Error> {
    let limit = args.limit;
    if let Some(name) = &args.status
        && name.parse::<ExecutionState>().is_err()
    {
        let known: Vec<_> = ExecutionState::all().map(ExecutionState::as_str).collect();
        let why = format!("'{name}' is not one of: {}", known.join(", "));
        return Err(Error::usage("--status", why));
    }
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let left = limit - u32::try_from(all.len()).unwrap_or(limit).min(limit);
        let query = [
            ("limit", Some(left.min(PAGE).to_string())),
            ("status", args.status.clone()),
            ("image", args.image.clone()),
            ("since", args.since.map(|it| it.to_string())),
            ("until", args.until.map(|it| it.to_string())),
            ("subject", args.subject.clone()),
            ("cursor", cursor),
        ];
        let page = client.list(&query).await?;
        let is_empty = page.executions.is_empty();
        all.extend(page.executions);
        all.truncate(limit as usize);
        cursor = page.next_cursor;
        if cursor.is_none() || is_empty || all.len() >= limit as usize {
            return Ok(all);
        }
    }
}

/// Prints until the end, or until stdout is closed. Returns the exit code.
pub async fn while_read(
    output: &Output,
    print: impl Future<Output = Result<(), Error>>,
) -> Result<u8, Error> {
    tokio::select! {
        biased;
        printed = print => printed.map(|()| if output.is_read() { 0 } else { UNREAD }),
        () = stdout_is_unread() => Ok(UNREAD),
    }
}

/// Writes a download to a file, which is there when it is complete; or to stdout. `flag` names it.
pub async fn save(
    output: &Output,
    mut content: Stream,
    flag: &str,
    file: &Path,
) -> Result<u8, Error> {
    let what = || format!("{flag} {}", file.display());
    let failed = |source| Error::Content { what: what(), source };
    let lost = |error: Box<dyn std::error::Error + Send + Sync>| {
        failed(std::io::Error::new(std::io::ErrorKind::ConnectionReset, error.to_string()))
    };
    if file == Path::new("-") {
        let print = async {
            while let Some(piece) = content.next().await.map_err(lost)? {
                output.write(&piece)?;
            }
            Ok(())
        };
        return while_read(output, print).await;
    }
    let target = Target::open(file).map_err(|error| Error::usage(what(), input::reason(&error)))?;
    let mut writer = target.writer().map_err(failed)?;
    while let Some(piece) = content.next().await.map_err(lost)? {
        writer.write_all(&piece).map_err(failed)?;
    }
    target.finish().map_err(failed).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_that_is_named_as_another_format_is_refused() {
        for (name, is_taken) in [
            ("a.tar.gz", true),
            ("a.tgz", true),
            ("-", true),
            ("a", true),
            ("a.zip", false),
            ("a.tar", false),
        ] {
            assert_eq!(check_archive_name(Path::new(name)).is_ok(), is_taken, "{name}");
        }
    }
}
