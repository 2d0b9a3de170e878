//! `/metrics` and `/envs`: what a sandbox uses, and its environment.

use axum::Json;
use serde_json::{Map, Value, json};

use super::Call;
use crate::error::Error;

pub(super) async fn metrics(call: Call) -> Result<Json<Value>, Error> {
    let stats = call.service().sandbox_stats(&call.subject, &call.sandbox).await?.value;
    let percent = (stats.cpu_used_ratio * 10_000.0).round() / 100.0;
    Ok(Json(json!({
        "ts": stats.at.unix_millis().div_euclid(1000),
        "cpu_count": stats.cpu_count.ceil() as u64,
        "cpu_used_pct": percent,
        "mem_total": stats.memory_limit,
        "mem_used": stats.memory_bytes,
        "mem_cache": stats.cache_bytes,
        "disk_used": stats.disk_bytes,
        "disk_total": stats.disk_limit,
    })))
}

pub(super) async fn envs(call: Call) -> Result<Json<Map<String, Value>>, Error> {
    let sandbox = call.view().await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned().into();
    let env = sandbox.spec.env.into_iter();
    Ok(Json(env.map(|(name, value)| (name, text(value.0))).collect()))
}
