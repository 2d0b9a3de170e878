//! The skill: what it teaches works, a project gets it, and clients are served it.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Client, hello, stateless};
use crate::fixture::{Fixture, workspace};

fn skill() -> String {
    std::fs::read_to_string(workspace().join("skills/sandboxctl/SKILL.md")).unwrap()
}

#[test]
fn script_of_the_skill_does_what_it_teaches() {
    let skill = skill();
    let (_, script) = skill.split_once("```lua\n").unwrap();
    let (script, _) = script.split_once("```").unwrap();
    let place = Fixture::new();
    place.write("out/logs/a.log", "\"GET /\" 200 1\n\"GET /x\" 404 1\n\"GET /\" 200 1\n");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let data = client.data("execute_script", json!({ "script": script }));
    assert_eq!(data["result"], json!({ "200": 2, "404": 1 }), "{data:#}");
    assert_eq!(data["files_touched"][0]["name"], "summary.json", "{data:#}");
    client.end();
}

/// What is in the directory of the skill.
fn skill_of(place: &Fixture) -> Vec<(String, String)> {
    let folder = place.path(".agents/skills/sandboxctl");
    let entries = std::fs::read_dir(&folder).map(|all| all.map(|it| it.unwrap()).collect());
    let entries: Vec<std::fs::DirEntry> = entries.unwrap_or_default();
    let read = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read_to_string(entry.path()).unwrap())
    };
    let mut files: Vec<_> = entries.iter().map(read).collect();
    files.sort();
    files
}

#[test]
fn skill_is_installed_in_the_project_and_no_other_file_is_lost() {
    let skill = skill();
    let place = Fixture::new();
    let install = |args: &[&str]| place.sandboxctl([&["mcp", "install"][..], args].concat());
    // It is printed, and nothing is written.
    let printed = install(&["--skill", "--print"]);
    printed.assert_code(0).assert_stderr_has(".agents/skills/sandboxctl/SKILL.md");
    assert_eq!((printed.stdout, skill_of(&place)), (skill.clone(), vec![]));
    let file = place.path(".agents/skills/sandboxctl/SKILL.md");
    for _ in 0..2 {
        let installed = install(&["--skill"]);
        assert_eq!(installed.assert_code(0).stdout, format!("{}\n", file.display()));
        assert_eq!(skill_of(&place), [("SKILL.md".to_owned(), skill.clone())]);
    }
    // What somebody changed is kept beside it, and that is said.
    std::fs::write(&file, "mine").unwrap();
    install(&["--skill"]).assert_code(0).assert_stderr_has("the file as it was is ");
    let expected = [("SKILL.md", &*skill), ("SKILL.md.bak", "mine")];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(skill_of(&place), expected);
    // Beside the entry of a client; the flags of an entry need one.
    install(&["--skill", "--client", "cursor", "--", "--no-io"]).assert_code(0);
    assert!(place.home().join(".cursor/mcp.json").exists());
    // Claude Code looks elsewhere.
    install(&["--skill", "--client", "claude-code", "--", "--no-io"]).assert_code(0);
    assert_eq!(place.read(".claude/skills/sandboxctl/SKILL.md"), skill);
    for args in [&[][..], &["--skill", "--io-dir", "x"], &["--skill", "--", "--no-io"]] {
        install(args).assert_code(2).assert_stderr_has("--client <NAME>");
    }
    // Flags that the server refuses leave neither.
    std::fs::write(&file, "mine").unwrap();
    let refused = install(&["--skill", "--client", "zed", "--", "--bogus"]);
    refused.assert_code(2).assert_stderr_has("unexpected argument '--bogus'");
    assert_eq!(place.read(".agents/skills/sandboxctl/SKILL.md"), "mine");
}

#[test]
fn skill_is_served_to_clients_of_both_kinds_with_the_digest_of_its_file() {
    let skill = skill();
    let place = Fixture::new();
    let uri = "skill://sandboxctl/SKILL.md";
    for meta in [None, Some(stateless())] {
        let mut client = Client::silent(&place, &["--no-io", "--pool", "0"]);
        let with_meta = |mut params: Value| {
            if let Some(meta) = &meta {
                params["_meta"] = meta.clone();
            }
            params
        };
        let reported = match meta {
            None => client.ask("initialize", hello("2025-11-25")),
            Some(_) => client.ask("server/discover", with_meta(json!({}))),
        };
        let extensions = &reported["result"]["capabilities"]["extensions"];
        assert_eq!(extensions["io.modelcontextprotocol/skills"], json!({}), "{reported:#}");
        if meta.is_none() {
            client.notify("notifications/initialized", json!({}));
        }
        let listed = client.ask("skills/list", with_meta(json!({})));
        let entry = listed["result"]["skills"][0].clone();
        assert_eq!(entry["uri"], uri, "{listed:#}");
        assert_eq!(entry["frontmatter"]["license"], "Apache-2.0", "{listed:#}");
        let file = &entry["resources"][0];
        assert_eq!((&file["uri"], &file["size"]), (&json!(uri), &json!(skill.len())));
        let digest: String =
            Sha256::digest(skill.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(file["digest"], format!("sha256:{digest}"), "{listed:#}");
        let got = client.ask("skills/get", with_meta(json!({ "uri": uri })));
        assert_eq!(got["result"]["skill"], entry, "{got:#}");
        let read = client.ask("resources/read", with_meta(json!({ "uri": uri })));
        let content = &read["result"]["contents"][0];
        assert_eq!(
            (&content["text"], &content["mimeType"]),
            (&json!(skill), &json!("text/markdown"))
        );
        let resources = client.ask("resources/list", with_meta(json!({})));
        assert_eq!(resources["result"]["resources"][0]["uri"], uri, "{resources:#}");
        if meta.is_some() {
            for answer in [&listed, &got, &read] {
                let result = &answer["result"];
                assert!(
                    result["ttlMs"].is_u64() && result["resultType"] == "complete",
                    "{answer:#}"
                );
                assert_eq!(result["cacheScope"], "public", "{answer:#}");
            }
        }
        for (method, params) in [
            ("skills/get", json!({ "uri": "skill://other/SKILL.md" })),
            ("skills/get", json!({ "uri": "skill://sandboxctl" })),
            ("skills/get", json!({})),
            ("skills/list", json!({ "cursor": "x" })),
            ("skills/list", json!({ "cursor": 5 })),
        ] {
            let refused = client.ask(method, with_meta(params));
            assert_eq!(refused["error"]["code"], -32602, "{refused:#}");
        }
        let uri = json!({ "uri": "skill://sandboxctl" });
        let directory = client.ask("resources/directory/read", with_meta(uri));
        assert_eq!(directory["error"]["code"], -32601, "it is not offered: {directory:#}");
        client.end();
    }
}
