//! Rules that are learnt: what a run asks for is asked of a person or noted, and nothing that a guest does makes
//! a rule of it.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use serde_json::json;

use crate::agent::network;
use crate::conformance::mcp::Client;
use crate::conformance::terminals::Terminal;
use crate::fixture::{Ended, Fixture, finish};
use crate::rootfs::{Provided, Rootfs};
use crate::servers;
use crate::upstream::asked_client;

/// A place with a rules file, and a sandbox that has a shell and the program that connects.
struct Learning {
    place: Fixture,
    provided: Provided,
}

impl Learning {
    fn new() -> Self {
        let provided = Rootfs::busybox().copy("network", network()).provide();
        Self { place: Fixture::new(), provided }
    }

    fn command(&self, flags: &[&str], line: &str) -> Command {
        let root = self.provided.args();
        let mut command = self.place.command(["exec", "--timeout", "2m"]);
        command.args(root).args(flags).args(["--", "sh", "-c", line]);
        command
    }

    fn exec(&self, flags: &[&str], line: &str) -> Ended {
        finish(self.command(flags, line))
    }

    fn on_terminal(&self, flags: &[&str], line: &str) -> Terminal {
        Terminal::run(&self.place, &self.command(flags, line))
    }

    /// The rules that are in force: a person's own, and what was learnt.
    #[track_caller]
    fn in_force(&self, list: &str) -> Vec<String> {
        in_force(&self.place.read("rules.toml"), list)
    }
}

#[track_caller]
fn in_force(text: &str, list: &str) -> Vec<String> {
    let table: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let learnt = table.get("learnt").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let learnt = learnt.into_iter().map(|it| it.as_table().unwrap().clone());
    let own = table.iter().filter(|(key, _)| *key != "learnt");
    let own: toml::Table = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut rules = Vec::new();
    for part in [own].into_iter().chain(learnt) {
        let is_list = |key: &String| ["allow", "tools"].contains(&&**key);
        assert!(part.keys().all(is_list), "{text}");
        let entries = part.get(list).and_then(toml::Value::as_array).cloned().unwrap_or_default();
        rules.extend(entries.iter().map(|rule| rule.as_str().unwrap().to_owned()));
    }
    rules
}

const LEARN: [&str; 2] = ["--learn", "rules.toml"];

/// A line that asks for each of these, and prints the first line of the answer.
fn ask(targets: &[&str]) -> String {
    format!(
        "for it in {}; do echo \"$it: $(/network ask $it | head -n 1)\"; done",
        targets.join(" ")
    )
}

#[test]
fn person_at_a_terminal_says_yes_and_no_and_only_yes_is_a_rule() {
    let learning = Learning::new();
    let targets = ["evil.example:443", "other.example:80", "evil.example:443", "empty.example:1"];
    let mut terminal = learning.on_terminal(&LEARN, &ask(&targets));
    terminal.until("allow evil.example:443? yes/no");
    terminal.type_keys("yes\r");
    terminal.until("allow other.example:80? yes/no");
    terminal.type_keys("no\r");
    terminal.until("allow empty.example:1? yes/no");
    terminal.type_keys("\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(shown.matches("allow evil.example:443?").count(), 1, "once each: {shown}");
    // There is no such host, which is found out by who may look for it.
    assert_eq!(shown.matches("evil.example:443: HTTP/1.1 502").count(), 2, "{shown}");
    assert!(shown.contains("other.example:80: HTTP/1.1 403"), "{shown}");
    assert!(shown.contains("empty.example:1: HTTP/1.1 403"), "{shown}");
    assert!(shown.contains("rules.toml: 1 rule in force, 2 to review"), "{shown}");
    assert_eq!(learning.in_force("allow"), ["evil.example:443"]);
    let text = learning.place.read("rules.toml");
    assert!(
        text.contains("# \"other.example:80\"") && text.contains("# \"empty.example:1\""),
        "{text}"
    );

    let flags = ["--rules", "rules.toml"];
    let ended = learning.exec(&flags, &ask(&targets[..2]));
    assert!(ended.assert_code(0).stdout.contains("evil.example:443: HTTP/1.1 502"), "{ended:#?}");
    assert!(ended.stdout.contains("other.example:80: HTTP/1.1 403"), "{ended:#?}");
}

#[test]
fn without_a_person_everything_is_refused_and_noted() {
    let learning = Learning::new();
    let line = ask(&["evil.example:443", "other.example:80"]);
    for _ in 0..2 {
        // Who answers by a pipe is no person.
        let mut command = learning.command(&LEARN, &line);
        command.stdin(std::process::Stdio::piped());
        let mut child = crate::fixture::spawn(command);
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"yes\nyes\nyes\n").unwrap();
        let ended = crate::fixture::wait(child);
        assert_eq!(ended.assert_code(0).stdout.matches("HTTP/1.1 403").count(), 2, "{ended:#?}");
        assert_eq!(learning.in_force("allow"), Vec::<String>::new());
        // The second time there is nothing new.
        let text = learning.place.read("rules.toml");
        assert_eq!(text.matches("\"evil.example:443\"").count(), 1, "{text}");
    }
    // Of what is noted nothing is in force.
    let flags = ["--rules", "rules.toml", "--allow", "ok.example"];
    let ended = learning.exec(&flags, &line);
    assert_eq!(ended.stdout.matches("HTTP/1.1 403").count(), 2, "{ended:#?}");
}

#[test]
fn what_a_guest_calls_its_hosts_makes_no_rule_and_no_line() {
    let learning = Learning::new();
    // By SOCKS a name is any bytes: a quotation mark that ends the text, lines that begin a list, comments,
    // escapes, directions of writing, names like rules for many.
    let names: [&[u8]; 12] = [
        b"a\",\n\"*\"",
        b"x\"]\nallow = [\"*.example\"]\n#",
        b"\n]\n[network]\nallow=[\"*\"]",
        b"*",
        b"*.example",
        b"@preset",
        b"evil.example\0.ok.example",
        b"\x1b]0;title\x07.example",
        b"\xe2\x80\xae.example",
        b"\\u0022.example",
        b"GET https://evil.example/*",
        b"\r\"\"\"\r",
    ];
    let socks = names.map(|name| {
        let escaped: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        format!("printf '\\005\\001\\000\\005\\001\\000\\003\\{:03o}{escaped}\\001\\273' | timeout 5 nc 127.0.0.1 3128 >/dev/null\n", name.len())
    });
    let line = socks.concat()
        + "for n in $(seq 1 60); do /network ask host-$n.example:443; done >/dev/null; true";
    learning.exec(&LEARN, &line).assert_code(0);
    assert_eq!(learning.in_force("allow"), Vec::<String>::new());
    assert_eq!(learning.in_force("tools"), Vec::<String>::new());
    let text = learning.place.read("rules.toml");
    assert!(!text.contains(['\u{1b}', '\u{7}', '\0', '\r', '\u{202e}']), "{text}");
    // Each line is a comment, or of the lists themselves.
    for line in text.lines().map(str::trim) {
        let is_plain = line.is_empty()
            || line.starts_with('#')
            || ["allow = [", "tools = [", "]"].contains(&line)
            || line.starts_with("[[learnt]] # ");
        assert!(is_plain, "{line:?} in {text}");
    }
    assert!(text.contains("host-60.example:443"), "{text}");
    assert!(text.len() < 32 << 10, "{} bytes", text.len());
}

#[test]
fn addresses_and_names_that_hand_out_credentials_are_not_asked_about() {
    let learning = Learning::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let on_host = format!("host.sandbox.internal:{}", listener.local_addr().unwrap().port());
    let special = [
        "169.254.169.254:80", "metadata.google.internal:80", "127.0.0.1:22", "10.0.0.1:443",
        &on_host, "policy.sandbox.internal:443",
    ];
    let mut terminal =
        learning.on_terminal(&LEARN, &ask(&[&special[..], &["last.example:443"]].concat()));
    // The first question is about the last of them.
    terminal.until("allow ");
    terminal.until("allow last.example:443? yes/no");
    terminal.type_keys("no\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(shown.matches("? yes/no").count(), 1, "{shown}");
    let text = learning.place.read("rules.toml");
    let (_, lists) = text.split_once("allow = [").unwrap();
    for name in special {
        assert!(!lists.contains(&format!("\"{name}\"")), "{text}");
    }
    assert_eq!(learning.in_force("allow"), Vec::<String>::new());
}

#[test]
fn guest_that_imitates_a_question_gets_no_answer_for_it() {
    let learning = Learning::new();
    // It prints what a question looks like, and then asks for something else.
    let line = format!(
        "printf 'allow docs.example:443? yes/no (yes also lists it in rules.toml): '; touch /io/printed; \
         until [ -e /io/typed ]; do sleep 0.05; done; {}",
        ask(&["evil.example:443"])
    );
    let flags = [&LEARN[..], &["--io-dir", "out"]].concat();
    let mut terminal = learning.on_terminal(&flags, &line);
    terminal.until("allow docs.example:443? yes/no");
    terminal.type_keys("yes\ryes\ryes\r");
    terminal.until("yes\r\nyes\r\nyes\r\n");
    learning.place.write("out/typed", "");
    terminal.until("allow evil.example:443? yes/no");
    terminal.type_keys("n\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("evil.example:443: HTTP/1.1 403"), "{shown}");
    assert_eq!(learning.in_force("allow"), Vec::<String>::new());
}

#[test]
fn host_to_which_credentials_are_added_needs_a_whole_word() {
    let learning = Learning::new();
    let inject = "api.example: Authorization: Bearer env:TOKEN";
    let flags = [&LEARN[..], &["--inject", inject]].concat();
    for (answer, rules) in [("y\r", &[][..]), ("no\r", &[]), ("yes\r", &["api.example:80"])] {
        let line = format!(": a-secret-of-the-user; {}", ask(&["api.example:80"]));
        let mut command = learning.command(&flags, &line);
        command.env("TOKEN", "a-secret-of-the-user");
        let mut terminal = Terminal::run(&learning.place, &command);
        terminal.until("allow api.example:80, to which credentials are added? type yes");
        terminal.type_keys(answer);
        let (code, shown) = terminal.end();
        assert_eq!(code, Some(0), "{shown}");
        assert_eq!(learning.in_force("allow"), rules, "{answer:?}: {shown}");
        let file = learning.place.read("rules.toml");
        assert!(!file.contains("a-secret"), "{file}");
        assert_eq!(file.contains("\"api.example:80\""), !rules.is_empty(), "{file}");
    }
}

#[test]
fn what_stands_in_a_file_stays_and_is_not_repeated() {
    let learning = Learning::new();
    let before = "# mine\nallow = [\"one.example\", # why\n  'two.example:8443'] # the end\n\n\ntools = [\"github.list_*\"]\n# more\n";
    learning.place.write("rules.toml", before);
    let line = ask(&["one.example:443", "two.example:8443", "three.example:443"]);
    let both = ["--rules", "rules.toml", "--learn", "rules.toml"];
    let mut terminal = learning.on_terminal(&both, &line);
    terminal.until("allow three.example:443? yes/no");
    terminal.type_keys("YES\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(shown.matches("? yes/no").count(), 1, "what is allowed is not asked about: {shown}");
    assert_eq!(
        learning.in_force("allow"),
        ["one.example", "two.example:8443", "three.example:443"]
    );
    assert_eq!(learning.in_force("tools"), ["github.list_*"]);
    let after = learning.place.read("rules.toml");
    assert!(after.starts_with(before), "{after}");
    learning.exec(&both, &line).assert_code(0);
    assert_eq!(learning.place.read("rules.toml"), after, "there is nothing new");
}

#[test]
fn tools_are_learnt_as_hosts_are() {
    let place = Fixture::new();
    let notes = place.path("notes");
    std::fs::write(&notes, "").unwrap();
    let upstream = format!("fake={}", servers::mcp(&notes, &[]).join(" "));
    let script = "local seen = {}
        for _, name in { 'list_items', 'create_item', 'delete_item', 'no_such_tool' } do
            seen[name] = (pcall(tools.fake[name], { repo = 'site' }))
        end
        return seen";
    let file = place.write("script.luau", script);
    let run = |flags: &[&str]| {
        let args = ["run", "--json", "--upstream", &upstream];
        place.command(args.iter().chain(flags).chain(&[file.to_str().unwrap()]))
    };
    let mut terminal = Terminal::run(&place, &run(&LEARN));
    terminal.until("allow fake.create_item");
    terminal.until("\"repo\":\"site\"");
    terminal.type_keys("y\r");
    terminal.until("allow fake.delete_item (destructive)");
    terminal.type_keys("no\r");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        !shown.contains("allow fake.list_items") && !shown.contains("allow fake.no_such_tool"),
        "{shown}"
    );
    let text = place.read("rules.toml");
    assert_eq!(in_force(&text, "tools"), ["fake.create_item"], "{text}");
    assert!(text.contains("# \"fake.delete_item\""), "{text}");
    let called = || {
        let text = std::fs::read_to_string(&notes).unwrap();
        let calls = text
            .lines()
            .filter_map(|line| line.strip_prefix("call ")?.split(' ').next().map(str::to_owned));
        calls.collect::<Vec<_>>()
    };
    assert_eq!(called(), ["list_items", "create_item"]);
    std::fs::write(&notes, "").unwrap();
    let document = place.document(&finish(run(&["--rules", "rules.toml"])));
    let seen = &document["result"];
    assert_eq!(
        (&seen["create_item"], &seen["delete_item"]),
        (&json!(true), &json!(false)),
        "{document:#}"
    );
    assert_eq!(seen["list_items"], true, "what was allowed before stays so: {document:#}");
    assert!(!called().contains(&"delete_item".to_owned()));
}

#[test]
fn client_of_an_agent_widens_no_rule_and_is_asked_only_about_what_a_rule_gives() {
    let place = Fixture::new();
    let notes = place.path("notes");
    std::fs::write(&notes, "").unwrap();
    let upstream = format!("fake={}", servers::mcp(&notes, &[]).join(" "));
    let both = ["--no-io", "--pool", "0", "--upstream", &upstream, "--learn", "rules.toml"];
    let script = "local seen = {}
        for _, name in { 'create_item', 'delete_item' } do seen[name] = (pcall(tools.fake[name], {})) end
        return seen";
    let script = json!({ "script": script });
    // No rule gives either: no question is asked, whatever the client can do. It would have no reply.
    let mut client = asked_client(&place, &both, "2025-11-25");
    let seen = client.data("execute_script", script.clone())["result"].clone();
    assert_eq!(seen, json!({ "create_item": false, "delete_item": false }));
    client.end();
    let text = place.read("rules.toml");
    assert_eq!(text.matches("once by a script; no question was asked").count(), 2, "{text}");
    // A rule gives one of them: its user is asked about that, and the yes makes no rule.
    std::fs::remove_file(place.path("rules.toml")).unwrap();
    let flags = [&both[..], &["--tool", "fake.delete_item"]].concat();
    let mut client = asked_client(&place, &flags, "2025-11-25");
    client.say_when_asked(json!({ "action": "accept", "content": {} }));
    let seen = client.data("execute_script", script.clone())["result"].clone();
    assert_eq!(seen, json!({ "create_item": false, "delete_item": true }));
    let asked = client.asked().expect("it was asked");
    let message = asked["params"]["message"].as_str().unwrap();
    assert!(message.contains("fake.delete_item") && message.contains("removes"), "{message}");
    client.end();
    let text = place.read("rules.toml");
    assert_eq!(in_force(&text, "tools"), Vec::<String>::new(), "{text}");
    assert!(text.contains("; no question was asked\n    # \"fake.create_item\""), "{text}");
    assert!(text.contains("; allowed that time\n"), "{text}");
    // One that cannot ask: it was not asked, and has not refused.
    std::fs::remove_file(place.path("rules.toml")).unwrap();
    let mut client = Client::new(&place, &flags);
    let seen = client.data("execute_script", script)["result"].clone();
    assert_eq!(seen, json!({ "create_item": false, "delete_item": false }));
    client.end();
    let text = place.read("rules.toml");
    assert_eq!(text.matches("; no question was asked\n").count(), 2, "{text}");
    let called = std::fs::read_to_string(&notes).unwrap();
    assert_eq!(called.matches("call ").count(), 1, "{called}");
}

#[test]
fn script_reads_what_it_may_reach_and_no_secret() {
    let learning = Learning::new();
    let root = learning.provided.args();
    let script = "process.exec('/network', { 'ask', 'evil.example:443' }) return policy()";
    let inject = "api.example: Authorization: Bearer env:GIVEN";
    let flags = ["--allow", "ok.example:8443", "--inject", inject];
    let mut command = learning.place.command(["run", "--json"]);
    command.args(flags).args(&root).args(["-c", script]).env("GIVEN", "zebra-of-the-user");
    let document = learning.place.document(&finish(command));
    assert_eq!(document["status"], "ok", "{document:#}");
    let text = document["result"].to_string();
    for word in ["ok.example:8443", "api.example", "evil.example"] {
        assert!(text.contains(word), "no {word}: {document:#}");
    }
    assert!(!text.contains("zebra"), "{document:#}");
    assert!(!text.contains(learning.place.work().to_str().unwrap()), "{document:#}");
    // One without programs has it too.
    let alone = learning.place.run_json("return type(policy())", &[]);
    assert_eq!(alone["result"], "table", "{alone:#}");
}
