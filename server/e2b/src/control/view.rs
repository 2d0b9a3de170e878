//! Sandboxes as E2B's API describes them.

use axum::http::HeaderMap;
use axum::http::header::HOST;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::marker::MARKER;
use crate::sandbox::Sandbox;
use crate::tokens::{envd_token, traffic_token};

/// Which envd this server is like: its SDKs decide by it what they offer.
const ENVD_VERSION: &str = "0.6.8";
/// A member that the SDKs require and do not use.
const CLIENT_ID: &str = "sandboxctl";

/// What a creation gives, and a connection.
pub(super) fn created(app: &App, sandbox: &Sandbox, domain: Option<String>) -> Value {
    let id = sandbox.id();
    let traffic = app.is_private(&sandbox.marker).then(|| traffic_token(app.service(), id));
    json!({
        "templateID": sandbox.marker.template,
        "alias": sandbox.marker.template,
        "sandboxID": id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": envd_token(app.service(), id),
        "trafficAccessToken": traffic,
        "domain": domain,
    })
}

/// What a list has of a sandbox.
pub(super) fn listed(app: &App, sandbox: &Sandbox) -> Value {
    let Sandbox { view, marker, .. } = sandbox;
    let metadata: Map<String, Value> = view
        .metadata
        .iter()
        .filter(|(key, value)| *key != MARKER && value.is_string())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // One that is not allowed any more has none.
    let limits = app.service().limits_of(&view.spec).unwrap_or_default();
    let mib = |bytes: u64| bytes >> 20;
    json!({
        "templateID": marker.template,
        "alias": marker.template,
        "sandboxID": view.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "startedAt": view.created_at,
        "endAt": marker.end(view),
        "cpuCount": whole_cpus(f64::from(limits.cpus.thousandths()) / 1000.0),
        "memoryMB": mib(limits.memory.as_u64()),
        "diskSizeMB": mib(limits.max_write.as_u64()),
        "state": if marker.is_paused { "paused" } else { "running" },
        "metadata": metadata,
    })
}

/// What is known of a sandbox.
pub(super) fn detail(app: &App, sandbox: &Sandbox) -> Value {
    let marker = &sandbox.marker;
    let mut detail = listed(app, sandbox);
    detail["envdAccessToken"] = envd_token(app.service(), sandbox.id()).into();
    detail["domain"] = Value::Null;
    detail["allowInternetAccess"] = marker.internet.into();
    detail["lifecycle"] =
        json!({ "autoResume": marker.auto_resume, "onTimeout": marker.on_timeout });
    if let Some(network) = &marker.network {
        detail["network"] = network.clone();
    }
    detail
}

/// Below which the hosts of sandboxes are, with the port by which this caller reaches the API, if it came by its
/// name. All others know it by themselves.
pub(super) fn api_domain(app: &App, headers: &HeaderMap) -> Option<String> {
    let domain = app.settings().domain.as_deref()?;
    let host = headers.get(HOST)?.to_str().ok()?.strip_prefix("api.")?;
    let (name, _) = host.rsplit_once(':').unwrap_or((host, ""));
    name.eq_ignore_ascii_case(domain).then(|| host.to_owned())
}

/// Processors as E2B counts them: whole ones, and one at least.
pub(super) fn whole_cpus(cpus: f64) -> u32 {
    cpus.ceil().clamp(1.0, 65_536.0) as u32
}
