//! Nodes that are started with the settings of `packaging/`, from three of its files, are one cluster. Whether the
//! files are valid is checked by `scripts/published`.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sandbox_store::fixture::Postgres;
use serde_json::Value;

use crate::fixture::{Fixture, eventually, workspace};
use crate::markdown;

/// A node under way. A failed test leaves none behind.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Node {
    /// Runs a command in the place of `packaging/`'s container or unit, which logs to `NAME.log`.
    fn start(place: &Fixture, name: &str, mut command: Command) -> Self {
        let log = File::create(place.path(&format!("{name}.log"))).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Ends it, and waits for that.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

fn packaging(file: &str) -> String {
    markdown::read(&workspace().join("packaging").join(file))
}

/// What is between two lines of a file.
fn between<'a>(text: &'a str, first: &str, last: &str) -> &'a str {
    let (_, rest) = text.split_once(first).unwrap_or_else(|| panic!("no {first:?}"));
    rest.split_once(last).unwrap_or_else(|| panic!("no {last:?} after {first:?}")).0
}

/// The lines `NAME: value` of a mapping of YAML, or `NAME=value` of a unit, for variables of sandboxctl.
fn variables(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("Environment="));
    let named = lines.filter(|line| line.starts_with("SANDBOXCTL_"));
    let pairs = named.map(|line| line.split_once(": ").or_else(|| line.split_once('=')).unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The variables for this machine: paths below the place, the test's engine and database, free ports.
fn here(place: &Fixture, node: &str, variables: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_engines = |name: &str| name.starts_with("SANDBOXCTL_ENGINE_");
    let of_database = ["SANDBOXCTL_SERVER_DATABASE", "SANDBOXCTL_DATABASE_PASSWORD"];
    let kept = variables.into_iter().filter(|(name, _)| !is_engines(name));
    kept.filter(|(name, _)| !of_database.contains(&name.as_str()))
        .map(|(name, value)| {
            let value = match name.as_str() {
                "SANDBOXCTL_SERVER_DATA_DIR" => place.path(node).display().to_string(),
                _ => value
                    .replace("0.0.0.0:8470", "127.0.0.1:0")
                    .replace("0.0.0.0:8471", "127.0.0.1:0"),
            };
            (name, value)
        })
        .collect()
}

/// A configuration file of `packaging/` with the test's database.
fn config(place: &Fixture, name: &str, toml: &str, database: &str) -> std::path::PathBuf {
    let mut text = String::new();
    let mut named = false;
    for line in toml.lines().map(|line| line.trim().trim_start_matches('#').trim()) {
        match line.split_once(" = ") {
            Some(("database", _)) => {
                named = true;
                text.push_str(&format!("database = {database:?}\n"));
            }
            // The test's database is not encrypted.
            Some(("database_ca", _)) => {}
            Some(_) => text.push_str(&format!("{line}\n")),
            None if line.starts_with('[') => text.push_str(&format!("{line}\n")),
            None => {}
        }
    }
    assert!(named, "{name} names no database: {toml}");
    place.write(name, text)
}

#[test]
fn nodes_of_compose_kubernetes_and_systemd_are_one_cluster() {
    let place = Fixture::new();
    let server = Postgres::shared();
    let database = server.database();
    let command = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("SANDBOXCTL_SERVER_DATABASE", &database);
        command
    };
    let run = |args: &[&str]| crate::fixture::finish(command(args));

    let compose = packaging("compose-cluster.yaml");
    assert!(compose.contains("command: [database, init]"));
    // At each start of the project.
    for _ in 0..2 {
        run(&["database", "init"]).assert_code(0);
    }
    let scopes = ["--scope", "executions:write", "--scope", "executions:read"];
    let token = run(&[&["token", "create", "--subject", "ci"], &scopes[..]].concat());
    place.write("token", &token.assert_code(0).stdout);

    let words = between(&compose, "command: [serve, ", "]");
    let words: Vec<_> = ["serve"].into_iter().chain(words.split(", ")).collect();
    let mut of_compose = command(&words);
    let common = variables(between(&compose, "environment: &environment", "command:"));
    let own = variables(between(&compose, "\n  node-1:\n", "\n  node-2:\n"));
    assert!(common.len() >= 5 && own.len() == 1, "{common:?} {own:?}");
    of_compose.envs(here(&place, "node-1", [common, own].concat()));

    let kubernetes = packaging("kubernetes-cluster.yaml");
    let args = between(&kubernetes, "            - serve\n", "          env:");
    let args = args.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let args: Vec<String> = args
        .filter(|arg| !arg.starts_with("--engine="))
        .map(|arg| match arg.split_once('=') {
            Some(("--data-dir", _)) => format!("--data-dir={}", place.path("node-2").display()),
            Some((flag @ ("--listen" | "--peer-listen"), _)) => format!("{flag}=127.0.0.1:0"),
            // It has the port that the pod's container has.
            Some(("--advertise", address)) => {
                assert_eq!(address, "$(POD_IP):8471");
                "--advertise=127.0.0.1:8471".to_owned()
            }
            _ => arg.to_owned(),
        })
        .collect();
    assert!(args.len() >= 5, "{args:?}");
    let toml = between(&kubernetes, "  config.toml: |\n", "---\n");
    let toml = config(&place, "kubernetes.toml", toml, &database);
    let mut of_kubernetes = place.command(["serve", "--config", toml.to_str().unwrap()]);
    of_kubernetes.args(args);

    let unit = packaging("systemd/sandboxctl.service.d/cluster.conf");
    let toml = between(&unit, "[server]\n", "\n#\n");
    let toml = config(&place, "systemd.toml", &format!("[server]\n{toml}"), &database);
    let password = place.write("database-password", "secret\n");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&password, private).unwrap();
    assert!(unit.contains("LoadCredential=database-password:/etc/sandboxctl/database-password"));
    let credentials = |(name, value): (String, String)| {
        (name, value.replace("%d", password.parent().unwrap().to_str().unwrap()))
    };
    let main = packaging("systemd/sandboxctl.service");
    let start = between(&main, "ExecStart=/usr/local/bin/sandboxctl ", "\n");
    let node = place.path("node-3").display().to_string();
    let words: Vec<_> =
        start.split(' ').map(|word| word.replace("${STATE_DIRECTORY}", &node)).collect();
    let mut of_systemd = place.command(&words);
    of_systemd.args(["--config", toml.to_str().unwrap()]);
    of_systemd.args(["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
    of_systemd.envs(variables(&unit).into_iter().map(credentials));

    let nodes = [("compose", of_compose), ("kubernetes", of_kubernetes), ("systemd", of_systemd)];
    let nodes = nodes.map(|(name, command)| (name, Node::start(&place, name, command)));
    let status = || -> Value {
        serde_json::from_str(&run(&["cluster", "status", "--json"]).stdout).unwrap_or_default()
    };
    eventually("three nodes are ready", || {
        let status = status();
        let states = status["nodes"].as_array()?.iter().map(|node| &node["state"]);
        (states.filter(|state| **state == "ready").count() == 3).then_some(())
    });
    for (name, _) in &nodes {
        let url = eventually("it listens", || {
            let log = place.read(&format!("{name}.log"));
            Some(log.lines().find_map(|line| line.strip_prefix("listening on "))?.to_owned())
        });
        let token = place.path("token");
        let args = ["run", "--server", &url, "--token-file", path(&token), "-c", "return 6 * 7"];
        assert_eq!(run(&args).assert_code(0).stdout, "42\n", "{name}");
    }
    let listed = run(&["server", "executions", "--subject", "ci", "--json"]);
    let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    for (_, node) in nodes {
        node.stop();
    }
    assert!(status()["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "away"));
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
