//! What an engine's responses mean: its errors as ours, and Podman's peculiarities.

use std::time::Duration;

use bollard::Docker;
use sandbox_protocol::limits::cut_encoded;
use serde::de::DeserializeOwned;

use crate::error::EngineError;

/// For bollard, in seconds. Every call has a shorter time limit, so this is only set because
/// bollard requires one.
pub(super) const CLIENT_TIMEOUT: u64 = 3600;

/// The maximum length of an engine's message, in encoded bytes.
const MAX_ENGINE_WORDS: usize = 1 << 10;

/// Stops a container with `call`, and unpauses it if it is paused: a paused container receives no
/// signal. Podman refuses the call if the container is just exiting: a retry finds that it has
/// exited.
pub(super) async fn even_if_paused<F>(
    docker: &Docker,
    container: &str,
    call: impl Fn() -> F + Send + Sync,
) -> Result<(), EngineError>
where
    F: Future<Output = Result<(), bollard::errors::Error>> + Send,
{
    match call().await {
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 409, message })
            if message.contains("paused") =>
        {
            _ = docker.unpause_container(container).await;
            unless_gone(call().await)
        }
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 500, message })
            if message.contains("container state improper") =>
        {
            unless_gone(call().await)
        }
        result => unless_gone(result),
    }
}

pub(super) fn engine_error(error: bollard::errors::Error) -> EngineError {
    use bollard::errors::Error as Bollard;
    match error {
        Bollard::DockerResponseServerError { status_code, message } => {
            // Some engines repeat the whole request.
            let message = cut_encoded(message.trim(), MAX_ENGINE_WORDS).to_owned();
            match status_code {
                404 => EngineError::NotFound(message),
                _ => EngineError::Refused(message),
            }
        }
        Bollard::DockerStreamError { error } => EngineError::Refused(error),
        Bollard::JsonDataError { message, .. } => EngineError::UnexpectedResponse(message),
        Bollard::JsonSerdeError { err } => EngineError::UnexpectedResponse(err.to_string()),
        Bollard::RequestTimeoutError => {
            EngineError::TimedOut { after: Duration::from_secs(CLIENT_TIMEOUT) }
        }
        error => {
            // The outer messages ("client error (Connect)") are vague, the innermost is the most
            // specific.
            let mut innermost: &dyn std::error::Error = &error;
            while let Some(source) = innermost.source() {
                innermost = source;
            }
            EngineError::Connection(innermost.to_string())
        }
    }
}

/// Podman's containers are `stopped` before they are `exited`, which is not a state in Docker: such
/// a response is parsed again.
pub(super) fn stopped_is_exited<T: DeserializeOwned>(
    answer: Result<T, bollard::errors::Error>,
) -> Result<T, EngineError> {
    match answer {
        // Neither can occur inside a string: the quotes would be escaped there.
        Err(bollard::errors::Error::JsonDataError { contents, .. })
            if contents.contains(r#""stopped""#) =>
        {
            let contents = contents
                .replace(r#""State":"stopped""#, r#""State":"exited""#)
                .replace(r#""Status":"stopped""#, r#""Status":"exited""#);
            // Of bytes, as bollard parses them: of a string these types would have second parsers.
            serde_json::from_slice(contents.as_bytes())
                .map_err(|error| EngineError::UnexpectedResponse(error.to_string()))
        }
        answer => answer.map_err(engine_error),
    }
}

/// Ignores errors that mean that there was nothing to do.
pub(super) fn unless_gone(result: Result<(), bollard::errors::Error>) -> Result<(), EngineError> {
    match result {
        // 404: nonexistent; 409: not running, or being removed; 304: unchanged.
        Err(bollard::errors::Error::DockerResponseServerError {
            status_code: 404 | 409 | 304,
            ..
        }) => Ok(()),
        result => result.map_err(engine_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_podman_has_not_cleaned_up_after_has_exited() {
        use bollard::models::{
            ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary,
            ContainerSummaryStateEnum,
        };
        fn read<T: DeserializeOwned>(contents: &str) -> Result<T, EngineError> {
            stopped_is_exited(serde_json::from_str::<T>(contents).map_err(|error| {
                bollard::errors::Error::JsonDataError {
                    message: error.to_string(),
                    contents: contents.to_owned(),
                    column: 0,
                }
            }))
        }
        let labels = r#""Labels":{"a":"\"State\":\"stopped\""}"#;
        let listed = format!(r#"[{{"Id":"1","State":"stopped",{labels}}}]"#);
        let listed: Vec<ContainerSummary> = read(&listed).unwrap();
        assert_eq!(listed[0].state, Some(ContainerSummaryStateEnum::EXITED));
        assert_eq!(listed[0].labels.as_ref().unwrap()["a"], r#""State":"stopped""#);
        let state = r#"{"State":{"Status":"stopped","ExitCode":137}}"#;
        let state = read::<ContainerInspectResponse>(state).unwrap().state.unwrap();
        assert_eq!(state.status, Some(ContainerStateStatusEnum::EXITED));
        assert_eq!(state.exit_code, Some(137));
        assert!(read::<ContainerInspectResponse>(r#"{"State":{"Status":"odd"}}"#).is_err());
    }
}
