pub mod named;

use super::parse::command;
use super::*;
use crate::input::InputArgument;
use sandbox_api::LimitKey;

/// The help of every command and subcommand, as it is printed.
fn every_help() -> Vec<(String, String)> {
    fn collect(command: &mut clap::Command, path: &str, pages: &mut Vec<(String, String)>) {
        pages.push((path.to_owned(), command.render_long_help().to_string()));
        for command in command.get_subcommands_mut() {
            let path = format!("{path} {}", command.get_name());
            collect(command, &path, pages);
        }
    }
    let mut command = command().term_width(100);
    command.build();
    let mut pages = Vec::new();
    collect(&mut command, "sandboxctl", &mut pages);
    pages.retain(|(path, _)| !path.contains(" help"));
    pages
}

#[test]
fn the_definition_holds_together() {
    command().debug_assert();
}

#[test]
fn help_is_as_reviewed() {
    let mut text = String::new();
    for (path, help) in every_help() {
        // What every command takes is shown once, and what every command of `fs` does.
        let shared = match path.strip_prefix("sandboxctl fs ") {
            Some(_) => "Files:",
            None => "Global options:",
        };
        let help = match help.split_once(shared) {
            Some((own, rest)) if path != "sandboxctl" => {
                own.to_owned() + rest.find("Examples:").map_or("", |at| &rest[at..])
            }
            _ => help,
        };
        text.push_str(&format!("$ {path} --help\n{}\n\n", help.trim_end()));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn every_command_shows_an_example() {
    for (path, help) in every_help() {
        // A group of commands has its examples in them.
        let groups = [
            "artifacts", "cluster", "database", "executions", "image", "config", "keys", "local",
            "receipt", "sandbox", "server", "token", "mcp upstream",
        ];
        if !groups.map(|group| format!("sandboxctl {group}")).contains(&path) {
            assert!(help.contains("Examples:\n  "), "{path}");
            assert!(help.contains(&path), "{path}: its example is of something else");
        }
    }
}

#[test]
fn every_flag_of_the_table_of_keys_exists() {
    let mut definition = command();
    definition.build();
    for (key, flag) in Key::all().filter_map(|key| Some((key, key.flag()?))) {
        let command = match key.name() {
            name if name.starts_with("server.") => "serve",
            // A single run has no use for sandboxes that are started ahead.
            name if name.starts_with("pool.") => "tools",
            name if name.starts_with("mcp.") => "mcp",
            _ => "run",
        };
        let arguments = definition.find_subcommand(command).unwrap();
        let name = flag.trim_start_matches("--");
        let has_it = arguments.get_arguments().any(|arg| arg.get_long() == Some(name));
        assert!(has_it, "{command} {flag}");
    }
}

#[test]
fn stdin_is_an_input_and_a_script() {
    let parse =
        |args: &[&str]| Cli::read(["sandboxctl", "run"].iter().chain(args)).map(|cli| cli.command);
    let Ok(Command::Run(args)) = parse(&["x.luau", "--in", "-:words", "--in", "y"]) else {
        panic!("it is a command line")
    };
    let inputs = ["-:words", "y"].map(|text| InputArgument::parse(text.as_ref()).unwrap());
    assert_eq!(args.sandbox.files.inputs, inputs);
    assert!(parse(&["-"]).is_ok());
    assert!(parse(&["x.luau", "--in", "--json"]).is_err(), "a flag is no input");
}

#[test]
fn mistakes_name_their_flag() {
    let refused = |args: &[&str]| {
        let all = ["sandboxctl", "run", "x.luau"].iter().chain(args);
        Cli::read(all).unwrap_err().to_string()
    };
    let cases: [&[&str]; 20] = [
        &["--volume", "/srv"],
        &["--timeout", "30x"],
        &["--timeout", "-5s"],
        &["--memory", "-1MiB"],
        &["--cpus", "0.0001"],
        &["--pids", "-1"],
        &["--io-dir", ""],
        &["--in", ""],
        &["--args-file", ""],
        &["--workdir", ""],
        &["--config", ""],
        &["--memory", "lots"],
        &["--cpus", "0"],
        &["--pids", "1"],
        &["--io-errors", "ignore"],
        &["--arg", "novalue"],
        &["--in", "x:.."],
        &["--user", "me"],
        &["--user", "4294967295:0"],
        &["--user", "0:65535"],
    ];
    let refusals = cases.map(refused).join("\n");
    // The processors of this machine.
    let most = LimitKey::Cpus.default_ceiling();
    let refusals = refusals.replace(&format!("is at most {most},"), "is at most N,");
    insta::assert_snapshot!(refusals);
}

#[test]
fn non_utf8_argument_names_its_flag_unless_it_is_a_path() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let parse = |flag: &str, value: &[u8]| {
        let args = ["sandboxctl", "run", "x.luau", flag].map(OsString::from);
        Cli::read(args.into_iter().chain([OsString::from_vec(value.to_vec())]))
    };
    for flag in ["--arg", "--timeout", "--engine", "--user", "--mount-path", "--host"] {
        let error = parse(flag, b"a\xff=b").unwrap_err().to_string();
        assert!(error.contains(&format!("'{flag} ")), "{error}");
        assert!(error.contains("not UTF-8"), "{error}");
    }
    for flag in ["--io-dir", "--args-file", "--config"] {
        assert!(parse(flag, b"a\xff").is_ok(), "{flag}");
    }
    assert!(parse("--in", b"a\xff:name").is_ok());
    let error = parse("--in", b"a\xff").unwrap_err().to_string();
    assert!(error.contains("'--in "), "{error}");
}
