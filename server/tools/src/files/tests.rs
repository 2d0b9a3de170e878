//! The arguments of the file tools.

use sandbox_protocol::WireString;

use super::filesystem::Filesystem;
use super::operation::{ContentEncoding, FileTool};
use super::table::{
    Copy, CreateDirectory, CreateDirectoryArgs, Delete, DeleteArgs, Exists, FileInfo, Glob, Grep,
    ListDirectory, ListDirectoryArgs, OPERATIONS, ReadFile, ReadFileArgs, WriteFile, WriteFileArgs,
};
use crate::tool::{Tool, decode};

fn args<T: Tool>(json: &str) -> Result<T::Args, String> {
    decode::<T>(serde_json::from_str(json).unwrap()).map_err(|error| error.message)
}

/// The arguments that an operation decodes, in its own tool and in `sandbox_filesystem`.
struct Decoded {
    operation: &'static str,
    alone: fn(&str) -> (Vec<u8>, String),
}

fn decoded<T: FileTool>() -> Decoded {
    let alone = |json: &str| {
        let args = args::<T>(json).unwrap();
        (T::path(&args).to_vec(), format!("{args:?}"))
    };
    Decoded { operation: T::OPERATION, alone }
}

fn every_operation() -> [Decoded; 10] {
    let all = [
        decoded::<ReadFile>(),
        decoded::<WriteFile>(),
        decoded::<ListDirectory>(),
        decoded::<CreateDirectory>(),
        decoded::<Delete>(),
        decoded::<Exists>(),
        decoded::<FileInfo>(),
        decoded::<Glob>(),
        decoded::<Grep>(),
        decoded::<Copy>(),
    ];
    assert!(all.iter().map(|it| it.operation).eq(OPERATIONS.iter().map(|it| it.operation)));
    all
}

/// What an operation requires besides a path.
fn own_members(operation: &str) -> &'static str {
    match operation {
        "write" => r#", "content": "x""#,
        "glob" | "grep" => r#", "pattern": "x""#,
        "copy" => r#", "destination": "b""#,
        _ => "",
    }
}

fn enveloped(json: &str) -> String {
    format!("{:?}", args::<Filesystem>(json).unwrap().operation)
}

#[test]
fn file_arguments_default_as_the_table_says() {
    let c = || "c".to_owned();
    let path = r#"{"containerId": "c", "path": "a"}"#;
    let a = || WireString::from("a");
    assert_eq!(
        args::<ReadFile>(path).unwrap(),
        ReadFileArgs {
            container_id: c(),
            path: a(),
            encoding: ContentEncoding::Utf8,
            offset: 0,
            limit: None,
        }
    );
    assert_eq!(
        args::<WriteFile>(r#"{"containerId": "c", "path": "a", "content": "x"}"#).unwrap(),
        WriteFileArgs {
            container_id: c(),
            path: a(),
            content: "x".into(),
            encoding: ContentEncoding::Utf8,
            create_parent_dirs: true,
        }
    );
    assert_eq!(
        args::<ListDirectory>(path).unwrap(),
        ListDirectoryArgs {
            container_id: c(),
            path: a(),
            recursive: false,
            limit: None,
            max_depth: None,
        }
    );
    assert_eq!(
        args::<CreateDirectory>(path).unwrap(),
        CreateDirectoryArgs { container_id: c(), path: a(), recursive: true }
    );
    assert_eq!(
        args::<Delete>(path).unwrap(),
        DeleteArgs { container_id: c(), path: a(), recursive: false, force: false }
    );
}

#[test]
fn a_path_is_given_as_text_or_as_bytes() {
    for Decoded { operation, alone } in every_operation() {
        let content = own_members(operation);
        let rest = format!(r#""containerId": "c", "path": {{"b64": "Yf8="}}{content}}}"#);
        let (path, read) = alone(&format!("{{{rest}"));
        assert_eq!(path, b"a\xff");
        assert_eq!(enveloped(&format!(r#"{{"operation": "{operation}", {rest}"#)), read);
    }
    let copy = |to: &str| {
        args::<Copy>(&format!(r#"{{"containerId": "c", "path": "a", "destination": {to}}}"#))
    };
    let copied = format!("{:?}", copy(r#"{"b64": "Yf8="}"#).unwrap());
    assert!(copied.contains("destination: \"a\u{fffd}\""), "{copied}");
    assert!(copy("null").unwrap_err().contains("`destination`"));
    let refusal = |path: &str| {
        let json = format!(r#"{{"containerId": "c", "path": {path}}}"#);
        args::<Exists>(&json).unwrap_err()
    };
    for wrong in ["1", "null", r#"{"b64": 1}"#, r#"{"b64": "Yf8"}"#, r#"{"b64": "a b"}"#, "{}"] {
        let message = refusal(wrong);
        assert!(message.contains("`path") || message.contains("`b64`"), "{message}");
    }
    assert!(refusal(r#""a", "path_b64": "Yf8=""#).contains("`path_b64`"));
}

#[test]
fn both_spellings_of_utf_8_are_one_encoding() {
    for spelling in ["utf8", "utf-8"] {
        let json = format!(r#"{{"containerId": "c", "path": "a", "encoding": "{spelling}"}}"#);
        let read = args::<ReadFile>(&json).unwrap();
        assert_eq!(serde_json::to_string(&read.encoding).unwrap(), r#""utf8""#);
    }
}

#[test]
fn an_operation_of_the_filesystem_is_its_own_tool() {
    for Decoded { operation, alone } in every_operation() {
        let rest = r#""containerId": "c", "path": "a""#;
        let rest = format!("{rest}{}", own_members(operation));
        let (_, read) = alone(&format!("{{{rest}}}"));
        assert_eq!(enveloped(&format!(r#"{{"operation": "{operation}", {rest}}}"#)), read);
    }
}
