//! The arguments of a call. Decoding is strict, and errors name what is wrong.

use std::fmt;

use sandbox_api::strict;
use serde::de::value::MapDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ToolError;

/// The default of a flag that is on unless it is disabled.
pub(super) const fn yes() -> bool {
    true
}

/// Most members of a tool's argument object: no tool has a tenth of them, and each takes more
/// memory than the `"":0` it was read from.
const MAX_MEMBERS: usize = 100;

/// The members of an object, in order, not yet decoded. A duplicate key is listed twice.
pub(super) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    pub fn read(tool: &str, args: &'a RawValue) -> Result<Self, ToolError> {
        serde_json::from_str(args.get()).map_err(|_| {
            let what = match args.get().starts_with('{') {
                true => format!("have more than {MAX_MEMBERS} members"),
                false => "are not an object".to_owned(),
            };
            ToolError::invalid(format!("the args of {tool} {what}"))
        })
    }

    pub fn decode<T: DeserializeOwned>(&self, tool: &str) -> Result<T, ToolError> {
        let entries = self.0.iter().map(|(key, value)| (key.as_str(), *value));
        let entries = MapDeserializer::<_, serde_json::Error>::new(entries);
        strict::read(entries).map_err(|mistake| {
            let (path, what) = (mistake.path.to_string(), mistake.what());
            // Errors for a missing, unknown or duplicate key name the key themselves.
            let message = match path.as_str() {
                "." => format!("{tool}: {what}"),
                _ if what.contains(&format!("`{path}`")) => format!("{tool}: {what}"),
                _ => format!("{tool}: `{path}`: {what}"),
            };
            ToolError::invalid(message)
        })
    }

    /// Removes the member of a key, which must occur once.
    pub fn take(&mut self, tool: &str, key: &str) -> Result<&'a RawValue, ToolError> {
        let mut values = self.0.extract_if(.., |(member, _)| member == key);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(ToolError::invalid(format!("{tool}: missing field `{key}`"))),
            _ => Err(ToolError::invalid(format!("{tool}: duplicate field `{key}`"))),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
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
    use crate::command::{CommandArgs, RunCommand};
    use crate::destroy::{Destroy, DestroyArgs};
    use crate::init::{Init, InitArgs};
    use crate::script::{ExecuteScript, ExecuteScriptArgs};
    use crate::table::check;
    use crate::tool::{Tool, decode};

    fn args<T: Tool>(json: &str) -> T::Args {
        decode::<T>(serde_json::from_str(json).unwrap()).unwrap()
    }

    fn refusal(tool: &str, args: &str) -> String {
        let error = check(tool, serde_json::from_str(args).unwrap()).unwrap_err();
        assert_eq!(error.kind, sandbox_api::ErrorKind::InvalidRequest);
        error.message
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let c = || "c".to_owned();
        assert_eq!(
            args::<Init>(r#"{"containerId": "c", "projectOutPath": "out"}"#),
            InitArgs {
                container_id: c(),
                image_name: None,
                container_name: None,
                project_out_path: Some("out".into()),
                root_path: "workspace".into(),
                limits: sandbox_api::LimitsRequest::default(),
                allow: None,
            }
        );
        assert_eq!(
            args::<RunCommand>(r#"{"containerId": "c", "executable": "ls"}"#),
            CommandArgs {
                container_id: c(),
                executable: "ls".into(),
                args: None,
                working_directory: "/".into(),
                env_vars: None,
                timeout: None,
            }
        );
        assert_eq!(
            args::<Destroy>(r#"{"containerId": "c"}"#),
            DestroyArgs { container_id: c(), remove_container: true }
        );
        assert_eq!(
            args::<ExecuteScript>(r#"{"containerId": "c", "script": "return 1"}"#),
            ExecuteScriptArgs {
                container_id: c(),
                script: "return 1".into(),
                timeout_ms: None,
                tools: None
            }
        );
    }

    #[test]
    fn quoted_input_and_kept_members_are_bounded() {
        let members = |count: usize| format!("{{{}}}", vec![r#""a":0"#; count].join(","));
        let error = |args: &str| refusal("sandbox_exists", args);
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
            ("sandbox_init", r#"{"containerId": "c", "projectOutPath": "a", "limits": [1000]}"#),
        ];
        let refusals = cases.map(|(tool, args)| refusal(tool, args)).join("\n");
        insta::assert_snapshot!(refusals);
    }
}
