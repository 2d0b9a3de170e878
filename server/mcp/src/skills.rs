//! The skill that teaches AI agents our tools. Its file is a resource, and the protocol's extension for
//! skills (SEP-2640) lists it with its digest.

use std::sync::LazyLock;

use rmcp::model::{
    CacheScope, ErrorData, GetSkillResult, JsonObject, ListSkillsResult, ReadResourceResult,
    Resource, ResourceContents, Skill, SkillFrontmatter, SkillResource, SkillResources,
};
use serde_json::{Value, json};

/// The file `SKILL.md` of the skill, in the Agent Skills format.
pub const SKILL: &str = include_str!("../../../skills/sandboxctl/SKILL.md");
/// The skill's name, which is that of its directory.
pub const SKILL_NAME: &str = "sandboxctl";

const URI: &str = "skill://sandboxctl/SKILL.md";
const MIME_TYPE: &str = "text/markdown";
/// How long a client may keep it: it never changes while the server runs.
const TTL_MS: u64 = 3_600_000;

static ENTRY: LazyLock<Skill> = LazyLock::new(|| {
    let mut extra = frontmatter(SKILL);
    let mut text = |key| match extra.remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let frontmatter = SkillFrontmatter::new(text("name"), text("description"));
    let frontmatter =
        extra.into_iter().fold(frontmatter, |all, (key, value)| all.with_field(key, value));
    let file = SkillResource::from_bytes(URI, SKILL.as_bytes());
    Skill::new(URI, frontmatter, SkillResources::Files(vec![file]))
});

/// The frontmatter of a skill, of the part of YAML that our skill uses: texts in one line, plain or as JSON
/// has them, and maps of such, indented.
fn frontmatter(skill: &str) -> JsonObject {
    let mut fields = JsonObject::new();
    let mut map: Option<String> = None;
    let lines = skill.lines().skip(1).take_while(|line| *line != "---");
    for (key, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = match value.trim() {
            "" => json!({}),
            text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        };
        match (key.strip_prefix("  "), &mut map) {
            (Some(key), Some(map)) => fields[map.as_str()][key] = value,
            _ => {
                map = Some(key.to_owned());
                fields.insert(key.to_owned(), value);
            }
        }
    }
    fields
}

pub(crate) fn list() -> ListSkillsResult {
    ListSkillsResult::with_all_items(vec![ENTRY.clone()])
        .with_ttl_ms(TTL_MS)
        .with_cache_scope(CacheScope::Public)
}

/// The skill of this URI.
///
/// # Errors
///
/// Invalid params, if there is none.
pub(crate) fn entry(uri: &str) -> Result<GetSkillResult, ErrorData> {
    if uri != URI {
        let shown: String = uri.chars().take(512).collect();
        let message =
            format!("no such skill: {shown} (hint: skills/list lists those that there are)");
        return Err(ErrorData::invalid_params(message, Some(json!({ "uri": shown }))));
    }
    let skill = GetSkillResult::new(ENTRY.clone());
    Ok(skill.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
}

/// Its file in the list of resources.
pub(crate) fn resource() -> Resource {
    let SkillFrontmatter { name, description, .. } = &ENTRY.frontmatter;
    Resource::new(URI, name)
        .with_description(description)
        .with_mime_type(MIME_TYPE)
        .with_size(SKILL.len() as u64)
}

/// The content of its file, if that is what the URI names.
pub(crate) fn read(uri: &str) -> Option<ReadResourceResult> {
    (uri == URI).then(|| {
        let content = ResourceContents::text(SKILL, URI).with_mime_type(MIME_TYPE);
        let result = ReadResourceResult::new(vec![content]);
        result.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public)
    })
}

#[cfg(test)]
mod tests {
    use sandbox_api::RootFs;

    use super::*;
    use crate::tools::tests::settings;
    use crate::tools::{Catalogue, tool_names};

    #[test]
    fn frontmatter_is_of_the_agent_skills_format() {
        let fields = frontmatter(SKILL);
        // The keys that the format has, and no other.
        let keys: Vec<_> = fields.keys().map(String::as_str).collect();
        let mut expected =
            ["name", "description", "license", "compatibility", "metadata", "allowed-tools"];
        expected.sort_unstable();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
        let length = |key: &str| fields[key].as_str().unwrap().chars().count();
        assert!(length("description") <= 1024 && length("compatibility") <= 500);
        assert_eq!(fields["name"], SKILL_NAME);
        assert_eq!(fields["license"], "Apache-2.0");
        assert_eq!(fields["metadata"]["version"], env!("CARGO_PKG_VERSION"));
        let texts = fields["metadata"].as_object().unwrap().values().chain(fields.values());
        for text in texts.filter(|it| !it.is_object()) {
            assert!(!text.as_str().unwrap().is_empty());
        }
        // The instructions are read whole.
        assert!(SKILL.lines().count() < 500);
    }

    #[test]
    fn frontmatter_is_the_same_to_every_parser_of_yaml() {
        let head = SKILL.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap().0;
        for line in head.lines() {
            let (key, value) = line.split_once(':').unwrap();
            let is_key = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(key.trim_start().bytes().all(is_key), "{line}");
            let Some(value) = value.strip_prefix(' ') else {
                assert_eq!(value, "", "{line}");
                continue;
            };
            match value.starts_with('"') {
                true => assert!(serde_json::from_str::<String>(value).is_ok(), "{line}"),
                // What is plain is a text: no number, no other quote, no comment, no map.
                false => assert!(
                    value.starts_with(|it: char| it.is_ascii_alphabetic())
                        && serde_json::from_str::<Value>(value).is_err()
                        && !value.contains(": ")
                        && !value.contains(" #")
                        && value.trim() == value,
                    "{line}"
                ),
            }
        }
    }

    #[test]
    fn tools_that_the_skill_allows_change_nothing() {
        let allowed = frontmatter(SKILL)["allowed-tools"].clone();
        let mut all = settings();
        all.sandbox = all.sandbox.root(RootFs::Directory("/x".into()));
        let catalogue = Catalogue::new(&all, true);
        for name in allowed.as_str().unwrap().split(' ') {
            let tool = catalogue.find(name.strip_prefix("mcp__sandboxctl__").unwrap()).unwrap();
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!(hints.read_only_hint, Some(true), "{name}");
        }
    }

    #[test]
    fn skill_names_only_tools_that_exist() {
        let words = SKILL.split('`').skip(1).step_by(2);
        let is_tool = |word: &&str| {
            word.contains('_') && word.bytes().all(|it| it == b'_' || it.is_ascii_lowercase())
        };
        let others = ["timeout_ms", "write_script"];
        for word in words.filter(is_tool).filter(|word| !others.contains(word)) {
            assert!(tool_names().contains(&word), "{word}");
        }
    }

    #[test]
    fn entry_has_the_digest_of_what_is_read() {
        let listed = list();
        assert_eq!(listed.skills, [entry(URI).unwrap().skill]);
        listed.skills[0].validate().unwrap();
        let SkillResources::Files(files) = &listed.skills[0].resources else { panic!() };
        let read = read(&files[0].uri).unwrap();
        let ResourceContents::TextResourceContents { text, mime_type, .. } = &read.contents[0]
        else {
            panic!("{read:?}")
        };
        files[0].verify(text.as_bytes()).unwrap();
        assert_eq!(mime_type.as_deref(), Some("text/markdown"));
        // What the file says, and nothing else.
        let shown = serde_json::to_value(&listed.skills[0].frontmatter).unwrap();
        assert_eq!(shown, Value::Object(frontmatter(SKILL)));
        let resource = resource();
        assert_eq!((&*resource.name, &*resource.uri), (SKILL_NAME, URI));
    }

    #[test]
    fn other_skills_are_unknown() {
        for uri in ["skill://sandboxctl", "skill://sandboxctl/skill.md", "skill://x/SKILL.md", ""] {
            assert!(read(uri).is_none());
            assert_eq!(entry(uri).unwrap_err().code.0, -32602);
        }
    }
}
