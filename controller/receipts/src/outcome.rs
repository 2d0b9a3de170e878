//! What of a request and its outcome stands in a receipt.

use std::path::PathBuf;

use sandbox_api::receipt::Dependency;
use sandbox_api::{Network, Outcome, Pull, RootFs, SandboxSpec, Status, ToolCall};
use serde_json::{Map, Value, json};

use crate::sha256;

/// A sandbox as a receipt has it: without what only its host knows. An image is named by its id.
pub fn request(spec: &SandboxSpec, image: Option<&str>) -> SandboxSpec {
    let root = match (&spec.root, image) {
        (RootFs::Image { .. }, Some(id)) => {
            RootFs::Image { reference: id.to_owned(), pull: Pull::Never }
        }
        (RootFs::Directory(_), _) => RootFs::Directory(PathBuf::new()),
        (RootFs::Archive(_), _) => RootFs::Archive(PathBuf::new()),
        (root, _) => root.clone(),
    };
    SandboxSpec {
        root,
        io_dir: None,
        inputs: Vec::new(),
        id: None,
        container_name: None,
        title: None,
        inject: Vec::new(),
        ..spec.clone()
    }
}

/// How a run ended: the digest of its status, its result and the kind of its error.
pub fn outcome(outcome: &Outcome) -> Dependency {
    let status = outcome.status().as_str();
    let result = match outcome {
        Outcome::Ok { result } => result.get(),
        _ => NO_RESULT,
    };
    let kind = outcome.failure().map(|failure| failure.kind.as_str());
    let exit_code = outcome.exit_code();
    let digest = outcome_digest(status, kind, exit_code, result);
    let mut annotations = Map::new();
    annotations.insert("status".to_owned(), status.into());
    annotations.insert("exit_code".to_owned(), exit_code.into());
    if let Some(kind) = kind {
        annotations.insert("error".to_owned(), kind.into());
    }
    Dependency { annotations, ..Dependency::new(Dependency::OUTCOME, digest) }
}

/// The result of a run without one.
const NO_RESULT: &str = "null";

fn outcome_digest(status: &str, kind: Option<&str>, exit_code: u8, result: &str) -> String {
    sha256(format!("{status}\n{}\n{exit_code}\n{result}\n", kind.unwrap_or_default()))
}

/// Whether an outcome that was read says what its digest is of, as far as that can be seen without
/// the result.
pub fn is_consistent(outcome: &Dependency) -> bool {
    let Dependency { annotations, .. } = outcome;
    let text = |name| annotations.get(name).and_then(Value::as_str);
    let exit_code = annotations.get("exit_code").and_then(Value::as_u64);
    let Some(exit_code) = exit_code.and_then(|code| u8::try_from(code).ok()) else { return false };
    match (text("status"), text("error")) {
        (Some(status), None) if status == Status::Ok.as_str() => exit_code == 0,
        (Some(status), kind) if status != Status::Ok.as_str() => {
            outcome.digest.sha256 == outcome_digest(status, kind, exit_code, NO_RESULT)
        }
        _ => false,
    }
}

/// The calls of tools of the host: the digest of each with those of its arguments and its result.
pub fn tool_calls(calls: &[ToolCall], is_truncated: bool) -> Dependency {
    let line = |call: &ToolCall| {
        let ToolCall { tool, outcome, arguments_sha256, result_sha256, .. } = call;
        format!("{}\n", json!([tool, outcome.as_str(), arguments_sha256, result_sha256]))
    };
    let digest = sha256(calls.iter().map(line).collect::<String>());
    let mut annotations = Map::new();
    annotations.insert("calls".to_owned(), calls.len().into());
    annotations.insert("truncated".to_owned(), is_truncated.into());
    Dependency { annotations, ..Dependency::new(Dependency::TOOL_CALLS, digest) }
}

/// The hosts that were reached and refused.
pub fn traffic(network: &Network) -> Dependency {
    let contacted = network.contacted.iter().map(|it| (&it.host, it.port));
    let refused = network.refused.iter().map(|it| (&it.host, it.port));
    let list = |hosts: &mut dyn Iterator<Item = (&String, u16)>| -> Value {
        hosts.map(|(host, port)| format!("{host}:{port}")).collect()
    };
    let hosts = json!({
        "contacted": list(&mut contacted.into_iter()),
        "refused": list(&mut refused.into_iter()),
        "truncated": network.truncated,
    });
    let digest = sha256(hosts.to_string());
    let Value::Object(annotations) = hosts else { unreachable!("it is an object") };
    Dependency { annotations, ..Dependency::new(Dependency::NETWORK, digest) }
}
