//! How much of a call's output a model is given, and where the rest is.

use super::*;
use crate::rootfs::Provided;

/// A server with these programs.
fn with_programs(place: &Fixture, provided: &Provided) -> Client {
    let root = provided.args();
    let flags: Vec<&str> = root.iter().map(String::as_str).collect();
    Client::new(place, &[&flags[..], &["--io-dir", "out", "--pool", "0"]].concat())
}

impl Client {
    /// The content of a resource, as text.
    fn resource(&mut self, uri: &str) -> String {
        let read = self.ask("resources/read", json!({ "uri": uri }));
        let content = &read["result"]["contents"][0];
        assert_eq!(content["uri"], uri, "{read:.300}");
        content["text"].as_str().unwrap_or_else(|| panic!("{read:.300}")).to_owned()
    }
}

/// The resource that a text names.
#[track_caller]
fn named(text: &str) -> String {
    let (_, rest) = text.split_once("the resource ").unwrap_or_else(|| panic!("{text:.300}"));
    rest.split(' ').next().unwrap().to_owned()
}

#[test]
fn output_of_a_command_is_cut_and_all_of_it_is_a_resource() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut client = with_programs(&place, &provided);
    let lines: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(lines.len() > 2_600_000);
    let shell = "seq 1 400000; echo last >&2; exit 3";
    let result = client.call("exec", json!({ "shell": shell }));
    // A command that fails is no failure of the tool.
    assert_eq!(result["isError"], false, "{result:.300}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.len() < 52 << 10, "{}", text.len());
    assert!(text.starts_with("1\n2\n") && text.contains("\n399999\n400000\n"), "{text:.300}");
    assert!(text.ends_with("\nstderr:\nlast\nexit code 3"), "{text:.300}");
    let uri = named(text);
    assert!(client.resource(&uri) == lines, "all of it");
    let data = &result["structuredContent"];
    assert_eq!((&data["truncated"], &data["stderr"]), (&json!(true), &json!("last\n")));
    assert!(data["stdout"].as_str().unwrap().len() < 52 << 10);
    let link = &result["content"][1];
    let expected = (&json!("resource_link"), &json!(uri), &json!(lines.len()));
    assert_eq!((&link["type"], &link["uri"], &link["size"]), expected, "{link}");
    // It is no file.
    assert_eq!(client.data("list_directory", json!({}))["entries"], json!([]));

    let few = client.call("exec", json!({ "shell": "seq 1 3" }));
    assert_eq!(few["content"], json!([{ "type": "text", "text": "1\n2\n3\n" }]), "{few:#}");
    assert_eq!(few["structuredContent"]["truncated"], false);
    let no_text = client.call("exec", json!({ "shell": "printf 'a\\0b'" }));
    let text = no_text["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("[3 bytes that are not text: "), "{text}");
    assert_eq!(client.resource(&named(text)), "a\0b");
    assert_eq!(no_text["structuredContent"]["stdout"], "a\0b");
    client.end();
}

#[test]
fn log_and_result_of_a_script_are_cut_and_all_of_them_are_resources() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--no-io", "--pool", "0", "--max-output", "2KiB"]);
    let script = "for n = 1, 1000 do print('line', n) end return ('x'):rep(3000)";
    let result = client.call("execute_script", json!({ "script": script }));
    let data = &result["structuredContent"];
    assert_eq!((&data["result"], &data["truncated"]), (&json!(null), &json!(true)));
    let logs = data["logs"].as_array().unwrap();
    assert_eq!((&logs[0], &logs[logs.len() - 1]), (&json!("line\t1"), &json!("line\t1000")));
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.len() < 3000 && text.ends_with("\nline\t1000\n"), "{text}");
    let (returned, log) = text.split_once("log:\n").unwrap();
    assert_eq!(client.resource(&named(returned)), format!("\"{}\"", "x".repeat(3000)));
    let lines: String = (1..=1000).map(|number| format!("line\t{number}\n")).collect();
    assert_eq!(client.resource(&named(log)), lines);
    let names: Vec<_> = (1..3).map(|at| result["content"][at]["name"].clone()).collect();
    assert_eq!(names, ["result.json", "log"]);
    // There are no other resources without files, but the skill.
    let listed = client.ask("resources/list", json!({}));
    let resources = listed["result"]["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 1, "{listed:#}");
    assert_eq!(resources[0]["uri"], "skill://sandboxctl/SKILL.md");
    let absent = client.ask("resources/read", json!({ "uri": "sandbox://output/99/log" }));
    assert_eq!(absent["error"]["code"], -32002, "{absent:#}");
    client.end();

    let args = ["mcp", "--max-output", "1MiB"];
    place.sandboxctl(args).assert_code(2).assert_stderr_has("more than 128KiB is too much");
}

#[test]
fn command_returns_its_output_links_its_files_and_shows_its_images() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut client = with_programs(&place, &provided);
    let image = json!({ "path": "in.png", "content": IMAGE, "encoding": "base64" });
    client.data("write_file", image);
    let shell = "echo begun; until [ -e go ]; do sleep 0.05; done; rm go; cp in.png plot.png; \
                 echo x > 'a b.txt'; echo done";
    let params = json!({
        "name": "exec",
        "arguments": { "shell": shell, "timeout_ms": 300_000 },
        "_meta": { "progressToken": "t" },
    });
    let id = client.begin("tools/call", params);
    let reported = loop {
        let message = client.messages.recv_timeout(TIMEOUT).unwrap();
        if message["method"] == "notifications/progress" {
            break message["params"].clone();
        }
    };
    let found = (&reported["progressToken"], &reported["progress"], &reported["message"]);
    assert_eq!(found, (&json!("t"), &json!(6.0), &json!("begun\n")));
    client.data("write_file", json!({ "path": "go", "content": "" }));
    let answer = client.answer(id);
    let content = answer["result"]["content"].as_array().unwrap();
    assert_eq!(content[0]["text"], "begun\ndone\n", "{answer:#}");
    let of = |kind: &str| content.iter().filter(|it| it["type"] == kind).collect::<Vec<_>>();
    let links: Vec<_> = of("resource_link").iter().map(|it| it["uri"].clone()).collect();
    assert!(links.contains(&json!("sandbox:///io/a%20b.txt")), "{answer:#}");
    let images = of("image");
    assert_eq!(images.len(), 1, "{answer:#}");
    let expected = (&json!(IMAGE), &json!("image/png"));
    assert_eq!((&images[0]["data"], &images[0]["mimeType"]), expected);
    client.end();
}
