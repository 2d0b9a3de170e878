//! What a service is asked about kept sandboxes, their processes and their files.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use hyper::header::{CONNECTION, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sandbox_api::operation::OperationRequest;
use sandbox_api::service::{SandboxList, SandboxPatch, SandboxRequest, SandboxView};
use sandbox_api::{ProcessList, ProcessRequest, ProcessView, SignalRequest, TCP_PROTOCOL};
use serde::Serialize;

use super::client::{Call, Client, Stream};
use super::connection::RequestBody;
use super::error::Error;
use super::executions::{encoded, encoded_path};

/// How long a sandbox may take until it is there: its image may have to be fetched.
const LAUNCH: Duration = Duration::from_secs(1800);
/// How long a file may take that is sent.
const UPLOAD: Duration = Duration::from_secs(24 * 3600);
/// How long the end of a process is waited for.
const END: Duration = Duration::from_secs(120);
/// How many sandboxes are on a page.
const PAGE: usize = 100;

/// Which sandboxes are listed.
#[derive(Debug, Default)]
pub struct SandboxQuery<'a> {
    /// Those with this status.
    pub status: Option<&'a str>,
    /// Those that have these members among their metadata.
    pub metadata: BTreeMap<&'a str, &'a str>,
}

/// A process of a sandbox, and of no other generation of it: there another one may have its id.
#[derive(Debug, Clone)]
pub struct ProcessRef {
    /// The sandbox's id.
    pub sandbox: String,
    /// The generation of the sandbox that it runs in.
    pub generation: u64,
    /// Its id.
    pub id: u32,
}

impl ProcessRef {
    /// A process that was found in a sandbox.
    pub const fn of(sandbox: String, process: &ProcessView) -> Self {
        Self { sandbox, generation: process.generation, id: process.id }
    }

    /// The path of something of it, with the begun query.
    pub(super) fn path(&self, rest: &str) -> String {
        let Self { sandbox, generation, id } = self;
        format!("/v1/sandboxes/{sandbox}/processes/{id}{rest}?generation={generation}")
    }
}

impl Client {
    /// Connects to a port of a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`]. It is not tried again.
    pub async fn connect_port(&self, sandbox: &str, port: u16) -> Result<TokioIo<Upgraded>, Error> {
        let path = format!("/v1/sandboxes/{}/ports/{port}/connect", encoded(sandbox));
        let call = Call::new(Method::POST, path)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, TCP_PROTOCOL);
        let (headers, upgraded) = self.switch(&call).await?;
        match headers.get(UPGRADE) {
            Some(protocol) if protocol == TCP_PROTOCOL => Ok(TokioIo::new(upgraded)),
            _ => Err(self.unexpected("a connection of another protocol")),
        }
    }

    /// A sandbox as it is now, by its id.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn find_sandbox(&self, id: &str) -> Result<SandboxView, Error> {
        self.get(format!("/v1/sandboxes/{}", encoded(id))).await
    }

    /// Creates a sandbox, or gives the one of this name.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn create_sandbox(&self, request: &SandboxRequest) -> Result<SandboxView, Error> {
        let call = Call::new(Method::POST, "/v1/sandboxes").json(self.json(request)?);
        self.ask(&call.waiting(LAUNCH)).await
    }

    /// All sandboxes of the caller, the latest first.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn sandboxes(&self, query: &SandboxQuery<'_>) -> Result<Vec<SandboxView>, Error> {
        let mut base = format!("/v1/sandboxes?limit={PAGE}");
        for (name, value) in &query.metadata {
            base.push_str(&format!("&metadata.{}={}", encoded(name), encoded(value)));
        }
        if let Some(status) = query.status {
            base.push_str(&format!("&status={}", encoded(status)));
        }
        let (mut all, mut path) = (Vec::new(), base.clone());
        loop {
            let page: SandboxList = self.get(path).await?;
            let is_empty = page.sandboxes.is_empty();
            all.extend(page.sandboxes);
            match page.next_cursor {
                Some(cursor) if !is_empty => path = format!("{base}&cursor={}", encoded(&cursor)),
                _ => return Ok(all),
            }
        }
    }

    /// Removes a sandbox with its files.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete_sandbox(&self, id: &str) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, format!("/v1/sandboxes/{id}")).waiting(END);
        self.call(&call).await.map(drop)
    }

    /// Changes a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn patch_sandbox(
        &self,
        id: &str,
        patch: &SandboxPatch,
    ) -> Result<SandboxView, Error> {
        let call = Call::new(Method::PATCH, format!("/v1/sandboxes/{id}")).json(self.json(patch)?);
        self.ask(&call).await
    }

    /// Freezes a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn pause_sandbox(&self, id: &str) -> Result<(), Error> {
        self.call(&Call::new(Method::POST, format!("/v1/sandboxes/{id}/pause"))).await.map(drop)
    }

    /// Thaws a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn resume_sandbox(&self, id: &str) -> Result<(), Error> {
        self.call(&Call::new(Method::POST, format!("/v1/sandboxes/{id}/resume"))).await.map(drop)
    }

    /// Starts a process, once for each key.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn start_process(
        &self,
        sandbox: &str,
        request: &ProcessRequest,
        key: &str,
    ) -> Result<ProcessView, Error> {
        let call = Call::new(Method::POST, format!("/v1/sandboxes/{sandbox}/processes"));
        let call = call.json(self.json(request)?).idempotent(key).waiting(LAUNCH);
        self.ask(&call).await
    }

    /// The processes of a sandbox, the latest first.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn processes(&self, sandbox: &str) -> Result<Vec<ProcessView>, Error> {
        let list: ProcessList = self.get(format!("/v1/sandboxes/{sandbox}/processes")).await?;
        Ok(list.processes)
    }

    /// The process of this id in the sandbox as it is now, in whatever generation that is.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn find_process(&self, sandbox: &str, id: u32) -> Result<ProcessView, Error> {
        self.get(format!("/v1/sandboxes/{sandbox}/processes/{id}")).await
    }

    /// A process as it is now.
    ///
    /// # Errors
    ///
    /// [`Error`]; also if its generation is gone.
    pub async fn process(&self, process: &ProcessRef) -> Result<ProcessView, Error> {
        self.get(process.path("")).await
    }

    /// Sends a signal to a process.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn signal_process(
        &self,
        process: &ProcessRef,
        signal: &SignalRequest,
    ) -> Result<(), Error> {
        let call = Call::new(Method::POST, process.path("/signal")).json(self.json(signal)?);
        self.call(&call).await.map(drop)
    }

    /// Ends a process with all that it has started. A second call does not leave them time.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn stop_process(&self, process: &ProcessRef) -> Result<(), Error> {
        let path = format!("{}&wait={}", process.path(""), END.as_secs());
        self.call(&Call::new(Method::DELETE, path).waiting(END)).await.map(drop)
    }

    /// Performs a file operation.
    ///
    /// # Errors
    ///
    /// [`Error`]. One that fails is data.
    pub async fn operate(
        &self,
        sandbox: &str,
        operation: &OperationRequest,
    ) -> Result<serde_json::Value, Error> {
        let call = Call::new(Method::POST, format!("/v1/sandboxes/{sandbox}/operations"));
        self.ask(&call.json(self.json(operation)?).waiting(LAUNCH)).await
    }

    /// The content of a file in a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn read_file(&self, sandbox: &str, path: &str) -> Result<Stream, Error> {
        let call = Call::new(Method::GET, file_path(sandbox, path)).waiting(LAUNCH);
        self.stream(&call).await
    }

    /// Writes a file in a sandbox: whole, or not at all.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        content: RequestBody,
    ) -> Result<(), Error> {
        let call = Call::new(Method::PUT, file_path(sandbox, path)).waiting(UPLOAD);
        self.upload(&call, content).await.map(drop)
    }

    fn json(&self, value: &impl Serialize) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(value).map_err(|error| self.unexpected(error))
    }
}

fn file_path(sandbox: &str, path: &str) -> String {
    // An absolute path begins with a slash of its own.
    let (root, rest) = path.strip_prefix('/').map_or(("", path), |rest| ("%2F", rest));
    format!("/v1/sandboxes/{sandbox}/files/{root}{}", encoded_path(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_process_name_its_generation() {
        let process = ProcessRef { sandbox: "7f3c".to_owned(), generation: 2, id: 1 };
        assert_eq!(process.path(""), "/v1/sandboxes/7f3c/processes/1?generation=2");
        assert_eq!(process.path("/attach"), "/v1/sandboxes/7f3c/processes/1/attach?generation=2");
    }

    #[test]
    fn paths_of_files_are_encoded_name_by_name() {
        assert_eq!(file_path("7f3c", "a/b c"), "/v1/sandboxes/7f3c/files/a/b%20c");
        assert_eq!(file_path("7f3c", "/io/a"), "/v1/sandboxes/7f3c/files/%2Fio/a");
    }
}
