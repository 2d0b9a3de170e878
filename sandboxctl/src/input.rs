//! The input of a script: its text, its arguments, its input mounts.

mod globs;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use sandbox_api::{Input, InputSource, SandboxSpec, Script};
use sandbox_protocol::limits::{MAX_ARGS_BYTES, MAX_SOURCE_BYTES, size_text};
use sandbox_protocol::path::INPUTS;
use sandbox_protocol::without_bom;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::Error;
pub use crate::render::reason;

/// The name of stdin in place of a file.
const STDIN: &str = "-";

/// Most bytes that are read from stdin as an input: they are held in memory.
const MAX_STDIN_INPUT: u64 = 256 << 20;

/// `--arg KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl FromStr for Argument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("", _)) => Err("there is no key before the '='".to_owned()),
            Some((key, value)) => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            None => Err("expected KEY=VALUE".to_owned()),
        }
    }
}

/// JSON: given directly, in a file, or on stdin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonArgument {
    /// Given directly.
    Typed(String),
    /// `@FILE`.
    File(PathBuf),
    /// `-`.
    Stdin,
}

impl FromStr for JsonArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some("") => Err("there is no file after the '@'".to_owned()),
            Some(file) => Ok(Self::File(file.into())),
            None if text == STDIN => Ok(Self::Stdin),
            None => Ok(Self::Typed(text.to_owned())),
        }
    }
}

impl JsonArgument {
    /// Reads it, up to `most` bytes.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not JSON. `flag` is the flag that gave it.
    pub fn read(&self, flag: &str, most: usize) -> Result<Box<RawValue>, Error> {
        let (what, read) = match self {
            Self::Typed(text) => (flag.to_owned(), read_whole(text.as_bytes(), most)),
            Self::Stdin => (format!("{flag} -"), read_whole(io::stdin().lock(), most)),
            Self::File(file) => (format!("{flag} @{}", file.display()), read_file(file, most)),
        };
        let bytes = read.map_err(|error| Error::usage(&*what, reason(&error)))?;
        serde_json::from_slice(without_bom(&bytes))
            .map_err(|error| Error::usage(what, format!("it is not JSON: {error}")))
    }
}

/// `--in SRC[:NAME]`, or a read-only `--volume SRC:DST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputArgument {
    source: PathBuf,
    /// Links of the source that are to be followed are resolved: it is a match of a pattern.
    is_resolved: bool,
    /// Its name below `/in`, or an absolute path.
    name: String,
    /// Its name was given, and is not that of its source.
    is_named: bool,
    /// The flag and its value.
    written: String,
}

impl InputArgument {
    /// The last colon separates source and name, unless a `/` follows it: then it is part of a
    /// directory's name.
    ///
    /// # Errors
    ///
    /// Why it is invalid.
    pub fn parse(written: &OsStr) -> Result<Self, String> {
        let bytes = written.as_bytes();
        let (source, name) = match bytes.iter().rposition(|&byte| byte == b':') {
            Some(colon) if !bytes[colon..].contains(&b'/') => {
                (&bytes[..colon], Some(OsStr::from_bytes(&bytes[colon + 1..])))
            }
            _ => (bytes, None),
        };
        if source.is_empty() {
            return Err("there is no source in it".to_owned());
        }
        // As with other commands, a file whose name starts like this must be given as ./-x.
        if source.starts_with(b"-") && source != STDIN.as_bytes() {
            return Err("expected SRC[:NAME] after it, found a flag".to_owned());
        }
        let source = Path::new(OsStr::from_bytes(source));
        let is_named = name.is_some();
        let name = match name {
            Some(name) => name.to_str().ok_or("the input's name is not UTF-8 text")?,
            None if is_stdin(source) => {
                return Err("stdin needs a name: -:NAME".to_owned());
            }
            None => Input::default_name(source).ok_or_else(|| {
                let source = source.display();
                format!("'{source}' needs a name: --in {source}:NAME")
            })?,
        };
        if name.is_empty() || name == "." || name == ".." || name.len() > 255 {
            return Err(format!("'{name}' is not a name for an input"));
        }
        let written = format!("--in {}", written.to_string_lossy());
        let (source, is_resolved) = (source.to_owned(), false);
        Ok(Self { source, is_resolved, name: name.to_owned(), is_named, written })
    }

    /// A read-only mount at an absolute path; `written` is the value of `--volume`.
    pub fn at(source: &Path, target: &str, written: &str) -> Self {
        let written = format!("--volume {written}");
        let (source, name) = (source.to_owned(), target.to_owned());
        Self { source, is_resolved: false, name, is_named: true, written }
    }

    /// Where it appears.
    fn path(&self) -> String {
        match self.name.starts_with('/') {
            true => self.name.clone(),
            false => format!("{INPUTS}/{}", self.name),
        }
    }

    fn is_stdin(&self) -> bool {
        is_stdin(&self.source)
    }

    /// The input, with stdin read to its end.
    fn open(&self) -> Result<Input, Error> {
        let flag = || self.written.clone();
        if self.is_stdin() {
            let content = read_bounded(io::stdin().lock(), MAX_STDIN_INPUT)
                .map_err(|error| Error::usage(flag(), error.to_string()))?;
            if content.len() as u64 > MAX_STDIN_INPUT {
                return Err(Error::usage(flag(), "stdin is longer than 256 MiB")
                    .with_hint("save it in a file, and give that"));
            }
            return Ok(Input::bytes(&self.name, content));
        }
        if self.source.to_str().is_none() {
            return Err(Error::usage(flag(), "its path is not UTF-8, and engines take no other"));
        }
        // Whether it can be read is checked here; its type and identity are checked again by the
        // controller when it opens the input.
        let source = match self.is_resolved {
            true => Ok(self.source.clone()),
            false => self.source.canonicalize(),
        };
        let found = source.and_then(|source| Ok((source.metadata()?, source)));
        let why = match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.source.is_symlink() => {
                "a symbolic link to what is not there".to_owned()
            }
            Err(error) => reason(&error),
            // It may be a FIFO by now, or have a lease: neither is waited for.
            Ok((found, source)) if found.is_file() => match open_at_once(&source) {
                Ok(_) => return Ok(Input::path(source, &self.name)),
                Err(error) => reason(&error),
            },
            Ok((found, source)) if found.is_dir() => return Ok(Input::path(source, &self.name)),
            Ok(_) => "not a regular file or a directory".to_owned(),
        };
        Err(Error::usage(flag(), why))
    }
}

fn open_at_once(file: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(file)
}

/// Opens a file that was found to be regular. What has its name by now may be something else, which
/// is not waited for.
///
/// # Errors
///
/// If it cannot be opened, or is no regular file.
pub fn open_file(file: &Path) -> io::Result<File> {
    let opened = open_at_once(file)?;
    match opened.metadata()?.is_file() {
        true => Ok(opened),
        false => Err(io::Error::other("not a regular file; `-` takes what a pipe has, from stdin")),
    }
}

/// Reads a file that may come from others. Does not wait for a writer of a pipe.
///
/// # Errors
///
/// If it cannot be read, is longer than `most` bytes, or is such a pipe.
pub fn read_at_once(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let opened = open_at_once(file)?;
    let is_pipe = opened.metadata()?.file_type().is_fifo();
    // If a writer has opened it by now, wait for its data.
    rustix::fs::fcntl_setfl(&opened, OFlags::empty())?;
    match read_bounded(opened, most)? {
        bytes if bytes.is_empty() && is_pipe => {
            Err(io::Error::other("it is a pipe without a writer"))
        }
        bytes if bytes.len() as u64 > most => Err(io::Error::other("it is too large")),
        bytes => Ok(bytes),
    }
}

/// A script that is run.
#[derive(Debug, Clone, Copy)]
pub enum ScriptArgument<'a> {
    /// `SCRIPT`: a file, or `-` for stdin.
    File(&'a Path),
    /// `-c CODE`.
    Code(&'a str),
}

impl ScriptArgument<'_> {
    /// How it is called where scripts are listed.
    pub fn name(&self) -> String {
        match self {
            Self::File(file) => file.to_string_lossy().into_owned(),
            Self::Code(_) => "-c".to_owned(),
        }
    }

    /// Whether it is read from stdin.
    pub fn is_stdin(&self) -> bool {
        matches!(self, Self::File(file) if is_stdin(file))
    }
}

/// Everything that a run reads before it starts.
#[derive(Debug)]
pub struct ScriptSource {
    /// The script's text. One byte more than the maximum is read, so that a longer one is detected.
    pub source: Vec<u8>,
    /// The display name of the script.
    pub name: String,
    /// Whether that is the name of a file.
    pub is_file: bool,
}

/// Whether `file`, as it was given, means stdin.
pub fn is_stdin(file: &Path) -> bool {
    file == Path::new(STDIN)
}

/// Reads the scripts of one call.
///
/// # Errors
///
/// As [`script`], and if two are stdin.
pub fn scripts(scripts: &[ScriptArgument<'_>]) -> Result<Vec<ScriptSource>, Error> {
    if scripts.iter().filter(|script| script.is_stdin()).count() > 1 {
        return Err(Error::usage("SCRIPT -", "stdin is one script, and it is given twice"));
    }
    scripts.iter().map(|argument| script(*argument)).collect()
}

/// Reads a script.
///
/// # Errors
///
/// If it does not exist or cannot be read.
pub fn script(script: ScriptArgument<'_>) -> Result<ScriptSource, Error> {
    let script = match script {
        ScriptArgument::Code(code) => {
            let name = "-c".to_owned();
            return Ok(ScriptSource { source: code.into(), name, is_file: false });
        }
        ScriptArgument::File(script) => script,
    };
    let most = MAX_SOURCE_BYTES as u64;
    if is_stdin(script) {
        return read_bounded(io::stdin().lock(), most)
            .map(|source| ScriptSource { source, name: "stdin".to_owned(), is_file: false })
            .map_err(|error| Error::usage("SCRIPT", format!("stdin: {}", reason(&error))));
    }
    let name = script.to_string_lossy().into_owned();
    match File::open(script).and_then(|opened| read_bounded(opened, most)) {
        Ok(source) => Ok(ScriptSource { source, name, is_file: true }),
        Err(error) => {
            let refused = Error::usage("SCRIPT", format!("{name}: {}", reason(&error)));
            Err(match error.kind() == io::ErrorKind::NotFound && may_be_an_image(&name) {
                true => refused.with_hint(format!(
                    "run takes Luau scripts; a command in an image: sandboxctl exec {name} COMMAND…"
                )),
                false => refused,
            })
        }
    }
}

/// Whether the name of a file that is not there may be meant as an image's.
fn may_be_an_image(name: &str) -> bool {
    let is_path = name.starts_with(['/', '.', '~']);
    !is_path && !name.ends_with(".luau") && !name.ends_with(".lua")
}

/// The script's `args`: those of the file, then those of the flags.
///
/// # Errors
///
/// If the file is not a JSON object, or the arguments are invalid.
pub fn arguments(file: Option<&Path>, flags: &[Argument]) -> Result<Map<String, Value>, Error> {
    let mut arguments = match file {
        Some(file) => object(file)
            .map_err(|why| Error::usage(format!("--args-file {}", file.display()), why))?,
        None => Map::new(),
    };
    for Argument { key, value } in flags {
        arguments.insert(key.clone(), Value::String(value.clone()));
    }
    let flag = if file.is_some() { "--args-file" } else { "--arg" };
    Script::check_args(&arguments)
        .map_err(|error| Error::usage(flag, error.to_string()).with_hint_of(error.hint()))?;
    Ok(arguments)
}

fn object(file: &Path) -> Result<Map<String, Value>, String> {
    // With whitespace it may be longer than what is sent.
    let text = read_file(file, 4 * MAX_ARGS_BYTES).map_err(|error| reason(&error))?;
    match serde_json::from_slice(without_bom(&text)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("it is not a JSON object".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

/// The inputs.
///
/// # Errors
///
/// If one does not exist or cannot be read, a pattern cannot be used, or two have the same name, or stdin is used twice:
/// `stdin` says which argument already uses it.
pub fn inputs(inputs: &[InputArgument], stdin: Option<&str>) -> Result<Vec<Input>, Error> {
    let mut stdin = stdin.map(str::to_owned);
    let inputs = globs::expand(inputs)?;
    for (index, input) in inputs.iter().enumerate() {
        let flag = input.written.clone();
        if let Some(other) = inputs[..index].iter().find(|other| other.path() == input.path()) {
            let why = format!("{} is taken by {}", input.path(), other.written);
            return Err(Error::usage(flag, why).with_hint("name one of them: --in SRC:NAME"));
        }
        if input.is_stdin() {
            if let Some(taken) = &stdin {
                return Err(Error::usage(flag, format!("stdin is taken by {taken}")));
            }
            stdin = Some(flag);
        }
    }
    inputs.iter().map(InputArgument::open).collect()
}

/// The files and directories of this machine among the inputs of a sandbox, with their names there.
pub fn paths(spec: &SandboxSpec) -> impl Iterator<Item = (&str, &Path)> {
    spec.inputs.iter().filter_map(|input| match &input.source {
        InputSource::Path(path) => Some((&*input.name, &**path)),
        InputSource::Bytes(_) => None,
    })
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
///
/// If it cannot be opened or read, or is longer.
pub fn read_file(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    read_whole(File::open(file)?, most)
}

/// Reads all, which is at most `most` bytes.
fn read_whole(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let most = most as u64;
    match read_bounded(from, most)? {
        bytes if bytes.len() as u64 > most => {
            Err(io::Error::other(format!("it is longer than {}", size_text(most))))
        }
        bytes => Ok(bytes),
    }
}

/// Reads at most `most` bytes and one more.
///
/// # Errors
///
/// If it cannot be read.
pub fn read_bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> Result<(String, String), String> {
        let InputArgument { source, name, .. } = InputArgument::parse(text.as_ref())?;
        Ok((source.to_str().unwrap().to_owned(), name))
    }

    #[test]
    fn inputs_are_source_and_name() {
        for (text, source, name) in [
            ("data.csv", "data.csv", "data.csv"),
            ("a/b/data.csv", "a/b/data.csv", "data.csv"),
            ("a/b/", "a/b/", "b"),
            ("a:b", "a", "b"),
            ("a:b:c", "a:b", "c"),
            ("a:b/c", "a:b/c", "c"),
            ("-:words", "-", "words"),
            (".:here", ".", "here"),
        ] {
            assert_eq!(input(text), Ok((source.into(), name.into())), "{text}");
        }
        for text in ["", ":x", "x:", "--json", "x:.", "x:..", "-", ".", "..", "/", "a/.."] {
            assert!(input(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_have_a_key() {
        let argument = |text: &str| text.parse::<Argument>().map(|it| (it.key, it.value));
        assert_eq!(argument("k=v=w"), Ok(("k".into(), "v=w".into())));
        assert_eq!(argument("k="), Ok(("k".into(), String::new())));
        assert!(argument("k").is_err());
        assert!(argument("=v").is_err());
    }

    #[test]
    fn what_took_the_place_of_a_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert!(open_file(&at("file")).is_ok());
        for other in [at("fifo"), folder.path().to_owned(), "/dev/null".into()] {
            let error = open_file(&other).unwrap_err().to_string();
            assert!(error.starts_with("not a regular file"), "{}: {error}", other.display());
        }
    }

    #[test]
    fn json_is_typed_or_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("call.json");
        std::fs::write(&file, "{\"a\": 1}\n").unwrap();
        let read = |text: &str, most| {
            let read = text.parse::<JsonArgument>().unwrap().read("--input", most);
            read.map(|json| json.get().to_owned()).map_err(|error| error.message())
        };
        let at = format!("@{}", file.display());
        assert_eq!(read("{\"a\": 1}", 100).as_deref(), Ok("{\"a\": 1}"));
        assert_eq!(read(&at, 100).as_deref(), Ok("{\"a\": 1}"));
        assert_eq!(read(&at, 5).unwrap_err(), format!("--input {at}: it is longer than 5 bytes"));
        assert!(read("{a}", 100).unwrap_err().starts_with("--input: it is not JSON: "));
        assert!(read("@/no/such", 100).unwrap_err().ends_with("No such file or directory"));
        assert_eq!("-".parse(), Ok(JsonArgument::Stdin));
        assert!("@".parse::<JsonArgument>().is_err());
    }

    #[test]
    fn flags_win_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("args.json");
        std::fs::write(&file, r#"{"a": [1, null], "b": 2}"#).unwrap();
        let flags = ["b=x".parse().unwrap(), "c=".parse().unwrap()];
        let arguments = arguments(Some(&file), &flags).unwrap();
        assert_eq!(Value::from(arguments), serde_json::json!({"a": [1, null], "b": "x", "c": ""}));
    }

    #[test]
    fn unreadable_input_names_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("list.json"), "[1]").unwrap();
        std::fs::write(at("bad.json"), "{").unwrap();
        std::fs::write(at("large.json"), format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20))).unwrap();
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(60), "]".repeat(60));
        std::fs::write(at("deep.json"), deep).unwrap();
        std::fs::write(at("inexact.json"), r#"{"id": 9007199254740993}"#).unwrap();
        std::os::unix::fs::symlink("nothing", at("broken.csv")).unwrap();
        let input = |text: &str| InputArgument::parse(text.as_ref()).unwrap();
        let open = |text: String| inputs(&[input(&text)], None).unwrap_err();
        let here = folder.path().display().to_string();
        let same = ["x:a", "y:a"].map(input);
        let stdin = ["-:a"].map(input);
        let texts = [
            script(ScriptArgument::File(&at("none.luau"))).unwrap_err(),
            script(ScriptArgument::File(folder.path())).unwrap_err(),
            arguments(Some(&at("none.json")), &[]).unwrap_err(),
            arguments(Some(&at("list.json")), &[]).unwrap_err(),
            arguments(Some(&at("bad.json")), &[]).unwrap_err(),
            arguments(Some(&at("large.json")), &[]).unwrap_err(),
            arguments(Some(&at("deep.json")), &[]).unwrap_err(),
            arguments(Some(&at("inexact.json")), &[]).unwrap_err(),
            open(format!("{here}/none.csv")),
            open(format!("{here}/broken.csv")),
            open("/dev/null".to_owned()),
            inputs(&same, None).unwrap_err(),
            inputs(&stdin, Some("SCRIPT -")).unwrap_err(),
        ]
        .map(|error| error.to_text().replace(&here, ""));
        let texts = texts.join("\n");
        insta::assert_snapshot!(texts);
    }

    #[test]
    fn a_script_that_is_too_long_is_read_just_as_far_as_it_takes_to_know() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("long.luau");
        std::fs::write(&file, vec![b'x'; 2 * MAX_SOURCE_BYTES]).unwrap();
        assert_eq!(script(ScriptArgument::File(&file)).unwrap().source.len(), MAX_SOURCE_BYTES + 1);
    }
}
