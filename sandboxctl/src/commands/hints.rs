//! What a failure suggests that only the command line knows: what the user meant instead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use rustix::fs::{FileType, fstat, tell};
use rustix::io::ioctl_fionread;
use sandbox_api::service::SandboxView;
use sandbox_api::{ErrorKind, Input, Language, Secrets};
use sandbox_controller::{Error as ControllerError, Patterns};

use crate::cli::exec::CommandLine;
use crate::error::Error;
use crate::input::ScriptSource;
use crate::output::Output;

/// How stdin is passed on.
pub const STDIN_OF_RUN: &str = "--in -:NAME shows it to a script at /in/NAME";
pub const STDIN_OF_EXEC: &str = "-i passes it to the command";
/// Bytes of a script that are looked at.
const HEAD: usize = 4096;

/// How to run a script that does not compile, if it looks like another language.
pub fn other_language(name: &str, source: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&source[..source.len().min(HEAD)]);
    let is_luau = name.ends_with(".luau") || name.ends_with(".lua");
    let by_text = || Language::of_text(&text).filter(|_| !is_luau || text.starts_with("#!"));
    let language = Language::of_file(name).filter(|_| !text.starts_with("#!")).or_else(by_text)?;
    Some(format!("it looks like {}, not Luau: {}", language.name, line_for(name, language)))
}

/// The command line that runs a file in another language.
fn line_for(name: &str, Language { image, program, .. }: &Language) -> String {
    let file = Path::new(name);
    let line = match Input::default_name(file).filter(|_| file.is_file()) {
        Some(own) => format!("--in {name} {image} {program} /in/{own}"),
        None if name == "-c" => format!("{image} {program} -c CODE"),
        None => format!("--in FILE {image} {program} /in/FILE"),
    };
    format!("sandboxctl exec {line}")
}

/// Refuses a script whose name says that it is in another language: it may compile as Luau, and do
/// something else.
///
/// # Errors
///
/// The command line that runs it.
pub fn check_language(script: &ScriptSource) -> Result<(), Error> {
    let name = &script.name;
    let language = Language::of_file(name).filter(|_| script.is_file);
    let Some(language) = language else { return Ok(()) };
    let why = format!("{name} is {} by its name, and scripts are Luau", language.name);
    Err(Error::usage("SCRIPT", why).with_hint(line_for(name, language)))
}

/// The same of all scripts of a command line. Of several each has the name of one: a pattern for
/// `--in` that the shell expands adds data.
///
/// # Errors
///
/// What to type instead.
pub fn check_languages(scripts: &[ScriptSource]) -> Result<(), Error> {
    scripts.iter().try_for_each(check_language)?;
    let is_luau = |name: &str| {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        extension.is_none_or(|it| matches!(it, "luau" | "lua"))
    };
    match scripts.iter().find(|it| scripts.len() > 1 && it.is_file && !is_luau(&it.name)) {
        Some(other) => {
            Err(Error::usage("SCRIPT", format!("{} is not a script by its name", other.name))
                .with_hint(
                    "quote a pattern for --in, so that the shell passes it on: --in 'data/*.csv'",
                ))
        }
        None => Ok(()),
    }
}

/// A note on stdin that has something to read, and was not passed on. `how` passes it on.
pub fn unread_stdin(output: &Output, how: &str) {
    let stdin = rustix::stdio::stdin();
    let has_more = fstat(stdin).is_ok_and(|found| match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => tell(stdin).is_ok_and(|at| at < found.st_size.cast_unsigned()),
        FileType::Fifo | FileType::Socket => ioctl_fionread(stdin).is_ok_and(|bytes| bytes > 0),
        _ => false,
    });
    if has_more {
        output.notice(&format!("stdin has content that was not passed on: {how}"));
    }
}

/// A command that was not found: it is a line for the shell, or a file of the host.
pub fn not_found(line: &CommandLine, kind: ErrorKind) -> Option<String> {
    let CommandLine::Program(program, args) = line else { return None };
    if kind != ErrorKind::CommandNotFound {
        return None;
    }
    let word = program.to_str()?;
    if args.is_empty() && word.contains(char::is_whitespace) {
        let quoted = word.replace('\'', r"'\''");
        return Some(format!("a line for the shell is --shell '{quoted}'"));
    }
    let is_path = word.contains(['/', '.']);
    (is_path && Path::new(word).is_file()).then(|| show(word)).flatten()
}

/// What runs, as hints quote it: without the secrets that its caller put among its words.
pub fn shown_line(line: &CommandLine, secrets: &Secrets) -> CommandLine {
    let patterns = Patterns::of([secrets]);
    let shown = |word: &OsString| OsString::from_vec(patterns.bytes(word.as_bytes()).into_owned());
    match line {
        CommandLine::Shell(line) => CommandLine::Shell(shown(line)),
        CommandLine::Program(program, args) => {
            CommandLine::Program(shown(program), args.iter().map(shown).collect())
        }
    }
}

/// A command that failed, one of whose arguments is a file of the host that it does not see.
pub fn file_left_outside(line: &CommandLine, io_dir: Option<&Path>) -> Option<String> {
    let CommandLine::Program(_, args) = line else { return None };
    let words = args.iter().filter_map(|arg| arg.to_str());
    let mut files = words.filter(|word| {
        let path = Path::new(word);
        let is_shown = path.is_relative() && io_dir.is_some_and(|dir| dir.join(path).exists());
        !word.starts_with("/in/") && path.is_file() && !is_shown
    });
    files.next().and_then(show)
}

fn show(file: &str) -> Option<String> {
    let name = Input::default_name(Path::new(file))?;
    Some(format!("{file} is a file of this machine: --in {file} shows it at /in/{name}"))
}

/// An image that cannot be used, where the first word of the command was read as its name. It may be a sandbox of
/// the local service.
pub fn word_as_image(source: ControllerError, word: &str, sandbox: Option<&SandboxView>) -> Error {
    let path = Path::new(word);
    let archive = || path.is_file().then_some("--image-archive");
    let flag = path.is_dir().then_some("--rootfs").or_else(archive);
    let hint = match (sandbox, flag) {
        (Some(_), _) => format!(
            "'{word}' is a sandbox: `sandboxctl sandbox exec {word} COMMAND…` runs in it, and \
             `sandboxctl sandbox shell {word}` opens a shell"
        ),
        (None, Some(flag)) => format!("{word} is here: {flag} {word} -- COMMAND… runs in it"),
        (None, None) => {
            let more = source.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            format!("'{word}' is read as the image: sandboxctl exec IMAGE COMMAND…{more}")
        }
    };
    Error::Argument { source: source.into(), hint }
}

/// What a service refused for the image of a command: that it names one, its first word, or none.
pub fn image_of_service(error: Error, word: Option<&str>) -> Error {
    let Error::Remote(refusal) = error else { return error };
    let hint = match (refusal.member(), word) {
        (Some("image"), Some(word)) => format!(
            "'{word}' is read as the image: sandboxctl exec -- {word} … runs it in the image that \
             the service has for all, if it has one"
        ),
        (Some("command"), None) => "sandboxctl exec IMAGE -- COMMAND… names one".to_owned(),
        _ => return refusal.into(),
    };
    refusal.with_hint_before(&hint).into()
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use sandbox_api::SecretValue;

    use super::*;
    use crate::remote;

    #[test]
    fn another_language_is_known_by_name_first_line_or_beginning() {
        for (name, text, language) in [
            ("a.py", "", "Python"),
            ("a", "#!/usr/bin/env python3\n", "Python"),
            ("a.txt", "# a comment\n\nimport os\n", "Python"),
            ("a.mjs", "", "JavaScript"),
            ("stdin", "#!/bin/bash\n", "a shell script"),
            ("stdin", "package main\n", "Go"),
        ] {
            let hint = other_language(name, text.as_bytes()).unwrap_or_default();
            assert!(hint.contains(&format!("looks like {language},")), "{name} {text:?}: {hint}");
        }
        for (name, text) in
            [("a.luau", "import x"), ("a", "local x ="), ("a.lua", ""), ("x", "#!/usr/bin/luau\n")]
        {
            assert_eq!(other_language(name, text.as_bytes()), None, "{name} {text:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.py");
        std::fs::write(&file, "import os").unwrap();
        let hint = other_language(file.to_str().unwrap(), b"import os").unwrap();
        let line = format!("exec --in {} python:3.13-slim python3 /in/a.py", file.display());
        assert!(hint.ends_with(&line), "{hint}");
    }

    #[test]
    fn script_that_is_named_as_another_language_is_refused_with_the_line_that_runs_it() {
        let script = |name: &str, is_file| {
            let script = ScriptSource { source: b"print(5)".to_vec(), name: name.into(), is_file };
            check_language(&script).map_err(|error| error.to_text())
        };
        for (name, program) in [("a.py", "python3"), ("b/c.mjs", "node"), ("d.sh", "sh")] {
            let refused = script(name, true).unwrap_err();
            assert!(refused.starts_with(&format!("SCRIPT: {name} is ")), "{refused}");
            assert!(refused.contains("\nhint: sandboxctl exec --in "), "{refused}");
            assert!(refused.contains(&format!(" {program} /in/")), "{refused}");
        }
        for name in ["a.luau", "a.lua", "a", "a.txt", "py"] {
            assert_eq!(script(name, true), Ok(()), "{name}");
        }
        assert_eq!(script("a.py", false), Ok(()), "it is no file");
    }

    #[test]
    fn data_beside_a_script_is_refused_with_the_pattern_in_quotes() {
        let script = |name: &str| ScriptSource {
            source: b"return 1".to_vec(),
            name: name.into(),
            is_file: true,
        };
        let refused = check_languages(&[script("a.luau"), script("b.csv")]).unwrap_err();
        assert!(refused.to_text().contains("b.csv is not a script by its name"), "{refused:?}");
        assert!(refused.to_text().contains("--in 'data/*.csv'"), "{refused:?}");
        for scripts in [vec![script("b.csv")], vec![script("a.luau"), script("b.lua"), script("c")]]
        {
            assert!(check_languages(&scripts).is_ok());
        }
    }

    #[test]
    fn image_that_a_service_refuses_may_be_meant_as_the_command() {
        let refused = |member: &str, word| {
            let body = format!(
                r##"{{"detail": "no", "hint": "ask", "errors": [{{"pointer": "#/{member}"}}]}}"##
            );
            let error = remote::Error::refused("s", StatusCode::FORBIDDEN, body.as_bytes());
            image_of_service(error.into(), word).hint().unwrap_or_default()
        };
        let hint = refused("image", Some("uname"));
        assert!(
            hint.starts_with("'uname' is read as the image: sandboxctl exec -- uname"),
            "{hint}"
        );
        assert!(hint.ends_with("; ask"), "{hint}");
        assert!(refused("command", None).starts_with("sandboxctl exec IMAGE -- COMMAND…"));
        for (member, word) in [("image", None), ("command", Some("uname")), ("limits", None)] {
            assert_eq!(refused(member, word), "ask", "{member} {word:?}");
        }
    }

    #[test]
    fn files_of_the_host_are_shown_by_a_flag() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.csv");
        std::fs::write(&file, "x").unwrap();
        let file = file.to_str().unwrap();
        let program = |program: &str, args: &[&str]| {
            CommandLine::Program(program.into(), args.iter().map(Into::into).collect())
        };
        let shown =
            format!("{file} is a file of this machine: --in {file} shows it at /in/data.csv");
        let kind = ErrorKind::CommandNotFound;
        assert_eq!(not_found(&program(file, &[]), kind).as_ref(), Some(&shown));
        assert_eq!(not_found(&program(file, &[]), ErrorKind::Busy), None);
        let line = not_found(&program("ls 'a b'", &[]), kind).unwrap();
        assert_eq!(line, r"a line for the shell is --shell 'ls '\''a b'\'''");
        assert_eq!(not_found(&program("ls", &[]), kind), None);
        assert_eq!(file_left_outside(&program("cat", &["-n", file]), None), Some(shown));
        assert_eq!(file_left_outside(&program("cat", &["/in/data.csv", "none"]), None), None);
        // A secret in a name or a line is in no hint.
        let mut secrets = Secrets::new();
        secrets.add("A", SecretValue::new("data.csv")).unwrap();
        let quoted = |line| not_found(&shown_line(&line, &secrets), kind);
        assert_eq!(quoted(program(file, &[])), None);
        let line = quoted(program("cat data.csv", &[])).unwrap();
        assert_eq!(line, "a line for the shell is --shell 'cat ***'");
    }
}
