//! `server`: backups of a service's data directory, what all of its subjects run, and how it is.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sandbox_api::service::{ExecutionSummary, Health, HealthCheck, Subject, Time};
use sandbox_controller::Config;
use sandbox_service::ServiceConfig;
use sandbox_store::{ExecutionQuery, Store, StoreStatus};
use serde::Serialize;

use super::artifacts::cancellable;
use super::token::{Place, place, remove_new, store};
use super::{Context, guarded};
use crate::cli::remote::RemoteArgs;
use crate::cli::token::{ServerCommand, StoreArgs};
use crate::config::Key;
use crate::error::Error;
use crate::render::{self, escaped_line, listing};
use crate::target;
use crate::whole_file::MissingDirs;

pub fn server(context: &Context<'_>, command: &ServerCommand) -> Result<u8, Error> {
    match command {
        ServerCommand::Backup { file, store } => {
            let instead = "`pg_dump` copies it while nodes run";
            let (data_dir, config) = directory(context, store, instead)?;
            target::refuse_own("FILE", file, &config)?;
            let (store, file) = (Store::attach(&data_dir)?, file.clone());
            cancellable(move |proceed| store.backup(&file, proceed))?;
            Ok(0)
        }
        ServerCommand::Restore { file, store } => restore(context, file.clone(), store),
        ServerCommand::Executions { subject, status, limit, store: args, json } => {
            let query = ExecutionQuery {
                status: *status,
                limit: *limit as usize,
                ..ExecutionQuery::default()
            };
            let found = store(context, args)?.list_all(subject.as_ref(), &query)?;
            let pairs = || found.iter().map(|(subject, execution)| (subject, execution));
            let all = pairs().map(|(subject, execution)| Listed { subject, execution });
            let text = |width| listing::executions_of_subjects(pairs(), Time::now(), width);
            context.output.show(*json, &all.collect::<Vec<_>>(), text)?;
            Ok(0)
        }
        ServerCommand::Status { store, remote, json } => status(context, store, remote, *json),
    }
}

/// The data directory, and the configuration of a controller. The database of a cluster is refused.
fn directory(
    context: &Context<'_>,
    args: &StoreArgs,
    instead: &str,
) -> Result<(PathBuf, Config), Error> {
    match place(context, args)? {
        Place::Directory(data_dir, config) => Ok((data_dir, *config)),
        Place::Database(_) => {
            let why = "the store is in the database of a cluster, not in a data directory";
            Err(Error::usage("server", why).with_hint(instead))
        }
    }
}

/// An execution of a subject.
#[derive(Serialize)]
struct Listed<'a> {
    subject: &'a Subject,
    execution: &'a ExecutionSummary,
}

fn restore(context: &Context<'_>, file: PathBuf, args: &StoreArgs) -> Result<u8, Error> {
    let instead = "stop its nodes, then `pg_restore` and `sandboxctl database restored`";
    let (data_dir, config) = directory(context, args, instead)?;
    target::refuse_served("--data-dir", &data_dir, &config)?;
    let missing = MissingDirs::of(&data_dir);
    let restoring = data_dir.clone();
    let restored = cancellable(move |proceed| {
        Store::restore(&restoring, &file, proceed)
            .inspect_err(|error| remove_new(&restoring, &missing, error))
    })?;
    if let Some(replaced) = restored.replaced {
        context.output.notice(&format!("the database as it was is {}", replaced.display()));
    }
    if restored.interrupted > 0 {
        context.output.notice(&format!(
            "{} of it waited or ran when the backup was made: they are not run again",
            render::count(restored.interrupted, "execution", "executions")
        ));
    }
    let lost = files_of_nothing(&data_dir)?;
    if lost > 0 {
        context.output.notice(&format!(
            "the next start of the service deletes the files of {}: the backup does not have them",
            render::count(lost, "execution", "executions")
        ));
    }
    context.output.caution(
        "tokens that were revoked since the backup are valid again: `sandboxctl token ls` lists them",
    );
    Ok(0)
}

/// How many directories of files there are whose execution or sandbox the store does not have.
fn files_of_nothing(data_dir: &Path) -> Result<u64, Error> {
    let Ok(entries) = std::fs::read_dir(ServiceConfig::new(data_dir).files_dir()) else {
        return Ok(0);
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ids: Vec<String> = names.collect();
    let store = Store::attach(data_dir)?;
    let sandboxes = store.sandboxes()?;
    let known = store.known(&ids)?;
    let is_known =
        |id: &&String| known.contains(id) || sandboxes.iter().any(|sandbox| sandbox.id == **id);
    Ok(ids.iter().filter(|id| !is_known(id)).count() as u64)
}

/// How a service is.
#[derive(Serialize)]
struct Status {
    /// What its data directory has, if that is named.
    data_dir: Option<DataDirStatus>,
    /// What it says itself, if it is named.
    server: Option<ServerStatus>,
}

#[derive(Serialize)]
struct DataDirStatus {
    path: String,
    #[serde(flatten)]
    store: StoreStatus,
}

#[derive(Serialize)]
struct ServerStatus {
    url: String,
    ready: bool,
    checks: Vec<HealthCheck>,
}

fn status(
    context: &Context<'_>,
    args: &StoreArgs,
    remote: &RemoteArgs,
    json: bool,
) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let client = remote.client(&context.environment)?;
    let is_cluster = args.data_dir.is_none() && settings.text(Key::ServerDatabase).is_some();
    let is_named = !is_cluster && settings.setting(Key::ServerDataDir).value.is_some();
    if !is_named && client.is_none() {
        let error = Error::usage("server status", "no service is named");
        return Err(error.with_hint(match is_cluster {
            true => "--server URL names the address of a node; `sandboxctl cluster status` lists all nodes",
            false => "--data-dir DIR names its data directory, --server URL its address",
        }));
    }
    let server = client.map(|client| {
        guarded(async {
            let Health { ready, checks } = client.health().await?;
            Ok(ServerStatus { url: client.server(), ready, checks })
        })
    });
    let server = server.transpose()?;
    let data_dir = match is_named {
        true => {
            let (path, _) = directory(context, args, "`sandboxctl cluster status`")?;
            let store = Store::attach(&path)?.status(Time::now())?;
            Some(DataDirStatus { path: path.display().to_string(), store })
        }
        false => None,
    };
    let status = Status { data_dir, server };
    context.output.show(json, &status, |_| status.to_text())?;
    let runs = status.data_dir.as_ref().is_none_or(|it| it.store.is_served);
    Ok(u8::from(!runs || !status.server.as_ref().is_none_or(|it| it.ready)))
}

impl Status {
    fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(DataDirStatus { path, store: it }) = &self.data_dir {
            let state = if it.is_served { "a service runs" } else { "no service runs" };
            let (stored, database) =
                (render::size(it.stored_bytes), render::size(it.database_bytes));
            _ = writeln!(
                text,
                "{}: {state}\n  executions  {} queued, {} running, {} kept ({stored})\n  sandboxes   \
                 {} kept\n  tokens      {} valid\n  database    {database}, schema {}",
                escaped_line(path),
                it.queued,
                it.running,
                it.ended,
                it.sandboxes,
                it.tokens,
                it.schema,
            );
        }
        if let Some(it) = &self.server {
            let state = if it.ready { "ready" } else { "not ready" };
            _ = writeln!(text, "{}: {state}", escaped_line(&it.url));
            for check in &it.checks {
                let state = if check.ok { "ok" } else { "failed" };
                _ = writeln!(text, "  {:<11} {state}", escaped_line(&check.name));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_says_what_runs_and_what_is_ready() {
        let check = |name: &str, ok| HealthCheck { name: name.to_owned(), ok, problem: None };
        let store = StoreStatus {
            is_served: true,
            schema: 6,
            database_bytes: 4096,
            queued: 3,
            running: 1,
            ended: 20,
            stored_bytes: 1 << 20,
            sandboxes: 2,
            tokens: 4,
        };
        let status = Status {
            data_dir: Some(DataDirStatus { path: "/data\n".to_owned(), store }),
            server: Some(ServerStatus {
                url: "unix:/s".to_owned(),
                ready: false,
                checks: vec![check("disk", true), check("engine", false)],
            }),
        };
        insta::assert_snapshot!(status.to_text(), @r"
        /data\n: a service runs
          executions  3 queued, 1 running, 20 kept (1.0 MiB)
          sandboxes   2 kept
          tokens      4 valid
          database    4.0 KiB, schema 6
        unix:/s: not ready
          disk        ok
          engine      failed
        ");
    }
}
