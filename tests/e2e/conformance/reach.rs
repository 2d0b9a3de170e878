//! What programs and scripts of a service's subjects reach: each has its own credentials, and no other's.

use std::collections::BTreeSet;

use sandbox_api::hosts::HOST_LOOPBACK;
use serde_json::Value;

use super::service::{Service, serve};
use crate::fixture::{Fixture, finish};
use crate::rootfs::{Provided, Rootfs};
use crate::servers::{self, Authority, Http, Python};
use crate::tls::OPENSSL;

/// A place whose user has this configuration.
fn configured(config: &str) -> Fixture {
    let place = Fixture::new();
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), config).unwrap();
    place
}

/// The tokens of three subjects.
fn tokens(place: &Fixture) -> [String; 3] {
    ["alice", "bob", "carol"].map(|subject| {
        let create = ["token", "create", "--data-dir", "service", "--subject", subject];
        let scopes = ["--scope", "executions:write", "--scope", "executions:read"];
        let created = place.sandboxctl(create.iter().chain(&scopes));
        created.assert_code(0).stdout.trim_end().to_owned()
    })
}

#[test]
fn each_subject_of_a_service_calls_tools_with_its_own_credentials_and_others_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let server = Python::start(&servers::mcp(&notes, &["--http"]));
    let place = configured(&format!(
        "[server.upstream.web]\nurl = \"{}\"\n\
         [server.upstream.web.subjects.alice.headers]\nauthorization = \"Bearer env:ALICE\"\n\
         [server.upstream.web.subjects.bob.headers]\nauthorization = \"Bearer env:BOB\"\n",
        server.at
    ));
    let tokens = tokens(&place);
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

#[test]
fn each_subject_of_a_service_has_its_own_injected_secret_and_others_have_none() {
    let authority = Authority::new();
    let server = Http::over_tls(&authority.certify(HOST_LOOPBACK), &[]);
    let target = format!("{HOST_LOOPBACK}:{}", server.port());
    let inject = |variable: &str| format!("{target}: Authorization: Bearer env:{variable}");
    let place = configured(&format!(
        "[server.inject]\nalice = [\"{}\"]\nbob = [\"{}\"]\n",
        inject("ALICE"),
        inject("BOB")
    ));
    let tokens = tokens(&place);
    let provided = Rootfs::busybox().with_host(&[OPENSSL]).provide();
    let root = provided.args();
    let (of_service, image) = match &provided {
        Provided::Image(name) => (vec!["--allowed-image", name], vec!["--image", name]),
        _ => (root.iter().map(String::as_str).collect(), Vec::new()),
    };
    let certificate = authority.certificate();
    let variables = [
        ("ALICE", "zebra-of-alice"),
        ("BOB", "zebra-of-bob"),
        ("SSL_CERT_FILE", certificate.to_str().unwrap()),
    ];
    let flags = [&["--listen", "127.0.0.1:0"][..], &of_service].concat();
    let service = Service::start(&place, serve(&place, &flags, &variables));
    let ask = format!(
        "printf 'GET /echo HTTP/1.1\\r\\nHost: {target}\\r\\nConnection: close\\r\\n\\r\\n' | OPENSSL_CONF=/dev/null \
         timeout 30 openssl s_client -quiet -proxy 127.0.0.1:3128 -connect {target} \
         -servername {HOST_LOOPBACK} 2>/dev/null | tr a-z n-za-m"
    );
    let run = |token: &str| {
        let words = [&["exec", "--no-io"][..], &image, &["--", "sh", "-c", &ask]].concat();
        let mut command = place.command(words);
        command.env("SANDBOXCTL_SERVER", &service.url).env("SANDBOXCTL_TOKEN", token);
        let ended = finish(command);
        // Each letter is another one, so that nothing on the way out replaces anything.
        assert!(!ended.assert_code(0).stdout.contains("mroen"), "{ended:#?}");
        server.requests()
    };
    assert_eq!(run(&tokens[2]), Vec::<String>::new());
    let sent = run(&tokens[0]);
    assert!(sent.len() == 1 && sent[0].contains("Bearer zebra-of-alice\r\n"), "{sent:#?}");
    let sent = run(&tokens[1]);
    assert!(sent.len() == 2 && sent[1].contains("Bearer zebra-of-bob\r\n"), "{sent:#?}");
    service.stop();
}
