//! What requests of the control API have in common: the sandbox of their path, and a body of JSON.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::{Extension, RequestPartsExt as _};
use sandbox_http::Caller;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::body::whole;
use crate::error::Error;
use crate::sandbox::Sandbox;

/// The most bytes of a request.
const MAX_REQUEST: usize = 1 << 20;
/// The life of a sandbox whose request says nothing of it.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// A request about one sandbox, and whose it is.
pub(super) struct About {
    pub app: App,
    caller: Caller,
    pub id: String,
}

impl FromRequestParts<App> for About {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let no_caller =
            |_| Error::new(StatusCode::INTERNAL_SERVER_ERROR, "the request was not authenticated");
        let Extension(caller) = parts.extract::<Extension<Caller>>().await.map_err(no_caller)?;
        let Path(id) = parts.extract::<Path<String>>().await?;
        Ok(Self { app: app.clone(), caller, id })
    }
}

impl About {
    /// The sandbox, as it is now.
    pub async fn sandbox(&self) -> Result<Sandbox> {
        self.app.find(&self.caller.subject, &self.id).await
    }
}

/// The body of a request, which may be empty. Members that are not known are ignored: each SDK has more.
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<App> for Asked<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &App) -> Result<Self> {
        let body = whole(request, MAX_REQUEST).await?;
        if body.bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        let unreadable = |error| Error::invalid(format!("the request cannot be read: {error}"));
        serde_json::from_slice(&body.bytes).map(Self).map_err(unreadable)
    }
}

/// The time that a request asks for.
pub(super) fn time(app: &App, seconds: u64) -> Result<Duration> {
    let (time, most) = (Duration::from_secs(seconds), app.service().kept_bounds().max_ttl);
    let most = most.as_secs();
    match seconds > most {
        true => Err(Error::invalid(format!(
            "a timeout of {seconds} s is longer than the {most} s of this server"
        ))),
        false => Ok(time),
    }
}

pub(super) fn refuse_without_memory(memory: Option<bool>) -> Result<()> {
    match memory {
        Some(false) => Err(Error::not_offered(
            "pauses without memory: a paused sandbox is frozen, and goes on where it was",
        )),
        _ => Ok(()),
    }
}
