//! Executions on an engine of this machine: launched, followed, and what they leave kept as asked for.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use sandbox_api::{CancelCause, ErrorKind, ExecutionDocument, SandboxSpec, Workload};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::permission::Permission;
use sandbox_controller::{Config, Controller, Execution, PreparedSandbox, Sandbox};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::super::collect::Artifacts;
use super::super::receipt::Issuer;
use super::super::staging::Staging;
use super::super::terminal::{Keyboard, Lent, next_size};
use super::super::{Context, hints, launch, local};
use super::follow::{follow, in_order};
use super::render::{Ended, Job, Left, LocalFiles, Renderer, View};
use crate::config::Settings;
use crate::error::Error;
use crate::report::Reports;
use crate::signals::Signals;

/// The executions of one call, from connecting to the engine to the last result.
pub struct Local<'a> {
    pub context: &'a Context<'a>,
    pub settings: &'a Settings,
    /// The sandbox of each.
    pub spec: SandboxSpec,
    /// A word of the command line that was taken as the name of the image.
    pub image_word: Option<&'a str>,
    /// What is copied out of the io dir.
    pub artifacts: Artifacts,
    /// What becomes of the changes.
    pub staging: Staging,
    /// What is written of what it made of what.
    pub issuer: Option<Issuer>,
    /// Which tools of other servers scripts may call.
    pub tools: Option<ToolGrant>,
    /// Who is asked for what no rule allows.
    pub permission: Option<Arc<dyn Permission>>,
    /// Where the results are written to.
    pub reports: &'a Reports,
    pub view: View,
    /// How many run at a time.
    pub at_once: usize,
}

/// A job, the title of its sandbox, what runs in it, and its stdin.
pub type LocalJob<'a> = (Job<'a>, String, Workload, Option<Keyboard>);

impl<'a> Local<'a> {
    /// Runs all jobs, and gives the exit code.
    ///
    /// # Errors
    ///
    /// The first error of our side.
    pub async fn run(&'a self, config: Config, jobs: Vec<LocalJob<'a>>) -> Result<u8, Error> {
        launch::with_engine(self.context, config, async |controller, signals| {
            let run = async |job: LocalJob<'a>| {
                let index = job.0.index;
                let ran = match self.run_one(controller, job).await {
                    Ok(ran) => Ok(ran),
                    Err(error) => Err(self.explain(error).await),
                };
                ran.inspect_err(|error| self.reports.failed(index, error))
            };
            let ended = in_order(jobs, self.at_once, run).await;
            // Each run had the signals that came meanwhile; the next one is for what follows.
            *signals = Signals::listen()?;
            ended
        })
        .await
    }

    async fn explain(&self, error: Error) -> Error {
        match (error, self.image_word) {
            (Error::Controller(source), Some(word)) if source.kind() == ErrorKind::Image => {
                let sandbox = local::sandbox_of(self.context, word).await;
                hints::word_as_image(source, word, sandbox.as_ref())
            }
            (error, _) => error,
        }
    }

    /// Runs one job in a sandbox of its own.
    async fn run_one(
        &'a self,
        controller: &Controller,
        (job, title, mut workload, stdin): LocalJob<'a>,
    ) -> Result<(Renderer<'a>, Ended), Error> {
        if let Workload::Command(command) = &mut workload
            && !self.view.json
            && !self.reports.show_output()
        {
            // Output is passed on, and the document is not printed.
            command.output_limit = 0;
        }
        let mut signals = Signals::listen()?;
        let sandbox = PreparedSandbox::from(self.spec.clone().title(title));
        let sandbox = sandbox.permission(self.permission.clone());
        let (context, settings) = (self.context, self.settings);
        let serve = async |sandbox: &Sandbox, signals: &mut Signals| {
            let follow =
                async |execution| self.follow(sandbox, execution, job, &workload, stdin).await;
            let what = (workload.clone(), self.tools.clone());
            launch::follow_to_end(signals, sandbox, what, follow).await
        };
        launch::in_sandbox_of(context, settings, controller, &mut signals, sandbox, serve).await
    }

    /// Copies input and renders events while it runs; then copies, commits and records what it left.
    async fn follow(
        &'a self,
        sandbox: &Sandbox,
        mut execution: Execution,
        job: Job<'a>,
        workload: &Workload,
        keyboard: Option<Keyboard>,
    ) -> Result<(Renderer<'a>, Ended), Error> {
        let mut renderer = Renderer::new(self.context, &self.view, self.reports, job)?;
        let (cancel, stdin) = (execution.cancel_handle(), execution.stdin());
        let mut lent = match (self.view.terminal, &keyboard) {
            (Some(size), Some(_)) => Some(Lent::lend(self.context.output, size)?),
            _ => None,
        };
        let feeding = async {
            let fed = match (keyboard, stdin) {
                (Some(keyboard), Some(stdin)) => feed(keyboard, stdin).await,
                _ => Ok(InputEnd::Closed),
            };
            match fed {
                // Partial input must not look like all of it.
                Err(_) => cancel.cancel(CancelCause::Caller),
                Ok(InputEnd::Left) => cancel.cancel(CancelCause::Interrupt),
                Ok(InputEnd::Closed) => {}
            }
            fed.map(drop)
        };
        let following = async {
            let unread = async || {
                cancel.cancel(CancelCause::Caller);
                Ok(())
            };
            let next = async || {
                loop {
                    tokio::select! {
                        event = execution.next() => return Ok::<_, Error>(event),
                        // It may have ended.
                        size = next_size(&mut lent) => {
                            _ = execution.resize(size).await;
                        }
                    }
                }
            };
            follow(next, unread, &mut renderer).await?;
            Ok::<_, Error>(execution.wait().await?)
        };
        let (ended, fed) = {
            let (mut feeding, mut following) = (pin!(feeding), pin!(following));
            tokio::select! {
                // The result counts, even if more of its input could have been read.
                biased;
                ended = &mut following => (ended, Ok(())),
                fed = &mut feeding => (following.await, fed),
            }
        };
        drop(lent);
        let mut result = ended?;
        // It was cancelled for that reason.
        fed?;
        let mut copied = self.artifacts.copy(sandbox, &result.outcome).await?;
        let mut staged = self.staging.finish(sandbox, &mut result, self.context.output).await?;
        let issuer = &self.issuer;
        let issued =
            Issuer::issue(issuer, sandbox, workload, &result, &mut copied, &self.staging).await;
        let mut document = ExecutionDocument::from(&result);
        document.common.artifacts = copied.report.as_ref().map(Cow::Borrowed);
        document.common.receipt = issued.as_ref().map(Cow::Borrowed);
        let exit_code = renderer.conclude(&mut document, copied.exit_code(result.exit_code()));
        let document = document.to_json().and_then(|json| ExecutionDocument::from_json(&json));
        let io_dir = result.io_dir.take();
        staged.changes = result.changes.take();
        let left = Left::Local(Box::new(LocalFiles { io_dir, copied, staged, issued }));
        let ended = Ended { document: document.map_err(Error::stdout)?, exit_code, left };
        renderer.end(&ended)?;
        Ok((renderer, ended))
    }
}

/// How a command's input ended.
enum InputEnd {
    /// There is no more, or it takes no more.
    Closed,
    /// Its user has left it.
    Left,
}

/// Copies our stdin until it ends, or the command closes its own.
async fn feed(
    mut keyboard: Keyboard,
    mut stdin: impl AsyncWrite + Unpin,
) -> Result<InputEnd, Error> {
    let failed = |source| Error::Content { what: "stdin".to_owned(), source };
    while let Some(piece) = keyboard.next().await.map_err(failed)? {
        if stdin.write_all(&piece).await.is_err() {
            return Ok(InputEnd::Closed);
        }
    }
    if keyboard.leaves {
        return Ok(InputEnd::Left);
    }
    // The command may also ignore the end of its stdin.
    _ = stdin.shutdown().await;
    Ok(InputEnd::Closed)
}
