//! Logs of CI jobs: nothing that a guest says is a command of the runner. Each runner's grammar is
//! parsed here as the runner does it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;

use crate::conformance::exec_cli::Commands;
use crate::fixture::{Ended, Fixture, files_below, finish, sandboxctl, workspace};

/// What a guest prints to be heard by a runner.
const INJECTIONS: &[&str] = &[
    "::error::forged",
    "  ::set-env name=PATH::/tmp",
    "\t::add-mask::a",
    "text ##[error]forged",
    "##[add-path]/tmp",
    "a\n::set-output name=status::ok\nb",
    "a\r::warning file=x,line=1::forged\r",
    "a\r\n::group::forged\r\n::endgroup::",
    "::stop-commands::guest\n::guest::",
    "::stop-commands::\n::::",
    "::endgroup::\n::notice::x",
    "%0A::error::forged%0D",
    "\u{1b}[0Ksection_start:1:forged[collapsed=true]\r\u{1b}[0Kforged",
    "section_end:1:forged\r\u{1b}[0K",
    "section_section_start:1:forged\r\u{1b}[0K",
    "x,title=forged::\n::error::",
    "]] ::debug::x \u{2028}::error::x\u{85}::error::y",
];

/// A command that GitHub's runner executes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Executed {
    name: String,
    properties: BTreeMap<String, String>,
    data: String,
}

const COMMANDS: [&str; 16] = [
    "stop-commands", "group", "endgroup", "error", "warning", "notice", "debug", "add-mask",
    "add-path", "add-matcher", "remove-matcher", "set-env", "set-output", "save-state", "echo",
    "internal-set-repo-path",
];

/// The commands that GitHub's runner executes in a log. It splits lines at CR, LF and both; a command
/// begins a line after white space (`::name k=v::data`), or is anywhere in it (`##[name k=v]data`).
/// After `stop-commands` the only command is the token.
fn github(log: &str) -> Vec<Executed> {
    let mut executed = Vec::new();
    let mut token: Option<String> = None;
    for line in log.split(['\n', '\r']) {
        let is_known = |name: &str| {
            COMMANDS.iter().any(|known| known.eq_ignore_ascii_case(name))
                || token.as_ref().is_some_and(|token| token.eq_ignore_ascii_case(name))
        };
        let Some(command) = version_2(line)
            .filter(|it| is_known(&it.name))
            .or_else(|| version_1(line).filter(|it| is_known(&it.name)))
        else {
            continue;
        };
        match &token {
            Some(stopped) if command.name.eq_ignore_ascii_case(stopped) => token = None,
            Some(_) => continue,
            None if command.name.eq_ignore_ascii_case("stop-commands") => {
                token = Some(command.data.clone());
            }
            None => {}
        }
        executed.push(command);
    }
    assert_eq!(token, None, "commands are read again at the end");
    executed
}

fn version_2(line: &str) -> Option<Executed> {
    let rest = line.trim_start().strip_prefix("::")?;
    let (head, data) = rest.split_once("::")?;
    let (name, properties) = head.split_once(' ').unwrap_or((head, ""));
    let properties = properties.split(',').filter_map(|it| it.trim().split_once('='));
    let unescaped = |text: &str| {
        let text = text.replace("%0D", "\r").replace("%0A", "\n");
        text.replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
    };
    let properties = properties.map(|(key, value)| (key.to_owned(), unescaped(value))).collect();
    Some(Executed { name: name.to_owned(), properties, data: unescaped(data) })
}

fn version_1(line: &str) -> Option<Executed> {
    let (_, rest) = line.split_once("##[")?;
    let (head, data) = rest.split_once(']')?;
    let name = head.split(' ').next().unwrap_or_default().to_owned();
    Some(Executed { name, properties: BTreeMap::new(), data: data.to_owned() })
}

/// The section marks that GitLab finds in a log, with or without their ends.
fn gitlab(log: &str) -> Vec<(String, String)> {
    let mut marks = Vec::new();
    for (at, _) in log.match_indices("section_") {
        let rest = &log[at + "section_".len()..];
        let end = rest.find('\r').unwrap_or(rest.len());
        let mut parts = rest[..end].splitn(3, ':');
        if let (Some(kind @ ("start" | "end")), Some(_), Some(name)) =
            (parts.next(), parts.next(), parts.next())
        {
            marks.push((kind.to_owned(), name.split('[').next().unwrap_or_default().to_owned()));
        }
    }
    marks
}

/// A Luau string.
fn quoted(text: &str) -> String {
    let bytes: String = text.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("\"{bytes}\"")
}

/// Scripts that say an injection in every way: in the log, as names of files, test cases, results and
/// errors.
fn scripts(place: &Fixture) -> Vec<String> {
    let mut names = Vec::new();
    for (number, injection) in INJECTIONS.iter().enumerate() {
        let text = quoted(injection);
        let own = format!(
            "print({text}) warn({text}) local x = {text}
             pcall(function() fs.write(string.gsub({text}, '/', ''), 'x') end)
             test.case({text}, function() test.fail({text}) end)
             test.case({text}, function() test.skip({text}) end)\n"
        );
        for (ending, code) in ["return x", "error(x)"].iter().enumerate() {
            let name = format!("s{number}-{ending}.luau");
            place.write(&name, format!("{own}{code}"));
            names.push(name);
        }
    }
    // What is printed as JSON, and an error before anything runs: all of them at once.
    let all: String = INJECTIONS.iter().map(|it| format!("[{0}] = {0}, ", quoted(it))).collect();
    for (name, code) in
        [("result", "return all"), ("value", "error(all)"), ("syntax", "return all local =")]
    {
        place.write(&format!("{name}.luau"), format!("local all = {{ {all} }}\n{code}"));
        names.push(format!("{name}.luau"));
    }
    // Names of files come from a repository too.
    for (number, name) in
        ["##[error]x.luau", "a\n::error::x.luau", "%0A::error::y,z.luau"].iter().enumerate()
    {
        place.write(name, format!("error('{number}')"));
        names.push((*name).to_owned());
    }
    names
}

fn job(place: &Fixture, runner: &str, args: &[&str]) -> Ended {
    let mut command = place.command(args);
    match runner {
        "github" => {
            command.env("GITHUB_ACTIONS", "true");
            command.env("GITHUB_STEP_SUMMARY", place.path("summary.md"));
            command.env("GITHUB_OUTPUT", place.path("outputs"));
        }
        _ => _ = command.env("GITLAB_CI", "true"),
    }
    finish(command)
}

/// Asserts that only sandboxctl's own commands are executed, and returns its annotations.
fn assert_own_commands(ended: &Ended) -> Vec<Executed> {
    // Two pipes, which the runner reads in any order.
    let mut executed = Vec::new();
    for log in [&ended.stdout, &ended.stderr] {
        let own = github(log);
        let names: Vec<_> = own.iter().map(|it| it.name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        assert_eq!(names[..2], ["group", "stop-commands"], "{own:?}");
        assert_eq!((names[2], names[3]), (own[1].data.as_str(), "endgroup"), "{own:?}");
        assert_eq!(own[1].data.len(), 32);
        assert!(names[4..].iter().all(|name| *name == "error"), "{own:?}");
        executed.extend_from_slice(&own[4..]);
    }
    assert!(executed.len() <= 10);
    executed
}

#[test]
fn no_text_of_a_script_is_a_command_on_github() {
    let place = Fixture::new();
    let scripts = scripts(&place);
    let scripts: Vec<_> = scripts.iter().map(String::as_str).collect();
    for flags in [&[][..], &["--json"], &["--result-only"], &["--verbose"]] {
        let ended = job(&place, "github", &[&["run", "-j", "4"], flags, &scripts].concat());
        ended.assert_code(1);
        let errors = assert_own_commands(&ended);
        assert_eq!(errors.len(), 10, "{flags:?}");
        for error in errors {
            let file = &error.properties["file"];
            assert!(scripts.contains(&file.as_str()), "{error:?}");
            let known = ["file", "line", "col", "endColumn", "title"];
            assert!(error.properties.keys().all(|key| known.contains(&key.as_str())), "{error:?}");
        }
    }
    // The data is the same: only its notation differs.
    let ended = job(&place, "github", &["run", "--json", "-c", "return '##[error]x'"]);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["result"], "##[error]x");
}

#[test]
fn failure_of_our_side_is_in_the_group_too() {
    let place = Fixture::new();
    place.write("a\n::error::x", "a file, and no directory");
    for args in [
        &["run", "##[error]missing.luau"][..],
        &["run", "-c", "", "--io-dir", "a\n::error::x"],
        &["exec", "##[error]x", "true", "--engine", "embedded"],
    ] {
        let ended = job(&place, "github", args);
        assert_ne!(ended.code, 0, "{ended:?}");
        assert_own_commands(&ended);
    }
}

#[test]
fn no_output_of_a_command_is_a_command_on_github() {
    let commands = Commands::new();
    let place = &commands.place;
    for injection in INJECTIONS {
        let mut args = vec!["exec"];
        let root = commands.provided.args();
        let root: Vec<_> = root.iter().map(String::as_str).collect();
        args.extend(root);
        // Without a newline at the end, on both streams.
        args.extend([
            "--",
            "sh",
            "-c",
            "printf %s \"$1\"; printf %s \"$1\" >&2; exit 1",
            "sh",
            injection,
        ]);
        let ended = job(place, "github", &args);
        ended.assert_code(1);
        assert!(ended.stderr.is_empty(), "{ended:?}");
        assert_eq!(assert_own_commands(&ended).len(), 1);
        let ended = job(place, "gitlab", &args);
        assert_eq!(gitlab(&ended.stdout).len(), 2, "{ended:?}");
        assert_eq!(gitlab(&ended.stderr), []);
    }
    // Split over pieces.
    let line =
        "for c in s e c t i o n _ s t a r t : 1 : x; do printf $c; sleep 0.01; done; printf '\\r'";
    let root = commands.provided.args();
    let root: Vec<_> = root.iter().map(String::as_str).collect();
    let args = [&["exec"], &root[..], &["--", "sh", "-c", line]].concat();
    let ended = job(place, "gitlab", &args);
    assert_eq!(gitlab(&ended.stdout).len(), 2, "{ended:?}");
    assert!(ended.stdout.contains("section-start:1:x"));
}

#[test]
fn annotation_of_a_failed_command_has_its_last_lines_on_stderr() {
    let commands = Commands::new();
    let root = commands.provided.args();
    let root: Vec<_> = root.iter().map(String::as_str).collect();
    let line =
        "i=0; while [ $i -lt 30 ]; do echo \"line $i\" >&2; i=$((i+1)); done; echo out; exit 3";
    for flags in [&[][..], &["--json"]] {
        let args = [&["exec"], flags, &root[..], &["--", "sh", "-c", line]].concat();
        let ended = job(&commands.place, "github", &args);
        ended.assert_code(3);
        let errors = assert_own_commands(&ended);
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(
            error.data.starts_with("exit code 3") && error.data.ends_with("line 29"),
            "{error:?}"
        );
        assert!(error.data.contains("line 20") && !error.data.contains("line 19"), "{error:?}");
        assert!(!error.data.contains("out"), "{error:?}");
    }
}

#[test]
fn no_text_of_a_script_is_a_section_mark_on_gitlab() {
    let place = Fixture::new();
    let scripts = scripts(&place);
    let scripts: Vec<_> = scripts.iter().map(String::as_str).collect();
    for flags in [&[][..], &["--json"], &["--result-only"]] {
        let ended = job(&place, "gitlab", &[&["run", "-j", "4"], flags, &scripts].concat());
        ended.assert_code(1);
        let marks: Vec<_> = [&ended.stdout, &ended.stderr].map(|log| gitlab(log)).concat();
        let [(start, one), (end, other)] = &marks[..] else { panic!("{marks:?}") };
        assert_eq!((start.as_str(), end.as_str()), ("start", "end"));
        assert!(one == other && one.starts_with("sandboxctl_"), "{marks:?}");
    }
}

/// The outputs in a runner's file: `name<<DELIMITER`, lines, `DELIMITER`.
fn outputs(text: &str) -> BTreeMap<String, String> {
    let mut outputs = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let (name, delimiter) = line.split_once("<<").unwrap();
        let value: Vec<_> = lines.by_ref().take_while(|line| *line != delimiter).collect();
        assert!(outputs.insert(name.to_owned(), value.join("\n")).is_none(), "{name} twice");
    }
    outputs
}

#[test]
fn summary_and_outputs_are_written_for_the_runner() {
    let place = Fixture::new();
    place.write("ok.luau", "return { x = '\\nEOF\\nresult<<y\\nstatus=forged' }");
    job(&place, "github", &["run", "ok.luau"]).assert_code(0);
    let reported = outputs(&place.read("outputs"));
    assert_eq!(reported.keys().collect::<Vec<_>>(), ["exit-code", "result", "status"]);
    assert_eq!((reported["status"].as_str(), reported["exit-code"].as_str()), ("ok", "0"));
    assert!(reported["result"].contains("status=forged"));
    assert!(place.read("summary.md").starts_with("## sandboxctl: passed"));

    // A second one in the same step appends.
    place.write("bad.luau", "error('no')");
    job(&place, "github", &["run", "bad.luau"]).assert_code(1);
    assert_eq!(place.read("summary.md").matches("## sandboxctl").count(), 2);

    let ended = job(&place, "github", &["run", "ok.luau", "--io-dir", "."]);
    ended.assert_code(2);
    let log = ended.stdout + &ended.stderr;
    assert!(log.contains("GITHUB_STEP_SUMMARY") && log.contains("is in the io dir"), "{log}");

    // Nothing of a runner without one, or if it is turned off.
    let mut command = place.command(["run", "ok.luau", "--ci", "none"]);
    command.env("GITHUB_ACTIONS", "true");
    assert!(!finish(command).stdout.contains("::"));
}

/// The lines of a pipeline that run sandboxctl.
fn shell_lines(pipeline: &str) -> Vec<&str> {
    let lines = pipeline.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("- ").unwrap_or(line);
        line.strip_prefix("run: ").unwrap_or(line)
    });
    lines.filter(|line| line.starts_with("sandboxctl ")).collect()
}

/// A shell in a place, with sandboxctl in its path.
fn shell(place: &Fixture, line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]);
    place.equip(&mut shell);
    let folder = sandboxctl().parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [folder].into_iter().chain(std::env::split_paths(&path));
    shell.env("PATH", std::env::join_paths(path).unwrap());
    shell
}

#[test]
fn example_pipelines_run_as_they_are_written() {
    for pipeline in files_below(&workspace().join("examples/ci")) {
        let place = Fixture::new();
        for name in ["report.luau", "data/sales.csv"] {
            if let Ok(content) = std::fs::read(workspace().join("examples").join(name)) {
                place.write(&format!("examples/{name}"), content);
            }
        }
        // As the secrets of a CI have it.
        place.sandboxctl(["keys", "new", "release.key"]).assert_code(0);
        let text = std::fs::read_to_string(&pipeline).unwrap();
        let lines = shell_lines(&text);
        assert!(lines.len() >= 3, "{}", pipeline.display());
        for line in lines {
            let ended = finish(shell(&place, line));
            assert_eq!(ended.code, 0, "{}: {line}\n{ended:#?}", pipeline.display());
        }
    }
}

#[test]
fn step_passes_its_lines_on_as_they_are() {
    let place = Fixture::new();
    place.write("a b.luau", "print(args.x)");
    let mut step = shell(&place, workspace().join("ci/step").to_str().unwrap());
    step.env("STEP_ARGS", "a b.luau\r\n--arg\nx=$(touch pwned)`touch pwned` \"' *\n\n");
    let ended = finish(step);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "$(touch pwned)`touch pwned` \"' *\n");
    assert!(!place.path("pwned").exists());
    let mut step = shell(&place, workspace().join("ci/step").to_str().unwrap());
    step.env("STEP_COMMAND", "gc; true").env("STEP_ARGS", "x");
    finish(step).assert_code(2);

    place.write("bad.luau", "local =");
    let hook = workspace().join("ci/check-scripts");
    place.write("-c", "return 1");
    finish(shell(&place, &format!("{} -c", hook.display()))).assert_code(0);
    let line = format!("{} 'a b.luau' bad.luau", hook.display());
    finish(shell(&place, &line)).assert_code(1).assert_stderr_has("bad.luau");
    finish(shell(&place, &format!("{} 'a b.luau'", hook.display()))).assert_code(0);
}

#[test]
fn doctor_says_what_a_job_lacks_and_ends_with_a_verdict() {
    let place = Fixture::new();
    let ended = job(&place, "github", &["doctor", "--ci"]);
    ended.assert_code(0);
    assert!(ended.stdout.contains("runner"), "{}", ended.stdout);
    let verdict = ended.stdout.lines().last().unwrap();
    assert!(verdict.starts_with("ready"), "{}", ended.stdout);
    let mut command = place.command(["doctor", "--ci"]);
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_OUTPUT", place.path("no/such/file"));
    let ended = finish(command);
    ended.assert_code(125);
    let verdict = ended.stdout.lines().last().unwrap();
    assert!(verdict.starts_with("not ready: see ") && verdict.contains("outputs"), "{verdict}");
}

#[test]
fn no_file_that_the_runner_reads_is_in_the_io_dir() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('env', 'LD_PRELOAD=/x')");
    place.write("io/env", "");
    for name in
        ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"]
    {
        let mut command = place.command(["run", "script.luau", "--io-dir", "io"]);
        command.env("GITHUB_ACTIONS", "true").env(name, place.path("io/env"));
        let ended = finish(command);
        assert!(ended.assert_code(2).stdout.contains(&format!("error: {name}: ")), "{ended:?}");
        assert_eq!(place.read("io/env"), "");
    }
}

#[test]
fn no_front_end_mounts_a_file_that_the_runner_reads() {
    let place = Fixture::new();
    place.write("io/kept", "");
    place.write("script.luau", "fs.write('env', 'LD_PRELOAD=/x')");
    let with = |args: &[&str]| {
        let mut command = place.command(args);
        // It does not exist yet: the guest would make it.
        command.env("GITHUB_ACTIONS", "true").env("GITHUB_ENV", place.path("io/env"));
        finish(command)
    };
    for mode in ["none", "gitlab"] {
        let ended = with(&["run", "--ci", mode, "script.luau", "--io-dir", "io"]);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert_ne!(ended.code, 0, "{said}");
        assert!(said.contains("io/env is in "), "{said}");
    }
    let ended = with(&["fs", "write", "env", "--io-dir", "io"]);
    assert!(ended.stderr.contains("io/env is in it"), "{ended:#?}");
    let init = json!({"containerId": "c", "projectOutPath": place.path("io")}).to_string();
    let call = json!({"containerId": "c", "path": "env", "content": "x"}).to_string();
    let ended = with(&["tool", "sandbox_write_file", "--init", &init, "--input", &call]);
    assert!(ended.stdout.contains("io/env is in it"), "{ended:#?}");
    assert!(!place.path("io/env").exists());
    // A stage is no better: what a run commits is in the io dir.
    let ended = with(&["run", "script.luau", "--io-dir", "io", "--commit", "always"]);
    assert_ne!(ended.code, 0, "{ended:#?}");
    assert!(!place.path("io/env").exists());
}

#[test]
fn runners_file_is_written_through_no_link_of_a_guest() {
    let place = Fixture::new();
    place.write("victim", "before\n");
    place.write("script.luau", "return 1");
    place.write("io/kept", "");
    std::os::unix::fs::symlink("../victim", place.path("io/out")).unwrap();
    let with = |output: &str, args: &[&str]| {
        let mut command = place.command(args);
        command.env("GITHUB_ACTIONS", "true").env("GITHUB_OUTPUT", place.path(output));
        finish(command)
    };
    let run = ["run", "script.luau", "--io-dir", "io"];
    with("io/out", &run).assert_code(2);
    // Errors before it is known to be in the io dir.
    for args in [&["--bogus"][..], &["missing.luau"], &["--report", "json=io/x"]] {
        assert_ne!(with("io/out", &[&run, args].concat()).code, 0);
    }
    // Below what does not exist yet, and through a link that what runs may change.
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", place.path("io/link")).unwrap();
    for output in ["io/no/such", "io/link/out"] {
        with(output, &run).assert_code(2);
    }
    with("new/out", &["run", "script.luau", "--io-dir", "new"]).assert_code(2);
    let artifacts = ["--artifact", "**", "--artifacts-dir", "made"];
    with("made/out", &[&run[..2], &artifacts].concat()).assert_code(2);
    assert_eq!(place.read("victim"), "before\n");
    assert!(!place.path("made").exists() && !place.path("new/out").exists());
    // A file elsewhere whose last line has no end.
    place.write("outputs", "a=1");
    with("outputs", &run).assert_code(0);
    assert!(place.read("outputs").starts_with("a=1\nstatus<<"), "{}", place.read("outputs"));
}

#[test]
fn audit_that_is_the_log_of_a_job_is_refused() {
    let place = Fixture::new();
    place.write("sandbox-files/kept", "");
    let name = "##[error]x";
    for args in [
        &["run", "--json", "--audit", "/dev/stdout", "-c", "fs.write('##[error]x', '1')"][..],
        &["fs", "mkdir", name, "--audit", "/dev/stdout"],
    ] {
        let ended = job(&place, "github", args);
        assert!(!ended.stdout.contains("##["), "{ended:#?}");
        ended.assert_code(2);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(said.contains("is the log of the job"), "{ended:#?}");
    }
    let ended = job(&place, "github", &["-vvv", "fs", "read", name]);
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("##["), "{ended:#?}");
}

#[test]
fn markers_do_not_count_in_a_stopped_log() {
    let place = Fixture::new();
    let code = "print('##[endgroup]') print('##[gr', 'oup]x') error('##[error]y')";
    let ended = job(&place, "github", &["run", "-c", code]);
    ended.assert_code(1);
    assert!(!ended.stdout.contains("##["), "{ended:#?}");
    assert!(ended.stdout.contains("## [endgroup]"), "{ended:#?}");
}

#[test]
fn marker_split_over_two_streams_does_not_count_on_gitlab() {
    let commands = Commands::new();
    let script = "printf sections; sleep 0.2; printf '_start:1:x\\r' >&2; \
                  printf sect >&2; sleep 0.2; printf 'ion_end:1:x\\r'";
    let root = commands.provided.args();
    let mut args = vec!["exec"];
    args.extend(root.iter().map(String::as_str));
    args.extend(["--", "sh", "-c", script]);
    let mut command = commands.place.command(&args);
    command.env("GITLAB_CI", "true");
    // As a runner does: one pipe for both.
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut log = String::new();
    std::io::Read::read_to_string(&mut reader, &mut log).unwrap();
    assert!(child.wait().unwrap().success(), "{log}");
    assert_eq!(gitlab(&log).len(), 2, "{log:?}");
}

#[test]
fn commands_that_quote_files_of_guests_do_so_in_the_group() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write(args.name, 'x') return math.random(1e9)");
    place.write("broken.luau", "local x = '##[error]forged section_start:1:a\r\u{1b}[0K\n");
    for (number, name) in
        ["a##[error]b", "::error::c", "section_start:1:d\r\u{1b}[0K"].into_iter().enumerate()
    {
        let (out, receipt) = (format!("out{number}"), format!("receipt{number}.json"));
        let arg = format!("name={name}");
        let run = ["run", "script.luau", "--io-dir", &format!("io{number}"), "--artifact", "*"];
        let flags = ["--artifacts-dir", &out, "--receipt", &receipt, "--arg", &arg];
        place.sandboxctl([&run[..], &flags].concat()).assert_code(0);
        place.write(&format!("{out}/{name}"), "another");
        let verify = ["receipt", "verify", &receipt, "--artifacts", &out];
        let replay = ["replay", &receipt, "--script", "script.luau", "--arg", &arg];
        let artifacts = ["artifacts", "verify", &out];
        for args in [&verify[..], &replay, &artifacts, &["check", "broken.luau"]] {
            for flags in [&[][..], &["--json"]] {
                let args = [args, flags].concat();
                let ended = job(&place, "github", &args);
                assert_own_commands(ended.assert_code(1));
                let ended = job(&place, "gitlab", &args);
                let sections = gitlab(&ended.stdout).len() + gitlab(&ended.stderr).len();
                assert_eq!(sections, 2, "{ended:?}");
            }
        }
        // Manifests of changes on stdout.
        let changes =
            ["run", "script.luau", "--io-dir", "changed", "--changes", "-", "--arg", &arg];
        for flags in [&[][..], &["--result-only"]] {
            let args = [&changes[..], flags].concat();
            assert_own_commands(job(&place, "github", &args).assert_code(0));
            let ended = job(&place, "gitlab", &args);
            let sections = gitlab(&ended.stdout).len() + gitlab(&ended.stderr).len();
            assert_eq!(sections, 2, "{ended:?}");
        }
    }
    // Errors of an invalid command line, which come before everything.
    for command in ["run", "check"] {
        let args = [command, "--x##[error]a section_start:1:b\r"];
        assert_own_commands(job(&place, "github", &args).assert_code(2));
        let ended = job(&place, "gitlab", &args);
        let sections = gitlab(&ended.stdout).len() + gitlab(&ended.stderr).len();
        assert_eq!(sections, if command == "run" { 2 } else { 0 }, "{ended:?}");
    }
}

#[test]
fn files_of_a_guests_text_are_not_the_log_of_the_job() {
    let place = Fixture::new();
    place.write("script.luau", "return 1");
    for flags in [
        &["--report", "json=/dev/stdout"][..],
        &["--report", "ndjson=/dev/stderr"],
        &["--receipt", "/dev/stdout"],
        &["--changes", "/dev/stdout"],
    ] {
        let ended = job(&place, "gitlab", &[&["run", "script.luau"], flags].concat());
        let text = format!("{}{}", ended.stdout, ended.stderr);
        assert!(ended.code == 2 && text.contains("is the log of the job"), "{ended:?}");
    }
}

#[test]
fn runner_that_is_named_reads_files_too() {
    let place = Fixture::new();
    place.write("script.luau", "print('::error::forged ##[error]x section_start:1:x')");
    let log_of = |flags: &[&str]| {
        let mut command = place.command([&["run", "script.luau"], flags].concat());
        command.env("GITLAB_CI", "true");
        let log = std::fs::File::create(place.path("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        assert!(command.status().unwrap().success());
        place.read("log")
    };
    let executed = github(&log_of(&["--ci", "github"]));
    let names: Vec<_> = executed.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names[..2], ["group", "stop-commands"]);
    assert_eq!(names[2..], [executed[1].data.as_str(), "endgroup"]);
    assert_eq!(gitlab(&log_of(&["--ci", "gitlab"])).len(), 2);
    // The variables do not say who reads a file.
    assert_eq!(log_of(&[]), "::error::forged ##[error]x section_start:1:x\n");
}

#[test]
fn error_of_our_side_has_an_annotation_and_is_in_the_summary() {
    for args in [&["run", "missing.luau"][..], &["run", "--no-such-flag", "x"], &["exec"]] {
        let place = Fixture::new();
        let errors = assert_own_commands(job(&place, "github", args).assert_code(2));
        let [error] = &errors[..] else { panic!("{args:?}: {errors:?}") };
        assert_eq!(error.properties["title"], "sandboxctl: usage");
        let summary = place.read("summary.md");
        assert!(summary.starts_with("## sandboxctl: failed"), "{summary}");
        assert!(summary.contains(error.data.as_str()), "{summary}\n{error:?}");
        assert_eq!(outputs(&place.read("outputs"))["exit-code"], "2");
    }
    // Once, where there are results.
    let place = Fixture::new();
    job(&place, "github", &["run", "-c", "error('no')"]).assert_code(1);
    assert_eq!(place.read("summary.md").matches("## sandboxctl").count(), 1);
}

#[test]
fn names_of_files_in_lists_are_not_commands() {
    let place = Fixture::new();
    for name in ["a##[error]b", "::error::c", "section_start:1:d\r"] {
        place.write(&format!("io/{name}"), "##[error]content");
    }
    for runner in ["github", "gitlab"] {
        for args in [
            &["ls"][..],
            &["ls", "--long"],
            &["ls", "--json"],
            &["glob", "*"],
            &["grep", "content"],
            &["stat", "a##[error]b"],
            &["rm", "no##[error]such"],
        ] {
            let args = [&["fs", "--io-dir", "io"], args].concat();
            let ended = job(&place, runner, &args);
            for log in [&ended.stdout, &ended.stderr] {
                assert_eq!((github(log), gitlab(log)), (Vec::new(), Vec::new()), "{ended:?}");
            }
        }
        let ended = job(&place, runner, &["fs", "--io-dir", "io", "read", "a##[error]b"]);
        assert_eq!(ended.assert_code(0).stdout, "##[error]content");
    }
}
