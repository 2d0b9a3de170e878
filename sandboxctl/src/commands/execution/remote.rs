//! Executions on a service: what is sent there, and how they are followed to their ends.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sandbox_api::service::{
    Content, ExecutionRequest, IoMode, IoRequest, NetworkRequest, RequestSecrets,
};
use sandbox_api::{
    ErrorKind, ExecutionDocument, ExecutionEvent, InputSource, LimitKey, LimitsRequest, Recorded,
    Secrets,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::Context;
use super::follow::{follow, in_order};
use super::render::{Ended, Job, Left, RemoteFiles, Renderer, View};
use crate::config::{Key, Layer, Settings};
use crate::error::{Error, Signal};
use crate::input::{self, InputArgument, open_file, read_bounded, reason};
use crate::remote::{self, Client, EventSource, Events};
use crate::report::Reports;
use crate::signals::{self, Canceller, Signals};

/// The most bytes of inputs that are sent: they are held in memory, here and there.
const MAX_INPUT_BYTES: u64 = 32 << 20;

/// What scripts and commands have in common in a request, without what it runs. Limits and hosts are sent
/// where this side sets them; others are the service's. `stdin` says which argument already uses it.
///
/// # Errors
///
/// If an input cannot be sent, or a host is invalid.
pub fn request(
    settings: &Settings,
    inputs: &[InputArgument],
    stdin: Option<&str>,
    image: Option<String>,
) -> Result<ExecutionRequest, Error> {
    if settings.setting(Key::Inject).layer == Layer::Flag {
        let why = "a service adds secrets of its own configuration, and takes none from a caller";
        return Err(Error::usage("--inject", why).with_hint(
            "[network] inject is that of your own service, as of its start, and [server.inject] that of \
             a service for several callers",
        ));
    }
    let asks_for_hosts = settings.asks_for_hosts()
        || image.is_some() && settings.setting(Key::Allow).layer != Layer::Default;
    let hosts = match asks_for_hosts {
        true => settings.allow()?.rules().iter().map(ToString::to_string).collect(),
        false => Vec::new(),
    };
    let mode = (!settings.io_enabled()).then_some(IoMode::Off);
    Ok(ExecutionRequest {
        image,
        limits: LimitsRequest::of(&chosen_limits(settings), &settings.limits()),
        inputs: contents(inputs, stdin)?,
        io: IoRequest { mode, ..IoRequest::default() },
        network: NetworkRequest { allow: hosts },
        ..ExecutionRequest::default()
    })
}

/// Secrets as a request has them.
pub fn secrets(secrets: &Secrets) -> RequestSecrets {
    let secrets = secrets.iter().map(|(name, value)| (name.to_owned(), value.clone()));
    RequestSecrets(secrets.collect())
}

/// What lists show of an execution.
pub fn title(title: &str) -> Map<String, Value> {
    Map::from_iter([("title".to_owned(), title.into())])
}

/// The inputs with their contents.
fn contents(
    inputs: &[InputArgument],
    stdin: Option<&str>,
) -> Result<BTreeMap<String, Content>, Error> {
    let mut left = MAX_INPUT_BYTES;
    let mut contents = BTreeMap::new();
    for input in input::inputs(inputs, stdin)? {
        let flag = format!("--in {}", input.name);
        let content = match input.source {
            InputSource::Bytes(bytes) => bytes,
            InputSource::Path(path) if path.is_dir() => {
                return Err(Error::usage(flag, "a directory cannot be sent to a service")
                    .with_hint("an archive of it can: tar c DIR | … --in -:NAME.tar"));
            }
            InputSource::Path(path) => open_file(&path)
                .and_then(|opened| read_bounded(opened, left))
                .map_err(|error| Error::usage(&*flag, reason(&error)))?,
        };
        left = left.checked_sub(content.len() as u64).ok_or_else(|| {
            Error::usage(flag, "the inputs are more than 32 MiB, and a service takes no more")
        })?;
        contents.insert(input.name, Content(content));
    }
    Ok(contents)
}

/// The executions of one call on a service.
pub struct Remote<'a> {
    pub context: &'a Context<'a>,
    pub client: Arc<Client>,
    /// The kept sandbox in which they run, if one is named, by its id.
    pub sandbox: Option<String>,
    /// Where the results are written to.
    pub reports: &'a Reports,
    pub view: View,
    /// How many run at a time.
    pub at_once: usize,
}

impl<'a> Remote<'a> {
    /// Runs all jobs, and gives the exit code.
    ///
    /// # Errors
    ///
    /// The first error of our side.
    pub async fn run(&'a self, jobs: Vec<(Job<'a>, ExecutionRequest)>) -> Result<u8, Error> {
        let run = async |(job, request): (Job<'a>, ExecutionRequest)| {
            let ran = self.run_one(job, &request).await;
            ran.inspect_err(|error| self.reports.failed(job.index, error))
        };
        in_order(jobs, self.at_once, run).await
    }

    async fn run_one(
        &'a self,
        job: Job<'a>,
        request: &ExecutionRequest,
    ) -> Result<(Renderer<'a>, Ended), Error> {
        let sandbox = self.sandbox.as_deref();
        let mut execution = RemoteExecution::submit(&self.client, sandbox, request).await?;
        let mut renderer = Renderer::new(self.context, &self.view, self.reports, job)?;
        let id = execution.id.clone();
        let cancel = async || {
            let cancelled = self.client.cancel(&id).await;
            Ok(cancelled.map_err(|error| error.after_acceptance(&id))?)
        };
        follow(async || execution.next().await, cancel, &mut renderer).await?;
        let (mut document, exit_code) = execution.document()?;
        let exit_code = renderer.conclude(&mut document, exit_code);
        let ended = Ended {
            document,
            exit_code,
            left: Left::Remote(RemoteFiles {
                id: self.sandbox.is_none().then_some(id),
                has_gaps: execution.has_gaps,
            }),
        };
        renderer.end(&ended)?;
        Ok((renderer, ended))
    }
}

/// An execution of a service, from its submission to its end. A first signal cancels it, a second
/// one does not wait for that.
pub struct RemoteExecution {
    client: Arc<Client>,
    id: String,
    events: Events,
    /// The signal that cancelled it.
    signal: Arc<OnceLock<Signal>>,
    end: Option<(u8, Box<RawValue>)>,
    /// Log entries or output are missing.
    has_gaps: bool,
    _canceller: Canceller,
}

impl RemoteExecution {
    /// Submits a request.
    ///
    /// # Errors
    ///
    /// If the service does not accept it, or a signal came before it did.
    pub async fn submit(
        client: &Arc<Client>,
        sandbox: Option<&str>,
        request: &ExecutionRequest,
    ) -> Result<Self, Error> {
        let mut signals = Signals::listen()?;
        let key = remote::new_key();
        let submit = client.submit(request, sandbox, &key);
        tokio::pin!(submit);
        let id = match signals.guard(&mut submit).await {
            Ok(id) => id?,
            Err(signalled) => {
                // What was sent may be accepted all the same.
                if let Ok(Ok(id)) = signals.guard(submit).await {
                    _ = signals.guard(client.cancel(&id)).await;
                }
                return Err(signalled);
            }
        };
        let signal = Arc::new(OnceLock::new());
        let cancel = {
            let (client, id, signal) = (client.clone(), id.clone(), signal.clone());
            move |first| async move {
                _ = signal.set(first);
                // Its end comes as an event.
                _ = client.cancel(&id).await;
            }
        };
        Ok(Self {
            client: client.clone(),
            events: Events::new(client.clone(), EventSource::Execution(id.clone()), 0),
            id,
            signal,
            end: None,
            has_gaps: false,
            _canceller: signals::cancel_remote(cancel, signals),
        })
    }

    /// The next event that is not the last one.
    async fn next(&mut self) -> Result<Option<ExecutionEvent>, Error> {
        let next = self.events.next().await;
        let record = next.map_err(|error| error.after_acceptance(&self.id))?;
        match record.map(|record| record.event) {
            Some(Recorded::End { exit_code, document }) => {
                self.end = Some((exit_code, document));
                Ok(None)
            }
            Some(Recorded::Event(event)) => {
                self.has_gaps |= event == ExecutionEvent::Omitted;
                Ok(Some(event))
            }
            None => Ok(None),
        }
    }

    /// The document and the exit code, when there are no more events.
    fn document(&self) -> Result<(ExecutionDocument<'static>, u8), Error> {
        let end =
            self.end.as_ref().ok_or_else(|| self.unexpected("the stream of events has no end"));
        let (mut exit_code, json) = end.map(|(code, document)| (*code, document.get()))?;
        let mut document = ExecutionDocument::from_json(json)
            .map_err(|error| self.unexpected(&format!("the result: {error}")))?;
        // The caller knows its request, and gets the document that this machine would give.
        document.common.request = None;
        if let (Some(signal), Some(error)) = (self.signal.get(), &mut document.common.error)
            && error.kind == ErrorKind::Cancelled
        {
            exit_code = signal.exit_code();
            error.message = signal.cause().message().to_owned();
        }
        Ok((document, exit_code))
    }

    fn unexpected(&self, what: &str) -> Error {
        remote::Error::Unexpected { server: self.client.server(), what: what.to_owned() }.into()
    }
}

/// The limits that something sets: they are sent, and the others are the service's.
fn chosen_limits(settings: &Settings) -> Vec<LimitKey> {
    let layer = |limit| settings.setting(settings.limit_key(limit)).layer;
    let is_chosen = |limit: &LimitKey| layer(*limit) != Layer::Default;
    LimitKey::ALL.iter().copied().filter(is_chosen).collect()
}

/// The service, with a warning if what is sent there can be read.
pub fn connect(context: &Context<'_>, client: Client) -> Arc<Client> {
    if client.is_exposed() {
        let server = client.server();
        context
            .output
            .caution(&format!("{server} is not encrypted: others can read what is sent there"));
    }
    Arc::new(client)
}
