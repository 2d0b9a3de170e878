//! The document of an execution whose end nobody saw: what is stored of it, and what is missing said
//! to be.

use std::borrow::Cow;
use std::sync::Arc;

use sandbox_api::service::{EventBody, ExecutionDocuments, FileKind, FileList, OutputStream};
use sandbox_api::{
    DEFAULT_COLLECTED_BYTES, EngineKind, Failure, FileOp, Limits, LogEntry, OutputEncoding, Status,
    TestCase, TouchedFile, TouchedSource,
};

use crate::error::ServiceError;
use crate::live::Live;
use crate::service::Core;

/// How many events are read at one time.
const PIECE: usize = 256;
/// The last entry of a log that is not whole.
const CUT_OFF: &str = "[log cut off: the server was stopped]";

/// What an execution has told before.
#[derive(Default)]
struct Told {
    logs: Vec<Cow<'static, str>>,
    tests: Vec<TestCase>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Told {
    fn add(&mut self, body: EventBody) {
        match body {
            EventBody::Log { level, text } => {
                let entry = LogEntry { level, text, lossy: false, cut: false };
                self.logs.push(Cow::Owned(entry.line().into_owned()));
            }
            EventBody::Output { stream, text, encoding } => {
                let kept = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                kept.extend(encoding.decode(&text));
                kept.truncate(DEFAULT_COLLECTED_BYTES);
            }
            EventBody::Test { case } => self.tests.push(case),
            EventBody::Queued
            | EventBody::Start
            | EventBody::Omitted
            | EventBody::Refused { .. }
            | EventBody::End { .. } => {}
        }
    }
}

impl Core {
    /// The document of an execution that ran when its service was killed, and whether its files are
    /// kept. What it told last is stored nowhere, and its files are, only if it had ended. What it used
    /// is not known: nobody measured it to its end.
    pub(crate) async fn unseen_document(
        self: &Arc<Self>,
        live: &Live,
        engine: Option<EngineKind>,
        limits: Option<Limits>,
        failure: Failure,
    ) -> (ExecutionDocuments, bool) {
        let mut document = ExecutionDocuments::failed(live.kind, &live.id, Status::Killed, failure);
        let told = self.told(live).await.unwrap_or_else(|error| {
            tracing::error!(id = live.id, %error, "stored events cannot be read");
            Told::default()
        });
        let execution = match &mut document {
            ExecutionDocuments::Script(it) => {
                it.logs = told.logs;
                it.logs.push(Cow::Borrowed(CUT_OFF));
                it.logs_truncated = true;
                it.tests = Cow::Owned(told.tests);
                &mut it.execution
            }
            ExecutionDocuments::Command(it) => {
                let text = |output: &[u8]| {
                    let (text, encoding) = OutputEncoding::encode(output, true);
                    (Cow::Owned(text.into_owned()), encoding)
                };
                (it.stdout, it.stdout_encoding) = text(&told.stdout);
                (it.stderr, it.stderr_encoding) = text(&told.stderr);
                (it.stdout_truncated, it.stderr_truncated) = (true, true);
                &mut it.execution
            }
        };
        (execution.engine, execution.limits) = (engine, limits);
        let (core, id) = (self.clone(), live.id.clone());
        let files = crate::blocking(move || core.files.kept(&id)).await;
        let files = files.unwrap_or_else(|error| {
            tracing::error!(id = live.id, %error, "files cannot be listed");
            None
        });
        let keeps_files = files.is_some();
        execution.files_touched_truncated = true;
        if let Some(FileList { files, truncated }) = files {
            let files = files.into_iter().filter(|file| file.kind != FileKind::Directory);
            let touched = files.map(|file| TouchedFile {
                name: file.path,
                name_b64: file.path_b64,
                op: FileOp::Write,
                bytes: file.bytes,
            });
            execution.files_touched = touched.collect();
            execution.files_touched_source = TouchedSource::Scan;
            execution.files_touched_truncated = truncated;
        }
        (document, keeps_files)
    }

    async fn told(&self, live: &Live) -> Result<Told, ServiceError> {
        let (mut told, mut last) = (Told::default(), 0);
        loop {
            let events = self.records.events(&live.subject, &live.id, last, PIECE).await?;
            let Some(event) = events.last() else { return Ok(told) };
            last = event.seq;
            events.into_iter().for_each(|event| told.add(event.body));
        }
    }
}
