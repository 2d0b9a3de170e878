//! A call: which tool, and what it is given. Decoding is strict, and names what is wrong.

use std::fmt;
use std::str::FromStr;

use sandbox_protocol::path::written;
use serde::de::value::MapDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::args::{
    CommandArgs, CreateDirectoryArgs, DeleteArgs, DestroyArgs, ExecuteScriptArgs, ExistsArgs,
    FileInfoArgs, InitArgs, ListDirectoryArgs, ReadFileArgs, WriteFileArgs,
};
use super::error::ToolError;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is what its name says; the catalogue describes them")]
pub enum Tool {
    Init,
    Command,
    Destroy,
    ReadFile,
    WriteFile,
    ListDirectory,
    CreateDirectory,
    Delete,
    Exists,
    FileInfo,
    ExecuteScript,
    Filesystem,
}

impl Tool {
    /// Every tool, in the order of the documentation.
    pub const ALL: &[Self] = &[
        Self::Init,
        Self::Command,
        Self::Destroy,
        Self::ReadFile,
        Self::WriteFile,
        Self::ListDirectory,
        Self::CreateDirectory,
        Self::Delete,
        Self::Exists,
        Self::FileInfo,
        Self::ExecuteScript,
        Self::Filesystem,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "sandbox_init",
            Self::Command => "sandbox_command",
            Self::Destroy => "sandbox_destroy",
            Self::ReadFile => "sandbox_read_file",
            Self::WriteFile => "sandbox_write_file",
            Self::ListDirectory => "sandbox_list_directory",
            Self::CreateDirectory => "sandbox_create_directory",
            Self::Delete => "sandbox_delete",
            Self::Exists => "sandbox_exists",
            Self::FileInfo => "sandbox_file_info",
            Self::ExecuteScript => "sandbox_execute_script",
            Self::Filesystem => "sandbox_filesystem",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Tool {
    type Err = ToolError;

    fn from_str(name: &str) -> Result<Self, ToolError> {
        Self::ALL.iter().copied().find(|tool| tool.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|tool| tool.name()).collect();
            ToolError::invalid(format!("unknown tool '{name}'"))
                .with_hint(format!("the tools are {}", names.join(", ")))
        })
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `sandbox_init`.
    Init(InitArgs),
    /// `sandbox_command`.
    Command(CommandArgs),
    /// `sandbox_destroy`.
    Destroy(DestroyArgs),
    /// `sandbox_execute_script`.
    ExecuteScript(ExecuteScriptArgs),
    /// A tool of files.
    File(FileCall),
    /// `sandbox_filesystem`: the same, in an envelope.
    Filesystem(FileCall),
}

/// A call that is one operation on files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is a tool's, and so is its struct")]
pub enum FileCall {
    Read(ReadFileArgs),
    Write(WriteFileArgs),
    List(ListDirectoryArgs),
    CreateDirectory(CreateDirectoryArgs),
    Delete(DeleteArgs),
    Exists(ExistsArgs),
    Info(FileInfoArgs),
}

/// The operations of `sandbox_filesystem`, and the tool that each is.
pub const OPERATIONS: &[(&str, Tool)] = &[
    ("read", Tool::ReadFile),
    ("write", Tool::WriteFile),
    ("list", Tool::ListDirectory),
    ("createDir", Tool::CreateDirectory),
    ("delete", Tool::Delete),
    ("exists", Tool::Exists),
    ("info", Tool::FileInfo),
];

impl Call {
    /// Reads what a tool is given.
    ///
    /// # Errors
    ///
    /// [`ToolError`] of kind `invalid_request`, which names what is wrong: an unknown key, a
    /// missing one, a value of another type.
    pub fn decode(tool: Tool, args: &RawValue) -> Result<Self, ToolError> {
        let args = Entries::read(tool, args)?;
        Ok(match tool {
            Tool::Init => Self::Init(args.decode(tool)?),
            Tool::Command => Self::Command(args.decode(tool)?),
            Tool::Destroy => Self::Destroy(args.decode(tool)?),
            Tool::ExecuteScript => Self::ExecuteScript(args.decode(tool)?),
            Tool::Filesystem => {
                let (operation, args) = args.take_operation()?;
                Self::Filesystem(FileCall::decode(operation, args)?)
            }
            Tool::ReadFile
            | Tool::WriteFile
            | Tool::ListDirectory
            | Tool::CreateDirectory
            | Tool::Delete
            | Tool::Exists
            | Tool::FileInfo => Self::File(FileCall::decode(tool, args)?),
        })
    }

    /// The sandbox that it is for.
    #[must_use]
    pub fn container_id(&self) -> &str {
        match self {
            Self::Init(args) => &args.container_id,
            Self::Command(args) => &args.container_id,
            Self::Destroy(args) => &args.container_id,
            Self::ExecuteScript(args) => &args.container_id,
            Self::File(call) | Self::Filesystem(call) => call.container_id(),
        }
    }

    /// Whether it changes nothing, so that it may be made again whatever became of it.
    #[must_use]
    pub const fn is_a_read(&self) -> bool {
        match self {
            Self::Init(_) | Self::Command(_) | Self::Destroy(_) | Self::ExecuteScript(_) => false,
            Self::File(call) | Self::Filesystem(call) => !call.changes(),
        }
    }
}

impl FileCall {
    fn decode(tool: Tool, mut args: Entries<'_>) -> Result<Self, ToolError> {
        args.complete_path();
        Ok(match tool {
            Tool::ReadFile => Self::Read(args.decode(tool)?),
            Tool::WriteFile => Self::Write(args.decode(tool)?),
            Tool::ListDirectory => Self::List(args.decode(tool)?),
            Tool::CreateDirectory => Self::CreateDirectory(args.decode(tool)?),
            Tool::Delete => Self::Delete(args.decode(tool)?),
            Tool::Exists => Self::Exists(args.decode(tool)?),
            Tool::FileInfo => Self::Info(args.decode(tool)?),
            Tool::Init | Tool::Command | Tool::Destroy | Tool::ExecuteScript | Tool::Filesystem => {
                return Err(ToolError::invalid(format!("{tool} is no operation on files")));
            }
        })
    }

    /// The sandbox that it is for.
    #[must_use]
    pub fn container_id(&self) -> &str {
        match self {
            Self::Read(args) => &args.container_id,
            Self::Write(args) => &args.container_id,
            Self::List(args) => &args.container_id,
            Self::CreateDirectory(args) => &args.container_id,
            Self::Delete(args) => &args.container_id,
            Self::Exists(args) => &args.container_id,
            Self::Info(args) => &args.container_id,
        }
    }

    /// The path's bytes, as they were given.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        let (path, path_b64) = match self {
            Self::Read(args) => (&args.path, &args.path_b64),
            Self::Write(args) => (&args.path, &args.path_b64),
            Self::List(args) => (&args.path, &args.path_b64),
            Self::CreateDirectory(args) => (&args.path, &args.path_b64),
            Self::Delete(args) => (&args.path, &args.path_b64),
            Self::Exists(args) => (&args.path, &args.path_b64),
            Self::Info(args) => (&args.path, &args.path_b64),
        };
        written(path, path_b64.as_ref())
    }

    /// Whether it changes files.
    #[must_use]
    pub const fn changes(&self) -> bool {
        match self {
            Self::Write(_) | Self::CreateDirectory(_) | Self::Delete(_) => true,
            Self::Read(_) | Self::List(_) | Self::Exists(_) | Self::Info(_) => false,
        }
    }
}

/// Most members of the object that a tool is given: no tool takes a tenth of them, and what is held
/// of one is longer than `"":0`.
const MAX_MEMBERS: usize = 100;

/// The members of an object, in their order, none of them read yet. A key that is there twice is
/// here twice.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Entries<'a> {
    fn read(tool: Tool, args: &'a RawValue) -> Result<Self, ToolError> {
        serde_json::from_str(args.get()).map_err(|_| {
            let what = match args.get().starts_with('{') {
                true => format!("have more than {MAX_MEMBERS} members"),
                false => "are not an object".to_owned(),
            };
            ToolError::invalid(format!("the args of {tool} {what}"))
        })
    }

    fn decode<T: DeserializeOwned>(&self, tool: Tool) -> Result<T, ToolError> {
        let entries = self.0.iter().map(|(key, value)| (key.as_str(), *value));
        let entries = MapDeserializer::<_, serde_json::Error>::new(entries);
        serde_path_to_error::deserialize(entries).map_err(|error| {
            let path = error.path().to_string();
            let what = position_cut(&error.into_inner().to_string());
            // A key that is missing, unknown or there twice is named by what is wrong itself.
            let message = match path.as_str() {
                "." => format!("{tool}: {what}"),
                _ if what.contains(&format!("`{path}`")) => format!("{tool}: {what}"),
                _ => format!("{tool}: `{path}`: {what}"),
            };
            ToolError::invalid(message)
        })
    }

    /// A path's bytes will do: the text beside them is for people.
    fn complete_path(&mut self) {
        let has_bytes =
            self.0.iter().any(|(key, value)| key == "path_b64" && value.get().starts_with('"'));
        if has_bytes && !self.0.iter().any(|(key, _)| key == "path") {
            self.0.push(("path".to_owned(), empty_text()));
        }
    }

    /// Takes out the operation.
    fn take_operation(self) -> Result<(Tool, Self), ToolError> {
        let of_it = |(key, _): &(String, _)| key == "operation";
        let (operations, rest): (Vec<_>, Vec<_>) = self.0.into_iter().partition(of_it);
        let wrong = |what: &str| ToolError::invalid(format!("{}: {what}", Tool::Filesystem));
        let value = match operations.as_slice() {
            [(_, value)] => value,
            [] => return Err(wrong("missing field `operation`")),
            _ => return Err(wrong("duplicate field `operation`")),
        };
        let known = || OPERATIONS.iter().map(|(name, _)| format!("`{name}`"));
        let operation: String = serde_json::from_str(value.get()).map_err(|error| {
            wrong(&format!("`operation`: {}", position_cut(&error.to_string())))
        })?;
        match OPERATIONS.iter().find(|(name, _)| *name == operation) {
            Some((_, tool)) => Ok((*tool, Self(rest))),
            None => Err(wrong(&format!(
                "`operation`: unknown variant `{operation}`, expected one of {}",
                known().collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

fn empty_text() -> &'static RawValue {
    serde_json::from_str(r#""""#).expect("it is JSON")
}

/// serde_json's message without its position, which is one in a part of the line.
fn position_cut(message: &str) -> String {
    match message.rfind(" at line ") {
        Some(at) => message[..at].to_owned(),
        None => message.to_owned(),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MAX_MEMBERS {
                        return Err(serde::de::Error::custom("too many members"));
                    }
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Read).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::args::ContentEncoding;

    fn decode(tool: &str, args: &str) -> Result<Call, String> {
        let tool = tool.parse::<Tool>().map_err(|error| error.message)?;
        let args: &RawValue = serde_json::from_str(args).unwrap();
        Call::decode(tool, args).map_err(|error| {
            assert_eq!(error.kind, sandbox_api::ErrorKind::InvalidRequest);
            error.message
        })
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let call = |tool: &str, args: &str| decode(tool, args).unwrap();
        let c = || "c".to_owned();
        assert_eq!(
            call("sandbox_init", r#"{"containerId": "c", "projectOutPath": "out"}"#),
            Call::Init(InitArgs {
                container_id: c(),
                image_name: None,
                container_name: None,
                project_out_path: "out".into(),
                root_path: "workspace".into(),
            })
        );
        assert_eq!(
            call("sandbox_command", r#"{"containerId": "c", "executable": "ls"}"#),
            Call::Command(CommandArgs {
                container_id: c(),
                executable: "ls".into(),
                args: None,
                working_directory: "/".into(),
                env_vars: None,
                timeout: None,
            })
        );
        assert_eq!(
            call("sandbox_destroy", r#"{"containerId": "c"}"#),
            Call::Destroy(DestroyArgs { container_id: c(), remove_container: true })
        );
        let path = r#"{"containerId": "c", "path": "a"}"#;
        let a = || "a".to_owned();
        assert_eq!(
            call("sandbox_read_file", path),
            Call::File(FileCall::Read(ReadFileArgs {
                container_id: c(),
                path: a(),
                path_b64: None,
                encoding: ContentEncoding::Utf8,
                offset: 0,
                limit: None,
            }))
        );
        assert_eq!(
            call("sandbox_write_file", r#"{"containerId": "c", "path": "a", "content": "x"}"#),
            Call::File(FileCall::Write(WriteFileArgs {
                container_id: c(),
                path: a(),
                path_b64: None,
                content: "x".into(),
                encoding: ContentEncoding::Utf8,
                create_parent_dirs: true,
            }))
        );
        assert_eq!(
            call("sandbox_list_directory", path),
            Call::File(FileCall::List(ListDirectoryArgs {
                container_id: c(),
                path: a(),
                path_b64: None,
                recursive: false,
                limit: None,
                max_depth: None,
            }))
        );
        assert_eq!(
            call("sandbox_create_directory", path),
            Call::File(FileCall::CreateDirectory(CreateDirectoryArgs {
                container_id: c(),
                path: a(),
                path_b64: None,
                recursive: true,
            }))
        );
        assert_eq!(
            call("sandbox_delete", path),
            Call::File(FileCall::Delete(DeleteArgs {
                container_id: c(),
                path: a(),
                path_b64: None,
                recursive: false,
                force: false,
            }))
        );
        assert_eq!(
            call("sandbox_execute_script", r#"{"containerId": "c", "script": "return 1"}"#),
            Call::ExecuteScript(ExecuteScriptArgs {
                container_id: c(),
                script: "return 1".into(),
                timeout_ms: None,
            })
        );
    }

    #[test]
    fn a_path_is_given_as_text_or_as_bytes_and_the_bytes_count() {
        let path = |tool: &str, args: &str| match decode(tool, args) {
            Ok(Call::File(call) | Call::Filesystem(call)) => Ok(call.path().to_vec()),
            Ok(call) => panic!("{call:?}"),
            Err(message) => Err(message),
        };
        for (operation, tool) in OPERATIONS {
            let content = if *operation == "write" { r#", "content": """# } else { "" };
            for text in ["", r#", "path": "a\ufffd""#] {
                let rest = format!(r#""containerId": "c", "path_b64": "Yf8="{text}{content}}}"#);
                assert_eq!(path(tool.name(), &format!("{{{rest}")), Ok(b"a\xff".to_vec()));
                let enveloped = format!(r#"{{"operation": "{operation}", {rest}"#);
                assert_eq!(path("sandbox_filesystem", &enveloped), Ok(b"a\xff".to_vec()));
            }
        }
        let refusal = |args: &str| path("sandbox_exists", args).unwrap_err();
        for wrong in ["1", r#""Yf8""#, r#""a b""#] {
            let message = refusal(&format!(r#"{{"containerId": "c", "path_b64": {wrong}}}"#));
            assert!(message.contains("`path_b64`"), "{message}");
        }
        let neither = refusal(r#"{"containerId": "c", "path_b64": null}"#);
        assert!(neither.contains("`path`"), "{neither}");
    }

    #[test]
    fn both_spellings_of_utf_8_are_one_encoding() {
        for spelling in ["utf8", "utf-8"] {
            let args = format!(r#"{{"containerId": "c", "path": "a", "encoding": "{spelling}"}}"#);
            let Ok(Call::File(FileCall::Read(args))) = decode("sandbox_read_file", &args) else {
                panic!("{spelling}")
            };
            assert_eq!(serde_json::to_string(&args.encoding).unwrap(), r#""utf8""#);
        }
    }

    #[test]
    fn an_operation_of_the_filesystem_is_its_own_tool() {
        for (operation, tool) in OPERATIONS {
            let rest = r#""containerId": "c", "path": "a""#;
            let rest = match *operation {
                "write" => format!(r#"{rest}, "content": "x""#),
                _ => rest.to_owned(),
            };
            let alone = decode(tool.name(), &format!("{{{rest}}}")).unwrap();
            let Call::File(alone) = alone else { panic!("{alone:?}") };
            let with = format!(r#"{{"operation": "{operation}", {rest}}}"#);
            assert_eq!(decode("sandbox_filesystem", &with), Ok(Call::Filesystem(alone)));
        }
    }

    #[test]
    fn what_a_message_quotes_is_bounded_and_so_are_the_members_that_are_kept() {
        let members = |count: usize| format!("{{{}}}", vec![r#""a":0"#; count].join(","));
        let error = |args: &str| decode("sandbox_exists", args).unwrap_err();
        assert!(error(&members(MAX_MEMBERS)).contains("`a`"));
        let too_many = "the args of sandbox_exists have more than 100 members";
        assert_eq!(error(&members(MAX_MEMBERS + 1)), too_many);
        let long = error(&format!(r#"{{"{}": 0}}"#, "\u{e9}".repeat(1 << 20)));
        assert!(long.len() < 20_000 && long.ends_with('\u{2026}'), "{}", long.len());
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("sandbox_exits", r#"{}"#),
            ("sandbox_exists", r#"[]"#),
            ("sandbox_exists", r#"null"#),
            ("sandbox_exists", r#"{"path": "a"}"#),
            ("sandbox_exists", r#"{"containerId": "c", "path": 1}"#),
            ("sandbox_exists", r#"{"containerId": "c", "path": null}"#),
            ("sandbox_exists", r#"{"containerId": "c", "path": "a", "pth": 1}"#),
            ("sandbox_exists", r#"{"containerId": "c", "path": "a", "path": "b"}"#),
            ("sandbox_read_file", r#"{"containerId": "c", "path": "a", "encoding": "utf-9"}"#),
            ("sandbox_read_file", r#"{"containerId": "c", "path": "a", "offset": -1}"#),
            ("sandbox_read_file", r#"{"containerId": "c", "path": "a", "offset": 1.5}"#),
            ("sandbox_delete", r#"{"containerId": "c", "path": "a", "recursive": "yes"}"#),
            ("sandbox_command", r#"{"containerId": "c", "executable": "a", "args": ["b", 1]}"#),
            ("sandbox_filesystem", r#"{"containerId": "c", "path": "a"}"#),
            ("sandbox_filesystem", r#"{"operation": "stat", "containerId": "c", "path": "a"}"#),
            ("sandbox_filesystem", r#"{"operation": 1, "containerId": "c", "path": "a"}"#),
            ("sandbox_filesystem", r#"{"operation": "read", "operation": "read", "path": "a"}"#),
            ("sandbox_filesystem", r#"{"operation": "read", "path": "a", "content": "x"}"#),
            ("sandbox_filesystem", r#"{"operation": "write", "containerId": "c", "path": "a"}"#),
        ];
        let refusals = cases.map(|(tool, args)| decode(tool, args).unwrap_err()).join("\n");
        insta::assert_snapshot!(refusals);
    }
}
