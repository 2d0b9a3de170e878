//! Tools of other MCP servers in scripts: published ones from npm and PyPI, and one of the tests that does what
//! those do not. The servers run on the host; no script reaches a tool that it was not given.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::conformance::mcp::Client;
use crate::fixture::{Ended, Fixture, eventually, finish, in_its_time};
use crate::rootfs::digest;
use crate::servers::{self, Python, published};

/// Published servers, as `--upstream` takes them.
fn everything() -> String {
    let folder = published().display().to_string();
    let program = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    format!("everything={folder}/node {folder}/{program} stdio")
}

fn files(of: &str) -> String {
    let folder = published().display().to_string();
    let program = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
    format!("files={folder}/node {folder}/{program} {of}")
}

fn time() -> String {
    format!("time={}/python/bin/mcp-server-time --local-timezone Etc/UTC", published().display())
}

/// A place with the tests' own server, whose name is `fake`.
struct Fake {
    place: Fixture,
    notes: PathBuf,
}

impl Fake {
    fn new() -> Self {
        let place = Fixture::new();
        let notes = place.path("notes");
        std::fs::write(&notes, "").unwrap();
        Self { place, notes }
    }

    /// The value of `--upstream`.
    fn upstream(&self, more: &[&str]) -> String {
        format!("fake={}", servers::mcp(&self.notes, more).join(" "))
    }

    fn start(&self, flags: &[&str], script: &str) -> Ended {
        let upstream = self.upstream(&[]);
        let args = ["run", "--json", "--upstream", &upstream];
        self.place.sandboxctl(args.iter().chain(flags).chain(&["-c", script]))
    }

    /// The document of a script.
    fn run(&self, flags: &[&str], script: &str) -> Value {
        self.place.document(&self.start(flags, script))
    }

    /// The result of a script that ends well.
    #[track_caller]
    fn result(&self, flags: &[&str], script: &str) -> Value {
        let document = self.run(flags, script);
        assert_eq!(document["status"], "ok", "{document:#}");
        document["result"].clone()
    }

    /// What it has noted that begins with this word.
    fn noted(&self, word: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.notes).unwrap();
        let prefix = format!("{word} ");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    /// The tools that it was called for.
    fn called(&self) -> Vec<String> {
        let calls = self.noted("call");
        calls.iter().map(|it| it.split_once(" {").unwrap().0.to_owned()).collect()
    }

    /// Waits until none of its processes is left.
    fn assert_ended(&self) {
        for pid in self.noted("start") {
            eventually("the server to end", || is_gone(&pid).then_some(()));
        }
    }
}

fn is_gone(pid: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !line.windows(6).any(|it| it == b"mcp.py")
}

#[test]
fn script_calls_tools_of_published_servers() {
    let place = Fixture::new();
    let shared = place.path("shared");
    std::fs::create_dir(&shared).unwrap();
    let shared = shared.to_str().unwrap();
    let script = format!(
        "local seen = {{}}
        seen.zone = tools.time.get_current_time {{ timezone = 'Asia/Tokyo' }}.timezone
        local ok, why = pcall(tools.time.convert_time, {{ source_timezone = 'Nowhere/X', time = '12:00', target_timezone = 'UTC' }})
        seen.ok, seen.why = ok, tostring(why)
        local converted = tools.time.convert_time {{ source_timezone = 'UTC', time = '12:00', target_timezone = 'Asia/Tokyo' }}
        seen.difference = converted.time_difference
        seen.echo = tools.everything.echo {{ message = 'hi' }}
        seen.sum = tools.everything['get-sum'] {{ a = 1, b = 2 }}
        seen.weather = tools.everything['get-structured-content'] {{ location = 'New York' }}.conditions
        local text, images = tools.everything['get-tiny-image'] {{}}
        seen.text, seen.image = text, fs.read(images[1].path):sub(2, 4)
        seen.environment = tools.everything['get-env'] {{}}
        local made, refused = pcall(tools.files.write_file, {{ path = '{shared}/a', content = 'x' }})
        seen.made, seen.refused = made, tostring(refused)
        return seen"
    );
    let mut command = place.command(["run", "--json"]);
    for upstream in [everything(), time(), files(shared)] {
        command.args(["--upstream", &upstream]);
    }
    command.args(["-c", &script]).env("TOKEN", "of-the-user");
    let document = place.document(&finish(command));
    assert_eq!(document["status"], "ok", "{document:#}");
    let seen = &document["result"];
    assert_eq!(seen["zone"], "Asia/Tokyo");
    assert_eq!(seen["ok"], false);
    assert!(seen["why"].as_str().unwrap().contains("Invalid timezone"), "{seen:#}");
    assert_eq!(seen["difference"], "+9.0h");
    assert_eq!(seen["echo"], "Echo: hi");
    assert!(seen["sum"].as_str().unwrap().contains("is 3"), "{seen:#}");
    assert!(seen["weather"].is_string(), "{seen:#}");
    assert_eq!(seen["image"], "PNG");
    // A tool that shows its environment shows nothing of the user's.
    let environment = seen["environment"].as_str().unwrap();
    assert!(environment.contains("PATH") && !environment.contains("of-the-user"), "{environment}");
    assert_eq!(seen["made"], false);
    assert!(seen["refused"].as_str().unwrap().contains("files.write_file"), "{seen:#}");
    assert!(!place.path("shared/a").exists());
    let calls = document["tool_calls"].as_array().unwrap();
    let calls: Vec<_> = calls.iter().map(|it| (&it["tool"], &it["outcome"])).collect();
    assert_eq!(calls[0], (&json!("time.get_current_time"), &json!("ok")));
    assert_eq!(calls[1], (&json!("time.convert_time"), &json!("failed")));
    assert_eq!(calls.last().unwrap(), &(&json!("files.write_file"), &json!("refused")));
}

#[test]
fn tool_that_overwrites_needs_a_rule_and_a_flag_of_its_own() {
    let place = Fixture::new();
    let shared = place.path("shared");
    std::fs::create_dir(&shared).unwrap();
    let shared = shared.to_str().unwrap();
    let upstream = files(shared);
    let run = |flags: &[&str], name: &str| {
        let script = format!(
            "local ok, why = pcall(tools.files.write_file, {{ path = '{shared}/{name}', content = 'x' }})
            return {{ ok = ok, why = tostring(why) }}"
        );
        let args = ["run", "--json", "--upstream", &upstream];
        let script = ["-c", &*script];
        let args = args.iter().chain(flags).chain(&script);
        let document = place.document(&place.sandboxctl(args));
        assert_eq!(document["status"], "ok", "{document:#}");
        (document["result"]["ok"] == true, document["result"]["why"].as_str().unwrap().to_owned())
    };
    let bound = format!("files.write_file /path={shared}/good*");
    let (is_made, why) = run(&["--tool", "files.*"], "good1");
    assert!(!is_made && why.contains("--allow-destructive"), "{why}");
    let (is_made, why) = run(&["--allow-destructive"], "good2");
    assert!(!is_made && why.contains("--tool"), "{why}");
    let (is_made, why) = run(&["--allow-destructive", "--tool", &bound], "bad");
    assert!(!is_made && why.contains("needs /path="), "{why}");
    let (is_made, why) = run(&["--allow-destructive", "--tool", &bound], "good3");
    assert!(is_made, "{why}");
    let mut made: Vec<_> =
        std::fs::read_dir(shared).unwrap().map(|it| it.unwrap().file_name()).collect();
    made.sort();
    assert_eq!(made, ["good3"]);
}

#[test]
fn agent_has_tools_of_published_servers_in_its_scripts_and_no_more_tools() {
    let place = Fixture::new();
    let (everything, time) = (everything(), time());
    let mut plain = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let without = plain.ask("tools/list", json!({}))["result"]["tools"].clone();
    plain.end();
    let flags = ["--io-dir", "out", "--pool", "0", "--upstream", &everything, "--upstream", &time];
    let mut client = Client::new(&place, &flags);
    let with = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let names = |tools: &Value| -> Vec<Value> {
        tools.as_array().unwrap().iter().map(|it| it["name"].clone()).collect()
    };
    assert_eq!(names(&with), names(&without));
    // A search waits 10 s for servers, a description longer.
    let script = "local _, about = tools.describe('everything.get-sum'), tools.describe('time.get_current_time')
        return { first = tools.search('time zone convert')[1].name, about = about,
            sum = tools.everything['get-sum'] { a = 20, b = 22 },
            zone = tools.time.get_current_time { timezone = 'Europe/Paris' }.timezone }";
    let data = client.data("execute_script", json!({ "script": script }));
    let result = &data["result"];
    assert_eq!(result["first"], "time.convert_time", "{data:#}");
    assert!(result["about"].as_str().unwrap().contains("timezone: string"), "{data:#}");
    assert!(result["sum"].as_str().unwrap().contains("42"), "{data:#}");
    assert_eq!(result["zone"], "Europe/Paris");
    let failure = client.failure(
        "execute_script",
        json!({ "script": "tools.time.get_current_time { timezone = 'Nowhere/X' }" }),
    );
    assert!(failure.contains("Invalid timezone"), "{failure}");
    let unknown = json!({ "script": "return tools.time.get_curent_time {}" });
    let unknown = client.failure("execute_script", unknown);
    assert!(unknown.contains("time.get_current_time"), "the nearest name helps: {unknown}");
    client.end();
}

#[test]
fn exposed_tools_are_tools_of_the_agent_by_the_rules_of_its_scripts() {
    let fake = Fake::new();
    let upstream = fake.upstream(&[]);
    let mut flags =
        vec!["--no-io", "--pool", "0", "--audit", "audit.jsonl", "--upstream", &upstream];
    for rule in [
        "fake.list_*", "fake.echo", "fake.fail", "fake.picture", "fake.create_item /repo=site",
        "fake.delete_item",
    ] {
        flags.extend(["--tool", rule]);
    }
    flags.extend(["--expose", "fake.*_item*", "--expose", "fake.fail", "--expose", "fake.picture"]);
    let listed = |client: &mut Client| {
        // A list waits 10 s for servers, a description longer.
        let script = json!({ "script": "return tools.describe('fake.list_items')" });
        client.data("execute_script", script);
        let listed = client.ask("tools/list", json!({}))["result"]["tools"].clone();
        let listed = listed.as_array().unwrap().clone();
        move |name: &str| listed.iter().find(|it| it["name"] == name).cloned()
    };
    let call = |client: &mut Client, tool: &str, arguments: Value| {
        client.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    };

    let mut client = Client::new(&fake.place, &flags);
    let find = listed(&mut client);
    let items = find("fake.list_items").expect("it is exposed");
    assert_eq!(items["description"], "The tool list_items.");
    assert_eq!(items["annotations"], json!({ "readOnlyHint": true }));
    assert_eq!(items["inputSchema"]["properties"]["repo"], json!({ "type": "string" }));
    assert_eq!(items["outputSchema"]["properties"]["items"]["type"], "array");
    assert!(find("fake.create_item").is_some());
    assert_eq!(find("fake.echo"), None, "it is given, and not exposed");
    assert_eq!(find("fake.count"), None, "it is neither");
    assert_eq!(find("fake.delete_item"), None, "there is no user to ask");

    let items = call(&mut client, "fake.list_items", json!({ "repo": "x" }));
    let items = &items["result"];
    assert_eq!(
        items["structuredContent"],
        json!({ "items": [{ "id": 7, "title": "of x" }] }),
        "{items:#}"
    );
    let picture = call(&mut client, "fake.picture", json!({}));
    let content = &picture["result"]["content"];
    assert_eq!(content[0], json!({ "type": "text", "text": "a pixel" }), "{picture:#}");
    assert_eq!(content[1]["type"], "image", "{picture:#}");
    assert_eq!(content[1]["mimeType"], "image/png", "{picture:#}");
    let why = client.failure("fake.fail", json!({ "why": "of the tests" }));
    assert!(why.contains("boom: of the tests"), "{why}");
    let why = client.failure("fake.create_item", json!({ "repo": "other" }));
    assert!(why.contains("needs /repo=site"), "{why}");
    let made = call(&mut client, "fake.create_item", json!({ "repo": "site" }));
    assert_eq!(made["result"]["content"][0]["text"], "created", "{made:#}");
    let why = client.failure("fake.delete_item", json!({ "id": 3 }));
    assert!(why.contains("--allow-destructive"), "{why}");
    let unknown = call(&mut client, "fake.echo", json!({ "text": "x" }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown:#}");
    client.end();
    assert_eq!(fake.called(), ["list_items", "picture", "fail", "create_item"]);
    let audit = fake.place.read("audit.jsonl");
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let made: Vec<_> = lines
        .filter(|line| line["operation"] == "tool")
        .map(|line| ["by", "program", "outcome"].map(|it| line[it].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        made,
        [
            ["caller", "fake.list_items", "ok"],
            ["caller", "fake.picture", "ok"],
            ["caller", "fake.fail", "failed"],
            ["caller", "fake.create_item", "refused"],
            ["caller", "fake.create_item", "ok"],
            ["caller", "fake.delete_item", "refused"],
        ]
    );

    // A user who can be asked is, in either way.
    let mut client = asked_client(&fake.place, &flags, "2025-11-25");
    assert!(listed(&mut client)("fake.delete_item").is_some());
    client.say_when_asked(json!({ "action": "accept", "content": {} }));
    let deleted = call(&mut client, "fake.delete_item", json!({ "id": 3 }));
    assert_eq!(deleted["result"]["content"][0]["text"], "deleted", "{deleted:#}");
    let asked = client.asked().expect("it was asked");
    let message = asked["params"]["message"].as_str().unwrap();
    assert!(message.contains("fake.delete_item") && message.contains('3'), "{message}");
    client.end();
    let mut client = Client::silent(&fake.place, &flags);
    let mut call = stateless_call("", json!({ "elicitation": { "form": {} } }));
    (call["name"], call["arguments"]) = (json!("fake.delete_item"), json!({ "id": 4 }));
    let asked = client.ask("tools/call", call.clone());
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked:#}");
    call["requestState"] = asked["result"]["requestState"].clone();
    call["inputResponses"] = json!({ "permission": { "action": "accept" } });
    let deleted = client.ask("tools/call", call);
    assert_eq!(deleted["result"]["content"][0]["text"], "deleted", "{deleted:#}");
    client.end();

    let refused = |flags: &[&str], why: &str| {
        let ended = fake.place.sandboxctl([&["mcp"][..], flags].concat());
        assert_eq!(ended.code, 2, "{ended:#?}");
        assert!(ended.stderr.contains("--expose") && ended.stderr.contains(why), "{ended:#?}");
    };
    refused(&["--expose", "fake.*"], "no server");
    refused(&["--upstream", &upstream, "--expose", "fake.a /b=1"], "conditions");
    let user = fake.place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[mcp]\nexpose = [\"fake.a /b=1\"]\n").unwrap();
    let ended = fake.place.sandboxctl(["mcp", "--upstream", &upstream]);
    assert_eq!(ended.code, 2, "{ended:#?}");
    assert!(
        ended.stderr.contains("mcp.expose") && !ended.stderr.contains("--expose"),
        "{ended:#?}"
    );
}

#[test]
fn hundreds_of_tools_cost_the_description_nothing() {
    let fake = Fake::new();
    let description = |tools: &str| {
        let upstream = fake.upstream(&["--tools", tools]);
        let flags = ["--no-io", "--pool", "0", "--upstream", &upstream];
        let mut client = Client::new(&fake.place, &flags);
        // The tools are known once a script has asked for them.
        let script = "local found = tools.search('widget 57')
            return { count = #found, first = if found[1] then found[1].name else nil, about = tools.describe('fake.echo') }";
        let data = client.data("execute_script", json!({ "script": script }));
        let listed = client.ask("tools/list", json!({}));
        client.end();
        let listed = listed["result"]["tools"].as_array().unwrap();
        let execute = listed.iter().find(|it| it["name"] == "execute_script").unwrap();
        (execute["description"].as_str().unwrap().to_owned(), data["result"].clone())
    };
    let (few, _) = description("0");
    let (many, found) = description("400");
    assert!(few.contains("tools.search") && few.contains("tools.describe"), "{few}");
    assert!(many.len().abs_diff(few.len()) < 32, "{} and {} bytes", few.len(), many.len());
    assert!(!many.contains("widget"), "{many}");
    assert_eq!(found["first"], "fake.widget_57", "{found:#}");
    assert!(found["count"].as_u64().unwrap() <= 20, "{found:#}");
    assert!(found["about"].as_str().unwrap().contains("text"), "{found:#}");
    fake.assert_ended();
}

#[test]
fn result_is_data_and_a_failure_raises_with_its_text() {
    let fake = Fake::new();
    let script = "local seen = {}
        seen.items = tools.fake.list_items { repo = 'site' }.items
        seen.count = tools.fake.count {}
        seen.text = tools.fake.echo { text = '{\"a\": 1}' }
        seen.odd = tools.fake['odd-name'] {}
        seen.keyword = tools.fake['end'] {}
        seen.search = tools.fake.search {}
        seen.none = tools.fake.echo()
        local value, files = tools.fake.picture {}
        seen.picture, seen.path, seen.magic = value, files[1].path, fs.read(files[1].path):sub(2, 4)
        seen.link = tools.fake.link {}
        local ok, why = pcall(tools.fake.fail, { why = 'of the tests' })
        seen.failed, seen.why = not ok, tostring(why)
        ok, why = pcall(tools.fake.big, { bytes = 6 * 2^20 })
        seen.large, seen.too_large = not ok, tostring(why)
        seen.after = tools.fake.big { bytes = 100 }
        return seen";
    let document = fake.run(&[], script);
    assert_eq!(document["status"], "ok", "{document:#}");
    let seen = &document["result"];
    assert_eq!(seen["items"], json!([{ "id": 7, "title": "of site" }]));
    assert_eq!((&seen["count"], &seen["text"]), (&json!(42), &json!("{\"a\": 1}")));
    assert_eq!((&seen["odd"], &seen["keyword"]), (&json!("odd"), &json!("a keyword")));
    assert_eq!((&seen["search"], &seen["none"]), (&json!("its own search"), &json!("")));
    assert_eq!((&seen["picture"], &seen["magic"]), (&json!("a pixel"), &json!("PNG")));
    let path = seen["path"].as_str().unwrap();
    assert!(path.starts_with("/io/tool-files/") && path.ends_with(".png"), "{path}");
    // A link is text: nothing of the host is read for it.
    let link = seen["link"].as_str().unwrap();
    assert!(link.contains("file:///etc/passwd") && link.contains("of the server"), "{link}");
    assert!(!link.contains("root:"), "{link}");
    assert_eq!((&seen["failed"], &seen["large"]), (&json!(true), &json!(true)));
    assert!(seen["why"].as_str().unwrap().contains("boom: of the tests"), "{seen:#}");
    assert!(seen["too_large"].as_str().unwrap().contains("large"), "{seen:#}");
    assert_eq!(seen["after"].as_str().unwrap().len(), 100);
    let touched = document["files_touched"].as_array().unwrap();
    assert!(
        touched.iter().any(|it| it["name"].as_str().unwrap().starts_with("tool-files/")),
        "{document:#}"
    );
    assert!(fake.place.path("sandbox-files").join(path.trim_start_matches("/io/")).exists());
    // Without files there is no place for one.
    let refused = fake.run(&["--no-io"], "return (tools.fake.picture {})");
    assert_eq!(
        (&refused["status"], &refused["result"]),
        (&json!("ok"), &json!("a pixel")),
        "{refused:#}"
    );
    fake.assert_ended();
}

#[test]
fn killed_server_is_started_again_and_its_call_raises() {
    let fake = Fake::new();
    let script = "local first = tools.fake.pid {}
        local ok, why = pcall(tools.fake.die, {})
        local again = {}
        for attempt = 1, 50 do
            local up, pid = pcall(tools.fake.pid, {})
            if up then again = { pid = pid, attempt = attempt } break end
        end
        return { first = first, raised = not ok, why = tostring(why), again = again.pid }";
    let result = fake.result(&["--timeout", "60s"], script);
    assert_eq!(result["raised"], true, "{result:#}");
    assert!(result["again"].is_string() && result["again"] != result["first"], "{result:#}");
    assert_eq!(fake.noted("start").len(), 2);

    // Killed from outside between two calls of an agent.
    let upstream = fake.upstream(&[]);
    let mut client = Client::new(&fake.place, &["--no-io", "--pool", "0", "--upstream", &upstream]);
    let mut pid = || {
        client.data("execute_script", json!({ "script": "return tools.fake.pid {}" }))["result"]
            .clone()
    };
    let first = pid();
    let number = first.as_str().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(number).unwrap(), Signal::KILL).unwrap();
    eventually("the server to end", || is_gone(first.as_str().unwrap()).then_some(()));
    assert_ne!(pid(), first);
    client.end();
    fake.assert_ended();
}

#[test]
fn waiting_counts_and_servers_end_with_the_process_that_started_them() {
    let fake = Fake::new();
    // A command that waited for the call's end would hang.
    let timed_out = |time: Duration| {
        let limit = format!("{}s", time.as_secs());
        fake.run(&["--timeout", &limit], "return tools.fake.slow { ms = 600000 }")
    };
    let document = in_its_time(timed_out, |_| !fake.called().is_empty());
    assert_eq!(document["status"], "timeout", "{document:#}");
    fake.assert_ended();

    // A client that is gone, and one that is killed.
    let upstream = fake.upstream(&[]);
    let flags = ["--no-io", "--pool", "0", "--upstream", &upstream];
    let mut client = Client::new(&fake.place, &flags);
    client.data("execute_script", json!({ "script": "return tools.fake.pid {}" }));
    let before = fake.called().len();
    client.begin_call(
        "execute_script",
        json!({ "script": "return tools.fake.slow { ms = 600000 }" }),
    );
    eventually("the call", || (fake.called().len() > before).then_some(()));
    fake.place.expect_a_dead_instance();
    drop(client);
    fake.assert_ended();
    eventually("the sandbox to go", || {
        fake.place.sandboxctl(["gc"]).assert_code(0);
        fake.place.containers().is_empty().then_some(())
    });
}

/// Ways in which a script tries to call a tool of this name that it was not given. No more of them than a run
/// may make calls in two seconds.
const TRICKS: &str = r#"
local names = {
    "NAME", "NAME ", " NAME", "NAME\0", "NAME\n", "NAME\u{200b}", "NAME\u{feff}", "\u{202e}NAME", "./NAME", "../fake.NAME",
    "fake.NAME", "fake/NAME", "x.NAME", "list_items.NAME", "list_items\0NAME", "list_items\nNAME", "list_items NAME",
    "list_items,NAME", "list_items|NAME", "list_items%00NAME", "NAME%20", ("NAME"):upper(), "Create_Item", "create\u{2010}item",
    "cre\u{430}te_item", "delete_\u{456}tem", "NAME?", "NAME#", "*", "list_*", "?", "", "\255NAME", "NAME\255",
    string.rep("NAME", 5000), "__index", "__call",
}
local tried, made = 0, {}
local function try(call, arguments)
    tried += 1
    local ok, value = pcall(call, arguments)
    if ok then table.insert(made, tostring(value)) end
end
local given = { repo = "evil", title = "evil", id = 1 }
for _, name in names do
    name = name:gsub("NAME", WANTED)
    try(function(it) return tools.fake[name](it) end, given)
end
try(function(it) return tools["fake." .. WANTED][""](it) end, given)
try(function(it) return tools["fake." .. WANTED](it) end, given)
try(function(it) return tools[WANTED].fake(it) end, given)
try(function(it) return tools[""]["fake." .. WANTED](it) end, given)
try(function(it) return tools.FAKE[WANTED](it) end, given)
try(function(it) return tools["fake\0"][WANTED](it) end, given)
try(function(it) return tools.fake[WANTED](it, it) end, given)
try(function(it) return tools.fake:create_item(it) end, given)
-- Arguments that look like a request.
local odd = {
    { name = WANTED, arguments = given }, { method = "tools/call", params = { name = WANTED } }, { ["_meta"] = { name = WANTED } },
    { repo = "\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\",\"params\":{\"name\":\"" .. WANTED .. "\"}}\n" },
}
for _, arguments in odd do pcall(tools.fake.list_items, arguments) end
-- What a script can do with the globals themselves.
try(function() tools.fake = nil; return tools.fake[WANTED](given) end)
try(function() rawset(tools, "mine", tools.fake); return tools.mine[WANTED](given) end)
try(function() return getmetatable(tools).__index(tools, "fake")[WANTED](given) end)
try(function() return tools.fake[WANTED](setmetatable({}, { __index = function() return "evil" end })) end)
try(function() local name = setmetatable({}, { __tostring = function() return WANTED end }); return tools.fake[name](given) end)
try(function() return tools.fake[1](given) end)
try(function() return tools.fake.list_items[WANTED](given) end)
try(function() return tools.search(WANTED)[1].call(given) end)
-- Several at a time, and one inside another.
local waiting = {}
for index = 1, 8 do
    table.insert(waiting, coroutine.create(function()
        try(tools.fake[WANTED], given)
        coroutine.yield()
        try(tools.fake[WANTED], given)
    end))
end
for _ = 1, 2 do for _, thread in waiting do coroutine.resume(thread) end end
return { tried = tried, made = table.concat(made, "; ") }
"#;

#[test]
fn script_reaches_no_tool_that_it_was_not_given() {
    let fake = Fake::new();
    for (wanted, flags) in [
        ("create_item", &["--tool", "fake.list_*"][..]),
        (
            "delete_item",
            &["--tool", "fake.list_items", "--tool", "fake.create_*", "--allow-destructive"],
        ),
    ] {
        let script = format!("local WANTED = '{wanted}'\n{TRICKS}");
        let result = fake.result(&[&["--timeout", "60s"], flags].concat(), &script);
        assert_eq!(result["made"], "", "{flags:?}: {result:#}");
        assert!(result["tried"].as_u64().unwrap() > 65, "{result:#}");
    }
    let called = fake.called();
    assert_eq!(called, ["list_items"; 8], "arguments are arguments");

    // Who searches finds what is given, and nothing else.
    let found = fake.result(
        &["--tool", "fake.list_*"],
        "local names = {}
        for _, word in { 'item', 'delete', 'create', 'fake' } do
            for _, tool in tools.search(word) do names[tool.name] = true end
        end
        local ok, about = pcall(tools.describe, 'fake.delete_item')
        return { names = names, ok = ok, about = tostring(about) }",
    );
    assert_eq!(found["names"], json!({ "fake.list_items": true }), "{found:#}");
    assert_eq!(found["ok"], false, "{found:#}");
    // Without tools there is no such global.
    let alone = fake.place.run_json("return tools == nil", &[]);
    assert_eq!(alone["result"], true);
}

#[test]
fn conditions_bind_the_arguments_that_are_sent() {
    let fake = Fake::new();
    let script = r#"
        local function try(arguments) return (pcall(tools.fake.create_item, arguments)) end
        return {
            good = try { repo = "site", title = "a" },
            other = try { repo = "other" },
            none = try {},
            list = try { repo = { "site" } },
            nested = try { repo = { repo = "site" } },
            longer = try { repo = "site2" },
            case = try { repo = "Site" },
            space = try { repo = "site " },
            key = try { ["repo "] = "site", Repo = "site" },
            slash = try { ["/repo"] = "site" },
            nul = try { repo = "site\0" },
        }"#;
    let seen = fake.result(&["--tool", "fake.create_item /repo=site"], script);
    for (name, is_made) in seen.as_object().unwrap() {
        assert_eq!(is_made, name == "good", "{name}: {seen:#}");
    }
    assert_eq!(fake.noted("call"), ["create_item {\"repo\": \"site\", \"title\": \"a\"}"]);
}

#[test]
fn calls_are_counted_limited_and_listed_with_digests_alone() {
    let fake = Fake::new();
    let script = "local count = 0
        while true do
            local ok, why = pcall(tools.fake.echo, { text = 'zebra' .. count })
            if not ok then return { count = count, why = tostring(why) } end
            count += 1
        end";
    let mut before = 0;
    let timed_out = |time: Duration| {
        let limit = format!("{}s", time.as_secs());
        let document = fake.run(&["--timeout", &limit, "--audit", "audit.jsonl"], script);
        let calls = fake.called().len() - before;
        before += calls;
        (time, document, calls)
    };
    // Its server takes some of the time to start.
    let (time, document, calls) = in_its_time(timed_out, |(_, _, calls)| *calls >= 10);
    assert_eq!(document["status"], "timeout", "{document:#}");
    // At most so many in a second, and in a row at the start.
    let most = 100 * (time.as_secs() + 1);
    assert!(calls >= 10 && (calls as u64) < most, "{calls} in {time:?}");
    let listed = document["tool_calls"].as_array().unwrap();
    assert!(listed.len().abs_diff(calls) <= 1, "{} of {calls}", listed.len());
    let call = &listed[0];
    assert_eq!((&call["tool"], &call["outcome"]), (&json!("fake.echo"), &json!("ok")), "{call:#}");
    for digest in ["arguments_sha256", "result_sha256"] {
        assert_eq!(call[digest].as_str().unwrap().len(), 64, "{call:#}");
    }
    let audit = fake.place.read("audit.jsonl");
    assert!(audit.contains("fake.echo") && !audit.contains("zebra"), "{audit:.2000}");
    assert!(!document.to_string().contains("zebra"));
    // Nothing is listed where nothing was called.
    assert_eq!(fake.run(&[], "return 1").get("tool_calls"), None);
}

#[test]
fn receipt_has_the_digest_of_all_calls() {
    let fake = Fake::new();
    let script = "tools.fake.echo { text = 'zebra' }
        pcall(tools.fake.fail, { why = 'quagga' })
        pcall(tools.fake.create_item, {})";
    let document = fake.run(&["--receipt", "receipt.json"], script);
    assert_eq!(document["status"], "ok", "{document:#}");
    let sha256 = |text: &str| digest(text.as_bytes()).trim_start_matches("sha256:").to_owned();
    let calls = document["tool_calls"].as_array().unwrap();
    let of = |at: usize, what: &str| calls[at][what].as_str().unwrap().to_owned();
    assert_eq!(of(0, "arguments_sha256"), sha256(r#"{"text":"zebra"}"#));
    assert_eq!(of(0, "result_sha256"), sha256(r#""zebra""#));
    assert_eq!(of(1, "arguments_sha256"), sha256(r#"{"why":"quagga"}"#));
    assert_eq!([of(1, "outcome"), of(2, "outcome")], ["failed", "refused"]);
    let names = ["tool", "outcome", "arguments_sha256", "result_sha256"];
    let line = |call: &Value| format!("{}\n", json!(names.map(|name| call[name].clone())));
    let lines: String = calls.iter().map(line).collect();
    let receipt: Value = serde_json::from_str(&fake.place.read("receipt.json")).unwrap();
    let byproducts = receipt["predicate"]["runDetails"]["byproducts"].as_array().unwrap();
    let listed = byproducts.iter().find(|it| it["name"] == "tool_calls").expect("the calls");
    assert_eq!(listed["digest"]["sha256"], sha256(&lines), "{receipt:#}");
    assert_eq!(listed["annotations"], json!({ "calls": 3, "truncated": false }));
}

#[test]
fn configured_program_has_its_directory_and_its_variables() {
    let fake = Fake::new();
    let (cwd, token) = (fake.place.path("its"), fake.place.write("token", "xyzzy-42"));
    std::fs::create_dir(&cwd).unwrap();
    let user = fake.place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    // It notes where it was started.
    let words = servers::mcp("notes".as_ref(), &[]);
    let config = format!(
        "[mcp.upstream.own]\ncommand = {words:?}\ncwd = {cwd:?}\n\
         env = {{ ITS_TOKEN = \"Bearer file:{}\" }}\n",
        token.display()
    );
    std::fs::write(user.join("config.toml"), config).unwrap();
    // An agent has all that are configured.
    let mut client = Client::new(&fake.place, &["--no-io", "--pool", "0"]);
    let script = json!({ "script": "return tools.own.environment {}.ITS_TOKEN" });
    assert_eq!(client.data("execute_script", script)["result"], "Bearer xyzzy-42");
    client.end();
    let notes = std::fs::read_to_string(cwd.join("notes")).unwrap();
    assert!(notes.contains("call environment "), "{notes}");
}

#[test]
fn server_that_answers_badly_costs_its_own_calls_alone() {
    let fake = Fake::new();
    let upstream = fake.upstream(&["--hostile"]);
    let script = r#"
        local seen = { names = {} }
        for _, word in { "red", "delete", "a.b", "talks", "ignore" } do
            for _, tool in tools.search(word) do table.insert(seen.names, tool.name .. tool.description) end
        end
        seen.echo = tools.fake.echo { text = "fine" }
        seen.deleted = pcall(tools.fake.delete_item, { id = 1 })
        local ok, deep = pcall(tools.fake.deep, {})
        seen.deep = if ok then "ok" else tostring(deep)
        seen.about = tools.describe("fake.talks")
        seen.after = tools.fake.echo { text = "still" }
        return seen"#;
    let args = ["run", "--json", "--timeout", "60s", "--upstream", &upstream, "-c", script];
    let document = fake.place.document(&fake.place.sandboxctl(args));
    assert_eq!(document["status"], "ok", "{document:#}");
    let seen = &document["result"];
    assert_eq!((&seen["echo"], &seen["after"]), (&json!("fine"), &json!("still")));
    assert_eq!(
        seen["deleted"], false,
        "of two of one name, the one that says that it destroys counts"
    );
    assert!(!fake.called().contains(&"delete_item".to_owned()), "{:#?}", fake.called());
    let text = seen.to_string();
    for hidden in ["\\u001b", "\\u0007", "\u{202e}", "\\u202e"] {
        assert!(!text.contains(hidden), "{hidden}: {text:.2000}");
    }
    assert!(seen["about"].as_str().unwrap().len() < 64 << 10, "a description is bounded");
}

#[test]
fn server_at_a_url_gets_its_headers_and_a_project_adds_none() {
    let fake = Fake::new();
    let server = Python::start(&servers::mcp(&fake.notes, &["--http"]));
    let user = fake.place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let config = format!(
        "[mcp.upstream.web]\nurl = \"{}\"\nheaders = {{ authorization = \"Bearer env:WEB_TOKEN\" }}\n\
         [mcp]\ntool_rules = [\"web.list_*\", \"web.echo\"]\n",
        server.at
    );
    std::fs::write(user.join("config.toml"), config).unwrap();
    let run = |script: &str| {
        let mut command = fake.place.command(["run", "--json", "--upstream", "web", "-c", script]);
        command.env("WEB_TOKEN", "xyzzy-42");
        fake.place.document(&finish(command))
    };
    let document = run(
        "return { tools.web.list_items { repo = 'x' }.items[1].title, (pcall(tools.web.count, {})) }",
    );
    assert_eq!(document["result"], json!(["of x", false]), "{document:#}");
    assert!(fake.noted("authorization").iter().all(|it| it == "Bearer xyzzy-42"));
    assert!(!document.to_string().contains("xyzzy"));
    // An agent that may write a project's file starts no program by it.
    for text in [
        "[mcp.upstream.mine]\ncommand = [\"touch\", \"started\"]\n",
        "[mcp]\ntool_rules = [\"*\"]\n",
        "[server.upstream.mine]\ncommand = [\"touch\", \"started\"]\n",
        "[network]\ninject = [\"example.org: Authorization: env:WEB_TOKEN\"]\n",
    ] {
        fake.place.write("sandboxctl.toml", text);
        let mut command = fake.place.command(["run", "-c", "return 1"]);
        command.env("WEB_TOKEN", "xyzzy-42");
        let ended = finish(command);
        assert_eq!(ended.code, 2, "{text}: {ended:#?}");
        assert!(ended.stderr.contains("sandboxctl.toml"), "{ended:#?}");
    }
    assert!(!fake.place.path("started").exists());
    std::fs::remove_file(fake.place.path("sandboxctl.toml")).unwrap();
}

#[test]
fn upstreams_are_checked_and_their_names_are_refused_where_scripts_cannot_write_them() {
    let fake = Fake::new();
    let good = fake.upstream(&[]);
    let check = |upstreams: &[&str]| {
        let flags = upstreams.iter().flat_map(|upstream| ["--upstream", upstream]);
        fake.place.sandboxctl(["mcp", "upstream", "check"].into_iter().chain(flags))
    };
    let ended = check(&[&good]);
    ended.assert_code(0);
    for name in ["fake.list_items", "fake.delete_item"] {
        assert!(ended.stdout.contains(name), "{ended:#?}");
    }
    let bad =
        ["absent=/nonexistent/program", "ends=false", "says=sh -c 'echo no such file >&2; exit 3'"];
    for upstream in bad {
        let ended = check(&[&good, upstream]);
        assert_ne!(ended.code, 0, "{ended:#?}");
        let name = upstream.split_once('=').unwrap().0;
        assert!(format!("{}{}", ended.stdout, ended.stderr).contains(name), "{ended:#?}");
        assert!(
            ended.stdout.contains("list_items"),
            "the others are listed all the same: {ended:#?}"
        );
    }
    for name in ["search", "describe", "a-b", "1a", "", "a.b", "käse"] {
        let upstream = format!("{name}=true");
        let ended = fake.place.sandboxctl(["run", "--upstream", &upstream, "-c", "return 1"]);
        assert_eq!(ended.code, 2, "{name}: {ended:#?}");
    }
    // One that cannot be started is an error of its calls, and of no others.
    let args = ["run", "--json", "--upstream", bad[0], "--upstream", &good, "-c"];
    let script = "local ok, why = pcall(tools.absent.x, {}) return { ok, tostring(why), tools.fake.echo { text = 'up' } }";
    let document = fake.place.document(&fake.place.sandboxctl(args.iter().chain(&[script])));
    assert_eq!(
        (&document["result"][0], &document["result"][2]),
        (&json!(false), &json!("up")),
        "{document:#}"
    );
}

#[test]
fn client_that_can_be_asked_is_asked_about_a_tool_that_destroys() {
    let fake = Fake::new();
    let upstream = fake.upstream(&[]);
    let flags = ["--no-io", "--pool", "0", "--upstream", &upstream, "--tool", "fake.*"];
    let script = json!({ "script": "local ok, why = pcall(tools.fake.delete_item, { id = 3 })
        return { ok, tostring(why), (pcall(tools.describe, 'fake.delete_item')) }" });
    // It cannot be asked: that is a no, and no tool that it is given.
    let mut client = Client::new(&fake.place, &flags);
    let refused = client.data("execute_script", script.clone());
    assert_eq!(refused["result"][0], false, "{refused:#}");
    assert_eq!(refused["result"][2], false, "{refused:#}");
    client.end();
    assert_eq!(fake.called(), Vec::<String>::new());

    for revision in ["2025-06-18", "2025-11-25"] {
        let mut client = asked_client(&fake.place, &flags, revision);
        for (action, is_made) in [("decline", false), ("cancel", false), ("accept", true)] {
            let content = json!({ "allow": true });
            client.say_when_asked(match action {
                "accept" => json!({ "action": action, "content": content }),
                _ => json!({ "action": action }),
            });
            let data = client.data("execute_script", script.clone());
            assert_eq!(data["result"][0], is_made, "{action}: {data:#}");
            assert_eq!(data["result"][2], true, "{data:#}");
            let asked = client.asked().expect("it was asked");
            assert_eq!(asked["method"], "elicitation/create", "{asked:#}");
            let message = asked["params"]["message"].as_str().unwrap();
            assert!(message.contains("fake.delete_item") && message.contains('3'), "{message}");
        }
        client.end();
    }
    assert_eq!(fake.called(), ["delete_item"; 2]);
}

/// A client of this revision that can ask its user.
pub fn asked_client(place: &Fixture, flags: &[&str], revision: &str) -> Client {
    let mut client = Client::silent(place, flags);
    let hello = json!({
        "protocolVersion": revision,
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "test", "version": "1" },
    });
    let hello = client.ask("initialize", hello);
    assert_eq!(hello["result"]["protocolVersion"], revision, "{hello:#}");
    client.notify("notifications/initialized", json!({}));
    client
}

#[test]
fn question_of_a_call_that_has_ended_is_withdrawn() {
    let fake = Fake::new();
    let upstream = fake.upstream(&[]);
    let flags = ["--no-io", "--pool", "0", "--upstream", &upstream, "--tool", "fake.*"];
    let mut client = asked_client(&fake.place, &flags, "2025-11-25");
    let call = client
        .begin_call("execute_script", json!({ "script": "tools.fake.delete_item { id = 3 }" }));
    let question = client.question();
    assert_eq!(question["method"], "elicitation/create", "{question:#}");
    client.notify("notifications/cancelled", json!({ "requestId": call }));
    let withdrawn = client.notified("notifications/cancelled");
    assert_eq!(withdrawn[0]["requestId"], question["id"], "{withdrawn:#?}");
    client.end();
    assert_eq!(fake.called(), Vec::<String>::new());
}

/// The params of a call in the stateless revision, by a client of these capabilities.
fn stateless_call(script: &str, capabilities: Value) -> Value {
    json!({
        "name": "execute_script",
        "arguments": { "script": script },
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        },
    })
}

#[test]
fn client_of_the_stateless_revision_is_asked_by_the_answer_to_its_call() {
    let fake = Fake::new();
    let upstream = fake.upstream(&[]);
    let flags = ["--no-io", "--pool", "0", "--upstream", &upstream, "--tool", "fake.*"];
    let script =
        "local ok, why = pcall(tools.fake.delete_item, { id = 3 }) return { ok, tostring(why) }";
    let mut client = Client::silent(&fake.place, &flags);
    // It cannot be asked: that is a no.
    let refused = client.ask("tools/call", stateless_call(script, json!({})));
    assert_eq!(refused["result"]["structuredContent"]["result"][0], false, "{refused:#}");
    let call = stateless_call(script, json!({ "elicitation": { "form": {} } }));
    for (action, is_made) in [("decline", false), ("cancel", false), ("accept", true)] {
        let asked = client.ask("tools/call", call.clone());
        let asked = &asked["result"];
        assert_eq!(asked["resultType"], "input_required", "{asked:#}");
        let question = &asked["inputRequests"]["permission"];
        assert_eq!(question["method"], "elicitation/create", "{asked:#}");
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.contains("fake.delete_item") && message.contains('3'), "{message}");
        let mut again = call.clone();
        again["requestState"] = asked["requestState"].clone();
        again["inputResponses"] = json!({ "permission": { "action": action } });
        let answer = client.ask("tools/call", again.clone());
        let data = &answer["result"]["structuredContent"];
        assert_eq!(data["result"][0], is_made, "{action}: {answer:#}");
        let spent = client.ask("tools/call", again);
        assert_eq!(spent["error"]["code"], -32602, "an answer counts once: {spent:#}");
    }
    client.end();
    assert_eq!(fake.called(), ["delete_item"]);
}

#[test]
fn question_of_a_script_is_the_answer_to_its_own_call() {
    let fake = Fake::new();
    let upstream = fake.upstream(&[]);
    let flags = ["--io-dir", "out", "--pool", "0", "--upstream", &upstream, "--tool", "fake.*"];
    let call = |script| stateless_call(script, json!({ "elicitation": { "form": {} } }));
    let mut client = Client::silent(&fake.place, &flags);
    // An earlier call, whose script asks for nothing.
    let waits = "fs.write('begun', '') repeat until fs.exists('done') return 'waited'";
    let earlier = client.begin("tools/call", call(waits));
    eventually("its script to begin", || fake.place.path("out/begun").exists().then_some(()));
    let asks = "tools.fake.delete_item { id = 3 } fs.write('done', '') return 'asked'";
    let mut asking = call(asks);
    let asked = client.ask("tools/call", asking.clone());
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked:#}");
    asking["requestState"] = asked["result"]["requestState"].clone();
    asking["inputResponses"] = json!({ "permission": { "action": "accept" } });
    let answer = client.ask("tools/call", asking);
    assert_eq!(answer["result"]["structuredContent"]["result"], "asked", "{answer:#}");
    let answer = client.answer(earlier);
    assert_eq!(answer["result"]["structuredContent"]["result"], "waited", "{answer:#}");
    client.end();
}
