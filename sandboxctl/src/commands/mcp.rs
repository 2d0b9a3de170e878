//! `mcp`: the tools of an agent, over stdin and stdout.

mod install;
mod upstream;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::service::{BySubject, Subject};
use sandbox_api::{ByteSize, DEFAULT_PROTECTED, DiskReserve, SandboxSpec, ToolRule};
use sandbox_auth::LOCAL_SUBJECT;
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::permission::Permission;
use sandbox_controller::{Controller, Error as ControllerError, PoolConfig, Rebuild};
use sandbox_env::Environment;
use sandbox_mcp::{
    Access, Audience, DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, McpServer, PrivateDir,
    Settings as McpSettings, Workspace, WorkspaceDir, serve_lines, tool_names,
};
use sandbox_service::{Quotas, Service, ServiceConfig};
use sandbox_store::{Durability, Store};
use serde_json::Map;

use super::launch::with_hosts;
use super::learn::{Dialogue, Learn};
use super::upstream::{asking, of_command};
use super::{Context, block_on};
use crate::cli::mcp::{McpArgs, McpCommand};
use crate::cli::upstream::UpstreamCommand;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::signals::Signals;

/// Serves, or does what a subcommand says.
pub fn mcp(context: &Context<'_>, args: &McpArgs) -> Result<u8, Error> {
    match &args.command {
        Some(McpCommand::Install(args)) => install::install(context, args),
        Some(McpCommand::Upstream(UpstreamCommand::Check(args))) => upstream::check(context, args),
        None => serve(context, args),
    }
}

fn serve(context: &Context<'_>, args: &McpArgs) -> Result<u8, Error> {
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    args.rules.add_to(&mut settings)?;
    let mut mcp_settings = mcp_settings(args, &context.environment, &settings)?;
    let configured = settings.upstreams(Key::McpUpstream);
    let upstream = of_command(context, &args.upstream, &settings, configured)?;
    if upstream.is_none() && !args.expose.is_empty() {
        return Err(Error::usage("--expose", "there is no server whose tools it could offer")
            .with_hint("--upstream NAME=COMMAND or NAME=URL names one"));
    }
    let expose = exposed(args, &settings)?;
    let (upstreams, grant) = upstream.unzip();
    let upstreams = upstreams.unwrap_or_default();
    let config = context.controller(&settings);
    let is_private = settings.private_io().is_some() && mcp_settings.sandbox.supports_exec();
    let private = private_dir(&config.private_dir())?;
    let io_dir = match (settings.io_enabled(), is_private) {
        (false, _) => WorkspaceDir::Off,
        // It would be empty for ever.
        (true, true) if mcp_settings.access == Access::ReadOnly => WorkspaceDir::Off,
        (true, true) => WorkspaceDir::Kept(private.io_dir()),
        (true, false) => {
            mcp_settings.sandbox = mcp_settings.sandbox.no_symlinks();
            WorkspaceDir::Named(settings.io_dir(&context.environment.working_directory)?)
        }
    };
    let named = match &io_dir {
        WorkspaceDir::Named(dir) => Some(&**dir),
        _ => None,
    };
    let about = ("mcp", Dialogue::Never);
    let learn = Learn::begin(context, &args.rules, &settings, named, about)?;
    let permission = learn.permission();
    let tools = grant.map(|grant| {
        mcp_settings.elicitation = Some(Arc::default());
        mcp_settings.upstreams.others = upstreams.clone();
        mcp_settings.expose = expose;
        asking(grant, permission.clone())
    });
    let ended = block_on(async {
        let mut signals = Signals::listen()?;
        let controller = Arc::new(context.connect(config, &mut signals).await?);
        let concurrency = args.concurrency as usize;
        let service =
            private_service(controller.clone(), &private, concurrency, (permission, tools)).await?;
        upstreams.start();
        controller.pool(PoolConfig { size: args.pool.into(), ..PoolConfig::default() });
        let subject = Subject::new(LOCAL_SUBJECT).expect("it is the name of one");
        let opened = Workspace::open(service.clone(), subject, Arc::new(mcp_settings), io_dir);
        let (served, is_over) = match opened {
            Ok(workspace) => {
                let workspace = Arc::new(workspace);
                serve_with(context, &controller, &service, workspace, &mut signals).await
            }
            Err(error) => {
                let usage = Error::usage(settings.named(Key::IoDir), error.to_string());
                (Err(usage.with_hint(error.hint())), true)
            }
        };
        drop(service);
        upstreams.close().await;
        // What a signal left is for the next command.
        if is_over {
            context.close_shared(controller, &mut signals).await;
        }
        served
    });
    learn.finish(context.output, ended)
}

/// A private io dir in `parent`.
pub(super) fn private_dir(parent: &Path) -> Result<PrivateDir, Error> {
    PrivateDir::create(parent).map_err(|error| Error::system(parent.display().to_string(), error))
}

/// A service for one user, which ends with this process and refuses nothing.
async fn private_service(
    controller: Arc<Controller>,
    private: &PrivateDir,
    concurrency: usize,
    (permission, tools): (Option<Arc<dyn Permission>>, Option<ToolGrant>),
) -> Result<Service, Error> {
    let config = ServiceConfig {
        concurrency,
        permission,
        host_tools: BySubject { others: tools, ..BySubject::default() },
        quotas: Quotas { concurrency, ..Quotas::default() },
        disk_reserve: DiskReserve::Bytes(ByteSize::b(0)),
        ..ServiceConfig::new(private.data_dir())
    };
    let store = Store::open(&config.data_dir, Durability::Process)?;
    let started = Service::start(config, controller, store).await;
    started.map_err(|error| Error::system("the service", error))
}

/// Serves the client. Whether all has ended: a second signal does not wait for that.
async fn serve_with(
    context: &Context<'_>,
    controller: &Arc<Controller>,
    service: &Service,
    workspace: Arc<Workspace>,
    signals: &mut Signals,
) -> (Result<u8, Error>, bool) {
    // The first call is not to wait for what the first run of all does; and it says what fails.
    let warming = tokio::spawn({
        let (controller, spec) = (controller.clone(), workspace.spec_of_run("mcp"));
        async move {
            if !spec.supports_exec() && !controller.knows_its_image() {
                controller.image_build(Rebuild::IfMissing, |_: &str| ()).await?;
            }
            match controller.prewarm(spec).await {
                // Those with inputs, as a read-only io dir is one, always start cold.
                Err(ControllerError::NotPooled { .. }) => Ok(()),
                warmed => warmed,
            }
        }
    });
    let server = McpServer::new(workspace.clone());
    let mut signal = None;
    let stop = async { signal = Some(signals.next().await) };
    let served = serve_lines(server, tokio::io::stdin(), tokio::io::stdout(), stop).await;
    warming.abort();
    if let Ok(Err(error)) = warming.await {
        context.output.notice(&format!("sandboxes cannot be started: {}", error.full_message()));
    }
    let end = async {
        workspace.close().await;
        service.shutdown(Duration::ZERO).await
    };
    let is_over = signals.guard(end).await.is_ok();
    if !is_over {
        context.output.notice("the next command removes what is left");
    }
    let served = match (served, signal) {
        (_, Some(signal)) => Err(Error::Signalled(signal)),
        (Ok(()), None) => Ok(0),
        (Err(error), None) => Err(Error::usage("stdin", error.to_string()).with_hint(
            "`sandboxctl mcp` is started by a client: `sandboxctl mcp install` adds it to one",
        )),
    };
    (served, is_over)
}

fn mcp_settings(
    args: &McpArgs,
    environment: &Environment,
    settings: &Settings,
) -> Result<McpSettings, Error> {
    let limits = settings.allowed_limits()?;
    let mut spec = SandboxSpec::new()
        .root(args.root.root(settings))
        .limits(limits)
        .io_errors(settings.io_errors())
        .protected(settings.protected())
        .default_encoding(settings.default_encoding());
    if let Some(path) = &args.mount_path {
        spec = spec.mount_path(path);
    }
    spec.allowed_paths = settings.allowed_paths();
    if !args.no_protect {
        spec = with_default_protection(spec);
    }
    spec = with_hosts(spec, environment, settings)?;
    Ok(McpSettings {
        output_bytes: output_bytes(settings)?,
        sandbox: spec,
        timeout_ceiling: settings.ceiling().0.timeout,
        access: if args.read_only { Access::ReadOnly } else { Access::ReadWrite },
        audience: Audience::Local,
        has_previews: false,
        tools: tools(&args.tools)?,
        upstreams: BySubject::default(),
        expose: Vec::new(),
        elicitation: None,
    })
}

/// Write-protects the names that others run or trust. Programs write to all of the io dir, so that no
/// name can be protected from them: where there are some, nothing is added.
pub fn with_default_protection(spec: SandboxSpec) -> SandboxSpec {
    if spec.supports_exec() {
        return spec;
    }
    let mut protected = spec.protected.clone();
    protected.extend(DEFAULT_PROTECTED.iter().map(ToString::to_string));
    protected.sort();
    protected.dedup();
    spec.protected(protected)
}

/// How much output a call gives.
///
/// # Errors
///
/// If it is more than any client can take.
pub fn output_bytes(settings: &Settings) -> Result<usize, Error> {
    let given = settings.size(Key::McpOutput).map_or(DEFAULT_OUTPUT_BYTES as u64, ByteSize::as_u64);
    usize::try_from(given).ok().filter(|given| *given <= MAX_OUTPUT_BYTES).ok_or_else(|| {
        let most = ByteSize::b(MAX_OUTPUT_BYTES as u64);
        Error::usage(
            settings.named(Key::McpOutput),
            format!("more than {most} is too much for clients"),
        )
        .with_hint("what a call does not give is a resource, which its result links to")
    })
}

/// The patterns of tools of other servers that are offered themselves.
fn exposed(args: &McpArgs, settings: &Settings) -> Result<Vec<ToolRule>, Error> {
    let configured = settings.rules_of_tools(Key::McpExpose);
    let given =
        [("--expose".to_owned(), &args.expose), (settings.named(Key::McpExpose), &configured)];
    for (name, patterns) in given {
        // Without arguments no condition is met.
        if let Some(rule) = patterns.iter().find(|it| it.unmet(&Map::new()).is_some()) {
            return Err(Error::usage(name, format!("'{rule}' has conditions"))
                .with_hint("a pattern such as 'github.list_*' has none: --tool binds arguments"));
        }
    }
    Ok([args.expose.clone(), configured].concat())
}

/// The tools that the patterns match.
fn tools(patterns: &[String]) -> Result<Option<Vec<String>>, Error> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut offered = Vec::new();
    for text in patterns {
        let pattern = glob::Pattern::new(text)
            .map_err(|error| Error::usage("--tools", format!("'{text}': {error}")))?;
        let matches: Vec<_> =
            tool_names().into_iter().filter(|name| pattern.matches(name)).collect();
        if matches.is_empty() {
            let names = tool_names().join(", ");
            return Err(Error::usage("--tools", format!("'{text}' matches no tool"))
                .with_hint(format!("the tools are {names}")));
        }
        offered.extend(matches.into_iter().map(str::to_owned));
    }
    Ok(Some(offered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_chosen_by_patterns() {
        let chosen = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
            tools(&patterns).map_err(|error| error.to_text())
        };
        assert_eq!(chosen(&[]), Ok(None));
        assert_eq!(
            chosen(&["*_file", "stat"]).unwrap().unwrap(),
            ["read_file", "write_file", "edit_file", "stat"]
        );
        let error = chosen(&["read"]).unwrap_err();
        assert!(error.contains("--tools: 'read' matches no tool"), "{error}");
        assert!(error.contains("hint: the tools are execute_script, read_file"), "{error}");
    }
}
