//! Errors of the HTTP API: Problem Details (RFC 9457).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use sandbox_protocol::ErrorKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What the `type` of every problem begins with; its kind follows.
const TYPE_PREFIX: &str = "urn:sandboxctl:problem:";

/// Why a request was refused or failed: the body of every answer with a status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The kind as a URI: `urn:sandboxctl:problem:` and the kind.
    #[serde(rename = "type")]
    #[schemars(extend("format" = "uri"))]
    pub uri: String,
    /// The kind in a few words.
    pub title: String,
    /// The status of the answer.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// What is wrong with this request, in one line.
    pub detail: String,
    /// This request, for questions about it: `urn:sandboxctl:request:` and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The kind, for programs.
    pub kind: ProblemKind,
    /// A suggested next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The invalid members of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<InvalidMember>,
}

/// A member of a request that is unknown, missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InvalidMember {
    /// Where it is: in the body, a JSON Pointer as a fragment (`#/limits/timeout_ms`); otherwise
    /// the name of a parameter or a header.
    pub pointer: String,
    /// What is wrong with it.
    pub detail: String,
}

macro_rules! problem_kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:literal, $title:literal;)+) => {
        /// The kind of a [`Problem`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[$doc])* $variant,)+
            /// An error of a sandbox that has no kind of its own here.
            Sandbox(ErrorKind),
        }

        impl ProblemKind {
            /// The kinds that are not those of a sandbox.
            pub const OWN: &[Self] = &[$(Self::$variant),+];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                    Self::Sandbox(kind) => kind.as_str(),
                }
            }

            /// The status of an answer of this kind.
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$variant => $status,)+
                    Self::Sandbox(kind) => sandbox_status(kind),
                }
            }

            /// The kind in a few words.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)+
                    Self::Sandbox(_) => "the sandbox refused it or failed",
                }
            }
        }
    };
}

problem_kinds! {
    /// It is not HTTP or JSON as it should be.
    Malformed = "malformed", 400, "malformed request";
    /// There are no credentials, or invalid ones.
    Unauthenticated = "unauthenticated", 401, "authentication required";
    /// The caller lacks a scope, or its origin is not allowed.
    Forbidden = "forbidden", 403, "not allowed";
    /// A policy of the server forbids it: an image, a host, a limit above its ceiling.
    Policy = "policy", 403, "forbidden by a policy";
    /// There is no such thing, or it is another subject's.
    NotFound = "not_found", 404, "not found";
    /// The path has no such method.
    MethodNotAllowed = "method_not_allowed", 405, "method not allowed";
    /// The request did not arrive in time.
    RequestTimeout = "request_timeout", 408, "request timeout";
    /// Something else has the name, or is in the way.
    Conflict = "conflict", 409, "conflict";
    /// A request with the same idempotency key is being accepted at this moment.
    InFlight = "in_flight", 409, "request in flight";
    /// The process has no stdin, or it was closed.
    NoStdin = "no_stdin", 409, "no stdin";
    /// The process takes no more input now: what was sent before waits to be read.
    StdinFull = "stdin_full", 409, "stdin full";
    /// The process has ended.
    ProcessEnded = "process_ended", 409, "process ended";
    /// What the handle named is no more: its generation is over.
    Gone = "gone", 410, "gone";
    /// A condition of the request does not hold.
    PreconditionFailed = "precondition_failed", 412, "precondition failed";
    /// The body is too large.
    TooLarge = "too_large", 413, "request too large";
    /// The body has another type than the route reads.
    UnsupportedMediaType = "unsupported_media_type", 415, "unsupported media type";
    /// No byte of the file is in the range.
    RangeNotSatisfiable = "range_not_satisfiable", 416, "range not satisfiable";
    /// The service does not serve this `Host`.
    Misdirected = "misdirected", 421, "misdirected request";
    /// A member is unknown, missing, or has an invalid value.
    Invalid = "invalid_request", 422, "invalid request";
    /// The idempotency key was used before, with another request.
    KeyReused = "idempotency_key_reused", 422, "idempotency key reused";
    /// The subject asks for more than its rate.
    RateLimited = "rate_limited", 429, "too many requests";
    /// The subject has used up its quota.
    QuotaExceeded = "quota_exceeded", 429, "quota exceeded";
    /// A mistake of the server.
    Internal = "internal", 500, "internal error";
    /// Nothing in the sandbox listens on the port, or what listens accepts no connection.
    PortClosed = "port_closed", 502, "port closed";
    /// The queue is full.
    Full = "full", 503, "server full";
    /// The server cannot do it now: its engine does not answer, or it is shutting down.
    Unavailable = "unavailable", 503, "service unavailable";
}

const fn sandbox_status(kind: ErrorKind) -> u16 {
    use ErrorKind as Kind;
    match kind {
        Kind::PermissionDenied
        | Kind::PathEscape
        | Kind::NotAllowed
        | Kind::Protected
        | Kind::ReadOnly
        | Kind::Symlink
        | Kind::SpecialFile
        | Kind::NetworkRefused => 403,
        Kind::AlreadyExists
        | Kind::IsDirectory
        | Kind::NotADirectory
        | Kind::NotEmpty
        | Kind::Busy
        | Kind::TooManyHandles
        | Kind::Cancelled
        | Kind::Killed => 409,
        Kind::WriteLimit | Kind::TooManyFiles | Kind::SourceTooLarge => 413,
        Kind::InvalidPath | Kind::Encoding | Kind::Usage | Kind::Syntax => 422,
        Kind::DiskFull => 507,
        Kind::Timeout => 504,
        Kind::Engine | Kind::Image | Kind::AgentLost => 502,
        // Kinds of a finished execution are data; here they are mistakes of the server.
        _ => 500,
    }
}

impl From<ErrorKind> for ProblemKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::TooLarge => Self::TooLarge,
            ErrorKind::InvalidRequest => Self::Invalid,
            ErrorKind::Policy => Self::Policy,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Internal => Self::Internal,
            kind => Self::Sandbox(kind),
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Not the name of a [`ProblemKind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of problem '{0}'")]
pub struct UnknownProblemKind(pub String);

impl FromStr for ProblemKind {
    type Err = UnknownProblemKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let own = Self::OWN.iter().copied().find(|kind| kind.as_str() == name);
        own.or_else(|| ErrorKind::from_word(name).map(Self::Sandbox))
            .ok_or_else(|| UnknownProblemKind(name.to_owned()))
    }
}

sandbox_protocol::as_text!(ProblemKind);

impl JsonSchema for ProblemKind {
    fn schema_name() -> Cow<'static, str> {
        "ProblemKind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut names: Vec<&str> = Self::OWN.iter().map(|kind| kind.as_str()).collect();
        for kind in ErrorKind::ALL {
            if !names.contains(&kind.as_str()) {
                names.push(kind.as_str());
            }
        }
        json_schema!({
            "description": "The kind of a problem.",
            "type": "string",
            "enum": names,
        })
    }
}

impl Problem {
    /// A problem of this kind.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            uri: format!("{TYPE_PREFIX}{kind}"),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            instance: None,
            kind,
            hint: None,
            errors: Vec::new(),
        }
    }

    /// The same with a suggested next step, if there is one.
    #[must_use]
    pub fn hint(mut self, hint: Option<impl Into<String>>) -> Self {
        self.hint = hint.map(Into::into);
        self
    }

    /// The same with one more invalid member.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        self.errors.push(InvalidMember { pointer: pointer.into(), detail: detail.into() });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_known_by_its_name_and_has_a_status_of_an_error() {
        let of_sandboxes = ErrorKind::ALL.iter().map(|&kind| ProblemKind::from(kind));
        for kind in ProblemKind::OWN.iter().copied().chain(of_sandboxes) {
            assert_eq!(kind.as_str().parse(), Ok(kind));
            assert!((400..600).contains(&kind.status()), "{kind}");
        }
        assert_eq!("other".parse::<ProblemKind>(), Err(UnknownProblemKind("other".to_owned())));
    }

    #[test]
    fn problem_reads_back_as_written() {
        let problem = Problem::new(ErrorKind::PathEscape.into(), "it leads out of the mounts")
            .hint(Some("name a path below /io"))
            .at("path", "it has a `..`");
        let json = serde_json::to_string(&problem).unwrap();
        let expected = concat!(
            r#"{"type":"urn:sandboxctl:problem:path_escape","title":"the sandbox refused it or failed","#,
            r#""status":403,"detail":"it leads out of the mounts","kind":"path_escape","#,
            r#""hint":"name a path below /io","errors":[{"pointer":"path","detail":"it has a `..`"}]}"#,
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
    }
}
