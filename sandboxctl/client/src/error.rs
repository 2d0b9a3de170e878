//! What can fail between here and a service.

use std::io;
use std::time::Duration;

use hyper::StatusCode;
use sandbox_api::ErrorKind;
use serde::Deserialize;
use tokio_rustls::rustls::{self, CertificateError};

use super::address::{Security, ServerAddress};

/// A cause of any kind.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// A request to a service failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect to {server}")]
    Connect {
        /// The service.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// What it answers is not of the protocol that its scheme names.
    #[error("{server} does not answer in {expected}")]
    OtherProtocol {
        /// The service.
        server: String,
        /// HTTP or TLS.
        expected: &'static str,
        /// The other protocol that it may speak, and its address then.
        instead: (&'static str, String),
    },
    /// The certificate of the service is not one that this machine trusts, or TLS failed otherwise.
    #[error("no encrypted connection to {server}")]
    Tls {
        /// The service.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection was lost, and could not be made again in time.
    #[error("the connection to {server} was lost")]
    Lost {
        /// The service.
        server: String,
        /// Whether it had answered before: something may have been submitted.
        was_answered: bool,
        /// The cause.
        source: BoxedError,
    },
    /// There was no response in time.
    #[error("no response from {server} within {} s", .after.as_secs())]
    NoResponse {
        /// The service.
        server: String,
        /// How long was waited.
        after: Duration,
    },
    /// The connection was lost for good after an execution had been accepted.
    #[error("the connection to {server} was lost; execution {id} was accepted")]
    LostExecution {
        /// The service.
        server: String,
        /// The execution.
        id: String,
        /// The cause.
        source: Box<Error>,
    },
    /// The connection to a process was lost for good.
    #[error("the connection to {server} was lost")]
    LostProcess {
        /// The service.
        server: String,
        /// The sandbox.
        sandbox: String,
        /// The process.
        process: u32,
        /// The cause.
        source: BoxedError,
    },
    /// The connection was lost for good before a submission was answered.
    #[error(
        "the connection to {server} was lost; it is not known whether the execution was accepted"
    )]
    LostSubmission {
        /// The service.
        server: String,
        /// The idempotency key of the submission.
        key: String,
        /// The cause.
        source: Box<Error>,
    },
    /// The service refused the request.
    #[error("{message}")]
    Refused {
        /// The status of the response.
        status: StatusCode,
        /// The kind of the error.
        kind: ErrorKind,
        /// Why.
        message: String,
        /// The next step.
        hint: Option<String>,
        /// The member of the request that it refuses, if it says.
        member: Option<String>,
    },
    /// The response is not from a sandboxctl service.
    #[error("unexpected response from {server}: {what}")]
    Unexpected {
        /// The service.
        server: String,
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    /// The kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Unexpected { .. } => ErrorKind::Internal,
            // There is no connection, or none any more.
            _ => ErrorKind::Engine,
        }
    }

    /// Whether what was asked for is not there, or not any more.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        let missing = [StatusCode::NOT_FOUND, StatusCode::GONE];
        matches!(self, Self::Refused { status, .. } if missing.contains(status))
    }

    /// The exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            // 1 would look like a failure of the script.
            ErrorKind::Busy => sandbox_api::exit_code(ErrorKind::Engine),
            // 123 says that changes were not committed.
            ErrorKind::Conflict => sandbox_api::exit_code(ErrorKind::AlreadyExists),
            kind => sandbox_api::exit_code(kind),
        }
    }

    /// The next step, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("the socket is for the user who runs the service".to_owned())
            }
            Self::Connect { .. } | Self::NoResponse { .. } => {
                Some("is `sandboxctl serve` running there?".to_owned())
            }
            Self::OtherProtocol { instead: (protocol, address), .. } => {
                Some(format!("if it speaks {protocol}: --server {address}"))
            }
            Self::Tls { source, .. } => Some(tls_hint(source).to_owned()),
            Self::Lost { was_answered: true, .. } => Some(
                "what was submitted is not lost: `sandboxctl executions ls` lists it".to_owned(),
            ),
            Self::Lost { was_answered: false, .. } => Some(
                "it accepts connections and answers none: is it a `sandboxctl serve`, and is its \
                 scheme the right one, http or https?"
                    .to_owned(),
            ),
            Self::LostExecution { server, id, .. } => Some(format!(
                "`sandboxctl executions get {id} --server {server}` has its result; in a cluster, any \
                 other node has it too"
            )),
            Self::LostProcess { sandbox, process, .. } => Some(format!(
                "`sandboxctl sandbox attach {sandbox} {process} --after 0` shows it again, if it still runs"
            )),
            Self::LostSubmission { server, key, .. } => Some(format!(
                "`sandboxctl executions ls --server {server}` lists it if it was; the same request with the \
                 idempotency key {key} runs once, with another key it may run twice"
            )),
            Self::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => Some(
                "SANDBOXCTL_TOKEN or --token-file FILE gives a token; `sandboxctl token create` \
                 makes one where the service runs"
                    .to_owned(),
            ),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Unexpected { .. } => {
                Some("is it a `sandboxctl serve` that answers there?".to_owned())
            }
        }
    }

    /// The service, if there is no connection to it any more.
    fn lost_server(&self) -> Option<String> {
        match self {
            Self::Connect { server, .. }
            | Self::Tls { server, .. }
            | Self::Lost { server, was_answered: true, .. }
            | Self::NoResponse { server, .. } => Some(server.clone()),
            _ => None,
        }
    }

    /// A lost connection as that of an execution that was accepted.
    #[must_use]
    pub fn after_acceptance(self, id: &str) -> Self {
        let Some(server) = self.lost_server() else { return self };
        Self::LostExecution { server, id: id.to_owned(), source: Box::new(self) }
    }

    /// A lost connection as that of a submission that may have been accepted.
    #[must_use]
    pub fn after_submission(self, key: &str) -> Self {
        let Some(server) = self.lost_server() else { return self };
        Self::LostSubmission { server, key: key.to_owned(), source: Box::new(self) }
    }

    /// A reply in another protocol than the scheme says.
    pub fn other_protocol(address: &ServerAddress) -> Self {
        let (expected, other) = match address {
            ServerAddress::Tcp { security: Security::Tls, .. } => ("TLS", "plain HTTP"),
            _ => ("HTTP", "TLS"),
        };
        let instead = (other, address.by_other_scheme());
        Self::OtherProtocol { server: address.to_string(), expected, instead }
    }

    /// What a service would refuse, found out here.
    pub fn refusal(
        status: StatusCode,
        kind: ErrorKind,
        message: String,
        hint: Option<String>,
    ) -> Self {
        Self::Refused { status, kind, message, hint, member: None }
    }

    /// The refusal that a response is.
    pub fn refused(server: &str, status: StatusCode, body: &[u8]) -> Self {
        let Ok(problem) = serde_json::from_slice::<Problem>(body) else {
            return Self::Unexpected {
                server: server.to_owned(),
                what: format!("{status}, without the details of a problem"),
            };
        };
        let known = problem.kind.as_deref().and_then(ErrorKind::from_word);
        let kind = known.unwrap_or_else(|| kind_of(status));
        let title = problem.title.unwrap_or_else(|| status.to_string());
        let message = problem.detail.unwrap_or(title);
        let pointer = problem.errors.into_iter().next().map(|error| error.pointer);
        let member = pointer.and_then(|it| Some(it.strip_prefix("#/")?.to_owned()));
        Self::Refused { status, kind, message, hint: problem.hint, member }
    }

    /// The member of the request that the service refused.
    pub fn member(&self) -> Option<&str> {
        match self {
            Self::Refused { member, .. } => member.as_deref(),
            _ => None,
        }
    }

    /// A refusal with another next step, before its own.
    #[must_use]
    pub fn with_hint_before(mut self, first: &str) -> Self {
        if let Self::Refused { hint, .. } = &mut self {
            let own = hint.take().map(|own| format!("; {own}")).unwrap_or_default();
            *hint = Some(format!("{first}{own}"));
        }
        self
    }
}

/// The next step after a TLS handshake that failed.
fn tls_hint(source: &io::Error) -> &'static str {
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(refused)) = cause else {
        return "is it a `sandboxctl serve` with --tls-cert that answers there?";
    };
    match refused {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "--ca-file FILE, or SANDBOXCTL_CA_FILE, trusts its certificate, or the authority that signed it"
        }
        CertificateError::NotValidForNameContext { .. } => {
            "name the service as its certificate does, or give it a certificate for this name"
        }
        CertificateError::ExpiredContext { .. } => {
            "the service needs a new certificate; it reads it at SIGHUP"
        }
        other if other.to_string().contains("UnsupportedSignatureAlgorithm") => {
            "--ca-file FILE, or SANDBOXCTL_CA_FILE, trusts its certificate, if it is self-signed or of a private authority"
        }
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "the service shows the certificate of an authority, as `openssl req -x509` makes one: make \
             it with -addext basicConstraints=critical,CA:FALSE"
        }
        _ => "the service needs another certificate",
    }
}

/// The details of a problem (RFC 9457), as far as they are printed.
#[derive(Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    kind: Option<String>,
    hint: Option<String>,
    #[serde(default)]
    errors: Vec<ProblemOf>,
}

/// What is wrong with a member of a request.
#[derive(Deserialize)]
struct ProblemOf {
    pointer: String,
}

/// The kind of a refusal that does not name one that is known here.
fn kind_of(status: StatusCode) -> ErrorKind {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::NotAllowed,
        StatusCode::NOT_FOUND | StatusCode::GONE => ErrorKind::NotFound,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Busy,
        status if status.is_client_error() => ErrorKind::InvalidRequest,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_an_error_with_its_kind_and_hint() {
        let body = br#"{"type":"about:blank","title":"No","status":403,"detail":"not yours",
            "kind":"policy","hint":"ask","more":1}"#;
        let error = Error::refused("s", StatusCode::FORBIDDEN, body);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Policy, 121));
        assert_eq!((error.to_string(), error.hint()), ("not yours".into(), Some("ask".into())));

        let body = br#"{"title":"Unauthorized","kind":"unauthorized"}"#;
        let error = Error::refused("s", StatusCode::UNAUTHORIZED, body);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::NotAllowed, 121));
        assert!(error.hint().is_some_and(|hint| hint.contains("SANDBOXCTL_TOKEN")));

        let error = Error::refused("s", StatusCode::SERVICE_UNAVAILABLE, br#"{"title":"full"}"#);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Busy, 125));
        for (status, code) in [(StatusCode::CONFLICT, 1), (StatusCode::GONE, 1)] {
            let error = Error::refused("s", status, br#"{"kind":"process_ended"}"#);
            assert_eq!(error.exit_code(), code, "{status}");
        }
        let error = Error::refused("http://s", StatusCode::BAD_GATEWAY, b"<html>");
        assert!(
            error.to_string().starts_with("unexpected response from http://s: 502 Bad Gateway")
        );
        assert_eq!(error.exit_code(), 125);
    }
}
