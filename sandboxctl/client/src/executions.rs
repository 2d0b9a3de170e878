//! What a service is asked about executions.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use hyper::Method;
use sandbox_api::encode_percent;
use sandbox_api::service::{Execution, ExecutionList, ExecutionRequest, FileList, Health};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{BufferedResponse, Call, Client, Stream};
use super::error::Error;

/// The longest wait of one request for an end; then the request is repeated.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The part of the answer to a submission that it has whether it has ended or not.
#[derive(Deserialize)]
struct Submitted {
    id: String,
}

impl Client {
    /// Submits a request, once for each key: in the kept sandbox of this id, or in one of its own. Its id.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn submit(
        &self,
        request: &ExecutionRequest,
        sandbox: Option<&str>,
        key: &str,
    ) -> Result<String, Error> {
        let body = request.to_json_with_secrets().map_err(|error| self.unexpected(error))?;
        let body = body.as_bytes().to_vec();
        let path = match sandbox {
            Some(id) => format!("/v1/sandboxes/{id}/executions?wait=0"),
            None => "/v1/executions?wait=0".to_owned(),
        };
        let call = Call::new(Method::POST, path).json(body).idempotent(key);
        let called = self.call(&call).await;
        let answer = called.map_err(|error| match self.was_reached() {
            true => error.after_submission(key),
            false => error,
        })?;
        let Submitted { id } = self.read(&answer)?;
        // It becomes a part of paths.
        match id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            true if !id.is_empty() => Ok(id),
            _ => Err(self.unexpected("an invalid id")),
        }
    }

    /// An execution as it is now.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn execution(&self, id: &str) -> Result<Execution, Error> {
        self.get(format!("/v1/executions/{id}")).await
    }

    /// An execution that has ended.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn ended_execution(&self, id: &str) -> Result<Execution, Error> {
        let path = format!("/v1/executions/{id}?wait={}", LONGEST_WAIT.as_secs());
        let call = Call::new(Method::GET, path).waiting(LONGEST_WAIT);
        loop {
            let execution: Execution = self.ask(&call).await?;
            if execution.document.is_some() {
                return Ok(execution);
            }
        }
    }

    /// Cancels an execution. One that has ended stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, format!("/v1/executions/{id}"));
        self.call(&call).await.map(drop)
    }

    /// Whether the service can do its work. Not repeated if there is no reply.
    ///
    /// # Errors
    ///
    /// [`Error`], and if the reply is not a service's.
    pub async fn health(&self) -> Result<Health, Error> {
        let answer = self.call_once(&Call::new(Method::GET, "/readyz")).await?;
        // It has one whether it is ready or not.
        serde_json::from_slice(&answer.body)
            .map_err(|_| Error::refused(&self.server(), answer.status, &answer.body))
    }

    /// Returns when the service answers, which may just have been started. Not repeated.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn is_alive(&self) -> Result<(), Error> {
        let call = Call::new(Method::GET, "/healthz").waiting(LONGEST_WAIT);
        let answer = self.call_once(&call).await?;
        match answer.status.is_success() {
            true => Ok(()),
            false => Err(Error::refused(&self.server(), answer.status, &answer.body)),
        }
    }

    /// A page of executions, the latest first: those that this query asks for.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn list(&self, query: &[(&str, Option<String>)]) -> Result<ExecutionList, Error> {
        let given = query.iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let query: Vec<_> =
            given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        self.get(format!("/v1/executions?{}", query.join("&"))).await
    }

    /// The files of an execution.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn files(&self, id: &str) -> Result<FileList, Error> {
        self.get(format!("/v1/executions/{id}/files")).await
    }

    /// The content of a file of an execution, or all of its files as a `tar.gz`.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn download(&self, id: &str, file: Option<&str>) -> Result<Stream, Error> {
        let path = match file {
            Some(file) => format!("/v1/executions/{id}/files/{}", encoded_path(file)),
            None => format!("/v1/executions/{id}/archive?format=tar.gz"),
        };
        self.stream(&Call::new(Method::GET, path)).await
    }

    /// What the service has at a path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.ask(&Call::new(Method::GET, path)).await
    }

    /// What the service answers.
    pub(super) async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        self.read(&self.call(call).await?)
    }

    fn read<T: DeserializeOwned>(&self, answer: &BufferedResponse) -> Result<T, Error> {
        serde_json::from_slice(&answer.body)
            .map_err(|error| self.unexpected(format!("{}: {error}", answer.status)))
    }

    pub(super) fn unexpected(&self, what: impl ToString) -> Error {
        Error::Unexpected { server: self.server(), what: what.to_string() }
    }
}

/// A unique key for one submission.
pub fn new_key() -> String {
    let random = |_| RandomState::new().hash_one(std::process::id());
    let [one, two] = [0, 1].map(random);
    format!("sandboxctl-{one:016x}{two:016x}")
}

/// Text as a part of a path or a query.
pub(super) fn encoded(text: &str) -> String {
    encode_percent(text.as_bytes(), b"-._~")
}

/// Text as parts of a path, with slashes between them.
pub(super) fn encoded_path(text: &str) -> String {
    encode_percent(text.as_bytes(), b"/-._~")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_path_are_encoded() {
        assert_eq!(encoded("a b/ü?&=#%.txt"), "a%20b%2F%C3%BC%3F%26%3D%23%25.txt");
        assert_ne!(new_key(), new_key());
    }
}
