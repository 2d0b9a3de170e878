//! Sandboxes and processes as tables.

use sandbox_api::service::{SandboxView, Time};
use sandbox_api::{ProcessState, ProcessView};

use crate::render::{self, escaped_line};

/// The ids, a line each.
pub fn ids(sandboxes: &[SandboxView]) -> String {
    sandboxes.iter().map(|it| format!("{}\n", it.id)).collect()
}

/// Sandboxes as a table of this width.
pub fn sandboxes(sandboxes: &[SandboxView], width: Option<usize>) -> String {
    let now = Time::now();
    let row = |it: &SandboxView| {
        let status = match it.paused_memory {
            Some(memory) => format!("paused, {}", render::size(memory)),
            None => render::word(it.status),
        };
        [
            it.id.clone(),
            render::cell(it.name.as_deref()),
            status,
            it.processes.map_or("-".to_owned(), |count| count.to_string()),
            render::cell(it.spec.image.as_deref()),
            render::age(now.since(it.created_at)),
            format!("in {}", render::time_left(it.expires_at.since(now))),
        ]
    };
    let headings = ["ID", "NAME", "STATUS", "PROCESSES", "IMAGE", "AGE", "EXPIRES"];
    render::table(headings, sandboxes.iter().map(row), width)
}

/// Processes as a table of this width.
pub fn processes(processes: &[ProcessView], width: Option<usize>) -> String {
    let now = Time::now();
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
            render::age(now.since(it.started_at)),
            if it.pty { "yes" } else { "-" }.to_owned(),
            escaped_line(&it.command).into_owned(),
        ]
    };
    let headings = ["NUMBER", "PID", "STATE", "AGE", "TERMINAL", "COMMAND"];
    render::table(headings, processes.iter().map(row), width)
}

/// When a sandbox ends.
pub fn expiry(sandbox: &SandboxView) -> String {
    let left = render::time_left(sandbox.expires_at.since(Time::now()));
    let is_last = sandbox.expires_at >= sandbox.max_expires_at;
    let most = if is_last { ", the longest that it may exist" } else { "" };
    format!("it is removed at {}, in {left}{most}", sandbox.expires_at)
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use sandbox_api::service::SandboxStatus;
    use serde_json::{Map, json};

    use super::*;

    /// A sandbox of this id and name.
    pub fn view(id: &str, name: Option<&str>) -> SandboxView {
        let now = Time::now();
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
        let all = [view("7f3c9a1be2d40586", Some("bu\nild"))];
        insta::assert_snapshot!(sandboxes(&all, None), @r"
        ID                NAME     STATUS  PROCESSES  IMAGE      AGE  EXPIRES
        7f3c9a1be2d40586  bu\nild  ready   2          debian:13  1m   in 1h
        ");
        assert_eq!(ids(&all), "7f3c9a1be2d40586\n");
        assert!(expiry(&all[0]).ends_with(", in 1h"), "{}", expiry(&all[0]));
        let [it] = all;
        let paused = SandboxView {
            status: SandboxStatus::Paused,
            paused_memory: Some(3 << 20),
            ..it.clone()
        };
        assert!(sandboxes(&[paused], None).contains("  paused, 3.0 MiB  "));
        let last = expiry(&SandboxView { expires_at: it.max_expires_at, ..it });
        assert!(last.ends_with("h, the longest that it may exist"), "{last}");
    }
}
