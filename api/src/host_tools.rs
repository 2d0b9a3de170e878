//! Tools of the host that scripts call: what they are, which ones a run is given, and what was called.

use std::fmt;
use std::str::FromStr;

use sandbox_protocol::limits::MAX_TOOL_NAME_BYTES;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wildcard;

/// Names that no group of tools has: `tools.search` and `tools.describe` are functions.
pub const RESERVED_NAMES: [&str; 2] = ["search", "describe"];

/// A tool of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTool {
    /// Its group, a dot, and its own name: `github.list_issues`. The group has no dot.
    pub name: String,
    /// What it does, for the author of the script.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments, which are an object.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// The JSON Schema of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
    /// What it does to the world.
    #[serde(default)]
    pub effect: ToolEffect,
    /// What its server says of it besides, as `annotations` of the Model Context Protocol. It decides nothing.
    #[serde(skip)]
    pub annotations: Map<String, Value>,
}

impl HostTool {
    /// Checks the name of a tool.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check_name(name: &str) -> Result<(), &'static str> {
        match name.split_once('.') {
            _ if name.len() > MAX_TOOL_NAME_BYTES => Err("it is longer than 256 bytes"),
            _ if name.contains(char::is_control) => Err("it has a control character"),
            None | Some(("", _) | (_, "")) => Err("it is not GROUP.TOOL"),
            Some((group, _)) if RESERVED_NAMES.contains(&group) => {
                Err("its group is the name of a function of tools")
            }
            Some(_) => Ok(()),
        }
    }
}

sandbox_protocol::words! {
    /// What a tool changes, as it declares: each value is more than the one before.
    #[derive(Default, PartialOrd, Ord, JsonSchema)]
    pub enum ToolEffect {
        /// It changes nothing: `readOnlyHint` of the Model Context Protocol.
        ReadOnly = "read_only",
        /// It declares neither.
        #[default]
        Changes = "changes",
        /// It removes or overwrites something: `destructiveHint`.
        Destructive = "destructive",
    }
}

/// Which calls a run is given: those of the tools that a pattern names, with arguments that meet all
/// conditions.
///
/// ```
/// use sandbox_api::ToolRule;
/// use serde_json::json;
///
/// let rule: ToolRule = "github.create_* /repo=site".parse()?;
/// assert!(rule.names("github.create_issue"));
/// let arguments = |repo| json!({ "repo": repo }).as_object().unwrap().clone();
/// assert!(rule.allows("github.create_issue", &arguments("site")));
/// assert!(!rule.allows("github.create_issue", &arguments("other")));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRule {
    /// As it was written.
    text: String,
    /// `*` stands for any characters.
    tool: String,
    conditions: Vec<Condition>,
}

/// What an argument has to be.
#[derive(Debug, Clone, PartialEq)]
struct Condition {
    /// As it was written.
    text: String,
    /// A JSON pointer.
    pointer: String,
    value: Expected,
}

#[derive(Debug, Clone, PartialEq)]
enum Expected {
    /// Exactly this.
    Json(Value),
    /// A string that the pattern matches.
    Text(String),
}

/// A text is not a rule for tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a rule for tools: {what}", .text.escape_debug())]
pub struct NoToolRule {
    text: String,
    what: &'static str,
}

impl ToolRule {
    /// Gives every tool.
    pub fn all() -> Self {
        Self { text: "*".to_owned(), tool: "*".to_owned(), conditions: Vec::new() }
    }

    /// The rule for this tool alone, whatever its arguments; `None` if its name would be another rule, or is not one
    /// word of a command line.
    pub fn suggested(tool: &str) -> Option<&str> {
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"_-.".contains(&it);
        tool.bytes().all(is_plain).then_some(tool)
    }

    /// Whether some call of this tool is given.
    pub fn names(&self, tool: &str) -> bool {
        wildcard::matches(&self.tool, tool, |_| true)
    }

    /// Whether it may name a tool of this server.
    pub fn may_name_one_of(&self, server: &str) -> bool {
        let (tools, start) =
            (format!("{server}."), self.tool.split('*').next().unwrap_or_default());
        tools.starts_with(start) || start.starts_with(&tools)
    }

    /// Whether this call is given.
    pub fn allows(&self, tool: &str, arguments: &Map<String, Value>) -> bool {
        self.names(tool) && self.unmet(arguments).is_none()
    }

    /// The first condition that these arguments do not meet, as it is written.
    pub fn unmet(&self, arguments: &Map<String, Value>) -> Option<&str> {
        let unmet = self.conditions.iter().find(|condition| !condition.is_met(arguments));
        unmet.map(|condition| &*condition.text)
    }
}

impl Condition {
    fn is_met(&self, arguments: &Map<String, Value>) -> bool {
        at(arguments, &self.pointer).is_some_and(|value| match &self.value {
            Expected::Json(expected) => expected == value,
            Expected::Text(pattern) => {
                value.as_str().is_some_and(|text| wildcard::matches(pattern, text, |_| true))
            }
        })
    }
}

/// The argument that a JSON pointer leads to.
fn at<'a>(arguments: &'a Map<String, Value>, pointer: &str) -> Option<&'a Value> {
    let (first, rest) = match pointer[1..].find('/') {
        Some(end) => pointer[1..].split_at(end),
        None => (&pointer[1..], ""),
    };
    arguments.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

impl FromStr for ToolRule {
    type Err = NoToolRule;

    fn from_str(text: &str) -> Result<Self, NoToolRule> {
        let refuse = |what| NoToolRule { text: text.chars().take(200).collect(), what };
        let trimmed = text.trim();
        let (tool, mut rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        if tool.is_empty() || tool.contains(|it: char| it.is_control() || it == '/' || it == '=') {
            return Err(refuse("it begins with the pattern of a tool's name"));
        }
        let mut conditions = Vec::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                let (text, tool) = (trimmed.to_owned(), tool.to_owned());
                return Ok(Self { text, tool, conditions });
            }
            let (pointer, value) = rest
                .split_once('=')
                .filter(|(pointer, _)| pointer.starts_with('/') && !pointer.contains(' '))
                .ok_or_else(|| refuse("a condition is '/POINTER=VALUE'"))?;
            let (text, after) = value.split_at(value.find(" /").unwrap_or(value.len()));
            rest = after;
            let value = match serde_json::from_str(text) {
                Ok(json) => Expected::Json(json),
                Err(_) => Expected::Text(text.trim_end().to_owned()),
            };
            let (text, pointer) = (format!("{pointer}={}", text.trim_end()), pointer.to_owned());
            conditions.push(Condition { text, pointer, value });
        }
    }
}

impl fmt::Display for ToolRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// A call of a tool by a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool, as the script named it.
    pub tool: String,
    /// How it ended.
    pub outcome: ToolOutcome,
    /// How long it took.
    pub duration_ms: u64,
    /// The size of its arguments as JSON.
    pub argument_bytes: u64,
    /// The size of its result: its value as JSON, or its text if it failed, and its files.
    pub result_bytes: u64,
    /// The digest of its arguments as JSON.
    pub arguments_sha256: String,
    /// The digest of its value as JSON, or of the text if it failed.
    pub result_sha256: String,
}

impl ToolCall {
    /// How many calls of a run are recorded.
    pub const MAX_RECORDED: usize = 1000;
}

sandbox_protocol::words! {
    /// How a call of a tool ended.
    #[derive(JsonSchema)]
    pub enum ToolOutcome {
        /// With a result.
        Ok = "ok",
        /// The tool failed, and said why.
        Failed = "failed",
        /// The run was not given this call, or it was not permitted.
        Refused = "refused",
        /// There is no such tool.
        Unknown = "unknown",
        /// It took too long.
        Timeout = "timeout",
        /// Its result is larger than what a script is given.
        TooLarge = "too_large",
        /// The run has called as much as it may.
        Limit = "limit",
        /// The provider of the tool cannot be reached.
        Unavailable = "unavailable",
        /// The script ended before it.
        Cancelled = "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(text: &str) -> ToolRule {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_names_tools_and_conditions_bind_arguments() {
        assert!(rule("github.list_*").names("github.list_issues"));
        assert!(!rule("github.list_*").names("gitlab.list_issues"));
        assert!(rule("*").names("a.b"));
        assert!(rule("*_x*.y").names("a_x_xz.y"));
        assert!(!rule("a.b").names("a.bc"));
        let bound = rule(r#"a.b /n=3 /x/0="a b" /s=si*e end /ok=true"#);
        let object = |value: Value| value.as_object().unwrap().clone();
        let good = object(json!({ "n": 3, "x": ["a b"], "s": "site end", "ok": true }));
        assert!(bound.allows("a.b", &good));
        for (key, other) in [
            ("n", json!("3")),
            ("x", json!([])),
            ("s", json!("site")),
            ("s", json!(["site end"])),
            ("ok", json!(null)),
        ] {
            let mut bad = good.clone();
            bad.insert(key.to_owned(), other);
            assert!(!bound.allows("a.b", &bad), "{bad:?}");
            let unmet = bound.unmet(&bad).unwrap();
            assert!(unmet.starts_with(&format!("/{key}")), "{unmet}");
        }
        let id = |id: i64| object(json!({ "id": id }));
        let exact = rule("a.b /id=9007199254740993");
        assert!(exact.allows("a.b", &id(9_007_199_254_740_993)));
        assert!(!exact.allows("a.b", &id(9_007_199_254_740_992)));
        let deep = object(json!({ "a/b": { "c~d": [{ "e": 1 }] } }));
        assert!(rule("* /a~1b/c~0d/0/e=1").allows("x.y", &deep));
    }

    #[test]
    fn names_have_a_group_that_is_no_function() {
        for name in ["a.b", "my-server.list.all", "a.b c"] {
            assert_eq!(HostTool::check_name(name), Ok(()), "{name}");
        }
        for name in ["a", ".b", "a.", "search.b", "describe.x", "a.\n", &"x.y".repeat(100)] {
            assert!(HostTool::check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_rule_may_name_tools_of_some_servers() {
        for text in ["*", "a*", "a.*", "a.b", "a.b*", "*.b"] {
            assert!(rule(text).may_name_one_of("a"), "{text}");
        }
        for text in ["b.*", "ab.*", "b.a"] {
            assert!(!rule(text).may_name_one_of("a"), "{text}");
        }
    }

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in ["*", "a.b", "a.* /r=x*", r#"a.b /r="a b" /n=[1,2] /e="#, "a.b /a~1b=1"] {
            assert_eq!(rule(text).to_string(), text);
            assert_eq!(rule(&rule(text).to_string()), rule(text));
        }
        for text in ["", " ", "/a=b", "a.b x=1", "a.b /a", "a=b"] {
            let error = text.parse::<ToolRule>().unwrap_err();
            assert!(error.to_string().contains("is not a rule"), "{error}");
        }
    }
}
