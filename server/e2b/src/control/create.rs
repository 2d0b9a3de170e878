//! New sandboxes. Members that are not known are ignored; what is known and would make the sandbox another one
//! than is asked for is refused.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use sandbox_api::millis;
use sandbox_api::service::{Content, IdleAction, SandboxRequest, Time};
use sandbox_dirfd::hex;
use sandbox_http::Caller;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::network::NetworkConfig;
use super::request::{Asked, DEFAULT_TIMEOUT, Result, refuse_without_memory, time};
use super::view::{api_domain, created};
use crate::app::App;
use crate::error::Error;
use crate::marker::{MARKER, Marker, OnTimeout};
use crate::sandbox::Sandbox;
use crate::settings::{BASE, untagged};

/// The template that SDKs ask for with `mcp`, if no other one is named.
const MCP_GATEWAY: &str = "mcp-gateway";
/// The longest `Idempotency-Key`.
const MAX_KEY: usize = 255;

/// What is asked for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    #[serde(rename = "envVars")]
    env_vars: Option<BTreeMap<String, String>>,
    // Its SDKs send it in this case, unlike all others.
    #[serde(alias = "allowInternetAccess")]
    allow_internet_access: Option<bool>,
    network: Option<NetworkConfig>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory")]
    auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume")]
    auto_resume: Option<AutoResume>,
    mcp: Option<Value>,
    iam: Option<Value>,
    #[serde(rename = "volumeMounts")]
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Asked(asked): Asked<NewSandbox>,
) -> Result<(StatusCode, Json<Value>)> {
    let (host, name) = (api_domain(&app, &headers), name_of_key(&headers)?);
    let request = SandboxRequest { name, ..plan(&app, asked)? };
    let new = app.service().create_sandbox(&caller.subject, request).await?;
    let sandbox = Sandbox::of(caller.subject, new.sandbox).ok_or_else(|| {
        Error::new(StatusCode::CONFLICT, "the sandbox of this Idempotency-Key is not one of E2B's")
    })?;
    Ok((StatusCode::CREATED, Json(created(&app, &sandbox, host))))
}

/// A creation that is repeated under its key gives the same sandbox: it has a name that is made of the key.
pub(crate) fn name_of_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match (1..=MAX_KEY).contains(&key.len()) {
        true => Ok(Some(format!("idempotency-key:{}", hex(&Sha256::digest(key.as_bytes()))))),
        false => Err(Error::invalid(format!("Idempotency-Key has 1 to {MAX_KEY} characters"))),
    }
}

/// The sandbox of the service that is what E2B's API is asked for.
fn plan(app: &App, asked: NewSandbox) -> Result<SandboxRequest> {
    let (settings, bounds) = (app.settings(), app.service().kept_bounds());
    // The SDK starts the gateway itself, and says that this has failed where the template has none.
    let has_gateway = asked.mcp.is_none() || settings.templates.contains_key(MCP_GATEWAY);
    let template_name = asked.template_id.map(|name| untagged(&name).to_owned());
    let template_name = template_name.filter(|name| name != MCP_GATEWAY || has_gateway);
    let template_name = template_name.unwrap_or_else(|| BASE.to_owned());
    if template_name.contains(':') {
        return Err(Error::not_offered("tags of templates other than `latest`"));
    }
    let template = settings.templates.get(&template_name).ok_or_else(|| {
        let known: Vec<_> = settings.templates.keys().map(String::as_str).collect();
        let message =
            format!("template '{template_name}' was not found; there are: {}", known.join(", "));
        Error::new(StatusCode::NOT_FOUND, message)
    })?;
    if asked.volume_mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return Err(Error::not_offered("volumes"));
    }
    let has_tokens =
        |iam: &Value| iam.get("tokens").and_then(Value::as_object).is_some_and(|it| !it.is_empty());
    if asked.iam.as_ref().is_some_and(has_tokens) {
        return Err(Error::not_offered("workload identities (iam)"));
    }
    let on_timeout = match asked.auto_pause {
        Some(true) => OnTimeout::Pause,
        _ => OnTimeout::Kill,
    };
    if on_timeout == OnTimeout::Pause {
        refuse_without_memory(asked.auto_pause_memory)?;
    }
    let timeout = match asked.timeout {
        None => DEFAULT_TIMEOUT.min(bounds.max_ttl),
        Some(0) => return Err(Error::invalid("timeout is 0")),
        Some(seconds) => time(app, seconds)?,
    };
    let network = asked.network.unwrap_or_default();
    network.refuse_every_host()?;
    let mut spec = settings.spec(&template_name, template);
    spec.network = network.plan(asked.allow_internet_access, &spec.network)?;
    if spec.network.allow.is_empty() && app.service().has_usual_hosts() {
        return Err(Error::not_offered("sandboxes without the hosts of its network.allow"));
    }
    let env = asked.env_vars.unwrap_or_default().into_iter();
    spec.env = env.map(|(name, value)| (name, Content(value.into_bytes()))).collect();
    let mut metadata: Map<String, Value> = Map::new();
    for (key, value) in asked.metadata.unwrap_or_default() {
        if key == MARKER {
            return Err(Error::invalid(format!("metadata '{MARKER}' is the server's own")));
        }
        metadata.insert(key, Value::String(value));
    }
    let marker = Marker {
        template: template_name,
        timeout: timeout.as_secs(),
        on_timeout,
        ends_at: (on_timeout == OnTimeout::Pause).then(|| Time::now().after(timeout)),
        auto_resume: asked.auto_resume.unwrap_or_default().enabled,
        is_paused: false,
        is_private: network.allow_public_traffic == Some(false),
        mask_host: network.mask_request_host.clone(),
        internet: asked.allow_internet_access,
        network: network.given(),
    };
    marker.put(&mut metadata);
    let ttl = match on_timeout {
        OnTimeout::Kill => timeout,
        OnTimeout::Pause => bounds.max_ttl,
    };
    Ok(SandboxRequest {
        spec,
        ttl_ms: Some(millis(ttl)),
        // Its time alone ends it, and one that is paused keeps its memory until then.
        idle: IdleAction::Freeze,
        idle_ms: Some(millis(bounds.max_ttl)),
        metadata,
        ..SandboxRequest::default()
    })
}
