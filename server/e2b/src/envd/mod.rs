//! What a sandbox itself answers, as E2B's agent (envd) does: its processes and its files.
//!
//! Everything here is of one sandbox, which [`EnvdCaller`] says. A sandbox has one user: any user that is named
//! acts as it, and only what a relative path means differs.

mod configs;
mod files;
mod filesystem;
mod gzip;
mod metrics;
mod paths;
mod process;
mod watch;
mod watchers;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRequestParts};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::service::{SandboxRef, SandboxView, Subject};
use sandbox_service::{Service, ServiceError};

use self::configs::Configs;
use self::paths::User;
use self::watchers::Watchers;
use crate::app::{App, EnvdCaller};
use crate::connect::{Code, ConnectError};
use crate::error::Error;

/// The routes of a sandbox, without a prefix.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/process.Process/{method}", post(process::call))
        .route("/filesystem.Filesystem/{method}", post(filesystem::call))
        .route("/files", get(files::read).post(files::write))
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
        .route("/metrics", get(metrics::metrics))
        .route("/envs", get(metrics::envs))
        .method_not_allowed_fallback(other_method)
        .fallback(|| async { Error::not_offered("this of a sandbox") })
        // Files are as large as the sandbox lets them be, and messages have a bound of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(Extension(Arc::new(Watchers::default())))
        .layer(Extension(Arc::new(Configs::default())))
}

async fn other_method(method: Method) -> Error {
    Error::new(StatusCode::METHOD_NOT_ALLOWED, format!("this path does not take {method}"))
}

/// A call in a sandbox.
#[derive(Clone)]
struct Call {
    app: App,
    subject: Subject,
    sandbox: SandboxRef,
    user: User,
    watchers: Arc<Watchers>,
    configs: Arc<Configs>,
}

impl FromRequestParts<App> for Call {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let missing = || Error::new(StatusCode::INTERNAL_SERVER_ERROR, "a call without a sandbox");
        let EnvdCaller { subject, sandbox } =
            parts.extensions.get().cloned().ok_or_else(missing)?;
        let watchers = parts.extensions.get::<Arc<Watchers>>().cloned().ok_or_else(missing)?;
        let configs = parts.extensions.get::<Arc<Configs>>().cloned().ok_or_else(missing)?;
        let name = parts.headers.get(AUTHORIZATION).and_then(|it| user_of(it.as_bytes()));
        let user = User::named(name.as_deref());
        let user = user.map_err(|message| Error::new(StatusCode::UNAUTHORIZED, message))?;
        Ok(Self { app: app.clone(), subject, sandbox, user, watchers, configs })
    }
}

impl Call {
    fn service(&self) -> &Service {
        self.app.service()
    }

    /// What is known of the sandbox.
    async fn view(&self) -> Result<SandboxView, ServiceError> {
        self.service().sandbox(&self.subject, &self.sandbox.id).await
    }

    /// Whether the sandbox is there: it may have been killed since the call began.
    async fn has_sandbox(&self) -> bool {
        self.view().await.is_ok()
    }
}

/// The user of `Authorization: Basic`, if it is that.
fn user_of(header: &[u8]) -> Option<String> {
    let (scheme, encoded) = header.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(encoded.trim_ascii()).ok()?).ok()?;
    let (user, _) = pair.split_once(':')?;
    Some(user.to_owned()).filter(|user| !user.is_empty())
}

/// What no method of a service is.
fn unimplemented(service: &str, method: &str) -> ConnectError {
    let method: String = method.chars().filter(|it| it.is_ascii_alphanumeric()).take(64).collect();
    ConnectError::new(Code::Unimplemented, format!("this server does not offer {service}/{method}"))
}

#[cfg(test)]
mod tests;
