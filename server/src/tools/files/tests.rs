//! The arguments of the file tools.

use super::copy::Copy;
use super::create_directory::{CreateDirectory, CreateDirectoryArgs};
use super::delete::{Delete, DeleteArgs};
use super::exists::Exists;
use super::file_info::FileInfo;
use super::filesystem::Filesystem;
use super::glob::Glob;
use super::grep::Grep;
use super::list_directory::{ListDirectory, ListDirectoryArgs};
use super::operation::{ContentEncoding, FileArguments, FileTool};
use super::read_file::{ReadFile, ReadFileArgs};
use super::table::OPERATIONS;
use super::write_file::{WriteFile, WriteFileArgs};
use crate::tools::tool::{Tool, decode};

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
        (args.path().to_vec(), format!("{args:?}"))
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
    let a = || "a".to_owned();
    assert_eq!(
        args::<ReadFile>(path).unwrap(),
        ReadFileArgs {
            container_id: c(),
            path: a(),
            path_b64: None,
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
            path_b64: None,
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
            path_b64: None,
            recursive: false,
            limit: None,
            max_depth: None,
        }
    );
    assert_eq!(
        args::<CreateDirectory>(path).unwrap(),
        CreateDirectoryArgs { container_id: c(), path: a(), path_b64: None, recursive: true }
    );
    assert_eq!(
        args::<Delete>(path).unwrap(),
        DeleteArgs { container_id: c(), path: a(), path_b64: None, recursive: false, force: false }
    );
}

#[test]
fn a_path_is_given_as_text_or_as_bytes_and_the_bytes_count() {
    for Decoded { operation, alone } in every_operation() {
        let content = own_members(operation);
        for text in ["", r#", "path": "a\ufffd""#] {
            let rest = format!(r#""containerId": "c", "path_b64": "Yf8="{text}{content}}}"#);
            let (path, read) = alone(&format!("{{{rest}"));
            assert_eq!(path, b"a\xff");
            assert_eq!(enveloped(&format!(r#"{{"operation": "{operation}", {rest}"#)), read);
        }
    }
    let copy = |to: &str| args::<Copy>(&format!(r#"{{"containerId": "c", "path": "a", {to}}}"#));
    let copied = format!("{:?}", copy(r#""destination_b64": "Yf8=""#).unwrap());
    assert!(copied.contains(r#"destination: "", destination_b64: Some("#), "{copied}");
    assert!(copy(r#""destination_b64": null"#).unwrap_err().contains("`destination`"));
    let refusal = |json: &str| args::<Exists>(json).unwrap_err();
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
