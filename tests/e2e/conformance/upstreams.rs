//! Tools of other servers at a service: each subject has its own credentials there.

use std::collections::BTreeSet;

use serde_json::Value;

use super::service::{Service, serve};
use crate::fixture::{Fixture, finish};
use crate::servers::{self, Python};

#[test]
fn each_subject_of_a_service_calls_with_its_own_credentials_and_others_have_no_tools() {
    let place = Fixture::new();
    let notes = place.path("notes");
    let server = Python::start(&servers::mcp(&notes, &["--http"]));
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let config = format!(
        "[server.upstream.web]\nurl = \"{}\"\n\
         [server.upstream.web.subjects.alice.headers]\nauthorization = \"Bearer env:ALICE\"\n\
         [server.upstream.web.subjects.bob.headers]\nauthorization = \"Bearer env:BOB\"\n",
        server.at
    );
    std::fs::write(user.join("config.toml"), config).unwrap();
    let token = |subject: &str| {
        let create = ["token", "create", "--data-dir", "service", "--subject", subject];
        let scopes = ["--scope", "executions:write", "--scope", "executions:read"];
        let created = place.sandboxctl(create.iter().chain(&scopes));
        created.assert_code(0).stdout.trim_end().to_owned()
    };
    let tokens = ["alice", "bob", "carol"].map(token);
    let variables = [("ALICE", "of-alice"), ("BOB", "of-bob")];
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &variables));
    let run = |token: &str| -> Value {
        let script = "if tools == nil then return 'none' end \
                      return tools.web.list_items { repo = 'x' }.items[1].title";
        let mut command = place.command(["run", "--json", "-c", script]);
        command.env("SANDBOXCTL_SERVER", &service.url).env("SANDBOXCTL_TOKEN", token);
        let ended = finish(command);
        let document: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
        assert!(!ended.stdout.contains("of-alice"), "{ended:#?}");
        document["result"].clone()
    };
    let sent = || -> BTreeSet<String> {
        let text = std::fs::read_to_string(&notes).unwrap();
        let values = text.lines().filter_map(|line| line.strip_prefix("authorization "));
        values.map(str::to_owned).collect()
    };
    assert_eq!(run(&tokens[2]), "none");
    assert_eq!(run(&tokens[0]), "of x");
    assert_eq!(sent(), ["Bearer of-alice".to_owned()].into());
    assert_eq!(run(&tokens[1]), "of x");
    assert_eq!(sent(), ["Bearer of-alice".to_owned(), "Bearer of-bob".to_owned()].into());
    service.stop();
}
