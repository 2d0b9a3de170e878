//! Names in public results: text always, and beside it the bytes where the text is not exact.
//!
//! Inside, a path or a name is a [`WireString`](crate::WireString), which is `{"b64": …}` in JSON where
//! it is not UTF-8. What is given to callers has `"path": "a\ufffd", "path_b64": "Yf8="` in its place:
//! results of operations get it here, when they become JSON; documents by the macro `named!` of the API.

use serde_json::{Map, Value};

use crate::Base64;

const BYTES: &str = r#":{"b64":""#;
const SUFFIX: &str = "_b64";

/// Compact JSON, serialized by this program, with its names in the public form. No text in JSON contains what begins a name's
/// bytes: its quotes are escaped.
pub fn published(json: String) -> String {
    if !json.contains(BYTES) {
        return json;
    }
    let mut public = String::with_capacity(json.len() + json.len() / 8);
    let mut rest = &*json;
    while let Some((before, after)) = rest.split_once(BYTES) {
        let (base64, after) = after.split_once("\"}").unwrap_or((after, ""));
        let bytes = Base64::from_text(base64).unwrap_or_default().0;
        let text = Value::from(String::from_utf8_lossy(&bytes));
        let key = before.rsplit('"').nth(1).unwrap_or_default();
        public += &format!("{before}:{text},\"{key}{SUFFIX}\":\"{base64}\"");
        rest = after;
    }
    public + rest
}

/// A public result with its names as they are inside.
pub fn restore(result: &mut Value) {
    match result {
        Value::Object(members) => {
            let exact: Vec<String> =
                members.keys().filter(|key| key.ends_with(SUFFIX)).cloned().collect();
            for key in exact {
                let bytes = members.remove(&key).unwrap_or_default();
                let name = key.trim_end_matches(SUFFIX).to_owned();
                members.insert(name, Map::from_iter([("b64".to_owned(), bytes)]).into());
            }
            members.values_mut().for_each(restore);
        }
        Value::Array(items) => items.iter_mut().for_each(restore),
        _ => {}
    }
}

/// The schema of a struct with its names in the public form.
#[cfg(feature = "schema")]
pub fn describe(schema: &mut schemars::Schema) {
    use schemars::JsonSchema as _;

    let Some(Value::Object(members)) = schema.get_mut("properties") else { return };
    let is_name = |member: &Value| match member.get("$ref").and_then(Value::as_str) {
        Some(reference) => reference.ends_with("/Content"),
        None => member.pointer("/oneOf/1/properties/b64").is_some(),
    };
    let names: Vec<String> =
        members.iter().filter(|(_, it)| is_name(it)).map(|(name, _)| name.clone()).collect();
    for name in names {
        let mut text = Map::from_iter([("type".to_owned(), "string".into())]);
        let described = members.remove(&name).and_then(|it| it.get("description").cloned());
        text.extend(described.map(|it| ("description".to_owned(), it)));
        let whose = if matches!(&*name, "path" | "name") {
            format!("The {name}'s")
        } else {
            "Its".to_owned()
        };
        let mut bytes = <Option<Base64>>::json_schema(&mut schemars::SchemaGenerator::default());
        let described = format!("{whose} bytes, where they are not UTF-8.");
        bytes.insert("description".to_owned(), described.into());
        members.insert(format!("{name}{SUFFIX}"), bytes.into());
        members.insert(name, text.into());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::WireString;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Found {
        path: WireString,
        text: String,
        inner: Vec<Found>,
    }

    #[test]
    fn names_are_text_with_their_bytes_where_it_is_not_exact() {
        let inner = vec![Found { path: "b".into(), text: r#":{"b64":"!"}"#.into(), inner: vec![] }];
        let found = Found { path: WireString::new(b"a\"\xff"), text: String::new(), inner };
        let json = published(serde_json::to_string(&found).unwrap());
        let expected = concat!(
            "{\"path\":\"a\\\"\u{fffd}\",\"path_b64\":\"YSL/\",\"text\":\"\",\"inner\":[",
            r#"{"path":"b","text":":{\"b64\":\"!\"}","inner":[]}]}"#,
        );
        assert_eq!(json, expected);
    }

    proptest! {
        #[test]
        fn any_names_come_back(path in any::<Vec<u8>>(), other in any::<Vec<u8>>(), text in any::<String>()) {
            let inner = vec![Found { path: other.into(), text: text.clone(), inner: vec![] }];
            let found = Found { path: path.into(), text, inner };
            let mut json = serde_json::from_str(&published(serde_json::to_string(&found).unwrap())).unwrap();
            restore(&mut json);
            prop_assert_eq!(serde_json::from_value::<Found>(json).unwrap(), found);
        }
    }
}
