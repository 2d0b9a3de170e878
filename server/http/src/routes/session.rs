//! Sessions of browsers: begun with a token or a code, looked at, and ended.

use axum::Extension;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use sandbox_api::ProblemKind;
use sandbox_api::service::{Subject, Time};
use sandbox_auth::{MAX_SESSION_TOKEN_BYTES, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::{Caller, Peer};
use crate::app::App;
use crate::lists::bearer;
use crate::refusal::{Refusal, Result};
use crate::request::Json;
use crate::response::json_response;
use crate::router::refuse_caller;
use crate::session::{MAX_SESSION, OwnPage, SessionEnd, Sessions};

/// What a session is begun with: exactly one of its members.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SignIn {
    /// A token of the API, or of the configured issuer.
    token: Option<String>,
    /// The code of a link, which is good once.
    code: Option<String>,
}

/// Who is signed in.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionView {
    /// Whose objects the caller has.
    subject: Subject,
    /// What it may do.
    scopes: Vec<&'static str>,
    /// When the session ends; null without one, where no token is needed or another one was sent.
    expires_at: Option<Time>,
    /// What each request of the session has in `Session-Proof`, beside the cookie. Given at its begin alone.
    proof: Option<String>,
}

impl SessionView {
    fn of(caller: &Caller, expires_at: Option<Time>, proof: Option<String>) -> Self {
        let scopes = caller.scopes.iter().map(|scope| scope.as_str()).collect();
        Self { subject: caller.subject.clone(), scopes, expires_at, proof }
    }
}

pub(super) async fn create(State(app): State<App>, request: Request) -> Result<Response> {
    let peer = request.extensions().get().copied().unwrap_or(Peer::UNKNOWN);
    let page = OwnPage::of(request.uri(), request.headers()).ok_or_else(|| {
        let detail = "a session is for a page of this server, over HTTPS or at a loopback address";
        let hint =
            "--tls-cert, or a reverse proxy, encrypts connections; programs send Authorization";
        Refusal::new(ProblemKind::Forbidden, detail).hint(Some(hint))
    })?;
    let body = Json::<SignIn>::from_request(request, &app).await?;
    let token = match body.value {
        SignIn { token: Some(token), code: None } => token.trim().to_owned(),
        SignIn { token: None, code: Some(code) } => {
            let unknown = || app.auth.refuse(peer, "an unknown or used code".to_owned());
            let token = app.sessions.redeem_code(&code);
            token.ok_or_else(|| refuse_caller(&app, None, "", unknown()))?
        }
        _ => {
            let detail = "exactly one of `token` and `code` is given";
            return Err(Refusal::new(ProblemKind::Invalid, detail).at("#", detail));
        }
    };
    if token.len() > MAX_SESSION_TOKEN_BYTES {
        let detail = format!("a session has a token of up to {MAX_SESSION_TOKEN_BYTES} bytes");
        return Err(Refusal::new(ProblemKind::Invalid, &*detail).at("#/token", &*detail));
    }
    let mut headers = HeaderMap::new();
    let authenticated = match bearer(&token) {
        Some(authorization) => {
            headers.insert(AUTHORIZATION, authorization);
            app.auth.authenticate(&headers, peer).await
        }
        None => Err(app.auth.refuse(peer, "not the characters of a token".to_owned())),
    };
    let caller = authenticated.map_err(|error| refuse_caller(&app, None, "", error))?;
    // Where no token is needed, no session is.
    let (session, proof) = match app.config.has_auth {
        true => {
            let latest = Time::now().after(MAX_SESSION);
            let expires_at = app.auth.expiry(&token).await.map_or(latest, |it| it.min(latest));
            let (session, proof) = Session::new(token, expires_at);
            (Some(session), Some(proof))
        }
        false => (None, None),
    };
    let expires_at = session.as_ref().map(|session| session.expires_at);
    let mut response = json_response(StatusCode::OK, &SessionView::of(&caller, expires_at, proof));
    if let Some(session) = &session {
        app.sessions.begin(page, session, &mut response);
    }
    response.extensions_mut().insert(caller.subject);
    Ok(response)
}

pub(super) async fn get(caller: Caller, ends: Option<Extension<SessionEnd>>) -> Response {
    let expires_at = ends.map(|Extension(SessionEnd(at))| at);
    json_response(StatusCode::OK, &SessionView::of(&caller, expires_at, None))
}

pub(super) async fn delete(uri: Uri, headers: HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    Sessions::end(&uri, &headers, &mut response);
    response
}
