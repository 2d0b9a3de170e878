//! Sandboxes, their processes and their containers.

use std::time::SystemTime;

use sandbox_api::service::{SandboxView, Time};
use sandbox_api::{ProcessState, ProcessView, SandboxSummary};

use crate::escape::escaped_line;
use crate::table::{age, cell, size, table, time_left, word};

/// The ids of sandboxes, a line each.
pub fn sandbox_ids(sandboxes: &[SandboxView]) -> String {
    sandboxes.iter().map(|it| format!("{}\n", it.id)).collect()
}

/// Sandboxes as a table of this width.
pub fn sandboxes(sandboxes: &[SandboxView], now: Time, width: Option<usize>) -> String {
    let row = |it: &SandboxView| {
        let status = match it.paused_memory {
            Some(memory) => format!("paused, {}", size(memory)),
            None => word(it.status),
        };
        [
            it.id.clone(),
            cell(it.name.as_deref()),
            status,
            it.processes.map_or("-".to_owned(), |count| count.to_string()),
            cell(it.spec.image.as_deref()),
            age(now.since(it.created_at)),
            format!("in {}", time_left(it.expires_at.since(now))),
        ]
    };
    let headings = ["ID", "NAME", "STATUS", "PROCESSES", "IMAGE", "AGE", "EXPIRES"];
    table(headings, sandboxes.iter().map(row), width)
}

/// Processes as a table of this width.
pub fn processes(processes: &[ProcessView], now: Time, width: Option<usize>) -> String {
    let row = |it: &ProcessView| {
        let state = match (it.state, it.exit_code, it.signal) {
            (ProcessState::Running, ..) => "running".to_owned(),
            (ProcessState::Left, ..) => "left".to_owned(),
            (ProcessState::Ended, Some(code), _) => format!("exit {code}"),
            (ProcessState::Ended, None, Some(signal)) => format!("signal {signal}"),
            (ProcessState::Ended, None, None) => "ended".to_owned(),
        };
        [
            it.id.to_string(),
            it.pid.to_string(),
            state,
            age(now.since(it.started_at)),
            if it.pty { "yes" } else { "-" }.to_owned(),
            escaped_line(&it.command).into_owned(),
        ]
    };
    let headings = ["NUMBER", "PID", "STATE", "AGE", "TERMINAL", "COMMAND"];
    table(headings, processes.iter().map(row), width)
}

/// The containers of sandboxes as a table of this width.
pub fn containers(sandboxes: &[SandboxSummary], now: SystemTime, width: Option<usize>) -> String {
    // The labels of another user's container may contain anything.
    let label = |label: &Option<String>| cell(label.as_deref());
    let row = |sandbox: &SandboxSummary| {
        [
            sandbox.id.clone(),
            word(sandbox.state),
            age(now.duration_since(sandbox.created).unwrap_or_default()),
            sandbox.engine.to_string(),
            label(&sandbox.name),
            label(&sandbox.title),
            label(&sandbox.image),
            label(&sandbox.io_dir),
        ]
    };
    let headings = ["ID", "STATE", "AGE", "ENGINE", "NAME", "RUNS", "IMAGE", "IO DIR"];
    table(headings, sandboxes.iter().map(row), width)
}

/// When a sandbox ends.
pub fn expiry(sandbox: &SandboxView, now: Time) -> String {
    let left = time_left(sandbox.expires_at.since(now));
    let is_last = sandbox.expires_at >= sandbox.max_expires_at;
    let most = if is_last { ", the longest that it may exist" } else { "" };
    format!("it is removed at {}, in {left}{most}", sandbox.expires_at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_api::service::SandboxStatus;
    use sandbox_api::{EngineKind, SandboxState};
    use serde_json::{Map, json};

    use super::*;

    /// A sandbox of this id and name.
    fn view(id: &str, name: Option<&str>, now: Time) -> SandboxView {
        SandboxView {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            generation: 1,
            status: SandboxStatus::Ready,
            spec: serde_json::from_value(json!({ "image": "debian:13" })).unwrap(),
            created_at: now.before(Duration::from_secs(65)),
            last_used_at: now,
            expires_at: now.after(Duration::from_secs(3605)),
            max_expires_at: now.after(Duration::from_secs(7200)),
            idle_at: None,
            idle: serde_json::from_value(json!("stop")).unwrap(),
            processes: Some(2),
            paused_memory: None,
            metadata: Map::new(),
            node_away: false,
        }
    }

    #[test]
    fn tables_say_what_there_is_and_until_when() {
        let now = Time::now();
        let all = [view("7f3c9a1be2d40586", Some("bu\nild"), now)];
        insta::assert_snapshot!(sandboxes(&all, now, None), @r"
        ID                NAME     STATUS  PROCESSES  IMAGE      AGE  EXPIRES
        7f3c9a1be2d40586  bu\nild  ready   2          debian:13  1m   in 1h
        ");
        assert_eq!(sandbox_ids(&all), "7f3c9a1be2d40586\n");
        assert!(expiry(&all[0], now).ends_with(", in 1h"), "{}", expiry(&all[0], now));
        let [it] = all;
        let paused = SandboxView {
            status: SandboxStatus::Paused,
            paused_memory: Some(3 << 20),
            ..it.clone()
        };
        assert!(sandboxes(&[paused], now, None).contains("  paused, 3.0 MiB  "));
        let last = expiry(&SandboxView { expires_at: it.max_expires_at, ..it }, now);
        assert!(last.ends_with("h, the longest that it may exist"), "{last}");
    }

    #[test]
    fn table_says_what_each_container_is_for() {
        let now = SystemTime::now();
        let sandbox = SandboxSummary {
            id: "da2442acca66b731".into(),
            generation: None,
            engine: EngineKind::Docker,
            container: "c".into(),
            instance: "i".into(),
            state: SandboxState::Running,
            created: now - Duration::from_secs(65),
            expires: now,
            name: None,
            title: Some("make\n".into()),
            image: Some("debian:13".into()),
            io_dir: Some("/srv/out".into()),
        };
        insta::assert_snapshot!(containers(&[sandbox], now, None), @r"
        ID                STATE    AGE  ENGINE  NAME  RUNS    IMAGE      IO DIR
        da2442acca66b731  running  1m   docker  -     make\n  debian:13  /srv/out
        ");
    }
}
