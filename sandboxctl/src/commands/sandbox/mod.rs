//! `sandbox`: sandboxes that stay, of a service or of this user's own one.

mod attached;
mod copy;
mod create;
mod exec;
mod port;
mod process;
pub mod resolve;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandbox_api::service::{SandboxPatch, SandboxView, Time};
use sandbox_api::{ProcessState, ProcessView, SignalRequest, SignalTarget, millis};

use self::resolve::Unresolved;
use super::{Context, block_on, execution, local};
use crate::cli::root::LocalRootArgs;
use crate::cli::sandboxes::{SandboxCommand, SandboxesArgs};
use crate::error::Error;
use crate::remote::{Client, ProcessRef, SandboxQuery};
use crate::render::listing;
use crate::signals::Signals;

pub fn sandbox(context: &Context<'_>, args: SandboxesArgs) -> Result<u8, Error> {
    let SandboxesArgs { remote, command } = args;
    if let SandboxCommand::Exec(args) = &command {
        return exec::exec(context, &remote, args);
    }
    block_on(async {
        let mut signals = Signals::listen()?;
        let root = match &command {
            SandboxCommand::Create(args) => args.root.clone(),
            _ => LocalRootArgs::default(),
        };
        let connecting = connect(context, &remote, &root);
        let client = signals.guard(connecting).await??;
        // These handle signals in their own way.
        match command {
            SandboxCommand::Run(args) => process::run(context, client, &args).await,
            SandboxCommand::Shell { sandbox, words, keys } => {
                process::shell(context, client, &sandbox, &words, keys).await
            }
            SandboxCommand::Attach { process, after, keys } => {
                process::attach(context, client, &process, after, keys).await
            }
            SandboxCommand::Port { sandbox, ports, bind } => {
                let forwarding = port::forward(context, &client, &sandbox, &ports, bind);
                // A signal is how it ends.
                match signals.guard(forwarding).await {
                    Err(Error::Signalled(signal)) => Ok(signal.exit_code()),
                    ended => ended?,
                }
            }
            command => signals.guard(perform(context, client, command)).await?,
        }
    })
}

/// The service: the one that is named, or else this user's own, which is started if it does not run.
async fn connect(
    context: &Context<'_>,
    remote: &crate::cli::remote::RemoteArgs,
    root: &LocalRootArgs,
) -> Result<Arc<Client>, Error> {
    match remote.client(&context.environment)? {
        Some(_) if root.is_named() => {
            let flag = if root.rootfs.is_some() { "--rootfs" } else { "--image-archive" };
            let why = "a service has images, and no directories and archives of this machine";
            Err(Error::usage(flag, why).with_hint("SANDBOXCTL_SERVER= uses the local service"))
        }
        Some(client) => Ok(execution::remote::connect(context, client)),
        None => local::connect(context, root).await.map(Arc::new),
    }
}

async fn perform(
    context: &Context<'_>,
    client: Arc<Client>,
    command: SandboxCommand,
) -> Result<u8, Error> {
    let output = context.output;
    match command {
        SandboxCommand::Create(args) => return create::create(context, &client, &args).await,
        SandboxCommand::Ls { status, metadata, quiet, json } => {
            let metadata: BTreeMap<_, _> =
                metadata.iter().map(|it| (&*it.key, &*it.value)).collect();
            let query = SandboxQuery { status: status.as_deref(), metadata };
            let sandboxes = client.sandboxes(&query).await?;
            output.show(json, &sandboxes, |width| match quiet {
                true => listing::sandbox_ids(&sandboxes),
                false => listing::sandboxes(&sandboxes, Time::now(), width),
            })?;
        }
        SandboxCommand::Ps { sandbox, all, json } => {
            let id = find(&client, &sandbox).await?.id;
            let mut processes = client.processes(&id).await?;
            processes.retain(|it| all || it.state != ProcessState::Ended);
            let text = |width| listing::processes(&processes, Time::now(), width);
            output.show(json, &processes, text)?;
        }
        SandboxCommand::Logs(args) => return process::logs(context, client, &args).await,
        SandboxCommand::Kill { sandbox, process, signal, tree } => {
            let id = find(&client, &sandbox).await?.id;
            let processes = match process {
                Some(number) => vec![client.find_process(&id, number).await?],
                None => client.processes(&id).await?,
            };
            let is_meant = |it: &&ProcessView| process.is_some() || it.state != ProcessState::Ended;
            for view in processes.iter().filter(is_meant) {
                let process = ProcessRef::of(id.clone(), view);
                match signal {
                    Some(signal) => {
                        let to = if tree { SignalTarget::Tree } else { SignalTarget::Group };
                        client.signal_process(&process, &SignalRequest { signal, to }).await?;
                    }
                    None => client.stop_process(&process).await?,
                }
            }
        }
        SandboxCommand::Cp { from, to } => {
            return copy::copy(context, &client, &from, &to).await;
        }
        SandboxCommand::Extend { sandbox, ttl } => {
            let id = find(&client, &sandbox).await?.id;
            let patch = SandboxPatch { ttl_ms: Some(millis(ttl)), ..SandboxPatch::default() };
            let sandbox = client.patch_sandbox(&id, &patch).await?;
            output.notice(&listing::expiry(&sandbox, Time::now()));
        }
        SandboxCommand::Pause { sandboxes } => {
            for id in find_all(&client, &sandboxes).await? {
                client.pause_sandbox(&id).await?;
            }
        }
        SandboxCommand::Resume { sandboxes } => {
            for id in find_all(&client, &sandboxes).await? {
                client.resume_sandbox(&id).await?;
            }
        }
        SandboxCommand::Rm { sandboxes, force } => {
            let all = client.sandboxes(&SandboxQuery::default()).await?;
            // One that does not exist is an error after the others are removed.
            let mut unresolved = Ok(());
            for word in &sandboxes {
                match resolve::resolve(word, &all) {
                    Ok(found) => client.delete_sandbox(&found.id).await?,
                    Err(Unresolved::Unknown) if force => {}
                    Err(error) => unresolved = unresolved.and(Err(error.named(word))),
                }
            }
            unresolved?;
        }
        SandboxCommand::Exec(_)
        | SandboxCommand::Run(_)
        | SandboxCommand::Shell { .. }
        | SandboxCommand::Attach { .. }
        | SandboxCommand::Port { .. } => {}
    }
    Ok(0)
}

/// The sandbox that a word of the command line means.
async fn find(client: &Client, word: &str) -> Result<SandboxView, Error> {
    let all = client.sandboxes(&SandboxQuery::default()).await?;
    resolve::resolve(word, &all).cloned().map_err(|it| it.named(word))
}

/// The ids of all that words mean; none is used if one of them means none.
async fn find_all(client: &Client, words: &[String]) -> Result<Vec<String>, Error> {
    let all = client.sandboxes(&SandboxQuery::default()).await?;
    let find = |word: &String| {
        let found = resolve::resolve(word, &all).map_err(|it| it.named(word))?;
        Ok(found.id.clone())
    };
    words.iter().map(find).collect()
}
