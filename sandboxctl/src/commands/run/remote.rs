//! `run --server`: scripts that a service runs.

use std::sync::Arc;

use sandbox_api::service::{Content, EventBody, ExecutionRequest};
use sandbox_api::{LogEntry, ResultDocument, Status};

use super::super::remote::{self, Common, Following};
use super::super::{Context, block_on, hints, launch, network, reports, truncation};
use super::report::{self, Report};
use super::{Ran, in_order};
use crate::cli::RunArgs;
use crate::error::Error;
use crate::input::{self, ScriptSource};
use crate::remote::{Client, run_result};
use crate::report::Reports;

/// The scripts of one call, each an execution of a service.
struct Session<'a> {
    context: &'a Context<'a>,
    args: &'a RunArgs,
    client: Arc<Client>,
    reports: &'a Reports,
    /// One runs at a time, and is printed as it comes.
    is_streamed: bool,
    /// There are several, whose outputs have their names above them.
    has_heads: bool,
}

pub fn run(context: &Context<'_>, args: &RunArgs, client: Client) -> Result<u8, Error> {
    args.remote.refuse_local("run")?;
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    // Everything is read before the first one is submitted.
    let stdin = args.scripts().iter().any(|script| script.is_stdin()).then_some("SCRIPT -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let scripts = input::scripts(&args.scripts())?;
    hints::check_languages(&scripts)?;
    let common = Common {
        settings: &settings,
        inputs: &args.sandbox.files.inputs,
        stdin: stdin.as_deref(),
        image: args.root.image_name().map(str::to_owned),
        secrets,
        title: String::new(),
    };
    let mut template = common.request()?;
    template.args = input::arguments(args.args_file.as_deref(), &args.args)?;
    template.seed = args.reproducible.seed;
    template.now = args.reproducible.now.map(|moment| moment.0);
    template.io.workdir = args.sandbox.workdir.clone();
    template.io.errors = settings.chosen_io_errors();
    let subjects = scripts.iter().map(reports::script).collect();
    let reports = Reports::of(&args.reports.reports, None, subjects)?;
    let session = Session {
        context,
        args,
        client: remote::connect(context, client),
        reports: &reports,
        is_streamed: scripts.len() == 1 || args.jobs == 1,
        has_heads: scripts.len() > 1,
    };
    let ended = block_on(session.run(&template, scripts));
    hints::unread_stdin(context.output, hints::STDIN_OF_RUN);
    reports::finish(context.output, reports, ended)
}

impl Session<'_> {
    /// Runs the scripts.
    async fn run(
        &self,
        template: &ExecutionRequest,
        scripts: Vec<ScriptSource>,
    ) -> Result<u8, Error> {
        let run = async |(index, script): (usize, ScriptSource)| {
            let request = ExecutionRequest {
                script: Some(Content(script.source.clone())),
                metadata: remote::title(&launch::title(&script.name)),
                ..template.clone()
            };
            let ran = self.run_one(index, &script, &request).await;
            let ran = ran.inspect_err(|error| self.reports.failed(index, error));
            ran.map(|(following, document)| Ran {
                exit_code: document.exit_code,
                is_cancelled: document.status == Status::Cancelled,
                of: (script, following, document),
            })
        };
        let report =
            |(script, following, document): (ScriptSource, Following, _)| match self.is_streamed {
                true => Ok(()),
                false => self.report(&script).remote_end(&document, &following, true),
            };
        let scripts = scripts.into_iter().enumerate().collect();
        in_order(scripts, self.args.jobs.into(), run, report).await
    }

    async fn run_one(
        &self,
        index: usize,
        script: &ScriptSource,
        request: &ExecutionRequest,
    ) -> Result<(Following, ResultDocument<'static>), Error> {
        let mut following = Following::submit(&self.client, request).await?;
        let report = self.is_streamed.then(|| self.report(script));
        let mut refused = 0;
        while let Some(event) = following.next().await? {
            match event {
                EventBody::Start => self.reports.started(index),
                EventBody::Log { level, text } => {
                    let entry = LogEntry { level, text, lossy: false, cut: false };
                    self.reports.log(index, &entry);
                    if let Some(report) = &report {
                        report.log(&entry)?;
                    }
                }
                EventBody::Refused { host } if self.is_streamed && !self.args.json => {
                    network::print(self.context.output, refused, &host);
                    refused += 1;
                }
                _ => {}
            }
        }
        let mut document = following.result_document()?;
        report::add_hint(script, &mut document);
        self.reports.ran(index, &document);
        if let Some(report) = report {
            report.remote_end(&document, &following, false)?;
        }
        Ok((following, document))
    }

    fn report<'b>(&'b self, script: &'b ScriptSource) -> Report<'b> {
        let Self { context, args, .. } = self;
        if self.has_heads && !args.json {
            context.output.notice(&format!("running {}", script.name));
        }
        Report {
            output: context.output,
            json: args.json,
            result_only: args.result_only,
            raw: args.raw,
            keep: false,
            script,
            here: &context.environment.working_directory,
        }
    }
}

impl Report<'_> {
    /// Reports a result of a service; its log too, if that was not printed as it came.
    fn remote_end(
        &self,
        document: &ResultDocument<'static>,
        following: &Following,
        with_log: bool,
    ) -> Result<(), Error> {
        let result = run_result(document);
        if self.json {
            self.output.document(document)?;
            if let Ok(result) = &result {
                truncation::warn_of_run(self.output, result);
            }
            return Ok(());
        }
        if with_log {
            for entry in &document.log_entries() {
                self.log(entry)?;
            }
            network::print_all_refused(self.output, document.execution.network.as_deref());
        }
        match &result {
            Ok(result) => self.outcome(result)?,
            Err(failure) => {
                self.output.failure(&failure.message, failure.hint.as_deref());
                self.tests(&document.tests);
            }
        }
        following.print_kept(self.output, &document.execution.files_touched);
        match &result {
            Ok(result) => truncation::warn_of_run(self.output, result),
            // The log says itself that it is cut off.
            Err(_) => {
                truncation::warn_of_files(self.output, document.execution.files_touched_truncated);
            }
        }
        Ok(())
    }
}
