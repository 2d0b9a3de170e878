//! `sandbox create`: a sandbox that stays.

use hyper::StatusCode;
use sandbox_api::service::{IdleAction, KeptSpec, SandboxRequest, SandboxStatus, Time};
use sandbox_api::{Processes, millis};

use super::super::Context;
use super::super::exec::variables_of_request;
use super::super::execution::remote;
use super::super::serve::own::Place;
use crate::cli::sandboxes::CreateArgs;
use crate::error::Error;
use crate::remote::{Client, Error as RemoteError};
use crate::render::listing;

pub async fn create(
    context: &Context<'_>,
    client: &Client,
    args: &CreateArgs,
) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    // Limits, inputs and hosts are those of an execution.
    let like = remote::request(&settings, &args.inputs, None, args.image.clone())?;
    // This user's own service may have what programs run in from an earlier command.
    let own = Place::of(&context.environment);
    let is_own = client.server() == format!("unix:{}", own.socket().display());
    let has_root = is_own && own.record().is_some_and(|own| own.root.is_named());
    let has_programs = args.has_programs() || has_root;
    // Only the service knows whether it has an image for sandboxes that name none.
    let may_have_programs = has_programs || !is_own;
    let keeps = may_have_programs && !args.per_command;
    let host_dir = match &args.io_dir {
        Some(dir) => {
            let found = context.environment.working_directory.join(dir).canonicalize();
            let dir = found.map_err(|error| {
                Error::unusable("--io-dir", dir, &error).with_hint("name a directory that exists")
            })?;
            let path = dir.into_os_string().into_string();
            Some(path.map_err(|_| Error::usage("--io-dir", "its path is not UTF-8 text"))?)
        }
        None => None,
    };
    let metadata = args.metadata.iter().map(|it| (it.key.clone(), it.value.clone().into()));
    let mut request = SandboxRequest {
        name: args.name.clone(),
        spec: KeptSpec {
            image: like.image,
            limits: like.limits,
            inputs: like.inputs,
            network: like.network,
            mount_path: args.mount_path.clone(),
            workdir: args.workdir.clone(),
            processes: if keeps { Processes::Kept } else { Processes::PerCommand },
            ports: args.port.iter().cloned().collect(),
            files: args.files.unwrap_or_default(),
            env: variables_of_request(context, &args.variables.read()?)?,
            host_dir,
            prepared: None,
        },
        ttl_ms: args.ttl.map(millis),
        idle_ms: args.idle.map(millis),
        idle: if args.freeze { IdleAction::Freeze } else { IdleAction::Stop },
        metadata: metadata.collect(),
    };
    let sandbox = match client.create_sandbox(&request).await {
        Err(RemoteError::Refused { status: StatusCode::UNPROCESSABLE_ENTITY, .. })
            if keeps && !has_programs =>
        {
            request.spec.processes = Processes::PerCommand;
            client.create_sandbox(&request).await?
        }
        created => created?,
    };
    let lives = millis(sandbox.expires_at.since(sandbox.created_at));
    if sandbox.metadata != request.metadata
        || sandbox.idle != request.idle
        || request.ttl_ms.is_some_and(|ttl| ttl != lives)
    {
        context.output.notice(
            "it was there already, and --ttl, --idle, --freeze and --metadata have not changed it",
        );
    }
    match args.json {
        true => context.output.document(&sandbox)?,
        false => {
            context.output.text(&format!("{}\n", sandbox.id))?;
            let word = sandbox.name.as_deref().unwrap_or(&sandbox.id);
            let expiry = listing::expiry(&sandbox, Time::now());
            let is_stopped = sandbox.status == SandboxStatus::Stopped;
            let state = if is_stopped { "it is stopped, and starts at its next use; " } else { "" };
            context.output.notice(&format!(
                "{state}{expiry}; `sandboxctl sandbox extend {word} TIME` changes that"
            ));
        }
    }
    Ok(0)
}
