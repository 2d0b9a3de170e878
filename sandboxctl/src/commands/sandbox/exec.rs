//! `sandbox exec`: a command in a sandbox that stays, which ends with all that it has started.

use sandbox_api::service::{CommandRequest, ExecutionRequest};
use sandbox_api::{LimitKey, LimitsRequest};

use super::super::execution::{Job, Program, Remote, View, remote};
use super::super::{Context, block_on, exec as one_shot, hints, reports};
use super::{connect, find};
use crate::cli::remote::RemoteArgs;
use crate::cli::root::LocalRootArgs;
use crate::cli::sandboxes::ExecInArgs;
use crate::config::Layer;
use crate::error::Error;
use crate::report::Reports;

pub fn exec(context: &Context<'_>, service: &RemoteArgs, args: &ExecInArgs) -> Result<u8, Error> {
    let ExecInArgs { command, secrets, json, raw } = args;
    let settings = context.settings_with(|flags| command.add_flags(flags))?;
    let line = command.line();
    let (secrets, _) = secrets.read(&context.environment, command.stdin.then_some("--stdin"))?;
    let shown = hints::shown_line(&line, &secrets);
    let subject = reports::command(&line, &secrets);
    let title = remote::title(&one_shot::title(&line, &secrets));
    let workdir = command.workdir.as_deref();
    let request = one_shot::command_request(context, workdir, &line, &command.variables.read()?)?;
    // The sandbox has the other limits.
    let mut given = vec![LimitKey::Timeout, LimitKey::StopTimeout];
    given.retain(|key| settings.setting(settings.limit_key(*key)).layer == Layer::Flag);
    let limits = LimitsRequest::of(&given, &settings.limits());
    let secrets = remote::secrets(&secrets);
    let reports = Reports::of(&[], None, vec![subject])?;
    let job = Job { index: 0, program: Program::Command(&shown) };
    let ended = block_on(async {
        let client = connect(context, service, &LocalRootArgs::default()).await?;
        let sandbox = find(&client, &command.sandbox).await?.id;
        let stdin = one_shot::read_stdin(context, command.stdin).await?;
        let request = ExecutionRequest {
            command: Some(CommandRequest { stdin, ..request }),
            stop_signal: command.stop_signal,
            limits,
            secrets,
            metadata: title,
            ..ExecutionRequest::default()
        };
        let remote = Remote {
            context,
            client,
            sandbox: Some(sandbox),
            reports: &reports,
            view: View { json: *json, raw: *raw, ..View::default() },
            at_once: 1,
        };
        remote.run(vec![(job, request)]).await
    });
    if !command.stdin {
        hints::unread_stdin(context.output, hints::STDIN_OF_EXEC);
    }
    reports::finish(context.output, reports, ended)
}
